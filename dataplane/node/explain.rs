//! A core's part of explaining: while somebody asks, it writes down what became of packets and what was believed when that was
//! decided, into a queue of fixed size that another thread reads.
//!
//! A burst is then decided on a packet at a time, so that what is written down is what that decision was made from. What finds no
//! room in the queue is counted. While nobody asks, a burst costs one comparison.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

use crate::io::Buf;
use crate::policy::Beliefs;
use crate::policy::beliefs::{CANDIDATES_MAX, Candidate};
use crate::reason::DropReason;
use crate::stage::{Stages, Verdict};
use crate::state::{Counter, Member};
use crate::wire::task::Header;
use crate::wire::udp::Datagram;
use crate::wire::{arp, ether, ipv4, ipv6, ndp, udp};

/// Records that wait on one core to be read: what passes in some milliseconds at most.
const RECORDS: usize = 4096;

/// What a packet is, read as far as it can be, however wrong its checksums are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Shorter than an Ethernet header.
    Runt,
    /// ARP.
    Arp(arp::Packet),
    /// Neighbour discovery.
    Neighbour(ndp::Packet),
    /// UDP with a task header.
    Task(Datagram<IpAddr>, Header),
    /// UDP without one.
    Udp(Datagram<IpAddr>),
    /// IPv4 or IPv6 whose headers can't be read further.
    Ip {
        /// Source address.
        src: IpAddr,
        /// Destination address.
        dst: IpAddr,
        /// Payload protocol, or of IPv6 the next header.
        protocol: u8,
    },
    /// Of this EtherType.
    Other(u16),
}

impl Seen {
    /// What this frame is.
    #[must_use]
    pub fn in_frame(frame: &[u8]) -> Self {
        if frame.len() < ether::LEN {
            return Self::Runt;
        }
        match ether::ether_type(frame) {
            ether::ARP => arp::Packet::parse(frame).map_or(Self::Other(ether::ARP), Self::Arp),
            ether::IPV4 => Self::in_ipv4(frame),
            ether::IPV6 => Self::in_ipv6(frame),
            other => Self::Other(other),
        }
    }

    fn in_ipv4(frame: &[u8]) -> Self {
        if let Ok(datagram) = udp::parse(frame, true) {
            return Self::in_datagram(frame, datagram.named(v4));
        }
        match frame.get(ether::LEN..ether::LEN + ipv4::LEN) {
            Some(packet) => {
                let (src, dst) = (v4(ipv4::src(packet)), v4(ipv4::dst(packet)));
                Self::Ip { src, dst, protocol: packet[9] }
            }
            None => Self::Other(ether::IPV4),
        }
    }

    fn in_ipv6(frame: &[u8]) -> Self {
        if let Ok(datagram) = udp::parse_v6(frame, true) {
            return Self::in_datagram(frame, datagram.named(v6));
        }
        if let Ok(message) = ndp::Packet::parse(frame) {
            return Self::Neighbour(message);
        }
        match frame.get(ether::LEN..ether::LEN + ipv6::LEN) {
            Some(packet) => {
                let (src, dst) = (v6(ipv6::src(packet)), v6(ipv6::dst(packet)));
                Self::Ip { src, dst, protocol: packet[6] }
            }
            None => Self::Other(ether::IPV6),
        }
    }

    fn in_datagram(frame: &[u8], datagram: Datagram<IpAddr>) -> Self {
        let payload = frame.get(datagram.payload()..usize::from(datagram.end));
        let header = payload.and_then(|payload| Header::parse(payload).ok());
        header.map_or(Self::Udp(datagram), |header| Self::Task(datagram, header))
    }

    /// Its task header, if it has one.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match self {
            Self::Task(_, header) => Some(header),
            _ => None,
        }
    }

    /// The addresses that it is from and to, or speaks of.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match *self {
            Self::Runt | Self::Other(_) => None,
            Self::Arp(arp::Packet { sender, target, .. }) => Some((v4(sender), v4(target))),
            Self::Neighbour(ndp::Packet { src, target, .. }) => Some((v6(src), v6(target))),
            Self::Task(Datagram { src, dst, .. }, _) | Self::Udp(Datagram { src, dst, .. }) => {
                Some((src, dst))
            }
            Self::Ip { src, dst, .. } => Some((src, dst)),
        }
    }
}

fn v4(address: u32) -> IpAddr {
    Ipv4Addr::from_bits(address).into()
}

fn v6(address: u128) -> IpAddr {
    Ipv6Addr::from_bits(address).into()
}

/// When something became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It came.
    Arrived,
    /// It had waited, for a worker or for a next hop's MAC address.
    Waited,
    /// At an agent: its worker has ended the task.
    Ended,
    /// It was to go out.
    Leaving,
}

impl Moment {
    /// The key under which it is reported.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrived => "arrived",
            Self::Waited => "waited",
            Self::Ended => "ended",
            Self::Leaving => "leaving",
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes out of a port: a task to a worker, or a worker's reply to a client.
    Sent {
        /// Index of the port.
        port: u8,
        /// The worker.
        worker: u16,
    },
    /// It waits until its next hop's MAC address is known.
    Held {
        /// Index of the port that it is to go out of.
        port: u8,
        /// The worker.
        worker: u16,
    },
    /// A task that waits in its pool's queue.
    Queued,
    /// At an agent: a worker of this host has the task.
    Given {
        /// The worker, as a member of its pool.
        member: Member,
    },
    /// At an agent with peers: another node has the task.
    Passed {
        /// Its number.
        node: u16,
    },
    /// It was turned into an answer.
    Answered,
    /// It was used up.
    Consumed,
    /// It was dropped.
    Dropped(DropReason),
}

impl Fate {
    /// The worker that it names by its id.
    #[must_use]
    pub fn worker(self) -> Option<u16> {
        match self {
            Self::Sent { worker, .. } | Self::Held { worker, .. } => Some(worker),
            _ => None,
        }
    }
}

impl From<Verdict> for Fate {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Forward { port, worker } => Self::Sent { port, worker },
            Verdict::Hold { port, worker, .. } => Self::Held { port, worker },
            Verdict::Queue { .. } => Self::Queued,
            Verdict::Answer => Self::Answered,
            Verdict::Consumed => Self::Consumed,
            Verdict::Drop(reason) => Self::Dropped(reason),
        }
    }
}

/// What was believed of a pool, with its members' ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBeliefs {
    /// What was believed.
    pub beliefs: Beliefs,
    /// The ids of those that are told of, in their order.
    pub workers: ArrayVec<u16, CANDIDATES_MAX>,
}

impl PoolBeliefs {
    /// With the id of each member.
    #[must_use]
    pub fn named(beliefs: Beliefs, id: impl Fn(Member) -> u16) -> Self {
        let workers = beliefs.candidates.iter().map(|one| id(one.member)).collect();
        Self { beliefs, workers }
    }
}

/// What became of one packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the poll began in which it did, in ticks of the core's clock.
    pub ticks: u64,
    /// Index of the port that received it; none when that is not known any more.
    pub port: Option<u8>,
    /// Its length in bytes.
    pub len: u32,
    /// What it is.
    pub seen: Seen,
    /// When it became so.
    pub moment: Moment,
    /// What became of it.
    pub fate: Fate,
    /// Id of the worker that it goes to or comes from.
    pub worker: Option<u16>,
    /// The worker was taken off the list of those believed idle.
    pub idle: bool,
    /// It goes where the first packet of its task went.
    pub follows: bool,
    /// What was believed before, of a task for a pool that there is.
    pub beliefs: Option<PoolBeliefs>,
    /// What is believed of the worker that was chosen, this task included.
    pub chosen: Option<Candidate>,
}

const NOTHING: Record = Record {
    ticks: 0,
    port: None,
    len: 0,
    seen: Seen::Runt,
    moment: Moment::Arrived,
    fate: Fate::Consumed,
    worker: None,
    idle: false,
    follows: false,
    beliefs: None,
    chosen: None,
};

/// Records on their way from one core to whoever reads them.
pub struct Records {
    queue: ArrayQueue<Record>,
    lost: AtomicU64,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("waiting", &self.queue.len()).finish_non_exhaustive()
    }
}

impl Default for Records {
    fn default() -> Self {
        let queue = ArrayQueue::new(RECORDS);
        // So that the pages are there.
        while queue.push(NOTHING).is_ok() {}
        while queue.pop().is_some() {}
        Self { queue, lost: AtomicU64::new(0) }
    }
}

impl Records {
    /// The next one, oldest first.
    pub fn next(&self) -> Option<Record> {
        self.queue.pop()
    }

    /// Packets that were to be told of and found no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Which packets are told of; all that are not excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Received by these ports, a bit for each; by all when there is none.
    pub ports: u32,
    /// Whose task header names this pool.
    pub pool: Option<u16>,
    /// Tasks that go to this worker, and what comes from it.
    pub worker: Option<u16>,
    /// From or to this address, or ARP or neighbour discovery that speaks of it.
    pub host: Option<IpAddr>,
    /// Those that are dropped.
    pub drops: bool,
    /// Those that are dropped for this reason.
    pub reason: Option<DropReason>,
}

impl Filter {
    /// By what is known when a packet comes.
    fn may_pass(&self, port: Option<u8>, seen: &Seen) -> bool {
        let by_port = self.ports == 0 || port.is_none_or(|port| self.ports >> port & 1 != 0);
        let by_pool =
            self.pool.is_none_or(|pool| seen.header().is_some_and(|one| one.pool == pool));
        let speaks_of = |host| seen.addresses().is_some_and(|(a, b)| a == host || b == host);
        by_port && by_pool && self.host.is_none_or(speaks_of)
    }

    /// By what has become of it.
    fn passes(&self, record: &Record) -> bool {
        let reason = match record.fate {
            Fate::Dropped(reason) => Some(reason),
            _ => None,
        };
        (!self.drops || reason.is_some())
            && (self.reason.is_none() || self.reason == reason)
            && (self.worker.is_none() || self.worker == record.worker)
    }
}

/// What a core writes down, and where to.
#[derive(Debug)]
pub struct Explainer {
    filter: Filter,
    /// So many more.
    left: u64,
    records: Arc<Records>,
    /// Of the packet that is being decided on.
    draft: Record,
    is_drafted: bool,
    /// Later packets of tasks, before it was.
    continuations: u64,
    /// What waited, and goes, has been told of.
    is_told: bool,
}

impl Explainer {
    /// Tells of the first `count` packets that pass the filter.
    #[must_use]
    pub fn new(filter: Filter, count: u64, records: Arc<Records>) -> Box<Self> {
        Box::new(Self {
            filter,
            left: count,
            records,
            draft: NOTHING,
            is_drafted: false,
            continuations: 0,
            is_told: false,
        })
    }

    /// It has told of all that it was to.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.left == 0
    }

    /// A packet is to be decided on; `beliefs` are those of the pool that a task is for.
    pub fn draft(
        &mut self,
        port: Option<u8>,
        now: u64,
        frame: &[u8],
        beliefs: impl FnOnce(u16) -> Option<PoolBeliefs>,
    ) {
        let seen = Seen::in_frame(frame);
        self.is_drafted = self.left > 0 && self.filter.may_pass(port, &seen);
        if self.is_drafted {
            let task = seen.header().filter(|header| header.code.carries_task());
            let beliefs = task.and_then(|task| beliefs(task.pool));
            let (ticks, len) = (now, frame.len() as u32);
            self.draft = Record { ticks, port, len, seen, beliefs, ..NOTHING };
        }
    }

    /// The same at a leaf or spine with these stages.
    pub fn draft_at(&mut self, stages: &Stages, port: Option<u8>, now: u64, frame: &[u8]) {
        self.continuations = stages.counters().read(Counter::Continuations);
        self.draft(port, now, frame, |pool| {
            let pool = stages.network().pool(pool)?;
            let beliefs = Beliefs::of(stages.dispatcher(pool)?);
            Some(PoolBeliefs::named(beliefs, |one| stages.network().target(pool, one).worker))
        });
    }

    /// The pool that the packet names, which is being decided on.
    #[must_use]
    pub fn pool(&self) -> Option<u16> {
        self.draft.seen.header().filter(|_| self.is_drafted).map(|header| header.pool)
    }

    /// It has been decided on, but nothing has come of it.
    pub fn forget(&mut self) {
        self.is_drafted = false;
    }

    /// It goes to the worker of this id.
    pub fn name_worker(&mut self, worker: Option<u16>) {
        self.draft.worker = worker;
    }

    /// What became of the packet, with what `add` puts into its record.
    pub fn settle(&mut self, moment: Moment, fate: Fate, add: impl FnOnce(&mut Record)) {
        if !std::mem::take(&mut self.is_drafted) {
            return;
        }
        (self.draft.moment, self.draft.fate) = (moment, fate);
        let from = self.draft.seen.header().filter(|one| !one.code.carries_task());
        let from = from.map(|header| header.src);
        self.draft.worker = self.draft.worker.or(fate.worker()).or(from);
        if !self.filter.passes(&self.draft) {
            return;
        }
        add(&mut self.draft);
        self.left -= 1;
        if self.records.queue.push(self.draft.clone()).is_err() {
            self.records.lost.store(self.records.lost() + 1, Relaxed); // which nobody else counts
        }
    }

    /// The same at a leaf or spine with these stages, which have rewritten the packet.
    pub fn settle_at(&mut self, stages: &Stages, moment: Moment, fate: Fate, frame: &[u8]) {
        let follows = stages.counters().read(Counter::Continuations) != self.continuations;
        self.is_told = moment == Moment::Waited && !matches!(fate, Fate::Held { .. });
        self.settle(moment, fate, |record| {
            let (Fate::Sent { worker, .. } | Fate::Held { worker, .. }) = fate else { return };
            let Some(task) = record.seen.header().filter(|header| header.code.is_task()) else {
                return;
            };
            let pool = stages.network().pool(task.pool);
            let dispatcher = pool.and_then(|pool| stages.dispatcher(pool));
            let (Some(pool), Some(dispatcher)) = (pool, dispatcher) else { return };
            let members = stages.network().members(pool);
            let member = members.iter().position(|one| one.is_there() && one.worker == worker);
            record.follows = follows;
            record.idle = !follows && is_for_idle(frame);
            record.chosen =
                member.map(|member| Candidate::of(dispatcher.view(), Member(member as u16)));
        });
    }

    /// What waited, and goes, has been told of by whoever decided on it; asking takes the answer back.
    pub fn take_told(&mut self) -> bool {
        std::mem::take(&mut self.is_told)
    }

    /// The device of a port did not take these packets.
    pub fn unsent<B: Buf>(&mut self, port: usize, packets: &[B]) {
        let now = self.draft.ticks;
        for packet in packets {
            self.draft(None, now, packet.bytes(), |_| None);
            let add = |record: &mut Record| record.port = Some(port as u8);
            self.settle(Moment::Leaving, Fate::Dropped(DropReason::TxFull), add);
        }
    }
}

/// The header of a task that was sent on says that its worker was believed idle.
fn is_for_idle(frame: &[u8]) -> bool {
    Seen::in_frame(frame).header().is_some_and(|header| header.qlen == 1)
}
