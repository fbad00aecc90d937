//! Locks of single bytes of a file, by which a process tells others that it lives: the system takes them back however it ends.
//!
//! They are locks of the open file (F_OFD_SETLK), so threads of one process count as strangers, too, and looking for a
//! lock takes none.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The lock was refused since somebody else has it.
pub(crate) fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn byte(at: i64, kind: i32) -> libc::flock {
    // SAFETY: `flock` is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    lock
}

/// Locks one byte for as long as the file is open.
pub(crate) fn lock(file: &File, at: i64) -> io::Result<()> {
    let lock = byte(at, libc::F_WRLCK);
    // SAFETY: the descriptor is open, and `lock` outlives the call, which only reads it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Somebody else has locked that byte. A system that can't tell counts as a yes.
pub(crate) fn is_locked(file: &File, at: i64) -> bool {
    let mut lock = byte(at, libc::F_WRLCK);
    // SAFETY: as in `lock`; the call writes its answer into it.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    done != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}
