//! ARP for IPv4 over Ethernet (RFC 826).

use super::ether::{self, Mac};
use super::{put_u16, put_u32, u16_at, u32_at};
use crate::reason::DropReason;

/// Length of an ARP frame, Ethernet header included, without padding.
pub const FRAME_LEN: usize = ether::LEN + 28;

/// First bytes of an ARP packet: hardware Ethernet, protocol IPv4, lengths of their addresses.
const HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Request for the MAC address of `target`, to be answered to `sender`.
    Request,
    /// `sender` is at `sender_mac`.
    Reply,
}

/// ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// MAC address of the sender.
    pub sender_mac: Mac,
    /// Address of the sender.
    pub sender: u32,
    /// MAC address of the target; 0 in a request.
    pub target_mac: Mac,
    /// Requested address in a request, address of the receiver in a reply.
    pub target: u32,
}

impl Packet {
    /// Parses the ARP packet in a frame with ARP's EtherType.
    ///
    /// # Errors
    /// [`DropReason::ArpMalformed`] for other hardware, protocols, lengths or operations, a short frame, or a group as
    /// the sender.
    pub fn parse(frame: &[u8]) -> Result<Self, DropReason> {
        let bytes = frame.get(ether::LEN..FRAME_LEN).ok_or(DropReason::ArpMalformed)?;
        if bytes[..6] != HEADER {
            return Err(DropReason::ArpMalformed);
        }
        let operation = match u16_at(bytes, 6) {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return Err(DropReason::ArpMalformed),
        };
        let mac = |at: usize| {
            Mac([
                bytes[at],
                bytes[at + 1],
                bytes[at + 2],
                bytes[at + 3],
                bytes[at + 4],
                bytes[at + 5],
            ])
        };
        let packet = Self {
            operation,
            sender_mac: mac(8),
            sender: u32_at(bytes, 14),
            target_mac: mac(18),
            target: u32_at(bytes, 24),
        };
        if packet.sender_mac.is_group() {
            return Err(DropReason::ArpMalformed);
        }
        Ok(packet)
    }

    /// Writes the whole frame, [`FRAME_LEN`] bytes, from `sender_mac` to `to`.
    pub fn emit(&self, frame: &mut [u8], to: Mac) {
        ether::emit(frame, to, self.sender_mac, ether::ARP);
        let bytes = &mut frame[ether::LEN..FRAME_LEN];
        bytes[..6].copy_from_slice(&HEADER);
        put_u16(
            bytes,
            6,
            match self.operation {
                Operation::Request => 1,
                Operation::Reply => 2,
            },
        );
        bytes[8..14].copy_from_slice(&self.sender_mac.0);
        put_u32(bytes, 14, self.sender);
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        put_u32(bytes, 24, self.target);
    }

    /// Returns the question "who has `target`?".
    #[must_use]
    pub fn request(sender_mac: Mac, sender: u32, target: u32) -> Self {
        Self {
            operation: Operation::Request,
            sender_mac,
            sender,
            target_mac: Mac::default(),
            target,
        }
    }

    /// Returns true if the sender announces its own address and expects no answer (RFC 5227, 3). Receivers that do not
    /// need the address consume such a packet instead of dropping it.
    #[must_use]
    pub fn is_announcement(&self) -> bool {
        self.sender == self.target
    }

    /// Returns the answer to this request from the node at `mac`.
    #[must_use]
    pub fn answer(&self, mac: Mac) -> Self {
        Self {
            operation: Operation::Reply,
            sender_mac: mac,
            sender: self.target,
            target_mac: self.sender_mac,
            target: self.sender,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_round_trips_and_answer_swaps_ends() {
        let asker = Mac([2, 0, 0, 0, 0, 9]);
        let request = Packet::request(asker, 0x0A00_0102, 0x0A00_0101);
        let mut frame = [0; FRAME_LEN];
        request.emit(&mut frame, Mac::BROADCAST);
        assert_eq!(ether::dst(&frame), Mac::BROADCAST);
        assert_eq!(ether::ether_type(&frame), ether::ARP);
        let parsed = Packet::parse(&frame).unwrap();
        assert_eq!(parsed, request);
        let answer = parsed.answer(Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(
            (answer.sender, answer.target, answer.target_mac),
            (0x0A00_0101, 0x0A00_0102, asker)
        );
    }

    proptest! {
        // promise: packets.1
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Packet::parse(&bytes);
        }
    }

    #[test]
    fn foreign_kinds_are_refused() {
        let mut frame = [0; FRAME_LEN];
        Packet::request(Mac([2, 0, 0, 0, 0, 9]), 1, 2).emit(&mut frame, Mac::BROADCAST);
        // Low bytes of hardware and protocol type, both address lengths, low byte of the operation.
        for at in [15, 17, 18, 19, 21] {
            let mut bad = frame;
            bad[at] ^= 0x10;
            assert_eq!(Packet::parse(&bad), Err(DropReason::ArpMalformed), "byte {at}");
        }
        let mut group = frame;
        group[22] |= 1; // first byte of the sender's MAC address
        assert_eq!(Packet::parse(&group), Err(DropReason::ArpMalformed));
    }
}
