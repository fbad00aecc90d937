//! Tasks in flight: matches each answer to its task by sequence number, once.
//!
//! Each core's generator numbers its tasks and keeps the last ones in a ring of fixed size. The packets carry no send
//! times, so a worker cannot falsify a latency.

/// A task in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightTask {
    /// Due time in ticks.
    pub due: u64,
    /// Send time in ticks.
    pub sent: u64,
    /// Requested service time.
    pub service_ns: u32,
    /// Class of the task, from 1.
    pub class: u16,
}

/// State of a slot's task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The slot has not been used yet.
    #[default]
    Never,
    /// The task has a frame but is not sent.
    Built,
    /// The task is in flight.
    Sent,
    /// An answer to the task has arrived, or the scheduler returned the task undone.
    Answered,
    /// The generator gave up the wait for an answer.
    Lost,
}

/// Slot of the ring.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Latest task of the slot.
    flight: InFlightTask,
    /// Full sequence number of that task.
    seq: u32,
    state: State,
}

/// Reason why an answer matches no task in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// The task was answered before.
    Duplicate,
    /// The task already counts as lost, or a later task has taken its slot.
    Late,
    /// No such task was sent.
    Unknown,
}

/// Ring of tasks in flight, indexed by sequence number. A task that is unanswered when the ring wraps around
/// is lost.
#[derive(Clone, Debug)]
pub struct Outstanding {
    /// Slots; their number is a power of two.
    slots: Box<[Slot]>,
    /// Number of tasks so far. Its low 32 bits are the sequence number of the next task.
    built: u64,
    /// Number of tasks in flight: sent, and neither answered nor lost.
    sent: usize,
}

impl Outstanding {
    /// Creates a ring of `2^bits` tasks. The generator chooses `bits` for the tasks of a second, within limits.
    ///
    /// # Panics
    /// If `bits` is above 31.
    #[must_use]
    pub fn new(bits: u32) -> Self {
        assert!(bits <= 31, "sequence numbers have 32 bits");
        let slots = vec![Slot::default(); 1 << bits].into_boxed_slice();
        Self { slots, built: 0, sent: 0 }
    }

    /// Returns the sequence number that [`Outstanding::build`] gives the next task. The caller writes it into the
    /// frame.
    #[must_use]
    pub fn next_seq(&self) -> u32 {
        self.built as u32
    }

    /// Returns the number of tasks in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sent
    }

    /// Returns true if no task is in flight. The drain then ends early.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent == 0
    }

    /// Returns the slot of a sequence number. The slot may hold another task, whose number has the same low bits.
    #[inline]
    fn slot(&mut self, seq: u32) -> &mut Slot {
        // The ring's length is a power of two.
        let mask = self.slots.len() - 1;
        &mut self.slots[seq as usize & mask]
    }

    /// Adds a task with the next sequence number, whose frame waits for the device. Returns the unanswered task that
    /// it evicts from its slot, if any. The caller counts that task as lost.
    #[inline]
    pub fn build(&mut self, due: u64, service_ns: u32, class: u16) -> Option<InFlightTask> {
        let seq = self.next_seq();
        self.built += 1;
        let slot = self.slot(seq);
        let lost = (slot.state == State::Sent).then_some(slot.flight);
        let flight = InFlightTask { due, sent: 0, service_ns, class };
        *slot = Slot { flight, seq, state: State::Built };
        self.sent -= usize::from(lost.is_some());
        lost
    }

    /// Marks the built task `seq` as sent at tick `now`, and returns it.
    #[inline]
    pub fn send(&mut self, seq: u32, now: u64) -> InFlightTask {
        let slot = self.slot(seq);
        slot.flight.sent = now;
        slot.state = State::Sent;
        let flight = slot.flight;
        self.sent += 1;
        flight
    }

    /// Returns the built task `seq`, whose frame the device did not accept. The caller counts it as unsent.
    #[must_use]
    pub fn built(&self, seq: u32) -> InFlightTask {
        self.slots[seq as usize & (self.slots.len() - 1)].flight
    }

    /// Matches an answer, by its full sequence number, with its task.
    ///
    /// # Errors
    /// The reason why no task in flight matches.
    #[inline(always)]
    pub fn answer(&mut self, seq: u32) -> Result<InFlightTask, Stray> {
        let slot = self.slot(seq);
        if slot.seq == seq && slot.state == State::Sent {
            slot.state = State::Answered;
            let flight = slot.flight;
            self.sent -= 1;
            return Ok(flight);
        }
        Err(self.stray(seq))
    }

    /// Returns the reason why an answer matches no task.
    #[cold]
    fn stray(&self, seq: u32) -> Stray {
        let slot = &self.slots[seq as usize & (self.slots.len() - 1)];
        if slot.seq == seq && slot.state == State::Answered {
            return Stray::Duplicate;
        }
        if slot.seq == seq && slot.state == State::Lost {
            return Stray::Late;
        }
        // A later task in the slot has evicted the answer's task. An age beyond the number of tasks, or beyond half the
        // sequence space, is that of a number not yet used.
        let age = self.next_seq().wrapping_sub(seq);
        let is_reused = slot.state != State::Never && slot.seq != seq;
        let was_used = u64::from(age) <= self.built && age < 1 << 31;
        let was_evicted = is_reused && was_used && age > self.slots.len() as u32;
        if was_evicted { Stray::Late } else { Stray::Unknown }
    }

    /// Returns the sequence number of the latest built task with these low 16 bits. Without the header
    /// extension an answer carries only these. With more than 2^16 tasks in flight it may be the wrong task.
    #[inline]
    #[must_use]
    pub fn full_seq(&self, seq: u16) -> u32 {
        let latest = self.next_seq().wrapping_sub(1);
        // Steps back from the latest task by the distance of the low 16 bits.
        latest.wrapping_sub(u32::from((latest as u16).wrapping_sub(seq)))
    }

    /// Gives up all tasks in flight at the end of the run. The caller must consume the iterator, which marks each task
    /// as lost and yields it.
    pub fn give_up(&mut self) -> impl Iterator<Item = InFlightTask> + '_ {
        self.sent = 0;
        self.slots.iter_mut().filter(|slot| slot.state == State::Sent).map(|slot| {
            slot.state = State::Lost;
            slot.flight
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Builds and sends tasks. Returns the number of tasks that they evict.
    fn send_all(outstanding: &mut Outstanding, tasks: u64) -> usize {
        let mut lost = 0;
        for due in 0..tasks {
            let seq = outstanding.next_seq();
            lost += usize::from(outstanding.build(due, 9, 1).is_some());
            assert_eq!(outstanding.send(seq, due + 5).due, due);
        }
        lost
    }

    #[test]
    fn every_task_is_answered_once() {
        let mut outstanding = Outstanding::new(3);
        assert_eq!(send_all(&mut outstanding, 4), 0);
        assert_eq!(
            outstanding.answer(2),
            Ok(InFlightTask { due: 2, sent: 7, service_ns: 9, class: 1 })
        );
        assert_eq!(outstanding.answer(2), Err(Stray::Duplicate));
        assert_eq!(outstanding.answer(4), Err(Stray::Unknown));
        assert_eq!(outstanding.answer(u32::MAX), Err(Stray::Unknown));
        assert_eq!(outstanding.len(), 3);
        assert_eq!(outstanding.give_up().count(), 3);
        assert!(outstanding.is_empty());
        assert_eq!(outstanding.answer(3), Err(Stray::Late));
    }

    #[test]
    fn built_task_is_not_in_flight() {
        let mut outstanding = Outstanding::new(3);
        outstanding.build(0, 9, 1);
        assert_eq!(outstanding.answer(0), Err(Stray::Unknown));
        assert_eq!(outstanding.give_up().count(), 0);
    }

    #[test]
    fn answer_to_evicted_task_is_late() {
        // A ring of 8 tasks: of 12 tasks the first four are evicted.
        let mut outstanding = Outstanding::new(3);
        assert_eq!(send_all(&mut outstanding, 12), 4);
        assert_eq!(outstanding.answer(3), Err(Stray::Late));
        assert_eq!(outstanding.answer(4).unwrap().due, 4);
        assert_eq!(outstanding.answer(12), Err(Stray::Unknown));
    }

    #[test]
    fn answer_to_future_task_is_unknown() {
        // A short sequence number above that of the latest task belongs to no task yet, however small the ring is.
        let mut outstanding = Outstanding::new(3);
        send_all(&mut outstanding, 12);
        let seq = outstanding.full_seq(20);
        assert_eq!(outstanding.answer(seq), Err(Stray::Unknown));
    }

    #[test]
    fn short_sequence_numbers_find_the_youngest_task() {
        let mut outstanding = Outstanding::new(3);
        // The latest task is 0x1_0004. The last two numbers are above its low 16 bits, so their tasks are older.
        outstanding.built = 0x1_0005;
        assert_eq!(outstanding.full_seq(4), 0x1_0004);
        assert_eq!(outstanding.full_seq(5), 0x0_0005);
        assert_eq!(outstanding.full_seq(0xFFFF), 0x0_FFFF);
    }

    proptest! {
        /// Every task is answered once or lost, for any answers and any number of tasks.
        #[test]
        fn ledger_balances(answers in proptest::collection::vec(0..200_u32, 0..300), tasks in 1..150_u64) {
            let mut outstanding = Outstanding::new(6);
            let mut lost = send_all(&mut outstanding, tasks);
            let mut answered = HashSet::new();
            for seq in answers {
                if outstanding.answer(seq).is_ok() {
                    prop_assert!(answered.insert(seq));
                }
            }
            lost += outstanding.give_up().count();
            prop_assert_eq!(answered.len() + lost, tasks as usize);
        }
    }
}
