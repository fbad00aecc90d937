//! Comparison of the simulator with reference results, from independent programs and from theory: the command
//! `wedjat-testbed reference` and its quick check in the tests. Results in [`EXPECTED`] are from independent programs
//! for the set-up's model, unless a comment names a formula.

use std::io::{self, Write};

use super::{Row, SimArgs, rows};

/// A reference result.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceResult {
    /// Set-up: flags of `sim` with their values.
    setup: &'static [(&'static str, &'static str)],
    policy: &'static str,
    load: &'static str,
    /// Mean response time in the model's unit; 0 if unknown.
    mean: f64,
    /// Half the width of the mean's 95% confidence interval; 0 if unknown.
    ci: f64,
    /// 99th percentile of the response time; 0 if unknown.
    p99: f64,
    /// 99th percentile of the first class's response times, and 99.9th percentile of the slowdown; 0 if unknown.
    classes: (f64, f64),
    /// Messages per task; 0 if unknown.
    messages: f64,
    /// Allowed relative difference of both values of `classes`.
    class_tolerances: (f64, f64),
    /// True if queues grow. Then no other value is comparable.
    unstable: bool,
    /// Allowed relative difference of the mean and of the 99th percentile.
    tolerance: (f64, f64),
    /// True if the result is part of the quick check.
    quick: bool,
}

/// Default tolerances of mean and 99th percentile. The mean may also differ by 1.5 times the sum of the half-widths
/// of both confidence intervals.
const TOLERANCE: (f64, f64) = (0.03, 0.04);
/// Like [`TOLERANCE`], for learning nodes, whose result depends on their random initial parameters.
const LEARNED_TOLERANCE: (f64, f64) = (0.06, 0.06);
/// Tolerances of the first class's 99th percentile and of the slowdown's 99.9th percentile.
const CLASS_TOLERANCES: (f64, f64) = (0.05, 0.05);
/// Like [`CLASS_TOLERANCES`], for results that depend on few congested moments: at high loads, and with rare long
/// tasks. Their slowdown varies by 20% between references of 3 million tasks.
const RARE_TOLERANCES: (f64, f64) = (0.1, 0.25);
/// Tolerance of messages per task, of which references give two digits.
const MESSAGES_TOLERANCE: f64 = 0.02;

// Set-ups of the references: flags of `sim`. One rack, or four, with 32 workers in total. In `SLOTS_2` fast servers are
// 2 times as fast as slow ones, in `SLOTS_10` and `CT_10` 10 times.
const SINGLE: &[(&str, &str)] = &[("signals", "horus-sim"), ("racks", "32")];
const SINGLE_NO_DELAY: &[(&str, &str)] = &[("hop", "0us"), ("racks", "32")];
const FOUR: &[(&str, &str)] = &[("signals", "horus-sim"), ("racks", "8,8,8,8")];
const BIMODAL: (&str, &str) = ("service", "mix(0.5*normal(50us,5us), 0.5*normal(500us,50us))");
const SINGLE_BIMODAL: &[(&str, &str)] = &[("signals", "horus-sim"), ("racks", "32"), BIMODAL];
const SINGLE_BIMODAL_NO_DELAY: &[(&str, &str)] = &[("hop", "0us"), ("racks", "32"), BIMODAL];
const SLOTS_2: &[(&str, &str)] = &[("model", "slots"), ("speeds", "50x1,50x2")];
const SLOTS_10: &[(&str, &str)] = &[("model", "slots"), ("speeds", "50x1,50x10")];
const CT_10: &[(&str, &str)] = &[("model", "ct"), ("speeds", "50x1,50x10")];
const ONE: &[(&str, &str)] = &[("model", "ct"), ("servers", "1"), ("dispatchers", "1")];
const HUNDRED: &[(&str, &str)] = &[("model", "ct"), ("servers", "100"), ("dispatchers", "1")];
const MANY: &[(&str, &str)] = &[("model", "ct"), ("servers", "1000"), ("dispatchers", "1")];
const MANY_10: &[(&str, &str)] =
    &[("model", "ct"), ("servers", "1000"), ("dispatchers", "1"), ("speeds", "500x1,500x10")];

// Nodes without a scheduler between them, with exponential service times or a mixture of short and long ones.
const NODES: &[(&str, &str)] =
    &[("model", "nodes"), ("nodes", "4x14,10x3"), ("service", "mix(0.5*exp(50us),0.5*exp(500us))")];
const NODES_EXP: &[(&str, &str)] =
    &[("model", "nodes"), ("nodes", "4x14,10x3"), ("service", "exp(75us)")];
const EQUAL_NODES: &[(&str, &str)] =
    &[("model", "nodes"), ("nodes", "10x10"), ("service", "exp(75us)"), ("beat", "1ms")];
/// Two fast nodes (16 workers each) and fourteen slow ones (two workers each). With a beat of 1 us, they know all
/// queues almost without delay.
const NODES_TWO_FAST: &[(&str, &str)] = &[
    ("model", "nodes"),
    ("nodes", "2x16,14x2"),
    ("service", "exp(20us)"),
    ("seconds", "2"),
    ("beat", "1us"),
    ("delay", "0us"),
];

// Flags for one central queue, or a queue at each of 32 workers, without delay. Workers serve one task at a time, or
// tasks share their cores. `SHARED`: quantum of 10 us, switch of 500 ns.
const ROCKSDB: (&str, &str) = ("service", "mix(0.9*fixed(40us),0.1*fixed(650us))");
const HALVES: (&str, &str) = ("service", "mix(0.5*fixed(50us),0.5*fixed(500us))");
const THIRDS: (&str, &str) =
    ("service", "mix(0.333333*fixed(5us),0.333333*fixed(50us),0.333334*fixed(500us))");
const UNLIKE: (&str, &str) = ("service", "mix(0.5*fixed(1us),0.5*fixed(100us))");
const RARE: (&str, &str) = ("service", "mix(0.995*fixed(500ns),0.005*fixed(500us))");
const CLASSES: (&str, &str) = ("classes", "yes");
const NO_DELAY: (&str, &str) = ("hop", "0us");
const SHARED: (&str, &str) = ("sharing", "10us,500ns");
const SHARED_FINER: (&str, &str) = ("sharing", "5us,200ns");

/// Returns a row of [`EXPECTED`]. The tuple has the mean, half the width of its interval, and the 99th percentile.
const fn row(
    setup: &'static [(&'static str, &'static str)],
    policy: &'static str,
    load: &'static str,
    (mean, ci, p99): (f64, f64, f64),
    quick: bool,
) -> ReferenceResult {
    ReferenceResult {
        setup,
        policy,
        load,
        mean,
        ci,
        p99,
        classes: (0.0, 0.0),
        class_tolerances: CLASS_TOLERANCES,
        messages: 0.0,
        unstable: false,
        tolerance: TOLERANCE,
        quick,
    }
}

/// Returns a row of a mixture of classes: set-up, policy, load, 99th percentile of the first class, 99.9th percentile
/// of the slowdown.
const fn of_classes(
    setup: &'static [(&'static str, &'static str)],
    policy: &'static str,
    load: &'static str,
    classes: (f64, f64),
) -> ReferenceResult {
    ReferenceResult { classes, ..row(setup, policy, load, (0.0, 0.0, 0.0), false) }
}

/// Widens the tolerances of a row whose slowdown depends on rare events.
const fn rare(row: ReferenceResult) -> ReferenceResult {
    ReferenceResult { class_tolerances: RARE_TOLERANCES, ..row }
}

/// Adds a row to the quick check.
const fn quick(row: ReferenceResult) -> ReferenceResult {
    ReferenceResult { quick: true, ..row }
}

/// Returns a row for learning nodes (policy `malcolm`). The tuple has the mean and the 99th percentile.
const fn learned(
    setup: &'static [(&'static str, &'static str)],
    load: &'static str,
    (mean, p99): (f64, f64),
) -> ReferenceResult {
    let tolerance = LEARNED_TOLERANCE;
    ReferenceResult { tolerance, ..row(setup, "malcolm", load, (mean, 0.0, p99), false) }
}

/// Returns a row without figures, which only expects that the queues do not grow.
const fn stable(
    setup: &'static [(&'static str, &'static str)],
    policy: &'static str,
    load: &'static str,
) -> ReferenceResult {
    row(setup, policy, load, (0.0, 0.0, 0.0), false)
}

/// Adds the number of messages per task to a row.
const fn with_messages(row: ReferenceResult, messages: f64) -> ReferenceResult {
    ReferenceResult { messages, ..row }
}

/// Returns a row that expects growing queues.
const fn unstable(
    setup: &'static [(&'static str, &'static str)],
    policy: &'static str,
    load: &'static str,
) -> ReferenceResult {
    ReferenceResult { unstable: true, ..row(setup, policy, load, (0.0, 0.0, 0.0), false) }
}

/// All reference results.
pub const EXPECTED: &[ReferenceResult] = &[
    row(SINGLE, "horus", "0.5", (110.0, 0.0, 471.0), true),
    row(SINGLE, "horus", "0.7", (114.2, 0.0, 490.0), true),
    row(SINGLE, "horus", "0.9", (167.5, 0.0, 682.0), false),
    row(SINGLE, "racksched", "0.5", (175.6, 0.0, 756.0), false),
    row(SINGLE, "racksched", "0.7", (223.8, 0.0, 917.0), true),
    row(SINGLE, "racksched", "0.9", (344.1, 0.0, 1210.0), false),
    row(SINGLE_NO_DELAY, "jsq", "0.5", (100.0, 0.0, 462.0), false),
    row(SINGLE_NO_DELAY, "jsq", "0.7", (101.5, 0.0, 468.0), true),
    row(SINGLE_NO_DELAY, "jsq", "0.9", (128.9, 0.0, 562.0), false),
    row(FOUR, "horus", "0.5", (135.0, 0.0, 532.0), false),
    row(FOUR, "horus", "0.7", (148.9, 0.0, 583.0), true),
    row(FOUR, "horus", "0.9", (219.5, 0.0, 782.0), false),
    row(FOUR, "rs-lb", "0.5", (191.2, 0.0, 772.0), false),
    row(FOUR, "rs-lb", "0.7", (244.6, 0.0, 963.0), true),
    row(FOUR, "rs-lb", "0.9", (392.3, 0.0, 1347.0), false),
    row(FOUR, "rs-h", "0.5", (204.5, 0.0, 838.0), false),
    row(FOUR, "rs-h", "0.7", (266.5, 0.0, 1073.0), true),
    row(FOUR, "rs-h", "0.9", (406.0, 0.0, 1409.0), false),
    row(SINGLE_BIMODAL, "horus", "0.5", (285.4, 0.0, 613.0), false),
    row(SINGLE_BIMODAL, "horus", "0.7", (290.8, 0.0, 644.0), true),
    row(SINGLE_BIMODAL, "horus", "0.9", (382.6, 0.0, 1237.0), false),
    row(SINGLE_BIMODAL, "racksched", "0.5", (433.0, 0.0, 1446.0), false),
    row(SINGLE_BIMODAL, "racksched", "0.7", (547.6, 0.0, 1789.0), false),
    row(SINGLE_BIMODAL, "racksched", "0.9", (833.5, 0.0, 2322.0), false),
    row(SINGLE_BIMODAL_NO_DELAY, "jsq", "0.5", (275.1, 0.0, 603.0), false),
    row(SINGLE_BIMODAL_NO_DELAY, "jsq", "0.7", (278.8, 0.0, 618.0), false),
    row(SINGLE_BIMODAL_NO_DELAY, "jsq", "0.9", (345.2, 0.0, 1022.0), false),
    row(SLOTS_2, "jsq", "0.7", (6.86, 0.0, 29.0), true),
    row(SLOTS_2, "jsq", "0.9", (11.85, 0.13, 54.0), false),
    row(SLOTS_2, "jsq", "0.95", (19.3, 0.2, 93.0), false),
    row(SLOTS_2, "jsq(2)", "0.7", (9.71, 0.0, 37.0), true),
    row(SLOTS_2, "jsq(2)", "0.9", (20.5, 0.2, 67.0), false),
    row(SLOTS_2, "jsq(2)", "0.95", (29.3, 0.1, 87.0), false),
    row(SLOTS_2, "lsq-sample(2)", "0.7", (8.16, 0.0, 34.0), true),
    row(SLOTS_2, "lsq-sample(2)", "0.9", (13.99, 0.06, 51.0), false),
    row(SLOTS_2, "lsq-sample(2)", "0.95", (18.3, 0.2, 60.0), false),
    row(SLOTS_2, "lsq-update(.2)", "0.7", (6.48, 0.0, 27.0), true),
    row(SLOTS_2, "lsq-update(.2)", "0.9", (9.40, 0.06, 39.0), false),
    row(SLOTS_2, "lsq-update(.2)", "0.95", (11.77, 0.06, 45.0), false),
    row(SLOTS_2, "lsq-smart(.2)", "0.7", (6.36, 0.0, 27.0), true),
    row(SLOTS_2, "lsq-smart(.2)", "0.9", (9.21, 0.06, 39.0), false),
    row(SLOTS_2, "lsq-smart(.2)", "0.95", (10.86, 0.05, 45.0), false),
    row(SLOTS_2, "ppot", "0.7", (8.35, 0.0, 32.0), true),
    row(SLOTS_2, "ppot", "0.9", (15.3, 0.1, 51.0), false),
    row(SLOTS_2, "ppot", "0.95", (20.3, 0.1, 62.0), false),
    row(SLOTS_10, "lsq-update(.2)", "0.7", (8.31, 0.0, 84.0), false),
    row(SLOTS_10, "lsq-update(.2)", "0.9", (12.20, 0.06, 120.0), false),
    row(SLOTS_10, "ppot", "0.7", (8.51, 0.0, 78.0), true),
    row(SLOTS_10, "ppot", "0.9", (15.9, 0.1, 141.0), false),
    row(CT_10, "jsq", "0.9", (1.30, 0.0, 17.0), false),
    with_messages(row(CT_10, "lsq-sample(2)", "0.9", (3.32, 0.0, 37.0), false), 2.0),
    with_messages(row(CT_10, "lsq-update(.2)", "0.9", (2.13, 0.0, 26.0), true), 0.53),
    with_messages(row(CT_10, "ppot", "0.9", (2.65, 0.0, 28.0), false), 2.0),
    unstable(SLOTS_10, "jsq(2)", "0.7"),
    unstable(SLOTS_10, "jsq(2)", "0.9"),
    unstable(SLOTS_10, "jiq", "0.7"),
    unstable(SLOTS_10, "jiq", "0.9"),
    // M/M/1 with load rho: a mean of 1 / (1 - rho), and a 99th percentile of ln(100) times that.
    row(ONE, "random", "0.9", (10.0, 0.0, 46.05), false),
    row(ONE, "random", "0.5", (2.0, 0.0, 9.21), true),
    // M/M/100 with one queue: Erlang's C formula.
    row(HUNDRED, "jbsq(1)", "0.95", (1.10129, 0.0, 0.0), true),
    // Limit of many servers, two choices: the sum of rho^(2^k - 2) over k from 1. For ppot, it does not depend on the
    // speeds.
    row(MANY, "jsq(2)", "0.9", (2.614, 0.0, 0.0), true),
    row(MANY_10, "ppot", "0.9", (2.614, 0.0, 0.0), true),
    // From independent programs.
    row(NODES, "central", "0.7", (276.0, 0.0, 1957.0), false),
    row(NODES, "central", "0.8", (276.0, 0.0, 1958.0), false),
    row(NODES, "central", "0.9", (289.0, 0.0, 1973.0), true),
    row(NODES, "central", "0.93", (307.0, 0.0, 1995.0), false),
    row(NODES, "central", "0.95", (334.0, 0.0, 2028.0), false),
    row(NODES, "rsteal", "0.7", (366.0, 0.0, 2066.0), false),
    row(NODES, "rsteal", "0.8", (380.0, 0.0, 2092.0), false),
    row(NODES, "rsteal", "0.9", (424.0, 0.0, 2173.0), true),
    row(NODES, "rsteal", "0.93", (472.0, 0.0, 2295.0), false),
    row(NODES, "rsteal", "0.95", (528.0, 0.0, 2517.0), false),
    row(NODES_EXP, "rsteal", "0.8", (102.0, 0.0, 378.0), false),
    row(NODES_EXP, "rsteal", "0.9", (113.0, 0.0, 414.0), false),
    learned(NODES, "0.7", (335.0, 2025.0)),
    learned(NODES, "0.8", (328.0, 2012.0)),
    learned(NODES, "0.9", (339.0, 2026.0)),
    learned(NODES, "0.93", (367.0, 2066.0)),
    learned(NODES, "0.95", (389.0, 2109.0)),
    learned(NODES_EXP, "0.8", (96.0, 373.0)),
    learned(NODES_EXP, "0.9", (99.0, 377.0)),
    learned(EQUAL_NODES, "0.8", (80.0, 350.0)),
    // From an independent program, six runs of 3 million tasks each. `jbsq(k=1)` is one central queue.
    rare(of_classes(&[CLASSES, NO_DELAY, ROCKSDB], "jbsq(k=1)", "0.8", (133.7, 5.48))),
    of_classes(&[CLASSES, NO_DELAY, ROCKSDB], "jsq", "0.8", (598.4, 17.16)),
    quick(of_classes(&[CLASSES, NO_DELAY, ROCKSDB, SHARED], "jsq", "0.8", (81.81, 2.08))),
    rare(of_classes(&[CLASSES, NO_DELAY, ROCKSDB], "jbsq(k=1)", "0.9", (298.3, 10.97))),
    rare(of_classes(&[CLASSES, NO_DELAY, ROCKSDB], "jsq", "0.9", (712.7, 31.44))),
    rare(of_classes(&[CLASSES, NO_DELAY, ROCKSDB, SHARED], "jsq", "0.9", (128.9, 4.5))),
    of_classes(&[CLASSES, NO_DELAY, HALVES], "jbsq(k=1)", "0.8", (161.1, 4.31)),
    of_classes(&[CLASSES, NO_DELAY, HALVES], "jsq", "0.8", (485.2, 10.76)),
    quick(of_classes(&[CLASSES, NO_DELAY, HALVES, SHARED], "jsq", "0.8", (103.0, 2.09))),
    of_classes(&[CLASSES, NO_DELAY, THIRDS], "jbsq(k=1)", "0.8", (115.6, 31.18)),
    of_classes(&[CLASSES, NO_DELAY, THIRDS], "jsq", "0.8", (449.4, 98.19)),
    of_classes(&[CLASSES, NO_DELAY, THIRDS, SHARED], "jsq", "0.8", (14.24, 3.03)),
    of_classes(&[CLASSES, NO_DELAY, UNLIKE], "jbsq(k=1)", "0.8", (25.28, 36.66)),
    of_classes(&[CLASSES, NO_DELAY, UNLIKE], "jsq", "0.8", (89.46, 98.93)),
    of_classes(&[CLASSES, NO_DELAY, UNLIKE, SHARED], "jsq", "0.8", (10.21, 11.26)),
    of_classes(&[CLASSES, NO_DELAY, UNLIKE, SHARED_FINER], "jsq", "0.8", (5.53, 6.07)),
    rare(of_classes(&[CLASSES, NO_DELAY, RARE], "jbsq(k=1)", "0.8", (99.0, 322.0))),
    rare(of_classes(&[CLASSES, NO_DELAY, RARE], "jsq", "0.8", (403.3, 1098.0))),
    rare(of_classes(&[CLASSES, NO_DELAY, RARE, SHARED], "jsq", "0.8", (11.16, 41.15))),
    rare(of_classes(&[CLASSES, NO_DELAY, RARE, SHARED_FINER], "jsq", "0.8", (5.56, 17.36))),
    // Loads 0.02 below and above that at which the slow nodes saturate. `random`: each of 14 nodes gets 1/14 of the
    // tasks for 86 workers. A node of three workers saturates at 3 * 14 / 86 = 0.488. `po2`: both choices are slow
    // nodes with probability 10 * 9 / (14 * 13). Their 30 workers saturate at 30 * 14 * 13 / (10 * 9 * 86) = 0.705.
    stable(NODES_EXP, "random", "0.468"),
    unstable(NODES_EXP, "random", "0.508"),
    stable(NODES_EXP, "po2", "0.685"),
    unstable(NODES_EXP, "po2", "0.725"),
    // From independent programs.
    row(NODES_TWO_FAST, "po2", "0.6", (0.0, 0.0, 201.0), false),
    unstable(NODES_TWO_FAST, "po2", "0.65"),
];

/// A simulated result and its reference.
#[derive(Clone, Debug)]
pub struct Comparison {
    expected: ReferenceResult,
    /// Result of this simulator.
    ours: Row,
}

impl Comparison {
    /// Returns true if both results are stable with all differences within tolerance, or both are unstable.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let ReferenceResult { mean, ci, p99, classes, messages, unstable, tolerance, .. } =
            self.expected;
        let ours = &self.ours;
        if unstable || ours.unstable {
            return unstable == ours.unstable;
        }
        let intervals = 1.5 * (ci + if ours.mean_ci95.is_finite() { ours.mean_ci95 } else { 0.0 });
        let difference = (ours.mean - mean).abs();
        let mean_agrees = mean == 0.0 || difference <= (tolerance.0 * mean).max(intervals);
        let p99_agrees = p99 == 0.0 || (ours.p99 - p99).abs() <= tolerance.1 * p99;
        let our_messages = ours.messages_per_task;
        let messages_agree =
            messages == 0.0 || (our_messages - messages).abs() <= MESSAGES_TOLERANCE * messages;
        let agrees = |ours: f64, reference: f64, tolerance: f64| {
            reference == 0.0 || (ours - reference).abs() <= tolerance * reference
        };
        let ((first_class, slowdown), tolerances) = (classes, self.expected.class_tolerances);
        let (our_first_class, our_slowdown) = self.classes();
        mean_agrees
            && p99_agrees
            && messages_agree
            && agrees(our_first_class, first_class, tolerances.0)
            && agrees(our_slowdown, slowdown, tolerances.1)
    }

    /// Returns this simulator's 99th percentile of the first class, and 99.9th percentile of the slowdown; NaN if not
    /// measured.
    fn classes(&self) -> (f64, f64) {
        let first_class = self.ours.class_p99.first().map_or(f64::NAN, |(_, p99)| *p99);
        (first_class, self.ours.slowdown_p999.unwrap_or(f64::NAN))
    }
}

impl std::fmt::Display for Comparison {
    /// Writes one line without its end: the verdict, both results with their difference, and the set-up's flags.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ReferenceResult { setup, policy, load, mean, p99, classes, messages, unstable, .. } =
            self.expected;
        let setup = text(setup);
        let percent = |ours: f64, reference: f64| 100.0 * (ours / reference - 1.0);
        let verdict = if self.agrees() { "ok" } else { "DIFFERS" };
        write!(f, "{verdict:8}{policy:15}{load:5}")?;
        let ours = &self.ours;
        if unstable || mean == 0.0 && p99 == 0.0 && classes.0 == 0.0 {
            let expected = if unstable { "unstable" } else { "stable" };
            let found = if ours.unstable { "unstable" } else { "stable" };
            return write!(f, " {found}, expected {expected}  {setup}");
        }
        if mean > 0.0 {
            let difference = percent(ours.mean, mean);
            write!(f, " mean {:8.3} expected {mean:8.3} ({difference:+.1}%)", ours.mean)?;
        }
        if p99 > 0.0 {
            write!(
                f,
                ", p99 {:8.2} expected {p99:8.2} ({:+.1}%)",
                ours.p99,
                percent(ours.p99, p99)
            )?;
        }
        if classes.0 > 0.0 {
            let (first_class, slowdown) = self.classes();
            write!(
                f,
                " p99 of the first class {first_class:8.2} expected {:8.2} ({:+.1}%), slowdown {slowdown:7.2} expected {:7.2} ({:+.1}%)",
                classes.0,
                percent(first_class, classes.0),
                classes.1,
                percent(slowdown, classes.1)
            )?;
        }
        if messages > 0.0 {
            write!(f, ", messages {:.3} expected {messages}", ours.messages_per_task)?;
        }
        write!(f, "  {setup}")
    }
}

/// Returns the flags of a set-up in one line, as in `hop=0us racks=32`.
fn text(setup: &[(&str, &str)]) -> String {
    let flags: Vec<_> = setup.iter().map(|(key, value)| format!("{key}={value}")).collect();
    flags.join(" ")
}

/// Runs the simulations of all references whose set-up contains the text `only`, one at each step of the iterator. A
/// set-up is a text such as `model=ct servers=1`, without policy and load. An empty `only` selects all. With `quick`,
/// runs only the quick references, with fewer tasks and seeds. Yields an error if the simulator refuses a reference's
/// flags.
pub fn compare(quick: bool, only: &str) -> impl Iterator<Item = Result<Comparison, String>> {
    let chosen = EXPECTED
        .iter()
        .filter(move |expected| (!quick || expected.quick) && text(expected.setup).contains(only));
    chosen.map(move |&expected| Ok(Comparison { expected, ours: simulate(&expected, quick)? }))
}

/// Runs the simulation of a reference, with fewer tasks and seeds if `quick`.
fn simulate(expected: &ReferenceResult, quick: bool) -> Result<Row, String> {
    let mut keys = toml::Table::new();
    let mut key = |key: &str, value: &str| {
        keys.insert(key.to_owned(), toml::Value::String(value.to_owned()));
    };
    for (name, value) in expected.setup {
        key(name, value);
    }
    key("policy", expected.policy);
    key("load", expected.load);
    // Unless `quick` is set, nodes run for a fixed time instead of a number of tasks, because they learn at each beat.
    let is_nodes = expected.setup.contains(&("model", "nodes"));
    if is_nodes && quick {
        key("tasks", "400000");
    } else if is_nodes && !expected.setup.iter().any(|(name, _)| *name == "seconds") {
        key("seconds", "30");
        key("measure", "10");
    } else if !is_nodes {
        // Each model reads only one of these two flags.
        key("tasks", if quick { "400000" } else { "1000000" });
        key("slots", if quick { "6000" } else { "100000" });
    }
    key(
        "seeds",
        if quick {
            "2"
        } else if is_nodes {
            "3"
        } else {
            "6"
        },
    );
    let args: SimArgs = keys.try_into().map_err(|error| format!("{error}"))?;
    rows(&args)?.pop().ok_or_else(|| "no row".to_owned())
}

/// Runs the comparisons of [`compare`] and reports them. Returns false if one differs.
///
/// # Errors
/// If a run fails or the report cannot be written.
pub fn report(quick: bool, only: &str, out: &mut impl Write) -> Result<bool, String> {
    let (mut agree, mut count) = (0, 0);
    let mut print = |text: String| -> Result<(), String> {
        writeln!(out, "{text}").map_err(|error: io::Error| error.to_string())
    };
    for comparison in compare(quick, only) {
        let comparison = comparison?;
        agree += usize::from(comparison.agrees());
        count += 1;
        print(comparison.to_string())?;
    }
    print(format!("{agree} of {count} results agree"))?;
    Ok(agree == count)
}
