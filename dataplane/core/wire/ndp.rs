//! Neighbour discovery for IPv6 over Ethernet (RFC 4861), the counterpart of ARP.

use super::ether::{self, Mac};
use super::{ipv6, put_u16, u16_at};
use crate::reason::DropReason;

/// Length of a question or answer written here, Ethernet header and one option included.
pub const FRAME_LEN: usize = ether::LEN + ipv6::LEN + MESSAGE_LEN + OPTION_LEN;

/// Bytes of a message without options.
const MESSAGE_LEN: usize = 24;
/// Bytes of an option with a MAC address.
const OPTION_LEN: usize = 8;
/// Unit of option lengths in bytes.
const OPTION_UNIT: usize = 8;
/// Hop limit of messages that no router has forwarded.
const HOP_LIMIT: u8 = 255;

/// Type of a solicitation.
const SOLICITATION: u8 = 135;
/// Type of an advertisement.
const ADVERTISEMENT: u8 = 136;
/// Type of the option with the sender's MAC address.
const SOURCE_MAC: u8 = 1;
/// Type of the option with the target's MAC address.
const TARGET_MAC: u8 = 2;
/// Flag of an advertisement: the sender is a router.
const ROUTER: u8 = 0x80;
/// Flag of an advertisement: it answers a solicitation.
const SOLICITED: u8 = 0x40;
/// Flag of an advertisement: it replaces a known address.
const OVERRIDE: u8 = 0x20;

/// Solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Question: which host has `target`?
    Solicitation,
    /// `target` is at `mac`.
    Advertisement,
}

/// Neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Solicitation or advertisement.
    pub operation: Operation,
    /// Address of the sender; 0 during duplicate address detection.
    pub src: u128,
    /// Destination: an address or a multicast group.
    pub dst: u128,
    /// Address in question.
    pub target: u128,
    /// MAC address in the message: the sender's own in a solicitation, the target's in an advertisement.
    pub mac: Option<Mac>,
}

/// Returns true if an ICMPv6 message (without its IPv6 header) is a neighbour solicitation or advertisement. Tests only
/// the type, so that a receiver drops other ICMPv6 at once. [`Packet::parse`] checks the rest.
#[inline]
#[must_use]
pub fn is_neighbour_discovery(message: &[u8]) -> bool {
    matches!(message.first(), Some(&(SOLICITATION | ADVERTISEMENT)))
}

impl Packet {
    /// Parses the message in a frame with IPv6's EtherType.
    ///
    /// # Errors
    /// [`DropReason::NdMalformed`] for messages that RFC 4861 (7.1) discards: from beyond the link, damaged,
    /// with a wrong length or option, or contradictory. Another reason for a wrong IPv6 header.
    pub fn parse(frame: &[u8]) -> Result<Self, DropReason> {
        let packet = frame.get(ether::LEN..).ok_or(DropReason::NdMalformed)?;
        let header = ipv6::parse(packet)?;
        let message = &packet[ipv6::LEN..ipv6::LEN + header.payload_len];
        let sum = ipv6::pseudo_header(packet, ipv6::ICMP, message.len() as u16).bytes(message);
        // Byte 1 is the code, which is 0 in both messages.
        if header.next != ipv6::ICMP
            || ipv6::hop_limit(packet) != HOP_LIMIT
            || message.len() < MESSAGE_LEN
            || !sum.is_valid()
            || message[1] != 0
        {
            return Err(DropReason::NdMalformed);
        }
        let (operation, option) = match message[0] {
            SOLICITATION => (Operation::Solicitation, SOURCE_MAC),
            ADVERTISEMENT => (Operation::Advertisement, TARGET_MAC),
            _ => return Err(DropReason::NdMalformed),
        };
        let mut target = [0; 16];
        target.copy_from_slice(&message[8..MESSAGE_LEN]);
        let mac = mac_option(&message[MESSAGE_LEN..], option)?;
        let (src, dst) = (header.src, header.dst);
        let packet = Self { operation, src, dst, target: u128::from_be_bytes(target), mac };
        match packet.is_plausible(message[4] & SOLICITED != 0) {
            true => Ok(packet),
            false => Err(DropReason::NdMalformed),
        }
    }

    /// Returns true if addresses and options do not contradict each other (RFC 4861, 7.1 and 4.3).
    fn is_plausible(&self, is_solicited: bool) -> bool {
        let fits_operation = match self.operation {
            // A host without an address asks a multicast group, and cannot be answered directly.
            Operation::Solicitation if self.src == 0 => {
                self.dst == ipv6::solicited_node(self.target) && self.mac.is_none()
            }
            Operation::Solicitation => true,
            Operation::Advertisement => !(is_solicited && ipv6::is_multicast(self.dst)),
        };
        fits_operation
            && !ipv6::is_multicast(self.src)
            && !ipv6::is_multicast(self.target)
            && !self.mac.is_some_and(Mac::is_group)
    }

    /// Returns true if the sender announces its own address to all nodes (RFC 4861, 7.2.6). Such a message is no error
    /// at a node that does not need the address.
    #[must_use]
    pub fn is_announcement(&self) -> bool {
        self.operation == Operation::Advertisement && self.dst == ipv6::ALL_NODES
    }

    /// Returns the answer to this solicitation from the node at `mac`, and its destination MAC address;
    /// `requester` is the solicitation's source MAC address.
    #[must_use]
    pub fn answer(&self, mac: Mac, requester: Mac) -> (Self, Mac) {
        let (dst, to) = match self.src {
            0 => (ipv6::ALL_NODES, ipv6::group_mac(ipv6::ALL_NODES)),
            src => (src, self.mac.unwrap_or(requester)),
        };
        let (operation, src, mac) = (Operation::Advertisement, self.target, Some(mac));
        (Self { operation, src, dst, target: self.target, mac }, to)
    }

    /// Returns the question "who has `target`?" of the node at `mac` and `src`, and its destination MAC address. The
    /// destination is the presumed host at `to`, or else the target's solicited-node multicast group.
    #[must_use]
    pub fn question(mac: Mac, src: u128, target: u128, to: Option<Mac>) -> (Self, Mac) {
        let group = ipv6::solicited_node(target);
        let (dst, to) = to.map_or((group, ipv6::group_mac(group)), |to| (target, to));
        (Self { operation: Operation::Solicitation, src, dst, target, mac: Some(mac) }, to)
    }

    /// Returns an unsolicited advertisement of an address at `mac` (RFC 4861, 7.2.6), and its destination MAC
    /// address.
    #[must_use]
    pub fn announcement(mac: Mac, address: u128) -> (Self, Mac) {
        let (operation, dst) = (Operation::Advertisement, ipv6::ALL_NODES);
        let packet = Self { operation, src: address, dst, target: address, mac: Some(mac) };
        (packet, ipv6::group_mac(dst))
    }

    /// Writes the whole frame, [`FRAME_LEN`] bytes, from the message's MAC address (zero if it has none) to `to`.
    /// `router` sets the flag of an advertisement whose sender forwards packets for other hosts.
    pub fn emit(&self, frame: &mut [u8], to: Mac, router: bool) {
        let mac = self.mac.unwrap_or_default();
        ether::emit(frame, to, mac, ether::IPV6);
        let packet = &mut frame[ether::LEN..FRAME_LEN];
        let len = MESSAGE_LEN + OPTION_LEN;
        ipv6::emit(packet, (self.src, self.dst), ipv6::ICMP, len);
        ipv6::set_hop_limit(packet, HOP_LIMIT);
        let message = &mut packet[ipv6::LEN..];
        message.fill(0);
        let option = match self.operation {
            Operation::Solicitation => {
                message[0] = SOLICITATION;
                SOURCE_MAC
            }
            Operation::Advertisement => {
                let solicited = if ipv6::is_multicast(self.dst) { 0 } else { SOLICITED };
                message[0] = ADVERTISEMENT;
                message[4] = solicited | OVERRIDE | if router { ROUTER } else { 0 };
                TARGET_MAC
            }
        };
        message[8..MESSAGE_LEN].copy_from_slice(&self.target.to_be_bytes());
        message[MESSAGE_LEN..MESSAGE_LEN + 2].copy_from_slice(&[option, 1]);
        message[MESSAGE_LEN + 2..].copy_from_slice(&mac.0);
        let sum = ipv6::pseudo_header(packet, ipv6::ICMP, len as u16).bytes(&packet[ipv6::LEN..]);
        put_u16(packet, ipv6::LEN + 2, sum.checksum());
        // Parsers refuse a payload length of 0.
        debug_assert_ne!(u16_at(packet, 4), 0);
    }
}

/// Returns the MAC address in the first option of this type, if present. Fails if an option has a wrong length.
fn mac_option(mut options: &[u8], wanted_kind: u8) -> Result<Option<Mac>, DropReason> {
    let mut address = None;
    while let [kind, units, ..] = *options {
        let len = usize::from(units) * OPTION_UNIT;
        // A length of 0 would loop for ever.
        let option = options.get(..len).filter(|_| len > 0).ok_or(DropReason::NdMalformed)?;
        if kind == wanted_kind && address.is_none() {
            let mac = option[2..].first_chunk::<6>().ok_or(DropReason::NdMalformed)?;
            address = Some(Mac(*mac));
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok(address) } else { Err(DropReason::NdMalformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASKER: u128 = 0xFD00_0000_0000_0000_0000_0000_0000_0009;
    const OWN: u128 = 0xFD00_0000_0000_0000_0000_0000_0000_0001;
    const ASKER_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const OWN_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    /// The asker's solicitation for `OWN`.
    fn question() -> Vec<u8> {
        let mut frame = vec![0; FRAME_LEN];
        let (question, to) = Packet::question(ASKER_MAC, ASKER, OWN, None);
        question.emit(&mut frame, to, false);
        frame
    }

    /// Sets the payload length and the checksum after a change.
    fn summed(mut frame: Vec<u8>) -> Vec<u8> {
        let packet = &mut frame[ether::LEN..];
        put_u16(packet, ipv6::LEN + 2, 0);
        let len = packet.len() - ipv6::LEN;
        put_u16(packet, 4, len as u16);
        let sum = ipv6::pseudo_header(packet, ipv6::ICMP, len as u16).bytes(&packet[ipv6::LEN..]);
        put_u16(packet, ipv6::LEN + 2, sum.checksum());
        frame
    }

    #[test]
    fn solicitation_gets_an_advertisement() {
        let frame = question();
        assert_eq!(ether::dst(&frame).to_string(), "33:33:ff:00:00:01");
        let read = Packet::parse(&frame).unwrap();
        assert_eq!((read.src, read.target, read.mac), (ASKER, OWN, Some(ASKER_MAC)));
        assert_eq!(read.dst, ipv6::solicited_node(OWN));
        let (answer, to) = read.answer(OWN_MAC, ether::src(&frame));
        assert_eq!(to, ASKER_MAC);
        let mut frame = vec![0xEE; FRAME_LEN];
        answer.emit(&mut frame, to, true);
        let read = Packet::parse(&frame).unwrap();
        assert_eq!(read, answer);
        assert_eq!((read.operation, read.dst), (Operation::Advertisement, ASKER));
        assert_eq!((read.target, read.mac), (OWN, Some(OWN_MAC)));
    }

    #[test]
    fn golden_bytes_of_a_solicitation() {
        // The checksum is from an independent implementation (RFC 4443, 2.3).
        let frame = question();
        // EtherType; version; payload length 32, ICMPv6, hop limit 255.
        assert_eq!(&frame[12..22], &[0x86, 0xDD, 0x60, 0, 0, 0, 0, 32, 58, 255]);
        // Type, code, checksum, reserved.
        assert_eq!(&frame[54..62], &[135, 0, 0x7D, 0x89, 0, 0, 0, 0]);
        // Option with the sender's MAC address.
        assert_eq!(&frame[78..], &[1, 1, 2, 0, 0, 0, 0, 9]);
    }

    #[test]
    fn known_host_is_asked_by_unicast() {
        let (question, to) = Packet::question(OWN_MAC, OWN, ASKER, Some(ASKER_MAC));
        assert_eq!((question.dst, to), (ASKER, ASKER_MAC));
    }

    #[test]
    fn unspecified_source_is_answered_by_multicast() {
        // Bytes 22 to 37 are the source, 38 to 53 the destination.
        let mut frame = question();
        frame[22..38].fill(0);
        frame.truncate(FRAME_LEN - OPTION_LEN);
        let read = Packet::parse(&summed(frame.clone())).unwrap();
        let (answer, to) = read.answer(OWN_MAC, ASKER_MAC);
        assert_eq!((answer.dst, to.to_string().as_str()), (ipv6::ALL_NODES, "33:33:00:00:00:01"));
        // An option or a unicast destination makes it invalid.
        let mut named = question();
        named[22..38].fill(0);
        assert_eq!(Packet::parse(&summed(named)), Err(DropReason::NdMalformed));
        frame[38..54].copy_from_slice(&OWN.to_be_bytes());
        assert_eq!(Packet::parse(&summed(frame)), Err(DropReason::NdMalformed));
    }

    // promise: input.1
    #[test]
    fn invalid_messages_are_discarded() {
        let edited = |at: usize, byte: u8| {
            let mut frame = question();
            frame[at] = byte;
            summed(frame)
        };
        for (at, byte, what) in [
            (21, 254, "from beyond the link"),
            (54, 134, "another message"),
            (55, 1, "a code"),
            (62, 0xFF, "a group as the target"),
            (22, 0xFF, "a group as the source"),
            (79, 0, "an option of length 0"),
            (79, 2, "an option beyond the message"),
            (80, 1, "a group's MAC address"),
        ] {
            assert_eq!(Packet::parse(&edited(at, byte)), Err(DropReason::NdMalformed), "{what}");
        }
        // A wrong checksum, a message without its last byte, and one with a byte after its option.
        let mut damaged = question();
        damaged[70] ^= 1;
        assert_eq!(Packet::parse(&damaged), Err(DropReason::NdMalformed));
        let mut short = question();
        short.truncate(FRAME_LEN - 9);
        assert_eq!(Packet::parse(&summed(short)), Err(DropReason::NdMalformed));
        let mut odd = question();
        odd.push(1);
        assert_eq!(Packet::parse(&summed(odd)), Err(DropReason::NdMalformed));
    }

    #[test]
    fn unknown_options_are_skipped() {
        let mut frame = question();
        let tail = frame.split_off(FRAME_LEN - OPTION_LEN);
        frame.extend([14, 1, 0, 0, 0, 0, 0, 0]); // a nonce (RFC 3971)
        frame.extend(tail);
        assert_eq!(Packet::parse(&summed(frame)).unwrap().mac, Some(ASKER_MAC));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = Packet::parse(&bytes);
            let mut frame = question();
            let len = bytes.len().min(FRAME_LEN - 54);
            frame[54..54 + len].copy_from_slice(&bytes[..len]);
            let _ = Packet::parse(&summed(frame));
        }
    }
}
