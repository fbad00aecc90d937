//! The generator as a host on its network: it answers ARP for its address, finds its next hop's, and tells
//! the answers to its tasks from everything else.

use wedjat::reason::DropReason;
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::checksum::Sum;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Code, Extension, Header, NO_MEMBER};
use wedjat::wire::{ipv4, udp};

/// Offset of the UDP header behind an IPv4 header without options.
const UDP: usize = ether::LEN + ipv4::LEN;
/// Bytes of an answer's headers, the task's with its extension.
const HEAD: usize = udp::PAYLOAD + task::LEN + task::EXTENSION_LEN;

/// An end point: one address on one wire.
#[derive(Clone, Debug)]
pub struct Host {
    mac: Mac,
    ip: u32,
    next_hop: u32,
    next_hop_mac: Option<Mac>,
}

/// What a frame meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An answer to a task.
    Answer(Answer),
    /// An ARP question about us: the frame now holds the answer, to be sent.
    ArpAnswer,
    /// The next hop's MAC address.
    NextHop(Mac),
    /// Nothing for us.
    Nothing(DropReason),
}

/// An answer to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Application id and full sequence number, when the answer carries the extension.
    pub id: Option<(u32, u32)>,
    /// Low 16 bits of the sequence number.
    pub seq: u16,
    /// The scheduler gave the task back undone.
    pub refused: bool,
    /// Where in the frame what stands behind the task header begins.
    pub body: u16,
    /// Where it ends.
    pub end: u16,
}

impl Host {
    /// A host at `ip` whose packets all go to `next_hop`.
    #[must_use]
    pub fn new(mac: Mac, ip: u32, next_hop: u32, next_hop_mac: Option<Mac>) -> Self {
        Self { mac, ip, next_hop, next_hop_mac }
    }

    /// Where packets go, once known.
    #[must_use]
    pub fn next_hop_mac(&self) -> Option<Mac> {
        self.next_hop_mac
    }

    /// Writes the question for the next hop's MAC address; `frame` has [`arp::FRAME_LEN`] bytes.
    pub fn ask(&self, frame: &mut [u8]) {
        arp::Packet::request(self.mac, self.ip, self.next_hop).emit(frame, Mac::BROADCAST);
    }

    /// Takes a frame in. `verified`: the device has checked its checksums.
    #[inline]
    pub fn hear(&mut self, frame: &mut [u8], verified: bool) -> Heard {
        if frame.len() < ether::LEN {
            return Heard::Nothing(DropReason::Runt);
        }
        match ether::ether_type(frame) {
            ether::IPV4 => match self.hear_task(frame, verified) {
                Ok(answer) => Heard::Answer(answer),
                Err(reason) => Heard::Nothing(reason),
            },
            ether::ARP => self.hear_arp(frame),
            _ => Heard::Nothing(DropReason::EtherType),
        }
    }

    /// The answer that this frame is, where that shows at fixed offsets and there is nothing to object to: nearly
    /// all are so. [`Host::hear`] says of each of them the same, and of the others what they are.
    #[inline(always)]
    #[must_use]
    pub fn plain_answer(&self, frame: &[u8], verified: bool) -> Option<Answer> {
        const DONE: u8 = task::EXTENSION_BIT | Code::TaskDone as u8;
        const _: () = assert!(Code::TaskDoneIdle as u8 == Code::TaskDone as u8 | 1);
        const MIN: usize = udp::LEN + task::LEN + task::EXTENSION_LEN;
        let head = frame.first_chunk::<HEAD>()?;
        let total_len = usize::from(u16::from_be_bytes(at(head, ether::LEN + 2)));
        let udp_len = usize::from(u16::from_be_bytes(at(head, UDP + 4)));
        let plain = (at(head, 12) == [0x08, 0x00, ipv4::NO_OPTIONS])
            & (u16::from_be_bytes(at(head, ether::LEN + 6)) & 0x3FFF == 0) // no fragment
            & (head[ether::LEN + 9] == ipv4::UDP)
            & (u32::from_be_bytes(at(head, ether::LEN + 16)) == self.ip)
            & (head[udp::PAYLOAD] | 1 == DONE | 1)
            & (u16::from_be_bytes(at(head, udp::PAYLOAD + 3)) != NO_MEMBER)
            & (udp_len >= MIN)
            & (total_len >= ipv4::LEN + udp_len)
            & (total_len <= frame.len() - ether::LEN);
        if !plain || !(verified || checksums_are_valid(head, frame, udp_len)) {
            return None;
        }
        let number = |offset| u32::from_be_bytes(at(head, udp::PAYLOAD + offset));
        Some(Answer {
            id: Some((number(task::LEN), number(task::LEN + 4))),
            seq: u16::from_be_bytes(at(head, udp::PAYLOAD + 9)),
            refused: false,
            body: HEAD as u16,
            end: (UDP + udp_len) as u16,
        })
    }

    #[inline]
    fn hear_task(&self, frame: &[u8], verified: bool) -> Result<Answer, DropReason> {
        let datagram = udp::parse(frame, verified)?;
        if datagram.dst != self.ip {
            return Err(DropReason::OtherAddress);
        }
        let payload = &frame[datagram.payload()..usize::from(datagram.end)];
        let header = Header::parse(payload)?;
        let refused = match header.code {
            Code::TaskDone | Code::TaskDoneIdle => header.src == NO_MEMBER,
            Code::TaskRefused => true,
            // Our own packet back.
            Code::NewTask => true,
            _ => return Err(DropReason::TaskRole),
        };
        let id = header.extended.then(|| {
            let extension = Extension::parse(payload);
            (extension.app, extension.seq32)
        });
        let body = (datagram.payload() + header.len()) as u16;
        Ok(Answer { id, seq: header.seq, refused, body, end: datagram.end })
    }

    fn hear_arp(&mut self, frame: &mut [u8]) -> Heard {
        let packet = match arp::Packet::parse(frame) {
            Ok(packet) => packet,
            Err(reason) => return Heard::Nothing(reason),
        };
        match packet.operation {
            Operation::Request if packet.target == self.ip => {
                packet.answer(self.mac).emit(frame, packet.sender_mac);
                Heard::ArpAnswer
            }
            // An answer, or the word of whoever has the address from now on.
            Operation::Reply | Operation::Request
                if packet.sender == self.next_hop
                    && (packet.operation == Operation::Reply || packet.target == packet.sender) =>
            {
                self.next_hop_mac = Some(packet.sender_mac);
                Heard::NextHop(packet.sender_mac)
            }
            _ => Heard::Nothing(DropReason::ArpOther),
        }
    }
}

/// The bytes at a place in the head.
#[inline(always)]
fn at<const N: usize>(head: &[u8; HEAD], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

/// Both checksums are right; a UDP checksum of 0 is none.
#[inline(always)]
fn checksums_are_valid(head: &[u8; HEAD], frame: &[u8], udp_len: usize) -> bool {
    let word = |offset| u64::from_le_bytes(at(head, ether::LEN + offset));
    let addresses = word(12);
    let rest = u64::from(u32::from_le_bytes(at(head, ether::LEN + 8)));
    let ip = Sum::default().words([word(0), rest, addresses]);
    let none = at(head, UDP + 6) == [0, 0];
    let pseudo =
        Sum::default().words([addresses]).number(u16::from(ipv4::UDP)).number(udp_len as u16);
    ip.is_valid() && (none || pseudo.range(frame, UDP, UDP + udp_len).is_valid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wedjat::wire::auth;
    use wedjat::wire::udp::Flow;

    const US: u32 = 0x0A00_0102;
    const LEAF: u32 = 0x0A00_0101;
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn host() -> Host {
        Host::new(MAC, US, LEAF, None)
    }

    fn reply(code: Code, src: u16, dst_ip: u32) -> Vec<u8> {
        reply_of(code, src, dst_ip, 0)
    }

    fn reply_of(code: Code, src: u16, dst_ip: u32, body: usize) -> Vec<u8> {
        let header = Header { code, src, extended: true, ..Header::new_task(1, 0x1234) };
        let mut frame = vec![0; udp::PAYLOAD + 27 + body];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let extension = Extension { app: 5, seq32: 0x9_1234, ..Extension::default() };
        extension.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: LEAF_MAC,
            dst_mac: MAC,
            src: LEAF,
            dst: dst_ip,
            src_port: 1234,
            dst_port: 40_000,
        };
        flow.emit(&mut frame, 27 + body);
        frame
    }

    #[test]
    fn answers_and_refusals_are_told_apart() {
        let (body, end) = (69, 69);
        let answer = |refused| Answer { id: Some((5, 0x9_1234)), seq: 0x1234, refused, body, end };
        for (code, src, refused) in [
            (Code::TaskDone, 4, false),
            (Code::TaskDoneIdle, 4, false),
            (Code::TaskDone, NO_MEMBER, true),
            (Code::TaskRefused, 1, true),
            (Code::NewTask, 0, true),
        ] {
            let heard = host().hear(&mut reply(code, src, US), false);
            assert_eq!(heard, Heard::Answer(answer(refused)), "{code:?} from {src}");
        }
    }

    /// What a leaf was to believe is nothing to a client: it skips it.
    #[test]
    fn sequence_and_tag_of_an_answer_are_skipped() {
        let mut frame = reply_of(Code::TaskDone, 4, US, auth::LEN + 3);
        frame[udp::PAYLOAD] |= task::AUTHENTICATION_BIT;
        frame[udp::PAYLOAD + 27..].fill(0xEE);
        frame[UDP + 6..UDP + 8].fill(0); // no checksum
        assert_eq!(host().plain_answer(&frame, false), None, "it is none of the many");
        let (body, end) = (85, 88);
        let answer = Answer { id: Some((5, 0x9_1234)), seq: 0x1234, refused: false, body, end };
        assert_eq!(host().hear(&mut frame, false), Heard::Answer(answer));
    }

    #[test]
    fn what_is_not_for_us_has_its_reason() {
        let hear = |mut frame: Vec<u8>| host().hear(&mut frame, false);
        assert_eq!(hear(reply(Code::TaskDone, 4, 7)), Heard::Nothing(DropReason::OtherAddress));
        assert_eq!(hear(reply(Code::KeepAlive, 4, US)), Heard::Nothing(DropReason::TaskRole));
        let mut damaged = reply(Code::TaskDone, 4, US);
        damaged[50] ^= 1;
        assert_eq!(hear(damaged), Heard::Nothing(DropReason::UdpChecksum));
        assert_eq!(hear(vec![0; 60]), Heard::Nothing(DropReason::EtherType));
        assert_eq!(hear(vec![0; 3]), Heard::Nothing(DropReason::Runt));
    }

    #[test]
    fn arp_is_asked_and_answered() {
        let mut host = host();
        let mut question = [0; arp::FRAME_LEN];
        host.ask(&mut question);
        let asked = arp::Packet::parse(&question).unwrap();
        assert_eq!((asked.sender, asked.target), (US, LEAF));
        let mut reply = [0; arp::FRAME_LEN];
        asked.answer(LEAF_MAC).emit(&mut reply, MAC);
        assert_eq!(host.hear(&mut reply, false), Heard::NextHop(LEAF_MAC));
        assert_eq!(host.next_hop_mac(), Some(LEAF_MAC));

        let mut about_us = [0; arp::FRAME_LEN];
        arp::Packet::request(LEAF_MAC, LEAF, US).emit(&mut about_us, Mac::BROADCAST);
        assert_eq!(host.hear(&mut about_us, false), Heard::ArpAnswer);
        let answer = arp::Packet::parse(&about_us).unwrap();
        assert_eq!((answer.sender, answer.sender_mac), (US, MAC));
        assert_eq!(ether::dst(&about_us), LEAF_MAC);

        let mut about_others = [0; arp::FRAME_LEN];
        arp::Packet::request(LEAF_MAC, LEAF, 77).emit(&mut about_others, Mac::BROADCAST);
        assert_eq!(host.hear(&mut about_others, false), Heard::Nothing(DropReason::ArpOther));
    }

    proptest! {
        #[test]
        fn a_plain_answer_is_what_is_heard(
            code in 0..32_u8, src in any::<u16>(), body in 0..40_usize, checksum in any::<bool>(),
            verified in any::<bool>(), changes in proptest::collection::vec((0..110_usize, any::<u8>()), 0..3),
        ) {
            let code = Code::from_bits(code).unwrap_or(Code::TaskDone);
            let mut frame = reply_of(code, src, US, body);
            if !checksum {
                frame[40..42].fill(0);
            }
            let changed = changes.iter().fold(false, |changed, (place, value)| {
                let byte = frame.get_mut(*place);
                changed | byte.is_some_and(|byte| std::mem::replace(byte, *value) != *value)
            });
            let plain = host().plain_answer(&frame, verified);
            if let Some(answer) = plain {
                prop_assert_eq!(host().hear(&mut frame, verified), Heard::Answer(answer));
            }
            let done = matches!(code, Code::TaskDone | Code::TaskDoneIdle) && src != NO_MEMBER;
            prop_assert!(changed || plain.is_some() == done);
        }

        #[test]
        fn random_frames_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), arp in any::<bool>()) {
            if bytes.len() > 13 {
                bytes[12..14].copy_from_slice(&if arp { [8, 6] } else { [8, 0] });
            }
            let _ = host().hear(&mut bytes, false);
            let _ = host().hear(&mut bytes, true);
        }
    }
}
