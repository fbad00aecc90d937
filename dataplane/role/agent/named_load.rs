//! How many tasks are here by the name that their sender used, when threads end tasks themselves.
//!
//! A leaf counts by the name of the worker that it chose, whichever core does the task, so the length in a reply must be
//! that name's. The dispatcher alone writes how many it took in, threads add what they have answered, and the difference
//! is exact: each answer sees all that its own task's arrival and every earlier answer saw.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed};

/// A number that threads share. [`NamedLoad`] is generic over it, so that loom runs the code that the threads run.
pub trait Number: Default {
    /// Loads it.
    fn load(&self, order: Ordering) -> u32;
    /// Stores it.
    fn store(&self, value: u32, order: Ordering);
    /// Adds to it and returns what it was.
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

/// A count on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count<N>(N);

#[derive(Debug, Default)]
struct Line<N> {
    /// Written by the dispatcher: tasks taken in, less those that it ended.
    here: Count<N>,
    /// Added to by threads.
    answered: Count<N>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct NamedLoad<N = AtomicU32>(Box<[Line<N>]>);

impl<N: Number> NamedLoad<N> {
    /// Of so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Line::default()).collect())
    }

    /// The dispatcher has so many, not counting what threads have answered. Before a task is handed over.
    #[inline]
    pub fn publish(&self, name: usize, here: u32) {
        self.0[name].here.0.store(here, Relaxed);
    }

    /// A thread has answered one; returns how many are left.
    #[inline]
    #[must_use]
    pub fn answer(&self, name: usize) -> u32 {
        let line = &self.0[name];
        // Acquire: who answered before had seen its task's arrival, and so shall we.
        let answered = line.answered.0.fetch_add(1, AcqRel).wrapping_add(1);
        line.here.0.load(Relaxed).wrapping_sub(answered)
    }

    /// Of so many that the dispatcher has, those that threads have not answered.
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
    fn every_answer_sees_what_is_left_also_across_the_end_of_the_numbers() {
        let load: NamedLoad = NamedLoad::new(2);
        let start = u32::MAX - 2;
        load.0[1].answered.0.store(start, Relaxed);
        load.publish(1, start.wrapping_add(5));
        assert_eq!((0..5).map(|_| load.answer(1)).collect::<Vec<_>>(), [4, 3, 2, 1, 0]);
        assert_eq!((load.left(1, start.wrapping_add(6)), load.left(0, 0)), (1, 0));
    }

    /// Whatever the order: no answer sees fewer than none, and after the last there is none.
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
