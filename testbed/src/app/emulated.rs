//! App of emulated workers: returns the right answer to any task without doing the task's work. The worker's loop
//! emulates the service time.

use wedjat_pktgen::mix::Workload;
use wedjat_pktgen::oracle::Oracle;
use wedjat_pktgen::payload::{LEN, Outcome, Status};

use super::{App, Echo, answer};

/// App that answers like a real worker of one workload. The oracle, with which clients check answers, computes them.
#[derive(Clone, Debug)]
pub struct EmulatedApp {
    workload: Workload,
    oracle: Oracle,
}

impl EmulatedApp {
    /// Creates an app that answers tasks of this workload. The oracle's length is unused: it applies only to echoes,
    /// which [`Echo`] answers.
    #[must_use]
    pub fn new(workload: Workload) -> Self {
        Self { workload, oracle: Oracle::new(workload, LEN) }
    }
}

impl App for EmulatedApp {
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize {
        if self.workload == Workload::Echo {
            return Echo.serve(work, reply, yield_point);
        }
        answer(work, reply, |work| {
            let operation = work.operation;
            let unknown =
                Outcome { operation, status: Status::UnknownOperation, ..Outcome::default() };
            self.oracle.outcome(operation, work.seed).unwrap_or(unknown)
        })
    }
}
