//! One core's part of `wedjat explain`. While a client asks, the core records packets and their outcomes in a
//! queue of fixed size that another thread reads. A task's record also has the core's view of the pool (load and
//! drift of its members) at the time of the decision.
//!
//! While it records, the core decides packet by packet, so that a record contains exactly the input of its
//! decision. A record is drafted before the decision and settled, with the outcome, after it. Records that find
//! the queue full are counted. Without a client, a burst costs one comparison.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_queue::ArrayQueue;

use crate::io::Buf;
use crate::policy::beliefs::MemberEstimate;
use crate::policy::{Beliefs, Lane, Task};
use crate::reason::DropReason;
use crate::stage::{Stages, Verdict};
use crate::state::{Counter, Member};
use crate::wire::task::{self, Code, Extension, Header};
use crate::wire::udp::Datagram;
use crate::wire::{arp, ether, ipv4, ipv6, ndp, udp};

/// Capacity of a core's queue: the traffic of a few milliseconds at most.
const RECORDS: usize = 4096;

/// Contents of a packet, as far as they can be parsed. Does not verify the checksums of IPv4 and UDP; a neighbour
/// message with a wrong one is an `Ip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSummary {
    /// Shorter than an Ethernet header.
    Runt,
    /// ARP.
    Arp(arp::Packet),
    /// Neighbour discovery.
    Neighbour(ndp::Packet),
    /// UDP with a task header, and the class in its extension, if it has one.
    Task(Datagram<IpAddr>, Header, Option<u16>),
    /// UDP without a task header.
    Udp(Datagram<IpAddr>),
    /// Other IPv4 or IPv6 packet, or one whose further headers are invalid.
    Ip {
        /// Source address.
        src: IpAddr,
        /// Destination address.
        dst: IpAddr,
        /// Payload protocol; for IPv6 the next header.
        protocol: u8,
    },
    /// EtherType of any other frame, or of one with a malformed ARP message or a truncated IP header.
    Other(u16),
}

impl PacketSummary {
    /// Parses a frame.
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

    /// Parses an IPv4 frame.
    fn in_ipv4(frame: &[u8]) -> Self {
        if let Ok(datagram) = udp::parse(frame, true) {
            return Self::in_datagram(frame, datagram.map_addresses(v4));
        }
        match frame.get(ether::LEN..ether::LEN + ipv4::LEN) {
            Some(packet) => {
                let (src, dst) = (v4(ipv4::src(packet)), v4(ipv4::dst(packet)));
                Self::Ip { src, dst, protocol: packet[9] } // the field Protocol
            }
            None => Self::Other(ether::IPV4),
        }
    }

    /// Parses an IPv6 frame.
    fn in_ipv6(frame: &[u8]) -> Self {
        if let Ok(datagram) = udp::parse_v6(frame, true) {
            return Self::in_datagram(frame, datagram.map_addresses(v6));
        }
        if let Ok(message) = ndp::Packet::parse(frame) {
            return Self::Neighbour(message);
        }
        match frame.get(ether::LEN..ether::LEN + ipv6::LEN) {
            Some(packet) => {
                let (src, dst) = (v6(ipv6::src(packet)), v6(ipv6::dst(packet)));
                Self::Ip { src, dst, protocol: packet[6] } // the field Next Header
            }
            None => Self::Other(ether::IPV6),
        }
    }

    /// Parses the task header in a UDP datagram.
    fn in_datagram(frame: &[u8], datagram: Datagram<IpAddr>) -> Self {
        let payload = frame.get(datagram.payload()..usize::from(datagram.end)).unwrap_or_default();
        let Ok(header) = Header::parse(payload) else { return Self::Udp(datagram) };
        let class = header.extended.then(|| Extension::parse(payload).class);
        Self::Task(datagram, header, class)
    }

    /// Returns the task header, if any.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match self {
            Self::Task(_, header, _) => Some(header),
            _ => None,
        }
    }

    /// Returns the class of a task whose header has an extension.
    #[must_use]
    pub fn class(&self) -> Option<u16> {
        match self {
            Self::Task(_, header, class) if header.code.carries_task() => *class,
            _ => None,
        }
    }

    /// Returns source and destination address, or those named in a neighbour message.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match *self {
            Self::Runt | Self::Other(_) => None,
            Self::Arp(arp::Packet { sender, target, .. }) => Some((v4(sender), v4(target))),
            Self::Neighbour(ndp::Packet { src, target, .. }) => Some((v6(src), v6(target))),
            Self::Task(Datagram { src, dst, .. }, ..) | Self::Udp(Datagram { src, dst, .. }) => {
                Some((src, dst))
            }
            Self::Ip { src, dst, .. } => Some((src, dst)),
        }
    }
}

/// Converts an address in host order.
fn v4(address: u32) -> IpAddr {
    Ipv4Addr::from_bits(address).into()
}

/// Converts an address in host order.
fn v6(address: u128) -> IpAddr {
    Ipv6Addr::from_bits(address).into()
}

/// Moment of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The packet arrived.
    Arrived,
    /// The packet had waited for a worker or for its next hop's MAC address, or found no room to wait.
    Waited,
    /// At an agent: the worker has completed the task.
    Ended,
    /// The packet was about to leave, but its port rejected it.
    Leaving,
}

impl Moment {
    /// Returns the key in reports.
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

/// Outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sent out of a port: a task to a worker, or a worker's reply to a client.
    Sent {
        /// Index of the port.
        port: u8,
        /// The worker.
        worker: u16,
    },
    /// Held until its next hop's MAC address is known.
    Held {
        /// Index of the port that leads to the next hop.
        port: u8,
        /// The worker.
        worker: u16,
    },
    /// A task queued in its pool.
    Queued,
    /// At an agent: given to a local worker.
    Given {
        /// The worker, as a member of its pool.
        member: Member,
    },
    /// At an agent with peers: forwarded to another node.
    Passed {
        /// Number of that node.
        node: u16,
    },
    /// Turned into an answer to its sender, for instance to an ARP question, or the refusal of a task.
    Answered,
    /// Consumed.
    Consumed,
    /// Dropped.
    Dropped(DropReason),
}

impl Fate {
    /// Returns the id of the worker, if the outcome contains one. `Given` has a member instead.
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

/// Record of one outcome of a packet, with the load estimates that led to it. A packet that waits, or that its port
/// rejects after the decision, has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Start of the poll, in ticks of the core's clock.
    pub ticks: u64,
    /// Index of the receiving port, or of the port that rejected the packet; `None` if it is no longer known.
    pub port: Option<u8>,
    /// Length in bytes.
    pub len: u32,
    /// Contents of the packet as it arrived, before it was rewritten.
    pub seen: PacketSummary,
    /// Moment of the outcome.
    pub moment: Moment,
    /// Outcome.
    pub fate: Fate,
    /// Id of the worker that it goes to or comes from; at a spine, of the leaf. `None` for messages between other
    /// nodes.
    pub worker: Option<u16>,
    /// True if the worker was taken from the idle list.
    pub idle: bool,
    /// True if the packet follows the first packet of its task.
    pub follows: bool,
    /// View before the decision, for a task of an existing pool.
    pub beliefs: Option<Beliefs>,
    /// View of the chosen worker, including this task.
    pub chosen: Option<MemberEstimate>,
}

/// Initial record; its fields are filled in while the packet is processed.
const EMPTY_RECORD: Record = Record {
    ticks: 0,
    port: None,
    len: 0,
    seen: PacketSummary::Runt,
    moment: Moment::Arrived,
    fate: Fate::Consumed,
    worker: None,
    idle: false,
    follows: false,
    beliefs: None,
    chosen: None,
};

/// Queue of records from one core to a reader.
pub struct Records {
    queue: ArrayQueue<Record>,
    /// Number of records lost to a full queue.
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
        // Writes to all pages now, so that the core causes no page faults later.
        while queue.push(EMPTY_RECORD).is_ok() {}
        while queue.pop().is_some() {}
        Self { queue, lost: AtomicU64::new(0) }
    }
}

impl Records {
    /// Returns the next record, oldest first.
    pub fn next(&self) -> Option<Record> {
        self.queue.pop()
    }

    /// Returns the number of records lost to a full queue.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

/// Filter of packets; the default accepts all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Receiving ports, one bit each; 0 accepts all. A packet whose receiving port is no longer known passes.
    pub ports: u32,
    /// Pool in the task header.
    pub pool: Option<u16>,
    /// Worker that a packet goes to or comes from, as in [`Record::worker`].
    pub worker: Option<u16>,
    /// Source or destination address, or an address in a neighbour message.
    pub host: Option<IpAddr>,
    /// True to accept only dropped packets.
    pub drops: bool,
    /// Accept only packets dropped for this reason.
    pub reason: Option<DropReason>,
}

impl Filter {
    /// Applies the parts of the filter that need no decision: port, pool and host.
    fn may_pass(&self, port: Option<u8>, packet: &PacketSummary) -> bool {
        let by_port = self.ports == 0 || port.is_none_or(|port| self.ports >> port & 1 != 0);
        let by_pool =
            self.pool.is_none_or(|pool| packet.header().is_some_and(|header| header.pool == pool));
        let has_address = |host| packet.addresses().is_some_and(|(a, b)| a == host || b == host);
        by_port && by_pool && self.host.is_none_or(has_address)
    }

    /// Applies the parts of the filter that need the outcome: drops, drop reason and worker.
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

/// Recorder of a core for `wedjat explain`: drafts and settles the records of packets.
#[derive(Debug)]
pub struct Explainer {
    /// Packets to record.
    filter: Filter,
    /// Remaining number of records.
    remaining: u64,
    /// Queue to the reader.
    records: Arc<Records>,
    /// Record of the packet under decision.
    draft: Record,
    /// Start of the current poll, in ticks of the core's clock.
    now: u64,
    /// True if `draft` is in use.
    is_drafted: bool,
    /// Counter of continuation packets (not the first of their task) before the decision.
    continuations: u64,
    /// True if the decision on a waiting packet recorded its outcome, so that its release must not.
    is_recorded: bool,
}

impl Explainer {
    /// Creates a recorder of the first `count` outcomes that pass the filter.
    #[must_use]
    pub fn new(filter: Filter, count: u64, records: Arc<Records>) -> Box<Self> {
        Box::new(Self {
            filter,
            remaining: count,
            records,
            draft: EMPTY_RECORD,
            now: 0,
            is_drafted: false,
            continuations: 0,
            is_recorded: false,
        })
    }

    /// Returns true once all requested records are made. The core then stops explaining.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.remaining == 0
    }

    /// Begins the record of a packet, unless the filter excludes it. `beliefs` returns the core's view of the pool with
    /// this id, for the decision on this task.
    pub fn draft(
        &mut self,
        port: Option<u8>,
        now: u64,
        frame: &[u8],
        beliefs: impl FnOnce(u16, Task) -> Option<Beliefs>,
    ) {
        self.now = now;
        let seen = PacketSummary::in_frame(frame);
        self.is_drafted = self.remaining > 0 && self.filter.may_pass(port, &seen);
        if self.is_drafted {
            let task = seen.header().filter(|header| header.code.carries_task());
            let class = seen.class().unwrap_or_default();
            let beliefs = task.and_then(|task| beliefs(task.pool, Task::new(class)));
            let (ticks, len) = (now, frame.len() as u32);
            self.draft = Record { ticks, port, len, seen, beliefs, ..EMPTY_RECORD };
        }
    }

    /// Same as [`Explainer::draft`], at a leaf or spine with these stages. `since_ns` returns the arrival time of the
    /// first waiting task in a lane of a pool (by index).
    pub fn draft_at(
        &mut self,
        stages: &Stages,
        port: u8,
        now: u64,
        frame: &[u8],
        since_ns: impl Fn(usize, Lane) -> Option<u64>,
    ) {
        self.continuations = stages.counters().read(Counter::Continuations);
        self.draft(Some(port), now, frame, |pool, task| {
            let pool = stages.network().pool(pool)?;
            let dispatcher = stages.dispatcher(pool)?;
            let class = dispatcher.class_beliefs(task, |lane| since_ns(pool, lane));
            let id = |member| stages.network().target(pool, member).worker;
            Some(dispatcher.beliefs().of_task(class, id))
        });
    }

    /// Returns the pool in the header of the packet under decision. `None` without a header or without a draft.
    #[must_use]
    pub fn pool(&self) -> Option<u16> {
        self.draft.seen.header().filter(|_| self.is_drafted).map(|header| header.pool)
    }

    /// Discards the draft of a packet without an outcome: a task that continues to wait.
    pub fn forget(&mut self) {
        self.is_drafted = false;
    }

    /// Sets the worker of the packet under decision, for an outcome that lacks the worker's id.
    pub fn name_worker(&mut self, worker: Option<u16>) {
        self.draft.worker = worker;
    }

    /// Completes the record with the outcome and queues it, if it was begun and passes the filter. `add` fills in
    /// further fields.
    pub fn settle(&mut self, moment: Moment, fate: Fate, add: impl FnOnce(&mut Record)) {
        if !std::mem::take(&mut self.is_drafted) {
            return;
        }
        (self.draft.moment, self.draft.fate) = (moment, fate);
        let worker_of_message = self.draft.seen.header().and_then(worker_of_message);
        self.draft.worker = self.draft.worker.or(fate.worker()).or(worker_of_message);
        if !self.filter.passes(&self.draft) {
            return;
        }
        add(&mut self.draft);
        self.remaining -= 1;
        if self.records.queue.push(self.draft.clone()).is_err() {
            self.records.lost.store(self.records.lost() + 1, Relaxed); // single writer
        }
    }

    /// Same as [`Explainer::settle`], at a leaf or spine with these stages, which have rewritten the packet in `frame`.
    /// Also records how the worker of a task was chosen.
    pub fn settle_at(&mut self, stages: &Stages, moment: Moment, fate: Fate, frame: &[u8]) {
        // The decision counts a continuation packet.
        let follows = stages.counters().read(Counter::Continuations) != self.continuations;
        self.is_recorded = moment == Moment::Waited && !matches!(fate, Fate::Held { .. });
        self.settle(moment, fate, |record| {
            let (Fate::Sent { worker, .. } | Fate::Held { worker, .. }) = fate else { return };
            let Some(task) = record.seen.header().filter(|header| header.code.is_task()) else {
                return;
            };
            let pool = stages.network().pool(task.pool);
            let dispatcher = pool.and_then(|pool| stages.dispatcher(pool));
            let (Some(pool), Some(dispatcher)) = (pool, dispatcher) else { return };
            let members = stages.network().members(pool);
            let member =
                members.iter().position(|target| target.is_occupied() && target.worker == worker);
            record.follows = follows;
            record.idle = !follows && is_for_idle(frame);
            record.chosen =
                member.map(|member| MemberEstimate::of(dispatcher.view(), Member(member as u16)));
        });
    }

    /// Returns true, once, if the decision already recorded the released packet. The release then makes no record.
    pub fn take_explained(&mut self) -> bool {
        std::mem::take(&mut self.is_recorded)
    }

    /// Records packets that the device of a port rejected for `reason`.
    pub fn unsent<B: Buf>(&mut self, port: usize, packets: &[B], reason: DropReason) {
        // A packet leaves in the poll of its decision, which has set the time for all packets, also for those that the
        // filter excludes.
        let now = self.now;
        for packet in packets {
            self.draft(None, now, packet.bytes(), |_, _| None);
            let add = |record: &mut Record| record.port = Some(port as u8);
            self.settle(Moment::Leaving, Fate::Dropped(reason), add);
        }
    }
}

/// Returns the id of the worker that a message other than a task names; in a signal, that of the leaf.
fn worker_of_message(header: &Header) -> Option<u16> {
    match header.code {
        // Messages of a leaf to a worker.
        Code::WorkerIdAck | Code::QueueProbe => Some(header.dst),
        // A refusal names its scheduler, and a message between peers their nodes.
        Code::TaskRefused => None,
        code if code.carries_task() || code.is_of_peers() => None,
        _ => Some(header.src),
    }
}

/// Returns true if the header of a sent task marks its worker as chosen from the idle list.
fn is_for_idle(frame: &[u8]) -> bool {
    PacketSummary::in_frame(frame)
        .header()
        .is_some_and(|header| header.qlen & u16::from(task::IDLE) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ether::Mac;

    /// Returns a packet with this task header.
    fn frame_of(header: Header) -> Vec<u8> {
        let mut frame = vec![0; udp::PAYLOAD + header.len()];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let (src_mac, dst_mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (src, dst) = (0x0a00_0102, 0x0a00_0101);
        let flow = udp::Flow { src_mac, dst_mac, src, dst, src_port: 40_000, dst_port: 1234 };
        flow.emit(&mut frame, header.len());
        frame
    }

    #[test]
    fn worker_filter_ignores_ids_of_other_nodes() {
        let records = Arc::<Records>::default();
        let filter = Filter { worker: Some(3), ..Filter::default() };
        let mut explainer = Explainer::new(filter, u64::MAX, Arc::clone(&records));
        let registration = Header::worker_id(7, 3, 0, 1);
        for (header, is_explained) in [
            (registration, true),
            (Header::worker_id(7, 5, 0, 1).acknowledged_by(3, 100), false),
            (registration.acknowledged_by(5, 100), true),
            (Header::queue_probe(7, 3, 5, 1), false),
            (Header::queue_probe(7, 5, 3, 1), true),
            (Header::new_task(7, 1).refused_by(3, 9), false),
            (Header::of_peers(Code::Heartbeat, 7, (3, 5), 1), false),
            (Header::of_peers(Code::StealRequest, 7, (3, 5), 1), false),
        ] {
            explainer.draft(Some(0), 10, &frame_of(header), |_, _| None);
            explainer.settle(Moment::Arrived, Fate::Consumed, |_| ());
            assert_eq!(records.next().is_some(), is_explained, "{header:?}");
        }
    }

    #[test]
    fn only_tasks_with_an_extension_have_classes() {
        let task = Header::new_task(7, 1);
        let extended = Header { extended: true, ..task };
        let done = Header { code: Code::TaskDone, ..extended };
        for (header, expected) in [(task, None), (extended, Some(4)), (done, None)] {
            let mut frame = frame_of(header);
            if header.extended {
                Extension { class: 4, ..Extension::default() }.emit(&mut frame[udp::PAYLOAD..]);
            }
            let records = Arc::<Records>::default();
            let mut explainer = Explainer::new(Filter::default(), 1, Arc::clone(&records));
            let mut decided = None;
            explainer.draft(Some(0), 10, &frame, |_, task| {
                decided = Some(task.class);
                None
            });
            explainer.settle(Moment::Arrived, Fate::Consumed, |_| ());
            let class = records.next().unwrap().seen.class();
            let is_task = header.code.carries_task();
            assert_eq!((class, decided), (expected, is_task.then_some(class.unwrap_or(0))));
        }
    }

    #[test]
    fn rejected_packet_has_time_of_its_poll() {
        let records = Arc::<Records>::default();
        let filter = Filter { pool: Some(7), ..Filter::default() };
        let mut explainer = Explainer::new(filter, u64::MAX, Arc::clone(&records));
        let [mut of_pool, of_other] = [7, 8].map(|pool| frame_of(Header::new_task(pool, 1)));
        explainer.draft(Some(0), 10, &of_pool, |_, _| None);
        explainer.settle(Moment::Arrived, Fate::Queued, |_| ());
        explainer.draft(Some(0), 20, &of_other, |_, _| None);
        explainer.settle(Moment::Arrived, Fate::Queued, |_| ());
        explainer.unsent(1, &[&mut of_pool[..]], DropReason::TxFull);
        let times: Vec<_> = std::iter::from_fn(|| records.next()).map(|one| one.ticks).collect();
        assert_eq!(times, [10, 20]);
    }
}
