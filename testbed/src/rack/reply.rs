//! A worker's reply, written over the task that it answers.

use wedjat::wire::checksum::ChecksumDelta;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Code, Extension, Header};
use wedjat::wire::{ipv6, udp};
use wedjat_pktgen::address;

/// Time to live of a new IPv4 packet.
const TTL: u8 = 64;
/// Offset of the reply's service time in the UDP payload: behind the fields `app` and `seq32` of the
/// extension.
const SERVICE: usize = task::LEN + 8;

/// Contents of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Worker that served the task.
    pub worker: u16,
    /// Number of tasks that the worker still has, queued and running.
    pub left: u32,
    /// Service time of the task, which the reply's extension reports.
    pub service_ns: u32,
}

impl Reply {
    /// Turns the frame of a checked task, whose UDP header is at `udp_offset`, into the reply. The reply goes to the
    /// task's source, and its source MAC address is `mac`.
    #[inline]
    pub fn write(&self, frame: &mut [u8], udp_offset: usize, task: &Header, mac: Mac) {
        ether::emit_addresses(frame, ether::src(frame), mac);
        // A swap of source and destination changes no checksum, because the sum of the words stays the same.
        let ip = ether::LEN;
        // IPv4 has its addresses at offset 12. The IPv6 function also resets the hop limit. UDP begins with its ports.
        if address::is_v6(frame) {
            ipv6::swap_addresses(&mut frame[ip..]);
        } else {
            swap(frame, ip + 12, 4);
            reset_ttl(&mut frame[ip..]);
        }
        swap(frame, udp_offset, 2);
        let delta = self.write_header(&mut frame[udp_offset + udp::LEN..], task);
        udp::update_checksum(&mut frame[udp_offset..], delta);
    }

    /// Turns the task's header into the reply's. Returns the change for the UDP checksum.
    ///
    /// Code and flags are in the header's first byte. All later changed fields are at odd offsets and therefore
    /// straddle two of the checksum's words.
    #[inline]
    fn write_header(&self, payload: &mut [u8], task: &Header) -> ChecksumDelta {
        let code = if self.left == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
        let qlen = self.left.min(u32::from(u16::MAX)) as u16;
        let reply = Header { code, more: false, src: self.worker, dst: task.src, qlen, ..*task };
        let first = word(payload, 0);
        reply.emit(payload);
        let mut delta = ChecksumDelta::default()
            .word(first, word(payload, 0))
            .straddling_word(task.src, reply.src)
            .straddling_word(task.dst, reply.dst)
            .straddling_word(task.qlen, reply.qlen);
        if task.extended {
            let old_ns = Extension::parse(payload).service_ns;
            payload[SERVICE..SERVICE + 4].copy_from_slice(&self.service_ns.to_be_bytes());
            delta = delta
                .straddling_word((old_ns >> 16) as u16, (self.service_ns >> 16) as u16)
                .straddling_word(old_ns as u16, self.service_ns as u16);
        }
        delta
    }
}

/// Swaps two adjacent fields of `len` bytes, the first at `offset`.
#[inline]
fn swap(frame: &mut [u8], offset: usize, len: usize) {
    let (source, destination) = frame[offset..offset + 2 * len].split_at_mut(len);
    source.swap_with_slice(destination);
}

/// Resets the time to live of an IPv4 packet: a reply is a new packet. Byte 8 is the time to live, and bytes 10 and 11
/// are the header's checksum.
#[inline]
fn reset_ttl(packet: &mut [u8]) {
    let old = word(packet, 8);
    packet[8] = TTL;
    let checksum = ChecksumDelta::default().word(old, word(packet, 8)).apply(word(packet, 10));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the big-endian word at an offset.
#[inline]
fn word(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes([bytes[offset], bytes[offset + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wedjat::reason::DropReason;
    use wedjat::wire::checksum::FoldedDelta;
    use wedjat::wire::ipv4;
    use wedjat::wire::udp::{Datagram, Flow};

    const RACK: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const LEAF: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const CLIENT: u128 = 0xFD00_0001 << 96 | 0x0A00_0163;
    const SERVER: u128 = 0xFD00_0002 << 96 | 0x0A00_020B;

    /// Builds a task between [`CLIENT`] and [`SERVER`]. IPv4 addresses are the last four bytes of these.
    fn task(header: &Header, extension: Extension, work: usize, is_v6: bool) -> Vec<u8> {
        let offset = if is_v6 { udp::PAYLOAD_V6 } else { udp::PAYLOAD };
        let len = header.len() + work;
        let mut frame = vec![0x5A; offset + len];
        header.emit(&mut frame[offset..]);
        if header.extended {
            extension.emit(&mut frame[offset..]);
        }
        let (src_mac, dst_mac, src_port, dst_port) = (LEAF, RACK, 40_007, 1234);
        if is_v6 {
            let (src, dst) = (CLIENT, SERVER);
            Flow { src_mac, dst_mac, src, dst, src_port, dst_port }.emit_v6(&mut frame, len);
        } else {
            let (src, dst) = (CLIENT as u32, SERVER as u32);
            Flow { src_mac, dst_mac, src, dst, src_port, dst_port }.emit(&mut frame, len);
        }
        frame
    }

    /// Parses a valid datagram of either family. Addresses are reduced to their last four bytes.
    fn parse(frame: &[u8]) -> Result<Datagram, DropReason> {
        match address::is_v6(frame) {
            false => udp::parse(frame, false),
            true => udp::parse_v6(frame, false).map(
                |Datagram { src, dst, src_port, dst_port, udp_offset, end }| {
                    let (src, dst) = (src as u32, dst as u32);
                    Datagram { src, dst, src_port, dst_port, udp_offset, end }
                },
            ),
        }
    }

    proptest! {
        #[test]
        fn reply_is_a_valid_packet_to_the_client(
            extended: bool, seq: u16, src: u16, dst: u16, ext: (u32, u32, u32, u16), hops in 0..4, v6: bool,
            worker in 0..4096_u16, left in 0..70_000_u32, service_ns: u32, work in 0..9_usize,
        ) {
            let header = Header { extended, src, dst, qlen: 1, ..Header::new_task(3, seq) };
            let extension = Extension { app: ext.0, seq32: ext.1, service_ns: ext.2, class: ext.3 };
            let mut frame = task(&header, extension, work, v6);
            // Each hop forwards the packet to the server, and so changes its time to live.
            for _ in 0..hops {
                let packet = &mut frame[ether::LEN..];
                match v6 {
                    true => ipv6::forward_to(packet, SERVER.to_be_bytes()),
                    false => {
                        let (old, new) = (ipv4::dst(packet), SERVER as u32);
                        let delta = ipv4::hop(ChecksumDelta::default().double_word(old, new));
                        ipv4::forward_to(packet, new.to_be_bytes(), FoldedDelta::fold(delta));
                    }
                }
            }
            let before = parse(&frame).unwrap();
            let reply = Reply { worker, left, service_ns };
            reply.write(&mut frame, before.udp_offset.into(), &header, RACK);

            let datagram = parse(&frame).unwrap();
            prop_assert_eq!((datagram.src, datagram.dst), (0x0A00_020B, 0x0A00_0163));
            prop_assert_eq!((datagram.src_port, datagram.dst_port), (1234, 40_007));
            prop_assert_eq!((ether::src(&frame), ether::dst(&frame)), (RACK, LEAF));
            let packet = &frame[ether::LEN..];
            prop_assert_eq!(if v6 { ipv6::hop_limit(packet) } else { ipv4::ttl(packet) }, TTL);
            let payload = &frame[datagram.payload()..];
            let code = if left == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
            let qlen = left.min(65_535) as u16;
            let expected = Header { code, src: worker, dst: src, qlen, ..header };
            prop_assert_eq!(Header::parse(payload), Ok(expected));
            if extended {
                prop_assert_eq!(Extension::parse(payload), Extension { service_ns, ..extension });
            }
        }
    }
}
