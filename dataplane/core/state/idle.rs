//! Idle list of Horus 3.3 (NSDI 2024): members estimated idle. Insertion, removal of any member and removal of
//! the last member take O(1). It consists of an array of members, an index from member to place in that array,
//! and a count.
//!
//! The authors' switch program loses a worker for ever after one lost reply. Here insertion and removal are idempotent,
//! and every reply repeats the worker's idleness.

use std::hint::select_unpredictable;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use super::layout::Layout;
use super::member::Member;
use super::region::{Region, Slice};

/// Place of a member outside the list.
const ABSENT: u16 = u16::MAX;
/// Place of an excluded member, which cannot be inserted.
const EXCLUDED: u16 = u16::MAX - 1;

/// Idle members of a pool by the estimate of one core, which writes the list. Any thread may read it.
#[derive(Clone, Debug)]
pub struct IdleList {
    /// Number of members; one word.
    count: Slice<AtomicU16>,
    /// Members in order; the first `count` are valid.
    members: Slice<AtomicU16>,
    /// Place of each member in `members`, [`ABSENT`] or [`EXCLUDED`].
    places: Slice<AtomicU16>,
}

/// Words of the list, borrowed for a run of changes (see [`super::words`]).
#[derive(Debug)]
pub struct IdleWords<'a> {
    /// Number of members, for readers.
    count: &'a AtomicU16,
    /// Value of `count`, in a register.
    len: u16,
    /// Members in order.
    members: &'a [AtomicU16],
    /// Place of each member.
    places: &'a [AtomicU16],
}

impl IdleList {
    /// Creates the empty list of `core` for `pool` in a region.
    ///
    /// # Panics
    /// If a place in the list could equal one of the two marks: the pool has 65534 members or more.
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

    /// Returns the list with its present content.
    #[must_use]
    pub(super) fn of(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let (place, members) = (&layout.cores[core].idle[pool], layout.pools[pool].members);
        Self {
            count: region.slice(place.count, 1),
            members: region.slice(place.members, members),
            places: region.slice(place.places, members),
        }
    }

    /// Returns the number of members.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count[0].load(Relaxed))
    }

    /// Returns true if the list is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if `member` is on the list.
    #[inline]
    #[must_use]
    pub fn contains(&self, member: Member) -> bool {
        self.places[member.index()].load(Relaxed) < EXCLUDED
    }

    /// Like [`IdleList::contains`], for a list that its core may be changing or has not created yet.
    #[must_use]
    pub(super) fn shows(&self, member: Member) -> bool {
        let place = usize::from(self.places[member.index()].load(Relaxed));
        place < self.len().min(self.members.len()) && self.at(place) == member
    }

    /// Returns the member at a place below [`IdleList::len`].
    #[inline]
    #[must_use]
    pub fn at(&self, place: usize) -> Member {
        Member(self.members[place].load(Relaxed))
    }

    /// Borrows the words for a run of changes.
    #[inline(always)]
    pub fn words(&mut self) -> IdleWords<'_> {
        self.words_of(self.places.len())
    }

    /// Like [`IdleList::words`], with a number of members that the compiler need not load.
    #[inline(always)]
    pub fn words_of(&mut self, members: usize) -> IdleWords<'_> {
        IdleWords {
            count: &self.count[0],
            len: self.count[0].load(Relaxed),
            members: &self.members[..members],
            places: &self.places[..members],
        }
    }

    /// Appends `member`. Returns false if it is already on the list or excluded.
    #[inline]
    pub fn insert(&mut self, member: Member) -> bool {
        self.words().insert(member)
    }

    /// Removes `member`; the last member takes its place (Horus 3.3). Returns false if it was not on the
    /// list.
    #[inline]
    pub fn remove(&mut self, member: Member) -> bool {
        self.words().remove(member)
    }

    /// Removes and returns the last member; `None` if the list is empty.
    #[inline]
    pub fn take_last(&mut self) -> Option<Member> {
        self.words().take_last()
    }

    /// Removes `member` if it is on the list, and keeps it off.
    pub fn exclude(&mut self, member: Member) {
        self.remove(member);
        self.places[member.index()].store(EXCLUDED, Relaxed);
    }

    /// Allows `member` on the list again.
    pub fn include(&mut self, member: Member) {
        if !self.contains(member) {
            self.places[member.index()].store(ABSENT, Relaxed);
        }
    }
}

impl IdleWords<'_> {
    /// Same as [`IdleList::len`].
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Same as [`IdleList::is_empty`].
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Same as [`IdleList::at`].
    #[inline(always)]
    #[must_use]
    pub fn at(&self, place: usize) -> Member {
        Member(self.members[place].load(Relaxed))
    }

    /// Same as [`IdleList::contains`].
    #[inline(always)]
    #[must_use]
    pub fn contains(&self, member: Member) -> bool {
        self.places[member.index()].load(Relaxed) < EXCLUDED
    }

    /// Inserts `member` if it is idle and not excluded; removes it if it is not idle.
    ///
    /// A member already on the list is rare, because policies pick idle members first: that case is a branch.
    /// For an absent member `idle` is unpredictable: that case has no branch.
    #[inline(always)]
    pub fn note(&mut self, member: Member, idle: bool) {
        let place = &self.places[member.index()];
        if place.load(Relaxed) != ABSENT {
            // On the list, or excluded.
            if !idle {
                // A copy, because a variable whose address goes to a call does not stay in registers.
                let list = Self { ..*self };
                self.len = list.remove_rarely(member);
            }
            return;
        }
        self.members[self.len()].store(member.0, Relaxed); // not part of the list until the count grows
        place.store(select_unpredictable(idle, self.len, ABSENT), Relaxed);
        self.set_len(self.len + u16::from(idle));
    }

    /// Removes `member` and returns the new length. Not inlined: see [`IdleWords::note`].
    #[cold]
    #[inline(never)]
    fn remove_rarely(mut self, member: Member) -> u16 {
        self.remove(member);
        self.len
    }

    /// Same as [`IdleList::insert`].
    #[inline(always)]
    pub fn insert(&mut self, member: Member) -> bool {
        if self.places[member.index()].load(Relaxed) != ABSENT {
            return false;
        }
        self.put(member, self.len());
        self.set_len(self.len + 1);
        true
    }

    /// Same as [`IdleList::remove`].
    #[inline(always)]
    pub fn remove(&mut self, member: Member) -> bool {
        let place = self.places[member.index()].load(Relaxed);
        if place >= EXCLUDED {
            return false;
        }
        // The last member moves to the free place.
        let last = self.len - 1;
        self.put(Member(self.members[usize::from(last)].load(Relaxed)), usize::from(place));
        self.places[member.index()].store(ABSENT, Relaxed);
        self.set_len(last);
        true
    }

    /// Same as [`IdleList::take_last`].
    #[inline(always)]
    pub fn take_last(&mut self) -> Option<Member> {
        let last = self.len.checked_sub(1)?;
        let member = Member(self.members[usize::from(last)].load(Relaxed));
        self.places[member.index()].store(ABSENT, Relaxed);
        self.set_len(last);
        Some(member)
    }

    /// Sets the length, also for readers.
    #[inline(always)]
    fn set_len(&mut self, len: u16) {
        self.len = len;
        self.count.store(len, Relaxed);
    }

    /// Writes a member and its place.
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

    /// Creates the empty list of a pool with `n` members.
    fn list(n: usize) -> IdleList {
        let (cores, pools, servers, ports, pinned) = (1, vec![n], 0, 0, 0);
        let layout = Layout::new(&TableShape { cores, pools, servers, ports, pinned, nodes: 0 });
        IdleList::new(&Region::heap(layout.len), &layout, 0, 0)
    }

    proptest! {
        /// The list behaves like a plain vector with `swap_remove`.
        #[test]
        fn behaves_as_a_vector(
            steps in proptest::collection::vec((0..7_u8, 0..20_u16), 0..300),
        ) {
            let mut list = list(20);
            let mut model: Vec<Member> = Vec::new(); // expected members, in order
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
                        excluded.retain(|&excluded| excluded != member);
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
