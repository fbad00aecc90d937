//! Objectives of the advice: the figure (number) by which it compares simulated policies. The user chooses one by
//! `--objective`.

use std::fmt;
use std::str::FromStr;

/// Predicted figures of a policy. Times are in microseconds; intervals are half widths at 95%.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Mean response time.
    pub mean_us: f64,
    /// Half width of the mean's interval.
    pub mean_ci95_us: f64,
    /// 99th percentile of the response time.
    pub p99_us: f64,
    /// Half width of the 99th percentile's interval.
    pub p99_ci95_us: f64,
    /// 99.9th percentile of the response time.
    pub p999_us: f64,
    /// 99.9th percentile of the slowdown: response time over own service time.
    pub slowdown_p999: f64,
    /// 99th percentile of the response time of each class that has tasks.
    pub class_p99_us: Vec<(usize, f64)>,
    /// Messages per task besides tasks and replies.
    pub messages_per_task: f64,
    /// True if queues grew during the whole run. The response times then depend on the run's length.
    pub unstable: bool,
}

/// An objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Lowest mean response time.
    Mean,
    /// Lowest 99th percentile.
    P99,
    /// Lowest 99.9th percentile.
    P999,
    /// Lowest 99.9th percentile of the slowdown.
    Slowdown,
    /// 99% of a class's tasks within a time; then the lowest mean.
    Slo {
        /// Class of the tasks.
        class: usize,
        /// Time in microseconds.
        us: f64,
    },
}

/// Allowed forms, for errors.
const FORMS: &str = "mean, p99, p99.9, slowdown-p99.9, slo(class=CLASS, us=MICROSECONDS)";

/// Objectives without parameters, with their names.
const NAMES: [(&str, Objective); 4] = [
    ("mean", Objective::Mean),
    ("p99", Objective::P99),
    ("p99.9", Objective::P999),
    ("slowdown-p99.9", Objective::Slowdown),
];

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Slo { class, us } = self {
            return write!(f, "slo(class={class}, us={us})");
        }
        let found = NAMES.iter().find(|(_, objective)| objective == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some((_, objective)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(*objective);
        }
        let parameters = text.strip_prefix("slo(").and_then(|rest| rest.strip_suffix(')'));
        let parameters =
            parameters.ok_or_else(|| format!("unknown objective `{text}`; allowed: {FORMS}"))?;
        parse_slo(parameters).ok_or_else(|| {
            format!("`{text}`: write slo(class=CLASS, us=MICROSECONDS), as in slo(class=1, us=200), with a time above 0")
        })
    }
}

/// Parses `class=1, us=200`, in any order. `None` if a part is missing, repeated or invalid.
fn parse_slo(parameters: &str) -> Option<Objective> {
    let (mut class, mut limit) = (None, None);
    for part in parameters.split(',') {
        match part.split_once('=').map(|(key, value)| (key.trim(), value.trim()))? {
            ("class", value) if class.is_none() => class = Some(value.parse::<usize>().ok()?),
            ("us", value) if limit.is_none() => limit = Some(value.parse::<f64>().ok()?),
            _ => return None,
        }
    }
    let us = limit.filter(|us| us.is_finite() && *us > 0.0)?;
    Some(Objective::Slo { class: class?, us })
}

/// Score of a policy; the lower one is better. The second figure decides among policies with equal first figures.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Score(pub f64, pub f64);

impl Score {
    /// Compares two scores for sorting, the better one first.
    #[must_use]
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.total_cmp(&other.1))
    }

    /// Returns the fraction by which this score is below `other`, in the first figure that differs.
    #[must_use]
    pub fn gain_over(&self, other: &Self) -> f64 {
        let (own, of_other) = if self.0 == other.0 { (self.1, other.1) } else { (self.0, other.0) };
        1.0 - own / of_other
    }
}

impl Objective {
    /// Returns the figure of a policy, in microseconds or as a ratio ([`Objective::unit`]); NaN if the class has no
    /// tasks.
    #[must_use]
    pub fn figure(&self, prediction: &Prediction) -> f64 {
        match *self {
            Self::Mean => prediction.mean_us,
            Self::P99 => prediction.p99_us,
            Self::P999 => prediction.p999_us,
            Self::Slowdown => prediction.slowdown_p999,
            Self::Slo { class, .. } => {
                let found = prediction.class_p99_us.iter().find(|(number, _)| *number == class);
                found.map_or(f64::NAN, |(_, p99_us)| *p99_us)
            }
        }
    }

    /// Returns the score of a policy. All policies that meet an SLO have the same first figure, its limit, so that the
    /// mean decides among them.
    #[must_use]
    pub fn score(&self, prediction: &Prediction) -> Score {
        let figure = self.figure(prediction);
        let first = match *self {
            Self::Slo { us, .. } => figure.max(us),
            _ => figure,
        };
        Score(first, prediction.mean_us)
    }

    /// Returns the name of the figure.
    #[must_use]
    pub fn figure_name(&self) -> String {
        match self {
            Self::Slo { class, .. } => format!("p99 of class {class}"),
            _ => self.to_string(),
        }
    }

    /// Returns the unit of the figure, with a space before it; empty for a ratio.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        if *self == Self::Slowdown { "" } else { " us" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a prediction with this mean, and this 99th percentile of class 1.
    fn prediction(mean_us: f64, class_p99: f64) -> Prediction {
        Prediction { mean_us, class_p99_us: vec![(1, class_p99)], ..Prediction::default() }
    }

    #[test]
    fn objectives_are_read_and_printed() {
        for text in ["mean", "p99", "p99.9", "slowdown-p99.9", "slo(class=2, us=150.5)"] {
            assert_eq!(text.parse::<Objective>().unwrap().to_string(), text);
        }
        assert_eq!("slo(us=5,class=0)".parse(), Ok(Objective::Slo { class: 0, us: 5.0 }));
        let unknown = "p98".parse::<Objective>().unwrap_err();
        assert!(
            unknown.contains("unknown objective `p98`") && unknown.contains("p99.9"),
            "{unknown}"
        );
        for text in
            ["slo()", "slo(class=1)", "slo(class=1, us=0)", "slo(class=x, us=1)", "slo(us=1, us=2)"]
        {
            let error = text.parse::<Objective>().unwrap_err();
            assert!(error.contains("as in slo(class=1, us=200)"), "{text}: {error}");
        }
    }

    #[test]
    fn slo_prefers_lower_mean_once_met() {
        let slo = Objective::Slo { class: 1, us: 100.0 };
        let (late, slow, fast) =
            (prediction(1.0, 150.0), prediction(20.0, 60.0), prediction(10.0, 90.0));
        let mut scores = [&late, &slow, &fast].map(|prediction| slo.score(prediction));
        // Only `late` misses 100 us: the first figures are 150 and 100. Then the means of 20 and 10 us decide.
        assert!((scores[1].gain_over(&scores[0]) - 1.0 / 3.0).abs() < 1e-9);
        assert!((scores[2].gain_over(&scores[1]) - 0.5).abs() < 1e-9);
        scores.sort_by(Score::order);
        assert_eq!(scores, [Score(100.0, 10.0), Score(100.0, 20.0), Score(150.0, 1.0)]);
        assert!(Objective::Slo { class: 7, us: 1.0 }.figure(&fast).is_nan());
    }
}
