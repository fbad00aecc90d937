//! A spine: tasks to leaves by their signals, and treatment of leaves with missing or invalid signals. A spine
//! schedules tasks over leaves, which are the members of its pools. A *signal* is a leaf's message about a pool: the
//! leaf's number of workers, their average load, and whether it has idle workers. Clients send tasks to a pool's
//! *service address*.
//!
//! A `Rig` is one core of a spine in memory; the test plays client and leaves at the far ends of its ports `CLIENTS`
//! and `WORKERS`. `through` and `one` send a packet to a port, poll the spine 1 us later and receive from another port.
//! `wait` polls after some nanoseconds. `assert_accounted` checks the ledger and the buffers at the end.
//! Tests over both families use IPv4 addresses and frames, which the rig translates for IPv6.

use wedjat_core::stage::takeover::InheritedEstimate;
use wedjat_core::state::{Load, MemberPresence};
use wedjat_core::wire::arp;

use super::family::{read, read_arp};
use super::*;

/// Service address of pool 7, 10.0.1.200.
const SERVICE: u32 = 0x0A00_01C8;
/// Ids of the leaves. Their addresses are those of [`SERVERS`].
const LEAVES: [u16; 2] = [40, 41];
/// A millisecond in nanoseconds.
const MS: u64 = 1_000_000;

/// Returns the configuration of a spine: pool 7 at both leaves, and pool 8 at the second.
fn text(family: Family, policy: &str, cores: usize) -> String {
    let numbers: Vec<_> = (0..cores).collect();
    let mut text = format!(
        "[spine]\nid = 90\ncores = {numbers:?}\nseed = 7\nconnections = 64\n\
         [[pool]]\nid = 7\nservice = '10.0.1.200'\npolicy = '{policy}'\n\
         [[pool]]\nid = 8\npolicy = '{policy}'\n"
    );
    for (port, side) in ["clients", "workers"].iter().enumerate() {
        text += &format!(
            "[[port]]\ndevice = 'net_ring{port}'\nside = '{side}'\nip = '10.0.{}.1/24'\nmac = '{}'\n",
            port + 1,
            LEAF_MACS[port]
        );
    }
    for (leaf, pool, workers) in [(0, 7, 4), (1, 7, 8), (1, 8, 3)] {
        text += &format!(
            "[[leaf]]\nid = {}\nip = '10.0.2.{}'\nmac = '{}'\npool = {pool}\nworkers = {workers}\n",
            LEAVES[leaf],
            11 + leaf,
            server_mac(leaf)
        );
    }
    family.text(&text)
}

/// Builds the cores of a spine.
fn spines(family: Family, policy: &str, cores: usize) -> Vec<Rig> {
    // Without a pool key, with a known client; a port holds 256 packets.
    rigs_of(&text(family, policy, cores), None, true, 256)
}

/// Builds a spine of one core.
fn spine(family: Family, policy: &str) -> Rig {
    spines(family, policy, 1).remove(0)
}

/// Returns a client's task for pool 7, to its service address.
fn client_task(seq: u16) -> Vec<u8> {
    service_task(Header::new_task(7, seq))
}

/// Returns a packet with this header to the service address.
fn service_task(header: Header) -> Vec<u8> {
    let mut payload = [0xAB; 20];
    header.emit(&mut payload);
    frame(&Flow { dst: SERVICE, ..client_flow() }, &payload)
}

/// Returns a leaf's signal about pool 7, with its number of workers and their average load. The leaf is given by its
/// index, and `number` rises with each signal.
fn signal_frame(leaf: usize, code: Code, number: u16, workers: u16, average: Load) -> Vec<u8> {
    signal_from(leaf, Header::signal(code, 7, LEAVES[leaf], number), (workers, average))
}

/// Returns a leaf's signal with this header. The extension has the number of workers (`class`) and the average load.
fn signal_from(leaf: usize, header: Header, (class, average): (u16, Load)) -> Vec<u8> {
    let mut payload = vec![0; header.len()];
    header.emit(&mut payload);
    if header.extended {
        Extension { service_ns: average.0, class, ..Extension::default() }.emit(&mut payload);
    }
    let flow = Flow {
        src_mac: server_mac(leaf),
        dst_mac: LEAF_MACS[WORKERS],
        src: SERVERS[leaf],
        dst: LEAF_WORKERS,
        src_port: 1234,
        dst_port: 1234,
    };
    frame(&flow, &payload)
}

impl Rig {
    /// Delivers a leaf's signal.
    fn receive_signal(&mut self, frame: &[u8]) {
        self.send(WORKERS, frame);
        self.poll();
    }

    /// Returns the sent tasks, without heartbeats: leaf, and 1 if the spine chose it from its idle list.
    fn tasks_to_leaves(&mut self) -> Vec<(u16, u16)> {
        let parse = |frame: Frame| {
            let (_, header) = read(&frame).unwrap();
            (header.code == Code::NewTask).then_some((header.dst, header.qlen))
        };
        self.receive(WORKERS).into_iter().filter_map(parse).collect()
    }

    /// Delivers tasks to the service address, and returns the sent ones as [`Rig::tasks_to_leaves`] does.
    fn ask(&mut self, tasks: u16) -> Vec<(u16, u16)> {
        drop(self.receive(WORKERS));
        for seq in 0..tasks {
            self.send(CLIENTS, &client_task(seq));
        }
        (0..tasks.div_ceil(BURST as u16)).for_each(|_| self.poll());
        self.tasks_to_leaves()
    }

    /// Returns the presence in pool 7 of the leaf with this index, and whether it gets tasks.
    fn leaf(&self, leaf: u16) -> (MemberPresence, bool) {
        let view = self.leaf.stages().dispatcher(0).unwrap().view();
        (view.presence(Member(leaf)), view.is_active(Member(leaf)))
    }

    /// Returns the last average load in pool 7 that the spine took from a signal of the leaf with this index, without
    /// the tasks sent since. Only a load update, or the first signal after a start or a silence, changes it.
    fn load(&self, leaf: u16) -> Load {
        self.leaf.stages().dispatcher(0).unwrap().view().load(Member(leaf))
    }
}

#[test]
fn tasks_from_a_service_address_are_refused() {
    for family in BOTH {
        let mut rig = spine(family, "horus-spine");
        rig.poll();
        drop(rig.receive(WORKERS)); // heartbeats
        let mut payload = [0; 11];
        Header::new_task(8, 1).emit(&mut payload);
        let own = frame(&Flow { src: SERVICE, ..client_flow() }, &payload);
        assert!(rig.through(CLIENTS, &own, WORKERS).is_empty());
        assert_eq!(rig.drops(), [("source_unreachable", 1)]);
        rig.assert_accounted();
    }
}

// promise: fabric.1
#[test]
fn tasks_to_a_service_address_go_to_leaves() {
    for family in BOTH {
        for policy in ["horus-spine", "horus-spine-weighted"] {
            let mut rig = spine(family, policy);
            rig.poll();
            drop(rig.receive(WORKERS)); // heartbeats
            let (datagram, header, frame) = rig.one(CLIENTS, &client_task(5), WORKERS);
            let leaf = usize::from(header.dst - LEAVES[0]);
            assert_eq!(
                (datagram.src, datagram.dst, datagram.dst_port),
                (CLIENT, SERVERS[leaf], 1234)
            );
            assert_eq!(
                (header.code, header.qlen, header.seq, header.pool),
                (Code::NewTask, 1, 5, 7)
            );
            assert_eq!(ether::dst(frame.bytes()), server_mac(leaf));
            let packet = &frame.bytes()[ether::LEN..];
            let hops =
                if family == Family::V4 { ipv4::ttl(packet) } else { ipv6::hop_limit(packet) };
            assert_eq!(hops, 63);
            drop(frame);
            // A pool without a service address is reached at the spine's own.
            let own = |pool| {
                let mut payload = [0; 11];
                Header::new_task(pool, 6).emit(&mut payload);
                frame_of(&payload)
            };
            let (datagram, header, _) = rig.one(CLIENTS, &own(8), WORKERS);
            assert_eq!((datagram.dst, header.dst), (SERVERS[1], LEAVES[1]));
            rig.assert_accounted();
        }
    }
}

/// Returns a client's packet to the spine's own address.
fn frame_of(payload: &[u8]) -> Vec<u8> {
    frame(&client_flow(), payload)
}

// promise: fabric.1
#[test]
fn every_policy_over_racks_uses_all_leaves() {
    for family in BOTH {
        for policy in [
            "horus-spine",
            "horus-spine-weighted",
            "jsq-spine",
            "racksched",
            "random",
            "round-robin",
        ] {
            let mut rig = spine(family, policy);
            let tasks = rig.ask(100);
            assert_eq!(tasks.len(), 100, "{policy}: {:?}", rig.drops());
            for leaf in LEAVES {
                // The first leaf has 4 of 12 workers: weighted policies send it about 33 tasks, others 50.
                assert!(tasks.iter().filter(|task| task.0 == leaf).count() > 15, "{policy}");
            }
            rig.assert_accounted();
        }
    }
}

// promise: fabric.1
#[test]
fn service_address_works_on_the_client_side_only() {
    for family in BOTH {
        let mut rig = spine(family, "horus-spine");
        let ask = |target, sender| {
            let mut bytes = [0; arp::FRAME_LEN];
            arp::Packet::request(CLIENT_MAC, sender, target).emit(&mut bytes, Mac::BROADCAST);
            bytes
        };
        let answers = rig.through(CLIENTS, &ask(SERVICE, CLIENT), CLIENTS);
        let (answer, _) = read_arp(&answers[0]).unwrap();
        assert_eq!((answer.sender, answer.sender_mac), (SERVICE, LEAF_MACS[CLIENTS]));
        drop(answers);
        drop(rig.receive(WORKERS));
        assert!(rig.through(WORKERS, &ask(SERVICE, SERVERS[0]), WORKERS).is_empty());
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn leaves_are_chosen_by_what_they_tell() {
    for family in BOTH {
        let mut rig = spine(family, "horus-spine");
        let average = Load::tasks(3);
        rig.receive_signal(&signal_frame(0, Code::IdleRemove, 1, 4, average));
        assert_eq!(rig.ask(8), [(LEAVES[1], 1); 8], "the other has idle workers");
        rig.receive_signal(&signal_frame(1, Code::IdleRemove, 1, 8, average));
        assert!(rig.ask(32).iter().all(|task| task.1 == 0), "none has");
        rig.receive_signal(&signal_frame(0, Code::IdleAdd, 2, 4, average));
        assert_eq!(rig.ask(8), [(LEAVES[0], 1); 8]);
        // 2.5 tasks, in 16.16 fixed point.
        rig.receive_signal(&signal_frame(1, Code::LoadUpdate, 2, 8, Load(0x0002_8000)));
        assert_eq!((rig.load(1), rig.count(Counter::Signals)), (Load(0x0002_8000), 4));
        // Overtaken signals change nothing.
        rig.receive_signal(&signal_frame(1, Code::LoadUpdate, 1, 8, Load::tasks(9)));
        rig.receive_signal(&signal_frame(0, Code::IdleRemove, 1, 4, average));
        assert_eq!((rig.load(1), rig.count(Counter::SignalsOld)), (Load(0x0002_8000), 2));
        assert_eq!(rig.ask(8), [(LEAVES[0], 1); 8]);
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn every_bad_signal_is_counted_and_ignored() {
    for family in BOTH {
        let signal_of = |code, pool, leaf| Header::signal(code, pool, leaf, 9);
        let load = Code::LoadUpdate;
        // Four workers with nine tasks each.
        let nine = (4, Load::tasks(9));
        let bare = Header { extended: false, ..signal_of(load, 7, 40) };
        let from_clients = {
            let mut payload = vec![0; signal_of(load, 7, 40).len()];
            signal_of(load, 7, 40).emit(&mut payload);
            Extension { service_ns: nine.1.0, class: 4, ..Extension::default() }.emit(&mut payload);
            frame(&client_flow(), &payload)
        };
        let cases = [
            (WORKERS, signal_from(0, signal_of(load, 7, 42), nine), "unknown_peer"),
            (WORKERS, signal_from(0, signal_of(load, 8, 40), nine), "signal_pool"),
            (WORKERS, signal_from(0, signal_of(load, 9, 40), nine), "signal_pool"),
            (WORKERS, signal_from(1, signal_of(load, 7, 40), nine), "spoofed_signal"),
            (WORKERS, signal_from(1, signal_of(Code::KeepAlive, 7, 40), nine), "spoofed_signal"),
            (WORKERS, signal_from(0, bare, nine), "signal_short"),
            (WORKERS, signal_from(0, Header::worker_id(7, 40, 0, 1), nine), "task_role"),
            (WORKERS, reply_from(SERVERS[0], done(40, 0)), "task_role"),
            (CLIENTS, from_clients, "wrong_side"),
        ];
        for (port, bytes, reason) in cases {
            let mut rig = spine(family, "horus-spine");
            rig.poll();
            drop(rig.receive(WORKERS));
            assert!(rig.through(port, &bytes, WORKERS).is_empty());
            assert_eq!(rig.drops(), [(reason, 1)]);
            assert_eq!((rig.load(0), rig.count(Counter::Signals)), (Load(0), 0), "{reason}");
            let view = rig.leaf.stages().dispatcher(0).unwrap().view();
            assert_eq!(view.workers_of(Member(0)), None, "{reason}");
            rig.assert_accounted();
        }
    }
}

#[test]
fn restarted_spine_leaves_out_silent_leaves() {
    for family in BOTH {
        let mut rig = spine(family, "horus-spine");
        let presence = MemberPresence::Silent;
        let silent = InheritedEstimate { load: Load(0), outstanding: 0, presence };
        rig.leaf.stages_mut().take_over(0, &[(Member(0), silent)]);
        assert_eq!(rig.leaf(0), (MemberPresence::Silent, false));
        // The leaf is back with its next signal.
        rig.receive_signal(&signal_frame(0, Code::KeepAlive, 1, 4, Load(0)));
        rig.wait(MS / 10);
        assert_eq!(rig.leaf(0), (MemberPresence::Registered, true));
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn silent_leaf_is_excluded_within_50_ms() {
    for family in BOTH {
        let mut rig = spine(family, "horus-spine");
        let send_heartbeat = |rig: &mut Rig, leaf, number| {
            rig.receive_signal(&signal_frame(leaf, Code::KeepAlive, number, [4, 8][leaf], Load(0)));
        };
        let mut number = 0;
        // 20 ms with two live leaves.
        for _ in 0..200 {
            number += 1;
            (0..2).for_each(|leaf| send_heartbeat(&mut rig, leaf, number));
            rig.wait(MS / 10);
        }
        rig.receive_signal(&signal_frame(0, Code::LoadUpdate, number + 1, 4, Load(0x0001_8000)));
        assert_eq!(
            (rig.leaf(0), rig.leaf(1)),
            ((MemberPresence::Registered, true), (MemberPresence::Registered, true))
        );
        let mut out_after = 0;
        while rig.leaf(0).1 {
            number += 1;
            send_heartbeat(&mut rig, 1, number);
            rig.wait(MS / 10);
            out_after += 1;
            assert!(out_after <= 500, "within 50 ms");
        }
        // Steps of 0.1 ms: 500 are 50 ms, and 299 about 30 ms.
        assert!(out_after >= 299, "not before 30 ms: {out_after}");
        assert_eq!(rig.leaf(0), (MemberPresence::Silent, false));
        // The spine lost this leaf, and the second one in pool 8, which sent no signals. It wrote off 1.5 tasks, the
        // reported average, for each of this leaf's four workers.
        assert_eq!((rig.count(Counter::WorkersLost), rig.count(Counter::WrittenOff)), (2, 6));
        assert_eq!(rig.ask(20), [(LEAVES[1], 1); 20]);
        // It starts again, with any number.
        send_heartbeat(&mut rig, 0, 1);
        rig.wait(MS / 10);
        assert_eq!((rig.leaf(0), rig.load(0)), ((MemberPresence::Registered, true), Load(0)));
        assert_eq!(rig.count(Counter::WorkersBack), 1);
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn silent_and_empty_leaves_get_no_tasks() {
    for family in BOTH {
        let mut rig = spine(family, "random");
        rig.wait(MS / 10);
        let mut number = 0;
        // The second leaf reports five workers for 25 ms, and then none. The first leaf is silent.
        for at in 0..500 {
            number += 1;
            let workers = if at < 250 { 5 } else { 0 };
            rig.receive_signal(&signal_frame(1, Code::KeepAlive, number, workers, Load(0)));
            rig.wait(MS / 10);
            if at == 249 {
                let view = rig.leaf.stages().dispatcher(0).unwrap().view();
                assert_eq!(view.rate(Member(1)).to_bits(), 5_f64.to_bits(), "as it told");
                assert!(rig.leaf(0).1 && rig.leaf(1).1);
            }
        }
        assert_eq!(
            (rig.leaf(0), rig.leaf(1)),
            ((MemberPresence::Silent, false), (MemberPresence::Registered, false))
        );
        assert!(rig.ask(3).is_empty());
        assert_eq!(rig.drops(), [("no_member", 3)]);
        rig.receive_signal(&signal_frame(1, Code::KeepAlive, number + 1, 2, Load(0)));
        (0..100).for_each(|_| rig.wait(MS / 10));
        assert!(rig.leaf(1).1);
        rig.assert_accounted();
    }
}

// promise: fabric.1
#[test]
fn multi_packet_task_stays_with_one_leaf() {
    for family in BOTH {
        let mut rig = spine(family, "round-robin");
        rig.poll();
        drop(rig.receive(WORKERS));
        for seq in 0..8 {
            let first = Header { more: true, ..Header::new_task(7, seq) };
            let next = Header { code: Code::TaskContinuation, ..first };
            let last = Header { more: false, ..next };
            let leaves: Vec<_> = [first, next, last]
                .into_iter()
                .map(|header| rig.one(CLIENTS, &service_task(header), WORKERS).1.dst)
                .collect();
            assert_eq!(leaves, [leaves[0]; 3]);
        }
        assert_eq!(rig.count(Counter::Continuations), 16);
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn leaves_get_a_heartbeat_every_10_ms() {
    for family in BOTH {
        let mut rig = spine(family, "horus-spine");
        let mut counts = [0; 2];
        for _ in 0..1000 {
            rig.wait(MS / 10);
            for frame in rig.receive(WORKERS) {
                let (datagram, header) = read(&frame).unwrap();
                assert_eq!(
                    (header.code, header.src, datagram.src),
                    (Code::KeepAlive, 90, LEAF_WORKERS)
                );
                let leaf = SERVERS.iter().position(|&leaf| leaf == datagram.dst).unwrap();
                assert_eq!(ether::dst(frame.bytes()), server_mac(leaf));
                counts[leaf] += 1;
            }
        }
        // Independent of the number of their pools.
        assert!(counts.iter().all(|count| (9..=11).contains(count)), "{counts:?}");
        rig.assert_accounted();
    }
}

// promise: fabric.2
#[test]
fn signal_reaches_all_cores() {
    for family in BOTH {
        let mut cores = spines(family, "horus-spine", 2);
        let average = Load::tasks(2);
        cores[0].receive_signal(&signal_frame(0, Code::IdleRemove, 1, 4, average));
        cores[0].receive_signal(&signal_frame(0, Code::LoadUpdate, 2, 4, average));
        cores[1].poll();
        assert_eq!(cores[1].ask(8), [(LEAVES[1], 1); 8]);
        cores[0].receive_signal(&signal_frame(1, Code::IdleRemove, 1, 8, average));
        cores[0].receive_signal(&signal_frame(0, Code::IdleAdd, 3, 4, average));
        cores[1].poll();
        assert_eq!(cores[1].ask(8), [(LEAVES[0], 1); 8]);
        // A leaf heard by one core is alive for all.
        for at in 0..400 {
            cores[0].receive_signal(&signal_frame(0, Code::KeepAlive, 10 + at, 4, average));
            cores.iter_mut().for_each(|core| core.wait(MS / 10));
        }
        for core in &mut cores {
            assert_eq!((core.leaf(0).1, core.leaf(1).1), (true, false));
            core.leaf.abandon();
        }
    }
}

/// Returns the addresses that the spine announced by gratuitous ARP on the clients' side since the last call. Drops
/// other packets from the clients' port.
fn announced(rig: &mut Rig) -> Vec<u32> {
    let announcement = |frame: Frame| {
        let (packet, to) = read_arp(&frame)?;
        let is_one = packet.sender == packet.target && to == Mac::BROADCAST;
        assert!(!is_one || packet.sender_mac == LEAF_MACS[CLIENTS]);
        is_one.then_some(packet.sender)
    };
    rig.receive(CLIENTS).into_iter().filter_map(announcement).collect()
}

#[test]
fn leaf_leaving_one_pool_can_be_drained() {
    let (mut rigs, mut control) =
        rigs_with_control(&text(Family::V4, "random", 1), None, true, 256);
    let member = |control: &Control, pool| {
        let (pool, place) = control.membership().place(pool, 41)?;
        control.membership().pools[pool].as_ref()?.members[place]
    };
    // Leaf 41 is leaving pool 7, and stays in pool 8.
    let rig = &mut rigs[0];
    rig.change(&mut control, &["remove-workers pool=7 workers=41", "drain workers=41"]);
    assert!(member(&control, 8).unwrap().is_drained);
    assert!(member(&control, 7).is_none_or(|one| one.is_leaving && !one.is_drained));
    // Changes nothing, but waits until the core has applied the end of the removal.
    rig.change(&mut control, &[]);
    rig.change(&mut control, &["undrain workers=41"]);
    assert!(!member(&control, 8).unwrap().is_drained);
    let changes = ["remove-workers pool=8 workers=41", "drain workers=41"];
    let changes: Vec<_> = changes.iter().map(|text| text.parse().unwrap()).collect();
    let error = control.apply_all(&changes).unwrap_err().to_string();
    assert!(error.contains("worker 41: it is leaving"), "{error}");
}

#[test]
fn changes_of_one_request_share_no_address() {
    let (mut rigs, mut control) =
        rigs_with_control(&text(Family::V4, "random", 1), None, true, 256);
    let changes = ["set-service pool=8 ip=10.0.2.77", "add-server ip=10.0.2.77"];
    let both: Vec<_> = changes.iter().map(|text| text.parse().unwrap()).collect();
    let error = control.apply_all(&both).unwrap_err().to_string();
    assert!(error.contains("server 10.0.2.77: it is a service address of the node's"), "{error}");
    // The service address becomes free for a server in the same request, before or after the server comes.
    rigs[0].change(&mut control, &["set-service pool=8 ip=10.0.2.77"]);
    rigs[0].change(&mut control, &["add-server ip=10.0.2.77", "set-service pool=8"]);
    let servers = &control.membership().servers;
    let ips: Vec<_> = servers.iter().flatten().map(|server| server.ip).collect();
    assert!(ips.contains(&std::net::IpAddr::from([10, 0, 2, 77])), "{ips:?}");
}

// promise: fabric.3
#[test]
fn racks_and_service_addresses_change_while_running() {
    for family in BOTH {
        let (mut rigs, mut control) =
            rigs_with_control(&text(family, "random", 1), None, true, 256);
        let mut rig = rigs.remove(0);
        rig.wait(MS);
        assert_eq!(announced(&mut rig), [SERVICE]);
        rig.wait(1999 * MS);
        assert_eq!(announced(&mut rig), Vec::<u32>::new());
        for _ in 0..4 {
            rig.wait(1000 * MS);
        }
        assert_eq!(announced(&mut rig), [SERVICE], "twice, and no more");
        // A leaf leaves one of its pools.
        for (leaf, workers) in [(0, 4), (1, 8)] {
            rig.receive_signal(&signal_frame(leaf, Code::KeepAlive, 1, workers, Load::default()));
        }
        rig.change(&mut control, &["remove-workers pool=7 workers=41"]);
        let leaves = rig.ask(20);
        assert!(leaves.len() == 20 && leaves.iter().all(|(leaf, _)| *leaf == 40), "{leaves:?}");
        let is_member = |control: &Control, pool| control.membership().place(pool, 41).is_some();
        // Changes nothing, but waits until the core has applied the end of the removal.
        rig.change(&mut control, &[]);
        assert!(!is_member(&control, 7) && is_member(&control, 8));
        // It returns with another weight.
        rig.change(
            &mut control,
            &[
                "add-workers server=10.0.2.12 pool=7 workers=41 speed=2",
                "set-speed pool=7 workers=40 speed=9",
            ],
        );
        rig.wait(MS);
        assert!(rig.ask(20).iter().all(|(leaf, _)| *leaf == 40), "it has not told its workers");
        rig.receive_signal(&signal_frame(1, Code::KeepAlive, 1, 2, Load::default()));
        rig.wait(MS);
        let leaves = rig.ask(60);
        assert!(leaves.iter().any(|(leaf, _)| *leaf == 41) && leaves.len() == 60);
        // The second pool gets its own address, and the first loses its address.
        rig.change(&mut control, &["set-service pool=8 ip=10.0.1.201", "set-service pool=7"]);
        rig.wait(MS);
        assert_eq!(announced(&mut rig), [SERVICE + 1]);
        let arp_request = |address: u32| {
            let mut frame = vec![0; arp::FRAME_LEN];
            arp::Packet::request(CLIENT_MAC, CLIENT, address).emit(&mut frame, Mac::BROADCAST);
            frame
        };
        assert_eq!(rig.through(CLIENTS, &arp_request(SERVICE + 1), CLIENTS).len(), 1);
        assert_eq!(rig.through(CLIENTS, &arp_request(SERVICE), CLIENTS).len(), 0);
        let link = family.text("link-pool pool=7 spine=1 ip=10.0.1.9");
        let error = control.apply(&link.parse().unwrap());
        assert!(error.unwrap_err().to_string().contains("this node is a spine"));
    }
}
