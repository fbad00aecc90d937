//! Memory region, private or shared with other processes, divided into slices of atomic words. A node's state, a clock
//! file, and the rings between an agent and its workers lie in regions.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::SealFlags;

/// Alignment of sections: two cache lines, because processors fetch neighbouring lines in pairs.
pub const ALIGN: usize = 128;

/// Unit of allocation of a heap region.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; ALIGN]);

/// Owner of a region's memory, which frees or unmaps it.
enum Backing {
    /// Memory of this process.
    Heap(Vec<Line>),
    /// Mapped memory or file, which other processes may also map.
    Shared(MmapMut),
}

/// Seals against resizing that shared memory must have. Without them another process could shrink the memory, and an
/// access beyond its new end would kill this process.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory of a state or a ring. Its [`Slice`]s share it and keep it alive.
pub struct Region {
    /// First byte.
    base: NonNull<u8>,
    /// Number of bytes.
    len: usize,
    backing: Backing,
}

// SAFETY: the region's bytes are reached only through slices of atomics, which any thread may use. The
// backing owns the memory and frees it on any thread that drops the last slice.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates zeroed memory of this process.
    #[must_use]
    pub fn heap(len: usize) -> Arc<Self> {
        let mut lines = vec![Line([0; ALIGN]); len.div_ceil(ALIGN)];
        let base = NonNull::new(lines.as_mut_ptr().cast()).unwrap_or(NonNull::dangling());
        Arc::new(Self { base, len, backing: Backing::Heap(lines) })
    }

    /// Maps the first `len` bytes of sealed anonymous memory, which other processes may also map. All its pages are
    /// allocated at once. They stay in memory if this process may lock that much.
    ///
    /// # Errors
    /// For memory without seals against resizing, for memory shorter than `len`, or if `mmap` fails.
    pub fn shared(memory: &File, len: usize) -> io::Result<Arc<Self>> {
        let invalid = |text| io::Error::new(io::ErrorKind::InvalidData, text);
        let seals = rustix::fs::fcntl_get_seals(memory).unwrap_or(SealFlags::empty());
        if !seals.contains(SEALS) {
            return Err(invalid("its memory could be taken away by another process"));
        }
        if memory.metadata()?.len() < len as u64 {
            return Err(invalid("its memory is shorter than it should be"));
        }
        // SAFETY: other processes may write the memory, and every access is through atomics. Its seals keep
        // every process from shortening it.
        let mut map = unsafe { MmapOptions::new().len(len).populate().map_mut(memory)? };
        let _ = map.lock(); // fails above the process's limit on locked memory
        let base = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Ok(Arc::new(Self { base, len, backing: Backing::Shared(map) }))
    }

    /// Maps the first `len` bytes of a file that only this user may read or write, such as a clock file. The caller
    /// checks that the file has `len` bytes. A process that shortened the file would kill those that map it. Use it
    /// between a user's own tools, never for a node that other users rely on.
    ///
    /// # Errors
    /// If other users have rights to it, or if `mmap` fails.
    pub fn own_file(file: &File, len: usize) -> io::Result<Arc<Self>> {
        let stat = rustix::fs::fstat(file)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            let text = "it belongs to another user or is open to others";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        // SAFETY: other processes may write the file, and every access is through atomics. Only processes of
        // this user could shorten it, and none of this project does.
        let mut map = unsafe { MmapOptions::new().len(len).map_mut(file)? };
        let base = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Ok(Arc::new(Self { base, len, backing: Backing::Shared(map) }))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the start address in this process, for tools that trace memory accesses.
    #[must_use]
    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Returns true if the region is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the whole region into a file, from byte `at` on. Other threads may write the region meanwhile:
    /// each word is written with a value from some moment of the call.
    ///
    /// # Errors
    /// If `pwrite` fails. A part may have been written.
    pub fn write_to(&self, file: &File, at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < self.len {
            // SAFETY: the bytes are the region's. They may change meanwhile, so no reference to them exists:
            // the kernel reads them, like another process.
            let written = unsafe {
                let from = self.base.as_ptr().add(done).cast();
                libc::pwrite(file.as_raw_fd(), from, self.len - done, at as i64 + done as i64)
            };
            match written {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                1.. => done += written as usize,
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Returns `len` words at byte offset `at`.
    ///
    /// # Panics
    /// If the words don't lie within the region or `at` is not aligned for them.
    #[must_use]
    pub fn slice<T: Pod>(self: &Arc<Self>, at: usize, len: usize) -> Slice<T> {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(at));
        assert!(bytes.is_some_and(|end| end <= self.len), "slice beyond its region");
        assert!(at.is_multiple_of(align_of::<T>()), "slice not aligned");
        // SAFETY: `at` is within the region, as just checked.
        let first = unsafe { self.base.add(at) }.cast();
        Slice { words: NonNull::slice_from_raw_parts(first, len), _region: Arc::clone(self) }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.backing {
            Backing::Heap(lines) => format!("heap, {} lines", lines.len()),
            Backing::Shared(map) => format!("shared at {:p}", map.as_ptr()),
        };
        write!(f, "Region({kind}, {} bytes)", self.len)
    }
}

pub(super) mod sealed {
    /// Keeps other modules from implementing [`super::Pod`] for types with invalid bit patterns.
    pub trait Sealed {}
}

/// Atomic integers, and structs of atomic integers. Every bit pattern is a valid value, and shared writing is
/// sound.
pub trait Pod: sealed::Sealed + Sync {}
impl sealed::Sealed for AtomicU16 {}
impl sealed::Sealed for AtomicU32 {}
impl sealed::Sealed for AtomicU64 {}
impl Pod for AtomicU16 {}
impl Pod for AtomicU32 {}
impl Pod for AtomicU64 {}

/// Words of a region. Keeps the region alive.
pub struct Slice<T: Pod> {
    words: NonNull<[T]>,
    _region: Arc<Region>,
}

impl<T: Pod> Clone for Slice<T> {
    fn clone(&self) -> Self {
        Self { words: self.words, _region: Arc::clone(&self._region) }
    }
}

// SAFETY: a slice gives out only shared references to atomics, and keeps its region alive.
unsafe impl<T: Pod> Send for Slice<T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Sync for Slice<T> {}

impl<T: Pod> Deref for Slice<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `Region::slice` checked bounds and alignment. The region lives as long as this slice. Other
        // threads and processes may write memory of atomics while it is shared.
        unsafe { self.words.as_ref() }
    }
}

impl<T: Pod> std::fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice<{}>({})", std::any::type_name::<T>(), self.words.len())
    }
}

/// Runs `make` with memory preferred on a NUMA node, and then restores the thread's memory policy. Memory first
/// touched by this thread meanwhile lies on that node. It lies elsewhere if the node has no room.
///
/// # Errors
/// If the system has no such node, or does not let the process choose.
pub fn on_numa_node<T>(node: u32, make: impl FnOnce() -> T) -> io::Result<T> {
    const PREFERRED: libc::c_int = 1; // MPOL_PREFERRED
    const NODES_MAX: u32 = 1024; // bits in a set of nodes
    /// Bit set of nodes.
    type Nodes = [u64; NODES_MAX as usize / 64];
    // Converts the result of a system call.
    let call = |result: libc::c_long| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    if node >= NODES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // Sets the thread's memory policy.
    let set = |policy: libc::c_int, nodes: &Nodes| {
        // SAFETY: `nodes` has as many bits as given; the kernel does not read the last one.
        call(unsafe {
            libc::syscall(libc::SYS_set_mempolicy, policy, nodes.as_ptr(), NODES_MAX + 1)
        })
    };
    // Reads the current policy, which is restored at the end.
    let (mut before, mut before_nodes): (libc::c_int, Nodes) = (0, [0; _]);
    let (address, flags) = (std::ptr::null_mut::<libc::c_void>(), 0);
    // SAFETY: the kernel writes a number and as many bits as given.
    call(unsafe {
        let (policy, nodes) = (&raw mut before, before_nodes.as_mut_ptr());
        libc::syscall(libc::SYS_get_mempolicy, policy, nodes, NODES_MAX, address, flags)
    })?;
    let mut nodes: Nodes = [0; _];
    nodes[node as usize / 64] = 1 << (node % 64);
    set(PREFERRED, &nodes)?;
    let made = make();
    if let Err(error) = set(before, &before_nodes) {
        log::warn!("this thread goes on taking memory on NUMA node {node}: {error}");
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn slices_keep_their_region_and_never_overlap() {
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

    // promise: agent.2
    #[cfg(not(miri))]
    #[test]
    fn only_sealed_memory_is_shared() {
        use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = File::from(memfd_create("test", flags).unwrap());
        memory.set_len(4096).unwrap();
        let refused = |memory: &File, len| Region::shared(memory, len).unwrap_err().to_string();
        assert!(refused(&memory, 4096).contains("taken away"));
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(refused(&memory, 4097).contains("shorter"));
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(refused(&file, 4096).contains("taken away"), "a file has no seals");
        let one = Region::shared(&memory, 4096).unwrap().slice::<AtomicU64>(8, 1);
        let other = Region::shared(&memory, 4096).unwrap().slice::<AtomicU64>(8, 1);
        assert!(memory.set_len(0).is_err());
        one[0].store(7, Relaxed);
        assert_eq!(other[0].load(Relaxed), 7);
    }
}
