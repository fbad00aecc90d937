//! What packets of the fast path look like over IPv6: the common task and the common reply, whole in one packet and with nothing to
//! object to, recognised by their first bytes under a mask.

use super::template::CodeByte;
use crate::stage::network::PortAddress;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv6, udp};

/// Bytes that a packet of the fast path has at least.
pub const HEAD: usize = udp::PAYLOAD_V6 + task::LEN;
/// Offset of the IPv6 header.
pub const IP: usize = ether::LEN;
/// Offset of the UDP header.
pub const UDP: usize = ether::LEN + ipv6::LEN;
/// Offset of the task header.
pub const TASK: usize = udp::PAYLOAD_V6;

/// The length of a datagram at least, but for extension and proof.
pub const LEAST: usize = udp::LEN + task::LEN;

/// Bytes at a packet's start that hold all that must be as expected: whole words.
pub const PATTERN: usize = 72;
const _: () = assert!(PATTERN <= HEAD && PATTERN >= TASK + 3);

/// What the first bytes of a frame must be, where the mask has ones.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    pub expected: [u8; PATTERN],
    pub mask: [u8; PATTERN],
    /// The length of a datagram at least, but for its extension.
    pub least: usize,
}

impl Pattern {
    /// Nothing: a bit that the mask never lets through.
    const NOTHING: Self = Self { expected: [1; PATTERN], mask: [0; PATTERN], least: LEAST };

    /// A datagram of this pool for this port, whose first byte of the task header is `code` where `code_mask` has ones.
    fn datagram(address: &PortAddress, pool: u16, code: u8, code_mask: u8) -> Self {
        let mut pattern = Self { expected: [0; PATTERN], ..Self::NOTHING };
        pattern.require(0, &address.mac.0, &[0xFF; 6]);
        pattern.require(12, &ether::IPV6.to_be_bytes(), &[0xFF; 2]);
        pattern.require(IP, &[0x60], &[0xF0]);
        pattern.require(IP + 6, &[ipv6::UDP], &[0xFF]);
        pattern.require(TASK, &[code], &[code_mask]);
        pattern.require(TASK + 1, &pool.to_be_bytes(), &[0xFF; 2]);
        pattern
    }

    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let word = |bytes: &[u8], at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(word)
        };
        let mut differs = 0;
        for at in (0..PATTERN).step_by(8) {
            differs |= (word(head, at) & word(&self.mask, at)) ^ word(&self.expected, at);
        }
        differs == 0
    }
}

/// What packets of a pool may take the fast path on a port.
#[derive(Clone, Copy, Debug)]
pub struct CommonPackets {
    /// The pool's id.
    pub pool: u16,
    /// UDP port of the protocol.
    pub udp_port: u16,
    /// Where tasks come to.
    pub task_address: u128,
    /// One network that tasks come from, and its mask, if all clients are there.
    pub clients: Option<(u128, u128)>,
    /// Whether all replies are authenticated or none of them; none where replies do not come.
    pub replies: Option<bool>,
}

/// What takes the fast path on one port, of one pool: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct TemplateV6([Pattern; 2]);

impl TemplateV6 {
    /// What takes the fast path on this port. Whether a task's source is a client's and a reply's its worker's server is still to be
    /// looked at, and so is the proof of replies.
    pub fn new(address: &PortAddress, common: &CommonPackets) -> Self {
        if address.v6.is_none() {
            return Self([Pattern::NOTHING; 2]);
        }
        let &CommonPackets { pool, udp_port, task_address, clients, replies } = common;
        let (udp_port, mask) = (udp_port.to_be_bytes(), [0xFF; 2]);
        let mut task = Pattern::datagram(address, pool, Code::NewTask as u8, !task::EXTENSION_BIT);
        task.require(IP + 24, &task_address.to_be_bytes(), &[0xFF; 16]);
        task.require(UDP + 2, &udp_port, &mask);
        if let Some((network, mask)) = clients {
            task.require(IP + 8, &network.to_be_bytes(), &mask.to_be_bytes());
        }
        let reply_mask = !(task::EXTENSION_BIT | 1);
        let authenticated = replies.unwrap_or_default();
        let proof = if authenticated { task::AUTHENTICATION_BIT } else { 0 };
        let mut reply = Pattern::datagram(address, pool, Code::TaskDone as u8 | proof, reply_mask);
        reply.require(UDP, &udp_port, &mask);
        reply.least += if authenticated { auth::LEN } else { 0 };
        let on = |side, pattern| if side { pattern } else { Pattern::NOTHING };
        let has_replies = replies.is_some() && address.side.has_workers();
        Self([on(address.side.has_clients(), task), on(has_replies, reply)])
    }

    /// What packets of that code must be.
    #[inline(always)]
    pub fn pattern(&self, code: CodeByte) -> &Pattern {
        &self.0[usize::from(code.is_reply())]
    }

    /// The code of the frame, when it matches.
    #[inline(always)]
    pub fn recognise(&self, frame: &[u8], verified: bool) -> Option<CodeByte> {
        let head = frame.first_chunk::<HEAD>()?;
        let code = CodeByte::at(head[TASK]);
        let number = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let (payload_len, udp_len) = (number(IP + 4), number(UDP + 4));
        let pattern = self.pattern(code);
        let fits = pattern.fits(head)
            & (head[IP + 7] >= 2)
            & (payload_len <= frame.len() - UDP)
            & (udp_len <= payload_len)
            & (udp_len >= pattern.least + code.extension_len())
            & (number(UDP + 6) != 0);
        let valid = fits && (verified || udp::checksum_is_valid_v6(head, frame, udp_len));
        valid.then_some(code)
    }
}
