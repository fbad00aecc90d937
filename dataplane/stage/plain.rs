//! What a plain packet is: the common task and the common reply, whole in one packet, without IP options and
//! with nothing to object to. Recognised at fixed offsets, mostly by comparing whole words under a mask.

use super::network::{Network, PortAddress};
use crate::wire::checksum::Sum;
use crate::wire::task::{self, Code};
use crate::wire::{ether, ipv4, udp};

/// Bytes that a plain packet has at least.
pub const HEAD: usize = udp::PAYLOAD + task::LEN;
/// Words at a plain packet's start that hold all that must be as expected.
const WORDS: usize = 6;
/// Offset of the IPv4 header.
pub const IP: usize = ether::LEN;
/// Offset of the UDP header.
pub const UDP: usize = ether::LEN + ipv4::LEN;
/// Offset of the task header.
pub const TASK: usize = udp::PAYLOAD;

const _: () = assert!(TASK + 3 <= 8 * WORDS && 8 * WORDS <= HEAD);
/// Set in the codes of replies, and in no task's.
const REPLY_BIT: u8 = Code::TaskDone as u8;
const _: () = assert!(Code::NewTask as u8 == 0 && Code::TaskDoneIdle as u8 == REPLY_BIT | 1);

/// What the first words of a frame must be, where the mask has ones.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    expected: [u64; WORDS],
    mask: [u64; WORDS],
}

impl Pattern {
    /// An IPv4 packet for this port, in one piece, with a UDP datagram in it.
    fn datagram(address: &PortAddress) -> Self {
        let mut pattern = Self { expected: [0; WORDS], mask: [0; WORDS] };
        pattern.require(0, &address.mac.0, &[0xFF; 6]);
        pattern.require(12, &[0x08, 0x00, ipv4::PLAIN], &[0xFF; 3]);
        pattern.require(IP + 6, &[0, 0], &[0x3F, 0xFF]); // no fragment
        pattern.require(IP + 9, &[ipv4::UDP], &[0xFF]);
        pattern
    }

    /// A whole task to this port's address.
    fn task(address: &PortAddress, udp_port: u16) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require(IP + 16, &address.ip.to_be_bytes(), &[0xFF; 4]);
        pattern.require(UDP + 2, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[Code::NewTask as u8], &[!task::EXTENSION_BIT]);
        pattern
    }

    /// A whole reply to anybody.
    fn reply(address: &PortAddress, udp_port: u16) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require(UDP, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[REPLY_BIT], &[!(task::EXTENSION_BIT | 1)]);
        pattern
    }

    /// Nothing: a bit that the mask never lets through.
    const NOTHING: Self = Self { expected: [1; WORDS], mask: [0; WORDS] };

    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        for (at, (byte, mask)) in (at..).zip(bytes.iter().zip(mask)) {
            let shift = 8 * (at % 8);
            self.expected[at / 8] |= u64::from(*byte) << shift;
            self.mask[at / 8] |= u64::from(*mask) << shift;
        }
    }

    fn of_pool(mut self, pool: [u8; 2]) -> Self {
        self.require(TASK + 1, &pool, &[0xFF; 2]);
        self
    }

    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let mut differs = 0;
        for at in 0..WORDS {
            differs |= (word(head, 8 * at) & self.mask[at]) ^ self.expected[at];
        }
        differs == 0
    }
}

/// What is plain on one port: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct Plain([Pattern; 2]);

impl Plain {
    /// What is plain on the port at `index`.
    pub fn new(network: &Network, index: usize) -> Self {
        let address = network.port(index);
        let on = |side: bool, pattern| if side { pattern } else { Pattern::NOTHING };
        Self([
            on(address.side.has_clients(), Pattern::task(address, network.udp_port)),
            on(address.side.has_workers(), Pattern::reply(address, network.udp_port)),
        ])
    }

    /// As it is, and of this pool (its id as it stands in packets).
    pub fn of_pool(self, pool: [u8; 2]) -> Self {
        Self(self.0.map(|pattern| pattern.of_pool(pool)))
    }

    /// Whether the frame is a reply, and whether it has an extension; none when it is not plain.
    #[inline(always)]
    pub fn read(&self, frame: &[u8], verified: bool) -> Option<(bool, bool)> {
        let head = frame.first_chunk::<HEAD>()?;
        let kind = head[TASK];
        // Chosen by arithmetic: which of the two comes next is anybody's guess.
        let is_reply = kind & REPLY_BIT != 0;
        let extended = kind & task::EXTENSION_BIT != 0;
        let plain = self.0[usize::from(is_reply)].fits(head)
            & (head[IP + 8] >= 2)
            & lengths_fit(frame, head, extended);
        if !plain {
            return None;
        }
        let whole = verified || (ip_is_whole(head) && udp_is_whole(head, frame));
        whole.then_some((is_reply, extended))
    }
}

#[inline(always)]
fn bytes<const N: usize>(head: &[u8; HEAD], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

#[inline(always)]
fn word(head: &[u8; HEAD], at: usize) -> u64 {
    u64::from_le_bytes(bytes(head, at))
}

#[inline(always)]
fn number(head: &[u8; HEAD], at: usize) -> usize {
    usize::from(u16::from_be_bytes(bytes(head, at)))
}

#[inline(always)]
fn lengths_fit(frame: &[u8], head: &[u8; HEAD], extended: bool) -> bool {
    let (total_len, udp_len) = (number(head, IP + 2), number(head, UDP + 4));
    let least = udp::LEN + task::LEN + usize::from(extended) * task::EXTENSION_LEN;
    (total_len <= frame.len() - IP) & (total_len >= ipv4::LEN + udp_len) & (udp_len >= least)
}

#[inline(always)]
fn ip_is_whole(head: &[u8; HEAD]) -> bool {
    let last = u32::from_le_bytes(bytes(head, IP + 16));
    Sum::default().words([word(head, IP), word(head, IP + 8), u64::from(last)]).is_whole()
}

/// Lengths must fit.
#[inline(always)]
fn udp_is_whole(head: &[u8; HEAD], frame: &[u8]) -> bool {
    if bytes(head, UDP + 6) == [0, 0] {
        return true;
    }
    // Of the pseudo header (RFC 768): protocol and length, as they would stand in the packet.
    let length = u16::from_le_bytes(bytes(head, UDP + 4));
    let pseudo = u64::from(length) + u64::from(u16::from(ipv4::UDP).swap_bytes());
    let (addresses, header) = (word(head, IP + 12), word(head, UDP));
    let sum = Sum::default().words([pseudo, addresses, header, word(head, UDP + 8)]);
    sum.stretch(frame, UDP + 16, UDP + number(head, UDP + 4)).is_whole()
}
