//! Event simulation of jobs on cores, for the evaluation of ASA_X. An event is the end of a stage (a sequential or
//! parallel part of a job), or the time for a new decision.
//!
//! A host is a job with cores of its own. A guest is a second job that shares a host's cores. In the schemes
//! with ASA_X, a learner per workflow of the host decides the guest's share, and learns from the host's slow-down.
//!
//! Work is measured in seconds at standalone speed, the speed of a job that shares its cores with no other.

use std::collections::VecDeque;
use std::io::Write;

use crate::chooser::{Chooser, Round};
use crate::journal::LoggingChooser;
use crate::share::Share;
use crate::state::{Outcome, Progress, State};

use super::jobs::{Job, WIDEST};
use super::report::{JobRecord, Learner, RunResults, Usage, run_results};
use super::{Arm, ClusterError, Contention, Experiment, Workflow};

/// Seconds between decisions about a guest's share.
const INTERVAL: f64 = 60.0;

/// Learner for all hosts of one workflow, with the numbers that the results of a run need.
pub(super) struct WorkflowLearner {
    chooser: LoggingChooser<Box<dyn Write>>,
    /// Number of decisions so far.
    decisions: u64,
    /// Last completed round.
    last: Option<Round>,
}

impl WorkflowLearner {
    /// Creates a learner that logs its decisions to `log`.
    pub(super) fn new(chooser: Chooser, log: Box<dyn Write>) -> std::io::Result<Self> {
        Ok(Self { chooser: LoggingChooser::new(chooser, log)?, decisions: 0, last: None })
    }

    /// Draws a guest's share, which no guard limits. Returns the decision's number and the share.
    fn decide(&mut self, now: f64, state: &State) -> Result<(u64, Share), ClusterError> {
        self.decisions += 1;
        Ok(self.chooser.decide_concurrent(nanoseconds(now), state, Share::MOST)?)
    }

    /// Learns from the outcome of a decision.
    fn learn(&mut self, decision: u64, now: f64, outcome: &Outcome) -> Result<(), ClusterError> {
        let update = self.chooser.learn_of(decision, nanoseconds(now), outcome)?;
        if let Some(round) = update.and_then(|update| update.ended) {
            self.last = Some(round);
        }
        Ok(())
    }

    /// Closes the log, and returns the final state.
    fn end(self, workflow: Workflow) -> Result<Learner, ClusterError> {
        let experts = self.chooser.chooser().experts().iter().map(|expert| expert.name.clone());
        let (experts, decisions, last) = (experts.collect(), self.decisions, self.last);
        self.chooser.into_log()?;
        Ok(Learner { workflow, decisions, experts, last })
    }
}

/// Returns the outcome of a decision that gave no share: the host is not slower than expected. `batch` is the progress
/// of the refused guest. It causes a loss only in mode balanced.
fn harmless_outcome(batch: Option<Progress>) -> Outcome {
    Outcome { expected: INTERVAL, observed: INTERVAL, batch }
}

/// Converts seconds to whole nanoseconds.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// A job that has started: a host, a guest, or a suspended guest.
#[derive(Clone, Debug)]
struct ActiveJob {
    /// Index of the job.
    job: usize,
    /// Time of its start in seconds.
    started: f64,
    /// Index of its current stage.
    stage: usize,
    /// Completed work in seconds at standalone speed.
    done: f64,
    /// Completed work of the current stage, in the same unit.
    done_in_stage: f64,
    /// Current speed, in seconds of work per second.
    speed: f64,
    /// Cores that the job keeps busy now.
    busy: f64,
    /// Completed work at the time of the last decision.
    done_at_decision: f64,
    /// Its use of CPU and memory so far.
    usage: Usage,
}

impl ActiveJob {
    /// Returns the job's progress, from which learners compute its happiness. A task is a second of work, and `rate` is
    /// the job's speed.
    fn progress(&self, job: &Job, now: f64, rate: f64) -> Progress {
        let elapsed = now - self.started;
        Progress { wall: job.wall, elapsed, rate, remaining: (job.alone - self.done).max(0.0) }
    }

    /// Returns the remaining work of the stage in seconds at standalone speed.
    fn remaining_work(&self, job: &Job) -> f64 {
        job.workflow.stages()[self.stage].part * job.alone - self.done_in_stage
    }

    /// Returns the number of cores that the stage keeps busy if it has all the job's cores.
    fn usable_cores(&self, job: &Job) -> f64 {
        job.workflow.stages()[self.stage].cpu.map_or(1.0, |cpu| cpu * f64::from(job.cores))
    }

    /// Returns true if the current stage is parallel.
    fn is_parallel(&self, job: &Job) -> bool {
        job.workflow.stages()[self.stage].cpu.is_some()
    }
}

/// Cores of a host job, and the guest that shares them.
#[derive(Clone, Debug)]
struct Allocation {
    /// Number of cores.
    cores: u32,
    host: ActiveJob,
    guest: Option<ActiveJob>,
    /// Share of the guest.
    share: Share,
    /// Number of the decision that chose the share, at the host's learner.
    decision: u64,
    /// Time of that decision.
    chosen_at: f64,
    /// Time of the next decision. Without a guest, the earliest time of a decision about a new guest.
    due: f64,
}

/// State of a simulation. Times are in seconds.
pub(super) struct Engine {
    arm: Arm,
    contention: Contention,
    /// Seconds for which a host gets no request after its learner refused a waiting job. After the suspension of
    /// a guest, the time is `INTERVAL` instead.
    refusal: f64,
    /// Number of cores of the cluster.
    cores: u32,
    /// Number of cores without a host.
    free: u32,
    jobs: Vec<Job>,
    /// Waiting jobs: first suspended guests, then jobs that have not started.
    queue: VecDeque<QueuedJob>,
    allocations: Vec<Allocation>,
    /// Learners in the order of [`Workflow::ALL`]; none in schemes without them.
    learners: Vec<WorkflowLearner>,
    now: f64,
    /// Records of the completed jobs.
    records: Vec<JobRecord>,
}

/// A waiting job.
#[derive(Clone, Debug)]
struct QueuedJob {
    /// Index of the job.
    job: usize,
    /// State of a guest that lost its share; `None` for a job that has not started.
    suspended: Option<ActiveJob>,
}

impl Engine {
    /// Creates a simulation in which all jobs wait at time 0. Fails if the largest job does not fit.
    pub(super) fn new(
        experiment: &Experiment,
        jobs: Vec<Job>,
        learners: Vec<WorkflowLearner>,
    ) -> Result<Self, ClusterError> {
        let cores = experiment.cores;
        if cores < WIDEST {
            return Err(ClusterError::Cores { cores, needed: WIDEST });
        }
        Ok(Self {
            arm: experiment.arm,
            contention: experiment.contention,
            refusal: experiment.refusal,
            cores,
            free: cores,
            queue: (0..jobs.len()).map(|job| QueuedJob { job, suspended: None }).collect(),
            jobs,
            allocations: Vec::new(),
            learners,
            now: 0.0,
            records: Vec::new(),
        })
    }

    /// Simulates until no job runs, and returns the results.
    pub(super) fn run(mut self) -> Result<RunResults, ClusterError> {
        loop {
            self.place()?;
            self.set_speeds();
            let Some(step) = self.next_event() else { break };
            self.advance(step);
            self.end_stages()?;
            self.choose_again()?;
        }
        let learners = self.learners.into_iter().zip(Workflow::ALL);
        let learners =
            learners.map(|(learner, workflow)| learner.end(workflow)).collect::<Result<_, _>>()?;
        Ok(run_results(self.cores, self.arm, &self.jobs, &self.records, learners))
    }

    /// Starts waiting jobs in order, each on free cores as a host, or otherwise as the guest of a running host. Jobs
    /// behind the first one that starts nowhere are backfilled: they get only free cores that do not delay it. Guests
    /// may delay it, because they slow down their hosts and may outlive them.
    fn place(&mut self) -> Result<(), ClusterError> {
        // Time at which the first job without cores can start, and the number of cores that it leaves free then.
        let mut reserved: Option<(f64, u32)> = None;
        let mut position = 0;
        while position < self.queue.len() {
            let job = self.queue[position].job;
            let (cores, wall) = (self.jobs[job].cores, self.jobs[job].wall);
            // A backfilled job ends before the reserved start, or uses only cores that are left over then.
            let fits = match reserved {
                None => true,
                Some((start, spare)) => self.now + wall <= start || cores <= spare,
            };
            if cores <= self.free && fits {
                if let Some((start, spare)) = &mut reserved {
                    *spare -= if self.now + wall <= *start { 0 } else { cores };
                }
                self.free -= cores;
                // Removes the job from the queue, so that `position` then has the next one.
                let host = self.begin(position);
                let now = self.now;
                self.allocations.push(Allocation {
                    cores,
                    host,
                    guest: None,
                    share: Share::NONE,
                    decision: 0,
                    chosen_at: now,
                    due: now,
                });
                continue;
            }
            // A job without cores may start as the guest of a running job.
            if let Some((index, decision, share)) = self.host_for(job, position)? {
                let guest = self.begin(position);
                let allocation = &mut self.allocations[index];
                allocation.decision = decision;
                allocation.host.done_at_decision = allocation.host.done;
                (allocation.guest, allocation.share) = (Some(guest), share);
                (allocation.chosen_at, allocation.due) = (self.now, self.now + INTERVAL);
                continue;
            }
            // The first job that starts nowhere gets the reservation.
            if reserved.is_none() {
                reserved = Some(self.reservation(cores));
            }
            position += 1;
        }
        Ok(())
    }

    /// Removes the job at `position` from the queue, and starts or resumes it.
    fn begin(&mut self, position: usize) -> ActiveJob {
        let waiting =
            self.queue.remove(position).unwrap_or_else(|| unreachable!("a place of the queue"));
        let mut running = waiting.suspended.unwrap_or(ActiveJob {
            job: waiting.job,
            started: self.now,
            stage: 0,
            done: 0.0,
            done_in_stage: 0.0,
            speed: 0.0,
            busy: 0.0,
            done_at_decision: 0.0,
            usage: Usage::default(),
        });
        running.done_at_decision = running.done;
        running
    }

    /// Returns the time at which `cores` cores are free if all jobs use their requested wall time, and the
    /// number of cores left over then.
    fn reservation(&self, cores: u32) -> (f64, u32) {
        // End of a job by its requested wall time, which includes suspension. A job beyond it counts as one that ends
        // now.
        let end_of =
            |running: &ActiveJob| (running.started + self.jobs[running.job].wall).max(self.now);
        let mut ends: Vec<_> = self
            .allocations
            .iter()
            .map(|allocation| {
                // All cores are free only after both have ended: a guest that outlives its host keeps some.
                (
                    allocation.guest.iter().map(end_of).fold(end_of(&allocation.host), f64::max),
                    allocation.cores,
                )
            })
            .collect();
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut free = self.free;
        for (end_time, freed) in ends {
            free += freed;
            if free >= cores {
                return (end_time, free - cores);
            }
        }
        // Not reached: the cluster has room for the largest job.
        (f64::INFINITY, 0)
    }

    /// Returns the index of the first allocation that accepts this job as a guest, with its decision and share.
    /// `position` is the job's position in the queue. Returns `None` if no host accepts it. A host that refuses gets no
    /// further request for `refusal` seconds. In schemes without learners, the decision is 0 and unused.
    fn host_for(
        &mut self,
        job: usize,
        position: usize,
    ) -> Result<Option<(usize, u64, Share)>, ClusterError> {
        for index in 0..self.allocations.len() {
            let allocation = &self.allocations[index];
            if allocation.guest.is_some() || allocation.cores < self.jobs[job].cores {
                continue;
            }
            match self.arm {
                Arm::Slurm => return Ok(None),
                // `set_speeds` divides the cores by fixed rules in these schemes, and does not use the share.
                Arm::Static | Arm::Idle => return Ok(Some((index, 0, Share::at_most(0.5)))),
                _ if allocation.due > self.now => continue,
                _ => {}
            }
            let state = self.state(allocation);
            let learner = &mut self.learners[self.jobs[allocation.host.job].workflow.index()];
            let (decision, share) = learner.decide(self.now, &state)?;
            if share > Share::NONE {
                return Ok(Some((index, decision, share)));
            }
            // A decision to give nothing does no harm, and the guest makes no progress.
            let progress = match &self.queue[position].suspended {
                Some(suspended) => suspended.progress(&self.jobs[job], self.now, 0.0),
                None => {
                    let Job { alone, wall, .. } = self.jobs[job];
                    Progress { wall, elapsed: 0.0, rate: 0.0, remaining: alone }
                }
            };
            learner.learn(decision, self.now, &harmless_outcome(Some(progress)))?;
            self.allocations[index].due = self.now + self.refusal;
        }
        Ok(None)
    }

    /// Returns the state of a host, as the experts see it.
    fn state(&self, allocation: &Allocation) -> State {
        let host = &allocation.host;
        let job = &self.jobs[host.job];
        let used = host.usable_cores(job) / f64::from(job.cores);
        // A new host has no speed yet, and counts as undisturbed.
        let rate = if host.speed > 0.0 { host.speed } else { 1.0 };
        State {
            cpu: used,
            memory: job.workflow.memory(),
            stage: f64::from(u8::from(host.is_parallel(job))),
            interval: (host.done / job.alone).min(1.0),
            progress: host.progress(job, self.now, rate),
        }
    }

    /// Recomputes the speed of every job from its current cores, and those of its neighbour.
    fn set_speeds(&mut self) {
        for allocation in &mut self.allocations {
            let all = f64::from(allocation.cores);
            let host_job = &self.jobs[allocation.host.job];
            let wanted = allocation.host.usable_cores(host_job);
            // Numbers of cores that the scheme grants to each. A job may use fewer.
            let (for_host, for_guest) = match self.arm {
                Arm::Static => (all / 2.0, all / 2.0),
                Arm::Idle => (all, (all - wanted).max(0.0)),
                _ => (all * (1.0 - allocation.share.part()), all * allocation.share.part()),
            };
            let Some(guest) = &mut allocation.guest else {
                // The static scheme reserves the second half even if it is unused.
                let cores = if self.arm == Arm::Static { wanted.min(for_host) } else { wanted };
                allocation.host.set_speed(host_job, cores, &self.contention, 0.0, 0.0);
                continue;
            };
            let guest_job = &self.jobs[guest.job];
            let host_cores = wanted.min(for_host);
            let guest_cores = guest.usable_cores(guest_job).min(for_guest);
            // Memory demand beyond the allocation's memory, as a fraction of that memory. Unit: the memory of a core.
            let memory = |job: &Job| job.workflow.memory() * f64::from(job.cores);
            let missing = ((memory(host_job) + memory(guest_job)) / all - 1.0).max(0.0);
            // A guest without cores touches no memory.
            let missing = if guest_cores > 0.0 { missing } else { 0.0 };
            let contention = &self.contention;
            allocation.host.set_speed(host_job, host_cores, contention, guest_cores / all, missing);
            guest.set_speed(guest_job, guest_cores, contention, host_cores / all, missing);
        }
    }

    /// Returns the seconds until the next event, or `None` if no job runs.
    fn next_event(&self) -> Option<f64> {
        let mut step = f64::INFINITY;
        for allocation in &self.allocations {
            for running in std::iter::once(&allocation.host).chain(&allocation.guest) {
                if running.speed > 0.0 {
                    step = step.min(
                        running.remaining_work(&self.jobs[running.job]).max(0.0) / running.speed,
                    );
                }
            }
            // A new decision matters only to a guest, or to a job that waits.
            let is_awaited = allocation.guest.is_some() || !self.queue.is_empty();
            if !self.learners.is_empty() && is_awaited && allocation.due > self.now {
                step = step.min(allocation.due - self.now);
            }
        }
        step.is_finite().then_some(step)
    }

    /// Advances the time by `step` seconds, and all jobs by their work in it.
    fn advance(&mut self, step: f64) {
        self.now += step;
        for allocation in &mut self.allocations {
            let jobs = &self.jobs;
            let running = || std::iter::once(&allocation.host).chain(&allocation.guest);
            // Memory used by a job, in units of a core's memory.
            let memory = |running: &ActiveJob| {
                jobs[running.job].workflow.memory() * f64::from(jobs[running.job].cores)
            };
            let used =
                running().map(|running| running.busy).sum::<f64>() / f64::from(allocation.cores);
            let memory =
                (running().map(memory).sum::<f64>() / f64::from(allocation.cores)).min(1.0);
            for running in std::iter::once(&mut allocation.host).chain(&mut allocation.guest) {
                running.done += step * running.speed;
                running.done_in_stage += step * running.speed;
                running.usage.add(step, running.busy, used, memory);
            }
        }
    }

    /// Moves jobs whose stage has ended to the next stage, or out of the simulation.
    fn end_stages(&mut self) -> Result<(), ClusterError> {
        let mut index = 0;
        while index < self.allocations.len() {
            let now = self.now;
            let allocation = &mut self.allocations[index];
            let host_ended = allocation.host.next_stage(&self.jobs);
            let guest_ended =
                allocation.guest.as_mut().is_some_and(|guest| guest.next_stage(&self.jobs));
            if host_ended || guest_ended {
                self.learn(index)?;
            }
            let allocation = &mut self.allocations[index];
            if guest_ended {
                self.records.extend(allocation.guest.take().map(|guest| guest.finish(now)));
                allocation.due = now;
            }
            if !host_ended {
                index += 1;
                continue;
            }
            // A guest that outlives its host becomes a host. It keeps as many cores as it requested, and the remaining
            // cores become free.
            let remaining_guest = allocation.guest.take();
            let kept_cores = remaining_guest.as_ref().map_or(0, |guest| self.jobs[guest.job].cores);
            self.free += allocation.cores - kept_cores;
            match remaining_guest {
                Some(guest) => {
                    let host = std::mem::replace(&mut allocation.host, guest);
                    self.records.push(host.finish(now));
                    allocation.host.done_at_decision = allocation.host.done;
                    (allocation.cores, allocation.share, allocation.due) =
                        (kept_cores, Share::NONE, now);
                    index += 1;
                }
                None => {
                    let allocation = self.allocations.swap_remove(index);
                    self.records.push(allocation.host.finish(now));
                }
            }
        }
        Ok(())
    }

    /// Reports the outcome of the last decision of the allocation `index` to the host's learner. Forgets a decision
    /// after which no time has passed, or the host has done no work. Does nothing without a guest, or in schemes
    /// without learners.
    fn learn(&mut self, index: usize) -> Result<(), ClusterError> {
        let allocation = &self.allocations[index];
        let (Some(guest), false) = (&allocation.guest, self.learners.is_empty()) else {
            return Ok(());
        };
        let (host, elapsed) = (&allocation.host, self.now - allocation.chosen_at);
        // Alone, the host would need `work` seconds for this work.
        let work = host.done - host.done_at_decision;
        if elapsed <= 0.0 || work <= 0.0 {
            self.learners[self.jobs[host.job].workflow.index()].chooser.forget(allocation.decision);
            return Ok(());
        }
        let rate = (guest.done - guest.done_at_decision) / elapsed;
        let batch = Some(guest.progress(&self.jobs[guest.job], self.now, rate));
        // Rounding may make the host slightly faster than alone.
        let outcome = Outcome { expected: work, observed: elapsed.max(work), batch };
        self.learners[self.jobs[host.job].workflow.index()].learn(
            allocation.decision,
            self.now,
            &outcome,
        )
    }

    /// Reports the outcomes of the decisions about guests' shares that are due for renewal, and decides again. Suspends
    /// a guest that gets no share: it waits at the front of the queue.
    fn choose_again(&mut self) -> Result<(), ClusterError> {
        if self.learners.is_empty() {
            return Ok(());
        }
        for index in 0..self.allocations.len() {
            if self.allocations[index].guest.is_none() || self.allocations[index].due > self.now {
                continue;
            }
            self.learn(index)?;
            let allocation = &self.allocations[index];
            let state = self.state(allocation);
            let learner = &mut self.learners[self.jobs[allocation.host.job].workflow.index()];
            let (decision, share) = learner.decide(self.now, &state)?;
            let now = self.now;
            let allocation = &mut self.allocations[index];
            allocation.host.done_at_decision = allocation.host.done;
            (allocation.share, allocation.chosen_at, allocation.due) = (share, now, now + INTERVAL);
            allocation.decision = decision;
            if share == Share::NONE {
                let Some(guest) = allocation.guest.take() else { continue };
                let progress = guest.progress(&self.jobs[guest.job], now, 0.0);
                learner.learn(decision, now, &harmless_outcome(Some(progress)))?;
                self.queue.push_front(QueuedJob { job: guest.job, suspended: Some(guest) });
            } else if let Some(guest) = &mut allocation.guest {
                guest.done_at_decision = guest.done;
            }
        }
        Ok(())
    }
}

impl ActiveJob {
    /// Sets the speed from the job's number of cores, its neighbour's busy fraction of the allocation, and the missing
    /// fraction of the allocation's memory. [`Contention`] explains the formula.
    fn set_speed(
        &mut self,
        job: &Job,
        cores: f64,
        contention: &Contention,
        neighbour_busy: f64,
        missing_memory: f64,
    ) {
        let part = cores / self.usable_cores(job);
        // A sequential stage neither waits for other threads nor suffers from shared caches.
        let (power, caches) = match self.is_parallel(job) {
            true => (contention.barriers, contention.caches * neighbour_busy),
            false => (1.0, 0.0),
        };
        self.speed = part.powf(power) / (1.0 + caches) / (1.0 + contention.paging * missing_memory);
        self.busy = cores;
    }

    /// Moves to the next stage if the current one has ended. Returns true if the last stage has ended.
    fn next_stage(&mut self, jobs: &[Job]) -> bool {
        let job = &jobs[self.job];
        // Less than a microsecond of work counts as none.
        if self.remaining_work(job) > 1e-6 {
            return false;
        }
        self.done_in_stage = 0.0;
        if self.stage + 1 == job.workflow.stages().len() {
            return true;
        }
        self.stage += 1;
        false
    }

    /// Returns the record of a completed job.
    fn finish(self, now: f64) -> JobRecord {
        JobRecord { job: self.job, started: self.started, ended: now, usage: self.usage }
    }
}
