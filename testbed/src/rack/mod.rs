//! An emulated rack: servers behind one port, with single-core workers that serve tasks first come, first served.
//!
//! Each worker has its own emulated time (see [`queues`]). If this program polls late, it sends replies late,
//! but the workers' times stay exact. The rack measures this lateness, and [`Report`] marks the run as
//! invalid if it is too large. The rack answers ARP or neighbour discovery for all its servers. A reply goes
//! to the source MAC address of its task, which is the leaf's. The rack sends no requests of its own, unless
//! its workers register with leaves and send them load reports ([`Rack::with_leaves`]).

pub mod address;
pub mod layout;
mod leaves;
pub mod outage;
pub mod queues;
mod reply;
pub mod report;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat::reason::DropReason;
use wedjat::ring::WorkerIdentity;
use wedjat::stage::rewrite;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{self, Header};
use wedjat_pktgen::payload;

pub use address::{FrameKind, RackPort, Segment};
pub use layout::{Layout, Servers};
pub use leaves::LeafOptions;
use leaves::Leaves;
pub use outage::{Outage, Outages};
use queues::{CompletedTask, Queues};
pub use reply::Reply;
pub use report::{Counts, Lateness, Report};

use arrayvec::ArrayVec;
use wedjat::limits::BURST;
use wedjat_pktgen::slices::Slices;

/// Settings of a rack besides its workers.
#[derive(Clone, Debug)]
pub struct Options {
    /// UDP port of tasks.
    pub udp_port: u16,
    /// Maximum number of tasks at all workers together. Each holds a buffer of the device's pool.
    pub outstanding_max: u32,
    /// Maximum number of tasks at one worker.
    pub queue_max: u32,
    /// Fraction of replies that the rack loses on purpose, to test the leaf's response.
    pub lose_share: f64,
    /// Seed of the choice of lost replies.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            udp_port: task::UDP_PORT,
            outstanding_max: 16_384,
            queue_max: u32::MAX,
            lose_share: 0.0,
            seed: 1,
        }
    }
}

/// The rack on one port.
pub struct Rack<P: Port> {
    port: P,
    /// Addresses of the port and of the servers behind it.
    address: RackPort,
    options: Options,
    queues: Queues<Task<P::Buf>>,
    /// True for each living worker, by place (its index in the rack).
    alive: Vec<bool>,
    /// Random numbers that select lost replies.
    loss: Xoshiro256PlusPlus,
    /// Nanoseconds per tick.
    tick_ns: f64,
    /// Received packets; empty between polls.
    incoming: Burst<P::Buf>,
    replies: Replies<P::Buf>,
    /// Answers to requests for MAC addresses.
    neighbour_answers: Burst<P::Buf>,
    /// Answers to probes.
    probe_answers: Burst<P::Buf>,
    counts: Counts,
    /// Delays of the replies after their due times.
    lateness: Lateness,
    /// Ticks per second.
    hz: f64,
    /// Leaves that receive registrations and load reports.
    leaves: Option<Leaves<P::Buf>>,
}

/// A task at its worker: the packet and its parsed fields.
struct Task<B> {
    buf: B,
    /// Position of the datagram in the packet.
    segment: Segment,
    header: Header,
    service_ns: u32,
}

/// Replies that the device has not accepted yet, with their due times.
struct Replies<B: Buf> {
    burst: Burst<B>,
    due: ArrayVec<u64, BURST>,
}

impl<P: Port> Rack<P> {
    /// Creates a rack on `port`, whose MAC address is `mac`, on a clock of `hz` ticks per second.
    #[must_use]
    pub fn new(port: P, mac: Mac, layout: Layout, options: Options, hz: f64) -> Self {
        Self {
            port,
            address: RackPort { mac, layout, udp_port: options.udp_port },
            queues: Queues::new(layout.workers(), options.outstanding_max),
            alive: vec![true; usize::from(layout.workers())],
            loss: Xoshiro256PlusPlus::seed_from_u64(options.seed),
            options,
            tick_ns: 1e9 / hz,
            incoming: Burst::new(),
            replies: Replies { burst: Burst::new(), due: ArrayVec::new() },
            neighbour_answers: Burst::new(),
            probe_answers: Burst::new(),
            counts: Counts::default(),
            lateness: Lateness::default(),
            hz,
            leaves: None,
        }
    }

    /// Adds leaves with which the workers register and to which they send load reports. These messages use
    /// buffers from `pool`.
    #[must_use]
    pub fn with_leaves(
        mut self,
        options: &LeafOptions,
        pool: impl Pool<Buf = P::Buf> + Send + 'static,
    ) -> Self {
        self.leaves = Some(Leaves::new(options, &self.address.layout, pool, self.hz));
        self
    }

    /// Sends the replies due by `now`, receives packets, and sends the workers' due messages to leaves.
    ///
    /// In this order a reply never counts a task that arrived after the reply was due.
    #[inline]
    pub fn poll(&mut self, now: u64) {
        self.send_replies(now, now);
        self.receive(now);
        if self.leaves.is_some() {
            self.send_messages(now);
        }
    }

    /// Sends the workers' messages to leaves.
    fn send_messages(&mut self, now: u64) {
        let Self { leaves, port, address, queues, alive, .. } = self;
        let Some(leaves) = leaves else { return };
        // Returns a worker's number of tasks; `None` for a dead worker.
        let tasks = |identity: WorkerIdentity| {
            let worker = address.layout.place_of(identity.id)?;
            let tasks = queues.len_at(worker).min(u32::from(u16::MAX)) as u16;
            alive[usize::from(worker)].then_some(tasks)
        };
        leaves.send_due(now, (port, address), tasks);
        [self.counts.queue_reports, self.counts.queue_reports_unsent] = leaves.sent;
    }

    /// Sends the replies of all tasks completed by `end`, until the device is full.
    #[inline]
    fn send_replies(&mut self, end: u64, now: u64) {
        loop {
            while !self.replies.burst.is_full() {
                let Some(done) = self.queues.pop(end) else { break };
                self.prepare_reply(done);
            }
            if self.replies.burst.is_empty() || !self.send(now) {
                return;
            }
        }
    }

    /// Writes the reply to a completed task and adds it to the replies to send.
    #[inline]
    fn prepare_reply(&mut self, done: CompletedTask<Task<P::Buf>>) {
        let mut task = done.task;
        if let Some(leaves) = &mut self.leaves {
            leaves.on_done(done.worker, done.left);
        }
        if self.options.lose_share > 0.0 && self.loss.random_bool(self.options.lose_share) {
            self.counts.lost_replies += 1;
            return;
        }
        let worker = self.address.layout.id(done.worker);
        let reply = Reply { worker, left: done.left, service_ns: task.service_ns };
        reply.write(task.buf.bytes_mut(), task.segment.at.into(), &task.header, self.address.mac);
        self.replies.burst.push(task.buf);
        self.replies.due.push(done.done_at);
    }

    /// Sends the replies. Returns false if the device did not accept all of them; the next poll offers the
    /// rest again.
    #[inline]
    fn send(&mut self, now: u64) -> bool {
        let sent = self.port.tx_burst(&mut self.replies.burst);
        for due in self.replies.due.drain(..sent) {
            self.lateness.record(due, ((now - due) as f64 * self.tick_ns) as u64);
        }
        self.counts.replies += sent as u64;
        let is_complete = self.replies.burst.is_empty();
        self.counts.tx_full += u64::from(!is_complete);
        is_complete
    }

    /// Receives packets, unless a full device delays the replies to completed tasks.
    #[inline]
    fn receive(&mut self, now: u64) {
        // Waits until the replies to all completed tasks are written. A task accepted before then would make their
        // queue lengths wrong.
        if self.queues.next().is_some_and(|due| due <= now)
            || self.port.rx_burst(&mut self.incoming) == 0
        {
            return;
        }
        // Starts to load all packets into the cache before the first is parsed.
        for buf in &self.incoming {
            buf.prefetch();
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        for buf in incoming.drain(..) {
            if let Err(reason) = self.process(buf, now) {
                self.counts.dropped[reason as usize] += 1;
            }
        }
        if !self.probe_answers.is_empty() {
            // Drops the answers that the device does not accept: leaves wait only briefly for an answer.
            self.counts.probe_answers += self.port.tx_burst(&mut self.probe_answers) as u64;
            self.probe_answers.clear();
        }
        if !self.neighbour_answers.is_empty() {
            // The requester repeats a request whose answer the device did not accept.
            self.counts.arp_answers += self.port.tx_burst(&mut self.neighbour_answers) as u64;
            self.neighbour_answers.clear();
        }
    }

    /// Processes a received packet.
    ///
    /// # Errors
    /// The reason why the packet is dropped.
    #[inline]
    fn process(&mut self, mut buf: P::Buf, now: u64) -> Result<(), DropReason> {
        // Reads the frame before the parser may write an answer over it.
        if let Some(leaves) = &mut self.leaves {
            leaves.receive_neighbour(buf.bytes());
        }
        match self.address.parse_frame(&mut buf)? {
            FrameKind::Acknowledgement(leaf, segment, header) => {
                let leaves = self.leaves.as_mut().ok_or(DropReason::NotAsked)?;
                let place = self.address.layout.place(header.dst, segment.server);
                let place = place.filter(|&place| self.alive[usize::from(place)]);
                let place = place.ok_or(DropReason::UnknownWorker)?;
                let tasks = self.queues.len_at(place);
                leaves.acknowledged(buf.bytes(), (leaf, &header), (place, tasks))
            }
            FrameKind::Probe(segment, header) => {
                let place = self.address.layout.place(header.dst, segment.server);
                let place = place.filter(|&place| self.alive[usize::from(place)]);
                let place = place.ok_or(DropReason::UnknownWorker)?;
                let tasks = self.queues.len_at(place).min(u32::from(u16::MAX)) as u16;
                rewrite::answer(buf.bytes_mut(), segment.at.into(), &header.answered_with(tasks));
                self.probe_answers.push(buf);
                Ok(())
            }
            FrameKind::Task(segment, header) => self.queue(buf, segment, header, now),
            FrameKind::NeighbourAnswer => {
                self.neighbour_answers.push(buf);
                Ok(())
            }
        }
    }

    /// Queues a task at its worker. Counts the task as lost if the worker is dead or has no room.
    ///
    /// # Errors
    /// The reason why the packet is no valid task for a worker of this rack.
    #[inline]
    fn queue(
        &mut self,
        buf: P::Buf,
        segment: Segment,
        header: Header,
        now: u64,
    ) -> Result<(), DropReason> {
        let Some(place) = self.address.layout.place(header.dst, segment.server) else {
            return Err(DropReason::UnknownWorker);
        };
        if header.more {
            // Only a task's last packet counts as a task and runs, for the service time in that packet.
            self.counts.parts += 1;
            return Ok(());
        }
        let work = &buf.bytes()[segment.payload()..usize::from(segment.end)];
        let service_ns = payload::service_ns(work, &header).ok_or(DropReason::TaskShort)?;
        self.counts.tasks += 1;
        // A leaf sets this bit of a task if it chose the worker from its idle list.
        self.counts.idle_picks += u64::from(header.qlen & u16::from(task::IDLE) != 0);
        self.counts.service_ns += u64::from(service_ns);
        if let Some(leaves) = self.leaves.as_mut().filter(|leaves| leaves.pool() == header.pool) {
            leaves.on_task(place, ether::src(buf.bytes()));
        }
        if !self.alive[usize::from(place)] {
            self.counts.died += 1;
        } else if self.queues.len_at(place) >= self.options.queue_max {
            self.counts.overflow += 1;
        } else {
            let ticks = (f64::from(service_ns) / self.tick_ns).round() as u64;
            let task = Task { buf, segment, header, service_ns };
            let full = self.queues.push(place, now, ticks, task).is_err();
            self.counts.overflow += u64::from(full);
        }
        Ok(())
    }

    /// Kills a worker that died at `died_at`, at or before `now`. It loses its queued tasks, and all later tasks until
    /// its revival. Tasks completed before its death are answered first, unless the device is full. Ignores an unknown
    /// id.
    pub fn kill(&mut self, worker: u16, died_at: u64, now: u64) {
        if let Some(place) = self.place(worker) {
            self.send_replies(died_at, now);
            self.alive[usize::from(place)] = false;
            self.counts.died += self.queues.clear(place) as u64;
        }
    }

    /// Revives a dead worker. It starts without tasks. Ignores an unknown id.
    pub fn revive(&mut self, worker: u16) {
        if let Some(place) = self.place(worker) {
            self.alive[usize::from(place)] = true;
        }
    }

    /// Returns the place of a worker id.
    fn place(&self, worker: u16) -> Option<u16> {
        self.address.layout.place_of(worker)
    }

    /// Returns the port. Tasks still at the workers are lost.
    #[must_use]
    pub fn into_port(self) -> P {
        self.port
    }

    /// Returns the number of tasks at the workers, plus the replies that the device has not accepted yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.queues.len() + self.replies.burst.len()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Reserves memory for the lateness of `replies` replies. With it, the report's verdict on late
    /// replies can be limited to undisturbed slices: intervals in which the machine did not stop the loop.
    pub fn log_replies(&mut self, replies: usize) {
        self.lateness.log(replies);
    }

    /// Returns the report of the run so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.report_judged_by(None)
    }

    /// Like [`Rack::report`], with a verdict on late replies over undisturbed slices, if slices are given and all
    /// replies were logged ([`Rack::log_replies`]).
    #[must_use]
    pub fn report_judged_by(&self, slices: Option<&Slices>) -> Report {
        Report::new(
            &self.counts,
            &self.lateness,
            self.address.layout.workers(),
            self.outstanding() as u64,
            slices,
        )
    }
}

#[cfg(test)]
mod tests;
