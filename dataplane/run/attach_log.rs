//! Tells on the log who comes to an agent and who goes.

use crate::ring::{Place, WorkerRegion};

/// The claims that were granted at the last update.
#[derive(Debug)]
pub struct AttachLog(Vec<u64>);

impl AttachLog {
    /// Nobody has come yet.
    pub fn new(region: &WorkerRegion) -> Self {
        Self(vec![0; region.shape().channels])
    }

    /// Tells what has changed since the last update.
    pub fn update(&mut self, region: &WorkerRegion) {
        for (channel, before) in self.0.iter_mut().enumerate() {
            let granted = region.granted(channel);
            if granted == *before {
                continue;
            }
            let Place { id, pool } = region.place(channel);
            match (*before, region.has_worker(channel)) {
                (0, _) => {}
                // Who leaves or dies lets go of its lock.
                (_, true) if granted == 0 => {
                    log::warn!(
                        "worker {id} of pool {pool} was shut out: it was silent for too long, or its credits could not be"
                    );
                }
                _ => log::info!("worker {id} of pool {pool} has gone"),
            }
            if granted != 0 {
                log::info!("worker {id} of pool {pool} is there");
            }
            *before = granted;
        }
    }
}
