//! Direct return at the leaf: tasks that keep the client's destination, and completion reports in place of replies. The
//! server answers the client itself. It reports up to 30 completed tasks in a message to the leaf, each with its worker
//! and the worker's remaining tasks.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `assert_accounted`
//! ends the leaf, and checks that each received packet was sent on, consumed or dropped, and that every buffer is back.
//! Tests over both families use IPv4 addresses and frames, which the rig translates for IPv6.

use wedjat_core::wire::completion::{Completion, ENTRY_LEN};
use wedjat_core::wire::task::FULL;

use super::*;

/// Builds a leaf whose servers answer the clients themselves.
fn direct(family: Family, policy: &str) -> Rig {
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    let text = config_text(&networks, policy, true, 1, (64, Overflow::Drop));
    let text = text.replace("policy = ", "replies = 'direct'\npolicy = ");
    rigs_of(&family.text(&text), None, true, 256).remove(0)
}

/// Returns a server's completion report about pool 7. Its header announces `count` entries, a wrong number in malformed
/// reports. Each of the actual `entries` has a worker and its remaining tasks.
fn report_of(server: usize, count: u16, entries: &[(u16, u16)]) -> Vec<u8> {
    let entries: Vec<_> = { entries.iter() }
        .map(|&(worker, left)| Completion { worker, class: 0, left, service_ns: 1000 })
        .collect();
    report_with(server, count, &entries)
}

/// Same as [`report_of`], with these entries.
fn report_with(server: usize, count: u16, entries: &[Completion]) -> Vec<u8> {
    let first = entries.first().map_or(10, |entry| entry.worker);
    let header = Header::completions(7, first, count, 1);
    let mut payload = vec![0; header.len() + entries.len() * ENTRY_LEN];
    header.emit(&mut payload);
    Completion::emit_all(entries, &header, &mut payload);
    let flow = Flow {
        src_mac: server_mac(server),
        dst_mac: LEAF_MACS[WORKERS],
        src: SERVERS[server],
        dst: LEAF_WORKERS,
        src_port: 1234,
        dst_port: 1234,
    };
    frame(&flow, &payload)
}

/// Returns a server's well-formed completion report with these entries.
pub(super) fn report(server: usize, entries: &[(u16, u16)]) -> Vec<u8> {
    report_of(server, entries.len() as u16, entries)
}

// promise: packets.2
#[test]
fn direct_task_keeps_the_clients_destination() {
    for family in BOTH {
        let mut rig = direct(family, "horus");
        let (datagram, header, frame) = rig.one(CLIENTS, &task(5), WORKERS);
        assert_eq!((datagram.src, datagram.dst), (CLIENT, LEAF_CLIENTS));
        assert_eq!((datagram.src_port, datagram.dst_port), (40_000, 1234));
        let server = usize::from(header.dst - 10) / 4;
        assert_eq!(ether::dst(frame.bytes()), server_mac(server));
        // `qlen` has two flags: 1 for a worker from the idle list, and `FULL` for one that the task fills.
        assert_eq!((header.qlen, header.seq), (1, 5), "idle, and not full without a bound");
        drop(frame);
        // The server may still answer through the leaf.
        assert_eq!(rig.through(WORKERS, &reply(header.dst, 0), CLIENTS).len(), 1);
        assert_eq!((rig.count(Counter::Replies), rig.outstanding(header.dst - 10)), (1, 0));
        rig.assert_accounted();
    }
}

// promise: packets.2
#[test]
fn completion_reports_answer_tasks_as_replies_do() {
    for family in BOTH {
        let mut rig = direct(family, "horus");
        // Report entries by server: each task's worker, with two remaining tasks.
        let mut of_servers = [Vec::new(), Vec::new()];
        for seq in 0..20 {
            let worker = rig.one(CLIENTS, &task(seq), WORKERS).1.dst;
            of_servers[usize::from(worker - 10) / 4].push((worker, 2));
        }
        for (server, entries) in of_servers.iter().enumerate() {
            assert!(rig.through(WORKERS, &report(server, entries), WORKERS).is_empty());
        }
        assert_eq!((0..8).map(|member| rig.outstanding(member)).sum::<u32>(), 0);
        let counts = [Counter::Completions, Counter::CompletionReports, Counter::Replies];
        assert_eq!(counts.map(|counter| rig.count(counter)), [20, 2, 0]);
        assert_eq!(rig.count(Counter::Consumed), 2);
        let worker = of_servers[0][0].0;
        let completed = of_servers[0].iter().filter(|entry| entry.0 == worker).count();
        let view = rig.leaf.stages().dispatcher(0).unwrap().view();
        assert_eq!(view.reports(Member(worker - 10)) as usize, completed, "each is a report");
        // More completions than tasks are surplus, as replies are.
        assert_eq!(rig.count(Counter::SurplusReplies), 0);
        rig.through(WORKERS, &report(0, &[(10, 0), (11, 0)]), WORKERS);
        assert_eq!(rig.count(Counter::SurplusReplies), 2);
        assert_eq!(rig.drops(), []);
        rig.assert_accounted();
    }
}

// promise: packets.2, input.1
#[test]
fn bad_completion_reports_are_counted() {
    for family in BOTH {
        let mut rig = direct(family, "horus");
        let worker = rig.one(CLIENTS, &task(1), WORKERS).1.dst;
        let (own, other) = (usize::from(worker - 10) / 4, 1 - usize::from(worker - 10) / 4);
        let entry = (worker, 0);
        // Malformed: no entry, fewer entries than the header says, and more.
        for frame in [
            report_of(own, 0, &[]),
            report_of(own, 2, &[entry]),
            report_of(own, 1, &[entry, entry]),
        ] {
            assert!(rig.through(WORKERS, &frame, WORKERS).is_empty());
        }
        rig.through(WORKERS, &report(own, &[(99, 0)]), WORKERS);
        rig.through(WORKERS, &report(other, &[entry]), WORKERS);
        let expected = [("unknown_worker", 1), ("spoofed_reply", 1), ("completions_malformed", 3)];
        assert_eq!(rig.drops(), expected);
        assert_eq!(rig.outstanding(worker - 10), 1, "none of them answered the task");
        // Entries of an unknown worker and of another server's worker are ignored. The first entry counts.
        let foreign = 10 + 4 * other as u16;
        rig.through(WORKERS, &report(own, &[entry, (99, 0), (foreign, 0)]), WORKERS);
        let counts = [Counter::Completions, Counter::CompletionsUnknown];
        assert_eq!(counts.map(|counter| rig.count(counter)), [1, 2]);
        assert_eq!(rig.outstanding(worker - 10), 0);
        rig.assert_accounted();
    }
}

// promise: packets.2, scheduling.2
#[test]
fn task_that_fills_its_worker_is_marked() {
    for family in BOTH {
        let mut rig = direct(family, "jbsq(k=2)");
        let is_full = |header: &Header| header.qlen & u16::from(FULL) != 0;
        // One burst takes the fast path. Its tasks go to idle workers, which have room for another one.
        for seq in 0..8 {
            rig.send(CLIENTS, &task(seq));
        }
        rig.poll();
        let first = rig.receive(WORKERS);
        let headers: Vec<_> = first.iter().map(|frame| family::read(frame).unwrap().1).collect();
        assert!(headers.len() == 8 && !headers.iter().any(is_full));
        drop(first);
        for seq in 8..16 {
            let (_, header, _) = rig.one(CLIENTS, &task(seq), WORKERS);
            assert!(is_full(&header), "{header:?}");
        }
        // All workers have two tasks, so two more tasks wait. A report of worker 12 releases the first, which fills the
        // worker again.
        assert!(rig.through(CLIENTS, &task(16), WORKERS).is_empty());
        assert!(rig.through(CLIENTS, &task(17), WORKERS).is_empty());
        let (_, header, _) = rig.one(WORKERS, &report(0, &[(12, 1)]), WORKERS);
        assert_eq!((header.dst, header.seq, is_full(&header)), (12, 16, true));
        rig.assert_accounted();
    }
}

// promise: packets.2, scheduling.3
#[test]
fn reported_short_class_overtakes_a_long_one() {
    for (family, policy) in BOTH.into_iter().flat_map(|family| {
        ["jbsq(k=1, boost=1)", "cfcfs(boost=1)", "eft(boost=1)"].map(|policy| (family, policy))
    }) {
        let mut rig = direct(family, policy);
        // Tasks with an extension have class 2 and take 1 ms, those without have class 0 and take 10 us.
        let task = |extended, seq| task_of(Header { extended, ..Header::new_task(7, seq) });
        let done = |worker: u16, extended: bool| {
            let (class, service_ns) = if extended { (2, 1_000_000) } else { (0, 10_000) };
            let entry = Completion { worker, class, left: 0, service_ns };
            report_with(usize::from(worker - 10) / 4, 1, &[entry])
        };
        for seq in 0..200 {
            let extended = seq % 2 == 0;
            let worker = rig.one(CLIENTS, &task(extended, seq), WORKERS).1.dst;
            rig.wait(if extended { 1_000_000 } else { 10_000 });
            assert!(rig.through(WORKERS, &done(worker, extended), WORKERS).is_empty());
        }
        // Long tasks fill all workers, until the first waits. A short one arrives last, and goes first.
        let mut worker = 0;
        let mut long = 200..400;
        while let [sent] = &rig.through(CLIENTS, &task(true, long.start), WORKERS)[..] {
            (worker, long.start) = (family::read(sent).unwrap().1.dst, long.start + 1);
            assert!(!long.is_empty(), "{policy}: no task waits");
        }
        let short = 400;
        assert!(rig.through(CLIENTS, &task(false, short), WORKERS).is_empty());
        let mut order = Vec::new();
        for _ in 0..8 {
            let sent = rig.through(WORKERS, &done(worker, true), WORKERS);
            order.extend(sent.iter().map(|frame| family::read(frame).unwrap().1.seq));
        }
        assert_eq!(order, [short, long.start], "{policy}");
        rig.assert_accounted();
    }
}

// promise: packets.2
#[test]
fn reports_and_replies_share_a_burst() {
    for family in BOTH {
        let mut rig = direct(family, "random");
        // Workers of six tasks at the first server. Letters a to f name them below.
        let mut workers = Vec::new();
        while workers.len() < 6 {
            let worker = rig.one(CLIENTS, &task(1), WORKERS).1.dst;
            workers.extend((worker < 14).then_some(worker));
        }
        let [a, b, c, d, e, f] = workers[..] else { unreachable!() };
        let frames = [reply(a, 1), report(0, &[(b, 1), (c, 1)]), report(0, &[(d, 1)]), reply(e, 1)];
        for frame in frames.iter().chain([&report_of(0, 9, &[(f, 1)]), &reply(f, 1)]) {
            rig.send(WORKERS, frame);
        }
        rig.poll();
        let to_clients = rig.receive(CLIENTS);
        let sources = to_clients.iter().map(|frame| family::read(frame).unwrap().1.src);
        assert!(sources.eq([a, e, f]), "replies pass in order");
        drop(to_clients);
        assert_eq!((rig.count(Counter::Replies), rig.count(Counter::Completions)), (3, 3));
        assert_eq!(rig.drops(), [("completions_malformed", 1)]);
        rig.assert_accounted();
    }
}

#[test]
fn later_routed_server_is_refused() {
    // With direct return the leaf keeps a task's destination IP address, and sends it to its server's MAC address. It
    // cannot reach a server behind a router, because a router forwards by the IP address.
    let networks = Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
    let text = config_text(&networks, "horus", true, 1, (64, Overflow::Drop));
    let text = text.replace("policy = ", "replies = 'direct'\npolicy = ");
    let text = text.replace("side = 'workers'", "side = 'workers'\ngateway = '10.0.2.254'");
    let (_rigs, mut control) = rigs_with_control(&text, None, true, 256);
    let changes = ["add-server ip=10.0.9.9", "add-workers server=10.0.9.9 pool=7 workers=30"];
    let changes: Vec<_> = changes.iter().map(|text| text.parse().unwrap()).collect();
    let error = control.apply_all(&changes).unwrap_err().to_string();
    for part in ["pool 7", "replies", "10.0.9.9", "router"] {
        assert!(error.contains(part), "{error}");
    }
}
