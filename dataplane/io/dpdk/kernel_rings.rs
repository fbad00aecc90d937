//! The sockets of AF_PACKET and AF_XDP devices, which their drivers (DPDK 22.11) do not tell: to be waited for, and to ask what the
//! kernel dropped because the ring of an AF_PACKET device was full.
#![allow(unsafe_code, reason = "socket options that no crate has")]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The sockets of a device, which its driver keeps open for as long as the device is.
#[derive(Debug, Default)]
pub(super) struct KernelRings {
    /// In the order in which they were opened, which is that of the queues.
    sockets: Vec<RawFd>,
    /// What they have told: asking sets the kernel's count back.
    dropped: AtomicU64,
}

impl KernelRings {
    /// Of the AF_PACKET device on this interface: the packet sockets of this process that are bound to it.
    pub(super) fn of(interface: &str) -> Self {
        let Ok(name) = CString::new(interface) else { return Self::default() };
        // SAFETY: the name ends with a NUL byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let open = descriptors().into_iter();
        let sockets = open.filter(|&socket| index != 0 && is_bound(socket, index)).collect();
        Self { sockets, dropped: AtomicU64::new(0) }
    }

    /// Of the AF_XDP device whose queues were set up since this process had the sockets `before`.
    pub(super) fn xdp_since(before: &BTreeSet<RawFd>) -> Self {
        let sockets = xdp_sockets().difference(before).copied().collect();
        Self { sockets, dropped: AtomicU64::new(0) }
    }

    /// Those of one of so many queues; all of them where it is not known which belongs to it.
    pub(super) fn of_queue(&self, queue: u16, queues: u16) -> Vec<RawFd> {
        match self.sockets.len() == usize::from(queues) {
            true => vec![self.sockets[usize::from(queue)]],
            false => self.sockets.clone(),
        }
    }

    /// Packets dropped so far; AF_XDP's driver tells those itself.
    pub(super) fn dropped(&self) -> u64 {
        let new: u64 = self.sockets.iter().map(|&socket| since_last(socket)).sum();
        self.dropped.fetch_add(new, Relaxed) + new
    }
}

/// What this process has open.
fn descriptors() -> BTreeSet<RawFd> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The AF_XDP sockets of this process.
pub(super) fn xdp_sockets() -> BTreeSet<RawFd> {
    descriptors().into_iter().filter(|&socket| domain(socket) == Some(libc::AF_XDP)).collect()
}

/// The address family of a socket; none of what is no socket.
fn domain(socket: RawFd) -> Option<i32> {
    let mut domain = 0;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value has room for as many bytes as its length says, and what is no socket is refused.
    let asked = unsafe {
        let value = (&raw mut domain).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &raw mut len)
    };
    (asked == 0).then_some(domain)
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
