//! Runs of several nodes with faults: one run with full output, or many seeds with output for violations
//! only. A plan describes the system of a run, its load and its faults. The seed determines the values of all
//! flags that are not given.

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use wedjat_pktgen::grammar::parse_time_ns;
use wedjat_pktgen::process;
use wedjat_testbed::lockstep::LockstepError;
use wedjat_testbed::lockstep::system::packets::{Class, PacketEnd};
use wedjat_testbed::lockstep::system::{self, InMemory, Outcome, Plan, PlanOptions};

use super::{Arguments, Failure};

/// Runs one plan with `--faults`, or many with `--soak`. Returns false on a violation. Without both flags, returns
/// `None`, or an error if another flag needs them.
pub fn run(arguments: &Arguments) -> Result<Option<bool>, Failure> {
    if arguments.soak.is_none() && arguments.faults.is_none() {
        // Flags that would have no effect.
        let flags = [
            ("--spines", arguments.spines.is_some()),
            ("--spine-policy", arguments.spine_policy.is_some() && !arguments.has_racks()),
            ("--controller", arguments.controller),
            ("--leaves", arguments.leaves.is_some()),
            ("--agents", arguments.agents.is_some()),
            ("--workers-each", arguments.workers_each.is_some()),
            ("--agent-policy", arguments.agent_policy.is_some()),
            ("--queue", arguments.queue.is_some()),
            ("--overflow", arguments.overflow.is_some()),
            ("--nodes", arguments.nodes.is_some()),
            ("--threads", arguments.threads.is_some()),
        ];
        return match flags.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(format!(
                "{flag} needs a run of several nodes; also give --faults ('none' for a run without faults)"
            )
            .into()),
            None => Ok(None),
        };
    }
    let options = plan_options(arguments)?;
    if arguments.soak.is_some() && arguments.results.need_tasks() {
        let option = arguments.results.option();
        return Err(format!("{option}: only for one run; omit --soak").into());
    }
    match arguments.soak {
        None => run_one(arguments, &Plan::draw(arguments.seed, &options)?).map(Some),
        Some(seeds) => run_seeds(arguments, seeds, &options).map(Some),
    }
}

/// Converts the flags to options of a plan. Refuses flags that are only for runs of one leaf.
fn plan_options(arguments: &Arguments) -> Result<PlanOptions, Failure> {
    let single_leaf_flags = [
        ("--workers", arguments.workers.is_some()),
        ("--speeds", arguments.speeds.is_some()),
        ("--arrivals", arguments.arrivals.is_some()),
        ("--hops", arguments.hops.is_some()),
        ("--hop-dist", arguments.hop_dist.is_some()),
        ("--warmup", arguments.warmup.is_some()),
        ("--loss", arguments.loss.is_some()),
        ("--compare", arguments.compare),
    ];
    if arguments.format == "csv" {
        return Err("--format csv: runs with faults are reported as text or json".into());
    }
    if let Some((flag, _)) = single_leaf_flags.into_iter().find(|(_, is_given)| *is_given) {
        let text = format!(
            "{flag} is only for runs of one leaf; omit it with --faults (use --workers-each, and loss= in --faults)"
        );
        return Err(text.into());
    }
    let policy = |flag: &str, text: &Option<String>| -> Result<_, Failure> {
        let text =
            text.as_ref().map(|text| text.parse().map_err(|error| format!("{flag}: {error}")));
        Ok(text.transpose()?)
    };
    let time = |flag: &str, text: &Option<String>| -> Result<Option<u64>, Failure> {
        let Some(text) = text else { return Ok(None) };
        let ns = parse_time_ns(text).map_err(|error| format!("{flag} {text}: {error}"))?;
        match ns {
            0.0..=1e9 => Ok(Some(ns as u64)),
            _ => Err(format!("{flag} {text}: at most 1s is allowed").into()),
        }
    };
    let whole = |tasks: f64| match tasks.fract() == 0.0 && tasks >= 0.0 {
        true => Ok(tasks as u64),
        false => Err(format!("--tasks {tasks}: a whole number is needed")),
    };
    let number = |flag: &str, text: &Option<String>| -> Result<Option<f64>, Failure> {
        let number = text.as_ref().map(|text| {
            text.parse::<f64>().map_err(|_| {
                format!("{flag} {text}: give one number with --faults, as in {flag} 100")
            })
        });
        Ok(number.transpose()?)
    };
    Ok(PlanOptions {
        spines: arguments.spines,
        spine: policy("--spine-policy", &arguments.spine_policy)?,
        leaves: arguments.leaves,
        agents: arguments.agents,
        workers: arguments.workers_each,
        leaf: policy("--policy", &arguments.policy)?,
        agent: policy("--agent-policy", &arguments.agent_policy)?,
        queue: arguments.queue,
        refuse: arguments.overflow.as_ref().map(|overflow| overflow == "refuse"),
        replies: arguments.replies.clone(),
        sharing: arguments.sharing.clone(),
        service: arguments.service.clone(),
        load: number("--load", &arguments.load)?,
        tasks: number("--tasks", &arguments.tasks)?.map(whole).transpose()?,
        hop_ns: time("--hop", &arguments.hop)?,
        node_delay_ns: time("--node-delay", &arguments.node_delay)?,
        faults: arguments.faults.clone(),
        has_controller: arguments.controller,
    })
}

/// Runs one plan with full output. Returns false on a violation.
fn run_one(arguments: &Arguments, plan: &Plan) -> Result<bool, Failure> {
    arguments.results.check(1, plan.tasks)?;
    let results = arguments.open_results()?;
    let outcome = match arguments.nodes.as_deref() {
        Some("process") if plan.has_controller => {
            return Err("--controller: the nodes run in this process; omit --nodes".into());
        }
        Some("process") => in_processes(arguments, plan)?,
        _ => in_memory(plan, &AtomicBool::default())?,
    };
    if let Some(mut results) = results {
        let tasks = outcome.run_tasks("lockstep", plan.leaf.to_string(), plan.load, plan.seed);
        results.add(tasks, outcome.violations.is_empty())?;
        results.finish(super::HEADING)?;
    }
    let mut out = std::io::stdout().lock();
    match arguments.format.as_str() {
        "json" => writeln!(out, "{}", as_json(plan, &outcome))?,
        _ => writeln!(out, "{}", as_text(plan, &outcome))?,
    }
    let nodes = if arguments.nodes.as_deref() == Some("process") { " --nodes process" } else { "" };
    print_violation(plan, &outcome, nodes);
    Ok(outcome.violations.is_empty())
}

/// Runs a plan with nodes as processes. Fails in a build without DPDK.
fn in_processes(arguments: &Arguments, plan: &Plan) -> Result<Outcome, Failure> {
    crate::command::ports::check()?;
    let place =
        crate::command::leaves::Placement { leaf: arguments.leaf_core, conductor: arguments.core };
    super::nodes::run(plan, arguments.leaf.as_deref(), place)
}

/// Runs a plan with nodes in this process, under a controller if the plan has one.
fn in_memory(plan: &Plan, stop: &AtomicBool) -> Result<Outcome, LockstepError> {
    match plan.has_controller {
        true => {
            let mut factory = system::controlled::drawn(plan).map_err(LockstepError::Arguments)?;
            system::run(plan, &mut factory, stop)
        }
        false => system::run(plan, &mut InMemory, stop),
    }
}

/// Logs the violations and the command that repeats the run. `nodes` is the flag of nodes in processes, or empty.
fn print_violation(plan: &Plan, outcome: &Outcome, nodes: &str) {
    for violation in &outcome.violations {
        log::error!(
            "seed {}: VIOLATED at {} ns: {}: {}",
            plan.seed,
            violation.at_ns,
            violation.node,
            violation.description
        );
    }
    if !outcome.violations.is_empty() {
        log::error!("seed {}: repeat with: wedjat-testbed lockstep {plan}{nodes}", plan.seed);
    }
}

/// Totals over many seeds, of which each is one run.
#[derive(Default)]
struct Sum {
    seeds: u64,
    tasks: u64,
    answered: u64,
    refused: u64,
    lost: u64,
    /// Turns of all nodes: times at which a run let a node poll until it was quiet.
    turns: u64,
    /// Seeds with a violation.
    failed: Vec<u64>,
}

/// Runs many seeds in parallel: each thread takes the next seed until none is left, one of its runs returns an error,
/// or a signal stops all. Runs without violations are only counted. Returns false if a seed has a violation.
fn run_seeds(arguments: &Arguments, seeds: u64, options: &PlanOptions) -> Result<bool, Failure> {
    let threads = match arguments.threads {
        Some(0) => return Err("--threads 0: at least 1 is needed".into()),
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    if seeds == 0 {
        return Err("--soak 0: at least 1 seed is needed".into());
    }
    if arguments.nodes.as_deref() == Some("process") {
        return Err("--nodes process: several seeds run only in memory; for processes give --faults and one --seed".into());
    }
    let (began, next, sum) = (Instant::now(), AtomicU64::new(0), Mutex::new(Sum::default()));
    let stop = process::stop_on_signals()?;
    let work = || -> Result<(), String> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= seeds || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let plan = Plan::draw(arguments.seed.wrapping_add(index), options)?;
            let result = in_memory(&plan, &stop);
            if result.is_err() && stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let outcome = result.map_err(|error| {
                format!("seed {}: {error}; repeat with: wedjat-testbed lockstep {plan}", plan.seed)
            })?;
            print_violation(&plan, &outcome, "");
            let mut sum = sum.lock().map_err(|_| "another thread panicked")?;
            sum.seeds += 1;
            sum.tasks += outcome.tasks;
            sum.answered += outcome.answered;
            sum.refused += outcome.refused;
            sum.lost += outcome.lost.values().sum::<u64>();
            sum.turns += outcome.turns;
            if !outcome.violations.is_empty() {
                sum.failed.push(plan.seed);
            }
        }
    };
    let joined: Result<Vec<()>, String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("a run panicked".to_owned()))
        };
        threads.into_iter().map(join).collect()
    });
    let Sum { seeds, tasks, answered, refused, lost, turns, mut failed } =
        sum.into_inner().map_err(|_| "a run panicked")?;
    failed.sort_unstable();
    let mut out = std::io::stdout().lock();
    let timing = if arguments.timing == "yes" {
        format!(" in {:.1} s", began.elapsed().as_secs_f64())
    } else {
        String::new()
    };
    match arguments.format.as_str() {
        "json" => writeln!(
            out,
            "{}",
            json!({ "seeds": seeds, "tasks": tasks, "answered": answered, "refused": refused, "lost": lost, "turns": turns,
                "failed": failed })
        )?,
        _ => writeln!(
            out,
            "{seeds} seeds{timing}: {tasks} tasks, {answered} answered, {refused} refused, {lost} lost with a known cause; \
             {turns} turns; {} seeds with a violation",
            failed.len()
        )?,
    }
    // The totals are printed even if a run failed.
    joined?;
    if stop.load(Ordering::Relaxed) {
        return Err("stopped".into());
    }
    Ok(failed.is_empty())
}

/// Formats the outcome of one run as JSON.
fn as_json(plan: &Plan, outcome: &Outcome) -> Value {
    let by_class = |counts: &[u64; Class::COUNT]| -> Value {
        Class::NAMES
            .iter()
            .zip(counts)
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect()
    };
    // Packets that did not arrive, or that no client could use, by reason and class.
    let taken: Value = PacketEnd::NAMES
        .iter()
        .zip(&outcome.ledger.taken)
        .map(|(name, counts)| ((*name).to_owned(), by_class(counts)))
        .collect();
    let violations: Vec<_> = outcome
        .violations
        .iter()
        .map(|violation| json!({ "at_ns": violation.at_ns, "who": violation.node, "what": violation.description }))
        .collect();
    json!({
        "plan": plan.to_string(),
        "seed": plan.seed,
        "tasks": outcome.tasks,
        "answered": outcome.answered,
        "refused": outcome.refused,
        "lost": outcome.lost,
        "answered_again": outcome.again,
        "mean_ns": outcome.mean_ns,
        "node_delay_ns": plan.node_delay_ns,
        "wires": {
            "sent": by_class(&outcome.ledger.sent),
            "duplicated": by_class(&outcome.ledger.duplicated),
            "delivered": by_class(&outcome.ledger.delivered),
            "held_back": outcome.ledger.held_back,
            "taken": taken,
        },
        "drops": outcome.drops,
        "end_ns": outcome.end_ns,
        "turns": outcome.turns,
        "digest": outcome.digest,
        "violations": violations,
    })
}

/// Formats the outcome of one run as text.
fn as_text(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = format!("lockstep {plan}\n");
    let Outcome { tasks, answered, refused, again, mean_ns, .. } = outcome;
    text += &format!(
        "{tasks} tasks: {answered} answered in {:.1} us on average, {refused} refused, {} lost; {again} duplicate answers\n",
        mean_ns / 1e3,
        outcome.lost.values().sum::<u64>()
    );
    for (reason, count) in &outcome.lost {
        text += &format!("  lost: {count} {reason}\n");
    }
    for (node, drops) in &outcome.drops {
        let drops: Vec<_> =
            drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        text += &format!("  {node} dropped: {}\n", drops.join(", "));
    }
    let total = |counts: &[u64; Class::COUNT]| counts.iter().sum::<u64>();
    let ledger = &outcome.ledger;
    text += &format!(
        "wires: {} packets sent, {} duplicated",
        total(&ledger.sent),
        total(&ledger.duplicated)
    );
    text += &format!(", {} held back, {} delivered", ledger.held_back, total(&ledger.delivered));
    for (name, counts) in
        PacketEnd::NAMES.iter().zip(&ledger.taken).filter(|(_, counts)| total(counts) > 0)
    {
        text += &format!(", {} {name}", total(counts));
    }
    text + &format!(
        "\nnode delay {} ns per packet; {} turns until {} ns; digest {}",
        plan.node_delay_ns, outcome.turns, outcome.end_ns, outcome.digest
    )
}
