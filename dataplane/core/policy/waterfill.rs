//! Stochastic coordination (Goren, Vargaftik, Moses: SCD, SIGMETRICS 2021; TWF, INFOCOM 2020). Queues are filled
//! like vessels with water. Each dispatcher assumes that all dispatchers have equally many tasks, and computes
//! the level to which they would together fill the queues. It sends to each member with a probability that
//! produces this level on average.
//!
//! With `unseen=measured`, SCD measures the arrivals from other dispatchers. Tasks that
//! arrive during a round trip are in no report yet, so SCD adds their number. The paper's rule is the default (`alike`).
//!
//! The policy needs every queue. It finds the level by prefix sums over the members in the order of their surfaces.
//! Members of equal rates are kept in one set for each queue length, and a run takes the same time for any number of
//! them. Members of different rates are sorted for each run.

use std::cell::RefCell;

use rand::Rng as _;

use super::conditions::{Conditions, RunWork};
use super::structure::{LONGEST, LengthSets};
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

/// Members with equal surfaces.
#[derive(Clone, Copy, Debug)]
struct Depth {
    /// Height of the surfaces: queue divided by rate.
    surface: f64,
    /// Number of tasks of each; under SCD plus one half.
    queue: f64,
    /// Service rate of each; under TWF 1.
    rate: f64,
    /// Number of members.
    count: u16,
    members: Members,
}

/// Members of a [`Depth`].
#[derive(Clone, Copy, Debug)]
enum Members {
    /// The only member.
    One(Member),
    /// All members with a queue of this length.
    All(u32),
}

impl Members {
    /// Returns a number by which members with equal surfaces are ordered.
    fn order(self) -> u32 {
        match self {
            Self::One(member) => member.0.into(),
            Self::All(length) => length,
        }
    }
}

/// Probabilities of the members.
#[derive(Clone, Debug, Default)]
struct Shares {
    /// Members below the level, by surface. Other members get no task.
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
    /// Active members by outstanding tasks.
    lengths: LengthSets,
    /// Rate of all members; `None` if their rates differ. The members of one length then have different surfaces, and
    /// each run sorts all members.
    rate: Option<f64>,
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

    /// Computes the probabilities for a run of `tasks` tasks.
    fn solve(&self, tasks: usize, view: &View) {
        let (scd, arrivals) = (self.scd, self.arrivals(tasks));
        let shares = &mut *self.shares.borrow_mut();
        // True queues change without this dispatcher, so they are in no set.
        let is_solved = !view.sees_queues()
            && self.rate.is_some_and(|rate| shares.by_length(scd, arrivals, rate, &self.lengths));
        if !is_solved {
            shares.by_member(scd, arrivals, view);
        }
    }
}

impl Shares {
    /// Computes the probabilities for this number of tasks of all dispatchers, for members of the same rate. Returns
    /// false if the longest queues, whose lengths are not known, lie below the level.
    fn by_length(&mut self, scd: bool, arrivals: f64, rate: f64, lengths: &LengthSets) -> bool {
        let half = if scd { 0.5 } else { 0.0 };
        let mut level = Level::of(arrivals);
        self.depths.clear();
        for (length, count) in lengths.iter() {
            let queue = f64::from(length) + half;
            let members = Members::All(length);
            let depth = Depth { surface: queue / rate, queue, rate, count, members };
            if !level.covers(&depth) {
                break;
            }
            if length == LONGEST {
                return false;
            }
            self.depths.push(depth);
        }
        self.sum_up(level);
        true
    }

    /// Same as [`Shares::by_length`] for any rates and queues. Sorts the members.
    fn by_member(&mut self, scd: bool, arrivals: f64, view: &View) {
        self.depths.clear();
        for &member in view.active() {
            let (rate, half) = if scd { (view.rate(member), 0.5) } else { (1.0, 0.0) };
            let queue = f64::from(view.probe(member)) + half;
            let members = Members::One(member);
            self.depths.push(Depth { surface: queue / rate, queue, rate, count: 1, members });
        }
        self.depths.sort_unstable_by(|a, b| {
            a.surface.total_cmp(&b.surface).then(a.members.order().cmp(&b.members.order()))
        });
        let mut level = Level::of(arrivals);
        let covered = self.depths.iter().take_while(|depth| level.covers(depth)).count();
        self.depths.truncate(covered);
        self.sum_up(level);
    }

    /// Computes the prefix sums for the members below the level.
    fn sum_up(&mut self, level: Level) {
        self.sums.clear();
        let mut sum = 0.0;
        for depth in &self.depths {
            let share = match level.volume > 0.0 {
                // Tasks that lift the queue to the level, out of all arrivals.
                true => (depth.rate * level.height - depth.queue).max(0.0) / level.volume,
                // SCD, with a single task: it goes to a member with the lowest surface.
                false => 1.0,
            };
            sum += share * f64::from(depth.count);
            self.sums.push(sum);
        }
    }

    /// Draws a member by the probabilities; `None` without members.
    fn draw(&self, lengths: &LengthSets, rng: &mut Rng) -> Option<Pick> {
        let total = self.sums.last()?;
        // Uniform below `total`, with 53 random bits.
        let point = (rng.next_u64() >> 11) as f64 * (-53.0_f64).exp2() * total;
        let place = self.sums.partition_point(|sum| *sum <= point).min(self.sums.len() - 1);
        let depth = &self.depths[place];
        let member = match depth.members {
            Members::One(member) => member,
            Members::All(length) => {
                let before = if place == 0 { 0.0 } else { self.sums[place - 1] };
                let count = f64::from(depth.count);
                let nth = (point - before) / (self.sums[place] - before) * count;
                lengths.get(length, (nth as usize).min(usize::from(depth.count) - 1))?
            }
        };
        Some(Pick { member, idle: depth.queue < 1.0 })
    }
}

/// Level of the water. It rises with each surface that it covers, in ascending order.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Number of tasks that fill the queues.
    volume: f64,
    /// Sum of the covered queues.
    queues: f64,
    /// Sum of the rates of the covered members.
    rates: f64,
    /// The level; infinite before the first surface.
    height: f64,
    /// The lowest surface.
    lowest: f64,
}

impl Level {
    /// Returns the level of this volume over no members.
    fn of(volume: f64) -> Self {
        Self { volume, queues: 0.0, rates: 0.0, height: f64::INFINITY, lowest: f64::INFINITY }
    }

    /// Adds members. Returns false without effect if their surface lies above the level.
    fn covers(&mut self, depth: &Depth) -> bool {
        self.lowest = self.lowest.min(depth.surface);
        // Without volume the level equals the lowest surface, and covers all members with that surface.
        if self.height <= depth.surface && self.lowest < depth.surface {
            return false;
        }
        let count = f64::from(depth.count);
        self.queues += depth.queue * count;
        self.rates += depth.rate * count;
        self.height = (self.volume + self.queues) / self.rates;
        true
    }
}

impl Policy for WaterFill {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        self.solve(tasks.len(), view);
        let count = tasks.len().min(picks.len());
        let picks = &mut picks[..count];
        let shares = self.shares.get_mut();
        picks.fill_with(|| shares.draw(&self.lengths, rng));
        for pick in picks.iter().flatten() {
            view.sent(pick.member);
            self.lengths.change(pick.member, view.outstanding(pick.member));
        }
        if let Some(conditions) = &mut self.conditions {
            conditions.note_picks(picks, view);
        }
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        self.lengths.change(report.member, view.outstanding(report.member));
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

    fn on_follow(&mut self, member: Member, view: &mut View) {
        self.lengths.change(member, view.outstanding(member));
    }

    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.lengths.change(member, view.outstanding(member));
    }

    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        self.lengths.change(member, view.outstanding(member));
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
        self.solve(1, view);
        let drawn = self.shares.borrow().draw(&self.lengths, rng);
        Candidates::new(SelectionBasis::Drawn, drawn.map(|pick| pick.member))
    }

    fn on_members(&mut self, caller: Caller, view: &mut View) {
        if let Some(conditions) = &mut self.conditions {
            conditions.on_members(caller, view);
        }
        // Cores that exchange their tasks count as one dispatcher.
        self.dispatchers = if view.pool_exchange().is_some() { 1 } else { caller.core.count };
        self.lengths.clear(view.members());
        for &member in view.active() {
            self.lengths.insert(member, view.outstanding(member));
        }
        let mut rates =
            view.active().iter().map(|member| if self.scd { view.rate(*member) } else { 1.0 });
        let first = rates.next();
        self.rate = first.filter(|first| rates.all(|rate| rate == *first));
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
    use super::super::Core;
    use super::*;
    use crate::policy::Rng;
    use crate::state::Load;
    use proptest::prelude::*;
    use rand::SeedableRng as _;

    /// Creates the policy over the only dispatcher's view of `members` members. Unless `sets`, it sorts them.
    fn policy(scd: bool, sets: bool, members: usize) -> (WaterFill, View) {
        let (mut policy, mut view) = (WaterFill::new(scd, false), View::heap(members, 1).remove(0));
        policy.on_members(Caller::on(Core::ONLY), &mut view);
        if !sets {
            policy.rate = None;
        }
        (policy, view)
    }

    proptest! {
        /// Sets of members with equal queues give the same choices as sorted members.
        // promise: scheduling.5
        #[test]
        fn sets_and_sorted_members_choose_equally(
            scd in any::<bool>(),
            steps in proptest::collection::vec((0..40_usize, 0..90_u16), 1..200),
            deep in 0..90_u16,
        ) {
            let mut of_sets = (policy(scd, true, 90), Rng::seed_from_u64(1));
            let mut of_sort = (policy(scd, false, 90), Rng::seed_from_u64(1));
            let run = |((policy, view), rng): &mut ((WaterFill, View), Rng), tasks: usize, from: u16| {
                let mut picks = [None; 40];
                policy.pick_run(&[Task::default(); 40][..tasks], &mut picks, view, rng);
                for member in (from..90).step_by(3).map(Member) {
                    if view.answered(member) {
                        let report = Report::new(member, Load(0), 0);
                        policy.on_reply(&report, view, rng);
                    }
                }
                let next = policy.candidates(view, &mut rng.clone());
                (picks, next)
            };
            for (tasks, from) in steps {
                prop_assert_eq!(run(&mut of_sets, tasks, from), run(&mut of_sort, tasks, from));
                // Beyond the last length of the sets.
                if from == deep {
                    for ((policy, view), _) in [&mut of_sets, &mut of_sort] {
                        (0..90 * 70_u16).for_each(|task| {
                            view.sent(Member(task % 90));
                            policy.on_follow(Member(task % 90), view);
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn water_finds_its_level() {
        let height = |depths: &[(f64, f64, u16)], volume: f64| {
            let mut level = Level::of(volume);
            let covered = depths.iter().take_while(|&&(queue, rate, count)| {
                let members = Members::One(Member(0));
                level.covers(&Depth { surface: queue / rate, queue, rate, count, members })
            });
            (covered.count(), level.height)
        };
        let depths = [(0.0, 1.0, 1), (1.0, 1.0, 1), (5.0, 1.0, 1)];
        assert_eq!(height(&depths, 1.0), (1, 1.0));
        assert_eq!(height(&depths, 5.0), (2, 3.0));
        assert_eq!(height(&depths, 12.0), (3, 6.0));
        assert_eq!(height(&[(0.5, 1.0, 1), (5.0, 10.0, 1)], 11.0), (2, 1.5));
        assert_eq!(height(&[(0.0, 1.0, 3), (4.0, 1.0, 2)], 6.0), (1, 2.0));
        // Without volume: all members with the lowest surface.
        assert_eq!(height(&[(0.5, 1.0, 1), (0.5, 1.0, 1), (1.5, 1.0, 1)], 0.0), (2, 0.5));
    }
}
