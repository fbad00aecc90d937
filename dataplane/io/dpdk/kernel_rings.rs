//! What the kernel dropped because the ring of an AF_PACKET device was full: its driver (DPDK 22.11) does not tell.
#![allow(unsafe_code, reason = "socket options that no crate has")]

use std::ffi::CString;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The sockets of a device, which its driver keeps open for as long as the device is.
#[derive(Debug, Default)]
pub(super) struct KernelRings {
    sockets: Vec<RawFd>,
    /// What they have told: asking sets the kernel's count back.
    dropped: AtomicU64,
}

impl KernelRings {
    /// Of the device on this interface: the packet sockets of this process that are bound to it.
    pub(super) fn of(interface: &str) -> Self {
        let Ok(name) = CString::new(interface) else { return Self::default() };
        // SAFETY: the name ends with a NUL byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let open = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let sockets = open.filter(|&socket| index != 0 && is_bound(socket, index)).collect();
        Self { sockets, dropped: AtomicU64::new(0) }
    }

    /// Packets dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        let new: u64 = self.sockets.iter().map(|&socket| since_last(socket)).sum();
        self.dropped.fetch_add(new, Relaxed) + new
    }
}

/// It is a packet socket of the interface with this index.
fn is_bound(socket: RawFd, index: u32) -> bool {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address has room for as many bytes as its length says, zeros are one, and what is no socket is refused.
    let (asked, address) = unsafe {
        let asked = libc::getsockname(socket, address.as_mut_ptr().cast(), &raw mut len);
        (asked, address.assume_init())
    };
    asked == 0
        && i32::from(address.sll_family) == libc::AF_PACKET
        && u32::try_from(address.sll_ifindex) == Ok(index)
}

/// What was dropped since this was asked last.
fn since_last(socket: RawFd) -> u64 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the value has room for as many bytes as its length says, and the socket is open.
    let asked = unsafe {
        let value = (&raw mut stats).cast();
        libc::getsockopt(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, value, &raw mut len)
    };
    if asked == 0 { u64::from(stats.tp_drops) } else { 0 }
}
