//! Worker's end of its channel: the protocol's receiver and the bytes of tasks and replies.
//!
//! A channel is memory that the worker shares with its agent's dispatcher. It has a slot for each task in flight. Each
//! slot has a part of the channel's *area* for the task's bytes and one for the reply's. The dispatcher announces a
//! task by a *notice*, which holds the offset and the length of its bytes.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use super::channel::{NO_REPLY, TaskIds};
use super::layout::{HEAD, RegionShape};
use super::lock::ChannelLock;
use super::protocol::{Notice, Receiver, WorkerIdentity};
use super::{bytes, park};
use crate::state::region::Slice;

/// Error: the agent wrote a notice with an impossible offset or length, or for a slot with a task in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNotice;

/// A task taken and not completed.
#[derive(Debug)]
pub struct TakenTask {
    /// Number of the task in its channel.
    number: u64,
    /// Index of its part of the area.
    slot: u32,
    /// Length of its bytes.
    len: u32,
    /// Class; 0 if unknown.
    class: u16,
}

impl TakenTask {
    /// Returns the task's class; 0 if unknown.
    #[must_use]
    pub fn class(&self) -> u16 {
        self.class
    }

    /// Returns a second handle of the task, by which the worker completes or resumes a task that its handler forgot
    /// (`mem::forget`). The caller may complete at most one of the two.
    pub(crate) fn duplicate(&self) -> Self {
        Self { ..*self }
    }
}

/// Worker's end of a channel. Dropping it leaves the channel.
#[derive(Debug)]
pub struct WorkerEnd {
    /// Protocol of the channel, without the bytes of tasks.
    receiver: Receiver<Slice<AtomicU64>>,
    /// Word in which the worker stores that it sleeps.
    sleep: Slice<AtomicU32>,
    /// Bytes of tasks and replies, as words.
    area: Slice<AtomicU64>,
    /// Dimensions of the region, which give the position of each task in the area.
    shape: RegionShape,
    /// Identity of the worker.
    identity: WorkerIdentity,
    /// Number of the task in progress in each slot; `None` for a slot without one. Empty for a worker that completes
    /// tasks in order.
    in_progress: Box<[Cell<Option<u64>>]>,
    /// Excludes other workers from the channel.
    _lock: ChannelLock,
}

impl WorkerEnd {
    /// Creates the worker's end of a claimed channel. `lock` excludes other workers for the life of this end.
    pub(super) fn new(
        receiver: Receiver<Slice<AtomicU64>>,
        sleep: Slice<AtomicU32>,
        area: Slice<AtomicU64>,
        shape: RegionShape,
        identity: WorkerIdentity,
        lock: ChannelLock,
    ) -> Self {
        Self { receiver, sleep, area, shape, identity, in_progress: Box::default(), _lock: lock }
    }

    /// Returns the worker's identity.
    #[must_use]
    pub fn identity(&self) -> WorkerIdentity {
        self.identity
    }

    /// Returns the receiver, which takes and completes tasks without access to their bytes.
    #[inline]
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Slice<AtomicU64>> {
        &self.receiver
    }

    /// Starts with the dispatcher's first task, which skips those of the channel's former workers. Call it once, after
    /// the dispatcher has granted the channel.
    pub fn start(&self) {
        self.receiver.start();
    }

    /// Allows tasks to be completed in any order from now on, for tasks that share the worker's core. All tasks taken
    /// so far must have been completed.
    pub fn complete_in_any_order(&mut self) {
        if self.in_progress.is_empty() {
            self.in_progress = (0..self.shape.slots).map(|_| Cell::new(None)).collect();
            self.receiver.list_completions();
        }
    }

    /// Takes the next task; `None` if none is available. A worker that completes tasks in order must complete each
    /// task before it takes the next one.
    ///
    /// # Errors
    /// If the notice's offset or length is impossible, or its slot has a task in progress.
    #[inline]
    pub fn take(&self) -> Result<Option<TakenTask>, BadNotice> {
        let number = self.receiver.next();
        let Some(Notice { offset, len, class }) = self.receiver.receive() else {
            return Ok(None);
        };
        let slot = match self.in_progress.is_empty() {
            true => self.receiver.slot(number),
            false => self.begin(number, offset as usize)?,
        };
        // The bytes of a task are always at its slot's part of the area.
        let fits = offset as usize == slot * self.shape.stride();
        if !fits || len as usize > self.shape.payload {
            return Err(BadNotice);
        }
        Ok(Some(TakenTask { number, slot: slot as u32, len, class }))
    }

    /// Returns the slot at this offset of the area, in bytes, and marks it as in progress with this task. Refuses a
    /// slot with a task in progress, so that two tasks never share a reply buffer.
    fn begin(&self, number: u64, offset: usize) -> Result<usize, BadNotice> {
        let slot = offset / self.shape.stride();
        let current = self.in_progress.get(slot).ok_or(BadNotice)?;
        if current.replace(Some(number)).is_some() { Err(BadNotice) } else { Ok(slot) }
    }

    /// Returns true if the task is not yet completed. The worker then completes it after its handler has ended. Always
    /// false for a worker that completes tasks in order.
    #[inline]
    pub(crate) fn is_in_progress(&self, task: &TakenTask) -> bool {
        self.in_progress.get(task.slot as usize).is_some_and(|slot| slot.get() == Some(task.number))
    }

    /// Returns the task's part and the reply's part of the area, as words of 8 bytes.
    #[inline]
    fn parts(&self, task: &TakenTask) -> (&[AtomicU64], &[AtomicU64]) {
        let stride = self.shape.stride() / 8;
        let start = task.slot as usize * stride;
        self.area[start..][..stride].split_at(self.shape.part() / 8)
    }

    /// Returns the task's bytes.
    #[inline]
    #[must_use]
    pub fn payload<'a>(&'a self, task: &'a TakenTask) -> &'a [u8] {
        // SAFETY: the dispatcher writes a task's part only before giving the task and after its completion, which
        // consumes `task`; this end never writes it.
        let part = unsafe { bytes::view(self.parts(task).0) };
        &part[HEAD..][..task.len as usize]
    }

    /// Returns the task's ids.
    #[inline]
    #[must_use]
    pub fn ids(&self, task: &TakenTask) -> TaskIds {
        let word = self.parts(task).0[0].load(Relaxed);
        TaskIds { app: (word >> 32) as u32, seq: word as u32, class: task.class }
    }

    /// Completes the task with an answer. `write` gets the task's bytes and the buffer for the answer, and returns the
    /// answer's length; `None` for no answer. Calls `worked_ns` afterwards for the time worked, in nanoseconds.
    ///
    /// # Errors
    /// Returns the task, not completed, if the answer is too long.
    #[inline]
    pub fn answer_if(
        &self,
        task: TakenTask,
        write: impl FnOnce(&[u8], &mut [u8]) -> Option<usize>,
        worked_ns: impl FnOnce() -> u64,
    ) -> Result<(), TakenTask> {
        // SAFETY: the dispatcher does not read a reply's part before the task is completed. This end has no other
        // reference to it, because each slot has one task, and `task` is consumed.
        let reply = unsafe { bytes::view_mut(self.parts(&task).1) };
        let len = write(self.payload(&task), &mut reply[HEAD..][..self.shape.payload]);
        if len.is_some_and(|len| len > self.shape.payload) {
            return Err(task);
        }
        self.complete(&task, len.map_or(NO_REPLY, |len| len as u32), worked_ns());
        Ok(())
    }

    /// Same as [`WorkerEnd::answer_if`], always with an answer.
    ///
    /// # Errors
    /// Same as for [`WorkerEnd::answer_if`].
    #[inline]
    pub fn answer(
        &self,
        task: TakenTask,
        write: impl FnOnce(&[u8], &mut [u8]) -> usize,
        worked_ns: impl FnOnce() -> u64,
    ) -> Result<(), TakenTask> {
        self.answer_if(task, |bytes, reply| Some(write(bytes, reply)), worked_ns)
    }

    /// Completes the task without an answer, after `worked_ns` nanoseconds of work.
    #[inline]
    pub fn end_without_reply(&self, task: TakenTask, worked_ns: u64) {
        self.complete(&task, NO_REPLY, worked_ns);
    }

    /// Writes the head of the task's reply, then its credit. `len` is the reply's length or [`NO_REPLY`].
    #[inline]
    fn complete(&self, task: &TakenTask, len: u32, worked_ns: u64) {
        let service_ns = worked_ns.min(u64::from(u32::MAX)); // the lower half of a word
        let (_, reply) = self.parts(task);
        reply[0].store(task.number, Relaxed);
        reply[1].store(u64::from(len) << 32 | service_ns, Relaxed);
        match self.in_progress.get(task.slot as usize) {
            None => self.receiver.complete(worked_ns),
            Some(in_progress) => {
                in_progress.set(None);
                self.receiver.complete_slot(task.slot as usize, worked_ns);
            }
        }
    }

    /// Releases the lock without leaving the channel, as the system does for a killed process; for tests.
    #[doc(hidden)]
    pub fn die(self) {
        let mut dead = std::mem::ManuallyDrop::new(self);
        // SAFETY: the lock is not used after this, and the rest is never dropped.
        unsafe { std::ptr::drop_in_place(&raw mut dead._lock) };
    }

    /// Sleeps until the dispatcher wakes the worker, a task is available, the dispatcher requests the worker's end, or
    /// `longest` has passed. May return earlier.
    pub fn sleep(&self, longest: Duration) {
        park::sleep(&self.sleep[0], longest, || {
            self.receiver.is_ready() || self.receiver.is_stopped()
        });
    }
}

impl Drop for WorkerEnd {
    /// Leaves the channel in order. The lock is released afterwards.
    fn drop(&mut self) {
        self.receiver.leave();
    }
}
