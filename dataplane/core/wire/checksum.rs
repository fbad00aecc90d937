//! Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! [`PartialChecksum`] computes whole checksums, [`ChecksumDelta`] updates them, and [`FoldedDelta`] does so
//! with less work per packet.

/// Length from which vectorised summing pays off its set-up.
const VECTOR_BYTES: usize = 256;

/// One's-complement sum of a packet's words in memory order. It depends on the byte order only by a final
/// swap (RFC 1071, 2B). 2^16, 2^32 and 2^64 all equal 1, so words of any size may be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialChecksum(u64);

impl PartialChecksum {
    /// Adds the words of `bytes`; pads an odd last byte with zero.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        if bytes.len() >= VECTOR_BYTES {
            return self.long(bytes);
        }
        let (words, rest) = bytes.as_chunks::<8>();
        let sum = words.iter().fold(self, |sum, word| sum.chunk(word));
        if rest.is_empty() { sum } else { sum.add(last_word(bytes, rest)) }
    }

    /// Adds the bytes of `frame` from `start` to `end`, with at least eight bytes before `end`. Excess bytes
    /// of the last word are shifted out.
    ///
    /// # Panics
    /// If `end` is beyond the frame, or `start` beyond `end`.
    #[inline(always)]
    #[must_use]
    pub fn range(self, frame: &[u8], start: usize, end: usize) -> Self {
        let frame = &frame[..end];
        let mut rest = &frame[start..];
        if rest.len() >= VECTOR_BYTES {
            return self.long(rest);
        }
        let mut sum = self;
        // The compiler does not unroll this form; unrolling costs more than a task's few words.
        while let Some((word, after)) = rest.split_first_chunk::<8>() {
            (sum, rest) = (sum.chunk(word), after);
        }
        let last = frame.last_chunk::<8>().map_or(0, |last| u64::from_le_bytes(*last));
        // Two shifts, because a single one by 64 bits would overflow.
        sum.add(last >> 1 >> (63 - 8 * rest.len()))
    }

    /// Adds many words at once: each carry goes into the next addition.
    #[inline(always)]
    #[must_use]
    pub fn words<const N: usize>(self, words: [u64; N]) -> Self {
        let add = |(sum, carry): (u64, bool), word: u64| sum.carrying_add(word, carry);
        let (sum, carry) = words.into_iter().fold((self.0, false), add);
        Self(sum + u64::from(carry)) // cannot overflow: after a carry the sum is below its maximum
    }

    /// Adds many bytes as 32-bit words in a 64-bit sum, a loop that the compiler vectorises.
    #[inline(never)]
    fn long(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let total: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        let mut last = [0_u8; 4];
        last[..rest.len()].copy_from_slice(rest);
        self.add(total).add(u64::from(u32::from_le_bytes(last)))
    }

    /// Adds four words.
    #[inline]
    #[must_use]
    pub const fn chunk(self, bytes: &[u8; 8]) -> Self {
        self.add(u64::from_le_bytes(*bytes))
    }

    /// Adds a 16-bit number that the packet stores in network order.
    #[inline]
    #[must_use]
    pub const fn number(self, number: u16) -> Self {
        self.add(number.swap_bytes() as u64)
    }

    /// Adds a word; the carry goes around to the lowest bit.
    #[inline]
    const fn add(self, word: u64) -> Self {
        let (total, carry) = self.0.overflowing_add(word);
        Self(total + carry as u64)
    }

    /// Returns true if the sum including its checksum is all ones: the packet is undamaged.
    #[inline]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        fold64(self.0) == 0xFFFF
    }

    /// Returns the checksum to send, as a number.
    #[inline]
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !fold64(self.0).swap_bytes()
    }
}

/// Returns the up to seven bytes after the last whole chunk.
#[inline]
fn last_word(bytes: &[u8], rest: &[u8]) -> u64 {
    // The last eight bytes contain them; bytes already summed are shifted out.
    match bytes.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest.len())),
        None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// Folds a sum to 16 bits. Adding the swapped halves carries around into the upper half.
#[inline]
const fn fold64(total: u64) -> u16 {
    fold32((total.wrapping_add(total.rotate_left(32)) >> 32) as u32)
}

/// Change of a checksum by replaced words of a packet. Changes are collected first and applied once.
///
/// Kept in memory order, like [`PartialChecksum`], so that numbers read from a packet and written back are
/// never swapped. A field of 32 bits counts like its two words, and one at an odd offset like one shifted by
/// a byte: 2^16 is 1 in one's complement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumDelta(u64);

impl ChecksumDelta {
    /// Replaces a word at an even offset.
    #[inline]
    #[must_use]
    pub const fn word(self, old: u16, new: u16) -> Self {
        Self(self.0 + (!old).to_be() as u64 + new.to_be() as u64)
    }

    /// Replaces two words at an even offset, such as an address.
    #[inline]
    #[must_use]
    pub const fn double_word(self, old: u32, new: u32) -> Self {
        Self(self.0 + (!old).to_be() as u64 + new.to_be() as u64)
    }

    /// Replaces an IPv6 address at an even offset.
    #[inline]
    #[must_use]
    pub fn address(self, old: u128, new: u128) -> Self {
        // Four words of 32 bits each; a sum has room for them.
        let words = [0, 32, 64, 96].map(|shift| ((old >> shift) as u32, (new >> shift) as u32));
        words.into_iter().fold(self, |delta, (old, new)| delta.double_word(old, new))
    }

    /// Replaces an address of 16 bytes, at an even offset and in memory order, by zero.
    #[inline(always)]
    #[must_use]
    pub fn address_removed(self, old: &[u8; 16]) -> Self {
        let words = old.as_chunks::<4>().0.iter();
        Self(words.fold(self.0, |sum, word| sum + u64::from(!u32::from_ne_bytes(*word))))
    }

    /// Replaces a 16-bit field at an odd offset: its bytes are in two words, on opposite sides. The swap of these sides
    /// and that to memory order cancel out on a little-endian CPU.
    #[inline]
    #[must_use]
    pub const fn straddling_word(self, old: u16, new: u16) -> Self {
        Self(self.0 + (!old).to_le() as u64 + new.to_le() as u64)
    }

    /// Replaces 32 bits at an odd offset: their bytes are in three words, on opposite sides.
    #[inline]
    #[must_use]
    pub const fn straddling_double_word(self, old: u32, new: u32) -> Self {
        Self(self.0 + (!old).to_le() as u64 + new.to_le() as u64)
    }

    /// Returns the updated checksum, RFC 1624 eq. 3: HC' = ~(~HC + ~m + m').
    #[inline]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        u16::from_be(!fold64((!checksum).to_be() as u64 + self.0))
    }

    /// Same as [`ChecksumDelta::apply`], for UDP: 0 means "no checksum" and stays, and a sum of 0 is sent as
    /// 0xFFFF.
    #[inline]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        let new = self.apply(checksum);
        let new = if new == 0 { 0xFFFF } else { new };
        if checksum == 0 { 0 } else { new }
    }
}

/// Folds a sum of a few 16-bit numbers, like [`fold64`].
#[inline]
const fn fold32(total: u32) -> u16 {
    (total.wrapping_add(total.rotate_left(16)) >> 16) as u16
}

/// A [`ChecksumDelta`] in 16-bit parts, most of which may be computed long before the packet: fewer
/// instructions per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldedDelta(u32);

impl FoldedDelta {
    /// Maximum number of parts in one change. A part is a number of at most 16 bits.
    const PARTS: u32 = 8;

    /// Folds a change to one part.
    #[must_use]
    pub const fn fold(delta: ChecksumDelta) -> Self {
        Self(fold64(delta.0) as u32)
    }

    /// Adds another change; at most eight parts in total.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, change: Self) -> Self {
        Self(self.0 + change.0)
    }

    /// Replaces 32 bits at an odd offset, in memory order, by zero: two parts.
    #[inline(always)]
    #[must_use]
    pub const fn straddling_double_word_removed(old: u32) -> Self {
        let words = (!old).rotate_left(8);
        Self((words & 0xFFFF) + (words >> 16))
    }

    /// Replaces 32 bits at an even offset, in memory order, by zero: two parts.
    #[inline(always)]
    #[must_use]
    pub const fn double_word_removed(old: u32) -> Self {
        Self((!old & 0xFFFF) + (!old >> 16))
    }

    /// Changes a byte at an even offset from zero to `new`. In memory order of a little-endian CPU it is the lower byte
    /// of its word.
    #[inline(always)]
    #[must_use]
    pub const fn even_byte(new: u8) -> Self {
        Self(new as u32)
    }

    /// Same as [`ChecksumDelta::apply`], for a checksum in memory order.
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold32(self.0 + (!checksum) as u32)
    }

    /// Same as [`ChecksumDelta::apply_udp`], for a checksum in memory order. By RFC 1624's eq. 4, HC' = HC -
    /// ~m - m', a nonzero checksum never becomes 0 but all ones.
    #[inline(always)]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        // The multiple of 0xFFFF, which is 0 in one's complement, keeps the difference above 0.
        let new = fold32(checksum as u32 + Self::PARTS * 0xFFFF - self.0);
        if checksum == 0 { 0 } else { new }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the checksum by the code under test.
    fn checksum(bytes: &[u8]) -> u16 {
        PartialChecksum::default().bytes(bytes).checksum()
    }

    /// Returns the sum word by word, as RFC 1071 defines it.
    fn sum_by_words(bytes: &[u8]) -> u16 {
        let mut total = 0_u32;
        for pair in bytes.chunks(2) {
            let low = if pair.len() == 2 { pair[1] } else { 0 };
            total += u32::from(u16::from_be_bytes([pair[0], low]));
            total = (total & 0xFFFF) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn rfc1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(!PartialChecksum::default().bytes(&bytes).checksum(), 0xddf2);
    }

    proptest! {
        #[test]
        fn sum_equals_word_by_word_sum(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            // 0 and 0xFFFF are the same number in one's complement.
            prop_assert_eq!(!checksum(&bytes) % 0xFFFF, sum_by_words(&bytes) % 0xFFFF);
        }

        #[test]
        fn range_sum_equals_sum_of_its_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 8..600), start: prop::sample::Index,
        ) {
            // From 8 to the length: at least eight bytes before the end are required.
            let start = start.index(bytes.len()).min(bytes.len() - 8) + 8;
            let sum = PartialChecksum::default().chunk(&[1; 8]);
            let range = sum.range(&bytes, start, bytes.len());
            prop_assert_eq!(range.checksum(), sum.bytes(&bytes[start..]).checksum());
        }

        // promise: packets.1
        #[test]
        fn incremental_equals_whole(
            mut bytes in proptest::collection::vec(any::<u8>(), 40),
            word in any::<u16>(), odd in any::<u32>(), address in any::<u32>(),
        ) {
            bytes[0] = 1; // never the all-zero packet, whose checksum has two forms
            let before = checksum(&bytes);
            let old = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let old_odd = u32::from_be_bytes([bytes[13], bytes[14], bytes[15], bytes[16]]);
            let old_address = u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
            let delta = ChecksumDelta::default()
                .word(old(8), word)
                .straddling_double_word(old_odd, odd)
                .double_word(old_address, address);
            bytes[8..10].copy_from_slice(&word.to_be_bytes());
            bytes[13..17].copy_from_slice(&odd.to_be_bytes());
            bytes[20..24].copy_from_slice(&address.to_be_bytes());
            prop_assert_eq!(delta.apply(before), checksum(&bytes));
        }
    }

    proptest! {
        #[test]
        fn folded_delta_equals_delta(
            old in any::<u32>(), new in any::<u32>(), address: (u32, u32), byte: u8, checksum: u16,
        ) {
            // The byte is the last one of the new words.
            let new = new & !0xFF;
            let whole = ChecksumDelta::default()
                .straddling_double_word(old, new | u32::from(byte))
                .double_word(address.0, address.1);
            let known = ChecksumDelta::default().straddling_double_word(0, new);
            let delta = FoldedDelta::double_word_removed(address.0.to_be())
                .and(FoldedDelta::fold(known.double_word(0, address.1)))
                .and(FoldedDelta::straddling_double_word_removed(old.to_be()))
                .and(FoldedDelta::even_byte(byte));
            let memory = checksum.to_be();
            prop_assert_eq!(delta.apply_udp(memory).to_be(), whole.apply_udp(checksum));
            prop_assert_eq!(
                delta.apply(memory).to_be() % 0xFFFF, whole.apply(checksum) % 0xFFFF
            );
        }
    }

    // promise: packets.1
    #[test]
    fn udp_zero_stays_zero_and_is_never_made() {
        let delta = ChecksumDelta::default().word(1, 2);
        assert_eq!(delta.apply_udp(0), 0);
        // ~0xFFFE is 1, and 1 + ~0 + 0xFFFE is all ones in one's complement. So the new checksum is 0.
        let delta = ChecksumDelta::default().word(0, 0xFFFE);
        assert_eq!(delta.apply(0xFFFE), 0);
        assert_eq!(delta.apply_udp(0xFFFE), 0xFFFF);
    }
}
