//! Socket beside a node's state file, over which its user changes and watches the node (`wedjat ctl`).

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use wedjat_core::state::files::{ExistingFile, FileIdentity, NameError, NameLock, Scratch, advice};

/// Returns the path of the control's socket for this state file.
#[must_use]
pub fn socket_path(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".ctl");
    PathBuf::from(name)
}

/// Reason why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process uses it.
    #[error("control socket {}: another node uses it{}; stop that node, or give this one another state file", .path.display(), .pid.map_or_else(String::new, |pid| format!(", process {pid}")))]
    InUse {
        /// Path of the socket.
        path: PathBuf,
        /// Process that uses it, if known.
        pid: Option<u64>,
    },
    /// Another kind of file, or a socket of another user, has its path.
    #[error("control socket {}: {found} exists there; remove it, or name another state file", .path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// Description of the file.
        found: String,
    },
    /// The system refused.
    #[error("control socket {}: {error}{}", .path.display(), advice(.error))]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Listening socket that only its owner may connect to. Removed on drop.
#[derive(Debug)]
pub struct OwnersSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Identity of the socket's file: only that file is removed, not one that replaced it.
    identity: FileIdentity,
    /// Keeps other nodes off the path.
    _name: NameLock,
}

impl OwnersSocket {
    /// Listens at `path`. Replaces the socket of a dead process. Does not follow links.
    ///
    /// # Errors
    /// If another node uses the path, a file other than this user's or root's socket has it, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let io = |error| SocketError::Io { path: path.to_owned(), error };
        socket_at(path)?; // names a foreign file even if no lock file can be created
        let name = NameLock::take(path).map_err(|error| match error {
            NameError::Held(pid) => SocketError::InUse { path: path.to_owned(), pid },
            NameError::Foreign(path, found) => SocketError::Foreign { path, found },
            NameError::Io(error) => io(error),
        })?;
        // With the lock held, a socket there belongs to a dead process.
        let is_stale = socket_at(path)?;
        let (socket, identity) =
            Scratch::stream_socket(path).and_then(|new| new.put_at(path, is_stale)).map_err(io)?;
        let listener = Some(UnixListener::from(socket));
        Ok(Self { listener, path: path.to_owned(), identity, _name: name })
    }

    /// Takes the listener, for the server. `self` keeps the lock and removes the file on drop. Returns `None` after
    /// the first call.
    pub fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for OwnersSocket {
    fn drop(&mut self) {
        self.identity.remove_at(&self.path);
    }
}

/// Returns true if a socket of this user or of root has this path. Any other file is an error.
fn socket_at(path: &Path) -> Result<bool, SocketError> {
    let found = ExistingFile::at(path);
    let found = found.map_err(|error| SocketError::Io { path: path.to_owned(), error })?;
    match found {
        None => Ok(false),
        Some(found) if found.is_socket() && found.is_own_or_roots() => Ok(true),
        Some(found) => Err(SocketError::Foreign { path: path.to_owned(), found: found.describe() }),
    }
}
