//! The agent on a leaf's core: its region, the parts for the core, and its account.

use std::cell::RefCell;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use wedjat_assembly::agent;
use wedjat_core::ring::WorkerRegion;
use wedjat_core::role::agent::{AttachStats, Death, Parts};
use wedjat_core::state::{StateError, Table};
use wedjat_core::stats::{AgentStats, LeafStats};
use wedjat_desired::config::{Config, HostConfig};
use wedjat_desired::control::{AgentCores, Control, Membership};
use wedjat_dpdk::{Eal, Mbuf, MbufPool, PoolHandle};

use super::agent as run_agent;
use super::attach_log::AttachLog;
use super::{LaunchError, describe, manifest};

/// Attach statistics, and the number of workers registered at the end.
pub type ColocatedEnd = (AttachStats, usize);

/// Parts of the agent for the core's thread.
pub type LocalParts = Parts<Mbuf, PoolHandle>;

/// Agent on a leaf's core, as the watching thread sees it.
pub struct LocalAgent<'a> {
    host: &'a HostConfig,
    /// CPU of the core.
    core: usize,
    /// Memory shared with the workers.
    region: Arc<WorkerRegion>,
    table: Arc<Table>,
    /// Queue of dead workers for the core.
    deaths: Arc<ArrayQueue<Death>>,
    attach_log: RefCell<AttachLog>,
}

impl<'a> LocalAgent<'a> {
    /// Creates the agent around the region of the configured workers. Also returns the parts for the core,
    /// and the agent's control. `leaf_table` is the leaf's state.
    pub fn new(
        config: &'a Config,
        (host, region): (&'a HostConfig, WorkerRegion),
        mbufs: &MbufPool,
        leaf_table: &Table,
    ) -> Result<(Self, LocalParts, Control<AgentCores<Mbuf>>), StateError> {
        let region = Arc::new(region);
        let (parts, table, control) =
            agent::colocated(config, host, leaf_table, &region, mbufs.handle())?;
        let (attach_log, deaths) = (AttachLog::new(&region), Arc::clone(&parts.deaths));
        let (core, attach_log) = (config.leaf.cores[0], RefCell::new(attach_log));
        Ok((Self { host, core, region, table, deaths, attach_log }, parts, control))
    }

    /// Returns the agent's state.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Reports dead workers to the core, and logs attached and departed ones.
    pub fn check_workers(&self) {
        run_agent::report_deaths(&self.region, &self.deaths);
        self.attach_log.borrow_mut().update(&self.region);
    }

    /// Returns the agent's account. `membership` holds its last workers and policies.
    pub fn account(
        &self,
        end: ColocatedEnd,
        seconds: f64,
        config: &Config,
        membership: &Membership,
        (eal, hz): (&Eal, u64),
    ) -> AgentStats {
        let totals = self.table.counters(0).totals();
        let mut ledger = LeafStats::of(totals, seconds, manifest(&config.text, eal, hz));
        describe(&mut ledger, "agent", membership, &[self.core], self.table.seed());
        let (attach, registered) = end;
        AgentStats { ledger, name: self.host.name.clone(), attach, registered, senders: 0 }
    }
}

/// Creates the region of a leaf's own workers, if it has any. Refuses a second agent of that name.
pub fn region(config: &Config) -> Result<Option<WorkerRegion>, LaunchError> {
    Ok(config.agent.as_ref().map(run_agent::region).transpose()?)
}
