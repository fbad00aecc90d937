//! What is looked at after each turn of a node, and when everything is quiet.

use wedjat::reason::DropReason;
use wedjat::state::Member;

use super::super::check::{self, Violation};
use super::super::faults::Who;
use super::super::packets::Taken;
use super::super::workers::Worker;
use super::{Outcome, System};

impl System<'_> {
    pub(super) fn note_drops(&mut self, at: usize) {
        let who = self.plan.topology.who(at).to_string();
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

    /// Looks at what must be so after each turn.
    pub(super) fn inspect(&mut self, at: usize) {
        let (who, site) = (self.plan.topology.who(at), &self.sites[at]);
        let Some(node) = &site.node else { return };
        let mut wrong = check::books(&site.line, &site.passed);
        let inside = node.inside();
        if let Some(inside) = &inside {
            wrong = wrong.or_else(|| check::ledger(who, inside, &site.passed));
            let policy =
                if matches!(who, Who::Leaf(_)) { &self.plan.leaf } else { &self.plan.agent };
            wrong = wrong.or_else(|| check::above_bound(inside.dispatcher, policy.bound()?));
        }
        if let Some(what) = wrong {
            self.violate(who, what);
        }
        match who {
            Who::Leaf(_) => self.inspect_idle_at_leaf(at),
            _ => self.inspect_workers(at),
        }
    }

    /// A leaf lets no worker be idle for long while tasks wait in it.
    fn inspect_idle_at_leaf(&mut self, at: usize) {
        let (who, now) = (self.plan.topology.who(at), self.now);
        let mut since = std::mem::take(&mut self.sites[at].idle_ns);
        let Some(inside) = self.sites[at].node.as_ref().and_then(|node| node.inside()) else {
            return;
        };
        let (waiting, alone) = (inside.waiting, self.plan.topology.leaves == 1);
        let mut wrong = None;
        for (worker, since) in since.iter_mut().enumerate() {
            let Worker { agent, id, .. } = self.workers[worker];
            let agent = &self.sites[agent];
            let up = agent.node.is_some() && !agent.paused && self.workers[worker].is_up();
            if waiting == 0
                || !up
                || !alone
                || !check::is_there(inside.dispatcher, Member(worker as u16))
            {
                *since = None;
                continue;
            }
            let mut sent = self.sites[at].sent.iter().filter(|(_, to)| *to == id).peekable();
            // What waits for a neighbour's address is on its way to a worker, too.
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

    /// No worker of an agent has too many tasks, or none for long while tasks wait.
    fn inspect_workers(&mut self, at: usize) {
        let (who, now) = (self.plan.topology.who(at), self.now);
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
                    format!("worker {id} has {tasks} tasks, with a bound of {bound}"),
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

    pub(super) fn finish(mut self) -> Outcome {
        let found = self.outcome.violations.len();
        for at in self.nodes() {
            self.note_drops(at);
            let who = self.plan.topology.who(at);
            let outstanding = self.sites[at]
                .node
                .as_ref()
                .and_then(|node| node.inside())
                .and_then(|inside| check::outstanding(&inside));
            if let Some(what) = outstanding.filter(|_| found == 0) {
                self.violate(
                    who,
                    format!(
                        "all has been quiet for {} ms: {what}",
                        (self.now - self.moved_ns) / 1_000_000
                    ),
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
            let who = self.plan.topology.who(at);
            if let Some(node) = self.sites[at].node.take()
                && let Err(what) = node.end(false)
                && found == 0
            {
                self.violate(who, format!("at its end: {what}"));
            }
        }
        let mut outcome = self.outcome;
        for wire in &self.wires {
            outcome.book.add(&wire.book);
            if let Some(class) = wire.book.imbalance() {
                let what = format!("the books of {wire:?} do not balance: {class}");
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

    /// Each task was answered, given back, or is lost for a reason.
    fn account_for_tasks(&mut self) {
        let count = self.sites.len();
        let mut vanished = vec![0_u64; count];
        for (number, task) in self.tasks.iter().enumerate() {
            let inside = &self.inside[number * count..][..count];
            inside
                .iter()
                .zip(&mut vanished)
                .for_each(|(inside, vanished)| *vanished += *inside as u64);
            if task.answers > 0 {
                self.outcome.answered += 1;
                continue;
            }
            if task.refusals > 0 {
                self.outcome.refused += 1;
                continue;
            }
            let at = inside.iter().position(|&inside| inside > 0);
            let reason = match (at, task.taken) {
                (Some(at), _) => format!("dropped by {}", self.plan.topology.who(at)),
                (None, Some(why)) => Taken::NAMES[why as usize].to_owned(),
                (None, None) => {
                    let what = format!(
                        "task {number} was neither answered nor refused, and nobody has lost it"
                    );
                    let who = "conductor".to_owned();
                    self.outcome.violations.push(Violation { at_ns: self.now, who, what });
                    continue;
                }
            };
            *self.outcome.lost.entry(reason).or_default() += 1;
        }
        for at in self.nodes() {
            let Some(inside) = self.sites[at].node.as_ref().and_then(|node| node.inside()) else {
                continue;
            };
            let (dropped, vanished) = (inside.counters.dropped_total(), vanished[at]);
            if vanished > dropped {
                let who = self.plan.topology.who(at);
                self.violate(who, format!("{vanished} packets of tasks did not leave it, and it counts {dropped} as dropped"));
            }
        }
    }
}
