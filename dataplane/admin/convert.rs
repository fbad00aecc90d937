//! Conversion between the messages of the control's gRPC service and the node's own types. Checks the number of changes
//! and the filter of explanations. The parser of changes and `Taps` check a client's further values.

use std::net::IpAddr;

use tonic::{Code, Status};
use wedjat_core::limits::WORKER_ID_MAX;
use wedjat_core::nearest::nearest;
use wedjat_core::node::explain::Filter;
use wedjat_core::reason::DropReason;
use wedjat_core::state::table::{AutoSnapshot, MemberSnapshot, PoolSnapshot};
use wedjat_desired::config::ids::NAMED_MAX;
use wedjat_desired::control::{Change, ChangeError, Pool, invalid_text, overflow_name};

use super::explain::ExplainSpec;
use super::generated as proto;
use super::requests::{NodeSnapshot, RequestError};
use super::tap::{TapError, TapOwner, TapSpec, TapStats};

/// Maximum number of changes of one request.
pub const CHANGES_MAX: usize = 256;

/// Parses the changes of a request.
///
/// # Errors
/// The invalid value, and the allowed ones.
pub fn changes(all: &[String]) -> Result<Vec<Change>, ChangeError> {
    if !(1..=CHANGES_MAX).contains(&all.len()) {
        return Err(invalid_text(format!("{} changes", all.len()), format!("1 to {CHANGES_MAX}")));
    }
    // A short text can name all ids, and each costs time on the thread that makes the changes.
    let (mut changes, mut workers) = (Vec::with_capacity(all.len()), 0);
    for line in all {
        let change: Change = line.parse()?;
        workers += change.workers().len();
        if workers > NAMED_MAX {
            let allowed = format!("{NAMED_MAX} in a request");
            return Err(invalid_text(format!("more than {NAMED_MAX} workers"), allowed));
        }
        changes.push(change);
    }
    Ok(changes)
}

/// Returns a client's value for an error message: the first 40 characters, without control characters.
fn shorten(value: &str) -> String {
    let start: String = value.chars().take(40).filter(|letter| !letter.is_control()).collect();
    if start == value { start } else { format!("{start}…") }
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

/// Converts a node's state to the reply that shows it.
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
    let snaplen = snaplen.map(|bytes| bytes as usize);
    TapSpec { file, port, snaplen, packets, owner: TapOwner::Nobody }
}

/// Converts a request for explanations.
///
/// # Errors
/// If an id, the address or the drop reason is invalid. `Taps::explain` checks the port.
pub fn explain_spec(request: proto::ExplainRequest) -> Result<ExplainSpec, TapError> {
    let argument = |what: String, allowed: String| TapError::Argument { what, allowed };
    let proto::ExplainRequest { pool, worker, host, port, drops, reason, count } = request;
    // Checks an optional id against its maximum.
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
        TapError::Explaining => Code::ResourceExhausted, // only this one, so that a client may ask again
        TapError::Incomplete { .. } => Code::DataLoss,
        TapError::Late | TapError::LateToCapture | TapError::LateToExplain => {
            Code::DeadlineExceeded
        }
        TapError::Busy => Code::Unavailable,
    };
    Status::new(code, error.to_string())
}

/// Converts a pool to a message. `state` is its part of the node's state, if it has one already.
fn pool_message(node: &NodeSnapshot, pool: &Pool, state: Option<&PoolSnapshot>) -> proto::Pool {
    let worker = |(place, worker): (usize, &Option<wedjat_desired::control::Worker>)| {
        let worker = (*worker)?;
        let local_worker = node.workers_here.get(&worker.id);
        let is_at_place = |one: &&MemberSnapshot| usize::from(one.member) == place;
        let member = state.and_then(|state| state.members.iter().find(is_at_place));
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
            held: local_worker.map_or(0, |local| local.held),
            drained: node.is_drained(&worker),
            leaving: worker.is_leaving,
        })
    };
    proto::Pool {
        id: pool.id.into(),
        policy: pool.settings.policy.to_string(),
        queue: pool.settings.queue.tasks as u64,
        overflow: overflow_name(pool.settings.queue.overflow).to_owned(),
        waiting: state.map_or(0, |state| state.queued.iter().sum()),
        scheduled: node.tally.scheduled(pool.id),
        leaving: pool.is_leaving,
        workers: pool.members.iter().enumerate().filter_map(worker).collect(),
        // A pool that is new has no state yet.
        auto: pool.settings.auto.map(|objective| {
            let state = state.and_then(|state| state.auto.clone()).unwrap_or_default();
            let AutoSnapshot { decision, switches, .. } = state;
            proto::Auto { objective: objective.to_string(), decision, switches }
        }),
    }
}

/// Conversion in a client, which prints the result by `AutoSnapshot::text`.
impl From<proto::Auto> for AutoSnapshot {
    fn from(auto: proto::Auto) -> Self {
        let proto::Auto { objective, decision, switches } = auto;
        Self { objective, decision, switches }
    }
}
