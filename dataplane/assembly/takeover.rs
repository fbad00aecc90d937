//! What an earlier process of the same node left in its state file, and what of it is true still: loads for a moment, where hosts are
//! for a minute. Pools and workers are found by their ids, so that what has come or gone in the configuration meanwhile does not
//! matter.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::config::{Config, v4_bits};
use crate::role::colocated::AGENT_IP;
use crate::stage::Stages;
use crate::stage::takeover::Belief;
use crate::state::neighbour::Slot;
use crate::state::table::{Snapshot, StateError, check_replaceable};
use crate::state::{Load, Member, Table};
use crate::wire::ether::Mac;

/// Loads are believed for so long: afterwards microsecond tasks are done.
const LOADS_MAX: Duration = Duration::from_secs(1);
/// Where hosts are is believed for so long; it is asked for again when they do not answer.
const HOSTS_MAX: Duration = Duration::from_secs(60);

/// What was left.
#[derive(Debug)]
pub struct Left {
    snapshot: Snapshot,
    age: Duration,
}

/// How much was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Members whose loads were.
    pub members: usize,
    /// Hosts whose MAC addresses were.
    pub hosts: usize,
}

/// Reads what lies in the configured state file, before that is replaced; none when there is nothing of this node's.
///
/// # Errors
/// Why what lies there can't be taken over; the node can start without it.
pub fn read(config: &Config) -> Result<Option<Left>, StateError> {
    let Some(path) = config.leaf.state.as_deref() else { return Ok(None) };
    check_replaceable(path)?; // it is this user's or root's
    let snapshot = match Snapshot::open(path) {
        Err(StateError::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let is_ours = (snapshot.role, snapshot.node) == (config.role, config.leaf.id);
    Ok(is_ours.then(|| Left { age: age(path), snapshot }))
}

/// Since the last copy was written; without end when the clock was set back.
fn age(path: &Path) -> Duration {
    let written = std::fs::metadata(path).and_then(|found| found.modified());
    let age = |at: SystemTime| SystemTime::now().duration_since(at).ok();
    written.ok().and_then(age).unwrap_or(Duration::MAX)
}

impl Left {
    /// Since it was written.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Has all cores take it over; before the first packet. `now_ms` is the node's clock.
    pub fn take_over(&self, stages: &mut [Stages], table: &Table, now_ms: u32) -> TakenOver {
        let mut taken = TakenOver::default();
        if self.age <= LOADS_MAX {
            taken.members = self.take_loads(stages);
        }
        if self.age <= HOSTS_MAX {
            taken.hosts = self.take_hosts(table, now_ms);
        }
        taken
    }

    fn take_loads(&self, stages: &mut [Stages]) -> usize {
        let Some(network) = stages.first().map(|core| core.network.clone()) else { return 0 };
        let mut taken = 0;
        for was in &self.snapshot.pools {
            let Some(pool) = network.pool(was.id) else { continue };
            let before: HashMap<_, _> =
                was.members.iter().map(|one| ((one.worker, one.server), one)).collect();
            let mut beliefs = Vec::new();
            for (place, target) in network.members(pool).iter().enumerate() {
                // Workers on the node's own core have ended with it.
                let member = Member(place as u16);
                let v6 = network.v6().and_then(|v6| v6.member(pool, member));
                let server = match v6 {
                    Some(address) => IpAddr::V6(Ipv6Addr::from_bits(address)),
                    None => IpAddr::V4(Ipv4Addr::from(target.ip)),
                };
                let is_elsewhere = target.is_there() && v4_bits(server) != Some(AGENT_IP);
                let one = before.get(&(target.worker, server)).filter(|_| is_elsewhere);
                beliefs.extend(one.map(|one| {
                    let load = Load::of(one.load + one.drift.iter().sum::<f64>());
                    let outstanding = u32::try_from(one.outstanding).unwrap_or(0);
                    (member, Belief { load, outstanding, presence: one.presence })
                }));
            }
            stages.iter_mut().for_each(|core| core.take_over(pool, &beliefs));
            taken += beliefs.len();
        }
        taken
    }

    /// Only of hosts that the node has a place for: clients show where they are with their next task.
    fn take_hosts(&self, table: &Table, now_ms: u32) -> usize {
        let neighbours = table.neighbours();
        let pinned: Vec<Slot> = neighbours.pinned_slots().collect();
        let mut taken = 0;
        for host in &self.snapshot.neighbours {
            let slot = match host.address {
                IpAddr::V4(address) => neighbours.find(host.port, address.to_bits()),
                IpAddr::V6(address) => neighbours.find_v6(host.port, address.to_bits()),
            };
            let slot = slot.filter(|slot| pinned.contains(slot) && !neighbours.is_static(*slot));
            let mac = host.mac.as_deref().and_then(|mac| mac.parse::<Mac>().ok());
            if let Some((slot, mac)) = slot.zip(mac) {
                neighbours.learn(slot, mac, now_ms);
                taken += 1;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::assembly;
    use crate::control::Membership;
    use crate::policy::Task;
    use crate::state::{Presence, Report};

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

    struct Node {
        table: Arc<Table>,
        stages: Vec<Stages>,
        left: Option<Left>,
    }

    fn start(text: &str) -> Node {
        let config = Config::parse(Path::new("leaf.toml"), text).unwrap();
        let left = read(&config).unwrap();
        let table = assembly::table(&config, 1_000_000_000).unwrap();
        let macs = [Mac([2, 0, 0, 0, 0, 1])];
        let stages = assembly::stages(&config, &Membership::of(&config), macs, &table).unwrap();
        Node { table, stages, left }
    }

    impl Node {
        /// Tasks for the first pool, by one core: whom they went to.
        fn ask(&mut self, core: usize, tasks: usize) -> Vec<u16> {
            let mut picks = vec![None; tasks];
            let dispatcher = &mut self.stages[core].dispatchers[0];
            dispatcher.schedule(&vec![Task::default(); tasks], &mut picks);
            let network = &self.stages[core].network;
            picks.iter().flatten().map(|pick| network.target(0, pick.member).worker).collect()
        }

        fn end(self) {
            self.table.publish();
            drop(self.stages);
        }

        fn take_over(&mut self) -> TakenOver {
            let left = self.left.take().unwrap();
            left.take_over(&mut self.stages, &self.table, 5)
        }
    }

    const MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);

    /// A leaf that has sent as many tasks to its six workers as policies know of, knows where a server is, and ends.
    fn earlier(state: &Path, policy: &str) {
        let mut node = start(&text(state, policy, 1, "0-3"));
        assert!(node.left.is_none());
        for member in (0..6).map(Member) {
            let busy = if member.0 == 4 { 0 } else { 9 };
            for core in &mut node.stages {
                let dispatcher = &mut core.dispatchers[0];
                dispatcher.refresh(&Report::new(member, Load::tasks(busy), 0));
            }
            node.stages[0].dispatchers[0].view_mut().set_outstanding(member, busy.into());
        }
        let neighbours = node.table.neighbours();
        neighbours.learn(neighbours.find(0, 0x0A00_020B).unwrap(), MAC, 1);
        for member in [0, 1, 3].map(Member) {
            node.stages[0].dispatchers[0].view().set_presence(member, Presence::Registered);
        }
        node.end();
    }

    #[test]
    fn the_first_tasks_are_scheduled_with_what_was_believed() {
        for policy in ["horus", "jsq", "sed", "lsq-update", "jbsq(k=9)"] {
            let folder = tempfile::tempdir().unwrap();
            let state = folder.path().join("leaf");
            earlier(&state, policy);
            // Worker 3 has gone meanwhile, and the others have other places.
            let mut node = start(&text(&state, policy, 1, "2,1,0"));
            assert_eq!(node.take_over(), TakenOver { members: 5, hosts: 1 }, "{policy}");
            let neighbours = node.table.neighbours();
            let slot = neighbours.find(0, 0x0A00_020B).unwrap();
            assert_eq!(neighbours.mac(slot), Some(MAC));
            let view = node.stages[0].dispatchers[0].view();
            assert_eq!(view.presence(Member(1)), Presence::Registered, "worker 1");
            assert_eq!(view.presence(Member(0)), Presence::Unregistered, "worker 2");
            for core in &node.stages {
                let view = core.dispatchers[0].view();
                assert!(view.is_active(Member(1)) && !view.is_active(Member(0)), "{policy}");
            }
            assert_eq!(node.table.outstanding(0, Member(0)), 9, "{policy}");
            // Only worker 8 was idle: under Horus the core that has it sends it the first task, under others any core.
            if policy == "horus" {
                let idle = |core: &Stages| core.dispatchers[0].view().idle().len();
                assert_eq!(node.stages.iter().map(idle).sum::<usize>(), 1);
                assert!([0, 1].iter().any(|&core| node.ask(core, 1) == [8]));
            } else {
                assert_eq!(node.ask(0, 3), [8, 8, 8], "{policy}");
            }
        }
    }

    #[test]
    fn a_thousand_workers_are_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let text = text(&folder.path().join("leaf"), "horus", 1, "10-1033");
        let mut node = start(&text);
        for core in &mut node.stages {
            for member in (0..1026).map(Member) {
                core.dispatchers[0].refresh(&Report::new(member, Load::tasks(2), 0));
            }
        }
        node.end();
        let config = Config::parse(Path::new("leaf.toml"), &text).unwrap();
        let began = std::time::Instant::now();
        let left = read(&config).unwrap();
        eprintln!("read in {:?}", began.elapsed());
        let mut node = start(&text);
        let began = std::time::Instant::now();
        let taken = left.unwrap().take_over(&mut node.stages, &node.table, 5);
        eprintln!("taken over in {:?}", began.elapsed());
        assert_eq!(taken.members, 1026);
        assert_eq!(node.stages[1].dispatchers[0].view().load(Member(1000)), Load::tasks(2));
    }

    #[test]
    fn another_nodes_state_and_an_old_one_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("leaf");
        earlier(&state, "jsq");
        let age = |seconds| {
            let file = std::fs::File::options().write(true).open(&state).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        age(10);
        let config = |id| Config::parse(Path::new("leaf.toml"), &text(&state, "jsq", id, "0-3"));
        let mut left = read(&config(1).unwrap()).unwrap().unwrap();
        assert!(read(&config(2).unwrap()).unwrap().is_none());
        let mut node = start(&text(&folder.path().join("new"), "jsq", 1, "0-3"));
        let mut take = |left: &Left| left.take_over(&mut node.stages, &node.table, 5);
        assert_eq!(take(&left), TakenOver { members: 0, hosts: 1 });
        left.age = Duration::from_secs(61);
        assert_eq!(take(&left), TakenOver::default());
        // A clock that was set back: nobody knows how old it is.
        let file = std::fs::File::options().write(true).open(&state).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
        assert_eq!(super::age(&state), Duration::MAX);
    }

    #[test]
    fn what_is_damaged_or_something_else_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("leaf");
        earlier(&state, "jsq");
        let config = Config::parse(Path::new("leaf.toml"), &text(&state, "jsq", 1, "0-3")).unwrap();
        let mut bytes = std::fs::read(&state).unwrap();
        let at = bytes.len() / 2;
        bytes[at..].fill(0xA5);
        std::fs::write(&state, &bytes).unwrap();
        let _ = read(&config); // the copy that is in the other place may be whole
        bytes[16..].fill(0xA5);
        std::fs::write(&state, &bytes).unwrap();
        let error = read(&config).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        std::fs::write(&state, "something else").unwrap();
        assert!(read(&config).unwrap_err().to_string().contains("not a wedjat state file"));
    }
}
