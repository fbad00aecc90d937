//! Conditions of a pool, under which the advice simulates policies: workers, load, service times, delay and others.
//!
//! They come from options, from a log of tasks (CSV), or from a capture of a leaf's packets. A node adds its workers,
//! dispatcher cores and policy. An option overrides the measured value. The load is the offered work as a fraction of
//! the workers' capacity.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use wedjat_workload::arrival::Arrivals;
use wedjat_workload::service::Service;

use super::capture::CapturedTasks;
use super::measure::{Measurement, ServiceClass, ServiceTimes};
use super::node::NodePool;
use crate::candidates::{class_policies, eligible_policies};
use crate::model::Model;
use crate::{SimArgs, ct, plan};

/// Options for the conditions. Their values have the syntax of `wedjat-testbed sim --model ct`.
#[derive(Args, Clone, Debug, Default)]
pub struct ConditionArgs {
    /// CSV file that --log-tasks wrote. Arrivals, service times, workers and the running policy are measured from it
    pub log: Option<PathBuf>,
    /// Pcap file that `wedjat ctl tap` recorded at a leaf: as a log, and the workers' delay and speeds
    #[arg(long, value_name = "PCAP", conflicts_with = "log")]
    pub capture: Option<PathBuf>,
    /// Pool of a running node, which `wedjat advise` sets in place of `node`. It has no option
    #[arg(skip)]
    pub running_node: Option<NodePool>,
    /// Run of the log [default: the only one]
    #[arg(long, requires = "log")]
    pub run: Option<usize>,
    /// State file of a leaf or agent: workers, dispatcher cores and policy of a pool
    #[arg(long, value_name = "STATEFILE")]
    pub node: Option<PathBuf>,
    /// Pool of the log, the capture and the node [default: the only one]
    #[arg(long)]
    pub pool: Option<u32>,
    /// Number of workers [default: those of the node, or those that answer in the log]
    #[arg(long)]
    pub workers: Option<String>,
    /// Load, a fraction of the capacity below 1 [default: that of the log]
    #[arg(long)]
    pub load: Option<String>,
    /// Service times at a worker of average speed [default: those of the log]
    #[arg(long)]
    pub service: Option<String>,
    /// Arrivals [default: those of the log, or poisson]
    #[arg(long)]
    pub arrivals: Option<String>,
    /// Delay between dispatchers and workers, each way [default: 0us]
    #[arg(long)]
    pub delay: Option<String>,
    /// Speeds of workers, as in 16x1,16x2 [default: all 1]
    #[arg(long)]
    pub speeds: Option<String>,
    /// Number of dispatchers [default: the node's cores, or 1]
    #[arg(long)]
    pub dispatchers: Option<String>,
    /// The dispatchers are cores of one leaf (cores), or independent leaves (leaves) [default: cores]
    #[arg(long)]
    pub dispatchers_as: Option<String>,
    /// The tasks of a worker share its core: quantum, cost of a switch, and maximum number of tasks, as in
    /// 10us,500ns,8 [default: one task at a time]
    #[arg(long)]
    pub sharing: Option<String>,
}

impl ConditionArgs {
    /// Returns true if only a running node can give the conditions: there is no log or capture, and some necessary
    /// option is missing. `wedjat advise` then captures the node's packets.
    #[must_use]
    pub fn needs_node(&self) -> bool {
        let is_given = self.workers.is_some() && self.load.is_some() && self.service.is_some();
        self.log.is_none() && self.capture.is_none() && !is_given
    }

    /// Adds the numbers of workers and dispatchers of a node, where no option gives them.
    fn completed(self, node: Option<&NodePool>) -> Self {
        let workers = || node.map(|node| node.workers.to_string());
        let dispatchers = || node.map(|node| node.dispatchers.to_string());
        Self {
            workers: self.workers.or_else(workers),
            dispatchers: self.dispatchers.or_else(dispatchers),
            ..self
        }
    }
}

/// Conditions of a pool.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Configuration of the simulation under these conditions. Its policy is only a placeholder.
    pub model: ct::Config,
    /// Measurement of the log or capture, if there is one.
    pub measured: Option<Measurement>,
    /// Pool of the node, if a state file or a running node is given.
    pub node: Option<NodePool>,
    /// True if options replace a measured quantity, so that the log's response times are no longer comparable.
    pub is_hypothetical: bool,
    /// Options without a value, whose defaults replace quantities that the log or capture does not show.
    pub assumed: Vec<AssumedOption>,
}

/// Name of an option without a value, and the meaning of its default, as in `("delay", "no delay")`.
pub type AssumedOption = (&'static str, &'static str);

impl Conditions {
    /// Determines the conditions from all sources.
    ///
    /// # Errors
    /// The option or file, the reason and the fix.
    pub fn new(args: &ConditionArgs) -> Result<Self, String> {
        // A running node has precedence over a state file.
        let node = match (&args.running_node, &args.node) {
            (Some(node), _) => Some(node.clone()),
            (None, path) => {
                path.as_deref().map(|path| NodePool::read(path, args.pool)).transpose()?
            }
        };
        let has_pools = args.log.is_some() || args.capture.is_some() || node.is_some();
        if args.pool.is_some() && !has_pools {
            return Err(
                "--pool: it selects a pool of a log, a --capture or a --node; omit it".to_owned()
            );
        }
        let args = args.clone().completed(node.as_ref());
        let conditions = match (&args.log, &args.capture) {
            (None, None) => Self::given(&args)?,
            (Some(path), _) => {
                let measured = Measurement::read(path, args.run, args.pool)?;
                Self::measured(&args, measured).map_err(|error| error.text(path))?
            }
            (None, Some(path)) => Self::captured(&args, path, node.as_ref())?,
        };
        Ok(Self { node, ..conditions })
    }

    /// Takes all conditions from options.
    fn given(args: &ConditionArgs) -> Result<Self, String> {
        let needed = [("workers", &args.workers), ("load", &args.load), ("service", &args.service)];
        let missing = needed.iter().filter(|(_, value)| value.is_none());
        let missing: Vec<_> = missing.map(|(flag, _)| format!("--{flag}")).collect();
        if !missing.is_empty() {
            return Err(format!(
                "the conditions of the pool are incomplete: give {}, or a CSV file that --log-tasks wrote, or a --capture",
                missing.join(", ")
            ));
        }
        let model =
            model(args, args.workers.as_deref(), args.load.as_deref(), args.service.as_deref())?;
        Ok(Self { model, measured: None, node: None, is_hypothetical: false, assumed: Vec::new() })
    }

    /// Takes the conditions from a capture, except those that options give. A `node` knows the pool's id, and perhaps
    /// the configured speeds.
    fn captured(
        args: &ConditionArgs,
        path: &Path,
        node: Option<&NodePool>,
    ) -> Result<Self, String> {
        let speeds = node.and_then(|node| node.speeds.as_ref());
        let pool = args.pool.or_else(|| node.map(|node| node.id));
        let tasks = CapturedTasks::read(path, pool, speeds)?;
        Self::of_tasks(args, tasks).map_err(|error| error.text(path))
    }

    /// Takes the conditions from simulated tasks, as from a capture, for the emulation of a node's automatic choice.
    ///
    /// # Errors
    /// The option or the quantity, the reason and the fix.
    pub fn simulated(args: &ConditionArgs, tasks: CapturedTasks) -> Result<Self, String> {
        Self::of_tasks(args, tasks).map_err(|error| match error {
            ConditionError::Log(reason) | ConditionError::Option(reason) => reason,
        })
    }

    /// Takes the conditions from captured tasks, except those that options give.
    fn of_tasks(args: &ConditionArgs, tasks: CapturedTasks) -> Result<Self, ConditionError> {
        let CapturedTasks { run, delay_ns, speeds } = tasks;
        let answering: BTreeSet<u32> = run.tasks.iter().filter_map(|task| task.worker).collect();
        let measured = Measurement::of(vec![run], None, None).map_err(ConditionError::Log)?;
        let workers = workers(args, &measured)?;
        // The replies show speeds by their service times. Configured speeds are known without them.
        let has_speeds = speeds.is_some() || measured.service.is_some();
        // Speeds in the syntax of `--speeds`, one worker after another: `1x0.5,1x1.5,2x1`.
        let speeds = speeds.map_or_else(
            || format!("{workers}x1"),
            |mut speeds| {
                // The node may configure more speeds than it has active workers.
                if speeds.len() > workers {
                    speeds.retain(|worker, _| answering.contains(worker));
                }
                // Workers of unknown speed have the average one.
                let average = match speeds.len() {
                    0 => 1.0,
                    known => speeds.values().sum::<f64>() / known as f64,
                };
                let others = workers.saturating_sub(speeds.len());
                let others = (others > 0).then(|| format!("{others}x{average}"));
                let speeds = speeds.into_values().map(|speed| format!("1x{speed}"));
                speeds.chain(others).collect::<Vec<_>>().join(",")
            },
        );
        let delay = delay_ns.map(|ns| format!("{ns:.0}ns"));
        // Only options for measured quantities count here. The measured delay and speeds become options in the next
        // step.
        let is_hypothetical =
            args.delay.is_some() && delay.is_some() || args.speeds.is_some() && has_speeds;
        let speeds = has_speeds.then_some(speeds);
        let args = ConditionArgs {
            delay: args.delay.clone().or(delay),
            speeds: args.speeds.clone().or(speeds),
            ..args.clone()
        };
        let conditions = Self::measured(&args, measured)?;
        let is_hypothetical = is_hypothetical || conditions.is_hypothetical;
        Ok(Self { is_hypothetical, ..conditions })
    }

    /// Takes the conditions from a measurement, except those that options give.
    fn measured(args: &ConditionArgs, measured: Measurement) -> Result<Self, ConditionError> {
        let workers = workers(args, &measured)?.to_string();
        let service = args.service.clone().or_else(|| mean_as_text(measured.service.as_ref()));
        let service = service.ok_or_else(|| {
            ConditionError::Log(
                "no task has a service time above 0 (column service_ns; in a capture, the header's extension); give --service"
                    .to_owned(),
            )
        })?;
        // The measured load depends on the number of workers and their average speed, which `model` parses. A
        // placeholder serves until then.
        let load = args.load.as_deref().unwrap_or("0.5");
        let mut model = model(args, Some(&workers), Some(load), Some(&service))
            .map_err(ConditionError::Option)?;
        if args.service.is_none() {
            model.service = service_at_average_speed(&measured, &model);
        }
        if args.arrivals.is_none() {
            model.arrivals = measured.gaps.process();
        }
        if args.load.is_none() {
            model.load = measured_load(&measured, &model)?;
        }
        let is_hypothetical = args.load.is_some()
            || args.arrivals.is_some()
            || (args.service.is_some() && measured.service.is_some());
        let assumed = assumed_options(args);
        Ok(Self { model, measured: Some(measured), node: None, is_hypothetical, assumed })
    }

    /// Returns the mean service time in microseconds. The simulator's results are multiples of it.
    #[must_use]
    pub fn service_us(&self) -> f64 {
        self.model.service.mean_ns() / 1e3
    }

    /// Returns the arrivals in tasks per second.
    #[must_use]
    pub fn rate_pps(&self) -> f64 {
        self.model.load * self.model.speeds.len() as f64 * 1e6 / self.service_us()
    }

    /// Returns the time from the end of service to the measured answer in microseconds: one delay. 0 without a measured
    /// answer, because response times in the log of a simulation end with the service.
    #[must_use]
    pub fn answer_us(&self) -> f64 {
        let is_answered = self.measured.as_ref().is_some_and(|log| log.subject.is_measured());
        if is_answered { self.model.delay_ns / 1e3 } else { 0.0 }
    }

    /// Returns the measured service times by class; empty if the model does not use them.
    #[must_use]
    pub fn service_classes(&self) -> &[ServiceClass] {
        let measured = self.measured.as_ref().and_then(|log| log.service.as_ref());
        // A distribution from options has at least one class of its own, measured times have 0.
        measured.filter(|_| self.model.service.classes() == 0).map_or(&[], |times| &times.classes)
    }

    /// Returns the numbers of the tasks' classes, to refuse an objective for a class without tasks. The parts of a
    /// distribution from options are numbered from 1.
    #[must_use]
    pub fn classes(&self) -> Vec<usize> {
        match self.model.service.classes() {
            0 => self.service_classes().iter().map(|class| class.class.into()).collect(),
            count => (1..=count).collect(),
        }
    }

    /// Returns the policies that treat long tasks differently, if the tasks have classes.
    #[must_use]
    pub fn class_policies(&self) -> Vec<String> {
        class_policies(self.classes().len(), self.model.speeds.len())
    }

    /// Returns the policies that a node may choose itself, as a list for an option.
    #[must_use]
    pub fn eligible_policies(&self) -> String {
        let names = eligible_policies().map(str::to_owned);
        names.chain(self.class_policies()).collect::<Vec<_>>().join(",")
    }
}

/// Returns the speeds in the syntax of `--speeds`, with the values of that option instead of the model's relative ones.
#[must_use]
pub fn speeds_text(model: &ct::Config) -> String {
    // Six decimals hide errors of rounding.
    let speed = |speed: &f64| (speed * model.speed_unit * 1e6).round() / 1e6;
    let groups = model.speeds.chunk_by(|a, b| a == b);
    let groups = groups.map(|group| format!("{}x{}", group.len(), speed(&group[0])));
    groups.collect::<Vec<_>>().join(",")
}

/// Reason why a log or capture gives no conditions.
enum ConditionError {
    /// A quantity of the log or capture is missing or impossible.
    Log(String),
    /// An option is invalid.
    Option(String),
}

impl ConditionError {
    /// Returns the error message. A fault of the log or capture names its `path`.
    fn text(self, path: &Path) -> String {
        match self {
            Self::Log(reason) => format!("{}: {reason}", path.display()),
            Self::Option(error) => error,
        }
    }
}

/// Returns the measured service times, converted to a worker of average speed, as the simulator needs them. Captures
/// and logs of models with relative speeds already have times at the average speed. Other logs have times at speed 1.
fn service_at_average_speed(measured: &Measurement, model: &ct::Config) -> Service {
    let has_relative_speeds = matches!(measured.subject.model.as_str(), "ct" | "slots" | "capture");
    let speed = if has_relative_speeds { 1.0 } else { model.speed_unit };
    let times = measured.service.as_ref().map_or(&[][..], |service| &service.samples);
    let times = times.iter().map(|&(ns, class)| (ns / speed, class)).collect();
    Service::measured(times).unwrap_or_else(|| model.service.clone())
}

/// Returns the load of the measured arrivals: rate times mean service time over the number of workers.
fn measured_load(measured: &Measurement, model: &ct::Config) -> Result<f64, ConditionError> {
    let (rate_pps, mean_ns) = (measured.gaps.rate_pps, model.service.mean_ns());
    let workers = model.speeds.len();
    let load = rate_pps * mean_ns / 1e9 / workers as f64;
    match check_load(load) {
        Ok(()) => Ok(load),
        Err(reason) => Err(ConditionError::Log(format!(
            "{rate_pps:.0} tasks/s of {:.3} us for {workers} workers: {reason}; give the right --workers or --speeds, or a \
             --load below 1",
            mean_ns / 1e3
        ))),
    }
}

/// Returns the options without a value whose quantities are not in a log.
fn assumed_options(args: &ConditionArgs) -> Vec<AssumedOption> {
    let options = [
        ("delay", "no delay", &args.delay),
        ("speeds", "equal speeds", &args.speeds),
        ("dispatchers", "one dispatcher", &args.dispatchers),
    ];
    let missing = options.into_iter().filter(|(_, _, value)| value.is_none());
    missing.map(|(flag, default, _)| (flag, default)).collect()
}

/// Returns the number of workers: `--workers`, or those that answer in the log.
fn workers(args: &ConditionArgs, measured: &Measurement) -> Result<usize, ConditionError> {
    let Some(text) = &args.workers else {
        let found = Some(measured.workers).filter(|workers| *workers > 0);
        return found.ok_or_else(|| {
            ConditionError::Log(
                "no task names its worker (column worker); give --workers".to_owned(),
            )
        });
    };
    let workers = worker_count(text).map_err(ConditionError::Option)?;
    if workers < measured.workers {
        let found = measured.workers;
        return Err(ConditionError::Option(format!(
            "--workers {text}: {found} workers answer in the log; give at least as many, or omit --workers"
        )));
    }
    Ok(workers)
}

/// Parses `--workers`, up to the largest number of servers of the simulator.
///
/// # Errors
/// The allowed numbers.
pub fn worker_count(text: &str) -> Result<usize, String> {
    plan::integer("workers", text, 1..=32_767)
}

/// Returns a constant service time of the measured mean, in the syntax of options. It is a placeholder for `model`,
/// which the measured times replace.
fn mean_as_text(service: Option<&ServiceTimes>) -> Option<String> {
    let classes = &service?.classes;
    let mean_ns: f64 = classes.iter().map(|class| class.share * class.mean_ns).sum();
    Some(format!("fixed({mean_ns}ns)"))
}

/// Builds the simulator's configuration from the options. The parameters replace the options of the same names. The
/// policy is a placeholder, which each simulation replaces.
fn model(
    args: &ConditionArgs,
    workers: Option<&str>,
    load: Option<&str>,
    service: Option<&str>,
) -> Result<ct::Config, String> {
    let text = |text: &str| Some(text.to_owned());
    let workers = worker_count(workers.unwrap_or_default())?;
    if let Some(load) = load.and_then(|load| load.trim().parse().ok()) {
        check_load(load).map_err(|reason| {
            format!(
                "--load {load}: {reason}; give a load below 1, or more --workers for the same work"
            )
        })?;
    }
    let flags = SimArgs {
        model: text("ct"),
        policy: text("random"),
        servers: Some(workers.to_string()),
        load: load.map(str::to_owned),
        service: service.map(str::to_owned),
        arrivals: args.arrivals.clone(),
        delay: args.delay.clone(),
        speeds: args.speeds.clone(),
        dispatchers: args.dispatchers.clone().or_else(|| text("1")),
        dispatchers_as: args.dispatchers_as.clone().or_else(|| text("cores")),
        sharing: args.sharing.clone(),
        ..SimArgs::default()
    };
    // An option with a list of values gives several cells (runs).
    match &plan::cells(&flags)?[..] {
        [cell] => match &cell.model {
            Model::Ct(config) => Ok(config.clone()),
            _ => Err("the model is not ct".to_owned()),
        },
        cells => Err(format!(
            "the options describe {} pools; give one value for each option",
            cells.len()
        )),
    }
}

/// Refuses loads under which no policy is stable.
fn check_load(load: f64) -> Result<(), String> {
    if load < 1.0 {
        return Ok(());
    }
    let load = (load * 1e3).round() / 1e3;
    Err(format!("the queues grow under each policy at a load of {load}"))
}

/// Returns the arrivals as text for the report, with the measured properties of their gaps.
#[must_use]
pub fn arrivals_text(arrivals: &Arrivals, measured: Option<&Measurement>) -> String {
    match measured {
        None => arrivals.to_string(),
        Some(Measurement { gaps, .. }) => format!(
            "{arrivals}; the measured gaps have a squared variation of {:.2}, their counts a dispersion of {:.2}",
            gaps.variation, gaps.dispersion
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat_workload::results::{RunDescription, RunTasks, Status, Task};

    /// Returns the three necessary options with these values.
    fn given(workers: &str, load: &str, service: &str) -> ConditionArgs {
        let text = |text: &str| Some(text.to_owned());
        let (workers, load, service) = (text(workers), text(load), text(service));
        ConditionArgs { workers, load, service, ..ConditionArgs::default() }
    }

    #[test]
    fn options_describe_one_pool() {
        let speeds = Some("16x1,16x3".to_owned());
        let args = ConditionArgs { speeds, ..given("32", "0.8", "exp(50us)") };
        let conditions = Conditions::new(&args).unwrap();
        // The average speed is 2. The rate is 0.8 * 32 tasks in 50 us.
        assert_eq!((conditions.model.speeds[0], conditions.model.speeds[31]), (0.5, 1.5));
        assert_eq!((conditions.model.dispatchers, conditions.service_us()), (1, 50.0));
        assert!((conditions.rate_pps() - 512_000.0).abs() < 1e-6);
        assert_eq!(conditions.classes(), [1]);
        assert_eq!(speeds_text(&conditions.model), "16x1,16x3");
    }

    #[test]
    fn configured_speeds_may_exceed_the_workers() {
        // Two workers answer a task of 1 us each microsecond. The node configures three.
        let task = |number: u64| Task {
            number,
            pool: 1,
            class: 1,
            worker: Some((number % 2) as u32),
            scheduled_ps: number * 1_000_000,
            sent_ps: None,
            service_ps: Some(1_000_000),
            response_ps: Some(3_000_000),
            status: Status::Answered,
            measured: true,
            late: false,
        };
        let tasks = (0..1000).map(task).collect();
        let run = RunTasks { run: 1, description: RunDescription::default(), seed: 1, tasks };
        let speeds = Some([(0, 1.0), (1, 2.0), (2, 1.0)].into());
        let captured = CapturedTasks { run, delay_ns: None, speeds };
        let delay = Some("5us".to_owned());
        let args = ConditionArgs { delay, ..ConditionArgs::default() };
        let conditions = Conditions::simulated(&args, captured).unwrap();
        assert_eq!(speeds_text(&conditions.model), "1x1,1x2");
        assert!(!conditions.is_hypothetical, "the delay is not measured");
    }

    #[test]
    fn impossible_options_are_named() {
        for (args, named) in [
            (given("0", "0.8", "exp(50us)"), "--workers 0: a whole number from 1"),
            (
                given("8", "1", "exp(50us)"),
                "--load 1: the queues grow under each policy at a load of 1; give",
            ),
            (given("8", "3", "exp(50us)"), "--load 3: the queues grow"),
            (given("8", "x", "exp(50us)"), "--load x"),
            (given("8", "0.5,0.6", "exp(50us)"), "describe 2 pools; give one value"),
            (given("8", "0.5", "exp(50)"), "expected a unit"),
            (ConditionArgs { service: None, ..given("8", "0.5", "") }, "give --service, or a CSV"),
            (ConditionArgs::default(), "give --workers, --load, --service"),
        ] {
            let error = Conditions::new(&args).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}
