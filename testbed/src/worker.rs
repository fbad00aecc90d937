//! A worker at a host's agent: takes tasks, has its app serve them, and counts.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use wedjat::worker::{Gone, Worker};

use crate::app::App;

/// An idle worker looks so often whether it has been told to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Why a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Told,
    /// Its agent has ended in order.
    AgentStopped,
    /// Its agent is gone, or has given it up.
    Gone(Gone),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told => f.write_str("told to stop"),
            Self::AgentStopped => f.write_str("the agent has stopped"),
            Self::Gone(gone) => gone.fmt(f),
        }
    }
}

impl Serialize for Ended {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a worker has done.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// Its global id.
    pub worker: u16,
    /// The pool that it served.
    pub pool: u16,
    /// Tasks taken, each of them answered.
    pub tasks: u64,
    /// Time that they took on average.
    pub service_mean_us: f64,
    /// Why it ended.
    pub ended: Ended,
}

impl Served {
    /// It ended in order.
    #[must_use]
    pub fn is_well(&self) -> bool {
        !matches!(self.ended, Ended::Gone(_))
    }
}

impl fmt::Display for Served {
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

/// Serves until told to stop, or until there will be no more tasks. A task that was begun is finished.
pub fn serve(worker: &mut Worker, app: &mut impl App, stop: &AtomicBool) -> Served {
    let (mut tasks, mut busy) = (0, Duration::ZERO);
    let ended = loop {
        if stop.load(Ordering::Relaxed) {
            break Ended::Told;
        }
        match worker.recv(LOOK) {
            Ok(Some(task)) => {
                let began = Instant::now();
                task.reply_with(|work, reply| app.serve(work, reply));
                busy += began.elapsed();
                tasks += 1;
            }
            Ok(None) => {}
            Err(Gone::Stopped) => break Ended::AgentStopped,
            Err(gone) => break Ended::Gone(gone),
        }
    };
    let service_mean_us = busy.as_secs_f64() * 1e6 / (tasks as f64).max(1.0);
    Served { worker: worker.id(), pool: worker.pool(), tasks, service_mean_us, ended }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PATIENCE;
    use crate::app::Echo;
    use std::sync::Arc;
    use wedjat::ring::{Channel, Outcome, Place, TaskIds, WorkerRegion};
    use wedjat::worker::Options;

    /// An agent of one worker, as far as a worker can tell.
    fn region() -> (Arc<WorkerRegion>, Channel) {
        let region = Arc::new(WorkerRegion::heap(&[Place { id: 4, pool: 2 }], 4, 32).unwrap());
        let channel = region.channel(0);
        (region, channel)
    }

    /// Runs a worker that echoes beside `agent`, which it is there for from the beginning.
    fn beside(
        region: &Arc<WorkerRegion>,
        channel: &mut Channel,
        agent: impl FnOnce(&mut Channel, &AtomicBool),
    ) -> Served {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let mut worker = Worker::join(
                    "here",
                    region,
                    &Options { patience: PATIENCE, ..Options::default() },
                )
                .unwrap();
                serve(&mut worker, &mut Echo, &stop)
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

    fn give_and_wait(channel: &mut Channel, tasks: u32) {
        for seq in 0..tasks {
            assert!(channel.give(TaskIds { app: 1, seq, class: 1 }, &[seq as u8; 5]));
            let mut done = 0..0;
            while done.is_empty() {
                done = channel.collect().unwrap();
                std::thread::yield_now();
            }
            assert!(matches!(channel.outcome(done.start), Outcome::Reply { len: 5, .. }));
        }
    }

    #[test]
    fn a_worker_serves_until_told_to_stop() {
        let (region, mut channel) = region();
        let served = beside(&region, &mut channel, |channel, stop| {
            give_and_wait(channel, 30);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!((served.worker, served.pool, served.tasks), (4, 2, 30));
        assert_eq!(served.ended, Ended::Told);
        assert!(served.is_well() && served.to_string().contains("30 tasks"), "{served}");
    }

    #[test]
    fn an_agent_that_ends_in_order_ends_its_workers_well() {
        let (region, mut channel) = region();
        let served = beside(&region, &mut channel, |channel, _| {
            assert!(channel.give(TaskIds::default(), b"last"));
            channel.stop();
        });
        assert_eq!((served.tasks, served.ended), (1, Ended::AgentStopped));
    }

    #[test]
    fn a_worker_that_is_shut_out_says_so() {
        let (region, mut channel) = region();
        let served = beside(&region, &mut channel, |channel, _| {
            give_and_wait(channel, 1);
            channel.sender_mut().revoke();
            channel.wake();
        });
        assert_eq!((served.tasks, served.ended), (1, Ended::Gone(Gone::ShutOut)));
        assert!(!served.is_well());
    }
}
