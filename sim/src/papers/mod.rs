//! Systems of papers, simulated with the settings of their papers, for the command `wedjat-testbed papers`.
//!
//! Each file has the algorithm of one system and its experiments. An experiment returns [`Claim`]s: the ratio that the
//! paper states, beside the ratio of our simulation. The systems run on the [`Engine`]. Policies of the leaf run in the
//! model [`crate::ct`].

pub mod darc;
pub mod draconis;
mod experiment;
pub mod netclone;
pub mod pallas;
pub mod prequal;

use std::fmt::Write as _;
use std::io::{self, Write};

use rand::Rng as _;
use serde::Serialize;
use wedjat_workload::arrival::{Arrivals, Schedule};
use wedjat_workload::seed::Stream;
use wedjat_workload::service::Service;

use crate::engine::{Engine, Setup};
use crate::hop::{Hop, TICK_PS, TICKS_PER_US};
use crate::nodes::ticks_of;
use crate::outcome::Outcome;
use crate::stats::{Observer, histogram};

/// Warm-up: fraction of a run's tasks, at its start, that is not measured.
const WARMUP: f64 = 0.1;
/// Experiments of a system: takes the number of tasks of a run and the seed.
type Experiments = fn(u64, u64) -> Vec<Claim>;
/// All systems by name, in the order of the report.
const SYSTEMS: &[(&str, Experiments)] = &[
    ("darc", darc::claims),
    ("pallas", pallas::claims),
    ("draconis", draconis::claims),
    ("prequal", prequal::claims),
    ("netclone", netclone::claims),
];
/// Minimum number of tasks of a run. Nine of its measured tasks lie above the 99.9th percentile.
pub const TASKS_MIN: u64 = 10_000;

/// A claim of a paper beside the ratio of our simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Short name of the system, as in `netclone`.
    pub system: &'static str,
    /// Comparison, as in "p99 latency, without cloning / with cloning".
    pub compared: &'static str,
    /// Workload, load and number of servers.
    pub conditions: String,
    /// Ratio in the paper; `None` if the text gives only a direction.
    pub claimed: Option<f64>,
    /// Both values of our simulation, in the same order as in `compared`.
    pub values: (f64, f64),
    /// Source of the claim (paper, section or figure), and whether the ratio was checked against its text.
    pub source: &'static str,
}

/// A claim in JSON. Infinite and undefined numbers become `null`.
#[derive(Serialize)]
struct ClaimJson<'a> {
    system: &'a str,
    compared: &'a str,
    conditions: &'a str,
    claimed: Option<f64>,
    simulated: f64,
    values: (f64, f64),
    source: &'a str,
}

impl Claim {
    /// Returns the ratio of our simulation. Infinite if the second value is 0.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.values.0 / self.values.1
    }

    /// Returns the keys of the claim in JSON.
    fn to_json(&self) -> ClaimJson<'_> {
        let &Self { system, compared, claimed, values, source, .. } = self;
        let (conditions, simulated) = (&self.conditions[..], self.ratio());
        ClaimJson { system, compared, conditions, claimed, simulated, values, source }
    }
}

/// Runs the experiments of a system, or of all systems, with this number of tasks per run.
///
/// # Errors
/// If no system has this name, or if `tasks` is below [`TASKS_MIN`].
pub fn claims(system: Option<&str>, tasks: u64, seed: u64) -> Result<Vec<Claim>, String> {
    if tasks < TASKS_MIN {
        return Err(format!(
            "--tasks {tasks}: too few for a 99.9th percentile; give at least {TASKS_MIN}"
        ));
    }
    let Some(name) = system else {
        return Ok(SYSTEMS.iter().flat_map(|(_, claims)| claims(tasks, seed)).collect());
    };
    let Some((_, claims)) = SYSTEMS.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = SYSTEMS.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        return Err(format!("--system {name}: no paper has this system; give one of {names}"));
    };
    Ok(claims(tasks, seed))
}

/// Runs the experiments of a system, or of all, and prints their claims as text, or as one JSON object per line.
///
/// # Errors
/// Same as for [`claims`], or a failure to write the output.
pub fn report(
    system: Option<&str>,
    tasks: u64,
    seed: u64,
    json: bool,
    out: &mut impl Write,
) -> Result<(), String> {
    let claims = claims(system, tasks, seed)?;
    let text = if json { lines(&claims)? } else { table(&claims) };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A closed pipe is not an error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(()),
    }
}

/// Returns one JSON object per claim, each on a line.
fn lines(claims: &[Claim]) -> Result<String, String> {
    let mut text = String::new();
    for claim in claims {
        text += &serde_json::to_string(&claim.to_json()).map_err(|error| error.to_string())?;
        text.push('\n');
    }
    Ok(text)
}

/// Returns an aligned table with the ratios of paper and simulation. A list of the sources follows, by number.
fn table(claims: &[Claim]) -> String {
    let mut sources: Vec<&str> = Vec::new();
    let mut text = format!(
        "{:9} {:>7} {:>9} {:>10} {:>10} {:>6}  compared; conditions\n",
        "system", "paper", "simulated", "first", "second", "source"
    );
    for claim in claims {
        let known = sources.iter().position(|source| *source == claim.source);
        let source = known.unwrap_or_else(|| {
            sources.push(claim.source);
            sources.len() - 1
        });
        let claimed = claim.claimed.map_or("-".to_owned(), number);
        let [ratio, first, second] = [claim.ratio(), claim.values.0, claim.values.1].map(number);
        let (number, Claim { system, compared, conditions, .. }) = (source + 1, claim);
        // Writing to a string never fails.
        _ = writeln!(
            text,
            "{system:9} {claimed:>7} {ratio:>9} {first:>10} {second:>10} {:>6}  {compared}; {conditions}",
            format!("[{number}]"),
        );
    }
    for (index, source) in sources.iter().enumerate() {
        _ = writeln!(text, "[{}] {source}", index + 1);
    }
    text
}

/// Formats a number with at least three significant digits, and all digits before the point. NaN becomes a dash.
fn number(value: f64) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    let decimals = match value.abs().log10().floor() {
        size if size.is_finite() => (2.0 - size).clamp(0.0, 6.0) as usize,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Parameters of an [`Engine`] for one run. Arrivals are a Poisson process, and a tick is a picosecond.
struct Run {
    /// Number of tasks.
    tasks: u64,
    /// Arrivals per second.
    rate_pps: f64,
    /// Number of workers of the engine, all of speed 1.
    workers: usize,
    /// Seed of all streams.
    seed: u64,
}

impl Run {
    /// Creates the engine of the run. Its hops have no delay, because the systems schedule their own delays.
    fn engine<T>(self) -> Engine<T> {
        let Self { tasks, rate_pps, workers, seed } = self;
        let schedule = Schedule::new(&Arrivals::Poisson, rate_pps, TICKS_PER_US * 1e6);
        let setup = Setup {
            tasks,
            warmup: WARMUP,
            speeds: &vec![1.0; workers],
            speed_unit: 1.0,
            schedules: (schedule.expect("a Poisson process has any rate"), Vec::new()),
            hop: Hop::Zero,
            node_delay: 0,
            loss: 0.0,
            sharing: None,
            measures_classes: false,
            has_digest: false,
            tick_ps: TICK_PS,
            seed,
            observer: &Observer::hidden(),
        };
        Engine::new(setup, std::iter::empty())
    }
}

/// Draws an index below `count`.
fn index(stream: &mut Stream, count: usize) -> usize {
    // Scales 32 random bits.
    ((u64::from(stream.next_u64() as u32) * count as u64) >> 32) as usize
}

/// Draws two different indices below `count`, in order.
fn two_indices(stream: &mut Stream, count: usize) -> (usize, usize) {
    let first = index(stream, count);
    let offset = 1 + index(stream, count - 1);
    (first, (first + offset) % count)
}

/// Draws a number from 0 to 1.
fn unit<R: rand::Rng>(rng: &mut R) -> f64 {
    rng.next_u64() as f64 * (-64.0_f64).exp2()
}

/// Parses a distribution of service times. Panics if the text is invalid.
fn service(text: &str) -> Service {
    text.parse().expect("a valid distribution")
}

/// Returns a quantile of the measured response times, in units of the outcome.
fn quantile(outcome: &Outcome, quantile: f64) -> f64 {
    let mut all = histogram();
    for batch in &outcome.batches {
        all.add(&batch.responses).expect("the histogram grows as needed");
    }
    all.value_at_quantile(quantile) as f64 / outcome.ticks_per_unit
}

/// Returns the number of measured tasks.
#[cfg(test)]
fn measured(outcome: &Outcome) -> u64 {
    outcome.batches.iter().map(|batch| batch.responses.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a claim with these numbers.
    fn claim(claimed: Option<f64>, values: (f64, f64)) -> Claim {
        let conditions = "load 0.5".to_owned();
        Claim { system: "one", compared: "a / b", conditions, claimed, values, source: "Fig. 1" }
    }

    #[test]
    fn table_has_both_ratios() {
        let text = table(&[claim(Some(2.0), (300.0, 120.0)), claim(None, (1.0, 4.0))]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].contains("2.00") && lines[1].contains("2.50"), "{text}");
        assert!(lines[2].contains(" - ") && lines[2].contains("0.250"), "{text}");
        // Both claims share the source.
        assert_eq!(lines[3], "[1] Fig. 1");
    }

    #[test]
    fn undefined_ratio_is_null_in_json() {
        let text = lines(&[claim(None, (1.0, 0.0)), claim(Some(2.0), (3.0, 1.5))]).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines[0]["simulated"].is_null() && lines[0]["claimed"].is_null());
        assert_eq!((&lines[1]["simulated"], &lines[1]["claimed"]), (&2.0.into(), &2.0.into()));
    }

    #[test]
    fn unknown_system_is_refused_with_names() {
        let error = claims(Some("nothing"), 10_000, 1).unwrap_err();
        assert!(error.contains("nothing") && error.contains("netclone"), "{error}");
        assert!(claims(None, 10, 1).unwrap_err().contains("--tasks 10"));
    }
}
