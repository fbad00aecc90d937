//! Reloads of the configuration file of a running node: computes the changes, or names the keys that cannot
//! change.
//!
//! `started` is the configuration with which the node started. The current membership may differ from it, because
//! operators can change a running node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use wedjat_core::policy::Reports;
use wedjat_core::role::colocated::AGENT_IP;
use wedjat_core::state::table::Role;
use wedjat_desired::config::{AgentConfig, Config, HostConfig, Settings};
use wedjat_desired::control::{Change, Membership, Pool, Server, Spine, Worker};

/// Computes the changes that turn a node into a configuration that was read. The second membership is that of
/// the agent on the node's core, if there is one.
pub type Delta =
    Box<dyn Fn(&Membership, Option<&Membership>) -> Result<Vec<Change>, String> + Send>;

/// Reads and checks the configuration file. It runs on its own thread, so that a stalled file system does not
/// delay other requests.
pub type Reader = Arc<dyn Fn() -> Result<Delta, String> + Send + Sync>;

/// Returns the reader of the file that a leaf or spine started with.
#[must_use]
pub fn leafs_reader(started: &Config) -> Reader {
    let started = Arc::new(started.clone());
    Arc::new(move || {
        let wanted = Config::load(&started.path).map_err(|error| error.to_string())?;
        let started = Arc::clone(&started);
        Ok(Box::new(move |now, of_agent| leaf(&started, &wanted, now, of_agent)))
    })
}

/// Returns the reader of the file that an agent started with.
#[must_use]
pub fn agents_reader(started: &AgentConfig) -> Reader {
    let started = Arc::new(started.clone());
    Arc::new(move || {
        let wanted = AgentConfig::load(&started.path).map_err(|error| error.to_string())?;
        let (started, wanted_membership) =
            (Arc::clone(&started), wedjat_assembly::agent::membership(&wanted));
        Ok(Box::new(move |now, _| agent(&started, &wanted, now, &wanted_membership)))
    })
}

/// Computes the changes that turn the running configuration of a leaf or spine into `wanted`.
///
/// The node started with `started` and now has the membership `now`; the agent on its core has `of_agent`. A
/// pool that the agent no longer has is removed after its workers have left, by the next reload.
///
/// # Errors
/// Keys that cannot change at run time, one per line.
pub fn leaf(
    started: &Config,
    wanted: &Config,
    now: &Membership,
    of_agent: Option<&Membership>,
) -> Result<Vec<Change>, String> {
    let mut keys = ImmutableKeys::new(started.role == Role::Spine);
    keys.compare(&started.settings, &wanted.settings);
    let of_agent = match (&wanted.agent, of_agent) {
        (Some(wanted), Some(now)) => keys.pools_alone(now, &agent_of(wanted)),
        _ => Vec::new(),
    };
    let changes = keys.changes(now, &Membership::of(wanted))?;
    // The leaf's changes also remove the agent's workers, so they precede the removal of its pools.
    Ok([changes, of_agent].concat())
}

/// Returns the membership of the agent on a leaf's core, as in the leaf's file.
fn agent_of(host: &HostConfig) -> Membership {
    Membership::of_host(host, IpAddr::V4(Ipv4Addr::from_bits(AGENT_IP)))
}

/// Computes the changes that turn the running configuration of an agent into `wanted`. The agent started with
/// `started` and now has the membership `now`; `wanted_membership` is the one of `wanted`.
///
/// # Errors
/// Keys that cannot change at run time, one per line.
pub fn agent(
    started: &AgentConfig,
    wanted: &AgentConfig,
    now: &Membership,
    wanted_membership: &Membership,
) -> Result<Vec<Change>, String> {
    let mut keys = ImmutableKeys::new(false);
    keys.compare(&started.settings, &wanted.settings);
    keys.changes(now, wanted_membership)
}

/// Keys that differ and cannot change at run time.
pub(super) struct ImmutableKeys {
    /// Messages, one per key.
    lines: Vec<String>,
    /// True for a spine, whose members may be in several pools.
    is_spine: bool,
}

impl ImmutableKeys {
    /// Creates an empty list.
    pub(super) const fn new(is_spine: bool) -> Self {
        Self { lines: Vec::new(), is_spine }
    }

    /// Adds the message for a key or an object.
    fn note(&mut self, what: String) {
        self.lines.push(format!("{what} can't change at run time: restart the node"));
    }

    /// Compares the settings that are fixed at the start.
    fn compare(&mut self, started: &Settings, wanted: &Settings) {
        started.differences(wanted).into_iter().for_each(|name| self.note(name));
    }

    /// Computes the changes of the pools of an agent on a leaf's core. Their workers change with the leaf's. A pool
    /// that still has workers is not removed yet.
    fn pools_alone(&mut self, now: &Membership, wanted: &Membership) -> Vec<Change> {
        let mut changes = ReloadChanges::default();
        self.pools_of(&mut changes, now, wanted);
        let has_workers =
            |id| now.workers().any(|(at, _)| now.pool(id).is_some_and(|(pool, _)| pool == at));
        let changes = changes.in_order().into_iter().filter(|change| match change {
            Change::RemovePool { id } => !has_workers(*id),
            _ => true,
        });
        changes.map(|change| Change::OfAgent(Box::new(change))).collect()
    }

    /// Computes the changes from one membership to another.
    pub(super) fn changes(
        mut self,
        now: &Membership,
        wanted: &Membership,
    ) -> Result<Vec<Change>, String> {
        let mut changes = ReloadChanges::default();
        self.servers(&mut changes, now, wanted);
        self.pools_of(&mut changes, now, wanted);
        self.workers(&mut changes, now, wanted);
        if self.lines.is_empty() { Ok(changes.in_order()) } else { Err(self.lines.join("\n")) }
    }

    /// Compares all servers.
    fn servers(&mut self, changes: &mut ReloadChanges, now: &Membership, wanted: &Membership) {
        let entries = |of: &Membership, ip| -> Vec<Server> {
            of.servers.iter().flatten().filter(|one| one.ip == ip).copied().collect()
        };
        for server in wanted.servers.iter().flatten() {
            let old = entries(now, server.ip);
            if old.iter().any(|old| old.is_leaving) {
                self.lines.push(format!("server {} is leaving: wait until it has left", server.ip));
            } else if old.is_empty() {
                if !changes.add_server(server) {
                    self.note(format!("entries of server {} that differ", server.ip));
                }
            } else {
                self.server(changes, &old, server);
            }
        }
        let staying = now.servers.iter().flatten().filter(|one| !one.is_leaving);
        for server in staying.filter(|one| entries(wanted, one.ip).is_empty()) {
            changes.remove_server(server.ip);
        }
    }

    /// Compares a server. A server of several pools has one entry per pool.
    fn server(&mut self, changes: &mut ReloadChanges, old: &[Server], new: &Server) {
        let mut same_registration =
            old.iter().filter(|old| old.registers == new.registers).peekable();
        if same_registration.peek().is_none() {
            return self.note(format!("`server.registers` of {}", new.ip));
        }
        let change = Change::MoveServer { ip: new.ip, to: new.ip, mac: new.mac };
        if same_registration.all(|old| old.mac != new.mac) && !changes.servers.contains(&change) {
            changes.servers.push(change);
        }
    }

    /// Compares all pools, without their workers.
    fn pools_of(&mut self, changes: &mut ReloadChanges, now: &Membership, wanted: &Membership) {
        for pool in wanted.pools.iter().flatten() {
            match now.pool(pool.id) {
                None if pool.reports == Reports::Messages => {
                    self.note(format!("`pool.reports` of pool {}", pool.id));
                }
                None => {
                    changes.pools.push(Change::AddPool {
                        id: pool.id,
                        policy: pool.policy.clone(),
                        queue: pool.queue,
                        overflow: pool.overflow,
                        shared_workers: pool.shared_workers,
                        key_file: None, // a pool with a key is refused above
                    });
                    changes.fabric((now, None), (wanted, pool));
                }
                Some((_, old)) if old.is_leaving => {
                    self.lines.push(format!("pool {} is leaving: wait until it has left", pool.id));
                }
                Some((_, old)) => {
                    self.pool(changes, old, pool);
                    changes.fabric((now, Some(old)), (wanted, pool));
                }
            }
        }
        let staying = now.pools.iter().flatten().filter(|pool| !pool.is_leaving);
        for pool in staying.filter(|pool| wanted.pool(pool.id).is_none()) {
            changes.removed.push(Change::RemovePool { id: pool.id });
            changes.removed_pools.push(pool.id);
        }
    }

    /// Compares a pool that exists before and after.
    fn pool(&mut self, changes: &mut ReloadChanges, old: &Pool, new: &Pool) {
        let id = new.id;
        if old.shared_workers != new.shared_workers {
            self.note(format!("`pool.shared_workers` of pool {id}"));
        }
        if old.reports != new.reports {
            self.note(format!("`pool.reports` of pool {id}"));
        }
        if old.policy != new.policy {
            changes.pools.push(Change::SetPolicy { pool: id, policy: new.policy.clone() });
        }
        if (old.queue, old.overflow) != (new.queue, new.overflow) {
            let (queue, overflow) = (new.queue, new.overflow);
            changes.pools.push(Change::SetQueue { pool: id, queue, overflow });
        }
    }

    /// Compares the workers of all pools.
    fn workers(&mut self, changes: &mut ReloadChanges, now: &Membership, wanted: &Membership) {
        let (current, desired) = (self.places(now), self.places(wanted));
        for (key, place) in &desired {
            let id = place.worker.id;
            match current.get(key) {
                None => changes.add_worker(place),
                Some(old) if old.worker.is_leaving => {
                    self.lines.push(format!("worker {id} is leaving: wait until it has left"));
                }
                Some(old) if (old.pool, old.server) != (place.pool, place.server) => {
                    self.lines.push(format!(
                        "worker {id} is in pool {} at {} and can't move to pool {} at {} in one reload: remove it, and add it in the next",
                        old.pool, old.server, place.pool, place.server
                    ));
                }
                Some(old) if old.worker.speed != place.worker.speed => {
                    changes.set_speed(key.0, place);
                }
                Some(_) => {}
            }
        }
        let removed = current
            .iter()
            .filter(|(key, old)| !desired.contains_key(key) && !old.worker.is_leaving);
        let removed = removed.filter(|(_, old)| !changes.removes(old));
        let mut removed_ids = BTreeMap::<Option<u16>, Vec<u16>>::new();
        removed.for_each(|(&(pool, id), _)| removed_ids.entry(pool).or_default().push(id));
        let removed_ids = removed_ids.into_iter();
        let removed_ids =
            removed_ids.map(|(pool, workers)| Change::RemoveWorkers { pool, workers });
        // Single workers precede removed servers and pools.
        changes.removed.splice(0..0, removed_ids);
    }

    /// Returns all workers by id. For a spine the key also has the pool: a leaf may be in several.
    fn places(&self, membership: &Membership) -> BTreeMap<(Option<u16>, u16), WorkerPlace> {
        let placed = |(pool, worker): (usize, &Worker)| {
            let pool = membership.pools[pool].as_ref()?.id;
            let server = membership.servers.get(usize::from(worker.server)).copied().flatten()?.ip;
            let key = (self.is_spine.then_some(pool), worker.id);
            Some((key, WorkerPlace { worker: *worker, pool, server }))
        };
        membership.workers().filter_map(placed).collect()
    }
}

/// Worker with its pool and server.
struct WorkerPlace {
    worker: Worker,
    pool: u16,
    server: IpAddr,
}

/// Changes, grouped by the order in which they are made.
#[derive(Default)]
struct ReloadChanges {
    servers: Vec<Change>,
    pools: Vec<Change>,
    /// Removals of workers, servers and pools.
    removed: Vec<Change>,
    workers: Vec<Change>,
    /// Removed servers and pools. Their workers leave with them.
    removed_servers: Vec<IpAddr>,
    removed_pools: Vec<u16>,
}

impl ReloadChanges {
    /// Returns the changes. New servers and pools precede the workers that need them.
    fn in_order(self) -> Vec<Change> {
        [self.servers, self.pools, self.removed, self.workers].concat()
    }

    /// Adds a server. Returns false if it has another entry with different values.
    fn add_server(&mut self, server: &Server) -> bool {
        let Server { ip, mac, registers, .. } = *server;
        let change = Change::AddServer { ip, mac, registers };
        let has_address =
            |one: &&Change| matches!(one, Change::AddServer { ip: at, .. } if *at == ip);
        match self.servers.iter().find(has_address) {
            Some(earlier) => *earlier == change,
            None => {
                self.servers.push(change);
                true
            }
        }
    }

    /// Removes a server, once for all of its entries.
    fn remove_server(&mut self, ip: IpAddr) {
        if !self.removed_servers.contains(&ip) {
            self.removed_servers.push(ip);
            self.removed.push(Change::RemoveServer { ip });
        }
    }

    /// Returns true if a worker leaves with its server or pool.
    fn removes(&self, worker: &WorkerPlace) -> bool {
        self.removed_servers.contains(&worker.server) || self.removed_pools.contains(&worker.pool)
    }

    /// Adds a worker, to an earlier change if only its id differs.
    fn add_worker(&mut self, place: &WorkerPlace) {
        let same = self.workers.iter_mut().find_map(|change| match change {
            Change::AddWorkers { server, pool, workers, speed }
                if (*server, *pool, *speed)
                    == (Some(place.server), place.pool, place.worker.speed) =>
            {
                Some(workers)
            }
            _ => None,
        });
        match same {
            Some(workers) => workers.push(place.worker.id),
            None => self.workers.push(Change::AddWorkers {
                server: Some(place.server),
                pool: place.pool,
                workers: vec![place.worker.id],
                speed: place.worker.speed,
            }),
        }
    }

    /// Sets a worker's speed, with an earlier change if only its id differs.
    fn set_speed(&mut self, of_pool: Option<u16>, place: &WorkerPlace) {
        let same = self.workers.iter_mut().find_map(|change| match change {
            Change::SetSpeed { pool, workers, speed }
                if (*pool, *speed) == (of_pool, place.worker.speed) =>
            {
                Some(workers)
            }
            _ => None,
        });
        match same {
            Some(workers) => workers.push(place.worker.id),
            None => self.workers.push(Change::SetSpeed {
                pool: of_pool,
                workers: vec![place.worker.id],
                speed: place.worker.speed,
            }),
        }
    }

    /// Adds the changes of a pool's service address and of its link to a spine. `old` is the pool in `now`.
    fn fabric(
        &mut self,
        (now, old): (&Membership, Option<&Pool>),
        (wanted, new): (&Membership, &Pool),
    ) {
        let pool = new.id;
        if old.and_then(|old| old.service) != new.service {
            self.pools.push(Change::SetService { pool, ip: new.service });
        }
        let link = wanted.link_of(new);
        if old.and_then(|old| now.link_of(old)) != link {
            self.pools.push(match link {
                Some((Spine { id: spine, ip }, signals)) => {
                    Change::LinkPool { pool, spine, ip, signals }
                }
                None => Change::UnlinkPool { pool },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A leaf with two pools and a server in both.
    const LEAF: &str = "[leaf]\nid = 1\ncores = [1]\n\
        [[port]]\ndevice = 'net_memif0'\nside = 'both'\nip = '10.0.2.1/24'\n\
        [[pool]]\nid = 1\npolicy = 'horus'\n[[pool]]\nid = 2\npolicy = 'sed'\n\
        [[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n\
        [[server]]\nip = '10.0.2.11'\nworkers = '4-5'\npool = 2\nregisters = true\n";

    /// Parses a leaf's file.
    fn parse(text: &str) -> Config {
        let config = Config::parse(Path::new("leaf.toml"), text);
        config.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the changes from the file above to another file.
    fn changes(text: &str) -> Result<Vec<String>, String> {
        let (started, wanted) = (parse(LEAF), parse(text));
        let now = Membership::of(&started);
        let changes = leaf(&started, &wanted, &now, None)?;
        Ok(changes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nothing_changes_for_the_same_file() {
        assert_eq!(changes(LEAF), Ok(Vec::new()));
        assert_eq!(changes(&format!("# The same.\n{LEAF}")), Ok(Vec::new()));
    }

    #[test]
    fn a_server_of_two_pools_is_one_server() {
        let more = "[[server]]\nip = '10.0.2.12'\nworkers = '6'\npool = 1\n\
                    [[server]]\nip = '10.0.2.12'\nworkers = '7-9'\npool = 2\n";
        let expected = [
            "add-server ip=10.0.2.12",
            "add-workers server=10.0.2.12 pool=1 workers=6",
            "add-workers server=10.0.2.12 pool=2 workers=7-9",
        ];
        assert_eq!(changes(&format!("{LEAF}{more}")).unwrap(), expected);
        let moved = LEAF.replace("10.0.2.11'\n", "10.0.2.11'\nmac = '02:00:00:00:02:0b'\n");
        let expected = ["move-server ip=10.0.2.11 to=10.0.2.11 mac=02:00:00:00:02:0b"];
        assert_eq!(changes(&moved).unwrap(), expected);
    }

    #[test]
    fn pool_removal_removes_workers_and_servers() {
        let (first, rest) = LEAF.split_once("[[pool]]\nid = 2").unwrap();
        let (_, rest) = rest.split_once("'sed'\n").unwrap();
        let (rest, _) = rest.rsplit_once("[[server]]").unwrap();
        assert_eq!(changes(&format!("{first}{rest}")).unwrap(), ["remove-pool id=2"]);
        let elsewhere = LEAF.replace("10.0.2.11", "10.0.2.12").replace("0-3", "10-13");
        let expected = [
            "add-server ip=10.0.2.12",
            "remove-server ip=10.0.2.11",
            "add-workers server=10.0.2.12 pool=1 workers=10-13",
            "add-workers server=10.0.2.12 pool=2 workers=14-15",
        ];
        let elsewhere = elsewhere.replace("4-5", "14-15");
        assert_eq!(changes(&elsewhere.replace("registers = true\n", "")).unwrap(), expected);
        let error = changes(&elsewhere).unwrap_err();
        assert!(error.contains("entries of server 10.0.2.12 that differ can't change"), "{error}");
    }

    #[test]
    fn colocated_agent_changes_with_its_leaf() {
        let agent = |pools: &str| {
            let text = format!("{LEAF}[agent]\nname = 'memory'\n{pools}");
            parse(&text.replace("cores = [1]", "cores = [1]\nworkers_max = 64"))
        };
        let pool = |id, policy, workers| {
            format!("[[agent.pool]]\nid = {id}\npolicy = '{policy}'\nworkers = '{workers}'\n")
        };
        let first = pool(1, "jsq", "20-22");
        let started = agent(&first);
        let now = (Membership::of(&started), agent_of(started.agent.as_ref().unwrap()));
        let changes = |wanted: &str| {
            let changes = leaf(&started, &agent(wanted), &now.0, Some(&now.1)).unwrap();
            changes.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(changes(&first).is_empty());
        let wanted = pool(1, "jbsq(k=2)", "20-21,23-24") + "queue = 9\n" + &pool(2, "sed", "30");
        let expected = [
            "remove-workers workers=22",
            "add-workers server=169.254.77.2 pool=1 workers=23-24",
            "add-workers server=169.254.77.2 pool=2 workers=30",
            "agent set-policy pool=1 policy=jbsq(k=2, silence-ms=0)",
            "agent set-queue pool=1 queue=9 overflow=drop",
            "agent add-pool id=2 policy=sed queue=4096 overflow=drop",
        ];
        assert_eq!(changes(&wanted), expected);
        // The agent's pool goes after its workers.
        let other = pool(2, "sed", "30");
        assert!(!changes(&other).iter().any(|change| change.starts_with("agent remove-pool")));
        let now = (now.0, {
            let mut emptied = now.1.clone();
            emptied.pools[0].as_mut().unwrap().members.clear();
            emptied
        });
        let changes = leaf(&started, &agent(&other), &now.0, Some(&now.1)).unwrap();
        assert!(changes.iter().any(|change| change.to_string() == "agent remove-pool id=1"));
        let fixed = agent(&format!("slots = 2\n{first}"));
        let error = leaf(&started, &fixed, &now.0, Some(&now.1)).unwrap_err();
        assert!(error.contains("`agent.slots` can't change at run time"), "{error}");
    }

    #[test]
    fn changes_of_the_controllers_are_refused() {
        // A node with a controller needs more packet buffers by default.
        let alone = LEAF.replace("cores = [1]", "cores = [1]\nmbufs = 99999");
        let following = format!("{alone}[controller]\naddresses = ['unix:/run/fabric.ctl']\n");
        let now = Membership::of(&parse(LEAF));
        let error = leaf(&parse(&alone), &parse(&following), &now, None).unwrap_err();
        assert_eq!(error, "`controller` can't change at run time: restart the node");
        let (started, wanted) = (parse(&following), parse(&following.replace("fabric", "other")));
        let error = leaf(&started, &wanted, &now, None).unwrap_err();
        assert_eq!(error, "`controller.addresses` can't change at run time: restart the node");
    }

    #[test]
    fn all_immutable_keys_are_named_at_once() {
        let wanted = LEAF
            .replace("id = 1\ncores = [1]", "id = 2\ncores = [1, 2]\nworkers_max = 99")
            .replace("workers = '0-3'", "workers = '0-2'")
            .replace("4-5", "3-5")
            .replace("policy = 'horus'", "policy = 'jiq'\nreports = 'messages'")
            .replace("policy = 'sed'", "policy = 'sed'\nshared_workers = true");
        let error = changes(&wanted).unwrap_err();
        for says in [
            "`leaf.id` can't change at run time: restart the node",
            "`leaf.cores`",
            "`leaf.workers_max`",
            "`pool.reports` of pool 1",
            "`pool.shared_workers` of pool 2",
            "worker 3 is in pool 1 at 10.0.2.11 and can't move to pool 2",
        ] {
            assert!(error.contains(says), "{says}: {error}");
        }
        assert_eq!(error.lines().count(), 6, "{error}");
    }

    // promise: batch.2
    #[test]
    fn batch_job_change_is_refused_while_running() {
        let file = |jobs: &str| {
            let text = format!(
                "[agent]\nname = 'memory'\ncore = 0\n[[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\n\
                 [[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '0-1'\n{jobs}"
            );
            AgentConfig::parse(Path::new("agent"), &text).unwrap()
        };
        let jobs = "[cosched]\npolicy = 'idle'\n[[cosched.job]]\ncommand = ['true']\n";
        let started = file(jobs);
        let now = Membership::of_host(&started.host, "10.0.2.11".parse().unwrap());
        let changes = |jobs: &str| agent(&started, &file(jobs), &now, &now);
        assert_eq!(changes(jobs), Ok(Vec::new()));
        for (other, name) in [
            ("", "`cosched`"),
            (&jobs.replace("idle", "guard"), "`cosched.policy`"),
            (&jobs.replace("true", "false"), "`cosched.job.command` of job 1"),
        ] {
            let error = changes(other).unwrap_err();
            assert_eq!(error, format!("{name} can't change at run time: restart the node"));
        }
    }
}
