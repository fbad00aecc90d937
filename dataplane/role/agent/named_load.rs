//! Number of unfinished tasks for each worker id, counted without locks while threads complete tasks. The id is
//! the one that the leaf wrote into the task.
//!
//! A leaf counts by the worker that it chose, whichever core serves the task, so the queue length in a reply
//! must be that worker's. Only the dispatcher writes the number of accepted tasks, threads add their answers,
//! and the difference is exact. Each answer sees the arrival of its own task, and everything that earlier
//! answers saw.

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

#[derive(Debug, Default)]
struct Line<N> {
    /// Written by the dispatcher: tasks accepted, minus tasks that it completed itself.
    here: Count<N>,
    /// Incremented by threads.
    answered: Count<N>,
}

/// Named load; see the module's documentation.
#[derive(Debug, Default)]
pub struct NamedLoad<N = AtomicU32>(Box<[Line<N>]>);

impl<N: Number> NamedLoad<N> {
    /// Creates the counts of `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Line::default()).collect())
    }

    /// Publishes the dispatcher's count, excluding answers of threads. Call it before handing over a task.
    #[inline]
    pub fn publish(&self, name: usize, here: u32) {
        self.0[name].here.0.store(here, Relaxed);
    }

    /// Counts a thread's answer. Returns the number of tasks left.
    #[inline]
    #[must_use]
    pub fn answer(&self, name: usize) -> u32 {
        let line = &self.0[name];
        // Acquire: an earlier answer saw its task's arrival, and this one must, too.
        let answered = line.answered.0.fetch_add(1, AcqRel).wrapping_add(1);
        line.here.0.load(Relaxed).wrapping_sub(answered)
    }

    /// Returns how many of the dispatcher's `here` tasks threads have not answered.
    #[inline]
    #[must_use]
    pub fn left(&self, name: usize, here: u32) -> u32 {
        here.wrapping_sub(self.0[name].answered.0.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_see_exact_remainder_across_wraparound() {
        let load: NamedLoad = NamedLoad::new(2);
        let start = u32::MAX - 2;
        load.0[1].answered.0.store(start, Relaxed);
        load.publish(1, start.wrapping_add(5));
        assert_eq!((0..5).map(|_| load.answer(1)).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
        assert_eq!((load.left(1, start.wrapping_add(6)), load.left(0, 0)), (1, 0));
    }

    /// In any order, no answer sees a negative count, and the last one sees zero.
    #[test]
    fn threads_never_count_below_none() {
        let tasks: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let load: NamedLoad = NamedLoad::new(1);
        let (given, answered) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let work = || {
                while answered.load(Acquire) < tasks {
                    let taken = given.fetch_update(AcqRel, Acquire, |given| given.checked_sub(1));
                    match taken {
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
                given.fetch_add(1, AcqRel);
            }
        });
        assert_eq!(load.left(0, tasks), 0);
    }
}
