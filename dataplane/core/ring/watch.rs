//! State that an agent publishes to observers of its workers in other processes: waiting tasks and response
//! times.
//!
//! The words are the last section of an agent's region, the memory that it shares with its workers. A batch job on the
//! same host observes them, to give CPUs back when tasks wait.
//!
//! The agent measures only while an observer keeps incrementing a word, so a killed observer costs nothing. The
//! times are published as a histogram that only grows, so the difference of two readings is the histogram of the
//! interval between them. A class (histogram bucket) is at most a sixteenth of its times wide, or 1 ns.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::state::region::Slice;

/// Index of the word that observers increment.
const OBSERVED: usize = 0;
/// Index of the word with the dispatcher's CPU plus 1; 0 if unknown.
const CORE: usize = 1;
/// Index of the word with the number of tasks without a free worker.
const WAITING: usize = 2;
/// Index of the first time count.
const TIMES: usize = 3;
/// Classes per octave (range between two powers of two, in nanoseconds).
const PER_OCTAVE: u64 = 16;
/// Number of classes: up to about 34 s. Longer times count in the last class.
const CLASSES: usize = 32 * PER_OCTAVE as usize;
/// Number of u64 words.
pub const WORDS: usize = TIMES + CLASSES;

/// Returns the class of a time. Times below 32 ns have one class per nanosecond, and each later octave has 16.
#[inline]
fn class(ns: u64) -> usize {
    // Number of low bits to drop, so that 5 bits remain. In an octave, `ns >> octave` counts from 16 to 31.
    let octave = u64::from(ns.max(PER_OCTAVE).ilog2() - PER_OCTAVE.ilog2());
    let class = octave * PER_OCTAVE + (ns >> octave);
    (class as usize).min(CLASSES - 1)
}

/// Returns the shortest time of the next class, in nanoseconds: the inverse of `class`.
fn end_ns(class: usize) -> u64 {
    // Here, octave 0 holds the times below 16 ns, so octave n is `class`'s octave n - 1.
    let (octave, index) = ((class as u64 + 1) / PER_OCTAVE, (class as u64 + 1) % PER_OCTAVE);
    match octave {
        0 => index,
        octave => (PER_OCTAVE + index) << (octave - 1),
    }
}

/// Words of a region that an agent writes and observers read. Observers write only the word that they increment.
#[derive(Clone, Debug)]
pub struct AgentStatusWords(Slice<AtomicU64>);

impl AgentStatusWords {
    /// Creates the view over [`WORDS`] words.
    ///
    /// # Panics
    /// If the number of words differs.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert_eq!(words.len(), WORDS);
        Self(words)
    }

    /// Increments the observers' word, which shows the agent that an observer is active. Call it at least ten times per
    /// second. Several observers may call it.
    pub fn ask(&self) {
        self.0[OBSERVED].fetch_add(1, Relaxed);
    }

    /// Returns the number of calls of [`AgentStatusWords::ask`]. The agent measures while it changes.
    #[inline]
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.0[OBSERVED].load(Relaxed)
    }

    /// Publishes the CPU on which the dispatcher polls. A batch job must not run there.
    pub fn set_core(&self, cpu: usize) {
        self.0[CORE].store(cpu as u64 + 1, Relaxed);
    }

    /// Returns the dispatcher's CPU, if known.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        (self.0[CORE].load(Relaxed) as usize).checked_sub(1)
    }

    /// Publishes the number of tasks without a free worker.
    #[inline]
    pub fn set_waiting(&self, tasks: u64) {
        self.0[WAITING].store(tasks, Relaxed);
    }

    /// Returns the last published number of tasks without a free worker.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.0[WAITING].load(Relaxed)
    }

    /// Counts a task's time from its arrival at the agent to its end: answered, unanswered or lost.
    #[inline]
    pub fn note(&self, ns: u64) {
        let word = &self.0[TIMES + class(ns)];
        // Only the agent's core counts, so a load and a store suffice. Workers can write any number here, so the sum
        // may wrap.
        word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the time counts since the agent's start.
    #[must_use]
    pub fn times(&self) -> Times {
        Times(self.0[TIMES..].iter().map(|word| word.load(Relaxed)).collect())
    }
}

/// Counts of times by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times(Box<[u64]>);

impl Times {
    /// Returns the counts added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        // Saturating: workers can write to the region, and must not be able to do more than spoil the measurement.
        let counts = self.0.iter().zip(&before.0);
        Self(counts.map(|(after, before)| after.saturating_sub(*before)).collect())
    }

    /// Returns the total count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the time in microseconds at this fraction, rounded up to the end of its class; `None` without counts.
    #[must_use]
    pub fn percentile(&self, fraction: f64) -> Option<f64> {
        let count = self.count();
        let rank = (count as f64 * fraction).ceil().max(1.0) as u64;
        let mut sum = 0_u64;
        let class = self.0.iter().position(|count| {
            sum = sum.saturating_add(*count);
            sum >= rank
        })?;
        (count > 0).then(|| end_ns(class) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::region::Region;

    /// Creates zeroed words on the heap.
    fn watch() -> AgentStatusWords {
        AgentStatusWords::new(Region::heap(8 * WORDS).slice(0, WORDS))
    }

    // promise: batch.2
    #[test]
    fn time_classes_end_within_a_sixteenth() {
        let mut last = 0;
        for ns in
            (0..5000).chain((13..34).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 7]))
        {
            let class = class(ns);
            assert!(class >= last, "{ns}");
            last = class;
            let end = end_ns(class);
            assert!(
                end > ns && end - ns <= (ns / 16).max(1),
                "{ns} is in a class that ends at {end}"
            );
        }
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    // promise: batch.2
    #[test]
    fn percentiles_cover_the_interval_between_readings() {
        let watch = watch();
        watch.note(1_000_000_000); // before the interval, so not counted
        let before = watch.times();
        assert_eq!(before.since(&before).percentile(0.5), None);
        (0..999).for_each(|_| watch.note(10_000));
        watch.note(400_000);
        let noted = watch.times().since(&before);
        assert_eq!(noted.count(), 1000);
        let within = |part, from: f64, to: f64| {
            let found = noted.percentile(part).unwrap();
            assert!((from..=to).contains(&found), "{part}: {found}");
        };
        // The results in us: a class ends at most a sixteenth above its time.
        within(0.5, 10.0, 10.7);
        within(0.999, 10.0, 10.7);
        within(0.9999, 400.0, 426.0);
        within(1.0, 400.0, 426.0);
    }

    #[test]
    fn published_words_read_back() {
        let watch = watch();
        assert_eq!((watch.core(), watch.waiting(), watch.asked()), (None, 0, 0));
        watch.set_core(0);
        watch.set_waiting(7);
        watch.ask();
        assert_eq!((watch.core(), watch.waiting(), watch.asked()), (Some(0), 7, 1));
    }
}
