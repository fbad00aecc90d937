//! Conversion between bytes and values, without state, I/O or unsafe code.
//!
//! `parse` functions accept untrusted bytes, never panic, and return the reason for a refusal. Only
//! `task::Extension::parse` needs bytes whose length the header's `parse` has checked. `emit`
//! functions write into a buffer of at least the documented length and panic on a shorter one.

pub mod address;
pub mod arp;
pub mod auth;
pub mod checksum;
pub mod completion;
pub mod ether;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod peer;
pub mod task;
pub mod udp;
pub mod vlan;

// One slice and one copy each: byte-wise indexing compiles to one load per byte.

/// Reads a big-endian `u16` at `offset`.
#[inline]
fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    let mut number = [0; 2];
    number.copy_from_slice(&bytes[offset..offset + 2]);
    u16::from_be_bytes(number)
}

/// Reads a big-endian `u32` at `offset`.
#[inline]
fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_be_bytes(number)
}

/// Reads a big-endian `u64` at `offset`.
#[inline]
fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_be_bytes(number)
}

/// Writes a big-endian `u16` at `offset`.
#[inline]
fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes a big-endian `u32` at `offset`.
#[inline]
fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
}
