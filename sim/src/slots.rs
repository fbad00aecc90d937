//! Model `slots`: servers and dispatchers in time slots (LSQ, ToN 2020, II).
//!
//! In each slot tasks arrive at every dispatcher. All dispatchers decide on the state at the beginning of the
//! slot. Then each server completes tasks according to its service in the slot, and servers report. A task's
//! time in the system is its departure slot minus its arrival slot plus one. This model has no benchmark tasks, the
//! tasks by which other models measure a server's speed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use rand_distr::{Distribution, Exp1, Poisson};
use wedjat_core::policy::member::{MemberSide, Notify};
use wedjat_core::policy::{
    Core, Dispatcher, PolicySpec, QueueingDispatcher, Rng, Task, stream_seed,
};
use wedjat_core::state::{DecisionNumber, Load, Member, Report, View};
use wedjat_workload::results::Status;
use wedjat_workload::seed::{Stream, StreamSeed};

use super::outcome::Outcome;
use super::stats::{FinishedTask, Observer, Recorder, histogram, record};

/// Length of a slot in nanoseconds, for policies that read the clock.
const SLOT_NS: u64 = 100_000;
/// [`SLOT_NS`] in picoseconds.
const SLOT_PS: f64 = SLOT_NS as f64 * 1e3;
/// Slots between samples of all queues.
const SAMPLE_SLOTS: u64 = 10;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Mean number of tasks that each server can complete per slot. The mean over the servers must be 1.
    pub speeds: Vec<f64>,
    /// Number of dispatchers.
    pub dispatchers: usize,
    /// True if all tasks of a dispatcher in a slot go to one server, unless the policy holds tasks back.
    pub whole: bool,
    /// Policy.
    pub policy: PolicySpec,
    /// Offered work as a fraction of the servers' capacity.
    pub load: f64,
    /// Slots with arrivals.
    pub slots: u64,
    /// Fraction of the tasks that is not measured.
    pub warmup: f64,
    /// Seed of all streams.
    pub seed: u64,
    /// Observer of the run.
    pub observer: Observer,
}

/// A task in a server's queue.
#[derive(Clone, Copy, Debug)]
struct QueuedTask {
    /// Number of the task, in the order of arrival.
    number: u64,
    /// Slot of its arrival.
    slot: u64,
    /// Number of the decision that sent it; tasks sent together share it.
    decision: DecisionNumber,
    dispatcher: u16,
}

impl QueuedTask {
    /// Returns the task's end for the record.
    fn end(&self, worker: Option<usize>, response: Result<u64, Status>) -> FinishedTask {
        end_of(self.number, self.slot, worker, response)
    }
}

/// A server.
struct Server {
    queue: VecDeque<QueuedTask>,
    /// The service of a slot is an exponential number times this, rounded down: geometric with the server's
    /// mean.
    scale: f64,
    /// Slots since the last completion in which the server had tasks.
    busy_slots: u64,
    /// Number of dispatchers that sent tasks to this server in the slot.
    senders: usize,
    /// Last of these dispatchers.
    last_sender: Option<usize>,
    /// Rule that decides when the server sends load reports. It keeps each dispatcher's estimate of the queue.
    side: MemberSide,
}

/// A dispatcher and its view of the queues.
struct Node {
    /// The dispatcher, and its waiting tasks with number and arrival slot. All tasks of a slot wait until the
    /// dispatcher decides.
    dispatcher: QueueingDispatcher<(u64, u64)>,
    /// Queues that probes read: those at the beginning of the slot, plus the tasks that this dispatcher has sent since.
    queues: Arc<[AtomicU32]>,
}

/// State of a run.
struct Sim<'a> {
    config: &'a Config,
    /// Number of the current slot.
    slot: u64,
    /// The dispatchers.
    nodes: Vec<Node>,
    servers: Vec<Server>,
    /// Numbers of arrivals.
    arrivals: Stream,
    /// Numbers of tasks that servers can complete.
    service: Stream,
    /// Random numbers of the servers, for example of the dispatcher that a report goes to.
    members: Rng,
    recorder: Recorder,
    /// Number of tasks that wait at dispatchers or servers.
    in_system: u64,
    /// Number of load reports, without those that the dispatchers count themselves.
    messages: u64,
    /// Number of slots, by the maximum number of dispatchers that sent to one server.
    incast: Vec<u64>,
}

/// Runs the model.
///
/// # Errors
/// If the mean number of arrivals per dispatcher and slot is not positive, or too large for the Poisson generator.
pub fn run(config: &Config) -> Result<Outcome, String> {
    run_counting(config).map(|(outcome, _)| outcome)
}

/// Runs the model, and counts slots with arrivals by the maximum number of dispatchers that sent to one
/// server (LSQ, Fig. 4b).
///
/// # Errors
/// Same as for [`run`].
pub fn run_counting(config: &Config) -> Result<(Outcome, Vec<u64>), String> {
    let servers = config.speeds.len();
    let per_slot = config.load * servers as f64 / config.dispatchers as f64;
    let poisson = Poisson::new(per_slot).map_err(|error| format!("arrivals: {error}"))?;
    let mut sim = Sim::new(config);
    let mut imbalance = histogram();
    // Drains the system after the last arrival, within a limit.
    while sim.slot < config.slots || (sim.in_system > 0 && sim.slot < 2 * config.slots) {
        if sim.slot < config.slots {
            sim.arrive(&poisson);
        }
        sim.dispatch();
        sim.count_incast();
        sim.serve();
        if sim.slot.is_multiple_of(SAMPLE_SLOTS) && sim.in_system > 0 {
            let longest = sim.servers.iter().map(|server| server.queue.len()).max().unwrap_or(0);
            let mean = sim.in_system as f64 / servers as f64;
            record(&mut imbalance, (longest as f64 / mean * 1e3) as u64);
        }
        sim.slot += 1;
    }
    let picks = sim.nodes.iter().map(|node| node.dispatcher.view().picks);
    let (probes, resubmits) =
        picks.fold((0, 0), |sum, picks| (sum.0 + picks.messages, sum.1 + picks.resubmits));
    sim.end_rest();
    let outcome = Outcome {
        lost: sim.in_system,
        messages: sim.messages + probes,
        resubmits,
        imbalance,
        ..Outcome::from_recorder(sim.recorder, servers, 1.0)
    };
    Ok((outcome, sim.incast))
}

impl<'a> Sim<'a> {
    /// Creates all dispatchers and servers.
    fn new(config: &'a Config) -> Self {
        let servers = config.speeds.len();
        let notify = config.policy.notify();
        let views = View::heap(servers, config.dispatchers).into_iter().enumerate();
        let node = |(index, mut view): (usize, View)| {
            let queues: Arc<[AtomicU32]> = (0..servers).map(|_| AtomicU32::new(0)).collect();
            view.set_queues(Arc::clone(&queues));
            let core = Core { index, count: config.dispatchers };
            let seed = stream_seed(config.seed, index, 0);
            let mut dispatcher = Dispatcher::new(&config.policy, view, core, seed);
            dispatcher.set_rates(&config.speeds);
            Node { dispatcher: QueueingDispatcher::unbounded(dispatcher), queues }
        };
        let server = |(number, &mean): (usize, &f64)| Server {
            queue: VecDeque::new(),
            // The floor of an exponential number of this scale is geometric with mean `mean`.
            scale: 1.0 / ((1.0 + mean) / mean).ln(),
            busy_slots: 0,
            senders: 0,
            last_sender: None,
            side: MemberSide::new(notify, number, config.dispatchers),
        };
        let stream = |purpose| StreamSeed::derive(config.seed, purpose, 0).stream();
        let expected = (config.load * servers as f64 * config.slots as f64) as u64;
        Self {
            config,
            slot: 0,
            nodes: views.map(node).collect(),
            servers: config.speeds.iter().enumerate().map(server).collect(),
            arrivals: stream("arrivals"),
            service: stream("service"),
            members: stream("members"),
            recorder: Recorder::new(expected.max(1), config.warmup, SLOT_PS, &config.observer),
            in_system: 0,
            messages: 0,
            incast: vec![0; config.dispatchers + 1],
        }
    }

    /// Records the tasks that are left at the limit of the run as lost.
    fn end_rest(&mut self) {
        let queued = self.servers.iter().flat_map(|server| &server.queue);
        let queued = queued.map(|task| (task.number, task.slot));
        let waiting =
            self.nodes.iter_mut().flat_map(|node| std::iter::from_fn(|| node.dispatcher.pop()));
        let lost = queued
            .chain(waiting)
            .map(|(number, slot)| end_of(number, slot, None, Err(Status::Lost)));
        self.recorder.end_rest(lost);
    }

    /// Adds the slot's arrivals to all dispatchers.
    fn arrive(&mut self, poisson: &Poisson<f64>) {
        for node in &mut self.nodes {
            for _ in 0..poisson.sample(&mut self.arrivals) as u64 {
                let number = self.recorder.arrive(self.in_system);
                let pushed = node.dispatcher.push((number, self.slot));
                debug_assert!(pushed.is_ok(), "there is no bound");
                self.in_system += 1;
            }
        }
    }

    /// Lets all dispatchers decide on the queues at the beginning of the slot. A policy that holds tasks back
    /// decides on each task even in runs with whole batches.
    fn dispatch(&mut self) {
        let policy = self.config.policy.entry();
        for node in &self.nodes {
            for (queue, server) in node.queues.iter().zip(&self.servers) {
                // A simulation has one thread, so that Relaxed suffices.
                queue.store(server.queue.len() as u32, Relaxed);
            }
        }
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.dispatcher.tick(self.slot * SLOT_NS);
            // `holds`: the policy lets tasks wait. `decides_jointly`: one call spreads several tasks over members.
            if self.config.whole && !policy.holds() {
                node.send_batch(index, &mut self.servers);
            } else if policy.decides_jointly {
                node.send_run(index, &mut self.servers);
            } else {
                node.send_each(index, &mut self.servers);
            }
        }
    }

    /// Counts the slot by the maximum number of dispatchers that sent to one server.
    fn count_incast(&mut self) {
        let mut max = 0;
        for server in &mut self.servers {
            max = max.max(server.senders);
            (server.senders, server.last_sender) = (0, None);
        }
        if self.slot < self.config.slots {
            self.incast[max] += 1;
        }
    }

    /// Serves the slot: servers complete tasks, reply and report.
    fn serve(&mut self) {
        let Self { slot, nodes, servers, service, members, recorder, .. } = self;
        if self.config.policy.entry().holds() {
            // Some policies that hold tasks measure response times. These last until the end of the slot.
            nodes.iter_mut().for_each(|node| node.dispatcher.tick((*slot + 1) * SLOT_NS));
        }
        for (index, server) in servers.iter_mut().enumerate() {
            if server.queue.is_empty() {
                continue;
            }
            // Number of tasks that the server can complete in this slot.
            let unit: f64 = Exp1.sample(service);
            let service = (unit * server.scale) as usize;
            server.busy_slots += 1;
            if service == 0 {
                continue;
            }
            let completed = service.min(server.queue.len());
            // Service time of a task, as a server measures it in whole slots.
            let service_ns = std::mem::take(&mut server.busy_slots) * SLOT_NS / service as u64;
            let queue = server.queue.len() - completed;
            let load = Load::tasks(queue.min(usize::from(u16::MAX)) as u16);
            let report = Report {
                member: Member(index as u16),
                load,
                service_ns: service_ns.min(u64::from(u32::MAX)) as u32,
                class: 0, // the model has no classes
                decision: None,
            };
            for task in server.queue.drain(..completed) {
                let slots = *slot - task.slot + 1;
                recorder.done(task.number, slots);
                recorder.end(|| task.end(Some(index), Ok(slots)));
                self.in_system -= 1;
                let sender = &mut nodes[usize::from(task.dispatcher)].dispatcher;
                if self.config.policy.notify() == Notify::Reply {
                    sender.reply(&Report { decision: Some(task.decision), ..report });
                } else {
                    sender.view_mut().answered(report.member);
                }
            }
            if let Some(dispatcher) = server.side.on_done(queue as u32, members) {
                nodes[dispatcher].dispatcher.refresh(&report);
                // Dispatchers that process only some of the reports count these themselves.
                let is_message = self.config.policy.notify() != Notify::Always;
                self.messages += u64::from(is_message);
            }
        }
    }
}

/// Returns a task's end for the record.
fn end_of(
    number: u64,
    arrived: u64,
    worker: Option<usize>,
    response: Result<u64, Status>,
) -> FinishedTask {
    FinishedTask { number, class: 0, worker, arrived, service: None, response }
}

/// Returns the task as the policy sees it.
fn task_of(&(number, _): &(u64, u64)) -> Task {
    Task { decision: Some(DecisionNumber::of(number)), ..Task::default() }
}

impl Node {
    /// Returns the first waiting task and its member, if a member may take it now.
    fn next(&mut self) -> Option<((u64, u64), Member)> {
        let next = self.dispatcher.next(task_of);
        let next = next.unwrap_or_else(|_| unreachable!("all servers are there"));
        next.map(|(first, pick)| (first, pick.member))
    }

    /// Sends a task to a member, and the next `followers` waiting tasks with it. `index` is this dispatcher's.
    fn enqueue(
        &mut self,
        first: (u64, u64),
        followers: usize,
        member: Member,
        index: usize,
        servers: &mut [Server],
    ) {
        let server = &mut servers[member.index()];
        let decision = DecisionNumber::of(first.0);
        let waiting = std::iter::from_fn(|| self.dispatcher.pop()).take(followers);
        for (number, slot) in std::iter::once(first).chain(waiting) {
            server.queue.push_back(QueuedTask { number, slot, decision, dispatcher: index as u16 });
        }
        server.side.on_tasks(index, followers as u32 + 1);
        // Dispatchers decide one after another, so it suffices to compare with the last sender.
        server.senders += usize::from(server.last_sender.replace(index) != Some(index));
        self.queues[member.index()].fetch_add(followers as u32 + 1, Relaxed);
    }

    /// Sends all waiting tasks to one member.
    fn send_batch(&mut self, index: usize, servers: &mut [Server]) {
        if let Some((first, member)) = self.next() {
            // The policy chose the member for the first task. The view counts all others as sent there too.
            let followers = self.dispatcher.waiting();
            (0..followers).for_each(|_| self.dispatcher.count_placed(member));
            self.enqueue(first, followers, member, index, servers);
        }
    }

    /// Sends all waiting tasks by one call of the policy, which divides them among members.
    fn send_run(&mut self, index: usize, servers: &mut [Server]) {
        let tasks: Vec<_> = self.dispatcher.iter().map(task_of).collect();
        let mut picks = vec![None; tasks.len()];
        if tasks.is_empty() {
            return;
        }
        self.dispatcher.schedule(&tasks, &mut picks);
        for pick in picks.into_iter().flatten() {
            let Some(first) = self.dispatcher.pop() else { break };
            self.enqueue(first, 0, pick.member, index, servers);
        }
    }

    /// Decides on each waiting task.
    fn send_each(&mut self, index: usize, servers: &mut [Server]) {
        while let Some((first, member)) = self.next() {
            self.enqueue(first, 0, member, index, servers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In each of 100 slots, four tasks arrive at a server that completes one. The run ends after at most 200 slots.
    #[test]
    fn tasks_left_at_the_limit_are_lost() {
        let config = Config {
            speeds: vec![1.0],
            dispatchers: 1,
            whole: false,
            policy: "random".parse().unwrap(),
            load: 4.0,
            slots: 100,
            warmup: 0.0,
            seed: 1,
            observer: Observer { records_tasks: true, ..Observer::hidden() },
        };
        let outcome = run(&config).unwrap();
        let lost = outcome.ended.iter().filter(|task| task.status == Status::Lost).count() as u64;
        assert!(lost > 0 && outcome.lost == lost, "{} and {lost}", outcome.lost);
    }
}
