//! The leaf or spine as a process: one or several dispatcher cores, which send each task to a worker or a leaf. The
//! core of a leaf with one core may also run an agent, the role that gives tasks to the workers of this host.
//!
//! The table is the node's published state. The predecessor is the last process of this node: a start takes over the
//! loads and MAC addresses of its state file.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wedjat_admin::{Requests, reload};
use wedjat_assembly::takeover::{self, TakeoverCounts};
use wedjat_core::clock::Clock;
use wedjat_core::io::Port;
use wedjat_core::io::link::{self, DeviceOrWire};
use wedjat_core::node::{Commands, Timing};
use wedjat_core::quantity;
use wedjat_core::role::agent::Parts;
use wedjat_core::role::{Colocated, Leaf};
use wedjat_core::stage::Stages;
use wedjat_core::state::table::Role;
use wedjat_core::stats::LeafStats;
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::Config;
use wedjat_desired::control::{ColocatedCores, Control, Membership};
use wedjat_dpdk::{Mbuf, PoolHandle};
use wedjat_fabric::NodeId;

use super::agent;
use super::launch::{NodeParts, Runtime};
use super::poll::{CoreParts, CoreWatch, PollResult, poll_until_stopped};
use super::workers::WorkerWatch;
use super::{LaunchError, Options, telemetry};

/// Maximum time after a stop request in which a core without an agent still forwards packets and replies in flight.
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
    let create_region = || Ok(config.agent.as_ref().map(agent::region).transpose()?);
    let (runtime, region) = Runtime::start(config.node(), options, stop, create_region)?;
    let predecessor = takeover::read(config).unwrap_or_else(|error| {
        // Not fatal: the node's own state file is created next, and reports a real obstacle as an error.
        log::info!("takes over nothing: {error}");
        None
    });
    let table = wedjat_assembly::table(config, runtime.ticks_hz())?;
    telemetry::show(&runtime.eal, config.role, &table);
    // The agent has a table and a control of its own.
    let create_agent = |(host, region)| {
        let pool = runtime.mbufs.handle();
        let (parts, agent_table, control) =
            wedjat_assembly::agent::colocated(config, host, &table, &region, pool)?;
        telemetry::show(&runtime.eal, Role::Agent, &agent_table);
        let workers = WorkerWatch::new(region, Arc::clone(&parts.deaths));
        Ok::<_, LaunchError>(((host, agent_table), parts, workers, control))
    };
    let agent = config.agent.as_ref().zip(region).map(create_agent).transpose()?;
    let (agent, mut agent_parts, workers, agent_control) = match agent {
        Some((agent, parts, workers, control)) => {
            (Some(agent), Some(parts), Some(workers), Some(control))
        }
        None => (None, None, None, None),
    };
    let (role_and_cores, membership) =
        ((config.role, &config.leaf.cores[..]), Membership::of(config));
    // Devices steer a reply to the core that sent its task, by the UDP port of tasks and a key from the seed.
    let steered = (config.leaf.udp_port, table.seed());
    // No devices: the node was stopped while a device waited for its peer.
    let Some(devices) = runtime.open_devices(0, Some(steered))? else {
        return Ok(runtime.account(role_and_cores, &table, &membership, 0.0));
    };
    let macs = devices.devices.iter().map(|device| Mac(device.mac()));
    // The steps of the packet path (parse, classify, schedule, rewrite) of each core.
    let mut stages = wedjat_assembly::stages(config, &membership, macs, &table)?;
    if let Some(predecessor) = predecessor {
        let now_ms = Timing { ticks_hz: runtime.ticks_hz() }.to_ms(runtime.ticks()());
        let TakeoverCounts { members, hosts } =
            predecessor.take_over(&mut stages, &table, now_ms as u32);
        let age = predecessor.age().as_millis();
        log::info!(
            "took over loads of {} and MAC addresses of {}, which were written {age} ms ago",
            quantity(members, "member"),
            quantity(hosts, "host")
        );
    }
    let controller = config.controller.as_ref();
    // Queue of the workers that register but are not configured, for the controller.
    let newcomers = controller.map(|_| wedjat_assembly::watch_unknown_workers(&mut stages));
    log::info!(
        "{} {} runs on {} with seed {}",
        config.role.name(),
        config.leaf.id,
        quantity(config.leaf.cores.len(), "core"),
        table.seed()
    );
    let neighbours = table.neighbours();
    // The first check of the links compares with these states, so that it notices each later event.
    for port in devices.links.down() {
        log::info!("port {port}, {}: no link yet", devices.devices[port].name());
        neighbours.set_link(port, false);
    }
    let (leaf_cores, commands) = wedjat_assembly::cores(&stages);
    let control = ColocatedCores::new(leaf_cores, agent_control);
    let control = Control::of(Arc::clone(&table), membership, control);
    let agent_table = agent.as_ref().map(|(_, table)| Arc::clone(table));
    let requests = Requests::new(control, Arc::clone(&table), reload::leaf_file_reader(config));
    let cores = stages.into_iter().zip(commands).map(|(stages, commands)| LeafCore {
        stages,
        commands,
        pool: runtime.mbufs.handle(),
        mbufs: config.leaf.mbufs as usize,
        has_link_up_delay: runtime.clock.is_none(),
        agent: agent_parts.take(), // a leaf with an agent has one core
    });
    let parts = NodeParts {
        id: match config.role {
            Role::Spine => NodeId::Spine(config.leaf.id),
            _ => NodeId::Leaf(config.leaf.id),
        },
        cores: cores.collect(),
        requests: requests.with_agent(agent_table),
        newcomers,
        workers,
        threads: Vec::new(),
    };
    let (mut account, end, requests) = runtime.run(&table, devices, parts, report)?;
    let agent = agent.zip(end).zip(requests.control().of_agent());
    account.agent = agent.map(|(((host, table), end), membership)| {
        let role_and_cores = (Role::Agent, &config.leaf.cores[..1]);
        let ledger = runtime.account(role_and_cores, &table, membership, account.seconds);
        Box::new(agent::account(host, ledger, end, 0))
    });
    Ok(account)
}

/// Parts of a core of a leaf or spine.
struct LeafCore {
    /// Steps of the packet path.
    stages: Stages,
    /// Queue of changes from the control.
    commands: Commands,
    /// Mempool for packets that the core makes.
    pool: PoolHandle,
    /// Total number of packet buffers, the capacity of the link to the agent.
    mbufs: usize,
    /// True to leave tasks in their devices until workers are reachable, at most for a short time after a link-up, and
    /// to announce the node's addresses after one. Real devices come up one after another.
    has_link_up_delay: bool,
    /// Parts of the agent on the same core, if it has one.
    agent: Option<Parts<Mbuf, PoolHandle>>,
}

impl CoreParts for LeafCore {
    /// Polls the leaf, and its agent if it has one, until a stop request. Then polls for a limited time until their
    /// tasks end: [`DRAIN_MAX`], or the agent's limit.
    fn poll<P: Port<Buf = Mbuf>>(
        self,
        ports: Vec<P>,
        CoreWatch { tap, refusals }: CoreWatch,
        mut clock: impl Clock,
        stop: &AtomicBool,
    ) -> PollResult<P> {
        let Self { stages, commands, pool, mbufs, has_link_up_delay, agent } = self;
        let timing = Timing { ticks_hz: clock.ticks_hz() };
        let Some(parts) = agent else {
            let mut leaf = Leaf::new(stages, ports, pool, commands, timing);
            leaf = leaf.with_tap(tap).with_refusals(refusals).with_stopwatch(clock.stopwatch());
            if has_link_up_delay {
                leaf = leaf.with_link_up_delay();
            }
            poll_until_stopped(&mut leaf, &mut clock, stop, DRAIN_MAX);
            return (leaf.close(), None, clock.ended());
        };
        // A link in memory joins leaf and agent like a cable between two ports. It has room for all buffers, so that it
        // never loses a reply.
        let (near, far) = link::pair(mbufs);
        let ports = ports.into_iter().map(DeviceOrWire::Device).chain([DeviceOrWire::Link(near)]);
        let mut leaf = Leaf::new(stages, ports.collect(), pool, commands, timing);
        leaf = leaf.with_tap(tap).with_refusals(refusals).with_stopwatch(clock.stopwatch());
        if has_link_up_delay {
            leaf = leaf.with_link_up_delay();
        }
        let mut colocated = Colocated::new(leaf, parts, far);
        let last = poll_until_stopped(&mut colocated, &mut clock, stop, agent::DRAIN_MAX);
        let end = agent::end(colocated.agent());
        (colocated.close(last), Some(end), clock.ended())
    }
}
