//! Sets of members with equal queue lengths. The n-th member of a length, in the order of the members' numbers, is found
//! without a sort.

use crate::state::Member;

/// Number of distinct lengths. All longer queues count as equal.
const LENGTHS: usize = 64;
/// The last length, of all queues that are at least this long.
pub const LONGEST: u32 = LENGTHS as u32 - 1;
/// Length of a member in no set.
const ABSENT: u8 = u8::MAX;
/// Members in a word of a set.
const WORD: usize = u64::BITS as usize;

/// Members by queue length.
#[derive(Clone, Debug, Default)]
pub struct LengthSets {
    /// Length of each member's queue; [`ABSENT`] if it is in no set.
    lengths: Vec<u8>,
    /// Number of members of each length.
    counts: Vec<u16>,
    /// The sets of all lengths, one after another. Each has a bit for every member.
    words: Vec<u64>,
}

impl LengthSets {
    /// Sets the number of members and empties all sets. Allocates nothing if it had as many members before.
    pub fn clear(&mut self, members: usize) {
        self.lengths.clear();
        self.lengths.resize(members, ABSENT);
        self.counts.clear();
        self.counts.resize(LENGTHS, 0);
        self.words.clear();
        self.words.resize(LENGTHS * members.div_ceil(WORD), 0);
    }

    /// Puts a member into the set of its queue's length.
    #[inline]
    pub fn insert(&mut self, member: Member, queue: u32) {
        let (from, to) = (self.lengths[member.index()], queue.min(LONGEST) as u8);
        if from == to {
            return;
        }
        if from != ABSENT {
            self.flip(from, member);
            self.counts[usize::from(from)] -= 1;
        }
        self.lengths[member.index()] = to;
        self.flip(to, member);
        self.counts[usize::from(to)] += 1;
    }

    /// Moves a member to the set of another length. Does nothing if the member is in no set.
    #[inline]
    pub fn change(&mut self, member: Member, queue: u32) {
        if self.lengths[member.index()] != ABSENT {
            self.insert(member, queue);
        }
    }

    /// Inverts the member's bit in the set of a length.
    #[inline]
    fn flip(&mut self, length: u8, member: Member) {
        let first = usize::from(length) * self.words_of_set();
        self.words[first + member.index() / WORD] ^= 1 << (member.index() % WORD);
    }

    /// Returns the number of words of a set.
    #[inline]
    fn words_of_set(&self) -> usize {
        self.words.len() / LENGTHS
    }

    /// Returns each length that some member has, in ascending order, with the number of its members.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (u32, u16)> {
        (0..).zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns the member of a length at position `nth`, in the order of their numbers. `None` if the length has at
    /// most `nth` members.
    #[inline]
    pub fn get(&self, length: u32, nth: usize) -> Option<Member> {
        let (words, mut left) = (self.words_of_set(), nth as u32);
        let set = &self.words[length as usize * words..][..words];
        for (place, &word) in set.iter().enumerate() {
            let members = word.count_ones();
            if left < members {
                let mut rest = word;
                (0..left).for_each(|_| rest &= rest - 1); // removes the lowest member
                return Some(Member((place * WORD) as u16 + rest.trailing_zeros() as u16));
            }
            left -= members;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMBERS: u16 = 130; // two words and a part of a third

    proptest! {
        /// Each set equals a scan of plain queues after any sequence of changes.
        // promise: scheduling.5
        #[test]
        fn sets_equal_a_scan(
            present in proptest::collection::vec(any::<bool>(), usize::from(MEMBERS)),
            changes in proptest::collection::vec((0..MEMBERS, 0..80_u32), 0..400),
        ) {
            let mut queues = [0; MEMBERS as usize];
            let is_present = |member: Member| present[member.index()];
            let mut sets = LengthSets::default();
            sets.clear(MEMBERS.into());
            (0..MEMBERS).map(Member).filter(|m| is_present(*m)).for_each(|m| sets.insert(m, 0));
            for (member, queue) in changes {
                queues[usize::from(member)] = queue;
                sets.change(Member(member), queue);
            }
            let mut counts = Vec::new();
            for length in 0..=LONGEST {
                let scan: Vec<Member> = (0..MEMBERS)
                    .map(Member)
                    .filter(|m| is_present(*m) && queues[m.index()].min(LONGEST) == length)
                    .collect();
                for (nth, member) in scan.iter().enumerate() {
                    prop_assert_eq!(sets.get(length, nth), Some(*member));
                }
                prop_assert_eq!(sets.get(length, scan.len()), None);
                counts.extend((!scan.is_empty()).then_some((length, scan.len() as u16)));
            }
            prop_assert_eq!(sets.iter().collect::<Vec<_>>(), counts);
        }
    }
}
