//! Ports and their output: packets are sent in bursts and counted, forwarded and originated ones separately.

use std::fmt;

use arrayvec::ArrayVec;

use super::refusals::Refusals;
use super::tap::TapCore;
use crate::clock::Progress;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::PORTS_MAX;
use crate::reason::DropReason;
use crate::state::{Counter, Counters};

/// Ports of a core with their output; see the module's documentation.
pub struct Outbox<P: Port> {
    pub ports: ArrayVec<P, PORTS_MAX>,
    tx: ArrayVec<Burst<P::Buf>, PORTS_MAX>,
    /// Packets made by the node. The ledger counts them separately.
    own: ArrayVec<Burst<P::Buf>, PORTS_MAX>,
    pub counters: Counters,
    pub tap: TapCore,
    /// Drops of received packets.
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
            tx: ports.iter().map(|_| Burst::new()).collect(),
            own: ports.iter().map(|_| Burst::new()).collect(),
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
        if self.tx[port].is_full() {
            self.flush_port(port);
        }
        self.tx[port].push(packet);
    }

    /// Queues a whole burst for sending. Returns it if other packets are already queued for the port.
    #[inline]
    pub fn forward_burst(
        &mut self,
        burst: Burst<P::Buf>,
        port: usize,
    ) -> Result<(), Burst<P::Buf>> {
        if !self.tx[port].is_empty() {
            return Err(burst);
        }
        self.tx[port] = burst;
        Ok(())
    }

    /// Queues a packet made by the node for sending.
    pub fn originate(&mut self, packet: P::Buf, port: usize) {
        if self.own[port].is_full() {
            self.flush_own(port);
        }
        self.own[port].push(packet);
    }

    /// Queues a new packet of `len` bytes, written by `fill`.
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

    /// Sends all queued packets.
    #[inline]
    pub fn flush(&mut self) {
        for port in 0..self.ports.len() {
            if !self.tx[port].is_empty() {
                self.flush_port(port);
            }
            if !self.own[port].is_empty() {
                self.flush_own(port);
            }
        }
    }

    /// Returns the progress for the clock; `timer` is the node's earliest timer, which may wait until
    /// `latest`.
    pub fn progress(&self, timer: u64, latest: u64) -> Progress {
        let counters = &self.counters;
        let tried = counters.read(Counter::Forwarded) + counters.read(Counter::Originated);
        let unsent =
            counters.dropped(DropReason::TxFull) + counters.read(Counter::OriginatedUnsent);
        let (received, sent) = (counters.read(Counter::RxPackets), tried - unsent);
        Progress { received, sent, timer, latest, awaits_workers: false }
    }

    /// Sends; drops packets that the device rejects twice.
    #[inline]
    fn flush_port(&mut self, port: usize) {
        let (device, burst) = (&mut self.ports[port], &mut self.tx[port]);
        let (sent, unsent) = send_by(&mut self.tap, port, device, burst, true);
        self.counters.add(Counter::Forwarded, sent + unsent);
        if unsent > 0 {
            self.counters.drop(DropReason::TxFull, unsent);
        }
    }

    #[cold]
    fn flush_own(&mut self, port: usize) {
        let (device, burst) = (&mut self.ports[port], &mut self.own[port]);
        let (sent, unsent) = send_by(&mut self.tap, port, device, burst, false);
        self.counters.add(Counter::Originated, sent + unsent);
        self.counters.add(Counter::OriginatedUnsent, unsent);
    }
}

/// Sends a burst in two attempts and empties it. Returns the numbers of sent and rejected packets.
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

/// Same as [`send`], with tap and explain: records packets sent at this port while a tap is on, and explains
/// rejected packets (only forwarded ones, if `pass`) while that is on.
#[inline]
fn send_by<P: Port>(
    tap: &mut TapCore,
    at: usize,
    port: &mut P,
    burst: &mut Burst<P::Buf>,
    pass: bool,
) -> (u64, u64) {
    if tap.watches(at) { send_watched(tap, at, port, burst, pass) } else { send(port, burst) }
}

#[cold]
fn send_watched<P: Port>(
    tap: &mut TapCore,
    at: usize,
    port: &mut P,
    burst: &mut Burst<P::Buf>,
    pass: bool,
) -> (u64, u64) {
    let copied = tap.covers(at).then(|| tap.copy(burst));
    let sent = try_to_send(port, burst);
    if let Some(start) = copied {
        tap.keep(start, sent);
    }
    if pass && let Some(explainer) = tap.explainer() {
        explainer.unsent(at, burst);
    }
    let unsent = burst.len();
    burst.clear();
    (sent as u64, unsent as u64)
}
