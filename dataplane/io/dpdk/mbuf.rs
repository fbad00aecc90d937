//! An owned mbuf: the pointer, and nothing but the pointer, so that a burst of them is DPDK's own array.
#![allow(unsafe_code, reason = "reads and writes fields of rte_mbuf")]

use std::mem::forget;
use std::ptr::NonNull;

use wedjat_sys as sys;

use crate::io::{Buf, StampField, Token};

/// One packet buffer of an [`MbufPool`](super::MbufPool), to which it returns when dropped.
///
/// The invariant that every unsafe block here rests on: the pointer came from `rte_pktmbuf_alloc` or `rte_eth_rx_burst`,
/// is owned by this value alone (reference count 1), and its pool lives, because a pool with mbufs outside is never freed.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf belongs to no thread, and mempools take buffers back from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes over an mbuf.
    ///
    /// # Safety
    /// `mbuf` is a live mbuf with reference count 1 that nobody else owns.
    pub(super) unsafe fn from_raw(mbuf: NonNull<sys::rte_mbuf>) -> Self {
        Self(mbuf)
    }

    /// Appends `tail` as further segments; gives it back when there would be too many.
    ///
    /// # Errors
    /// `tail`, unchanged.
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        // SAFETY: both are owned; on success the head owns the tail, which is forgotten here.
        if unsafe { sys::rte_pktmbuf_chain(self.0.as_ptr(), tail.0.as_ptr()) } == 0 {
            forget(tail);
            return Ok(());
        }
        Err(tail)
    }

    /// Its checksums are taken for right from now on.
    pub(super) fn set_checksums_verified(&mut self) {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        let verified = flags & !sys::WEDJAT_RX_CKSUM_MASK | sys::WEDJAT_RX_CKSUM_GOOD;
        self.set_field(sys::WEDJAT_MBUF_OL_FLAGS, verified);
    }

    /// The device has verified the checksum of the IPv4 header.
    pub(super) fn ip_checksum_verified(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_IP_CKSUM_MASK == sys::WEDJAT_RX_IP_CKSUM_GOOD
    }

    /// The sender's kernel has left the UDP checksum to a device, and the packet never passed one.
    pub(super) fn udp_checksum_is_missing(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_L4_CKSUM_MASK == sys::WEDJAT_RX_L4_CKSUM_NONE
    }

    /// Takes `len` bytes off the packet's start; false, and nothing has changed, when its first segment is shorter.
    pub(super) fn shorten_front(&mut self, len: u16) -> bool {
        let (off, there): (u16, u16) =
            (self.field(sys::WEDJAT_MBUF_DATA_OFF), self.field(sys::WEDJAT_MBUF_DATA_LEN));
        let fits = len <= there;
        if fits {
            let all: u32 = self.field(sys::WEDJAT_MBUF_PKT_LEN);
            self.set_front(off + len, there - len, all - u32::from(len));
        }
        fits
    }

    /// Adds `len` unspecified bytes before the packet's start; false, and nothing has changed, without room for them.
    pub(super) fn extend_front(&mut self, len: u16) -> bool {
        let (off, there): (u16, u16) =
            (self.field(sys::WEDJAT_MBUF_DATA_OFF), self.field(sys::WEDJAT_MBUF_DATA_LEN));
        let fits = len <= off && there.checked_add(len).is_some();
        if fits {
            let all: u32 = self.field(sys::WEDJAT_MBUF_PKT_LEN);
            self.set_front(off - len, there + len, all + u32::from(len));
        }
        fits
    }

    /// Where the data begins, how much of it is in the first segment, and how much in all.
    fn set_front(&mut self, off: u16, there: u16, all: u32) {
        self.set_field(sys::WEDJAT_MBUF_DATA_OFF, off);
        self.set_field(sys::WEDJAT_MBUF_DATA_LEN, there);
        self.set_field(sys::WEDJAT_MBUF_PKT_LEN, all);
    }

    /// The field of type `T` at `offset`, one of the `WEDJAT_MBUF_*` constants, whose widths wrapper.h asserts.
    #[inline(always)]
    fn field<T: Copy>(&self, offset: u32) -> T {
        // SAFETY: the mbuf is live; offset and type are those of a field, as the C compiler laid it out.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast::<T>().read() }
    }

    #[inline(always)]
    fn set_field<T: Copy>(&mut self, offset: u32, value: T) {
        // SAFETY: as in `field`, and the mbuf is ours alone.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast::<T>().write(value) }
    }

    #[inline(always)]
    fn data(&self) -> *mut u8 {
        let start: *mut u8 = self.field(sys::WEDJAT_MBUF_BUF_ADDR);
        start.wrapping_add(usize::from(self.field::<u16>(sys::WEDJAT_MBUF_DATA_OFF)))
    }

    #[inline(always)]
    fn data_len(&self) -> usize {
        usize::from(self.field::<u16>(sys::WEDJAT_MBUF_DATA_LEN))
    }

    /// Bytes from the packet's start to the end of the buffer.
    #[inline]
    fn room(&self) -> usize {
        let end = usize::from(self.field::<u16>(sys::WEDJAT_MBUF_BUF_LEN));
        end.saturating_sub(usize::from(self.field::<u16>(sys::WEDJAT_MBUF_DATA_OFF)))
    }
}

impl Buf for Mbuf {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: DPDK keeps data_off + data_len within the buffer, whose memory EAL mapped and zeroed.
        unsafe { std::slice::from_raw_parts(self.data(), self.data_len()) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the mbuf is ours alone, so nobody else reads or writes its data.
        unsafe { std::slice::from_raw_parts_mut(self.data(), self.data_len()) }
    }

    #[inline]
    fn resize(&mut self, len: usize) -> bool {
        let fits = len <= self.room() && !self.is_segmented();
        if fits {
            // `room` is at most buf_len, a u16.
            self.set_field(sys::WEDJAT_MBUF_DATA_LEN, len as u16);
            self.set_field(sys::WEDJAT_MBUF_PKT_LEN, len as u32);
        }
        fits
    }

    #[inline]
    fn is_segmented(&self) -> bool {
        self.field::<u16>(sys::WEDJAT_MBUF_NB_SEGS) != 1
    }

    #[inline]
    fn checksums_verified(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_CKSUM_MASK == sys::WEDJAT_RX_CKSUM_GOOD
    }

    #[inline]
    fn udp_checksum_verified(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_L4_CKSUM_MASK == sys::WEDJAT_RX_L4_CKSUM_GOOD
    }

    #[inline]
    fn stamp(&self, field: StampField) -> Option<u64> {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        // Whoever made the field has seen to it that it lies within an mbuf.
        (flags & field.flag != 0).then(|| self.field(u32::from(field.offset)))
    }

    #[inline]
    fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.data().cast());
        }
    }
}

impl Token for Mbuf {
    #[inline]
    fn into_word(self) -> u64 {
        let mbuf = self.0;
        forget(self);
        mbuf.as_ptr().expose_provenance() as u64
    }

    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        let mbuf = std::ptr::with_exposed_provenance_mut(word as usize);
        // SAFETY: by the trait's contract the word is that of an mbuf, which is not null, and nobody else's.
        unsafe { Self::from_raw(NonNull::new_unchecked(mbuf)) }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the mbuf is ours and is not used again.
        unsafe { sys::rte_pktmbuf_free(self.0.as_ptr()) };
    }
}
