//! Takeover of the previous process's state file by a restarted leaf or spine, before its first packet. So its first
//! tasks already go to idle workers, and do not wait for MAC addresses. Loads are valid for a second, MAC addresses of
//! hosts for a minute.
//!
//! A *member* of a pool is one of its workers, or at a spine one of its leaves; its *place* is its index in the pool. A
//! node's *belief* about a member is its estimate of the member's load and presence (registered, silent, ...). The new
//! configuration may give pools and members other places, so they are found by their ids.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use wedjat_core::role::colocated::is_agent;
use wedjat_core::stage::Stages;
use wedjat_core::stage::takeover::InheritedEstimate;
use wedjat_core::state::table::{Snapshot, StateError, check_replaceable};
use wedjat_core::state::{Load, Member, MemberPresence, Table};
use wedjat_core::wire::ether::Mac;
use wedjat_desired::config::Config;

/// Maximum age of loads. After it, microsecond tasks are done.
const LOADS_MAX: Duration = Duration::from_secs(1);
/// Maximum age of hosts' addresses. The node asks again for hosts that do not answer.
const HOSTS_MAX: Duration = Duration::from_secs(60);

/// State of the previous process, read from its file.
#[derive(Debug)]
pub struct PreviousState {
    /// Copy of the state.
    snapshot: Snapshot,
    /// Time between the writing of the copy and the start of this process.
    age: Duration,
}

/// Numbers of items taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeoverCounts {
    /// Number of members with loads taken over.
    pub members: usize,
    /// Number of hosts with MAC addresses taken over.
    pub hosts: usize,
}

/// Reads the configured state file, which the new process replaces afterwards. Returns `None` if no file is configured
/// or exists, or if the file is of another node.
///
/// # Errors
/// If the file belongs to another user or is damaged. The node can start without it.
pub fn read(config: &Config) -> Result<Option<PreviousState>, StateError> {
    let Some(path) = config.leaf.state.as_deref() else { return Ok(None) };
    check_replaceable(path)?; // it belongs to this user or root
    let snapshot = match Snapshot::open(path) {
        Err(StateError::Missing { .. }) => return Ok(None),
        result => result?,
    };
    let is_ours = (snapshot.role, snapshot.node) == (config.role, config.leaf.id);
    Ok(is_ours.then(|| PreviousState { age: age(path), snapshot }))
}

/// Returns the time since the last copy of the state to the file; the maximum if it is unknown, for instance because
/// the clock was set back. State of unknown age is too old for a takeover.
fn age(path: &Path) -> Duration {
    let written = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let age = |time: SystemTime| SystemTime::now().duration_since(time).ok();
    written.ok().and_then(age).unwrap_or(Duration::MAX)
}

impl PreviousState {
    /// Returns the time between the writing of the state and the start of this process.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Applies the recent parts of the previous state on all cores: loads up to a second old, MAC addresses up to a
    /// minute. Call before the first packet. `table` is the state of the new process, and `now_ms` the time of its
    /// clock in milliseconds.
    pub fn take_over(&self, stages: &mut [Stages], table: &Table, now_ms: u32) -> TakeoverCounts {
        let mut counts = TakeoverCounts::default();
        if self.age <= LOADS_MAX {
            counts.members = self.take_loads(stages);
        }
        if self.age <= HOSTS_MAX {
            counts.hosts = self.take_hosts(table, now_ms);
        }
        counts
    }

    /// Applies the beliefs (load, outstanding tasks, presence) about members that the node still has. Returns their
    /// number. Each core adopts the loads, but only core 0 the outstanding tasks, which count over all cores. Walks the
    /// node's own pools and looks each member up in the snapshot, so no index of a damaged snapshot reaches the node.
    fn take_loads(&self, stages: &mut [Stages]) -> usize {
        let Some(network) = stages.first().map(|core| core.network().clone()) else { return 0 };
        let mut count = 0;
        for pool in 0..network.pools() {
            let id = network.pool_id(pool);
            let old_pool = self.snapshot.pools.iter().find(|old| Some(old.id) == id);
            let members = old_pool.into_iter().flat_map(|old| &old.members);
            // Keys: worker id and server address. A worker on another server is another one.
            let old: HashMap<_, _> = members.map(|one| ((one.worker, one.server), one)).collect();
            let mut beliefs = Vec::new();
            for (place, target) in network.members(pool).iter().enumerate() {
                let member = Member(place as u16);
                // An agent on the leaf's own core ended with the leaf, and its workers start anew.
                let server = network.member_address(pool, member);
                let server = server.filter(|&server| !is_agent(server));
                let old_member = server.and_then(|server| old.get(&(target.worker, server)));
                // A silent worker becomes active again by registering. One that may not register therefore
                // starts as configured. A spine's leaves do not register, but their signals end a silence.
                let worker = network.worker(target.worker);
                let registers = network.is_spine()
                    || worker.is_some_and(|worker| network.server(worker.server).registers);
                beliefs.extend(old_member.map(|one| {
                    // The last report, and the load that each core has sent since then (drift).
                    let load = Load::of(one.load + one.drift.iter().sum::<f64>());
                    // Surplus replies make the number negative for a while.
                    let outstanding = u32::try_from(one.outstanding).unwrap_or(0);
                    let presence =
                        if registers { one.presence } else { MemberPresence::Configured };
                    (member, InheritedEstimate { load, outstanding, presence })
                }));
            }
            stages.iter_mut().for_each(|core| core.take_over(pool, &beliefs));
            count += beliefs.len();
        }
        count
    }

    /// Applies the MAC addresses of hosts that the node keeps permanently (pinned): servers, spines and gateways.
    /// Returns their number. Keeps configured (static) addresses. Clients show theirs with their next task.
    fn take_hosts(&self, table: &Table, now_ms: u32) -> usize {
        let neighbours = table.neighbours();
        let mut count = 0;
        for host in &self.snapshot.neighbours {
            let slot = neighbours.find_pinned_host(host.port, host.address);
            let slot = slot.filter(|slot| !neighbours.is_static(*slot));
            let mac = host.mac.as_deref().and_then(|mac| mac.parse::<Mac>().ok());
            if let Some((slot, mac)) = slot.zip(mac.filter(|mac| mac.is_host())) {
                neighbours.learn(slot, mac, now_ms);
                count += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    use wedjat_core::policy::Task;
    use wedjat_core::state::Report;
    use wedjat_core::state::publish;
    use wedjat_desired::control::Membership;

    /// Returns the configuration of leaf `id` with two cores, the state file `state`, and one pool on two servers. The
    /// first server has `workers`, which register; the second has workers 8 and 9, which do not.
    fn text(state: &Path, policy: &str, id: u16, workers: &str) -> String {
        let file = format!(
            "[leaf]\nid = {id}\ncores = [1, 2]\nseed = 7\nstate = '{}'\n\
             [[port]]\ndevice = 'a'\nside = 'both'\nip = '10.0.2.1/24'\n\
             [[pool]]\nid = 1\npolicy = '{policy}'\n\
             [[server]]\nip = '10.0.2.11'\nworkers = '{workers}'\npool = 1\nregisters = true\n",
            state.display()
        );
        file + "[[server]]\nip = '10.0.2.12'\nworkers = '8-9'\npool = 1\n"
    }

    /// Leaf whose cores the test uses directly, without devices.
    struct Node {
        table: Arc<Table>,
        /// Stages by core.
        stages: Vec<Stages>,
        /// State that the file had before this node's start, if any.
        previous: Option<PreviousState>,
    }

    /// Starts a leaf: reads the previous state, then replaces it.
    fn start(text: &str) -> Node {
        let config = Config::parse(Path::new("leaf.toml"), text).unwrap();
        let previous = read(&config).unwrap();
        let table = crate::table(&config, 1_000_000_000).unwrap();
        let macs = [Mac([2, 0, 0, 0, 0, 1])];
        let stages = crate::stages(&config, &Membership::of(&config), macs, &table).unwrap();
        Node { table, stages, previous }
    }

    impl Node {
        /// Schedules `tasks` tasks of the first pool on one core. Returns the chosen workers.
        fn chosen_workers(&mut self, core: usize, tasks: usize) -> Vec<u16> {
            let mut picks = vec![None; tasks];
            let dispatcher = self.stages[core].dispatcher_mut(0).unwrap();
            dispatcher.schedule(&vec![Task::default(); tasks], &mut picks);
            let network = self.stages[core].network();
            picks.iter().flatten().map(|pick| network.target(0, pick.member).worker).collect()
        }

        /// Writes the state and ends the node.
        fn end(self) {
            self.table.publish();
            drop(self.stages);
        }

        /// Applies the previous state, which must exist, at 5 ms of the node's clock.
        fn take_over(&mut self) -> TakeoverCounts {
            let previous = self.previous.take().unwrap();
            previous.take_over(&mut self.stages, &self.table, 5)
        }
    }

    /// MAC address of every host whose address is known before the restart.
    const MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);

    /// Runs and ends a leaf with six workers: members 0 to 3 are workers 0 to 3, members 4 and 5 workers 8 and 9.
    /// Worker 8 is idle, and each other worker reports 9 tasks and has 9 outstanding. Workers 0, 1 and 3 have
    /// registered. The MAC address of the first server is known.
    fn run_earlier_leaf(state: &Path, policy: &str) {
        let mut node = start(&text(state, policy, 1, "0-3"));
        assert!(node.previous.is_none());
        for member in (0..6).map(Member) {
            let busy = if member.0 == 4 { 0 } else { 9 };
            for core in &mut node.stages {
                let dispatcher = core.dispatcher_mut(0).unwrap();
                dispatcher.refresh(&Report::new(member, Load::tasks(busy), 0));
            }
            node.stages[0]
                .dispatcher_mut(0)
                .unwrap()
                .view_mut()
                .set_outstanding(member, busy.into());
        }
        let neighbours = node.table.neighbours();
        // 10.0.2.11, behind port 0.
        neighbours.learn(neighbours.find(0, 0x0A00_020B_u32).unwrap(), MAC, 1);
        for member in [0, 1, 3].map(Member) {
            node.stages[0]
                .dispatcher(0)
                .unwrap()
                .view()
                .set_presence(member, MemberPresence::Registered);
        }
        node.end();
    }

    // promise: membership.4, membership.5
    #[test]
    fn first_tasks_use_the_previous_loads() {
        for policy in ["horus", "jsq", "sed", "lsq-update", "jbsq(k=9)"] {
            let folder = tempfile::tempdir().unwrap();
            let state = folder.path().join("leaf");
            run_earlier_leaf(&state, policy);
            // The new configuration has no worker 3, and places 0 to 4 are workers 2, 1, 0, 8 and 9.
            let mut node = start(&text(&state, policy, 1, "2,1,0"));
            assert_eq!(node.take_over(), TakeoverCounts { members: 5, hosts: 1 }, "{policy}");
            let neighbours = node.table.neighbours();
            let slot = neighbours.find(0, 0x0A00_020B_u32).unwrap();
            assert_eq!(neighbours.mac(slot), Some(MAC));
            let view = node.stages[0].dispatcher(0).unwrap().view();
            assert_eq!(view.presence(Member(1)), MemberPresence::Registered, "worker 1");
            assert_eq!(view.presence(Member(0)), MemberPresence::Unregistered, "worker 2");
            for core in &node.stages {
                let view = core.dispatcher(0).unwrap().view();
                assert!(view.is_active(Member(1)) && !view.is_active(Member(0)), "{policy}");
            }
            assert_eq!(node.table.outstanding(0, Member(0)), 9, "{policy}");
            // Only worker 8 was idle. Under Horus the core that has it on its list sends it the first task,
            // otherwise any core.
            if policy == "horus" {
                let idle = |core: &Stages| core.dispatcher(0).unwrap().view().idle().len();
                assert_eq!(node.stages.iter().map(idle).sum::<usize>(), 1);
                assert!([0, 1].iter().any(|&core| node.chosen_workers(core, 1) == [8]));
            } else {
                assert_eq!(node.chosen_workers(0, 3), [8, 8, 8], "{policy}");
            }
        }
    }

    // promise: membership.5
    #[test]
    fn a_thousand_workers_are_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        // 1024 workers of the first server, and two of the second.
        let text = text(&folder.path().join("leaf"), "horus", 1, "10-1033");
        let mut node = start(&text);
        for core in &mut node.stages {
            for member in (0..1026).map(Member) {
                core.dispatcher_mut(0).unwrap().refresh(&Report::new(member, Load::tasks(2), 0));
            }
        }
        node.end();
        let config = Config::parse(Path::new("leaf.toml"), &text).unwrap();
        let began = std::time::Instant::now();
        let previous = read(&config).unwrap();
        eprintln!("read in {:?}", began.elapsed());
        let mut node = start(&text);
        let began = std::time::Instant::now();
        let taken = previous.unwrap().take_over(&mut node.stages, &node.table, 5);
        eprintln!("taken over in {:?}", began.elapsed());
        assert_eq!(taken.members, 1026);
        assert_eq!(node.stages[1].dispatcher(0).unwrap().view().load(Member(1000)), Load::tasks(2));
    }

    // promise: membership.5
    #[test]
    fn foreign_or_old_state_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("leaf");
        run_earlier_leaf(&state, "jsq");
        // Makes the file this many seconds old.
        let age = |seconds| {
            let file = std::fs::File::options().write(true).open(&state).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        age(10);
        let config = |id| Config::parse(Path::new("leaf.toml"), &text(&state, "jsq", id, "0-3"));
        let mut previous = read(&config(1).unwrap()).unwrap().unwrap();
        assert!(read(&config(2).unwrap()).unwrap().is_none());
        let mut node = start(&text(&folder.path().join("new"), "jsq", 1, "0-3"));
        // Loads are too old after 1 s, MAC addresses after 60 s.
        let mut take =
            |previous: &PreviousState| previous.take_over(&mut node.stages, &node.table, 5);
        assert_eq!(take(&previous), TakeoverCounts { members: 0, hosts: 1 });
        previous.age = Duration::from_secs(61);
        assert_eq!(take(&previous), TakeoverCounts::default());
        // After the clock was set back, the age is unknown.
        let file = std::fs::File::options().write(true).open(&state).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
        assert_eq!(super::age(&state), Duration::MAX);
    }

    // promise: membership.5
    #[test]
    fn damaged_state_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("leaf");
        run_earlier_leaf(&state, "jsq");
        let config = Config::parse(Path::new("leaf.toml"), &text(&state, "jsq", 1, "0-3")).unwrap();
        let mut bytes = std::fs::read(&state).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..].fill(0xA5);
        std::fs::write(&state, &bytes).unwrap();
        // The file has places for two copies. The newest copy may be in the undamaged half, so either result is right.
        let _ = read(&config);
        // Both places are damaged; the first 16 bytes still identify a state file.
        bytes[16..].fill(0xA5);
        std::fs::write(&state, &bytes).unwrap();
        let error = read(&config).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        std::fs::write(&state, "something else").unwrap();
        assert!(read(&config).unwrap_err().to_string().contains("not a wedjat state file"));
    }

    /// Configured sizes of a leaf.
    #[derive(Clone, Copy, Debug)]
    struct Shape {
        ports: usize,
        cores: usize,
        /// Number of pools, each with one server.
        pools: u16,
        /// Number of workers of each pool.
        workers: u16,
        /// True if all addresses are IPv6 addresses.
        is_v6: bool,
    }

    /// The smallest node, nodes that differ from it in one size, and two larger ones.
    const SHAPES: [Shape; 8] = {
        let one = Shape { ports: 1, cores: 1, pools: 1, workers: 2, is_v6: false };
        [
            one,
            Shape { ports: 2, ..one },
            Shape { cores: 3, ..one },
            Shape { pools: 3, ..one },
            Shape { workers: 70, ..one },
            Shape { is_v6: true, ..one },
            Shape { ports: 4, cores: 2, pools: 2, workers: 9, is_v6: true },
            Shape { ports: 4, cores: 4, pools: 4, workers: 33, is_v6: false },
        ]
    };

    impl Shape {
        /// Returns a configuration. The pool at index p has id p + 1 and workers 100 p and following. They are on one
        /// server, behind port p modulo the number of ports. So pools of different shapes have the same ids, and the
        /// same server if port and family agree.
        fn text(self, state: &Path) -> String {
            let cores: Vec<_> = (1..=self.cores).collect();
            let (net, length) = if self.is_v6 { ("fd00:{}::", 64) } else { ("10.0.{}.", 24) };
            // Address of a host behind a port: 10.0.(port + 2).host, or fd00:(port + 2)::host.
            let address = |port: usize, host: u16| {
                let net = net.replace("{}", &(port + 2).to_string());
                if self.is_v6 { format!("{net}{host:x}") } else { format!("{net}{host}") }
            };
            let mut text = format!(
                "[leaf]\nid = 1\ncores = {cores:?}\nseed = 7\nstate = '{}'\npools_max = {}\nworkers_max = {}\nservers_max = {}\n",
                state.display(),
                self.pools,
                self.workers,
                self.pools
            );
            for port in 0..self.ports {
                let ip = address(port, 1);
                text +=
                    &format!("[[port]]\ndevice = 'd{port}'\nside = 'both'\nip = '{ip}/{length}'\n");
            }
            for pool in 0..self.pools {
                let ip = address(usize::from(pool) % self.ports, 11 + pool);
                let (id, first) = (pool + 1, 100 * pool);
                let last = first + self.workers - 1;
                text += &format!(
                    "[[pool]]\nid = {id}\npolicy = 'jsq'\n[[server]]\nip = '{ip}'\npool = {id}\nworkers = '{first}-{last}'\nregisters = true\n"
                );
            }
            text
        }

        /// Starts a node of this shape.
        fn node(self, state: &Path) -> Node {
            let config = Config::parse(Path::new("leaf.toml"), &self.text(state)).unwrap();
            let table = crate::table(&config, 1_000_000_000).unwrap();
            let macs = (0..self.ports).map(|port| Mac([2, 0, 0, 0, 0, port as u8 + 1]));
            let stages = crate::stages(&config, &Membership::of(&config), macs, &table);
            Node { table, stages: stages.unwrap(), previous: None }
        }

        /// Runs and ends a node of this shape, and returns the bytes of its state file. The node has loads, registered
        /// workers, and MAC addresses of all servers and of 200 clients behind each port.
        fn state(self) -> Vec<u8> {
            let folder = tempfile::tempdir().unwrap();
            let state = folder.path().join("leaf");
            let mut node = self.node(&state);
            for core in &mut node.stages {
                for pool in 0..usize::from(self.pools) {
                    for member in (0..self.workers).map(Member) {
                        let load = earlier_load(pool as u16, member.0).0;
                        let dispatcher = core.dispatcher_mut(pool).unwrap();
                        dispatcher.refresh(&Report::new(member, load, 0));
                    }
                }
            }
            for pool in 0..usize::from(self.pools) {
                let dispatcher = node.stages[0].dispatcher_mut(pool).unwrap();
                for member in (0..self.workers).map(Member) {
                    let (_, outstanding) = earlier_load(pool as u16, member.0);
                    dispatcher.view_mut().set_outstanding(member, outstanding);
                    dispatcher.view().set_presence(member, MemberPresence::Registered);
                }
            }
            let neighbours = node.table.neighbours();
            let hosts: Vec<_> = neighbours.pinned_slots().collect();
            for host in hosts {
                neighbours.learn(host, MAC, 1);
            }
            for client in 0..200_u128 {
                for port in 0..self.ports {
                    let slot = match self.is_v6 {
                        true => neighbours.insert(port, 0xFD00 << 112 | client, 1),
                        false => neighbours.insert(port, 0x0A00_0064 + client as u32, 1),
                    };
                    neighbours.learn(slot, MAC, 1);
                }
            }
            node.end();
            std::fs::read(&state).unwrap()
        }
    }

    /// Returns load and outstanding tasks before the restart of the worker at an index in a pool. The values are
    /// arbitrary, above 0, and differ between most workers.
    fn earlier_load(pool: u16, worker: u16) -> (Load, u32) {
        (Load::tasks(1 + 7 * pool + worker % 5), u32::from(2 + pool + worker % 3))
    }

    /// Starts a node of this shape, which takes over a state file's bytes with age 0. Returns the node and the counts,
    /// or `None` if the bytes cannot be read.
    fn take_over_file(shape: Shape, bytes: &[u8]) -> Option<(Node, TakeoverCounts)> {
        let folder = tempfile::tempdir().unwrap();
        let mut node = shape.node(&folder.path().join("leaf"));
        let snapshot = Snapshot::of(bytes).ok()?;
        let previous = PreviousState { snapshot, age: Duration::ZERO };
        let counts = previous.take_over(&mut node.stages, &node.table, 5);
        Some((node, counts))
    }

    // promise: membership.5
    #[test]
    fn every_shape_takes_over_every_other() {
        for before in SHAPES {
            let bytes = before.state();
            for after in SHAPES {
                let (node, taken) = take_over_file(after, &bytes).unwrap();
                let mut expected = TakeoverCounts::default();
                for pool in 0..after.pools {
                    // The pool keeps its server if that is behind the same port, in the same family.
                    let behind = |shape: Shape| (usize::from(pool) % shape.ports, shape.is_v6);
                    let keeps_server = pool < before.pools && behind(before) == behind(after);
                    expected.hosts += usize::from(keeps_server);
                    let (view, network) = (
                        node.stages[0].dispatcher(usize::from(pool)).unwrap().view(),
                        node.stages[0].network(),
                    );
                    for member in (0..after.workers).map(Member) {
                        let is_known = keeps_server && member.0 < before.workers;
                        expected.members += usize::from(is_known);
                        let (load, outstanding) = match is_known {
                            true => earlier_load(pool, member.0),
                            false => (Load::default(), 0),
                        };
                        let found =
                            (view.load(member), node.table.outstanding(pool.into(), member));
                        assert_eq!(
                            found,
                            (load, outstanding.into()),
                            "{before:?} {after:?} {member:?}"
                        );
                        let is_registered = view.presence(member) == MemberPresence::Registered;
                        assert_eq!(is_registered, is_known, "{before:?} {after:?} {member:?}");
                    }
                    let server = network.member_address(pool.into(), Member(0)).unwrap();
                    let port = usize::from(pool) % after.ports;
                    let neighbours = node.table.neighbours();
                    let slot = neighbours.find_pinned_host(port, server).unwrap();
                    assert_eq!(
                        neighbours.mac(slot),
                        keeps_server.then_some(MAC),
                        "{before:?} {after:?}"
                    );
                }
                assert_eq!(taken, expected, "{before:?} {after:?}");
                // The third field of a host is its MAC address.
                let known = node.table.neighbours().iter().filter(|host| host.2.is_some()).count();
                assert_eq!(known, expected.hosts, "no client of the past is known");
            }
        }
    }

    // promise: membership.5
    #[test]
    fn damaged_state_is_taken_over_whole_or_not() {
        // A checksum detects a damaged copy. A readable file is damaged elsewhere only, and gives the intact result.
        let states = SHAPES.map(Shape::state);
        let mut rng = wedjat_core::policy::Rng::seed_from_u64(33);
        let mut read = 0;
        for seed in 0..300 {
            let state = &states[seed % SHAPES.len()];
            let mut bytes = state.clone();
            let offset = rng.random_range(..bytes.len());
            match seed % 3 {
                0 => bytes.truncate(offset),
                1 => bytes[offset] ^= 1 << rng.random_range(..8_u32),
                _ => bytes[offset..].fill(rng.random()),
            }
            let after = SHAPES[rng.random_range(..SHAPES.len())];
            let Some((node, counts)) = take_over_file(after, &bytes) else { continue };
            read += 1;
            let (intact, intact_counts) = take_over_file(after, state).unwrap();
            assert_eq!(counts, intact_counts, "seed {seed}");
            let loads = |node: &Node| {
                let view = node.stages[0].dispatcher(0).unwrap().view();
                (0..after.workers).map(|member| view.load(Member(member))).collect::<Vec<_>>()
            };
            assert_eq!(loads(&node), loads(&intact), "seed {seed}");
        }
        assert!(read > 20, "{read} damaged states were readable");
    }

    // promise: membership.5
    #[test]
    fn takeover_bounds_wrong_values_of_a_valid_copy() {
        /// Words near the limits of counts, indices and flags.
        const EDGE_WORDS: [u64; 8] =
            [0, 1, 7, 0xFFFF, 1 << 31, u64::MAX, 1 << 63 | 0x7FFF << 32 | 9, 3 << 62];
        let states = SHAPES.map(Shape::state);
        let mut rng = wedjat_core::policy::Rng::seed_from_u64(7);
        let mut read = 0;
        for seed in 0..600 {
            let mut bytes = states[seed % SHAPES.len()].clone();
            let after = SHAPES[rng.random_range(..SHAPES.len())];
            // Changes words and renews the checksum, so that the copy stays valid.
            publish::change_words(&mut bytes, |words| {
                for _ in 0..1 + rng.random_range(..64_u32) {
                    // Half of the changes hit the header, the pools, the servers and the workers, which lie
                    // at the start.
                    let most = if rng.random_range(..2_u32) == 0 {
                        words.len()
                    } else {
                        words.len().min(400)
                    };
                    let index = rng.random_range(..most);
                    words[index] = match rng.random_range(..3_u32) {
                        0 => words[index] ^ 1 << rng.random_range(..64_u32),
                        1 => EDGE_WORDS[rng.random_range(..EDGE_WORDS.len())],
                        _ => words[rng.random_range(..words.len())],
                    };
                }
            });
            let Some((mut node, taken)) = take_over_file(after, &bytes) else { continue };
            read += 1;
            assert!(taken.members <= usize::from(after.pools * after.workers), "seed {seed}");
            assert!(taken.hosts <= usize::from(after.pools), "seed {seed}: {taken:?}");
            let neighbours = node.table.neighbours();
            let hosts = neighbours.iter().filter_map(|host| host.2);
            assert!(hosts.into_iter().all(Mac::is_host), "seed {seed}");
            for core in 0..after.cores {
                let picks = node.chosen_workers(core, 8);
                assert!(
                    picks.iter().all(|worker| *worker < after.workers),
                    "seed {seed}: {picks:?}"
                );
            }
        }
        assert!(read > 200, "{read} of the changed states are read");
    }

    // promise: membership.5
    #[test]
    fn worker_that_may_not_register_is_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("leaf");
        let registering = text(&state, "jsq", 1, "0-3");
        let node = start(&registering);
        node.stages[0]
            .dispatcher(0)
            .unwrap()
            .view()
            .set_presence(Member(1), MemberPresence::Silent);
        node.end();
        for (text, presence) in [
            (registering.clone(), MemberPresence::Silent),
            (
                registering.replace("registers = true", "registers = false"),
                MemberPresence::Configured,
            ),
        ] {
            // The state file of this start has another path, so the first one stays unchanged.
            let previous = read(&Config::parse(Path::new("leaf.toml"), &text).unwrap()).unwrap();
            let other = state.display().to_string() + "2";
            let mut node = start(&text.replace(&state.display().to_string(), &other));
            previous.unwrap().take_over(&mut node.stages, &node.table, 5);
            assert_eq!(node.stages[0].dispatcher(0).unwrap().view().presence(Member(1)), presence);
        }
    }
}
