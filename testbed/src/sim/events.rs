//! Calendar of the simulator: a heap of 128-bit keys, with the time in the upper and the event in the lower
//! bits.
//!
//! Simulator and lockstep use the same order of simultaneous events. An arrival comes first. Then come the
//! calendar's events in the order of their kinds (as numbered by [`event`]); events of one kind follow the
//! numbers of their tasks in a [`wedjat::policy::fifo::Slab`]. A leaf's timer comes last.

/// Children per node. Four keys share a cache line, so a node costs one cache miss.
const ARITY: usize = 4;

/// Events in 64 bits: the kind, then a task or a rack's signal.
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

    /// Packs an event.
    #[inline]
    #[must_use]
    pub const fn pack(kind: u64, about: u64) -> u64 {
        kind << KIND_SHIFT | about
    }

    /// Unpacks kind and argument of an event.
    #[inline]
    #[must_use]
    pub const fn unpack(event: u64) -> (u64, u64) {
        (event >> KIND_SHIFT, event & ((1 << KIND_SHIFT) - 1))
    }
}

/// Events in the order of time. Simultaneous events have a fixed order, so that a run can be repeated.
#[derive(Clone, Debug, Default)]
pub struct Events {
    heap: Vec<u128>,
}

impl Events {
    /// Returns the time of the next event, or the maximum if there is none.
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

    /// Removes and returns the next event with its time.
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

    /// Inserts `key` at the root.
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
                // The smaller child is unpredictable: a select instead of a branch.
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
