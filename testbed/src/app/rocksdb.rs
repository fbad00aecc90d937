//! RocksDB workload of the Horus paper (section 4.1): GET reads 60 objects by key, SCAN iterates over all 5,000.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wedjat_pktgen::mix::Workload;
use wedjat_pktgen::objects::{self, GET, OBJECTS, SCAN};
use wedjat_pktgen::oracle::Oracle;
use wedjat_pktgen::payload::{LEN, Outcome, Status};
use wedjat_rocksdb::{Database, fill};

use super::{App, answer};

/// File locked during the filling of the database, so that only one of several workers fills it. It stays
/// afterwards.
const LOCK: &str = "wedjat.lock";
/// File that every RocksDB database has. It shows that a folder holds a database.
const MARK: &str = "CURRENT";

/// Objects that a SCAN reads between two yield points.
const YIELD_OBJECTS: u32 = 64;

/// Number of tasks of each kind that [`RocksDb::pace`] times.
const SAMPLES: u64 = 51;

/// Reason why a database cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("database {path}: {problem}; {fix}")]
pub struct DatabaseError {
    path: PathBuf,
    problem: String,
    fix: &'static str,
}

/// App that serves GET and SCAN from an open database. Clones share the database; other processes may open it, too.
#[derive(Clone)]
pub struct RocksDb {
    database: Arc<Database>,
}

impl RocksDb {
    /// Creates a temporary folder for a database.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn scratch() -> io::Result<tempfile::TempDir> {
        tempfile::Builder::new().prefix("wedjat-objects-").tempdir()
    }

    /// Opens the database in this folder for reading, and checks its content by a SCAN. Fills a folder without a
    /// database first.
    ///
    /// # Errors
    /// If the folder cannot be used, or holds a different database.
    pub fn open(path: &Path) -> Result<Self, DatabaseError> {
        let unusable = |problem: String, fix| DatabaseError { path: path.to_owned(), problem, fix };
        fill_once(path).map_err(|problem| {
            unusable(problem, "give a writable folder with 20 MB of free space")
        })?;
        let database = Database::open(path)
            .map_err(|error| unusable(error.to_string(), "remove it, or give another folder"))?;
        let app = Self { database: Arc::new(database) };
        let outcome = app.scan(&|| {});
        if Oracle::new(Workload::RocksDb, LEN).outcome(SCAN, 0) != Some(outcome) {
            let problem = format!(
                "it holds {} objects, not the {OBJECTS} of the workload, or different ones",
                outcome.objects
            );
            return Err(unusable(problem, "remove it, or give another folder"));
        }
        Ok(app)
    }

    /// Returns the median times of GET and SCAN on this machine, in microseconds. Workers log them, as a real database
    /// has no set service times. `now` is a clock in nanoseconds.
    #[must_use]
    pub fn pace(&self, now: impl Fn() -> u64) -> [f64; 2] {
        let median_us = |run: &dyn Fn(u64) -> Outcome| {
            let mut samples: Vec<_> = (0..SAMPLES)
                .map(|seed| {
                    let began = now();
                    std::hint::black_box(run(seed));
                    now() - began
                })
                .collect();
            samples.sort_unstable();
            samples[samples.len() / 2] as f64 / 1e3
        };
        [median_us(&|seed| self.get(seed)), median_us(&|_| self.scan(&|| {}))]
    }

    /// Reads the objects of the GET with this seed by key. The status is `Failed` if one cannot be read.
    fn get(&self, seed: u64) -> Outcome {
        let mut outcome = Outcome { operation: GET, ..Outcome::default() };
        for number in objects::read_by(seed) {
            let key = objects::key(number);
            match self.database.get(&key, |value| objects::digest(&key, value)) {
                Ok(Some(digest)) => add(&mut outcome, digest),
                Ok(None) | Err(_) => outcome.status = Status::Failed,
            }
        }
        outcome
    }

    /// Iterates over all objects. Calls `yield_point` after each [`YIELD_OBJECTS`] of them.
    fn scan(&self, yield_point: &impl Fn()) -> Outcome {
        let mut outcome = Outcome { operation: SCAN, ..Outcome::default() };
        let read = |key: &[u8], value: &[u8]| {
            add(&mut outcome, objects::digest(key, value));
            if outcome.objects.is_multiple_of(YIELD_OBJECTS) {
                yield_point();
            }
        };
        if self.database.scan(read).is_err() {
            outcome.status = Status::Failed;
        }
        outcome
    }
}

/// Adds an object with this digest to the outcome of a task that reads several.
fn add(outcome: &mut Outcome, digest: u64) {
    outcome.objects += 1;
    outcome.digest = outcome.digest.wrapping_add(digest);
}

/// Fills a folder without a database. Waits while another worker fills it. Errors are reasons in words.
fn fill_once(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|error| error.to_string())?;
    // Without a lock file, another program filled the database. The caller's check of the content decides.
    if path.join(MARK).exists() && !path.join(LOCK).exists() {
        return Ok(());
    }
    let lock = File::create(path.join(LOCK)).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    // Another worker may have filled it during the wait for the lock.
    if path.join(MARK).exists() {
        return Ok(());
    }
    let objects = (0..OBJECTS).map(|number| (objects::key(number), objects::value(number)));
    fill(path, objects).map_err(|error| error.to_string())
}

impl App for RocksDb {
    fn serve(&self, work: &[u8], reply: &mut [u8], yield_point: &impl Fn()) -> usize {
        answer(work, reply, |work| match work.operation {
            GET => self.get(work.seed),
            SCAN => self.scan(yield_point),
            operation => {
                let status = Status::UnknownOperation;
                Outcome { operation, status, ..Outcome::default() }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::tests::operation_answered;

    // promise: measurement.3
    #[test]
    fn every_operation_is_answered_rightly() {
        let folder = tempfile::tempdir().unwrap();
        let app = RocksDb::open(&folder.path().join("new")).unwrap();
        for operation in [GET, SCAN] {
            let answered = operation_answered(&app, Workload::RocksDb, operation);
            assert_eq!(answered, Some(operation));
        }
        assert_eq!(operation_answered(&app, Workload::RocksDb, 3), None);
    }

    // promise: measurement.3
    #[test]
    fn several_workers_fill_one_database_once() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| RocksDb::open(folder.path()).unwrap());
            }
        });
        assert_eq!(RocksDb::open(folder.path()).unwrap().scan(&|| {}).objects, OBJECTS);
    }

    // promise: measurement.3
    #[test]
    fn foreign_database_is_refused_with_the_fix() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        fill(&other, (0..OBJECTS).map(|number| (objects::key(number), *b"else"))).unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "no folder").unwrap();
        for (path, part) in [(&other, "or different ones"), (&file, "exists")] {
            let error = RocksDb::open(path).err().unwrap().to_string();
            let named = error.contains(&path.display().to_string());
            assert!(named && error.contains(part) && error.contains("folder"), "{error}");
        }
    }
}
