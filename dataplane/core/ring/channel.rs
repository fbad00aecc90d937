//! Dispatcher's end of one worker's channel, with the bytes of tasks and replies.
//!
//! A *channel* is shared memory for the tasks of one worker. It has a fixed number of slots, one per task in flight.
//! Each slot has a *part* of the channel's area for the task's bytes, followed by a part for the reply's bytes. A part
//! starts with a head of two words, then the payload. The agent's polling core uses this end; the worker uses
//! `WorkerEnd`. The dispatcher excludes a faulty worker by revoking its grant of the channel.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::{HEAD, RegionShape};
use super::protocol::{CreditError, Notice, Sender};
use super::task_slots::TaskPosition;
use super::{bytes, park};
use crate::state::region::Slice;

/// Length that marks a task without a reply.
pub const NO_REPLY: u32 = u32::MAX;

/// Ids that accompany a task's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskIds {
    /// Application id.
    pub app: u32,
    /// Sequence number.
    pub seq: u32,
    /// Class; 0 if unknown.
    pub class: u16,
}

/// Result of a completed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Reply {
        /// Length of the answer in bytes.
        len: usize,
        /// Service time as reported by the worker; saturating.
        service_ns: u32,
    },
    /// Completed without an answer.
    Unanswered,
    /// The answer belongs to another task, or has an impossible length.
    Refused,
}

/// Dispatcher's end of a channel.
#[derive(Debug)]
pub struct Channel {
    /// Index of the channel in its region.
    index: usize,
    /// Protocol of the channel: notices of tasks and their completions, without bytes.
    sender: Sender<Slice<AtomicU64>>,
    /// Word in which the worker stores that it sleeps.
    sleep: Slice<AtomicU32>,
    /// Bytes of tasks and replies.
    area: Slice<AtomicU64>,
    /// Dimensions of the region, which give the position of each slot's parts in the area.
    shape: RegionShape,
}

impl Channel {
    /// Creates the end of the channel with this index.
    pub(super) fn new(
        index: usize,
        sender: Sender<Slice<AtomicU64>>,
        sleep: Slice<AtomicU32>,
        area: Slice<AtomicU64>,
        shape: RegionShape,
    ) -> Self {
        Self { index, sender, sleep, area, shape }
    }

    /// Returns the channel's index in the region.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the sender: positions and states of the channel's tasks, without their bytes.
    #[inline]
    #[must_use]
    pub fn sender(&self) -> &Sender<Slice<AtomicU64>> {
        &self.sender
    }

    /// Returns the sender, for grants of the channel and for tasks without bytes.
    #[inline]
    pub fn sender_mut(&mut self) -> &mut Sender<Slice<AtomicU64>> {
        &mut self.sender
    }

    /// Gives a task to the worker. Returns false without effect if there is no worker, no free slot, or the
    /// task is too long. Does not wake a sleeping worker; [`Channel::collect`] does.
    #[inline]
    pub fn send(&mut self, ids: TaskIds, payload: &[u8]) -> bool {
        let is_given = self.append(ids, payload);
        self.sender.publish();
        is_given
    }

    /// Same as [`Channel::send`], but the worker sees the task only after the next [`Sender::publish`].
    #[inline]
    pub fn append(&mut self, ids: TaskIds, payload: &[u8]) -> bool {
        // An excluded worker may still read its old tasks, so their bytes must not change before the next grant.
        let can_send = self.sender.is_granted() && self.sender.room() > 0;
        if !can_send || payload.len() > self.shape.payload {
            return false;
        }
        let offset = self.sender.next_slot() * self.shape.stride();
        let part = &self.area[offset / 8..][..self.shape.part() / 8]; // offsets are in bytes, the area is in words
        part[0].store(u64::from(ids.app) << 32 | u64::from(ids.seq), Relaxed);
        bytes::store(&part[HEAD / 8..], payload);
        let (offset, len) = (offset as u32, payload.len() as u32);
        self.sender.append(Notice { offset, len, class: ids.class })
    }

    /// Returns the counts of the tasks completed since the last call; `sender().completed(count)` gives each task's
    /// position. Wakes the worker if it sleeps with a pending task.
    ///
    /// # Errors
    /// If the worker's count or list of completed tasks is impossible. The caller must then exclude the worker.
    #[inline]
    pub fn collect(&mut self) -> Result<std::ops::Range<u64>, CreditError> {
        let completed = self.sender.collect()?;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for count in completed.clone() {
            // All replies at once, so that their transfers from the worker's cache overlap.
            bytes::prefetch(self.reply_part(self.sender.completed(count).slot).as_ptr());
        }
        if self.sender.outstanding() > 0 && park::is_asleep(&self.sleep[0]) {
            park::wake(&self.sleep[0]);
        }
        Ok(completed)
    }

    /// Returns the part of the area with the reply to the task in this slot.
    #[inline]
    fn reply_part(&self, slot: usize) -> &[AtomicU64] {
        let offset = slot * self.shape.stride() + self.shape.part();
        &self.area[offset / 8..][..self.shape.part() / 8]
    }

    /// Returns the result of a completed task. Call it before giving the next task.
    #[inline]
    #[must_use]
    pub fn outcome(&self, task: TaskPosition) -> Outcome {
        let part = self.reply_part(task.slot);
        // Head of a reply: the task's number, then the reply's length (upper half) and the service time (lower half).
        let answered = part[0].load(Relaxed);
        let word = part[1].load(Relaxed);
        let (len, service_ns) = ((word >> 32) as u32, word as u32);
        if answered != task.number {
            return Outcome::Refused;
        }
        match len {
            NO_REPLY => Outcome::Unanswered,
            len if len as usize <= self.shape.payload => {
                Outcome::Reply { len: len as usize, service_ns }
            }
            _ => Outcome::Refused,
        }
    }

    /// Copies the first bytes of the reply to a completed task.
    ///
    /// # Panics
    /// If `into` is longer than a reply may be.
    #[inline]
    pub fn reply(&self, task: TaskPosition, into: &mut [u8]) {
        bytes::load(&self.reply_part(task.slot)[HEAD / 8..], into);
    }

    /// Tells the worker that no more tasks will come, and wakes it.
    pub fn stop(&self) {
        self.sender.stop();
        self.wake();
    }

    /// Wakes the worker if it sleeps, so that it sees a stop or a revocation.
    pub fn wake(&self) {
        park::wake(&self.sleep[0]);
    }
}
