//! Messages between leaves and spines: a leaf publishes the load of its pools, and both send heartbeats. This
//! module makes the messages. The caller of the stages sends them ([`super::Stages::next_message`]).
//!
//! A *link* is the connection of a leaf's pool to a spine. One core publishes the load of a linked pool, although
//! all cores schedule its tasks. It reads the load that other cores cause from the exchange of all cores' states.
//! A *check* decides whether tasks and replies since the last one require a signal (`Fabric::send_changes`). It
//! runs once per poll in which tasks or replies arrived. At ticks the core repeats its state and sends heartbeats.
//!
//! A spine's members are leaves; each stands for its *rack*, the leaf with its workers. A spine sends *heartbeats* to
//! its leaves, and a leaf considers a spine without messages silent. A spine's *place* is its fixed index at a leaf.
//!
//! If all workers of a linked pool are drained, they *linger*: for a time they still receive the tasks that were
//! in flight from the spine.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

use super::liveness::Liveness;
use super::network::{Network, Spine, SpineLink};
use crate::limits::SPINES_MAX;
use crate::policy::signals::{Latest, Protocol, Signal, Signals};
use crate::policy::{Core, Dispatcher};
use crate::state::neighbour::Slot;
use crate::state::{Counter, Counters, Gauge, Load, Member, Topic, View};
use crate::wire::task::{Code, Extension, Header};

/// Time without a message after which a node sends a heartbeat.
pub const HEARTBEAT_NS: u64 = 10_000_000;
/// Time without a message after which a node is silent.
pub const SILENT_NS: u64 = 3 * HEARTBEAT_NS;
/// Interval in which a leaf repeats its state, in case a signal was lost.
const REPEAT_NS: u64 = 1_000_000;
/// Time for which drained workers still receive in-flight tasks from the spine, if all workers of a pool are
/// drained. The leaf notifies the spine at its next tick, and the spine reads its notices every 10 ms.
/// An acknowledgement would cost one more message, and a leaf below a silent spine would never receive it.
const LINGER_NS: u64 = SILENT_NS;
/// Maximum number of workers whose tasks a core reads from the memory of remote cores in this interval. Each may take a
/// cache miss for each core.
const COUNTED: usize = 128;
/// Number of announcements of a new service address, and the time between two of them (RFC 5227, 2.3).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_AGAIN_NS: u64 = 2_000_000_000;
/// Maximum number of messages waiting to be sent. Excess messages are dropped, and later ones repeat their
/// content.
const MESSAGES_MAX: usize = 64;
/// Maximum number of idle-state changes by which a core of a spine may lag behind.
const IDLE_MAX: usize = 1024;

/// Message to a leaf or a spine, or queue probe to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    /// Port to the receiver.
    pub port: u8,
    /// Slot of the next hop in the neighbour table.
    pub slot: Slot,
    /// Destination address.
    pub ip: IpAddr,
    /// Header of the message.
    pub header: Header,
    /// Extension of the message, if the header announces one.
    pub extension: Extension,
}

/// State shared by all cores of a node. Its numbers are independent of each other, so `Relaxed` suffices for
/// them.
#[derive(Debug)]
pub struct Shared {
    /// Time of the last message from each spine.
    last_message_ns: Box<[AtomicU64]>,
    /// Places of silent spines, one bit each.
    silent: AtomicU64,
    /// Number of tasks received for each linked pool, on all cores.
    tasks: Box<[AtomicU64]>,
    /// Idle states that leaves sent to other cores of a spine, one queue per core: pool, leaf, and true if
    /// the leaf has idle workers.
    idle: Box<[ArrayQueue<(u16, Member, bool)>]>,
}

impl Shared {
    /// Creates the state for `cores` cores and at most `pools` pools.
    #[must_use]
    pub fn new(cores: usize, pools: usize) -> Arc<Self> {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let queues = if cores > 1 { cores } else { 0 };
        const { assert!(SPINES_MAX <= u64::BITS as usize) }
        Arc::new(Self {
            last_message_ns: zeros(SPINES_MAX),
            silent: AtomicU64::new(0),
            tasks: zeros(pools),
            idle: (0..queues).map(|_| ArrayQueue::new(IDLE_MAX)).collect(),
        })
    }
}

impl Shared {
    /// Returns true if the spine at this place is silent. The node reports it to its controller, which may then mark
    /// the spine as down.
    #[must_use]
    pub fn is_silent(&self, place: usize) -> bool {
        self.silent.load(Relaxed) >> place & 1 != 0
    }
}

/// Age of a member's signal or report, compared with earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// First message.
    First,
    /// First message after a silence.
    Back,
    /// Not older than any earlier one; possibly a duplicate.
    New,
    /// Older than an earlier one.
    Old,
}

/// Numbers of the members' messages: signals of a spine's leaves, or queue reports of workers.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Newest number of each member.
    latest: Latest,
    /// Time of the last accepted message of each member plus 1; 0 for none.
    last_accepted_ms: Vec<u32>,
}

impl Numbers {
    /// Creates the numbers of `members` members without messages.
    pub(super) fn new(members: usize) -> Self {
        Self { latest: Latest::new(members), last_accepted_ms: vec![0; members] }
    }

    /// Forgets the messages of a member whose place was vacated: they must not affect the next one there.
    pub(super) fn forget(&mut self, member: Member) {
        self.last_accepted_ms[member.index()] = 0;
    }

    /// Returns the age of a message from `member` with this number. Records the message unless it is old.
    pub(super) fn age_of(&mut self, member: Member, number: u16, now_ns: u64) -> Age {
        let now_ms = ((now_ns / 1_000_000) as u32).wrapping_add(1).max(1); // 0 means never
        let last_accepted_ms = &mut self.last_accepted_ms[member.index()];
        // A member may have restarted during its silence, with new numbers.
        let silent_ms = (SILENT_NS / 1_000_000) as u32;
        let age = match *last_accepted_ms {
            0 => Age::First,
            last_accepted_ms if now_ms.wrapping_sub(last_accepted_ms) > silent_ms => Age::Back,
            _ => Age::New,
        };
        if age != Age::New {
            self.latest.forget(member);
        }
        if !self.latest.accepts(member, number) {
            return Age::Old;
        }
        *last_accepted_ms = now_ms;
        age
    }
}

/// Link of a leaf's pool to a spine.
#[derive(Debug)]
struct Link {
    spine: Spine,
    /// Protocol: which signals the leaf sends, and when.
    protocol: Protocol,
    /// Decides which changes require a signal.
    signals: Signals,
    /// Number of the last signal.
    number: u16,
    /// Sum of the active workers' loads.
    total: u64,
    /// Next member whose tasks are read from the memory of remote cores.
    next_counted: usize,
    /// True if other schedulers also send tasks to the workers.
    shared_workers: bool,
    /// Numbers of tasks since the last check: tasks for which the spine chose the rack as idle (by their header), and
    /// all others.
    tasks: [u32; 2],
    /// True if a worker has replied since the last check.
    replied: bool,
    /// Tasks of all cores that the signals have taken into account.
    counted: u64,
    /// Time of the last message to the spine; 0 to send one at the next tick.
    last_sent_ns: u64,
    /// Time at which the leaf last repeated its state.
    repeated_ns: u64,
    /// True if all workers are drained and only receive in-flight tasks. The spine must not count on any.
    lingers: bool,
}

impl Link {
    /// Returns the load of a worker by this core's own memory: current after a reply of the worker.
    fn load_in_own_memory(&self, view: &View, member: Member) -> u64 {
        match self.knowledge_of(view) {
            Knowledge::Counts => self.load_of_tasks(view, member, view.outstanding(member)),
            Knowledge::Estimates | Knowledge::Nothing => self.signals.load_of(view, member),
        }
    }

    /// Returns the load of a worker that has these tasks, by the counts of all cores.
    fn load_of_tasks(&self, view: &View, member: Member, tasks: u32) -> u64 {
        let load = u64::from(tasks) * u64::from(Load::ONE.0);
        // The counts do not contain the tasks of other schedulers. Reports do, but the last report to this core may be
        // old.
        if self.shared_workers { load.max(self.signals.load_of(view, member)) } else { load }
    }

    /// Sums the loads anew: tasks may have left without a reply, or arrived on remote cores. Returns true if the sum has
    /// changed.
    fn sum_loads(&mut self, view: &View, loads: &mut [u64]) -> bool {
        let knowledge = self.knowledge_of(view);
        let members = view.members();
        // The workers whose tasks are read from the memory of remote cores this time.
        let first = self.next_counted % members.max(1);
        self.next_counted = first + COUNTED;
        let is_counted = |member: Member| (member.index() + members - first) % members < COUNTED;
        let mut total = 0;
        for (member, load) in (0..members as u16).map(Member).zip(loads) {
            *load = match knowledge {
                _ if !view.is_active(member) => 0,
                // A core assumes one task at an idle worker of another core, but the spine must not.
                _ if view.is_shared_idle(member) => 0,
                Knowledge::Nothing if !is_counted(member) => *load,
                Knowledge::Nothing => {
                    let tasks = view.outstanding_now(member).max(0).cast_unsigned();
                    self.load_of_tasks(view, member, tasks)
                }
                Knowledge::Estimates | Knowledge::Counts => self.load_in_own_memory(view, member),
            };
            total += *load;
        }
        std::mem::replace(&mut self.total, total) != total
    }

    /// Returns what this core knows of remote cores' tasks.
    fn knowledge_of(&self, view: &View) -> Knowledge {
        let Some(exchange) = view.pool_exchange() else { return Knowledge::Estimates };
        let publishes = exchange.publishes();
        match publishes.topic {
            _ if self.protocol == Protocol::EveryReply => Knowledge::Estimates,
            Some(Topic::Loads) if publishes.drift => Knowledge::Estimates,
            Some(Topic::Counts) => Knowledge::Counts,
            Some(Topic::Loads) | None => Knowledge::Nothing,
        }
    }
}

/// Knowledge of a core about the tasks that remote cores sent to the workers of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Its estimates include them, or there are no remote cores.
    Estimates,
    /// The cores publish the number of their tasks.
    Counts,
    /// The cores publish neither.
    Nothing,
}

/// Announcements of a spine's service address.
#[derive(Clone, Copy, Debug)]
struct ServiceAnnouncement {
    /// The service address.
    ip: IpAddr,
    /// Number of remaining announcements. The next one is due at `due_ns`.
    remaining: u8,
    due_ns: u64,
}

/// Part of one core in the messages between leaves and spines.
#[derive(Debug)]
pub struct Fabric {
    /// Index of this core, and number of cores.
    core: Core,
    /// State shared with the node's other cores.
    shared: Arc<Shared>,
    /// Links of a leaf, by pool.
    links: Vec<Option<Link>>,
    /// Loads of a leaf's workers as the sums include them, by pool.
    loads: Box<[Box<[u64]>]>,
    /// Pools of a leaf whose workers are all drained, with the end of the time for in-flight tasks from the
    /// spine.
    lingering: Box<[Option<u64>]>,
    /// Signal numbers of a spine's leaves, by pool.
    racks: Vec<Numbers>,
    /// Spines of a leaf, by place: id, address, and true if silent.
    spines: [Option<(u16, IpAddr, bool)>; SPINES_MAX],
    /// True if tasks or replies of a linked pool have passed since the last check.
    has_changes: bool,
    /// Time of the last tick.
    now_ns: u64,
    /// Heartbeats of a spine: start of the last round, and number of leaves that already have its message.
    round: (u64, usize),
    /// Messages waiting to be sent.
    messages: ArrayVec<OutgoingMessage, MESSAGES_MAX>,
    /// Service addresses of a spine, on one core only.
    services: Vec<ServiceAnnouncement>,
    /// True if announcements are left.
    announces: bool,
}

impl Fabric {
    /// Creates the part of one core of a node in this network, for at most `pools` pools with `members`
    /// members each.
    #[must_use]
    pub fn new(
        network: &Network,
        core: Core,
        shared: Arc<Shared>,
        pools: usize,
        members: usize,
    ) -> Self {
        let mut fabric = Self {
            core,
            shared,
            links: (0..pools).map(|_| None).collect(),
            loads: (0..if network.is_spine() { 0 } else { pools })
                .map(|_| vec![0; members].into())
                .collect(),
            lingering: vec![None; pools].into(),
            racks: (0..if network.is_spine() { pools } else { 0 })
                .map(|_| Numbers::new(members))
                .collect(),
            spines: [None; SPINES_MAX],
            has_changes: false,
            now_ns: 0,
            round: (0, 0),
            messages: ArrayVec::new(),
            services: Vec::with_capacity(pools),
            announces: false,
        };
        fabric.apply_network(network);
        fabric
    }

    /// Applies a network's links, spines and service addresses. Unchanged ones keep their state.
    pub(super) fn apply_network(&mut self, network: &Network) {
        if self.core.index == 0 {
            self.apply_services(network.service_ips());
        }
        for (place, current) in self.spines.iter_mut().enumerate() {
            let spine = network.spine(place).map(|spine| (spine.id, spine.ip));
            if current.map(|(id, ip, _)| (id, ip)) == spine {
                continue;
            }
            // Another spine at this place. Its silence counts from now.
            *current = spine.map(|(id, ip)| (id, ip, false));
            if self.core.index == 0 {
                self.shared.last_message_ns[place].store(0, Relaxed);
            }
        }
        for (pool, current) in self.links.iter_mut().enumerate() {
            let link = network.link(pool).filter(|_| pool < network.pools());
            let target = link.and_then(|SpineLink { spine, protocol }| {
                Some((*network.spine(usize::from(spine))?, protocol))
            });
            // A link restarts with a fresh state if its spine or protocol has changed.
            if current.as_ref().map(|link| (link.spine, link.protocol)) != target {
                if let Some(loads) = self.loads.get_mut(pool) {
                    loads.fill(0);
                }
                *current = target.map(|(spine, protocol)| Link {
                    spine,
                    protocol,
                    signals: Signals::new(protocol, 0),
                    number: 0,
                    total: 0,
                    next_counted: 0,
                    shared_workers: false,
                    tasks: [0; 2],
                    replied: false,
                    counted: self.shared.tasks.get(pool).map_or(0, |tasks| tasks.load(Relaxed)),
                    last_sent_ns: 0,
                    repeated_ns: 0,
                    lingers: self.lingering[pool].is_some(),
                });
            }
        }
    }

    /// Schedules announcements of new addresses: another spine may have had them before.
    fn apply_services(&mut self, services: &[IpAddr]) {
        self.services.retain(|known| services.binary_search(&known.ip).is_ok());
        for &ip in services {
            let is_new = !self.services.iter().any(|known| known.ip == ip);
            if is_new && self.services.len() < self.services.capacity() {
                self.services.push(ServiceAnnouncement { ip, remaining: ANNOUNCEMENTS, due_ns: 0 });
                self.announces = true;
            }
        }
    }

    /// Returns the next service address whose announcement is due, if any.
    pub(super) fn next_announcement(&mut self) -> Option<IpAddr> {
        if !self.announces {
            return None;
        }
        let now_ns = self.now_ns;
        self.announces = self.services.iter().any(|service| service.remaining > 0);
        let is_due =
            |service: &&mut ServiceAnnouncement| service.remaining > 0 && service.due_ns <= now_ns;
        let service = self.services.iter_mut().find(is_due)?;
        service.remaining -= 1;
        service.due_ns = now_ns + ANNOUNCE_AGAIN_NS;
        Some(service.ip)
    }

    /// Clears the message history of a vacated place. The history of its last leaf must not affect the next
    /// one.
    pub(super) fn forget(&mut self, pool: usize, leaf: Member) {
        if let Some(racks) = self.racks.get_mut(pool) {
            racks.forget(leaf);
        }
    }

    /// Returns the state shared by all cores.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns true if the pool reports to a spine.
    #[inline]
    pub(super) fn is_linked(&self, pool: usize) -> bool {
        self.links.get(pool).is_some_and(Option::is_some)
    }

    /// Starts or ends the time in which drained workers still receive in-flight tasks, because all workers of
    /// the pool are drained. The spine is notified at the next tick.
    pub(super) fn linger(&mut self, pool: usize, lingers: bool) {
        let until_ns = self.now_ns + LINGER_NS;
        let place = &mut self.lingering[pool];
        if place.is_some() == lingers {
            return;
        }
        *place = lingers.then_some(until_ns);
        if let Some(link) = self.link(pool) {
            (link.lingers, link.last_sent_ns) = (lingers, 0);
        }
    }

    /// Returns true if drained workers of some pool still receive in-flight tasks.
    #[inline]
    pub(super) fn lingers(&self) -> bool {
        self.lingering.iter().any(Option::is_some)
    }

    /// Returns true if the time for in-flight tasks of this pool is over. The caller then ends it by
    /// [`Fabric::linger`].
    pub(super) fn has_lingered(&self, pool: usize) -> bool {
        self.lingering[pool].is_some_and(|until_ns| self.now_ns >= until_ns)
    }

    /// Returns the link of a pool, if it has one.
    fn link(&mut self, pool: usize) -> Option<&mut Link> {
        self.links.get_mut(pool)?.as_mut()
    }

    /// Records that a task of a pool arrived. `idle_selected` is true if its header says that the spine took this
    /// rack for idle.
    pub(super) fn note_task(&mut self, pool: usize, idle_selected: bool) {
        let Some(link) = self.link(pool) else { return };
        link.tasks[usize::from(!idle_selected)] += 1;
        self.has_changes = true;
    }

    /// Adds a task to the load of a worker, after this core sent it there.
    pub(super) fn note_pick(&mut self, pool: usize, member: Member) {
        let Some(link) = self.links.get_mut(pool).and_then(Option::as_mut) else { return };
        let load = link.signals.load_of_task();
        self.loads[pool][member.index()] += load;
        link.total += load;
    }

    /// Replaces the load of a worker, after this core applied a reply of it.
    pub(super) fn note_reply(&mut self, pool: usize, dispatcher: &Dispatcher, member: Member) {
        let Some(link) = self.links.get_mut(pool).and_then(Option::as_mut) else { return };
        let load = link.load_in_own_memory(dispatcher.view(), member);
        let before = std::mem::replace(&mut self.loads[pool][member.index()], load);
        link.total = link.total - before + load;
        link.replied = true;
        self.has_changes = true;
    }

    /// Records a message from the spine at this place.
    pub(super) fn note_spine(&self, spine: usize) {
        self.shared.last_message_ns[spine].store(self.now_ns.max(1), Relaxed);
    }

    /// Returns the age of a leaf's signal with this number.
    pub(super) fn age_of(&mut self, pool: usize, leaf: Member, number: u16) -> Age {
        let Some(racks) = self.racks.get_mut(pool) else { return Age::Old };
        racks.age_of(leaf, number, self.now_ns)
    }

    /// Publishes a leaf's idle state to the node's other cores.
    pub(super) fn publish_idle(&self, pool: usize, leaf: Member, is_idle: bool) {
        for (core, queue) in self.shared.idle.iter().enumerate() {
            if core != self.core.index {
                // Replaces the oldest state if the queue is full: leaves repeat their states.
                queue.force_push((pool as u16, leaf, is_idle));
            }
        }
    }

    /// Applies the idle states published by other cores.
    #[inline]
    pub(super) fn receive_idle(&self, dispatchers: &mut [Dispatcher]) {
        let Some(queue) = self.shared.idle.get(self.core.index) else { return };
        while let Some((pool, leaf, is_idle)) = queue.pop() {
            if let Some(dispatcher) = dispatchers.get_mut(usize::from(pool)) {
                set_idle(dispatcher, leaf, is_idle);
            }
        }
    }

    /// Returns true if tasks or replies have passed that may require a signal.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        self.has_changes
    }

    /// Queues the signals that tasks and replies since the last check have caused: the *check* of a leaf's links.
    pub(super) fn send_changes(&mut self, network: &Network, dispatchers: &[Dispatcher]) {
        self.has_changes = false;
        for (pool, dispatcher) in dispatchers.iter().enumerate() {
            let sends_signals = self.sends_signals_for(pool);
            let Some(link) = self.links.get_mut(pool).and_then(Option::as_mut) else { continue };
            let tasks = std::mem::take(&mut link.tasks);
            let arrived = u64::from(tasks[0]) + u64::from(tasks[1]);
            self.shared.tasks[pool].fetch_add(arrived, Relaxed);
            link.counted += arrived;
            let replied = std::mem::take(&mut link.replied);
            if !sends_signals {
                continue;
            }
            let (messages, now_ns) = (&mut self.messages, self.now_ns);
            let mut queue = |link: &mut Link, signal| {
                queue_message(messages, (network, pool), link, dispatcher, signal, now_ns);
            };
            // Each task shows whether the spine takes the rack for idle. A contradiction to the last signal repeats it.
            let idle = dispatcher.view().idle_anywhere();
            for (tasks, idle_selected) in tasks.into_iter().zip([true, false]) {
                for _ in 0..tasks {
                    let signal = link.signals.on_task(idle_selected, idle);
                    queue(link, signal);
                }
            }
            if replied {
                // Once for all replies since the last check: `total` includes their loads.
                let total = link.total;
                for signal in link.signals.on_reply(idle, || total) {
                    queue(link, signal);
                }
            }
        }
    }

    /// Returns true if this core publishes the load of the pool.
    fn sends_signals_for(&self, pool: usize) -> bool {
        pool % self.core.count == self.core.index
    }

    /// Does all periodic work: links, silent spines, heartbeats.
    pub(super) fn tick(
        &mut self,
        now_ns: u64,
        network: &Network,
        dispatchers: &[Dispatcher],
        liveness: &Liveness,
        counters: &Counters,
    ) {
        self.now_ns = now_ns;
        for (pool, dispatcher) in dispatchers.iter().enumerate() {
            if self.sends_signals_for(pool) {
                if let Some(link) = self.link(pool) {
                    link.shared_workers = liveness.is_shared(pool);
                }
                self.tick_link(network, pool, dispatcher);
            }
        }
        if self.core.index == 0 {
            self.check_spines(counters);
            if network.is_spine() {
                self.send_heartbeats(network);
            }
        }
    }

    /// Does the periodic work of a pool's link: counts the tasks of other cores, repeats the state, and sends a
    /// heartbeat if no message was sent for its interval.
    fn tick_link(&mut self, network: &Network, pool: usize, dispatcher: &Dispatcher) {
        let (messages, now_ns) = (&mut self.messages, self.now_ns);
        let Some(link) = self.links.get_mut(pool).and_then(Option::as_mut) else { return };
        link.signals.set_workers(dispatcher.view().active().len());
        // Tasks that other cores received since this core's last tick.
        let arrived = self.shared.tasks[pool].load(Relaxed);
        let remote_tasks = arrived - std::mem::replace(&mut link.counted, arrived);
        link.signals.note_tasks(remote_tasks);
        // At the link's first tick, the interval begins.
        if link.repeated_ns == 0 {
            link.repeated_ns = now_ns.max(1);
        }
        if now_ns.saturating_sub(link.repeated_ns) >= REPEAT_NS {
            link.repeated_ns = now_ns;
            // Tasks and replies of other cores change the load, too. The next check compares it as after a reply.
            let has_changed = link.sum_loads(dispatcher.view(), &mut self.loads[pool]);
            link.replied |= has_changed && self.core.count > 1;
            self.has_changes |= link.replied;
            let has_idle = self.core.count == 1 || dispatcher.view().idle_anywhere() > 0;
            let signal = link.signals.repeat(has_idle);
            queue_message(messages, (network, pool), link, dispatcher, signal, now_ns);
        }
        if link.last_sent_ns == 0 || now_ns.saturating_sub(link.last_sent_ns) >= HEARTBEAT_NS {
            // `Silent` sends no signals. The spine's policy ignores loads then, but a load update as the heartbeat
            // keeps the spine's estimate current.
            let code = match link.protocol {
                Protocol::Silent => Code::LoadUpdate,
                _ => Code::KeepAlive,
            };
            queue_message_from(messages, (network, pool), link, dispatcher, code, now_ns);
        }
    }

    /// Updates the set of silent spines.
    fn check_spines(&mut self, counters: &Counters) {
        let spines = self.spines.iter_mut().zip(&self.shared.last_message_ns);
        for (spine, last_message_ns) in spines {
            let Some((_, _, silent)) = spine else { continue };
            // The silence of a spine without any message counts from now.
            let now_ns = self.now_ns.max(1);
            let last_ns = last_message_ns
                .compare_exchange(0, now_ns, Relaxed, Relaxed)
                .map_or_else(|last_ns| last_ns, |_| now_ns);
            let is_silent = now_ns.saturating_sub(last_ns) > SILENT_NS;
            if is_silent != *silent {
                *silent = is_silent;
                let counter = if is_silent { Counter::SpinesLost } else { Counter::SpinesBack };
                counters.add(counter, 1);
            }
        }
        let is_silent =
            |spine: &Option<(u16, IpAddr, bool)>| spine.is_some_and(|(.., silent)| silent);
        let places = self.spines.iter().enumerate().filter(|(_, spine)| is_silent(spine));
        let silent = places.fold(0_u64, |bits, (place, _)| bits | 1 << place);
        self.shared.silent.store(silent, Relaxed);
        counters.set(Gauge::SpinesSilent, silent.count_ones().into());
    }

    /// Sends a heartbeat to all leaves within one interval, to a part of them at each tick.
    fn send_heartbeats(&mut self, network: &Network) {
        let (began_ns, sent) = self.round;
        let elapsed_ns = self.now_ns.saturating_sub(began_ns);
        if sent >= network.leaf_hosts().len() {
            if elapsed_ns >= HEARTBEAT_NS {
                self.round = (self.now_ns, 0);
            }
            return;
        }
        let room = self.messages.remaining_capacity();
        for &(ip, server) in network.leaf_hosts().iter().skip(sent).take(room) {
            let header = Header::signal(Code::KeepAlive, 0, network.node, 0);
            let (port, slot) = (server.port, server.slot);
            let extension = Extension::default();
            self.messages.push(OutgoingMessage { port, slot, ip, header, extension });
            self.round.1 += 1;
        }
    }

    /// Returns the next message to send, if any.
    #[inline]
    pub(super) fn next_message(&mut self) -> Option<OutgoingMessage> {
        // In order: the signals of a leaf are numbered.
        if self.messages.is_empty() { None } else { Some(self.messages.remove(0)) }
    }
}

/// Adds a leaf to the idle list, or removes it.
pub(super) fn set_idle(dispatcher: &mut Dispatcher, leaf: Member, is_idle: bool) {
    let idle = dispatcher.view_mut().idle_mut();
    if is_idle {
        idle.insert(leaf)
    } else {
        idle.remove(leaf)
    };
}

/// Queues the message for a signal, if there is one.
fn queue_message(
    messages: &mut ArrayVec<OutgoingMessage, MESSAGES_MAX>,
    pool: (&Network, usize),
    link: &mut Link,
    dispatcher: &Dispatcher,
    signal: Option<Signal>,
    now_ns: u64,
) {
    let code = match signal {
        None => return,
        Some(Signal::IdleAdd) => Code::IdleAdd,
        Some(Signal::IdleRemove) => Code::IdleRemove,
        Some(Signal::Load(_)) => Code::LoadUpdate,
    };
    queue_message_from(messages, pool, link, dispatcher, code, now_ns);
}

/// Queues a message of a link to its spine. Drops it if too many are waiting.
fn queue_message_from(
    messages: &mut ArrayVec<OutgoingMessage, MESSAGES_MAX>,
    (network, pool): (&Network, usize),
    link: &mut Link,
    dispatcher: &Dispatcher,
    code: Code,
    now_ns: u64,
) {
    let spine = link.spine;
    let Some(id) = network.pool_id(pool) else { return };
    link.number = link.number.wrapping_add(1);
    link.last_sent_ns = now_ns.max(1);
    let workers = if link.lingers { 0 } else { dispatcher.view().active().len() };
    let workers = workers.min(usize::from(u16::MAX)) as u16;
    let header = Header::signal(code, id, network.node, link.number);
    // Every message carries the load, because the spine may have no recent value: the average per worker in
    // `service_ns` (16.16 fixed point, no time), and the number of active workers in `class`.
    let Load(service_ns) = link.signals.average(link.total);
    let extension =
        Extension { seq32: link.number.into(), service_ns, class: workers, ..Extension::default() };
    let message =
        OutgoingMessage { port: spine.port, slot: spine.slot, ip: spine.ip, header, extension };
    let _ = messages.try_push(message);
}
