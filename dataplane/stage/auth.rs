//! Pools with a key: what their workers' servers say is believed with a right tag only, and once.
//!
//! A sequence that was seen is remembered in a window of [`WINDOW`] sequences for each worker, which all cores share:
//! `WORDS` words, each a lap (the sequence divided by [`WINDOW`]) and a bit for each of `SPAN` sequences of that lap.
//! A sequence of the word's lap sets its bit, one of a later lap takes the word over, and one of an earlier lap is too
//! old. Each is one compare-and-swap, so that of several cores that get the same packet one believes it, and none waits.
//!
//! A word alone would believe for long what was held back on its way, where no later sequence has taken it over. So a
//! window also knows about how far its worker's clock is, by a word that is written once a second.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::network::{Network, Worker};
use super::parse::Packet;
use crate::limits::BURST;
use crate::reason::DropReason;
use crate::state::Member;
use crate::wire::auth::{
    self, Addresses, BEHIND_MAX, BLOCKS_V6, Key, OLD_MAX, SPAN, Signed, WINDOW,
};
use crate::wire::checksum::ChecksumDelta;
use crate::wire::{ether, task, udp};

/// Words for each worker.
const WORDS: usize = (WINDOW / SPAN) as usize;
/// Laps fill the rest of a word.
const LAP_MAX: u64 = (1 << (u64::BITS as u64 - SPAN)) - 1;

/// A number that cores share. The window's step is generic over it, so that loom runs the code that the cores run.
pub(super) trait Word {
    fn load(&self) -> u64;
    /// Puts `new` in the place of `old`, or says what is there.
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Relaxed) // nothing else is read by what it says
    }

    #[inline]
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(old, new, Relaxed, Relaxed)
    }
}

/// Notes the sequence at this place of this lap; true for the first to do so.
#[inline]
pub(super) fn note(word: &impl Word, lap: u64, place: u64) -> bool {
    let bit = 1 << place;
    let mut seen = word.load();
    loop {
        let new = match (seen >> SPAN).cmp(&lap) {
            std::cmp::Ordering::Less => lap << SPAN | bit,
            std::cmp::Ordering::Equal if seen & bit == 0 => seen | bit,
            _ => return false,
        };
        match word.exchange(seen, new) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
}

/// Each on a line of its own.
#[repr(align(64))]
struct Line<T>(T);

/// The sequences that were seen of one worker.
struct Window {
    words: Line<[AtomicU64; WORDS]>,
    /// The newest, or one that is older by at most [`BEHIND_MAX`].
    newest: Line<AtomicU64>,
}

impl Window {
    /// One to which all sequences before this one, and the rest of its lap, are too old.
    fn starting(first: u64) -> Self {
        let word = (first / WINDOW).min(LAP_MAX) << SPAN | ((1 << SPAN) - 1);
        let words = Line(std::array::from_fn(|_| AtomicU64::new(word)));
        Self { words, newest: Line(AtomicU64::new(first)) }
    }

    /// Notes a sequence; true when it is new.
    #[inline]
    fn note(&self, sequence: u64) -> bool {
        let (lap, within) = (sequence / WINDOW, sequence % WINDOW);
        let newest = self.newest.0.load(Relaxed);
        if lap > LAP_MAX || newest.saturating_sub(sequence) > OLD_MAX {
            return false;
        }
        if sequence.saturating_sub(newest) > BEHIND_MAX {
            self.newest.0.fetch_max(sequence, Relaxed);
        }
        note(&self.words.0[(within / SPAN) as usize], lap, within % SPAN)
    }
}

/// A pool's key, and what was seen of its workers.
pub struct ReplyAuthenticator {
    key: Key,
    /// By member.
    windows: Box<[Window]>,
}

impl fmt::Debug for ReplyAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyAuthenticator")
            .field("members", &self.windows.len())
            .finish_non_exhaustive()
    }
}

impl ReplyAuthenticator {
    /// Of a pool with so many members, for sequences from `first` on.
    #[must_use]
    pub fn new(key: Key, members: usize, first: u64) -> Self {
        Self { key, windows: (0..members).map(|_| Window::starting(first)).collect() }
    }

    /// Whether the member has said this, and for the first time.
    #[inline]
    fn admit<const BLOCKS: usize>(
        &self,
        member: Member,
        signed: &Signed<BLOCKS>,
        tag: u64,
    ) -> Result<(), DropReason> {
        // Numbers are compared in one instruction, whatever they are.
        if tag != signed.tag {
            return Err(DropReason::AuthTag);
        }
        let new = self.windows[member.index()].note(signed.sequence);
        if new { Ok(()) } else { Err(DropReason::AuthReplay) }
    }

    /// Whether the member has said this, for the first time, in a packet that claims it.
    #[inline]
    fn admit_one<const BLOCKS: usize>(
        &self,
        member: Member,
        signed: Option<Signed<BLOCKS>>,
    ) -> Result<(), DropReason> {
        let signed = signed.ok_or(DropReason::TaskShort)?;
        self.admit(member, &signed, self.key.tag(&signed.claim))
    }

    /// Judges what a burst's packets claim, in order: for each its member, and what it came with. Says which of them are
    /// not believed, and why.
    #[inline]
    pub(super) fn judge<const BLOCKS: usize>(
        &self,
        claims: &[(Member, Signed<BLOCKS>)],
    ) -> ArrayVec<(usize, DropReason), BURST> {
        let tags = self.key.tags(claims.iter().map(|(_, signed)| &signed.claim));
        let mut refused = ArrayVec::new();
        for (at, ((member, signed), tag)) in claims.iter().zip(tags).enumerate() {
            if let Err(reason) = self.admit(*member, signed, tag) {
                refused.push((at, reason));
            }
        }
        refused
    }
}

/// What a frame over IPv4 claims, whose payload begins at `at`; none when it ends too soon.
#[inline]
pub(super) fn claim(frame: &[u8], at: usize) -> Option<Signed> {
    Signed::read(&auth::addresses_in(&frame[ether::LEN..]), &frame[at..])
}

/// The same of a frame over IPv6.
#[inline]
pub(super) fn claim_v6(frame: &[u8], at: usize) -> Option<Signed<BLOCKS_V6>> {
    Signed::read(&auth::addresses_in_v6(&frame[ether::LEN..]), &frame[at..])
}

/// Whether what came to a port in a worker's name is its server's own word: pools without a key ask for no proof.
///
/// # Errors
/// The reason for which it is not believed.
#[inline]
pub(super) fn believe(
    network: &Network,
    port: usize,
    worker: &Worker,
    frame: &[u8],
    parsed: &Packet,
) -> Result<(), DropReason> {
    let at = usize::from(parsed.at) + udp::LEN;
    let authenticated = frame[at] & task::AUTHENTICATION_BIT != 0;
    match network.authenticator(port, usize::from(worker.pool)) {
        None if authenticated => Err(DropReason::TaskReservedBit),
        None => Ok(()),
        Some(_) if !authenticated => Err(DropReason::AuthMissing),
        Some(authenticator) if parsed.is_v6 => {
            authenticator.admit_one(worker.member, claim_v6(frame, at))
        }
        Some(authenticator) => authenticator.admit_one(worker.member, claim(frame, at)),
    }
}

/// Signs what has become of an authenticated packet that is now the node's own: under the sequence that it came with, so
/// that its receiver knows which of its packets is meant.
#[cold]
pub(super) fn sign_answer(network: &Network, port: usize, pool: u16, frame: &mut [u8], at: usize) {
    let Some(authenticator) = network.authenticator(port, usize::from(pool)) else {
        return;
    };
    let packet = &frame[ether::LEN..];
    match ether::ether_type(frame) {
        ether::IPV6 => sign_again(&authenticator.key, &auth::addresses_in_v6(packet), frame, at),
        _ => sign_again(&authenticator.key, &auth::addresses_in(packet), frame, at),
    }
}

/// Signs a frame with these addresses anew, under the sequence that it has.
fn sign_again<const BLOCKS: usize>(
    key: &Key,
    addresses: &impl Addresses<BLOCKS>,
    frame: &mut [u8],
    at: usize,
) {
    let (head, payload) = frame.split_at_mut(at + udp::LEN);
    let Some(before) = Signed::read(addresses, payload) else {
        return;
    };
    key.sign(addresses, payload, before.sequence);
    let Some(after) = Signed::read(addresses, payload) else {
        return;
    };
    // The tag is at an odd offset.
    let halves = |tag: u64| [(tag >> 32) as u32, tag as u32];
    let changes = halves(before.tag).into_iter().zip(halves(after.tag));
    let delta = changes
        .fold(ChecksumDelta::default(), |delta, (old, new)| delta.straddling_double_word(old, new));
    udp::update_checksum(&mut head[at..], delta);
}

#[cfg(test)]
mod tests;
