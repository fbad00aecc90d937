//! Conversion between the messages of the control's gRPC and the node's own types. Values of a client are checked
//! here.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use tonic::{Code, Status};
use wedjat_core::limits::{QUEUE, WORKER_ID_MAX};
use wedjat_core::nearest::nearest;
use wedjat_core::node::explain::Filter;
use wedjat_core::policy::PolicySpec;
use wedjat_core::reason::DropReason;
use wedjat_core::state::table::{MemberSnapshot, PoolSnapshot};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::control::{
    Change, ChangeError, Pool, check_queue, check_speed, overflow_name, overflow_named,
    signals_named, text,
};

use super::explain::ExplainSpec;
use super::generated as proto;
use super::requests::{NodeSnapshot, RequestError};
use super::tap::{TapError, TapSpec, TapStats};

/// Maximum number of changes of one request.
pub const CHANGES_MAX: usize = 256;

/// Converts the changes of a request.
///
/// # Errors
/// The invalid value, and the allowed ones.
pub fn changes(all: Vec<proto::Change>) -> Result<Vec<Change>, ChangeError> {
    if !(1..=CHANGES_MAX).contains(&all.len()) {
        return Err(text(format!("{} changes", all.len()), format!("1 to {CHANGES_MAX}")));
    }
    all.into_iter().map(change).collect()
}

/// Converts one change.
fn change(change: proto::Change) -> Result<Change, ChangeError> {
    use proto::change::Change as Of;
    let none = || text("a change without a kind", "a kind that this version's control.proto lists");
    let of_agent = change.of_agent;
    let change = match change.change.ok_or_else(none)? {
        Of::AddServer(one) => {
            let (ip, mac) = (host(&one.ip, "ip")?, mac(&one.mac)?);
            Change::AddServer { ip, mac, registers: one.registers }
        }
        Of::RemoveServer(one) => Change::RemoveServer { ip: host(&one.ip, "ip")? },
        Of::MoveServer(one) => {
            let (ip, to) = (host(&one.ip, "ip")?, host(&one.to, "to")?);
            Change::MoveServer { ip, to, mac: mac(&one.mac)? }
        }
        Of::AddWorkers(one) => Change::AddWorkers {
            server: (!one.server.is_empty()).then(|| host(&one.server, "server")).transpose()?,
            pool: pool(one.pool)?,
            workers: workers(&one.workers)?,
            speed: check_speed(one.speed.unwrap_or(1.0))?,
        },
        Of::RemoveWorkers(one) => Change::RemoveWorkers {
            pool: one.pool.map(pool).transpose()?,
            workers: workers(&one.workers)?,
        },
        Of::Drain(one) => Change::Drain { workers: workers_of_all(&one)? },
        Of::Undrain(one) => Change::Undrain { workers: workers_of_all(&one)? },
        Of::AddPool(one) => Change::AddPool {
            id: pool(one.id)?,
            policy: policy(&one.policy)?,
            queue: one.queue.map_or(Ok(QUEUE), queue)?,
            overflow: overflow(&one.overflow)?,
            shared_workers: one.shared_workers,
            key_file: key_file(&one.key_file)?,
        },
        Of::RemovePool(one) => Change::RemovePool { id: pool(one.id)? },
        Of::SetPolicy(one) => {
            Change::SetPolicy { pool: pool(one.pool)?, policy: policy(&one.policy)? }
        }
        Of::SetQueue(one) => {
            let (pool, queue) = (pool(one.pool)?, queue(one.queue)?);
            Change::SetQueue { pool, queue, overflow: overflow(&one.overflow)? }
        }
        Of::SetSpeed(one) => {
            let (pool, speed) = (one.pool.map(pool).transpose()?, check_speed(one.speed)?);
            Change::SetSpeed { pool, workers: workers(&one.workers)?, speed }
        }
        Of::SetService(one) => {
            let ip = (!one.ip.is_empty()).then(|| host(&one.ip, "ip")).transpose()?;
            Change::SetService { pool: pool(one.pool)?, ip }
        }
        Of::LinkPool(one) => Change::LinkPool {
            pool: pool(one.pool)?,
            spine: spine(one.spine)?,
            ip: host(&one.ip, "ip")?,
            signals: signals_named(if one.signals.is_empty() { "horus" } else { &one.signals })?,
        },
        Of::UnlinkPool(one) => Change::UnlinkPool { pool: pool(one.pool)? },
    };
    Ok(if of_agent { Change::OfAgent(Box::new(change)) } else { change })
}

/// Parses an address; `field` names it in the error.
fn host(value: &str, field: &str) -> Result<IpAddr, ChangeError> {
    let allowed = "a host's IPv4 address such as 10.0.2.11, or an IPv6 address such as fd00:2::b";
    value.parse().map_err(|_| text(format!("{field}={}", shorten(value)), allowed))
}

/// Parses a MAC address; `None` if the text is empty.
fn mac(value: &str) -> Result<Option<Mac>, ChangeError> {
    let allowed = "a unicast MAC address such as 02:00:00:00:02:0b, or an empty string";
    let is_unicast = |mac: &Mac| !mac.is_group() && *mac != Mac::default();
    let mac = || value.parse::<Mac>().ok().filter(is_unicast).map(Some);
    if value.is_empty() {
        return Ok(None);
    }
    mac().ok_or_else(|| text(format!("mac={}", shorten(value)), allowed))
}

/// Checks a pool's id.
fn pool(id: u32) -> Result<u16, ChangeError> {
    u16::try_from(id).map_err(|_| text(format!("pool {id}"), "a pool's id, 0 to 65535"))
}

/// Checks a spine's id. Packets have it in the field of worker ids, so it has their bound.
fn spine(id: u32) -> Result<u16, ChangeError> {
    let known = u16::try_from(id).ok().filter(|&id| id <= WORKER_ID_MAX);
    known.ok_or_else(|| text(format!("spine {id}"), format!("a spine's id, 0 to {WORKER_ID_MAX}")))
}

/// Converts the workers of a drain or undrain, which may not name a pool.
fn workers_of_all(request: &proto::Workers) -> Result<Vec<u16>, ChangeError> {
    match request.pool {
        Some(pool) => {
            Err(text(format!("pool {pool}"), "no pool: drained workers are drained in all pools"))
        }
        None => workers(&request.workers),
    }
}

/// Checks workers' ids, each of which may occur once.
fn workers(ids: &[u32]) -> Result<Vec<u16>, ChangeError> {
    let allowed = || format!("one or more ids from 0 to {WORKER_ID_MAX}, each once");
    if ids.is_empty() || ids.len() > usize::from(WORKER_ID_MAX) + 1 {
        return Err(text(format!("{} workers", ids.len()), allowed()));
    }
    let mut seen = BTreeSet::new();
    let mut worker = |&id: &u32| {
        let known = u16::try_from(id).ok().filter(|&id| id <= WORKER_ID_MAX);
        let known = known.ok_or_else(|| text(format!("worker {id}"), allowed()))?;
        if seen.insert(known) {
            Ok(known)
        } else {
            Err(text(format!("worker {id} twice"), allowed()))
        }
    };
    ids.iter().map(&mut worker).collect()
}

/// Parses a policy. The limit keeps errors short.
fn policy(value: &str) -> Result<PolicySpec, ChangeError> {
    if value.len() > 256 {
        let allowed = "a policy that `wedjat policies` lists";
        return Err(text(format!("a policy of {} characters", value.len()), allowed));
    }
    Ok(value.parse()?)
}

/// Checks a queue's bound.
fn queue(bound: u64) -> Result<usize, ChangeError> {
    check_queue(usize::try_from(bound).unwrap_or(usize::MAX))
}

/// Parses an overflow treatment; empty for the default.
fn overflow(name: &str) -> Result<wedjat_core::policy::Overflow, ChangeError> {
    overflow_named(if name.is_empty() { "drop" } else { name })
}

/// Converts the path of a pool's key on the node's host; `None` if it is empty.
fn key_file(path: &str) -> Result<Option<PathBuf>, ChangeError> {
    if path.len() > 4096 || path.contains(char::is_control) {
        return Err(text(
            format!("key-file={}", shorten(path)),
            "a path of at most 4096 bytes, or an empty string",
        ));
    }
    Ok((!path.is_empty()).then(|| path.into()))
}

/// Returns a client's value, shortened for an error message.
fn shorten(value: &str) -> String {
    let start: String = value.chars().take(40).filter(|letter| !letter.is_control()).collect();
    if start == value { start } else { format!("{start}…") }
}

/// Converts a change to the message of a client.
#[must_use]
pub fn message(from: &Change) -> proto::Change {
    use proto::change::Change as To;
    let ids = |workers: &[u16]| workers.iter().copied().map(u32::from).collect::<Vec<_>>();
    let mac = |mac: &Option<Mac>| mac.map_or_else(String::new, |mac| mac.to_string());
    let change = match from {
        Change::AddServer { ip, mac: at, registers } => To::AddServer(proto::AddServer {
            ip: ip.to_string(),
            mac: mac(at),
            registers: *registers,
        }),
        Change::RemoveServer { ip } => To::RemoveServer(proto::RemoveServer { ip: ip.to_string() }),
        Change::MoveServer { ip, to, mac: at } => To::MoveServer(proto::MoveServer {
            ip: ip.to_string(),
            to: to.to_string(),
            mac: mac(at),
        }),
        Change::AddWorkers { server, pool, workers, speed } => To::AddWorkers(proto::AddWorkers {
            server: server.map_or_else(String::new, |ip| ip.to_string()),
            pool: (*pool).into(),
            workers: ids(workers),
            speed: Some(*speed),
        }),
        Change::RemoveWorkers { pool, workers } => {
            let pool = pool.map(u32::from);
            To::RemoveWorkers(proto::Workers { workers: ids(workers), pool })
        }
        Change::Drain { workers } => {
            To::Drain(proto::Workers { workers: ids(workers), pool: None })
        }
        Change::Undrain { workers } => {
            To::Undrain(proto::Workers { workers: ids(workers), pool: None })
        }
        Change::AddPool { id, policy, queue, overflow, shared_workers, key_file } => {
            To::AddPool(proto::AddPool {
                id: (*id).into(),
                policy: policy.to_string(),
                queue: Some(*queue as u64),
                overflow: overflow_name(*overflow).to_owned(),
                shared_workers: *shared_workers,
                key_file: key_file
                    .as_ref()
                    .map_or_else(String::new, |path| path.display().to_string()),
            })
        }
        Change::RemovePool { id } => To::RemovePool(proto::RemovePool { id: (*id).into() }),
        Change::SetPolicy { pool, policy } => {
            To::SetPolicy(proto::SetPolicy { pool: (*pool).into(), policy: policy.to_string() })
        }
        Change::SetQueue { pool, queue, overflow } => To::SetQueue(proto::SetQueue {
            pool: (*pool).into(),
            queue: *queue as u64,
            overflow: overflow_name(*overflow).to_owned(),
        }),
        Change::OfAgent(change) => return proto::Change { of_agent: true, ..message(change) },
        Change::SetSpeed { pool, workers, speed } => To::SetSpeed(proto::SetSpeed {
            workers: ids(workers),
            speed: *speed,
            pool: pool.map(u32::from),
        }),
        Change::SetService { pool, ip } => To::SetService(proto::SetService {
            pool: (*pool).into(),
            ip: ip.map_or_else(String::new, |ip| ip.to_string()),
        }),
        Change::LinkPool { pool, spine, ip, signals } => To::LinkPool(proto::LinkPool {
            pool: (*pool).into(),
            spine: (*spine).into(),
            ip: ip.to_string(),
            signals: signals.rules().to_owned(),
        }),
        Change::UnlinkPool { pool } => To::UnlinkPool(proto::UnlinkPool { pool: (*pool).into() }),
    };
    proto::Change { change: Some(change), of_agent: false }
}

/// Returns the status of a refused change.
pub fn refusal(error: &ChangeError) -> Status {
    let code = match error {
        ChangeError::Text { .. } | ChangeError::Policy(_) => Code::InvalidArgument,
        ChangeError::Unknown { .. } => Code::NotFound,
        ChangeError::Taken { .. } => Code::AlreadyExists,
        ChangeError::Full { .. } => Code::ResourceExhausted,
        ChangeError::Refused { .. } => Code::FailedPrecondition,
        ChangeError::Busy => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// Returns the status of a failed request.
pub fn status(error: &RequestError) -> Status {
    match error {
        RequestError::Change(error) => refusal(error),
        RequestError::Version { .. } => Status::aborted(error.to_string()),
        RequestError::Reload(_) => Status::failed_precondition(error.to_string()),
        RequestError::Late(_) => Status::deadline_exceeded(error.to_string()),
    }
}

/// Converts a node's state to a reply.
pub fn show_reply(node: &NodeSnapshot) -> proto::ShowReply {
    let NodeSnapshot { membership, acknowledged, snapshot, ports, tap, .. } = node;
    let servers = membership.servers.iter().flatten().map(|server| proto::Server {
        ip: server.ip.to_string(),
        mac: server.mac.map_or_else(String::new, |mac| mac.to_string()),
        registers: server.registers,
        leaving: server.is_leaving,
    });
    let pools = membership.pools.iter().flatten().map(|pool| {
        let state = snapshot.pools.iter().find(|one| one.id == pool.id);
        pool_message(node, pool, state)
    });
    let counters = |named: &std::collections::BTreeMap<&'static str, u64>| {
        named.iter().map(|(&name, &value)| (name.to_owned(), value)).collect()
    };
    let cores = snapshot.cores.iter().map(|core| proto::Core {
        counters: counters(&core.counters),
        drops: counters(&core.drops),
    });
    let ports = ports.iter().map(|port| proto::Port {
        device: port.device.clone(),
        driver: port.driver.clone(),
        rx_missed: port.rx_missed,
        rx_no_mbuf: port.rx_no_mbuf,
        rx_errors: port.rx_errors,
        tx_errors: port.tx_errors,
        xstats: port.xstats.clone(),
        rx_partial: port.rx_partial,
    });
    proto::ShowReply {
        version: membership.epoch,
        acknowledged: *acknowledged,
        role: snapshot.role.name().to_owned(),
        node: snapshot.node.into(),
        pid: snapshot.pid,
        started: snapshot.started,
        pools: pools.collect(),
        servers: servers.collect(),
        cores: cores.collect(),
        ports: ports.collect(),
        tap: tap.as_ref().map(tap_message),
    }
}

/// Converts a request for a tap.
pub fn tap_spec(request: proto::StartTapRequest) -> TapSpec {
    let proto::StartTapRequest { file, port, snaplen, packets } = request;
    let (file, port) = (file.into(), (!port.is_empty()).then_some(port));
    TapSpec { file, port, snaplen: snaplen.map(|bytes| bytes as usize), packets }
}

/// Converts a request for explanations.
///
/// # Errors
/// If a value of the filter cannot exist.
pub fn explain_spec(request: proto::ExplainRequest) -> Result<ExplainSpec, TapError> {
    let argument = |what: String, allowed: String| TapError::Argument { what, allowed };
    let proto::ExplainRequest { pool, worker, host, port, drops, reason, count } = request;
    let id = |what: &str, id: Option<u32>, most: u16| match id.map(u16::try_from) {
        None => Ok(None),
        Some(Ok(id)) if id <= most => Ok(Some(id)),
        Some(_) => {
            Err(argument(format!("{what} {}", id.unwrap_or_default()), format!("0 to {most}")))
        }
    };
    let host = match host.as_str() {
        "" => None,
        host => Some(host.parse::<IpAddr>().map_err(|_| {
            argument(
                format!("host {}", shorten(host)),
                "an address such as 10.0.1.2 or fd00:1::2".into(),
            )
        })?),
    };
    let named = DropReason::ALL.into_iter().find(|one| one.name() == reason);
    if named.is_none() && !reason.is_empty() {
        let near = nearest(&reason, DropReason::ALL.iter().map(|one| one.name()));
        let near = near.map_or_else(String::new, |near| format!(", as in {near}"));
        let allowed = format!("a drop reason that docs/reference/drop-reasons.md lists{near}");
        return Err(argument(format!("reason {}", shorten(&reason)), allowed));
    }
    let filter = Filter {
        ports: 0, // set later, from the name in `port`
        pool: id("pool", pool, u16::MAX)?,
        worker: id("worker", worker, WORKER_ID_MAX)?,
        host,
        drops,
        reason: named,
    };
    let (port, packets) = ((!port.is_empty()).then_some(port), (count > 0).then_some(count));
    Ok(ExplainSpec { filter, port, packets })
}

/// Converts the state of a tap to a message.
pub fn tap_message(tap: &TapStats) -> proto::Tap {
    proto::Tap {
        file: tap.file.to_string_lossy().into_owned(),
        ports: tap.ports.clone(),
        snaplen: tap.snaplen as u32,
        written: tap.written,
        lost: tap.lost,
        ended: tap.has_ended,
    }
}

/// Returns the status of a failed tap.
pub fn tap_status(error: &TapError) -> Status {
    let code = match error {
        TapError::Argument { .. } => Code::InvalidArgument,
        TapError::Port { .. } => Code::NotFound,
        TapError::Exists { .. } => Code::AlreadyExists,
        TapError::Running { .. } | TapError::None | TapError::File { .. } | TapError::Nowhere => {
            Code::FailedPrecondition
        }
        TapError::Explaining => Code::FailedPrecondition,
        TapError::Incomplete { .. } => Code::DataLoss,
        TapError::Late | TapError::LateToExplain => Code::DeadlineExceeded,
        TapError::Busy => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// Converts a pool to a message. `state` is its part of the node's state, if it has one already.
fn pool_message(node: &NodeSnapshot, pool: &Pool, state: Option<&PoolSnapshot>) -> proto::Pool {
    let worker = |(place, worker): (usize, &Option<wedjat_desired::control::Worker>)| {
        let worker = (*worker)?;
        let here = node.workers_here.get(&worker.id);
        let is_it = |one: &&MemberSnapshot| usize::from(one.member) == place;
        let member = state.and_then(|state| state.members.iter().find(is_it));
        let server = node.membership.servers.get(usize::from(worker.server)).copied().flatten();
        Some(proto::Worker {
            id: worker.id.into(),
            server: server.map_or_else(String::new, |server| server.ip.to_string()),
            speed: worker.speed,
            presence: member.map_or("", |member| member.presence.name()).to_owned(),
            load: member.map_or(0.0, |member| member.load),
            outstanding: member.map_or(0, |member| member.outstanding),
            lost: member.map_or(0, |member| member.lost.into()),
            sent: node.tally.worker(pool.id, worker.id).sent,
            answered: node.tally.worker(pool.id, worker.id).answered,
            unresponsive: node.tally.worker(pool.id, worker.id).is_unresponsive,
            held: here.map_or(0, |here| here.held),
            drained: node.is_drained(&worker),
            leaving: worker.is_leaving,
        })
    };
    proto::Pool {
        id: pool.id.into(),
        policy: pool.settings.policy.to_string(),
        queue: pool.settings.queue as u64,
        overflow: overflow_name(pool.settings.overflow).to_owned(),
        waiting: state.map_or(0, |state| state.queued.iter().sum()),
        scheduled: node.tally.scheduled(pool.id),
        leaving: pool.is_leaving,
        workers: pool.members.iter().enumerate().filter_map(worker).collect(),
    }
}
