//! Checks after each turn of a node, and of a quiet system.

use wedjat::reason::DropReason;
use wedjat::state::Member;

use super::super::check::{self, Violation};
use super::super::faults::FaultTarget;
use super::super::packets::PacketEnd;
use super::super::workers::Worker;
use super::{Outcome, System, TaskEnd};

impl System<'_> {
    pub(super) fn note_drops(&mut self, at: usize) {
        let who = self.plan.topology.target(at).to_string();
        let Some(inside) = self.sites[at].node.as_ref().and_then(|node| node.inside()) else {
            return;
        };
        for reason in DropReason::ALL {
            let dropped = inside.counters.dropped(reason);
            if dropped > 0 {
                *self
                    .outcome
                    .drops
                    .entry(who.clone())
                    .or_default()
                    .entry(reason.name())
                    .or_default() += dropped;
            }
        }
    }

    /// Checks the invariants after a turn.
    pub(super) fn inspect(&mut self, at: usize) {
        let (who, site) = (self.plan.topology.target(at), &self.sites[at]);
        let Some(node) = &site.node else { return };
        let mut wrong = check::packet_counts(&site.line, &site.passed);
        let inside = node.inside();
        if let Some(inside) = &inside {
            wrong = wrong.or_else(|| check::ledger(who, inside, &site.passed));
            let bound = match who {
                FaultTarget::Spine(_) => None,
                FaultTarget::Leaf(_) => self.plan.leaf.bound(),
                _ => self.plan.agent.bound(),
            };
            wrong = wrong.or_else(|| check::above_bound(inside.dispatcher?, bound?));
        }
        if let Some(what) = wrong {
            self.violate(who, what);
        }
        match who {
            FaultTarget::Spine(_) => {}
            FaultTarget::Leaf(number) => self.inspect_idle_at_leaf(at, number),
            _ => self.inspect_workers(at),
        }
    }

    /// Checks that no worker of a leaf is idle for long beside tasks that wait at the leaf.
    fn inspect_idle_at_leaf(&mut self, at: usize, number: u16) {
        let (who, now, topology) = (FaultTarget::Leaf(number), self.now, self.plan.topology);
        if self.plan.has_controller {
            return; // the plan does not determine the members
        }
        let mut since = std::mem::take(&mut self.sites[at].idle_ns);
        let Some(inside) = self.sites[at].node.as_ref().and_then(|node| node.inside()) else {
            return;
        };
        let Some(dispatcher) = inside.dispatcher else { return };
        let (waiting, alone) = (inside.waiting, topology.leaves == 1 || topology.spines > 0);
        let mut wrong = None;
        for (place, worker) in self.plan.workers_of(number).into_iter().map(usize::from).enumerate()
        {
            let since = &mut since[worker];
            let Worker { agent, id, .. } = self.workers[worker];
            let agent = &self.sites[agent];
            let up = agent.node.is_some() && !agent.paused && self.workers[worker].is_up();
            if waiting == 0
                || !up
                || !alone
                || !check::is_registered(dispatcher, Member(place as u16))
            {
                *since = None;
                continue;
            }
            let mut sent = self.sites[at].sent.iter().filter(|(_, to)| *to == id).peekable();
            // A packet that waits for a neighbour's address is also on its way to a worker.
            let known = sent.peek().is_none() && inside.held == inside.waiting as u64;
            if sent.any(|(task, _)| self.tasks[*task as usize].copies > 0) {
                *since = None;
                continue;
            }
            let longest = if known { check::KNOWN_IDLE_NS } else { check::WRITTEN_OFF_NS };
            let idle_ns = now - *since.get_or_insert(now);
            if idle_ns > longest {
                wrong = Some(format!(
                    "worker {id} has been idle for {idle_ns} ns while {waiting} tasks wait"
                ));
            }
        }
        self.sites[at].idle_ns = since;
        if let Some(what) = wrong {
            self.violate(who, what);
        }
    }

    /// Checks that no worker of an agent has too many tasks, or is idle for long beside waiting tasks.
    fn inspect_workers(&mut self, at: usize) {
        let (who, now) = (self.plan.topology.target(at), self.now);
        let waiting = self.sites[at]
            .node
            .as_ref()
            .and_then(|node| node.inside())
            .map_or(0, |inside| inside.waiting);
        let bound = self.plan.agent.bound().map_or(usize::MAX, |bound| bound as usize);
        for number in (0..self.workers.len())
            .filter(|&number| self.workers[number].agent == at)
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
                    who,
                    format!("worker {id} has {tasks} tasks, above the bound of {bound}"),
                );
            } else if idle_ns > check::IDLE_AT_AGENT_NS {
                self.violate(
                    who,
                    format!(
                        "worker {id} has been idle for {idle_ns} ns while {waiting} tasks wait"
                    ),
                );
            }
        }
    }

    /// Returns true if nodes disagree about members. Records a violation if this lasts too long.
    pub(super) fn differ(&mut self) -> bool {
        if self.plan.has_controller {
            return self.differ_from_desired();
        }
        let Some((who, what, longest_ns)) = self.difference() else {
            self.differ_ns = None;
            return false;
        };
        let since_ns = *self.differ_ns.get_or_insert(self.now);
        let for_ns = self.now - since_ns;
        if for_ns > longest_ns {
            let what = format!("no fault for {} ms, but {what}", for_ns / 1_000_000);
            self.violate(who, what);
        }
        true
    }

    /// The same check for nodes that follow a controller.
    fn differ_from_desired(&mut self) -> bool {
        let differs = |at: usize| Some((at, self.sites[at].node.as_ref()?.differs()?));
        let Some((at, (what, since_ns))) = self.nodes().find_map(differs) else { return false };
        let for_ns = self.now - self.now.min(since_ns.max(self.moved_ns));
        if for_ns > check::FOLLOW_NS {
            let what = format!("no fault delayed it for {} ms, but {what}", for_ns / 1_000_000);
            self.violate(self.plan.topology.target(at), what);
        }
        true
    }

    /// Returns the first missing member, its node, and the allowed duration: a worker missing at the leaf of
    /// its rack, or a leaf missing at its spine.
    fn difference(&self) -> Option<(FaultTarget, String, u64)> {
        let topology = self.plan.topology;
        let inside = |who| self.sites[topology.index(who)].node.as_ref()?.inside();
        let missing = |who, (place, what, workers): (usize, FaultTarget, Option<u16>)| {
            let why = check::is_missing(inside(who)?.dispatcher?, Member(place as u16), workers)?;
            Some((who, format!("{what} {why}")))
        };
        let spines = 1..=topology.spines;
        let racks = (1..=topology.leaves).filter(|_| topology.spines > 0);
        let worker = |leaf: u16| {
            let workers = self.plan.workers_of(leaf).into_iter().enumerate();
            let one = |(place, worker)| {
                missing(FaultTarget::Leaf(leaf), (place, FaultTarget::Worker(worker), None))
            };
            workers.map(one).find_map(|found| found)
        };
        let leaf = |spine: u16| {
            let leaves = self.plan.leaves_of(spine).into_iter().enumerate();
            let workers = |leaf| Some(self.plan.workers_of(leaf).len() as u16);
            let one = |(place, leaf)| {
                missing(FaultTarget::Spine(spine), (place, FaultTarget::Leaf(leaf), workers(leaf)))
            };
            leaves.map(one).find_map(|found| found)
        };
        let agree_ns = match self.plan.faults.rates.is_empty() {
            true => check::AGREE_NS,
            false => check::AGREE_WITH_LOSSES_NS,
        };
        let of_leaf = racks.map(worker).find_map(|found| found);
        let of_leaf = of_leaf.map(|(who, what)| (who, what, check::REGISTERED_NS));
        let of_spine = || spines.map(leaf).find_map(|found| found);
        of_leaf.or_else(|| of_spine().map(|(who, what)| (who, what, agree_ns)))
    }

    pub(super) fn finish(mut self) -> Outcome {
        let found = self.outcome.violations.len();
        for at in self.nodes() {
            self.note_drops(at);
            let who = self.plan.topology.target(at);
            let outstanding = self.sites[at]
                .node
                .as_ref()
                .and_then(|node| node.inside())
                .and_then(|inside| check::outstanding(who, &inside));
            if let Some(what) = outstanding.filter(|_| found == 0) {
                self.violate(
                    who,
                    format!("quiet for {} ms: {what}", (self.now - self.moved_ns) / 1_000_000),
                );
            }
        }
        if found == 0 {
            self.account_for_tasks();
        }
        for worker in &mut self.workers {
            worker.leave();
        }
        for at in self.nodes() {
            let who = self.plan.topology.target(at);
            if let Some(node) = self.sites[at].node.take()
                && let Err(what) = node.end(false)
                && found == 0
            {
                self.violate(who, format!("at its end: {what}"));
            }
        }
        let mut outcome = self.outcome;
        for wire in &self.wires {
            outcome.ledger.add(&wire.ledger);
            if let Some(class) = wire.ledger.imbalance() {
                let what = format!("the ledger of {wire:?} does not balance: {class}");
                outcome.violations.push(Violation {
                    at_ns: self.now,
                    who: "conductor".to_owned(),
                    what,
                });
            }
        }
        outcome.tasks = self.tasks.len() as u64;
        outcome.mean_ns = self.response_ns / outcome.answered as f64;
        (outcome.digest, outcome.end_ns) = (self.digest.to_string(), self.now);
        outcome
    }

    /// Describes the loss of tasks that went into a node and did not come out.
    fn kept_or_dropped(&self, at: usize) -> String {
        let who = self.plan.topology.target(at);
        let inside = self.sites[at].node.as_ref().and_then(|node| node.inside());
        match inside.is_some_and(|inside| inside.stranded > 0) {
            true => format!("dropped by {who}, or waiting there for drained workers"),
            false => format!("dropped by {who}"),
        }
    }

    /// Checks that each task was answered, refused, or lost for a reason.
    fn account_for_tasks(&mut self) {
        let count = self.sites.len();
        let mut vanished = vec![0_u64; count];
        let mut ended = Vec::with_capacity(self.tasks.len());
        for (number, task) in self.tasks.iter().enumerate() {
            let inside = &self.inside[number * count..][..count];
            inside
                .iter()
                .zip(&mut vanished)
                .for_each(|(inside, vanished)| *vanished += *inside as u64);
            self.outcome.answered += u64::from(task.answers > 0);
            self.outcome.refused += u64::from(task.answers == 0 && task.refusals > 0);
            let is_lost = task.answers + task.refusals == 0;
            let at = inside.iter().position(|&inside| inside > 0);
            let lost = match (at, task.taken) {
                _ if !is_lost => None,
                (Some(at), _) => Some(self.kept_or_dropped(at)),
                (None, Some(why)) => Some(PacketEnd::NAMES[why as usize].to_owned()),
                (None, None) => {
                    let what = format!("task {number} was neither answered nor refused nor lost");
                    let who = "conductor".to_owned();
                    self.outcome.violations.push(Violation { at_ns: self.now, who, what });
                    None
                }
            };
            if let Some(reason) = &lost {
                *self.outcome.lost.entry(reason.clone()).or_default() += 1;
            }
            ended.push(TaskEnd {
                sent_ns: task.sent_ns,
                answered_ns: task.answered_ns,
                lost,
                leaf: task.leaf.map(|leaf| (leaf, task.passed_ns)),
                worker: task.worker,
            });
        }
        self.outcome.ended = ended;
        for at in self.nodes() {
            let Some(inside) = self.sites[at].node.as_ref().and_then(|node| node.inside()) else {
                continue;
            };
            let (dropped, vanished) = (inside.counters.dropped_total(), vanished[at]);
            if vanished > dropped + inside.stranded {
                let who = self.plan.topology.target(at);
                self.violate(who, format!("{vanished} task packets did not leave it, but it counts {dropped} as dropped"));
            }
        }
    }
}
