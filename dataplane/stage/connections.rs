//! Which member has the further packets of a task: a bounded table with a timeout, taken at start-up.
//!
//! Eight-way sets. A new connection takes an empty or expired way, else that of a task whose last
//! packet has passed; when all eight are live the task is refused rather than another one broken.
//! A finished connection stays until its way is needed, since packets may overtake each other.

use crate::state::Member;

const WAYS: usize = 8;

/// What names a multi-packet task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// Pool id.
    pub pool: u16,
    /// The client's port.
    pub src_port: u16,
    /// The client's address.
    pub src: u32,
    /// Application id, 0 without the extension.
    pub app: u32,
    /// Sequence number: the full one with the extension, else its low 16 bits.
    pub seq: u32,
}

impl Key {
    #[inline]
    fn hash(self) -> usize {
        let a = u64::from(self.src) << 32 | u64::from(self.seq);
        let b = u64::from(self.app) << 32 | u64::from(self.src_port) << 16 | u64::from(self.pool);
        let mixed = (a ^ b.rotate_left(29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32) as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    key: Key,
    member: Member,
    /// The last packet has passed.
    finished: bool,
    /// Ticks of the last packet seen; 0 is an empty way.
    seen: u64,
}

const EMPTY: Way = Way {
    key: Key { pool: 0, src_port: 0, src: 0, app: 0, seq: 0 },
    member: Member(0),
    finished: false,
    seen: 0,
};

/// One core's connections.
#[derive(Debug)]
pub struct Connections {
    sets: Box<[[Way; WAYS]]>,
    timeout_ticks: u64,
}

impl Connections {
    /// Room for about `capacity` tasks, rounded up to a power of two, each forgotten when no packet of it
    /// came for `timeout_ticks`.
    #[must_use]
    pub fn new(capacity: usize, timeout_ticks: u64) -> Self {
        let sets = capacity.div_ceil(WAYS).next_power_of_two();
        Self { sets: vec![[EMPTY; WAYS]; sets].into_boxed_slice(), timeout_ticks }
    }

    #[inline]
    fn set(&mut self, key: Key) -> &mut [Way; WAYS] {
        let mask = self.sets.len() - 1;
        &mut self.sets[key.hash() & mask]
    }

    /// The member that has the task's earlier packets. `last`: this packet is the task's last.
    pub fn find(&mut self, key: Key, last: bool, now: u64) -> Option<Member> {
        let timeout = self.timeout_ticks;
        let way = self.set(key).iter_mut().find(|way| {
            way.seen != 0 && way.key == key && now.saturating_sub(way.seen) <= timeout
        })?;
        way.seen = now.max(1);
        way.finished |= last;
        Some(way.member)
    }

    /// There is room for this task.
    #[must_use]
    pub fn has_room(&mut self, key: Key, now: u64) -> bool {
        self.free_way(key, now).is_some()
    }

    fn free_way(&mut self, key: Key, now: u64) -> Option<&mut Way> {
        let timeout = self.timeout_ticks;
        let free = |way: &Way| way.seen == 0 || now.saturating_sub(way.seen) > timeout;
        let set = self.set(key);
        let at = set.iter().position(free).or_else(|| {
            let finished = set.iter().enumerate().filter(|(_, way)| way.finished);
            finished.min_by_key(|(_, way)| way.seen).map(|(at, _)| at)
        })?;
        Some(&mut set[at])
    }

    /// Notes a task's member; false when there is no room.
    pub fn insert(&mut self, key: Key, member: Member, now: u64) -> bool {
        let Some(way) = self.free_way(key, now) else {
            return false;
        };
        *way = Way { key, member, finished: false, seen: now.max(1) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seq: u32) -> Key {
        Key { pool: 1, src_port: 40_000, src: 0x0A00_0102, app: 0, seq }
    }

    #[test]
    fn packets_of_a_task_find_its_member_until_the_timeout() {
        let mut connections = Connections::new(64, 100);
        assert!(connections.insert(key(1), Member(7), 10));
        assert_eq!(connections.find(key(1), false, 60), Some(Member(7)));
        assert_eq!(connections.find(key(1), false, 160), Some(Member(7)));
        assert_eq!(connections.find(key(2), false, 160), None);
        assert_eq!(connections.find(key(1), false, 261), None);
    }

    #[test]
    fn the_last_packet_may_be_overtaken() {
        let mut connections = Connections::new(64, 100);
        connections.insert(key(1), Member(7), 10);
        assert_eq!(connections.find(key(1), true, 11), Some(Member(7)));
        assert_eq!(connections.find(key(1), false, 12), Some(Member(7)));
    }

    #[test]
    fn a_full_set_takes_finished_and_expired_ways_and_breaks_no_live_task() {
        let mut connections = Connections::new(8, 100); // one set
        for seq in 0..8 {
            assert!(connections.insert(key(seq), Member(seq as u16), 10));
        }
        assert!(!connections.insert(key(8), Member(8), 20) && !connections.has_room(key(8), 20));
        connections.find(key(3), true, 21);
        assert!(connections.insert(key(8), Member(8), 22));
        assert_eq!(connections.find(key(3), false, 23), None);
        for seq in [0, 1, 2, 4, 5, 6, 7, 8] {
            assert_eq!(connections.find(key(seq), false, 24), Some(Member(seq as u16)));
        }
        assert!(connections.insert(key(9), Member(9), 200));
    }
}
