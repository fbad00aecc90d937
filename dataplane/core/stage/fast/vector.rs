//! Recognises packets like [`Template::recognise`], with vectors of 32 bytes if the machine has them.
//!
//! One and a half vectors hold everything to compare. The whole one also holds all bytes of the IPv4 checksum
//! and the first bytes of the UDP checksum. The sums are checked once per burst, all together.
//!
//! The code adds words in memory order, in one's complement (see
//! [`PartialChecksum`](crate::wire::checksum::PartialChecksum)). The instruction that multiplies and adds words
//! takes signed words. With their top bits inverted, each is 2^15 too small; this is corrected afterwards.
#![allow(
    unsafe_code,
    reason = "vectors are loaded, and instructions used that not every machine has"
)]

use std::arch::x86_64::*;

use super::pattern::{CodeByte, TOLERANCES};
use super::template::{HEAD, IP, Pattern, TASK, Template, UDP};
use super::{Fields, LeadingRun};
use crate::io::Buf;
use crate::limits::BURST;
use crate::stage::parse::PREFETCH_AHEAD;
use crate::stage::unreachable::UnreachableSource;
use crate::wire::ipv4;

/// Number of bytes in a vector.
pub const VECTOR: usize = 32;
/// Offset behind the second vector. The bytes of a datagram from here on are summed separately.
const BODY: usize = IP + VECTOR;
const _: () = assert!(BODY <= Pattern::LEN && BODY <= HEAD);

/// Sums of a packet: of its IPv4 header, and of its datagram.
#[derive(Clone, Copy)]
struct PacketChecksums([u32; 2]);

impl PacketChecksums {
    /// Sums of a packet with right checksums.
    const GOOD: Self = Self([0xFFFF; 2]);
}

/// Weight of each word of the second vector in the sum of the IPv4 header.
const HEADER: [i16; 16] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0];
/// Weight in the sum of the datagram and its pseudo header (RFC 768). The length occurs there once more.
const DATAGRAM: [i16; 16] = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];
/// Weight of each word of the last vector. At an odd offset, the two bytes of a word belong to two words,
/// each at the opposite position.
pub const LAST: [[i16; 16]; 2] = [[1; 16], [1 << 8; 16]];
/// Corrections of the sums, for the last vector at an even and at an odd offset: 2^15 for each word, and the
/// protocol of the pseudo header in memory order.
const CORRECTIONS: [PacketChecksums; 2] = [correction(0), correction(1)];

/// Returns the corrections for an even (0) or odd (1) offset of the last vector.
const fn correction(odd: usize) -> PacketChecksums {
    let datagram = weight(&DATAGRAM) + weight(&LAST[odd]);
    PacketChecksums([weight(&HEADER) << 15, (datagram << 15) + (ipv4::UDP as u32) * 0x100])
}

/// Returns the sum of the weights.
pub const fn weight(words: &[i16; 16]) -> u32 {
    let (mut sum, mut at) = (0, 0);
    while at < words.len() {
        sum += words[at] as u32;
        at += 1;
    }
    sum
}

/// A vector of zero bytes, then a vector of ones. Loaded at offset `n`, a mask for the last `n` bytes of a
/// vector.
const MASKS: [u8; 2 * VECTOR] = {
    let mut masks = [0; 2 * VECTOR];
    let mut at = VECTOR;
    while at < masks.len() {
        masks[at] = 0xFF;
        at += 1;
    }
    masks
};

/// Like [`recognise_scalar`](super::recognise_scalar). Returns `None` if a sum is wrong, or the machine has
/// no such vectors.
#[inline(always)]
pub fn recognise<B: Buf>(
    template: &Template,
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    // SAFETY: the machine has the required instructions.
    unsafe { recognise_avx2(template, packets, fields) }
}

/// Does the work of [`recognise`].
#[target_feature(enable = "avx2")]
fn recognise_avx2<B: Buf>(
    template: &Template,
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    let packets = &packets[..packets.len().min(BURST)];
    let mut run = LeadingRun::default();
    let mut sums = [PacketChecksums::GOOD; BURST];
    for packet in packets.iter().take(PREFETCH_AHEAD) {
        packet.prefetch();
    }
    for (index, packet) in packets.iter().enumerate() {
        if let Some(ahead) = packets.get(index + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        if packet.is_segmented() {
            break;
        }
        let frame = packet.bytes();
        let Some(head) = frame.first_chunk::<HEAD>() else {
            break;
        };
        let code = CodeByte::at(head[TASK]);
        let Some(end) = end(template.pattern(code), code, head, frame.len()) else {
            break;
        };
        if !packet.checksums_verified() {
            take_sums(head, &frame[..end], &mut sums[index]);
        }
        run.push(index, code, frame, source(head), fields);
    }
    are_good(&sums).then_some(run)
}

/// Returns the end of the datagram in a frame that matches, without a check of its sums.
#[target_feature(enable = "avx2")]
#[inline]
fn end(pattern: &Pattern, code: CodeByte, head: &[u8; HEAD], len: usize) -> Option<usize> {
    let link = _mm256_zextsi128_si256(differing_half(&pattern.expected, &pattern.mask, head));
    let network = differing(&pattern.expected, &pattern.mask, head, IP);
    let beyond = _mm256_subs_epu16(network, load_tolerance(&pattern.tolerance));
    let differs = _mm256_or_si256(link, beyond);
    let (total_len, udp_len) = (number(head, IP + 2), number(head, UDP + 4));
    let end = UDP + udp_len;
    // True if no bit of `differs` is set.
    let fits = _mm256_testc_si256(_mm256_setzero_si256(), differs) != 0
        && total_len == ipv4::LEN + udp_len // a longer packet goes to the stages: slower, and also correct
        && udp_len >= usize::from(pattern.least_udp_len) + code.extension_len()
        && end <= len;
    fits.then_some(end)
}

/// A number that need not be aligned.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Number(u16);

/// Returns the big-endian number at an offset.
#[inline(always)]
pub fn number<const LEN: usize>(head: &[u8; LEN], at: usize) -> usize {
    let bytes = &head[at..at + size_of::<Number>()];
    // SAFETY: it points to that many bytes, and any bytes make a number. Volatile, because the compiler
    // otherwise takes the number out of a vector that covers it. That takes longer.
    let number = unsafe { bytes.as_ptr().cast::<Number>().read_volatile() };
    usize::from(u16::from_be(number.0))
}

/// Returns the bits of a packet's first 16 bytes, half a vector, that differ from the expected ones.
#[target_feature(enable = "avx2")]
#[inline]
pub fn differing_half(expected: &[u8], mask: &[u8], head: &[u8]) -> __m128i {
    _mm_xor_si128(_mm_and_si128(load_half(head), load_half(mask)), load_half(expected))
}

/// Returns the bits of the vector at an offset that differ from the expected ones.
#[target_feature(enable = "avx2")]
#[inline]
pub fn differing(expected: &[u8], mask: &[u8], head: &[u8], at: usize) -> __m256i {
    _mm256_xor_si256(_mm256_and_si256(load(head, at), load(mask, at)), load(expected, at))
}

/// Returns the source address, in memory order.
#[inline(always)]
fn source(head: &[u8; HEAD]) -> u32 {
    let mut source = [0; 4];
    source.copy_from_slice(&head[IP + 12..IP + 16]);
    u32::from_ne_bytes(source)
}

/// Returns one bit for each address (in memory order), set if no reply reaches it; `None` if the machine has
/// no such vectors.
#[inline(always)]
pub fn match_unreachable(
    addresses: &[u32; BURST],
    unreachable: &[UnreachableSource],
) -> Option<u32> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    // SAFETY: the machine has the required instructions.
    Some(unsafe { match_unreachable_avx2(addresses, unreachable) })
}

/// Does the work of [`match_unreachable`].
#[target_feature(enable = "avx2")]
fn match_unreachable_avx2(addresses: &[u32; BURST], unreachable: &[UnreachableSource]) -> u32 {
    // SAFETY: the load reads only addresses of the array, and needs no alignment.
    let load = |at: usize| unsafe { _mm256_loadu_si256(addresses.as_ptr().add(8 * at).cast()) };
    let sources: [_; BURST / 8] = [load(0), load(1), load(2), load(3)];
    let mut equal = [_mm256_setzero_si256(); BURST / 8];
    for source in unreachable {
        let network = _mm256_set1_epi32(source.network.cast_signed());
        let mask = _mm256_set1_epi32(source.mask.cast_signed());
        for (equal, &eight) in equal.iter_mut().zip(&sources) {
            let differs = _mm256_and_si256(_mm256_xor_si256(eight, network), mask);
            *equal = _mm256_or_si256(*equal, _mm256_cmpeq_epi32(differs, _mm256_setzero_si256()));
        }
    }
    let bits = |eight| _mm256_movemask_ps(_mm256_castsi256_ps(eight)).cast_unsigned();
    equal.iter().enumerate().fold(0, |found, (index, &eight)| found | bits(eight) << (8 * index))
}

/// Sums the headers and the datagram. `frame` ends with the datagram.
#[target_feature(enable = "avx2")]
#[inline]
fn take_sums(head: &[u8; HEAD], frame: &[u8], sums: &mut PacketChecksums) {
    let second = inverted(load(head, IP));
    let header = _mm256_madd_epi16(second, load_words(&HEADER));
    let datagram = _mm256_madd_epi16(second, load_words(&DATAGRAM));
    let odd = frame.len() % 2;
    let datagram = add_rest(datagram, frame, BODY);
    // Adds the eight partial sums of each vector, in three steps, to two totals side by side.
    let pairs = _mm256_hadd_epi32(header, datagram);
    let halves = (_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    let quarters = _mm_add_epi32(halves.0, halves.1);
    let totals = _mm_add_epi32(_mm_hadd_epi32(quarters, quarters), load_sums(&CORRECTIONS[odd]));
    // SAFETY: the store writes exactly the two sums, and needs no alignment.
    unsafe { _mm_storel_epi64((&raw mut sums.0).cast(), totals) };
    if number(head, UDP + 6) == 0 {
        sums.0[1] = PacketChecksums::GOOD.0[1]; // it has no checksum
    }
}

/// Adds the bytes behind the first `done` bytes of a frame to a sum. The frame ends with its datagram. The
/// sum still lacks the correction for [`LAST`].
#[target_feature(enable = "avx2")]
#[inline]
pub fn add_rest(mut sum: __m256i, frame: &[u8], mut done: usize) -> __m256i {
    while frame.len() - done > VECTOR {
        let words = _mm256_madd_epi16(inverted(load(frame, done)), _mm256_set1_epi16(1));
        // Corrected at once, for two words each.
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(words, _mm256_set1_epi32(1 << 16)));
        done += VECTOR;
    }
    let last = load(frame, frame.len() - VECTOR);
    let last = _mm256_and_si256(last, load(&MASKS, frame.len() - done));
    let last = _mm256_madd_epi16(inverted(last), load_words(&LAST[frame.len() % 2]));
    _mm256_add_epi32(sum, last)
}

/// Returns true if all sums are right: 0 as a one's complement number, in its form of all ones.
#[target_feature(enable = "avx2")]
#[inline]
fn are_good(sums: &[PacketChecksums; BURST]) -> bool {
    let ones = _mm256_set1_epi32(0xFFFF);
    let mut wrong = _mm256_setzero_si256();
    for four in sums.as_chunks::<4>().0 {
        // SAFETY: the load reads exactly the sums, and needs no alignment.
        let totals = unsafe { _mm256_loadu_si256(four.as_ptr().cast()) };
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(fold(fold(totals)), ones));
    }
    _mm256_testc_si256(_mm256_setzero_si256(), wrong) != 0
}

/// Adds the upper halves of numbers to their lower halves.
#[target_feature(enable = "avx2")]
#[inline]
pub fn fold(sums: __m256i) -> __m256i {
    let low = _mm256_and_si256(sums, _mm256_set1_epi32(0xFFFF));
    _mm256_add_epi32(low, _mm256_srli_epi32::<16>(sums))
}

/// Converts words to signed numbers, each 2^15 less.
#[target_feature(enable = "avx2")]
#[inline]
pub fn inverted(words: __m256i) -> __m256i {
    _mm256_xor_si256(words, _mm256_set1_epi16(i16::MIN))
}

/// Loads a vector at an offset.
///
/// # Panics
/// If the bytes end before the vector does.
#[target_feature(enable = "avx2")]
#[inline]
pub fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes = &bytes[at..at + VECTOR];
    // SAFETY: the load reads exactly the bytes, and needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Like [`load`], for the first half of a vector at the start.
#[target_feature(enable = "avx2")]
#[inline]
fn load_half(bytes: &[u8]) -> __m128i {
    let bytes = &bytes[..VECTOR / 2];
    // SAFETY: the load reads exactly the bytes, and needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Loads the tolerances of a vector's words.
#[target_feature(enable = "avx2")]
#[inline]
pub fn load_tolerance(tolerance: &[u16; TOLERANCES]) -> __m256i {
    // SAFETY: the load reads exactly the numbers, and needs no alignment.
    unsafe { _mm256_loadu_si256(tolerance.as_ptr().cast()) }
}

/// Loads a vector of words.
#[target_feature(enable = "avx2")]
#[inline]
pub fn load_words(words: &[i16; VECTOR / 2]) -> __m256i {
    // SAFETY: the load reads exactly the words, and needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Loads two sums into the lower half of a small vector.
#[target_feature(enable = "avx2")]
#[inline]
fn load_sums(sums: &PacketChecksums) -> __m128i {
    // SAFETY: the load reads exactly the sums, and needs no alignment.
    unsafe { _mm_loadl_epi64((&raw const sums.0).cast()) }
}
