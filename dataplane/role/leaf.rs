//! The leaf: one dispatcher core between ports. Receives bursts, has the stages decide, sends, and accounts
//! for every packet. A spine is the same over members that are leaves.

use std::net::IpAddr;
use std::slice;

use super::PollTime;
use crate::clock::Progress;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::BURST;
use crate::node::explain::{Fate, Moment};
use crate::node::outbox::Outbox;
use crate::node::refusals::Refusals;
use crate::node::tap::{TapCommands, TapCore};
use crate::node::{Commands, Egress, Keeper, Node, Timing};
use crate::reason::DropReason;
use crate::stage::fabric::Word;
use crate::stage::{PortAddress, Side, Stages, Verdict};
use crate::state::{Counter, Gauge};
use crate::wire::ether::Mac;
use crate::wire::udp::{self, Flow};
use crate::wire::{arp, ndp};

/// A leaf keeps its packets itself, and tells of those that have waited while it is asked.
struct Own<'a>(&'a mut TapCore);

impl<B: Buf> Keeper<B> for Own<'_> {
    fn frame<'a>(&'a mut self, packet: &'a mut B) -> Option<&'a mut [u8]> {
        Some(packet.bytes_mut())
    }

    fn offer(
        &mut self,
        stages: &mut Stages,
        (pool, port): (usize, usize),
        now: u64,
        packet: &mut B,
    ) -> Option<Verdict> {
        let Some(explainer) = self.0.explains().then(|| self.0.explainer()).flatten() else {
            return stages.offer(pool, port, now, packet.bytes_mut());
        };
        explainer.draft_at(stages, Some(port as u8), now, packet.bytes());
        let verdict = stages.offer(pool, port, now, packet.bytes_mut());
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
    node: Node<P::Buf>,
    out: Outbox<P>,
    /// Where packets of its own come from.
    pool: A,
    time: PollTime,
    patience: Patience,
}

/// Tasks may come as soon as clients have a link, when workers have none yet or their servers' MAC addresses are still asked for. So
/// the ports of clients alone are not polled for a moment then, nor before: their devices keep what comes.
#[derive(Debug, Default)]
struct Patience {
    /// Now.
    holds_back: bool,
    is_on: bool,
    /// Until when, in ticks.
    until: u64,
    /// The ports of clients alone that had a link at the last look, as bits.
    linked: u16,
}

/// So long at most, from the time at which a port of clients has a link.
const PATIENCE_MS: u64 = 250;

impl<P, A> Leaf<P, A>
where
    P: Port,
    A: Pool<Buf = P::Buf>,
{
    /// A leaf over these ports, in the order of the network's. `pool` is where its own packets come from.
    ///
    /// # Panics
    /// When the ports are not as many as the network's.
    #[must_use]
    pub fn new(stages: Stages, ports: Vec<P>, pool: A, commands: Commands, timing: Timing) -> Self {
        assert_eq!(ports.len(), stages.network().ports().len());
        Self {
            out: Outbox::new(ports, stages.counters().clone()),
            node: Node::new(stages, commands, timing),
            pool,
            time: PollTime::default(),
            patience: Patience::default(),
        }
    }

    /// The same, which leaves tasks in their devices for a moment when workers can't be reached yet: in real time, where devices
    /// come up one after the other.
    #[must_use]
    pub fn with_patience(mut self) -> Self {
        let holds_back = !self.node.reaches_workers();
        self.patience = Patience { is_on: true, holds_back, ..Patience::default() };
        self
    }

    /// The same, which records what passes when it is ordered to.
    #[must_use]
    pub fn with_tap(mut self, commands: TapCommands) -> Self {
        self.out.tap = TapCore::new(commands);
        self
    }

    /// The same, whose drops are looked at by whoever has these counts.
    #[must_use]
    pub fn with_refusals(mut self, refusals: Refusals) -> Self {
        self.out.refusals = refusals;
        self
    }

    /// One pass over all ports at `now` ticks; returns how many packets came.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        match self.patience.holds_back {
            false => self.poll_ports::<true>(now),
            true => self.poll_ports::<false>(now),
        }
    }

    /// The same over all ports, or but for those that have clients alone.
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
            // A burst is moved when it is given away, also an empty one.
            if !burst.is_empty() {
                self.dispatch(port, now, burst);
            }
        }
        let ticks = now >= self.node.next_tick();
        if ticks {
            self.tick(now);
        }
        self.node.stages.exchange();
        if self.release(now) || ticks {
            self.node.note_held(0);
        }
        self.speak(now);
        self.flush();
        self.time.end(received > 0);
        received
    }

    /// Has a burst decided on.
    #[inline]
    fn dispatch(&mut self, port: usize, now: u64, mut burst: Burst<P::Buf>) {
        let count = burst.len();
        let mut verdicts = [Verdict::Consumed; BURST];
        self.node.note_time(now);
        match self.out.tap.explains() {
            false => self.node.stages.process(port, now, &mut burst, &mut verdicts[..]),
            true => self.explain(port, now, &mut burst, &mut verdicts),
        }
        self.node.stages.counters().add(Counter::RxPackets, count as u64);
        // Most bursts go out as they are, by one port.
        let whole = match verdicts[0] {
            Verdict::Forward { port, .. }
                if verdicts[..count].iter().all(|one| one.leaves_by(port)) =>
            {
                self.out.forward_whole(burst, usize::from(port))
            }
            _ => Err(burst),
        };
        if let Err(burst) = whole {
            self.distribute(port, now, burst, &verdicts);
        }
    }

    /// Has a burst decided on a packet at a time, and tells what is decided and why.
    #[cold]
    fn explain(
        &mut self,
        port: usize,
        now: u64,
        burst: &mut Burst<P::Buf>,
        verdicts: &mut [Verdict; BURST],
    ) {
        let stages = &mut self.node.stages;
        for (packet, verdict) in burst.iter_mut().zip(verdicts) {
            let mut explainer = self.out.tap.explainer();
            if let Some(explainer) = &mut explainer {
                explainer.draft_at(stages, Some(port as u8), now, packet.bytes());
            }
            stages.process(port, now, slice::from_mut(packet), slice::from_mut(verdict));
            if let Some(explainer) = explainer {
                explainer.settle_at(stages, Moment::Arrived, (*verdict).into(), packet.bytes());
            }
        }
    }

    /// Puts each packet where its verdict says.
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

    /// Does with a packet what was decided.
    fn apply(&mut self, packet: P::Buf, from: usize, now: u64, verdict: Verdict) {
        match verdict {
            Verdict::Forward { port, .. } => self.out.forward(packet, usize::from(port)),
            Verdict::Hold { port, worker, slot } => {
                let oldest = self.node.hold(packet, port, worker, slot, now);
                if let Some((oldest, reason)) = oldest {
                    self.node.stages.counters().drop(reason, 1);
                    self.give_up(&oldest, now, reason);
                }
            }
            Verdict::Queue { pool } => {
                if let Err(packet) = self.node.enqueue(packet, usize::from(pool), from) {
                    self.give_up(&packet, now, DropReason::QueueFull);
                }
            }
            Verdict::Answer => {
                self.node.stages.counters().add(Counter::Consumed, 1);
                self.out.originate(packet, from);
            }
            Verdict::Consumed => self.node.stages.counters().add(Counter::Consumed, 1),
            Verdict::Drop(reason) => self.out.refusals.note(from, reason),
        }
    }

    /// A packet that waited, or was to, is dropped, and has been counted.
    #[cold]
    fn give_up(&mut self, packet: &P::Buf, now: u64, reason: DropReason) {
        if self.out.tap.explains() {
            self.out.tap.explain_released(now, packet.bytes(), Fate::Dropped(reason));
        }
    }

    /// What need not happen at every poll.
    #[cold]
    fn tick(&mut self, now: u64) {
        self.node.tick(now);
        self.out.tap.tick(now);
        if self.patience.is_on {
            self.look_for_workers(now);
        }
        while let Some(ask) = self.node.next_question(now) {
            let port = usize::from(ask.port);
            let own = *self.node.stages.network().port(port);
            self.out.make(&mut self.pool, port, ask.frame_len(), |frame| ask.emit(&own, frame));
        }
        while let Some(address) = self.node.stages.next_announcement() {
            self.announce(address);
        }
    }

    /// Decides whether ports of clients alone are left alone for now.
    fn look_for_workers(&mut self, now: u64) {
        let (network, neighbours) = (self.node.stages.network(), self.node.stages.neighbours());
        let ports = (0..).zip(network.ports()).filter(|(_, port)| port.side == Side::Clients);
        let linked = ports.filter(|&(at, _)| neighbours.is_link_up(at));
        let linked = linked.fold(0, |bits, (at, _)| bits | 1 << at);
        let patience = &mut self.patience;
        if linked & !patience.linked != 0 {
            patience.until = now.saturating_add(self.node.timing().of_ms(PATIENCE_MS));
        }
        patience.linked = linked;
        // Of a link that came up the core is told a moment later.
        let is_time = linked == 0 || now < patience.until;
        patience.holds_back = is_time && !self.node.reaches_workers();
    }

    /// Tells everybody on the clients' side that this node has the address now.
    fn announce(&mut self, address: IpAddr) {
        for port in 0..self.node.stages.network().ports().len() {
            let PortAddress { mac, side, v6, .. } = *self.node.stages.network().port(port);
            if !side.has_clients() || v6.is_some() != address.is_ipv6() {
                continue;
            }
            match address {
                IpAddr::V4(address) => {
                    self.out.make(&mut self.pool, port, arp::FRAME_LEN, |frame| {
                        let ip = address.to_bits();
                        arp::Packet::request(mac, ip, ip).emit(frame, Mac::BROADCAST);
                    })
                }
                IpAddr::V6(address) => {
                    self.out.make(&mut self.pool, port, ndp::FRAME_LEN, |frame| {
                        let (packet, to) = ndp::Packet::announcement(mac, address.to_bits());
                        packet.emit(frame, to, side.has_workers());
                    })
                }
            };
        }
    }

    /// Sends on what need not wait any longer. No more than a burst at once, so that no device is given more than it is given
    /// otherwise. True when something waits no longer.
    #[inline]
    fn release(&mut self, now: u64) -> bool {
        for released in 0..BURST {
            let keeper = &mut Own(&mut self.out.tap);
            let Some((packet, outcome)) = self.node.next_released(now, keeper) else {
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

    /// Tells spines or leaves what they are to know, and asks workers for their queues.
    #[inline]
    fn speak(&mut self, now: u64) {
        self.node.stages.tell_spines();
        while let Some((word, mac, own)) = self.node.next_word(now) {
            let Word { port, ip, header, extension, .. } = word;
            let udp_port = self.node.stages.network().udp_port;
            let len = header.len();
            let at = if ip.is_ipv6() { udp::PAYLOAD_V6 } else { udp::PAYLOAD };
            self.out.make(&mut self.pool, usize::from(port), at + len, |frame| {
                header.emit(&mut frame[at..]);
                if header.extended {
                    extension.emit(&mut frame[at..]);
                }
                match ip {
                    IpAddr::V4(ip) => {
                        flow((own.mac, own.ip), (mac, ip.to_bits()), udp_port).emit(frame, len);
                    }
                    IpAddr::V6(ip) => {
                        // A port without an IPv6 address leads to none.
                        let src = own.v6.map_or(0, |own| own.ip);
                        flow((own.mac, src), (mac, ip.to_bits()), udp_port).emit_v6(frame, len);
                    }
                }
            });
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.out.flush();
        self.node.stages.collect_picks();
    }

    /// The leaf stops: what it still holds is dropped and counted. Gives the ports back.
    pub fn close(mut self) -> Vec<P> {
        self.abandon();
        self.out.ports.into_iter().collect()
    }

    fn abandon(&mut self) {
        while self.node.abandon().is_some() {}
        self.node.note_held(0);
        self.flush();
    }

    /// What it has done so far, and when it has something to do next without a packet.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let tick = self.node.next_tick();
        // Other cores may let tasks that wait go on, and what is held for a next hop is asked for at ticks.
        let is_at_rest = self.node.stages.counters().read(Gauge::Held) == 0;
        let rest = if is_at_rest { self.node.timing().rest() } else { 0 };
        self.out.progress(tick, tick.saturating_add(rest))
    }

    /// The loop has slept: what ticks do is done before what woke it, so that policies know the time.
    pub fn catch_up(&mut self, now: u64) {
        if now >= self.node.next_tick() {
            self.tick(now);
        }
    }

    /// Number of the membership that it works with.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.node.epoch()
    }

    /// What the leaf decides with.
    #[must_use]
    pub fn stages(&self) -> &Stages {
        &self.node.stages
    }

    /// What the leaf decides with, to be changed between polls.
    pub fn stages_mut(&mut self) -> &mut Stages {
        &mut self.node.stages
    }
}

/// Where a word of the node's own comes from and goes to.
fn flow<A>((src_mac, src): (Mac, A), (dst_mac, dst): (Mac, A), udp_port: u16) -> Flow<A> {
    Flow { src_mac, dst_mac, src, dst, src_port: udp_port, dst_port: udp_port }
}

#[cfg(test)]
mod tests;
