//! A mempool of mbufs, filled at start-up.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CString, c_int};
use std::ptr::NonNull;
use std::sync::Arc;

use wedjat_sys as sys;

use super::eal::{Eal, errno, error_text};
use super::mbuf::Mbuf;
use super::pages;
use crate::io::Pool;

/// Bytes of a packet that fit one mbuf: an Ethernet frame with room to spare, DPDK's own default.
const DATA_ROOM: u16 = 2048;

/// Mbufs a registered thread keeps for itself; small pools get smaller caches.
const CACHE: u32 = 256;

/// Any NUMA node (DPDK's `SOCKET_ID_ANY`).
const ANY_NODE: c_int = -1;

/// Mbufs for devices to receive into and for packets of our own. Clones share the pool; the last to go frees it.
#[derive(Clone)]
pub struct MbufPool(Arc<Mempool>);

struct Mempool {
    pool: NonNull<sys::rte_mempool>,
    size: u32,
    eal: Eal,
}

// SAFETY: rte_mempool is made for many threads at once; the pointer is only passed to its functions.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Why a pool was not made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// DPDK refused.
    #[error("cannot make the pool {name:?} of {mbufs} mbufs (about {} MiB): {reason}; {}",
        mbufs / 430, hint(*.errno))]
    Create {
        /// The pool's name.
        name: String,
        /// Mbufs asked for.
        mbufs: u32,
        /// DPDK's text for `errno`.
        reason: String,
        /// `rte_errno`.
        errno: c_int,
    },
}

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
    /// A pool of `mbufs` mbufs (2^n - 1 wastes no memory), each with room for a packet of 2,048 bytes.
    ///
    /// # Errors
    /// When EAL's memory does not suffice, or the name is taken or unfit.
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

    /// How many mbufs the pool was made with.
    pub fn size(&self) -> usize {
        self.0.size as usize
    }

    /// How many mbufs are in the pool, those in threads' caches included. Exact while nobody takes or returns any.
    pub fn available(&self) -> usize {
        self.0.available() as usize
    }

    /// How many mbufs somebody holds: devices' queues, bursts, or a leak.
    pub fn in_use(&self) -> usize {
        self.size() - self.available()
    }

    /// A core's handle, for packets of its own making.
    pub fn handle(&self) -> PoolHandle {
        PoolHandle(self.clone())
    }

    pub(super) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.0.pool.as_ptr()
    }
}

impl Mempool {
    fn available(&self) -> u32 {
        // SAFETY: the pool lives; counting is approximate while others use it, never wrong in memory.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        if self.available() == self.size {
            // SAFETY: every mbuf is back and this was the last owner, so nobody can reach the pool any more.
            unsafe { sys::rte_mempool_free(self.pool.as_ptr()) };
        } else {
            // Somebody holds mbufs: their memory must outlive them, so neither pool nor EAL is ever torn down.
            log::warn!(
                "a pool of {} mbufs is kept: {} are still held",
                self.size,
                self.size - self.available()
            );
            std::mem::forget(self.eal.clone());
        }
    }
}

/// One core's way to new mbufs.
pub struct PoolHandle(MbufPool);

impl Pool for PoolHandle {
    type Buf = Mbuf;

    #[inline]
    fn take(&mut self) -> Option<Mbuf> {
        // SAFETY: the pool lives; the mbuf, if any, comes with reference count 1 and is ours.
        unsafe {
            NonNull::new(sys::rte_pktmbuf_alloc(self.0.as_ptr())).map(|mbuf| Mbuf::from_raw(mbuf))
        }
    }
}
