//! Bytes of tasks and replies in shared memory, accessed as words that both ends may touch.
//!
//! A faulty peer may write at any time. Access by relaxed atomic words makes that a wrong value instead of a data race.
//! Only a worker's handler accesses bytes in place ([`view`], [`view_mut`]), and relies on the agent for that.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Copies bytes into shared words; pads the last word with zeros.
///
/// # Panics
/// If there are too few words.
#[inline]
pub fn store(words: &[AtomicU64], bytes: &[u8]) {
    let words = &words[..bytes.len().div_ceil(8)];
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*chunk), Relaxed);
    }
    if let (Some(word), false) = (words.last(), rest.is_empty()) {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Relaxed);
    }
}

/// Copies bytes out of shared words, each read once. A concurrent writer can only spoil the copy.
///
/// # Panics
/// If there are too few words.
#[inline]
pub fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let words = &words[..bytes.len().div_ceil(8)];
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (word, chunk) in words.iter().zip(whole) {
        *chunk = word.load(Relaxed).to_ne_bytes();
    }
    if let (Some(word), false) = (words.last(), rest.is_empty()) {
        let len = rest.len();
        rest.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..len]);
    }
}

/// Returns shared words as plain bytes: a task, for a worker's handler.
///
/// # Safety
/// No one may write the words while the slice exists.
#[inline]
pub unsafe fn view(words: &[AtomicU64]) -> &[u8] {
    // SAFETY: the words are initialised memory of this length, and the caller excludes writers.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), 8 * words.len()) }
}

/// Returns shared words as mutable plain bytes: a reply, for a worker's handler.
///
/// # Safety
/// No one else may read or write the words while the slice exists.
#[inline]
#[expect(clippy::mut_from_ref, reason = "atomics may be written through a shared reference")]
pub unsafe fn view_mut(words: &[AtomicU64]) -> &mut [u8] {
    // SAFETY: atomics are interior-mutable memory of this length, and the caller excludes other accesses.
    unsafe { std::slice::from_raw_parts_mut(words.as_ptr().cast_mut().cast(), 8 * words.len()) }
}

/// Prefetches the cache line at this address, on machines with such an instruction.
#[inline]
pub fn prefetch<T>(line: *const T) {
    // SAFETY: a prefetch has no effect on memory, and an invalid address causes no fault.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast())
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back() {
        let words: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(u64::MAX)).collect();
        for len in 0..=40_usize {
            let bytes: Vec<u8> = (0..len as u8).collect();
            store(&words, &bytes);
            let mut back = vec![0xFF; len];
            load(&words, &mut back);
            assert_eq!(back, bytes);
            // SAFETY: only this thread has the words.
            assert_eq!(unsafe { &view(&words)[..len] }, bytes);
        }
        // SAFETY: as above.
        unsafe { view_mut(&words)[7] = 99 };
        let mut back = [0; 8];
        load(&words, &mut back);
        assert_eq!(back[7], 99);
    }
}
