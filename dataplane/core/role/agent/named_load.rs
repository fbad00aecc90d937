//! Number of unfinished tasks by the worker that they name, counted without locks while threads complete tasks. A task
//! *names* the worker whose id the leaf wrote into it. Here a worker is its index among all of the agent's workers.
//!
//! A leaf counts by the worker that it chose, although another core may serve the task. So the queue length in a reply
//! must be that worker's. Only the dispatcher writes the number of accepted tasks, and threads atomically increment the
//! number of answered ones, so no count is lost. Each answer sees the arrival of its own task, and everything that
//! earlier answers saw. Both counts may wrap around; the difference stays correct.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed};

/// A number shared by threads. [`NamedLoad`] is generic over it, so that loom checks the code that the
/// threads run.
pub trait Number: Default {
    /// Loads the number.
    fn load(&self, order: Ordering) -> u32;
    /// Stores the number.
    fn store(&self, value: u32, order: Ordering);
    /// Adds to the number and returns its old value.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
}

impl Number for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        Self::fetch_add(self, value, order)
    }
}

/// A count on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count<N>(N);

/// Counts of one worker.
#[derive(Debug, Default)]
struct Line<N> {
    /// Written by the dispatcher: tasks accepted, minus tasks that it completed itself.
    accepted: Count<N>,
    /// Tasks answered, incremented by threads.
    answered: Count<N>,
}

/// Numbers of unfinished tasks by the worker that the tasks name.
#[derive(Debug, Default)]
pub struct NamedLoad<N = AtomicU32>(Box<[Line<N>]>);

impl<N: Number> NamedLoad<N> {
    /// Creates the counts of `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Line::default()).collect())
    }

    /// Publishes the number of tasks that the dispatcher accepted and did not complete itself. Call it before
    /// handing over a task: the hand-over orders this store before the thread's answer.
    #[inline]
    pub fn publish(&self, worker: usize, accepted: u32) {
        self.0[worker].accepted.0.store(accepted, Relaxed);
    }

    /// Counts a thread's answer. Returns the number of tasks left. An interruption between both steps adds the tasks
    /// accepted and answered meanwhile.
    #[inline]
    #[must_use]
    pub fn answer(&self, worker: usize) -> u32 {
        let line = &self.0[worker];
        // AcqRel: this answer also sees the arrivals that earlier answers saw.
        let answered = line.answered.0.fetch_add(1, AcqRel).wrapping_add(1);
        line.accepted.0.load(Relaxed).wrapping_sub(answered)
    }

    /// Returns the number of unfinished tasks: `accepted` minus the answers of threads. Called by the dispatcher, which
    /// has the current number of accepted tasks.
    #[inline]
    #[must_use]
    pub fn unanswered(&self, worker: usize, accepted: u32) -> u32 {
        accepted.wrapping_sub(self.0[worker].answered.0.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_see_exact_remainder_across_wraparound() {
        let load: NamedLoad = NamedLoad::new(2);
        let start = u32::MAX - 2; // so that both counts wrap within the test
        load.0[1].answered.0.store(start, Relaxed);
        load.publish(1, start.wrapping_add(5));
        assert_eq!((0..5).map(|_| load.answer(1)).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
        let unanswered = (load.unanswered(1, start.wrapping_add(6)), load.unanswered(0, 0));
        assert_eq!(unanswered, (1, 0));
    }

    /// In any order, no answer sees a negative count, which would wrap to a large one. None is left at the end.
    #[test]
    fn threads_never_count_below_zero() {
        let tasks: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let load: NamedLoad = NamedLoad::new(1);
        // Tasks handed over and not yet taken by a thread; tasks answered.
        let (ready, answered) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let work = || {
                while answered.load(Acquire) < tasks {
                    let claim = ready.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1));
                    match claim {
                        Ok(_) => {
                            assert!(load.answer(0) < tasks);
                            answered.fetch_add(1, AcqRel);
                        }
                        Err(_) => std::thread::yield_now(),
                    }
                }
            };
            scope.spawn(work);
            scope.spawn(work);
            for task in 1..=tasks {
                load.publish(0, task);
                ready.fetch_add(1, AcqRel);
            }
        });
        assert_eq!(load.unanswered(0, tasks), 0);
    }
}
