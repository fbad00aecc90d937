//! The generator on one core: sends due tasks, receives answers, counts. Clock and random numbers are
//! arguments, so tests run it in emulated time.
//!
//! The schedule fixes the due time of each task in advance (open loop). Latency counts from the due time, so
//! a generator that sends late cannot hide the delay. All times are ticks of the core's clock.
//!
//! `crate::send::Pacer` yields the due tasks, [`Outstanding`] holds the sent ones until their answers, and [`Tally`]
//! counts them. A stray is a received packet that is not the first answer to a task in flight. The application id in a
//! task names the core that sent it, and workers repeat it in the answer.

use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::io::{Buf, Burst, Pool, Port};

use crate::arrival::BurstsTooLong;
use crate::exchange::{AnswerExchange, RelayedAnswer};
use crate::host::{Answer, FrameKind, Host};
use crate::load::Load;
use crate::oracle::Oracle;
use crate::outstanding::{Outstanding, Stray};
use crate::send::{Pacer, TaskSource};
use crate::slices::{Log, Pauses};
use crate::stamps::Stamps;
use crate::tally::{Clock, Tally};
use crate::target::Target;
use crate::template::{Task, Template};

/// Seconds after which an unanswered request for the next hop's MAC address is repeated.
const REQUEST_INTERVAL_S: f64 = 0.1;
/// Seconds in which the next hop must answer.
const RESOLVE_S: f64 = 10.0;
/// Seconds after the end of the load in which the backlog may still be sent. A longer tolerance for late tasks
/// replaces it. The rest counts as unsent.
const GRACE_S: f64 = 0.001;
/// Maximum number of unsent tasks counted in one poll, to bound its time.
const UNSENT_PER_POLL: usize = 4096;
/// Bounds for the size of the ring of outstanding tasks, as log2. Within them the ring holds the tasks of a
/// second. The upper bound limits the ring to 128 MiB.
const OUTSTANDING_BITS: std::ops::RangeInclusive<u32> = 12..=22;

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Requesting the next hop's MAC address.
    Resolving,
    /// The run ended without the next hop's MAC address: no answer came, or the run was stopped.
    Unresolved,
    /// Sending, without measuring.
    WarmingUp,
    /// Sending and measuring.
    Measuring,
    /// The load has ended. Counting the unsent tasks, and waiting for answers.
    Draining,
    /// The run is over.
    Done,
}

impl Phase {
    /// Returns true once the run has ended.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Unresolved | Self::Done)
    }
}

/// Reason why a generator cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Bursts and rate contradict each other.
    #[error(transparent)]
    Bursts(#[from] BurstsTooLong),
    /// A frame does not fit into a buffer.
    #[error("frames of {0} bytes do not fit into the pool's buffers; choose a smaller size")]
    FrameTooLong(usize),
}

/// Durations of a run's phases and timeouts, in ticks.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Time before the measured time.
    warmup: u64,
    /// Measured time.
    duration: u64,
    /// Time after the load in which the backlog may still be sent.
    grace: u64,
    /// Longest wait for answers after the load.
    drain: u64,
    /// Interval between requests for the next hop's MAC address.
    request_interval: u64,
    /// Time in which the next hop must answer.
    resolve: u64,
}

/// The generator on one core.
pub struct Generator<P: Port, L: Pool<Buf = P::Buf>> {
    port: P,
    pool: L,
    /// Addresses of the generator; parses received frames.
    host: Host,
    /// Frame into which each task's fields are written.
    template: Template,
    /// Application id of the tasks.
    app: u32,
    /// True if tasks have the header extension, with application id and 32-bit sequence number.
    extended: bool,
    /// Offered load of all cores.
    load: Load,
    /// Tasks of this core; the pacer plays a copy.
    source: TaskSource,
    times: Times,
    /// Nanoseconds per tick.
    tick_ns: f64,
    phase: Phase,
    /// Tasks that are still to be sent.
    pacer: Option<Pacer>,
    /// Frames that the device has not accepted yet, with consecutive sequence numbers.
    pending: Burst<P::Buf>,
    /// Sequence number of the first of them.
    pending_seq: u32,
    /// Buffers of received answers, reused for the next tasks because they are in the cache.
    spare: Burst<P::Buf>,
    /// Received packets; empty between polls.
    incoming: Burst<P::Buf>,
    /// Neighbour messages (ARP or neighbour discovery) to send.
    control: Burst<P::Buf>,
    /// Built and sent tasks that wait for their answers.
    outstanding: Outstanding,
    /// Exchange of answers between cores; `None` on a single core.
    exchange: Option<AnswerExchange>,
    /// Receive times by the device's or the kernel's clock, if it stamps packets.
    stamps: Option<Box<Stamps>>,
    /// Checker of answers, if they are verified.
    oracle: Option<Oracle>,
    /// Counts and latencies.
    tally: Tally,
    /// End of the current phase: of resolving, of the load, or of the drain.
    deadline: u64,
    /// Time of the next request for the next hop's MAC address.
    next_request: u64,
}

impl<P: Port, L: Pool<Buf = P::Buf>> Generator<P, L> {
    /// Creates a generator for core `core` of the load, on a clock of `hz` ticks per second. It starts at the
    /// first poll.
    ///
    /// # Errors
    /// If arrivals and rate contradict each other, or a frame does not fit into a buffer of `pool`. Does not check that
    /// the random streams are independent: call [`Load::self_test`] first, once for all cores.
    pub fn new(
        load: &Load,
        target: &Target,
        core: u32,
        hz: f64,
        port: P,
        mut pool: L,
    ) -> Result<Self, SetupError> {
        let source = load.source(core, hz)?;
        let app = load.app(core);
        let mut frame = target.frame(app);
        if let Some(replay) = &load.replay {
            // The template has the size of the trace's largest frame, and `build_due` shortens it.
            frame.frame_bytes = replay.trace().size_max();
        }
        let template = Template::new(&frame);
        let frame_len = template.frame_len();
        // Tests one buffer, which then returns to the pool.
        if pool.take().is_some_and(|mut buf| !buf.resize(frame_len)) {
            return Err(SetupError::FrameTooLong(frame_len));
        }
        let ticks = |seconds: f64| (seconds * hz).round() as u64;
        let times = Times {
            warmup: ticks(load.warmup_s),
            duration: ticks(load.duration_s),
            grace: ticks(load.late_after_s.max(GRACE_S)),
            drain: ticks(load.drain_s),
            request_interval: ticks(REQUEST_INTERVAL_S),
            resolve: ticks(RESOLVE_S),
        };
        let tick_ns = 1e9 / hz;
        let tasks = load.rate_pps / f64::from(load.cores) * load.duration_s;
        let log = Log::new(tasks, times.duration, hz);
        let pauses = Pauses::new(ticks(load.rule.pause_s));
        let mut tally = Tally::new(load.windows, load.classes(), log, pauses);
        if load.records_tasks {
            tally.record_tasks(load.core_tasks_max());
        }
        let oracle = load.verify.then(|| Oracle::new(load.service.workload(), template.work_len()));
        Ok(Self {
            port,
            pool,
            host: target.host(),
            template,
            app,
            extended: target.extended,
            load: load.clone(),
            source,
            times,
            tick_ns,
            phase: Phase::Resolving,
            pacer: None,
            pending: Burst::new(),
            pending_seq: 0,
            spare: Burst::new(),
            incoming: Burst::new(),
            control: Burst::new(),
            outstanding: Outstanding::new(outstanding_bits(load)),
            exchange: None,
            stamps: None,
            oracle,
            tally,
            deadline: 0,
            next_request: 0,
        })
    }

    /// Connects the generator with the exchange of answers between cores.
    pub fn join(&mut self, exchange: AnswerExchange) {
        self.exchange = Some(exchange);
    }

    /// Ends latencies at the packets' timestamps, instead of the poll time.
    pub fn stamp(&mut self, stamps: Stamps) {
        self.stamps = Some(Box::new(stamps));
    }

    /// Sends the tasks due at `now`, then processes received packets. For emulated time, in which both happen at once.
    #[inline]
    pub fn poll(&mut self, now: u64) -> Phase {
        self.transmit(now);
        self.receive(now);
        self.phase
    }

    /// Polls with the clock `now` until the run is over. `stop` ends the load early, as [`Generator::stop`] does.
    pub fn run(&mut self, mut now: impl FnMut() -> u64, stop: &AtomicBool) {
        while !self.phase.is_over() {
            self.transmit(now());
            self.receive(now());
            // Relaxed: the flag guards no other data.
            if stop.load(Ordering::Relaxed) {
                self.stop(now());
            }
        }
    }

    /// Returns the phase of the run.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Sends the tasks due at `now`, and records the clock reading to detect stalls of the loop. Separate
    /// clock readings for `transmit` and [`Generator::receive`] are more exact than [`Generator::poll`].
    #[inline]
    pub fn transmit(&mut self, now: u64) {
        self.tally.record_reading(now);
        match self.phase {
            Phase::WarmingUp | Phase::Measuring => self.send_due(now),
            Phase::Resolving => self.resolve(now),
            Phase::Draining => self.drain(now),
            Phase::Unresolved | Phase::Done => {}
        }
    }

    /// Starts the load once the next hop is known. Until then requests its MAC address, and gives up after
    /// [`RESOLVE_S`].
    fn resolve(&mut self, now: u64) {
        if self.host.next_hop_mac().is_some() {
            return self.start(now);
        }
        // 0 means that no deadline is set yet.
        if self.deadline == 0 {
            self.deadline = now.saturating_add(self.times.resolve).max(1);
        }
        if now >= self.deadline {
            self.phase = Phase::Unresolved;
        } else if now >= self.next_request {
            self.next_request = now + self.times.request_interval;
            let Some(mut request) = self.pool.take() else { return };
            if self.host.write_mac_request(&mut request) {
                self.control.push(request);
                self.send_control();
            }
        }
    }

    /// Begins the load at `now`.
    fn start(&mut self, now: u64) {
        if let Some(mac) = self.host.next_hop_mac() {
            self.template.set_next_hop(mac);
        }
        let measured_from = now + self.times.warmup;
        self.deadline = measured_from + self.times.duration;
        let clock = Clock {
            start: measured_from,
            window_ticks: (self.times.duration.div_ceil(self.load.windows.max(1) as u64)).max(1),
            tick_ns: self.tick_ns,
            late_ticks: (self.load.late_after_s * 1e9 / self.tick_ns) as u64,
        };
        self.tally.begin(clock);
        self.pacer = Some(Pacer::new(self.source.clone(), now, self.deadline));
        self.phase = Phase::WarmingUp;
    }

    /// Sends the due tasks, and changes the phase when its time has come.
    #[inline]
    fn send_due(&mut self, now: u64) {
        self.build_due(now);
        if !self.pending.is_empty() {
            self.send_pending(now);
        }
        // Draws the next tasks after sending, so that a due task never waits for random numbers.
        self.pacer.iter_mut().for_each(Pacer::draw_ahead);
        if now >= self.tally.measured_from() {
            self.phase = Phase::Measuring;
        }
        if now >= self.deadline {
            self.end_load(now);
        }
    }

    /// Builds the frames of the due tasks, up to a full burst.
    #[inline]
    fn build_due(&mut self, now: u64) {
        let Some(pacer) = &mut self.pacer else { return };
        while !self.pending.is_full() && pacer.is_due(now) {
            // Takes the buffer first, so that a task without one stays due.
            let len = self.template.frame_len();
            let allocate = || resized(self.pool.take()?, len);
            let Some(mut buf) = self.spare.pop().or_else(allocate) else {
                self.tally.pool_empty += 1;
                break;
            };
            let due = pacer.take();
            // The buffer has the length of the longest frame. A replayed task may have a shorter one.
            let len = self.template.len_for(due.size);
            if len != self.template.frame_len() {
                buf.resize(len);
            }
            let seq = self.outstanding.next_seq();
            let task = Task { seq, service_ns: due.service_ns, class: due.class };
            self.template.write(buf.bytes_mut(), task);
            self.tally.schedule(due.at, due.class);
            // The new task may evict an unanswered one from the ring, which then counts as lost.
            if let Some(lost) = self.outstanding.build(due.at, due.service_ns, due.class) {
                self.tally.lose(&lost);
            }
            self.pending.push(buf);
        }
    }

    /// Sends the built frames. The device may accept only some of them.
    #[inline]
    fn send_pending(&mut self, now: u64) {
        let sent = self.port.tx_burst(&mut self.pending);
        for _ in 0..sent {
            let flight = self.outstanding.send(self.pending_seq, now);
            self.tally.send(&flight);
            self.pending_seq = self.pending_seq.wrapping_add(1);
        }
        self.tally.tx_full += u64::from(!self.pending.is_empty());
    }

    /// Ends the load once all tasks are sent, or the grace period for the backlog has passed.
    fn end_load(&mut self, now: u64) {
        let all_sent = self.pending.is_empty() && self.pacer.as_ref().is_none_or(Pacer::is_done);
        if !all_sent && now < self.deadline + self.times.grace {
            return;
        }
        // Frames that the device did not accept are unsent. `drain` counts the tasks that have no frame yet.
        for _ in self.pending.drain(..) {
            let flight = self.outstanding.built(self.pending_seq);
            self.tally.count_unsent(flight.due, flight.service_ns, flight.class);
            self.pending_seq = self.pending_seq.wrapping_add(1);
        }
        self.phase = Phase::Draining;
        // The measured time excludes the grace period: no task is due in it.
        self.tally.end(self.deadline);
        self.deadline = now + self.times.drain;
    }

    /// Counts the tasks that the pacer still has, which will not be sent. Ends the run once these are counted, and no
    /// task is in flight or the deadline has passed. Tasks still in flight then count as lost.
    fn drain(&mut self, now: u64) {
        if let Some(pacer) = &mut self.pacer {
            for _ in 0..UNSENT_PER_POLL {
                if pacer.is_done() {
                    self.pacer = None;
                    break;
                }
                let due = pacer.take();
                self.tally.schedule(due.at, due.class);
                self.tally.count_unsent(due.at, due.service_ns, due.class);
            }
        }
        let is_over = self.outstanding.is_empty() || now >= self.deadline;
        if is_over && self.pacer.is_none() {
            for flight in self.outstanding.give_up() {
                self.tally.lose(&flight);
            }
            self.phase = Phase::Done;
        }
    }

    /// Processes the packets received by `now`, and the answers relayed by other cores. Also called after this core's
    /// run while other cores run, because their answers may arrive at this core's queue.
    #[inline]
    pub fn receive(&mut self, now: u64) {
        if self.port.rx_burst(&mut self.incoming) > 0 {
            for buf in &self.incoming {
                buf.prefetch();
            }
            if let Some(stamps) = &mut self.stamps {
                stamps.refresh(now);
            }
            // Takes packets from the end, so that none moves. The order within a burst has no meaning.
            while let Some(buf) = self.incoming.pop() {
                self.process(buf, now);
            }
            self.send_control();
        }
        while let Some(answer) = self.exchange.as_ref().and_then(AnswerExchange::take) {
            self.count_answer(answer);
        }
    }

    /// Processes a received packet.
    #[inline(always)]
    fn process(&mut self, mut buf: P::Buf, now: u64) {
        // Receive time: the packet's stamp, else the time of the poll.
        let now = match &mut self.stamps {
            Some(stamps) => stamps.time_of(&buf, now),
            None => now,
        };
        let verified = buf.checksums_verified();
        // Fast path for the common form of an answer. `Host::receive` handles all frames.
        if let Some(answer) = self.host.plain_answer(buf.bytes(), verified) {
            self.process_answer(&answer, buf.bytes(), now);
            return self.recycle(buf);
        }
        match self.host.receive(&mut buf, verified) {
            FrameKind::Answer(answer) => self.process_answer(&answer, buf.bytes(), now),
            FrameKind::NeighbourAnswer => self.control.push(buf),
            // A next hop that fails over during the load announces another address.
            FrameKind::NextHop(mac) => self.template.set_next_hop(mac),
            FrameKind::Nothing(_) => self.tally.strays.foreign += 1,
        }
    }

    /// Keeps the buffer for a next task, if there is room.
    #[inline]
    fn recycle(&mut self, buf: P::Buf) {
        if !self.spare.is_full() {
            self.spare.extend(resized(buf, self.template.frame_len()));
        }
    }

    /// Counts an answer to a task of this core, or relays it to the core that sent the task.
    #[inline(always)]
    fn process_answer(&mut self, answer: &Answer, frame: &[u8], received: u64) {
        // An answer with the extension names the core's application id and the full sequence number. Without
        // it there is one core, and the latest task with these 16 bits is meant.
        let (app, seq) = match answer.id {
            Some(id) if self.extended => id,
            None if !self.extended => (self.app, self.outstanding.full_seq(answer.seq)),
            _ => {
                self.tally.strays.unknown += 1;
                return;
            }
        };
        let body = &frame[usize::from(answer.body)..usize::from(answer.end)];
        // Checks the content here, because a relayed answer has no frame.
        let operation = self.oracle.as_ref().and_then(|oracle| oracle.answered(app, seq, body));
        let (refused, worker) = (answer.refused, answer.worker);
        let answer = RelayedAnswer { seq, refused, operation, received, worker };
        if app == self.app {
            self.count_answer(answer);
        } else if !self.exchange.as_ref().is_some_and(|exchange| exchange.relay(app, answer)) {
            self.tally.strays.unknown += 1;
        }
    }

    /// Counts an answer to a task of this core.
    #[inline(always)]
    fn count_answer(&mut self, answer: RelayedAnswer) {
        match self.outstanding.answer(answer.seq) {
            Ok(flight) if answer.refused => self.tally.refuse(&flight),
            Ok(flight) => {
                // A task requests its class as the operation. A correct answer is one to that operation.
                let wrong = self.oracle.is_some() && answer.operation != Some(flight.class);
                self.tally.answer(&flight, answer.received, wrong, answer.worker);
            }
            Err(Stray::Duplicate) => self.tally.strays.duplicates += 1,
            Err(Stray::Late) => self.tally.strays.late_answers += 1,
            Err(Stray::Unknown) => self.tally.strays.unknown += 1,
        }
    }

    /// Sends neighbour messages. Messages that the device rejects are dropped; the sender of a request
    /// repeats it.
    fn send_control(&mut self) {
        if !self.control.is_empty() {
            self.port.tx_burst(&mut self.control);
            self.control.clear();
        }
    }

    /// Ends the load now and shortens the measured time. Tasks that are not due yet do not count. Ends the whole run
    /// if the load has not begun. Has no effect after the load.
    pub fn stop(&mut self, now: u64) {
        match self.phase {
            Phase::WarmingUp | Phase::Measuring => {
                self.deadline = self.deadline.min(now);
                self.pacer.iter_mut().for_each(|pacer| pacer.end(now));
            }
            Phase::Resolving => self.phase = Phase::Unresolved,
            Phase::Draining | Phase::Unresolved | Phase::Done => {}
        }
    }

    /// Returns the number of tasks in flight: sent, and neither answered nor lost.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns the counts so far. They are complete once the run is over.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns port, buffer pool and counts.
    #[must_use]
    pub fn into_parts(mut self) -> (P, L, Tally) {
        self.tally.stamps = self.stamps.map(|stamps| stamps.stats());
        (self.port, self.pool, self.tally)
    }
}

/// Resizes the buffer for a packet of this length. A buffer without room returns to its pool.
#[inline]
fn resized<B: Buf>(mut buf: B, len: usize) -> Option<B> {
    buf.resize(len).then_some(buf)
}

/// Returns log2 of the size of the ring of outstanding tasks. The ring holds the tasks of one core in its
/// busiest second, within [`OUTSTANDING_BITS`].
fn outstanding_bits(load: &Load) -> u32 {
    let bits = load.busiest_second().log2().ceil().max(0.0) as u32;
    bits.clamp(*OUTSTANDING_BITS.start(), *OUTSTANDING_BITS.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Addresses;
    use crate::ledger::Ledger;
    use crate::neighbour::Message;
    use crate::payload::Work;
    use crate::reflector::reflect;
    use crate::replay::{self, Replay};
    use std::collections::VecDeque;
    use wedjat::io::memory::{self, Frame, FramePool, RingPort};
    use wedjat::wire::arp;
    use wedjat::wire::ether::{self, Mac};

    /// MAC address of the generator.
    const US: Mac = Mac([2, 0, 0, 0, 0, 1]);
    /// MAC address of its peer.
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
    /// One tick is one nanosecond.
    const HZ: f64 = 1e9;
    /// Emulated time between two polls, in ticks.
    const STEP: u64 = 100;

    /// Returns a load of 10 ms after 1 ms of warm-up, with two classes.
    fn load(rate_pps: f64) -> Load {
        Load {
            warmup_s: 0.001,
            duration_s: 0.01,
            drain_s: 0.002,
            windows: 10,
            ..Load::new(rate_pps, "mix(0.5*fixed(3us), 0.5*fixed(9us))".parse().unwrap())
        }
    }

    /// Delays of the peer's answers to task `n`, from 0. No delay loses the task, two duplicate its answer.
    type Answers = fn(u64) -> &'static [u64];

    /// Peer of the generator: answers each request for its MAC address at once, and tasks with the delays of `answers`.
    struct Peer {
        port: RingPort,
        answers: Answers,
        /// Number of received tasks.
        tasks: u64,
        /// Answers with the times at which they are due.
        queue: VecDeque<(u64, Frame)>,
        /// Frames of the received tasks.
        frames: Vec<Vec<u8>>,
    }

    impl Peer {
        /// Answers received frames, and sends the answers due at `now`.
        fn poll(&mut self, now: u64, pool: &FramePool) {
            while let Some(mut frame) = self.port.receive() {
                let is_task = !Message::is_neighbour_discovery(frame.bytes());
                if is_task {
                    self.frames.push(frame.bytes().to_vec());
                }
                if !reflect(&mut frame, PEER) {
                    continue;
                }
                let delays = if is_task { (self.answers)(self.tasks) } else { &[0] };
                self.tasks += u64::from(is_task);
                for delay in delays {
                    let copy = pool.frame(frame.bytes()).unwrap();
                    self.queue.push_back((now + delay, copy));
                }
            }
            self.queue.make_contiguous().sort_by_key(|(at, _)| *at);
            while self.queue.front().is_some_and(|(at, _)| *at <= now) {
                let (_, frame) = self.queue.pop_front().unwrap();
                assert!(self.port.send(frame.bytes()));
            }
        }
    }

    /// Result of a run: counts, frames of the tasks, and last phase.
    struct Run {
        tally: Tally,
        frames: Vec<Vec<u8>>,
        phase: Phase,
    }

    /// Runs to the end in emulated time, over a wire of `depth` frames. `polled` selects the times at which
    /// the generator runs.
    fn run(
        load: &Load,
        target: &Target,
        depth: usize,
        answers: Answers,
        polled: fn(u64) -> bool,
    ) -> Run {
        let pool = FramePool::new(8192, 1024);
        let (generator_port, peer_port) = memory::pair(depth, &pool);
        let mut generator =
            Generator::new(load, target, 0, HZ, generator_port, pool.clone()).unwrap();
        let mut peer =
            Peer { port: peer_port, answers, tasks: 0, queue: VecDeque::new(), frames: Vec::new() };
        let mut now = 1;
        while !generator.phase().is_over() {
            if polled(now) {
                generator.poll(now);
            }
            peer.poll(now, &pool);
            now += STEP;
            assert!(now < 20_000_000_000, "the run does not end");
        }
        let phase = generator.phase();
        let (port, _, tally) = generator.into_parts();
        let frames = std::mem::take(&mut peer.frames);
        drop((port, peer));
        assert_eq!(pool.in_use(), 0, "every buffer returns to its pool");
        assert!(tally.warmup.balances() && tally.measured.balances(), "{:?}", tally.measured);
        Run { tally, frames, phase }
    }

    /// Returns the target at 10.0.1.1, whose MAC address the generator must request.
    fn target() -> Target {
        Target::new(US, 0x0A00_0102, 0x0A00_0101)
    }

    #[test]
    fn a_perfect_echo_gives_its_own_latency() {
        let run = run(&load(1e6), &target(), 1024, |_| &[7_000], |_| true);
        let Ledger { scheduled, sent, late, answered, .. } = run.tally.measured;
        assert_eq!((sent, answered, late), (scheduled, scheduled, 0));
        assert!((9_500..10_500).contains(&scheduled), "{scheduled}");
        assert!((900..1_100).contains(&run.tally.warmup.sent));
        // Sent within a step, answered after 7 us, received a step later. The histogram resolves 0.1%.
        let response = run.tally.response();
        for quantile in [0.01, 0.5, 1.0] {
            let ns = response.quantile_ns(quantile);
            assert!((7_000.0..7_000.0 * 1.001 + 2.0 * STEP as f64).contains(&ns), "{ns}");
        }
        // The peer answers after 7 us, and the generator receives the answer one step later.
        let service = run.tally.service.quantile_ns(0.5);
        assert!((7_100.0..7_110.0).contains(&service), "{service}");
        assert!(run.tally.windows.iter().all(|window| window.tasks() > 800));
        let classes: Vec<_> = run.tally.classes.iter().map(|c| c.response.tasks()).collect();
        assert_eq!(classes.iter().sum::<u64>(), answered);
        assert!(classes.iter().all(|tasks| *tasks > answered / 3), "{classes:?}");
    }

    /// Runs the same load over IPv6 through a router; only the frames may differ.
    // promise: measurement.1
    #[test]
    fn run_over_ipv6_equals_ipv4() {
        let gateway = "fe80::1".parse().ok();
        let addresses = Addresses::new("fd00:1::1".parse().unwrap(), None, gateway).unwrap();
        for extended in [true, false] {
            let over_v4 = Target { extended, ..target() };
            let over_v6 = Target { addresses, checksums: false, ..over_v4.clone() };
            let [over_v4, over_v6] =
                [over_v4, over_v6].map(|to| run(&load(1e6), &to, 1024, |_| &[7_000], |_| true));
            assert_eq!(over_v6.phase, Phase::Done);
            assert_eq!(over_v6.tally.measured, over_v4.tally.measured);
            assert_eq!(over_v6.tally.strays, over_v4.tally.strays);
            let [p99, p99_v4] =
                [&over_v6, &over_v4].map(|run| run.tally.response().quantile_ns(0.99));
            assert_eq!(p99, p99_v4);
            assert_eq!(over_v6.frames.len(), over_v4.frames.len());
            for (frame, frame_v4) in over_v6.frames.iter().zip(&over_v4.frames) {
                let datagram = wedjat::wire::udp::parse_v6(frame, false).unwrap();
                let Addresses::V6(ends) = addresses else { panic!("{addresses:?}") };
                assert_eq!((datagram.src, datagram.dst), (ends.own, ends.dst));
                assert_eq!(wedjat::wire::ether::dst(frame), PEER);
                assert_eq!(
                    frame[wedjat::wire::udp::PAYLOAD_V6..],
                    frame_v4[wedjat::wire::udp::PAYLOAD..]
                );
            }
        }
    }

    #[test]
    fn tasks_follow_a_next_hop_that_fails_over() {
        let backup = Mac([2, 0, 0, 0, 0, 7]);
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let next_hop = 0x0A00_0101;
        let mut announcement = [0; arp::FRAME_LEN];
        arp::Packet::request(backup, next_hop, next_hop).emit(&mut announcement, Mac::BROADCAST);
        let pool = FramePool::new(8192, 1024);
        let (port, mut peer) = memory::pair(1024, &pool);
        let mut generator = Generator::new(&load(1e6), &target, 0, HZ, port, pool.clone()).unwrap();
        let mut destinations = Vec::new();
        let mut before = None;
        let mut now = 1;
        while !generator.phase().is_over() {
            generator.poll(now);
            while let Some(frame) = peer.receive() {
                destinations.push(ether::dst(frame.bytes()));
            }
            // Middle of the load.
            if now > 5_000_000 && before.is_none() {
                before = Some(destinations.len());
                assert!(peer.send(&announcement));
            }
            now += STEP;
        }
        let (old, new) = destinations.split_at(before.unwrap());
        assert!(!old.is_empty() && old.iter().all(|mac| *mac == PEER));
        assert_eq!(new.last(), Some(&backup));
    }

    /// Returns a replay of a task every 10 us: nine of class 1, then a large one of class 2. The last is due at
    /// 9.99 ms. The columns are time in us, class, service time in us, and size in bytes.
    fn replayed(repeat: u32) -> Load {
        let line = |i: u32| match i % 10 {
            9 => format!("{},2,8,1000\n", i * 10),
            _ => format!("{},1,2.5,0\n", i * 10),
        };
        let lines: String = (0..1000).map(line).collect();
        let replay = Replay::new(replay::tests::trace(&lines), 1.0, repeat).unwrap();
        let load = Load::replaying(replay, 0.001).unwrap();
        Load { drain_s: 0.002, windows: 10, ..load }
    }

    // promise: measurement.1
    #[test]
    fn trace_is_sent_as_recorded() {
        let run = run(&replayed(2), &target(), 1024, |_| &[7_000], |_| true);
        // One of 20 milliseconds is warm-up.
        assert_eq!((run.tally.warmup.sent, run.tally.measured.answered), (100, 1900));
        assert_eq!((run.tally.measured.late, run.tally.measured.unsent), (0, 0));
        let answered = |class: usize| run.tally.classes[class].ledger.answered;
        assert_eq!((run.tally.classes.len(), answered(0), answered(1)), (2, 1710, 190));
        assert_eq!(run.frames.len(), 2000);
        for (i, frame) in run.frames.iter().enumerate() {
            // The shortest frame: 42 bytes up to UDP, 27 of the task header with its extension, and 16 of work.
            let (len, service_ns, class) =
                if i % 10 == 9 { (1000, 8_000, 2) } else { (85, 2_500, 1) };
            assert_eq!(frame.len(), len);
            let datagram = wedjat::wire::udp::parse(frame, false).unwrap();
            let payload = &frame[datagram.payload()..usize::from(datagram.end)];
            let work = Work::parse(&payload[27..]).unwrap();
            assert_eq!((work.service_ns, work.operation), (service_ns, class));
        }
    }

    // promise: measurement.1
    #[test]
    fn stalled_replay_measures_from_trace_times() {
        // Not polled from 4 to 6 ms: the 200 tasks of that time leave after it, with their lateness.
        let awake = |now| !(4_000_000..6_000_000).contains(&now);
        let run = run(&replayed(1), &target(), 1024, |_| &[7_000], awake);
        let Ledger { scheduled, sent, late, answered, .. } = run.tally.measured;
        assert_eq!((scheduled, sent, answered), (900, 900, 900));
        assert!((195..=202).contains(&late), "{late}");
        let response = run.tally.response();
        // A ninth of the tasks wait longer than a millisecond.
        assert!((900_000.0..1_100_000.0).contains(&response.quantile_ns(8.0 / 9.0)));
        assert!((1_990_000.0..2_020_000.0).contains(&response.quantile_ns(1.0)));
        assert!(run.tally.service.quantile_ns(1.0) < 8_000.0);
    }

    #[test]
    fn a_replay_that_is_stopped_ends() {
        let pool = FramePool::new(64, 1600);
        let (generator_port, _peer_port) = memory::pair(64, &pool);
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let mut generator =
            Generator::new(&replayed(1), &target, 0, HZ, generator_port, pool.clone()).unwrap();
        let mut now = 1;
        while !generator.phase().is_over() {
            generator.poll(now);
            if now == 20_001 {
                generator.stop(now);
            }
            now += STEP;
            assert!(now < 10_000_000, "it does not end");
        }
        // The tasks due at 0, 10 and 20 us, in the warm-up.
        assert_eq!((generator.tally().warmup.sent, generator.tally().measured.scheduled), (3, 0));
    }

    // promise: measurement.1
    #[test]
    fn losses_and_duplicates_are_counted() {
        for extended in [false, true] {
            let target = Target { extended, ..target() };
            // One of four tasks is lost, and one is answered twice.
            let answers: Answers = |n| match n % 4 {
                0 => &[],
                1 => &[1_000, 2_000],
                _ => &[1_000],
            };
            let run = run(&load(1e6), &target, 1024, answers, |_| true);
            let ledger = run.tally.measured;
            assert!(ledger.lost.abs_diff(ledger.sent / 4) <= 1, "{ledger:?}");
            let all = ledger.sent + run.tally.warmup.sent;
            assert!(run.tally.strays.duplicates.abs_diff(all / 4) <= 1, "{:?}", run.tally.strays);
            assert_eq!(run.tally.response().quantile_ns(0.9), f64::INFINITY);
            assert!(run.tally.response().quantile_ns(0.7).is_finite());
        }
    }

    // promise: measurement.1
    #[test]
    fn a_stalled_generator_measures_from_the_due_time() {
        // Stalls for 100 us out of every 200: tasks due in between leave late, and are answered within 1 us.
        let run = run(&load(1e6), &target(), 1024, |_| &[1_000], |now| now / 100_000 % 2 == 0);
        let ledger = run.tally.measured;
        assert_eq!(ledger.answered, ledger.scheduled);
        let adherence = ledger.adherence();
        assert!((0.4..0.6).contains(&adherence), "{adherence}");
        // A quarter of the tasks waited at least 50 us. The service time hides that, except for stalls during
        // the answers themselves.
        let response = run.tally.response().quantile_ns(0.76);
        assert!((45_000.0..60_000.0).contains(&response), "{response}");
        assert!(run.tally.service.quantile_ns(0.9) < 2_000.0);
    }

    #[test]
    fn full_wire_leaves_tasks_unsent() {
        // A wire of 4 frames without a receiver: 4 tasks of the warm-up are sent and lost.
        let pool = FramePool::new(256, 128);
        let (generator_port, peer_port) = memory::pair(4, &pool);
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let mut generator =
            Generator::new(&load(1e6), &target, 0, HZ, generator_port, pool.clone()).unwrap();
        let mut now = 0;
        while !generator.poll(now).is_over() {
            now += STEP;
        }
        let tally = generator.tally();
        let (warmup, measured) = (tally.warmup, tally.measured);
        assert_eq!((warmup.sent + measured.sent, warmup.lost), (4, 4));
        assert_eq!((measured.unsent, measured.adherence()), (measured.scheduled, 0.0));
        assert!(warmup.balances() && measured.balances() && measured.scheduled > 9_000);
        assert!(tally.tx_full > 0);
        drop((generator, peer_port));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn all_tasks_are_sent_despite_an_empty_pool() {
        // Two buffers: a task waits until the peer has freed one, and then leaves late.
        let pool = FramePool::new(2, 128);
        let (generator_port, mut peer_port) = memory::pair(1024, &pool);
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let mut generator =
            Generator::new(&load(1e6), &target, 0, HZ, generator_port, pool.clone()).unwrap();
        let (mut now, mut frames) = (0, 0);
        while !generator.poll(now).is_over() {
            frames += u64::from(peer_port.receive().is_some());
            now += STEP;
        }
        let tally = generator.tally();
        assert!(tally.pool_empty > 0);
        assert_eq!(tally.warmup.sent + tally.measured.sent, frames);
        assert_eq!(tally.measured.sent, tally.measured.scheduled);
        assert!(tally.measured.balances());
    }

    #[test]
    fn refusals_are_infinite_and_foreign_answers_ignored() {
        let pool = FramePool::new(256, 128);
        let (generator_port, mut peer_port) = memory::pair(64, &pool);
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let mut generator =
            Generator::new(&load(1e6), &target, 0, HZ, generator_port, pool.clone()).unwrap();
        let mut now = 0;
        while !generator.poll(now).is_over() {
            while let Some(mut frame) = peer_port.receive() {
                // The task itself comes back from its destination: refused. Then once with a foreign
                // application id, and once truncated.
                let bytes = frame.bytes_mut();
                // Swaps the IP addresses, at bytes 26 and 30 of the frame.
                let (src, dst) = bytes[26..34].split_at_mut(4);
                src.swap_with_slice(dst);
                assert!(peer_port.send(bytes));
                bytes[53] ^= 1; // the application id
                bytes[40..42].fill(0); // no UDP checksum
                assert!(peer_port.send(bytes));
                assert!(peer_port.send(&bytes[..20])); // a truncated frame
            }
            now += STEP;
        }
        let tally = generator.tally();
        assert_eq!(tally.measured.refused, tally.measured.sent);
        assert!(tally.measured.balances());
        assert_eq!(tally.response().quantile_ns(0.01), f64::INFINITY);
        let all = tally.warmup.sent + tally.measured.sent;
        assert_eq!((tally.strays.unknown, tally.strays.foreign), (all, all));
    }

    #[test]
    fn answers_are_checked_if_requested() {
        // Every fourth answer belongs to another task. Answers have two classes, and long and short headers.
        for extended in [false, true] {
            let pool = FramePool::new(256, 128);
            let (generator_port, mut peer_port) = memory::pair(64, &pool);
            let target = Target { next_hop_mac: Some(PEER), extended, ..target() };
            let load = Load { verify: true, ..load(1e6) };
            let mut generator =
                Generator::new(&load, &target, 0, HZ, generator_port, pool.clone()).unwrap();
            // Tasks have 16 bytes after their headers: the work.
            let oracle = Oracle::new(load.service.workload(), 16);
            // Offset of the bytes after the task header.
            let body = wedjat::wire::udp::PAYLOAD + if extended { 27 } else { 11 };
            let (mut now, mut answered) = (0, 0_u64);
            while !generator.poll(now).is_over() {
                while let Some(mut frame) = peer_port.receive() {
                    let work = Work::parse(&frame.bytes()[body..]).unwrap();
                    assert!(reflect(&mut frame, PEER));
                    // No task has the seed 1.
                    let seed = if answered.is_multiple_of(4) { 1 } else { work.seed };
                    let outcome = oracle.outcome(work.operation, seed).unwrap();
                    outcome.emit(&mut frame.bytes_mut()[body..]);
                    frame.bytes_mut()[40..42].fill(0); // no checksum
                    assert!(peer_port.send(frame.bytes()));
                    answered += 1;
                }
                now += STEP;
            }
            let Ledger { wrong, answered: measured, .. } = generator.tally().measured;
            assert_eq!(generator.tally().warmup.answered + measured, answered);
            assert!(wrong.abs_diff(measured / 4) <= 1, "{wrong} of {measured}");
            let by_class: u64 = generator.tally().classes.iter().map(|c| c.ledger.wrong).sum();
            assert_eq!(by_class, wrong);
        }
    }

    // promise: measurement.1
    #[test]
    fn the_same_seed_sends_the_same_bytes() {
        let frames_of = |seed| {
            let load = Load { seed, ..load(5e5) };
            run(&load, &target(), 1024, |_| &[0], |_| true).frames
        };
        let first = frames_of(7);
        assert!(first.len() > 4_000);
        assert_eq!(first, frames_of(7));
        assert_ne!(first, frames_of(8));
    }

    #[test]
    fn stopping_early_drains_and_balances() {
        let pool = FramePool::new(256, 128);
        let (generator_port, mut peer_port) = memory::pair(64, &pool);
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let mut generator =
            Generator::new(&load(1e6), &target, 0, HZ, generator_port, pool.clone()).unwrap();
        let mut now = 0;
        while !generator.poll(now).is_over() {
            now += STEP;
            if now == 3_000_000 {
                generator.stop(now);
            }
            while let Some(mut frame) = peer_port.receive() {
                assert!(reflect(&mut frame, PEER) && peer_port.send(frame.bytes()));
            }
        }
        let ledger = generator.tally().measured;
        // After 1 ms of warm-up, 2 ms at a million tasks per second. The drain ends with the last answer.
        assert!((1_800..2_200).contains(&ledger.answered), "{ledger:?}");
        assert!((generator.tally().measured_s - 0.002).abs() < 1e-6);
        assert_eq!(ledger.answered, ledger.scheduled);
        assert!(now < 3_100_000);
    }

    #[test]
    fn cores_pass_each_other_their_answers() {
        // The peers cross the wires: the answers to one core's tasks all reach the wrong core.
        let pool = FramePool::new(512, 128);
        let load = Load { cores: 2, ..load(1e6) };
        let target = Target { next_hop_mac: Some(PEER), ..target() };
        let exchange = AnswerExchange::between(&[load.app(0), load.app(1)]);
        let (mut cores, mut peers): (Vec<_>, Vec<_>) = (0..2)
            .zip(exchange)
            .map(|(core, exchange)| {
                let (generator_port, peer_port) = memory::pair(64, &pool);
                let mut generator =
                    Generator::new(&load, &target, core, HZ, generator_port, pool.clone()).unwrap();
                generator.join(exchange);
                (generator, peer_port)
            })
            .unzip();
        let mut now = 0;
        while cores.iter().any(|core| !core.phase().is_over()) {
            cores.iter_mut().for_each(|core| {
                core.poll(now);
            });
            for i in 0..2 {
                while let Some(mut frame) = peers[i].receive() {
                    assert!(reflect(&mut frame, PEER) && peers[1 - i].send(frame.bytes()));
                }
            }
            now += STEP;
        }
        let mut tally = cores[0].tally().clone();
        tally.merge(cores[1].tally());
        assert_eq!(tally.measured.answered, tally.measured.scheduled);
        assert_eq!((tally.strays.unknown, tally.strays.duplicates), (0, 0));
        assert!(tally.measured.balances() && tally.measured.scheduled > 9_000);
    }

    #[test]
    fn a_silent_next_hop_ends_the_run() {
        let pool = FramePool::new(16, 128);
        let (generator_port, mut peer_port) = memory::pair(4, &pool);
        let mut generator =
            Generator::new(&load(1e6), &target(), 0, HZ, generator_port, pool.clone()).unwrap();
        let (mut now, mut requests) = (1, 0);
        while !generator.poll(now).is_over() {
            requests += u64::from(peer_port.receive().is_some());
            now += 1_000_000;
        }
        assert_eq!(generator.phase(), Phase::Unresolved);
        // One request each 0.1 s, for 10 s.
        assert_eq!(requests, 100);
        assert_eq!(generator.tally().measured, Ledger::default());
    }

    #[test]
    fn run_with_resolved_next_hop_ends_well() {
        let run = run(&load(1e5), &target(), 64, |_| &[0], |_| true);
        assert_eq!(run.phase, Phase::Done);
        assert!(run.frames.iter().all(|frame| wedjat::wire::ether::dst(frame) == PEER));
    }

    #[test]
    fn frames_too_long_for_the_pool_are_refused() {
        let pool = FramePool::new(16, 128);
        let (generator_port, _peer_port) = memory::pair(4, &pool);
        let target = Target { frame_bytes: 129, ..target() };
        let error = Generator::new(&load(1e6), &target, 0, HZ, generator_port, pool).err().unwrap();
        assert!(error.to_string().contains("129 bytes"), "{error}");
    }
}
