//! NetClone (SIGCOMM'23): a switch sends a request to two servers if both are idle, and drops the slower reply.
//!
//! Each request has a random ordered pair of servers. The switch stores the queue length that each server last reported
//! in a reply. If both queues of the pair are empty, the switch sends a clone to the second server. A server drops a
//! clone if tasks wait. The copies of a request have independent service times, because the paper's servers draw them.
//!
//! The rules are those of the authors' program. The delays of their testbed are not known. Here a hop takes 1 us, and a
//! clone 1 us more for its second pass through the switch. LAEDGE, another baseline of the paper, is not simulated.

use rand::Rng as _;
use wedjat_workload::seed::{Stream, StreamSeed};
use wedjat_workload::service::Service;

use super::experiment::sustained_load;
use super::{Claim, Run, quantile, service, ticks_of, two_indices, unit};
use crate::engine::{Engine, NextEvent, SimTask};
use crate::events::event;
use crate::hop::TICKS_PER_US;
use crate::outcome::Outcome;

/// Delay of a hop between client, switch and server, in ticks.
const HOP: u64 = TICKS_PER_US as u64;
/// Delay of a clone's second pass through the switch, in ticks.
const RECIRCULATION: u64 = TICKS_PER_US as u64;
/// Number of slots of a filter table.
const FILTER_SLOTS: usize = 1 << 17;
/// Factor of the service time of a copy with jitter.
const JITTER: u64 = 15;

/// Kinds of events. A reply has two: its arrivals at the switch and at the client.
mod kind {
    use crate::events::event;

    /// A request arrives at the switch.
    pub const AT_SWITCH: u64 = event::AT_LEAF;
    /// A copy arrives at its server.
    pub const AT_SERVER: u64 = event::AT_WORKER;
    /// A reply arrives at the switch.
    pub const REPLY: u64 = event::REPLY;
    /// A reply arrives at the client.
    pub const AT_CLIENT: u64 = event::REPLY + 1;
}

/// Condition for a second copy of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloning {
    /// Never.
    Never,
    /// Always: the client sends both copies, and no server drops one (C-Clone).
    Always,
    /// If both servers of the pair reported an empty queue (NetClone).
    BothIdle,
}

/// Choice of the servers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Condition for a second copy.
    pub cloning: Cloning,
    /// True if a request without a clone goes to the server of the pair with the shorter reported queue (RackSched).
    /// Otherwise it goes to the first one.
    pub shorter: bool,
}

impl Scheme {
    /// A random server.
    pub const RANDOM: Self = Self { cloning: Cloning::Never, shorter: false };
    /// Two random servers.
    pub const C_CLONE: Self = Self { cloning: Cloning::Always, shorter: false };
    /// NetClone.
    pub const NETCLONE: Self = Self { cloning: Cloning::BothIdle, shorter: false };
    /// RackSched: power of two choices by reported queues.
    pub const RACKSCHED: Self = Self { cloning: Cloning::Never, shorter: true };
    /// NetClone with RackSched.
    pub const BOTH: Self = Self { cloning: Cloning::BothIdle, shorter: true };
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of servers, at least 2.
    pub servers: usize,
    /// Number of workers of each server, which share its queue.
    pub workers: u32,
    /// Service times without jitter.
    pub service: Service,
    /// Probability that a copy takes 15 times its service time.
    pub jitter: f64,
    /// Offered work without clones, as a fraction of the workers' capacity.
    pub load: f64,
    /// Choice of the servers.
    pub scheme: Scheme,
    /// Number of requests.
    pub tasks: u64,
    /// Seed of all streams.
    pub seed: u64,
}

/// Numbers of copies and replies of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests with a clone.
    pub cloned: u64,
    /// Clones that servers dropped.
    pub dropped: u64,
    /// Slower replies that the switch dropped.
    pub filtered: u64,
    /// Slower replies that reached the client.
    pub duplicates: u64,
}

/// Role of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A copy that the switch neither cloned nor filters.
    Plain,
    /// The first copy of a cloned request.
    Original,
    /// The second copy.
    Clone,
}

/// Data of a copy besides those of [`SimTask`].
#[derive(Clone, Copy, Debug)]
struct CopyData {
    role: Role,
    /// Index of the filter table.
    table: u8,
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    /// Engine with one worker for each server, which holds the server's waiting tasks.
    engine: Engine<CopyData>,
    /// Number of busy workers of each server.
    busy: Vec<u32>,
    /// Queue length that each server last reported.
    reported: Vec<u32>,
    /// Sequence number of the request in each slot of the filter tables; 0 in an empty slot.
    filters: [Vec<u64>; 2],
    /// For each request: true if a reply has reached the client.
    answered: Vec<bool>,
    /// Stream of the clients' choices.
    choices: Stream,
    /// Stream of the jitter of first copies.
    jitter: Stream,
    /// Stream of service times and jitter of clones. Separate, so that first copies are equal under all schemes.
    clones: Stream,
    counts: Counts,
}

/// Runs the model.
#[must_use]
pub fn run(config: &Config) -> (Outcome, Counts) {
    let mut sim = Sim::new(config);
    while let Some(due) = sim.engine.next(u64::MAX) {
        match due {
            NextEvent::Event(kind::AT_SWITCH, task) => sim.at_switch(task as u32),
            NextEvent::Event(kind::AT_SERVER, task) => sim.at_server(task as u32),
            NextEvent::Event(event::DONE, task) => sim.done(task as u32),
            NextEvent::Event(kind::REPLY, task) => sim.reply(task as u32),
            NextEvent::Event(_, task) => sim.at_client(task as u32),
            // There is no timer.
            NextEvent::Arrival | NextEvent::Timer => sim.arrive(),
        }
    }
    (sim.engine.finish(TICKS_PER_US), sim.counts)
}

impl Config {
    /// Returns the mean service time with jitter, in nanoseconds.
    fn mean_ns(&self) -> f64 {
        self.service.mean_ns() * (1.0 + (JITTER - 1) as f64 * self.jitter)
    }

    /// Returns the requests per second at load 1.
    fn capacity_pps(&self) -> f64 {
        self.servers as f64 * f64::from(self.workers) / self.mean_ns() * 1e9
    }

    /// Draws a service time with jitter, in ticks, from a service time without.
    fn with_jitter(&self, ticks: u64, rng: &mut Stream) -> u64 {
        if unit(rng) < self.jitter { JITTER * ticks } else { ticks }
    }
}

impl<'a> Sim<'a> {
    /// Creates a run with empty queues.
    fn new(config: &'a Config) -> Self {
        let Config { servers, tasks, seed, .. } = *config;
        let rate_pps = config.load * config.capacity_pps();
        let stream = |purpose| StreamSeed::derive(seed, purpose, 0).stream();
        Self {
            config,
            engine: Run { tasks, rate_pps, workers: servers, seed }.engine(),
            busy: vec![0; servers],
            reported: vec![0; servers],
            filters: [vec![0; FILTER_SLOTS], vec![0; FILTER_SLOTS]],
            answered: vec![false; tasks as usize],
            choices: stream("choices"),
            jitter: stream("jitter"),
            clones: stream("clones"),
            counts: Counts::default(),
        }
    }

    /// Adds a request, which the client sends to the switch.
    fn arrive(&mut self) {
        let table = (self.choices.next_u64() >> 63) as u8;
        let data = CopyData { role: Role::Plain, table };
        let task = self.engine.arrive(&self.config.service, ticks_of, data);
        let flight = &mut self.engine.flights[task];
        flight.service = self.config.with_jitter(flight.service, &mut self.jitter);
        self.engine.after(HOP, kind::AT_SWITCH, task.into());
    }

    /// Forwards a request to one or two servers.
    fn at_switch(&mut self, task: u32) {
        let (first, second) = two_indices(&mut self.choices, self.config.servers);
        let (first_queue, second_queue) = (self.reported[first], self.reported[second]);
        let Scheme { cloning, shorter } = self.config.scheme;
        match cloning {
            Cloning::Always => {
                let clone = self.copy(task, Role::Plain);
                self.forward(task, first, HOP);
                self.forward(clone, second, HOP);
            }
            Cloning::BothIdle if first_queue == 0 && second_queue == 0 => {
                self.engine.flights[task].route.role = Role::Original;
                let clone = self.copy(task, Role::Clone);
                self.forward(task, first, HOP);
                self.forward(clone, second, RECIRCULATION + HOP);
            }
            _ if shorter && second_queue < first_queue => self.forward(task, second, HOP),
            _ => self.forward(task, first, HOP),
        }
    }

    /// Adds a second copy of a request, with a service time of its own.
    fn copy(&mut self, task: u32, role: Role) -> u32 {
        self.counts.cloned += 1;
        let SimTask { route: CopyData { table, .. }, .. } = self.engine.flights[task];
        let (service_ns, class) = self.config.service.sample_ns(&mut self.clones);
        let service = self.config.with_jitter(ticks_of(service_ns), &mut self.clones);
        let route = CopyData { role, table };
        let clone = SimTask { service, class, route, ..self.engine.flights[task] };
        self.engine.flights.add(clone)
    }

    /// Sends a copy to a server. It arrives there after `ticks`.
    fn forward(&mut self, task: u32, server: usize, ticks: u64) {
        self.engine.flights[task].worker = server as u32;
        self.engine.after(ticks, kind::AT_SERVER, task.into());
    }

    /// Starts or queues a copy at its server. A clone is dropped if tasks wait.
    fn at_server(&mut self, task: u32) {
        let SimTask { worker, route, .. } = self.engine.flights[task];
        let server = worker as usize;
        let Engine { workers, flights, .. } = &mut self.engine;
        let queue = &mut workers[server].queue;
        if route.role == Role::Clone && !queue.is_empty() {
            self.counts.dropped += 1;
            flights.remove(task);
        } else if self.busy[server] < self.config.workers {
            self.busy[server] += 1;
            self.engine.start(task);
        } else {
            queue.push(task, flights);
        }
    }

    /// Ends a copy at its server, which reports its queue in the reply and starts the next task.
    fn done(&mut self, task: u32) {
        let server = self.engine.flights[task].worker as usize;
        let Engine { workers, flights, .. } = &mut self.engine;
        let queue = &mut workers[server].queue;
        flights[task].left_at_worker = queue.len().min(u16::MAX.into()) as u16;
        match queue.pop(flights) {
            Some(next) => self.engine.start(next),
            None => self.busy[server] -= 1,
        }
        self.engine.after(HOP, kind::REPLY, task.into());
    }

    /// Stores the reported queue. Forwards the reply, unless it is the slower one of a cloned request.
    fn reply(&mut self, task: u32) {
        let SimTask { worker, left_at_worker, number, route, .. } = self.engine.flights[task];
        self.reported[worker as usize] = left_at_worker.into();
        if route.role != Role::Plain && !self.passes_filter(number, route.table) {
            self.counts.filtered += 1;
            self.engine.flights.remove(task);
            return;
        }
        self.engine.after(HOP, kind::AT_CLIENT, task.into());
    }

    /// Returns true for the first reply of a cloned request, whose number it stores in the filter. The second reply
    /// clears the slot. It passes too if another request has overwritten the slot in between.
    fn passes_filter(&mut self, number: u64, table: u8) -> bool {
        // Sequence numbers start at 1.
        let sequence = number + 1;
        let slot = &mut self.filters[usize::from(table)][sequence as usize % FILTER_SLOTS];
        let is_first = *slot != sequence;
        *slot = if is_first { sequence } else { 0 };
        is_first
    }

    /// Ends a request at its first reply. The client ignores a second one.
    fn at_client(&mut self, task: u32) {
        let SimTask { number, worker, .. } = self.engine.flights[task];
        if std::mem::replace(&mut self.answered[number as usize], true) {
            self.counts.duplicates += 1;
        } else {
            self.engine.complete(task, worker as usize);
        }
        self.engine.flights.remove(task);
    }
}

/// Source of the claims of which only a direction is known.
const DIRECTION: &str = "NetClone, SIGCOMM'23, abstract: lower tail than without cloning; from memory: at high load \
    cloning stops by itself, and the tail is the same; ratios not verified";
/// Source of the claims about client-side cloning.
const STATIC: &str = "NetClone, SIGCOMM'23: client-side cloning only helps at low load and halves the throughput; from \
    memory, and half follows from two copies of each request; above load 0.5 its queues grow, and its p99 with --tasks";
/// Source of the claims about RackSched.
const WITH_RACKSCHED: &str =
    "NetClone, SIGCOMM'23: with RackSched it has the lowest tail at all loads; from memory";
/// Source of the claim about low variability.
const VARIABILITY: &str =
    "NetClone, SIGCOMM'23: gain falls with the probability of jitter; from memory, not verified";

/// Distributions of the paper, with the text for the conditions.
const SERVICES: [(&str, &str); 4] = [
    ("exp(25us)", "exponential 25 us"),
    ("mix(0.9*fixed(25us), 0.1*fixed(250us))", "90% 25 us, 10% 250 us"),
    ("exp(50us)", "exponential 50 us"),
    ("mix(0.9*fixed(50us), 0.1*fixed(500us))", "90% 50 us, 10% 500 us"),
];
/// p99 in microseconds that defines the throughput: over three times the p99 of a single copy without queues.
const LIMIT_US: f64 = 500.0;

/// Servers of the paper's testbed, for the conditions.
const SERVERS: &str = "6 servers of 15 workers";

/// Experiments on the paper's testbed of 6 servers with 15 workers each.
struct Testbed {
    tasks: u64,
    seed: u64,
}

impl Testbed {
    /// Returns a configuration.
    fn config(&self, distribution: &str, jitter: f64, load: f64, scheme: Scheme) -> Config {
        let &Self { tasks, seed } = self;
        let service = service(distribution);
        Config { servers: 6, workers: 15, service, jitter, load, scheme, tasks, seed }
    }

    /// Returns the 99th percentile in microseconds with the usual jitter and the paper's first distribution.
    fn p99(&self, load: f64, scheme: Scheme) -> f64 {
        quantile(&run(&self.config(SERVICES[0].0, 0.01, load, scheme)).0, 0.99)
    }

    /// Returns the claim that compares the 99th percentiles of two schemes.
    fn claim(
        &self,
        compared: &'static str,
        load: f64,
        schemes: [Scheme; 2],
        source: &'static str,
    ) -> Claim {
        let values = schemes.map(|scheme| self.p99(load, scheme)).into();
        let conditions = conditions(SERVICES[0].1, 0.01, load);
        Claim { system: "netclone", compared, conditions, claimed: None, values, source }
    }

    /// Returns the claim about another distribution or another probability of jitter, at load 0.3, for the 99th
    /// percentile or the 99.95th.
    fn workload_claim(
        &self,
        (distribution, name): (&str, &str),
        jitter: f64,
        (q, compared): (f64, &'static str),
        source: &'static str,
    ) -> Claim {
        let schemes = [Scheme::RANDOM, Scheme::NETCLONE];
        let time = |scheme| quantile(&run(&self.config(distribution, jitter, 0.3, scheme)).0, q);
        Claim {
            system: "netclone",
            compared,
            conditions: conditions(name, jitter, 0.3),
            claimed: None,
            values: schemes.map(time).into(),
            source,
        }
    }

    /// Returns the claim about the throughput of client-side cloning.
    fn throughput_claim(&self) -> Claim {
        let sustained = |scheme| {
            let load = sustained_load(LIMIT_US, |load| self.p99(load, scheme));
            load * self.config(SERVICES[0].0, 0.01, load, scheme).capacity_pps() / 1e6
        };
        Claim {
            system: "netclone",
            compared: "throughput in Mrps, client-side cloning / random server",
            conditions: format!(
                "{}, 15x jitter with p 0.01, p99 below {LIMIT_US} us, {SERVERS}",
                SERVICES[0].1
            ),
            claimed: Some(0.5),
            values: (sustained(Scheme::C_CLONE), sustained(Scheme::RANDOM)),
            source: STATIC,
        }
    }

    /// Returns the claim that cloning ends by itself at high load.
    fn share_claim(&self) -> Claim {
        let share = |load| {
            let config = self.config(SERVICES[0].0, 0.01, load, Scheme::NETCLONE);
            run(&config).1.cloned as f64 / self.tasks as f64
        };
        Claim {
            system: "netclone",
            compared: "share of cloned requests, load 0.2 / load 0.95",
            conditions: format!("{}, 15x jitter with p 0.01, {SERVERS}", SERVICES[0].1),
            claimed: None,
            values: (share(0.2), share(0.95)),
            source: DIRECTION,
        }
    }
}

/// Comparison of most claims.
const RANDOM_NETCLONE: &str = "p99 in us, random server / NetClone";
/// [`RANDOM_NETCLONE`] with its quantile.
const P99: (f64, &str) = (0.99, RANDOM_NETCLONE);
/// Like [`P99`], for the 99.95th percentile. With two service times, a single copy takes 15 times the longer one in
/// 0.1% of the cases, and 15 times either one in 1%. So the seed decides the 99.9th percentile, and in part the 99th.
const FAR_TAIL: (f64, &str) = (0.9995, "p99.95 in us, random server / NetClone");

/// Returns the text of the conditions of a claim.
fn conditions(service: &str, jitter: f64, load: f64) -> String {
    format!("{service}, 15x jitter with p {jitter}, load {load}, {SERVERS}")
}

/// Runs the paper's experiments.
pub(super) fn claims(tasks: u64, seed: u64) -> Vec<Claim> {
    let testbed = Testbed { tasks, seed };
    let mut claims = Vec::new();
    for load in [0.2, 0.5, 0.7, 0.95] {
        let schemes = [Scheme::RANDOM, Scheme::NETCLONE];
        claims.push(testbed.claim(RANDOM_NETCLONE, load, schemes, DIRECTION));
    }
    for distribution in SERVICES {
        claims.push(testbed.workload_claim(distribution, 0.01, P99, DIRECTION));
        claims.push(testbed.workload_claim(distribution, 0.01, FAR_TAIL, DIRECTION));
    }
    claims.push(testbed.workload_claim(SERVICES[0], 0.001, P99, VARIABILITY));
    claims.push(testbed.share_claim());
    for load in [0.2, 0.6] {
        let schemes = [Scheme::RANDOM, Scheme::C_CLONE];
        let compared = "p99 in us, random server / client-side cloning";
        claims.push(testbed.claim(compared, load, schemes, STATIC));
    }
    claims.push(testbed.throughput_claim());
    for load in [0.3, 0.7, 0.95] {
        let compared = "p99 in us, RackSched / NetClone with RackSched";
        let schemes = [Scheme::RACKSCHED, Scheme::BOTH];
        claims.push(testbed.claim(compared, load, schemes, WITH_RACKSCHED));
        let compared = "p99 in us, NetClone / NetClone with RackSched";
        let schemes = [Scheme::NETCLONE, Scheme::BOTH];
        claims.push(testbed.claim(compared, load, schemes, WITH_RACKSCHED));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::super::measured;
    use super::*;

    /// Schemes of the experiments.
    const SCHEMES: [Scheme; 5] =
        [Scheme::RANDOM, Scheme::C_CLONE, Scheme::NETCLONE, Scheme::RACKSCHED, Scheme::BOTH];
    const TESTBED: Testbed = Testbed { tasks: 30_000, seed: 1 };

    /// Returns the configuration of a short run with the usual jitter.
    fn config(load: f64, scheme: Scheme) -> Config {
        TESTBED.config(SERVICES[0].0, 0.01, load, scheme)
    }

    #[test]
    fn each_request_is_answered_once() {
        for scheme in SCHEMES {
            let config = Config { tasks: 5_000, ..config(0.4, scheme) };
            let (outcome, counts) = run(&config);
            let measured = measured(&outcome);
            assert_eq!((outcome.lost, measured), (0, 4_500), "{scheme:?}");
            // Each further copy is dropped, filtered, ignored, or in flight at the end.
            let Counts { cloned, dropped, filtered, duplicates } = counts;
            let ended = dropped + filtered + duplicates;
            assert!(ended <= cloned && cloned - ended < 200, "{scheme:?}: {counts:?}");
            assert_eq!(cloned > 0, scheme.cloning != Cloning::Never, "{scheme:?}");
        }
    }

    #[test]
    fn busy_pair_gets_no_clone() {
        // With two servers, each pair consists of both.
        let config = Config { servers: 2, ..config(0.5, Scheme::BOTH) };
        for (reported, clones, shorter) in
            [([0, 0], 1, None), ([0, 1], 0, Some(0)), ([3, 0], 0, Some(1)), ([2, 1], 0, Some(1))]
        {
            for _ in 0..8 {
                let mut sim = Sim::new(&config);
                sim.reported = reported.to_vec();
                sim.arrive();
                sim.at_switch(0);
                assert_eq!(sim.counts.cloned, clones, "{reported:?}");
                let server = sim.engine.flights[0].worker;
                assert!(shorter.is_none_or(|shorter| shorter == server), "{reported:?}");
                let clone = sim.engine.flights.get(1);
                assert_eq!(clone.is_some(), clones == 1);
                assert!(clone.is_none_or(|clone| clone.worker != server));
            }
        }
    }

    #[test]
    fn server_with_queue_drops_clones_only() {
        let config = Config { workers: 1, ..config(0.5, Scheme::NETCLONE) };
        let mut sim = Sim::new(&config);
        // The first copy runs. The first clone finds an empty queue and waits. The next one is dropped.
        let roles = [Role::Original, Role::Clone, Role::Clone, Role::Plain];
        roles.iter().for_each(|_| sim.arrive());
        for (task, role) in (0..).zip(roles) {
            sim.engine.flights[task].route.role = role;
            sim.at_server(task);
        }
        assert_eq!((sim.counts.dropped, sim.engine.workers[0].queue.len()), (1, 2));
        assert!(sim.engine.flights.get(2).is_none());
    }

    #[test]
    fn filter_drops_second_reply() {
        let config = config(0.5, Scheme::NETCLONE);
        let mut sim = Sim::new(&config);
        assert_eq!([7, 7, 7].map(|number| sim.passes_filter(number, 0)), [true, false, true]);
        // The second table is independent. A later request takes over the slot.
        assert!(sim.passes_filter(7, 1));
        assert!(sim.passes_filter(7 + FILTER_SLOTS as u64, 0));
        assert!(sim.passes_filter(7, 0));
    }

    #[test]
    fn cloning_lowers_the_tail_at_low_load() {
        for service in SERVICES {
            let claim = TESTBED.workload_claim(service, 0.01, FAR_TAIL, DIRECTION);
            assert!(claim.ratio() > 1.05, "{claim:?}");
        }
        let compared = "p99, random server / C-Clone";
        let claim = TESTBED.claim(compared, 0.2, [Scheme::RANDOM, Scheme::C_CLONE], STATIC);
        assert!(claim.ratio() > 1.05, "{claim:?}");
    }

    #[test]
    fn static_cloning_halves_throughput() {
        let claim = TESTBED.throughput_claim();
        assert!((0.4..0.65).contains(&claim.ratio()), "{claim:?}");
    }

    #[test]
    fn cloning_ends_at_high_load() {
        let claim = TESTBED.share_claim();
        assert!(claim.values.0 > 0.9 && claim.values.1 < 0.4, "{claim:?}");
    }

    #[test]
    fn racksched_lowers_the_tail_at_high_load() {
        let schemes = [Scheme::NETCLONE, Scheme::BOTH];
        let claim = TESTBED.claim("p99, NetClone / both", 0.95, schemes, WITH_RACKSCHED);
        assert!(claim.ratio() > 1.0, "{claim:?}");
    }
}
