//! Named mixes of task types, and the workload of their tasks.
//!
//! | name | types, class 1 first |
//! |---|---|
//! | `rocksdb-90-10` | 90% GET (40 us), 10% SCAN (650 us) |
//! | `rocksdb-50-50` | 50% GET (40 us), 50% SCAN (650 us) |
//! | `rocksdb-995-5` | 99.5% GET (40 us), 0.5% SCAN (650 us) |
//! | `tpcc` | 44% payment (21.6 us), 4% order-status (22.68 us), 44% new-order (71.28 us), 4% delivery (332.64 us), 4% stock-level (378 us) |
//! | `echo` | the task comes back unchanged |
//!
//! The RocksDB mixes and TPC-C's times are from Horus (section 4.1); the names of the transactions are
//! TPC-C's. A real RocksDB worker takes as long as its machine needs. The times here are Horus's medians.
//! They serve emulated workers, the simulator, and rates in per cent.

/// Work that a worker does for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Busy for the requested time.
    Spin,
    /// Busy for the time of the requested transaction.
    Tpcc,
    /// Reads objects from a database.
    RocksDb,
    /// Sends the task back.
    Echo,
}

/// Task type of a mix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskType {
    /// Name in reports.
    pub name: &'static str,
    /// Fraction of the tasks.
    pub weight: f64,
    /// Service time.
    pub service_ns: f64,
}

/// Named mix. The class of a type is its index, from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Name on the command line.
    pub name: &'static str,
    /// Workload of its tasks.
    pub workload: Workload,
    /// Types of its tasks.
    pub types: &'static [TaskType],
}

/// Creates a task type.
const fn task_type(name: &'static str, weight: f64, service_ns: f64) -> TaskType {
    TaskType { name, weight, service_ns }
}

/// TPC-C's transactions. A worker that spins them uses the same classes, names and times.
pub const TPCC: [TaskType; 5] = [
    task_type("payment", 0.44, 21_600.0),
    task_type("order-status", 0.04, 22_680.0),
    task_type("new-order", 0.44, 71_280.0),
    task_type("delivery", 0.04, 332_640.0),
    task_type("stock-level", 0.04, 378_000.0),
];

/// Median time of a GET in Horus.
const GET_NS: f64 = 40_000.0;
/// Median time of a SCAN in Horus.
const SCAN_NS: f64 = 650_000.0;

/// All mixes.
pub const MIXES: [Mix; 5] = [
    Mix {
        name: "rocksdb-90-10",
        workload: Workload::RocksDb,
        types: &[task_type("GET", 0.9, GET_NS), task_type("SCAN", 0.1, SCAN_NS)],
    },
    Mix {
        name: "rocksdb-50-50",
        workload: Workload::RocksDb,
        types: &[task_type("GET", 0.5, GET_NS), task_type("SCAN", 0.5, SCAN_NS)],
    },
    Mix {
        name: "rocksdb-995-5",
        workload: Workload::RocksDb,
        types: &[task_type("GET", 0.995, GET_NS), task_type("SCAN", 0.005, SCAN_NS)],
    },
    Mix { name: "tpcc", workload: Workload::Tpcc, types: &TPCC },
    Mix { name: "echo", workload: Workload::Echo, types: &[task_type("echo", 1.0, 0.0)] },
];

impl Mix {
    /// Returns the mix called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        MIXES.iter().find(|mix| mix.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_sum_to_one() {
        for mix in &MIXES {
            let sum: f64 = mix.types.iter().map(|kind| kind.weight).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{}: {sum}", mix.name);
        }
    }

    // promise: measurement.1
    #[test]
    fn tpcc_times_have_the_ratios_of_horus() {
        // Section 4.1: dispersion ratios of 1, 1.05, 3.3, 15.4 and 17.5.
        let ratios = [1.0, 1.05, 3.3, 15.4, 17.5];
        for (kind, ratio) in TPCC.iter().zip(ratios) {
            assert!((kind.service_ns / TPCC[0].service_ns - ratio).abs() < 1e-9, "{}", kind.name);
        }
    }
}
