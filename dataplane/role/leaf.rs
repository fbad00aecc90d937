//! The leaf: one dispatcher core between ports. Receives bursts, has the stages decide, sends, and accounts
//! for every packet.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::outbox::Outbox;
use super::resolver::{ArpResolver, Ask};
use crate::clock::Progress;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::BURST;
use crate::policy::{Dispatcher, PolicySpec};
use crate::reason::DropReason;
use crate::stage::{CentralQueue, Probe, Server, Stages, Verdict};
use crate::state::{Counter, Member};
use crate::wire::arp;
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

/// Times in ticks of the clock that the caller of [`Leaf::poll`] reads.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Ticks a second.
    pub ticks_hz: u64,
}

impl Timing {
    /// Between two looks at commands, neighbours and policies' clocks.
    #[must_use]
    pub const fn tick(self) -> u64 {
        let tick = self.ticks_hz / 10_000;
        if tick > 0 { tick } else { 1 }
    }

    /// Milliseconds between two ARP questions for one neighbour.
    pub(crate) const ASK_MS: u64 = 200;

    /// Between two looks for servers that have not answered and are not being asked for.
    pub(crate) fn servers(self) -> u64 {
        (self.ticks_hz / 5).max(1)
    }

    /// Milliseconds, for what need not be exact.
    pub(crate) fn to_ms(self, ticks: u64) -> u64 {
        self.to_ns(ticks) / 1_000_000
    }

    /// A product, not a quotient: policies that measure are told the time at every poll. Exact to two ticks for years.
    #[inline]
    pub(crate) fn to_ns(self, ticks: u64) -> u64 {
        (ticks as f64 * (1e9 / self.ticks_hz.max(1) as f64)) as u64
    }
}

/// A task that waits, and the index of the port it came from.
#[derive(Debug)]
struct Waiting<B> {
    packet: B,
    port: u8,
}

/// One dispatcher core.
#[derive(Debug)]
pub struct Leaf<P: Port, A> {
    stages: Stages,
    out: Outbox<P>,
    /// One for each pool, in the network's order.
    central: Vec<CentralQueue<Waiting<P::Buf>>>,
    pool: A,
    resolver: ArpResolver<P::Buf>,
    commands: Arc<ArrayQueue<Command>>,
    timing: Timing,
    next_tick: u64,
    next_servers: u64,
    /// As the table of neighbours told last.
    link_changes: u64,
    last_poll: u64,
    was_busy: bool,
    /// Some pool's policy lets tasks wait.
    holds: bool,
}

impl<P, A> Leaf<P, A>
where
    P: Port,
    A: Pool<Buf = P::Buf>,
{
    /// A leaf over these ports, in the order of the network's. `pool` is where its own packets come from.
    ///
    /// # Panics
    /// When the ports are not as many as the network's.
    #[must_use]
    pub fn new(
        stages: Stages,
        ports: Vec<P>,
        pool: A,
        commands: Arc<ArrayQueue<Command>>,
        timing: Timing,
    ) -> Self {
        assert_eq!(ports.len(), stages.network().ports().len());
        let holds = stages.holds_tasks();
        Self {
            out: Outbox::new(ports, stages.counters().clone()),
            central: (0..stages.network().pools()).map(|pool| queue_for(&stages, pool)).collect(),
            stages,
            pool,
            resolver: ArpResolver::new(Timing::ASK_MS),
            commands,
            timing,
            next_tick: 0,
            next_servers: 0,
            link_changes: 0,
            last_poll: 0,
            was_busy: false,
            holds,
        }
    }

    /// One pass over all ports at `now` ticks; returns how many packets came.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        self.account_time(now);
        let mut received = 0;
        for port in 0..self.out.ports.len() {
            let mut burst = Burst::new();
            received += self.out.ports[port].rx_burst(&mut burst);
            self.dispatch(port, now, burst);
        }
        if now >= self.next_tick {
            self.tick(now);
        } else if self.stages.take_freed() {
            self.release(now);
        }
        self.flush();
        self.was_busy = received > 0;
        received
    }

    /// A poll lasts until the next one starts: one reading of the clock a poll is enough.
    #[inline]
    fn account_time(&mut self, now: u64) {
        let counters = self.stages.counters();
        if self.was_busy {
            counters.add(Counter::BusyTicks, now.saturating_sub(self.last_poll));
            counters.add(Counter::BusyPolls, 1);
        } else {
            counters.add(Counter::EmptyPolls, 1);
        }
        self.last_poll = now;
    }

    /// Has a burst decided on.
    #[inline]
    fn dispatch(&mut self, port: usize, now: u64, mut burst: Burst<P::Buf>) {
        if burst.is_empty() {
            return;
        }
        let count = burst.len();
        let mut verdicts = [Verdict::Consumed; BURST];
        if self.holds {
            self.stages.tick_holding(self.timing.to_ns(now));
        }
        self.stages.process(port, now, &mut burst, &mut verdicts[..]);
        self.stages.counters().add(Counter::RxPackets, count as u64);
        // Most bursts go out as they are, by one port.
        let whole = match verdicts[0] {
            Verdict::Forward { port, .. }
                if verdicts[..count].iter().all(|one| one.leaves_by(port)) =>
            {
                self.out.forward_whole(burst, usize::from(port))
            }
            _ => Err(burst),
        };
        if let Err(burst) = whole {
            self.distribute(port, now, burst, &verdicts);
        }
    }

    /// Puts each packet where its verdict says.
    fn distribute(
        &mut self,
        port: usize,
        now: u64,
        burst: Burst<P::Buf>,
        verdicts: &[Verdict; BURST],
    ) {
        for (packet, verdict) in burst.into_iter().zip(verdicts) {
            self.act(packet, port, now, *verdict);
        }
        if self.stages.waiting() > 0 {
            self.note_held();
        }
    }

    /// Does with a packet what was decided.
    fn act(&mut self, packet: P::Buf, from: usize, now: u64, verdict: Verdict) {
        match verdict {
            Verdict::Forward { port, .. } => self.out.forward(packet, usize::from(port)),
            Verdict::Hold { port, slot, .. } => {
                let next_hop = self.stages.neighbours().address(slot);
                let now_ms = self.timing.to_ms(now);
                if self.resolver.hold(packet, port, slot, next_hop, now_ms).is_some() {
                    self.stages.counters().drop(DropReason::NeighbourQueueFull, 1);
                }
                self.stages.want_neighbour(usize::from(port));
                self.next_tick = now; // ask at once
            }
            Verdict::Queue { pool } => self.enqueue(packet, usize::from(pool), from),
            Verdict::Answer => {
                self.stages.counters().add(Counter::Consumed, 1);
                self.out.originate(packet, from);
            }
            Verdict::Consumed => self.stages.counters().add(Counter::Consumed, 1),
            Verdict::Drop(_) => {}
        }
    }

    fn enqueue(&mut self, packet: P::Buf, pool: usize, from: usize) {
        // There is room: the stages count as this queue does.
        if self.central[pool].push(Waiting { packet, port: from as u8 }).is_err() {
            self.stages.leave(pool);
            self.stages.counters().drop(DropReason::QueueFull, 1);
        }
    }

    /// Offers the tasks that wait again, each pool's in order until one must wait on. No more than a burst at
    /// once, so that no device is given more than it is given otherwise.
    #[cold]
    fn release(&mut self, now: u64) {
        let mut left = BURST;
        for pool in 0..self.central.len() {
            while let Some(first) = self.central[pool].first_mut().filter(|_| left > 0) {
                let from = usize::from(first.port);
                let Some(verdict) = self.stages.offer(pool, from, now, first.packet.bytes_mut())
                else {
                    break;
                };
                if let Some(task) = self.central[pool].pop() {
                    self.act(task.packet, from, now, verdict);
                }
                left -= 1;
            }
        }
        if left == 0 {
            self.stages.note_freed();
        }
        self.note_held();
    }

    /// Tells how many packets wait here.
    fn note_held(&self) {
        let (counters, queued) = (self.stages.counters(), self.stages.waiting());
        counters.set(Counter::Queued, queued as u64);
        for (pool, queue) in self.central.iter().enumerate() {
            if let Some(dispatcher) = self.stages.dispatcher(pool) {
                dispatcher.view().note_queued(queue.len());
            }
        }
        counters.set(Counter::Held, (queued + self.resolver.held()) as u64);
    }

    #[inline]
    fn flush(&mut self) {
        self.out.flush();
        self.stages.collect_picks();
    }

    /// What need not happen at every poll.
    #[cold]
    fn tick(&mut self, now: u64) {
        self.next_tick = now.saturating_add(self.timing.tick());
        while let Some(command) = self.commands.pop() {
            self.obey(command);
        }
        self.stages.tick(now, self.timing.to_ns(now));
        let link_changes = self.stages.neighbours().link_changes();
        if now >= self.next_servers || link_changes != self.link_changes {
            (self.next_servers, self.link_changes) =
                (now.saturating_add(self.timing.servers()), link_changes);
            self.ask_for_servers(now);
        }
        while let Some(Probe { port, slot, address }) = self.stages.next_probe() {
            self.resolver.ask(port, slot, address, true, self.timing.to_ms(now));
        }
        if !self.resolver.is_quiet() {
            self.poll_arp(now);
        }
        if self.stages.waiting() > 0 {
            self.release(now);
        }
        self.note_held();
    }

    fn obey(&mut self, command: Command) {
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

    fn ask_for_servers(&mut self, now: u64) {
        for index in 0..self.stages.network().servers().len() {
            let server = self.stages.network().servers()[index];
            if self.stages.neighbours().mac(server.slot).is_none() {
                let Server { port, slot, next_hop, .. } = server;
                self.resolver.ask(port, slot, next_hop, false, self.timing.to_ms(now));
            }
        }
    }

    /// Asks for neighbours, sends on what waited for those that answered, and gives up on the others.
    fn poll_arp(&mut self, now: u64) {
        let now_ms = self.timing.to_ms(now);
        while let Some(ask) = self.resolver.due(now_ms, self.stages.neighbours()) {
            self.ask(ask);
        }
        while let Some((mut packet, port, mac)) = self.resolver.resolved(self.stages.neighbours()) {
            let port = usize::from(port);
            let own = self.stages.network().port(port).mac;
            ether::emit_addresses(packet.bytes_mut(), mac, own);
            self.out.forward(packet, port);
        }
        while self.resolver.given_up(now_ms).is_some() {
            self.stages.counters().drop(DropReason::NeighbourUnresolved, 1);
        }
        while let Some(slot) = self.resolver.silent(now_ms, self.stages.neighbours()) {
            self.stages.lose(slot);
        }
    }

    fn ask(&mut self, Ask { port, address, to }: Ask) {
        let port = usize::from(port);
        let own = *self.stages.network().port(port);
        self.out.make(&mut self.pool, port, arp::FRAME_LEN, |frame| {
            arp::Packet::request(own.mac, own.ip, address).emit(frame, to);
        });
    }

    /// The leaf stops: what it still holds is dropped and counted. Gives the ports back.
    pub fn close(mut self) -> Vec<P> {
        self.abandon_held();
        self.out.ports.into_iter().collect()
    }

    fn abandon_held(&mut self) {
        while self.resolver.abandon().is_some() {
            self.stages.counters().drop(DropReason::Shutdown, 1);
        }
        for pool in 0..self.central.len() {
            while self.central[pool].pop().is_some() {
                self.stages.leave(pool);
                self.stages.counters().drop(DropReason::Shutdown, 1);
            }
        }
        self.note_held();
        self.flush();
    }

    /// What it has done so far, and when it has something to do next without a packet.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.out.progress(self.next_tick)
    }

    /// What the leaf decides with.
    #[must_use]
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// What the leaf decides with, to be changed between polls.
    pub fn stages_mut(&mut self) -> &mut Stages {
        &mut self.stages
    }
}

/// The queue that a pool needs: none while its policy lets no task wait.
fn queue_for<B>(stages: &Stages, pool: usize) -> CentralQueue<Waiting<B>> {
    let holds = stages.dispatcher(pool).is_some_and(Dispatcher::holds);
    CentralQueue::new(if holds { stages.backlog(pool).bound() } else { 0 })
}

#[cfg(test)]
mod tests;
