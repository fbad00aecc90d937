//! Arrival processes: due times of tasks, independent of earlier tasks (open loop). A process is given on the command
//! line, and each core of the generator has a [`Schedule`] of it. The simulator uses the same schedules.
//!
//! ```text
//! poisson              exponential gaps
//! constant             equal gaps
//! bursts(16,100ns)     bursts of 16 tasks with exponential gaps of mean 100 ns between them; the
//!                      pauses between bursts are exponential, and their mean gives the offered rate
//! lognormal(1.5)       gaps with a standard deviation of 1.5 of their logarithm
//! pareto(1.8)          gaps with a tail exponent of 1.8, which must be above 1
//! ```

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::grammar::{GrammarError, Scanner, Time};
use crate::service::exp1;

/// Allowed forms, for errors.
const FORMS: &str = "poisson, constant, bursts(N,MEAN), lognormal(SIGMA), pareto(ALPHA)";

/// A task of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledTask {
    /// Due time in ticks.
    pub at: u64,
    /// Requested service time, at most 4.29 s (32 bits).
    pub service_ns: u32,
    /// Class.
    pub class: u16,
    /// Minimum frame length in bytes, limited to the longest frame of the load.
    pub size: u16,
}

/// Kind of arrival process. [`Schedule::new`] takes the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
    /// `tasks` tasks close together, then a pause.
    Bursts {
        /// Tasks per burst.
        tasks: u32,
        /// Mean gap within a burst.
        mean_ns: f64,
    },
    /// Log-normal gaps.
    LogNormal {
        /// Standard deviation of the gap's logarithm.
        sigma: f64,
    },
    /// Pareto gaps.
    Pareto {
        /// Tail exponent.
        alpha: f64,
    },
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson => write!(f, "poisson"),
            Self::Constant => write!(f, "constant"),
            Self::Bursts { tasks, mean_ns } => write!(f, "bursts({tasks},{})", Time(*mean_ns)),
            Self::LogNormal { sigma } => write!(f, "lognormal({sigma})"),
            Self::Pareto { alpha } => write!(f, "pareto({alpha})"),
        }
    }
}

impl FromStr for Arrivals {
    type Err = GrammarError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut scanner = Scanner::new("arrival process", text);
        let at = scanner.place();
        let arrivals = match scanner.word() {
            "poisson" => Self::Poisson,
            "constant" => Self::Constant,
            "bursts" => parse_bursts(&mut scanner)?,
            "lognormal" => {
                Self::LogNormal { sigma: parse_parameter(&mut scanner, 0.0, "above 0")? }
            }
            "pareto" => Self::Pareto { alpha: parse_parameter(&mut scanner, 1.0, "above 1")? },
            _ => return Err(scanner.error_at(at, format!("expected one of {FORMS}"))),
        };
        scanner.end()?;
        Ok(arrivals)
    }
}

/// Parses the parameters of bursts.
fn parse_bursts(scanner: &mut Scanner<'_>) -> Result<Arrivals, GrammarError> {
    scanner.expect('(')?;
    let at = scanner.place();
    let tasks = scanner.number()?;
    if tasks < 1.0 || tasks.fract() != 0.0 || tasks > 1e6 {
        return Err(scanner
            .error_at(at, "the number of tasks in a burst is a whole number from 1 to 1000000"));
    }
    scanner.expect(',')?;
    let mean_ns = scanner.time_ns()?;
    scanner.expect(')')?;
    Ok(Arrivals::Bursts { tasks: tasks as u32, mean_ns })
}

/// Parses one parameter that is at most 10 and above a limit, which `allowed` describes.
fn parse_parameter(
    scanner: &mut Scanner<'_>,
    above: f64,
    allowed: &str,
) -> Result<f64, GrammarError> {
    scanner.expect('(')?;
    let at = scanner.place();
    let value = scanner.number()?;
    if value <= above || value > 10.0 {
        return Err(scanner.error_at(at, format!("must be {allowed} and at most 10")));
    }
    scanner.expect(')')?;
    Ok(value)
}

/// Bursts that contradict the rate: the gaps within them already take longer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "bursts({tasks},{}) at {rate_pps} tasks a second: a burst lasts longer than the interval of its {tasks} tasks at that \
     rate ({}); lower the rate, or the mean gap within a burst",
    Time(*mean_ns), Time(*share_ns)
)]
pub struct BurstsTooLong {
    /// Tasks per burst.
    tasks: u32,
    /// Mean gap within a burst.
    mean_ns: f64,
    /// Requested tasks per second.
    rate_pps: f64,
    /// Interval of the burst's tasks at the rate.
    share_ns: f64,
}

/// Distribution of the next gap, in ticks.
#[derive(Clone, Copy, Debug)]
enum Gap {
    Exp {
        mean: f64,
    },
    Constant {
        gap: f64,
    },
    /// `scale` is the median.
    LogNormal {
        scale: f64,
        sigma: f64,
    },
    /// `low` is the smallest gap.
    Pareto {
        low: f64,
        alpha: f64,
    },
    /// `left` is the number of tasks left in the burst, `within` the mean gap in it, and `pause` the mean gap
    /// between the last task and the next burst.
    Bursts {
        tasks: u32,
        left: u32,
        within: f64,
        pause: f64,
    },
}

/// Due times of one core, in ticks since its start.
///
/// Keeps whole ticks and fraction apart, so that rounding errors do not add up.
#[derive(Clone, Debug)]
pub struct Schedule {
    gap: Gap,
    /// Last due time: whole ticks, and fraction of a tick.
    whole: u64,
    fraction: f64,
}

impl Schedule {
    /// Creates a schedule of `rate_pps` tasks per second on a clock of `hz` ticks per second.
    ///
    /// # Errors
    /// If bursts and rate contradict each other.
    pub fn new(arrivals: &Arrivals, rate_pps: f64, hz: f64) -> Result<Self, BurstsTooLong> {
        let mean = hz / rate_pps;
        let gap = match *arrivals {
            Arrivals::Poisson => Gap::Exp { mean },
            Arrivals::Constant => Gap::Constant { gap: mean },
            // The mean of exp(sigma * N), with N standard normal, is exp(sigma^2 / 2).
            Arrivals::LogNormal { sigma } => {
                Gap::LogNormal { scale: mean * (-sigma * sigma / 2.0).exp(), sigma }
            }
            // The mean of a Pareto distribution is low * alpha / (alpha - 1).
            Arrivals::Pareto { alpha } => Gap::Pareto { low: mean * (alpha - 1.0) / alpha, alpha },
            Arrivals::Bursts { tasks, mean_ns } => {
                let within = mean_ns * hz / 1e9;
                // `tasks` tasks take `tasks` mean gaps; all but one of these lie within the burst.
                let pause = f64::from(tasks) * mean - f64::from(tasks - 1) * within;
                if pause < 0.0 {
                    let share_ns = f64::from(tasks) * 1e9 / rate_pps;
                    return Err(BurstsTooLong { tasks, mean_ns, rate_pps, share_ns });
                }
                // Nothing is left, so the first task starts a burst.
                Gap::Bursts { tasks, left: 0, within, pause }
            }
        };
        Ok(Self { gap, whole: 0, fraction: 0.0 })
    }

    /// Returns the due time of the next task, in ticks since the start.
    #[inline]
    pub fn advance<R: Rng + ?Sized>(&mut self, rng: &mut R) -> u64 {
        let gap = self.gap.draw(rng);
        self.add_gap(gap)
    }

    /// Draws the due time of each task, like repeated calls of [`Schedule::advance`], and passes it to `set`.
    pub fn fill<T, R: Rng>(
        &mut self,
        rng: &mut R,
        tasks: &mut [T],
        mut set: impl FnMut(&mut T, u64),
    ) {
        let tasks = tasks.iter_mut();
        match self.gap {
            // Separate loops for common gaps, so that the match stays outside the loop.
            Gap::Exp { mean } => tasks.for_each(|task| set(task, self.add_gap(mean * exp1(rng)))),
            Gap::Constant { gap } => tasks.for_each(|task| set(task, self.add_gap(gap))),
            _ => tasks.for_each(|task| set(task, self.advance(rng))),
        }
    }

    /// Advances the due time by a gap, and returns it.
    #[inline(always)]
    fn add_gap(&mut self, gap: f64) -> u64 {
        let sum = self.fraction + gap;
        // The cast truncates like floor(), which is a function call without SSE 4.1. A signed conversion
        // takes one instruction each way.
        let whole = sum as i64;
        self.fraction = sum - whole as f64;
        self.whole += whole as u64;
        self.whole
    }
}

impl Gap {
    /// Draws the gap before the next task, in ticks.
    #[inline]
    fn draw<R: Rng + ?Sized>(&mut self, rng: &mut R) -> f64 {
        match self {
            Self::Exp { mean } => *mean * exp1(rng),
            Self::Constant { gap } => *gap,
            Self::LogNormal { scale, sigma } => {
                let normal: f64 = StandardNormal.sample(rng);
                *scale * (*sigma * normal).exp()
            }
            // The logarithm of a Pareto variable over its minimum is exponential.
            Self::Pareto { low, alpha } => *low * (exp1(rng) / *alpha).exp(),
            Self::Bursts { tasks, left, within, pause } => {
                let mean = if *left == 0 { *pause } else { *within };
                *left = if *left == 0 { *tasks - 1 } else { *left - 1 };
                mean * exp1(rng)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    /// Returns the due times of the first `count` tasks, with a fixed seed.
    fn due(text: &str, rate_pps: f64, hz: f64, count: u32) -> Vec<u64> {
        let arrivals: Arrivals = text.parse().unwrap();
        let mut schedule = Schedule::new(&arrivals, rate_pps, hz).unwrap();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        (0..count).map(|_| schedule.advance(&mut rng)).collect()
    }

    #[test]
    fn every_kind_keeps_the_rate() {
        for text in ["poisson", "constant", "bursts(16,100ns)", "lognormal(1)", "pareto(3)"] {
            let last = *due(text, 1e6, 1e9, 400_000).last().unwrap();
            let rate = 400_000.0 * 1e9 / last as f64;
            assert!((rate / 1e6 - 1.0).abs() < 0.02, "{text}: {rate}");
        }
    }

    #[test]
    fn batched_samples_equal_single_samples() {
        for text in ["poisson", "constant", "bursts(16,100ns)", "lognormal(1)", "pareto(3)"] {
            let mut schedule = Schedule::new(&text.parse().unwrap(), 1e6, 1e9).unwrap();
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
            let mut filled = [0; 100];
            filled
                .chunks_mut(30)
                .for_each(|part| schedule.fill(&mut rng, part, |at, due| *at = due));
            assert_eq!(filled[..], due(text, 1e6, 1e9, 100), "{text}");
        }
    }

    #[test]
    fn constant_gaps_do_not_drift() {
        // 333.333... ticks each: after three million tasks the schedule is still exact.
        let times = due("constant", 3e6, 1e9, 3_000_000);
        assert!(times.windows(2).all(|pair| matches!(pair[1] - pair[0], 333 | 334)));
        assert!(times.last().unwrap().abs_diff(1_000_000_000) <= 1);
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let times = due("poisson", 1e6, 1e9, 200_000);
        let gaps: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        // The mean gap is 1000 ns.
        for multiple in [0.5, 1.0, 2.0, 4.0] {
            let above = gaps.iter().filter(|gap| **gap > multiple * 1000.0).count() as f64;
            let share = above / gaps.len() as f64;
            assert!((share - (-multiple).exp()).abs() < 0.005, "{multiple}: {share}");
        }
    }

    #[test]
    fn bursts_come_together() {
        let times = due("bursts(10,0ns)", 1e5, 1e9, 1000);
        for burst in times.chunks(10) {
            assert!(burst[9] - burst[0] <= 1, "{burst:?}");
        }
        assert!(times[10] > times[9] + 1);
    }

    #[test]
    fn contradicting_bursts_are_refused() {
        // At 200,000 tasks/s, 16 tasks take 80 us. Their gaps within a burst take 15 ms.
        let arrivals: Arrivals = "bursts(16,1ms)".parse().unwrap();
        let error = Schedule::new(&arrivals, 200e3, 1e9).unwrap_err().to_string();
        assert!(error.contains("lower the rate") && error.contains("80us"), "{error}");
    }

    #[test]
    fn text_round_trips_and_refuses() {
        for text in ["poisson", "constant", "bursts(16,100ns)", "lognormal(1.5)", "pareto(1.8)"] {
            assert_eq!(text.parse::<Arrivals>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("uniform", "expected one of poisson"),
            ("bursts(0,1us)", "whole number"),
            ("bursts(1.5,1us)", "whole number"),
            ("bursts(4)", "expected `,`"),
            ("pareto(1)", "above 1"),
            ("lognormal(0)", "above 0"),
            ("poisson(3)", "unexpected text"),
        ] {
            let error = text.parse::<Arrivals>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
