//! IPv6 (RFC 8200), as far as a layer-3 hop for UDP needs it. Addresses are integers in host order.

use super::checksum::PartialChecksum;
use super::ether::Mac;
use super::{put_u16, u16_at};
use crate::reason::DropReason;

/// Bytes of the fixed header. Extension headers are refused, so there is no other.
pub const LEN: usize = 40;
/// Next header of UDP.
pub const UDP: u8 = 17;
/// Next header of ICMPv6.
pub const ICMP: u8 = 58;
/// All nodes of a link (RFC 4291, 2.7.1).
pub const ALL_NODES: u128 = 0xFF02_0000_0000_0000_0000_0000_0000_0001;

/// Initial hop limit.
const HOP_LIMIT: u8 = 64;
/// Offset of the source.
const SRC: usize = 8;
/// Offset of the destination.
pub const DST: usize = 24;
/// Types of extension headers (RFC 7045): hop-by-hop and destination options, routing, fragment, authentication,
/// encrypted, mobility, host identity, shim6 and the two for experiments.
const EXTENSIONS: [u8; 11] = [0, 43, 44, 50, 51, 60, 135, 139, 140, 253, 254];

/// Fields of a checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes after the header.
    pub payload_len: usize,
    /// Protocol of the payload: [`UDP`] or [`ICMP`].
    pub next: u8,
    /// Source address.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
}

/// Checks the header at the start of `packet`. Ignores bytes after its payload (Ethernet padding).
///
/// # Errors
/// The packet's drop reason.
#[inline]
pub fn parse(packet: &[u8]) -> Result<Header, DropReason> {
    if packet.len() < LEN {
        return Err(DropReason::Runt);
    }
    // A length of 0 means a jumbogram (RFC 2675) or an empty payload; neither holds a datagram for this node.
    let payload_len = usize::from(u16_at(packet, 4));
    if packet[0] >> 4 != 6 || payload_len == 0 || payload_len > packet.len() - LEN {
        return Err(DropReason::Ipv6Header);
    }
    match packet[6] {
        next @ (UDP | ICMP) => Ok(Header { payload_len, next, src: src(packet), dst: dst(packet) }),
        next if EXTENSIONS.contains(&next) => Err(DropReason::Ipv6Extension),
        _ => Err(DropReason::NotUdp),
    }
}

/// Reads an address at `offset`.
fn address_at(packet: &[u8], offset: usize) -> u128 {
    let mut address = [0; 16];
    address.copy_from_slice(&packet[offset..offset + 16]);
    u128::from_be_bytes(address)
}

/// Returns the source address in network order.
///
/// # Panics
/// If the packet is too short.
#[inline]
#[must_use]
pub fn src_bytes(packet: &[u8]) -> &[u8; 16] {
    let (address, _) = packet[SRC..DST].as_chunks::<16>();
    &address[0]
}

/// Returns the source address.
#[inline]
#[must_use]
pub fn src(packet: &[u8]) -> u128 {
    address_at(packet, SRC)
}

/// Returns the destination address.
#[inline]
#[must_use]
pub fn dst(packet: &[u8]) -> u128 {
    address_at(packet, DST)
}

/// Returns the hop limit.
#[inline]
#[must_use]
pub fn hop_limit(packet: &[u8]) -> u8 {
    packet[7]
}

/// Returns the sum of the pseudo header (RFC 8200, 8.1): both addresses, length, next header.
#[inline]
#[must_use]
pub fn pseudo_header(packet: &[u8], next: u8, len: u16) -> PartialChecksum {
    PartialChecksum::default().bytes(&packet[SRC..LEN]).number(u16::from(next)).number(len)
}

/// Replaces the destination (in packet byte order) and decrements the hop limit, which must be above 0.
#[inline]
pub fn forward_to(packet: &mut [u8], dst: [u8; 16]) {
    packet[DST..LEN].copy_from_slice(&dst);
    packet[7] = packet[7].wrapping_sub(1);
}

/// Replaces the source (in packet byte order) and decrements the hop limit, which must be above 0.
#[inline]
pub fn forward_from(packet: &mut [u8], src: [u8; 16]) {
    packet[SRC..DST].copy_from_slice(&src);
    packet[7] = packet[7].wrapping_sub(1);
}

/// Swaps source and destination, which makes the packet an answer. Resets the hop limit, because the answer is new.
pub fn swap_addresses(packet: &mut [u8]) {
    let (src, dst) = packet[SRC..LEN].split_at_mut(DST - SRC);
    src.swap_with_slice(dst);
    packet[7] = HOP_LIMIT;
}

/// Writes a header of [`LEN`] bytes before `payload_len` bytes.
pub fn emit(packet: &mut [u8], (src, dst): (u128, u128), next: u8, payload_len: usize) {
    packet[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    put_u16(packet, 4, payload_len as u16);
    (packet[6], packet[7]) = (next, HOP_LIMIT);
    packet[SRC..DST].copy_from_slice(&src.to_be_bytes());
    packet[DST..LEN].copy_from_slice(&dst.to_be_bytes());
}

/// Sets the hop limit. Receivers of neighbour discovery require 255, which a forwarded packet cannot have (RFC 4861).
pub fn set_hop_limit(packet: &mut [u8], hop_limit: u8) {
    packet[7] = hop_limit;
}

/// Returns true for a multicast address (ff00::/8).
#[must_use]
pub const fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xFF
}

/// Returns true for a link-local address (fe80::/10).
#[must_use]
pub const fn is_link_local(address: u128) -> bool {
    address >> 118 == 0xFE80 >> 6
}

/// Returns true for a host's address that is valid beyond its link: not unspecified, loopback, IPv4-based (::/96 and
/// ::ffff:0:0/96), multicast or link-local.
#[must_use]
pub const fn is_unicast(address: u128) -> bool {
    let upper = address >> 32;
    upper != 0 && upper != 0xFFFF && !is_multicast(address) && !is_link_local(address)
}

/// Returns the solicited-node multicast address of a host (RFC 4291, 2.7.1).
#[must_use]
pub const fn solicited_node(address: u128) -> u128 {
    0xFF02_0000_0000_0000_0000_0001_FF00_0000 | address & 0xFF_FFFF
}

/// Returns the MAC address of a multicast group (RFC 2464, 7).
#[must_use]
pub const fn group_mac(group: u128) -> Mac {
    let [a, b, c, d] = (group as u32).to_be_bytes();
    Mac([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    /// Parses an address.
    fn address(text: &str) -> u128 {
        text.parse::<Ipv6Addr>().unwrap().to_bits()
    }

    /// Returns a packet with `payload` zeros in place of its UDP datagram.
    fn packet(payload: usize) -> Vec<u8> {
        let mut packet = vec![0; LEN + payload];
        emit(&mut packet, (address("fd00::1"), address("fd00::2")), UDP, payload);
        packet
    }

    #[test]
    fn emitted_header_parses_back() {
        let mut packet = packet(9);
        let header = parse(&packet).unwrap();
        assert_eq!((header.src, header.dst), (address("fd00::1"), address("fd00::2")));
        assert_eq!((header.payload_len, header.next, hop_limit(&packet)), (9, UDP, 64));
        forward_to(&mut packet, address("fd00::3").to_be_bytes());
        forward_from(&mut packet, address("fd00::4").to_be_bytes());
        assert_eq!((src(&packet), dst(&packet)), (address("fd00::4"), address("fd00::3")));
        assert_eq!(hop_limit(&packet), 62);
        swap_addresses(&mut packet);
        assert_eq!((src(&packet), dst(&packet)), (address("fd00::3"), address("fd00::4")));
        assert_eq!(hop_limit(&packet), 64);
    }

    // promise: input.1
    #[test]
    fn unsupported_header_is_refused() {
        let whole = packet(9);
        for (at, byte, reason) in [
            // Version 4; a payload length of 0, and beyond the packet's 9 bytes.
            (0, 0x40, DropReason::Ipv6Header),
            (5, 0, DropReason::Ipv6Header),
            (5, 10, DropReason::Ipv6Header),
            // Extension headers.
            (6, 0, DropReason::Ipv6Extension),
            (6, 43, DropReason::Ipv6Extension),
            (6, 44, DropReason::Ipv6Extension),
            (6, 60, DropReason::Ipv6Extension),
            // TCP, and "no next header".
            (6, 6, DropReason::NotUdp),
            (6, 59, DropReason::NotUdp),
        ] {
            let mut bad = whole.clone();
            bad[at] = byte;
            assert_eq!(parse(&bad), Err(reason), "byte {at} is {byte}");
        }
        assert_eq!(parse(&whole[..LEN - 1]), Err(DropReason::Runt));
        assert_eq!(parse(&whole[..LEN + 8]), Err(DropReason::Ipv6Header));
    }

    #[test]
    fn host_addresses_are_distinguished() {
        for (text, is_host) in [
            ("::", false),
            ("::1", false),
            ("::10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("64:ff9b::1", true),
        ] {
            assert_eq!(is_unicast(address(text)), is_host, "{text}");
        }
        let group = solicited_node(address("fd00::abcd:1234:5678"));
        assert_eq!(group, address("ff02::1:ff34:5678"));
        assert_eq!(group_mac(group).to_string(), "33:33:ff:34:56:78");
        assert_eq!(group_mac(ALL_NODES).to_string(), "33:33:00:00:00:01");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }
}
