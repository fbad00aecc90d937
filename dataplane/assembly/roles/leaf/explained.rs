//! Records of `wedjat explain` about a pool with rules for classes, and decisions with and without records. Tasks of
//! class 1 take 10 us, those of class 2 take 1 ms. The fixtures are those of [`super::central`].

use std::collections::VecDeque;

use wedjat_core::node::explain::{Explainer, Fate, Filter, Moment, Record, Records};
use wedjat_core::node::tap::{TapCommands, TapOrder};
use wedjat_core::wire::task::FULL;

use super::direct::report;
use super::*;

/// Returns the service time of a class.
fn service_ns(class: u16) -> u32 {
    if class == 1 { 10_000 } else { 1_000_000 }
}

/// Returns a packet with this header, and an extension with this class and its service time.
fn frame_of_class(flow: &Flow, header: Header, class: u16) -> Vec<u8> {
    let mut payload = [0xAB; 40];
    Header { extended: true, ..header }.emit(&mut payload);
    let (seq32, service_ns) = (u32::from(header.seq), service_ns(class));
    Extension { app: 3, seq32, service_ns, class }.emit(&mut payload);
    frame(flow, &payload)
}

/// Returns a client's task.
fn task_of_class(seq: u16, class: u16) -> Vec<u8> {
    frame_of_class(&client_flow(), Header::new_task(7, seq), class)
}

/// Returns the reply of a worker without further tasks.
fn reply_of_class(worker: u16, class: u16) -> Vec<u8> {
    let flow = Flow {
        src_mac: server_mac(0),
        dst_mac: LEAF_MACS[WORKERS],
        src: SERVERS[usize::from(worker - 10) / 4],
        dst: CLIENT,
        src_port: 1234,
        dst_port: 40_000,
    };
    frame_of_class(&flow, done(worker, 0), class)
}

/// Builds a leaf with idle workers that has measured both classes, and no round trip. It then records all packets.
fn measured(policy: &str) -> (Rig, Arc<Records>) {
    let mut rig = rigs_with(policy, true, true, 256, 1, (64, Overflow::Drop)).remove(0);
    let (commands, records) = (TapCommands::default(), Arc::<Records>::default());
    rig.leaf = rig.leaf.with_tap(commands.clone());
    for seq in 0..200 {
        let class = 1 + seq % 2;
        let (_, header, _) = rig.one(CLIENTS, &task_of_class(seq, class), WORKERS);
        rig.now += u64::from(service_ns(class)) - 1000; // `through` adds a microsecond
        rig.through(WORKERS, &reply_of_class(header.dst, class), CLIENTS);
        rig.wait(1_000_000);
    }
    let explainer = Explainer::new(Filter::default(), u64::MAX, Arc::clone(&records));
    commands.push(TapOrder::explain(2, Some(explainer))).unwrap();
    rig.wait(1_000_000);
    (rig, records)
}

/// Delivers tasks of this class, one a poll. Returns their records.
fn explain_tasks(rig: &mut Rig, records: &Records, class: u16, count: u16) -> Vec<Record> {
    for seq in 0..count {
        rig.through(CLIENTS, &task_of_class(seq, class), WORKERS);
    }
    std::iter::from_fn(|| records.next()).collect()
}

/// Returns the lane of a record's task, the number of tasks that wait there, and the next lane.
fn order_of(record: &Record) -> (usize, usize, usize) {
    let class = record.beliefs.as_ref().unwrap().class.unwrap();
    (class.lane.index(), class.waiting, class.next.index())
}

// promise: control.3
#[test]
fn waiting_long_task_is_explained_by_the_reserve() {
    let (mut rig, records) = measured("eft(boost=1, reserve=2)");
    // Workers 10 and 11 are reserved. Six long tasks fill the remaining workers, and two wait.
    let long = explain_tasks(&mut rig, &records, 2, 8);
    for (at, record) in long.iter().enumerate() {
        let beliefs = record.beliefs.as_ref().unwrap();
        let class = beliefs.class.unwrap();
        assert_eq!(record.seen.class(), Some(2));
        assert!(class.is_long && class.avoids_reserve, "{class:?}");
        assert_eq!((class.delay_ns, class.reserved, class.reserved_with_room), (1_000_000, 2, 2));
        assert_eq!(order_of(record), (2, at.saturating_sub(6), 2));
        let estimates = beliefs.estimates.iter().zip(&beliefs.workers);
        assert!(estimates.clone().count() == 8, "{beliefs:?}");
        for (estimate, &worker) in estimates {
            assert_eq!(class.is_reserved(estimate.member), worker < 12);
        }
        match record.fate {
            Fate::Sent { worker, .. } => assert!(at < 6 && worker >= 12, "{record:?}"),
            fate => assert!(at >= 6 && fate == Fate::Queued, "{record:?}"),
        }
    }
    // Short tasks take the reserved workers. The third one waits, and goes before the long ones.
    let short = explain_tasks(&mut rig, &records, 1, 3);
    let sent = short.iter().filter(|record| record.worker.is_some_and(|worker| worker < 12));
    assert_eq!((sent.count(), short[2].fate), (2, Fate::Queued), "{short:?}");
    assert_eq!(order_of(&short[2]), (1, 0, 1));
    let class = short[2].beliefs.as_ref().unwrap().class.unwrap();
    assert_eq!((class.is_long, class.delay_ns, class.reserved_with_room), (false, 10_000, 0));
    let last = explain_tasks(&mut rig, &records, 2, 1);
    assert_eq!((last[0].fate, order_of(&last[0])), (Fate::Queued, (2, 2, 1)));
    rig.through(WORKERS, &reply_of_class(12, 2), WORKERS);
    let waited: Vec<_> = std::iter::from_fn(|| records.next())
        .filter(|record| record.moment == Moment::Waited)
        .map(|record| (record.worker, order_of(&record)))
        .collect();
    assert_eq!(waited, [(Some(12), (1, 1, 1))]);
    rig.assert_accounted();
}

/// The earlier task has the least key, although it joins its queue only after the decisions on its burst.
#[test]
fn next_task_may_be_of_the_same_burst() {
    let (mut rig, records) = measured("jbsq(k=1, boost=1)");
    explain_tasks(&mut rig, &records, 2, 8); // fills all workers
    for class in [1, 2] {
        rig.send(CLIENTS, &task_of_class(8 + class, class));
    }
    rig.poll();
    let waiting = std::iter::from_fn(|| records.next());
    let waiting: Vec<_> = waiting.map(|record| (record.fate, order_of(&record))).collect();
    assert_eq!(waiting, [(Fate::Queued, (1, 0, 1)), (Fate::Queued, (2, 0, 1))]);
    rig.assert_accounted();
}

#[test]
fn policy_without_rules_explains_no_class() {
    let (mut rig, records) = measured("eft");
    let explained = explain_tasks(&mut rig, &records, 2, 1).remove(0);
    assert_eq!(explained.seen.class(), Some(2));
    assert_eq!(explained.beliefs.unwrap().class, None);
    rig.assert_accounted();
}

/// Two nodes that get the same packets at the same times. The second one records all packets.
struct Twins {
    /// Cores of each node.
    nodes: [Vec<Rig>; 2],
    /// Workers of the tasks without an answer, in the order of their departure.
    tasks: VecDeque<u16>,
    /// Questions for MAC addresses without an answer.
    questions: Vec<arp::Packet>,
    /// Tasks come from a client behind the workers' port.
    is_one_armed: bool,
    /// Servers answer the clients themselves.
    is_direct: bool,
    /// Sequence number of the next task.
    seq: u16,
}

impl Twins {
    /// Starts nodes with this pool. `replies` is the key of its configuration. With `servers_known`, the nodes know the
    /// MAC addresses of the servers.
    fn new(
        pool: (&str, usize),
        cores: usize,
        replies: &str,
        side: Side,
        servers_known: bool,
    ) -> Self {
        let networks = Networks { sides: [Side::Clients, side], registers: false, key: None };
        let queue = (pool.1, Overflow::Drop);
        let text = config_text(&networks, pool.0, servers_known, cores, queue);
        let text = text.replace("policy = ", &format!("replies = '{replies}'\npolicy = "));
        let [node, other] = [(); 2].map(|()| rigs_of(&text, None, true, 256));
        let mut twins = Self {
            nodes: [node, other.into_iter().map(explaining).collect()],
            tasks: VecDeque::new(),
            questions: Vec::new(),
            is_one_armed: side == Side::Both,
            is_direct: replies == "direct",
            seq: 0,
        };
        (0..cores).for_each(|core| twins.poll(core, 1_000_000));
        twins
    }

    /// Delivers a frame to this core of both nodes.
    fn send(&mut self, core: usize, port: usize, frame: &[u8]) {
        self.nodes.iter_mut().for_each(|node| assert!(node[core].far[port].send(frame)));
    }

    /// Delivers the next task to a core.
    fn send_task(&mut self, core: usize) {
        let mut payload = [0; 20];
        Header::new_task(7, self.seq).emit(&mut payload);
        self.seq += 1;
        match self.is_one_armed {
            false => self.send(core, CLIENTS, &frame(&client_flow(), &payload)),
            true => {
                let (dst_mac, dst) = (LEAF_MACS[WORKERS], LEAF_WORKERS);
                let flow = Flow { dst_mac, src: 0x0A00_0232, dst, ..client_flow() };
                self.send(core, WORKERS, &frame(&flow, &payload));
            }
        }
    }

    /// Delivers the answer to the first unanswered task to a core.
    fn answer(&mut self, core: usize) {
        let Some(worker) = self.tasks.pop_front() else { return };
        let server = usize::from(worker - 10) / 4;
        let mut answer = match self.is_direct {
            true => report(server, &[(worker, 0)]),
            false => reply(worker, 0),
        };
        answer[6..12].copy_from_slice(&server_mac(server).0);
        self.send(core, WORKERS, &answer);
    }

    /// Answers the leaf's ARP requests.
    fn resolve(&mut self, core: usize) {
        for question in std::mem::take(&mut self.questions) {
            let server = SERVERS.iter().position(|&ip| ip == question.target);
            let Some(server) = server else { continue };
            let mut frame = [0; arp::FRAME_LEN];
            question.answer(server_mac(server)).emit(&mut frame, LEAF_MACS[WORKERS]);
            self.send(core, WORKERS, &frame);
        }
    }

    /// Polls a core of both nodes, and compares what they send and count.
    fn poll(&mut self, core: usize, ns: u64) {
        for node in &mut self.nodes {
            let now = node[core].now + ns;
            node.iter_mut().for_each(|rig| rig.now = now);
            node[core].leaf.poll(now);
        }
        let [one, other] = self.nodes.each_mut().map(|node| &mut node[core]);
        for port in [CLIENTS, WORKERS] {
            let [frames, of_other] = [&mut *one, other].map(|rig| rig.receive(port));
            let bytes = |frames: &[Frame]| frames.iter().map(unmarked).collect::<Vec<_>>();
            assert_eq!(bytes(&frames), bytes(&of_other));
            for frame in &frames {
                if let Ok(question) = arp::Packet::parse(frame.bytes()) {
                    self.questions.push(question);
                    continue;
                }
                let header = Header::parse(&frame.bytes()[udp::PAYLOAD..]).unwrap();
                self.tasks.extend(header.code.is_task().then_some(header.dst));
            }
        }
        assert_eq!(one.drops(), other.drops());
        let totals = |rig: &Rig| rig.leaf.stages().counters().totals();
        assert_eq!(totals(one), totals(other));
    }
}

/// Returns the bytes of a frame, without the mark of a task that fills its worker. A run marks all of its tasks for the
/// worker, and a single decision the last one.
fn unmarked(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.bytes().to_vec();
    if let Some(payload) = bytes.get(udp::PAYLOAD..)
        && Header::parse(payload).is_ok_and(|header| header.code.is_task())
    {
        bytes[udp::PAYLOAD + 8] &= !FULL; // the lower byte of `qlen`
        bytes[40..42].fill(0); // the UDP checksum
    }
    bytes
}

/// Returns the core with a record of all packets, from its next tick on.
fn explaining(mut rig: Rig) -> Rig {
    let commands = TapCommands::default();
    rig.leaf = rig.leaf.with_tap(commands.clone());
    let explainer = Explainer::new(Filter::default(), u64::MAX, Arc::default());
    commands.push(TapOrder::explain(2, Some(explainer))).unwrap();
    rig
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    // promise: control.3
    #[test]
    fn explained_core_decides_as_others(
        policy in proptest::sample::select(vec!["eft", "jbsq(k=1)", "cfcfs", "horus", "jsq"]),
        cores in 1..=3_usize,
        bound in 1..6_usize,
        (replies, side) in proptest::sample::select(vec![
            ("leaf", Side::Workers), ("leaf", Side::Both), ("direct", Side::Workers),
        ]),
        servers_known: bool,
        polls in proptest::collection::vec((0..3_usize, 0..30_usize, 0..30_usize, 0..8_u8), 1..60),
    ) {
        let mut twins = Twins::new((policy, bound), cores, replies, side, servers_known);
        for (core, tasks, answers, pause) in polls {
            let core = core % cores;
            // Tasks and answers in turn.
            for at in 0..tasks.max(answers) {
                if pause & 1 == 0 && at < tasks {
                    twins.send_task(core);
                }
                if pause & 2 == 0 && at < answers {
                    twins.answer(core);
                }
            }
            if pause == 7 {
                twins.resolve(core);
            }
            twins.poll(core, [1_000, 2_000, 10_000, 200_000][usize::from(pause) % 4]);
        }
    }
}
