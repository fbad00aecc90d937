//! Calendar of the simulator: a heap of 128-bit keys, with the time in the upper and the event in the lower 64 bits.
//! The smallest key is the next event. Events after a constant delay are scheduled in the order of their keys, so a
//! queue holds them instead of the heap.
//!
//! Simulator and lockstep use the same order of simultaneous events. An arrival comes first. Then come the
//! calendar's events in the order of their kinds (as numbered by [`event`]). Events of one kind follow the order of
//! their arguments, such as a task's slot in its [`wedjat_core::policy::fifo::Slab`]. A leaf's timer comes last.

use std::collections::VecDeque;
use std::hint::select_unpredictable;

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

/// Key above that of any event.
const NO_KEY: u128 = u128::MAX;

/// Events in the order of time. Simultaneous events have a fixed order, so that a run can be repeated.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Heap of keys. All levels are complete: [`NO_KEY`] fills the indices from `len` on.
    heap: Vec<u128>,
    /// Number of keys in the heap.
    len: usize,
    /// True if [`Events::pop`] has returned the root, which is still in the heap. The handler of most events adds an
    /// event. Its key then replaces the root, and the last key keeps its index.
    is_root_vacant: bool,
    /// Keys in ascending order, of events after a constant delay.
    queue: VecDeque<u128>,
}

impl Events {
    /// Returns the time of the next event, or the maximum if there is none.
    #[inline]
    #[must_use]
    pub fn next_time(&mut self) -> u64 {
        let (heap, queue) = self.first_keys();
        (heap.min(queue) >> 64) as u64
    }

    /// Returns the least keys of the heap and of the queue. Replaces a vacant root by the last key first.
    #[inline]
    fn first_keys(&mut self) -> (u128, u128) {
        if std::mem::take(&mut self.is_root_vacant) {
            self.len -= 1;
            let last = std::mem::replace(&mut self.heap[self.len], NO_KEY);
            if self.len > 0 {
                self.replace_root(last);
            }
        }
        let first = |key: Option<&u128>| key.copied().unwrap_or(NO_KEY);
        (first(self.heap.first()), first(self.queue.front()))
    }

    /// Adds an event, like [`Events::push`]. Takes constant time if no earlier call had a larger key.
    #[inline]
    pub fn push_in_order(&mut self, time: u64, event: u64) {
        let key = key(time, event);
        if self.queue.back().is_none_or(|last| *last <= key) {
            self.queue.push_back(key);
        } else {
            self.push(time, event);
        }
    }

    /// Adds an event.
    #[inline]
    pub fn push(&mut self, time: u64, event: u64) {
        let key = key(time, event);
        if std::mem::take(&mut self.is_root_vacant) {
            return self.replace_root(key);
        }
        let mut index = self.len;
        self.len += 1;
        if index == self.heap.len() {
            self.heap.resize(ARITY * index + 1, NO_KEY);
        }
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
        let (first, queued) = self.first_keys();
        let least = first.min(queued);
        if least == NO_KEY {
            return None;
        }
        if queued < first {
            self.queue.pop_front();
        } else {
            self.is_root_vacant = true;
        }
        Some(((least >> 64) as u64, least as u64))
    }

    /// Replaces the root by `key`, and moves it down to its position.
    #[inline]
    fn replace_root(&mut self, key: u128) {
        let mut index = 0;
        let mut first = 1;
        while first < self.len
            && let Some(&children) = self.heap[first..].first_chunk()
        {
            let (least, offset) = least(children);
            if least >= key {
                break;
            }
            self.heap[index] = least;
            index = first + offset;
            first = ARITY * index + 1;
        }
        self.heap[index] = key;
    }
}

/// Returns the least of the keys of a node's children, and its index. The result is unpredictable, so a select is
/// faster than a branch.
#[inline]
fn least([a, b, c, d]: [u128; ARITY]) -> (u128, usize) {
    let lesser = |(a, index_a): (u128, usize), (b, index_b): (u128, usize)| {
        let smaller = b < a;
        (select_unpredictable(smaller, b, a), select_unpredictable(smaller, index_b, index_a))
    };
    lesser(lesser((a, 0), (b, 1)), lesser((c, 2), (d, 3)))
}

/// Returns the key of an event.
#[inline]
fn key(time: u64, event: u64) -> u128 {
    u128::from(time) << 64 | u128::from(event)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use wedjat_workload::seed::mixed;

    use super::*;

    #[test]
    fn events_come_in_order() {
        let mut events = Events::default();
        // 1000 events at 257 times in a scrambled order, so that about four events share each time.
        let mut times: Vec<(u64, u64)> = (0..1000).map(|i| (i * 7919 % 257, i)).collect();
        for &(time, event) in &times {
            // Half of them, and only some of these in order.
            match event % 2 {
                0 => events.push(time, event),
                _ => events.push_in_order(time, event),
            }
        }
        times.sort_unstable();
        let popped: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(popped, times);
        assert_eq!(events.next_time(), u64::MAX);
    }

    #[test]
    fn calendar_equals_a_sorted_set() {
        let (mut events, mut sorted) = (Events::default(), BTreeSet::new());
        let mut bits = 1;
        for number in 0..10_000 {
            bits = mixed(bits);
            let time = bits >> 56;
            match bits % 8 {
                0..3 => assert_eq!(events.pop(), sorted.pop_first()),
                3 => {
                    let first = sorted.first().map_or(u64::MAX, |(time, _)| *time);
                    assert_eq!(events.next_time(), first);
                }
                4 => events.push_in_order(time, number),
                _ => events.push(time, number),
            }
            if bits % 8 > 3 {
                sorted.insert((time, number));
            }
        }
        // More events were added than removed.
        assert!(sorted.len() > 100);
        sorted.iter().for_each(|event| assert_eq!(events.pop(), Some(*event)));
        assert_eq!((events.pop(), events.next_time()), (None, u64::MAX));
    }
}
