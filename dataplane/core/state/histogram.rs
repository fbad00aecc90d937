//! Histograms of durations in words of a region: a count per bucket. One core writes, any thread may read. Cores record
//! ages of load reports, waiting times and decision times in them.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

/// Upper bounds of the buckets in nanoseconds, inclusive: 1, 2 and 5 times each power of ten, from 10 ns to 10 s.
pub const BOUNDS_NS: [u64; 28] = {
    let (mut bounds, mut index, mut power) = ([0; 28], 0, 10);
    while index < bounds.len() {
        bounds[index] = [1, 2, 5][index % 3] * power;
        index += 1;
        if index % 3 == 0 {
            power *= 10;
        }
    }
    bounds
};

/// Number of u64 words of a histogram: a count for each bound, one for longer durations, and the sum in nanoseconds.
pub const WORDS: usize = BOUNDS_NS.len() + 2;

/// Index of the sum among the words.
const SUM: usize = WORDS - 1;

/// Histogram of one core, in its [`WORDS`] words.
#[derive(Clone, Copy, Debug)]
pub struct Histogram<'a>(pub &'a [AtomicU64]);

impl Histogram<'_> {
    /// Counts `times` equal durations.
    pub fn record(self, ns: u64, times: u64) {
        let bucket = BOUNDS_NS.partition_point(|&bound| bound < ns);
        for (index, by) in [(bucket, times), (SUM, ns.saturating_mul(times))] {
            // One writer: a plain load and store, no locked instruction.
            self.0[index].store(self.0[index].load(Relaxed).saturating_add(by), Relaxed);
        }
    }

    /// Returns the current content.
    #[must_use]
    pub fn read(self) -> HistogramSnapshot {
        let words: Vec<_> = self.0.iter().map(|word| word.load(Relaxed)).collect();
        let (counts, sum_ns) = (&words[..SUM], words[SUM]);
        let buckets = BOUNDS_NS.into_iter().zip(counts.iter().copied());
        HistogramSnapshot {
            // A damaged state file may hold any numbers.
            count: counts.iter().copied().fold(0, u64::saturating_add),
            sum_ns,
            buckets: buckets.filter(|&(_, count)| count > 0).collect(),
        }
    }
}

/// Content of a [`Histogram`], or the sum of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HistogramSnapshot {
    /// Number of recorded durations.
    pub count: u64,
    /// Sum of the durations in nanoseconds.
    pub sum_ns: u64,
    /// Number of durations by the inclusive upper bound of their bucket in nanoseconds: 10, 20, 50, 100 and so on
    /// to 10 s, without empty buckets. `count` and `sum_ns` also include durations above 10 s.
    pub buckets: BTreeMap<u64, u64>,
}

impl HistogramSnapshot {
    /// Returns the sum of both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        for (bound, count) in other.buckets {
            let sum = self.buckets.entry(bound).or_default();
            *sum = sum.saturating_add(count);
        }
        self
    }

    /// Iterates over all bounds in nanoseconds, each with the number of durations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        BOUNDS_NS.into_iter().scan(0_u64, |sum, bound| {
            *sum = sum.saturating_add(self.buckets.get(&bound).copied().unwrap_or_default());
            Some((bound, *sum))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of an empty histogram.
    fn words() -> [AtomicU64; WORDS] {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[test]
    fn bounds_are_1_2_5_per_decade() {
        assert_eq!(BOUNDS_NS[..6], [10, 20, 50, 100, 200, 500]);
        assert_eq!(BOUNDS_NS[24..], [1_000_000_000, 2_000_000_000, 5_000_000_000, 10_000_000_000]);
        assert!(BOUNDS_NS.is_sorted());
    }

    #[test]
    fn duration_counts_in_the_first_bucket_not_below() {
        let words = words();
        let histogram = Histogram(&words);
        assert_eq!(histogram.read(), HistogramSnapshot::default());
        for (ns, times) in [(0, 1), (10, 1), (11, 2), (500, 3), (501, 1)] {
            histogram.record(ns, times);
        }
        histogram.record(10_000_000_001, 1);
        let snapshot = histogram.read();
        assert_eq!(snapshot.buckets, BTreeMap::from([(10, 2), (20, 2), (500, 3), (1_000, 1)]));
        assert_eq!((snapshot.count, snapshot.sum_ns), (9, 10_000_000_001 + 10 + 22 + 1_500 + 501));
        let up_to = |bound| snapshot.cumulative().find(|entry| entry.0 == bound).unwrap().1;
        assert_eq!([10, 20, 200, 500, 10_000_000_000].map(up_to), [2, 4, 4, 7, 8]);
    }

    #[test]
    fn long_durations_do_not_wrap_the_sum() {
        let words = words();
        let histogram = Histogram(&words);
        histogram.record(u64::MAX, 3);
        histogram.record(5, 1);
        let snapshot = histogram.read();
        assert_eq!((snapshot.count, snapshot.sum_ns), (4, u64::MAX));
    }

    #[test]
    fn snapshots_add_up() {
        let words = [words(), words()];
        let [one, two] = [0, 1].map(|index| Histogram(&words[index]));
        one.record(10, 1);
        one.record(2_000, 1);
        two.record(10, 4);
        let both = one.read().and(two.read());
        assert_eq!((both.count, both.sum_ns), (6, 2_050));
        assert_eq!(both.buckets, BTreeMap::from([(10, 5), (2_000, 1)]));
    }
}
