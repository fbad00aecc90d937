//! Authentication of replies: a pool with a key accepts messages of its workers' servers only with a valid
//! tag, and only once. Each message has a sequence number, called sequence here, which its tag covers.
//!
//! Each worker has a window of [`WINDOW`] sequences, shared by all cores. A window has `WORDS` words. A word
//! consists of a lap (the sequence divided by [`WINDOW`]) and one bit for each of `SPAN` sequences of that
//! lap. A sequence of the word's lap sets its bit. A sequence of a later lap replaces the word. A sequence of
//! an earlier lap is too old. A change of a word is one compare-and-swap. So if several cores get the same packet, one
//! accepts it and none waits.
//!
//! A word alone would accept a packet long after its sending, if no later sequence has replaced the word. So
//! a window also holds the approximate clock of its worker, in a word written about once per second.
//!
//! The tag is computed over blocks of the packet: two over IPv4, four over IPv6. The constant `BLOCKS` of several
//! functions is this number.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrayvec::ArrayVec;

use crate::limits::BURST;
use crate::reason::DropReason;
use crate::state::Member;
use crate::wire::auth::{
    self, Addresses, BEHIND_MAX, BLOCKS_V6, Key, OLD_MAX, SPAN, SignedPacket, WINDOW,
};
use crate::wire::checksum::ChecksumDelta;
use crate::wire::{ether, udp};

/// Time before a pool's start from which signed messages are still accepted. It allows for a server's clock behind the
/// leaf's, because sequences follow the server's clock. Older messages may be replays of ones that the leaf accepted
/// before its restart.
const BEFORE_START: Duration = Duration::from_secs(300);

/// Returns the sequence before which a leaf accepts none for a pool that starts now.
#[must_use]
pub fn first_accepted(now: SystemTime) -> u64 {
    auth::sequence_at(now.checked_sub(BEFORE_START).unwrap_or(UNIX_EPOCH))
}

/// Number of words per worker.
const WORDS: usize = (WINDOW / SPAN) as usize;
/// Largest lap. Laps fill the rest of a word.
const LAP_MAX: u64 = (1 << (u64::BITS as u64 - SPAN)) - 1;

/// Number shared between cores. The window's step is generic over it, so that loom runs the code of the
/// cores.
pub(super) trait SharedWord {
    /// Reads the number.
    fn load(&self) -> u64;
    /// Replaces `old` by `new` in one step.
    ///
    /// # Errors
    /// The current value, if it is not `old`.
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64>;
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Relaxed) // no other memory access depends on the value
    }

    #[inline]
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(old, new, Relaxed, Relaxed)
    }
}

/// Records the sequence at bit `place` of this lap in its word. Returns true for the first caller; false for a repeated
/// sequence and for one of an earlier lap than the word's.
#[inline]
pub(super) fn note(word: &impl SharedWord, lap: u64, place: u64) -> bool {
    let bit = 1 << place;
    let mut current = word.load();
    // Tries again if another core has changed the word meanwhile.
    loop {
        let new = match (current >> SPAN).cmp(&lap) {
            std::cmp::Ordering::Less => lap << SPAN | bit,
            std::cmp::Ordering::Equal if current & bit == 0 => current | bit,
            _ => return false,
        };
        match word.exchange(current, new) {
            Ok(_) => return true,
            Err(changed) => current = changed,
        }
    }
}

/// Value on its own cache line, so that writes to it do not slow down readers of adjacent values.
#[repr(align(64))]
struct Line<T>(T);

/// Sequences received from one worker.
struct Window {
    /// Words of a lap and the bits of its received sequences, as the header of this file describes.
    words: Line<[AtomicU64; WORDS]>,
    /// Approximate clock of the worker: its newest sequence, or one older by at most [`BEHIND_MAX`] (one second).
    newest: Line<AtomicU64>,
}

impl Window {
    /// Creates a window. It refuses all sequences before `first`, and the rest of that lap.
    fn starting(first: u64) -> Self {
        // All bits set: every sequence of the lap counts as received.
        let word = (first / WINDOW).min(LAP_MAX) << SPAN | ((1 << SPAN) - 1);
        let words = Line(std::array::from_fn(|_| AtomicU64::new(word)));
        Self { words, newest: Line(AtomicU64::new(first)) }
    }

    /// Records a sequence. Returns true if it is new.
    #[inline]
    fn note(&self, sequence: u64) -> bool {
        let (lap, offset) = (sequence / WINDOW, sequence % WINDOW);
        // `Relaxed`: an outdated value only makes the limit less strict.
        let newest = self.newest.0.load(Relaxed);
        if lap > LAP_MAX || newest.saturating_sub(sequence) > OLD_MAX {
            return false;
        }
        // Written only when it lags by a second, so that cores seldom take its cache line from each other.
        if sequence.saturating_sub(newest) > BEHIND_MAX {
            self.newest.0.fetch_max(sequence, Relaxed);
        }
        note(&self.words.0[(offset / SPAN) as usize], lap, offset % SPAN)
    }
}

/// Key of a pool, and the sequences received from its workers. All cores of a node share it.
pub struct ReplyAuthenticator {
    key: Key,
    /// Windows by member.
    windows: Box<[Window]>,
}

impl fmt::Debug for ReplyAuthenticator {
    /// Writes the number of windows instead of their words, and no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyAuthenticator")
            .field("members", &self.windows.len())
            .finish_non_exhaustive()
    }
}

impl ReplyAuthenticator {
    /// Creates the authenticator of a pool with `members` members. Accepts sequences of laps after that of `first`.
    #[must_use]
    pub fn new(key: Key, members: usize, first: u64) -> Self {
        Self { key, windows: (0..members).map(|_| Window::starting(first)).collect() }
    }

    /// Compares the computed `tag` with that of a member's packet, and checks that its sequence is new. The tag comes
    /// first: a forged packet must not use up a sequence.
    #[inline]
    fn admit<const BLOCKS: usize>(
        &self,
        member: Member,
        signed: &SignedPacket<BLOCKS>,
        tag: u64,
    ) -> Result<(), DropReason> {
        // One instruction compares the numbers, so the time taken reveals nothing about the right tag.
        if tag != signed.tag {
            return Err(DropReason::AuthTag);
        }
        let is_new = self.windows[member.index()].note(signed.sequence);
        if is_new { Ok(()) } else { Err(DropReason::AuthReplay) }
    }

    /// Checks the tag of one frame from a member, and that its sequence is new. The payload begins at
    /// `payload_at`. `entries` are those of a completion report, and empty in other messages.
    ///
    /// # Errors
    /// The reason for the refusal.
    #[inline]
    pub(super) fn admit_frame(
        &self,
        member: Member,
        frame: &[u8],
        payload_at: usize,
        is_v6: bool,
        entries: &[u8],
    ) -> Result<(), DropReason> {
        match is_v6 {
            true => self.admit_one(member, signed_packet_v6(frame, payload_at), entries),
            false => self.admit_one(member, signed_packet(frame, payload_at), entries),
        }
    }

    /// Computes and checks the tag of one packet, and checks that its sequence is new. `None` is a packet too
    /// short for a tag.
    #[inline]
    fn admit_one<const BLOCKS: usize>(
        &self,
        member: Member,
        signed: Option<SignedPacket<BLOCKS>>,
        entries: &[u8],
    ) -> Result<(), DropReason> {
        let signed = signed.ok_or(DropReason::TaskShort)?;
        self.admit(member, &signed, self.key.tag_with(&signed.blocks, entries))
    }

    /// Checks the signed packets of a burst, in order, each with its member. Returns the index of each refused packet,
    /// with the reason. Tags computed for a whole burst take a fraction of the time of single ones.
    #[inline]
    pub(super) fn check<const BLOCKS: usize>(
        &self,
        packets: &[(Member, SignedPacket<BLOCKS>)],
    ) -> ArrayVec<(usize, DropReason), BURST> {
        let tags = self.key.tags(packets.iter().map(|(_, signed)| &signed.blocks));
        let mut refused = ArrayVec::new();
        for (index, ((member, signed), tag)) in packets.iter().zip(tags).enumerate() {
            if let Err(reason) = self.admit(*member, signed, tag) {
                refused.push((index, reason));
            }
        }
        refused
    }

    /// Signs the answer made from an authenticated packet, whose UDP header is at `udp_at`. The answer keeps the
    /// packet's sequence, so that the receiver can match the two.
    #[cold]
    pub(super) fn sign_answer(&self, frame: &mut [u8], udp_at: usize) {
        let packet = &frame[ether::LEN..];
        match ether::ether_type(frame) {
            ether::IPV6 => sign_again(&self.key, &auth::addresses_in_v6(packet), frame, udp_at),
            _ => sign_again(&self.key, &auth::addresses_in(packet), frame, udp_at),
        }
    }
}

/// Reads the signed values of an IPv4 frame whose payload begins at `payload_at`. Returns `None` if the frame is
/// too short.
#[inline]
pub(super) fn signed_packet(frame: &[u8], payload_at: usize) -> Option<SignedPacket> {
    SignedPacket::read(&auth::addresses_in(&frame[ether::LEN..]), &frame[payload_at..])
}

/// Like [`signed_packet`], for an IPv6 frame.
#[inline]
pub(super) fn signed_packet_v6(frame: &[u8], payload_at: usize) -> Option<SignedPacket<BLOCKS_V6>> {
    SignedPacket::read(&auth::addresses_in_v6(&frame[ether::LEN..]), &frame[payload_at..])
}

/// Signs a frame again, under its present sequence, after its addresses or header changed. Updates the UDP checksum.
fn sign_again<const BLOCKS: usize>(
    key: &Key,
    addresses: &impl Addresses<BLOCKS>,
    frame: &mut [u8],
    udp_at: usize,
) {
    let (head, payload) = frame.split_at_mut(udp_at + udp::LEN);
    let Some(before) = SignedPacket::read(addresses, payload) else {
        return;
    };
    key.sign(addresses, payload, before.sequence);
    let Some(after) = SignedPacket::read(addresses, payload) else {
        return;
    };
    // The tag is at an odd offset, so its halves straddle the checksum's 16-bit words.
    let halves = |tag: u64| [(tag >> 32) as u32, tag as u32];
    let changes = halves(before.tag).into_iter().zip(halves(after.tag));
    let delta = changes
        .fold(ChecksumDelta::default(), |delta, (old, new)| delta.straddling_double_word(old, new));
    udp::update_checksum(&mut head[udp_at..], delta);
}

#[cfg(test)]
mod tests;
