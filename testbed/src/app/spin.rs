//! Busy work of a requested length, calibrated on the machine that it runs on.
//!
//! The work is a chain of multiplications, each waiting for the one before: its pace is the core's clock and
//! little else, whatever a neighbour on the same core does. Spinning on a clock instead would let a worker that loses
//! its CPU be done in time, which no real task is.

use std::fmt;
use std::hint::black_box;

use wedjat_pktgen::oracle::spun;
use wedjat_pktgen::payload::Outcome;

use super::{App, answer};

/// Calibration is good when what it promises is off by less than this.
pub const ERROR_MAX: f64 = 0.03;
/// Calibrations tried before the best of them is taken.
const ATTEMPTS: u32 = 10;
/// Rounds of the two lengths between which the pace is measured.
const SHORT: u64 = 5_000;
const LONG: u64 = 105_000;
/// Each length is measured so often.
const SAMPLES: usize = 51;
/// Times at which a calibration is checked.
const CHECKED_NS: [f64; 3] = [10_000.0, 50_000.0, 200_000.0];

/// A machine's pace at busy work.
#[derive(Clone, Debug, PartialEq)]
pub struct Spin {
    rounds_per_ns: f64,
    /// What a task takes without any round.
    overhead_ns: f64,
}

/// What a calibration found.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The pace.
    pub spin: Spin,
    /// Relative error of the median at each of the times checked, in nanoseconds.
    pub errors: Vec<(f64, f64)>,
}

impl Calibration {
    /// The largest error, without its sign.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.errors.iter().fold(0.0, |worst, (_, error)| worst.max(error.abs()))
    }

    /// Every error is below [`ERROR_MAX`].
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.worst() < ERROR_MAX
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} rounds/ns, median error", self.spin.rounds_per_ns)?;
        for (i, (ns, error)) in self.errors.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma} {:+.2}% at {}us", error * 100.0, ns / 1e3)?;
        }
        Ok(())
    }
}

impl Spin {
    /// A machine that does so many rounds a nanosecond.
    #[must_use]
    pub fn at(rounds_per_ns: f64, overhead_ns: f64) -> Self {
        Self { rounds_per_ns, overhead_ns }
    }

    /// What [`Spin::at`] makes it again of.
    #[must_use]
    pub fn pace(&self) -> (f64, f64) {
        (self.rounds_per_ns, self.overhead_ns)
    }

    /// Calibrates on this machine, where `now` tells nanoseconds. Takes some 50 ms, more on a busy machine.
    pub fn calibrate(now: impl Fn() -> u64) -> Calibration {
        Self::calibrate_on(|rounds| {
            let began = now();
            turn(rounds);
            (now() - began) as f64
        })
    }

    /// As [`Spin::calibrate`], on a machine that takes `measure(rounds)` nanoseconds.
    fn calibrate_on(mut measure: impl FnMut(u64) -> f64) -> Calibration {
        let mut best = attempt(&mut measure);
        for _ in 1..ATTEMPTS {
            if best.is_good() {
                break;
            }
            let next = attempt(&mut measure);
            if next.worst() < best.worst() {
                best = next;
            }
        }
        best
    }

    fn rounds(&self, ns: f64) -> u64 {
        ((ns - self.overhead_ns) * self.rounds_per_ns).max(0.0) as u64
    }

    /// Is busy for so long.
    #[inline]
    pub fn busy(&self, ns: f64) {
        turn(self.rounds(ns));
    }
}

/// Medians: what takes the CPU away now and then spoils the few measurements that it hits.
fn attempt(measure: &mut impl FnMut(u64) -> f64) -> Calibration {
    let (short, long) = (median(measure, SHORT), median(measure, LONG));
    let rounds_per_ns = (LONG - SHORT) as f64 / (long - short).max(1.0);
    let overhead_ns = (short - SHORT as f64 / rounds_per_ns).clamp(0.0, 1_000.0);
    let spin = Spin { rounds_per_ns, overhead_ns };
    let errors = CHECKED_NS.map(|ns| (ns, median(measure, spin.rounds(ns)) / ns - 1.0));
    Calibration { spin, errors: errors.into() }
}

fn median(measure: &mut impl FnMut(u64) -> f64, rounds: u64) -> f64 {
    let mut samples: Vec<_> = (0..SAMPLES).map(|_| measure(rounds)).collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

/// The work itself.
#[inline(never)]
fn turn(rounds: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..rounds {
        // No closed form, and each round needs the one before.
        state = (state ^ (state >> 31)).wrapping_mul(0xD134_2543_DE82_EF95);
    }
    black_box(state);
}

impl App for Spin {
    fn serve(&mut self, work: &[u8], reply: &mut [u8]) -> usize {
        answer(work, reply, |work| {
            self.busy(f64::from(work.service_ns));
            let digest = spun(work.seed);
            Outcome { operation: work.operation, digest, ..Outcome::default() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibrated_machine_takes_the_time_asked_for() {
        for (ns_per_round, overhead_ns) in [(0.4, 20.0), (1.7, 60.0), (9.0, 0.0)] {
            let machine = |rounds: u64| overhead_ns + rounds as f64 * ns_per_round;
            let calibration = Spin::calibrate_on(machine);
            assert!(calibration.is_good() && calibration.worst() < 0.005, "{calibration}");
            for ns in [1_000.0, 21_600.0, 378_000.0] {
                let taken = machine(calibration.spin.rounds(ns));
                assert!((taken / ns - 1.0).abs() < ERROR_MAX, "{taken} for {ns}");
            }
        }
    }

    #[test]
    fn a_cpu_that_is_taken_away_now_and_then_spoils_nothing() {
        let mut calls = 0;
        let calibration = Spin::calibrate_on(|rounds| {
            calls += 1;
            let stolen = if calls % 3 == 0 { 4e6 } else { 0.0 };
            30.0 + rounds as f64 * 1.5 + stolen
        });
        assert!(calibration.is_good(), "{calibration}");
    }

    #[test]
    fn a_machine_without_a_pace_is_told() {
        // Slower at every look.
        let mut pace = 1.0;
        let calibration = Spin::calibrate_on(|rounds| {
            pace *= 1.002;
            rounds as f64 * pace
        });
        assert!(!calibration.is_good(), "{calibration}");
        assert!(calibration.to_string().contains("at 10us"), "{calibration}");
    }

    #[test]
    fn work_takes_time() {
        let began = std::time::Instant::now();
        let calibration = Spin::calibrate(|| began.elapsed().as_nanos() as u64);
        let before = began.elapsed();
        calibration.spin.busy(2e6);
        // A quarter: the CPU may have been slower while it was calibrated. More would be a busy machine's, no fault.
        assert!((began.elapsed() - before).as_nanos() > 500_000, "{calibration}");
    }

    #[test]
    fn shorter_than_a_task_can_be_is_no_work_at_all() {
        assert_eq!(Spin::at(1.0, 30.0).rounds(20.0), 0);
        assert_eq!(Spin::at(2.0, 30.0).rounds(80.0), 100);
    }
}
