//! Predictions of the advice, and their scores under an objective: the figure (number) by which the advice compares
//! simulated policies. The user chooses one by `--objective`.

use wedjat_core::policy::Objective;

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

/// Score of a policy; the lower one is better. The second figure decides among policies with equal first figures.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Score(pub f64, pub f64);

impl Score {
    /// Compares two scores for sorting, the better one first.
    #[must_use]
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.total_cmp(&other.1))
    }

    /// Returns the fraction by which this score is below `other`, in the first figure that differs. The advice
    /// recommends a change of the running policy if this gain is large.
    #[must_use]
    pub fn gain_over(&self, other: &Self) -> f64 {
        let (own, of_other) = if self.0 == other.0 { (self.1, other.1) } else { (self.0, other.0) };
        1.0 - own / of_other
    }
}

impl Prediction {
    /// Returns the objective's figure, in microseconds or as a ratio ([`Objective::unit`]); NaN if the class has no
    /// tasks.
    #[must_use]
    pub fn figure(&self, objective: &Objective) -> f64 {
        match *objective {
            Objective::Mean => self.mean_us,
            Objective::P99 => self.p99_us,
            Objective::P999 => self.p999_us,
            Objective::Slowdown => self.slowdown_p999,
            Objective::Slo { class, .. } => {
                let found = self.class_p99_us.iter().find(|(number, _)| *number == class);
                found.map_or(f64::NAN, |(_, p99_us)| *p99_us)
            }
        }
    }

    /// Returns the score under an objective. All policies that meet an SLO have the same first figure, its limit, so
    /// that the mean decides among them. A class without tasks meets its SLO.
    #[must_use]
    pub fn score(&self, objective: &Objective) -> Score {
        let figure = self.figure(objective);
        let first = match *objective {
            Objective::Slo { us, .. } => figure.max(us),
            _ => figure,
        };
        Score(first, self.mean_us)
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
    fn slo_prefers_lower_mean_once_met() {
        let slo = Objective::Slo { class: 1, us: 100.0 };
        let (late, slow, fast) =
            (prediction(1.0, 150.0), prediction(20.0, 60.0), prediction(10.0, 90.0));
        let mut scores = [&late, &slow, &fast].map(|prediction| prediction.score(&slo));
        // Only `late` misses 100 us: the first figures are 150 and 100. Then the means of 20 and 10 us decide.
        assert!((scores[1].gain_over(&scores[0]) - 1.0 / 3.0).abs() < 1e-9);
        assert!((scores[2].gain_over(&scores[1]) - 0.5).abs() < 1e-9);
        scores.sort_by(Score::order);
        assert_eq!(scores, [Score(100.0, 10.0), Score(100.0, 20.0), Score(150.0, 1.0)]);
        assert!(fast.figure(&Objective::Slo { class: 7, us: 1.0 }).is_nan());
    }
}
