//! Log of workers that attach to an agent and leave.

use crate::ring::{Place, WorkerRegion};

/// Claims that were granted at the last update, and the workers' places.
#[derive(Debug)]
pub struct AttachLog(Vec<(u64, Option<Place>)>);

impl AttachLog {
    /// Creates a log without workers.
    pub fn new(region: &WorkerRegion) -> Self {
        Self(vec![(0, None); region.shape().channels])
    }

    /// Logs the changes since the last update.
    pub fn update(&mut self, region: &WorkerRegion) {
        for (channel, (before, was)) in self.0.iter_mut().enumerate() {
            let (granted, now) = (region.granted(channel), region.place(channel));
            if granted == *before {
                continue;
            }
            let there = if *before == 0 { now } else { was.or(now) };
            let Some(Place { id, pool }) = there else { continue };
            match (*before, region.has_worker(channel)) {
                // The channel has another place by now, or none.
                (1.., _) if now != there => log::info!("worker {id} of pool {pool} was released"),
                (0, _) => {}
                // A worker that leaves or dies releases its lock.
                (_, true) if granted == 0 => {
                    log::warn!(
                        "worker {id} of pool {pool} was removed: it was silent for too long, or its credits were impossible"
                    );
                }
                _ => log::info!("worker {id} of pool {pool} has left"),
            }
            *was = now;
            if let (1.., Some(Place { id, pool })) = (granted, now) {
                log::info!("worker {id} of pool {pool} has joined");
            }
            *before = granted;
        }
    }
}
