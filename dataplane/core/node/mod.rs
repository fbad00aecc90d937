//! Core of a node: one dispatcher core's work around its stages (the packet path: parse, classify, schedule, rewrite),
//! independent of how packets are stored.
//!
//! Packets that cannot proceed wait here, for a worker or for their next hop's MAC address. The node advances
//! the time of policies, workers and neighbours, and asks for the MAC addresses of neighbours. In a leaf, a packet
//! handle is the packet itself. With an embedded scheduler the caller stores the packets, and a handle is a packet's
//! number there. So the node is generic over the handle `T`, and reads a packet's bytes through [`PacketStore`].
//!
//! A membership (pools, servers and workers) has an *epoch*, a number that grows with each change. A neighbour's
//! *slot* is the index of its entry in the neighbour table.

pub mod arp;
pub mod explain;
pub mod outbox;
pub mod refusals;
pub mod tap;
mod timing;

pub use timing::Timing;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

use arp::{ArpQuestion, ArpResolver};

use crate::io::{Buf, Burst};
use crate::limits::BURST;
use crate::policy::fifo::{Fifo, Slab};
use crate::policy::{LANES, Lane, Lanes};
use crate::reason::DropReason;
use crate::stage::fabric::OutgoingMessage;
use crate::stage::{
    NeighbourProbe, PortAddress, QueuePlace, Server, Side, Stages, Update, Verdict,
};
use crate::state::Gauge;
use crate::state::neighbour::Slot;
use crate::wire::ether::{self, Mac};

/// Capacity of a core's command queue. A sender uses at most half of it, see [`Commands::has_room`].
const COMMANDS: usize = 256;

/// Queue of commands from control threads to a core, which executes them between bursts. Executed commands return
/// with the objects that they replaced, so that a control thread frees the memory. Handles can be cloned; one core
/// executes the commands. `C` is a leaf's command by default.
#[derive(Debug)]
pub struct Commands<C = Box<Update>>(Arc<Mailbox<C>>);

/// Queues between the control threads and one core.
#[derive(Debug)]
struct Mailbox<C> {
    /// Commands for the core.
    waiting: ArrayQueue<C>,
    /// Executed commands.
    done: ArrayQueue<C>,
    /// Epoch that the core acknowledged last: of its membership, or the number of the last tap order.
    epoch: AtomicU64,
}

impl<C> Clone for Commands<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> Default for Commands<C> {
    fn default() -> Self {
        let (waiting, done) = (ArrayQueue::new(COMMANDS), ArrayQueue::new(COMMANDS));
        Self(Arc::new(Mailbox { waiting, done, epoch: AtomicU64::new(1) }))
    }
}

impl<C> Commands<C> {
    /// Sends a command to the core.
    ///
    /// # Errors
    /// Returns the command if the queue is full.
    pub fn push(&self, command: C) -> Result<(), C> {
        self.0.waiting.push(command)
    }

    /// Returns true if there is room for commands.
    #[must_use]
    pub fn has_room(&self) -> bool {
        // Each command also needs room in `done` after its execution. The limit of half the capacity leaves room for
        // the command that the core executes now, which is in neither queue.
        self.0.waiting.len() + self.0.done.len() < COMMANDS / 2
    }

    /// Returns the next command; called by the core.
    #[inline]
    pub fn next(&self) -> Option<C> {
        self.0.waiting.pop()
    }

    /// Returns an executed command with the objects it replaced, to be freed by a thread other than the
    /// core's.
    pub fn next_done(&self) -> Option<C> {
        self.0.done.pop()
    }

    /// Returns the epoch that the core acknowledged last.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        // Acquire: pairs with the store in `acknowledge`.
        self.0.epoch.load(Acquire)
    }

    /// Publishes the epoch of a command that the core has executed, and sends the command back to be freed.
    ///
    /// # Panics
    /// If the epoch is older than the current one.
    pub fn acknowledge(&self, epoch: u64, done: C) {
        assert!(epoch >= self.epoch(), "epoch {epoch} after {}", self.epoch());
        // Release: a thread that reads the epoch also sees what the core published before.
        self.0.epoch.store(epoch, Release);
        // There is room if senders check it before each command. Otherwise a leak is better than freeing
        // memory on the core.
        self.0.done.push(done).unwrap_or_else(std::mem::forget);
    }
}

/// Number of waiting tasks between the one that leaves and the one that is prefetched.
const PREFETCH_QUEUED: usize = 3;
/// Version of the network's tables for a task that the fast path did not recognise.
const NO_TABLES: u32 = 0;

/// Storage of the packets that wait.
pub trait PacketStore<T> {
    /// Returns the bytes of a packet, or `None` if it is no longer stored.
    fn frame<'a>(&'a mut self, packet: &'a mut T) -> Option<&'a mut [u8]>;

    /// Prefetches a packet that waits and will soon be offered.
    fn prefetch(&self, _packet: &T) {}

    /// Decides on the first task of a lane of a pool's queue. `None` if it must keep waiting. Drops a task whose packet
    /// is no longer stored.
    fn offer(
        &mut self,
        stages: &mut Stages,
        first: QueuePlace,
        now: u64,
        packet: &mut T,
    ) -> Option<Verdict> {
        match self.frame(packet) {
            Some(frame) => stages.offer(first, now, frame),
            None => {
                stages.leave(first.pool, first.lane);
                Some(Verdict::Drop(dropped(stages, DropReason::Shutdown)))
            }
        }
    }
}

/// Destination of a released packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Index of the port to send it out of.
    pub port: u8,
    /// Worker that a task goes to, or that a reply comes from.
    pub worker: u16,
}

/// A packet that no longer waits: rewritten and ready to send, or dropped and already counted.
pub type ReleasedPacket<T> = (T, Result<Egress, DropReason>);

/// A task that waits for a worker.
#[derive(Debug)]
struct QueuedTask<T> {
    /// Handle of its packet.
    packet: T,
    /// Index of the receiving port.
    port: u8,
    /// Version of the network's tables ([`Node::tables`]) by which the fast path recognised it, else [`NO_TABLES`].
    tables: u32,
    /// Time of its arrival in ticks.
    since: u64,
}

/// A packet that lacks only its next hop's MAC address.
#[derive(Debug)]
struct UnresolvedPacket<T> {
    /// Handle of the packet.
    packet: T,
    /// Worker that a task goes to, or that a reply comes from.
    worker: u16,
    /// Index of the port that leads to its next hop.
    port: u8,
}

/// Due checks of waiting packets. A change since the last check may release some.
#[derive(Clone, Copy, Debug, Default)]
struct Review {
    /// True if next hops may have been resolved or have failed.
    neighbours: bool,
    /// True if workers may have become free for waiting tasks.
    workers: bool,
    /// First pool whose queue has not been checked completely.
    pool: usize,
    /// Lanes of this pool whose first tasks must keep waiting.
    blocked: Lanes,
}

/// One core's stages with the packets that wait. All memory is allocated on creation.
#[derive(Debug)]
pub struct Node<T> {
    /// The stages.
    pub stages: Stages,
    /// Packets that wait for MAC addresses, and the questions for these.
    resolver: ArpResolver<UnresolvedPacket<T>>,
    /// Tasks of all pools that wait for workers. One memory for all pools, so that new pools and changed bounds need no
    /// allocation.
    tasks: Slab<QueuedTask<T>>,
    /// Lanes of each pool's queue, in the network's order of pools. `tasks` stores their tasks.
    queues: Box<[[Fifo; LANES]]>,
    /// Commands of the control threads: updates of the membership.
    commands: Commands,
    /// Due checks of the waiting packets.
    review: Review,
    /// Version of the network's tables: grows with each update.
    tables: u32,
    /// Ticks of the clock, and the intervals of periodic work.
    timing: Timing,
    /// Time of the next periodic work in ticks.
    next_tick: u64,
    /// Time of the next check for servers and spines with unknown MAC addresses, in ticks.
    next_servers: u64,
    /// Number of link changes at the last such check.
    link_changes: u64,
    /// True if some pool's policy queues tasks.
    holds: bool,
}

impl<T> Node<T> {
    /// Creates a node without waiting packets. Its times are ticks of `timing`'s clock.
    #[must_use]
    pub fn new(stages: Stages, commands: Commands, timing: Timing) -> Self {
        Self {
            tasks: Slab::with_room(stages.capacity().waiting),
            queues: vec![[Fifo::EMPTY; LANES]; stages.capacity().pools].into_boxed_slice(),
            commands,
            holds: stages.holds_tasks(),
            stages,
            resolver: ArpResolver::new(Timing::QUESTION_INTERVAL_MS),
            review: Review::default(),
            tables: NO_TABLES + 1,
            timing,
            next_tick: 0,
            next_servers: 0,
            link_changes: 0,
        }
    }

    /// Returns the time of the next periodic work, in ticks.
    #[must_use]
    pub fn next_tick(&self) -> u64 {
        self.next_tick
    }

    /// Returns the epoch of its membership.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.commands.epoch()
    }

    /// Returns the maximum number of tasks that may wait for workers, over all pools.
    #[must_use]
    pub fn queue_bound(&self) -> usize {
        self.tasks.room()
    }

    /// Updates the time before a burst, for the detection of lost tasks and for policies that queue tasks.
    #[inline]
    pub fn note_time(&mut self, now: u64) {
        let now_ns = self.timing.to_ns(now);
        self.stages.note_burst(now_ns);
        if self.holds {
            self.stages.tick_holding(now_ns);
        }
    }

    /// Holds a packet until its next hop is resolved, and asks for it at once. If there is no room, returns the oldest
    /// held packet with its drop reason; the caller counts it as dropped.
    pub fn hold(
        &mut self,
        packet: T,
        port: u8,
        worker: u16,
        slot: Slot,
        now: u64,
    ) -> Option<(T, DropReason)> {
        let next_hop = self.stages.neighbours().address(slot);
        let (packet, now_ms) = (UnresolvedPacket { packet, worker, port }, self.timing.to_ms(now));
        let oldest = self.resolver.hold(packet, port, slot, next_hop, now_ms);
        // The host's own packets may show its address before it answers.
        self.stages.want_neighbour(usize::from(port));
        self.next_tick = now; // questions are sent at ticks, so the next one is due now
        let full = DropReason::NeighbourQueueFull;
        oldest.map(|oldest| (oldest.packet, self.unresolved_reason(oldest.port, full)))
    }

    /// Returns the drop reason of a packet with an unresolved next hop: `port_down` if its port has no link,
    /// otherwise `usual`.
    fn unresolved_reason(&self, port: u8, usual: DropReason) -> DropReason {
        let is_up = self.stages.neighbours().is_link_up(usize::from(port));
        if is_up { usual } else { DropReason::PortDown }
    }

    /// Appends a task to a lane of its pool's queue at `now` ticks. `is_recognised` as in [`Verdict::Queue`].
    ///
    /// # Errors
    /// Returns the task, already counted as dropped, if there is no room.
    #[inline]
    pub fn enqueue(
        &mut self,
        packet: T,
        place: QueuePlace,
        is_recognised: bool,
        now: u64,
    ) -> Result<(), T> {
        let tables = if is_recognised { self.tables } else { NO_TABLES };
        let QueuePlace { pool, lane, port } = place;
        // The pool's own bound was checked, but the pools share the memory, and their bounds may exceed it in sum.
        let task = QueuedTask { packet, port: port as u8, tables, since: now };
        self.tasks.push(&mut self.queues[pool][lane.index()], task).map_err(|task| {
            self.stages.leave_last(pool, lane);
            self.stages.counters().drop(DropReason::QueueFull, 1);
            task.packet
        })
    }

    /// Notes that a neighbour may have answered. Packets that wait for it are then checked before the next tick.
    pub fn review_neighbours(&mut self) {
        self.review.neighbours = true;
    }

    /// Does periodic work, due at [`Node::next_tick`]: changes of the configuration, timers of policies and workers,
    /// and questions for MAC addresses. Afterwards all waiting packets are checked again.
    #[cold]
    pub fn tick(&mut self, now: u64) {
        self.next_tick = now.saturating_add(self.timing.tick_interval());
        self.apply_commands();
        self.stages.tick(now, self.timing.to_ns(now));
        self.ask_for_servers(now);
        while let Some(NeighbourProbe { port, slot, address }) = self.stages.next_neighbour_probe()
        {
            self.resolver.ask(port, slot, address, true, self.timing.to_ms(now));
        }
        self.review = Review { neighbours: true, workers: true, ..Review::default() };
    }

    /// Asks for the MAC addresses of servers and spines that are unknown, periodically and after each link change.
    fn ask_for_servers(&mut self, now: u64) {
        let link_changes = self.stages.neighbours().link_changes();
        if now < self.next_servers && link_changes == self.link_changes {
            return;
        }
        (self.next_servers, self.link_changes) =
            (now.saturating_add(self.timing.server_check_interval()), link_changes);
        let network = self.stages.network();
        let servers =
            network.servers().map(|&Server { port, slot, next_hop, .. }| (port, slot, next_hop));
        let spines = network.spines().map(|spine| (spine.port, spine.slot, spine.next_hop));
        for (port, slot, next_hop) in servers.chain(spines) {
            if self.stages.neighbours().mac(slot).is_none() {
                self.resolver.ask(port, slot, next_hop, false, self.timing.to_ms(now));
            }
        }
    }

    /// Returns its clock's parameters.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Returns true if every port for workers only has a link, the MAC address of every server is known, and no pool
    /// without workers to choose awaits registrations. After a link-up, a leaf may delay tasks until then.
    #[must_use]
    pub fn reaches_workers(&self) -> bool {
        let (network, neighbours) = (self.stages.network(), self.stages.neighbours());
        let mut ports = (0..).zip(network.ports());
        ports.all(|(index, port)| port.side != Side::Workers || neighbours.is_link_up(index))
            && network.servers().all(|server| neighbours.mac(server.slot).is_some())
            && !self.stages.awaits_registrations()
    }

    /// Returns the next message to a leaf, spine or worker, with the MAC address of its next hop and the
    /// port's address. If the next hop is unresolved, asks for it and skips the message. A skipped message is
    /// repeated later, or the node does not need its answer.
    #[inline]
    pub fn next_message(&mut self, now: u64) -> Option<(OutgoingMessage, Mac, PortAddress)> {
        while let Some(message) = self.stages.next_message() {
            let (port, slot) = (message.port, message.slot);
            if let Some(mac) = self.stages.neighbours().mac(slot) {
                return Some((message, mac, *self.stages.network().port(usize::from(port))));
            }
            let next_hop = self.stages.neighbours().address(slot);
            self.resolver.ask(port, slot, next_hop, false, self.timing.to_ms(now));
        }
        None
    }

    /// Returns the next question for a neighbour's MAC address that is due.
    #[inline]
    pub fn next_question(&mut self, now: u64) -> Option<ArpQuestion> {
        if self.resolver.is_quiet() {
            return None;
        }
        self.resolver.due(self.timing.to_ms(now), self.stages.neighbours())
    }

    /// Returns the next packet that no longer waits: first packets with a known next hop, then tasks, pool by pool in
    /// the order of their keys. Without a change since the last check, no packet can proceed.
    #[inline]
    pub fn next_released(
        &mut self,
        now: u64,
        store: &mut impl PacketStore<T>,
    ) -> Option<ReleasedPacket<T>> {
        if self.is_review_due(now) { self.find_released(now, store) } else { None }
    }

    /// Returns true if some waiting packet may proceed. Then several cores note the time, on which their shared order
    /// of waiting tasks depends.
    #[inline]
    fn is_review_due(&mut self, now: u64) -> bool {
        if self.stages.take_freed() {
            let neighbours = self.review.neighbours;
            self.review = Review { neighbours, workers: true, ..Review::default() };
        }
        let is_due = self.review.neighbours || self.review.workers;
        if is_due && self.stages.has_peers() {
            self.note_time(now);
        }
        is_due
    }

    /// Checks the waiting packets: first those without a MAC address, if a check of these is due, then queued tasks.
    #[cold]
    fn find_released(
        &mut self,
        now: u64,
        store: &mut impl PacketStore<T>,
    ) -> Option<ReleasedPacket<T>> {
        if self.review.neighbours {
            if let Some(released) = self.next_resolved(now, store) {
                return Some(released);
            }
            self.review.neighbours = false;
        }
        let scheduled = self.next_scheduled(now, store);
        if scheduled.is_none() {
            self.review = Review::default();
        }
        scheduled
    }

    /// Returns a packet whose next hop was resolved, with the MAC addresses written into it, or one whose next hop did
    /// not answer. If there is none, marks the workers behind silent next hops as unreachable.
    fn next_resolved(
        &mut self,
        now: u64,
        store: &mut impl PacketStore<T>,
    ) -> Option<ReleasedPacket<T>> {
        let now_ms = self.timing.to_ms(now);
        if let Some((resolved, port, mac)) = self.resolver.resolved(self.stages.neighbours()) {
            let UnresolvedPacket { mut packet, worker, .. } = resolved;
            let src_mac = self.stages.network().port(usize::from(port)).mac;
            let outcome = match store.frame(&mut packet) {
                Some(frame) => {
                    if frame.len() >= ether::LEN {
                        ether::emit_addresses(frame, mac, src_mac);
                    }
                    Ok(Egress { port, worker })
                }
                None => Err(dropped(&self.stages, DropReason::Shutdown)),
            };
            return Some((packet, outcome));
        }
        if let Some(expired) = self.resolver.next_expired(now_ms) {
            let reason = self.unresolved_reason(expired.port, DropReason::NeighbourUnresolved);
            return Some((expired.packet, Err(dropped(&self.stages, reason))));
        }
        while let Some(slot) = self.resolver.next_silent(now_ms, self.stages.neighbours()) {
            self.stages.lose_next_hop(slot);
        }
        None
    }

    /// Offers the first tasks of each pool's lanes to the policy. Returns the first one that leaves, for a worker or
    /// dropped. A task that must wait for its next hop may push out the oldest such packet, which is then returned.
    fn next_scheduled(
        &mut self,
        now: u64,
        store: &mut impl PacketStore<T>,
    ) -> Option<ReleasedPacket<T>> {
        while self.review.pool < self.stages.network().pools() {
            let pool = self.review.pool;
            let Some(lane) = self.next_lane(pool) else {
                self.review = Review { pool: pool + 1, blocked: Lanes::NONE, ..self.review };
                continue;
            };
            let queue = &mut self.queues[pool][lane.index()];
            let first = self.tasks.get_mut(queue.first()?)?;
            let place = QueuePlace { pool, lane, port: usize::from(first.port) };
            let offered = store.offer(&mut self.stages, place, now, &mut first.packet);
            let Some(verdict) = offered else {
                let dispatcher = self.stages.dispatcher(pool)?;
                self.review.blocked = self.review.blocked.union(dispatcher.blocked_by(lane));
                continue;
            };
            let QueuedTask { packet, since, .. } = self.tasks.pop(queue)?;
            if let Some(later) = self.tasks.iter(*queue).nth(PREFETCH_QUEUED) {
                store.prefetch(&later.packet); // probably evicted from the caches while it waited
            }
            if let Some(dispatcher) = self.stages.dispatcher(pool) {
                dispatcher.view().note_waits(self.timing.to_ns(now.saturating_sub(since)), 1);
            }
            match verdict {
                Verdict::Forward { port, worker } => {
                    return Some((packet, Ok(Egress { port, worker })));
                }
                Verdict::Drop(reason) => return Some((packet, Err(reason))),
                // It has a worker now and waits for its next hop.
                Verdict::Hold { port, worker, slot } => {
                    self.note_queued(pool); // the caller does so for released packets
                    if let Some((oldest, reason)) = self.hold(packet, port, worker, slot, now) {
                        return Some((oldest, Err(dropped(&self.stages, reason))));
                    }
                }
                // No other verdict is possible for a queued task; if one occurred, the task would still be
                // counted.
                _ => return Some((packet, Err(dropped(&self.stages, DropReason::QueueFull)))),
            }
        }
        None
    }

    /// Returns the lane of a pool's queue whose first task is the next to be offered, if there is one.
    fn next_lane(&self, pool: usize) -> Option<Lane> {
        let since_ns = |lane| self.first_since_ns(pool, lane);
        self.stages.dispatcher(pool)?.next_lane(self.review.blocked, since_ns)
    }

    /// Returns the arrival time of the first task in a lane of a pool's queue, in nanoseconds; `None` in an empty lane.
    pub fn first_since_ns(&self, pool: usize, lane: Lane) -> Option<u64> {
        let first = self.tasks.get(self.queues[pool][lane.index()].first()?)?;
        Some(self.timing.to_ns(first.since))
    }

    /// Removes any waiting packet and counts it as dropped, because the node stops. `None` once no packet waits.
    pub fn abandon(&mut self) -> Option<T> {
        let packet = match self.resolver.abandon() {
            Some(unresolved) => unresolved.packet,
            None => {
                let lanes = |(pool, queue)| std::iter::repeat(pool).zip(Lane::all().zip(queue));
                let mut lanes = self.queues.iter_mut().enumerate().flat_map(lanes);
                let (pool, lane, task) = lanes
                    .find_map(|(pool, (lane, fifo))| Some((pool, lane, self.tasks.pop(fifo)?)))?;
                self.stages.leave(pool, lane);
                task.packet
            }
        };
        self.stages.counters().drop(DropReason::Shutdown, 1);
        Some(packet)
    }

    /// Publishes the number of waiting packets: those of the node, and `at_caller` more.
    pub fn note_held(&self, at_caller: usize) {
        (0..self.stages.network().pools()).for_each(|pool| self.note_queued(pool));
        self.stages.counters().set(Gauge::Held, (self.held() + at_caller) as u64);
    }

    /// Publishes the numbers of tasks that wait for workers: of a pool, and of all.
    fn note_queued(&self, pool: usize) {
        self.stages.counters().set(Gauge::Queued, self.stages.waiting() as u64);
        if let Some(dispatcher) = self.stages.dispatcher(pool) {
            dispatcher.view().note_queued(dispatcher.waiting());
        }
    }

    /// Returns the number of packets that wait here for a worker or a next hop.
    #[must_use]
    pub fn held(&self) -> usize {
        self.stages.waiting() + self.resolver.held()
    }

    /// Executes pending commands.
    pub fn apply_commands(&mut self) {
        while let Some(mut update) = self.commands.next() {
            self.stages.update(&mut update);
            self.holds = self.stages.holds_tasks();
            self.next_servers = 0; // asks for new servers at once
            self.tables = self.tables.wrapping_add(1).max(NO_TABLES + 1);
            self.commands.acknowledge(update.epoch, update);
        }
    }
}

impl<B: Buf> Node<B> {
    /// Releases up to `most` tasks from the front of a pool's queue. One port received them, and the fast path
    /// recognised them by the current tables. Picks workers for all of them, then rewrites their packets. Returns the
    /// port and the packets, whose verdicts it writes; `None` if there are none. The caller then continues with
    /// [`Node::next_released`], which releases all other packets.
    ///
    /// # Panics
    /// If `most` is above [`BURST`].
    pub fn release_run(
        &mut self,
        now: u64,
        most: usize,
        verdicts: &mut [Verdict; BURST],
    ) -> Option<(usize, Burst<B>)> {
        // Packets that wait for a next hop go first.
        if !self.is_review_due(now) || self.review.neighbours {
            return None;
        }
        // Continues with the next pool if one has no free worker.
        loop {
            let waits =
                |&pool: &usize| self.stages.dispatcher(pool).is_some_and(|it| it.waiting() > 0);
            let pool = (self.review.pool..self.stages.network().pools()).find(waits)?;
            if pool != self.review.pool {
                self.review = Review { pool, blocked: Lanes::NONE, ..self.review };
            }
            let first = self.queues[pool][Lane::FIRST.index()].first()?;
            let &QueuedTask { port, tables, .. } = self.tasks.get(first)?;
            let may_go = tables == self.tables && self.review.blocked == Lanes::NONE;
            if !may_go || !self.stages.releases_runs(pool) {
                return None;
            }
            let (port, burst) = (usize::from(port), self.take_run(pool, now, most, verdicts)?);
            if !burst.is_empty() {
                return Some((port, burst));
            }
        }
    }

    /// Releases a run from the front of this pool's queue, as [`Node::release_run`] does. If a task of it finds no
    /// worker, the next pool is due.
    #[inline]
    fn take_run(
        &mut self,
        pool: usize,
        now: u64,
        most: usize,
        verdicts: &mut [Verdict; BURST],
    ) -> Option<Burst<B>> {
        let queue = &mut self.queues[pool][Lane::FIRST.index()];
        let &QueuedTask { port, tables, .. } = self.tasks.get(queue.first()?)?;
        let alike = self.tasks.iter(*queue).take(most);
        let alike = alike.take_while(|task| (task.tables, task.port) == (tables, port));
        // The packets were probably evicted from the caches while they waited.
        let count = alike.inspect(|task| task.packet.prefetch_all()).count();
        let mut picks = [None; BURST];
        let released = self.stages.pick_waiting(pool, &mut picks[..count]);
        if released < count {
            self.review = Review { pool: pool + 1, blocked: Lanes::NONE, ..self.review };
        }
        let (mut burst, mut arrivals) = (Burst::new(), ArrayVec::<u64, BURST>::new());
        for _ in 0..released {
            let QueuedTask { packet, since, .. } = self.tasks.pop(queue)?;
            burst.push(packet);
            arrivals.push(since);
        }
        let view = self.stages.dispatcher(pool)?.view();
        for equal in arrivals.chunk_by(|one, other| one == other) {
            view.note_waits(self.timing.to_ns(now.saturating_sub(equal[0])), equal.len() as u64);
        }
        let place = (usize::from(port), pool);
        self.stages.send_waiting(place, &mut burst, &picks[..released], verdicts);
        Some(burst)
    }
}

/// Counts a dropped packet and returns the reason.
fn dropped(stages: &Stages, reason: DropReason) -> DropReason {
    stages.counters().drop(reason, 1);
    reason
}
