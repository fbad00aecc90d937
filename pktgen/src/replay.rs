//! A trace as a load: how fast it is replayed, how often, and which of its tasks a core sends when.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::grammar::Time;
use crate::rate::RATE_MAX_PPS;
use crate::send::Due;
use crate::trace::Trace;

/// Speeds that make sense.
const SPEEDS: std::ops::RangeInclusive<f64> = 1e-3..=1e3;
/// A pass ends so long after its last task at least: clocks of any rate tell the two apart.
const GAP_MIN_S: f64 = 1e-6;
/// And lasts so long at least.
const PASS_MIN_S: f64 = 1e-3;
/// A replay lasts no longer: times are exact within it.
const LENGTH_MAX_S: f64 = 30.0 * 86_400.0;

/// A trace, and how it is replayed. One that is cloned shares its tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    trace: Arc<Trace>,
    speed: f64,
    repeat: u32,
    pass_s: f64,
}

/// A replay that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// It would take too long.
    #[error("the replay lasts {}, and may last 30 days at most; lower --repeat or raise --speed", Time(*.0 * 1e9))]
    TooLong(f64),
    /// It would be too fast.
    #[error("the replay has {0:.3e} tasks a second, and may have 1e9 at most; lower --speed")]
    TooFast(f64),
    /// Nothing would be measured.
    #[error("a --warmup of {} is not shorter than the replay, which lasts {}", Time(*.0 * 1e9), Time(*.1 * 1e9))]
    OnlyWarmup(f64, f64),
}

impl Replay {
    /// `trace` so many times, each time `speed` times as fast as it was. A pass ends one mean gap after its last
    /// task, where the next one begins.
    ///
    /// # Errors
    /// When it would last too long or be too fast.
    pub fn new(trace: Arc<Trace>, speed: f64, repeat: u32) -> Result<Self, ReplayError> {
        let tasks = trace.tasks();
        let last_s = tasks.last().map_or(0.0, |task| task.at_ns as f64 / 1e9 / speed);
        let gap_s = (last_s / (tasks.len().max(2) - 1) as f64).max(GAP_MIN_S);
        // In whole microseconds, as people would say it.
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

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Seconds from its first task to its end.
    #[must_use]
    pub fn length_s(&self) -> f64 {
        self.pass_s * f64::from(self.repeat)
    }

    /// Tasks a second in the mean.
    #[must_use]
    pub fn rate_pps(&self) -> f64 {
        self.trace.tasks().len() as f64 / self.pass_s
    }

    /// Tasks in any second at most.
    #[must_use]
    pub fn busiest_second(&self) -> f64 {
        let (tasks, second) = (self.trace.tasks(), (1e9 * self.speed) as u64);
        let mut from = 0;
        let mut within = 0;
        for (to, task) in tasks.iter().enumerate() {
            while task.at_ns - tasks[from].at_ns > second {
                from += 1;
            }
            within = within.max(to + 1 - from);
        }
        // A second touches so many passes.
        let passes = ((1.0 / self.pass_s).ceil() + 1.0).min(f64::from(self.repeat));
        within as f64 * passes
    }

    /// The tasks of `core` among `cores`, which take turns, on a clock of `hz` ticks a second.
    #[must_use]
    pub fn player(&self, core: u32, cores: u32, hz: f64) -> Player {
        Player {
            replay: self.clone(),
            next: core as usize,
            stride: cores as usize,
            pass: 0,
            pass_ticks: self.pass_s * hz,
            ns_ticks: hz / 1e9 / self.speed,
        }
    }

    /// What a report says of it.
    #[must_use]
    pub fn config(&self) -> Config {
        Config {
            file: self.trace.path().display().to_string(),
            tasks: self.trace.tasks().len(),
            other_packets: self.trace.others().clone(),
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

/// A replay in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// The trace.
    pub file: String,
    /// Its tasks.
    pub tasks: usize,
    /// Packets of a capture that are not replayed, by what they are.
    pub other_packets: std::collections::BTreeMap<&'static str, u64>,
    /// How much faster than it was.
    pub speed: f64,
    /// How many times.
    pub repeat: u32,
}

/// A speed as users write it.
///
/// # Errors
/// What is allowed.
pub fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| SPEEDS.contains(speed));
    speed.ok_or_else(|| {
        "a speed is a number from 0.001 to 1000, as in 2 for twice as fast".to_owned()
    })
}

/// One core's part of a replay.
#[derive(Clone, Debug)]
pub struct Player {
    replay: Replay,
    /// The next task's place in the trace; at or above its length it is one of a later pass.
    next: usize,
    stride: usize,
    pass: u32,
    pass_ticks: f64,
    ns_ticks: f64,
}

impl Player {
    /// Says of each of `ahead` what it is and when it is due, `start` being when the replay starts. What is behind its end is
    /// never due.
    pub fn fill(&mut self, ahead: &mut [Due], start: u64) {
        let tasks = self.replay.trace.tasks();
        for due in ahead {
            while self.next >= tasks.len() && self.pass < self.replay.repeat {
                self.next -= tasks.len();
                self.pass += 1;
            }
            due.at = u64::MAX;
            if self.pass < self.replay.repeat {
                let task = tasks[self.next];
                // Each time from the start on, so that no rounding builds up.
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

    /// The trace of these lines.
    pub(crate) fn trace(lines: &str) -> Arc<Trace> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("time_us,class,service_us,size\n{lines}")).unwrap();
        Arc::new(Trace::read(file.path()).unwrap())
    }

    /// What a core sends when, on a clock of nanoseconds that starts at 100.
    fn sent(replay: &Replay, core: u32, cores: u32) -> Vec<(u64, u16)> {
        let mut player = replay.player(core, cores, 1e9);
        let mut ahead = [Due { at: 0, service_ns: 0, class: 0, size: 0 }; 3];
        let mut sent = Vec::new();
        loop {
            player.fill(&mut ahead, 100);
            sent.extend(
                ahead.iter().filter(|due| due.at < u64::MAX).map(|due| (due.at, due.class)),
            );
            if ahead[2].at == u64::MAX {
                return sent;
            }
        }
    }

    #[test]
    fn tasks_are_due_when_the_trace_says() {
        let trace = trace("10,1,5,0\n11000,2,6,0\n11000,3,6,0\n30010,4,7,0\n");
        let replay = Replay::new(Arc::clone(&trace), 1.0, 1).unwrap();
        let once = [(100, 1), (10_990_100, 2), (10_990_100, 3), (30_000_100, 4)];
        assert_eq!(sent(&replay, 0, 1), once);
        // It ends a mean gap later.
        assert!(
            (replay.length_s() - 0.04).abs() < 1e-9 && (replay.rate_pps() - 100.0).abs() < 1e-6
        );
        let fast = Replay::new(Arc::clone(&trace), 2.0, 2).unwrap();
        let twice = once.map(|(at, class)| ((at - 100) / 2, class));
        let again = twice.map(|(at, class)| (at + 20_000_000, class));
        let expected: Vec<_> =
            twice.into_iter().chain(again).map(|(at, class)| (at + 100, class)).collect();
        assert_eq!(sent(&fast, 0, 1), expected);
        // Cores take turns, over the end of a pass as well.
        for cores in [2, 3, 5, 9] {
            let mut all: Vec<_> = (0..cores).flat_map(|core| sent(&fast, core, cores)).collect();
            all.sort_unstable();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn the_busiest_second_is_found() {
        let lines: String = [0, 1_500_000, 1_600_000, 2_400_000, 9_000_000]
            .map(|us| format!("{us},1,5,0\n"))
            .concat();
        let busiest =
            |speed, repeat| Replay::new(trace(&lines), speed, repeat).unwrap().busiest_second();
        assert_eq!((busiest(1.0, 1), busiest(3.0, 1), busiest(0.001, 1)), (3.0, 4.0, 1.0));
        // A second touches 90 passes, each of which it may have whole.
        assert!(busiest(1000.0, 1000) >= 5.0 * 89.0);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let long = trace("0,1,5,0\n100000000000,1,5,0\n");
        let error = Replay::new(Arc::clone(&long), 1.0, 13).unwrap_err().to_string();
        assert!(error.contains("30 days at most; lower --repeat or raise --speed"), "{error}");
        assert!(Replay::new(long, 1.0, 12).is_ok());
        for text in ["0", "-1", "NaN", "inf", "1e9", "x", ""] {
            assert!(speed(text).unwrap_err().contains("0.001 to 1000"), "{text}");
        }
        assert_eq!((speed("2"), speed("0.5")), (Ok(2.0), Ok(0.5)));
    }

    #[test]
    fn one_moment_is_a_trace() {
        let replay = Replay::new(trace("7,1,5,0\n7,1,5,0\n"), 1.0, 2).unwrap();
        assert_eq!(sent(&replay, 0, 1), [(100, 1), (100, 1), (1_000_100, 1), (1_000_100, 1)]);
        assert_eq!(replay.length_s(), 0.002);
    }
}
