//! Private caches under MESI (the usual cache-coherence protocol) without capacity limits. The remaining
//! misses and upgrades are those that cores cause each other.

use std::collections::HashMap;

/// Bytes per cache line.
pub const LINE: u64 = 64;

/// Cost of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No move: the core had the line in a sufficient state.
    Hit,
    /// Fetch from memory: no core had written the line, and a writer finds no copies.
    First,
    /// Fetch by a core without a copy: some core wrote the line before, or a write must invalidate other cores' copies.
    Transfer,
    /// Invalidation of copies in other cores, for a write to a line that this core had.
    Upgrade,
}

/// State of a line: a bit mask of the cores that have a copy, and true if any core ever wrote it. After a
/// write, the writing core is the only holder.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    holders: u64,
    written: bool,
}

/// Caches of up to 64 cores.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// State of each line by its number.
    lines: HashMap<u64, Line>,
}

impl Caches {
    /// Reads or writes line number `line` on a core.
    pub fn access(&mut self, core: usize, line: u64, writes: bool) -> Outcome {
        let line = self.lines.entry(line).or_default();
        let this_core = 1 << core;
        let other_cores = line.holders & !this_core;
        let outcome = match (line.holders & this_core != 0, writes) {
            (true, true) if other_cores != 0 => Outcome::Upgrade,
            (true, _) => Outcome::Hit,
            (false, true) if other_cores != 0 => Outcome::Transfer,
            (false, _) if line.written => Outcome::Transfer,
            (false, _) => Outcome::First,
        };
        line.written |= writes;
        line.holders = if writes { this_core } else { line.holders | this_core };
        outcome
    }
}

/// Returns the numbers of the lines that `bytes` bytes from `address` touch.
pub fn lines(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    address / LINE..=(address + bytes.max(1) - 1) / LINE
}

#[cfg(test)]
mod tests {
    use super::Outcome::{First, Hit, Transfer, Upgrade};
    use super::*;

    /// Checks accesses to one line: each is a core, true for a write, and the expected outcome.
    fn assert_takes(accesses: &[(usize, bool, Outcome)]) {
        let mut caches = Caches::default();
        for (index, &(core, writes, expected)) in accesses.iter().enumerate() {
            assert_eq!(caches.access(core, 7, writes), expected, "access {index} of {accesses:?}");
        }
    }

    // promise: speed.2
    #[test]
    fn private_lines_cost_nothing() {
        assert_takes(&[(3, false, First), (3, true, Hit), (3, false, Hit), (3, true, Hit)]);
        assert_takes(&[(63, true, First), (63, false, Hit)]);
    }

    // promise: speed.2
    #[test]
    fn read_only_line_is_fetched_once_per_core() {
        assert_takes(&[(0, false, First), (1, false, First), (0, false, Hit), (1, false, Hit)]);
    }

    /// A reply on core 0 writes a report and the next choice of core 1 reads it: a transfer. The next reply
    /// is an upgrade.
    // promise: speed.2
    #[test]
    fn producer_consumer_word_costs_transfer_and_upgrade() {
        let mut turns = vec![(0, true, First), (1, false, Transfer)];
        for _ in 0..5 {
            turns.extend([
                (0, false, Hit),
                (0, true, Upgrade),
                (1, false, Transfer),
                (1, false, Hit),
            ]);
        }
        assert_takes(&turns);
    }

    // promise: speed.2
    #[test]
    fn word_written_by_two_cores_moves_each_time() {
        assert_takes(&[(0, true, First), (1, true, Transfer), (0, true, Transfer), (0, true, Hit)]);
    }

    // promise: speed.2
    #[test]
    fn each_reader_of_a_written_line_transfers_it() {
        assert_takes(&[
            (0, true, First),
            (1, false, Transfer),
            (2, false, Transfer),
            (1, true, Upgrade),
            (2, false, Transfer),
            (0, false, Transfer),
            (2, true, Upgrade),
            (2, true, Hit),
        ]);
    }

    // promise: speed.2
    #[test]
    fn writer_takes_the_line_from_its_readers() {
        assert_takes(&[(0, false, First), (1, true, Transfer), (0, false, Transfer)]);
    }

    // promise: speed.2
    #[test]
    fn straddling_access_touches_two_lines() {
        let mut caches = Caches::default();
        assert_eq!(caches.access(0, 1, true), First);
        assert_eq!(caches.access(1, 2, true), First);
        assert_eq!(caches.access(0, 1, true), Hit);
        assert_eq!(lines(0x1000, 8).collect::<Vec<_>>(), [0x40]);
        assert_eq!(lines(0x103F, 1).collect::<Vec<_>>(), [0x40]);
        assert_eq!(lines(0x1030, 32).collect::<Vec<_>>(), [0x40, 0x41]);
        assert_eq!(lines(0x1000, 0).collect::<Vec<_>>(), [0x40]);
    }
}
