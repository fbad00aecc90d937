//! Calendar of the simulator: a heap of 128-bit keys, with the time in the upper and the event in the lower 64 bits.
//! The smallest key is the next event.
//!
//! Simulator and lockstep use the same order of simultaneous events. An arrival comes first. Then come the
//! calendar's events in the order of their kinds (as numbered by [`event`]). Events of one kind follow the order of
//! their arguments, such as a task's slot in its [`wedjat_core::policy::fifo::Slab`]. A leaf's timer comes last.

/// Number of children of a heap node. Four keys have the size of a cache line, 64 bytes, so the children of a node
/// span at most two lines.
const ARITY: usize = 4;

/// Events in 64 bits: the kind, then its argument, for example the slot of a task. A kind of one model may share its
/// number with a kind of another.
pub mod event {
    /// A task arrives at its leaf.
    pub const AT_LEAF: u64 = 0;
    /// A task arrives at its worker.
    pub const AT_WORKER: u64 = 1;
    /// A worker completes a task.
    pub const DONE: u64 = 2;
    /// A reply arrives at its leaf.
    pub const REPLY: u64 = 3;
    /// A leaf's signal arrives at the spine. The argument is the packed signal.
    pub const SIGNAL: u64 = 4;
    /// A load report arrives at its dispatcher. The argument packs dispatcher, member and queue.
    pub const REPORT: u64 = 5;
    /// All queues are sampled.
    pub const SAMPLE: u64 = 7;
    /// A step of the script.
    pub const SCRIPT: u64 = 8;
    /// A leaf repeats its idleness signal.
    pub const REPEAT: u64 = 9;
    /// A core of a leaf receives messages of other cores.
    pub const EXCHANGE: u64 = 10;
    /// The answers to a task's probes have arrived.
    pub const ANSWERED: u64 = 11;
    /// A task's probes have arrived at the servers.
    pub const PROBES: u64 = 12;
    /// Number of bits of the argument. They are the low bits; the kind is in the upper four.
    pub const KIND_SHIFT: u32 = 60;

    /// Packs an event.
    #[inline]
    #[must_use]
    pub const fn pack(kind: u64, argument: u64) -> u64 {
        kind << KIND_SHIFT | argument
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
        let mut index = self.heap.len();
        self.heap.push(key);
        // Moves larger parents down until the key has its position.
        while index > 0 {
            let parent = (index - 1) / ARITY;
            if self.heap[parent] <= key {
                break;
            }
            self.heap[index] = self.heap[parent];
            index = parent;
        }
        self.heap[index] = key;
    }

    /// Removes and returns the next event with its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, u64)> {
        let last = self.heap.pop()?;
        let top = match self.heap.first() {
            // The last key was the only one.
            None => last,
            Some(&first) => {
                self.sink(last);
                first
            }
        };
        Some(((top >> 64) as u64, top as u64))
    }

    /// Replaces the root by `key`, and moves it down to its position.
    #[inline]
    fn sink(&mut self, key: u128) {
        let len = self.heap.len();
        let mut index = 0;
        loop {
            let first = ARITY * index + 1;
            if first >= len {
                break;
            }
            let children = &self.heap[first..len.min(first + ARITY)];
            let (mut least, mut least_index) = (children[0], first);
            for (offset, &child) in children.iter().enumerate().skip(1) {
                // The result is unpredictable, so a select is faster than a branch.
                let smaller = child < least;
                least = std::hint::select_unpredictable(smaller, child, least);
                least_index = std::hint::select_unpredictable(smaller, first + offset, least_index);
            }
            if least >= key {
                break;
            }
            self.heap[index] = least;
            index = least_index;
        }
        self.heap[index] = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order() {
        let mut events = Events::default();
        // 1000 events at 257 times in a scrambled order, so that about four events share each time.
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
