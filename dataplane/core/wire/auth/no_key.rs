//! Replacement for `key.rs` in a build without the feature `auth`: no keys. Its functions have the signatures of those
//! in `key.rs`, so callers need no `cfg`.

use std::convert::Infallible;

use arrayvec::ArrayVec;

use super::{KEY_LEN, SignedBlocks};
use crate::limits::BURST;

/// A pool's key. Uninhabited in a build without the feature `auth`.
#[derive(Clone, PartialEq)]
pub struct Key(Infallible);

/// Returns `None`: this build has no keys.
#[must_use]
pub fn new_key(_bytes: [u8; KEY_LEN]) -> Option<Key> {
    None
}

impl Key {
    /// Cannot be called without a key.
    #[must_use]
    pub fn tag_with<const BLOCKS: usize>(
        &self,
        _blocks: &SignedBlocks<BLOCKS>,
        _entries: &[u8],
    ) -> u64 {
        match self.0 {}
    }

    /// Same as [`Key::tag_with`].
    #[must_use]
    pub fn tags<'a, const BLOCKS: usize>(
        &self,
        _packets: impl ExactSizeIterator<Item = &'a SignedBlocks<BLOCKS>>,
    ) -> ArrayVec<u64, BURST> {
        match self.0 {}
    }
}
