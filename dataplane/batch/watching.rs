//! Observation of an agent's workers by another process, through their shared region. The process of a batch job uses
//! it, to limit the job by the workers' load and latency.
//!
//! The *region* is the memory that an agent shares with its workers. It has a *channel* for each worker, and the
//! agent's status words for observers.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use wedjat_core::cpus;
use wedjat_core::ring::region::path_of;
use wedjat_core::ring::watch::{AgentStatusWords, Times};
use wedjat_core::ring::{WorkerRegion, WorkerStatus};
use wedjat_cosched::Observation;
use wedjat_cosched::mechanism::Scheduling;

use super::{CoschedError, Objective};

/// Minimum length of the window of the latency percentile. The window begins at the youngest observation that is older
/// than this, or at the first one.
const WINDOW: Duration = Duration::from_millis(200);

/// Observer of a running agent. It writes only the word that shows the agent an active observer.
#[derive(Debug)]
pub struct AgentMonitor {
    /// Name of the agent.
    name: String,
    /// Region of the agent.
    region: WorkerRegion,
    /// Status that the agent publishes to observers.
    watch: AgentStatusWords,
    /// Latency objective, which selects the percentile.
    objective: Objective,
    /// Worked time of each channel's worker at the last observation; `None` without a worker.
    busy_ns: Vec<Option<u64>>,
    /// Latency counts at the observations in the last window, and at the one before it.
    observations: VecDeque<(Instant, Times)>,
    /// Latency counts at the last call of `tail`; at first, those when the region was opened, or at `restart`.
    last_tail_times: Times,
}

impl AgentMonitor {
    /// Opens the agent with this name.
    ///
    /// # Errors
    /// If its region cannot be opened.
    pub fn open(name: &str, objective: Objective) -> Result<Self, CoschedError> {
        let region = WorkerRegion::open(&path_of(name))?;
        let watch = region.watch();
        let busy_ns = vec![None; region.shape().channels];
        let last_tail_times = watch.times();
        watch.ask(); // announces this observer, so that the agent begins to publish
        Ok(Self {
            name: name.to_owned(),
            region,
            watch,
            objective,
            busy_ns,
            observations: VecDeque::new(),
            last_tail_times,
        })
    }

    /// Returns the given name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the agent's process id.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.region.pid()
    }

    /// Returns true while the agent runs, or if the system cannot tell.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.region.has_agent()
    }

    /// Returns the attached workers. Omits workers that the agent added after this observer opened the region.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStatus> {
        let channels = 0..self.region.shape().channels;
        let attached = channels.filter(|channel| self.region.has_worker(*channel));
        attached.filter_map(|channel| self.region.worker(channel)).collect()
    }

    /// Returns the CPUs of a job: `job_cpus` if given, else the workers'. Refuses the dispatcher's CPU, and CPUs that
    /// this process may not use.
    ///
    /// # Errors
    /// If the CPUs are unknown, or a batch must not use them.
    pub fn cpus(
        &self,
        job_cpus: Option<&BTreeSet<usize>>,
    ) -> Result<BTreeSet<usize>, CoschedError> {
        let selected = match job_cpus {
            Some(job_cpus) => job_cpus.clone(),
            None => self.workers_cpus()?,
        };
        let usable = cpus::usable();
        if let Some(&cpu) = selected.iter().find(|cpu| !usable.contains(cpu)) {
            return Err(CoschedError::Cpu { cpu, usable });
        }
        match self.watch.core().filter(|core| selected.contains(core)) {
            Some(core) => Err(CoschedError::Dispatcher(core)),
            None => Ok(selected),
        }
    }

    /// Returns the CPUs to which the workers are pinned. Fails for a worker on several CPUs, because its idle core is
    /// unknown.
    fn workers_cpus(&self) -> Result<BTreeSet<usize>, CoschedError> {
        let mut selected = BTreeSet::new();
        for worker in self.workers() {
            // A thread in another PID namespace is not visible.
            let Some(scheduling) = Scheduling::of(worker.thread) else { continue };
            match scheduling.cpus.len() {
                1 => selected.extend(scheduling.cpus),
                _ => {
                    let list: Vec<_> = scheduling.cpus.iter().map(usize::to_string).collect();
                    let (worker, process) = (worker.identity.id, worker.process);
                    return Err(CoschedError::NotPinned { worker, process, cpus: list.join(",") });
                }
            }
        }
        match selected.is_empty() {
            true => Err(CoschedError::NoWorkers(self.name.clone())),
            false => Ok(selected),
        }
    }

    /// Returns the id of a worker without real-time class, if any. A batch of the normal class would delay its tasks.
    #[must_use]
    pub fn normal_worker(&self) -> Option<u16> {
        let is_normal = |worker: &WorkerStatus| {
            Scheduling::of(worker.thread).is_some_and(|scheduling| !scheduling.is_real_time())
        };
        self.workers().into_iter().find(is_normal).map(|worker| worker.identity.id)
    }

    /// Forgets all observations. The next ones begin now.
    pub fn restart(&mut self) {
        self.watch.ask();
        self.busy_ns.fill(None);
        self.observations.clear();
        self.last_tail_times = self.watch.times();
    }

    /// Observes the workers: their load since the last observation, the waiting tasks per worker, and the latency
    /// percentile of the last window.
    pub fn look(&mut self, now: Instant) -> Observation {
        // Tells the agent that an observer is active, so that it publishes its status.
        self.watch.ask();
        let times = self.watch.times();
        let since = self.observations.back().map(|(then, _)| now.duration_since(*then));
        let (mut workers, mut worked_ns) = (0_u32, 0_u64);
        for channel in 0..self.busy_ns.len() {
            let busy_ns = self.region.worker(channel).map(|worker| worker.busy_ns);
            workers += u32::from(busy_ns.is_some());
            if let (Some(now), Some(before)) = (busy_ns, self.busy_ns[channel]) {
                // A new worker in the channel starts from 0.
                worked_ns += now.saturating_sub(before);
            }
            self.busy_ns[channel] = busy_ns;
        }
        let worker_count = f64::from(workers.max(1));
        // The first observation has no interval: counts as full load, so that the batch starts small.
        let load = since
            .map_or(1.0, |time| worked_ns as f64 / (time.as_nanos().max(1) as f64 * worker_count));
        // Keeps one observation older than the window: its reference.
        while self.observations.len() > 1 && now.duration_since(self.observations[1].0) > WINDOW {
            self.observations.pop_front();
        }
        let window = self.observations.front().map_or(&self.last_tail_times, |(_, times)| times);
        let tail = times.since(window).percentile(self.objective.part);
        self.observations.push_back((now, times));
        Observation {
            load: load.min(1.0),
            backlog: self.watch.waiting() as f64 / worker_count,
            tail,
        }
    }

    /// Returns the percentile since the last call, in microseconds, and the number of tasks. `None` without tasks.
    pub fn tail(&mut self) -> (Option<f64>, u64) {
        let times = self.watch.times();
        let since = times.since(&self.last_tail_times);
        self.last_tail_times = times;
        (since.percentile(self.objective.part), since.count())
    }
}
