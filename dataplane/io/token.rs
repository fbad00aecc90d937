//! Packets as words: what a thread hands to another in a ring's slot.
#![allow(unsafe_code, reason = "a packet becomes a word and comes back")]

use super::memory::Frame;

/// What fits a slot's word while it is on its way.
pub trait Token: Send + Sized {
    /// Becomes a word; whoever has the word owns it.
    fn into_word(self) -> u64;

    /// Comes back of its word.
    ///
    /// # Safety
    /// The word came of [`Token::into_word`] of the same type, and comes back once.
    unsafe fn from_word(word: u64) -> Self;
}

impl<T: Send> Token for Box<T> {
    #[inline]
    fn into_word(self) -> u64 {
        Box::into_raw(self).expose_provenance() as u64
    }

    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: by this function's contract it is the pointer of a box that nobody else has.
        unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut(word as usize)) }
    }
}

impl Token for Frame {
    #[inline]
    fn into_word(self) -> u64 {
        self.into_memory().map_or(0, Token::into_word)
    }

    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        // SAFETY: passed on; 0 is no box's.
        Self::of_memory((word != 0).then(|| unsafe { Box::from_word(word) }))
    }
}
