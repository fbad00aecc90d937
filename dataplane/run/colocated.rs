//! The agent on a leaf's core: what its workers attach to, what the core needs of it, and its account.

use std::cell::RefCell;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::agent as shell;
use super::attach_log::AttachLog;
use super::{LaunchError, describe, manifest};
use crate::assembly::agent;
use crate::config::{Config, HostConfig};
use crate::control::{AgentCores, Control, Membership};
use crate::io::dpdk::{Eal, Mbuf, MbufPool, PoolHandle};
use crate::ring::WorkerRegion;
use crate::role::agent::{AttachStats, Death, Parts};
use crate::state::{StateError, Table};
use crate::stats::{AgentStats, LeafStats};

/// Who came and went, and how many workers were registered at the end.
pub type Ended = (AttachStats, usize);

/// The agent, as it is handed to the core's thread.
pub type LocalParts = Parts<Mbuf, PoolHandle>;

/// See the module's text.
pub struct LocalAgent<'a> {
    host: &'a HostConfig,
    core: usize,
    region: Arc<WorkerRegion>,
    table: Arc<Table>,
    deaths: Arc<ArrayQueue<Death>>,
    attach_log: RefCell<AttachLog>,
}

impl<'a> LocalAgent<'a> {
    /// Around the region of the configured workers, with what the core needs and what changes it; `leafs` is the leaf's state.
    pub fn new(
        config: &'a Config,
        (host, region): (&'a HostConfig, WorkerRegion),
        mbufs: &MbufPool,
        leafs: &Table,
    ) -> Result<(Self, LocalParts, Control<AgentCores<Mbuf>>), StateError> {
        let region = Arc::new(region);
        let (parts, table, control) =
            agent::beside_leaf(config, host, leafs, &region, mbufs.handle())?;
        let (attach_log, deaths) = (AttachLog::new(&region), Arc::clone(&parts.deaths));
        let (core, attach_log) = (config.leaf.cores[0], RefCell::new(attach_log));
        Ok((Self { host, core, region, table, deaths, attach_log }, parts, control))
    }

    /// The agent's state.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Looks for workers whose process has ended.
    pub fn look(&self) {
        shell::look_for_deaths(&self.region, &self.deaths);
        self.attach_log.borrow_mut().update(&self.region);
    }

    /// What it did, until it had the workers and policies of this membership.
    pub fn account(
        &self,
        ended: Ended,
        seconds: f64,
        config: &Config,
        membership: &Membership,
        (eal, hz): (&Eal, u64),
    ) -> AgentStats {
        let totals = self.table.counters(0).totals();
        let mut ledger = LeafStats::of(totals, seconds, manifest(&config.text, eal, hz));
        describe(&mut ledger, "agent", membership, &[self.core], self.table.seed());
        let (attach, registered) = ended;
        AgentStats { ledger, name: self.host.name.clone(), attach, registered, senders: 0 }
    }
}

/// The region of a leaf's own workers, if it has any; a second agent of that name is refused.
pub fn region(config: &Config) -> Result<Option<WorkerRegion>, LaunchError> {
    Ok(config.agent.as_ref().map(shell::region).transpose()?)
}
