//! One lockstep run: its events and its outcome. The loop follows [`crate::sim::rack`] step by step, with a
//! real scheduler in place of the leaf. This code is the conductor: it advances the emulated time and gives the
//! scheduler its turns. In a turn, the scheduler polls until it is quiet.

use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use rand::Rng as _;
use wedjat::clock::Line;
use wedjat::io::{Pool, Port};
use wedjat::limits::BURST;
use wedjat::policy::fifo::{Fifo, Slab};
use wedjat_pktgen::arrival::Schedule;
use wedjat_pktgen::results::Status;
use wedjat_pktgen::template::Task;

use super::workers::Packet;
use super::{Clients, LockstepError, Scheduler, Workers};
use crate::sim::digest::{Digest, Record};
use crate::sim::events::{Events, event};
use crate::sim::hop::{TICK_PS, TICKS_PER_US, from_ns, to_ns};
use crate::sim::outcome::Outcome;
use crate::sim::rack::{Config, Streams, loss_below, reported_ns, service_at};
use crate::sim::stats::{Recorder, TaskEnd};

/// Maximum number of turns at one time, before the run fails because time does not advance.
const TURNS_MAX: u32 = 1000;
/// Time without an event after which the scheduler's remaining tasks count as lost. It is several times the
/// longest timeout after which a central queue counts a worker's tasks as lost.
const GIVE_UP_NS: u64 = 60_000_000_000;
/// Maximum number of tasks of a run: task numbers have 32 bits on the wire.
const TASKS_MAX: u64 = u32::MAX as u64 - 1;

/// Marker for no slot in the slab.
const NONE: u32 = u32::MAX;

/// A task in flight.
struct Flight<B> {
    /// Time of its arrival at the spine, in ticks.
    arrived: u64,
    /// Start of its service.
    started: u64,
    /// Service time at speed 1, in ticks.
    service: u64,
    number: u64,
    class: u16,
    worker: u16,
    /// The task's packet while it is at the worker, then the reply.
    packet: Option<Packet<B>>,
}

impl<B> Flight<B> {
    /// Returns the task's end for the record.
    fn end(&self, worker: Option<u16>, response: Result<u64, Status>) -> TaskEnd {
        let (number, class, arrived) = (self.number, self.class, self.arrived);
        let (worker, service) = (worker.map(usize::from), Some(self.service));
        TaskEnd { number, class, worker, arrived, service, response }
    }
}

/// Slots in the slab of a burst's tasks.
type Slots = ArrayVec<u32, BURST>;

/// State of a run.
struct Run<'a, P: Port, L, S: ?Sized> {
    config: &'a Config,
    clients: &'a mut Clients<P, L>,
    workers: &'a mut Workers<P>,
    scheduler: &'a mut S,
    /// Current time in ticks.
    now: u64,
    events: Events,
    /// Tasks in flight. Events and queues refer to them by slot.
    flights: Slab<Flight<P::Buf>>,
    /// Slot in the slab of each task that has arrived and is not yet answered, by task number.
    slots: Vec<u32>,
    /// Queue of each worker.
    queues: Vec<Fifo>,
    schedule: Schedule,
    streams: Streams,
    /// A packet is lost if a random number is below this.
    loss_below: u64,
    recorder: Recorder,
    /// Tasks that no worker has finished.
    in_system: u64,
    /// Replies in flight.
    replies: u64,
    /// Tasks whose answers reached the clients.
    answered: u64,
    lost: u64,
    digest: Digest,
    ledger: PacketLedger,
}

/// Packet counts of the scheduler and of the conductor.
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
    let (schedule, _) = config.schedules().map_err(LockstepError::Arguments)?;
    let mut run = Run {
        config,
        clients,
        workers,
        scheduler,
        now: 0,
        events: Events::default(),
        flights: Slab::default(),
        slots: vec![NONE; config.tasks as usize],
        queues: vec![Fifo::EMPTY; config.speeds.len()],
        schedule,
        streams: Streams::new(config.seed),
        loss_below: loss_below(config.loss),
        recorder: Recorder::new(config.tasks, config.warmup, &config.observer),
        in_system: 0,
        replies: 0,
        answered: 0,
        lost: 0,
        digest: Digest::default(),
        ledger: PacketLedger::default(),
    };
    run.resolve()?;
    run.run_events(stop)?;
    Ok(run.finish())
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

    /// Runs all arrivals, timers and events in order. At equal times, an arrival comes before events, and events
    /// before the timer, as in the simulator.
    fn run_events(&mut self, stop: &AtomicBool) -> Result<(), LockstepError> {
        let mut remaining = self.config.tasks;
        let mut arrival = self.schedule.advance(&mut self.streams.arrivals);
        let (mut last_event, mut stalled_turns) = (0, 0);
        while remaining > 0 || self.in_system > 0 || self.replies > 0 {
            let timer_ns = self.ledger.line.timer_ns;
            let (timer, next) = (from_ns(timer_ns), self.events.next_time());
            if remaining > 0 && arrival <= next.min(timer) {
                self.now = arrival;
                self.arrive();
                remaining -= 1;
                arrival = self.schedule.advance(&mut self.streams.arrivals);
                if stop.load(Ordering::Relaxed) {
                    return Err(LockstepError::Stopped);
                }
                continue;
            }
            if timer < next {
                stalled_turns = if timer > self.now { 0 } else { stalled_turns + 1 };
                if stalled_turns > TURNS_MAX {
                    return Err(LockstepError::Timer { timer_ns, now_ns: to_ns(self.now) });
                }
                // Only the scheduler's timer remains, and it has not released a task for long.
                if remaining == 0 && next == u64::MAX && timer > last_event + from_ns(GIVE_UP_NS) {
                    break;
                }
                self.now = timer.max(self.now);
                self.turn()?;
                continue;
            }
            let Some((time, event)) = self.events.pop() else { break };
            (self.now, last_event) = (time, time);
            let (kind, slot) = event::unpack(event);
            match kind {
                event::AT_LEAF => self.at_leaf(slot as u32)?,
                event::AT_WORKER => self.at_worker(slot as u32),
                event::DONE => self.done(slot as u32),
                _ => self.reply(slot as u32)?,
            }
        }
        // The scheduler dropped the remaining tasks, or still holds them.
        let Self { slots, flights, recorder, .. } = self;
        let rest = (0..).zip(&*slots).filter_map(|(number, slot)| {
            let flight = flights.get(*slot).filter(|flight| flight.number == number)?;
            Some(flight.end(None, Err(Status::Lost)))
        });
        recorder.end_rest(TICK_PS, rest);
        self.lost += std::mem::take(&mut self.in_system);
        Ok(())
    }

    /// Draws whether a packet sent now is lost.
    fn loses(&mut self) -> bool {
        self.loss_below > 0 && self.streams.loss.next_u64() < self.loss_below
    }

    /// Schedules the arrival of a packet after this many hops. A leaf also needs time to process a task before
    /// it sends the task to a worker.
    fn send(&mut self, hops: u32, kind: u64, slot: u32) {
        let time = self.now + self.config.hop.sample(hops, &mut self.streams.hops);
        let processing = if kind == event::AT_WORKER { self.config.node_delay } else { 0 };
        self.events.push(time + processing, event::pack(kind, u64::from(slot)));
    }

    /// Forwards a task, unless its packet is lost.
    fn send_task(&mut self, hops: u32, kind: u64, slot: u32) {
        if self.loses() {
            self.lost += 1;
            self.in_system -= 1;
            self.end(slot, None, Err(Status::Lost));
            self.forget(slot);
        } else {
            self.send(hops, kind, slot);
        }
    }

    /// Records the end of a task.
    fn end(&mut self, slot: u32, worker: Option<u16>, response: Result<u64, Status>) {
        let Self { flights, recorder, .. } = self;
        recorder.end(TICK_PS, || flights[slot].end(worker, response));
    }

    /// Removes a finished or lost task.
    fn forget(&mut self, slot: u32) {
        let flight = &mut self.flights[slot];
        flight.packet = None;
        self.slots[flight.number as usize] = NONE;
        self.flights.remove(slot);
    }

    /// Starts the next task at the spine.
    fn arrive(&mut self) {
        let (service_ns, class) = self.config.service.sample_ns(&mut self.streams.service);
        let number = self.recorder.arrive(self.in_system);
        self.in_system += 1;
        let slot = self.flights.add(Flight {
            arrived: self.now,
            started: 0,
            service: (service_ns * (TICKS_PER_US / 1e3)) as u64,
            number,
            class,
            worker: 0,
            packet: None,
        });
        self.slots[number as usize] = slot;
        self.send_task(self.config.hops.spine_leaf, event::AT_LEAF, slot);
    }

    /// Delivers a task to the leaf as a packet. The packet states the service time of a worker of speed 1.
    fn at_leaf(&mut self, slot: u32) -> Result<(), LockstepError> {
        let flight = &self.flights[slot];
        let task = Task {
            seq: flight.number as u32,
            service_ns: reported_ns(flight.service, 1.0),
            class: flight.class,
        };
        self.clients.send(task, to_ns(self.now))?;
        self.ledger.delivered += 1;
        self.turn()
    }

    /// Queues a task at its worker.
    fn at_worker(&mut self, slot: u32) {
        let queue = &mut self.queues[usize::from(self.flights[slot].worker)];
        queue.push(slot, &mut self.flights);
        if queue.len() == 1 {
            self.start(slot);
        }
    }

    /// Starts a task at its worker.
    fn start(&mut self, slot: u32) {
        let flight = &mut self.flights[slot];
        flight.started = self.now;
        let ticks = service_at(flight.service, self.config.speeds[usize::from(flight.worker)]);
        self.events.push(self.now + ticks, event::pack(event::DONE, u64::from(slot)));
    }

    /// Ends a task at its worker, starts the worker's next one, and sends the reply.
    fn done(&mut self, slot: u32) {
        let worker = self.flights[slot].worker;
        let queue = &mut self.queues[usize::from(worker)];
        queue.pop(&self.flights);
        let (next, remaining) = (queue.first(), queue.len());
        if let Some(next) = next {
            self.start(next);
        }
        let flight = &mut self.flights[slot];
        let (number, ticks) = (flight.number, self.now - flight.arrived);
        let service_ns = reported_ns(flight.service, self.config.speeds[usize::from(worker)]);
        if let Some(packet) = &mut flight.packet {
            self.workers.write_reply(packet, worker, remaining, service_ns);
        }
        self.recorder.done(number, ticks);
        self.end(slot, Some(worker), Ok(ticks));
        self.digest.add([number, u64::from(worker), self.flights[slot].started, ticks]);
        self.in_system -= 1;
        if self.loses() {
            self.forget(slot);
        } else {
            self.send(self.config.hops.worker_leaf, event::REPLY, slot);
            self.replies += 1;
        }
    }

    /// Delivers a reply to the leaf.
    fn reply(&mut self, slot: u32) -> Result<(), LockstepError> {
        self.replies -= 1;
        if let Some(packet) = self.flights[slot].packet.take() {
            self.workers.send(packet, to_ns(self.now))?;
            self.ledger.delivered += 1;
        }
        // Frees the slot at the same point as the simulator, so that both reuse slots in the same order: slots
        // order simultaneous events.
        self.flights.remove(slot);
        self.turn()
    }

    /// Gives the scheduler turns and handles the packets that it sends, until it has no more packets to receive.
    fn turn(&mut self) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.now);
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
        let Self { workers, clients, flights, slots, answered, .. } = self;
        let stray = |packet, number| LockstepError::Stray { packet, number, now_ns };
        let (mut sent, mut refused) = (Slots::new(), Slots::new());
        // A task that is not in flight, or was sent before, is a stray packet.
        let from_workers = workers.receive(now_ns, |number, worker, packet| {
            let slot = slots.get(number as usize).copied().filter(|slot| *slot != NONE);
            let slot = slot
                .filter(|slot| flights.get(*slot).is_some_and(|flight| flight.packet.is_none()));
            let slot = slot.ok_or(stray("task", number))?;
            let flight = &mut flights[slot];
            (flight.worker, flight.packet) = (worker, Some(packet));
            sent.push(slot);
            Ok(())
        })?;
        let from_clients = clients.receive(now_ns, |number, answer| {
            let slot = slots.get_mut(number as usize).filter(|slot| **slot != NONE);
            let slot = slot.ok_or(stray("the answer to task", number))?;
            // A second answer to the task is a stray packet.
            let slot = std::mem::replace(slot, NONE);
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
            self.lost += 1;
            self.in_system -= 1;
            self.end(slot, None, Err(Status::Refused));
            self.flights.remove(slot);
        }
        Ok(count)
    }

    /// Returns the outcome.
    fn finish(self) -> Outcome {
        Outcome {
            lost: self.lost,
            record: Some(Record { digest: self.digest, answered: self.answered }),
            ..Outcome::of(self.recorder, self.config.speeds.len(), TICKS_PER_US)
        }
    }
}
