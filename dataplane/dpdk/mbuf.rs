//! Owned mbuf. It has the size of a pointer, so a burst of them is DPDK's own array.
#![allow(unsafe_code, reason = "reads and writes fields of rte_mbuf")]

use std::mem::forget;
use std::ptr::NonNull;

use wedjat_sys as sys;

use wedjat_core::io::{Buf, StampField, Token};
use wedjat_core::ring::bytes::prefetch;
use wedjat_core::wire::vlan;

/// One packet buffer of an [`MbufPool`](super::MbufPool). Dropping it returns it to the pool.
///
/// All unsafe blocks here rest on this invariant: the pointer came from `rte_pktmbuf_alloc` or
/// `rte_eth_rx_burst`, and this value is its only owner (reference count 1). The pool lives, because a pool
/// with mbufs in use is never freed.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an mbuf belongs to no thread, and mempools accept buffers from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes ownership of an mbuf.
    ///
    /// # Safety
    /// `mbuf` must be a live mbuf with reference count 1 and without another owner.
    pub(super) unsafe fn from_raw(mbuf: NonNull<sys::rte_mbuf>) -> Self {
        Self(mbuf)
    }

    /// Appends `tail` as further segments. Tests build segmented packets with it.
    ///
    /// # Errors
    /// Returns `tail` unchanged if the packet would have too many segments.
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        // SAFETY: both are owned. On success the head owns the tail, which is forgotten here.
        if unsafe { sys::rte_pktmbuf_chain(self.0.as_ptr(), tail.0.as_ptr()) } == 0 {
            forget(tail);
            return Ok(());
        }
        Err(tail)
    }

    /// Marks the IPv4 and UDP checksums as verified, so that the stages do not check them again.
    pub(super) fn set_checksums_verified(&mut self) {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        let verified = flags & !sys::WEDJAT_RX_CKSUM_MASK | sys::WEDJAT_RX_CKSUM_GOOD;
        self.set_field(sys::WEDJAT_MBUF_OL_FLAGS, verified);
    }

    /// Returns true if the device has verified the checksum of the IPv4 header.
    pub(super) fn ip_checksum_verified(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_IP_CKSUM_MASK == sys::WEDJAT_RX_IP_CKSUM_GOOD
    }

    /// Returns true if the sender's kernel left the UDP checksum to a device, but the packet never passed
    /// one.
    pub(super) fn udp_checksum_is_missing(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_L4_CKSUM_MASK == sys::WEDJAT_RX_L4_CKSUM_NONE
    }

    /// Takes the tag that the device has removed from the packet: returns its VLAN number, and clears the mark of the
    /// removal. Returns `None` if the device has removed no tag.
    pub(super) fn take_removed_vlan(&mut self) -> Option<u16> {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        let is_removed = flags & sys::WEDJAT_RX_VLAN_STRIPPED != 0;
        is_removed.then(|| {
            self.set_field(sys::WEDJAT_MBUF_OL_FLAGS, flags & !sys::WEDJAT_RX_VLAN_STRIPPED);
            vlan::number(self.field(sys::WEDJAT_MBUF_VLAN_TCI))
        })
    }

    /// Removes `len` bytes from the packet's start, as for a VLAN tag. Returns false, without a change, if the first
    /// segment is shorter.
    pub(super) fn shorten_front(&mut self, len: u16) -> bool {
        let (offset, segment_len): (u16, u16) =
            (self.field(sys::WEDJAT_MBUF_DATA_OFF), self.field(sys::WEDJAT_MBUF_DATA_LEN));
        let fits = len <= segment_len;
        if fits {
            let packet_len: u32 = self.field(sys::WEDJAT_MBUF_PKT_LEN);
            self.set_front(offset + len, segment_len - len, packet_len - u32::from(len));
        }
        fits
    }

    /// Adds `len` unspecified bytes before the packet's start, as for a VLAN tag. Returns false, without a change, if
    /// there is no room.
    pub(super) fn extend_front(&mut self, len: u16) -> bool {
        let (offset, segment_len): (u16, u16) =
            (self.field(sys::WEDJAT_MBUF_DATA_OFF), self.field(sys::WEDJAT_MBUF_DATA_LEN));
        let fits = len <= offset && segment_len.checked_add(len).is_some();
        if fits {
            let packet_len: u32 = self.field(sys::WEDJAT_MBUF_PKT_LEN);
            self.set_front(offset - len, segment_len + len, packet_len + u32::from(len));
        }
        fits
    }

    /// Sets the offset of the data, its length in the first segment, and the packet's total length.
    fn set_front(&mut self, offset: u16, segment_len: u16, packet_len: u32) {
        self.set_field(sys::WEDJAT_MBUF_DATA_OFF, offset);
        self.set_field(sys::WEDJAT_MBUF_DATA_LEN, segment_len);
        self.set_field(sys::WEDJAT_MBUF_PKT_LEN, packet_len);
    }

    /// Reads the field of type `T` at `offset`, one of the `WEDJAT_MBUF_*` constants: the bindings' `rte_mbuf` has no
    /// fields. `wrapper.h` of `wedjat-sys` asserts the fields' widths.
    #[inline(always)]
    fn field<T: Copy>(&self, offset: u32) -> T {
        // SAFETY: the mbuf is live. Offset and type are those of a field, as the C compiler laid it out.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast::<T>().read() }
    }

    /// Writes the field of type `T` at `offset`, as in [`Mbuf::field`].
    #[inline(always)]
    fn set_field<T: Copy>(&mut self, offset: u32, value: T) {
        // SAFETY: as in `field`, and this value is the only owner.
        unsafe { self.0.as_ptr().byte_add(offset as usize).cast::<T>().write(value) }
    }

    /// Returns the start of the packet.
    #[inline(always)]
    fn data(&self) -> *mut u8 {
        let start: *mut u8 = self.field(sys::WEDJAT_MBUF_BUF_ADDR);
        start.wrapping_add(usize::from(self.field::<u16>(sys::WEDJAT_MBUF_DATA_OFF)))
    }

    /// Returns the length of the first segment.
    #[inline(always)]
    fn data_len(&self) -> usize {
        usize::from(self.field::<u16>(sys::WEDJAT_MBUF_DATA_LEN))
    }

    /// Returns the number of bytes from the packet's start to the end of the buffer.
    #[inline]
    fn room(&self) -> usize {
        let end = usize::from(self.field::<u16>(sys::WEDJAT_MBUF_BUF_LEN));
        end.saturating_sub(usize::from(self.field::<u16>(sys::WEDJAT_MBUF_DATA_OFF)))
    }
}

/// Usual offset of the packet from the mbuf: two cache lines of the mbuf itself, and the headroom.
const USUAL_DATA: usize = 128 + sys::WEDJAT_MBUF_HEADROOM as usize;

impl Buf for Mbuf {
    /// Returns the bytes of the packet's first segment, from the Ethernet header on.
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: DPDK keeps data_off + data_len within the buffer, whose memory EAL mapped and zeroed.
        unsafe { std::slice::from_raw_parts(self.data(), self.data_len()) }
    }

    /// Returns the same bytes for changes in place.
    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`. This value is the only owner, so there is no other reader or writer.
        unsafe { std::slice::from_raw_parts_mut(self.data(), self.data_len()) }
    }

    /// Sets the length of a packet. Returns false, without a change, if the buffer is too small, or the packet has
    /// several segments.
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

    /// Returns true if the packet continues in further mbufs.
    #[inline]
    fn is_segmented(&self) -> bool {
        self.field::<u16>(sys::WEDJAT_MBUF_NB_SEGS) != 1
    }

    /// Moves the bytes of all segments into the first one. Returns false, without a change, if they do not fit.
    fn linearise(&mut self) -> bool {
        // SAFETY: this value owns the mbuf and its segments. DPDK frees the emptied ones.
        unsafe { sys::rte_pktmbuf_linearize(self.0.as_ptr()) == 0 }
    }

    /// Returns true if the IPv4 and UDP checksums are marked as verified, by the device or the port. The port marks
    /// trusted ones, too.
    #[inline]
    fn checksums_verified(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_CKSUM_MASK == sys::WEDJAT_RX_CKSUM_GOOD
    }

    /// Returns true if the UDP checksum is marked as verified.
    #[inline]
    fn udp_checksum_verified(&self) -> bool {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        flags & sys::WEDJAT_RX_L4_CKSUM_MASK == sys::WEDJAT_RX_L4_CKSUM_GOOD
    }

    /// Returns the receive time in this field, if the packet has one.
    #[inline]
    fn stamp(&self, field: StampField) -> Option<u64> {
        let flags: u64 = self.field(sys::WEDJAT_MBUF_OL_FLAGS);
        // The creator of the field has checked that it lies within an mbuf.
        (flags & field.flag != 0).then(|| self.field(u32::from(field.offset)))
    }

    /// Prefetches the first cache line of the packet.
    #[inline]
    fn prefetch(&self) {
        prefetch(self.data());
    }

    /// Prefetches the first cache line of the mbuf, and that of the packet at its usual place. Reads no field, because
    /// the mbuf is not in the cache yet.
    #[inline]
    fn prefetch_all(&self) {
        let mbuf = self.0.as_ptr().cast::<u8>();
        prefetch(mbuf);
        prefetch(mbuf.wrapping_add(USUAL_DATA));
    }
}

impl Token for Mbuf {
    /// Converts the mbuf to its pointer as a word. The owner of the word owns the mbuf.
    #[inline]
    fn into_word(self) -> u64 {
        let mbuf = self.0;
        forget(self);
        mbuf.as_ptr().expose_provenance() as u64
    }

    /// Converts a word from [`Token::into_word`] back to the mbuf.
    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        let mbuf = std::ptr::with_exposed_provenance_mut(word as usize);
        // SAFETY: by the trait's contract the word comes from an mbuf without another owner, so it is not
        // null.
        unsafe { Self::from_raw(NonNull::new_unchecked(mbuf)) }
    }
}

impl Drop for Mbuf {
    /// Returns the mbuf to its pool, with all its segments.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this value owns the mbuf and does not use it again.
        unsafe { sys::rte_pktmbuf_free(self.0.as_ptr()) };
    }
}
