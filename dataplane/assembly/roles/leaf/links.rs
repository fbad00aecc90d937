//! A leaf below a spine: its signals and their times, the service address, and the spine's messages. A spine forwards
//! clients' tasks to leaves. A *signal* is the leaf's message to the spine about a pool: the leaf's number of workers,
//! and their average load. `IdleAdd` and `IdleRemove` also say whether the leaf has idle workers, and `KeepAlive` is a
//! heartbeat. Clients send tasks to the pool's *service address*, from which the leaf answers.
//!
//! A `Rig` is one core of a leaf in memory; the test plays client, spine and servers at the far ends of its ports
//! `CLIENTS` and `WORKERS`. `through` sends a packet to a port, polls the leaf 1 us later and returns all frames of
//! another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after some
//! nanoseconds. `reply(worker, tasks)` is a worker's reply with its number of remaining tasks. `assert_accounted` ends
//! the leaf. Then it checks that each received packet was sent on, consumed or dropped, and that every buffer is back.
//! Tests over both families use IPv4 addresses and frames, which the rig translates for IPv6.

use wedjat_core::state::Load;

use super::family::{read, read_arp, read_extension};
use super::*;

/// 10.0.1.3.
const SPINE: u32 = 0x0A00_0103;
const SPINE_MAC: Mac = Mac([2, 0, 0, 0, 1, 3]);
/// Service address of pool 7, 10.0.1.200.
const SERVICE: u32 = 0x0A00_01C8;
/// A millisecond in nanoseconds.
const MS: u64 = 1_000_000;

/// Returns the configuration of a leaf with four workers (10 to 13) and a spine; `more` are lines of the pool.
fn text(family: Family, policy: &str, more: &str) -> String {
    let mut text = format!(
        "[leaf]\nid = 40\ncores = [0]\nseed = 7\n\
         [[spine]]\nid = 90\nip = '10.0.1.3'\n\
         [[pool]]\nid = 7\npolicy = '{policy}'\nservice = '10.0.1.200'\nspine = 90\n{more}\n"
    );
    for (port, side) in ["clients", "workers"].iter().enumerate() {
        text += &format!(
            "[[port]]\ndevice = 'net_ring{port}'\nside = '{side}'\nip = '10.0.{}.1/24'\nmac = '{}'\n",
            port + 1,
            LEAF_MACS[port]
        );
    }
    text += &format!(
        "[[server]]\nip = '10.0.2.11'\npool = 7\nworkers = '10-13'\nmac = '{}'\n",
        server_mac(0)
    );
    family.text(&text)
}

/// Builds a leaf that knows its spine's MAC address. Receives its first signal, number 1, in place of the test. `more`
/// are lines of the pool.
fn leaf_with(family: Family, policy: &str, more: &str) -> Rig {
    // Without a pool key, with a known client; a port holds 256 packets.
    let mut rig = rigs_of(&text(family, policy, more), None, true, 256).remove(0);
    resolve_spine(&rig, SPINE);
    rig.poll();
    let signals = rig.signals();
    assert_eq!(signals.len(), 1);
    assert!(
        matches!(signals[0], (Code::KeepAlive | Code::LoadUpdate, 1, 4, Load(0))),
        "{signals:?}"
    );
    rig
}

/// Same as [`leaf_with`], without further lines.
fn leaf(family: Family, policy: &str) -> Rig {
    leaf_with(family, policy, "")
}

/// Returns a client's task as the spine forwards it. `idle`: the spine chose the leaf from its idle list.
fn forwarded_task(seq: u16, idle: bool) -> Vec<u8> {
    let mut payload = [0xAB; 20];
    Header { dst: 40, qlen: u16::from(idle), ..Header::new_task(7, seq) }.emit(&mut payload);
    frame(&Flow { src_mac: SPINE_MAC, ..client_flow() }, &payload)
}

/// Returns a heartbeat of the spine with this address and id, to a port of the leaf. Heartbeats name pool 0.
fn spine_heartbeat(from: u32, id: u16, port: usize) -> Vec<u8> {
    let header = Header::signal(Code::KeepAlive, 0, id, 0);
    let mut payload = vec![0; header.len()];
    header.emit(&mut payload);
    let (src_mac, src_port) = (SPINE_MAC, 1234);
    let (dst_mac, dst) = (LEAF_MACS[port], [LEAF_CLIENTS, LEAF_WORKERS][port]);
    frame(&Flow { src_mac, src: from, src_port, dst_mac, dst, ..client_flow() }, &payload)
}

impl Rig {
    /// Returns the codes of signals for pool 7 to the spine with this address. Drops other packets from the clients'
    /// port.
    fn signals_at(&mut self, spine: u32) -> Vec<Code> {
        let parse = |frame: Frame| {
            let (datagram, header) = read(&frame)?;
            (datagram.dst == spine && header.pool == 7).then_some(header.code)
        };
        self.receive(CLIENTS).into_iter().filter_map(parse).collect()
    }

    /// Returns the signals to [`SPINE`]: code, number, live workers, average load. Checks that each is about pool 7,
    /// from the leaf to the spine. Drops other packets from the clients' port.
    fn signals(&mut self) -> Vec<(Code, u16, u16, Load)> {
        let parse = |frame: Frame| {
            let (datagram, header) = read(&frame)?;
            if !header.code.is_signal() {
                return None;
            }
            assert_eq!((datagram.src, datagram.dst), (LEAF_CLIENTS, SPINE));
            assert_eq!((ether::dst(frame.bytes()), header.src, header.pool), (SPINE_MAC, 40, 7));
            let Extension { service_ns, class, .. } = read_extension(&frame);
            Some((header.code, header.seq, class, Load(service_ns)))
        };
        self.receive(CLIENTS).into_iter().filter_map(parse).collect()
    }

    /// Delivers a frame and polls. Returns the signals, as [`Rig::signals`] does, and drops packets to workers.
    fn signals_after(&mut self, port: usize, frame: &[u8]) -> Vec<(Code, u16, u16, Load)> {
        self.send(port, frame);
        self.poll();
        let signals = self.signals();
        drop(self.receive(WORKERS));
        signals
    }
}

// promise: fabric.1
#[test]
fn replies_leave_from_the_service_address() {
    for family in BOTH {
        for policy in ["horus", "jsq", "cfcfs"] {
            let mut rig = leaf(family, policy);
            let (_, header, _) = rig.one(CLIENTS, &forwarded_task(5, true), WORKERS);
            drop(rig.receive(CLIENTS));
            let (datagram, answer, frame) = rig.one(WORKERS, &reply(header.dst, 0), CLIENTS);
            assert_eq!((datagram.src, datagram.src_port, datagram.dst), (SERVICE, 1234, CLIENT));
            assert_eq!(answer.code, Code::TaskDoneIdle);
            assert_eq!(
                ether::dst(frame.bytes()),
                CLIENT_MAC,
                "not the spine, from where the task came"
            );
            drop(frame);
            rig.assert_accounted();
        }
    }
}

// promise: fabric.1
#[test]
fn refused_task_returns_from_the_service_address() {
    for family in BOTH {
        let mut rig = leaf_with(family, "jbsq(k=1)", "queue = 1\noverflow = 'refuse'");
        for seq in 0..5 {
            drop(rig.through(CLIENTS, &forwarded_task(seq, false), WORKERS));
        }
        drop(rig.receive(CLIENTS));
        let (datagram, header, frame) = rig.one(CLIENTS, &forwarded_task(5, false), CLIENTS);
        assert_eq!((header.code, header.src, header.seq), (Code::TaskRefused, 40, 5));
        assert_eq!((datagram.src, datagram.src_port), (SERVICE, 1234));
        assert_eq!((datagram.dst, datagram.dst_port), (CLIENT, 40_000));
        assert_eq!(ether::dst(frame.bytes()), CLIENT_MAC);
        drop(frame);
        assert_eq!(rig.count(Counter::Refused), 1);
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn spine_gets_idle_and_load_signals() {
    for family in BOTH {
        let mut rig = leaf(family, "horus");
        for seq in 0..3 {
            assert_eq!(rig.signals_after(CLIENTS, &forwarded_task(seq, true)), []);
        }
        let last = rig.signals_after(CLIENTS, &forwarded_task(3, true));
        assert_eq!(last, [(Code::IdleRemove, 2, 4, Load::ONE)]);
        for seq in 4..12 {
            assert_eq!(rig.signals_after(CLIENTS, &forwarded_task(seq, false)), []);
        }
        // Twelve tasks arrived, three for each worker. Worker 10 reports two tasks; workers 11 to 13 keep their
        // estimates, so the average changes by too little for a signal.
        let reply_of = |worker, queue| reply(worker, queue);
        assert_eq!(rig.signals_after(WORKERS, &reply_of(10, 2)), []);
        let mut signals = Vec::new();
        for worker in 10..14 {
            signals.extend(rig.signals_after(WORKERS, &reply_of(worker, 1)));
        }
        for (at, (code, number, workers, _)) in signals.iter().enumerate() {
            assert_eq!((*code, usize::from(*number), *workers), (Code::LoadUpdate, 3 + at, 4));
        }
        // Each worker has one task, and the average in the last signal is off by less than one.
        let (.., load) = signals.last().unwrap();
        assert!(load.0.abs_diff(Load::ONE.0) < Load::ONE.0, "{load:?}");
        for worker in [10, 11] {
            let signals = rig.signals_after(WORKERS, &reply(worker, 0));
            assert!(signals.iter().all(|one| one.0 == Code::LoadUpdate), "{signals:?}");
        }
        let signals = rig.signals_after(WORKERS, &reply(12, 0));
        assert_eq!(signals[0].0, Code::IdleAdd, "three of them are idle");
        rig.assert_accounted();
    }
}

/// Builds the two cores of a leaf with this policy. The first one sends the signals.
fn two_cores(policy: &str) -> Vec<Rig> {
    let text = text(Family::V4, policy, "").replace("cores = [0]", "cores = [0, 1]");
    let rigs = rigs_of(&text, None, true, 256);
    resolve_spine(&rigs[0], SPINE);
    rigs
}

/// Polls both cores for 2 ms, and returns the signals.
fn signals_of_both(rigs: &mut [Rig]) -> Vec<(Code, u16, u16, Load)> {
    let mut signals = Vec::new();
    for _ in 0..20 {
        rigs.iter_mut().rev().for_each(|rig| rig.wait(MS / 10));
        signals.extend(rigs[0].signals());
    }
    signals
}

/// The first core sends the signals, also about tasks and replies on the second core.
// promise: fabric.2
#[test]
fn load_of_other_cores_is_signalled() {
    for policy in ["horus", "racksched", "jsq", "sed", "jbsq(k=3)", "random"] {
        let mut rigs = two_cores(policy);
        let is_horus = policy == "horus"; // others may keep no idle list
        let idle = signals_of_both(&mut rigs).last().unwrap().0;
        assert!(idle == Code::IdleAdd || !is_horus);
        let tasks =
            (0..12).map(|seq| rigs[1].one(CLIENTS, &forwarded_task(seq, seq < 4), WORKERS).1.dst);
        let mut workers: Vec<_> = tasks.collect();
        let busy = signals_of_both(&mut rigs);
        assert_eq!(busy.last().unwrap().3, Load::tasks(3), "{policy}: {busy:?}");
        assert!(busy.iter().all(|one| one.0 != Code::IdleAdd), "{busy:?}");
        assert!(busy[0].0 == Code::IdleRemove || !is_horus);
        // One reply passes the first core: the signals still include the tasks of the second one.
        let first = workers.swap_remove(0);
        let left = workers.iter().filter(|worker| **worker == first).count();
        rigs[0].one(WORKERS, &reply(first, left as u16), CLIENTS);
        let loads: Vec<_> = signals_of_both(&mut rigs).into_iter().map(|one| one.3).collect();
        let expected = Load(Load::tasks(11).0 / 4);
        assert!(
            !loads.is_empty() && loads.iter().all(|load| *load == expected),
            "{policy} {loads:?}"
        );
        for worker in workers {
            rigs[1].one(WORKERS, &reply(worker, 0), CLIENTS);
        }
        let signals = signals_of_both(&mut rigs);
        let (.., load) = *signals.last().unwrap();
        assert!(signals.iter().any(|one| one.0 == Code::IdleAdd) || !is_horus, "{signals:?}");
        // A core assumes one task at an idle worker of another core. The signal does not count it.
        assert_eq!(load, Load(0), "{policy}");
        rigs.iter_mut().for_each(Rig::assert_accounted);
    }
}

/// The tasks pass one core, and their replies the signalling one.
// promise: fabric.2
#[test]
fn replies_of_remote_tasks_keep_the_load() {
    for policy in ["horus", "racksched", "jsq", "sed", "random"] {
        let mut rigs = two_cores(policy);
        let mut tasks = std::collections::BTreeMap::<u16, u16>::new();
        let mut answered = Vec::new();
        for seq in 0..24 {
            let worker = rigs[1].one(CLIENTS, &forwarded_task(seq, seq < 4), WORKERS).1.dst;
            *tasks.entry(worker).or_default() += 1;
            if seq < 12 {
                answered.push(worker);
            }
            if seq == 11 {
                drop(signals_of_both(&mut rigs));
            }
        }
        for worker in answered {
            let left = tasks.get_mut(&worker).unwrap();
            *left -= 1;
            drop(rigs[0].signals_after(WORKERS, &reply(worker, *left)));
        }
        let loads: Vec<_> = signals_of_both(&mut rigs).into_iter().map(|one| one.3).collect();
        assert!(
            !loads.is_empty() && loads.iter().all(|load| *load == Load::tasks(3)),
            "{policy} {loads:?}"
        );
        rigs.iter_mut().for_each(Rig::assert_accounted);
    }
}

// promise: fabric.2
#[test]
fn idleness_is_repeated_and_numbers_rise() {
    for family in BOTH {
        let mut rig = leaf(family, "horus");
        let mut numbers = vec![1];
        for _ in 0..100 {
            rig.wait(MS / 10);
            for (code, number, ..) in rig.signals() {
                assert_eq!(code, Code::IdleAdd);
                numbers.push(number);
            }
        }
        // An idle leaf repeats its state every millisecond.
        assert!((9..=11).contains(&numbers.len()), "{numbers:?}");
        assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]));
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn other_signal_rules_send_replies_or_heartbeats() {
    for family in BOTH {
        let mut rig = leaf_with(family, "racksched", "signals = 'every-reply'");
        assert_eq!(rig.signals_after(CLIENTS, &forwarded_task(0, false)), []);
        let (_, header, _) = rig.one(CLIENTS, &forwarded_task(1, false), WORKERS);
        let signals = rig.signals_after(WORKERS, &reply(header.dst, 2));
        // Two tasks at one of four workers: an average of 0.5, in 16.16 fixed point.
        assert_eq!(signals, [(Code::LoadUpdate, 2, 4, Load(0x0000_8000))], "two at one of four");
        for (rules, policy, expected_code) in
            [("every-reply", "racksched", Code::KeepAlive), ("none", "horus", Code::LoadUpdate)]
        {
            let mut rig = leaf_with(family, policy, &format!("signals = '{rules}'"));
            let mut count = 0;
            for _ in 0..1000 {
                rig.wait(MS / 10);
                for (code, ..) in rig.signals() {
                    assert_eq!(code, expected_code);
                    count += 1;
                }
            }
            assert!((9..=11).contains(&count), "{rules}: {count}");
        }
    }
}

// promise: fabric.2
#[test]
fn a_spine_learns_how_many_workers_live() {
    for family in BOTH {
        let mut rig = leaf(family, "horus");
        rig.set_active(1, false);
        (0..11).for_each(|_| rig.wait(MS / 10));
        let signals = rig.signals();
        assert_eq!(signals.last().unwrap().2, 3, "{signals:?}");
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn silent_spine_and_its_return_are_counted() {
    for family in BOTH {
        let mut rig = leaf(family, "horus");
        // Lost and returned spines, and spines that are silent now.
        let state = |rig: &Rig| {
            let counts = (rig.count(Counter::SpinesLost), rig.count(Counter::SpinesBack));
            (counts, rig.count(Gauge::SpinesSilent))
        };
        for _ in 0..60 {
            drop(rig.signals_after(CLIENTS, &spine_heartbeat(SPINE, 90, CLIENTS)));
            rig.wait(MS);
        }
        assert_eq!(state(&rig), ((0, 0), 0));
        // The leaf counts a spine as silent after 30 ms.
        (0..28).for_each(|_| rig.wait(MS));
        assert_eq!(state(&rig), ((0, 0), 0));
        (0..3).for_each(|_| rig.wait(MS));
        assert_eq!(state(&rig), ((1, 0), 1));
        drop(rig.signals_after(CLIENTS, &spine_heartbeat(SPINE, 90, CLIENTS)));
        rig.wait(MS);
        assert_eq!(state(&rig), ((1, 1), 0));
        drop(rig.signals());
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn heartbeats_of_no_spine_are_refused() {
    for family in BOTH {
        let cases = [
            (CLIENT, 90, CLIENTS, "unknown_peer"),
            (SPINE, 91, CLIENTS, "spoofed_signal"),
            (0x0A00_0263, 90, WORKERS, "unknown_worker"),
        ];
        for (from, id, port, reason) in cases {
            let mut rig = leaf(family, "horus");
            drop(rig.signals_after(port, &spine_heartbeat(from, id, port)));
            assert_eq!((rig.drops(), rig.count(Counter::Signals)), (vec![(reason, 1)], 0));
            rig.assert_accounted();
        }
    }
}

// promise: fabric.1
#[test]
fn spine_mac_address_is_resolved_separately() {
    for family in BOTH {
        // `false`: the leaf does not know the client's MAC address.
        let mut rig = rigs_of(&text(family, "horus", ""), None, false, 256).remove(0);
        rig.wait(MS);
        let questions = rig.receive(CLIENTS);
        let asks = |ip: u32| {
            let questions = questions.iter().filter_map(read_arp);
            questions.filter(|(question, _)| question.target == ip).count()
        };
        assert_eq!(asks(SPINE), 1);
        drop(questions);
        // A packet through a spine does not show its client's MAC address.
        drop(rig.through(CLIENTS, &forwarded_task(1, true), WORKERS));
        let known = rig.slot(CLIENTS, CLIENT);
        assert_eq!(known.and_then(|slot| rig.leaf.stages().neighbours().mac(slot)), None);
    }
}

/// Address of a second spine, 10.0.1.4.
const OTHER: u32 = 0x0A00_0104;

/// Builds a leaf without a spine and without a service address, and its control.
fn without_spine(family: Family, policy: &str) -> (Rig, Control) {
    let text = text(Family::V4, policy, "").replace("[[spine]]\nid = 90\nip = '10.0.1.3'\n", "");
    let text = text.replace("service = '10.0.1.200'\nspine = 90\n", "");
    let (mut rigs, control) = rigs_with_control(&family.text(&text), None, true, 256);
    (rigs.remove(0), control)
}

/// Stores the MAC address of a linked spine in the neighbour table, so that the leaf need not resolve it.
fn resolve_spine(rig: &Rig, spine: u32) {
    let slot = rig.slot(CLIENTS, spine).unwrap();
    rig.leaf.stages().neighbours().set_static(slot, SPINE_MAC);
}

// promise: fabric.3
#[test]
fn pool_changes_its_spine_while_running() {
    for family in BOTH {
        let (mut rig, mut control) = without_spine(family, "horus");
        drop(rig.one(CLIENTS, &forwarded_task(1, true), WORKERS));
        rig.wait(50 * MS);
        assert_eq!(rig.signals_at(SPINE), [], "does not exist");
        rig.change(
            &mut control,
            &["set-service pool=7 ip=10.0.1.200", "link-pool pool=7 spine=90 ip=10.0.1.3"],
        );
        resolve_spine(&rig, SPINE);
        rig.wait(11 * MS);
        rig.poll();
        assert_eq!(rig.signals_at(SPINE), [Code::IdleAdd]);
        let (datagram, ..) = rig.one(WORKERS, &reply(10, 0), CLIENTS);
        assert_eq!(datagram.src, SERVICE);
        // It signals idleness and detects silence like a leaf that started with a spine.
        for seq in 2..6 {
            drop(rig.through(CLIENTS, &forwarded_task(seq, true), WORKERS));
        }
        assert!(rig.signals_at(SPINE).contains(&Code::IdleRemove));
        rig.wait(31 * MS);
        rig.wait(MS);
        assert_eq!((rig.count(Counter::SpinesLost), control.silent_spines()), (1, vec![90]));
        // Another spine takes over; the first gets no more messages.
        rig.change(&mut control, &["link-pool pool=7 spine=91 ip=10.0.1.4 signals=none"]);
        resolve_spine(&rig, OTHER);
        drop(rig.receive(CLIENTS));
        for _ in 0..4 {
            rig.wait(5 * MS);
            assert!(rig.leaf.stages().network().spines().all(|spine| spine.id == 91));
        }
        assert!(control.silent_spines().is_empty());
        assert!(rig.signals_at(OTHER).contains(&Code::LoadUpdate));
        rig.send(CLIENTS, &spine_heartbeat(OTHER, 91, CLIENTS));
        rig.poll();
        assert_eq!(rig.count(Counter::Signals), 1);
        rig.send(CLIENTS, &spine_heartbeat(SPINE, 90, CLIENTS));
        rig.poll();
        assert_eq!(rig.drops(), [("unknown_peer", 1)]);
        // No spine.
        rig.change(&mut control, &["unlink-pool pool=7", "set-service pool=7"]);
        drop(rig.receive(CLIENTS));
        rig.wait(50 * MS);
        assert_eq!((rig.signals_at(OTHER), rig.signals_at(SPINE)), (vec![], vec![]));
        let (_, header, _) = rig.one(CLIENTS, &forwarded_task(9, true), WORKERS);
        let (datagram, ..) = rig.one(WORKERS, &reply(header.dst, 0), CLIENTS);
        assert_eq!(datagram.src, LEAF_CLIENTS);
        rig.assert_accounted();
    }
}

// promise: fabric.3
#[test]
fn drained_rack_finishes_tasks_in_flight() {
    for family in BOTH {
        let (mut rig, mut control) = without_spine(family, "horus");
        let link = ["set-service pool=7 ip=10.0.1.200", "link-pool pool=7 spine=90 ip=10.0.1.3"];
        rig.change(&mut control, &link);
        resolve_spine(&rig, SPINE);
        rig.wait(11 * MS);
        rig.poll();
        drop(rig.receive(CLIENTS));
        rig.change(&mut control, &["drain workers=10-12"]);
        for seq in 0..3 {
            let (_, header, _) = rig.one(CLIENTS, &forwarded_task(seq, true), WORKERS);
            assert_eq!(header.dst, 13, "the others are drained");
        }
        rig.change(&mut control, &["drain workers=13"]);
        rig.wait(MS);
        rig.poll();
        let signals = rig.signals();
        assert!(
            signals.iter().any(|&(code, _, workers, _)| (code, workers) == (Code::KeepAlive, 0)),
            "{signals:?}"
        );
        // Tasks that the spine sent before it learned of the drain are still served, for a while.
        drop(rig.one(CLIENTS, &forwarded_task(4, false), WORKERS));
        rig.wait(10 * MS);
        drop(rig.one(CLIENTS, &forwarded_task(5, false), WORKERS));
        assert_eq!(rig.drops(), []);
        rig.wait(30 * MS);
        drop(rig.receive(CLIENTS));
        assert!(rig.through(CLIENTS, &forwarded_task(6, false), WORKERS).is_empty());
        assert_eq!(rig.drops(), [("no_member", 1)]);
        // The workers drained last serve late tasks for 30 ms. An undrained worker gets all tasks even in this time.
        rig.change(&mut control, &["undrain workers=10-13"]);
        drop(rig.one(CLIENTS, &forwarded_task(7, false), WORKERS));
        rig.change(&mut control, &["drain workers=10-13"]);
        rig.change(&mut control, &["undrain workers=11"]);
        rig.wait(MS);
        rig.poll();
        let signals = rig.signals();
        assert_eq!(signals.last().map(|&(_, _, workers, _)| workers), Some(1), "{signals:?}");
        for seq in 8..11 {
            assert_eq!(rig.one(CLIENTS, &forwarded_task(seq, false), WORKERS).1.dst, 11);
        }
        rig.assert_accounted();
    }
}

// promise: fabric.3
#[test]
fn links_that_can_not_be_are_refused() {
    for family in BOTH {
        let (_rig, mut control) = without_spine(family, "horus");
        let of_other_family = match family {
            Family::V4 => "set-service pool=7 ip=fd00:1::c8",
            Family::V6 => "set-service pool=7 ip=192.0.2.200",
        };
        for (text, expected) in [
            ("link-pool pool=8 spine=90 ip=10.0.1.3", "pool 8: does not exist"),
            ("link-pool pool=7 spine=90 ip=10.0.1.1", "it is the node's own address"),
            ("link-pool pool=7 spine=90 ip=10.0.9.9", "no port on the clients' side reaches spine"),
            ("set-service pool=7 ip=10.0.2.11", "a server has that address"),
            ("set-service pool=7 ip=10.0.1.1", "the node's own address"),
            ("unlink-pool pool=9", "pool 9"),
            (of_other_family, "servers of the other of IPv4 and IPv6"),
        ] {
            let text = family.text(text);
            let error = control.apply(&text.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!(control.membership().epoch, 1);
    }
}
