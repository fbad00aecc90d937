//! Transfer of tasks to workers: copied to another process, or handed over to a thread of this one.
//!
//! A worker set has one link per worker. A *channel* is memory that the agent shares with the worker. A worker claims
//! its channel by a number and gets tasks once the agent grants the claim. Each completed task is a credit. A *slot* is
//! one task's part of the channel's memory.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use crate::io::Token;
use crate::ring::{Channel, CreditError, Producer, Sender, TaskIds};
use crate::state::region::Slice;

/// A task that a worker can get.
pub trait Work: Sized {
    /// Form in which a task is handed over to a thread.
    type Parcel: Token;
    /// Returns the arrival time of the task in nanoseconds. The worker set measures the waiting time from it.
    fn since_ns(&self) -> u64;
    /// Returns the ids and the class of the task, which its copy carries beside the bytes.
    fn ids(&self) -> TaskIds;
    /// Returns the bytes of the task that the link copies.
    fn payload(&self) -> &[u8];
    /// Converts the task for handing over, with a note (a number) that `unpack` gets back.
    fn pack(self) -> (Self::Parcel, u32);
    /// Converts a handed-over task back. `None` if its bytes are no longer a task.
    fn unpack(parcel: Self::Parcel, note: u32) -> Option<Self>;
}

/// Connection to a worker.
pub enum WorkerLink<T: Work> {
    /// Bytes of tasks and answers are copied; the tasks stay here.
    Copied {
        /// Channel to the worker, a process or a thread.
        channel: Channel,
        /// Tasks of the worker, by slot. The caller of `collect` takes them out.
        held: Box<[Option<T>]>,
    },
    /// Tasks are handed over to a thread of this process, which completes them.
    Handed(Producer<T::Parcel>),
}

impl<T: Work> fmt::Debug for WorkerLink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if matches!(self, Self::Copied { .. }) { "Copied" } else { "Handed" };
        f.debug_tuple(name).field(self.channel()).finish()
    }
}

impl<T: Work> From<Channel> for WorkerLink<T> {
    /// Creates the link to a worker that gets copies.
    fn from(channel: Channel) -> Self {
        let held = (0..channel.sender().slots()).map(|_| None).collect();
        Self::Copied { channel, held }
    }
}

impl<T: Work> From<Producer<T::Parcel>> for WorkerLink<T> {
    /// Creates the link to a thread that gets the tasks themselves.
    fn from(producer: Producer<T::Parcel>) -> Self {
        Self::Handed(producer)
    }
}

impl<T: Work> WorkerLink<T> {
    /// Returns the channel for inspection.
    #[inline]
    pub fn channel(&self) -> &Channel {
        match self {
            Self::Copied { channel, .. } => channel,
            Self::Handed(producer) => producer.channel(),
        }
    }

    /// Returns the channel's sending end.
    #[inline]
    pub fn sender(&self) -> &Sender<Slice<AtomicU64>> {
        self.channel().sender()
    }

    /// Moves the tasks at `indices` to the worker, and publishes them together. Leaves a task if the worker has no
    /// grant or no free slot, or if the task's bytes exceed a slot.
    #[inline]
    pub fn give(&mut self, tasks: &mut [Option<T>], indices: impl Iterator<Item = usize>) {
        match self {
            Self::Copied { channel, held } => {
                for index in indices {
                    let slot = channel.sender().next_slot();
                    let is_given = |task: &T| channel.append(task.ids(), task.payload());
                    if tasks[index].as_ref().is_some_and(is_given) {
                        held[slot] = tasks[index].take();
                    }
                }
                channel.sender_mut().publish();
            }
            Self::Handed(producer) => {
                for index in indices.take(producer.room()) {
                    let Some((parcel, note)) = tasks[index].take().map(T::pack) else { continue };
                    let is_given = producer.append(parcel, note).is_ok();
                    debug_assert!(is_given, "there was room");
                }
                producer.publish();
            }
        }
    }

    /// Processes new credits. Wakes the worker if it sleeps with a pending task. Returns the counts of the completed
    /// tasks: the first completion of a channel has count 0. [`Sender::completed`] returns the slot of a copied task.
    ///
    /// # Errors
    /// If the worker's count or list of completed tasks is impossible. The caller must then exclude the worker.
    #[inline]
    pub fn collect(&mut self) -> Result<Range<u64>, CreditError> {
        match self {
            Self::Copied { channel, .. } => channel.collect(),
            Self::Handed(producer) => producer.collect(),
        }
    }

    /// Grants the channel to the worker with this claim. Returns false if it has left.
    pub fn grant(&mut self, claim: u64) -> bool {
        match self {
            Self::Copied { channel, .. } => channel.sender_mut().grant(claim),
            Self::Handed(producer) => producer.grant(), // the thread has only one claim
        }
    }

    /// Revokes the grant, and passes each unfinished task to `take_back` with the channel. Returns the number of these
    /// tasks. Has no effect on a thread that is still attached, or whose last credits were not collected.
    pub fn revoke(&mut self, mut take_back: impl FnMut(T, &Channel)) -> u32 {
        match self {
            Self::Copied { channel, held } => {
                let lost = channel.sender_mut().revoke();
                channel.wake(); // so that a sleeping worker sees the revocation
                // Starts at the oldest task's slot, so that the tasks return in the order in which they were given.
                // A worker that completes in any order has no such slot; its tasks return in any order.
                let oldest = lost.start as usize & (held.len() - 1); // the number of slots is a power of two
                for slot in (oldest..held.len()).chain(0..oldest) {
                    if let Some(task) = held[slot].take() {
                        take_back(task, channel);
                    }
                }
                (lost.end - lost.start) as u32
            }
            Self::Handed(producer) => {
                let mut lost = 0;
                while let Some((parcel, note)) = producer.take_back() {
                    lost += 1;
                    // Always a task: its bytes have not changed since they were parsed.
                    if let Some(task) = T::unpack(parcel, note) {
                        take_back(task, producer.channel());
                    }
                }
                lost
            }
        }
    }
}
