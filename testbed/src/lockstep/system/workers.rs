//! The emulated workers of agents: they attach to the memory that their agent offers, take tasks when they have none, and
//! answer when the emulated time has come. They never spin.

use std::sync::Arc;

use wedjat::ring::{WorkerEnd, WorkerRegion};
use wedjat_pktgen::payload::Work;

/// A worker that was not let in for so long attaches anew: it may have been let in and shut out while it was paused.
const PATIENCE_NS: u64 = 100_000_000;

/// One worker.
#[derive(Debug)]
pub struct Worker {
    /// Its id.
    pub id: u16,
    /// Its agent's place among the nodes.
    pub agent: usize,
    /// Its place in the agent's region.
    channel: usize,
    worker_end: Option<WorkerEnd>,
    started: bool,
    /// When it attached.
    attached_ns: u64,
    /// What its current task takes.
    serving_ns: Option<u64>,
    /// Which of the workers that were in this place it is: what was to happen to others does not happen to it.
    pub epoch: u32,
    /// It does nothing.
    pub paused: bool,
    /// Its task was due while it was paused.
    pub due: bool,
    /// It has left, and nobody has come yet.
    pub away: bool,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// It has taken a task that takes so long.
    Task(u64),
    /// Its agent has shut it out, or has gone: it attaches anew.
    Attach,
}

impl Worker {
    /// The worker of that id at this place of an agent; it is not there yet.
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
            due: false,
            away: false,
        }
    }

    /// Attaches, if its place is free; false when it is to try again.
    ///
    /// # Errors
    /// What the system said.
    pub fn attach(&mut self, region: &Arc<WorkerRegion>, now_ns: u64) -> Result<bool, String> {
        if self.worker_end.is_none() {
            self.attached_ns = now_ns;
            self.worker_end = region.claim(self.channel).map_err(|error| error.to_string())?;
            self.started = false;
        }
        Ok(self.worker_end.is_some())
    }

    /// Goes; what it had is its agent's again.
    pub fn leave(&mut self) {
        (self.worker_end, self.serving_ns, self.started, self.due) = (None, None, false, false);
        self.epoch += 1;
    }

    /// Tasks that it was given and has not answered.
    pub fn tasks(&mut self) -> usize {
        let serving = usize::from(self.serving_ns.is_some());
        match &mut self.worker_end {
            Some(worker_end) if self.started => serving + worker_end.receiver_mut().waiting(),
            _ => serving,
        }
    }

    /// It has a task in work.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.serving_ns.is_some()
    }

    /// It is let in, has nothing to do, and would do something.
    pub fn is_idle(&mut self) -> bool {
        self.started && !self.paused && self.tasks() == 0
    }

    /// It is let in and not paused.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.started && !self.paused && self.worker_end.is_some()
    }

    /// Looks for its next task.
    ///
    /// # Errors
    /// When what its agent gave it can't be.
    pub fn look(&mut self, now_ns: u64) -> Result<Next, String> {
        let waits = now_ns < self.attached_ns + PATIENCE_NS && !self.started;
        let Some(worker_end) =
            self.worker_end.as_mut().filter(|_| !self.paused && self.serving_ns.is_none())
        else {
            return Ok(Next::Nothing);
        };
        if !worker_end.receiver().is_granted() {
            return Ok(if waits { Next::Nothing } else { Next::Attach });
        }
        if !self.started {
            worker_end.start();
            self.started = true;
        }
        if !worker_end.take().map_err(|_| "a task's place is beyond the region".to_owned())? {
            return Ok(Next::Nothing);
        }
        let work =
            Work::parse(worker_end.payload()).ok_or("a task's payload is not what was sent")?;
        let service_ns = u64::from(work.service_ns);
        self.serving_ns = Some(service_ns);
        Ok(Next::Task(service_ns))
    }

    /// Answers its current task, with what the task has.
    pub fn answer(&mut self) {
        if let (Some(worker_end), Some(service_ns)) = (&mut self.worker_end, self.serving_ns.take())
        {
            let echo = |task: &[u8], answer: &mut [u8]| {
                answer[..task.len()].copy_from_slice(task);
                task.len()
            };
            worker_end.answer(echo, || service_ns);
        }
        self.due = false;
    }
}
