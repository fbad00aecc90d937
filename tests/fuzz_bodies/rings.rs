//! Fuzz body of the channels between a dispatcher and two workers, while arbitrary words of their region change. Both
//! sides must stay within the region, and the dispatcher's count of tasks must stay right.
//!
//! A worker claims a channel by a number, and the dispatcher grants the claim. The rings of a granted channel carry
//! tasks to the worker, and completions back. An input is a sequence of steps of [`STEP`] bytes: `run` lists the
//! actions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use wedjat::ring::{Channel, Outcome, TakenTask, TaskIds, WorkerEnd, WorkerIdentity, WorkerRegion};

/// Number of slots of each channel.
const SLOTS: usize = 4;
/// Maximum number of bytes of a payload.
const PAYLOAD: usize = 16;
/// Number of workers, each with a channel.
const WORKERS: usize = 2;
/// Number of bytes of a step: action (1), position (2, the worker's index or that of a word) and value (8).
const STEP: usize = 11;

/// Both ends of a channel, and counts of its tasks for comparison with the dispatcher's own.
struct Ends {
    /// The dispatcher's end.
    channel: Channel,
    /// The worker's end; `None` without a worker.
    worker: Option<WorkerEnd>,
    /// Tasks that the worker has taken and not completed.
    taken: Vec<TakenTask>,
    /// Maximum number of taken tasks: 1 if the worker completes tasks in order, otherwise [`SLOTS`].
    taken_max: usize,
    /// Number of tasks that the dispatcher sent.
    given: u64,
    /// Number of tasks that the dispatcher counts as completed or lost.
    ended: u64,
}

/// Runs one input. Returns the number of answered tasks. Ignores bytes after the last full step.
///
/// # Panics
/// If an invariant does not hold.
pub fn run(input: &[u8]) -> u64 {
    let identities = [0, 1].map(|id| WorkerIdentity { id, pool: 3 });
    let region = WorkerRegion::heap(&identities, SLOTS, PAYLOAD).expect("a possible region");
    let region = Arc::new(region);
    let memory = region.memory();
    let mut channels: [Ends; WORKERS] = std::array::from_fn(|index| Ends {
        channel: region.channel(index),
        worker: None,
        taken: Vec::new(),
        taken_max: 1,
        given: 0,
        ended: 0,
    });
    let mut answered = 0;
    for step in input.chunks_exact(STEP) {
        let position = usize::from(u16::from_le_bytes([step[1], step[2]]));
        let value = u64::from_le_bytes(step[3..].try_into().expect("eight bytes"));
        let index = position % WORKERS;
        let ends = &mut channels[index];
        match step[0] % 8 {
            0 => memory[position % memory.len()].store(value, Relaxed),
            // Small values are plausible counts and lengths.
            1 => memory[position % memory.len()].store(value % 64, Relaxed),
            // A worker claims the channel. The claim fails while another worker has the channel.
            2 => {
                if let Some(worker_end) = region.claim(index).ok().flatten() {
                    ends.replace(Some(worker_end));
                }
            }
            // The worker leaves the channel in order, even with tasks that it has not completed.
            3 => ends.replace(None),
            4 => ends.grant(value % 2 == 1),
            5 => ends.give(value),
            6 => ends.work(value),
            _ => answered += ends.collect(),
        }
        for ends in &channels {
            let outstanding = ends.channel.sender().outstanding();
            assert!(outstanding <= SLOTS);
            assert_eq!(ends.given, ends.ended + outstanding as u64, "no task is lost or doubled");
        }
    }
    answered
}

impl Ends {
    /// Sets or removes the worker. A removed worker leaves the channel. Forgets the tasks that it had taken.
    fn replace(&mut self, worker: Option<WorkerEnd>) {
        (self.worker, self.taken_max) = (worker, 1);
        self.taken.clear();
    }

    /// Grants the channel to a new claim. Tasks of the previous worker are lost. Then starts the worker, if it is
    /// granted and without tasks. With `any_order` it completes tasks in any order.
    fn grant(&mut self, any_order: bool) {
        let claim = self.channel.sender().claim();
        if claim != 0 && claim != self.channel.sender().granted() {
            self.give_up();
            self.channel.sender_mut().grant(claim);
        }
        // A `taken_max` of 1 means that the worker completes tasks in order. After a change to any order it must not
        // start again.
        if let Some(worker_end) = &mut self.worker
            && worker_end.receiver().is_granted()
            && self.taken.is_empty()
            && self.taken_max == 1
        {
            worker_end.start();
            if any_order {
                worker_end.complete_in_any_order();
                self.taken_max = SLOTS;
            }
        }
    }

    /// Revokes the worker's grant. Its tasks are lost.
    fn give_up(&mut self) {
        // The range has one element per lost task.
        let lost = self.channel.sender_mut().revoke();
        self.ended += lost.end - lost.start;
    }

    /// Sends a task, if a worker has the grant and its ring has room. The task's number and payload depend on `value`.
    fn give(&mut self, value: u64) {
        let ids = TaskIds { app: 1, seq: value as u32, class: 0 };
        let payload = &value.to_le_bytes().repeat(2)[..value as usize % (PAYLOAD + 1)];
        self.given += u64::from(self.channel.send(ids, payload));
    }

    /// Lets the worker take its next task, if there is one and the worker has room. Then the worker answers one of its
    /// tasks, or completes it without a reply.
    fn work(&mut self, value: u64) {
        let Some(worker_end) = &self.worker else { return };
        if self.taken.len() < self.taken_max {
            self.taken.extend(worker_end.take().ok().flatten());
        }
        if self.taken.is_empty() {
            return;
        }
        let task = self.taken.swap_remove(value as usize % self.taken.len());
        assert!(worker_end.payload(&task).len() <= PAYLOAD);
        match value % 3 {
            0 => worker_end.end_without_reply(task, value),
            _ => {
                let echo = |task: &[u8], reply: &mut [u8]| {
                    reply[..task.len()].copy_from_slice(task);
                    task.len()
                };
                assert!(worker_end.answer(task, echo, || value).is_ok());
            }
        }
    }

    /// Collects completed tasks and reads their replies. Revokes the grant if the worker's count or list is impossible.
    /// Returns the number of answered tasks.
    fn collect(&mut self) -> u64 {
        let Ok(done) = self.channel.collect() else {
            self.give_up();
            return 0;
        };
        self.ended += done.end - done.start;
        let mut answered = 0;
        for count in done {
            let task = self.channel.sender().completed(count);
            if let Outcome::Reply { len, .. } = self.channel.outcome(task) {
                let mut reply = [0; PAYLOAD];
                self.channel.reply(task, &mut reply[..len]);
                answered += 1;
            }
        }
        // Time worked since the last call. The worker may have reported any value: only the call itself is tested.
        self.channel.sender_mut().worked_ns();
        answered
    }
}
