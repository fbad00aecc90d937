//! Direct return in emulated time: one leaf, one agent with its workers, and clients, on ports in memory. With direct
//! return the agent sends replies straight to the client, and completion reports of several tasks to the leaf. Each
//! packet takes two microseconds to the next part. Response times with direct return are compared with those through
//! the leaf, and completion reports are lost, repeated and delayed.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use rand::RngExt as _;
use wedjat::config::{AgentConfig, Config};
use wedjat::io::Buf as _;
use wedjat::io::memory::RingPort;
use wedjat::ring::{TakenTask, WorkerEnd};
use wedjat::state::{Counter, Member};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::Code;
use wedjat::wire::udp;
use wedjat_pktgen::host::{FrameKind, Host};
use wedjat_pktgen::payload::Work;
use wedjat_pktgen::seed::{Stream, StreamSeed};
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::{Task, Template};
use wedjat_testbed::lockstep::{LocalAgent, LocalLeaf, Scheduler as _};

const WORKERS: u16 = 4;
const AGENT_MAC: Mac = Mac([2, 0, 3, 0, 0, 1]);
const CLIENT_MAC: Mac = Mac([2, 0, 1, 0, 0, 1]);
/// Addresses of the leaf's ports, towards clients and towards workers.
const LEAF_MACS: [Mac; 2] = [Mac([2, 0, 2, 0, 0, 0]), Mac([2, 0, 2, 0, 0, 1])];
/// Time between two turns of all parts in nanoseconds, under load and without. In a turn, a node polls until it is
/// quiet.
const STEPS_NS: [u64; 2] = [1_000, 20_000];
/// Travel time of a packet.
const HOP_NS: u64 = 2_000;
/// Mean service time, exponentially distributed.
const SERVICE_NS: f64 = 20_000.0;
/// Offered load of the workers.
const LOAD: f64 = 0.8;

/// Returns the leaf's configuration. `replies` is the path of replies: `leaf` (through the leaf) or `direct`.
fn leaf_text(policy: &str, replies: &str) -> String {
    let [clients, workers] = LEAF_MACS;
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\n\
         [[port]]\ndevice = 'net_memif0'\nside = 'clients'\nip = '10.0.1.1/24'\nmac = '{clients}'\n\
         [[port]]\ndevice = 'net_memif1'\nside = 'workers'\nip = '10.1.0.1/24'\nmac = '{workers}'\n\
         [[pool]]\nid = 1\npolicy = '{policy}'\nreplies = '{replies}'\n\
         [[server]]\nip = '10.1.0.101'\nworkers = '0-{}'\npool = 1\nregisters = true\n",
        WORKERS - 1
    )
}

/// Returns the configuration of the agent. Leaf and clients are in its network.
fn agent_text() -> String {
    format!(
        "[agent]\nname = 'in-memory'\ncore = 0\nid = 100\nseed = 7\npayload = 128\nleaf = '10.1.0.1'\n\
         [[port]]\ndevice = 'net_memif0'\nip = '10.1.0.101/8'\nmac = '{AGENT_MAC}'\n\
         [[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '0-{}'\n",
        WORKERS - 1
    )
}

/// Treatment of a completion report by its number: delays of its copies in nanoseconds. Without a copy it is lost.
type ReportFaults = fn(u64) -> &'static [u64];

/// No faults: each report arrives once.
fn undisturbed(_: u64) -> &'static [u64] {
    &[0]
}

/// All parts of a test.
struct World {
    leaf: LocalLeaf,
    /// Far ends of the leaf's ports.
    leaf_ends: [RingPort; 2],
    agent: LocalAgent,
    /// Far end of the agent's port.
    agent_end: RingPort,
    /// Workers, each with its current task and the task's end.
    workers: Vec<(WorkerEnd, Option<(TakenTask, u64)>)>,
    /// The clients' host, which answers ARP.
    host: Host,
    /// Packet of a task.
    template: Template,
    /// Frames on their way: time of arrival, number of the frame, and its bytes. The first to arrive is on top.
    frames: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    /// Number of frames sent. It keeps frames with equal times of arrival in order.
    order: u64,
    /// Number of completion reports sent.
    reports: u64,
    faults: ReportFaults,
    now_ns: u64,
    /// Time of each task's sending, and its response time.
    tasks: Vec<(u64, Option<u64>)>,
    random: Stream,
}

impl World {
    /// Starts all parts, passes 20 ms, and checks that all workers have registered with the leaf by then.
    fn new(policy: &str, replies: &str, faults: ReportFaults) -> Self {
        let config = Config::parse(Path::new("leaf.toml"), &leaf_text(policy, replies)).unwrap();
        let (leaf, ends) = LocalLeaf::new(&config, 2048).unwrap();
        let leaf_ends = [ends.clients, ends.workers].map(|end| end.into_queues().remove(0));
        let config = AgentConfig::parse(Path::new("agent.toml"), &agent_text()).unwrap();
        let (mut agent, agent_end, _) = LocalAgent::new(&config, 2048).unwrap();
        agent.turn(0).unwrap();
        // The workers claim their channels, and the agent's next turn grants the claims.
        let claim = |at| agent.region().claim(usize::from(at)).unwrap().unwrap();
        let workers: Vec<_> = (0..WORKERS).map(|at| (claim(at), None)).collect();
        agent.turn(1_000_000).unwrap();
        workers.iter().for_each(|(worker, _)| worker.start());
        let target = Target {
            pool: 1,
            next_hop_mac: Some(LEAF_MACS[0]),
            ..Target::new(CLIENT_MAC, 0x0A00_0164, 0x0A00_0101)
        };
        let (host, template) = (target.host(), Template::new(&target.frame(1)));
        let mut world = Self {
            leaf,
            leaf_ends,
            agent,
            agent_end,
            workers,
            host,
            template,
            frames: BinaryHeap::new(),
            order: 0,
            reports: 0,
            faults,
            now_ns: 1_000_000,
            tasks: Vec::new(),
            random: StreamSeed::derive(7, "tasks", 0).stream(),
        };
        world.pass(20_000_000, 0.0);
        assert_eq!(world.agent.agent().registered(), usize::from(WORKERS));
        world
    }

    /// Draws an exponentially distributed time.
    fn exponential(&mut self, mean_ns: f64) -> f64 {
        -mean_ns * (1.0 - self.random.random::<f64>()).ln()
    }

    /// Sends a task to the leaf.
    fn send(&mut self) {
        let mut frame = vec![0; self.template.frame_len()];
        let service_ns = self.exponential(SERVICE_NS) as u32;
        let task = Task { seq: self.tasks.len() as u32, service_ns, class: 0 };
        self.template.write(&mut frame, task);
        self.tasks.push((self.now_ns, None));
        self.transmit(&frame);
    }

    /// Puts a frame on its way. Completion reports may be lost, repeated or delayed.
    fn transmit(&mut self, frame: &[u8]) {
        let kind =
            frame.get(udp::PAYLOAD).copied().filter(|_| ether::ether_type(frame) == ether::IPV4);
        // The lower five bits of the payload's first byte are the packet's code.
        let is_report = kind.is_some_and(|kind| kind & 0x1F == Code::Completions as u8);
        self.reports += u64::from(is_report);
        let copies = if is_report { (self.faults)(self.reports) } else { &[0] };
        for later_ns in copies {
            self.order += 1;
            let at_ns = self.now_ns + HOP_NS + later_ns;
            self.frames.push(Reverse((at_ns, self.order, frame.to_vec())));
        }
    }

    /// Delivers each due frame to the part with its destination MAC address, and a broadcast to all except its source.
    /// Records the response time of each answer that reaches the clients.
    fn deliver(&mut self) {
        while self.frames.peek().is_some_and(|Reverse((at_ns, ..))| *at_ns <= self.now_ns) {
            let Reverse((.., mut frame)) = self.frames.pop().unwrap();
            let to = ether::dst(&frame);
            let is_for = |mac| to == mac || to == Mac::BROADCAST && ether::src(&frame) != mac;
            let [to_agent, to_clients] = [AGENT_MAC, CLIENT_MAC].map(is_for);
            let to_leaf = LEAF_MACS.map(is_for);
            if to_agent {
                assert!(self.agent_end.send(&frame));
            }
            for (end, _) in self.leaf_ends.iter_mut().zip(to_leaf).filter(|(_, is_to)| *is_to) {
                assert!(end.send(&frame));
            }
            if to_clients {
                match self.host.receive(&mut frame.as_mut_slice(), false) {
                    FrameKind::Answer(answer) => {
                        let (_, seq) = answer.id.unwrap();
                        let (sent_ns, response_ns) = &mut self.tasks[seq as usize];
                        let elapsed_ns = self.now_ns - *sent_ns;
                        assert_eq!(response_ns.replace(elapsed_ns), None, "answered twice");
                    }
                    FrameKind::NeighbourAnswer => self.transmit(&frame),
                    _ => {}
                }
            }
        }
    }

    /// Lets the workers answer their due tasks and take new ones. Answers are empty.
    fn work(&mut self) {
        for (worker, current) in &mut self.workers {
            if let Some((task, _)) = current.take_if(|(_, until_ns)| *until_ns <= self.now_ns) {
                let service_ns = Work::parse(worker.payload(&task)).unwrap().service_ns;
                worker.answer(task, |_, _| 0, || service_ns.into()).unwrap();
            }
            if current.is_none()
                && let Some(task) = worker.take().unwrap()
            {
                let work = Work::parse(worker.payload(&task)).unwrap();
                *current = Some((task, self.now_ns + u64::from(work.service_ns)));
            }
        }
    }

    /// Advances the time by `ns` nanoseconds. Tasks arrive at this load of the workers; 0 for none.
    fn pass(&mut self, ns: u64, load: f64) {
        let step_ns = STEPS_NS[usize::from(load < 0.1)];
        let gap_ns = SERVICE_NS / (f64::from(WORKERS) * load);
        let mut next_ns =
            self.now_ns as f64 + if load > 0.0 { self.exponential(gap_ns) } else { f64::MAX };
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += step_ns;
            while next_ns <= self.now_ns as f64 {
                self.send();
                next_ns += self.exponential(gap_ns);
            }
            self.deliver();
            self.work();
            self.leaf.turn(self.now_ns).unwrap();
            self.agent.turn(self.now_ns).unwrap();
            let mut sent: Vec<_> = std::iter::from_fn(|| self.agent_end.receive()).collect();
            for end in &mut self.leaf_ends {
                sent.extend(std::iter::from_fn(|| end.receive()));
            }
            sent.iter().for_each(|frame| self.transmit(frame.bytes()));
        }
    }

    /// Returns a counter of the leaf.
    fn count(&self, counter: Counter) -> u64 {
        self.leaf.leaf().stages().counters().read(counter)
    }

    /// Passes 30 ms without new tasks. Then checks that all tasks are answered, the ledgers balance, and no worker has
    /// an outstanding task at the leaf. Returns the 99th percentile of the response times.
    fn finish(&mut self) -> u64 {
        self.pass(30_000_000, 0.0);
        let mut times: Vec<_> =
            self.tasks.iter().map(|(_, response_ns)| response_ns.unwrap()).collect();
        times.sort_unstable();
        assert!(self.leaf.leaf().stages().counters().balances());
        assert!(self.agent.agent().counters().balances());
        let view = self.leaf.leaf().stages().dispatcher(0).unwrap().view();
        for worker in 0..WORKERS {
            assert_eq!(view.outstanding_now(Member(worker)), 0, "worker {worker}");
        }
        assert_eq!(self.count(Counter::Scheduled), self.tasks.len() as u64);
        times[times.len() * 99 / 100]
    }
}

// promise: packets.2, scheduling.2
#[test]
fn direct_replies_delay_no_task() {
    for policy in ["horus", "jsq", "jbsq(k=1)", "jbsq(k=2)", "cfcfs"] {
        let [through, direct] = ["leaf", "direct"].map(|replies| {
            let mut world = World::new(policy, replies, undisturbed);
            world.pass(100_000_000, LOAD);
            let p99 = world.finish();
            let counts = [Counter::Replies, Counter::Completions, Counter::CompletionReports];
            let [replied, completed, reports] = counts.map(|counter| world.count(counter));
            assert_eq!(replied + completed, world.tasks.len() as u64, "{policy}");
            println!(
                "{policy}, {replies}: p99 {p99} ns, {replied} replies, {completed} completions in {reports} reports"
            );
            assert_eq!(world.count(Counter::SurplusReplies), 0);
            match replies {
                "leaf" => assert_eq!(completed, 0),
                // Only tasks of the first microseconds, without the client's MAC address: 1 of 100 at most.
                _ => assert!(replied < completed / 100 && reports <= completed, "{replied}"),
            }
            p99
        });
        // A direct reply saves a hop, and the report of its completion costs less.
        assert!(direct as f64 <= 1.05 * through as f64, "{policy}: {direct} ns, not {through} ns");
    }
}

// promise: packets.2, scheduling.4
#[test]
fn lost_completion_reports_are_written_off() {
    let faults: ReportFaults = |number| match number % 40 {
        7 => &[],           // lost
        19 => &[0, 30_000], // repeated after 30 us
        31 => &[50_000],    // delayed by 50 us
        _ => &[0],
    };
    for policy in ["horus", "jbsq(k=2)", "cfcfs"] {
        let mut world = World::new(policy, "direct", faults);
        world.pass(50_000_000, LOAD);
        // Central queues write lost tasks off sooner. Other policies do so after 64 checks, 10 ms apart, each with a
        // new report of the worker. The few tasks of this pass cause these reports.
        world.faults = undisturbed;
        world.pass(2_000_000_000, 0.01);
        world.finish();
        let (lost, again) =
            (world.count(Counter::WrittenOff), world.count(Counter::SurplusReplies));
        println!("{policy}: {lost} written off, {again} surplus, of {} tasks", world.tasks.len());
    }
}
