//! Recognises packets as [`Template::recognise`] does, with vectors of 32 bytes where the machine has them.
//!
//! A vector and a half hold everything to compare, and the whole one all that the IPv4 checksum covers and the start
//! of what the UDP checksum covers; whether the sums are right is asked once a burst, of all of them together.
//!
//! Words are summed in memory order, in one's complement (see [`Sum`](crate::wire::checksum::Sum)). The
//! instruction that multiplies and adds words takes them for signed; with their upper bits inverted each is 2^15
//! too small, which is put right afterwards.
#![allow(
    unsafe_code,
    reason = "vectors are loaded, and instructions used that not every machine has"
)]

use std::arch::x86_64::*;

use super::template::{CodeByte, HEAD, IP, Pattern, TOLERANCES, Template, UDP};
use super::{Fields, LeadingRun};
use crate::io::Buf;
use crate::limits::BURST;
use crate::stage::network::UnreachableSource;
use crate::stage::parse::PREFETCH_AHEAD;
use crate::wire::ipv4;

/// Bytes in a vector.
pub const VECTOR: usize = 32;
/// Behind the second vector: what of a datagram is summed by itself.
const BODY: usize = IP + VECTOR;
const _: () = assert!(BODY <= Pattern::LEN && BODY <= HEAD);

/// A packet's sums: that of its IPv4 header, and that of its datagram.
#[derive(Clone, Copy)]
struct Sums([u32; 2]);

impl Sums {
    /// As if they were right.
    const GOOD: Self = Self([0xFFFF; 2]);
}

/// What each word of the second vector counts in the sum of the IPv4 header.
const HEADER: [i16; 16] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0];
/// And in that of the datagram and its pseudo header (RFC 768), in which the length stands once more.
const DATAGRAM: [i16; 16] = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];
/// What each word of the last vector counts: one at an odd place has its bytes in two words, each on the other side.
pub const LAST: [[i16; 16]; 2] = [[1; 16], [1 << 8; 16]];
/// What the sums lack, by whether the last vector is at an odd place: 2^15 for each word, and the protocol.
const LACKING: [Sums; 2] = [lacking(0), lacking(1)];

const fn lacking(odd: usize) -> Sums {
    let datagram = weight(&DATAGRAM) + weight(&LAST[odd]);
    Sums([weight(&HEADER) << 15, (datagram << 15) + (ipv4::UDP as u32) * 0x100])
}

pub const fn weight(words: &[i16; 16]) -> u32 {
    let (mut sum, mut at) = (0, 0);
    while at < words.len() {
        sum += words[at] as u32;
        at += 1;
    }
    sum
}

/// As many zeros as a vector has bytes, and as many ones: shifted by `n` bytes, a mask for the last `n` of a vector.
const MASKS: [u8; 2 * VECTOR] = {
    let mut masks = [0; 2 * VECTOR];
    let mut at = VECTOR;
    while at < masks.len() {
        masks[at] = 0xFF;
        at += 1;
    }
    masks
};

/// As [`recognise_scalar`](super::recognise_scalar); none where a sum is wrong, or the machine has no such vectors.
#[inline(always)]
pub fn recognise<B: Buf>(
    template: &Template,
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    // SAFETY: the machine has what is called for.
    unsafe { recognise_avx2(template, packets, fields) }
}

#[target_feature(enable = "avx2")]
fn recognise_avx2<B: Buf>(
    template: &Template,
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    let packets = &packets[..packets.len().min(BURST)];
    let mut run = LeadingRun::default();
    let mut sums = [Sums::GOOD; BURST];
    for packet in packets.iter().take(PREFETCH_AHEAD) {
        packet.prefetch();
    }
    for (at, packet) in packets.iter().enumerate() {
        if let Some(ahead) = packets.get(at + PREFETCH_AHEAD) {
            ahead.prefetch();
        }
        if packet.is_segmented() {
            break;
        }
        let frame = packet.bytes();
        let Some(head) = frame.first_chunk::<HEAD>() else {
            break;
        };
        let code = CodeByte::of(head);
        let Some(end) = end(template.pattern(code), code, head, frame.len()) else {
            break;
        };
        if !packet.checksums_verified() {
            take_sums(head, &frame[..end], &mut sums[at]);
        }
        run.push(at, code, frame, source(head), fields);
    }
    are_good(&sums).then_some(run)
}

/// Where the datagram ends, in a frame that matches but for its sums.
#[target_feature(enable = "avx2")]
#[inline]
fn end(pattern: &Pattern, code: CodeByte, head: &[u8; HEAD], len: usize) -> Option<usize> {
    let link = _mm256_zextsi128_si256(differing_half(&pattern.expected, &pattern.mask, head));
    let network = differing(&pattern.expected, &pattern.mask, head, IP);
    let beyond = _mm256_subs_epu16(network, load_tolerance(&pattern.tolerance));
    let differs = _mm256_or_si256(link, beyond);
    let (total_len, udp_len) = (number(head, IP + 2), number(head, UDP + 4));
    let end = UDP + udp_len;
    let fits = _mm256_testc_si256(_mm256_setzero_si256(), differs) != 0
        && total_len == ipv4::LEN + udp_len // where it is longer, the stages are slower, and right, too
        && udp_len >= usize::from(pattern.least_udp_len) + code.extension_len()
        && end <= len;
    fits.then_some(end)
}

/// A number that need not be aligned.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Number(u16);

/// The number at an offset, as packets hold it.
#[inline(always)]
pub fn number<const LEN: usize>(head: &[u8; LEN], at: usize) -> usize {
    let bytes = &head[at..at + size_of::<Number>()];
    // SAFETY: it points to that many bytes, of which any make a number. Volatile, because the compiler otherwise
    // takes the number out of a vector that covers it, which takes longer.
    let number = unsafe { bytes.as_ptr().cast::<Number>().read_volatile() };
    usize::from(u16::from_be(number.0))
}

/// The bits of the first half of a vector, at a packet's start, that differ from the expected ones.
#[target_feature(enable = "avx2")]
#[inline]
pub fn differing_half(expected: &[u8], mask: &[u8], head: &[u8]) -> __m128i {
    _mm_xor_si128(_mm_and_si128(load_half(head), load_half(mask)), load_half(expected))
}

/// The bits of the vector at an offset that differ from the expected ones.
#[target_feature(enable = "avx2")]
#[inline]
pub fn differing(expected: &[u8], mask: &[u8], head: &[u8], at: usize) -> __m256i {
    _mm256_xor_si256(_mm256_and_si256(load(head, at), load(mask, at)), load(expected, at))
}

/// The source address, in memory order.
#[inline(always)]
fn source(head: &[u8; HEAD]) -> u32 {
    let mut source = [0; 4];
    source.copy_from_slice(&head[IP + 12..IP + 16]);
    u32::from_ne_bytes(source)
}

/// A bit for each address (in memory order) that no reply would reach; none where the machine has no such vectors.
#[inline(always)]
pub fn match_unreachable(
    addresses: &[u32; BURST],
    unreachable: &[UnreachableSource],
) -> Option<u32> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    // SAFETY: the machine has what is called for.
    Some(unsafe { match_unreachable_avx2(addresses, unreachable) })
}

#[target_feature(enable = "avx2")]
fn match_unreachable_avx2(addresses: &[u32; BURST], unreachable: &[UnreachableSource]) -> u32 {
    // SAFETY: the addresses are as many bytes as are loaded, and need no alignment.
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
    equal.iter().enumerate().fold(0, |found, (at, &eight)| found | bits(eight) << (8 * at))
}

/// Sums up the headers and the datagram that `frame` ends with.
#[target_feature(enable = "avx2")]
#[inline]
fn take_sums(head: &[u8; HEAD], frame: &[u8], sums: &mut Sums) {
    let behind = inverted(load(head, IP));
    let header = _mm256_madd_epi16(behind, load_words(&HEADER));
    let datagram = _mm256_madd_epi16(behind, load_words(&DATAGRAM));
    let odd = frame.len() % 2;
    let datagram = add_rest(datagram, frame, BODY);
    let pairs = _mm256_hadd_epi32(header, datagram);
    let halves = (_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    let quarters = _mm_add_epi32(halves.0, halves.1);
    let totals = _mm_add_epi32(_mm_hadd_epi32(quarters, quarters), load_sums(&LACKING[odd]));
    // SAFETY: the sums are as many bytes as are stored, and need no alignment.
    unsafe { _mm_storel_epi64((&raw mut sums.0).cast(), totals) };
    if number(head, UDP + 6) == 0 {
        sums.0[1] = Sums::GOOD.0[1]; // it has none
    }
}

/// Adds what stands behind the first `done` bytes of a frame, which ends with its datagram, to a sum. It lacks what [`LAST`] counts.
#[target_feature(enable = "avx2")]
#[inline]
pub fn add_rest(mut sum: __m256i, frame: &[u8], mut done: usize) -> __m256i {
    while frame.len() - done > VECTOR {
        let words = _mm256_madd_epi16(inverted(load(frame, done)), _mm256_set1_epi16(1));
        // Put right at once: two words each.
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(words, _mm256_set1_epi32(1 << 16)));
        done += VECTOR;
    }
    let last = load(frame, frame.len() - VECTOR);
    let last = _mm256_and_si256(last, load(&MASKS, frame.len() - done));
    let last = _mm256_madd_epi16(inverted(last), load_words(&LAST[frame.len() % 2]));
    _mm256_add_epi32(sum, last)
}

/// All sums are right: as one's complement numbers, 0 in its form of all ones.
#[target_feature(enable = "avx2")]
#[inline]
fn are_good(sums: &[Sums; BURST]) -> bool {
    let ones = _mm256_set1_epi32(0xFFFF);
    let mut wrong = _mm256_setzero_si256();
    for four in sums.as_chunks::<4>().0 {
        // SAFETY: the sums are as many bytes as are loaded, and need no alignment.
        let totals = unsafe { _mm256_loadu_si256(four.as_ptr().cast()) };
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(fold(fold(totals)), ones));
    }
    _mm256_testc_si256(_mm256_setzero_si256(), wrong) != 0
}

/// Adds the upper halves of numbers to their lower ones.
#[target_feature(enable = "avx2")]
#[inline]
pub fn fold(sums: __m256i) -> __m256i {
    let low = _mm256_and_si256(sums, _mm256_set1_epi32(0xFFFF));
    _mm256_add_epi32(low, _mm256_srli_epi32::<16>(sums))
}

/// Words as signed numbers, each 2^15 less.
#[target_feature(enable = "avx2")]
#[inline]
pub fn inverted(words: __m256i) -> __m256i {
    _mm256_xor_si256(words, _mm256_set1_epi16(i16::MIN))
}

/// # Panics
/// When the bytes end before the vector does.
#[target_feature(enable = "avx2")]
#[inline]
pub fn load(bytes: &[u8], at: usize) -> __m256i {
    let bytes = &bytes[at..at + VECTOR];
    // SAFETY: the bytes are as many as are loaded, and need no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// As [`load`], the first half of a vector at the start.
#[target_feature(enable = "avx2")]
#[inline]
fn load_half(bytes: &[u8]) -> __m128i {
    let bytes = &bytes[..VECTOR / 2];
    // SAFETY: the bytes are as many as are loaded, and need no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub fn load_tolerance(tolerance: &[u16; TOLERANCES]) -> __m256i {
    // SAFETY: the numbers are as many bytes as are loaded, and need no alignment.
    unsafe { _mm256_loadu_si256(tolerance.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub fn load_words(words: &[i16; VECTOR / 2]) -> __m256i {
    // SAFETY: the words are as many bytes as are loaded, and need no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_sums(sums: &Sums) -> __m128i {
    // SAFETY: the sums are as many bytes as are loaded, and need no alignment.
    unsafe { _mm_loadl_epi64((&raw const sums.0).cast()) }
}
