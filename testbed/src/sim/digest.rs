//! One number for all that a run decided: two runs with the same are the same, task by task.

use std::fmt;

/// FNV-1a's start and factor for 64 bits (Fowler, Noll, Vo).
const START: u64 = 0xCBF2_9CE4_8422_2325;
const FACTOR: u64 = 0x0000_0100_0000_01B3;

/// FNV-1a of what was added, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(START)
    }
}

impl Digest {
    /// Adds a task that is done: its number, its worker, when it started and how long it was in the system, in ticks.
    #[inline]
    pub fn add(&mut self, task: [u64; 4]) {
        for byte in task.iter().flat_map(|number| number.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(FACTOR);
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a run did, task by task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of all tasks that were done, in the order in which they were: number, worker, start and response.
    pub digest: Digest,
    /// Tasks whose answers came back to their leaf.
    pub answered: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_tasks_and_their_order_apart() {
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
