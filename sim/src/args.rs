//! Command line of `sim`, and scenario files with the same keys.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use wedjat_workload::results::ResultArgs;

/// Simulates a pool of workers under the dataplane's own policies.
///
/// The flags, except --scenario and those of plots, page and log, are also keys of scenario files; flags override
/// the file. Most flags take lists, and every combination is run. Exceptions are flags whose value is a list in
/// itself: racks, nodes, hops, speeds, sharing, failures and changes.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[command(after_help = "Examples:
  wedjat-testbed sim --model rack --policy horus,racksched --load 0.5,0.7,0.9
  wedjat-testbed sim --model rack --racks 8,8,8,8 --policy horus --service 'exp(100us)' --format json
  wedjat-testbed sim --model slots --speeds 50x1,50x2 --policy 'lsq-smart(eps=0.2)' --load 0.9
  wedjat-testbed sim --model ct --speeds 50x1,50x10 --policy jsq,ppot --load 0.9
  wedjat-testbed sim --hop 0us --policy jsq --service 'mix(0.5*fixed(1us),0.5*fixed(100us))' --sharing 10us,500ns --classes
  wedjat-testbed sim --model nodes --nodes 4x14,10x3 --policy 'malcolm,rsteal,central' --load 0.9 --seconds 30 --measure 10")]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct SimArgs {
    /// TOML file with these flags as keys
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub scenario: Option<PathBuf>,
    /// Model: rack, slots, ct, fabric or nodes [default: rack]
    #[arg(long)]
    pub model: Option<String>,
    /// Policies, as in 'horus,lsq-smart(eps=0.2)'; in `rack` also rs-lb and rs-h [default: horus]; in `nodes`
    /// malcolm, frozen, rsteal, jsq, po2, jbt, random and central [default: malcolm]
    #[arg(long)]
    pub policy: Option<String>,
    /// rack, fabric: policy of the spine [default: the leaf's, if it serves racks, otherwise horus]
    #[arg(long)]
    pub spine_policy: Option<String>,
    /// rack, fabric: signals from leaves to the spine: paper (with our repairs), paper-text (to the letter)
    /// or horus-sim [default: paper]
    #[arg(long)]
    pub signals: Option<String>,
    /// rack: workers of each rack [default: 32]
    #[arg(long, visible_alias = "workers")]
    pub racks: Option<String>,
    /// rack, fabric: hops between levels, as in spine-leaf=4,leaf-worker=1,worker-leaf=1,leaf-spine=3
    #[arg(long)]
    pub hops: Option<String>,
    /// rack, fabric: mean delay of a hop [default: 5us]
    #[arg(long)]
    pub hop: Option<String>,
    /// rack, fabric: distribution of a hop's delay, horus, const or exp [default: horus]
    #[arg(long)]
    pub hop_dist: Option<String>,
    /// rack, fabric: processing delay of a task at a leaf [default: 0]
    #[arg(long)]
    pub node_delay: Option<String>,
    /// rack: dispatcher cores of the one rack's leaf; each task reaches any of them [default: 1]
    #[arg(long)]
    pub cores: Option<String>,
    /// rack: delay of messages between cores (a core's next packet ends it early); `every:T`: cores exchange at
    /// intervals of T, as overloaded cores do; `shared`: each message reaches all cores at once [default: 0us]
    #[arg(long)]
    pub exchange: Option<String>,
    /// rack: replies reach the core that sent the task (same), or any [default: same]
    #[arg(long)]
    pub replies: Option<String>,
    /// rack, ct, fabric, nodes: service times [default: exp(100us)]; ct takes them relative to their mean
    #[arg(long)]
    pub service: Option<String>,
    /// rack, ct, fabric, nodes: arrivals [default: poisson]
    #[arg(long)]
    pub arrivals: Option<String>,
    /// Loads, fractions of the capacity [default: 0.5,0.7,0.9]
    #[arg(long)]
    pub load: Option<String>,
    /// Tasks of a run [default: 1000000, or more, so that the run lasts 300 mean service times]
    #[arg(long)]
    pub tasks: Option<String>,
    /// slots: slots of a run, instead of tasks [default: 100000]
    #[arg(long)]
    pub slots: Option<String>,
    /// Fraction of the run before the measurement [default: 0.1]
    #[arg(long)]
    pub warmup: Option<String>,
    /// Runs, each with its own seed [default: 1]
    #[arg(long)]
    pub seeds: Option<String>,
    /// First seed [default: 1]
    #[arg(long)]
    pub seed: Option<String>,
    /// rack, fabric: probability that a packet is lost between two nodes [default: 0]
    #[arg(long)]
    pub loss: Option<String>,
    /// rack: failures, as in leaf:2@5ms,spine@8ms
    #[arg(long)]
    pub fail: Option<String>,
    /// rack, ct: changes, as in '20ms speed 0-7=0.5', '20ms shuffle' (of speeds) or '20ms load 0.9'; several
    /// separated by `;`; nodes: '20ms speed 0-3=0.5', '20ms load 0.9', '20ms traffic 0-3=0.9', '20ms shock
    /// 0-3=1000', '20ms down 3', '40ms up 3'
    #[arg(long)]
    pub at: Option<String>,
    /// Speeds of workers or servers, as in 50x1,50x10 [default: all 1]
    #[arg(long)]
    pub speeds: Option<String>,
    /// rack, ct, nodes: the tasks of a worker share its core, round robin: quantum and cost of a switch, and the
    /// maximum number of tasks that share, as in 10us,500ns or 10us,500ns,8 [default: one task at a time; without a
    /// maximum: no limit, in nodes 8]
    #[arg(long)]
    pub sharing: Option<String>,
    /// rack, ct, nodes: also print the 99.9th percentile of the slowdown (response time divided by own service
    /// time), and the 99th percentile of each class of --service, yes or no [default: no]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
    pub classes: Option<String>,
    /// slots, ct: servers [default: 100]
    #[arg(long)]
    pub servers: Option<String>,
    /// slots, ct: dispatchers [default: 10]
    #[arg(long)]
    pub dispatchers: Option<String>,
    /// ct: the dispatchers are cores of one leaf, which share counts (cores), or independent leaves, which have their
    /// own counts and servers' reports (leaves) [default: leaves]
    #[arg(long)]
    pub dispatchers_as: Option<String>,
    /// slots: send all tasks of a slot to one server (whole), or choose for each task (split) [default:
    /// whole]
    #[arg(long)]
    pub batch: Option<String>,
    /// ct: constant delay between dispatchers and servers [default: 0us], relative to the mean of --service; nodes:
    /// delay between two nodes [default: 2us]
    #[arg(long)]
    pub delay: Option<String>,
    /// ct: answer probes after the delay (late) or at once (now) [default: late]
    #[arg(long)]
    pub probes: Option<String>,
    /// fabric: leaves [default: 1152]
    #[arg(long)]
    pub leaves: Option<String>,
    /// fabric: servers under a leaf [default: 24]
    #[arg(long)]
    pub servers_per_leaf: Option<String>,
    /// fabric: workers on a server [default: 32]
    #[arg(long)]
    pub workers_per_server: Option<String>,
    /// fabric: pools [default: 1000]
    #[arg(long)]
    pub pools: Option<String>,
    /// fabric: workers of a pool [default: exp(min=50,max=20000,mean=685)]
    #[arg(long)]
    pub pool_size: Option<String>,
    /// fabric: adjacent workers of a pool; fewer than on a server scatters pools [default: those of a server]
    #[arg(long)]
    pub piece: Option<String>,
    /// fabric: racks of a pool under one spine, Horus's ratio r [default: 20]
    #[arg(long)]
    pub leaves_per_spine: Option<String>,
    /// nodes: numbers of nodes and of their workers, as in 4x14,10x3 [default: 10x10]
    #[arg(long)]
    pub nodes: Option<String>,
    /// nodes: interval between two heartbeats of a node [default: 100us]
    #[arg(long)]
    pub beat: Option<String>,
    /// nodes: maximum number of waiting tasks at a node [default: 4096]
    #[arg(long)]
    pub queue: Option<String>,
    /// nodes: length of a run, instead of tasks [default: 30]
    #[arg(long)]
    pub seconds: Option<String>,
    /// nodes: length of the measurement at the end of the run [default: a third]
    #[arg(long)]
    pub measure: Option<String>,
    /// rack: give the one rack's leaf the clock of a leaf process, and print a digest of its tasks, yes or
    /// no: the digest of a run of `lockstep` with the same flags; ct, nodes: print a digest of the tasks
    /// [default: no]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
    pub digest: Option<String>,
    /// Output: text, json (one object a line) or csv [default: text]
    #[arg(long)]
    pub format: Option<String>,
    /// Threads [default: one per CPU]
    #[arg(long)]
    pub threads: Option<String>,
    /// Print the duration of each row, yes or no; without it equal seeds print equal bytes [default: yes]
    #[arg(long)]
    pub timing: Option<String>,
    /// Plots, page and log of tasks
    #[command(flatten)]
    #[serde(skip)]
    pub results: ResultArgs,
}

impl SimArgs {
    /// Returns the flags, completed from the scenario file if one is given. Flags override the file.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or has an unknown key or a value of another type.
    pub fn complete(self) -> Result<Self, String> {
        let Some(path) = &self.scenario else { return Ok(self) };
        let name = path.display();
        let text = wedjat_core::state::files::read_text(path)
            .map_err(|e| format!("scenario {name}: {e}"))?;
        let file: toml::Table = text.parse().map_err(|e| format!("scenario {name}: {e}"))?;
        let mut keys = toml::Table::try_from(&self).map_err(|e| e.to_string())?;
        for (key, value) in file {
            let value = plain(&key, &value).ok_or_else(|| {
                format!("scenario {name}: `{key}` is neither text, a number nor a list of them")
            })?;
            keys.entry(key).or_insert(toml::Value::String(value));
        }
        let completed: Self = keys.try_into().map_err(|e| format!("scenario {name}: {e}"))?;
        Ok(Self { results: self.results.clone(), ..completed })
    }
}

/// Returns a scenario file's value in the form of a flag: lists joined by commas, those of `at` by semicolons. `None`
/// for truth values, times and tables.
fn plain(key: &str, value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Array(values) => {
            let all: Option<Vec<_>> = values.iter().map(|value| plain(key, value)).collect();
            let separator = if key == "at" { ";" } else { "," };
            Some(all?.join(separator))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// The scenario has 1000 * 1000 * 1000 combinations; counting them must not build them.
    #[test]
    fn a_scenario_of_too_many_points_is_refused() {
        // Writes `len` consecutive numbers from `from` on as a list.
        let list = |from: usize, len: usize| {
            let all: Vec<_> = (from..from + len).map(|number| number.to_string()).collect();
            format!("[{}]", all.join(","))
        };
        let mut path = std::env::temp_dir();
        path.push(format!("wedjat-points-{}.toml", std::process::id()));
        let text = |len| {
            let (tasks, delays) = (list(1_000, len), list(1, len));
            format!(
                "policy = \"horus\"\nload = 0.5\ntasks = {tasks}\nexchange = {delays}\nhop = {delays}\n"
            )
        };
        std::fs::write(&path, text(1_000)).unwrap();
        let args = SimArgs { scenario: Some(path.clone()), ..SimArgs::default() };
        let fault = crate::rows(&args.complete().unwrap()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(fault.contains("1000000000 points; at most 100000"), "{fault}");
    }

    /// Flags win over the file, lists of the file become flags, and an unknown key is an error.
    #[test]
    fn flags_override_the_scenario() {
        let mut path = std::env::temp_dir();
        path.push(format!("wedjat-scenario-{}.toml", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        write!(file, "policy = [\"horus\", \"random\"]\nload = 0.5\nhop-dist = \"exp\"\nat = [\"1ms load 0.6\", \"2ms shuffle\"]").unwrap();
        let flags = SimArgs {
            scenario: Some(path.clone()),
            load: Some("0.7".to_owned()),
            ..SimArgs::default()
        };
        let all = flags.complete().unwrap();
        assert_eq!(all.policy.as_deref(), Some("horus,random"));
        assert_eq!(all.load.as_deref(), Some("0.7"));
        assert_eq!(all.hop_dist.as_deref(), Some("exp"));
        assert_eq!(all.at.as_deref(), Some("1ms load 0.6;2ms shuffle"));
        std::fs::write(&path, "polisy = \"horus\"").unwrap();
        let flags = SimArgs { scenario: Some(path.clone()), ..SimArgs::default() };
        let error = flags.complete().unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("polisy"), "{error}");
    }
}
