//! Open-loop pacing: when each task is due and what it is, settled before its time and never moved.
//!
//! A task that cannot be sent when due is sent later, with its due time kept; one that is not sent by
//! the end of the run is counted as unsent. Nothing is skipped, and nothing is counted that did not leave.

use wedjat::limits::BURST;

use crate::arrival::Schedule;
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
}

/// Tasks drawn at a time: in one loop they cost half of what they do one by one.
const DRAWN: usize = BURST;
/// Tasks known beforehand at most.
const AHEAD: usize = 2 * DRAWN;

/// The tasks of one core, in the order they are due.
#[derive(Clone, Debug)]
pub struct Pacer {
    schedule: Schedule,
    arrivals: Stream,
    service: Service,
    services: Stream,
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
    pub fn new(
        schedule: Schedule,
        service: Service,
        seeds: &CoreSeeds,
        start: u64,
        end: u64,
    ) -> Self {
        let (arrivals, services) = (seeds.arrivals.stream(), seeds.service.stream());
        let ahead = [Due { at: start, service_ns: 0, class: 0 }; AHEAD];
        let mut pacer =
            Self { schedule, arrivals, service, services, start, end, ahead, taken: 0, drawn: 0 };
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
        let ahead = &mut self.ahead[place..place + DRAWN];
        let start = self.start;
        self.schedule.fill(&mut self.arrivals, ahead, |due, at| due.at = start + at);
        self.service.fill(&mut self.services, ahead, |due, ns, class| {
            // Rounds; the cast saturates.
            (due.service_ns, due.class) = ((ns + 0.5) as u32, class);
        });
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
        Pacer::new(schedule, service, &CoreSeeds::derive(seed, 0), 5_000, 1_005_000)
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
