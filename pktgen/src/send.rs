//! Open-loop pacing: when each task is due and what it is, settled before its time and never moved.
//!
//! A task that cannot be sent when due is sent later, with its due time kept; one that is not sent by
//! the end of the run is counted as unsent. Nothing is skipped, and nothing is counted that did not leave.

use wedjat::limits::BURST;

use crate::arrival::Schedule;
use crate::replay::Player;
use crate::seed::{CoreSeeds, Stream};
use crate::service::Service;

/// A task of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When it is to be sent, in ticks.
    pub at: u64,
    /// Time asked of the worker; longer than 4.29 s counts as that.
    pub service_ns: u32,
    /// Its type.
    pub class: u16,
    /// Bytes of its frame at least; no frame is longer than the longest of its load.
    pub size: u16,
}

/// Where tasks come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Gaps and service times are drawn.
    Drawn {
        /// When they are due.
        schedule: Schedule,
        /// For that.
        arrivals: Stream,
        /// What they are.
        service: Service,
        /// For that.
        services: Stream,
    },
    /// All is said by a trace.
    Replayed(Player),
}

impl Source {
    /// Tasks of this schedule with these service times.
    #[must_use]
    pub fn drawn(schedule: Schedule, service: Service, seeds: &CoreSeeds) -> Self {
        let (arrivals, services) = (seeds.arrivals.stream(), seeds.service.stream());
        Self::Drawn { schedule, arrivals, service, services }
    }

    /// Says of each of `ahead` what it is and when it is due, `start` being when the load starts.
    #[inline]
    fn fill(&mut self, ahead: &mut [Due], start: u64) {
        match self {
            Self::Drawn { schedule, arrivals, service, services } => {
                schedule.fill(arrivals, ahead, |due, at| due.at = start + at);
                service.fill(services, ahead, |due, ns, class| {
                    // Rounds; the cast saturates.
                    (due.service_ns, due.class) = ((ns + 0.5) as u32, class);
                });
            }
            Self::Replayed(player) => player.fill(ahead, start),
        }
    }
}

/// Tasks drawn at a time: in one loop they cost half of what they do one by one.
const DRAWN: usize = BURST;
/// Tasks known beforehand at most.
const AHEAD: usize = 2 * DRAWN;

/// The tasks of one core, in the order they are due.
#[derive(Clone, Debug)]
pub struct Pacer {
    source: Source,
    start: u64,
    end: u64,
    /// A ring; the tasks from `taken` to before `drawn` are known, and there is always one.
    ahead: [Due; AHEAD],
    taken: usize,
    drawn: usize,
}

impl Pacer {
    /// Tasks due from `start` ticks on and before `end`.
    #[must_use]
    pub fn new(source: Source, start: u64, end: u64) -> Self {
        // What is drawn has no size of its own: its frames are all the longest.
        let ahead = [Due { at: start, service_ns: 0, class: 0, size: u16::MAX }; AHEAD];
        let mut pacer = Self { source, start, end, ahead, taken: 0, drawn: 0 };
        pacer.draw();
        pacer
    }

    /// Draws further tasks when there may be too few for the next burst: the time for it is after a burst has been
    /// sent, not before.
    #[inline]
    pub fn draw_ahead(&mut self) {
        if self.drawn - self.taken <= DRAWN {
            self.draw();
        }
    }

    fn draw(&mut self) {
        let place = self.drawn % AHEAD;
        self.source.fill(&mut self.ahead[place..place + DRAWN], self.start);
        self.drawn += DRAWN;
    }

    #[inline]
    fn next(&self) -> &Due {
        &self.ahead[self.taken % AHEAD]
    }

    /// The next task is due at `now`.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        self.next().at <= now && !self.is_done()
    }

    /// Takes the next task, due or not.
    #[inline]
    pub fn take(&mut self) -> Due {
        let due = *self.next();
        self.taken += 1;
        if self.taken == self.drawn {
            self.draw();
        }
        due
    }

    /// Nothing is due from `now` on.
    pub fn end(&mut self, now: u64) {
        self.end = self.end.min(now);
    }

    /// No task is left before the end.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.next().at >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival::Arrivals;

    fn pacer(seed: u64) -> Pacer {
        let schedule = Schedule::new(&Arrivals::Poisson, 1e6, 1e9).unwrap();
        let service = "mix(0.5*exp(5us), 0.5*fixed(9us))".parse().unwrap();
        let source = Source::drawn(schedule, service, &CoreSeeds::derive(seed, 0));
        Pacer::new(source, 5_000, 1_005_000)
    }

    fn all(mut pacer: Pacer) -> Vec<Due> {
        std::iter::from_fn(|| (!pacer.is_done()).then(|| pacer.take())).collect()
    }

    #[test]
    fn when_it_is_asked_does_not_change_what_is_due() {
        let mut polled = pacer(7);
        let mut taken = Vec::new();
        for now in (0..1_100_000).step_by(700) {
            while polled.is_due(now) {
                taken.push(polled.take());
                assert!(taken[taken.len() - 1].at <= now);
            }
            // Drawn ahead or not.
            if now % 3 == 0 {
                polled.draw_ahead();
            }
        }
        assert!(polled.is_done());
        assert_eq!(taken, all(pacer(7)));
        assert!((900..1100).contains(&taken.len()), "{}", taken.len());
        assert!(taken.iter().all(|due| (5_000..1_005_000).contains(&due.at)));
    }

    #[test]
    fn seeds_name_the_run() {
        assert_eq!(all(pacer(7)), all(pacer(7)));
        assert_ne!(all(pacer(7)), all(pacer(8)));
    }
}
