//! A leaf that is a process of its own, on the conductor's clock.

use std::time::{Duration, Instant};

use core_affinity::CoreId;
use wedjat::clock::{Conductor, Line, TurnError};

use super::Scheduler;

/// Turns over which a place is judged.
const WINDOW: u32 = 512;
/// The other place is tried again after so many windows.
const TRY_AFTER: u32 = 96;

/// See the module's text: the leaf has joined the clock.
#[derive(Debug)]
pub struct Process {
    conductor: Conductor,
    node: usize,
    place: Option<Place>,
}

impl Process {
    /// The node of this number of the conductor's.
    #[must_use]
    pub fn new(conductor: Conductor, node: usize) -> Self {
        Self { conductor, node, place: None }
    }

    /// The same, and the thread that gives the turns runs on one of these CPUs, of which the first is the leaf's: on whichever
    /// turns are soonest over.
    #[must_use]
    pub fn on(mut self, leaf: usize, other: usize) -> Self {
        self.place = (leaf != other).then(|| Place::new([leaf, other]));
        self
    }

    /// Ends the run: the leaf ends in order.
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

/// Where the conductor runs. On a CPU of its own turns are over soonest while nothing else runs there; where other programs do,
/// leaf and conductor wait for each other's turn of the CPU, for milliseconds at a time. On one CPU they never run at once
/// anyway, and hand it to each other.
#[derive(Debug)]
struct Place {
    cpus: [usize; 2],
    /// Which of them it is.
    at: usize,
    /// What a window took there last.
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
                // Should that be refused, turns there take what they take here.
                core_affinity::set_for_current(CoreId { id: self.cpus[next] });
            }
            (self.turns, self.began) = (0, Instant::now());
        }
    }

    /// A window took so long; which of the two places is next.
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

    #[test]
    fn the_better_place_is_found_and_the_other_tried_again() {
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
        // Somebody else comes to the CPU that was free.
        took[1] = Duration::from_millis(40);
        let at = windows(&took, 960);
        assert!((8..=20).contains(&at[1]), "{at:?}");
    }
}
