//! Protocol of a channel between a dispatcher and a worker. Slots carry tasks to the worker, and one line of credits
//! returns. A *line* is a cache line.
//!
//! Tasks have consecutive numbers. The notice of task n is in slot n modulo the number of slots. It contains a tag made
//! from n, so that the worker detects a new task. The worker publishes the number after its last completed task.
//! A worker attaches by a *claim*, a number that differs from its predecessors'. The dispatcher *grants* it by
//! publishing the same number.
//!
//! Tasks may share a worker's core: each runs for a *quantum* of time in turn. Such a worker completes tasks in any
//! order. From then on it lists the slots of completed tasks in a ring of their own, see
//! [`Receiver::list_completions`]. These are slots of the channel's area, which then differ from the notices' slots.
//!
//! Each side stores its data first and a marker (tag, count or claim) last, with Release. Its peer loads the marker
//! with Acquire.
//!
//! Measured: a task moves one cache line each way, less in bursts; a pair of ordinary rings moves three each way. A
//! task and its credit take 1.8 to 2.0 times the round trip of a line (150 to 820 cycles). Two tasks in flight share
//! this time. Slots in lines of their own, or the credit in the slot's line, change nothing with two tasks in flight.
//! With eight they cost 1.1 to 1.9 times as much. A pause in an idle worker's loop saves 8 to 17%, because each poll
//! takes the line from its writer.
//!
//! The types are generic over their words, so that loom checks the code that the processes run.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use super::task_slots::{TaskPosition, TaskSlots};

/// A shared word of 64 bits.
pub trait SharedWord {
    /// Loads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Stores the word.
    fn store(&self, value: u64, order: Ordering);
    /// Sequentially consistent fence of the same memory model.
    fn fence();
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline]
    fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Indices of the words of the line that the dispatcher writes.
pub mod control {
    /// Granted claim; 0 for none. Stored last.
    pub const GRANTED: usize = 0;
    /// Number of the granted worker's first task.
    pub const START: usize = 1;
    /// Request of the dispatcher: [`STOP`], or none.
    pub const REQUEST: usize = 2;
    /// Number of words.
    pub const WORDS: usize = 3;
    /// Request that the worker ends: no more tasks will come.
    pub const STOP: u64 = 1;
}

/// Indices of the words of the line that a worker writes when it attaches and leaves.
pub mod claim {
    /// Claim of the last worker: twice the number of workers so far, plus 1 while it is attached.
    pub const CLAIM: usize = 0;
    /// Process id of the worker.
    pub const PID: usize = 1;
    /// Last granted claim whose worker left in order. A successor's claim does not overwrite it.
    pub const LEFT: usize = 2;
    /// Identity under which the worker claims ([`super::WorkerIdentity::word`]). The agent may have assigned the
    /// channel to another one since the worker received its offer.
    pub const NAME: usize = 3;
    /// Thread id of the worker when it claimed.
    pub const THREAD: usize = 4;
    /// Number of words.
    pub const WORDS: usize = 5;
    /// Bit of a claim whose worker is attached.
    pub const ATTACHED: u64 = 1;
}

/// Indices of the words of the line by which a worker reports completed tasks.
pub mod credit {
    /// Number of the task after the last completed one. Stored last.
    pub const DONE: usize = 0;
    /// Nanoseconds worked since the worker attached.
    pub const BUSY_NS: usize = 1;
    /// Count of tasks completed before the first listed one, plus 1; 0 while the worker completes tasks in order.
    pub const LISTED: usize = 2;
    /// Quanta served to the tasks that share the worker's core now.
    pub const QUANTA: usize = 3;
    /// Number of words.
    pub const WORDS: usize = 4;
}

/// Number of words of a slot: one for the task's length and tag, one for the offset of its bytes and its class.
pub const SLOT_WORDS: usize = 2;

/// Identity of a worker in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerIdentity {
    /// Global worker id.
    pub id: u16,
    /// Its pool.
    pub pool: u16,
}

impl WorkerIdentity {
    /// Returns the identity as one number, for an offer and for a worker's claim ([`claim::NAME`]).
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.pool)
    }
}

/// Description of a task, in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Offset of the task's bytes in the channel's area.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
    /// Class; 0 if unknown.
    pub class: u16,
}

/// Impossible contents of a worker's credit line. The dispatcher then excludes the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// Fewer tasks completed than before.
    #[error("its count of completed tasks went backwards, from {before} to {found}")]
    Backwards {
        /// Count at the last call.
        before: u64,
        /// Count now.
        found: u64,
    },
    /// More tasks completed than given: an answer to a task that it did not get, or a second answer.
    #[error("it completed {found} tasks of {given} that it was given")]
    TooMany {
        /// Tasks given.
        given: u64,
        /// Tasks completed, as reported.
        found: u64,
    },
    /// Impossible list of completed tasks: a slot without a task, a list that begins too early, or one that ended.
    #[error("it listed a slot without a task as its completed task number {count}")]
    BadList {
        /// First impossible count.
        count: u64,
    },
}

/// State of the granted worker, from its channel's words. Until another worker claims the channel, only the lock
/// shows whether the process still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It has not left. It may have died.
    Attached,
    /// It has left in order.
    Left,
    /// It has not left, but another worker has claimed the channel: it has died.
    Died,
}

/// Shared words of a channel.
#[derive(Clone, Debug)]
pub struct ChannelWords<S> {
    /// Written by the dispatcher; [`control`].
    pub control: S,
    /// Written by the attaching or leaving worker; [`claim`].
    pub claim: S,
    /// Written by the worker; [`credit`]. The dispatcher initialises it with each grant.
    pub credit: S,
    /// Written by the dispatcher; two words per slot, a power of two of slots.
    pub slots: S,
    /// Written by the worker; one word per slot: slots of completed tasks, or notes about them from a thread
    /// ([`Receiver::complete_noted`]), by the count of completed tasks modulo the number of slots.
    pub completed: S,
}

/// Returns the tag by which a slot's reader recognises its task. It differs from the tag of an empty slot and
/// of the previous lap.
#[inline]
const fn tag(number: u64) -> u32 {
    // A slot without a task has tag 0. Every 2^32nd task has it, too. To skip it would cost a comparison, and by then
    // all slots have had tasks.
    number.wrapping_add(1) as u32
}

/// Dispatcher's end of a channel.
#[derive(Debug)]
pub struct Sender<S> {
    /// Words shared with the worker.
    words: ChannelWords<S>,
    /// Record of free and used slots, also for completion in any order.
    slots: TaskSlots,
    /// Number of the next task.
    next: u64,
    /// Number of the first task that was appended and not published; `next` if there is none.
    published: u64,
    /// First word of that task's slot.
    head: u64,
    /// Count of completed or lost tasks; tasks from `done` to `next` are outstanding.
    done: u64,
    /// Worked nanoseconds at the last call of [`Sender::worked_ns`].
    busy_ns: u64,
    /// Granted claim; 0 for none.
    granted: u64,
}

impl<W: SharedWord, S: Deref<Target = [W]>> Sender<S> {
    /// Creates the end of a channel that no worker has used.
    ///
    /// # Panics
    /// If the number of slots is not a power of two.
    #[must_use]
    pub fn new(words: ChannelWords<S>) -> Self {
        let slots = words.slots.len() / SLOT_WORDS;
        assert!(slots.is_power_of_two(), "slots are a power of two");
        let slots = TaskSlots::new(slots);
        Self { words, slots, next: 0, published: 0, head: 0, done: 0, busy_ns: 0, granted: 0 }
    }

    /// Returns the number of slots.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.count()
    }

    /// Returns the slot of the area in which the caller writes the next task's bytes. The channel must have room
    /// ([`Sender::room`]).
    #[inline]
    #[must_use]
    pub fn next_slot(&self) -> usize {
        self.slots.next(self.next)
    }

    /// Returns the position of a completed task, by the count of its completion. Valid until the next task is given.
    #[inline]
    #[must_use]
    pub fn completed(&self, count: u64) -> TaskPosition {
        self.slots.completed(count)
    }

    /// Returns the number of tasks given to the worker and not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> usize {
        (self.next - self.done) as usize
    }

    /// Returns the number of tasks that can be given now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots() - self.outstanding()
    }

    /// Returns the number of the next task.
    #[inline]
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns true if a worker has the grant.
    #[inline]
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.granted != 0
    }

    /// Returns the granted claim; 0 for none.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Gives the worker a task. Returns false without effect if no slot is free.
    #[inline]
    pub fn send(&mut self, notice: Notice) -> bool {
        let is_given = self.append(notice);
        self.publish();
        is_given
    }

    /// Gives as many tasks as possible and returns their number. A worker that sees the first one sees all of them.
    #[inline]
    pub fn send_burst(&mut self, notices: &[Notice]) -> usize {
        let count = notices.iter().take_while(|notice| self.append(**notice)).count();
        self.publish();
        count
    }

    /// Appends a task to the run of tasks that the next [`Sender::publish`] makes visible to the worker. Returns false
    /// without effect if no slot is free.
    #[inline]
    pub fn append(&mut self, notice: Notice) -> bool {
        let word = u64::from(notice.offset) << 32 | u64::from(notice.class);
        self.append_word(word, notice.len)
    }

    /// Same as [`Sender::append`], for a task without bytes in the area: one word, such as a pointer, and a number
    /// (`note`).
    #[inline]
    pub fn append_word(&mut self, word: u64, note: u32) -> bool {
        if self.room() == 0 {
            return false;
        }
        let (number, index) = (self.next, self.notice_index(self.next));
        let first = u64::from(note) << 32 | u64::from(tag(number));
        self.words.slots[index + 1].store(word, Relaxed);
        match number == self.published {
            true => self.head = first,
            false => self.words.slots[index].store(first, Release),
        }
        self.slots.give(number);
        self.next += 1;
        true
    }

    /// Makes the appended tasks visible to the worker, all at once: it stores the tag of the first one last, and the
    /// worker takes tasks in order.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.next {
            let index = self.notice_index(self.published);
            self.words.slots[index].store(self.head, Release);
            self.published = self.next;
        }
    }

    /// Returns the index of a task's notice in the slots' words. Workers take tasks in order, so no untaken task has
    /// the same index.
    #[inline(always)]
    fn notice_index(&self, number: u64) -> usize {
        SLOT_WORDS * (number as usize & (self.slots() - 1))
    }

    /// Returns the word and the note of the task with this number, to take it back from a departed worker. A later task
    /// must not have overwritten its notice.
    #[must_use]
    pub fn sent_word(&self, number: u64) -> (u64, u32) {
        let index = self.notice_index(number);
        let note = self.words.slots[index].load(Relaxed) >> 32;
        (self.words.slots[index + 1].load(Relaxed), note as u32)
    }

    /// Processes new credits. Returns the counts of the tasks completed since the last call: for a worker that
    /// completes tasks in order, their numbers. [`Sender::completed`] returns the position of each.
    ///
    /// # Errors
    /// If the worker's count or list is impossible. The completions are not counted then; call [`Sender::revoke`].
    #[inline]
    pub fn collect(&mut self) -> Result<std::ops::Range<u64>, CreditError> {
        let found = self.words.credit[credit::DONE].load(Acquire);
        if found == self.done {
            return Ok(found..found);
        }
        if found < self.done {
            return Err(CreditError::Backwards { before: self.done, found });
        }
        if found > self.next {
            return Err(CreditError::TooMany { given: self.next, found });
        }
        let completed = self.done..found;
        let listed = self.words.credit[credit::LISTED].load(Relaxed);
        // `listed` is the count of the first listed completion, plus 1.
        if listed != 0 {
            let words = &self.words.completed;
            let (mask, given) = (self.slots() - 1, self.done..self.next);
            let slot = |count| words[count as usize & mask].load(Relaxed);
            let checked = self.slots.complete(listed - 1, given, found, slot);
            checked.map_err(|count| CreditError::BadList { count })?;
        } else if self.slots.is_listing() {
            // A worker that lists never stops. The slots of these completions are unknown.
            return Err(CreditError::BadList { count: self.done });
        }
        self.done = found;
        Ok(completed)
    }

    /// Returns the worker's note about a completed task, by the count of its completion. Valid until the next task is
    /// given, for a worker that notes its completions.
    #[inline]
    #[must_use]
    pub fn completion_note(&self, count: u64) -> u64 {
        // The Acquire load in `collect` makes the notes of completed tasks visible.
        self.words.completed[count as usize & (self.slots() - 1)].load(Relaxed)
    }

    /// Returns the nanoseconds worked since the last call, as reported by the worker.
    #[inline]
    pub fn worked_ns(&mut self) -> u64 {
        // The Acquire load in `collect` makes the time of completed tasks visible.
        let busy = self.words.credit[credit::BUSY_NS].load(Relaxed);
        let worked = busy.wrapping_sub(self.busy_ns);
        self.busy_ns = busy;
        worked
    }

    /// Returns true once the worker has listed completed tasks, which it then completes in any order.
    #[inline]
    #[must_use]
    pub fn completes_in_any_order(&self) -> bool {
        self.slots.is_listing()
    }

    /// Returns the quanta served to the tasks that share the worker's core now, as reported by the worker; saturating.
    #[inline]
    #[must_use]
    pub fn quanta(&self) -> u32 {
        self.words.credit[credit::QUANTA].load(Relaxed).min(u64::from(u32::MAX)) as u32
    }

    /// Prefetches the credit line.
    #[inline]
    pub fn prefetch_credits(&self) {
        super::bytes::prefetch(std::ptr::from_ref(&self.words.credit[credit::DONE]));
    }

    /// Returns the claim of the attached worker; 0 if there is none.
    #[inline]
    #[must_use]
    pub fn claim(&self) -> u64 {
        let found = self.words.claim[claim::CLAIM].load(Acquire);
        if found & claim::ATTACHED == 0 { 0 } else { found }
    }

    /// Returns the identity under which the attached worker claimed ([`claim::NAME`]).
    #[must_use]
    pub fn claimed_name(&self) -> u64 {
        self.words.claim[claim::NAME].load(Relaxed)
    }

    /// Returns the process of the attached worker.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.words.claim[claim::PID].load(Relaxed)
    }

    /// Returns the state of the granted worker.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let found = self.words.claim[claim::CLAIM].load(Acquire);
        if found == self.granted {
            return Holder::Attached;
        }
        // A successor claims with the channel's lock, which the predecessor released after writing LEFT. So the
        // Acquire load of a successor's claim also makes LEFT visible.
        let has_left = self.words.claim[claim::LEFT].load(Relaxed) == self.granted;
        // The second test finds a worker that has cleared its claim's bit, without a successor.
        match has_left || found == self.granted & !claim::ATTACHED {
            true => Holder::Left,
            false => Holder::Died,
        }
    }

    /// Grants the channel to the worker with this claim. Returns false, with no grant, if it has left
    /// meanwhile. There must be no outstanding tasks: see [`Sender::revoke`].
    pub fn grant(&mut self, claimed: u64) -> bool {
        debug_assert_eq!(self.outstanding(), 0);
        self.busy_ns = 0;
        self.slots.reset();
        for word in [credit::BUSY_NS, credit::LISTED, credit::QUANTA] {
            self.words.credit[word].store(0, Relaxed);
        }
        self.words.credit[credit::DONE].store(self.next, Relaxed);
        self.words.control[control::START].store(self.next, Relaxed);
        self.words.control[control::GRANTED].store(claimed, Release);
        self.granted = claimed;
        // Either the leaving worker sees the grant and reports it in LEFT, or its departure is visible here.
        W::fence();
        let is_attached = self.claim() == claimed;
        if !is_attached {
            self.revoke();
        }
        is_attached
    }

    /// Revokes the grant, and counts the outstanding tasks as completed. Returns their counts: for a worker that
    /// completes tasks in order, their numbers.
    pub fn revoke(&mut self) -> std::ops::Range<u64> {
        self.words.control[control::GRANTED].store(0, Release);
        self.granted = 0;
        self.publish(); // so that `sent_word` is right for each lost task
        let lost = self.done..self.next;
        self.done = self.next;
        lost
    }

    /// Requests that the worker ends: no more tasks will come.
    pub fn stop(&self) {
        self.words.control[control::REQUEST].store(control::STOP, Release);
    }

    /// Withdraws the request of [`Sender::stop`], so that the channel can serve a next worker.
    pub fn reopen(&self) {
        self.words.control[control::REQUEST].store(0, Release);
    }
}

/// Worker's end of a channel. Its own state is in cells, because several tasks in progress refer to it.
#[derive(Debug)]
pub struct Receiver<S> {
    /// Words shared with the dispatcher.
    words: ChannelWords<S>,
    /// Number of slots minus 1.
    mask: u64,
    /// The worker's claim.
    claimed: u64,
    /// Number of the next task.
    next: Cell<u64>,
    /// Number of the first task that was not available at the last call of [`Receiver::waiting`].
    checked: Cell<u64>,
    /// Nanoseconds worked since the worker attached.
    busy_ns: Cell<u64>,
    /// Count of completed tasks, for a worker that lists them.
    completed: Cell<u64>,
}

impl<W: SharedWord, S: Deref<Target = [W]>> Receiver<S> {
    /// Claims a channel under this name, a [`WorkerIdentity`] as a number. `pid` is the worker's process. The
    /// dispatcher answers with a grant, see [`Receiver::is_granted`]. The caller excludes other workers by a lock.
    #[must_use]
    pub fn claim(words: ChannelWords<S>, pid: u32, name: u64) -> Self {
        let slots = (words.slots.len() / SLOT_WORDS).max(1); // at least 1, so that the mask does not underflow
        let before = words.claim[claim::CLAIM].load(Relaxed);
        // One more worker than before, attached: the lowest bit is set, and the number above it grows by 1.
        let claimed = (before | claim::ATTACHED).wrapping_add(2);
        words.claim[claim::PID].store(u64::from(pid), Relaxed);
        words.claim[claim::NAME].store(name, Relaxed);
        words.claim[claim::CLAIM].store(claimed, Release);
        let zero = || Cell::new(0);
        Self {
            words,
            mask: slots as u64 - 1,
            claimed,
            next: zero(),
            checked: zero(),
            busy_ns: zero(),
            completed: zero(),
        }
    }

    /// Returns true once the claim is granted. Then call [`Receiver::start`].
    #[inline]
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.words.control[control::GRANTED].load(Acquire) == self.claimed
    }

    /// Starts with the dispatcher's first task. Call it once, after the grant.
    pub fn start(&self) {
        // The Acquire load of the grant makes the start visible.
        self.next.set(self.words.control[control::START].load(Relaxed));
    }

    /// Returns the slot of a task's notice, and of its bytes at a worker that completes tasks in order.
    #[inline]
    #[must_use]
    pub fn slot(&self, number: u64) -> usize {
        (number & self.mask) as usize
    }

    /// Returns the number of the next task.
    #[inline]
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.get()
    }

    /// Returns true if the next task is available.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready_at(self.next.get())
    }

    /// Returns true if this task is available. It must not have been taken. `Relaxed` suffices, because
    /// [`Receiver::receive_word`] loads the tag again with Acquire.
    #[inline]
    #[must_use]
    pub fn is_ready_at(&self, number: u64) -> bool {
        self.words.slots[SLOT_WORDS * self.slot(number)].load(Relaxed) as u32 == tag(number)
    }

    /// Returns the number of available tasks, not yet taken, for load reports. Continues where the last call ended, so
    /// that it checks each task once.
    #[inline]
    pub fn waiting(&self) -> usize {
        // `checked` is behind `next` if more tasks were taken than checked. The difference then wraps to a large
        // number. The dispatcher chooses the first number, so numbers themselves may wrap, too.
        let (next, mut checked) = (self.next.get(), self.checked.get());
        if checked.wrapping_sub(next) > self.mask + 1 {
            checked = next;
        }
        while self.is_ready_at(checked) {
            checked = checked.wrapping_add(1);
        }
        self.checked.set(checked);
        checked.wrapping_sub(next) as usize
    }

    /// Takes the next task, if it is available.
    #[inline]
    pub fn receive(&self) -> Option<Notice> {
        let (word, len) = self.receive_word()?;
        Some(Notice { offset: (word >> 32) as u32, len, class: word as u16 })
    }

    /// Takes the next task given by [`Sender::append_word`], if it is available: its word and its note.
    #[inline]
    pub fn receive_word(&self) -> Option<(u64, u32)> {
        let next = self.next.get();
        let index = SLOT_WORDS * self.slot(next);
        let first = self.words.slots[index].load(Acquire);
        if first as u32 != tag(next) {
            return None;
        }
        let word = self.words.slots[index + 1].load(Relaxed);
        self.next.set(next.wrapping_add(1));
        Some((word, (first >> 32) as u32))
    }

    /// Completes all tasks taken so far, after `worked_ns` more work.
    #[inline]
    pub fn complete(&self, worked_ns: u64) {
        self.publish(self.next.get(), worked_ns);
    }

    /// Completes the only task taken and not completed, after `worked_ns` more work, with a note for the dispatcher
    /// ([`Sender::completion_note`]). For workers that do not list their completions.
    #[inline]
    pub fn complete_noted(&self, note: u64, worked_ns: u64) {
        let number = self.next.get().wrapping_sub(1);
        self.words.completed[self.slot(number)].store(note, Relaxed);
        self.complete(worked_ns);
    }

    /// Publishes the count of completed tasks and the time worked.
    #[inline]
    fn publish(&self, completed: u64, worked_ns: u64) {
        self.busy_ns.set(self.busy_ns.get().wrapping_add(worked_ns));
        self.words.credit[credit::BUSY_NS].store(self.busy_ns.get(), Relaxed);
        self.words.credit[credit::DONE].store(completed, Release);
    }

    /// Announces that tasks are completed in any order from now on, by [`Receiver::complete_slot`]. All tasks taken so
    /// far must have been completed.
    pub fn list_completions(&self) {
        let completed = self.next.get();
        self.completed.set(completed);
        // Visible with the next count of completed tasks.
        self.words.credit[credit::LISTED].store(completed.wrapping_add(1), Relaxed);
    }

    /// Completes the task in this slot, after `worked_ns` more work.
    #[inline]
    pub fn complete_slot(&self, slot: usize, worked_ns: u64) {
        let completed = self.completed.get();
        self.words.completed[self.slot(completed)].store(slot as u64, Relaxed);
        self.completed.set(completed.wrapping_add(1));
        self.publish(self.completed.get(), worked_ns);
    }

    /// Publishes the quanta served to the tasks that share the core now.
    #[inline]
    pub fn set_quanta(&self, quanta: u32) {
        self.words.credit[credit::QUANTA].store(u64::from(quanta), Relaxed);
    }

    /// Skips tasks as if they had been taken, like a faulty worker; for tests.
    #[doc(hidden)]
    pub fn skip(&self, tasks: u64) {
        self.next.set(self.next.get().wrapping_add(tasks));
    }

    /// Returns true if the dispatcher has requested the worker's end.
    #[inline]
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.words.control[control::REQUEST].load(Acquire) & control::STOP != 0
    }

    /// Leaves the channel in order. The caller still holds the channel's lock, which excludes other workers.
    pub fn leave(&self) {
        self.words.claim[claim::CLAIM].store(self.claimed & !claim::ATTACHED, Release);
        // Only a granted worker writes LEFT: a predecessor's value must stay until the dispatcher has read it. The
        // fence pairs with the one in `Sender::grant`.
        W::fence();
        if self.is_granted() {
            self.words.claim[claim::LEFT].store(self.claimed, Release);
        }
    }
}
