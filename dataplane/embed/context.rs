//! One core's part of an embedded scheduler: decides on bursts and says which neighbours to ask for.

use arrayvec::ArrayVec;

use crate::io::Buf;
use crate::limits::{BURST, UNRESOLVED_HELD_MAX};
use crate::reason::DropReason;
use crate::role::leaf::Timing;
use crate::role::neighbourhood::Neighbourhood;
use crate::stage::{self, Rewrite, Stages, Verdicts};
use crate::state::{Counter, Counters};
use crate::wire::ether::{self, Mac};
use crate::wire::task::{Code, NO_MEMBER};
use crate::wire::{arp, udp};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it out of this port.
    Forward {
        /// Index of the port.
        port: u8,
        /// The worker that a task goes to, or that a reply comes from.
        worker: u16,
    },
    /// Keep it: the MAC address of its next hop is not known yet. [`Context::resume`] says when to go on.
    Hold {
        /// Index of the port.
        port: u8,
        /// The worker that a task goes to, or that a reply comes from.
        worker: u16,
        /// The next hop's IPv4 address.
        next_hop: u32,
    },
    /// Used up, and turned into an answer to be sent out of the port it came from (ARP).
    Answer,
    /// Used up; free it.
    Consumed,
    /// Free it; already counted.
    Drop(DropReason),
}

/// A call that can't be: nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// No such port.
    #[error("no such port: the configuration has fewer")]
    Port,
    /// Too many packets.
    #[error("more than {BURST} packets in a burst: give them in several calls")]
    Burst,
    /// Too little room for verdicts or rewrites.
    #[error("fewer verdicts, or rewrites, than packets")]
    Verdicts,
    /// No such worker.
    #[error("no such worker: the configuration has no server with that id")]
    Worker,
}

/// An ARP question to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Index of the port to send it out of.
    pub port: u8,
    /// Bytes of the frame.
    pub len: usize,
}

/// One core's scheduler. Used by one thread at a time.
///
/// Received = forwarded + consumed + dropped + held holds of its counters after every call. A packet counts as
/// forwarded when its verdict says so; what could not be sent is told by [`Context::unsent`].
#[derive(Debug)]
pub struct Context {
    stages: Stages,
    /// Of the packets themselves, which wait at the caller's, only the questions are known here.
    neighbourhood: Neighbourhood<()>,
    held: usize,
    timing: Timing,
    next_tick: u64,
    next_servers: u64,
}

/// A burst's verdicts other than to forward, by what the counters tell apart.
#[derive(Default)]
struct Tally {
    others: u64,
    consumed: u64,
    answers: u64,
}

/// Hands on at once what is to be forwarded, which most packets are, and keeps the rest.
struct Told<F> {
    take: F,
    others: ArrayVec<(usize, stage::Verdict), BURST>,
}

impl<F: FnMut(usize, Verdict)> Verdicts for Told<F> {
    #[inline(always)]
    fn forward(&mut self, at: usize, port: u8, worker: u16) {
        (self.take)(at, Verdict::Forward { port, worker });
    }

    #[cold]
    fn other(&mut self, at: usize, verdict: stage::Verdict) {
        let _ = self.others.try_push((at, verdict)); // there are no more than packets
    }
}

impl Context {
    pub(super) fn new(stages: Stages, ticks_hz: u64) -> Self {
        let timing = Timing { ticks_hz };
        Self {
            stages,
            neighbourhood: Neighbourhood::new(timing.ask()),
            held: 0,
            timing,
            next_tick: 0,
            next_servers: 0,
        }
    }

    /// Decides on up to [`BURST`] packets that `port` received at `now` ticks and rewrites those that go on:
    /// they are ready to be sent, but for the destination MAC address of those to be held.
    ///
    /// # Errors
    /// When there is no such port, too large a burst, or too little room for verdicts; nothing is done then.
    #[inline]
    pub fn process<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
    ) -> Result<(), Misuse> {
        let Some(verdicts) = verdicts.get_mut(..packets.len()) else {
            return Err(Misuse::Verdicts);
        };
        self.process_each(port, now, packets, |at, verdict| {
            if let Some(place) = verdicts.get_mut(at) {
                *place = verdict;
            }
        })
    }

    /// As [`Context::process`], handing each verdict with the packet's place to `take`, in no order.
    ///
    /// # Errors
    /// When there is no such port, or too large a burst; nothing is done then.
    #[inline]
    pub fn process_each<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        take: impl FnMut(usize, Verdict),
    ) -> Result<(), Misuse> {
        self.check(port, packets.len())?;
        let mut told = Told { take, others: ArrayVec::new() };
        self.stages.process(port, now, packets, &mut told);
        let mut tally = Tally::default();
        let Told { take, others } = &mut told;
        for &(at, verdict) in &*others {
            take(at, self.tell(verdict, now, &mut tally));
        }
        self.account(packets.len(), &tally);
        Ok(())
    }

    /// Decides as [`Context::process`] does, but leaves the bytes of tasks and replies alone: `rewrites` says what to
    /// write into those that go on. ARP questions become answers all the same.
    ///
    /// # Errors
    /// When there is no such port, too large a burst, or too little room; nothing is done then.
    pub fn decide<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
        rewrites: &mut [Rewrite],
    ) -> Result<(), Misuse> {
        self.check(port, packets.len())?;
        if verdicts.len() < packets.len() || rewrites.len() < packets.len() {
            return Err(Misuse::Verdicts);
        }
        let mut decided = [stage::Verdict::Consumed; BURST];
        self.stages.decide(port, now, packets, &mut decided, rewrites);
        let mut tally = Tally::default();
        for (verdict, decided) in verdicts.iter_mut().zip(&decided).take(packets.len()) {
            *verdict = self.tell(*decided, now, &mut tally);
        }
        self.account(packets.len(), &tally);
        Ok(())
    }

    #[inline]
    fn check(&self, port: usize, packets: usize) -> Result<(), Misuse> {
        if port >= self.stages.network().ports().len() {
            return Err(Misuse::Port);
        }
        if packets > BURST {
            return Err(Misuse::Burst);
        }
        Ok(())
    }

    fn tell(&mut self, verdict: stage::Verdict, now: u64, tally: &mut Tally) -> Verdict {
        tally.others += u64::from(!matches!(verdict, stage::Verdict::Forward { .. }));
        match verdict {
            stage::Verdict::Forward { port, worker } => Verdict::Forward { port, worker },
            stage::Verdict::Hold { port, worker, slot } => {
                let next_hop = self.stages.neighbours().address(slot);
                let room = self.held < UNRESOLVED_HELD_MAX;
                if !room || !self.neighbourhood.ask(port, slot, next_hop, now) {
                    return self.drop(DropReason::NeighbourQueueFull);
                }
                self.held += 1;
                Verdict::Hold { port, worker, next_hop }
            }
            // No context has a central queue; were there one, its task would not be lost uncounted.
            stage::Verdict::Queue { pool } => {
                self.stages.leave(usize::from(pool));
                self.drop(DropReason::QueueFull)
            }
            stage::Verdict::Answer => {
                tally.answers += 1;
                Verdict::Answer
            }
            stage::Verdict::Consumed => {
                tally.consumed += 1;
                Verdict::Consumed
            }
            stage::Verdict::Drop(reason) => Verdict::Drop(reason),
        }
    }

    fn drop(&self, reason: DropReason) -> Verdict {
        self.stages.counters().drop(reason, 1);
        Verdict::Drop(reason)
    }

    #[inline]
    fn account(&self, received: usize, tally: &Tally) {
        let counters = self.stages.counters();
        let received = received as u64;
        counters.add(Counter::RxPackets, received);
        counters.add(Counter::TxPackets, received - tally.others);
        counters.add(Counter::Consumed, tally.consumed + tally.answers);
        counters.add(Counter::Originated, tally.answers);
        counters.set(Counter::Held, self.held as u64);
    }

    /// Tells of forwarded packets that the port did not take and that were freed; they count as dropped.
    pub fn unsent(&mut self, packets: u64) {
        let counters = self.stages.counters();
        let sent = counters.read(Counter::TxPackets);
        let packets = packets.min(sent);
        counters.set(Counter::TxPackets, sent - packets);
        counters.drop(DropReason::TxFull, packets);
    }

    /// Looks after a packet that is held: writes its Ethernet addresses and says `Forward` once the next hop is known,
    /// `Drop` once it has been asked for in vain, `Hold` until then. `port` and `next_hop` are those of its verdict.
    pub fn resume<B: Buf>(&mut self, port: u8, next_hop: u32, packet: &mut B) -> Verdict {
        let at = usize::from(port);
        let known = self.stages.neighbours().find(at, next_hop);
        let own = self.stages.network().ports().get(at).map(|own| own.mac);
        let worker = worker_of(packet.bytes());
        if let (Some(slot), Some(own)) = (known, own)
            && packet.bytes().len() >= ether::LEN
        {
            if let Some(mac) = self.stages.neighbours().mac(slot) {
                ether::emit_addresses(packet.bytes_mut(), mac, own);
                self.release();
                self.stages.counters().add(Counter::TxPackets, 1);
                return Verdict::Forward { port, worker };
            }
            if self.neighbourhood.asks(slot) {
                return Verdict::Hold { port, worker, next_hop };
            }
        }
        self.release();
        self.drop(DropReason::NeighbourUnresolved)
    }

    fn release(&mut self) {
        self.held = self.held.saturating_sub(1);
        self.stages.counters().set(Counter::Held, self.held as u64);
    }

    /// Gives up a packet that is held, because its owner stops: it counts as dropped.
    pub fn abandon(&mut self) -> Verdict {
        self.release();
        self.drop(DropReason::Shutdown)
    }

    /// What need not happen at every burst; to be called at every turn of the caller's loop, it knows itself when
    /// there is something to do.
    #[inline]
    pub fn tick(&mut self, now: u64) {
        if now >= self.next_tick {
            self.tick_now(now);
        }
    }

    #[cold]
    fn tick_now(&mut self, now: u64) {
        self.next_tick = now.saturating_add(self.timing.tick());
        self.stages.tick(self.timing.to_ns(now));
        self.stages.collect_picks();
        if now >= self.next_servers {
            self.next_servers = now.saturating_add(self.timing.servers());
            self.ask_for_servers(now);
        }
        // Nothing waits here, so this only ends questions that stayed without answer.
        let _ = self.neighbourhood.given_up(now);
    }

    fn ask_for_servers(&mut self, now: u64) {
        for server in self.stages.network().servers() {
            if self.stages.neighbours().mac(server.slot).is_none() {
                self.neighbourhood.ask(server.port, server.slot, server.next_hop, now);
            }
        }
    }

    /// Writes the next ARP question that is due into `frame`; to be called after [`Context::tick`] until there is none.
    #[inline]
    pub fn question(&mut self, now: u64, frame: &mut [u8; arp::FRAME_LEN]) -> Option<Question> {
        if self.neighbourhood.is_quiet() {
            return None;
        }
        let ask = self.neighbourhood.due(now, self.stages.neighbours())?;
        let own = *self.stages.network().port(usize::from(ask.port));
        arp::Packet::request(own.mac, own.ip, ask.address).emit(frame, Mac::BROADCAST);
        self.stages.counters().add(Counter::Originated, 1);
        Some(Question { port: ask.port, len: frame.len() })
    }

    /// Lets a worker get tasks from this core, or no longer; reports of its own do not change that.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn set_active(&mut self, worker: u16, active: bool) -> Result<(), Misuse> {
        let place = self.stages.network().worker(worker).ok_or(Misuse::Worker)?;
        self.stages.set_active(usize::from(place.pool), place.member, active);
        Ok(())
    }

    /// What this context has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.stages.counters()
    }
}

/// The worker in the header of a task or reply that goes on: these have passed all checks.
#[inline]
fn worker_of(frame: &[u8]) -> u16 {
    let ip_len = frame.get(ether::LEN).map_or(0, |first| usize::from(first & 0xF) * 4);
    let header = ether::LEN + ip_len + udp::LEN;
    let Some(&[kind, _, _, src_high, src_low, dst_high, dst_low]) =
        frame.get(header..).and_then(|payload| payload.first_chunk::<7>())
    else {
        return NO_MEMBER;
    };
    let is_reply = Code::from_bits(kind & 0x1F).is_some_and(Code::is_reply);
    if is_reply {
        u16::from_be_bytes([src_high, src_low])
    } else {
        u16::from_be_bytes([dst_high, dst_low])
    }
}
