//! Signatures of workers' messages, if their pool has a key: replies, queue reports and registrations. Threads
//! and the agent's core sign with the same credentials. A leaf accepts such a worker's messages only with a valid
//! signature.
//!
//! A signature covers a *sequence*, a number. A worker's sequence grows by one with each packet, and the leaf refuses
//! repeated or old numbers. A restarted leaf accepts numbers from about the current time on, so a sequence that is far
//! behind the clock jumps to it.
//!
//! A leaf accepts numbers of the last *window* ([`WINDOW`]) in any order, and notes each one. For each *span*
//! ([`SPAN`]) it keeps one word. The jump skips the rest of the span and whole windows, so that no packet in flight
//! becomes too old.
//!
//! Threads share the sequence and take numbers by atomic increment. All orderings are relaxed, because no other memory
//! depends on a number.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::limits::AGENT_LEAVES_MAX;
use crate::reason::DropReason;
use crate::wire::address::Address;
use crate::wire::auth::{BEHIND_MAX, Key, SPAN, SignedPacket, WINDOW};

/// Credential of one worker, on its own cache lines.
#[repr(align(64))]
pub struct Credential {
    /// Secret key of the worker's pool.
    key: Key,
    /// Next sequence.
    sequence: AtomicU64,
    /// Its last registration with each leaf.
    registrations: [Registration; AGENT_LEAVES_MAX],
}

/// Sequences of a registration with its repetitions. The acknowledgement has one of them. Only the agent's core writes
/// these words.
#[derive(Debug)]
struct Registration {
    /// Number in the header, which a repetition keeps; [`NO_NUMBER`] before the first registration.
    number: AtomicU64,
    /// Sequence of the first message with this number.
    first: AtomicU64,
    /// Sequence of the last message with this number.
    last: AtomicU64,
}

/// Number of no registration.
const NO_NUMBER: u64 = u64::MAX;

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Credential {
    /// Creates a credential whose sequence starts at `now`.
    fn new(key: Key, now: u64) -> Self {
        let registrations = std::array::from_fn(|_| Registration {
            number: AtomicU64::new(NO_NUMBER),
            first: AtomicU64::new(u64::MAX), // no sequence is in an empty range
            last: AtomicU64::new(0),
        });
        Self { key, sequence: AtomicU64::new(now), registrations }
    }

    /// Signs a payload with an authenticated header, from `src` to `dst`.
    #[inline]
    pub fn sign<A: Address>(&self, src: A, dst: A, payload: &mut [u8]) {
        self.sign_next(src, dst, payload);
    }

    /// Same as [`Credential::sign`], for a registration with the leaf at this index, or for a keep-alive. Stores the
    /// sequence, which the acknowledgement repeats. `number` is the one in the header: a repetition keeps it.
    pub fn sign_registration<A: Address>(
        &self,
        (leaf, number): (usize, u16),
        src: A,
        dst: A,
        payload: &mut [u8],
    ) {
        let (sequence, number) = (self.sign_next(src, dst, payload), u64::from(number));
        let registration = &self.registrations[leaf];
        if registration.number.load(Relaxed) != number {
            registration.number.store(number, Relaxed);
            registration.first.store(sequence, Relaxed);
        }
        registration.last.store(sequence, Relaxed);
    }

    /// Signs with the next sequence and returns it.
    #[inline]
    fn sign_next<A: Address>(&self, src: A, dst: A, payload: &mut [u8]) -> u64 {
        let sequence = self.sequence.fetch_add(1, Relaxed);
        A::sign(&self.key, src, dst, payload, sequence);
        sequence
    }

    /// Checks that this acknowledges the last registration with a leaf: correct tag, and the sequence of that
    /// registration or of a repetition. A leaf may take longer to answer than the interval of repetitions.
    ///
    /// # Errors
    /// Reason for refusal.
    pub fn acknowledges<const BLOCKS: usize>(
        &self,
        leaf: usize,
        signed: Option<&SignedPacket<BLOCKS>>,
    ) -> Result<(), DropReason> {
        let signed = signed.ok_or(DropReason::AuthMissing)?;
        if self.key.tag(&signed.blocks) != signed.tag {
            return Err(DropReason::AuthTag);
        }
        let Registration { first, last, .. } = &self.registrations[leaf];
        let is_last = (first.load(Relaxed)..=last.load(Relaxed)).contains(&signed.sequence);
        if is_last { Ok(()) } else { Err(DropReason::AuthReplay) }
    }

    /// Raises the sequence to about the clock's value `now` if it is more than [`BEHIND_MAX`] behind.
    fn follow(&self, now: u64) {
        let next = self.sequence.load(Relaxed);
        let behind = now.saturating_sub(next);
        if behind > BEHIND_MAX {
            // The end of the current span, and then as many whole windows as the sequence is behind. The next span then
            // replaces the leaf's word of the oldest span, as it does without a jump.
            let target = next.next_multiple_of(SPAN) + behind / WINDOW * WINDOW;
            // A failure is harmless: if a thread has taken a number meanwhile, the next check still finds the sequence
            // behind.
            let _ = self.sequence.compare_exchange(next, target, Relaxed, Relaxed);
        }
    }
}

/// Signer of an agent's workers.
pub struct Signer {
    /// Credentials by worker id.
    credentials: Box<[Option<Arc<Credential>>]>,
    /// Ids of workers with a credential.
    workers: Box<[u16]>,
    /// Index of the next worker to check.
    next: AtomicU64,
    /// Returns the sequence that belongs to the current time.
    clock: fn() -> u64,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl Signer {
    /// Creates a signer for these workers, each with its pool's key; `clock` returns the sequence of the
    /// current time. `None` without workers.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = (u16, Key)>, clock: fn() -> u64) -> Option<Self> {
        Self::following(None, keys, clock)
    }

    /// Same as [`Signer::new`], as the successor of `before`: workers of both keep their credentials, with keys and
    /// sequences. Both signers may sign during the change. A pool's key never changes at run time.
    #[must_use]
    pub fn following(
        before: Option<&Self>,
        keys: impl IntoIterator<Item = (u16, Key)>,
        clock: fn() -> u64,
    ) -> Option<Self> {
        let keys: Vec<_> = keys.into_iter().collect();
        let last = keys.iter().map(|(worker, _)| *worker).max()?;
        let mut credentials = vec![None; usize::from(last) + 1];
        for (worker, key) in &keys {
            let known = before.and_then(|before| before.credentials.get(usize::from(*worker)));
            let credential = known.cloned().flatten();
            let new = || Arc::new(Credential::new(key.clone(), clock()));
            credentials[usize::from(*worker)] = Some(credential.unwrap_or_else(new));
        }
        Some(Self {
            credentials: credentials.into(),
            workers: keys.into_iter().map(|(worker, _)| worker).collect(),
            next: AtomicU64::new(0),
            clock,
        })
    }

    /// Returns this worker's credential, if its pool has a key.
    #[inline]
    #[must_use]
    pub fn of(&self, worker: u16) -> Option<&Credential> {
        self.credentials.get(usize::from(worker))?.as_deref()
    }

    /// Checks the sequence of one worker, each in turn. Call it many times per second.
    #[cold]
    pub fn follow(&self) {
        let turn = self.next.fetch_add(1, Relaxed) as usize % self.workers.len();
        if let Some(credential) = self.of(self.workers[turn]) {
            credential.follow((self.clock)());
        }
    }
}

#[cfg(test)]
mod tests;
