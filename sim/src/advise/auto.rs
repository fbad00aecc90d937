//! Choice of a pool's policy by its node, for `policy = "auto(objective=p99)"`.
//!
//! [`Auto`] decides on captures of packets, on simulations, and on changes of the policy. It is pure: time, measured
//! conditions and predictions are arguments. A node and the emulated pool ([`super::emulation`]) drive the same code:
//!
//! 1. [`Auto::next_capture`] names the next capture of packets. Most captures are short *looks*, which show changes of
//!    load and mix. Every [`PERIOD`], and after such a change, a long one measures the conditions of a choice.
//! 2. [`Auto::observe`] takes the conditions of a capture, and returns those under which to simulate.
//! 3. [`Auto::decide`] takes the predictions, and returns the decision.
//!
//! The running policy changes only if another one is better by more than [`GAIN_MIN`] in two successive choices. If the
//! model misses the measured 99th percentile twice in a row, the pool returns to the fallback, `eft`. The mispredicted
//! policy is then excluded for [`HOLD_DOWN`], and for twice as long after each further time, so that the pool does not
//! alternate between both. Two misses are needed, because one capture may span a change of the load or a stall of the
//! machine. Under the fallback a miss changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::conditions::Conditions;
use super::decision::{ERROR_MAX, GAIN_MIN};
use super::halving::{End, Standing};
use super::report::{Report, percent};

/// Time between two choices under constant conditions.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Relative change of load or mix after which a choice is due at once.
const CHANGE_MIN: f64 = 0.1;
/// Number of standard errors by which a change of the load or of the mean service time must exceed [`CHANGE_MIN`].
const STANDARD_ERRORS: f64 = 3.0;
/// First hold-down of a mispredicted policy.
pub const HOLD_DOWN: Duration = Duration::from_secs(60);
/// Maximum number of times that the hold-down doubles: to 64 minutes.
const DOUBLINGS: u32 = 6;

/// Request for a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Time at which it begins.
    pub at: Duration,
    /// True if it precedes a choice; false for a look.
    pub is_choice: bool,
}

impl CaptureRequest {
    /// Returns the maximum number of tasks.
    #[must_use]
    pub fn tasks_max(&self) -> u64 {
        if self.is_choice { 25_000 } else { 2_000 }
    }

    /// Returns the maximum duration.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_secs(if self.is_choice { 5 } else { 1 })
    }
}

/// Load and mix of a pool, as a capture shows them.
#[derive(Clone, Debug, PartialEq)]
struct Traffic {
    /// Number of measured tasks.
    tasks: f64,
    /// Tasks per second.
    rate_pps: f64,
    /// Squared coefficient of variation of the gaps between tasks.
    gap_variation: f64,
    /// Mean service time in microseconds.
    service_us: f64,
    /// Service times in nanoseconds, in ascending order.
    services_ns: Vec<f64>,
    /// Speeds of the workers.
    speeds: Vec<f64>,
    dispatchers: usize,
}

impl Traffic {
    /// Returns the traffic under these conditions; `None` if they are not measured.
    fn of(conditions: &Conditions) -> Option<Self> {
        let measured = conditions.measured.as_ref()?;
        let samples = &measured.service.as_ref()?.samples;
        let mut services_ns: Vec<_> = samples.iter().map(|(ns, _)| *ns).collect();
        services_ns.sort_by(f64::total_cmp);
        Some(Self {
            tasks: measured.tasks as f64,
            rate_pps: measured.gaps.rate_pps,
            gap_variation: measured.gaps.variation,
            service_us: conditions.service_us(),
            services_ns,
            speeds: conditions.model.speeds.clone(),
            dispatchers: conditions.model.dispatchers,
        })
    }

    /// Returns the squared coefficient of variation of the service times.
    fn service_variation(&self) -> f64 {
        let count = self.services_ns.len() as f64;
        let mean = self.services_ns.iter().sum::<f64>() / count;
        let squares = self.services_ns.iter().map(|ns| (ns / mean - 1.0).powi(2));
        squares.sum::<f64>() / count
    }

    /// Describes the difference to earlier traffic; `None` if that is at most [`CHANGE_MIN`] beyond chance, and the
    /// numbers of workers and dispatchers are equal.
    fn change_since(&self, before: &Self) -> Option<String> {
        let counts = 1.0 / self.tasks + 1.0 / before.tasks;
        // Relative difference, if it exceeds the limit. `variance` is a value's squared coefficient of variation.
        let change = |now: f64, then: f64, variance: f64| {
            let limit = CHANGE_MIN + STANDARD_ERRORS * (variance * counts).sqrt();
            let change = now / then - 1.0;
            (change.abs() > limit).then(|| format!("{:+.0}%", change * 100.0))
        };
        let rate_variance = self.gap_variation.max(before.gap_variation);
        let service_variance = self.service_variation().max(before.service_variation());
        if self.speeds.len() != before.speeds.len() || self.dispatchers != before.dispatchers {
            return Some("the workers or dispatchers changed".to_owned());
        }
        if let Some(change) = change(self.rate_pps, before.rate_pps, rate_variance) {
            return Some(format!("the rate of tasks changed by {change}"));
        }
        if let Some(change) = change(self.service_us, before.service_us, service_variance) {
            return Some(format!("the mean service time changed by {change}"));
        }
        let distance = distance(&self.services_ns, &before.services_ns);
        // The 95th percentile of the distance of two samples of one distribution is 1.36 times this root.
        let is_new_mix = distance > CHANGE_MIN + 1.36 * counts.sqrt();
        is_new_mix.then(|| "the distribution of service times changed".to_owned())
    }
}

/// Returns the largest difference between two distributions (Kolmogorov and Smirnov), from samples in ascending order.
fn distance(one: &[f64], other: &[f64]) -> f64 {
    let share = |values: &[f64], limit: f64| {
        values.partition_point(|value| *value <= limit) as f64 / values.len() as f64
    };
    let at = one.iter().chain(other).map(|&limit| (share(one, limit) - share(other, limit)).abs());
    at.fold(0.0, f64::max)
}

/// Kind of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The running policy stays: no other one is better.
    Best,
    /// The running policy stays until a second choice confirms a better one.
    Confirming,
    /// The running policy stays, although the model mispredicts it.
    Mispredicted,
    /// The running policy stays: the pool could not be measured or simulated, or the node refused the new policy.
    Unmeasured,
    /// A better policy runs from now on.
    Switch,
    /// The fallback runs from now on, because the model mispredicts the running policy.
    Fallback,
}

/// Decision on a pool's policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Kind.
    pub kind: Kind,
    /// New policy; `None` if the running one stays.
    pub policy: Option<String>,
    /// Reason.
    pub reason: String,
}

impl Decision {
    /// Creates a decision to keep the running policy.
    fn keep(kind: Kind, reason: impl Into<String>) -> Self {
        Self { kind, policy: None, reason: reason.into() }
    }
}

impl Kind {
    /// Name in decisions and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Confirming => "confirming",
            Self::Mispredicted => "mispredicted",
            Self::Unmeasured => "unmeasured",
            Self::Switch => "switch",
            Self::Fallback => "fallback",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.reason)
    }
}

/// Next step after a capture.
#[derive(Debug)]
pub enum Step {
    /// Wait for the next capture.
    Wait,
    /// The choice is over: the capture shows too little.
    Decided(Decision),
    /// Simulate under these conditions, and call [`Auto::decide`].
    Simulate(Box<Conditions>),
}

/// Hold-down of a mispredicted policy.
#[derive(Clone, Copy, Debug)]
struct HoldDown {
    until: Duration,
    /// Number of returns from this policy to the fallback.
    misses: u32,
}

/// State of a pool whose node chooses its policy. Times count from any fixed moment.
#[derive(Clone, Debug, Default)]
pub struct Auto {
    /// Time of the next choice.
    choice_at: Duration,
    /// Time of the last capture.
    looked_at: Duration,
    /// Traffic of the last choice.
    traffic: Option<Traffic>,
    /// Policies that were better by more than [`GAIN_MIN`] in the last choice, and were not held down.
    better: Vec<String>,
    /// True if the model missed the running policy's 99th percentile in the last choice. Not set under the fallback.
    has_missed: bool,
    /// Mispredicted policies.
    hold_downs: BTreeMap<String, HoldDown>,
    /// Number of switches so far, including returns to the fallback.
    pub switches: u64,
}

impl Auto {
    /// Creates the state of a pool. Its first choice is due `now`, under whichever policy runs then.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self { choice_at: now, looked_at: now, ..Self::default() }
    }

    /// Returns the next capture.
    #[must_use]
    pub fn next_capture(&self, now: Duration) -> CaptureRequest {
        let look_at = self.looked_at + LOOK_INTERVAL;
        let is_choice = self.choice_at <= look_at.max(now);
        let at = if is_choice { self.choice_at } else { look_at };
        CaptureRequest { at: at.max(now), is_choice }
    }

    /// Takes the result of a capture that ended `now`, or the reason why there is none.
    pub fn observe(
        &mut self,
        now: Duration,
        capture: CaptureRequest,
        result: Result<Conditions, String>,
    ) -> Step {
        self.looked_at = now;
        let result = result.and_then(|conditions| {
            let traffic = Traffic::of(&conditions).ok_or("the replies have no service times")?;
            Ok((conditions, traffic))
        });
        match result {
            Err(_) if !capture.is_choice => Step::Wait,
            Err(reason) => {
                self.choice_at = now + PERIOD;
                self.forget();
                Step::Decided(Decision::keep(Kind::Unmeasured, reason))
            }
            Ok((conditions, traffic)) if capture.is_choice => {
                if self.traffic.as_ref().is_some_and(|last| traffic.change_since(last).is_some()) {
                    self.forget();
                }
                self.traffic = Some(traffic);
                Step::Simulate(Box::new(conditions))
            }
            Ok((_, traffic)) => {
                let last = self.traffic.as_ref();
                if let Some(change) = last.and_then(|last| traffic.change_since(last)) {
                    log::debug!("a choice of the policy is due: {change}");
                    self.forget();
                    self.choice_at = now;
                }
                Step::Wait
            }
        }
    }

    /// Forgets the results of earlier choices, which held under other conditions.
    fn forget(&mut self) {
        self.better.clear();
        self.has_missed = false;
    }

    /// Decides on the predictions under the conditions of the last capture, or on the reason why there are none.
    pub fn decide(&mut self, now: Duration, result: Result<&Report, String>) -> Decision {
        // `decide_on` makes it due at once instead if a result needs a confirmation.
        self.choice_at = now + PERIOD;
        let decision = match result {
            Ok(report) => self.decide_on(now, report),
            Err(reason) => {
                self.forget();
                Decision::keep(Kind::Unmeasured, reason)
            }
        };
        if decision.policy.is_some() {
            self.switches += 1;
            self.forget();
        }
        decision
    }

    /// Decides on predictions.
    fn decide_on(&mut self, now: Duration, report: &Report) -> Decision {
        let name = |policy: usize| report.policies[policy].as_str();
        let running = report.standings.iter().find(|one| Some(one.policy) == report.running);
        let (Some(running), Some(fit)) = (running, &report.fit) else {
            self.forget();
            let reason = "the running policy is not among the simulated ones";
            return Decision::keep(Kind::Unmeasured, reason);
        };
        let running_name = name(running.policy);
        if !fit.fits {
            self.better.clear();
            let miss = match running.end {
                End::Unstable => format!("under {running_name} the predicted queues grow"),
                _ => format!(
                    "the model misses the measured p99 of {running_name} by {}, {} are allowed",
                    percent(fit.p99_error.abs()),
                    percent(ERROR_MAX)
                ),
            };
            let fallback = wedjat_core::policy::fallback().entry().name;
            if running_name == fallback {
                return Decision::keep(Kind::Mispredicted, miss);
            }
            if !std::mem::replace(&mut self.has_missed, true) {
                self.choice_at = now;
                return Decision::keep(Kind::Mispredicted, miss);
            }
            self.hold_down(now, running_name);
            return Decision {
                kind: Kind::Fallback,
                policy: Some(fallback.to_owned()),
                reason: format!("{fallback} instead of {running_name}: {miss}"),
            };
        }
        self.has_missed = false;
        // Standings have the best policy first.
        let gain = |one: &Standing| one.gain_over(running, &report.objective);
        let better = report.standings.iter().filter(|one| {
            one.end == End::Finished && gain(one) > GAIN_MIN && !self.is_held(now, name(one.policy))
        });
        let better: Vec<_> = better.map(|one| (name(one.policy).to_owned(), gain(one))).collect();
        let Some((best, gain)) = better.first().cloned() else {
            self.better.clear();
            let limit = percent(GAIN_MIN);
            let reason = format!("no policy is better than {running_name} by {limit}");
            return Decision::keep(Kind::Best, reason);
        };
        let confirmed = better.iter().find(|(name, _)| self.better.contains(name));
        if let Some((policy, gain)) = confirmed {
            let figure = report.objective.figure_name();
            return Decision {
                kind: Kind::Switch,
                policy: Some(policy.clone()),
                reason: format!(
                    "{policy} instead of {running_name}: {figure} better by {}, twice in a row",
                    percent(*gain)
                ),
            };
        }
        self.better = better.into_iter().map(|(name, _)| name).collect();
        self.choice_at = now;
        let gain = percent(gain);
        let reason = format!(
            "{best} is better than {running_name} by {gain}; the next choice must confirm it"
        );
        Decision::keep(Kind::Confirming, reason)
    }

    /// Removes the last switch, which the node has refused, from the count. A hold-down that it began stays.
    pub fn take_back(&mut self) {
        self.switches -= 1;
    }

    /// Excludes a policy for some time.
    fn hold_down(&mut self, now: Duration, policy: &str) {
        let misses = self.hold_downs.get(policy).map_or(0, |held| held.misses);
        let until = now + HOLD_DOWN * 2_u32.pow(misses.min(DOUBLINGS));
        self.hold_downs.insert(policy.to_owned(), HoldDown { until, misses: misses + 1 });
    }

    /// Returns true if a policy is excluded.
    fn is_held(&self, now: Duration, policy: &str) -> bool {
        self.hold_downs.get(policy).is_some_and(|held| now < held.until)
    }
}

#[cfg(test)]
mod tests {
    use super::super::capture::CapturedTasks;
    use super::super::conditions::ConditionArgs;
    use super::super::decision::{Advice, Fit};
    use super::super::objective::Prediction;
    use super::*;
    use wedjat_core::policy::Objective;
    use wedjat_workload::results::run::Estimate;
    use wedjat_workload::results::{Status, Task};

    /// Policies of the reports.
    const NAMES: [&str; 3] = ["eft", "jsq", "random"];

    /// Returns conditions that a capture of `tasks` tasks shows: one task each `gap_us`, with these service times in
    /// turn, at four workers.
    fn conditions(tasks: u64, gap_us: u64, services_us: &[u64]) -> Conditions {
        let task = |number: u64| Task {
            number,
            pool: 1,
            class: 0,
            worker: Some((number % 4) as u32),
            scheduled_ps: number * gap_us * 1_000_000,
            sent_ps: None,
            service_ps: Some(services_us[number as usize % services_us.len()] * 1_000_000),
            response_ps: Some(services_us[number as usize % services_us.len()] * 1_000_000),
            status: Status::Answered,
            measured: true,
            late: false,
        };
        let all: Vec<_> = (0..tasks).map(task).collect();
        let captured = CapturedTasks::simulated(&all, &[1.0; 4], 0.0, tasks * gap_us * 1000);
        Conditions::simulated(&ConditionArgs::default(), captured).unwrap()
    }

    /// Returns a report in which the policies of [`NAMES`] have these 99th percentiles in microseconds; `None` for an
    /// unstable one. The running policy's measured one is `measured`.
    fn report(running: &str, p99s: [Option<f64>; 3], measured: f64) -> Report {
        let standing = |(policy, p99): (usize, Option<f64>)| {
            let prediction = Prediction {
                p99_us: p99.unwrap_or(1.0),
                unstable: p99.is_none(),
                ..Prediction::default()
            };
            let end = if p99.is_some() { End::Finished } else { End::Unstable };
            Standing { policy, round: 4, tasks: 1000, end, prediction }
        };
        let mut standings: Vec<_> = p99s.into_iter().enumerate().map(standing).collect();
        standings.sort_by(|a, b| {
            let key = |one: &Standing| (one.end == End::Unstable, one.prediction.p99_us);
            key(a).partial_cmp(&key(b)).unwrap()
        });
        let running = NAMES.iter().position(|name| *name == running);
        let of_running = standings.iter().find(|one| Some(one.policy) == running).unwrap();
        let measured = Estimate { value: measured, half: 0.0 };
        let fit = Some(Fit::new(&of_running.prediction, measured, measured));
        let objective = Objective::P99;
        let advice = Advice::new(&standings, running, &objective);
        let policies = NAMES.map(str::to_owned).to_vec();
        let conditions = conditions(1000, 10, &[10]);
        Report { conditions, objective, policies, standings, running, fit, advice }
    }

    /// Returns the kind of the decision on a report, and the new policy.
    fn decided(auto: &mut Auto, seconds: u64, report: &Report) -> (Kind, Option<String>) {
        let decision = auto.decide(Duration::from_secs(seconds), Ok(report));
        (decision.kind, decision.policy)
    }

    #[test]
    fn gain_twice_in_a_row_switches() {
        let mut auto = Auto::new(Duration::ZERO);
        let good = report("random", [Some(100.0), Some(104.0), Some(200.0)], 210.0);
        assert_eq!(decided(&mut auto, 5, &good), (Kind::Confirming, None));
        // The confirmation is due at once.
        let capture = auto.next_capture(Duration::from_secs(5));
        assert_eq!((capture.at.as_secs(), capture.is_choice), (5, true));
        // `jsq` is the best now. Both were better before.
        let again = report("random", [Some(102.0), Some(100.0), Some(200.0)], 190.0);
        assert_eq!(decided(&mut auto, 10, &again), (Kind::Switch, Some("jsq".to_owned())));
        assert_eq!(auto.switches, 1);
        // 4% are too little.
        let same = report("jsq", [Some(96.0), Some(100.0), Some(200.0)], 100.0);
        assert_eq!(decided(&mut auto, 20, &same), (Kind::Best, None));
        // A gain that does not last switches nothing.
        for (seconds, kind) in [(30, Kind::Confirming), (35, Kind::Best), (45, Kind::Confirming)] {
            let report = if kind == Kind::Best {
                &same
            } else {
                &report("jsq", [Some(90.0), Some(100.0), None], 100.0)
            };
            assert_eq!(decided(&mut auto, seconds, report), (kind, None));
        }
    }

    #[test]
    fn unstable_policy_is_never_chosen() {
        let mut auto = Auto::new(Duration::ZERO);
        for seconds in [5, 10, 15] {
            let report = report("jsq", [None, Some(100.0), None], 100.0);
            assert_eq!(decided(&mut auto, seconds, &report), (Kind::Best, None));
        }
    }

    #[test]
    fn misprediction_returns_to_the_fallback() {
        let mut auto = Auto::new(Duration::ZERO);
        // The measured p99 is 1.6 times the predicted one.
        let miss = report("jsq", [Some(100.0), Some(80.0), Some(200.0)], 130.0);
        assert_eq!(decided(&mut auto, 5, &miss), (Kind::Mispredicted, None));
        assert_eq!(decided(&mut auto, 10, &miss), (Kind::Fallback, Some("eft".to_owned())));
        // `jsq` seems better again, but is held down for 60 s.
        let tempting = report("eft", [Some(100.0), Some(80.0), Some(200.0)], 100.0);
        for seconds in [20, 40, 60] {
            assert_eq!(decided(&mut auto, seconds, &tempting), (Kind::Best, None));
        }
        assert_eq!(decided(&mut auto, 71, &tempting), (Kind::Confirming, None));
        assert_eq!(decided(&mut auto, 76, &tempting), (Kind::Switch, Some("jsq".to_owned())));
        // The next hold-down takes twice as long.
        decided(&mut auto, 90, &miss);
        assert_eq!(decided(&mut auto, 95, &miss).0, Kind::Fallback);
        assert_eq!(decided(&mut auto, 200, &tempting), (Kind::Best, None));
        assert_eq!(decided(&mut auto, 216, &tempting), (Kind::Confirming, None));
        // A miss under the fallback changes nothing.
        let miss = report("eft", [Some(100.0), Some(80.0), Some(200.0)], 300.0);
        for seconds in [230, 240, 250] {
            assert_eq!(decided(&mut auto, seconds, &miss), (Kind::Mispredicted, None));
        }
    }

    #[test]
    fn one_miss_alone_changes_nothing() {
        let mut auto = Auto::new(Duration::ZERO);
        let miss = report("jsq", [Some(100.0), Some(80.0), Some(200.0)], 130.0);
        let fits = report("jsq", [Some(100.0), Some(100.0), Some(200.0)], 100.0);
        for (seconds, report) in [(5, &miss), (10, &fits), (20, &miss), (25, &fits)] {
            assert_eq!(decided(&mut auto, seconds, report).1, None);
        }
    }

    #[test]
    fn choices_follow_period_and_changes() {
        let seconds = Duration::from_secs;
        let mut auto = Auto::new(Duration::ZERO);
        let choice = auto.next_capture(Duration::ZERO);
        assert!(choice.is_choice);
        let steady = || conditions(5000, 100, &[50, 60, 70, 80]);
        let Step::Simulate(_) = auto.observe(seconds(5), choice, Ok(steady())) else { panic!() };
        let report = report("eft", [Some(100.0); 3], 100.0);
        assert_eq!(decided(&mut auto, 5, &report), (Kind::Best, None));
        // Looks at 7, 10 and 13 s, and the next choice at 15 s.
        let mut now = seconds(5);
        for at in [7, 10, 13] {
            let look = auto.next_capture(now);
            assert_eq!((look.at, look.is_choice), (seconds(at), false));
            now = look.at + look.longest();
            let Step::Wait = auto.observe(now, look, Ok(steady())) else { panic!() };
        }
        assert_eq!(auto.next_capture(now), CaptureRequest { at: seconds(15), is_choice: true });
        // Each of these changes makes a choice due at once: rate, mean service time, distribution.
        for changed in [
            conditions(5000, 70, &[50, 60, 70, 80]),
            conditions(5000, 100, &[70, 80, 90, 100]),
            conditions(5000, 100, &[5, 5, 125, 125]),
        ] {
            let mut auto = auto.clone();
            let look = CaptureRequest { at: seconds(13), is_choice: false };
            let Step::Wait = auto.observe(seconds(14), look, Ok(changed)) else { panic!() };
            assert_eq!(auto.next_capture(seconds(14)).at, seconds(14));
        }
    }

    #[test]
    fn unmeasured_pool_keeps_its_policy() {
        let mut auto = Auto::new(Duration::ZERO);
        let choice = auto.next_capture(Duration::ZERO);
        let step =
            auto.observe(Duration::from_secs(5), choice, Err("3 packets are too few".to_owned()));
        let Step::Decided(decision) = step else { panic!("{step:?}") };
        assert_eq!(decision.to_string(), "unmeasured: 3 packets are too few");
        assert_eq!(auto.next_capture(Duration::from_secs(5)).at, Duration::from_secs(7), "a look");
        let decision = auto.decide(Duration::from_secs(9), Err("too slow".to_owned()));
        assert_eq!((decision.kind, decision.policy), (Kind::Unmeasured, None));
    }
}
