//! Hugepages for a test of DPDK with real memory.
#![allow(dead_code, reason = "no test uses all of it")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Hugepages of 2 MiB in their own hugetlbfs folder. Released when dropped.
pub struct Hugepages {
    /// Mount point of the hugetlbfs.
    folder: tempfile::TempDir,
    /// Number of reserved hugepages before the test.
    before: u64,
    /// Lock of the reservation, which all test programs share.
    _lock: fs::File,
}

/// File of the kernel with the number of hugepages; a write changes it.
const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// File of the kernel with the number of free hugepages.
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Reads a number from a file.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Hugepages {
    /// Makes `count` free hugepages available and mounts their folder. First waits for other tests with hugepages,
    /// because each restores the number that it read. Returns `None` if the system refuses, as for any user except
    /// root.
    pub fn reserve(count: u64) -> Option<Self> {
        let path = std::env::temp_dir().join("wedjat-hugepages.lock");
        let lock = fs::File::create(path).ok()?;
        lock.lock().ok()?;
        let before = number(RESERVED)?;
        let wanted = before + count.saturating_sub(number(FREE)?);
        fs::write(RESERVED, wanted.to_string()).ok()?;
        let pages = Self { folder: tempfile::tempdir().ok()?, before, _lock: lock };
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"]).arg(pages.folder.path());
        let mounted = mount.status().is_ok_and(|status| status.success());
        (mounted && number(FREE)? >= count).then_some(pages)
    }
}

impl Hugepages {
    /// Returns the mount point.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).stderr(Stdio::null()).status();
        let _ = fs::write(RESERVED, self.before.to_string());
    }
}
