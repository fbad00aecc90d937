//! Evaluation of Malcolm, in which nodes without a scheduler pass tasks to each other (migrate) or take them
//! (steal), and learn where. Ablations: random stealing without learning (rsteal), nodes that keep their
//! initial random policies (frozen), no stealing (steal=off), and one queue for all workers (central). A beat
//! is one step of learning. A pair of texts is a flag of `wedjat-testbed sim` and its value.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat_learner::{Choice, Counts, Learner, Settings};

use super::Quantity::{Mean, P99};
use super::{Figure, Keys, Output, arguments, command, command_of_figure, draw, length};
use crate::sim::plan;
use crate::sim::rows;
use crate::sim::stats::Observer;
use crate::sim::stats::STRETCHES;

/// Usual values of the x axis.
const LOADS: (&str, &str) = ("load", "0.3,0.5,0.7,0.8,0.9,0.95");
const MODEL: (&str, &str) = ("model", "nodes");
/// Nodes and their workers: ten nodes of ten, or four of 14 and ten of three.
const EQUAL: (&str, &str) = ("nodes", "10x10");
const UNEQUAL: (&str, &str) = ("nodes", "4x14,10x3");
/// Distributions of the service time.
const EXP: (&str, &str) = ("service", "exp(75us)");
const BIMODAL: (&str, &str) = ("service", "mix(0.8*fixed(50us),0.2*fixed(500us))");
const HYPER_1: (&str, &str) = ("service", "mix(0.5*exp(50us),0.5*exp(500us))");
const HYPER_2: (&str, &str) = ("service", "mix(0.75*exp(50us),0.2*exp(500us),0.05*exp(5000us))");
const WORKLOADS: [(&str, &str); 4] = [EXP, BIMODAL, HYPER_1, HYPER_2];

/// Series of most figures: the label of a curve, and its policy.
const ALL: &[(&str, Keys)] = policies![
    "malcolm" "malcolm(gain=8)" "malcolm(steal=off)" "frozen" "rsteal" "jsq" "po2" "jbt" "random" "central"
];

/// Creates a figure of the 99th percentile of the response time over the load, with all series.
const fn tails(
    name: &'static str,
    title: &'static str,
    setup: &'static [(&'static str, &'static str)],
) -> Figure {
    Figure { name, title, x: LOADS, y: P99, setup, series: ALL }
}

/// Figures of curves over one flag.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "malcolm-1",
        title: "Malcolm Fig. 1: power of two and one queue, 2x16 and 14x2 workers, exp(20us)",
        x: ("load", "0.3,0.5,0.6,0.65,0.7,0.8,0.9"),
        y: P99,
        setup: &[
            MODEL,
            ("nodes", "2x16,14x2"),
            ("service", "exp(20us)"),
            ("beat", "1us"),
            ("delay", "0us"),
        ],
        series: policies!["po2" "rsteal" "central"],
    },
    tails("malcolm-5a", "Malcolm Fig. 5a: equal nodes, exp(75us)", &[MODEL, EQUAL, EXP]),
    tails("malcolm-5b", "Malcolm Fig. 5b: equal nodes, bimodal", &[MODEL, EQUAL, BIMODAL]),
    tails("malcolm-5c", "Malcolm Fig. 5c: equal nodes, HyperExp-1", &[MODEL, EQUAL, HYPER_1]),
    tails("malcolm-5d", "Malcolm Fig. 5d: equal nodes, HyperExp-2", &[MODEL, EQUAL, HYPER_2]),
    tails("malcolm-6a", "Malcolm Fig. 6a: unequal nodes, exp(75us)", &[MODEL, UNEQUAL, EXP]),
    tails("malcolm-6b", "Malcolm Fig. 6b: unequal nodes, bimodal", &[MODEL, UNEQUAL, BIMODAL]),
    tails("malcolm-6c", "Malcolm Fig. 6c: unequal nodes, HyperExp-1", &[MODEL, UNEQUAL, HYPER_1]),
    tails("malcolm-6d", "Malcolm Fig. 6d: unequal nodes, HyperExp-2", &[MODEL, UNEQUAL, HYPER_2]),
    Figure {
        name: "malcolm-9a",
        title: "Malcolm Fig. 9a: nodes of six workers, exp(75us)",
        x: ("load", "0.5,0.7,0.9,0.93"),
        y: P99,
        setup: &[MODEL, EXP],
        series: &[
            ("malcolm, 8 nodes", &[("nodes", "8x6"), ("policy", "malcolm")]),
            ("malcolm, 12 nodes", &[("nodes", "12x6"), ("policy", "malcolm")]),
            ("malcolm, 16 nodes", &[("nodes", "16x6"), ("policy", "malcolm")]),
            ("malcolm, 20 nodes", &[("nodes", "20x6"), ("policy", "malcolm")]),
            ("malcolm(steal=off), 8 nodes", &[("nodes", "8x6"), ("policy", "malcolm(steal=off)")]),
            (
                "malcolm(steal=off), 20 nodes",
                &[("nodes", "20x6"), ("policy", "malcolm(steal=off)")],
            ),
            ("frozen, 8 nodes", &[("nodes", "8x6"), ("policy", "frozen")]),
            ("frozen, 20 nodes", &[("nodes", "20x6"), ("policy", "frozen")]),
            ("rsteal, 8 nodes", &[("nodes", "8x6"), ("policy", "rsteal")]),
            ("rsteal, 20 nodes", &[("nodes", "20x6"), ("policy", "rsteal")]),
            ("jsq, 20 nodes", &[("nodes", "20x6"), ("policy", "jsq")]),
            ("po2, 20 nodes", &[("nodes", "20x6"), ("policy", "po2")]),
            ("central, 20 nodes", &[("nodes", "20x6"), ("policy", "central")]),
        ],
    },
    Figure {
        name: "malcolm-9b",
        title: "Malcolm Fig. 9b: eight nodes by workers, exp(75us)",
        x: ("load", "0.5,0.7,0.9,0.93"),
        y: P99,
        setup: &[MODEL, EXP],
        series: &[
            ("malcolm, 2 workers", &[("nodes", "8x2"), ("policy", "malcolm")]),
            ("malcolm, 6 workers", &[("nodes", "8x6"), ("policy", "malcolm")]),
            ("malcolm, 10 workers", &[("nodes", "8x10"), ("policy", "malcolm")]),
            ("malcolm, 14 workers", &[("nodes", "8x14"), ("policy", "malcolm")]),
            (
                "malcolm(steal=off), 2 workers",
                &[("nodes", "8x2"), ("policy", "malcolm(steal=off)")],
            ),
            (
                "malcolm(steal=off), 14 workers",
                &[("nodes", "8x14"), ("policy", "malcolm(steal=off)")],
            ),
            ("frozen, 14 workers", &[("nodes", "8x14"), ("policy", "frozen")]),
            ("rsteal, 2 workers", &[("nodes", "8x2"), ("policy", "rsteal")]),
            ("rsteal, 14 workers", &[("nodes", "8x14"), ("policy", "rsteal")]),
            ("jsq, 14 workers", &[("nodes", "8x14"), ("policy", "jsq")]),
            ("po2, 14 workers", &[("nodes", "8x14"), ("policy", "po2")]),
            ("central, 14 workers", &[("nodes", "8x14"), ("policy", "central")]),
        ],
    },
    Figure {
        name: "malcolm-10",
        title: "Malcolm Fig. 10: time between heartbeats in us, equal nodes, exp(75us), load 0.8",
        x: ("beat", "50us,100us,200us,500us,1000us,2000us"),
        y: P99,
        setup: &[MODEL, EQUAL, EXP, ("load", "0.8")],
        series: ALL,
    },
];

/// Makes the two figures of mean response times: equal nodes at load 0.9, unequal nodes at load 0.4. The x axis has one
/// place for each distribution of service times.
pub(super) fn means(out: &Output, full: bool) -> Result<(), String> {
    for (name, nodes, load, title) in [
        ("malcolm-7a", EQUAL, ("load", "0.9"), "equal nodes, load 0.9"),
        ("malcolm-7b", UNEQUAL, ("load", "0.4"), "unequal nodes, load 0.4"),
    ] {
        let mut table = "series,service,mean,p50,p99,lost,unstable\n".to_owned();
        let (mut commands, mut lines) = (command_of_figure("malcolm-7", full), Vec::new());
        for &(label, policy) in ALL {
            let mut points = Vec::new();
            for (index, service) in WORKLOADS.into_iter().enumerate() {
                let mut keys = vec![MODEL, nodes, load, service];
                keys.extend(policy);
                keys.extend(length(&keys, full));
                let row = rows(&arguments(&keys)?)?.pop().ok_or("no row")?;
                let service = service.1;
                let _ = writeln!(
                    table,
                    "\"{label}\",\"{service}\",{},{},{},{},{}",
                    row.mean, row.p50, row.p99, row.lost, row.unstable
                );
                if !row.unstable {
                    points.push(((index + 1) as f64, Mean.of(&row)));
                }
                let _ = writeln!(commands, "{}", command(&keys));
            }
            lines.push((label.to_owned(), points));
        }
        let title = format!("Malcolm Fig. 7{}: {title}", &name[name.len() - 1..]);
        let axes = ("1 exp, 2 bimodal, 3 HyperExp-1, 4 HyperExp-2", "mean response, us");
        out.write(name, "svg", &draw(&title, axes, &lines)?)?;
        out.write(name, "csv", &table)?;
        out.write(name, "txt", &commands)?;
    }
    Ok(())
}

/// Name, load, action and title of the two figures of change. The action happens after three quarters of the
/// time. The fast nodes, 0 to 3, have the most workers.
const CHANGES: [(&str, &str, &str, &str); 2] = [
    ("malcolm-11a", "0.9", "traffic 0-3=0.9", "90% of the tasks go to the fast nodes"),
    ("malcolm-11b", "0.8", "speed 0-3=0.667", "the fast nodes become 1.5 times slower"),
];

/// Makes the figures of shifting traffic and of slower nodes. They show the mean response time during one run of each
/// policy, from its start.
pub(super) fn changes(out: &Output, full: bool) -> Result<(), String> {
    let (seconds, before): (&str, &str) = if full { ("20", "15s") } else { ("4", "3s") };
    let total_s: f64 = seconds.parse().unwrap_or(f64::NAN);
    for (name, load, action, description) in CHANGES {
        // Value of `--at`: a time and the action at that time.
        let at = format!("{before} {action}");
        let mut table = "series,time_s,mean_us\n".to_owned();
        let (mut commands, mut lines) = (command_of_figure("malcolm-11", full), Vec::new());
        for &(label, policy) in ALL {
            // A central queue has no nodes that could change.
            if label == "central" {
                continue;
            }
            let mut keys =
                vec![MODEL, ("nodes", "4x8,4x6,4x4"), EXP, ("load", load), ("at", at.as_str())];
            keys.extend(policy);
            keys.extend([("seconds", seconds), ("measure", seconds)]);
            let cell = plan::cells(&arguments(&keys)?)?.pop().ok_or("no cell")?;
            let outcome = cell.model.run(1, &Observer::hidden())?;
            let mut points = Vec::new();
            // The timeline has the mean response time of each stretch of the run. Its point is in the middle.
            for (index, ticks) in outcome.timeline.means().enumerate() {
                let time = (index as f64 + 0.5) * total_s / STRETCHES as f64;
                let mean = ticks / outcome.ticks_per_unit;
                let _ = writeln!(table, "\"{label}\",{time:.3},{mean:.3}");
                points.push((time, mean));
            }
            lines.push((label.to_owned(), points));
            let _ = writeln!(commands, "{}", command(&keys));
        }
        let title =
            format!("Malcolm Fig. {}: {description}, load {load}", &name["malcolm-".len()..]);
        let axes = ("time, s", "mean response by arrival time, us");
        out.write(name, "svg", &draw(&title, axes, &lines)?)?;
        out.write(name, "csv", &table)?;
        out.write(name, "txt", &commands)?;
    }
    Ok(())
}

/// Makes the figure of the cost of learning: time of a beat and of a decision on this machine, over the
/// number of nodes. The table also has a beat's share of the usual 100 us between beats.
pub(super) fn cost(out: &Output, full: bool) -> Result<(), String> {
    let name = "malcolm-cost";
    let mut table = "nodes,beat_ns,decision_ns,share_of_100_us\n".to_owned();
    let (mut beats, mut decisions) = (Vec::new(), Vec::new());
    for nodes in [2, 4, 8, 16, 32, 64] {
        let (beat, decision) = times(nodes, if full { 100_000 } else { 10_000 });
        let _ = writeln!(table, "{nodes},{beat:.1},{decision:.2},{:.5}", beat / 1e5);
        beats.push((nodes as f64, beat));
        decisions.push((nodes as f64, decision));
    }
    let lines = [("a beat".to_owned(), beats), ("a decision".to_owned(), decisions)];
    let axes = ("nodes", "ns on this machine");
    out.write(name, "svg", &draw("Malcolm: cost of learning", axes, &lines)?)?;
    out.write(name, "csv", &table)?;
    out.write(name, "txt", &command_of_figure(name, full))
}

/// Returns the time of a beat and of a decision in ns: the minimum over short runs, to exclude interrupted ones. A
/// decision draws the node that gets a task. Each run has 100 beats, so that it contains several of the steps that
/// happen only every 20 beats. `beats` is the number of beats of all runs together.
fn times(nodes: usize, beats: usize) -> (f64, f64) {
    const BEATS: usize = 100;
    const DECISIONS: usize = 1000;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut learner = Learner::new(Settings::new(nodes), &mut rng);
    // Loads as a node gives them, in milliseconds of waiting work per slot: at first up to 0.01, then each beat changes
    // them by up to 0.00005.
    let mut loads: Vec<_> = (0..nodes).map(|_| (rng.next_u32() % 1000) as f32 * 1e-5).collect();
    // Each node is drawn twice for migrations and once for steals in a beat.
    let (migrations, steals) = (vec![2; nodes], vec![1; nodes]);
    let mut choice = Choice::new(nodes);
    let (mut beat, mut decision) = (f64::MAX, f64::MAX);
    for _ in 0..beats / BEATS {
        let mut elapsed_s = 0.0;
        for _ in 0..BEATS {
            for load in &mut loads {
                *load = (*load + (rng.next_u32() % 1000) as f32 * 1e-7 - 5e-5).max(0.0);
            }
            let drawn = Counts { migrations: &migrations, steals: &steals };
            let started = Instant::now();
            // The second argument is the reward, here a constant.
            _ = black_box(learner.beat(&loads, 1e-4, drawn));
            elapsed_s += started.elapsed().as_secs_f64();
        }
        beat = beat.min(elapsed_s / BEATS as f64);
        choice.set(learner.migration());
        let started = Instant::now();
        for draw in 0..DECISIONS {
            _ = black_box(choice.draw(black_box(draw as f32 / DECISIONS as f32)));
        }
        decision = decision.min(started.elapsed().as_secs_f64() / DECISIONS as f64);
    }
    (beat * 1e9, decision * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beat_cost_grows_with_the_nodes() {
        let folder = tempfile::tempdir().unwrap();
        cost(&Output::new(folder.path().into()), false).unwrap();
        let table = std::fs::read_to_string(folder.path().join("malcolm-cost.csv")).unwrap();
        let beat = |line: &str| line.split(',').nth(1).unwrap().parse::<f64>().unwrap();
        let beats: Vec<_> = table.lines().skip(1).map(beat).collect();
        assert_eq!(beats.len(), 6);
        assert!(beats[5] > beats[0] && beats[0] > 0.0, "{table}");
    }
}
