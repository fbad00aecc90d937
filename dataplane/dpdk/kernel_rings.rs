//! Sockets of AF_PACKET and AF_XDP devices, which their drivers (DPDK 22.11) do not expose. The functions find them
//! among the descriptors of this process. Cores sleep on them. Sockets of AF_PACKET also report the packets dropped by
//! the kernel because of a full ring.
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

/// Sockets of a device. Its driver keeps them open for the device's lifetime.
#[derive(Debug, Default)]
pub(super) struct KernelRings {
    /// Sockets in the order of their creation, which is the order of the queues.
    sockets: Vec<RawFd>,
    /// Sum of the drops read so far. Each read resets the kernel's counter.
    dropped: AtomicU64,
    /// Index of the interface; 0 if unknown.
    interface: u32,
}

impl KernelRings {
    /// Finds the sockets of the AF_PACKET device on an interface: the packet sockets of this process bound to
    /// it. Attaches to them the filter that cuts packets with several datagrams ([`offloads`]), and logs a refusal.
    pub(super) fn of(interface: &str) -> Self {
        let index = index_of(interface);
        let open = descriptors().into_iter();
        let sockets: Vec<_> =
            open.filter(|&socket| index != 0 && is_bound(socket, index)).collect();
        if let Err(error) = offloads::cut_segmented_packets(&sockets) {
            log::info!(
                "{interface}: the kernel refuses the filter for segmented packets: {error}; \
                 give the leaf CAP_BPF, or turn UDP_SEGMENT off"
            );
        }
        Self { sockets, dropped: AtomicU64::new(0), interface: index }
    }

    /// Finds the sockets of a new AF_XDP device: those opened since the caller read `before` by `xdp_sockets`.
    /// The kernel does not tell the interface of such a socket: `getsockname` fails.
    pub(super) fn xdp_since(before: &BTreeSet<RawFd>, interface: Option<&str>) -> Self {
        let sockets = xdp_sockets().difference(before).copied().collect();
        Self { sockets, dropped: AtomicU64::new(0), interface: interface.map_or(0, index_of) }
    }

    /// Returns true if the kernel removed the interface or moved it to another network namespace.
    pub(super) fn is_removed(&self) -> bool {
        match self.sockets.first().copied().map(|socket| (socket, domain(socket))) {
            _ if self.interface == 0 => false,
            // The kernel has then unbound the packet socket for good.
            Some((_, Some(libc::AF_PACKET))) => {
                !self.sockets.iter().any(|&socket| is_bound(socket, self.interface))
            }
            Some(_) => is_absent(self.interface),
            None => false,
        }
    }

    /// Returns the sockets of one of `queues` queues; all sockets if there is not exactly one per queue.
    pub(super) fn of_queue(&self, queue: u16, queues: u16) -> Vec<RawFd> {
        match self.sockets.len() == usize::from(queues) {
            true => vec![self.sockets[usize::from(queue)]],
            false => self.sockets.clone(),
        }
    }

    /// Returns the number of packets that the kernel has dropped so far because of a full ring; 0 for AF_XDP. Its
    /// driver reports drops itself.
    pub(super) fn dropped(&self) -> u64 {
        let new: u64 = self.sockets.iter().map(|&socket| drops_since_last(socket)).sum();
        self.dropped.fetch_add(new, Relaxed) + new
    }
}

/// Returns the index of an interface; 0 if it does not exist.
fn index_of(interface: &str) -> u32 {
    let Ok(name) = CString::new(interface) else { return 0 };
    // SAFETY: the name ends with a NUL byte.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Returns true if no interface has this index. Other failures, such as a lack of descriptors, prove nothing.
fn is_absent(index: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the documented size.
    let name_pointer = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    name_pointer.is_null() && io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO)
}

/// Returns the open descriptors of this process.
fn descriptors() -> BTreeSet<RawFd> {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the AF_XDP sockets of this process.
pub(super) fn xdp_sockets() -> BTreeSet<RawFd> {
    descriptors().into_iter().filter(|&socket| domain(socket) == Some(libc::AF_XDP)).collect()
}

/// Returns the address family of a socket; `None` if the descriptor is no socket.
fn domain(socket: RawFd) -> Option<i32> {
    let mut domain = 0;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value has the given length. The system refuses descriptors of other kinds.
    let result = unsafe {
        let value = (&raw mut domain).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &raw mut len)
    };
    (result == 0).then_some(domain)
}

/// Returns true if the descriptor is a packet socket bound to the interface with this index.
fn is_bound(socket: RawFd, index: u32) -> bool {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address has the given length, and zeros are a valid one. The system refuses descriptors of
    // other kinds.
    let (result, address) = unsafe {
        let result = libc::getsockname(socket, address.as_mut_ptr().cast(), &raw mut len);
        (result, address.assume_init())
    };
    result == 0
        && i32::from(address.sll_family) == libc::AF_PACKET
        && u32::try_from(address.sll_ifindex) == Ok(index)
}

/// Returns the number of packets that a packet socket has dropped since the last call; 0 for other sockets.
fn drops_since_last(socket: RawFd) -> u64 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the value has the given length, and the socket is open.
    let result = unsafe {
        let value = (&raw mut stats).cast();
        libc::getsockopt(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, value, &raw mut len)
    };
    if result == 0 { u64::from(stats.tp_drops) } else { 0 }
}
