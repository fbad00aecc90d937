//! Dispatcher's record of a channel's slots. A channel is the shared memory of one worker. A slot is one task's part of
//! the channel's memory area. The notice that announces a task is elsewhere, at an index given by the task's number.
//!
//! A worker that completes its tasks in order frees the slots in order, so a task's number gives its slot. A worker
//! whose tasks share its core completes them in any order. Such a worker is *listing*: it publishes the slot of each
//! completed task, and the dispatcher keeps a list of free slots.
//!
//! A task's *number* is the number of tasks given before it. A completion's *count* is the number of completions before
//! it. The two are equal for a worker that completes its tasks in order.

/// Position of a completed task in its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskPosition {
    /// Number of the task, in the order in which the dispatcher gives tasks.
    pub number: u64,
    /// Index of the task's slot.
    pub slot: usize,
}

/// Slots of one channel.
#[derive(Debug)]
pub(super) struct TaskSlots {
    /// Number of slots, a power of two, minus 1.
    mask: u64,
    /// True once the worker has begun to list completed tasks. Only then are the following fields valid.
    is_listing: bool,
    /// Free slots; the last one is the next task's.
    free: Vec<u32>,
    /// Number of the last task given in each slot.
    numbers: Box<[u64]>,
    /// True for slots of tasks in flight.
    in_flight: Box<[bool]>,
    /// Slots of the last completed tasks, by the count of the completion modulo the number of slots.
    completed: Box<[u32]>,
}

impl TaskSlots {
    /// Creates `count` free slots. `count` must be a power of two.
    pub(super) fn new(count: usize) -> Self {
        Self {
            mask: count as u64 - 1,
            is_listing: false,
            free: Vec::with_capacity(count),
            numbers: vec![0; count].into(),
            in_flight: vec![false; count].into(),
            completed: vec![0; count].into(),
        }
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.mask as usize + 1
    }

    /// Returns true once the worker has begun to list completed tasks.
    #[inline(always)]
    pub(super) fn is_listing(&self) -> bool {
        self.is_listing
    }

    /// Returns the slot for the next task, whose number is `number`. A slot must be free.
    #[inline(always)]
    pub(super) fn next(&self, number: u64) -> usize {
        match self.is_listing {
            false => (number & self.mask) as usize,
            true => self.free.last().map_or(0, |&slot| slot as usize),
        }
    }

    /// Records that the next task, whose number is `number`, was given in the slot returned by [`TaskSlots::next`].
    #[inline(always)]
    pub(super) fn give(&mut self, number: u64) {
        if self.is_listing
            && let Some(slot) = self.free.pop()
        {
            self.numbers[slot as usize] = number;
            self.in_flight[slot as usize] = true;
        }
    }

    /// Records the completions with the counts from `outstanding.start` to `until`, exclusive.
    ///
    /// `outstanding` spans the tasks given and not yet recorded as completed. The worker lists completions from the
    /// count `first` on; `listed` returns the slot that it listed under a count.
    ///
    /// # Errors
    /// The first count whose listed slot has no task in flight, or `first` if it precedes `outstanding`. After an
    /// error, the caller must call [`TaskSlots::reset`].
    #[inline(never)]
    pub(super) fn complete(
        &mut self,
        first: u64,
        outstanding: std::ops::Range<u64>,
        until: u64,
        listed: impl Fn(u64) -> u64,
    ) -> Result<(), u64> {
        let mut count = outstanding.start;
        if !self.is_listing {
            if first < count {
                return Err(first);
            }
            if first >= until {
                return Ok(()); // all these were completed in order
            }
            self.begin(first, outstanding);
            count = first;
        }
        for count in count..until {
            let slot = listed(count);
            // The worker may list any number: an unknown slot, or one without a task, is its fault.
            let entry = self.in_flight.get_mut(slot as usize);
            let Some(is_in_flight) = entry.filter(|is_in_flight| **is_in_flight) else {
                return Err(count);
            };
            *is_in_flight = false;
            self.free.push(slot as u32);
            self.completed[(count & self.mask) as usize] = slot as u32;
        }
        Ok(())
    }

    /// Fills the tables for a worker that begins to list. It completed the `outstanding` tasks below `first` in order.
    fn begin(&mut self, first: u64, outstanding: std::ops::Range<u64>) {
        self.is_listing = true;
        self.in_flight.fill(false);
        for number in outstanding {
            let slot = (number & self.mask) as usize;
            self.numbers[slot] = number;
            self.completed[slot] = slot as u32;
            self.in_flight[slot] = number >= first;
        }
        self.free.clear();
        let slots = 0..self.count() as u32;
        self.free.extend(slots.filter(|&slot| !self.in_flight[slot as usize]));
    }

    /// Returns the position of the task whose completion has this count. Valid until the next task is given.
    #[inline(always)]
    pub(super) fn completed(&self, count: u64) -> TaskPosition {
        let slot = (count & self.mask) as usize;
        match self.is_listing {
            false => TaskPosition { number: count, slot },
            true => {
                let listed = self.completed[slot] as usize;
                TaskPosition { number: self.numbers[listed], slot: listed }
            }
        }
    }

    /// Frees all slots for the next worker, which completes its tasks in order at first.
    pub(super) fn reset(&mut self) {
        self.is_listing = false;
    }
}
