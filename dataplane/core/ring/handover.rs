//! Channel between threads of one process: tasks change owner with their packet, and nothing is copied.
//!
//! The dispatcher of an agent and its worker threads use it. A [`Token`] is an owned packet that converts to one word
//! and back. The dispatcher *grants* the channel to a worker before it gives the first task.
//!
//! A slot's word is the task itself (a pointer), so the word that a worker reads must come from its
//! dispatcher and be taken exactly once. Therefore both ends are created together, around memory that no other code
//! can reach. A worker that leaves, even by a panic, first completes each task that it has taken. So a task that the
//! dispatcher finds incomplete afterwards was never taken, and belongs to the dispatcher again.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::channel::Channel;
use super::protocol::{CreditError, Sender, WorkerIdentity};
use super::region::{RegionError, WorkerRegion};
use super::worker_end::WorkerEnd;
use crate::io::Token;
use crate::state::region::Slice;

/// Creates both ends of a channel with `slots` slots. The worker gets tasks only after [`Producer::grant`]. Its first
/// task has number 0, where both ends begin.
///
/// # Errors
/// If the number of slots is impossible.
pub fn pair<T: Token>(
    identity: WorkerIdentity,
    slots: usize,
) -> Result<(Producer<T>, Consumer<T>), RegionError> {
    let region = Arc::new(WorkerRegion::heap(&[identity], slots, 1)?); // 1: the shortest area, which stays unused
    let io = |error| RegionError::Io { path: "memory".into(), error };
    let end = region.claim(0).map_err(io)?.ok_or(RegionError::RegionShape(region.shape()))?;
    let panicked = Arc::new(AtomicBool::new(false));
    let producer = Producer {
        channel: region.channel(0),
        panicked: Arc::clone(&panicked),
        untaken: 0..0,
        _tasks: PhantomData,
    };
    Ok((producer, Consumer { end, has_task: false, panicked, _tasks: PhantomData }))
}

/// Dispatcher's end.
pub struct Producer<T: Token> {
    /// Channel whose words hold the tasks.
    channel: Channel,
    /// True if the worker's thread panicked.
    panicked: Arc<AtomicBool>,
    /// Numbers of the tasks that a departed worker did not take.
    untaken: Range<u64>,
    /// The channel's words own tasks of this type. A function type, so that `T` does not limit `Send`.
    _tasks: PhantomData<fn(T)>,
}

impl<T: Token> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Producer").field(&self.channel).finish()
    }
}

impl<T: Token> Producer<T> {
    /// Returns the channel for inspection.
    #[inline]
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the channel's sender for inspection.
    #[inline]
    fn sender(&self) -> &Sender<Slice<AtomicU64>> {
        self.channel.sender()
    }

    /// Grants the channel to the worker. Returns false if it has already left or has the grant.
    pub fn grant(&mut self) -> bool {
        let claim = self.sender().claim();
        claim != 0 && !self.sender().is_granted() && self.channel.sender_mut().grant(claim)
    }

    /// Returns the number of tasks that can be given now; 0 if the worker has no grant. A departed worker keeps the
    /// grant until [`Producer::take_back`] revokes it.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        if self.sender().is_granted() { self.sender().room() } else { 0 }
    }

    /// Appends a task, with a number (`note`) that accompanies it. The worker sees it after the next
    /// [`Producer::publish`]. Does not wake the worker: [`Producer::collect`] does.
    ///
    /// # Errors
    /// Returns the task if no worker has the grant or no slot is free.
    #[inline]
    pub fn append(&mut self, task: T, note: u32) -> Result<(), T> {
        if self.room() == 0 {
            return Err(task);
        }
        let appended = self.channel.sender_mut().append_word(task.into_word(), note);
        debug_assert!(appended, "there was room");
        Ok(())
    }

    /// Makes the appended tasks visible to the worker.
    #[inline]
    pub fn publish(&mut self) {
        self.channel.sender_mut().publish();
    }

    /// Returns the numbers of the tasks completed since the last call. Wakes the worker if it sleeps with a pending
    /// task.
    ///
    /// # Errors
    /// If the worker's count of completed tasks is impossible.
    #[inline]
    pub fn collect(&mut self) -> Result<Range<u64>, CreditError> {
        self.channel.collect()
    }

    /// Returns the class of a completed task and its service time in nanoseconds, by a number that
    /// [`Producer::collect`] returned. Valid until the next task is given.
    #[inline]
    #[must_use]
    pub fn measured(&self, number: u64) -> (u16, u32) {
        let note = self.sender().completion_note(number);
        ((note >> 32) as u16, note as u32)
    }

    /// Returns the nanoseconds that the worker has worked since the last call.
    #[inline]
    pub fn worked_ns(&mut self) -> u64 {
        self.channel.sender_mut().worked_ns()
    }

    /// Returns true if the worker has not left.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.sender().claim() != 0
    }

    /// Returns true if the granted worker has left.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.sender().is_granted() && self.sender().claim() == 0
    }

    /// Returns true if the worker left because its thread panicked.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Relaxed)
    }

    /// Takes back the next task that a departed worker did not take, and revokes the worker's grant. `None` while the
    /// worker is attached. Call `collect` between the departure and this call: otherwise this call collects the last
    /// completions, discards their numbers, and returns `None`.
    pub fn take_back(&mut self) -> Option<(T, u32)> {
        if self.is_left() && matches!(self.collect(), Ok(done) if done.is_empty()) {
            self.untaken = self.channel.sender_mut().revoke();
        }
        let number = self.untaken.next()?;
        let (word, note) = self.sender().sent_word(number);
        // SAFETY: `append` made the word from a task of this type. The worker has left after completing every
        // task that it took. This one is incomplete, so it was not taken, and its number occurs here once.
        Some((unsafe { T::from_word(word) }, note))
    }
}

impl<T: Token> Drop for Producer<T> {
    /// Frees the tasks of a departed worker. An attached worker may still take its tasks, so they are leaked.
    fn drop(&mut self) {
        if self.is_left() {
            let _ = self.collect();
        }
        while self.take_back().is_some() {}
    }
}

/// Worker's end. Dropping it leaves the channel.
pub struct Consumer<T: Token> {
    /// Worker's end of the channel whose words hold the tasks.
    end: WorkerEnd,
    /// True if a task was taken and not completed.
    has_task: bool,
    /// Set if this end is dropped by a panic; shared with the producer.
    panicked: Arc<AtomicBool>,
    /// This end takes tasks of this type.
    _tasks: PhantomData<fn() -> T>,
}

impl<T: Token> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Consumer").field(&self.end).finish()
    }
}

impl<T: Token> Consumer<T> {
    /// Returns the worker's identity.
    #[must_use]
    pub fn identity(&self) -> WorkerIdentity {
        self.end.identity()
    }

    /// Takes the next task with its note, if one is available. The task taken before must have been completed.
    #[inline]
    pub fn take(&mut self) -> Option<(T, u32)> {
        debug_assert!(!self.has_task, "one task at a time");
        let (word, note) = self.end.receiver().receive_word()?;
        self.has_task = true;
        // SAFETY: only `Producer::append`, of the same type, writes the slots, and a number is received once.
        Some((unsafe { T::from_word(word) }, note))
    }

    /// Completes the current task, of this class, after `worked_ns` nanoseconds of work.
    #[inline]
    pub fn complete(&mut self, class: u16, worked_ns: u64) {
        self.has_task = false;
        let note = u64::from(class) << 32 | worked_ns.min(u64::from(u32::MAX));
        self.end.receiver().complete_noted(note, worked_ns);
    }

    /// Returns the number of tasks given and not taken.
    #[inline]
    pub fn waiting(&mut self) -> usize {
        self.end.receiver().waiting()
    }

    /// Returns true if a task is available.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.end.receiver().is_ready()
    }

    /// Returns true if the dispatcher has announced that no more tasks will come.
    #[inline]
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.end.receiver().is_stopped()
    }

    /// Sleeps until the dispatcher wakes the worker, a task is available, no more tasks will come, or `longest` has
    /// passed.
    pub fn sleep(&self, longest: Duration) {
        self.end.sleep(longest);
    }
}

impl<T: Token> Drop for Consumer<T> {
    /// Completes a task that was taken, so that the dispatcher takes back only untaken ones.
    fn drop(&mut self) {
        self.panicked.store(std::thread::panicking(), Relaxed);
        if self.has_task {
            self.complete(0, 0);
        }
        // The worker's end is dropped next, which leaves the channel.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T: Token> Producer<T> {
        /// Gives a task to the worker, which sees it at once.
        fn give(&mut self, task: T, note: u32) -> Result<(), T> {
            let given = self.append(task, note);
            self.publish();
            given
        }
    }

    type Ends = (Producer<Box<u32>>, Consumer<Box<u32>>);

    /// Creates both ends of a granted channel with four slots.
    fn ends() -> Ends {
        let (mut producer, consumer) = pair(WorkerIdentity { id: 3, pool: 1 }, 4).unwrap();
        producer.grant();
        (producer, consumer)
    }

    #[test]
    fn handover_keeps_order_and_full_ring_refuses() {
        let (mut producer, mut consumer) = ends();
        assert!((0..4).all(|task| producer.give(Box::new(task), 10 + task).is_ok()));
        assert_eq!(producer.give(Box::new(4), 0), Err(Box::new(4)));
        assert_eq!((consumer.waiting(), consumer.identity().id), (4, 3));
        for task in 0..4 {
            assert_eq!(consumer.take(), Some((Box::new(task), 10 + task)));
            assert_eq!(consumer.waiting(), 3 - task as usize);
            consumer.complete(10 + task as u16, 5 + u64::from(task));
        }
        assert_eq!(
            (consumer.take(), producer.collect(), producer.worked_ns()),
            (None, Ok(0..4), 26)
        );
        assert_eq!([0, 3].map(|number| producer.measured(number)), [(10, 5), (13, 8)]);
    }

    #[test]
    fn nothing_is_given_before_the_grant() {
        let (mut producer, mut consumer) =
            pair::<Box<u32>>(WorkerIdentity { id: 3, pool: 1 }, 4).unwrap();
        assert_eq!((producer.give(Box::new(1), 0), consumer.take()), (Err(Box::new(1)), None));
    }

    // promise: agent.2
    #[test]
    fn untaken_tasks_of_departed_worker_return_once() {
        let (mut producer, mut consumer) = ends();
        assert!((0..4).all(|task| producer.give(Box::new(task), 0).is_ok()));
        assert!(consumer.take().is_some());
        assert_eq!(producer.take_back(), None, "the worker is attached");
        drop(consumer);
        assert!(producer.is_left() && !producer.has_panicked());
        assert_eq!(producer.collect(), Ok(0..1), "the task that it took is completed");
        let back: Vec<_> =
            std::iter::from_fn(|| producer.take_back()).map(|(task, _)| *task).collect();
        assert_eq!((back, producer.take_back()), (vec![1, 2, 3], None));
        assert_eq!(producer.give(Box::new(4), 0), Err(Box::new(4)));
    }

    // promise: agent.2
    #[test]
    fn unpublished_run_of_departed_worker_returns() {
        let (mut producer, mut consumer) = ends();
        assert!(producer.give(Box::new(0), 0).is_ok());
        assert!((1..4).all(|task| producer.append(Box::new(task), 10 + task).is_ok()));
        assert!(consumer.take().is_some() && !consumer.is_ready(), "one task is visible");
        drop(consumer);
        assert_eq!(producer.collect(), Ok(0..1));
        let back: Vec<_> =
            std::iter::from_fn(|| producer.take_back()).map(|(task, note)| (*task, note)).collect();
        assert_eq!(back, [(1, 11), (2, 12), (3, 13)]);
    }

    #[test]
    fn dropped_producer_frees_all_untaken_tasks() {
        let counted = Arc::new(());
        let (mut producer, consumer) = pair(WorkerIdentity { id: 3, pool: 1 }, 4).unwrap();
        producer.grant();
        assert!((0..4).all(|_| producer.give(Box::new(Arc::clone(&counted)), 0).is_ok()));
        drop(consumer);
        drop(producer.take_back().unwrap());
        drop(producer);
        assert_eq!(Arc::strong_count(&counted), 1, "all four tasks are freed");
    }

    // promise: agent.2
    #[test]
    fn panicked_thread_is_distinguished() {
        let (mut producer, mut consumer) = ends();
        assert!((0..2).all(|task| producer.give(Box::new(task), 0).is_ok()));
        let thread = std::thread::spawn(move || {
            let _task = consumer.take();
            panic!("a defect of the work");
        });
        assert!(thread.join().is_err());
        assert!(producer.is_left() && producer.has_panicked());
        assert_eq!(producer.collect(), Ok(0..1));
        assert_eq!((producer.take_back(), producer.take_back()), (Some((Box::new(1), 0)), None));
    }

    #[test]
    fn two_threads_pass_every_task_once() {
        let tasks = if cfg!(miri) { 200 } else { 20_000 };
        let (mut producer, mut consumer) = ends();
        let worker = std::thread::spawn(move || {
            let mut next = 0;
            while next < tasks {
                match consumer.take() {
                    Some((task, note)) => {
                        assert_eq!((*task, note), (next, !next));
                        next += 1;
                        consumer.complete(next as u16, 1);
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        for task in 0..tasks {
            let mut task = Box::new(task);
            let note = !*task;
            while let Err(back) = producer.give(task, note) {
                task = back;
                producer.collect().unwrap();
                std::thread::yield_now();
            }
        }
        worker.join().unwrap();
        producer.collect().unwrap();
        assert_eq!((producer.worked_ns(), producer.take_back()), (u64::from(tasks), None));
    }
}
