//! Private caches that are kept coherent by MESI and never lose a line for want of room: what is left are the misses and
//! upgrades that cores cause each other.

use std::collections::HashMap;

/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// What an access to a line took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: the core had the line as it needed it.
    Hit,
    /// The line from memory: no core had written it.
    First,
    /// The line from another core, which has written it since this core had it, or has to give it up now.
    Transfer,
    /// Leave to write a line that this core had, and that others had to give up.
    Upgrade,
}

/// A line: which cores have it, a bit each, and whether any has ever written it. One that writes is the only one to have it.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    holders: u64,
    written: bool,
}

/// The caches of up to 64 cores.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    lines: HashMap<u64, Line>,
}

impl Caches {
    /// A core reads or writes the line of this number.
    pub fn access(&mut self, core: usize, line: u64, writes: bool) -> Outcome {
        let line = self.lines.entry(line).or_default();
        let own = 1 << core;
        let others = line.holders & !own;
        let outcome = match (line.holders & own != 0, writes) {
            (true, true) if others != 0 => Outcome::Upgrade,
            (true, _) => Outcome::Hit,
            (false, true) if others != 0 => Outcome::Transfer,
            (false, _) if line.written => Outcome::Transfer,
            (false, _) => Outcome::First,
        };
        line.written |= writes;
        line.holders = if writes { own } else { line.holders | own };
        outcome
    }
}

/// The lines that so many bytes from an address on lie in.
pub fn lines(address: u64, bytes: u64) -> impl Iterator<Item = u64> {
    address / LINE..=(address + bytes.max(1) - 1) / LINE
}

#[cfg(test)]
mod tests {
    use super::Outcome::{First, Hit, Transfer, Upgrade};
    use super::*;

    /// Accesses to one line, as core and whether it writes, with what each should take.
    fn assert_takes(accesses: &[(usize, bool, Outcome)]) {
        let mut caches = Caches::default();
        for (at, &(core, writes, expected)) in accesses.iter().enumerate() {
            assert_eq!(caches.access(core, 7, writes), expected, "access {at} of {accesses:?}");
        }
    }

    #[test]
    fn what_one_core_has_costs_nothing() {
        assert_takes(&[(3, false, First), (3, true, Hit), (3, false, Hit), (3, true, Hit)]);
        assert_takes(&[(63, true, First), (63, false, Hit)]);
    }

    #[test]
    fn what_nobody_writes_is_fetched_once_by_each() {
        assert_takes(&[(0, false, First), (1, false, First), (0, false, Hit), (1, false, Hit)]);
    }

    /// A reply on core 0 writes a report, the next choice of core 1 reads it: a transfer; and the next reply an upgrade.
    #[test]
    fn a_word_that_one_core_writes_and_another_reads_costs_a_transfer_and_an_upgrade() {
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

    #[test]
    fn a_word_that_two_cores_write_is_transferred_each_time() {
        assert_takes(&[(0, true, First), (1, true, Transfer), (0, true, Transfer), (0, true, Hit)]);
    }

    #[test]
    fn each_reader_of_what_was_written_gets_it_by_a_transfer() {
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

    #[test]
    fn who_writes_what_others_only_read_takes_it_from_them() {
        assert_takes(&[(0, false, First), (1, true, Transfer), (0, false, Transfer)]);
    }

    #[test]
    fn lines_are_apart_and_an_access_may_lie_in_two() {
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
