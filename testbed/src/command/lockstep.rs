//! `wedjat-testbed lockstep`: leaf processes on real ports in emulated time, with the simulator's flags. A
//! conductor in this process emulates clients, network and workers, and advances the time from event to
//! event. With several racks or with faults, all nodes may run in this process. A leaf is the scheduler process of a
//! rack. Equal seeds give equal runs, so that each can be compared with the simulator task by task.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use wedjat::policy::{CATALOGUE, Runs};
use wedjat_pktgen::results::{ResultArgs, Results};
use wedjat_testbed::lockstep::fabric;
use wedjat_testbed::sim::model::{Cell, Model};
use wedjat_testbed::sim::outcome::{Outcome, RowLabels};
use wedjat_testbed::sim::{Row, SimArgs, plan, print, rack};

use super::leaves::{Leaves, Placement};
use super::{Failure, ports};

mod nodes;
mod soak;

/// Text below the help.
pub const EXAMPLE: &str = "Example, and the simulator's run that it must equal, task by task (`digest`):
  wedjat-testbed lockstep --policy horus --load 0.8 --workers 32 --service 'exp(100us)' --seed 7 --format json
  wedjat-testbed sim --digest --policy horus --load 0.8 --workers 32 --service 'exp(100us)' --seed 7 --format json
No root, hugepages or NIC is needed, and one CPU suffices: time is emulated, and stops while a process works.";

/// Heading of the page of results.
const HEADING: &str = "wedjat-testbed lockstep";

/// Command line of `lockstep`. The simulator parses the values of common flags.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Policies, as in 'horus,cfcfs', or all; `wedjat policies` lists them [default: horus]
    #[arg(long)]
    policy: Option<String>,
    /// Loads as fractions of the workers' capacity [default: 0.5,0.7,0.9]
    #[arg(long)]
    load: Option<String>,
    /// Emulated workers, or those of several racks, as in 4,4,8,32, with all leaves and a spine in this
    /// process [default: 32]
    #[arg(long, visible_alias = "racks")]
    workers: Option<String>,
    /// Speeds of the workers, as in 8x1,8x4 [default: all 1]
    #[arg(long)]
    speeds: Option<String>,
    /// The tasks of a worker share its core: quantum, cost of a switch and maximum number, as in 10us,500ns or
    /// 10us,500ns,8 [default: one task at a time; with faults drawn from the seed, `none` for one at a time]
    #[arg(long)]
    sharing: Option<String>,
    /// Service times [default: exp(100us)]
    #[arg(long)]
    service: Option<String>,
    /// Arrivals [default: poisson]
    #[arg(long)]
    arrivals: Option<String>,
    /// Hops from clients to leaf, to workers and back, as in spine-leaf=1,leaf-worker=1,worker-leaf=1
    #[arg(long)]
    hops: Option<String>,
    /// Mean delay of a hop [default: 5us]
    #[arg(long)]
    hop: Option<String>,
    /// Distribution of a hop's delay, horus, const or exp [default: horus]
    #[arg(long)]
    hop_dist: Option<String>,
    /// Processing time of a packet in a node [default: 0; with faults drawn from the seed]
    #[arg(long)]
    node_delay: Option<String>,
    /// Tasks per run [default: 200000]
    #[arg(long)]
    tasks: Option<String>,
    /// Fraction of the run used as unmeasured warm-up [default: 0.1]
    #[arg(long)]
    warmup: Option<String>,
    /// Probability that a packet is lost between two nodes [default: 0]
    #[arg(long)]
    loss: Option<String>,
    /// Seed of all random streams, the leaf's included
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run several nodes with faults between them: 'all' and 'random' draw a plan of faults from the seed;
    /// 'none' has no faults; otherwise a list of loss=P, dup=P, reorder=P, corrupt=P (each also on one wire,
    /// as in loss=P@leaf1-agent2, or in one direction, loss=P@leaf1>agent2), cut=leaf1-agent1@5ms..8ms,
    /// pause=agent1@2ms..4ms, kill=leaf1@10ms..60ms, pause=worker0@1ms..3ms and leave=worker1@1ms..9ms; times
    /// count from the first task; options not given are drawn from the seed
    #[arg(long, value_name = "PLAN")]
    faults: Option<String>,
    /// Run this number of seeds with faults, from --seed on, and check the invariants; exits with 1 on a
    /// violation
    #[arg(long, value_name = "SEEDS")]
    soak: Option<u64>,
    /// With faults: number of spines, each with its own clients, above leaves with a rack each [default: 0]
    #[arg(long)]
    spines: Option<u16>,
    /// Policy of the spine, with several racks or with faults
    #[arg(long)]
    spine_policy: Option<String>,
    /// With spines: a controller configures spines and leaves, while its operator fails, drains and restores
    /// some
    #[arg(long)]
    controller: bool,
    /// With faults: number of leaves, without spines each with its own clients [default: 1, with spines two
    /// per spine]
    #[arg(long)]
    leaves: Option<u16>,
    /// With faults: number of agents, all on one network with the leaves [default: 2, with spines two per
    /// leaf]
    #[arg(long)]
    agents: Option<u16>,
    /// With faults: workers per agent
    #[arg(long)]
    workers_each: Option<u16>,
    /// With faults: policy of the agents
    #[arg(long)]
    agent_policy: Option<String>,
    /// With faults: maximum number of queued tasks in each node
    #[arg(long)]
    queue: Option<usize>,
    /// With faults: treatment of tasks beyond that, drop or refuse
    #[arg(long, value_parser = ["drop", "refuse"])]
    overflow: Option<String>,
    /// With faults: agents answer through the leaf or the clients directly, leaf or direct
    #[arg(long, value_parser = ["leaf", "direct"])]
    replies: Option<String>,
    /// With faults: fast nodes in this process, or processes over memif that are stopped and killed: memory,
    /// process [default: memory]
    #[arg(long, value_parser = ["memory", "process"])]
    nodes: Option<String>,
    /// With --soak: number of parallel runs [default: number of CPUs]
    #[arg(long)]
    threads: Option<usize>,
    /// Also run the simulator with the same flags and seed, and report for each row if both are equal, task
    /// by task; exits with 1 on a difference
    #[arg(long)]
    compare: bool,
    /// Output: text, json (one object per line) or csv
    #[arg(long, default_value = "text", value_parser = ["text", "json", "csv"])]
    format: String,
    /// Include the run times in the rows, yes or no; without them, equal seeds print equal bytes
    #[arg(long, default_value = "yes", value_parser = ["yes", "no"])]
    timing: String,
    /// Command of the leaf [default: `wedjat` beside this one, or in PATH]
    #[arg(long, value_name = "FILE")]
    leaf: Option<PathBuf>,
    /// CPU of the leaf [default: the first]
    #[arg(long)]
    leaf_core: Option<usize>,
    /// CPU of the conductor [default: the last]
    #[arg(long)]
    core: Option<usize>,
    #[command(flatten)]
    results: ResultArgs,
}

impl Arguments {
    /// Returns the runs as planned by the simulator: one for each combination of the flags' values. Refuses runs that
    /// the results cannot hold.
    fn cells(&self) -> Result<Vec<Cell>, String> {
        let or_default = |value: &Option<String>, default: &str| {
            Some(value.clone().unwrap_or_else(|| default.to_owned()))
        };
        // `--digest` makes the model act like a leaf process. The planner refuses it for several racks: their settings
        // are below.
        let digest = (!self.has_racks()).then(|| "yes".to_owned());
        let args = SimArgs {
            policy: self.policy.as_deref().map(policies),
            spine_policy: self.spine_policy.clone(),
            load: self.load.clone(),
            racks: self.workers.clone(),
            speeds: self.speeds.clone(),
            sharing: self.sharing.clone(),
            service: self.service.clone(),
            arrivals: self.arrivals.clone(),
            hops: self.hops.clone(),
            hop: self.hop.clone(),
            hop_dist: self.hop_dist.clone(),
            node_delay: self.node_delay.clone(),
            tasks: or_default(&self.tasks, "200000"),
            warmup: self.warmup.clone(),
            loss: self.loss.clone(),
            digest,
            ..SimArgs::default()
        };
        let mut cells = plan::cells(&args)?;
        for Cell { subject, model } in &mut cells {
            subject.model = "lockstep";
            if let Model::Rack(config) = model {
                config.seed = self.seed;
                config.observer.records_tasks = self.results.need_tasks();
                // Same as with a digest: no benchmark tasks (which teach some policies the workers' rates), and leaves
                // act like processes.
                if self.has_racks() {
                    (config.benchmarks, config.as_process) = (false, true);
                }
            }
        }
        let longest = cells.iter().map(|cell| cell.model.tasks()).max().unwrap_or(0);
        self.results.check(cells.len(), longest)?;
        Ok(cells)
    }

    /// Opens the files for the results, if there are any.
    fn open_results(&self) -> Result<Option<Results>, String> {
        Results::open(&self.results)
    }

    /// Adds an outcome to the results, if there are any. The result of an unstable run is invalid.
    fn add_result(
        &self,
        results: &mut Option<Results>,
        run: usize,
        subject: &RowLabels,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let Some(results) = results else { return Ok(()) };
        let ended = std::mem::take(&mut outcome.ended);
        results.add(subject.run_tasks(run, self.seed, ended), !outcome.is_unstable())
    }

    /// Returns true for several racks under a spine.
    fn has_racks(&self) -> bool {
        self.workers.as_deref().is_some_and(|workers| workers.contains(','))
    }
}

/// Runs several racks under a spine, with nodes in this process. Returns false if a run differs from the
/// simulator or reports a fault.
fn run_racks(arguments: &Arguments) -> Result<bool, Failure> {
    let (mut rows, mut differ) = (Vec::new(), 0);
    let cells = arguments.cells()?;
    let mut results = arguments.open_results()?;
    for Cell { subject, model } in cells {
        let Model::Rack(config) = model else { continue };
        let (began, name) = (Instant::now(), format!("{} at {}", subject.policy, subject.load));
        let (mut outcome, report) = fabric::run(&config)?;
        arguments.add_result(&mut results, rows.len() + 1, &subject, &mut outcome)?;
        let wall = (arguments.timing == "yes").then(|| began.elapsed());
        // Leaves signal their average loads to the spine, and whether they have idle workers.
        let ((idle, repeated), tasks) = (report.idle_signals, outcome.tasks as f64);
        log::info!(
            "{name}: messages per task: {:.3} loads, {:.3} idle signals, and {:.3} repeated idle signals",
            (report.signals - idle) as f64 / tasks,
            (idle - repeated) as f64 / tasks,
            repeated as f64 / tasks
        );
        report.faults.iter().for_each(|fault| log::error!("{name}: {fault}"));
        let is_same = !arguments.compare || rack::run(&config)?.record == outcome.record;
        if !is_same {
            log::error!("{name}: DIFFERS from the simulator");
        }
        differ += usize::from(!is_same || !report.faults.is_empty());
        rows.push(Row::new(subject, vec![outcome], wall));
    }
    results.map_or(Ok(()), |results| results.finish(HEADING))?;
    print::print(&rows, &arguments.format, &mut std::io::stdout().lock())?;
    Ok(differ == 0)
}

/// Returns a list of policies for the simulator, which does not know `all`: replaces it by all policies of a leaf.
fn policies(list: &str) -> String {
    let all = || CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine).map(|entry| entry.name);
    match list.trim() {
        "all" => all().collect::<Vec<_>>().join(","),
        list => list.to_owned(),
    }
}

/// Runs the flags' request: nodes with faults, several racks, or leaf processes one after another. Returns
/// false on a violation, if a run differs from the simulator, or if no task of a leaf process was answered.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    if let Some(verdict) = soak::run(arguments)? {
        return Ok(verdict);
    }
    if arguments.has_racks() {
        return run_racks(arguments);
    }
    let cells = arguments.cells()?;
    ports::check()?;
    let mut results = arguments.open_results()?;
    let place = Placement { leaf: arguments.leaf_core, conductor: arguments.core };
    let mut leaves = Leaves::open(arguments.leaf.as_deref(), place)?;
    let (mut rows, mut differ) = (Vec::new(), 0);
    for Cell { subject, model } in cells {
        let Model::Rack(config) = model else { continue };
        let began = Instant::now();
        let mut outcome = leaves.run(&config)?.outcome;
        arguments.add_result(&mut results, rows.len() + 1, &subject, &mut outcome)?;
        let wall = (arguments.timing == "yes").then(|| began.elapsed());
        if arguments.compare {
            let is_same = rack::run(&config)?.record == outcome.record;
            let verdict = if is_same { "ok" } else { "DIFFERS from the simulator" };
            log::info!("{} at {}: {verdict}", subject.policy, subject.load);
            differ += usize::from(!is_same);
        }
        rows.push(Row::new(subject, vec![outcome], wall));
    }
    results.map_or(Ok(()), |results| results.finish(HEADING))?;
    print::print(&rows, &arguments.format, &mut std::io::stdout().lock())?;
    if differ > 0 {
        log::error!("{differ} of {} runs differ from the simulator", rows.len());
    } else if arguments.compare {
        log::info!("all {} runs equal the simulator's, task by task", rows.len());
    }
    // A run in which no task was answered has no mean.
    let unanswered = rows.iter().filter(|row| !row.mean.is_finite()).count();
    if unanswered > 0 {
        log::error!("the leaf answered no task in {unanswered} of {} runs", rows.len());
    }
    Ok(differ == 0 && unanswered == 0)
}
