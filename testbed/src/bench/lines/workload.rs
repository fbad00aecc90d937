//! Traced load: the dispatcher cores of one leaf, one after another in one thread, with bursts of half tasks and
//! half replies.
//!
//! Memory outside the leaf (packets and the queues of the emulated device) belongs to one core each. None of
//! its lines ever moves to another core. A leaf forwards tasks of clients to workers, and their replies to the clients.
//! A server registers its workers at the leaf before they get tasks.

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

use super::trace::{Map, NO_CORE, Section, WARM};

/// Ticks per second: one tick is a nanosecond.
const HZ: u64 = 1_000_000_000;
/// Interval of a core's bursts, for about ten million packets per second. The leaf does its periodic work every 32
/// intervals.
const BURST_NS: u64 = 3_125;
/// Interval of polls before the load.
const SETTLING_NS: u64 = 100_000;
/// Maximum number of polls per core until all neighbours are resolved and all workers registered.
const SETTLING_POLLS: usize = 4_000;
/// Maximum number of bytes in a frame.
const FRAME: usize = 256;
/// Bytes in the body of a task and of a reply.
const BODY: usize = 20;
/// Capacity of a core's transmit queue, which the load empties after each poll.
const SENT: usize = 256;
/// Number of clients.
const CLIENTS: u16 = 8;
/// Maximum number of workers per server.
const SERVED: u16 = 16;
/// Id of the only pool.
const POOL: u16 = 7;
/// IPv4 address of the leaf.
const LEAF: u32 = 0x0A00_0001;
/// MAC address of the leaf.
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// IPv4 address of the first client. Further clients have the addresses after it.
const FIRST_CLIENT: u32 = 0x0A00_0101;
/// IPv4 address of the first server. Further servers have the addresses after it.
const FIRST_SERVER: u32 = 0x0A00_0201;
/// UDP port of the clients.
const PORT: u16 = 40_000;

/// Core that receives a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Replies {
    /// The core that sent the task
    Same,
    /// Any core, at random
    Any,
}

/// Parameters of a load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of dispatcher cores.
    pub cores: usize,
    /// Number of workers.
    pub workers: u16,
    /// Policy with its parameters.
    pub policy: String,
    /// Core that receives a reply.
    pub replies: Replies,
    /// Tasks in the system per worker; increased if they are too few for full bursts on all cores.
    pub outstanding: f64,
    /// Warm-up bursts per core.
    pub warm_up: usize,
    /// Measured bursts per core.
    pub bursts: usize,
    /// Seed.
    pub seed: u64,
}

/// Packet counts of the measured bursts, by which the benchmark divides the transfers of cache lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedBursts {
    /// Packets given to the cores: tasks and replies.
    pub packets: u64,
    /// Number of replies among them.
    pub replies: u64,
}

/// Markers in the trace. A store to a core's word starts its turn; the last two words are [`NO_CORE`] and
/// [`WARM`].
#[repr(align(128))]
struct Turns([AtomicU64; CORES_MAX + 2]);

/// Markers of this process. The map names their address, so that the tracer recognises stores to them.
static TURNS: Turns = Turns([const { AtomicU64::new(0) }; CORES_MAX + 2]);

/// Marks a turn in the trace. The fences keep the compiler from moving the leaf's accesses across the store.
/// All cores run in one thread, so that the processor's order does not matter.
#[inline(never)]
fn mark(turn: usize) {
    compiler_fence(SeqCst);
    TURNS.0[turn].store(1, Relaxed);
    compiler_fence(SeqCst);
}

/// Memory of a packet: two pairs of cache lines that no other packet shares.
#[derive(Clone, Copy)]
#[repr(align(128))]
struct Memory([u8; FRAME]);

/// A packet, in memory that stays in place for the life of the process.
pub struct Packet {
    /// Room for the longest frame.
    memory: &'static mut Memory,
    /// Bytes of the frame.
    len: usize,
}

impl Packet {
    /// Sets the packet's bytes.
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

/// Queues of an emulated device for one core: arrived, sent and free packets.
#[repr(align(128))]
#[derive(Default)]
struct Queues {
    /// Packets that the core will receive.
    arrived: ArrayVec<Packet, BURST>,
    /// Packets that the core has sent.
    sent: ArrayVec<Packet, SENT>,
    /// Buffers for the core's own packets.
    free: ArrayVec<Packet, BURST>,
}

/// Port of one core, and its pool.
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

/// Leaf of a core, on cache lines of its own.
#[repr(align(128))]
struct CoreLeaf(Leaf<Wire, Wire>);

/// One core of the leaf with its device.
struct Core {
    leaf: Box<CoreLeaf>,
    /// Port and buffer pool of the core; shares its queues with the leaf.
    wire: Wire,
    /// The core's counters.
    counters: Counters,
    /// Packets for the next bursts.
    packets: Vec<Packet>,
    /// Address and size in bytes of the memory for all its packets.
    frames: (usize, usize),
    /// Answers to ARP requests. They arrive before other packets.
    answers: Vec<[u8; arp::FRAME_LEN]>,
}

/// A task of a client that is at a worker.
#[derive(Clone, Copy)]
struct Task {
    /// Id of the worker.
    worker: u16,
    /// Index of the client.
    client: u16,
}

/// Templates of frames, copied into packets.
struct Frames {
    /// Tasks by client.
    tasks: Vec<Vec<u8>>,
    /// Replies by server and client. `Frames::reply` writes the header of each reply.
    replies: Vec<Vec<u8>>,
}

/// Returns the MAC address of a host, derived from its IP address.
fn address_mac(address: u32) -> Mac {
    let [.., high, low] = address.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

/// Builds the frame of a task, reply or registration.
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

/// Returns the addresses of a packet from a host to the leaf, or through it to a client.
fn flow(from: u32, from_port: u16, to: u32, to_port: u16) -> Flow {
    let (src_mac, dst_mac) = (address_mac(from), LEAF_MAC);
    Flow { src_mac, dst_mac, src: from, dst: to, src_port: from_port, dst_port: to_port }
}

impl Frames {
    /// Builds the templates for this number of servers.
    fn new(servers: u16) -> Self {
        let clients = || (0..CLIENTS).map(|client| FIRST_CLIENT + u32::from(client));
        let header = Header { extended: true, ..Header::new_task(POOL, 1) };
        let task = |client| frame(&flow(client, PORT, LEAF, task::UDP_PORT), &header);
        let servers = (0..servers).map(|server| FIRST_SERVER + u32::from(server));
        let pairs = servers.flat_map(|server| clients().map(move |client| (server, client)));
        let reply = |(server, client)| frame(&flow(server, task::UDP_PORT, client, PORT), &header);
        Self { tasks: clients().map(task).collect(), replies: pairs.map(reply).collect() }
    }

    /// Writes a worker's reply to a client, with `queue` as the number of tasks left at the worker.
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

/// Cores of the leaf with the emulated clients, workers and devices.
pub struct Workload {
    plan: Plan,
    /// State that the cores share.
    table: Arc<Table>,
    cores: Vec<Core>,
    /// Templates of tasks and replies.
    frames: Frames,
    rng: Rng,
    /// Current time in nanoseconds.
    now: u64,
    /// Tasks at the workers. One list per core if replies reach the core that sent the task.
    outstanding: Vec<Vec<Task>>,
    /// Number of tasks at each worker.
    queues: Vec<u16>,
    /// Number of tasks given to the leaf and not yet answered.
    in_system: usize,
    /// Number of acknowledged registrations.
    registered: u16,
    /// Packets given to the leaf since the warm-up.
    counts: CountedBursts,
}

/// Returns the leaf's configuration.
fn config_text(plan: &Plan) -> String {
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

/// Reason why there is no load.
pub type Failure = Box<dyn Error>;

impl Workload {
    /// Creates a leaf with resolved neighbours, registered workers and the planned number of tasks.
    ///
    /// # Errors
    /// If the plan does not give a valid configuration, or a registration is not acknowledged.
    pub fn new(plan: Plan) -> Result<Self, Failure> {
        let config = Config::parse(Path::new("bench-lines"), &config_text(&plan))?;
        let table = assembly::table(&config, HZ)?;
        // Steps of the packet path, with the state of one core each.
        let stages = assembly::stages(&config, &Membership::of(&config), [LEAF_MAC], &table)?;
        // Packets of each core: for all tasks in the system, and a margin for bursts.
        let packets = plan.target() + 2 * SENT;
        let cores = stages.into_iter().enumerate().map(|(index, stages)| {
            // Leaked, so that the addresses in the map stay valid.
            let memory = vec![Memory([0; FRAME]); packets].leak();
            let frames = (address(memory.as_ptr()), size_of_val(memory));
            let packets = memory.iter_mut().map(|memory| Packet { memory, len: 0 });
            let mut packets: Vec<_> = packets.collect();
            let wire = Wire::default();
            wire.0.borrow_mut().free.extend(packets.drain(..BURST));
            let (commands, timing) = (Commands::default(), Timing { ticks_hz: HZ });
            let leaf = Leaf::new(stages, vec![wire.clone()], wire.clone(), commands, timing);
            let (leaf, counters) = (Box::new(CoreLeaf(leaf)), table.counters(index));
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
            counts: CountedBursts::default(),
            table,
            plan,
        };
        workload.settle()?;
        workload.fill_up();
        Ok(workload)
    }

    /// Returns the map of the memory, by which the tracer attributes accesses to sections.
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
            sections.push(section("leaf", address(&*core.leaf), size_of::<CoreLeaf>()));
            let queues = address(Rc::as_ptr(&core.wire.0));
            sections.push(section("wire", queues, size_of::<RefCell<Queues>>()));
            sections.push(section("wire", core.frames.0, core.frames.1));
        }
        Map::new(address(&TURNS) as u64, sections)
    }

    /// Runs the bursts of all cores in turn: first the warm-up, then the measured bursts.
    ///
    /// # Errors
    /// If the leaf drops a packet, or a task is missing at the end.
    pub fn run(&mut self) -> Result<CountedBursts, Failure> {
        for round in 0..self.plan.warm_up + self.plan.bursts {
            if round == self.plan.warm_up {
                self.counts = CountedBursts::default();
                mark(WARM);
            }
            for core in 0..self.cores.len() {
                self.arrive(core, BURST / 2);
                mark(core);
                self.cores[core].leaf.0.poll(self.now);
                mark(NO_CORE);
                self.take_sent(core);
            }
            self.now += BURST_NS;
        }
        self.check()?;
        Ok(self.counts)
    }

    /// Lets the leaf resolve the MAC addresses of all servers, then registers their workers, half a burst per
    /// poll.
    fn settle(&mut self) -> Result<(), Failure> {
        let workers = self.plan.workers;
        let mut registered = 0;
        for round in 0..SETTLING_POLLS {
            if self.has_servers() {
                let core = round % self.cores.len();
                let next = (registered + BURST as u16 / 2).min(workers);
                for worker in registered..next {
                    // With no task at the worker, and sequence number 1.
                    let header = Header::worker_id(POOL, worker, 0, 1);
                    let server = FIRST_SERVER + u32::from(worker / SERVED);
                    let registration =
                        frame(&flow(server, task::UDP_PORT, LEAF, task::UDP_PORT), &header);
                    self.deliver(core, |_, packet| packet.fill(&registration));
                }
                registered = next;
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

    /// Returns true if the leaf knows the MAC addresses of all servers. All cores share the neighbour table.
    fn has_servers(&self) -> bool {
        let stages = self.cores[0].leaf.0.stages();
        let mut servers = stages.network().servers();
        servers.all(|server| stages.neighbours().mac(server.slot).is_some())
    }

    /// Sends tasks without replies until the planned number is in the system.
    fn fill_up(&mut self) {
        while self.in_system < self.plan.target() {
            for core in 0..self.cores.len() {
                self.arrive(core, 0);
            }
            self.poll_all();
            self.now += BURST_NS;
        }
    }

    /// Answers the ARP requests of all cores, as far as their queues have room.
    fn answer_all(&mut self) {
        for core in 0..self.cores.len() {
            let room = self.cores[core].wire.0.borrow().arrived.remaining_capacity();
            self.answer(core, room);
        }
    }

    /// Answers at most `room` ARP requests of a core. Returns the number of answers.
    fn answer(&mut self, core: usize, room: usize) -> usize {
        let answers = &mut self.cores[core].answers;
        let answers = answers.split_off(answers.len().saturating_sub(room));
        for answer in &answers {
            self.deliver(core, |_, packet| packet.fill(answer));
        }
        answers.len()
    }

    /// Polls each core once and processes the packets that it sent.
    fn poll_all(&mut self) {
        for core in 0..self.cores.len() {
            self.cores[core].leaf.0.poll(self.now);
            self.take_sent(core);
        }
    }

    /// Lets a packet arrive at a core. Does nothing if the core has no free packet.
    fn deliver(&mut self, core: usize, write: impl FnOnce(&Frames, &mut Packet)) {
        let Core { wire, packets, .. } = &mut self.cores[core];
        if let Some(mut packet) = packets.pop() {
            write(&self.frames, &mut packet);
            wire.0.borrow_mut().arrived.push(packet);
        }
    }

    /// Lets the next burst arrive at a core: answers to ARP, then at most `replies` replies and at most half a
    /// burst of tasks, in random order. The number of tasks keeps the system at its target.
    fn arrive(&mut self, core: usize, replies: usize) {
        let arp_answers = self.answer(core, BURST);
        let room = (BURST - arp_answers) / 2;
        let mut ready = Vec::new();
        while ready.len() < replies.min(room) {
            let Some(task) = self.next_answered(core) else { break };
            self.queues[usize::from(task.worker)] -= 1;
            ready.push((task, self.queues[usize::from(task.worker)]));
        }
        self.in_system -= ready.len();
        let mut tasks = (self.plan.target() - self.in_system).min(room);
        self.in_system += tasks;
        self.counts.packets += (tasks + ready.len()) as u64;
        self.counts.replies += ready.len() as u64;
        while tasks + ready.len() > 0 {
            if self.rng.random_range(0..tasks + ready.len()) < tasks {
                tasks -= 1;
                let client = self.rng.random_range(0..CLIENTS);
                self.deliver(core, |frames, packet| {
                    packet.fill(&frames.tasks[usize::from(client)])
                });
            } else if let Some((task, queue)) = ready.pop() {
                self.deliver(core, |frames, packet| frames.reply(packet, task, queue));
            }
        }
    }

    /// Removes and returns a random task whose reply may reach the core. `None` if no worker has such a task.
    fn next_answered(&mut self, core: usize) -> Option<Task> {
        let tasks = &mut self.outstanding[self.plan.list_of(core)];
        let index = self.rng.random_range(0..tasks.len().max(1));
        (!tasks.is_empty()).then(|| tasks.swap_remove(index))
    }

    /// Takes the packets that a core sent, and returns their memory to it. Queues tasks at their workers, answers ARP
    /// requests, and counts acknowledged registrations.
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
                        // The source address of the IPv4 header begins at byte 26.
                        let client =
                            u32::from_be_bytes(std::array::from_fn(|index| frame[26 + index]));
                        let client = (client - FIRST_CLIENT) as u16;
                        self.outstanding[list].push(Task { worker: header.dst, client });
                        self.queues[usize::from(header.dst)] += 1;
                    }
                    Code::WorkerIdAck => self.registered += 1,
                    _ => {}
                }
            }
            packet.len = 0;
            // The pool comes first: the core takes buffers for its own packets from there.
            match free.is_full() {
                true => packets.push(packet),
                false => free.push(packet),
            }
        }
    }

    /// Checks that the leaf dropped no packet, and that each unanswered task is at a worker or queued in the leaf.
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
                "{} tasks in the system, but the workers hold {at_workers} and the leaf {held}",
                self.in_system
            );
            return Err(text.into());
        }
        Ok(())
    }
}

impl Plan {
    /// Returns the target number of tasks in the system: as planned, but enough for half a burst of replies per
    /// core, and a multiple of the number of cores.
    fn target(&self) -> usize {
        let load = (self.outstanding * f64::from(self.workers)).ceil() as usize;
        load.max(self.cores * BURST / 2).next_multiple_of(self.cores)
    }

    /// Returns the index of the task list for a core's replies. All cores share one if a reply may reach any
    /// core.
    fn list_of(&self, core: usize) -> usize {
        match self.replies {
            Replies::Same => core,
            Replies::Any => 0,
        }
    }
}

/// Returns the address of a pointer.
fn address<T>(pointer: *const T) -> usize {
    pointer.addr()
}

/// Runs the load for the process that traces this one. Prints the map, waits for a line, runs the load, and prints
/// the packet counts. The line confirms that the tracer has the map.
///
/// # Errors
/// If the load fails, or the output cannot be written.
pub fn traced(plan: Plan, out: &mut impl std::io::Write) -> Result<(), Failure> {
    let mut workload = Workload::new(plan)?;
    writeln!(out, "{}", serde_json::to_string(&workload.map())?)?;
    out.flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    let counts = workload.run()?;
    writeln!(out, "{}", serde_json::to_string(&counts)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::coherence::LINE;
    use super::*;
    use wedjat::state::Counter;

    /// Returns a plan of a short load.
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

    // promise: speed.2
    #[test]
    fn half_are_replies_to_tasks_that_were_sent() {
        for (policy, cores) in [("horus", 1), ("jsq", 2), ("lsq-smart", 3), ("round-robin", 16)] {
            for replies in [Replies::Same, Replies::Any] {
                let mut workload = Workload::new(plan(policy, cores, replies)).unwrap();
                let counts = workload.run().unwrap();
                let packets = (40 * cores * BURST) as u64;
                assert_eq!(counts, CountedBursts { packets, replies: packets / 2 }, "{policy}");
                // Half a burst in each of the 20 + 40 rounds.
                for core in &workload.cores {
                    assert_eq!(core.counters.read(Counter::Replies), 60 * BURST as u64 / 2);
                }
                let queued = workload.queues.iter().map(|&queue| usize::from(queue)).sum::<usize>();
                assert_eq!(queued, workload.plan.target(), "{policy}");
            }
        }
    }

    /// With more tasks than workers, some tasks queue in the leaf and none is lost.
    // promise: speed.2
    #[test]
    fn tasks_wait_where_the_policy_lets_them() {
        let plan = Plan { outstanding: 8.0, ..plan("cfcfs", 2, Replies::Any) };
        let mut workload = Workload::new(plan).unwrap();
        let counts = workload.run().unwrap();
        assert!(counts.replies > 0 && counts.packets == 2 * counts.replies, "{counts:?}");
        let queued = workload.cores.iter().map(|core| core.counters.read(Gauge::Queued));
        assert!(queued.sum::<u64>() > 0);
        // One more than the target of 8 tasks for each of 32 workers.
        workload.in_system += 1;
        let error = workload.check().unwrap_err().to_string();
        assert!(error.contains("257 tasks in the system"), "{error}");
    }

    // promise: speed.2
    #[test]
    fn foreign_memory_has_its_own_lines() {
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
