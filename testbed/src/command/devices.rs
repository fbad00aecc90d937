//! Devices and CPUs of the subcommands with ports: memif devices to a leaf process, the CPUs of both sides, and the
//! poll loop.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Failure;

/// Number of polls between two checks for signals.
const POLLS_PER_CHECK: u32 = 64;

/// Returns the CPUs for a leaf or another node, and for its driver. Defaults are the first and the last of the usable
/// CPUs.
pub fn two_cpus(leaf: Option<usize>, driver: Option<usize>) -> (usize, usize) {
    let ids = wedjat::cpus::usable();
    let (first, last) = (ids.first().copied().unwrap_or(0), ids.last().copied().unwrap_or(0));
    (leaf.unwrap_or(first), driver.unwrap_or(last))
}

/// Creates a temporary folder, in memory if possible, so that writes to a leaf's state do not reach a disk.
pub fn scratch(purpose: &str) -> Result<tempfile::TempDir, Failure> {
    let prefix = format!("wedjat-{purpose}-");
    let builder_with_prefix = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        builder
    };
    let folder =
        builder_with_prefix().tempdir_in("/dev/shm").or_else(|_| builder_with_prefix().tempdir());
    folder
        .map_err(|error| format!("cannot make a folder for the files of {purpose}: {error}").into())
}

/// Returns the EAL argument for one end of a memif device between this process and a node. `role` is `server` or
/// `client`. The socket is in `folder`, under `name`. Both ends need the same socket and `id`. `rings` is empty or
/// further arguments after a comma.
pub fn memif(folder: &Path, name: &str, id: u32, role: &str, rings: &str) -> String {
    let socket = folder.join(format!("{name}.sock"));
    format!("{name},role={role},id={id},socket={},socket-abstract=no{rings}", socket.display())
}

/// Polls until `poll` returns true or `stop` is set (relaxed: the flag guards no other data). Reads `stop` only once in
/// `POLLS_PER_CHECK` polls.
pub fn poll_until(stop: &AtomicBool, mut poll: impl FnMut() -> bool) {
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..POLLS_PER_CHECK {
            if poll() {
                return;
            }
        }
    }
}
