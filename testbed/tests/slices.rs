//! The rule for undisturbed slices does not make figures better than they are. The generator cuts the measured time
//! into slices. Only those count in which no pause of a loop can have affected a task (undisturbed slices). Generator,
//! leaf and emulated workers run on an emulated clock with the same tasks, once undisturbed and once with seeded pauses
//! of either loop. The undisturbed slices of the disturbed run must give the figures of the undisturbed run.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/rig/mod.rs"]
mod rig;

use std::time::SystemTime;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat::wire::ether::Mac;
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::manifest::Manifest;
use wedjat_pktgen::report::Report;
use wedjat_pktgen::slices::{LoopWatch, Pauses, Rule};
use wedjat_pktgen::tally::Tally;
use wedjat_pktgen::target::Target;
use wedjat_testbed::rack::{Layout, Options, Rack};

const WORKERS: u16 = 8;
/// Mean service time.
const SERVICE_S: f64 = 100e-6;
/// Ticks per second: one tick is one nanosecond.
const HZ: u64 = 1_000_000_000;
/// Interval between two polls of each loop, in ticks.
const STEP: u64 = 4_000;
const LEAF_MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x63]);
const RACK_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);

/// Random pauses of a loop: their rate per second, and their mean length. Intervals and lengths are exponential.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    /// Pauses per second of running time.
    per_s: f64,
    /// Mean length in seconds.
    mean_s: f64,
}

/// Pauses of one loop.
struct Stops {
    /// `None` for an undisturbed loop.
    pattern: Option<Pattern>,
    stream: Xoshiro256PlusPlus,
    /// Start and end of the current or next pause, in ticks.
    from: u64,
    to: u64,
}

impl Stops {
    /// Draws the first pause.
    fn new(pattern: Option<Pattern>, seed: u64) -> Self {
        let stream = Xoshiro256PlusPlus::seed_from_u64(seed);
        // The first pause comes after 50 ms, when the generator has resolved the leaf's MAC address. All runs of a
        // seed then offer the same tasks at the same times.
        let mut stops = Self { pattern, stream, from: 0, to: HZ / 20 };
        stops.next();
        stops
    }

    /// Draws the next pause. Without a pattern, it never comes.
    fn next(&mut self) {
        let Some(Pattern { per_s, mean_s }) = self.pattern else {
            self.from = u64::MAX;
            return;
        };
        let mut exponential =
            |mean: f64| (-mean * (1.0 - self.stream.random::<f64>()).ln() * HZ as f64) as u64;
        self.from = self.to + exponential(1.0 / per_s);
        self.to = self.from + exponential(mean_s);
    }

    /// Returns true if the loop runs at `now`.
    fn runs(&mut self, now: u64) -> bool {
        // Without a pattern, `from` never comes, and no pause follows.
        while now >= self.to && self.from < self.to {
            self.next();
        }
        now < self.from
    }
}

/// Result of a run. Reports under different rules come from one run.
struct Run {
    /// Offered tasks, with the usual rule for undisturbed slices.
    load: Load,
    /// The generator's counts and its record of each task.
    tally: Tally,
    /// Pauses of the leaf's loop. The tally has those of the generator.
    leaf: LoopWatch,
}

/// Returns the leaf's configuration.
fn text() -> String {
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\n\
         [[port]]\ndevice = \"net_ring0\"\nside = \"clients\"\nip = \"10.0.1.1/24\"\nmac = \"{}\"\n\
         [[port]]\ndevice = \"net_ring1\"\nside = \"workers\"\nip = \"10.0.2.1/24\"\nmac = \"{}\"\n\
         [[pool]]\nid = 1\npolicy = \"horus\"\n\
         [[server]]\nip = \"10.0.2.11\"\nworkers = \"0-{}\"\npool = 1\n",
        LEAF_MACS[0],
        LEAF_MACS[1],
        WORKERS - 1
    )
}

/// Runs a measurement of this length at the load `share`, a fraction of the workers' capacity. The first pattern
/// pauses generator and workers, which share a loop as in `wedjat-testbed drive`, the second the leaf.
fn run(share: f64, seed: u64, seconds: f64, patterns: [Option<Pattern>; 2]) -> Run {
    let sizes = rig::Sizes { depth: 1 << 13, frames: 1 << 15, bytes: 160 };
    let rig::CoreRig { mut leaf, far, frames, .. } = rig::leaf(&text(), sizes);
    let Ok([client, worker]) = <[_; 2]>::try_from(far) else { panic!("two ports") };
    let layout = Layout::new("10.0.2.11+1".parse().unwrap(), WORKERS, 0).unwrap();
    let mut rack = Rack::new(worker, RACK_MAC, layout, Options::default(), HZ as f64);
    let rate = share * f64::from(WORKERS) / SERVICE_S;
    let load = Load {
        warmup_s: 0.1,
        duration_s: seconds,
        seed,
        ..Load::new(rate, format!("exp({}us)", SERVICE_S * 1e6).parse().unwrap())
    }
    .with_percentile(0.99, Some(WORKERS.into()));
    // The client is 10.0.1.99, the leaf 10.0.1.1.
    let target = Target::new(CLIENT_MAC, 0x0A00_0163, 0x0A00_0101);
    let mut generator = Generator::new(&load, &target, 0, HZ as f64, client, frames).unwrap();
    let mut leaf_pauses = Pauses::new((load.rule.pause_s * HZ as f64) as u64);
    let [mut generator_stops, mut leaf_stops] =
        [0, 1].map(|at| Stops::new(patterns[at], 1000 * seed + at as u64));
    let mut now = STEP;
    while !generator.phase().is_over() {
        if generator_stops.runs(now) {
            generator.transmit(now);
            rack.poll(now);
            generator.receive(now);
        }
        if leaf_stops.runs(now) {
            leaf_pauses.look(now);
            leaf.poll(now);
        }
        now += STEP;
        assert!(now < 1000 * HZ, "the run does not end");
    }
    assert!(rack.report().balances());
    let (_, _, tally) = generator.into_parts();
    Run { load, tally, leaf: LoopWatch { name: "the leaf".to_owned(), pauses: leaf_pauses } }
}

impl Run {
    /// Returns the report over the undisturbed slices under this rule.
    fn report(&self, rule: Rule) -> Report {
        let slices = self.tally.slices(&rule, std::slice::from_ref(&self.leaf));
        let manifest = Manifest::new(&self.load, SystemTime::UNIX_EPOCH);
        Report::new(&self.load, &self.tally, &slices, None, manifest)
    }
}

impl Run {
    /// Returns the report of this run over the slices that are undisturbed in another run, by that run's own rule. Both
    /// runs have the same tasks in these slices.
    fn as_cut(&self, other: &Self) -> Report {
        let slices = other.tally.slices(&other.load.rule, std::slice::from_ref(&other.leaf));
        let manifest = Manifest::new(&self.load, SystemTime::UNIX_EPOCH);
        Report::new(&self.load, &self.tally, &slices, None, manifest)
    }
}

/// Returns mean, median and 99th percentile of the response times in the undisturbed slices, in microseconds.
fn figures(report: &Report) -> [f64; 3] {
    let us = &report.undisturbed.response_us;
    [us.mean.0, us.p50.0, us.p99.0]
}

/// Returns the half widths of the 95% confidence intervals of [`figures`].
fn intervals(report: &Report) -> [f64; 3] {
    let us = &report.undisturbed.response_ci95_us;
    [us.mean.0, us.p50.0, us.p99.0]
}

/// Measured time of each run.
const SECONDS: f64 = 6.0;
/// Pauses shorter than a slice (1 ms).
const SHORT: Pattern = Pattern { per_s: 60.0, mean_s: 0.1e-3 };
/// Rare pauses of several slices.
const LONG: Pattern = Pattern { per_s: 3.0, mean_s: 4e-3 };
/// Frequent pauses. Many are too short for the rule, which ignores those up to 25 us.
const TINY: Pattern = Pattern { per_s: 700.0, mean_s: 0.04e-3 };
/// Pauses of generator and workers, and of the leaf. The cases are many short ones, few long ones, and long
/// ones of the leaf with short ones of the generator's loop. In the last case, tiny pauses of both disturb
/// most slices, as on a busy host.
const PATTERNS: [[Option<Pattern>; 2]; 4] = [
    [Some(SHORT), Some(SHORT)],
    [Some(LONG), Some(LONG)],
    [Some(SHORT), Some(LONG)],
    [Some(TINY), Some(TINY)],
];

/// Compares the undisturbed slices of disturbed runs with the undisturbed run. Returns one value per seed, pattern and
/// figure, in this order. It is true under two conditions. The figures agree within the confidence intervals of both
/// runs. The figure is at least as high as over the same slices of the undisturbed run, within its interval, so a
/// disturbed run never looks better. `change` derives the rule from the usual one; the second condition uses the slices
/// of the usual one. Prints the results. Runs the seeds in parallel.
fn agreements(share: f64, change: fn(Rule) -> Rule) -> Vec<bool> {
    std::thread::scope(|scope| {
        let start = |seed| scope.spawn(move || agreements_of(share, seed, change));
        let threads = [1, 2].map(start);
        threads.into_iter().flat_map(|thread| thread.join().expect("a run")).collect()
    })
}

/// Returns the values of [`agreements`] for one seed: three figures for each of [`PATTERNS`].
fn agreements_of(share: f64, seed: u64, change: fn(Rule) -> Rule) -> Vec<bool> {
    let mut agreements = Vec::new();
    let undisturbed = run(share, seed, SECONDS, [None; 2]);
    let rule = change(undisturbed.load.rule);
    let reference = undisturbed.report(rule);
    assert_eq!((reference.slices.undisturbed, reference.slices.pauses), (reference.slices.all, 0));
    let (expected, interval) = (figures(&reference), intervals(&reference));
    for patterns in PATTERNS {
        let disturbed = run(share, seed, SECONDS, patterns);
        let report = disturbed.report(rule);
        let (got, same) = (figures(&report), figures(&undisturbed.as_cut(&disturbed)));
        let disturbed_interval = intervals(&report);
        assert!(report.valid, "{report}");
        println!(
            "load {share}, seed {seed}, {:.0}% undisturbed: mean, p50, p99 {got:.1?} for {expected:.1?} +- {interval:.1?}; \
             the same slices, undisturbed, {same:.1?}",
            100.0 * report.slices.undisturbed_share
        );
        agreements.extend((0..3).map(|at| {
            let allowed = interval[at].hypot(disturbed_interval[at]);
            let agrees = (got[at] - expected[at]).abs() <= allowed;
            agrees && got[at] >= same[at] - interval[at]
        }));
    }
    agreements
}

/// Returns a rule that drops only the slices in which a loop stalled, not those before and after.
fn naive(rule: Rule) -> Rule {
    Rule { recovery: 0.0, cover_s: 0.0, ..rule }
}

// promise: measurement.2
#[test]
fn undisturbed_slices_are_representative_at_half_load() {
    assert!(agreements(0.5, |rule| rule).iter().all(|agrees| *agrees));
}

// promise: measurement.2
#[test]
fn undisturbed_slices_are_representative_at_high_load() {
    assert!(agreements(0.8, |rule| rule).iter().all(|agrees| *agrees));
}

// promise: measurement.2
#[test]
fn undisturbed_slices_are_representative_near_saturation() {
    assert!(agreements(0.95, |rule| rule).iter().all(|agrees| *agrees));
}

// promise: measurement.2
#[test]
fn slices_without_recovery_are_not_representative() {
    let agreements = agreements(0.8, naive);
    // Long pauses leave queues that outlive them. Queues of short pauses drain within a slice. Two seeds give six
    // figures for each pattern.
    let [short, long, mixed] = [0, 1, 2].map(|pattern| {
        let figures_of = |run: &[bool]| run[3 * pattern..3 * pattern + 3].to_vec();
        agreements.chunks(3 * PATTERNS.len()).flat_map(figures_of).filter(|agrees| *agrees).count()
    });
    println!("of six figures each agree: {short}, {long}, {mixed}");
    assert!(long + mixed <= 4, "{agreements:?}");
}

// promise: measurement.2
#[test]
fn disturbed_run_is_invalid_with_the_fix() {
    // The loop runs for 0.5 ms and pauses for 1 ms, on average.
    let always = Pattern { per_s: 2000.0, mean_s: 1e-3 };
    let report = {
        let run = run(0.8, 1, 0.5, [Some(always), None]);
        run.report(run.load.rule)
    };
    assert_eq!((report.slices.undisturbed, report.undisturbed.ledger.scheduled), (0, 0));
    assert_eq!(report.slices.excluded_tasks, report.scheduled);
    assert!(
        !report.valid && report.reasons[0].contains("keep other work off the CPUs"),
        "{report}"
    );
    assert_eq!(report.slices.loops, ["the generator", "the leaf"]);
}
