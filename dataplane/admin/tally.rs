//! Tasks sent to and answered by workers, for metrics and the status page. They are computed from readings of the
//! node's state: each worker's number of reports, modulo 2^32, and its outstanding tasks. A report is a reply, or a
//! message with the worker's queue length.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wedjat_core::state::table::{MemberSnapshot, Snapshot};

/// Smallest difference between two readings, modulo 2^32, that means a new worker with this id. Its reports count
/// from 0, so the difference is negative.
const NEW_WORKER: u32 = 1 << 31;

/// Time with tasks and without a report after which a worker is unresponsive.
const UNRESPONSIVE: Duration = Duration::from_secs(5);

/// Tasks of a worker since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Largest sum so far of reports and outstanding tasks. It includes reports without a reply, and may lack tasks
    /// written off as lost.
    pub sent: u64,
    /// Reports: replies, and messages without one, such as keep-alives.
    pub answered: u64,
    /// First reading after the newest report; `None` before the first report. It is late by at most the time
    /// between two readings.
    pub reported: Option<Instant>,
    /// Reports at the last reading, modulo 2^32.
    last: u32,
    /// Reading since which it has had tasks and sent no report.
    since: Option<Instant>,
    /// True if it is unresponsive: it has had tasks for some seconds and sent no report.
    pub is_unresponsive: bool,
}

impl Tasks {
    /// Adds the reports since the last reading, and notes whether the worker responds. `now` is the time of the
    /// reading.
    fn look(&mut self, member: &MemberSnapshot, now: Instant) {
        let new_reports = match member.reports.wrapping_sub(self.last) {
            NEW_WORKER.. => member.reports,
            difference => difference,
        };
        (self.answered, self.last) = (self.answered + u64::from(new_reports), member.reports);
        let outstanding = u64::try_from(member.outstanding).unwrap_or(0);
        // The sum falls when tasks are written off as lost; `sent` must not.
        self.sent = self.sent.max(self.answered + outstanding);
        if new_reports > 0 {
            self.reported = Some(now);
            self.since = None;
        }
        if outstanding > 0 {
            self.since = self.since.or(Some(now));
        }
        // Tasks that are written off leave none, but the worker remains unresponsive until its next report.
        self.is_unresponsive = self.since.is_some_and(|since| now - since >= UNRESPONSIVE);
    }
}

/// Tasks of all present workers, and of pools. The numbers of a worker or pool never decrease while it is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tasks by pool and worker.
    workers: BTreeMap<(u16, u16), Tasks>,
    /// Tasks sent to departed workers, by pool.
    departed: BTreeMap<u16, u64>,
}

impl Tally {
    /// Adds the changes since the last reading. Call it before any worker reports 2^31 times in between, and before
    /// the place of a departed worker is freed, so that its last reports count. Returns the workers that have become
    /// unresponsive, with their pools.
    pub fn look(&mut self, snapshot: &Snapshot, now: Instant) -> Vec<(u16, u16)> {
        let mut unresponsive = Vec::new();
        let mut before = std::mem::take(&mut self.workers);
        for pool in &snapshot.pools {
            for member in &pool.members {
                let key = (pool.id, member.worker);
                let mut tasks = before.remove(&key).unwrap_or_default();
                let was_unresponsive = tasks.is_unresponsive;
                tasks.look(member, now);
                if tasks.is_unresponsive && !was_unresponsive {
                    unresponsive.push(key);
                }
                self.workers.insert(key, tasks);
            }
        }
        for ((pool, _), tasks) in before {
            *self.departed.entry(pool).or_default() += tasks.sent;
        }
        self.departed.retain(|&id, _| snapshot.pools.iter().any(|pool| pool.id == id));
        unresponsive
    }

    /// Returns the tasks of a worker.
    #[must_use]
    pub fn worker(&self, pool: u16, worker: u16) -> Tasks {
        self.workers.get(&(pool, worker)).copied().unwrap_or_default()
    }

    /// Returns the tasks sent to workers of a pool, including departed ones.
    #[must_use]
    pub fn scheduled(&self, pool: u16) -> u64 {
        let present = self.workers.range((pool, 0)..=(pool, u16::MAX)).map(|(_, tasks)| tasks.sent);
        present.sum::<u64>() + self.departed.get(&pool).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use wedjat_core::state::table::{PoolSpec, Spec, WorkerSpec};
    use wedjat_core::state::{Load, Member, Table};

    use super::*;

    /// Returns the state of a node with two cores and one pool, 7.
    fn table(workers: &[u16]) -> Table {
        let workers = workers.iter().map(|&id| WorkerSpec { id, server: 0 }).collect();
        let pools =
            vec![PoolSpec { id: 7, policy: "horus".into(), objective: String::new(), workers }];
        let servers = vec![std::net::Ipv4Addr::new(10, 0, 2, 11).into()];
        Table::heap(&Spec { cores: 2, ports: 1, servers, pools, ..Spec::default() })
    }

    /// Returns the sent and answered tasks of a worker of pool 7.
    fn tasks(tally: &Tally, worker: u16) -> (u64, u64) {
        let Tasks { sent, answered, .. } = tally.worker(7, worker);
        (sent, answered)
    }

    // promise: input.1
    #[test]
    fn sent_and_answered_tasks_sum_over_cores() {
        let (table, mut tally) = (table(&[10, 11]), Tally::default());
        let mut views = [table.view(0, 0), table.view(1, 0)];
        // The core, and the tasks that it then sends and sees answered.
        for (core, sent, answered) in [(0, 5, 3), (1, 4, 4), (0, 0, 2)] {
            let view = &mut views[core];
            (0..sent).for_each(|_| view.sent(Member(1)));
            for _ in 0..answered {
                view.answered(Member(1));
                view.set_load(Member(1), Load(0));
            }
            tally.look(&table.snapshot(), Instant::now());
        }
        assert_eq!((tasks(&tally, 11), tasks(&tally, 10)), ((9, 9), (0, 0)));
        views[0].sent(Member(0));
        tally.look(&table.snapshot(), Instant::now());
        assert_eq!((tasks(&tally, 10), tally.scheduled(7)), ((1, 0), 10));
        views[0].write_off(Member(0), 1);
        tally.look(&table.snapshot(), Instant::now());
        assert_eq!((tasks(&tally, 10), tally.scheduled(7)), ((1, 0), 10), "nothing goes down");
        assert_eq!(tally.scheduled(8), 0);
    }

    // promise: control.3
    #[test]
    fn worker_without_replies_is_unresponsive_once() {
        let (table, mut tally) = (table(&[10, 11]), Tally::default());
        let (start, mut view) = (Instant::now(), table.view(0, 0));
        let mut look = |seconds| {
            let unresponsive = tally.look(&table.snapshot(), start + Duration::from_secs(seconds));
            (unresponsive, tally.worker(7, 11).is_unresponsive)
        };
        assert_eq!(look(0), (vec![], false));
        view.sent(Member(1));
        assert_eq!(look(100), (vec![], false), "the task may be new");
        assert_eq!(look(104), (vec![], false));
        assert_eq!(look(105), (vec![(7, 11)], true));
        view.write_off(Member(1), 1);
        assert_eq!(look(110), (vec![], true), "once");
        view.sent(Member(1));
        view.answered(Member(1));
        view.set_load(Member(1), Load(0));
        assert_eq!(look(120), (vec![], false), "it replied");
        assert_eq!(look(200), (vec![], false), "it has no task");
    }

    // promise: control.1
    #[test]
    fn newest_report_has_a_time() {
        let (table, mut tally) = (table(&[10, 11]), Tally::default());
        let mut view = table.view(0, 0);
        view.sent(Member(1));
        tally.look(&table.snapshot(), Instant::now());
        assert_eq!(tally.worker(7, 11).reported, None);
        view.answered(Member(1));
        view.set_load(Member(1), Load(0));
        tally.look(&table.snapshot(), Instant::now());
        let reported = tally.worker(7, 11).reported.unwrap();
        tally.look(&table.snapshot(), Instant::now());
        assert_eq!(tally.worker(7, 11).reported, Some(reported), "no new report");
        assert_eq!(tally.worker(7, 10).reported, None);
    }

    // promise: input.1
    #[test]
    fn counts_survive_wraps_and_departures() {
        let (mut snapshot, mut tally) = (table(&[10, 11]).snapshot(), Tally::default());
        // Each step is below 2^31, and the last one wraps.
        for reports in [7, 1 << 30, 2 << 30, 3 << 30, u32::MAX - 1, 4] {
            snapshot.pools[0].members[0].reports = reports;
            tally.look(&snapshot, Instant::now());
        }
        assert_eq!(tasks(&tally, 10), ((1 << 32) + 4, (1 << 32) + 4));
        // It left and returned between two readings.
        snapshot.pools[0].members[0].reports = 2;
        tally.look(&snapshot, Instant::now());
        assert_eq!(tasks(&tally, 10), ((1 << 32) + 6, (1 << 32) + 6));
        let all = snapshot.clone();
        snapshot.pools[0].members.remove(0);
        tally.look(&snapshot, Instant::now());
        assert_eq!((tasks(&tally, 10), tally.scheduled(7)), ((0, 0), (1 << 32) + 6));
        snapshot.pools.clear();
        tally.look(&snapshot, Instant::now());
        assert_eq!(tally.scheduled(7), 0, "another pool of this id counts from 0");
        tally.look(&all, Instant::now());
        assert_eq!(tally.scheduled(7), 2);
    }
}
