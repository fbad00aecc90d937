//! Trace as a load: speed, number of passes, and the tasks of each core. A pass plays the whole trace once.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::arrival::ScheduledTask;
use crate::grammar::Time;
use crate::rate::RATE_MAX_PPS;
use crate::trace::Trace;

/// Allowed speeds.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;
/// Shortest pause after a pass's last task, so that clocks of any rate separate it from the next pass.
const GAP_MIN_S: f64 = 1e-6;
/// Shortest pass. A trace of a single moment would otherwise have an infinite rate.
const PASS_MIN_S: f64 = 1e-3;
/// Longest replay. Its nanoseconds stay below 2^53, so that floating-point numbers hold them exactly.
const LENGTH_MAX_S: f64 = 30.0 * 86_400.0;

/// A trace with its replay options. Clones share the tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    trace: Arc<Trace>,
    /// Speed relative to the trace; 2 halves all times.
    speed: f64,
    /// Number of passes.
    repeat: u32,
    /// Duration of a pass in seconds.
    pass_s: f64,
}

/// Reason why a replay is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The replay would take too long: this many seconds.
    #[error("the replay lasts {}; at most 30 days are allowed; lower --repeat or raise --speed", Time(*.0 * 1e9))]
    TooLong(f64),
    /// The replay would be too fast: this many tasks per second.
    #[error("the replay has {0:.3e} tasks/s; at most 1e9 are allowed; lower --speed")]
    TooFast(f64),
    /// The measured time would be empty. Warm-up and length of the replay, in seconds.
    #[error("--warmup {}: it must be shorter than the replay, which lasts {}", Time(*.0 * 1e9), Time(*.1 * 1e9))]
    OnlyWarmup(f64, f64),
}

impl Replay {
    /// Creates a replay of `trace`, `repeat` times, at `speed` times its original rate. A pass ends one mean
    /// gap after its last task, at least 1 us; the next one starts there. A pass lasts at least 1 ms.
    ///
    /// # Errors
    /// If the replay would be too long or too fast.
    pub fn new(trace: Arc<Trace>, speed: f64, repeat: u32) -> Result<Self, ReplayError> {
        let tasks = trace.tasks();
        let last_s = tasks.last().map_or(0.0, |task| task.at_ns as f64 / 1e9 / speed);
        let gap_s = (last_s / (tasks.len().max(2) - 1) as f64).max(GAP_MIN_S);
        // Rounded to microseconds for readable reports.
        let pass_s = ((last_s + gap_s).max(PASS_MIN_S) * 1e6).round() / 1e6;
        let replay = Self { trace, speed, repeat, pass_s };
        if replay.length_s() > LENGTH_MAX_S {
            return Err(ReplayError::TooLong(replay.length_s()));
        }
        if replay.rate_pps() > RATE_MAX_PPS {
            return Err(ReplayError::TooFast(replay.rate_pps()));
        }
        Ok(replay)
    }

    /// Returns the trace.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the seconds from the first task to the end.
    #[must_use]
    pub fn length_s(&self) -> f64 {
        self.pass_s * f64::from(self.repeat)
    }

    /// Returns the mean rate in tasks per second.
    #[must_use]
    pub fn rate_pps(&self) -> f64 {
        self.trace.tasks().len() as f64 / self.pass_s
    }

    /// Returns an upper bound of the number of tasks in any second. The size of the ring of outstanding tasks depends
    /// on it.
    #[must_use]
    pub fn busiest_second(&self) -> f64 {
        let (tasks, second) = (self.trace.tasks(), (1e9 * self.speed) as u64);
        // Sliding window: tasks `first` to `last`, within one second of the replay. `second` is its length in
        // nanoseconds of the trace.
        let mut first = 0;
        let mut most_tasks = 0;
        for (last, task) in tasks.iter().enumerate() {
            while task.at_ns - tasks[first].at_ns > second {
                first += 1;
            }
            most_tasks = most_tasks.max(last + 1 - first);
        }
        // Number of passes that one second touches.
        let passes = ((1.0 / self.pass_s).ceil() + 1.0).min(f64::from(self.repeat));
        most_tasks as f64 * passes
    }

    /// Returns the tasks of core `core` out of `cores`, on a clock of `hz` ticks per second. Task `i` of the replay
    /// belongs to core `i % cores`.
    #[must_use]
    pub fn player(&self, core: u32, cores: u32, hz: f64) -> ReplayCore {
        ReplayCore {
            replay: self.clone(),
            next: core as usize,
            stride: cores as usize,
            pass: 0,
            pass_ticks: self.pass_s * hz,
            ns_ticks: hz / 1e9 / self.speed,
        }
    }

    /// Returns the description for reports.
    #[must_use]
    pub fn config(&self) -> Config {
        Config {
            file: self.trace.path().display().to_string(),
            tasks: self.trace.tasks().len(),
            other_packets: self.trace.skipped().clone(),
            speed: self.speed,
            repeat: self.repeat,
        }
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replay({}, speed {}, ", self.trace.path().display(), self.speed)?;
        write!(f, "{} {})", self.repeat, if self.repeat == 1 { "time" } else { "times" })
    }
}

/// Description of a replay in reports.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Path of the trace.
    pub file: String,
    /// Number of tasks in the trace.
    pub tasks: usize,
    /// Packets of a capture that are not replayed, by kind.
    pub other_packets: std::collections::BTreeMap<&'static str, u64>,
    /// Speed relative to the trace.
    pub speed: f64,
    /// Number of passes.
    pub repeat: u32,
}

/// Parses a speed.
///
/// # Errors
/// The allowed values.
pub fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| SPEEDS.contains(speed));
    speed.ok_or_else(|| "a speed is a number from 0.001 to 1000; 2 doubles it".to_owned())
}

/// One core's tasks of a replay.
#[derive(Clone, Debug)]
pub struct ReplayCore {
    replay: Replay,
    /// Index of the next task in the trace. An index beyond its end belongs to a later pass.
    next: usize,
    /// Distance between tasks of this core: the number of cores.
    stride: usize,
    /// Number of the pass, from 0.
    pass: u32,
    /// Duration of a pass in ticks.
    pass_ticks: f64,
    /// Ticks per nanosecond of the trace.
    ns_ticks: f64,
}

impl ReplayCore {
    /// Fills `ahead` with the next tasks and their due times, for a replay that starts at `start`. Entries
    /// beyond the end are never due.
    pub fn fill(&mut self, ahead: &mut [ScheduledTask], start: u64) {
        let tasks = self.replay.trace.tasks();
        for due in ahead {
            while self.next >= tasks.len() && self.pass < self.replay.repeat {
                self.next -= tasks.len();
                self.pass += 1;
            }
            due.at = u64::MAX;
            if self.pass < self.replay.repeat {
                let task = tasks[self.next];
                // Computed from the start each time, so that rounding errors do not add up.
                let at = f64::from(self.pass) * self.pass_ticks + task.at_ns as f64 * self.ns_ticks;
                due.at = start + (at + 0.5) as u64;
                (due.service_ns, due.class, due.size) = (task.service_ns, task.class, task.size);
                self.next += self.stride;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the trace of these lines.
    pub(crate) fn trace(lines: &str) -> Arc<Trace> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("time_us,class,service_us,size\n{lines}")).unwrap();
        Arc::new(Trace::read(file.path()).unwrap())
    }

    /// Returns the due times and classes of a core's tasks, on a clock of nanoseconds. The replay starts at 100.
    fn due_tasks(replay: &Replay, core: u32, cores: u32) -> Vec<(u64, u16)> {
        let mut player = replay.player(core, cores, 1e9);
        let mut ahead = [ScheduledTask { at: 0, service_ns: 0, class: 0, size: 0 }; 3];
        let mut tasks = Vec::new();
        loop {
            player.fill(&mut ahead, 100);
            tasks.extend(
                ahead.iter().filter(|due| due.at < u64::MAX).map(|due| (due.at, due.class)),
            );
            if ahead[2].at == u64::MAX {
                return tasks;
            }
        }
    }

    // promise: measurement.1
    #[test]
    fn tasks_are_due_at_trace_times() {
        let trace = trace("10,1,5,0\n11000,2,6,0\n11000,3,6,0\n30010,4,7,0\n");
        let replay = Replay::new(Arc::clone(&trace), 1.0, 1).unwrap();
        // The first task, at 10 us in the file, is due at the start.
        let once = [(100, 1), (10_990_100, 2), (10_990_100, 3), (30_000_100, 4)];
        assert_eq!(due_tasks(&replay, 0, 1), once);
        // The pass ends one mean gap later: the last task is due at 30 ms, and the mean of three gaps is 10 ms.
        assert!(
            (replay.length_s() - 0.04).abs() < 1e-9 && (replay.rate_pps() - 100.0).abs() < 1e-6
        );
        let fast = Replay::new(Arc::clone(&trace), 2.0, 2).unwrap();
        let twice = once.map(|(at, class)| ((at - 100) / 2, class));
        let again = twice.map(|(at, class)| (at + 20_000_000, class));
        let expected: Vec<_> =
            twice.into_iter().chain(again).map(|(at, class)| (at + 100, class)).collect();
        assert_eq!(due_tasks(&fast, 0, 1), expected);
        // Cores take turns, also across the end of a pass.
        for cores in [2, 3, 5, 9] {
            let mut all: Vec<_> =
                (0..cores).flat_map(|core| due_tasks(&fast, core, cores)).collect();
            all.sort_unstable();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn busiest_second_is_found() {
        let lines: String = [0, 1_500_000, 1_600_000, 2_400_000, 9_000_000]
            .map(|us| format!("{us},1,5,0\n"))
            .concat();
        let busiest =
            |speed, repeat| Replay::new(trace(&lines), speed, repeat).unwrap().busiest_second();
        // Three tasks are due from 1.5 to 2.4 s. At triple speed four are due within 3 s of the trace.
        assert_eq!((busiest(1.0, 1), busiest(3.0, 1), busiest(0.001, 1)), (3.0, 4.0, 1.0));
        // One second touches 90 passes, each of which may lie within it.
        assert!(busiest(1000.0, 1000) >= 5.0 * 89.0);
    }

    #[test]
    fn invalid_replay_options_are_refused() {
        // A pass lasts 200,000 s: the last task is due after 100,000 s, and one mean gap follows. Twelve passes last
        // 27.8 days, and 13 last 30.1 days.
        let long = trace("0,1,5,0\n100000000000,1,5,0\n");
        let error = Replay::new(Arc::clone(&long), 1.0, 13).unwrap_err().to_string();
        assert!(
            error.contains("at most 30 days are allowed; lower --repeat or raise --speed"),
            "{error}"
        );
        assert!(Replay::new(long, 1.0, 12).is_ok());
        for text in ["0", "-1", "NaN", "inf", "1e9", "x", ""] {
            assert!(speed(text).unwrap_err().contains("0.001 to 1000"), "{text}");
        }
        assert_eq!((speed("2"), speed("0.5")), (Ok(2.0), Ok(0.5)));
    }

    #[test]
    fn tasks_of_one_moment_are_replayed() {
        // A pass of tasks that are due at once lasts 1 ms.
        let replay = Replay::new(trace("7,1,5,0\n7,1,5,0\n"), 1.0, 2).unwrap();
        assert_eq!(due_tasks(&replay, 0, 1), [(100, 1), (100, 1), (1_000_100, 1), (1_000_100, 1)]);
        assert_eq!(replay.length_s(), 0.002);
    }
}
