//! Mempool of mbufs, filled at the start.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CString, c_int};
use std::ptr::NonNull;
use std::sync::Arc;

use wedjat_core::io::Pool;
use wedjat_sys as sys;

use super::eal::{Eal, errno, error_text};
use super::mbuf::Mbuf;
use super::pages;

/// Bytes of a packet in one mbuf: an Ethernet frame with room to spare, DPDK's own default.
const DATA_ROOM: u16 = 2048;

/// Mbufs in a registered thread's cache; small pools get smaller caches.
const CACHE: u32 = 256;

/// Any NUMA node (DPDK's `SOCKET_ID_ANY`).
const ANY_NODE: c_int = -1;

/// Mempool for the packets that devices receive and the node originates. Clones share it; the last one frees it.
#[derive(Clone)]
pub struct MbufPool(Arc<Mempool>);

/// DPDK's mempool, freed on drop.
struct Mempool {
    /// DPDK's pool.
    pool: NonNull<sys::rte_mempool>,
    /// Total number of mbufs.
    size: u32,
    /// Keeps EAL running.
    eal: Eal,
}

// SAFETY: an rte_mempool supports concurrent threads; the pointer is only passed to its functions.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Reason why a pool was not created.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// DPDK refused. About 430 mbufs, of some 2.4 KiB each, take a MiB.
    #[error("cannot make the pool {name:?} of {mbufs} mbufs (about {} MiB): {reason}; {}",
        mbufs / 430, hint(*.errno))]
    Create {
        /// Name of the pool.
        name: String,
        /// Requested number of mbufs.
        mbufs: u32,
        /// DPDK's text for `errno`.
        reason: String,
        /// `rte_errno`.
        errno: c_int,
    },
}

/// Returns advice for a pool that was not created.
fn hint(errno: c_int) -> &'static str {
    match errno {
        libc::ENOMEM => {
            "give EAL more memory (-m MEGABYTES after --, or more hugepages), or use a smaller pool"
        }
        libc::EEXIST => "use another name",
        _ => "use a name of at most 25 letters and at least one mbuf",
    }
}

impl MbufPool {
    /// Creates a pool of `mbufs` mbufs (2^n - 1 wastes no memory), each with room for a packet of 2,048
    /// bytes.
    ///
    /// # Errors
    /// If EAL's memory is insufficient, or the name is taken or invalid.
    pub fn new(eal: &Eal, name: &str, mbufs: u32) -> Result<Self, PoolError> {
        let refused = |errno| PoolError::Create {
            name: name.to_owned(),
            mbufs,
            reason: error_text(errno),
            errno,
        };
        let text = CString::new(name).map_err(|_| refused(libc::EINVAL))?;
        // A pool must hold 1.5 times its cache, and several cores' caches must not drain it.
        let cache = CACHE.min(mbufs / 8);
        let room = DATA_ROOM + sys::WEDJAT_MBUF_HEADROOM as u16;
        // Without hugepages, EAL starts each mbuf on a page of its own, which costs cache and TLB misses. Memory of our
        // own is packed densely.
        let paged = pages::are_wanted(eal)
            .then(|| pages::pool(&text, mbufs, cache, room, ANY_NODE))
            .flatten();
        let pool = paged.or_else(|| {
            // SAFETY: EAL runs (`eal`), and the name is copied.
            NonNull::new(unsafe {
                sys::rte_pktmbuf_pool_create(text.as_ptr(), mbufs, cache, 0, room, ANY_NODE)
            })
        });
        let pool = pool.ok_or_else(|| refused(errno()))?;
        Ok(Self(Arc::new(Mempool { pool, size: mbufs, eal: eal.clone() })))
    }

    /// Returns the total number of mbufs.
    pub fn size(&self) -> usize {
        self.0.size as usize
    }

    /// Returns the number of mbufs in the pool, including threads' caches. Exact while no thread allocates or
    /// frees any.
    pub fn available(&self) -> usize {
        self.0.available() as usize
    }

    /// Returns the number of mbufs in use: in devices' queues, in bursts, held by a node, or leaked.
    pub fn in_use(&self) -> usize {
        self.size() - self.available()
    }

    /// Returns a core's allocator, for the packets that it originates.
    pub fn handle(&self) -> PoolHandle {
        PoolHandle(self.clone())
    }

    /// Returns the mempool for calls into DPDK.
    pub(super) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }
}

impl Mempool {
    /// Returns the number of mbufs in the pool and in threads' caches.
    fn available(&self) -> u32 {
        // SAFETY: the pool exists; concurrent use makes the count approximate, but never corrupts memory.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }
}

impl Drop for Mempool {
    /// Frees the pool, unless mbufs of it are in use.
    fn drop(&mut self) {
        if self.available() == self.size {
            // SAFETY: every mbuf is back and this was the last owner, so the pool is unreachable.
            unsafe { sys::rte_mempool_free(self.pool.as_ptr()) };
        } else {
            // Mbufs are still in use and their memory must outlive them, so neither pool nor EAL is ever
            // freed.
            log::warn!(
                "a pool of {} mbufs is kept: {} are still held",
                self.size,
                self.size - self.available()
            );
            std::mem::forget(self.eal.clone());
        }
    }
}

/// One core's allocator of mbufs.
pub struct PoolHandle(MbufPool);

impl Pool for PoolHandle {
    type Buf = Mbuf;

    /// Takes an mbuf for an originated packet; `None` if the pool is empty.
    #[inline]
    fn take(&mut self) -> Option<Mbuf> {
        // SAFETY: the pool exists; the mbuf, if any, has reference count 1 and is ours.
        unsafe {
            NonNull::new(sys::rte_pktmbuf_alloc(self.0.as_ptr())).map(|mbuf| Mbuf::from_raw(mbuf))
        }
    }
}
