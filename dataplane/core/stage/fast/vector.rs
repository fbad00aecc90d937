//! Recognises packets like [`Template::recognise`], with vectors of 64 bytes (AVX-512) or 32 bytes (AVX2), if the
//! machine has them.
//!
//! Half a vector of 32 bytes holds the Ethernet header. One more (IPv4) or two more (IPv6) hold everything else to
//! compare. The vectors behind the Ethernet header also hold the first bytes for the checksums. A vector of 64 bytes
//! holds the whole rest of a short packet. The sums are checked once per burst, all together.
//!
//! The code adds words in memory order, in one's complement (see
//! [`PartialChecksum`](crate::wire::checksum::PartialChecksum)). The instruction that multiplies and adds words
//! takes signed words. With their top bits inverted, each is 2^15 too small; this is corrected afterwards. Until then a
//! sum may be negative.
//!
//! *Memory order* means: numbers are loaded from the packet without a swap of their bytes.
#![allow(
    unsafe_code,
    reason = "vectors are loaded, and instructions used that not every machine has"
)]

use std::arch::x86_64::*;

use super::run::{Fields, LeadingRun};
use super::template::{CodeByte, IP, LEAST, Layout, TOLERANCES, Template};
use crate::io::Buf;
use crate::limits::BURST;
use crate::stage::unreachable::UnreachableSource;
use crate::wire::address::Address;
use crate::wire::{ipv4, ipv6, udp};

/// Number of bytes in a vector with AVX2.
const VECTOR: usize = 32;
/// Number of bytes in a vector with AVX-512.
const WIDE: usize = 64;
/// Sum of a header or datagram with a right checksum.
const GOOD: u32 = 0xFFFF;

/// Weight of each word of the second vector in the sum of an IPv4 header.
const HEADER: [i16; 16] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0];
/// Weight in the sum of the datagram and its pseudo header (RFC 768). The length occurs there once more.
const DATAGRAM: [i16; 16] = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1];
/// Offset behind the second vector. The bytes of a datagram over IPv4 from here on are summed separately.
const BODY: usize = IP + VECTOR;

/// Offset of the third vector of IPv6.
const THIRD: usize = <u128 as Layout>::VECTORS[1];
/// Weight of each word of the second vector in the sum of the datagram and its pseudo header (RFC 8200, 8.1):
/// the length of the datagram, and the addresses.
const SECOND_V6: [i16; 16] = [0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
/// Weight of each word of the third vector. Words of the second vector count there only.
const THIRD_V6: [i16; 16] = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
/// Offset behind the third vector, where the separate sum continues. It is behind the UDP header, and every
/// datagram reaches beyond it.
const BODY_V6: usize = THIRD + VECTOR;
const _: () = assert!(THIRD <= IP + VECTOR && THIRD.is_multiple_of(2));
const _: () = assert!(<u128 as Address>::UDP + udp::LEN <= BODY_V6);
const _: () = assert!(LEAST > BODY_V6 - <u128 as Address>::UDP);

/// Weight of each word of the last vector. At an odd offset, the two bytes of a word belong to two words,
/// each at the opposite position.
const LAST: [[i16; 16]; 2] = [[1; 16], [1 << 8; 16]];
/// Corrections of the sums of an IPv4 header and its datagram, for the last vector at an even and at an odd
/// offset.
const CORRECTIONS: [[u32; 2]; 2] = [
    [weight(&HEADER) << 15, correction(&[DATAGRAM, LAST[0]])],
    [weight(&HEADER) << 15, correction(&[DATAGRAM, LAST[1]])],
];
/// Same, of a datagram over IPv6.
const CORRECTIONS_V6: [u32; 2] =
    [correction(&[SECOND_V6, THIRD_V6, LAST[0]]), correction(&[SECOND_V6, THIRD_V6, LAST[1]])];

/// Weight of each word of a vector of 64 bytes behind the Ethernet header, in the sum of the datagram and its pseudo
/// header.
const WIDE_DATAGRAM: [i16; WIDE / 2] = wide(&DATAGRAM);
/// Same, of a datagram over IPv6.
const WIDE_V6: [i16; WIDE / 2] = wide(&SECOND_V6);
/// Corrections of the sums of an IPv4 header and its datagram.
const WIDE_CORRECTIONS: [u32; 2] = [weight(&HEADER) << 15, wide_correction(&WIDE_DATAGRAM)];

/// Returns these weights, and weight 1 for all further words of a vector of 64 bytes.
const fn wide(first: &[i16; VECTOR / 2]) -> [i16; WIDE / 2] {
    let (mut weights, mut at) = ([1; WIDE / 2], 0);
    while at < first.len() {
        weights[at] = first[at];
        at += 1;
    }
    weights
}

/// Returns the correction of a datagram's sum whose first vector of 64 bytes has these weights.
const fn wide_correction(weights: &[i16; WIDE / 2]) -> u32 {
    (weight(weights) << 15) + PROTOCOL
}

/// Protocol of the pseudo header, in memory order.
const PROTOCOL: u32 = (ipv4::UDP as u32) * 0x100;

/// Returns the correction of a datagram's sum of words with these weights: 2^15 for each word, and the protocol of the
/// pseudo header in memory order.
const fn correction(weights: &[[i16; 16]]) -> u32 {
    let (mut sum, mut at) = (0, 0);
    while at < weights.len() {
        sum += weight(&weights[at]);
        at += 1;
    }
    (sum << 15) + PROTOCOL
}
const _: () = assert!(ipv4::UDP == ipv6::UDP);

/// Returns the sum of the weights.
const fn weight(words: &[i16]) -> u32 {
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

/// Vector instructions that this machine has: a value exists only where the instructions do.
#[derive(Clone, Copy, Debug)]
pub struct Vectors(Width);

/// Width of vectors.
#[derive(Clone, Copy, Debug)]
enum Width {
    /// AVX2: 32 bytes.
    V256,
    /// AVX-512: 64 bytes.
    V512,
}

impl Vectors {
    /// Returns the widest vectors of this machine that save time; `None` without AVX2.
    #[inline(always)]
    pub fn best() -> Option<Self> {
        // CPUs with AVX-512 but without this extension (before Ice Lake and Zen 4) lower their clock for vectors of 64
        // bytes.
        let wide = || is_x86_feature_detected!("avx512vbmi2").then(Self::avx512).flatten();
        wide().or_else(Self::avx2)
    }

    /// Returns vectors of 32 bytes; `None` without AVX2.
    #[inline(always)]
    pub fn avx2() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(Width::V256))
    }

    /// Returns vectors of 64 bytes; `None` without AVX-512.
    #[inline(always)]
    pub fn avx512() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
        has.then_some(Self(Width::V512))
    }
}

/// Returns the run of matching packets at the front, like [`Template::recognise`] packet by packet. A packet longer
/// than its datagram also ends the run. Returns `None` if a checksum in the run is wrong. The scalar code then finds
/// the run. Does not check for unreachable sources: the caller checks all of `fields.sources`.
#[inline(always)]
pub fn recognise<B: Buf>(
    vectors: Vectors,
    template: &Template<u32>,
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    // SAFETY: the machine has these vectors.
    unsafe {
        match vectors.0 {
            Width::V256 => recognise_avx2(template, packets, fields),
            Width::V512 => recognise_avx512(template, packets, fields),
        }
    }
}

/// Like [`recognise`], over IPv6. Compares the source of each task with the list: a task from an unreachable source
/// does not match.
#[inline(always)]
pub fn recognise_v6<B: Buf>(
    vectors: Vectors,
    template: &Template<u128>,
    unreachable: &[UnreachableSource<u128>],
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    // SAFETY: the machine has these vectors.
    unsafe {
        match vectors.0 {
            Width::V256 => recognise_v6_avx2(template, unreachable, packets, fields),
            Width::V512 => recognise_v6_avx512(template, unreachable, packets, fields),
        }
    }
}

/// Defines the functions that do the work of [`recognise`] and [`recognise_v6`] with these instructions. The last two
/// arguments sum the checksums.
macro_rules! recognisers {
    ($features:literal, $v4:ident, $v6:ident, $take_sums:ident, $sum_v6:ident) => {
        #[target_feature(enable = $features)]
        fn $v4<B: Buf>(
            template: &Template<u32>,
            packets: &[B],
            fields: &mut Fields,
        ) -> Option<LeadingRun> {
            let mut sums = [[GOOD; 2]; BURST];
            let run = LeadingRun::of::<u32, B>(packets, fields, |index, packet, frame, fields| {
                let head = frame.first_chunk::<{ u32::HEAD }>()?;
                let (code, end) = matching(template, head, frame.len())?;
                if !packet.checksums_verified() {
                    $take_sums(head, &frame[..end], &mut sums[index]);
                }
                fields.sources[index % BURST] = source(head);
                Some(code)
            });
            are_good(&sums).then_some(run)
        }

        #[target_feature(enable = $features)]
        fn $v6<B: Buf>(
            template: &Template<u128>,
            unreachable: &[UnreachableSource<u128>],
            packets: &[B],
            fields: &mut Fields,
        ) -> Option<LeadingRun> {
            let mut sums = [[GOOD]; BURST];
            let run = LeadingRun::of::<u128, B>(packets, fields, |index, packet, frame, _| {
                let head = frame.first_chunk::<{ u128::HEAD }>()?;
                let (code, end) = matching(template, head, frame.len())?;
                if !code.is_reply() && is_listed(head, unreachable) {
                    return None;
                }
                if !packet.udp_checksum_verified() {
                    sums[index] = [$sum_v6(head, &frame[..end])];
                }
                Some(code)
            });
            are_good(&sums).then_some(run)
        }
    };
}

recognisers!("avx2", recognise_avx2, recognise_v6_avx2, take_sums, sum_v6);
recognisers!(
    "avx512bw,avx512vl",
    recognise_avx512,
    recognise_v6_avx512,
    take_wide_sums,
    wide_sum_v6
);

/// Returns the code of a frame that matches its pattern, and the end of its datagram. The datagram must end with the IP
/// packet. Does not check the checksums.
#[target_feature(enable = "avx2")]
#[inline]
fn matching<A: Layout>(
    template: &Template<A>,
    head: &[u8],
    len: usize,
) -> Option<(CodeByte, usize)> {
    let code = CodeByte::at(head[A::PAYLOAD]);
    let pattern = template.pattern(code);
    let (expected, mask) = (pattern.expected.as_ref(), pattern.mask.as_ref());
    let mut differs = _mm256_zextsi128_si256(differing_half(expected, mask, head));
    for (&at, tolerance) in A::VECTORS.iter().zip(pattern.tolerance.as_ref()) {
        let beyond =
            _mm256_subs_epu16(differing(expected, mask, head, at), load_tolerance(tolerance));
        differs = _mm256_or_si256(differs, beyond);
    }
    let [length, start] = A::LENGTH;
    let (packet_len, udp_len) = (number(head, length), number(head, A::UDP + 4));
    let end = A::UDP + udp_len;
    // True if no bit of `differs` is set.
    let fits = _mm256_testc_si256(_mm256_setzero_si256(), differs) != 0
        && start + packet_len == end // a longer packet goes to the stages: slower, and also correct
        && udp_len >= usize::from(pattern.least_udp_len) + code.extension_len()
        && end <= len;
    fits.then_some((code, end))
}

/// A number that need not be aligned.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Number(u16);

/// Returns the big-endian number at an offset.
#[inline(always)]
fn number(head: &[u8], at: usize) -> usize {
    let bytes = &head[at..at + size_of::<Number>()];
    // SAFETY: it points to that many bytes, and any bytes make a number. Volatile, because the compiler
    // otherwise extracts the number from a vector that covers it, which takes longer.
    let number = unsafe { bytes.as_ptr().cast::<Number>().read_volatile() };
    usize::from(u16::from_be(number.0))
}

/// Returns the bits of a packet's first 16 bytes, half a vector, that differ from the expected ones.
#[target_feature(enable = "avx2")]
#[inline]
fn differing_half(expected: &[u8], mask: &[u8], head: &[u8]) -> __m128i {
    _mm_xor_si128(_mm_and_si128(load_half(head), load_half(mask)), load_half(expected))
}

/// Returns the bits of the vector at an offset that differ from the expected ones.
#[target_feature(enable = "avx2")]
#[inline]
fn differing(expected: &[u8], mask: &[u8], head: &[u8], at: usize) -> __m256i {
    _mm256_xor_si256(_mm256_and_si256(load(head, at), load(mask, at)), load(expected, at))
}

/// Returns the source address, in memory order.
#[inline(always)]
fn source(head: &[u8]) -> u32 {
    let mut source = [0; 4];
    source.copy_from_slice(&head[IP + 12..IP + 16]);
    u32::from_ne_bytes(source)
}

/// Returns one bit for each address (in memory order), set if no reply reaches it.
#[inline(always)]
pub fn match_unreachable(
    _: Vectors,
    addresses: &[u32; BURST],
    unreachable: &[UnreachableSource<u32>],
) -> u32 {
    // SAFETY: a machine with any of the vectors has AVX2.
    unsafe { match_unreachable_avx2(addresses, unreachable) }
}

/// Does the work of [`match_unreachable`].
#[target_feature(enable = "avx2")]
fn match_unreachable_avx2(addresses: &[u32; BURST], unreachable: &[UnreachableSource<u32>]) -> u32 {
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

/// Returns true if no reply reaches the packet's source.
#[target_feature(enable = "avx2")]
#[inline]
fn is_listed(head: &[u8], unreachable: &[UnreachableSource<u128>]) -> bool {
    let source = ipv6::src_bytes(&head[IP..]);
    // SAFETY: the load reads exactly an address, and needs no alignment.
    let load = |bytes: *const u8| unsafe { _mm_loadu_si128(bytes.cast()) };
    let source = load(source.as_ptr());
    for range in unreachable {
        let differs = _mm_xor_si128(source, load((&raw const range.network).cast()));
        if _mm_testz_si128(differs, load((&raw const range.mask).cast())) != 0 {
            return true;
        }
    }
    false
}

/// Writes the sums of the IPv4 header and of the datagram. `frame` ends with the datagram.
#[target_feature(enable = "avx2")]
#[inline]
fn take_sums(head: &[u8], frame: &[u8], sums: &mut [u32; 2]) {
    let second = inverted(load(head, IP));
    let header = _mm256_madd_epi16(second, load_words(&HEADER));
    let datagram = _mm256_madd_epi16(second, load_words(&DATAGRAM));
    let odd = frame.len() % 2;
    let datagram = add_rest(datagram, frame, BODY);
    sum_pairs(header, datagram, &CORRECTIONS[odd], sums);
    if number(head, <u32 as Address>::UDP + 6) == 0 {
        sums[1] = GOOD; // it has no checksum
    }
}

/// Writes the two corrected totals of the eight partial sums of each vector.
#[target_feature(enable = "avx2")]
#[inline]
fn sum_pairs(header: __m256i, datagram: __m256i, corrections: &[u32; 2], sums: &mut [u32; 2]) {
    // Three steps add the partial sums, to two totals side by side.
    let pairs = _mm256_hadd_epi32(header, datagram);
    let halves = (_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    let quarters = _mm_add_epi32(halves.0, halves.1);
    let totals = _mm_add_epi32(_mm_hadd_epi32(quarters, quarters), load_sums(corrections));
    // SAFETY: the store writes exactly the two sums, and needs no alignment.
    unsafe { _mm_storel_epi64((&raw mut *sums).cast(), totals) };
}

/// Same as [`take_sums`], with vectors of 64 bytes.
#[target_feature(enable = "avx512bw,avx512vl")]
#[inline]
fn take_wide_sums(head: &[u8], frame: &[u8], sums: &mut [u32; 2]) {
    let words = load_rest(frame, IP);
    let header = _mm256_madd_epi16(_mm512_castsi512_si256(words), load_words(&HEADER));
    let datagram = sum_wide(words, &WIDE_DATAGRAM, frame);
    sum_pairs(header, datagram, &WIDE_CORRECTIONS, sums);
    if number(head, <u32 as Address>::UDP + 6) == 0 {
        sums[1] = GOOD; // it has no checksum
    }
}

/// Returns the sum of the datagram at the end of a frame over IPv6.
#[target_feature(enable = "avx2")]
#[inline]
fn sum_v6(head: &[u8], frame: &[u8]) -> u32 {
    let second = _mm256_madd_epi16(inverted(load(head, IP)), load_words(&SECOND_V6));
    let third = _mm256_madd_epi16(inverted(load(head, THIRD)), load_words(&THIRD_V6));
    let sums = add_rest(_mm256_add_epi32(second, third), frame, BODY_V6);
    total(sums).wrapping_add(CORRECTIONS_V6[frame.len() % 2])
}

/// Same as [`sum_v6`], with vectors of 64 bytes.
#[target_feature(enable = "avx512bw,avx512vl")]
#[inline]
fn wide_sum_v6(_: &[u8], frame: &[u8]) -> u32 {
    let sums = sum_wide(load_rest(frame, IP), &WIDE_V6, frame);
    total(sums).wrapping_add(const { wide_correction(&WIDE_V6) })
}

/// Returns the total of eight partial sums.
#[target_feature(enable = "avx2")]
#[inline]
fn total(sums: __m256i) -> u32 {
    let halves = (_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let quarters = _mm_add_epi32(halves.0, halves.1);
    let eighths = _mm_hadd_epi32(quarters, quarters);
    _mm_cvtsi128_si32(_mm_hadd_epi32(eighths, eighths)).cast_unsigned()
}

/// Returns eight partial sums of a datagram at the end of a frame: of its first vector `words`, at [`IP`], with these
/// weights, and of all words behind it. The sum still lacks the correction for the first vector.
#[target_feature(enable = "avx512bw,avx512vl")]
#[inline]
fn sum_wide(words: __m512i, weights: &[i16; WIDE / 2], frame: &[u8]) -> __m256i {
    // SAFETY: the load reads exactly the weights, and needs no alignment.
    let weights = unsafe { _mm512_loadu_si512(weights.as_ptr().cast()) };
    let mut sum = _mm512_madd_epi16(words, weights);
    let mut done = IP + WIDE;
    while done < frame.len() {
        let words = _mm512_madd_epi16(load_rest(frame, done), _mm512_set1_epi16(1));
        // Corrected at once, for two words each.
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(words, _mm512_set1_epi32(1 << 16)));
        done += WIDE;
    }
    _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum))
}

/// Loads a vector of words from an offset of a frame, as signed words, each 2^15 less. Bytes behind the frame are 0.
///
/// # Panics
/// If the frame ends before the offset.
#[target_feature(enable = "avx512bw,avx512vl")]
#[inline]
fn load_rest(frame: &[u8], at: usize) -> __m512i {
    let rest = &frame[at..];
    let mask = u64::MAX.checked_shr((WIDE - rest.len().min(WIDE)) as u32).unwrap_or(0);
    // SAFETY: the load reads only bytes of the frame, and needs no alignment.
    let words = unsafe { _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) };
    _mm512_xor_si512(words, _mm512_set1_epi16(i16::MIN))
}

/// Adds the bytes behind the first `done` bytes of a frame to a sum. The frame ends with its datagram. The
/// sum still lacks the correction for [`LAST`].
#[target_feature(enable = "avx2")]
#[inline]
fn add_rest(mut sum: __m256i, frame: &[u8], mut done: usize) -> __m256i {
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

/// Returns true if all sums are right: 0 as a one's complement number, in its form of all ones. The first fold may
/// carry into the upper half; after the second one a sum has 16 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn are_good<const N: usize>(sums: &[[u32; N]; BURST]) -> bool {
    let ones = _mm256_set1_epi32(GOOD.cast_signed());
    let mut wrong = _mm256_setzero_si256();
    for eight in sums.as_flattened().as_chunks::<8>().0 {
        // SAFETY: the load reads exactly the sums, and needs no alignment.
        let totals = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(fold(fold(totals)), ones));
    }
    _mm256_testc_si256(_mm256_setzero_si256(), wrong) != 0
}

/// Adds the upper halves of numbers to their lower halves.
#[target_feature(enable = "avx2")]
#[inline]
fn fold(sums: __m256i) -> __m256i {
    let low = _mm256_and_si256(sums, _mm256_set1_epi32(0xFFFF));
    _mm256_add_epi32(low, _mm256_srli_epi32::<16>(sums))
}

/// Converts words to signed numbers, each 2^15 less.
#[target_feature(enable = "avx2")]
#[inline]
fn inverted(words: __m256i) -> __m256i {
    _mm256_xor_si256(words, _mm256_set1_epi16(i16::MIN))
}

/// Loads a vector at an offset.
///
/// # Panics
/// If the bytes end before the vector does.
#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8], at: usize) -> __m256i {
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
fn load_tolerance(tolerance: &[u16; TOLERANCES]) -> __m256i {
    // SAFETY: the load reads exactly the numbers, and needs no alignment.
    unsafe { _mm256_loadu_si256(tolerance.as_ptr().cast()) }
}

/// Loads a vector of words.
#[target_feature(enable = "avx2")]
#[inline]
fn load_words(words: &[i16; VECTOR / 2]) -> __m256i {
    // SAFETY: the load reads exactly the words, and needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// Loads two sums into the lower half of a small vector.
#[target_feature(enable = "avx2")]
#[inline]
fn load_sums(sums: &[u32; 2]) -> __m128i {
    // SAFETY: the load reads exactly the sums, and needs no alignment.
    unsafe { _mm_loadl_epi64(sums.as_ptr().cast()) }
}
