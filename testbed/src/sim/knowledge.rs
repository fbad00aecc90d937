//! What dispatchers that ask members for their queues know, when answers take time.
//!
//! Without a delay all see the true queues. With one, a dispatcher knows a queue as it was that long ago, and
//! besides what it sent there itself since. Policies that rank all members are taken to be told of
//! every change so. Policies that ask a few members about each task hold the task for the round trip.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use wedjat::policy::Asks;

/// A task came to a server, or left it.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// When dispatchers know.
    known: u64,
    member: u16,
    /// Who sent the task that came, and has known of it since; none when one left.
    sender: Option<u16>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Knowledge {
    /// What each dispatcher sees; the same for all when there is no delay.
    seen: Vec<Arc<[AtomicU32]>>,
    delay: u64,
    /// Somebody asks.
    wanted: bool,
    changes: VecDeque<Change>,
}

impl Knowledge {
    /// Of empty queues.
    #[must_use]
    pub fn new(servers: usize, dispatchers: usize, delay: u64, asks: Asks) -> Self {
        let fresh = || -> Arc<[AtomicU32]> { (0..servers).map(|_| AtomicU32::new(0)).collect() };
        let shared = fresh();
        let seen = |_| if delay > 0 { fresh() } else { Arc::clone(&shared) };
        let seen = (0..dispatchers).map(seen).collect();
        Self { seen, delay, wanted: asks != Asks::Nobody, changes: VecDeque::new() }
    }

    /// The queues as one dispatcher sees them.
    #[must_use]
    pub fn of(&self, dispatcher: usize) -> Arc<[AtomicU32]> {
        Arc::clone(&self.seen[dispatcher])
    }

    /// A dispatcher sent a task to a server.
    #[inline]
    pub fn sent(&mut self, dispatcher: u16, member: u16) {
        if self.wanted && self.delay > 0 {
            add(&self.seen[usize::from(dispatcher)], member, 1);
        }
    }

    /// A task came to a server, which has `queue` of them now.
    #[inline]
    pub fn came(&mut self, now: u64, sender: u16, member: u16, queue: u32) {
        self.change(now, member, Some(sender), queue);
    }

    /// A task left a server, which has `queue` of them now.
    #[inline]
    pub fn left(&mut self, now: u64, member: u16, queue: u32) {
        self.change(now, member, None, queue);
    }

    #[inline]
    fn change(&mut self, now: u64, member: u16, sender: Option<u16>, queue: u32) {
        if !self.wanted {
            return;
        }
        if self.delay == 0 {
            self.seen[0][usize::from(member)].store(queue, Relaxed);
        } else {
            self.changes.push_back(Change { known: now + self.delay, member, sender });
        }
    }

    /// Makes known what is to be known by now.
    #[inline]
    pub fn advance(&mut self, now: u64) {
        while let Some(change) = self.changes.front().filter(|change| change.known <= now) {
            for (dispatcher, seen) in self.seen.iter().enumerate() {
                match change.sender {
                    None => add(seen, change.member, u32::MAX),
                    Some(sender) if usize::from(sender) == dispatcher => {}
                    Some(_) => add(seen, change.member, 1),
                }
            }
            self.changes.pop_front();
        }
    }
}

/// Adds to a count, `u32::MAX` being -1. One thread runs a simulation: no need of an atomic addition.
#[inline]
fn add(seen: &[AtomicU32], member: u16, by: u32) {
    let count = &seen[usize::from(member)];
    count.store(count.load(Relaxed).wrapping_add(by), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(knowledge: &Knowledge, dispatcher: usize) -> u32 {
        knowledge.of(dispatcher)[1].load(Relaxed)
    }

    #[test]
    fn others_hear_late_and_the_sender_knows() {
        let mut knowledge = Knowledge::new(2, 2, 10, Asks::All);
        knowledge.sent(0, 1);
        assert_eq!((seen(&knowledge, 0), seen(&knowledge, 1)), (1, 0));
        knowledge.came(10, 0, 1, 1);
        knowledge.advance(19);
        assert_eq!((seen(&knowledge, 0), seen(&knowledge, 1)), (1, 0));
        knowledge.advance(20);
        assert_eq!((seen(&knowledge, 0), seen(&knowledge, 1)), (1, 1));
        knowledge.left(25, 1, 0);
        knowledge.advance(34);
        assert_eq!((seen(&knowledge, 0), seen(&knowledge, 1)), (1, 1));
        knowledge.advance(35);
        assert_eq!((seen(&knowledge, 0), seen(&knowledge, 1)), (0, 0));
    }

    #[test]
    fn without_a_delay_all_see_the_truth() {
        let mut knowledge = Knowledge::new(2, 2, 0, Asks::Some);
        knowledge.sent(0, 1);
        assert_eq!(seen(&knowledge, 1), 0);
        knowledge.came(5, 0, 1, 1);
        assert_eq!((seen(&knowledge, 0), seen(&knowledge, 1)), (1, 1));
    }
}
