//! The protocol of one channel: slots one way, one line of credits the other.
//!
//! Generic over its words, so that loom runs the code that the processes run.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// A shared word of 64 bits.
pub trait Word {
    /// Loads it.
    fn load(&self, order: Ordering) -> u64;
    /// Stores it.
    fn store(&self, value: u64, order: Ordering);
    /// A sequentially consistent fence of the same memory model.
    fn fence();
}

impl Word for AtomicU64 {
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

/// Words of a line that the dispatcher writes.
pub mod control {
    /// The claim that is granted, 0 for none; stored last.
    pub const GRANTED: usize = 0;
    /// Number of the first task for the worker that has the grant.
    pub const START: usize = 1;
    /// What the dispatcher wishes: [`STOP`], or nothing.
    pub const WISHES: usize = 2;
    /// How many words.
    pub const WORDS: usize = 3;
    /// The dispatcher ends: no more tasks will come.
    pub const STOP: u64 = 1;
}

/// Words of a line that a worker writes when it comes and goes.
pub mod claim {
    /// Twice the number of workers that came so far, and 1 while the last is there.
    pub const CLAIM: usize = 0;
    /// Its process.
    pub const PID: usize = 1;
    /// The last claim that was granted and then given back in order: what a successor's claim does not replace.
    pub const LEFT: usize = 2;
    /// Whom the worker takes itself for: a channel may have been given to another one since it was told.
    pub const NAME: usize = 3;
    /// Its thread, as it claimed.
    pub const THREAD: usize = 4;
    /// How many words.
    pub const WORDS: usize = 5;
    /// The worker is there.
    pub const THERE: u64 = 1;
}

/// Words of the line that a worker answers with.
pub mod credit {
    /// Number of the task that comes after the last one completed; stored last.
    pub const DONE: usize = 0;
    /// Nanoseconds worked since the worker came.
    pub const BUSY_NS: usize = 1;
    /// How many words.
    pub const WORDS: usize = 2;
}

/// u64 words of a slot: the task's number and length, then the place of its bytes and its class.
pub const SLOT_WORDS: usize = 2;

/// What a slot says of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Offset of its bytes in the channel's area.
    pub offset: u32,
    /// How many bytes it has.
    pub len: u32,
    /// Its type, 0 when unknown.
    pub class: u16,
}

/// What a worker's line of credits must not say. A dispatcher that sees it shuts the worker out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Fewer tasks completed than before.
    #[error("its count of completed tasks went backwards, from {before} to {found}")]
    Backwards {
        /// The count before.
        before: u64,
        /// The count now.
        found: u64,
    },
    /// More tasks completed than given: an answer to a task that it was not given, or a second answer.
    #[error("it completed {found} tasks of {given} that it was given")]
    Beyond {
        /// Tasks given.
        given: u64,
        /// Tasks that it says are completed.
        found: u64,
    },
}

/// What has become of the worker that has the grant, as its channel's words tell. Whether its process still runs is
/// told by its lock alone, as long as nobody else has claimed its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It has not said that it leaves.
    There,
    /// It has left in order.
    Left,
    /// It has not left, and another has its place: it has died.
    Died,
}

/// A channel's shared words.
#[derive(Clone, Debug)]
pub struct Words<S> {
    /// Written by the dispatcher; [`control`].
    pub control: S,
    /// Written by the worker that comes or goes; [`claim`].
    pub claim: S,
    /// Written by the worker; [`credit`].
    pub credit: S,
    /// Written by the dispatcher; two words a slot, a power of two of slots.
    pub slots: S,
}

/// The number by which a slot's reader knows its task: never that of an empty slot or of the lap before.
#[inline]
const fn tag(number: u64) -> u32 {
    // Skipping 0 would cost a comparison; an empty slot has 0, and so has every 2^32nd task, but by
    // then no slot is empty.
    number.wrapping_add(1) as u32
}

/// The dispatcher's end.
#[derive(Debug)]
pub struct Sender<S> {
    words: Words<S>,
    mask: u64,
    /// Number of the next task.
    next: u64,
    /// Number of the first task not completed.
    done: u64,
    busy_ns: u64,
    granted: u64,
}

impl<W: Word, S: Deref<Target = [W]>> Sender<S> {
    /// The end of a channel that no worker has ever used.
    ///
    /// # Panics
    /// When the slots are not a power of two.
    #[must_use]
    pub fn new(words: Words<S>) -> Self {
        let slots = words.slots.len() / SLOT_WORDS;
        assert!(slots.is_power_of_two(), "slots are a power of two");
        Self { words, mask: slots as u64 - 1, next: 0, done: 0, busy_ns: 0, granted: 0 }
    }

    /// How many slots there are.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> usize {
        self.mask as usize + 1
    }

    /// The slot of the task of this number.
    #[inline]
    #[must_use]
    pub fn slot(&self, number: u64) -> usize {
        (number & self.mask) as usize
    }

    /// Tasks given and not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> usize {
        (self.next - self.done) as usize
    }

    /// Tasks that can be given now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots() - self.outstanding()
    }

    /// Number of the next task.
    #[inline]
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// A worker is there and may be given tasks.
    #[inline]
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.granted != 0
    }

    /// The claim that is granted, 0 for none.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Gives a task; false, and nothing done, when no slot is free.
    #[inline]
    pub fn send(&mut self, notice: Notice) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.write(self.next, notice);
        self.next += 1;
        true
    }

    /// Gives as many tasks as there is room for and returns how many. The first becomes visible last, so a
    /// worker that sees it finds the others in the same lines.
    #[inline]
    pub fn send_burst(&mut self, notices: &[Notice]) -> usize {
        let count = notices.len().min(self.room());
        for (at, notice) in notices[..count].iter().enumerate().rev() {
            self.write(self.next + at as u64, *notice);
        }
        self.next += count as u64;
        count
    }

    /// As [`Sender::send`], for a task that is a word itself and has no place in an area; `note` goes with it.
    #[inline]
    pub fn send_word(&mut self, word: u64, note: u32) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.write_words(self.next, word, note);
        self.next += 1;
        true
    }

    /// The word and the note that were sent under this number, if its slot has not been used again.
    #[must_use]
    pub fn sent_word(&self, number: u64) -> (u64, u32) {
        let at = SLOT_WORDS * self.slot(number);
        let note = self.words.slots[at].load(Relaxed) >> 32;
        (self.words.slots[at + 1].load(Relaxed), note as u32)
    }

    #[inline]
    fn write(&self, number: u64, notice: Notice) {
        let place = u64::from(notice.offset) << 32 | u64::from(notice.class);
        self.write_words(number, place, notice.len);
    }

    #[inline]
    fn write_words(&self, number: u64, word: u64, note: u32) {
        let at = SLOT_WORDS * self.slot(number);
        self.words.slots[at + 1].store(word, Relaxed);
        self.words.slots[at].store(u64::from(note) << 32 | u64::from(tag(number)), Release);
    }

    /// Takes new credits: the numbers of the tasks completed since the last call, in order.
    ///
    /// # Errors
    /// When the worker's count can't be; nothing has changed then.
    #[inline]
    pub fn collect(&mut self) -> Result<std::ops::Range<u64>, Fault> {
        let found = self.words.credit[credit::DONE].load(Acquire);
        if found == self.done {
            return Ok(found..found);
        }
        if found < self.done {
            return Err(Fault::Backwards { before: self.done, found });
        }
        if found > self.next {
            return Err(Fault::Beyond { given: self.next, found });
        }
        let done = self.done..found;
        self.done = found;
        Ok(done)
    }

    /// Nanoseconds worked since the last call, as the worker says.
    #[inline]
    pub fn worked_ns(&mut self) -> u64 {
        let busy = self.words.credit[credit::BUSY_NS].load(Relaxed);
        let worked = busy.wrapping_sub(self.busy_ns);
        self.busy_ns = busy;
        worked
    }

    /// Asks the cache for the line of credits.
    #[inline]
    pub fn prefetch_credits(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        super::bytes::prefetch(std::ptr::from_ref(&self.words.credit[credit::DONE]));
    }

    /// The claim of the worker that is there, 0 when none is.
    #[inline]
    #[must_use]
    pub fn claim(&self) -> u64 {
        let found = self.words.claim[claim::CLAIM].load(Acquire);
        if found & claim::THERE == 0 { 0 } else { found }
    }

    /// Whom the worker that is there takes itself for.
    #[must_use]
    pub fn claimed_name(&self) -> u64 {
        self.words.claim[claim::NAME].load(Relaxed)
    }

    /// The process of the worker that is there.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.words.claim[claim::PID].load(Relaxed)
    }

    /// What has become of the worker that has the grant.
    #[must_use]
    pub fn holder(&self) -> Holder {
        let found = self.words.claim[claim::CLAIM].load(Acquire);
        if found == self.granted {
            return Holder::There;
        }
        // Who claimed the place after a worker that left has its words before it, by the lock of the place.
        let left = self.words.claim[claim::LEFT].load(Relaxed) == self.granted;
        match left || found == self.granted & !claim::THERE {
            true => Holder::Left,
            false => Holder::Died,
        }
    }

    /// Lets the worker of this claim begin; false, and nobody has the grant, when it has gone meanwhile. Outstanding
    /// tasks must have been given up.
    pub fn grant(&mut self, claimed: u64) -> bool {
        debug_assert_eq!(self.outstanding(), 0);
        self.busy_ns = 0;
        self.words.credit[credit::BUSY_NS].store(0, Relaxed);
        self.words.credit[credit::DONE].store(self.next, Relaxed);
        self.words.control[control::START].store(self.next, Relaxed);
        self.words.control[control::GRANTED].store(claimed, Release);
        self.granted = claimed;
        // Either the worker that leaves now sees the grant and says so in LEFT, or it is seen here to have left.
        W::fence();
        let there = self.claim() == claimed;
        if !there {
            self.revoke();
        }
        there
    }

    /// Ends the worker's grant; returns the numbers of its outstanding tasks, which count as given up.
    pub fn revoke(&mut self) -> std::ops::Range<u64> {
        self.words.control[control::GRANTED].store(0, Release);
        self.granted = 0;
        let lost = self.done..self.next;
        self.done = self.next;
        lost
    }

    /// Tells the worker that no more tasks will come.
    pub fn stop(&self) {
        self.words.control[control::WISHES].store(control::STOP, Release);
    }

    /// Takes that back, for a worker that is to come.
    pub fn reopen(&self) {
        self.words.control[control::WISHES].store(0, Release);
    }
}

/// The worker's end.
#[derive(Debug)]
pub struct Receiver<S> {
    words: Words<S>,
    mask: u64,
    claimed: u64,
    /// Number of the next task.
    next: u64,
    /// Number of the first task that was not there when it was last looked for.
    seen: u64,
    busy_ns: u64,
}

impl<W: Word, S: Deref<Target = [W]>> Receiver<S> {
    /// Claims a channel as the worker of this name; its owner answers by granting the claim, see [`Receiver::is_granted`].
    /// There must be no other worker on it: what a lock on the region's file ensures.
    #[must_use]
    pub fn claim(words: Words<S>, pid: u32, name: u64) -> Self {
        let slots = (words.slots.len() / SLOT_WORDS).max(1);
        let before = words.claim[claim::CLAIM].load(Relaxed);
        let claimed = (before | claim::THERE).wrapping_add(2);
        words.claim[claim::PID].store(u64::from(pid), Relaxed);
        words.claim[claim::NAME].store(name, Relaxed);
        words.claim[claim::CLAIM].store(claimed, Release);
        Self { words, mask: slots as u64 - 1, claimed, next: 0, seen: 0, busy_ns: 0 }
    }

    /// The claim is granted. Once it is, call [`Receiver::start`].
    #[inline]
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.words.control[control::GRANTED].load(Acquire) == self.claimed
    }

    /// Takes up where the dispatcher's tasks begin.
    pub fn start(&mut self) {
        self.next = self.words.control[control::START].load(Relaxed);
    }

    /// The slot of the task of this number.
    #[inline]
    #[must_use]
    pub fn slot(&self, number: u64) -> usize {
        (number & self.mask) as usize
    }

    /// Number of the next task.
    #[inline]
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The next task is there.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready_at(self.next)
    }

    /// The task of this number, one that was not taken, is there.
    #[inline]
    #[must_use]
    pub fn is_ready_at(&self, number: u64) -> bool {
        self.words.slots[SLOT_WORDS * self.slot(number)].load(Relaxed) as u32 == tag(number)
    }

    /// Tasks that are there and were not taken. Looks at each task once, however often it is asked.
    #[inline]
    pub fn waiting(&mut self) -> usize {
        // Numbers begin where the dispatcher says, so they may wrap; what was taken meanwhile was not only seen.
        if self.seen.wrapping_sub(self.next) > self.mask + 1 {
            self.seen = self.next;
        }
        while self.is_ready_at(self.seen) {
            self.seen = self.seen.wrapping_add(1);
        }
        self.seen.wrapping_sub(self.next) as usize
    }

    /// Takes the next task.
    #[inline]
    pub fn receive(&mut self) -> Option<Notice> {
        let (place, len) = self.receive_word()?;
        Some(Notice { offset: (place >> 32) as u32, len, class: place as u16 })
    }

    /// Takes the next task as [`Sender::send_word`] sent it: its word and its note.
    #[inline]
    pub fn receive_word(&mut self) -> Option<(u64, u32)> {
        let at = SLOT_WORDS * self.slot(self.next);
        let first = self.words.slots[at].load(Acquire);
        if first as u32 != tag(self.next) {
            return None;
        }
        let word = self.words.slots[at + 1].load(Relaxed);
        self.next = self.next.wrapping_add(1);
        Some((word, (first >> 32) as u32))
    }

    /// All tasks taken so far are completed, after so much more work.
    #[inline]
    pub fn complete(&mut self, worked_ns: u64) {
        self.busy_ns = self.busy_ns.wrapping_add(worked_ns);
        self.words.credit[credit::BUSY_NS].store(self.busy_ns, Relaxed);
        self.words.credit[credit::DONE].store(self.next, Release);
    }

    /// As if so many more tasks had been taken: what a worker at fault does.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, tasks: u64) {
        self.next = self.next.wrapping_add(tasks);
    }

    /// The dispatcher ends.
    #[inline]
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.words.control[control::WISHES].load(Acquire) & control::STOP != 0
    }

    /// Leaves the channel, while the lock that keeps others off it is still held.
    pub fn leave(&mut self) {
        self.words.claim[claim::CLAIM].store(self.claimed & !claim::THERE, Release);
        // A predecessor's word stays until its grant is taken back; see `Sender::grant`.
        W::fence();
        if self.is_granted() {
            self.words.claim[claim::LEFT].store(self.claimed, Release);
        }
    }
}
