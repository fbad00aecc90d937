//! Workers of an agent, as the watching thread sees them: processes, watched by their locks in the region, or threads.
//!
//! A region is the memory that an agent shares with its workers, with one channel per worker. A worker claims a channel
//! by a number, the claim. The agent grants the claim. The worker holds the channel's lock while it lives, and the
//! kernel releases the lock when the process ends. The agent's polling core, *the core*, gives out the tasks; this
//! module runs on another thread. The core itself notices the end of a worker thread.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use wedjat_core::ring::WorkerRegion;
use wedjat_core::role::agent::Death;

use super::attach_log::AttachLog;

/// Interval of the watching thread's checks on a node with local workers. The agent learns of a dead worker within it.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(5);
/// Time in which worker threads must end after the agent.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks for the end of worker threads.
const JOIN_INTERVAL: Duration = Duration::from_millis(1);

/// Watch over the workers that attach to a region.
#[derive(Debug)]
pub struct WorkerWatch {
    region: Arc<WorkerRegion>,
    /// Queue of dead workers for the core, which drops their tasks as `worker_lost`.
    deaths: Arc<ArrayQueue<Death>>,
    attach_log: AttachLog,
}

impl WorkerWatch {
    /// Creates the watch over a region without workers. The core takes deaths from the queue.
    #[must_use]
    pub fn new(region: Arc<WorkerRegion>, deaths: Arc<ArrayQueue<Death>>) -> Self {
        let attach_log = AttachLog::new(&region);
        Self { region, deaths, attach_log }
    }

    /// Reports dead workers to the core, and logs attached and departed ones.
    pub fn check(&mut self) {
        report_deaths(&self.region, &self.deaths);
        self.attach_log.update(&self.region);
    }
}

/// Reports workers with a granted claim and a free lock to the core: dead ones, and some that have just left in order,
/// which the core tells apart. Reads the claim before the lock, so that the death carries the dead worker's claim and
/// not a successor's. The core ignores the death if a successor has the grant by then. Public for the benchmark of
/// killed workers, which has no [`WorkerWatch`].
pub fn report_deaths(region: &WorkerRegion, deaths: &ArrayQueue<Death>) {
    for channel in 0..region.shape().channels {
        let claim = region.granted(channel); // 0 for none
        if claim != 0 && !region.has_worker(channel) {
            // If the queue is full, the next check finds the death again.
            let _ = deaths.push(Death { channel, claim });
        }
    }
}

/// Waits up to [`TIMEOUT`] for the worker threads. Logs and abandons a thread that does not end, for example one in an
/// endless task.
pub(super) fn join_threads(threads: Vec<JoinHandle<()>>) {
    let start = Instant::now();
    while !threads.iter().all(JoinHandle::is_finished) && start.elapsed() < TIMEOUT {
        std::thread::sleep(JOIN_INTERVAL);
    }
    for thread in threads {
        let name = thread.thread().name().unwrap_or("a worker").to_owned();
        if !thread.is_finished() {
            log::warn!("{name} is still busy with a task and is abandoned");
        } else if thread.join().is_err() {
            log::error!("{name} ended by a panic; its tasks are counted as worker_lost");
        }
    }
}
