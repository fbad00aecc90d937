//! The dataplane and the simulator make equal decisions. Each test records the events of the simulator's leaf
//! and sends them as packets through a [`Leaf`]. The same tasks must go to the same workers in the same
//! order.
//!
//! An [`Event`] is a change of time, an arrival, a reply, a load report without a reply (refresh), or an offer. In an
//! offer the policy chooses a worker for the longest waiting task; `None` means that the task goes on waiting. Other
//! tests pass the same events as calls to a [`Picker`], the library's scheduler without packets.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/rig/mod.rs"]
mod rig;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use wedjat::embed::{Choice, Options, Picker, Scheduler, TaskDescription, WorkerReport};
use wedjat::io::Buf;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::policy::signals::Protocol;
use wedjat::policy::{CATALOGUE, Core, Dispatcher, Entry, PolicySpec, Runs, Task, stream_seed};
use wedjat::role::Leaf;
use wedjat::state::{Counter, Report};
use wedjat::wire::checksum::PartialChecksum;
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Flow};
use wedjat_testbed::sim::hop::{Hop, HopDist, Hops};
use wedjat_testbed::sim::rack;
use wedjat_testbed::sim::stats::Observer;
use wedjat_testbed::sim::watched::Event;

const WORKERS: usize = 16;
/// Half of the workers are four times as fast as the rest.
const SPEEDS: [f64; WORKERS] = [1., 1., 1., 1., 1., 1., 1., 1., 4., 4., 4., 4., 4., 4., 4., 4.];
/// Id of the first worker.
const FIRST: u16 = 100;
const POOL: u16 = 7;
const SEED: u64 = 11;
const TASKS: u64 = 3000;
/// Addresses of the client (10.0.1.2), of the server (10.0.2.11), and of the leaf on both ports.
const CLIENT: u32 = 0x0A00_0102;
const SERVER: u32 = 0x0A00_020B;
const LEAF: [u32; 2] = [0x0A00_0101, 0x0A00_0201];
const LEAF_MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

/// Simulates a rack with one leaf under this policy. Returns all events at the leaf.
fn simulated(policy: &PolicySpec) -> Vec<Event> {
    let config = rack::Config {
        cores: rack::Cores::ONE,
        racks: vec![WORKERS],
        hops: Hops::usual(1),
        hop: Hop::new(HopDist::Horus, 5000.0),
        node_delay: 0,
        leaf: policy.clone(),
        spine: "random".parse().unwrap(),
        protocol: Protocol::Silent,
        service: "mix(0.5*exp(50us), 0.5*exp(500us))".parse().unwrap(),
        arrivals: "poisson".parse().unwrap(),
        load: 0.9,
        speeds: SPEEDS.to_vec(),
        tasks: TASKS,
        warmup: 0.1,
        loss: 0.0,
        script: Vec::new(),
        benchmarks: false, // a leaf has none
        as_process: false,
        sharing: None,
        measures_classes: false,
        seed: SEED,
        observer: Observer::hidden(),
    };
    let record = Rc::new(RefCell::new(Vec::new()));
    rack::run_watched(&config, Rc::clone(&record)).unwrap();
    record.take()
}

/// A leaf with the simulator's seeds, and the far ends of its ports.
struct Rig {
    leaf: Leaf<RingPort, FramePool>,
    /// Far ends of the leaf's ports.
    clients: RingPort,
    workers: RingPort,
    /// Time of the next poll.
    now_ns: u64,
    /// Number of the next task.
    sent: u16,
    /// True if tasks and replies carry an IP option, which keeps them out of the fast path.
    with_options: bool,
}

/// Returns the configuration of a leaf under this policy. Workers never time out, and the queue holds all tasks.
fn text(policy: &PolicySpec) -> String {
    let last = FIRST + WORKERS as u16 - 1;
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = {SEED}\nworker_timeout_ms = 0\npools_max = 1\nworkers_max = {WORKERS}\n\
         [[port]]\ndevice = 'c'\nside = 'clients'\nip_options = 'harmless'\nip = '10.0.1.1/24'\nmac = '{}'\n\
         [[port]]\ndevice = 'w'\nside = 'workers'\nip = '10.0.2.1/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\nqueue = {TASKS}\n\
         [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '{FIRST}-{last}'\npool = {POOL}\n",
        LEAF_MACS[0], LEAF_MACS[1]
    )
}

/// Creates a leaf that knows the client's MAC address and the workers' speeds.
fn rig(policy: &PolicySpec, with_options: bool) -> Rig {
    let mut staged = rig::stages(&text(policy), None);
    let neighbours = staged.table.neighbours();
    neighbours.set_static(neighbours.insert(0, CLIENT, 0), Mac([2, 0, 0, 0, 1, 2]));
    staged.stages[0].dispatcher_mut(0).unwrap().set_rates(&SPEEDS);
    // The frames of all tasks, which may wait, and those in the rings. 128 bytes hold the largest frame.
    let sizes = rig::Sizes { depth: 64, frames: TASKS as usize + 64, bytes: 128 };
    let rig::CoreRig { leaf, far: mut far_ends, .. } = rig::leaves(staged, sizes).0.remove(0);
    let (workers, clients) = (far_ends.remove(1), far_ends.remove(0));
    Rig { leaf, clients, workers, now_ns: 0, sent: 0, with_options }
}

/// Returns the frame with a no-op IP option: three no-operations and an end of list, behind the IPv4 header
/// at 14. Changes that header: its length (0x46: six words), the total length, and the checksum.
fn with_option(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(34..34, [1, 1, 1, 0]);
    frame[14] = 0x46;
    let total_len = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total_len.to_be_bytes());
    frame[24..26].fill(0);
    let checksum = PartialChecksum::default().bytes(&frame[14..38]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame
}

impl Rig {
    /// Builds a task (port 0) or a reply (port 1): header with extension, 27 bytes in all.
    fn frame(&self, header: Header, extension: Extension, port: usize) -> Vec<u8> {
        let mut frame = vec![0; udp::PAYLOAD + 27];
        header.emit(&mut frame[udp::PAYLOAD..]);
        extension.emit(&mut frame[udp::PAYLOAD..]);
        let (src, dst) = if port == 0 { (CLIENT, LEAF[0]) } else { (SERVER, CLIENT) };
        let (src_port, dst_port) = if port == 0 { (40_000, 1234) } else { (1234, 40_000) };
        let src_mac = Mac([2, 0, 0, 0, 9, 9]);
        let dst_mac = LEAF_MACS[port];
        Flow { src_mac, dst_mac, src, dst, src_port, dst_port }.emit(&mut frame, 27);
        if self.with_options { with_option(frame) } else { frame }
    }

    /// Sends a task from the client.
    fn arrive(&mut self, task: Task) {
        let header = Header { extended: true, ..Header::new_task(POOL, self.sent) };
        self.sent = self.sent.wrapping_add(1);
        let extension = Extension { class: task.class, ..Extension::default() };
        assert!(self.clients.send(&self.frame(header, extension, 0)));
    }

    /// Sends a worker's reply with this report. Its load is a 16.16 fixed-point number.
    fn reply(&mut self, report: &Report) {
        let qlen = (report.load.0 >> 16) as u16;
        let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
        let src = FIRST + report.member.0;
        let header = Header { code, extended: true, src, qlen, ..Header::new_task(POOL, 0) };
        let extension = Extension { service_ns: report.service_ns, ..Extension::default() };
        assert!(self.workers.send(&self.frame(header, extension, 1)));
    }

    /// Sends a report without a reply: a keep-alive to the leaf itself, always without an IP option.
    fn refresh(&mut self, report: &Report) {
        let queue = (report.load.0 >> 16) as u16;
        let alive = Header::keep_alive(POOL, FIRST + report.member.0, queue, 0);
        let mut frame = vec![0; udp::PAYLOAD + 27];
        Header { extended: true, ..alive }.emit(&mut frame[udp::PAYLOAD..]);
        let extension = Extension { service_ns: report.service_ns, ..Extension::default() };
        extension.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 9, 9]),
            dst_mac: LEAF_MACS[1],
            src: SERVER,
            dst: LEAF[1],
            src_port: 1234,
            dst_port: 1234,
        };
        flow.emit(&mut frame, 27);
        assert!(self.workers.send(&frame));
    }

    /// Polls the leaf until it sends no more tasks. Returns the tasks that it sent to workers: task number, worker,
    /// idle flag.
    fn decisions(&mut self) -> Vec<(u16, u16, bool)> {
        let mut decisions = Vec::new();
        loop {
            self.leaf.poll(self.now_ns);
            while self.clients.receive().is_some() {}
            let before = decisions.len();
            while let Some(frame) = self.workers.receive() {
                let datagram = udp::parse(frame.bytes(), false).unwrap();
                let header = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap();
                // In a task, `qlen` is 1 if the worker was chosen as idle.
                decisions.push((header.seq, header.dst, header.qlen == 1));
            }
            if decisions.len() == before {
                return decisions;
            }
        }
    }
}

/// Replays a record to a leaf packet by packet and compares all decisions.
fn replay(entry: &Entry, policy: &PolicySpec, record: &[Event], with_options: bool) {
    let mut rig = rig(policy, with_options);
    let mut decided = 0;
    let mut events = record.iter().peekable();
    while let Some(event) = events.next() {
        match event {
            // The simulator advances the policies' time before each event, a leaf by itself less often.
            Event::Time(now_ns) => {
                rig.now_ns = *now_ns;
                rig.leaf.stages_mut().tick(*now_ns, *now_ns);
            }
            Event::Arrival(task) => rig.arrive(*task),
            Event::Reply(report) => rig.reply(report),
            Event::Refresh(report) => rig.refresh(report),
            Event::Offer(_) => unreachable!("an offer without an arrival or a report"),
        }
        // The picks of the simulator that follow the event.
        let mut expected = Vec::new();
        while let Some(Event::Offer(pick)) =
            events.next_if(|event| matches!(event, Event::Offer(_)))
        {
            if let Some(pick) = pick {
                expected.push((decided as u16, FIRST + pick.member.0, pick.idle));
                decided += 1;
            }
        }
        let found = rig.decisions();
        let path = if with_options { "stages" } else { "fast path" };
        assert_eq!(found, expected, "{} in the {path} after {decided} tasks", entry.name);
    }
    assert_eq!(decided, TASKS, "{}: every task went to a worker", entry.name);
    let counters = rig.leaf.stages().counters();
    assert_eq!(counters.read(Counter::Scheduled), TASKS);
    assert_eq!(counters.dropped_total(), 0);
    assert!(counters.balances());
}

// promise: scheduling.1
#[test]
fn dataplane_and_simulator_decide_equally() {
    let mut held = 0;
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        let policy: PolicySpec = entry.name.parse().unwrap();
        let record = simulated(&policy);
        held += record.iter().filter(|event| **event == Event::Offer(None)).count();
        for with_options in [false, true] {
            replay(entry, &policy, &record, with_options);
        }
    }
    assert!(held > 0, "some tasks had to wait");
}

/// Returns a picker (the scheduler without packets, for programs that report tasks in calls). It has the leaf's
/// configuration without ports. A server for each speed sets the workers' speeds, which a picker reads only from its
/// configuration.
fn picker(policy: &PolicySpec) -> Picker {
    let text = text(policy);
    let ports = text.find("[[port]]").unwrap()..text.find("[[pool]]").unwrap();
    let slow_and_fast = [(FIRST, 1.0), (FIRST + WORKERS as u16 / 2, 4.0)].map(|(first, speed)| {
        let last = first + WORKERS as u16 / 2 - 1;
        let ip = format!("10.0.2.{first}");
        format!(
            "[[server]]\nip = '{ip}'\nworkers = '{first}-{last}'\npool = {POOL}\nspeed = {speed}\n"
        )
    });
    let servers = text.find("[[server]]").unwrap();
    let text = text[..ports.start].to_owned() + &text[ports.end..servers] + &slow_and_fast.concat();
    let options = Options { ticks_hz: 1_000_000_000, macs: &[] };
    Scheduler::from_toml(&text, &options).unwrap().picker(0).unwrap()
}

/// Passes a record to a leaf as packets and to a picker as calls, and compares all decisions. Returns the number of
/// tasks that had to wait.
fn report_to_picker(policy: &PolicySpec, record: &[Event]) -> usize {
    let (mut rig, mut picker) = (rig(policy, false), picker(policy));
    let (mut now, mut decided, mut held, mut arrived) = (0, 0, 0, 0);
    // Queued tasks in the order of arrival; they leave in the same order.
    let mut waiting = VecDeque::new();
    for event in record {
        // Task number, worker and idle flag of each task that the picker sends; queued tasks have no flag.
        let mut found = Vec::new();
        match event {
            // Leaf and picker advance the policies' time by themselves.
            Event::Time(now_ns) => (now, rig.now_ns) = (*now_ns, *now_ns),
            Event::Offer(_) => continue,
            Event::Arrival(task) => {
                rig.arrive(*task);
                let reported = TaskDescription { id: arrived, class: task.class };
                let mut choices = [Choice::Refused];
                picker.pick(POOL, now, &[reported], &mut choices).unwrap();
                match choices[0] {
                    Choice::Worker { worker, idle } => {
                        found.push((arrived as u16, worker, Some(idle)))
                    }
                    Choice::Held => waiting.push_back(arrived),
                    other => panic!("{policy}: {other:?}"),
                }
                held += usize::from(choices[0] == Choice::Held);
                arrived += 1;
            }
            Event::Reply(report) | Event::Refresh(report) => {
                let answers = matches!(event, Event::Reply(_));
                if answers {
                    rig.reply(report)
                } else {
                    rig.refresh(report)
                }
                let queue = (report.load.0 >> 16) as u16;
                let (worker, service_ns) = (FIRST + report.member.0, report.service_ns);
                let class = report.class;
                let reported = WorkerReport { worker, queue, service_ns, class, answers };
                assert_eq!(picker.report(&[reported]), 1);
            }
        }
        while let Some(released) = picker.release(now) {
            assert_eq!(Some(released.id), waiting.pop_front(), "{policy}: first in, first out");
            found.push((released.id as u16, released.outcome.unwrap(), None));
        }
        let in_packets = rig.decisions();
        let mut pairs = in_packets.iter().zip(&found);
        assert!(
            in_packets.len() == found.len()
                && pairs.all(|(leaf, reported)| {
                    (leaf.0, leaf.1) == (reported.0, reported.1)
                        && reported.2.is_none_or(|idle| idle == leaf.2)
                }),
            "{policy} after {decided} tasks: {in_packets:?} in packets, {found:?} by reports"
        );
        decided += found.len();
    }
    assert_eq!((decided as u64, arrived), (TASKS, TASKS), "{policy}: every task went to a worker");
    let (leaf, reported) = (rig.leaf.stages().counters(), picker.counters());
    for counter in
        [Counter::RxPackets, Counter::Scheduled, Counter::Replies, Counter::SurplusReplies]
    {
        assert_eq!(leaf.read(counter), reported.read(counter), "{policy}: {counter:?}");
    }
    assert!(reported.balances());
    held
}

// promise: library.1
#[test]
fn reported_tasks_decide_like_packets() {
    let mut held = 0;
    for entry in CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine) {
        // Reports to a picker carry no time of arrival, so that `eft` measures other round trips there.
        if entry.name == "eft" {
            continue;
        }
        let policy: PolicySpec = entry.name.parse().unwrap();
        held += report_to_picker(&policy, &simulated(&policy));
    }
    assert!(held > 0, "some tasks had to wait");
}

#[test]
fn another_seed_decides_otherwise() {
    // Check of the comparisons above: they would fail if the leaf drew from another random stream.
    let policy: PolicySpec = "random".parse().unwrap();
    let picks = |events: Vec<Event>| -> Vec<_> {
        events.into_iter().filter(|event| matches!(event, Event::Offer(_))).collect()
    };
    let simulated = picks(simulated(&policy));
    let view = wedjat::state::View::heap(WORKERS, 1).remove(0);
    let mut other = Dispatcher::new(&policy, view, Core::ONLY, stream_seed(SEED + 1, 0, 0));
    // Counts the decisions in which the two streams pick different workers.
    let differs = simulated.iter().filter(|event| {
        let mut picks = [None];
        other.schedule(&[Task::default()], &mut picks);
        **event != Event::Offer(picks[0])
    });
    assert!(differs.count() > TASKS as usize / 2);
}
