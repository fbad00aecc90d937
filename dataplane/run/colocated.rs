//! The agent on a leaf's core: what its workers attach to, what the core needs of it, and its account.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::attach_log::AttachLog;
use super::{LaunchError, agent as shell, manifest};
use crate::assembly::agent as agent_parts;
use crate::config::{Config, HostConfig};
use crate::control::Membership;
use crate::io::Token;
use crate::io::dpdk::{Eal, MbufPool, PoolHandle, QueuePort};
use crate::io::link::End;
use crate::io::{Buf, Pool, Port};
use crate::limits::CORES_MAX;
use crate::node::Timing;
use crate::policy::stream_seed;
use crate::ring::WorkerRegion;
use crate::role::agent::{AttachStats, Death, Parts, Registrar};
use crate::role::{Agent, colocated};
use crate::stage::{PortAddress, Side};
use crate::state::table::{Spec, agents_file};
use crate::state::{StateError, Table};
use crate::stats::{AgentStats, LeafStats};

/// Who came and went, and how many workers were registered at the end.
pub type Ended = (AttachStats, usize);

/// An agent without ports, as it is handed to the core's thread.
pub type AgentParts = Parts<QueuePort, PoolHandle>;

/// See the module's text.
#[derive(Debug)]
pub struct LocalAgent<'a> {
    host: &'a HostConfig,
    core: usize,
    region: WorkerRegion,
    table: Arc<Table>,
    deaths: Arc<ArrayQueue<Death>>,
    attach_log: RefCell<AttachLog>,
    seed: u64,
    membership: Membership,
}

impl<'a> LocalAgent<'a> {
    /// Around the region of the configured workers; `seed` is the leaf's, beside whose state file it has one.
    pub fn new(
        config: &'a Config,
        host: &'a HostConfig,
        region: WorkerRegion,
        ticks_hz: u64,
        seed: u64,
    ) -> Result<Self, StateError> {
        let seed = stream_seed(seed, CORES_MAX, 0);
        let membership = Membership::of_host(host, Ipv4Addr::from_bits(colocated::AGENT_IP));
        let spec = agent_parts::spec(host, &membership, config.leaf.id, ticks_hz, seed);
        let table = match &config.leaf.state {
            Some(path) => {
                let spec = Spec { group: config.leaf.state_group, ..spec };
                Table::create(&agents_file(path), &spec)?
            }
            None => Table::heap(&spec),
        };
        Ok(Self {
            host,
            core: config.leaf.cores[0],
            attach_log: RefCell::new(AttachLog::new(&region)),
            region,
            table: Arc::new(table),
            deaths: Arc::new(ArrayQueue::new(shell::DEATHS)),
            seed,
            membership,
        })
    }

    /// The agent's state.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// What the core needs.
    pub fn parts(&self, hz: u64, mbufs: &MbufPool, udp_port: u16) -> AgentParts {
        let places = self.host.places();
        let link = |channel| self.region.channel(channel).into();
        Parts {
            ports: Vec::new(),
            worker_sets: agent_parts::worker_sets(self.host, hz, &self.table, link, self.seed),
            registrar: Some(Registrar::new(
                colocated::LEAF_IP,
                0,
                Some(colocated::LEAF_MAC),
                &places,
                hz,
            )),
            places,
            pool: mbufs.handle(),
            udp_port,
            payload_max: self.host.payload,
            deaths: Arc::clone(&self.deaths),
            counters: self.table.counters(0),
            timing: Timing { ticks_hz: hz },
        }
    }

    /// Looks for workers whose process has ended.
    pub fn look(&self) {
        shell::look_for_deaths(&self.region, &self.deaths);
        self.attach_log.borrow_mut().update(&self.region);
    }

    /// What it did.
    pub fn account(
        &self,
        ended: Ended,
        seconds: f64,
        config: &Config,
        eal: &Eal,
        hz: u64,
    ) -> AgentStats {
        let totals = self.table.counters(0).totals();
        let mut ledger = LeafStats::of(totals, seconds, manifest(&config.text, eal, hz));
        shell::describe_agent(&mut ledger, &self.membership, self.core, self.seed);
        let (attach, registered) = ended;
        AgentStats { ledger, name: self.host.name.clone(), attach, registered, senders: 0 }
    }
}

/// The region of a leaf's own workers, if it has any; a second agent of that name is refused.
pub fn region(config: &Config) -> Result<Option<WorkerRegion>, LaunchError> {
    Ok(config.agent.as_ref().map(shell::region).transpose()?)
}

/// The agent at the far end of the wire inside the core.
pub fn agent<B: Buf + Token, A: Pool<Buf = B>>(
    parts: Parts<impl Port<Buf = B>, A>,
    end: End<B>,
) -> Agent<End<B>, A> {
    let address = PortAddress {
        mac: colocated::AGENT_MAC,
        ip: colocated::AGENT_IP,
        prefix: colocated::PREFIX,
        side: Side::Both,
        gateway: None,
    };
    Agent::new(parts.with_ports(vec![(end, address)]))
}
