//! Leaves in a spine's file, and spines in a leaf's file.
//!
//! A spine is a leaf whose members are leaves. Its file gives the same values, so network, stages, state, control and
//! start are the leaf's code. The few differences are checks of the role in that code. A `[[leaf]]` of a spine's file
//! is a *rack* here.
//!
//! `FaultCollector` collects faults, so that one check finds all. `at` is a value of the file with its place in the
//! text.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use toml::Spanned;
use wedjat_core::limits::SPINES_MAX;
use wedjat_core::policy::signals::{Protocol, SIGNAL_RULES};
use wedjat_core::state::table::Role;

use super::address::is_unicast;
use super::faults::{FaultCollector, HOST, UniqueKeys, quoted};
use super::leaf::ServerConfig;
use super::port::PortConfig;
use super::raw;
use crate::state::{Pool, Spine};

/// Returns true if the text is a spine's file: it has a table `spine`. A leaf's file may have a list of that
/// name.
pub fn is_spines(text: &str) -> bool {
    let table = text.parse::<toml::Table>();
    table.is_ok_and(|table| table.get("spine").is_some_and(toml::Value::is_table))
}

/// Returns the pools by id. If several have the same id, the first one counts.
pub fn by_id(pools: &[(u16, Pool)]) -> HashMap<u16, &Pool> {
    pools.iter().rev().map(|(id, pool)| (*id, pool)).collect()
}

/// Returns a leaf below a spine as a server with one worker, itself. Its speed is its number of workers.
pub fn rack(faults: &mut FaultCollector, raw: &raw::Rack) -> ServerConfig {
    let id = faults.number(raw.table, "id");
    let workers = faults.number::<u16>(raw.table, "workers");
    ServerConfig {
        ip: faults.host(&raw.ip, "leaf.ip", is_unicast, HOST),
        mac: faults.mac(raw.mac.as_ref(), "leaf.mac"),
        workers: vec![id],
        pool: *raw.pool.get_ref(),
        speed: f64::from(workers),
        registers: false,
    }
}

/// Checks that each leaf has one address of its own, and is at most once in each pool.
pub fn racks_together(faults: &mut FaultCollector, raw: &raw::Config, racks: &[ServerConfig]) {
    // Address of each leaf, leaf at each address, and pairs of leaf and pool.
    let (mut addresses, mut leaves, mut places) =
        (HashMap::new(), HashMap::new(), UniqueKeys::new());
    for (entry, rack) in raw.rack.iter().zip(racks) {
        let leaf = rack.workers[0];
        if !rack.ip.is_unspecified() {
            let earlier = *addresses.entry(leaf).or_insert(rack.ip);
            if earlier != rack.ip {
                let found = format!("{}, and {earlier} before", quoted(&entry.ip));
                faults.note(&entry.ip, "leaf.ip", found, "one address for each leaf");
            }
            let earlier = *leaves.entry(rack.ip).or_insert(leaf);
            if earlier != leaf {
                let found = format!("{}, which leaf {earlier} has", quoted(&entry.ip));
                faults.note(&entry.ip, "leaf.ip", found, "an address for each leaf");
            }
        }
        if places.is_again((leaf, rack.pool)) && !rack.ip.is_unspecified() {
            let found = format!("leaf {leaf} in pool {} again", rack.pool);
            faults.note(&entry.id, "leaf.id", found, "each leaf once a pool");
        }
    }
}

/// Returns the spines of a leaf, and records faults of their number, ids and addresses.
pub fn spines(faults: &mut FaultCollector, raw: &raw::Config) -> Vec<Spine> {
    let mut spines = Vec::new();
    if raw.spine.len() > SPINES_MAX {
        let found = format!("{} spines", raw.spine.len());
        faults.note(&raw.spine[SPINES_MAX].id, "spine", found, &format!("at most {SPINES_MAX}"));
    }
    let (mut ids, mut addresses) = (UniqueKeys::new(), UniqueKeys::new());
    for entry in &raw.spine {
        let id = faults.number(entry.table, "id");
        let ip = faults.host(&entry.ip, "spine.ip", is_unicast, HOST);
        if ids.is_again(id) {
            faults.note(&entry.id, "spine.id", format!("{id} again"), "each id once");
        }
        if !ip.is_unspecified() && addresses.is_again(ip) {
            faults.note(&entry.ip, "spine.ip", quoted(&entry.ip), "each address once");
        }
        spines.push(Spine { id, ip });
    }
    spines
}

/// Returns a pool's link to its spine, and the rules of the signals that report its load there. Returns `None` without
/// a link or with an invalid one.
pub fn link(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    pool: &raw::Pool,
    spines: &[Spine],
) -> Option<(Spine, Protocol)> {
    if let (None, Some(signals)) = (&pool.spine, &pool.signals) {
        let found = "rules without a `spine` to signal";
        faults.note(signals, "pool.signals", found, "none, or a `spine` beside them");
    }
    let at = pool.spine.as_ref()?;
    if raw.role == Role::Spine {
        faults.note(at, "pool.spine", at.get_ref(), "none in a spine's file");
        return None;
    }
    // The first of several spines with the same id counts.
    let spine = spines.iter().find(|spine| spine.id == *at.get_ref()).copied();
    if spine.is_none() {
        faults.note(at, "pool.spine", at.get_ref(), "the id of a [[spine]]");
    }
    let protocol = match &pool.signals {
        None => Protocol::Paper,
        Some(rules) => Protocol::of_rules(rules.get_ref()).unwrap_or_else(|| {
            faults.note(rules, "pool.signals", quoted(rules), SIGNAL_RULES);
            Protocol::Paper
        }),
    };
    Some((spine?, protocol))
}

/// Returns the service address of a pool: the one to which clients send its tasks. Returns `None` if the file has none,
/// or an invalid one.
pub fn service(faults: &mut FaultCollector, pool: &raw::Pool) -> Option<IpAddr> {
    let at = pool.service.as_ref()?;
    Some(faults.host(at, "pool.service", is_unicast, HOST)).filter(|ip| !ip.is_unspecified())
}

/// Returns the file's spines by id. If several have the same id, the first one counts.
pub fn spine_entries(raw: &raw::Config) -> HashMap<i64, &raw::Spine> {
    raw.spine.iter().rev().map(|spine| (*spine.id.get_ref(), spine)).collect()
}

/// Checks that a pool's service address and spine have the address family of its members. `kind` is the table
/// of the members, and `member` the address of one of them.
pub fn family(
    faults: &mut FaultCollector,
    spines: &HashMap<i64, &raw::Spine>,
    pool: &raw::Pool,
    (kind, member): (&str, IpAddr),
) {
    let allowed =
        format!("an address of the family of {member}, which the pool has for a [[{kind}]]");
    let has_other_family = |at: &Spanned<String>| {
        let ip = at.get_ref().parse::<IpAddr>();
        ip.is_ok_and(|ip| ip.is_ipv6() != member.is_ipv6())
    };
    if let Some(at) = pool.service.as_ref().filter(|at| has_other_family(at)) {
        faults.note(at, "pool.service", quoted(at), &allowed);
    }
    let Some(at) = &pool.spine else { return };
    let spine = spines.get(&i64::from(*at.get_ref()));
    if let Some(spine) = spine.filter(|one| has_other_family(&one.ip)) {
        let found = format!("spine {}, which has {}", at.get_ref(), spine.ip.get_ref());
        faults.note(at, "pool.spine", found, &format!("a spine with {allowed}"));
    }
}

/// Refuses a leaf's `key_file` and `queue` in the pools of a spine's file.
pub fn pools_of_spine(faults: &mut FaultCollector, raw: &raw::Config) {
    let allowed = "none in a spine's file: its leaves check them";
    for pool in &raw.pool {
        if let Some(key) = &pool.key_file {
            faults.note(key, "pool.key_file", quoted(key), allowed);
        }
        if let Some(queue) = faults.integer(pool.table, "queue") {
            faults.note(&queue, "pool.queue", queue.get_ref(), allowed);
        }
    }
}

/// Checks that no member, and at a spine no port, has a pool's service address. A spine's service address may move to
/// another spine, but a port's own address stays.
pub fn services_together(
    faults: &mut FaultCollector,
    raw: &raw::Config,
    ports: &[PortConfig],
    (pools, servers): (&[(u16, Pool)], &[ServerConfig]),
) {
    let by_id = by_id(pools);
    let addresses: HashSet<_> = servers.iter().map(|server| server.ip).collect();
    for entry in &raw.pool {
        let pool = by_id.get(entry.id.get_ref());
        let (Some(at), Some(ip)) = (&entry.service, pool.and_then(|pool| pool.service)) else {
            continue;
        };
        if addresses.contains(&ip) {
            let allowed = "an address that no [[server]] or [[leaf]] has";
            faults.note(at, "pool.service", quoted(at), allowed);
        }
        if raw.role == Role::Spine && ports.iter().any(|port| port.ip == ip) {
            let allowed = "an address other than the ports'; without `service`, tasks arrive at the ports' addresses";
            faults.note(at, "pool.service", quoted(at), allowed);
        }
    }
}
