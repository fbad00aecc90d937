//! Patterns of fast-path packets over IPv6: the common task and the common reply, whole in one packet and
//! without a reason to refuse them. They are recognised by their first bytes under a mask.

use super::pattern::{CodeByte, NOT_ZERO, TOLERANCES, at_least, differing};
use crate::stage::spec::PortAddress;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv4, ipv6, udp};

/// Minimum length of a fast-path packet.
pub const HEAD: usize = udp::PAYLOAD_V6 + task::LEN;
/// Offset of the IPv6 header.
pub const IP: usize = ether::LEN;
/// Offset of the UDP header.
pub const UDP: usize = ether::LEN + ipv6::LEN;
/// Offset of the task header.
pub const TASK: usize = udp::PAYLOAD_V6;

/// Minimum length of a datagram, without extension and proof.
pub const LEAST: usize = udp::LEN + task::LEN;

/// Number of bytes at a packet's start that hold everything to compare.
pub const PATTERN: usize = 72;
const _: () = assert!(PATTERN <= HEAD && PATTERN >= TASK + 3);
/// Offsets of the two vectors whose words have tolerances. The hop limit is at an odd offset. It is the first
/// byte of a word only if the first vector is at an odd offset, too.
pub const VECTORS: [usize; 2] = [IP - 1, PATTERN - 2 * TOLERANCES];
const _: () = assert!(VECTORS[1] <= VECTORS[0] + 2 * TOLERANCES);

/// Bytes and bounds that the first bytes of a frame must match, where the mask has ones; see
/// [`template::Pattern`](super::template::Pattern).
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    pub expected: [u8; PATTERN],
    pub mask: [u8; PATTERN],
    /// Largest permitted difference of each word of the [`VECTORS`].
    pub tolerance: [[u16; TOLERANCES]; 2],
    /// Minimum length of a datagram, without its extension.
    pub least: usize,
}

impl Pattern {
    /// Pattern that matches nothing: it expects a bit that the mask never lets through.
    const NOTHING: Self = Self {
        expected: [1; PATTERN],
        mask: [0; PATTERN],
        tolerance: [[0; TOLERANCES]; 2],
        least: LEAST,
    };

    /// Returns the pattern of a datagram of this pool for this port. The first byte of its task header is
    /// `code`, where `code_mask` has ones.
    fn datagram(address: &PortAddress, pool: u16, code: u8, code_mask: u8) -> Self {
        let mut pattern = Self { expected: [0; PATTERN], ..Self::NOTHING };
        pattern.require(0, &address.mac.0, &[0xFF; 6]); // destination
        pattern.require(12, &ether::IPV6.to_be_bytes(), &[0xFF; 2]);
        pattern.require(IP, &[0x60], &[0xF0]); // version
        pattern.require(IP + 6, &[ipv6::UDP], &[0xFF]); // no extension header
        pattern.require(TASK, &[code], &[code_mask]);
        pattern.require(TASK + 1, &pool.to_be_bytes(), &[0xFF; 2]);
        pattern.require_hops(ipv4::TTL_MIN);
        pattern.require_not_zero(UDP + 6); // the checksum, which IPv6 requires
        pattern
    }

    /// Requires a minimum hop limit.
    fn require_hops(&mut self, least: u8) {
        const AT: usize = IP + 7;
        self.require(AT, &[0xFF], &[0xFF]);
        self.tolerance[0][(AT - VECTORS[0]) / 2] = at_least(least);
    }

    /// Requires that a word in the second vector is not 0.
    fn require_not_zero(&mut self, at: usize) {
        self.require(at, &[0xFF; 2], &[0xFF; 2]);
        self.tolerance[1][(at - VECTORS[1]) / 2] = NOT_ZERO;
    }

    /// Requires these bytes at an offset, where the mask has ones.
    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Returns true if the first bytes of a frame match.
    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let differing = |at| differing(head, &self.expected, &self.mask, at);
        let mut differs = 0;
        for at in (0..IP).step_by(2) {
            differs |= differing(at);
        }
        for (start, tolerance) in VECTORS.into_iter().zip(&self.tolerance) {
            for (word, &tolerance) in tolerance.iter().enumerate() {
                differs |= differing(start + 2 * word).saturating_sub(tolerance);
            }
        }
        differs == 0
    }
}

/// Packets of a pool that may take the fast path on a port.
#[derive(Clone, Copy, Debug)]
pub struct CommonPackets {
    /// Pool id.
    pub pool: u16,
    /// UDP port of the protocol.
    pub udp_port: u16,
    /// Address at which tasks arrive.
    pub task_address: u128,
    /// Network of all clients and its mask, if all clients are in one network.
    pub clients: Option<(u128, u128)>,
    /// Minimum hop limit of tasks.
    pub least_hops: u8,
    /// True if all replies are authenticated, false if none are; `None` where no replies arrive.
    pub replies: Option<bool>,
}

/// Patterns of one port and pool: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct TemplateV6([Pattern; 2]);

impl TemplateV6 {
    /// Builds the patterns of this port. They check neither that a task's source is a client's, nor that a
    /// reply comes from its worker's server, nor the proof of replies.
    pub fn new(address: &PortAddress, common: &CommonPackets) -> Self {
        if address.v6.is_none() {
            return Self([Pattern::NOTHING; 2]);
        }
        let &CommonPackets { pool, udp_port, task_address, clients, least_hops, replies } = common;
        let (udp_port, mask) = (udp_port.to_be_bytes(), [0xFF; 2]);
        let mut task = Pattern::datagram(address, pool, Code::NewTask as u8, !task::EXTENSION_BIT);
        task.require(IP + 24, &task_address.to_be_bytes(), &[0xFF; 16]);
        task.require(UDP + 2, &udp_port, &mask);
        task.require_not_zero(UDP); // the source port
        task.require_hops(least_hops);
        if let Some((network, mask)) = clients {
            task.require(IP + 8, &network.to_be_bytes(), &mask.to_be_bytes());
        }
        let reply_mask = !(task::EXTENSION_BIT | 1); // both codes of replies, with or without an extension
        let authenticated = replies.unwrap_or_default();
        let proof = if authenticated { task::AUTHENTICATION_BIT } else { 0 };
        let mut reply = Pattern::datagram(address, pool, Code::TaskDone as u8 | proof, reply_mask);
        reply.require(UDP, &udp_port, &mask);
        reply.least += if authenticated { auth::LEN } else { 0 };
        let pattern_if = |side, pattern| if side { pattern } else { Pattern::NOTHING };
        let has_replies = replies.is_some() && address.side.has_workers();
        Self([pattern_if(address.side.has_clients(), task), pattern_if(has_replies, reply)])
    }

    /// Returns the pattern of packets with this code.
    #[inline(always)]
    pub fn pattern(&self, code: CodeByte) -> &Pattern {
        &self.0[usize::from(code.is_reply())]
    }

    /// Returns the code of the frame, if it matches. `verified` is true if the device has verified its
    /// checksum.
    #[inline(always)]
    pub fn recognise(&self, frame: &[u8], verified: bool) -> Option<CodeByte> {
        let head = frame.first_chunk::<HEAD>()?;
        let code = CodeByte::at(head[TASK]);
        let number = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let (payload_len, udp_len) = (number(IP + 4), number(UDP + 4));
        let pattern = self.pattern(code);
        let fits = pattern.fits(head)
            & (payload_len <= frame.len() - UDP)
            & (udp_len <= payload_len)
            & (udp_len >= pattern.least + code.extension_len());
        let valid = fits && (verified || udp::checksum_is_valid_v6(head, frame, udp_len));
        valid.then_some(code)
    }
}
