//! TPC-C's five transactions as Horus profiles them (section 4.1): each is spun for its time.

use wedjat_pktgen::mix::TPCC;
use wedjat_pktgen::oracle::spun;
use wedjat_pktgen::payload::{Outcome, Status};

use super::{App, Spin, answer};

/// Spins by transaction, whatever time the task itself asks for.
#[derive(Clone, Debug)]
pub struct Tpcc {
    spin: Spin,
}

impl Tpcc {
    /// On a machine that spins so.
    #[must_use]
    pub fn new(spin: Spin) -> Self {
        Self { spin }
    }
}

impl App for Tpcc {
    fn serve(&mut self, work: &[u8], reply: &mut [u8]) -> usize {
        answer(work, reply, |work| {
            let operation = work.operation;
            let at = usize::from(operation).checked_sub(1);
            let Some(transaction) = at.and_then(|at| TPCC.get(at)) else {
                let status = Status::UnknownOperation;
                return Outcome { operation, status, ..Outcome::default() };
            };
            self.spin.busy(transaction.service_ns);
            Outcome { operation, digest: spun(work.seed), ..Outcome::default() }
        })
    }
}
