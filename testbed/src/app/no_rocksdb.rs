//! RocksDB workload of a build without RocksDB: a type without values, and functions that fail with an explanation.
//! Callers need no conditional compilation, because functions and arguments are those of the real workload.

use std::path::Path;

use super::App;

/// Error of a build without RocksDB.
#[derive(Debug, thiserror::Error)]
#[error(
    "--app rocksdb: built without RocksDB; install librocksdb-dev and build with --features rocksdb"
)]
pub struct DatabaseError;

/// One worker's handle of the database; has no values in this build.
#[derive(Clone)]
pub enum RocksDb {}

impl RocksDb {
    /// Always fails.
    ///
    /// # Errors
    /// In every case.
    pub fn scratch() -> Result<tempfile::TempDir, DatabaseError> {
        Err(DatabaseError)
    }

    /// Always fails.
    ///
    /// # Errors
    /// In every case.
    pub fn open(_: &Path) -> Result<Self, DatabaseError> {
        Err(DatabaseError)
    }

    /// Cannot be called.
    #[must_use]
    pub fn pace(&self, _: impl Fn() -> u64) -> [f64; 2] {
        match *self {}
    }
}

impl App for RocksDb {
    fn serve(&self, _: &[u8], _: &mut [u8], _: &impl Fn()) -> usize {
        match *self {}
    }
}
