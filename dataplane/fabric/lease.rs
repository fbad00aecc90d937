//! Lease of a leading controller: the time until which it may answer, measured by this machine's clock.
//!
//! Several controllers share a store, and one leads. etcd grants the lead for a limited time, and another controller
//! may lead after it. So the store extends the lease with each confirmation, and each task of the controller checks it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::sleep;

/// Source of the time since the machine booted; tests pass their own. A plain function, so that a lease can be cloned
/// and sent to other threads.
pub type Clock = fn() -> Duration;

/// Maximum interval at which [`Lease::end`] reads the clock: tokio's timers do not count time during which
/// the machine is suspended.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the time since boot. It also advances while the process is stopped or the machine is suspended.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Lease of a leader, for all tasks that answer for it. They read the clock before each answer. So a process
/// that was stopped beyond its lease sends no answer, whichever of its tasks runs first. The exception is the
/// answer to a change that the store has kept.
#[derive(Clone, Debug)]
pub struct Lease {
    clock: Clock,
    /// Time of the end, by the clock.
    end: watch::Receiver<Duration>,
}

/// Extends and ends a [`Lease`]. The store holds it.
#[derive(Clone, Debug)]
pub struct Renewal {
    clock: Clock,
    /// Time of the lease's end, by the clock.
    end: watch::Sender<Duration>,
}

impl Lease {
    /// Creates a lease until `end`, measured by `clock`.
    pub fn new(clock: Clock, end: Duration) -> (Renewal, Self) {
        let (sender, receiver) = watch::channel(end);
        (Renewal { clock, end: sender }, Self { clock, end: receiver })
    }

    /// Creates a lease without an end, for a store that no other controller can open.
    pub fn unlimited() -> Self {
        Self::new(since_boot, Duration::MAX).1
    }

    /// Returns true while the lease lasts.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.clock)() < *self.end.borrow()
    }

    /// Waits for the end of the lease. `Renewal` may move the end meanwhile.
    pub async fn end(&mut self) {
        loop {
            let remaining = self.end.borrow_and_update().saturating_sub((self.clock)());
            if remaining.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(remaining.min(CLOCK_INTERVAL)) => {}
                Ok(()) = self.end.changed() => {}
            }
        }
    }
}

impl Renewal {
    /// Extends the lease to a later `end`. Does nothing after the end of the lease: another controller may lead since.
    pub fn extend(&self, end: Duration) {
        self.end.send_if_modified(|current_end| {
            let extends = (self.clock)() < *current_end && *current_end < end;
            if extends {
                *current_end = end;
            }
            extends
        });
    }

    /// Ends the lease at once.
    pub fn end(&self) {
        self.end.send_replace(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn an_ended_lease_stays_ended() {
        // Time of the clock in seconds.
        static NOW: AtomicU64 = AtomicU64::new(10);
        let clock = || Duration::from_secs(NOW.load(Ordering::Relaxed));
        let (renewal, lease) = Lease::new(clock, Duration::from_secs(15));
        renewal.extend(Duration::from_secs(20));
        NOW.store(19, Ordering::Relaxed);
        assert!(lease.holds());
        NOW.store(20, Ordering::Relaxed);
        assert!(!lease.holds());
        renewal.extend(Duration::from_secs(30));
        assert!(!lease.holds(), "a late answer of the store revives nothing");
        // The holder may also end a lease early.
        let (renewal, lease) = Lease::new(clock, Duration::MAX);
        renewal.end();
        renewal.extend(Duration::from_secs(30));
        assert!(!lease.holds() && Lease::unlimited().holds());
    }
}
