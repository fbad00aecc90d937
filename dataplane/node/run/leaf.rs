//! The leaf or spine: one or several dispatcher cores. The first one may also run an agent with its workers.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wedjat_admin::{Requests, reload};
use wedjat_assembly::takeover::{self, PreviousState, TakeoverCounts};
use wedjat_core::clock::Clock;
use wedjat_core::io::Port;
use wedjat_core::io::link::{self, DeviceOrWire};
use wedjat_core::node::{Commands, Timing};
use wedjat_core::quantity;
use wedjat_core::ring::WorkerRegion;
use wedjat_core::role::agent::Parts;
use wedjat_core::role::{Colocated, Leaf};
use wedjat_core::stage::Stages;
use wedjat_core::state::Table;
use wedjat_core::state::table::Role;
use wedjat_core::stats::LeafStats;
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{Config, HostConfig};
use wedjat_desired::control::{AgentCores, ColocatedCores, Control, Membership};
use wedjat_dpdk::{Device, Mbuf, Outlet, PoolHandle};
use wedjat_fabric::NodeId;

use super::agent;
use super::launch::{Assembly, Machine, NodeRole, launch};
use super::poll::{AgentEnd, CoreParts, CoreWatch, PollResult, poll_until_stopped};
use super::workers::WorkerWatch;
use super::{LaunchError, Options, ledger, telemetry};

/// Maximum time after a stop request in which a core without an agent still forwards packets in flight.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Runs the leaf or spine until `stop` is set or the duration is over. `report` gets a line per second. Returns the
/// account: packets, tasks and drops.
///
/// # Errors
/// If it cannot start, or a core failed.
pub fn run(
    config: &Config,
    options: &Options,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<LeafStats, LaunchError> {
    let create = || {
        let region = config.agent.as_ref().map(agent::region).transpose()?;
        Ok(LeafRole { config, region, predecessor: None, agent: None, agent_parts: None })
    };
    launch(&config.node(), options, create, stop, report)
}

/// Role of a leaf or spine.
struct LeafRole<'a> {
    config: &'a Config,
    /// Memory shared with the agent's workers, until the agent has it.
    region: Option<Arc<WorkerRegion>>,
    /// State of the previous process, read before this node's own replaces it.
    predecessor: Option<PreviousState>,
    agent: Option<LocalAgent<'a>>,
    /// Parts of the agent, until its core has them.
    agent_parts: Option<AgentParts>,
}

/// Agent on the leaf's core.
struct LocalAgent<'a> {
    host: &'a HostConfig,
    table: Arc<Table>,
}

/// Parts of an agent for the core, the watching thread and the leaf's control.
struct AgentParts {
    core: Parts<Mbuf, PoolHandle>,
    workers: WorkerWatch,
    control: Control<AgentCores<Mbuf>>,
}

impl NodeRole for LeafRole<'_> {
    type Cores = ColocatedCores<Mbuf>;
    type Core = LeafCore;
    type Account = LeafStats;

    fn id(&self) -> NodeId {
        match self.config.role {
            Role::Spine => NodeId::Spine(self.config.leaf.id),
            _ => NodeId::Leaf(self.config.leaf.id),
        }
    }

    fn membership(&self) -> Membership {
        Membership::of(self.config)
    }

    fn create_state(&mut self, machine: &Machine) -> Result<Arc<Table>, LaunchError> {
        self.predecessor = takeover::read(self.config).unwrap_or_else(|error| {
            // Not fatal: the node's own state file is created next, and reports a real obstacle as an error.
            log::info!("takes over nothing: {error}");
            None
        });
        let table = wedjat_assembly::table(self.config, machine.ticks_hz())?;
        telemetry::show(&machine.eal, self.config.role, &table);
        if let Some((host, region)) = self.config.agent.as_ref().zip(self.region.take()) {
            let pool = machine.mbufs.handle();
            let (core, agent_table, control) =
                wedjat_assembly::agent::colocated(self.config, host, &table, &region, pool)?;
            telemetry::show(&machine.eal, Role::Agent, &agent_table);
            let workers = WorkerWatch::new(region, Arc::clone(&core.deaths));
            self.agent_parts = Some(AgentParts { core, workers, control });
            self.agent = Some(LocalAgent { host, table: agent_table });
        }
        Ok(table)
    }

    fn assemble(
        &mut self,
        machine: &Machine,
        table: &Arc<Table>,
        devices: &[Device],
        _: Vec<Vec<Outlet>>,
    ) -> Result<Assembly<Self>, LaunchError> {
        let (config, membership) = (self.config, self.membership());
        let macs = devices.iter().map(|device| Mac(device.mac()));
        let mut stages = wedjat_assembly::stages(config, &membership, macs, table)?;
        if let Some(predecessor) = self.predecessor.take() {
            let now_ms = Timing { ticks_hz: machine.ticks_hz() }.to_ms(machine.ticks()());
            let TakeoverCounts { members, hosts } =
                predecessor.take_over(&mut stages, table, now_ms as u32);
            let age = predecessor.age().as_millis();
            log::info!(
                "took over loads of {} and MAC addresses of {}, which were written {age} ms ago",
                quantity(members, "member"),
                quantity(hosts, "host")
            );
        }
        let controller = config.controller.as_ref();
        let newcomers = controller.map(|_| wedjat_assembly::watch_unknown_workers(&mut stages));
        log::info!(
            "{} {} runs on {} with seed {}",
            config.role.name(),
            config.leaf.id,
            quantity(config.leaf.cores.len(), "core"),
            table.seed()
        );
        let neighbours = table.neighbours();
        for (port, device) in devices.iter().enumerate().filter(|(_, device)| !device.link().up) {
            log::info!("port {port}, {}: no link yet", device.name());
            neighbours.set_link(port, false);
        }
        let (mut agent, workers, agent_control) = match self.agent_parts.take() {
            Some(AgentParts { core, workers, control }) => {
                (Some(core), Some(workers), Some(control))
            }
            None => (None, None, None),
        };
        let (leaf_cores, commands) = wedjat_assembly::cores(&stages, table);
        let control = ColocatedCores::new(leaf_cores, agent_control);
        let control = Control::of(Arc::clone(table), membership, control);
        let requests = Requests::new(control, Arc::clone(table), reload::leafs_reader(config))
            .with_agent(self.agent.as_ref().map(|agent| Arc::clone(&agent.table)));
        let cores = stages.into_iter().zip(commands).map(|(stages, commands)| LeafCore {
            stages,
            commands,
            pool: machine.mbufs.handle(),
            mbufs: config.leaf.mbufs as usize,
            is_patient: machine.clock.is_none(),
            agent: agent.take(), // a leaf with an agent has one core
        });
        let cores = cores.collect();
        Ok(Assembly { cores, requests, newcomers, workers, threads: Vec::new() })
    }

    fn account(
        self,
        mut account: LeafStats,
        end: Option<AgentEnd>,
        of_agent: Option<&Membership>,
    ) -> LeafStats {
        let Some((agent, membership)) = self.agent.zip(of_agent) else { return account };
        let seconds_and_manifest = (account.seconds, account.manifest.clone());
        let (role, cores) = (Role::Agent, &self.config.leaf.cores[..1]);
        let ledger = ledger(role, &agent.table, cores, membership, seconds_and_manifest);
        account.agent = end.map(|end| Box::new(agent::account(agent.host, ledger, end, 0)));
        account
    }
}

/// Parts of a leaf's core.
struct LeafCore {
    stages: Stages,
    commands: Commands,
    /// Mempool for packets that the core makes.
    pool: PoolHandle,
    /// Total number of packet buffers.
    mbufs: usize,
    /// True to leave tasks in their devices until workers are reachable, at most for a short time after a link-up. Real
    /// devices come up one after another.
    is_patient: bool,
    /// Agent on the same core.
    agent: Option<Parts<Mbuf, PoolHandle>>,
}

impl CoreParts for LeafCore {
    fn poll<P: Port<Buf = Mbuf>>(
        self,
        ports: Vec<P>,
        CoreWatch { tap, refusals }: CoreWatch,
        mut clock: impl Clock,
        stop: &AtomicBool,
    ) -> PollResult<P> {
        let Self { stages, commands, pool, mbufs, is_patient, agent } = self;
        let timing = Timing { ticks_hz: clock.ticks_hz() };
        let Some(parts) = agent else {
            let mut leaf = Leaf::new(stages, ports, pool, commands, timing);
            leaf = leaf.with_tap(tap).with_refusals(refusals).with_stopwatch(clock.stopwatch());
            if is_patient {
                leaf = leaf.with_patience();
            }
            poll_until_stopped(&mut leaf, &mut clock, stop, DRAIN_MAX);
            return (leaf.close(), None, clock.ended());
        };
        // Leaf and agent are joined by a link in memory. Room for all buffers, so that it never loses a reply.
        let (near, far) = link::pair(mbufs);
        let ports = ports.into_iter().map(DeviceOrWire::Device).chain([DeviceOrWire::Link(near)]);
        let leaf = Leaf::new(stages, ports.collect(), pool, commands, timing);
        let leaf = leaf.with_tap(tap).with_refusals(refusals).with_stopwatch(clock.stopwatch());
        let mut both = Colocated::new(leaf, parts, far);
        let last = poll_until_stopped(&mut both, &mut clock, stop, agent::DRAIN_MAX);
        let end = agent::end(both.agent());
        (both.close(last), Some(end), clock.ended())
    }
}
