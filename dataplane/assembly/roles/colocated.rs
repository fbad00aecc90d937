//! One core with leaf and agent, between ports in memory and workers of the same thread. The leaf schedules tasks over
//! the workers of a remote server and those of its own host. The agent gives the host's tasks to its workers, over a
//! link in memory to the leaf. Tests use IPv4 addresses, which the rig translates for IPv6.

use std::net::IpAddr;

use wedjat_core::io::Buf;
use wedjat_core::io::memory::{FramePool, RingPort};
use wedjat_core::reason::DropReason;
use wedjat_core::ring::WorkerEnd;
use wedjat_core::role::Colocated;
use wedjat_core::role::colocated::WireNetwork;
use wedjat_core::state::{Counter, Member, MemberPresence};
use wedjat_core::wire::arp;
use wedjat_core::wire::auth::{KEY_LEN, Key, addresses, addresses_v6};
use wedjat_core::wire::ether::Mac;
use wedjat_core::wire::task::{Code, Header};
use wedjat_core::wire::udp::{self, Flow};

use super::fixtures::{self, work};
use super::translated::{self, BOTH, Family, as_v4, v6};
use crate::rig::{self, AgentHandles, ColocatedRig, Sizes};

/// 10.0.1.1.
const LEAF: u32 = 0x0A00_0101;
const LEAF_PORT_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// 10.0.1.2.
const CLIENT: u32 = 0x0A00_0102;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
/// 10.0.1.11.
const SERVER: u32 = 0x0A00_010B;
const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 1, 11]);
const POOL: u16 = 7;
/// Ids of the remote server's workers, which the test plays.
const REMOTE: [u16; 2] = [10, 11];
/// Ids of this host's workers.
const LOCAL: [u16; 2] = [20, 21];
/// Members of the local workers in the leaf's pool. The remote workers are members 0 and 1.
const LOCAL_MEMBERS: [u16; 2] = [2, 3];

/// Core with a leaf of one port, whose far end is `wire`, and an agent with two workers.
struct Rig {
    /// Family of the leaf's port, its clients and servers.
    family: Family,
    /// Leaf and agent.
    role: Colocated<RingPort, FramePool>,
    /// Far end of the leaf's port, at which the test plays clients and the remote server.
    wire: RingPort,
    /// Pool of packet buffers of leaf and agent.
    frames: FramePool,
    /// Memory region that agent and workers share, and queue of reported deaths.
    handles: AgentHandles,
    /// Time in ticks of a nanosecond.
    now: u64,
}

/// Returns the configuration of leaf and agent; `policy` is the leaf's.
fn config_text(policy: &str) -> String {
    let [remote, local] = [REMOTE, LOCAL].map(|[first, last]| format!("{first}-{last}"));
    format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\nconnections = 64\nconnection_timeout_ms = 1000\nworker_timeout_ms = 100\n\
         [[port]]\ndevice = 'memory'\nside = 'both'\nip = '10.0.1.1/24'\nmac = '{LEAF_PORT_MAC}'\n\
         [[pool]]\nid = {POOL}\npolicy = '{policy}'\n\
         [[server]]\nip = '10.0.1.11'\nmac = '{SERVER_MAC}'\nworkers = '{remote}'\npool = {POOL}\nregisters = false\n\
         [agent]\nname = 'memory'\nslots = 8\npayload = 64\n\
         [[agent.pool]]\nid = {POOL}\npolicy = 'cfcfs'\nqueue = 64\nworkers = '{local}'\n"
    )
}

/// Returns flow and header of a reply to task 99 by worker 10 of the remote server.
fn remote_reply() -> (Flow, Header) {
    let (src_mac, dst_mac, src, dst) = (SERVER_MAC, LEAF_PORT_MAC, SERVER, CLIENT);
    let flow = Flow { src_mac, dst_mac, src, dst, src_port: 1234, dst_port: 40_000 };
    (flow, Header { code: Code::TaskDoneIdle, src: 10, seq: 99, ..Header::new_task(POOL, 99) })
}

impl Rig {
    /// Creates a rig without attached workers.
    fn new(family: Family, policy: &str) -> Self {
        Self::with_key(family, policy, None)
    }

    /// Same as [`Rig::new`], with this pool key.
    fn with_key(family: Family, policy: &str, key: Option<Key>) -> Self {
        let sizes = Sizes { depth: 256, frames: 512, bytes: 512 };
        let built = rig::colocated(rig::stages(&family.text(&config_text(policy)), key), sizes);
        let ColocatedRig { role, mut far, frames, handles, .. } = built;
        let mut rig = Self { family, role, wire: far.remove(0), frames, handles, now: 0 };
        rig.ask_for_leaf();
        rig
    }

    /// Sends an ARP request for the leaf's address, as a client does before its first task, so that the ledger covers
    /// ARP packets, too. The leaf learns the client's MAC address later, from a task: the request's sender has no entry
    /// in the neighbour table.
    fn ask_for_leaf(&mut self) {
        let mut question = [0; arp::FRAME_LEN];
        arp::Packet::request(CLIENT_MAC, CLIENT, LEAF).emit(&mut question, Mac::BROADCAST);
        self.send_frame(&question);
        self.after(1);
    }

    /// Polls `us` microseconds later.
    fn after(&mut self, us: u64) {
        self.now += us * 1000;
        self.role.poll(self.now);
    }

    /// Attaches the worker with this index, and polls until the agent admits it (grants its claim).
    fn attach_worker(&mut self, index: usize) -> WorkerEnd {
        let worker_end = self.handles.claim(index);
        (0..4).for_each(|_| self.after(100));
        assert!(worker_end.receiver().is_granted());
        worker_end.start();
        worker_end
    }

    /// Reports the death of the process that now holds the claim of this worker. The agent ignores the death of an
    /// earlier process with another claim.
    fn kill_worker(&self, index: usize) {
        self.handles.report_death(index, self.handles.region.granted(index));
    }

    /// Returns the number of tasks at the agent: those that wait there or are with its workers.
    fn held_by_agent(&self) -> usize {
        self.role.held()
    }

    /// Delivers a client's task with this sequence number, which is also its payload.
    fn task(&mut self, seq: u16) {
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: LEAF_PORT_MAC,
            src: CLIENT,
            dst: LEAF,
            src_port: 40_000,
            dst_port: 1234,
        };
        self.send(&flow, &Header::new_task(POOL, seq), &seq.to_be_bytes());
    }

    /// Delivers a packet to the leaf's port.
    fn send(&mut self, flow: &Flow, header: &Header, payload: &[u8]) {
        self.send_frame(&fixtures::datagram(flow, header, payload));
    }

    /// Delivers an IPv4 or ARP frame, translated to the rig's family.
    fn send_frame(&mut self, frame: &[u8]) {
        assert!(self.wire.send(&self.family.frame(frame)));
        self.after(1);
    }

    /// Returns the worker of each task that the leaf sent to the remote server, and worker and sequence number of each
    /// reply to the client.
    fn received_from_leaf(&mut self) -> (Vec<u16>, Vec<(u16, u16)>) {
        let (mut tasks, mut replies) = (Vec::new(), Vec::new());
        while let Some(packet) = self.wire.receive() {
            let frame = as_v4(packet.bytes());
            let Ok(datagram) = udp::parse(&frame, false) else { continue };
            let payload = &frame[datagram.payload()..];
            let header = Header::parse(payload).unwrap();
            match header.code {
                Code::NewTask => {
                    assert_eq!((datagram.src, datagram.dst), (CLIENT, SERVER));
                    tasks.push(header.dst);
                }
                _ => {
                    assert_eq!(
                        (datagram.src, datagram.dst, datagram.dst_port),
                        (LEAF, CLIENT, 40_000)
                    );
                    assert_eq!(payload[header.len()..], header.seq.to_be_bytes());
                    replies.push((header.src, header.seq));
                }
            }
        }
        (tasks, replies)
    }

    /// Checks that the packets of leaf and agent are accounted for, and every buffer except those of tasks at the agent
    /// is back.
    fn balanced(&mut self) {
        self.after(200);
        self.after(1);
        while self.wire.receive().is_some() {}
        assert!(self.role.leaf().stages().counters().balances());
        assert!(self.role.agent().counters().balances());
        assert_eq!(self.frames.in_use(), self.held_by_agent());
    }
}

// promise: agent.1
#[test]
fn tasks_reach_local_and_remote_workers() {
    for family in BOTH {
        let mut rig = Rig::new(family, "round-robin");
        (0..2).for_each(|seq| rig.task(seq));
        let to_remote = rig.received_from_leaf().0;
        assert_eq!(to_remote.len(), 2, "no local worker is attached: {to_remote:?}");
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        (2..42).for_each(|seq| {
            rig.task(seq);
            while worker_ends.iter_mut().any(work) {
                rig.after(1);
            }
        });
        // A reply reaches the leaf at the second poll.
        rig.after(1);
        rig.after(1);
        // The policy alternates between four workers, so half of the 40 tasks go to each host.
        let (tasks, replies) = rig.received_from_leaf();
        assert_eq!((tasks.len(), replies.len()), (20, 20), "{tasks:?} {replies:?}");
        assert!(tasks.iter().all(|worker| REMOTE.contains(worker)));
        assert!(replies.iter().all(|(worker, _)| LOCAL.contains(worker)));
        // The leaf forwards a reply of the remote server.
        let (flow, done) = remote_reply();
        rig.send(&flow, &done, &99u16.to_be_bytes());
        assert_eq!(rig.received_from_leaf().1, [(10, 99)]);
        assert_eq!(rig.role.agent().registered(), 2);
        rig.balanced();
    }
}

// promise: trust.3
#[test]
fn pool_key_applies_to_remote_servers_only() {
    for family in BOTH {
        let key = Key::new([5; KEY_LEN]);
        let mut rig = Rig::with_key(family, "round-robin", Some(key.clone()));
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        for seq in 0..8 {
            rig.task(seq);
            while worker_ends.iter_mut().any(work) {
                rig.after(1);
            }
        }
        (0..4).for_each(|_| rig.after(1));
        assert_eq!(rig.role.agent().registered(), 2);
        assert_eq!(rig.received_from_leaf().1.len(), 4, "replies of local workers");
        let (flow, done) = remote_reply();
        rig.send(&flow, &done, &99u16.to_be_bytes());
        // The leaf refuses a remote sender that claims the local agent's address.
        let of_local = Header { src: 20, ..done };
        let is_v6 = family == Family::V6;
        // The link in memory between leaf and agent.
        let internal_link = WireNetwork::of(is_v6);
        let forged = match internal_link.agent {
            IpAddr::V4(agent) => {
                fixtures::datagram(&Flow { src: agent.to_bits(), ..flow }, &of_local, &[])
            }
            IpAddr::V6(agent) => fixtures::datagram(
                &Flow { src: agent.to_bits(), ..translated::flow(&flow) },
                &of_local,
                &[],
            ),
        };
        assert!(rig.wire.send(&forged));
        rig.after(1);
        assert!(rig.received_from_leaf().1.is_empty());
        let counters = rig.role.leaf().stages().counters();
        assert_eq!(counters.dropped(DropReason::AuthMissing), 1);
        assert_eq!(
            counters.dropped(DropReason::SpoofedReply),
            1,
            "the agent is not behind this port"
        );
        let header = Header { authenticated: true, ..done };
        let mut payload = vec![0; header.len() + 2];
        header.emit(&mut payload);
        payload[header.len()..].copy_from_slice(&99u16.to_be_bytes());
        let number = 1 << 20; // any new sequence number
        match family {
            Family::V4 => key.sign(&addresses(SERVER, CLIENT), &mut payload, number),
            Family::V6 => key.sign(&addresses_v6(v6(SERVER), v6(CLIENT)), &mut payload, number),
        }
        let mut frame = vec![0; udp::PAYLOAD + payload.len()];
        frame[udp::PAYLOAD..].copy_from_slice(&payload);
        flow.emit(&mut frame, payload.len());
        rig.send_frame(&frame);
        assert_eq!(rig.received_from_leaf().1, [(10, 99)]);
        rig.balanced();
    }
}

// promise: agent.1
#[test]
fn leaf_sees_local_workers_change_at_once() {
    for family in BOTH {
        let mut rig = Rig::new(family, "round-robin");
        let (mut first, second) = (rig.attach_worker(0), rig.attach_worker(1));
        let presence = |rig: &Rig, member| {
            rig.role.leaf().stages().dispatcher(0).unwrap().view().presence(Member(member))
        };
        assert_eq!(
            LOCAL_MEMBERS.map(|member| presence(&rig, member)),
            [MemberPresence::Registered; 2]
        );
        (0..4).for_each(|seq| rig.task(seq));
        assert_eq!(rig.held_by_agent(), 2);
        rig.kill_worker(1);
        rig.after(100);
        let lost = rig.role.agent().counters().dropped(DropReason::WorkerLost);
        drop(second);
        rig.received_from_leaf();
        (4..10).for_each(|seq| {
            rig.task(seq);
            while work(&mut first) {
                rig.after(1);
            }
        });
        rig.after(200);
        // After the death the leaf addressed no task to the worker; the agent would have dropped it. The leaf's timeout
        // is a thousand times longer.
        let dropped = rig.role.agent().counters().dropped_total();
        assert_eq!((rig.held_by_agent(), dropped), (0, lost));
        // Two of the three remaining workers are remote, so 4 of 6 tasks leave.
        assert_eq!(rig.received_from_leaf().0.len(), 4, "tasks to the remote workers");
        // The worker stays silent beyond the leaf's timeout of 100 ms. After its return it gets tasks again.
        (0..400).for_each(|_| rig.after(1000));
        assert_eq!(presence(&rig, LOCAL_MEMBERS[1]), MemberPresence::Silent);
        let mut back = rig.attach_worker(1);
        assert_eq!(presence(&rig, LOCAL_MEMBERS[1]), MemberPresence::Registered);
        (10..14).for_each(|seq| rig.task(seq));
        assert!(work(&mut first) && work(&mut back));
        rig.balanced();
    }
}

// promise: agent.1
#[test]
fn replaced_local_worker_leaves_no_tasks() {
    for family in BOTH {
        let mut rig = Rig::new(family, "round-robin");
        let (_first, second) = (rig.attach_worker(0), rig.attach_worker(1));
        (0..4).for_each(|seq| rig.task(seq));
        let outstanding = |rig: &Rig| {
            let dispatcher = rig.role.leaf().stages().dispatcher(0).unwrap();
            dispatcher.view().outstanding(Member(LOCAL_MEMBERS[1]))
        };
        assert_eq!(outstanding(&rig), 1);
        // The agent detaches the worker and attaches the next one in one tick.
        drop(second);
        let _next = rig.attach_worker(1);
        assert_eq!(outstanding(&rig), 0);
        rig.balanced();
    }
}

// promise: agent.1
#[test]
fn central_queue_feeds_local_and_remote_workers() {
    for family in BOTH {
        let mut rig = Rig::new(family, "jbsq(k=1)");
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        (0..20).for_each(|seq| rig.task(seq));
        assert_eq!(
            (rig.received_from_leaf().0.len(), rig.held_by_agent()),
            (2, 2),
            "one task at each worker, the others wait"
        );
        for _ in 0..100 {
            let _ = worker_ends.each_mut().map(work);
            rig.after(1);
        }
        // The remote workers do not answer. The two local ones serve 18 tasks.
        assert_eq!(rig.role.agent().counters().read(Counter::Replies), 18);
        assert_eq!(rig.role.leaf().stages().waiting(), 0);
        rig.balanced();
    }
}

// promise: agent.1
#[test]
fn held_tasks_are_counted_by_their_holder() {
    for family in BOTH {
        let mut rig = Rig::new(family, "round-robin");
        let mut worker_ends = [rig.attach_worker(0), rig.attach_worker(1)];
        (0..8).for_each(|seq| rig.task(seq));
        assert!(work(&mut worker_ends[0]), "its reply is in flight");
        let Rig { role, frames, now, mut wire, .. } = rig;
        let (leaf, agent) =
            (role.leaf().stages().counters().clone(), role.agent().counters().clone());
        // A packet that the leaf has not received when it ends.
        assert!(wire.send(&[0; 60]));
        drop(role.close(now));
        // Each of four workers got two tasks. The agent's workers answered one of their four.
        assert_eq!(agent.dropped(DropReason::Shutdown), 3);
        assert!(agent.balances() && leaf.balances());
        assert_eq!(leaf.read(Counter::Replies), 1);
        assert!(worker_ends[1].receiver().is_stopped());
        while wire.receive().is_some() {}
        drop(wire);
        assert_eq!(frames.in_use(), 0);
    }
}
