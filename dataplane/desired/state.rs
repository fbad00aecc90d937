//! Desired state of one node: its pools, servers and workers, and the delta between two such states.
//!
//! The configuration file, a controller and the node's own membership give the same form. One comparison thus serves
//! reloads of the file and nodes that follow a controller.
//!
//! A leaf schedules tasks over the workers of servers. A spine schedules over leaves, so its workers are leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use wedjat_core::policy::signals::Protocol;
use wedjat_core::policy::{Objective, Overflow, PolicyChoice, PolicySpec, Reports};
use wedjat_core::wire::auth::Key;
use wedjat_core::wire::ether::Mac;

/// A spine above a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spine {
    /// Id.
    pub id: u16,
    /// Address.
    pub ip: IpAddr,
}

/// Way of a worker's reply to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyPath {
    /// Through the leaf, which counts it.
    #[default]
    Leaf,
    /// Straight to the client. The server reports completions to the leaf.
    Direct,
}

/// Reason why a node cannot choose a pool's policy, and the allowed settings.
pub type AutoRefusal = (&'static str, &'static str);

/// Refusal in a program with an embedded scheduler. To choose a policy, a node simulates the packets that it captured.
pub const EMBEDDED_REFUSAL: AutoRefusal =
    ("an embedded scheduler captures no packets", "one policy, as in eft");

/// Limit of a pool's queue on each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct QueueLimit {
    /// Maximum number of tasks that wait, for policies with a queue.
    #[serde(rename = "queue")]
    pub tasks: usize,
    /// Treatment of further tasks.
    pub overflow: Overflow,
}

/// Settings that a pool keeps while it exists. A controller does not know them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FixedSettings {
    /// True if other schedulers send tasks to its workers, too.
    pub shared_workers: bool,
    /// At a leaf: source of its workers' load reports.
    pub reports: Reports,
    /// At a leaf: way of its workers' replies.
    pub replies: ReplyPath,
    /// Key. A leaf accepts its workers' replies and registrations only with a proof, a tag made with the key; an agent
    /// signs its workers' messages.
    pub key: Option<Key>,
    /// At an agent: policy of the leaves, if members send queue reports under it without being probed. It
    /// determines when the agent sends a worker's reports. `None` for other policies.
    pub leaf_policy: Option<PolicySpec>,
}

impl FixedSettings {
    /// Iterates over the live keys of the file whose values differ.
    pub fn differences(&self, other: &Self) -> impl Iterator<Item = &'static str> {
        // Without `..`, so that a new setting is compared, too. `leaf_policy` is not live.
        let Self { shared_workers, reports, replies, key, leaf_policy: _ } = self;
        let are_equal = [
            ("shared_workers", *shared_workers == other.shared_workers),
            ("reports", *reports == other.reports),
            ("replies", *replies == other.replies),
            ("key_file", *key == other.key),
        ];
        are_equal.into_iter().filter(|(_, is_equal)| !is_equal).map(|(key, _)| key)
    }
}

/// Settings of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Policy that runs.
    pub policy: PolicySpec,
    /// Objective by which the node chooses the policy; `None` if the policy is fixed.
    pub auto: Option<Objective>,
    /// Limit of its queue.
    pub queue: QueueLimit,
    /// Settings that a running pool keeps.
    pub fixed: FixedSettings,
    /// Address at which clients reach it, if not the node's own.
    pub service: Option<IpAddr>,
    /// At a leaf: spine that receives signals of the pool's load, and the rules of these signals.
    pub link: Option<(Spine, Protocol)>,
}

impl Pool {
    /// Creates the settings of a pool with a policy and a queue.
    #[must_use]
    pub fn new(choice: impl Into<PolicyChoice>, queue: QueueLimit) -> Self {
        let choice = choice.into();
        Self {
            policy: choice.first(),
            auto: choice.objective(),
            queue,
            fixed: FixedSettings::default(),
            service: None,
            link: None,
        }
    }

    /// Returns the policy as the operator gave it. Under `auto` the running policy is no part of it.
    #[must_use]
    pub fn choice(&self) -> PolicyChoice {
        self.auto.map_or_else(|| self.policy.clone().into(), PolicyChoice::Auto)
    }

    /// Returns the reason why the node cannot choose this pool's policy; `None` if it can. The node simulates the tasks
    /// and replies that pass through it.
    #[must_use]
    pub fn auto_refusal(&self) -> Option<AutoRefusal> {
        if self.fixed.reports == Reports::Messages {
            let reason = "with reports = \"messages\" the workers' agents have the policy, too";
            Some((reason, "reports = \"replies\", or one policy, as in lsq-smart"))
        } else if self.fixed.replies == ReplyPath::Direct {
            let reason = "with replies = \"direct\" the leaf sees no replies";
            Some((reason, "replies = \"leaf\", or one policy, as in eft"))
        } else if self.fixed.shared_workers {
            let reason = "with shared_workers = true the leaf does not see all tasks";
            Some((reason, "one policy, as in horus"))
        } else {
            None
        }
    }
}

/// One `[[server]]` entry, without its address and workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// MAC address; `None` if it is resolved.
    pub mac: Option<Mac>,
    /// True if its workers register themselves.
    pub registers: bool,
}

/// A worker; at a spine a leaf.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worker {
    /// Address of its server.
    pub server: IpAddr,
    /// Id of its pool.
    pub pool: u16,
    /// Relative speed; for a leaf its number of workers.
    pub speed: f64,
    /// True if it gets no new tasks until it is undrained.
    pub is_drained: bool,
}

/// Id of a worker. At a spine also its pool, because a leaf may be in several.
pub type WorkerKey = (Option<u16>, u16);

/// Desired state of a node. `P` is the type of a pool's settings: a controller has its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired<P = Pool> {
    /// Pools by id.
    pub pools: BTreeMap<u16, P>,
    /// Servers by address. A server of several pools may have several entries.
    pub servers: BTreeMap<IpAddr, BTreeSet<Server>>,
    /// Workers.
    pub workers: BTreeMap<WorkerKey, Worker>,
}

impl<P> Default for Desired<P> {
    fn default() -> Self {
        Self { pools: BTreeMap::new(), servers: BTreeMap::new(), workers: BTreeMap::new() }
    }
}

/// Delta between two states: new and changed entries, and the keys of removed ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta<P = Pool> {
    /// New and changed entries.
    pub put: Desired<P>,
    /// Removed pools.
    pub pools: Vec<u16>,
    /// Removed servers.
    pub servers: Vec<IpAddr>,
    /// Removed workers.
    pub workers: Vec<WorkerKey>,
}

impl<P> Default for Delta<P> {
    fn default() -> Self {
        let put = Desired::default();
        Self { put, pools: Vec::new(), servers: Vec::new(), workers: Vec::new() }
    }
}

/// Returns the new and changed entries of `to`, and the keys that only `from` has.
fn changes<K: Ord + Copy, V: PartialEq + Clone>(
    from: &BTreeMap<K, V>,
    to: &BTreeMap<K, V>,
) -> (BTreeMap<K, V>, Vec<K>) {
    let put = to.iter().filter(|(key, value)| from.get(key) != Some(*value));
    let removed = from.keys().filter(|key| !to.contains_key(key));
    (put.map(|(key, value)| (*key, value.clone())).collect(), removed.copied().collect())
}

/// Removes the keys `removed` from a map, and adds or replaces the entries of `put`.
fn update<K: Ord, V>(map: &mut BTreeMap<K, V>, removed: &[K], put: BTreeMap<K, V>) {
    removed.iter().for_each(|key| _ = map.remove(key));
    map.extend(put);
}

impl<P: Clone + PartialEq> Delta<P> {
    /// Computes the delta from one state to another.
    #[must_use]
    pub fn between(from: &Desired<P>, to: &Desired<P>) -> Self {
        let (pools, removed_pools) = changes(&from.pools, &to.pools);
        let (servers, removed_servers) = changes(&from.servers, &to.servers);
        let (workers, removed_workers) = changes(&from.workers, &to.workers);
        Self {
            put: Desired { pools, servers, workers },
            pools: removed_pools,
            servers: removed_servers,
            workers: removed_workers,
        }
    }

    /// Returns true if it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl<P> Desired<P> {
    /// Applies a delta.
    pub fn apply(&mut self, delta: Delta<P>) {
        let Delta { put, pools, servers, workers } = delta;
        update(&mut self.pools, &pools, put.pools);
        update(&mut self.servers, &servers, put.servers);
        update(&mut self.workers, &workers, put.workers);
    }

    /// Sets the drained flags to those of `other`, the running state, because a file does not contain them. Workers
    /// that `other` lacks are not drained.
    pub fn keep_drains(&mut self, other: &Self) {
        for (key, worker) in &mut self.workers {
            worker.is_drained = other.workers.get(key).is_some_and(|old| old.is_drained);
        }
    }
}
