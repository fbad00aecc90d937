//! Probes of members' queues, for policies that probe some members before they decide on a task
//! (`lsq-sample`, `jsq(d)`, `ppot`), where a probe is a message. A *probe* asks a member for its queue length. The
//! pool's dispatcher has one [`PendingProbes`].
//!
//! A task waits for its answers in its pool's queue. Its candidates are drawn on arrival, from the state of
//! the random source at that time; the decision repeats the same draws. An answer reports the queue at the
//! moment of the probe. The dispatcher adds its own tasks sent since the probe, because they arrive after it.
//!
//! A lost answer to the first waiting task delays the tasks behind it by up to [`PROBE_TIMEOUT_NS`]. Overtaking would
//! give another order than the simulator's, for a rare loss.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::shortest::SAMPLES_MAX;
use super::{ProbedMembers, Rng};
use crate::limits::PROBE_TIMEOUT_NS;
use crate::state::Member;

/// Member to probe, and the number that its answer repeats.
pub type Probe = (Member, u16);

/// Probes of a waiting task.
#[derive(Clone, Debug)]
struct TaskProbes {
    /// Random source for the decision.
    rng: Rng,
    /// Probed members, with the number of tasks sent to each before its probe.
    probed: ArrayVec<(Member, u32), SAMPLES_MAX>,
    /// Members that have not answered: one bit for each entry of `probed`.
    open: u16,
    /// Number of probes already sent.
    sent_probes: u8,
    /// Time of the task's arrival.
    arrived_ns: u64,
}

const _: () = assert!(SAMPLES_MAX <= u16::BITS as usize);

/// Result of processing an answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer was the last one for the first waiting task. The caller offers that task again.
    Ready,
    /// Any other expected answer.
    Taken,
    /// No task waits for this answer: its task has left, or it is a duplicate.
    Late,
}

/// Probes of the waiting tasks in order, and the latest answers of the members.
#[derive(Debug)]
pub(super) struct PendingProbes {
    /// Queues for decisions: each member's last answer, plus the tasks sent since its probe. The view reads them
    /// as shared atomics; only this core accesses them, so `Relaxed` suffices.
    queues: Arc<[AtomicU32]>,
    /// Number of tasks sent to each member so far. Wraps around.
    sent: Box<[u32]>,
    /// Number of the task whose probe each member answered last.
    last_answered: Box<[Option<u64>]>,
    /// Waiting tasks in order.
    tasks: VecDeque<TaskProbes>,
    /// Number of the first waiting task; the next tasks have the numbers after it. Probes carry its low 16 bits.
    first: u64,
    /// Index of the waiting task whose probes are sent next.
    next: usize,
    /// Number of probes without an answer when their task left.
    unanswered: u64,
}

impl PendingProbes {
    /// Creates the state for `members` members and `waiting` waiting tasks.
    pub fn new(members: usize, waiting: usize) -> Self {
        Self {
            queues: (0..members).map(|_| AtomicU32::new(0)).collect(),
            sent: vec![0; members].into(),
            last_answered: vec![None; members].into(),
            tasks: VecDeque::with_capacity(waiting),
            first: 0,
            next: 0,
            unanswered: 0,
        }
    }

    /// Returns the queues for decisions. The policy's view reads them in place of its own counts.
    pub fn queues(&self) -> Arc<[AtomicU32]> {
        Arc::clone(&self.queues)
    }

    /// Returns true if one more task may wait for probes, without an allocation on the polling core.
    pub fn has_room(&self) -> bool {
        self.tasks.len() < self.tasks.capacity()
    }

    /// Adds a waiting task whose decision needs these members.
    pub fn push(&mut self, rng: Rng, members: &ProbedMembers, now_ns: u64) {
        let sent = &self.sent;
        let probed: ArrayVec<_, SAMPLES_MAX> =
            members.iter().map(|&member| (member, sent[member.index()])).collect();
        let open = ((1_u32 << probed.len()) - 1) as u16; // one bit for each probe
        self.tasks.push_back(TaskProbes { rng, probed, open, sent_probes: 0, arrived_ns: now_ns });
    }

    /// Removes the first waiting task, and counts its missing answers.
    pub fn pop(&mut self) {
        if let Some(task) = self.tasks.pop_front() {
            self.unanswered += u64::from(task.open.count_ones());
            self.first += 1;
            self.next = self.next.saturating_sub(1);
        }
    }

    /// Removes the last waiting task, which was pushed in the same burst, and for which the caller has no room. Unlike
    /// with `pop`, missing answers are no sign of a loss.
    pub fn pop_last(&mut self) {
        self.tasks.pop_back();
        self.next = self.next.min(self.tasks.len());
    }

    /// Returns the next member to probe; `None` once all probes of the waiting tasks are sent.
    pub fn next_probe(&mut self) -> Option<Probe> {
        while let Some(task) = self.tasks.get_mut(self.next) {
            if let Some((member, sent)) = task.probed.get_mut(usize::from(task.sent_probes)) {
                let member = *member;
                *sent = self.sent[member.index()];
                task.sent_probes += 1;
                return Some((member, (self.first + self.next as u64) as u16));
            }
            self.next += 1;
        }
        None
    }

    /// Processes a member's answer to the probe with this number: it had `queue` tasks.
    pub fn answer(&mut self, member: Member, number: u16, queue: u32) -> Answer {
        let index = usize::from(number.wrapping_sub(self.first as u16));
        let Some(task) = self.tasks.get_mut(index) else { return Answer::Late };
        // A member that is probed twice (two draws may coincide) answers twice.
        let is_open = |place: usize| task.open >> place & 1 != 0;
        let mut probed = task.probed.iter().enumerate();
        let Some((place, &(_, sent))) =
            probed.find(|&(place, (candidate, _))| *candidate == member && is_open(place))
        else {
            return Answer::Late;
        };
        task.open &= !(1 << place);
        let is_first = index == 0 && task.open == 0;
        let last_answered = &mut self.last_answered[member.index()];
        // Ignores an answer to an earlier probe than the last answered one.
        let task_number = self.first + index as u64;
        if last_answered.is_none_or(|last| task_number >= last) {
            *last_answered = Some(task_number);
            let sent_since = self.sent[member.index()].wrapping_sub(sent);
            self.queues[member.index()].store(queue.saturating_add(sent_since), Relaxed);
        }
        if is_first { Answer::Ready } else { Answer::Taken }
    }

    /// Returns the random source for the first task's decision, once all its answers have arrived or the wait
    /// has timed out.
    pub fn ready(&self, now_ns: u64) -> Option<Rng> {
        let first = self.tasks.front()?;
        let is_late = now_ns.saturating_sub(first.arrived_ns) >= PROBE_TIMEOUT_NS;
        (first.open == 0 || is_late).then(|| first.rng.clone())
    }

    /// Counts a task sent to a member, also in its queue for decisions.
    pub fn sent(&mut self, member: Member) {
        let sent = &mut self.sent[member.index()];
        *sent = sent.wrapping_add(1);
        let queue = &self.queues[member.index()];
        queue.store(queue.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Returns the number of missing answers of tasks that left since the last call, for a counter.
    pub fn take_unanswered(&mut self) -> u64 {
        std::mem::take(&mut self.unanswered)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn answer_after_many_other_tasks_counts() {
        let mut pending = PendingProbes::new(2, 4);
        // Probes one member for a task, whose answer arrives at once.
        let mut probe = |member: u16, queue: u32| {
            let probed: ProbedMembers = [Member(member)].into_iter().collect();
            pending.push(Rng::seed_from_u64(1), &probed, 0);
            let (member, number) = pending.next_probe().unwrap();
            assert_eq!(pending.answer(member, number, queue), Answer::Ready);
            pending.pop();
        };
        probe(0, 5);
        // More than half the range of the numbers in probes.
        (0..40_000).for_each(|_| probe(1, 0));
        probe(0, 9);
        assert_eq!(pending.queues()[0].load(Relaxed), 9);
    }

    #[test]
    fn task_sent_before_the_probe_counts_once() {
        let mut pending = PendingProbes::new(1, 4);
        let probed: ProbedMembers = [Member(0)].into_iter().collect();
        pending.push(Rng::seed_from_u64(1), &probed, 0);
        pending.sent(Member(0));
        let (member, number) = pending.next_probe().unwrap();
        // The member has the task already, and another one follows the probe.
        pending.sent(Member(0));
        assert_eq!(pending.answer(member, number, 1), Answer::Ready);
        assert_eq!(pending.queues()[0].load(Relaxed), 2);
    }
}
