//! What hosts on one wire say of their addresses, by ARP (IPv4) or neighbour discovery (IPv6), as generator, reflector and emulated
//! rack speak it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wedjat::io::Buf;
use wedjat::reason::DropReason;
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::{ipv6, ndp};

use crate::address::Addresses;

/// Offset of what is behind an IPv6 header.
const BEHIND_IPV6: usize = ether::LEN + ipv6::LEN;

/// A question for the owner of an address, or the word of who has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// ARP.
    Arp(arp::Packet),
    /// Neighbour discovery.
    Nd(ndp::Packet),
}

impl Message {
    /// The frame, of at least an Ethernet header, is ARP or neighbour discovery. What it says may still be broken.
    #[inline]
    #[must_use]
    pub fn is_one(frame: &[u8]) -> bool {
        match ether::ether_type(frame) {
            ether::ARP => true,
            ether::IPV6 => {
                let next = frame.get(ether::LEN + 6);
                next == Some(&ipv6::ICMP) && frame.get(BEHIND_IPV6..).is_some_and(ndp::is_one)
            }
            _ => false,
        }
    }

    /// Reads such a frame.
    ///
    /// # Errors
    /// Why it says nothing.
    pub fn read(frame: &[u8]) -> Result<Self, DropReason> {
        match ether::ether_type(frame) {
            ether::IPV6 => ndp::Packet::parse(frame).map(Self::Nd),
            _ => arp::Packet::parse(frame).map(Self::Arp),
        }
    }

    /// The address whose owner it asks for.
    #[must_use]
    pub fn asks_for(&self) -> Option<IpAddr> {
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

    /// Who has an address: an answer, or the word of whoever has it from now on.
    #[must_use]
    pub fn tells(&self) -> Option<(IpAddr, Mac)> {
        match self {
            Self::Arp(packet) => {
                let is_told =
                    packet.operation == Operation::Reply || packet.target == packet.sender;
                is_told.then(|| (Ipv4Addr::from_bits(packet.sender).into(), packet.sender_mac))
            }
            Self::Nd(packet) if packet.operation == ndp::Operation::Advertisement => {
                packet.mac.map(|mac| (Ipv6Addr::from_bits(packet.target).into(), mac))
            }
            Self::Nd(_) => None,
        }
    }

    /// What it is to a host that neither owns the address nor wants to know.
    #[must_use]
    pub fn reason(&self) -> DropReason {
        match self {
            Self::Arp(_) => DropReason::ArpOther,
            Self::Nd(_) => DropReason::NdOther,
        }
    }

    /// Makes of the frame of this question its answer, by the host at `mac`. False when the buffer has no room for it.
    #[must_use]
    pub fn answer<B: Buf>(&self, mac: Mac, buf: &mut B) -> bool {
        let asker = ether::src(buf.bytes());
        match self {
            Self::Arp(packet) => packet.answer(mac).emit(buf.bytes_mut(), packet.sender_mac),
            Self::Nd(packet) => {
                // Whoever is still to learn whether it may have its address asks in fewer bytes.
                if !buf.resize(ndp::FRAME_LEN) {
                    return false;
                }
                let (answer, to) = packet.answer(mac, asker);
                answer.emit(buf.bytes_mut(), to, false);
            }
        }
        true
    }
}

/// Makes of a frame that asks for an address that is `ours` the answer by the host at `mac`.
///
/// # Errors
/// Why there is nothing to answer.
pub fn answer<B: Buf>(
    buf: &mut B,
    mac: Mac,
    ours: impl Fn(IpAddr) -> bool,
) -> Result<(), DropReason> {
    let message = Message::read(buf.bytes())?;
    let is_answered = message.asks_for().is_some_and(ours) && message.answer(mac, buf);
    if is_answered { Ok(()) } else { Err(message.reason()) }
}

/// Bytes of the question for the next hop among these addresses.
#[must_use]
pub fn question_len(addresses: &Addresses) -> usize {
    match addresses {
        Addresses::V4(_) => arp::FRAME_LEN,
        Addresses::V6(_) => ndp::FRAME_LEN,
    }
}

/// Writes the question for the next hop's MAC address, by the host at `mac`, into a frame of [`question_len`] bytes.
pub fn ask(addresses: &Addresses, mac: Mac, frame: &mut [u8]) {
    match addresses {
        Addresses::V4(ends) => {
            arp::Packet::request(mac, ends.own, ends.next_hop).emit(frame, Mac::BROADCAST);
        }
        Addresses::V6(ends) => {
            let (question, to) = ndp::Packet::question(mac, ends.own, ends.next_hop, None);
            question.emit(frame, to, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wedjat::io::memory::FramePool;
    use wedjat::wire::checksum::Sum;

    const ASKER: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const OWNER: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn addresses(dst: &str, own: &str) -> Addresses {
        Addresses::new(dst.parse().unwrap(), Some(own.parse().unwrap()), None).unwrap()
    }

    #[test]
    fn questions_are_answered_for_who_is_asked_for_alone() {
        let pool = FramePool::new(4, 128);
        for (asked, asker) in [("10.0.1.1", "10.0.1.100"), ("fd00::1:2", "fd00::1:100")] {
            let addresses = addresses(asked, asker);
            let mut question = vec![0; question_len(&addresses)];
            ask(&addresses, ASKER, &mut question);
            let mut buf = pool.frame(&question).unwrap();
            assert!(Message::is_one(buf.bytes()));
            let question = Message::read(buf.bytes()).unwrap();
            assert_eq!((question.asks_for(), question.tells()), (Some(addresses.dst()), None));
            assert_eq!(answer(&mut buf, OWNER, |_| false), Err(question.reason()));
            assert_eq!(answer(&mut buf, OWNER, |ip| ip == addresses.dst()), Ok(()));
            assert_eq!((ether::src(buf.bytes()), ether::dst(buf.bytes())), (OWNER, ASKER));
            let told = Message::read(buf.bytes()).unwrap();
            assert_eq!((told.asks_for(), told.tells()), (None, Some((addresses.dst(), OWNER))));
            assert_eq!(answer(&mut buf, OWNER, |_| true), Err(question.reason()), "an answer");
        }
    }
    /// The question of a host that is still to learn whether it may have the address: without a source, and without its MAC address.
    fn doubtful_question(target: u128) -> Vec<u8> {
        let mut frame = vec![0; ndp::FRAME_LEN];
        let (question, to) = ndp::Packet::question(ASKER, 0, target, None);
        question.emit(&mut frame, to, false);
        frame.truncate(ndp::FRAME_LEN - 8);
        let len = frame.len() - BEHIND_IPV6;
        frame[18..20].copy_from_slice(&(len as u16).to_be_bytes());
        frame[56..58].fill(0);
        let sum: Sum = ipv6::pseudo_header(&frame[ether::LEN..], ipv6::ICMP, len as u16);
        let checksum = sum.bytes(&frame[BEHIND_IPV6..]).checksum();
        frame[56..58].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    #[test]
    fn whoever_asks_without_an_address_is_told_by_way_of_all_nodes() {
        let target = 0xFD00 << 112 | 1;
        let frame = doubtful_question(target);
        let mut buf = FramePool::new(1, 128).frame(&frame).unwrap();
        assert_eq!(answer(&mut buf, OWNER, |ip| ip == Ipv6Addr::from_bits(target)), Ok(()));
        assert_eq!(buf.bytes().len(), ndp::FRAME_LEN);
        assert_eq!(ether::dst(buf.bytes()), ipv6::group_mac(ipv6::ALL_NODES));
        let told = Message::read(buf.bytes()).unwrap().tells();
        assert_eq!(told, Some((Ipv6Addr::from_bits(target).into(), OWNER)));
        // Where the answer does not fit, there is none.
        let mut buf = FramePool::new(1, 80).frame(&frame).unwrap();
        assert_eq!(answer(&mut buf, OWNER, |_| true), Err(DropReason::NdOther));
    }

    #[test]
    fn what_is_no_word_of_neighbours_is_none() {
        let mut echo = doubtful_question(1 << 64);
        echo[54] = 128; // a ping
        assert!(!Message::is_one(&echo));
        assert!(!Message::is_one(&echo[..54]) && !Message::is_one(&echo[..14]));
        assert!(!Message::is_one(&[0; 60]));
    }

    proptest! {
        #[test]
        fn random_frames_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 14..130), v6: bool, typed: bool) {
            bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xDD] } else { &[8, 6] });
            if v6 && typed && bytes.len() > 54 {
                (bytes[20], bytes[54]) = (ipv6::ICMP, 135);
            }
            let mut buf = FramePool::new(1, 130).frame(&bytes).unwrap();
            if Message::is_one(&bytes) {
                let _ = answer(&mut buf, OWNER, |_| true);
            }
        }
    }
}
