//! Worker's end of its channel: the protocol's receiver, together with the bytes of one task at a time.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use super::channel::{NO_REPLY, TaskIds};
use super::layout::{HEAD, RegionShape};
use super::lock::ChannelLock;
use super::protocol::{Notice, Place, Receiver};
use super::{bytes, park};
use crate::state::region::Slice;

/// An impossible notice from the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNotice;

/// A task taken and not completed.
#[derive(Clone, Copy, Debug)]
struct CurrentTask {
    number: u64,
    notice: Notice,
}

/// Worker's end; see the module's documentation.
#[derive(Debug)]
pub struct WorkerEnd {
    receiver: Receiver<Slice<AtomicU64>>,
    /// Word in which the worker stores that it sleeps.
    sleep: Slice<AtomicU32>,
    /// Bytes of tasks and replies.
    area: Slice<AtomicU64>,
    shape: RegionShape,
    place: Place,
    /// Task taken and not completed.
    current: Option<CurrentTask>,
    _lock: ChannelLock,
}

impl WorkerEnd {
    /// Creates the end of a claimed channel. Keeps `lock` until it is dropped.
    pub(super) fn new(
        receiver: Receiver<Slice<AtomicU64>>,
        sleep: Slice<AtomicU32>,
        area: Slice<AtomicU64>,
        shape: RegionShape,
        place: Place,
        lock: ChannelLock,
    ) -> Self {
        Self { receiver, sleep, area, shape, place, current: None, _lock: lock }
    }

    /// Returns the worker's identity.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Returns the receiver: positions and states of the channel's tasks, without their bytes.
    #[inline]
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Slice<AtomicU64>> {
        &self.receiver
    }

    /// Returns the receiver, to take and complete tasks without their bytes.
    #[inline]
    pub fn receiver_mut(&mut self) -> &mut Receiver<Slice<AtomicU64>> {
        &mut self.receiver
    }

    /// Starts with the dispatcher's first task. Call it once, after the grant.
    pub fn start(&mut self) {
        self.receiver.start();
    }

    /// Returns true if a task was taken and not completed.
    #[inline]
    #[must_use]
    pub fn has_task(&self) -> bool {
        self.current.is_some()
    }

    /// Takes the next task. Returns false if none is available. An earlier task must have been completed.
    ///
    /// # Errors
    /// If its position or length is impossible.
    #[inline]
    pub fn take(&mut self) -> Result<bool, BadNotice> {
        debug_assert!(self.current.is_none());
        let number = self.receiver.next();
        let Some(notice) = self.receiver.receive() else {
            return Ok(false);
        };
        let (offset, stride) = (notice.offset as usize, self.shape.stride());
        // The bytes of a task are always at its slot's part of the area.
        let fits = offset == self.receiver.slot(number) * stride;
        if !fits || notice.len as usize > self.shape.payload {
            return Err(BadNotice);
        }
        self.current = Some(CurrentTask { number, notice });
        Ok(true)
    }

    /// Returns the current task's part and the reply's part of the area; empty without a task.
    #[inline]
    fn parts(&self) -> (&[AtomicU64], &[AtomicU64]) {
        let Some(current) = self.current else {
            return (&[], &[]);
        };
        let start = current.notice.offset as usize / 8;
        self.area[start..][..self.shape.stride() / 8].split_at(self.shape.part() / 8)
    }

    /// Returns the current task's bytes; empty without a task.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let Some(current) = self.current else {
            return &[];
        };
        // SAFETY: the dispatcher writes a task's part only before giving the task and after its completion,
        // which takes `&mut self`; this end never writes it.
        let part = unsafe { bytes::view(self.parts().0) };
        &part[HEAD..][..current.notice.len as usize]
    }

    /// Returns the ids of the current task; zeros without one.
    #[inline]
    #[must_use]
    pub fn ids(&self) -> TaskIds {
        let (Some(current), Some(word)) = (self.current, self.parts().0.first()) else {
            return TaskIds::default();
        };
        let word = word.load(Relaxed);
        TaskIds { app: (word >> 32) as u32, seq: word as u32, class: current.notice.class }
    }

    /// Completes the current task with an answer; does nothing without a task. `write` gets the task's bytes and the
    /// buffer for the answer, and returns its length. `worked_ns` is called afterwards for the time worked, in
    /// nanoseconds.
    ///
    /// # Panics
    /// If the answer is too long. The task is not completed then.
    #[inline]
    pub fn answer(
        &mut self,
        write: impl FnOnce(&[u8], &mut [u8]) -> usize,
        worked_ns: impl FnOnce() -> u64,
    ) {
        if self.current.is_none() {
            return;
        }
        // SAFETY: the dispatcher does not read a reply's part before the task is completed. This end has no
        // other reference to it, ensured by `&mut self`.
        let reply = unsafe { bytes::view_mut(self.parts().1) };
        let len = write(self.payload(), &mut reply[HEAD..][..self.shape.payload]);
        assert!(len <= self.shape.payload, "a reply of {len} bytes, {} fit", self.shape.payload);
        self.complete(len as u32, worked_ns());
    }

    /// Completes the current task without an answer.
    #[inline]
    pub fn give_up(&mut self, worked_ns: u64) {
        self.complete(NO_REPLY, worked_ns);
    }

    /// Writes the result of the current task, then its credit.
    #[inline]
    fn complete(&mut self, len: u32, worked_ns: u64) {
        let Some(current) = self.current else {
            return;
        };
        let service_ns = worked_ns.min(u64::from(u32::MAX));
        let (_, reply) = self.parts();
        reply[0].store(current.number, Relaxed);
        reply[1].store(u64::from(len) << 32 | service_ns, Relaxed);
        self.current = None;
        self.receiver.complete(worked_ns);
    }

    /// Disappears without notice and releases its lock, like a killed process; for tests.
    #[doc(hidden)]
    pub fn die(self) {
        let mut dead = std::mem::ManuallyDrop::new(self);
        // SAFETY: the lock is not used after this, and the rest is never dropped.
        unsafe { std::ptr::drop_in_place(&raw mut dead._lock) };
    }

    /// Sleeps until the dispatcher wakes it, a task arrives, the dispatcher ends, or `longest` has passed.
    pub fn sleep(&self, longest: Duration) {
        park::sleep(&self.sleep[0], longest, || {
            self.receiver.is_ready() || self.receiver.is_stopped()
        });
    }
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        self.receiver.leave();
    }
}
