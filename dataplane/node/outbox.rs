//! Ports, and what goes out of them: sent a burst at a time and counted, what passes apart from what is made here.

use std::fmt;

use arrayvec::ArrayVec;

use super::refusals::Refusals;
use super::tap::TapCore;
use crate::clock::Progress;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::PORTS_MAX;
use crate::reason::DropReason;
use crate::state::{Counter, Counters};

/// See the module's text.
pub struct Outbox<P: Port> {
    pub ports: ArrayVec<P, PORTS_MAX>,
    tx: ArrayVec<Burst<P::Buf>, PORTS_MAX>,
    /// Packets made here, apart from those that pass: the ledger counts them apart.
    own: ArrayVec<Burst<P::Buf>, PORTS_MAX>,
    pub counters: Counters,
    pub tap: TapCore,
    /// What was dropped of what came.
    pub refusals: Refusals,
}

impl<P: Port> fmt::Debug for Outbox<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("ports", &self.ports.len()).finish_non_exhaustive()
    }
}

impl<P: Port> Outbox<P> {
    /// Nothing waits to go out of these ports.
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

    /// Takes what a port has received into an empty burst, in a poll that began at `now` ticks; returns how many came.
    #[inline]
    pub fn receive(&mut self, port: usize, now: u64, burst: &mut Burst<P::Buf>) -> usize {
        let received = self.ports[port].rx_burst(burst);
        if self.tap.is_on() {
            self.tap.received(port, now, burst);
        }
        received
    }

    /// Has a packet that came in go out of a port.
    #[inline]
    pub fn forward(&mut self, packet: P::Buf, port: usize) {
        if self.tx[port].is_full() {
            self.flush_port(port);
        }
        self.tx[port].push(packet);
    }

    /// Has a burst go out of a port as it is; gives it back when others wait there already.
    #[inline]
    pub fn forward_whole(
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

    /// Has a packet that was made here go out of a port.
    pub fn originate(&mut self, packet: P::Buf, port: usize) {
        if self.own[port].is_full() {
            self.flush_own(port);
        }
        self.own[port].push(packet);
    }

    /// The same for a new packet of `len` bytes, which `fill` writes.
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

    /// Sends all there is.
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

    /// What has come and gone so far, for a clock that wants to know; `timer` is the node's earliest, which may wait until
    /// `latest`.
    pub fn progress(&self, timer: u64, latest: u64) -> Progress {
        let counters = &self.counters;
        let tried = counters.read(Counter::Forwarded) + counters.read(Counter::Originated);
        let unsent =
            counters.dropped(DropReason::TxFull) + counters.read(Counter::OriginatedUnsent);
        let (received, sent) = (counters.read(Counter::RxPackets), tried - unsent);
        Progress { received, sent, timer, latest, awaits_workers: false }
    }

    /// Sends; what the device does not take at the second try is dropped.
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

/// Tries twice; returns how many were sent and how many were not, and leaves the burst empty.
#[inline]
pub fn send<P: Port>(port: &mut P, burst: &mut Burst<P::Buf>) -> (u64, u64) {
    let sent = try_to_send(port, burst);
    let unsent = burst.len();
    burst.clear();
    (sent as u64, unsent as u64)
}

/// Tries twice; returns how many were sent, and leaves the others in the burst.
#[inline]
fn try_to_send<P: Port>(port: &mut P, burst: &mut Burst<P::Buf>) -> usize {
    let mut sent = port.tx_burst(burst);
    if !burst.is_empty() {
        sent += port.tx_burst(burst);
    }
    sent
}

/// The same as [`send`]; what the port at this index sends is recorded while a tap is on there, and what it does not send of packets
/// that `pass` is explained while that is on.
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
