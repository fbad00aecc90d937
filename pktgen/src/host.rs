//! The generator as a host on its network: answers requests for its MAC address, resolves its next hop, and separates
//! answers to its tasks from other packets. The task header of an answer may have an extension, which holds the
//! application id and the full sequence number.

use wedjat::io::Buf;
use wedjat::reason::DropReason;
use wedjat::wire::checksum::PartialChecksum;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Code, Extension, Header, NO_MEMBER};
use wedjat::wire::udp::{self, Datagram};
use wedjat::wire::{ipv4, ipv6};

use crate::address::Addresses;
use crate::neighbour::{self, Message};

/// Offset of the UDP header after an IPv4 header without options.
const UDP: usize = ether::LEN + ipv4::LEN;
/// Bytes of an answer's headers, including the task header with its extension.
const HEAD: usize = udp::PAYLOAD + TASK;
/// Offset of the UDP header after an IPv6 header.
const UDP_V6: usize = ether::LEN + ipv6::LEN;
/// Bytes of an answer's headers over IPv6.
const HEAD_V6: usize = udp::PAYLOAD_V6 + TASK;
/// Bytes of the task header with its extension.
const TASK: usize = task::LEN + task::EXTENSION_LEN;
/// Shortest datagram of an answer with an extension.
const UDP_LEN_MIN: usize = udp::LEN + TASK;

/// A host with one address on one wire. Classifies received frames.
#[derive(Clone, Debug)]
pub struct Host {
    /// MAC address of this host.
    mac: Mac,
    /// IP addresses of this host, of the scheduler and of the next hop.
    addresses: Addresses,
    /// MAC address of the next hop, once known.
    next_hop_mac: Option<Mac>,
}

/// Meaning of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// An answer to a task.
    Answer(Answer),
    /// A request for our MAC address. The buffer now holds the answer to send.
    NeighbourAnswer,
    /// An announcement of the next hop's MAC address, which the host has stored.
    NextHop(Mac),
    /// Any other frame, with the reason why the host ignores it.
    Nothing(DropReason),
}

/// An answer to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Application id and full sequence number, if the answer has the extension.
    pub id: Option<(u32, u32)>,
    /// Low 16 bits of the sequence number.
    pub seq: u16,
    /// True if the scheduler returned the task undone.
    pub refused: bool,
    /// Worker that sent the answer; meaningless if `refused`.
    pub worker: u16,
    /// Offset in the frame of the bytes after the task header.
    pub body: u16,
    /// Offset of the end of those bytes.
    pub end: u16,
}

impl Host {
    /// Creates a host that sends all packets to the next hop in `addresses`.
    #[must_use]
    pub fn new(mac: Mac, addresses: Addresses, next_hop_mac: Option<Mac>) -> Self {
        Self { mac, addresses, next_hop_mac }
    }

    /// Returns the next hop's MAC address, once resolved.
    #[must_use]
    pub fn next_hop_mac(&self) -> Option<Mac> {
        self.next_hop_mac
    }

    /// Writes the request for the next hop's MAC address. Returns false if the buffer is too small.
    #[must_use]
    pub fn write_mac_request<B: Buf>(&self, buf: &mut B) -> bool {
        let fits = buf.resize(neighbour::request_len(&self.addresses));
        if fits {
            neighbour::write_request(&self.addresses, self.mac, buf.bytes_mut());
        }
        fits
    }

    /// Processes a frame. `verified` is true if the device has checked the checksums of IP and UDP.
    #[inline]
    pub fn receive<B: Buf>(&mut self, buf: &mut B, verified: bool) -> FrameKind {
        let frame = buf.bytes();
        if frame.len() < ether::LEN {
            return FrameKind::Nothing(DropReason::Runt);
        }
        if Message::is_neighbour_discovery(frame) {
            return self.receive_neighbour(buf);
        }
        match self.receive_task(frame, verified) {
            Ok(answer) => FrameKind::Answer(answer),
            Err(reason) => FrameKind::Nothing(reason),
        }
    }

    /// Fast path: parses the common form of an answer at fixed offsets. Accepts only answers that [`Host::receive`]
    /// accepts with the same result. Returns `None` for all other frames, which `receive` handles.
    #[inline(always)]
    #[must_use]
    pub fn plain_answer(&self, frame: &[u8], verified: bool) -> Option<Answer> {
        match self.addresses {
            Addresses::V4(ends) => plain_answer_v4(ends.own, frame, verified),
            Addresses::V6(ends) => plain_answer_v6(ends.own, frame, verified),
        }
    }

    /// Parses an answer to a task.
    #[inline]
    fn receive_task(&self, frame: &[u8], verified: bool) -> Result<Answer, DropReason> {
        match (ether::ether_type(frame), self.addresses) {
            (ether::IPV4, Addresses::V4(ends)) => {
                answer_of(frame, &udp::parse(frame, verified)?, ends.own)
            }
            (ether::IPV6, Addresses::V6(ends)) => {
                answer_of(frame, &udp::parse_v6(frame, verified)?, ends.own)
            }
            _ => Err(DropReason::EtherType),
        }
    }

    /// Processes a neighbour message: answers a request for our address, or learns the next hop's MAC
    /// address.
    #[cold]
    #[inline(never)]
    fn receive_neighbour<B: Buf>(&mut self, buf: &mut B) -> FrameKind {
        let message = match Message::read(buf.bytes()) {
            Ok(message) => message,
            Err(reason) => return FrameKind::Nothing(reason),
        };
        if message.requested_address() == Some(self.addresses.own())
            && message.answer(self.mac, buf)
        {
            return FrameKind::NeighbourAnswer;
        }
        match message.announcement() {
            Some((address, mac)) if address == self.addresses.next_hop() => {
                self.next_hop_mac = Some(mac);
                FrameKind::NextHop(mac)
            }
            _ => FrameKind::Nothing(message.reason()),
        }
    }
}

/// Parses the answer in a datagram, if it is addressed to this host.
#[inline]
fn answer_of<A: PartialEq>(
    frame: &[u8],
    datagram: &Datagram<A>,
    own: A,
) -> Result<Answer, DropReason> {
    if datagram.dst != own {
        return Err(DropReason::OtherAddress);
    }
    let payload = &frame[datagram.payload()..usize::from(datagram.end)];
    let header = Header::parse(payload)?;
    let refused = match header.code {
        // A reply from no worker means that no worker did the task.
        Code::TaskDone | Code::TaskDoneIdle => header.src == NO_MEMBER,
        Code::TaskRefused => true,
        // Our own task, returned.
        Code::NewTask => true,
        _ => return Err(DropReason::TaskRole),
    };
    let id = header.extended.then(|| {
        let extension = Extension::parse(payload);
        (extension.app, extension.seq32)
    });
    let body = (datagram.payload() + header.len()) as u16;
    Ok(Answer { id, seq: header.seq, refused, worker: header.src, body, end: datagram.end })
}

/// Parses the common form of an answer over IPv4. Uses `&` instead of `&&`, so that the tests become one
/// branch. Fields of the IPv4 header by offset: 2 total length, 6 fragment, 9 protocol, 16 destination.
#[inline(always)]
fn plain_answer_v4(own: u32, frame: &[u8], verified: bool) -> Option<Answer> {
    let head = frame.first_chunk::<HEAD>()?;
    let total_len = usize::from(u16::from_be_bytes(at(head, ether::LEN + 2)));
    let udp_len = usize::from(u16::from_be_bytes(at(head, UDP + 4)));
    // Bytes 12 to 14 are the EtherType of IPv4, and version and header length.
    let plain = (at(head, 12) == [0x08, 0x00, ipv4::NO_OPTIONS])
        & (u16::from_be_bytes(at(head, ether::LEN + 6)) & 0x3FFF == 0) // not a fragment
        & (head[ether::LEN + 9] == ipv4::UDP)
        & (u32::from_be_bytes(at(head, ether::LEN + 16)) == own)
        & is_done(head, udp::PAYLOAD)
        & (udp_len >= UDP_LEN_MIN)
        & (total_len >= ipv4::LEN + udp_len)
        & (total_len <= frame.len() - ether::LEN);
    let is_plain = plain && (verified || checksums_are_valid(head, frame, udp_len));
    is_plain.then(|| done(head, udp::PAYLOAD, (UDP + udp_len) as u16))
}

/// Parses the common form of an answer over IPv6. It is never inlined, so that IPv4 answers cost no
/// additional instructions. Fields of the IPv6 header by offset: 0 version, 4 payload length, 6 next header, 24
/// destination. UDP's length is at 4, its checksum at 6.
#[inline(never)]
fn plain_answer_v6(own: u128, frame: &[u8], verified: bool) -> Option<Answer> {
    let head = frame.first_chunk::<HEAD_V6>()?;
    let payload_len = usize::from(u16::from_be_bytes(at(head, ether::LEN + 4)));
    let udp_len = usize::from(u16::from_be_bytes(at(head, UDP_V6 + 4)));
    let plain = (at(head, 12) == [0x86, 0xDD])
        & (head[ether::LEN] >> 4 == 6)
        & (head[ether::LEN + 6] == ipv6::UDP)
        & (u128::from_be_bytes(at(head, ether::LEN + 24)) == own)
        & (at(head, UDP_V6 + 6) != [0, 0])
        & is_done(head, udp::PAYLOAD_V6)
        & (udp_len >= UDP_LEN_MIN)
        & (payload_len >= udp_len)
        & (payload_len <= frame.len() - UDP_V6);
    let is_plain = plain && (verified || checksum_v6_is_valid(head, frame, udp_len));
    is_plain.then(|| done(head, udp::PAYLOAD_V6, (UDP_V6 + udp_len) as u16))
}

/// Returns true if the payload at offset `payload` is a worker's answer with an extension and no other flag. Byte 0
/// of a task header has code and flags, bytes 3 and 4 are the worker. The two codes differ only in the lowest bit.
#[inline(always)]
fn is_done<const LEN: usize>(head: &[u8; LEN], payload: usize) -> bool {
    const DONE: u8 = task::EXTENSION_BIT | Code::TaskDone as u8;
    const _: () = assert!(Code::TaskDoneIdle as u8 == Code::TaskDone as u8 | 1);
    (head[payload] | 1 == DONE | 1) & (u16::from_be_bytes(at(head, payload + 3)) != NO_MEMBER)
}

/// Parses an answer for which [`is_done`] is true, in a datagram that ends at `end`. Bytes 9 and 10 of a task
/// header are the sequence number. The extension begins with application id and full sequence number.
#[inline(always)]
fn done<const LEN: usize>(head: &[u8; LEN], payload: usize, end: u16) -> Answer {
    let number = |offset| u32::from_be_bytes(at(head, payload + offset));
    Answer {
        id: Some((number(task::LEN), number(task::LEN + 4))),
        seq: u16::from_be_bytes(at(head, payload + 9)),
        refused: false,
        worker: u16::from_be_bytes(at(head, payload + 3)),
        body: (payload + TASK) as u16,
        end,
    }
}

/// Returns the bytes at an offset in the headers. The array's fixed length lets the compiler drop the bounds checks.
#[inline(always)]
fn at<const N: usize, const LEN: usize>(head: &[u8; LEN], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[offset..offset + N]);
    bytes
}

/// Checks the checksums of IPv4 header and UDP; a UDP checksum of 0 means none. The sum depends on the byte
/// order only by a final swap, so the words are read in memory order.
#[inline(always)]
fn checksums_are_valid(head: &[u8; HEAD], frame: &[u8], udp_len: usize) -> bool {
    let word = |offset| u64::from_le_bytes(at(head, ether::LEN + offset));
    let addresses = word(12);
    let rest = u64::from(u32::from_le_bytes(at(head, ether::LEN + 8)));
    let ip = PartialChecksum::default().words([word(0), rest, addresses]);
    let has_none = at(head, UDP + 6) == [0, 0];
    let pseudo = PartialChecksum::default()
        .words([addresses])
        .number(u16::from(ipv4::UDP))
        .number(udp_len as u16);
    ip.is_valid() && (has_none || pseudo.range(frame, UDP, UDP + udp_len).is_valid())
}

/// Checks the UDP checksum over IPv6, which also covers both addresses, the protocol and the length.
#[inline(always)]
fn checksum_v6_is_valid(head: &[u8; HEAD_V6], frame: &[u8], udp_len: usize) -> bool {
    let word = |offset| u64::from_le_bytes(at(head, ether::LEN + offset));
    let addresses = PartialChecksum::default().words([word(8), word(16), word(24), word(32)]);
    let pseudo = addresses.number(u16::from(ipv6::UDP)).number(udp_len as u16);
    pseudo.range(frame, UDP_V6, UDP_V6 + udp_len).is_valid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{AnyFlow, Endpoints};
    use proptest::prelude::*;
    use wedjat::io::memory::FramePool;
    use wedjat::wire::arp;
    use wedjat::wire::auth;
    use wedjat::wire::ndp;
    use wedjat::wire::udp::Flow;

    /// MAC address of the host.
    const US: Mac = Mac([2, 0, 0, 0, 0, 1]);
    /// MAC address of the scheduler, a leaf, which is also the next hop.
    const LEAF: Mac = Mac([2, 0, 0, 0, 0, 9]);
    /// Addresses of the host and of the leaf over IPv4, and below over IPv6.
    const V4: Addresses =
        Addresses::V4(Endpoints { own: 0x0A00_0102, dst: 0x0A00_0101, next_hop: 0x0A00_0101 });
    const V6: Addresses = {
        const LEAF_IP: u128 = 0xFD00 << 112 | 1;
        Addresses::V6(Endpoints { own: LEAF_IP + 1, dst: LEAF_IP, next_hop: LEAF_IP })
    };

    /// Creates a host that does not know its next hop's MAC address.
    fn host(addresses: Addresses) -> Host {
        Host::new(US, addresses, None)
    }

    /// Passes a frame to the host, in a buffer.
    fn kind_of(host: &mut Host, frame: &[u8], verified: bool) -> FrameKind {
        let pool = FramePool::new(1, 256);
        host.receive(&mut pool.frame(frame).unwrap(), verified)
    }

    /// Returns a flow from the leaf to the host with these addresses.
    fn flow(addresses: Addresses) -> AnyFlow {
        fn to_own<A>(Endpoints { own, dst, .. }: Endpoints<A>) -> Flow<A> {
            let (src_mac, dst_mac) = (LEAF, US);
            Flow { src_mac, dst_mac, src: dst, dst: own, src_port: 1234, dst_port: 40_000 }
        }
        match addresses {
            Addresses::V4(ends) => AnyFlow::V4(to_own(ends)),
            Addresses::V6(ends) => AnyFlow::V6(to_own(ends)),
        }
    }

    /// Returns the leaf's reply of kind `code` from worker `src`, without bytes after the task header.
    fn reply(code: Code, src: u16, to: Addresses) -> Vec<u8> {
        reply_of(code, src, to, 0)
    }

    /// Like [`reply`], with `body` zero bytes after the task header.
    fn reply_of(code: Code, src: u16, to: Addresses, body: usize) -> Vec<u8> {
        let flow = flow(to);
        let header = Header { code, src, extended: true, ..Header::new_task(1, 0x1234) };
        let mut frame = vec![0; flow.payload() + TASK + body];
        header.emit(&mut frame[flow.payload()..]);
        let extension = Extension { app: 5, seq32: 0x9_1234, ..Extension::default() };
        extension.emit(&mut frame[flow.payload()..]);
        flow.emit(1234, &mut frame, TASK + body);
        frame
    }

    #[test]
    fn answers_and_refusals_are_distinguished() {
        // The task header of 27 bytes ends at these offsets, and with it the frame.
        for (to, body) in [(V4, 69), (V6, 89)] {
            let end = body;
            for (code, src, refused) in [
                (Code::TaskDone, 4, false),
                (Code::TaskDoneIdle, 4, false),
                (Code::TaskDone, NO_MEMBER, true),
                (Code::TaskRefused, 1, true),
                (Code::NewTask, 0, true),
            ] {
                let id = Some((5, 0x9_1234));
                let answer = Answer { id, seq: 0x1234, refused, worker: src, body, end };
                let kind = kind_of(&mut host(to), &reply(code, src, to), false);
                assert_eq!(kind, FrameKind::Answer(answer), "{code:?} from {src}");
            }
        }
    }

    /// Sequence and tag of a reply are for the leaf; a client skips them.
    // promise: trust.3
    #[test]
    fn sequence_and_tag_of_an_answer_are_skipped() {
        let mut frame = reply_of(Code::TaskDone, 4, V4, auth::LEN + 3);
        frame[udp::PAYLOAD] |= task::AUTHENTICATION_BIT;
        frame[udp::PAYLOAD + 27..].fill(0xEE);
        frame[UDP + 6..UDP + 8].fill(0); // no checksum
        assert_eq!(host(V4).plain_answer(&frame, false), None, "not a plain answer");
        // The task header ends at 69. Sequence and tag have 16 bytes, and 3 follow.
        let (body, end) = (85, 88);
        let id = Some((5, 0x9_1234));
        let answer = Answer { id, seq: 0x1234, refused: false, worker: 4, body, end };
        assert_eq!(kind_of(&mut host(V4), &frame, false), FrameKind::Answer(answer));
    }

    #[test]
    fn foreign_frame_has_its_reason() {
        let other = |addresses| match addresses {
            Addresses::V4(ends) => Addresses::V4(Endpoints { own: 7, ..ends }),
            Addresses::V6(ends) => Addresses::V6(Endpoints { own: 7, ..ends }),
        };
        for (us, them) in [(V4, V6), (V6, V4)] {
            let kind_of = |frame: &[u8]| kind_of(&mut host(us), frame, false);
            let to_another = reply(Code::TaskDone, 4, other(us));
            assert_eq!(kind_of(&to_another), FrameKind::Nothing(DropReason::OtherAddress));
            let no_answer = reply(Code::KeepAlive, 4, us);
            assert_eq!(kind_of(&no_answer), FrameKind::Nothing(DropReason::TaskRole));
            let mut damaged = reply(Code::TaskDone, 4, us);
            let at = damaged.len() - 19; // a byte of the task header
            damaged[at] ^= 1;
            assert_eq!(kind_of(&damaged), FrameKind::Nothing(DropReason::UdpChecksum));
            let of_the_other_family = reply(Code::TaskDone, 4, them);
            assert_eq!(kind_of(&of_the_other_family), FrameKind::Nothing(DropReason::EtherType));
            assert_eq!(kind_of(&[0; 60]), FrameKind::Nothing(DropReason::EtherType));
            assert_eq!(kind_of(&[0; 3]), FrameKind::Nothing(DropReason::Runt));
        }
    }

    #[test]
    fn damaged_ipv6_frame_has_its_reason() {
        // Receives a reply with these bytes at this offset.
        let with = |at: usize, bytes: &[u8]| {
            let mut frame = reply(Code::TaskDone, 4, V6);
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(host(V6).plain_answer(&frame, true), None);
            kind_of(&mut host(V6), &frame, true)
        };
        // The fields in turn: checksum and length of UDP; payload length, version and next header of IPv6. Next header
        // 44 is a fragment, 6 is TCP.
        for (at, bytes, reason) in [
            (UDP_V6 + 6, &[0, 0][..], DropReason::UdpNoChecksum),
            (UDP_V6 + 4, &[0, 7], DropReason::UdpLength),
            (UDP_V6 + 4, &[0, 90], DropReason::UdpLength),
            (ether::LEN + 4, &[0, 0], DropReason::Ipv6Header),
            (ether::LEN + 4, &[9, 0], DropReason::Ipv6Header),
            (ether::LEN, &[0x45], DropReason::Ipv6Header),
            (ether::LEN + 6, &[44], DropReason::Ipv6Extension),
            (ether::LEN + 6, &[6], DropReason::NotUdp),
            (ether::LEN + 6, &[ipv6::ICMP], DropReason::NotUdp),
        ] {
            assert_eq!(with(at, bytes), FrameKind::Nothing(reason), "byte {at}");
        }
        let mut request = vec![0; ndp::FRAME_LEN];
        neighbour::write_request(&V6, LEAF, &mut request);
        request[21] = 64; // forwarded by a router
        assert_eq!(
            kind_of(&mut host(V6), &request, false),
            FrameKind::Nothing(DropReason::NdMalformed)
        );
    }

    // promise: measurement.1
    #[test]
    fn neighbours_are_asked_and_answered() {
        for (us, reason) in [(V4, DropReason::ArpOther), (V6, DropReason::NdOther)] {
            let pool = FramePool::new(1, 128);
            let mut host = host(us);
            let mut buf = pool.frame(&[]).unwrap();
            assert!(host.write_mac_request(&mut buf));
            assert_eq!(
                Message::read(buf.bytes()).unwrap().requested_address(),
                Some(us.next_hop())
            );
            assert_eq!(neighbour::answer(&mut buf, LEAF, |ip| ip == us.next_hop()), Ok(()));
            assert_eq!(host.receive(&mut buf, false), FrameKind::NextHop(LEAF));
            assert_eq!(host.next_hop_mac(), Some(LEAF));

            // The leaf asks for the address `own`.
            let requester = |own| match us {
                Addresses::V4(ends) => {
                    Addresses::V4(Endpoints { own: ends.dst, next_hop: own as u32, ..ends })
                }
                Addresses::V6(ends) => {
                    Addresses::V6(Endpoints { own: ends.dst, next_hop: own, ..ends })
                }
            };
            let own = match us {
                Addresses::V4(ends) => u128::from(ends.own),
                Addresses::V6(ends) => ends.own,
            };
            let leaf = Host::new(LEAF, requester(own), None);
            assert!(leaf.write_mac_request(&mut buf));
            assert_eq!(host.receive(&mut buf, false), FrameKind::NeighbourAnswer);
            assert_eq!((ether::src(buf.bytes()), ether::dst(buf.bytes())), (US, LEAF));
            let answer = Message::read(buf.bytes()).unwrap().announcement();
            assert_eq!(answer, Some((us.own(), US)));

            // A request for another address.
            let leaf = Host::new(LEAF, requester(own + 75), None);
            assert!(leaf.write_mac_request(&mut buf));
            assert_eq!(host.receive(&mut buf, false), FrameKind::Nothing(reason));
        }
        // A request over IPv6 does not fit into a buffer for ARP.
        assert!(
            !host(V6).write_mac_request(&mut FramePool::new(1, arp::FRAME_LEN).frame(&[]).unwrap())
        );
    }

    proptest! {
        /// The fast path agrees with [`Host::receive`], and accepts every undamaged answer of a worker.
        #[test]
        fn plain_answer_is_parsed(
            code in 0..32_u8, src in any::<u16>(), body in 0..40_usize, checksum in any::<bool>(), v6: bool,
            verified in any::<bool>(), changes in proptest::collection::vec((0..130_usize, any::<u8>()), 0..3),
        ) {
            let us = if v6 { V6 } else { V4 };
            let code = Code::from_bits(code).unwrap_or(Code::TaskDone);
            let mut frame = reply_of(code, src, us, body);
            if !checksum && !v6 {
                frame[40..42].fill(0); // no UDP checksum
            }
            let changed = changes.iter().fold(false, |changed, (place, value)| {
                let byte = frame.get_mut(*place);
                changed | byte.is_some_and(|byte| std::mem::replace(byte, *value) != *value)
            });
            let plain = host(us).plain_answer(&frame, verified);
            if let Some(answer) = plain {
                prop_assert_eq!(kind_of(&mut host(us), &frame, verified), FrameKind::Answer(answer));
            }
            let done = matches!(code, Code::TaskDone | Code::TaskDoneIdle) && src != NO_MEMBER;
            prop_assert!(changed || plain.is_some() == done);
        }

        #[test]
        fn random_frames_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..3_usize) {
            if bytes.len() > 13 {
                bytes[12..14].copy_from_slice(&[[8, 6], [8, 0], [0x86, 0xDD]][kind]);
            }
            for us in [V4, V6] {
                for verified in [false, true] {
                    let _ = host(us).plain_answer(&bytes, verified);
                    let _ = kind_of(&mut host(us), &bytes, verified);
                }
            }
        }
    }
}
