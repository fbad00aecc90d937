//! Members in order of their queues, so that the shortest is found, and any one's queue changes, in a time
//! that does not depend on how many members there are.
//!
//! One array holds the members sorted by queue; the members of one length are a stretch of it. One task
//! more or less swaps a member with the last or first of its stretch and moves the border by one, and a
//! uniform choice among the shortest is one random number and one load. A jump by k tasks moves k borders.
//!
//! Where speeds count, the members of each speed have such an order of their own, and the speeds are compared
//! by their best members; that is done again only when a best one changes.
//!
//! Choices come in runs. Who ties is taken out of the orders for a run, since each choice waits for the one before
//! it, and numbers at hand are there sooner than those behind a speed that was found a moment ago.

mod queue;
mod speed;
mod stretches;

pub use queue::Ranks;
pub use speed::SpeedRanks;

use crate::state::{Member, Report, View};

/// A member that comes first.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The member.
    pub member: Member,
    /// Its queue.
    pub queue: u32,
    /// Where it stands, and the last of those beside it who come first.
    place: usize,
    last: usize,
    whence: Whence,
}

/// Where a member was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whence {
    /// On the first side of the front, or on the second.
    Side(bool),
    /// Elsewhere.
    Elsewhere,
}

/// Who comes first while a run of choices is made.
pub trait Front: Copy {
    /// Nobody does, or all who did got their tasks.
    fn is_empty(self) -> bool;
}

/// An order of members by which tasks go to the first.
///
/// A run of choices begins with [`Rank::open`] and ends with [`Rank::close`]; in between, what its front has given is
/// not known to the order, and only [`Rank::queue`] may be asked of it. A front goes by value and is a number or a
/// few in one, so that it stays in a register.
pub trait Rank {
    /// Who comes first.
    type Front: Front;

    /// Begins a run.
    fn open(&mut self) -> Self::Front;

    /// One of those of a front that is not empty, each as likely.
    fn find(&self, front: Self::Front, bits: u32) -> Option<Found>;

    /// Who was found just now gets a task.
    fn take(&mut self, front: Self::Front, found: Found) -> Self::Front;

    /// Ends a run.
    fn close(&mut self, front: Self::Front);

    /// A member's queue.
    fn queue(&self, member: Member) -> u32;

    /// A member got a task.
    fn add(&mut self, member: Member);

    /// A member's queue is known to be this long.
    fn set(&mut self, member: Member, queue: u32);

    /// As [`Rank::set`], one after the other: those of so many members that report, whose queues `known` tells.
    fn set_all(&mut self, reports: &[Report], members: usize, known: impl FnMut(&Report) -> u32);

    /// A run goes on with those who come first after those of `front`; none when nobody does.
    #[cold]
    #[inline(never)]
    fn reopen(&mut self, front: Self::Front) -> Option<Self::Front> {
        self.close(front);
        Some(self.open()).filter(|front| !front.is_empty())
    }

    /// As [`Rank::set`], within a run.
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
    /// By (queue + 1) / speed.
    Delay(SpeedRanks),
}

impl Ranking {
    /// By queue and speed, or by queue alone.
    #[must_use]
    pub fn new(by_delay: bool) -> Self {
        match by_delay {
            true => Self::Delay(SpeedRanks::default()),
            false => Self::Queue(Ranks::default()),
        }
    }

    /// Ranks a view's active members; queues known before stay.
    pub fn rank(&mut self, view: &View) {
        match self {
            Self::Queue(ranks) => ranks.rank(view.members(), view.active().iter().copied()),
            Self::Delay(ranks) => ranks.rank(view.members(), view.active(), |m| view.rate(m)),
        }
    }

    /// A member got a task.
    #[inline]
    pub fn add(&mut self, member: Member) {
        match self {
            Self::Queue(ranks) => ranks.add(member),
            Self::Delay(ranks) => ranks.add(member),
        }
    }

    /// A member's queue is known to be this long.
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
    use rand::Rng as _;

    use super::*;
    use crate::policy::Rng;

    /// Who comes first.
    pub fn first(ranks: &mut impl Rank, rng: &mut Rng) -> Option<Found> {
        let front = Some(ranks.open()).filter(|front| !front.is_empty())?;
        ranks.find(front, rng.next_u64() as u32)
    }

    /// A run of choices.
    pub fn take_some(ranks: &mut impl Rank, tasks: u32, rng: &mut Rng) -> Vec<Found> {
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
