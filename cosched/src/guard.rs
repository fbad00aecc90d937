//! Guard: upper limit of a batch's share, by fixed rules without learning.
//!
//! A batch job runs on the cores of workers that serve short tasks with a latency objective. Its share is the fraction
//! of these cores' time that it may use, in steps of 10%. The limit grows step by step while the latency is far below
//! the objective. A missed objective sets it to 0 for a time, the cool-down.

use serde::{Deserialize, Serialize};

use crate::share::Share;

/// Measurements of the workers since the last observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Fraction of the workers' time that the tasks that arrived need.
    pub load: f64,
    /// Waiting tasks per worker.
    pub backlog: f64,
    /// Latency percentile that has an objective, in microseconds; `None` if no task ended.
    pub tail: Option<f64>,
}

/// Settings of the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GuardSettings {
    /// Objective of the latency percentile, in microseconds.
    pub objective_us: f64,
    /// Fraction of the objective above which the batch may not grow.
    pub near: f64,
    /// Waiting tasks per worker above which the objective counts as missed.
    pub backlog: f64,
    /// Fraction of the workers' time reserved for them beyond their load.
    pub reserve: f64,
    /// Milliseconds without a share after the objective was missed (cool-down). The time doubles if the objective
    /// is missed again soon.
    pub cool_down_ms: f64,
    /// Upper limit of the doubled cool-down, in milliseconds.
    pub cool_down_max_ms: f64,
    /// Minimum time in milliseconds between two increases of the limit, each by 10% of the cores' time.
    pub growth_ms: f64,
    /// Milliseconds without an observation after which the limit is 0.
    pub stale_ms: f64,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self {
            objective_us: 500.0,
            near: 0.7,
            backlog: 8.0,
            reserve: 0.2,
            cool_down_ms: 500.0,
            cool_down_max_ms: 30_000.0,
            growth_ms: 100.0,
            stale_ms: 200.0,
        }
    }
}

impl GuardSettings {
    /// Returns an error that names the first setting outside its allowed range, if there is one.
    pub fn check(&self) -> Result<(), GuardSettingsError> {
        let above_none = "a number above 0";
        let part = "from 0 to 1";
        let rules = [
            ("objective-us", self.objective_us, self.objective_us > 0.0, above_none),
            ("near", self.near, (0.0..=1.0).contains(&self.near), part),
            ("backlog", self.backlog, self.backlog > 0.0, above_none),
            ("reserve", self.reserve, (0.0..=1.0).contains(&self.reserve), part),
            ("cool-down-ms", self.cool_down_ms, self.cool_down_ms > 0.0, above_none),
            (
                "cool-down-max-ms",
                self.cool_down_max_ms,
                self.cool_down_max_ms >= self.cool_down_ms,
                "at least cool-down-ms",
            ),
            ("growth-ms", self.growth_ms, self.growth_ms > 0.0, above_none),
            ("stale-ms", self.stale_ms, self.stale_ms > 0.0, above_none),
        ];
        for (key, value, holds, rule) in rules {
            // A NaN fulfils no rule, but infinity does.
            if !holds || !value.is_finite() {
                return Err(GuardSettingsError { key, value, rule });
            }
        }
        Ok(())
    }
}

/// Invalid setting of the guard.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} is {value}, but must be {rule}")]
pub struct GuardSettingsError {
    /// Name of the setting.
    pub key: &'static str,
    /// Value of the setting.
    pub value: f64,
    /// Allowed values.
    pub rule: &'static str,
}

/// Time constant with which the smoothed load falls, in nanoseconds. Because of it, short dips of the load do not raise
/// the limit.
const LOAD_FALLS_NS: f64 = 100e6;

/// Nanoseconds in a millisecond.
const MS: f64 = 1e6;

/// Increase of the limit in one step: the distance of two shares.
const GROWTH: f64 = 0.1;

/// Converts milliseconds to nanoseconds. Longer times than a `u64` holds become its maximum.
fn ns_of_ms(ms: f64) -> u64 {
    (ms * MS) as u64
}

/// Limits a batch's share. The limit is 0 until the first observation. Times are those of the caller's clock.
#[derive(Clone, Debug)]
pub struct Guard {
    settings: GuardSettings,
    /// Smoothed load: rises at once, falls slowly.
    load: f64,
    /// Time of the last observation.
    observed_ns: Option<u64>,
    /// Current limit.
    allowed: Share,
    /// Earliest time of the next increase.
    next_growth_ns: u64,
    /// End of the last cool-down, the time without a share; 0 before the first one.
    cool_until_ns: u64,
    /// Length of the last cool-down, in milliseconds; before the first one, that of the settings.
    last_cool_down_ms: f64,
}

impl Guard {
    /// Creates a guard, whose limit is 0 until the first observation.
    ///
    /// # Errors
    /// If a setting is outside its allowed range.
    pub fn new(settings: GuardSettings) -> Result<Self, GuardSettingsError> {
        settings.check()?;
        let last_cool_down_ms = settings.cool_down_ms;
        Ok(Self {
            settings,
            load: 0.0,
            observed_ns: None,
            allowed: Share::NONE,
            next_growth_ns: 0,
            cool_until_ns: 0,
            last_cool_down_ms,
        })
    }

    /// Updates the limit from an observation made while the batch used this share. Returns the new limit.
    ///
    /// A NaN counts as the worst value.
    pub fn observe(&mut self, now_ns: u64, observation: &Observation, share: Share) -> Share {
        let settings = &self.settings;
        let since = self.observed_ns.map_or(0.0, |then| now_ns.saturating_sub(then) as f64);
        self.observed_ns = Some(now_ns);
        // Tasks that need all of the workers' time are the worst load.
        let load = if observation.load.is_nan() { 1.0 } else { observation.load.clamp(0.0, 1.0) };
        // The smoothed load falls exponentially towards the new load. It rises to a higher load at once.
        self.load = load.max(load + (self.load - load) * (-since / LOAD_FALLS_NS).exp());
        let worst = |value: f64| if value.is_nan() { f64::INFINITY } else { value };
        // If no task ended, only the backlog can show a missed objective.
        let tail = observation.tail.map_or(0.0, worst);
        let is_missed =
            tail > settings.objective_us || worst(observation.backlog) > settings.backlog;
        if is_missed {
            self.miss(now_ns, share);
        }
        // Room is the largest share in the time that the workers neither use nor reserve. The limit shrinks to it at
        // once. Below it the limit grows by one step at a time, while the latency is far below the objective. A step
        // does not exceed the room, because shares differ by whole steps.
        let room = Share::at_most(1.0 - self.load - self.settings.reserve);
        self.allowed = if now_ns < self.cool_until_ns {
            Share::NONE
        } else if room <= self.allowed {
            room
        } else if tail <= self.settings.near * self.settings.objective_us
            && now_ns >= self.next_growth_ns
        {
            self.next_growth_ns = now_ns.saturating_add(ns_of_ms(self.settings.growth_ms));
            Share::at_most(self.allowed.part() + GROWTH)
        } else {
            self.allowed
        };
        self.allowed
    }

    /// Begins a cool-down, in which the limit is 0. Doubles its length, up to the maximum, if the last cool-down
    /// ended less than twice its length ago and the batch had a share again.
    fn miss(&mut self, now_ns: u64, share: Share) {
        let last_ns = ns_of_ms(self.last_cool_down_ms);
        let soon_ns = self.cool_until_ns.saturating_add(last_ns.saturating_mul(2));
        let is_soon = self.cool_until_ns > 0 && now_ns < soon_ns;
        // A miss during the cool-down restarts it with the same length.
        if now_ns >= self.cool_until_ns {
            self.last_cool_down_ms = match is_soon && share > Share::NONE {
                true => (self.last_cool_down_ms * 2.0).min(self.settings.cool_down_max_ms),
                false => self.settings.cool_down_ms,
            };
        }
        self.cool_until_ns = now_ns.saturating_add(ns_of_ms(self.last_cool_down_ms));
    }

    /// Returns the current limit; 0 if the last observation is too old.
    #[must_use]
    pub fn allowed(&self, now_ns: u64) -> Share {
        let stale_ns = ns_of_ms(self.settings.stale_ms);
        match self.observed_ns {
            Some(then) if now_ns.saturating_sub(then) <= stale_ns => self.allowed,
            _ => Share::NONE,
        }
    }
}

#[cfg(test)]
mod tests;
