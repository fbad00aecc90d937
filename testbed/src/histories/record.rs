//! History of a run: the operations of clients with their answers, and the messages that followers received.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use wedjat::controller::generated::TopologyReply;
use wedjat::controller::{Command, Fabric, PoolSettings};
use wedjat::wire::ipv4::v4_bits;

/// Kind of an entity of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the entities of a fabric")]
pub enum Kind {
    Spine,
    Leaf,
    Server,
    Pool,
}

/// Key of an entity: its kind, and its id or address as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(pub Kind, pub u32);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Spine => write!(f, "spine {}", self.1),
            Kind::Leaf => write!(f, "leaf {}", self.1),
            Kind::Server => write!(f, "server {}", std::net::Ipv4Addr::from_bits(self.1)),
            Kind::Pool => write!(f, "pool {}", self.1),
        }
    }
}

/// Settings of an entity that commands change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Field {
    /// A spine or leaf is down.
    Failed,
    /// A server gets no new tasks.
    Drained,
    /// Queue limit of a pool.
    Queue,
    /// Wanted size of a pool.
    Workers,
}

impl Field {
    /// Names in the order of the variants.
    const NAMES: [&'static str; 4] = ["failed", "drained", "queue", "workers"];

    fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Value of an entity: only the parts that recorded commands set, for the comparison of states with commands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Fixed value from an `add-*` command: an address, or a pool's policy; empty for a server.
    pub made: String,
    /// Settings.
    pub set: Vec<(Field, u64)>,
}

impl Entry {
    fn new(made: impl ToString, set: &[(Field, u64)]) -> Self {
        Self { made: made.to_string(), set: set.to_vec() }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.made)?;
        self.set.iter().try_for_each(|(field, value)| write!(f, " {}={value}", field.name()))
    }
}

/// Change of one entity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Creates the entity.
    Add(Entry),
    /// Changes a setting.
    Set(Field, u64),
    /// Removes the entity.
    Remove,
}

/// All entities, in the order of their keys.
pub type State = Vec<(Key, Entry)>;

/// Returns the value of a key in a state.
#[must_use]
pub fn value(state: &State, key: Key) -> Option<&Entry> {
    state.binary_search_by_key(&key, |(key, _)| *key).ok().map(|index| &state[index].1)
}

/// Returns the value of a pool with these settings.
#[must_use]
pub fn of_pool(settings: &PoolSettings) -> Entry {
    pool_entry(&settings.policy, settings.queue.tasks as u64, settings.workers as u64)
}

/// Returns the value of a pool.
fn pool_entry(policy: &str, queue: u64, workers: u64) -> Entry {
    Entry::new(policy, &[(Field::Queue, queue), (Field::Workers, workers)])
}

/// Returns the entities in a controller's answer.
#[must_use]
pub fn of_topology(reply: &TopologyReply) -> State {
    let failed = |is_failed: bool| [(Field::Failed, is_failed.into())];
    let spines = reply.spines.iter();
    let mut state: State = spines
        .map(|spine| {
            (Key(Kind::Spine, spine.id), Entry::new(&spine.address, &failed(spine.failed)))
        })
        .collect();
    for leaf in &reply.leaves {
        let entry = Entry::new(&leaf.address, &failed(leaf.failed));
        state.push((Key(Kind::Leaf, leaf.id), entry));
        let ip = |text: &str| text.parse().map_or(0, std::net::Ipv4Addr::to_bits);
        let servers = leaf.servers.iter().map(|server| {
            let entry = Entry::new("", &[(Field::Drained, server.drained.into())]);
            (Key(Kind::Server, ip(&server.ip)), entry)
        });
        state.extend(servers);
    }
    let pools = reply.pools.iter().filter_map(|reply| reply.pool.as_ref());
    state.extend(pools.map(|pool| {
        (Key(Kind::Pool, pool.id), pool_entry(&pool.policy, pool.queue, pool.workers))
    }));
    state.sort_by_key(|(key, _)| *key);
    state
}

/// Returns the entities of a fabric: same as [`of_topology`], for a controller in this process.
#[must_use]
pub fn of_fabric(fabric: &Fabric) -> State {
    let failed = |is_failed: bool| [(Field::Failed, is_failed.into())];
    let spines = fabric.spines.iter();
    let mut state: State = spines
        .map(|(&id, spine)| {
            (Key(Kind::Spine, id.into()), Entry::new(spine.ip, &failed(spine.is_failed)))
        })
        .collect();
    for (&id, leaf) in &fabric.leaves {
        state.push((Key(Kind::Leaf, id.into()), Entry::new(leaf.ip, &failed(leaf.is_failed))));
        state.extend(leaf.servers.iter().map(|(ip, server)| {
            let entry = Entry::new("", &[(Field::Drained, server.is_drained.into())]);
            (Key(Kind::Server, v4_bits(*ip).unwrap_or_default()), entry)
        }));
    }
    state
        .extend(fabric.pools.iter().map(|(&id, pool)| (Key(Kind::Pool, id.into()), of_pool(pool))));
    state.sort_by_key(|(key, _)| *key);
    state
}

/// Returns a command's key and change; `None` for a command that histories cannot record: it changes several keys
/// or none of these settings, or the controller chooses its key.
#[must_use]
pub fn of_command(command: &Command) -> Option<(Key, Change)> {
    let spine = |id: u16| Key(Kind::Spine, id.into());
    let leaf = |id: u16| Key(Kind::Leaf, id.into());
    let pool = |id: u16| Key(Kind::Pool, id.into());
    let server = |ip| Key(Kind::Server, v4_bits(ip).unwrap_or_default());
    let failed = |is_failed: u64| Change::Set(Field::Failed, is_failed);
    let drained = |is_drained: u64| Change::Set(Field::Drained, is_drained);
    let node = |ip| Change::Add(Entry::new(ip, &[(Field::Failed, 0)]));
    Some(match *command {
        Command::AddSpine { id, ip } => (spine(id), node(ip)),
        Command::RemoveSpine { id } => (spine(id), Change::Remove),
        Command::FailSpine { id } => (spine(id), failed(1)),
        Command::RestoreSpine { id } => (spine(id), failed(0)),
        Command::AddLeaf { id, ip } => (leaf(id), node(ip)),
        // The leaf's servers go with it. Runs remove only leaves without servers.
        Command::RemoveLeaf { id } => (leaf(id), Change::Remove),
        Command::FailLeaf { id, to: None } => (leaf(id), failed(1)),
        Command::RestoreLeaf { id } => (leaf(id), failed(0)),
        Command::AddServer { ip, .. } => {
            (server(ip), Change::Add(Entry::new("", &[(Field::Drained, 0)])))
        }
        Command::RemoveServer { ip } => (server(ip), Change::Remove),
        Command::DrainServer { ip } => (server(ip), drained(1)),
        Command::UndrainServer { ip } => (server(ip), drained(0)),
        Command::AddPool { id: Some(id), ref settings } => {
            (pool(id), Change::Add(of_pool(settings)))
        }
        Command::RemovePool { id } => (pool(id), Change::Remove),
        Command::SetQueue { pool: id, queue } => {
            (pool(id), Change::Set(Field::Queue, queue.tasks as u64))
        }
        Command::ResizePool { id, workers } => {
            (pool(id), Change::Set(Field::Workers, workers as u64))
        }
        _ => return None,
    })
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Reads the whole fabric.
    Read,
    /// Changes one key.
    Command {
        /// Text of the command.
        text: String,
        /// Key of the command.
        key: Key,
        /// Change of the key.
        change: Change,
        /// Only version at which the controller may execute the command.
        if_version: Option<u64>,
    },
}

/// Answer to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The fabric, by its number in [`History::states`].
    State {
        /// Term of the leader: each new leader has a higher one.
        term: u64,
        /// Version of the fabric.
        version: u64,
        /// Number of the state.
        state: usize,
    },
    /// The change is stored as this version, or was in effect already.
    Done {
        /// Version with the change.
        version: u64,
    },
    /// Refused: the key does not exist.
    Absent,
    /// Refused: the key exists.
    Present,
    /// Refused: the version differs.
    OtherVersion {
        /// Version of the fabric.
        found: u64,
    },
    /// The change was not made, or a read has no answer.
    Fail {
        /// Reason.
        reason: String,
    },
    /// The outcome is unknown: the change may have been made, or may still be.
    Unknown {
        /// Reason.
        reason: String,
    },
}

/// Operation of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Number of the client.
    pub client: u32,
    /// Controller that received the request.
    pub controller: u32,
    /// Time of the request, in nanoseconds.
    pub began_ns: u64,
    /// Time of the answer, in nanoseconds.
    pub ended_ns: u64,
    /// Request.
    pub request: Request,
    /// Answer.
    pub answer: Answer,
}

/// Message that a follower received. The follower refuses a message that is older than its view; the history contains
/// that message too, as evidence against its sender. In emulated time: a version that a node has applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// Name of the node.
    pub node: String,
    /// Process of the node: a new number after each restart.
    pub process: u64,
    /// Controller that sent the message.
    pub controller: u32,
    /// Time of the request, if this is the first message of a connection. Such a message counts as a read.
    pub asked_ns: Option<u64>,
    /// Time at which the follower received the message, in nanoseconds.
    pub at_ns: u64,
    /// Term of the leader.
    pub term: u64,
    /// Version of the fabric.
    pub version: u64,
    /// Hash of the view with the message's changes, to compare views of one version. In emulated time: of the node's
    /// members.
    pub view: u64,
    /// Entities of the view to compare with clients' reads: its pools, or none in emulated time.
    pub part: State,
}

/// History of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// States read by clients, each once.
    pub states: Vec<State>,
    /// Number of each state. Empty in a history read from a file, which gets no more states.
    numbers: HashMap<State, usize>,
    /// Operations of clients, in the order of their answers.
    pub operations: Vec<Operation>,
    /// Messages to followers.
    pub updates: Vec<Update>,
}

/// Line of a history's file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    State(State),
    Operation(Operation),
    Update(Update),
}

impl History {
    /// Returns the number of a state. Stores a new state.
    pub fn intern(&mut self, state: State) -> usize {
        if let Some(&number) = self.numbers.get(&state) {
            return number;
        }
        let number = self.states.len();
        self.states.push(state.clone());
        self.numbers.insert(state, number);
        number
    }

    /// Writes the history as JSON lines: first the states, then operations and messages.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let states = self.states.iter().cloned().map(Line::State);
        let operations = self.operations.iter().cloned().map(Line::Operation);
        let updates = self.updates.iter().cloned().map(Line::Update);
        for line in states.chain(operations).chain(updates) {
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Reads the output of [`History::write`].
    ///
    /// # Errors
    /// If the input cannot be read, or a line does not belong to a history.
    pub fn read(input: impl BufRead) -> io::Result<Self> {
        let mut history = Self::default();
        for line in input.lines() {
            match serde_json::from_str(&line?)? {
                Line::State(state) => history.states.push(state),
                Line::Operation(operation) => history.operations.push(operation),
                Line::Update(update) => history.updates.push(update),
            }
        }
        let count = history.states.len();
        let is_known = |operation: &Operation| match operation.answer {
            Answer::State { state, .. } => state < count,
            _ => true,
        };
        if !history.operations.iter().all(is_known) {
            return Err(io::Error::other("an answer refers to a state that is not in the file"));
        }
        Ok(history)
    }
}

/// Converts nanoseconds to seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => write!(f, "reads the topology"),
            Self::Command { text, if_version: None, .. } => write!(f, "{text}"),
            Self::Command { text, if_version: Some(version), .. } => {
                write!(f, "{text} --if-version {version}")
            }
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State { term, version, .. } => write!(f, "version {version} of term {term}"),
            Self::Done { version } => write!(f, "done, version {version}"),
            Self::Absent => write!(f, "refused, it does not exist"),
            Self::Present => write!(f, "refused, it exists"),
            Self::OtherVersion { found } => write!(f, "refused, the version is {found}"),
            Self::Fail { reason } => write!(f, "not executed ({reason})"),
            Self::Unknown { reason } => write!(f, "unknown ({reason})"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (began, ended) = (seconds(self.began_ns), seconds(self.ended_ns));
        write!(
            f,
            "{began:9.4} s to {ended:9.4} s: client {} at controller {}: {}: {}",
            self.client, self.controller, self.request, self.answer
        )
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = seconds(self.at_ns);
        match self.asked_ns {
            Some(asked) => write!(f, "{:9.4} s to {received:9.4} s: ", seconds(asked))?,
            None => write!(f, "{received:9.4} s: ")?,
        }
        write!(
            f,
            "{} (process {}) receives from controller {}: version {} of term {}",
            self.node, self.process, self.controller, self.version, self.term
        )
    }
}
