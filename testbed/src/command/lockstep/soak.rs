//! Runs of several nodes with faults: one that is looked at, or many seeds of which only those that violate something are.

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use wedjat_pktgen::grammar::parse_time_ns;
use wedjat_testbed::lockstep::LockstepError;
use wedjat_testbed::lockstep::system::packets::{Class, Taken};
use wedjat_testbed::lockstep::system::{self, Given, InMemory, Outcome, Plan};

use super::{Arguments, Failure};

/// Runs what the flags ask for, if that is a run with faults; false when something was violated.
pub fn run(arguments: &Arguments) -> Result<Option<bool>, Failure> {
    if arguments.soak.is_none() && arguments.faults.is_none() {
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
        return match flags.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(format!(
                "{flag} is for runs of several nodes; give --faults as well, 'none' for a run without any"
            )
            .into()),
            None => Ok(None),
        };
    }
    let given = given(arguments)?;
    match arguments.soak {
        None => one(arguments, &Plan::draw(arguments.seed, &given)?).map(Some),
        Some(seeds) => many(arguments, seeds, &given).map(Some),
    }
}

/// What the flags say of a plan.
fn given(arguments: &Arguments) -> Result<Given, Failure> {
    let alone = [
        ("--workers", arguments.workers.is_some()),
        ("--speeds", arguments.speeds.is_some()),
        ("--arrivals", arguments.arrivals.is_some()),
        ("--hops", arguments.hops.is_some()),
        ("--hop-dist", arguments.hop_dist.is_some()),
        ("--warmup", arguments.warmup.is_some()),
        ("--loss", arguments.loss.is_some()),
        ("--compare", arguments.compare),
    ];
    if let Some((flag, _)) = alone.into_iter().find(|(_, given)| *given) {
        let text = format!(
            "{flag} is for runs of one leaf that the simulator has, too; leave it out with --faults \
             (--workers-each and loss= in --faults are what there is instead)"
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
    let number = |flag: &str, text: &Option<String>| -> Result<Option<f64>, Failure> {
        let number = text.as_ref().map(|text| {
            text.parse::<f64>().map_err(|_| {
                format!("{flag} {text}: one number is needed with --faults, as in {flag} 100")
            })
        });
        Ok(number.transpose()?)
    };
    Ok(Given {
        spines: arguments.spines,
        spine: policy("--spine-policy", &arguments.spine_policy)?,
        leaves: arguments.leaves,
        agents: arguments.agents,
        workers: arguments.workers_each,
        leaf: policy("--policy", &arguments.policy)?,
        agent: policy("--agent-policy", &arguments.agent_policy)?,
        queue: arguments.queue,
        refuse: arguments.overflow.as_ref().map(|overflow| overflow == "refuse"),
        service: arguments.service.clone(),
        load: number("--load", &arguments.load)?,
        tasks: number("--tasks", &arguments.tasks)?.map(|tasks| tasks as u64),
        hop_ns: time("--hop", &arguments.hop)?,
        node_delay_ns: time("--node-delay", &arguments.node_delay)?,
        faults: arguments.faults.clone(),
        is_told: arguments.controller,
    })
}

/// One run, of which all is told.
fn one(arguments: &Arguments, plan: &Plan) -> Result<bool, Failure> {
    let outcome = match arguments.nodes.as_deref() {
        Some("process") if plan.is_told => {
            return Err("--controller: nodes are in this process then; leave --nodes out".into());
        }
        Some("process") => in_processes(arguments, plan)?,
        _ => in_memory(plan, &AtomicBool::default())?,
    };
    let mut out = std::io::stdout().lock();
    match arguments.format.as_str() {
        "json" => writeln!(out, "{}", as_json(plan, &outcome))?,
        "csv" => return Err("--format csv: runs with faults are told as text or json".into()),
        _ => writeln!(out, "{}", as_text(plan, &outcome))?,
    }
    tell(plan, &outcome);
    Ok(outcome.violations.is_empty())
}

#[cfg(feature = "dpdk")]
fn in_processes(arguments: &Arguments, plan: &Plan) -> Result<Outcome, Failure> {
    let place =
        crate::command::leaves::Placement { leaf: arguments.leaf_core, conductor: arguments.core };
    super::nodes::run(plan, arguments.leaf.as_deref(), place)
}

#[cfg(not(feature = "dpdk"))]
fn in_processes(_: &Arguments, _: &Plan) -> Result<Outcome, Failure> {
    crate::command::without_dpdk()
}

#[cfg(feature = "control")]
fn in_memory(plan: &Plan, stop: &AtomicBool) -> Result<Outcome, LockstepError> {
    match plan.is_told {
        true => {
            let mut maker = system::told::drawn(plan).map_err(LockstepError::Arguments)?;
            system::run(plan, &mut maker, stop)
        }
        false => system::run(plan, &mut InMemory, stop),
    }
}

#[cfg(not(feature = "control"))]
fn in_memory(plan: &Plan, stop: &AtomicBool) -> Result<Outcome, LockstepError> {
    match plan.is_told {
        true => Err(LockstepError::Arguments(
            "--controller: built without the feature `control`".to_owned(),
        )),
        false => system::run(plan, &mut InMemory, stop),
    }
}

/// Says what was violated, and how to see it again.
fn tell(plan: &Plan, outcome: &Outcome) {
    for violation in &outcome.violations {
        log::error!(
            "seed {}: VIOLATED at {} ns: {}: {}",
            plan.seed,
            violation.at_ns,
            violation.who,
            violation.what
        );
    }
    if !outcome.violations.is_empty() {
        log::error!("seed {}: again with: wedjat-testbed lockstep {plan}", plan.seed);
    }
}

/// What many seeds did together.
#[derive(Default)]
struct Sum {
    seeds: u64,
    tasks: u64,
    answered: u64,
    refused: u64,
    lost: u64,
    turns: u64,
    failed: Vec<u64>,
}

/// Many runs, side by side; those that violate nothing are only counted.
fn many(arguments: &Arguments, seeds: u64, given: &Given) -> Result<bool, Failure> {
    let threads = match arguments.threads {
        Some(0) => return Err("--threads 0: one at least is needed".into()),
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    if seeds == 0 {
        return Err("--soak 0: one seed at least is needed".into());
    }
    if arguments.nodes.as_deref() == Some("process") {
        return Err("--nodes process: many seeds are run in memory; give --faults and one --seed for processes".into());
    }
    let (began, next, sum) = (Instant::now(), AtomicU64::new(0), Mutex::new(Sum::default()));
    let stop = crate::command::signals::stop_on_signals()?;
    let work = || -> Result<(), String> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= seeds || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let plan = Plan::draw(arguments.seed.wrapping_add(at), given)?;
            let ran = in_memory(&plan, &stop);
            if ran.is_err() && stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let outcome = ran.map_err(|error| {
                format!("seed {}: {error}; again with: wedjat-testbed lockstep {plan}", plan.seed)
            })?;
            tell(&plan, &outcome);
            let mut sum = sum.lock().map_err(|_| "another thread has panicked")?;
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
    let ended: Result<Vec<()>, String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err("a run has panicked".to_owned()))
        };
        threads.into_iter().map(join).collect()
    });
    let Sum { seeds, tasks, answered, refused, lost, turns, mut failed } =
        sum.into_inner().map_err(|_| "a run has panicked")?;
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
            "{seeds} seeds{timing}: {tasks} tasks, {answered} answered, {refused} refused, {lost} lost for a reason; {turns} \
             turns; {} seeds with a violation",
            failed.len()
        )?,
    }
    ended?;
    if stop.load(Ordering::Relaxed) {
        return Err("stopped".into());
    }
    Ok(failed.is_empty())
}

fn as_json(plan: &Plan, outcome: &Outcome) -> Value {
    let by_class = |counts: &[u64; Class::COUNT]| -> Value {
        Class::NAMES
            .iter()
            .zip(counts)
            .map(|(name, count)| ((*name).to_owned(), json!(count)))
            .collect()
    };
    let taken: Value = Taken::NAMES
        .iter()
        .zip(&outcome.book.taken)
        .map(|(name, counts)| ((*name).to_owned(), by_class(counts)))
        .collect();
    let violations: Vec<_> = outcome
        .violations
        .iter()
        .map(|violation| json!({ "at_ns": violation.at_ns, "who": violation.who, "what": violation.what }))
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
            "sent": by_class(&outcome.book.sent),
            "duplicated": by_class(&outcome.book.duplicated),
            "delivered": by_class(&outcome.book.delivered),
            "held_back": outcome.book.held_back,
            "taken": taken,
        },
        "drops": outcome.drops,
        "end_ns": outcome.end_ns,
        "turns": outcome.turns,
        "digest": outcome.digest,
        "violations": violations,
    })
}

fn as_text(plan: &Plan, outcome: &Outcome) -> String {
    let mut text = format!("lockstep {plan}\n");
    let Outcome { tasks, answered, refused, again, mean_ns, .. } = outcome;
    text += &format!(
        "{tasks} tasks: {answered} answered in {:.1} us on average, {refused} refused, {} lost; {again} answers came again\n",
        mean_ns / 1e3,
        outcome.lost.values().sum::<u64>()
    );
    for (reason, count) in &outcome.lost {
        text += &format!("  lost: {count} {reason}\n");
    }
    for (who, drops) in &outcome.drops {
        let drops: Vec<_> =
            drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        text += &format!("  {who} dropped: {}\n", drops.join(", "));
    }
    let all = |counts: &[u64; Class::COUNT]| counts.iter().sum::<u64>();
    let book = &outcome.book;
    text +=
        &format!("wires: {} packets sent, {} duplicated", all(&book.sent), all(&book.duplicated));
    text += &format!(", {} held back, {} delivered", book.held_back, all(&book.delivered));
    for (name, counts) in Taken::NAMES.iter().zip(&book.taken).filter(|(_, counts)| all(counts) > 0)
    {
        text += &format!(", {} {name}", all(counts));
    }
    text + &format!(
        "\na node's own work on a packet takes {} ns; {} turns until {} ns; digest {}",
        plan.node_delay_ns, outcome.turns, outcome.end_ns, outcome.digest
    )
}
