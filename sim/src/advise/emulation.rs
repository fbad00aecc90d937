//! Emulated pool whose node chooses the policy ([`Auto`]), in emulated time: for tests, and to measure the choices.
//!
//! The pool is a run of model `ct`. Captures are the records of its tasks, changed to what a capture of packets shows.
//! The workload may change during the run. A run repeats by its seed.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use wedjat_core::policy::{Entry, PolicySpec, fallback};
use wedjat_workload::grammar::parse_time_ns;
use wedjat_workload::service::Service;

use super::auto::{Auto, CaptureRequest, Decision, Kind, Step};
use super::capture::CapturedTasks;
use super::conditions::{ConditionArgs, Conditions};
use super::{Arguments, advise_under};
use crate::candidates::eligible_policies;
use crate::ct::{Config, DispatcherKind, Policies, Sim};
use crate::lists::split;
use crate::script::{self, Action};
use crate::stats::Observer;

/// Change of the workload.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadChange {
    /// Another load, as a fraction of the capacity at the start, or other speeds of workers.
    Script(Action),
    /// Other service times. The rate of tasks stays.
    Service(Service),
    /// Another number of leaves that send tasks to the workers. The rate of all tasks stays.
    Leaves(usize),
}

/// Timed change of the workload: `60s load 0.95`, `60s speed 0-4=0.5`, `60s shuffle` (of the speeds),
/// `60s service exp(2ms)` or `60s leaves 8`.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedChange {
    /// Time since the start.
    pub at: Duration,
    /// Change.
    pub change: WorkloadChange,
}

impl TimedChange {
    /// Parses a change of a pool with this number of workers.
    ///
    /// # Errors
    /// The fault and the allowed values.
    pub fn parse(text: &str, workers: usize) -> Result<Self, String> {
        let mut words = text.trim().splitn(3, char::is_whitespace);
        let time = words.next().unwrap_or_default();
        let change =
            match (words.next(), words.next().map(str::trim)) {
                (Some("service"), Some(value)) => Service::from_str(value)
                    .map(WorkloadChange::Service)
                    .map_err(|error| format!("`{text}`: {error}"))?,
                (Some("leaves"), Some(value)) => {
                    let leaves = value.parse().ok().filter(|leaves| (1..=64).contains(leaves));
                    WorkloadChange::Leaves(leaves.ok_or_else(|| {
                        format!("`{text}`: `{value}` is not a number from 1 to 64")
                    })?)
                }
                _ => WorkloadChange::Script(script::parse_at(text, workers)?.action),
            };
        let at_ns = parse_time_ns(time).map_err(|error| format!("`{text}`: {error}"))?;
        Ok(Self { at: Duration::from_nanos(at_ns as u64), change })
    }
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// Options of the choices: conditions at the start, objective, policies and tasks. The running policy is the first
    /// one; by default the fallback.
    pub arguments: Arguments,
    /// Changes of the workload, in order of time.
    pub changes: Vec<TimedChange>,
    /// Length.
    pub length: Duration,
    /// Seed of the pool's tasks.
    pub seed: u64,
    /// Clock of the CPU time of choices.
    pub clock: fn() -> Duration,
}

/// Decision of a run.
#[derive(Clone, Debug)]
pub struct TimedDecision {
    /// Time since the start.
    pub at: Duration,
    /// Decision.
    pub decision: Decision,
    /// Policy that runs after it.
    pub running: String,
    /// CPU time of the choice, which is mostly that of its simulations.
    pub cpu: Duration,
}

impl fmt::Display for TimedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:6.1} s  {:<12}  {}", self.at.as_secs_f64(), self.running, self.decision)
    }
}

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct EmulationOutcome {
    /// Decisions in order.
    pub decisions: Vec<TimedDecision>,
    /// Number of tasks.
    pub tasks: u64,
    /// Number of tasks that no worker has finished after the end of the arrivals.
    pub lost: u64,
    /// Policy at the end.
    pub running: String,
}

/// Number of tasks of the pool, which is never reached.
const TASKS: u64 = 1 << 40;
/// Ticks per mean service time.
const UNIT_TICKS: f64 = 1e9;

impl Emulation {
    /// Runs the pool.
    ///
    /// # Errors
    /// An invalid option, or a change that the pool cannot have.
    pub fn run(&self) -> Result<EmulationOutcome, String> {
        self.check_policies()?;
        let conditions = Conditions::new(&self.arguments.conditions)?;
        let first = self.arguments.running.clone();
        let mut running = first.unwrap_or_else(|| fallback().entry().name.to_owned());
        let config = self.config(conditions.model)?;
        // The model takes its rules of reports and probes from the policy of `config`, the fallback: those of a leaf.
        // They stay when the policy changes.
        let mut sim = Sim::new(&config, |knowledge| Policies::new(&config, knowledge))?;
        sim.dispatchers_mut().change(&policy(&running)?);
        if let DispatcherKind::Leaves = config.kind {
            sim.set_active_dispatchers(self.first_leaves());
        }
        let mut pool = EmulatedPool { emulation: self, config: &config, sim, changes: 0 };
        let (mut auto, mut decisions) = (Auto::new(Duration::ZERO), Vec::new());
        let mut now = Duration::ZERO;
        loop {
            let capture = auto.next_capture(now);
            now = capture.at + capture.longest();
            if now > self.length {
                break;
            }
            let conditions = pool.capture(capture);
            let started = (self.clock)();
            let decision = match auto.observe(now, capture, conditions) {
                Step::Wait => continue,
                Step::Decided(decision) => decision,
                Step::Simulate(conditions) => {
                    let policies = conditions.eligible_policies();
                    let arguments = self.choice(decisions.len() as u64, &running, policies);
                    let report = advise_under(&arguments, *conditions, &|| true);
                    auto.decide(now, report.as_ref().map_err(String::clone))
                }
            };
            if let Some(name) = &decision.policy {
                running.clone_from(name);
                pool.sim.dispatchers_mut().change(&policy(name)?);
            }
            let cpu = (self.clock)().saturating_sub(started);
            let running = running.clone();
            decisions.push(TimedDecision { at: now, decision, running, cpu });
        }
        pool.advance(self.length);
        pool.sim.end_arrivals();
        let Ok(()) = pool.sim.run();
        let (tasks, lost) = pool.sim.tasks();
        Ok(EmulationOutcome { decisions, tasks, lost, running })
    }

    /// Refuses policies that a node does not choose itself. The model would give them other reports than a leaf.
    fn check_policies(&self) -> Result<(), String> {
        let Arguments { policy, running, .. } = &self.arguments;
        for (flag, text) in [("policy", policy), ("running", running)] {
            let names = text.as_deref().map(split).unwrap_or_default();
            // The parser of policies refuses unknown names with a better reason.
            let is_refused =
                |name: &&str| Entry::named(name).is_some_and(|entry| !entry.is_eligible());
            if let Some(name) = names.into_iter().find(is_refused) {
                let allowed = eligible_policies().collect::<Vec<_>>().join(", ");
                return Err(format!(
                    "--{flag} {name}: a pool under auto never has it; allowed: {allowed}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the configuration of the pool.
    fn config(&self, model: Config) -> Result<Config, String> {
        let most = self.changes.iter().filter_map(|timed| match timed.change {
            WorkloadChange::Leaves(leaves) => Some(leaves),
            _ => None,
        });
        let most = most.max();
        let script = self.changes.iter().filter_map(|timed| match &timed.change {
            WorkloadChange::Script(action) => {
                Some(script::Step { at_ns: timed.at.as_nanos() as f64, action: action.clone() })
            }
            _ => None,
        });
        let kind = if most.is_some() { DispatcherKind::Leaves } else { model.kind };
        Ok(Config {
            policy: fallback(),
            dispatchers: most.unwrap_or(1).max(model.dispatchers),
            kind,
            script: script.collect(),
            tasks: TASKS,
            warmup: 0.0,
            measures_classes: true,
            seed: self.seed,
            observer: Observer { records_tasks: true, ..Observer::hidden() },
            ..model
        })
    }

    /// Returns the number of leaves, or cores of one leaf, at the start.
    fn first_leaves(&self) -> usize {
        let leaves = self.arguments.conditions.dispatchers.as_ref();
        leaves.and_then(|leaves| leaves.parse().ok()).unwrap_or(1)
    }

    /// Returns the options of a choice. Its round `r` simulates with the seed plus `r`. With 16 between choices, no two
    /// share a seed.
    fn choice(&self, number: u64, running: &str, policies: String) -> Arguments {
        Arguments {
            running: Some(running.to_owned()),
            policy: self.arguments.policy.clone().or(Some(policies)),
            seed: Some((self.seed + 16 * (number + 1)).to_string()),
            ..self.arguments.clone()
        }
    }
}

/// Parses a policy.
fn policy(name: &str) -> Result<PolicySpec, String> {
    name.parse().map_err(|error| format!("{error}"))
}

/// Running pool.
struct EmulatedPool<'a> {
    emulation: &'a Emulation,
    config: &'a Config,
    sim: Sim<'a, Policies>,
    /// Number of changes of the workload so far, including those that the model's script makes.
    changes: usize,
}

impl EmulatedPool<'_> {
    /// Runs the pool until this time, with all changes of the workload.
    fn advance(&mut self, end: Duration) {
        while let Some(timed) = self.emulation.changes.get(self.changes).filter(|it| it.at <= end) {
            self.run_until(timed.at);
            match &timed.change {
                WorkloadChange::Script(_) => {} // the model makes it
                WorkloadChange::Service(service) => self.sim.set_service(service.clone()),
                WorkloadChange::Leaves(leaves) => self.sim.set_active_dispatchers(*leaves),
            }
            self.changes += 1;
        }
        self.run_until(end);
    }

    /// Runs the pool until this time, without further changes.
    fn run_until(&mut self, end: Duration) {
        let unit_ns = self.config.service.mean_ns();
        let Ok(()) = self.sim.run_until((end.as_nanos() as f64 / unit_ns * UNIT_TICKS) as u64);
    }

    /// Returns the number of leaves, or cores of one leaf, that receive tasks now.
    fn dispatchers(&self) -> usize {
        let changes = self.emulation.changes[..self.changes].iter().rev();
        let mut leaves = changes.filter_map(|timed| match timed.change {
            WorkloadChange::Leaves(leaves) => Some(leaves),
            _ => None,
        });
        leaves.next().unwrap_or_else(|| self.emulation.first_leaves())
    }

    /// Measures the conditions of the pool by a capture.
    fn capture(&mut self, capture: CaptureRequest) -> Result<Conditions, String> {
        self.advance(capture.at);
        drop(self.sim.take_ended());
        let end = capture.at + capture.longest();
        self.advance(end);
        let mut tasks = self.sim.take_ended();
        let start_ps = capture.at.as_nanos() as u64 * 1000;
        tasks.retain(|task| task.scheduled_ps >= start_ps);
        // A full capture ends early.
        let mut end_ns = end.as_nanos() as u64;
        if tasks.len() as u64 > capture.tasks_max() {
            tasks.sort_by_key(|task| task.scheduled_ps);
            tasks.truncate(capture.tasks_max() as usize);
            end_ns = tasks.last().map_or(end_ns, |task| task.scheduled_ps / 1000);
        }
        let speeds: Vec<_> = self.sim.speeds().collect();
        let delay_ns = self.config.delay_ns;
        let tasks = CapturedTasks::simulated(&tasks, &speeds, delay_ns, end_ns);
        let arguments = ConditionArgs {
            workers: Some(speeds.len().to_string()),
            dispatchers: Some(self.dispatchers().to_string()),
            dispatchers_as: Some(self.config.kind.name().to_owned()),
            ..ConditionArgs::default()
        };
        Conditions::simulated(&arguments, tasks)
    }
}

/// Prints the decisions of an emulated pool, and its tasks. Returns false if a task was lost.
///
/// # Errors
/// An invalid option, with the reason and the fix, or a failure to write.
pub fn run(emulation: &Emulation, json: bool, out: &mut impl Write) -> Result<bool, String> {
    let outcome = emulation.run()?;
    let EmulationOutcome { decisions, tasks, lost, running } = &outcome;
    let text = if json {
        let decision = |one: &TimedDecision| {
            serde_json::json!({
                "at_s": one.at.as_secs_f64(),
                "running": one.running,
                "decision": one.decision,
                "cpu_s": one.cpu.as_secs_f64(),
            })
        };
        let decisions: Vec<_> = decisions.iter().map(decision).collect();
        let report = serde_json::json!({
            "decisions": decisions, "tasks": tasks, "lost": lost, "running": running,
            "switches": outcome.switches_after(Duration::ZERO),
        });
        format!("{report}\n")
    } else {
        let lines: String = decisions.iter().map(|one| format!("{one}\n")).collect();
        format!("{lines}{running} runs at the end, after {tasks} tasks; {lost} lost\n")
    };
    out.write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
    Ok(*lost == 0)
}

impl EmulationOutcome {
    /// Returns the number of switches after this time.
    #[must_use]
    pub fn switches_after(&self, time: Duration) -> usize {
        let is_switch = |one: &&TimedDecision| {
            one.at > time && matches!(one.decision.kind, Kind::Switch | Kind::Fallback)
        };
        self.decisions.iter().filter(is_switch).count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::advise;
    use super::*;

    /// Returns the options of a pool of 16 workers.
    fn pool(load: &str, service: &str) -> Arguments {
        let text = |text: &str| Some(text.to_owned());
        let conditions = ConditionArgs {
            workers: text("16"),
            load: text(load),
            service: text(service),
            delay: text("100us"),
            ..ConditionArgs::default()
        };
        let policy = text("eft,jsq,random,cfcfs,sed,horus");
        Arguments {
            conditions,
            policy,
            tasks: text("10000"),
            threads: text("1"),
            ..Arguments::default()
        }
    }

    /// Runs a pool that starts under `random`, and changes after 40 s. Checks that it leaves `random` within 30 s, and
    /// loses no task. Its policy 30 s after the change must have a p99 near the best under the conditions `after`.
    fn check(load: &str, change: &str, after: Arguments) {
        let change = TimedChange::parse(&format!("40s {change}"), 16).unwrap();
        let arguments = Arguments { running: Some("random".to_owned()), ..pool(load, "exp(5ms)") };
        let emulation = Emulation {
            arguments,
            changes: vec![change],
            length: Duration::from_secs(70),
            seed: 1,
            clock: || Duration::ZERO,
        };
        let outcome = emulation.run().unwrap();
        let text: Vec<_> = outcome.decisions.iter().map(ToString::to_string).collect();
        let text = text.join("\n");
        assert!(outcome.tasks > 10_000 && outcome.lost == 0, "{} {text}", outcome.lost);
        let left = outcome.decisions.iter().find(|one| one.running != "random");
        assert!(left.is_some_and(|one| one.at <= Duration::from_secs(30)), "{text}");
        let running = outcome.running;
        let after =
            Arguments { running: Some(running.clone()), tasks: Some("40000".to_owned()), ..after };
        let report = advise(&after).unwrap();
        let gain = report.advice.gain.expect("the policy at the end is stable");
        assert!(gain < 0.1, "{running} is worse by {gain}:\n{text}\n{}", report.text());
    }

    /// `sed` without the speeds has a p99 several times the predicted one.
    #[test]
    fn new_policy_knows_the_speeds() {
        let mut arguments = pool("0.9", "exp(5ms)");
        arguments.conditions.speeds = Some("8x1,8x10".to_owned());
        arguments.conditions.delay = None;
        let sed = Some("sed".to_owned());
        let arguments = Arguments { running: sed.clone(), policy: sed, ..arguments };
        let length = Duration::from_secs(30);
        let clock = || Duration::ZERO;
        let outcome =
            Emulation { arguments, changes: Vec::new(), length, seed: 1, clock }.run().unwrap();
        let text: Vec<_> = outcome.decisions.iter().map(ToString::to_string).collect();
        assert!(outcome.running == "sed" && text.len() > 2, "{text:?}");
    }

    #[test]
    fn pool_follows_the_load() {
        check("0.5", "load 0.95", pool("0.95", "exp(5ms)"));
    }

    #[test]
    fn pool_follows_the_service_times() {
        let bimodal = "mix(0.9*exp(1ms),0.1*exp(41ms))";
        check("0.7", &format!("service {bimodal}"), pool("0.7", bimodal));
    }

    #[test]
    fn pool_follows_the_speeds() {
        // The capacity falls to 13.5 of 16 workers.
        let mut after = pool("0.7111", "exp(5.926ms)");
        after.conditions.speeds = Some("5x0.5,11x1".to_owned());
        check("0.6", "speed 0-4=0.5", after);
    }

    #[test]
    fn pool_follows_the_number_of_leaves() {
        let mut after = pool("0.7", "exp(5ms)");
        after.conditions.dispatchers = Some("8".to_owned());
        after.conditions.dispatchers_as = Some("leaves".to_owned());
        check("0.7", "leaves 8", after);
    }

    #[test]
    fn runs_repeat_by_seed() {
        let run = |seed| {
            let emulation = Emulation {
                arguments: pool("0.8", "exp(5ms)"),
                changes: Vec::new(),
                length: Duration::from_secs(20),
                seed,
                clock: || Duration::ZERO,
            };
            let outcome = emulation.run().unwrap();
            let decisions: Vec<_> = outcome.decisions.iter().map(ToString::to_string).collect();
            (outcome.tasks, decisions)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1).0, run(2).0);
    }

    #[test]
    fn policies_that_auto_never_chooses_are_refused() {
        let text = |text: &str| Some(text.to_owned());
        for (arguments, part) in [
            (Arguments { policy: text("jsq,jiq"), ..pool("0.5", "exp(5ms)") }, "--policy jiq: "),
            (Arguments { running: text("jiq"), ..pool("0.5", "exp(5ms)") }, "--running jiq: "),
        ] {
            let emulation = Emulation {
                arguments,
                changes: Vec::new(),
                length: Duration::from_secs(20),
                seed: 1,
                clock: || Duration::ZERO,
            };
            let error = emulation.run().unwrap_err();
            assert!(error.contains(part) && error.contains("allowed: "), "{error}");
        }
    }

    #[test]
    fn wrong_changes_are_named() {
        for (text, says) in [
            ("60s leaves 0", "`0` is not a number from 1 to 64"),
            ("60s service exp", "60s service exp"),
            ("60s load 3", "`3` is not a number"),
            ("60 load 0.5", "`60 load 0.5`"),
            ("60s speed 0-99=0.5", "the workers are 0 to 15"),
        ] {
            let error = TimedChange::parse(text, 16).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
