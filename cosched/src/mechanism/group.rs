//! A cgroup of ours: one folder in each hierarchy that has a controller which a batch is held by.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::hierarchy::{Controller, Hierarchies, System, Version};
use super::made::Made;

/// What the names of all cgroups made here begin with.
pub const PREFIX: &str = "wedjat-";
/// Between two looks whether processes have ended.
const LOOK: Duration = Duration::from_millis(5);

/// Within what a batch is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cores that it may use.
    pub cpus: BTreeSet<usize>,
    /// Processes and threads that it may have.
    pub processes: u32,
}

/// A folder of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Folder {
    version: Version,
    path: PathBuf,
}

/// A cgroup of ours, in all hierarchies.
#[derive(Clone, Debug)]
pub struct Group {
    system: System,
    folders: Vec<Folder>,
}

impl Group {
    /// The paths that [`Group::make`] would make below `parent`, a folder of each hierarchy.
    #[must_use]
    pub fn planned(hierarchies: &Hierarchies, parent: &Path, name: &str) -> Made {
        let below = parent.strip_prefix("/").unwrap_or(parent);
        let folders = hierarchies.folders().into_iter();
        Made::new(
            folders.map(|place| {
                (place.version, place.folder.join(below).join(format!("{PREFIX}{name}")))
            }),
        )
    }

    /// Makes what was planned, and holds whatever will be in it within these limits.
    ///
    /// # Errors
    /// When the system refuses; what was made until then is taken away.
    pub fn make(
        hierarchies: &Hierarchies,
        planned: &Made,
        limits: &Limits,
    ) -> Result<Self, GroupError> {
        let mut group = Self { system: hierarchies.system, folders: Vec::new() };
        let made = planned.folders().try_for_each(|(version, path)| {
            if version == Version::V2 {
                group.delegate(path.parent().unwrap_or(path), hierarchies)?;
            }
            (group.system.make)(path).map_err(|error| GroupError::at(path, error))?;
            group.folders.push(Folder { version, path: path.to_owned() });
            Ok(())
        });
        if let Err(error) = made.and_then(|()| group.limit(limits)) {
            let _ = group.remove(Duration::ZERO);
            return Err(error);
        }
        Ok(group)
    }

    /// What was made before by another process; only what lies where it says and has a name of ours.
    #[must_use]
    pub fn left(made: &Made, system: System) -> Self {
        let folders = made.folders().filter(|(_, path)| path.is_dir());
        let folders = folders.map(|(version, path)| Folder { version, path: path.to_owned() });
        Self { system, folders: folders.collect() }
    }

    /// In version 2 the folder above says which controllers those in it have.
    fn delegate(&self, parent: &Path, hierarchies: &Hierarchies) -> Result<(), GroupError> {
        let file = parent.join("cgroup.subtree_control");
        let now = fs::read_to_string(&file).unwrap_or_default();
        for controller in [Controller::Cpu, Controller::Cpuset, Controller::Pids] {
            let is_here =
                hierarchies.place(controller).is_some_and(|place| place.version == Version::V2);
            if is_here && !now.split_whitespace().any(|name| name == controller.name()) {
                put(&file, &format!("+{}", controller.name()))?;
            }
        }
        Ok(())
    }

    fn limit(&self, limits: &Limits) -> Result<(), GroupError> {
        if let Some(path) = self.file("cpuset.cpus") {
            // A cpuset of version 1 takes no process before it has memory, too; its parent's.
            if let Some(folder) = path.parent()
                && let (mems, Some(parent)) = (folder.join("cpuset.mems"), folder.parent())
                && let Ok(inherited) = fs::read_to_string(parent.join("cpuset.mems"))
            {
                put(&mems, inherited.trim())?;
            }
            let list: Vec<_> = limits.cpus.iter().map(usize::to_string).collect();
            put(&path, &list.join(","))?;
        }
        if let Some(path) = self.file("pids.max") {
            put(&path, &limits.processes.to_string())?;
        }
        Ok(())
    }

    /// The file of this name, in whichever hierarchy it is.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.path.join(name)).find(|path| path.exists())
    }

    /// Where a process is put to be held.
    #[must_use]
    pub fn entrances(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.path.join("cgroup.procs")).collect()
    }

    /// Has all its threads give way to everybody else's; false where this kernel has no such cgroups.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn yield_to_all(&self) -> Result<bool, GroupError> {
        match self.file("cpu.idle") {
            Some(path) => put(&path, "1").map(|()| true),
            None => Ok(false),
        }
    }

    /// Lets it have so many CPUs' time.
    ///
    /// # Errors
    /// When the system refuses, or when there is no file to say it in.
    pub fn set_quota(&self, cpus: f64) -> Result<(), GroupError> {
        // Short, so that what it may use of a period at once is short, too.
        const PERIOD_US: u32 = 20_000;
        const LEAST_US: f64 = 1000.0;
        let quota = (cpus * f64::from(PERIOD_US)).max(LEAST_US) as u64;
        if let Some(path) = self.file("cpu.max") {
            return put(&path, &format!("{quota} {PERIOD_US}"));
        }
        let Some(path) = self.file("cpu.cfs_quota_us") else {
            return Err(GroupError::Missing("a quota (cpu.max, or cpu.cfs_quota_us)"));
        };
        put(&path.with_file_name("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        put(&path, &quota.to_string())
    }

    /// Gives it the least weight that there is.
    ///
    /// # Errors
    /// When the system refuses, or when there is no file to say it in.
    pub fn set_least_weight(&self) -> Result<(), GroupError> {
        if let Some(path) = self.file("cpu.weight") {
            return put(&path, "1");
        }
        match self.file("cpu.shares") {
            Some(path) => put(&path, "2"),
            None => Err(GroupError::Missing("a weight (cpu.weight, or cpu.shares)")),
        }
    }

    /// Stops all its processes where they are, or lets them go on; false where that can't be done.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn freeze(&self, is_frozen: bool) -> Result<bool, GroupError> {
        if let Some(path) = self.file("freezer.state") {
            return put(&path, if is_frozen { "FROZEN" } else { "THAWED" }).map(|()| true);
        }
        match self.file("cgroup.freeze") {
            Some(path) => put(&path, if is_frozen { "1" } else { "0" }).map(|()| true),
            None => Ok(false),
        }
    }

    /// Nanoseconds of CPU time that it has had.
    #[must_use]
    pub fn used_ns(&self) -> Option<u64> {
        if let Some(path) = self.file("cpuacct.usage") {
            return fs::read_to_string(path).ok()?.trim().parse().ok();
        }
        let text = fs::read_to_string(self.file("cpu.stat")?).ok()?;
        let us = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        us.trim().parse::<u64>().ok().map(|us| us * 1000)
    }

    /// Processes that are in it.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<u32> {
        let files = self.entrances();
        let texts = files.iter().map(|path| fs::read_to_string(path).unwrap_or_default());
        let of = |text: String| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
        texts.flat_map(of).filter(|pid| *pid != 0).collect()
    }

    /// Sends a signal to each process that is in it now.
    pub fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, signal); // it may have ended meanwhile
            }
        }
    }

    /// Ends all that is in it, also what forks without end, and waits for that; `reap` is called in between, to wait for children.
    /// False when something is left after so long.
    pub fn kill(&self, patience: Duration, mut reap: impl FnMut()) -> bool {
        let began = Instant::now();
        // From now on nothing in it becomes more.
        if let Some(path) = self.file("pids.max") {
            let _ = put(&path, "0");
        }
        loop {
            match self.file("cgroup.kill").is_some_and(|path| put(&path, "1").is_ok()) {
                true => {}
                // Frozen, none of them forks while the others are killed; what is frozen dies when it may go on.
                false => {
                    let _ = self.freeze(true);
                    self.signal(Signal::KILL);
                }
            }
            let _ = self.freeze(false);
            reap();
            if self.processes().is_empty() {
                return true;
            }
            if began.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Takes its folders away, once nothing is in it; what ends takes a moment to be out.
    ///
    /// # Errors
    /// When one is left after so long.
    pub fn remove(&self, patience: Duration) -> Result<(), GroupError> {
        let began = Instant::now();
        for Folder { path, .. } in self.folders.iter().rev() {
            loop {
                match (self.system.remove)(path) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if began.elapsed() >= patience => {
                        return Err(GroupError::at(path, error));
                    }
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        }
        Ok(())
    }
}

/// Writes into a control file.
fn put(path: &Path, text: &str) -> Result<(), GroupError> {
    let written = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
    written.map_err(|error| GroupError::at(path, error))
}

/// Why a batch can't be held.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The system refused.
    #[error("cgroup {}: {error}{}", path.display(), advice(error))]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// This kernel, or this cgroup, has no such file.
    #[error(
        "this machine's cgroups have no file for {0}: mount the controller cpu, or enable it in cgroup.subtree_control; or use --policy idle"
    )]
    Missing(&'static str),
}

impl GroupError {
    fn at(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; start as root, or name a cgroup that is delegated to this user with --cgroup"
        }
        io::ErrorKind::NotFound => "; --cgroup names a folder that each hierarchy has",
        io::ErrorKind::AlreadyExists => "; it is another's and left alone",
        _ => "",
    }
}
