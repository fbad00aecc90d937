//! Server of the Prequal model: requests run in parallel on cores whose number and speed change in time, because other
//! jobs of the same machine take the rest.

use std::collections::{BTreeSet, VecDeque};

/// Number of recent latencies that a server keeps.
const RECENT: usize = 64;
/// Number of these from which it takes the median: those at the nearest numbers of requests in flight. Both numbers are
/// assumptions; the paper's are not known.
const NEAREST: usize = 9;

/// A server. Its requests share the cores equally, and each uses at most one core. Times are in ticks, and `now` must
/// not decrease from call to call.
#[derive(Clone, Debug)]
pub struct Server {
    /// Number of available cores; may be fractional.
    cores: f64,
    /// Speed of a core.
    speed: f64,
    /// Time of the last change.
    changed: u64,
    /// Work that each request would have received if present from the start. A request ends when this reaches its end.
    served: u64,
    /// Requests in flight by their end on the scale of `served`, each with its slot.
    requests: BTreeSet<(u64, u32)>,
    /// Number of changes. A completion that was scheduled before the last change is obsolete.
    version: u64,
    /// Recent latencies with the number of requests in flight at arrival, oldest first.
    recent: VecDeque<(u32, u64)>,
    /// CPU time used so far, in ticks.
    used: f64,
}

impl Server {
    /// Creates an idle server with this number of cores, of speed 1.
    #[must_use]
    pub fn new(cores: f64) -> Self {
        Self {
            cores,
            speed: 1.0,
            changed: 0,
            served: 0,
            requests: BTreeSet::new(),
            version: 0,
            recent: VecDeque::new(),
            used: 0.0,
        }
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.requests.len() as u32
    }

    /// Returns the number of changes so far.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the CPU time used until `now`, in ticks.
    pub fn used(&mut self, now: u64) -> f64 {
        self.advance(now);
        self.used
    }

    /// Returns the work that each request receives per tick.
    fn rate(&self) -> f64 {
        self.speed * (self.cores / self.requests.len() as f64).min(1.0)
    }

    /// Advances the served work to the time `now`.
    fn advance(&mut self, now: u64) {
        if !self.requests.is_empty() {
            let ticks = (now - self.changed) as f64;
            self.served += (ticks * self.rate()) as u64;
            self.used += ticks * self.cores.min(self.requests.len() as f64);
        }
        self.changed = now;
    }

    /// Sets number and speed of the cores. Both must be above 0.
    pub fn set_cores(&mut self, now: u64, cores: f64, speed: f64) {
        self.advance(now);
        (self.cores, self.speed) = (cores, speed);
        self.version += 1;
    }

    /// Adds a request with this work. Returns its end, for [`Server::remove`].
    pub fn add(&mut self, now: u64, slot: u32, work: u64) -> u64 {
        self.advance(now);
        let end = self.served + work;
        self.requests.insert((end, slot));
        self.version += 1;
        end
    }

    /// Removes a request that its client has given up.
    pub fn remove(&mut self, now: u64, end: u64, slot: u32) {
        self.advance(now);
        self.requests.remove(&(end, slot));
        self.version += 1;
    }

    /// Ends the first request and returns its slot; `None` if there is none.
    pub fn complete(&mut self, now: u64) -> Option<u32> {
        self.advance(now);
        let (end, slot) = self.requests.pop_first()?;
        // The rounded completion time may be a tick early or late.
        self.served = end;
        self.version += 1;
        Some(slot)
    }

    /// Returns the time of the next completion if nothing changes before; `None` without requests.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        let (end, _) = self.requests.first()?;
        let left = end.saturating_sub(self.served) as f64;
        Some(self.changed + (left / self.rate()).ceil() as u64)
    }

    /// Records the latency of a completed or removed request that found `in_flight` others.
    pub fn record(&mut self, in_flight: u32, latency: u64) {
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((in_flight, latency));
    }

    /// Returns the latency that a new request can expect: the median of recent ones at the nearest numbers of requests
    /// in flight. 0 without any.
    #[must_use]
    pub fn latency(&self) -> u64 {
        let own = self.in_flight();
        // The latest of equally near ones.
        let near = self.recent.iter().rev().enumerate();
        let near = near.map(|(age, &(count, latency))| (count.abs_diff(own), age, latency));
        let mut near: Vec<_> = near.collect();
        if near.len() > NEAREST {
            near.select_nth_unstable(NEAREST);
            near.truncate(NEAREST);
        }
        let middle = near.len() / 2;
        match near.is_empty() {
            true => 0,
            false => near.select_nth_unstable_by_key(middle, |&(.., latency)| latency).1.2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_the_cores() {
        let mut server = Server::new(1.0);
        server.add(0, 0, 100);
        assert_eq!(server.next(), Some(100));
        // From 50 on, each of the two has half a core.
        server.add(50, 1, 100);
        assert_eq!(server.next(), Some(150));
        assert_eq!(server.complete(150), Some(0));
        assert_eq!(server.next(), Some(200));
        // Two cores do not make a single request faster, a higher speed does.
        server.set_cores(160, 2.0, 1.0);
        assert_eq!(server.next(), Some(200));
        server.set_cores(180, 2.0, 0.5);
        assert_eq!((server.next(), server.in_flight()), (Some(220), 1));
        assert_eq!((server.complete(220), server.next()), (Some(1), None));
        assert!((server.used(300) - 220.0).abs() < 1e-6);
    }

    #[test]
    fn removed_request_leaves_its_share() {
        let mut server = Server::new(1.0);
        server.add(0, 0, 100);
        let end = server.add(0, 1, 300);
        let version = server.version();
        server.remove(50, end, 1);
        assert_eq!((server.next(), server.in_flight()), (Some(125), 1));
        assert!(server.version() > version);
    }

    #[test]
    fn latency_is_the_median_near_the_current_count() {
        let mut server = Server::new(1.0);
        assert_eq!(server.latency(), 0);
        (0..9).for_each(|latency| server.record(0, 10 + latency));
        (0..50).for_each(|_| server.record(7, 1000));
        assert_eq!(server.latency(), 14);
        (0..7).for_each(|slot| _ = server.add(0, slot, 1));
        assert_eq!(server.latency(), 1000);
    }
}
