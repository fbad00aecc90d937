//! UDP over IPv4 or IPv6 over Ethernet: the two kinds of frames that carry tasks.
//!
//! Three stages of a checksum occur. The sum of the pseudo header (both addresses, the protocol, the length) is its
//! start. The sum over the datagram follows. Its complement is the checksum in the packet.

use super::checksum::{ChecksumDelta, FoldedDelta, PartialChecksum};
use super::ether::{self, Mac};
use super::{ipv4, ipv6, ndp, put_u16, u16_at, u32_at};
use crate::reason::DropReason;

/// Number of bytes of the UDP header.
pub const LEN: usize = 8;
/// Number of bytes before the payload with an IPv4 header without options.
pub const PAYLOAD: usize = ether::LEN + ipv4::LEN + LEN;
/// Number of bytes before the payload over IPv6.
pub const PAYLOAD_V6: usize = ether::LEN + ipv6::LEN + LEN;

/// Number of bytes to which the leaf's kernel filter cuts a frame that holds several datagrams (segmentation
/// offload): the length of the Ethernet and IPv4 headers.
pub const OFFLOADED_LEN: usize = ether::LEN + ipv4::LEN;
/// Number of bytes of the longest frame without jumbo frames: an Ethernet header and a packet of 1500 bytes.
const FRAME_MAX: usize = ether::LEN + 1500;
/// Checksum in place of 0, because a field of 0 means no checksum. Both are equal in one's complement arithmetic.
const CHECKSUM_FOR_ZERO: u16 = 0xFFFF;

/// Addresses of a checked datagram (IPv4 by default) and its place in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<A = u32> {
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Offset of the UDP header in the frame.
    pub udp_offset: u16,
    /// Offset after the datagram's last byte in the frame.
    pub end: u16,
}

impl<A> Datagram<A> {
    /// Returns the offset of the payload in the frame.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> usize {
        usize::from(self.udp_offset) + LEN
    }

    /// Returns the datagram with its addresses as another type, for code that serves IPv4 and IPv6.
    #[must_use]
    pub fn map_addresses<B>(self, address: impl Fn(A) -> B) -> Datagram<B> {
        let Self { src, dst, src_port, dst_port, udp_offset, end } = self;
        Datagram { src: address(src), dst: address(dst), src_port, dst_port, udp_offset, end }
    }
}

/// Checks an IPv4 frame down to the UDP payload. The caller has checked the EtherType. `verified` is true if the device
/// has already checked the checksums.
///
/// # Errors
/// The frame's drop reason.
#[inline]
pub fn parse(frame: &[u8], verified: bool) -> Result<Datagram, DropReason> {
    match frame.first_chunk::<PAYLOAD>() {
        Some(head) if head[ether::LEN] == ipv4::NO_OPTIONS => {
            parse_without_options(frame, head, verified)
        }
        _ => parse_any(frame, verified),
    }
}

/// Same as [`parse_any`] for a header without options, but faster: the compiler knows all offsets.
#[inline]
fn parse_without_options(
    frame: &[u8],
    head: &[u8; PAYLOAD],
    verified: bool,
) -> Result<Datagram, DropReason> {
    const UDP_OFFSET: usize = ether::LEN + ipv4::LEN;
    let total_len = usize::from(u16_at(head, ether::LEN + 2));
    if total_len < ipv4::LEN || total_len > frame.len() - ether::LEN {
        return Err(offloaded_or(DropReason::Ipv4Header, frame));
    }
    let Some(header) = head[ether::LEN..].first_chunk::<{ ipv4::LEN }>() else {
        return Err(DropReason::Runt);
    };
    if !verified && !PartialChecksum::default().bytes(header).is_valid() {
        return Err(DropReason::Ipv4Checksum);
    }
    if ipv4::is_fragment(header) {
        return Err(DropReason::Ipv4Fragment);
    }
    if header[9] != ipv4::UDP {
        return Err(DropReason::NotUdp);
    }
    let udp_len = usize::from(u16_at(head, UDP_OFFSET + 4));
    if udp_len < LEN || ipv4::LEN + udp_len > total_len {
        return Err(DropReason::UdpLength);
    }
    let (src, dst) = (u32_at(header, 12), u32_at(header, 16));
    if !verified && u16_at(head, UDP_OFFSET + 6) != 0 {
        let sum = pseudo_header(header, udp_len as u16);
        if !sum.bytes(&frame[UDP_OFFSET..UDP_OFFSET + udp_len]).is_valid() {
            return Err(DropReason::UdpChecksum);
        }
    }
    Ok(Datagram {
        src,
        dst,
        src_port: u16_at(head, UDP_OFFSET),
        dst_port: u16_at(head, UDP_OFFSET + 2),
        udp_offset: UDP_OFFSET as u16,
        end: (UDP_OFFSET + udp_len) as u16,
    })
}

/// Returns the drop reason of a frame with a faulty IP header: [`DropReason::SegmentationOffload`] for a cut frame, and
/// `reason` for others.
///
/// A cut frame is shorter than the length in its IP header. In addition, it has the length to which the leaf's kernel
/// filter cuts, or more than the usual maximum: a whole buffer.
#[cold]
fn offloaded_or(reason: DropReason, frame: &[u8]) -> DropReason {
    let may_be_cut = frame.len() == OFFLOADED_LEN || frame.len() > FRAME_MAX;
    if !may_be_cut {
        return reason;
    }
    let packet = &frame[ether::LEN..];
    let len = match ether::ether_type(frame) {
        ether::IPV4 if packet[0] >> 4 == 4 => usize::from(u16_at(packet, 2)),
        ether::IPV6 if packet[0] >> 4 == 6 => ipv6::LEN + usize::from(u16_at(packet, 4)),
        _ => return reason,
    };
    if len > packet.len() { DropReason::SegmentationOffload } else { reason }
}

/// Returns true for an unfragmented IPv4 packet with a valid header, and for any packet with a whole IPv6 header.
/// Returns false for other frames. For devices that verify the UDP checksum alone.
#[must_use]
pub fn ip_header_is_valid(frame: &[u8]) -> bool {
    let Some(packet) = frame.get(ether::LEN..) else { return false };
    match ether::ether_type(frame) {
        ether::IPV4 => ipv4::parse(packet, false).is_ok(),
        ether::IPV6 => packet.len() >= ipv6::LEN,
        _ => false,
    }
}

/// Returns the sum of the pseudo header (RFC 768) of a datagram behind this IPv4 header.
#[inline]
fn pseudo_header(ip_header: &[u8], udp_len: u16) -> PartialChecksum {
    PartialChecksum::default()
        .bytes(&ip_header[12..20])
        .number(u16::from(ipv4::UDP))
        .number(udp_len)
}

/// Same as [`parse`], for any length of the IPv4 header.
#[cold]
fn parse_any(frame: &[u8], verified: bool) -> Result<Datagram, DropReason> {
    let packet = frame.get(ether::LEN..).ok_or(DropReason::Runt)?;
    let ip = ipv4::parse(packet, verified).map_err(|reason| offloaded_or(reason, frame))?;
    if ip.protocol != ipv4::UDP {
        return Err(DropReason::NotUdp);
    }
    let segment = &packet[ip.len..ip.total_len];
    if segment.len() < LEN {
        return Err(DropReason::UdpLength);
    }
    let udp_len = usize::from(u16_at(segment, 4));
    if udp_len < LEN || udp_len > segment.len() {
        return Err(DropReason::UdpLength);
    }
    if !verified && u16_at(segment, 6) != 0 {
        let sum = pseudo_header(packet, udp_len as u16);
        if !sum.bytes(&segment[..udp_len]).is_valid() {
            return Err(DropReason::UdpChecksum);
        }
    }
    let at = ether::LEN + ip.len;
    Ok(Datagram {
        src: ip.src,
        dst: ip.dst,
        src_port: u16_at(segment, 0),
        dst_port: u16_at(segment, 2),
        udp_offset: at as u16,
        end: (at + udp_len) as u16,
    })
}

/// Checks an IPv6 frame, as [`parse_v6`] does, that arrived at a port with this MAC address. Returns `None`
/// for neighbour discovery, which may be addressed to a group.
///
/// # Errors
/// The frame's drop reason.
#[inline]
pub fn parse_v6_at(
    mac: Mac,
    frame: &[u8],
    verified: bool,
) -> Result<Option<Datagram<u128>>, DropReason> {
    let packet = frame.get(ether::LEN..).ok_or(DropReason::Runt)?;
    let is_to_us = ether::is_to(frame, mac);
    let ip = ipv6::parse(packet).map_err(|reason| offloaded_or(reason, frame))?;
    if ip.next == ipv6::ICMP {
        if !is_to_us && !ether::dst(frame).is_group() {
            return Err(DropReason::OtherMac);
        }
        return match ndp::is_neighbour_discovery(&packet[ipv6::LEN..]) {
            true => Ok(None),
            false => Err(DropReason::NotUdp),
        };
    }
    if !is_to_us {
        return Err(DropReason::OtherMac);
    }
    parse_v6(frame, verified).map(Some)
}

/// Checks an IPv6 frame with UDP after its header, as [`parse`] does for IPv4. The checksum is mandatory (RFC
/// 8200, 8.1).
///
/// # Errors
/// The frame's drop reason.
#[inline]
pub fn parse_v6(frame: &[u8], verified: bool) -> Result<Datagram<u128>, DropReason> {
    const UDP_OFFSET: usize = ether::LEN + ipv6::LEN;
    let packet = frame.get(ether::LEN..).ok_or(DropReason::Runt)?;
    let ip = ipv6::parse(packet).map_err(|reason| offloaded_or(reason, frame))?;
    if ip.next != ipv6::UDP {
        return Err(DropReason::NotUdp);
    }
    let segment = &packet[ipv6::LEN..ipv6::LEN + ip.payload_len];
    if segment.len() < LEN {
        return Err(DropReason::UdpLength);
    }
    let udp_len = usize::from(u16_at(segment, 4));
    if udp_len < LEN || udp_len > segment.len() {
        return Err(DropReason::UdpLength);
    }
    if u16_at(segment, 6) == 0 {
        return Err(DropReason::UdpNoChecksum);
    }
    if !verified {
        let sum = ipv6::pseudo_header(packet, ipv6::UDP, udp_len as u16);
        if !sum.bytes(&segment[..udp_len]).is_valid() {
            return Err(DropReason::UdpChecksum);
        }
    }
    Ok(Datagram {
        src: ip.src,
        dst: ip.dst,
        src_port: u16_at(segment, 0),
        dst_port: u16_at(segment, 2),
        udp_offset: UDP_OFFSET as u16,
        end: (UDP_OFFSET + udp_len) as u16,
    })
}

/// Completes the checksum of a frame's datagram if the checksum field has only the sum of the pseudo header. The kernel
/// writes this sum if a device must do the rest. Returns true if so: IPv4 and UDP checksums are then right. Any other
/// frame stays unchanged.
#[must_use]
pub fn finish_checksum(frame: &mut [u8]) -> bool {
    if frame.len() < PAYLOAD {
        return false;
    }
    if ether::ether_type(frame) == ether::IPV6 {
        return finish_checksum_v6(frame);
    }
    if ether::ether_type(frame) != ether::IPV4 {
        return false;
    }
    let Ok(Datagram { udp_offset: at, end, .. }) = parse(frame, true) else { return false };
    let (at, end) = (usize::from(at), usize::from(end));
    let header = &frame[ether::LEN..at];
    let pseudo = pseudo_header(header, (end - at) as u16);
    // The kernel writes the sum itself, and `checksum` returns its complement.
    let (checksum_field, partial) = (u16_at(frame, at + 6), !pseudo.checksum());
    if checksum_field == 0
        || checksum_field != partial
        || !PartialChecksum::default().bytes(header).is_valid()
    {
        return false;
    }
    put_u16(frame, at + 6, 0);
    put_checksum(&mut frame[at..end], pseudo);
    true
}

/// Returns true if the UDP checksum of an IPv6 frame is right. The frame has no extension headers, and its
/// datagram of `udp_len` bytes is complete.
#[inline]
#[must_use]
pub fn checksum_is_valid_v6(frame: &[u8], udp_len: usize) -> bool {
    const UDP_OFFSET: usize = ether::LEN + ipv6::LEN;
    let sum = PartialChecksum::default().number(u16::from(ipv6::UDP)).number(udp_len as u16);
    // The addresses at the end of the IPv6 header, and the UDP header, whose length the compiler knows.
    let sum = sum.bytes(&frame[ether::LEN + 8..UDP_OFFSET + 8]);
    sum.range(frame, UDP_OFFSET + 8, UDP_OFFSET + udp_len).is_valid()
}

/// Same as [`finish_checksum`], for a frame with IPv6.
#[cold]
fn finish_checksum_v6(frame: &mut [u8]) -> bool {
    let Ok(Datagram { udp_offset: at, end, .. }) = parse_v6(frame, true) else { return false };
    let (at, end) = (usize::from(at), usize::from(end));
    let pseudo = ipv6::pseudo_header(&frame[ether::LEN..], ipv6::UDP, (end - at) as u16);
    if u16_at(frame, at + 6) != !pseudo.checksum() {
        return false;
    }
    renew_checksum_v6(frame);
    true
}

/// Recomputes the checksum of a frame's datagram over IPv6, if the frame holds one with a checksum. For frames whose
/// checksum is partial, or whose bytes have changed.
pub fn renew_checksum_v6(frame: &mut [u8]) {
    let Ok(Datagram { udp_offset: at, end, .. }) = parse_v6(frame, true) else { return };
    let (at, end) = (usize::from(at), usize::from(end));
    let pseudo = ipv6::pseudo_header(&frame[ether::LEN..], ipv6::UDP, (end - at) as u16);
    put_u16(frame, at + 6, 0);
    put_checksum(&mut frame[at..end], pseudo);
}

/// Writes the checksum of a whole datagram, whose checksum field is 0. `pseudo` is the sum of its pseudo header.
fn put_checksum(segment: &mut [u8], pseudo: PartialChecksum) {
    let checksum = pseudo.bytes(segment).checksum();
    put_u16(segment, 6, if checksum == 0 { CHECKSUM_FOR_ZERO } else { checksum });
}

/// Swaps the endpoints (MAC addresses, IP addresses, ports) of a checked datagram with its UDP header at `at`.
/// Resets the time to live (IPv6: hop limit), because the packet is new.
#[inline]
pub fn swap_endpoints(frame: &mut [u8], at: usize) {
    ether::emit_addresses(frame, ether::src(frame), ether::dst(frame));
    match ether::ether_type(frame) {
        ether::IPV6 => ipv6::swap_addresses(&mut frame[ether::LEN..]),
        _ => ipv4::swap_addresses(&mut frame[ether::LEN..]),
    }
    // An exchange of addresses or ports does not change a sum, so the UDP checksum stays.
    let (src, dst) = (u16_at(frame, at), u16_at(frame, at + 2));
    put_u16(frame, at, dst);
    put_u16(frame, at + 2, src);
}

/// Returns the source port of the UDP header at the start of `segment`.
#[inline]
#[must_use]
pub fn src_port(segment: &[u8]) -> u16 {
    u16_at(segment, 0)
}

/// Returns the length in the UDP header at the start of `segment`: that of header and payload.
#[inline]
#[must_use]
pub fn length(segment: &[u8]) -> usize {
    usize::from(u16_at(segment, 4))
}

/// Updates the checksum of the UDP header at the start of `segment` after a change.
#[inline]
pub fn update_checksum(segment: &mut [u8], delta: ChecksumDelta) {
    let checksum = delta.apply_udp(u16_at(segment, 6));
    put_u16(segment, 6, checksum);
}

/// Same as [`update_checksum`], with a folded delta. A folded delta is in the order of the packet's bytes in memory.
#[inline(always)]
pub fn update_checksum_folded(segment: &mut [u8], delta: FoldedDelta) {
    let checksum = delta.apply_udp(u16::from_ne_bytes([segment[6], segment[7]]));
    segment[6..8].copy_from_slice(&checksum.to_ne_bytes());
}

/// Source and destination of a frame, with IPv4 addresses by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<A = u32> {
    /// Source MAC address.
    pub src_mac: Mac,
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source address.
    pub src: A,
    /// Destination address.
    pub dst: A,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

impl Flow {
    /// Writes the headers of a frame with both checksums. Its payload, `payload_len` bytes at [`PAYLOAD`],
    /// must already be in place.
    pub fn emit(&self, frame: &mut [u8], payload_len: usize) {
        let udp_len = LEN + payload_len;
        ether::emit(frame, self.dst_mac, self.src_mac, ether::IPV4);
        let packet = &mut frame[ether::LEN..];
        ipv4::emit(packet, self.src, self.dst, ipv4::UDP, udp_len);
        let pseudo = pseudo_header(packet, udp_len as u16);
        let segment = &mut packet[ipv4::LEN..ipv4::LEN + udp_len];
        put_u16(segment, 0, self.src_port);
        put_u16(segment, 2, self.dst_port);
        put_u16(segment, 4, udp_len as u16);
        put_u16(segment, 6, 0);
        put_checksum(segment, pseudo);
    }
}

impl Flow<u128> {
    /// Same as [`Flow::emit`], over IPv6: the payload is at [`PAYLOAD_V6`].
    pub fn emit_v6(&self, frame: &mut [u8], payload_len: usize) {
        let udp_len = LEN + payload_len;
        ether::emit(frame, self.dst_mac, self.src_mac, ether::IPV6);
        let packet = &mut frame[ether::LEN..];
        ipv6::emit(packet, (self.src, self.dst), ipv6::UDP, udp_len);
        let pseudo = ipv6::pseudo_header(packet, ipv6::UDP, udp_len as u16);
        let segment = &mut packet[ipv6::LEN..ipv6::LEN + udp_len];
        put_u16(segment, 0, self.src_port);
        put_u16(segment, 2, self.dst_port);
        put_u16(segment, 4, udp_len as u16);
        put_u16(segment, 6, 0);
        put_checksum(segment, pseudo);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a frame over IPv4 with this payload.
    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; PAYLOAD + payload.len()];
        frame[PAYLOAD..].copy_from_slice(payload);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src: 0x0A00_0102,
            dst: 0x0A00_0101,
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit(&mut frame, payload.len());
        frame
    }

    #[test]
    fn emitted_frame_has_golden_bytes() {
        // Checked with an independent implementation of the checksums (RFC 768, RFC 791).
        let frame = frame(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7]);
        let expected = [
            0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
            0x45, 0, 0, 39, 0, 0, 0x40, 0, 64, 17, 0x24, 0xC4, 10, 0, 1, 2, 10, 0, 1,
            1, // IPv4
            0x9C, 0x40, 0x04, 0xD2, 0, 19, 0x40, 0xB3, // UDP
            0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7,
        ];
        assert_eq!(frame, expected);
    }

    // promise: ports.1
    #[test]
    fn partial_checksum_is_completed() {
        let right = frame(b"a task");
        // Sum of the pseudo header, as Linux leaves it (CHECKSUM_PARTIAL): addresses, protocol, length, not
        // complemented.
        let words = [0x0A00_u32, 0x0102, 0x0A00, 0x0101, 17, 14];
        let sum: u32 = words.iter().sum();
        let partial = ((sum & 0xFFFF) + (sum >> 16)) as u16;
        let with = |checksum: u16| {
            let mut frame = right.clone();
            put_u16(&mut frame, ether::LEN + ipv4::LEN + 6, checksum);
            frame
        };
        let mut finished = with(partial);
        assert_eq!(parse(&finished, false), Err(DropReason::UdpChecksum));
        assert!(finish_checksum(&mut finished));
        assert_eq!(finished, right);
        let mut damaged = with(partial);
        damaged[ether::LEN + 8] ^= 1; // time to live, covered by the IPv4 checksum
        for frame in
            [right.clone(), with(0), with(partial ^ 1), damaged, right[..30].to_vec(), vec![]]
        {
            let mut after = frame.clone();
            assert!(!finish_checksum(&mut after) && after == frame, "{frame:02x?}");
        }
    }

    // promise: ports.1
    #[test]
    fn cut_packet_has_its_own_reason() {
        let v4 = frame(&[7; 640]);
        let cut = |frame: &[u8]| frame[..OFFLOADED_LEN].to_vec();
        assert_eq!(parse(&cut(&v4), false), Err(DropReason::SegmentationOffload));
        assert_eq!(
            parse(&v4[..OFFLOADED_LEN + 8], false),
            Err(DropReason::Ipv4Header),
            "the filter cuts elsewhere"
        );
        // Without the filter the device's buffer cuts the packet, here after 1966 bytes.
        let long = frame(&[7; 4000]);
        assert_eq!(parse(&long[..1966], false), Err(DropReason::SegmentationOffload));
        let v6 = frame_v6(&[7; 640]);
        assert_eq!(parse_v6(&cut(&v6), false), Err(DropReason::SegmentationOffload));
        let mac = ether::dst(&v6);
        assert_eq!(parse_v6_at(mac, &cut(&v6), false), Err(DropReason::SegmentationOffload));
        assert_eq!(parse_v6(&v6[..OFFLOADED_LEN - 1], false), Err(DropReason::Runt));
    }

    #[test]
    fn swapped_endpoints_keep_valid_checksums() {
        // A time to live of 3, which the swap resets, and its header checksum.
        let mut frame = frame(&[1, 2, 3]);
        frame[ether::LEN + 8] = 3;
        frame[ether::LEN + 10..ether::LEN + 12].fill(0);
        let checksum =
            PartialChecksum::default().bytes(&frame[ether::LEN..][..ipv4::LEN]).checksum();
        put_u16(&mut frame, ether::LEN + 10, checksum);
        let before = parse(&frame, false).unwrap();
        swap_endpoints(&mut frame, usize::from(before.udp_offset));
        let after = parse(&frame, false).unwrap();
        assert_eq!((after.src, after.src_port), (before.dst, before.dst_port));
        assert_eq!((after.dst, after.dst_port), (before.src, before.src_port));
        assert_eq!(ether::src(&frame), Mac([2, 0, 0, 0, 0, 2]));
        assert_eq!(ether::dst(&frame), Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(ipv4::ttl(&frame[ether::LEN..]), 64);
    }

    proptest! {
        #[test]
        fn emitted_frames_parse(payload in proptest::collection::vec(any::<u8>(), 0..1400)) {
            let frame = frame(&payload);
            let datagram = parse(&frame, false).unwrap();
            prop_assert_eq!(datagram.src_port, 40_000);
            prop_assert_eq!(&frame[datagram.payload()..usize::from(datagram.end)], &payload[..]);
        }

        // promise: packets.1
        #[test]
        fn one_flipped_bit_is_noticed(payload in proptest::collection::vec(any::<u8>(), 1..64), bit in 0..8_u8, at in any::<prop::sample::Index>()) {
            let mut frame = frame(&payload);
            let at = ether::LEN + at.index(frame.len() - ether::LEN);
            frame[at] ^= 1 << bit;
            // The flipped bit may be the only one of the checksum field. The field of 0 then means no checksum.
            let has_no_checksum = at >= ether::LEN + ipv4::LEN + 6 && u16_at(&frame, ether::LEN + ipv4::LEN + 6) == 0;
            prop_assert!(has_no_checksum || parse(&frame, false).is_err());
        }

        // promise: packets.1
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, true);
            let _ = parse(&bytes, false);
        }

        /// The two parsers agree for headers without options.
        #[test]
        fn both_parsers_agree(
            payload in proptest::collection::vec(any::<u8>(), 0..40),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            cut in any::<prop::sample::Index>(), verified: bool,
        ) {
            let mut frame = frame(&payload);
            for (at, byte) in edits {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            frame.truncate(frame.len() - cut.index(4));
            frame[ether::LEN] = ipv4::NO_OPTIONS;
            if frame.len() >= PAYLOAD {
                prop_assert_eq!(parse(&frame, verified), parse_any(&frame, verified));
            }
        }
    }

    /// Returns a frame over IPv6 with this payload.
    fn frame_v6(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; PAYLOAD_V6 + payload.len()];
        frame[PAYLOAD_V6..].copy_from_slice(payload);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src: 0xFD00_0000_0000_0000_0000_0000_0000_0102,
            dst: 0xFD00_0000_0000_0000_0000_0000_0000_0101,
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit_v6(&mut frame, payload.len());
        frame
    }

    #[test]
    fn ipv6_requires_checksums_and_exact_lengths() {
        const UDP_OFFSET: usize = ether::LEN + ipv6::LEN;
        let whole = frame_v6(&[1, 2, 3]);
        let datagram = parse_v6(&whole, false).unwrap();
        assert_eq!((datagram.src_port, datagram.dst_port, datagram.payload()), (40_000, 1234, 62));
        assert_eq!(usize::from(datagram.end), whole.len());
        let with = |at: usize, bytes: [u8; 2]| {
            let mut frame = whole.clone();
            frame[at..at + 2].copy_from_slice(&bytes);
            parse_v6(&frame, true)
        };
        // No checksum; a datagram length beyond its 11 bytes, and below the UDP header's 8; a payload length below 8;
        // an ICMPv6 message.
        assert_eq!(with(UDP_OFFSET + 6, [0, 0]), Err(DropReason::UdpNoChecksum));
        assert_eq!(with(UDP_OFFSET + 4, [0, 12]), Err(DropReason::UdpLength));
        assert_eq!(with(UDP_OFFSET + 4, [0, 7]), Err(DropReason::UdpLength));
        assert_eq!(with(ether::LEN + 4, [0, 7]), Err(DropReason::UdpLength));
        assert_eq!(with(ether::LEN + 6, [58, 64]), Err(DropReason::NotUdp));
        assert_eq!(parse_v6(&whole[..10], true), Err(DropReason::Runt));
    }

    #[test]
    fn ipv6_checksums_complete_and_endpoints_swap() {
        const UDP_OFFSET: usize = ether::LEN + ipv6::LEN;
        let whole = frame_v6(&[1, 2, 3]);
        // Only the sum of the pseudo header, as Linux leaves it, for a datagram of 8 + 3 bytes.
        let mut partial = whole.clone();
        let sum = !ipv6::pseudo_header(&whole[ether::LEN..], ipv6::UDP, 11).checksum();
        put_u16(&mut partial, UDP_OFFSET + 6, sum);
        assert!(finish_checksum(&mut partial));
        assert_eq!(partial, whole);
        assert!(!finish_checksum(&mut partial));
        swap_endpoints(&mut partial, UDP_OFFSET);
        let swapped = parse_v6(&partial, false).unwrap();
        assert_eq!((swapped.src_port, swapped.dst_port), (1234, 40_000));
        assert_eq!((swapped.src & 0xFFFF, swapped.dst & 0xFFFF), (0x101, 0x102));
    }

    proptest! {
        #[test]
        fn over_ipv6_one_flipped_bit_is_noticed(
            payload in proptest::collection::vec(any::<u8>(), 1..64), bit in 0..8_u8, at in any::<prop::sample::Index>(),
        ) {
            let mut frame = frame_v6(&payload);
            prop_assert!(parse_v6(&frame, false).is_ok());
            // No checksum covers traffic class, flow label and hop limit.
            let covered = (ether::LEN + 4..ether::LEN + 7).chain(ether::LEN + 8..frame.len());
            let places: Vec<_> = covered.collect();
            frame[places[at.index(places.len())]] ^= 1 << bit;
            prop_assert!(parse_v6(&frame, false).is_err());
        }

        #[test]
        fn over_ipv6_random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), verified: bool) {
            let _ = parse_v6(&bytes, verified);
        }
    }

    #[test]
    fn padding_is_ignored_and_wrong_lengths_refused() {
        let mut padded = frame(&[1, 2, 3]);
        padded.extend([0; 15]); // Ethernet pads to 60 bytes
        assert_eq!(parse(&padded, false).unwrap().end, (PAYLOAD + 3) as u16);
        // A datagram length beyond its 11 bytes, and below the UDP header's 8.
        let mut long = frame(&[1, 2, 3]);
        put_u16(&mut long, ether::LEN + ipv4::LEN + 4, 12);
        assert_eq!(parse(&long, false), Err(DropReason::UdpLength));
        put_u16(&mut long, ether::LEN + ipv4::LEN + 4, 7);
        assert_eq!(parse(&long, false), Err(DropReason::UdpLength));
        assert_eq!(parse(&long[..10], false), Err(DropReason::Runt));
    }
}
