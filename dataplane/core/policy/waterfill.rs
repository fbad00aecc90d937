//! Stochastic coordination (Goren, Vargaftik, Moses: SCD, SIGMETRICS 2021; TWF, tidal water filling, INFOCOM 2020).
//! Both are water-filling algorithms. Each dispatcher assumes that all dispatchers have equally many tasks, and
//! computes the level to which they would together fill the shortest queues. It sends to each member with a probability
//! that produces this level on average. Without it, dispatchers with equal knowledge would all choose the shortest
//! queue.
//!
//! A member's *surface* is its queue divided by its rate. The *level* is the surface that all filled members reach.
//!
//! The assumption of equally many tasks is the paper's rule and the default (`unseen=alike`). With `unseen=measured`,
//! SCD measures the arrivals from other dispatchers instead. Tasks that arrive during a round trip are in no report
//! yet, so SCD adds their number.
//!
//! The policy reads all queues. It finds the level by adding up the members in the order of their surfaces. Members of
//! equal rates are kept in one set for each queue length, so that a run visits the lengths rather than the members. A
//! run sorts the members instead in three cases: more than four different rates, a view with true queues, or queues of
//! at least `LONGEST` tasks below the level.

use std::cell::RefCell;

use arrayvec::ArrayVec;
use rand::Rng as _;

use super::conditions::{Conditions, RunWork};
use super::structure::{CLASSES, LONGEST, LengthSet, LengthSets};
use super::{
    AnyPolicy, Caller, Candidates, Entry, Parameter, Pick, Picks, Policy, QueueAccess, Rng,
    SelectionBasis, Task,
};
use crate::state::{Member, Report, View};

/// `scd`.
pub const BY_RATE: Entry = Entry {
    by_rate: true,
    decides_jointly: true,
    parameters: &[Parameter::choice("unseen", &["alike", "measured"])],
    queue_access: |_| QueueAccess::Direct,
    ..Entry::new(
        "scd",
        "stochastically coordinated dispatching: fill queues to a level by chance",
        "Goren et al., SIGMETRICS 2021",
        |v| AnyPolicy::from(WaterFill::new(true, v[0] > 0.0)),
    )
};

/// `twf`.
pub const EQUAL: Entry = Entry {
    decides_jointly: true,
    queue_access: |_| QueueAccess::Direct,
    ..Entry::new(
        "twf",
        "tidal water filling: scd for equal speeds",
        "Goren et al., INFOCOM 2020",
        |_| AnyPolicy::from(WaterFill::new(false, false)),
    )
};

/// Members with equal queues and equal rates, hence with equal surfaces; a single member if the members are sorted.
#[derive(Clone, Copy, Debug)]
struct Depth {
    /// Height of the surfaces: queue divided by rate.
    surface: f64,
    /// Number of tasks of each; under SCD plus one half.
    queue: f64,
    /// Service rate of each; under TWF 1.
    rate: f64,
    /// The members.
    members: Members,
}

/// Members of a [`Depth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Members {
    /// A single member.
    One(Member),
    /// All members of a set.
    All(LengthSet),
}

impl Depth {
    /// Creates the depth of members with `queue` tasks each, to which it adds `half`.
    fn new(queue: u32, half: f64, rate: f64, members: Members) -> Self {
        let queue = f64::from(queue) + half;
        Self { surface: queue / rate, queue, rate, members }
    }

    /// Returns the number of members.
    fn count(&self) -> f64 {
        match self.members {
            Members::One(_) => 1.0,
            Members::All(set) => f64::from(set.count),
        }
    }
}

/// Result of a computation of the level: weights of the members, proportional to their probabilities.
#[derive(Clone, Debug, Default)]
struct Shares {
    /// Members below the level, by surface. Other members get no task.
    depths: Vec<Depth>,
    /// Prefix sums of the weights, in the order of `depths`: a draw is a search among them.
    sums: Vec<f64>,
}

/// SCD or TWF.
#[derive(Clone, Debug, Default)]
pub struct WaterFill {
    /// True for SCD: rates count, and half a task is added to each queue. False for TWF: all speeds are equal.
    scd: bool,
    /// Number of dispatchers that share the members.
    dispatchers: usize,
    /// Measurements of other dispatchers' unreported tasks; `None` if all are assumed to have equally many tasks.
    conditions: Option<Box<Conditions>>,
    /// Active members by rate and outstanding tasks; empty if there are more rates than classes.
    lengths: LengthSets,
    /// Rate of each class of `lengths`. Empty if there are too many: then each run sorts all members.
    rates: ArrayVec<f64, CLASSES>,
    /// Recomputed for each run of tasks, and for queries of the candidates.
    shares: RefCell<Shares>,
}

impl WaterFill {
    /// Creates the policy, SCD or TWF. If `measures`, it measures other dispatchers' unreported tasks.
    #[must_use]
    pub fn new(scd: bool, measures: bool) -> Self {
        Self { scd, conditions: measures.then(Box::default), ..Self::default() }
    }

    /// Returns the number of tasks that fill the queues: of all dispatchers together, if this one has `tasks`. Under
    /// SCD minus one.
    ///
    /// SCD minimises the expected sum of queue^2 / rate. A member with probability p gets a binomial number of `a`
    /// tasks, with variance a p (1 - p). This variance adds half a task to each queue and takes one from a.
    fn arrivals(&self, tasks: usize) -> f64 {
        let all = match &self.conditions {
            Some(conditions) => tasks as f64 + conditions.unseen(),
            None => (self.dispatchers.max(1) * tasks) as f64,
        };
        all - if self.scd { 1.0 } else { 0.0 }
    }

    /// Returns the number of tasks added to each queue; see [`WaterFill::arrivals`].
    fn half(&self) -> f64 {
        if self.scd { 0.5 } else { 0.0 }
    }

    /// Returns the rate that counts for a member.
    fn rate(&self, member: Member, view: &View) -> f64 {
        if self.scd { view.rate(member) } else { 1.0 }
    }

    /// Moves a member to the set of its outstanding tasks. Without sets does nothing.
    #[inline]
    fn note_queue(&mut self, member: Member, view: &View) {
        self.lengths.change(member, view.outstanding(member));
    }

    /// Computes the probabilities for a run of `tasks` tasks into `self.shares`.
    fn solve(&self, tasks: usize, view: &View) {
        let (half, arrivals) = (self.half(), self.arrivals(tasks));
        let shares = &mut *self.shares.borrow_mut();
        // Sets follow the view's counts. True queues change without this dispatcher, so it must read them.
        let has_sets = !self.rates.is_empty() && !view.sees_queues();
        if !(has_sets && shares.by_length(half, arrivals, &self.rates, &self.lengths)) {
            shares.by_member(half, arrivals, |member| self.rate(member, view), view);
        }
    }

    /// Puts the active members into sets. With more rates than classes, all sets stay empty.
    fn rebuild_sets(&mut self, view: &View) {
        self.lengths.clear(view.members());
        self.rates.clear();
        for &member in view.active() {
            let rate = self.rate(member, view);
            let class = self.rates.iter().position(|other| *other == rate);
            if class.is_none() && self.rates.try_push(rate).is_err() {
                self.lengths.clear(view.members());
                self.rates.clear();
                return;
            }
            let class = class.unwrap_or(self.rates.len() - 1);
            self.lengths.insert(member, class, view.outstanding(member));
        }
    }
}

impl Shares {
    /// Computes the probabilities for `arrivals` tasks of all dispatchers, for members in sets. Merges the sets of all
    /// classes in the order of their surfaces, until a surface lies above the level. Returns false without a result if
    /// the set of `LONGEST`, whose queues differ, lies below the level.
    fn by_length(&mut self, half: f64, arrivals: f64, rates: &[f64], lengths: &LengthSets) -> bool {
        let next = |class: usize, length| {
            let (set, rate) = (lengths.next(class, length)?, *rates.get(class)?);
            Some((set, Depth::new(set.length(), half, rate, Members::All(set))))
        };
        // The next set of each class, of which the one with the lowest surface comes first.
        let mut heads: [_; CLASSES] = std::array::from_fn(|class| next(class, 0));
        let mut level = Level::of(arrivals);
        self.depths.clear();
        loop {
            let mut lowest = None::<(usize, LengthSet, Depth)>;
            for (class, head) in heads.iter().enumerate().take(rates.len()) {
                if let Some((set, depth)) = *head
                    && lowest.is_none_or(|(_, _, lowest)| depth.surface < lowest.surface)
                {
                    lowest = Some((class, set, depth));
                }
            }
            let Some((class, set, depth)) = lowest.filter(|(_, _, depth)| level.covers(depth))
            else {
                break;
            };
            if set.length() == LONGEST {
                return false;
            }
            self.depths.push(depth);
            heads[class] = next(class, set.length() + 1);
        }
        self.sum_up(level);
        true
    }

    /// Same as [`Shares::by_length`] for any rates and queues. Sorts the members.
    fn by_member(&mut self, half: f64, arrivals: f64, rate: impl Fn(Member) -> f64, view: &View) {
        self.depths.clear();
        self.depths.extend(view.active().iter().map(|&member| {
            Depth::new(view.probe(member), half, rate(member), Members::One(member))
        }));
        self.depths.sort_unstable_by(|a, b| {
            a.surface.total_cmp(&b.surface).then_with(|| a.members.cmp(&b.members))
        });
        let mut level = Level::of(arrivals);
        let covered = self.depths.iter().take_while(|depth| level.covers(depth)).count();
        self.depths.truncate(covered);
        self.sum_up(level);
    }

    /// Computes the prefix sums of the weights for the members in `depths`.
    fn sum_up(&mut self, level: Level) {
        self.sums.clear();
        let mut sum = 0.0;
        for depth in &self.depths {
            let share = match level.volume > 0.0 {
                // Tasks that lift the queue to the level, out of all arrivals.
                true => (depth.rate * level.height - depth.queue).max(0.0) / level.volume,
                // SCD with a single task in all. Only members with the lowest surface are in `depths`; one gets it.
                false => 1.0,
            };
            sum += share * depth.count();
            self.sums.push(sum);
        }
    }

    /// Draws a member by the weights; `None` without members.
    fn draw(&self, lengths: &LengthSets, rng: &mut Rng) -> Option<Pick> {
        let total = self.sums.last()?;
        // Uniform below `total`, with 53 random bits.
        let point = (rng.next_u64() >> 11) as f64 * (-53.0_f64).exp2() * total;
        let place = self.sums.partition_point(|sum| *sum <= point).min(self.sums.len() - 1);
        let depth = &self.depths[place];
        let member = match depth.members {
            Members::One(member) => member,
            Members::All(set) => {
                // The position of the point in the interval of this depth selects the member.
                let before = if place == 0 { 0.0 } else { self.sums[place - 1] };
                let count = f64::from(set.count);
                let nth = (point - before) / (self.sums[place] - before) * count;
                lengths.get(set, (nth as usize).min(usize::from(set.count) - 1))?
            }
        };
        Some(Pick { member, idle: depth.queue < 1.0 })
    }
}

/// Level that a volume of tasks reaches over the surfaces added so far. More members share the volume, so each surface
/// lowers the level. The final level is that before the first surface above it.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// Number of tasks that fill the queues.
    volume: f64,
    /// Sum of the queues of the covered members.
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

    /// Adds members, and recomputes the height. Returns false without effect if their surface lies above the level.
    /// Requires calls in ascending order of surfaces.
    fn covers(&mut self, depth: &Depth) -> bool {
        self.lowest = self.lowest.min(depth.surface);
        // Without volume the level equals the lowest surface, and covers all members with that surface.
        if self.height <= depth.surface && self.lowest < depth.surface {
            return false;
        }
        let count = depth.count();
        self.queues += depth.queue * count;
        self.rates += depth.rate * count;
        self.height = (self.volume + self.queues) / self.rates;
        true
    }
}

impl Policy for WaterFill {
    /// Computes the probabilities once for the run, and draws a member for each task.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        self.solve(tasks.len(), view);
        let count = tasks.len().min(picks.len());
        let picks = &mut picks[..count];
        let shares = self.shares.get_mut();
        picks.fill_with(|| shares.draw(&self.lengths, rng));
        for pick in picks.iter().flatten() {
            view.sent(pick.member);
            self.note_queue(pick.member, view);
        }
        if let Some(conditions) = &mut self.conditions {
            conditions.note_picks(picks, view);
        }
    }

    /// Processes a report without a reply: records the load, and moves the member to the set of its queue. It measures
    /// nothing.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        self.note_queue(report.member, view);
    }

    /// Counts answers, and processes their reports. With `unseen=measured`, measures the tasks' work and round trip.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, rng: &mut Rng) -> usize {
        let mut surplus = 0;
        for report in reports {
            surplus += usize::from(!view.of(report.member).answered_with(report.load));
            self.on_reply(report, view, rng);
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
        surplus
    }

    /// Moves the member to the set of its queue, to which the caller has added a task without a pick.
    fn on_follow(&mut self, member: Member, view: &mut View) {
        self.note_queue(member, view);
    }

    /// Moves the member to the set of its current tasks after the caller corrected them. A marked task there may have
    /// been written off.
    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.note_queue(member, view);
        if let Some(conditions) = &mut self.conditions {
            conditions.forget(member);
        }
    }

    /// Moves the member to the set of its current tasks. With `unseen=measured`, counts other dispatchers' arrivals.
    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        self.note_queue(member, view);
        if let Some(conditions) = &mut self.conditions {
            conditions.note_remote(member, view);
        }
    }

    /// Gives up a marked task whose reply takes too long. Its reply would measure the round trip.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        if let Some(conditions) = &mut self.conditions {
            conditions.on_tick(view.now_ns());
        }
    }

    /// Returns the member that the next decision on a single task draws, as the only candidate.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        self.solve(1, view);
        let drawn = self.shares.borrow().draw(&self.lengths, rng);
        Candidates::new(SelectionBasis::Drawn, drawn.map(|pick| pick.member))
    }

    /// Puts the active members into sets, counts the dispatchers, and allocates memory for all decisions.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        if let Some(conditions) = &mut self.conditions {
            conditions.on_members(caller, view);
        }
        // Cores that exchange their tasks count as one dispatcher.
        self.dispatchers = if view.pool_exchange().is_some() { 1 } else { caller.core.count };
        self.rebuild_sets(view);
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

    /// Members in the tests.
    const MEMBERS: u16 = 90;

    /// Creates the policy over the only dispatcher's view of members with as many rates as `classes`. It keeps members
    /// in sets if `sets`, and sorts them otherwise.
    fn policy(scd: bool, classes: usize, sets: bool) -> (WaterFill, View) {
        let mut policy = WaterFill::new(scd, false);
        let mut view = View::heap(MEMBERS.into(), 1).remove(0);
        // Powers of two: no two members of different rates have the same (queue + 0.5) / rate. Sets would draw these
        // members in another order.
        let rate = |member: u16| f64::from(1 << (usize::from(member) % classes));
        view.set_rates(&(0..MEMBERS).map(rate).collect::<Vec<_>>());
        policy.on_members(Caller::on(Core::ONLY), &mut view);
        assert_eq!(policy.rates.len(), if scd { classes } else { 1 });
        if !sets {
            policy.rates.clear();
        }
        (policy, view)
    }

    proptest! {
        /// Sets of members with equal queues give the same choices as sorted members.
        // promise: scheduling.5
        #[test]
        fn sets_and_sorted_members_choose_equally(
            scd in any::<bool>(),
            classes in 1..=CLASSES,
            steps in proptest::collection::vec((0..40_usize, 0..MEMBERS), 1..200),
            deep in 0..MEMBERS,
        ) {
            let mut of_sets = (policy(scd, classes, true), Rng::seed_from_u64(1));
            let mut of_sort = (policy(scd, classes, false), Rng::seed_from_u64(1));
            // Schedules tasks, and answers one task of each third member from `from` on. Returns the picks, and the
            // candidates of the next task.
            let run = |((policy, view), rng): &mut ((WaterFill, View), Rng), tasks: usize, from: u16| {
                let mut picks = [None; 40];
                policy.pick_run(&[Task::default(); 40][..tasks], &mut picks, view, rng);
                for member in (from..MEMBERS).step_by(3).map(Member) {
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
                        (0..70 * MEMBERS).map(|task| Member(task % MEMBERS)).for_each(|member| {
                            view.sent(member);
                            policy.on_follow(member, view);
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn only_replies_measure_the_round_trip() {
        let (mut policy, mut view) = (WaterFill::new(true, true), View::heap(1, 1).remove(0));
        let mut rng = Rng::seed_from_u64(1);
        policy.on_members(Caller::on(Core::ONLY), &mut view);
        let marked = |policy: &WaterFill| policy.conditions.as_ref().unwrap().marked_member();
        policy.pick_run(&[Task::default()], &mut [None], &mut view, &mut rng);
        assert_eq!(marked(&policy), Some(Member(0)));
        let report = Report::new(Member(0), Load(0), 100);
        policy.on_reply(&report, &mut view, &mut rng); // for instance of a keep-alive
        assert_eq!(marked(&policy), Some(Member(0)));
        assert_eq!(policy.reply_run(&[report], &mut view, &mut rng), 0);
        assert_eq!(marked(&policy), None);
        // A written-off task has no reply.
        policy.pick_run(&[Task::default()], &mut [None], &mut view, &mut rng);
        assert_eq!(view.write_off(Member(0), 1), 1);
        policy.on_written_off(Member(0), &mut view);
        assert_eq!(marked(&policy), None);
    }

    #[test]
    fn water_finds_its_level() {
        // Returns the number of covered members and the height, for members with these queues and rates.
        let height = |depths: &[(u32, f64)], half: f64, volume: f64| {
            let mut level = Level::of(volume);
            let covered = depths.iter().take_while(|&&(queue, rate)| {
                level.covers(&Depth::new(queue, half, rate, Members::One(Member(0))))
            });
            (covered.count(), level.height)
        };
        let depths = [(0, 1.0), (1, 1.0), (5, 1.0)];
        assert_eq!(height(&depths, 0.0, 1.0), (1, 1.0));
        assert_eq!(height(&depths, 0.0, 5.0), (2, 3.0));
        assert_eq!(height(&depths, 0.0, 12.0), (3, 6.0));
        assert_eq!(height(&[(0, 1.0), (5, 10.0)], 0.5, 10.5), (2, 1.5));
        // Without volume: all members with the lowest surface.
        assert_eq!(height(&[(0, 1.0), (0, 1.0), (1, 1.0)], 0.5, 0.0), (2, 0.5));
    }
}
