//! Neighbours of the leaf: learning of MAC addresses, probing of hosts, and loss of hosts. The leaf asks for a MAC
//! address by ARP. It probes a known host by a question to the known address, and asks all hosts only if that stays
//! silent. A claim is any packet by which a host claims an IP address; it does not change an address that still
//! answers.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `assert_accounted` ends the leaf. Then it checks that each received packet was
//! sent on, consumed or dropped, and that every buffer is back.
//! `rig_with` takes whether the leaf knows the MAC addresses of its servers and of the client, and how many packets a
//! port holds.

use wedjat_core::limits::UNRESOLVED_HELD_MAX;
use wedjat_core::state::MemberPresence;

use super::*;

/// MAC address of a host that is neither the client nor a server.
const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 9, 9]);
/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Returns an ARP reply of a server, or of a host that claims its address.
fn answer(server: usize, mac: Mac) -> Vec<u8> {
    let mut frame = vec![0; arp::FRAME_LEN];
    let question = arp::Packet::request(LEAF_MACS[WORKERS], LEAF_WORKERS, SERVERS[server]);
    question.answer(mac).emit(&mut frame, LEAF_MACS[WORKERS]);
    frame
}

/// Returns an ARP request for the leaf's address from a client, or from a host that claims a client's address. `from`
/// is the sender's IP address.
fn request(from: u32, mac: Mac) -> Vec<u8> {
    let mut frame = vec![0; arp::FRAME_LEN];
    arp::Packet::request(mac, from, LEAF_CLIENTS).emit(&mut frame, Mac::BROADCAST);
    frame
}

impl Rig {
    /// Returns the leaf's ARP requests for hosts behind a port, without announcements of its own addresses: requested
    /// address and destination MAC address.
    fn questions(&mut self, port: usize) -> Vec<(u32, Mac)> {
        let mut requests = self.requests(port);
        requests.retain(|(target, _)| ![LEAF_CLIENTS, LEAF_WORKERS].contains(target));
        requests
    }

    /// Returns the leaf's ARP requests and announcements from a port: target address and destination MAC address. Does
    /// not tell ARP replies from requests. Drops other packets.
    fn requests(&mut self, port: usize) -> Vec<(u32, Mac)> {
        let frames = self.receive(port);
        let parse = |frame: &Frame| {
            let packet = arp::Packet::parse(frame.bytes()).ok()?;
            (ether::ether_type(frame.bytes()) == ether::ARP)
                .then(|| (packet.target, ether::dst(frame.bytes())))
        };
        frames.iter().filter_map(parse).collect()
    }

    /// Advances time by `ns` in steps of 1 ms, with a poll after each. Returns the requests as [`Rig::questions`] does.
    fn questions_within(&mut self, port: usize, ns: u64) -> Vec<(u32, Mac)> {
        let mut all = Vec::new();
        for _ in 0..ns / 1_000_000 {
            self.wait(1_000_000);
            all.extend(self.questions(port));
        }
        all
    }

    /// Returns the MAC address that the leaf knows of a server.
    fn server_mac_known(&self, server: usize) -> Option<Mac> {
        let neighbours = self.leaf.stages().neighbours();
        neighbours.find(WORKERS, SERVERS[server]).and_then(|slot| neighbours.mac(slot))
    }

    /// Lets the leaf resolve both servers: delivers their ARP replies, and drops the leaf's requests.
    fn resolve_servers(&mut self) {
        self.poll();
        for server in 0..2 {
            assert!(self.far[WORKERS].send(&answer(server, server_mac(server))));
        }
        self.poll();
        self.receive(WORKERS);
        assert_eq!(self.server_mac_known(1), Some(server_mac(1)));
    }

    /// Returns the presence of each worker, from 10 to 17.
    fn presences(&self) -> Vec<MemberPresence> {
        let view = self.leaf.stages().dispatcher(0).unwrap().view();
        (0..8).map(|member| view.presence(Member(member))).collect()
    }
}

// promise: trust.1
#[test]
fn a_client_is_known_by_its_tasks() {
    let mut rig = rig_with("horus", true, false, 256);
    let (_, sent, _) = rig.one(CLIENTS, &task(1), WORKERS);
    let (.., reply) = rig.one(WORKERS, &reply(sent.dst, 0), CLIENTS);
    assert_eq!(ether::dst(reply.bytes()), CLIENT_MAC);
    drop(reply);
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn moved_server_is_found() {
    let mut rig = rig_with("round-robin", false, true, 256);
    rig.resolve_servers();
    // Server 1 was replaced by a machine with another MAC address, so questions to the old one are not answered.
    // Workers below 14 are on server 0, which answers.
    let mut questions = Vec::new();
    for seq in 0..300 {
        let sent = rig.through(CLIENTS, &task(seq), WORKERS);
        let workers = sent.iter().filter_map(|frame| {
            let datagram = udp::parse(frame.bytes(), false).ok()?;
            Some(Header::parse(&frame.bytes()[datagram.payload()..]).unwrap().dst)
        });
        for worker in workers.filter(|&worker| worker < 14).collect::<Vec<_>>() {
            drop(rig.through(WORKERS, &reply(worker, 0), CLIENTS));
        }
        for question in rig.questions_within(WORKERS, 10_000_000) {
            questions.push(question);
            if question.1 != server_mac(1) {
                assert!(rig.far[WORKERS].send(&answer(1, OTHER_MAC)));
            }
        }
    }
    assert_eq!(questions[..3], [(SERVERS[1], server_mac(1)); 3], "the known one is asked first");
    assert_eq!(questions[3], (SERVERS[1], Mac::BROADCAST));
    let later = &questions[4..];
    assert!(later.iter().all(|&(_, to)| to == OTHER_MAC), "and then it is known: {questions:?}");
    assert_eq!(rig.server_mac_known(1), Some(OTHER_MAC));
    rig.assert_accounted();
}

// promise: membership.4
#[test]
fn unreachable_server_is_excluded_until_it_answers() {
    for policy in ["horus", "jbsq(k=2)", "random"] {
        let mut rig = rig_with(policy, false, true, 256);
        rig.resolve_servers();
        rig.through(CLIENTS, &task(0), WORKERS);
        for at in 1..400 {
            let sent = rig.through(CLIENTS, &task(at), WORKERS);
            for frame in sent {
                let Ok(datagram) = udp::parse(frame.bytes(), false) else { continue };
                let worker = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap().dst;
                if worker < 14 {
                    drop(rig.through(WORKERS, &reply(worker, 0), CLIENTS));
                }
            }
            rig.wait(10_000_000);
        }
        let presences = rig.presences();
        assert_eq!(presences[4..], [MemberPresence::Unreachable; 4], "{policy} {presences:?}");
        assert_eq!(presences[..4], [MemberPresence::Configured; 4], "{policy}");
        assert_eq!(rig.count(Counter::WorkersLost), 4);
        assert_eq!((4..8).map(|at| rig.outstanding(at)).collect::<Vec<_>>(), [0; 4], "{policy}");
        let chosen = |rig: &mut Rig| {
            (0..40_u16)
                .map(|at| {
                    let worker = rig.one(CLIENTS, &task(at), WORKERS).1.dst;
                    drop(rig.through(WORKERS, &reply(worker, 0), CLIENTS));
                    worker
                })
                .collect::<std::collections::BTreeSet<_>>()
        };
        rig.receive(WORKERS);
        assert!(chosen(&mut rig).iter().all(|&worker| worker < 14), "{policy}");
        // The leaf keeps probing it. Its answer makes it reachable again.
        let questions = rig.questions_within(WORKERS, 3 * SECOND);
        assert!(questions.contains(&(SERVERS[1], Mac::BROADCAST)), "{policy}");
        drop(rig.through(WORKERS, &answer(1, server_mac(1)), WORKERS));
        rig.wait(20_000_000);
        rig.receive(WORKERS);
        assert_eq!(rig.presences()[4..], [MemberPresence::Configured; 4], "{policy}");
        assert_eq!(rig.count(Counter::WorkersBack), 4);
        let back = (0..10).flat_map(|_| chosen(&mut rig)).any(|worker| worker >= 14);
        // Horus chooses the worker that became idle last, so it may keep to workers 10 to 13.
        assert!(back || policy == "horus", "{policy}");
        rig.assert_accounted();
    }
}

// promise: trust.1
#[test]
fn link_loss_clears_neighbours_and_return_probes_servers() {
    let mut rig = rig_with("horus", false, true, 256);
    rig.resolve_servers();
    let neighbours = rig.leaf.stages().neighbours().clone();
    neighbours.set_link(WORKERS, false);
    assert_eq!(rig.server_mac_known(0), None);
    for _ in 0..300 {
        rig.wait(10_000_000);
    }
    assert_eq!(
        rig.presences(),
        [MemberPresence::Configured; 8],
        "nobody can answer without a link"
    );
    rig.receive(WORKERS);
    neighbours.set_link(WORKERS, true);
    let questions = rig.questions_within(WORKERS, 2_000_000);
    assert_eq!(questions.len(), 2, "{questions:?}");
    drop(rig.through(WORKERS, &answer(0, OTHER_MAC), WORKERS));
    assert_eq!(rig.server_mac_known(0), Some(OTHER_MAC));
    rig.assert_accounted();
}

// promise: ports.2
#[test]
fn link_up_is_announced_once() {
    let mut rig = rig_with("horus", true, true, 256);
    rig.leaf = rig.leaf.with_link_up_delay();
    let neighbours = rig.leaf.stages().neighbours().clone();
    let mut requests_after = |is_up: Option<bool>| {
        is_up.into_iter().for_each(|is_up| neighbours.set_link(CLIENTS, is_up));
        for _ in 0..20 {
            rig.wait(1_000_000);
        }
        rig.requests(CLIENTS)
    };
    assert!(requests_after(None).is_empty(), "the link was up at the start");
    assert!(requests_after(Some(false)).is_empty());
    assert_eq!(requests_after(Some(true)), [(LEAF_CLIENTS, Mac::BROADCAST)]);
    assert!(requests_after(None).is_empty(), "once");
    rig.assert_accounted();
}

/// Builds a leaf whose workers' link is down, with 300 tasks in the device of its clients' port. The leaf has a link-up
/// delay: for up to 250 ms it does not poll the clients' port while workers are unreachable.
fn with_tasks_before_workers() -> Rig {
    let mut rig = rig_with("horus", false, true, 512);
    rig.leaf = rig.leaf.with_link_up_delay();
    rig.leaf.stages().neighbours().set_link(WORKERS, false);
    assert!((0..300).all(|seq| rig.far[CLIENTS].send(&task(seq))));
    rig
}

// promise: scheduling.3
#[test]
fn early_tasks_wait_in_the_device() {
    let mut rig = with_tasks_before_workers();
    for _ in 0..100 {
        rig.wait(1_000_000);
    }
    assert_eq!(rig.count(Counter::RxPackets), 0);
    rig.leaf.stages().neighbours().set_link(WORKERS, true);
    rig.wait(1_000_000);
    assert_eq!(rig.questions(WORKERS).len(), 2, "servers are asked at once");
    for server in 0..2 {
        assert!(rig.far[WORKERS].send(&answer(server, server_mac(server))));
    }
    let mut tasks = 0;
    for _ in 0..50 {
        rig.wait(200_000);
        tasks += rig.receive(WORKERS).len();
    }
    assert_eq!((tasks, rig.count(Counter::Scheduled), rig.drops()), (300, 300, vec![]));
    rig.assert_accounted();
}

// promise: scheduling.3
#[test]
fn tasks_wait_briefly_after_each_link_up() {
    let mut rig = with_tasks_before_workers();
    let polls = |rig: &mut Rig, ms: u64| (0..ms).for_each(|_| rig.wait(1_000_000));
    polls(&mut rig, 240);
    assert_eq!(rig.count(Counter::RxPackets), 0);
    polls(&mut rig, 30);
    assert_eq!(rig.count(Counter::RxPackets), 300);
    let neighbours = rig.leaf.stages().neighbours().clone();
    for is_up in [false, true] {
        neighbours.set_link(CLIENTS, is_up);
        polls(&mut rig, 1);
        assert!(rig.far[CLIENTS].send(&task(1)));
        polls(&mut rig, 100);
    }
    assert_eq!(rig.count(Counter::RxPackets), 300);
    polls(&mut rig, 200);
    assert_eq!(rig.count(Counter::RxPackets), 302);
    rig.assert_accounted();
}

#[test]
fn tasks_behind_a_down_port_are_dropped() {
    let mut rig = with_tasks_before_workers();
    let polls = |rig: &mut Rig, ms: u64| (0..ms).for_each(|_| rig.wait(1_000_000));
    polls(&mut rig, 300);
    let held = UNRESOLVED_HELD_MAX as u64;
    assert_eq!(rig.drops(), [("port_down", 300 - held)]);
    // Held tasks are sent as soon as the link is up and the servers have answered.
    rig.leaf.stages().neighbours().set_link(WORKERS, true);
    rig.wait(1_000_000);
    for server in 0..2 {
        assert!(rig.far[WORKERS].send(&answer(server, server_mac(server))));
    }
    let is_task = |frame: &&Frame| ether::ether_type(frame.bytes()) == ether::IPV4;
    let mut tasks = 0;
    for _ in 0..50 {
        rig.wait(200_000);
        tasks += rig.receive(WORKERS).iter().filter(is_task).count() as u64;
    }
    assert_eq!(tasks, held);
    rig.assert_accounted();
    // They are dropped for the same reason if the link stays down.
    rig.leaf.stages().neighbours().set_link(WORKERS, false);
    assert!((0..3).all(|seq| rig.far[CLIENTS].send(&task(seq))));
    polls(&mut rig, 1000);
    assert_eq!(rig.drops(), [("port_down", 303 - held)]);
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn claims_change_nothing_that_is_alive() {
    let mut rig = rig_with("horus", false, false, 256);
    rig.resolve_servers();
    drop(rig.through(CLIENTS, &task(1), WORKERS));
    let neighbours = rig.leaf.stages().neighbours().clone();
    let client = neighbours.find(CLIENTS, CLIENT).unwrap();
    for _ in 0..3 {
        // Unsolicited replies, gratuitous ARP, requests in another's name, and tasks from another's address.
        drop(rig.through(WORKERS, &answer(0, OTHER_MAC), WORKERS));
        let mut gratuitous = vec![0; arp::FRAME_LEN];
        arp::Packet::request(OTHER_MAC, SERVERS[1], SERVERS[1])
            .emit(&mut gratuitous, Mac::BROADCAST);
        drop(rig.through(WORKERS, &gratuitous, WORKERS));
        drop(rig.through(CLIENTS, &request(CLIENT, OTHER_MAC), CLIENTS));
        let mut stolen = task(2);
        stolen[6..12].copy_from_slice(&OTHER_MAC.0);
        drop(rig.through(CLIENTS, &stolen, WORKERS));
        rig.wait(1_000_000);
        // The leaf probes the known hosts, which answer.
        for (target, to) in rig.questions_within(WORKERS, 100_000_000) {
            let server = SERVERS.iter().position(|&ip| ip == target).unwrap();
            assert_eq!(to, server_mac(server), "nobody else is asked");
            drop(rig.through(WORKERS, &answer(server, server_mac(server)), WORKERS));
        }
        for (target, to) in rig.questions(CLIENTS) {
            assert_eq!((target, to), (CLIENT, CLIENT_MAC));
            drop(rig.through(CLIENTS, &task(3), WORKERS));
        }
    }
    assert_eq!(neighbours.mac(client), Some(CLIENT_MAC));
    assert_eq!([0, 1].map(|at| rig.server_mac_known(at)), [0, 1].map(|at| Some(server_mac(at))));
    assert!(rig.drops().iter().any(|&(name, count)| name == "arp_conflict" && count >= 6));
    rig.receive(WORKERS);
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn client_recovers_from_a_claimed_address() {
    let mut rig = rig_with("horus", false, false, 256);
    rig.resolve_servers();
    let neighbours = rig.leaf.stages().neighbours().clone();
    let slot = neighbours.insert(CLIENTS, CLIENT, 0);
    neighbours.learn(slot, OTHER_MAC, 0);
    // The client's task contradicts the entry. The leaf probes the known host, which is silent, and then all
    // hosts.
    drop(rig.through(CLIENTS, &task(1), WORKERS));
    let questions = rig.questions_within(CLIENTS, 150_000_000);
    let expected = [OTHER_MAC, OTHER_MAC, OTHER_MAC, Mac::BROADCAST].map(|to| (CLIENT, to));
    assert_eq!(questions, expected);
    drop(rig.through(CLIENTS, &task(2), WORKERS));
    assert_eq!(neighbours.mac(slot), Some(CLIENT_MAC));
    rig.receive(WORKERS);
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn invalid_mac_addresses_are_never_learnt() {
    let mut rig = rig_with("horus", true, false, 256);
    let out = rig.through(WORKERS, &reply(10, 0), CLIENTS);
    assert_eq!(arp::Packet::parse(out[0].bytes()).unwrap().target, CLIENT);
    drop(out);
    let neighbours = rig.leaf.stages().neighbours().clone();
    for mac in [Mac::default(), LEAF_MACS[CLIENTS], LEAF_MACS[WORKERS], Mac::BROADCAST] {
        drop(rig.through(CLIENTS, &request(CLIENT, mac), CLIENTS));
        let slot = neighbours.find(CLIENTS, CLIENT).unwrap();
        assert_eq!(neighbours.mac(slot), None, "{mac}");
    }
    rig.assert_accounted();
}

// promise: trust.1
#[test]
fn invented_hosts_exclude_no_host() {
    let mut rig = rig_with("horus", true, false, 256);
    // Addresses 10.0.1.3 to 10.0.1.202.
    let invented = |at: u32| 0x0A00_0103 + at % 200;
    for at in 0..20_000_u32 {
        let mac = Mac([2, 1, 0, (at >> 16) as u8, (at >> 8) as u8, at as u8]);
        assert!(rig.far[CLIENTS].send(&request(invented(at), mac)));
        // Replies to clients that do not exist need entries, too.
        let mut reply = reply(10, 0);
        // Bytes 30 to 33 are the destination address; 24 and 40 begin the checksums of IPv4 and UDP.
        let client = invented(at / 3).to_be_bytes();
        reply[30..34].copy_from_slice(&client);
        reply[24..26].fill(0);
        let sum = PartialChecksum::default().bytes(&reply[14..34]).checksum();
        reply[24..26].copy_from_slice(&sum.to_be_bytes());
        reply[40..42].fill(0);
        assert!(rig.far[WORKERS].send(&reply));
        // 100 us per round, of which `poll` adds one: 10,000 requests a second.
        rig.now += 99_000;
        rig.poll();
        rig.receive(CLIENTS);
    }
    // A new client requests the leaf's address, sends a task, and gets its reply.
    let frames = rig.through(CLIENTS, &request(CLIENT, CLIENT_MAC), CLIENTS);
    let packets: Vec<_> =
        frames.iter().filter_map(|frame| arp::Packet::parse(frame.bytes()).ok()).collect();
    let ours = packets.iter().filter(|packet| packet.target == CLIENT);
    assert_eq!(ours.count(), 1, "{packets:?} {:?}", rig.drops());
    drop(frames);
    let (_, sent, _) = rig.one(CLIENTS, &task(1), WORKERS);
    let replies = rig.through(WORKERS, &reply(sent.dst, 0), CLIENTS);
    let to_client = replies.iter().filter(|frame| ether::dst(frame.bytes()) == CLIENT_MAC).count();
    assert_eq!(to_client, 1);
    drop(replies);
    rig.assert_accounted();
}
