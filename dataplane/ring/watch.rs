//! What an agent tells those who watch its workers from another process: how many tasks wait, and how long tasks take.
//!
//! It is measured only while somebody asks, by raising a number again and again: one who is killed asks no more. Times are
//! counted in classes whose bounds are a sixteenth apart, so that a percentile over any time is a difference of counts.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::state::region::Slice;

/// Raised by whoever watches.
const ASKED: usize = 0;
/// The dispatcher's CPU and 1; 0 while it is not known.
const CORE: usize = 1;
/// Tasks for which no worker was free.
const WAITING: usize = 2;
/// Where the counts of times begin.
const TIMES: usize = 3;
/// Classes of an octave.
const PER_OCTAVE: u64 = 16;
/// Classes in all: up to some 17 s.
const CLASSES: usize = 32 * PER_OCTAVE as usize;
/// u64 words of it all.
pub const WORDS: usize = TIMES + CLASSES;

/// The class of a time.
#[inline]
fn class(ns: u64) -> usize {
    let octave = u64::from(ns.max(PER_OCTAVE).ilog2() - PER_OCTAVE.ilog2());
    let class = octave * PER_OCTAVE + (ns >> octave);
    (class as usize).min(CLASSES - 1)
}

/// The shortest time of the next class.
fn end_ns(class: usize) -> u64 {
    let (octave, within) = ((class as u64 + 1) / PER_OCTAVE, (class as u64 + 1) % PER_OCTAVE);
    match octave {
        0 => within,
        octave => (PER_OCTAVE + within) << (octave - 1),
    }
}

/// Words of a region that an agent writes and others read. There is one writer of each.
#[derive(Clone, Debug)]
pub struct Watch(Slice<AtomicU64>);

impl Watch {
    /// Over [`WORDS`] words.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert_eq!(words.len(), WORDS);
        Self(words)
    }

    /// Somebody watches now; to be said at least ten times a second. Several may say it.
    pub fn ask(&self) {
        self.0[ASKED].fetch_add(1, Relaxed);
    }

    /// How often that was said.
    #[inline]
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.0[ASKED].load(Relaxed)
    }

    /// Tells the dispatcher's CPU.
    pub fn set_core(&self, cpu: usize) {
        self.0[CORE].store(cpu as u64 + 1, Relaxed);
    }

    /// The dispatcher's CPU, if it is known.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        (self.0[CORE].load(Relaxed) as usize).checked_sub(1)
    }

    /// Tells for how many tasks no worker is free.
    #[inline]
    pub fn set_waiting(&self, tasks: u64) {
        self.0[WAITING].store(tasks, Relaxed);
    }

    /// For how many tasks no worker was free when that was told last.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.0[WAITING].load(Relaxed)
    }

    /// A task took so long, from its arrival at the agent to its answer.
    #[inline]
    pub fn note(&self, ns: u64) {
        let word = &self.0[TIMES + class(ns)];
        word.store(word.load(Relaxed) + 1, Relaxed);
    }

    /// How often which time was taken since the agent's start.
    #[must_use]
    pub fn times(&self) -> Times {
        Times(self.0[TIMES..].iter().map(|word| word.load(Relaxed)).collect())
    }
}

/// Counts of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times(Box<[u64]>);

impl Times {
    /// Those noted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        // What a worker spoils in the region they share may do no more than spoil the measurement.
        Self(self.0.iter().zip(&before.0).map(|(now, then)| now.saturating_sub(*then)).collect())
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The time in microseconds that this part of them does not exceed, rounded up to its class; none when there are none.
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

    fn watch() -> Watch {
        Watch::new(Region::heap(8 * WORDS).slice(0, WORDS))
    }

    #[test]
    fn each_time_is_in_a_class_that_ends_a_sixteenth_above_it_at_most() {
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

    #[test]
    fn percentiles_are_of_what_was_noted_between_two_looks() {
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
    fn what_the_agent_tells_is_read_as_it_was_told() {
        let watch = watch();
        assert_eq!((watch.core(), watch.waiting(), watch.asked()), (None, 0, 0));
        watch.set_core(0);
        watch.set_waiting(7);
        watch.ask();
        assert_eq!((watch.core(), watch.waiting(), watch.asked()), (Some(0), 7, 1));
    }
}
