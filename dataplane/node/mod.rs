//! The core of a node: what one dispatcher core does around its stages, whoever has its packets.
//!
//! Packets that can't go on yet wait here, for a worker or for their next hop's MAC address; time passes here for policies,
//! workers and neighbours; and here neighbours are asked for. A leaf keeps its packets itself; an embedded scheduler's caller
//! keeps them, at places that the node knows. So the node is made for any name of a packet, `T`, and reads the bytes of one
//! through [`Keeper`].

pub mod arp;
pub mod explain;
pub(crate) mod outbox;
pub mod refusals;
pub mod tap;
mod timing;

pub use timing::Timing;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use crossbeam_queue::ArrayQueue;

use arp::{ArpResolver, Ask};

use crate::policy::fifo::{Fifo, Slab};
use crate::reason::DropReason;
use crate::stage::fabric::Word;
use crate::stage::{NeighbourProbe, PortAddress, Server, Side, Stages, Update, Verdict};
use crate::state::Gauge;
use crate::state::neighbour::Slot;
use crate::wire::ether::{self, Mac};

/// Commands that may wait for a core.
const COMMANDS: usize = 256;

/// What a control thread asks of a core, to be done between bursts, on its way in, and with what it replaced on its way back. Any
/// number of handles; one core takes commands. What a command is says the kind of node: `C` is a leaf's unless named.
#[derive(Debug)]
pub struct Commands<C = Box<Update>>(Arc<Mailbox<C>>);

#[derive(Debug)]
struct Mailbox<C> {
    waiting: ArrayQueue<C>,
    done: ArrayQueue<C>,
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
    /// Gives the core a command.
    ///
    /// # Errors
    /// The command, when too many wait.
    pub fn push(&self, command: C) -> Result<(), C> {
        self.0.waiting.push(command)
    }

    /// Commands can be given: the core has taken enough of those before.
    #[must_use]
    pub fn has_room(&self) -> bool {
        // What was taken and comes back needs room, too.
        self.0.waiting.len() + self.0.done.len() < COMMANDS / 2
    }

    /// The next command, for the core.
    #[inline]
    pub fn next(&self) -> Option<C> {
        self.0.waiting.pop()
    }

    /// What the core has taken, with what it replaced, to be freed by another thread than the core's.
    pub fn next_done(&self) -> Option<C> {
        self.0.done.pop()
    }

    /// Number of the membership that the core works with.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Acquire)
    }

    /// The core works with the membership of this number, to which this led.
    pub fn acknowledge(&self, epoch: u64, done: C) {
        self.0.epoch.store(epoch, Release);
        // There is room, as long as it is asked for before each command; a leak is better than freeing on the core.
        self.0.done.push(done).unwrap_or_else(std::mem::forget);
    }
}

/// Whoever keeps the packets that wait.
pub trait Keeper<T> {
    /// The bytes of a packet; none when it is kept no more.
    fn frame<'a>(&'a mut self, packet: &'a mut T) -> Option<&'a mut [u8]>;

    /// Decides on the packet that is first in a pool's central queue and came to this port; none when it must wait on.
    fn offer(
        &mut self,
        stages: &mut Stages,
        (pool, port): (usize, usize),
        now: u64,
        packet: &mut T,
    ) -> Option<Verdict> {
        match self.frame(packet) {
            Some(frame) => stages.offer(pool, port, now, frame),
            None => {
                stages.leave(pool);
                Some(Verdict::Drop(dropped(stages, DropReason::Shutdown)))
            }
        }
    }
}

/// Where a packet that has waited goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Index of the port to send it out of.
    pub port: u8,
    /// The worker that a task goes to, or that a reply comes from.
    pub worker: u16,
}

/// A packet that waits no longer: rewritten, to be sent; or given up, already counted.
pub type Released<T> = (T, Result<Egress, DropReason>);

/// A task that waits for a worker.
#[derive(Debug)]
struct Queued<T> {
    packet: T,
    /// Index of the port that it came from.
    port: u8,
}

/// A packet that lacks only the MAC address of its next hop.
#[derive(Debug)]
struct Unaddressed<T> {
    packet: T,
    /// The worker that a task goes to, or that a reply comes from.
    worker: u16,
    /// Index of the port that leads to its next hop.
    port: u8,
}

/// What may have changed since the packets that wait were looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Review {
    /// Next hops may be known, or have been asked for in vain.
    neighbours: bool,
    /// Workers may have room.
    workers: bool,
    /// The first pool whose queue is still to be looked at.
    pool: usize,
}

/// One core's stages, and what waits around them. All memory is taken when it is made.
#[derive(Debug)]
pub struct Node<T> {
    /// What it decides with.
    pub stages: Stages,
    resolver: ArpResolver<Unaddressed<T>>,
    /// Tasks that wait for workers, of all pools.
    tasks: Slab<Queued<T>>,
    /// Their order, by pool in the network's order.
    queues: Box<[Fifo]>,
    commands: Commands,
    review: Review,
    timing: Timing,
    next_tick: u64,
    next_servers: u64,
    /// As the table of neighbours told last.
    link_changes: u64,
    /// Some pool's policy lets tasks wait.
    holds: bool,
}

impl<T> Node<T> {
    /// Nothing waits. Times given to it are ticks of `timing`'s clock.
    #[must_use]
    pub fn new(stages: Stages, commands: Commands, timing: Timing) -> Self {
        Self {
            tasks: Slab::with_room(stages.capacity().waiting),
            queues: vec![Fifo::EMPTY; stages.capacity().pools].into_boxed_slice(),
            commands,
            holds: stages.holds_tasks(),
            stages,
            resolver: ArpResolver::new(Timing::ASK_MS),
            review: Review::default(),
            timing,
            next_tick: 0,
            next_servers: 0,
            link_changes: 0,
        }
    }

    /// When there is something to do next without a packet.
    #[must_use]
    pub fn next_tick(&self) -> u64 {
        self.next_tick
    }

    /// Number of the membership that it works with.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.commands.epoch()
    }

    /// How many tasks may wait for workers, of all pools.
    #[must_use]
    pub fn queue_bound(&self) -> usize {
        self.tasks.room()
    }

    /// A burst is to be decided on: policies that let tasks wait measure by the time.
    #[inline]
    pub fn note_time(&mut self, now: u64) {
        if self.holds {
            self.stages.tick_holding(self.timing.to_ns(now));
        }
    }

    /// Keeps a packet until its next hop is known, and has that asked for at once. When too many wait, the packet that has
    /// waited longest is given up for it and returned with the reason: the caller counts it as dropped.
    pub fn hold(
        &mut self,
        packet: T,
        port: u8,
        worker: u16,
        slot: Slot,
        now: u64,
    ) -> Option<(T, DropReason)> {
        let next_hop = self.stages.neighbours().address(slot);
        let (packet, now_ms) = (Unaddressed { packet, worker, port }, self.timing.to_ms(now));
        let oldest = self.resolver.hold(packet, port, slot, next_hop, now_ms);
        self.stages.want_neighbour(usize::from(port));
        self.next_tick = now;
        let full = DropReason::NeighbourQueueFull;
        oldest.map(|oldest| (oldest.packet, self.unaddressed(oldest.port, full)))
    }

    /// Why a packet waited for its next hop in vain: that the port that leads there has no link, where that is so.
    fn unaddressed(&self, port: u8, usual: DropReason) -> DropReason {
        let is_up = self.stages.neighbours().is_link_up(usize::from(port));
        if is_up { usual } else { DropReason::PortDown }
    }

    /// Puts a task last in its pool's queue.
    ///
    /// # Errors
    /// The task, already counted as dropped, when there is no room.
    pub fn enqueue(&mut self, packet: T, pool: usize, from: usize) -> Result<(), T> {
        // The pools share the room: their bounds together may be more.
        let task = Queued { packet, port: from as u8 };
        self.tasks.push(&mut self.queues[pool], task).map_err(|task| {
            self.stages.leave_last(pool);
            self.stages.counters().drop(DropReason::QueueFull, 1);
            task.packet
        })
    }

    /// A neighbour may have answered.
    pub fn review_neighbours(&mut self) {
        self.review.neighbours = true;
    }

    /// Does what need not be done at every poll; due at [`Node::next_tick`].
    #[cold]
    pub fn tick(&mut self, now: u64) {
        self.next_tick = now.saturating_add(self.timing.tick());
        self.apply_commands();
        self.stages.tick(now, self.timing.to_ns(now));
        self.ask_for_servers(now);
        while let Some(NeighbourProbe { port, slot, address }) = self.stages.next_neighbour_probe()
        {
            self.resolver.ask(port, slot, address, true, self.timing.to_ms(now));
        }
        self.review = Review { neighbours: true, workers: true, pool: 0 };
    }

    /// Asks for servers whose MAC address is not known, now and then and whenever a link has changed.
    fn ask_for_servers(&mut self, now: u64) {
        let link_changes = self.stages.neighbours().link_changes();
        if now < self.next_servers && link_changes == self.link_changes {
            return;
        }
        (self.next_servers, self.link_changes) =
            (now.saturating_add(self.timing.servers()), link_changes);
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

    /// Its clock.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Whether every port that has workers alone has a link, and every server behind it is known by its MAC address.
    #[must_use]
    pub fn reaches_workers(&self) -> bool {
        let (network, neighbours) = (self.stages.network(), self.stages.neighbours());
        let mut ports = (0..).zip(network.ports());
        ports.all(|(at, port)| port.side != Side::Workers || neighbours.is_link_up(at))
            && network.servers().all(|server| neighbours.mac(server.slot).is_some())
            && !self.stages.awaits_registrations()
    }

    /// The next word to a leaf, a spine or a worker, with the MAC addresses of its next hop and of the port; where that is not known, it
    /// is asked for and the word is passed over: it is said again, or nobody waits for its answer for long.
    #[inline]
    pub fn next_word(&mut self, now: u64) -> Option<(Word, Mac, PortAddress)> {
        while let Some(word) = self.stages.next_word() {
            let (port, slot) = (word.port, word.slot);
            if let Some(mac) = self.stages.neighbours().mac(slot) {
                return Some((word, mac, *self.stages.network().port(usize::from(port))));
            }
            let next_hop = self.stages.neighbours().address(slot);
            self.resolver.ask(port, slot, next_hop, false, self.timing.to_ms(now));
        }
        None
    }

    /// The next question for a neighbour that is due.
    #[inline]
    pub fn next_question(&mut self, now: u64) -> Option<Ask> {
        if self.resolver.is_quiet() {
            return None;
        }
        self.resolver.due(self.timing.to_ms(now), self.stages.neighbours())
    }

    /// The next packet that waits no longer, in order.
    #[inline]
    pub fn next_released(&mut self, now: u64, keeper: &mut impl Keeper<T>) -> Option<Released<T>> {
        if self.stages.take_freed() {
            self.review = Review { workers: true, pool: 0, ..self.review };
        }
        if !self.review.neighbours && !self.review.workers {
            return None;
        }
        self.look_for_released(now, keeper)
    }

    #[cold]
    fn look_for_released(&mut self, now: u64, keeper: &mut impl Keeper<T>) -> Option<Released<T>> {
        if self.stages.has_peers() {
            self.note_time(now); // by which cores agree on whose task is first
        }
        if self.review.neighbours {
            if let Some(released) = self.next_addressed(now, keeper) {
                return Some(released);
            }
            self.review.neighbours = false;
        }
        let scheduled = self.next_scheduled(now, keeper);
        if scheduled.is_none() {
            self.review = Review::default();
        }
        scheduled
    }

    /// A packet whose next hop has become known, or is not to be had.
    fn next_addressed(&mut self, now: u64, keeper: &mut impl Keeper<T>) -> Option<Released<T>> {
        let now_ms = self.timing.to_ms(now);
        if let Some((waited, port, mac)) = self.resolver.resolved(self.stages.neighbours()) {
            let Unaddressed { mut packet, worker, .. } = waited;
            let own = self.stages.network().port(usize::from(port)).mac;
            let outcome = match keeper.frame(&mut packet) {
                Some(frame) => {
                    if frame.len() >= ether::LEN {
                        ether::emit_addresses(frame, mac, own);
                    }
                    Ok(Egress { port, worker })
                }
                None => Err(dropped(&self.stages, DropReason::Shutdown)),
            };
            return Some((packet, outcome));
        }
        if let Some(waited) = self.resolver.given_up(now_ms) {
            let reason = self.unaddressed(waited.port, DropReason::NeighbourUnresolved);
            return Some((waited.packet, Err(dropped(&self.stages, reason))));
        }
        while let Some(slot) = self.resolver.silent(now_ms, self.stages.neighbours()) {
            self.stages.lose_next_hop(slot);
        }
        None
    }

    /// The task that is first in a pool's queue, if some worker may have it.
    fn next_scheduled(&mut self, now: u64, keeper: &mut impl Keeper<T>) -> Option<Released<T>> {
        while self.review.pool < self.stages.network().pools() {
            let pool = self.review.pool;
            let first = self.queues[pool].first().and_then(|first| self.tasks.get_mut(first));
            let Some(first) = first else {
                self.review.pool += 1;
                continue;
            };
            let from = usize::from(first.port);
            let offered = keeper.offer(&mut self.stages, (pool, from), now, &mut first.packet);
            let Some(verdict) = offered else {
                self.review.pool += 1;
                continue;
            };
            let Queued { packet, .. } = self.tasks.pop(&mut self.queues[pool])?;
            match verdict {
                Verdict::Forward { port, worker } => {
                    return Some((packet, Ok(Egress { port, worker })));
                }
                Verdict::Drop(reason) => return Some((packet, Err(reason))),
                // It waits on, for its next hop.
                Verdict::Hold { port, worker, slot } => {
                    if let Some((oldest, reason)) = self.hold(packet, port, worker, slot, now) {
                        return Some((oldest, Err(dropped(&self.stages, reason))));
                    }
                }
                // A task that waited becomes nothing else; were it so, it would not be lost uncounted.
                _ => return Some((packet, Err(dropped(&self.stages, DropReason::QueueFull)))),
            }
        }
        None
    }

    /// Any packet that waits, counted as dropped: the node stops.
    pub fn abandon(&mut self) -> Option<T> {
        let packet = match self.resolver.abandon() {
            Some(waited) => waited.packet,
            None => {
                let mut queues = self.queues.iter_mut().enumerate();
                let (pool, task) =
                    queues.find_map(|(pool, queue)| Some((pool, self.tasks.pop(queue)?)))?;
                self.stages.leave(pool);
                task.packet
            }
        };
        self.stages.counters().drop(DropReason::Shutdown, 1);
        Some(packet)
    }

    /// Tells how many packets wait, here and `elsewhere` with the caller.
    pub fn note_held(&self, elsewhere: usize) {
        let (counters, queued) = (self.stages.counters(), self.stages.waiting());
        counters.set(Gauge::Queued, queued as u64);
        for pool in 0..self.stages.network().pools() {
            if let Some(dispatcher) = self.stages.dispatcher(pool) {
                dispatcher.view().note_queued(dispatcher.waiting());
            }
        }
        counters.set(Gauge::Held, (queued + self.resolver.held() + elsewhere) as u64);
    }

    /// Does what was asked for since.
    pub fn apply_commands(&mut self) {
        while let Some(mut update) = self.commands.next() {
            self.stages.update(&mut update);
            self.holds = self.stages.holds_tasks();
            self.next_servers = 0; // new ones are asked for at once
            self.commands.acknowledge(update.epoch, update);
        }
    }
}

fn dropped(stages: &Stages, reason: DropReason) -> DropReason {
    stages.counters().drop(reason, 1);
    reason
}
