//! Slots of the tasks in flight, as the dispatcher knows them. A slot is a task's part of the channel's area.
//!
//! A worker that completes its tasks in order frees the slots in order, so a task's number gives its slot. A worker
//! whose tasks share its core completes them in any order. It lists the slots of completed tasks from then on, and the
//! dispatcher keeps a list of free slots.

/// Position of a completed task in its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskPosition {
    /// Number of the task.
    pub number: u64,
    /// Its slot.
    pub slot: usize,
}

/// Slots of one channel.
#[derive(Debug)]
pub(super) struct TaskSlots {
    /// Number of slots minus 1.
    mask: u64,
    /// True since the worker lists completed tasks.
    is_listing: bool,
    /// Free slots; the last one is the next task's. Only for a listing worker, like the following fields.
    free: Vec<u32>,
    /// Number of the last task in each slot.
    numbers: Box<[u64]>,
    /// True for slots of tasks in flight.
    in_flight: Box<[bool]>,
    /// Slots of the last completed tasks, by the count of completed tasks modulo the number of slots.
    completed: Box<[u32]>,
}

impl TaskSlots {
    /// Creates `count` free slots.
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

    /// Returns true since the worker lists completed tasks.
    #[inline(always)]
    pub(super) fn is_listing(&self) -> bool {
        self.is_listing
    }

    /// Returns the slot for the task with this number, the next one. A slot must be free.
    #[inline(always)]
    pub(super) fn next(&self, number: u64) -> usize {
        match self.is_listing {
            false => (number & self.mask) as usize,
            true => self.free.last().map_or(0, |&slot| slot as usize),
        }
    }

    /// Records that the next task was given.
    #[inline(always)]
    pub(super) fn give(&mut self, number: u64) {
        if self.is_listing
            && let Some(slot) = self.free.pop()
        {
            self.numbers[slot as usize] = number;
            self.in_flight[slot as usize] = true;
        }
    }

    /// Records the completions with these counts. `listed` returns the slot that the worker has listed under a count.
    /// The worker lists since the count `first`; the tasks `in_flight` were given and not collected before.
    ///
    /// # Errors
    /// The count under which the worker listed a slot without a task in flight. [`TaskSlots::reset`] must follow.
    #[inline(never)]
    pub(super) fn complete(
        &mut self,
        first: u64,
        in_flight: std::ops::Range<u64>,
        until: u64,
        listed: impl Fn(u64) -> u64,
    ) -> Result<(), u64> {
        let mut count = in_flight.start;
        if !self.is_listing {
            if first < count {
                return Err(first);
            }
            if first >= until {
                return Ok(()); // all these were completed in order
            }
            self.begin(first, in_flight);
            count = first;
        }
        for count in count..until {
            let slot = listed(count);
            let Some(in_flight) = self.in_flight.get_mut(slot as usize).filter(|task| **task)
            else {
                return Err(count);
            };
            *in_flight = false;
            self.free.push(slot as u32);
            self.completed[(count & self.mask) as usize] = slot as u32;
        }
        Ok(())
    }

    /// Changes to a listing worker, which has completed the tasks in flight before `first` in order.
    fn begin(&mut self, first: u64, in_flight: std::ops::Range<u64>) {
        self.is_listing = true;
        self.in_flight.fill(false);
        for number in in_flight {
            let slot = (number & self.mask) as usize;
            self.numbers[slot] = number;
            self.completed[slot] = slot as u32;
            self.in_flight[slot] = number >= first;
        }
        self.free.clear();
        let slots = 0..self.count() as u32;
        self.free.extend(slots.filter(|&slot| !self.in_flight[slot as usize]));
    }

    /// Returns the position of a completed task, by the count of its completion. Valid until the next task is given.
    #[inline(always)]
    pub(super) fn completed(&self, count: u64) -> TaskPosition {
        let slot = (count & self.mask) as usize;
        match self.is_listing {
            false => TaskPosition { number: count, slot },
            true => {
                let slot = self.completed[slot] as usize;
                TaskPosition { number: self.numbers[slot], slot }
            }
        }
    }

    /// Frees all slots, for the next worker.
    pub(super) fn reset(&mut self) {
        self.is_listing = false;
    }
}
