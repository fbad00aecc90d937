//! The core of a node: what one dispatcher core does around its stages, whoever has its packets.
//!
//! Packets that can't go on yet wait here, for a worker or for their next hop's MAC address; time passes here for policies,
//! workers and neighbours; and here neighbours are asked for. A leaf keeps its packets itself; an embedded scheduler's caller
//! keeps them, at places that the node knows. So the node is made for any name of a packet, `T`, and reads the bytes of one
//! through [`Keeper`].

pub mod arp;
pub(crate) mod outbox;
mod timing;

pub use timing::Timing;

use arp::{ArpResolver, Ask};

use crate::policy::{Dispatcher, PolicySpec};
use crate::reason::DropReason;
use crate::stage::{CentralQueue, Probe, Server, Stages, Verdict};
use crate::state::neighbour::Slot;
use crate::state::{Gauge, Member};
use crate::wire::ether;

/// What a control thread asks of a core; done between bursts.
#[derive(Clone, Debug)]
pub enum Command {
    /// Let a member of a pool (both by index) be chosen, or no longer.
    SetActive {
        /// Index of the pool.
        pool: usize,
        /// The member.
        member: Member,
        /// Whether it may be chosen.
        active: bool,
    },
    /// Replace a pool's policy.
    SetPolicy {
        /// Index of the pool.
        pool: usize,
        /// The new policy.
        policy: PolicySpec,
    },
}

/// Whoever keeps the packets that wait.
pub trait Keeper<T> {
    /// The bytes of a packet; none when it is kept no more.
    fn frame<'a>(&'a mut self, packet: &'a mut T) -> Option<&'a mut [u8]>;
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
    /// One for each pool, in the network's order.
    central: Vec<CentralQueue<Queued<T>>>,
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
    pub fn new(stages: Stages, timing: Timing) -> Self {
        Self {
            central: (0..stages.network().pools()).map(|pool| queue_for(&stages, pool)).collect(),
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

    /// How many tasks may wait for workers, of all pools.
    #[must_use]
    pub fn queue_bound(&self) -> usize {
        self.central.iter().map(CentralQueue::bound).sum()
    }

    /// A burst is to be decided on: policies that let tasks wait measure by the time.
    #[inline]
    pub fn note_time(&mut self, now: u64) {
        if self.holds {
            self.stages.tick_holding(self.timing.to_ns(now));
        }
    }

    /// Keeps a packet until its next hop is known, and has that asked for at once. When too many wait, the packet that has
    /// waited longest is given up for it and returned: the caller counts it as dropped.
    pub fn hold(&mut self, packet: T, port: u8, worker: u16, slot: Slot, now: u64) -> Option<T> {
        let next_hop = self.stages.neighbours().address(slot);
        let (packet, now_ms) = (Unaddressed { packet, worker }, self.timing.to_ms(now));
        let oldest = self.resolver.hold(packet, port, slot, next_hop, now_ms);
        self.stages.want_neighbour(usize::from(port));
        self.next_tick = now;
        oldest.map(|oldest| oldest.packet)
    }

    /// Puts a task last in its pool's queue.
    ///
    /// # Errors
    /// The task, already counted as dropped, when there is no room.
    pub fn enqueue(&mut self, packet: T, pool: usize, from: usize) -> Result<(), T> {
        // There is room: the stages count as this queue does.
        self.central[pool].push(Queued { packet, port: from as u8 }).map_err(|task| {
            self.stages.leave(pool);
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
        self.stages.tick(now, self.timing.to_ns(now));
        self.ask_for_servers(now);
        while let Some(Probe { port, slot, address }) = self.stages.next_probe() {
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
        for &Server { port, slot, next_hop, .. } in self.stages.network().servers() {
            if self.stages.neighbours().mac(slot).is_none() {
                self.resolver.ask(port, slot, next_hop, false, self.timing.to_ms(now));
            }
        }
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
            let Unaddressed { mut packet, worker } = waited;
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
            return Some((
                waited.packet,
                Err(dropped(&self.stages, DropReason::NeighbourUnresolved)),
            ));
        }
        while let Some(slot) = self.resolver.silent(now_ms, self.stages.neighbours()) {
            self.stages.lose(slot);
        }
        None
    }

    /// The task that is first in a pool's queue, if some worker may have it.
    fn next_scheduled(&mut self, now: u64, keeper: &mut impl Keeper<T>) -> Option<Released<T>> {
        while let Some(queue) = self.central.get_mut(self.review.pool) {
            let pool = self.review.pool;
            let Some(first) = queue.first_mut() else {
                self.review.pool += 1;
                continue;
            };
            let from = usize::from(first.port);
            let verdict = match keeper.frame(&mut first.packet) {
                Some(frame) => match self.stages.offer(pool, from, now, frame) {
                    Some(verdict) => verdict,
                    None => {
                        self.review.pool += 1;
                        continue;
                    }
                },
                None => {
                    self.stages.leave(pool);
                    Verdict::Drop(dropped(&self.stages, DropReason::Shutdown))
                }
            };
            let Queued { packet, .. } = queue.pop()?;
            match verdict {
                Verdict::Forward { port, worker } => {
                    return Some((packet, Ok(Egress { port, worker })));
                }
                Verdict::Drop(reason) => return Some((packet, Err(reason))),
                // It waits on, for its next hop.
                Verdict::Hold { port, worker, slot } => {
                    if let Some(oldest) = self.hold(packet, port, worker, slot, now) {
                        return Some((
                            oldest,
                            Err(dropped(&self.stages, DropReason::NeighbourQueueFull)),
                        ));
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
                let mut queues = self.central.iter_mut().enumerate();
                let (pool, task) = queues.find_map(|(pool, queue)| Some((pool, queue.pop()?)))?;
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
        for (pool, queue) in self.central.iter().enumerate() {
            if let Some(dispatcher) = self.stages.dispatcher(pool) {
                dispatcher.view().note_queued(queue.len());
            }
        }
        counters.set(Gauge::Held, (queued + self.resolver.held() + elsewhere) as u64);
    }

    /// Does what was asked for.
    pub fn apply(&mut self, command: Command) {
        match command {
            Command::SetActive { pool, member, active } => {
                self.stages.set_active(pool, member, active);
            }
            Command::SetPolicy { pool, policy } => {
                if let Some(dispatcher) = self.stages.dispatcher_mut(pool) {
                    dispatcher.change(&policy);
                    self.holds = self.stages.holds_tasks();
                    if self.central[pool].is_empty() {
                        self.central[pool] = queue_for(&self.stages, pool);
                    }
                }
            }
        }
    }
}

fn dropped(stages: &Stages, reason: DropReason) -> DropReason {
    stages.counters().drop(reason, 1);
    reason
}

/// The queue that a pool needs: none while its policy lets no task wait.
fn queue_for<T>(stages: &Stages, pool: usize) -> CentralQueue<Queued<T>> {
    let holds = stages.dispatcher(pool).is_some_and(Dispatcher::holds);
    CentralQueue::new(if holds { stages.backlog(pool).bound() } else { 0 })
}
