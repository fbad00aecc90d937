//! Comparison of all policies by speeds, delay, dispatchers and load, with the best policy of each cell. No paper has
//! such a comparison. The dispatchers are cores of one leaf, or independent leaves.
//!
//! A cell is one combination of these quantities.
//!
//! A policy is *near the best* in a cell if it is stable and two values exceed the least ones of all stable policies by
//! at most 5%: mean and 99th percentile of the response time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use wedjat::policy::CATALOGUE;
use wedjat_pktgen::results::chart::{TileMap, tile_maps};

use super::{Output, arguments, command};
use crate::sim::candidates::{VARIANTS, worker_policies};
use crate::sim::ct::DispatcherKind;
use crate::sim::{Row, rows};

/// Ratios of the speeds of 100 servers, with the values of `--speeds`.
const SPEEDS: [(&str, &str); 3] = [("1-1", "100x1"), ("1-2", "50x1,50x2"), ("1-10", "50x1,50x10")];
/// Delays between dispatchers and servers, each way.
const DELAYS: [&str; 5] = ["0us", "5us", "20us", "50us", "100us"];
/// Numbers of dispatchers.
const DISPATCHERS: [&str; 3] = ["1", "8", "32"];
/// Offered loads, as the value of `--load`: fractions of the servers' capacity.
const LOADS: &str = "0.5,0.7,0.9,0.95,0.99";

/// Largest relative excess over the best value with which a policy is near the best (see the module's documentation).
const NEAR: f64 = 0.05;

/// Delay, number of dispatchers, and one row of results for each policy and load: the cells of one run.
type GridPoint = (&'static str, &'static str, Vec<Row>);

/// Runs all cells. Writes all rows, the winners, a map of the winners for each ratio of speeds, a summary of each
/// policy, and the commands. With `full`, runs have ten times as many tasks.
pub(super) fn make(out: &Output, full: bool) -> Result<(), String> {
    let policies = worker_policies().collect::<Vec<_>>().join(",");
    let tasks = if full { "400000" } else { "40000" };
    let mut all =
        "dispatchers_as,speeds,delay,dispatchers,load,policy,mean,p99,mean_ci95,messages_per_task,\
                   unstable\n"
            .to_owned();
    let mut winners =
        "dispatchers_as,speeds,delay,dispatchers,load,by,first,first_value,second,second_value\n"
            .to_owned();
    let mut summary =
        "dispatchers_as,policy,cells,near_best,worst_mean,worst_p99,unstable\n".to_owned();
    let mut commands = String::new();
    for kind in [DispatcherKind::Cores, DispatcherKind::Leaves].map(DispatcherKind::name) {
        // Totals of each policy.
        let mut standings = BTreeMap::new();
        for (name, speeds) in SPEEDS {
            let mut grid = Vec::new();
            for delay in DELAYS {
                for dispatchers in DISPATCHERS {
                    let keys = [
                        ("model", "ct"),
                        ("dispatchers-as", kind),
                        ("speeds", speeds),
                        ("delay", delay),
                        ("dispatchers", dispatchers),
                        ("load", LOADS),
                        ("tasks", tasks),
                        ("policy", &policies),
                    ];
                    let rows = rows(&arguments(&keys)?)?;
                    let _ = writeln!(commands, "{}", command(&keys));
                    let setup = format!("{kind},{name},{delay},{dispatchers}");
                    for row in &rows {
                        let _ = writeln!(
                            all,
                            "{setup},{},\"{}\",{},{},{},{},{}",
                            row.load,
                            row.policy,
                            row.mean,
                            row.p99,
                            row.mean_ci95,
                            row.messages_per_task,
                            row.unstable
                        );
                    }
                    name_winners(&mut winners, &setup, &rows);
                    // Each load is a cell of the comparison.
                    for load in loads() {
                        let rows = rows.iter().filter(|row| row.load == load);
                        add_cell(&mut standings, &rows.map(PolicyResult::of).collect::<Vec<_>>());
                    }
                    grid.push((delay, dispatchers, rows));
                }
            }
            out.write(&format!("winners-{kind}-{name}"), "svg", &map(kind, name, &grid)?)?;
        }
        let mut ranked: Vec<_> = standings.into_iter().collect();
        ranked.sort_by_key(|(_, standing)| std::cmp::Reverse(standing.near_best));
        for (policy, PolicyTotals { cells, near_best, worst_mean, worst_p99, unstable }) in ranked {
            let _ = writeln!(
                summary,
                "{kind},\"{policy}\",{cells},{near_best},{worst_mean:.3},{worst_p99:.3},{unstable}"
            );
        }
    }
    out.write("winners-all", "csv", &all)?;
    out.write("winners", "csv", &winners)?;
    out.write("winners-summary", "csv", &summary)?;
    out.write("winners", "txt", &commands)
}

/// Result of one policy in a cell: the compared fields of a [`Row`]. Times are in mean service times.
struct PolicyResult<'a> {
    policy: &'a str,
    mean: f64,
    p99: f64,
    unstable: bool,
}

impl<'a> PolicyResult<'a> {
    /// Returns the result in a row.
    fn of(row: &'a Row) -> Self {
        Self { policy: &row.policy, mean: row.mean, p99: row.p99, unstable: row.unstable }
    }
}

/// Results of a policy over all cells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PolicyTotals {
    /// Number of cells.
    cells: u32,
    /// Number of cells in which the policy is near the best.
    near_best: u32,
    /// Largest ratio to the best mean, over the cells in which the policy is stable.
    worst_mean: f64,
    /// Largest ratio to the best 99th percentile, over these cells.
    worst_p99: f64,
    /// Number of cells in which its queues grew.
    unstable: u32,
}

/// Adds the results of all policies in a cell to their totals.
fn add_cell(standings: &mut BTreeMap<String, PolicyTotals>, cell: &[PolicyResult<'_>]) {
    let best = |value: fn(&PolicyResult<'_>) -> f64| {
        cell.iter().filter(|result| !result.unstable).map(value).fold(f64::INFINITY, f64::min)
    };
    let (best_mean, best_p99) = (best(|result| result.mean), best(|result| result.p99));
    for result in cell {
        let standing = standings.entry(result.policy.to_owned()).or_default();
        standing.cells += 1;
        standing.unstable += u32::from(result.unstable);
        if result.unstable {
            continue;
        }
        let (mean_ratio, p99_ratio) = (result.mean / best_mean, result.p99 / best_p99);
        standing.near_best += u32::from(mean_ratio.max(p99_ratio) <= 1.0 + NEAR);
        standing.worst_mean = standing.worst_mean.max(mean_ratio);
        standing.worst_p99 = standing.worst_p99.max(p99_ratio);
    }
}

/// Name of a quantity, and its value in a row.
type Measure = (&'static str, fn(&Row) -> f64);

/// Quantities by which policies are ranked.
const MEASURES: [Measure; 2] = [("mean", |row| row.mean), ("99th percentile", |row| row.p99)];

/// Returns the rows of a load whose queues did not grow, the least value first.
fn ranked(rows: &[Row], load: f64, value: fn(&Row) -> f64) -> Vec<&Row> {
    let mut ranked: Vec<_> = rows.iter().filter(|row| row.load == load && !row.unstable).collect();
    ranked.sort_by(|a, b| value(a).total_cmp(&value(b)));
    ranked
}

/// Returns the loads of the grid.
fn loads() -> impl Iterator<Item = f64> {
    LOADS.split(',').filter_map(|load| load.parse().ok())
}

/// Appends the best and the second-best policy to `text` as CSV, for each load and measure with at least two stable
/// policies. `setup` has the first columns.
fn name_winners(text: &mut String, setup: &str, rows: &[Row]) {
    for load in loads() {
        for (measure, value) in MEASURES {
            if let [first, second, ..] = ranked(rows, load, value)[..] {
                let (best, next) = (value(first), value(second));
                let (first, second) = (&first.policy, &second.policy);
                let _ = writeln!(text, "{setup},{load},{measure},{first},{best},{second},{next}");
            }
        }
    }
}

/// Draws two maps of winners, by mean and by 99th percentile. A map has a row for each delay, and a column for each
/// number of dispatchers and load. `grid` has the numbers of dispatchers of the first delay, then those of the next.
fn map(kind: &str, name: &str, grid: &[GridPoint]) -> Result<String, String> {
    let columns = DISPATCHERS
        .iter()
        .flat_map(|dispatchers| loads().map(move |load| format!("m={dispatchers} load {load}")));
    let columns: Vec<_> = columns.collect();
    let maps = MEASURES.map(|(measure, value)| {
        // Colour and text of the best policy; `None` if all are unstable.
        let tile = |rows: &[Row], load| {
            let best = ranked(rows, load, value).into_iter().next()?;
            Some((color(&best.policy), [best.policy.clone(), format!("{:.2}", value(best))]))
        };
        // Row of the map for one delay.
        let row = |points: &[GridPoint]| {
            let tiles = points.iter().flat_map(|point| loads().map(|load| tile(&point.2, load)));
            (points[0].0.to_owned(), tiles.collect())
        };
        TileMap {
            title: format!(
                "Policy with the lowest {measure}, dispatchers as {kind}, speeds {}",
                name.replace('-', ":")
            ),
            columns: columns.clone(),
            rows: grid.chunks(DISPATCHERS.len()).map(row).collect(),
        }
    });
    tile_maps(&maps).map_err(|error| error.to_string())
}

/// Returns the index of a policy's colour, the same in all maps. Variants (policies with parameters) have the last
/// indices, because the catalogue lacks them.
fn color(policy: &str) -> usize {
    let variant = || VARIANTS.iter().position(|&variant| variant == policy).unwrap_or_default();
    let entry = CATALOGUE.iter().position(|entry| entry.name == policy);
    entry.unwrap_or_else(|| CATALOGUE.len() + variant())
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: measurement.4
    #[test]
    fn near_best_needs_mean_and_tail() {
        let result = |policy, mean, p99, unstable| PolicyResult { policy, mean, p99, unstable };
        let mut standings = BTreeMap::new();
        add_cell(
            &mut standings,
            &[
                result("best mean", 1.0, 6.0, false),
                result("best tail", 1.1, 5.0, false),
                result("near", 1.04, 5.2, false),
                // The least of all, but its queues grow.
                result("unstable", 0.1, 0.1, true),
            ],
        );
        let near: Vec<_> = standings.values().map(|standing| standing.near_best).collect();
        assert_eq!(near, [0, 0, 1, 0]);
        assert_eq!((standings["unstable"].unstable, standings["unstable"].cells), (1, 1));
        assert!((standings["best tail"].worst_mean - 1.1).abs() < 1e-9);
    }
}
