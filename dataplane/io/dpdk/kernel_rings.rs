//! The sockets of AF_PACKET and AF_XDP devices, which their drivers (DPDK 22.11) do not tell: to be waited for, and to ask what the
//! kernel dropped because the ring of an AF_PACKET device was full.
#![allow(unsafe_code, reason = "socket options that no crate has")]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::offloads;

/// The sockets of a device, which its driver keeps open for as long as the device is.
#[derive(Debug, Default)]
pub(super) struct KernelRings {
    /// In the order in which they were opened, which is that of the queues.
    sockets: Vec<RawFd>,
    /// What they have told: asking sets the kernel's count back.
    dropped: AtomicU64,
    /// Index of the interface; 0 if it is not known.
    interface: u32,
}

impl KernelRings {
    /// Of the AF_PACKET device on this interface: the packet sockets of this process that are bound to it.
    pub(super) fn of(interface: &str) -> Self {
        let index = index_of(interface);
        let open = descriptors().into_iter();
        let sockets: Vec<_> =
            open.filter(|&socket| index != 0 && is_bound(socket, index)).collect();
        if let Err(error) = offloads::cut(&sockets) {
            log::info!(
                "{interface}: the kernel takes no filter for packets that hold several datagrams: {error}; give the leaf CAP_BPF, or \
                 see that its clients do not use UDP_SEGMENT"
            );
        }
        Self { sockets, dropped: AtomicU64::new(0), interface: index }
    }

    /// Of the AF_XDP device whose queues were set up since this process had the sockets `before`.
    pub(super) fn xdp_since(before: &BTreeSet<RawFd>, interface: Option<&str>) -> Self {
        let sockets = xdp_sockets().difference(before).copied().collect();
        Self { sockets, dropped: AtomicU64::new(0), interface: interface.map_or(0, index_of) }
    }

    /// The kernel has removed the interface, or moved it to another network namespace.
    pub(super) fn is_removed(&self) -> bool {
        match self.sockets.first().copied().map(|socket| (socket, domain(socket))) {
            _ if self.interface == 0 => false,
            // The kernel unbinds a packet socket for good.
            Some((_, Some(libc::AF_PACKET))) => {
                !self.sockets.iter().any(|&socket| is_bound(socket, self.interface))
            }
            Some(_) => is_absent(self.interface),
            None => false,
        }
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

/// Index of an interface; 0 without one of this name.
fn index_of(interface: &str) -> u32 {
    let Ok(name) = CString::new(interface) else { return 0 };
    // SAFETY: the name ends with a NUL byte.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// No interface has this index. Other failures, such as a lack of descriptors, prove nothing.
fn is_absent(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function documents.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    found.is_null() && io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO)
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
