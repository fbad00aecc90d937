//! Members ordered by queue. Finding the shortest queue, and adding or removing a task, take constant time, regardless
//! of the number of members. Policies that join the shortest queue use it for each task and each reply.
//!
//! One array holds the members sorted by queue; members with equal queues form a stretch. One task more swaps a member
//! with the last one of its stretch, and one task less with the first one. The boundary then moves by one. A uniform
//! choice among the shortest takes one random number and one load. A change by k tasks moves k boundaries.
//!
//! With speeds, the members of each speed have their own order. The speeds are compared by their best
//! members, and only when a best member changes.
//!
//! Choices come in runs. A run takes the tied members (the *front*) out of the orders and works on their number
//! in a register. Each choice depends on the previous one, and a register is available sooner than the fields of the
//! speed that the choice has just selected.
//!
//! Instructions dominate the cost of a decision. One step that both finds and counts a member saved a quarter of it.
//! A front in memory, as a small struct, cost 8 ns: its wide load waited for narrow stores.

mod queue;
mod speed;
mod stretches;

pub use queue::Ranks;
pub use speed::{Level, SpeedRanks, UNBOUNDED};

use crate::state::{Member, Report, View};

/// Member with the shortest queue, found by [`Rank::find`]. Its position lets [`Rank::take`] update the order without a
/// search.
#[derive(Clone, Copy, Debug)]
pub struct RankedMember {
    /// The member.
    pub member: Member,
    /// Queue length of the member.
    pub queue: u32,
    /// Place of the member in the array of members.
    place: usize,
    /// Place of the last tied member of its side, with which `take` swaps it.
    last: usize,
    /// Part of the front that contains it.
    source: RankSource,
}

/// Part of the front from which a member was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankSource {
    /// First side (false) or second side (true). A side is a group of tied members with its own count in the front.
    Side(bool),
    /// Tied members of neither side, which take longer: those of a third or further speed, and those whose queues are
    /// too long to be distinguished.
    Elsewhere,
}

/// Tied members at the front of the order during a run of choices.
pub trait Front: Copy {
    /// Returns true if no member may get a task, or all tied members have received theirs.
    fn is_empty(self) -> bool;
}

/// Order of members, whose first member receives the next task.
///
/// A run of choices begins with [`Rank::open`] and ends with [`Rank::close`]. In between, the queues contain the tasks
/// of the run, but the order does not. So only [`Rank::queue`] and the methods with a front may be called. A front is
/// passed by value and consists of packed numbers, so that it stays in a register.
pub trait Rank {
    /// Front of the order.
    type Front: Front;

    /// Begins a run. Returns the front: the members tied for the next task.
    fn open(&mut self) -> Self::Front;

    /// Returns a uniform member of a non-empty front, chosen by random `bits`. `None` only for a front that is not of
    /// this order.
    fn find(&self, front: Self::Front, bits: u32) -> Option<RankedMember>;

    /// Gives a task to `found`, the result of the last [`Rank::find`]. Returns the remaining front.
    fn take(&mut self, front: Self::Front, found: RankedMember) -> Self::Front;

    /// Ends a run: the order then contains the tasks that the front has given out.
    fn close(&mut self, front: Self::Front);

    /// Returns a member's queue, with the tasks of an open run.
    fn queue(&self, member: Member) -> u32;

    /// Adds a task to a member.
    fn add(&mut self, member: Member);

    /// Sets a member's queue.
    fn set(&mut self, member: Member, queue: u32);

    /// Same as [`Rank::set`] for the member of each report; `queue_of` returns its new queue. `members` is the number
    /// of all members.
    fn set_all(&mut self, reports: &[Report], members: usize, queue_of: impl FnMut(&Report) -> u32);

    /// Continues a run after all members of `front` have received a task: closes it and opens the next front. `None` if
    /// no member may get a task.
    #[cold]
    #[inline(never)]
    fn reopen(&mut self, front: Self::Front) -> Option<Self::Front> {
        self.close(front);
        Some(self.open()).filter(|front| !front.is_empty())
    }

    /// Same as [`Rank::set`], within a run: corrects a queue that another core has changed, or that a probe returned.
    /// Returns the new front.
    #[cold]
    #[inline(never)]
    fn set_open(&mut self, front: Self::Front, member: Member, queue: u32) -> Self::Front {
        self.close(front);
        self.set(member, queue);
        self.open()
    }
}

/// Members ranked by queue, or by queue and speed.
#[derive(Clone, Debug)]
pub enum Ranking {
    /// By queue.
    Queue(Ranks),
    /// By (queue + half) / speed.
    Delay(SpeedRanks),
}

impl Ranking {
    /// Creates an empty ranking: with a `half` by (queue + half) / speed, otherwise by queue. The half is the new
    /// task's part in the expected delay; 1 counts the whole task.
    #[must_use]
    pub fn new(half: Option<f64>) -> Self {
        match half {
            Some(half) => Self::Delay(SpeedRanks::new(half)),
            None => Self::Queue(Ranks::default()),
        }
    }

    /// Ranks a view's active members, after their set or their speeds changed. Members keep their queues.
    pub fn rank(&mut self, view: &View) {
        match self {
            Self::Queue(ranks) => ranks.rank(view.members(), view.active().iter().copied()),
            Self::Delay(ranks) => ranks.rank(view.members(), view.active(), |m| view.rate(m)),
        }
    }

    /// Adds a task to a member.
    #[inline]
    pub fn add(&mut self, member: Member) {
        match self {
            Self::Queue(ranks) => ranks.add(member),
            Self::Delay(ranks) => ranks.add(member),
        }
    }

    /// Returns a member's queue.
    #[must_use]
    pub fn queue(&self, member: Member) -> u32 {
        match self {
            Self::Queue(ranks) => ranks.queue(member),
            Self::Delay(ranks) => ranks.queue(member),
        }
    }

    /// Sets a member's queue.
    #[inline]
    pub fn set(&mut self, member: Member, queue: u32) {
        match self {
            Self::Queue(ranks) => ranks.set(member, queue),
            Self::Delay(ranks) => ranks.set(member, queue),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestCaseError;
    use rand::Rng as _;

    use super::*;
    use crate::policy::Rng;

    /// Returns a member that a run would choose first, and gives it no task. `None` if no member can get a task.
    pub fn first(ranks: &mut impl Rank, rng: &mut Rng) -> Option<RankedMember> {
        let front = Some(ranks.open()).filter(|front| !front.is_empty())?;
        ranks.find(front, rng.next_u64() as u32)
    }

    /// Change of an order in a random test.
    #[derive(Clone, Copy, Debug)]
    pub enum Change {
        /// Sets the member's queue.
        Set(Member, u32),
        /// Adds a task to the member.
        Add(Member),
        /// Makes a run of choices for this number of tasks.
        Take(u32),
    }

    /// Changes an order and the plain queues of its members in the same way. Returns the chosen members.
    ///
    /// # Errors
    /// If a chosen member's queue in the order differs from the plain one.
    pub fn change(
        ranks: &mut impl Rank,
        queues: &mut [u32],
        change: Change,
        rng: &mut Rng,
    ) -> Result<Vec<Member>, TestCaseError> {
        let mut chosen = Vec::new();
        match change {
            Change::Set(member, queue) => {
                queues[member.index()] = queue;
                ranks.set(member, queue);
            }
            Change::Add(member) => {
                queues[member.index()] += 1;
                ranks.add(member);
            }
            Change::Take(tasks) => {
                for taken in take_some(ranks, tasks, rng) {
                    prop_assert_eq!(taken.queue, queues[taken.member.index()]);
                    queues[taken.member.index()] += 1;
                    chosen.push(taken.member);
                }
            }
        }
        Ok(chosen)
    }

    /// Makes a run of choices for up to `tasks` tasks. Returns the chosen members, with their queues before the task.
    fn take_some(ranks: &mut impl Rank, tasks: u32, rng: &mut Rng) -> Vec<RankedMember> {
        let (mut front, mut all) = (ranks.open(), Vec::new());
        for _ in 0..tasks {
            if front.is_empty() {
                let Some(next) = ranks.reopen(front) else { break };
                front = next;
            }
            let found = ranks.find(front, rng.next_u64() as u32).unwrap();
            front = ranks.take(front, found);
            all.push(found);
        }
        ranks.close(front);
        all
    }
}
