//! What is traced: the cores of one leaf, one after another in one thread, under bursts of half tasks, half replies.
//!
//! All that is not the leaf's belongs to one core and never moves: packets, and the queues that stand for a device's. So none
//! of its lines is ever another core's.

use std::cell::RefCell;
use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};

use arrayvec::ArrayVec;
use clap::ValueEnum;
use rand::{RngExt as _, SeedableRng};
use serde::{Deserialize, Serialize};
use wedjat::assembly;
use wedjat::config::Config;
use wedjat::control::Membership;
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::limits::{BURST, CORES_MAX};
use wedjat::node::{Commands, Timing};
use wedjat::policy::Rng;
use wedjat::role::Leaf;
use wedjat::state::{Counters, Gauge, Table};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Flow, PAYLOAD};
use wedjat::wire::{arp, task};

use super::trace::{Map, Section};

/// Ticks are nanoseconds.
const HZ: u64 = 1_000_000_000;
/// Between two bursts of a core: ten million packets a second. A tick of the leaf is 32 of them.
const BURST_NS: u64 = 3_125;
/// Between two polls before there is load.
const SETTLING_NS: u64 = 100_000;
/// Polls after which all neighbours and workers are known.
const SETTLING_POLLS: usize = 4_000;
/// Bytes of a frame at most.
const FRAME: usize = 256;
/// Bytes that a client sends and a worker answers.
const BODY: usize = 20;
/// Packets that a core sends at most between two polls.
const SENT: usize = 256;
const CLIENTS: u16 = 8;
/// Workers of a server, at most.
const SERVED: u16 = 16;
const POOL: u16 = 7;
const LEAF: u32 = 0x0A00_0001;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const FIRST_CLIENT: u32 = 0x0A00_0101;
const FIRST_SERVER: u32 = 0x0A00_0201;
const PORT: u16 = 40_000;

/// Which core a reply reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Replies {
    /// The core that sent the task
    Same,
    /// Any core, at random
    Any,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Dispatcher cores.
    pub cores: usize,
    /// Workers.
    pub workers: u16,
    /// The policy, with its parameters.
    pub policy: String,
    /// Which core a reply reaches.
    pub replies: Replies,
    /// Tasks in the system for each worker; more where there are not enough for full bursts of all cores.
    pub outstanding: f64,
    /// Bursts of each core before those that count.
    pub warm_up: usize,
    /// Bursts of each core that count.
    pub bursts: usize,
    /// The seed.
    pub seed: u64,
}

/// What passed in the bursts that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Packets that the cores were given: tasks and replies.
    pub packets: u64,
    /// Replies among them.
    pub replies: u64,
}

/// Where a trace shows whose turn it is: a store to the word of a core, or to one of the two behind.
#[repr(align(128))]
struct Turns([AtomicU64; CORES_MAX + 2]);

static TURNS: Turns = Turns([const { AtomicU64::new(0) }; CORES_MAX + 2]);
/// The word that stands for no core.
pub const NOBODY: usize = CORES_MAX;
/// The word that stands for the end of the warm-up.
pub const WARM: usize = CORES_MAX + 1;

#[inline(never)]
fn mark(turn: usize) {
    compiler_fence(SeqCst);
    TURNS.0[turn].store(1, Relaxed);
    compiler_fence(SeqCst);
}

/// A packet's memory: two pairs of lines, of which no other packet has any.
#[derive(Clone, Copy)]
#[repr(align(128))]
struct Memory([u8; FRAME]);

/// A packet, in memory that stays where it is as long as the process.
pub struct Packet {
    memory: &'static mut Memory,
    len: usize,
}

impl Packet {
    fn fill(&mut self, bytes: &[u8]) {
        self.len = bytes.len();
        self.memory.0[..bytes.len()].copy_from_slice(bytes);
    }
}

impl Buf for Packet {
    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.memory.0[..self.len]
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.0[..self.len]
    }

    #[inline]
    fn resize(&mut self, len: usize) -> bool {
        let fits = len <= FRAME;
        self.len = if fits { len } else { self.len };
        fits
    }
}

/// What a device has of a core: packets that have arrived, that were sent, and that are free.
#[repr(align(128))]
#[derive(Default)]
struct Queues {
    arrived: ArrayVec<Packet, BURST>,
    sent: ArrayVec<Packet, SENT>,
    free: ArrayVec<Packet, BURST>,
}

/// One core's port, and its pool.
#[derive(Clone, Default)]
struct Wire(Rc<RefCell<Queues>>);

impl Port for Wire {
    type Buf = Packet;

    fn rx_burst(&mut self, burst: &mut Burst<Packet>) -> usize {
        let before = burst.len();
        burst.extend(self.0.borrow_mut().arrived.drain(..));
        burst.len() - before
    }

    fn tx_burst(&mut self, burst: &mut Burst<Packet>) -> usize {
        let sent = &mut self.0.borrow_mut().sent;
        let count = burst.len().min(sent.remaining_capacity());
        sent.extend(burst.drain(..count));
        count
    }
}

impl Pool for Wire {
    type Buf = Packet;

    fn take(&mut self) -> Option<Packet> {
        self.0.borrow_mut().free.pop()
    }
}

/// A core's leaf, on lines of its own.
#[repr(align(128))]
struct Own(Leaf<Wire, Wire>);

/// A core.
struct Core {
    leaf: Box<Own>,
    wire: Wire,
    counters: Counters,
    /// Packets that the next bursts are made of.
    packets: Vec<Packet>,
    /// Where all its packets are: address and bytes.
    frames: (usize, usize),
    /// Answers to ARP questions that come first.
    answers: Vec<[u8; arp::FRAME_LEN]>,
}

/// A task that a worker has, from a client.
#[derive(Clone, Copy)]
struct Task {
    worker: u16,
    client: u16,
}

/// Frames, of which packets are copies.
struct Frames {
    tasks: Vec<Vec<u8>>,
    /// By server and client.
    replies: Vec<Vec<u8>>,
}

fn address_mac(address: u32) -> Mac {
    let [.., high, low] = address.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

fn frame(flow: &Flow, header: &Header) -> Vec<u8> {
    let len = header.len() + BODY;
    let mut frame = vec![0xAB; PAYLOAD + len];
    header.emit(&mut frame[PAYLOAD..]);
    if header.extended {
        let extension = Extension { app: 1, seq32: 1, service_ns: 10_000, class: 0 };
        extension.emit(&mut frame[PAYLOAD..]);
    }
    flow.emit(&mut frame, len);
    frame
}

/// What goes from a host to the leaf, or through it to a client.
fn flow(from: u32, from_port: u16, to: u32, to_port: u16) -> Flow {
    let (src_mac, dst_mac) = (address_mac(from), LEAF_MAC);
    Flow { src_mac, dst_mac, src: from, dst: to, src_port: from_port, dst_port: to_port }
}

impl Frames {
    fn new(servers: u16) -> Self {
        let clients = || (0..CLIENTS).map(|client| FIRST_CLIENT + u32::from(client));
        let header = Header { extended: true, ..Header::new_task(POOL, 1) };
        let task = |client| frame(&flow(client, PORT, LEAF, task::UDP_PORT), &header);
        let servers = (0..servers).map(|server| FIRST_SERVER + u32::from(server));
        let pairs = servers.flat_map(|server| clients().map(move |client| (server, client)));
        let reply = |(server, client)| frame(&flow(server, task::UDP_PORT, client, PORT), &header);
        Self { tasks: clients().map(task).collect(), replies: pairs.map(reply).collect() }
    }

    /// A worker's reply to a client, which says that the worker has `queue` more.
    fn reply(&self, packet: &mut Packet, task: Task, queue: u16) {
        let Task { worker, client } = task;
        packet.fill(&self.replies[usize::from(worker / SERVED * CLIENTS + client)]);
        let code = if queue == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
        let header = Header {
            code,
            extended: true,
            src: worker,
            dst: client,
            qlen: queue,
            ..Header::new_task(POOL, 1)
        };
        let frame = packet.bytes_mut();
        let delta = task::replace(&mut frame[PAYLOAD..], &header);
        udp::update_checksum(&mut frame[PAYLOAD - udp::LEN..], delta);
    }
}

/// The leaf's cores, and what is around them.
pub struct Workload {
    plan: Plan,
    table: Arc<Table>,
    cores: Vec<Core>,
    frames: Frames,
    rng: Rng,
    now: u64,
    /// Tasks that workers have; by core where replies reach the core that sent the task.
    outstanding: Vec<Vec<Task>>,
    /// Tasks of each worker.
    queues: Vec<u16>,
    /// Tasks that were given to the leaf and not answered.
    in_system: usize,
    /// Workers whose registration was answered.
    registered: u16,
    passed: Passed,
}

fn text(plan: &Plan) -> String {
    let Plan { cores, workers, policy, seed, .. } = plan;
    let cores: Vec<_> = (0..*cores).map(|core| core.to_string()).collect();
    let cores = cores.join(", ");
    let mut text = format!(
        "[leaf]\nid = 1\ncores = [{cores}]\nseed = {seed}\nconnections = 64\nworker_timeout_ms = 60000\n\
         [[port]]\ndevice = \"any\"\nside = \"both\"\nip = \"10.0.0.1/16\"\nmac = \"{LEAF_MAC}\"\n\
         [[pool]]\nid = {POOL}\npolicy = \"{policy}\"\n"
    );
    for server in 0..workers.div_ceil(SERVED) {
        let ip = std::net::Ipv4Addr::from_bits(FIRST_SERVER + u32::from(server));
        let (first, last) = (server * SERVED, (server * SERVED + SERVED).min(*workers) - 1);
        text += &format!(
            "[[server]]\nip = \"{ip}\"\nworkers = \"{first}-{last}\"\npool = {POOL}\nregisters = true\n"
        );
    }
    text
}

/// Why there is no load.
pub type Failure = Box<dyn Error>;

impl Workload {
    /// A leaf that knows its neighbours and workers, and has its share of tasks.
    ///
    /// # Errors
    /// When the plan makes no configuration, or a worker's registration is not answered.
    pub fn new(plan: Plan) -> Result<Self, Failure> {
        let config = Config::parse(Path::new("bench-lines"), &text(&plan))?;
        let table = assembly::table(&config, HZ)?;
        let stages = assembly::stages(&config, &Membership::of(&config), [LEAF_MAC], &table)?;
        let packets = plan.target() + 2 * SENT;
        let cores = stages.into_iter().enumerate().map(|(index, stages)| {
            let memory = vec![Memory([0; FRAME]); packets].leak();
            let frames = (address(memory.as_ptr()), size_of_val(memory));
            let packets = memory.iter_mut().map(|memory| Packet { memory, len: 0 });
            let mut packets: Vec<_> = packets.collect();
            let wire = Wire::default();
            wire.0.borrow_mut().free.extend(packets.drain(..BURST));
            let (commands, timing) = (Commands::default(), Timing { ticks_hz: HZ });
            let leaf = Leaf::new(stages, vec![wire.clone()], wire.clone(), commands, timing);
            let (leaf, counters) = (Box::new(Own(leaf)), table.counters(index));
            Core { leaf, wire, counters, packets, frames, answers: Vec::new() }
        });
        let mut workload = Self {
            cores: cores.collect(),
            frames: Frames::new(plan.workers.div_ceil(SERVED)),
            rng: Rng::seed_from_u64(plan.seed),
            now: SETTLING_NS,
            outstanding: vec![Vec::new(); plan.cores],
            queues: vec![0; usize::from(plan.workers)],
            in_system: 0,
            registered: 0,
            passed: Passed::default(),
            table,
            plan,
        };
        workload.settle()?;
        workload.fill_up();
        Ok(workload)
    }

    /// Where everything is. What is no core's turn does not count.
    #[must_use]
    pub fn map(&self) -> Map {
        let section = |name: &str, start: usize, bytes: usize| Section {
            name: name.to_owned(),
            start: start as u64,
            end: (start + bytes) as u64,
        };
        let table = self.table.sections().into_iter();
        let mut sections: Vec<_> =
            table.map(|(name, bytes)| section(name, bytes.start, bytes.len())).collect();
        for core in &self.cores {
            sections.push(section("leaf", address(&*core.leaf), size_of::<Own>()));
            let queues = address(Rc::as_ptr(&core.wire.0));
            sections.push(section("wire", queues, size_of::<RefCell<Queues>>()));
            sections.push(section("wire", core.frames.0, core.frames.1));
        }
        Map::new(address(&TURNS) as u64, sections)
    }

    /// Bursts by turns; those that count come after the others.
    ///
    /// # Errors
    /// When the leaf loses a packet.
    pub fn run(&mut self) -> Result<Passed, Failure> {
        for round in 0..self.plan.warm_up + self.plan.bursts {
            if round == self.plan.warm_up {
                self.passed = Passed::default();
                mark(WARM);
            }
            for core in 0..self.cores.len() {
                self.arrive(core, BURST / 2);
                mark(core);
                self.cores[core].leaf.0.poll(self.now);
                mark(NOBODY);
                self.take_sent(core);
            }
            self.now += BURST_NS;
        }
        self.check()?;
        Ok(self.passed)
    }

    /// Servers are asked for, then their workers register.
    fn settle(&mut self) -> Result<(), Failure> {
        let workers = self.plan.workers;
        let mut told = 0;
        for round in 0..SETTLING_POLLS {
            if self.knows_servers() {
                let core = round % self.cores.len();
                let next = (told + BURST as u16 / 2).min(workers);
                for worker in told..next {
                    let header = Header::worker_id(POOL, worker, 0, 1);
                    let server = FIRST_SERVER + u32::from(worker / SERVED);
                    let word = frame(&flow(server, task::UDP_PORT, LEAF, task::UDP_PORT), &header);
                    self.give(core, |_, packet| packet.fill(&word));
                }
                told = next;
            }
            self.answer_all();
            self.poll_all();
            self.now += SETTLING_NS;
            if self.registered == workers {
                return Ok(());
            }
        }
        let dropped = self.cores[0].counters.totals().drops();
        let text = format!(
            "{} of {workers} workers are registered; the first core dropped {dropped:?}",
            self.registered
        );
        Err(text.into())
    }

    fn knows_servers(&self) -> bool {
        let stages = self.cores[0].leaf.0.stages();
        let mut servers = stages.network().servers();
        servers.all(|server| stages.neighbours().mac(server.slot).is_some())
    }

    /// Tasks, and no replies, until there are as many as there should be.
    fn fill_up(&mut self) {
        while self.in_system < self.plan.target() {
            for core in 0..self.cores.len() {
                self.arrive(core, 0);
            }
            self.poll_all();
            self.now += BURST_NS;
        }
    }

    /// Answers to ARP questions arrive, as many as have room beside the rest.
    fn answer_all(&mut self) {
        for core in 0..self.cores.len() {
            let room = self.cores[core].wire.0.borrow().arrived.remaining_capacity();
            self.answer(core, room);
        }
    }

    /// Answers to a core's ARP questions arrive, up to so many; how many.
    fn answer(&mut self, core: usize, room: usize) -> usize {
        let answers = &mut self.cores[core].answers;
        let answers = answers.split_off(answers.len().saturating_sub(room));
        for answer in &answers {
            self.give(core, |_, packet| packet.fill(answer));
        }
        answers.len()
    }

    fn poll_all(&mut self) {
        for core in 0..self.cores.len() {
            self.cores[core].leaf.0.poll(self.now);
            self.take_sent(core);
        }
    }

    /// A packet arrives at a core, as it is written here.
    fn give(&mut self, core: usize, write: impl FnOnce(&Frames, &mut Packet)) {
        let Core { wire, packets, .. } = &mut self.cores[core];
        if let Some(mut packet) = packets.pop() {
            write(&self.frames, &mut packet);
            wire.0.borrow_mut().arrived.push(packet);
        }
    }

    /// The next burst of a core arrives: up to so many replies, and as many tasks, or more or fewer when there are too few or too
    /// many in the system; in any order.
    fn arrive(&mut self, core: usize, replies: usize) {
        let asked = self.answer(core, BURST);
        let room = (BURST - asked) / 2;
        let mut ready = Vec::new();
        while ready.len() < replies.min(room) {
            let Some(task) = self.next_answered(core) else { break };
            self.queues[usize::from(task.worker)] -= 1;
            ready.push((task, self.queues[usize::from(task.worker)]));
        }
        self.in_system -= ready.len();
        let mut tasks = (self.plan.target() - self.in_system).min(room);
        self.in_system += tasks;
        self.passed.packets += (tasks + ready.len()) as u64;
        self.passed.replies += ready.len() as u64;
        while tasks + ready.len() > 0 {
            if self.rng.random_range(0..tasks + ready.len()) < tasks {
                tasks -= 1;
                let client = self.rng.random_range(0..CLIENTS);
                self.give(core, |frames, packet| packet.fill(&frames.tasks[usize::from(client)]));
            } else if let Some((task, queue)) = ready.pop() {
                self.give(core, |frames, packet| frames.reply(packet, task, queue));
            }
        }
    }

    /// The next task whose reply reaches a core, any of those that workers have.
    fn next_answered(&mut self, core: usize) -> Option<Task> {
        let tasks = &mut self.outstanding[self.plan.list_of(core)];
        let at = self.rng.random_range(0..tasks.len().max(1));
        (!tasks.is_empty()).then(|| tasks.swap_remove(at))
    }

    /// What a core has sent reaches workers, clients and whoever it asks.
    fn take_sent(&mut self, core: usize) {
        let list = self.plan.list_of(core);
        let Core { wire, packets, answers, .. } = &mut self.cores[core];
        let mut queues = wire.0.borrow_mut();
        let Queues { sent, free, .. } = &mut *queues;
        for mut packet in sent.drain(..) {
            let frame = packet.bytes();
            if ether::ether_type(frame) == ether::ARP {
                if let Ok(question) = arp::Packet::parse(frame) {
                    let mut answer = [0; arp::FRAME_LEN];
                    question.answer(address_mac(question.target)).emit(&mut answer, LEAF_MAC);
                    answers.push(answer);
                }
            } else if let Ok(header) = Header::parse(&frame[PAYLOAD..]) {
                match header.code {
                    Code::NewTask => {
                        let client = u32::from_be_bytes(std::array::from_fn(|at| frame[26 + at]));
                        let client = (client - FIRST_CLIENT) as u16;
                        self.outstanding[list].push(Task { worker: header.dst, client });
                        self.queues[usize::from(header.dst)] += 1;
                    }
                    Code::WorkerIdAck => self.registered += 1,
                    _ => {}
                }
            }
            packet.len = 0;
            match free.is_full() {
                true => packets.push(packet),
                false => free.push(packet),
            }
        }
    }

    /// Whatever was given to the leaf has left it, or waits there.
    fn check(&self) -> Result<(), Failure> {
        let at_workers: usize = self.outstanding.iter().map(Vec::len).sum();
        let mut held = 0;
        for core in &self.cores {
            let drops = core.counters.totals().drops();
            if !drops.is_empty() {
                return Err(format!("the leaf dropped packets: {drops:?}").into());
            }
            held += core.counters.read(Gauge::Queued) as usize;
        }
        if self.in_system != at_workers + held {
            let text = format!(
                "{} tasks in the system, of which workers have {at_workers} and the leaf {held}",
                self.in_system
            );
            return Err(text.into());
        }
        Ok(())
    }
}

impl Plan {
    /// How many tasks are in the system.
    fn target(&self) -> usize {
        let load = (self.outstanding * f64::from(self.workers)).ceil() as usize;
        load.max(self.cores * BURST / 2).next_multiple_of(self.cores)
    }

    /// The list of tasks to which a core's replies belong.
    fn list_of(&self, core: usize) -> usize {
        match self.replies {
            Replies::Same => core,
            Replies::Any => 0,
        }
    }
}

fn address<T>(of: *const T) -> usize {
    of.addr()
}

/// Runs the load of a plan for whoever traces this process: prints where everything is, waits for a line, and prints what passed.
///
/// # Errors
/// When the load can't be made, or nobody reads.
pub fn traced(plan: Plan, to: &mut impl std::io::Write) -> Result<(), Failure> {
    let mut workload = Workload::new(plan)?;
    writeln!(to, "{}", serde_json::to_string(&workload.map())?)?;
    to.flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    let passed = workload.run()?;
    writeln!(to, "{}", serde_json::to_string(&passed)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::coherence::LINE;
    use super::*;
    use wedjat::state::Counter;

    fn plan(policy: &str, cores: usize, replies: Replies) -> Plan {
        Plan {
            cores,
            workers: 32,
            policy: policy.to_owned(),
            replies,
            outstanding: 0.8,
            warm_up: 20,
            bursts: 40,
            seed: 1,
        }
    }

    #[test]
    fn half_are_replies_to_tasks_that_were_sent() {
        for (policy, cores) in [("horus", 1), ("jsq", 2), ("lsq-smart", 3), ("round-robin", 16)] {
            for replies in [Replies::Same, Replies::Any] {
                let mut workload = Workload::new(plan(policy, cores, replies)).unwrap();
                let passed = workload.run().unwrap();
                let packets = (40 * cores * BURST) as u64;
                assert_eq!(passed, Passed { packets, replies: packets / 2 }, "{policy}");
                for core in &workload.cores {
                    assert_eq!(core.counters.read(Counter::Replies), 60 * BURST as u64 / 2);
                }
                let queued = workload.queues.iter().map(|&queue| usize::from(queue)).sum::<usize>();
                assert_eq!(queued, workload.plan.target(), "{policy}");
            }
        }
    }

    /// More tasks than workers: some wait in the leaf, and none is lost.
    #[test]
    fn tasks_wait_where_the_policy_lets_them() {
        let plan = Plan { outstanding: 8.0, ..plan("cfcfs", 2, Replies::Any) };
        let mut workload = Workload::new(plan).unwrap();
        let passed = workload.run().unwrap();
        assert!(passed.replies > 0 && passed.packets == 2 * passed.replies, "{passed:?}");
        let queued = workload.cores.iter().map(|core| core.counters.read(Gauge::Queued));
        assert!(queued.sum::<u64>() > 0);
        workload.in_system += 1;
        let told = workload.check().unwrap_err().to_string();
        assert!(told.contains("257 tasks in the system"), "{told}");
    }

    #[test]
    fn what_is_not_the_leafs_has_lines_of_its_own() {
        let workload = Workload::new(plan("horus", 3, Replies::Same)).unwrap();
        let map = serde_json::to_value(workload.map()).unwrap();
        let sections: Vec<Section> = serde_json::from_value(map["sections"].clone()).unwrap();
        for pair in sections.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{pair:?}");
        }
        let wire: Vec<_> = sections.iter().filter(|section| section.name == "wire").collect();
        assert_eq!(wire.len(), 2 * 3, "queues and packets of each core");
        for Section { start, end, .. } in wire {
            assert!(start.is_multiple_of(LINE) && end.is_multiple_of(LINE));
        }
    }
}
