//! Checked pools of a file: of a leaf, spine or agent. A pool is a set of workers that serve one kind of task.

use std::net::IpAddr;

use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{PolicyChoice, PolicySpec, Reports};

use super::faults::FaultCollector;
use super::raw;
use super::read::Table;
use crate::state::{FixedSettings, Pool, QueueLimit, Spine};

/// Checked pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Id.
    pub id: u16,
    /// Settings.
    pub settings: Pool,
    /// At an agent: global ids of the workers, one worker core each. Empty at a leaf, whose servers list their workers.
    pub workers: Vec<u16>,
    /// At an agent: relative speed of each worker. Empty at a leaf.
    pub speeds: Vec<f64>,
    /// At an agent: policy of the leaves, if members send queue reports under it without being probed. The agent
    /// decides by it when a worker reports. `None` for other policies.
    pub leaf_policy: Option<PolicySpec>,
}

impl PoolConfig {
    /// Reads a pool of a leaf or spine, and records its faults. The policy, reports, service address and link are
    /// checked already, because their rules depend on other keys.
    pub(super) fn read(
        faults: &mut FaultCollector,
        raw: &raw::Pool,
        (policy, reports): (PolicyChoice, Reports),
        (service, link): (Option<IpAddr>, Option<(Spine, Protocol)>),
    ) -> Self {
        let shared_workers = faults.flag(raw.table, "shared_workers").unwrap_or_default();
        let settings = settings(faults, raw.table, policy);
        let key = faults.key(raw.key_file.as_ref(), "pool.key_file");
        let replies = raw.replies.as_ref().map(|at| *at.get_ref()).unwrap_or_default();
        let fixed = FixedSettings { shared_workers, reports, replies, key };
        let settings = Pool { fixed, service, link, ..settings };
        let (id, workers, speeds) = (*raw.id.get_ref(), Vec::new(), Vec::new());
        Self { id, settings, workers, speeds, leaf_policy: None }
    }
}

/// Reads the settings that pools of leaves, spines and agents share: the limit of the queue.
pub fn settings(
    faults: &mut FaultCollector,
    table: Table,
    policy: impl Into<PolicyChoice>,
) -> Pool {
    let (tasks, overflow) = (faults.number(table, "queue"), faults.word(table, "overflow"));
    Pool::new(policy, QueueLimit { tasks, overflow })
}
