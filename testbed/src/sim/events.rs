//! The simulator's calendar: a heap of plain 128-bit keys, time above, what happens below.
//!
//! What happens at equal times happens in this order, in the simulator as in lockstep: an arrival first, then the calendar's
//! events in the order of their kinds as [`event`] numbers them, those of one kind in the order of the numbers that their tasks
//! have in a [`wedjat::policy::fifo::Slab`], and a leaf's timer last.

/// Children of a node. Four of them share a cache line, so a deeper heap costs no more misses.
const ARITY: usize = 4;

/// What happens next, packed into 64 bits: kind, then a task, or a signal from a rack.
#[allow(missing_docs, reason = "each is what its name says")]
pub mod event {
    pub const AT_LEAF: u64 = 0;
    pub const AT_WORKER: u64 = 1;
    pub const DONE: u64 = 2;
    pub const REPLY: u64 = 3;
    pub const SIGNAL: u64 = 4;
    pub const SAMPLE: u64 = 5;
    pub const SCRIPT: u64 = 6;
    pub const REPEAT: u64 = 7;
    pub const EXCHANGE: u64 = 8;
    pub const KIND_SHIFT: u32 = 60;

    /// An event of a kind about a thing.
    #[inline]
    #[must_use]
    pub const fn pack(kind: u64, about: u64) -> u64 {
        kind << KIND_SHIFT | about
    }

    /// The kind of an event, and what it is about.
    #[inline]
    #[must_use]
    pub const fn unpack(event: u64) -> (u64, u64) {
        (event >> KIND_SHIFT, event & ((1 << KIND_SHIFT) - 1))
    }
}

/// Events in order of time; equal times in order of what happens, so that a run can be repeated.
#[derive(Clone, Debug, Default)]
pub struct Events {
    heap: Vec<u128>,
}

impl Events {
    /// Time of the next event, the greatest number when there is none.
    #[inline]
    #[must_use]
    pub fn next_time(&self) -> u64 {
        self.heap.first().map_or(u64::MAX, |key| (key >> 64) as u64)
    }

    /// Adds an event.
    #[inline]
    pub fn push(&mut self, time: u64, event: u64) {
        let key = u128::from(time) << 64 | u128::from(event);
        let mut at = self.heap.len();
        self.heap.push(key);
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[at] = self.heap[parent];
            at = parent;
        }
        self.heap[at] = key;
    }

    /// Takes the next event, with its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, u64)> {
        let last = self.heap.pop()?;
        let top = match self.heap.first() {
            None => last,
            Some(&first) => {
                self.sink(last);
                first
            }
        };
        Some(((top >> 64) as u64, top as u64))
    }

    /// Puts `key` in at the top.
    #[inline]
    fn sink(&mut self, key: u128) {
        let len = self.heap.len();
        let mut at = 0;
        loop {
            let first = ARITY * at + 1;
            if first >= len {
                break;
            }
            let children = &self.heap[first..len.min(first + ARITY)];
            let (mut least, mut place) = (children[0], first);
            for (offset, &child) in children.iter().enumerate().skip(1) {
                // Which child is least is anybody's guess: a select, not a branch.
                let smaller = child < least;
                least = std::hint::select_unpredictable(smaller, child, least);
                place = std::hint::select_unpredictable(smaller, first + offset, place);
            }
            if least >= key {
                break;
            }
            self.heap[at] = least;
            at = place;
        }
        self.heap[at] = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order() {
        let mut events = Events::default();
        let mut times: Vec<(u64, u64)> = (0..1000).map(|i| (i * 7919 % 257, i)).collect();
        for &(time, event) in &times {
            events.push(time, event);
        }
        times.sort_unstable();
        let popped: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(popped, times);
        assert_eq!(events.next_time(), u64::MAX);
    }
}
