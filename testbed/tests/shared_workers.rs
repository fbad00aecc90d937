//! Two leaves and one agent in emulated time, on ports in memory. The leaves share the agent's workers, which
//! report their queues in messages or answer probes. A leaf schedules tasks; the agent gives the tasks of its host to
//! workers. After the end of one leaf, its peer serves its own clients as before. `promise: ID` names the tested
//! promise of SPECIFICATION.md.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use wedjat::config::{AgentConfig, Config};
use wedjat::io::Buf as _;
use wedjat::io::memory::RingPort;
use wedjat::reason::DropReason;
use wedjat::ring::{TakenTask, WorkerEnd};
use wedjat::state::{Counter, Counters, Member};
use wedjat::wire::ether::{self, Mac};
use wedjat_pktgen::host::{FrameKind, Host};
use wedjat_pktgen::payload::Work;
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::{Task, Template};
use wedjat_testbed::lockstep::{LocalAgent, LocalLeaf, Scheduler as _};

const LEAVES: usize = 2;
const WORKERS: u16 = 4;
const AGENT_MAC: Mac = Mac([2, 0, 3, 0, 0, 1]);
const CLIENT_MAC: Mac = Mac([2, 0, 1, 0, 0, 1]);
/// Step by which the emulated time advances. After each step, all nodes get turns. In a turn, a node polls until it
/// moves no packet.
const STEP_NS: u64 = 5_000;
/// Service time of every task.
const SERVICE_NS: u32 = 100_000;
/// The frames have valid checksums, but no device has checked them.
const IS_CHECKED_BY_DEVICE: bool = false;
/// Length of the answer to a task.
const ANSWER_LEN: usize = 0;
/// Time of the agent's second turn. Later than the tick at 100 us, which grants the workers' claims.
const SECOND_TURN_NS: u64 = 1_000_000;
/// Time in which the workers register with all leaves.
const REGISTRATION_NS: u64 = 20_000_000;
/// Time after the last task in which all tasks end.
const DRAIN_NS: u64 = 5_000_000;

/// Returns the MAC address of a leaf's port: 0 towards the clients, 1 towards the workers.
fn leaf_mac(leaf: usize, port: usize) -> Mac {
    Mac([2, 0, 2, 0, leaf as u8, port as u8])
}

/// Returns the configuration of a leaf whose workers register, and report in messages.
fn leaf_text(leaf: usize, policy: &str) -> String {
    let [clients, workers] = [0, 1].map(|port| leaf_mac(leaf, port));
    format!(
        "[leaf]\nid = {leaf}\ncores = [0]\nseed = 7\n\
         [[port]]\ndevice = 'net_memif0'\nside = 'clients'\nip = '10.0.1.1/24'\nmac = '{clients}'\n\
         [[port]]\ndevice = 'net_memif1'\nside = 'workers'\nip = '10.1.0.{}/24'\nmac = '{workers}'\n\
         [[pool]]\nid = 1\npolicy = '{policy}'\nreports = 'messages'\n\
         [[server]]\nip = '10.1.0.101'\nworkers = '0-{}'\npool = 1\nregisters = true\n",
        leaf + 1,
        WORKERS - 1
    )
}

/// Returns the configuration of the agent, whose workers register with both leaves. The leaves' policy decides when
/// the workers report.
fn agent_text(policy: &str) -> String {
    let leaves: String =
        (0..LEAVES).map(|leaf| format!("[[leaf]]\nip = '10.1.0.{}'\n", leaf + 1)).collect();
    format!(
        "[agent]\nname = 'in-memory'\ncore = 0\nid = 100\nseed = 7\npayload = 128\n\
         [[port]]\ndevice = 'net_memif0'\nip = '10.1.0.101/24'\nmac = '{AGENT_MAC}'\n\
         [[pool]]\nid = 1\npolicy = 'jbsq(k=8)'\nworkers = '0-{}'\nleaf_policy = '{policy}'\n{leaves}",
        WORKERS - 1
    )
}

/// A leaf and its clients. Each leaf has a clients' network of its own.
struct Leaf {
    local: LocalLeaf,
    /// Far ends of the leaf's ports.
    clients: RingPort,
    workers: RingPort,
    /// The clients' host: parses answers, and answers the leaf's ARP requests.
    host: Host,
    /// Packet of a task.
    template: Template,
    /// Number of tasks sent.
    sent: u64,
    /// Number of tasks answered.
    answered: u64,
}

impl Leaf {
    /// Creates a leaf with this number under this policy, and its clients.
    fn new(leaf: usize, policy: &str) -> Self {
        let config = Config::parse(Path::new("leaf.toml"), &leaf_text(leaf, policy)).unwrap();
        let (local, ends) = LocalLeaf::new(&config, 2048).unwrap();
        let [clients, workers] =
            [ends.clients, ends.workers].map(|end| end.into_queues().remove(0));
        let target = Target {
            pool: 1,
            next_hop_mac: Some(leaf_mac(leaf, 0)),
            ..Target::new(CLIENT_MAC, 0x0A00_0164, 0x0A00_0101)
        };
        let (host, template) = (target.host(), Template::new(&target.frame(leaf as u32)));
        Self { local, clients, workers, host, template, sent: 0, answered: 0 }
    }

    /// Returns the leaf's counters.
    fn counters(&self) -> &Counters {
        self.local.leaf().stages().counters()
    }

    /// Sends a task to the leaf.
    fn send(&mut self) {
        let mut frame = vec![0; self.template.frame_len()];
        let task = Task { seq: self.sent as u32, service_ns: SERVICE_NS, class: 0 };
        self.template.write(&mut frame, task);
        assert!(self.clients.send(&frame));
        self.sent += 1;
    }

    /// Receives the frames for the clients. Counts answers, which must belong to tasks of this leaf's clients. Answers
    /// ARP requests: the host writes its answer over the request, in the same frame.
    fn receive_clients(&mut self, leaf: usize) {
        while let Some(mut frame) = self.clients.receive() {
            match self.host.receive(&mut frame, IS_CHECKED_BY_DEVICE) {
                FrameKind::Answer(answer) => {
                    // The tasks contain their leaf's number as the application id.
                    let (app, _) = answer.id.unwrap();
                    assert_eq!(app, leaf as u32, "a task of this leaf's clients");
                    assert!(!answer.refused, "no task is refused");
                    self.answered += 1;
                }
                FrameKind::NeighbourAnswer => assert!(self.clients.send(frame.bytes())),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the leaf's estimate of a worker's tasks, in whole tasks. The view has 65,536ths of a task.
    fn estimated_tasks(&self, worker: u16) -> u64 {
        self.local.leaf().stages().dispatcher(0).unwrap().view().estimated_load(Member(worker))
            >> 16
    }
}

/// The leaves with their clients, the agent and its workers, at one emulated time.
struct World {
    /// Leaves; `None` for one that has ended.
    leaves: [Option<Leaf>; LEAVES],
    agent: LocalAgent,
    /// Far end of the agent's port.
    agent_end: RingPort,
    /// Workers, each with its current task and the task's end.
    workers: Vec<(WorkerEnd, Option<(TakenTask, u64)>)>,
    now_ns: u64,
}

impl World {
    /// Starts the agent, its workers and the leaves. The workers claim their channels after the agent's first turn.
    /// The second turn grants the claims. Only then may the workers start.
    fn new(policy: &str) -> Self {
        let config = AgentConfig::parse(Path::new("agent.toml"), &agent_text(policy)).unwrap();
        let (mut agent, agent_end, _) = LocalAgent::new(&config, 2048).unwrap();
        agent.turn(0).unwrap();
        let claim = |at| agent.region().claim(usize::from(at)).unwrap().unwrap();
        let workers: Vec<_> = (0..WORKERS).map(|at| (claim(at), None)).collect();
        agent.turn(SECOND_TURN_NS).unwrap();
        workers.iter().for_each(|(worker, _)| worker.start());
        let leaves = [0, 1].map(|leaf| Some(Leaf::new(leaf, policy)));
        Self { leaves, agent, agent_end, workers, now_ns: SECOND_TURN_NS }
    }

    /// Lets each worker answer its task if its service time is over, and take the next task if it has none.
    fn work(&mut self) {
        for (worker, current) in &mut self.workers {
            if let Some((task, _)) = current.take_if(|(_, until_ns)| *until_ns <= self.now_ns) {
                worker.answer(task, |_, _| ANSWER_LEN, || u64::from(SERVICE_NS)).unwrap();
            }
            if current.is_none()
                && let Some(task) = worker.take().unwrap()
            {
                let work = Work::parse(worker.payload(&task)).unwrap();
                *current = Some((task, self.now_ns + u64::from(work.service_ns)));
            }
        }
    }

    /// Gives the nodes turns and delivers their frames by destination MAC address, as a switch does, until agent and
    /// leaves send each other no more. The time does not advance.
    fn settle(&mut self) {
        loop {
            self.agent.turn(self.now_ns).unwrap();
            let mut frames: Vec<_> = std::iter::from_fn(|| self.agent_end.receive()).collect();
            for (at, leaf) in self.leaves.iter_mut().enumerate() {
                let Some(leaf) = leaf else { continue };
                leaf.local.turn(self.now_ns).unwrap();
                frames.extend(std::iter::from_fn(|| leaf.workers.receive()));
                leaf.receive_clients(at);
            }
            if frames.is_empty() {
                return;
            }
            for frame in frames {
                let to = ether::dst(frame.bytes());
                let is_for =
                    |mac| to == mac || to == Mac::BROADCAST && ether::src(frame.bytes()) != mac;
                if is_for(AGENT_MAC) {
                    assert!(self.agent_end.send(frame.bytes()));
                }
                for (at, leaf) in self.leaves.iter_mut().enumerate() {
                    if let Some(leaf) = leaf.as_mut().filter(|_| is_for(leaf_mac(at, 1))) {
                        assert!(leaf.workers.send(frame.bytes()));
                    }
                }
            }
        }
    }

    /// Advances the time by `ns` nanoseconds in steps. `is_due` gets the number of the step and a leaf. It returns true
    /// if the leaf's clients send a task in this step.
    fn advance(&mut self, ns: u64, is_due: impl Fn(u64, usize) -> bool) {
        for step in 0..ns / STEP_NS {
            self.now_ns += STEP_NS;
            for (at, leaf) in self.leaves.iter_mut().enumerate() {
                leaf.iter_mut().filter(|_| is_due(step, at)).for_each(Leaf::send);
            }
            self.work();
            self.settle();
        }
    }

    /// Advances the time by `ns` nanoseconds without new tasks.
    fn advance_idle(&mut self, ns: u64) {
        self.advance(ns, |_, _| false);
    }

    /// Returns a leaf. Panics if it has ended.
    fn leaf(&self, leaf: usize) -> &Leaf {
        self.leaves[leaf].as_ref().unwrap()
    }

    /// Returns the number of load reports that a leaf accepted.
    fn reports(&self, leaf: usize) -> u64 {
        self.leaf(leaf).counters().read(Counter::QueueReports)
    }

    /// Checks that this leaf has no task in flight and lost none. It dropped only ARP requests for another address. The
    /// ledgers (accounts of received packets) of leaf and agent balance.
    fn assert_settled(&self, leaf: usize, name: &str) {
        let Leaf { answered, sent, local, .. } = self.leaf(leaf);
        let counters = self.leaf(leaf).counters();
        assert_eq!(answered, sent, "{name}: leaf {leaf}");
        assert!(counters.balances() && self.agent.agent().counters().balances(), "{name}");
        // Each leaf also receives broadcast ARP requests for a second leaf's address, and counts them as dropped.
        let arp_other = counters.dropped(DropReason::ArpOther);
        assert_eq!(counters.dropped_total(), arp_other, "{name}");
        let view = local.leaf().stages().dispatcher(0).unwrap().view();
        for worker in 0..WORKERS {
            assert_eq!(view.outstanding_now(Member(worker)), 0, "{name}: {worker}");
        }
    }
}

/// Returns true if a leaf's clients send a task in this step: in every 13th, that is, every 65 us. The second leaf's
/// tasks come 6 steps after those of the first. Two tasks of 100 us in 65 us are 77% of the capacity of four workers.
fn is_due(step: u64, leaf: usize) -> bool {
    step % 13 == 6 * leaf as u64
}

// promise: scheduling.6
#[test]
fn one_of_two_leaves_survives_the_other() {
    for policy in ["lsq-update(eps=0.1)", "lsq-smart(eps=0.1)", "jiq", "jbt(r=2)", "pi"] {
        let mut world = World::new(policy);
        world.advance_idle(REGISTRATION_NS);
        assert_eq!(world.agent.agent().registered(), usize::from(WORKERS), "{policy}");
        // After the registration, a worker reports once. With LSQ it reports to each leaf, with other policies to one.
        let first_reports: u64 = [0, 1].map(|leaf| world.reports(leaf)).iter().sum();
        let leaves_per_worker = if policy.starts_with("lsq") { 2 } else { 1 };
        assert_eq!(
            first_reports,
            leaves_per_worker * u64::from(WORKERS),
            "{policy}: each worker reports after its registration"
        );

        world.advance(60_000_000, is_due);
        world.advance_idle(DRAIN_NS);
        let tasks: u64 = (0..LEAVES).map(|leaf| world.leaf(leaf).sent).sum();
        // Two tasks in 65 us for 60 ms are 1846.
        assert!(tasks > 1800, "{tasks}");
        (0..LEAVES).for_each(|leaf| world.assert_settled(leaf, policy));
        let received: Vec<_> = (0..LEAVES).map(|leaf| world.reports(leaf)).collect();
        // At an agent, the counter counts sent reports; at a leaf, accepted ones.
        let sent = world.agent.agent().counters().read(Counter::QueueReports);
        assert_eq!(received.iter().sum::<u64>(), sent, "{policy}: a leaf accepts each report");
        // The policies' papers bound the reports by one per task. The lower bounds are far below the usual numbers.
        // They only show that the workers report all the time, and to both leaves.
        assert!(sent - first_reports < tasks && sent > tasks / 4, "{policy}: {sent} for {tasks}");
        assert!(received.iter().all(|&received| received > sent / 4), "{policy}: {received:?}");
        if policy.starts_with("lsq") {
            for worker in 0..WORKERS {
                let estimates = (0..LEAVES).map(|leaf| world.leaf(leaf).estimated_tasks(worker));
                assert_eq!(estimates.min(), Some(0), "{policy}: a leaf knows {worker} as idle");
            }
        }

        // One leaf ends with all its state.
        world.leaves[1] = None;
        world.advance(40_000_000, is_due);
        world.advance_idle(DRAIN_NS);
        world.assert_settled(0, policy);
        assert!(
            world.reports(0) > received[0],
            "{policy}: the remaining leaf still receives reports"
        );

        // The leaf returns without any state.
        world.leaves[1] = Some(Leaf::new(1, policy));
        // The agent repeats each worker's registration at least every 100 ms. By it, the new leaf learns of the worker.
        world.advance_idle(120_000_000);
        let reports_before_tasks = world.reports(1);
        world.advance(40_000_000, is_due);
        world.advance_idle(DRAIN_NS);
        (0..LEAVES).for_each(|leaf| world.assert_settled(leaf, policy));
        assert!(
            world.reports(1) > reports_before_tasks,
            "{policy}: the returned leaf receives reports about its tasks"
        );
    }
}

// promise: scheduling.6
#[test]
fn one_of_two_probing_leaves_survives_the_other() {
    for policy in ["lsq-sample", "jsq(d=2)"] {
        let mut world = World::new(policy);
        world.advance_idle(REGISTRATION_NS);
        world.advance(60_000_000, is_due);
        world.advance_idle(DRAIN_NS);
        (0..LEAVES).for_each(|leaf| world.assert_settled(leaf, policy));
        let counted =
            |world: &World, leaf: usize, counter| world.leaf(leaf).counters().read(counter);
        for leaf in 0..LEAVES {
            // Both policies probe two workers for each task.
            let [probes, answers] = [Counter::QueueProbes, Counter::ProbeAnswers]
                .map(|counter| counted(&world, leaf, counter));
            assert_eq!((probes, answers), (2 * world.leaf(leaf).sent, probes), "{policy}");
            assert_eq!(world.reports(leaf), 0, "{policy}: workers only answer probes");
        }
        world.leaves[1] = None;
        world.advance(20_000_000, is_due);
        world.advance_idle(DRAIN_NS);
        world.assert_settled(0, policy);
    }
}
