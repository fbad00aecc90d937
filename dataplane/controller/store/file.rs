//! A store in one file, for one controller.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Store, StoreError, records};
use crate::controller::event::Event;
use crate::controller::fabric::Fabric;
use crate::state::files::NameLock;

/// `format`, `term`, `base`: numbers by name.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// What led to each version.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// All of it at version `base`, in parts.
const PARTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("parts");

/// The form of what is in the file.
const FORMAT: u64 = 1;

/// The file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    database: Database,
    _name: NameLock,
}

impl FileStore {
    /// Opens the file, or makes it with mode 0600.
    ///
    /// # Errors
    /// When another controller has it, or it is something else.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = NameLock::take(path).map_err(|error| (path.to_owned(), error))?;
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(|error| (path.to_owned(), error))?;
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            let reason = "it is no file; name one in a folder of this user".to_owned();
            return Err(StoreError::File { path: path.to_owned(), reason });
        }
        let database =
            FileBackend::new(file).and_then(|file| Database::builder().create_with_backend(file));
        let database = database.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(path.to_owned()),
            error => {
                let reason = format!(
                    "it can't be opened ({error}); restore it from a copy, or name a new file"
                );
                StoreError::File { path: path.to_owned(), reason }
            }
        })?;
        Ok(Self { path: path.to_owned(), database, _name: name })
    }

    fn failed(&self, error: impl Into<redb::Error>) -> StoreError {
        let (path, reason) = (self.path.clone(), error.into().to_string());
        StoreError::File { path, reason }
    }

    /// The next term, kept.
    fn begin(&self) -> Result<u64, redb::Error> {
        let write = self.database.begin_write()?;
        let (format, term) = {
            let mut numbers = write.open_table(NUMBERS)?;
            let kept =
                |name: &str| Ok::<_, redb::Error>(numbers.get(name)?.map(|number| number.value()));
            let (format, term) =
                (kept("format")?.unwrap_or(FORMAT), kept("term")?.unwrap_or(0) + 1);
            numbers.insert("format", format)?;
            numbers.insert("term", term)?;
            (format, term)
        };
        write.open_table(LOG)?;
        write.open_table(PARTS)?;
        write.commit()?;
        if format == FORMAT { Ok(term) } else { Err(redb::Error::UpgradeRequired(format as u8)) }
    }

    fn read(&self) -> Result<Result<Fabric, StoreError>, redb::Error> {
        let read = self.database.begin_read()?;
        let base = read.open_table(NUMBERS)?.get("base")?.map_or(0, |base| base.value());
        let mut fabric = Fabric::default();
        for part in read.open_table(PARTS)?.iter()? {
            let (_, bytes) = part?;
            if let Err(error) = records::read(&mut fabric, base, bytes.value()) {
                return Ok(Err(error));
            }
        }
        for entry in read.open_table(LOG)?.range(base + 1..)? {
            let (version, bytes) = entry?;
            if let Err(error) = records::read(&mut fabric, version.value(), bytes.value()) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(fabric))
    }

    /// Keeps a fabric in a file that has none.
    pub(super) fn begin_with(&self, fabric: &Fabric) -> Result<(), StoreError> {
        let failed = |error| self.failed(error);
        if self.begin().map_err(failed)? > 1 {
            let reason = "it has a fabric already; name a new file".to_owned();
            return Err(StoreError::File { path: self.path.clone(), reason });
        }
        self.replace(fabric).map_err(failed)
    }

    fn write(&self, version: u64, bytes: &[u8]) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        write.open_table(LOG)?.insert(version, bytes)?;
        Ok(write.commit()?)
    }

    fn replace(&self, fabric: &Fabric) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        write.delete_table(PARTS)?;
        write.delete_table(LOG)?;
        {
            write.open_table(LOG)?;
            let mut parts = write.open_table(PARTS)?;
            for (at, part) in (0..).zip(records::parts(fabric)) {
                parts.insert(at, part.as_slice())?;
            }
            write.open_table(NUMBERS)?.insert("base", fabric.version)?;
        }
        Ok(write.commit()?)
    }
}

impl Store for FileStore {
    async fn lead(&mut self, _: impl Fn(&str) + Send + Sync) -> Result<u64, StoreError> {
        self.begin().map_err(|error| self.failed(error))
    }

    async fn load(&mut self) -> Result<Fabric, StoreError> {
        self.read().map_err(|error| self.failed(error))?
    }

    async fn append(&mut self, version: u64, events: &[Event]) -> Result<(), StoreError> {
        self.write(version, &records::write(events)).map_err(|error| self.failed(error))
    }

    async fn compact(&mut self, fabric: &Fabric) -> Result<(), StoreError> {
        self.replace(fabric).map_err(|error| self.failed(error))
    }

    fn base(&self) -> u64 {
        let base = || {
            let numbers = self.database.begin_read()?.open_table(NUMBERS)?;
            Ok::<_, redb::Error>(numbers.get("base")?.map_or(0, |base| base.value()))
        };
        base().unwrap_or(0)
    }
}
