//! Registration and load reports of workers that several leaves share. The rules for both are the code of a
//! real agent. A registrar for each leaf decides when workers register. The leaves' policy decides when workers
//! report their queues. A worker's place is its index in the rack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rand::SeedableRng as _;
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::policy::member::Notify;
use wedjat::policy::{PolicySpec, Rng, stream_seed};
use wedjat::reason::DropReason;
use wedjat::ring::WorkerIdentity;
use wedjat::role::agent::{QueueReport, QueueReports, Registrar};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::Header;
use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{arp, ndp};
use wedjat_pktgen::neighbour::Message;

use super::{Layout, RackPort};

/// Interval in seconds between checks for due registrations, keep-alives and repeated reports.
const TICK_S: f64 = 100e-6;

/// Leaves of a rack, and their rules for load reports.
#[derive(Clone, Debug)]
pub struct LeafOptions {
    /// Addresses of the leaves on the workers' side, in the servers' network and of the servers' family.
    pub leaves: Vec<IpAddr>,
    /// Pool of all workers.
    pub pool: u16,
    /// Policy of the leaves.
    pub policy: PolicySpec,
    /// Seed that chooses the receivers of random reports.
    pub seed: u64,
}

/// Sender of the workers' registrations and load reports to several leaves.
pub(super) struct Leaves<B> {
    /// One registrar per leaf, in the order of the options: it decides when to send registrations.
    registrars: Vec<Registrar>,
    /// Rule that decides when to send load reports.
    reports: QueueReports,
    /// Pool of all workers.
    pool: u16,
    /// Source of buffers for the messages.
    buffers: Box<dyn FnMut() -> Option<B> + Send>,
    /// Messages to send next.
    frames: Burst<B>,
    /// Interval between checks, in ticks of the clock.
    tick: u64,
    /// Time of the next check in ticks.
    next_tick: u64,
    /// Number of reports that the device accepted, and number that it rejected.
    pub sent: [u64; 2],
}

impl<B: Buf> Leaves<B> {
    /// Creates the sender on a clock of `hz` ticks per second.
    pub fn new(
        options: &LeafOptions,
        layout: &Layout,
        mut pool: impl Pool<Buf = B> + Send + 'static,
        hz: f64,
    ) -> Self {
        let LeafOptions { leaves, pool: id, policy, seed } = options;
        let identity = |index| WorkerIdentity { id: layout.id(index), pool: *id };
        let identities: Vec<_> = (0..layout.workers()).map(identity).collect();
        // The rack has one port, number 0. It learns the leaves' MAC addresses by requests.
        let registrar = |ip: &IpAddr| Registrar::new(*ip, 0, None, &identities, hz as u64);
        let rng = Rng::seed_from_u64(stream_seed(*seed, 0, 0));
        // Under a policy that probes, workers send no reports.
        let notify = if policy.uses_member_reports() { policy.notify() } else { Notify::Never };
        let pools = vec![(*id, notify)];
        let mut reports = QueueReports::new(pools, leaves.len(), identities.len(), rng, hz as u64);
        for (index, identity) in identities.iter().enumerate() {
            let number = reports.add(*identity);
            assert_eq!(number, Some(index as u16), "workers are numbered by their places");
        }
        Self {
            registrars: leaves.iter().map(registrar).collect(),
            reports,
            pool: *id,
            buffers: Box::new(move || pool.take()),
            frames: Burst::new(),
            tick: (TICK_S * hz) as u64,
            next_tick: 0,
            sent: [0; 2],
        }
    }

    /// Records a task for the worker at a place, from the leaf with this MAC address. Ignores other senders.
    #[inline]
    pub fn on_task(&mut self, place: u16, from: Mac) {
        if let Some(leaf) =
            self.registrars.iter().position(|registrar| registrar.mac() == Some(from))
        {
            self.reports.on_task(place, leaf);
        }
    }

    /// Records the completion of a task of the worker at a place, which has `left` tasks left. Reports have 16
    /// bits for this number.
    #[inline]
    pub fn on_done(&mut self, place: u16, left: u32) {
        self.reports.on_done(place, left.min(u32::from(u16::MAX)) as u16);
    }

    /// Updates the leaves' MAC addresses from a frame of ARP or neighbour discovery. Ignores other frames.
    pub fn receive_neighbour(&mut self, frame: &[u8]) {
        if frame.len() < ether::LEN || !Message::is_neighbour_discovery(frame) {
            return;
        }
        let Some((ip, mac)) = Message::read(frame).ok().and_then(|message| announced(&message))
        else {
            return;
        };
        if let Some(leaf) = self.leaf_at(ip) {
            self.registrars[leaf].learn(ip, mac);
        }
    }

    /// Returns the index of the leaf with this address.
    fn leaf_at(&self, ip: IpAddr) -> Option<usize> {
        self.registrars.iter().position(|registrar| registrar.leaf() == ip)
    }

    /// Handles a leaf's acknowledgement of the registration of the worker at a place, which has `tasks` tasks.
    ///
    /// # Errors
    /// The reason why the acknowledgement is refused, for example that no leaf has the address `from`.
    pub fn acknowledged(
        &mut self,
        frame: &[u8],
        (from, header): (IpAddr, &Header),
        (place, tasks): (u16, u32),
    ) -> Result<(), DropReason> {
        let leaf = self.leaf_at(from).ok_or(DropReason::SpoofedReply)?;
        self.registrars[leaf].acknowledged(0, (from, ether::src(frame)), header)?;
        self.reports.on_leaf_acknowledged(place, leaf, tasks.min(u32::from(u16::MAX)) as u16);
        Ok(())
    }

    /// Sends the messages due at `now`. `tasks` returns a worker's number of tasks; `None` for a dead worker.
    #[inline]
    pub fn send_due<P: Port<Buf = B>>(
        &mut self,
        now: u64,
        (port, address): (&mut P, &RackPort),
        tasks: impl Fn(WorkerIdentity) -> Option<u16>,
    ) {
        self.reports.note_time(now);
        if now >= self.next_tick {
            self.next_tick = now + self.tick;
            for leaf in 0..self.registrars.len() {
                self.register(leaf, now, address, &tasks);
                // Registrations, keep-alives and requests for MAC addresses do not count as reports.
                self.send(port, false);
            }
            self.reports.tick(&tasks);
        }
        while let Some(QueueReport { leaf, header }) = self.reports.next_report() {
            self.message_to(leaf, header, address);
            if self.frames.is_full() {
                self.send(port, true);
            }
        }
        self.send(port, true);
    }

    /// Adds the due request for a leaf's MAC address, and the due registration or keep-alive, to the frames.
    fn register(
        &mut self,
        leaf: usize,
        now: u64,
        address: &RackPort,
        tasks: &impl Fn(WorkerIdentity) -> Option<u16>,
    ) {
        let registrar = &mut self.registrars[leaf];
        if registrar.must_ask(now)
            && let Some((server, ..)) = address.layout.servers().next()
            && let Some(mut buf) = (self.buffers)()
            && write_mac_request((address.mac, server), registrar.leaf(), &mut buf)
        {
            self.frames.push(buf);
        }
        if let Some(header) = registrar.due(now, tasks) {
            self.message_to(leaf, header, address);
        }
    }

    /// Adds the packet of a message to a leaf to the frames, if the leaf's MAC address is known and a buffer is
    /// free. Otherwise drops the message: a later message repeats or supersedes it.
    fn message_to(&mut self, leaf: usize, header: Header, address: &RackPort) {
        let (Some(mac), Some(server)) =
            (self.registrars[leaf].mac(), address.layout.server_of(header.src))
        else {
            return;
        };
        let (from, to) = ((address.mac, server), (mac, self.registrars[leaf].leaf()));
        if let Some(mut buf) = (self.buffers)()
            && write_message(&header, from, to, address.udp_port, &mut buf)
        {
            self.frames.push(buf);
        }
    }

    /// Sends the frames, and counts them if they are reports. Messages that the device does not accept are
    /// lost, like messages lost on the wire.
    fn send<P: Port<Buf = B>>(&mut self, port: &mut P, are_reports: bool) {
        if self.frames.is_empty() {
            return;
        }
        let sent = port.tx_burst(&mut self.frames);
        if are_reports {
            self.sent = [self.sent[0] + sent as u64, self.sent[1] + self.frames.len() as u64];
        }
        self.frames.clear();
    }

    /// Returns the pool of the workers.
    pub fn pool(&self) -> u16 {
        self.pool
    }
}

/// Returns the addresses that a message announces: of its target for an advertisement, otherwise of its sender.
fn announced(message: &Message) -> Option<(IpAddr, Mac)> {
    match message {
        Message::Arp(packet) => {
            Some((Ipv4Addr::from_bits(packet.sender).into(), packet.sender_mac))
        }
        Message::Nd(packet) if packet.operation == ndp::Operation::Solicitation => {
            packet.mac.map(|mac| (Ipv6Addr::from_bits(packet.src).into(), mac))
        }
        Message::Nd(_) => message.announcement(),
    }
}

/// Writes a request for a leaf's MAC address, sent by a server. Returns false if server and leaf are not of one
/// family, or the buffer is too small.
fn write_mac_request<B: Buf>((mac, server): (Mac, IpAddr), leaf: IpAddr, buf: &mut B) -> bool {
    match (server, leaf) {
        (IpAddr::V4(server), IpAddr::V4(leaf)) if buf.resize(arp::FRAME_LEN) => {
            let request = arp::Packet::request(mac, server.to_bits(), leaf.to_bits());
            request.emit(buf.bytes_mut(), Mac::BROADCAST);
            true
        }
        (IpAddr::V6(server), IpAddr::V6(leaf)) if buf.resize(ndp::FRAME_LEN) => {
            let (request, to) = ndp::Packet::question(mac, server.to_bits(), leaf.to_bits(), None);
            request.emit(buf.bytes_mut(), to, false);
            true
        }
        _ => false,
    }
}

/// Writes the packet of a message. Returns false if the addresses differ in family, or the buffer is too small.
fn write_message<B: Buf>(
    header: &Header,
    (src_mac, src): (Mac, IpAddr),
    (dst_mac, dst): (Mac, IpAddr),
    port: u16,
    buf: &mut B,
) -> bool {
    let (len, offset) = (header.len(), if src.is_ipv6() { udp::PAYLOAD_V6 } else { udp::PAYLOAD });
    if src.is_ipv6() != dst.is_ipv6() || !buf.resize(offset + len) {
        return false;
    }
    let frame = buf.bytes_mut();
    header.emit(&mut frame[offset..]);
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
