//! Proportional power of two with rates learned at run time (Rosella, IV): [`Ppot`] on the rates of a
//! [`Learner`]. `Ppot` draws two members in proportion to their rates, from an alias table, and picks the better one.
//! The table is rebuilt together with the estimates, between bursts. The better member has the shorter queue, or with
//! `ll` ("least loaded") in the policy's name, completes the task sooner. `learned` and `ewma` name the averages of the
//! rates.
//!
//! A *benchmark task* is a copy of a recent task that the caller sends to a member only to measure its speed.

use super::learner::{Learner, Window};
use super::{
    AnyPolicy, Caller, Core, Entry, Parameter, Picks, Policy, Ppot, ProbedMembers, QueueAccess,
    Rng, Task,
};
use crate::state::{Member, Report, View};

/// The paper's constant c1, a factor of the window's length.
const C1: Parameter = Parameter::new("c1", 1.0, (1e-3, 1000.0));
/// Weight of the last task in the moving average of a member's processing time.
const WEIGHT: Parameter = Parameter::new("weight", 0.05, (1e-4, 1.0));
/// Number of arrivals over which the arrival rate is averaged.
const S: Parameter = Parameter::integer("s", 1000.0, (1.0, 1e9));
/// Guaranteed mean processing time of the members in microseconds, from which their total throughput follows; 0: as
/// measured.
const GUARANTEED: Parameter = Parameter::new("service-us", 0.0, (0.0, 1e9));

/// `ppot-learned`.
pub const BY_QUEUE: Entry = Entry {
    parameters: &[C1, S, GUARANTEED],
    queue_access: |_| QueueAccess::Probes,
    learns: true,
    ..Entry::new(
        "ppot-learned",
        "the shorter queue of two draws in proportion to rates that it learns, as printed; on a leaf without benchmark tasks",
        "Rosella, IV",
        |v| build(false, Window::Printed { c1: v[0] }, v),
    )
};

/// `ppot-ewma`.
pub const BY_QUEUE_EWMA: Entry = Entry {
    parameters: &[WEIGHT, S, GUARANTEED],
    queue_access: |_| QueueAccess::Probes,
    learns: true,
    ..Entry::new(
        "ppot-ewma",
        "the shorter queue of two draws in proportion to rates that it learns, by moving averages; on a leaf without benchmark tasks",
        "wedjat, after Rosella, IV",
        |v| build(false, Window::Ewma { weight: v[0] }, v),
    )
};

/// `ppot-ll-learned`.
pub const BY_TIME: Entry = Entry {
    parameters: &[C1, S, GUARANTEED],
    queue_access: |_| QueueAccess::Probes,
    learns: true,
    ..Entry::new(
        "ppot-ll-learned",
        "of two draws, the one that is done sooner, by rates that it learns, as printed; on a leaf without benchmark tasks",
        "Rosella, IV",
        |v| build(true, Window::Printed { c1: v[0] }, v),
    )
};

/// `ppot-ll-ewma`.
pub const BY_TIME_EWMA: Entry = Entry {
    parameters: &[WEIGHT, S, GUARANTEED],
    queue_access: |_| QueueAccess::Probes,
    learns: true,
    ..Entry::new(
        "ppot-ll-ewma",
        "of two draws, the one that is done sooner, by rates that it learns, by moving averages; on a leaf without benchmark tasks",
        "wedjat, after Rosella, IV",
        |v| build(true, Window::Ewma { weight: v[0] }, v),
    )
};

/// Builds the policy from a window and the values of the second and third parameter: a number of arrivals, and a time
/// in microseconds.
fn build(least_loaded: bool, window: Window, v: &[f64]) -> AnyPolicy {
    AnyPolicy::from(LearnedRates::new(least_loaded, window, v[1] as u64, v[2] * 1e3))
}

/// Power of two choices with learned rates.
#[derive(Clone, Debug)]
pub struct LearnedRates {
    ppot: Ppot,
    /// Boxed because it is large and policies are moved.
    learner: Box<Learner>,
    /// Caller of the last `on_members`, for each rebuild of the table.
    caller: Caller,
}

impl LearnedRates {
    /// Creates the policy, by queue or by time (`ppot-ll`); `arrivals` and `guaranteed_ns` as in
    /// [`Learner::new`].
    #[must_use]
    pub fn new(least_loaded: bool, window: Window, arrivals: u64, guaranteed_ns: f64) -> Self {
        let learner = Box::new(Learner::new(window, arrivals, guaranteed_ns));
        Self { ppot: Ppot::new(least_loaded), learner, caller: Caller::on(Core::ONLY) }
    }
}

impl Policy for LearnedRates {
    /// Picks members as `Ppot` does, and counts each task with a pick as an arrival.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let mut local = rng.clone(); // stays in registers over the run
        for pick in picks.iter_mut().take(tasks.len()) {
            *pick = self.ppot.pick(view, &mut local);
            if let Some(pick) = pick {
                view.sent(pick.member);
                self.learner.on_sent(pick.member, view);
            }
        }
        *rng = local;
    }

    fn ask(&self, view: &View, rng: &mut Rng) -> ProbedMembers {
        self.ppot.ask(view, rng)
    }

    /// Records a task sent without a pick: it counts for the arrival rate like any other.
    #[inline]
    fn on_follow(&mut self, member: Member, view: &mut View) {
        self.learner.on_sent(member, view);
    }

    /// Writes off lost tasks, which would distort the queues that `Ppot` compares. Measures the member's processing
    /// time.
    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, rng: &mut Rng) {
        self.ppot.on_reply(report, view, rng);
        self.learner.on_reply(report);
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, rng: &mut Rng) -> usize {
        reports.iter().for_each(|report| self.learner.on_reply(report));
        self.ppot.reply_run(reports, view, rng)
    }

    /// Begins new measurements for members that came or left, and rebuilds the table of draws.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.caller = caller;
        self.learner.on_members(caller, view);
        self.ppot.on_members(caller, view);
    }

    /// Returns the next member for a benchmark task. Always `None` on a leaf, which runs none.
    fn next_benchmark(&mut self) -> Option<Member> {
        self.learner.next_benchmark()
    }

    /// Advances the time. After a new estimate of the rates, rebuilds the table of draws.
    fn on_tick(&mut self, view: &mut View, rng: &mut Rng) {
        self.ppot.on_tick(view, rng);
        if self.learner.on_tick(view, rng) {
            self.ppot.on_members(self.caller, view); // draws by the new rates
        }
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.ppot.round_trip_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dispatcher;
    use super::*;
    use crate::state::Load;

    /// All policies of this file.
    const LEARNERS: [&str; 4] = ["ppot-learned", "ppot-ewma", "ppot-ll-learned", "ppot-ll-ewma"];
    /// Time between two tasks.
    const TASK_NS: u64 = 100_000;

    /// Creates a dispatcher whose clock begins at 1 ms; it requests benchmark tasks if `benchmarks`.
    fn dispatcher(policy: &str, members: usize, benchmarks: bool) -> Dispatcher {
        let view = View::heap(members, 1).remove(0);
        let mut dispatcher = Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7);
        if benchmarks {
            dispatcher.run_benchmarks();
        }
        dispatcher.tick(1_000_000);
        dispatcher
    }

    /// Sends `tasks` tasks, one every `gap_ns`, and each requested benchmark task, with immediate answers. `service_ns`
    /// returns the service time that a member reports, or `None` if it does not answer. Returns the number of tasks of
    /// each member.
    fn run(
        dispatcher: &mut Dispatcher,
        now_ns: &mut u64,
        (tasks, gap_ns): (usize, u64),
        service_ns: impl Fn(Member) -> Option<u32>,
    ) -> Vec<usize> {
        let mut counts = vec![0; dispatcher.view().members()];
        for _ in 0..tasks {
            *now_ns += gap_ns;
            dispatcher.tick(*now_ns);
            while let Some(member) = dispatcher.next_benchmark() {
                if let Some(service_ns) = service_ns(member) {
                    dispatcher.refresh(&Report::new(member, Load(0), service_ns));
                }
            }
            let mut picks = [None];
            dispatcher.schedule(&[Task::default()], &mut picks);
            let member = picks[0].unwrap().member;
            counts[member.index()] += 1;
            if let Some(service_ns) = service_ns(member) {
                dispatcher.reply(&Report::new(member, Load(0), service_ns));
            }
        }
        counts
    }

    // promise: scheduling.5
    #[test]
    fn rates_are_learned_and_followed() {
        for policy in LEARNERS {
            let (mut dispatcher, mut now_ns) = (dispatcher(policy, 2, true), 1_000_000);
            let service_times = |slow: u16| {
                move |member: Member| Some(if member.0 == slow { 900_000 } else { 100_000 })
            };
            run(&mut dispatcher, &mut now_ns, (20_000, TASK_NS), service_times(0));
            let (slow, fast) =
                (dispatcher.view().rate(Member(0)), dispatcher.view().rate(Member(1)));
            // 900 us against 100 us is a factor of 9. Answers are immediate and the queues equal, so draws decide: at
            // least about nine tasks of ten go to the fast member.
            assert!((fast / slow - 9.0).abs() < 0.01, "{policy} {slow} {fast}");
            let counts = run(&mut dispatcher, &mut now_ns, (2000, TASK_NS), service_times(0));
            assert!(counts[1] > 4 * counts[0], "{policy} {counts:?}");
            run(&mut dispatcher, &mut now_ns, (20_000, TASK_NS), service_times(1));
            let counts = run(&mut dispatcher, &mut now_ns, (2000, TASK_NS), service_times(1));
            assert!(counts[0] > 4 * counts[1], "{policy} {counts:?}");
        }
    }

    // promise: scheduling.5
    #[test]
    fn unanswering_member_returns_by_benchmark_tasks() {
        for policy in LEARNERS {
            let (mut dispatcher, mut now_ns) = (dispatcher(policy, 4, true), 1_000_000);
            let dead = |member: Member| (member.0 != 2).then_some(100_000);
            run(&mut dispatcher, &mut now_ns, (200_000, TASK_NS), dead);
            assert_eq!(dispatcher.view().rate(Member(2)), 0.0, "{policy}");
            let counts = run(&mut dispatcher, &mut now_ns, (1000, TASK_NS), dead);
            assert_eq!(counts[2], 0, "{policy} {counts:?}");
            run(&mut dispatcher, &mut now_ns, (200_000, TASK_NS), |_| Some(100_000));
            let rate = dispatcher.view().rate(Member(2)) / dispatcher.view().rate(Member(1));
            assert!((rate - 1.0).abs() < 0.01, "{policy} {rate}");
        }
    }

    // promise: scheduling.5
    #[test]
    fn silent_member_keeps_a_small_share_without_benchmarks() {
        for policy in LEARNERS {
            let (mut dispatcher, mut now_ns) = (dispatcher(policy, 4, false), 1_000_000);
            let dead = |member: Member| (member.0 != 2).then_some(100_000);
            run(&mut dispatcher, &mut now_ns, (10_000, TASK_NS), dead);
            // At most the paper's mu*, which is a tenth of the spare load.
            let rate = dispatcher.view().rate(Member(2));
            assert!(rate > 0.0 && rate < 0.11, "{policy} {rate}");
            assert_eq!(dispatcher.next_benchmark(), None);
            // A member without tasks does not count as slow.
            now_ns += 1_000_000_000_000;
            dispatcher.tick(now_ns);
            assert!(dispatcher.view().rate(Member(0)) > 0.5, "{policy}");
            // Member 2 answers again; its share of the next tasks suffices to measure it.
            run(&mut dispatcher, &mut now_ns, (10_000, TASK_NS), |_| Some(100_000));
            // The tasks that it never answered no longer count as its queue.
            let outstanding = dispatcher.view().outstanding(Member(2));
            dispatcher.view_mut().write_off(Member(2), outstanding);
            run(&mut dispatcher, &mut now_ns, (10_000, TASK_NS), |_| Some(100_000));
            let rate = dispatcher.view().rate(Member(2)) / dispatcher.view().rate(Member(1));
            assert!((rate - 1.0).abs() < 0.01, "{policy} {rate}");
        }
    }

    // promise: scheduling.5
    #[test]
    fn members_without_times_are_equal() {
        for policy in LEARNERS {
            let (mut dispatcher, mut now_ns) = (dispatcher(policy, 4, true), 1_000_000);
            // Without times, 40,000 tasks are 10,000 for each of the four members. Service time 0 means unknown.
            let mute = |_| Some(0);
            let counts = run(&mut dispatcher, &mut now_ns, (40_000, TASK_NS), mute);
            assert!(counts.iter().all(|count| count.abs_diff(10_000) < 600), "{policy} {counts:?}");
            // One member reports no times, unlike all other members: it counts as average.
            run(&mut dispatcher, &mut now_ns, (200_000, TASK_NS), |member| {
                Some(if member.0 == 3 { 0 } else { 100_000 })
            });
            let rate = dispatcher.view().rate(Member(3)) / dispatcher.view().rate(Member(1));
            assert!((rate - 1.0).abs() < 0.01, "{policy} {rate}");
        }
    }

    // promise: scheduling.5
    #[test]
    fn saturation_and_single_task_windows_keep_rates_finite() {
        for policy in
            ["ppot-learned(c1=0.001, s=1)", "ppot-learned(service-us=1e9)", "ppot-ewma(weight=1)"]
        {
            let (mut dispatcher, mut now_ns) = (dispatcher(policy, 3, true), 1_000_000);
            // One task per nanosecond, each of which takes four seconds; then one per second.
            for gap_ns in [1, 1_000_000_000] {
                run(&mut dispatcher, &mut now_ns, (5000, gap_ns), |_| Some(u32::MAX));
                // Further ticks, so that a new estimate is made.
                run(&mut dispatcher, &mut now_ns, (50, 2_000_000), |_| Some(u32::MAX));
                let sound = |member| {
                    let rate = dispatcher.view().rate(Member(member));
                    rate.is_finite() && rate >= 0.0
                };
                assert!((0..3).all(sound), "{policy}");
                assert!((0..3).any(|m| dispatcher.view().rate(Member(m)) > 0.0), "{policy}");
            }
        }
    }

    // promise: scheduling.5
    #[test]
    fn removed_members_are_forgotten_new_ones_average() {
        for policy in LEARNERS {
            let (mut dispatcher, mut now_ns) = (dispatcher(policy, 3, true), 1_000_000);
            let times = |member: Member| Some([400_000, 100_000, 100_000][member.index()]);
            run(&mut dispatcher, &mut now_ns, (20_000, TASK_NS), times);
            dispatcher.set_active(Member(0), false);
            let counts = run(&mut dispatcher, &mut now_ns, (1000, TASK_NS), times);
            assert_eq!(counts[0], 0, "{policy}");
            let rate_before = dispatcher.view().rate(Member(1));
            dispatcher.set_active(Member(0), true);
            // Only its earlier rate is known; the next estimate makes it average.
            now_ns += 2_000_000;
            dispatcher.tick(now_ns);
            let rate = |member| dispatcher.view().rate(Member(member));
            assert!((rate(0) / rate(1) - 1.0).abs() < 0.01, "{policy} {}", rate(0));
            assert!((rate(1) / rate_before - 1.0).abs() < 0.5, "{policy} {rate_before}");
        }
    }
}
