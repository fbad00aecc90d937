//! A piece of memory, from the heap or mapped from a file, cut into slices of atomic words.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use memmap2::{Mmap, MmapMut, MmapOptions};

use super::words::Own;

/// What sections start at a multiple of: two cache lines, since neighbouring lines are fetched in pairs.
pub const ALIGN: usize = 128;

#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; ALIGN]);

enum Backing {
    Heap(Vec<Line>),
    Mapped(MmapMut),
    ReadOnly(Mmap),
}

/// What to do when the system refuses a file of shared memory; to be put behind what it said.
#[must_use]
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its folder first, or name another file",
        io::ErrorKind::PermissionDenied => "; run as the file's owner, or name another file",
        io::ErrorKind::StorageFull => "; make room there, or name another file",
        _ => "",
    }
}

/// Memory shared by everything that holds a [`Slice`] of it.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

// SAFETY: the region's bytes are reached only through slices of atomics, which any thread may use;
// the backing owns the memory and frees it wherever the last slice is dropped.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of this process.
    #[must_use]
    pub fn heap(len: usize) -> Arc<Self> {
        let mut lines = vec![Line([0; ALIGN]); len.div_ceil(ALIGN)];
        let base = NonNull::new(lines.as_mut_ptr().cast()).unwrap_or(NonNull::dangling());
        Arc::new(Self { base, len, backing: Backing::Heap(lines) })
    }

    /// The first `len` bytes of a file, to be read and written. The file must not be shortened while
    /// the region lives; this project never shortens one (it replaces the file instead).
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn map(file: &File, len: usize) -> io::Result<Arc<Self>> {
        // SAFETY: other processes may write the file, and every access is through atomics;
        // a file shortened by a stranger would raise SIGBUS, which no mapping can prevent.
        let mut map = unsafe { MmapOptions::new().len(len).map_mut(file)? };
        let base = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Ok(Arc::new(Self { base, len, backing: Backing::Mapped(map) }))
    }

    /// The first `len` bytes of a file, to be read only: storing to a slice of it is a fault.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn map_read_only(file: &File, len: usize) -> io::Result<Arc<Self>> {
        // SAFETY: as in `map`.
        let map = unsafe { MmapOptions::new().len(len).map(file)? };
        let base = NonNull::new(map.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        Ok(Arc::new(Self { base, len, backing: Backing::ReadOnly(map) }))
    }

    /// `len` words at byte offset `at`.
    ///
    /// # Panics
    /// When the words don't lie within the region or `at` is not aligned for them.
    #[must_use]
    pub fn slice<T: Word>(self: &Arc<Self>, at: usize, len: usize) -> Slice<T> {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(at));
        assert!(bytes.is_some_and(|end| end <= self.len), "slice beyond its region");
        assert!(at.is_multiple_of(align_of::<T>()), "slice not aligned");
        // SAFETY: `at` is within the region, as just checked.
        let words = unsafe { self.base.add(at) }.cast();
        Slice { words, len, _region: Arc::clone(self) }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.backing {
            Backing::Heap(lines) => format!("heap, {} lines", lines.len()),
            Backing::Mapped(map) => format!("mapped at {:p}", map.as_ptr()),
            Backing::ReadOnly(map) => format!("mapped read-only at {:p}", map.as_ptr()),
        };
        write!(f, "Region({kind}, {} bytes)", self.len)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The atomic integers and structs of nothing else, for which every bit pattern is a value and shared writing
/// is sound.
pub trait Word: sealed::Sealed + Sync {}
impl sealed::Sealed for AtomicU16 {}
impl sealed::Sealed for AtomicU32 {}
impl sealed::Sealed for AtomicU64 {}
impl sealed::Sealed for Own {}
impl Word for AtomicU16 {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}
impl Word for Own {}

/// Words of a region, which it keeps alive.
pub struct Slice<T: Word> {
    words: NonNull<T>,
    len: usize,
    _region: Arc<Region>,
}

impl<T: Word> Clone for Slice<T> {
    fn clone(&self) -> Self {
        Self { words: self.words, len: self.len, _region: Arc::clone(&self._region) }
    }
}

// SAFETY: a slice gives out only shared references to atomics, and holds its region alive.
unsafe impl<T: Word> Send for Slice<T> {}
// SAFETY: as above.
unsafe impl<T: Word> Sync for Slice<T> {}

impl<T: Word> Deref for Slice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `Region::slice` checked bounds and alignment, the region is alive as long as this
        // slice, and memory of atomics may be written by others while it is shared.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl<T: Word> std::fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice<{}>({})", std::any::type_name::<T>(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn slices_keep_their_region_alive_and_do_not_overlap() {
        let region = Region::heap(1000);
        let first = region.slice::<AtomicU64>(0, 4);
        let second = region.slice::<AtomicU32>(32, 2);
        drop(region);
        first[3].store(u64::MAX, Relaxed);
        assert_eq!(second[0].load(Relaxed), 0);
        assert_eq!(first[3].load(Relaxed), u64::MAX);
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn a_slice_beyond_its_region_is_refused() {
        let _ = Region::heap(64).slice::<AtomicU64>(0, 9);
    }

    #[test]
    #[should_panic(expected = "aligned")]
    fn a_slice_not_aligned_is_refused() {
        let _ = Region::heap(64).slice::<AtomicU64>(4, 1);
    }

    #[test]
    fn two_mappings_of_a_file_see_each_other() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let writer = Region::map(&file, 4096).unwrap().slice::<AtomicU64>(8, 1);
        let reader = Region::map_read_only(&file, 4096).unwrap().slice::<AtomicU64>(8, 1);
        writer[0].store(7, Relaxed);
        assert_eq!(reader[0].load(Relaxed), 7);
    }
}
