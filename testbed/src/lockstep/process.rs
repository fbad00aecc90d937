//! A leaf in a process of its own, on the conductor's clock.

use std::time::{Duration, Instant};

use core_affinity::CoreId;
use wedjat::clock::{Conductor, Line, TurnError};

use super::Scheduler;

/// Number of turns by which a CPU is judged.
const WINDOW: u32 = 512;
/// Number of windows after which the other CPU is tried again.
const TRY_AFTER: u32 = 96;

/// A leaf process that has joined the clock; see the module's documentation.
#[derive(Debug)]
pub struct Process {
    conductor: Conductor,
    node: usize,
    place: Option<Place>,
}

impl Process {
    /// Creates the scheduler for the conductor's node `node`.
    #[must_use]
    pub fn new(conductor: Conductor, node: usize) -> Self {
        Self { conductor, node, place: None }
    }

    /// Lets the thread that gives the turns run on one of two CPUs, the leaf's own first. It uses the CPU
    /// with the shorter turns.
    #[must_use]
    pub fn on(mut self, leaf: usize, other: usize) -> Self {
        self.place = (leaf != other).then(|| Place::new([leaf, other]));
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
        if let Some(place) = &mut self.place {
            place.count_turn();
        }
        self.conductor.set_now_ns(now_ns);
        self.conductor.turn(self.node)
    }
}

/// CPU of the conductor's thread. Turns are shortest on a CPU of its own without other programs. Beside other
/// programs, leaf and conductor wait for their turn on the CPU, for milliseconds at a time. Sharing one CPU
/// costs nothing: leaf and conductor never run at once, and hand the CPU to each other.
#[derive(Debug)]
struct Place {
    cpus: [usize; 2],
    /// Index of the current CPU.
    at: usize,
    /// Duration of the last window on each CPU.
    took: [Option<Duration>; 2],
    turns: u32,
    windows: u32,
    began: Instant,
}

impl Place {
    fn new(cpus: [usize; 2]) -> Self {
        Self { cpus, at: 1, took: [None; 2], turns: 0, windows: 0, began: Instant::now() }
    }

    #[inline]
    fn count_turn(&mut self) {
        self.turns += 1;
        if self.turns == WINDOW {
            let took = self.began.elapsed();
            let next = self.judge(took);
            if next != self.at {
                self.at = next;
                // If the system refuses, turns take as long as before.
                core_affinity::set_for_current(CoreId { id: self.cpus[next] });
            }
            (self.turns, self.began) = (0, Instant::now());
        }
    }

    /// Records a window's duration. Returns the index of the next CPU.
    fn judge(&mut self, took: Duration) -> usize {
        let other = 1 - self.at;
        self.took[self.at] = Some(took);
        self.windows += 1;
        match self.took[other] {
            Some(there) if self.windows < TRY_AFTER => {
                let better = there < took;
                if better { other } else { self.at }
            }
            _ => {
                self.windows = 0;
                other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: emulated-time.1
    #[test]
    fn better_cpu_is_chosen_and_the_other_retried() {
        let mut place = Place::new([0, 1]);
        let mut took = [Duration::from_millis(9), Duration::from_millis(2)];
        let mut windows = |took: &[Duration; 2], count: u32| {
            let mut at = [0_u32; 2];
            for _ in 0..count {
                at[place.at] += 1;
                place.at = place.judge(took[place.at]);
            }
            at
        };
        let at = windows(&took, 960);
        assert!((8..=20).contains(&at[0]), "{at:?}");
        // Another program starts on the CPU that was free.
        took[1] = Duration::from_millis(40);
        let at = windows(&took, 960);
        assert!((8..=20).contains(&at[1]), "{at:?}");
    }
}
