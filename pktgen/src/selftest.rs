//! Check that schedule and service times have the requested rate and mean, within the errors that chance
//! explains. The `selftest` subcommand runs it. The check draws tasks and sends none.

use std::fmt;

use crate::load::{Load, LoadError};
use crate::send::Pacer;

/// Number of drawn tasks.
const TASKS: u32 = 200_000;
/// Limit of the deviation of a mean, in standard errors. Independent draws from a normal distribution exceed it in
/// fewer than one of half a million tests.
const ERRORS_MAX: f64 = 5.0;

/// Relative errors of rate and mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Relative error of the mean gap.
    pub gap_error: f64,
    /// Largest error that chance explains.
    pub gap_limit: f64,
    /// Relative error of the mean service time.
    pub service_error: f64,
    /// Largest error that chance explains.
    pub service_limit: f64,
}

impl Pacing {
    /// Returns true if both errors are within chance.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.gap_error.abs() <= self.gap_limit && self.service_error.abs() <= self.service_limit
    }
}

impl fmt::Display for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_exact() { "pacing exact" } else { "PACING OFF" };
        write!(
            f,
            "{verdict}: mean gap off by {:+.4}% (expected by chance up to {:.4}%), mean service time off by {:+.4}% ({:.4}%)",
            self.gap_error * 100.0,
            self.gap_limit * 100.0,
            self.service_error * 100.0,
            self.service_limit * 100.0
        )
    }
}

/// Draws the first tasks of core 0 on a clock of nanoseconds. Compares their mean gap and mean service time
/// with the requested ones.
///
/// # Errors
/// If arrivals and rate contradict each other.
pub fn pacing(load: &Load) -> Result<Pacing, LoadError> {
    let mut pacer = Pacer::new(load.source(0, 1e9)?, 0, u64::MAX);
    let (mut gaps, mut services) = (Moments::default(), Moments::default());
    let mut previous = 0;
    for _ in 0..TASKS {
        let due = pacer.take();
        gaps.add((due.at - previous) as f64);
        services.add(f64::from(due.service_ns));
        previous = due.at;
    }
    let mean_gap = 1e9 * f64::from(load.cores) / load.rate_pps;
    let (gap_error, gap_limit) = gaps.compare(mean_gap);
    let (service_error, service_limit) = services.compare(load.service.mean_ns());
    Ok(Pacing { gap_error, gap_limit, service_error, service_limit })
}

/// Sums over a series of values.
#[derive(Default)]
struct Moments {
    count: f64,
    sum: f64,
    /// Sum of the squares.
    squares: f64,
}

impl Moments {
    /// Adds a value.
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// Returns the relative error of the mean, and its limit by chance. The limit includes 1 ns for rounding to whole
    /// nanoseconds.
    fn compare(&self, expected: f64) -> (f64, f64) {
        // A mean of 0 has no relative error. Any value above 0 is then an error.
        if expected == 0.0 {
            return (self.sum, 0.0);
        }
        let mean = self.sum / self.count;
        let deviation = (self.squares / self.count - mean * mean).max(0.0).sqrt();
        let limit = (ERRORS_MAX * deviation / self.count.sqrt() + 1.0) / expected;
        (mean / expected - 1.0, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_paced_as_asked() {
        for (service, arrivals) in [
            ("exp(50us)", "poisson"),
            ("fixed(7us)", "constant"),
            ("mix(0.9*exp(5us), 0.1*normal(500us,50us))", "lognormal(1)"),
            ("fixed(0ns)", "pareto(3)"),
        ] {
            let load = Load {
                arrivals: arrivals.parse().unwrap(),
                cores: 3,
                ..Load::new(1e6, service.parse().unwrap())
            };
            let pacing = pacing(&load).unwrap();
            assert!(pacing.is_exact(), "{service}, {arrivals}: {pacing}");
        }
    }

    #[test]
    fn wrong_rate_is_detected() {
        let load = Load::new(1e6, "exp(50us)".parse().unwrap());
        let mut moments = Moments::default();
        // Gaps with a mean of 1049.5 ns instead of 1000 ns.
        (0..100_000).for_each(|i| moments.add(f64::from(i % 100) + 1_000.0));
        let (error, limit) = moments.compare(1e9 / load.rate_pps);
        assert!(error > limit, "{error} {limit}");
    }
}
