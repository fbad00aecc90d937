//! Parts of the patterns of both IP versions: the code byte, and words that differ by at most a tolerance.

use crate::wire::task::{self, Code};

/// Bit that is set in the codes of replies, and in no code of tasks.
pub const REPLY_BIT: u8 = Code::TaskDone as u8;
const _: () = assert!(Code::NewTask as u8 == 0 && Code::TaskDoneIdle as u8 == REPLY_BIT | 1);

/// First byte of a task header. It shows if a packet is a reply, and if its header has an extension.
#[derive(Clone, Copy, Debug)]
pub struct CodeByte(u8);

impl CodeByte {
    /// Creates the value from the first byte of a task header.
    #[inline(always)]
    pub fn at(first: u8) -> Self {
        Self(first)
    }

    /// Returns true for the code of a reply.
    #[inline(always)]
    pub fn is_reply(self) -> bool {
        self.0 & REPLY_BIT != 0
    }

    /// Returns true if the header has an extension.
    #[inline(always)]
    pub fn is_extended(self) -> bool {
        self.0 & task::EXTENSION_BIT != 0
    }

    /// Returns the length of the extension in bytes.
    #[inline(always)]
    pub fn extension_len(self) -> usize {
        usize::from(self.is_extended()) * task::EXTENSION_LEN
    }
}

/// Number of words in a vector.
pub const TOLERANCES: usize = 16;
/// Tolerance of a word that must not be 0. Its expected value has all ones.
pub const NOT_ZERO: u16 = 0xFFFE;

/// Returns the tolerance of a byte that must be at least `least`. Its expected value is 0xFF, and the byte
/// behind it must be equal.
pub const fn at_least(least: u8) -> u16 {
    (u8::MAX - least) as u16
}

/// Returns the bits of the word at `at` that differ from the expected ones, in a little-endian number.
#[inline(always)]
pub fn differing(head: &[u8], expected: &[u8], mask: &[u8], at: usize) -> u16 {
    let word = |bytes: &[u8]| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    (word(head) & word(mask)) ^ word(expected)
}
