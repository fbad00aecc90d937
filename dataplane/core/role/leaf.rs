//! Leaf: one dispatcher core. Receives bursts from its ports, lets the stages decide, sends, and accounts for every
//! packet. A spine is a leaf whose members are leaves.
//!
//! The stages return a verdict for each packet. Packets that must wait, for a worker or for the MAC address of
//! their next hop, stay in the [`Node`], which releases them later.

mod sampler;

use std::net::IpAddr;
use std::slice;

use arrayvec::ArrayVec;
use sampler::Sampler;

use super::{CoreRole, PollTime};
use crate::clock::Progress;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::BURST;
use crate::node::explain::{Fate, Moment, PacketSummary};
use crate::node::outbox::Outbox;
use crate::node::refusals::Refusals;
use crate::node::tap::{TapCommands, TapCore};
use crate::node::{Commands, Egress, Node, PacketStore, Timing};
use crate::reason::DropReason;
use crate::stage::fabric::OutgoingMessage;
use crate::stage::{PortAddress, QueuePlace, Side, Stages, Verdict};
use crate::state::{Counter, Gauge};
use crate::wire::ether::Mac;
use crate::wire::udp::{self, Flow};
use crate::wire::{arp, ndp};

/// Packet store of a leaf. The node holds the packet buffers themselves, so the store only lends their bytes. Records
/// decisions about waiting tasks for `wedjat explain`.
struct LeafPacketStore<'a>(&'a mut TapCore);

impl<B: Buf> PacketStore<B> for LeafPacketStore<'_> {
    fn frame<'a>(&'a mut self, packet: &'a mut B) -> Option<&'a mut [u8]> {
        Some(packet.bytes_mut())
    }

    fn prefetch(&self, packet: &B) {
        packet.prefetch_all();
    }

    fn offer(
        &mut self,
        stages: &mut Stages,
        first: QueuePlace,
        now: u64,
        packet: &mut B,
    ) -> Option<Verdict> {
        let Some(explainer) = self.0.explains().then(|| self.0.explainer()).flatten() else {
            return stages.offer(first, now, packet.bytes_mut());
        };
        // The node offers the first task of the lane with the least key. All other lanes therefore count as later.
        let since_ns = |_, lane| Some(if lane == first.lane { 0 } else { u64::MAX });
        explainer.draft_at(stages, first.port as u8, now, packet.bytes(), since_ns);
        let verdict = stages.offer(first, now, packet.bytes_mut());
        match verdict {
            Some(verdict) => {
                explainer.settle_at(stages, Moment::Waited, verdict.into(), packet.bytes());
            }
            None => explainer.forget(),
        }
        verdict
    }
}

/// One dispatcher core.
#[derive(Debug)]
pub struct Leaf<P: Port, A> {
    /// Stages, and the packets that wait.
    node: Node<P::Buf>,
    /// Ports, with the packets to send.
    out: Outbox<P>,
    /// Buffer pool for packets that the node makes.
    pool: A,
    /// Counter of busy and empty polls, and of the time of busy ones.
    time: PollTime,
    /// Delay of tasks after a link-up.
    link_up_delay: LinkUpDelay,
    /// Ports that had a link at the last check, one bit each. Checked only after [`Leaf::with_link_up_delay`], to find
    /// new links.
    linked: u16,
    /// Measures the time that decisions take.
    sampler: Sampler,
}

/// Delay of tasks after a link-up. The clients' link may be up before the workers' link, or before the servers'
/// MAC addresses are resolved. During the delay the leaf does not poll ports for clients only; their devices
/// keep the packets.
#[derive(Debug, Default)]
struct LinkUpDelay {
    /// True while ports for clients only are not polled.
    holds_back: bool,
    /// True if the leaf delays tasks at all.
    is_on: bool,
    /// End of the delay in ticks of the leaf's clock.
    until: u64,
    /// Ports for clients only that had a link at the last check, one bit each.
    linked: u16,
}

/// Longest delay of tasks after a link-up of a port for clients only.
const LINK_UP_DELAY_MS: u64 = 250;

impl<P, A> Leaf<P, A>
where
    P: Port,
    A: Pool<Buf = P::Buf>,
{
    /// Creates a leaf over these ports, in the network's order. `pool` supplies buffers for packets that the
    /// leaf makes.
    ///
    /// # Panics
    /// If the number of ports differs from the network's.
    #[must_use]
    pub fn new(stages: Stages, ports: Vec<P>, pool: A, commands: Commands, timing: Timing) -> Self {
        assert_eq!(ports.len(), stages.network().ports().len());
        Self {
            out: Outbox::new(ports, stages.counters().clone()),
            node: Node::new(stages, commands, timing),
            pool,
            time: PollTime::default(),
            link_up_delay: LinkUpDelay::default(),
            linked: u16::MAX,
            sampler: Sampler::default(),
        }
    }

    /// Enables measurements of the time that decisions take. `stopwatch` reads the real time, in ticks of the leaf's
    /// clock; `None`, as in emulated time, disables them.
    #[must_use]
    pub fn with_stopwatch(mut self, stopwatch: Option<fn() -> u64>) -> Self {
        self.sampler = Sampler::new(stopwatch);
        self
    }

    /// Enables a delay of tasks, up to 250 ms, while workers are not reachable. Also enables announcements of the
    /// node's addresses after a link-up. For real devices, which come up one after another.
    #[must_use]
    pub fn with_link_up_delay(mut self) -> Self {
        let holds_back = !self.node.reaches_workers();
        self.link_up_delay = LinkUpDelay { is_on: true, holds_back, ..LinkUpDelay::default() };
        self.linked = self.linked_ports(|_| true);
        self
    }

    /// Adds a tap: by these commands other threads start and end captures and `wedjat explain`.
    #[must_use]
    pub fn with_tap(mut self, commands: TapCommands) -> Self {
        self.out.tap = TapCore::new(commands);
        self
    }

    /// Counts packets dropped at their arrival, by port and reason, for other threads.
    #[must_use]
    pub fn with_refusals(mut self, refusals: Refusals) -> Self {
        self.out.refusals = refusals;
        self
    }

    /// Polls the ports once at `now` ticks. During a delay of tasks, skips ports for clients only. Returns the number
    /// of received packets.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        match self.link_up_delay.holds_back {
            false => self.poll_ports::<true>(now),
            true => self.poll_ports::<false>(now),
        }
    }

    /// Polls all ports if `ALL`; otherwise all except ports for clients only. `ALL` is a constant, so that the usual
    /// loop has no check.
    #[inline]
    fn poll_ports<const ALL: bool>(&mut self, now: u64) -> usize {
        self.time.start(now, self.node.stages.counters());
        let mut received = 0;
        for port in 0..self.out.ports.len() {
            if !ALL && self.node.stages.network().port(port).side == Side::Clients {
                continue;
            }
            let mut burst = Burst::new();
            received += self.out.receive(port, now, &mut burst);
            // A call moves the burst, which costs a copy even if it is empty.
            if !burst.is_empty() {
                self.dispatch(port, now, burst);
            }
        }
        let is_tick_due = now >= self.node.next_tick();
        if is_tick_due {
            self.tick(now);
        }
        self.node.stages.exchange(); // with the node's other cores
        if self.release(now, received.max(BURST)) || is_tick_due {
            self.node.note_held(0); // 0: the leaf holds no packets outside the node
        }
        self.send_signals(now);
        self.flush();
        self.node.stages.counters().check_ledger(|| self.node.held());
        self.time.end(received > 0);
        received
    }

    /// Decides on a burst, and sends, holds or drops its packets.
    #[inline]
    fn dispatch(&mut self, port: usize, now: u64, mut burst: Burst<P::Buf>) {
        let count = burst.len();
        let mut verdicts = [Verdict::Consumed; BURST];
        self.node.note_time(now);
        match self.out.tap.explains() {
            false => {
                let network = self.node.stages.network();
                if network.has_direct() && network.port(port).side.has_workers() {
                    self.take_reports(port, &mut burst);
                }
                let sample = self.sampler.next(self.node.stages.counters());
                self.node.stages.process(port, now, &mut burst, &mut verdicts[..]);
                if let Some(sample) = sample {
                    let verdicts = &verdicts[..burst.len()];
                    self.sampler.record(&sample, &self.node, now, &burst, verdicts);
                }
            }
            true => self.explain(port, now, &mut burst, &mut verdicts),
        }
        self.node.stages.counters().add(Counter::RxPackets, count as u64);
        self.carry_out(port, now, burst, &verdicts);
    }

    /// Applies the completion reports of a burst, and removes them. The tasks between them then stay one run, and leave
    /// as a whole.
    fn take_reports(&mut self, port: usize, burst: &mut Burst<P::Buf>) {
        let (stages, refusals) = (&mut self.node.stages, &mut self.out.refusals);
        let mut dropped = 0;
        let mut reports = stages.apply_reports(port, burst, |report, reason| {
            refusals.note_frame(port, reason, report.bytes());
            dropped += 1;
        });
        stages.counters().add(Counter::Consumed, u64::from(reports.count_ones()) - dropped);
        while reports != 0 {
            let last = reports.ilog2();
            burst.remove(last as usize);
            reports &= !(1 << last);
        }
    }

    /// Carries out the verdict on each packet of a burst. All packets of most bursts leave by one port, so the burst
    /// moves there as a whole.
    #[inline]
    fn carry_out(
        &mut self,
        port: usize,
        now: u64,
        burst: Burst<P::Buf>,
        verdicts: &[Verdict; BURST],
    ) {
        match verdicts[0] {
            Verdict::Forward { port, .. }
                if verdicts[..burst.len()].iter().all(|verdict| verdict.leaves_by(port)) =>
            {
                self.out.forward_burst(burst, usize::from(port));
            }
            _ => self.distribute(port, now, burst, verdicts),
        }
    }

    /// Decides on a burst packet by packet, and records each decision for `wedjat explain`. Replies and messages come
    /// first, as in the stages, so that tasks find the same places free. All other packets follow in their order.
    #[cold]
    fn explain(
        &mut self,
        port: usize,
        now: u64,
        burst: &mut Burst<P::Buf>,
        verdicts: &mut [Verdict; BURST],
    ) {
        let is_message = |packet: &P::Buf| {
            let summary = PacketSummary::in_frame(packet.bytes());
            summary.header().is_some_and(|header| !header.code.carries_task())
        };
        let (messages, others): (ArrayVec<_, BURST>, ArrayVec<_, BURST>) =
            burst.iter_mut().zip(verdicts).partition(|(packet, _)| is_message(packet));
        for (packet, verdict) in messages.into_iter().chain(others) {
            let mut explainer = self.out.tap.explainer();
            if let Some(explainer) = &mut explainer {
                let since_ns = |pool, lane| self.node.first_since_ns(pool, lane);
                let stages = &self.node.stages;
                explainer.draft_at(stages, port as u8, now, packet.bytes(), since_ns);
            }
            let stages = &mut self.node.stages;
            stages.process(port, now, slice::from_mut(packet), slice::from_mut(verdict));
            if let Some(explainer) = explainer {
                explainer.settle_at(stages, Moment::Arrived, (*verdict).into(), packet.bytes());
            }
        }
    }

    /// Carries out the verdict on each packet.
    fn distribute(
        &mut self,
        port: usize,
        now: u64,
        burst: Burst<P::Buf>,
        verdicts: &[Verdict; BURST],
    ) {
        for (packet, verdict) in burst.into_iter().zip(verdicts) {
            self.apply(packet, port, now, *verdict);
        }
        if self.node.stages.waiting() > 0 {
            self.node.note_held(0);
        }
    }

    /// Carries out the verdict on a packet received by the port `from`. The stages have counted a `Drop`.
    fn apply(&mut self, packet: P::Buf, from: usize, now: u64, verdict: Verdict) {
        match verdict {
            Verdict::Forward { port, .. } => self.out.forward(packet, usize::from(port)),
            Verdict::Hold { port, worker, slot } => {
                // Without room for the packet, the oldest held one is dropped.
                let oldest = self.node.hold(packet, port, worker, slot, now);
                if let Some((oldest, reason)) = oldest {
                    self.node.stages.counters().drop(reason, 1);
                    self.explain_drop(&oldest, now, reason);
                }
            }
            Verdict::Queue { pool, lane, is_recognised } => {
                let place = QueuePlace { pool: pool.into(), lane, port: from };
                if let Err(packet) = self.node.enqueue(packet, place, is_recognised, now) {
                    self.explain_drop(&packet, now, DropReason::QueueFull);
                }
            }
            Verdict::Answer => {
                self.node.stages.counters().add(Counter::Consumed, 1);
                self.out.originate(packet, from);
            }
            Verdict::Consumed => self.node.stages.counters().add(Counter::Consumed, 1),
            Verdict::Drop(reason) => self.out.refusals.note_frame(from, reason, packet.bytes()),
        }
    }

    /// Records, for `wedjat explain`, the drop of a packet that waited or found no room to wait. The caller has
    /// counted the drop.
    #[cold]
    fn explain_drop(&mut self, packet: &P::Buf, now: u64, reason: DropReason) {
        if self.out.tap.explains() {
            self.out.tap.explain_released(now, packet.bytes(), Fate::Dropped(reason));
        }
    }

    /// Does periodic work: the node's timers, questions for neighbours, and announcements of addresses.
    #[cold]
    fn tick(&mut self, now: u64) {
        self.node.tick(now);
        self.out.tap.tick(now);
        if self.link_up_delay.is_on {
            self.review_link_up_delay(now);
            self.announce_on_new_links();
        }
        while let Some(question) = self.node.next_question(now) {
            let address = *self.node.stages.network().port(usize::from(question.port));
            self.out.ask(&mut self.pool, &address, &question);
        }
        while let Some(address) = self.node.stages.next_announcement() {
            self.announce(address);
        }
    }

    /// Announces the port's address on each port whose link has come up. The switch then learns the node's port, and
    /// hosts that tried to resolve the address meanwhile learn the MAC address.
    fn announce_on_new_links(&mut self) {
        let linked = self.linked_ports(|_| true);
        let new = linked & !std::mem::replace(&mut self.linked, linked);
        for port in
            (0..self.node.stages.network().ports().len()).filter(|port| new >> port & 1 == 1)
        {
            let PortAddress { ip, v6, .. } = *self.node.stages.network().port(port);
            self.announce_on(port, v6.map_or(IpAddr::V4(ip.into()), |v6| IpAddr::V6(v6.ip.into())));
        }
    }

    /// Returns the ports with a link for which `wanted` returns true, one bit each.
    fn linked_ports(&self, wanted: impl Fn(&PortAddress) -> bool) -> u16 {
        let (network, neighbours) = (self.node.stages.network(), self.node.stages.neighbours());
        let ports = (0..).zip(network.ports()).filter(|(_, port)| wanted(port));
        let linked = ports.filter(|&(index, _)| neighbours.is_link_up(index));
        linked.fold(0, |bits, (index, _)| bits | 1 << index)
    }

    /// Decides whether the leaf polls ports for clients only. After a link-up of such a port it waits until workers are
    /// reachable or the delay is over.
    fn review_link_up_delay(&mut self, now: u64) {
        let linked = self.linked_ports(|port| port.side == Side::Clients);
        let delay = &mut self.link_up_delay;
        if linked & !delay.linked != 0 {
            delay.until = now.saturating_add(self.node.timing().ticks_of_ms(LINK_UP_DELAY_MS));
        }
        delay.linked = linked;
        // Without a link yet, the delay has not begun: the core learns of a link-up only at its next check.
        let may_delay = linked == 0 || now < delay.until;
        delay.holds_back = may_delay && !self.node.reaches_workers();
    }

    /// Announces a service address of a spine, by gratuitous ARP or an unsolicited neighbour advertisement: another
    /// spine may have had it before. Sends on all ports with clients and the address's IP version.
    fn announce(&mut self, address: IpAddr) {
        for port in 0..self.node.stages.network().ports().len() {
            let PortAddress { side, v6, .. } = *self.node.stages.network().port(port);
            if side.has_clients() && v6.is_some() == address.is_ipv6() {
                self.announce_on(port, address);
            }
        }
    }

    /// Announces an address on one port.
    fn announce_on(&mut self, port: usize, address: IpAddr) {
        let PortAddress { mac, side, .. } = *self.node.stages.network().port(port);
        match address {
            IpAddr::V4(address) => self.out.make(&mut self.pool, port, arp::FRAME_LEN, |frame| {
                let ip = address.to_bits();
                arp::Packet::request(mac, ip, ip).emit(frame, Mac::BROADCAST);
            }),
            IpAddr::V6(address) => {
                self.out.make(&mut self.pool, port, ndp::FRAME_LEN, |frame| {
                    let (packet, to) = ndp::Packet::announcement(mac, address.to_bits());
                    // A port with workers forwards packets, as a router does.
                    packet.emit(frame, to, side.has_workers());
                })
            }
        }
    }

    /// Sends or drops at most `most` held packets whose wait has ended. Returns true if there was such a packet.
    /// `most` is at least the number of packets received in the poll. A smaller number would let a queue grow beside
    /// free places. A much larger number could overflow a transmit queue.
    #[inline]
    fn release(&mut self, now: u64, most: usize) -> bool {
        for released in self.release_runs(now, most)..most {
            let store = &mut LeafPacketStore(&mut self.out.tap);
            let Some((packet, outcome)) = self.node.next_released(now, store) else {
                return released > 0;
            };
            if self.out.tap.explains() {
                let fate = match outcome {
                    Ok(Egress { port, worker }) => Fate::Sent { port, worker },
                    Err(reason) => Fate::Dropped(reason),
                };
                self.out.tap.explain_released(now, packet.bytes(), fate);
            }
            if let Ok(Egress { port, .. }) = outcome {
                self.out.forward(packet, usize::from(port));
            }
        }
        true
    }

    /// Releases waiting tasks in runs, as [`Node::release_run`] does. Returns their number, which is at most `most`.
    #[inline]
    fn release_runs(&mut self, now: u64, most: usize) -> usize {
        if self.out.tap.explains() {
            return 0; // `wedjat explain` records each decision by itself
        }
        let mut released = 0;
        while released < most {
            let mut verdicts = [Verdict::Consumed; BURST];
            let run = self.node.release_run(now, BURST.min(most - released), &mut verdicts);
            let Some((port, burst)) = run else { break };
            released += burst.len();
            self.carry_out(port, now, burst, &verdicts);
        }
        released
    }

    /// Sends signals to spines or leaves, and queue probes to workers.
    #[inline]
    fn send_signals(&mut self, now: u64) {
        self.node.stages.send_spine_signals();
        while let Some((message, mac, own)) = self.node.next_message(now) {
            let OutgoingMessage { port, ip, header, extension, .. } = message;
            let udp_port = self.node.stages.network().udp_port;
            let len = header.len();
            let start = if ip.is_ipv6() { udp::PAYLOAD_V6 } else { udp::PAYLOAD };
            self.out.make(&mut self.pool, usize::from(port), start + len, |frame| {
                header.emit(&mut frame[start..]);
                if header.extended {
                    extension.emit(&mut frame[start..]);
                }
                match ip {
                    IpAddr::V4(ip) => {
                        flow((own.mac, own.ip), (mac, ip.to_bits()), udp_port).emit(frame, len);
                    }
                    IpAddr::V6(ip) => {
                        // A port without an IPv6 address leads to no IPv6 host.
                        let src = own.v6.map_or(0, |own| own.ip);
                        flow((own.mac, src), (mac, ip.to_bits()), udp_port).emit_v6(frame, len);
                    }
                }
            });
        }
    }

    /// Sends queued packets, and counts the policies' picks.
    #[inline]
    fn flush(&mut self) {
        self.out.flush();
        self.node.stages.collect_picks();
    }

    /// Stops the leaf: drops and counts held packets, sends queued ones, and returns the ports.
    pub fn close(mut self) -> Vec<P> {
        self.abandon();
        self.out.ports.into_iter().collect()
    }

    /// Drops and counts all held packets, because the leaf stops.
    pub fn abandon(&mut self) {
        while self.node.abandon().is_some() {}
        self.node.note_held(0);
        self.flush();
    }

    /// Returns the epoch of its membership.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.node.epoch()
    }

    /// Returns the stages.
    #[must_use]
    pub fn stages(&self) -> &Stages {
        &self.node.stages
    }

    /// Returns the stages, for changes between polls.
    pub fn stages_mut(&mut self) -> &mut Stages {
        &mut self.node.stages
    }
}

impl<P, A> CoreRole for Leaf<P, A>
where
    P: Port,
    A: Pool<Buf = P::Buf>,
{
    #[inline]
    fn poll(&mut self, now: u64) -> usize {
        Self::poll(self, now)
    }

    fn catch_up(&mut self, now: u64) {
        if now >= self.node.next_tick() {
            self.tick(now);
        }
    }

    fn progress(&self) -> Progress {
        let tick = self.node.next_tick();
        // While packets are held, the core needs every tick: other cores may make room for waiting tasks, and ticks
        // send the questions for MAC addresses.
        let is_at_rest = self.node.stages.counters().read(Gauge::Held) == 0;
        let delay = if is_at_rest { self.node.timing().max_tick_delay() } else { 0 };
        self.out.progress(tick, tick.saturating_add(delay))
    }
}

/// Returns the flow of a message that the node makes.
fn flow<A>((src_mac, src): (Mac, A), (dst_mac, dst): (Mac, A), udp_port: u16) -> Flow<A> {
    Flow { src_mac, dst_mac, src, dst, src_port: udp_port, dst_port: udp_port }
}
