//! Store of a fabric's desired state. It holds the whole fabric at one version, the base, and the events (smallest
//! changes) of each later version, the log.
//!
//! One controller writes at a time: the leader. Each lead has a number, the term. A deposed controller cannot write.
//! There are two stores: one in a file for a single controller, and one in etcd for several controllers.

mod etcd;
mod file;
mod records;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use wedjat_core::state::files::{NameError, advice};

use super::event::Event;
use super::fabric::Fabric;
use super::lease::Lease;
use super::view::Position;
pub use etcd::{EtcdAccess, EtcdStore};
pub use file::FileStore;

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file.
    #[error("store {}: another controller has it; stop that one, name another file, or use etcd for several controllers", .0.display())]
    InUse(PathBuf),
    /// The file cannot be used.
    #[error("store {}: {reason}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Reason, with a remedy.
        reason: String,
    },
    /// The file is damaged, or no store. A retry does not help.
    #[error(
        "store {}: it is damaged, or no store ({reason}); restore it from a copy, or name a new file; start the controller with \
         `--restore` if nodes follow it", .path.display()
    )]
    DamagedFile {
        /// Path of the file.
        path: PathBuf,
        /// Damage found.
        reason: String,
    },
    /// A stored version cannot be read.
    #[error(
        "the store has a version {version} that can't be read ({reason}); it is damaged, or of a later release: restore it from a copy"
    )]
    Damaged {
        /// Version.
        version: u64,
        /// Damage found.
        reason: String,
    },
    /// The store has an older state than the one with which this controller has led.
    #[error(
        "the store has {found}, and this controller has led with {known}: the store was restored from an old copy, or is \
         another; restore a newer copy, or start the controllers with `--restore` to go on from what it has and have the nodes take it"
    )]
    WentBack {
        /// Position in the store.
        found: Position,
        /// Newest position with which this controller has led.
        known: Position,
    },
    /// Another controller leads.
    #[error("this controller does not lead any more; ask the one that does")]
    Deposed,
    /// The store does not answer, or cannot keep more. The requested change may have been made.
    #[error("{0}")]
    Unavailable(String),
}

impl StoreError {
    /// Returns true if the process must end, because a retry cannot help. A damaged version in etcd is not
    /// final: an operator can repair it while the controller retries.
    pub(super) const fn is_final(&self) -> bool {
        matches!(self, Self::DamagedFile { .. })
    }
}

/// Store of a fabric's desired state. The controller's desk, which executes all changes, calls it: [`Store::lead`],
/// [`Store::load`], then [`Store::append`] for each new version.
pub(super) trait Store: Send {
    /// Waits for the lead, and passes the name of the current leader to `report_leader`. Returns the term, which is
    /// larger than those of all earlier leaders. A controller that still leads keeps its term.
    fn lead(
        &mut self,
        report_leader: impl Fn(&str) + Send + Sync,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the stored fabric.
    fn load(&mut self) -> impl Future<Output = Result<Fabric, StoreError>> + Send;

    /// Writes the events of the next version. After an error the outcome is unknown: load the fabric again.
    fn append(
        &mut self,
        version: u64,
        events: &[Event],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Replaces the log by the whole fabric at its version. That version may be higher than the last appended one: a
    /// restored controller raises it above the nodes' versions without events.
    fn compact(&mut self, fabric: &Fabric) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases the lead when this controller ends.
    fn resign(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Returns the lease of the lead obtained by [`Store::lead`]. It never ends for a store of a single controller.
    fn lease(&self) -> Lease {
        Lease::unlimited()
    }

    /// Returns the base, the version of the stored whole fabric. The log has all later versions. The desk compacts it
    /// when they are many. Valid after [`Store::load`].
    fn base(&self) -> u64;
}

/// Creates a controller's file with a first fabric. The controller's benchmark starts from such a file.
///
/// # Errors
/// If the file cannot be made, or holds a fabric already.
pub fn create_file(path: &Path, fabric: &Fabric) -> Result<(), StoreError> {
    FileStore::open(path)?.begin_with(fabric)
}

impl From<(PathBuf, NameError)> for StoreError {
    fn from((path, error): (PathBuf, NameError)) -> Self {
        let reason = match error {
            NameError::Held(_) => return Self::InUse(path),
            NameError::Foreign(path, found) => format!("{} is {found}; remove it", path.display()),
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
