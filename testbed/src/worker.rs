//! Service loop of a worker process: takes tasks from the agent of its host, serves them with the worker's app
//! (workload), and counts them.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use wedjat::worker::{Detached, Sharing, SharingError, Worker};

use crate::app::App;

/// Longest wait for a task before an idle worker checks the stop flag.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

/// Reason why a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The stop flag was set.
    StopRequested,
    /// The agent stopped in order.
    AgentStopped,
    /// The agent died, or has excluded the worker and taken back its tasks.
    Gone(Detached),
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopRequested => f.write_str("stopped"),
            Self::AgentStopped => f.write_str("the agent has stopped"),
            Self::Gone(reason) => reason.fmt(f),
        }
    }
}

impl Serialize for ExitReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Summary of a worker's run.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerSummary {
    /// Global id of the worker.
    pub worker: u16,
    /// Pool of the worker.
    pub pool: u16,
    /// Number of tasks taken and answered.
    pub tasks: u64,
    /// Mean service time in microseconds; 0 without tasks.
    pub service_mean_us: f64,
    /// Reason why it ended.
    pub ended: ExitReason,
}

impl WorkerSummary {
    /// Returns true if the worker or its agent was stopped in order.
    #[must_use]
    pub fn ended_in_order(&self) -> bool {
        !matches!(self.ended, ExitReason::Gone(_))
    }
}

impl fmt::Display for WorkerSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "worker {} of pool {}: {} answered, {:.1} us each; {}",
            self.worker,
            self.pool,
            wedjat::quantity(self.tasks, "task"),
            self.service_mean_us,
            self.ended
        )
    }
}

/// Serves tasks until `stop` is set, the agent ends, or the agent excludes the worker. Finishes tasks that have begun.
/// With `sharing`, several tasks share the core. `stop` guards no other data, so that relaxed accesses suffice.
///
/// # Errors
/// If the worker cannot share its core among tasks.
pub fn serve(
    worker: &mut Worker,
    app: &impl App,
    sharing: Option<&Sharing>,
    stop: &AtomicBool,
) -> Result<WorkerSummary, SharingError> {
    let totals = ServiceTotals::default();
    let ended = match sharing {
        Some(sharing) => serve_shared(worker, app, sharing, stop, &totals)?,
        None => serve_in_order(worker, app, stop, &totals),
    };
    let (tasks, busy) = (totals.tasks.get(), totals.busy.get());
    // The divisor is 1 without tasks.
    let service_mean_us = busy.as_secs_f64() * 1e6 / (tasks as f64).max(1.0);
    Ok(WorkerSummary { worker: worker.id(), pool: worker.pool(), tasks, service_mean_us, ended })
}

/// Number of served tasks, and the sum of their service times. Cells let the handlers of tasks that share the core add
/// to it.
#[derive(Default)]
struct ServiceTotals {
    tasks: Cell<u64>,
    busy: Cell<Duration>,
}

impl ServiceTotals {
    /// Adds a task with its service time.
    fn add(&self, busy: Duration) {
        self.tasks.set(self.tasks.get() + 1);
        self.busy.set(self.busy.get() + busy);
    }
}

/// Serves tasks that share the core, so that short tasks do not wait for long ones. Each runs for a quantum of time in
/// turn, and leaves the core at a yield point.
/// A task's service time excludes the time of other tasks.
fn serve_shared(
    worker: &mut Worker,
    app: &impl App,
    sharing: &Sharing,
    stop: &AtomicBool,
    totals: &ServiceTotals,
) -> Result<ExitReason, SharingError> {
    let may_continue = || !stop.load(Ordering::Relaxed);
    let ended = worker.serve_while(sharing, may_continue, |task, cpu| {
        task.reply_with(|work, reply| {
            let len = app.serve(work, reply, &|| cpu.yield_point());
            totals.add(cpu.worked());
            len
        });
    })?;
    Ok(match ended {
        None => ExitReason::StopRequested,
        Some(Detached::Stopped) => ExitReason::AgentStopped,
        Some(reason) => ExitReason::Gone(reason),
    })
}

/// Serves one task at a time to its end; yield points do nothing.
fn serve_in_order(
    worker: &mut Worker,
    app: &impl App,
    stop: &AtomicBool,
    totals: &ServiceTotals,
) -> ExitReason {
    loop {
        if stop.load(Ordering::Relaxed) {
            return ExitReason::StopRequested;
        }
        match worker.recv(POLL_TIMEOUT) {
            Ok(Some(task)) => {
                let began = Instant::now();
                task.reply_with(|work, reply| app.serve(work, reply, &|| {}));
                totals.add(began.elapsed());
            }
            Ok(None) => {}
            Err(Detached::Stopped) => return ExitReason::AgentStopped,
            Err(reason) => return ExitReason::Gone(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TIMEOUT;
    use crate::app::Echo;
    use std::sync::Arc;
    use wedjat::ring::{Channel, Outcome, TaskIds, WorkerIdentity, WorkerRegion};
    use wedjat::worker::Options;

    /// Creates the region (memory shared with workers) of an agent with one worker, and the agent's end of
    /// that worker's channel.
    fn region() -> (Arc<WorkerRegion>, Channel) {
        // The worker's ring has 4 slots of 32 bytes.
        let region =
            Arc::new(WorkerRegion::heap(&[WorkerIdentity { id: 4, pool: 2 }], 4, 32).unwrap());
        let channel = region.channel(0);
        (region, channel)
    }

    /// Runs an echo worker beside `agent`, which starts after the worker's claim of the channel is granted.
    fn run_beside_agent(
        region: &Arc<WorkerRegion>,
        channel: &mut Channel,
        agent: impl FnOnce(&mut Channel, &AtomicBool),
    ) -> WorkerSummary {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let mut worker = Worker::join(
                    "here",
                    region,
                    &Options { attach_timeout: TIMEOUT, ..Options::default() },
                )
                .unwrap();
                serve(&mut worker, &Echo, None, &stop).unwrap()
            });
            while channel.sender().claim() == 0 {
                std::thread::yield_now();
            }
            let claim = channel.sender().claim();
            channel.sender_mut().grant(claim);
            agent(channel, &stop);
            working.join().unwrap()
        })
    }

    /// Gives the worker tasks of five bytes one after another, and waits for each reply.
    fn give_and_wait(channel: &mut Channel, tasks: u32) {
        for seq in 0..tasks {
            assert!(channel.send(TaskIds { app: 1, seq, class: 1 }, &[seq as u8; 5]));
            let mut done = 0..0;
            while done.is_empty() {
                done = channel.collect().unwrap();
                std::thread::yield_now();
            }
            assert!(matches!(
                channel.outcome(channel.sender().completed(done.start)),
                Outcome::Reply { len: 5, .. }
            ));
        }
    }

    #[test]
    fn worker_serves_until_stopped() {
        let (region, mut channel) = region();
        let served = run_beside_agent(&region, &mut channel, |channel, stop| {
            give_and_wait(channel, 30);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!((served.worker, served.pool, served.tasks), (4, 2, 30));
        assert_eq!(served.ended, ExitReason::StopRequested);
        assert!(served.ended_in_order() && served.to_string().contains("30 tasks"), "{served}");
    }

    #[test]
    fn workers_end_when_their_agent_stops() {
        let (region, mut channel) = region();
        let served = run_beside_agent(&region, &mut channel, |channel, _| {
            assert!(channel.send(TaskIds::default(), b"last"));
            channel.stop();
        });
        assert_eq!((served.tasks, served.ended), (1, ExitReason::AgentStopped));
    }

    #[test]
    fn excluded_worker_reports_its_exclusion() {
        let (region, mut channel) = region();
        let served = run_beside_agent(&region, &mut channel, |channel, _| {
            give_and_wait(channel, 1);
            channel.sender_mut().revoke();
            channel.wake();
        });
        assert_eq!((served.tasks, served.ended), (1, ExitReason::Gone(Detached::Excluded)));
        assert!(!served.ended_in_order());
    }
}
