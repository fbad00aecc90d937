//! Signs what is said in workers' names, where their pool has a key: replies, whoever sends them, and registrations.
//!
//! A worker's sequence rises by one with each packet in its name. It is never far behind the clock, which a leaf that is
//! started anew goes by; where it is brought up to the clock it leaves out whole windows (`wire/auth.rs`), so that nothing
//! on its way becomes too old. Threads share it: a sequence is taken by adding one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::family::Address;
use crate::limits::AGENT_LEAVES_MAX;
use crate::reason::DropReason;
use crate::wire::auth::{BEHIND_MAX, Key, SPAN, Signed, WINDOW};

/// What signs in one worker's name. Workers' own lie on lines of their own.
#[repr(align(64))]
pub struct Credential {
    key: Key,
    /// The next to be used.
    sequence: AtomicU64,
    /// Of its last registration with each leaf, whose acknowledgement repeats it.
    registered: [AtomicU64; AGENT_LEAVES_MAX],
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Credential {
    fn new(key: Key, now: u64) -> Self {
        let registered = std::array::from_fn(|_| AtomicU64::new(0));
        Self { key, sequence: AtomicU64::new(now), registered }
    }

    /// Signs a payload whose header is authenticated, and which goes from `src` to `dst`.
    #[inline]
    pub fn sign<A: Address>(&self, src: A, dst: A, payload: &mut [u8]) {
        self.sign_next(src, dst, payload);
    }

    /// The same, of a registration with a leaf, by its index: an acknowledgement is believed if it is this one's.
    pub fn sign_registration<A: Address>(&self, leaf: usize, src: A, dst: A, payload: &mut [u8]) {
        self.registered[leaf].store(self.sign_next(src, dst, payload), Relaxed);
    }

    #[inline]
    fn sign_next<A: Address>(&self, src: A, dst: A, payload: &mut [u8]) -> u64 {
        let sequence = self.sequence.fetch_add(1, Relaxed);
        A::sign(&self.key, src, dst, payload, sequence);
        sequence
    }

    /// Whether this acknowledges the last registration with a leaf: the tag is right and the sequence is that registration's.
    ///
    /// # Errors
    /// The reason for which it is not believed.
    pub fn acknowledges<const BLOCKS: usize>(
        &self,
        leaf: usize,
        signed: Option<&Signed<BLOCKS>>,
    ) -> Result<(), DropReason> {
        let signed = signed.ok_or(DropReason::AuthMissing)?;
        if self.key.tag(&signed.claim) != signed.tag {
            return Err(DropReason::AuthTag);
        }
        let own = self.registered[leaf].load(Relaxed) == signed.sequence;
        if own { Ok(()) } else { Err(DropReason::AuthReplay) }
    }

    /// Brings the sequence up to the clock when it is far behind.
    fn follow(&self, now: u64) {
        let next = self.sequence.load(Relaxed);
        let behind = now.saturating_sub(next);
        if behind > BEHIND_MAX {
            let to = next.next_multiple_of(SPAN) + behind / WINDOW * WINDOW;
            // Should a thread have taken one meanwhile, the next look finds it behind still.
            let _ = self.sequence.compare_exchange(next, to, Relaxed, Relaxed);
        }
    }
}

/// What signs in the names of an agent's workers.
pub struct Signer {
    /// By worker id.
    credentials: Box<[Option<Arc<Credential>>]>,
    /// Ids of those that have one.
    workers: Box<[u16]>,
    /// Which of them is looked at next.
    next: AtomicU64,
    /// The sequence of the moment.
    clock: fn() -> u64,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl Signer {
    /// For these workers, each with the key of its pool; `clock` says the sequence of the moment. None when there are
    /// no workers.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = (u16, Key)>, clock: fn() -> u64) -> Option<Self> {
        Self::following(None, keys, clock)
    }

    /// The same after `before`: of workers that it signs for, the credentials are the same ones, sequences and all.
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

    /// What signs in this worker's name, if its pool has a key.
    #[inline]
    #[must_use]
    pub fn of(&self, worker: u16) -> Option<&Credential> {
        self.credentials.get(usize::from(worker))?.as_deref()
    }

    /// Looks after one worker's sequence, each in turn; to be called many times a second.
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
