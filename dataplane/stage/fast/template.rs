//! What packets of the fast path look like: the common task and the common reply, whole in one packet, without IP
//! options and with nothing to object to. Recognised at fixed offsets, mostly by comparing whole words under a mask.

use crate::stage::network::{Network, PortAddress};
use crate::wire::checksum::Sum;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv4, udp};

/// Bytes that a packet of the fast path has at least.
pub const HEAD: usize = udp::PAYLOAD + task::LEN;
/// Offset of the IPv4 header.
pub const IP: usize = ether::LEN;
/// Offset of the UDP header.
pub const UDP: usize = ether::LEN + ipv4::LEN;
/// Offset of the task header.
pub const TASK: usize = udp::PAYLOAD;

/// Set in the codes of replies, and in no task's.
const REPLY_BIT: u8 = Code::TaskDone as u8;
const _: () = assert!(Code::NewTask as u8 == 0 && Code::TaskDoneIdle as u8 == REPLY_BIT | 1);

/// The first byte of a task header: whether a packet is a reply, and whether its header has an extension.
#[derive(Clone, Copy, Debug)]
pub struct CodeByte(u8);

impl CodeByte {
    #[inline(always)]
    pub fn of(head: &[u8; HEAD]) -> Self {
        Self(head[TASK])
    }

    /// Of a packet whose task header begins with this byte.
    #[inline(always)]
    pub fn at(first: u8) -> Self {
        Self(first)
    }

    #[inline(always)]
    pub fn is_reply(self) -> bool {
        self.0 & REPLY_BIT != 0
    }

    #[inline(always)]
    pub fn is_extended(self) -> bool {
        self.0 & task::EXTENSION_BIT != 0
    }

    /// Bytes of its extension.
    #[inline(always)]
    pub fn extension_len(self) -> usize {
        usize::from(self.is_extended()) * task::EXTENSION_LEN
    }
}

/// What the first bytes of a frame must be, where the mask has ones.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))] // a power of two, so that one of two is found by a shift
pub struct Pattern {
    pub expected: [u8; Self::LEN],
    pub mask: [u8; Self::LEN],
    /// The length of the datagram at least, but for its extension.
    pub least_udp_len: usize,
}

impl Pattern {
    /// Bytes at a packet's start that hold all that must be as expected: whole words.
    pub const LEN: usize = 48;

    /// An IPv4 packet for this port, in one piece, with a UDP datagram in it.
    fn datagram(address: &PortAddress) -> Self {
        let least_udp_len = udp::LEN + task::LEN;
        let mut pattern = Self { expected: [0; Self::LEN], least_udp_len, ..Self::NOTHING };
        pattern.require(0, &address.mac.0, &[0xFF; 6]);
        pattern.require(12, &[0x08, 0x00, ipv4::NO_OPTIONS], &[0xFF; 3]);
        pattern.require(IP + 6, &[0, 0], &[0x3F, 0xFF]); // no fragment
        pattern.require(IP + 9, &[ipv4::UDP], &[0xFF]);
        pattern
    }

    /// A whole task to this address, at this port, from this network if all clients are there.
    fn task(address: &PortAddress, to: u32, udp_port: u16, near: Option<(u32, u32)>) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require(IP + 16, &to.to_be_bytes(), &[0xFF; 4]);
        pattern.require(UDP + 2, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[Code::NewTask as u8], &[!task::EXTENSION_BIT]);
        if let Some((network, mask)) = near {
            pattern.require(IP + 12, &network.to_be_bytes(), &mask.to_be_bytes());
        }
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
    const NOTHING: Self =
        Self { expected: [1; Self::LEN], mask: [0; Self::LEN], least_udp_len: usize::MAX / 2 };

    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    fn of_pool(mut self, pool: [u8; 2]) -> Self {
        self.require(TASK + 1, &pool, &[0xFF; 2]);
        self
    }

    /// The same with sequence and tag behind the header.
    fn authenticated(mut self) -> Self {
        self.expected[TASK] |= task::AUTHENTICATION_BIT;
        self.least_udp_len += auth::LEN;
        self
    }

    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let mut differs = 0;
        for at in (0..Self::LEN).step_by(8) {
            differs |= (word(head, at) & word(&self.mask, at)) ^ word(&self.expected, at);
        }
        differs == 0
    }
}

/// What takes the fast path on one port: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct Template([Pattern; 2]);

impl Template {
    /// What takes the fast path on the port at `index`, of this pool. Whether a task's source is a client's is still to be looked at,
    /// and so is the proof of replies, which all have one if there is a key.
    pub fn new(network: &Network, index: usize, pool: usize) -> Self {
        let (address, to) = (network.port(index), network.task_address(index, pool));
        let authenticated = network.authenticator(index, pool).is_some();
        let is_v4 = address.v6.is_none() && network.takes_v4(pool);
        let pool = network.pool_id(pool).unwrap_or_default().to_be_bytes();
        let on = |side: bool, pattern: Pattern| match side {
            true => pattern.of_pool(pool),
            false => Pattern::NOTHING,
        };
        let (near, _) = network.sources(index);
        let reply = Pattern::reply(address, network.udp_port);
        let reply = if authenticated { reply.authenticated() } else { reply };
        Self([
            on(
                is_v4 && address.side.has_clients(),
                Pattern::task(address, to, network.udp_port, near),
            ),
            on(is_v4 && address.side.has_workers() && !network.is_spine(), reply),
        ])
    }

    /// What packets of that code must be.
    #[inline(always)]
    pub fn pattern(&self, code: CodeByte) -> &Pattern {
        // Chosen by arithmetic: which of the two comes next is anybody's guess.
        &self.0[usize::from(code.is_reply())]
    }

    /// The code of the frame, when it matches.
    #[inline(always)]
    pub fn recognise(&self, frame: &[u8], verified: bool) -> Option<CodeByte> {
        let head = frame.first_chunk::<HEAD>()?;
        let code = CodeByte::of(head);
        let pattern = self.pattern(code);
        let fits = pattern.fits(head)
            & (head[IP + 8] >= 2)
            & lengths_fit(frame, head, pattern.least_udp_len + code.extension_len());
        if !fits {
            return None;
        }
        let valid = verified || (ip_checksum_is_valid(head) && udp_checksum_is_valid(head, frame));
        valid.then_some(code)
    }
}

#[inline(always)]
fn bytes<const N: usize, const LEN: usize>(head: &[u8; LEN], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

#[inline(always)]
fn word<const LEN: usize>(head: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(bytes(head, at))
}

#[inline(always)]
fn number(head: &[u8; HEAD], at: usize) -> usize {
    usize::from(u16::from_be_bytes(bytes(head, at)))
}

#[inline(always)]
fn lengths_fit(frame: &[u8], head: &[u8; HEAD], least: usize) -> bool {
    let (total_len, udp_len) = (number(head, IP + 2), number(head, UDP + 4));
    (total_len <= frame.len() - IP) & (total_len >= ipv4::LEN + udp_len) & (udp_len >= least)
}

#[inline(always)]
fn ip_checksum_is_valid(head: &[u8; HEAD]) -> bool {
    let last = u32::from_le_bytes(bytes(head, IP + 16));
    Sum::default().words([word(head, IP), word(head, IP + 8), u64::from(last)]).is_valid()
}

/// Lengths must fit.
#[inline(always)]
fn udp_checksum_is_valid(head: &[u8; HEAD], frame: &[u8]) -> bool {
    if bytes(head, UDP + 6) == [0, 0] {
        return true;
    }
    // Of the pseudo header (RFC 768): protocol and length, as they would stand in the packet.
    let length = u16::from_le_bytes(bytes(head, UDP + 4));
    let pseudo = u64::from(length) + u64::from(u16::from(ipv4::UDP).swap_bytes());
    let (addresses, header) = (word(head, IP + 12), word(head, UDP));
    let sum = Sum::default().words([pseudo, addresses, header, word(head, UDP + 8)]);
    sum.range(frame, UDP + 16, UDP + number(head, UDP + 4)).is_valid()
}
