//! A pool with a key: the leaf, and an agent with that key, another key, or none, joined only by packets. The agent of
//! a server signs its packets with the key: it adds a *proof*, a sequence number and a tag over the fields that the
//! leaf uses. The leaf refuses a packet with a wrong tag, without a proof, or with a sequence number that it has seen.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `assert_accounted` ends the leaf. Then it checks that each received packet was
//! sent on, consumed or dropped, and that every buffer is back.

use wedjat_core::policy::Reports;
use wedjat_core::ring::WorkerEnd;
use wedjat_core::role::agent::{Agent, Signer};
use wedjat_core::state::MemberPresence;
use wedjat_core::wire::auth::{self, KEY_LEN, SignedPacket, addresses};
use wedjat_core::wire::completion::{Completion, ENTRY_LEN};
use wedjat_core::wire::{ipv6, ndp};

use super::super::fixtures::{HZ, work};
use super::v6::{self, bits};
use super::*;
use crate::rig::AgentHandles;

/// Returns a key of equal bytes.
fn key(byte: u8) -> Key {
    Key::new([byte; KEY_LEN])
}

/// Address family of leaf, agent and client. Frames are built in that family, not translated as by `family::Family`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    /// Same as [`Family::leaf`], with one core and servers that answer the clients themselves and send completion
    /// reports.
    fn direct_leaf(self, key: Option<Key>) -> Rig {
        let networks = Networks { sides: [Side::Clients, Side::Workers], registers: true, key };
        let text = match self {
            Self::V4 => config_text(&networks, "horus", true, 1, (64, Overflow::Drop)),
            Self::V6 => v6::text("horus", "").replace("registers = false", "registers = true"),
        };
        let text = text.replace("policy = ", "replies = 'direct'\npolicy = ");
        let mut rig = rigs_of(&text, networks.key, self == Self::V4, 256).remove(0);
        if self == Self::V6 {
            rig.resolve_v6_servers();
        }
        rig
    }

    /// Builds the cores of a leaf whose servers register, with this pool key.
    fn leaf(self, key: Option<Key>, cores: usize) -> Vec<Rig> {
        let backlog = (64, Overflow::Drop);
        let networks = Networks { sides: [Side::Clients, Side::Workers], registers: true, key };
        if self == Self::V4 {
            // Servers and client have known MAC addresses, and a port holds 256 packets.
            return rigs_on(networks, "horus", true, true, 256, cores, backlog);
        }
        let numbers: Vec<_> = (0..cores).collect();
        let text = v6::text("horus", "").replace("registers = false", "registers = true");
        let text = text.replacen("[0]", &format!("{numbers:?}"), 1);
        let mut rigs = rigs_of(&text, networks.key, false, 256);
        rigs.first_mut().into_iter().for_each(Rig::resolve_v6_servers);
        rigs
    }

    /// Returns a forged report of the first server: worker 10 completed a task. It is signed with this key, if any.
    fn forged_report(self, key: Option<Key>) -> Vec<u8> {
        let authenticated = key.is_some();
        let header = Header { authenticated, ..Header::completions(7, 10, 1, 9) };
        let entry = Completion { worker: 10, class: 0, left: 0, service_ns: 0 };
        let mut payload = vec![0; header.len() + ENTRY_LEN];
        header.emit(&mut payload);
        Completion::emit_all(&[entry], &header, &mut payload);
        let flow = Flow {
            src_mac: server_mac(0),
            dst_mac: LEAF_MACS[WORKERS],
            src: SERVERS[0],
            dst: LEAF_WORKERS,
            src_port: 1234,
            dst_port: 1234,
        };
        let sequence = 99_000_000; // above all that the server has used
        match self {
            Self::V4 => {
                key.iter().for_each(|key| {
                    key.sign(&addresses(flow.src, flow.dst), &mut payload, sequence);
                });
                frame(&flow, &payload)
            }
            Self::V6 => {
                let (src, dst) = (bits(v6::V6_SERVERS[0]), bits(v6::LEAF[1]));
                key.iter().for_each(|key| {
                    key.sign(&auth::addresses_v6(src, dst), &mut payload, sequence);
                });
                let Flow { src_mac, dst_mac, src_port, dst_port, .. } = flow;
                let flow = Flow { src_mac, dst_mac, src, dst, src_port, dst_port };
                // The IPv4 addresses of the inner frame are arbitrary: only its payload is used.
                over_ipv6(&frame(&Flow { src: 1, dst: 2, ..client_flow() }, &payload), &flow)
            }
        }
    }

    /// Returns the number of bytes before a payload.
    fn payload(self) -> usize {
        match self {
            Self::V4 => udp::PAYLOAD,
            Self::V6 => udp::PAYLOAD_V6,
        }
    }

    /// Returns the task header of a frame.
    fn header(self, frame: &[u8]) -> Header {
        Header::parse(&frame[self.payload()..]).unwrap()
    }

    /// Returns a client's packet with this task header.
    fn task(self, header: Header) -> Vec<u8> {
        match self {
            Self::V4 => task_of(header),
            Self::V6 => {
                over_ipv6(&task_of(header), &v6::flow(v6::NEAR, v6::LEAF[0], (40_000, 1234)))
            }
        }
    }

    /// Returns true if the frame is for the first server.
    fn is_first_servers(self, frame: &[u8]) -> bool {
        match self {
            Self::V4 => udp::parse(frame, false).unwrap().dst == SERVERS[0],
            Self::V6 => udp::parse_v6(frame, false).unwrap().dst == bits(v6::V6_SERVERS[0]),
        }
    }

    /// Returns true if the frame is valid, and goes from the leaf to a client.
    fn is_to_client(self, frame: &[u8]) -> bool {
        match self {
            Self::V4 => {
                let datagram = udp::parse(frame, false).unwrap();
                (datagram.src, datagram.dst) == (LEAF_CLIENTS, CLIENT)
            }
            Self::V6 => {
                let datagram = udp::parse_v6(frame, false).unwrap();
                (datagram.src, datagram.dst) == (bits(v6::LEAF[0]), bits(v6::NEAR))
            }
        }
    }
}

/// Returns an IPv6 frame of `flow` with the payload of this IPv4 frame.
fn over_ipv6(frame: &[u8], flow: &Flow<u128>) -> Vec<u8> {
    let payload = &frame[udp::PAYLOAD..];
    let mut frame = vec![0; udp::PAYLOAD_V6 + payload.len()];
    frame[udp::PAYLOAD_V6..].copy_from_slice(payload);
    flow.emit_v6(&mut frame, payload.len());
    frame
}

/// Returns true if the frame asks for or announces a MAC address, by ARP or neighbour discovery.
fn is_question(frame: &[u8]) -> bool {
    arp::Packet::parse(frame).is_ok() || ndp::Packet::parse(frame).is_ok()
}

/// Returns the altered IPv6 frame with the right UDP checksum, so that only the tag shows the change. Both UDP ports
/// become 1234.
fn with_checksum(frame: Vec<u8>) -> Vec<u8> {
    let packet = &frame[ether::LEN..];
    let flow = Flow {
        src_mac: ether::src(&frame),
        dst_mac: ether::dst(&frame),
        src: ipv6::src(packet),
        dst: ipv6::dst(packet),
        src_port: 1234,
        dst_port: 1234,
    };
    let mut new = frame.clone();
    flow.emit_v6(&mut new, frame.len() - udp::PAYLOAD_V6);
    new
}

/// Agent of the first server, with its workers 10 to 13 attached.
struct Server {
    agent: Agent<RingPort, FramePool>,
    /// Far end of the agent's port.
    wire: RingPort,
    /// Workers' ends of their channels to the agent.
    worker_ends: Vec<WorkerEnd>,
    /// Region to which the workers attach.
    handles: AgentHandles,
    /// Time in ticks of a microsecond.
    now: u64,
}

impl Server {
    /// Creates a server with this pool key.
    fn new(family: Family, key: Option<Key>) -> Self {
        Self::with_lines(family, key, "")
    }

    /// Same as [`Server::new`], with these lines in the pool's configuration.
    fn with_lines(family: Family, key: Option<Key>, lines: &str) -> Self {
        let frames = FramePool::new(256, 512);
        let (port, wire) = pair(128, &frames);
        let (mac, leaf_mac) = (server_mac(0), LEAF_MACS[WORKERS]);
        let text = format!(
            "[agent]\nname = 'memory'\ncore = 0\nseed = 7\nleaf = '10.0.2.1'\nleaf_mac = '{leaf_mac}'\npayload = 64\n\
             [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '{mac}'\n\
             gateway = '10.0.2.254'\n\
             [[pool]]\nid = 7\npolicy = 'random'\nworkers = '10-13'\n{lines}"
        );
        let text = match family {
            Family::V4 => text,
            Family::V6 => {
                let text = text.replace("10.0.2.11/24", "fd00:2::b/64");
                text.replace("10.0.2.1", "fd00:2::1").replace("10.0.2.254", "fd00:2::fe")
            }
        };
        let rig::AgentRig { agent, handles, .. } =
            rig::agent(&text, HZ, (vec![port], &frames), None);
        let keys = key.map(|key| [10, 11, 12, 13].map(|id| (id, key.clone())));
        let signer = Signer::new(keys.into_iter().flatten(), || 1_000_000); // the sequence of the current time
        let agent = agent.with_signer(signer.map(Arc::new));
        let mut server = Self { agent, wire, worker_ends: Vec::new(), handles, now: 0 };
        for at in 0..4 {
            let worker_end = server.handles.claim(at);
            server.after(100);
            worker_end.start();
            server.worker_ends.push(worker_end);
        }
        server
    }

    /// Polls `ticks` microseconds later.
    fn after(&mut self, ticks: u64) {
        self.now += ticks;
        self.agent.poll(self.now);
    }

    /// Delivers these packets to the agent and lets the workers serve their tasks. Returns the agent's packets.
    fn exchange(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        for frame in frames {
            assert!(self.wire.send(frame));
        }
        self.after(100);
        while self.worker_ends.iter_mut().any(work) {
            self.after(1);
        }
        self.after(100);
        std::iter::from_fn(|| self.wire.receive()).map(|frame| frame.bytes().to_vec()).collect()
    }

    /// Returns the agent's drops by reason.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        let counters = self.agent.counters();
        let all = DropReason::ALL.iter();
        all.map(|&reason| (reason.name(), counters.dropped(reason)))
            .filter(|drop| drop.1 > 0)
            .collect()
    }
}

/// Exchanges packets between leaf and server for a second, in which workers with the leaf's key register. Returns the
/// server's packets.
fn register(rig: &mut Rig, server: &mut Server) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..40 {
        let messages = server.exchange(&answers);
        answers.clear();
        for frame in &messages {
            answers.extend(
                rig.through(WORKERS, frame, WORKERS).iter().map(|frame| frame.bytes().to_vec()),
            );
        }
        sent.extend(messages);
        server.after(HZ / 40);
    }
    sent
}

/// Returns a worker's presence at the leaf.
fn presence(rig: &Rig, worker: u16) -> MemberPresence {
    rig.leaf.stages().dispatcher(0).unwrap().view().presence(Member(worker - 10))
}

// promise: trust.3
#[test]
fn agent_with_key_registers_and_stays_alive() {
    for family in FAMILIES {
        let mut rig = family.leaf(Some(key(1)), 1).remove(0);
        let mut server = Server::new(family, Some(key(1)));
        register(&mut rig, &mut server);
        assert_eq!(server.agent.registered(), 4);
        assert_eq!(
            (rig.count(Counter::Registrations), presence(&rig, 13)),
            (4, MemberPresence::Registered)
        );
        assert!(rig.count(Counter::KeepAlives) > 0);
        let mut answered = 0;
        for seq in 0..32 {
            let header = Header { extended: seq % 2 == 0, ..Header::new_task(7, seq) };
            let task = rig.through(CLIENTS, &family.task(header), WORKERS).remove(0);
            let bytes = task.bytes().to_vec();
            if !family.is_first_servers(&bytes) {
                continue; // to a worker that does not exist
            }
            let replies = server.exchange(std::slice::from_ref(&bytes));
            let reply = replies.iter().find(|frame| family.header(frame).code.is_reply()).unwrap();
            let replies = rig.through(WORKERS, reply, CLIENTS);
            assert_eq!(replies.len(), 1, "{:?}", rig.drops());
            let (reply, header) = (replies[0].bytes(), family.header(replies[0].bytes()));
            assert!(header.authenticated && family.is_to_client(reply));
            // The client finds the worker's answer after the length in the header.
            let (payload, sent) = (&reply[family.payload()..], &bytes[family.payload()..]);
            assert_eq!(payload[header.len()..], sent[Header::parse(sent).unwrap().len()..]);
            answered += 1;
        }
        assert!(answered > 0);
        assert_eq!(rig.count(Counter::Replies), answered);
        assert_eq!((rig.drops(), server.drops()), (vec![], vec![]));
        rig.assert_accounted();
    }
}

/// Returns the router's answer to the agent's question among these frames, if there is one.
fn routers_answer(frames: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mac = Mac([2, 0, 0, 0, 2, 0xFE]);
    frames.iter().find_map(|frame| {
        if let Ok(question) = arp::Packet::parse(frame) {
            let mut bytes = vec![0; arp::FRAME_LEN];
            question.answer(mac).emit(&mut bytes, server_mac(0));
            return Some(bytes);
        }
        let question = ndp::Packet::parse(frame).ok()?;
        let mut bytes = vec![0; ndp::FRAME_LEN];
        let (answer, to) = question.answer(mac, server_mac(0));
        answer.emit(&mut bytes, to, true);
        Some(bytes)
    })
}

// promise: packets.2, trust.3
#[test]
fn completion_reports_are_proved_as_replies_are() {
    for family in FAMILIES {
        let mut rig = family.direct_leaf(Some(key(1)));
        let mut server = Server::new(family, Some(key(1)));
        register(&mut rig, &mut server);
        let mut sent = Vec::new();
        for seq in 0..32 {
            let task = rig.through(CLIENTS, &family.task(Header::new_task(7, seq)), WORKERS);
            let bytes = task[0].bytes().to_vec();
            if ether::dst(&bytes) != server_mac(0) {
                continue; // to a worker that does not exist
            }
            let frames = server.exchange(&[bytes]);
            if let Some(answer) = routers_answer(&frames) {
                server.exchange(&[answer]);
            }
            sent.extend(frames);
        }
        // Frames of the agent with this code. The task header has 11 bytes.
        let codes = |code: Code| {
            let is_datagram = |frame: &&Vec<u8>| frame.len() >= family.payload() + 11;
            let datagrams = sent.iter().filter(is_datagram).filter(|frame| !is_question(frame));
            datagrams.filter(move |frame| family.header(frame).code == code).collect::<Vec<_>>()
        };
        // The agent does not know the next hop to the client yet, so its first reply passes the leaf, signed. All
        // others go to the client, without a proof.
        let replies = codes(Code::TaskDoneIdle);
        let is_signed = |frame: &&&Vec<u8>| family.header(frame).authenticated;
        assert_eq!(replies.iter().filter(is_signed).count(), 1);
        assert!(replies.len() > 1 && replies[1..].iter().all(|frame| family.is_to_client(frame)));
        let reports = codes(Code::Completions);
        assert_eq!(reports.len(), replies.len() - 1);
        let altered = |at: usize| {
            let mut frame = reports[0].clone();
            frame[at] ^= 1;
            // Without a checksum over IPv4; over IPv6 it is mandatory, and computed again.
            match family {
                Family::V4 => frame[40..42].fill(0),
                Family::V6 => frame = with_checksum(frame),
            }
            frame
        };
        // Offset of the entries, behind header (11 bytes) and proof (16). Bytes 3 and 7 of the first entry belong to
        // the number of remaining tasks and the service time.
        let entries = family.payload() + 11 + 16;
        for (frame, reason) in [
            (&altered(entries + 3), "auth_tag"),
            (&altered(entries + 7), "auth_tag"),
            (reports[0], "none"),
            (reports[0], "auth_replay"),
        ] {
            let before = rig.drops();
            assert!(rig.through(WORKERS, frame, WORKERS).is_empty());
            let new = rig.drops().into_iter().find(|drop| !before.contains(drop));
            assert_eq!(new.map_or("none", |(reason, _)| reason), reason, "{family:?}");
        }
        assert_eq!((rig.count(Counter::Completions), rig.count(Counter::Replies)), (1, 0));
        // A server with another key, or none.
        for (key, reason) in [(Some(key(2)), "auth_tag"), (None, "auth_missing")] {
            let forged = family.forged_report(key);
            let before = rig.drops();
            rig.through(WORKERS, &forged, WORKERS);
            let new = rig.drops().into_iter().find(|drop| !before.contains(drop));
            assert_eq!(new.map(|(reason, _)| reason), Some(reason), "{family:?}");
        }
        assert_eq!(rig.count(Counter::Completions), 1);
        rig.assert_accounted();
    }
}

// promise: scheduling.6
#[test]
fn queue_reports_are_proved_as_registrations_are() {
    for family in FAMILIES {
        let mut rig = family.leaf(Some(key(1)), 1).remove(0);
        rig.set_policy("lsq-update");
        rig.leaf.stages_mut().set_reports(0, Reports::Messages);
        let mut server =
            Server::with_lines(family, Some(key(1)), "leaf_policy = 'lsq-update(eps=1)'\n");
        let messages = register(&mut rig, &mut server);
        assert_eq!(rig.count(Counter::QueueReports), 4, "each reports to its leaf");
        let header = |frame: &[u8]| family.header(frame);
        let reports: Vec<_> =
            messages.iter().filter(|frame| header(frame).code == Code::QueueReport).collect();
        assert!(reports.len() == 4 && reports.iter().all(|frame| header(frame).authenticated));
        // The leaf accepts them neither replayed nor altered.
        let mut altered = reports[0].clone();
        altered[family.payload() + 8] ^= 1;
        match family {
            Family::V4 => altered[40..42].fill(0),
            Family::V6 => udp::renew_checksum_v6(&mut altered),
        }
        for (frame, reason) in [(reports[1], "auth_replay"), (&altered, "auth_tag")] {
            assert!(rig.through(WORKERS, frame, WORKERS).is_empty());
            assert!(rig.drops().contains(&(reason, 1)), "{:?}", rig.drops());
        }
        assert_eq!((rig.count(Counter::QueueReports), server.drops()), (4, vec![]));
        rig.assert_accounted();
    }
}

// promise: trust.3
#[test]
fn counters_distinguish_wrong_and_missing_keys() {
    for family in FAMILIES {
        let registered = |rig: &Rig, server: &Server| {
            (rig.count(Counter::Registrations), server.agent.registered())
        };
        // Bytes of the leaf's and of the server's key; `None` for no key.
        for (leaf_key, server_key, reason) in [
            (Some(1), Some(2), "auth_tag"),
            (Some(1), None, "auth_missing"),
            (None, Some(1), "task_reserved_bit"),
        ] {
            let mut rig = family.leaf(leaf_key.map(key), 1).remove(0);
            let mut server = Server::new(family, server_key.map(key));
            let sent = register(&mut rig, &mut server);
            assert_eq!(rig.drops(), [(reason, sent.len() as u64)]);
            assert_eq!(registered(&rig, &server), (0, 0), "{reason}");
            assert_eq!(presence(&rig, 10), MemberPresence::Unregistered, "{reason}");
            rig.assert_accounted();
        }
    }
}

// promise: trust.3
#[test]
fn replayed_packet_is_refused_on_every_core() {
    for family in FAMILIES {
        let mut cores = family.leaf(Some(key(1)), 2);
        let mut server = Server::new(family, Some(key(1)));
        let messages = register(&mut cores[0], &mut server);
        let count = |rig: &Rig| rig.drops().iter().map(|(_, count)| count).sum::<u64>();
        for rig in &mut cores {
            // The first core has accepted these messages already, and the cores share the numbers of accepted ones.
            // Replays count neither as registrations nor as keep-alives.
            let before =
                [Counter::Registrations, Counter::KeepAlives].map(|counter| rig.count(counter));
            for frame in &messages {
                assert!(rig.through(WORKERS, frame, WORKERS).is_empty());
            }
            assert_eq!(rig.drops(), [("auth_replay", messages.len() as u64)]);
            let after =
                [Counter::Registrations, Counter::KeepAlives].map(|counter| rig.count(counter));
            assert_eq!((before, count(rig)), (after, messages.len() as u64));
        }
    }
}

/// Altered in flight, or claimed for another worker or client: the tag covers all fields that the leaf uses,
/// and the client's address.
// promise: trust.3
#[test]
fn altered_or_moved_packet_is_refused() {
    let mut rig = Family::V4.leaf(Some(key(1)), 1).remove(0);
    let signed = |header: Header, sequence| {
        let mut frame = reply_from(SERVERS[0], Header { authenticated: true, ..header });
        let datagram = udp::parse(&frame, false).unwrap();
        let addresses = addresses(datagram.src, datagram.dst);
        frame.truncate(udp::PAYLOAD);
        frame.extend([0; 60]);
        let payload = &mut frame[udp::PAYLOAD..];
        Header { authenticated: true, ..header }.emit(payload);
        key(1).sign(&addresses, payload, sequence);
        assert!(SignedPacket::read(&addresses, payload).is_some());
        let flow = Flow {
            src_mac: server_mac(0),
            dst_mac: LEAF_MACS[WORKERS],
            src: datagram.src,
            dst: datagram.dst,
            src_port: 1234,
            dst_port: 40_000,
        };
        flow.emit(&mut frame, 60);
        // Without a checksum, so that only the tag shows the change.
        frame[40..42].fill(0);
        frame
    };
    let good = signed(done(10, 3), 1 << 20);
    // Offsets of the worker's id, the queue length, and the last byte of the client's address.
    for (at, change) in [(46, "another worker"), (50, "another length"), (33, "another client")] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let client = ipv4::dst(&bad[14..]);
        ipv4::emit(&mut bad[14..], SERVERS[0], client, ipv4::UDP, 68); // with a valid checksum
        assert!(rig.through(WORKERS, &bad, CLIENTS).is_empty(), "{change}");
    }
    assert_eq!(rig.drops(), [("auth_tag", 3)]);
    assert_eq!(rig.through(WORKERS, &good, CLIENTS).len(), 1);
    assert!(rig.through(WORKERS, &good, CLIENTS).is_empty());
    assert_eq!(rig.drops(), [("auth_tag", 3), ("auth_replay", 1)]);
    assert_eq!(rig.count(Counter::Replies), 1);
    rig.assert_accounted();
}

// promise: trust.3
#[test]
fn altered_or_moved_ipv6_packet_is_refused() {
    let mut rig = rigs_of(&v6::text("horus", ""), Some(key(1)), false, 256).remove(0);
    rig.resolve_v6_servers();
    // The leaf learns the client's address from the first task.
    assert_eq!(rig.through(CLIENTS, &Family::V6.task(Header::new_task(7, 1)), WORKERS).len(), 1);
    let header = Header { authenticated: true, ..done(10, 3) };
    let mut payload = vec![0; 60];
    header.emit(&mut payload);
    let (server, client) = (v6::V6_SERVERS[0], v6::NEAR);
    key(1).sign(&auth::addresses_v6(bits(server), bits(client)), &mut payload, 1 << 20);
    let flow = Flow {
        src_mac: server_mac(0),
        dst_mac: LEAF_MACS[WORKERS],
        ..v6::flow(server, client, (1234, 40_000))
    };
    let mut good = vec![0; udp::PAYLOAD_V6 + payload.len()];
    good[udp::PAYLOAD_V6..].copy_from_slice(&payload);
    flow.emit_v6(&mut good, payload.len());
    let (task, client) = (udp::PAYLOAD_V6, ether::LEN + ipv6::LEN - 1);
    let proof = task + header.len() - auth::LEN;
    for (at, change) in [
        (task + 4, "another worker"),
        (task + 8, "another length"),
        (client, "another client"),
        (client - 15, "a client far away"),
        (proof + 7, "another sequence"),
        (proof + 8, "another tag"),
    ] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        udp::renew_checksum_v6(&mut bad); // so that only the tag shows the change
        let before = rig.drops();
        assert!(rig.through(WORKERS, &bad, CLIENTS).is_empty(), "{change}");
        assert_ne!(before, rig.drops(), "{change}");
    }
    assert_eq!(rig.drops(), [("auth_tag", 6)]);
    assert_eq!(rig.through(WORKERS, &good, CLIENTS).len(), 1);
    assert!(rig.through(WORKERS, &good, CLIENTS).is_empty());
    assert_eq!(rig.drops(), [("auth_tag", 6), ("auth_replay", 1)]);
    assert_eq!(rig.count(Counter::Replies), 1);
    rig.assert_accounted();
}

// promise: trust.3
#[test]
fn agent_refuses_unproved_acknowledgements() {
    for family in FAMILIES {
        let mut server = Server::new(family, Some(key(1)));
        let registration = server.exchange(&[]).remove(0);
        let header = family.header(&registration);
        assert!(header.authenticated && header.code == Code::WorkerId);
        let acknowledgement = header.acknowledged_by(9, 1);
        let flow = Flow {
            src_mac: LEAF_MACS[WORKERS],
            dst_mac: server_mac(0),
            src: LEAF_WORKERS,
            dst: SERVERS[0],
            src_port: 1234,
            dst_port: 1234,
        };
        let frame_with = |header: Header| {
            let mut payload = vec![0; header.len()];
            header.emit(&mut payload);
            let frame = frame(&flow, &payload);
            let Flow { src_mac, dst_mac, .. } = flow;
            let ends = v6::flow(v6::LEAF[1], v6::V6_SERVERS[0], (1234, 1234));
            match family {
                Family::V4 => frame,
                Family::V6 => over_ipv6(&frame, &Flow { src_mac, dst_mac, ..ends }),
            }
        };
        let bare = frame_with(Header { authenticated: false, ..acknowledgement });
        server.exchange(&[frame_with(acknowledgement), bare]);
        assert_eq!(server.drops(), [("auth_missing", 1), ("auth_tag", 1)]);
        assert_eq!(server.agent.registered(), 0);
    }
}
