//! Detection of cores that stall, that is, have not made a poll for some time. The core itself can only report a
//! stall after the stall's end, so the node's watching thread measures it meanwhile.

use std::time::{Duration, Instant};

use wedjat_core::state::{Counters, Gauge};

/// Minimum length of a stall that is published while it lasts. Exceeds the sleeps of a core under `poll =
/// "adaptive"`.
const PUBLISHED_MIN: Duration = Duration::from_millis(50);
/// Minimum length of a stall that is logged.
const LOGGED_MIN: Duration = Duration::from_secs(1);

/// Polls of one core at the watching thread's last check.
struct Observation {
    cpu: usize,
    /// Number of polls since the core's start.
    polls: u64,
    /// Time of the first check with this number of polls.
    since: Instant,
    /// True if the log has this stall.
    is_logged: bool,
}

/// Watches the number of polls of each core and publishes stalls as [`Gauge::StallTicks`].
pub(super) struct StallWatch {
    cores: Vec<Observation>,
    /// Ticks per second of the cores' clock.
    ticks_hz: u64,
}

impl StallWatch {
    /// Creates the watch of cores on these CPUs that start at `now`.
    pub fn new(cpus: &[usize], ticks_hz: u64, now: Instant) -> Self {
        let core = |&cpu| Observation { cpu, polls: 0, since: now, is_logged: false };
        Self { cores: cpus.iter().map(core).collect(), ticks_hz }
    }

    /// Compares the polls of all cores with the last check, and publishes the length of each stall, 0 for none. Returns
    /// a log line for each core whose stall has reached [`LOGGED_MIN`], once per stall. `counters` are in the order of
    /// the cores.
    pub fn update(&mut self, counters: &[Counters], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for (core, counters) in self.cores.iter_mut().zip(counters) {
            let polls = counters.polls();
            if polls != core.polls {
                (core.polls, core.since, core.is_logged) = (polls, now, false);
            }
            let length = now.saturating_duration_since(core.since);
            let seconds = if length < PUBLISHED_MIN { 0.0 } else { length.as_secs_f64() };
            counters.set(Gauge::StallTicks, (seconds * self.ticks_hz as f64) as u64);
            if length >= LOGGED_MIN && !core.is_logged {
                core.is_logged = true;
                let polled = if polls == 0 { "has never polled" } else { "has not polled" };
                lines.push(format!(
                    "CPU {}: the dispatcher core {polled} for {:.1} s: another process keeps the CPU, or the core waits in a system call",
                    core.cpu,
                    length.as_secs_f64()
                ));
            }
        }
        lines
    }

    /// Ends the watch after the end of the cores. Keeps the stall of a core that never polled. Clears the gauge of each
    /// core that has polled, because it counted its stall itself: at its next poll, or at the end of its loop.
    pub fn end(&mut self, counters: &[Counters], now: Instant) {
        self.update(counters, now);
        for counters in counters.iter().filter(|counters| counters.polls() > 0) {
            counters.set(Gauge::StallTicks, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use wedjat_core::state::Counter;

    use super::*;

    /// One millisecond, and one tick: the clocks of the tests have 1000 ticks per second.
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn unpolled_core_is_stalled_from_its_start() {
        let (counters, start) = ([Counters::heap()], Instant::now());
        let mut watch = StallWatch::new(&[3], 1_000, start);
        let stalled = || counters[0].read(Gauge::StallTicks);
        assert!(watch.update(&counters, start + 40 * MS).is_empty());
        assert_eq!(stalled(), 0, "too short");
        assert!(watch.update(&counters, start + 900 * MS).is_empty());
        assert_eq!(stalled(), 900);
        let lines = watch.update(&counters, start + 1_200 * MS);
        let expected = "CPU 3: the dispatcher core has never polled for 1.2 s";
        assert!(lines.len() == 1 && lines[0].starts_with(expected), "{lines:?}");
        assert!(watch.update(&counters, start + 2_000 * MS).is_empty(), "logged once");
        watch.end(&counters, start + 3_000 * MS);
        assert_eq!(stalled(), 3_000, "kept, because the core never counted it");
    }

    #[test]
    fn lasting_stall_is_published_until_the_next_poll() {
        let (counters, start) = ([Counters::heap(), Counters::heap()], Instant::now());
        let mut watch = StallWatch::new(&[0, 1], 1_000, start);
        let stalled = || counters.each_ref().map(|core| core.read(Gauge::StallTicks));
        counters.iter().for_each(|core| core.add(Counter::EmptyPolls, 9));
        watch.update(&counters, start + 10 * MS);
        counters[1].add(Counter::BusyPolls, 1);
        let lines = watch.update(&counters, start + 1_500 * MS);
        // Core 0 has not polled between the checks at 10 ms and 1500 ms.
        assert_eq!(stalled(), [1_490, 0]);
        assert!(
            lines.len() == 1 && lines[0].starts_with("CPU 0: the dispatcher core has not polled")
        );
        counters[0].add(Counter::EmptyPolls, 1);
        watch.update(&counters, start + 1_520 * MS);
        assert_eq!(stalled(), [0, 0]);
        watch.update(&counters, start + 5_000 * MS);
        watch.end(&counters, start + 5_000 * MS);
        assert_eq!(stalled(), [0, 0], "each core has counted its own stall");
    }
}
