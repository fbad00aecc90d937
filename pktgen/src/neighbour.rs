//! Neighbour messages of hosts on one wire: ARP (IPv4) and neighbour discovery (IPv6), for generator,
//! reflector and emulated rack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wedjat::io::Buf;
use wedjat::reason::DropReason;
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::{ipv6, ndp};

use crate::address::Addresses;

/// Offset of the payload after an IPv6 header.
const IPV6_PAYLOAD: usize = ether::LEN + ipv6::LEN;

/// A neighbour message: a request for a MAC address, or the announcement of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// ARP.
    Arp(arp::Packet),
    /// Neighbour discovery.
    Nd(ndp::Packet),
}

impl Message {
    /// Returns true for a frame of ARP or neighbour discovery; the contents may still be malformed.
    ///
    /// # Panics
    /// If the frame is shorter than an Ethernet header.
    #[inline]
    #[must_use]
    pub fn is_neighbour_discovery(frame: &[u8]) -> bool {
        match ether::ether_type(frame) {
            ether::ARP => true,
            ether::IPV6 => {
                // The next header, at byte 6 of an IPv6 header, must be ICMPv6.
                let next = frame.get(ether::LEN + 6);
                next == Some(&ipv6::ICMP)
                    && frame.get(IPV6_PAYLOAD..).is_some_and(ndp::is_neighbour_discovery)
            }
            _ => false,
        }
    }

    /// Parses a frame for which [`Message::is_neighbour_discovery`] is true.
    ///
    /// # Errors
    /// Reason why it is malformed.
    pub fn read(frame: &[u8]) -> Result<Self, DropReason> {
        match ether::ether_type(frame) {
            ether::IPV6 => ndp::Packet::parse(frame).map(Self::Nd),
            _ => arp::Packet::parse(frame).map(Self::Arp),
        }
    }

    /// Returns the address for which a request needs the MAC address.
    #[must_use]
    pub fn requested_address(&self) -> Option<IpAddr> {
        match self {
            Self::Arp(packet) if packet.operation == Operation::Request => {
                Some(Ipv4Addr::from_bits(packet.target).into())
            }
            Self::Nd(packet) if packet.operation == ndp::Operation::Solicitation => {
                Some(Ipv6Addr::from_bits(packet.target).into())
            }
            Self::Arp(_) | Self::Nd(_) => None,
        }
    }

    /// Returns the address and MAC address that an answer or an unsolicited message announces.
    #[must_use]
    pub fn announcement(&self) -> Option<(IpAddr, Mac)> {
        match self {
            Self::Arp(packet) => {
                // A gratuitous ARP names its sender as the target.
                let is_announcement =
                    packet.operation == Operation::Reply || packet.target == packet.sender;
                is_announcement
                    .then(|| (Ipv4Addr::from_bits(packet.sender).into(), packet.sender_mac))
            }
            Self::Nd(packet) if packet.operation == ndp::Operation::Advertisement => {
                packet.mac.map(|mac| (Ipv6Addr::from_bits(packet.target).into(), mac))
            }
            Self::Nd(_) => None,
        }
    }

    /// Returns the drop reason for a message that the host does not answer and does not need.
    #[must_use]
    pub fn reason(&self) -> DropReason {
        match self {
            Self::Arp(_) => DropReason::ArpOther,
            Self::Nd(_) => DropReason::NdOther,
        }
    }

    /// Turns the frame of this request into its answer, from the host with MAC address `mac`. Returns false
    /// if the buffer is too small.
    #[must_use]
    pub fn answer<B: Buf>(&self, mac: Mac, buf: &mut B) -> bool {
        let requester = ether::src(buf.bytes());
        match self {
            Self::Arp(packet) => packet.answer(mac).emit(buf.bytes_mut(), packet.sender_mac),
            Self::Nd(packet) => {
                // A request of duplicate address detection names no MAC address, so it is shorter than its
                // answer.
                if !buf.resize(ndp::FRAME_LEN) {
                    return false;
                }
                let (answer, to) = packet.answer(mac, requester);
                answer.emit(buf.bytes_mut(), to, false);
            }
        }
        true
    }
}

/// Turns a request for one of our addresses into the answer of the host with MAC address `mac`; `is_ours`
/// returns true for our addresses.
///
/// # Errors
/// Reason why there is no answer.
pub fn answer<B: Buf>(
    buf: &mut B,
    mac: Mac,
    is_ours: impl Fn(IpAddr) -> bool,
) -> Result<(), DropReason> {
    let message = Message::read(buf.bytes())?;
    let is_answered = message.requested_address().is_some_and(is_ours) && message.answer(mac, buf);
    if is_answered { Ok(()) } else { Err(message.reason()) }
}

/// Returns the length of a request for the next hop's MAC address.
#[must_use]
pub fn request_len(addresses: &Addresses) -> usize {
    match addresses {
        Addresses::V4(_) => arp::FRAME_LEN,
        Addresses::V6(_) => ndp::FRAME_LEN,
    }
}

/// Writes the request for the next hop's MAC address, from the host with address `mac`, into a frame of
/// [`request_len`] bytes.
pub fn write_request(addresses: &Addresses, mac: Mac, frame: &mut [u8]) {
    match addresses {
        Addresses::V4(ends) => {
            arp::Packet::request(mac, ends.own, ends.next_hop).emit(frame, Mac::BROADCAST);
        }
        Addresses::V6(ends) => {
            let (request, to) = ndp::Packet::question(mac, ends.own, ends.next_hop, None);
            request.emit(frame, to, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wedjat::io::memory::FramePool;
    use wedjat::wire::checksum::PartialChecksum;

    /// MAC address of the host that asks.
    const REQUESTER: Mac = Mac([2, 0, 0, 0, 0, 9]);
    /// MAC address of the host that answers.
    const OWNER: Mac = Mac([2, 0, 0, 0, 0, 1]);

    /// Returns the addresses of a requester at `own` with the next hop `dst`.
    fn addresses(dst: &str, own: &str) -> Addresses {
        Addresses::new(dst.parse().unwrap(), Some(own.parse().unwrap()), None).unwrap()
    }

    #[test]
    fn only_own_address_is_answered() {
        let pool = FramePool::new(4, 128);
        for (requested, requester) in [("10.0.1.1", "10.0.1.100"), ("fd00::1:2", "fd00::1:100")] {
            let addresses = addresses(requested, requester);
            let mut request = vec![0; request_len(&addresses)];
            write_request(&addresses, REQUESTER, &mut request);
            let mut buf = pool.frame(&request).unwrap();
            assert!(Message::is_neighbour_discovery(buf.bytes()));
            let request = Message::read(buf.bytes()).unwrap();
            assert_eq!(
                (request.requested_address(), request.announcement()),
                (Some(addresses.dst()), None)
            );
            assert_eq!(answer(&mut buf, OWNER, |_| false), Err(request.reason()));
            assert_eq!(answer(&mut buf, OWNER, |ip| ip == addresses.dst()), Ok(()));
            assert_eq!((ether::src(buf.bytes()), ether::dst(buf.bytes())), (OWNER, REQUESTER));
            let reply = Message::read(buf.bytes()).unwrap();
            assert_eq!(
                (reply.requested_address(), reply.announcement()),
                (None, Some((addresses.dst(), OWNER)))
            );
            assert_eq!(answer(&mut buf, OWNER, |_| true), Err(request.reason()), "not a request");
        }
    }

    /// Returns a request of duplicate address detection: without source address and without the sender's MAC
    /// address.
    fn duplicate_address_request(target: u128) -> Vec<u8> {
        let mut frame = vec![0; ndp::FRAME_LEN];
        let (question, to) = ndp::Packet::question(REQUESTER, 0, target, None);
        question.emit(&mut frame, to, false);
        // Removes the option with the MAC address, and corrects length (byte 18) and checksum (byte 56).
        frame.truncate(ndp::FRAME_LEN - 8);
        let len = frame.len() - IPV6_PAYLOAD;
        frame[18..20].copy_from_slice(&(len as u16).to_be_bytes());
        frame[56..58].fill(0);
        let sum: PartialChecksum =
            ipv6::pseudo_header(&frame[ether::LEN..], ipv6::ICMP, len as u16);
        let checksum = sum.bytes(&frame[IPV6_PAYLOAD..]).checksum();
        frame[56..58].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    #[test]
    fn unspecified_source_is_answered_by_multicast() {
        let target = 0xFD00 << 112 | 1;
        let frame = duplicate_address_request(target);
        let mut buf = FramePool::new(1, 128).frame(&frame).unwrap();
        assert_eq!(answer(&mut buf, OWNER, |ip| ip == Ipv6Addr::from_bits(target)), Ok(()));
        assert_eq!(buf.bytes().len(), ndp::FRAME_LEN);
        assert_eq!(ether::dst(buf.bytes()), ipv6::group_mac(ipv6::ALL_NODES));
        let reply = Message::read(buf.bytes()).unwrap().announcement();
        assert_eq!(reply, Some((Ipv6Addr::from_bits(target).into(), OWNER)));
        // No answer is made if it does not fit.
        let mut buf = FramePool::new(1, 80).frame(&frame).unwrap();
        assert_eq!(answer(&mut buf, OWNER, |_| true), Err(DropReason::NdOther));
    }

    #[test]
    fn other_messages_are_ignored() {
        // Byte 54 is the type of an ICMPv6 message.
        let mut echo = duplicate_address_request(1 << 64);
        echo[54] = 128; // an echo request
        assert!(!Message::is_neighbour_discovery(&echo));
        assert!(
            !Message::is_neighbour_discovery(&echo[..54])
                && !Message::is_neighbour_discovery(&echo[..14])
        );
        assert!(!Message::is_neighbour_discovery(&[0; 60]));
    }

    proptest! {
        #[test]
        fn random_frames_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 14..130), v6: bool, typed: bool) {
            bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xDD] } else { &[8, 6] });
            if v6 && typed && bytes.len() > 54 {
                (bytes[20], bytes[54]) = (ipv6::ICMP, 135); // a neighbour solicitation
            }
            let mut buf = FramePool::new(1, 130).frame(&bytes).unwrap();
            if Message::is_neighbour_discovery(&bytes) {
                let _ = answer(&mut buf, OWNER, |_| true);
            }
        }
    }
}
