//! Engine of a run: time, calendar, arrivals, tasks in flight, workers and records. All models with continuous
//! time run on it. So do the conductors of lockstep that follow a model. A conductor gives real schedulers
//! turns in emulated time.
//!
//! Times are in ticks, whose length each model chooses. The tasks in flight are in a table with reusable slots
//! ([`Slab`]), and a queue is a linked list of slots ([`Fifo`]). Events refer to a task by its slot. Workers may share
//! their core among several tasks ([`super::sharing`]). The script holds the changes during a run ([`super::script`]).
//!
//! Benchmark tasks measure a worker's speed. A worker runs them when idle, without interruption, and queues
//! only a few. The records exclude them.

use hdrhistogram::Histogram;
use rand::Rng as _;
use wedjat_core::policy::fifo::{Fifo, Slab};
use wedjat_workload::arrival::Schedule;
use wedjat_workload::results::Status;
use wedjat_workload::seed::{Stream, StreamSeed};
use wedjat_workload::service::Service;

use super::digest::{Digest, Record};
use super::events::{Events, event};
use super::hop::Hop;
use super::outcome::Outcome;
use super::script::{Action, shuffle};
use super::sharing::{SharedCore, Sharing};
use super::stats::{FinishedTask, Observer, Recorder, histogram, record};

/// Task number that all benchmark tasks share; no other task has it.
pub const BENCHMARK: u64 = u64::MAX;
/// Maximum number of benchmark tasks in a worker's queue. The worker drops further ones.
const BENCHMARKS_MAX: u32 = 8;

/// Next step of a run.
#[derive(Clone, Copy, Debug)]
pub enum NextEvent {
    /// The next task arrives: the model calls [`Engine::arrive`].
    Arrival,
    /// An event of the calendar: kind and argument.
    Event(u64, u64),
    /// The caller's timer is due.
    Timer,
}

/// A task in flight, with times in ticks.
#[derive(Clone, Copy, Debug)]
pub struct SimTask<T> {
    /// Time of its arrival.
    pub arrived: u64,
    /// Start of its service; 0 before.
    pub started: u64,
    /// Service time at speed 1.
    pub service: u64,
    /// Number of the task, in the order of arrival.
    pub number: u64,
    /// Index of its worker.
    pub worker: u32,
    /// Index of its core; meaningful only if tasks share cores.
    pub core: u32,
    /// Class; 0 if the model has none.
    pub class: u16,
    /// Number of tasks that remained at the worker when it completed this one.
    pub left_at_worker: u16,
    /// Data of the model about the task, for example its dispatcher.
    pub route: T,
}

impl<T> SimTask<T> {
    /// Returns the record of the task's end, with its worker and its response time or the reason for its loss.
    pub fn to_end(&self, worker: Option<usize>, response: Result<u64, Status>) -> FinishedTask {
        let &Self { number, class, arrived, service, .. } = self;
        FinishedTask { number, class, worker, arrived, service: Some(service), response }
    }
}

/// A worker, which serves in order of arrival, or runs its tasks on a shared core.
#[derive(Clone, Copy, Debug)]
pub struct Worker {
    /// Tasks in order of arrival. The first one runs, unless a benchmark task does. With a shared core: only the tasks
    /// for which the core has no room yet.
    pub queue: Fifo,
    /// Benchmark tasks that wait.
    benchmarks: Fifo,
    /// True while the worker runs a benchmark task.
    runs_benchmark: bool,
    /// Speed of the tasks that start from now on. A task of service time `s` takes `s / speed`.
    pub speed: f64,
}

/// Random streams of a run, one per purpose, so that draws for one purpose do not change those for another.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Gaps between arrivals.
    pub arrivals: Stream,
    /// Service times, drawn at arrival.
    pub service: Stream,
    /// Delays of hops, drawn when packets are sent.
    pub hops: Stream,
    /// Losses of packets, drawn when they are sent.
    pub loss: Stream,
    /// Shuffles of the speeds.
    pub shuffles: Stream,
}

impl Streams {
    /// Creates the streams of a run with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let stream = |purpose| StreamSeed::derive(seed, purpose, 0).stream();
        Self {
            arrivals: stream("arrivals"),
            service: stream("service"),
            hops: stream("hops"),
            loss: stream("loss"),
            shuffles: stream("shuffles"),
        }
    }
}

/// Parameters of an engine.
pub struct Setup<'a> {
    /// Number of tasks.
    pub tasks: u64,
    /// Warm-up: fraction of the tasks, at the start of the run, that is not measured.
    pub warmup: f64,
    /// Speed of each worker.
    pub speeds: &'a [f64],
    /// Divisor of the script's speeds: the former mean of the speeds, if the model scaled `speeds` to a mean of 1.
    pub speed_unit: f64,
    /// Arrival schedules of the initial load and of each load change in the script, by step; `None` for other steps.
    pub schedules: (Schedule, Vec<Option<Schedule>>),
    /// Delay of a hop.
    pub hop: Hop,
    /// Processing time of a dispatcher per task, in ticks.
    pub node_delay: u64,
    /// Probability of losing a packet.
    pub loss: f64,
    /// Number of cores that tasks share, and the parameters of sharing; `None` if workers serve in order of arrival.
    pub sharing: Option<(usize, Sharing)>,
    /// True to measure classes and slowdowns.
    pub measures_classes: bool,
    /// True to compute the digest of the tasks, and to await the replies in flight at the end.
    pub has_digest: bool,
    /// Picoseconds per tick.
    pub tick_ps: f64,
    /// Seed of all streams.
    pub seed: u64,
    /// Observer of the run.
    pub observer: &'a Observer,
}

/// State of a run that all models share.
#[derive(Debug)]
pub struct Engine<T> {
    /// Current time in ticks.
    pub now: u64,
    /// Calendar.
    pub events: Events,
    /// Tasks in flight. Events and queues refer to them by their slot in this slab.
    pub flights: Slab<SimTask<T>>,
    /// Workers by index.
    pub workers: Vec<Worker>,
    /// Shared cores; empty if workers serve in order of arrival. In most models core i belongs to worker i. In the
    /// model `nodes` a worker is a node with several cores. `nodes` calls [`Engine::join_core`],
    /// [`Engine::leave_core`] and [`Engine::complete`] instead of [`Engine::arrive_at_worker`] and [`Engine::done`].
    pub cores: Vec<SharedCore<u32>>,
    /// Random streams.
    pub streams: Streams,
    /// Number of tasks that have not arrived yet.
    pub remaining: u64,
    /// Number of arrived tasks that no worker has finished and that are not lost.
    pub in_system: u64,
    /// Number of replies and reports in flight, in a run with a digest. The run does not end before they arrive.
    awaited: u64,
    /// Number of lost tasks.
    pub lost: u64,
    /// Number of replies that reached their dispatcher.
    pub answered: u64,
    /// Number of messages, including benchmark tasks, besides clients' tasks and replies.
    pub messages: u64,
    /// Measurements of the run.
    pub recorder: Recorder,
    /// Arrival time of the next task in ticks.
    arrival: u64,
    /// Arrivals of the current load, in ticks since `schedule_start`.
    schedule: Schedule,
    /// Time in ticks at which the current schedule began.
    schedule_start: u64,
    /// Schedules of the script's load changes, by step; `None` for other steps.
    changes: Vec<Option<Schedule>>,
    /// See [`Setup::speed_unit`].
    speed_unit: f64,
    /// Delay of a hop.
    hop: Hop,
    /// Processing time of a dispatcher per task, in ticks.
    node_delay: u64,
    /// Threshold of random numbers below which a packet is lost.
    loss_below: u64,
    /// Samples of the longest queue over the mean queue, in thousandths.
    imbalance: Histogram<u64>,
    /// True if the run computes the digest, and awaits the replies in flight at its end.
    has_digest: bool,
    /// Digest of all tasks that have completed so far, without lost ones.
    digest: Digest,
}

impl<T> Engine<T> {
    /// Creates the engine of a run. `script` has the time in ticks of each step, which the calendar then contains.
    #[must_use]
    pub fn new(setup: Setup<'_>, script: impl Iterator<Item = u64>) -> Self {
        let Setup { tasks, warmup, speeds, speed_unit, has_digest, tick_ps, seed, .. } = setup;
        let (mut schedule, changes) = setup.schedules;
        let (queue, benchmarks, runs_benchmark) = (Fifo::EMPTY, Fifo::EMPTY, false);
        let worker = |&speed: &f64| Worker { queue, benchmarks, runs_benchmark, speed };
        let (core_count, sharing) = setup.sharing.unzip();
        let core = || sharing.map(SharedCore::new);
        let mut recorder = Recorder::new(tasks, warmup, tick_ps, setup.observer);
        if setup.measures_classes {
            recorder.measure_classes();
        }
        let mut streams = Streams::new(seed);
        let mut events = Events::default();
        for (step, time) in script.enumerate() {
            events.push(time, event::pack(event::SCRIPT, step as u64));
        }
        Self {
            now: 0,
            events,
            flights: Slab::default(),
            workers: speeds.iter().map(worker).collect(),
            cores: std::iter::repeat_with(core).flatten().take(core_count.unwrap_or(0)).collect(),
            remaining: tasks,
            in_system: 0,
            awaited: 0,
            lost: 0,
            answered: 0,
            messages: 0,
            recorder,
            arrival: schedule.advance(&mut streams.arrivals),
            schedule,
            streams,
            schedule_start: 0,
            changes,
            speed_unit,
            hop: setup.hop,
            node_delay: setup.node_delay,
            loss_below: loss_below(setup.loss),
            imbalance: histogram(),
            has_digest,
            digest: Digest::default(),
        }
    }

    /// Returns true if all tasks have ended, and no awaited reply or report is in flight.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.remaining + self.in_system + self.awaited == 0
    }

    /// Advances the time to the next arrival, event or timer, and returns it; `None` at the end of the run
    /// ([`Engine::is_over`]). At equal times, an arrival comes before events, and events before the timer. The caller's
    /// next timer is due at `timer`; `u64::MAX` means none.
    #[inline]
    pub fn next(&mut self, timer: u64) -> Option<NextEvent> {
        if self.is_over() { None } else { self.advance(timer) }
    }

    /// Like [`Engine::next`], but continues after the end of the run, for lockstep, whose nodes still have timers and
    /// packets in flight. `None` if the calendar is empty and there is no timer.
    #[inline]
    pub fn advance(&mut self, timer: u64) -> Option<NextEvent> {
        let next = self.events.next_time();
        if self.remaining > 0 && self.arrival <= next.min(timer) {
            self.now = self.arrival;
            self.remaining -= 1;
            self.draw_arrival();
            return Some(NextEvent::Arrival);
        }
        if timer < next {
            self.now = timer.max(self.now);
            return Some(NextEvent::Timer);
        }
        let (time, event) = self.events.pop()?;
        self.now = time;
        let (kind, argument) = event::unpack(event);
        if kind == event::DONE && !self.cores.is_empty() && !self.is_due(argument as u32) {
            // Skips the obsolete completion.
            return self.advance(timer);
        }
        Some(NextEvent::Event(kind, argument))
    }

    /// Returns true if this task ends now on its shared core. A scheduled completion is obsolete if the core's tasks
    /// have changed since.
    fn is_due(&self, task: u32) -> bool {
        let flight = self.flights.get(task);
        flight.is_some_and(|flight| self.cores[flight.core as usize].is_due(self.now, task))
    }

    /// Draws the arrival time of the next task.
    #[inline]
    fn draw_arrival(&mut self) {
        self.arrival = self.schedule_start + self.schedule.advance(&mut self.streams.arrivals);
    }

    /// Schedules an event `ticks` ticks from now.
    #[inline]
    pub fn after(&mut self, ticks: u64, kind: u64, argument: u64) {
        self.events.push(self.now + ticks, event::pack(kind, argument));
    }

    /// Schedules an event like [`Engine::after`]. Faster if all calls have the same `ticks`.
    #[inline]
    pub fn after_constant(&mut self, ticks: u64, kind: u64, argument: u64) {
        self.events.push_in_order(self.now + ticks, event::pack(kind, argument));
    }

    /// Draws whether a packet sent now is lost.
    #[inline]
    pub fn loses(&mut self) -> bool {
        self.loss_below > 0 && self.streams.loss.next_u64() < self.loss_below
    }

    /// Schedules the arrival of a packet after the delay of `hops` hops. A task to a worker also takes the processing
    /// time of its dispatcher.
    #[inline]
    pub fn send(&mut self, hops: u32, kind: u64, argument: u64) {
        let delay = self.hop.sample(hops, &mut self.streams.hops);
        let processing = if kind == event::AT_WORKER { self.node_delay } else { 0 };
        self.after(delay + processing, kind, argument);
    }

    /// Forwards a task, unless its packet is lost. Returns false for a lost packet, whose task it removes.
    #[inline]
    pub fn send_task(&mut self, hops: u32, kind: u64, task: u32) -> bool {
        let is_lost = self.loses();
        if is_lost {
            self.lose(task, Status::Lost);
        } else {
            self.send(hops, kind, task.into());
        }
        !is_lost
    }

    /// Sends the reply to a completed task. Removes the task and returns false if the packet is lost. The task still
    /// counts as completed.
    #[inline]
    pub fn reply(&mut self, hops: u32, task: u32) -> bool {
        let is_lost = self.loses();
        if is_lost {
            self.flights.remove(task);
        } else {
            self.send(hops, event::REPLY, task.into());
            self.await_reply();
        }
        !is_lost
    }

    /// Counts a reply or report that is sent, in a run with a digest. Such a run awaits all of them, because its record
    /// contains the number of answered tasks.
    #[inline]
    pub fn await_reply(&mut self) {
        self.awaited += u64::from(self.has_digest);
    }

    /// Counts the arrival of a reply or report that [`Engine::await_reply`] counted.
    #[inline]
    pub fn end_await(&mut self) {
        self.awaited -= u64::from(self.has_digest);
    }

    /// Adds the arriving task with a random service time, which `ticks` converts from nanoseconds to ticks. Returns its
    /// slot.
    #[inline]
    pub fn arrive(&mut self, service: &Service, ticks: impl Fn(f64) -> u64, route: T) -> u32 {
        let (service_ns, class) = service.sample_ns(&mut self.streams.service);
        let number = self.recorder.arrive(self.in_system);
        self.in_system += 1;
        self.flights.add(SimTask {
            arrived: self.now,
            started: 0,
            service: ticks(service_ns),
            number,
            worker: 0,
            core: 0,
            class,
            left_at_worker: 0,
            route,
        })
    }

    /// Adds a benchmark task for a worker, with this service time in ticks, and counts it as a message. Returns its
    /// slot.
    pub fn add_benchmark(&mut self, worker: usize, service: u64, route: T) -> u32 {
        self.messages += 1;
        self.flights.add(SimTask {
            arrived: self.now,
            started: 0,
            service,
            number: BENCHMARK,
            worker: worker as u32,
            core: worker as u32,
            class: 0,
            left_at_worker: 0,
            route,
        })
    }

    /// Queues a task at its worker, and starts it if the worker is idle. On a shared core with room, the task joins the
    /// core instead. Benchmark tasks have a queue of their own.
    #[inline]
    pub fn arrive_at_worker(&mut self, task: u32) {
        let index = self.flights[task].worker as usize;
        let worker = &mut self.workers[index];
        if self.flights[task].number == BENCHMARK {
            return self.benchmark_at_worker(index, task);
        }
        if let Some(core) = self.cores.get(index)
            && core.has_room()
        {
            return self.join_core(index, task);
        }
        worker.queue.push(task, &mut self.flights);
        if worker.queue.len() == 1 && !worker.runs_benchmark && self.cores.is_empty() {
            self.start(task);
        }
    }

    /// Queues a benchmark task at its worker, which runs it when it has no other task. If the queue is full, removes
    /// the task.
    fn benchmark_at_worker(&mut self, index: usize, task: u32) {
        let worker = &mut self.workers[index];
        if worker.benchmarks.len() == BENCHMARKS_MAX {
            self.flights.remove(task);
            return;
        }
        worker.benchmarks.push(task, &mut self.flights);
        if self.tasks_at(index) == 0 && !self.workers[index].runs_benchmark {
            self.start_next(index);
        }
    }

    /// Returns the number of tasks at a worker, without benchmark tasks. Only for models whose workers have one core
    /// each.
    #[inline]
    #[must_use]
    pub fn tasks_at(&self, worker: usize) -> u32 {
        let shared = self.cores.get(worker).map_or(0, SharedCore::len);
        self.workers[worker].queue.len() + shared as u32
    }

    /// Adds a task to the round of a shared core (the tasks that take turns), at the current speed of its worker.
    pub fn join_core(&mut self, core: usize, task: u32) {
        let flight = &mut self.flights[task];
        flight.core = core as u32;
        let ticks = service_at(flight.service, self.workers[flight.worker as usize].speed);
        self.cores[core].push(self.now, task, ticks);
        self.schedule_completion(core);
    }

    /// Schedules the next completion of a shared core, if it has changed. The event of the former completion stays in
    /// the calendar; [`Engine::advance`] skips it.
    fn schedule_completion(&mut self, core: usize) {
        if let Some((time, task)) = self.cores[core].reschedule() {
            self.events.push(time, event::pack(event::DONE, task.into()));
        }
    }

    /// Ends the task whose completion at its shared core is due. Stores the time at which the core first ran it.
    pub fn leave_core(&mut self, task: u32) {
        let flight = &mut self.flights[task];
        let core = flight.core as usize;
        flight.started = self.cores[core].complete(self.now).unwrap_or(self.now);
        self.schedule_completion(core);
    }

    /// Removes and returns all tasks of a shared core, whose worker fails or leaves.
    pub fn clear_core(&mut self, core: usize) -> Vec<u32> {
        self.cores[core].clear()
    }

    /// Returns the service time of a task in ticks at the current speed of its worker.
    #[inline]
    #[must_use]
    pub fn service_of(&self, task: u32) -> u64 {
        let flight = &self.flights[task];
        service_at(flight.service, self.workers[flight.worker as usize].speed)
    }

    /// Starts a task at its worker. With shared cores, only benchmark tasks start this way. They run alone.
    #[inline]
    pub fn start(&mut self, task: u32) {
        let flight = &mut self.flights[task];
        flight.started = self.now;
        let ticks = service_at(flight.service, self.workers[flight.worker as usize].speed);
        let core = flight.core as usize;
        if let Some(shared) = self.cores.get_mut(core) {
            shared.run_exclusively(self.now, task, ticks);
            return self.schedule_completion(core);
        }
        self.after(ticks, event::DONE, task.into());
    }

    /// Starts the next task of a free worker: the first of its queue, or a benchmark task. With a shared core, a free
    /// place in the round counts as free.
    #[inline]
    fn start_next(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if let Some(core) = self.cores.get(index) {
            if core.has_room()
                && let Some(task) = worker.queue.pop(&self.flights)
            {
                return self.join_core(index, task);
            }
            if !core.is_empty() {
                return;
            }
        }
        if let Some(task) = worker.queue.first() {
            self.start(task);
        } else if let Some(task) = worker.benchmarks.pop(&self.flights) {
            worker.runs_benchmark = true;
            self.start(task);
        }
    }

    /// Ends a task at its worker, which starts its next one. Records the end, with `place` for the digest. Returns
    /// false for a benchmark task, which it does not record.
    #[inline]
    pub fn done(&mut self, task: u32, place: usize) -> bool {
        let SimTask { worker: index, number, .. } = self.flights[task];
        let worker = &mut self.workers[index as usize];
        let is_benchmark = number == BENCHMARK;
        if is_benchmark {
            worker.runs_benchmark = false;
        } else if self.cores.is_empty() {
            worker.queue.pop(&self.flights);
        }
        if !self.cores.is_empty() {
            self.leave_core(task);
        }
        self.flights[task].left_at_worker =
            self.tasks_at(index as usize).min(u16::MAX.into()) as u16;
        self.start_next(index as usize);
        if !is_benchmark {
            self.complete(task, place);
        }
        !is_benchmark
    }

    /// Records that a worker completed a task. The digest gets `place`, the worker's index at its dispatcher. In a
    /// model of racks, this index counts within the rack.
    #[inline]
    pub fn complete(&mut self, task: u32, place: usize) {
        let flight = &self.flights[task];
        let ticks = self.now - flight.arrived;
        self.recorder.done(flight.number, ticks);
        self.recorder.done_of_class(flight.number, flight.class, ticks, flight.service);
        self.recorder.end(|| flight.to_end(Some(flight.worker as usize), Ok(ticks)));
        if self.has_digest {
            self.digest.add([flight.number, place as u64, flight.started, ticks]);
        }
        self.in_system -= 1;
    }

    /// Removes a task that ended without an answer, and returns it; `None` if its slot is empty. Does not count or
    /// record benchmark tasks.
    pub fn lose(&mut self, task: u32, reason: Status) -> Option<SimTask<T>> {
        let flight = self.flights.remove(task)?;
        if flight.number != BENCHMARK {
            self.lost += 1;
            self.in_system -= 1;
            self.recorder.end(|| flight.to_end(None, Err(reason)));
        }
        Some(flight)
    }

    /// Ends a run in which tasks remain, for instance in a leaf's queue. All of them are lost. `slots` holds the slot
    /// of each task, by number. The slot of an ended task may now hold another task.
    pub fn end_rest(&mut self, slots: &[Option<u32>]) {
        let Self { flights, recorder, .. } = self;
        let rest = (0..).zip(slots).filter_map(|(number, slot)| {
            let flight = flights.get((*slot)?).filter(|flight| flight.number == number)?;
            Some(flight.to_end(None, Err(Status::Lost)))
        });
        // A completed task keeps its slot until its reply arrives. It does not count as lost: the recorder already has
        // its end, and `in_system` excludes it.
        recorder.end_rest(rest);
        self.lost += std::mem::take(&mut self.in_system);
    }

    /// Executes a step of the script that all models have: new speeds or another load. Ignores other steps. On shared
    /// cores, new speeds apply to tasks that have not started.
    pub fn act(&mut self, step: usize, action: &Action) {
        self.set_load_or_speed(step, action);
        for core in 0..self.cores.len() {
            let Self { flights, workers, .. } = self;
            self.cores[core].set_service(self.now, |task| {
                let flight = &flights[task];
                service_at(flight.service, workers[flight.worker as usize].speed)
            });
            self.schedule_completion(core);
        }
    }

    /// Sets new speeds or another load.
    fn set_load_or_speed(&mut self, step: usize, action: &Action) {
        match action {
            Action::Speed { workers, speed } => {
                let speed = speed / self.speed_unit;
                self.workers[workers.clone()].iter_mut().for_each(|worker| worker.speed = speed);
            }
            Action::Shuffle => {
                let mut speeds: Vec<_> = self.workers.iter().map(|worker| worker.speed).collect();
                shuffle(&mut speeds, &mut self.streams.shuffles);
                let workers = self.workers.iter_mut().zip(speeds);
                workers.for_each(|(worker, speed)| worker.speed = speed);
            }
            Action::Load(_) => {
                if let Some(schedule) = self.changes[step].take() {
                    (self.schedule, self.schedule_start) = (schedule, self.now);
                    self.draw_arrival();
                }
            }
            // Steps that only one model has, which executes them itself.
            _ => {}
        }
    }

    /// Samples the imbalance: the longest queue divided by the mean queue. Skips the sample if all queues are empty.
    pub fn sample(&mut self, longest: f64, mean: f64) {
        if mean > 0.0 {
            record(&mut self.imbalance, (longest / mean * 1e3) as u64);
        }
    }

    /// Returns the outcome, whose unit of time has `ticks_per_unit` ticks.
    #[must_use]
    pub fn finish(self, ticks_per_unit: f64) -> Outcome {
        let record = Record { digest: self.digest, answered: self.answered };
        Outcome {
            messages: self.messages,
            lost: self.lost,
            imbalance: self.imbalance,
            record: self.has_digest.then_some(record),
            ..Outcome::from_recorder(self.recorder, self.workers.len(), ticks_per_unit)
        }
    }
}

/// Returns the threshold for this loss probability: a random number of 64 bits below it means a loss. A probability of
/// 1 gives `u64::MAX`.
#[must_use]
pub fn loss_below(probability: f64) -> u64 {
    (probability * 64.0_f64.exp2()) as u64
}

/// Returns the service time in ticks at a worker of this speed, for a service time at speed 1.
#[inline]
fn service_at(service: u64, speed: f64) -> u64 {
    if speed == 1.0 { service } else { divided(service, speed) }
}

/// Returns the service time divided by the speed. Not inlined: the compiler would divide for speed 1, too.
#[inline(never)]
fn divided(service: u64, speed: f64) -> u64 {
    (service as f64 / speed) as u64
}
