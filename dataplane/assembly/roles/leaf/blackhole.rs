//! Worker hosts that silently discard some tasks (black holes). Clients of other tasks, called honest here, are still
//! served under every policy. A simulation of clients and workers in virtual time drives the real leaf. Each case runs
//! with and without discarded tasks, and the response times of the honest clients are compared.
//!
//! A `Rig` is one core of a leaf in memory, with the far ends (`far`) of its ports `CLIENTS` and `WORKERS`. Worker ids
//! begin at 10, and the two servers have half of the workers each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::{Rng as _, SeedableRng};
use wedjat_core::policy::{CATALOGUE, Rng, Runs};

use super::*;

/// Time between two ticks of the leaf.
const TICK_NS: u64 = 100_000;
/// One-way delay between the leaf and a worker.
const HOP_NS: u64 = 5_000;
/// Time with honest clients only.
const WARM_UP_NS: u64 = 200_000_000;
/// Tasks of honest clients per second.
const HONEST: f64 = 200.0;
/// Discarded tasks per second.
const DISCARDED: f64 = 500.0;
/// Limit of an honest client's p99, as a multiple of the undisturbed p99.
const RATIO: u64 = 20;
/// Response time of a task without an answer.
const NEVER: u64 = u64::MAX;

/// Parameters of one run.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Policy of the leaf.
    policy: &'static str,
    /// Number of workers.
    workers: u16,
    /// Number of the leaf's cores.
    cores: usize,
    /// Mean service time.
    mean_ns: u64,
    /// True for exponential service times; false for equal ones.
    exponential: bool,
    /// True if tasks carry the header extension, and replies carry service times.
    extended: bool,
    /// Tasks of honest clients per second.
    honest: f64,
    /// Discarded tasks per second.
    discarded: f64,
    /// Duration in virtual seconds.
    seconds: f64,
    /// Seed of arrivals and service times.
    seed: u64,
}

/// Results of the honest clients.
#[derive(Clone, Copy, Debug)]
struct Service {
    /// Number of tasks that they sent.
    sent: usize,
    /// Number of answered tasks.
    answered: usize,
    /// Median response time in nanoseconds.
    p50: u64,
    /// 99th percentile of the response time in nanoseconds.
    p99: u64,
}

/// Event of the simulation. `worker` is a worker's index, `seq` a task's number, and `left` the worker's remaining
/// tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client sends a task.
    Arrival { honest: bool },
    /// A task reaches its worker.
    AtWorker { worker: u16, seq: u16 },
    /// A worker completes the first task of its queue.
    Done { worker: u16 },
    /// A reply reaches the leaf.
    Reply { worker: u16, seq: u16, left: u16 },
}

/// A task. Its number is its index in [`World::jobs`].
#[derive(Clone, Copy, Debug)]
struct Job {
    /// True for a task of an honest client; false for one that its worker host discards.
    honest: bool,
    /// Time at which the client sent it.
    sent_ns: u64,
    /// Its service time.
    service_ns: u64,
    /// Its response time, or [`NEVER`].
    response_ns: u64,
}

/// A leaf of some cores between clients and worker hosts.
struct World {
    case: Case,
    /// Cores of the leaf, with the far ends of their ports.
    cores: Vec<Rig>,
    /// Virtual time in nanoseconds.
    now: u64,
    /// Pending events: time, number and event, earliest first.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of the last event. It keeps events of equal time in order.
    number: u64,
    /// All tasks, by number.
    jobs: Vec<Job>,
    /// Numbers of each worker's unfinished tasks, in order of service.
    queues: Vec<VecDeque<u16>>,
    /// Random source of arrivals.
    arrivals: Rng,
    /// Random source of service times.
    services: Rng,
}

/// Draws from the exponential distribution with this mean.
fn exponential(rng: &mut Rng, mean: f64) -> u64 {
    // 53 random bits, the precision of a double, as a number from 0 up to 1. The logarithm inverts the distribution.
    let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    (-(1.0 - uniform).ln() * mean) as u64
}

/// Returns the payload of a packet with this header and nine further bytes. The extension has the service time, if the
/// case uses extensions.
fn payload_of(case: &Case, header: Header, service_ns: u64) -> Vec<u8> {
    let header = Header { extended: case.extended, ..header };
    let mut payload = vec![0; header.len() + 9];
    header.emit(&mut payload);
    if header.extended {
        let (seq32, service_ns) = (u32::from(header.seq), service_ns as u32);
        Extension { app: 3, seq32, service_ns, class: 0 }.emit(&mut payload);
    }
    payload
}

impl World {
    /// Creates a world with its first arrivals.
    fn new(case: Case) -> Self {
        let networks =
            Networks { sides: [Side::Clients, Side::Workers], registers: false, key: None };
        // The leaf knows the servers' MAC addresses, and its queue has room for 4096 tasks.
        let text = config_text(&networks, case.policy, true, case.cores, (4096, Overflow::Drop));
        let half = case.workers / 2;
        let text = text.replace("'10-13'", &format!("'10-{}'", 9 + half));
        let text = text.replace("'14-17'", &format!("'{}-{}'", 10 + half, 9 + case.workers));
        // Without a pool key, with a known client; a port holds 256 packets.
        let cores = rigs_of(&text, None, true, 256);
        let stream = |number| Rng::seed_from_u64(case.seed * 8 + number);
        let queues = vec![VecDeque::new(); usize::from(case.workers)];
        let mut world = Self {
            case,
            cores,
            now: 0,
            events: BinaryHeap::new(),
            number: 0,
            jobs: Vec::new(),
            queues,
            arrivals: stream(1),
            services: stream(2),
        };
        world.schedule_arrival(true, case.honest);
        if case.discarded > 0.0 {
            world.push(WARM_UP_NS, Event::Arrival { honest: false });
        }
        world
    }

    /// Adds an event `after_ns` from now.
    fn push(&mut self, after_ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now + after_ns, self.number, event)));
    }

    /// Adds the next arrival of a Poisson process with this rate per second.
    fn schedule_arrival(&mut self, honest: bool, rate: f64) {
        let gap = exponential(&mut self.arrivals, 1e9 / rate);
        self.push(gap, Event::Arrival { honest });
    }

    /// Runs to the end of the case, and returns the results of the honest clients.
    fn run(mut self) -> Service {
        let end = (self.case.seconds * 1e9) as u64;
        // Extra time for late answers.
        while self.now < end + 100 * TICK_NS {
            // The time advances to the next event or tick of the leaf, whichever is first.
            let tick = (self.now / TICK_NS + 1) * TICK_NS;
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            self.now = event.unwrap_or(tick).min(tick);
            while let Some(&Reverse((at, _, event))) = self.events.peek() {
                if at > self.now {
                    break;
                }
                self.events.pop();
                self.handle(event, end);
            }
            // The second poll sends packets that the first one released.
            for _ in 0..2 {
                self.poll();
            }
        }
        let honest: Vec<_> = self.jobs.iter().filter(|job| job.honest).collect();
        let mut times: Vec<_> = honest.iter().map(|job| job.response_ns).collect();
        times.sort_unstable();
        let percentile =
            |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
        Service {
            sent: times.len(),
            answered: times.iter().filter(|&&time| time != NEVER).count(),
            p50: percentile(0.5),
            p99: percentile(0.99),
        }
    }

    /// Handles an event. Schedules no further arrival after `end`.
    fn handle(&mut self, event: Event, end: u64) {
        let case = self.case;
        match event {
            Event::Arrival { honest } => {
                let rate = if honest { case.honest } else { case.discarded };
                if self.now < end {
                    self.schedule_arrival(honest, rate);
                }
                let mean = case.mean_ns;
                let drawn = exponential(&mut self.services, mean as f64).max(1);
                let service_ns = if case.exponential { drawn } else { mean };
                let seq = self.jobs.len() as u16;
                self.jobs.push(Job { honest, sent_ns: self.now, service_ns, response_ns: NEVER });
                let payload = payload_of(&case, Header::new_task(7, seq), 0);
                let core = self.arrivals.next_u64() as usize % self.cores.len();
                assert!(self.cores[core].far[CLIENTS].send(&frame(&client_flow(), &payload)));
            }
            // The host discards this task.
            Event::AtWorker { seq, .. } if !self.jobs[usize::from(seq)].honest => {}
            Event::AtWorker { worker, seq } => {
                let queue = &mut self.queues[usize::from(worker)];
                queue.push_back(seq);
                if queue.len() == 1 {
                    let service_ns = self.jobs[usize::from(seq)].service_ns;
                    self.push(service_ns, Event::Done { worker });
                }
            }
            Event::Done { worker } => {
                let queue = &mut self.queues[usize::from(worker)];
                let seq = queue.pop_front().unwrap();
                let (next, left) = (queue.front().copied(), queue.len() as u16);
                if let Some(next) = next {
                    let service_ns = self.jobs[usize::from(next)].service_ns;
                    self.push(service_ns, Event::Done { worker });
                }
                self.push(HOP_NS, Event::Reply { worker, seq, left });
            }
            Event::Reply { worker, seq, left } => {
                let service_ns = self.jobs[usize::from(seq)].service_ns;
                let header = Header { seq, ..done(10 + worker, left) };
                let payload = payload_of(&case, header, service_ns);
                let server = usize::from(worker >= case.workers / 2);
                let flow = Flow {
                    src_mac: server_mac(server),
                    dst_mac: LEAF_MACS[WORKERS],
                    src: SERVERS[server],
                    dst: CLIENT,
                    src_port: 1234,
                    dst_port: 40_000,
                };
                // The network card may deliver a reply to any core.
                let core = self.services.next_u64() as usize % self.cores.len();
                assert!(self.cores[core].far[WORKERS].send(&frame(&flow, &payload)));
            }
        }
    }

    /// Polls all cores. Their packets to workers become events, and those to clients complete tasks.
    fn poll(&mut self) {
        for core in 0..self.cores.len() {
            let rig = &mut self.cores[core];
            rig.now = self.now;
            rig.leaf.poll(self.now);
            let (tasks, answers) = (rig.receive(WORKERS), rig.receive(CLIENTS));
            for frame in tasks {
                let Ok(datagram) = udp::parse(frame.bytes(), false) else { continue };
                let header = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap();
                let (worker, seq) = (header.dst - 10, header.seq);
                self.push(HOP_NS, Event::AtWorker { worker, seq });
            }
            for frame in answers {
                let Ok(datagram) = udp::parse(frame.bytes(), false) else { continue };
                let header = Header::parse(&frame.bytes()[datagram.payload()..]).unwrap();
                let job = &mut self.jobs[usize::from(header.seq)];
                job.response_ns = self.now - job.sent_ns;
            }
        }
    }
}

/// Runs a case with and without discarded tasks, and returns the figures. Fails if honest clients lack more than 2% of
/// their answers. Fails if their p99 reaches [`RATIO`] times the undisturbed one. A missing answer counts as [`NEVER`].
/// So a case with more than 1% of missing answers fails by its p99.
fn check(case: Case) -> Result<String, String> {
    let alone = World::new(Case { discarded: 0.0, ..case }).run();
    let served = World::new(case).run();
    let figures = format!(
        "{} workers={} cores={} mean={}us exp={} ext={}: answered {}/{}, p50 {} us for {}, p99 {} us for {} us",
        case.policy,
        case.workers,
        case.cores,
        case.mean_ns / 1000,
        case.exponential,
        case.extended,
        served.answered,
        served.sent,
        served.p50 / 1000,
        alone.p50 / 1000,
        served.p99 / 1000,
        alone.p99 / 1000,
    );
    let holds = alone.p99 < NEVER / RATIO
        && 100 * served.answered >= 98 * served.sent
        && served.p99 < RATIO * alone.p99;
    if holds { Ok(figures) } else { Err(figures) }
}

/// Case whose parameters the tests change.
const CASE: Case = Case {
    policy: "jbsq(k=2)",
    workers: 4,
    cores: 1,
    mean_ns: 10_000,
    exponential: true,
    extended: true,
    honest: HONEST,
    discarded: DISCARDED,
    seconds: 2.0,
    seed: 1,
};

/// Checks all cases before it fails, so that the failure shows each.
fn assert_all(cases: impl Iterator<Item = Case>) {
    let outcomes: Vec<_> = cases.map(check).collect();
    for outcome in &outcomes {
        println!("{outcome:?}");
    }
    let failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Cases of a bounded policy, which limits the tasks at a worker and queues the rest: short and long tasks, few and
/// many workers, one and two cores, with and without service times.
fn bounded(policy: &'static str) -> impl Iterator<Item = Case> {
    let services = [(10_000, true), (1_000_000, true)];
    services.into_iter().flat_map(move |(mean_ns, exponential)| {
        [(4, 1), (4, 2), (32, 1), (32, 2)].into_iter().flat_map(move |(workers, cores)| {
            [false, true].map(|extended| Case {
                policy,
                workers,
                cores,
                mean_ns,
                exponential,
                extended,
                ..CASE
            })
        })
    })
}

// promise: scheduling.4
#[test]
fn black_hole_does_not_stop_jbsq() {
    assert_all(bounded("jbsq(k=2)"));
}

// promise: scheduling.4
#[test]
fn black_hole_does_not_stop_jbsq_of_one() {
    assert_all(bounded("jbsq(k=1)"));
}

// promise: scheduling.4
#[test]
fn black_hole_does_not_stop_cfcfs() {
    assert_all(bounded("cfcfs"));
}

// promise: scheduling.4
#[test]
fn black_hole_does_not_stop_eft() {
    assert_all(bounded("eft"));
}

// promise: scheduling.4
#[test]
fn black_hole_stops_no_policy() {
    // Policies without a queue. The bounded ones, jbsq, cfcfs and eft, have the tests above.
    let policies = CATALOGUE.iter().filter(|entry| entry.runs == Runs::Leaf);
    // One or two cores, and with or without extensions, in turn.
    assert_all(policies.enumerate().map(|(index, entry)| Case {
        policy: entry.name,
        cores: 1 + index % 2,
        mean_ns: 100_000,
        extended: index / 2 % 2 == 0,
        ..CASE
    }));
}
