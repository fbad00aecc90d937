//! Changes that lead a node from its membership, its current pools, servers and workers, to a desired state.
//!
//! The desired state comes from a reloaded configuration file or from a controller. A removed object is *leaving* until
//! its tasks are answered. It blocks changes that conflict with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::control::{Change, Membership};
use crate::state::{Delta, Desired, FixedSettings, Pool, Server, Spine, Worker, WorkerKey};

/// Part of a desired state that cannot be reached now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Key or object that cannot change while the node runs.
    Fixed(String),
    /// Reason to wait: an object must leave or join first.
    Pending(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(what) => write!(f, "{what} can't change at run time: restart the node"),
            Self::Pending(reason) => f.write_str(reason),
        }
    }
}

/// Changes that are possible now, and the obstacles to all further ones. A reload uses only complete plans; a node
/// that follows a controller makes the possible changes and plans again later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Changes in the order in which they are made.
    pub changes: Vec<Change>,
    /// Obstacles. [`Plan::new`] orders them: servers, pools, workers.
    pub obstacles: Vec<Obstacle>,
}

impl Plan {
    /// Computes the changes from a node's membership to a desired state. At a spine, members may be in several pools.
    #[must_use]
    pub fn new(now: &Membership, wanted: &Desired, is_spine: bool) -> Self {
        let current = now.desired(is_spine);
        let delta = Delta::between(&current, wanted);
        let obstacles = Vec::new();
        let planner = Planner { now, current, delta, is_spine, obstacles };
        planner.plan()
    }

    /// Returns the changes if they lead to the whole desired state.
    ///
    /// # Errors
    /// The obstacles, one per line.
    pub fn complete(self) -> Result<Vec<Change>, String> {
        if self.obstacles.is_empty() {
            return Ok(self.changes);
        }
        let lines: Vec<_> = self.obstacles.iter().map(ToString::to_string).collect();
        Err(lines.join("\n"))
    }

    /// Returns the changes that are possible now, and true if these are all.
    ///
    /// # Errors
    /// Settings that cannot change at run time, one per line.
    pub fn possible(self) -> Result<(Vec<Change>, bool), String> {
        let is_complete = self.obstacles.is_empty();
        let (fixed, _) =
            self.obstacles.into_iter().partition(|one| matches!(one, Obstacle::Fixed(_)));
        let changes = Self { changes: self.changes, obstacles: fixed }.complete()?;
        Ok((changes, is_complete))
    }
}

/// Comparison of a node's membership with a desired state. It collects obstacles while it computes the changes.
struct Planner<'a> {
    /// Membership, including leaving objects.
    now: &'a Membership,
    /// State of the membership without leaving objects.
    current: Desired,
    /// Delta to the desired state. The steps take its new and changed entries out.
    delta: Delta,
    is_spine: bool,
    obstacles: Vec<Obstacle>,
}

impl Planner<'_> {
    /// Returns the plan. New servers and pools precede the workers that need them. Removals precede new and
    /// changed workers.
    fn plan(mut self) -> Plan {
        let (servers, pools) = (self.servers(), self.pools());
        let (removed, workers) = self.workers();
        let removed_servers = self.delta.servers.iter().map(|&ip| Change::RemoveServer { ip });
        let removed_pools = self.delta.pools.iter().map(|&id| Change::RemovePool { id });
        // Servers and pools own workers. A removal of an owner includes its workers.
        let removed_owners = removed_servers.chain(removed_pools).collect();
        let changes = [servers, pools, removed, removed_owners, workers].concat();
        Plan { changes, obstacles: self.obstacles }
    }

    /// Adds the obstacle that `what` cannot change while the node runs.
    fn fixed(&mut self, what: String) {
        self.obstacles.push(Obstacle::Fixed(what));
    }

    /// Adds the obstacle of a change that must wait.
    fn pending(&mut self, reason: String) {
        self.obstacles.push(Obstacle::Pending(reason));
    }

    /// Returns true if the server with this address is leaving.
    fn is_server_leaving(&self, ip: IpAddr) -> bool {
        self.now.servers.iter().flatten().any(|server| server.ip == ip && server.is_leaving)
    }

    /// Returns true if the pool with this id is leaving.
    fn is_pool_leaving(&self, id: u16) -> bool {
        self.now.pool(id).is_some_and(|(_, pool)| pool.is_leaving)
    }

    /// Returns the changes of new and changed servers.
    ///
    /// A server has one entry for each different pair of `mac` and `registers` among its `[[server]]` sections.
    /// `AddServer` makes one entry, so a new server with several is an obstacle. A known server can change only its MAC
    /// address. An entry with a new value of `registers` is an obstacle. `MoveServer` to the same address sets the MAC
    /// address of all entries, whatever their `registers`; without a `mac`, the leaf resolves it. Therefore a new MAC
    /// address is an obstacle if not all entries have it. An entry that the desired state lacks stays until its server
    /// leaves.
    fn servers(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (ip, entries) in std::mem::take(&mut self.delta.put.servers) {
            if self.is_server_leaving(ip) {
                self.pending(format!("server {ip} is leaving: wait until it has left"));
                continue;
            }
            let Some(old) = self.current.servers.get(&ip).cloned() else {
                match entries.first() {
                    Some(&Server { mac, registers }) if entries.len() == 1 => {
                        changes.push(Change::AddServer { ip, mac, registers });
                    }
                    _ => self.fixed(format!("entries of server {ip} that differ")),
                }
                continue;
            };
            let macs: BTreeSet<_> = entries.iter().map(|entry| entry.mac).collect();
            let mut new_mac = None;
            for Server { mac, registers } in entries {
                let mut same_kind = old.iter().filter(|old| old.registers == registers).peekable();
                if same_kind.peek().is_none() {
                    self.fixed(format!("`server.registers` of {ip}"));
                } else if same_kind.all(|old| old.mac != mac) {
                    new_mac = Some(mac);
                }
            }
            match new_mac {
                Some(mac) if macs.len() == 1 => {
                    changes.push(Change::MoveServer { ip, to: ip, mac });
                }
                Some(_) => {
                    self.fixed(format!("`server.mac` of {ip}, which differs between its entries,"));
                }
                None => {}
            }
        }
        changes
    }

    /// Returns the changes of new and changed pools, without their workers.
    fn pools(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (id, pool) in std::mem::take(&mut self.delta.put.pools) {
            if self.is_pool_leaving(id) {
                self.pending(format!("pool {id} is leaving: wait until it has left"));
                continue;
            }
            let old = self.current.pools.get(&id).cloned();
            // `AddPool` has only shared workers of these settings. It has the path of a key, not the key.
            let shared_workers = pool.fixed.shared_workers;
            let of_new_pool = FixedSettings { shared_workers, ..FixedSettings::default() };
            let current = old.as_ref().map_or(&of_new_pool, |old| &old.fixed);
            for key in current.differences(&pool.fixed) {
                self.fixed(format!("`pool.{key}` of pool {id}"));
            }
            changes.extend(changes_of_pool(id, old.as_ref(), &pool));
        }
        changes
    }

    /// Returns the removals of workers, and the changes of new and changed ones.
    ///
    /// A worker that changes its pool or server is removed now. It can join again only after it has left, so the rest
    /// of its move is an obstacle.
    fn workers(&mut self) -> (Vec<Change>, Vec<Change>) {
        // Each worker, and true if it is leaving. The pool of a key is set only at a spine, where a member may be in
        // several pools; elsewhere the id alone names a worker.
        let places: BTreeMap<_, _> = self.now.placed(self.is_spine).collect();
        let mut changed = Groups::default();
        let (mut drained, mut undrained) = (Vec::new(), Vec::new());
        let mut removed: BTreeSet<WorkerKey> = self.delta.workers.iter().copied().collect();
        for (key, wanted) in std::mem::take(&mut self.delta.put.workers) {
            let (Worker { server, pool, speed, is_drained }, id) = (wanted, key.1);
            let old = places.get(&key);
            let is_blocked = self.is_pool_leaving(pool) || self.is_server_leaving(server);
            match old {
                Some((_, true)) => {
                    self.pending(format!("worker {id} is leaving: wait until it has left"));
                }
                Some((old, _)) if (old.pool, old.server) != (pool, server) => {
                    self.pending(format!(
                        "worker {id} is in pool {} at {} and can't move to pool {pool} at {server} in one reload: remove it, and add it in the next",
                        old.pool, old.server
                    ));
                    removed.insert(key);
                }
                _ if is_blocked => {} // the pool or the server is an obstacle already
                Some((old, _)) => {
                    if old.speed != speed {
                        let change = Change::SetSpeed { pool: key.0, workers: Vec::new(), speed };
                        changed.add(change, id);
                    }
                    if old.is_drained != is_drained {
                        let workers = if is_drained { &mut drained } else { &mut undrained };
                        workers.push(id);
                    }
                }
                None => {
                    let (server, workers) = (Some(server), Vec::new());
                    changed.add(Change::AddWorkers { server, pool, workers, speed }, id);
                    if is_drained {
                        self.pending(format!("worker {id} must join before it is drained"));
                    }
                }
            }
        }
        // Workers leave with their server or pool. Only workers that keep both need a removal of their own.
        let keeps_owners = |key: &WorkerKey| {
            self.current.workers.get(key).is_some_and(|old| {
                !self.delta.servers.contains(&old.server) && !self.delta.pools.contains(&old.pool)
            })
        };
        let mut removals = Groups::default();
        for (pool, id) in removed.into_iter().filter(keeps_owners) {
            removals.add(Change::RemoveWorkers { pool, workers: Vec::new() }, id);
        }
        let mut workers = changed.changes();
        workers.extend((!drained.is_empty()).then_some(Change::Drain { workers: drained }));
        workers.extend((!undrained.is_empty()).then_some(Change::Undrain { workers: undrained }));
        (removals.changes(), workers)
    }
}

/// Changes grouped so that one change names all workers with equal values. Each entry is a change without workers, and
/// their ids.
#[derive(Default)]
struct Groups(Vec<(Change, Vec<u16>)>);

impl Groups {
    /// Adds a worker to the changes. `change` names no worker.
    fn add(&mut self, change: Change, id: u16) {
        match self.0.iter_mut().find(|(earlier, _)| *earlier == change) {
            Some((_, ids)) => ids.push(id),
            None => self.0.push((change, vec![id])),
        }
    }

    /// Returns the changes with their workers.
    fn changes(self) -> Vec<Change> {
        self.0.into_iter().map(|(change, ids)| change.of_workers(ids)).collect()
    }
}

/// Returns the changes of a pool that is new or differs from `old`.
fn changes_of_pool(id: u16, old: Option<&Pool>, new: &Pool) -> Vec<Change> {
    let mut changes = Vec::new();
    let queue = new.queue;
    match old {
        None => changes.push(Change::AddPool {
            id,
            policy: new.choice(),
            queue,
            shared_workers: new.fixed.shared_workers,
            key_file: None, // a new pool with a key is an obstacle
        }),
        Some(old) => {
            if old.choice() != new.choice() {
                changes.push(Change::SetPolicy { pool: id, policy: new.choice() });
            }
            if old.queue != queue {
                changes.push(Change::SetQueue { pool: id, queue });
            }
        }
    }
    if old.and_then(|old| old.service) != new.service {
        changes.push(Change::SetService { pool: id, ip: new.service });
    }
    if old.and_then(|old| old.link) != new.link {
        changes.push(match new.link {
            Some((Spine { id: spine, ip }, signals)) => {
                Change::LinkPool { pool: id, spine, ip, signals }
            }
            None => Change::UnlinkPool { pool: id },
        });
    }
    changes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    /// Leaf's file with two pools, and a server with an entry for each.
    const FILE: &str = "[leaf]\nid = 1\ncores = [1]\n\
        [[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n\
        [[spine]]\nid = 9\nip = '10.0.2.9'\n\
        [[pool]]\nid = 1\npolicy = 'sed'\n[[pool]]\nid = 2\npolicy = 'jbsq(k=2)'\n\
        [[server]]\nip = '10.0.2.11'\nworkers = '0-3'\npool = 1\n\
        [[server]]\nip = '10.0.2.11'\nworkers = '4-5'\npool = 2\nregisters = true\n";

    /// Returns the initial membership of a leaf with this file.
    fn membership(text: &str) -> Membership {
        let config = Config::parse(Path::new("leaf.toml"), text);
        Membership::of(&config.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Returns the changes from `now` to the file `text`, and the obstacles.
    fn plan(now: &Membership, text: &str) -> (Vec<String>, Vec<String>) {
        let plan = Plan::new(now, &membership(text).desired(false), false);
        let changes = plan.changes.iter().map(ToString::to_string).collect();
        (changes, plan.obstacles.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn equal_states_need_no_change() {
        let now = membership(FILE);
        assert_eq!(Plan::new(&now, &now.desired(false), false), Plan::default());
        // At a spine, the key of a worker includes its pool.
        let spine = Delta::between(&now.desired(true), &now.desired(true));
        assert!(spine.is_empty());
    }

    #[test]
    fn choice_by_the_node_survives_reloads() {
        let auto = FILE.replace("'sed'", "'auto(objective=p99)'");
        let mut now = membership(&auto);
        let settings =
            |now: &mut Membership| now.pools[0].as_mut().map(|pool| pool.settings.clone());
        assert_eq!(settings(&mut now).unwrap().policy.entry().name, "eft");
        // The node has chosen another policy.
        now.pools[0].as_mut().unwrap().settings.policy = "jsq(d=2)".parse().unwrap();
        assert_eq!(plan(&now, &auto), (Vec::new(), Vec::new()));
        let changed = [
            ("auto(mean)", "auto(objective=mean)"),
            ("jsq(d=2)", "jsq(d=2)"),
            ("auto(objective=slo(class=1, us=400))", "auto(objective=slo(class=1, us=400))"),
        ];
        for (policy, change) in changed {
            let file = FILE.replace("sed", policy);
            let change = format!("set-policy pool=1 policy={change}");
            assert_eq!(plan(&now, &file), (vec![change], Vec::new()));
        }
    }

    #[test]
    fn delta_leads_from_one_state_to_the_other() {
        let from = membership(FILE).desired(false);
        let to = FILE.replace("0-3", "1-7,9").replace("4-5", "10");
        let to = to.replace("'sed'", "'sed'\nspine = 9\nservice = '10.0.2.80'");
        let to = membership(&to).desired(false);
        let (mut there, mut back) = (from.clone(), to.clone());
        there.apply(Delta::between(&from, &to));
        back.apply(Delta::between(&to, &from));
        assert_eq!((there, back), (to, from));
    }

    #[test]
    fn entries_of_a_server_move_together() {
        let now = membership(FILE);
        let moved = FILE.replace("2.11'\n", "2.11'\nmac = '02:00:00:00:02:0b'\n");
        let change = "move-server ip=10.0.2.11 to=10.0.2.11 mac=02:00:00:00:02:0b".to_owned();
        assert_eq!(plan(&now, &moved), (vec![change], Vec::new()));
        // One change gives all entries the same MAC address.
        let moved = FILE.replace("\nregisters", "\nmac = '02:00:00:00:02:0b'\nregisters");
        let obstacle = "`server.mac` of 10.0.2.11, which differs between its entries, \
            can't change at run time: restart the node";
        assert_eq!(plan(&now, &moved), (Vec::new(), vec![obstacle.to_owned()]));
        let more = "[[server]]\nip = '10.0.2.12'\nworkers = '8'\npool = 1\n\
            [[server]]\nip = '10.0.2.12'\nworkers = '9'\npool = 2\nregisters = true\n";
        // A new server with two different entries can't be added by one change.
        let (_, obstacles) = plan(&now, &format!("{FILE}{more}"));
        assert_eq!(obstacles.len(), 1, "{obstacles:?}");
        assert!(obstacles[0].starts_with("entries of server 10.0.2.12 that differ can't change"));
    }

    #[test]
    fn settings_of_a_pool_change_alone() {
        // The new policy of pool 2, followed by further keys of the pool.
        let lines = "'jbsq(k=3)'\nqueue = 9\noverflow = 'refuse'\nspine = 9\nsignals = 'none'";
        let changes = [
            "set-policy pool=2 policy=jbsq(k=3, silence-ms=0)",
            "set-queue pool=2 queue=9 overflow=refuse",
            "link-pool pool=2 spine=9 ip=10.0.2.9 signals=none",
        ];
        let changes = changes.map(ToOwned::to_owned).to_vec();
        let now = membership(FILE);
        assert_eq!(plan(&now, &FILE.replace("'jbsq(k=2)'", lines)), (changes, Vec::new()));
        let fixed = FILE.replace("'sed'", "'sed'\nshared_workers = true");
        let (_, obstacles) = plan(&now, &fixed);
        let fixed = "`pool.shared_workers` of pool 1 can't change at run time: restart the node";
        assert_eq!(obstacles, [fixed]);
    }

    #[test]
    fn leaving_objects_block_what_needs_them() {
        let mut now = membership(FILE);
        now.pools[0].as_mut().unwrap().is_leaving = true;
        let (changes, obstacles) = plan(&now, FILE);
        assert_eq!(
            (changes.len(), &obstacles[..]),
            (0, &["pool 1 is leaving: wait until it has left".to_owned()][..])
        );
        // A worker that is wanted elsewhere leaves first.
        let now = membership(FILE);
        let (changes, obstacles) = plan(&now, &FILE.replace("0-3", "0-2").replace("4-5", "3-5"));
        assert_eq!(changes, ["remove-workers workers=3"]);
        assert!(obstacles[0].starts_with("worker 3 is in pool 1 at 10.0.2.11"), "{obstacles:?}");
        // Pool 1 is removed, and its workers leave with it. Worker 6, at a new server, joins pool 2.
        let (first, rest) = FILE.split_once("[[pool]]\nid = 1").unwrap();
        let (_, rest) = rest.split_once("'sed'\n").unwrap();
        let rest = rest.replace("workers = '0-3'\npool = 1", "workers = '6'\npool = 2");
        let rest = rest.replace(
            "[[server]]\nip = '10.0.2.11'\nworkers = '6'",
            "[[server]]\nip = '10.0.2.13'\nworkers = '6'",
        );
        let (changes, obstacles) = plan(&now, &format!("{first}{rest}"));
        let added = "add-workers server=10.0.2.13 pool=2 workers=6";
        assert_eq!(changes, ["add-server ip=10.0.2.13", "remove-pool id=1", added]);
        assert!(obstacles.is_empty(), "{obstacles:?}");
    }
}
