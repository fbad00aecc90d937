//! Packets as words, for handing them to another thread in a ring's slot.
#![allow(unsafe_code, reason = "a packet becomes a word and comes back")]

use super::memory::Frame;

/// A value that travels as one word.
pub trait Token: Send + Sized {
    /// Converts the value to a word; the owner of the word owns the value.
    fn into_word(self) -> u64;

    /// Converts a word back.
    ///
    /// # Safety
    /// The word must come from [`Token::into_word`] of the same type, and be converted once.
    unsafe fn from_word(word: u64) -> Self;
}

impl<T: Send> Token for Box<T> {
    #[inline]
    fn into_word(self) -> u64 {
        Box::into_raw(self).expose_provenance() as u64
    }

    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: by this function's contract it is the pointer of a box without another owner.
        unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut(word as usize)) }
    }
}

impl Token for Frame {
    #[inline]
    fn into_word(self) -> u64 {
        self.into_memory().map_or(0, Token::into_word) // 0: a frame without memory
    }

    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: passed on; 0 is not a box's pointer.
        Self::of_memory((word != 0).then(|| unsafe { Box::from_word(word) }))
    }
}
