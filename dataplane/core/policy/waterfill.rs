//! Stochastic coordination (Goren, Vargaftik, Moses: SCD, SIGMETRICS 2021; TWF, INFOCOM 2020). Queues are filled
//! like vessels with water. Each dispatcher assumes that all dispatchers have equally many tasks, and computes
//! the level to which they would together fill the queues. It sends to each member with a probability that
//! produces this level on average.
//!
//! With `unseen=measured`, SCD measures the arrivals from other dispatchers. Tasks that
//! arrive during a round trip are in no report yet, so SCD adds their number. The paper's rule is the default (`alike`).
//!
//! The policy needs every queue. It finds the level by sorting and prefix sums.

use std::cell::RefCell;

use rand::Rng as _;

use super::conditions::{Conditions, RunWork};
use super::{
    AnyPolicy, Caller, Candidates, Entry, Parameter, Pick, Picks, Policy, ProbeKind, Rng,
    SelectionBasis, Task,
};
use crate::state::{Member, Report, View};

/// `scd`.
pub const BY_RATE: Entry = Entry {
    by_rate: true,
    divides_runs: true,
    parameters: &[Parameter::choice("unseen", &["alike", "measured"])],
    asks: |_| ProbeKind::All,
    ..Entry::new(
        "scd",
        "stochastically coordinated dispatching: fill queues to a level by chance",
        "Goren et al., SIGMETRICS 2021",
        |v| AnyPolicy::from(WaterFill::new(true, v[0] > 0.0)),
    )
};

/// `twf`.
pub const EQUAL: Entry = Entry {
    divides_runs: true,
    asks: |_| ProbeKind::All,
    ..Entry::new(
        "twf",
        "tidal water filling: scd for equal speeds",
        "Goren et al., INFOCOM 2020",
        |_| AnyPolicy::from(WaterFill::new(false, false)),
    )
};

/// Queue of one member.
#[derive(Clone, Copy, Debug)]
struct Depth {
    /// Height of the queue's surface: queue divided by rate.
    surface: f64,
    /// Number of tasks; under SCD plus one half.
    queue: f64,
    /// Service rate; under TWF 1.
    rate: f64,
    member: Member,
}

/// Probabilities of the members.
#[derive(Clone, Debug, Default)]
struct Shares {
    depths: Vec<Depth>,
    /// Prefix sums of the probabilities, in the order of `depths`.
    sums: Vec<f64>,
}

/// SCD or TWF.
#[derive(Clone, Debug, Default)]
pub struct WaterFill {
    /// True for SCD: rates count, and half a task is added to each queue. False for TWF: all speeds are equal.
    scd: bool,
    /// Number of dispatchers that share the members.
    dispatchers: usize,
    /// Measurements of what other dispatchers have sent unseen; `None` if all are assumed to have equally many tasks.
    conditions: Option<Box<Conditions>>,
    /// Recomputed for each run of tasks, and for queries of the candidates.
    shares: RefCell<Shares>,
}

impl WaterFill {
    /// Creates the policy, SCD or TWF. If `measures`, measures what other dispatchers have sent unseen.
    #[must_use]
    pub fn new(scd: bool, measures: bool) -> Self {
        Self { scd, conditions: measures.then(Box::default), ..Self::default() }
    }

    /// Returns the number of tasks of all dispatchers together, if this one has `tasks`; under SCD minus one.
    ///
    /// SCD minimises the expected sum of queue^2 / rate. Of `a` tasks, a member with probability p gets a binomial
    /// number, with variance a p (1 - p). This variance adds half a task to each queue and takes one from a.
    fn arrivals(&self, tasks: usize) -> f64 {
        let all = match &self.conditions {
            Some(conditions) => tasks as f64 + conditions.unseen(),
            None => (self.dispatchers.max(1) * tasks) as f64,
        };
        all - if self.scd { 1.0 } else { 0.0 }
    }
}

impl Shares {
    /// Computes the probabilities for this number of tasks of all dispatchers.
    fn solve(&mut self, scd: bool, arrivals: f64, view: &View) {
        self.depths.clear();
        for &member in view.active() {
            let (rate, half) = if scd { (view.rate(member), 0.5) } else { (1.0, 0.0) };
            let queue = f64::from(view.probe(member)) + half;
            self.depths.push(Depth { surface: queue / rate, queue, rate, member });
        }
        self.depths
            .sort_unstable_by(|a, b| a.surface.total_cmp(&b.surface).then(a.member.cmp(&b.member)));
        let level = level(&self.depths, arrivals);
        self.sums.clear();
        let mut sum = 0.0;
        for depth in &self.depths {
            let share = match arrivals > 0.0 {
                // Tasks that lift the queue to the level, out of all arrivals.
                true => (depth.rate * level - depth.queue).max(0.0) / arrivals,
                // SCD, with a single task: it goes to a member with the lowest surface.
                false => f64::from(depth.surface == self.depths[0].surface),
            };
            sum += share;
            self.sums.push(sum);
        }
    }

    /// Draws a member by the probabilities; `None` without members.
    fn draw(&self, rng: &mut Rng) -> Option<Pick> {
        let total = self.sums.last()?;
        // Uniform below `total`, with 53 random bits.
        let point = (rng.next_u64() >> 11) as f64 * (-53.0_f64).exp2() * total;
        let place = self.sums.partition_point(|sum| *sum <= point).min(self.sums.len() - 1);
        let depth = &self.depths[place];
        Some(Pick { member: depth.member, idle: depth.queue < 1.0 })
    }
}

/// Returns the level at which `volume` fits over the sorted depths.
fn level(depths: &[Depth], volume: f64) -> f64 {
    // Adds members, the lowest first, until the level lies below the next surface.
    let (mut queues, mut rates, mut level) = (0.0, 0.0, 0.0);
    for depth in depths {
        if rates > 0.0 && level <= depth.surface {
            break;
        }
        queues += depth.queue;
        rates += depth.rate;
        level = (volume + queues) / rates;
    }
    level
}

impl Policy for WaterFill {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let (scd, arrivals) = (self.scd, self.arrivals(tasks.len()));
        let shares = self.shares.get_mut();
        shares.solve(scd, arrivals, view);
        for pick in picks.iter_mut().take(tasks.len()) {
            *pick = shares.draw(rng);
            if let Some(pick) = pick {
                view.sent(pick.member);
            }
        }
        if let Some(conditions) = &mut self.conditions {
            let sent = picks.get(..tasks.len()).unwrap_or_default();
            conditions.note_picks(sent, view);
        }
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        if let Some(conditions) = &mut self.conditions {
            let inverse_rate = view.rate(report.member).max(f64::MIN_POSITIVE).recip();
            let mut run = RunWork::default();
            run.add(report.service_ns, inverse_rate);
            conditions.note_work(run);
            if conditions.marked_member() == Some(report.member) {
                conditions.note_reply_of_marked_member(
                    report.service_ns,
                    inverse_rate,
                    view.now_ns(),
                );
            }
        }
    }

    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        if let Some(conditions) = &mut self.conditions {
            conditions.note_remote(member, view);
        }
    }

    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        if let Some(conditions) = &mut self.conditions {
            conditions.on_tick(view.now_ns());
        }
    }

    /// Draws the member for a single task. Its probabilities depend on all members.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        let mut shares = self.shares.borrow_mut();
        shares.solve(self.scd, self.arrivals(1), view);
        Candidates::new(SelectionBasis::Drawn, shares.draw(rng).map(|pick| pick.member))
    }

    fn on_members(&mut self, caller: Caller, view: &mut View) {
        if let Some(conditions) = &mut self.conditions {
            conditions.on_members(caller, view);
        }
        // Cores that exchange their tasks count as one dispatcher.
        self.dispatchers = if view.pool_exchange().is_some() { 1 } else { caller.core.count };
        // Room for all members, so that no decision allocates.
        let shares = self.shares.get_mut();
        shares.depths.clear();
        shares.depths.reserve(view.members());
        shares.sums.clear();
        shares.sums.reserve(view.members());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn water_finds_its_level() {
        let depth =
            |queue: f64, rate: f64| Depth { surface: queue / rate, queue, rate, member: Member(0) };
        let depths = [depth(0.0, 1.0), depth(1.0, 1.0), depth(5.0, 1.0)];
        assert_eq!(level(&depths, 1.0), 1.0);
        assert_eq!(level(&depths, 5.0), 3.0);
        assert_eq!(level(&depths, 12.0), 6.0);
        assert_eq!(level(&[depth(0.5, 1.0), depth(5.0, 10.0)], 11.0), 1.5);
    }
}
