//! The socket beside a node's state file, over which its user changes and watches it.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::state::files::{Found, Identity, NameError, NameLock, Scratch, advice};

/// The control's socket of a node with this state file.
#[must_use]
pub fn socket_path(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".ctl");
    PathBuf::from(name)
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process has it.
    #[error("control socket {}: another node has it{}; stop that one, or give this one another state file", .path.display(), .pid.map_or_else(String::new, |pid| format!(", process {pid}")))]
    InUse {
        /// The socket.
        path: PathBuf,
        /// That process, if known.
        pid: Option<u64>,
    },
    /// Something else lies there.
    #[error("control socket {}: {found} lies there; remove it, or name another state file", .path.display())]
    Foreign {
        /// Where.
        path: PathBuf,
        /// What.
        found: String,
    },
    /// The system refused.
    #[error("control socket {}: {error}{}", .path.display(), advice(.error))]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// A socket that only its owner may connect to, for as long as this lives.
#[derive(Debug)]
pub struct OwnersSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
    identity: Identity,
    _name: NameLock,
}

impl OwnersSocket {
    /// Listens at `path`; one that a dead process left is replaced, and no link is followed.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let io = |error| SocketError::Io { path: path.to_owned(), error };
        left_at(path)?; // also where nothing can be made beside it
        let name = NameLock::take(path).map_err(|error| match error {
            NameError::Held(pid) => SocketError::InUse { path: path.to_owned(), pid },
            NameError::Foreign(path, found) => SocketError::Foreign { path, found },
            NameError::Io(error) => io(error),
        })?;
        let left = left_at(path)?;
        let (socket, identity) =
            Scratch::stream_socket(path).and_then(|new| new.put_at(path, left)).map_err(io)?;
        let listener = Some(UnixListener::from(socket));
        Ok(Self { listener, path: path.to_owned(), identity, _name: name })
    }

    /// What it listens with, once.
    pub fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for OwnersSocket {
    fn drop(&mut self) {
        self.identity.remove_at(&self.path);
    }
}

/// Whether a socket of this user or root lies there; nothing else may.
fn left_at(path: &Path) -> Result<bool, SocketError> {
    let found = Found::at(path);
    let found = found.map_err(|error| SocketError::Io { path: path.to_owned(), error })?;
    match found {
        None => Ok(false),
        Some(found) if found.is_socket() && found.is_own_or_roots() => Ok(true),
        Some(found) => Err(SocketError::Foreign { path: path.to_owned(), found: found.describe() }),
    }
}
