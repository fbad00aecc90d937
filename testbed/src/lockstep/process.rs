//! A leaf in a process of its own, on the conductor's clock. The conductor is the testbed's code that advances
//! emulated time and gives nodes their turns. In a turn, a node polls until it is quiet.

use std::time::{Duration, Instant};

use core_affinity::CoreId;
use wedjat::clock::{Conductor, Line, TurnError};

use super::Scheduler;

/// Number of turns of a window, over which a CPU's speed is measured.
const WINDOW: u32 = 512;
/// Number of windows after which the unused CPU is measured again. About 1% of the turns serve to measure.
const TRY_AFTER: u32 = 96;

/// A leaf process whose clock the conductor controls.
#[derive(Debug)]
pub struct Process {
    conductor: Conductor,
    /// Index of the process among the conductor's nodes.
    node: usize,
    /// `None` to leave the thread where it is.
    cpu_choice: Option<CpuChoice>,
}

impl Process {
    /// Creates the scheduler for the conductor's node `node`.
    #[must_use]
    pub fn new(conductor: Conductor, node: usize) -> Self {
        Self { conductor, node, cpu_choice: None }
    }

    /// Lets the conductor's thread run on the leaf's CPU or on a second CPU, whichever gives the shorter turns. The
    /// caller pins the thread to the second CPU before its first turn.
    #[must_use]
    pub fn on(mut self, leaf_cpu: usize, second_cpu: usize) -> Self {
        self.cpu_choice = (leaf_cpu != second_cpu).then(|| CpuChoice::new([leaf_cpu, second_cpu]));
        self
    }

    /// Ends the run, and with it the leaf in order.
    pub fn end(&mut self) {
        self.conductor.end();
    }
}

impl Scheduler for Process {
    #[inline]
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        if let Some(cpu_choice) = &mut self.cpu_choice {
            cpu_choice.count_turn();
        }
        self.conductor.set_now_ns(now_ns);
        self.conductor.turn(self.node)
    }
}

/// Choice of the CPU for the conductor's thread, by the duration of its turns.
///
/// Turns are shortest on a separate CPU that runs no other program. If other programs use that CPU, the
/// conductor waits for it, for milliseconds at a time. The leaf's CPU is then better: leaf and conductor never
/// run at the same time.
#[derive(Debug)]
struct CpuChoice {
    cpus: [usize; 2],
    /// Index of the current CPU.
    current: usize,
    /// Duration of the last window on each CPU; `None` before the first one.
    durations: [Option<Duration>; 2],
    /// Turns in the current window.
    turns: u32,
    /// Windows since the unused CPU was last measured.
    windows: u32,
    /// Start of the current window.
    began: Instant,
}

impl CpuChoice {
    /// Creates the choice for a thread on the second CPU.
    fn new(cpus: [usize; 2]) -> Self {
        Self { cpus, current: 1, durations: [None; 2], turns: 0, windows: 0, began: Instant::now() }
    }

    /// Counts a turn. At the end of a window, moves the thread to the better CPU.
    #[inline]
    fn count_turn(&mut self) {
        self.turns += 1;
        if self.turns == WINDOW {
            let duration = self.began.elapsed();
            let next = self.next_cpu(duration);
            if next != self.current {
                self.current = next;
                // A refusal by the system is harmless: turns only stay as long as before.
                core_affinity::set_for_current(CoreId { id: self.cpus[next] });
            }
            (self.turns, self.began) = (0, Instant::now());
        }
    }

    /// Records a window's duration. Returns the index of the CPU for the next window: the faster one, or the
    /// unused one if its duration is unknown or old.
    fn next_cpu(&mut self, duration: Duration) -> usize {
        let unused = 1 - self.current;
        self.durations[self.current] = Some(duration);
        self.windows += 1;
        match self.durations[unused] {
            Some(unused_duration) if self.windows < TRY_AFTER => {
                let is_better = unused_duration < duration;
                if is_better { unused } else { self.current }
            }
            _ => {
                self.windows = 0;
                unused
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slower CPU only gets the windows that measure it, also after another program has slowed the faster
    /// one.
    // promise: emulated-time.1
    #[test]
    fn better_cpu_is_chosen_and_the_other_retried() {
        let mut cpu_choice = CpuChoice::new([0, 1]);
        let mut durations = [Duration::from_millis(9), Duration::from_millis(2)];
        // Simulates `count` windows, each as long as `durations` says for its CPU. Returns the number on each CPU.
        let mut windows = |durations: &[Duration; 2], count: u32| {
            let mut uses = [0_u32; 2];
            for _ in 0..count {
                uses[cpu_choice.current] += 1;
                cpu_choice.current = cpu_choice.next_cpu(durations[cpu_choice.current]);
            }
            uses
        };
        // 960 windows: ten measurements of the slower CPU, and a few windows until the choice changes.
        let uses = windows(&durations, 960);
        assert!((8..=20).contains(&uses[0]), "{uses:?}");
        // Another program starts on the CPU that was free.
        durations[1] = Duration::from_millis(40);
        let uses = windows(&durations, 960);
        assert!((8..=20).contains(&uses[1]), "{uses:?}");
    }
}
