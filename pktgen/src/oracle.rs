//! Correct answers, computed from a task's id alone, without storing the task. The generator checks received answers
//! with them if `--verify` is given. A task's id is its application id and sequence number, from which its seed
//! derives.
//!
//! | workload | correct answer to a task with seed s |
//! |---|---|
//! | spin, tpcc | its operation, no objects, digest [`spun`]\(s) |
//! | RocksDB, GET | 60 objects, digest the sum of theirs ([`crate::objects`]) |
//! | RocksDB, SCAN | 5,000 objects, digest the sum of theirs |
//! | echo | the task's own bytes |

use crate::mix::Workload;
use crate::objects::{self, GET, GETS, OBJECTS, SCAN};
use crate::payload::{self, LEN, Outcome, Status, Work};
use crate::seed::mixed;

/// Returns the digest of a spun task with this seed. Only a worker that has read the seed can answer with it.
#[inline]
#[must_use]
pub fn spun(seed: u64) -> u64 {
    mixed(!seed)
}

/// Computes the correct answers to the tasks of a workload.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// Workload of the workers.
    workload: Workload,
    /// RocksDB: digest of each object.
    digests: Box<[u64]>,
    /// RocksDB: digest of all objects.
    all: u64,
    /// Echo: bytes after the task header.
    echo_len: usize,
}

impl Oracle {
    /// Creates an oracle for tasks with `echo_len` bytes after their headers.
    #[must_use]
    pub fn new(workload: Workload, echo_len: usize) -> Self {
        let objects = if workload == Workload::RocksDb { OBJECTS } else { 0 };
        let digests: Box<[u64]> =
            (0..objects).map(|n| objects::digest(&objects::key(n), &objects::value(n))).collect();
        let all = digests.iter().fold(0, |sum: u64, digest| sum.wrapping_add(*digest));
        Self { workload, digests, all, echo_len }
    }

    /// Returns the operation of task (`app`, `seq`) to which `body`, the bytes after an answer's header, is
    /// the correct answer. `None` if there is no such operation. The caller checks that the task requested
    /// that operation.
    #[inline]
    #[must_use]
    pub fn answered(&self, app: u32, seq: u32, body: &[u8]) -> Option<u16> {
        let seed = payload::seed_of(app, seq);
        if self.workload == Workload::Echo {
            return self.echoed_operation(seed, body);
        }
        let answer = body.first_chunk::<LEN>()?;
        let operation = u16::from_be_bytes([answer[4], answer[5]]);
        (self.outcome(operation, seed)?.bytes() == *answer).then_some(operation)
    }

    /// Returns the operation of an echoed task, if the echo is exact.
    fn echoed_operation(&self, seed: u64, body: &[u8]) -> Option<u16> {
        let work = Work::parse(body)?;
        // An echo requests no service time.
        let mut sent = [0; LEN];
        Work { service_ns: 0, operation: work.operation, seed }.emit(&mut sent);
        let (head, padding) = body.split_at_checked(LEN)?;
        let is_complete = body.len() == self.echo_len && padding.iter().all(|byte| *byte == 0);
        (is_complete && head == sent).then_some(work.operation)
    }

    /// Returns the correct answer to an operation, if the workload has it.
    #[must_use]
    pub fn outcome(&self, operation: u16, seed: u64) -> Option<Outcome> {
        let (objects, digest) = match (self.workload, operation) {
            (Workload::RocksDb, GET) => (GETS, self.digest_of_get(seed)),
            (Workload::RocksDb, SCAN) => (OBJECTS, self.all),
            (Workload::Spin | Workload::Tpcc, _) => (0, spun(seed)),
            (Workload::RocksDb | Workload::Echo, _) => return None,
        };
        Some(Outcome { objects, operation, status: Status::Done, digest })
    }

    /// Returns the digest of the objects that a GET with this seed reads.
    fn digest_of_get(&self, seed: u64) -> u64 {
        objects::read_by(seed)
            .fold(0, |sum: u64, number| sum.wrapping_add(self.digests[number as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: measurement.3
    #[test]
    fn right_answers_are_known_and_others_refused() {
        for (workload, operation, objects) in [
            (Workload::Spin, 1, 0),
            (Workload::Tpcc, 5, 0),
            (Workload::RocksDb, GET, 60),
            (Workload::RocksDb, SCAN, 5_000),
        ] {
            let oracle = Oracle::new(workload, LEN);
            let outcome = oracle.outcome(operation, payload::seed_of(3, 4)).unwrap();
            assert_eq!(outcome.objects, objects);
            let right = outcome.bytes();
            assert_eq!(oracle.answered(3, 4, &right), Some(operation));
            // An answer to another task: a SCAN reads the same objects for every seed.
            let other = oracle.answered(3, 5, &right);
            assert_eq!(other.is_some(), operation == SCAN && workload == Workload::RocksDb);
            for at in 0..LEN {
                let mut wrong = right;
                wrong[at] ^= 4;
                assert_ne!(oracle.answered(3, 4, &wrong), Some(operation), "byte {at}");
            }
            assert_eq!(oracle.answered(3, 4, &right[..LEN - 1]), None);
        }
    }

    #[test]
    fn echo_answer_equals_the_task() {
        let oracle = Oracle::new(Workload::Echo, 20);
        let mut body = [0; 20];
        Work { service_ns: 0, operation: 1, seed: payload::seed_of(3, 4) }.emit(&mut body);
        assert_eq!(oracle.answered(3, 4, &body), Some(1));
        assert_eq!(oracle.answered(3, 5, &body), None);
        assert_eq!(oracle.answered(3, 4, &body[..19]), None);
        assert_eq!(oracle.answered(3, 4, &[]), None);
        body[19] = 1;
        assert_eq!(oracle.answered(3, 4, &body), None);
    }

    #[test]
    fn missing_operations_have_no_right_answer() {
        let oracle = Oracle::new(Workload::RocksDb, LEN);
        let outcome = Outcome { operation: 3, ..Outcome::default() };
        assert_eq!(oracle.answered(3, 4, &outcome.bytes()), None);
        assert_eq!(oracle.answered(3, 4, &[0; LEN]), None);
    }
}
