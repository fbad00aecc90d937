//! Direct return at the agent: replies that go to the client without passing the leaf, and completion reports. The leaf
//! forwards a task with the client's destination address, from which the agent answers. A completion report tells the
//! leaf of up to 30 tasks answered so. If the next hop to the client is unknown, the reply passes the leaf.
//!
//! A `Rig` is an agent with one port in memory, at whose far end (`wire`) the test plays leaf, clients and router.
//! `send` delivers a frame, and `after` polls the agent some microseconds later. `work` lets a worker serve a task in
//! the test's thread.

use wedjat_core::wire::completion::{self, COMPLETIONS_MAX, Completion};
use wedjat_core::wire::task::FULL;

use super::*;

/// Address at which clients reach the leaf: 10.0.1.1.
const SERVICE: u32 = 0x0A00_0101;
/// Router to the clients over IPv4: 10.0.2.14. Over IPv6 they are in the agent's network.
const ROUTER: u32 = 0x0A00_020E;
/// MAC address of the next hop to clients: the router's or the client's.
const HOP_MAC: Mac = Mac([2, 0, 0, 0, 9, 9]);

/// Agent with a pool of workers 10 to 13, and its workers.
struct Direct {
    rig: Rig,
    /// Workers in the order of their ids.
    worker_ends: Vec<WorkerEnd>,
}

/// A packet of the agent.
#[derive(Debug)]
enum Sent {
    /// Question for the MAC address of this host, with its frame.
    Question(IpAddr, Vec<u8>),
    /// Response to the client: source address, MAC address of the next hop, and task header.
    Response(IpAddr, Mac, Header),
    /// Completion report.
    Report(Vec<Completion>),
}

impl Direct {
    /// Creates the agent. It knows its leaf's MAC address, but none of a next hop to clients.
    fn unresolved(family: Family, queue: usize, overflow: Overflow) -> Self {
        let text = text("jbsq(k=8)", 4, queue, overflow);
        let text = text.replace("[[pool]]", "gateway = '10.0.2.14'\n[[pool]]");
        let mut rig = Rig::of_text(family, &text, None);
        rig.send(&family.question(LEAF, AGENT));
        let worker_ends = (0..4).map(|at| rig.attach_worker(at)).collect();
        let mut direct = Self { rig, worker_ends };
        direct.sent();
        direct
    }

    /// Same as [`Direct::unresolved`], with a known next hop to the client.
    fn new(family: Family, queue: usize, overflow: Overflow) -> Self {
        let mut direct = Self::unresolved(family, queue, overflow);
        direct.task(10, 0, 0);
        direct.work();
        direct.rig.after(100);
        for sent in direct.sent() {
            if let Sent::Question(_, frame) = sent {
                direct.rig.send(&family.answer(&frame, HOP_MAC));
            }
        }
        direct.sent();
        direct
    }

    /// Delivers a task for this worker from the leaf, with the client's destination and these flags in `qlen`. The flag
    /// `FULL` says that the worker has no room for another task, as the leaf counts.
    fn task(&mut self, worker: u16, seq: u16, flags: u8) {
        let header =
            Header { dst: worker, src: 77, qlen: flags.into(), ..Header::new_task(POOL, seq) };
        let ends = ((CLIENT, LEAF_MAC), (SERVICE, 40_000, 1234));
        let frame = self.rig.family.packet(ends.0, ends.1, &header, b"x");
        self.rig.send(&frame);
    }

    /// Lets the workers serve all tasks that they have.
    fn work(&mut self) {
        while self.worker_ends.iter_mut().any(work) {}
    }

    /// Returns the packets of the agent, except registrations.
    fn sent(&mut self) -> Vec<Sent> {
        let family = self.rig.family;
        let packets = std::iter::from_fn(|| self.rig.wire.receive());
        let read = |packet: Frame| {
            let bytes = packet.bytes();
            if let Some(host) = family.question_target(bytes) {
                return Some(Sent::Question(host, bytes.to_vec()));
            }
            let datagram = family.parse(bytes).ok()?;
            let payload = &bytes[datagram.payload()..usize::from(datagram.end)];
            let header = Header::parse(payload).unwrap();
            if header.code == Code::Completions {
                assert_eq!((datagram.src, datagram.dst), (family.ip(AGENT), family.ip(LEAF)));
                assert_eq!((ether::dst(bytes), header.pool), (LEAF_MAC, POOL));
                let entries = completion::entries(&header, payload).unwrap();
                let entries: Vec<_> = completion::parse_entries(entries).collect();
                assert_eq!(header.src, entries[0].worker);
                return Some(Sent::Report(entries));
            }
            let is_response = header.code.is_reply();
            is_response.then(|| {
                assert_eq!((datagram.dst, datagram.dst_port), (family.ip(CLIENT), 40_000));
                assert_eq!((header.dst, header.authenticated), (77, false));
                Sent::Response(datagram.src, ether::dst(bytes), header)
            })
        };
        packets.filter_map(read).collect()
    }
}

// promise: packets.2
#[test]
fn agent_answers_the_client_itself() {
    for family in FAMILIES {
        let mut direct = Direct::unresolved(family, 16, Overflow::Drop);
        // The next hop is not known yet, so the first reply passes the leaf.
        direct.task(10, 1, 0);
        direct.work();
        direct.rig.after(100);
        let mut sent = direct.sent();
        sent.sort_by_key(|sent| matches!(sent, Sent::Question(..)));
        let [Sent::Response(src, LEAF_MAC, _), Sent::Question(host, question)] = &sent[..] else {
            panic!("{sent:?}")
        };
        let hop = if family == Family::V4 { ROUTER } else { CLIENT };
        assert_eq!((*src, *host), (family.ip(AGENT), family.ip(hop)));
        direct.rig.send(&family.answer(question, HOP_MAC));
        // Now replies leave by the next hop, from the address to which the client sent the task.
        direct.task(11, 2, 0);
        direct.work();
        direct.rig.after(1);
        let sent = direct.sent();
        let [Sent::Response(src, HOP_MAC, header)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((*src, header.src, header.seq), (family.ip(SERVICE), 11, 2));
        assert_eq!(header.code, Code::TaskDoneIdle);
        // The report follows within 5 us.
        direct.rig.after(5);
        let sent = direct.sent();
        let [Sent::Report(entries)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(entries[..], [Completion { worker: 11, left: 0, service_ns: 1500 }]);
        let counters = direct.rig.agent.counters();
        let counts = [Counter::Replies, Counter::CompletionReports];
        assert_eq!(counts.map(|counter| counters.read(counter)), [2, 1]);
        direct.rig.balanced();
    }
}

// promise: packets.2
#[test]
fn thirty_completions_make_a_report() {
    for family in FAMILIES {
        let mut direct = Direct::new(family, 16, Overflow::Drop);
        for seq in 0..32 {
            direct.task(10 + seq % 2, seq, 0);
        }
        direct.sent();
        direct.work();
        direct.rig.after(1);
        let sent = direct.sent();
        let reports: Vec<_> = sent.iter().filter(|sent| matches!(sent, Sent::Report(_))).collect();
        let [Sent::Report(entries)] = &reports[..] else { panic!("{sent:?}") };
        assert_eq!((entries.len(), sent.len()), (COMPLETIONS_MAX, 32 + 1));
        direct.rig.after(5);
        let sent = direct.sent();
        let [Sent::Report(entries)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((entries.len(), entries[1].left), (2, 0), "no task is left at the end");
        direct.rig.balanced();
    }
}

// promise: packets.2, scheduling.2
#[test]
fn full_worker_reports_at_once() {
    let mut direct = Direct::new(Family::V4, 16, Overflow::Drop);
    let is_report = |sent: &Sent| matches!(sent, Sent::Report(_));
    // The agent normally collects completions for 5 us. It reports at once if the leaf cannot send the worker a task
    // before: here after the first completion, because the second task filled the worker.
    direct.task(10, 1, 0);
    direct.task(10, 2, FULL);
    for reported in [true, false] {
        assert!(direct.worker_ends.iter_mut().any(work));
        direct.rig.after(1);
        assert_eq!(direct.sent().iter().any(is_report), reported);
    }
    // The completion of task 2 still waits when a task fills the worker. The leaf did not know of the completion, so
    // the agent reports it at once.
    direct.task(10, 3, FULL);
    assert!(direct.sent().iter().any(is_report));
    direct.work();
    direct.rig.after(1);
    assert!(direct.sent().iter().any(is_report));
    direct.rig.balanced();
}

// promise: packets.2, trust.2
#[test]
fn only_leaves_may_send_foreign_destinations() {
    for family in FAMILIES {
        let mut direct = Direct::new(family, 16, Overflow::Drop);
        let header = Header { dst: 10, src: 77, ..Header::new_task(POOL, 1) };
        let other = Mac([2, 0, 0, 0, 0, 7]);
        let ends = |mac| ((CLIENT, mac), (SERVICE, 40_000, 1234));
        let (from, to) = ends(other);
        direct.rig.send(&family.packet(from, to, &header, b"x"));
        assert_eq!(direct.rig.dropped(DropReason::OtherAddress), 1);
        // Leaves may send nothing else there.
        let (from, to) = ends(LEAF_MAC);
        for header in [Header::queue_probe(POOL, 9, 10, 1), header.acknowledged_by(9, 100)] {
            direct.rig.send(&family.packet(from, to, &header, b"x"));
        }
        assert_eq!(direct.rig.dropped(DropReason::OtherAddress), 3);
        direct.work();
        direct.rig.after(100);
        assert!(direct.sent().is_empty());
        direct.rig.balanced();
    }
}

// promise: packets.2
#[test]
fn refusal_is_direct_and_reported() {
    for family in FAMILIES {
        let mut direct = Direct::new(family, 1, Overflow::Refuse);
        // The workers hold eight tasks each, and one waits.
        for seq in 0..33 {
            direct.task(10, seq, 0);
        }
        direct.sent();
        direct.task(12, 40, 0);
        let sent = direct.sent();
        let [Sent::Response(src, HOP_MAC, header)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((*src, header.code, header.seq), (family.ip(SERVICE), Code::TaskRefused, 40));
        direct.rig.after(5);
        let sent = direct.sent();
        let [Sent::Report(entries)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(entries[..], [Completion { worker: 12, left: 0, service_ns: 0 }]);
        direct.work();
        direct.rig.after(100);
        direct.work();
        direct.rig.balanced();
    }
}

// promise: packets.2
#[test]
fn closing_agent_reports_its_last_completions() {
    let mut direct = Direct::new(Family::V4, 16, Overflow::Drop);
    direct.task(10, 1, 0);
    direct.work();
    direct.rig.after(1);
    let Direct { rig: Rig { agent, mut wire, .. }, .. } = direct;
    let ports = agent.close();
    let codes = std::iter::from_fn(|| wire.receive()).map(|frame| {
        let bytes = frame.bytes();
        Header::parse(&bytes[udp::PAYLOAD..]).unwrap().code
    });
    assert_eq!(codes.last(), Some(Code::Completions));
    drop(ports);
}
