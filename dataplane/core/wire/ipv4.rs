//! IPv4 (RFC 791), as far as a layer-3 hop for UDP needs it.

use std::net::IpAddr;

use super::checksum::{ChecksumDelta, FoldedDelta, PartialChecksum};
use super::{put_u16, put_u32, u16_at, u32_at};
use crate::reason::DropReason;

/// Number of bytes of a header without options.
pub const LEN: usize = 20;
/// First byte of a header without options: version 4, five words.
pub const NO_OPTIONS: u8 = 0x45;
/// Offset of the destination address.
pub const DST: usize = 16;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// Minimum time to live of a packet that a hop forwards.
pub const TTL_MIN: u8 = 2;

/// Time to live of packets that this node creates.
const TTL: u8 = 64;
/// End of the options list (RFC 791).
const END_OF_OPTIONS: u8 = 0;
/// Padding between options (RFC 791).
const NO_OPERATION: u8 = 1;
/// Router alert (RFC 2113).
const ROUTER_ALERT: u8 = 148;
/// Number of bytes of a router alert.
const ROUTER_ALERT_LEN: u8 = 4;

/// Returns an IPv4 address as a number; `None` for an IPv6 address.
#[must_use]
pub fn v4_bits(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(address) => Some(address.to_bits()),
        IpAddr::V6(_) => None,
    }
}

/// Fields of a checked header. Addresses are numbers in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of bytes of the header, including options.
    pub len: usize,
    /// Number of bytes of header and payload.
    pub total_len: usize,
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Payload protocol.
    pub protocol: u8,
}

/// Checks the header at the start of `packet`, except time to live, options and addresses. Ignores bytes after the
/// total length (Ethernet padding). `verified`: the device has already checked the checksum.
///
/// # Errors
/// The packet's drop reason.
#[inline]
pub fn parse(packet: &[u8], verified: bool) -> Result<Header, DropReason> {
    if packet.len() < LEN {
        return Err(DropReason::Runt);
    }
    let version_len = packet[0];
    let len = usize::from(version_len & 0xF) * 4;
    let total_len = usize::from(u16_at(packet, 2));
    if version_len >> 4 != 4 || len < LEN || total_len < len || total_len > packet.len() {
        return Err(DropReason::Ipv4Header);
    }
    if !verified && !PartialChecksum::default().bytes(&packet[..len]).is_valid() {
        return Err(DropReason::Ipv4Checksum);
    }
    if is_fragment(packet) {
        return Err(DropReason::Ipv4Fragment);
    }
    Ok(Header {
        len,
        total_len,
        src: u32_at(packet, 12),
        dst: u32_at(packet, 16),
        protocol: packet[9],
    })
}

/// Returns true for a fragment: more fragments follow, or this is not the first. The reserved bit and "don't
/// fragment" do not matter.
#[inline]
#[must_use]
pub fn is_fragment(packet: &[u8]) -> bool {
    u16_at(packet, 6) & 0x3FFF != 0
}

/// Returns true if options hold only padding and router alerts, which change nothing for the receiver. Hosts
/// ignore bytes after the end of the list.
#[must_use]
pub fn are_harmless(mut options: &[u8]) -> bool {
    loop {
        options = match options {
            [] | [END_OF_OPTIONS, ..] => return true,
            [NO_OPERATION, rest @ ..] | [ROUTER_ALERT, ROUTER_ALERT_LEN, _, _, rest @ ..] => rest,
            _ => return false,
        };
    }
}

/// Returns the source address of a checked header.
#[inline]
#[must_use]
pub fn src(packet: &[u8]) -> u32 {
    u32_at(packet, 12)
}

/// Returns the destination address of a checked header.
#[inline]
#[must_use]
pub fn dst(packet: &[u8]) -> u32 {
    u32_at(packet, DST)
}

/// Returns the time to live of a checked header.
#[inline]
#[must_use]
pub fn ttl(packet: &[u8]) -> u8 {
    packet[8]
}

/// Replaces the destination and decrements the time to live, which must be above 0. `delta` is the change of the
/// checksum by both, see [`hop`].
#[inline(always)]
pub fn forward_to(packet: &mut [u8], dst: [u8; 4], delta: FoldedDelta) {
    packet[16..20].copy_from_slice(&dst);
    decrement_ttl(packet, delta);
}

/// Like [`forward_to`], for the source.
#[inline(always)]
pub fn forward_from(packet: &mut [u8], src: [u8; 4], delta: FoldedDelta) {
    packet[12..16].copy_from_slice(&src);
    decrement_ttl(packet, delta);
}

/// Decrements the time to live. `delta` holds all changes of the header, including this one.
#[inline(always)]
fn decrement_ttl(packet: &mut [u8], delta: FoldedDelta) {
    let checksum = delta.apply(u16::from_ne_bytes([packet[10], packet[11]]));
    packet[8] = packet[8].wrapping_sub(1);
    packet[10..12].copy_from_slice(&checksum.to_ne_bytes());
}

/// Adds a decrement of the time to live to a change of a header.
#[inline]
#[must_use]
pub const fn hop(delta: ChecksumDelta) -> ChecksumDelta {
    // Time to live and protocol share a word: it falls by 0x100, for any protocol.
    delta.word(0x0100, 0)
}

/// Exchanges source and destination of a checked header, and resets its time to live, because the packet becomes an
/// answer.
pub fn swap_addresses(packet: &mut [u8]) {
    let (src, dst) = (src(packet), dst(packet));
    put_u32(packet, 12, dst);
    put_u32(packet, 16, src);
    // The exchange does not change the sum; the new time to live, in a word with the protocol, does.
    let old = u16_at(packet, 8);
    packet[8] = TTL;
    let checksum = ChecksumDelta::default().word(old, u16_at(packet, 8)).apply(u16_at(packet, 10));
    put_u16(packet, 10, checksum);
}

/// Writes a header of [`LEN`] bytes without options, with "don't fragment" set, and with its checksum.
pub fn emit(packet: &mut [u8], src: u32, dst: u32, protocol: u8, payload_len: usize) {
    packet[..LEN].fill(0);
    packet[0] = 0x45;
    put_u16(packet, 2, (LEN + payload_len) as u16);
    put_u16(packet, 6, 0x4000); // don't fragment
    packet[8] = TTL;
    packet[9] = protocol;
    put_u32(packet, 12, src);
    put_u32(packet, 16, dst);
    renew_checksum(&mut packet[..LEN]);
}

/// Recomputes the checksum of a header with its options.
///
/// # Panics
/// If the header is shorter than its checksum's end, 12 bytes.
pub fn renew_checksum(header: &mut [u8]) {
    put_u16(header, 10, 0);
    let checksum = PartialChecksum::default().bytes(header).checksum();
    put_u16(header, 10, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a header with a payload of eight bytes.
    fn packet() -> Vec<u8> {
        let mut packet = vec![0; LEN + 8];
        emit(&mut packet, 0x0A00_0101, 0x0A00_0201, UDP, 8);
        packet
    }

    #[test]
    fn emitted_header_parses_back() {
        let header = parse(&packet(), false).unwrap();
        assert_eq!((header.src, header.dst, header.protocol), (0x0A00_0101, 0x0A00_0201, UDP));
        assert_eq!((header.len, header.total_len), (20, 28));
    }

    #[test]
    fn each_fault_has_its_reason() {
        // Parses the packet with one changed byte and a right checksum.
        let with = |at: usize, byte: u8| {
            let mut packet = packet();
            packet[at] = byte;
            packet[10] = 0;
            packet[11] = 0;
            let checksum = PartialChecksum::default().bytes(&packet[..LEN]).checksum();
            put_u16(&mut packet, 10, checksum);
            parse(&packet, false)
        };
        // Version 6; a header of 16 bytes; a total length beyond the packet's 28 bytes, or below the header's 20.
        assert_eq!(with(0, 0x65), Err(DropReason::Ipv4Header));
        assert_eq!(with(0, 0x44), Err(DropReason::Ipv4Header));
        assert_eq!(with(3, 29), Err(DropReason::Ipv4Header));
        assert_eq!(with(3, 19), Err(DropReason::Ipv4Header));
        // "More fragments"; a fragment offset of 1; no "don't fragment".
        assert_eq!(with(6, 0x20), Err(DropReason::Ipv4Fragment));
        assert_eq!(with(7, 1), Err(DropReason::Ipv4Fragment));
        assert!(with(6, 0).is_ok());
        assert_eq!(parse(&packet()[..19], false), Err(DropReason::Runt));
        let mut bad = packet();
        bad[11] ^= 1;
        assert_eq!(parse(&bad, false), Err(DropReason::Ipv4Checksum));
        assert!(parse(&bad, true).is_ok());
    }

    #[test]
    fn only_padding_and_router_alerts_are_harmless() {
        // None, padding, the end of the list, and router alerts before the end and after padding.
        let harmless: [&[u8]; 5] = [
            &[],
            &[1, 1, 1, 1],
            &[0, 0, 0, 0],
            &[148, 4, 0, 0, 1, 0, 7, 7],
            &[1, 148, 4, 0, 0, 0, 0, 0],
        ];
        for options in harmless {
            assert!(are_harmless(options), "{options:?}");
        }
        // Record route, timestamp, loose and strict source route, router alerts of a wrong length and cut short (two),
        // and an unknown option.
        let harmful: [&[u8]; 8] = [
            &[7, 7, 4, 0, 0, 0, 0, 0],
            &[68, 8, 5, 0, 0, 0, 0, 0],
            &[131, 7, 4, 10, 0, 0, 9, 0],
            &[137, 7, 4, 10, 0, 0, 9, 0],
            &[148, 3, 0, 0],
            &[148, 4, 0],
            &[1, 1, 1, 148],
            &[1, 1, 1, 30],
        ];
        for options in harmful {
            assert!(!are_harmless(options), "{options:?}");
        }
    }

    #[test]
    fn forwarding_keeps_the_checksum_true() {
        let mut packet = packet();
        let delta = |old: u32, new: u32| {
            FoldedDelta::fold(hop(ChecksumDelta::default().double_word(old, new)))
        };
        // Each step takes two from the time to live of 64.
        for step in 0..60 {
            let (from, to) = (0xFFFF_FF00 + step, 0xC0A8_0000 + step);
            let change = delta(dst(&packet), to);
            forward_to(&mut packet, to.to_be_bytes(), change);
            let change = delta(src(&packet), from);
            forward_from(&mut packet, from.to_be_bytes(), change);
            if ttl(&packet) < 2 {
                break;
            }
            let header = parse(&packet, false).unwrap();
            assert_eq!((header.dst, header.src), (to, from));
        }
        assert!(ttl(&packet) < 2);
    }
}
