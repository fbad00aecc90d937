//! Linked FIFO lists over a shared [`Slab`] of items: any number of lists, without an allocation per list or item. A
//! slab made by [`Slab::with_room`] never allocates later. Queues of waiting tasks use it on polling cores.
//!
//! A *slot* is an index into the slab's array. Each slot has one link, to the next slot of its list or of the list of
//! free slots.

/// Link of a list's last item.
const END: u32 = u32::MAX;

/// Numbered slots for items. A slab of fixed size first reuses the slot that has been free for the longest time. The items
/// of a long queue then lie side by side, and the CPU prefetches them. A slab that grows first reuses the last freed slot.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// Free slots, the next one first.
    free: Fifo,
    /// True if a full slab allocates another slot.
    grows: bool,
}

/// Content of a slot.
#[derive(Clone, Debug)]
struct Entry<T> {
    /// The item; `None` in a free slot.
    item: Option<T>,
    /// Next slot in the list, or next free slot.
    next: u32,
}

/// FIFO list of slots of one [`Slab`]. A slot is in at most one list.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    /// Slot of the first item; [`END`] if the list is empty.
    first: u32,
    /// Slot of the last item; [`END`] if the list is empty.
    last: u32,
    len: u32,
}

/// Creates an empty slab that grows, for simulators and emulations.
impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Fifo::EMPTY, grows: true }
    }
}

impl<T> Slab<T> {
    /// Creates a slab with `room` slots, which never grows. Allocates all memory now.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        let next = |slot: usize| if slot + 1 < room { slot as u32 + 1 } else { END };
        let entries = (0..room).map(|slot| Entry { item: None, next: next(slot) }).collect();
        let free = match room {
            0 => Fifo::EMPTY,
            _ => Fifo { first: 0, last: room as u32 - 1, len: room as u32 },
        };
        Self { entries, free, grows: false }
    }

    /// Returns the number of slots, in use or free.
    #[must_use]
    pub fn room(&self) -> usize {
        self.entries.len()
    }

    /// Stores an item in no list, and returns its slot.
    ///
    /// # Errors
    /// Returns the item if all slots are in use.
    #[inline]
    pub fn insert(&mut self, item: T) -> Result<u32, T> {
        if self.free.is_empty() && !self.grow() {
            return Err(item);
        }
        let entry = &mut self.entries[self.free.first as usize];
        let next = std::mem::replace(&mut entry.next, END);
        entry.item = Some(item);
        Ok(self.free.unlink(next))
    }

    /// Like [`Slab::insert`], for a slab that grows.
    ///
    /// # Panics
    /// If the slab does not grow and all slots are in use.
    #[inline]
    pub fn add(&mut self, item: T) -> u32 {
        match self.insert(item) {
            Ok(slot) => slot,
            Err(_) => panic!("all slots are in use"),
        }
    }

    /// Adds a free slot to a full slab. Returns false if the slab may not grow.
    #[cold]
    fn grow(&mut self) -> bool {
        let may_grow = self.grows && self.entries.len() < END as usize;
        if may_grow {
            let slot = self.entries.len() as u32;
            self.entries.push(Entry { item: None, next: END });
            self.release(slot);
        }
        may_grow
    }

    /// Removes the item of a slot that is in no list, and frees the slot. Returns `None` if it has no item.
    #[inline]
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.entries.get_mut(slot as usize)?;
        let item = entry.item.take()?;
        entry.next = END;
        self.release(slot);
        Some(item)
    }

    /// Adds an empty slot without a link to the free ones. A slab that grows reuses it first, other slabs last.
    #[inline]
    fn release(&mut self, slot: u32) {
        let mut free = self.free; // a copy, because `link` borrows the slab
        if self.grows && !free.is_empty() {
            self.entries[slot as usize].next = std::mem::replace(&mut free.first, slot);
            free.len += 1;
        } else {
            free.link(slot, self);
        }
        self.free = free;
    }

    /// Returns the item of a slot, if it has one.
    #[inline]
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.item.as_ref()
    }

    /// Returns the item of a slot for changes, if it has one.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.item.as_mut()
    }

    /// Appends an item to a list.
    ///
    /// # Errors
    /// Returns the item if all slots are in use.
    #[inline]
    pub fn push(&mut self, list: &mut Fifo, item: T) -> Result<(), T> {
        let slot = self.insert(item)?;
        list.link(slot, self);
        Ok(())
    }

    /// Removes the first item of a list, if any, and frees its slot.
    #[inline]
    pub fn pop(&mut self, list: &mut Fifo) -> Option<T> {
        let entry = self.entries.get_mut(list.first as usize)?;
        let (item, next) = (entry.item.take(), std::mem::replace(&mut entry.next, END));
        self.release(list.unlink(next));
        item
    }

    /// Iterates over the items of a list in order, for example to prefetch them.
    #[inline]
    pub fn iter(&self, list: Fifo) -> impl Iterator<Item = &T> {
        let mut slot = list.first;
        std::iter::from_fn(move || {
            let entry = self.entries.get(slot as usize)?;
            slot = entry.next;
            entry.item.as_ref()
        })
    }
}

impl Fifo {
    /// The empty list.
    pub const EMPTY: Self = Self { first: END, last: END, len: 0 };

    /// Returns the number of items.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the list is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first == END
    }

    /// Returns the first slot, if any.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        (self.first != END).then_some(self.first)
    }

    /// Appends a slot to the list.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn push<T>(&mut self, slot: u32, slab: &mut Slab<T>) {
        slab.entries[slot as usize].next = END;
        self.link(slot, slab);
    }

    /// Appends a slot whose link is already cleared.
    #[inline]
    fn link<T>(&mut self, slot: u32, slab: &mut Slab<T>) {
        match slab.entries.get_mut(self.last as usize) {
            Some(last) => last.next = slot,
            None => self.first = slot,
        }
        self.last = slot;
        self.len += 1;
    }

    /// Removes the first slot from the list, if any; its item stays there.
    #[inline]
    pub fn pop<T>(&mut self, slab: &Slab<T>) -> Option<u32> {
        let next = slab.entries.get(self.first as usize)?.next;
        Some(self.unlink(next))
    }

    /// Replaces the first slot by `next` and returns the old one.
    #[inline]
    fn unlink(&mut self, next: u32) -> u32 {
        if next == END {
            self.last = END;
        }
        self.len -= 1;
        std::mem::replace(&mut self.first, next)
    }
}

/// # Panics
/// If the slot is empty.
impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("the slot holds an item")
    }
}

/// # Panics
/// If the slot is empty.
impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).expect("the slot holds an item")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A step on one of three lists.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Appends an item.
        Push,
        /// Removes the first item.
        Pop,
        /// Moves the first slot to the end of the next list.
        Move,
    }

    /// Random steps, each with the index of its list.
    fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
        let step = prop_oneof![3 => Just(Step::Push), 2 => Just(Step::Pop), 1 => Just(Step::Move)];
        proptest::collection::vec((0..3_usize, step), 0..300)
    }

    /// Runs the steps on lists and on models of them; `room` is the slab's limit. Returns the largest number of
    /// items.
    fn compare(
        mut slab: Slab<usize>,
        room: usize,
        steps: Vec<(usize, Step)>,
    ) -> Result<usize, TestCaseError> {
        let mut lists = [Fifo::EMPTY; 3];
        let mut models = [const { VecDeque::new() }; 3];
        let mut most = 0;
        for (item, (index, step)) in steps.into_iter().enumerate() {
            match step {
                Step::Push => {
                    let is_full = models.iter().map(VecDeque::len).sum::<usize>() == room;
                    let expected = if is_full { Err(item) } else { Ok(()) };
                    prop_assert_eq!(slab.push(&mut lists[index], item), expected);
                    models[index].extend((!is_full).then_some(item));
                }
                Step::Pop => {
                    prop_assert_eq!(slab.pop(&mut lists[index]), models[index].pop_front())
                }
                Step::Move => {
                    let moved = lists[index].pop(&slab);
                    prop_assert_eq!(moved.map(|slot| slab[slot]), models[index].front().copied());
                    moved.inspect(|&slot| lists[(index + 1) % 3].push(slot, &mut slab));
                    let moved = models[index].pop_front();
                    models[(index + 1) % 3].extend(moved);
                }
            }
            for (list, model) in lists.iter().zip(&models) {
                prop_assert!(slab.iter(*list).eq(model));
                prop_assert_eq!(list.len() as usize, model.len());
                prop_assert_eq!(list.is_empty(), model.is_empty());
                prop_assert_eq!(list.first().map(|slot| slab[slot]), model.front().copied());
            }
            most = most.max(models.iter().map(VecDeque::len).sum());
        }
        Ok(most)
    }

    proptest! {
        // promise: scheduling.3
        #[test]
        fn lists_keep_their_order_and_share_the_room(steps in steps(), room in 0..12_usize) {
            prop_assert!(compare(Slab::with_room(room), room, steps)? <= room);
        }

        #[test]
        fn a_slab_that_grows_takes_everything(steps in steps()) {
            compare(Slab::default(), usize::MAX, steps)?;
        }
    }

    #[test]
    fn growing_slab_reuses_last_freed_slot_first() {
        let mut slab = Slab::default();
        let slots: Vec<_> = ["a", "b", "c"].map(|item| slab.add(item)).into();
        assert_eq!(slots, [0, 1, 2]);
        assert_eq!((slab.remove(1), slab.remove(1), slab.remove(0)), (Some("b"), None, Some("a")));
        assert_eq!((slab.get(1), slab.get(7)), (None, None));
        assert_eq!([slab.insert("d"), slab.insert("e"), slab.insert("f")], [Ok(0), Ok(1), Ok(3)]);
        *slab.get_mut(3).unwrap() = "g";
        assert_eq!((slab[0], slab[2], slab[3], slab.room()), ("d", "c", "g", 4));
    }

    #[test]
    fn fixed_slab_reuses_first_freed_slot_first() {
        let mut slab = Slab::with_room(4);
        let slots = ["a", "b", "c"].map(|item| slab.insert(item));
        assert_eq!(slots, [Ok(0), Ok(1), Ok(2)]);
        assert_eq!((slab.remove(1), slab.remove(0)), (Some("b"), Some("a")));
        let slots = ["d", "e", "f", "g"].map(|item| slab.insert(item));
        assert_eq!(slots, [Ok(3), Ok(1), Ok(0), Err("g")]);
    }

    #[test]
    fn slab_without_slots_takes_nothing() {
        let (mut slab, mut list) = (Slab::with_room(0), Fifo::EMPTY);
        assert_eq!((slab.push(&mut list, 'a'), slab.pop(&mut list)), (Err('a'), None));
        assert_eq!((slab.insert('b'), list.len(), list.first()), (Err('b'), 0, None));
    }
}
