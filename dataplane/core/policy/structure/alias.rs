//! Choice by weight in constant time: alias table (Walker 1977, in Vose's construction, 1991). A table has one
//! cell per member. A draw picks a cell uniformly, then one of the cell's two members by its threshold.

use rand::Rng as _;

use crate::policy::Rng;
use crate::policy::sample::{below, select};
use crate::state::Member;

/// A cell: its member with a probability, else the alias.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The cell's member is chosen if a random number of 32 bits is below this, otherwise the alias.
    threshold: u32,
    /// The cell's own member.
    member: Member,
    /// Member with a weight above the mean, which gets the rest of the cell. The cell's own member if there is no rest.
    alias: Member,
}

impl Cell {
    /// Returns true if these random bits choose the cell's own member. Never true for one without weight.
    #[inline(always)]
    fn is_own(&self, bits: u32) -> bool {
        bits < self.threshold
    }
}

/// Members, each chosen in proportion to its weight.
#[derive(Clone, Debug, Default)]
pub struct Alias {
    cells: Vec<Cell>,
    /// Scratch memory of `rebuild`: each member's weight not yet distributed, in mean weights.
    remaining: Vec<f64>,
    /// Scratch memory: indices of the cells with a remaining weight below 1.
    small: Vec<usize>,
    /// Scratch memory: indices of all other cells.
    large: Vec<usize>,
}

impl Alias {
    /// Builds the table for `members`. All weights count as equal if none is above 0. Reserves memory for `most`
    /// members, so that a later call with the same `most` allocates nothing.
    pub fn rebuild(&mut self, most: usize, members: &[Member], weight: impl Fn(Member) -> f64) {
        self.reserve(most);
        let total: f64 = members.iter().map(|&member| weight(member)).sum();
        let mean = total / members.len() as f64;
        let Self { cells, remaining, small, large } = self;
        remaining.extend(members.iter().map(|&m| if total > 0.0 { weight(m) / mean } else { 1.0 }));
        (0..members.len())
            .for_each(|i| if remaining[i] < 1.0 { &mut *small } else { &mut *large }.push(i));
        cells.extend(members.iter().map(|&member| Cell {
            threshold: u32::MAX,
            member,
            alias: member,
        }));
        // A member that is left over, if only by rounding, keeps its whole cell.
        while let (Some(light), Some(&heavy)) = (small.pop(), large.last()) {
            // The heavy member fills the rest of the light one's cell.
            cells[light].threshold = (remaining[light] * 32.0_f64.exp2()) as u32;
            cells[light].alias = members[heavy];
            remaining[heavy] -= 1.0 - remaining[light];
            if remaining[heavy] < 1.0 {
                large.pop();
                small.push(heavy);
            }
        }
    }

    /// Empties the table and reserves memory for `most` members.
    fn reserve(&mut self, most: usize) {
        self.cells.clear();
        self.cells.reserve(most);
        self.remaining.clear();
        self.remaining.reserve(most);
        for places in [&mut self.small, &mut self.large] {
            places.clear();
            places.reserve(most);
        }
    }

    /// Returns true if the table is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Draws a member; `None` if the table is empty.
    #[inline(always)]
    pub fn sample(&self, rng: &mut Rng) -> Option<Member> {
        let bits = rng.next_u64();
        let cell = self.cells.get(below(self.cells.len(), (bits >> 32) as u32))?;
        Some(select(cell.is_own(bits as u32), cell.alias, cell.member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn members_come_by_weight() {
        let members: Vec<_> = (0..4).map(Member).collect();
        let weights = [1.0, 0.0, 5.0, 2.0];
        let mut alias = Alias::default();
        alias.rebuild(4, &members, |member| weights[member.index()]);
        let mut rng = Rng::seed_from_u64(1);
        let mut counts = [0_u32; 4];
        for _ in 0..80_000 {
            counts[alias.sample(&mut rng).unwrap().index()] += 1;
        }
        // Shares of 1, 0, 5 and 2 eighths. The largest standard deviation is 137.
        for (count, expected) in counts.into_iter().zip([10_000_u32, 0, 50_000, 20_000]) {
            assert!(count.abs_diff(expected) < 900, "{counts:?}");
        }
    }

    #[test]
    fn member_without_weight_is_never_drawn() {
        let mut alias = Alias::default();
        alias.rebuild(2, &[Member(0), Member(1)], |member| f64::from(member.0));
        let cell = alias.cells[0];
        assert_eq!((cell.member, cell.alias, cell.is_own(0)), (Member(0), Member(1), false));
    }

    #[test]
    fn missing_weights_are_uniform() {
        let members: Vec<_> = (0..2).map(Member).collect();
        let mut alias = Alias::default();
        assert_eq!(alias.sample(&mut Rng::seed_from_u64(1)), None);
        alias.rebuild(2, &members, |_| 0.0);
        let mut rng = Rng::seed_from_u64(1);
        let first = (0..1000).filter(|_| alias.sample(&mut rng) == Some(Member(0))).count();
        assert!(first.abs_diff(500) < 100, "{first}");
    }
}
