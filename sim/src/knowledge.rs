//! Knowledge of queues at dispatchers that probe a few servers for each task, with a delay. A probe asks a server for
//! its queue length. Model [`super::ct`] uses it instead of single messages.
//!
//! Without a delay all dispatchers see the true queues. With a delay a dispatcher knows past queues, plus the
//! tasks that it has sent since. A task waits for the round trip of its probes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Arrival or departure of a task at a server.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// Time in ticks at which dispatchers learn of it.
    known_at: u64,
    /// Index of the server.
    member: u16,
    /// Dispatcher that sent an arriving task, and has already counted it; `None` for departures.
    sender: Option<u16>,
}

/// Queue lengths as dispatchers know them.
#[derive(Debug)]
pub struct Knowledge {
    /// View of each dispatcher; one shared view if there is no delay.
    queues: Vec<Arc<[AtomicU32]>>,
    /// Time from a change of a queue until dispatchers know it, in ticks.
    delay: u64,
    /// True if dispatchers probe. Otherwise nothing is recorded.
    is_used: bool,
    /// Changes that dispatchers do not know yet, in order of time.
    changes: VecDeque<Change>,
}

impl Knowledge {
    /// Creates the knowledge of empty queues. `delay` is in ticks.
    #[must_use]
    pub fn new(servers: usize, dispatchers: usize, delay: u64, is_used: bool) -> Self {
        let fresh = || -> Arc<[AtomicU32]> { (0..servers).map(|_| AtomicU32::new(0)).collect() };
        let shared = fresh();
        let view = |_| if delay > 0 { fresh() } else { Arc::clone(&shared) };
        let queues = (0..dispatchers).map(view).collect();
        Self { queues, delay, is_used, changes: VecDeque::new() }
    }

    /// Returns one dispatcher's view of the queues: the number of tasks at each server, which later calls update.
    #[must_use]
    pub fn view_of(&self, dispatcher: usize) -> Arc<[AtomicU32]> {
        Arc::clone(&self.queues[dispatcher])
    }

    /// Records that a dispatcher sent a task to a server. Without a delay of the knowledge, queues hold only tasks at
    /// servers, so the task counts from [`Self::on_arrival`] on.
    #[inline]
    pub fn on_send(&mut self, dispatcher: u16, member: u16) {
        if self.is_used && self.delay > 0 {
            add(&self.queues[usize::from(dispatcher)], member, 1);
        }
    }

    /// Records the arrival of a task at a server; `queue` includes it.
    #[inline]
    pub fn on_arrival(&mut self, now: u64, sender: u16, member: u16, queue: u32) {
        self.change(now, member, Some(sender), queue);
    }

    /// Records the departure of a task from a server with `queue` tasks left.
    #[inline]
    pub fn on_departure(&mut self, now: u64, member: u16, queue: u32) {
        self.change(now, member, None, queue);
    }

    /// Records a change of a server's queue, now `queue` tasks long.
    #[inline]
    fn change(&mut self, now: u64, member: u16, sender: Option<u16>, queue: u32) {
        if !self.is_used {
            return;
        }
        if self.delay == 0 {
            self.queues[0][usize::from(member)].store(queue, Relaxed);
        } else {
            self.changes.push_back(Change { known_at: now + self.delay, member, sender });
        }
    }

    /// Applies the changes that are known by now.
    #[inline]
    pub fn advance(&mut self, now: u64) {
        while let Some(change) = self.changes.front().filter(|change| change.known_at <= now) {
            for (dispatcher, queues) in self.queues.iter().enumerate() {
                match change.sender {
                    None => add(queues, change.member, u32::MAX),
                    Some(sender) if usize::from(sender) == dispatcher => {}
                    Some(_) => add(queues, change.member, 1),
                }
            }
            self.changes.pop_front();
        }
    }
}

/// Adds to a count; `u32::MAX` is -1. A simulation has one thread, so the addition need not be atomic, and
/// Relaxed suffices.
#[inline]
fn add(queues: &[AtomicU32], member: u16, by: u32) {
    let count = &queues[usize::from(member)];
    count.store(count.load(Relaxed).wrapping_add(by), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the queue length of server 1 as a dispatcher knows it.
    fn known_queue(knowledge: &Knowledge, dispatcher: usize) -> u32 {
        knowledge.view_of(dispatcher)[1].load(Relaxed)
    }

    // promise: measurement.4
    #[test]
    fn other_dispatchers_see_counts_after_the_delay() {
        let mut knowledge = Knowledge::new(2, 2, 10, true);
        knowledge.on_send(0, 1);
        assert_eq!((known_queue(&knowledge, 0), known_queue(&knowledge, 1)), (1, 0));
        knowledge.on_arrival(10, 0, 1, 1);
        knowledge.advance(19);
        assert_eq!((known_queue(&knowledge, 0), known_queue(&knowledge, 1)), (1, 0));
        knowledge.advance(20);
        assert_eq!((known_queue(&knowledge, 0), known_queue(&knowledge, 1)), (1, 1));
        knowledge.on_departure(25, 1, 0);
        knowledge.advance(34);
        assert_eq!((known_queue(&knowledge, 0), known_queue(&knowledge, 1)), (1, 1));
        knowledge.advance(35);
        assert_eq!((known_queue(&knowledge, 0), known_queue(&knowledge, 1)), (0, 0));
    }

    /// Only the arrival at the server counts, for all dispatchers at once.
    #[test]
    fn without_delay_every_view_is_exact() {
        let mut knowledge = Knowledge::new(2, 2, 0, true);
        knowledge.on_send(0, 1);
        assert_eq!(known_queue(&knowledge, 1), 0);
        knowledge.on_arrival(5, 0, 1, 1);
        assert_eq!((known_queue(&knowledge, 0), known_queue(&knowledge, 1)), (1, 1));
    }
}
