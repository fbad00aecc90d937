//! `[cosched]` of an agent's file: batch jobs that run in sequence beside its workers.
//!
//! A batch job uses the time of the worker cores that tasks leave. A guard watches the tasks' latency and limits the
//! job's share of the cores. A chooser picks a share below the limit, on the advice of several experts.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::ffi::OsString;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
pub use wedjat_batch::Job;
use wedjat_batch::{BatchSettings, Objective, Policy};
use wedjat_core::state::files;
use wedjat_cosched::Setup;
use wedjat_cosched::mechanism::Class;

use super::faults::{FaultCollector, quoted};
use super::raw_agent;

/// Returns the jobs of a file. `agent` names the agent whose workers they run beside.
pub(super) fn jobs(
    faults: &mut FaultCollector,
    raw: Option<&raw_agent::Cosched>,
    agent: &str,
) -> Vec<Job> {
    let Some(raw) = raw else { return Vec::new() };
    let mut setup = Setup::built_in();
    if let Some(at) = &raw.experts {
        match experts(Path::new(at.get_ref())) {
            Ok(loaded) => setup = loaded,
            Err(error) => faults.note(at, "cosched.experts", quoted(at), &error),
        }
    }
    let default_objective = Objective { us: setup.guard.objective_us, ..Objective::default() };
    let objective = parse_value(faults, raw.objective.as_ref(), "cosched.objective")
        .unwrap_or(default_objective);
    let policy =
        parse_value(faults, raw.policy.as_ref(), "cosched.policy").unwrap_or(Policy::Guard);
    let class: Option<Class> = parse_value(faults, raw.class.as_ref(), "cosched.class");
    let processes = faults.number(raw.table, "processes");
    let setting = BatchSettings { agent: agent.to_owned(), policy, objective, setup, processes };
    let base = Job { class: class.unwrap_or_default(), ..Job::new(setting) };
    let base = Job {
        cgroup: raw.cgroup.as_ref().map_or(base.cgroup.clone(), |at| at.get_ref().into()),
        ..base
    };
    let jobs = faults.file.entries("cosched.job", raw_agent::Job::of);
    jobs.iter().filter_map(|raw| job(faults, raw, &base)).collect()
}

/// Reads a file with the settings of the chooser and the guard, and with the experts that advise the chooser.
fn experts(path: &Path) -> Result<Setup, String> {
    let text = files::read_text(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Setup::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns a job, always `Some`. Notes invalid values as faults and leaves them out. `base` holds the settings that
/// all jobs share.
fn job(faults: &mut FaultCollector, raw: &raw_agent::Job, base: &Job) -> Option<Job> {
    let command: Vec<OsString> =
        raw.command.get_ref().iter().map(|at| at.get_ref().into()).collect();
    if command.is_empty() {
        let allowed = "a program and its arguments, as in [\"make\", \"-j4\"]";
        faults.note(&raw.command, "cosched.job.command", "[]", allowed);
    }
    let wall = raw.wall.as_ref().and_then(|at| {
        let wall =
            humantime::parse_duration(at.get_ref()).ok().filter(|wall: &Duration| !wall.is_zero());
        if wall.is_none() {
            faults.note(at, "cosched.job.wall", quoted(at), "a time such as 10m");
        }
        wall
    });
    let measure = parse_value(faults, raw.progress.as_ref(), "cosched.job.progress");
    let work = raw.work.as_ref().and_then(|at| {
        let work = Some(*at.get_ref()).filter(|work| work.is_finite() && *work > 0.0);
        if work.is_none() {
            faults.note(at, "cosched.job.work", at.get_ref(), "a number above 0");
        }
        work
    });
    if let Some(at) = raw.log.as_ref().filter(|_| !base.policy.is_logged()) {
        faults.note(
            at,
            "cosched.job.log",
            quoted(at),
            "a log of policy asax or aimd, the policies with decisions",
        );
    }
    let log = raw.log.as_ref().map(|at| at.get_ref().into());
    Some(Job { command, wall, work, log, measure: measure.unwrap_or_default(), ..base.clone() })
}

/// Parses a value. Returns `None` if it is absent or invalid; an invalid value is recorded as a fault.
fn parse_value<T: FromStr<Err = String>>(
    faults: &mut FaultCollector,
    at: Option<&Spanned<String>>,
    key: &str,
) -> Option<T> {
    let at = at?;
    match at.get_ref().parse() {
        Ok(value) => Some(value),
        Err(error) => {
            faults.note(at, key, quoted(at), &error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AgentConfig, ConfigError};
    use super::*;

    /// File of an agent without batch jobs.
    const GOOD: &str = r#"
[agent]
name = "host1"
core = 1

[[port]]
device = "net_memif0"
ip = "10.0.2.11/24"

[[pool]]
id = 1
policy = "cfcfs"
workers = "0-3"
"#;

    /// Parses an agent's file.
    fn parse(text: &str) -> Result<AgentConfig, ConfigError> {
        AgentConfig::parse(Path::new("agent.toml"), text)
    }

    // promise: batch.2
    #[test]
    fn batch_jobs_are_parsed_and_checked() {
        assert!(parse(GOOD).unwrap().jobs.is_empty());
        let good = "[cosched]\npolicy = 'static(30%)'\nobjective = 'p99=2ms'\nprocesses = 7\n\
                    [[cosched.job]]\ncommand = ['make', '-j4']\nwall = '10m'\nprogress = 'lines=done'\nwork = 40.0\n\
                    [[cosched.job]]\ncommand = ['true']\n";
        let jobs = parse(&format!("{GOOD}{good}")).unwrap().jobs;
        let [first, second] = &jobs[..] else { panic!("{jobs:?}") };
        assert_eq!(
            (&first.agent[..], first.policy.to_string()),
            ("host1", "static(30%)".to_owned())
        );
        assert_eq!((first.objective.us, first.processes, first.work), (2000.0, 7, Some(40.0)));
        assert_eq!(first.wall, Some(Duration::from_secs(600)));
        assert_eq!(first.measure, wedjat_batch::Measure::Lines("done".to_owned()));
        assert!(
            first.command == ["make", "-j4"] && second.command == ["true"] && second.wall.is_none()
        );
        // Text of the jobs, its replacement, and a part of the error.
        for (line, wrong, named) in [
            ("policy = 'static(30%)'", "policy = 'always'", "cosched.policy"),
            ("objective = 'p99=2ms'", "objective = 'soon'", "p99.9=500us"),
            ("processes = 7", "processes = 0", "cosched.processes"),
            ("processes = 7", "class = 'high'", "idle and normal"),
            ("processes = 7", "experts = '/no/file'", "/no/file"),
            ("['make', '-j4']", "[]", "cosched.job.command"),
            ("'10m'", "'soon'", "cosched.job.wall"),
            ("'lines=done'", "'much'", "lines=TEXT"),
            ("40.0", "-1.0", "cosched.job.work"),
            ("work = 40.0", "log = 'log'", "asax or aimd"),
        ] {
            let error = parse(&format!("{GOOD}{}", good.replacen(line, wrong, 1))).unwrap_err();
            assert!(error.to_string().contains(named), "{wrong}: {error}");
        }
    }
}
