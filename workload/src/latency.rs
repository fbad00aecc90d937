//! Latency histograms that include unanswered tasks.
//!
//! *Response* is measured from the due time of a task, *service* from its send time. An unanswered task
//! counts as infinite in every percentile. Mean and maximum cover answered tasks only. Windows and cores
//! merge by adding histograms; percentiles are never averaged.

use serde::{Deserialize, Serialize};

/// Longest latency that is resolved, one hour; longer ones count as this.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Bins for each power of two, as log2: a resolution of 0.1%.
const BIN_BITS: u32 = 10;
/// Number of bins.
const BINS: usize = bin_of(LATENCY_MAX_NS) + 1;

/// Returns the bin of a latency. The first 2^11 bins hold one value each. Every further power of two has 2^10 bins.
#[inline(always)]
const fn bin_of(ns: u64) -> usize {
    let shift = (ns >> BIN_BITS | 1).ilog2();
    ((shift as usize) << BIN_BITS) + (ns >> shift) as usize
}

/// Returns the lowest latency of a bin.
const fn lowest_ns(bin: usize) -> u64 {
    let shift = (bin >> BIN_BITS).saturating_sub(1);
    ((bin - (shift << BIN_BITS)) as u64) << shift
}

/// Returns the highest latency of a bin.
const fn highest_ns(bin: usize) -> u64 {
    lowest_ns(bin + 1) - 1
}

/// Latencies of a set of tasks, in nanoseconds.
///
/// The bins are those of HdrHistogram with three digits. A record costs a third of the library's instructions, because
/// it updates only its bin.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Number of answered tasks per bin.
    counts: Box<[u64; BINS]>,
    /// Number of unanswered tasks.
    infinite: u64,
}

impl Default for Latency {
    fn default() -> Self {
        // On the heap from the start: the array may be larger than a thread's stack.
        let counts: Box<[u64]> = vec![0; BINS].into();
        let mut counts: Box<[u64; BINS]> = counts.try_into().expect("the slice has BINS values");
        // Touches all pages, so that recording causes no page fault. The compiler would omit a second zeroing.
        std::hint::black_box(&mut counts).fill(0);
        Self { counts, infinite: 0 }
    }
}

impl Latency {
    /// Records the latency of an answered task.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.counts[bin_of(ns.min(LATENCY_MAX_NS))] += 1;
    }

    /// Records `tasks` unanswered tasks.
    pub fn record_infinite(&mut self, tasks: u64) {
        self.infinite += tasks;
    }

    /// Adds another set of tasks.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&*other.counts).for_each(|(count, other)| *count += other);
        self.infinite += other.infinite;
    }

    /// Returns the number of tasks, including unanswered ones.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.answered() + self.infinite
    }

    /// Returns the number of answered tasks.
    fn answered(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the latency in nanoseconds at a quantile of the tasks. Infinite if too few were answered; NaN
    /// without tasks.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        let tasks = self.tasks();
        if tasks == 0 {
            return f64::NAN;
        }
        let mut rank = ((quantile * tasks as f64).ceil() as u64).clamp(1, tasks);
        for (bin, count) in self.counts.iter().enumerate() {
            if rank <= *count {
                return highest_ns(bin) as f64;
            }
            rank -= count;
        }
        f64::INFINITY
    }

    /// Returns the mean latency of the answered tasks in nanoseconds; NaN if there are none. All tasks of a bin count
    /// as its middle.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        let middle = |bin| lowest_ns(bin).midpoint(highest_ns(bin) + 1) as f64;
        let weighted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let sum: f64 = weighted.map(|(bin, count)| middle(bin) * *count as f64).sum();
        // 0 / 0 is NaN.
        sum / self.answered() as f64
    }

    /// Returns the longest latency of the answered tasks in nanoseconds; NaN if there are none.
    fn max_ns(&self) -> f64 {
        let bin = self.counts.iter().rposition(|count| *count > 0);
        bin.map_or(f64::NAN, |bin| highest_ns(bin) as f64)
    }

    /// Returns the summary for reports.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let us = |quantile| Micros(self.quantile_ns(quantile) / 1e3);
        LatencySummary {
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p999: us(0.999),
            p9999: us(0.9999),
            mean: Micros(self.mean_ns() / 1e3),
            max: Micros(self.max_ns() / 1e3),
        }
    }
}

/// Microseconds; null in JSON if infinite or unknown.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Micros(pub f64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self.0 {
            us if us.is_nan() => "-".to_owned(),
            us if us.is_infinite() => "inf".to_owned(),
            us if us >= 1000.0 => format!("{us:.0}"),
            us if us >= 10.0 => format!("{us:.1}"),
            us => format!("{us:.2}"),
        };
        f.pad(&text)
    }
}

impl Serialize for Micros {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Three decimals are nanoseconds, the resolution of the measurement.
        let finite = self.0.is_finite().then(|| (self.0 * 1e3).round() / 1e3);
        finite.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Null becomes infinite: an unknown figure must not look better than a measured one.
        Option::<f64>::deserialize(deserializer).map(|us| Self(us.unwrap_or(f64::INFINITY)))
    }
}

/// Percentiles over all tasks, mean and maximum over answered tasks, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // fields are named after their meaning
pub struct LatencySummary {
    pub p50: Micros,
    pub p90: Micros,
    pub p99: Micros,
    pub p999: Micros,
    pub p9999: Micros,
    pub mean: Micros,
    pub max: Micros,
}

impl LatencySummary {
    /// Returns the figure with this key; NaN for an unknown key. Reports print the figures of a list of keys.
    #[must_use]
    pub fn named(&self, key: &str) -> Micros {
        match key {
            "p50" => self.p50,
            "p90" => self.p90,
            "p99" => self.p99,
            "p999" => self.p999,
            "p9999" => self.p9999,
            "mean" => self.mean,
            "max" => self.max,
            _ => Micros(f64::NAN),
        }
    }
}

/// Half widths of 95% confidence intervals, from windows of the measured time or groups of its slices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Confidence {
    /// Half width for the median.
    pub p50: Micros,
    /// Half width for the 99th percentile.
    pub p99: Micros,
    /// Half width for the mean.
    pub mean: Micros,
}

/// Returns half the width of the 95% confidence interval (Student's t) of a figure from its values in
/// repeated windows. Infinite if one value is; NaN for fewer than two.
#[must_use]
pub fn ci95_half_width(values: &[f64]) -> f64 {
    /// Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom.
    const T: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    if values.len() < 2 {
        return f64::NAN;
    }
    if values.iter().any(|value| value.is_infinite()) {
        return f64::INFINITY;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    // Beyond 30 degrees of freedom, the normal distribution's quantile is close enough.
    let t = T.get(values.len() - 2).copied().unwrap_or(1.96);
    t * (variance / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    /// Returns a set of tasks with these latencies, and `infinite` unanswered tasks.
    fn latency_of(latencies_ns: &[u64], infinite: u64) -> Latency {
        let mut latency = Latency::default();
        latencies_ns.iter().for_each(|ns| latency.record(*ns));
        latency.record_infinite(infinite);
        latency
    }

    // promise: measurement.1
    #[test]
    fn lost_task_is_infinitely_late() {
        // 985 answered, 15 lost: 98.5% came back, so p90 is finite and p99 is infinite.
        let latency = latency_of(&[1000; 985], 15);
        assert_eq!(latency.quantile_ns(0.9), 1000.0);
        assert_eq!(latency.quantile_ns(0.985), 1000.0);
        assert_eq!(latency.quantile_ns(0.99), f64::INFINITY);
        let summary = latency.summary();
        assert_eq!(summary.p99.to_string(), "inf");
        assert_eq!(summary.mean.0, 1.0);
        let json = serde_json::to_value(summary).unwrap();
        assert!(json["p99"].is_null() && json["p50"] == 1.0, "{json}");
        let back: LatencySummary = serde_json::from_value(json).unwrap();
        assert_eq!(back.p99.0, f64::INFINITY);
    }

    #[test]
    fn nothing_measured_is_not_zero() {
        let summary = Latency::default().summary();
        assert_eq!(summary.p50.to_string(), "-");
        assert!(serde_json::to_value(summary).unwrap()["mean"].is_null());
    }

    #[test]
    fn latency_beyond_the_range_saturates() {
        assert!(latency_of(&[u64::MAX], 0).quantile_ns(0.5) >= LATENCY_MAX_NS as f64);
    }

    #[test]
    fn confidence_of_known_values_is_right() {
        // Mean 3, sample variance 2.5, t(4) = 2.776: 2.776 * sqrt(2.5 / 5) = 1.963.
        assert!((ci95_half_width(&[1.0, 2.0, 3.0, 4.0, 5.0]) - 1.963).abs() < 1e-3);
        assert!(ci95_half_width(&[1.0]).is_nan());
        assert_eq!(ci95_half_width(&[1.0, f64::INFINITY]), f64::INFINITY);
    }

    proptest! {
        #[test]
        fn quantiles_equal_those_of_sorted_tasks(
            mut ns in proptest::collection::vec(1..1_000_000_u64, 1..300), infinite in 0..30_u64,
            quantile in 0.0..1.0_f64,
        ) {
            let latency = latency_of(&ns, infinite);
            ns.sort_unstable();
            let tasks = ns.len() as u64 + infinite;
            let rank = ((quantile * tasks as f64).ceil() as usize).max(1);
            match ns.get(rank - 1) {
                Some(exact) => {
                    let found = latency.quantile_ns(quantile);
                    prop_assert!((found / *exact as f64 - 1.0).abs() < 1.1e-3, "{found} {exact}");
                }
                None => prop_assert_eq!(latency.quantile_ns(quantile), f64::INFINITY),
            }
        }

        #[test]
        fn figures_equal_those_of_hdrhistogram(
            ns in proptest::collection::vec(prop_oneof![0..5_000_u64, any::<u64>()], 1..300),
            quantile in 0.0..1.0_f64, shift in 0..64_u32,
        ) {
            let ns: Vec<_> = ns.into_iter().map(|ns| ns >> shift).collect();
            let latency = latency_of(&ns, 0);
            let mut histogram = Histogram::<u64>::new_with_bounds(1, LATENCY_MAX_NS, 3).unwrap();
            // The library has bins for some longer latencies.
            ns.iter().for_each(|ns| histogram.record((*ns).min(LATENCY_MAX_NS)).unwrap());
            // Half a rank less, because the library rounds up.
            let rank = (quantile * ns.len() as f64).ceil().max(1.0);
            let value = histogram.value_at_quantile((rank - 0.5) / ns.len() as f64);
            prop_assert_eq!(latency.quantile_ns(quantile), value as f64);
            prop_assert_eq!(latency.max_ns(), histogram.max() as f64);
            prop_assert!((latency.mean_ns() - histogram.mean()).abs() <= 1e-9 * histogram.mean());
        }

        #[test]
        fn merged_sets_equal_one_set(
            a in proptest::collection::vec(1..1_000_000_u64, 0..50), b in proptest::collection::vec(1..1_000_000_u64, 0..50),
        ) {
            let mut merged = latency_of(&a, 1);
            merged.merge(&latency_of(&b, 2));
            let together = latency_of(&[a, b].concat(), 3);
            prop_assert_eq!(merged.tasks(), together.tasks());
            for quantile in [0.1, 0.5, 0.9] {
                prop_assert_eq!(merged.quantile_ns(quantile), together.quantile_ns(quantile));
            }
        }
    }
}
