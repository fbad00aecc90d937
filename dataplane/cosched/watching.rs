//! What an agent's workers do, as another process sees it in the region that they share.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use wedjat_cosched::Observation;
use wedjat_cosched::mechanism::Scheduling;

use super::{CoschedError, Objective};
use crate::cpus;
use crate::ring::region::path_of;
use crate::ring::watch::{Times, Watch};
use crate::ring::{WorkerRegion, WorkerSeen};

/// Over how long the percentile is taken that has an objective: the shortest time after which a guard is told of it anew.
const WINDOW: Duration = Duration::from_millis(200);

/// A running agent, watched.
#[derive(Debug)]
pub struct Watching {
    name: String,
    region: WorkerRegion,
    watch: Watch,
    objective: Objective,
    /// By channel: how long each worker had worked.
    busy_ns: Vec<Option<u64>>,
    /// The times at the looks of the last window.
    looks: VecDeque<(Instant, Times)>,
    /// The times when they were last asked for over longer.
    before: Times,
}

impl Watching {
    /// Watches the agent of this name from now on.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(name: &str, objective: Objective) -> Result<Self, CoschedError> {
        let region = WorkerRegion::open(&path_of(name))?;
        let watch = region.watch();
        let (before, busy_ns) = (watch.times(), vec![None; region.shape().channels]);
        let looks = VecDeque::new();
        watch.ask();
        Ok(Self { name: name.to_owned(), region, watch, objective, busy_ns, looks, before })
    }

    /// As it was named.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u64 {
        self.region.pid()
    }

    /// It has not ended.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.region.has_agent()
    }

    /// Workers that are there.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerSeen> {
        let channels = 0..self.region.shape().channels;
        let there = channels.filter(|channel| self.region.has_worker(*channel));
        there.filter_map(|channel| self.region.worker(channel)).collect()
    }

    /// The cores of its workers, or those of them that are named; none of them is its dispatcher's.
    ///
    /// # Errors
    /// When they are not known, or when a batch may not have them.
    pub fn cpus(&self, named: Option<&BTreeSet<usize>>) -> Result<BTreeSet<usize>, CoschedError> {
        let found = match named {
            Some(named) => named.clone(),
            None => self.workers_cpus()?,
        };
        let usable = cpus::usable();
        if let Some(&cpu) = found.iter().find(|cpu| !usable.contains(cpu)) {
            return Err(CoschedError::Cpu { cpu, usable });
        }
        match self.watch.core().filter(|core| found.contains(core)) {
            Some(core) => Err(CoschedError::Dispatcher(core)),
            None => Ok(found),
        }
    }

    fn workers_cpus(&self) -> Result<BTreeSet<usize>, CoschedError> {
        let mut found = BTreeSet::new();
        for worker in self.workers() {
            let Some(scheduling) = Scheduling::of(worker.thread) else { continue };
            match scheduling.cpus.len() {
                1 => found.extend(scheduling.cpus),
                _ => {
                    let list: Vec<_> = scheduling.cpus.iter().map(usize::to_string).collect();
                    let (worker, process) = (worker.place.id, worker.process);
                    return Err(CoschedError::NotPinned { worker, process, cpus: list.join(",") });
                }
            }
        }
        match found.is_empty() {
            true => Err(CoschedError::NoWorkers(self.name.clone())),
            false => Ok(found),
        }
    }

    /// A worker that is not of real time, by its id.
    #[must_use]
    pub fn normal_worker(&self) -> Option<u16> {
        let is_normal = |worker: &WorkerSeen| {
            Scheduling::of(worker.thread).is_some_and(|scheduling| !scheduling.is_real_time())
        };
        self.workers().into_iter().find(is_normal).map(|worker| worker.place.id)
    }

    /// What the workers did since the last look.
    pub fn look(&mut self, now: Instant) -> Observation {
        self.watch.ask();
        let times = self.watch.times();
        let since = self.looks.back().map(|(then, _)| now.duration_since(*then));
        let (mut workers, mut worked_ns) = (0_u32, 0_u64);
        for channel in 0..self.busy_ns.len() {
            let seen = self.region.worker(channel).map(|worker| worker.busy_ns);
            workers += u32::from(seen.is_some());
            if let (Some(now), Some(before)) = (seen, self.busy_ns[channel]) {
                // Another worker in its place begins anew.
                worked_ns += now.saturating_sub(before);
            }
            self.busy_ns[channel] = seen;
        }
        let all = f64::from(workers.max(1));
        let load =
            since.map_or(1.0, |time| worked_ns as f64 / (time.as_nanos().max(1) as f64 * all));
        while self.looks.len() > 1 && now.duration_since(self.looks[1].0) > WINDOW {
            self.looks.pop_front();
        }
        let window = self.looks.front().map_or(&self.before, |(_, times)| times);
        let tail = times.since(window).percentile(self.objective.part);
        self.looks.push_back((now, times));
        Observation { load: load.min(1.0), backlog: self.watch.waiting() as f64 / all, tail }
    }

    /// The percentile since this was last asked, in microseconds, and of how many tasks.
    pub fn tail(&mut self) -> (Option<f64>, u64) {
        let times = self.watch.times();
        let since = times.since(&self.before);
        self.before = times;
        (since.percentile(self.objective.part), since.count())
    }
}
