//! Differences between IPv4 and IPv6 in packets without options and extension headers.
//!
//! The type of an address, `u32` or `u128` in host order, selects the family. A function that is generic over
//! it is compiled once for each family.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{BitAnd, BitXor, Not};

use super::auth::{self, Key};
use super::checksum::{ChecksumDelta, FoldedDelta};
use super::udp::{self, Flow};
use super::{ether, ipv4, ipv6, task};

/// An address of either family, in host order.
pub trait Address:
    Copy
    + Default
    + Ord
    + fmt::Debug
    + Send
    + Sync
    + Not<Output = Self>
    + BitAnd<Output = Self>
    + BitXor<Output = Self>
    + 'static
{
    /// The address in packet byte order.
    type Bytes: AsRef<[u8]> + Into<IpAddr> + Copy + Eq + fmt::Debug;

    /// Length of the IP header.
    const IP_LEN: usize;
    /// Offset of the UDP header in a frame.
    const UDP: usize = ether::LEN + Self::IP_LEN;
    /// Offset of the payload in a frame.
    const PAYLOAD: usize = Self::UDP + udp::LEN;
    /// Length of a frame up to the end of the task header, without IPv4 options.
    const HEAD: usize = Self::PAYLOAD + task::LEN;

    /// Networks whose addresses no client can have, each with its mask. The node drops tasks from them.
    const NO_HOSTS: &'static [(Self, Self)];
    /// True if the last address of a network is its broadcast address.
    const HAS_BROADCAST: bool;

    /// Returns an address if it is of this family.
    fn from_ip(ip: IpAddr) -> Option<Self>;

    /// Returns the address with its family.
    fn to_ip(self) -> IpAddr;

    /// Returns the mask of a network with this prefix length; 0 for length 0, where the shift would overflow.
    fn mask(prefix: u8) -> Self;

    /// Returns true if exactly one bit is 1. Two networks with the same mask merge into one range if they differ in one
    /// bit. A network has two addresses if the complement of its mask is one bit.
    fn is_one_bit(self) -> bool;

    /// Converts to packet byte order.
    #[must_use]
    fn to_be(self) -> Self;

    /// Returns the source of a packet.
    fn src(packet: &[u8]) -> Self;

    /// Returns the destination of a packet.
    fn dst(packet: &[u8]) -> Self;

    /// Returns the time to live of a packet.
    fn ttl(packet: &[u8]) -> u8;

    /// Returns the address in packet byte order.
    fn to_bytes(self) -> Self::Bytes;

    /// Adds the replacement of an address, at an even offset, to a checksum's change.
    fn replace(delta: ChecksumDelta, old: Self, new: Self) -> ChecksumDelta;

    /// Returns the checksum change of removing the source of a packet. The caller adds that of the new source, computed
    /// in advance.
    fn removed_src(packet: &[u8]) -> FoldedDelta;

    /// Replaces the destination of a packet and decrements its time to live, which must be above 0. `delta` is the
    /// change of the IPv4 header's checksum by both.
    fn forward_to(packet: &mut [u8], dst: Self::Bytes, delta: FoldedDelta);

    /// Same as [`Address::forward_to`], for the source.
    fn forward_from(packet: &mut [u8], src: Self::Bytes, delta: FoldedDelta);

    /// Writes the headers of a frame whose payload, `payload_len` bytes at [`Address::PAYLOAD`], is already in place.
    fn emit(flow: &Flow<Self>, frame: &mut [u8], payload_len: usize);

    /// Writes the proof, a sequence number and a tag, after the header of a payload from `src` to `dst`.
    fn sign(key: &Key, src: Self, dst: Self, payload: &mut [u8], sequence: u64);
}

/// Defines the methods with the same body for both types.
macro_rules! of_integer {
    () => {
        fn mask(prefix: u8) -> Self {
            Self::MAX.checked_shl(Self::BITS - u32::from(prefix)).unwrap_or(0)
        }

        fn is_one_bit(self) -> bool {
            self.is_power_of_two()
        }

        #[inline(always)]
        fn to_be(self) -> Self {
            Self::to_be(self)
        }

        #[inline(always)]
        fn to_bytes(self) -> Self::Bytes {
            self.to_be_bytes()
        }
    };
}

impl Address for u32 {
    type Bytes = [u8; 4];

    const IP_LEN: usize = ipv4::LEN;
    // This network and loopback (RFC 1122, 3.2.1.3), multicast and reserved (RFC 1112).
    const NO_HOSTS: &'static [(Self, Self)] =
        &[(0, 0xFF << 24), (0x7F << 24, 0xFF << 24), (0xE0 << 24, 0xE0 << 24)];
    const HAS_BROADCAST: bool = true;

    fn from_ip(ip: IpAddr) -> Option<Self> {
        ipv4::v4_bits(ip)
    }

    fn to_ip(self) -> IpAddr {
        Ipv4Addr::from_bits(self).into()
    }

    of_integer!();

    #[inline(always)]
    fn src(packet: &[u8]) -> Self {
        ipv4::src(packet)
    }

    #[inline(always)]
    fn dst(packet: &[u8]) -> Self {
        ipv4::dst(packet)
    }

    #[inline(always)]
    fn ttl(packet: &[u8]) -> u8 {
        ipv4::ttl(packet)
    }

    #[inline]
    fn replace(delta: ChecksumDelta, old: Self, new: Self) -> ChecksumDelta {
        delta.double_word(old, new)
    }

    #[inline(always)]
    fn removed_src(packet: &[u8]) -> FoldedDelta {
        FoldedDelta::double_word_removed(ipv4::src(packet).to_be())
    }

    #[inline(always)]
    fn forward_to(packet: &mut [u8], dst: [u8; 4], delta: FoldedDelta) {
        ipv4::forward_to(packet, dst, delta);
    }

    #[inline(always)]
    fn forward_from(packet: &mut [u8], src: [u8; 4], delta: FoldedDelta) {
        ipv4::forward_from(packet, src, delta);
    }

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
    type Bytes = [u8; 16];

    const IP_LEN: usize = ipv6::LEN;
    // Addresses of 96 leading zeros (unspecified, loopback), mapped IPv4 addresses, link-local addresses and groups:
    // `ipv6::is_unicast` refuses them.
    const NO_HOSTS: &'static [(Self, Self)] = &[
        (0, Self::MAX << 32),
        (0xFFFF << 32, Self::MAX << 32),
        (0xFE80 << 112, Self::MAX << 118),
        (0xFF << 120, Self::MAX << 120),
    ];
    const HAS_BROADCAST: bool = false;

    fn from_ip(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V6(ip) => Some(ip.to_bits()),
            IpAddr::V4(_) => None,
        }
    }

    fn to_ip(self) -> IpAddr {
        Ipv6Addr::from_bits(self).into()
    }

    of_integer!();

    #[inline(always)]
    fn src(packet: &[u8]) -> Self {
        ipv6::src(packet)
    }

    #[inline(always)]
    fn dst(packet: &[u8]) -> Self {
        ipv6::dst(packet)
    }

    #[inline(always)]
    fn ttl(packet: &[u8]) -> u8 {
        ipv6::hop_limit(packet)
    }

    #[inline]
    fn replace(delta: ChecksumDelta, old: Self, new: Self) -> ChecksumDelta {
        delta.address(old, new)
    }

    #[inline(always)]
    fn removed_src(packet: &[u8]) -> FoldedDelta {
        FoldedDelta::fold(ChecksumDelta::default().address_removed(ipv6::src_bytes(packet)))
    }

    /// An IPv6 header has no checksum.
    #[inline(always)]
    fn forward_to(packet: &mut [u8], dst: [u8; 16], _: FoldedDelta) {
        ipv6::forward_to(packet, dst);
    }

    #[inline(always)]
    fn forward_from(packet: &mut [u8], src: [u8; 16], _: FoldedDelta) {
        ipv6::forward_from(packet, src);
    }

    #[inline]
    fn emit(flow: &Flow<Self>, frame: &mut [u8], payload_len: usize) {
        flow.emit_v6(frame, payload_len);
    }

    #[inline]
    fn sign(key: &Key, src: Self, dst: Self, payload: &mut [u8], sequence: u64) {
        key.sign(&auth::addresses_v6(src, dst), payload, sequence);
    }
}
