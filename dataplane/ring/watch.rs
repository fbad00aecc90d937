//! State that an agent publishes to observers of its workers in other processes: waiting tasks and response
//! times.
//!
//! The agent measures only while an observer keeps incrementing a word, so a killed observer costs nothing.
//! Times are counted in classes with bounds a sixteenth apart, so a percentile over any interval is a
//! difference of counts.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::state::region::Slice;

/// Incremented by observers.
const ASKED: usize = 0;
/// The dispatcher's CPU plus 1; 0 if unknown.
const CORE: usize = 1;
/// Tasks without a free worker.
const WAITING: usize = 2;
/// Start of the time counts.
const TIMES: usize = 3;
/// Classes per octave.
const PER_OCTAVE: u64 = 16;
/// Number of classes: up to about 17 s.
const CLASSES: usize = 32 * PER_OCTAVE as usize;
/// Number of u64 words.
pub const WORDS: usize = TIMES + CLASSES;

/// Returns the class of a time.
#[inline]
fn class(ns: u64) -> usize {
    let octave = u64::from(ns.max(PER_OCTAVE).ilog2() - PER_OCTAVE.ilog2());
    let class = octave * PER_OCTAVE + (ns >> octave);
    (class as usize).min(CLASSES - 1)
}

/// Returns the shortest time of the next class.
fn end_ns(class: usize) -> u64 {
    let (octave, within) = ((class as u64 + 1) / PER_OCTAVE, (class as u64 + 1) % PER_OCTAVE);
    match octave {
        0 => within,
        octave => (PER_OCTAVE + within) << (octave - 1),
    }
}

/// Words of a region that an agent writes and others read. Each word has one writer.
#[derive(Clone, Debug)]
pub struct AgentStatusWords(Slice<AtomicU64>);

impl AgentStatusWords {
    /// Creates the view over [`WORDS`] words.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert_eq!(words.len(), WORDS);
        Self(words)
    }

    /// Marks that an observer is active. Call it at least ten times per second. Several observers may.
    pub fn ask(&self) {
        self.0[ASKED].fetch_add(1, Relaxed);
    }

    /// Returns the number of those calls.
    #[inline]
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.0[ASKED].load(Relaxed)
    }

    /// Publishes the dispatcher's CPU.
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

    /// Counts a task's time from its arrival at the agent to its answer.
    #[inline]
    pub fn note(&self, ns: u64) {
        let word = &self.0[TIMES + class(ns)];
        word.store(word.load(Relaxed) + 1, Relaxed);
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
        // A worker that spoils the shared region can only spoil the measurement.
        Self(self.0.iter().zip(&before.0).map(|(now, then)| now.saturating_sub(*then)).collect())
    }

    /// Returns the total count.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the time in microseconds at this fraction, rounded up to its class; `None` without counts.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<f64> {
        let count = self.count();
        let rank = (count as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        let class = self.0.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        })?;
        (count > 0).then(|| end_ns(class) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::region::Region;

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
        watch.note(1_000_000_000);
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
