//! Sequence and tag after a header: proof that the sender has the pool's key. The sender is an agent, which signs for
//! its workers. The receiver is a leaf, which repeats the sequence of a registration in its acknowledgement.
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u64 | sequence | one counter per worker, which its agent raises for each packet in the worker's name |
//! | 8 | u64 | tag | first eight bytes of AES-128's CBC-MAC over the blocks below, under the pool's key |
//!
//! The signed blocks contain everything that the receiver uses. Over IPv4 there are always
//! two, because a fixed number makes a CBC-MAC unforgeable:
//!
//! | off | bytes | field |
//! |---|---|---|
//! | 0 | 11 | task header |
//! | 11 | 1 | 0 |
//! | 12 | 8 | source and destination of the IPv4 header |
//! | 20 | 4 | service_ns of the extension, 0 without one |
//! | 24 | 8 | sequence |
//!
//! Over IPv6 there are always four. Their byte 11 differs, so that no two-block message is a prefix of a
//! four-block one:
//!
//! | off | bytes | field |
//! |---|---|---|
//! | 0 | 11 | task header |
//! | 11 | 1 | 6 |
//! | 12 | 4 | service_ns of the extension, 0 without one |
//! | 16 | 32 | source and destination of the IPv6 header |
//! | 48 | 8 | sequence |
//! | 56 | 8 | 0 |
//!
//! A completion report ([`super::completion`]) has its entries behind these blocks, in blocks of 16 bytes, the last one
//! filled up with zeros. Code and number of entries are in the first block, so no message is a prefix of another.
//!
//! A leaf computes the tags of a whole burst in one call, so that the CPU encrypts blocks of different
//! packets in parallel.
//! One tag then takes 4.3 ns. It takes 10 ns alone; SipHash-1-3 takes 10.4 ns and SipHash-2-4 18 ns either way. An
//! acknowledgement repeats its request's sequence, so a leaf needs no sequence that outlives it.
//!
//! Without the feature `auth` there are no keys, and a `key_file` is refused.

#[cfg_attr(not(feature = "auth"), path = "auth/no_key.rs")]
mod key;

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

pub use key::{Key, new_key};

use super::{task, u32_at, u64_at};

/// Bytes of sequence and tag.
pub const LEN: usize = task::PROOF_LEN;
/// Bytes of a key.
pub const KEY_LEN: usize = 16;
/// Offset of source and destination in an IPv4 header.
const ADDRESSES: usize = 12;
/// Offset of source and destination in an IPv6 header.
const ADDRESSES_V6: usize = 8;
/// Signed blocks of a packet over IPv4.
pub const BLOCKS_V4: usize = 2;
/// Signed blocks of a packet over IPv6.
pub const BLOCKS_V6: usize = 4;
/// Byte 11 of the signed blocks over IPv6.
const V6: u8 = 6;

/// Sequences by which packets of a worker may overtake each other: the size of the receiver's window, in which it
/// marks received sequences.
pub const WINDOW: u64 = 512;
/// Sequences in one stretch of a window. A stretch is one word of the receiver, with a bit for each sequence; a newer
/// window replaces it as a whole. A sender that skips sequences skips the rest of its stretch and whole windows, so
/// that its packets in flight do not become too old.
pub const SPAN: u64 = 16;
/// Sequences per microsecond. A sender starts at the number of sixteenths of a microsecond since 1970, and uses
/// fewer than 16 sequences a microsecond for a worker. So its sequences grow across restarts.
pub const SEQUENCES_A_MICROSECOND: u64 = 16;
/// Maximum lag of a sender's sequence behind its clock: one second. Beyond it the sender skips sequences: a
/// restarted leaf refuses those of long before its start.
pub const BEHIND_MAX: u64 = 1_000_000 * SEQUENCES_A_MICROSECOND;
/// Distance behind a worker's newest sequence from which a packet is too old even if no later sequence has replaced its
/// word of the window: four seconds. The receiver updates its copy of the newest sequence only when that lags by
/// more than [`BEHIND_MAX`], so the distance is inexact by a second.
pub const OLD_MAX: u64 = 4 * BEHIND_MAX;

/// Returns the sequence of a moment: sixteenths of a microsecond since 1970.
#[must_use]
pub fn sequence_at(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_micros() as u64).saturating_mul(SEQUENCES_A_MICROSECOND)
}

/// Offset of the extension's processing time in a payload.
const SERVICE: usize = task::LEN + 8;

impl fmt::Debug for Key {
    /// Writes a placeholder, so that no log contains a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// Blocks covered by a tag, as little-endian integers. They are assembled in registers, because loading a
/// whole block stalls on the narrower stores before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedBlocks<const BLOCKS: usize = BLOCKS_V4>([u128; BLOCKS]);

/// A received packet's signed blocks, and the proof that the receiver checks against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedPacket<const BLOCKS: usize = BLOCKS_V4> {
    /// Blocks covered by the tag.
    pub blocks: SignedBlocks<BLOCKS>,
    /// Sequence, which the tag covers, too.
    pub sequence: u64,
    /// Tag of the packet.
    pub tag: u64,
}

impl<const BLOCKS: usize> SignedPacket<BLOCKS> {
    /// Parses a packet with an authenticated header; `addresses` are source and destination from its IP
    /// header. `None` if the payload is shorter than its header announces.
    #[inline]
    #[must_use]
    pub fn read(addresses: &impl Addresses<BLOCKS>, payload: &[u8]) -> Option<Self> {
        let start = offset(payload)?;
        let proof = payload.get(start..start + LEN)?;
        let (sequence, tag) = (u64_at(proof, 0), u64_at(proof, 8));
        Some(Self { blocks: addresses.blocks(payload, sequence), sequence, tag })
    }
}

/// Returns the offset of sequence and tag in a payload; `None` for an empty payload.
#[inline]
fn offset(payload: &[u8]) -> Option<usize> {
    let extended = payload.first()? & task::EXTENSION_BIT != 0;
    Some(task::LEN + if extended { task::EXTENSION_LEN } else { 0 })
}

/// Source and destination from an IP header; they determine the number of blocks.
pub trait Addresses<const BLOCKS: usize> {
    /// Returns the blocks of a packet with these addresses. The payload contains its whole header and
    /// extension.
    fn blocks(&self, payload: &[u8], sequence: u64) -> SignedBlocks<BLOCKS>;
}

impl Addresses<BLOCKS_V4> for [u8; 8] {
    #[inline]
    fn blocks(&self, payload: &[u8], sequence: u64) -> SignedBlocks {
        let (start, rest, service) = header_words(payload);
        let addresses = u64::from_le_bytes(*self);
        // The first block ends with the source; the second begins with the destination and the processing time.
        let to_and_time = addresses >> 32 | u64::from(service) << 32;
        SignedBlocks([
            block(start, u64::from(rest) | addresses << 32),
            block(to_and_time, sequence.swap_bytes()),
        ])
    }
}

impl Addresses<BLOCKS_V6> for [u8; 32] {
    #[inline]
    fn blocks(&self, payload: &[u8], sequence: u64) -> SignedBlocks<BLOCKS_V6> {
        let (start, rest, service) = header_words(payload);
        let (src, dst) = self.split_at(16);
        let address =
            |bytes: &[u8]| block(u64_at(bytes, 0).swap_bytes(), u64_at(bytes, 8).swap_bytes());
        let rest = rest | u32::from(V6) << 24;
        SignedBlocks([
            block(start, u64::from(rest) | u64::from(service) << 32),
            address(src),
            address(dst),
            block(sequence.swap_bytes(), 0),
        ])
    }
}

/// Returns the task header in two words, the second with a spare last byte, and the extension's processing
/// time.
#[inline]
fn header_words(payload: &[u8]) -> (u64, u32, u32) {
    let extended = payload[0] & task::EXTENSION_BIT != 0;
    let start = u64_at(payload, 0).swap_bytes();
    let rest = u32_at(payload, task::LEN - 4).swap_bytes() >> 8; // the header's last three bytes
    let service = if extended { u32_at(payload, SERVICE).swap_bytes() } else { 0 };
    (start, rest, service)
}

/// Returns the block of these halves.
#[inline]
fn block(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Returns source and destination in the bytes of an IPv4 header.
#[inline]
#[must_use]
pub fn addresses(src: u32, dst: u32) -> [u8; 8] {
    (u64::from(src) << 32 | u64::from(dst)).to_be_bytes()
}

/// Returns source and destination in the bytes of an IPv6 header.
#[inline]
#[must_use]
pub fn addresses_v6(src: u128, dst: u128) -> [u8; 32] {
    let mut addresses = [0; 32];
    addresses[..16].copy_from_slice(&src.to_be_bytes());
    addresses[16..].copy_from_slice(&dst.to_be_bytes());
    addresses
}

/// Returns source and destination of a complete IPv4 header.
#[inline]
#[must_use]
pub fn addresses_in(header: &[u8]) -> [u8; 8] {
    let mut addresses = [0; 8];
    addresses.copy_from_slice(&header[ADDRESSES..ADDRESSES + 8]);
    addresses
}

/// Returns source and destination of a complete IPv6 header.
#[inline]
#[must_use]
pub fn addresses_in_v6(header: &[u8]) -> [u8; 32] {
    let mut addresses = [0; 32];
    addresses.copy_from_slice(&header[ADDRESSES_V6..ADDRESSES_V6 + 32]);
    addresses
}

impl Key {
    /// Returns the tag of a packet with these blocks. The tag of a completion report also covers its entries.
    #[inline]
    #[must_use]
    pub fn tag<const BLOCKS: usize>(&self, blocks: &SignedBlocks<BLOCKS>) -> u64 {
        self.tag_with(blocks, &[])
    }

    /// Writes sequence and tag after an authenticated header and its extension; `addresses` are source and
    /// destination of the future IP header.
    ///
    /// # Panics
    /// If the payload is shorter than its header announces.
    #[inline]
    pub fn sign<const BLOCKS: usize>(
        &self,
        addresses: &impl Addresses<BLOCKS>,
        payload: &mut [u8],
        sequence: u64,
    ) {
        let start = offset(payload).unwrap_or_default();
        let is_report = payload[0] & task::CODE_BITS == task::Code::Completions as u8;
        let entries = if is_report { &payload[start + LEN..] } else { &[] };
        let tag = self.tag_with(&addresses.blocks(payload, sequence), entries);
        payload[start..start + 8].copy_from_slice(&sequence.to_be_bytes());
        payload[start + 8..start + LEN].copy_from_slice(&tag.to_be_bytes());
    }
}
