//! Learned service rates (Rosella, IV-A and IV-C). The learner estimates the arrival rate over the last
//! tasks, and each member's mean processing time over a window whose length follows the load. *Benchmark tasks*
//! keep the windows of rarely used members filled: a caller that supports them sends a member a copy of a recent task
//! only to measure its speed. The policy of [`super::learned`] uses the rates.
//!
//! The *load* is the arrival rate divided by the members' total throughput, and the *spare load* is 1 minus it.
//!
//! These rules hold in place of the paper's gaps and obvious misprints. The window's `log(1/n)` is
//! `log(n)`. The load is limited to [`LOAD_MOST`], which bounds the window. The members' guaranteed total
//! throughput is a parameter, or else extrapolated from the members measured in time. A partly filled window
//! counts with its tasks so far, and a member never measured counts as average. Windows hold their length to
//! within a sixteenth. Each core learns from its own traffic, which is one part in `cores` of all arrivals
//! and completions.
//!
//! The paper's mu* is the rate below which a member is too slow and gets rate 0; only benchmark tasks then
//! measure it again. A caller without benchmark tasks (a leaf, which can neither copy a task nor mark it as less
//! urgent) would leave such a member at rate 0 for ever. There a member is too slow if it *owes* an answer for
//! longer than a task takes at the rate mu*. It then counts with mu* or its measured rate, whichever is lower.

use rand::Rng as _;

use super::sample::sample_one;
use super::structure::MovingWindow;
use super::{Caller, Rng};
use crate::state::{Member, Report, View};

/// Upper limit of the estimated load.
const LOAD_MOST: f64 = 0.99;
/// The paper's eps, as a fraction of the spare load.
const EPS_SHARE: f64 = 0.3;
/// The paper's mu*, and its c0: rate of benchmark tasks, as a fraction of the spare load.
const SPARE_SHARE: f64 = 0.1;
/// Time between two estimates, in mean processing times.
const PERIOD_TASKS: f64 = 4.0;
/// Minimum time between two estimates: 1 ms.
const PERIOD_NS_LEAST: f64 = 1e6;
/// Maximum number of requested benchmark tasks.
const BENCHMARKS_MOST: usize = 64;

/// Averaging of a member's processing time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// Over the last c1 log(n) / eps^2 tasks, as printed.
    Printed {
        /// The paper's constant c1.
        c1: f64,
    },
    /// With exponentially decreasing weights.
    Ewma {
        /// Weight of the last task, between 0 and 1.
        weight: f64,
    },
}

/// Measurements of one member.
#[derive(Clone, Debug)]
struct History {
    /// Its last processing times.
    recent: MovingWindow,
    /// Moving average of its processing time, under [`Window::Ewma`].
    ewma_ns: f64,
    /// Time since which it owes an answer, or time of its last report.
    touched_ns: u64,
    /// True if its last report had no processing time.
    no_time: bool,
    /// True if the policy may choose the member.
    active: bool,
}

impl History {
    /// Creates an empty history that starts at `now_ns`.
    fn since(now_ns: u64, active: bool) -> Self {
        let recent = MovingWindow::since(now_ns);
        Self { recent, ewma_ns: 0.0, touched_ns: now_ns, no_time: false, active }
    }
}

/// The paper's parameters, which depend on the load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    /// The paper's eps: allowed relative error of a measured rate.
    eps: f64,
    /// Tasks in a window.
    window: u64,
    /// The paper's mu*, in mean rates.
    least_rate: f64,
    /// Maximum time of a window, as a multiple of its time at that rate; a slower member is too slow.
    timeout_factor: f64,
}

/// Learner of service rates; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Learner {
    window: Window,
    /// Number of arrivals over which the arrival rate is averaged.
    arrivals_window: u64,
    /// Mean processing time guaranteed by the members together; 0 to measure it.
    guaranteed_ns: f64,
    /// Number of dispatcher cores of the node.
    cores: f64,
    /// Time of the last tick.
    now_ns: u64,
    /// Time of the next estimate of all rates.
    next_estimate_ns: u64,
    /// Time at which the next benchmark task is due.
    next_benchmark_ns: u64,
    /// Last arrivals; only their number and times matter.
    arrivals: MovingWindow,
    /// Arrivals since the last tick. They count as arrived at the time of that tick.
    arrived: u64,
    /// Measurements of each member.
    members: Vec<History>,
    /// Parameters for the last estimate of the load.
    plan: Plan,
    /// Rate of an average member in tasks per nanosecond; 0 before the first measurement.
    mean_rate: f64,
    /// Rate of this core's benchmark tasks per nanosecond.
    benchmark_rate: f64,
    /// Members that need a benchmark task; `None` if the caller runs none.
    benchmarks: Option<Vec<Member>>,
}

impl Learner {
    /// Creates a learner without measurements. The arrival rate is averaged over `arrivals` tasks;
    /// `guaranteed_ns` as in the field.
    #[must_use]
    pub fn new(window: Window, arrivals: u64, guaranteed_ns: f64) -> Self {
        Self {
            window,
            arrivals_window: arrivals.max(1),
            guaranteed_ns,
            cores: 1.0,
            now_ns: 0,
            next_estimate_ns: 0,
            next_benchmark_ns: 0,
            arrivals: MovingWindow::since(0),
            arrived: 0,
            members: Vec::new(),
            plan: Plan::of(0.0, 1, window),
            mean_rate: 0.0,
            benchmark_rate: 0.0,
            benchmarks: None,
        }
    }

    /// Adapts to changed members. Members that stay keep their measurements.
    pub fn on_members(&mut self, caller: Caller, view: &View) {
        self.cores = caller.core.count as f64;
        if caller.benchmarks && self.benchmarks.is_none() {
            self.benchmarks = Some(Vec::with_capacity(BENCHMARKS_MOST));
        }
        self.members.resize_with(view.members(), || History::since(self.now_ns, false));
        for (index, history) in self.members.iter_mut().enumerate() {
            let active = view.is_active(Member(index as u16));
            if active != history.active {
                *history = History::since(self.now_ns, active);
            }
        }
    }

    /// Records a task sent to a member.
    #[inline]
    pub fn on_sent(&mut self, member: Member, view: &View) {
        self.arrived += 1;
        // The member's first outstanding task: it owes an answer from now on.
        if view.outstanding(member) == 1 {
            self.members[member.index()].touched_ns = self.now_ns;
        }
    }

    /// Records a member's report: of an answer, a benchmark task or a keep-alive. Only a reported processing time
    /// measures the member's speed.
    #[inline]
    pub fn on_reply(&mut self, report: &Report) {
        let history = &mut self.members[report.member.index()];
        history.touched_ns = self.now_ns;
        history.no_time = report.service_ns == 0;
        if history.no_time {
            // The member answers, so the time since the window's start must not make it look slow.
            if history.recent.count() == 0 {
                history.recent = MovingWindow::since(self.now_ns);
            }
            return;
        }
        let service = f64::from(report.service_ns);
        if let Window::Ewma { weight } = self.window {
            let is_first = history.recent.count() == 0;
            history.ewma_ns += (service - history.ewma_ns) * if is_first { 1.0 } else { weight };
        }
        let (now_ns, window) = (self.now_ns, self.plan.window);
        history.recent.add(now_ns, 1, u64::from(report.service_ns), window);
    }

    /// Advances the time, requests the benchmark tasks that are due, and estimates the rates once per period. Returns
    /// true after an estimate, which sets the rates in the view.
    pub fn on_tick(&mut self, view: &mut View, rng: &mut Rng) -> bool {
        let now_ns = view.now_ns();
        if self.now_ns == 0 {
            self.start(now_ns);
        }
        if self.arrived > 0 {
            let arrived = std::mem::take(&mut self.arrived);
            self.arrivals.add(self.now_ns, arrived, 0, self.arrivals_window);
        }
        self.now_ns = now_ns;
        self.request_benchmarks(view, rng);
        if now_ns < self.next_estimate_ns {
            return false;
        }
        let learned = self.estimate(view);
        let period = PERIOD_NS_LEAST.max(PERIOD_TASKS / self.mean_rate.max(f64::MIN_POSITIVE));
        // Before the first measurement the period has its lower limit.
        let period = if self.mean_rate > 0.0 { period } else { PERIOD_NS_LEAST };
        self.next_estimate_ns = now_ns.saturating_add(period as u64);
        learned
    }

    /// Starts the measurements at the first tick. The clock has an arbitrary origin, so elapsed times count from here.
    fn start(&mut self, now_ns: u64) {
        self.arrivals = MovingWindow::since(now_ns);
        for history in &mut self.members {
            *history = History::since(now_ns, history.active);
        }
    }

    /// Returns the mean processing time of a member, or `None` if it was never measured.
    fn mean_ns(&self, member: Member) -> Option<f64> {
        let history = &self.members[member.index()];
        let mean = history.recent.mean()?;
        Some(if matches!(self.window, Window::Ewma { .. }) { history.ewma_ns } else { mean })
    }

    /// Returns true if the member is slower than mu*. With benchmark tasks: a window of L tasks takes it longer than
    /// `timeout_factor` L / mu* ([`Plan`]; the paper's factor is 1 + eps). Without them: it owes an answer for longer
    /// than `timeout_factor` / mu*.
    fn is_too_slow(&self, member: Member, view: &View) -> bool {
        if self.mean_rate == 0.0 {
            return false;
        }
        let history = &self.members[member.index()];
        // Longest time of a task, times the cores: this core gets one part in `cores` of the completions.
        let Plan { window, least_rate, timeout_factor, .. } = self.plan;
        let task_ns = timeout_factor * self.cores / (least_rate * self.mean_rate);
        if self.benchmarks.is_none() {
            let owed_ns = self.now_ns.saturating_sub(history.touched_ns) as f64;
            return view.outstanding(member) > 0 && owed_ns > task_ns;
        }
        // A member that answers without a processing time is not slower for that.
        let elapsed = self.now_ns.saturating_sub(history.recent.start_ns()) as f64;
        !history.no_time && elapsed > task_ns * history.recent.count().max(window) as f64
    }

    /// Recomputes the mean rate, the load and the plan, and writes each member's rate into the view. Returns false
    /// without any change before the first measurement.
    fn estimate(&mut self, view: &mut View) -> bool {
        // Sum of the measured members' rates, and their number.
        let (mut sum, mut measured) = (0.0, 0.0);
        for &member in view.active() {
            if let Some(mean_ns) = self.mean_ns(member).filter(|_| !self.is_too_slow(member, view))
            {
                sum += 1.0 / mean_ns;
                measured += 1.0;
            }
        }
        if measured > 0.0 {
            self.mean_rate = sum / measured;
        }
        if self.mean_rate == 0.0 {
            return false;
        }
        let members = view.active().len();
        // Total throughput of the members, in tasks per nanosecond.
        let guaranteed = match self.guaranteed_ns > 0.0 {
            true => members as f64 / self.guaranteed_ns,
            false => members as f64 * self.mean_rate,
        };
        let load = (self.arrival_rate() / guaranteed).min(LOAD_MOST);
        self.plan = Plan::of(load, members, self.window);
        self.plan_benchmarks(guaranteed * (1.0 - load));
        for place in 0..members {
            let member = view.active()[place];
            view.set_rate(member, self.rate(member, view));
        }
        true
    }

    /// Returns the estimated rate of a member, in mean rates: 1 - eps times the measured one. A member never measured
    /// counts as average. A member that is too slow gets 0, or without benchmark tasks at most mu*.
    fn rate(&self, member: Member, view: &View) -> f64 {
        let relative = self.mean_ns(member).map_or(1.0, |mean_ns| 1.0 / (mean_ns * self.mean_rate));
        let rate = (1.0 - self.plan.eps) * relative;
        match (self.is_too_slow(member, view), self.benchmarks.is_some()) {
            (false, _) => rate,
            (true, true) => 0.0,
            (true, false) => rate.min(self.plan.least_rate),
        }
    }

    /// Returns the arrival rate of all cores, in tasks per nanosecond.
    fn arrival_rate(&self) -> f64 {
        let elapsed = self.arrivals.last_ns().saturating_sub(self.arrivals.start_ns());
        match elapsed {
            0 => 0.0,
            _ => self.arrivals.count() as f64 / elapsed as f64 * self.cores,
        }
    }

    /// Sets this core's rate of benchmark tasks to a share of `spare_rate`, the members' total throughput that tasks
    /// do not use, in tasks per nanosecond.
    fn plan_benchmarks(&mut self, spare_rate: f64) {
        if self.benchmark_rate == 0.0 {
            // First call: benchmark tasks begin now.
            self.next_benchmark_ns = self.now_ns;
        }
        self.benchmark_rate = SPARE_SHARE * spare_rate / self.cores;
    }

    /// Requests the benchmark tasks that are due: a Poisson process over uniform members.
    fn request_benchmarks(&mut self, view: &View, rng: &mut Rng) {
        if self.benchmark_rate == 0.0 || self.benchmarks.is_none() {
            return;
        }
        while self.next_benchmark_ns <= self.now_ns {
            let gap = (exponential(rng) / self.benchmark_rate).max(1.0) as u64;
            self.next_benchmark_ns = self.next_benchmark_ns.saturating_add(gap);
            let is_requested =
                sample_one(view.active(), rng).is_some_and(|member| self.request_benchmark(member));
            if !is_requested {
                // Without members, or if the caller is late, missed benchmark tasks are skipped.
                self.next_benchmark_ns = self.now_ns.saturating_add(gap);
                return;
            }
        }
    }

    /// Requests a benchmark task. Returns false if too many are pending.
    fn request_benchmark(&mut self, member: Member) -> bool {
        let pending = self.benchmarks.as_mut().filter(|pending| pending.len() < BENCHMARKS_MOST);
        pending.map(|pending| pending.push(member)).is_some()
    }

    /// Returns the next member that needs a benchmark task, if any.
    pub fn next_benchmark(&mut self) -> Option<Member> {
        self.benchmarks.as_mut()?.pop()
    }
}

/// Draws an exponential number with mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    // 53 random bits, the precision of f64. In (0, 1], so that the logarithm is finite.
    let unit = ((rng.next_u64() >> 11) + 1) as f64 / 53.0_f64.exp2();
    -unit.ln()
}

impl Plan {
    /// Computes the parameters for an estimated load.
    fn of(load: f64, members: usize, window: Window) -> Self {
        let spare = 1.0 - load;
        let eps = EPS_SHARE * spare;
        let (tasks, timeout_factor) = match window {
            Window::Printed { c1 } => (c1 * (members.max(2) as f64).ln() / (eps * eps), 1.0 + eps),
            // Number of tasks whose plain mean has the same variance: (2 - weight) / weight. It does not grow as eps
            // falls. So the time of a window varies by more than eps, and the factor is fixed.
            Window::Ewma { weight } => (2.0 / weight - 1.0, 2.0),
        };
        Self { eps, window: tasks.max(1.0) as u64, least_rate: SPARE_SHARE * spare, timeout_factor }
    }
}
