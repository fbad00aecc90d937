//! Conversion between messages of the fabric's gRPC service and values. The controller's service writes the messages to
//! nodes, and the following node reads them. A message to a node is a delta: objects to add or replace, and removed
//! ones.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tonic::{Code, Status};
use wedjat_admin::refusal;
use wedjat_core::limits::WORKER_ID_MAX;
use wedjat_core::wire::ether::Mac;
use wedjat_desired::control::{overflow_name, overflow_named};
use wedjat_desired::state::{Delta, QueueLimit, Server, Spine, Worker, WorkerKey};

use super::command::CommandError;
use super::fabric::PoolSettings;
use super::generated as proto;
use super::place::Placement;
use super::view::{NodeId, Position, View};

/// Version of the protocol between controllers and nodes. A controller refuses nodes with another one.
pub const PROTOCOL: u32 = 1;

/// Error of an invalid message. Holds the invalid part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: it is not of this protocol's version {PROTOCOL}, or damaged")]
pub struct MessageError(String);

/// Returns the error for an invalid part of a message.
fn invalid<T>(part: impl Into<String>) -> Result<T, MessageError> {
    Err(MessageError(part.into()))
}

/// Converts an id of a pool or node.
fn to_u16(value: u32) -> Result<u16, MessageError> {
    u16::try_from(value).or_else(|_| invalid(format!("id {value}")))
}

/// Converts the id of a worker.
fn worker(value: u32) -> Result<u16, MessageError> {
    to_u16(value)
        .and_then(|id| if id <= WORKER_ID_MAX { Ok(id) } else { invalid(format!("worker {id}")) })
}

/// Converts ids of workers.
///
/// # Errors
/// If a number is not a worker's id. The error names it.
pub fn workers(ids: &[u32]) -> Result<Vec<u16>, MessageError> {
    ids.iter().map(|&id| worker(id)).collect()
}

/// Parses an IP address.
///
/// # Errors
/// If the text is not an address.
pub fn address(text: &str) -> Result<IpAddr, MessageError> {
    // Bounds the text in the error.
    let start: String = text.chars().take(40).collect();
    text.parse().or_else(|_| invalid(format!("address {start:?}")))
}

/// Returns the message for a pool, for a node or for the topology that operators read.
#[must_use]
pub fn pool(id: u16, settings: &PoolSettings) -> proto::Pool {
    let spine = settings.spine;
    proto::Pool {
        id: id.into(),
        policy: settings.policy.clone(),
        spine_policy: settings.spine_policy.clone(),
        agent_policy: settings.agent_policy.clone(),
        queue: settings.queue.tasks as u64,
        overflow: overflow_name(settings.queue.overflow).to_owned(),
        address: settings.address.map_or_else(String::new, |ip| ip.to_string()),
        spine: spine.map_or(0, |spine| spine.id.into()),
        spine_address: spine.map_or_else(String::new, |spine| spine.ip.to_string()),
        admits: settings.admits as u64,
        workers: settings.workers as u64,
        placement: settings.placement.name().to_owned(),
        spines: settings.spines as u64,
    }
}

/// Returns the pool in a message, with its id.
fn pool_settings(pool: proto::Pool) -> Result<(u16, PoolSettings), MessageError> {
    let size = |value: u64| usize::try_from(value).or_else(|_| invalid(format!("{value}")));
    let spine = match &pool.spine_address[..] {
        "" => None,
        ip => Some(Spine { id: to_u16(pool.spine)?, ip: address(ip)? }),
    };
    let overflow = overflow_named(&pool.overflow).or_else(|error| invalid(error.to_string()))?;
    let placement = Placement::named(&pool.placement);
    let settings = PoolSettings {
        policy: pool.policy,
        spine_policy: pool.spine_policy,
        agent_policy: pool.agent_policy,
        queue: QueueLimit { tasks: size(pool.queue)?, overflow },
        workers: size(pool.workers)?,
        placement: placement
            .map_or_else(|| invalid(format!("placement {:?}", pool.placement)), Ok)?,
        spines: size(pool.spines)?,
        address: if pool.address.is_empty() { None } else { Some(address(&pool.address)?) },
        admits: size(pool.admits)?,
        spine,
    };
    Ok((to_u16(pool.id)?, settings))
}

/// Returns the message that sends a delta to a node. With `snapshot`, `delta` is the node's whole view.
#[must_use]
pub fn message(
    term: u64,
    version: u64,
    snapshot: bool,
    delta: &Delta<PoolSettings>,
) -> proto::FollowReply {
    let put = &delta.put;
    let servers = put.servers.iter().flat_map(|(ip, entries)| {
        entries.iter().map(|server| proto::Server {
            ip: ip.to_string(),
            mac: server.mac.map_or_else(String::new, |mac| mac.to_string()),
            registers: server.registers,
        })
    });
    // A worker of a rack has no pool in its key. A rack, the member of a spine's pool, has one; its id is
    // its leaf's, and its speed its number of workers.
    let rack = |(key, rack): (&WorkerKey, &Worker)| {
        Some(proto::Rack {
            pool: key.0?.into(),
            leaf: key.1.into(),
            address: rack.server.to_string(),
            workers: rack.speed as u32,
        })
    };
    let removed = delta.workers.iter();
    let removed_racks = removed.clone().filter_map(|&(pool, leaf)| {
        Some(proto::PoolsRack { pool: pool?.into(), leaf: leaf.into() })
    });
    let removed_workers = removed.filter(|(pool, _)| pool.is_none()).map(|&(_, id)| id.into());
    proto::FollowReply {
        term,
        version,
        snapshot,
        pools: put.pools.iter().map(|(&id, settings)| pool(id, settings)).collect(),
        servers: servers.collect(),
        workers: group_equal(&put.workers),
        racks: put.workers.iter().filter_map(rack).collect(),
        gone_pools: delta.pools.iter().copied().map(u32::from).collect(),
        gone_servers: delta.servers.iter().map(ToString::to_string).collect(),
        gone_workers: removed_workers.collect(),
        gone_racks: removed_racks.collect(),
    }
}

/// Groups workers that differ only in their ids, for a short message. Omits racks, whose keys have a pool.
fn group_equal(all: &BTreeMap<WorkerKey, Worker>) -> Vec<proto::Workers> {
    let mut groups = BTreeMap::<_, proto::Workers>::new();
    for (&(_, id), worker) in all.iter().filter(|((pool, _), _)| pool.is_none()) {
        let key = (worker.server, worker.pool, worker.is_drained, worker.speed.to_bits());
        let group = groups.entry(key).or_insert_with(|| proto::Workers {
            ids: Vec::new(),
            server: worker.server.to_string(),
            pool: worker.pool.into(),
            speed: worker.speed,
            drained: worker.is_drained,
        });
        group.ids.push(id.into());
    }
    groups.into_values().collect()
}

/// Returns the delta in a message.
///
/// # Errors
/// If a part of the message is invalid. The error describes it.
pub fn delta(from: proto::FollowReply) -> Result<Delta<PoolSettings>, MessageError> {
    let mut put = View::default();
    for message in from.pools {
        let (id, pool) = pool_settings(message)?;
        put.pools.insert(id, pool);
    }
    for message in from.servers {
        // An invalid MAC address counts as none: the leaf finds it by ARP or neighbour discovery.
        let mac = if message.mac.is_empty() { None } else { message.mac.parse::<Mac>().ok() };
        let entry = Server { mac, registers: message.registers };
        put.servers.entry(address(&message.ip)?).or_default().insert(entry);
    }
    for message in from.workers {
        let (server, pool) = (address(&message.server)?, to_u16(message.pool)?);
        let (speed, is_drained) = (message.speed, message.drained);
        for id in workers(&message.ids)? {
            put.workers.insert((None, id), Worker { server, pool, speed, is_drained });
        }
    }
    for message in from.racks {
        let (server, pool) = (address(&message.address)?, to_u16(message.pool)?);
        let speed = f64::from(message.workers);
        let rack = Worker { server, pool, speed, is_drained: false };
        put.workers.insert((Some(pool), to_u16(message.leaf)?), rack);
    }
    let to_ids = |ids: Vec<u32>| ids.into_iter().map(to_u16).collect::<Result<Vec<_>, _>>();
    let servers = from.gone_servers.iter().map(|ip| address(ip)).collect::<Result<_, _>>()?;
    let workers = to_ids(from.gone_workers)?.into_iter().map(|id| Ok((None, id)));
    let racks = from.gone_racks.iter();
    let racks = racks.map(|one| Ok((Some(to_u16(one.pool)?), to_u16(one.leaf)?)));
    let workers = workers.chain(racks).collect::<Result<_, MessageError>>()?;
    Ok(Delta { put, pools: to_ids(from.gone_pools)?, servers, workers })
}

/// Returns the node that sent a hello.
///
/// # Errors
/// If the message does not name a node.
pub fn node(hello: &proto::Hello) -> Result<NodeId, MessageError> {
    match hello.kind() {
        proto::Kind::Spine => Ok(NodeId::Spine(to_u16(hello.id)?)),
        proto::Kind::Leaf => Ok(NodeId::Leaf(to_u16(hello.id)?)),
        proto::Kind::Agent => Ok(NodeId::Agent(address(&hello.address)?)),
        proto::Kind::Unspecified => invalid("a node of no kind"),
    }
}

/// Returns a node's first message. `instance` is a random number of the node's process: the controller refuses a second
/// process of a node. `known` is the newest position that the node received: a controller whose store is older refuses
/// the node.
#[must_use]
pub fn hello(node: NodeId, instance: u64, known: Position) -> proto::Hello {
    let Position { version, term } = known;
    let (kind, id, address) = match node {
        NodeId::Spine(id) => (proto::Kind::Spine, id.into(), String::new()),
        NodeId::Leaf(id) => (proto::Kind::Leaf, id.into(), String::new()),
        NodeId::Agent(ip) => (proto::Kind::Agent, 0, ip.to_string()),
    };
    proto::Hello { protocol: PROTOCOL, kind: kind.into(), id, address, instance, term, version }
}

/// Returns the gRPC status for a refused command.
#[must_use]
pub fn command_status(error: &CommandError) -> Status {
    let code = match error {
        CommandError::Text(error) => return refusal(error),
        CommandError::Unknown { .. } => Code::NotFound,
        CommandError::Taken { .. } => Code::AlreadyExists,
        CommandError::Refused { .. } => Code::FailedPrecondition,
    };
    Status::new(code, error.to_string())
}
