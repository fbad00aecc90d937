//! Lease of a leading controller: the time until which it may answer, by this machine's own clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::sleep;

/// Source of the time since the machine booted.
pub type Clock = fn() -> Duration;

/// [`Lease::end`] reads the clock at least this often: a timer of tokio does not count the time of a suspended machine.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the time since boot. It goes on while the process is stopped and while the machine is suspended.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A leader's lease, for all that answer in its name. They read the clock before each answer, so that a process which was stopped
/// beyond its lease answers nothing, whichever of its tasks runs first.
#[derive(Clone, Debug)]
pub struct Lease {
    clock: Clock,
    end: watch::Receiver<Duration>,
}

/// Extends and ends a [`Lease`].
#[derive(Clone, Debug)]
pub struct Renewal {
    clock: Clock,
    end: watch::Sender<Duration>,
}

impl Lease {
    /// Makes a lease until `end`, by `clock`.
    pub fn new(clock: Clock, end: Duration) -> (Renewal, Self) {
        let (sender, receiver) = watch::channel(end);
        (Renewal { clock, end: sender }, Self { clock, end: receiver })
    }

    /// Makes a lease without an end, for a store that no other controller can open.
    pub fn unlimited() -> Self {
        Self::new(since_boot, Duration::MAX).1
    }

    /// Reports whether the lease lasts at this moment.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.clock)() < *self.end.borrow()
    }

    /// Waits for the end of the lease.
    pub async fn end(&mut self) {
        loop {
            let left = self.end.borrow_and_update().saturating_sub((self.clock)());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = sleep(left.min(LOOK)) => {}
                Ok(()) = self.end.changed() => {}
            }
        }
    }
}

impl Renewal {
    /// Extends the lease, unless it is over: an ended lease stays ended.
    pub fn extend(&self, end: Duration) {
        self.end.send_if_modified(|now| {
            let is_later = (self.clock)() < *now && *now < end;
            if is_later {
                *now = end;
            }
            is_later
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
        let (renewal, lease) = Lease::new(clock, Duration::MAX);
        renewal.end();
        renewal.extend(Duration::from_secs(30));
        assert!(!lease.holds() && Lease::unlimited().holds());
    }
}
