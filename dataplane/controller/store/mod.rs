//! What keeps a fabric's truth: a list of what each version changed, and now and then all of it at one version. One writes at a
//! time, and whoever does not any more can't.

mod etcd;
mod file;
mod records;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use super::event::Event;
use super::fabric::Fabric;
use super::lease::Lease;
use crate::state::files::{NameError, advice};
pub use etcd::{EtcdAccess, EtcdStore};
pub use file::FileStore;

/// Why a store does not keep, or does not give, what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file.
    #[error("store {}: another controller has it; stop that one, name another file, or use etcd for several controllers", .0.display())]
    InUse(PathBuf),
    /// The file can't be used.
    #[error("store {}: {reason}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not, and what helps.
        reason: String,
    },
    /// The file is damaged, or is no store. Trying again does not help.
    #[error(
        "store {}: it is damaged, or no store ({reason}); restore it from a copy, or name a new file; start the controller with \
         `--restore` if nodes follow it", .path.display()
    )]
    DamagedFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What is kept can't be read.
    #[error(
        "the store has a version {version} that can't be read ({reason}); it is damaged, or of a later release: restore it from a copy"
    )]
    Damaged {
        /// The version.
        version: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// It has gone back.
    #[error(
        "the store has version {} of term {}, and this controller has led with version {} of term {}: the store was restored from \
         an old copy, or is another; restore a newer copy, or start the controllers with `--restore` to go on from what it has and have \
         the nodes take it", .found.1, .found.0, .known.1, .known.0
    )]
    WentBack {
        /// Term and version that it has.
        found: (u64, u64),
        /// Those that it had.
        known: (u64, u64),
    },
    /// Somebody else leads.
    #[error("this controller does not lead any more; ask the one that does")]
    Deposed,
    /// The store is out of reach, or can't keep more; what was asked for may have been done.
    #[error("{0}")]
    Unavailable(String),
}

impl StoreError {
    /// The store can't be used until a person mends it: the process ends.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::DamagedFile { .. })
    }
}

/// What keeps the truth.
pub(super) trait Store: Send {
    /// Waits until this controller is the one that writes, and tells who does meanwhile; returns its term, which is larger than all
    /// before.
    fn lead(
        &mut self,
        told: impl Fn(&str) + Send + Sync,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// All that is kept.
    fn load(&mut self) -> impl Future<Output = Result<Fabric, StoreError>> + Send;

    /// Keeps what led to the next version. After an error nobody knows whether it is kept: load it again.
    fn append(
        &mut self,
        version: u64,
        events: &[Event],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps all of it at this version instead of what led there. The version may be higher than the last one that was appended.
    fn compact(&mut self, fabric: &Fabric) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lets another write, as this controller ends.
    fn resign(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// The lease of the lead that [`Store::lead`] gave.
    fn lease(&self) -> Lease {
        Lease::unlimited()
    }

    /// Version that the store has as a whole, with the log of all versions after it; known after [`Store::load`].
    fn base(&self) -> u64;
}

/// Makes a file that a controller begins with this fabric from.
///
/// # Errors
/// When it can't be made, or has one already.
pub fn keep(path: &Path, fabric: &Fabric) -> Result<(), StoreError> {
    FileStore::open(path)?.begin_with(fabric)
}

impl From<(PathBuf, NameError)> for StoreError {
    fn from((path, error): (PathBuf, NameError)) -> Self {
        let reason = match error {
            NameError::Held(_) => return Self::InUse(path),
            NameError::Foreign(at, found) => format!("{} is {found}; remove it", at.display()),
            NameError::Io(error) => return (path, error).into(),
        };
        Self::File { path, reason }
    }
}

impl From<(PathBuf, io::Error)> for StoreError {
    fn from((path, error): (PathBuf, io::Error)) -> Self {
        let reason = format!("{error}{}", advice(&error));
        Self::File { path, reason }
    }
}
