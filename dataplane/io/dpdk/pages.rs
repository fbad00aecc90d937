//! Pools in memory of our own, densely packed and on transparent huge pages, for an EAL that has no hugepages.
//!
//! Without these, DPDK gives every mbuf a page of 4 KiB, at whose start it lies. So the first lines of all mbufs fall into
//! one set of the first-level cache, which holds eight, and a burst is on more pages than a TLB has room for: that costs
//! as much as everything else that is done with a packet.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use memmap2::{Advice, MmapMut};
use wedjat_sys as sys;

use super::eal::{self, Eal};

/// A huge page, at whose multiples memory is backed by one.
const PAGE: usize = 2 << 20;

/// Where a device finds it, `RTE_BAD_IOVA`: none will ask, [`are_wanted`] has seen to that.
const BAD_IOVA: sys::rte_iova_t = sys::rte_iova_t::MAX;

/// Drivers that read and write mbufs with the CPU alone, wherever these lie. Others translate addresses of EAL's memory:
/// for a device, or for a process at the other end.
const ANYWHERE: [&str; 8] = [
    "net_af_packet",
    "net_af_xdp",
    "net_memif",
    "net_null",
    "net_pcap",
    "net_ring",
    "net_tap",
    "net_vhost",
];

/// EAL has no hugepages, and every device takes mbufs from anywhere.
pub(super) fn are_wanted(eal: &Eal) -> bool {
    let shares = eal.arguments().iter().any(|word| word.contains("zero-copy=yes"));
    // SAFETY: EAL runs; this reads its configuration.
    let has_hugepages = unsafe { sys::rte_eal_has_hugepages() } != 0;
    !has_hugepages
        && !shares
        && eal::drivers().iter().all(|driver| ANYWHERE.contains(&driver.as_str()))
}

/// A pool as `rte_pktmbuf_pool_create` makes it; none when it can't be had so.
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
    let owner = Box::into_raw(Box::new(memory)).cast::<c_void>();
    // SAFETY: the memory stays until the pool gives it back to `release`.
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

/// Memory for as many elements, where in it to begin, and how much to use.
fn memory_for(pool: *mut sys::rte_mempool, mbufs: u32) -> Option<(MmapMut, *mut c_char, usize)> {
    let (mut least, mut align) = (0, 0);
    // SAFETY: computes with what the pool was made with.
    let needed = unsafe {
        sys::rte_mempool_op_calc_mem_size_default(pool, mbufs, 0, &mut least, &mut align)
    };
    let len = usize::try_from(needed).ok()?.next_multiple_of(PAGE);
    let mut memory = MmapMut::map_anon(len + PAGE).ok()?;
    let skipped = memory.as_ptr().align_offset(PAGE);
    // Where the kernel does not, pages are small, and all works as well.
    if let Err(error) = memory.advise_range(Advice::HugePage, skipped, len) {
        log::debug!("no huge pages for the mbufs: {error}");
    }
    let start = memory[skipped..].as_mut_ptr().cast();
    Some((memory, start, len))
}

/// The pool is no more.
unsafe extern "C" fn release(_chunk: *mut sys::rte_mempool_memhdr, owner: *mut c_void) {
    // SAFETY: `owner` is what `fill` gave away, and comes back once.
    drop(unsafe { Box::from_raw(owner.cast::<MmapMut>()) });
}
