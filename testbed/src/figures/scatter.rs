//! Horus Fig. 19a: 99th percentile of the response time, over the unevenness of a pool's workers in its racks. The
//! simulated datacenter has many pools, each spread over some of the racks.

use std::fmt::Write as _;
use std::thread;

use super::{Output, arguments, command, command_of_figure, draw};
use crate::sim::fabric::{PoolRack, for_each_pool};
use crate::sim::model::Model;
use crate::sim::plan;
use crate::sim::stats::{grows, histogram};

/// Name of the figure and of its files.
const NAME: &str = "horus-19a";
/// Policies of the leaves. A second name is the policy of the spines, which by default follows from the first.
const POLICIES: [&str; 4] = ["horus", "rs-h", "rs-lb", "horus with horus-spine-weighted"];
/// Sizes of the pieces in which a pool's workers are placed, a piece in one rack. Together they cover the
/// range of variances.
const PIECES: [&str; 4] = ["32", "16", "8", "1"];
/// Upper bounds of the groups of pools, by the variance of their workers per rack. Pools from the last bound on
/// are left out.
const GROUPS: [f64; 7] = [0.5, 5.0, 20.0, 50.0, 80.0, 110.0, 140.0];

/// Result of a pool in one run.
struct Pool {
    /// Variance of its workers per rack.
    variance: f64,
    /// 99th percentile of its response times, in us.
    p99_us: f64,
    /// True if its queues grew during the run.
    grew: bool,
}

/// Makes the figure: groups the pools of all runs by variance, and draws the mean of their 99th percentiles.
pub(super) fn make(out: &Output, full: bool) -> Result<(), String> {
    let mut table =
        "policy,variance_from,variance_to,pools,p99_mean,p99_deviation,unstable\n".to_owned();
    let (mut commands, mut lines) = (command_of_figure(NAME, full), Vec::new());
    for policy in POLICIES {
        let mut pools = Vec::new();
        let keys = PIECES.map(|piece| keys(policy, piece, full));
        for keys in &keys {
            let _ = writeln!(commands, "from the pools of: {}", command(keys));
        }
        let results: Vec<_> = thread::scope(|scope| {
            let runs = keys.each_ref().map(|keys| scope.spawn(|| run(keys)));
            runs.into_iter().map(|run| run.join().map_err(|_| "a run panicked")).collect()
        });
        for result in results {
            pools.extend(result??);
        }
        let mut points = Vec::new();
        for (index, &to) in GROUPS.iter().enumerate() {
            let from = if index == 0 { 0.0 } else { GROUPS[index - 1] };
            let is_in_group = |pool: &&Pool| (from..to).contains(&pool.variance);
            let tails: Vec<f64> =
                pools.iter().filter(is_in_group).map(|pool| pool.p99_us).collect();
            let grew = pools.iter().filter(is_in_group).filter(|pool| pool.grew).count();
            let (mean, deviation) = moments(&tails);
            let count = tails.len();
            let _ = writeln!(table, "{policy},{from},{to},{count},{mean:.1},{deviation:.1},{grew}");
            // A group has no point in the figure if the queues of most of its pools grow. The point of a group
            // without pools is NaN, which the chart does not show.
            if 2 * grew <= count {
                points.push((f64::midpoint(from, to), mean));
            }
        }
        lines.push((policy.to_owned(), points));
    }
    let title = "Horus Fig. 19a: pools by unevenness of their placement, load 0.9";
    let axes =
        ("variance of a pool's workers in a rack", "mean of the pools' 99th percentiles, us");
    out.write(NAME, "svg", &draw(title, axes, &lines)?)?;
    out.write(NAME, "csv", &table)?;
    out.write(NAME, "txt", &commands)
}

/// Returns the flags of a run of about 300 mean service times. The run covers about a twenty-fourth of the paper's
/// datacenter, or with `full` all of it.
fn keys(
    policy: &'static str,
    piece: &'static str,
    full: bool,
) -> Vec<(&'static str, &'static str)> {
    let (leaves, pools, tasks) =
        if full { ("1152", "1000", "170000000") } else { ("48", "40", "6500000") };
    let mut keys = vec![
        ("model", "fabric"),
        ("load", "0.9"),
        ("leaves", leaves),
        ("pools", pools),
        ("pool-size", "exp(min=50,max=5000,mean=600)"),
        ("piece", piece),
        ("tasks", tasks),
    ];
    match policy.split_once(" with ") {
        None => keys.push(("policy", policy)),
        Some((leaf, spine)) => keys.extend([("policy", leaf), ("spine-policy", spine)]),
    }
    keys
}

/// Simulates the fabric of these flags. Returns the results of its pools.
fn run(keys: &[(&str, &str)]) -> Result<Vec<Pool>, String> {
    let cell = plan::cells(&arguments(keys)?)?.pop().ok_or("no cell")?;
    let Model::Fabric(mut config) = cell.model else { return Err("no fabric".to_owned()) };
    // The same seed gives each policy the same placement and tasks.
    config.pool.seed = 1;
    let mut pools = Vec::new();
    for_each_pool(&config, |racks, outcome| {
        let mut responses = histogram();
        for batch in &outcome.batches {
            responses.add(&batch.responses).expect("a histogram that grows");
        }
        let p99_us = responses.value_at_quantile(0.99) as f64 / outcome.ticks_per_unit;
        let grew = grows(&outcome.fifths, outcome.servers);
        pools.push(Pool { variance: variance(racks), p99_us, grew });
    })?;
    Ok(pools)
}

/// Computes the variance of a pool's workers per rack, over the racks that have any.
fn variance(racks: &[PoolRack]) -> f64 {
    let workers: Vec<f64> = racks.iter().map(|rack| rack.workers as f64).collect();
    moments(&workers).1.powi(2)
}

/// Computes mean and standard deviation; NaN without values.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}
