//! Affinity table: maps multi-packet tasks to members, so that all packets of a task reach one member.
//! Bounded, with a timeout, allocated at start-up.
//!
//! The table has sets of eight entries. A keyed hash of the task chooses the set. A new task takes an empty
//! or expired entry, or else the entry of a finished task, whose last packet has passed. If all eight are
//! live, the new task is refused, because evicting a live one would break it. A finished task stays until its
//! entry is needed: packets may overtake each other.
//!
//! A task has a *credit* at its member while it counts as outstanding there. A worker cannot use an incomplete
//! task, and its sender may never send the rest. Three rules keep such tasks from blocking others. A source
//! address has a bounded number of them. A timed-out task returns its credit at its member. If all members of a
//! pool are full, the pool takes the credit of its oldest unfinished task at once ([`AffinityTable::reclaim`]).
//! The task counts again when its last packet arrives.
//!
//! The alternative is to count a task from its last packet on. A member's bound of outstanding tasks would then ignore
//! honest tasks in transfer.

use std::collections::VecDeque;

use crate::state::Member;

/// Number of entries of a set.
const WAYS: usize = 8;
/// Number of counters of unfinished tasks by source address. Addresses with the same counter share its bound.
const SOURCES: usize = 4096;

/// Capacity for unfinished tasks of a pool added at run time. Its queue is allocated without knowledge of the table.
const NEW_POOL: usize = 1 << 14;

/// Identity of a multi-packet task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// Pool id.
    pub pool: u16,
    /// Client's port.
    pub src_port: u16,
    /// Client's address; for IPv6, 32 bits of a keyed hash of the address.
    pub src: u32,
    /// Application id; 0 without the extension.
    pub app: u32,
    /// Sequence number: the full one with the extension, otherwise its low 16 bits.
    pub seq: u32,
}

/// Returns a keyed hash, so that clients cannot choose tasks of one set. The multipliers are those of SplitMix64. Its
/// upper bits are the well mixed ones: the set of a key depends only on those of the last mix.
fn mix(seed: u64, value: u64) -> u64 {
    let product = (value ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (product ^ (product >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

impl Key {
    /// Returns the hash that chooses the key's set.
    #[inline]
    fn hash(self, seed: u64) -> usize {
        let a = u64::from(self.src) << 32 | u64::from(self.seq);
        let b = u64::from(self.app) << 32 | u64::from(self.src_port) << 16 | u64::from(self.pool);
        (mix(seed, mix(seed, a) ^ b) >> 32) as usize
    }
}

/// Entry of the table: a multi-packet task.
#[derive(Clone, Copy, Debug)]
struct AffinityEntry {
    /// Identity of the task.
    key: Key,
    /// Member that receives its packets.
    member: Member,
    /// Index of the pool.
    pool: u16,
    /// True if the last packet has passed.
    finished: bool,
    /// True if the task has a credit at its member: it counts as outstanding there.
    has_credit: bool,
    /// Time of the last packet in ticks; 0 for an empty entry.
    last_packet: u64,
    /// Number that distinguishes the task from its predecessors in this entry.
    number: u32,
}

/// An entry without a task.
const EMPTY: AffinityEntry = AffinityEntry {
    key: Key { pool: 0, src_port: 0, src: 0, app: 0, seq: 0 },
    member: Member(0),
    pool: 0,
    finished: false,
    has_credit: false,
    last_packet: 0,
    number: 0,
};

/// An unfinished task.
#[derive(Clone, Copy, Debug)]
struct UnfinishedTask {
    /// Index of the task's entry over all sets.
    entry: u32,
    /// Number of the task; another one in the entry means that the task is gone.
    number: u32,
    /// Time of the next check for further packets, in ticks.
    due: u64,
}

/// Unfinished tasks of a pool, oldest first. Tasks that were finished or removed in the meantime stay until they reach
/// the front. A task that still receives packets at its check moves to the end.
#[derive(Debug)]
pub struct UnfinishedTasks {
    tasks: VecDeque<UnfinishedTask>,
    /// Number of tasks at the front that have lost their credit, or had none to take.
    reclaimed: usize,
}

impl UnfinishedTasks {
    /// Allocates the queue of a pool that is added at run time. A control thread calls it, because polling cores must
    /// not allocate. A task that leaves a full queue returns its credit only when its entry is needed.
    #[must_use]
    pub fn of_new_pool() -> Self {
        Self { tasks: VecDeque::with_capacity(NEW_POOL), reclaimed: 0 }
    }
}

/// Result of a search in the table: the member that has the task's earlier packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedTask {
    /// The member.
    pub member: Member,
    /// True if this packet completes a task that had lost its credit ([`AffinityTable::reclaim`]). The caller counts
    /// the task as outstanding at the member again.
    pub replaced: bool,
}

/// Reason why a task is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackRefusal {
    /// All entries of its set hold live tasks.
    Full,
    /// Its source has too many incomplete tasks.
    Source,
}

/// Multi-packet tasks of one core.
#[derive(Debug)]
pub struct AffinityTable {
    /// Sets of entries. The hash of a task chooses its set.
    sets: Box<[[AffinityEntry; WAYS]]>,
    /// Time without a packet after which a task expires.
    timeout_ticks: u64,
    /// Key of the hash.
    seed: u64,
    /// Numbers of unfinished tasks by hash of the source address.
    sources: Box<[u32]>,
    /// Maximum number of unfinished tasks of a source.
    per_source: u32,
    /// Unfinished tasks of each pool, by index.
    queues: Vec<UnfinishedTasks>,
    /// Credits of removed tasks, as index of the pool and member. [`AffinityTable::expire`] returns them to the caller.
    lost: Vec<(usize, Member)>,
    /// Number of the last task.
    number: u32,
}

impl AffinityTable {
    /// Creates a table for about `capacity` tasks of `pools` pools, rounded up to a power of two. A task
    /// expires after `timeout_ticks` without a packet. `seed` keys the hash.
    #[must_use]
    pub fn new(capacity: usize, timeout_ticks: u64, pools: usize, seed: u64) -> Self {
        let sets = capacity.div_ceil(WAYS).next_power_of_two();
        // Twice a pool's share of the entries, because its queue also holds tasks finished or removed by now.
        let per_pool = (2 * WAYS * sets).div_ceil(pools.max(1)).max(64);
        let queue = |_| UnfinishedTasks { tasks: VecDeque::with_capacity(per_pool), reclaimed: 0 };
        Self {
            sets: vec![[EMPTY; WAYS]; sets].into_boxed_slice(),
            timeout_ticks,
            seed,
            sources: vec![0; SOURCES].into_boxed_slice(),
            per_source: u32::MAX,
            queues: (0..pools).map(queue).collect(),
            lost: Vec::with_capacity(WAYS * sets),
            number: 0,
        }
    }

    /// Adds a pool, the last by index. Allocates nothing up to the number of pools given to
    /// [`AffinityTable::make_room`].
    pub fn add_pool(&mut self, queue: UnfinishedTasks) {
        self.queues.push(queue);
    }

    /// Reserves memory for `pools` pools.
    pub fn make_room(&mut self, pools: usize) {
        self.queues.reserve(pools.saturating_sub(self.queues.len()));
    }

    /// Removes all tasks of a member. Their credits are not returned: the member is gone.
    pub fn forget_member(&mut self, pool: usize, member: Member) {
        self.lost.retain(|&credit| credit != (pool, member));
        for index in 0..(WAYS * self.sets.len()) as u32 {
            let entry = *self.entry(index);
            if entry.last_packet == 0 || (usize::from(entry.pool), entry.member) != (pool, member) {
                continue;
            }
            if !entry.finished {
                *self.source(entry.key.src) -= 1;
            }
            *self.entry(index) = EMPTY;
        }
    }

    /// Sets the maximum number of incomplete tasks per source address.
    pub fn set_per_source(&mut self, tasks: usize) {
        self.per_source = u32::try_from(tasks).unwrap_or(u32::MAX);
    }

    /// Returns the index of a task's set.
    fn set_of(&self, key: Key) -> usize {
        key.hash(self.seed) & (self.sets.len() - 1)
    }

    /// Returns the counter of a source's unfinished tasks.
    fn source(&mut self, src: u32) -> &mut u32 {
        let index = (mix(self.seed, u64::from(src)) >> 40) as usize;
        &mut self.sources[index & (SOURCES - 1)]
    }

    /// Returns an entry, by its index over all sets.
    fn entry(&mut self, index: u32) -> &mut AffinityEntry {
        &mut self.sets[index as usize / WAYS][index as usize % WAYS]
    }

    /// Records a packet of a task at time `now` (in ticks). Returns the member of the task's earlier packets; `None`
    /// for an unknown or expired task. `last` is true for the last packet of the task.
    pub fn find(&mut self, key: Key, last: bool, now: u64) -> Option<AssignedTask> {
        let timeout = self.timeout_ticks;
        let set = self.set_of(key);
        let entry = self.sets[set].iter_mut().find(|entry| {
            entry.last_packet != 0
                && entry.key == key
                && now.saturating_sub(entry.last_packet) <= timeout
        })?;
        entry.last_packet = now.max(1); // 0 marks an empty entry
        // A repeated last packet finishes nothing.
        let finishes = last && !entry.finished;
        entry.finished |= last;
        // The finished task has a credit again, until its reply.
        let replaced = finishes && !std::mem::replace(&mut entry.has_credit, true);
        let found = AssignedTask { member: entry.member, replaced };
        if finishes {
            *self.source(key.src) -= 1;
        }
        Some(found)
    }

    /// Checks that a new task may be recorded: its source is below the bound, and its set has an entry for it.
    ///
    /// # Errors
    /// The reason if it may not.
    pub fn check_room(&mut self, key: Key, now: u64) -> Result<(), TrackRefusal> {
        let per_source = self.per_source;
        if *self.source(key.src) >= per_source {
            return Err(TrackRefusal::Source);
        }
        self.free_entry(key, now).map(|_| ()).ok_or(TrackRefusal::Full)
    }

    /// Returns the index, over all sets, of an entry for a new task; `None` if all entries of its set are live.
    fn free_entry(&self, key: Key, now: u64) -> Option<u32> {
        let timeout = self.timeout_ticks;
        let free = |entry: &AffinityEntry| {
            entry.last_packet == 0 || now.saturating_sub(entry.last_packet) > timeout
        };
        let set_index = self.set_of(key);
        let set = &self.sets[set_index];
        let way = set.iter().position(free).or_else(|| {
            let finished = set.iter().enumerate().filter(|(_, entry)| entry.finished);
            finished.min_by_key(|(_, entry)| entry.last_packet).map(|(way, _)| way)
        })?;
        Some((WAYS * set_index + way) as u32)
    }

    /// Records the member of a pool's new task, which has a credit there. Returns false if there is no room.
    pub fn insert(&mut self, key: Key, pool: usize, member: Member, now: u64) -> bool {
        let Some(index) = self.free_entry(key, now) else {
            return false;
        };
        self.forget(index); // has no effect on an empty entry or a finished task
        self.number = self.number.wrapping_add(1);
        let (number, due) = (self.number, now.saturating_add(self.timeout_ticks));
        *self.entry(index) = AffinityEntry {
            key,
            member,
            pool: pool as u16,
            finished: false,
            has_credit: true,
            last_packet: now.max(1),
            number,
        };
        *self.source(key.src) += 1;
        let Some(queue) = self.queues.get_mut(pool) else { return true };
        if queue.tasks.len() == queue.tasks.capacity() {
            // The front task returns its credit when its entry is needed.
            queue.tasks.pop_front();
            queue.reclaimed = queue.reclaimed.saturating_sub(1);
        }
        queue.tasks.push_back(UnfinishedTask { entry: index, number, due });
        true
    }

    /// Empties an unfinished task's entry. The task returns its credit, if it has one, and its share of the source's
    /// bound. Other entries stay.
    fn forget(&mut self, index: u32) {
        let entry = *self.entry(index);
        if entry.last_packet == 0 || entry.finished {
            return;
        }
        *self.source(entry.key.src) -= 1;
        if entry.has_credit {
            self.lost.push((usize::from(entry.pool), entry.member));
        }
        *self.entry(index) = EMPTY;
    }

    /// Takes the credit of the pool's oldest unfinished task for another task. Returns the member at which the credit
    /// was; `None` if no unfinished task has one. The task itself stays in the table.
    pub fn reclaim(&mut self, pool: usize) -> Option<Member> {
        loop {
            let queue = self.queues.get_mut(pool)?;
            let &UnfinishedTask { entry: index, number, .. } = queue.tasks.get(queue.reclaimed)?;
            queue.reclaimed += 1;
            let entry = self.entry(index);
            if entry.number == number
                && entry.last_packet != 0
                && !entry.finished
                && entry.has_credit
            {
                entry.has_credit = false;
                return Some(entry.member);
            }
        }
    }

    /// Removes unfinished tasks whose packets did not arrive in time. Returns the next of their credits, as index of
    /// the pool and member; `None` if none is left. Called at ticks until it returns `None`.
    pub fn expire(&mut self, now: u64) -> Option<(usize, Member)> {
        let timeout = self.timeout_ticks;
        for pool in 0..self.queues.len() {
            // Until `forget` has found a credit.
            while self.lost.is_empty() {
                let queue = &mut self.queues[pool];
                let Some(&UnfinishedTask { entry: index, number, due }) = queue.tasks.front()
                else {
                    break;
                };
                // The rest is rarely due. A task that moved to the end may lie behind tasks with a later `due`. It then
                // expires late, by less than the timeout.
                if due >= now {
                    break;
                }
                queue.tasks.pop_front();
                queue.reclaimed = queue.reclaimed.saturating_sub(1);
                let entry = *self.entry(index);
                if entry.number != number || entry.last_packet == 0 || entry.finished {
                    continue;
                }
                let due = entry.last_packet.saturating_add(timeout);
                match due < now {
                    true => self.forget(index),
                    // The task still receives packets.
                    false => self.queues[pool].tasks.push_back(UnfinishedTask {
                        entry: index,
                        number,
                        due,
                    }),
                }
            }
        }
        self.lost.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the key of a task of one client.
    fn key(seq: u32) -> Key {
        Key { pool: 1, src_port: 40_000, src: 0x0A00_0102, app: 0, seq }
    }

    /// Creates a table of two pools with a timeout of 100 ticks.
    fn table(capacity: usize) -> AffinityTable {
        AffinityTable::new(capacity, 100, 2, 7)
    }

    /// Returns the member in the result of a search, if it has found the task.
    fn member(found: Option<AssignedTask>) -> Option<Member> {
        found.map(|found| found.member)
    }

    #[test]
    fn packets_find_their_member_until_the_timeout() {
        let mut table = table(64);
        assert!(table.insert(key(1), 0, Member(7), 10));
        assert_eq!(member(table.find(key(1), false, 60)), Some(Member(7)));
        // 100 ticks after the last packet: not expired yet.
        assert_eq!(member(table.find(key(1), false, 160)), Some(Member(7)));
        assert_eq!(table.find(key(2), false, 160), None);
        assert_eq!(table.find(key(1), false, 261), None);
    }

    #[test]
    fn the_last_packet_may_be_overtaken() {
        let mut table = table(64);
        table.insert(key(1), 0, Member(7), 10);
        assert_eq!(member(table.find(key(1), true, 11)), Some(Member(7)));
        assert_eq!(member(table.find(key(1), false, 12)), Some(Member(7)));
    }

    // promise: packets.2
    #[test]
    fn full_set_evicts_only_finished_and_expired() {
        let mut table = table(8); // one set
        for seq in 0..8 {
            assert!(table.insert(key(seq), 0, Member(seq as u16), 10));
        }
        assert!(!table.insert(key(8), 0, Member(8), 20));
        assert_eq!(table.check_room(key(8), 20), Err(TrackRefusal::Full));
        table.find(key(3), true, 21);
        assert!(table.insert(key(8), 0, Member(8), 22));
        assert_eq!(table.find(key(3), false, 23), None);
        for seq in [0, 1, 2, 4, 5, 6, 7, 8] {
            assert_eq!(member(table.find(key(seq), false, 24)), Some(Member(seq as u16)));
        }
        assert!(table.insert(key(9), 0, Member(9), 200));
        assert_eq!(table.expire(200).map(|credit| credit.0), Some(0), "of the expired entry");
    }

    #[test]
    fn incomplete_tasks_return_their_credits_once() {
        let mut table = table(64);
        for seq in 0..4 {
            table.insert(key(seq), (seq % 2) as usize, Member(seq as u16), 10);
        }
        table.find(key(0), true, 20); // complete: its reply returns the credit
        table.find(key(1), false, 90); // still receives packets
        let mut expired = |now| {
            let mut all: Vec<_> = std::iter::from_fn(|| table.expire(now)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(expired(110), []);
        assert_eq!(expired(111), [(0, Member(2)), (1, Member(3))]);
        assert_eq!(expired(190), [], "key 1 had a packet at 90");
        assert_eq!(expired(191), [(1, Member(1))]);
        assert_eq!(expired(u64::MAX), []);
    }

    #[test]
    fn oldest_unfinished_task_lends_its_credit() {
        let mut table = table(64);
        for seq in 0..3 {
            table.insert(key(seq), 1, Member(seq as u16), 10);
        }
        table.find(key(0), true, 11);
        assert_eq!(table.reclaim(0), None);
        assert_eq!(table.reclaim(1), Some(Member(1)), "a complete task keeps its credit");
        assert_eq!(table.reclaim(1), Some(Member(2)));
        assert_eq!(table.reclaim(1), None);
        let found = table.find(key(1), false, 12).unwrap();
        assert!(!found.replaced);
        let found = table.find(key(1), true, 13).unwrap();
        assert_eq!(found, AssignedTask { member: Member(1), replaced: true });
        assert!(!table.find(key(1), true, 14).unwrap().replaced, "once");
        // A task without a credit has none to return.
        assert_eq!(table.expire(500), None);
        table.insert(key(9), 1, Member(9), 600);
        assert_eq!(table.reclaim(1), Some(Member(9)));
    }

    #[test]
    fn a_source_has_a_bound_of_unfinished_tasks() {
        let mut table = table(64);
        table.set_per_source(2);
        for seq in 0..2 {
            assert_eq!(table.check_room(key(seq), 10), Ok(()));
            table.insert(key(seq), 0, Member(0), 10);
        }
        assert_eq!(table.check_room(key(2), 10), Err(TrackRefusal::Source));
        let other = Key { src: 0x0A00_0103, ..key(2) };
        assert_eq!(table.check_room(other, 10), Ok(()));
        table.find(key(0), true, 11);
        assert_eq!(table.check_room(key(2), 11), Ok(()));
        table.insert(key(2), 0, Member(0), 11);
        assert_eq!(table.check_room(key(3), 12), Err(TrackRefusal::Source));
        while table.expire(1_000).is_some() {}
        assert_eq!(table.check_room(key(3), 1_000), Ok(()));
    }
}
