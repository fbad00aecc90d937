//! Detection of tasks lost on the way to a member or back, which would stay outstanding for ever. Policies that count
//! outstanding tasks pass each load report through [`Losses`], which *writes off* lost tasks: it subtracts them from
//! the outstanding ones.
//!
//! *In flight* means here: outstanding, and not among the tasks that the member reports. Such a task is on its
//! way to the member or back, or lost. The smallest number in flight at 64 consecutive reports is an upper bound of the
//! number of lost tasks. It is exact if traffic to the member pauses once. If tasks take less time than the round trip,
//! some of them are always in flight. Their mean number is the rate of replies times the round trip (Little's law).
//! Only tasks beyond that number are lost. While many tasks are in flight, a few lost ones may be among these. They
//! are detected once the rate falls.
//!
//! The counts alone cannot show which of the two cases applies: a lost task looks like a longer round trip. So the
//! round trip is measured, for all members together, by tasks that were alone at their member. One member at a time
//! measures, if it is idle at the end of a window. All this runs once a window, so that other replies pay nothing.
//! The time of a send is not recorded. A measurement therefore includes up to one tick of the member's pause before
//! the task.
//!
//! A member's *drift* is the load sent to it since its last report.

use crate::state::{Load, Member, MemberState, Parts, Report, View};

/// Number of a member's reports in a window. Nearly all reports arrive in replies.
const REPLIES: u8 = 64;
/// Factor on the mean number of tasks in flight, because round trips differ.
const MARGIN: f64 = 1.25;
/// Tasks added to that product: a report may arrive at a moment with more tasks in flight than the mean.
const MARGIN_TASKS: f64 = 0.25;
/// Round trip assumed before the first measurement. It stays if all reports go through [`Losses::take`], which measures
/// none.
const ASSUMED_TRIP_NS: u64 = 100_000;
/// Number of initial measurements, of which the shortest one counts: the first ones include the idle time before the
/// first task.
const FIRST_TRIPS: u8 = 16;
/// Number of windows between measurements by a member. It measures only if it is idle at the end of a window.
const TRIP_WINDOWS: u32 = 8;
/// Time after which a member that stays idle gives up its measurement to another one.
const TRIP_IDLE_NS: u64 = 10_000_000;
/// Time after which a measurement is abandoned, because its task may be lost.
const TRIP_MOST_NS: u64 = 100_000_000;
/// Divisor of the difference by which a shorter measurement lowers the round trip.
const SHORTER: u64 = 8;
/// Divisor of the difference by which a longer measurement raises it. Larger than [`SHORTER`], because a measurement
/// may include a pause before the task.
const LONGER: u64 = 64;

/// Minimum number of a member's tasks in flight over a window of its reports.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Number of reports so far.
    replies: u8,
    /// Minimum so far.
    least: u32,
}

impl Window {
    /// A window without reports.
    const FRESH: Self = Self { replies: 0, least: u32::MAX };

    /// Creates the window after a report with `in_flight` tasks in flight. The report counts in both windows: the
    /// member may be idle between them, and no other report would show this.
    const fn after(in_flight: u32) -> Self {
        Self { replies: 0, least: in_flight }
    }

    /// A window that ends with the next report.
    const SHORT: Self = Self { replies: REPLIES - 1, least: u32::MAX };
}

/// Start of a member's window.
#[derive(Clone, Copy, Debug)]
struct WindowStart {
    at_ns: u64,
    /// Number of the member's reports until then, modulo 2^32.
    reports: u32,
    /// Number of the member's outstanding tasks then.
    outstanding: u32,
    /// True if the values are no start of a window: they come from an idle member or a temporary view, or the member
    /// gave up a measurement. The next report begins a window.
    is_unknown: bool,
}

/// Measurement of a round trip, by the next task of a member.
#[derive(Clone, Copy, Debug)]
struct Trip {
    member: Member,
    /// Time since which the member has the measurement.
    since_ns: u64,
    /// Time at which the member had no task: the end of its window, or the last tick before the task.
    idle_ns: u64,
}

/// State for the ends of windows, separate from the words that each report reads.
#[derive(Clone, Debug, Default)]
struct WindowEnds {
    /// Start of each member's window.
    starts: Vec<WindowStart>,
    /// Round trip of a task without its service; `None` before the first measurement.
    round_trip_ns: Option<u64>,
    /// Number of measurements, at most [`FIRST_TRIPS`].
    trips: u8,
    /// Measurement in progress.
    trip: Option<Trip>,
}

/// Detection of lost tasks by one window for each member, for policies that use outstanding tasks.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    windows: Vec<Window>,
    ends: WindowEnds,
}

/// The windows of [`Losses`], borrowed for a run of reports. The slice has one window for each member of the view, so
/// that the compiler need not check a member's index again.
#[derive(Debug)]
pub struct LossWatch<'a> {
    windows: &'a mut [Window],
    ends: &'a mut WindowEnds,
    now_ns: u64,
}

impl WindowEnds {
    /// Updates the round trip with a measurement.
    fn note_trip(&mut self, trip_ns: u64) {
        let has_first_trips = self.has_first_trips();
        self.trips += u8::from(!has_first_trips);
        self.round_trip_ns = Some(match self.round_trip_ns {
            None => trip_ns,
            Some(mean) if !has_first_trips => mean.min(trip_ns),
            Some(mean) if trip_ns < mean => mean - (mean - trip_ns).div_ceil(SHORTER),
            // A long pause raises the mean by at most about 1 / LONGER of it.
            Some(mean) => mean + (trip_ns - mean).min(mean + 1).div_ceil(LONGER),
        });
    }

    /// Returns true after the initial measurements. Later ones begin only every [`TRIP_WINDOWS`] windows.
    fn has_first_trips(&self) -> bool {
        self.trips >= FIRST_TRIPS
    }

    /// Returns the maximum number of tasks in flight, without lost ones, of a member that received `sent` tasks in
    /// `elapsed_ns`.
    fn in_flight_most(&self, sent: u32, elapsed_ns: u64) -> u32 {
        let round_trip_ns = self.round_trip_ns.unwrap_or(ASSUMED_TRIP_NS);
        // Without a clock all times are 0. The result is then 0 after a measured trip, and `u32::MAX` before.
        let mean = f64::from(sent) * round_trip_ns as f64 / elapsed_ns as f64;
        (MARGIN * mean + MARGIN_TASKS) as u32
    }
}

impl Losses {
    /// Adapts to the number of the view's members; existing windows stay.
    pub fn resize(&mut self, view: &View) {
        for index in self.windows.len()..view.members() {
            let state = view.of(Member(index as u16));
            let is_idle = state.outstanding() == 0;
            self.windows.push(if is_idle { Window::SHORT } else { Window::FRESH });
            self.ends.starts.push(WindowStart {
                at_ns: view.burst_ns(),
                reports: state.reports(),
                outstanding: state.outstanding(),
                is_unknown: is_idle,
            });
            if is_idle && self.ends.trip.is_none() {
                self.measure(state, view.burst_ns());
            }
        }
        self.windows.truncate(view.members());
        self.ends.starts.truncate(view.members());
        self.ends.trip = self.ends.trip.filter(|trip| trip.member.index() < view.members());
    }

    /// Assigns the measurement of the round trip to an idle member.
    fn measure(&mut self, state: MemberState<'_>, now_ns: u64) {
        let member = state.member();
        self.ends.trip = Some(Trip { member, since_ns: now_ns, idle_ns: now_ns });
        self.ends.starts[member.index()].reports = state.reports();
        self.windows[member.index()] = Window::SHORT;
    }

    /// Updates the measurement of the round trip. Called about once per tick.
    pub fn on_tick(&mut self, view: &View) {
        let Some(trip) = &mut self.ends.trip else { return };
        let (now_ns, state) = (view.now_ns(), view.of(trip.member));
        let start = &mut self.ends.starts[trip.member.index()];
        let is_idle = state.outstanding() == 0;
        if is_idle {
            (trip.idle_ns, start.reports) = (now_ns, state.reports());
        }
        let most_ns = if is_idle { TRIP_IDLE_NS } else { TRIP_MOST_NS };
        if now_ns.saturating_sub(trip.since_ns) > most_ns {
            start.is_unknown = true;
            self.ends.trip = None;
            // At the start, any member may get the first tasks.
            let (place, members) = (state.member().index(), view.members());
            let mut others = (1..members).map(|step| Member(((place + step) % members) as u16));
            let is_free = |one: &Member| view.is_active(*one) && view.of(*one).outstanding() == 0;
            if !self.ends.has_first_trips()
                && let Some(next) = others.find(is_free)
            {
                self.measure(view.of(next), now_ns);
            }
        }
    }

    /// Returns the round trip of a task without its service; `None` before the first measurement.
    #[must_use]
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.ends.round_trip_ns
    }

    /// Sets the round trip of a task without its service, for policies that measure it.
    pub fn note_round_trip(&mut self, round_trip_ns: u64) {
        self.ends.round_trip_ns = Some(round_trip_ns);
    }

    /// Returns the windows for a run of reports of `members` members, received at `now_ns`.
    #[inline(always)]
    pub fn watch(&mut self, members: usize, now_ns: u64) -> LossWatch<'_> {
        LossWatch { windows: &mut self.windows[..members], ends: &mut self.ends, now_ns }
    }

    /// Processes the report of a reply whose task is already counted as answered, or a report without a reply.
    /// Measures no round trip. Returns the tasks left at the member.
    #[inline]
    pub fn take(&mut self, report: &Report, view: &View) -> u32 {
        let state = view.of(report.member);
        let mut watch = self.watch(view.members(), view.burst_ns());
        watch.take(state, report, state.outstanding(), false)
    }

    /// Counts each reply as answered and processes its report. Returns the number of replies from members without
    /// outstanding tasks.
    #[inline(always)]
    pub fn answer_run(&mut self, reports: &[Report], view: &mut View) -> usize {
        let now_ns = view.burst_ns();
        let parts = view.parts();
        let watch = self.watch(parts.states.members(), now_ns);
        // The same loop, compiled for both cases. Without other cores it looks up no remote counts.
        match parts.states.are_alone() {
            true => watch.answer_each(reports, parts.alone()),
            false => watch.answer_each(reports, parts),
        }
    }
}

impl LossWatch<'_> {
    /// Loop of [`Losses::answer_run`]. Returns the number of replies from members without outstanding tasks.
    #[inline(always)]
    fn answer_each(mut self, reports: &[Report], mut parts: Parts<'_>) -> usize {
        for report in reports {
            self.answer(report, &mut parts);
        }
        parts.surplus
    }

    /// Counts a reply as answered; without an outstanding task, as surplus. Processes its report. Returns the tasks
    /// left at the member.
    #[inline(always)]
    pub fn answer(&mut self, report: &Report, parts: &mut Parts<'_>) -> u32 {
        let state = parts.states.of(report.member);
        let mut outstanding = state.count_reported(report.load, 1);
        // A reply of a member without tasks is a duplicate, or answers another node's task. With inexact counts of
        // other cores' tasks it may also answer one of theirs.
        if outstanding == 0 && state.is_exact() {
            parts.surplus += 1;
        } else {
            state.take_off(1);
            outstanding = outstanding.saturating_sub(1);
        }
        self.take(state, report, outstanding, true)
    }

    /// Processes a report of a member with `outstanding` tasks, after a reply or without one. Returns the tasks left,
    /// without the lost ones.
    #[inline(always)]
    fn take(
        &mut self,
        state: MemberState<'_>,
        report: &Report,
        outstanding: u32,
        is_reply: bool,
    ) -> u32 {
        let in_flight = outstanding.saturating_sub(report.load.whole_tasks());
        state.set_load(report.load);
        outstanding - self.settle(state, report, (outstanding, in_flight), is_reply)
    }

    /// Processes a report, for policies that decide by load plus drift. The outstanding tasks beyond the reported ones
    /// were in flight when the member answered: they become its drift, which the report would otherwise clear. Returns
    /// their number, without the lost ones.
    #[inline(always)]
    pub fn keep_in_flight(
        &mut self,
        state: MemberState<'_>,
        report: &Report,
        is_reply: bool,
    ) -> u32 {
        let outstanding = state.outstanding();
        let in_flight = outstanding.saturating_sub(report.load.whole_tasks());
        let in_flight = in_flight - self.settle(state, report, (outstanding, in_flight), is_reply);
        state.set_load(report.load);
        state.add_drift(state.estimate(), Load(in_flight.saturating_mul(Load::ONE.0)));
        in_flight
    }

    /// Updates a member's window with the outstanding tasks, and those in flight, at one of its reports. Returns the
    /// number of tasks written off.
    #[inline(always)]
    fn settle(
        &mut self,
        state: MemberState<'_>,
        report: &Report,
        (outstanding, in_flight): (u32, u32),
        is_reply: bool,
    ) -> u32 {
        let window = &mut self.windows[state.member().index()];
        window.least = window.least.min(in_flight);
        window.replies += 1;
        if window.replies < REPLIES {
            return 0;
        }
        let start = &mut self.ends.starts[state.member().index()];
        let reports = state.reports();
        // Most windows find nothing and measure nothing.
        let is_plain = self.ends.trip.is_none_or(|trip| trip.member != state.member());
        let has_trips = self.ends.trips >= FIRST_TRIPS;
        if window.least == 0 && is_plain && has_trips && !is_trip_due(reports) {
            *window = Window::after(in_flight);
            *start = WindowStart { at_ns: self.now_ns, reports, outstanding, is_unknown: false };
            return 0;
        }
        // Takes values instead of `self`, which can then stay in registers.
        let last = LastReport {
            now_ns: self.now_ns,
            reports,
            outstanding,
            in_flight,
            is_exact: state.is_exact(),
            is_reply,
        };
        let lost = self.ends.end_window(window, report, last);
        state.take_off(lost); // at most those in flight now
        lost
    }
}

/// Returns true if a window that ends with this number of reports of its member may be followed by a measurement.
#[inline(always)]
fn is_trip_due(reports: u32) -> bool {
    (reports / u32::from(REPLIES)).is_multiple_of(TRIP_WINDOWS)
}

/// Last report of a window.
#[derive(Clone, Copy, Debug)]
struct LastReport {
    now_ns: u64,
    /// Number of the member's reports, modulo 2^32.
    reports: u32,
    /// Number of the member's outstanding tasks.
    outstanding: u32,
    /// Number of the member's tasks in flight.
    in_flight: u32,
    /// True if the member's counts are exact.
    is_exact: bool,
    /// True for the report of a reply.
    is_reply: bool,
}

impl WindowEnds {
    /// Ends a member's window with a report: finds lost tasks or measures a round trip. Begins the next window.
    /// Returns the number of lost tasks.
    #[cold]
    #[inline(never)]
    fn end_window(&mut self, window: &mut Window, report: &Report, last: LastReport) -> u32 {
        let LastReport { now_ns, reports, outstanding, in_flight, is_exact, is_reply } = last;
        let next = WindowStart { at_ns: now_ns, reports, outstanding, is_unknown: false };
        let since = std::mem::replace(&mut self.starts[report.member.index()], next);
        let least = window.least;
        let answered = reports.wrapping_sub(since.reports);
        let mut lost = 0;
        let trip = self.trip.take_if(|trip| trip.member == report.member);
        if let Some(trip) = trip {
            // The member was idle, so its first task did not wait for another one of this node. After a change of the
            // policy, it may have had other tasks since.
            if is_reply && answered <= 1 {
                let elapsed_ns = now_ns.saturating_sub(trip.idle_ns);
                self.note_trip(elapsed_ns.saturating_sub(report.service_ns.into()));
            }
        } else if since.is_unknown && is_reply && answered <= 1 && self.round_trip_ns.is_none() {
            // Another member measures, and may get no task. This time includes the whole pause before the task. It
            // overestimates the round trip; an underestimate would write off tasks that are in flight.
            let elapsed_ns = now_ns.saturating_sub(since.at_ns);
            self.note_trip(elapsed_ns.saturating_sub(report.service_ns.into()));
        } else if is_exact && least > 0 && !since.is_unknown {
            // Inexact counts of other cores may still contain answered tasks. These would look lost. The liveness
            // checks of the stages find lost tasks in any case. The estimate uses the tasks sent in the window: a
            // member with a growing queue receives more tasks than it answers.
            let sent = answered.saturating_add(outstanding.saturating_sub(since.outstanding));
            let elapsed_ns = now_ns.saturating_sub(since.at_ns);
            lost = least.saturating_sub(self.in_flight_most(sent, elapsed_ns));
        }
        let left_in_flight = in_flight - lost;
        *window = Window::after(left_in_flight);
        self.starts[report.member.index()].outstanding -= lost;
        let is_idle = report.is_idle() && left_in_flight == 0;
        let is_due = !self.has_first_trips() || trip.is_none() && is_trip_due(reports);
        if is_idle && is_due && self.trip.is_none() {
            self.trip = Some(Trip { member: report.member, since_ns: now_ns, idle_ns: now_ns });
            *window = Window::SHORT;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::{RngExt as _, SeedableRng as _};

    use super::*;
    use crate::policy::{Core, Dispatcher, Rng, Task};

    const A: Member = Member(0);

    /// Creates the view and the windows of one member.
    fn one() -> (View, Losses) {
        let (view, mut losses) = (View::heap(1, 1).remove(0), Losses::default());
        losses.resize(&view);
        (view, losses)
    }

    #[test]
    fn in_flight_tasks_are_not_forgotten() {
        let (mut view, mut losses) = one();
        for _ in 0..4 {
            view.sent(A);
        }
        // The member answers one and has one queued: two have not reached it yet.
        view.answered(A);
        let report = Report::new(A, Load::tasks(1), 0);
        assert_eq!(losses.watch(1, 0).keep_in_flight(view.of(A), &report, true), 2);
        assert_eq!(view.load_and_drift(A), (Load::tasks(1), Load::tasks(2)));
    }

    // promise: scheduling.4
    #[test]
    fn lost_tasks_are_written_off() {
        let (mut view, mut losses) = one();
        for _ in 0..3 {
            view.sent(A); // lost
        }
        for _ in 0..2 * REPLIES {
            view.sent(A);
            view.answered(A);
            let report = Report::new(A, Load(0), 0);
            losses.watch(1, 0).keep_in_flight(view.of(A), &report, true);
        }
        assert_eq!(view.outstanding(A), 0);
        assert_eq!(view.estimated_load(A), 0);
    }

    /// Member that serves tasks in their order, one at a time, at the end of a line. Times are in nanoseconds.
    struct Line {
        dispatcher: Dispatcher,
        service_ns: u64,
        /// Delay of the line, there and back.
        trip_ns: u64,
        now_ns: u64,
        /// Arrival and end of each task at the member. Lost tasks are not among them.
        tasks: VecDeque<(u64, u64)>,
        /// End of the last task that arrived.
        free_ns: u64,
    }

    impl Line {
        fn new(policy: &str, (service_us, trip_us): (u32, u32)) -> Self {
            let [service_ns, trip_ns] = [service_us, trip_us].map(|us| 1000 * u64::from(us));
            let view = View::heap(1, 1).remove(0);
            let dispatcher = Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7);
            let (now_ns, free_ns) = (0, 0);
            Self { dispatcher, service_ns, trip_ns, now_ns, tasks: VecDeque::new(), free_ns }
        }

        /// Sends a task. Returns false if the policy does not take it.
        fn send(&mut self, is_lost: bool) -> bool {
            let mut picks = [None];
            self.dispatcher.schedule(&[Task::default()], &mut picks);
            if picks[0].is_some() && !is_lost {
                let arrival_ns = self.now_ns + self.trip_ns / 2;
                self.free_ns = arrival_ns.max(self.free_ns) + self.service_ns;
                self.tasks.push_back((arrival_ns, self.free_ns));
            }
            picks[0].is_some()
        }

        /// Returns the time of the next reply.
        fn next_ns(&self) -> u64 {
            self.tasks.front().map_or(u64::MAX, |(_, end_ns)| end_ns + self.trip_ns.div_ceil(2))
        }

        /// Advances to the next reply, which reports the tasks at the member when it left.
        fn reply(&mut self) {
            self.now_ns = self.next_ns();
            self.dispatcher.tick(self.now_ns);
            let (_, end_ns) = self.tasks.pop_front().unwrap();
            let queue = self.tasks.iter().filter(|(arrival_ns, _)| *arrival_ns <= end_ns).count();
            let report = Report::new(A, Load::tasks(queue as u16), self.service_ns as u32);
            assert!(self.dispatcher.reply(&report), "a reply to a task that was written off");
        }

        /// Answers this many tasks, and sends the next one after each reply, up to `most` at the member and on the way.
        /// While the policy takes no task, the time passes.
        fn pass(&mut self, replies: usize, most: usize) {
            for _ in 0..replies {
                while self.tasks.len() < most && self.send(false) {}
                while self.tasks.is_empty() && !self.send(false) {
                    self.now_ns += 1_000_000;
                    self.dispatcher.tick(self.now_ns);
                }
                self.reply();
            }
        }

        /// Lets time pass, with a tick every 100 us.
        fn pause(&mut self, ns: u64) {
            const TICK_NS: u64 = 100_000;
            let first = self.now_ns / TICK_NS + 1;
            self.now_ns += ns;
            (first..=self.now_ns / TICK_NS).for_each(|tick| self.dispatcher.tick(tick * TICK_NS));
        }

        /// Returns the number of outstanding tasks by the policy's count, and the true number.
        fn counts(&self) -> (usize, usize) {
            (self.dispatcher.view().outstanding(A) as usize, self.tasks.len())
        }
    }

    /// Policies with this detection.
    const POLICIES: [&str; 9] = [
        "jsq",
        "jsq(2)",
        "jsq-msq",
        "sed",
        "ppot",
        "ppot-learned",
        "horus-inflight",
        "jbsq(64)",
        "cfcfs",
    ];

    // promise: scheduling.4
    #[test]
    fn tasks_always_in_flight_are_not_lost() {
        for policy in POLICIES {
            for (service_us, trip_us) in [(1, 10), (2, 5), (3, 10), (9, 10), (10, 9), (10, 1)] {
                for most in 1..20 {
                    let mut line = Line::new(policy, (service_us, trip_us));
                    for round in 0..10 {
                        line.pass(100, most);
                        let (counted, sent) = line.counts();
                        let case = (policy, service_us, trip_us, most, round);
                        assert_eq!(counted, sent, "{case:?}");
                    }
                }
            }
        }
    }

    // promise: scheduling.4
    #[test]
    fn tasks_sent_at_random_times_are_not_lost() {
        let mut rng = Rng::seed_from_u64(1);
        for policy in POLICIES {
            for (service_us, trip_us) in [(1, 10), (2, 5), (9, 10), (10, 1)] {
                // Load, and that of every second 300 tasks.
                for loads in [(0.3, 0.3), (0.7, 0.7), (0.95, 0.95), (0.5, 2.0)] {
                    let mut line = Line::new(policy, (service_us, trip_us));
                    let (mut sent, mut next_ns) = (0, 0);
                    while sent < 20_000 {
                        if line.next_ns() <= next_ns {
                            line.reply();
                            continue;
                        }
                        line.now_ns = next_ns;
                        line.dispatcher.tick(next_ns);
                        sent += u32::from(line.send(false));
                        let load = if sent / 300 % 2 == 0 { loads.0 } else { loads.1 };
                        let pause = -(1.0 - rng.random::<f64>()).ln() / load;
                        next_ns += (pause * 1000.0 * f64::from(service_us)) as u64;
                        let (counted, true_count) = line.counts();
                        let case = (policy, service_us, trip_us, loads, sent);
                        assert_eq!(counted, true_count, "{case:?}");
                    }
                }
            }
        }
    }

    // promise: scheduling.4
    #[test]
    fn pause_between_windows_loses_no_tasks() {
        for policy in POLICIES {
            // The pause follows each report of a window in turn.
            for before in 0..64 {
                let mut line = Line::new(policy, (1, 10));
                line.pass(2 * usize::from(FIRST_TRIPS), 1);
                line.pass(200 + before, 12);
                while !line.tasks.is_empty() {
                    line.reply();
                }
                line.now_ns += 2_000_000;
                line.dispatcher.tick(line.now_ns);
                // Each task arrives after the end of the previous one.
                for _ in 0..9 {
                    line.send(false);
                    line.now_ns += 1_100;
                    line.dispatcher.tick(line.now_ns);
                }
                line.pass(200, 9);
                let (counted, sent) = line.counts();
                assert_eq!(counted, sent, "{policy}, {before}");
            }
        }
    }

    // promise: scheduling.4
    #[test]
    fn constant_pauses_hide_no_lost_task() {
        // The last two also write off all tasks of a silent member.
        for policy in &POLICIES[..7] {
            for pause_us in [130, 1_000, 5_000] {
                let mut line = Line::new(policy, (1, 10));
                let pass = |line: &mut Line, replies| {
                    for _ in 0..replies {
                        line.pause(1_000 * pause_us);
                        while !line.send(false) {
                            line.pause(1_000_000);
                        }
                        line.reply();
                    }
                };
                pass(&mut line, 300);
                line.send(true);
                pass(&mut line, 130);
                assert_eq!(line.counts(), (0, 0), "{policy}, {pause_us}");
            }
        }
    }

    // promise: scheduling.4
    #[test]
    fn lost_tasks_are_found_among_tasks_in_flight() {
        for policy in POLICIES {
            for (service_us, trip_us) in [(20, 1), (10, 5), (4, 4), (1, 10)] {
                for (most, lost) in [(1, 1), (2, 1), (2, 3), (4, 2), (8, 1)] {
                    let mut line = Line::new(policy, (service_us, trip_us));
                    line.pass(200, most);
                    let lost = (0..lost).filter(|_| line.send(true)).count();
                    line.pass(130, most);
                    let case = (policy, service_us, trip_us, most, lost);
                    let (counted, sent) = line.counts();
                    assert!(counted >= sent, "{case:?}");
                    // Two windows: the first one began before the loss.
                    if service_us >= 2 * trip_us {
                        assert_eq!(counted, sent, "{case:?}");
                    }
                    // The rate falls to one task at a time, with a pause after it.
                    while !line.tasks.is_empty() {
                        line.reply();
                    }
                    for _ in 0..200 {
                        line.now_ns += 50_000;
                        line.dispatcher.tick(line.now_ns);
                        if line.send(false) {
                            line.reply();
                        }
                    }
                    assert_eq!(line.counts(), (0, 0), "{case:?}");
                }
            }
        }
    }
}
