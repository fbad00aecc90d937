//! Direct return at the agent: replies that go to the client without passing the leaf, and completion reports. The leaf
//! forwards a task with the client's destination address, from which the agent answers. A completion report tells the
//! leaf of up to 30 tasks answered so. If the next hop to the client is unknown, the reply passes the leaf.
//! `promise: ID` names the tested promise of SPECIFICATION.md.
//!
//! A `Rig` is an agent with one port in memory, at whose far end (`wire`) the test plays leaf, clients and router.
//! `send` delivers a frame and polls the agent a tick (microsecond) later; `after` polls it some ticks later. `work`
//! lets a worker serve one task in the test's thread. The `worker` of a completion is the one that the task named, and
//! `left` is the number of unfinished tasks that name it.

use wedjat_core::wire::completion::{self, COMPLETIONS_MAX, Completion};
use wedjat_core::wire::task::FULL;

use super::super::fixtures::SERVICE_NS;
use super::*;

/// Address at which clients reach the leaf: 10.0.1.1.
const SERVICE: u32 = 0x0A00_0101;
/// Router to the clients over IPv4: 10.0.2.14. Over IPv6 they are in the agent's network.
const ROUTER: u32 = 0x0A00_020E;
/// MAC address of the next hop to clients: the router's or the client's.
const HOP_MAC: Mac = Mac([2, 0, 0, 0, 9, 9]);

/// Number of a client, which its replies return.
const CLIENT_ID: u16 = 77;
/// UDP port of a client.
const CLIENT_PORT: u16 = 40_000;
/// UDP port to which clients send tasks.
const TASK_PORT: u16 = 1234;
/// Number of workers: 10, 11, 12 and 13.
const WORKERS: u16 = 4;
/// Maximum number of tasks at a worker, and slots of its channel.
const BOUND: u16 = 8;
/// Length of the agent's queue in tests that do not fill it.
const QUEUE: usize = 16;
/// Maximum time in ticks for which a completion waits for others in a report.
const REPORT_DELAY: u64 = 5;
/// Interval of the agent's periodic work in ticks.
const TICK: u64 = 100;
/// Value of `qlen` in a task without flags.
const NO_FLAGS: u8 = 0;

/// Agent with a pool of workers 10 to 13, and its workers.
struct DirectRig {
    rig: Rig,
    /// Workers in the order of their ids.
    worker_ends: Vec<WorkerEnd>,
}

/// A packet of the agent.
#[derive(Debug)]
enum Sent {
    /// Question for the MAC address of this host, with its frame.
    Question(IpAddr, Vec<u8>),
    /// Reply or refusal for the client, with the MAC address of the next hop.
    Response { src: IpAddr, next_hop: Mac, header: Header },
    /// Completion report.
    Report(Vec<Completion>),
}

impl DirectRig {
    /// Creates the agent and attaches its workers. It knows its leaf's MAC address, but not that of the next hop to the
    /// client.
    fn unresolved(family: Family, queue: usize, overflow: Overflow) -> Self {
        let text = text(&format!("jbsq(k={BOUND})"), WORKERS, queue, overflow);
        let text = text.replace("[[pool]]", "gateway = '10.0.2.14'\n[[pool]]");
        let mut rig = Rig::of_text(family, &text, None);
        // The agent learns the leaf's MAC address from the leaf's question.
        rig.send(&family.question(LEAF, AGENT));
        let worker_ends = (0..usize::from(WORKERS)).map(|at| rig.attach_worker(at)).collect();
        let mut direct = Self { rig, worker_ends };
        direct.sent();
        direct
    }

    /// Same as [`DirectRig::unresolved`], with a known next hop to the client. A first task makes the agent ask for it.
    fn new(family: Family, queue: usize, overflow: Overflow) -> Self {
        let mut direct = Self::unresolved(family, queue, overflow);
        direct.send_task(10, 0, NO_FLAGS);
        direct.serve_all();
        direct.rig.after(TICK);
        for sent in direct.sent() {
            if let Sent::Question(_, frame) = sent {
                direct.rig.send(&family.answer(&frame, HOP_MAC));
            }
        }
        direct.sent();
        direct
    }

    /// Delivers a task from the leaf, with the client's destination and these flags in `qlen`. The task names this
    /// worker, for which the leaf counts it; the agent may give it to another one. The flag `FULL` says that the leaf
    /// may send the named worker no more tasks.
    fn send_task(&mut self, worker: u16, seq: u16, flags: u8) {
        self.send_task_of(Header::new_task(POOL, seq), worker, flags);
    }

    /// Same as [`DirectRig::send_task`], with this header. The fixture's extension has class 4.
    fn send_task_of(&mut self, task: Header, worker: u16, flags: u8) {
        let header = Header { dst: worker, src: CLIENT_ID, qlen: flags.into(), ..task };
        self.send_to_service(LEAF_MAC, &header);
    }

    /// Delivers a packet of the client with the client's destination, from the host with this MAC address.
    fn send_to_service(&mut self, src_mac: Mac, header: &Header) {
        let (src, dst) = ((CLIENT, src_mac), (SERVICE, CLIENT_PORT, TASK_PORT));
        let frame = self.rig.family.packet(src, dst, header, b"x");
        self.rig.send(&frame);
    }

    /// Lets the workers serve all tasks that they have.
    fn serve_all(&mut self) {
        while self.worker_ends.iter_mut().any(work) {}
    }

    /// Takes the packets that the agent has sent, and checks their addresses. Skips registrations, keep-alives and
    /// answers to questions for MAC addresses.
    fn sent(&mut self) -> Vec<Sent> {
        let family = self.rig.family;
        let packets = std::iter::from_fn(|| self.rig.wire.receive());
        let read = |packet: Frame| {
            let bytes = packet.bytes();
            if let Some(host) = family.question_target(bytes) {
                return Some(Sent::Question(host, bytes.to_vec()));
            }
            let is_of_neighbours = match family {
                Family::V4 => arp::Packet::parse(bytes).is_ok(),
                Family::V6 => ndp::Packet::parse(bytes).is_ok(),
            };
            if is_of_neighbours {
                return None;
            }
            let datagram = family.parse(bytes).unwrap();
            let payload = &bytes[datagram.payload()..usize::from(datagram.end)];
            let header = Header::parse(payload).unwrap();
            if header.code == Code::Completions {
                assert_eq!((datagram.src, datagram.dst), (family.ip(AGENT), family.ip(LEAF)));
                assert_eq!((ether::dst(bytes), header.pool), (LEAF_MAC, POOL));
                let entries = completion::entries(&header, payload).unwrap();
                let entries: Vec<_> = completion::parse_entries(entries).collect();
                assert_eq!(
                    header.src, entries[0].worker,
                    "the header names the first entry's worker"
                );
                return Some(Sent::Report(entries));
            }
            if !header.code.is_reply() {
                assert!(matches!(header.code, Code::WorkerId | Code::KeepAlive), "{header:?}");
                return None;
            }
            assert_eq!((datagram.dst, datagram.dst_port), (family.ip(CLIENT), CLIENT_PORT));
            assert_eq!((header.dst, header.authenticated), (CLIENT_ID, false));
            Some(Sent::Response { src: datagram.src, next_hop: ether::dst(bytes), header })
        };
        packets.filter_map(read).collect()
    }
}

// promise: packets.2
#[test]
fn agent_answers_the_client_itself() {
    for family in FAMILIES {
        let mut direct = DirectRig::unresolved(family, QUEUE, Overflow::Drop);
        // The next hop is not known yet, so the first reply passes the leaf.
        direct.send_task(10, 1, NO_FLAGS);
        direct.serve_all();
        direct.rig.after(TICK);
        let mut sent = direct.sent();
        sent.sort_by_key(|sent| matches!(sent, Sent::Question(..)));
        let [Sent::Response { src, next_hop: LEAF_MAC, .. }, Sent::Question(host, question)] =
            &sent[..]
        else {
            panic!("{sent:?}")
        };
        let hop = if family == Family::V4 { ROUTER } else { CLIENT };
        assert_eq!((*src, *host), (family.ip(AGENT), family.ip(hop)));
        direct.rig.send(&family.answer(question, HOP_MAC));
        // Now replies leave by the next hop, from the address to which the client sent the task.
        direct.send_task(11, 2, NO_FLAGS);
        direct.serve_all();
        direct.rig.after(1);
        let sent = direct.sent();
        let [Sent::Response { src, next_hop: HOP_MAC, header }] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!((*src, header.src, header.seq), (family.ip(SERVICE), 11, 2));
        assert_eq!(header.code, Code::TaskDoneIdle);
        direct.rig.after(REPORT_DELAY);
        let sent = direct.sent();
        let [Sent::Report(entries)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(
            entries[..],
            [Completion { worker: 11, class: 0, left: 0, service_ns: SERVICE_NS }]
        );
        // Two replies, of which one passed the leaf.
        let counters = direct.rig.agent.counters();
        let counts = [Counter::Replies, Counter::CompletionReports];
        assert_eq!(counts.map(|counter| counters.read(counter)), [2, 1]);
        direct.rig.assert_balanced();
    }
}

// promise: packets.2
#[test]
fn thirty_completions_make_a_report() {
    for family in FAMILIES {
        let mut direct = DirectRig::new(family, QUEUE, Overflow::Drop);
        // Two tasks more than a report holds, named for workers 10 and 11 in turn.
        const TASKS: usize = COMPLETIONS_MAX + 2;
        for seq in 0..TASKS as u16 {
            direct.send_task(10 + seq % 2, seq, NO_FLAGS);
        }
        direct.sent();
        direct.serve_all();
        direct.rig.after(1);
        let sent = direct.sent();
        let reports: Vec<_> = sent.iter().filter(|sent| matches!(sent, Sent::Report(_))).collect();
        let [Sent::Report(entries)] = &reports[..] else { panic!("{sent:?}") };
        assert_eq!(
            (entries.len(), sent.len()),
            (COMPLETIONS_MAX, TASKS + 1),
            "replies and a report"
        );
        direct.rig.after(REPORT_DELAY);
        let sent = direct.sent();
        let [Sent::Report(entries)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((entries.len(), entries[1].left), (2, 0), "the last two, and no task is left");
        direct.rig.assert_balanced();
    }
}

// promise: packets.2, scheduling.3
#[test]
fn completions_have_the_classes_of_their_tasks() {
    for family in FAMILIES {
        const FULL_QUEUE: u16 = 1;
        let mut direct = DirectRig::new(family, FULL_QUEUE.into(), Overflow::Refuse);
        let task = |seq, extended| Header { extended, ..Header::new_task(POOL, seq) };
        for (worker, extended) in [(10, true), (11, false), (12, true)] {
            direct.send_task_of(task(worker, extended), worker, NO_FLAGS);
        }
        direct.serve_all();
        direct.rig.after(1);
        direct.rig.after(REPORT_DELAY);
        // Only the last of the next tasks is refused.
        for seq in 0..=WORKERS * BOUND + FULL_QUEUE {
            direct.send_task_of(task(seq, true), 13, NO_FLAGS);
        }
        direct.rig.after(REPORT_DELAY);
        let reports = direct.sent().into_iter().filter_map(|sent| match sent {
            Sent::Report(entries) => Some(entries),
            _ => None,
        });
        let mut entries: Vec<_> = reports.flatten().collect();
        entries.sort_by_key(|entry| entry.worker);
        let found: Vec<_> =
            entries.iter().map(|done| (done.worker, done.class, done.service_ns)).collect();
        assert_eq!(
            found,
            [(10, 4, SERVICE_NS), (11, 0, SERVICE_NS), (12, 4, SERVICE_NS), (13, 4, 0)]
        );
        for _ in 0..2 {
            direct.serve_all();
            direct.rig.after(TICK);
        }
        direct.rig.assert_balanced();
    }
}

// promise: packets.2, scheduling.2
#[test]
fn full_worker_reports_at_once() {
    let mut direct = DirectRig::new(Family::V4, QUEUE, Overflow::Drop);
    let is_report = |sent: &Sent| matches!(sent, Sent::Report(_));
    // The agent normally collects completions for 5 us. But after a task with the flag `FULL`, tasks may wait at the
    // leaf for a completion of the named worker. So the agent reports the next completion at once, and only that one.
    direct.send_task(10, 1, NO_FLAGS);
    direct.send_task(10, 2, FULL);
    for reported in [true, false] {
        assert!(direct.worker_ends.iter_mut().any(work));
        direct.rig.after(1);
        assert_eq!(direct.sent().iter().any(is_report), reported);
    }
    // The completion of the second task still waits when another task with `FULL` arrives. The leaf did not know of the
    // completion when it counted the worker as full. So the agent reports it at once.
    direct.send_task(10, 3, FULL);
    assert!(direct.sent().iter().any(is_report));
    // Its `FULL` also makes the next completion of worker 10 urgent.
    direct.serve_all();
    direct.rig.after(1);
    assert!(direct.sent().iter().any(is_report));
    direct.rig.assert_balanced();
}

// promise: packets.2, trust.2
#[test]
fn only_tasks_of_leaves_may_have_foreign_destinations() {
    for family in FAMILIES {
        let mut direct = DirectRig::new(family, QUEUE, Overflow::Drop);
        // A task from a host that is no leaf.
        let task = Header { dst: 10, src: CLIENT_ID, ..Header::new_task(POOL, 1) };
        direct.send_to_service(Mac([2, 0, 0, 0, 0, 7]), &task);
        assert_eq!(direct.rig.dropped(DropReason::OtherAddress), 1);
        // Packets from the leaf that are no tasks: a probe, and the acknowledgement of a registration.
        const LEAF_ID: u16 = 9;
        let (probe, acknowledged) =
            (Header::queue_probe(POOL, LEAF_ID, 10, 1), task.acknowledged_by(LEAF_ID, 100));
        for header in [probe, acknowledged] {
            direct.send_to_service(LEAF_MAC, &header);
        }
        assert_eq!(direct.rig.dropped(DropReason::OtherAddress), 3);
        direct.serve_all();
        direct.rig.after(TICK);
        assert!(direct.sent().is_empty());
        direct.rig.assert_balanced();
    }
}

// promise: packets.2
#[test]
fn refusal_is_direct_and_reported() {
    for family in FAMILIES {
        const FULL_QUEUE: u16 = 1;
        let mut direct = DirectRig::new(family, FULL_QUEUE.into(), Overflow::Refuse);
        // The agent fills all workers and the queue, although the tasks name one worker.
        let accepted = WORKERS * BOUND + FULL_QUEUE;
        for seq in 0..accepted {
            direct.send_task(10, seq, NO_FLAGS);
        }
        direct.sent();
        direct.send_task(12, accepted, NO_FLAGS);
        let sent = direct.sent();
        let [Sent::Response { src, next_hop: HOP_MAC, header }] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!((*src, header.seq), (family.ip(SERVICE), accepted));
        assert_eq!(header.code, Code::TaskRefused);
        direct.rig.after(REPORT_DELAY);
        let sent = direct.sent();
        let [Sent::Report(entries)] = &sent[..] else { panic!("{sent:?}") };
        // No other task named worker 12.
        assert_eq!(entries[..], [Completion { worker: 12, class: 0, left: 0, service_ns: 0 }]);
        direct.serve_all();
        direct.rig.after(TICK); // gives the waiting task to a worker
        direct.serve_all();
        direct.rig.assert_balanced();
    }
}

// promise: packets.2
#[test]
fn closing_agent_reports_its_last_completions() {
    let mut direct = DirectRig::new(Family::V4, QUEUE, Overflow::Drop);
    direct.send_task(10, 1, NO_FLAGS);
    direct.serve_all();
    direct.rig.after(1); // less than the delay of a report
    let DirectRig { rig: Rig { agent, mut wire, .. }, .. } = direct;
    let ports = agent.close(); // lives until the wire is read
    let codes = std::iter::from_fn(|| wire.receive()).map(|frame| {
        let bytes = frame.bytes();
        Header::parse(&bytes[udp::PAYLOAD..]).unwrap().code
    });
    assert_eq!(codes.last(), Some(Code::Completions));
    drop(ports);
}
