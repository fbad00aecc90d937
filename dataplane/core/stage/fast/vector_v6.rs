//! Recognises packets over IPv6 like [`TemplateV6::recognise`], with vectors of 32 bytes if the machine has
//! them. [`super::vector`] does the same for IPv4.
//!
//! Two and a half vectors hold everything to compare. Two of them hold everything that the checksum covers in
//! every packet.
#![allow(
    unsafe_code,
    reason = "vectors are loaded, and instructions used that not every machine has"
)]

use std::arch::x86_64::*;

use super::pattern::CodeByte;
use super::template_v6::{HEAD, IP, LEAST, PATTERN, Pattern, TASK, TemplateV6, UDP, VECTORS};
use super::vector::{
    LAST, VECTOR, add_rest, differing, differing_half, fold, inverted, load, load_tolerance,
    load_words, number, weight,
};
use super::{Fields, LeadingRun};
use crate::io::Buf;
use crate::limits::BURST;
use crate::stage::parse::PREFETCH_AHEAD;
use crate::stage::unreachable::UnreachableV6;
use crate::wire::{ipv6, udp};

/// Offset of the last vector, at the end of the pattern.
const THIRD: usize = VECTORS[1];
const _: () = assert!(THIRD <= IP + VECTOR && PATTERN <= HEAD && THIRD.is_multiple_of(2));

/// Weight of each word of the second vector in the sum of the datagram and its pseudo header (RFC 8200, 8.1):
/// the length of the datagram, and the addresses.
const SECOND_WORDS: [i16; 16] = [0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
/// Weight of each word of the third vector. Words of the second vector count there only.
const THIRD_WORDS: [i16; 16] = [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
/// Corrections of the sums, for the last vector at an even and at an odd offset: 2^15 for each word, because
/// [`inverted`] makes it that much smaller, and the protocol of the pseudo header in memory order.
const CORRECTIONS: [u32; 2] = [correction(0), correction(1)];
/// Sum of a packet with a right checksum.
const GOOD: u32 = 0xFFFF;

/// Returns the correction for an even (0) or odd (1) offset of the last vector.
const fn correction(odd: usize) -> u32 {
    let words = weight(&SECOND_WORDS) + weight(&THIRD_WORDS) + weight(&LAST[odd]);
    (words << 15) + (ipv6::UDP as u32) * 0x100
}

/// Like [`recognise_scalar`](super::v6::recognise_scalar). Returns `None` if a sum is wrong, or the machine
/// has no such vectors.
#[inline(always)]
pub fn recognise<B: Buf>(
    template: &TemplateV6,
    unreachable: &[UnreachableV6],
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    if !is_x86_feature_detected!("avx2") {
        return None;
    }
    // SAFETY: the machine has the required instructions.
    unsafe { recognise_avx2(template, unreachable, packets, fields) }
}

/// Does the work of [`recognise`].
#[target_feature(enable = "avx2")]
fn recognise_avx2<B: Buf>(
    template: &TemplateV6,
    unreachable: &[UnreachableV6],
    packets: &[B],
    fields: &mut Fields,
) -> Option<LeadingRun> {
    let packets = &packets[..packets.len().min(BURST)];
    let mut run = LeadingRun::default();
    let mut sums = [GOOD; BURST];
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
        if !code.is_reply() && is_listed(head, unreachable) {
            break;
        }
        if !packet.udp_checksum_verified() {
            sums[index] = sum(head, &frame[..end]);
        }
        run.push_v6(index, code, frame, fields);
    }
    are_good(&sums).then_some(run)
}

/// Returns the end of the datagram in a frame that matches, without a check of its sum.
#[target_feature(enable = "avx2")]
#[inline]
fn end(pattern: &Pattern, code: CodeByte, head: &[u8; HEAD], len: usize) -> Option<usize> {
    let (expected, mask) = (&pattern.expected, &pattern.mask);
    let link = _mm256_zextsi128_si256(differing_half(expected, mask, head));
    let beyond = |vector: usize| {
        let differs = differing(expected, mask, head, VECTORS[vector]);
        _mm256_subs_epu16(differs, load_tolerance(&pattern.tolerance[vector]))
    };
    let differs = _mm256_or_si256(_mm256_or_si256(link, beyond(0)), beyond(1));
    let (payload_len, udp_len) = (number(head, IP + 4), number(head, UDP + 4));
    let end = UDP + udp_len;
    // True if no bit of `differs` is set.
    let fits = _mm256_testc_si256(_mm256_setzero_si256(), differs) != 0
        && payload_len == udp_len // a longer packet goes to the stages: slower, and also correct
        && udp_len >= pattern.least + code.extension_len()
        && end <= len;
    fits.then_some(end)
}

/// Returns true if no reply reaches the packet's source.
#[target_feature(enable = "avx2")]
#[inline]
fn is_listed(head: &[u8; HEAD], unreachable: &[UnreachableV6]) -> bool {
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

/// Returns the sum of the datagram at the end of `frame`.
#[target_feature(enable = "avx2")]
#[inline]
fn sum(head: &[u8; HEAD], frame: &[u8]) -> u32 {
    let second = _mm256_madd_epi16(inverted(load(head, IP)), load_words(&SECOND_WORDS));
    let third = _mm256_madd_epi16(inverted(load(head, THIRD)), load_words(&THIRD_WORDS));
    let sums = add_rest(_mm256_add_epi32(second, third), frame, PATTERN);
    // Adds the eight partial sums.
    let halves = (_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let quarters = _mm_add_epi32(halves.0, halves.1);
    let eighths = _mm_hadd_epi32(quarters, quarters);
    let total = _mm_cvtsi128_si32(_mm_hadd_epi32(eighths, eighths)).cast_unsigned();
    total.wrapping_add(CORRECTIONS[frame.len() % 2])
}

/// Returns true if all sums are right: 0 as a one's complement number, in its form of all ones.
#[target_feature(enable = "avx2")]
#[inline]
fn are_good(sums: &[u32; BURST]) -> bool {
    let ones = _mm256_set1_epi32(GOOD.cast_signed());
    let mut wrong = _mm256_setzero_si256();
    for eight in sums.as_chunks::<8>().0 {
        // SAFETY: the load reads exactly the sums, and needs no alignment.
        let totals = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(fold(fold(totals)), ones));
    }
    _mm256_testc_si256(_mm256_setzero_si256(), wrong) != 0
}

// The vectors cover the UDP header. Every matching datagram reaches beyond them, where `add_rest` continues.
const _: () = assert!(UDP + udp::LEN <= PATTERN && LEAST > PATTERN - UDP);
