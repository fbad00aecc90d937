//! The load to offer: how many tasks, when, how long, for how long.

use crate::arrival::{Arrivals, BurstsTooLong, Schedule};
use crate::grammar::Time;
use crate::replay::{Replay, ReplayError};
use crate::seed::{self, CoreSeeds, DependentStreams, Independence};
use crate::send::Source;
use crate::service::Service;
use crate::slices::{self, Rule};

/// The load to offer, all cores together.
#[derive(Clone, Debug)]
pub struct Load {
    /// Tasks a second.
    pub rate_pps: f64,
    /// How they arrive.
    pub arrivals: Arrivals,
    /// How long they take.
    pub service: Service,
    /// A trace that says when they arrive and what they are, in place of the two; these have its means then.
    pub replay: Option<Replay>,
    /// Sent but not measured, first.
    pub warmup_s: f64,
    /// Measured.
    pub duration_s: f64,
    /// Answers are awaited so long after the last task at most.
    pub drain_s: f64,
    /// A task sent later than this after it was due is late.
    pub late_after_s: f64,
    /// Windows that the measured time is cut into.
    pub windows: usize,
    /// All streams follow from this.
    pub seed: u64,
    /// Cores that share the load.
    pub cores: u32,
    /// Tells runs of one seed apart on the wire, so that a stray answer to one is not taken for the next's.
    pub run: u32,
    /// Check what the answers say.
    pub verify: bool,
    /// Which slices of the measured time count as calm, and how many of their tasks are needed.
    pub rule: Rule,
}

impl Load {
    /// A load with the usual times: a tenth of a second of warm-up, a second measured, up to a second of drain.
    ///
    /// On time is within 5 us, as in Caladan's load generator, or within 1% of the mean service time if
    /// that is more.
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
        }
    }

    /// A trace as a load, of which the first `warmup_s` seconds are sent but not measured.
    ///
    /// # Errors
    /// When nothing would be measured.
    pub fn replaying(replay: Replay, warmup_s: f64) -> Result<Self, ReplayError> {
        let (rate_pps, length_s) = (replay.rate_pps(), replay.length_s());
        if warmup_s >= length_s {
            return Err(ReplayError::OnlyWarmup(warmup_s, length_s));
        }
        let usual = Self::new(rate_pps, Service::fixed(replay.trace().mean_ns()));
        Ok(Self { warmup_s, duration_s: length_s - warmup_s, replay: Some(replay), ..usual })
    }

    /// The same with the rule for calm slices that fits a pool of so many workers, and for this percentile.
    #[must_use]
    pub fn telling(self, quantile: f64, workers: Option<u32>) -> Self {
        let service_s = self.service.mean_ns() / 1e9;
        let share = workers.map(|workers| self.rate_pps * service_s / f64::from(workers.max(1)));
        Self { rule: Rule::new(service_s, share).telling(quantile), ..self }
    }

    /// One core's tasks, on a clock of `hz` ticks a second.
    ///
    /// # Errors
    /// When arrivals and rate contradict each other.
    pub fn source(&self, core: u32, hz: f64) -> Result<Source, BurstsTooLong> {
        Ok(match &self.replay {
            Some(replay) => Source::Replayed(replay.player(core, self.cores, hz)),
            None => {
                let seeds = CoreSeeds::derive(self.seed, core);
                Source::drawn(self.schedule(hz)?, self.service.clone(), &seeds)
            }
        })
    }

    /// Number of task classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.replay.as_ref().map_or_else(|| self.service.classes(), |it| it.trace().classes())
    }

    /// The arrival process, as a user would write it, or the trace.
    #[must_use]
    pub fn arrivals_text(&self) -> String {
        self.replay.as_ref().map_or_else(|| self.arrivals.to_string(), ToString::to_string)
    }

    /// The service times, as a user would write them.
    #[must_use]
    pub fn service_text(&self) -> String {
        self.replay
            .as_ref()
            .map_or_else(|| self.service.to_string(), |_| "service times of the trace".to_owned())
    }

    /// What a class is called, and its service times.
    #[must_use]
    pub fn class_texts(&self, class: u16) -> (String, String) {
        match &self.replay {
            Some(replay) => {
                let mean = Time(replay.trace().class_mean_ns(class).round());
                (format!("class {class}"), format!("as in the trace, mean {mean}"))
            }
            None => (self.service.class_name(class), self.service.class_service(class)),
        }
    }

    /// Tasks of one core in the second that has most of them.
    #[must_use]
    pub fn busiest_second(&self) -> f64 {
        let all = self.replay.as_ref().map_or(self.rate_pps, Replay::busiest_second);
        all / f64::from(self.cores)
    }

    /// One core's due times.
    ///
    /// # Errors
    /// When arrivals and rate contradict each other.
    pub fn schedule(&self, hz: f64) -> Result<Schedule, BurstsTooLong> {
        Schedule::new(&self.arrivals, self.rate_pps / f64::from(self.cores), hz)
    }

    /// Tasks of a run, all but certainly, for who keeps something of each: warm-up included, and no more than memory is
    /// meant for.
    #[must_use]
    pub fn tasks_max(&self) -> usize {
        slices::tasks_max(self.rate_pps * (self.warmup_s + self.duration_s))
    }

    /// Seeds of all cores; none where a trace is replayed, since nothing is drawn.
    #[must_use]
    pub fn seeds(&self) -> Vec<CoreSeeds> {
        let drawing = if self.replay.is_some() { 0 } else { self.cores };
        (0..drawing).map(|core| CoreSeeds::derive(self.seed, core)).collect()
    }

    /// The application id of a core's tasks.
    #[must_use]
    pub fn app(&self, core: u32) -> u32 {
        let id = seed::StreamSeed::derive(self.seed, "app", core).seed;
        (id as u32).wrapping_add(self.run)
    }

    /// Checks that the streams of all cores are independent.
    ///
    /// # Errors
    /// When they are not, or when arrivals and rate contradict each other.
    pub fn self_test(&self) -> Result<Independence, LoadError> {
        let schedule = self.schedule(1e9)?;
        Ok(seed::self_test(&self.seeds(), &schedule, &self.service)?)
    }
}

/// A load that cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Bursts and rate contradict each other.
    #[error(transparent)]
    Bursts(#[from] BurstsTooLong),
    /// Arrivals and service times depend on each other.
    #[error(transparent)]
    Streams(#[from] DependentStreams),
}
