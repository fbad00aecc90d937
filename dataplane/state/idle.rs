//! The idle list of Horus 3.3: members believed idle, with O(1) insertion, removal of any, and removal
//! of the last. An array of members, an index from member to place, and a count.

use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use super::region::Slice;
use super::view::Member;

const ABSENT: u16 = u16::MAX;

/// A set of members. One core writes it, anybody may read it.
#[derive(Clone, Debug)]
pub struct IdleList {
    /// One word.
    count: Slice<AtomicU16>,
    members: Slice<AtomicU16>,
    places: Slice<AtomicU16>,
}

impl IdleList {
    /// An empty list over zeroed or used memory: one word for the count, and as many for the members
    /// as for their places.
    #[must_use]
    pub fn new(
        count: Slice<AtomicU16>,
        members: Slice<AtomicU16>,
        places: Slice<AtomicU16>,
    ) -> Self {
        assert!(members.len() == places.len() && members.len() < usize::from(ABSENT));
        count[0].store(0, Relaxed);
        for place in &*places {
            place.store(ABSENT, Relaxed);
        }
        Self { count, members, places }
    }

    /// How many members are in it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count[0].load(Relaxed))
    }

    /// No member is in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `member` is in it.
    #[inline]
    #[must_use]
    pub fn contains(&self, member: Member) -> bool {
        self.places[member.index()].load(Relaxed) != ABSENT
    }

    /// The member at a place below [`IdleList::len`].
    #[inline]
    #[must_use]
    pub fn at(&self, place: usize) -> Member {
        Member(self.members[place].load(Relaxed))
    }

    /// Puts `member` last; false when it was in already.
    #[inline]
    pub fn insert(&mut self, member: Member) -> bool {
        if self.contains(member) {
            return false;
        }
        let count = self.len();
        self.put(member, count);
        self.count[0].store(count as u16 + 1, Relaxed);
        true
    }

    /// Takes `member` out, the last member takes its place (Horus 3.3); false when it was not in.
    #[inline]
    pub fn remove(&mut self, member: Member) -> bool {
        let place = self.places[member.index()].load(Relaxed);
        if place == ABSENT {
            return false;
        }
        let last = self.len() - 1;
        self.put(self.at(last), usize::from(place));
        self.places[member.index()].store(ABSENT, Relaxed);
        self.count[0].store(last as u16, Relaxed);
        true
    }

    /// Takes out the member added last.
    #[inline]
    pub fn take_last(&mut self) -> Option<Member> {
        let last = self.len().checked_sub(1)?;
        let member = self.at(last);
        self.places[member.index()].store(ABSENT, Relaxed);
        self.count[0].store(last as u16, Relaxed);
        Some(member)
    }

    #[inline]
    fn put(&mut self, member: Member, place: usize) {
        self.members[place].store(member.0, Relaxed);
        self.places[member.index()].store(place as u16, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::region::Region;
    use proptest::prelude::*;

    fn list(n: usize) -> IdleList {
        let region = Region::heap(64 + 4 * n);
        IdleList::new(region.slice(0, 1), region.slice(64, n), region.slice(64 + 2 * n, n))
    }

    proptest! {
        /// The list behaves as a plain vector with swap_remove does.
        #[test]
        fn behaves_as_a_vector(
            steps in proptest::collection::vec((0..3_u8, 0..20_u16), 0..300),
        ) {
            let mut list = list(20);
            let mut model: Vec<Member> = Vec::new();
            for (step, member) in steps {
                let member = Member(member);
                match step {
                    0 => {
                        let new = !model.contains(&member);
                        if new {
                            model.push(member);
                        }
                        prop_assert_eq!(list.insert(member), new);
                    }
                    1 => {
                        let place = model.iter().position(|&m| m == member);
                        if let Some(place) = place {
                            model.swap_remove(place);
                        }
                        prop_assert_eq!(list.remove(member), place.is_some());
                    }
                    _ => prop_assert_eq!(list.take_last(), model.pop()),
                }
                prop_assert_eq!(list.len(), model.len());
                for (place, &member) in model.iter().enumerate() {
                    prop_assert_eq!(list.at(place), member);
                }
                for member in (0..20).map(Member) {
                    prop_assert_eq!(list.contains(member), model.contains(&member));
                }
            }
        }
    }
}
