//! Input of the advice on policies from a running node, for `wedjat advise` and for the node's own choice of policies.

use std::path::{Path, PathBuf};

use wedjat_admin::generated::{Pool, ShowReply, Worker};
use wedjat_sim::advise::capture::Speeds;
use wedjat_sim::advise::node::NodePool;

/// Bytes kept of each captured packet: all headers, also over IPv6 with a proof of origin.
pub const SNAPLEN: usize = 128;
/// Largest fraction of packets that may be missing in a capture.
const LOST_MAX: f64 = 0.001;

/// Returns true if a capture lost too large a fraction of its packets. A simulation of it would mislead.
#[must_use]
pub fn lost_too_many(written: u64, lost: u64) -> bool {
    lost as f64 > LOST_MAX * written as f64
}

/// Temporary file of a capture; removed on drop.
#[derive(Debug)]
pub struct CaptureFile(PathBuf);

impl CaptureFile {
    /// Chooses a name by `user` and this process's id, so that two captures use two files. Does not create the file,
    /// because a tap never writes to an existing one.
    #[must_use]
    pub fn new(user: &str) -> Self {
        let name = format!("wedjat-{user}-{}.pcap", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        // It does not exist if the tap was refused.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the input of the simulation that a capture does not show: number of workers and dispatchers, policy, speeds.
/// Counts only workers that may get tasks.
///
/// # Errors
/// If there is no such worker.
pub fn node_pool(shown: &ShowReply, pool: &Pool) -> Result<NodePool, String> {
    let is_active = |worker: &&Worker| {
        !worker.drained
            && !worker.leaving
            && ["configured", "registered"].contains(&worker.presence.as_str())
    };
    let active: Vec<_> = pool.workers.iter().filter(is_active).collect();
    if active.is_empty() {
        return Err(format!(
            "no worker of pool {} may get tasks; start the workers first",
            pool.id
        ));
    }
    let speeds: Speeds = active.iter().map(|worker| (worker.id, worker.speed)).collect();
    let differ = active.iter().any(|worker| worker.speed != active[0].speed);
    Ok(NodePool {
        id: pool.id,
        workers: active.len(),
        dispatchers: shown.cores.len(),
        policy: pool.policy.clone(),
        // Equal configured speeds are the default. The capture shows the real ones.
        speeds: differ.then_some(speeds),
    })
}
