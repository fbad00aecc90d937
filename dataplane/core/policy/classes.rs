//! Rules for classes of tasks: the order of waiting tasks, and members that long tasks may not take. Policies that hold
//! tasks (`jbsq`, `cfcfs`, `eft`) have the parameters `boost`, `slo` and `reserve` for them.
//!
//! Waiting tasks of one class form a *lane*, in order of arrival. The first tasks of all lanes compete by their *keys*.
//! The least key goes first. With `slo`, a list of time limits by class, the key is the deadline: arrival plus the
//! limit of the class (earliest deadline first). A class without a limit has the longest one of the list.
//!
//! Without `slo` the key is the arrival plus `boost` times the mean service time of the class. With `boost` 0
//! this is the order of arrival. With a large one, the class with the shortest tasks goes first. In between, a short
//! task overtakes a long one that arrived at most `boost` times the difference of their means before it. This is the
//! order of earliest deadlines, with deadlines in proportion to the service times of the classes.
//!
//! With `reserve` n, *long* classes may not take n of the members. Short tasks then rarely find all members busy with
//! long ones (DARC, Demoulin et al.: Persephone, SOSP 2021). A class is long if its mean service time is above half of
//! the longest one, and some class is not. A backlog of two long tasks for each member ends the reserve for long tasks:
//! too large a reserve must not make the pool unstable. If `eft` lets no task wait at the dispatcher, the queues of
//! unreserved members show the backlog.
//!
//! A change of the policy leaves waiting tasks in their lanes, because a core must not move a whole queue between two
//! bursts. Tasks that wait without rules for classes are in the first lane. After a change to such rules they go in the
//! order of arrival, with the keys of class 0. A long one among them still takes no reserved member.
//!
//! Mean service times are learned from the replies, which carry time and class, or from the reports in their place
//! (direct return, worker threads, pickers). A class without recent replies has no effect on others.

use std::ops::Range;

use super::Task;
use crate::state::{Member, Report, View};

/// Number of lanes. Classes 0 to 6 have one each, and all others share the last one.
pub const LANES: usize = 8;

/// Maximum number of replies over which the mean service time of a lane is averaged.
const AVERAGED: f64 = 1024.0;
/// Number of replies after which the keys follow the measured times.
const WINDOW: u32 = 64;
/// Number of windows after which a class without a reply no longer affects others. Its own key keeps its last mean.
const RECENT_WINDOWS: u32 = 256;
/// Minimum number of waiting long tasks per member that lets long tasks take reserved members.
pub(super) const LONG_MOST: usize = 2;

/// Lane of waiting tasks, by index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lane(u8);

impl Lane {
    /// The lane of class 0, and of all tasks without rules for classes.
    pub const FIRST: Self = Self(0);

    /// Returns the index, below [`LANES`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Iterates over all lanes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANES as u8).map(Self)
    }
}

/// Set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes(u8);

impl Lanes {
    /// No lane.
    pub const NONE: Self = Self(0);
    /// All lanes.
    pub const ALL: Self = Self(u8::MAX);

    /// Returns true if the set has this lane.
    #[inline]
    #[must_use]
    pub const fn contains(self, lane: Lane) -> bool {
        self.0 >> lane.0 & 1 == 1
    }

    /// Returns the union of both sets.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Parameters of a policy for classes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClassRules {
    /// Factor of the class's mean service time in the key of a task; 0 for the order of arrival.
    pub boost: f64,
    /// Time limit of each lane in microseconds; 0 for none. With any limit, the keys are deadlines, and `boost` has no
    /// effect.
    pub slo_us: [f64; LANES],
    /// Number of members that long classes may not take.
    pub reserve: usize,
}

impl ClassRules {
    /// Creates the rules from the values of the parameters `boost`, `reserve` and `slo`, in this order.
    pub(super) fn from_values(values: &[f64]) -> Self {
        let slo_us = |lane: usize| values.get(2 + lane).copied().unwrap_or_default();
        let [boost, reserve] = [0, 1].map(|index| values.get(index).copied().unwrap_or_default());
        Self { boost, slo_us: std::array::from_fn(slo_us), reserve: reserve as usize }
    }
}

/// Use of reserved members by a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReserveUse {
    /// Prefers them to equally good members.
    #[default]
    First,
    /// Prefers equally good members to them.
    Last,
    /// Takes none of them.
    Never,
}

/// Reserved members of a pool, and their use by the next picks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserve {
    /// Configured number of reserved members.
    pub members: usize,
    /// End of the reserved members' indices, which begin at 0.
    pub end: usize,
    /// Use by the next picks.
    pub usage: ReserveUse,
}

impl Reserve {
    /// Creates the reserve of a pool without members.
    pub(super) fn new(members: usize) -> Self {
        Self { members, ..Self::default() }
    }

    /// Returns true if the member is reserved.
    #[inline]
    pub(super) fn has(&self, member: Member) -> bool {
        member.index() < self.end
    }

    /// Returns the index ranges of the members that the next pick may take, the preferred one first.
    pub(super) fn ranges(&self) -> [Range<usize>; 2] {
        let [reserved, others] = [0..self.end, self.end..usize::MAX];
        match self.usage {
            ReserveUse::First => [reserved, others],
            ReserveUse::Last => [others, reserved],
            ReserveUse::Never => [others, 0..0],
        }
    }
}

/// Measured times of one lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneTimes {
    /// Mean service time at rate 1, in nanoseconds; 0 before the first reply.
    mean_ns: f64,
    /// Number of replies, at most [`AVERAGED`].
    replies: f64,
    /// Number of the window with the last reply.
    last_window: u32,
}

/// Classes of a pool's tasks, on one core.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    rules: ClassRules,
    times: [LaneTimes; LANES],
    /// Number of replies in this window.
    replies: u32,
    /// Number of this window.
    window: u32,
    /// Time in nanoseconds from the arrival of a task to its key, for each lane.
    delays_ns: [u64; LANES],
    /// Lanes of long classes.
    long: Lanes,
    /// True if too many long tasks waited at the last reply or tick. They may then take reserved members.
    is_backlogged: bool,
}

impl Classes {
    /// Creates the classes without measurements. `None` if the rules have no effect.
    pub(super) fn new(rules: ClassRules) -> Option<Box<Self>> {
        let mut classes = Self {
            rules,
            times: [LaneTimes::default(); LANES],
            replies: 0,
            window: 0,
            delays_ns: [0; LANES],
            long: Lanes::NONE,
            is_backlogged: false,
        };
        classes.apply();
        (rules != ClassRules::default()).then(|| Box::new(classes))
    }

    /// Takes over the measurements of another policy's classes.
    pub(super) fn adopt(&mut self, measured: &Self) {
        (self.times, self.window) = (measured.times, measured.window);
        self.apply();
    }

    /// Returns the lane of a task.
    #[inline]
    pub(super) fn lane(&self, task: Task) -> Lane {
        lane_of(task.class)
    }

    /// Returns the time in nanoseconds from the arrival of a lane's task to its key.
    #[inline]
    pub(super) fn delay_ns(&self, lane: Lane) -> u64 {
        self.delays_ns[lane.index()]
    }

    /// Returns the key of a task that arrived at `since_ns`.
    #[inline]
    pub(super) fn key(&self, lane: Lane, since_ns: u64) -> u64 {
        since_ns.saturating_add(self.delay_ns(lane))
    }

    /// Returns the number of members that long classes may not take.
    pub(super) fn reserve(&self) -> usize {
        self.rules.reserve
    }

    /// Returns the lanes of long classes; none without a reserve.
    #[inline]
    pub(super) fn long(&self) -> Lanes {
        self.long
    }

    /// Returns the use of reserved members by tasks of this lane.
    #[inline]
    pub(super) fn reserve_use(&self, lane: Lane) -> ReserveUse {
        match (self.long.contains(lane), self.is_backlogged) {
            (false, _) => ReserveUse::First,
            (true, true) => ReserveUse::Last,
            (true, false) => ReserveUse::Never,
        }
    }

    /// Ends the reserve for long tasks, or restores it, by the number of long tasks that wait on this core, one of
    /// `cores`. The caller does so at replies, after which it offers waiting tasks again. With several cores it also
    /// does so at ticks.
    pub(super) fn note_waiting(&mut self, waiting: usize, members: usize, cores: usize) {
        self.is_backlogged = waiting * cores >= LONG_MOST * members;
    }

    /// Measures the service times in reports. The result does not depend on the division of reports into calls.
    pub(super) fn learn(&mut self, reports: &[Report], view: &View) {
        for report in reports.iter().filter(|report| report.service_ns > 0) {
            let times = &mut self.times[lane_of(report.class).index()];
            let work_ns = f64::from(report.service_ns) * view.rate(report.member);
            times.replies = (times.replies + 1.0).min(AVERAGED);
            times.mean_ns += (work_ns - times.mean_ns) / times.replies;
            times.last_window = self.window;
            self.replies += 1;
            if self.replies == WINDOW {
                (self.replies, self.window) = (0, self.window.wrapping_add(1));
                self.apply();
            }
        }
    }

    /// Computes keys and long classes from the measured times.
    fn apply(&mut self) {
        let recent = |times: &LaneTimes| {
            times.replies > 0.0 && self.window.wrapping_sub(times.last_window) <= RECENT_WINDOWS
        };
        let means = || self.times.iter().filter(|times| recent(times)).map(|times| times.mean_ns);
        let average_ns = means().sum::<f64>() / means().count().max(1) as f64;
        let half = means().fold(0.0, f64::max) / 2.0;
        let has_short = means().any(|mean_ns| mean_ns <= half);
        let is_long = |times: &LaneTimes| has_short && recent(times) && times.mean_ns > half;
        let long = self.times.iter().enumerate().filter(|(_, times)| is_long(times));
        let long = long.fold(0, |lanes, (lane, _)| lanes | 1 << lane);
        self.long = if self.rules.reserve > 0 { Lanes(long) } else { Lanes::NONE };
        let limit_us = self.rules.slo_us.iter().copied().fold(0.0, f64::max);
        if limit_us > 0.0 {
            let or_longest = |slo_us: f64| if slo_us > 0.0 { slo_us } else { limit_us };
            self.delays_ns = self.rules.slo_us.map(|slo_us| (1000.0 * or_longest(slo_us)) as u64);
            return;
        }
        // A class without measurements counts as an average one.
        let mean_ns =
            |times: LaneTimes| if times.replies > 0.0 { times.mean_ns } else { average_ns };
        self.delays_ns = self.times.map(|times| (self.rules.boost * mean_ns(times)) as u64);
    }
}

/// Returns the lane of a class.
#[inline]
fn lane_of(class: u16) -> Lane {
    Lane(class.min(LANES as u16 - 1) as u8)
}

/// Returns the end of the reserved members' indices, below which `reserve` members are active. At least one active
/// member stays unreserved. 0 without a reserve.
pub(in crate::policy) fn reserved_end(members: usize, active: &[Member], reserve: usize) -> usize {
    let reserve = reserve.min(active.len().saturating_sub(1));
    let (mut low, mut high) = (0, members);
    while low < high {
        let middle = usize::midpoint(low, high);
        let below = active.iter().filter(|member| member.index() < middle).count();
        (low, high) = if below >= reserve { (low, middle) } else { (middle + 1, high) };
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Load;

    /// Creates classes that have measured this mean service time in microseconds for each class, from 1 on.
    fn measured(rules: ClassRules, means: &[u32]) -> Box<Classes> {
        let (mut classes, view) = (Classes::new(rules).unwrap(), View::heap(1, 1).remove(0));
        for _ in 0..WINDOW {
            for (class, us) in (1..).zip(means) {
                let report = Report::new(Member(0), Load(0), us * 1000).with_class(class);
                classes.learn(&[report], &view);
            }
        }
        classes
    }

    /// Returns the classes that are long.
    fn long(classes: &Classes) -> Vec<u16> {
        (0..100).filter(|&class| classes.long().contains(lane_of(class))).collect()
    }

    #[test]
    fn rules_without_effect_need_no_classes() {
        assert!(Classes::new(ClassRules::default()).is_none());
    }

    // promise: scheduling.3
    #[test]
    fn key_is_behind_the_arrival_by_the_boost() {
        let rules = ClassRules { boost: 2.0, ..ClassRules::default() };
        let classes = measured(rules, &[5, 500]);
        let lanes = [1, 2].map(|class| classes.lane(Task::new(class)));
        assert_eq!(lanes.map(|lane| classes.key(lane, 7)), [10_007, 1_000_007]);
        assert_eq!(classes.lane(Task::new(6)).index(), 6);
        assert_eq!([7, 8, u16::MAX].map(|class| classes.lane(Task::new(class)).index()), [7; 3]);
        assert!(long(&classes).is_empty());
    }

    // promise: scheduling.3
    #[test]
    fn deadline_is_the_arrival_plus_the_limit() {
        // Lanes 0, 1, 2: no limit, 50 us, 2 ms.
        let rules = ClassRules::from_values(&[0.0, 0.0, 0.0, 50.0, 2000.0]);
        let keys = |classes: &Classes| {
            [1, 2, 0, 9].map(|class| classes.key(classes.lane(Task::new(class)), 7))
        };
        // The limits need no measurements, and these change nothing.
        assert_eq!(keys(&Classes::new(rules).unwrap()), [50_007, 2_000_007, 2_000_007, 2_000_007]);
        assert_eq!(keys(&measured(rules, &[5, 500])), [50_007, 2_000_007, 2_000_007, 2_000_007]);
    }

    /// If no reply has a class, all tasks go in the order of arrival.
    #[test]
    fn unmeasured_class_counts_as_an_average_one() {
        let rules = ClassRules { boost: 2.0, ..ClassRules::default() };
        let (mut classes, view) = (Classes::new(rules).unwrap(), View::heap(1, 1).remove(0));
        (0..WINDOW).for_each(|_| classes.learn(&[Report::new(Member(0), Load(0), 5000)], &view));
        let keys = [0, 1, 9].map(|class| classes.key(classes.lane(Task::new(class)), 7));
        assert_eq!(keys, [10_007; 3]);
    }

    // promise: scheduling.3
    #[test]
    fn long_classes_are_above_half_of_the_longest() {
        let rules = ClassRules { reserve: 1, ..ClassRules::default() };
        assert_eq!(long(&measured(rules, &[5, 50, 500])), [3]);
        assert_eq!(long(&measured(rules, &[90, 6, 20, 88, 100])), [1, 4, 5]);
        assert!(long(&measured(rules, &[60, 100])).is_empty(), "no class is short");
        assert!(long(&measured(rules, &[10])).is_empty());
    }

    #[test]
    fn class_without_replies_is_forgotten() {
        let mut classes = measured(ClassRules { reserve: 1, ..ClassRules::default() }, &[5, 500]);
        let view = View::heap(1, 1).remove(0);
        assert_eq!(long(&classes), [2]);
        for _ in 0..WINDOW * (RECENT_WINDOWS + 2) {
            classes.learn(&[Report::new(Member(0), Load(0), 500_000).with_class(2)], &view);
        }
        assert!(long(&classes).is_empty());
    }

    #[test]
    fn reserve_ends_when_many_long_tasks_wait() {
        let mut classes = measured(ClassRules { reserve: 1, ..ClassRules::default() }, &[5, 500]);
        let uses = [0, 7, 8, 0].map(|waiting| {
            classes.note_waiting(waiting, 4, 1);
            assert_eq!(classes.reserve_use(lane_of(1)), ReserveUse::First);
            classes.reserve_use(lane_of(2))
        });
        let never = ReserveUse::Never;
        assert_eq!(uses, [never, never, ReserveUse::Last, never]);
        // Each of three cores has a third of the tasks.
        let uses = [2, 3].map(|waiting| {
            classes.note_waiting(waiting, 4, 3);
            classes.reserve_use(lane_of(2))
        });
        assert_eq!(uses, [never, ReserveUse::Last]);
    }
}
