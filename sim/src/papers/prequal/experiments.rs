//! Experiments of the Prequal paper, on 100 clients and 100 servers.

use super::pool::{Probing, Rule};
use super::{Antagonists, Config, PROBING, QUANTILE, Results, Selection, run};
use crate::papers::{Claim, service};

/// Source of the claims about selection rules.
const RULES: &str = "Prequal, NSDI'24, Fig. 7 (selection rules), by a write-up; ratios with a value at the \
    deadline of 5 s are bounds; the antagonists are our assumption";
/// Source of the claims about the load ramp.
const RAMP: &str = "Prequal, NSDI'24, Fig. 6 (load ramp), by two write-ups: weighted round robin fails above \
    load 1 with over 25% errors, Prequal has none up to 1.74, with less even CPU use; the antagonists are our \
    assumption; runs of seconds have fewer errors, because the backlog needs several seconds to reach the deadline";
/// Source of the claims about the probing rate.
const RATE: &str = "Prequal, NSDI'24, Fig. 8 (probing rate), by a write-up: insensitive down to one probe per \
    query, then the tail grows; load from memory";
/// Source of the claim about the pool.
const POOL: &str = "Prequal, NSDI'24, by two write-ups: pools beyond 16 bring little";
/// Source of the claims about the quantile.
const QUANTILES: &str = "Prequal, NSDI'24, Fig. 9 (quantile), by two write-ups; slow half and load 0.94 from \
    memory; the ratio of p99.9 is 1.6 to 2.4; the base of the ratios of quantile 1 is not known, 0.99 here; \
    a run has one placement of antagonists, so another seed may reverse the ratio";
/// Source of the claims about linear rules.
const LINEAR: &str = "Prequal, NSDI'24, Fig. 10 (linear rules), by a write-up: latency falls as the weight moves \
    to the requests in flight, which our simulation does not show, and the hot-cold rule is better still; \
    conditions from memory; a run has one placement of antagonists";
/// Source of the claim about production.
const PRODUCTION: &str = "Prequal, NSDI'24, cut-over of YouTube's homepage, by two write-ups: tail from about \
    225 to 50, or 5 to 10 times lower; quantile not known, and conditions differ from ours";

/// Comparison of weighted round robin and Prequal.
const WEIGHTED_P999: &str = "p99.9 in ms, weighted round robin / Prequal";
/// Cores of a server's allocation: our assumption, under which the 99th percentile of Prequal is near the paper's.
const CORES: f64 = 4.0;

/// Machines with their description. The numbers are our assumptions: one server in five has no spare cores.
#[derive(Clone, Copy)]
struct Machines(&'static str, Antagonists);

/// Machines whose antagonists take the spare cores only.
const ISOLATED: Machines = Machines(
    "isolated antagonists",
    Antagonists { full: 0.2, spare: 3.0, contention: 0.0, interval_s: 60.0, slow: 1.0 },
);
/// Machines whose antagonists also slow the server's own cores.
const CONTENDED: Machines =
    Machines("antagonists with contention", Antagonists { contention: 0.4, ..ISOLATED.1 });
/// Machines of which half are slow.
const HALF_SLOW: Machines =
    Machines("half of the servers slow", Antagonists { slow: 0.5, ..ISOLATED.1 });

/// Compared selection rule, with the ratios of the paper.
struct RuleRow {
    selection: Selection,
    /// Comparisons of the 90th and 99th percentiles.
    compared: [&'static str; 2],
    /// These percentiles of the paper in milliseconds, at the lower and at the higher load; `None` if not known.
    paper: Option<[[f64; 2]; 2]>,
}

/// Percentiles of Prequal in the paper, as in [`RuleRow::paper`].
const PREQUAL_MS: [[f64; 2]; 2] = [[149.0, 281.0], [152.0, 286.0]];
/// Loads of the paper's comparison of rules.
const RULE_LOADS: [f64; 2] = [0.7, 0.9];

/// Creates the row of a rule with this name.
macro_rules! rule {
    ($selection:expr, $name:literal, $paper:expr) => {
        RuleRow {
            selection: $selection,
            compared: [
                concat!("p90 in ms, ", $name, " / Prequal"),
                concat!("p99 in ms, ", $name, " / Prequal"),
            ],
            paper: $paper,
        }
    };
}

/// Compared rules.
const RULE_ROWS: [RuleRow; 7] = [
    rule!(Selection::Random, "random", None),
    rule!(Selection::RoundRobin, "round robin", Some([[4984.0, 5000.0], [5000.0, 5000.0]])),
    rule!(Selection::Weighted, "weighted round robin", Some([[173.0, 314.0], [1667.0, 5000.0]])),
    rule!(Selection::LeastLoaded, "least loaded", Some([[343.0, 1804.0], [940.0, 2654.0]])),
    rule!(Selection::LeastLoadedOfTwo, "least loaded of two", None),
    rule!(Selection::PolledOfTwo, "polled of two", Some([[210.0, 2642.0], [213.0, 1169.0]])),
    rule!(Selection::Probes(Rule::Cubic, PROBING), "C3", Some([[161.0, 299.0], [164.0, 304.0]])),
];

/// Number of tasks and seed of all experiments.
struct Testbed {
    tasks: u64,
    seed: u64,
}

impl Testbed {
    /// Runs an experiment.
    fn run(&self, machines: Machines, load: f64, selection: Selection) -> Results {
        run(&Config {
            clients: 100,
            servers: 100,
            cores: CORES,
            // Truncated at 0, with a median of 75 ms: the paper's latency of a query without others.
            service: service("normal(62500us,62500us)"),
            load,
            antagonists: machines.1,
            selection,
            tasks: self.tasks,
            seed: self.seed,
        })
    }

    /// Returns the claims about selection rules at a load of [`RULE_LOADS`], each against Prequal.
    fn rule_claims(&self, load_index: usize) -> Vec<Claim> {
        let load = RULE_LOADS[load_index];
        let prequal = self.run(CONTENDED, load, Selection::PREQUAL);
        let mut claims = Vec::new();
        for row in &RULE_ROWS {
            let results = self.run(CONTENDED, load, row.selection);
            for (index, q) in [0.9, 0.99].into_iter().enumerate() {
                let values = (results.ms(q), prequal.ms(q));
                let ms = |all: &[[f64; 2]; 2]| all[load_index][index];
                let claimed = row.paper.as_ref().map(|paper| ms(paper) / ms(&PREQUAL_MS));
                let compared = row.compared[index];
                claims.push(Claim { claimed, ..claim(compared, values, CONTENDED, load, RULES) });
            }
        }
        claims
    }

    /// Returns the claims about weighted round robin at a load of the ramp.
    fn ramp_claims(&self, load: f64) -> [Claim; 3] {
        let weighted = self.run(ISOLATED, load, Selection::Weighted);
        let prequal = self.run(ISOLATED, load, Selection::PREQUAL);
        let errors = |results: &Results| results.errors as f64 / self.tasks as f64;
        [
            (WEIGHTED_P999, (weighted.ms(0.999), prequal.ms(0.999))),
            (
                "share of errors, weighted round robin / Prequal",
                (errors(&weighted), errors(&prequal)),
            ),
            (
                "variation of CPU use, Prequal / weighted round robin",
                (prequal.cpu_variation, weighted.cpu_variation),
            ),
        ]
        .map(|(compared, values)| claim(compared, values, ISOLATED, load, RAMP))
    }

    /// Returns the claims about the probing rate.
    fn rate_claims(&self) -> [Claim; 2] {
        let load = 1.5;
        let in_flight = |probes| {
            let probing = Probing { probes, removals: 0.25, ..PROBING };
            let selection = Selection::Probes(Rule::HotCold(QUANTILE), probing);
            self.run(ISOLATED, load, selection).in_flight_p99()
        };
        let usual = in_flight(3.0);
        [
            ("p99 of requests in flight, 1 probe per query / 3", in_flight(1.0)),
            ("p99 of requests in flight, 0.5 probes per query / 3", in_flight(0.5)),
        ]
        .map(|(compared, value)| claim(compared, (value, usual), ISOLATED, load, RATE))
    }

    /// Returns the claim about the size of the pool.
    fn pool_claim(&self) -> Claim {
        let p99 = |size| {
            let probing = Probing { size, ..PROBING };
            let selection = Selection::Probes(Rule::HotCold(QUANTILE), probing);
            self.run(CONTENDED, 0.9, selection).ms(0.99)
        };
        claim("p99 in ms, pool of 16 / pool of 32", (p99(16), p99(32)), CONTENDED, 0.9, POOL)
    }

    /// Returns the claims about the quantile of the hot-cold rule, and about linear rules.
    fn quantile_claims(&self) -> Vec<Claim> {
        let load = 0.94;
        let run = |rule| self.run(HALF_SLOW, load, Selection::Probes(rule, PROBING));
        let [counts, usual, high, latencies] =
            [0.0, QUANTILE, 0.99, 1.0].map(|q| run(Rule::HotCold(q)));
        let [low, middle, most] = [0.1, 0.5, 0.9].map(|weight| run(Rule::Linear(weight)));
        let of = |compared, q, results: [&Results; 2], claimed, source| {
            let values = results.map(|results| results.ms(q)).into();
            Claim { claimed, ..claim(compared, values, HALF_SLOW, load, source) }
        };
        let quantiles =
            |compared, q, results, claimed| of(compared, q, results, claimed, QUANTILES);
        let linear = |compared, results| of(compared, 0.99, results, None, LINEAR);
        vec![
            quantiles("p90 in ms, hot-cold quantile 0 / 0.99", 0.9, [&counts, &high], Some(1.24)),
            quantiles("p99 in ms, hot-cold quantile 0 / 0.99", 0.99, [&counts, &high], Some(1.14)),
            quantiles(
                "p99 in ms, hot-cold quantile 1 / 0.99",
                0.99,
                [&latencies, &high],
                Some(1.2),
            ),
            quantiles(
                "p99.9 in ms, hot-cold quantile 1 / 0.99",
                0.999,
                [&latencies, &high],
                Some(2.0),
            ),
            quantiles("p99 in ms, hot-cold quantile 0 / 0.84", 0.99, [&counts, &usual], None),
            linear("p99 in ms, linear weight 0.1 / 0.5", [&low, &middle]),
            linear("p99 in ms, linear weight 0.5 / 0.9", [&middle, &most]),
            linear("p99 in ms, linear weight 0.9 / hot-cold quantile 0.84", [&most, &usual]),
        ]
    }

    /// Returns the claim about the requests in flight in production.
    fn production_claim(&self) -> Claim {
        let values = [Selection::Weighted, Selection::PREQUAL]
            .map(|selection| self.run(CONTENDED, 0.9, selection).in_flight_p99())
            .into();
        let compared = "p99 of requests in flight, weighted round robin / Prequal";
        Claim { claimed: Some(4.5), ..claim(compared, values, CONTENDED, 0.9, PRODUCTION) }
    }
}

/// Returns a claim without a ratio of the paper.
fn claim(
    compared: &'static str,
    values: (f64, f64),
    Machines(machines, _): Machines,
    load: f64,
    source: &'static str,
) -> Claim {
    let conditions = format!("load {load} of the allocation, {machines}, 100 clients, 100 servers");
    Claim { system: "prequal", compared, conditions, claimed: None, values, source }
}

/// Runs the paper's experiments.
pub(super) fn claims(tasks: u64, seed: u64) -> Vec<Claim> {
    let testbed = Testbed { tasks, seed };
    let mut claims: Vec<_> =
        (0..RULE_LOADS.len()).flat_map(|index| testbed.rule_claims(index)).collect();
    for load in [0.93, 1.03, 1.27, 1.74] {
        claims.extend(testbed.ramp_claims(load));
    }
    claims.extend(testbed.rate_claims());
    claims.push(testbed.pool_claim());
    claims.extend(testbed.quantile_claims());
    claims.push(testbed.production_claim());
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTBED: Testbed = Testbed { tasks: 40_000, seed: 1 };

    #[test]
    fn prequal_beats_weights_above_the_allocation() {
        let claims = TESTBED.ramp_claims(1.27);
        assert!(claims[0].ratio() > 2.0, "{claims:#?}");
        // Prequal has no error, and weighted round robin the more even CPU use.
        assert!(claims[1].values.1 <= 0.0, "{claims:#?}");
        assert!(claims[2].ratio() > 1.0, "{claims:#?}");
    }

    #[test]
    fn prequal_beats_every_other_rule() {
        let claims = TESTBED.rule_claims(1);
        assert_eq!(claims.len(), 2 * RULE_ROWS.len());
        assert!(claims.iter().all(|claim| claim.ratio() > 1.0), "{claims:#?}");
    }

    #[test]
    fn rare_probes_lengthen_the_tail() {
        let [single, half] = TESTBED.rate_claims();
        assert!(half.ratio() > single.ratio() && half.ratio() > 1.5, "{single:?} {half:?}");
    }

    #[test]
    fn latency_alone_has_the_longest_tail() {
        let p999 = |quantile| {
            let selection = Selection::Probes(Rule::HotCold(quantile), PROBING);
            TESTBED.run(HALF_SLOW, 0.94, selection).ms(0.999)
        };
        let (latency, both) = (p999(1.0), p999(QUANTILE));
        assert!(latency > 1.2 * both, "{latency} {both}");
    }
}
