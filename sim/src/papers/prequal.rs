//! Prequal (NSDI'24): clients choose servers by answers to probes, which they collect in a pool before they need them.
//!
//! A query does not wait for probes. Each answer has the server's number of requests in flight and its latency
//! ([`pool`]). The servers share machines with other jobs, the antagonists. Therefore their cores vary in number and
//! speed ([`server`]). The unit of time is the millisecond.
//!
//! Algorithm and parameters of probing are those of write-ups of the paper, and the numbers of clients and servers are
//! those of its testbed. The machines, their antagonists ([`Antagonists`]), the delays and the smoothing of weights are
//! our assumptions. The paper's runs take minutes per load. With 200 000 queries, a run at load 1 simulates 40 s.
//!
//! Probes of idle clients, timeouts of probes and the synchronous mode are not simulated.

mod experiments;
pub mod pool;
pub mod server;

use hdrhistogram::Histogram;
use rand_distr::{Distribution, Exp1};
use wedjat_workload::seed::{Stream, StreamSeed};
use wedjat_workload::service::Service;

use super::{Claim, Run, WARMUP, index, quantile, ticks_of, two_indices, unit};
use crate::engine::{Engine, NextEvent, SimTask};
use crate::events::event;
use crate::outcome::Outcome;
use crate::stats::{histogram, record};
use pool::{Answer, Pool, Probing, Rule};
use server::Server;

/// Ticks per millisecond.
const MS: u64 = 1_000_000_000;
/// Time after which a client gives up a query.
const DEADLINE: u64 = 5_000 * MS;
/// Delay of a query to its server. Its answer arrives at once.
const DELAY: u64 = MS / 4;
/// Round trip of a probe. The answer shows the server at its end.
const PROBE_DELAY: u64 = MS / 2;
/// Interval between updates of the weights, and between samples.
const UPDATE: u64 = 1_000 * MS;
/// Interval between polls of all servers.
const POLL: u64 = 500 * MS;
/// Weight of the last interval in the smoothed goodput and CPU use.
const SMOOTHING: f64 = 0.3;
/// Smallest weight relative to a full one, so that each server receives some queries.
const WEIGHT_MIN: f64 = 0.01;
/// Usual latency of a server with one request in flight, for rules that add requests to latencies.
const USUAL: u64 = 75 * MS;
/// Parameters of probing in most of the paper's experiments.
const PROBING: Probing =
    Probing { size: 16, probes: 3.0, removals: 1.0, delta: 1.0, age_max: 1_000 * MS };
/// Quantile of the hot-cold rule in most of the paper's experiments: 2 to the power of -1/4, rounded.
const QUANTILE: f64 = 0.84;

/// Kinds of events, in addition to `event::DONE`. The argument of that is version << 16 | server.
mod kind {
    use crate::events::event;

    /// A query arrives at its server.
    pub const AT_SERVER: u64 = event::AT_WORKER;
    /// The answer to a probe arrives. The argument is client << 16 | server.
    pub const ANSWER: u64 = event::REPLY;
    /// A client gives up a query. The argument is number << 24 | slot.
    pub const DEADLINE: u64 = 4;
    /// The antagonists of a server change.
    pub const ANTAGONISTS: u64 = 5;
    /// The weights are updated.
    pub const UPDATE: u64 = 6;
    /// The servers are polled and sampled.
    pub const POLL: u64 = 7;
}

/// Other jobs on the servers' machines. Each server draws the load of its antagonists, from 0 to 1, at random times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Antagonists {
    /// Probability of full load. Otherwise the load is uniform.
    pub full: f64,
    /// Cores beyond the allocation that a server has without antagonists, relative to the allocation.
    pub spare: f64,
    /// Relative loss of speed at full load. It grows with the square of the load.
    pub contention: f64,
    /// Mean time between changes, in seconds.
    pub interval_s: f64,
    /// Speed of every second server.
    pub slow: f64,
}

impl Antagonists {
    /// Returns the mean speed of a core without antagonists.
    fn mean_speed(&self) -> f64 {
        (1.0 + self.slow) / 2.0
    }
}

/// Choice of servers by clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection {
    /// A random server.
    Random,
    /// All servers in turn.
    RoundRobin,
    /// In turn, weighted by smoothed goodput over smoothed CPU use.
    Weighted,
    /// The server with the fewest outstanding queries of this client.
    LeastLoaded,
    /// The one of two random servers with fewer outstanding queries of this client.
    LeastLoadedOfTwo,
    /// The one of two random servers with fewer requests in flight at the last poll.
    PolledOfTwo,
    /// By the pool of answers to probes.
    Probes(Rule, Probing),
}

impl Selection {
    /// Prequal with the usual parameters.
    pub const PREQUAL: Self = Self::Probes(Rule::HotCold(QUANTILE), PROBING);
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of clients, at most 65 536.
    pub clients: usize,
    /// Number of servers, at least 2 and at most 65 536.
    pub servers: usize,
    /// Number of cores of a server's allocation.
    pub cores: f64,
    /// CPU time of a query at speed 1.
    pub service: Service,
    /// Offered work as a fraction of all allocations, each multiplied by its server's speed.
    pub load: f64,
    /// Other jobs.
    pub antagonists: Antagonists,
    /// Choice of servers.
    pub selection: Selection,
    /// Number of queries.
    pub tasks: u64,
    /// Seed of all streams.
    pub seed: u64,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Results {
    /// Response times, in milliseconds. A query without an answer counts as answered at its deadline.
    pub outcome: Outcome,
    /// Queries without an answer at their deadline.
    pub errors: u64,
    /// Probes.
    pub probes: u64,
    /// Samples of the servers' requests in flight, after the first tenth of the run.
    pub in_flight: Histogram<u64>,
    /// Standard deviation over the mean of the servers' CPU use, in samples of a second.
    pub cpu_variation: f64,
}

impl Results {
    /// Returns a quantile of the response time in milliseconds.
    fn ms(&self, q: f64) -> f64 {
        quantile(&self.outcome, q)
    }

    /// Returns the 99th percentile of the requests in flight.
    fn in_flight_p99(&self) -> f64 {
        self.in_flight.value_at_quantile(0.99) as f64
    }
}

/// Data of a query besides those of [`SimTask`].
#[derive(Clone, Copy, Debug)]
struct Query {
    client: u16,
    /// Requests in flight that it found at its server.
    found: u32,
    /// See [`Server::add`]; `None` on the way to the server.
    end: Option<u64>,
}

/// A client.
#[derive(Clone, Debug)]
struct Client {
    pool: Pool,
    /// Outstanding queries at each server.
    outstanding: Vec<u32>,
    /// Virtual time of each server's next turn. Turns of a server of weight w are 1 / w apart.
    turns: Vec<f64>,
    /// Probes that are due, with the fraction of the next one.
    probes_due: f64,
    /// Removals that are due, with the fraction of the next one.
    removals_due: f64,
}

/// Weight of a server, and the smoothed values that define it.
#[derive(Clone, Copy, Debug)]
struct Weight {
    weight: f64,
    /// Smoothed completions per interval.
    goodput: f64,
    /// Smoothed CPU time per interval, in ticks.
    used: f64,
    /// Completions of this interval.
    completed: u32,
    /// CPU time used at the start of this interval.
    used_before: f64,
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    engine: Engine<Query>,
    clients: Vec<Client>,
    servers: Vec<Server>,
    weights: Vec<Weight>,
    /// Requests in flight of each server at the last poll.
    polled: Vec<u32>,
    /// Stream of the queries' clients.
    arrivals: Stream,
    /// Stream of the clients' choices.
    choices: Stream,
    /// Stream of each server's antagonists. Separate, so that these are equal under all selections.
    antagonists: Vec<Stream>,
    errors: u64,
    in_flight: Histogram<u64>,
    /// Number of samples of the CPU use of a server, their sum, and the sum of their squares.
    cpu_samples: (f64, f64, f64),
}

/// Runs the model.
#[must_use]
pub fn run(config: &Config) -> Results {
    let mut sim = Sim::new(config);
    while let Some(due) = sim.engine.next(u64::MAX) {
        match due {
            NextEvent::Event(kind::AT_SERVER, task) => sim.at_server(task as u32),
            NextEvent::Event(event::DONE, argument) => {
                sim.done((argument & 0xFFFF) as usize, argument >> 16);
            }
            NextEvent::Event(kind::ANSWER, argument) => {
                sim.answer((argument >> 16) as usize, (argument & 0xFFFF) as usize);
            }
            NextEvent::Event(kind::DEADLINE, argument) => {
                sim.give_up((argument & 0xFF_FFFF) as u32, argument >> 24);
            }
            NextEvent::Event(kind::ANTAGONISTS, server) => sim.change_antagonists(server as usize),
            NextEvent::Event(kind::UPDATE, _) => sim.update(),
            NextEvent::Event(..) => sim.poll(),
            // There is no timer.
            NextEvent::Arrival | NextEvent::Timer => sim.arrive(),
        }
    }
    sim.finish()
}

impl<'a> Sim<'a> {
    /// Creates a run with idle servers.
    fn new(config: &'a Config) -> Self {
        let Config { clients, servers, load, tasks, seed, .. } = *config;
        let capacity = servers as f64 * config.cores * config.antagonists.mean_speed();
        let rate_pps = load * capacity / config.service.mean_ns() * 1e9;
        let stream = |purpose, index| StreamSeed::derive(seed, purpose, index).stream();
        let mut turns = stream("turns", 0);
        let client = || Client {
            pool: Pool::default(),
            outstanding: vec![0; servers],
            turns: (0..servers).map(|_| unit(&mut turns)).collect(),
            probes_due: 0.0,
            removals_due: 0.0,
        };
        let weight =
            Weight { weight: 1.0, goodput: 0.0, used: 0.0, completed: 0, used_before: 0.0 };
        let mut sim = Self {
            config,
            engine: Run { tasks, rate_pps, workers: servers, seed }.engine(),
            clients: std::iter::repeat_with(client).take(clients).collect(),
            servers: vec![Server::new(config.cores); servers],
            weights: vec![weight; servers],
            polled: vec![0; servers],
            arrivals: stream("clients", 0),
            choices: stream("choices", 0),
            antagonists: (0..servers as u32).map(|server| stream("antagonists", server)).collect(),
            errors: 0,
            in_flight: histogram(),
            cpu_samples: (0.0, 0.0, 0.0),
        };
        (0..servers).for_each(|server| sim.change_antagonists(server));
        sim.engine.after(UPDATE, kind::UPDATE, 0);
        sim.engine.after(POLL, kind::POLL, 0);
        sim
    }

    /// Adds a query of a random client, which sends it at once.
    fn arrive(&mut self) {
        let client = index(&mut self.arrivals, self.config.clients);
        let query = Query { client: client as u16, found: 0, end: None };
        let task = self.engine.arrive(&self.config.service, ticks_of, query);
        let server = self.select(client);
        self.clients[client].outstanding[server] += 1;
        let flight = &mut self.engine.flights[task];
        flight.worker = server as u32;
        let deadline = flight.number << 24 | u64::from(task);
        self.engine.after(DELAY, kind::AT_SERVER, task.into());
        self.engine.after(DEADLINE, kind::DEADLINE, deadline);
    }

    /// Chooses the server of a client's query.
    fn select(&mut self, client: usize) -> usize {
        let servers = self.config.servers;
        match self.config.selection {
            Selection::Random => index(&mut self.choices, servers),
            Selection::RoundRobin | Selection::Weighted => self.next_turn(client),
            Selection::LeastLoaded => {
                let first = index(&mut self.choices, servers);
                let outstanding = &self.clients[client].outstanding;
                let in_order = (0..servers).map(|offset| (first + offset) % servers);
                in_order.min_by_key(|&server| outstanding[server]).unwrap_or(first)
            }
            Selection::LeastLoadedOfTwo => {
                let (first, second) = two_indices(&mut self.choices, self.config.servers);
                let outstanding = &self.clients[client].outstanding;
                if outstanding[second] < outstanding[first] { second } else { first }
            }
            Selection::PolledOfTwo => {
                let (first, second) = two_indices(&mut self.choices, self.config.servers);
                if self.polled[second] < self.polled[first] { second } else { first }
            }
            Selection::Probes(rule, probing) => self.select_by_probes(client, rule, &probing),
        }
    }

    /// Returns the server with the earliest next turn at this client, and advances its turn.
    fn next_turn(&mut self, client: usize) -> usize {
        let turns = &mut self.clients[client].turns;
        let next = turns.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        let server = next.map_or(0, |(server, _)| server);
        turns[server] += 1.0 / self.weights[server].weight;
        server
    }

    /// Chooses a server from the client's pool, or at random if the pool is too small. Also sends the due probes, and
    /// makes the due removals.
    fn select_by_probes(&mut self, client: usize, rule: Rule, probing: &Probing) -> usize {
        let servers = self.config.servers;
        self.probe(client, probing);
        let Client { pool, removals_due, .. } = &mut self.clients[client];
        pool.expire(self.engine.now, probing);
        let chosen = pool.choose(rule, USUAL);
        *removals_due += probing.removals;
        while *removals_due >= 1.0 {
            *removals_due -= 1.0;
            pool.remove(rule, USUAL);
        }
        chosen.unwrap_or_else(|| index(&mut self.choices, servers))
    }

    /// Sends the client's probes that are due, to different random servers.
    fn probe(&mut self, client: usize, probing: &Probing) {
        let due = &mut self.clients[client].probes_due;
        *due += probing.probes;
        let count = (*due as usize).min(self.config.servers);
        *due -= count as f64;
        let mut probed: Vec<usize> = Vec::new();
        while probed.len() < count {
            let server = index(&mut self.choices, self.config.servers);
            if !probed.contains(&server) {
                probed.push(server);
                let argument = (client as u64) << 16 | server as u64;
                self.engine.after(PROBE_DELAY, kind::ANSWER, argument);
                self.engine.messages += 1;
            }
        }
    }

    /// Adds a server's answer to the client's pool.
    fn answer(&mut self, client: usize, server: usize) {
        let Selection::Probes(_, probing) = self.config.selection else { return };
        let answer = Answer {
            server,
            in_flight: self.servers[server].in_flight(),
            latency: self.servers[server].latency(),
            received: self.engine.now,
            uses: probing.draw_uses(self.config.servers, &mut self.choices),
        };
        self.clients[client].pool.add(answer, &probing);
    }

    /// Adds a query to its server.
    fn at_server(&mut self, task: u32) {
        let flight = &mut self.engine.flights[task];
        let server = flight.worker as usize;
        flight.started = self.engine.now;
        flight.route.found = self.servers[server].in_flight();
        flight.route.end = Some(self.servers[server].add(self.engine.now, task, flight.service));
        self.schedule_completion(server);
    }

    /// Schedules the next completion of a server. Its former completion becomes obsolete.
    fn schedule_completion(&mut self, server: usize) {
        if let Some(time) = self.servers[server].next() {
            let argument = self.servers[server].version() << 16 | server as u64;
            self.engine.events.push(time, event::pack(event::DONE, argument));
        }
    }

    /// Completes the next query of a server, unless the completion is obsolete.
    fn done(&mut self, server: usize, version: u64) {
        let now = self.engine.now;
        if self.servers[server].version() != version {
            return;
        }
        let Some(task) = self.servers[server].complete(now) else { return };
        self.schedule_completion(server);
        let SimTask { started, route, .. } = self.engine.flights[task];
        self.servers[server].record(route.found, now - started);
        self.weights[server].completed += 1;
        self.end(task);
    }

    /// Gives up a query that has no answer at its deadline. Its server stops it, and counts the time as its latency.
    fn give_up(&mut self, task: u32, number: u64) {
        let Some(&SimTask { worker, started, route, .. }) =
            self.engine.flights.get(task).filter(|flight| flight.number == number)
        else {
            return;
        };
        let (server, now) = (worker as usize, self.engine.now);
        if let Some(end) = route.end {
            self.servers[server].remove(now, end, task);
            self.servers[server].record(route.found, now - started);
            self.schedule_completion(server);
        }
        self.errors += 1;
        self.end(task);
    }

    /// Ends a query, with or without an answer.
    fn end(&mut self, task: u32) {
        let SimTask { worker, route, .. } = self.engine.flights[task];
        self.clients[usize::from(route.client)].outstanding[worker as usize] -= 1;
        self.engine.complete(task, worker as usize);
        self.engine.flights.remove(task);
    }

    /// Draws the antagonists of a server, and the time of their next change.
    fn change_antagonists(&mut self, server: usize) {
        let Antagonists { full, spare, contention, interval_s, slow } = self.config.antagonists;
        let stream = &mut self.antagonists[server];
        let load = if unit(stream) < full { 1.0 } else { unit(stream) };
        let gap: f64 = Exp1.sample(stream);
        let own_speed = if server % 2 == 1 { slow } else { 1.0 };
        let speed = own_speed * (1.0 - contention * load * load);
        let cores = self.config.cores * (1.0 + spare * (1.0 - load));
        self.servers[server].set_cores(self.engine.now, cores, speed);
        self.schedule_completion(server);
        let ticks = (gap * interval_s * 1e3 * MS as f64) as u64;
        self.engine.after(ticks, kind::ANTAGONISTS, server as u64);
    }

    /// Updates the weights of all servers by the last interval, and samples their CPU use.
    fn update(&mut self) {
        let now = self.engine.now;
        let is_measured = self.is_measured();
        for (weight, server) in self.weights.iter_mut().zip(&mut self.servers) {
            let total = server.used(now);
            let used = total - std::mem::replace(&mut weight.used_before, total);
            let completed = f64::from(std::mem::take(&mut weight.completed));
            weight.goodput += SMOOTHING * (completed - weight.goodput);
            weight.used += SMOOTHING * (used - weight.used);
            if is_measured {
                let share = used / (UPDATE as f64 * self.config.cores);
                let (count, sum, squares) = self.cpu_samples;
                self.cpu_samples = (count + 1.0, sum + share, squares + share * share);
            }
        }
        // Queries per CPU second: relative to the mean, so that the weights are near 1.
        let goodput: f64 = self.weights.iter().map(|weight| weight.goodput).sum();
        let used: f64 = self.weights.iter().map(|weight| weight.used).sum();
        let weighs = self.config.selection == Selection::Weighted && goodput > 0.0;
        for weight in self.weights.iter_mut().filter(|weight| weighs && weight.used > 0.0) {
            weight.weight = (weight.goodput / weight.used * used / goodput).max(WEIGHT_MIN);
        }
        self.engine.after(UPDATE, kind::UPDATE, 0);
    }

    /// Returns true after the warm-up, as long as queries arrive.
    fn is_measured(&self) -> bool {
        let arrived = self.engine.recorder.arrived();
        self.engine.remaining > 0 && arrived > (self.config.tasks as f64 * WARMUP) as u64
    }

    /// Polls all servers, and samples their requests in flight.
    fn poll(&mut self) {
        let is_measured = self.is_measured();
        for (polled, server) in self.polled.iter_mut().zip(&self.servers) {
            *polled = server.in_flight();
            if is_measured {
                record(&mut self.in_flight, (*polled).into());
            }
        }
        self.engine.after(POLL, kind::POLL, 0);
    }

    /// Returns the results.
    fn finish(self) -> Results {
        let (count, sum, squares) = self.cpu_samples;
        let mean = sum / count;
        Results {
            errors: self.errors,
            probes: self.engine.messages,
            in_flight: self.in_flight,
            cpu_variation: (squares / count - mean * mean).max(0.0).sqrt() / mean,
            outcome: self.engine.finish(MS as f64),
        }
    }
}

/// Runs the paper's experiments.
pub(super) fn claims(tasks: u64, seed: u64) -> Vec<Claim> {
    experiments::claims(tasks, seed)
}

#[cfg(test)]
mod tests {
    use super::super::measured;
    use super::*;
    use crate::papers::service;

    /// Machines whose antagonists change often, and slow the servers.
    const ANTAGONISTS: Antagonists =
        Antagonists { full: 0.2, spare: 3.0, contention: 0.4, interval_s: 5.0, slow: 1.0 };

    /// Returns the configuration of a short run.
    fn config(load: f64, selection: Selection) -> Config {
        Config {
            clients: 20,
            servers: 20,
            cores: 1.0,
            service: service("normal(62500us,62500us)"),
            load,
            antagonists: ANTAGONISTS,
            selection,
            tasks: 8_000,
            seed: 1,
        }
    }

    #[test]
    fn each_query_ends_once() {
        let selections = [
            Selection::Random,
            Selection::RoundRobin,
            Selection::Weighted,
            Selection::LeastLoaded,
            Selection::LeastLoadedOfTwo,
            Selection::PolledOfTwo,
            Selection::PREQUAL,
        ];
        for selection in selections {
            // The overload lets some queries miss their deadline.
            let results = run(&config(2.5, selection));
            let measured = measured(&results.outcome);
            assert_eq!((results.outcome.lost, measured), (0, 7_200), "{selection:?}");
            assert!(results.errors > 0, "{selection:?}");
            assert!((results.ms(1.0) - 5_000.0).abs() < 5.0, "{selection:?}");
        }
    }

    #[test]
    fn probes_have_the_configured_rate() {
        for (probes, sent) in [(3.0, 24_000.0), (0.5, 4_000.0)] {
            let probing = Probing { probes, ..PROBING };
            let results = run(&config(0.7, Selection::Probes(Rule::HotCold(QUANTILE), probing)));
            // Each of the 20 clients may keep a part of a probe.
            assert!((results.probes as f64 - sent).abs() <= 20.0, "{}", results.probes);
        }
        assert_eq!(run(&config(0.7, Selection::Random)).probes, 0);
    }

    #[test]
    fn slow_server_gets_a_lower_weight() {
        // Equal antagonists on all servers, of which every second one is slow.
        let antagonists = Antagonists { full: 1.0, slow: 0.5, ..ANTAGONISTS };
        let config = Config { antagonists, ..config(0.5, Selection::Weighted) };
        let mut sim = Sim::new(&config);
        while let Some(due) = sim.engine.next(60_000 * MS)
            && !matches!(due, NextEvent::Timer)
        {
            match due {
                NextEvent::Arrival => sim.arrive(),
                NextEvent::Event(kind::AT_SERVER, task) => sim.at_server(task as u32),
                NextEvent::Event(event::DONE, argument) => {
                    sim.done((argument & 0xFFFF) as usize, argument >> 16);
                }
                NextEvent::Event(kind::UPDATE, _) => sim.update(),
                _ => {}
            }
        }
        let weights: Vec<_> = sim.weights.iter().map(|weight| weight.weight).collect();
        let sum = |first: usize| weights.iter().skip(first).step_by(2).sum::<f64>();
        assert!((sum(0) / sum(1) - 2.0).abs() < 0.3, "{weights:?}");
    }
}
