//! Stages: each takes a whole burst and does one thing to it. No I/O, no clock, no allocation.
//!
//! [`parse`] reads bytes into values, [`classify`] feeds replies and ARP into the state, [`schedule`] picks
//! members for tasks, [`rewrite`] turns packets towards their next hop. [`Stages`] holds what one core's
//! stages work with and runs them in this order: the library's burst call, which `role` drives with ports.

pub mod affinity;
pub mod auth;
pub mod classify;
pub mod decide;
pub mod fabric;
mod fast;
mod learn;
pub mod liveness;
pub mod network;
pub mod parse;
pub mod rewrite;
pub mod schedule;
pub mod takeover;
mod told;
pub mod update;
pub mod v6;

use std::net::IpAddr;
use std::sync::Arc;

pub use affinity::AffinityTable;
pub use decide::{Rewrite, RewriteV6};
pub use liveness::{Liveness, NeighbourProbe};
pub use network::{IpOptions, Network, PortAddress, Server, Side};
pub use parse::{Packet, PacketKind};
pub use told::Choice;
pub use update::{Capacity, NewPool, Setting, Step, Update};
pub use v6::PortV6;

use fabric::{Fabric, Numbers, Word};
use fast::template::Template;
use network::Target;

use crossbeam_queue::ArrayQueue;

use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::{self, Dispatcher, Reports};
use crate::reason::DropReason;
use crate::state::neighbour::Slot;
use crate::state::{Counter, Counters, Exchange, Member, Neighbours, Presence};
use crate::wire::task::{Extension, Header};

/// A core to which no more packets come at once keeps up with what comes.
const KEEPS_UP: usize = BURST / 4;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Rewritten; send it out of this port.
    Forward {
        /// Index of the port.
        port: u8,
        /// The worker that a task goes to, or that a reply comes from.
        worker: u16,
    },
    /// Rewritten but for its destination MAC address, which is not known yet: hold it until the
    /// neighbour's slot is resolved, or drop it.
    Hold {
        /// Index of the port.
        port: u8,
        /// The worker that a task goes to, or that a reply comes from.
        worker: u16,
        /// The neighbour.
        slot: Slot,
    },
    /// A task that waits: put it last into the pool's central queue, and [`Stages::offer`] the first of that
    /// queue again when [`Stages::take_freed`] says so, and now and then.
    Queue {
        /// Index of the pool.
        pool: u16,
    },
    /// Used up, and turned into an answer to be sent out of the port it came from (ARP, registrations, refusals).
    Answer,
    /// Used up.
    Consumed,
    /// To be dropped; already counted.
    Drop(DropReason),
}

impl Verdict {
    /// It is forwarded, out of this port.
    #[inline(always)]
    pub fn leaves_by(self, port: u8) -> bool {
        matches!(self, Self::Forward { port: own, .. } if own == port)
    }
}

/// Takes the verdicts about a burst, one for each packet, by the packet's place; in no order.
pub trait Verdicts {
    /// The packet is rewritten, to be sent out of this port; it is this worker's task or reply.
    fn forward(&mut self, at: usize, port: u8, worker: u16);

    /// Anything but [`Verdict::Forward`].
    fn other(&mut self, at: usize, verdict: Verdict);
}

/// Those about packets that have no place are left out.
impl Verdicts for [Verdict] {
    #[inline(always)]
    fn forward(&mut self, at: usize, port: u8, worker: u16) {
        if let Some(place) = self.get_mut(at) {
            *place = Verdict::Forward { port, worker };
        }
    }

    #[inline]
    fn other(&mut self, at: usize, verdict: Verdict) {
        if let Some(place) = self.get_mut(at) {
            *place = verdict;
        }
    }
}

/// A network, and what is recognised by it.
#[derive(Debug)]
pub struct Recognition {
    network: Arc<Network>,
    /// What takes the fast path on each port, of each pool.
    templates: Box<[Template]>,
    /// Whose tasks are refused on each port.
    unreachable: Box<[network::UnreachableSources]>,
}

impl Recognition {
    /// By this network.
    #[must_use]
    pub fn new(network: Arc<Network>) -> Self {
        let ports = 0..network.ports().len();
        Self {
            unreachable: ports.clone().map(|port| network.sources(port).1).collect(),
            templates: ports.flat_map(|port| templates_of(&network, port)).collect(),
            network,
        }
    }
}

/// What one core's stages work with.
#[derive(Debug)]
pub struct Stages {
    pub(crate) network: Arc<Network>,
    pub(crate) neighbours: Neighbours,
    /// One for each pool, in the network's order.
    pub(crate) dispatchers: Vec<Dispatcher>,
    pub(crate) affinity: AffinityTable,
    pub(crate) counters: Counters,
    /// What takes the fast path on each port, of each pool.
    templates: Box<[Template]>,
    /// Whose tasks are refused on each port.
    unreachable: Box<[network::UnreachableSources]>,
    /// Tasks in all pools' queues.
    waiting: usize,
    /// For so many there is to be memory, whatever pools there are.
    waiting_least: usize,
    /// A reply came since this was last asked.
    freed: bool,
    now_ms: u32,
    liveness: Liveness,
    /// Where sources of tasks may teach who is where.
    learning: learn::Learning,
    /// What the node's other cores are told and tell; none where there are none.
    exchange: Option<Box<Exchange>>,
    /// What spines or leaves are told; none where there are none.
    fabric: Option<Box<Fabric>>,
    /// Some pool's policy asks workers for their queues in messages.
    asks: bool,
    /// The numbers of workers' queue reports, by pool; none of pools that learn of queues from replies.
    report_numbers: Vec<Option<Numbers>>,
    /// Packets since the last exchange.
    received: usize,
    /// Where workers go that nobody knows and that say that they are there; none unless somebody wants to know.
    newcomers: Option<Arc<ArrayQueue<Newcomer>>>,
    packets: Box<[Packet]>,
}

/// A worker that said that it is there, and that the node does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// The address that it said so from.
    pub server: u32,
    /// Its id.
    pub worker: u16,
    /// Id of the pool that it serves.
    pub pool: u16,
}

impl Stages {
    /// Stages of one core. The dispatchers are in the order of the network's pools.
    #[must_use]
    pub fn new(
        network: Arc<Network>,
        neighbours: Neighbours,
        mut dispatchers: Vec<Dispatcher>,
        affinity: AffinityTable,
        counters: Counters,
    ) -> Self {
        assert_eq!(dispatchers.len(), network.pools());
        let Recognition { network, templates, unreachable } = Recognition::new(network);
        Self {
            liveness: Liveness::new(0, &network, &mut dispatchers),
            learning: learn::Learning::default(),
            unreachable,
            templates,
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
            asks: false,
            report_numbers: Vec::new(),
            received: 0,
            newcomers: None,
            packets: vec![Packet::REFUSED; BURST].into_boxed_slice(),
        }
    }

    /// Decides on up to [`BURST`] packets that port `port` received at `now` ticks, rewriting those that go on.
    /// Drops and everything else are counted here but for what the caller does with the packets
    /// (received, sent, held, consumed).
    ///
    /// # Panics
    /// When there are more packets than [`BURST`].
    pub fn process<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut (impl Verdicts + ?Sized),
    ) {
        self.received += packets.len();
        self.learn(port, packets);
        let mut done = fast::burst(self, port, packets, verdicts);
        if done < packets.len() {
            // Ports are of IPv4 or IPv6; those of IPv4 ask for this only where they leave the fast path anyway.
            if done == 0 {
                done = fast::v6::burst(self, port, packets, verdicts);
                if done == packets.len() {
                    return;
                }
            }
            let mut others = [Verdict::Consumed; BURST];
            let others = &mut others[..packets.len() - done];
            self.process_in_stages(port, now, &mut packets[done..], others);
            for (at, verdict) in others.iter().enumerate() {
                match *verdict {
                    Verdict::Forward { port, worker } => verdicts.forward(done + at, port, worker),
                    other => verdicts.other(done + at, other),
                }
            }
        }
    }

    /// Somebody wants to know of workers that say that they are there, and that nobody knows.
    pub fn set_newcomers(&mut self, newcomers: Arc<ArrayQueue<Newcomer>>) {
        self.newcomers = Some(newcomers);
    }

    /// There are other cores: what is told to them and heard of them goes this way.
    pub fn set_exchange(&mut self, exchange: Exchange) {
        self.exchange = Some(Box::new(exchange));
    }

    /// The node has spines above it, or leaves below; before the first packet.
    pub fn set_fabric(&mut self, fabric: Fabric) {
        self.fabric = Some(Box::new(fabric));
    }

    /// The next service address of a spine that others are to be told of now.
    pub fn next_announcement(&mut self) -> Option<IpAddr> {
        self.fabric.as_mut()?.next_announcement()
    }

    /// What spines or leaves are told, if there are any.
    #[must_use]
    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_deref()
    }

    /// A spine is told of this pool.
    #[inline]
    fn is_linked(&self, pool: usize) -> bool {
        self.fabric.as_ref().is_some_and(|fabric| fabric.is_linked(pool))
    }

    /// Tells spines what has passed since: once a poll, after what waited was offered again.
    #[inline]
    pub fn tell_spines(&mut self) {
        if let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.has_passed()) {
            fabric.tell(&self.network, &self.dispatchers);
        }
    }

    /// The next word to a spine, a leaf or a worker that is to be sent.
    #[inline]
    pub fn next_word(&mut self) -> Option<Word> {
        let word = self.fabric.as_mut().and_then(|fabric| fabric.next_word());
        if word.is_some() || !self.asks { word } else { self.next_queue_probe() }
    }

    /// The next question to a worker for its queue.
    fn next_queue_probe(&mut self) -> Option<Word> {
        let mut dispatchers = self.dispatchers.iter_mut().enumerate();
        let (pool, (member, number)) =
            dispatchers.find_map(|(pool, dispatcher)| Some((pool, dispatcher.next_probe()?)))?;
        self.counters.add(Counter::QueueProbes, 1);
        let &Target { worker, next_hop, .. } = self.network.target(pool, member);
        let (id, ip) = (self.network.pool_id(pool)?, self.network.member_address(pool, member)?);
        let header = Header::queue_probe(id, self.network.node, worker, number);
        let (port, slot) = (next_hop.port, next_hop.slot);
        Some(Word { port, slot, ip, header, extension: Extension::default() })
    }

    /// The node has other cores.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.exchange.is_some()
    }

    /// Tells the node's other cores what has changed here and hears what has changed there: once a poll, with or without
    /// packets.
    #[inline]
    pub fn exchange(&mut self) {
        if self.exchange.is_some() {
            let received = std::mem::take(&mut self.received);
            self.exchange_some(received <= KEEPS_UP);
        }
    }

    fn exchange_some(&mut self, keeps_up: bool) {
        let Some(exchange) = &mut self.exchange else { return };
        policy::exchange(exchange, &mut self.dispatchers, keeps_up);
        if let Some(fabric) = &self.fabric {
            fabric.hear_idle(&mut self.dispatchers);
        }
        if self.waiting > 0 {
            self.freed |= self.dispatchers.iter().any(Dispatcher::may_release);
        }
    }

    /// What takes the fast path on a port, of a pool.
    #[inline(always)]
    fn template(&self, port: usize, pool: usize) -> &Template {
        &self.templates[port * self.dispatchers.len() + pool]
    }

    /// Looks now and then at who sends tasks.
    #[inline(always)]
    fn learn<B: Buf>(&mut self, port: usize, packets: &[B]) {
        if self.learning.is_due(port) {
            learn::burst(self, port, packets);
        }
    }

    fn process_in_stages<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
    ) {
        // Taken out, so that stages can have both; an empty box allocates nothing.
        let mut parsed = std::mem::take(&mut self.packets);
        let parsed_burst = &mut parsed[..packets.len()];
        self.judge(port, now, packets, parsed_burst, verdicts);
        rewrite::burst(self, packets, parsed_burst, verdicts);
        self.count_drops(verdicts);
        self.packets = parsed;
    }

    /// As [`Stages::process`], but tasks and replies keep their bytes, and `rewrites` says what to change in
    /// those that go on. ARP questions, registrations and refused tasks become answers all the same.
    ///
    /// # Panics
    /// When there are more packets than verdicts, than rewrites or than [`BURST`].
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
        let mut parsed = std::mem::take(&mut self.packets);
        let parsed_burst = &mut parsed[..packets.len()];
        self.judge(port, now, packets, parsed_burst, verdicts);
        decide::burst(self, packets, parsed_burst, verdicts, rewrites);
        self.count_drops(verdicts);
        self.packets = parsed;
    }

    /// All stages but the last.
    #[inline(always)]
    fn judge<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        parsed: &mut [Packet],
        verdicts: &mut [Verdict],
    ) {
        let kinds = parse::burst(&self.network, port, packets, parsed);
        if kinds.others {
            classify::burst(self, port, packets, parsed, verdicts);
        }
        schedule::burst(self, now, packets, parsed, verdicts);
    }

    fn count_drops(&self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            if let Verdict::Drop(reason) = verdict {
                self.counters.drop(*reason, 1);
            }
        }
    }

    /// Says after how many nanoseconds a registered worker is silent, 0 for never; before the first packet.
    pub fn set_worker_timeout(&mut self, timeout_ns: u64) {
        self.liveness = Liveness::new(timeout_ns, &self.network, &mut self.dispatchers);
    }

    /// Says that other schedulers send tasks to a pool's workers, too: their reports are then believed as they are; after
    /// [`Stages::set_worker_timeout`] and before the first packet.
    pub fn set_shared_workers(&mut self, pool: usize, shared: bool) {
        self.liveness.set_shared(pool, shared);
    }

    /// Says how a pool's workers tell their queues, after [`Stages::set_worker_timeout`] and before the first packet. Those that
    /// do so in messages have other schedulers, too.
    pub fn set_reports(&mut self, pool: usize, reports: Reports) {
        if reports == Reports::Replies {
            return;
        }
        self.dispatchers[pool].set_reports(reports);
        self.asks |= self.dispatchers[pool].asks();
        self.set_shared_workers(pool, true);
        let members = self.dispatchers[pool].view().members();
        self.report_numbers.resize_with(self.dispatchers.len(), || None);
        self.report_numbers[pool] = Some(Numbers::new(members));
    }

    /// Lets a pool's member (both by index) be chosen, or no longer. One that is silent may be when it is heard of
    /// again.
    pub fn set_active(&mut self, pool: usize, member: Member, active: bool) {
        let Some(dispatcher) = self.dispatchers.get_mut(pool) else {
            return;
        };
        if member.index() < dispatcher.view().members() {
            let active = self.liveness.note_away(pool, member, !active);
            dispatcher.set_active(member, active);
        }
    }

    /// A pool has no worker that may be chosen, and some that have not registered yet.
    #[must_use]
    pub fn awaits_registrations(&self) -> bool {
        self.dispatchers.iter().map(Dispatcher::view).any(|view| {
            let is_awaited = |member| view.presence(Member(member)) == Presence::Unregistered;
            view.active().is_empty() && (0..view.members() as u16).any(is_awaited)
        })
    }

    /// A worker on the node's own core has come: nobody waits for its registration on the wire.
    pub fn note_attached(&mut self, pool: usize, member: Member) {
        if let Some(dispatcher) = self.dispatchers.get_mut(pool) {
            self.liveness.registered(pool, member, dispatcher, &self.counters);
        }
    }

    /// Tasks in all pools' queues.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Members may have become free for tasks that wait; asking takes the answer back.
    #[inline]
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed) && self.waiting > 0
    }

    /// Members became free in another way than by a reply.
    pub fn note_freed(&mut self) {
        self.freed = true;
    }

    /// Decides on the task that is first in a pool's central queue, as it came to port `port`; none when it must
    /// wait on. Otherwise it is no longer in that queue.
    pub fn offer(
        &mut self,
        pool: usize,
        port: usize,
        now: u64,
        frame: &mut [u8],
    ) -> Option<Verdict> {
        let verdict = schedule::offered(self, pool, port, now, frame)?;
        self.leave(pool);
        if let Verdict::Drop(reason) = verdict {
            self.counters.drop(reason, 1);
        }
        Some(verdict)
    }

    /// The first task of a pool's central queue is taken out for another reason.
    pub fn leave(&mut self, pool: usize) {
        self.dispatchers[pool].leave();
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// The last task of a pool's central queue finds no room there.
    pub fn leave_last(&mut self, pool: usize) {
        self.dispatchers[pool].leave_last();
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Lets the policies that hold tasks see the time more often than others: they measure by it.
    pub fn tick_holding(&mut self, now_ns: u64) {
        for dispatcher in self.dispatchers.iter_mut().filter(|dispatcher| dispatcher.holds()) {
            dispatcher.tick(now_ns);
        }
    }

    /// Tasks of the pool may have to wait.
    #[inline]
    fn holds(&self, pool: usize) -> bool {
        let dispatcher = &self.dispatchers[pool];
        dispatcher.holds() || dispatcher.waiting() > 0
    }

    /// Moves the policies' own counts into the counters.
    pub fn collect_picks(&mut self) {
        for dispatcher in &mut self.dispatchers {
            let picks = std::mem::take(&mut dispatcher.view_mut().picks);
            self.counters.add(Counter::IdlePicks, picks.idle);
            self.counters.add(Counter::Po2Picks, picks.po2);
            self.counters.add(Counter::Resubmits, picks.resubmits);
        }
    }

    /// Lets the policies see time pass, and looks after workers and neighbours; `now` in ticks and in nanoseconds.
    pub fn tick(&mut self, now: u64, now_ns: u64) {
        self.now_ms = liveness::to_ms(now_ns);
        self.learning.tick(self.now_ms);
        while let Some((pool, member)) = self.affinity.expire(now) {
            self.dispatchers[pool].write_off(member, 1);
            self.freed = true;
        }
        let (dispatchers, neighbours) = (&mut self.dispatchers[..], &self.neighbours);
        self.freed |= self.liveness.tick(now_ns, dispatchers, neighbours, &self.counters);
        for dispatcher in &mut self.dispatchers {
            dispatcher.tick(now_ns);
            if self.asks {
                self.counters.add(Counter::ProbesUnanswered, dispatcher.take_unanswered());
            }
        }
        if let Some(fabric) = &mut self.fabric {
            fabric.tick(now_ns, &self.network, &self.dispatchers, &self.counters);
            if fabric.lingers() {
                self.end_lingering();
            }
        }
    }

    /// The next host that is to be asked by ARP whether it is where it is believed to be.
    pub fn next_neighbour_probe(&mut self) -> Option<NeighbourProbe> {
        self.liveness.next_neighbour_probe()
    }

    /// A reply waits until it is known where a client behind this port is: its next task may tell.
    pub fn want_neighbour(&mut self, port: usize) {
        self.learning.want(port, self.now_ms);
    }

    /// A next hop was asked for in every way and has not answered: the workers behind it are out of reach.
    pub fn lose_next_hop(&mut self, slot: Slot) {
        let (dispatchers, neighbours) = (&mut self.dispatchers[..], &self.neighbours);
        self.liveness.lose_next_hop(slot, dispatchers, neighbours, &self.counters);
    }

    /// Nanoseconds of the node's clock at the last tick, to the millisecond.
    fn now_ns(&self) -> u64 {
        u64::from(self.now_ms) * 1_000_000
    }

    /// Milliseconds of the node's clock at the last tick, as the table of neighbours has them.
    #[inline]
    fn now_ms(&self) -> u32 {
        self.now_ms
    }

    /// Some pool's policy lets tasks wait.
    #[must_use]
    pub fn holds_tasks(&self) -> bool {
        self.dispatchers.iter().any(Dispatcher::holds)
    }

    /// The scheduler of the pool at `index` in the network's order.
    #[must_use]
    pub fn dispatcher(&self, index: usize) -> Option<&Dispatcher> {
        self.dispatchers.get(index)
    }

    /// The same, to be changed.
    #[must_use]
    pub fn dispatcher_mut(&mut self, index: usize) -> Option<&mut Dispatcher> {
        self.dispatchers.get_mut(index)
    }

    /// This core's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The network it serves.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The neighbours it knows.
    #[must_use]
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }
}

/// What takes the fast path on a port, of each pool.
fn templates_of(network: &Network, port: usize) -> impl Iterator<Item = Template> + '_ {
    (0..network.pools()).map(move |pool| Template::new(network, port, pool))
}
