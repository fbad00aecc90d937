//! Advice as text, JSON and HTML page, for the commands `wedjat-testbed advise` and `wedjat advise`.
//!
//! A standing is the result of one policy after the rounds of simulations. The keys of the JSON are stable.

use std::fmt::Write as _;

use serde::Serialize;
use wedjat_core::policy::Objective;
use wedjat_workload::results::chart::{Axis, Chart, Line, Point};
use wedjat_workload::results::{aligned, page};

use super::conditions::{Conditions, arrivals_text, speeds_text};
use super::decision::{Action, Advice, ERROR_MAX, Fit, GAIN_MIN};
use super::halving::{End, Standing};
use super::objective::Prediction;

/// Size of the chart in pixels.
const SIZE: (u32, u32) = (900, 560);

/// Everything that the command reports.
#[derive(Clone, Debug)]
pub struct Report {
    /// Conditions of the simulations.
    pub conditions: Conditions,
    /// Objective.
    pub objective: Objective,
    /// Names of all policies. Other fields name a policy by its index here.
    pub policies: Vec<String>,
    /// Results, best first.
    pub standings: Vec<Standing>,
    /// Index of the running policy, if known.
    pub running: Option<usize>,
    /// Comparison of the model with the log, if comparable.
    pub fit: Option<Fit>,
    /// Recommendation.
    pub advice: Advice,
}

/// Conditions in JSON.
#[derive(Serialize)]
struct ConditionsJson {
    workers: usize,
    load: f64,
    rate_pps: f64,
    arrivals: String,
    gap_variation: Option<f64>,
    dispersion: Option<f64>,
    is_correlated: Option<bool>,
    service: String,
    service_mean_us: f64,
    classes: Vec<ClassJson>,
    delay_us: f64,
    speeds: String,
    dispatchers: usize,
    dispatchers_as: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sharing: Option<String>,
    measured_tasks: Option<usize>,
    assumed: Vec<&'static str>,
}

/// Measured service times of a class in JSON.
#[derive(Serialize)]
struct ClassJson {
    class: u16,
    share: f64,
    mean_us: f64,
    p99_us: f64,
}

/// A policy in JSON.
#[derive(Serialize)]
struct PolicyJson<'a> {
    policy: &'a str,
    /// True for the policy that runs now.
    running: bool,
    /// Number of rounds in which it took part.
    rounds: usize,
    tasks: u64,
    /// Reason why it did not finish.
    dropped: Option<&'static str>,
    mean_us: f64,
    mean_ci95_us: f64,
    p99_us: f64,
    p99_ci95_us: f64,
    p999_us: f64,
    /// Figure of the objective.
    objective: f64,
    messages_per_task: f64,
}

/// Advice in JSON.
#[derive(Serialize)]
struct AdviceJson<'a> {
    action: Action,
    policy: Option<&'a str>,
    gain: Option<f64>,
    /// True if the model fits the measurement of the running policy; `None` without a comparison.
    trusted: Option<bool>,
    text: String,
}

/// The report in JSON.
#[derive(Serialize)]
struct ReportJson<'a> {
    conditions: ConditionsJson,
    objective: String,
    policies: Vec<PolicyJson<'a>>,
    running: Option<&'a str>,
    measured: Option<&'a Fit>,
    advice: AdviceJson<'a>,
}

/// Returns the reason why a policy did not finish; `None` if it did.
fn reason(end: End) -> Option<&'static str> {
    match end {
        End::Finished => None,
        End::Slower => Some("slower"),
        End::Unstable => Some("unstable"),
    }
}

/// Formats a value with half the width of its confidence interval, if it has one.
fn with_interval(value: f64, half: f64) -> String {
    if half.is_finite() { format!("{value:.2} ±{half:.2}") } else { format!("{value:.2}") }
}

/// Formats a fraction as a percentage.
pub fn percent(fraction: f64) -> String {
    format!("{:.1}%", fraction * 100.0)
}

impl Report {
    /// Returns the report as one JSON object. Infinite and undefined numbers become `null`.
    ///
    /// # Errors
    /// If the serialization fails.
    pub fn json(&self) -> Result<String, String> {
        let Advice { action, gain, .. } = self.advice;
        let report = ReportJson {
            conditions: self.conditions_json(),
            objective: self.objective.to_string(),
            policies: self.standings.iter().map(|standing| self.policy_json(standing)).collect(),
            running: self.running.map(|running| self.policies[running].as_str()),
            measured: self.fit.as_ref(),
            advice: AdviceJson {
                action,
                policy: self.advised().map(|index| self.policies[index].as_str()),
                gain,
                trusted: self.fit.as_ref().map(|fit| fit.fits),
                text: self.advice_text(),
            },
        };
        serde_json::to_string(&report).map_err(|error| error.to_string())
    }

    /// Returns the conditions in the form of the JSON.
    fn conditions_json(&self) -> ConditionsJson {
        let Conditions { model, measured, assumed, .. } = &self.conditions;
        let gaps = measured.as_ref().map(|log| &log.gaps);
        let classes = self.conditions.service_classes().iter().map(|class| ClassJson {
            class: class.class,
            share: class.share,
            mean_us: class.mean_ns / 1e3,
            p99_us: class.p99_ns / 1e3,
        });
        ConditionsJson {
            workers: model.speeds.len(),
            load: model.load,
            rate_pps: self.conditions.rate_pps(),
            arrivals: model.arrivals.to_string(),
            gap_variation: gaps.map(|gaps| gaps.variation),
            dispersion: gaps.map(|gaps| gaps.dispersion),
            is_correlated: gaps.map(super::measure::Gaps::is_correlated),
            service: model.service.to_string(),
            service_mean_us: self.conditions.service_us(),
            classes: classes.collect(),
            delay_us: model.delay_ns / 1e3,
            speeds: speeds_text(model),
            dispatchers: model.dispatchers,
            dispatchers_as: model.kind.name(),
            sharing: model.sharing.map(|sharing| sharing.to_string()),
            measured_tasks: measured.as_ref().map(|log| log.tasks),
            assumed: assumed.iter().map(|(flag, _)| *flag).collect(),
        }
    }

    /// Returns the result of a policy in the form of the JSON.
    fn policy_json(&self, standing: &Standing) -> PolicyJson<'_> {
        let Prediction {
            mean_us,
            mean_ci95_us,
            p99_us,
            p99_ci95_us,
            p999_us,
            messages_per_task,
            ..
        } = standing.prediction;
        PolicyJson {
            policy: &self.policies[standing.policy],
            running: Some(standing.policy) == self.running,
            rounds: standing.round,
            tasks: standing.tasks,
            dropped: reason(standing.end),
            mean_us,
            mean_ci95_us,
            p99_us,
            p99_ci95_us,
            p999_us,
            objective: standing.prediction.figure(&self.objective),
            messages_per_task,
        }
    }

    /// Returns the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = aligned_left(&self.condition_lines());
        for note in self.notes() {
            let _ = writeln!(text, "{note}");
        }
        let (columns, rows) =
            (self.columns(), self.standings.iter().map(|standing| self.cells(standing)));
        let table: Vec<_> = std::iter::once(columns).chain(rows).collect();
        let _ = write!(text, "\n{}\n", aligned(&table));
        for sentence in self.sentences() {
            let _ = writeln!(text, "{sentence}");
        }
        text
    }

    /// Returns the report as an HTML page, with a chart of the policies that finished.
    ///
    /// # Errors
    /// If the chart cannot be drawn.
    pub fn page(&self) -> Result<String, String> {
        let conditions = self
            .condition_lines()
            .into_iter()
            .map(|(name, value)| ([name, value.as_str()].map(str::to_owned), true));
        let conditions = page::table(&["condition", "value"], conditions);
        let columns = self.columns();
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let rows = self.standings.iter();
        let rows = rows.map(|standing| (self.cells(standing), standing.end != End::Unstable));
        let chart = match self.advice.best {
            Some(_) => format!("<figure>{}</figure>\n", self.chart()?),
            None => String::new(),
        };
        let contents = format!(
            "{}<h2>Conditions</h2>\n{conditions}{}<h2>Policies</h2>\n{}{chart}",
            page::list(self.sentences()),
            page::list(self.notes()),
            page::table(&columns, rows),
        );
        Ok(page::html("wedjat advice", "wedjat: advice on the policy of a pool", &contents))
    }

    /// Draws mean and 99th percentile of the policies that finished, one circle for each.
    fn chart(&self) -> Result<String, String> {
        let finished = self.standings.iter().filter(|standing| standing.end == End::Finished);
        let line = |(colour, Standing { policy, prediction, .. }): (usize, &Standing)| {
            let point = Point::new(prediction.mean_us, prediction.p99_us);
            let point = Point { half: prediction.p99_ci95_us, ..point };
            Line::new(&self.policies[*policy], colour, vec![point]).with_circles()
        };
        let (x, y) = (
            Axis::linear("mean response, us"),
            Axis::linear("99th percentile of the response, us"),
        );
        let chart = Chart::new(x, y, finished.enumerate().map(line).collect());
        chart.svg(SIZE).map_err(|error| format!("cannot draw: {error}"))
    }

    /// Returns the conditions and the objective as text, each with its name; empty for a class of service times.
    fn condition_lines(&self) -> Vec<(&'static str, String)> {
        let Conditions { model, measured, .. } = &self.conditions;
        let mut lines = vec![
            ("workers", model.speeds.len().to_string()),
            ("load", format!("{:.4}, {:.0} tasks/s", model.load, self.conditions.rate_pps())),
            ("arrivals", arrivals_text(&model.arrivals, measured.as_ref())),
            ("service", model.service.to_string()),
        ];
        for class in self.conditions.service_classes() {
            let (mean, p99) = (class.mean_ns / 1e3, class.p99_ns / 1e3);
            let (number, share) = (class.class, percent(class.share));
            lines
                .push(("", format!("class {number}: {share}, mean {mean:.2} us, p99 {p99:.2} us")));
        }
        lines.push(("delay", format!("{} us", model.delay_ns / 1e3)));
        lines.push(("speeds", speeds_text(model)));
        let kind = model.kind.name();
        lines.push(("dispatchers", format!("{}, as {kind}", model.dispatchers)));
        if let Some(sharing) = model.sharing {
            lines.push(("sharing", sharing.to_string()));
        }
        lines.push(("objective", self.objective.to_string()));
        lines
    }

    /// Returns notes on the quality of the conditions: unmeasured, assumed, changing or hypothetical values.
    fn notes(&self) -> Vec<String> {
        let Conditions { measured, node, assumed, is_hypothetical, .. } = &self.conditions;
        let mut notes = Vec::new();
        if node.is_some() && measured.is_none() {
            notes.push(
                "The node gives workers, dispatchers and policy. It does not measure arrivals, service times, speeds and delay of a \
                 pool: options, a log or a capture give them."
                    .to_owned(),
            );
        }
        if !assumed.is_empty() {
            let assumed = assumed.iter().map(|(flag, default)| format!("{default} (--{flag})"));
            let assumed = assumed.collect::<Vec<_>>().join(", ");
            notes.push(format!("Not measured, and therefore assumed: {assumed}."));
        }
        if measured.as_ref().is_some_and(|log| log.gaps.is_correlated()) {
            notes.push(
                "The rate of arrivals changes during the measurement. The model has a constant rate, and predicts shorter queues."
                    .to_owned(),
            );
        }
        if *is_hypothetical {
            notes.push(
                "Options replace measured quantities, so the measured response times are not compared."
                    .to_owned(),
            );
        }
        notes
    }

    /// Returns true if the objective's figure is one of the usual columns, so that it needs no column of its own.
    fn is_usual(&self) -> bool {
        matches!(self.objective, Objective::Mean | Objective::P99)
    }

    /// Returns the headings of the table.
    fn columns(&self) -> Vec<String> {
        let figure = (!self.is_usual())
            .then(|| format!("{}{}", self.objective.figure_name(), self.objective.unit()));
        let usual = ["policy", "rounds", "tasks", "mean us", "p99 us"].map(str::to_owned);
        let last = ["msg/task", "dropped"].map(str::to_owned);
        usual.into_iter().chain(figure).chain(last).collect()
    }

    /// Returns the cells of a policy.
    fn cells(&self, standing: &Standing) -> Vec<String> {
        let prediction = &standing.prediction;
        let figure =
            (!self.is_usual()).then(|| format!("{:.2}", prediction.figure(&self.objective)));
        let usual = [
            self.policies[standing.policy].clone(),
            standing.round.to_string(),
            standing.tasks.to_string(),
            with_interval(prediction.mean_us, prediction.mean_ci95_us),
            with_interval(prediction.p99_us, prediction.p99_ci95_us),
        ];
        let dropped = reason(standing.end)
            .map_or(String::new(), |reason| format!("{reason}, round {}", standing.round));
        let last = [format!("{:.2}", prediction.messages_per_task), dropped];
        usual.into_iter().chain(figure).chain(last).collect()
    }

    /// Returns the sentences below the table: the running policy's prediction, the trust in the model, and the advice.
    fn sentences(&self) -> Vec<String> {
        let running = self.running.and_then(|running| self.standing(running));
        let mut sentences: Vec<_> =
            running.map(|running| self.running_sentence(running)).into_iter().collect();
        if let Some(fit) = &self.fit {
            let limit = percent(ERROR_MAX);
            let error = percent(fit.p99_error.abs());
            sentences.push(match fit.fits {
                true => format!("The model fits: it misses the measured p99 by {error}, at most {limit} is allowed."),
                false => format!(
                    "The model does not fit: it misses the measured p99 by {error}, at most {limit} is allowed. Do not trust this \
                     advice. Check --delay, --speeds, --workers and --dispatchers."
                ),
            });
        }
        sentences.push(self.advice_text());
        sentences
    }

    /// Returns the result of a policy.
    fn standing(&self, policy: usize) -> Option<&Standing> {
        self.standings.iter().find(|standing| standing.policy == policy)
    }

    /// Returns the prediction and the measurement of the running policy as a sentence.
    fn running_sentence(&self, standing: &Standing) -> String {
        let Standing { policy, prediction, .. } = standing;
        let name = &self.policies[*policy];
        let growth = if prediction.unstable { ", with growing queues" } else { "" };
        let measured = self.fit.as_ref().map_or(String::new(), |fit| {
            format!("; measured mean {:.2} us, p99 {:.2} us", fit.mean_us, fit.p99_us)
        });
        let (mean, p99) = (prediction.mean_us, prediction.p99_us);
        format!(
            "Running policy {name}: predicted mean {mean:.2} us, p99 {p99:.2} us{growth}{measured}."
        )
    }

    /// Returns the index of the recommended policy: the running one for [`Action::Keep`], otherwise the best one.
    /// `None` if no policy is stable.
    #[must_use]
    pub fn advised(&self) -> Option<usize> {
        if self.advice.action == Action::Keep { self.running } else { self.advice.best }
    }

    /// Returns the advice as text.
    fn advice_text(&self) -> String {
        let (Some(best), gain) = (self.advice.best, self.advice.gain.unwrap_or(0.0)) else {
            return "No advice: the queues of each policy grow.".to_owned();
        };
        let name = |index: Option<usize>| index.map_or("", |index| self.policies[index].as_str());
        let (best_name, running) = (name(Some(best)), name(self.running));
        let unit = self.objective.unit();
        let figure = self.objective.figure_name();
        let value = self
            .standing(best)
            .map_or(f64::NAN, |standing| standing.prediction.figure(&self.objective));
        let gain_text = percent(gain);
        match self.advice.action {
            Action::Keep if self.running == Some(best) || gain <= 0.0 => {
                format!("Advice: keep {running}. No other policy is better.")
            }
            Action::Keep => format!(
                "Advice: keep {running}. {best_name} is better by {gain_text}; a change needs more than {}.",
                percent(GAIN_MIN)
            ),
            // Without a gain, the running policy is unstable.
            Action::Change if self.advice.gain.is_none() => format!(
                "Advice: change from {running} to {best_name}. The queues of {running} grow. {best_name} has {figure} {value:.2}{unit}."
            ),
            Action::Change => format!(
                "Advice: change from {running} to {best_name}. {best_name} has {figure} {value:.2}{unit}, better by {gain_text}."
            ),
            // No policy is known to run.
            _ => format!("Advice: take {best_name}. It has {figure} {value:.2}{unit}."),
        }
    }
}

/// Aligns names and values in two columns.
fn aligned_left(lines: &[(&'static str, String)]) -> String {
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<12}  {value}");
        text
    })
}
