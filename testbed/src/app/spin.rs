//! Busy work of a requested length, calibrated on the local machine.
//!
//! The work is a chain of dependent multiplications. Its pace depends on the core's clock and on little else,
//! even with a busy neighbour on the same core. Spinning on a clock would let a worker that loses its CPU
//! finish in time, unlike any real task.

use std::fmt;
use std::hint::black_box;

use wedjat_pktgen::oracle::spun;
use wedjat_pktgen::payload::Outcome;

use super::{App, answer};

/// Relative error below which a calibration is good.
pub const ERROR_MAX: f64 = 0.03;
/// Maximum number of calibrations. The best one counts.
const ATTEMPTS: u32 = 10;
/// Rounds of the two runs from which the pace is computed: the difference of their times excludes the
/// overhead.
const SHORT: u64 = 5_000;
/// See [`SHORT`].
const LONG: u64 = 105_000;
/// Time between two yield points of a task in nanoseconds.
const YIELD_NS: f64 = 1_000.0;
/// Number of measurements of each length.
const SAMPLES: usize = 51;
/// Times at which a calibration is checked, in nanoseconds.
const CHECKED_NS: [f64; 3] = [10_000.0, 50_000.0, 200_000.0];

/// Busy work at the pace of a machine, and the app that performs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spin {
    /// Rounds of [`work_rounds`] per nanosecond.
    rounds_per_ns: f64,
    /// Measured time of a task with zero rounds: two clock readings and a call.
    overhead_ns: f64,
}

/// Result of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Measured pace.
    pub spin: Spin,
    /// Checked times in nanoseconds, each with the relative error of the median.
    pub errors: Vec<(f64, f64)>,
}

impl Calibration {
    /// Returns the largest absolute error.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.errors.iter().fold(0.0, |worst, (_, error)| worst.max(error.abs()))
    }

    /// Returns true if every error is below [`ERROR_MAX`].
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
    /// Creates busy work with this pace, without a measurement. The benchmark of batch jobs thus passes its calibration
    /// to worker processes.
    #[must_use]
    pub fn at(rounds_per_ns: f64, overhead_ns: f64) -> Self {
        Self { rounds_per_ns, overhead_ns }
    }

    /// Returns the arguments of [`Spin::at`] that recreate this pace.
    #[must_use]
    pub fn pace(&self) -> (f64, f64) {
        (self.rounds_per_ns, self.overhead_ns)
    }

    /// Calibrates on the local machine. `now` returns nanoseconds. Takes some 20 to 50 ms for each attempt, of which a
    /// busy machine needs several.
    pub fn calibrate(now: impl Fn() -> u64) -> Calibration {
        Self::calibrate_on(|rounds| {
            let began = now();
            work_rounds(rounds);
            (now() - began) as f64
        })
    }

    /// Like [`Spin::calibrate`], for a machine on which `rounds` rounds take `measure(rounds)` nanoseconds. Tests
    /// emulate machines.
    fn calibrate_on(mut measure: impl FnMut(u64) -> f64) -> Calibration {
        let mut best = attempt(&mut measure);
        for _ in 1..ATTEMPTS {
            if best.is_good() {
                break;
            }
            let candidate = attempt(&mut measure);
            if candidate.worst() < best.worst() {
                best = candidate;
            }
        }
        best
    }

    /// Returns the number of rounds that take `ns` nanoseconds.
    fn rounds(&self, ns: f64) -> u64 {
        ((ns - self.overhead_ns) * self.rounds_per_ns).max(0.0) as u64
    }

    /// Keeps the core busy for `ns` nanoseconds, and calls `yield_point` every microsecond.
    #[inline]
    pub fn busy(&self, ns: f64, yield_point: &impl Fn()) {
        let mut rounds = self.rounds(ns);
        let step = (self.rounds_per_ns * YIELD_NS).max(1.0) as u64;
        while rounds > step {
            work_rounds(step);
            rounds -= step;
            yield_point();
        }
        work_rounds(rounds);
    }
}

/// Calibrates once: computes the pace from two lengths, and checks it at the times of [`CHECKED_NS`]. Medians
/// ignore the few measurements during which the CPU was preempted.
fn attempt(measure: &mut impl FnMut(u64) -> f64) -> Calibration {
    let (short, long) = (median(measure, SHORT), median(measure, LONG));
    let rounds_per_ns = (LONG - SHORT) as f64 / (long - short).max(1.0);
    // Noise can make the difference negative or large. The overhead is that of two clock readings and a call.
    let overhead_ns = (short - SHORT as f64 / rounds_per_ns).clamp(0.0, 1_000.0);
    let spin = Spin { rounds_per_ns, overhead_ns };
    let errors = CHECKED_NS.map(|ns| (ns, median(measure, spin.rounds(ns)) / ns - 1.0));
    Calibration { spin, errors: errors.into() }
}

/// Returns the median time of `rounds` rounds, in nanoseconds.
fn median(measure: &mut impl FnMut(u64) -> f64, rounds: u64) -> f64 {
    let mut samples: Vec<_> = (0..SAMPLES).map(|_| measure(rounds)).collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

/// Works for `rounds` rounds: the chain of dependent multiplications of the module's documentation. Not inlined, so
/// that tasks execute the same machine code as the calibration.
#[inline(never)]
fn work_rounds(rounds: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..rounds {
        // Each round depends on the previous one, and the compiler finds no closed form. The factor is that
        // of a linear congruential generator; any odd number works.
        state = (state ^ (state >> 31)).wrapping_mul(0xD134_2543_DE82_EF95);
    }
    black_box(state);
}

impl App for Spin {
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize {
        answer(work, reply, |work| {
            self.busy(f64::from(work.service_ns), yield_point);
            let digest = spun(work.seed);
            Outcome { operation: work.operation, digest, ..Outcome::default() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: measurement.3
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
    fn preempted_cpu_does_not_change_the_pace() {
        let mut calls = 0;
        let calibration = Spin::calibrate_on(|rounds| {
            calls += 1;
            let stolen = if calls % 3 == 0 { 4e6 } else { 0.0 };
            30.0 + rounds as f64 * 1.5 + stolen
        });
        assert!(calibration.is_good(), "{calibration}");
    }

    // promise: measurement.3
    #[test]
    fn machine_without_a_pace_is_reported() {
        // The machine becomes slower with each measurement.
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
        calibration.spin.busy(2e6, &|| {});
        // A quarter of the time: the CPU may have been slower during the calibration. A stricter bound would
        // fail on a busy machine.
        assert!((began.elapsed() - before).as_nanos() > 500_000, "{calibration}");
    }

    #[test]
    fn task_shorter_than_overhead_does_no_work() {
        assert_eq!(Spin::at(1.0, 30.0).rounds(20.0), 0);
        assert_eq!(Spin::at(2.0, 30.0).rounds(80.0), 100);
    }
}
