//! Records of single tasks for plots and the task log ([`crate::results`]). All memory is allocated and touched before
//! the run, so that recording causes no page fault.

use crate::outstanding::InFlightTask;
use crate::results::{Status, Task};

/// Maximum number of recorded tasks of one core: 320 MiB of 40 bytes each.
pub const RECORDS_MAX: usize = 1 << 23;

/// Record of a task. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskRecord {
    /// Due time.
    pub(crate) due: u64,
    /// Send time; the due time for an unsent task.
    pub(crate) sent: u64,
    /// Receive time; 0 without an answer.
    received: u64,
    /// Requested service time.
    service_ns: u32,
    class: u16,
    /// Worker that answered; 0 without an answer.
    worker: u16,
    status: Status,
}

impl TaskRecord {
    /// Converts the record to a row of the log, for a load that started at tick `start`. `ns` converts ticks to
    /// nanoseconds. The tally sets number, `measured` and `late`, and the report sets the pool.
    pub(crate) fn task(&self, start: u64, ns: impl Fn(u64) -> u64) -> Task {
        let ps = |ticks| ns(ticks) * 1000;
        let since_start = |tick: u64| ps(tick.saturating_sub(start));
        let has_response = self.status.has_response();
        Task {
            number: 0,
            pool: 0,
            class: self.class,
            worker: has_response.then_some(u32::from(self.worker)),
            scheduled_ps: since_start(self.due),
            sent_ps: (self.status != Status::Unsent).then(|| since_start(self.sent)),
            service_ps: Some(u64::from(self.service_ns) * 1000),
            response_ps: has_response.then(|| ps(self.received.saturating_sub(self.due))),
            status: self.status,
            measured: true,
            late: false,
        }
    }
}

/// Records of the tasks of one core.
#[derive(Clone, Debug)]
pub(crate) struct TaskRecords {
    records: Vec<TaskRecord>,
    /// Tasks for which there was no room.
    missing: u64,
}

impl TaskRecords {
    /// Allocates and touches the memory for this number of tasks, up to [`RECORDS_MAX`].
    pub(crate) fn new(tasks: usize) -> Self {
        // Not all zero, because the system maps zeroed memory only at the first access.
        let none = TaskRecord {
            due: 1,
            sent: 1,
            received: 1,
            service_ns: 1,
            class: 1,
            worker: 1,
            status: Status::Lost,
        };
        let mut records = vec![none; tasks.min(RECORDS_MAX)];
        records.clear(); // keeps the capacity
        Self { records, missing: 0 }
    }

    /// Records the end of a task, with receive time and worker of its answer.
    #[inline]
    pub(crate) fn push(
        &mut self,
        flight: &InFlightTask,
        answer: Option<(u64, u16)>,
        status: Status,
    ) {
        let &InFlightTask { due, sent, service_ns, class } = flight;
        let (received, worker) = answer.unwrap_or_default();
        if self.records.len() < self.records.capacity() {
            self.records.push(TaskRecord {
                due,
                sent,
                received,
                service_ns,
                class,
                worker,
                status,
            });
        } else {
            self.missing += 1;
        }
    }

    /// Returns the records in the order in which the tasks ended.
    pub(crate) fn all(&self) -> &[TaskRecord] {
        &self.records
    }

    /// Returns the number of tasks for which there was no room.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_beyond_the_room_are_counted() {
        // Room for two tasks; the third one has no record.
        let mut records = TaskRecords::new(2);
        let flight = InFlightTask { due: 100, sent: 105, service_ns: 9, class: 2 };
        records.push(&flight, Some((150, 7)), Status::Answered);
        records.push(&flight, None, Status::Lost);
        records.push(&flight, None, Status::Unsent);
        assert_eq!((records.all().len(), records.missing()), (2, 1));
        // The load started at tick 40, and a tick is 2 ns.
        let task = records.all()[0].task(40, |ticks| 2 * ticks);
        assert_eq!((task.scheduled_ps, task.sent_ps), (120_000, Some(130_000)));
        assert_eq!((task.response_ps, task.worker), (Some(100_000), Some(7)));
        assert_eq!(records.all()[1].task(0, |ticks| ticks).response_ps, None);
    }
}
