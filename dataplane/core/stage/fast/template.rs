//! Patterns of fast-path packets: the common task and the common reply, whole in one packet, without IP
//! options and without a reason to refuse them. They are recognised at fixed offsets, by comparing words
//! under a mask.

use super::pattern::{CodeByte, NOT_ZERO, REPLY_BIT, TOLERANCES, at_least, differing};
use crate::stage::network::Network;
use crate::stage::spec::PortAddress;
use crate::wire::checksum::PartialChecksum;
use crate::wire::task::{self, Code};
use crate::wire::{auth, ether, ipv4, udp};

/// Minimum length of a fast-path packet.
pub const HEAD: usize = udp::PAYLOAD + task::LEN;
/// Offset of the IPv4 header.
pub const IP: usize = ether::LEN;
/// Offset of the UDP header.
pub const UDP: usize = ether::LEN + ipv4::LEN;
/// Offset of the task header.
pub const TASK: usize = udp::PAYLOAD;

/// Bytes and bounds that the first bytes of a frame must match, where the mask has ones.
///
/// One vector instruction checks all bounds: a word may differ from the expected one by at most its
/// tolerance. A word with tolerance 0 must be equal. A word that must not be 0 has all ones for its expected
/// value, and may differ from it by anything less.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))] // 128 bytes: a shift selects one of two
pub struct Pattern {
    pub expected: [u8; Self::LEN],
    pub mask: [u8; Self::LEN],
    /// Largest permitted difference of each word, from the IPv4 header on.
    pub tolerance: [u16; TOLERANCES],
    /// Minimum length of the datagram, without its extension.
    pub least_udp_len: u16,
}
const _: () = assert!(size_of::<Pattern>() == 128);

impl Pattern {
    /// Number of bytes at a packet's start that hold everything to compare: the Ethernet header, and one
    /// vector.
    pub const LEN: usize = IP + 2 * TOLERANCES;

    /// Returns the pattern of an IPv4 packet for this port, in one piece, with a UDP datagram.
    fn datagram(address: &PortAddress) -> Self {
        let least_udp_len = (udp::LEN + task::LEN) as u16;
        let mut pattern = Self { expected: [0; Self::LEN], least_udp_len, ..Self::NOTHING };
        pattern.require(0, &address.mac.0, &[0xFF; 6]); // destination
        pattern.require(12, &[0x08, 0x00, ipv4::NO_OPTIONS], &[0xFF; 3]); // IPv4, header of 20 bytes
        pattern.require(IP + 6, &[0, 0], &[0x3F, 0xFF]); // no fragment
        pattern.require(IP + 9, &[ipv4::UDP], &[0xFF]);
        pattern.require_ttl(ipv4::TTL_MIN);
        pattern
    }

    /// Returns the pattern of a whole task to this address and UDP port, from this network if all clients are
    /// in it. Its worker can reply: the source port is not 0, and the time to live lasts.
    fn task(
        address: &PortAddress,
        (task_address, udp_port): (u32, u16),
        client_network: Option<(u32, u32)>,
        least_ttl: u8,
    ) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require_ttl(least_ttl);
        pattern.require(UDP, &[0xFF; 2], &[0xFF; 2]); // source port, not 0
        pattern.tolerance[(UDP - IP) / 2] = NOT_ZERO;
        pattern.require(IP + 16, &task_address.to_be_bytes(), &[0xFF; 4]);
        pattern.require(UDP + 2, &udp_port.to_be_bytes(), &[0xFF; 2]);
        pattern.require(TASK, &[Code::NewTask as u8], &[!task::EXTENSION_BIT]);
        if let Some((network, mask)) = client_network {
            pattern.require(IP + 12, &network.to_be_bytes(), &mask.to_be_bytes());
        }
        pattern
    }

    /// Returns the pattern of a whole reply to any client.
    fn reply(address: &PortAddress, udp_port: u16) -> Self {
        let mut pattern = Self::datagram(address);
        pattern.require(UDP, &udp_port.to_be_bytes(), &[0xFF; 2]);
        // Both codes of replies, with or without an extension.
        pattern.require(TASK, &[REPLY_BIT], &[!(task::EXTENSION_BIT | 1)]);
        pattern
    }

    /// Pattern that matches nothing: it expects a bit that the mask never lets through.
    const NOTHING: Self = Self {
        expected: [1; Self::LEN],
        mask: [0; Self::LEN],
        tolerance: [0; TOLERANCES],
        least_udp_len: u16::MAX,
    };

    /// Requires these bytes at an offset, where the mask has ones.
    fn require(&mut self, at: usize, bytes: &[u8], mask: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.mask[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Requires a minimum time to live.
    fn require_ttl(&mut self, least: u8) {
        self.require(IP + 8, &[0xFF], &[0xFF]);
        self.tolerance[8 / 2] = at_least(least);
    }

    /// Requires this pool id.
    fn of_pool(mut self, pool: [u8; 2]) -> Self {
        self.require(TASK + 1, &pool, &[0xFF; 2]);
        self
    }

    /// Requires an authenticated message: sequence and tag behind the header.
    fn authenticated(mut self) -> Self {
        self.expected[TASK] |= task::AUTHENTICATION_BIT;
        self.least_udp_len += auth::LEN as u16;
        self
    }

    /// Returns true if the first bytes of a frame match.
    #[inline(always)]
    fn fits(&self, head: &[u8; HEAD]) -> bool {
        let differing = |at| differing(head, &self.expected, &self.mask, at);
        let mut differs = 0;
        for at in (0..IP).step_by(2) {
            differs |= differing(at);
        }
        for (word, &tolerance) in self.tolerance.iter().enumerate() {
            differs |= differing(IP + 2 * word).saturating_sub(tolerance);
        }
        differs == 0
    }
}

/// Patterns of one port and pool: tasks, and replies.
#[derive(Clone, Copy, Debug)]
pub struct Template([Pattern; 2]);

impl Template {
    /// Builds the patterns of the port at `index` for this pool. They do not verify the proof of replies. With a
    /// key, only replies with a proof match. They compare a task's source only with the network of the clients,
    /// and only if no router leads to others. The caller must check for unreachable sources.
    pub fn new(network: &Network, index: usize, pool: usize) -> Self {
        let (address, task_address) = (network.port(index), network.task_address(index, pool));
        let authenticated = network.authenticator(index, pool).is_some();
        let is_v4 = address.v6.is_none() && network.takes_v4(pool);
        let least_ttl = network.least_ttl(pool);
        let pool = network.pool_id(pool).unwrap_or_default().to_be_bytes();
        let pattern_if = |side: bool, pattern: Pattern| match side {
            true => pattern.of_pool(pool),
            false => Pattern::NOTHING,
        };
        let (client_network, _) = network.sources(index);
        let reply = Pattern::reply(address, network.udp_port);
        let reply = if authenticated { reply.authenticated() } else { reply };
        Self([
            pattern_if(
                is_v4 && address.side.has_clients(),
                Pattern::task(address, (task_address, network.udp_port), client_network, least_ttl),
            ),
            pattern_if(is_v4 && address.side.has_workers() && !network.is_spine(), reply),
        ])
    }

    /// Returns the pattern of packets with this code.
    #[inline(always)]
    pub fn pattern(&self, code: CodeByte) -> &Pattern {
        // Selected by arithmetic: a branch on the next kind would be unpredictable.
        &self.0[usize::from(code.is_reply())]
    }

    /// Returns the code of the frame, if it matches. `verified` is true if the device has verified its
    /// checksums.
    #[inline(always)]
    pub fn recognise(&self, frame: &[u8], verified: bool) -> Option<CodeByte> {
        let head = frame.first_chunk::<HEAD>()?;
        let code = CodeByte::at(head[TASK]);
        let pattern = self.pattern(code);
        let least = usize::from(pattern.least_udp_len) + code.extension_len();
        let fits = pattern.fits(head) & lengths_fit(frame, head, least);
        if !fits {
            return None;
        }
        let valid = verified || (ip_checksum_is_valid(head) && udp_checksum_is_valid(head, frame));
        valid.then_some(code)
    }
}

/// Returns the bytes at an offset.
#[inline(always)]
fn bytes<const N: usize, const LEN: usize>(head: &[u8; LEN], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[at..at + N]);
    bytes
}

/// Returns the eight bytes at an offset, in packet byte order.
#[inline(always)]
fn word<const LEN: usize>(head: &[u8; LEN], at: usize) -> u64 {
    u64::from_le_bytes(bytes(head, at))
}

/// Returns the 16-bit number at an offset.
#[inline(always)]
fn number(head: &[u8; HEAD], at: usize) -> usize {
    usize::from(u16::from_be_bytes(bytes(head, at)))
}

/// Returns true if the datagram has at least `least` bytes, and lies within its packet and the frame.
#[inline(always)]
fn lengths_fit(frame: &[u8], head: &[u8; HEAD], least: usize) -> bool {
    let (total_len, udp_len) = (number(head, IP + 2), number(head, UDP + 4));
    (total_len <= frame.len() - IP) & (total_len >= ipv4::LEN + udp_len) & (udp_len >= least)
}

/// Checks the checksum of an IPv4 header without options.
#[inline(always)]
fn ip_checksum_is_valid(head: &[u8; HEAD]) -> bool {
    let last = u32::from_le_bytes(bytes(head, IP + 16));
    PartialChecksum::default()
        .words([word(head, IP), word(head, IP + 8), u64::from(last)])
        .is_valid()
}

/// Checks the UDP checksum. The lengths must fit.
#[inline(always)]
fn udp_checksum_is_valid(head: &[u8; HEAD], frame: &[u8]) -> bool {
    if bytes(head, UDP + 6) == [0, 0] {
        return true; // the sender computed none
    }
    // Protocol and length of the pseudo header (RFC 768), in packet byte order.
    let length = u16::from_le_bytes(bytes(head, UDP + 4));
    let pseudo = u64::from(length) + u64::from(u16::from(ipv4::UDP).swap_bytes());
    let (addresses, header) = (word(head, IP + 12), word(head, UDP));
    let sum = PartialChecksum::default().words([pseudo, addresses, header, word(head, UDP + 8)]);
    sum.range(frame, UDP + 16, UDP + number(head, UDP + 4)).is_valid()
}
