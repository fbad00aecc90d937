//! Locks of single bytes of a file, which mark a live process: the system releases them however the process
//! ends.
//!
//! They belong to the open file (F_OFD_SETLK), not to the process, so threads of one process exclude each other,
//! too. Testing a lock does not take it. An agent and its workers each lock a byte of their shared memory. A channel
//! (the part of that memory for one worker) in memory of one process has a flag instead of a byte.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Release;

/// Lock of a channel that excludes further workers.
#[derive(Debug)]
pub(super) enum ChannelLock {
    /// Flag of this channel among those of a region in memory of this process, cleared on drop.
    Heap { taken: Arc<[AtomicBool]>, channel: usize },
    /// Lock of a byte, released as this open file is closed.
    File { _file: File },
}

impl Drop for ChannelLock {
    fn drop(&mut self) {
        if let Self::Heap { taken, channel } = self {
            taken[*channel].store(false, Release);
        }
    }
}

/// Returns true if the error means that another holder has the lock.
pub(crate) fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Returns the system's description of a lock of the byte at `offset`. `kind` is the lock's type, such as F_WRLCK.
fn byte_lock(offset: i64, kind: i32) -> libc::flock {
    // SAFETY: `flock` consists of integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset;
    lock.l_len = 1;
    lock
}

/// Locks the byte at `offset` until the file is closed.
///
/// # Errors
/// If another holder has locked it ([`is_held`]), without waiting, or the system refuses.
pub(crate) fn lock(file: &File, offset: i64) -> io::Result<()> {
    let lock = byte_lock(offset, libc::F_WRLCK);
    // SAFETY: the descriptor is open, and `lock` outlives the call, which only reads it.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns true if another holder has locked the byte, or the system cannot tell. No live process may count as dead.
pub(crate) fn is_locked(file: &File, offset: i64) -> bool {
    let mut lock = byte_lock(offset, libc::F_WRLCK);
    // SAFETY: as in `lock`; the call writes its answer into it.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    status != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}
