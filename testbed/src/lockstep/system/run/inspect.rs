//! Checks after each turn of a node (in which it polls until no packet moves), and of a quiet system. [`check`] has
//! the invariants of single nodes. These functions supply the view of the conductor, which advances the emulated time:
//! the places of all packets and the state of the workers.

use wedjat::reason::DropReason;
use wedjat::state::Member;

use super::super::check;
use super::super::faults::FaultTarget;
use super::super::node::Violation;
use super::super::packets::PacketEnd;
use super::super::workers::Worker;
use super::{Outcome, System, TaskResult, TaskState};

impl System<'_> {
    /// Adds a node's counts of drops to the outcome, before the node and its counters end.
    pub(super) fn note_drops(&mut self, index: usize) {
        let target = self.plan.topology.target(index).to_string();
        let Some(state) = self.sites[index].node.as_ref().and_then(|node| node.local_state())
        else {
            return;
        };
        for reason in DropReason::ALL {
            let dropped = state.counters.dropped(reason);
            if dropped > 0 {
                *self
                    .outcome
                    .drops
                    .entry(target.clone())
                    .or_default()
                    .entry(reason.name())
                    .or_default() += dropped;
            }
        }
    }

    /// Checks the invariants after a turn of a node. For a node in another process, these are only the packet counts
    /// and the bound of tasks at a worker.
    pub(super) fn inspect(&mut self, index: usize) {
        let (target, site) = (self.plan.topology.target(index), &self.sites[index]);
        let Some(node) = &site.node else { return };
        let mut violation = check::packet_counts(&site.line, &site.port_counts);
        let state = node.local_state();
        if let Some(state) = &state {
            violation = violation.or_else(|| check::ledger(target, state, &site.port_counts));
            let bound = match target {
                FaultTarget::Spine(_) => None,
                FaultTarget::Leaf(_) => self.plan.leaf.bound(),
                _ => self.plan.agent.bound(),
            };
            violation = violation.or_else(|| check::above_bound(state.dispatcher?, bound?));
        }
        if let Some(description) = violation {
            self.violate(target, description);
        }
        match target {
            FaultTarget::Spine(_) => {}
            FaultTarget::Leaf(number) => self.inspect_idle_at_leaf(index, number),
            _ => self.inspect_workers(index),
        }
    }

    /// Checks that no worker of a leaf in this process is idle for long while tasks wait at the leaf.
    fn inspect_idle_at_leaf(&mut self, index: usize, number: u16) {
        let (target, now, topology) = (FaultTarget::Leaf(number), self.now, self.plan.topology);
        if self.plan.has_controller {
            return; // the controller changes the members during the run
        }
        let node = self.sites[index].node.as_ref();
        let state = node.and_then(|node| node.local_state());
        if state.is_none_or(|state| state.dispatcher.is_none()) {
            return;
        }
        let mut since = std::mem::take(&mut self.sites[index].idle_ns);
        let Some(state) = self.sites[index].node.as_ref().and_then(|node| node.local_state())
        else {
            return;
        };
        let Some(dispatcher) = state.dispatcher else { return };
        // A leaf that shares its workers with other leaves cannot tell whether they are idle.
        let (waiting, is_exclusive) = (state.waiting, topology.leaves == 1 || topology.spines > 0);
        let mut violation = None;
        for (place, worker) in self.plan.workers_of(number).into_iter().map(usize::from).enumerate()
        {
            let since = &mut since[worker];
            let Worker { agent, id, .. } = self.workers[worker];
            let agent = &self.sites[agent];
            let up = agent.node.is_some() && !agent.paused && self.workers[worker].is_up();
            if waiting == 0
                || !up
                || !is_exclusive
                || !check::is_registered(dispatcher, Member(place as u16))
            {
                *since = None;
                continue;
            }
            let mut sent = self.sites[index].sent.iter().filter(|(_, to)| *to == id).peekable();
            // Held packets that are not queued wait for a neighbour's address, on their way to a worker.
            let is_known_idle = sent.peek().is_none() && state.held == state.waiting as u64;
            // A packet of one of its tasks still exists, so the worker may be busy.
            if sent.any(|(task, _)| self.tasks[*task as usize].copies > 0) {
                *since = None;
                continue;
            }
            // If the leaf does not know the worker as idle, all packets of the worker's tasks are lost, or a packet
            // waits for a neighbour's address. The leaf learns of the loss only by a timeout.
            let longest = if is_known_idle { check::KNOWN_IDLE_NS } else { check::WRITTEN_OFF_NS };
            let idle_ns = now - *since.get_or_insert(now);
            if idle_ns > longest {
                violation = Some(format!(
                    "worker {id} has been idle for {idle_ns} ns while {waiting} tasks wait"
                ));
            }
        }
        self.sites[index].idle_ns = since;
        if let Some(description) = violation {
            self.violate(target, description);
        }
    }

    /// Checks that no worker of an agent has too many tasks, or is idle for long while tasks wait. The number of
    /// waiting tasks at an agent in another process is unknown, so its workers may be idle.
    fn inspect_workers(&mut self, index: usize) {
        let (target, now) = (self.plan.topology.target(index), self.now);
        let waiting = self.sites[index]
            .node
            .as_ref()
            .and_then(|node| node.local_state())
            .map_or(0, |state| state.waiting);
        let bound = self.plan.agent.bound().map_or(usize::MAX, |bound| bound as usize);
        for number in (0..self.workers.len())
            .filter(|&number| self.workers[number].agent == index)
            .collect::<Vec<_>>()
        {
            let worker = &mut self.workers[number];
            let (id, tasks) = (worker.id, worker.tasks());
            let since = &mut self.idle_ns[number];
            if waiting == 0 || !worker.is_idle() {
                *since = None;
            }
            let idle_ns =
                if waiting > 0 && worker.is_idle() { now - *since.get_or_insert(now) } else { 0 };
            if tasks > bound {
                self.violate(
                    target,
                    format!("worker {id} has {tasks} tasks, above the bound of {bound}"),
                );
            } else if idle_ns > check::IDLE_AT_AGENT_NS {
                self.violate(
                    target,
                    format!(
                        "worker {id} has been idle for {idle_ns} ns while {waiting} tasks wait"
                    ),
                );
            }
        }
    }

    /// Returns true if nodes in this process disagree about members. Records a violation if this lasts too long. The
    /// run calls it only after the last fault.
    pub(super) fn differ(&mut self) -> bool {
        if self.plan.has_controller {
            return self.differ_from_desired();
        }
        let Some((target, difference, longest_ns)) = self.difference() else {
            self.disagreement_ns = None;
            return false;
        };
        let since_ns = *self.disagreement_ns.get_or_insert(self.now);
        let duration_ns = self.now - since_ns;
        if duration_ns > longest_ns {
            let text = format!("no fault for {} ms, but {difference}", duration_ns / 1_000_000);
            self.violate(target, text);
        }
        true
    }

    /// Like [`System::differ`], for nodes that follow a controller: compares them with its desired state.
    fn differ_from_desired(&mut self) -> bool {
        let differs = |index: usize| Some((index, self.sites[index].node.as_ref()?.differs()?));
        let Some((index, (difference, since_ns))) = self.nodes().find_map(differs) else {
            return false;
        };
        let duration_ns = self.now - self.now.min(since_ns.max(self.last_activity_ns));
        if duration_ns > check::FOLLOW_NS {
            let text =
                format!("no fault delayed it for {} ms, but {difference}", duration_ns / 1_000_000);
            self.violate(self.plan.topology.target(index), text);
        }
        true
    }

    /// Returns the first missing member: the node that lacks it, a description, and the allowed duration. The member
    /// is a worker missing at the leaf of its rack, or a leaf missing at its spine, or there with a wrong number of
    /// workers. Returns `None` without spines, where not every worker registers with every leaf.
    fn difference(&self) -> Option<(FaultTarget, String, u64)> {
        let topology = self.plan.topology;
        let state = |target| self.sites[topology.index(target)].node.as_ref()?.local_state();
        let missing = |target, (place, member, workers): (usize, FaultTarget, Option<u16>)| {
            let reason =
                check::missing_reason(state(target)?.dispatcher?, Member(place as u16), workers)?;
            Some((target, format!("{member} {reason}")))
        };
        let spines = 1..=topology.spines;
        let racks = (1..=topology.leaves).filter(|_| topology.spines > 0);
        let missing_worker = |leaf: u16| {
            let workers = self.plan.workers_of(leaf).into_iter().enumerate();
            let check = |(place, worker)| {
                missing(FaultTarget::Leaf(leaf), (place, FaultTarget::Worker(worker), None))
            };
            workers.map(check).find_map(|found| found)
        };
        let missing_leaf = |spine: u16| {
            let leaves = self.plan.leaves_of(spine).into_iter().enumerate();
            let workers = |leaf| Some(self.plan.workers_of(leaf).len() as u16);
            let check = |(place, leaf)| {
                missing(FaultTarget::Spine(spine), (place, FaultTarget::Leaf(leaf), workers(leaf)))
            };
            leaves.map(check).find_map(|found| found)
        };
        let agree_ns = match self.plan.faults.rates.is_empty() {
            true => check::AGREE_NS,
            false => check::AGREE_WITH_LOSSES_NS,
        };
        let at_leaf = racks.map(missing_worker).find_map(|found| found);
        let at_leaf = at_leaf.map(|(target, text)| (target, text, check::REGISTERED_NS));
        let at_spine = || spines.map(missing_leaf).find_map(|found| found);
        at_leaf.or_else(|| at_spine().map(|(target, text)| (target, text, agree_ns)))
    }

    /// Checks the invariants at the end of the run, ends all nodes, and returns the outcome.
    pub(super) fn finish(mut self) -> Outcome {
        let violations_before = self.outcome.violations.len();
        for index in self.nodes() {
            self.note_drops(index);
            let target = self.plan.topology.target(index);
            let outstanding = self.sites[index]
                .node
                .as_ref()
                .and_then(|node| node.local_state())
                .and_then(|state| check::outstanding(target, &state));
            if let Some(tasks) = outstanding.filter(|_| violations_before == 0) {
                self.violate(
                    target,
                    format!(
                        "quiet for {} ms: {tasks}",
                        (self.now - self.last_activity_ns) / 1_000_000
                    ),
                );
            }
        }
        if violations_before == 0 {
            self.account_for_tasks();
        }
        for worker in &mut self.workers {
            worker.leave();
        }
        for index in self.nodes() {
            let target = self.plan.topology.target(index);
            if let Some(node) = self.sites[index].node.take()
                && let Err(error) = node.end(false)
                && violations_before == 0
            {
                self.violate(target, format!("at its end: {error}"));
            }
        }
        let mut outcome = self.outcome;
        for wire in &self.wires {
            outcome.ledger.add(&wire.ledger);
            if let Some(class) = wire.ledger.imbalance() {
                let description = format!("the ledger of {wire:?} does not balance: {class}");
                outcome.violations.push(Violation {
                    at_ns: self.now,
                    node: "conductor".to_owned(),
                    description,
                });
            }
        }
        outcome.tasks = self.tasks.len() as u64;
        // After a violation, `answered` stays 0.
        let responses = self.tasks.iter().filter_map(TaskState::response_ns);
        let (count, sum_ns) =
            responses.fold((0_u64, 0_u64), |(count, sum), ns| (count + 1, sum + ns));
        outcome.mean_ns = sum_ns as f64 / count.max(1) as f64;
        (outcome.digest, outcome.end_ns) = (self.digest.to_string(), self.now);
        outcome
    }

    /// Returns the reason of the loss of a task whose packet entered a node and never left it.
    fn loss_inside(&self, index: usize) -> String {
        let target = self.plan.topology.target(index);
        let state = self.sites[index].node.as_ref().and_then(|node| node.local_state());
        match state.is_some_and(|state| state.stranded > 0) {
            true => format!("dropped by {target}, or waiting there for drained workers"),
            false => format!("dropped by {target}"),
        }
    }

    /// Adds the result of each task to the outcome. Each must be answered, refused, or lost for a reason. Then compares
    /// the packets that vanished in each node with its counts of drops.
    fn account_for_tasks(&mut self) {
        let count = self.sites.len();
        let mut vanished = vec![0_u64; count];
        let mut ended = Vec::with_capacity(self.tasks.len());
        for (number, task) in self.tasks.iter().enumerate() {
            let held_packets = &self.held_packets[number * count..][..count];
            held_packets
                .iter()
                .zip(&mut vanished)
                .for_each(|(packets, vanished)| *vanished += *packets as u64);
            self.outcome.answered += u64::from(task.answers > 0);
            self.outcome.refused += u64::from(task.answers == 0 && task.refusals > 0);
            let is_lost = task.answers + task.refusals == 0;
            let index = held_packets.iter().position(|&packets| packets > 0);
            let lost = match (index, task.last_loss) {
                _ if !is_lost => None,
                (Some(index), _) => Some(self.loss_inside(index)),
                (None, Some(reason)) => Some(PacketEnd::NAMES[reason as usize].to_owned()),
                (None, None) => {
                    self.outcome.violations.push(Violation {
                        at_ns: self.now,
                        node: "conductor".to_owned(),
                        description: format!(
                            "task {number} was neither answered nor refused nor lost"
                        ),
                    });
                    None
                }
            };
            if let Some(reason) = &lost {
                *self.outcome.lost.entry(reason.clone()).or_default() += 1;
            }
            ended.push(TaskResult {
                sent_ns: task.sent_ns,
                answered_ns: task.answered_ns,
                lost,
                leaf: task.leaf.map(|leaf| (leaf, task.leaf_chosen_ns)),
                worker: task.worker,
            });
        }
        self.outcome.ended = ended;
        for index in self.nodes() {
            let Some(state) = self.sites[index].node.as_ref().and_then(|node| node.local_state())
            else {
                continue;
            };
            // Each packet that entered a node and never left it must be a counted drop, or still wait there.
            let (dropped, vanished) = (state.counters.dropped_total(), vanished[index]);
            if vanished > dropped + state.stranded {
                let target = self.plan.topology.target(index);
                self.violate(target, format!("{vanished} task packets did not leave it, but it counts {dropped} as dropped"));
            }
        }
    }
}
