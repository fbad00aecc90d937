//! Pauses that this machine imposes on a program that never waits. They are the reason for the demo's
//! emulated time, which is the default: in real time, they would dominate response times.

use std::time::{Duration, Instant};

use serde::Serialize;
use wedjat_pktgen::results::chart::{Axis, Chart, Line, Point, Style};

use super::page::PlotError;

/// Shortest gap between two clock readings that counts as a pause.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// Maximum number of recorded pauses. The memory is reserved, so that recording one never allocates.
const PAUSES_MAX: usize = 100_000;
/// Size of the plot in pixels.
const SIZE: (u32, u32) = (900, 240);

/// Time in which the program did not run, although it was ready.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MachinePause {
    /// Start of the pause, in milliseconds from the start of the observation.
    pub at_ms: f64,
    /// Duration in microseconds.
    pub us: f64,
}

/// Pauses of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Pauses {
    /// Observed time in seconds.
    pub seconds: f64,
    /// Number of recorded pauses: the first 100,000 of more than 20 us.
    pub count: usize,
    /// Longest recorded pause in microseconds.
    pub longest_us: f64,
    /// Fraction of the time spent in recorded pauses.
    pub share: f64,
    /// All recorded pauses.
    #[serde(skip)]
    pub all: Vec<MachinePause>,
}

impl Pauses {
    /// Records the pauses of the calling thread for `length`: it reads the clock continuously, and a large gap between
    /// two readings is a pause.
    #[must_use]
    pub fn watch(length: Duration) -> Self {
        let start = Instant::now();
        let mut all = Vec::with_capacity(PAUSES_MAX);
        let (mut previous, mut now) = (start, start);
        while now - start < length {
            now = Instant::now();
            let gap = now - previous;
            if gap > PAUSE_MIN && all.len() < PAUSES_MAX {
                let at_ms = (previous - start).as_secs_f64() * 1e3;
                all.push(MachinePause { at_ms, us: gap.as_secs_f64() * 1e6 });
            }
            previous = now;
        }
        Self::of(all, (now - start).as_secs_f64())
    }

    /// Computes the totals of the pauses in `seconds` seconds.
    fn of(all: Vec<MachinePause>, seconds: f64) -> Self {
        Self {
            seconds,
            count: all.len(),
            longest_us: all.iter().map(|pause| pause.us).fold(0.0, f64::max),
            share: all.iter().map(|pause| pause.us).sum::<f64>() / 1e6 / seconds,
            all,
        }
    }

    /// Plots the pauses over time, each as a line with its duration as height, on a logarithmic scale.
    ///
    /// # Errors
    /// If the plot cannot be drawn.
    pub fn plot(&self) -> Result<String, PlotError> {
        let min_us = PAUSE_MIN.as_secs_f64() * 1e6;
        let max_us = (self.longest_us * 2.0).max(10.0 * min_us);
        let points = self.all.iter().map(|pause| Point::new(pause.at_ms, pause.us)).collect();
        let x = Axis::linear("time, ms").over(0.0..self.seconds * 1e3);
        let y = Axis::log("pause, us").over(min_us..max_us);
        Chart::new(x, y, vec![Line::new("", 1, points).style(Style::Impulses)]).svg(SIZE)
    }
}

impl std::fmt::Display for Pauses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seconds, count, longest_us, share, .. } = self;
        write!(
            f,
            "in {seconds:.1} s this machine interrupted a program that only reads the clock {count} times for more than 20 \
             us, longest {longest_us:.0} us, {:.2}% of the time",
            100.0 * share
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_counted_and_drawn() {
        let pauses = |us: &[f64]| {
            let all = us.iter().enumerate();
            Pauses::of(all.map(|(at, &us)| MachinePause { at_ms: at as f64, us }).collect(), 0.01)
        };
        let some = pauses(&[30.0, 4000.0, 70.0]);
        assert_eq!((some.count, some.longest_us), (3, 4000.0));
        // The pauses take 4100 us of 10 ms.
        assert!((some.share - 0.41).abs() < 1e-9 && some.to_string().contains("41.00%"), "{some}");
        let none = pauses(&[]);
        assert!(none.plot().unwrap().len() < some.plot().unwrap().len());
        let watched = Pauses::watch(Duration::from_millis(1));
        assert!(watched.seconds >= 0.001 && watched.count == watched.all.len());
    }
}
