//! Commands to a fabric, as values and as text. Operators send them as text with `wedjat ctl`. The controller makes
//! two commands itself: `register` for workers that registered at a leaf, and `fail-spine` for a silent spine.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use wedjat_core::limits::{MEMBERS_MAX, QUEUE, WORKER_ID_MAX};
use wedjat_core::policy::{Overflow, PolicyChoice, PolicyError, PolicySpec};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::{HOST, ids};
use wedjat_desired::control::{ChangeError, Values, Verbs, invalid_text, overflow_name};
use wedjat_desired::state::QueueLimit;

use super::fabric::PoolSettings;
use super::place::Placement;

/// Command to a fabric. The text form is a verb with `key=value` for each field, for example `add-leaf id=3
/// ip=10.0.3.1`.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "ids, and the fields of what they name")]
pub enum Command {
    /// `add-spine id=… ip=…`: adds a spine, to which racks of pools may then be linked.
    AddSpine { id: u16, ip: IpAddr },
    /// `remove-spine id=…`: removes the spine and links its racks to other spines.
    RemoveSpine { id: u16 },
    /// `fail-spine id=…`: marks the spine as down and links its racks to other spines.
    FailSpine { id: u16 },
    /// `restore-spine id=…`: marks the spine as up again. Racks may be linked to it.
    RestoreSpine { id: u16 },
    /// `add-leaf id=… ip=…`: adds a leaf with an empty rack.
    AddLeaf { id: u16, ip: IpAddr },
    /// `remove-leaf id=…`: removes the leaf with its rack. Pools get workers elsewhere.
    RemoveLeaf { id: u16 },
    /// `fail-leaf id=… [to=…]`: marks the leaf as down. Pools get workers elsewhere, or the leaf `to` takes over its
    /// servers.
    FailLeaf { id: u16, to: Option<u16> },
    /// `restore-leaf id=…`: marks the leaf as up again.
    RestoreLeaf { id: u16 },
    /// `add-server ip=… leaf=… workers=… [mac=…] [registers=true] [speed=…]`: adds a server with
    /// its workers to the rack of a leaf.
    AddServer {
        ip: IpAddr,
        leaf: u16,
        workers: Vec<u16>,
        mac: Option<Mac>,
        registers: bool,
        speed: f64,
    },
    /// `remove-server ip=…`: removes the server with its workers. Pools get other workers.
    RemoveServer { ip: IpAddr },
    /// `drain-server ip=…`: its workers get no new tasks, and no pool takes them.
    DrainServer { ip: IpAddr },
    /// `undrain-server ip=…`: lets its workers get tasks, and pools take them.
    UndrainServer { ip: IpAddr },
    /// `add-pool [id=…] workers=… policy=… …`: adds a pool. Without an id, takes the first free one.
    AddPool { id: Option<u16>, settings: PoolSettings },
    /// `remove-pool id=…`: removes the pool and frees its workers.
    RemovePool { id: u16 },
    /// `set-policy pool=… policy=…`: sets the leaves' policy.
    SetPolicy { pool: u16, policy: String },
    /// `set-queue pool=… queue=… [overflow=…]`: sets the number of tasks that may wait on a core of a leaf.
    SetQueue { pool: u16, queue: QueueLimit },
    /// `resize-pool id=… workers=…`: sets the number of workers.
    ResizePool { id: u16, workers: usize },
    /// `register leaf=… ip=… pool=… workers=…`: adds workers that registered at a leaf for this pool.
    Register { leaf: u16, ip: IpAddr, pool: u16, workers: Vec<u16> },
}

/// Reason why a command is refused. The fabric is unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommandError {
    /// The text is not a command.
    #[error(transparent)]
    Text(#[from] ChangeError),
    /// The named object does not exist.
    #[error("{what}: there is none; `wedjat ctl topology` lists what there is")]
    Unknown {
        /// Object that the command names.
        what: String,
    },
    /// The id, address or worker is in use.
    #[error("{what}: {by} has it already; choose another")]
    Taken {
        /// Object to be added.
        what: String,
        /// Current owner.
        by: String,
    },
    /// The command is impossible.
    #[error("{what}: {reason}")]
    Refused {
        /// Object that the command names.
        what: String,
        /// Reason, with a remedy.
        reason: String,
    },
}

/// Keys of each verb. Keys in brackets are optional.
const VERBS: &Verbs = &[
    ("add-spine", &["id", "ip"]),
    ("remove-spine", &["id"]),
    ("fail-spine", &["id"]),
    ("restore-spine", &["id"]),
    ("add-leaf", &["id", "ip"]),
    ("remove-leaf", &["id"]),
    ("fail-leaf", &["id", "[to]"]),
    ("restore-leaf", &["id"]),
    ("add-server", &["ip", "leaf", "workers", "[mac]", "[registers]", "[speed]"]),
    ("remove-server", &["ip"]),
    ("drain-server", &["ip"]),
    ("undrain-server", &["ip"]),
    (
        "add-pool",
        &[
            "[id]",
            "workers",
            "policy",
            "[spine-policy]",
            "[agent-policy]",
            "[queue]",
            "[overflow]",
            "[placement]",
            "[spines]",
            "[address]",
            "[admits]",
        ],
    ),
    ("remove-pool", &["id"]),
    ("set-policy", &["pool", "policy"]),
    ("set-queue", &["pool", "queue", "[overflow]"]),
    ("resize-pool", &["id", "workers"]),
    ("register", &["leaf", "ip", "pool", "workers"]),
];

/// Default policy of agents: one queue for all workers of the host. `silence-ms=0` means that no time of silence makes
/// a worker's tasks count as lost.
const AGENT_POLICY: &str = "cfcfs(silence-ms=0)";
/// Maximum number of workers in a fabric. It bounds the size of the stored fabric and of the topology.
pub const FABRIC_WORKERS_MAX: usize = 1 << 24;

/// Largest id of a spine or leaf, and the text for a wrong one. A leaf is a worker of its spine, so it has a
/// worker's ids.
const NODE_IDS: (u16, &str) = (WORKER_ID_MAX, "an id, 0 to 32766");

/// Parses the id of a spine or leaf.
fn node(values: &Values<'_>, key: &str) -> Result<u16, ChangeError> {
    let id: u16 = values.needed(key, NODE_IDS.1)?;
    if id <= NODE_IDS.0 { Ok(id) } else { Err(invalid_text(format!("{key}={id}"), NODE_IDS.1)) }
}

/// Parses a number from `least` to `most`; 0 if the key is missing.
fn count(values: &Values<'_>, key: &str, least: usize, most: usize) -> Result<usize, ChangeError> {
    let allowed = format!("{least} to {most}");
    let number: usize = values.parsed(key, &allowed)?.unwrap_or(0);
    let is_allowed = values.get(key).is_none() || (least..=most).contains(&number);
    if is_allowed { Ok(number) } else { Err(invalid_text(format!("{key}={number}"), allowed)) }
}

/// Returns a policy's text after checking that the policy exists; `None` without the key.
fn policy<P>(values: &Values<'_>, key: &str) -> Result<Option<String>, ChangeError>
where
    P: FromStr<Err = PolicyError> + ToString,
{
    let Some(name) = values.get(key) else { return Ok(None) };
    Ok(Some(name.parse::<P>()?.to_string()))
}

/// Returns the default of `spine-policy`: the policy over racks that matches the leaves' policy, or `random`.
fn over_racks(policy: &str) -> String {
    let policy = policy.parse::<PolicyChoice>().ok();
    let entry = policy.and_then(|policy| policy.first().entry().over_racks);
    entry.map_or("random", |entry| entry.policy).to_owned()
}

/// Parses the settings of a pool.
fn settings(values: &Values<'_>) -> Result<PoolSettings, ChangeError> {
    // The key is required, so the value is never missing.
    let leaf_policy = policy::<PolicyChoice>(values, "policy")?.unwrap_or_default();
    let placement = values.get("placement").unwrap_or(Placement::Spread.name());
    let allowed = || invalid_text(format!("placement={placement}"), "spread, pack or size");
    Ok(PoolSettings {
        spine_policy: policy::<PolicySpec>(values, "spine-policy")?
            .unwrap_or_else(|| over_racks(&leaf_policy)),
        policy: leaf_policy,
        agent_policy: policy::<PolicySpec>(values, "agent-policy")?
            .unwrap_or_else(|| AGENT_POLICY.to_owned()),
        queue: values.queue()?,
        workers: count(values, "workers", 0, FABRIC_WORKERS_MAX)?,
        placement: Placement::named(placement).ok_or_else(allowed)?,
        spines: count(values, "spines", 0, MEMBERS_MAX)?,
        address: values.parsed("address", HOST)?,
        admits: count(values, "admits", 0, FABRIC_WORKERS_MAX)?,
        spine: None,
    })
}

impl FromStr for Command {
    type Err = ChangeError;

    fn from_str(from: &str) -> Result<Self, ChangeError> {
        // Accepts only the verbs and keys of `VERBS`, and requires the keys without brackets.
        let values = Values::read(from, VERBS)?;
        let ip = || values.needed("ip", HOST);
        let id = || node(&values, "id");
        Ok(match values.verb {
            "add-spine" => Self::AddSpine { id: id()?, ip: ip()? },
            "remove-spine" => Self::RemoveSpine { id: id()? },
            "fail-spine" => Self::FailSpine { id: id()? },
            "restore-spine" => Self::RestoreSpine { id: id()? },
            "add-leaf" => Self::AddLeaf { id: id()?, ip: ip()? },
            "remove-leaf" => Self::RemoveLeaf { id: id()? },
            "fail-leaf" => {
                let to = values.get("to").map(|_| node(&values, "to")).transpose()?;
                Self::FailLeaf { id: id()?, to }
            }
            "restore-leaf" => Self::RestoreLeaf { id: id()? },
            "add-server" => Self::AddServer {
                ip: ip()?,
                leaf: node(&values, "leaf")?,
                workers: values.workers()?,
                mac: values.mac()?,
                registers: values.flag("registers")?,
                speed: values.speed()?,
            },
            "remove-server" => Self::RemoveServer { ip: ip()? },
            "drain-server" => Self::DrainServer { ip: ip()? },
            "undrain-server" => Self::UndrainServer { ip: ip()? },
            "add-pool" => Self::AddPool {
                id: values.get("id").map(|_| values.id("id")).transpose()?,
                settings: settings(&values)?,
            },
            "remove-pool" => Self::RemovePool { id: values.id("id")? },
            "set-policy" => Self::SetPolicy {
                pool: values.id("pool")?,
                policy: policy::<PolicyChoice>(&values, "policy")?.unwrap_or_default(),
            },
            "set-queue" => Self::SetQueue { pool: values.id("pool")?, queue: values.queue()? },
            "resize-pool" => Self::ResizePool {
                id: values.id("id")?,
                workers: count(&values, "workers", 0, FABRIC_WORKERS_MAX)?,
            },
            // `register`, the only other verb of `VERBS`.
            _ => Self::Register {
                leaf: node(&values, "leaf")?,
                ip: ip()?,
                pool: values.id("pool")?,
                workers: values.workers()?,
            },
        })
    }
}

/// Formats ` key=value`; empty text without a value.
fn with<T: Display>(key: &str, value: Option<T>) -> String {
    value.map_or_else(String::new, |value| format!(" {key}={value}"))
}

/// Formats a command in the form that `from_str` parses.
impl Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddSpine { id, ip } => write!(f, "add-spine id={id} ip={ip}"),
            Self::RemoveSpine { id } => write!(f, "remove-spine id={id}"),
            Self::FailSpine { id } => write!(f, "fail-spine id={id}"),
            Self::RestoreSpine { id } => write!(f, "restore-spine id={id}"),
            Self::AddLeaf { id, ip } => write!(f, "add-leaf id={id} ip={ip}"),
            Self::RemoveLeaf { id } => write!(f, "remove-leaf id={id}"),
            Self::FailLeaf { id, to } => write!(f, "fail-leaf id={id}{}", with("to", *to)),
            Self::RestoreLeaf { id } => write!(f, "restore-leaf id={id}"),
            Self::AddServer { ip, leaf, workers, mac, registers, speed } => {
                let workers = ids::text(workers);
                write!(f, "add-server ip={ip} leaf={leaf} workers={workers}{}", with("mac", *mac))?;
                let speed = with("speed", (*speed != 1.0).then_some(*speed));
                write!(f, "{}{speed}", with("registers", registers.then_some(true)))
            }
            Self::RemoveServer { ip } => write!(f, "remove-server ip={ip}"),
            Self::DrainServer { ip } => write!(f, "drain-server ip={ip}"),
            Self::UndrainServer { ip } => write!(f, "undrain-server ip={ip}"),
            Self::AddPool { id, settings } => write!(f, "add-pool{}{settings}", with("id", *id)),
            Self::RemovePool { id } => write!(f, "remove-pool id={id}"),
            Self::SetPolicy { pool, policy } => write!(f, "set-policy pool={pool} policy={policy}"),
            Self::SetQueue { pool, queue } => write!(f, "set-queue pool={pool} {queue}"),
            Self::ResizePool { id, workers } => write!(f, "resize-pool id={id} workers={workers}"),
            Self::Register { leaf, ip, pool, workers } => {
                let workers = ids::text(workers);
                write!(f, "register leaf={leaf} ip={ip} pool={pool} workers={workers}")
            }
        }
    }
}

/// Formats the settings as the keys of `add-pool`. Omits the defaults of `queue`, `overflow`, `spines`, `address` and
/// of `admits`.
impl Display for PoolSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, spine_policy, agent_policy, workers, .. } = self;
        write!(f, " workers={workers} policy={policy} spine-policy={spine_policy}")?;
        write!(f, " agent-policy={agent_policy}")?;
        let QueueLimit { tasks, overflow } = self.queue;
        let queue = with("queue", (tasks != QUEUE).then_some(tasks));
        let overflow = (overflow != Overflow::Drop).then_some(overflow_name(overflow));
        write!(f, "{queue}{} placement={}", with("overflow", overflow), self.placement.name())?;
        let admits = with("admits", (self.admits > 0).then_some(self.admits));
        let spines = with("spines", (self.spines > 0).then_some(self.spines));
        write!(f, "{spines}{}{admits}", with("address", self.address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_they_are_read() {
        for text in [
            "add-spine id=1 ip=10.0.3.1",
            "remove-spine id=1",
            "fail-spine id=1",
            "restore-spine id=1",
            "add-leaf id=7 ip=10.0.2.1",
            "add-leaf id=8 ip=fd00:2::1",
            "remove-leaf id=7",
            "fail-leaf id=7",
            "fail-leaf id=7 to=8",
            "restore-leaf id=7",
            "add-server ip=10.0.2.11 leaf=7 workers=0-31 mac=02:00:00:00:02:0b registers=true speed=2.5",
            "add-server ip=10.0.2.11 leaf=7 workers=0-31",
            "remove-server ip=10.0.2.11",
            "drain-server ip=10.0.2.11",
            "undrain-server ip=10.0.2.11",
            "add-pool id=3 workers=64 policy=horus spine-policy=horus-spine agent-policy=sed(half=0.5) placement=spread spines=2",
            "add-pool workers=0 policy=jbsq(k=3, silence-ms=1000) spine-policy=random agent-policy=sed(half=0.5) queue=9 \
             overflow=refuse placement=pack address=10.9.0.1 admits=32",
            "remove-pool id=3",
            "set-policy pool=3 policy=racksched",
            "set-queue pool=3 queue=10 overflow=drop",
            "resize-pool id=3 workers=65",
            "register leaf=7 ip=10.0.2.11 pool=3 workers=4,6",
        ] {
            assert_eq!(text.parse::<Command>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_command_names_the_fault_or_allowed_text() {
        for (bad, says) in [
            ("", "allowed: add-spine, remove-spine"),
            ("add-leaf ip=10.0.2.1", "no `id` in `add-leaf`; allowed: add-leaf id=… ip=…"),
            ("add-leaf id=32767 ip=10.0.2.1", "id=32767; allowed: an id, 0 to 32766"),
            ("add-leaf id=1 ip=10.0.2", "allowed: a host's IPv4 or IPv6 address"),
            ("add-pool workers=4 policy=best", "best"),
            (
                "add-pool workers=4 policy=sed(half=0.5) placement=even",
                "allowed: spread, pack or size",
            ),
            (
                "add-pool workers=99999999 policy=sed(half=0.5)",
                "workers=99999999; allowed: 0 to 16777216",
            ),
            ("add-server ip=10.0.2.11 leaf=1 workers=9-1", "runs backwards"),
            ("add-server ip=10.0.2.11 leaf=1 workers=1 speed=0", "speed=0; allowed: 0.001 to 1000"),
        ] {
            let error = bad.parse::<Command>().unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
