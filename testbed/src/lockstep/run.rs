//! One lockstep run: its events and its outcome. It runs on the engine of [`crate::sim::rack`], with a real
//! scheduler in place of the leaf. This code is the conductor: it advances the emulated time and gives the
//! scheduler its turns. In a turn, the scheduler polls until it is quiet.

use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use wedjat::clock::Line;
use wedjat::io::{Pool, Port};
use wedjat::limits::BURST;
use wedjat_pktgen::results::Status;
use wedjat_pktgen::template::Task;

use super::workers::Packet;
use super::{Clients, LockstepError, Scheduler, Workers};
use crate::sim::engine::{Engine, NextEvent, SimTask};
use crate::sim::events::event;
use crate::sim::hop::{TICKS_PER_US, from_ns, to_ns};
use crate::sim::outcome::Outcome;
use crate::sim::rack::{Config, Route, reported_ns, ticks_of};

/// Maximum number of turns at one time, before the run fails because time does not advance.
const TURNS_MAX: u32 = 1000;
/// Time without an event after which the scheduler's remaining tasks count as lost. It is several times the
/// longest timeout after which a central queue counts a worker's tasks as lost.
const GIVE_UP_NS: u64 = 60_000_000_000;
/// Maximum number of tasks of a run: task numbers have 32 bits on the wire.
const TASKS_MAX: u64 = u32::MAX as u64 - 1;

/// Slots in the slab of a burst's tasks.
type Slots = ArrayVec<u32, BURST>;

/// State of a run.
struct Run<'a, P: Port, L, S: ?Sized> {
    config: &'a Config,
    clients: &'a mut Clients<P, L>,
    workers: &'a mut Workers<P>,
    scheduler: &'a mut S,
    /// Engine of the model. A route holds the packet of its task while the task is at the worker.
    engine: Engine<Route<Option<Packet<P::Buf>>>>,
    /// Slot in the slab of each task that has arrived and is neither answered nor lost, by task number.
    slots: Vec<Option<u32>>,
    ledger: PacketLedger,
}

/// Packet counts of the scheduler and of the conductor. Equal counts show that no packet is in flight between them.
#[derive(Default)]
struct PacketLedger {
    /// Packets delivered to the scheduler.
    delivered: u64,
    /// Packets that arrived from the scheduler.
    arrived: u64,
    /// The scheduler's own counts and the time of its next timer, as of its last turn.
    line: Line,
}

/// Sends the tasks of `config` from the clients through the scheduler to the workers and back. The scheduler
/// must be at time 0 and must not have polled.
///
/// # Errors
/// If the scheduler breaks a rule of the run, the arguments contradict each other, or `stop` is set.
pub fn run<P, L, S>(
    config: &Config,
    clients: &mut Clients<P, L>,
    workers: &mut Workers<P>,
    scheduler: &mut S,
    stop: &AtomicBool,
) -> Result<Outcome, LockstepError>
where
    P: Port,
    L: Pool<Buf = P::Buf>,
    S: Scheduler + ?Sized,
{
    if config.tasks > TASKS_MAX {
        let text = format!("--tasks {}: in lockstep at most {TASKS_MAX} are allowed", config.tasks);
        return Err(LockstepError::Arguments(text));
    }
    let mut run = Run {
        config,
        clients,
        workers,
        scheduler,
        // Recorded: with a digest of all tasks, until all replies have arrived.
        engine: config.engine(true).map_err(LockstepError::Arguments)?,
        slots: vec![None; config.tasks as usize],
        ledger: PacketLedger::default(),
    };
    run.resolve()?;
    run.run_events(stop)?;
    Ok(run.engine.finish(TICKS_PER_US))
}

impl<P, L, S> Run<'_, P, L, S>
where
    P: Port,
    L: Pool<Buf = P::Buf>,
    S: Scheduler + ?Sized,
{
    /// Resolves all MAC addresses, at time 0 before the first task. The scheduler requests the workers' addresses
    /// in its first turn; the clients request the scheduler's.
    fn resolve(&mut self) -> Result<(), LockstepError> {
        self.turn()?;
        self.clients.request_mac(0)?;
        self.ledger.delivered += 1;
        self.turn()?;
        match self.clients.is_resolved() {
            true => Ok(()),
            false => Err(LockstepError::Unresolved(self.clients.dst())),
        }
    }

    /// Runs all arrivals, timers and events in order, as the simulator does.
    fn run_events(&mut self, stop: &AtomicBool) -> Result<(), LockstepError> {
        let (mut last_event, mut stalled_since, mut stalled_turns) = (0, 0, 0);
        let mut timer_ns = self.ledger.line.timer_ns;
        while let Some(due) = self.engine.next(from_ns(timer_ns)) {
            match due {
                NextEvent::Arrival => {
                    self.arrive();
                    if stop.load(Ordering::Relaxed) {
                        return Err(LockstepError::Stopped);
                    }
                }
                NextEvent::Timer => {
                    let now = self.engine.now;
                    stalled_turns = if now > stalled_since { 0 } else { stalled_turns + 1 };
                    stalled_since = now;
                    if stalled_turns > TURNS_MAX {
                        return Err(LockstepError::Timer { timer_ns, now_ns: to_ns(now) });
                    }
                    // Only the scheduler's timer remains, and it has not released a task for long.
                    let Engine { remaining, events, .. } = &mut self.engine;
                    let is_last = *remaining == 0 && events.next_time() == u64::MAX;
                    if is_last && now > last_event + from_ns(GIVE_UP_NS) {
                        break;
                    }
                    self.turn()?;
                }
                NextEvent::Event(kind, slot) => {
                    last_event = self.engine.now;
                    match kind {
                        event::AT_LEAF => self.at_leaf(slot as u32)?,
                        event::AT_WORKER => self.engine.arrive_at_worker(slot as u32),
                        event::DONE => self.done(slot as u32),
                        _ => self.reply(slot as u32)?,
                    }
                }
            }
            timer_ns = self.ledger.line.timer_ns;
        }
        // The scheduler dropped the remaining tasks, or still holds them.
        self.engine.end_rest(&self.slots);
        Ok(())
    }

    /// Forwards a task, unless its packet is lost.
    fn send_task(&mut self, hops: u32, kind: u64, slot: u32) {
        let number = self.engine.flights[slot].number;
        if !self.engine.send_task(hops, kind, slot) {
            self.slots[number as usize] = None;
        }
    }

    /// Starts the next task at the spine.
    fn arrive(&mut self) {
        let slot = self.engine.arrive(&self.config.service, ticks_of, Route::default());
        self.slots[self.engine.flights[slot].number as usize] = Some(slot);
        self.send_task(self.config.hops.spine_leaf, event::AT_LEAF, slot);
    }

    /// Delivers a task to the leaf as a packet. The packet states the service time of a worker of speed 1.
    fn at_leaf(&mut self, slot: u32) -> Result<(), LockstepError> {
        let flight = &self.engine.flights[slot];
        let task = Task {
            seq: flight.number as u32,
            service_ns: reported_ns(flight.service, 1.0),
            class: flight.class,
        };
        self.clients.send(task, to_ns(self.engine.now))?;
        self.ledger.delivered += 1;
        self.turn()
    }

    /// Ends a task at its worker, and sends the reply.
    fn done(&mut self, slot: u32) {
        let SimTask { number, worker, .. } = self.engine.flights[slot];
        self.engine.done(slot, worker as usize);
        if !self.engine.reply(self.config.hops.worker_leaf, slot) {
            self.slots[number as usize] = None;
        }
    }

    /// Delivers a reply to the leaf.
    fn reply(&mut self, slot: u32) -> Result<(), LockstepError> {
        self.engine.end_await();
        // Frees the slot at the same point as the simulator, so that both reuse slots in the same order: slots
        // order simultaneous events.
        let flight = self.engine.flights.remove(slot);
        if let Some(SimTask {
            worker,
            left_at_worker,
            service,
            route: Route { packet: Some(mut packet), .. },
            ..
        }) = flight
        {
            let service_ns = reported_ns(service, self.config.speeds[worker as usize]);
            self.workers.write_reply(&mut packet, worker as u16, left_at_worker.into(), service_ns);
            self.workers.send(packet, to_ns(self.engine.now))?;
            self.ledger.delivered += 1;
        }
        self.turn()
    }

    /// Gives the scheduler turns and handles the packets that it sends, until it has no more packets to receive. Fails
    /// if the packet counts of both sides differ.
    fn turn(&mut self) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.engine.now);
        loop {
            self.ledger.line = self.scheduler.turn(now_ns)?;
            let delivered = self.ledger.delivered;
            while self.ledger.arrived < self.ledger.line.sent {
                if self.receive(now_ns)? == 0 {
                    break;
                }
            }
            let PacketLedger { arrived, line: Line { received, sent, .. }, .. } = self.ledger;
            if arrived != sent || received != delivered {
                return Err(LockstepError::PacketCounts {
                    now_ns,
                    delivered,
                    received,
                    sent,
                    arrived,
                });
            }
            // Another turn is needed if `receive` sent ARP replies.
            if self.ledger.delivered == delivered {
                return Ok(());
            }
        }
    }

    /// Receives the scheduler's packets and returns their number. Tasks travel on to their workers, answers and
    /// refusals end their tasks.
    fn receive(&mut self, now_ns: u64) -> Result<u64, LockstepError> {
        let Self { workers, clients, slots, .. } = self;
        let Engine { flights, answered, .. } = &mut self.engine;
        let stray = |packet, number| LockstepError::Stray { packet, number, now_ns };
        let (mut sent, mut refused) = (Slots::new(), Slots::new());
        // A task that is not in flight, or was sent before, is a stray packet.
        let from_workers = workers.receive(now_ns, |number, worker, packet| {
            let slot = slots.get(number as usize).copied().flatten();
            let slot = slot.filter(|slot| {
                flights.get(*slot).is_some_and(|flight| flight.route.packet.is_none())
            });
            let slot = slot.ok_or(stray("task", number))?;
            let flight = &mut flights[slot];
            (flight.worker, flight.route.packet) = (worker.into(), Some(packet));
            sent.push(slot);
            Ok(())
        })?;
        let from_clients = clients.receive(now_ns, |number, answer| {
            // A second answer to the task is a stray packet.
            let slot = slots.get_mut(number as usize).and_then(Option::take);
            let slot = slot.ok_or(stray("the answer to task", number))?;
            match answer.refused {
                true => refused.push(slot),
                false => *answered += 1,
            }
            Ok(())
        })?;
        let count = from_workers.0 + from_clients.0;
        self.ledger.arrived += count;
        self.ledger.delivered += from_workers.1 + from_clients.1;
        for slot in sent {
            self.send_task(self.config.hops.leaf_worker, event::AT_WORKER, slot);
        }
        for slot in refused {
            self.engine.lose(slot, Status::Refused);
        }
        Ok(count)
    }
}
