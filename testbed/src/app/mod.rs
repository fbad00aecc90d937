//! Workloads of workers (apps): each computes the bytes of an answer from the bytes of a task.
//!
//! `wedjat_pktgen::payload` defines these bytes, and `wedjat_pktgen::oracle` the right answers. An app has no
//! access to packets, agents or clocks.

mod echo;
mod emulated;
#[cfg_attr(not(feature = "rocksdb"), path = "no_rocksdb.rs")]
pub mod rocksdb;
pub mod spin;
mod tpcc;

use wedjat_pktgen::payload::{LEN, Outcome, Status, Work};

pub use echo::Echo;
pub use emulated::EmulatedApp;
pub use rocksdb::RocksDb;
pub use spin::Spin;
pub use tpcc::Tpcc;

/// A workload as one worker runs it.
pub trait App {
    /// Performs the task in `work`, the payload after the task header. Writes the answer into `reply` and
    /// returns its length; 0 if `reply` is too short for an outcome. An invalid task gets an answer with an error
    /// status. [`Echo`] differs: every task is valid, and the answer is as much of it as fits. Long work calls
    /// `yield_point` regularly. A worker whose tasks share its core switches to another task there.
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize;
}

/// Workload of a worker that does the work, chosen at run time. An enum, because [`App::serve`] is generic and so
/// excludes trait objects.
#[derive(Clone)]
pub enum AnyApp {
    /// Spins for the requested time.
    Spin(Spin),
    /// Spins for the time of a transaction.
    Tpcc(Tpcc),
    /// Echoes the task.
    Echo(Echo),
    /// Reads a database.
    RocksDb(RocksDb),
}

impl App for AnyApp {
    #[inline]
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize {
        match self {
            Self::Spin(app) => app.serve(work, reply, yield_point),
            Self::Tpcc(app) => app.serve(work, reply, yield_point),
            Self::Echo(app) => app.serve(work, reply, yield_point),
            Self::RocksDb(app) => app.serve(work, reply, yield_point),
        }
    }
}

/// Parses the task, performs its work with `perform` and writes the outcome. A task that cannot be parsed
/// gets an outcome with an error status. Returns the outcome's length, or 0 if `reply` is too short for one.
fn answer(work: &[u8], reply: &mut [u8], perform: impl FnOnce(&Work) -> Outcome) -> usize {
    if reply.len() < LEN {
        return 0;
    }
    let unknown = Outcome { status: Status::UnknownOperation, ..Outcome::default() };
    Work::parse(work).map_or(unknown, |work| perform(&work)).emit(reply);
    LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat_pktgen::mix::{TPCC, Workload};
    use wedjat_pktgen::oracle::Oracle;
    use wedjat_pktgen::payload::seed_of;

    /// Returns the operation in the answer of `app` to a task of `operation`; `None` if the oracle finds the answer
    /// wrong.
    pub(crate) fn operation_answered(
        app: &impl App,
        workload: Workload,
        operation: u16,
    ) -> Option<u16> {
        // Application 7, sequence number 9. Two bytes more than a request has, to check an echo's length.
        let (mut work, mut reply) = ([0; 18], [0; 64]);
        Work { service_ns: 0, operation, seed: seed_of(7, 9) }.emit(&mut work);
        let len = app.serve(&work, &mut reply, &|| {});
        Oracle::new(workload, work.len()).answered(7, 9, &reply[..len])
    }

    /// Returns busy work at a pace of one round per nanosecond, without calibration.
    fn machine() -> Spin {
        Spin::at(1.0, 0.0)
    }

    // promise: measurement.3
    #[test]
    fn apps_answer_what_the_generator_expects() {
        let apps = [
            (AnyApp::Spin(machine()), Workload::Spin),
            (AnyApp::Tpcc(Tpcc::new(machine())), Workload::Tpcc),
            (AnyApp::Echo(Echo), Workload::Echo),
        ];
        for (app, workload) in &apps {
            assert_eq!(operation_answered(app, *workload, 1), Some(1), "{workload:?}");
        }
        for operation in 1..=TPCC.len() as u16 {
            let app = Tpcc::new(machine());
            let answered = operation_answered(&app, Workload::Tpcc, operation);
            assert_eq!(answered, Some(operation));
        }
    }

    // promise: measurement.3
    #[test]
    fn invalid_request_gets_an_error_answer() {
        let mut reply = [0; LEN];
        // TPC-C has the operations 1 to 5. Bytes 6 and 7 of an outcome are its status; 1 is an unknown
        // operation.
        for operation in [0, 6] {
            let mut work = [0; LEN];
            Work { operation, ..Work::default() }.emit(&mut work);
            assert_eq!(Tpcc::new(machine()).serve(&work, &mut reply, &|| {}), LEN);
            assert_eq!(reply[6..8], [0, 1]);
        }
        assert_eq!(machine().serve(&[1, 2], &mut reply, &|| {}), LEN);
        assert_eq!(reply[6..8], [0, 1]);
        assert_eq!(machine().serve(&[0; LEN], &mut reply[..LEN - 1], &|| {}), 0, "no room");
        assert_eq!(Echo.serve(&[5; 40], &mut reply, &|| {}), LEN, "as much as fits");
    }
}
