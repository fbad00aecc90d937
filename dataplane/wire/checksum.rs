//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! Sums are one's-complement sums of big-endian words, unfolded, in a `u32` or `u64` with room to spare.

/// One's-complement sum of `bytes` as big-endian words, an odd last byte padded with zero.
///
/// The sum does not depend on byte order but for a final swap (RFC 1071, 2B), so it is taken over
/// native 32-bit words.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(4);
    let mut total: u64 = 0;
    for word in &mut words {
        total += u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    }
    let rest = words.remainder();
    let mut last = [0_u8; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_le_bytes(last));
    u32::from(fold_u64(total).swap_bytes())
}

#[inline]
fn fold_u64(total: u64) -> u16 {
    let total = (total & 0xFFFF_FFFF) + (total >> 32);
    let total = (total & 0xFFFF_FFFF) + (total >> 32);
    fold(total as u32)
}

/// Folds a sum to 16 bits.
#[inline]
#[must_use]
pub fn fold(total: u32) -> u16 {
    let total = (total & 0xFFFF) + (total >> 16);
    (total + (total >> 16)) as u16
}

/// The sum of the UDP pseudo header (RFC 768) but for the length.
#[inline]
#[must_use]
pub fn pseudo_header(src: u32, dst: u32) -> u32 {
    (src >> 16) + (src & 0xFFFF) + (dst >> 16) + (dst & 0xFFFF) + 17
}

/// What replacing words of a packet does to its checksum; collected first, applied once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta(u32);

impl Delta {
    /// A word at an even offset changes.
    #[inline]
    #[must_use]
    pub const fn word(self, old: u16, new: u16) -> Self {
        Self(self.0 + (!old) as u32 + new as u32)
    }

    /// A 16-bit field at an odd offset changes: its bytes lie in two words, each on the other side.
    #[inline]
    #[must_use]
    pub const fn straddling_word(self, old: u16, new: u16) -> Self {
        self.word(old.swap_bytes(), new.swap_bytes())
    }

    /// Two words at an even offset, an address for instance, change.
    #[inline]
    #[must_use]
    pub const fn double_word(self, old: u32, new: u32) -> Self {
        self.word((old >> 16) as u16, (new >> 16) as u16).word(old as u16, new as u16)
    }

    /// Both changes.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum after the change, RFC 1624 eq. 3: HC' = ~(~HC + ~m + m').
    #[inline]
    #[must_use]
    pub fn apply(self, checksum: u16) -> u16 {
        !fold(u32::from(!checksum) + self.0)
    }

    /// As [`Delta::apply`], for UDP: 0 means "no checksum" and stays, and a sum of 0 is sent as 0xFFFF.
    #[inline]
    #[must_use]
    pub fn apply_udp(self, checksum: u16) -> u16 {
        let new = self.apply(checksum);
        let new = if new == 0 { 0xFFFF } else { new };
        if checksum == 0 { 0 } else { new }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(fold(sum(&bytes)), 0xddf2);
    }

    proptest! {
        #[test]
        fn sum_is_that_of_its_words(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            // 0 and 0xFFFF are the same number in one's complement.
            prop_assert_eq!(fold(sum(&bytes)) % 0xFFFF, sum_by_words(&bytes) % 0xFFFF);
        }

        #[test]
        fn incremental_equals_whole(
            mut bytes in proptest::collection::vec(any::<u8>(), 40),
            word in any::<u16>(), odd in any::<u16>(), address in any::<u32>(),
        ) {
            bytes[0] = 1; // never the all-zero packet, whose checksum has two forms
            let before = !fold(sum(&bytes));
            let old = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let old_address = u32::from_be_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
            let delta = Delta::default()
                .word(old(8), word)
                .straddling_word(old(13), odd)
                .double_word(old_address, address);
            bytes[8..10].copy_from_slice(&word.to_be_bytes());
            bytes[13..15].copy_from_slice(&odd.to_be_bytes());
            bytes[20..24].copy_from_slice(&address.to_be_bytes());
            prop_assert_eq!(delta.apply(before), !fold(sum(&bytes)));
        }
    }

    #[test]
    fn udp_zero_stays_zero_and_is_never_made() {
        let delta = Delta::default().word(1, 2);
        assert_eq!(delta.apply_udp(0), 0);
        // ~0xFFFE = 1; 1 + ~1 + 0xFFFF... choose the change that makes the sum all ones.
        let delta = Delta::default().word(0, 0xFFFE);
        assert_eq!(delta.apply(0xFFFE), 0);
        assert_eq!(delta.apply_udp(0xFFFE), 0xFFFF);
    }
}
