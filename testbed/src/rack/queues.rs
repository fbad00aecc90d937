//! First come, first served: the queues of many single-core workers, and when each task is done.
//!
//! Times are those of the emulated workers. A task starts when it has arrived and the one before it has ended,
//! whenever somebody looks: looking late never makes a worker slow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// End of a list of slots.
const NONE: u32 = u32::MAX;

/// Workers' queues, with room for a fixed number of tasks in all of them together.
///
/// Only a worker's first task stands in the heap, so the heap holds no more entries than there are workers.
pub struct Queues<T> {
    workers: Vec<Worker>,
    slots: Vec<Slot<T>>,
    free: u32,
    running: BinaryHeap<Reverse<(u64, u16)>>,
    waiting: usize,
}

#[derive(Clone, Copy)]
struct Worker {
    first: u32,
    last: u32,
    len: u32,
    busy_until: u64,
}

struct Slot<T> {
    task: Option<T>,
    done_at: u64,
    next: u32,
}

/// A task that is done.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The task.
    pub task: T,
    /// Who did it.
    pub worker: u16,
    /// When.
    pub at: u64,
    /// Tasks that the worker then still has, queued and running.
    pub left: u32,
}

impl<T> Queues<T> {
    /// Queues of `workers` workers for at most `capacity` tasks together.
    #[must_use]
    pub fn new(workers: u16, capacity: u32) -> Self {
        let idle = Worker { first: NONE, last: NONE, len: 0, busy_until: 0 };
        let slot = |i: u32| Slot { task: None, done_at: 0, next: i + 1 };
        let mut slots: Vec<_> = (0..capacity).map(slot).collect();
        if let Some(last) = slots.last_mut() {
            last.next = NONE;
        }
        Self {
            workers: vec![idle; usize::from(workers)],
            free: if capacity == 0 { NONE } else { 0 },
            slots,
            running: BinaryHeap::with_capacity(usize::from(workers)),
            waiting: 0,
        }
    }

    /// Tasks at all workers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// No worker has a task.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Tasks at one worker.
    #[must_use]
    pub fn len_at(&self, worker: u16) -> u32 {
        self.workers[usize::from(worker)].len
    }

    /// A task that takes `ticks` arrives at `worker` at `now`.
    ///
    /// # Errors
    /// Gives the task back when there is no room.
    #[inline]
    pub fn push(&mut self, worker: u16, now: u64, ticks: u64, task: T) -> Result<(), T> {
        let index = self.free;
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(task) };
        let at = &mut self.workers[usize::from(worker)];
        at.busy_until = at.busy_until.max(now).saturating_add(ticks);
        at.len += 1;
        self.free = slot.next;
        *slot = Slot { task: Some(task), done_at: at.busy_until, next: NONE };
        let before = std::mem::replace(&mut at.last, index);
        if before == NONE {
            at.first = index;
            self.running.push(Reverse((at.busy_until, worker)));
        } else {
            self.slots[before as usize].next = index;
        }
        self.waiting += 1;
        Ok(())
    }

    /// The earliest task that is done by `now`.
    #[inline]
    pub fn pop(&mut self, now: u64) -> Option<Done<T>> {
        let mut running = self.running.peek_mut()?;
        let Reverse((at, worker)) = *running;
        if at > now {
            return None;
        }
        let (task, next) = take(&mut self.slots, &mut self.free, &mut self.workers, worker)?;
        match next {
            Some(next) => *running = Reverse((next, worker)),
            None => drop(std::collections::binary_heap::PeekMut::pop(running)),
        }
        self.waiting -= 1;
        Some(Done { task, worker, at, left: self.workers[usize::from(worker)].len })
    }

    /// When the next task will be done.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.running.peek().map(|Reverse((at, _))| *at)
    }

    /// Throws away all that `worker` has; how many tasks that was.
    pub fn clear(&mut self, worker: u16) -> usize {
        self.running.retain(|Reverse((_, running))| *running != worker);
        let mut thrown = 0;
        while take(&mut self.slots, &mut self.free, &mut self.workers, worker).is_some() {
            thrown += 1;
        }
        self.workers[usize::from(worker)].busy_until = 0;
        self.waiting -= thrown;
        thrown
    }
}

/// Takes the first task of `worker`, and says when the one behind it is done.
#[inline]
fn take<T>(
    slots: &mut [Slot<T>],
    free: &mut u32,
    workers: &mut [Worker],
    worker: u16,
) -> Option<(T, Option<u64>)> {
    let at = &mut workers[usize::from(worker)];
    let index = at.first;
    let slot = slots.get_mut(index as usize)?;
    let task = slot.task.take()?;
    at.first = slot.next;
    at.len -= 1;
    slot.next = std::mem::replace(free, index);
    if at.first == NONE {
        at.last = NONE;
        return Some((task, None));
    }
    Some((task, Some(slots[at.first as usize].done_at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_task_starts_when_the_one_before_it_has_ended() {
        let mut queues = Queues::new(2, 8);
        for (worker, now, ticks, task) in [(0, 10, 5, 'a'), (0, 11, 5, 'b'), (1, 12, 1, 'c')] {
            queues.push(worker, now, ticks, task).unwrap();
        }
        assert_eq!((queues.len_at(0), queues.next()), (2, Some(13)));
        assert_eq!(queues.pop(12), None);
        let mut done = || queues.pop(u64::MAX).unwrap();
        assert_eq!(done(), Done { task: 'c', worker: 1, at: 13, left: 0 });
        assert_eq!(done(), Done { task: 'a', worker: 0, at: 15, left: 1 });
        assert_eq!(done(), Done { task: 'b', worker: 0, at: 20, left: 0 });
        assert!(queues.is_empty());
    }

    #[test]
    fn no_room_gives_the_task_back() {
        let mut queues = Queues::new(1, 1);
        assert_eq!(queues.push(0, 0, 1, 'a'), Ok(()));
        assert_eq!(queues.push(0, 0, 1, 'b'), Err('b'));
        assert!(queues.pop(1).is_some());
        assert_eq!(queues.push(0, 0, 1, 'c'), Ok(()));
        assert_eq!(queues.pop(9).unwrap().at, 2, "the refused task took no time");
    }

    #[test]
    fn clearing_one_worker_leaves_the_others() {
        let mut queues = Queues::new(2, 4);
        for task in 0..3 {
            queues.push(0, 0, 10, task).unwrap();
        }
        queues.push(1, 0, 7, 3).unwrap();
        assert_eq!(queues.clear(0), 3);
        assert_eq!((queues.len(), queues.len_at(0)), (1, 0));
        queues.push(0, 2, 1, 4).unwrap();
        assert_eq!(queues.pop(99).unwrap(), Done { task: 4, worker: 0, at: 3, left: 0 });
        assert_eq!(queues.pop(99).unwrap().task, 3);
        assert_eq!(queues.pop(99), None);
    }

    proptest! {
        /// Against the recurrence itself: end = max(arrival, end before) + service, looked at with any delay.
        #[test]
        fn ends_and_lengths_are_those_of_the_recurrence(
            tasks in proptest::collection::vec((0..4_u16, 0..30_u64, 0..40_u64), 1..120), look_every in 1..9_usize,
        ) {
            let mut queues = Queues::new(4, 200);
            let (mut now, mut ends) = (0, [0_u64; 4]);
            let mut expected = Vec::new();
            let mut found = Vec::new();
            for (i, &(worker, gap, ticks)) in tasks.iter().enumerate() {
                now += gap;
                if i % look_every == 0 {
                    found.extend(std::iter::from_fn(|| queues.pop(now.saturating_sub(1))));
                }
                ends[usize::from(worker)] = ends[usize::from(worker)].max(now) + ticks;
                expected.push((i, worker, now, ends[usize::from(worker)]));
                prop_assert!(queues.push(worker, now, ticks, i).is_ok());
            }
            found.extend(std::iter::from_fn(|| queues.pop(u64::MAX)));
            prop_assert_eq!(found.len(), tasks.len());
            for done in found {
                let (_, worker, _, end) = expected[done.task];
                prop_assert_eq!((done.worker, done.at), (worker, end));
            }
            prop_assert!(queues.is_empty());
        }
    }
}
