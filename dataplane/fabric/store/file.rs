//! Store in one file, for a single controller. The file is a database of redb, an embedded key-value store. It has the
//! whole fabric at one version, the base, and a log of the events of each later version.
//!
//! The database never opens an incomplete file: a new file is made under another name and renamed. An error, such as
//! a full disk, closes the database. The next [`Store::lead`] opens it again, with a backoff. Each open verifies all
//! pages. Each write commits in two phases, so that no open falls back to the version before the last one.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use wedjat_core::state::files::{ExistingFile, NameLock, Scratch, open_again, within_limits};

use super::{Store, StoreError, records};
use crate::event::Event;
use crate::fabric::Fabric;

/// Numbers by name: `format`, the file's format; `term`, the number of the last lead; `base`, the version of the whole
/// fabric.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Events of each version after `base`.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The fabric at version `base`, in parts.
const PARTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("parts");

/// Format of the file. Format 1 has records without digests.
const FORMAT: u64 = 2;
/// Delays between attempts to open the file again: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Store in one file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    /// Open database; `None` after an error, until it is opened again.
    database: Option<Database>,
    /// Term with which this process leads; `None` before its first lead.
    term: Option<u64>,
    /// Version of the stored whole fabric. The log holds the events of later versions.
    base: u64,
    /// Delay before the next attempt to open the file.
    backoff: Duration,
    /// Lock on the file's name against other controllers.
    _name: NameLock,
}

/// Reason why an operation on the database failed.
enum Failure {
    /// Error of the database.
    Database(redb::Error),
    /// Invalid record or number.
    Content(String),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Database(error.into())
    }
}

impl Failure {
    /// Converts the failure of an operation on this file. A running controller ends after [`StoreError::DamagedFile`],
    /// and tries again after other errors.
    fn for_file(self, path: &Path) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Content(reason) => StoreError::DamagedFile { path, reason },
            Self::Database(redb::Error::DatabaseAlreadyOpen) => StoreError::InUse(path),
            // An error of the system. The two kinds left out mean a truncated file, or a file that is not a database;
            // the last arm reports them as damage.
            Self::Database(redb::Error::Io(error))
                if !matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) =>
            {
                (path, error).into()
            }
            Self::Database(
                error @ (redb::Error::PreviousIo
                | redb::Error::DatabaseClosed
                | redb::Error::TransactionPoisoned),
            ) => StoreError::File { path, reason: error.to_string() },
            Self::Database(error) => StoreError::DamagedFile { path, reason: error.to_string() },
        }
    }
}

/// Runs an operation on the database at `path`. Turns a panic of redb into an error: redb panics on some
/// kinds of damage. A write beyond the process's limit on file sizes also becomes an error instead of a signal.
fn guard<T>(path: &Path, operation: impl FnOnce() -> Result<T, Failure>) -> Result<T, StoreError> {
    let done = within_limits(|| catch_unwind(AssertUnwindSafe(operation)));
    let damaged = |_| Err(Failure::Content("its pages contradict each other".to_owned()));
    done.unwrap_or_else(damaged).map_err(|failure| failure.for_file(path))
}

/// Opens the database in `file`. Creates it if the file is empty. Takes an open file instead of a path, so that redb
/// uses the file that the caller checked.
fn database(file: File) -> Result<Database, Failure> {
    let backend = FileBackend::new(file)?;
    Ok(Builder::new().set_check_integrity_on_open(true).create_with_backend(backend)?)
}

/// Begins a transaction that commits in two phases.
fn begin_write(database: &Database) -> Result<WriteTransaction, Failure> {
    let mut write = database.begin_write()?;
    write.set_two_phase_commit(true);
    Ok(write)
}

/// Returns a number by name; 0 if it is missing.
fn number(database: &Database, name: &str) -> Result<u64, Failure> {
    let numbers = database.begin_read()?.open_table(NUMBERS)?;
    Ok(numbers.get(name)?.map_or(0, |number| number.value()))
}

impl FileStore {
    /// Opens the file. Creates it with mode 0600 if it is missing.
    ///
    /// # Errors
    /// If another controller has the file, another user has access to it, it is damaged or of a later release, or the
    /// system refuses.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = NameLock::take(path).map_err(|error| (path.to_owned(), error))?;
        let (path, backoff) = (path.to_owned(), Duration::ZERO);
        let mut store = Self { path, database: None, term: None, base: 0, backoff, _name: name };
        if store.find()?.is_none() {
            store.create()?;
        }
        store.reopen()?;
        Ok(store)
    }

    /// Adds the file's path to an error of the system.
    fn system(&self, error: io::Error) -> StoreError {
        (self.path.clone(), error).into()
    }

    /// Finds the file; `None` if it is missing. Refuses one to which a user other than this one and root has access.
    fn find(&self) -> Result<Option<ExistingFile>, StoreError> {
        let file = ExistingFile::at(&self.path).map_err(|error| self.system(error))?;
        if let Some(fault) = file.as_ref().and_then(|file| file.check_private().err()) {
            let reason = format!("the file {fault}; name one of this user or root of mode 0600");
            return Err(StoreError::File { path: self.path.clone(), reason });
        }
        Ok(file)
    }

    /// Makes an empty store under another name and renames it. A crash leaves either nothing or the whole
    /// store, so an empty file is a damaged store, such as a copy onto a full disk.
    fn create(&self) -> Result<(), StoreError> {
        let system = |error| self.system(error);
        let scratch = Scratch::<File>::file(&self.path, None).map_err(system)?;
        let file = open_again(scratch.item()).map_err(system)?;
        guard(&self.path, || {
            let database = database(file)?;
            let write = begin_write(&database)?;
            write.open_table(NUMBERS)?.insert("format", FORMAT)?;
            write.open_table(LOG)?;
            write.open_table(PARTS)?;
            Ok(write.commit()?)
        })?;
        // Without replacing a file of that name.
        scratch.keep_at(&self.path, false).map_err(system)
    }

    /// Opens the file and verifies it.
    fn reopen(&mut self) -> Result<(), StoreError> {
        let damaged = |reason: &str| StoreError::DamagedFile {
            path: self.path.clone(),
            reason: reason.to_owned(),
        };
        let found = self.find()?.ok_or_else(|| damaged("somebody removed it"))?;
        if found.size() == 0 {
            return Err(damaged("it is empty"));
        }
        let file = found.open(true).map_err(|error| self.system(error))?;
        // redb verifies all pages here.
        let (database, format) = guard(&self.path, || {
            let database = database(file)?;
            let format = number(&database, "format")?;
            // Drops the database of a later release inside the guard, since closing it writes to the file.
            Ok(((format <= FORMAT).then_some(database), format))
        })?;
        if database.is_none() {
            let reason = format!("it has format {format} of a later release; run that release");
            return Err(StoreError::File { path: self.path.clone(), reason });
        }
        self.database = database;
        Ok(())
    }

    /// Runs an operation on the open database. Closes the database after an error: after an I/O error, redb refuses all
    /// operations until it is opened again.
    fn call<T>(
        &mut self,
        operation: impl FnOnce(&Database) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let Some(database) = self.database.take() else {
            return Err(self.system(io::Error::other("it is closed")));
        };
        // A failed operation drops the database inside the guard, since closing it writes to the file.
        let (database, result) = guard(&self.path, || {
            let result = operation(&database)?;
            Ok((database, result))
        })?;
        self.database = Some(database);
        Ok(result)
    }

    /// Returns the term with which this process leads. At its first lead, takes the next term and writes it to the
    /// file. Does so again if the stored term is not its own, for example after an operator replaced the file.
    fn begin(&mut self) -> Result<u64, StoreError> {
        let own_term = self.term;
        let term = self.call(|database| {
            let stored_term = number(database, "term")?;
            // After an I/O error the same process keeps its term. That needs no space on a full disk.
            if own_term == Some(stored_term) {
                return Ok(stored_term);
            }
            let write = begin_write(database)?;
            // A file of an older format gets records of this one from now on, so older releases must refuse it.
            write.open_table(NUMBERS)?.insert("format", FORMAT)?;
            write.open_table(NUMBERS)?.insert("term", stored_term + 1)?;
            write.commit()?;
            Ok(stored_term + 1)
        })?;
        self.term = Some(term);
        Ok(term)
    }

    /// Writes the first fabric into a new file, then takes its first term. Refuses a file with a term, and leaves it
    /// unchanged: a controller has led with it. After a crash before the term, the next call writes the fabric again.
    pub(super) fn begin_with(&mut self, fabric: &Fabric) -> Result<(), StoreError> {
        if self.call(|database| number(database, "term"))? > 0 {
            let reason = "it has a fabric already; name a new file".to_owned();
            return Err(StoreError::File { path: self.path.clone(), reason });
        }
        self.call(|database| replace(database, fabric))?;
        self.base = fabric.version;
        self.begin().map(|_| ())
    }
}

/// Reads the stored fabric: the parts, then the log. Fails if a version is missing in the log.
fn read(database: &Database) -> Result<Fabric, Failure> {
    let content = |error: StoreError| match error {
        StoreError::Damaged { version, reason } => {
            Failure::Content(format!("version {version}: {reason}"))
        }
        other => Failure::Content(other.to_string()),
    };
    let base = number(database, "base")?;
    let read = database.begin_read()?;
    let mut fabric = Fabric { version: base, ..Fabric::default() };
    for part in read.open_table(PARTS)?.iter()? {
        records::read(&mut fabric, base, part?.1.value()).map_err(content)?;
    }
    for entry in read.open_table(LOG)?.range(base + 1..)? {
        let (version, record) = entry?;
        let (version, next) = (version.value(), fabric.version + 1);
        if version != next {
            let reason = format!("it has version {version}, and not version {next} before it");
            return Err(Failure::Content(reason));
        }
        records::read(&mut fabric, version, record.value()).map_err(content)?;
    }
    Ok(fabric)
}

/// Replaces the log and the parts by a whole fabric.
fn replace(database: &Database, fabric: &Fabric) -> Result<(), Failure> {
    let write = begin_write(database)?;
    write.delete_table(PARTS)?;
    write.delete_table(LOG)?;
    {
        // Ends the borrows of the tables before the commit. Opening the log creates it empty.
        write.open_table(LOG)?;
        let mut parts = write.open_table(PARTS)?;
        for (number, part) in (0..).zip(records::parts(fabric)) {
            parts.insert(number, part.as_slice())?;
        }
        write.open_table(NUMBERS)?.insert("base", fabric.version)?;
    }
    Ok(write.commit()?)
}

impl Store for FileStore {
    /// Opens the file again after an error, and returns the term. Never waits for another leader: the lock on the
    /// file's name makes this the only controller.
    async fn lead(&mut self, _: impl Fn(&str) + Send + Sync) -> Result<u64, StoreError> {
        if self.database.is_none() {
            tokio::time::sleep(self.backoff).await;
            self.backoff = (self.backoff * 2).clamp(BACKOFF.0, BACKOFF.1);
            self.reopen()?;
        }
        let term = self.begin()?;
        self.backoff = Duration::ZERO;
        Ok(term)
    }

    /// Reads the stored fabric.
    async fn load(&mut self) -> Result<Fabric, StoreError> {
        let (base, fabric) =
            self.call(|database| Ok((number(database, "base")?, read(database)?)))?;
        self.base = base;
        Ok(fabric)
    }

    /// Adds the events of the next version to the log.
    async fn append(&mut self, version: u64, events: &[Event]) -> Result<(), StoreError> {
        let record = records::write(events);
        self.call(|database| {
            let write = begin_write(database)?;
            write.open_table(LOG)?.insert(version, record.as_slice())?;
            Ok(write.commit()?)
        })
    }

    /// Replaces the log by the whole fabric.
    async fn compact(&mut self, fabric: &Fabric) -> Result<(), StoreError> {
        self.call(|database| replace(database, fabric))?;
        self.base = fabric.version;
        Ok(())
    }

    fn base(&self) -> u64 {
        self.base
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        // Closing the database writes to the file.
        let database = self.database.take();
        let _ = guard(&self.path, || {
            drop(database);
            Ok(())
        });
    }
}
