//! Offered load: rate, arrivals, service times and duration. The commands create a [`Load`] from their arguments, and
//! each core's generator takes its tasks from it.

use crate::arrival::{Arrivals, BurstsTooLong, Schedule};
use crate::grammar::Time;
use crate::replay::{Replay, ReplayError};
use crate::seed::{self, CoreSeeds, DependentStreams, Independence};
use crate::send::TaskSource;
use crate::service::Service;
use crate::slices::{self, Rule};
use crate::tasks;

/// Load of all cores together.
#[derive(Clone, Debug)]
pub struct Load {
    /// Tasks per second.
    pub rate_pps: f64,
    /// Arrival process.
    pub arrivals: Arrivals,
    /// Service times.
    pub service: Service,
    /// A trace that replaces arrivals and service times. `rate_pps` and `service` then hold its means.
    pub replay: Option<Replay>,
    /// Warm-up in seconds, sent but not measured.
    pub warmup_s: f64,
    /// Measured seconds.
    pub duration_s: f64,
    /// Longest wait for answers after the last task, in seconds.
    pub drain_s: f64,
    /// Delay after the due time from which a sent task counts as late, in seconds.
    pub late_after_s: f64,
    /// Number of windows of the measured time, for confidence intervals and the trend.
    pub windows: usize,
    /// Seed of all random streams.
    pub seed: u64,
    /// Number of cores that share the load.
    pub cores: u32,
    /// Number of the run. Separates runs with one seed on the wire, so that a late answer does not match the
    /// next run.
    pub run: u32,
    /// True if the contents of answers are checked.
    pub verify: bool,
    /// True to record every task, for the report's [`tasks`](crate::report::Report::tasks).
    pub records_tasks: bool,
    /// Rule for undisturbed slices: no stall of a poll loop can have affected a task in them. Also gives the number of
    /// tasks that the percentile needs in all of them together.
    pub rule: Rule,
}

impl Load {
    /// Creates a load with default times: 0.1 s of warm-up, 1 s measured, up to 1 s of drain.
    ///
    /// The tolerance for late tasks is 5 us, as in Caladan's load generator, but at least 1% of the mean
    /// service time.
    #[must_use]
    pub fn new(rate_pps: f64, service: Service) -> Self {
        let late_after_s = (service.mean_ns() * 0.01e-9).max(5e-6);
        Self {
            rate_pps,
            arrivals: Arrivals::Poisson,
            warmup_s: 0.1,
            duration_s: 1.0,
            drain_s: 1.0,
            late_after_s,
            windows: 20,
            seed: 1,
            cores: 1,
            run: 0,
            rule: Rule::new(service.mean_ns() / 1e9, None),
            service,
            replay: None,
            verify: false,
            records_tasks: false,
        }
    }

    /// Creates a load from a trace. Its first `warmup_s` seconds are sent but not measured.
    ///
    /// # Errors
    /// If the measured time would be empty.
    pub fn replaying(replay: Replay, warmup_s: f64) -> Result<Self, ReplayError> {
        let (rate_pps, length_s) = (replay.rate_pps(), replay.length_s());
        if warmup_s >= length_s {
            return Err(ReplayError::OnlyWarmup(warmup_s, length_s));
        }
        let defaults = Self::new(rate_pps, Service::fixed(replay.trace().mean_ns()));
        Ok(Self { warmup_s, duration_s: length_s - warmup_s, replay: Some(replay), ..defaults })
    }

    /// Returns the load as a fraction of the capacity of this number of workers.
    #[must_use]
    pub fn share(&self, workers: u32) -> f64 {
        let service_s = self.service.mean_ns() / 1e9;
        self.rate_pps * service_s / f64::from(workers.max(1))
    }

    /// Sets the rule for undisturbed slices for this percentile and number of workers. The higher the workers' load is,
    /// the longer a stall affects tasks. A higher percentile needs more tasks.
    #[must_use]
    pub fn with_percentile(self, quantile: f64, workers: Option<u32>) -> Self {
        let service_s = self.service.mean_ns() / 1e9;
        let share = workers.map(|workers| self.share(workers));
        Self { rule: Rule::new(service_s, share).with_percentile(quantile), ..self }
    }

    /// Returns the tasks of one core, on a clock of `hz` ticks per second.
    ///
    /// # Errors
    /// If arrivals and rate contradict each other.
    pub fn source(&self, core: u32, hz: f64) -> Result<TaskSource, BurstsTooLong> {
        Ok(match &self.replay {
            Some(replay) => TaskSource::Replayed(replay.player(core, self.cores, hz)),
            None => {
                let seeds = CoreSeeds::derive(self.seed, core);
                TaskSource::drawn(self.schedule(hz)?, self.service.clone(), &seeds)
            }
        })
    }

    /// Returns the number of task classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.replay
            .as_ref()
            .map_or_else(|| self.service.classes(), |replay| replay.trace().classes())
    }

    /// Returns the arrival process in the syntax of the command line, or the trace.
    #[must_use]
    pub fn arrivals_text(&self) -> String {
        self.replay.as_ref().map_or_else(|| self.arrivals.to_string(), ToString::to_string)
    }

    /// Returns the service times in the syntax of the command line, or that they are those of the trace.
    #[must_use]
    pub fn service_text(&self) -> String {
        self.replay
            .as_ref()
            .map_or_else(|| self.service.to_string(), |_| "service times of the trace".to_owned())
    }

    /// Returns the name of a class and its service times.
    #[must_use]
    pub fn class_texts(&self, class: u16) -> (String, String) {
        match &self.replay {
            Some(replay) => {
                let mean = Time(replay.trace().class_mean_ns(class).round());
                (format!("class {class}"), format!("from the trace, mean {mean}"))
            }
            None => (self.service.class_name(class), self.service.class_service(class)),
        }
    }

    /// Returns the number of tasks of one core in a second: a bound for a trace, the mean of a random load.
    #[must_use]
    pub fn busiest_second(&self) -> f64 {
        let all_cores = self.replay.as_ref().map_or(self.rate_pps, Replay::busiest_second);
        all_cores / f64::from(self.cores)
    }

    /// Returns the arrival process of one core, at its share of the rate. The caller gives the core's random stream. A
    /// trace has its own due times and does not use it.
    ///
    /// # Errors
    /// If arrivals and rate contradict each other.
    pub fn schedule(&self, hz: f64) -> Result<Schedule, BurstsTooLong> {
        Schedule::new(&self.arrivals, self.rate_pps / f64::from(self.cores), hz)
    }

    /// Returns the capacity for logs of all tasks of a run, warm-up included: the expected number with a margin for
    /// random arrivals, within the memory limit. Emulated workers allocate their logs with it.
    #[must_use]
    pub fn tasks_max(&self) -> usize {
        slices::tasks_max(self.rate_pps * (self.warmup_s + self.duration_s))
    }

    /// Returns the same capacity for the tasks of one core.
    #[must_use]
    pub fn core_tasks_max(&self) -> usize {
        slices::tasks_max(self.core_tasks())
    }

    /// Returns the expected number of tasks of one core, warm-up included.
    fn core_tasks(&self) -> f64 {
        self.rate_pps / f64::from(self.cores) * (self.warmup_s + self.duration_s)
    }

    /// Refuses a load with more tasks than a core can record, before it is offered.
    ///
    /// # Errors
    /// The limit and the fix.
    pub fn check_recordable(&self) -> Result<(), String> {
        // A tenth of the records is a margin for random arrivals.
        let (tasks, max) = (self.core_tasks(), 0.9 * tasks::RECORDS_MAX as f64);
        if tasks <= max {
            return Ok(());
        }
        Err(format!(
            "{tasks:.0} tasks on a core, but at most {max:.0} can be recorded; give a shorter --duration, a lower --rate or more --cores"
        ))
    }

    /// Returns the seeds of all cores; none for a trace, which needs no random numbers.
    #[must_use]
    pub fn seeds(&self) -> Vec<CoreSeeds> {
        let random_cores = if self.replay.is_some() { 0 } else { self.cores };
        (0..random_cores).map(|core| CoreSeeds::derive(self.seed, core)).collect()
    }

    /// Returns the application id of a core's tasks in this run. Answers repeat it. It tells the receiving core which
    /// core sent the task, and in which run.
    #[must_use]
    pub fn app(&self, core: u32) -> u32 {
        let id = seed::StreamSeed::derive(self.seed, "app", core).seed;
        (id as u32).wrapping_add(self.run)
    }

    /// Checks that the random streams of all cores are independent. A trace has none and passes.
    ///
    /// # Errors
    /// If they are not, or if arrivals and rate contradict each other.
    pub fn self_test(&self) -> Result<Independence, LoadError> {
        let schedule = self.schedule(1e9)?;
        Ok(seed::self_test(&self.seeds(), &schedule, &self.service)?)
    }
}

/// Reason why a load cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Bursts and rate contradict each other.
    #[error(transparent)]
    Bursts(#[from] BurstsTooLong),
    /// Random streams overlap, or arrivals and service times are correlated.
    #[error(transparent)]
    Streams(#[from] DependentStreams),
}
