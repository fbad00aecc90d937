//! Packet stages. Each stage takes a whole burst and does one thing to it, without I/O, clock or allocation.
//!
//! [`parse`] reads bytes into values. [`classify`] applies replies and ARP to the state. [`schedule`] picks
//! members for tasks. [`rewrite`] readdresses packets to their next hop. [`Stages`] holds the data of one
//! core's stages and runs them in this order. It is the burst call of the library, which `role` connects to
//! ports.
//!
//! Stages do not move packets. Each writes its values and verdicts at the packet's index. Only the role takes the
//! burst apart.
//!
//! A *member* is a worker of a pool; at a spine it is a leaf of the pool. A pool's *dispatcher* is the policy of one
//! core for it, with the core's estimates of the members' load. A *role* is the code around the stages: it polls the
//! ports, calls the stages, and sends, holds or frees packets by their verdicts.

pub mod affinity;
pub mod auth;
mod by_value;
pub mod classify;
pub mod decide;
pub mod fabric;
mod fast;
#[cfg(test)]
mod fixture;
mod learn;
pub mod liveness;
pub mod network;
pub mod parse;
pub mod rewrite;
pub mod schedule;
mod spec;
mod tables;
pub mod takeover;
mod unreachable;
pub mod update;

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

pub use affinity::AffinityTable;
pub use by_value::Choice;
pub use decide::{Rewrite, RewriteV6};
pub use liveness::{Liveness, NeighbourProbe};
pub use network::{Network, Server};
pub use parse::{Packet, PacketKind};
pub use spec::{IpOptions, PortAddress, PortV6, Side};
pub use update::{Capacity, DispatcherChange, Step, Update};

use fabric::{Fabric, Numbers, OutgoingMessage};
use fast::Tables;
use network::Destination;

use crossbeam_queue::ArrayQueue;

use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{self, Dispatcher, Lane, Pick, Picks, Reports};
use crate::reason::DropReason;
use crate::state::neighbour::Slot;
use crate::state::{Counter, Counters, Exchange, Member, MemberPresence, Neighbours};
use crate::wire::task::{Code, Extension, Header};

/// Code of a task's first packet.
const TASK: u8 = Code::NewTask as u8;
/// Code of a completion report.
const REPORT: u8 = Code::Completions as u8;
/// Maximum number of packets per poll of a core that is not overloaded: a quarter of a burst.
const KEEPS_UP: usize = BURST / 4;
/// Bounds on the number of packets between two exchanges of an overloaded core. 1024 packets take some 40 us. Comparing
/// members and moving cache lines then costs little of its time. docs/explanation/consistency.md has the response times.
const EXCHANGE_PACKETS: (usize, usize) = (32 * BURST, 512 * BURST);
/// Maximum number of ticks (100 us each, or one per poll if polls take longer) between two exchanges of an overloaded
/// core.
const EXCHANGE_TICKS: u32 = 5;

/// Task in a pool's central queue: the first of its lane, or one that the caller appends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Index of the pool.
    pub pool: usize,
    /// Lane of the task's class.
    pub lane: Lane,
    /// Index of the port that received the task.
    pub port: usize,
}

/// Result of the stages for one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Rewritten. The caller sends it out of this port.
    Forward {
        /// Index of the port.
        port: u8,
        /// Worker that receives the task or sent the reply.
        worker: u16,
    },
    /// Rewritten except for its destination MAC address, which is not known yet. The caller holds the packet
    /// until the neighbour's slot is resolved, or drops it.
    Hold {
        /// Index of the port.
        port: u8,
        /// Worker that receives the task or sent the reply.
        worker: u16,
        /// Slot of the neighbour.
        slot: Slot,
    },
    /// A task that waits. The caller appends it to the pool's central queue. It passes the first task of that
    /// queue to [`Stages::offer`] when [`Stages::take_freed`] returns true, and periodically.
    Queue {
        /// Index of the pool.
        pool: u16,
        /// Lane of the task's class.
        lane: Lane,
        /// True if the fast path recognised the task. A leaf may then release it in a run, without parsing it again.
        is_recognised: bool,
    },
    /// Consumed, and turned into an answer (ARP, registrations, refusals). The caller sends it out of the
    /// port that received the packet.
    Answer,
    /// Consumed.
    Consumed,
    /// Dropped. The drop is already counted.
    Drop(DropReason),
}

impl Verdict {
    /// Returns true if the packet is forwarded out of this port. A leaf moves a burst as a whole if all its packets
    /// are.
    #[inline(always)]
    pub fn leaves_by(self, port: u8) -> bool {
        matches!(self, Self::Forward { port: exit, .. } if exit == port)
    }
}

/// Receiver of the verdicts for a burst: one per packet, by the packet's index, in any order.
///
/// The fast path passes each verdict here at once. A list in between, read again by the caller, took an eighth of an
/// embedder's call.
pub trait Verdicts {
    /// Takes [`Verdict::Forward`]: the packet is rewritten, leaves by this port, and is a task or reply of
    /// this worker.
    fn forward(&mut self, index: usize, port: u8, worker: u16);

    /// Takes any verdict except [`Verdict::Forward`].
    fn other(&mut self, index: usize, verdict: Verdict);
}

/// Ignores verdicts for packets beyond the end of the slice.
impl Verdicts for [Verdict] {
    #[inline(always)]
    fn forward(&mut self, index: usize, port: u8, worker: u16) {
        if let Some(entry) = self.get_mut(index) {
            *entry = Verdict::Forward { port, worker };
        }
    }

    #[inline]
    fn other(&mut self, index: usize, verdict: Verdict) {
        if let Some(entry) = self.get_mut(index) {
            *entry = verdict;
        }
    }
}

/// Receiver for a part of a burst: adds the index at which the part begins, and passes each verdict on.
struct OffsetVerdicts<'a, V: ?Sized>(&'a mut V, usize);

impl<V: Verdicts + ?Sized> Verdicts for OffsetVerdicts<'_, V> {
    #[inline(always)]
    fn forward(&mut self, index: usize, port: u8, worker: u16) {
        self.0.forward(self.1 + index, port, worker);
    }

    #[inline]
    fn other(&mut self, index: usize, verdict: Verdict) {
        self.0.other(self.1 + index, verdict);
    }
}

/// A network with the tables for recognising its packets. A control thread builds both, and the core swaps them with
/// its own ([`Update`]).
#[derive(Debug)]
pub struct Recognition {
    network: Arc<Network>,
    /// Tables of the fast path.
    fast: (Tables<u32>, Tables<u128>),
}

impl Recognition {
    /// Builds the tables of a network.
    #[must_use]
    pub fn new(network: Arc<Network>) -> Self {
        Self { fast: (Tables::new(&network), Tables::new(&network)), network }
    }
}

/// Data of one core's stages.
#[derive(Debug)]
pub struct Stages {
    pub(crate) network: Arc<Network>,
    pub(crate) neighbours: Neighbours,
    /// One dispatcher per pool, in the network's order.
    pub(crate) dispatchers: Vec<Dispatcher>,
    /// Members of the multi-packet tasks in progress.
    pub(crate) affinity: AffinityTable,
    /// Counters of this core.
    pub(crate) counters: Counters,
    /// Tables of the fast path.
    fast: (Tables<u32>, Tables<u128>),
    /// Number of tasks in all pools' queues.
    waiting: usize,
    /// Minimum number of waiting tasks for which there is memory. Pools added later may have larger queues than now.
    waiting_least: usize,
    /// True if a member may have become free. Cleared by [`Stages::take_freed`].
    freed: bool,
    /// Time of the last tick; wraps around after 49 days.
    now_ms: u32,
    /// Time of the current burst in nanoseconds.
    burst_ns: u64,
    /// Checks of workers, hosts and load reports.
    liveness: Liveness,
    /// Schedule of the bursts from which MAC addresses are learned.
    learning: learn::LearnSchedule,
    /// Exchange with the node's other cores; `None` on a node with one core.
    exchange: Option<Box<Exchange>>,
    /// Messages to spines or leaves; `None` without any.
    fabric: Option<Box<Fabric>>,
    /// True if some pool's policy probes workers for their queue lengths.
    probes: bool,
    /// Numbers of the workers' queue reports, by pool; `None` for pools that read queue lengths from replies.
    report_numbers: Vec<Option<Numbers>>,
    /// Number of packets since the last call of [`Stages::exchange`]. A large number shows that the core is overloaded.
    received: usize,
    /// Number of packets since the last exchange.
    unexchanged: usize,
    /// Value of `unexchanged` at which an overloaded core makes its next exchange.
    exchange_at: usize,
    /// Number of ticks until an overloaded core's next exchange, if it receives fewer packets.
    exchange_ticks: u32,
    /// True if the policy of some pool needed the number of waiting tasks on each core at the last exchange. If
    /// false, an overloaded core need not look at all pools in each poll.
    shares_backlog: bool,
    /// Queue for unknown workers that register; `None` if unused.
    unknown_workers: Option<Arc<ArrayQueue<UnknownWorker>>>,
    /// Buffer for the parsed values of a burst.
    packets: Box<[Packet]>,
}

/// A worker that registers but is unknown to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownWorker {
    /// Source address of its registration.
    pub server: IpAddr,
    /// Worker id.
    pub worker: u16,
    /// Id of its pool.
    pub pool: u16,
}

impl Stages {
    /// Creates the stages of one core. The dispatchers must be in the order of the network's pools.
    ///
    /// # Panics
    /// If the number of dispatchers differs from the number of pools.
    #[must_use]
    pub fn new(
        network: Arc<Network>,
        neighbours: Neighbours,
        mut dispatchers: Vec<Dispatcher>,
        affinity: AffinityTable,
        counters: Counters,
    ) -> Self {
        assert_eq!(dispatchers.len(), network.pools());
        let Recognition { network, fast } = Recognition::new(network);
        Self {
            liveness: Liveness::new(0, &network, &mut dispatchers),
            learning: learn::LearnSchedule::default(),
            fast,
            network,
            neighbours,
            dispatchers,
            affinity,
            counters,
            waiting: 0,
            waiting_least: 0,
            freed: false,
            now_ms: 0,
            exchange: None,
            fabric: None,
            probes: false,
            report_numbers: Vec::new(),
            received: 0,
            burst_ns: 0,
            unexchanged: 0,
            exchange_at: 0,
            exchange_ticks: 0,
            shares_backlog: false,
            unknown_workers: None,
            packets: vec![Packet::REFUSED; BURST].into_boxed_slice(),
        }
    }

    /// Decides on up to [`BURST`] packets received by port `port` at time `now` (in ticks of the clock). Rewrites
    /// the forwarded packets. Counts drops and all other events, except the caller's own (received, sent, held,
    /// consumed).
    ///
    /// # Panics
    /// If the fast path leaves more than [`BURST`] packets to the stages.
    pub fn process<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut (impl Verdicts + ?Sized),
    ) {
        self.received += packets.len();
        self.learn(port, packets);
        let mut done = fast::burst::<u32, B>(self, port, packets, verdicts);
        if done < packets.len() {
            // A port has IPv4 or IPv6. The IPv4 fast path handles no packet of an IPv6 port.
            if done == 0 && self.network.port(port).v6.is_some() {
                done = fast::burst_v6(self, port, packets, verdicts);
                if done == packets.len() {
                    return;
                }
            }
            self.process_rest(port, now, packets, done, verdicts);
        }
    }

    /// Handles the packets of a burst from `done` on, the first of which does not take the fast path. The fast path
    /// resumes behind a completion report. Behind any other such packet, all packets go through the stages.
    fn process_rest<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        mut done: usize,
        verdicts: &mut (impl Verdicts + ?Sized),
    ) {
        let is_v6 = self.network.port(port).v6.is_some();
        let is_report = |packet: &B| fast::code(is_v6, packet.bytes()) == Some(REPORT);
        while packets.get(done).is_some_and(is_report) {
            match self.apply_completions(port, &packets[done]) {
                Some(verdict) => verdicts.other(done, verdict),
                None => self.process_slowly(port, now, packets, done..done + 1, verdicts),
            }
            done += 1;
            let (rest, mut verdicts) = (&mut packets[done..], OffsetVerdicts(&mut *verdicts, done));
            done += match is_v6 {
                false => fast::burst::<u32, B>(self, port, rest, &mut verdicts),
                true => fast::burst_v6(self, port, rest, &mut verdicts),
            };
        }
        if done < packets.len() {
            self.process_slowly(port, now, packets, done..packets.len(), verdicts);
        }
    }

    /// Applies the completion reports of a burst up to the first packet that is neither a task nor a report, before
    /// [`Stages::process`] decides on the rest. Returns a mask of them by index. The caller removes them, so that the
    /// tasks between them stay one run. Calls `dropped` with each report that is refused, and the reason.
    #[inline(never)]
    pub(crate) fn apply_reports<B: Buf>(
        &mut self,
        port: usize,
        packets: &[B],
        mut dropped: impl FnMut(&B, DropReason),
    ) -> u32 {
        let is_v6 = self.network.port(port).v6.is_some();
        let mut applied = 0_u32;
        for (index, packet) in packets.iter().enumerate() {
            match fast::code(is_v6, packet.bytes()) {
                Some(TASK) => continue,
                Some(REPORT) => {}
                _ => break,
            }
            let Some(verdict) = self.apply_completions(port, packet) else { break };
            if let Verdict::Drop(reason) = verdict {
                dropped(packet, reason);
            }
            applied |= 1 << index;
        }
        self.received += applied.count_ones() as usize;
        applied
    }

    /// Applies a completion report without the stages that ignore it. `None`, without effect, for any other packet,
    /// which the stages handle.
    fn apply_completions<B: Buf>(&mut self, port: usize, packet: &B) -> Option<Verdict> {
        let mut parsed = Packet::REFUSED;
        let kind = parse::packet_of(&self.network, port, packet, &mut parsed);
        if kind != Ok(PacketKind::Completions) {
            return None;
        }
        let verdict = classify::completions(self, port, packet.bytes(), &parsed);
        let verdict = verdict.unwrap_or_else(Verdict::Drop);
        self.count_drops(&[verdict]);
        Some(verdict)
    }

    /// Handles the packets in this range of a burst without the fast path, and passes on their verdicts.
    fn process_slowly<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        range: Range<usize>,
        verdicts: &mut (impl Verdicts + ?Sized),
    ) {
        let mut slow = [Verdict::Consumed; BURST];
        let slow = &mut slow[..range.len()];
        self.process_in_stages(port, now, &mut packets[range.clone()], slow);
        for (index, verdict) in range.zip(slow) {
            match *verdict {
                Verdict::Forward { port, worker } => verdicts.forward(index, port, worker),
                verdict => verdicts.other(index, verdict),
            }
        }
    }

    /// Sets the queue for unknown workers that register.
    pub fn set_unknown_workers(&mut self, queue: Arc<ArrayQueue<UnknownWorker>>) {
        self.unknown_workers = Some(queue);
    }

    /// Sets the exchange with the node's other cores.
    pub fn set_exchange(&mut self, exchange: Exchange) {
        self.exchange = Some(Box::new(exchange));
    }

    /// Sets the messages to spines above the node, or to leaves below. Must be called before the first
    /// packet.
    pub fn set_fabric(&mut self, fabric: Fabric) {
        self.fabric = Some(Box::new(fabric));
    }

    /// Returns the next service address of a spine to announce now; `None` if none is due.
    pub fn next_announcement(&mut self) -> Option<IpAddr> {
        self.fabric.as_mut()?.next_announcement()
    }

    /// Returns the messages to spines or leaves, if there are any.
    #[must_use]
    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_deref()
    }

    /// Returns true if the pool reports to a spine.
    #[inline]
    fn is_linked(&self, pool: usize) -> bool {
        self.fabric.as_ref().is_some_and(|fabric| fabric.is_linked(pool))
    }

    /// Queues signals to spines about changes since the last call. Called once per poll, after waiting tasks
    /// were offered again.
    #[inline]
    pub fn send_spine_signals(&mut self) {
        if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.has_changes()) {
            fabric.send_changes(&self.network, &self.dispatchers);
        }
    }

    /// Returns the next message to a spine, a leaf or a worker; `None` after the last one.
    #[inline]
    pub fn next_message(&mut self) -> Option<OutgoingMessage> {
        let message = self.fabric.as_mut().and_then(|fabric| fabric.next_message());
        if message.is_some() || !self.probes { message } else { self.next_queue_probe() }
    }

    /// Returns the next queue probe to a worker.
    fn next_queue_probe(&mut self) -> Option<OutgoingMessage> {
        let mut dispatchers = self.dispatchers.iter_mut().enumerate();
        let (pool, (member, number)) =
            dispatchers.find_map(|(pool, dispatcher)| Some((pool, dispatcher.next_probe()?)))?;
        self.counters.add(Counter::QueueProbes, 1);
        let &Destination { worker, next_hop } = self.network.target(pool, member);
        let (id, ip) = (self.network.pool_id(pool)?, self.network.member_address(pool, member)?);
        let header = Header::queue_probe(id, self.network.node, worker, number);
        let (port, slot) = (next_hop.port, next_hop.slot);
        Some(OutgoingMessage { port, slot, ip, header, extension: Extension::default() })
    }

    /// Returns true if the node has other cores.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.exchange.is_some()
    }

    /// Publishes this core's changes to the node's other cores and receives theirs, if that is due. Called once per
    /// poll, with or without packets.
    #[inline]
    pub fn exchange(&mut self) {
        if self.exchange.is_some() {
            let received = std::mem::take(&mut self.received);
            self.unexchanged += received;
            // A waiting task may need the current counts of all cores.
            let is_waited_for = || {
                self.shares_backlog && self.dispatchers.iter().any(Dispatcher::has_shared_backlog)
            };
            if received <= KEEPS_UP || self.unexchanged >= self.exchange_at || is_waited_for() {
                self.unexchanged = 0;
                self.exchange_some(received <= KEEPS_UP);
            } else {
                self.dispatchers.iter_mut().for_each(Dispatcher::share_places);
                self.note_released();
            }
        }
    }

    /// Exchanges changes with the node's other cores, and schedules an overloaded core's next exchange. `keeps_up` is
    /// false on an overloaded core, which publishes only larger changes.
    fn exchange_some(&mut self, keeps_up: bool) {
        let Some(exchange) = &mut self.exchange else { return };
        policy::exchange(exchange, &mut self.dispatchers, keeps_up);
        self.shares_backlog = self.dispatchers.iter().any(Dispatcher::shares_backlog);
        // An exchange compares each member, so large pools make fewer.
        let packets: usize = self.dispatchers.iter().map(Dispatcher::packets_per_exchange).sum();
        self.exchange_at = packets.clamp(EXCHANGE_PACKETS.0, EXCHANGE_PACKETS.1);
        self.exchange_ticks = EXCHANGE_TICKS;
        if let Some(fabric) = &self.fabric {
            fabric.receive_idle(&mut self.dispatchers);
        }
        self.note_released();
    }

    /// Notes whether another core has released a place that a waiting task can take.
    fn note_released(&mut self) {
        if self.waiting > 0 && !self.freed {
            self.freed = self.dispatchers.iter().any(Dispatcher::may_release);
        }
    }

    /// Learns clients' MAC addresses from the sources of the burst's datagrams, if the port is due.
    #[inline(always)]
    fn learn<B: Buf>(&mut self, port: usize, packets: &[B]) {
        if self.learning.is_due(port) {
            learn::burst(self, port, packets);
        }
    }

    /// Handles packets without the fast path: parses, classifies, schedules and rewrites them, and counts the drops.
    fn process_in_stages<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
    ) {
        // Moved out, so that the stages can borrow both. The empty box left behind allocates nothing.
        let mut parsed = std::mem::take(&mut self.packets);
        let parsed_burst = &mut parsed[..packets.len()];
        self.run_stages(port, now, packets, parsed_burst, verdicts);
        rewrite::burst(self, packets, parsed_burst, verdicts);
        self.count_drops(verdicts);
        self.packets = parsed;
    }

    /// Like [`Stages::process`], but leaves the bytes of tasks and replies unchanged. `rewrites` receives the
    /// changes for the forwarded ones. ARP requests, registrations and refused tasks still become answers in
    /// place.
    ///
    /// # Panics
    /// If `packets` is longer than `verdicts`, `rewrites` or [`BURST`].
    pub fn decide<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
        rewrites: &mut [Rewrite],
    ) {
        let (verdicts, rewrites) = (&mut verdicts[..packets.len()], &mut rewrites[..packets.len()]);
        self.received += packets.len();
        self.learn(port, packets);
        let mut parsed = std::mem::take(&mut self.packets); // see `process_in_stages`
        let parsed_burst = &mut parsed[..packets.len()];
        self.run_stages(port, now, packets, parsed_burst, verdicts);
        decide::burst(self, packets, parsed_burst, verdicts, rewrites);
        self.count_drops(verdicts);
        self.packets = parsed;
    }

    /// Runs all stages except rewriting: the steps that [`Stages::process`] and [`Stages::decide`] share.
    #[inline(always)]
    fn run_stages<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        parsed: &mut [Packet],
        verdicts: &mut [Verdict],
    ) {
        let mut kinds = parse::burst(&self.network, port, packets, parsed);
        if kinds.has_segmented {
            let joined = parse::join_segments(&self.network, port, packets, parsed, &mut kinds);
            self.counters.add(Counter::Linearised, joined);
        }
        if kinds.needs_classify {
            classify::burst(self, port, packets, parsed, verdicts);
        }
        schedule::burst(self, now, packets, parsed, verdicts);
    }

    /// Counts the dropped packets by reason.
    fn count_drops(&self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            if let Verdict::Drop(reason) = verdict {
                self.counters.drop(*reason, 1);
            }
        }
    }

    /// Sets the time without a message, in nanoseconds, after which a registered worker is silent; 0 means
    /// never. Must be called before the first packet.
    pub fn set_worker_timeout(&mut self, timeout_ns: u64) {
        self.liveness = Liveness::new(timeout_ns, &self.network, &mut self.dispatchers);
    }

    /// Sets whether other schedulers also send tasks to a pool's workers. If so, the node does not compare the
    /// workers' reports with the tasks that it sent itself. Must be called after [`Stages::set_worker_timeout`] and
    /// before the first packet.
    pub fn set_shared_workers(&mut self, pool: usize, shared: bool) {
        self.liveness.set_shared(pool, shared);
    }

    /// Sets how a pool's workers report their queue lengths. With reports in messages, the workers count as
    /// shared with other schedulers. Must be called after [`Stages::set_worker_timeout`] and before the first
    /// packet.
    pub fn set_reports(&mut self, pool: usize, reports: Reports) {
        if reports == Reports::Replies {
            return;
        }
        self.dispatchers[pool].set_reports(reports);
        self.probes |= self.dispatchers[pool].sends_probes();
        self.set_shared_workers(pool, true);
        let members = self.dispatchers[pool].view().members();
        self.report_numbers.resize_with(self.dispatchers.len(), || None);
        self.report_numbers[pool] = Some(Numbers::new(members));
    }

    /// Allows or forbids the policy to choose a pool's member (both by index). A silent member can be chosen
    /// only after its next report. Ignores unknown pools and members.
    pub fn set_active(&mut self, pool: usize, member: Member, active: bool) {
        let Some(dispatcher) = self.dispatchers.get_mut(pool) else {
            return;
        };
        if member.index() < dispatcher.view().members() {
            let active = self.liveness.note_away(pool, member, !active);
            dispatcher.set_active(member, active);
        }
    }

    /// Returns true if some pool has no worker to choose, and has unregistered workers. No task can be sent to
    /// such a pool until one registers.
    #[must_use]
    pub fn awaits_registrations(&self) -> bool {
        self.dispatchers.iter().map(Dispatcher::view).any(|view| {
            let is_awaited = |member| view.presence(Member(member)) == MemberPresence::Unregistered;
            view.active().is_empty() && (0..view.members() as u16).any(is_awaited)
        })
    }

    /// Marks a worker of the agent on the leaf's own core as registered: it sends no registration on the wire.
    pub fn note_attached(&mut self, pool: usize, member: Member) {
        if let Some(dispatcher) = self.dispatchers.get_mut(pool) {
            self.liveness.note_registered(pool, member, dispatcher, &self.counters);
        }
    }

    /// Returns the number of tasks in all pools' queues.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns true if members may have become free for waiting tasks. Clears the flag.
    #[inline]
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed) && self.waiting > 0
    }

    /// Records that members may have become free without a reply, so that waiting tasks are offered again.
    pub fn note_freed(&mut self) {
        self.freed = true;
    }

    /// Decides on the first task of a lane of a pool's central queue. Returns `None` if the task must keep waiting.
    /// Otherwise the task is no longer in that queue.
    pub fn offer(&mut self, first: QueuePlace, now: u64, frame: &mut [u8]) -> Option<Verdict> {
        let verdict = schedule::offered(self, first.pool, first.port, now, frame)?;
        self.leave(first.pool, first.lane);
        if let Verdict::Drop(reason) = verdict {
            self.counters.drop(reason, 1);
        }
        Some(verdict)
    }

    /// Returns a test for members of a pool (by index) with direct return that are at the policy's bound of tasks;
    /// `None` in other pools. A task that fills its worker carries a mark, by which the server reports the next
    /// completion at once: tasks may then wait here.
    #[inline]
    fn fullness(&self, pool: usize) -> Option<impl Fn(Member) -> bool + '_> {
        let is_direct = self.network.is_direct(pool);
        is_direct.then(|| self.dispatchers[pool].fullness()).flatten()
    }

    /// Returns true if tasks at the front of a pool's queue (by index) may be released in a run, if the fast path
    /// recognised them.
    #[inline]
    pub(crate) fn releases_runs(&self, pool: usize) -> bool {
        let dispatcher = &self.dispatchers[pool];
        dispatcher.holds_tasks()
            && !dispatcher.sends_probes()
            && !dispatcher.has_classes()
            && dispatcher.has_only_first_lane() // a former policy may have had classes
            && !self.is_linked(pool)
            && self.network.pool_id(pool).is_some()
    }

    /// Picks members for the first waiting tasks of a pool, in order, and removes those with a pick from the count of
    /// waiting tasks. Returns their number. The caller has checked [`Stages::releases_runs`].
    #[inline]
    pub(crate) fn pick_waiting(&mut self, pool: usize, picks: Picks<'_>) -> usize {
        let Self { dispatchers, affinity, .. } = self;
        let released = dispatchers[pool].release_run(picks, || affinity.reclaim(pool));
        self.waiting = self.waiting.saturating_sub(released);
        released
    }

    /// Readdresses waiting tasks to their picked members, and writes their verdicts. `place` is the index of the
    /// receiving port and of the pool. The fast path has recognised all of them.
    pub(crate) fn send_waiting<B: Buf>(
        &self,
        place: (usize, usize),
        packets: &mut [B],
        picks: &[Option<Pick>],
        verdicts: &mut [Verdict],
    ) {
        match self.network.port(place.0).v6.is_some() {
            false => fast::release::<u32, B>(self, place, packets, picks, verdicts),
            true => fast::release::<u128, B>(self, place, packets, picks, verdicts),
        }
    }

    /// Records that the first task of a lane of a pool's central queue has left it. The caller of the stages calls this
    /// for a task that it removes itself, and [`Stages::offer`] for a task that it decided on.
    pub fn leave(&mut self, pool: usize, lane: Lane) {
        self.dispatchers[pool].leave(lane);
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Records that the last task of a lane of a pool's central queue found no room there.
    pub fn leave_last(&mut self, pool: usize, lane: Lane) {
        self.dispatchers[pool].leave_last(lane);
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Sets the time of the next burst in nanoseconds.
    #[inline]
    pub fn note_burst(&mut self, now_ns: u64) {
        self.burst_ns = now_ns;
    }

    /// Advances the time of the policies that hold tasks, before each burst. They measure intervals shorter than the
    /// periodic tick.
    pub fn tick_holding(&mut self, now_ns: u64) {
        for dispatcher in self.dispatchers.iter_mut().filter(|dispatcher| dispatcher.holds_tasks())
        {
            dispatcher.tick(now_ns);
        }
    }

    /// Returns true if one of the next `tasks` tasks of the pool may find its queue full, and is then returned to its
    /// client. The fast path leaves such a burst to the stages.
    #[inline]
    fn may_refuse(&self, pool: usize, tasks: usize) -> bool {
        let dispatcher = &self.dispatchers[pool];
        // `queue().0` is the bound of the queue.
        self.refuses(pool)
            && dispatcher.holds_tasks()
            && dispatcher.waiting() + tasks > dispatcher.queue().0
    }

    /// Adds the policies' counts of picks by kind to the counters, and resets them. The policies count in their
    /// views.
    pub fn collect_picks(&mut self) {
        for dispatcher in &mut self.dispatchers {
            let picks = std::mem::take(&mut dispatcher.view_mut().picks);
            self.counters.add(Counter::IdlePicks, picks.idle);
            self.counters.add(Counter::Po2Picks, picks.po2);
            self.counters.add(Counter::Resubmits, picks.resubmits);
        }
    }

    /// Advances the policies' time and checks workers and neighbours. `now` is in ticks of the clock, `now_ns` in
    /// nanoseconds.
    pub fn tick(&mut self, now: u64, now_ns: u64) {
        self.now_ms = liveness::to_ms(now_ns);
        self.learning.tick(self.now_ms);
        self.exchange_ticks = self.exchange_ticks.saturating_sub(1);
        if self.exchange_ticks == 0 {
            self.exchange_at = 0; // the next poll exchanges
        }
        // Incomplete tasks that timed out no longer count at their members.
        while let Some((pool, member)) = self.affinity.expire(now) {
            self.dispatchers[pool].write_off(member, 1);
            self.freed = true;
        }
        let (dispatchers, neighbours) = (&mut self.dispatchers[..], &self.neighbours);
        self.freed |= self.liveness.tick(now_ns, dispatchers, neighbours, &self.counters);
        for dispatcher in &mut self.dispatchers {
            dispatcher.tick(now_ns);
            if self.probes {
                self.counters.add(Counter::ProbesUnanswered, dispatcher.take_unanswered());
            }
        }
        if let Some(fabric) = &mut self.fabric {
            let (dispatchers, liveness) = (&self.dispatchers, &self.liveness);
            fabric.tick(now_ns, &self.network, dispatchers, liveness, &self.counters);
            // Ends the limited time in which drained workers still receive in-flight tasks.
            if fabric.lingers() {
                self.end_lingering();
            }
        }
    }

    /// Returns the next host to probe by ARP at its known address; `None` after the last one.
    pub fn next_neighbour_probe(&mut self) -> Option<NeighbourProbe> {
        self.liveness.next_neighbour_probe()
    }

    /// Requests learning on this port. A reply waits for the MAC address of a client there, and the client's
    /// next task may carry it.
    pub fn want_neighbour(&mut self, port: usize) {
        self.learning.want(port, self.now_ms);
    }

    /// Records that a next hop answered none of the requests for it. Marks the workers behind it as unreachable, unless
    /// its link is down or it is new and may still start.
    pub fn lose_next_hop(&mut self, slot: Slot) {
        let (dispatchers, neighbours) = (&mut self.dispatchers[..], &self.neighbours);
        self.liveness.lose_next_hop(slot, dispatchers, neighbours, &self.counters);
    }

    /// Returns the node's time at the last tick, in nanoseconds, rounded down to a millisecond. Wraps around after 49
    /// days.
    fn now_ns(&self) -> u64 {
        u64::from(self.now_ms) * 1_000_000
    }

    /// Returns the node's time at the last tick, in milliseconds, the unit of the neighbour table.
    #[inline]
    fn now_ms(&self) -> u32 {
        self.now_ms
    }

    /// Returns true if some pool's policy lets tasks wait.
    #[must_use]
    pub fn holds_tasks(&self) -> bool {
        self.dispatchers.iter().any(Dispatcher::holds_tasks)
    }

    /// Returns the dispatcher of the pool at `index` in the network's order; `None` beyond the last pool.
    #[must_use]
    pub fn dispatcher(&self, index: usize) -> Option<&Dispatcher> {
        self.dispatchers.get(index)
    }

    /// Like [`Stages::dispatcher`], mutable.
    #[must_use]
    pub fn dispatcher_mut(&mut self, index: usize) -> Option<&mut Dispatcher> {
        self.dispatchers.get_mut(index)
    }

    /// Returns this core's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the network.
    #[must_use]
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// Returns the neighbours.
    #[must_use]
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }
}
