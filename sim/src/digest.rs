//! Digest of a run: a hash of its completed tasks, or of its packets in lockstep of a whole system. Runs with equal
//! digests are equal in these.

use std::fmt;

/// FNV-1a's offset basis and prime for 64 bits (Fowler, Noll, Vo).
const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01B3;

/// FNV-1a over the added values, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(OFFSET_BASIS)
    }
}

impl Digest {
    /// Adds four numbers. The simulator adds those of a completed task: number, worker (a node in model `nodes`), start
    /// of service, and response time in ticks. Lockstep of a whole system adds those of an arriving packet.
    #[inline]
    pub fn add(&mut self, task: [u64; 4]) {
        for byte in task.iter().flat_map(|number| number.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Summary of a run of the simulator, for comparison with a repetition or with lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Digest of all completed tasks in the order of completion: number, worker, start and response time.
    pub digest: Digest,
    /// Tasks whose replies reached their leaf or dispatcher; in model `nodes`, tasks that were not lost.
    pub answered: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: emulated-time.2
    #[test]
    fn digest_depends_on_tasks_and_their_order() {
        let digest = |tasks: &[[u64; 4]]| {
            let mut digest = Digest::default();
            tasks.iter().for_each(|task| digest.add(*task));
            digest
        };
        assert_eq!(Digest::default().to_string(), "cbf29ce484222325");
        let one = digest(&[[1, 2, 3, 4], [5, 6, 7, 8]]);
        assert_eq!(one, digest(&[[1, 2, 3, 4], [5, 6, 7, 8]]));
        assert_ne!(one, digest(&[[5, 6, 7, 8], [1, 2, 3, 4]]));
        assert_ne!(one, digest(&[[1, 2, 3, 4], [5, 6, 7, 9]]));
        assert_ne!(digest(&[[0; 4]]), digest(&[[0; 4], [0; 4]]));
    }
}
