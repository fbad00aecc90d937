//! What nodes without a leaf tell each other behind the task header: heartbeats, requests for tasks, and their critics' parameters;
//! and what stands behind a task that one passes on to another.
//!
//! The first three begin with who tells, and what it takes for granted, which is all of a request:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u8 | version | [`VERSION`] |
//! | 1 | u8 | features | which features the nodes' learners have |
//! | 2 | u16 | nodes | how many nodes there are in all |
//! | 4 | u16 | id | which of them tells |
//! | 6 | u16 | reserved | 0 on sending, ignored on receipt |
//! | 8 | u64 | born | when it was started, ns since 1970: a later start is another life |
//!
//! A heartbeat goes on with its number, which rises, and parameters with the round that they are for:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 16 | u64 | number | the heartbeat's number, or the parameters' round |
//!
//! Then a heartbeat has:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 24 | f32 | load | work that waits, in microseconds for each slot of its workers |
//! | 28 | u32 | waiting | tasks that wait |
//! | 32 | u32 | migrations | tasks that it passed on since its last heartbeat |
//! | 36 | u32 | steals | times that it asked for a task |
//! | 40 | u32 | failed_tasks | tasks that it had no room for |
//! | 44 | u32 | failed_steals | times that it was asked and had none to give |
//!
//! And parameters have:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 24 | u16 | chunk | which part of them this is, from 0 |
//! | 26 | u16 | chunks | how many parts there are |
//! | 28 | u16 | values | how many values follow |
//! | 30 | u16 | reserved | 0 on sending, ignored on receipt |
//! | 32 | f32 | value | and so on |
//!
//! The last [`VIA_LEN`] bytes of a task that is passed on:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u8 | version | [`VERSION`] |
//! | 1 | u8 | hops | how often it was passed on, this time included; 255 for more |
//! | 2 | u16 | by | the node that passes it on |
//! | 4 | u16 | origin | the node that the client sent it to, in whose name it is answered |
//! | 6 | 6 bytes | mac | the MAC address that its reply goes to |

use super::ether::Mac;
use super::{put_u16, put_u32, u16_at, u32_at, u64_at};
use crate::reason::DropReason;

/// Of what nodes tell each other.
pub const VERSION: u8 = 1;
/// Bytes of a heartbeat.
pub const HEARTBEAT_LEN: usize = 48;
/// Bytes before the values of parameters.
pub const PARAMETERS_LEN: usize = 32;
/// Bytes of a request for a task.
pub const REQUEST_LEN: usize = 16;
/// Bytes behind a task that is passed on.
pub const VIA_LEN: usize = 12;
/// Values in one packet at most.
pub const VALUES_MAX: usize = 256;

const NUMBERED_LEN: usize = 24;
const VALUE_LEN: usize = 4;

/// Who tells, and what it takes for granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Of the messages.
    pub version: u8,
    /// Which features the learners have.
    pub features: u8,
    /// How many nodes there are.
    pub nodes: u16,
    /// Which of them tells.
    pub id: u16,
    /// When it was started.
    pub born: u64,
}

/// What a node did in a beat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Tasks passed on.
    pub migrations: u32,
    /// Times that another node was asked for a task.
    pub steals: u32,
    /// Tasks that failed for want of room.
    pub failed_tasks: u32,
    /// Times that it was asked and had none.
    pub failed_steals: u32,
}

/// A node's word at the end of each of its beats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heartbeat {
    /// Who tells.
    pub origin: Origin,
    /// Rises with each.
    pub number: u64,
    /// Work that waits, in microseconds for each slot of the node's workers.
    pub load: f32,
    /// Tasks that wait.
    pub waiting: u32,
    /// What it did since the last one.
    pub done: Done,
}

/// What comes before a part of a critic's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Who tells.
    pub origin: Origin,
    /// Which consensus they are for.
    pub round: u64,
    /// Which part this is.
    pub chunk: u16,
    /// Of how many.
    pub chunks: u16,
}

/// How a task that is passed on came, and where its reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via {
    /// Of the messages.
    pub version: u8,
    /// How often it was passed on.
    pub hops: u8,
    /// The node that passes it on.
    pub by: u16,
    /// The node that the client sent it to.
    pub origin: u16,
    /// The MAC address that its reply goes to.
    pub mac: Mac,
}

impl Via {
    /// Reads the last bytes of a task that was passed on; any values, which the receiver judges.
    ///
    /// # Errors
    /// The reason for which the packet must be dropped.
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
    /// Reads a request for a task, or the beginning of another word; any values, which the receiver judges.
    ///
    /// # Errors
    /// The reason for which the packet must be dropped.
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

    fn emit_numbered(&self, number: u64, bytes: &mut [u8]) {
        self.emit(bytes);
        bytes[REQUEST_LEN..NUMBERED_LEN].copy_from_slice(&number.to_be_bytes());
    }
}

impl Heartbeat {
    /// Reads what follows a task header; any values, which the receiver judges.
    ///
    /// # Errors
    /// The reason for which the packet must be dropped.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        if bytes.len() < HEARTBEAT_LEN {
            return Err(DropReason::TaskShort);
        }
        let (origin, number) = (Origin::parse(bytes)?, u64_at(bytes, REQUEST_LEN));
        let done = Done {
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
        let Done { migrations, steals, failed_tasks, failed_steals } = self.done;
        let words =
            [self.load.to_bits(), self.waiting, migrations, steals, failed_tasks, failed_steals];
        for (place, word) in words.into_iter().enumerate() {
            put_u32(bytes, NUMBERED_LEN + 4 * place, word);
        }
    }
}

impl Parameters {
    /// Reads what follows a task header; also the values behind it, which the receiver judges.
    ///
    /// # Errors
    /// The reason for which the packet must be dropped.
    pub fn parse(
        bytes: &[u8],
    ) -> Result<(Self, impl ExactSizeIterator<Item = f32> + Clone), DropReason> {
        if bytes.len() < PARAMETERS_LEN {
            return Err(DropReason::TaskShort);
        }
        let (origin, round) = (Origin::parse(bytes)?, u64_at(bytes, REQUEST_LEN));
        let (chunk, chunks) = (u16_at(bytes, 24), u16_at(bytes, 26));
        let len = VALUE_LEN * usize::from(u16_at(bytes, 28));
        let values = bytes[PARAMETERS_LEN..].get(..len).ok_or(DropReason::TaskShort)?;
        let values = values.chunks_exact(VALUE_LEN).map(|value| f32::from_bits(u32_at(value, 0)));
        Ok((Self { origin, round, chunk, chunks }, values))
    }

    /// Writes these with [`VALUES_MAX`] values at most; says how many bytes that is.
    pub fn emit(&self, values: &[f32], bytes: &mut [u8]) -> usize {
        self.origin.emit_numbered(self.round, bytes);
        put_u16(bytes, 24, self.chunk);
        put_u16(bytes, 26, self.chunks);
        put_u16(bytes, 28, values.len() as u16);
        put_u16(bytes, 30, 0);
        for (place, value) in values.iter().enumerate() {
            put_u32(bytes, PARAMETERS_LEN + VALUE_LEN * place, value.to_bits());
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
    fn heartbeats_are_read_as_they_were_written() {
        let done = Done { migrations: 1, steals: 2, failed_tasks: 3, failed_steals: u32::MAX };
        let beat = Heartbeat { origin: ORIGIN, number: 1 << 40, load: 1.5, waiting: 9, done };
        let mut bytes = [0xAA; HEARTBEAT_LEN];
        beat.emit(&mut bytes);
        assert_eq!(Heartbeat::parse(&bytes), Ok(beat));
        assert_eq!(bytes[..8], [VERSION, 7, 0, 14, 0, 3, 0, 0]);
        assert_eq!(bytes[24..32], [0x3F, 0xC0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(Heartbeat::parse(&bytes[..HEARTBEAT_LEN - 1]), Err(DropReason::TaskShort));
    }

    #[test]
    fn parameters_are_read_as_they_were_written_and_as_many_as_they_say() {
        let head = Parameters { origin: ORIGIN, round: 5, chunk: 1, chunks: 2 };
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
    fn requests_and_what_stands_behind_passed_tasks_are_read_as_they_were_written() {
        let mut bytes = [0xAA; REQUEST_LEN];
        ORIGIN.emit(&mut bytes);
        assert_eq!(Origin::parse(&bytes), Ok(ORIGIN));
        assert_eq!(Origin::parse(&bytes[1..]), Err(DropReason::TaskShort));
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let via = Via { version: VERSION, hops: 2, by: 3, origin: 0x0405, mac };
        let mut bytes = [0xAA; VIA_LEN + 3];
        via.emit(&mut bytes[3..]);
        assert_eq!(bytes[..9], [0xAA, 0xAA, 0xAA, VERSION, 2, 0, 3, 4, 5]);
        assert_eq!(Via::parse(&bytes), Ok(via), "the last bytes");
        assert_eq!(Via::parse(&bytes[4..]), Err(DropReason::TaskShort));
    }
}
