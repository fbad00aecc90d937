//! Log limit for a failure that repeats, for loops that retry.

use std::time::{Duration, Instant};

/// Time without a failure after which an outage is over.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// State of a retried failure, such as `accept` without file descriptors. The log gets one line at its start and one
/// at its end.
#[derive(Debug, Default)]
pub struct Outage {
    /// Failures of the current outage.
    failures: u64,
    /// Time of the last failure.
    last: Option<Instant>,
}

impl Outage {
    /// Records a failure at `now`. Returns true if it is the first of an outage; the caller logs only this
    /// one.
    pub fn fails(&mut self, now: Instant) -> bool {
        self.failures += 1;
        self.last = Some(now);
        self.failures == 1
    }

    /// Records a success at `now`. Returns the number of failures once the outage is over.
    ///
    /// A success right after a failure does not end an outage, so a source that alternates between both logs
    /// one line.
    pub fn works(&mut self, now: Instant) -> Option<u64> {
        let last = self.last?;
        if now.saturating_duration_since(last) < RECOVERED_AFTER {
            return None;
        }
        self.last = None;
        Some(std::mem::take(&mut self.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: control.3
    #[test]
    fn an_outage_is_logged_once() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(outage.works(at(0)), None);
        let logged = (0..600).filter(|&turn| outage.fails(at(100 * turn))).count();
        assert_eq!(logged, 1, "one line for a minute of failures");
        assert_eq!(outage.works(at(60_000)), None, "it may fail again at once");
        assert!(!outage.fails(at(60_100)));
        assert_eq!(outage.works(at(60_100 + RECOVERED_AFTER.as_millis() as u64)), Some(601));
        assert_eq!(outage.works(at(100_000)), None);
        assert!(outage.fails(at(100_000)), "the next outage has a line of its own");
    }
}
