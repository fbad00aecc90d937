//! Answers that came in on another core's queue: receive-side scaling knows nothing of who asked. The core
//! that finds one passes it, with its arrival time, to the core that sent the task; no core waits.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

/// Answers that wait for their core at most.
const INBOX: usize = 1 << 14;

/// An answer on its way between cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) seq: u32,
    pub(crate) refused: bool,
    /// The operation that it is the right answer to; none as well where answers are not checked.
    pub(crate) answered: Option<u16>,
    pub(crate) at: u64,
}

/// One core's part in the exchange.
#[derive(Clone)]
pub struct Exchange {
    core: usize,
    /// The application id of each core's tasks.
    apps: Arc<[u32]>,
    inboxes: Arc<[ArrayQueue<Passed>]>,
}

impl Exchange {
    /// An exchange between cores whose tasks carry these application ids; one part for each, in order.
    #[must_use]
    pub fn between(apps: &[u32]) -> Vec<Self> {
        let inboxes: Arc<[_]> = apps.iter().map(|_| ArrayQueue::new(INBOX)).collect();
        let apps: Arc<[u32]> = apps.into();
        (0..apps.len())
            .map(|core| Self { core, apps: Arc::clone(&apps), inboxes: Arc::clone(&inboxes) })
            .collect()
    }

    /// Passes an answer on; false when no core has that application id or its inbox is full.
    #[inline]
    pub(crate) fn pass(&self, app: u32, passed: Passed) -> bool {
        self.apps
            .iter()
            .position(|other| *other == app)
            .is_some_and(|core| self.inboxes[core].push(passed).is_ok())
    }

    /// The next answer that another core found for this one.
    #[inline]
    pub(crate) fn take(&self) -> Option<Passed> {
        self.inboxes[self.core].pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_find_their_core() {
        let parts = Exchange::between(&[70, 80]);
        let passed = Passed { seq: 5, refused: false, answered: Some(1), at: 9 };
        assert!(parts[0].pass(80, passed));
        assert!(!parts[0].pass(90, passed));
        assert_eq!(parts[0].take(), None);
        assert_eq!(parts[1].take(), Some(passed));
        assert_eq!((0..INBOX + 5).filter(|_| parts[1].pass(70, passed)).count(), INBOX);
    }
}
