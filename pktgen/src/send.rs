//! Open-loop schedule: due time, service time and class of each task, fixed in advance, independent of answers, and
//! never moved.
//!
//! A task that cannot be sent when due is sent later and keeps its due time. A task that is not sent by the
//! end of the run counts as unsent. The generator skips no task. A task counts as sent once the device accepts it.
//!
//! Each core's `crate::engine::Generator` has one [`Pacer`], which draws tasks from its [`TaskSource`] in batches.

use wedjat::limits::BURST;

use crate::arrival::{Schedule, ScheduledTask};
use crate::replay::ReplayCore;
use crate::seed::{CoreSeeds, Stream};
use crate::service::Service;

/// Source of one core's tasks.
#[derive(Clone, Debug)]
pub enum TaskSource {
    /// Gaps and service times are drawn at random.
    Drawn {
        /// Due times.
        schedule: Schedule,
        /// Random stream of the due times.
        arrivals: Stream,
        /// Service times.
        service: Service,
        /// Random stream of the service times.
        services: Stream,
    },
    /// Tasks of a trace.
    Replayed(ReplayCore),
}

impl TaskSource {
    /// Creates a source of drawn tasks.
    #[must_use]
    pub fn drawn(schedule: Schedule, service: Service, seeds: &CoreSeeds) -> Self {
        let (arrivals, services) = (seeds.arrivals.stream(), seeds.service.stream());
        Self::Drawn { schedule, arrivals, service, services }
    }

    /// Fills `ahead` with the next tasks, for a load that starts at `start`.
    #[inline]
    fn fill(&mut self, ahead: &mut [ScheduledTask], start: u64) {
        match self {
            Self::Drawn { schedule, arrivals, service, services } => {
                schedule.fill(arrivals, ahead, |due, at| due.at = start + at);
                service.fill(services, ahead, |due, ns, class| {
                    // Rounds; the cast saturates.
                    (due.service_ns, due.class) = ((ns + 0.5) as u32, class);
                });
            }
            Self::Replayed(replay) => replay.fill(ahead, start),
        }
    }
}

/// Number of tasks drawn at once. A random draw in a loop costs half as much as a single one.
const BATCH: usize = BURST;
/// Maximum number of tasks known in advance.
const AHEAD: usize = 2 * BATCH;

/// Tasks of one core in the order of their due times.
#[derive(Clone, Debug)]
pub struct Pacer {
    source: TaskSource,
    /// Tick at which the load starts.
    start: u64,
    /// Tick at which the schedule ends. No task is due then or later.
    end: u64,
    /// Ring of tasks, indexed by the task's number modulo its length. The tasks `taken..drawn` are known; there is
    /// always at least one.
    ahead: [ScheduledTask; AHEAD],
    /// Number of tasks taken so far.
    taken: usize,
    /// Number of tasks drawn so far.
    drawn: usize,
}

impl Pacer {
    /// Creates the pacer of the tasks due from tick `start` until before `end`, and draws the first batch.
    #[must_use]
    pub fn new(source: TaskSource, start: u64, end: u64) -> Self {
        // Drawn tasks have no individual size: their frames have the maximum length.
        let ahead = [ScheduledTask { at: start, service_ns: 0, class: 0, size: u16::MAX }; AHEAD];
        let mut pacer = Self { source, start, end, ahead, taken: 0, drawn: 0 };
        pacer.draw();
        pacer
    }

    /// Draws more tasks if the next burst might need them. Called after a burst was sent, so that a burst
    /// never waits for draws.
    #[inline]
    pub fn draw_ahead(&mut self) {
        if self.drawn - self.taken <= BATCH {
            self.draw();
        }
    }

    /// Draws the next batch of tasks.
    fn draw(&mut self) {
        // `drawn` is a multiple of BATCH, and the ring holds two batches, so a batch never wraps around.
        let index = self.drawn % AHEAD;
        self.source.fill(&mut self.ahead[index..index + BATCH], self.start);
        self.drawn += BATCH;
    }

    /// Returns the next task.
    #[inline]
    fn next(&self) -> &ScheduledTask {
        &self.ahead[self.taken % AHEAD]
    }

    /// Returns true if the next task is due at `now`.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        self.next().at <= now && !self.is_done()
    }

    /// Takes the next task, due or not.
    #[inline]
    pub fn take(&mut self) -> ScheduledTask {
        let due = *self.next();
        self.taken += 1;
        if self.taken == self.drawn {
            self.draw();
        }
        due
    }

    /// Ends the schedule at `now`, if it does not end earlier. For a run that is stopped early.
    pub fn end(&mut self, now: u64) {
        self.end = self.end.min(now);
    }

    /// Returns true if no task is left before the end.
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

    /// Returns the tasks of 1 ms at a million tasks per second, on a clock of nanoseconds.
    fn pacer(seed: u64) -> Pacer {
        let schedule = Schedule::new(&Arrivals::Poisson, 1e6, 1e9).unwrap();
        let service = "mix(0.5*exp(5us), 0.5*fixed(9us))".parse().unwrap();
        let source = TaskSource::drawn(schedule, service, &CoreSeeds::derive(seed, 0));
        Pacer::new(source, 5_000, 1_005_000)
    }

    /// Takes all tasks at once.
    fn all(mut pacer: Pacer) -> Vec<ScheduledTask> {
        std::iter::from_fn(|| (!pacer.is_done()).then(|| pacer.take())).collect()
    }

    #[test]
    fn schedule_is_independent_of_polling() {
        let mut polled = pacer(7);
        let mut taken = Vec::new();
        for now in (0..1_100_000).step_by(700) {
            while polled.is_due(now) {
                taken.push(polled.take());
                assert!(taken[taken.len() - 1].at <= now);
            }
            // With and without drawing ahead.
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
    fn equal_seeds_give_equal_tasks() {
        assert_eq!(all(pacer(7)), all(pacer(7)));
        assert_ne!(all(pacer(7)), all(pacer(8)));
    }
}
