//! Log of workers attaching to an agent and leaving.
//!
//! A region is the memory shared by the agent and its workers, with one channel per worker. A worker claims a
//! channel by a number, the claim, and the agent grants the claim. The worker holds the channel's lock while it lives.

use wedjat_core::ring::{WorkerIdentity, WorkerRegion};

/// Granted claim (0 for none) and worker of each channel at the last update, for comparison with the next one.
#[derive(Debug)]
pub struct AttachLog(Vec<(u64, Option<WorkerIdentity>)>);

impl AttachLog {
    /// Creates a log without workers.
    pub fn new(region: &WorkerRegion) -> Self {
        Self(vec![(0, None); region.shape().channels])
    }

    /// Logs the workers that left, were removed or joined since the last update. The agent's watching thread calls it
    /// every few milliseconds.
    pub fn update(&mut self, region: &WorkerRegion) {
        for (channel, (last_claim, last_identity)) in self.0.iter_mut().enumerate() {
            let (claim, identity) = (region.granted(channel), region.identity(channel));
            if claim == *last_claim {
                continue;
            }
            // The departed worker, if there was one; otherwise the new one.
            let subject = if *last_claim == 0 { identity } else { last_identity.or(identity) };
            let Some(WorkerIdentity { id, pool }) = subject else { continue };
            match (*last_claim, was_removed(region, channel, *last_claim)) {
                // The agent's configuration changed: the channel now belongs to another worker, or to none.
                (1.., _) if identity != subject => {
                    log::info!("worker {id} of pool {pool} was released")
                }
                (0, _) => {} // no worker has departed
                (_, true) if claim == 0 => {
                    log::warn!(
                        "worker {id} of pool {pool} was removed: it was silent for too long, or its credits were impossible"
                    );
                }
                _ => log::info!("worker {id} of pool {pool} has left"),
            }
            // A worker that replaces another one is logged after it.
            *last_identity = identity;
            if let (1.., Some(WorkerIdentity { id, pool })) = (claim, identity) {
                log::info!("worker {id} of pool {pool} has joined");
            }
            *last_claim = claim;
        }
    }
}

/// Returns true if the agent removed a running worker, which had this claim: it still holds its lock. Approximate: for
/// a moment, the successor of a dead worker holds the lock, too.
fn was_removed(region: &WorkerRegion, channel: usize, claim: u64) -> bool {
    region.has_worker(channel) && !region.has_left(channel, claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_worker_is_not_removed() {
        let region = WorkerRegion::heap(&[WorkerIdentity { id: 3, pool: 1 }], 4, 64).unwrap();
        let mut channel = region.channel(0);
        let mut attach = || {
            let worker = region.claim(0).unwrap().unwrap();
            let claim = channel.sender().claim();
            assert!(channel.sender_mut().grant(claim));
            (worker, claim)
        };
        // Both workers still hold their lock.
        let (leaving, claim) = attach();
        leaving.receiver().leave();
        assert!(!was_removed(&region, 0, claim));
        drop(leaving);
        let (silent, claim) = attach();
        channel.sender_mut().revoke();
        assert!(was_removed(&region, 0, claim));
        drop(silent);
        assert!(!was_removed(&region, 0, claim));
    }
}
