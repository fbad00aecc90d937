//! The idle list of Horus 3.3: members believed idle, with O(1) insertion, removal of any, and removal
//! of the last. An array of members, an index from member to place, and a count.

use std::hint::select_unpredictable;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use super::layout::Layout;
use super::member::Member;
use super::region::{Region, Slice};

/// Not in the list.
const ABSENT: u16 = u16::MAX;
/// Not in the list, and not to come in.
const EXCLUDED: u16 = u16::MAX - 1;

/// A set of members. One core writes it, anybody may read it.
#[derive(Clone, Debug)]
pub struct IdleList {
    /// One word.
    count: Slice<AtomicU16>,
    members: Slice<AtomicU16>,
    places: Slice<AtomicU16>,
}

/// The list's words, borrowed for a run of changes (see [`super::words`]).
#[derive(Debug)]
pub struct IdleWords<'a> {
    count: &'a AtomicU16,
    /// What it says.
    len: u16,
    members: &'a [AtomicU16],
    places: &'a [AtomicU16],
}

impl IdleList {
    /// That of `core` on `pool` in a region, emptied.
    #[must_use]
    pub fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let list = Self::of(region, layout, core, pool);
        assert!(list.members.len() < usize::from(EXCLUDED));
        list.count[0].store(0, Relaxed);
        for place in &*list.places {
            place.store(ABSENT, Relaxed);
        }
        list
    }

    /// The same as its core has it.
    #[must_use]
    pub(super) fn of(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let (place, members) = (&layout.cores[core].idle[pool], layout.pools[pool].members);
        Self {
            count: region.slice(place.count, 1),
            members: region.slice(place.members, members),
            places: region.slice(place.places, members),
        }
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
        self.places[member.index()].load(Relaxed) < EXCLUDED
    }

    /// As [`IdleList::contains`], of a list that its core may not have made yet, or is changing.
    #[must_use]
    pub(super) fn shows(&self, member: Member) -> bool {
        let place = usize::from(self.places[member.index()].load(Relaxed));
        place < self.len().min(self.members.len()) && self.at(place) == member
    }

    /// The member at a place below [`IdleList::len`].
    #[inline]
    #[must_use]
    pub fn at(&self, place: usize) -> Member {
        Member(self.members[place].load(Relaxed))
    }

    /// The words, for a run of changes.
    #[inline(always)]
    pub fn words(&mut self) -> IdleWords<'_> {
        self.words_of(self.places.len())
    }

    /// The words of a list of so many members, which the compiler need not look up.
    #[inline(always)]
    pub fn words_of(&mut self, members: usize) -> IdleWords<'_> {
        IdleWords {
            count: &self.count[0],
            len: self.count[0].load(Relaxed),
            members: &self.members[..members],
            places: &self.places[..members],
        }
    }

    /// Puts `member` last; false when it was in already, or is excluded.
    #[inline]
    pub fn insert(&mut self, member: Member) -> bool {
        self.words().insert(member)
    }

    /// Takes `member` out, the last member takes its place (Horus 3.3); false when it was not in.
    #[inline]
    pub fn remove(&mut self, member: Member) -> bool {
        self.words().remove(member)
    }

    /// Takes out the member added last.
    #[inline]
    pub fn take_last(&mut self) -> Option<Member> {
        self.words().take_last()
    }

    /// Takes `member` out if it is in, and keeps it out.
    pub fn exclude(&mut self, member: Member) {
        self.remove(member);
        self.places[member.index()].store(EXCLUDED, Relaxed);
    }

    /// Lets `member` come in again.
    pub fn include(&mut self, member: Member) {
        if !self.contains(member) {
            self.places[member.index()].store(ABSENT, Relaxed);
        }
    }
}

impl IdleWords<'_> {
    /// As [`IdleList::len`].
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// As [`IdleList::is_empty`].
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`IdleList::at`].
    #[inline(always)]
    #[must_use]
    pub fn at(&self, place: usize) -> Member {
        Member(self.members[place].load(Relaxed))
    }

    /// As [`IdleList::contains`].
    #[inline(always)]
    #[must_use]
    pub fn contains(&self, member: Member) -> bool {
        self.places[member.index()].load(Relaxed) < EXCLUDED
    }

    /// In when idle, out when not. That a member is in already and stays, or is taken out, is rare, since
    /// idle ones are taken to be used; whether one that is out comes in is anybody's guess, and done without
    /// a branch.
    #[inline(always)]
    pub fn note(&mut self, member: Member, idle: bool) {
        let place = &self.places[member.index()];
        if place.load(Relaxed) != ABSENT {
            if !idle {
                // By value: what lives in memory for a call is not kept in registers elsewhere.
                let list = Self { ..*self };
                self.len = list.without(member);
            }
            return;
        }
        self.members[self.len()].store(member.0, Relaxed); // counts if the count says so
        place.store(select_unpredictable(idle, self.len, ABSENT), Relaxed);
        self.set_len(self.len + u16::from(idle));
    }

    /// Takes `member` out, and returns how many are left.
    #[cold]
    #[inline(never)]
    fn without(mut self, member: Member) -> u16 {
        self.remove(member);
        self.len
    }

    /// As [`IdleList::insert`].
    #[inline(always)]
    pub fn insert(&mut self, member: Member) -> bool {
        if self.places[member.index()].load(Relaxed) != ABSENT {
            return false;
        }
        self.put(member, self.len());
        self.set_len(self.len + 1);
        true
    }

    /// As [`IdleList::remove`].
    #[inline(always)]
    pub fn remove(&mut self, member: Member) -> bool {
        let place = self.places[member.index()].load(Relaxed);
        if place >= EXCLUDED {
            return false;
        }
        let last = self.len - 1;
        self.put(Member(self.members[usize::from(last)].load(Relaxed)), usize::from(place));
        self.places[member.index()].store(ABSENT, Relaxed);
        self.set_len(last);
        true
    }

    /// As [`IdleList::take_last`].
    #[inline(always)]
    pub fn take_last(&mut self) -> Option<Member> {
        let last = self.len.checked_sub(1)?;
        let member = Member(self.members[usize::from(last)].load(Relaxed));
        self.places[member.index()].store(ABSENT, Relaxed);
        self.set_len(last);
        Some(member)
    }

    #[inline(always)]
    fn set_len(&mut self, len: u16) {
        self.len = len;
        self.count.store(len, Relaxed);
    }

    #[inline(always)]
    fn put(&mut self, member: Member, place: usize) {
        self.members[place].store(member.0, Relaxed);
        self.places[member.index()].store(place as u16, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::layout::TableShape;
    use proptest::prelude::*;

    fn list(n: usize) -> IdleList {
        let (cores, pools, servers, ports, pinned) = (1, vec![n], 0, 0, 0);
        let layout = Layout::new(&TableShape { cores, pools, servers, ports, pinned, nodes: 0 });
        IdleList::new(&Region::heap(layout.len), &layout, 0, 0)
    }

    proptest! {
        /// The list behaves as a plain vector with swap_remove does.
        #[test]
        fn behaves_as_a_vector(
            steps in proptest::collection::vec((0..7_u8, 0..20_u16), 0..300),
        ) {
            let mut list = list(20);
            let mut model: Vec<Member> = Vec::new();
            let mut excluded = Vec::new();
            for (step, member) in steps {
                let member = Member(member);
                match step {
                    0 => {
                        let new = !model.contains(&member) && !excluded.contains(&member);
                        if new {
                            model.push(member);
                        }
                        prop_assert_eq!(list.insert(member), new);
                    }
                    2 => {
                        list.words().note(member, true);
                        if !model.contains(&member) && !excluded.contains(&member) {
                            model.push(member);
                        }
                    }
                    3 => {
                        list.words().note(member, false);
                        if let Some(place) = model.iter().position(|&m| m == member) {
                            model.swap_remove(place);
                        }
                    }
                    4 => {
                        list.exclude(member);
                        excluded.push(member);
                        if let Some(place) = model.iter().position(|&m| m == member) {
                            model.swap_remove(place);
                        }
                    }
                    5 => {
                        list.include(member);
                        excluded.retain(|&other| other != member);
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
