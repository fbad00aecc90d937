//! An agent between a port in memory and workers of the same thread: the test makes every step itself. Also the
//! fixtures of the submodules' tests.
//!
//! An agent gives the tasks of a host to its workers. A worker claims a channel of the region, memory shared with the
//! agent, and the agent grants the claim at its next tick (100 us): the worker is then attached. The agent registers
//! attached workers with its leaf, and sends keep-alives. A `Rig` is an agent with the far end of its port, where the
//! test plays leaf and clients. The ledger is the accounting of packets: received ones equal those sent on, consumed,
//! dropped and held.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;
use wedjat_core::io::Buf;
use wedjat_core::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat_core::node::explain::{Explainer, Filter, Record, Records};
use wedjat_core::node::tap::{TapCommands, TapOrder};
use wedjat_core::policy::{CATALOGUE, Dispatcher, Lane, Overflow, Runs};
use wedjat_core::reason::DropReason;
use wedjat_core::ring::{WorkerEnd, WorkerIdentity};
use wedjat_core::role::agent::*;
use wedjat_core::state::counters::CounterKind;
use wedjat_core::state::{Counter, Counters, Gauge};
use wedjat_core::wire::arp::{self, Operation};
use wedjat_core::wire::ether::{self, Mac};
use wedjat_core::wire::task::{self, Code, Extension, Header, NO_MEMBER};
use wedjat_core::wire::udp::{self, Datagram, Flow};
use wedjat_core::wire::{ipv6, ndp};

use super::fixtures::{self, HZ, TIMEOUT, work};
use crate::rig::{self, AgentHandles, AgentRig};

mod direct;
mod peers;
mod reports;
mod threads;

/// 10.0.2.11.
const AGENT: u32 = 0x0A00_020B;
const AGENT_MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
/// 10.0.2.1. Its packets, and those of clients, come from `LEAF_MAC`.
const LEAF: u32 = 0x0A00_0201;
const LEAF_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// 10.0.1.2.
const CLIENT: u32 = 0x0A00_0102;
const POOL: u16 = 3;
/// Maximum bytes of a task or reply.
const PAYLOAD: usize = 100;

/// Address family of the agent, its leaves and clients. An IPv6 address ends with the host's IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Prefix of all IPv6 addresses, fd00:2::/96. The lower 32 bits are the host's IPv4 address.
const V6: u128 = 0xFD00_0002 << 96;

/// Returns the IPv6 address of a host with this IPv4 address.
fn v6(host: u32) -> u128 {
    V6 | u128::from(host)
}

impl Family {
    /// Returns the address of a host in this family.
    fn ip(self, host: u32) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from_bits(host).into(),
            Self::V6 => Ipv6Addr::from_bits(v6(host)).into(),
        }
    }

    /// Returns the configuration `text`, written for IPv4, with addresses of this family.
    fn text(self, text: &str) -> String {
        match self {
            Self::V4 => text.to_owned(),
            Self::V6 => {
                // All hosts that configurations name, in descending order: 10.0.2.1 is a prefix of 10.0.2.11.
                (0x0A00_0201..0x0A00_0210).rev().fold(text.replace("/24", "/64"), |text, host| {
                    let [old, new] = FAMILIES.map(|family| family.ip(host).to_string());
                    text.replace(&old, &new)
                })
            }
        }
    }

    /// Returns the offset of the UDP payload in a frame.
    fn payload(self) -> usize {
        match self {
            Self::V4 => udp::PAYLOAD,
            Self::V6 => udp::PAYLOAD_V6,
        }
    }

    /// Parses a UDP datagram of this family and checks its checksums.
    fn parse(self, frame: &[u8]) -> Result<Datagram<IpAddr>, DropReason> {
        match self {
            Self::V4 => {
                let datagram = udp::parse(frame, false)?;
                Ok(datagram.map_addresses(|host| Ipv4Addr::from_bits(host).into()))
            }
            Self::V6 => {
                let datagram = udp::parse_v6(frame, false)?;
                Ok(datagram.map_addresses(|host| Ipv6Addr::from_bits(host).into()))
            }
        }
    }

    /// Returns a packet with this task header to this host at the agent's MAC address, with these UDP ports. Hosts are
    /// given by their IPv4 addresses.
    fn packet(
        self,
        (src, src_mac): (u32, Mac),
        (dst, src_port, dst_port): (u32, u16, u16),
        header: &Header,
        body: &[u8],
    ) -> Vec<u8> {
        let flow = Flow { src_mac, dst_mac: AGENT_MAC, src, dst, src_port, dst_port };
        match self {
            Self::V4 => fixtures::datagram(&flow, header, body),
            Self::V6 => {
                let flow = Flow {
                    src_mac,
                    dst_mac: AGENT_MAC,
                    src: v6(src),
                    dst: v6(dst),
                    src_port,
                    dst_port,
                };
                fixtures::datagram(&flow, header, body)
            }
        }
    }

    /// Returns a client's packet to the agent, as the leaf forwards it.
    fn frame(self, header: &Header, body: &[u8]) -> Vec<u8> {
        self.packet((CLIENT, LEAF_MAC), (AGENT, 40_000, 1234), header, body)
    }

    /// Returns a question for the MAC address of `target`, from the host `by` at the leaf's MAC address.
    fn question(self, by: u32, target: u32) -> Vec<u8> {
        match self {
            Self::V4 => {
                let mut bytes = vec![0; arp::FRAME_LEN];
                arp::Packet::request(LEAF_MAC, by, target).emit(&mut bytes, Mac::BROADCAST);
                bytes
            }
            Self::V6 => {
                let mut bytes = vec![0; ndp::FRAME_LEN];
                let (question, to) = ndp::Packet::question(LEAF_MAC, v6(by), v6(target), None);
                question.emit(&mut bytes, to, false);
                bytes
            }
        }
    }

    /// Returns the address whose MAC address the agent's frame asks for; `None` if the frame is no such question.
    /// Checks that the question is the agent's.
    fn question_target(self, frame: &[u8]) -> Option<IpAddr> {
        match self {
            Self::V4 => {
                let question = arp::Packet::parse(frame).ok()?;
                assert_eq!((question.sender, question.sender_mac), (AGENT, AGENT_MAC));
                (question.operation == Operation::Request).then(|| self.ip(question.target))
            }
            Self::V6 => {
                let question = ndp::Packet::parse(frame).ok()?;
                assert_eq!(question.mac, Some(AGENT_MAC));
                let asks = question.operation == ndp::Operation::Solicitation;
                asks.then(|| Ipv6Addr::from_bits(question.target).into())
            }
        }
    }

    /// Returns the answer to a question for a MAC address, from the host at `mac` to the agent.
    fn answer(self, question: &[u8], mac: Mac) -> Vec<u8> {
        match self {
            Self::V4 => {
                let mut bytes = vec![0; arp::FRAME_LEN];
                let question = arp::Packet::parse(question).unwrap();
                question.answer(mac).emit(&mut bytes, AGENT_MAC);
                bytes
            }
            Self::V6 => {
                let mut bytes = vec![0; ndp::FRAME_LEN];
                let question = ndp::Packet::parse(question).unwrap();
                let (answer, to) = question.answer(mac, AGENT_MAC);
                answer.emit(&mut bytes, to, true);
                bytes
            }
        }
    }

    /// Returns an unsolicited announcement of a host's MAC address.
    fn announcement(self, host: u32, mac: Mac) -> Vec<u8> {
        match self {
            Self::V4 => {
                let question = arp::Packet::request(LEAF_MAC, host, host);
                let mut bytes = vec![0; arp::FRAME_LEN];
                arp::Packet { sender_mac: mac, ..question }.emit(&mut bytes, Mac::BROADCAST);
                bytes
            }
            Self::V6 => {
                let (operation, dst) = (ndp::Operation::Advertisement, ipv6::ALL_NODES);
                let mut bytes = vec![0; ndp::FRAME_LEN];
                let (src, target, mac) = (v6(host), v6(host), Some(mac));
                let advertisement = ndp::Packet { operation, src, dst, target, mac };
                advertisement.emit(&mut bytes, ipv6::group_mac(dst), true);
                bytes
            }
        }
    }
}

/// Returns the identities of workers 10, 11 and so on, for links to threads.
fn identities(workers: u16) -> Vec<WorkerIdentity> {
    (0..workers).map(|index| WorkerIdentity { id: 10 + index, pool: POOL }).collect()
}

/// Returns an agent's configuration with `workers` workers, 10, 11 and so on, in one pool. Its central queue holds
/// `queue` tasks; those beyond are dropped, or refused to their client.
fn text(policy: &str, workers: u16, queue: usize, overflow: Overflow) -> String {
    let (last, timeout) = (9 + workers, 1000 * TIMEOUT / HZ);
    let overflow = if overflow == Overflow::Refuse { "refuse" } else { "drop" };
    format!(
        "[agent]\nname = 'memory'\ncore = 0\nseed = 7\nleaf = '10.0.2.1'\nslots = 8\npayload = {PAYLOAD}\n\
         worker_timeout_ms = {timeout}\n\
         [[port]]\ndevice = 'memory'\nip = '10.0.2.11/24'\nmac = '{AGENT_MAC}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\nworkers = '10-{last}'\nqueue = {queue}\n\
         overflow = '{overflow}'\n"
    )
}

/// Agent with one port, whose far end is `wire`.
struct Rig {
    agent: Agent<RingPort, FramePool>,
    wire: RingPort,
    /// Pool of the agent's packet buffers.
    frames: FramePool,
    /// Region, whose channels the test claims for workers, and queue of the deaths that the test reports.
    handles: AgentHandles,
    family: Family,
    /// Time in ticks of a microsecond.
    now: u64,
}

impl Rig {
    /// Creates a rig with workers 10, 11 and so on, none attached.
    fn new(policy: &str, workers: u16, queue: usize, overflow: Overflow) -> Self {
        Self::over(Family::V4, policy, workers, queue, overflow)
    }

    /// Same as [`Rig::new`], with addresses of this family.
    fn over(family: Family, policy: &str, workers: u16, queue: usize, overflow: Overflow) -> Self {
        Self::of((family, policy), None, workers, queue, overflow)
    }

    /// Same as [`Rig::over`], with these links to threads; `None` for workers that attach to the region.
    fn of(
        (family, policy): (Family, &str),
        links: Option<Vec<WorkerLink<Packet<Frame>>>>,
        workers: u16,
        queue: usize,
        overflow: Overflow,
    ) -> Self {
        Self::of_text(family, &text(policy, workers, queue, overflow), links)
    }

    /// Creates a rig of this family. `text` is its configuration with IPv4 addresses.
    fn of_text(family: Family, text: &str, links: Option<Vec<WorkerLink<Packet<Frame>>>>) -> Self {
        let frames = FramePool::new(256, 512);
        let (port, wire) = pair(128, &frames);
        let text = family.text(text);
        let AgentRig { agent, handles, .. } = rig::agent(&text, HZ, (vec![port], &frames), links);
        Self { agent, wire, frames, handles, family, now: 0 }
    }

    /// Polls `ticks` later.
    fn after(&mut self, ticks: u64) {
        self.now += ticks;
        self.agent.poll(self.now);
    }

    /// Attaches the worker with this index, and checks that the agent grants its claim.
    fn attach_worker(&mut self, index: usize) -> WorkerEnd {
        let worker_end = self.handles.claim(index);
        self.after(100);
        assert!(worker_end.receiver().is_granted());
        worker_end.start();
        worker_end
    }

    /// Delivers a frame to the agent, which polls one tick later.
    fn send(&mut self, frame: &[u8]) {
        assert!(self.wire.send(frame));
        self.after(1);
    }

    /// Delivers a task that names worker `dst`, or none (`NO_MEMBER`), with a sequence number. 77 is the client's
    /// number, which the reply returns in its `dst`.
    fn task(&mut self, dst: u16, seq: u16, payload: &[u8]) {
        let header = Header { dst, src: 77, ..Header::new_task(POOL, seq) };
        self.send(&self.family.frame(&header, payload));
    }

    /// Returns the replies from the wire: header, and the payload for the client. Checks their addresses, and skips
    /// neighbour questions and registrations.
    fn replies(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut replies = Vec::new();
        while let Some(packet) = self.wire.receive() {
            let (bytes, family) = (packet.bytes(), self.family);
            if family.question_target(bytes).is_some() {
                continue;
            }
            let datagram = family.parse(bytes).unwrap();
            assert_eq!((datagram.src, datagram.src_port), (family.ip(AGENT), 1234));
            assert_eq!(bytes.len(), usize::from(datagram.end));
            let payload = &bytes[datagram.payload()..];
            let header = Header::parse(payload).unwrap();
            if header.code.is_reply() {
                assert_eq!((datagram.dst, datagram.dst_port), (family.ip(CLIENT), 40_000));
                assert_eq!((ether::dst(bytes), ether::src(bytes)), (LEAF_MAC, AGENT_MAC));
                assert_eq!(header.dst, 77);
                replies.push((header, payload[header.len()..].to_vec()));
            }
        }
        replies
    }

    /// Returns the number of packets dropped for this reason.
    fn dropped(&self, reason: DropReason) -> u64 {
        self.agent.counters().dropped(reason)
    }

    /// Returns the attach statistics of the only pool: numbers of workers that joined, and that ended by each cause.
    fn attach_stats(&self) -> AttachStats {
        self.agent.attach_stats().next().unwrap()
    }

    /// Checks that the ledger balances and every buffer except those of held tasks is back. Polls first, because the
    /// agent publishes its number of held tasks at its ticks.
    fn assert_balanced(&mut self) {
        self.after(200);
        while self.wire.receive().is_some() {}
        assert!(self.agent.counters().balances());
        assert_eq!(self.frames.in_use(), self.agent.held());
    }
}

/// Returns a client's packet over IPv4.
fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    Family::V4.frame(header, payload)
}

#[test]
fn worker_serves_task_and_client_gets_reply() {
    for family in FAMILIES {
        let mut rig = Rig::over(family, "cfcfs", 2, 16, Overflow::Drop);
        let worker_end = rig.attach_worker(1);
        // The fixture adds an extension: application 5, sequence number 0xABCD_0006, class 4.
        let header = Header { extended: true, src: 77, ..Header::new_task(POOL, 6) };
        rig.send(&family.frame(&header, b"question"));
        let task = worker_end.take().unwrap().unwrap();
        assert_eq!(worker_end.payload(&task), b"question");
        assert_eq!(
            worker_end.ids(&task),
            wedjat_core::ring::TaskIds { app: 5, seq: 0xABCD_0006, class: 4 }
        );
        let answer = |_: &[u8], reply: &mut [u8]| {
            reply[..20].copy_from_slice(b"a much longer answer");
            20
        };
        worker_end.answer(task, answer, || 2500).unwrap();
        rig.after(1);
        // The reply is the last packet, after the agent's question for its leaf.
        let packet = std::iter::from_fn(|| rig.wire.receive()).last().unwrap();
        let datagram = family.parse(packet.bytes()).unwrap();
        let payload = &packet.bytes()[datagram.payload()..];
        let header = Header::parse(payload).unwrap();
        assert_eq!((header.code, header.src, header.dst), (Code::TaskDoneIdle, 11, 77));
        assert_eq!((header.qlen, header.seq, header.pool), (0, 6, POOL));
        let extension = Extension { app: 5, seq32: 0xABCD_0006, service_ns: 2500, class: 4 };
        assert_eq!(Extension::parse(payload), extension);
        assert_eq!(&payload[header.len()..], b"a much longer answer");
        drop(packet);
        rig.assert_balanced();
    }
}

/// Tasks of class 4 take 1 ms, and those without a class 10 us. One without a class overtakes one of class 4. The
/// records for `wedjat explain` contain this order.
// promise: scheduling.3
#[test]
fn short_task_overtakes_a_waiting_long_one() {
    let mut rig = Rig::new("jbsq(k=1, boost=1)", 1, 16, Overflow::Drop);
    let worker_end = rig.attach_worker(0);
    let send = |rig: &mut Rig, extended: bool, seq| {
        // The fixture's extension has class 4.
        let header = Header { extended, src: 77, ..Header::new_task(POOL, seq) };
        rig.send(&frame(&header, &[]));
    };
    // Answers the task at the worker, and returns its class.
    let answer = |rig: &mut Rig| {
        let task = worker_end.take().unwrap()?;
        let class = worker_end.ids(&task).class;
        let service_ns = if class == 4 { 1_000_000 } else { 10_000 };
        worker_end.answer(task, |_: &[u8], _: &mut [u8]| 0, || service_ns).unwrap();
        rig.after(1);
        rig.replies();
        Some(class)
    };
    for seq in 0..200 {
        send(&mut rig, seq % 2 == 0, seq);
        assert!(answer(&mut rig).is_some());
    }
    let (commands, records) = (TapCommands::default(), Arc::<Records>::default());
    rig.agent = rig.agent.with_tap(commands.clone());
    let explainer = Explainer::new(Filter::default(), u64::MAX, Arc::clone(&records));
    commands.push(TapOrder::explain(2, Some(explainer))).unwrap();
    rig.after(200);
    for (extended, seq) in [(true, 200), (true, 201), (false, 202)] {
        send(&mut rig, extended, seq);
    }
    let lanes_of = |record: Record| {
        let class = record.beliefs.unwrap().class.unwrap();
        [class.lane, class.next].map(Lane::index)
    };
    let lanes: Vec<_> = std::iter::from_fn(|| records.next()).map(lanes_of).collect();
    assert_eq!(lanes, [[4, 4], [4, 4], [0, 0]], "lane of each task, and the next lane");
    let order = [(); 4].map(|()| answer(&mut rig));
    assert_eq!(order, [Some(4), Some(0), Some(4), None]);
    rig.assert_balanced();
}

// promise: batch.2
#[test]
fn watched_agent_publishes_times_and_queues() {
    // A batch job on the workers' cores watches the agent: it reads the times and the queue from the region. Its
    // request is valid for a second.
    let mut rig = Rig::new("jbsq(k=2)", 1, 16, Overflow::Drop);
    let watch = rig.handles.region.watch();
    let mut worker_end = rig.attach_worker(0);
    do_one(&mut rig, &mut worker_end, 0);
    assert_eq!(watch.times().count(), 0, "no times without a request");
    watch.ask();
    rig.after(100);
    do_one(&mut rig, &mut worker_end, 1);
    let times = watch.times();
    assert_eq!(times.count(), 1);
    // The task took 101 us. The percentile is rounded up to the bound of its histogram bucket.
    let found = times.percentile(0.5).unwrap();
    assert!((101.0..=108.0).contains(&found), "{found}");
    // The worker serves one task. One waits behind it, and two in the central queue.
    for seq in 2..6 {
        rig.task(10, seq, &[]);
    }
    rig.after(100);
    assert_eq!(watch.waiting(), 3);
    while work(&mut worker_end) {
        rig.after(1);
    }
    rig.after(HZ + 1000);
    let before = watch.times();
    do_one(&mut rig, &mut worker_end, 9);
    assert_eq!(watch.times(), before, "a second after the last request nothing is recorded");
    rig.assert_balanced();
}

// promise: control.5
#[test]
fn times_in_the_queue_are_recorded() {
    let mut rig = Rig::new("jbsq(k=1)", 1, 16, Overflow::Drop);
    let mut worker_end = rig.attach_worker(0);
    // The first histogram is that of the reports' ages, the second that of the times in the queue.
    let times = |rig: &Rig| rig.agent.dispatcher(0).unwrap().view().histograms()[1].clone();
    do_one(&mut rig, &mut worker_end, 0);
    rig.task(10, 1, &[]);
    assert_eq!(times(&rig).count, 0, "no task has waited");
    rig.task(10, 2, &[]);
    let arrival = rig.now;
    rig.after(100);
    assert!(work(&mut worker_end));
    rig.after(20);
    // One tick is one microsecond.
    let wait_ns = (rig.now - arrival) * 1000;
    assert_eq!((times(&rig).count, times(&rig).sum_ns), (1, wait_ns));
    // 120 us belong to the bucket up to 200 us.
    assert_eq!(times(&rig).buckets, [(200_000, 1)].into());
    assert!(work(&mut worker_end));
    rig.after(1);
    assert_eq!(times(&rig).count, 1);
    rig.assert_balanced();
}

/// Delivers a task, which the only worker completes 100 clock ticks after its arrival. The agent collects the answer
/// after one more.
fn do_one(rig: &mut Rig, worker_end: &mut WorkerEnd, seq: u16) {
    rig.task(10, seq, &[]);
    rig.after(100);
    assert!(work(worker_end));
    rig.after(1);
}

#[test]
fn named_worker_task_is_answered_in_its_name() {
    // The leaf names worker 10, whose queue it counts. The agent gives the tasks to any of its workers, and the reply
    // reports the queue of the named one.
    for family in FAMILIES {
        let mut rig = Rig::over(family, "jbsq(k=1)", 2, 16, Overflow::Drop);
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        for seq in 0..3 {
            rig.task(10, seq, &[]);
        }
        assert!(work(&mut worker_ends[1]), "a task that names worker 10 goes to worker 11");
        rig.after(1);
        let replies = rig.replies();
        assert_eq!(replies.len(), 1);
        let header = replies[0].0;
        assert_eq!((header.code, header.src, header.qlen), (Code::TaskDone, 10, 2));
        while worker_ends.iter_mut().any(work) {
            rig.after(1);
        }
        let headers: Vec<_> = rig.replies().iter().map(|(header, _)| *header).collect();
        assert_eq!(headers.iter().map(|header| header.qlen).collect::<Vec<_>>(), [1, 0]);
        assert!(headers.iter().all(|header| header.src == 10));
        assert_eq!(headers[1].code, Code::TaskDoneIdle);
        rig.assert_balanced();
    }
}

// promise: agent.1
#[test]
fn queue_keeps_order_and_bound() {
    for (family, overflow) in [
        (Family::V4, Overflow::Drop),
        (Family::V4, Overflow::Refuse),
        (Family::V6, Overflow::Drop),
        (Family::V6, Overflow::Refuse),
    ] {
        let mut rig = Rig::over(family, "jbsq(k=1)", 2, 3, overflow);
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        for seq in 0..6 {
            rig.task(NO_MEMBER, seq, &[seq as u8]);
        }
        let refused: Vec<_> = rig.replies();
        match overflow {
            Overflow::Drop => assert_eq!(rig.dropped(DropReason::QueueFull), 1),
            Overflow::Refuse => {
                let (header, payload) = &refused[0];
                assert_eq!((header.code, header.seq, header.qlen), (Code::TaskRefused, 5, 3));
                assert_eq!(payload, &[5]);
            }
        }
        assert_eq!(refused.len(), usize::from(overflow == Overflow::Refuse));
        rig.after(200);
        assert_eq!(rig.agent.counters().read(Gauge::Queued), 3);
        assert_eq!(rig.agent.dispatcher(0).unwrap().view().queued(), 3, "by pool");
        assert_eq!(rig.agent.counters().read(Counter::Refused), refused.len() as u64);
        // The first two tasks are with the two workers, so their order is open.
        let mut order = Vec::new();
        while worker_ends.iter_mut().any(work) {
            rig.after(1);
            order.extend(rig.replies().iter().map(|(header, _)| header.seq));
        }
        assert_eq!(order.iter().filter(|&&seq| seq >= 2).collect::<Vec<_>>(), [&2, &3, &4]);
        assert_eq!(order.len(), 5);
        rig.assert_balanced();
    }
}

// promise: scheduling.3
#[test]
fn central_queue_measures_handover_every_poll() {
    let mut rig = Rig::new("cfcfs", 1, 16, Overflow::Drop);
    let worker_end = rig.attach_worker(0);
    for seq in 0..400 {
        rig.task(NO_MEMBER, seq, &[]);
        let task = worker_end.take().unwrap().unwrap();
        worker_end.answer(task, |_, _| 0, || 50_000).unwrap();
        rig.after(52);
        assert_eq!(rig.replies().len(), 1);
        // Idle until the next task. A round takes 94 us in all, so that tasks and the agent's ticks drift apart.
        rig.after(41);
    }
    // A round trip is 52 us with 50 us of service, so the hand-over takes 2 us. The agent's ticks are 100 us
    // apart and would round 52 us to a multiple of that.
    let bounded = rig.agent.dispatchers().next().and_then(Dispatcher::bounded).unwrap();
    assert!((bounded.round_trip_ns() - 2000.0).abs() < 1.0, "{}", bounded.round_trip_ns());
    assert_eq!(bounded.bound(), 1);
    rig.assert_balanced();
}

// promise: agent.1
#[test]
fn every_host_policy_serves_its_tasks() {
    // Policies for workers; the remaining ones are those of spines.
    let runs = |runs| matches!(runs, Runs::Leaf | Runs::LeafHolding);
    let mut tried = 0;
    for entry in CATALOGUE.iter().filter(|entry| runs(entry.runs)) {
        let mut rig = Rig::new(entry.name, 3, 64, Overflow::Drop);
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1), rig.attach_worker(2)];
        let mut answered = 0;
        for seq in 0..60 {
            rig.task(NO_MEMBER, seq, &seq.to_be_bytes());
            while worker_ends.iter_mut().any(work) {
                rig.after(1);
            }
            answered += rig.replies().len();
        }
        assert_eq!(answered, 60, "{}", entry.name);
        rig.assert_balanced();
        tried += 1;
    }
    assert!(tried > 10);
}

#[test]
fn every_refusal_has_its_counter() {
    let mut rig = Rig::new("cfcfs", 1, 4, Overflow::Drop);
    let plain = Header::new_task(POOL, 1);
    let good = frame(&plain, &[]);
    // The good packet with these bits of a byte flipped.
    let changed = |at: usize, mask: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= mask;
        bytes
    };
    // The good packet to another address or UDP port.
    let to = |dst: u32, port: u16| {
        let mut bytes = good.clone();
        let flow = Flow {
            src_mac: LEAF_MAC,
            dst_mac: AGENT_MAC,
            src: CLIENT,
            dst,
            src_port: 40_000,
            dst_port: port,
        };
        flow.emit(&mut bytes, task::LEN);
        bytes
    };
    // No worker is attached, so even the good packet is dropped.
    let cases = [
        (DropReason::NoMember, good.clone()),
        (DropReason::Runt, good[..10].to_vec()),
        (DropReason::OtherMac, changed(5, 1)),
        (DropReason::EtherType, changed(12, 0x80)),
        (DropReason::Ipv4Checksum, changed(24, 1)),
        (DropReason::UdpChecksum, changed(udp::PAYLOAD + 10, 1)),
        (DropReason::OtherAddress, to(AGENT + 1, 1234)),
        (DropReason::UdpPort, to(AGENT, 1235)),
        (DropReason::TaskTooLong, frame(&plain, &[0; PAYLOAD + 1])),
        (DropReason::TaskRole, frame(&Header { more: true, ..plain }, &[])),
        (DropReason::TaskRole, frame(&Header { code: Code::TaskDone, ..plain }, &[])),
        (DropReason::TaskRole, frame(&Header { code: Code::WorkerId, ..plain }, &[])),
        (DropReason::UnknownPool, frame(&Header { pool: POOL + 1, ..plain }, &[])),
        (DropReason::UnknownWorker, frame(&Header { dst: 12, ..plain }, &[])),
        (DropReason::UnknownWorker, frame(&Header { dst: u16::MAX, ..plain }, &[])),
        (DropReason::SpoofedReply, frame(&plain.acknowledged_by(9, 100), &[])),
        (DropReason::EtherType, Family::V6.frame(&plain, &[])),
        (DropReason::EtherType, Family::V6.question(CLIENT, AGENT)),
    ];
    for (reason, bytes) in cases {
        let before = rig.dropped(reason);
        rig.send(&bytes);
        assert_eq!(rig.dropped(reason), before + 1, "{reason:?}");
    }
    assert_eq!(rig.agent.counters().read(Counter::Scheduled), 0);
    rig.assert_balanced();
}

// promise: input.1
#[test]
fn every_refusal_over_ipv6_has_its_counter() {
    const IP: usize = ether::LEN;
    const UDP: usize = IP + ipv6::LEN;
    let mut rig = Rig::over(Family::V6, "cfcfs", 1, 4, Overflow::Drop);
    let plain = Header::new_task(POOL, 1);
    let good = Family::V6.frame(&plain, &[]);
    // The good packet with other bytes at this offset.
    let edited = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let to = |dst: u32, port: u16| {
        Family::V6.packet((CLIENT, LEAF_MAC), (dst, 40_000, port), &plain, &[])
    };
    // A hop limit other than 255 means that a router forwarded it.
    let mut from_afar = Family::V6.question(CLIENT, AGENT);
    from_afar[IP + 7] = 64;
    let mut to_another = Family::V6.question(CLIENT, AGENT);
    to_another[..6].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    // ICMPv6 type 128 is an echo request.
    let mut echo = Family::V6.question(CLIENT, AGENT);
    echo[UDP] = 128;
    // IPv6 header: version at 0, payload length at 4, next header at 6 (0, 43, 44 and 60 are extensions, 6 is TCP). UDP
    // header: length at 4, checksum at 6.
    let cases = [
        (DropReason::NoMember, good.clone()),
        (DropReason::Runt, good[..10].to_vec()),
        (DropReason::Runt, good[..40].to_vec()),
        (DropReason::OtherMac, edited(5, &[1])),
        (DropReason::Ipv6Header, edited(IP, &[0x40])),
        (DropReason::Ipv6Header, edited(IP + 4, &[0, 0])),
        (DropReason::Ipv6Header, edited(IP + 4, &[0xFF, 0])),
        (DropReason::Ipv6Extension, edited(IP + 6, &[0])),
        (DropReason::Ipv6Extension, edited(IP + 6, &[43])),
        (DropReason::Ipv6Extension, edited(IP + 6, &[44])),
        (DropReason::Ipv6Extension, edited(IP + 6, &[60])),
        (DropReason::NotUdp, edited(IP + 6, &[6])),
        (DropReason::NotUdp, echo),
        (DropReason::UdpLength, edited(UDP + 4, &[0, 200])),
        (DropReason::UdpNoChecksum, edited(UDP + 6, &[0, 0])),
        (DropReason::UdpChecksum, edited(UDP + 6, &[1, 2])),
        (DropReason::OtherAddress, to(AGENT + 1, 1234)),
        (DropReason::UdpPort, to(AGENT, 1235)),
        (DropReason::TaskTooLong, Family::V6.frame(&plain, &[0; PAYLOAD + 1])),
        (DropReason::TaskRole, Family::V6.frame(&Header { more: true, ..plain }, &[])),
        (DropReason::UnknownPool, Family::V6.frame(&Header { pool: POOL + 1, ..plain }, &[])),
        (DropReason::UnknownWorker, Family::V6.frame(&Header { dst: 12, ..plain }, &[])),
        (DropReason::SpoofedReply, Family::V6.frame(&plain.acknowledged_by(9, 100), &[])),
        (DropReason::UnknownPeer, Family::V6.frame(&Header::queue_probe(POOL, 9, 10, 1), &[])),
        (DropReason::NdMalformed, from_afar),
        (DropReason::OtherMac, to_another),
        (DropReason::NdOther, Family::V6.question(CLIENT, AGENT + 1)),
        (DropReason::EtherType, frame(&plain, &[])),
        (DropReason::EtherType, Family::V4.question(CLIENT, AGENT)),
    ];
    for (at, (reason, bytes)) in cases.into_iter().enumerate() {
        let before = rig.dropped(reason);
        rig.send(&bytes);
        assert_eq!(rig.dropped(reason), before + 1, "case {at}: {reason:?}");
    }
    assert_eq!(rig.agent.counters().read(Counter::Scheduled), 0);
    rig.assert_balanced();
}

// promise: input.1
#[test]
fn task_for_foreign_worker_is_refused() {
    // Worker 10 serves the first pool, and worker 20 this second one.
    let second = format!("[[pool]]\nid = {}\npolicy = 'cfcfs'\nworkers = '20'\n", POOL + 1);
    let text = text("cfcfs", 1, 4, Overflow::Drop) + &second;
    let mut rig = Rig::of_text(Family::V4, &text, None);
    let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
    for (pool, worker) in [(POOL, 20), (POOL + 1, 10)] {
        rig.send(&frame(&Header { dst: worker, src: 77, ..Header::new_task(pool, 1) }, &[]));
    }
    assert_eq!(rig.dropped(DropReason::PoolMismatch), 2);
    assert!(worker_ends.iter().all(|worker_end| worker_end.take().unwrap().is_none()));
    rig.send(&frame(&Header { dst: 20, src: 77, ..Header::new_task(POOL + 1, 2) }, &[]));
    rig.task(10, 3, &[]);
    assert!(worker_ends.iter_mut().all(work), "each by its own name");
    rig.after(1);
    let mut answered: Vec<_> = rig.replies().iter().map(|(reply, _)| reply.src).collect();
    answered.sort_unstable();
    assert_eq!(answered, [10, 20]);
    rig.assert_balanced();
}

// promise: trust.1
#[test]
fn agent_answers_arp_for_its_address_only() {
    for (family, other) in [(Family::V4, DropReason::ArpOther), (Family::V6, DropReason::NdOther)] {
        let mut rig = Rig::over(family, "cfcfs", 1, 4, Overflow::Drop);
        while rig.wire.receive().is_some() {}
        for (target, answered) in [(AGENT, true), (AGENT + 1, false)] {
            rig.send(&family.question(CLIENT, target));
            let packets: Vec<_> = std::iter::from_fn(|| rig.wire.receive()).collect();
            let answers = packets.iter().filter(|packet| {
                let to = (ether::dst(packet.bytes()), ether::src(packet.bytes()));
                family.question_target(packet.bytes()).is_none() && to == (LEAF_MAC, AGENT_MAC)
            });
            assert_eq!(answers.count(), usize::from(answered), "{family:?}");
        }
        assert_eq!(rig.dropped(other), 1);
        // A leaf whose link comes up announces itself, also to agents that do not register with it.
        let before = rig.agent.counters().read(Counter::Consumed);
        rig.send(&family.announcement(CLIENT, LEAF_MAC));
        assert_eq!(rig.agent.counters().read(Counter::Consumed), before + 1, "{family:?}");
        assert_eq!(rig.dropped(other), 1);
        rig.assert_balanced();
    }
}

// promise: agent.2
#[test]
fn unresponsive_worker_is_excluded_and_accounted() {
    let mut rig = Rig::new("jbsq(k=2)", 2, 16, Overflow::Drop);
    let (silent, mut other) = (rig.attach_worker(0), rig.attach_worker(1));
    for seq in 0..8 {
        rig.task(NO_MEMBER, seq, &[]);
    }
    // Twice the timeout, in which worker 11 serves its tasks and worker 10 does not.
    for _ in 0..8 {
        rig.after(TIMEOUT / 4);
        while work(&mut other) {
            rig.after(1);
        }
    }
    assert_eq!(rig.attach_stats(), AttachStats { joined: 2, silent: 1, ..AttachStats::default() });
    assert!(!silent.receiver().is_granted(), "the agent revokes its grant");
    assert_eq!(rig.dropped(DropReason::WorkerLost), 2, "the tasks that it had");
    assert_eq!(rig.replies().len(), 6, "no other task is lost");
    drop(silent);
    let mut back = rig.attach_worker(0);
    rig.task(NO_MEMBER, 8, &[]);
    rig.task(NO_MEMBER, 9, &[]);
    assert!(work(&mut back) && work(&mut other));
    rig.assert_balanced();
}

#[test]
fn dead_worker_loses_only_its_tasks() {
    for dies in [true, false] {
        let mut rig = Rig::new("jbsq(k=2)", 2, 16, Overflow::Drop);
        let (mut first, mut other) = (rig.attach_worker(0), rig.attach_worker(1));
        for seq in 0..8 {
            rig.task(NO_MEMBER, seq, &[]);
        }
        // It completes one task, whose answer the agent has not collected yet.
        assert!(work(&mut first));
        if dies {
            let claim = rig.handles.region.granted(0);
            // Each worker's claim exceeds that of its predecessor by 2.
            rig.handles.report_death(0, claim + 2);
            rig.after(100);
            assert_eq!(rig.attach_stats().died, 0, "the claim is of another process");
            rig.handles.report_death(0, claim);
        } else {
            drop(first);
        }
        rig.after(100);
        while work(&mut other) {
            rig.after(1);
        }
        let attach_stats = rig.attach_stats();
        assert_eq!((attach_stats.died, attach_stats.left), (u64::from(dies), u64::from(!dies)));
        let lost = rig.dropped(DropReason::WorkerLost);
        // The worker had two tasks. The completed one counts as lost only if the agent does not collect it.
        assert!((1..=2).contains(&lost), "{lost}");
        assert_eq!(rig.replies().len() as u64 + lost, 8);
        if !dies {
            let mut back = rig.attach_worker(0);
            rig.task(NO_MEMBER, 8, &[]);
            rig.task(NO_MEMBER, 9, &[]);
            assert!(work(&mut back) && work(&mut other));
        }
        rig.assert_balanced();
    }
}

// promise: agent.2
#[test]
fn replaced_workers_are_counted_by_cause() {
    let mut rig = Rig::new("jbsq(k=2)", 1, 16, Overflow::Drop);
    // Ends a worker: by its death, or in order.
    let end_worker =
        |worker_end: WorkerEnd, dies: bool| if dies { worker_end.die() } else { drop(worker_end) };
    let mut expected = AttachStats { joined: 1, ..AttachStats::default() };
    let mut worker_end = rig.attach_worker(0);
    for round in 0..24 {
        // The worker leaves with a task. Others claim its channel and leave between two ticks of the agent, which never
        // grants their claims and does not count them. One more stays.
        rig.task(NO_MEMBER, round, &[]);
        let dies = round % 2 == 0;
        end_worker(worker_end, dies);
        (0..round % 4).for_each(|passing| {
            end_worker(rig.handles.claim(0), (round / 4 + passing) % 2 == 0);
        });
        worker_end = rig.attach_worker(0);
        expected.joined += 1;
        *(if dies { &mut expected.died } else { &mut expected.left }) += 1;
        assert_eq!(rig.attach_stats(), expected, "round {round}");
        assert_eq!(rig.dropped(DropReason::WorkerLost), u64::from(round) + 1);
    }
    rig.task(NO_MEMBER, 99, &[]);
    assert!(work(&mut worker_end), "the last worker gets the task");
    rig.assert_balanced();
}

// promise: agent.2
#[test]
fn forging_worker_is_excluded() {
    let mut rig = Rig::new("jbsq(k=2)", 2, 16, Overflow::Drop);
    let (bad, mut other) = (rig.attach_worker(0), rig.attach_worker(1));
    for seq in 0..6 {
        rig.task(NO_MEMBER, seq, &[]);
    }
    // The worker takes all notices of its tasks, skips one more, and so reports more completed tasks than it was given.
    while let Some(_notice) = bad.receiver().receive() {}
    bad.receiver().skip(1);
    bad.receiver().complete(1);
    rig.after(1);
    while work(&mut other) {
        rig.after(1);
    }
    assert_eq!(rig.attach_stats().at_fault, 1);
    assert_eq!(rig.dropped(DropReason::WorkerLost), 2);
    assert_eq!(rig.replies().len(), 4);
    rig.assert_balanced();
}

#[test]
fn invalid_and_missing_answers_are_counted() {
    let mut rig = Rig::new("jbsq(k=4)", 1, 16, Overflow::Drop);
    let mut worker_end = rig.attach_worker(0);
    for seq in 0..4 {
        rig.task(NO_MEMBER, seq, &[]);
    }
    // The first task gets no answer; 3 is its service time in nanoseconds.
    let task = worker_end.take().unwrap().unwrap();
    worker_end.end_without_reply(task, 3);
    // The second task is completed without an answer in its slot.
    assert!(worker_end.receiver().receive().is_some());
    worker_end.receiver().complete(1);
    assert!(work(&mut worker_end) && work(&mut worker_end));
    rig.after(1);
    assert_eq!(rig.dropped(DropReason::Unanswered), 1);
    assert_eq!(rig.dropped(DropReason::BadReply), 1);
    assert_eq!(rig.replies().len(), 2);
    rig.assert_balanced();
}

// promise: agent.1
#[test]
fn full_ring_refuses_tasks_without_a_queue() {
    let mut rig = Rig::new("random", 1, 16, Overflow::Drop);
    let mut worker_end = rig.attach_worker(0);
    for seq in 0..10 {
        rig.task(NO_MEMBER, seq, &[]);
    }
    assert_eq!(rig.dropped(DropReason::QueueFull), 2, "of 10 tasks for 8 slots");
    while work(&mut worker_end) {}
    rig.after(1);
    assert_eq!(rig.replies().len(), 8);
    rig.task(NO_MEMBER, 10, &[]);
    assert!(work(&mut worker_end));
    rig.assert_balanced();
}

/// Returns the registrations and keep-alives from the wire: code, worker and number of tasks. Checks that they go to
/// the leaf.
fn registrations(rig: &mut Rig) -> Vec<(Code, u16, u16)> {
    let packets = std::iter::from_fn(|| rig.wire.receive());
    let family = rig.family;
    let headers = packets.filter_map(|packet| {
        let datagram = family.parse(packet.bytes()).ok()?;
        assert_eq!((datagram.dst, datagram.dst_port), (family.ip(LEAF), 1234));
        assert_eq!(ether::dst(packet.bytes()), LEAF_MAC);
        Header::parse(&packet.bytes()[datagram.payload()..]).ok()
    });
    headers.map(|header| (header.code, header.src, header.qlen)).collect()
}

/// Answers the agent's question for the leaf's MAC address, without which the agent registers no worker.
fn find_leaf(rig: &mut Rig) {
    let question = rig.wire.receive().expect("the agent asks for the leaf's MAC address");
    assert_eq!(rig.family.question_target(question.bytes()), Some(rig.family.ip(LEAF)));
    let answer = rig.family.answer(question.bytes(), LEAF_MAC);
    drop(question);
    assert!(registrations(rig).is_empty(), "its MAC address is not known yet");
    rig.send(&answer);
}

/// Returns a leaf's acknowledgement (WORKER_ID_ACK), from these addresses, of a worker's registration with this number.
/// `timeout_ms` is the silence after which the leaf excludes the worker.
fn acknowledgement(
    family: Family,
    from: (u32, Mac),
    (worker, seq, timeout_ms): (u16, u16, u16),
) -> Vec<u8> {
    let header = Header::worker_id(POOL, worker, 0, seq).acknowledged_by(9, timeout_ms);
    family.packet(from, (AGENT, 1234, 1234), &header, &[])
}

// promise: agent.3
#[test]
fn an_acknowledgement_that_answers_no_question_changes_nothing() {
    const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 9, 9]);
    for family in FAMILIES {
        let acknowledgement = |src, src_mac, worker, seq, timeout_ms| {
            acknowledgement(family, (src, src_mac), (worker, seq, timeout_ms))
        };
        let mut rig = Rig::over(family, "jbsq(k=2)", 2, 16, Overflow::Drop);
        let _worker_end = rig.attach_worker(0);
        find_leaf(&mut rig);
        rig.after(200);
        assert_eq!(registrations(&mut rig), [(Code::WorkerId, 10, 0)]);
        // The right one comes from the leaf's addresses, for worker 10 and number 1.
        let forged = [
            (DropReason::SpoofedReply, acknowledgement(LEAF, OTHER_MAC, 10, 1, 1)),
            (DropReason::SpoofedReply, acknowledgement(CLIENT, LEAF_MAC, 10, 1, 1)),
            (DropReason::UnknownWorker, acknowledgement(LEAF, LEAF_MAC, 12, 1, 1)),
            (DropReason::NotAsked, acknowledgement(LEAF, LEAF_MAC, 10, 2, 1)),
            (DropReason::NotAsked, acknowledgement(LEAF, LEAF_MAC, 11, 0, 1)), // not attached
        ];
        for (reason, bytes) in forged {
            let before = rig.dropped(reason);
            rig.send(&bytes);
            assert_eq!(
                (rig.dropped(reason), rig.agent.registered()),
                (before + 1, 0),
                "{reason:?}"
            );
        }
        rig.send(&acknowledgement(LEAF, LEAF_MAC, 10, 1, 500));
        assert_eq!(rig.agent.registered(), 1);
        // Further acknowledgements of any number and timeout change nothing. The agent sends five keep-alives within
        // the timeout of 500 ms that the leaf requested: ten per second.
        let before = rig.dropped(DropReason::NotAsked);
        for number in 0..1000_u16 {
            rig.send(&acknowledgement(LEAF, LEAF_MAC, 10, number, number % 12));
        }
        assert_eq!(rig.dropped(DropReason::NotAsked), before + 1000);
        registrations(&mut rig);
        let mut alive = 0;
        for _ in 0..10_000 {
            rig.after(HZ / 10_000);
            alive += registrations(&mut rig).len();
        }
        assert!((9..=11).contains(&alive), "{alive} keep-alives in a second");
        // An unsolicited announcement does not move the leaf, because it is not addressed to this host.
        rig.send(&family.announcement(LEAF, OTHER_MAC));
        rig.after(HZ / 5);
        assert_eq!(registrations(&mut rig).len(), 1, "still to the MAC address that the leaf gave");
        rig.assert_balanced();
    }
}

// promise: agent.3
#[test]
fn attached_workers_are_registered_and_kept_alive() {
    for family in FAMILIES {
        let mut rig = Rig::over(family, "jbsq(k=2)", 3, 16, Overflow::Drop);
        let (mut first, mut second) = (rig.attach_worker(0), rig.attach_worker(2));
        find_leaf(&mut rig);
        rig.task(10, 1, &[]);
        (0..4).for_each(|_| rig.after(100));
        assert_eq!(registrations(&mut rig), [(Code::WorkerId, 10, 1), (Code::WorkerId, 12, 0)]);
        assert!(work(&mut first) || work(&mut second));
        rig.after(1);
        assert_eq!(rig.replies().len(), 1);
        // The agent repeats registrations until the leaf acknowledges them. Then it sends five keep-alives within the
        // leaf's timeout of 50 ms.
        (0..4).for_each(|_| rig.after(HZ / 20));
        assert!(registrations(&mut rig).iter().all(|(code, ..)| *code == Code::WorkerId));
        rig.send(&acknowledgement(family, (LEAF, LEAF_MAC), (10, 1, 50)));
        rig.send(&acknowledgement(family, (LEAF, LEAF_MAC), (12, 1, 50)));
        assert_eq!(rig.agent.registered(), 2);
        rig.after(200);
        rig.after(200);
        while rig.wire.receive().is_some() {}
        (0..200).for_each(|_| rig.after(HZ / 4000));
        let alive = registrations(&mut rig);
        assert!(alive.iter().all(|(code, ..)| *code == Code::KeepAlive));
        assert!(alive.iter().filter(|(_, worker, _)| *worker == 12).count() >= 4, "{alive:?}");
        // The agent sends nothing for a worker that left, and registers it again on its return.
        drop(first);
        rig.after(HZ / 20);
        while rig.wire.receive().is_some() {}
        (0..50).for_each(|_| rig.after(HZ / 1000));
        assert!(registrations(&mut rig).iter().all(|(_, worker, _)| *worker == 12));
        let _first = rig.attach_worker(0);
        (0..50).for_each(|_| rig.after(HZ / 1000));
        assert!(registrations(&mut rig).contains(&(Code::WorkerId, 10, 0)));
        rig.assert_balanced();
    }
}

// promise: packets.2
#[test]
fn ports_of_both_families_stand_side_by_side() {
    let frames = FramePool::new(256, 512);
    let ends = FAMILIES.map(|_| pair(128, &frames));
    let (ports, mut wires): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let leaf =
        |family: Family| format!("[[leaf]]\nip = '{}'\nmac = '{LEAF_MAC}'\n", family.ip(LEAF));
    let text = text("jbsq(k=2)", 1, 16, Overflow::Drop).replace("leaf = '10.0.2.1'\n", "");
    let text = format!(
        "{text}[[port]]\ndevice = 'other'\nip = '{}/64'\nmac = '{AGENT_MAC}'\n{}",
        Family::V6.ip(AGENT),
        FAMILIES.map(leaf).concat()
    );
    let AgentRig { mut agent, handles, .. } = rig::agent(&text, HZ, (ports, &frames), None);
    let mut worker_end = handles.claim(0);
    // Same as `Rig::after`, for an agent with two ports.
    let mut now = 0;
    let mut after = |agent: &mut Agent<RingPort, FramePool>, ticks| {
        now += ticks;
        agent.poll(now);
    };
    after(&mut agent, 100);
    worker_end.start();
    for (at, family) in FAMILIES.into_iter().enumerate() {
        let header = Header { dst: 10, src: 77, ..Header::new_task(POOL, 5) };
        // A frame of the wrong family, which the agent drops at this port.
        let other_frame = FAMILIES[1 - at].frame(&header, &[]);
        assert!(wires[at].send(&family.frame(&header, b"task")) && wires[at].send(&other_frame));
        after(&mut agent, 1);
        assert!(work(&mut worker_end) && !work(&mut worker_end));
        (0..4).for_each(|_| after(&mut agent, HZ / 1000));
        let mut codes = Vec::new();
        while let Some(packet) = wires[at].receive() {
            let datagram = family.parse(packet.bytes()).unwrap();
            let header = Header::parse(&packet.bytes()[datagram.payload()..]).unwrap();
            let to = if header.code.is_reply() { CLIENT } else { LEAF };
            assert_eq!((datagram.src, datagram.dst), (family.ip(AGENT), family.ip(to)));
            codes.push(header.code);
        }
        assert!(codes.contains(&Code::TaskDoneIdle) && codes.contains(&Code::WorkerId));
        assert_eq!(agent.counters().dropped(DropReason::EtherType), at as u64 + 1);
    }
    assert!(agent.counters().balances());
}

#[test]
fn held_tasks_are_counted_at_the_end() {
    let mut rig = Rig::new("jbsq(k=1)", 1, 16, Overflow::Drop);
    let worker_end = rig.attach_worker(0);
    for seq in 0..5 {
        rig.task(NO_MEMBER, seq, &[]);
    }
    assert_eq!(rig.agent.held(), 5);
    let counters = rig.agent.counters().clone();
    // Closing returns the ports, which still hold packets.
    let ports = rig.agent.close();
    assert!(worker_end.receiver().is_stopped());
    assert_eq!(counters.dropped(DropReason::Shutdown), 5);
    assert!(counters.balances());
    drop(ports);
    while rig.wire.receive().is_some() {}
    assert_eq!(rig.frames.in_use(), 0);
}

/// Returns the bytes, overwritten at these places, and truncated for one `value` in 16.
fn damaged(mut bytes: Vec<u8>, edits: &[(prop::sample::Index, u8)], value: u16) -> Vec<u8> {
    for (place, byte) in edits {
        let place = place.index(bytes.len());
        bytes[place] = *byte;
    }
    if value % 16 == 15 {
        bytes.truncate(usize::from(value / 16) % bytes.len());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// For any input and any workers, the ledger balances, no buffer is lost, and only gauges decrease. Steps 0 to 4
    /// send a task, and 10 a neighbour message or an acknowledgement, damaged or not. In steps 5 and 6 a worker serves
    /// a task, in 7 and 8 it forges completions, and in 9 it leaves or attaches. Otherwise only time passes.
    // promise: input.1
    #[test]
    fn a_storm_is_accounted_for(
        family in proptest::sample::select(FAMILIES.to_vec()),
        steps in proptest::collection::vec((
            0..12_u8, any::<u16>(),
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        ), 1..120),
    ) {
        let mut rig = Rig::over(family, "jbsq(k=2)", 2, 8, Overflow::Refuse);
        let mut worker_ends = [Some(rig.attach_worker(0)), Some(rig.attach_worker(1))];
        let mut before = rig.agent.counters().totals();
        for (step, value, edits) in steps {
            let at = usize::from(value) % 2;
            match (step, &mut worker_ends[at]) {
                (0..=4, _) => {
                    let header = Header { extended: step == 0, ..Header::new_task(POOL, value) };
                    let bytes = family.frame(&header, &vec![1; usize::from(value) % 120]);
                    rig.send(&damaged(bytes, &edits, value));
                }
                (10, _) => {
                    let bytes = match value % 4 {
                        0 => family.question(CLIENT, AGENT),
                        1 => family.announcement(LEAF, LEAF_MAC),
                        2 => family.answer(&family.question(AGENT, LEAF), LEAF_MAC),
                        _ => acknowledgement(family, (LEAF, LEAF_MAC), (10, value / 4, value)),
                    };
                    rig.send(&damaged(bytes, &edits, value));
                }
                (5 | 6, Some(worker_end)) => drop(work(worker_end)),
                (7, Some(worker_end)) => worker_end.receiver().complete(u64::from(value)),
                (8, Some(worker_end)) if value % 8 == 1 => {
                    worker_end.receiver().skip(u64::from(value));
                    worker_end.receiver().complete(1);
                }
                (9, worker_end) if value % 4 < 2 => *worker_end = match worker_end.take() {
                    Some(_) => None,
                    None => Some(rig.attach_worker(at)),
                },
                _ => rig.after(u64::from(value)),
            }
            while rig.wire.receive().is_some() {}
            let now = rig.agent.counters().totals();
            prop_assert!(now.decreased_since(&before).all(|metric| metric.kind == CounterKind::Gauge));
            before = now;
        }
        rig.assert_balanced();
    }
}
