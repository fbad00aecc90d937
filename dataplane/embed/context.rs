//! One core's part of an embedded scheduler: decides on bursts and says which neighbours to ask for; see also `release`.

use arrayvec::ArrayVec;

use super::held::HeldPlaces;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::BURST;
use crate::node::{Commands, Node, Timing, outbox};
use crate::reason::DropReason;
use crate::stage::{self, Rewrite, Stages, Verdicts};
use crate::state::{Counter, Counters};
use crate::wire::task::NO_MEMBER;
use crate::wire::{arp, ndp};

/// The worker of a packet that has none yet.
pub const NO_WORKER: u16 = NO_MEMBER;

/// Bytes of the longest question, one of neighbour discovery.
pub const QUESTION_LEN: usize = ndp::FRAME_LEN;

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
    /// Keep it at this place, below [`Context::places`], until [`Context::release`] gives it back: the MAC address of
    /// its next hop is not known yet, or no worker may have one more task.
    Hold {
        /// Where to keep it: nothing is kept there now.
        place: u32,
        /// The worker that a task goes to, or that a reply comes from; [`NO_WORKER`] for a task that waits for one.
        worker: u16,
    },
    /// Used up, and turned into an answer to be sent out of the port it came from (ARP, neighbour discovery, and tasks that are
    /// refused).
    Answer {
        /// Index of that port.
        port: u8,
    },
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

/// A question to be sent: who has an address, by ARP or neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Index of the port to send it out of.
    pub port: u8,
    /// Bytes of the frame.
    pub len: usize,
}

/// One core's scheduler. Used by one thread at a time.
///
/// Received = sent + consumed + dropped + held holds of its counters after every call. A packet counts as forwarded when its
/// verdict says so; of those, what could not be sent is told by [`Context::unsent`] and counts as dropped, the rest as sent.
#[derive(Debug)]
pub struct Context {
    /// Its packets are named by the places that their owner keeps them at.
    pub(super) node: Node<u32>,
    pub(super) places: HeldPlaces,
    /// The owner stops: all packets that are held are given up.
    pub(super) is_abandoned: bool,
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
    pub(super) fn new(stages: Stages, commands: Commands, ticks_hz: u64) -> Self {
        let node = Node::new(stages, commands, Timing { ticks_hz });
        Self { places: HeldPlaces::new(node.queue_bound()), node, is_abandoned: false }
    }

    /// How many packets its owner may have to keep at once: their places are numbered from 0.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.count()
    }

    /// Decides on up to [`BURST`] packets that `port` received at `now` ticks and rewrites those that go on:
    /// they are ready to be sent, but for those to be held.
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
        })?;
        Ok(())
    }

    /// As [`Context::process`], handing each verdict with the packet's place in the burst to `take`, in no order. Returns
    /// how many packets may have another verdict than [`Verdict::Forward`].
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
    ) -> Result<usize, Misuse> {
        self.check(port, packets.len())?;
        if !packets.is_empty() {
            self.node.note_time(now);
        }
        let mut told = Told { take, others: ArrayVec::new() };
        self.node.stages.process(port, now, packets, &mut told);
        let mut tally = Tally::default();
        let Told { take, others } = &mut told;
        for &(at, verdict) in &*others {
            take(at, self.tell(port, verdict, now, &mut tally));
        }
        self.account(packets.len(), &tally);
        Ok(others.len())
    }

    /// Decides as [`Context::process`] does, but leaves the bytes of tasks and replies alone: `rewrites` says what to
    /// write into those that go on or wait for their next hop only. What becomes an answer is rewritten all the same,
    /// and so is, by [`Context::release`], a task that waits for a worker.
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
        if !packets.is_empty() {
            self.node.note_time(now);
        }
        let mut decided = [stage::Verdict::Consumed; BURST];
        self.node.stages.decide(port, now, packets, &mut decided, rewrites);
        let mut tally = Tally::default();
        for (verdict, decided) in verdicts.iter_mut().zip(&decided).take(packets.len()) {
            *verdict = self.tell(port, *decided, now, &mut tally);
        }
        self.account(packets.len(), &tally);
        Ok(())
    }

    #[inline]
    fn check(&self, port: usize, packets: usize) -> Result<(), Misuse> {
        if port >= self.node.stages.network().ports().len() {
            return Err(Misuse::Port);
        }
        if packets > BURST {
            return Err(Misuse::Burst);
        }
        Ok(())
    }

    fn tell(
        &mut self,
        from: usize,
        verdict: stage::Verdict,
        now: u64,
        tally: &mut Tally,
    ) -> Verdict {
        tally.others += u64::from(!matches!(verdict, stage::Verdict::Forward { .. }));
        match verdict {
            stage::Verdict::Forward { port, worker } => Verdict::Forward { port, worker },
            stage::Verdict::Hold { port, worker, slot } => match self.place() {
                Some(place) => {
                    let oldest = self.node.hold(place, port, worker, slot, now);
                    self.places.pushed_out.extend(oldest);
                    Verdict::Hold { place, worker }
                }
                None => self.drop(DropReason::NeighbourQueueFull),
            },
            stage::Verdict::Queue { pool } => {
                let pool = usize::from(pool);
                let Some(place) = self.places.take() else {
                    self.node.stages.leave(pool);
                    return self.drop(DropReason::QueueFull);
                };
                match self.node.enqueue(place, pool, from) {
                    Ok(()) => Verdict::Hold { place, worker: NO_WORKER },
                    Err(place) => {
                        self.places.leave(place);
                        Verdict::Drop(DropReason::QueueFull)
                    }
                }
            }
            stage::Verdict::Answer => {
                tally.answers += 1;
                Verdict::Answer { port: from as u8 }
            }
            stage::Verdict::Consumed => {
                tally.consumed += 1;
                // A neighbour may have answered.
                self.node.review_neighbours();
                Verdict::Consumed
            }
            stage::Verdict::Drop(reason) => Verdict::Drop(reason),
        }
    }

    /// A place for a packet that may push out another one.
    fn place(&mut self) -> Option<u32> {
        if self.places.pushed_out.is_full() { None } else { self.places.take() }
    }

    pub(super) fn drop(&self, reason: DropReason) -> Verdict {
        self.node.stages.counters().drop(reason, 1);
        Verdict::Drop(reason)
    }

    #[inline]
    fn account(&self, received: usize, tally: &Tally) {
        let counters = self.node.stages.counters();
        let received = received as u64;
        counters.add(Counter::RxPackets, received);
        counters.add(Counter::Forwarded, received - tally.others);
        counters.add(Counter::Consumed, tally.consumed + tally.answers);
        counters.add(Counter::Originated, tally.answers);
        if tally.others > 0 {
            self.note_held();
        }
    }

    /// Tells how many packets wait at the owner's.
    pub(super) fn note_held(&self) {
        self.node.note_held(self.places.pushed_out.len());
    }

    /// Tells of forwarded packets that the port did not take and that were freed; they count as dropped.
    pub fn unsent(&mut self, packets: u64) {
        let counters = self.node.stages.counters();
        let forwarded = counters.read(Counter::Forwarded);
        counters.drop(
            DropReason::TxFull,
            packets.min(forwarded - counters.dropped(DropReason::TxFull)),
        );
    }

    /// Sends forwarded packets out of a port. What it does not take at the second try is freed, as told by
    /// [`Context::unsent`].
    pub fn send<P: Port>(&mut self, port: &mut P, packets: impl IntoIterator<Item = P::Buf>) {
        let mut packets = packets.into_iter();
        loop {
            let mut burst: Burst<_> = packets.by_ref().take(BURST).collect();
            if burst.is_empty() {
                return;
            }
            let (_, unsent) = outbox::send(port, &mut burst);
            if unsent > 0 {
                self.unsent(unsent);
            }
        }
    }

    /// Sends a packet that was made here, an answer or a question. One that the port does not take is freed and counted.
    pub fn send_own<P: Port>(&mut self, port: &mut P, packet: P::Buf) {
        if port.tx_burst(&mut Burst::from_iter([packet])) == 0 {
            self.node.stages.counters().add(Counter::OriginatedUnsent, 1);
        }
    }

    /// Writes the next question that is due, by ARP or neighbour discovery, to the front of `frame`; to be called at every turn of
    /// the owner's loop, after [`Context::release`], until there is none.
    #[inline]
    pub fn question(&mut self, now: u64, frame: &mut [u8; QUESTION_LEN]) -> Option<Question> {
        let ask = self.node.next_question(now)?;
        let own = self.node.stages.network().port(usize::from(ask.port));
        let len = ask.frame_len();
        ask.emit(own, &mut frame[..len]);
        self.node.stages.counters().add(Counter::Originated, 1);
        Some(Question { port: ask.port, len })
    }

    /// How long questions may be: [`QUESTION_LEN`], or less where no port has an IPv6 address.
    #[must_use]
    pub fn question_len(&self) -> usize {
        let has_v6 = self.node.stages.network().v6().is_some();
        if has_v6 { QUESTION_LEN } else { arp::FRAME_LEN }
    }

    /// The port at this index has an IPv6 address, so that its packets are IPv6's.
    #[must_use]
    pub fn is_v6(&self, port: usize) -> bool {
        self.node.stages.network().ports().get(port).is_some_and(|port| port.v6.is_some())
    }

    /// As [`Context::question`], in a buffer of the pool's, with the index of the port to send it out of. When the pool
    /// has none left the question is asked at its next time.
    pub fn ask<A: Pool>(&mut self, now: u64, pool: &mut A) -> Option<(A::Buf, usize)> {
        let mut frame = [0; QUESTION_LEN];
        let question = self.question(now, &mut frame)?;
        let mut packet = pool.take()?;
        if !packet.resize(question.len) {
            return None;
        }
        packet.bytes_mut().copy_from_slice(&frame[..question.len]);
        Some((packet, usize::from(question.port)))
    }

    /// Lets a worker get tasks from this core, or no longer; reports of its own do not change that.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn set_active(&mut self, worker: u16, active: bool) -> Result<(), Misuse> {
        let place = self.node.stages.network().worker(worker).ok_or(Misuse::Worker)?;
        self.node.stages.set_active(usize::from(place.pool), place.member, active);
        Ok(())
    }

    /// What this context has counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.node.stages.counters()
    }
}
