//! Conversion of flags to runs: a cell for every combination of policy, load and swept flags, checked before the first
//! run starts.

use std::ops::RangeInclusive;
use std::str::FromStr;

use wedjat_core::limits::CORES_MAX;
use wedjat_core::peers::{NODES_MAX, PeerPolicy};
use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{CATALOGUE, LeafReports, PAIRS, PolicyError, PolicySpec, Runs};
use wedjat_workload::arrival::Arrivals;
use wedjat_workload::grammar::parse_time_ns;
use wedjat_workload::service::Service;

use super::args::SimArgs;
use super::hop::{Hop, HopDist, Hops, TICKS_PER_US};
use super::lists::{list, split};
use super::model::{Cell, Model, SETTLED};
use super::outcome::RowLabels;
use super::script::{Action, Step};
use super::sharing::SharingTimes;
use super::stats::Observer;
use super::{ct, fabric, nodes, rack, script, slots, sweep};

/// Default number of tasks of a run. Runs that would otherwise be shorter than [`SETTLED`] have more.
const USUAL_TASKS: f64 = 1e6;
/// Longest delay in mean service times, for model `ct`, whose unit of time that is.
const LONGEST_DELAYS: f64 = 1e5;
/// Largest value in nanoseconds of a flag that sets a delay or a beat: 10 s.
const LONGEST_DELAY_NS: f64 = 1e10;

/// Maximum number of points (combinations) of a sweep. Each takes some kilobytes of memory, and 8 bytes per worker,
/// before the first run starts.
const POINTS_MAX: u64 = 100_000;

/// Returns a cell for every combination of policy, load and swept flags.
///
/// # Errors
/// If a flag is invalid, or the flags need too many or too long runs. The error names the allowed values.
pub fn cells(args: &SimArgs) -> Result<Vec<Cell>, String> {
    let model = args.model.as_deref().unwrap_or("rack");
    let default_policy = if model == "nodes" { "malcolm" } else { "horus" };
    let policies = list("policy", args.policy.as_deref().unwrap_or(default_policy))?;
    let loads = list("load", args.load.as_deref().unwrap_or("0.5,0.7,0.9"))?;
    let loads = loads.into_iter().map(load).collect::<Result<Vec<_>, _>>()?;
    check_flags(args, model)?;
    let points = (policies.len() as u64)
        .saturating_mul(loads.len() as u64)
        .saturating_mul(sweep::count(args)?);
    if points > POINTS_MAX {
        return Err(format!(
            "the flags and the scenario need {points} points; at most {POINTS_MAX} are allowed; shorten the lists, or split the \
             sweep into several runs"
        ));
    }
    let variants = sweep::variants(args)?;
    let mut cells = Vec::new();
    for policy in &policies {
        for &load in &loads {
            for sweep::Variant { args, swept } in &variants {
                let mut cell = cell(args, policy, load)?;
                cell.model.check()?;
                cell.subject.swept.clone_from(swept);
                let is_swept = swept.iter().any(|(flag, _)| *flag == "dispatchers-as");
                if let Model::Ct(config) = &cell.model
                    && !is_swept
                {
                    // Every row of the model `ct` names the role of its dispatchers.
                    cell.subject.swept.push(("dispatchers-as", config.kind.name().to_owned()));
                }
                if let Some(sharing) = &args.sharing {
                    cell.subject.swept.push(("sharing", sharing.clone()));
                }
                cells.push(cell);
            }
        }
    }
    Ok(cells)
}

/// Returns the models in which a flag has an effect; `None` if it is allowed in all models. `--tasks` and `--slots` are
/// always allowed, although they set the run length of different models, so that the same flags suit all models.
fn models_of(flag: &str) -> Option<&'static [&'static str]> {
    match flag {
        "racks" | "fail" | "cores" | "exchange" | "replies" => Some(&["rack"]),
        "spine-policy" | "signals" | "hops" | "hop" | "hop-dist" | "node-delay" | "loss" => {
            Some(&["rack", "fabric"])
        }
        "service" | "arrivals" => Some(&["rack", "ct", "fabric", "nodes"]),
        "at" | "digest" | "sharing" | "classes" => Some(&["rack", "ct", "nodes"]),
        "nodes" | "beat" | "queue" | "seconds" | "measure" => Some(&["nodes"]),
        "speeds" => Some(&["rack", "slots", "ct"]),
        "servers" | "dispatchers" => Some(&["slots", "ct"]),
        "batch" => Some(&["slots"]),
        "delay" => Some(&["ct", "nodes"]),
        "probes" | "dispatchers-as" => Some(&["ct"]),
        "leaves" | "servers-per-leaf" | "workers-per-server" | "pools" | "pool-size" | "piece"
        | "leaves-per-spine" => Some(&["fabric"]),
        _ => None,
    }
}

/// Refuses flags without effect in the model.
fn check_flags(args: &SimArgs, model: &str) -> Result<(), String> {
    let flags = toml::Table::try_from(args).map_err(|error| error.to_string())?;
    for flag in flags.keys() {
        if let Some(models) = models_of(flag).filter(|models| !models.contains(&model)) {
            let models = models.join(", ");
            return Err(format!("--{flag}: not in the model {model}; only in {models}"));
        }
    }
    Ok(())
}

/// Returns the cell of `policy` and `load`, which replace the lists of these two flags in `args`. No other flag of
/// `args` has a list to sweep.
fn cell(args: &SimArgs, policy: &str, load: f64) -> Result<Cell, String> {
    let model = args.model.as_deref().unwrap_or("rack");
    let (model, unit, config) = match model {
        "rack" => ("rack", "us", Model::Rack(rack(args, policy, load)?)),
        "slots" => ("slots", "slots", Model::Slots(slots(args, policy, load)?)),
        "ct" => ("ct", "mean service times", Model::Ct(ct(args, policy, load)?)),
        "fabric" => ("fabric", "us", Model::Fabric(fabric(args, policy, load)?)),
        "nodes" => ("nodes", "us", Model::Nodes(nodes(args, policy, load)?)),
        _ => {
            return Err(format!(
                "--model {model}: unknown model; allowed: rack, slots, ct, fabric, nodes"
            ));
        }
    };
    let (policy, swept) = (policy.to_owned(), Vec::new());
    Ok(Cell { subject: RowLabels { model, policy, load, unit, swept }, model: config })
}

/// Parses a load, a fraction of the capacity. Above 1, queues grow.
fn load(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|load| *load > 0.0 && *load <= 1.5)
        .ok_or_else(|| format!("--load {text}: a load is a number above 0 and at most 1.5"))
}

/// Returns the parameters of model `rack`. In all models, [`Model::run`] replaces the seed and the observer.
fn rack(args: &SimArgs, policy: &str, load: f64) -> Result<rack::Config, String> {
    let racks = args.racks.as_deref().unwrap_or("32");
    let racks: Vec<usize> = list("racks", racks)?
        .into_iter()
        .map(|text| integer("racks", text, 1..=32_767))
        .collect::<Result<_, _>>()?;
    if racks.len() > 32_767 {
        return Err(format!("--racks: {} racks; a spine has at most 32767", racks.len()));
    }
    let workers = racks.iter().sum();
    // The digest serves for comparison with a leaf process in lockstep, which runs no benchmark tasks.
    let as_process = digest(args)?;
    if as_process && racks.len() > 1 {
        let found = racks.len();
        return Err(format!(
            "--digest: only for one rack, because a run in lockstep has no spine; --racks gives {found}"
        ));
    }
    let (leaf, spine, protocol) = policies(args, policy)?;
    let mut script = Vec::new();
    for text in split(args.fail.as_deref().unwrap_or("")) {
        let step = script::parse_fail(text, racks.len());
        script.push(step.map_err(|error| format!("--fail {error}"))?);
    }
    script.extend(changes(args, workers)?);
    let common = common(args)?;
    let speeds = speeds(args, workers)?;
    let tasks = tasks(args, load * speeds.iter().sum::<f64>())?;
    let mut hops = Hops::usual(racks.len());
    if let Some(text) = &args.hops {
        hops = hops.change(text).map_err(|error| format!("--hops {error}"))?;
    }
    let cores = cores(args, racks.len())?;
    Ok(rack::Config {
        racks,
        hops,
        hop: hop(args)?,
        node_delay: node_delay(args)?,
        leaf,
        spine,
        protocol,
        service: common.service,
        arrivals: common.arrivals,
        load,
        speeds,
        tasks,
        warmup: common.warmup,
        loss: number("loss", args.loss.as_deref().unwrap_or("0"), 0.0..=1.0)?,
        script: rack::with_detection(script),
        benchmarks: !as_process,
        cores,
        as_process,
        sharing: sharing(args)?,
        measures_classes: classes(args)?,
        seed: 0,
        observer: Observer::hidden(),
    })
}

/// Parses `--digest`. A digest belongs to one run, so that it excludes several seeds.
fn digest(args: &SimArgs) -> Result<bool, String> {
    let digest = yes("digest", args.digest.as_deref(), false)?;
    if digest && args.seeds.as_deref().is_some_and(|seeds| seeds.trim() != "1") {
        return Err(
            "--digest: only for one run; omit --seeds, and give the run's --seed".to_owned()
        );
    }
    Ok(digest)
}

/// Parses `--cores`, `--exchange` and `--replies`. A delay of `None` means that the cores share their counts in memory.
fn cores(args: &SimArgs, racks: usize) -> Result<rack::Cores, String> {
    let count = integer("cores", args.cores.as_deref().unwrap_or("1"), 1..=CORES_MAX)?;
    if count > 1 && racks > 1 {
        return Err(format!("--cores {count}: only for one leaf; --racks gives {racks} racks"));
    }
    let ticks = |ns: f64| (ns * TICKS_PER_US / 1e3) as u64;
    let (delay, interval) = match args.exchange.as_deref().unwrap_or("0us") {
        "shared" => (None, 0),
        text => match text.strip_prefix("every:") {
            Some(interval) => match ticks(delay("exchange", interval)?) {
                0 => return Err(format!("--exchange {text}: an interval above 0 is needed")),
                interval => (Some(0), interval),
            },
            None => (Some(ticks(delay("exchange", text)?)), 0),
        },
    };
    let steered = match args.replies.as_deref().unwrap_or("same") {
        "same" => true,
        "any" => false,
        other => return Err(format!("--replies {other}: allowed are same, any")),
    };
    Ok(rack::Cores { count, delay, interval, steered })
}

/// Parses `--at`, for models with `workers` workers.
fn changes(args: &SimArgs, workers: usize) -> Result<Vec<script::Step>, String> {
    changes_by(args, |text| script::parse_at(text, workers))
}

/// Parses `--at`, whose steps are separated by `;`. `parse` parses one step: models have steps of different forms.
fn changes_by(
    args: &SimArgs,
    parse: impl Fn(&str) -> Result<script::Step, String>,
) -> Result<Vec<script::Step>, String> {
    let texts = args.at.as_deref().unwrap_or("").split(';').map(str::trim);
    texts
        .filter(|text| !text.is_empty())
        .map(|text| parse(text).map_err(|error| format!("--at {error}")))
        .collect()
}

/// Returns the parameters of model `fabric`.
fn fabric(args: &SimArgs, policy: &str, load: f64) -> Result<fabric::Config, String> {
    let count = |flag: &str, value: &Option<String>, default: usize, max: usize| match value {
        Some(text) => integer(flag, text, 1..=max),
        None => Ok(default),
    };
    // The fabric sets racks, speeds and tasks of each pool later. Two racks give `rack` the hops of several racks.
    let two_racks = SimArgs { racks: Some("1,1".to_owned()), ..args.clone() };
    let size = args.pool_size.as_deref().unwrap_or("exp(min=50,max=20000,mean=685)");
    let workers_per_server = count("workers-per-server", &args.workers_per_server, 32, 1024)?;
    let mut config = fabric::Config {
        leaves: count("leaves", &args.leaves, 1152, 32_767)?,
        servers_per_leaf: count("servers-per-leaf", &args.servers_per_leaf, 24, 1024)?,
        workers_per_server,
        piece: count("piece", &args.piece, workers_per_server, workers_per_server)?,
        pools: count("pools", &args.pools, 1000, 100_000)?,
        pool_size: fabric::BoundedExponential::parse(size)?,
        leaves_per_spine: count("leaves-per-spine", &args.leaves_per_spine, 20, 32_767)?,
        pool: rack(&two_racks, policy, load)?,
    };
    // Number of tasks of the whole fabric, which the fabric divides among its pools later.
    config.pool.tasks = tasks(args, load * config.workers())?;
    Ok(config)
}

/// Returns the parameters of model `slots` (time slots).
fn slots(args: &SimArgs, policy: &str, load: f64) -> Result<slots::Config, String> {
    let (speeds, _, dispatchers) = servers(args)?;
    let whole_batch = match args.batch.as_deref().unwrap_or("whole") {
        "whole" => true,
        "split" => false,
        other => return Err(format!("--batch {other}: allowed are whole, split")),
    };
    let slots = args.slots.as_deref().unwrap_or("100000");
    Ok(slots::Config {
        speeds,
        dispatchers,
        whole: whole_batch,
        policy: server_policy("policy", policy)?,
        load,
        slots: integer("slots", slots, 1..=1 << 40)? as u64,
        warmup: common(args)?.warmup,
        seed: 0,
        observer: Observer::hidden(),
    })
}

/// Returns the parameters of model `ct` (continuous time).
fn ct(args: &SimArgs, policy: &str, load: f64) -> Result<ct::Config, String> {
    let (speeds, speed_unit, dispatchers) = servers(args)?;
    let common = common(args)?;
    let probes_at_once = match args.probes.as_deref().unwrap_or("late") {
        "late" => false,
        "now" => true,
        other => return Err(format!("--probes {other}: allowed are late, now")),
    };
    let kind = match args.dispatchers_as.as_deref().unwrap_or("leaves") {
        "cores" => ct::DispatcherKind::Cores,
        "leaves" => ct::DispatcherKind::Leaves,
        other => return Err(format!("--dispatchers-as {other}: allowed are cores, leaves")),
    };
    if kind == ct::DispatcherKind::Cores && dispatchers > CORES_MAX {
        return Err(format!("--dispatchers {dispatchers}: a leaf has at most {CORES_MAX} cores"));
    }
    let delay_ns = delay("delay", args.delay.as_deref().unwrap_or("0us"))?;
    if delay_ns > LONGEST_DELAYS * common.service.mean_ns() {
        return Err(format!(
            "--delay {}: at most {LONGEST_DELAYS} mean service times are allowed",
            args.delay.as_deref().unwrap_or_default()
        ));
    }
    let tasks = tasks(args, load * speeds.len() as f64)?;
    Ok(ct::Config {
        script: changes(args, speeds.len())?,
        speeds,
        speed_unit,
        probes_at_once,
        dispatchers,
        kind,
        policy: server_policy("policy", policy)?,
        service: common.service,
        arrivals: common.arrivals,
        load,
        delay_ns,
        tasks,
        warmup: common.warmup,
        digest: digest(args)?,
        sharing: sharing(args)?,
        measures_classes: classes(args)?,
        seed: 0,
        observer: Observer::hidden(),
    })
}

/// Returns the parameters of model `nodes`.
fn nodes(args: &SimArgs, policy: &str, load: f64) -> Result<nodes::Config, String> {
    let mut workers = counts(args.nodes.as_deref().unwrap_or("10x10"))?;
    let script = |nodes| changes_by(args, |text| script::parse_at_nodes(text, nodes));
    let mut script = script(workers.len())?;
    // `Config::tasks_in` reads the steps in the order of time.
    script.sort_by(|a, b| a.at_ns.total_cmp(&b.at_ns));
    let policy = if policy == CENTRAL {
        // One node with all workers, and so with one queue, which tasks reach without delay.
        workers = vec![workers.iter().sum()];
        if script.iter().any(|step| !matches!(step.action, Action::Load(_))) {
            return Err(format!("--policy {CENTRAL}: it has no nodes; --at allows only `load`"));
        }
        PeerPolicy::Keep // forwards and requests no task
    } else {
        policy.parse().map_err(|error| format!("--policy: {error}; and in this model {CENTRAL}"))?
    };
    let Common { service, arrivals, warmup } = common(args)?;
    let beat_ns = delay("beat", args.beat.as_deref().unwrap_or("100us"))?;
    if beat_ns < 1e3 {
        let text = args.beat.as_deref().unwrap_or_default();
        return Err(format!("--beat {text}: at least 1us is allowed"));
    }
    let sharing = sharing(args)?;
    if sharing.and_then(|sharing| sharing.slots).is_some_and(|slots| slots > SLOTS_MAX) {
        return Err(format!("--sharing: at most {SLOTS_MAX} slots are allowed in the model nodes"));
    }
    let queue = args.queue.as_deref().unwrap_or("4096");
    let mut config = nodes::Config {
        workers,
        policy,
        queue: integer("queue", queue, 1..=1 << 20)? as u32,
        beat_ns: beat_ns as u64,
        delay_ns: delay("delay", args.delay.as_deref().unwrap_or("2us"))? as u64,
        service,
        arrivals,
        load,
        script,
        tasks: 0,
        warmup,
        digest: digest(args)?,
        sharing,
        measures_classes: classes(args)?,
        seed: 0,
        observer: Observer::hidden(),
    };
    let seconds = number("seconds", args.seconds.as_deref().unwrap_or("30"), 1e-3..=1e5)?;
    match &args.tasks {
        Some(_) if args.seconds.is_some() || args.measure.is_some() => {
            return Err(
                "--tasks: --seconds or --measure already sets the length of the run; omit one of them"
                    .to_owned(),
            );
        }
        // The second argument has no effect if `--tasks` is given.
        Some(_) => config.tasks = tasks(args, config.load)?,
        None if args.warmup.is_some() => {
            return Err(
                "--warmup: only with --tasks; a run of --seconds measures only its last --measure seconds"
                    .to_owned(),
            );
        }
        None => {
            let measure = match &args.measure {
                Some(text) => number("measure", text, 1e-3..=seconds)?,
                None => seconds / 3.0,
            };
            config.tasks = config.tasks_in(seconds).max(1);
            let changes_rate =
                |step: &Step| matches!(step.action, Action::Load(_) | Action::Shock { .. });
            config.warmup = if config.script.iter().any(changes_rate) {
                // Half a task more, so that rounding does not measure one more.
                let unmeasured = config.tasks_in(seconds - measure) as f64 + 0.5;
                (unmeasured / config.tasks as f64).min(1.0)
            } else {
                1.0 - measure / seconds
            };
        }
    }
    Ok(config)
}

/// Maximum number of tasks at a worker of a node: the largest bound of the agent's policy `jbsq`.
const SLOTS_MAX: usize = 64;

/// Name of the policy of model `nodes` with one queue for all workers.
const CENTRAL: &str = "central";

/// Parses `--nodes`. Returns the number of workers of each node: `4x14,10x3` means 4 nodes of 14 workers and 10 of 3.
fn counts(text: &str) -> Result<Vec<usize>, String> {
    let mut workers = Vec::new();
    for part in list("nodes", text)? {
        let (nodes, each) = part
            .split_once('x')
            .ok_or_else(|| format!("--nodes {part}: write NODESxWORKERS, as in 4x14,10x3"))?;
        let nodes = integer("nodes", nodes, 1..=NODES_MAX)?;
        workers.extend(std::iter::repeat_n(integer("nodes", each, 1..=1024)?, nodes));
    }
    match workers.len() {
        1..=NODES_MAX => Ok(workers),
        found => Err(format!("--nodes {text}: {found} nodes; 1 to {NODES_MAX} are allowed")),
    }
}

/// Parses `--servers`, `--dispatchers` and `--speeds`. Returns the servers' rates scaled to a mean of 1, the mean
/// before that, and the number of dispatchers. Speeds in `--at` have the scale of `--speeds`: model `ct` divides them
/// by that mean.
fn servers(args: &SimArgs) -> Result<(Vec<f64>, f64, usize), String> {
    let servers = integer("servers", args.servers.as_deref().unwrap_or("100"), 1..=32_767)?;
    let dispatchers =
        integer("dispatchers", args.dispatchers.as_deref().unwrap_or("10"), 1..=1024)?;
    let mut speeds = speeds(args, servers)?;
    let mean = speeds.iter().sum::<f64>() / servers as f64;
    speeds.iter_mut().for_each(|speed| *speed /= mean);
    Ok((speeds, mean, dispatchers))
}

/// Parses a policy over servers, for models without racks and for the advice. Refuses policies made for spines.
///
/// # Errors
/// If the policy is unknown or made for spines; the error names the flag.
pub fn server_policy(flag: &str, policy: &str) -> Result<PolicySpec, String> {
    let spec: PolicySpec = policy.parse().map_err(|error| format!("--{flag}: {error}"))?;
    match spec.entry().runs {
        Runs::Spine => {
            Err(format!("--{flag} {policy}: its members are racks; use it in the model rack"))
        }
        _ => Ok(spec),
    }
}

/// Settings of several models.
struct Common {
    service: Service,
    arrivals: Arrivals,
    /// Warm-up: fraction of the tasks, at the start of the run, that is not measured.
    warmup: f64,
}

/// Returns the number of tasks of a run. Without `--tasks`, it is [`USUAL_TASKS`], or the arrivals in [`SETTLED`] mean
/// service times if these are more. `per_service` is the number of arrivals per mean service time.
fn tasks(args: &SimArgs, per_service: f64) -> Result<u64, String> {
    match &args.tasks {
        Some(text) => Ok(integer("tasks", text, 1..=1 << 40)? as u64),
        None => Ok(USUAL_TASKS.max((SETTLED * per_service).ceil()) as u64),
    }
}

/// Parses the settings of several models.
fn common(args: &SimArgs) -> Result<Common, String> {
    Ok(Common {
        service: service(args.service.as_deref().unwrap_or("exp(100us)"))?,
        arrivals: read("arrivals", args.arrivals.as_deref().unwrap_or("poisson"))?,
        warmup: number("warmup", args.warmup.as_deref().unwrap_or("0.1"), 0.0..=0.9)?,
    })
}

/// Parses the distribution of service times. Refuses a mean of 0.
fn service(text: &str) -> Result<Service, String> {
    let service: Service = read("service", text)?;
    if service.mean_ns() > 0.0 {
        return Ok(service);
    }
    Err(format!(
        "--service {text}: a load needs tasks with a duration above 0; give times above 0, as in fixed(10us) or exp(100us)"
    ))
}

/// Parses `--sharing`.
fn sharing(args: &SimArgs) -> Result<Option<SharingTimes>, String> {
    args.sharing.as_deref().map(|text| read("sharing", text)).transpose()
}

/// Parses `--classes`.
fn classes(args: &SimArgs) -> Result<bool, String> {
    yes("classes", args.classes.as_deref(), false)
}

/// Parses `--hop` and `--hop-dist`, the delay of a hop.
fn hop(args: &SimArgs) -> Result<Hop, String> {
    let dist: HopDist = read("hop-dist", args.hop_dist.as_deref().unwrap_or("horus"))?;
    Ok(Hop::new(dist, delay("hop", args.hop.as_deref().unwrap_or("5us"))?))
}

/// Parses `--node-delay`, the processing delay of a task at a leaf. Returns ticks.
fn node_delay(args: &SimArgs) -> Result<u64, String> {
    let ns = delay("node-delay", args.node_delay.as_deref().unwrap_or("0us"))?;
    Ok((ns * TICKS_PER_US / 1e3) as u64)
}

/// Parses a delay of at most 10 s. Returns nanoseconds.
fn delay(flag: &str, text: &str) -> Result<f64, String> {
    let ns = parse_time_ns(text).map_err(|error| format!("--{flag}: {error}"))?;
    if ns > LONGEST_DELAY_NS {
        return Err(format!("--{flag} {text}: at most 10s is allowed"));
    }
    Ok(ns)
}

/// Returns the policies of leaf and spine for `name`, one value of `--policy`, and the protocol of signals between
/// them. A name in [`PAIRS`] sets both policies. Otherwise it names the leaf's policy, whose entry determines the
/// spine's.
/// `--spine-policy` has precedence. The spine's policy determines the protocol. `--signals` selects one of Horus's
/// protocols, and has no effect for other policies.
fn policies(args: &SimArgs, name: &str) -> Result<(PolicySpec, PolicySpec, Protocol), String> {
    let spec = |flag: &str, text: &str| {
        text.parse::<PolicySpec>().map_err(|error| format!("--{flag}: {error}"))
    };
    // An entry of `PAIRS` has a name, a leaf's policy and a spine's policy.
    let pair = PAIRS.iter().find(|pair| pair.0 == name);
    let (leaf, spine) = match pair {
        Some(&(_, leaf, spine, ..)) => (leaf, spine),
        None => {
            let leaf_spec = name.parse::<PolicySpec>().map_err(|error| match error {
                PolicyError::Name { .. } => {
                    format!("--policy: {error}; and in this model rs-lb, rs-h")
                }
                _ => format!("--policy: {error}"),
            })?;
            if leaf_spec.entry().runs == Runs::Spine {
                return Err(format!(
                    "--policy {name}: its members are racks; give it as --spine-policy"
                ));
            }
            (name, leaf_spec.entry().over_racks.map_or(USUAL_SPINE, |racks| racks.policy))
        }
    };
    let spine = args.spine_policy.as_deref().unwrap_or(spine);
    let signals = match args.signals.as_deref().unwrap_or("paper") {
        "paper" => Protocol::Paper,
        "paper-text" => Protocol::Text,
        "horus-sim" => Protocol::Simulator,
        other => {
            return Err(format!("--signals {other}: allowed are paper, paper-text, horus-sim"));
        }
    };
    let named = spec("spine-policy", spine)?;
    // `over_racks`: the policy's form at a spine, and the reports that it needs from leaves.
    let Some(over_racks) = named.entry().over_racks else {
        let allowed = CATALOGUE.iter().filter(|entry| entry.over_racks.is_some());
        let allowed: Vec<_> = allowed.map(|entry| entry.name).collect();
        let (name, allowed) = (named.entry().name, allowed.join(", "));
        return Err(format!(
            "--spine-policy {name}: needs more than leaves report to a spine; allowed: {allowed}"
        ));
    };
    // Replaces a policy that does not serve racks by its counterpart for racks.
    let serves_racks = over_racks.policy == named.entry().name;
    let spine = if serves_racks { named } else { spec("spine-policy", over_racks.policy)? };
    let protocol = match over_racks.reports {
        LeafReports::Signals => signals,
        LeafReports::EveryReply => Protocol::EveryReply,
        LeafReports::Nothing => Protocol::Silent,
    };
    Ok((spec("policy", leaf)?, spine, protocol))
}

/// Policy of spines above leaves whose policy has no counterpart for racks.
const USUAL_SPINE: &str = "horus-spine";

/// Parses `--speeds`: `50x1,50x10` means 50 servers of speed 1 and 50 of speed 10. All have speed 1 by default.
fn speeds(args: &SimArgs, servers: usize) -> Result<Vec<f64>, String> {
    let Some(text) = args.speeds.as_deref() else { return Ok(vec![1.0; servers]) };
    let mut speeds = Vec::new();
    for part in split(text) {
        let (count, rate) = part
            .split_once('x')
            .ok_or_else(|| format!("--speeds {part}: write COUNTxRATE, as in 50x1,50x10"))?;
        let count = integer("speeds", count, 1..=1_000_000)?;
        let rate = number("speeds", rate, 1e-3..=1e3)?;
        speeds.extend(std::iter::repeat_n(rate, count));
        // Bounds the memory of a list that is too long, which the comparison below refuses.
        if speeds.len() > 10_000_000 {
            break;
        }
    }
    if speeds.len() != servers {
        let found = speeds.len();
        return Err(format!(
            "--speeds {text}: {found} speeds for {servers} workers or servers; the counts must add up"
        ));
    }
    Ok(speeds)
}

/// Parses a flag's value as a whole number.
///
/// # Errors
/// If the text is not a number in the range `allowed`, which the error names.
pub fn integer(flag: &str, text: &str, allowed: RangeInclusive<usize>) -> Result<usize, String> {
    text.trim().parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        format!(
            "--{flag} {text}: a whole number from {} to {} is allowed",
            allowed.start(),
            allowed.end()
        )
    })
}

/// Parses a flag's value `yes` or `no`. Without a value, returns `default`.
///
/// # Errors
/// If the value is neither; the error names the allowed values.
pub fn yes(flag: &str, text: Option<&str>, default: bool) -> Result<bool, String> {
    match text {
        None => Ok(default),
        Some("yes") => Ok(true),
        Some("no") => Ok(false),
        Some(other) => Err(format!("--{flag} {other}: allowed are yes, no")),
    }
}

/// Parses a flag's value as a number in the range `allowed`.
fn number(flag: &str, text: &str, allowed: RangeInclusive<f64>) -> Result<f64, String> {
    text.trim().parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        format!(
            "--{flag} {text}: a number from {} to {} is allowed",
            allowed.start(),
            allowed.end()
        )
    })
}

/// Parses a flag's value by its type's [`FromStr`].
fn read<T: FromStr>(flag: &str, text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("--{flag}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_time_counts_tasks_of_each_load() {
        let text = |text: &str| Some(text.to_owned());
        let args = SimArgs {
            model: text("nodes"),
            seconds: text("30"),
            measure: text("10"),
            at: text("10s load 0.9"),
            ..SimArgs::default()
        };
        let config = nodes(&args, "random", 0.5).unwrap();
        // 14 of 23 parts of the tasks arrive in the first 20 s: 5 in the first 10 s, and 9 in each further 10 s.
        assert!((config.warmup - 14.0 / 23.0).abs() < 1e-3, "{}", config.warmup);
        let steady = nodes(&SimArgs { at: None, ..args }, "random", 0.5).unwrap();
        assert!((steady.warmup - 2.0 / 3.0).abs() < 1e-9, "{}", steady.warmup);
    }
}
