//! Ports and their output. Packets are queued by port, sent in bursts, and counted. Forwarded packets, which were
//! received, and originated packets, which the node made, have separate queues and counters: the ledger (received =
//! sent on + consumed + dropped + held) has only received ones.

use std::fmt;

use arrayvec::ArrayVec;

use super::arp::ArpQuestion;
use super::refusals::Refusals;
use super::tap::TapCore;
use crate::clock::Progress;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::PORTS_MAX;
use crate::reason::DropReason;
use crate::stage::PortAddress;
use crate::state::{Counter, Counters};

/// Ports of a core with their output; see the module's documentation.
pub struct Outbox<P: Port> {
    /// The ports, in the network's order.
    pub ports: ArrayVec<P, PORTS_MAX>,
    /// Received packets to send, by port.
    forwarded: ArrayVec<Burst<P::Buf>, PORTS_MAX>,
    /// Packets made by the node, by port, and answers in the buffers of consumed packets.
    originated: ArrayVec<Burst<P::Buf>, PORTS_MAX>,
    /// Counters of the core.
    pub counters: Counters,
    /// Copies of passing packets for other threads; off by default.
    pub tap: TapCore,
    /// Counts of the packets dropped on arrival, by port and reason.
    pub refusals: Refusals,
}

impl<P: Port> fmt::Debug for Outbox<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("ports", &self.ports.len()).finish_non_exhaustive()
    }
}

impl<P: Port> Outbox<P> {
    /// Creates an outbox without pending packets.
    pub fn new(ports: impl IntoIterator<Item = P>, counters: Counters) -> Self {
        let ports: ArrayVec<P, PORTS_MAX> = ports.into_iter().collect();
        Self {
            forwarded: ports.iter().map(|_| Burst::new()).collect(),
            originated: ports.iter().map(|_| Burst::new()).collect(),
            ports,
            counters,
            tap: TapCore::default(),
            refusals: Refusals::default(),
        }
    }

    /// Receives packets of a port into an empty burst, in a poll that began at `now` ticks. Returns their
    /// number.
    #[inline]
    pub fn receive(&mut self, port: usize, now: u64, burst: &mut Burst<P::Buf>) -> usize {
        let received = self.ports[port].rx_burst(burst);
        if self.tap.is_on() {
            self.tap.received(port, now, burst);
        }
        received
    }

    /// Queues a received packet for sending.
    #[inline]
    pub fn forward(&mut self, packet: P::Buf, port: usize) {
        if self.forwarded[port].is_full() {
            self.flush_port(port);
        }
        self.forwarded[port].push(packet);
    }

    /// Queues a whole burst for sending. An empty queue takes it in one copy. Without room for all packets, sends the queued
    /// ones first.
    #[inline]
    pub fn forward_burst(&mut self, burst: Burst<P::Buf>, port: usize) {
        if self.forwarded[port].remaining_capacity() < burst.len() {
            self.flush_port(port);
        }
        let queued = &mut self.forwarded[port];
        if queued.is_empty() {
            *queued = burst;
        } else {
            queued.extend(burst);
        }
    }

    /// Queues a packet made by the node for sending.
    pub fn originate(&mut self, packet: P::Buf, port: usize) {
        if self.originated[port].is_full() {
            self.flush_originated(port);
        }
        self.originated[port].push(packet);
    }

    /// Queues a new packet of `len` bytes, written by `fill`. Without a buffer of that size, counts it as unsent.
    pub fn make<A: Pool<Buf = P::Buf>>(
        &mut self,
        pool: &mut A,
        port: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let packet = pool.take().and_then(|mut packet| packet.resize(len).then_some(packet));
        let Some(mut packet) = packet else {
            self.counters.add(Counter::Originated, 1);
            return self.counters.add(Counter::OriginatedUnsent, 1);
        };
        fill(packet.bytes_mut());
        self.originate(packet, port);
    }

    /// Queues an ARP or neighbour discovery question for a host's MAC address. `own` is the node's address on the port.
    pub fn ask<A: Pool<Buf = P::Buf>>(
        &mut self,
        pool: &mut A,
        own: &PortAddress,
        question: &ArpQuestion,
    ) {
        let (port, len) = (usize::from(question.port), question.frame_len());
        self.make(pool, port, len, |frame| question.emit(own, frame));
    }

    /// Sends all queued packets.
    #[inline]
    pub fn flush(&mut self) {
        for port in 0..self.ports.len() {
            if !self.forwarded[port].is_empty() {
                self.flush_port(port);
            }
            if !self.originated[port].is_empty() {
                self.flush_originated(port);
            }
        }
    }

    /// Returns the core's progress, for clocks that skip idle time or sleep in it. `timer` is the node's next timer in
    /// ticks. An idle core may sleep beyond it, until `latest`.
    pub fn progress(&self, timer: u64, latest: u64) -> Progress {
        let counters = &self.counters;
        let attempted = counters.read(Counter::Forwarded) + counters.read(Counter::Originated);
        let unsent =
            counters.dropped(DropReason::TxFull) + counters.read(Counter::OriginatedUnsent);
        let (received, sent) = (counters.read(Counter::RxPackets), attempted - unsent);
        let awaits_workers = false; // only an agent sets it, while its workers have tasks
        Progress { received, sent, timer, latest, awaits_workers }
    }

    /// Sends forwarded packets; drops packets that the device rejects twice, or whose device is unplugged.
    #[inline]
    fn flush_port(&mut self, port: usize) {
        let (device, burst) = (&mut self.ports[port], &mut self.forwarded[port]);
        let (sent, unsent) = send_by(&mut self.tap, port, device, burst, true);
        if unsent == 0 {
            self.counters.add(Counter::Forwarded, sent);
            return;
        }
        let reason = rejection(&self.ports[port]);
        // `Forwarded` includes packets dropped as `TxFull`: readers subtract them. It excludes those of a removed port.
        let forwarded = if reason == DropReason::TxFull { sent + unsent } else { sent };
        self.counters.add(Counter::Forwarded, forwarded);
        self.counters.drop(reason, unsent);
    }

    /// Sends originated packets; counts those that the device rejects twice.
    #[cold]
    fn flush_originated(&mut self, port: usize) {
        let (device, burst) = (&mut self.ports[port], &mut self.originated[port]);
        let (sent, unsent) = send_by(&mut self.tap, port, device, burst, false);
        self.counters.add(Counter::Originated, sent + unsent);
        self.counters.add(Counter::OriginatedUnsent, unsent);
    }
}

/// Returns the drop reason of packets that a port has rejected.
#[cold]
fn rejection<P: Port>(port: &P) -> DropReason {
    if port.is_removed() { DropReason::PortRemoved } else { DropReason::TxFull }
}

/// Sends a burst in two attempts, and frees packets that the device rejects twice. Returns the numbers of sent and
/// rejected packets.
#[inline]
pub fn send<P: Port>(port: &mut P, burst: &mut Burst<P::Buf>) -> (u64, u64) {
    let sent = try_to_send(port, burst);
    let unsent = burst.len();
    burst.clear();
    (sent as u64, unsent as u64)
}

/// Sends a burst in two attempts. Returns the number of sent packets; the rest stays in the burst.
#[inline]
fn try_to_send<P: Port>(port: &mut P, burst: &mut Burst<P::Buf>) -> usize {
    let mut sent = port.tx_burst(burst);
    if !burst.is_empty() {
        sent += port.tx_burst(burst);
    }
    sent
}

/// Same as [`send`], for a tap's port `index`: copies sent packets while a tap is on. While `wedjat explain` runs, also
/// records rejected packets, if they `are_forwarded`: it explains no originated packets.
#[inline]
fn send_by<P: Port>(
    tap: &mut TapCore,
    index: usize,
    port: &mut P,
    burst: &mut Burst<P::Buf>,
    are_forwarded: bool,
) -> (u64, u64) {
    match tap.watches(index) {
        true => send_watched(tap, index, port, burst, are_forwarded),
        false => send(port, burst),
    }
}

/// Same as [`send_by`], for a port that is recorded or explained.
#[cold]
fn send_watched<P: Port>(
    tap: &mut TapCore,
    index: usize,
    port: &mut P,
    burst: &mut Burst<P::Buf>,
    are_forwarded: bool,
) -> (u64, u64) {
    let copies = tap.covers(index).then(|| tap.copy(burst));
    let sent = try_to_send(port, burst);
    if let Some(start) = copies {
        tap.keep(start, sent);
    }
    // The first record of each packet says that it was sent. This second one reports the drop.
    if are_forwarded && let Some(explainer) = tap.explainer() {
        explainer.unsent(index, burst, rejection(port));
    }
    let unsent = burst.len();
    burst.clear();
    (sent as u64, unsent as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Port that rejects all packets.
    struct RejectingPort {
        is_removed: bool,
    }

    impl Port for RejectingPort {
        type Buf = &'static mut [u8];

        fn rx_burst(&mut self, _: &mut Burst<Self::Buf>) -> usize {
            0
        }

        fn tx_burst(&mut self, _: &mut Burst<Self::Buf>) -> usize {
            0
        }

        fn is_removed(&self) -> bool {
            self.is_removed
        }
    }

    /// Port that records the first bytes of sent packets, by burst.
    #[derive(Default)]
    struct RecordingPort(Vec<Vec<u8>>);

    impl Port for RecordingPort {
        type Buf = &'static mut [u8];

        fn rx_burst(&mut self, _: &mut Burst<Self::Buf>) -> usize {
            0
        }

        fn tx_burst(&mut self, burst: &mut Burst<Self::Buf>) -> usize {
            self.0.push(burst.iter().map(|packet| packet[0]).collect());
            burst.drain(..).count()
        }
    }

    // promise: ports.2
    #[test]
    fn bursts_leave_whole_and_in_order() {
        let counters = Counters::heap();
        let mut outbox = Outbox::new([RecordingPort::default()], counters.clone());
        let mut next = 0;
        // The first two bursts fill 30 of 32 places. The third one has 7 packets.
        for len in [20, 10, 7, 32] {
            let packets = (next..next + len).map(|first| vec![first; 60].leak() as &mut [u8]);
            outbox.forward_burst(packets.collect(), 0);
            next += len;
        }
        outbox.flush();
        let sent = &outbox.ports[0].0;
        assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [30, 7, 32]);
        assert!(sent.iter().flatten().copied().eq(0..next));
        assert_eq!(counters.read(Counter::Forwarded), u64::from(next));
    }

    // promise: ports.2
    #[test]
    fn rejected_packets_are_counted_by_cause() {
        for (is_removed, reason, forwarded) in
            [(true, DropReason::PortRemoved, 0), (false, DropReason::TxFull, 1)]
        {
            let counters = Counters::heap();
            counters.add(Counter::RxPackets, 1);
            let mut outbox = Outbox::new([RejectingPort { is_removed }], counters.clone());
            outbox.forward(vec![0; 60].leak(), 0);
            outbox.flush();
            assert_eq!((counters.dropped(reason), counters.dropped_total()), (1, 1));
            assert_eq!(counters.read(Counter::Forwarded), forwarded);
            assert!(counters.balances(), "{reason:?}");
        }
    }
}
