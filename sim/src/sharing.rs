//! Core that several tasks share: it runs them round robin, one quantum each.
//!
//! At the end of a quantum the core switches to the next waiting task. The switch takes time. A task alone
//! continues without a switch. When a task finishes, the next one starts without a switch, as in a queue. A new task
//! joins at the end of the round (the order of turns). All models with continuous time use this core, and so do the
//! emulated workers of lockstep.
//!
//! The core needs no event for each quantum. It computes its next completion from the remaining service times, and
//! skips whole rounds when it advances. The cost of both grows with the number of its tasks, not of their quanta.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use wedjat_workload::grammar::parse_time_ns;

/// Longest quantum and longest switch: 10 s.
const LONGEST_NS: f64 = 1e10;

/// Parameters of shared cores, with times in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Time for which a task runs before the next one gets its turn.
    pub quantum: u64,
    /// Cost of a switch from a task whose quantum has ended to the next one.
    pub switch: u64,
    /// Maximum number of tasks in the round. The caller queues all others.
    pub slots: usize,
}

/// Value of `--sharing`: `10us,500ns`, or `10us,500ns,8` with the number of slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharingTimes {
    /// Quantum in nanoseconds.
    pub quantum_ns: f64,
    /// Cost of a switch in nanoseconds.
    pub switch_ns: f64,
    /// Maximum number of tasks that share the core; `None` if not given.
    pub slots: Option<usize>,
}

impl FromStr for SharingTimes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let syntax_error = || {
            format!(
                "`{text}`: write quantum and switch, as in 10us,500ns, and slots if limited, as in 10us,500ns,8"
            )
        };
        let parts: Vec<_> = text.split(',').map(str::trim).collect();
        let (quantum, switch, slots) = match parts[..] {
            [quantum, switch] => (quantum, switch, None),
            [quantum, switch, slots] => (quantum, switch, Some(slots)),
            _ => return Err(syntax_error()),
        };
        let time = |text: &str| {
            parse_time_ns(text).map_err(|_| syntax_error()).and_then(|ns| match ns <= LONGEST_NS {
                true => Ok(ns),
                false => Err(format!("`{text}`: at most 10s is allowed")),
            })
        };
        let slots = match slots {
            None => None,
            Some(slots) => {
                let count = slots.parse().ok().filter(|count| (1..=1024).contains(count));
                Some(count.ok_or_else(|| format!("`{slots}`: 1 to 1024 slots are allowed"))?)
            }
        };
        let (quantum_ns, switch_ns) = (time(quantum)?, time(switch)?);
        if quantum_ns < 1.0 {
            return Err(format!("`{quantum}`: a quantum has at least 1ns"));
        }
        Ok(Self { quantum_ns, switch_ns, slots })
    }
}

impl fmt::Display for SharingTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns,{}ns", self.quantum_ns, self.switch_ns)?;
        self.slots.map_or(Ok(()), |slots| write!(f, ",{slots}"))
    }
}

impl SharingTimes {
    /// Converts the times to ticks by `ticks`, which takes nanoseconds. A quantum has at least one tick, so that rounds
    /// advance. `default_slots` applies if no number of slots is given.
    #[must_use]
    pub fn sharing(&self, ticks: impl Fn(f64) -> u64, default_slots: usize) -> Sharing {
        let slots = self.slots.unwrap_or(default_slots);
        Sharing { quantum: ticks(self.quantum_ns).max(1), switch: ticks(self.switch_ns), slots }
    }
}

/// Start of a task that has not run yet. Later than any time.
const NOT_STARTED: u64 = u64::MAX;

/// A task in the round.
#[derive(Clone, Copy, Debug)]
struct RoundTask<T> {
    task: T,
    /// Remaining service time at the start of its current or next quantum.
    left: u64,
    /// Start of its service in ticks, or [`NOT_STARTED`].
    started: u64,
    /// Number of full quanta that it has received.
    quanta: u32,
}

/// A core with its tasks. Times are in ticks, and `now` must not decrease from call to call.
#[derive(Clone, Debug)]
pub struct SharedCore<T> {
    sharing: Sharing,
    /// Tasks in the order of their turns. The first one runs from `slice_start` on.
    round: VecDeque<RoundTask<T>>,
    /// Start of the first task's quantum. In the future during a switch.
    slice_start: u64,
    /// Number of tasks in the round that have not started.
    not_started: usize,
    /// Sum of [`RoundTask::quanta`] over the round.
    quanta: u64,
    /// Task that runs without interruption, its start and its end. The round waits until that end.
    exclusive: Option<(T, u64, u64)>,
    /// Next completion, as last returned by [`SharedCore::reschedule`].
    scheduled: Option<(u64, T)>,
}

impl<T: Copy + PartialEq> SharedCore<T> {
    /// Creates a core without tasks.
    #[must_use]
    pub fn new(sharing: Sharing) -> Self {
        Self {
            sharing,
            round: VecDeque::new(),
            slice_start: 0,
            not_started: 0,
            quanta: 0,
            exclusive: None,
            scheduled: None,
        }
    }

    /// Returns the number of tasks in the round.
    #[must_use]
    pub fn len(&self) -> usize {
        self.round.len()
    }

    /// Returns true if no task is in the round.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.round.is_empty()
    }

    /// Returns true if another task may join the round.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.round.len() < self.sharing.slots
    }

    /// Returns the number of full quanta that the tasks of the round have received before `now`. Workers report it to
    /// policies that break ties by it (JSQ-MSQ).
    pub fn quanta(&mut self, now: u64) -> u64 {
        self.advance(now);
        self.quanta
    }

    /// Adds a task with this service time at the end of the round.
    pub fn push(&mut self, now: u64, task: T, service: u64) {
        self.advance(now);
        let is_first = self.round.is_empty();
        self.round.push_back(RoundTask { task, left: service, started: NOT_STARTED, quanta: 0 });
        self.not_started += 1;
        if is_first {
            self.begin(now);
        }
    }

    /// Runs a benchmark task, which no other task may interrupt. The round must be empty.
    pub fn run_exclusively(&mut self, now: u64, task: T, service: u64) {
        self.exclusive = Some((task, now, now + service));
    }

    /// Starts the quantum of the first task at `start`, unless an exclusive task runs.
    fn begin(&mut self, start: u64) {
        if self.exclusive.is_some() {
            return;
        }
        self.slice_start = start;
        if let Some(first) = self.round.front_mut()
            && first.started == NOT_STARTED
        {
            first.started = start;
            self.not_started -= 1;
        }
    }

    /// Ends all quanta that expire before `now`. A quantum that expires at `now` stays open, because a task may still
    /// join the round at `now`.
    fn advance(&mut self, now: u64) {
        let Sharing { quantum, switch, .. } = self.sharing;
        while let Some(first) = self.round.front()
            && self.exclusive.is_none()
            && first.left > quantum
            && self.slice_start + quantum < now
        {
            let tasks = self.round.len() as u64;
            let round_ticks = if tasks == 1 { quantum } else { tasks * (quantum + switch) };
            // Skips rounds only if all tasks have started, because `expire` records the start of a task.
            let rounds = match self.not_started {
                0 => self.full_rounds().min((now - 1 - self.slice_start) / round_ticks),
                _ => 0,
            };
            if rounds == 0 {
                self.expire();
                continue;
            }
            for turn in &mut self.round {
                turn.left -= rounds * quantum;
                turn.quanta += rounds as u32;
            }
            self.quanta += rounds * tasks;
            self.slice_start += rounds * round_ticks;
        }
    }

    /// Ends the first task's quantum, moves the task to the end of the round, and starts the next quantum.
    fn expire(&mut self) {
        let Sharing { quantum, switch, .. } = self.sharing;
        let end = self.slice_start + quantum;
        let Some(mut first) = self.round.pop_front() else { return };
        first.left -= quantum;
        first.quanta += 1;
        self.quanta += 1;
        let is_alone = self.round.is_empty();
        self.round.push_back(first);
        self.begin(if is_alone { end } else { end + switch });
    }

    /// Returns the number of rounds in which every task uses a full quantum and none finishes. A task whose remaining
    /// time is a multiple of the quantum finishes in its last full quantum, hence the subtraction of 1.
    fn full_rounds(&self) -> u64 {
        let rounds = |turn: &RoundTask<T>| turn.left.saturating_sub(1) / self.sharing.quantum;
        self.round.iter().map(rounds).min().unwrap_or(0)
    }

    /// Returns the time and the task of the next completion, provided that no task joins before; `None` without tasks.
    #[must_use]
    pub fn next(&self) -> Option<(u64, T)> {
        let Sharing { quantum, switch, .. } = self.sharing;
        if let Some((task, _, end)) = self.exclusive {
            return Some((end, task));
        }
        if let [turn] = self.round.as_slices().0
            && self.round.len() == 1
        {
            return Some((self.slice_start + turn.left, turn.task));
        }
        let rounds = self.full_rounds();
        // After the full rounds: the first task whose remaining time fits into one quantum.
        let is_last = |turn: &RoundTask<T>| turn.left - rounds * quantum <= quantum;
        let place = self.round.iter().position(is_last)?;
        let turn = &self.round[place];
        let before = (rounds * self.round.len() as u64 + place as u64) * (quantum + switch);
        Some((self.slice_start + before + turn.left - rounds * quantum, turn.task))
    }

    /// Returns the next completion (time and task) if it has changed since the last call.
    pub fn reschedule(&mut self) -> Option<(u64, T)> {
        let next = self.next();
        let is_new = next != self.scheduled;
        self.scheduled = next;
        next.filter(|_| is_new)
    }

    /// Returns true if this completion is due: [`SharedCore::reschedule`] returned it, and nothing has changed since.
    #[must_use]
    pub fn is_due(&self, now: u64, task: T) -> bool {
        self.scheduled == Some((now, task))
    }

    /// Removes the task of the next completion, which must be due at `now`. Returns the start of its service; `None`
    /// without tasks.
    pub fn complete(&mut self, now: u64) -> Option<u64> {
        let (_, task) = self.next()?;
        if let Some((_, started, _)) = self.exclusive.take() {
            self.begin(now);
            return Some(started);
        }
        self.advance(now);
        // Without a switch cost, quanta of other tasks may expire at the time of the completion.
        while self.round.front()?.task != task {
            self.expire();
        }
        let turn = self.round.pop_front()?;
        self.quanta -= u64::from(turn.quanta);
        self.begin(now);
        Some(turn.started)
    }

    /// Applies a change of the worker's speed: sets the service times, from `service`, of all tasks in the round that
    /// start after `now`.
    pub fn set_service(&mut self, now: u64, service: impl Fn(T) -> u64) {
        self.advance(now);
        let later = self.round.iter_mut().filter(|turn| turn.started > now);
        later.for_each(|turn| turn.left = service(turn.task));
    }

    /// Removes and returns all tasks of a worker that fails or leaves: the exclusive one, then those of the round in
    /// their order.
    pub fn clear(&mut self) -> Vec<T> {
        let exclusive = self.exclusive.take().map(|(task, ..)| task);
        (self.not_started, self.quanta, self.scheduled) = (0, 0, None);
        exclusive.into_iter().chain(self.round.drain(..).map(|turn| turn.task)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHARING: Sharing = Sharing { quantum: 10, switch: 1, slots: usize::MAX };

    /// Serves tasks, given by arrival and service time, to the end. Returns the index, start and end of each task in
    /// the order of the ends.
    fn serve(sharing: Sharing, tasks: &[(u64, u64)]) -> Vec<(usize, u64, u64)> {
        let mut core = SharedCore::new(sharing);
        let mut ended = Vec::new();
        let mut tasks = tasks.iter().enumerate().peekable();
        loop {
            let arrival = tasks.peek().map_or(u64::MAX, |(_, (arrival, _))| *arrival);
            match core.next() {
                Some((end, task)) if end < arrival => {
                    let started = core.complete(end).unwrap();
                    ended.push((task, started, end));
                }
                _ => {
                    let Some((task, &(arrival, service))) = tasks.next() else { return ended };
                    core.push(arrival, task, service);
                }
            }
        }
    }

    /// Same as [`serve`], but emulates the core tick by tick.
    fn serve_by_ticks(sharing: Sharing, tasks: &[(u64, u64)]) -> Vec<(usize, u64, u64)> {
        struct WaitingTask {
            task: usize,
            left: u64,
            started: Option<u64>,
        }
        let mut round: VecDeque<WaitingTask> = VecDeque::new();
        // `used`: ticks of the current quantum that are over. `switching`: ticks that the current switch still takes.
        let (mut ended, mut used, mut switching) = (Vec::new(), 0, 0);
        let mut tasks = tasks.iter().enumerate().peekable();
        let mut now = 0;
        while tasks.peek().is_some() || !round.is_empty() {
            while let Some((task, &(_, left))) = tasks.next_if(|(_, (time, _))| *time == now) {
                round.push_back(WaitingTask { task, left, started: None });
            }
            // Completions and expired quanta at `now` come after its arrivals.
            while switching == 0
                && let Some(first) = round.front_mut()
            {
                first.started.get_or_insert(now);
                if first.left == 0 {
                    ended.push((first.task, first.started.unwrap(), now));
                    round.pop_front();
                } else if used == sharing.quantum && round.len() > 1 {
                    round.rotate_left(1);
                    switching = sharing.switch;
                } else if used == sharing.quantum {
                    used = 0;
                    continue;
                } else {
                    break;
                }
                used = 0;
            }
            now += 1;
            if switching > 0 {
                switching -= 1;
            } else if let Some(first) = round.front_mut() {
                first.left -= 1;
                used += 1;
            }
        }
        ended
    }

    #[test]
    fn task_alone_never_switches() {
        assert_eq!(serve(SHARING, &[(5, 95)]), [(0, 5, 100)]);
    }

    #[test]
    fn short_task_overtakes_a_long_one() {
        // The short task arrives at 12. It waits until 20 for the end of the quantum, and for a switch.
        assert_eq!(serve(SHARING, &[(0, 100), (12, 3)]), [(1, 21, 24), (0, 0, 104)]);
    }

    #[test]
    fn new_task_joins_at_end_of_round() {
        // Quanta: 0 from 0, 1 from 11, 2 from 22, and 0 again from 25.
        let ended = serve(SHARING, &[(0, 15), (1, 12), (2, 3)]);
        assert_eq!(ended, [(2, 22, 25), (0, 0, 30), (1, 11, 32)]);
    }

    #[test]
    fn quanta_of_current_tasks_are_counted() {
        let mut core = SharedCore::new(SHARING);
        core.push(0, 'a', 100);
        core.push(0, 'b', 15);
        // Quanta: `a` from 0, `b` from 11, `a` from 22, and `b` from 33 to its end at 38. One that ends at the time of
        // the call does not count yet.
        assert_eq!(core.quanta(10), 0);
        assert_eq!(core.quanta(11), 1);
        assert_eq!(core.quanta(23), 2);
        let (end, task) = core.next().unwrap();
        assert_eq!((end, task), (38, 'b'));
        core.complete(end);
        assert_eq!(core.quanta(end), 2, "those of the finished task no longer count");
    }

    #[test]
    fn exclusive_task_delays_the_round() {
        let mut core = SharedCore::new(SHARING);
        core.run_exclusively(0, 'x', 50);
        core.push(3, 'a', 5);
        assert_eq!(core.reschedule(), Some((50, 'x')));
        assert_eq!(core.complete(50), Some(0));
        assert_eq!(core.reschedule(), Some((55, 'a')));
        assert_eq!(core.complete(55), Some(50));
    }

    #[test]
    fn new_speed_applies_to_later_tasks() {
        let mut core = SharedCore::new(SHARING);
        core.push(0, 'a', 20);
        core.push(0, 'b', 4);
        core.set_service(5, |_| 8);
        // `a` has started and keeps its time. `b` runs from 11 on, now for 8 ticks.
        assert_eq!(core.next(), Some((19, 'b')));
    }

    #[test]
    fn cleared_core_starts_anew() {
        let mut core = SharedCore::new(SHARING);
        core.push(0, 'a', 20);
        core.push(1, 'b', 20);
        assert_eq!(core.clear(), ['a', 'b']);
        assert_eq!((core.next(), core.quanta(30)), (None, 0));
        core.push(40, 'c', 5);
        assert_eq!(core.complete(45), Some(40));
    }

    #[test]
    fn sharing_is_read_and_refused() {
        let times: SharingTimes = "10us, 500ns,8".parse().unwrap();
        assert_eq!(times, SharingTimes { quantum_ns: 1e4, switch_ns: 500.0, slots: Some(8) });
        for text in ["10us", "10us,", "0us,1us", "10us,1us,0", "11s,1us", "1us,1us,1,1"] {
            assert!(text.parse::<SharingTimes>().is_err(), "{text}");
        }
    }

    /// A core whose quanta never expire is a queue, and its switch cost has no effect.
    #[test]
    fn long_quantum_serves_in_order() {
        let sharing = Sharing { quantum: 1000, ..SHARING };
        let ended = serve(sharing, &[(0, 15), (1, 12), (40, 3)]);
        assert_eq!(ended, [(0, 0, 15), (1, 15, 27), (2, 40, 43)]);
    }

    proptest! {
        #[test]
        fn skipped_rounds_change_nothing(
            gaps in proptest::collection::vec((0..60_u64, 0..80_u64), 1..40),
            quantum in 1..12_u64, switch in 0..4_u64,
        ) {
            let mut now = 0;
            let tasks: Vec<_> = gaps.iter().map(|&(gap, service)| {
                now += gap;
                (now, service)
            }).collect();
            let sharing = Sharing { quantum, switch, slots: usize::MAX };
            prop_assert_eq!(serve(sharing, &tasks), serve_by_ticks(sharing, &tasks));
        }
    }
}
