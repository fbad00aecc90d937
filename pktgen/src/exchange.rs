//! Exchange of answers between cores. Receive-side scaling may deliver an answer to any core. That core
//! relays the answer, with its arrival time, to the core that sent the task. It never waits. An application id in
//! each task and its answer tells which core sent the task.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

/// Capacity of a core's inbox in answers: 16 ms at a million answers per second. A full inbox means that its
/// core stalls; the answer then counts as unknown, and its task as lost.
const INBOX: usize = 1 << 14;

/// An answer in transit between cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RelayedAnswer {
    /// Full sequence number of its task.
    pub(crate) seq: u32,
    /// True if the scheduler returned the task undone.
    pub(crate) refused: bool,
    /// Operation to which this is the correct answer. `None` if there is none, or if answers are not checked.
    pub(crate) operation: Option<u16>,
    /// Receive time in ticks.
    pub(crate) received: u64,
    /// Worker that sent it.
    pub(crate) worker: u16,
}

/// One core's end of the exchange.
#[derive(Clone)]
pub struct AnswerExchange {
    /// Index of this core.
    core: usize,
    /// Application id of each core's tasks. Answers repeat it.
    apps: Arc<[u32]>,
    /// Inbox of each core.
    inboxes: Arc<[ArrayQueue<RelayedAnswer>]>,
}

impl AnswerExchange {
    /// Creates an exchange between cores with these application ids, and returns one end per core, in order.
    #[must_use]
    pub fn between(apps: &[u32]) -> Vec<Self> {
        let inboxes: Arc<[_]> = apps.iter().map(|_| ArrayQueue::new(INBOX)).collect();
        let apps: Arc<[u32]> = apps.into();
        (0..apps.len())
            .map(|core| Self { core, apps: Arc::clone(&apps), inboxes: Arc::clone(&inboxes) })
            .collect()
    }

    /// Relays an answer to the core that sent its task. Returns false if no core has that application id, or
    /// its inbox is full.
    #[inline]
    pub(crate) fn relay(&self, app: u32, answer: RelayedAnswer) -> bool {
        self.apps
            .iter()
            .position(|core_app| *core_app == app)
            .is_some_and(|core| self.inboxes[core].push(answer).is_ok())
    }

    /// Returns the next answer that another core received for this one.
    #[inline]
    pub(crate) fn take(&self) -> Option<RelayedAnswer> {
        self.inboxes[self.core].pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_reach_their_core() {
        let parts = AnswerExchange::between(&[70, 80]);
        let answer =
            RelayedAnswer { seq: 5, refused: false, operation: Some(1), received: 9, worker: 3 };
        assert!(parts[0].relay(80, answer));
        assert!(!parts[0].relay(90, answer));
        assert_eq!(parts[0].take(), None);
        assert_eq!(parts[1].take(), Some(answer));
        // The inbox accepts answers up to its capacity, and then rejects them.
        assert_eq!((0..INBOX + 5).filter(|_| parts[1].relay(70, answer)).count(), INBOX);
    }
}
