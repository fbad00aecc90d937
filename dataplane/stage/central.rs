//! Central queues: tasks that wait, in order, while no member may have them.
//!
//! The stages decide which tasks wait and which of them may go; the packets lie in a [`CentralQueue`] of whoever
//! runs the stages. [`Backlog`] is what the stages know of one.

use std::collections::VecDeque;

/// What becomes of a task that finds its pool's queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// It is dropped and counted.
    #[default]
    Drop,
    /// It is given back to its client, undone.
    Refuse,
}

/// First in, first out, with a bound. All memory is taken when it is made.
#[derive(Debug)]
pub struct CentralQueue<T> {
    items: VecDeque<T>,
    bound: usize,
}

impl<T> CentralQueue<T> {
    /// An empty queue of at most `bound` items; with a bound of 0 it takes none, and no memory.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        Self { items: VecDeque::with_capacity(bound), bound }
    }

    /// Puts an item last.
    ///
    /// # Errors
    /// The item, when the queue is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Takes the item that has waited longest.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// The item that has waited longest, to be looked at or changed.
    #[inline]
    pub fn first_mut(&mut self) -> Option<&mut T> {
        self.items.front_mut()
    }

    /// All of them, the one that has waited longest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    /// How many wait.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// No more may wait.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.bound
    }

    /// How many may wait.
    #[inline]
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }
}

/// A pool's queue as the stages see it: how many tasks wait, and whether one more may.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    bound: usize,
    overflow: Overflow,
    waiting: usize,
}

/// Whether a task has found room to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It waits.
    Waits,
    /// It is dropped.
    Drops,
    /// It goes back to its client.
    Refuses,
}

impl Backlog {
    /// An empty queue for at most `bound` tasks.
    #[must_use]
    pub fn new(bound: usize, overflow: Overflow) -> Self {
        Self { bound, overflow, waiting: 0 }
    }

    /// How many tasks may wait.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Says anew how many tasks may wait, and what becomes of others; those that wait do so on.
    pub fn set(&mut self, bound: usize, overflow: Overflow) {
        (self.bound, self.overflow) = (bound, overflow);
    }

    /// How many tasks wait.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// One more task would wait. What is refused must be a task's first packet: its client learns of it once.
    pub(super) fn join(&mut self, first: bool) -> Room {
        if self.waiting < self.bound {
            self.waiting += 1;
            Room::Waits
        } else if first && self.overflow == Overflow::Refuse {
            Room::Refuses
        } else {
            Room::Drops
        }
    }

    /// A task waits no longer.
    pub(super) fn leave(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_in_order_and_a_full_queue_gives_them_back() {
        let mut queue = CentralQueue::new(3);
        for round in 0..10 {
            for item in 0..3 {
                assert_eq!(queue.push((round, item)), Ok(()));
            }
            assert!(queue.is_full());
            assert_eq!(queue.push((round, 3)), Err((round, 3)));
            assert_eq!(queue.first_mut(), Some(&mut (round, 0)));
            let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            assert_eq!(left, [(round, 0), (round, 1), (round, 2)]);
        }
        assert!(queue.is_empty() && queue.bound() == 3);
        assert_eq!(CentralQueue::new(0).push(1), Err(1));
    }
}
