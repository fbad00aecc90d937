//! One core's part of an embedded scheduler: decides on bursts, and returns neighbour questions (ARP and neighbour
//! discovery). The module `release` returns held packets.
//!
//! The caller, the *owner* of a context, stores held packets itself, each under a number that the context assigns: its
//! *place*. A packet is held while the MAC address of its next hop is unknown, or while no worker may take its task.
//! The *stages*, the steps of the packet path, decide on packets; the *node* around them adds queues and periodic work.

use arrayvec::ArrayVec;
use wedjat_core::io::{Buf, Burst, Pool, Port};
use wedjat_core::limits::BURST;
use wedjat_core::node::{Commands, Node, Timing, outbox};
use wedjat_core::reason::DropReason;
use wedjat_core::stage::{self, QueuePlace, Rewrite, Stages, Verdicts};
use wedjat_core::state::{Counter, Counters};
use wedjat_core::wire::task::NO_MEMBER;
use wedjat_core::wire::{arp, ndp};

use super::held::HeldPlaces;

/// Worker id of a packet without a worker.
pub const NO_WORKER: u16 = NO_MEMBER;

/// Bytes of the longest question, one of neighbour discovery.
pub const QUESTION_LEN: usize = ndp::FRAME_LEN;

/// Verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it out of this port.
    Forward {
        /// Index of the port.
        port: u8,
        /// Worker of the task or of the reply.
        worker: u16,
    },
    /// Keep it at this place, below [`Context::places`], until [`Context::release`] returns it. The MAC
    /// address of its next hop is unknown, or no worker may take one more task.
    Hold {
        /// Free place for it.
        place: u32,
        /// Worker that a task goes to, or that a reply comes from; [`NO_WORKER`] for a task that waits for
        /// one.
        worker: u16,
    },
    /// Consumed and turned into an answer, to be sent out of the receiving port (ARP, neighbour discovery,
    /// and refused tasks).
    Answer {
        /// Index of that port.
        port: u8,
    },
    /// Consumed; free it.
    Consumed,
    /// Free it; already counted.
    Drop(DropReason),
}

/// Invalid call; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The port does not exist.
    #[error("no such port: the configuration has fewer")]
    Port,
    /// Too many packets.
    #[error("more than {BURST} packets in a burst: give them in several calls")]
    Burst,
    /// Too little room for verdicts or rewrites.
    #[error("fewer verdicts, or rewrites, than packets")]
    Verdicts,
    /// The worker does not exist.
    #[error("no such worker: the node has none with that id")]
    Worker,
}

/// Neighbour question to send, by ARP or neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Index of the port to send it out of.
    pub port: u8,
    /// Length of the frame in bytes.
    pub len: usize,
}

/// One core's scheduler. Used by one thread at a time.
///
/// After every call its counters satisfy received = sent + consumed + dropped + held. The verdict `Forward`
/// counts a packet as sent. The owner reports forwarded packets rejected by the port with [`Context::unsent`];
/// these count as dropped instead.
#[derive(Debug)]
pub struct Context {
    /// The node. It knows waiting packets by their places.
    pub(super) node: Node<u32>,
    /// Places in use and free ones.
    pub(super) places: HeldPlaces,
    /// True from [`Context::abandon`] to the end of the drops by [`Context::release`].
    pub(super) is_abandoned: bool,
}

/// Numbers of a burst's verdicts other than `Forward`. They are added to the counters once per burst.
#[derive(Default)]
struct Tally {
    /// All verdicts other than `Forward`.
    not_forwarded: u64,
    /// Verdicts `Consumed`.
    consumed: u64,
    /// Verdicts `Answer`.
    answers: u64,
}

/// Passes `Forward` verdicts, the common case, to `take`, and collects the rest. The rest needs the node, which the
/// stages borrow until the burst is decided.
struct SplitVerdicts<F> {
    /// Caller's function for a packet's index in the burst and its verdict.
    take: F,
    /// Index and verdict of each other packet.
    rest: ArrayVec<(usize, stage::Verdict), BURST>,
}

impl<F: FnMut(usize, Verdict)> Verdicts for SplitVerdicts<F> {
    #[inline(always)]
    fn forward(&mut self, index: usize, port: u8, worker: u16) {
        (self.take)(index, Verdict::Forward { port, worker });
    }

    #[cold]
    fn other(&mut self, index: usize, verdict: stage::Verdict) {
        let _ = self.rest.try_push((index, verdict)); // at most one per packet
    }
}

impl Context {
    /// Creates a context without held packets. `commands` delivers changes of the configuration.
    pub(super) fn new(stages: Stages, commands: Commands, ticks_hz: u64) -> Self {
        let node = Node::new(stages, commands, Timing { ticks_hz });
        Self { places: HeldPlaces::new(node.queue_bound()), node, is_abandoned: false }
    }

    /// Returns the maximum number of packets that the owner must keep at a time. Places are numbered from 0.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.count()
    }

    /// Decides on up to [`BURST`] packets received by `port` at `now` ticks, and rewrites those that
    /// proceed. They are ready to send, except held ones.
    ///
    /// # Errors
    /// If the port does not exist, the burst is too large, or there is too little room for verdicts. Nothing
    /// is done then.
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
        self.process_each(port, now, packets, |index, verdict| {
            if let Some(entry) = verdicts.get_mut(index) {
                *entry = verdict;
            }
        })?;
        Ok(())
    }

    /// Like [`Context::process`], but passes each verdict with the packet's index in the burst to `take`, in
    /// any order. Returns the number of packets with a verdict other than [`Verdict::Forward`]. If it is 0, the owner
    /// need not search for held packets.
    ///
    /// # Errors
    /// If the port does not exist, or the burst is too large. Nothing is done then.
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
        let mut split = SplitVerdicts { take, rest: ArrayVec::new() };
        self.node.stages.process(port, now, packets, &mut split);
        let mut tally = Tally::default();
        // The stages no longer borrow the node, so the rest of the verdicts can be converted.
        let SplitVerdicts { take, rest } = &mut split;
        for &(index, verdict) in &*rest {
            take(index, self.convert(port, verdict, now, &mut tally));
        }
        self.account(packets.len(), &tally);
        Ok(rest.len())
    }

    /// Decides like [`Context::process`], but does not change the bytes of tasks and replies. Owners that cannot write
    /// to received packets, or write them elsewhere, apply the changes themselves. `rewrites` receives the changes for
    /// packets that proceed or wait only for their next hop. Answers are rewritten in place nevertheless.
    /// [`Context::release`] writes to held packets: the MAC addresses, and all changes to tasks that waited for a
    /// worker.
    ///
    /// # Errors
    /// If the port does not exist, the burst is too large, or there is too little room. Nothing is done then.
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
            *verdict = self.convert(port, *decided, now, &mut tally);
        }
        self.account(packets.len(), &tally);
        Ok(())
    }

    /// Checks that the port exists and the burst is not too large.
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

    /// Converts a verdict of the stages on a packet that port `received_by` received at `now` ticks. Assigns a place to
    /// a held packet, and adds the verdict to `tally`. Without a free place, a packet to be held is dropped instead.
    fn convert(
        &mut self,
        received_by: usize,
        verdict: stage::Verdict,
        now: u64,
        tally: &mut Tally,
    ) -> Verdict {
        tally.not_forwarded += u64::from(!matches!(verdict, stage::Verdict::Forward { .. }));
        match verdict {
            stage::Verdict::Forward { port, worker } => Verdict::Forward { port, worker },
            // The packet waits for the MAC address of the neighbour at `slot`.
            stage::Verdict::Hold { port, worker, slot } => match self.place() {
                Some(place) => {
                    // The oldest such packet, if it makes room for this one.
                    let oldest = self.node.hold(place, port, worker, slot, now);
                    self.places.pushed_out.extend(oldest);
                    Verdict::Hold { place, worker }
                }
                None => self.drop(DropReason::NeighbourQueueFull),
            },
            // The task waits for a worker.
            stage::Verdict::Queue { pool, lane, .. } => {
                let waits = QueuePlace { pool: pool.into(), lane, port: received_by };
                let Some(place) = self.places.take() else {
                    // The stages already count the task as waiting, as the last one.
                    self.node.stages.leave_last(waits.pool, lane);
                    return self.drop(DropReason::QueueFull);
                };
                match self.node.enqueue(place, waits, false, now) {
                    Ok(()) => Verdict::Hold { place, worker: NO_WORKER },
                    // The node has counted the drop.
                    Err(place) => {
                        self.places.release(place);
                        Verdict::Drop(DropReason::QueueFull)
                    }
                }
            }
            stage::Verdict::Answer => {
                tally.answers += 1;
                Verdict::Answer { port: received_by as u8 }
            }
            stage::Verdict::Consumed => {
                tally.consumed += 1;
                // The packet may be a neighbour's answer, which releases the packets held for it.
                self.node.review_neighbours();
                Verdict::Consumed
            }
            stage::Verdict::Drop(reason) => Verdict::Drop(reason),
        }
    }

    /// Returns a free place for a packet waiting for its next hop; `None` if no place is free or `pushed_out` is
    /// full. The packet may push out the oldest such packet, which then needs room there.
    fn place(&mut self) -> Option<u32> {
        if self.places.pushed_out.is_full() { None } else { self.places.take() }
    }

    /// Counts a drop and returns the verdict.
    pub(super) fn drop(&self, reason: DropReason) -> Verdict {
        self.node.stages.counters().drop(reason, 1);
        Verdict::Drop(reason)
    }

    /// Adds a burst of `received` packets to the counters. `tally` has their verdicts other than `Forward`. The
    /// stages and the node count drops themselves.
    #[inline]
    fn account(&self, received: usize, tally: &Tally) {
        let counters = self.node.stages.counters();
        let received = received as u64;
        counters.add(Counter::RxPackets, received);
        counters.add(Counter::Forwarded, received - tally.not_forwarded);
        // An answer counts as a consumed packet and as a new one.
        counters.add(Counter::Consumed, tally.consumed + tally.answers);
        counters.add(Counter::Originated, tally.answers);
        if tally.not_forwarded > 0 {
            self.note_held();
        }
    }

    /// Publishes the number of packets held by the owner in the gauge `Held`. Packets that were pushed out count until
    /// the owner receives them.
    pub(super) fn note_held(&self) {
        self.node.note_held(self.places.pushed_out.len());
    }

    /// Reports forwarded packets that the port rejected and the owner freed. They count as dropped. Counts no more
    /// packets than were forwarded, so that a wrong report cannot unbalance the counters.
    pub fn unsent(&mut self, packets: u64) {
        let counters = self.node.stages.counters();
        let forwarded = counters.read(Counter::Forwarded);
        // Forwarded packets less those reported before.
        counters.drop(
            DropReason::TxFull,
            packets.min(forwarded - counters.dropped(DropReason::TxFull)),
        );
    }

    /// Sends forwarded packets out of a port, in bursts. Packets that it rejects twice are freed and counted as by
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

    /// Reports packets of the context's own, answers and questions, that were lost for lack of a buffer, or that the
    /// port rejected and the owner freed. Counts no more packets than were made.
    pub fn unsent_own(&mut self, packets: u64) {
        let counters = self.node.stages.counters();
        // Own packets less those reported before.
        let sent = counters.read(Counter::Originated) - counters.read(Counter::OriginatedUnsent);
        counters.add(Counter::OriginatedUnsent, packets.min(sent));
    }

    /// Sends an answer or question made here. If the port rejects it, it is freed and counted.
    pub fn send_own<P: Port>(&mut self, port: &mut P, packet: P::Buf) {
        if port.tx_burst(&mut Burst::from_iter([packet])) == 0 {
            self.unsent_own(1);
        }
    }

    /// Writes the next neighbour question that is due at `now` ticks to the start of `frame`; `None` if none is due.
    /// Call it in every iteration of the owner's loop until it returns `None`, after [`Context::release`], which starts
    /// questions.
    #[inline]
    pub fn question(&mut self, now: u64, frame: &mut [u8; QUESTION_LEN]) -> Option<Question> {
        let question = self.node.next_question(now)?;
        let port = self.node.stages.network().port(usize::from(question.port));
        let len = question.frame_len();
        question.emit(port, &mut frame[..len]);
        self.node.stages.counters().add(Counter::Originated, 1);
        Some(Question { port: question.port, len })
    }

    /// Returns the maximum length of questions: [`QUESTION_LEN`], or that of ARP without IPv6 addresses.
    #[must_use]
    pub fn question_len(&self) -> usize {
        let has_v6 = self.node.stages.network().ports().iter().any(|port| port.v6.is_some());
        if has_v6 { QUESTION_LEN } else { arp::FRAME_LEN }
    }

    /// Returns true if the port at this index has an IPv6 address. [`Context::decide`] then fills [`Rewrite::v6`].
    #[must_use]
    pub fn is_v6(&self, port: usize) -> bool {
        self.node.stages.network().ports().get(port).is_some_and(|port| port.v6.is_some())
    }

    /// Like [`Context::question`], but in a buffer from the pool. Also returns the port to send it out of. Without a
    /// buffer returns `None`, too: the question counts as unsent, and is repeated at its next time.
    pub fn ask<A: Pool>(&mut self, now: u64, pool: &mut A) -> Option<(A::Buf, usize)> {
        let mut frame = [0; QUESTION_LEN];
        let question = self.question(now, &mut frame)?;
        let buffer = pool.take().and_then(|mut buf| buf.resize(question.len).then_some(buf));
        let Some(mut packet) = buffer else {
            self.unsent_own(1);
            return None;
        };
        packet.bytes_mut().copy_from_slice(&frame[..question.len]);
        Some((packet, usize::from(question.port)))
    }

    /// Allows or forbids this core to send tasks to a worker. The worker's own reports do not change that. An
    /// allowed silent worker gets tasks only after its next report.
    ///
    /// # Errors
    /// If the worker does not exist.
    pub fn set_active(&mut self, worker: u16, active: bool) -> Result<(), Misuse> {
        let place = self.node.stages.network().worker(worker).ok_or(Misuse::Worker)?;
        self.node.stages.set_active(usize::from(place.pool), place.member, active);
        Ok(())
    }

    /// Returns the context's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.node.stages.counters()
    }
}
