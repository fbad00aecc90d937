//! TPC-C's five transactions as profiled by Horus (section 4.1): each spins for its service time.

use wedjat_pktgen::mix::TPCC;
use wedjat_pktgen::oracle::spun;
use wedjat_pktgen::payload::{Outcome, Status};

use super::{App, Spin, answer};

/// App that spins for the profiled time of the task's transaction. Ignores the service time in the task.
#[derive(Clone, Debug)]
pub struct Tpcc {
    spin: Spin,
}

impl Tpcc {
    /// Creates the app, which spins at this pace.
    #[must_use]
    pub fn new(spin: Spin) -> Self {
        Self { spin }
    }
}

impl App for Tpcc {
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize {
        answer(work, reply, |work| {
            let operation = work.operation;
            // Operations count from 1.
            let index = usize::from(operation).checked_sub(1);
            let Some(transaction) = index.and_then(|index| TPCC.get(index)) else {
                let status = Status::UnknownOperation;
                return Outcome { operation, status, ..Outcome::default() };
            };
            self.spin.busy(transaction.service_ns, yield_point);
            Outcome { operation, digest: spun(work.seed), ..Outcome::default() }
        })
    }
}
