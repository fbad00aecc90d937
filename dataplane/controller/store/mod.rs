//! What keeps a fabric's truth: a list of what each version changed, and now and then all of it at one version. One writes at a
//! time, and whoever does not any more can't.

mod etcd;
mod file;
mod records;

use std::io;
use std::path::{Path, PathBuf};

use super::event::Event;
use super::fabric::Fabric;
use super::lease::Lease;
use crate::state::files::NameError;
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
         an old copy, or is another; restart the controllers to go on from what it has, correct that with `wedjat ctl`, and restart \
         the nodes, which stay as they are until then", .found.1, .found.0, .known.1, .known.0
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

    /// Keeps all of it at this version instead of what led there.
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
    let store = FileStore::open(path)?;
    store.begin_with(fabric)
}

impl From<(PathBuf, NameError)> for StoreError {
    fn from((path, error): (PathBuf, NameError)) -> Self {
        let reason = match error {
            NameError::Held(_) => return Self::InUse(path),
            NameError::Foreign(at, found) => format!("{} is {found}; remove it", at.display()),
            NameError::Io(error) => error.to_string(),
        };
        Self::File { path, reason }
    }
}

impl From<(PathBuf, io::Error)> for StoreError {
    fn from((path, error): (PathBuf, io::Error)) -> Self {
        Self::File { path, reason: error.to_string() }
    }
}
