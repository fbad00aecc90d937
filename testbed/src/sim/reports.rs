//! Reports of queues to independent leaves. Each server reports every change of its queue to every leaf, and a
//! report takes one delay. A leaf counts its own tasks exactly, so a report tells it only about tasks of other leaves.

use std::collections::VecDeque;

/// A task of one dispatcher that arrived at a server, or left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueChange {
    /// Index of the server.
    pub member: u16,
    /// Dispatcher of the task, which counts it without this report.
    pub dispatcher: u16,
    /// True for an arrival.
    pub arrived: bool,
}

/// Reports in flight, in order of time.
#[derive(Debug, Default)]
pub struct QueueReports {
    /// Delay of a report in ticks; `None` if dispatchers receive no reports.
    delay: Option<u64>,
    /// Reports with the time at which they arrive.
    in_flight: VecDeque<(u64, QueueChange)>,
}

impl QueueReports {
    /// Creates the reports of a run. Without a delay dispatchers receive none.
    #[must_use]
    pub fn new(delay: Option<u64>) -> Self {
        Self { delay, in_flight: VecDeque::new() }
    }

    /// Sends a report to all dispatchers.
    #[inline]
    pub fn send(&mut self, now: u64, change: QueueChange) {
        if let Some(delay) = self.delay {
            self.in_flight.push_back((now + delay, change));
        }
    }

    /// Returns the next report that has arrived, if there is one.
    #[inline]
    pub fn receive(&mut self, now: u64) -> Option<QueueChange> {
        let &(time, change) = self.in_flight.front()?;
        if time > now {
            return None;
        }
        self.in_flight.pop_front();
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_after_the_delay() {
        let change = QueueChange { member: 1, dispatcher: 0, arrived: true };
        let mut reports = QueueReports::new(Some(10));
        reports.send(5, change);
        assert_eq!(reports.receive(14), None);
        assert_eq!((reports.receive(15), reports.receive(15)), (Some(change), None));
    }

    #[test]
    fn cores_of_a_leaf_receive_no_reports() {
        let mut reports = QueueReports::new(None);
        reports.send(0, QueueChange { member: 1, dispatcher: 0, arrived: true });
        assert_eq!(reports.receive(u64::MAX), None);
    }
}
