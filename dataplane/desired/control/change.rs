//! Changes of a running node, as values and as text. `wedjat ctl`, files of changes and the gRPC service send the text,
//! and the log shows it. A controller's commands have the same form with verbs of their own, so it shares [`Values`].

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use wedjat_core::limits::{QUEUE, QUEUE_MAX, SPEEDS, WORKER_ID_MAX};
use wedjat_core::policy::signals::{Protocol, SIGNAL_RULES};
use wedjat_core::policy::{Overflow, PolicyChoice, PolicyError, PolicySpec};
use wedjat_core::wire::ether::Mac;

use crate::config::{HOST, ids};
use crate::state::QueueLimit;

/// One change. Its text is a verb followed by `key=value` for each field, as in `add-workers server=10.0.2.13
/// pool=1 workers=8-11`.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// `add-server ip=… [mac=…] [registers=true]`: adds a host for workers.
    AddServer {
        /// Address.
        ip: IpAddr,
        /// MAC address; `None` to resolve it.
        mac: Option<Mac>,
        /// True if its workers register themselves.
        registers: bool,
    },
    /// `remove-server ip=…`: removes a server after its workers have left.
    RemoveServer {
        /// Address.
        ip: IpAddr,
    },
    /// `move-server ip=… to=… [mac=…]`: changes a server's address. Its workers keep their places and tasks.
    MoveServer {
        /// Old address.
        ip: IpAddr,
        /// New address, which may be equal.
        to: IpAddr,
        /// MAC address there; `None` to resolve it.
        mac: Option<Mac>,
    },
    /// `add-workers [server=…] pool=… workers=… [speed=…]`: adds workers.
    AddWorkers {
        /// Address of their server; `None` for an agent's own host.
        server: Option<IpAddr>,
        /// Id of their pool.
        pool: u16,
        /// Ids.
        workers: Vec<u16>,
        /// Relative speed of each.
        speed: f64,
    },
    /// `remove-workers [pool=…] workers=…`: stops new tasks to workers, and removes them once they have
    /// answered theirs.
    RemoveWorkers {
        /// Id of the pool to remove them from; `None` for all. A spine's leaves may be in several pools.
        pool: Option<u16>,
        /// Ids.
        workers: Vec<u16>,
    },
    /// `drain workers=…`: stops new tasks to workers until they are undrained.
    Drain {
        /// Ids.
        workers: Vec<u16>,
    },
    /// `undrain workers=…`: allows tasks to workers again.
    Undrain {
        /// Ids.
        workers: Vec<u16>,
    },
    /// `add-pool id=… policy=… [queue=…] [overflow=…] [shared-workers=true] [key-file=…]`: adds a pool.
    AddPool {
        /// Id.
        id: u16,
        /// Policy.
        policy: PolicyChoice,
        /// Limit of its queue.
        queue: QueueLimit,
        /// True if other schedulers send tasks to its workers, too.
        shared_workers: bool,
        /// Key file, if its workers must prove their messages.
        key_file: Option<PathBuf>,
    },
    /// `remove-pool id=…`: stops new tasks to a pool. Its workers leave once no task waits, and the pool is
    /// then removed.
    RemovePool {
        /// Id.
        id: u16,
    },
    /// `set-policy pool=… policy=…`: changes a pool's policy.
    SetPolicy {
        /// Id of the pool.
        pool: u16,
        /// New policy.
        policy: PolicyChoice,
    },
    /// `switch-policy pool=… policy=…`: changes the policy that runs now, in a pool whose node chooses it.
    SwitchPolicy {
        /// Id of the pool.
        pool: u16,
        /// New running policy.
        policy: PolicySpec,
    },
    /// `set-queue pool=… queue=… [overflow=…]`: changes the queue's bound. Tasks beyond it that wait already
    /// stay.
    SetQueue {
        /// Id of the pool.
        pool: u16,
        /// Limit of its queue.
        queue: QueueLimit,
    },
    /// `set-speed [pool=…] workers=… speed=…`: changes the speed of workers.
    SetSpeed {
        /// Id of the only pool to change; `None` for all.
        pool: Option<u16>,
        /// Ids.
        workers: Vec<u16>,
        /// Relative speed of each.
        speed: f64,
    },
    /// `set-service pool=… [ip=…]`: changes the address at which clients reach the pool; without `ip` the
    /// node's own.
    SetService {
        /// Id of the pool.
        pool: u16,
        /// Address.
        ip: Option<IpAddr>,
    },
    /// `link-pool pool=… spine=… ip=… [signals=…]`: links a pool to a spine, which then receives its signals.
    LinkPool {
        /// Id of the pool.
        pool: u16,
        /// Id of the spine.
        spine: u16,
        /// Address of the spine.
        ip: IpAddr,
        /// Rules by which the leaf reports the pool's load to the spine.
        signals: Protocol,
    },
    /// `unlink-pool pool=…`: removes a pool's link to its spine.
    UnlinkPool {
        /// Id of the pool.
        pool: u16,
    },
    /// `agent` and a change: changes the agent on a leaf's core.
    OfAgent(Box<Self>),
}

impl Change {
    /// Returns the change with these workers, if it is an `add-workers`, `remove-workers` or `set-speed`. The planner
    /// groups these by their other fields, and adds the workers last. Other changes stay the same.
    #[must_use]
    pub(crate) fn of_workers(mut self, ids: Vec<u16>) -> Self {
        if let Self::AddWorkers { workers, .. }
        | Self::RemoveWorkers { workers, .. }
        | Self::SetSpeed { workers, .. } = &mut self
        {
            *workers = ids;
        }
        self
    }
}

/// Reason why a change is refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChangeError {
    /// The text is not a change.
    #[error("{found}; allowed: {allowed}")]
    Text {
        /// Text found.
        found: String,
        /// Allowed text.
        allowed: String,
    },
    /// The policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The object does not exist.
    #[error("{what}: does not exist; `wedjat state` lists what exists")]
    Unknown {
        /// Object.
        what: String,
    },
    /// The object exists already, or still.
    #[error("{what}: exists already{}", if *.is_leaving { ", and is leaving: wait until it has left" } else { "" })]
    Taken {
        /// Object.
        what: String,
        /// True if it is leaving.
        is_leaving: bool,
    },
    /// The room reserved at the start is used up.
    #[error("{what}: the limit is {most}; restart with a larger `{setting}`, or remove some first")]
    Full {
        /// Kind of object.
        what: &'static str,
        /// Maximum number.
        most: usize,
        /// Setting of that maximum.
        setting: &'static str,
    },
    /// The change is impossible.
    #[error("{what}: {reason}")]
    Refused {
        /// Requested change.
        what: String,
        /// Reason.
        reason: String,
    },
    /// A core has not finished the previous changes.
    #[error("a core has not yet applied the previous changes; try again")]
    Busy,
}

/// Verbs with their keys; keys in brackets are optional.
pub type Verbs = [(&'static str, &'static [&'static str])];

/// Verbs of changes.
const VERBS: &Verbs = &[
    ("add-server", &["ip", "[mac]", "[registers]"]),
    ("remove-server", &["ip"]),
    ("move-server", &["ip", "to", "[mac]"]),
    ("add-workers", &["[server]", "pool", "workers", "[speed]"]),
    ("remove-workers", &["[pool]", "workers"]),
    ("drain", &["workers"]),
    ("undrain", &["workers"]),
    ("add-pool", &["id", "policy", "[queue]", "[overflow]", "[shared-workers]", "[key-file]"]),
    ("remove-pool", &["id"]),
    ("set-policy", &["pool", "policy"]),
    ("switch-policy", &["pool", "policy"]),
    ("set-queue", &["pool", "queue", "[overflow]"]),
    ("set-speed", &["[pool]", "workers", "speed"]),
    ("set-service", &["pool", "[ip]"]),
    ("link-pool", &["pool", "spine", "ip", "[signals]"]),
    ("unlink-pool", &["pool"]),
];

/// Maximum number of characters of a text in an error.
const FOUND_MAX: usize = 100;
/// Maximum size of a path in bytes.
const PATH_MAX: usize = 4096;
/// Maximum size of a policy's text in bytes.
const POLICY_MAX: usize = 256;

/// Splits a text into words; parentheses and double quotes keep a word together. In quotes, a backslash precedes a
/// quote or a backslash.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut depth, mut start) = (Vec::new(), 0_usize, None);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (index, letter) in text.char_indices() {
        match letter {
            // The letter behind a backslash is an ordinary one.
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        // White space outside quotes and parentheses ends the word that began at `start`.
        match (letter.is_whitespace() && depth == 0 && !is_quoted, start) {
            (true, Some(start_index)) => {
                words.push(&text[start_index..index]);
                start = None;
            }
            (false, None) => start = Some(index),
            _ => {}
        }
    }
    words.extend(start.map(|start_index| &text[start_index..]));
    words
}

/// Writes a path as one word of a change's text: in double quotes if it has white space, parentheses, quotes or
/// backslashes, which `words` would interpret.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    if path.contains(|letter: char| letter.is_whitespace() || "()\"\\".contains(letter)) {
        return format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\""));
    }
    path
}

/// Reads a word that may be in quotes. Returns `None` for an open quote, and for one within the word.
fn unquoted(word: &str) -> Option<String> {
    let Some(inside) = word.strip_prefix('"') else {
        return (!word.contains('"')).then(|| word.to_owned());
    };
    let (mut text, mut letters) = (String::new(), inside.chars());
    loop {
        match letters.next()? {
            '"' => return letters.next().is_none().then_some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}

/// Values of a text with a verb and `key=value` pairs, by key.
pub struct Values<'a> {
    /// Verb of the text.
    pub verb: &'static str,
    /// Allowed keys; optional ones are in brackets.
    keys: &'static [&'static str],
    /// Keys of the text with their values.
    pairs: Vec<(&'a str, &'a str)>,
}

/// Returns the error [`ChangeError::Refused`] with this reason.
pub(super) fn refused<T>(
    what: impl Into<String>,
    reason: impl Into<String>,
) -> Result<T, ChangeError> {
    Err(ChangeError::Refused { what: what.into(), reason: reason.into() })
}

/// Returns the error for a text that is not a change. Keeps the first `FOUND_MAX` characters of a client's text,
/// without control characters.
pub fn invalid_text(found: impl fmt::Display, allowed: impl fmt::Display) -> ChangeError {
    let found = found.to_string();
    let mut start: String =
        found.chars().take(FOUND_MAX).filter(|letter| !letter.is_control()).collect();
    if start.len() < found.len() {
        start.push('…');
    }
    ChangeError::Text { found: start, allowed: allowed.to_string() }
}

impl<'a> Values<'a> {
    /// Parses a line with one of `verbs`.
    ///
    /// # Errors
    /// If the verb or a key is unknown, a key is repeated or has no value, or a required key is missing.
    pub fn read(line: &'a str, verbs: &Verbs) -> Result<Self, ChangeError> {
        let words = words(line);
        let verb = words.first().copied().unwrap_or_default();
        let supported = verbs.iter().copied().find(|(supported, _)| *supported == verb);
        let (verb, keys) = supported.ok_or_else(|| {
            let verbs: Vec<_> = verbs.iter().map(|(verb, _)| *verb).collect();
            invalid_text(format!("`{verb}`"), verbs.join(", "))
        })?;
        let mut values = Self { verb, keys, pairs: Vec::new() };
        for word in &words[1..] {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let is_known = keys.iter().any(|known| known.trim_matches(['[', ']']) == key);
            if !is_known || value.is_empty() || values.get(key).is_some() {
                return Err(values.refuse(format!("`{word}`")));
            }
            values.pairs.push((key, value));
        }
        match keys.iter().find(|key| !key.starts_with('[') && values.get(key).is_none()) {
            Some(missing) => Err(values.refuse(format!("no `{missing}`"))),
            None => Ok(values),
        }
    }

    /// Returns the error for invalid text `found`, with the allowed keys.
    fn refuse(&self, found: String) -> ChangeError {
        let keys: Vec<_> = self
            .keys
            .iter()
            .map(|key| match key.strip_prefix('[') {
                Some(key) => format!("[{}=…]", key.trim_end_matches(']')),
                None => format!("{key}=…"),
            })
            .collect();
        invalid_text(
            format!("{found} in `{}`", self.verb),
            format!("{} {}", self.verb, keys.join(" ")),
        )
    }

    /// Returns the value of a key; `None` if the text lacks the key.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|pair| pair.0 == key).map(|(_, value)| *value)
    }

    /// Returns the parsed value of an optional key. `allowed` describes valid values.
    ///
    /// # Errors
    /// If the value is invalid. The error has `allowed`.
    pub fn parsed<T: FromStr>(&self, key: &str, allowed: &str) -> Result<Option<T>, ChangeError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| invalid_text(format!("{key}={value}"), allowed))
    }

    /// Returns the parsed value of a required key. `allowed` describes valid values.
    ///
    /// # Errors
    /// If the value is missing or invalid.
    pub fn needed<T: FromStr>(&self, key: &str, allowed: &str) -> Result<T, ChangeError> {
        let value = self.parsed(key, allowed)?;
        value.ok_or_else(|| self.refuse(format!("no `{key}`")))
    }

    /// Returns the required address of a host under this key.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn address(&self, key: &str) -> Result<IpAddr, ChangeError> {
        self.needed(key, HOST)
    }

    /// Returns the optional MAC address.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn mac(&self) -> Result<Option<Mac>, ChangeError> {
        let allowed = "a unicast MAC address such as 02:00:00:00:02:0b";
        let mac: Option<Mac> = self.parsed("mac", allowed)?;
        match mac.filter(|mac| mac.is_group() || *mac == Mac::default()) {
            Some(mac) => Err(invalid_text(format!("mac={mac}"), allowed)),
            None => Ok(mac),
        }
    }

    /// Returns the flag under this key; false without it.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn flag(&self, key: &str) -> Result<bool, ChangeError> {
        Ok(self.parsed(key, "true or false")?.unwrap_or(false))
    }

    /// Returns the required pool id under this key.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn id(&self, key: &str) -> Result<u16, ChangeError> {
        self.needed(key, "a pool's id, 0 to 65535")
    }

    /// Returns the optional pool.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn pool(&self) -> Result<Option<u16>, ChangeError> {
        self.get("pool").map(|_| self.id("pool")).transpose()
    }

    /// Returns the worker ids.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn workers(&self) -> Result<Vec<u16>, ChangeError> {
        let ids = ids::parse(self.get("workers").unwrap_or_default(), 0..=WORKER_ID_MAX);
        let allowed = format!("ids from 0 to {WORKER_ID_MAX} and ranges, as in 0-31,40");
        ids.map_err(|found| invalid_text(format!("workers={found}"), allowed))
    }

    /// Returns the relative speed; 1 without the key.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn speed(&self) -> Result<f64, ChangeError> {
        let (least, most) = SPEEDS;
        check_speed(self.parsed("speed", &format!("{least} to {most}"))?.unwrap_or(1.0))
    }

    /// Returns the limit of the queue; the defaults without the keys.
    ///
    /// # Errors
    /// If a value is invalid.
    pub fn queue(&self) -> Result<QueueLimit, ChangeError> {
        let tasks = self.parsed("queue", &format!("1 to {QUEUE_MAX}"))?.unwrap_or(QUEUE);
        let tasks = check_queue(tasks)?;
        Ok(QueueLimit { tasks, overflow: overflow_named(self.get("overflow").unwrap_or("drop"))? })
    }

    /// Returns the policy.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn policy<P: FromStr<Err = PolicyError>>(&self) -> Result<P, ChangeError> {
        let policy = self.get("policy").unwrap_or_default();
        if policy.len() > POLICY_MAX {
            let found = format!("a policy of {} bytes", policy.len());
            return Err(invalid_text(found, "a policy that `wedjat policies` lists"));
        }
        Ok(policy.parse()?)
    }

    /// Returns the optional path under this key.
    ///
    /// # Errors
    /// If the value is empty or too long, has control characters, or has an open or inner quote.
    pub fn path(&self, key: &str) -> Result<Option<PathBuf>, ChangeError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let is_valid = |path: &String| {
            (1..=PATH_MAX).contains(&path.len()) && !path.contains(char::is_control)
        };
        let path = unquoted(value).filter(is_valid).ok_or_else(|| {
            let allowed =
                format!("a path of 1 to {PATH_MAX} bytes, in double quotes if it has spaces");
            invalid_text(format!("{key}={value}"), allowed)
        })?;
        Ok(Some(path.into()))
    }

    /// Returns the required id of a spine. Packets have it in the field of worker ids, so it has their bound.
    ///
    /// # Errors
    /// If the value is invalid.
    pub fn spine(&self) -> Result<u16, ChangeError> {
        let allowed = format!("a spine's id, 0 to {WORKER_ID_MAX}");
        let id = self.needed("spine", &allowed)?;
        let error = || invalid_text(format!("spine={id}"), &allowed);
        (id <= WORKER_ID_MAX).then_some(id).ok_or_else(error)
    }
}

/// Returns the speed if it is in the range of a worker's relative speed.
fn check_speed(speed: f64) -> Result<f64, ChangeError> {
    let (least, most) = SPEEDS;
    let error = || invalid_text(format!("speed={speed}"), format!("{least} to {most}"));
    (least..=most).contains(&speed).then_some(speed).ok_or_else(error)
}

/// Returns the bound if it is in the range of a queue's bound.
fn check_queue(queue: usize) -> Result<usize, ChangeError> {
    let error = || invalid_text(format!("queue={queue}"), format!("1 to {QUEUE_MAX}"));
    (1..=QUEUE_MAX).contains(&queue).then_some(queue).ok_or_else(error)
}

/// Returns the overflow treatment with this name.
///
/// # Errors
/// If the name is neither `drop` nor `refuse`.
pub fn overflow_named(name: &str) -> Result<Overflow, ChangeError> {
    match name {
        "drop" => Ok(Overflow::Drop),
        "refuse" => Ok(Overflow::Refuse),
        other => Err(invalid_text(format!("overflow={other}"), "drop or refuse")),
    }
}

/// Returns the name of an overflow treatment.
#[must_use]
pub const fn overflow_name(overflow: Overflow) -> &'static str {
    match overflow {
        Overflow::Drop => "drop",
        Overflow::Refuse => "refuse",
    }
}

/// Returns the signal rules with this name.
fn signals_named(name: &str) -> Result<Protocol, ChangeError> {
    Protocol::of_rules(name).ok_or_else(|| invalid_text(format!("signals={name}"), SIGNAL_RULES))
}

/// Formats the optional pool of a change.
fn pool_text(pool: Option<u16>) -> String {
    pool.map_or_else(String::new, |pool| format!(" pool={pool}"))
}

/// Formats an optional MAC address.
fn mac_text(mac: Option<Mac>) -> String {
    mac.map_or_else(String::new, |mac| format!(" mac={mac}"))
}

/// Formats the limit as the keys `queue` and `overflow`.
impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue={} overflow={}", self.tasks, overflow_name(self.overflow))
    }
}

/// Formats a change in the syntax that is parsed.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = ids::text;
        match self {
            Self::AddServer { ip, mac, registers } => {
                let registers = if *registers { " registers=true" } else { "" };
                write!(f, "add-server ip={ip}{}{registers}", mac_text(*mac))
            }
            Self::RemoveServer { ip } => write!(f, "remove-server ip={ip}"),
            Self::MoveServer { ip, to, mac } => {
                write!(f, "move-server ip={ip} to={to}{}", mac_text(*mac))
            }
            Self::AddWorkers { server, pool, workers, speed } => {
                let server = server.map_or_else(String::new, |ip| format!(" server={ip}"));
                write!(f, "add-workers{server} pool={pool} workers={}", ids(workers))?;
                if *speed == 1.0 { Ok(()) } else { write!(f, " speed={speed}") }
            }
            Self::RemoveWorkers { pool, workers } => {
                write!(f, "remove-workers{} workers={}", pool_text(*pool), ids(workers))
            }
            Self::Drain { workers } => write!(f, "drain workers={}", ids(workers)),
            Self::Undrain { workers } => write!(f, "undrain workers={}", ids(workers)),
            Self::AddPool { id, policy, queue, shared_workers, key_file } => {
                let shared = if *shared_workers { " shared-workers=true" } else { "" };
                let key_file = key_file.as_ref();
                let key =
                    key_file.map_or_else(String::new, |at| format!(" key-file={}", quoted(at)));
                write!(f, "add-pool id={id} policy={policy} {queue}{shared}{key}")
            }
            Self::RemovePool { id } => write!(f, "remove-pool id={id}"),
            Self::OfAgent(change) => write!(f, "agent {change}"),
            Self::SetPolicy { pool, policy } => write!(f, "set-policy pool={pool} policy={policy}"),
            Self::SwitchPolicy { pool, policy } => {
                write!(f, "switch-policy pool={pool} policy={policy}")
            }
            Self::SetQueue { pool, queue } => write!(f, "set-queue pool={pool} {queue}"),
            Self::SetSpeed { pool, workers, speed } => {
                write!(f, "set-speed{} workers={} speed={speed}", pool_text(*pool), ids(workers))
            }
            Self::SetService { pool, ip } => {
                let ip = ip.map_or_else(String::new, |ip| format!(" ip={ip}"));
                write!(f, "set-service pool={pool}{ip}")
            }
            Self::LinkPool { pool, spine, ip, signals } => {
                write!(f, "link-pool pool={pool} spine={spine} ip={ip} signals={}", signals.rules())
            }
            Self::UnlinkPool { pool } => write!(f, "unlink-pool pool={pool}"),
        }
    }
}

impl FromStr for Change {
    type Err = ChangeError;

    /// Parses a change. The word `agent` before it makes it a change of the agent on a leaf's core.
    fn from_str(line: &str) -> Result<Self, ChangeError> {
        match line.trim_start().strip_prefix("agent ") {
            Some(rest) => Ok(Self::OfAgent(Box::new(Self::of_node(rest)?))),
            None => Self::of_node(line),
        }
    }
}

impl Change {
    /// Returns the workers that the change names. A request may name only a limited number of them in all.
    #[must_use]
    pub fn workers(&self) -> &[u16] {
        match self {
            Self::AddWorkers { workers, .. }
            | Self::RemoveWorkers { workers, .. }
            | Self::Drain { workers }
            | Self::Undrain { workers }
            | Self::SetSpeed { workers, .. } => workers,
            Self::OfAgent(change) => change.workers(),
            _ => &[],
        }
    }

    /// Reads a change without the word `agent` before it. Not recursive: a client's text may be long.
    fn of_node(line: &str) -> Result<Self, ChangeError> {
        let values = Values::read(line, VERBS)?;
        Ok(match values.verb {
            "add-server" => Self::AddServer {
                ip: values.address("ip")?,
                mac: values.mac()?,
                registers: values.flag("registers")?,
            },
            "remove-server" => Self::RemoveServer { ip: values.address("ip")? },
            "move-server" => Self::MoveServer {
                ip: values.address("ip")?,
                to: values.address("to")?,
                mac: values.mac()?,
            },
            "add-workers" => Self::AddWorkers {
                server: values.parsed("server", HOST)?,
                pool: values.id("pool")?,
                workers: values.workers()?,
                speed: values.speed()?,
            },
            "remove-workers" => {
                Self::RemoveWorkers { pool: values.pool()?, workers: values.workers()? }
            }
            "drain" => Self::Drain { workers: values.workers()? },
            "undrain" => Self::Undrain { workers: values.workers()? },
            "add-pool" => Self::AddPool {
                id: values.id("id")?,
                policy: values.policy()?,
                queue: values.queue()?,
                shared_workers: values.flag("shared-workers")?,
                key_file: values.path("key-file")?,
            },
            "remove-pool" => Self::RemovePool { id: values.id("id")? },
            "set-policy" => Self::SetPolicy { pool: values.id("pool")?, policy: values.policy()? },
            "switch-policy" => {
                Self::SwitchPolicy { pool: values.id("pool")?, policy: values.policy()? }
            }
            "set-queue" => Self::SetQueue { pool: values.id("pool")?, queue: values.queue()? },
            "set-service" => {
                Self::SetService { pool: values.id("pool")?, ip: values.parsed("ip", HOST)? }
            }
            "link-pool" => Self::LinkPool {
                pool: values.id("pool")?,
                spine: values.spine()?,
                ip: values.address("ip")?,
                signals: signals_named(values.get("signals").unwrap_or("horus"))?,
            },
            "unlink-pool" => Self::UnlinkPool { pool: values.id("pool")? },
            // `set-speed`: `Values::read` accepts only `VERBS`.
            _ => Self::SetSpeed {
                pool: values.pool()?,
                workers: values.workers()?,
                speed: values.speed()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_parsed_from_text() {
        let change: Change =
            "set-policy pool=1  policy=jbsq(k=3, silence-ms=1000)".parse().unwrap();
        let Change::SetPolicy { pool: 1, policy } = change else { panic!("{change:?}") };
        assert_eq!(policy.to_string(), "jbsq(k=3, silence-ms=1000)");
        let change = "add-workers server=10.0.2.13 pool=7 workers=8-9,12 speed=2.5".parse();
        assert_eq!(
            change,
            Ok(Change::AddWorkers {
                server: Some(IpAddr::from([10, 0, 2, 13])),
                pool: 7,
                workers: vec![8, 9, 12],
                speed: 2.5,
            })
        );
        let change = "add-server ip=10.0.2.13 mac=02:00:00:00:02:0d registers=true".parse();
        let mac = Some(Mac([2, 0, 0, 0, 2, 13]));
        let ip = IpAddr::from([10, 0, 2, 13]);
        assert_eq!(change, Ok(Change::AddServer { ip, mac, registers: true }));
    }

    #[test]
    fn changes_are_written_as_they_are_read() {
        for text in [
            "add-server ip=10.0.2.13 mac=02:00:00:00:02:0d registers=true",
            "remove-server ip=10.0.2.13",
            "move-server ip=10.0.2.13 to=10.0.2.14",
            "add-workers server=10.0.2.13 pool=7 workers=8-9,12 speed=2.5",
            "add-workers pool=7 workers=8",
            "remove-workers workers=3",
            "drain workers=1-3",
            "undrain workers=1,3",
            "add-pool id=9 policy=jbsq(k=3, silence-ms=1000) queue=64 overflow=refuse shared-workers=true",
            "remove-pool id=9",
            "set-policy pool=1 policy=racksched",
            "set-policy pool=1 policy=auto(objective=slo(class=1, us=400))",
            "switch-policy pool=1 policy=racksched",
            "set-queue pool=1 queue=10 overflow=drop",
            "set-speed workers=4-5 speed=0.5",
            "set-speed pool=2 workers=4 speed=8",
            "remove-workers pool=2 workers=4",
            "set-service pool=2 ip=10.9.0.1",
            "set-service pool=2",
            "link-pool pool=2 spine=900 ip=10.0.3.1 signals=every-reply",
            "unlink-pool pool=2",
            "add-pool id=9 policy=sed(half=0.5) queue=4096 overflow=drop key-file=/run/key",
            r#"add-pool id=9 policy=sed(half=0.5) queue=4096 overflow=drop key-file="/run/a (\"b\") \\ key""#,
        ] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
    }

    // promise: input.2
    #[test]
    fn nested_agents_and_open_quotes_are_refused() {
        let nested = "agent ".repeat(40_000);
        for bad in ["agent agent drain workers=1", &nested] {
            let error = bad.parse::<Change>().unwrap_err().to_string();
            assert!(error.contains("`agent`; allowed: add-server"), "{error}");
        }
        // Quotes that are open, escaped at the end, inside a word, or around nothing.
        for word in [r#""/run/key"#, r#""/run/key\""#, r#""a"b""#, r#"a"b"#, r#"""#, r#""""#] {
            let text = format!("add-pool id=9 policy=sed key-file={word}");
            let error = text.parse::<Change>().unwrap_err().to_string();
            assert!(error.contains("in double quotes if it has spaces"), "{word}: {error}");
        }
    }

    // promise: membership.2
    #[test]
    fn invalid_change_names_the_fault_or_allowed_text() {
        for (bad, says) in [
            ("", "allowed: add-server, remove-server"),
            ("drop-server ip=1.2.3.4", "`drop-server`"),
            ("remove-server", "no `ip` in `remove-server`; allowed: remove-server ip=…"),
            ("remove-server ip=10.0.0", "ip=10.0.0; allowed: a host's IPv4 or IPv6 address"),
            ("remove-server ip=10.0.0.1 ip=10.0.0.1", "`ip=10.0.0.1` in `remove-server`"),
            ("remove-server ip=10.0.0.1 now", "`now` in"),
            ("remove-workers workers=3-1", "workers=`3-1`, a range that runs backwards"),
            ("set-speed workers=1 speed=0", "speed=0; allowed: 0.001 to 1000"),
            ("set-queue pool=1 queue=0", "queue=0; allowed: 1 to 65536"),
            ("set-queue pool=1 queue=9 overflow=wait", "overflow=wait; allowed: drop or refuse"),
            ("set-policy pool=1 policy=best", "best"),
            (
                "set-policy pool=1 policy=auto(objective=foo)",
                "unknown objective `foo`; allowed: mean",
            ),
            ("switch-policy pool=1 policy=auto", "`auto`: only a pool of a leaf may have it"),
            ("link-pool pool=1 spine=9 ip=10.0.0.9 signals=all", "signals=all; allowed: horus, "),
            ("link-pool pool=1 spine=-1 ip=10.0.0.9", "spine=-1; allowed: a spine's id"),
            ("link-pool pool=1 spine=32767 ip=10.0.0.9", "spine=32767; allowed: a spine's id"),
            (
                "add-server ip=10.0.0.9 mac=ff:ff:ff:ff:ff:ff",
                "mac=ff:ff:ff:ff:ff:ff; allowed: a unicast",
            ),
            ("add-pool id=70000 policy=horus", "id=70000; allowed: a pool's id"),
        ] {
            let error = bad.parse::<Change>().unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
