//! A rack's workers as leaves have them that share them: they register with each, and tell them of their queues in messages, by
//! the code of an agent.

use std::net::{IpAddr, Ipv4Addr};

use rand::SeedableRng as _;
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::policy::member::Notify;
use wedjat::policy::{PolicySpec, Rng, stream_seed};
use wedjat::reason::DropReason;
use wedjat::ring::Place;
use wedjat::role::agent::{QueueReport, QueueReports, Registrar, emit_word};
use wedjat::wire::arp;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::Header;
use wedjat::wire::udp::{self, Flow};

use super::{Address, Layout};

/// Between two looks at who is to be told something by time.
const TICK_S: f64 = 100e-6;

/// Which leaves there are, and by which rules they are told.
#[derive(Clone, Debug)]
pub struct LeafOptions {
    /// Their addresses on the workers' side, in the servers' network.
    pub leaves: Vec<Ipv4Addr>,
    /// The pool that all workers are in.
    pub pool: u16,
    /// The leaves' policy.
    pub policy: PolicySpec,
    /// Seed of whom random reports go to.
    pub seed: u64,
}

/// The side of emulated workers that registers with several leaves and tells them of queues, as an agent does.
pub(super) struct Leaves<B> {
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
        let registrar = |ip: &Ipv4Addr| Registrar::new((*ip).into(), 0, None, &places, hz as u64);
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

    /// Takes what an ARP packet says of a leaf.
    pub fn hear_arp(&mut self, frame: &[u8]) {
        let Ok(packet) = arp::Packet::parse(frame) else { return };
        let sender = Ipv4Addr::from_bits(packet.sender).into();
        self.registrars.iter_mut().for_each(|one| one.learn(sender, packet.sender_mac));
    }

    /// Takes an acknowledgement by the leaf of this address for the worker at a place, which has so many tasks.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn acknowledged(
        &mut self,
        frame: &[u8],
        (from, header): (u32, &Header),
        (place, tasks): (u16, u32),
    ) -> Result<(), DropReason> {
        let from = IpAddr::from(Ipv4Addr::from_bits(from));
        let leaf = self.registrars.iter().position(|one| one.leaf() == from);
        let leaf = leaf.ok_or(DropReason::SpoofedReply)?;
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
            && let Some((IpAddr::V4(server), ..)) = address.layout.servers().next()
            && let IpAddr::V4(leaf) = registrar.leaf()
            && let Some(mut buf) = (self.buffers)()
            && buf.resize(arp::FRAME_LEN)
        {
            let question = arp::Packet::request(address.mac, server.to_bits(), leaf.to_bits());
            question.emit(buf.bytes_mut(), Mac::BROADCAST);
            self.words.push(buf);
        }
        if let Some(header) = registrar.due(now, tasks) {
            self.say(leaf, header, address);
        }
    }

    /// Makes the packet of a word to a leaf, if it is known where that is.
    fn say(&mut self, leaf: usize, header: Header, address: &Address) {
        let registrar = &self.registrars[leaf];
        let (Some(dst_mac), Some(IpAddr::V4(src)), IpAddr::V4(dst)) =
            (registrar.mac(), address.layout.server_of(header.src), registrar.leaf())
        else {
            return;
        };
        let flow = Flow {
            src_mac: address.mac,
            dst_mac,
            src: src.to_bits(),
            dst: dst.to_bits(),
            src_port: address.udp_port,
            dst_port: address.udp_port,
        };
        if let Some(mut buf) = (self.buffers)()
            && buf.resize(udp::PAYLOAD + header.len())
        {
            emit_word(&header, &flow, buf.bytes_mut(), |_| {});
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
