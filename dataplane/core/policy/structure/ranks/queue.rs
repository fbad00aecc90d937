//! Members ranked by queue.
//!
//! The places of an array hold the members in the order of their queues. Members with equal queues form a stretch; the
//! last stretch has all queues of at least `LONGEST`. The first stretch is the front. A run of tasks opens the front.
//! For each task it finds a member in the front and takes that member out, by a swap with the front's last member. The
//! end of the run closes the front: the members behind it, which were taken, then belong to the next stretch.

use rand::Rng as _;

use super::stretches::{self, Cell, Stretches};
use super::{Front, Member, Rank, RankSource, RankedMember, Report};
use crate::policy::Rng;
use crate::policy::sample::below;

/// Members ranked by queue. The parent module's documentation describes the structure.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// At each index: queue and place of the member with this number, and the member at this place.
    cells: Vec<Cell>,
    /// Order of the members by queue.
    order: Box<Stretches>,
    /// Number of ranked members.
    ranked: usize,
}

impl Ranks {
    /// Ranks the members in `ranked` and unranks all others. All `members` members keep their queues.
    pub fn rank(&mut self, members: usize, ranked: impl Iterator<Item = Member> + Clone) {
        stretches::resize(&mut self.cells, members);
        self.ranked = self.order.rank(&mut self.cells, 0, ranked).into();
    }

    /// Returns the number of ranked members.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranked
    }

    /// Returns the length of the shortest ranked queue, at most `LONGEST`; `LONGEST` without members.
    #[inline]
    #[must_use]
    pub fn least(&self) -> usize {
        self.order.least.into()
    }

    /// Returns the member whose tasks have received the most quanta of service; they probably end soonest. Looks at
    /// most at `scanned` members of a non-empty front, from a random place on. If none has quanta, this is the member
    /// that [`Rank::find`] returns. Other ties are broken uniformly.
    #[inline]
    pub fn find_most_served(
        &self,
        Ties(ties): Ties,
        scanned: usize,
        quanta: impl Fn(Member) -> u32,
        rng: &mut Rng,
    ) -> Option<RankedMember> {
        let first = self.find(Ties(ties), rng.next_u64() as u32)?;
        let holder = |place: usize| Member(self.cells[place].holder);
        // Place of the best member so far, its quanta, and the number of members with as many.
        let (mut best, mut most, mut equals) = (first.place, quanta(first.member), 1);
        let mut place = first.place;
        for _ in 1..scanned.min(ties as usize) {
            place = if place == first.last { 0 } else { place + 1 };
            let served = quanta(holder(place));
            if served > most {
                (best, most, equals) = (place, served, 1);
            } else if served == most && served > 0 {
                equals += 1;
                // Replaces the choice with probability 1 / equals, so that all ties are equally likely.
                if below(equals, rng.next_u64() as u32) == 0 {
                    best = place;
                }
            }
        }
        let member = holder(best);
        // Members of the last stretch have different queues.
        let queue = if self.order.is_full() { self.queue(member) } else { first.queue };
        Some(RankedMember { member, queue, place: best, ..first })
    }

    /// Returns true if no member is ranked.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranked == 0
    }
}

/// Number of members in the front that have not received a task in this run. In the last stretch all members remain.
#[derive(Clone, Copy, Debug)]
pub struct Ties(u32);

impl Front for Ties {
    #[inline(always)]
    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Rank for Ranks {
    type Front = Ties;

    /// Opens the front: returns the number of members in the first stretch.
    #[inline(always)]
    fn open(&mut self) -> Ties {
        Ties(self.order.ties() as u32)
    }

    #[inline(always)]
    fn find(&self, Ties(ties): Ties, bits: u32) -> Option<RankedMember> {
        let place = below(ties as usize, bits); // the shortest queues begin at place 0
        let member = Member(self.cells[place].holder);
        // Members of the last stretch have different queues, and stay in it after one more task.
        let (queue, source) = match self.order.is_full() {
            true => (self.queue(member), RankSource::Elsewhere),
            false => (self.order.least.into(), RankSource::Side(false)),
        };
        Some(RankedMember { member, queue, place, last: ties as usize - 1, source })
    }

    /// Swaps the member with the front's last one, so that the front gets shorter by one.
    #[inline(always)]
    fn take(&mut self, Ties(ties): Ties, found: RankedMember) -> Ties {
        if found.source == RankSource::Elsewhere {
            // The member stays in the last stretch, and so in the front.
            self.add(found.member);
            return Ties(ties);
        }
        self.cells[found.member.index()].queue = found.queue + 1;
        stretches::exchange(&mut self.cells, found.member, found.place, found.last);
        Ties(ties - 1)
    }

    /// Moves the end of the first stretch before the members that received a task.
    #[inline(always)]
    fn close(&mut self, Ties(ties): Ties) {
        self.order.close(ties);
    }

    #[inline(always)]
    fn queue(&self, member: Member) -> u32 {
        self.cells[member.index()].queue
    }

    #[inline(always)]
    fn add(&mut self, member: Member) {
        self.order.add(&mut self.cells, member);
    }

    #[inline(always)]
    fn set(&mut self, member: Member, queue: u32) {
        self.order.set(&mut self.cells, member, queue);
    }

    /// Sets the queues one by one. Works on a slice of length `members`, so that the compiler checks a member's index
    /// once for all arrays of that length.
    #[inline(always)]
    fn set_all(
        &mut self,
        reports: &[Report],
        members: usize,
        mut queue_of: impl FnMut(&Report) -> u32,
    ) {
        let (cells, order) = (&mut self.cells[..members], &mut *self.order);
        for report in reports {
            let (member, queue) = (report.member, queue_of(report));
            order.set(cells, member, queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stretches::LONGEST;
    use super::super::tests::{Change, change, first};
    use super::*;
    use crate::policy::Rng;
    use proptest::prelude::*;
    use rand::SeedableRng;

    const MEMBERS: u16 = 20;

    proptest! {
        /// Equals a scan of plain queues after any sequence of steps.
        // promise: scheduling.5
        #[test]
        fn behaves_as_a_scan(
            steps in proptest::collection::vec(
                (0..4_u8, 0..MEMBERS, prop_oneof![0..20_u32, 0..1200_u32]), 0..200,
            ),
        ) {
            let mut rng = Rng::seed_from_u64(1);
            let mut queues = [0_u32; MEMBERS as usize];
            let mut ranked = [true; MEMBERS as usize];
            let mut ranks = Ranks::default();
            let rank = |ranks: &mut Ranks, ranked: &[bool]| {
                let members = (0..MEMBERS).map(Member).filter(|m| ranked[m.index()]);
                ranks.rank(MEMBERS.into(), members);
            };
            rank(&mut ranks, &ranked);
            for (step, member, queue) in steps {
                let member = Member(member);
                match step {
                    1 => {
                        ranked[member.index()] ^= true;
                        rank(&mut ranks, &ranked);
                    }
                    step => {
                        let step = match step {
                            0 => Change::Set(member, queue),
                            2 => Change::Add(member),
                            _ => Change::Take(queue % 8),
                        };
                        let taken = change(&mut ranks, &mut queues, step, &mut rng)?;
                        prop_assert!(taken.iter().all(|member| ranked[member.index()]));
                    }
                }
                let scan = (0..MEMBERS.into()).filter(|&m| ranked[m]);
                let least = scan.clone().map(|m| queues[m].min(LONGEST as u32)).min();
                match first(&mut ranks, &mut rng).map(|found| found.member) {
                    None => prop_assert_eq!(least, None),
                    Some(shortest) => {
                        prop_assert!(ranked[shortest.index()]);
                        // 1023 is `LONGEST`: longer queues have equal ranks.
                        prop_assert_eq!(Some(queues[shortest.index()].min(1023)), least);
                        let ties = scan.filter(|&m| Some(queues[m].min(1023)) == least).count();
                        prop_assert_eq!(ranks.order.ties(), ties);
                    }
                }
            }
        }
    }

    #[test]
    fn ties_are_broken_uniformly() {
        let mut rng = Rng::seed_from_u64(1);
        let mut ranks = Ranks::default();
        ranks.rank(8, (0..8).map(Member));
        (0..4).for_each(|member| ranks.add(Member(2 * member)));
        let mut counts = [0_u32; 8];
        for _ in 0..4000 {
            counts[first(&mut ranks, &mut rng).unwrap().member.index()] += 1;
        }
        // 1000 each with a standard deviation of 27; six deviations are allowed.
        for (member, count) in counts.into_iter().enumerate() {
            assert!(if member % 2 == 0 { count == 0 } else { count.abs_diff(1000) < 165 });
        }
    }
}
