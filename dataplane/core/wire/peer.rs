//! Messages between nodes without a leaf, after the task header: heartbeats, requests for tasks, and critics'
//! parameters; also the trailer of a forwarded task.
//!
//! A critic is the network by which a learning node values its load. Nodes exchange its parameters in rounds.
//! A beat is the interval between two heartbeats. A node's load is its waiting work divided by the slots of its
//! workers: the number of tasks that they serve at once, times a configured number of slots per task.
//!
//! The first three begin with the sender and its assumptions; a request has nothing else:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u8 | version | [`VERSION`] |
//! | 1 | u8 | features | version of the learner's features |
//! | 2 | u16 | nodes | number of nodes |
//! | 4 | u16 | id | sender |
//! | 6 | u16 | reserved | 0 on sending, ignored on receipt |
//! | 8 | u64 | born | start time of the sender, ns since 1970; a later start means a restart |
//!
//! A heartbeat continues with its number, parameters with their round:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 16 | u64 | number | the heartbeat's number, which grows, or the parameters' round |
//!
//! A heartbeat then has:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 24 | f32 | load | waiting work in microseconds per worker slot |
//! | 28 | u32 | waiting | waiting tasks |
//! | 32 | u32 | migrations | tasks forwarded since its last heartbeat |
//! | 36 | u32 | steals | requests for a task |
//! | 40 | u32 | failed_tasks | tasks dropped because of a full queue |
//! | 44 | u32 | failed_steals | requests received without a task to give |
//!
//! Parameters have:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 24 | u16 | part | index of this part, from 0 |
//! | 26 | u16 | parts | number of parts |
//! | 28 | u16 | values | number of values that follow |
//! | 30 | u16 | reserved | 0 on sending, ignored on receipt |
//! | 32 | f32 | value | further values follow |
//!
//! The last [`VIA_LEN`] bytes of a forwarded task:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u8 | version | [`VERSION`] |
//! | 1 | u8 | hops | number of times it was forwarded, including this one; 255 for more; no node limits it |
//! | 2 | u16 | by | node that forwards it |
//! | 4 | u16 | origin | node that the client sent it to; the reply has this node's address |
//! | 6 | 6 bytes | mac | destination MAC address of its reply |

use super::ether::Mac;
use super::{put_u16, put_u32, u16_at, u32_at, u64_at};
use crate::reason::DropReason;

/// Version of the messages.
pub const VERSION: u8 = 1;
/// Bytes of a heartbeat.
pub const HEARTBEAT_LEN: usize = 48;
/// Bytes before the values of parameters.
pub const PARAMETERS_LEN: usize = 32;
/// Bytes of a request for a task.
pub const REQUEST_LEN: usize = 16;
/// Bytes of a forwarded task's trailer ([`ForwardingTrailer`]).
pub const VIA_LEN: usize = 12;
/// Maximum number of values per packet.
pub const VALUES_MAX: usize = 256;

/// Bytes up to the number, which heartbeats and parameters have.
const NUMBERED_LEN: usize = 24;
/// Bytes of a value.
const VALUE_LEN: usize = 4;

/// Sender of a message, and its assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Version of the messages.
    pub version: u8,
    /// Version of the learner's features.
    pub features: u8,
    /// Number of nodes.
    pub nodes: u16,
    /// Index of the sender.
    pub id: u16,
    /// Start time of the sender.
    pub born: u64,
}

/// Events of a node in a beat. A learning node computes its reward from the sums over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeatStatistics {
    /// Forwarded tasks.
    pub migrations: u32,
    /// Requests for a task, sent to peers.
    pub steals: u32,
    /// Tasks dropped because of a full queue.
    pub failed_tasks: u32,
    /// Requests received without a task to give.
    pub failed_steals: u32,
}

/// Message of a node at the end of each beat. Peers choose destinations by it, and count its sender as present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heartbeat {
    /// Sender.
    pub origin: Origin,
    /// Number, which grows.
    pub number: u64,
    /// Waiting work in microseconds per slot of the node's workers.
    pub load: f32,
    /// Waiting tasks.
    pub waiting: u32,
    /// Events since the last heartbeat.
    pub done: BeatStatistics,
}

/// Header of a part of a critic's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Sender.
    pub origin: Origin,
    /// Consensus round.
    pub round: u64,
    /// Index of the part.
    pub part: u16,
    /// Number of parts.
    pub parts: u16,
}

/// Path of a forwarded task, and destination of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingTrailer {
    /// Version of the messages.
    pub version: u8,
    /// Number of times it was forwarded. Each node that forwards the task again adds 1; none limits it.
    pub hops: u8,
    /// Node that forwards it.
    pub by: u16,
    /// Node that the client sent it to.
    pub origin: u16,
    /// Destination MAC address of its reply.
    pub mac: Mac,
}

impl ForwardingTrailer {
    /// Parses the trailer of a forwarded task; the receiver checks the values.
    ///
    /// # Errors
    /// The packet's drop reason.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let bytes = bytes.last_chunk::<VIA_LEN>().ok_or(DropReason::TaskShort)?;
        let (version, hops, by, origin) = (bytes[0], bytes[1], u16_at(bytes, 2), u16_at(bytes, 4));
        let mac = Mac([bytes[6], bytes[7], bytes[8], bytes[9], bytes[10], bytes[11]]);
        Ok(Self { version, hops, by, origin, mac })
    }

    /// Writes [`VIA_LEN`] bytes.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&[self.version, self.hops]);
        put_u16(bytes, 2, self.by);
        put_u16(bytes, 4, self.origin);
        bytes[6..VIA_LEN].copy_from_slice(&self.mac.0);
    }
}

impl Origin {
    /// Parses a request for a task, or the beginning of another message; the receiver checks the values.
    ///
    /// # Errors
    /// The packet's drop reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        if bytes.len() < REQUEST_LEN {
            return Err(DropReason::TaskShort);
        }
        Ok(Self {
            version: bytes[0],
            features: bytes[1],
            nodes: u16_at(bytes, 2),
            id: u16_at(bytes, 4),
            born: u64_at(bytes, 8),
        })
    }

    /// Writes [`REQUEST_LEN`] bytes.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&[self.version, self.features]);
        put_u16(bytes, 2, self.nodes);
        put_u16(bytes, 4, self.id);
        put_u16(bytes, 6, 0);
        bytes[8..REQUEST_LEN].copy_from_slice(&self.born.to_be_bytes());
    }

    /// Writes [`NUMBERED_LEN`] bytes: the sender and a number.
    fn emit_numbered(&self, number: u64, bytes: &mut [u8]) {
        self.emit(bytes);
        bytes[REQUEST_LEN..NUMBERED_LEN].copy_from_slice(&number.to_be_bytes());
    }
}

impl Heartbeat {
    /// Parses a heartbeat after the task header; the receiver checks the values.
    ///
    /// # Errors
    /// The packet's drop reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        if bytes.len() < HEARTBEAT_LEN {
            return Err(DropReason::TaskShort);
        }
        let (origin, number) = (Origin::parse(bytes)?, u64_at(bytes, REQUEST_LEN));
        let done = BeatStatistics {
            migrations: u32_at(bytes, 32),
            steals: u32_at(bytes, 36),
            failed_tasks: u32_at(bytes, 40),
            failed_steals: u32_at(bytes, 44),
        };
        let load = f32::from_bits(u32_at(bytes, 24));
        Ok(Self { origin, number, load, waiting: u32_at(bytes, 28), done })
    }

    /// Writes [`HEARTBEAT_LEN`] bytes.
    pub fn emit(&self, bytes: &mut [u8]) {
        self.origin.emit_numbered(self.number, bytes);
        let BeatStatistics { migrations, steals, failed_tasks, failed_steals } = self.done;
        let words =
            [self.load.to_bits(), self.waiting, migrations, steals, failed_tasks, failed_steals];
        for (index, word) in words.into_iter().enumerate() {
            put_u32(bytes, NUMBERED_LEN + 4 * index, word);
        }
    }
}

impl Parameters {
    /// Parses parameters after the task header, and their values; the receiver checks both.
    ///
    /// # Errors
    /// The packet's drop reason.
    pub fn parse(
        bytes: &[u8],
    ) -> Result<(Self, impl ExactSizeIterator<Item = f32> + Clone), DropReason> {
        if bytes.len() < PARAMETERS_LEN {
            return Err(DropReason::TaskShort);
        }
        let (origin, round) = (Origin::parse(bytes)?, u64_at(bytes, REQUEST_LEN));
        let (part, parts) = (u16_at(bytes, 24), u16_at(bytes, 26));
        let len = VALUE_LEN * usize::from(u16_at(bytes, 28));
        let values = bytes[PARAMETERS_LEN..].get(..len).ok_or(DropReason::TaskShort)?;
        let values = values.chunks_exact(VALUE_LEN).map(|value| f32::from_bits(u32_at(value, 0)));
        Ok((Self { origin, round, part, parts }, values))
    }

    /// Writes the header and `values`, at most [`VALUES_MAX`]. Returns the number of bytes.
    pub fn emit(&self, values: &[f32], bytes: &mut [u8]) -> usize {
        self.origin.emit_numbered(self.round, bytes);
        put_u16(bytes, 24, self.part);
        put_u16(bytes, 26, self.parts);
        put_u16(bytes, 28, values.len() as u16);
        put_u16(bytes, 30, 0);
        for (index, value) in values.iter().enumerate() {
            put_u32(bytes, PARAMETERS_LEN + VALUE_LEN * index, value.to_bits());
        }
        PARAMETERS_LEN + VALUE_LEN * values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin =
        Origin { version: VERSION, features: 7, nodes: 14, id: 3, born: 0x0102_0304_0506_0708 };

    #[test]
    fn heartbeats_round_trip() {
        let done =
            BeatStatistics { migrations: 1, steals: 2, failed_tasks: 3, failed_steals: u32::MAX };
        let beat = Heartbeat { origin: ORIGIN, number: 1 << 40, load: 1.5, waiting: 9, done };
        let mut bytes = [0xAA; HEARTBEAT_LEN];
        beat.emit(&mut bytes);
        assert_eq!(Heartbeat::parse(&bytes), Ok(beat));
        // Version, features, nodes, id, reserved; then the load of 1.5 and the waiting tasks.
        assert_eq!(bytes[..8], [VERSION, 7, 0, 14, 0, 3, 0, 0]);
        assert_eq!(bytes[24..32], [0x3F, 0xC0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(Heartbeat::parse(&bytes[..HEARTBEAT_LEN - 1]), Err(DropReason::TaskShort));
    }

    #[test]
    fn parameters_round_trip_with_their_count() {
        let head = Parameters { origin: ORIGIN, round: 5, part: 1, parts: 2 };
        let mut bytes = [0; PARAMETERS_LEN + 12];
        assert_eq!(head.emit(&[1.0, f32::INFINITY, -2.0], &mut bytes), bytes.len());
        let (read, values) = Parameters::parse(&bytes).unwrap();
        assert_eq!((read, values.len()), (head, 3));
        assert!(values.eq([1.0, f32::INFINITY, -2.0]));
        for short in [0, PARAMETERS_LEN - 1, bytes.len() - 1] {
            assert!(Parameters::parse(&bytes[..short]).is_err(), "{short}");
        }
    }

    #[test]
    fn requests_and_forwarding_trailers_round_trip() {
        let mut bytes = [0xAA; REQUEST_LEN];
        ORIGIN.emit(&mut bytes);
        assert_eq!(Origin::parse(&bytes), Ok(ORIGIN));
        assert_eq!(Origin::parse(&bytes[1..]), Err(DropReason::TaskShort));
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let via = ForwardingTrailer { version: VERSION, hops: 2, by: 3, origin: 0x0405, mac };
        let mut bytes = [0xAA; VIA_LEN + 3];
        via.emit(&mut bytes[3..]);
        assert_eq!(bytes[..9], [0xAA, 0xAA, 0xAA, VERSION, 2, 0, 3, 4, 5]);
        assert_eq!(ForwardingTrailer::parse(&bytes), Ok(via), "the last bytes");
        assert_eq!(ForwardingTrailer::parse(&bytes[4..]), Err(DropReason::TaskShort));
    }
}
