//! Common interface of the models: parameters, length and execution of a run. [`super::plan`] creates a [`Cell`] for
//! each row of the report, and [`super::run`] runs it once per seed.

use super::outcome::{Outcome, RowLabels};
use super::stats::Observer;
use super::{ct, fabric, nodes, rack, slots};

/// Length of a run, in mean service times, after which its start-up phase no longer matters.
pub const SETTLED: f64 = 300.0;
/// Longest run, in seconds. The clock counts picoseconds in 64 bits, and queues are sampled every 50 us.
const LONGEST_S: f64 = 1e5;
/// Longest run of a model without seconds, in mean service times.
const LONGEST: f64 = 1e9;

/// Parameters of a run of one model, for any seed.
#[derive(Clone, Debug)]
pub enum Model {
    /// Racks under a spine.
    Rack(rack::Config),
    /// Servers and dispatchers in time slots.
    Slots(slots::Config),
    /// Servers and dispatchers in continuous time.
    Ct(ct::Config),
    /// A datacenter of pools.
    Fabric(fabric::Config),
    /// Nodes that forward tasks to each other.
    Nodes(nodes::Config),
}

/// A planned row.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Labels of the row.
    pub subject: RowLabels,
    /// Model to run.
    pub model: Model,
}

impl Model {
    /// Returns the length of the run in mean service times.
    #[must_use]
    pub fn length(&self) -> f64 {
        let length = |tasks: u64, load: f64, capacity: f64| tasks as f64 / (load * capacity);
        match self {
            Self::Rack(config) => length(config.tasks, config.load, config.speeds.iter().sum()),
            Self::Ct(config) => length(config.tasks, config.load, config.speeds.iter().sum()),
            Self::Fabric(config) => length(config.pool.tasks, config.pool.load, config.workers()),
            Self::Nodes(config) => {
                length(config.tasks, config.load, config.workers.iter().sum::<usize>() as f64)
            }
            // A server of mean speed completes one task per slot.
            Self::Slots(config) => config.slots as f64,
        }
    }

    /// Refuses a run that is too long, and arrivals that cannot have the given load, before the first row runs. A
    /// fabric detects such arrivals only when it runs.
    ///
    /// # Errors
    /// The reason and the allowed values.
    pub fn check(&self) -> Result<(), String> {
        let longest = match self {
            Self::Rack(rack::Config { service, .. })
            | Self::Fabric(fabric::Config { pool: rack::Config { service, .. }, .. }) => {
                LONGEST_S / (service.mean_ns() / 1e9)
            }
            Self::Nodes(config) => LONGEST_S / (config.service.mean_ns() / 1e9),
            Self::Ct(_) => LONGEST,
            Self::Slots(_) => f64::INFINITY,
        };
        let length = self.length();
        if length > longest {
            return Err(format!(
                "the run would last {length:.3e} mean service times; at most {longest:.3e} are allowed; give fewer --tasks, a \
                 shorter --service or a higher --load"
            ));
        }
        match self {
            Self::Rack(config) => config.schedules().map(|_| ()),
            Self::Ct(config) => config.schedules().map(|_| ()),
            Self::Nodes(config) => config.schedules().map(|_| ()),
            Self::Slots(_) | Self::Fabric(_) => Ok(()),
        }
    }

    /// Runs the model with this seed and observer.
    ///
    /// # Errors
    /// If parameters contradict each other.
    pub fn run(&self, seed: u64, observer: &Observer) -> Result<Outcome, String> {
        let observer = observer.clone();
        match self {
            Self::Rack(config) => rack::run(&rack::Config { seed, observer, ..config.clone() }),
            Self::Slots(config) => slots::run(&slots::Config { seed, observer, ..config.clone() }),
            Self::Fabric(config) => {
                let pool = rack::Config { seed, observer, ..config.pool.clone() };
                fabric::run(&fabric::Config { pool, ..config.clone() })
            }
            Self::Nodes(config) => nodes::run(&nodes::Config { seed, observer, ..config.clone() }),
            Self::Ct(config) => ct::run(&ct::Config { seed, observer, ..config.clone() }),
        }
    }

    /// Returns the number of tasks of a run, for the progress bar and the limit on recorded results. For `slots` it is
    /// the expected number.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        match self {
            Self::Rack(config) => config.tasks,
            Self::Ct(config) => config.tasks,
            Self::Fabric(config) => config.pool.tasks,
            Self::Nodes(config) => config.tasks,
            Self::Slots(config) => {
                (config.load * config.speeds.len() as f64 * config.slots as f64) as u64
            }
        }
    }
}

impl Cell {
    /// Creates the cell of a policy in model `ct`, without swept flags, for callers that plan their own runs, such as
    /// the advice. `name` is the policy's name in the row.
    #[must_use]
    pub fn of_policy(name: &str, config: ct::Config) -> Self {
        let subject = RowLabels {
            model: "ct",
            policy: name.to_owned(),
            load: config.load,
            unit: "mean service times",
            swept: Vec::new(),
        };
        Self { subject, model: Model::Ct(config) }
    }

    /// Returns a warning for a run that is too short to leave its start-up phase.
    #[must_use]
    pub fn caution(&self) -> Option<String> {
        let RowLabels { model, policy, load, .. } = &self.subject;
        let length = self.model.length();
        let flag = if matches!(self.model, Model::Slots(_)) { "slots" } else { "tasks" };
        (length < SETTLED).then(|| {
            format!(
                "{model}, {policy} at load {load}: a run of {length:.1} mean service times only shows the start-up phase; for \
                 {SETTLED} give {:.1} times the --{flag}",
                SETTLED / length
            )
        })
    }
}
