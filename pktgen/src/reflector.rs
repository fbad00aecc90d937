//! A worker that does nothing: answers every task at once, where it stands. What a generator measures against
//! it is the floor of its latencies, with no scheduler and no work in between.

use wedjat::io::{Buf, Burst, Port};
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::checksum::ChecksumDelta;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp;

/// Answers tasks, and ARP for every address, on one port.
pub struct Reflector<P: Port> {
    port: P,
    mac: Mac,
    /// Answers that the device has not taken yet.
    pending: Burst<P::Buf>,
    answered: u64,
}

impl<P: Port> Reflector<P> {
    /// A reflector on `port`, whose MAC address is `mac`.
    #[must_use]
    pub fn new(port: P, mac: Mac) -> Self {
        Self { port, mac, pending: Burst::new(), answered: 0 }
    }

    /// Tasks answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Answers what has come; what is neither a task nor ARP is dropped.
    #[inline]
    pub fn poll(&mut self) {
        if self.pending.is_empty() {
            self.port.rx_burst(&mut self.pending);
            let mac = self.mac;
            self.pending.retain(|buf| reflect(buf.bytes_mut(), mac));
        }
        if !self.pending.is_empty() {
            self.answered += self.port.tx_burst(&mut self.pending) as u64;
        }
    }
}

/// Makes a task's frame its answer; false when it is no task.
#[inline]
pub fn reflect(frame: &mut [u8], mac: Mac) -> bool {
    if frame.len() < ether::LEN {
        return false;
    }
    if ether::ether_type(frame) == ether::ARP {
        return answer_arp(frame, mac);
    }
    let Ok(datagram) = udp::parse(frame, true) else { return false };
    let payload = datagram.payload();
    let Ok(header) = Header::parse(&frame[payload..usize::from(datagram.end)]) else {
        return false;
    };
    if header.code != Code::NewTask {
        return false;
    }
    let reply = Header { code: Code::TaskDoneIdle, src: 0, dst: header.src, qlen: 0, ..header };
    reply.emit(&mut frame[payload..]);
    let from = ether::src(frame);
    ether::emit_addresses(frame, from, mac);
    // Exchanging words leaves a sum as it is; the header's own change is mended by summing anew.
    let ip = ether::LEN;
    let (src, dst) = frame[ip + 12..ip + 20].split_at_mut(4);
    src.swap_with_slice(dst);
    let udp = usize::from(datagram.at);
    let (src, dst) = frame[udp..udp + 4].split_at_mut(2);
    src.swap_with_slice(dst);
    let delta = change(&header, &reply);
    udp::update_checksum(&mut frame[udp..], delta);
    true
}

/// What the answer's header changes in the checksum.
fn change(task: &Header, reply: &Header) -> ChecksumDelta {
    // The code is the high byte of its word.
    let (old, new) = (u16::from(task.code as u8) << 8, u16::from(reply.code as u8) << 8);
    ChecksumDelta::default()
        .word(old, new)
        .straddling_word(task.src, reply.src)
        .straddling_word(task.dst, reply.dst)
        .straddling_word(task.qlen, reply.qlen)
}

fn answer_arp(frame: &mut [u8], mac: Mac) -> bool {
    match arp::Packet::parse(frame) {
        Ok(packet) if packet.operation == Operation::Request => {
            packet.answer(mac).emit(frame, packet.sender_mac);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;
    use crate::template::{Task, Template};

    #[test]
    fn a_task_comes_back_as_its_valid_answer() {
        for extended in [false, true] {
            let (us, peer) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 9]));
            let target = Target { extended, ..Target::new(us, 0x0A00_0102, 0x0A00_0101) };
            let mut template = Template::new(&target.frame(5));
            let mut frame = vec![0; template.frame_len()];
            template.write(&mut frame, Task { seq: 0x12_3456, service_ns: 9, class: 3 });
            assert!(reflect(&mut frame, peer));
            assert_eq!((ether::src(&frame), ether::dst(&frame)), (peer, us));
            let datagram = udp::parse(&frame, false).unwrap();
            assert_eq!((datagram.src, datagram.dst), (0x0A00_0101, 0x0A00_0102));
            assert_eq!(datagram.src_port, 1234);
            let header = Header::parse(&frame[datagram.payload()..]).unwrap();
            assert_eq!((header.code, header.seq), (Code::TaskDoneIdle, 0x3456));
            // An answer is no task.
            assert!(!reflect(&mut frame, peer));
        }
    }
}
