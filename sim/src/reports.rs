//! Reports of queues to independent leaves, for model [`super::ct`] under policies that read or bound all queues. Each
//! server reports every change of its queue to every leaf, except for benchmark tasks. A report arrives after the
//! configured delay. A leaf counts its own tasks from decision to reply, and ignores reports of them.

use std::collections::VecDeque;

/// Arrival of a task at a server, or its departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueChange {
    /// Index of the server.
    pub member: u16,
    /// Index of the dispatcher that sent the task, which counts it itself and ignores this report.
    pub dispatcher: u16,
    /// True for an arrival, false for a departure.
    pub arrived: bool,
}

/// Reports in flight. All have the same delay, so that they arrive in the order of sending.
#[derive(Debug, Default)]
pub struct QueueReports {
    /// Delay of a report in ticks; `None` if dispatchers receive no reports.
    delay: Option<u64>,
    /// Reports with the time in ticks at which they arrive.
    in_flight: VecDeque<(u64, QueueChange)>,
}

impl QueueReports {
    /// Creates an empty queue of reports, which take `delay` ticks. With `None`, [`QueueReports::send`] drops all
    /// reports.
    #[must_use]
    pub fn new(delay: Option<u64>) -> Self {
        Self { delay, in_flight: VecDeque::new() }
    }

    /// Sends a report to all dispatchers at time `now`. One entry serves all, because it reaches them at the same time.
    #[inline]
    pub fn send(&mut self, now: u64, change: QueueChange) {
        if let Some(delay) = self.delay {
            self.in_flight.push_back((now + delay, change));
        }
    }

    /// Removes and returns the next report that has arrived by `now`, which the caller passes to all dispatchers.
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

    /// The cores of one leaf, for which the delay is `None`, exchange their counts in another way.
    #[test]
    fn cores_of_a_leaf_receive_no_reports() {
        let mut reports = QueueReports::new(None);
        reports.send(0, QueueChange { member: 1, dispatcher: 0, arrived: true });
        assert_eq!(reports.receive(u64::MAX), None);
    }
}
