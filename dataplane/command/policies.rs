//! `wedjat policies`.

use wedjat::policy::{CATALOGUE, Entry, PAIRS, PolicySpec, Runs};

use super::{Outcome, print};

/// Shown below its options.
pub const EXAMPLE: &str = "Example:
  wedjat policies";

/// Does it.
pub fn run() -> Outcome {
    let mut text = String::new();
    for entry in CATALOGUE {
        let parameters: Vec<_> = entry
            .parameters
            .iter()
            .map(|parameter| format!("{}={}", parameter.name, parameter.default))
            .collect();
        let name = match parameters.is_empty() {
            true => entry.name.to_owned(),
            false => format!("{}({})", entry.name, parameters.join(", ")),
        };
        let (summary, source) = (entry.summary, entry.source);
        text.push_str(&format!("{name:28} {summary}  [{source}]; {}\n", where_it_runs(entry)));
    }
    for (name, _, _, summary, source) in PAIRS {
        let runs =
            "runs: simulator (rack, fabric); it is for a leaf and its spine, and there is no spine";
        text.push_str(&format!("{name:28} {summary}  [{source}]; {runs}\n"));
    }
    print(&text)
}

/// Where a policy runs, why not elsewhere, and what is different there.
fn where_it_runs(entry: &Entry) -> String {
    let runs = match entry.runs {
        Runs::Leaf => "runs: simulator, leaf, agent",
        Runs::LeafHolding => {
            "runs: simulator, leaf, agent; tasks wait there, `queue` of the pool bounds them"
        }
        Runs::Spine => {
            "runs: simulator (rack, fabric); its members are racks, and there is no spine"
        }
    };
    let mut runs = runs.to_owned();
    if entry.by_rate {
        runs.push_str("; rates there are the configuration's `speed` and `speeds`");
    }
    if entry.is_pulled() {
        runs.push_str("; there every reply tells the queue, without a message");
        if !entry.on_leaf.is_empty() {
            runs.push_str(&format!(", so that {}", entry.on_leaf));
        }
        if entry.name.parse().is_ok_and(|policy: PolicySpec| policy.is_told()) {
            runs.push_str("; with `reports = \"messages\"` members tell as in the simulator");
        }
    }
    if entry.name.parse().is_ok_and(|policy: PolicySpec| policy.probes()) {
        runs.push_str("; with `reports = \"messages\"` it asks members as in the simulator");
    }
    runs
}
