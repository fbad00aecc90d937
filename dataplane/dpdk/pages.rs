//! Mempools in our own memory, densely packed on transparent huge pages, for an EAL without hugepages.
//!
//! Otherwise DPDK places each mbuf at the start of a 4 KiB page. The first lines of all mbufs then fall into
//! one set of the first-level cache, with room for eight. A burst also needs more pages than a TLB holds. Both
//! together double the cost of a packet.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use memmap2::{Advice, MmapMut};
use wedjat_sys as sys;

use super::eal::{self, Eal};

/// Size and alignment of a huge page.
const PAGE: usize = 2 << 20;

/// `RTE_BAD_IOVA`, the address for devices. No device asks for it; [`are_wanted`] ensures that.
const BAD_IOVA: sys::rte_iova_t = sys::rte_iova_t::MAX;

/// Drivers that accept mbufs at any virtual address: they access them by the CPU, or through the kernel (AF_XDP).
/// Other drivers translate addresses of EAL's memory for a device or for a peer process.
const CPU_ONLY_DRIVERS: [&str; 8] = [
    "net_af_packet",
    "net_af_xdp",
    "net_memif",
    "net_null",
    "net_pcap",
    "net_ring",
    "net_tap",
    "net_vhost",
];

/// Returns true if EAL has no hugepages, and every device accepts mbufs at any address.
pub(super) fn are_wanted(eal: &Eal) -> bool {
    // With memif's zero-copy, a peer process accesses the mbufs.
    let has_zero_copy = eal.arguments().iter().any(|word| word.contains("zero-copy=yes"));
    // SAFETY: EAL runs; this reads its configuration.
    let has_hugepages = unsafe { sys::rte_eal_has_hugepages() } != 0;
    !has_hugepages
        && !has_zero_copy
        && eal::drivers().iter().all(|driver| CPU_ONLY_DRIVERS.contains(&driver.as_str()))
}

/// Creates a pool like `rte_pktmbuf_pool_create`, of `mbufs` mbufs with `room` bytes of data each. `cache` is the size
/// of a thread's cache, and `node` the NUMA node. `None` if it is impossible in our own memory; the caller then uses
/// EAL's.
pub(super) fn pool(
    name: &CStr,
    mbufs: u32,
    cache: u32,
    room: u16,
    node: c_int,
) -> Option<NonNull<sys::rte_mempool>> {
    let size = sys::WEDJAT_MBUF_SIZE + c_uint::from(room);
    // SAFETY: EAL runs, and the name is copied.
    let pool = NonNull::new(unsafe {
        let (private, dense) = (sys::WEDJAT_POOL_PRIVATE_SIZE, sys::WEDJAT_POOL_NO_IOVA_CONTIG);
        sys::rte_mempool_create_empty(name.as_ptr(), mbufs, size, cache, private, node, dense)
    })?;
    if fill(pool, mbufs) {
        return Some(pool);
    }
    // SAFETY: the pool is ours, and nothing has been taken from it.
    unsafe { sys::rte_mempool_free(pool.as_ptr()) };
    None
}

/// Adds densely packed memory with `mbufs` mbufs to an empty pool. Returns false if the pool got none or fewer; the
/// caller then frees it.
fn fill(pool: NonNull<sys::rte_mempool>, mbufs: u32) -> bool {
    let pool = pool.as_ptr();
    // SAFETY: the pool is empty and ours; without arguments its mbufs are as large as its elements allow.
    let ready = unsafe {
        let ops = sys::rte_mbuf_best_mempool_ops();
        let ready = sys::rte_mempool_set_ops_byname(pool, ops, null_mut()) == 0;
        sys::rte_pktmbuf_pool_init(pool, null_mut());
        ready
    };
    let Some((memory, start, len)) = memory_for(pool, mbufs).filter(|_| ready) else {
        return false;
    };
    // The pool keeps this pointer, and passes it to `release` when it is freed.
    let owner = Box::into_raw(Box::new(memory)).cast::<c_void>();
    // SAFETY: the memory stays until the pool returns it to `release`.
    let filled =
        unsafe { sys::rte_mempool_populate_iova(pool, start, BAD_IOVA, len, Some(release), owner) };
    if filled <= 0 {
        // SAFETY: the pool has not taken it.
        drop(unsafe { Box::from_raw(owner.cast::<MmapMut>()) });
        return false;
    }
    // SAFETY: every element is large enough for an mbuf.
    unsafe { sys::rte_mempool_obj_iter(pool, Some(sys::rte_pktmbuf_init), null_mut()) };
    filled.unsigned_abs() == mbufs
}

/// Allocates memory for `mbufs` elements. Returns the memory with the start and length to use; `None` if the system
/// refuses.
fn memory_for(pool: *mut sys::rte_mempool, mbufs: u32) -> Option<(MmapMut, *mut c_char, usize)> {
    let (mut min_chunk, mut align) = (0, 0);
    // SAFETY: computes with the pool's own parameters.
    let needed = unsafe {
        sys::rte_mempool_op_calc_mem_size_default(pool, mbufs, 0, &mut min_chunk, &mut align)
    };
    let len = usize::try_from(needed).ok()?.next_multiple_of(PAGE);
    // One page more, so that an aligned start has `len` bytes behind it.
    let mut memory = MmapMut::map_anon(len + PAGE).ok()?;
    let skipped = memory.as_ptr().align_offset(PAGE);
    // After a refusal pages are small, and everything still works.
    if let Err(error) = memory.advise_range(Advice::HugePage, skipped, len) {
        log::debug!("no huge pages for the mbufs: {error}");
    }
    let start = memory[skipped..].as_mut_ptr().cast();
    Some((memory, start, len))
}

/// Frees a pool's memory, when DPDK frees the pool.
unsafe extern "C" fn release(_chunk: *mut sys::rte_mempool_memhdr, owner: *mut c_void) {
    // SAFETY: `owner` is the pointer that `fill` gave away, and comes back once.
    drop(unsafe { Box::from_raw(owner.cast::<MmapMut>()) });
}
