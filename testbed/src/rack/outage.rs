//! Planned deaths and returns of workers in an emulated rack, to test the leaf's response. The caller applies the
//! events between its polls.

use std::str::FromStr;

use wedjat::io::Port;
use wedjat_pktgen::grammar::parse_time_ns;

use super::Rack;

/// Interval during which a worker is dead; written as `3@1s-2s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outage {
    /// Id of the worker.
    pub worker: u16,
    /// Start, in seconds of the run.
    pub from_s: f64,
    /// End, in seconds of the run.
    pub until_s: f64,
}

impl FromStr for Outage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = |time| parse_time_ns(time).ok().map(|ns| ns / 1e9);
        let read = || {
            let (worker, times) = text.split_once('@')?;
            let (from, until) = times.split_once('-')?;
            let (from_s, until_s) = (seconds(from)?, seconds(until)?);
            (from_s < until_s).then_some(Self { worker: worker.parse().ok()?, from_s, until_s })
        };
        read().ok_or_else(|| {
            format!("`{text}` is not an outage; write worker, start and end, as in 3@1s-2s")
        })
    }
}

/// Remaining deaths and returns of workers in a run, the earliest one last, so that it can be popped.
#[derive(Clone, Debug)]
pub struct Outages(Vec<Event>);

/// Death or return of a worker.
#[derive(Clone, Copy, Debug)]
struct Event {
    /// Time in ticks.
    time: u64,
    worker: u16,
    /// True for a return.
    alive: bool,
}

impl Outages {
    /// Creates the events of a run that starts at tick `start`, on a clock of `hz` ticks per second. Outages of one
    /// worker must not overlap or touch: the end of each revives it.
    #[must_use]
    pub fn new(outages: &[Outage], start: u64, hz: f64) -> Self {
        let ticks = |seconds: f64| start + (seconds * hz) as u64;
        let events = |outage: &Outage| {
            let worker = outage.worker;
            [(outage.from_s, false), (outage.until_s, true)].map(|(seconds, alive)| Event {
                time: ticks(seconds),
                worker,
                alive,
            })
        };
        let mut events: Vec<_> = outages.iter().flat_map(events).collect();
        events.sort_by_key(|event| std::cmp::Reverse(event.time));
        Self(events)
    }

    /// Applies the events that are due by `now`.
    #[inline]
    pub fn apply<P: Port>(&mut self, rack: &mut Rack<P>, now: u64) {
        while let Some(event) = self.0.pop_if(|event| event.time <= now) {
            match event.alive {
                true => rack.revive(event.worker),
                false => rack.kill(event.worker, event.time, now),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_are_read_and_refused() {
        let outage: Outage = "3@1s-2500ms".parse().unwrap();
        assert_eq!(outage, Outage { worker: 3, from_s: 1.0, until_s: 2.5 });
        for text in ["3", "3@1s", "x@1s-2s", "3@2s-1s", "3@1-2", "70000@1s-2s"] {
            let error = text.parse::<Outage>().unwrap_err();
            assert!(error.contains(text) && error.contains("3@1s-2s"), "{error}");
        }
    }
}
