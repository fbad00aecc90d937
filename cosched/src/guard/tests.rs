//! Guard over a core in emulated time: a queue of tasks, and a batch that uses its whole share.
//!
//! The guard limits the share of core time of a batch, a background job. It observes the core after each window of 10
//! ms.

use std::collections::VecDeque;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

/// Service time of every task on a core without a batch.
const SERVICE_NS: f64 = 50_000.0;
/// Time between observations.
const WINDOW_NS: u64 = 10_000_000;

/// A core that serves tasks in order, slowed down by the batch's share.
struct Core {
    /// Generator of the arrivals.
    random: Xoshiro256PlusPlus,
    /// Time since the start.
    now_ns: f64,
    /// Time of the next arrival.
    next_ns: f64,
    /// Arrival time and remaining work in nanoseconds of each task, in the order of arrival.
    tasks: VecDeque<(f64, f64)>,
}

/// Measurements of a window.
struct Window {
    /// Measurements for the guard.
    observation: Observation,
    /// Share of the batch in the window.
    batch: Share,
    /// End of the window.
    end_ns: u64,
}

impl Core {
    /// Creates an idle core; `seed` determines the arrivals after the first, which is at time 0.
    fn new(seed: u64) -> Self {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self { random, now_ns: 0.0, next_ns: 0.0, tasks: VecDeque::new() }
    }

    /// Runs a window with this load while the batch has `share`. Returns its measurements.
    fn window(&mut self, load: f64, share: Share) -> Window {
        let end = self.now_ns + WINDOW_NS as f64;
        let speed = 1.0 - share.part();
        let (mut arrived, mut latencies) = (0, Vec::new());
        // Advances to the next event: the end of the first task, the next arrival, or the end of the window.
        while self.now_ns < end {
            let done =
                self.tasks.front().map_or(f64::INFINITY, |(_, need)| self.now_ns + need / speed);
            let next = done.min(self.next_ns).min(end);
            if let Some((_, need)) = self.tasks.front_mut() {
                *need -= (next - self.now_ns) * speed;
            }
            self.now_ns = next;
            if next == done {
                latencies.extend(self.tasks.pop_front().map(|(arrived, _)| next - arrived));
            } else if next == self.next_ns {
                self.tasks.push_back((next, SERVICE_NS));
                arrived += 1;
                // Poisson arrivals: exponential gaps with a mean of SERVICE_NS / load.
                let uniform = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                self.next_ns += -(1.0 - uniform).ln() * SERVICE_NS / load;
            }
        }
        latencies.sort_by(f64::total_cmp);
        // p99.9 in microseconds.
        let tail_ns = latencies.get((latencies.len() * 999) / 1000).or(latencies.last());
        let tail = tail_ns.map(|ns| ns / 1000.0);
        let load = f64::from(arrived) * SERVICE_NS / WINDOW_NS as f64;
        let observation = Observation { load, backlog: self.tasks.len() as f64, tail };
        Window { observation, batch: share, end_ns: end as u64 }
    }
}

/// Runs a core and its guard in windows of 10 ms, with each of these loads for one second (100 windows). With
/// `with_batch`, a batch uses the whole share that the guard allows. Without it, it gets none.
fn windows(seed: u64, loads: &[f64], settings: &GuardSettings, with_batch: bool) -> Vec<Window> {
    let (mut core, mut guard) = (Core::new(seed), Guard::new(settings.clone()).unwrap());
    let mut share = Share::NONE;
    let mut windows = Vec::new();
    for index in 0..loads.len() * 100 {
        let window = core.window(loads[index / 100], share);
        guard.observe(window.end_ns, &window.observation, share);
        share = if with_batch { guard.allowed(window.end_ns) } else { Share::NONE };
        windows.push(window);
    }
    windows
}

/// Returns settings with an objective of 2 ms. More than 20 waiting tasks also count as a missed objective.
fn settings() -> GuardSettings {
    GuardSettings { objective_us: 2000.0, backlog: 20.0, ..GuardSettings::default() }
}

/// Returns the number of windows with a p99.9 latency above the objective of `settings`.
fn violations(windows: &[Window]) -> usize {
    let is_violation = |window: &&Window| window.observation.tail.is_some_and(|tail| tail > 2000.0);
    windows.iter().filter(is_violation).count()
}

// promise: batch.2
#[test]
fn load_step_stops_the_batch_within_100_ms() {
    // Five seconds of low load, then five of high load, four times.
    let loads = [0.2, 0.2, 0.2, 0.2, 0.2, 0.8, 0.8, 0.8, 0.8, 0.8].repeat(4);
    for seed in 0..5 {
        let without_batch = windows(seed, &loads, &settings(), false);
        assert_eq!(violations(&without_batch), 0, "seed {seed}: violated without batch");
        let with_batch = windows(seed, &loads, &settings(), true);
        // The last two of the first five seconds, when the share has reached its limit.
        let low =
            with_batch[300..500].iter().map(|window| window.batch.part()).sum::<f64>() / 200.0;
        assert!(low > 0.3, "seed {seed}: at low load the batch has {low}");
        // The load rises at windows 500, 1500, 2500 and 3500. Ten windows are 100 ms.
        for step in (500..4000).step_by(1000) {
            let after = &with_batch[step + 10..step + 500];
            let most = after.iter().map(|window| window.batch.part()).fold(0.0, f64::max);
            assert!(most < 0.05, "seed {seed}: {most} of the core 100 ms after the step");
        }
        // At most 1% of the windows may miss the objective.
        let missed = violations(&with_batch);
        assert!(
            missed * 100 <= with_batch.len(),
            "seed {seed}: {missed} of {} windows",
            with_batch.len()
        );
    }
}

// promise: batch.2
#[test]
fn harmful_batch_is_admitted_ever_more_rarely() {
    // The batch harms at any share, as through caches, and the load does not show it.
    let mut guard = Guard::new(settings()).unwrap();
    // Windows after which the batch gets a share again.
    let mut entries = Vec::new();
    let (mut share, mut windows_with_batch) = (Share::NONE, 0_u64);
    for window in 0..6000_u64 {
        let tail = Some(if share > Share::NONE { 5000.0 } else { 300.0 });
        let now_ns = window * WINDOW_NS;
        let next = guard.observe(now_ns, &Observation { load: 0.2, backlog: 0.0, tail }, share);
        if share == Share::NONE && next > Share::NONE {
            entries.push(window);
        }
        windows_with_batch += u64::from(share > Share::NONE);
        share = next;
    }
    // Each cool-down is at least as long as the last one.
    let gaps: Vec<_> = entries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 3 && gaps.windows(2).all(|pair| pair[1] >= pair[0]), "{gaps:?}");
    assert!(windows_with_batch * 100 <= 6000, "{windows_with_batch} of 6000 windows with batch");
}

// promise: batch.2
#[test]
fn batch_keeps_its_share_near_the_objective() {
    // The batch may grow by 10% in each call, because 200 ms pass between two calls, and `growth-ms` is 100. The
    // objective is 2000 us, and growth ends at 0.7 of it. A load of 0.7 and the reserve of 0.2 leave room for 10%.
    let mut guard = Guard::new(settings()).unwrap();
    let mut now_ns = 0;
    let mut observe = |tail: f64, load: f64| {
        now_ns += 200_000_000;
        guard.observe(now_ns, &Observation { load, backlog: 0.0, tail: Some(tail) }, Share::MOST)
    };
    assert_eq!([observe(300.0, 0.1), observe(300.0, 0.1)].map(Share::percent), [10, 20]);
    assert_eq!([observe(1800.0, 0.1), observe(1800.0, 0.1)].map(Share::percent), [20, 20]);
    assert_eq!([observe(300.0, 0.1), observe(300.0, 0.7)].map(Share::percent), [30, 10]);
    assert_eq!(observe(2001.0, 0.1), Share::NONE);
}

// promise: batch.2
#[test]
fn missing_or_invalid_observations_stop_the_batch() {
    let mut guard = Guard::new(settings()).unwrap();
    assert_eq!(guard.allowed(0), Share::NONE);
    let light_load = Observation { load: 0.1, backlog: 0.0, tail: None };
    assert_eq!(guard.observe(0, &light_load, Share::NONE).percent(), 10);
    // An observation is valid for 200 ms, the default of stale-ms.
    assert_eq!(guard.allowed(200_000_000).percent(), 10);
    assert_eq!(guard.allowed(200_000_001), Share::NONE);
    for (load, backlog, tail) in
        [(f64::NAN, 0.0, None), (0.1, f64::NAN, None), (0.1, 0.0, Some(f64::NAN))]
    {
        let mut guard = Guard::new(settings()).unwrap();
        guard.observe(0, &light_load, Share::NONE);
        assert_eq!(
            guard.observe(1000, &Observation { load, backlog, tail }, Share::NONE),
            Share::NONE
        );
    }
}

#[test]
fn huge_times_last_forever() {
    let huge = GuardSettings {
        cool_down_ms: f64::MAX,
        cool_down_max_ms: f64::MAX,
        growth_ms: f64::MAX,
        stale_ms: f64::MAX,
        ..settings()
    };
    let good = Observation { load: 0.1, backlog: 0.0, tail: Some(300.0) };
    let missed = Observation { tail: Some(5000.0), ..good };
    let mut guard = Guard::new(huge).unwrap();
    for now_ns in [1, u64::MAX / 2] {
        assert_eq!(guard.observe(now_ns, &good, Share::NONE).percent(), 10, "only one increase");
    }
    // The cool-down does not end, and a miss in it does not overflow.
    for (now_ns, observation) in
        [(u64::MAX / 2, &missed), (u64::MAX - 2, &missed), (u64::MAX - 1, &good)]
    {
        assert_eq!(guard.observe(now_ns, observation, Share::NONE), Share::NONE);
    }
}

#[test]
fn error_names_the_invalid_setting() {
    let right = GuardSettings::default();
    for (settings, key) in [
        (GuardSettings { objective_us: 0.0, ..right.clone() }, "objective-us"),
        (GuardSettings { near: 1.5, ..right.clone() }, "near"),
        (GuardSettings { backlog: f64::NAN, ..right.clone() }, "backlog"),
        (GuardSettings { reserve: -0.1, ..right.clone() }, "reserve"),
        (GuardSettings { cool_down_ms: 0.0, ..right.clone() }, "cool-down-ms"),
        (GuardSettings { cool_down_max_ms: 1.0, ..right.clone() }, "cool-down-max-ms"),
        (GuardSettings { growth_ms: f64::INFINITY, ..right.clone() }, "growth-ms"),
        (GuardSettings { stale_ms: 0.0, ..right }, "stale-ms"),
    ] {
        assert_eq!(Guard::new(settings).unwrap_err().key, key);
    }
}
