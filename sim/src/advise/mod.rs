//! `wedjat-testbed advise`: simulates a pool under all policies and recommends one. `wedjat advise` calls the same code
//! for a running node.
//!
//! A pool is a set of workers for one kind of task. Its policy chooses a worker for each task. The simulator runs the
//! leaf's own policies in its model `ct` (continuous time). The conditions come from options, from a log of tasks, or
//! from a capture of a leaf's packets ([`conditions`]). Successive halving ([`halving`]) finds the best policy for the
//! objective ([`objective`]). A policy is unstable if its queues grow during the whole run. The advice never recommends
//! a policy that is unstable in any round ([`decision`]).

pub mod auto;
pub mod capture;
pub mod conditions;
pub mod decision;
pub mod emulation;
pub mod halving;
pub mod measure;
pub mod node;
pub mod objective;
pub mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use wedjat_core::policy::{Objective, PolicySpec};
use wedjat_core::state::files::ReportFile;
use wedjat_workload::results::page_file;

use crate::candidates::worker_policies;
use crate::ct;
use crate::lists::list;
use crate::model::{Cell, SETTLED};
use crate::{MayRun, Row, SimArgs, plan, rows_while};
use conditions::{ConditionArgs, Conditions};
use decision::{Advice, Fit};
use halving::{Round, Standing, halve, rounds};
use objective::Prediction;
use report::Report;

/// End of the `--help` text.
pub const EXAMPLE: &str = "Examples:
  wedjat-testbed advise --workers 32 --load .8 --service 'exp(100us)' --delay 10us
  wedjat-testbed advise --workers 32 --load .9 --service 'mix(0.9*exp(50us),0.1*exp(500us))' --objective 'slo(class=1, us=400)'
  wedjat-testbed advise tasks.csv --delay 5us --running random --format json
Exit status: 0, or 1 if no policy is stable, or 2 if an option or a file is invalid.";

/// Arguments of `advise`.
#[derive(Args, Clone, Debug, Default)]
pub struct Arguments {
    /// Conditions of the pool
    #[command(flatten)]
    pub conditions: ConditionArgs,
    /// Figure to minimise: mean, p99, p99.9, slowdown-p99.9, or slo(class=CLASS, us=MICROSECONDS), which wants 99% of a
    /// class's tasks within a time, and then the lowest mean [default: p99]
    #[arg(long)]
    pub objective: Option<String>,
    /// Policy that runs now [default: that of the log, or of the node]
    #[arg(long)]
    pub running: Option<String>,
    /// Policies to compare [default: all whose members are workers]
    #[arg(long)]
    pub policy: Option<String>,
    /// Tasks of the last round's simulations; the first three rounds have a tenth, a fifth and two fifths [default:
    /// 100000, or more, so that a run lasts 300 mean service times]
    #[arg(long)]
    pub tasks: Option<String>,
    /// Seed of the first round; each round adds 1 [default: 1]
    #[arg(long)]
    pub seed: Option<String>,
    /// Threads [default: one per CPU]
    #[arg(long)]
    pub threads: Option<String>,
    /// Write the advice as an HTML page to this file, or as index.html to this folder
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Prints the advice. Returns false if no policy is stable. A reader that closes the pipe early causes no error.
///
/// # Errors
/// An invalid option or file, with the reason and the fix, or a failure to write.
pub fn run(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<bool, String> {
    let html = page_of(arguments)?;
    let report = advise(arguments)?;
    write_page(&report, html.as_deref())?;
    let text = if json { format!("{}\n", report.json()?) } else { report.text() };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(report.advice.best.is_some()),
    }
}

/// Returns the file of the page that the arguments ask for. Checks that it can be written.
///
/// # Errors
/// If it cannot.
pub fn page_of(arguments: &Arguments) -> Result<Option<PathBuf>, String> {
    arguments.html.as_deref().map(page_file).transpose()
}

/// Writes the page of a report, if there is a file for it.
///
/// # Errors
/// If the chart cannot be drawn, or the file cannot be written.
pub fn write_page(report: &Report, file: Option<&Path>) -> Result<(), String> {
    match file {
        Some(path) => Ok(ReportFile::new("--html", path)?.write(report.page()?)?),
        None => Ok(()),
    }
}

/// Simulates all policies, compares them, and compares the running one with its measurement.
///
/// # Errors
/// An invalid option or file, with the reason and the fix.
pub fn advise(arguments: &Arguments) -> Result<Report, String> {
    advise_under(arguments, Conditions::new(&arguments.conditions)?, &|| true)
}

/// Like [`advise`], under conditions that are known already. Asks `may_simulate` before each simulation, and fails if
/// it returns false. A node limits the CPU time of its simulations by it.
///
/// # Errors
/// An invalid option, or a simulation that may not begin.
pub fn advise_under(
    arguments: &Arguments,
    conditions: Conditions,
    may_simulate: &MayRun<'_>,
) -> Result<Report, String> {
    let objective = arguments.objective.as_deref().unwrap_or("p99");
    let objective: Objective =
        objective.parse().map_err(|error| format!("--objective: {error}"))?;
    check_class(&objective, &conditions)?;
    let (candidates, running) = Candidate::all(arguments, &conditions)?;
    let rounds = rounds(last_round_tasks(arguments, &conditions.model)?);
    let simulation = Simulation {
        conditions: &conditions,
        candidates: &candidates,
        rounds: &rounds,
        seed: seed(arguments)?,
        threads: arguments.threads.clone(),
        measures_classes: matches!(objective, Objective::Slowdown | Objective::Slo { .. }),
        may_simulate,
    };
    let standings = halve(candidates.len(), running, &rounds, &objective, |policies, round| {
        simulation.predict(policies, round)
    })?;
    let fit = running.and_then(|running| fit(&conditions, &standings, running));
    let advice = Advice::new(&standings, running, &objective);
    let policies = candidates.into_iter().map(|candidate| candidate.name).collect();
    Ok(Report { conditions, objective, policies, standings, running, fit, advice })
}

/// Refuses an objective for a class without tasks.
fn check_class(objective: &Objective, conditions: &Conditions) -> Result<(), String> {
    let classes = conditions.classes();
    match objective {
        Objective::Slo { class, .. } if !classes.contains(class) => {
            let classes: Vec<_> = classes.iter().map(usize::to_string).collect();
            Err(format!(
                "--objective {objective}: no task has class {class}; the classes are {}",
                classes.join(", ")
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the number of tasks of a run in the last round: `--tasks`, or the usual number, or more for a large pool.
fn last_round_tasks(arguments: &Arguments, model: &ct::Config) -> Result<u64, String> {
    match &arguments.tasks {
        Some(text) => Ok(plan::integer("tasks", text, 1000..=1 << 40)? as u64),
        None => Ok(usual_tasks(model)),
    }
}

/// Returns the usual number of tasks of a run in the last round, or more for a large pool.
#[must_use]
pub fn usual_tasks(model: &ct::Config) -> u64 {
    // Number of tasks that arrive in `SETTLED` mean service times. A shorter run only shows the start-up phase.
    let settled = SETTLED * model.load * model.speeds.len() as f64;
    halving::USUAL_TASKS.max(settled.ceil() as u64)
}

/// Parses `--seed`.
///
/// # Errors
/// The allowed numbers.
pub fn seed(arguments: &Arguments) -> Result<u64, String> {
    match &arguments.seed {
        None => Ok(1),
        Some(text) => Ok(plan::integer("seed", text, 0..=usize::MAX)? as u64),
    }
}

/// A policy that takes part.
#[derive(Clone, Debug)]
struct Candidate {
    /// Name in the report, as the user or the catalogue writes it.
    name: String,
    /// Parsed name. Two candidates with equal ones are the same policy.
    spec: PolicySpec,
}

impl Candidate {
    /// Parses the name of a policy. `flag` is the option that an error names.
    fn parse(flag: &str, name: &str) -> Result<Self, String> {
        Ok(Self { name: name.to_owned(), spec: plan::server_policy(flag, name)? })
    }

    /// Returns all candidates, and the index of the running policy, which is one of them.
    fn all(
        arguments: &Arguments,
        conditions: &Conditions,
    ) -> Result<(Vec<Self>, Option<usize>), String> {
        let names: Vec<String> = match &arguments.policy {
            Some(text) => list("policy", text)?.into_iter().map(str::to_owned).collect(),
            None => {
                worker_policies().map(str::to_owned).chain(conditions.class_policies()).collect()
            }
        };
        let mut candidates: Vec<Self> = Vec::new();
        for name in names {
            add(&mut candidates, Self::parse("policy", &name)?);
        }
        let running = Self::running(arguments, conditions)?;
        let running = running.map(|running| add(&mut candidates, running));
        Ok((candidates, running))
    }

    /// Returns the running policy: `--running`, or that of the log, or that of the node. All that are known must agree.
    fn running(arguments: &Arguments, conditions: &Conditions) -> Result<Option<Self>, String> {
        let log = conditions.measured.as_ref().map(|log| log.subject.policy.as_str());
        let node = conditions.node.as_ref().map(|node| node.policy.as_str());
        let given = arguments.running.as_deref();
        let mut found: Option<(&str, Self)> = None;
        // Source and name of a policy that the simulator lacks.
        let mut unknown: Option<(&str, &str)> = None;
        let unclear = |(first, other): (&str, &str), (source, name): (&str, &str)| {
            format!(
                "the running policy is unclear: {first} has {other}, and {source} has {name}; omit --running, or give files of one pool"
            )
        };
        for (source, name) in [("--running", given), ("the log", log), ("the node", node)] {
            let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
            match (Self::parse("running", name), &found) {
                (Ok(candidate), None) => match unknown {
                    None => found = Some((source, candidate)),
                    Some(first) => return Err(unclear(first, (source, name))),
                },
                // A further source agrees with the first one.
                (Ok(candidate), Some((_, found))) if candidate.spec == found.spec => {}
                (Err(error), None) if source == "--running" => return Err(error),
                // A log or node may have a policy that the simulator lacks. The advice does not need it.
                (Err(_), None) => {
                    log::warn!(
                        "{source} has the policy {name}, which the model ct does not have; nothing is compared with it"
                    );
                    unknown = Some((source, name));
                }
                (_, Some((first, Self { name: other, .. }))) => {
                    return Err(unclear((*first, other.as_str()), (source, name)));
                }
            }
        }
        Ok(found.map(|(_, candidate)| candidate))
    }
}

/// Adds a candidate to a list, unless the list has its policy. Returns its index.
fn add(candidates: &mut Vec<Candidate>, candidate: Candidate) -> usize {
    let found = candidates.iter().position(|other| other.spec == candidate.spec);
    found.unwrap_or_else(|| {
        candidates.push(candidate);
        candidates.len() - 1
    })
}

/// Inputs of the simulations of all rounds.
struct Simulation<'a> {
    conditions: &'a Conditions,
    /// All policies. The rounds name a policy by its index here.
    candidates: &'a [Candidate],
    rounds: &'a [Round],
    /// Seed of the first round.
    seed: u64,
    /// Value of `--threads`; `None` for one per CPU.
    threads: Option<String>,
    /// True if the objective needs slowdowns, or response times by class.
    measures_classes: bool,
    /// Permission for the next simulations.
    may_simulate: &'a MayRun<'a>,
}

impl Simulation<'_> {
    /// Runs one round of these policies in parallel. Returns their predictions in the same order.
    fn predict(&self, policies: &[usize], round: usize) -> Result<Vec<Prediction>, String> {
        let cells = policies.iter().map(|&policy| self.cell(&self.candidates[policy], round));
        let cells = cells.collect::<Result<_, _>>()?;
        let seed = self.seed.wrapping_add(round as u64).to_string();
        let threads = self.threads.clone();
        let flags = SimArgs { seed: Some(seed), threads, ..SimArgs::default() };
        let rows = rows_while(cells, &flags, self.may_simulate)?;
        Ok(rows.iter().map(|row| self.prediction(row)).collect())
    }

    /// Returns the run of a policy in a round as a cell, the simulator's input for one row of results.
    fn cell(&self, candidate: &Candidate, round: usize) -> Result<Cell, String> {
        let config = ct::Config {
            policy: candidate.spec.clone(),
            tasks: self.rounds[round].tasks,
            measures_classes: self.measures_classes,
            ..self.conditions.model.clone()
        };
        let cell = Cell::of_policy(&candidate.name, config);
        cell.model.check()?;
        Ok(cell)
    }

    /// Converts a row of results, in mean service times, to a prediction in microseconds. Adds the delay of the answer
    /// to response times if the measured ones include it. The delay changes neither widths of intervals nor slowdowns.
    fn prediction(&self, row: &Row) -> Prediction {
        let (unit, answer) = (self.conditions.service_us(), self.conditions.answer_us());
        let us = |value: f64| value * unit + answer;
        let class_p99 = row.class_p99.iter();
        Prediction {
            mean_us: us(row.mean),
            mean_ci95_us: row.mean_ci95 * unit,
            p99_us: us(row.p99),
            p99_ci95_us: row.p99_ci95 * unit,
            p999_us: us(row.p999),
            slowdown_p999: row.slowdown_p999.unwrap_or(f64::NAN),
            class_p99_us: class_p99.map(|&(class, p99)| (class, us(p99))).collect(),
            messages_per_task: row.messages_per_task,
            unstable: row.unstable,
        }
    }
}

/// Compares the running policy's prediction with the measured response times. `None` without a measurement, or if
/// options replace measured conditions, because the prediction then holds for another system.
fn fit(conditions: &Conditions, standings: &[Standing], running: usize) -> Option<Fit> {
    let measured = conditions.measured.as_ref().filter(|_| !conditions.is_hypothetical)?;
    let standing = standings.iter().find(|standing| standing.policy == running)?;
    Some(Fit::new(&standing.prediction, measured.mean_us, measured.p99_us))
}

#[cfg(test)]
mod tests {
    use super::measure::Measurement;
    use super::node::NodePool;
    use super::*;
    use wedjat_workload::results::{RunDescription, RunTasks, Status, Task};

    /// Returns the options of a pool of 4 workers.
    fn pool() -> ConditionArgs {
        let text = |text: &str| Some(text.to_owned());
        let (workers, load, service) = (text("4"), text("0.5"), text("exp(50us)"));
        ConditionArgs { workers, load, service, ..ConditionArgs::default() }
    }

    #[test]
    fn unknown_policy_of_a_log_contradicts_the_node() {
        let task = |number: u64| Task {
            number,
            pool: 1,
            class: 0,
            worker: Some(0),
            scheduled_ps: number * 1_000_000,
            sent_ps: None,
            service_ps: None,
            response_ps: Some(3_000_000),
            status: Status::Answered,
            measured: true,
            late: false,
        };
        let policy = "homemade".to_owned();
        let description = RunDescription { policy, ..RunDescription::default() };
        let run = RunTasks { run: 1, description, seed: 1, tasks: (0..1000).map(task).collect() };
        let measured = Measurement::of(vec![run], None, None).unwrap();
        let policy = "jsq".to_owned();
        let node = NodePool { id: 1, workers: 4, dispatchers: 1, policy, speeds: None };
        let given = Conditions::new(&pool()).unwrap();
        let conditions = Conditions { measured: Some(measured), ..given };
        let running =
            |conditions: &Conditions| Candidate::running(&Arguments::default(), conditions);
        assert!(running(&conditions).unwrap().is_none());
        let error = running(&Conditions { node: Some(node), ..conditions }).unwrap_err();
        assert!(error.contains("the log has homemade, and the node has jsq"), "{error}");
    }

    #[test]
    fn report_names_the_sharing_of_cores() {
        let text = |text: &str| Some(text.to_owned());
        let arguments = Arguments {
            conditions: ConditionArgs { sharing: text("10us,500ns"), ..pool() },
            policy: text("jsq"),
            tasks: text("1000"),
            threads: text("1"),
            ..Arguments::default()
        };
        let report = advise(&arguments).unwrap();
        let (text, json) = (report.text(), report.json().unwrap());
        assert!(text.contains("10000ns,500ns"), "{text}");
        assert!(json.contains("\"sharing\":\"10000ns,500ns\""), "{json}");
    }
}
