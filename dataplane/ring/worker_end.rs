//! The worker's end of its channel: the protocol, one task at a time, with its bytes.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use super::channel::{NO_REPLY, TaskIds};
use super::layout::{HEAD, RegionShape};
use super::protocol::{Notice, Receiver};
use super::region::{ChannelLock, Place};
use super::{bytes, park};
use crate::state::region::Slice;

/// What the worker's end can't believe of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNotice;

/// A task taken and not completed.
#[derive(Clone, Copy, Debug)]
struct Current {
    number: u64,
    notice: Notice,
}

/// See the module's text.
#[derive(Debug)]
pub struct WorkerEnd {
    receiver: Receiver<Slice<AtomicU64>>,
    sleep: Slice<AtomicU32>,
    area: Slice<AtomicU64>,
    shape: RegionShape,
    place: Place,
    current: Option<Current>,
    _lock: ChannelLock,
}

impl WorkerEnd {
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

    /// Who it is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// The protocol's end.
    #[inline]
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Slice<AtomicU64>> {
        &self.receiver
    }

    /// The protocol's end, to be driven without bytes.
    #[inline]
    pub fn receiver_mut(&mut self) -> &mut Receiver<Slice<AtomicU64>> {
        &mut self.receiver
    }

    /// Takes up where the dispatcher's tasks begin, once the claim is granted.
    pub fn start(&mut self) {
        self.receiver.start();
    }

    /// A task was taken and is not completed.
    #[inline]
    #[must_use]
    pub fn has_task(&self) -> bool {
        self.current.is_some()
    }

    /// Takes the next task; false when none is there. One taken before must have been completed.
    ///
    /// # Errors
    /// When its place can't be.
    #[inline]
    pub fn take(&mut self) -> Result<bool, BadNotice> {
        debug_assert!(self.current.is_none());
        let number = self.receiver.next();
        let Some(notice) = self.receiver.receive() else {
            return Ok(false);
        };
        let (offset, stride) = (notice.offset as usize, self.shape.stride());
        let fits = offset == self.receiver.slot(number) * stride;
        if !fits || notice.len as usize > self.shape.payload {
            return Err(BadNotice);
        }
        self.current = Some(Current { number, notice });
        Ok(true)
    }

    /// The current task's part of the area and the reply's; empty without a task.
    #[inline]
    fn parts(&self) -> (&[AtomicU64], &[AtomicU64]) {
        let Some(current) = self.current else {
            return (&[], &[]);
        };
        let at = current.notice.offset as usize / 8;
        self.area[at..][..self.shape.stride() / 8].split_at(self.shape.part() / 8)
    }

    /// The current task's bytes; empty without a task.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        let Some(current) = self.current else {
            return &[];
        };
        // SAFETY: the dispatcher writes a task's part only before it gives the task and after it is
        // completed, which takes `&mut self`; this end never writes it.
        let part = unsafe { bytes::view(self.parts().0) };
        &part[HEAD..][..current.notice.len as usize]
    }

    /// What goes with the current task; zeros without one.
    #[inline]
    #[must_use]
    pub fn ids(&self) -> TaskIds {
        let (Some(current), Some(word)) = (self.current, self.parts().0.first()) else {
            return TaskIds::default();
        };
        let word = word.load(Relaxed);
        TaskIds { app: (word >> 32) as u32, seq: word as u32, class: current.notice.class }
    }

    /// Completes the current task with what `write` puts into its second argument, given the task's bytes as its
    /// first; it returns how many bytes the answer has. `worked` is asked afterwards for the time worked.
    ///
    /// # Panics
    /// When the answer is longer than an answer may be; the task is not completed then.
    #[inline]
    pub fn answer(
        &mut self,
        write: impl FnOnce(&[u8], &mut [u8]) -> usize,
        worked_ns: impl FnOnce() -> u64,
    ) {
        if self.current.is_none() {
            return;
        }
        // SAFETY: the dispatcher does not read a reply's part before the task is completed, this end
        // has no other reference to it, and `&mut self` keeps it so.
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

    /// Goes without a word and lets go of its place, as a process does that is killed.
    #[cfg(test)]
    pub(crate) fn die(self) {
        let mut dead = std::mem::ManuallyDrop::new(self);
        // SAFETY: nobody uses the lock after this; the rest is never dropped.
        unsafe { std::ptr::drop_in_place(&raw mut dead._lock) };
    }

    /// Sleeps until the dispatcher wakes it, a task comes, the dispatcher ends, or for so long.
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
