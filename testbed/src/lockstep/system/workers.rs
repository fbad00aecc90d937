//! Emulated workers of agents. A worker attaches to one channel of its agent's region (the memory that agent and
//! workers share), takes tasks, and answers them at the emulated time. Several tasks may share a worker's core;
//! otherwise it takes one task at a time. The conductor calls a worker instead of letting it spin.

use std::sync::Arc;

use wedjat::ring::{TakenTask, WorkerEnd, WorkerRegion};
use wedjat_pktgen::payload::Work;

use crate::sim::sharing::{SharedCore, Sharing};

/// Time after which a worker that the agent has not admitted attaches again: the agent may have admitted and
/// removed it during a pause of the worker.
const ADMISSION_TIMEOUT_NS: u64 = 100_000_000;

/// A worker.
#[derive(Debug)]
pub struct Worker {
    /// Id of the worker.
    pub id: u16,
    /// Index of its agent among the participants of the run.
    pub agent: usize,
    /// Its channel in the agent's region.
    channel: usize,
    /// The worker's end of its channel, while it is attached.
    worker_end: Option<WorkerEnd>,
    /// True once the worker may take tasks: the agent has admitted it (granted its claim of the channel), and a poll
    /// has found the grant.
    started: bool,
    /// Emulated time of its last attempt to attach.
    attached_ns: u64,
    /// Core of the worker, which knows its current tasks by number.
    core: SharedCore<u64>,
    /// True if several tasks share the core.
    is_shared: bool,
    /// Its current tasks: number, task and service time in nanoseconds.
    serving: Vec<(u64, TakenTask, u64)>,
    /// Number of tasks taken so far, which is the number of the next one.
    taken: u64,
    /// Number of times that a worker left this channel. An event of an earlier epoch does not apply.
    pub epoch: u32,
    /// True if the worker is paused.
    pub paused: bool,
    /// True between the start and the end of a fault in which the worker leaves. Its replacement attaches at the end.
    pub has_left: bool,
}

impl Worker {
    /// Creates worker `id` for a channel of an agent, not yet attached. Without `sharing` it serves one task at a time.
    /// Times of `sharing` are in nanoseconds.
    #[must_use]
    pub fn new(id: u16, agent: usize, channel: usize, sharing: Option<Sharing>) -> Self {
        let one_task = Sharing { quantum: u64::MAX, switch: 0, slots: 1 };
        let sharing = sharing.unwrap_or(one_task);
        Self {
            id,
            agent,
            channel,
            worker_end: None,
            started: false,
            attached_ns: 0,
            core: SharedCore::new(sharing),
            is_shared: sharing.slots > 1,
            serving: Vec::new(),
            taken: 0,
            epoch: 0,
            paused: false,
            has_left: false,
        }
    }

    /// Attaches, if the channel is free: claims it, which the agent must grant. Returns true if the worker is attached;
    /// false if the caller must try again.
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

    /// Leaves the channel, also after the agent was killed or has removed the worker. A running agent drops the
    /// worker's tasks and counts them as lost.
    pub fn leave(&mut self) {
        (self.worker_end, self.started) = (None, false);
        self.serving.clear();
        self.core.clear();
        self.epoch += 1;
    }

    /// Returns the number of unanswered tasks at the worker, including those that wait in its channel.
    pub fn tasks(&mut self) -> usize {
        let serving = self.serving.len();
        match &mut self.worker_end {
            Some(worker_end) if self.started => serving + worker_end.receiver().waiting(),
            _ => serving,
        }
    }

    /// Returns true if the worker serves a task.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        !self.serving.is_empty()
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

    /// Takes tasks, if the worker is admitted, not paused and has room. Returns false if it must attach again: the
    /// agent has not admitted it within 100 ms, or has removed it.
    ///
    /// # Errors
    /// If the agent gave the worker an invalid task.
    pub fn poll(&mut self, now_ns: u64) -> Result<bool, String> {
        let awaits_admission = now_ns < self.attached_ns + ADMISSION_TIMEOUT_NS && !self.started;
        let may_take = !self.paused && self.core.has_room();
        let Some(worker_end) = self.worker_end.as_mut().filter(|_| may_take) else {
            return Ok(true);
        };
        if !worker_end.receiver().is_granted() {
            return Ok(awaits_admission);
        }
        if !self.started {
            worker_end.start();
            if self.is_shared {
                worker_end.complete_in_any_order();
            }
            self.started = true;
        }
        while self.core.has_room()
            && let Some(task) =
                worker_end.take().map_err(|_| "a task's place is beyond the region")?
        {
            let work = Work::parse(worker_end.payload(&task))
                .ok_or("a task's payload differs from the sent one")?;
            let service_ns = u64::from(work.service_ns);
            self.core.push(now_ns, self.taken, service_ns);
            self.serving.push((self.taken, task, service_ns));
            self.taken += 1;
        }
        Ok(true)
    }

    /// Returns the emulated time at which the next task ends; `None` without tasks, or if task and time are unchanged
    /// since the last call.
    pub fn next_end_ns(&mut self) -> Option<u64> {
        self.core.reschedule().map(|(end_ns, _)| end_ns)
    }

    /// Answers the next task that has ended, with the task's own payload. Returns false if none has ended, or during a
    /// pause.
    pub fn answer(&mut self, now_ns: u64) -> bool {
        let ended = self.core.next().filter(|(end_ns, _)| *end_ns <= now_ns && !self.paused);
        let Some((_, number)) = ended else { return false };
        self.core.complete(now_ns);
        let index = self.serving.iter().position(|(serving, ..)| *serving == number);
        if let (Some(worker_end), Some(index)) = (&self.worker_end, index) {
            let (_, task, service_ns) = self.serving.swap_remove(index);
            let echo = |task: &[u8], answer: &mut [u8]| {
                answer[..task.len()].copy_from_slice(task);
                task.len()
            };
            let _ = worker_end.answer(task, echo, || service_ns);
        }
        true
    }
}
