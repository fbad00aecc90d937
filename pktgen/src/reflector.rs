//! A worker without work: answers every task immediately. A generator connected to it measures the floor of
//! its latencies, without scheduler or work.

use wedjat::io::{Buf, Burst, Port};
use wedjat::reason::DropReason;
use wedjat::wire::checksum::ChecksumDelta;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Datagram};

use crate::address;
use crate::neighbour::{self, Message};

/// Answers tasks, and ARP and neighbour discovery for every address, on one port.
pub struct Reflector<P: Port> {
    port: P,
    /// MAC address of the port, the source of all answers.
    mac: Mac,
    /// Answers that the device has not accepted yet.
    pending: Burst<P::Buf>,
    /// Number of answers sent.
    answered: u64,
}

impl<P: Port> Reflector<P> {
    /// Creates a reflector on `port`, which has the MAC address `mac`.
    #[must_use]
    pub fn new(port: P, mac: Mac) -> Self {
        Self { port, mac, pending: Burst::new(), answered: 0 }
    }

    /// Returns the number of answers sent, those to neighbour requests included.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Answers received tasks and neighbour requests, and drops all other frames. Receives nothing while
    /// answers wait for the device.
    #[inline]
    pub fn poll(&mut self) {
        if self.pending.is_empty() {
            self.port.rx_burst(&mut self.pending);
            let mac = self.mac;
            self.pending.retain(|buf| reflect(buf, mac));
        }
        if !self.pending.is_empty() {
            self.answered += self.port.tx_burst(&mut self.pending) as u64;
        }
    }
}

/// Turns the frame of a task or of a neighbour request into its answer, from the host with MAC address `mac`.
/// Returns false for all other frames. Also answers the tasks of the generator's own floor measurement.
#[inline]
pub fn reflect<B: Buf>(buf: &mut B, mac: Mac) -> bool {
    if buf.bytes().len() < ether::LEN {
        return false;
    }
    if Message::is_neighbour_discovery(buf.bytes()) {
        return neighbour::answer(buf, mac, |_| true).is_ok();
    }
    reflect_task(buf.bytes_mut(), mac).is_ok()
}

/// Turns a task's frame into its answer.
///
/// # Errors
/// The reason why the frame is not a task.
#[inline]
fn reflect_task(frame: &mut [u8], mac: Mac) -> Result<(), DropReason> {
    // `true` skips the check of the checksums: the floor is not about them.
    let (udp_offset, payload, end) = match address::is_v6(frame) {
        false => offsets(&udp::parse(frame, true)?),
        true => offsets(&udp::parse_v6(frame, true)?),
    };
    let header = Header::parse(&frame[payload..end])?;
    if header.code != Code::NewTask {
        return Err(DropReason::TaskRole);
    }
    let reply = Header { code: Code::TaskDoneIdle, src: 0, dst: header.src, qlen: 0, ..header };
    reply.emit(&mut frame[payload..]);
    // The swap of the endpoints does not change the checksum, but the new task header does.
    udp::swap_endpoints(frame, udp_offset);
    ether::emit_addresses(frame, ether::dst(frame), mac);
    udp::update_checksum(&mut frame[udp_offset..], checksum_delta(&header, &reply));
    Ok(())
}

/// Returns the offsets of UDP header, payload and end.
fn offsets<A>(datagram: &Datagram<A>) -> (usize, usize, usize) {
    (datagram.udp_offset.into(), datagram.payload(), datagram.end.into())
}

/// Returns the change of the checksum by the answer's header.
fn checksum_delta(task: &Header, reply: &Header) -> ChecksumDelta {
    // The code is the high byte of its word. Source, destination and queue length begin at odd
    // offsets, across two words.
    let (old, new) = (u16::from(task.code as u8) << 8, u16::from(reply.code as u8) << 8);
    ChecksumDelta::default()
        .word(old, new)
        .straddling_word(task.src, reply.src)
        .straddling_word(task.dst, reply.dst)
        .straddling_word(task.qlen, reply.qlen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Addresses;
    use crate::target::Target;
    use crate::template::{Task, Template};
    use wedjat::io::memory::FramePool;
    use wedjat::wire::{ipv4, ipv6};

    #[test]
    fn a_task_comes_back_as_its_valid_answer() {
        let pool = FramePool::new(1, 128);
        let (us, peer) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 9]));
        for (extended, v6) in [(false, false), (true, false), (false, true), (true, true)] {
            let dst = if v6 { "fd00::1" } else { "10.0.1.1" };
            let addresses = Addresses::new(dst.parse().unwrap(), None, None).unwrap();
            let target = Target { extended, ..Target::to(us, addresses) };
            let mut template = Template::new(&target.frame(5));
            let mut frame = vec![0; template.frame_len()];
            template.write(&mut frame, Task { seq: 0x12_3456, service_ns: 9, class: 3 });
            let mut buf = pool.frame(&frame).unwrap();
            assert!(reflect(&mut buf, peer));
            let frame = buf.bytes();
            assert_eq!((ether::src(frame), ether::dst(frame)), (peer, us));
            let (src_port, payload) = match addresses {
                Addresses::V4(ends) => {
                    let datagram = udp::parse(frame, false).unwrap();
                    assert_eq!((datagram.src, datagram.dst), (ends.dst, ends.own));
                    assert_eq!(ipv4::ttl(&frame[ether::LEN..]), 64);
                    (datagram.src_port, datagram.payload())
                }
                Addresses::V6(ends) => {
                    let datagram = udp::parse_v6(frame, false).unwrap();
                    assert_eq!((datagram.src, datagram.dst), (ends.dst, ends.own));
                    assert_eq!(ipv6::hop_limit(&frame[ether::LEN..]), 64);
                    (datagram.src_port, datagram.payload())
                }
            };
            assert_eq!(src_port, 1234, "the scheduler's port");
            let header = Header::parse(&frame[payload..]).unwrap();
            assert_eq!((header.code, header.seq), (Code::TaskDoneIdle, 0x3456));
            // An answer is not a task.
            assert!(!reflect(&mut buf, peer));
        }
    }
}
