//! Emulated workers of agents: they attach to their agent's memory, take tasks when idle, and answer at the
//! emulated time. They never spin. Each occupies one channel of the agent's shared memory (its region).

use std::sync::Arc;

use wedjat::ring::{WorkerEnd, WorkerRegion};
use wedjat_pktgen::payload::Work;

/// Time without admission by the agent after which a worker attaches again: the agent may have admitted and
/// removed it during a pause.
const ADMISSION_TIMEOUT_NS: u64 = 100_000_000;

/// A worker.
#[derive(Debug)]
pub struct Worker {
    /// Id of the worker.
    pub id: u16,
    /// Index of its agent among the nodes.
    pub agent: usize,
    /// Its channel in the agent's region.
    channel: usize,
    /// The worker's end of its channel, while it is attached.
    worker_end: Option<WorkerEnd>,
    /// True once the agent has admitted the worker (granted its claim of the channel).
    started: bool,
    /// Time at which it attached.
    attached_ns: u64,
    /// Service time of its current task.
    serving_ns: Option<u64>,
    /// Number of workers that used this channel before. Events of an earlier epoch do not apply to this worker.
    pub epoch: u32,
    /// True if the worker is paused.
    pub paused: bool,
    /// True if its task ended during the pause. The worker answers it after the pause.
    pub ended_in_pause: bool,
    /// True if the worker has left and no other has attached yet.
    pub has_left: bool,
}

/// Next action of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    /// No action.
    Nothing,
    /// The worker has taken a task with this service time.
    Task(u64),
    /// The worker attaches again: the agent did not admit it in time, has removed it, or has ended.
    Attach,
}

impl Worker {
    /// Creates worker `id` for a channel of an agent, not yet attached.
    #[must_use]
    pub fn new(id: u16, agent: usize, channel: usize) -> Self {
        Self {
            id,
            agent,
            channel,
            worker_end: None,
            started: false,
            attached_ns: 0,
            serving_ns: None,
            epoch: 0,
            paused: false,
            ended_in_pause: false,
            has_left: false,
        }
    }

    /// Attaches, if the channel is free. Returns false if the caller must try again.
    ///
    /// # Errors
    /// The system's error.
    pub fn attach(&mut self, region: &Arc<WorkerRegion>, now_ns: u64) -> Result<bool, String> {
        if self.worker_end.is_none() {
            self.attached_ns = now_ns;
            self.worker_end = region.claim(self.channel).map_err(|error| error.to_string())?;
            self.started = false;
        }
        Ok(self.worker_end.is_some())
    }

    /// Leaves the channel. The agent takes back the worker's tasks.
    pub fn leave(&mut self) {
        (self.worker_end, self.serving_ns, self.started, self.ended_in_pause) =
            (None, None, false, false);
        self.epoch += 1;
    }

    /// Returns the number of tasks that the worker received and has not answered.
    pub fn tasks(&mut self) -> usize {
        let serving = usize::from(self.serving_ns.is_some());
        match &mut self.worker_end {
            Some(worker_end) if self.started => serving + worker_end.receiver_mut().waiting(),
            _ => serving,
        }
    }

    /// Returns true if the worker serves a task.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.serving_ns.is_some()
    }

    /// Returns true if the worker is admitted, not paused, and without tasks.
    pub fn is_idle(&mut self) -> bool {
        self.started && !self.paused && self.tasks() == 0
    }

    /// Returns true if the worker is admitted and not paused.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.started && !self.paused && self.worker_end.is_some()
    }

    /// Takes the next task, if the worker is admitted, not paused and idle. Returns [`WorkerAction::Attach`] if
    /// the agent has not admitted the worker in time, or has removed it.
    ///
    /// # Errors
    /// If the agent gave the worker an invalid task.
    pub fn poll(&mut self, now_ns: u64) -> Result<WorkerAction, String> {
        let awaits_admission = now_ns < self.attached_ns + ADMISSION_TIMEOUT_NS && !self.started;
        let Some(worker_end) =
            self.worker_end.as_mut().filter(|_| !self.paused && self.serving_ns.is_none())
        else {
            return Ok(WorkerAction::Nothing);
        };
        if !worker_end.receiver().is_granted() {
            return Ok(if awaits_admission { WorkerAction::Nothing } else { WorkerAction::Attach });
        }
        if !self.started {
            worker_end.start();
            self.started = true;
        }
        if !worker_end.take().map_err(|_| "a task's place is beyond the region".to_owned())? {
            return Ok(WorkerAction::Nothing);
        }
        let work = Work::parse(worker_end.payload())
            .ok_or("a task's payload differs from the sent one")?;
        let service_ns = u64::from(work.service_ns);
        self.serving_ns = Some(service_ns);
        Ok(WorkerAction::Task(service_ns))
    }

    /// Answers the current task with the task's own payload.
    pub fn answer(&mut self) {
        if let (Some(worker_end), Some(service_ns)) = (&mut self.worker_end, self.serving_ns.take())
        {
            let echo = |task: &[u8], answer: &mut [u8]| {
                answer[..task.len()].copy_from_slice(task);
                task.len()
            };
            worker_end.answer(echo, || service_ns);
        }
        self.ended_in_pause = false;
    }
}
