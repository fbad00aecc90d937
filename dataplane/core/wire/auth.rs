//! Sequence and tag after a header: proof that the sender has the pool's key.
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u64 | sequence | grows with every packet of a worker; an acknowledgement repeats that of its request |
//! | 8 | u64 | tag | first eight bytes of AES-128's CBC-MAC over the blocks below, under the pool's key |
//!
//! The blocks (the claim of a packet) contain everything that the receiver uses. Over IPv4 there are always
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
//! A leaf computes the tags of a whole burst in one call, so that the CPU encrypts blocks of different
//! packets in parallel.
//! One tag then takes 4.3 ns. It takes 10 ns alone; SipHash-1-3 takes 10.4 ns and SipHash-2-4 18 ns either way. An
//! acknowledgement repeats its request's sequence, so a leaf needs no sequence that outlives it.
//!
//! Without the feature `auth` there are no keys, and a `key_file` is refused.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(feature = "auth")]
use aes::cipher::{BlockEncrypt, KeyInit};
#[cfg(feature = "auth")]
use aes::{Aes128Enc, Block};
use arrayvec::ArrayVec;

use super::{task, u32_at, u64_at};
use crate::limits::BURST;

/// Bytes of sequence and tag.
pub const LEN: usize = task::PROOF_LEN;
/// Bytes of a key.
pub const KEY_LEN: usize = 16;
/// Offset of source and destination in an IPv4 header.
const ADDRESSES: usize = 12;
/// Offset of source and destination in an IPv6 header.
const ADDRESSES_V6: usize = 8;
/// Blocks of a claim over IPv4.
pub const BLOCKS_V4: usize = 2;
/// Blocks of a claim over IPv6.
pub const BLOCKS_V6: usize = 4;
/// Byte 11 of a claim over IPv6.
const V6: u8 = 6;

/// Sequences by which packets of a worker may overtake each other: the size of the receiver's window, in which it
/// marks received sequences.
pub const WINDOW: u64 = 512;
/// Sequences in one stretch of a window. A stretch is one word of the receiver, with a bit for each sequence; a newer
/// window replaces it as a whole. A sender that skips sequences skips the rest of its stretch and whole windows, so
/// that its packets in flight do not become too old.
pub const SPAN: u64 = 16;
/// Sequences per microsecond. A sender starts at the number of sixteenths of a microsecond since 1970, and uses
/// fewer per worker. So its sequences grow across restarts.
pub const SEQUENCES_A_MICROSECOND: u64 = 16;
/// Maximum lag of a sender's sequence behind its clock. Beyond it the sender skips sequences.
pub const BEHIND_MAX: u64 = 1_000_000 * SEQUENCES_A_MICROSECOND;
/// Distance behind a worker's newest sequence from which a packet is always too old.
pub const OLD_MAX: u64 = 4 * BEHIND_MAX;

/// Returns the sequence of a moment.
#[must_use]
pub fn sequence_at(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_micros() as u64).saturating_mul(SEQUENCES_A_MICROSECOND)
}

/// Offset of the processing time in an extended header.
const SERVICE: usize = task::LEN + 8;
/// Blocks that the CPU encrypts in parallel. A burst is rounded up to a multiple.
#[cfg(feature = "auth")]
const PARALLEL_BLOCKS: usize = 8;
#[cfg(feature = "auth")]
const _: () = assert!(BURST.is_multiple_of(PARALLEL_BLOCKS));

/// A pool's key. It is never printed, and its memory is cleared on drop.
#[cfg(feature = "auth")]
#[derive(Clone)]
pub struct Key(Aes128Enc);

/// Uninhabited in a build without the feature `auth`.
#[cfg(not(feature = "auth"))]
#[derive(Clone, PartialEq)]
pub struct Key(std::convert::Infallible);

/// Equal keys encrypt equally.
#[cfg(feature = "auth")]
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let encrypted = |key: &Self| {
            let mut block = Block::default();
            key.0.encrypt_block(&mut block);
            block
        };
        encrypted(self) == encrypted(other)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(not shown)")
    }
}

/// Blocks covered by a tag, as little-endian integers. They are assembled in registers, because loading a
/// whole block stalls on the narrower stores before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<const BLOCKS: usize = BLOCKS_V4>([u128; BLOCKS]);

/// A packet's claim and its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedPacket<const BLOCKS: usize = BLOCKS_V4> {
    /// Blocks covered by the tag.
    pub claim: Claim<BLOCKS>,
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
        Some(Self { claim: addresses.claim(payload, sequence), sequence, tag })
    }
}

/// Returns the offset of sequence and tag in a payload.
#[inline]
fn offset(payload: &[u8]) -> Option<usize> {
    let extended = payload.first()? & task::EXTENSION_BIT != 0;
    Some(task::LEN + if extended { task::EXTENSION_LEN } else { 0 })
}

/// Source and destination from an IP header; they determine the number of blocks.
pub trait Addresses<const BLOCKS: usize> {
    /// Returns the blocks of a packet with these addresses. The payload contains its whole header and
    /// extension.
    fn claim(&self, payload: &[u8], sequence: u64) -> Claim<BLOCKS>;
}

impl Addresses<BLOCKS_V4> for [u8; 8] {
    #[inline]
    fn claim(&self, payload: &[u8], sequence: u64) -> Claim {
        let (start, rest, service) = header_words(payload);
        let addresses = u64::from_le_bytes(*self);
        let to_and_time = addresses >> 32 | u64::from(service) << 32;
        Claim([
            block(start, u64::from(rest) | addresses << 32),
            block(to_and_time, sequence.swap_bytes()),
        ])
    }
}

impl Addresses<BLOCKS_V6> for [u8; 32] {
    #[inline]
    fn claim(&self, payload: &[u8], sequence: u64) -> Claim<BLOCKS_V6> {
        let (start, rest, service) = header_words(payload);
        let (src, dst) = self.split_at(16);
        let address =
            |bytes: &[u8]| block(u64_at(bytes, 0).swap_bytes(), u64_at(bytes, 8).swap_bytes());
        let rest = rest | u32::from(V6) << 24;
        Claim([
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

/// XORs one block into another.
#[cfg(feature = "auth")]
#[inline]
fn add(to: &mut Block, block: u128) {
    let sum = u128::from_le_bytes((*to).into()) ^ block;
    *to = sum.to_le_bytes().into();
}

#[cfg(feature = "auth")]
impl Key {
    /// Creates the key from these bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(Aes128Enc::new(&bytes.into()))
    }

    /// Returns the tag of a claim.
    #[inline]
    #[must_use]
    pub fn tag<const BLOCKS: usize>(&self, claim: &Claim<BLOCKS>) -> u64 {
        let mut block = Block::default();
        for &part in &claim.0 {
            add(&mut block, part);
            self.0.encrypt_block(&mut block);
        }
        u64_at(&block, 0)
    }

    /// Returns the tags of a burst of claims, in a fraction of the time of single calls.
    #[inline]
    #[must_use]
    pub fn tags<'a, const BLOCKS: usize>(
        &self,
        claims: impl ExactSizeIterator<Item = &'a Claim<BLOCKS>> + Clone,
    ) -> ArrayVec<u64, BURST> {
        let len = claims.len().min(BURST);
        let mut blocks = [Block::default(); BURST];
        let blocks = &mut blocks[..len.next_multiple_of(PARALLEL_BLOCKS)];
        for index in 0..BLOCKS {
            for (block, claim) in blocks.iter_mut().zip(claims.clone()) {
                add(block, claim.0[index]);
            }
            self.0.encrypt_blocks(blocks);
        }
        blocks[..len].iter().map(|block| u64_at(block, 0)).collect()
    }
}

#[cfg(not(feature = "auth"))]
impl Key {
    /// Cannot be called without a key.
    #[must_use]
    pub fn tag<const BLOCKS: usize>(&self, _claim: &Claim<BLOCKS>) -> u64 {
        match self.0 {}
    }

    /// Same as [`Key::tag`].
    #[must_use]
    pub fn tags<'a, const BLOCKS: usize>(
        &self,
        _claims: impl ExactSizeIterator<Item = &'a Claim<BLOCKS>>,
    ) -> ArrayVec<u64, BURST> {
        match self.0 {}
    }
}

impl Key {
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
        let tag = self.tag(&addresses.claim(payload, sequence));
        payload[start..start + 8].copy_from_slice(&sequence.to_be_bytes());
        payload[start + 8..start + LEN].copy_from_slice(&tag.to_be_bytes());
    }
}

#[cfg(test)]
#[cfg(feature = "auth")]
mod tests {
    use super::*;
    use crate::wire::task::{Code, Extension, Header};
    use proptest::prelude::*;

    /// The key of bytes 0 to 15.
    fn key() -> Key {
        Key::new(std::array::from_fn(|at| at as u8))
    }

    /// Returns a signed payload.
    fn payload<const BLOCKS: usize>(
        addresses: &impl Addresses<BLOCKS>,
        header: Header,
        service_ns: u32,
        sequence: u64,
    ) -> Vec<u8> {
        let mut payload = vec![0; header.len()];
        header.emit(&mut payload);
        if header.extended {
            Extension { app: 1, seq32: 0x1234, service_ns, class: 3 }.emit(&mut payload);
        }
        key().sign(addresses, &mut payload, sequence);
        payload
    }

    /// Returns true if the payload's tag is right.
    fn is_right<const BLOCKS: usize>(addresses: &impl Addresses<BLOCKS>, payload: &[u8]) -> bool {
        let signed = SignedPacket::read(addresses, payload);
        signed.is_some_and(|signed| key().tag(&signed.claim) == signed.tag)
    }

    /// Any changed bit that the leaf uses makes the tag wrong; tags of a burst equal single ones.
    fn check_any_changed_bit<const BLOCKS: usize, const LEN_OF_BOTH: usize>(
        header: Header,
        (service_ns, sequence): (u32, u64),
        addresses: [u8; LEN_OF_BOTH],
        (bit, count): (prop::sample::Index, usize),
    ) -> Result<(), TestCaseError>
    where
        [u8; LEN_OF_BOTH]: Addresses<BLOCKS>,
    {
        let good = payload(&addresses, header, service_ns, sequence);
        prop_assert!(is_right(&addresses, &good));
        let signed = SignedPacket::read(&addresses, &good).unwrap();
        let burst: Vec<_> = std::iter::repeat_n(&signed.claim, count).collect();
        prop_assert!(key().tags(burst.into_iter()).iter().all(|&tag| tag == signed.tag));
        prop_assert!(Key::new([7; KEY_LEN]).tag(&signed.claim) != signed.tag);

        // Covered: header, time, sequence, tag itself, addresses.
        let proof = header.len() - LEN..header.len();
        let service = if header.extended { SERVICE..SERVICE + 4 } else { 0..0 };
        let covered: Vec<_> = (0..task::LEN).chain(service).chain(proof).collect();
        let bit = bit.index((covered.len() + addresses.len()) * 8);
        let (mut payload, mut changed) = (good, addresses);
        match covered.get(bit / 8) {
            Some(&at) => payload[at] ^= 1 << (bit % 8),
            None => changed[bit / 8 - covered.len()] ^= 1 << (bit % 8),
        }
        prop_assert!(!is_right(&changed, &payload));
        Ok(())
    }

    #[test]
    fn the_cipher_is_that_of_the_standard() {
        // FIPS 197, appendix C.1: this block under this key. With a second block equal to the first one's
        // cipher, the sum is zero, so the tag is the cipher of a zero block under the same key.
        let plain = u128::to_be_bytes(0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF);
        let cipher = u128::to_be_bytes(0x69C4_E0D8_6A7B_0430_D8CD_B780_70B4_C55A);
        let zeros = key().tag(&Claim([plain, cipher].map(u128::from_le_bytes)));
        let mut block = Block::default();
        key().0.encrypt_block(&mut block);
        assert_eq!(zeros, u64_at(&block, 0));
        assert_eq!(zeros, 0xC6A1_3B37_878F_5B82);
    }

    // promise: trust.3
    #[test]
    fn golden_bytes_of_an_authenticated_reply() {
        // Worker 5 at 10.0.2.11 answers client 9 at 10.0.1.2, has 3 tasks left, and took 50 us.
        let header = Header {
            code: Code::TaskDone,
            extended: true,
            authenticated: true,
            src: 5,
            dst: 9,
            qlen: 3,
            ..Header::new_task(1, 0x1234)
        };
        let addresses = addresses(0x0A00_020B, 0x0A00_0102);
        let bytes = payload(&addresses, header, 50_000, 0x0065_4A8B_2CD0_1234);
        let expected = [
            [0x62, 0, 1, 0, 5, 0, 9, 0, 3, 0x12, 0x34].as_slice(),
            &[0, 0, 0, 1, 0, 0, 0x12, 0x34, 0, 0, 0xC3, 0x50, 0, 3, 0, 0],
            &[0x00, 0x65, 0x4A, 0x8B, 0x2C, 0xD0, 0x12, 0x34],
            &[0x0F, 0x2A, 0xC0, 0x9A, 0x58, 0xBC, 0x0F, 0xE3],
        ];
        assert_eq!(bytes, expected.concat());
    }

    // promise: trust.3
    #[test]
    fn golden_bytes_of_an_authenticated_reply_over_ipv6() {
        // The same from fd00:2::b to fd00:1::5.
        let header = Header {
            code: Code::TaskDone,
            extended: true,
            authenticated: true,
            src: 5,
            dst: 9,
            qlen: 3,
            ..Header::new_task(1, 0x1234)
        };
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        let addresses = addresses_v6(address("fd00:2::b"), address("fd00:1::5"));
        let bytes = payload(&addresses, header, 50_000, 0x0065_4A8B_2CD0_1234);
        assert_eq!(bytes[bytes.len() - 8..], [0xC0, 0xA9, 0xC1, 0xF3, 0x83, 0x98, 0x64, 0xCB]);
    }

    proptest! {
        // promise: trust.3
        #[test]
        fn any_changed_bit_is_seen(
            (extended, more, is_v6) in any::<(bool, bool, bool)>(), fields: [u16; 5], service_ns: u32, sequence: u64,
            addresses: [u8; 32], bit: prop::sample::Index, count in 1..BURST,
        ) {
            let [pool, src, dst, qlen, seq] = fields;
            let code = Code::TaskDone;
            let header = Header { code, extended, authenticated: true, more, pool, src, dst, qlen, seq };
            let (values, index) = ((service_ns, sequence), (bit, count));
            match addresses.first_chunk::<8>() {
                Some(&short) if !is_v6 => check_any_changed_bit(header, values, short, index)?,
                _ => check_any_changed_bit(header, values, addresses, index)?,
            }
        }
    }

    // promise: trust.3
    #[test]
    fn a_key_is_not_shown() {
        let shown = format!("{:?} {:#?}", key(), key());
        assert!(!shown.contains("01") && !shown.contains('1'), "{shown}");
    }
}
