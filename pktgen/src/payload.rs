//! Payload of tasks and answers after the task header. This file defines the format.
//!
//! A task's [`Work`]:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u32 | service_ns | requested processing time, for workloads that spin |
//! | 4 | u16 | operation | the task's class, such as RocksDB's 1 = GET, 2 = SCAN |
//! | 6 | u16 | reserved | 0 on sending, ignored on receipt |
//! | 8 | u64 | seed | argument of the operation, such as the keys to read |
//!
//! An answer's [`Outcome`] has the same length, so that a worker can write it over the task:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u32 | objects | number of objects read |
//! | 4 | u16 | operation | the task's operation |
//! | 6 | u16 | status | 0 done, 1 operation unknown to this workload, 2 database failure |
//! | 8 | u64 | digest | of the data read or computed, see [`crate::oracle`] |
//!
//! All fields are big-endian. Offsets count from the end of the task header, extension included (byte 11 or
//! 27 of the UDP payload). Padding may follow. An echo returns the task's bytes instead of an outcome.
//! Packets carry no send times. The generator stores these by sequence number, so a worker need not echo the
//! payload and cannot falsify a latency.

use wedjat::wire::task::Header;

use crate::seed::mixed;

/// Bytes of [`Work`] and of [`Outcome`].
pub const LEN: usize = 16;

/// Work that a task requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Processing time.
    pub service_ns: u32,
    /// Operation.
    pub operation: u16,
    /// Argument of the operation.
    pub seed: u64,
}

impl Work {
    /// Writes the wire format at the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`LEN`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..LEN].copy_from_slice(&self.bytes());
    }

    /// Returns the wire format. The generator copies it into each frame.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let head = u64::from(self.service_ns) << 32 | u64::from(self.operation) << 16;
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&head.to_be_bytes());
        bytes[8..].copy_from_slice(&self.seed.to_be_bytes());
        bytes
    }

    /// Reads a task's work from the start of `bytes`. Returns `None` for an incomplete service time. With fewer than
    /// [`LEN`] bytes, operation and seed are 0: a spinning task needs only the 4 bytes of the service time.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let service_ns = u32::from_be_bytes(*bytes.first_chunk()?);
        let rest = bytes.first_chunk::<LEN>().map(|all| {
            // The last eight bytes are the seed.
            let [.., a, b, c, d, e, f, g, h] = *all;
            (u16::from_be_bytes([all[4], all[5]]), u64::from_be_bytes([a, b, c, d, e, f, g, h]))
        });
        let (operation, seed) = rest.unwrap_or_default();
        Some(Self { service_ns, operation, seed })
    }
}

/// Result of a task at its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The task was done.
    #[default]
    Done = 0,
    /// The workload does not have the operation.
    UnknownOperation = 1,
    /// The database failed.
    Failed = 2,
}

/// Contents of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of objects read.
    pub objects: u32,
    /// The task's operation.
    pub operation: u16,
    /// Result.
    pub status: Status,
    /// Digest of the data read or computed.
    pub digest: u64,
}

impl Outcome {
    /// Writes the wire format at the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`LEN`].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..LEN].copy_from_slice(&self.bytes());
    }

    /// Returns the wire format. The oracle compares it with the answer's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&self.objects.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.operation.to_be_bytes());
        bytes[6..8].copy_from_slice(&(self.status as u16).to_be_bytes());
        bytes[8..].copy_from_slice(&self.digest.to_be_bytes());
        bytes
    }
}

/// Returns the processing time requested in a UDP payload; `None` if the payload is too short. Emulated workers and
/// the trace reader use it.
#[inline]
#[must_use]
pub fn service_ns(payload: &[u8], header: &Header) -> Option<u32> {
    Work::parse(payload.get(header.len()..)?).map(|work| work.service_ns)
}

/// Returns the seed of the task with this application id and sequence number. A client computes the correct answer
/// from them, without storing it.
#[inline]
#[must_use]
pub fn seed_of(app: u32, seq: u32) -> u64 {
    mixed(u64::from(app) << 32 | u64::from(seq))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_follows_the_header_short_or_extended() {
        for (extended, offset) in [(false, 11), (true, 27)] {
            let header = Header { extended, ..Header::new_task(1, 7) };
            let mut payload = vec![0; offset + LEN];
            header.emit(&mut payload);
            let work = Work { service_ns: 50_000, operation: 2, seed: 0x0102_0304_0506_0708 };
            work.emit(&mut payload[offset..]);
            assert_eq!(payload[offset..][..8], [0, 0, 0xC3, 0x50, 0, 2, 0, 0]);
            assert_eq!(payload[offset..][8..], [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(Work::parse(&payload[offset..]), Some(work));
            assert_eq!(service_ns(&payload, &header), Some(50_000));
            assert_eq!(service_ns(&payload[..offset + 3], &header), None);
            assert_eq!(service_ns(&[], &header), None);
        }
    }

    #[test]
    fn missing_operation_and_seed_are_zero() {
        let work = Work { service_ns: 9, operation: 0, seed: 0 };
        assert_eq!(Work::parse(&[0, 0, 0, 9]), Some(work));
        assert_eq!(Work::parse(&[0, 0, 0, 9, 0, 1, 0, 0, 7]), Some(work));
    }

    #[test]
    fn outcomes_have_golden_bytes() {
        let outcome = Outcome { objects: 60, operation: 1, status: Status::Failed, digest: 0xA1B2 };
        assert_eq!(outcome.bytes(), [0, 0, 0, 60, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0xA1, 0xB2]);
    }
}
