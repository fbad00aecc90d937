//! Checks of a leaf's or spine's file that TOML cannot make: addresses, ranges, and consistency between values.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.
//!
//! A spine schedules over leaves. Its file has a `[[leaf]]` (`raw.rack` here) where a leaf's file has a `[[server]]`.
//! Local pools have workers on the leaf's own core, behind an agent in the same process (`[agent]`).

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

use toml::Spanned;
use wedjat_core::limits::{MEMBERS_MAX, PLACES_MAX, POOLS_MAX, PORTS_MAX, QUEUED_TASKS_MIN};
use wedjat_core::policy::{PolicyChoice, Reports};
use wedjat_core::role::agent::TIMEOUT_MIN_MS;
use wedjat_core::stage::Side;
use wedjat_core::state::table::{Limits, Role};

use super::address::{self, UNSPECIFIED, is_edge, reaches};
use super::agent::HostConfig;
use super::fault::ConfigFault;
use super::faults::{FaultCollector, UniqueKeys, quoted, some_ids};
use super::keys;
use super::leaf::{Config, LeafConfig, ServerConfig};
use super::port::PortConfig;
use super::read::File;
use super::{control, controller, local, port, racks, raw};
use crate::state::{EMBEDDED_REFUSAL, FixedSettings, Pool, ReplyPath, Spine};

/// Returns the checked configuration, or all its faults in order of lines.
pub fn config(
    path: &Path,
    text: &str,
    raw: raw::Config,
    file: File,
) -> Result<Config, Vec<ConfigFault>> {
    let mut faults = FaultCollector::new(file, text);
    // First each entry by itself.
    let mut leaf = LeafConfig::read(&mut faults, &raw);
    refuse_foreign_keys(&mut faults, &raw);
    let mut ports: Vec<_> =
        raw.port.iter().map(|port| PortConfig::read(&mut faults, port)).collect();
    let spines = racks::spines(&mut faults, &raw);
    let local_pools = raw.agent.iter().flat_map(|agent| &agent.pool);
    let local_pools: HashSet<_> = local_pools.map(|pool| *pool.id.get_ref()).collect();
    let pool = |entry: &raw::Pool| {
        let is_local = local_pools.contains(entry.id.get_ref());
        self::pool(&mut faults, &raw, (entry, is_local), &spines)
    };
    let pools: Vec<_> = raw.pool.iter().filter_map(pool).collect();
    let pools_with_key: HashSet<_> =
        pools.iter().filter(|(_, pool)| pool.fixed.key.is_some()).map(|(id, _)| *id).collect();
    let servers: Vec<_> = match raw.role {
        Role::Spine => raw.rack.iter().map(|rack| racks::rack(&mut faults, rack)).collect(),
        _ => raw
            .server
            .iter()
            .map(|server| ServerConfig::read(&mut faults, server, &pools_with_key))
            .collect(),
    };
    // Then the entries together.
    ports_together(&mut faults, &raw, &ports);
    // A longer list is already a fault. The checks below look at all ports for each server, so it must be short.
    ports.truncate(PORTS_MAX);
    pools_together(&mut faults, &raw);
    if raw.role == Role::Spine {
        racks::racks_together(&mut faults, &raw, &servers);
        racks::pools_of_spine(&mut faults, &raw);
    }
    servers_together(&mut faults, &raw, &ports, &servers);
    racks::services_together(&mut faults, &raw, &ports, (&pools, &servers));
    direct_replies(&mut faults, &raw, &ports, &servers, &local_pools);
    let agent = local::local(&mut faults, &raw, &ports, &servers);
    if let (Some(follow), Some(_)) = (&raw.controller, &raw.agent) {
        let allowed = "[agent] or [controller]: the workers of a leaf's own core are its file's";
        faults.note(&follow.addresses, "controller", "[controller] beside [agent]", allowed);
    }
    leaf.limits = limits(&mut faults, &raw, &pools, &servers, agent.as_ref());
    // A controller may add pools that queue tasks. Their tasks need packet buffers from the start.
    let may_wait = raw.controller.is_some() && raw.role == Role::Leaf;
    let controller_queue = if may_wait { QUEUED_TASKS_MIN } else { 0 };
    let needed = buffers_needed(&leaf, &ports, &pools, agent.as_ref(), controller_queue);
    match &faults.at(raw.leaf.table, "mbufs") {
        Some(mbufs) if leaf.mbufs < needed => {
            let allowed = format!(
                "at least {needed}: the pools' queues and twice the ports' slots, on each core"
            );
            faults.note(mbufs, &key(&raw, "mbufs"), leaf.mbufs, &allowed);
        }
        Some(_) => {}
        None => leaf.mbufs = leaf.mbufs.max(needed),
    }
    let control = control::control(&mut faults);
    let controller = controller::follow(&mut faults, raw.controller.as_ref());
    warnings(&mut faults, &raw, &ports, &pools, &servers);
    faults.settings.set(&key(&raw, "mbufs"), leaf.mbufs);
    let (warnings, settings) = faults.none_or_all()?;
    let (path, text) = (path.to_owned(), text.to_owned());
    let role = raw.role;
    Ok(Config {
        path,
        text,
        role,
        leaf,
        ports,
        pools,
        servers,
        spines,
        agent,
        control,
        controller,
        settings,
        warnings,
    })
}

/// Returns the full name of a key in the node's own table, as in `leaf.mbufs`.
fn key(raw: &raw::Config, name: &str) -> String {
    format!("{}.{name}", raw.role.name())
}

/// Default maximum numbers at run time, unless the file names more. Workers count for each pool.
const SPARE: Limits = Limits { pools: 8, servers: 64, workers: 64 };

/// Refuses a leaf's keys in a spine's file, and a spine's keys in a leaf's file.
fn refuse_foreign_keys(faults: &mut FaultCollector, raw: &raw::Config) {
    let (keys, owner) = match raw.role {
        Role::Spine => (keys::LEAF, "a leaf's"),
        _ => (keys::SPINE, "a spine's"),
    };
    for name in keys.iter().map(|key| key.name) {
        if let Some(at) = faults.at(raw.leaf.table, name) {
            faults.note(&at, &key(raw, name), format!("a key of {owner}"), "none of these");
        }
    }
}

/// Returns the maximum numbers of pools, servers, and workers of each pool at run time. They determine the size of the
/// state. The defaults are [`SPARE`], or the numbers in the file if these are larger.
fn limits(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    pools: &[(u16, Pool)],
    servers: &[ServerConfig],
    agent: Option<&HostConfig>,
) -> Limits {
    let is_spine = raw.role == Role::Spine;
    let mut workers = HashMap::<_, usize>::new();
    // Workers of each pool, on servers and on the leaf's own core.
    let of_servers = servers.iter().map(|server| (server.pool, server.workers.len()));
    let local = agent.into_iter().flat_map(|agent| &agent.workers).map(|(one, _)| (one.pool, 1));
    for (pool, count) in of_servers.chain(local) {
        *workers.entry(pool).or_default() += count;
    }
    let workers = |(id, _): &(u16, Pool)| workers.get(id).copied().unwrap_or(0);
    let named = Limits {
        pools: pools.len().max(1),
        servers: (servers.len() + agent.map_or(0, |agent| agent.pools.len())).max(1),
        workers: pools.iter().map(workers).max().unwrap_or(0).max(1),
    };
    // The key's value, from the number in the file to `most`; by default at least `spare`.
    let mut room = |name: &str, spare: usize, named: usize, most| {
        faults.number_in(raw.leaf.table, name, spare.max(named), (named, most))
    };
    let pools = room("pools_max", SPARE.pools, named.pools, POOLS_MAX);
    let name = if is_spine { "leaves_max" } else { "servers_max" };
    let servers = room(name, SPARE.servers, named.servers, MEMBERS_MAX);
    // The state has room for `PLACES_MAX` members over all pools. A larger number in the file is a fault.
    let most = (PLACES_MAX / pools.max(1)).min(MEMBERS_MAX).max(named.workers);
    let (workers, fix) = if is_spine {
        // Each `[[leaf]]` entry is one member of one pool, so a pool has at most `leaves_max` members.
        (servers.min(most), "fewer [[leaf]] in a pool")
    } else {
        let spare = SPARE.workers.min(most);
        (room("workers_max", spare, named.workers, most), "fewer workers in a pool")
    };
    // More workers than `MEMBERS_MAX` are a fault already.
    faults.check_places(raw.leaf.table, pools, named.workers.min(MEMBERS_MAX), fix);
    Limits { pools, servers, workers }
}

/// Returns the checked pool; `None` if its policy is invalid. Refuses the policy `auto` if the node cannot choose a
/// policy. `is_local` is true for a pool with workers on the leaf's own core; `spines` are the file's.
fn pool(
    faults: &mut FaultCollector,
    config: &raw::Config,
    (raw, is_local): (&raw::Pool, bool),
    spines: &[Spine],
) -> Option<(u16, Pool)> {
    let policy = match config.role {
        Role::Spine => faults.policy_over_racks(&raw.policy, "pool.policy").map(Into::into),
        _ => faults.policy_choice(&raw.policy, "pool.policy"),
    };
    let service = racks::service(faults, raw);
    let link = racks::link(faults, config, raw, spines);
    let policy = policy?;
    let reports = reports(faults, config, (raw, &policy), is_local);
    let queue = faults.queue(raw.table);
    let fixed = FixedSettings {
        shared_workers: faults.flag(raw.table, "shared_workers").unwrap_or_default(),
        reports,
        replies: raw.replies.as_ref().map(|at| *at.get_ref()).unwrap_or_default(),
        key: faults.key(raw.key_file.as_ref(), "pool.key_file"),
        leaf_policy: None,
    };
    let pool = Pool { fixed, service, link, ..Pool::new(policy, queue) };
    let refusal = match config.is_embedded {
        true => Some(EMBEDDED_REFUSAL),
        false => pool.auto_refusal(),
    };
    let choice = pool.choice();
    if let (PolicyChoice::Auto(_), Some((reason, fix))) = (&choice, refusal) {
        faults.note(&raw.policy, "pool.policy", format!("{choice}: {reason}"), fix);
    }
    Some((*raw.id.get_ref(), pool))
}

/// Returns the way in which a pool's workers report their queues. Only leaves accept messages, under policies
/// for which messages suffice.
fn reports(
    faults: &mut FaultCollector,
    config: &raw::Config,
    (raw, choice): (&raw::Pool, &PolicyChoice),
    is_local: bool,
) -> Reports {
    let policy = choice.first();
    let Some(at) = raw.reports.as_ref().filter(|at| *at.get_ref() == Reports::Messages) else {
        return Reports::Replies;
    };
    let allowed = match () {
        () if config.role == Role::Spine => {
            "none in a spine's file: leaves send signals to a spine"
        }
        () if raw.spine.is_some() => {
            "\"replies\" beside a `spine`: a leaf's signals repeat what replies report"
        }
        () if is_local => "\"replies\" in a pool with workers of the leaf's own core",
        () if !policy.takes_messages() => {
            "\"replies\"; \"messages\" with policies whose members send reports (lsq-update, \
             lsq-smart, hlsq-update, hlsq-smart, jiq, jiq-weighted, jbt, pi) or are probed for \
             each task (lsq-sample, hlsq-sample, jsq(d=2), ppot, ppot-ll)"
        }
        () if policy.can_probe_by_messages() && config.leaf.cores.get_ref().len() > 1 => {
            "\"replies\", or one core: the answer to a probe must reach the core that sent it"
        }
        () => return Reports::Messages,
    };
    faults.note(at, "pool.reports", format!("\"messages\" under {choice}"), allowed);
    Reports::Replies
}

/// Checks pools whose servers answer the clients themselves. A server answers from the address to which clients send
/// tasks: the service address, else that of the only port for clients. The leaf must reach each server without a
/// router, which would return the tasks.
fn direct_replies(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    ports: &[PortConfig],
    servers: &[ServerConfig],
    local_pools: &HashSet<u16>,
) {
    for pool in &raw.pool {
        let Some(at) = pool.replies.as_ref().filter(|at| *at.get_ref() == ReplyPath::Direct) else {
            continue;
        };
        let id = *pool.id.get_ref();
        let of_pool = || servers.iter().filter(|server| server.pool == id);
        let is_routed = |server: &&ServerConfig| {
            port_to(ports, server.ip).is_some_and(|port| !port.reaches(server.ip))
        };
        let is_v6 = of_pool().next().is_some_and(|server| server.ip.is_ipv6());
        let is_entry = |port: &&PortConfig| port.side.has_clients() && port.ip.is_ipv6() == is_v6;
        let entries = ports.iter().filter(is_entry).count();
        let (found, allowed) = match of_pool().find(is_routed) {
            _ if raw.role == Role::Spine => {
                (String::new(), "none in a spine's file: leaves have the servers")
            }
            _ if local_pools.contains(&id) => {
                let found = " in a pool with workers of the leaf's own core".to_owned();
                (found, "\"leaf\", or a pool of its own for [[agent.pool]]")
            }
            Some(server) => (
                format!(", and server {} behind a router, which would return tasks", server.ip),
                "\"leaf\", or servers in the network of a port",
            ),
            None if entries != 1 && pool.service.is_none() => (
                format!(" with {entries} ports for clients of its servers' IP version"),
                "\"leaf\", or one such port: servers answer from the address to which clients send tasks",
            ),
            None => continue,
        };
        faults.note(at, "pool.replies", format!("\"direct\"{found}"), allowed);
    }
}

/// Collects warnings: settings that are allowed and are probably mistakes.
fn warnings(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    ports: &[PortConfig],
    pools: &[(u16, Pool)],
    servers: &[ServerConfig],
) {
    // A leaf distinguishes real replies from forged ones by their source. On a port for workers only, that is
    // the port. On a port shared with clients, it is the addresses. ARP or neighbour discovery supplies the MAC
    // address unless it is configured, and a client can forge their messages.
    for (entry, port) in raw.port.iter().zip(ports).filter(|(_, port)| port.side == Side::Both) {
        let unverified = servers.iter().find(|server| {
            let is_behind = port_to(ports, server.ip).is_some_and(|to| std::ptr::eq(to, port));
            server.mac.is_none() && is_behind
        });
        let (Some(server), Some(at)) = (unverified, &entry.side) else { continue };
        let found = format!(
            "\"both\", and {} {} without a `mac`: a client there can impersonate {}",
            if raw.role == Role::Spine { "leaf" } else { "server" },
            server.ip,
            if raw.role == Role::Spine { "it" } else { "its workers" },
        );
        let better = match raw.role {
            Role::Spine => "a `mac` for each [[leaf]] behind this port, or a port for leaves alone",
            _ => "a `mac` for each [[server]] behind this port, or a port for workers alone",
        };
        faults.warn(at, "port.side", found, better);
    }
    let too_short = |ms: &Spanned<i64>| (1..TIMEOUT_MIN_MS as i64).contains(ms.get_ref());
    let timeout = (raw.role == Role::Leaf)
        .then(|| faults.integer(raw.leaf.table, "worker_timeout_ms"))
        .flatten();
    if let Some(at) = &timeout.filter(too_short) {
        let better = format!(
            "0, or at least {TIMEOUT_MIN_MS}: workers that register may send no message for that long"
        );
        faults.warn(at, "leaf.worker_timeout_ms", at.get_ref(), &better);
    }
    unused(faults, raw, pools);
}

/// Warns of keys without effect under the pool's policy.
fn unused(faults: &mut FaultCollector, raw: &raw::Config, pools: &[(u16, Pool)]) {
    let by_id = racks::by_id(pools);
    let pool = |id: &Spanned<u16>| by_id.get(id.get_ref()).copied();
    for entry in &raw.pool {
        let Some(pool) = pool(&entry.id).filter(|pool| !queues_tasks(pool)) else { continue };
        let policy = &pool.policy;
        let reason = format!("under {policy} no task waits for a worker");
        let better = "none, or a policy that queues tasks (see `wedjat policies`)";
        let queue = faults.at(entry.table, "queue");
        faults.unused(queue.as_ref(), "pool.queue", &reason, better);
        let overflow = faults.at(entry.table, "overflow");
        faults.unused(overflow.as_ref(), "pool.overflow", &reason, better);
    }
    for entry in &raw.server {
        let Some(policy) = pool(&entry.pool).map(|pool| &pool.policy) else { continue };
        if policy.entry().by_rate {
            continue;
        }
        let reason = format!("{policy} does not decide by speeds");
        let better = "none, or a policy that decides by rates (see `wedjat policies`)";
        let speed = faults.at(entry.table, "speed");
        faults.unused(speed.as_ref(), "server.speed", &reason, better);
    }
}

/// Returns true if tasks of this pool may wait for a worker, or for answers to probes.
fn queues_tasks(pool: &Pool) -> bool {
    let Pool { policy, fixed, .. } = pool;
    let probes = fixed.reports == Reports::Messages && policy.can_probe_by_messages();
    policy.entry().holds() || probes
}

/// Returns the minimum number of packet buffers. Queued tasks hold buffers. Without free buffers the ports
/// receive nothing, not even the replies that would end the wait. Pools that queue no tasks need no buffers
/// for them. `controller_queue` is the least room for queues, because a controller may add pools that queue tasks.
fn buffers_needed(
    leaf: &LeafConfig,
    ports: &[PortConfig],
    pools: &[(u16, Pool)],
    agent: Option<&HostConfig>,
    controller_queue: usize,
) -> u32 {
    let queueing = pools.iter().map(|(_, pool)| pool).filter(|pool| queues_tasks(pool));
    let queues: usize = queueing.map(|pool| pool.queue.tasks).sum();
    let queues = queues.max(controller_queue) + agent.map_or(0, local::buffers_needed);
    if queues == 0 {
        return 0;
    }
    // Each port has a receive and a transmit queue for each core.
    let slots: usize = ports.iter().map(|port| 2 * usize::from(port.queue_slots)).sum();
    u32::try_from(leaf.cores.len() * (queues + slots)).unwrap_or(u32::MAX)
}

/// Checks the ports together. At least one must be for clients, and one for workers, unless tasks or workers reach the
/// node without a port.
fn ports_together(faults: &mut FaultCollector, raw: &raw::Config, ports: &[PortConfig]) {
    port::check_together(faults, &raw.port);
    if raw.is_embedded && ports.is_empty() {
        return; // the program passes in tasks and reports
    }
    if !ports.iter().any(|port| port.side.has_clients()) {
        let allowed = "at least one [[port]] with side = \"clients\" or \"both\"";
        faults.note_in_file("port.side", "no port on the clients' side", allowed);
    }
    // All workers may be on this host.
    let is_optional = raw.agent.is_some() && raw.server.is_empty();
    if !is_optional && !ports.iter().any(|port| port.side.has_workers()) {
        let allowed = "at least one [[port]] with side = \"workers\" or \"both\"";
        faults.note_in_file("port.side", "no port on the workers' side", allowed);
    }
}

/// Checks the number and ids of pools, that each has workers, and that servers and racks name existing pools.
fn pools_together(faults: &mut FaultCollector, raw: &raw::Config) {
    // A controller may supply all pools.
    let has_controller = raw.controller.is_some();
    if raw.pool.is_empty() && !has_controller {
        faults.note_in_file("pool", "no [[pool]]", "at least one");
    }
    if raw.pool.len() > POOLS_MAX {
        let found = format!("{} pools", raw.pool.len());
        faults.note(&raw.pool[POOLS_MAX].id, "pool", found, &format!("at most {POOLS_MAX}"));
    }
    faults.pool_ids(raw.pool.iter().map(|pool| &pool.id), "pool.id");
    let local = raw.agent.iter().flat_map(|agent| &agent.pool).map(|pool| &pool.id);
    let of_servers = || raw.server.iter().map(|server| &server.pool);
    let of_racks = || raw.rack.iter().map(|rack| &rack.pool);
    let used = of_servers().chain(of_racks()).chain(local);
    let used: HashSet<_> = used.map(|id| *id.get_ref()).collect();
    let ids = || raw.pool.iter().map(|pool| *pool.id.get_ref());
    let (known, allowed) = (ids().collect::<HashSet<_>>(), some_ids(ids()));
    let allowed = format!("a [[pool]]'s id: {allowed}");
    let named = of_servers().map(|id| (id, "server.pool"));
    for (id, key) in named.chain(of_racks().map(|id| (id, "leaf.pool"))) {
        if !known.contains(id.get_ref()) {
            faults.note(id, key, id.get_ref(), &allowed);
        }
    }
    for pool in &raw.pool {
        let id = *pool.id.get_ref();
        if !used.contains(&id) && !has_controller {
            let allowed = match raw.role {
                Role::Spine => "at least one [[leaf]] with this pool",
                _ => "at least one [[server]] or [[agent.pool]] with this pool",
            };
            faults.note(&pool.id, "pool.id", format!("pool {id} without workers"), allowed);
        }
    }
}

/// Checks the addresses, pools and worker ids of all servers together, and the addresses of a spine's leaves.
fn servers_together(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    ports: &[PortConfig],
    servers: &[ServerConfig],
) {
    for (entry, rack) in raw.rack.iter().zip(servers) {
        if ports.iter().any(|port| port.ip == rack.ip) && !rack.ip.is_unspecified() {
            let allowed = "an address that is not the spine's own";
            faults.note(&entry.ip, "leaf.ip", quoted(&entry.ip), allowed);
        }
        reachable(faults, (&entry.ip, "leaf.ip"), rack, ports);
    }
    families(faults, raw, ports, servers);
    let mut owners: HashMap<u16, IpAddr> = HashMap::new();
    let mut addresses = UniqueKeys::new();
    for (entry, server) in raw.server.iter().zip(servers) {
        // Two pools may share an address: the worker id in a reply distinguishes them.
        if !server.ip.is_unspecified() && addresses.is_again((server.ip, server.pool)) {
            let allowed = "each address once a pool; list all its workers there";
            faults.note(&entry.ip, "server.ip", quoted(&entry.ip), allowed);
        }
        if ports.iter().any(|port| port.ip == server.ip) && !server.ip.is_unspecified() {
            let allowed = "an address that is not the leaf's own";
            faults.note(&entry.ip, "server.ip", quoted(&entry.ip), allowed);
        }
        reachable(faults, (&entry.ip, "server.ip"), server, ports);
        for &worker in &server.workers {
            if let Some(owner) = owners.insert(worker, server.ip) {
                let found = format!("worker {worker}, which server {owner} has");
                let allowed = "each worker id once over all servers";
                faults.note(&entry.workers, "server.workers", found, allowed);
                break;
            }
        }
    }
    if owners.len() > MEMBERS_MAX {
        let found = format!("{} workers", owners.len());
        faults.note_in_file("server.workers", &found, &format!("at most {MEMBERS_MAX}"));
    }
}

/// Checks that the servers, clients, service address and spine of a pool have one address family. Local workers of the
/// pool count as IPv6 only if all ports have IPv6 addresses.
fn families(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    ports: &[PortConfig],
    servers: &[ServerConfig],
) {
    let of_leaf = raw.server.iter().map(|server| (&server.ip, "server"));
    let entries = of_leaf.chain(raw.rack.iter().map(|rack| (&rack.ip, "leaf")));
    // The first member of each pool, and the first member of a different family.
    let mut members = HashMap::<u16, ((&str, IpAddr), Option<&Spanned<String>>)>::new();
    for ((at, kind), server) in entries.zip(servers).filter(|(_, one)| one.ip != UNSPECIFIED) {
        let (first, other) = members.entry(server.pool).or_insert(((kind, server.ip), None));
        if first.1.is_ipv4() != server.ip.is_ipv4() {
            other.get_or_insert(at);
        }
    }
    let local = raw.agent.iter().flat_map(|agent| &agent.pool);
    let local_pools: HashSet<_> = local.map(|local| *local.id.get_ref()).collect();
    let spines = racks::spine_entries(raw);
    // A port with a refused address has a fault already, and its address family is unknown.
    let knows_port_families = ports.iter().all(|port| port.ip != UNSPECIFIED);
    for pool in &raw.pool {
        let id = *pool.id.get_ref();
        let Some(&((kind, first), other)) = members.get(&id) else { continue };
        let family = |ip: IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let is_same_family = |ip: IpAddr| ip.is_ipv4() == first.is_ipv4();
        if let Some(at) = other {
            let found = format!("{}, and {first} in the same pool", quoted(at));
            let allowed = format!("addresses of IPv4 or of IPv6 for all [[{kind}]] of a pool");
            faults.note(at, &format!("{kind}.ip"), found, &allowed);
        }
        racks::family(faults, &spines, pool, (kind, first));
        let is_local = local_pools.contains(&id);
        let mut refuse = |span: std::ops::Range<usize>, key: &str, found: String, allowed: &str| {
            faults.note(&Spanned::new(span, ()), key, found, allowed);
        };
        let has_v4_wire = knows_port_families && local::wire(ports).agent.is_ipv4();
        if first.is_ipv6() && is_local && has_v4_wire {
            let found = format!("pool {id} with IPv6 servers and workers of the leaf's own core");
            let allowed =
                "a pool of its own for [[agent.pool]], or IPv6 addresses for all [[port]]s";
            refuse(pool.id.span(), "pool.id", found, allowed);
        }
        if ports.is_empty() {
            continue; // the program passes in tasks and reports
        }
        let has_clients = |port: &&PortConfig| port.side.has_clients() && is_same_family(port.ip);
        if !ports.iter().any(|port| has_clients(&port)) && knows_port_families {
            let family = family(first);
            let found =
                format!("pool {id} with {family} for its [[{kind}]] and no clients of that family");
            let allowed = "a [[port]] for clients with an address of that family: clients and servers of a pool use the same family";
            refuse(pool.id.span(), "pool.id", found, allowed);
        }
    }
}

/// Checks that a port on the workers' side leads to the server, and that a host may have its address.
fn reachable(
    faults: &mut FaultCollector,
    (at, key): (&Spanned<String>, &str),
    server: &ServerConfig,
    ports: &[PortConfig],
) {
    if !ports.iter().any(|port| port.side.has_workers()) || server.ip.is_unspecified() {
        return; // already recorded as a fault
    }
    match port_to(ports, server.ip) {
        None => {
            let allowed =
                "an address in the network of a port on the workers' side, or a `gateway` there";
            faults.note(at, key, quoted(at), allowed);
        }
        Some(port)
            if reaches(port.ip, port.prefix, server.ip) && is_edge(server.ip, port.prefix) =>
        {
            faults.note(at, key, quoted(at), &address::allowed_hosts(port.ip, port.prefix));
        }
        Some(_) => {}
    }
}

/// Returns the port that leads to a server: the first with its network, else the first with a gateway.
fn port_to(ports: &[PortConfig], server: IpAddr) -> Option<&PortConfig> {
    let workers = || ports.iter().filter(|port| port.side.has_workers());
    let direct = workers().find(|port| reaches(port.ip, port.prefix, server));
    let has_route = |port: &&PortConfig| {
        port.gateway.is_some_and(|gateway| gateway.is_ipv4() == server.is_ipv4())
    };
    direct.or_else(|| workers().find(has_route))
}
