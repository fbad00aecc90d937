//! Cgroup of a batch job, which is background work on the CPUs of the workers: one folder in each hierarchy that has a
//! needed controller. Version 2 has one hierarchy for all controllers, version 1 several.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::folders::{CgroupFolders, PREFIX};
use super::hierarchy::{Controller, FolderFunctions, Hierarchies, Version};

/// Interval between checks for exited processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Limits of a batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// CPUs that it may use.
    pub cpus: BTreeSet<usize>,
    /// Maximum number of processes and threads.
    pub processes: u32,
}

/// A folder of the cgroup that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Folder {
    /// Version of its hierarchy.
    version: Version,
    path: PathBuf,
}

/// The cgroup of a batch job: a folder in each hierarchy that has a needed controller.
#[derive(Clone, Debug)]
pub struct Group {
    folder_functions: FolderFunctions,
    /// Folders in the order of their creation.
    folders: Vec<Folder>,
}

impl Group {
    /// Returns the paths that [`Group::make`] would create below `parent`, a path relative to each mount point. The
    /// caller saves them first, so that another process can remove them after a crash.
    #[must_use]
    pub fn planned(hierarchies: &Hierarchies, parent: &Path, name: &str) -> CgroupFolders {
        let below = parent.strip_prefix("/").unwrap_or(parent);
        let folders = hierarchies.folders().into_iter();
        CgroupFolders::new(folders.map(|mount_point| {
            (mount_point.version, mount_point.folder.join(below).join(format!("{PREFIX}{name}")))
        }))
    }

    /// Creates the planned folders and sets the limits.
    ///
    /// # Errors
    /// If the system refuses. The folders created so far are removed, and controllers enabled in the parent stay so.
    pub fn make(
        hierarchies: &Hierarchies,
        planned: &CgroupFolders,
        limits: &Limits,
    ) -> Result<Self, GroupError> {
        let mut group =
            Self { folder_functions: hierarchies.folder_functions, folders: Vec::new() };
        let result = planned.folders().try_for_each(|(version, path)| {
            if version == Version::V2 {
                group.enable_controllers(path.parent().unwrap_or(path), hierarchies)?;
            }
            (group.folder_functions.make)(path).map_err(|error| GroupError::at(path, error))?;
            group.folders.push(Folder { version, path: path.to_owned() });
            Ok(())
        });
        if let Err(error) = result.and_then(|()| group.limit(limits)) {
            let _ = group.remove(Duration::ZERO);
            return Err(error);
        }
        Ok(group)
    }

    /// Returns the cgroup that a killed process recorded, so that the caller can remove its leftovers. Skips folders
    /// that no longer exist.
    #[must_use]
    pub fn reopen(made: &CgroupFolders, folder_functions: FolderFunctions) -> Self {
        let folders = made.folders().filter(|(_, path)| path.is_dir());
        let folders = folders.map(|(version, path)| Folder { version, path: path.to_owned() });
        Self { folder_functions, folders: folders.collect() }
    }

    /// Enables the controllers of version 2 in the parent folder. Otherwise a new folder lacks their control files.
    fn enable_controllers(
        &self,
        parent: &Path,
        hierarchies: &Hierarchies,
    ) -> Result<(), GroupError> {
        let file = parent.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&file).unwrap_or_default();
        for controller in [Controller::Cpu, Controller::Cpuset, Controller::Pids] {
            let is_v2 = hierarchies
                .mount_point(controller)
                .is_some_and(|mount_point| mount_point.version == Version::V2);
            if is_v2 && !enabled.split_whitespace().any(|name| name == controller.name()) {
                write_file(&file, &format!("+{}", controller.name()))?;
            }
        }
        Ok(())
    }

    /// Sets the CPUs and the maximum number of processes.
    fn limit(&self, limits: &Limits) -> Result<(), GroupError> {
        if let Some(path) = self.file("cpuset.cpus") {
            // A cpuset of version 1 accepts processes only once it has memory nodes: the group copies those of its
            // parent.
            if let Some(folder) = path.parent()
                && let (mems, Some(parent)) = (folder.join("cpuset.mems"), folder.parent())
                && let Ok(inherited) = fs::read_to_string(parent.join("cpuset.mems"))
            {
                write_file(&mems, inherited.trim())?;
            }
            let list: Vec<_> = limits.cpus.iter().map(usize::to_string).collect();
            write_file(&path, &list.join(","))?;
        }
        if let Some(path) = self.file("pids.max") {
            write_file(&path, &limits.processes.to_string())?;
        }
        Ok(())
    }

    /// Returns the path of a control file; `None` if no hierarchy has it.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.path.join(name)).find(|path| path.exists())
    }

    /// Returns the `cgroup.procs` file of each folder. A process joins by a write of its id to each, or of 0. A read
    /// gives the ids of the processes inside.
    #[must_use]
    pub fn entrances(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.path.join("cgroup.procs")).collect()
    }

    /// Puts the group into the idle class, so that its threads yield to all others. Returns false if the
    /// kernel lacks idle cgroups.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set_idle_class(&self) -> Result<bool, GroupError> {
        match self.file("cpu.idle") {
            Some(path) => write_file(&path, "1").map(|()| true),
            None => Ok(false),
        }
    }

    /// Sets the quota to the time of `cpus` CPUs.
    ///
    /// # Errors
    /// If the system refuses, or the control file is missing.
    pub fn set_quota(&self, cpus: f64) -> Result<(), GroupError> {
        // Shorter than the kernel's default of 100 ms, so that the batch runs for shorter times without a pause.
        const PERIOD_US: u32 = 20_000;
        // Smallest quota that the kernel accepts.
        const LEAST_US: f64 = 1000.0;
        let quota = (cpus * f64::from(PERIOD_US)).max(LEAST_US) as u64;
        if let Some(path) = self.file("cpu.max") {
            return write_file(&path, &format!("{quota} {PERIOD_US}"));
        }
        let Some(path) = self.file("cpu.cfs_quota_us") else {
            return Err(GroupError::Missing("a quota (cpu.max, or cpu.cfs_quota_us)"));
        };
        write_file(&path.with_file_name("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        write_file(&path, &quota.to_string())
    }

    /// Sets the smallest CPU weight, so that other threads get nearly all of a contended CPU.
    ///
    /// # Errors
    /// If the system refuses, or the control file is missing.
    pub fn set_least_weight(&self) -> Result<(), GroupError> {
        if let Some(path) = self.file("cpu.weight") {
            return write_file(&path, "1"); // the kernel's minimum is 1 here, and 2 in version 1
        }
        match self.file("cpu.shares") {
            Some(path) => write_file(&path, "2"),
            None => Err(GroupError::Missing("a weight (cpu.weight, or cpu.shares)")),
        }
    }

    /// Freezes or thaws all processes. Returns false if no hierarchy has a freezer.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set_frozen(&self, is_frozen: bool) -> Result<bool, GroupError> {
        if let Some(path) = self.file("freezer.state") {
            return write_file(&path, if is_frozen { "FROZEN" } else { "THAWED" }).map(|()| true);
        }
        match self.file("cgroup.freeze") {
            Some(path) => write_file(&path, if is_frozen { "1" } else { "0" }).map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the consumed CPU time in nanoseconds; `None` if the system does not report it.
    #[must_use]
    pub fn used_ns(&self) -> Option<u64> {
        if let Some(path) = self.file("cpuacct.usage") {
            return fs::read_to_string(path).ok()?.trim().parse().ok();
        }
        let text = fs::read_to_string(self.file("cpu.stat")?).ok()?;
        let us = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        us.trim().parse::<u64>().ok().map(|us| us * 1000)
    }

    /// Returns the ids of its processes.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<u32> {
        let files = self.entrances();
        let texts = files.iter().map(|path| fs::read_to_string(path).unwrap_or_default());
        let pids =
            |text: String| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
        // The kernel shows a process of an outer pid namespace as 0.
        texts.flat_map(pids).filter(|pid| *pid != 0).collect()
    }

    /// Sends a signal to each process in the group.
    pub fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, signal); // the process may have exited meanwhile
            }
        }
    }

    /// Kills all processes, also those that keep forking, and waits for their exit. Calls `reap` in between
    /// to reap children. Returns false if a process is left after `timeout`.
    pub fn kill(&self, timeout: Duration, mut reap: impl FnMut()) -> bool {
        let began = Instant::now();
        // With the pids controller, no process can fork from here on.
        if let Some(path) = self.file("pids.max") {
            let _ = write_file(&path, "0");
        }
        loop {
            // Linux 5.14 and later kill a whole cgroup of version 2 at once. Otherwise each process needs a signal.
            match self.file("cgroup.kill").is_some_and(|path| write_file(&path, "1").is_ok()) {
                true => {}
                // A frozen process cannot fork while others are killed. It dies when thawed.
                false => {
                    let _ = self.set_frozen(true);
                    self.signal(Signal::KILL);
                }
            }
            let _ = self.set_frozen(false);
            reap();
            if self.processes().is_empty() {
                return true;
            }
            if began.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Removes the folders. Exited processes may take a moment to leave them.
    ///
    /// # Errors
    /// If a folder is left after `timeout`.
    pub fn remove(&self, timeout: Duration) -> Result<(), GroupError> {
        let began = Instant::now();
        for Folder { path, .. } in self.folders.iter().rev() {
            loop {
                match (self.folder_functions.remove)(path) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if began.elapsed() >= timeout => {
                        return Err(GroupError::at(path, error));
                    }
                    Err(_) => std::thread::sleep(CHECK_INTERVAL),
                }
            }
        }
        Ok(())
    }
}

/// Writes a control file.
fn write_file(path: &Path, text: &str) -> Result<(), GroupError> {
    let result = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    result.map_err(|error| GroupError::at(path, error))
}

/// Reason why the cgroup of a batch job cannot be created, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The system refused.
    #[error("cgroup {}: {error}{}", path.display(), advice(error))]
    Io {
        /// Folder or file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The kernel or this cgroup lacks a control file.
    #[error(
        "the cgroup has no file for {0}; mount the cpu controller, enable it in cgroup.subtree_control, or use --policy idle"
    )]
    Missing(&'static str),
}

impl GroupError {
    /// Returns the system's error about a folder or file.
    fn at(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// Returns the remedy for an error of the system, as the end of a message.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; start as root, or give --cgroup a cgroup delegated to this user"
        }
        io::ErrorKind::NotFound => "; give --cgroup a folder that exists in each hierarchy",
        io::ErrorKind::AlreadyExists => "; another program made it, so it is left alone",
        _ => "",
    }
}
