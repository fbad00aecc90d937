//! Locks of single bytes of a file, which mark a live process: the system releases them however the process
//! ends.
//!
//! They belong to the open file (F_OFD_SETLK), so threads of one process exclude each other, too, and a test
//! takes no lock.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Returns true if the error means that another holder has the lock.
pub(crate) fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn byte(at: i64, kind: i32) -> libc::flock {
    // SAFETY: `flock` consists of integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    lock
}

/// Locks one byte until the file is closed.
pub(crate) fn lock(file: &File, at: i64) -> io::Result<()> {
    let lock = byte(at, libc::F_WRLCK);
    // SAFETY: the descriptor is open, and `lock` outlives the call, which only reads it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns true if another holder has locked the byte, or the system cannot tell.
pub(crate) fn is_locked(file: &File, at: i64) -> bool {
    let mut lock = byte(at, libc::F_WRLCK);
    // SAFETY: as in `lock`; the call writes its answer into it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    done != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}
