//! `[agent]` in a leaf's file: checks against the rest of the file. This agent runs on the leaf's only core, for
//! workers of the leaf's own host. The *wire* is the link between the two inside the process, with a network of its
//! own.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::collections::{HashMap, HashSet};

use wedjat_core::limits::{MEMBERS_MAX, PORTS_MAX};
use wedjat_core::policy::Runs;
use wedjat_core::role::colocated::WireNetwork;

use super::address::{is_unicast, reaches};
use super::agent::{self, HostConfig};
use super::faults::{FaultCollector, quoted};
use super::leaf::ServerConfig;
use super::port::PortConfig;
use super::raw;

/// Checks `[agent]` and returns its configuration; `None` if the file has no such table. With faults, the caller
/// discards the configuration.
pub fn local(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    ports: &[PortConfig],
    servers: &[ServerConfig],
) -> Option<HostConfig> {
    let entry = raw.agent.as_ref()?;
    if raw.leaf.cores.get_ref().len() > 1 {
        let found = format!("{} cores, with an [agent]", raw.leaf.cores.get_ref().len());
        let allowed =
            "one: a worker's ring has one producer; or run `wedjat agent` as a process of its own";
        faults.note(&raw.leaf.cores, "leaf.cores", found, allowed);
    }
    // The link to the agent is a port, too. More than PORTS_MAX ports are refused elsewhere.
    if raw.port.len() == PORTS_MAX {
        let allowed = format!("at most {} beside an [agent]", PORTS_MAX - 1);
        faults.note(&entry.name, "port", format!("{PORTS_MAX} ports"), &allowed);
    }
    let wire = wire(ports);
    let config = agent::local(faults, entry, wire.agent);
    pools(faults, raw, (entry, &config), servers);
    let members = config.workers.len() + servers.iter().map(|one| one.workers.len()).sum::<usize>();
    if members > MEMBERS_MAX {
        let found = format!("{members} workers with those of [[server]]");
        faults.note_in_file("agent.pool.workers", &found, &format!("at most {MEMBERS_MAX}"));
    }
    addresses(faults, raw, &wire, (ports, servers));
    Some(config)
}

/// Returns the network between the leaf and its own agent: IPv6 if all ports of the leaf have IPv6 addresses, because
/// clients and servers of a pool use the same address family.
pub fn wire(ports: &[PortConfig]) -> WireNetwork {
    WireNetwork::of(!ports.is_empty() && ports.iter().all(|port| port.ip.is_ipv6()))
}

/// Checks that the pools exist at the leaf, and that no `[[server]]` has a worker of the `[agent]`.
fn pools(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    (entry, config): (&raw::LocalAgentSection, &HostConfig),
    servers: &[ServerConfig],
) {
    let ids: HashSet<_> = raw.pool.iter().map(|pool| *pool.id.get_ref()).collect();
    let mut owners = HashMap::new();
    for server in servers {
        server.workers.iter().for_each(|worker| _ = owners.entry(*worker).or_insert(server.ip));
    }
    for pool in &entry.pool {
        let id = pool.id.get_ref();
        if !ids.contains(id) {
            faults.note(&pool.id, "agent.pool.id", id, "the id of a [[pool]]");
        }
        let mut workers = config.workers.iter().filter(|(worker, _)| worker.pool == *id);
        let shared = workers.find_map(|(worker, _)| Some((worker.id, owners.get(&worker.id)?)));
        if let (Some((id, ip)), Some(at)) = (shared, &pool.workers) {
            let found = format!("worker {id}, which server {ip} has");
            faults.note(at, "agent.pool.workers", found, "each worker id once");
        }
    }
}

/// Checks that no port or server uses the network between the leaf and its own agent.
fn addresses(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    &WireNetwork { agent, prefix, .. }: &WireNetwork,
    (ports, servers): (&[PortConfig], &[ServerConfig]),
) {
    let allowed = format!("one without {agent}/{prefix}, which leads to the [agent]");
    // A port with a refused address, 0.0.0.0 here, has a fault already.
    let valid_ports = raw.port.iter().zip(ports).filter(|(_, port)| is_unicast(port.ip));
    for (entry, port) in valid_ports {
        if reaches(port.ip, port.prefix, agent) || reaches(agent, prefix, port.ip) {
            faults.note(&entry.ip, "port.ip", quoted(&entry.ip), &allowed);
        }
    }
    for (entry, server) in raw.server.iter().zip(servers) {
        if reaches(agent, prefix, server.ip) {
            faults.note(&entry.ip, "server.ip", quoted(&entry.ip), &allowed);
        }
    }
}

/// Returns the number of packet buffers that tasks at the agent can hold. The leaf's `mbufs` must include them, because
/// both use one buffer pool.
pub fn buffers_needed(config: &HostConfig) -> usize {
    // Tasks in the pools' queues, and in the rings of all possible workers, each of which has `slots`.
    let queues_tasks = |runs| runs == Runs::LeafHolding;
    let queues = config.pools.iter().filter(|(_, pool)| queues_tasks(pool.policy.entry().runs));
    queues.map(|(_, pool)| pool.queue.tasks).sum::<usize>() + config.limits.workers * config.slots
}
