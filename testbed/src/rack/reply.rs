//! A worker's reply, made in place of the task that it answers.

use wedjat::wire::checksum::ChecksumDelta;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Code, Extension, Header};
use wedjat::wire::udp::{self, Datagram};

/// Time to live of a packet that starts its way.
const TTL: u8 = 64;
/// Offset of the reply's measured service time in the UDP payload.
const SERVICE: usize = task::LEN + 8;

/// What the worker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Who did the task.
    pub worker: u16,
    /// Tasks that it still has, queued and running.
    pub left: u32,
    /// How long the task took.
    pub service_ns: u32,
}

impl Reply {
    /// Turns the frame of a checked task around: it goes back to where it came from, from `mac`, and says this.
    #[inline]
    pub fn write(&self, frame: &mut [u8], datagram: &Datagram, task: &Header, mac: Mac) {
        ether::emit_addresses(frame, ether::src(frame), mac);
        // Exchanging words does not change a sum, so neither checksum changes.
        let ip = ether::LEN;
        swap(frame, ip + 12, 4);
        swap(frame, usize::from(datagram.at), 2);
        restart_ttl(&mut frame[ip..]);
        let delta = self.write_header(&mut frame[datagram.payload()..], task);
        udp::update_checksum(&mut frame[usize::from(datagram.at)..], delta);
    }

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
            let before = Extension::parse(payload).service_ns;
            payload[SERVICE..SERVICE + 4].copy_from_slice(&self.service_ns.to_be_bytes());
            delta = delta
                .straddling_word((before >> 16) as u16, (self.service_ns >> 16) as u16)
                .straddling_word(before as u16, self.service_ns as u16);
        }
        delta
    }
}

/// Exchanges two neighbouring fields of `len` bytes.
#[inline]
fn swap(frame: &mut [u8], at: usize, len: usize) {
    let (source, destination) = frame[at..at + 2 * len].split_at_mut(len);
    source.swap_with_slice(destination);
}

/// A reply is a new packet: its time to live starts anew.
#[inline]
fn restart_ttl(packet: &mut [u8]) {
    let old = word(packet, 8);
    packet[8] = TTL;
    let checksum = ChecksumDelta::default().word(old, word(packet, 8)).apply(word(packet, 10));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wedjat::wire::udp::Flow;

    const RACK: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const LEAF: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn task(header: &Header, extension: Extension, work: usize) -> Vec<u8> {
        let len = header.len() + work;
        let mut frame = vec![0x5A; udp::PAYLOAD + len];
        header.emit(&mut frame[udp::PAYLOAD..]);
        if header.extended {
            extension.emit(&mut frame[udp::PAYLOAD..]);
        }
        let flow = Flow {
            src_mac: LEAF,
            dst_mac: RACK,
            src: 0x0A00_0163,
            dst: 0x0A00_020B,
            src_port: 40_007,
            dst_port: 1234,
        };
        flow.emit(&mut frame, len);
        frame
    }

    proptest! {
        #[test]
        fn a_reply_is_a_valid_packet_back(
            extended: bool, seq: u16, src: u16, dst: u16, ext: (u32, u32, u32, u16), hops in 0..4,
            worker in 0..4096_u16, left in 0..70_000_u32, service_ns: u32, work in 0..9_usize,
        ) {
            let header = Header { extended, src, dst, qlen: 1, ..Header::new_task(3, seq) };
            let extension = Extension { app: ext.0, seq32: ext.1, service_ns: ext.2, class: ext.3 };
            let mut frame = task(&header, extension, work);
            for _ in 0..hops {
                wedjat::wire::ipv4::forward_to(&mut frame[ether::LEN..], 0x0A00_020B);
            }
            let before = udp::parse(&frame, true).unwrap();
            Reply { worker, left, service_ns }.write(&mut frame, &before, &header, RACK);

            let datagram = udp::parse(&frame, false).unwrap();
            prop_assert_eq!((datagram.src, datagram.dst), (0x0A00_020B, 0x0A00_0163));
            prop_assert_eq!((datagram.src_port, datagram.dst_port), (1234, 40_007));
            prop_assert_eq!((ether::src(&frame), ether::dst(&frame)), (RACK, LEAF));
            prop_assert_eq!(wedjat::wire::ipv4::ttl(&frame[ether::LEN..]), TTL);
            let payload = &frame[udp::PAYLOAD..];
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
