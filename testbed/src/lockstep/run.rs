//! One lockstep run: its events and its outcome.

use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use rand::Rng as _;
use wedjat::clock::Line;
use wedjat::io::{Pool, Port};
use wedjat::limits::BURST;
use wedjat::policy::fifo::{Fifo, Slab};
use wedjat_pktgen::arrival::Schedule;
use wedjat_pktgen::template::Task;

use super::workers::Packet;
use super::{Clients, LockstepError, Scheduler, Workers};
use crate::sim::digest::{Digest, Record};
use crate::sim::events::{Events, event};
use crate::sim::hop::{TICKS_PER_US, from_ns, to_ns};
use crate::sim::outcome::Outcome;
use crate::sim::rack::{Config, Streams, loss_below, reported_ns, service_at};
use crate::sim::stats::Recorder;

/// Maximum number of turns at one time, before the run fails because time does not advance.
const TURNS_MAX: u32 = 1000;
/// Time without an event after which the scheduler's remaining tasks count as lost. It is several times the
/// longest silence after which a central queue gives up a worker's tasks.
const GIVE_UP_NS: u64 = 60_000_000_000;
/// Maximum number of tasks of a run: task numbers have 32 bits on the wire.
const TASKS_MAX: u64 = u32::MAX as u64 - 1;

/// Marker for no place in the slab.
const NONE: u32 = u32::MAX;

/// A task in flight.
struct Flight<B> {
    arrived: u64,
    started: u64,
    /// Service time at speed 1, in ticks.
    service: u64,
    number: u64,
    class: u16,
    worker: u16,
    packet: Option<Packet<B>>,
}

/// Places in the slab of a burst's packets.
type Places = ArrayVec<u32, BURST>;

/// State of a run.
struct Run<'a, P: Port, L, S: ?Sized> {
    config: &'a Config,
    clients: &'a mut Clients<P, L>,
    workers: &'a mut Workers<P>,
    scheduler: &'a mut S,
    now: u64,
    events: Events,
    flights: Slab<Flight<P::Buf>>,
    /// Place in the slab of each task that has arrived and is not yet answered.
    places: Vec<u32>,
    queues: Vec<Fifo>,
    schedule: Schedule,
    streams: Streams,
    loss_below: u64,
    recorder: Recorder,
    in_system: u64,
    /// Replies in flight.
    replies: u64,
    answered: u64,
    lost: u64,
    digest: Digest,
    ledger: PacketLedger,
}

/// Packet counts of the scheduler and of the conductor.
#[derive(Default)]
struct PacketLedger {
    /// Packets sent to the scheduler.
    given: u64,
    /// Packets received from the scheduler.
    taken: u64,
    line: Line,
}

/// Sends the tasks of `config` from the clients through the scheduler to the workers and back. The scheduler
/// must be at time 0 and must not have polled. The run ends early if `stop` is set.
///
/// # Errors
/// If the scheduler breaks a rule of the run, or the arguments contradict each other.
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
        places: vec![NONE; config.tasks as usize],
        queues: vec![Fifo::EMPTY; config.speeds.len()],
        schedule,
        streams: Streams::new(config.seed),
        loss_below: loss_below(config.loss),
        recorder: Recorder::new(config.tasks, config.warmup, &config.progress),
        in_system: 0,
        replies: 0,
        answered: 0,
        lost: 0,
        digest: Digest::default(),
        ledger: PacketLedger::default(),
    };
    run.introduce()?;
    run.play(stop)?;
    Ok(run.finish())
}

impl<P, L, S> Run<'_, P, L, S>
where
    P: Port,
    L: Pool<Buf = P::Buf>,
    S: Scheduler + ?Sized,
{
    /// Resolves all MAC addresses, at time 0 before the first task.
    fn introduce(&mut self) -> Result<(), LockstepError> {
        self.turn()?;
        self.clients.ask(0)?;
        self.ledger.given += 1;
        self.turn()?;
        match self.clients.is_resolved() {
            true => Ok(()),
            false => Err(LockstepError::Unresolved(self.clients.dst())),
        }
    }

    fn play(&mut self, stop: &AtomicBool) -> Result<(), LockstepError> {
        let mut left = self.config.tasks;
        let mut arrival = self.schedule.advance(&mut self.streams.arrivals);
        let (mut last, mut stands) = (0, 0);
        while left > 0 || self.in_system > 0 || self.replies > 0 {
            let timer_ns = self.ledger.line.timer_ns;
            let (timer, next) = (from_ns(timer_ns), self.events.next_time());
            if left > 0 && arrival <= next.min(timer) {
                self.now = arrival;
                self.arrive();
                left -= 1;
                arrival = self.schedule.advance(&mut self.streams.arrivals);
                if stop.load(Ordering::Relaxed) {
                    return Err(LockstepError::Stopped);
                }
                continue;
            }
            if timer < next {
                stands = if timer > self.now { 0 } else { stands + 1 };
                if stands > TURNS_MAX {
                    return Err(LockstepError::Timer { timer_ns, now_ns: to_ns(self.now) });
                }
                if left == 0 && next == u64::MAX && timer > last + from_ns(GIVE_UP_NS) {
                    break;
                }
                self.now = timer.max(self.now);
                self.turn()?;
                continue;
            }
            let Some((time, event)) = self.events.pop() else { break };
            (self.now, last) = (time, time);
            let (kind, about) = event::unpack(event);
            match kind {
                event::AT_LEAF => self.at_leaf(about as u32)?,
                event::AT_WORKER => self.at_worker(about as u32),
                event::DONE => self.done(about as u32),
                _ => self.reply(about as u32)?,
            }
        }
        // Tasks that the scheduler dropped, or still has.
        self.lost += std::mem::take(&mut self.in_system);
        Ok(())
    }

    /// Draws whether a packet sent now is lost.
    fn loses(&mut self) -> bool {
        self.loss_below > 0 && self.streams.loss.next_u64() < self.loss_below
    }

    fn send(&mut self, hops: u32, kind: u64, place: u32) {
        let time = self.now + self.config.hop.sample(hops, &mut self.streams.hops);
        let worked = if kind == event::AT_WORKER { self.config.node_delay } else { 0 };
        self.events.push(time + worked, event::pack(kind, u64::from(place)));
    }

    /// Forwards a task, unless its packet is lost.
    fn send_task(&mut self, hops: u32, kind: u64, place: u32) {
        if self.loses() {
            self.lost += 1;
            self.in_system -= 1;
            self.forget(place);
        } else {
            self.send(hops, kind, place);
        }
    }

    /// Removes a finished or lost task.
    fn forget(&mut self, place: u32) {
        let flight = &mut self.flights[place];
        flight.packet = None;
        self.places[flight.number as usize] = NONE;
        self.flights.remove(place);
    }

    fn arrive(&mut self) {
        let (service_ns, class) = self.config.service.sample_ns(&mut self.streams.service);
        let number = self.recorder.arrive(self.in_system);
        self.in_system += 1;
        let place = self.flights.add(Flight {
            arrived: self.now,
            started: 0,
            service: (service_ns * (TICKS_PER_US / 1e3)) as u64,
            number,
            class,
            worker: 0,
            packet: None,
        });
        self.places[number as usize] = place;
        self.send_task(self.config.hops.spine_leaf, event::AT_LEAF, place);
    }

    fn at_leaf(&mut self, place: u32) -> Result<(), LockstepError> {
        let flight = &self.flights[place];
        let task = Task {
            seq: flight.number as u32,
            service_ns: reported_ns(flight.service, 1.0),
            class: flight.class,
        };
        self.clients.send(task, to_ns(self.now))?;
        self.ledger.given += 1;
        self.turn()
    }

    fn at_worker(&mut self, place: u32) {
        let queue = &mut self.queues[usize::from(self.flights[place].worker)];
        queue.push(place, &mut self.flights);
        if queue.len() == 1 {
            self.start(place);
        }
    }

    fn start(&mut self, place: u32) {
        let flight = &mut self.flights[place];
        flight.started = self.now;
        let ticks = service_at(flight.service, self.config.speeds[usize::from(flight.worker)]);
        self.events.push(self.now + ticks, event::pack(event::DONE, u64::from(place)));
    }

    fn done(&mut self, place: u32) {
        let worker = self.flights[place].worker;
        let queue = &mut self.queues[usize::from(worker)];
        queue.pop(&self.flights);
        let (next, left) = (queue.first(), queue.len());
        if let Some(next) = next {
            self.start(next);
        }
        let flight = &mut self.flights[place];
        let (number, ticks) = (flight.number, self.now - flight.arrived);
        let service_ns = reported_ns(flight.service, self.config.speeds[usize::from(worker)]);
        if let Some(packet) = &mut flight.packet {
            self.workers.turn_around(packet, worker, left, service_ns);
        }
        self.recorder.done(number, ticks);
        self.digest.add([number, u64::from(worker), flight.started, ticks]);
        self.in_system -= 1;
        if self.loses() {
            self.forget(place);
        } else {
            self.send(self.config.hops.worker_leaf, event::REPLY, place);
            self.replies += 1;
        }
    }

    fn reply(&mut self, place: u32) -> Result<(), LockstepError> {
        self.replies -= 1;
        if let Some(packet) = self.flights[place].packet.take() {
            self.workers.send(packet, to_ns(self.now))?;
            self.ledger.given += 1;
        }
        // Before the turn, so that no task can reuse the number in between. The simulator also frees it here.
        self.flights.remove(place);
        self.turn()
    }

    /// Gives the scheduler a turn and handles the packets that it sends.
    fn turn(&mut self) -> Result<(), LockstepError> {
        let now_ns = to_ns(self.now);
        loop {
            self.ledger.line = self.scheduler.turn(now_ns)?;
            let given = self.ledger.given;
            while self.ledger.taken < self.ledger.line.sent {
                if self.take(now_ns)? == 0 {
                    break;
                }
            }
            let PacketLedger { taken, line: Line { received, sent, .. }, .. } = self.ledger;
            if taken != sent || received != given {
                return Err(LockstepError::PacketCounts { now_ns, given, received, sent, taken });
            }
            if self.ledger.given == given {
                return Ok(());
            }
        }
    }

    /// Receives the scheduler's packets and returns their number.
    fn take(&mut self, now_ns: u64) -> Result<u64, LockstepError> {
        let Self { workers, clients, flights, places, answered, .. } = self;
        let stray = |what, number| LockstepError::Stray { what, number, now_ns };
        let (mut sent, mut refused) = (Places::new(), Places::new());
        let from_workers = workers.receive(now_ns, |number, worker, packet| {
            let place = places.get(number as usize).copied().filter(|place| *place != NONE);
            let place = place
                .filter(|place| flights.get(*place).is_some_and(|flight| flight.packet.is_none()));
            let place = place.ok_or(stray("task", number))?;
            let flight = &mut flights[place];
            (flight.worker, flight.packet) = (worker, Some(packet));
            sent.push(place);
            Ok(())
        })?;
        let from_clients = clients.receive(now_ns, |number, answer| {
            let place = places.get_mut(number as usize).filter(|place| **place != NONE);
            let place = place.ok_or(stray("the answer to task", number))?;
            let place = std::mem::replace(place, NONE);
            match answer.refused {
                true => refused.push(place),
                false => *answered += 1,
            }
            Ok(())
        })?;
        let count = from_workers.0 + from_clients.0;
        self.ledger.taken += count;
        self.ledger.given += from_workers.1 + from_clients.1;
        for place in sent {
            self.send_task(self.config.hops.leaf_worker, event::AT_WORKER, place);
        }
        for place in refused {
            self.lost += 1;
            self.in_system -= 1;
            self.flights.remove(place);
        }
        Ok(count)
    }

    fn finish(self) -> Outcome {
        Outcome {
            lost: self.lost,
            record: Some(Record { digest: self.digest, answered: self.answered }),
            ..Outcome::of(self.recorder, self.config.speeds.len(), TICKS_PER_US)
        }
    }
}
