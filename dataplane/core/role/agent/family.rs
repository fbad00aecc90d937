//! Differences between IPv4 and IPv6 in written packets: an address is a `u32` or a `u128`.

use crate::wire::auth::{self, Key};
use crate::wire::udp::{self, Flow};

/// An address of either family, in host order.
pub trait Address: Copy {
    /// Offset of the payload in a frame.
    const PAYLOAD: usize;

    /// Writes the headers of a frame whose payload, `payload_len` bytes at [`Address::PAYLOAD`], is already in place.
    fn emit(flow: &Flow<Self>, frame: &mut [u8], payload_len: usize);

    /// Writes the proof, a sequence number and a tag, after the header of a payload from `src` to `dst`.
    fn sign(key: &Key, src: Self, dst: Self, payload: &mut [u8], sequence: u64);
}

impl Address for u32 {
    const PAYLOAD: usize = udp::PAYLOAD;

    #[inline]
    fn emit(flow: &Flow, frame: &mut [u8], payload_len: usize) {
        flow.emit(frame, payload_len);
    }

    #[inline]
    fn sign(key: &Key, src: Self, dst: Self, payload: &mut [u8], sequence: u64) {
        key.sign(&auth::addresses(src, dst), payload, sequence);
    }
}

impl Address for u128 {
    const PAYLOAD: usize = udp::PAYLOAD_V6;

    #[inline]
    fn emit(flow: &Flow<Self>, frame: &mut [u8], payload_len: usize) {
        flow.emit_v6(frame, payload_len);
    }

    #[inline]
    fn sign(key: &Key, src: Self, dst: Self, payload: &mut [u8], sequence: u64) {
        key.sign(&auth::addresses_v6(src, dst), payload, sequence);
    }
}
