//! LSQ Fig. 4: tail of the delay, and number of dispatchers that send to the same server at once (incast).
//! Time is in slots.

use std::fmt::Write as _;

use super::{Output, arguments, command, command_of_figure, draw};
use crate::sim::model::Model;
use crate::sim::plan;
use crate::sim::slots;
use crate::sim::stats::histogram;

/// Name of the figure. It has two plots, 4a and 4b.
const NAME: &str = "lsq-4";
/// Policies that are stable in the mix of Fig. 3a and therefore have a tail.
const POLICIES: [&str; 4] = ["jsq", "lsq-sample(2)", "lsq-update(.2)", "lsq-smart(.2)"];
/// Number of runs of each policy.
const SEEDS: u64 = 2;

/// Points of a curve. Fig. 4a: a number of slots, and the fraction of tasks with a longer delay. Fig. 4b: a number of
/// dispatchers, and the fraction of slots in which at least as many sent to one server. Slots after the end of the
/// arrivals do not count.
type Curve = Vec<(f64, f64)>;

/// Writes both plots, their tables and the commands. `full` simulates ten times as many slots.
pub(super) fn make(out: &Output, full: bool) -> Result<(), String> {
    let mut tails = "policy,slots,share_of_tasks_that_take_longer\n".to_owned();
    let mut incasts = "policy,dispatchers,share_of_slots_with_at_least_so_many\n".to_owned();
    let (mut delays, mut senders) = (Vec::new(), Vec::new());
    let mut commands = command_of_figure(NAME, full);
    for policy in POLICIES {
        let keys = [
            ("model", "slots"),
            ("speeds", "90x1,10x10"),
            ("load", "0.95"),
            ("slots", if full { "100000" } else { "10000" }),
            ("policy", policy),
        ];
        let (tail, incast) = curves(&keys)?;
        for (slots, share) in &tail {
            let _ = writeln!(tails, "{policy},{slots},{share:.3e}");
        }
        for (dispatchers, share) in &incast {
            let _ = writeln!(incasts, "{policy},{dispatchers},{share:.3e}");
        }
        delays.push((policy.to_owned(), tail));
        senders.push((policy.to_owned(), incast));
        let _ = writeln!(commands, "from the runs of: {} --seeds {SEEDS}", command(&keys));
    }
    let title = "LSQ Fig. 4a: delay at load 0.95, 10 of 100 servers ten times as fast";
    let axes = ("slots", "share of tasks with a longer delay");
    out.write("lsq-4a", "svg", &draw(title, axes, &delays)?)?;
    let title = "LSQ Fig. 4b: dispatchers that send to the same server in a slot";
    let axes = ("dispatchers", "share of slots with at least as many");
    out.write("lsq-4b", "svg", &draw(title, axes, &senders)?)?;
    out.write("lsq-4a", "csv", &tails)?;
    out.write("lsq-4b", "csv", &incasts)?;
    out.write(NAME, "txt", &commands)
}

/// Computes the tail of the delay and that of the number of dispatchers per server, over all seeds. `keys` are the
/// flags of the runs.
fn curves(keys: &[(&str, &str)]) -> Result<(Curve, Curve), String> {
    let Model::Slots(config) = plan::cells(&arguments(keys)?)?.pop().ok_or("no cell")?.model else {
        return Err("no slots".to_owned());
    };
    let mut delays = histogram();
    // Number of slots by the maximum number of dispatchers that sent to one server.
    let mut incast = vec![0; config.dispatchers + 1];
    for seed in 1..=SEEDS {
        let (outcome, counts) = slots::run_counting(&slots::Config { seed, ..config.clone() })?;
        for batch in &outcome.batches {
            delays.add(&batch.responses).expect("a histogram that grows");
        }
        incast.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    // Each recorded delay has as its point the fraction of tasks with a longer one.
    let mut remaining = delays.len();
    let tail = delays.iter_recorded().map(|step| {
        remaining -= step.count_at_value();
        (step.value_iterated_to() as f64, remaining as f64 / delays.len() as f64)
    });
    let slots: u64 = incast.iter().sum();
    let at_least = |count: usize| incast[count..].iter().sum::<u64>() as f64 / slots as f64;
    let incast = (1..incast.len()).map(|count| (count as f64, at_least(count)));
    Ok((tail.collect(), incast.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_fall_and_shortest_queues_draw_more_dispatchers() {
        // In this small run, all servers are equal.
        let curves_of = |policy| {
            let keys = [("model", "slots"), ("load", "0.9"), ("slots", "1000"), ("policy", policy)];
            curves(&keys).unwrap()
        };
        let ((tail, jsq), (_, lsq)) = (curves_of("jsq"), curves_of("lsq-update(.2)"));
        assert!(tail.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1));
        assert_eq!(tail.last().unwrap().1, 0.0);
        assert!(jsq[0].1 > 0.999 && jsq.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        // Index 4: at least five dispatchers at once. Under JSQ all see the same shortest queue.
        assert!(jsq[4].1 > 5.0 * lsq[4].1, "{jsq:?} {lsq:?}");
    }
}
