//! Tasks sent to and answered by workers, from the state: each worker's number of reports, modulo 2^32, and
//! its outstanding tasks.

use std::collections::BTreeMap;

use crate::state::table::{MemberSnapshot, Snapshot};

/// Larger differences between two readings mean that another worker has taken the place, and its reports
/// count from 0.
const TOO_MANY: u32 = 1 << 31;

/// Tasks of a worker since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Answered and outstanding tasks, without those written off as lost.
    pub sent: u64,
    /// Reports: replies, and messages without one, such as keep-alives.
    pub answered: u64,
    /// Reports at the last reading, modulo 2^32.
    last: u32,
}

impl Tasks {
    fn look(&mut self, member: &MemberSnapshot) {
        let more = match member.reports.wrapping_sub(self.last) {
            TOO_MANY.. => member.reports,
            more => more,
        };
        (self.answered, self.last) = (self.answered + u64::from(more), member.reports);
        let has = u64::try_from(member.outstanding).unwrap_or(0);
        self.sent = self.sent.max(self.answered + has); // fewer if some were written off
    }
}

/// Tasks of all present workers, and of pools. The numbers never decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    workers: BTreeMap<(u16, u16), Tasks>,
    /// Tasks sent to departed workers, by pool.
    left: BTreeMap<u16, u64>,
}

impl Tally {
    /// Adds the changes since the last reading. Call it before any worker reports 2^31 times in between, and
    /// before one leaves.
    pub fn look(&mut self, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.workers);
        for pool in &snapshot.pools {
            for member in &pool.members {
                let key = (pool.id, member.worker);
                let mut tasks = before.remove(&key).unwrap_or_default();
                tasks.look(member);
                self.workers.insert(key, tasks);
            }
        }
        for ((pool, _), tasks) in before {
            *self.left.entry(pool).or_default() += tasks.sent;
        }
        self.left.retain(|&id, _| snapshot.pools.iter().any(|pool| pool.id == id));
    }

    /// Returns the tasks of a worker.
    #[must_use]
    pub fn worker(&self, pool: u16, worker: u16) -> Tasks {
        self.workers.get(&(pool, worker)).copied().unwrap_or_default()
    }

    /// Returns the tasks sent to workers of a pool, including departed ones.
    #[must_use]
    pub fn scheduled(&self, pool: u16) -> u64 {
        let there = self.workers.range((pool, 0)..=(pool, u16::MAX)).map(|(_, tasks)| tasks.sent);
        there.sum::<u64>() + self.left.get(&pool).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::table::{PoolSpec, Spec, WorkerSpec};
    use crate::state::{Load, Member, Table};

    fn table(workers: &[u16]) -> Table {
        let workers = workers.iter().map(|&id| WorkerSpec { id, server: 0 }).collect();
        let pools = vec![PoolSpec { id: 7, policy: "horus".into(), workers }];
        let servers = vec![std::net::Ipv4Addr::new(10, 0, 2, 11).into()];
        Table::heap(&Spec { cores: 2, ports: 1, servers, pools, ..Spec::default() })
    }

    fn tasks(tally: &Tally, worker: u16) -> (u64, u64) {
        let Tasks { sent, answered, .. } = tally.worker(7, worker);
        (sent, answered)
    }

    // promise: input.1
    #[test]
    fn sent_and_answered_tasks_sum_over_cores() {
        let (table, mut tally) = (table(&[10, 11]), Tally::default());
        let mut views = [table.view(0, 0), table.view(1, 0)];
        for (core, sent, answered) in [(0, 5, 3), (1, 4, 4), (0, 0, 2)] {
            let view = &mut views[core];
            (0..sent).for_each(|_| view.sent(Member(1)));
            for _ in 0..answered {
                view.answered(Member(1));
                view.set_load(Member(1), Load(0));
            }
            tally.look(&table.snapshot());
        }
        assert_eq!((tasks(&tally, 11), tasks(&tally, 10)), ((9, 9), (0, 0)));
        views[0].sent(Member(0));
        tally.look(&table.snapshot());
        assert_eq!((tasks(&tally, 10), tally.scheduled(7)), ((1, 0), 10));
        views[0].write_off(Member(0), 1);
        tally.look(&table.snapshot());
        assert_eq!((tasks(&tally, 10), tally.scheduled(7)), ((1, 0), 10), "nothing goes down");
        assert_eq!(tally.scheduled(8), 0);
    }

    // promise: input.1
    #[test]
    fn counts_survive_a_state_restart() {
        let (mut snapshot, mut tally) = (table(&[10, 11]).snapshot(), Tally::default());
        for reports in [7, 1 << 30, 2 << 30, 3 << 30, u32::MAX - 1, 4] {
            snapshot.pools[0].members[0].reports = reports;
            tally.look(&snapshot);
        }
        assert_eq!(tasks(&tally, 10), ((1 << 32) + 4, (1 << 32) + 4));
        // It left and returned between two readings.
        snapshot.pools[0].members[0].reports = 2;
        tally.look(&snapshot);
        assert_eq!(tasks(&tally, 10), ((1 << 32) + 6, (1 << 32) + 6));
        let all = snapshot.clone();
        snapshot.pools[0].members.remove(0);
        tally.look(&snapshot);
        assert_eq!((tasks(&tally, 10), tally.scheduled(7)), ((0, 0), (1 << 32) + 6));
        snapshot.pools.clear();
        tally.look(&snapshot);
        assert_eq!(tally.scheduled(7), 0, "another pool of this id counts from 0");
        tally.look(&all);
        assert_eq!(tally.scheduled(7), 2);
    }
}
