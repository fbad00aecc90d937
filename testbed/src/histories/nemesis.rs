//! Faults of a run: their kinds, times and targets. The plan follows from the seed, but the leader at the
//! time of a fault does not.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use wedjat_pktgen::seed::StreamSeed;

use super::cluster::{Cluster, Host, MEMBERS, Store};

/// Time of the first fault.
const BEGIN: Duration = Duration::from_secs(1);
/// Interval at which the nemesis checks for the end of the run.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterFault {
    /// A controller is killed and started again.
    Kill,
    /// A controller is stopped for longer than its lease, then continues.
    Pause,
    /// Packets between one host and members of etcd are dropped.
    Cut,
    /// Packets are dropped in one direction only.
    OneWay,
    /// The link of one host goes down.
    Unplug,
    /// A member of etcd is killed and started again.
    Member,
    /// All processes are killed and started again.
    Restart,
    /// The file system of the store is full.
    Full,
}

impl ClusterFault {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Kill,
        Self::Pause,
        Self::Cut,
        Self::OneWay,
        Self::Unplug,
        Self::Member,
        Self::Restart,
        Self::Full,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Cut => "cut",
            Self::OneWay => "one-way",
            Self::Unplug => "unplug",
            Self::Member => "member",
            Self::Restart => "restart",
            Self::Full => "full",
        }
    }

    /// Returns true if the fault is possible with this store.
    #[must_use]
    pub fn fits(self, store: Store) -> bool {
        match store {
            Store::Etcd => self != Self::Full,
            Store::File => matches!(self, Self::Kill | Self::Pause | Self::Restart | Self::Full),
        }
    }

    /// Returns the minimum and maximum length, in leases.
    fn length(self) -> (f64, f64) {
        match self {
            Self::Kill | Self::Member => (0.1, 1.5),
            Self::Pause => (1.1, 2.4),
            Self::Cut | Self::OneWay => (0.3, 2.5),
            Self::Unplug => (0.3, 1.5),
            Self::Restart | Self::Full => (0.1, 0.8),
        }
    }
}

impl FromStr for ClusterFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|fault| fault.name() == text);
        named.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|fault| fault.name()).collect();
            format!("unknown fault `{text}`; choose from {}, or all, or none", names.join(", "))
        })
    }
}

/// Fault of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultPeriod {
    /// Kind of fault.
    pub fault: ClusterFault,
    /// Start, relative to the begin of the plan ([`plan`]) or of the run ([`Nemesis::run`]).
    pub from: Duration,
    /// End, relative to the same time.
    pub to: Duration,
    /// Random number that selects the target. Different parts of it decide independent questions.
    pub draw: u64,
}

/// Draws a plan of these faults that ends within `time`. Each kind occurs once before any occurs again.
#[must_use]
pub fn plan(
    faults: &[ClusterFault],
    seed: u64,
    time: Duration,
    lease: Duration,
) -> Vec<FaultPeriod> {
    let mut stream = StreamSeed::derive(seed, "faults", 0).stream();
    let (mut periods, mut from, mut remaining) = (Vec::<FaultPeriod>::new(), BEGIN, Vec::new());
    if faults.is_empty() {
        return periods;
    }
    loop {
        if remaining.is_empty() {
            remaining = faults.to_vec();
            remaining.shuffle(&mut stream);
        }
        let Some(fault) = remaining.pop() else { return periods };
        let (min, max) = fault.length();
        // The logarithm of the length is uniform, so short faults are frequent: after one, old messages are
        // still in flight.
        let length = min * (max / min).powf(stream.random());
        let to = from + lease.mul_f64(length);
        if to > time {
            return periods;
        }
        periods.push(FaultPeriod { fault, from, to, draw: stream.random() });
        let gap = lease.mul_f64(stream.random_range(0.2..1.0));
        // Some faults overlap.
        from = if stream.random_bool(0.2) { from + (to - from) / 2 } else { to + gap };
    }
}

/// Injected fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Injection {
    /// Fault of the plan.
    pub period: FaultPeriod,
    /// Description of the target.
    pub target: String,
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultPeriod { fault, from, to, .. } = self.period;
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        write!(f, "{from:7.3} s to {to:7.3} s: {} {}", fault.name(), self.target)
    }
}

/// Action that undoes a fault.
enum Undo {
    /// Start the processes of these hosts.
    Run(Vec<Host>),
    /// Resume a process.
    Continue(Host),
    /// Deliver packets between these pairs, sender first.
    Join(Vec<(Host, Host)>),
    /// Bring the link of a host up.
    Plug(Host),
    /// Free the file system of the store.
    Free,
}

/// Injects faults into a cluster.
#[derive(Debug)]
pub struct Nemesis<'a> {
    /// Cluster under test.
    pub cluster: &'a Mutex<Cluster>,
    /// Store of the cluster.
    pub store: Store,
    /// Controller that answered last as the leader, from 0; `usize::MAX` before the first one.
    pub leader: &'a AtomicUsize,
    /// Start of the run.
    pub began: Instant,
    /// Ends the plan early if set.
    pub stop: &'a AtomicBool,
}

impl Nemesis<'_> {
    /// Locks the cluster.
    fn cluster(&self) -> std::sync::MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Executes a plan: injects each fault, and undoes it at its end or as soon as `stop` is set.
    ///
    /// # Errors
    /// If the system refuses a fault or its end.
    pub fn run(&self, plan: &[FaultPeriod]) -> Result<Vec<Injection>, String> {
        let (mut injected, mut active) = (Vec::new(), BTreeMap::<(Duration, usize), Undo>::new());
        let mut next = plan.iter().enumerate().peekable();
        loop {
            let begin = next.peek().map(|(_, period)| period.from);
            let end = active.first_key_value().map(|((end, _), _)| *end);
            let Some(due) = begin.into_iter().chain(end).min() else { return Ok(injected) };
            while self.began.elapsed() < due && !self.stop.load(Ordering::Relaxed) {
                std::thread::sleep(CHECK_INTERVAL.min(due.saturating_sub(self.began.elapsed())));
            }
            if self.stop.load(Ordering::Relaxed) {
                active.into_values().try_for_each(|undo| self.undo(undo))?;
                return Ok(injected);
            }
            if end == Some(due) {
                let Some((_, undo)) = active.pop_first() else { continue };
                self.undo(undo)?;
            } else if let Some((number, period)) = next.next() {
                let (target, undo) = self.inject(period)?;
                active.insert((period.to, number), undo);
                injected.push(Injection { period: *period, target });
            }
        }
    }

    /// Returns the leader in 60% of the draws, otherwise any controller.
    fn controller(&self, draw: u64, cluster: &Cluster) -> Host {
        let leader = self.leader.load(Ordering::Relaxed);
        let count = cluster.controllers();
        let is_leader = draw % 100 < 60 && leader < count;
        Host::Controller(if is_leader { leader } else { (draw / 100) as usize % count })
    }

    /// Returns a member of etcd in a quarter of the draws, otherwise a controller.
    fn host(&self, draw: u64, cluster: &Cluster) -> Host {
        match (draw >> 32) % 4 {
            0 => Host::Member((draw / 100) as usize % MEMBERS),
            _ => self.controller(draw, cluster),
        }
    }

    /// Injects a fault. Returns a description of its target, and the action that undoes it.
    fn inject(&self, period: &FaultPeriod) -> Result<(String, Undo), String> {
        let (mut cluster, draw) = (self.cluster(), period.draw);
        Ok(match period.fault {
            ClusterFault::Kill => {
                let host = self.controller(draw, &cluster);
                cluster.kill(host);
                (host.to_string(), Undo::Run(vec![host]))
            }
            ClusterFault::Pause => {
                let host = self.controller(draw, &cluster);
                cluster.pause(host, true);
                (host.to_string(), Undo::Continue(host))
            }
            ClusterFault::Member => {
                let host = Host::Member((draw / 100) as usize % MEMBERS);
                cluster.kill(host);
                (host.to_string(), Undo::Run(vec![host]))
            }
            ClusterFault::Unplug => {
                let host = self.host(draw, &cluster);
                cluster.unplug(host, true)?;
                (host.to_string(), Undo::Plug(host))
            }
            ClusterFault::Cut | ClusterFault::OneWay => {
                let host = self.host(draw, &cluster);
                let members = (0..MEMBERS).map(Host::Member).filter(|member| *member != host);
                let mut members: Vec<_> = members.collect();
                // A single member in a quarter of the draws.
                if (draw >> 40) % 4 == 0 {
                    members = vec![members[(draw >> 48) as usize % members.len()]];
                }
                // A one-way fault drops either the host's packets, or those to it.
                let (is_outbound, is_inbound) = match period.fault {
                    ClusterFault::Cut => (true, true),
                    _ => ((draw >> 56) % 2 == 0, (draw >> 56) % 2 == 1),
                };
                let outbound = members.iter().filter(|_| is_outbound).map(|&member| (host, member));
                let inbound = members.iter().filter(|_| is_inbound).map(|&member| (member, host));
                let pairs: Vec<_> = outbound.chain(inbound).collect();
                pairs.iter().try_for_each(|&(from, to)| cluster.cut(from, to, true))?;
                let target = pairs.iter().map(|(from, to)| format!("{from} > {to}"));
                (target.collect::<Vec<_>>().join(", "), Undo::Join(pairs))
            }
            ClusterFault::Restart => {
                let members = (0..MEMBERS).filter(|_| self.store == Store::Etcd).map(Host::Member);
                let controllers = (0..cluster.controllers()).map(Host::Controller);
                let hosts: Vec<_> = members.chain(controllers).collect();
                hosts.iter().for_each(|&host| cluster.kill(host));
                ("of all".to_owned(), Undo::Run(hosts))
            }
            ClusterFault::Full => {
                cluster.fill(true)?;
                ("store".to_owned(), Undo::Free)
            }
        })
    }

    /// Undoes a fault.
    fn undo(&self, undo: Undo) -> Result<(), String> {
        let mut cluster = self.cluster();
        match undo {
            Undo::Run(hosts) => hosts.into_iter().try_for_each(|host| cluster.run(host)),
            Undo::Continue(host) => {
                cluster.pause(host, false);
                Ok(())
            }
            Undo::Join(pairs) => {
                pairs.into_iter().try_for_each(|(from, to)| cluster.cut(from, to, false))
            }
            Undo::Plug(host) => cluster.unplug(host, false),
            Undo::Free => cluster.fill(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_plan_with_every_fault() {
        let lease = Duration::from_secs(3);
        let draw = |seed| plan(&ClusterFault::ALL, seed, Duration::from_secs(120), lease);
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let periods = draw(5);
        for fault in ClusterFault::ALL {
            assert!(periods.iter().any(|period| period.fault == fault), "{fault:?}");
        }
        assert!(periods.iter().all(|period| period.from < period.to && period.to.as_secs() <= 120));
        assert_eq!(plan(&[], 5, Duration::from_secs(120), lease), []);
    }
}
