//! `wedjat policies`: lists the scheduling policies with their parameters, sources and the nodes that they run on.

use wedjat::policy::{CATALOGUE, Entry, Objective, PAIRS, PolicyChoice, PolicySpec, Runs};

use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat policies";

/// Prints the policies.
pub fn run() -> Outcome {
    print(&text())
}

/// Returns one line for each policy, for each pair of policies of leaves and their spine, and for `auto`.
fn text() -> String {
    let mut text = String::new();
    for entry in CATALOGUE {
        let parameters: Vec<_> = entry
            .parameters
            .iter()
            .map(|parameter| format!("{}={}", parameter.name, parameter.text(parameter.default)))
            .collect();
        let name = match parameters.is_empty() {
            true => entry.name.to_owned(),
            false => format!("{}({})", entry.name, parameters.join(", ")),
        };
        let (summary, source) = (entry.summary, entry.source);
        text.push_str(&format!("{name:28} {summary}  [{source}]; {}\n", where_it_runs(entry)));
    }
    // Name of the pair, and policies of leaf and spine.
    for (name, leaf, spine, summary, source) in PAIRS {
        let runs = format!(
            "runs: simulator (rack, fabric); for real as `{leaf}` on leaves and `{spine}` on their spine"
        );
        text.push_str(&format!("{name:28} {summary}  [{source}]; {runs}\n"));
    }
    let choice = PolicyChoice::Auto(Objective::P99).to_string();
    text.push_str(&format!(
        "{choice:28} the best policy for an objective, which a leaf chooses while it runs: mean, p99, p99.9, \
         slowdown-p99.9, slo(class=1, us=400)  [docs/howto/choose-a-policy.md]; runs: leaf\n"
    ));
    text
}

/// Describes the nodes that run a policy, and the differences between these nodes and the simulator's model. In the
/// printed text, "there" means on these nodes, not in the simulator.
fn where_it_runs(entry: &Entry) -> String {
    let mut runs = match entry.runs {
        Runs::Leaf | Runs::LeafHolding => "runs: simulator, leaf, agent",
        // `rack` and `fabric` are models of the simulator. `runs_on_spine` below adds the real node.
        Runs::Spine => "runs: simulator (rack, fabric)",
    }
    .to_owned();
    if entry.runs_on_spine() {
        runs.push_str(", spine; its members there are leaves");
    }
    if entry.runs == Runs::LeafHolding {
        // `queue` is the pool's key in a configuration file: the maximum number of waiting tasks per core.
        runs.push_str("; tasks wait there, at most `queue` of the pool");
    }
    if entry.by_rate {
        runs.push_str("; rates there are the configuration's `speed` and `speeds`");
    }
    // In the simulator, members choose the time of their reports under these policies. Real members by default do not.
    if entry.members_choose_reports() {
        runs.push_str("; there every reply carries the queue length, without a message");
        if !entry.parameters_on_leaf.is_empty() {
            runs.push_str(&format!(", so that {}", entry.parameters_on_leaf));
        }
        // A narrower condition: some of these policies also access queues directly or by probes, which reports alone do
        // not replace.
        if entry.name.parse().is_ok_and(|policy: PolicySpec| policy.uses_member_reports()) {
            runs.push_str("; with `reports = \"messages\"` members report as in the simulator");
        }
    }
    if entry.name.parse().is_ok_and(|policy: PolicySpec| policy.can_probe_by_messages()) {
        runs.push_str("; with `reports = \"messages\"` it asks members as in the simulator");
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_name_the_nodes_that_take_them() {
        let text = text();
        let line = |name: &str| {
            let is_of_policy = |line: &&str| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '(']))
            };
            text.lines().find(is_of_policy).unwrap()
        };
        for entry in CATALOGUE {
            let runs = line(entry.name);
            assert_eq!(runs.contains(", spine; its members"), entry.runs_on_spine(), "{runs}");
            assert_eq!(runs.contains("leaf, agent"), entry.runs != Runs::Spine, "{runs}");
        }
        assert!(line("rs-lb").contains("`racksched` on leaves and `random` on their spine"));
    }
}
