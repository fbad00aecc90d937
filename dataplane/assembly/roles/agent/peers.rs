//! Agents of a rack without a leaf, on one segment in memory with a client. Node n has the address 10.0.2.(11 + n), or
//! its IPv6 translation.
//!
//! A client sends its task to any node. The node keeps it or forwards it to another node, its peer. A node without
//! tasks may *steal*: it requests a waiting task of a peer. The policy between nodes decides this: `random` keeps all
//! tasks, `jsq` forwards to the shortest queue, `rsteal` steals from a random peer, and `malcolm` learns. At the end of
//! each *beat*, an interval, a node sends a heartbeat with its load. The parameters of learners are averaged in a
//! *consensus* round.

use wedjat_core::peers::{FEATURES, Totals};
use wedjat_core::wire::peer::{
    BeatStatistics, ForwardingTrailer, Heartbeat, Origin, Parameters, VERSION, VIA_LEN,
};

use super::*;
use crate::roles::translated::{self, BOTH, as_v4};

/// Interval of a node's heartbeats in ticks. After ten missed heartbeats a node counts as silent.
const BEAT: u64 = 100;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);

/// Returns the address of a node.
fn address(node: usize) -> u32 {
    AGENT + node as u32
}

/// Returns the MAC address of a node.
fn mac(node: usize) -> Mac {
    Mac([2, 0, 0, 0, 2, 11 + node as u8])
}

/// Returns the configuration of the node with number `own` of `nodes`, with two workers. `policy` is the one between
/// nodes, and `queue` the bound of the node's queue.
fn peers_text(policy: &str, nodes: usize, own: usize, queue: usize) -> String {
    let all: Vec<_> = (0..nodes).map(|node| format!("'10.0.2.{}'", 11 + node)).collect();
    format!(
        "[agent]\nname = 'memory'\ncore = 0\nseed = 7\nslots = 8\npayload = {PAYLOAD}\nworker_timeout_ms = 0\n\
         [peers]\nnodes = [{}]\npolicy = '{policy}'\nbeat_us = {BEAT}\n\
         [[port]]\ndevice = 'memory'\nip = '10.0.2.{}/24'\nmac = '{}'\n\
         [[pool]]\nid = {POOL}\npolicy = 'jbsq(k=1)'\nworkers = '10-11'\nqueue = {queue}\n",
        all.join(","),
        11 + own,
        mac(own)
    )
}

/// One agent with the far end of its port.
struct Node {
    agent: Agent<RingPort, FramePool>,
    /// Far end of the agent's port.
    wire: RingPort,
    /// Region to which its workers attach.
    handles: AgentHandles,
    /// Attached workers.
    workers: Vec<WorkerEnd>,
    /// False to lose all frames from and to it.
    is_up: bool,
}

/// All nodes, connected by a switch that the test plays.
struct Segment {
    /// Family of the nodes and the client.
    family: translated::Family,
    nodes: Vec<Node>,
    /// Pool of packet buffers of all nodes.
    frames: FramePool,
    /// Answers that the client received: node of the source address, and header. The source address is that of the node
    /// to which the client sent the task, whichever node served it.
    answers: Vec<(usize, Header)>,
    /// Time in ticks of a microsecond.
    now: u64,
}

impl Segment {
    /// Creates nodes with two attached workers each, and lets them exchange heartbeats until they know each other.
    fn new(family: translated::Family, policy: &str, nodes: usize) -> Self {
        let mut segment = Self::of(family, policy, nodes, 16);
        segment.pass(20 * BEAT);
        for node in &segment.nodes {
            assert_eq!(node.agent.peers().unwrap().live().len(), nodes - 1);
            assert_eq!(node.agent.counters().read(Gauge::PeersLive), nodes as u64 - 1);
        }
        segment
    }

    /// Same as [`Segment::new`], before they know each other, and with this queue bound.
    fn of(family: translated::Family, policy: &str, nodes: usize, queue: usize) -> Self {
        let frames = FramePool::new(4096, 1200);
        let node = |own| {
            let (port, wire) = pair(512, &frames);
            let text = family.text(&peers_text(policy, nodes, own, queue));
            let AgentRig { agent, handles, .. } =
                rig::agent(&text, HZ, (vec![port], &frames), None);
            Node { agent, wire, handles, workers: Vec::new(), is_up: true }
        };
        let nodes = (0..nodes).map(node).collect();
        let mut segment = Self { family, nodes, frames, answers: Vec::new(), now: 0 };
        (0..segment.nodes.len()).for_each(|node| segment.attach_workers(node));
        segment
    }

    /// Attaches both workers of a node. Polls it twice, one interval of periodic work apart, because that work grants
    /// the claims.
    fn attach_workers(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.workers = (0..2).map(|at| node.handles.claim(at)).collect();
        node.agent.poll(self.now);
        self.now += 100;
        node.agent.poll(self.now);
        for worker in &mut node.workers {
            assert!(worker.receiver().is_granted());
            worker.start();
        }
    }

    /// Advances the time by `ticks`, and polls the nodes at each tick.
    fn pass(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.now += 1;
            self.settle();
        }
    }

    /// Polls the nodes and delivers their frames until none is in flight.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for node in self.nodes.iter_mut().filter(|node| node.is_up) {
                node.agent.poll(self.now);
            }
            for from in 0..self.nodes.len() {
                while let Some(frame) = self.nodes[from].wire.receive() {
                    moved = true;
                    self.deliver(from, frame.bytes());
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Delivers a frame of the node `from` to its destination: other nodes, or the client, which keeps the header.
    /// Frames to a node that is down are lost.
    fn deliver(&mut self, from: usize, bytes: &[u8]) {
        let to = ether::dst(bytes);
        assert_eq!(ether::src(bytes), mac(from));
        if to == CLIENT_MAC {
            let bytes = as_v4(bytes);
            let datagram = udp::parse(&bytes, false).unwrap();
            assert_eq!(
                (datagram.dst, datagram.dst_port, datagram.src_port),
                (CLIENT, 40_000, 1234)
            );
            let header = Header::parse(&bytes[datagram.payload()..]).unwrap();
            return self.answers.push(((datagram.src - AGENT) as usize, header));
        }
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if node.is_up && at != from && (to.is_group() || to == mac(at)) {
                assert!(node.wire.send(bytes));
            }
        }
    }

    /// Sends a client's task to a node. 77 is the client's number, which the reply returns in its `dst`.
    fn task(&mut self, node: usize, seq: u16) {
        let header = Header { extended: true, src: 77, ..Header::new_task(POOL, seq) };
        self.send(node, (CLIENT_MAC, CLIENT, 40_000), &header, b"question");
    }

    /// Delivers a packet from these source addresses and this UDP port to a node.
    fn send(&mut self, node: usize, from: (Mac, u32, u16), header: &Header, body: &[u8]) {
        let (src_mac, src, src_port) = from;
        let (dst_mac, dst, dst_port) = (mac(node), address(node), 1234);
        let flow = Flow { src_mac, dst_mac, src, dst, src_port, dst_port };
        let frame = fixtures::datagram(&flow, header, body);
        assert!(self.nodes[node].wire.send(&self.family.frame(&frame)));
        self.settle();
    }

    /// Sends a message of peers, with this code and content, from node `by` to node 0.
    fn peer_message(&mut self, by: usize, code: Code, message: &[u8]) {
        let header = Header::of_peers(code, POOL, (by as u16, 0), 0);
        self.send(0, (mac(by), address(by), 1234), &header, message);
    }

    /// Lets a worker of the node serve a task. Returns false if no worker has one.
    fn work(&mut self, node: usize) -> bool {
        let worked = self.nodes[node].workers.iter_mut().any(work);
        self.settle();
        worked
    }

    /// Completes all tasks of the nodes that are up.
    fn finish(&mut self) {
        while (0..self.nodes.len()).any(|node| self.nodes[node].is_up && self.work(node)) {
            self.pass(1);
        }
    }

    /// Returns a counter of a node.
    fn count(&self, node: usize, counter: Counter) -> u64 {
        self.nodes[node].agent.counters().read(counter)
    }

    /// Returns the totals of a node's decisions and messages between nodes.
    fn totals(&self, node: usize) -> Totals {
        *self.nodes[node].agent.peers().unwrap().totals()
    }

    /// Returns the number of packets that a node dropped for this reason.
    fn dropped(&self, node: usize, reason: DropReason) -> u64 {
        self.nodes[node].agent.counters().dropped(reason)
    }

    /// Checks that all ledgers balance, and only tasks that the agents hold still have buffers.
    fn assert_balanced(&mut self) {
        self.pass(200);
        let mut held = 0;
        for node in &self.nodes {
            assert!(node.agent.counters().balances());
            held += node.agent.held();
        }
        assert_eq!(self.frames.in_use(), held);
    }

    /// Checks that nothing was dropped.
    fn lossless(&self) {
        for node in &self.nodes {
            assert_eq!(node.agent.counters().totals().drops(), Default::default());
        }
    }
}

// promise: agent.4
#[test]
fn forwarded_tasks_are_answered_for_the_first_node() {
    for family in BOTH {
        let mut segment = Segment::new(family, "jsq", 3);
        for seq in 0..8 {
            segment.task(0, seq);
        }
        // The node's two workers take the first tasks. With tasks waiting here, the peers have shorter queues, and get
        // about half of the eight tasks.
        let passed = segment.count(0, Counter::TasksPassed);
        assert!((3..=5).contains(&passed), "{passed}");
        let accepted: u64 = (1..3).map(|node| segment.count(node, Counter::TasksTaken)).sum();
        assert_eq!(accepted, passed);
        assert_eq!(segment.count(0, Counter::Scheduled), 8 - passed);
        segment.finish();
        let mut answered: Vec<_> =
            segment.answers.iter().map(|(from, head)| (*from, head.seq)).collect();
        answered.sort_unstable();
        assert_eq!(answered, (0..8).map(|seq| (0, seq)).collect::<Vec<_>>());
        assert!(segment.answers.iter().all(|(_, head)| head.code.is_reply() && head.dst == 77));
        segment.lossless();
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn idle_node_steals_the_first_waiting_task() {
    for family in BOTH {
        let mut segment = Segment::new(family, "rsteal", 2);
        for seq in 0..6 {
            segment.task(0, seq);
        }
        // Node 1 steals when it completes its own task, and has none left.
        segment.task(1, 9);
        assert_eq!(segment.count(0, Counter::TasksPassed), 0, "all are kept");
        segment.pass(2000);
        assert!(segment.work(1));
        assert_eq!(
            (segment.count(1, Counter::StealRequests), segment.count(0, Counter::TasksGiven)),
            (1, 1)
        );
        assert_eq!(segment.count(1, Counter::TasksTaken), 1);
        // The first waiting task was the third to arrive.
        assert!(segment.work(1));
        let last = segment.answers.last().unwrap();
        assert_eq!((last.0, last.1.seq), (0, 2));
        segment.finish();
        assert_eq!(segment.answers.len(), 7);
        assert!(segment.answers.iter().all(|(from, head)| *from == usize::from(head.seq == 9)));
        // In the end no node has a task to give, so requests fail.
        let failed: u64 = (0..2).map(|node| segment.count(node, Counter::StealsFailed)).sum();
        let requests: u64 = (0..2).map(|node| segment.count(node, Counter::StealRequests)).sum();
        let given: u64 = (0..2).map(|node| segment.count(node, Counter::TasksGiven)).sum();
        assert!(failed > 0 && requests == failed + given, "{requests} = {failed} + {given}");
        segment.lossless();
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn twice_forwarded_task_keeps_its_first_node() {
    for family in BOTH {
        let mut segment = Segment::new(family, "rsteal", 2);
        // Node 1 receives four tasks as forwarded by node 0, and queues two of them. `origin` is the first node, and
        // `by` the last one that forwarded. After 254 hops, the next one reaches the largest number, 255.
        let via =
            ForwardingTrailer { version: VERSION, hops: 254, by: 0, origin: 0, mac: CLIENT_MAC };
        let mut body = b"question".to_vec();
        body.resize(8 + VIA_LEN, 0);
        via.emit(&mut body[8..]);
        for seq in 0..4 {
            let header = Header { code: Code::PassedTask, src: 77, ..Header::new_task(POOL, seq) };
            segment.send(1, (mac(0), CLIENT, 40_000), &header, &body);
        }
        segment.pass(2000);
        // Node 0 serves a task of its own, and then steals one back from node 1.
        segment.task(0, 9);
        assert!(segment.work(0));
        assert_eq!(
            (segment.count(0, Counter::StealRequests), segment.count(1, Counter::TasksGiven)),
            (1, 1)
        );
        segment.finish();
        assert_eq!(segment.answers.len(), 5);
        assert!(segment.answers.iter().all(|(from, _)| *from == 0), "{:?}", segment.answers);
        segment.lossless();
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn dead_node_loses_only_its_tasks() {
    for family in BOTH {
        let mut segment = Segment::new(family, "jsq", 3);
        segment.nodes[1].is_up = false;
        segment.pass(20 * BEAT);
        assert_eq!(segment.nodes[0].agent.peers().unwrap().live(), [2]);
        for seq in 0..10 {
            segment.task(0, seq);
        }
        assert!(segment.count(0, Counter::TasksPassed) >= 3);
        assert_eq!(segment.count(2, Counter::TasksTaken), segment.count(0, Counter::TasksPassed));
        segment.finish();
        assert_eq!(segment.answers.len(), 10);
        segment.nodes[1].is_up = true;
        while segment.nodes[1].wire.receive().is_some() {}
        segment.pass(20 * BEAT);
        assert_eq!(segment.nodes[0].agent.peers().unwrap().live(), [1, 2]);
        segment.lossless();
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn node_without_workers_is_not_announced() {
    for family in BOTH {
        let mut segment = Segment::new(family, "jsq", 2);
        segment.nodes[1].workers.clear();
        segment.pass(30 * BEAT);
        assert_eq!(segment.nodes[0].agent.peers().unwrap().live(), [0; 0]);
        assert_eq!(segment.nodes[1].agent.peers().unwrap().live(), [0], "it still hears node 0");
        for seq in 0..4 {
            segment.task(0, seq);
        }
        assert_eq!(segment.count(0, Counter::TasksPassed), 0);
        segment.finish();
        segment.attach_workers(1);
        segment.pass(20 * BEAT);
        assert_eq!(segment.nodes[0].agent.peers().unwrap().live(), [1]);
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn full_queue_drop_counts_as_failed_task() {
    for family in BOTH {
        // Under `random` a node keeps its tasks. Two are with its workers and two in its queue. A task beyond the queue
        // is dropped, and the policy between nodes learns of it.
        let mut segment = Segment::of(family, "random", 2, 2);
        segment.pass(20 * BEAT);
        for seq in 0..6 {
            segment.task(0, seq);
        }
        assert_eq!(segment.dropped(0, DropReason::QueueFull), 2);
        assert_eq!(segment.totals(0).failed_tasks, 2);
        segment.finish();
        assert_eq!(segment.answers.len(), 4);
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn learners_hear_each_other_and_agree() {
    for family in BOTH {
        let mut segment = Segment::new(family, "malcolm", 3);
        let first: Vec<_> =
            segment.nodes[0].agent.peers().unwrap().probabilities().unwrap().0.to_vec();
        let mut seq = 0;
        // Until the learners have completed a consensus round, which is due after 2000 beats: 200 ms. A task arrives
        // every 40 us, and each node serves one every 60 us.
        while segment.totals(0).agreed < 1 {
            if segment.now.is_multiple_of(40) {
                segment.task(seq as usize % 2, seq);
                seq = seq.wrapping_add(1);
            }
            segment.pass(1);
            if segment.now.is_multiple_of(60) {
                (0..3).for_each(|node| _ = segment.work(node));
            }
            assert!(segment.now < 300_000);
        }
        for node in 0..3 {
            let peers = segment.nodes[node].agent.peers().unwrap();
            let (migration, stealing) = peers.probabilities().unwrap();
            for probabilities in [migration, stealing] {
                assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-4);
            }
            assert!(peers.value_loss().unwrap() > 0.0);
            let Totals { heard, lost_parts, .. } = *peers.totals();
            // About 2000 heartbeats of each of two peers.
            assert!(heard > 3000 && lost_parts == 0, "{heard}, {lost_parts}");
            assert_eq!(segment.count(node, Counter::Heartbeats), heard);
        }
        assert_ne!(segment.nodes[0].agent.peers().unwrap().probabilities().unwrap().0, first);
        segment.finish();
        assert_eq!(segment.answers.len(), usize::from(seq));
        segment.lossless();
        segment.assert_balanced();
    }
}

/// Returns a heartbeat of the node `origin`.
fn heartbeat(origin: Origin, number: u64, load: f32) -> Vec<u8> {
    let mut bytes = vec![0; wedjat_core::wire::peer::HEARTBEAT_LEN];
    Heartbeat { origin, number, load, waiting: 1, done: BeatStatistics::default() }
        .emit(&mut bytes);
    bytes
}

// promise: agent.4
#[test]
fn invalid_peer_message_is_counted_and_ignored() {
    for family in BOTH {
        let mut segment = Segment::new(family, "malcolm", 3);
        let origin = Origin { id: 1, ..segment.nodes[1].agent.peers().unwrap().origin() };
        let known = |segment: &Segment| segment.nodes[0].agent.peers().unwrap().peer_state(1);
        let before = known(&segment);
        // A later start of node 1 than the known one (`born`), so that the message is not too old.
        let future = Origin { born: origin.born + 1, ..origin };
        // A heartbeat of node 1 with a changed origin.
        let beat = |change: fn(&mut Origin)| {
            let mut other = future;
            change(&mut other);
            heartbeat(other, 1, 50.0)
        };
        // A part of the learners' parameters, with these values. 64 bytes are enough for its head.
        let parameters = |head: Parameters, values: &[f32]| {
            let mut bytes = vec![0; 64 + 4 * values.len()];
            let len = head.emit(values, &mut bytes);
            bytes.truncate(len);
            bytes
        };
        // Three values are too few for a part of this network, and 16 are the right number.
        let head = Parameters { origin, round: 1, part: 0, parts: 1 };
        // A forwarded task without payload.
        let passed = |via: ForwardingTrailer| {
            let mut bytes = [0; VIA_LEN];
            via.emit(&mut bytes);
            bytes.to_vec()
        };
        let via =
            ForwardingTrailer { version: VERSION, hops: 1, by: 1, origin: 1, mac: CLIENT_MAC };
        let (beat_code, task) = (Code::Heartbeat, Code::PassedTask);
        use DropReason::*;
        // Sending node, message code, content, and the expected drop reason.
        let cases = [
            (1, beat_code, beat(|origin| origin.version = 9), PeerVersion),
            (1, beat_code, beat(|origin| origin.nodes = 4), PeerNodes),
            (1, beat_code, beat(|origin| origin.features = FEATURES + 1), PeerFeatures),
            (1, beat_code, beat(|origin| origin.id = 3), PeerStranger),
            (1, beat_code, beat(|origin| origin.id = 0), PeerStranger),
            (1, beat_code, beat(|origin| origin.id = 2), PeerStranger),
            (1, beat_code, heartbeat(future, 1, f32::NAN), PeerNotFinite),
            (1, beat_code, heartbeat(future, 1, f32::INFINITY), PeerNotFinite),
            (1, beat_code, heartbeat(future, 1, -1.0), PeerOutOfRange),
            (1, beat_code, heartbeat(origin, 0, 1.0), PeerOld),
            (1, beat_code, beat(|_| ())[..40].to_vec(), TaskShort),
            (1, beat_code, Vec::new(), TaskShort),
            (1, Code::StealRequest, vec![0; 16], PeerVersion),
            (2, Code::StealRequest, beat(|_| ())[..16].to_vec(), PeerStranger),
            (1, Code::StealRequest, vec![0; 15], TaskShort),
            (1, Code::Parameters, parameters(head, &[1.0; 3]), PeerLength),
            (1, Code::Parameters, parameters(head, &[f32::NAN; 16]), PeerNotFinite),
            (1, Code::Parameters, parameters(Parameters { round: 9, ..head }, &[1.0; 16]), PeerOld),
            (1, Code::Parameters, parameters(head, &[1e9; 16]), PeerOutOfRange),
            (1, task, Vec::new(), TaskShort),
            (1, task, passed(ForwardingTrailer { version: 2, ..via }), PeerVersion),
            (1, task, passed(ForwardingTrailer { by: 0, ..via }), PeerStranger),
            (1, task, passed(ForwardingTrailer { by: 2, ..via }), PeerStranger),
            (1, task, passed(ForwardingTrailer { by: 3, ..via }), PeerStranger),
            (1, task, passed(ForwardingTrailer { origin: 3, ..via }), PeerStranger),
        ];
        for (by, code, bytes, reason) in cases {
            let count = segment.dropped(0, reason);
            segment.peer_message(by, code, &bytes);
            assert_eq!(segment.dropped(0, reason), count + 1, "{code:?} by {by}: {reason:?}");
            assert_eq!(known(&segment), before, "{code:?}: {reason:?}");
        }
        // An accepted message arrives again. Then peer 1's messages come from a wrong MAC address, and from a wrong IP
        // address.
        let last = heartbeat(future, 5, 1.0);
        segment.peer_message(1, beat_code, &last);
        segment.peer_message(1, beat_code, &last);
        assert_eq!(segment.dropped(0, PeerDoubled), 1);
        let header = Header::of_peers(beat_code, POOL, (1, 0), 0);
        segment.send(0, (CLIENT_MAC, address(1), 1234), &header, &heartbeat(future, 6, 1.0));
        segment.send(0, (mac(1), CLIENT, 1234), &header, &heartbeat(future, 6, 1.0));
        // Three heartbeats, a request and four tasks above, and the last two heartbeats.
        assert_eq!(segment.dropped(0, PeerStranger), 3 + 1 + 4 + 2);
        segment.assert_balanced();
    }
}

// promise: agent.4
#[test]
fn agent_without_peers_refuses_peer_messages() {
    let mut rig = Rig::new("cfcfs", 1, 16, Overflow::Drop);
    for code in [Code::Heartbeat, Code::StealRequest, Code::PassedTask, Code::Parameters] {
        rig.send(&frame(&Header::of_peers(code, POOL, (1, 0), 0), &[0; 64]));
    }
    assert_eq!(rig.dropped(DropReason::TaskRole), 4);
    rig.assert_balanced();
}

proptest! {
    // promise: agent.4
    #[test]
    // The messages' bytes are random.
    fn any_messages_are_taken_or_counted(
        messages in proptest::collection::vec(
            (0..4_u8, 0..4_u8, proptest::collection::vec(any::<u8>(), 0..80), any::<bool>()), 1..40,
        ),
        is_v6 in any::<bool>(),
    ) {
        let mut segment = Segment::of(BOTH[usize::from(is_v6)], "malcolm", 2, 16);
        segment.pass(3 * BEAT);
        let origin = segment.nodes[1].agent.peers().unwrap().origin();
        for (code, by, mut bytes, is_likely) in messages {
            // Some begin like valid ones.
            if is_likely && bytes.len() > 40 {
                Origin { born: origin.born + 1, ..origin }.emit(&mut bytes);
            }
            // The four codes of peers' messages are 21 to 24.
            let code = Code::from_bits(21 + code).unwrap();
            segment.peer_message(usize::from(by % 2) ^ 1, code, &bytes);
        }
        let node = &segment.nodes[0];
        prop_assert!(node.agent.counters().balances());
        let (migration, _) = node.agent.peers().unwrap().probabilities().unwrap();
        prop_assert!(migration.iter().all(|probability| probability.is_finite()));
    }
}
