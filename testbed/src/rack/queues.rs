//! First-come, first-served queues of many single-core workers, and the end time of each task.
//!
//! Times are those of the emulated workers, in ticks of the caller's clock. A task starts when it has arrived and its
//! predecessor has ended, independently of the time of the poll. A late poll therefore never slows a worker.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use wedjat::policy::fifo::{Fifo, Slab};

/// Queues of workers, with room for a fixed total number of tasks.
///
/// The heap holds only each worker's first task, so it has at most one entry per worker.
pub struct Queues<T> {
    workers: Vec<Worker>,
    /// Memory of the tasks in all queues.
    tasks: Slab<Task<T>>,
    /// Completion time of each worker's first task, and the worker; the earliest time is on top.
    running: BinaryHeap<Reverse<(u64, u16)>>,
    /// Number of tasks at all workers, including the running ones.
    len: usize,
}

/// A worker.
#[derive(Clone, Copy)]
struct Worker {
    queue: Fifo,
    /// Completion time of its last queued task.
    busy_until: u64,
}

/// A task and the time of its completion.
struct Task<T> {
    task: T,
    done_at: u64,
}

/// A completed task.
#[derive(Debug, PartialEq, Eq)]
pub struct CompletedTask<T> {
    /// The task.
    pub task: T,
    /// Index of the worker that served the task.
    pub worker: u16,
    /// Time of completion.
    pub done_at: u64,
    /// Number of tasks left at the worker at the call of [`Queues::pop`], queued and running. It equals the number at
    /// `done_at` if the caller pops due tasks before it pushes new ones.
    pub left: u32,
}

impl<T> Queues<T> {
    /// Creates the queues of `workers` workers, for at most `capacity` tasks together.
    #[must_use]
    pub fn new(workers: u16, capacity: u32) -> Self {
        Self {
            workers: vec![Worker { queue: Fifo::EMPTY, busy_until: 0 }; usize::from(workers)],
            tasks: Slab::with_room(capacity as usize),
            running: BinaryHeap::with_capacity(usize::from(workers)),
            len: 0,
        }
    }

    /// Returns the number of tasks at all workers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no worker has a task.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of tasks at one worker.
    #[must_use]
    pub fn len_at(&self, worker: u16) -> u32 {
        self.workers[usize::from(worker)].queue.len()
    }

    /// Adds a task with service time `ticks` that arrives at `worker` at `now`.
    ///
    /// # Errors
    /// If there is no room. The error contains the task.
    #[inline]
    pub fn push(&mut self, worker: u16, now: u64, ticks: u64, task: T) -> Result<(), T> {
        let state = &mut self.workers[usize::from(worker)];
        let done_at = state.busy_until.max(now).saturating_add(ticks);
        let was_idle = state.queue.is_empty();
        self.tasks
            .push(&mut state.queue, Task { task, done_at })
            .map_err(|refused| refused.task)?;
        state.busy_until = done_at;
        if was_idle {
            self.running.push(Reverse((done_at, worker)));
        }
        self.len += 1;
        Ok(())
    }

    /// Removes and returns the earliest task completed by `now`.
    #[inline]
    pub fn pop(&mut self, now: u64) -> Option<CompletedTask<T>> {
        let mut running = self.running.peek_mut()?;
        let Reverse((done_at, worker)) = *running;
        if done_at > now {
            return None;
        }
        let queue = &mut self.workers[usize::from(worker)].queue;
        let Task { task, .. } = self.tasks.pop(queue)?;
        // The worker's next task takes the place of this one in the heap.
        match queue.first() {
            Some(next) => *running = Reverse((self.tasks[next].done_at, worker)),
            None => drop(PeekMut::pop(running)),
        }
        self.len -= 1;
        Some(CompletedTask { task, worker, done_at, left: queue.len() })
    }

    /// Returns the time of the next completion.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.running.peek().map(|Reverse((done_at, _))| *done_at)
    }

    /// Discards all tasks of `worker`, which is then idle. Returns their number.
    pub fn clear(&mut self, worker: u16) -> usize {
        self.running.retain(|Reverse((_, running))| *running != worker);
        let state = &mut self.workers[usize::from(worker)];
        let discarded = std::iter::from_fn(|| self.tasks.pop(&mut state.queue)).count();
        // The next task starts when it arrives.
        state.busy_until = 0;
        self.len -= discarded;
        discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn task_starts_after_its_predecessor() {
        let mut queues = Queues::new(2, 8);
        for (worker, now, ticks, task) in [(0, 10, 5, 'a'), (0, 11, 5, 'b'), (1, 12, 1, 'c')] {
            queues.push(worker, now, ticks, task).unwrap();
        }
        assert_eq!((queues.len_at(0), queues.next()), (2, Some(13)));
        assert_eq!(queues.pop(12), None);
        let mut done = || queues.pop(u64::MAX).unwrap();
        assert_eq!(done(), CompletedTask { task: 'c', worker: 1, done_at: 13, left: 0 });
        assert_eq!(done(), CompletedTask { task: 'a', worker: 0, done_at: 15, left: 1 });
        assert_eq!(done(), CompletedTask { task: 'b', worker: 0, done_at: 20, left: 0 });
        assert!(queues.is_empty());
    }

    #[test]
    fn push_without_room_returns_the_task() {
        let mut queues = Queues::new(1, 1);
        assert_eq!(queues.push(0, 0, 1, 'a'), Ok(()));
        assert_eq!(queues.push(0, 0, 1, 'b'), Err('b'));
        assert!(queues.pop(1).is_some());
        assert_eq!(queues.push(0, 0, 1, 'c'), Ok(()));
        assert_eq!(queues.pop(9).unwrap().done_at, 2, "the refused task took no time");
    }

    #[test]
    fn clear_discards_tasks_of_one_worker_only() {
        let mut queues = Queues::new(2, 4);
        for task in 0..3 {
            queues.push(0, 0, 10, task).unwrap();
        }
        queues.push(1, 0, 7, 3).unwrap();
        assert_eq!(queues.clear(0), 3);
        assert_eq!((queues.len(), queues.len_at(0)), (1, 0));
        queues.push(0, 2, 1, 4).unwrap();
        assert_eq!(
            queues.pop(99).unwrap(),
            CompletedTask { task: 4, worker: 0, done_at: 3, left: 0 }
        );
        assert_eq!(queues.pop(99).unwrap().task, 3);
        assert_eq!(queues.pop(99), None);
    }

    proptest! {
        /// Compares completion times with the recurrence end = max(arrival, previous end) + service, for any delay of
        /// the polls. A generated task is its worker, the gap since the previous arrival, and its service time.
        #[test]
        fn completion_times_follow_the_recurrence(
            tasks in proptest::collection::vec((0..4_u16, 0..30_u64, 0..40_u64), 1..120), poll_every in 1..9_usize,
        ) {
            let mut queues = Queues::new(4, 200);
            let (mut now, mut ends) = (0, [0_u64; 4]);
            let mut expected = Vec::new();
            let mut found = Vec::new();
            for (i, &(worker, gap, ticks)) in tasks.iter().enumerate() {
                now += gap;
                // Leaves a task queued that ends at the time of this arrival: the new task must start at that time.
                if i % poll_every == 0 {
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
                prop_assert_eq!((done.worker, done.done_at), (worker, end));
            }
            prop_assert!(queues.is_empty());
        }
    }
}
