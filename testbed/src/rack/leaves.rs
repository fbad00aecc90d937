//! A rack's workers as leaves have them that share them: they register with each, and tell them of their queues in messages, by
//! the code of an agent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rand::SeedableRng as _;
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::policy::member::Notify;
use wedjat::policy::{PolicySpec, Rng, stream_seed};
use wedjat::reason::DropReason;
use wedjat::ring::Place;
use wedjat::role::agent::{QueueReport, QueueReports, Registrar};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::Header;
use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{arp, ndp};
use wedjat_pktgen::neighbour::Message;

use super::{Address, Layout};

/// Between two looks at who is to be told something by time.
const TICK_S: f64 = 100e-6;

/// Which leaves there are, and by which rules they are told.
#[derive(Clone, Debug)]
pub struct LeafOptions {
    /// Their addresses on the workers' side, in the servers' network and of the servers' family.
    pub leaves: Vec<IpAddr>,
    /// The pool that all workers are in.
    pub pool: u16,
    /// The leaves' policy.
    pub policy: PolicySpec,
    /// Seed of whom random reports go to.
    pub seed: u64,
}

/// The side of emulated workers that registers with several leaves and tells them of queues, as an agent does.
pub(super) struct Leaves<B> {
    /// By the leaves' places in the options; each registrar knows its leaf by that number.
    registrars: Vec<Registrar>,
    reports: QueueReports,
    pool: u16,
    /// Where packets come from that no task brought.
    buffers: Box<dyn FnMut() -> Option<B> + Send>,
    /// What is to be sent.
    words: Burst<B>,
    tick: u64,
    next_tick: u64,
    /// Reports that the device took, and did not.
    pub sent: [u64; 2],
}

impl<B: Buf> Leaves<B> {
    pub fn new(
        options: &LeafOptions,
        layout: &Layout,
        mut pool: impl Pool<Buf = B> + Send + 'static,
        hz: f64,
    ) -> Self {
        let LeafOptions { leaves, pool: id, policy, seed } = options;
        let place = |at| Place { id: layout.id(at), pool: *id };
        let places: Vec<_> = (0..layout.workers()).map(place).collect();
        let registrar = |ip: &IpAddr| Registrar::new(*ip, 0, None, &places, hz as u64);
        let rng = Rng::seed_from_u64(stream_seed(*seed, 0, 0));
        // Those that are asked tell nothing besides.
        let notify = if policy.is_told() { policy.notify() } else { Notify::Never };
        let pools = vec![(*id, notify)];
        let mut reports = QueueReports::new(pools, leaves.len(), places.len(), rng, hz as u64);
        for (at, place) in places.iter().enumerate() {
            let number = reports.add(*place);
            assert_eq!(number, Some(at as u16), "workers are numbered by their places");
        }
        Self {
            registrars: leaves.iter().map(registrar).collect(),
            reports,
            pool: *id,
            buffers: Box::new(move || pool.take()),
            words: Burst::new(),
            tick: (TICK_S * hz) as u64,
            next_tick: 0,
            sent: [0; 2],
        }
    }

    /// A task for the worker at a place came from this MAC address.
    #[inline]
    pub fn on_task(&mut self, place: u16, from: Mac) {
        if let Some(leaf) = self.registrars.iter().position(|one| one.mac() == Some(from)) {
            self.reports.on_task(place, leaf);
        }
    }

    /// The worker at a place has done a task, and so many are left.
    #[inline]
    pub fn on_done(&mut self, place: u16, left: u32) {
        self.reports.on_done(place, left.min(u32::from(u16::MAX)) as u16);
    }

    /// Takes what a frame says of a leaf, if it is ARP or neighbour discovery.
    pub fn hear_neighbour(&mut self, frame: &[u8]) {
        if frame.len() < ether::LEN || !Message::is_one(frame) {
            return;
        }
        let Some((ip, mac)) = Message::read(frame).ok().and_then(|message| speaker(&message))
        else {
            return;
        };
        if let Some(leaf) = self.leaf_at(ip) {
            self.registrars[leaf].learn(ip, mac);
        }
    }

    fn leaf_at(&self, ip: IpAddr) -> Option<usize> {
        self.registrars.iter().position(|one| one.leaf() == ip)
    }

    /// Takes an acknowledgement by the leaf of this address for the worker at a place, which has so many tasks.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn acknowledged(
        &mut self,
        frame: &[u8],
        (from, header): (IpAddr, &Header),
        (place, tasks): (u16, u32),
    ) -> Result<(), DropReason> {
        let leaf = self.leaf_at(from).ok_or(DropReason::SpoofedReply)?;
        self.registrars[leaf].acknowledged(0, (from, ether::src(frame)), header)?;
        self.reports.on_met(place, leaf, tasks.min(u32::from(u16::MAX)) as u16);
        Ok(())
    }

    /// Says what is due; `tasks` says what a worker that is there has.
    #[inline]
    pub fn speak<P: Port<Buf = B>>(
        &mut self,
        now: u64,
        (port, address): (&mut P, &Address),
        tasks: impl Fn(Place) -> Option<u16>,
    ) {
        self.reports.note_time(now);
        if now >= self.next_tick {
            self.next_tick = now + self.tick;
            for leaf in 0..self.registrars.len() {
                self.register(leaf, now, address, &tasks);
            }
            self.reports.tick(&tasks);
            self.send(port, false);
        }
        while let Some(QueueReport { leaf, header }) = self.reports.next_word() {
            self.say(leaf, header, address);
            if self.words.is_full() {
                self.send(port, true);
            }
        }
        self.send(port, true);
    }

    fn register(
        &mut self,
        leaf: usize,
        now: u64,
        address: &Address,
        tasks: &impl Fn(Place) -> Option<u16>,
    ) {
        let registrar = &mut self.registrars[leaf];
        if registrar.must_ask(now)
            && let Some((server, ..)) = address.layout.servers().next()
            && let Some(mut buf) = (self.buffers)()
            && ask((address.mac, server), registrar.leaf(), &mut buf)
        {
            self.words.push(buf);
        }
        if let Some(header) = registrar.due(now, tasks) {
            self.say(leaf, header, address);
        }
    }

    /// Makes the packet of a word to a leaf, if it is known where that is.
    fn say(&mut self, leaf: usize, header: Header, address: &Address) {
        let (Some(mac), Some(server)) =
            (self.registrars[leaf].mac(), address.layout.server_of(header.src))
        else {
            return;
        };
        let (from, to) = ((address.mac, server), (mac, self.registrars[leaf].leaf()));
        if let Some(mut buf) = (self.buffers)()
            && word(&header, from, to, address.udp_port, &mut buf)
        {
            self.words.push(buf);
        }
    }

    /// What the device does not take is lost, as it may be on the wire.
    fn send<P: Port<Buf = B>>(&mut self, port: &mut P, are_reports: bool) {
        if self.words.is_empty() {
            return;
        }
        let sent = port.tx_burst(&mut self.words);
        if are_reports {
            self.sent = [self.sent[0] + sent as u64, self.sent[1] + self.words.len() as u64];
        }
        self.words.clear();
    }

    /// The pool that the workers are in.
    pub fn pool(&self) -> u16 {
        self.pool
    }
}

/// Whom a message is from, or of whom it tells.
fn speaker(message: &Message) -> Option<(IpAddr, Mac)> {
    match message {
        Message::Arp(packet) => {
            Some((Ipv4Addr::from_bits(packet.sender).into(), packet.sender_mac))
        }
        Message::Nd(packet) if packet.operation == ndp::Operation::Solicitation => {
            packet.mac.map(|mac| (Ipv6Addr::from_bits(packet.src).into(), mac))
        }
        Message::Nd(_) => message.tells(),
    }
}

/// Writes the question for a leaf's MAC address by the host at `mac`. False when both are not of one family, or there is no room.
fn ask<B: Buf>((mac, server): (Mac, IpAddr), leaf: IpAddr, buf: &mut B) -> bool {
    match (server, leaf) {
        (IpAddr::V4(server), IpAddr::V4(leaf)) if buf.resize(arp::FRAME_LEN) => {
            let question = arp::Packet::request(mac, server.to_bits(), leaf.to_bits());
            question.emit(buf.bytes_mut(), Mac::BROADCAST);
            true
        }
        (IpAddr::V6(server), IpAddr::V6(leaf)) if buf.resize(ndp::FRAME_LEN) => {
            let (question, to) = ndp::Packet::question(mac, server.to_bits(), leaf.to_bits(), None);
            question.emit(buf.bytes_mut(), to, false);
            true
        }
        _ => false,
    }
}

/// Writes a word. False when both ends are not of one family, or there is no room.
fn word<B: Buf>(
    header: &Header,
    (src_mac, src): (Mac, IpAddr),
    (dst_mac, dst): (Mac, IpAddr),
    port: u16,
    buf: &mut B,
) -> bool {
    let (len, at) = (header.len(), if src.is_ipv6() { udp::PAYLOAD_V6 } else { udp::PAYLOAD });
    if src.is_ipv6() != dst.is_ipv6() || !buf.resize(at + len) {
        return false;
    }
    let frame = buf.bytes_mut();
    header.emit(&mut frame[at..]);
    if let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) {
        let (src, dst) = (src.to_bits(), dst.to_bits());
        Flow { src_mac, dst_mac, src, dst, src_port: port, dst_port: port }.emit(frame, len);
    }
    if let (IpAddr::V6(src), IpAddr::V6(dst)) = (src, dst) {
        let (src, dst) = (src.to_bits(), dst.to_bits());
        Flow { src_mac, dst_mac, src, dst, src_port: port, dst_port: port }.emit_v6(frame, len);
    }
    true
}
