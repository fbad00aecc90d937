//! Tests on fake cgroup trees of both versions, and on this machine's cgroups where available. A fake tree is a
//! temporary folder in which the tests write the files that the kernel would show.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};
use tempfile::TempDir;

use super::*;
use crate::share::Share;

/// The kernel's number of the idle class.
const IDLE_CLASS: u32 = libc::SCHED_IDLE as u32;

/// Creates a cgroup with the kernel's files; the hierarchy in its path selects them.
fn make(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    let text = path.to_string_lossy().into_owned();
    let files: &[&str] = if text.contains("unified") {
        &[
            "cgroup.procs",
            "cgroup.freeze",
            "cpu.stat",
            "cpu.max",
            "cpu.weight",
            "cpu.idle",
            "cpuset.cpus",
            "cpuset.mems",
            "pids.max",
        ]
    } else if text.contains("/cpuset/") {
        &["cgroup.procs", "cpuset.cpus", "cpuset.mems"]
    } else if text.contains("/freezer/") {
        &["cgroup.procs", "freezer.state"]
    } else if text.contains("/pids/") {
        &["cgroup.procs", "pids.max"]
    } else {
        &["cgroup.procs", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"]
    };
    files.iter().try_for_each(|name| fs::write(path.join(name), ""))
}

/// Removes a cgroup as the kernel does: its files do not prevent that, but processes do.
fn remove(path: &Path) -> io::Result<()> {
    match fs::read_to_string(path.join("cgroup.procs"))?.is_empty() {
        true => fs::remove_dir_all(path),
        false => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

/// Functions for fake cgroups in ordinary folders.
const FAKE: FolderFunctions = FolderFunctions { make, remove };

/// Fake machine: its `proc/mounts` and cgroups below a temporary folder.
struct Tree(TempDir);

impl Tree {
    /// Creates a machine with these mounts.
    fn with(mounts: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.write("proc/mounts", mounts);
        tree
    }

    /// Creates a machine with one hierarchy of version 1 per controller. It lacks CPU accounting, so that a test sees
    /// a missing controller.
    fn v1() -> Self {
        let mounts = ["cpu", "cpuset", "pids", "freezer"]
            .map(|name| format!("cgroup /sys/fs/cgroup/{name} cgroup rw,relatime,{name} 0 0\n"));
        let tree = Self::with(&mounts.concat());
        tree.write("sys/fs/cgroup/cpuset/cpuset.mems", "0-1\n");
        for name in ["cpu", "pids", "freezer"] {
            tree.write(&format!("sys/fs/cgroup/{name}/cgroup.procs"), "");
        }
        tree
    }

    /// Creates a machine with version 2 and these controllers.
    fn v2(controllers: &str) -> Self {
        let tree = Self::with("cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n");
        tree.write("sys/fs/cgroup/unified/cgroup.controllers", controllers);
        tree.write("sys/fs/cgroup/unified/cgroup.subtree_control", "");
        tree
    }

    /// Writes a file of the machine.
    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Reads a file below the machine's cgroups.
    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.path().join("sys/fs/cgroup").join(path)).unwrap()
    }

    /// Finds the hierarchies of the machine.
    fn hierarchies(&self) -> Hierarchies {
        Hierarchies::below(self.0.path(), FAKE)
    }

    /// Creates the cgroup of a batch named `one`.
    fn group(&self) -> Result<Group, GroupError> {
        let hierarchies = self.hierarchies();
        let planned = Group::planned(&hierarchies, Path::new("/"), "one");
        Group::make(&hierarchies, &planned, &limits())
    }
}

/// Returns limits of two CPUs and 40 processes.
fn limits() -> Limits {
    Limits { cpus: [2, 5].into(), processes: 40 }
}

// promise: batch.2
#[test]
fn cgroup_v1_controllers_hold_a_batch() {
    let tree = Tree::v1();
    assert_eq!(tree.hierarchies().missing().collect::<Vec<_>>(), [Controller::Cpuacct]);
    let group = tree.group().unwrap();
    assert_eq!(tree.read("cpuset/wedjat-one/cpuset.cpus"), "2,5");
    assert_eq!(tree.read("cpuset/wedjat-one/cpuset.mems"), "0-1");
    assert_eq!(tree.read("pids/wedjat-one/pids.max"), "40");
    let mut quota = Quota::of(2);
    quota.give(&group, Share::at_most(0.5)).unwrap();
    // Half of two CPUs is the time of one: a quota of a whole period of 20 ms.
    assert_eq!(tree.read("cpu/wedjat-one/cpu.cfs_quota_us"), "20000");
    assert_eq!(tree.read("cpu/wedjat-one/cpu.cfs_period_us"), "20000");
    quota.give(&group, Share::NONE).unwrap();
    assert_eq!(tree.read("freezer/wedjat-one/freezer.state"), "FROZEN");
    quota.give(&group, Share::at_most(0.1)).unwrap();
    assert_eq!(tree.read("freezer/wedjat-one/freezer.state"), "THAWED");
    assert_eq!(tree.read("cpu/wedjat-one/cpu.cfs_quota_us"), "4000");
    let mut weight = Weight::default();
    weight.give(&group, Share::MOST).unwrap();
    assert_eq!(tree.read("cpu/wedjat-one/cpu.shares"), "2");
    weight.give(&group, Share::NONE).unwrap();
    assert_eq!(tree.read("freezer/wedjat-one/freezer.state"), "FROZEN");
    weight.give(&group, Share::at_most(0.1)).unwrap();
    assert_eq!(tree.read("freezer/wedjat-one/freezer.state"), "THAWED");
    assert!(!group.set_idle_class().unwrap(), "this kernel has no cpu.idle");
    group.remove(Duration::ZERO).unwrap();
    assert!(!tree.0.path().join("sys/fs/cgroup/cpu/wedjat-one").exists());
}

// promise: batch.2
#[test]
fn cgroup_v2_controllers_hold_a_batch() {
    let tree = Tree::v2("cpuset cpu io pids\n");
    assert_eq!(tree.hierarchies().missing().count(), 0);
    let group = tree.group().unwrap();
    // Each write replaces the fake file's text. The kernel would add the controller to the list.
    assert_eq!(
        tree.read("unified/cgroup.subtree_control"),
        "+pids",
        "all were requested, the last is visible"
    );
    assert_eq!(tree.read("unified/wedjat-one/cpuset.cpus"), "2,5");
    assert_eq!(tree.read("unified/wedjat-one/pids.max"), "40");
    assert!(group.set_idle_class().unwrap());
    assert_eq!(tree.read("unified/wedjat-one/cpu.idle"), "1");
    let mut quota = Quota::of(2);
    quota.give(&group, Share::at_most(0.3)).unwrap();
    assert_eq!(tree.read("unified/wedjat-one/cpu.max"), "12000 20000");
    quota.give(&group, Share::NONE).unwrap();
    assert_eq!(tree.read("unified/wedjat-one/cgroup.freeze"), "1");
    quota.give(&group, Share::at_most(0.1)).unwrap();
    assert_eq!(tree.read("unified/wedjat-one/cpu.max"), "4000 20000");
    assert_eq!(tree.read("unified/wedjat-one/cgroup.freeze"), "0");
    tree.write("sys/fs/cgroup/unified/wedjat-one/cpu.stat", "nr_periods 3\nusage_usec 17\n");
    assert_eq!(group.used_ns(), Some(17_000));
    group.remove(Duration::ZERO).unwrap();
}

// promise: batch.2
#[test]
fn missing_controllers_are_named_and_foreign_groups_kept() {
    // A machine with the controller pids only.
    let bare = Tree::v2("pids\n");
    let missing: Vec<_> = bare.hierarchies().missing().map(Controller::name).collect();
    assert_eq!(missing, ["cpu", "cpuset"]);
    // A kernel without the controller would not have created the file.
    let group = bare.group().unwrap();
    fs::remove_file(bare.0.path().join("sys/fs/cgroup/unified/wedjat-one/cpu.max")).unwrap();
    let error = Quota::of(1).give(&group, Share::MOST).unwrap_err().to_string();
    assert!(error.contains("no file for a quota (cpu.max"), "{error}");

    // Another program has made a cgroup of the same name in one of the hierarchies.
    let tree = Tree::v1();
    tree.write("sys/fs/cgroup/pids/wedjat-one/kept", "by another");
    let error = tree.group().unwrap_err().to_string();
    assert!(error.contains("pids/wedjat-one") && error.contains("another program"), "{error}");
    assert_eq!(tree.read("pids/wedjat-one/kept"), "by another");
    let made_before = tree.0.path().join("sys/fs/cgroup/cpu/wedjat-one");
    assert!(!made_before.exists(), "the groups made so far are removed");
    let nothing = Tree::with("tmpfs /tmp tmpfs rw 0 0\n");
    assert_eq!(nothing.hierarchies().missing().count(), Controller::ALL.len());
}

// promise: batch.2
#[test]
fn failed_share_is_set_by_the_next_call() {
    let tree = Tree::v2("cpuset cpu io pids\n");
    let group = tree.group().unwrap();
    let file = |name: &str| tree.0.path().join("sys/fs/cgroup/unified/wedjat-one").join(name);
    let (mut quota, mut weight) = (Quota::of(1), Weight::default());
    let half = Share::at_most(0.5);
    for (actuator, name) in
        [(&mut quota as &mut dyn Actuator, "cpu.max"), (&mut weight, "cpu.weight")]
    {
        // Without its control file, the call fails.
        fs::remove_file(file(name)).unwrap();
        actuator.give(&group, half).unwrap_err();
        fs::write(file(name), "").unwrap();
        actuator.give(&group, half).unwrap();
        assert_ne!(fs::read_to_string(file(name)).unwrap(), "", "{name}");
    }
    // A frozen batch that could not be thawed is thawed by the next call.
    quota.give(&group, Share::NONE).unwrap();
    fs::remove_file(file("cpu.max")).unwrap();
    quota.give(&group, half).unwrap_err();
    fs::write(file("cpu.max"), "").unwrap();
    quota.give(&group, half).unwrap();
    assert_eq!(tree.read("unified/wedjat-one/cgroup.freeze"), "0");
    group.remove(Duration::ZERO).unwrap();
}

#[test]
fn saved_list_removes_only_own_folders() {
    let tree = Tree::v1();
    let hierarchies = tree.hierarchies();
    let planned = Group::planned(&hierarchies, Path::new("/"), "one");
    let text = serde_json::to_string(&planned).unwrap();
    Group::make(&hierarchies, &planned, &limits()).unwrap();
    let read: CgroupFolders = serde_json::from_str(&text).unwrap();
    assert_eq!(read, planned);
    Group::reopen(&read, FAKE).remove(Duration::ZERO).unwrap();
    assert!(planned.paths().all(|path| !path.exists()) && planned.paths().count() == 4);
    // A list that another program wrote.
    let foreign = tree.0.path().join("sys/fs/cgroup/cpu/system.slice");
    make(&foreign).unwrap();
    let forged: CgroupFolders =
        serde_json::from_value(serde_json::json!([["V1", foreign], ["V1", "wedjat-relative"]]))
            .unwrap();
    assert_eq!(forged.paths().count(), 0);
    Group::reopen(&forged, FAKE).remove(Duration::ZERO).unwrap();
    assert!(foreign.exists());
}

#[test]
fn undeletable_folder_is_reported_by_path() {
    let tree = Tree::v1();
    let group = tree.group().unwrap();
    // A process that stays in the cgroup.
    tree.write("sys/fs/cgroup/freezer/wedjat-one/cgroup.procs", "1\n");
    let error = group.remove(Duration::from_millis(20)).unwrap_err().to_string();
    assert!(error.contains("freezer/wedjat-one"), "{error}");
}

#[test]
fn process_identity_ends_with_the_process() {
    let own = Process::own();
    assert!(own.is_alive());
    assert!(
        !Process { started: own.started + 1, ..own }.is_alive(),
        "another one of the same number"
    );
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = Process::of(child.id()).unwrap();
    assert!(process.is_alive() && threads_of(child.id()) == [child.id()]);
    set_class(child.id(), Class::Idle).unwrap();
    let scheduling = Scheduling::of(child.id()).unwrap();
    assert!(
        scheduling.class == IDLE_CLASS && !scheduling.is_real_time() && !scheduling.cpus.is_empty()
    );
    child.kill().unwrap();
    // Exited, but not reaped yet.
    let began = Instant::now();
    while process.is_alive() && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!process.is_alive());
    child.wait().unwrap();
    assert_eq!(Process::of(child.id()).filter(|now| *now == process), None);
}

/// Creates a group in this machine's cgroups. Returns it with its folders and limits. Returns `None` on a machine
/// without hierarchies, or if the system refuses, for example to a user without the right; the test is then skipped.
fn real(name: &str) -> Option<(Group, CgroupFolders, Limits)> {
    let hierarchies = Hierarchies::of_this_machine();
    let planned = Group::planned(
        &hierarchies,
        Path::new("/"),
        &format!("test-{}-{name}", std::process::id()),
    );
    let cpus = Scheduling::of(std::process::id()).unwrap().cpus;
    let limits = Limits { cpus: cpus.into_iter().take(1).collect(), processes: 60 };
    match Group::make(&hierarchies, &planned, &limits) {
        Ok(group) if !group.entrances().is_empty() => Some((group, planned, limits)),
        Ok(_) => None,
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// Checks that a batch lacks the capability to use real-time classes, even if it is ambient in the calling thread.
fn check_ambient_capability(group: &Group, limits: &Limits) {
    let nice = CapabilitySet::SYS_NICE;
    let mut sets = capabilities(None).unwrap();
    sets.inheritable.insert(nice);
    let is_inheritable = set_capabilities(None, sets).is_ok();
    if !is_inheritable || configure_capability_in_ambient_set(nice, true).is_err() {
        println!("SKIPPED: this process lacks CAP_SYS_NICE");
        return;
    }
    let mut command = Command::new("grep");
    command.args(["-E", "Cap(Inh|Amb)", "/proc/self/status"]).stdin(Stdio::null());
    let output = in_group(&mut command, group, limits, Class::Idle).unwrap().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let masks: Vec<_> = text.lines().map(|line| line.split_once(':').unwrap().1.trim()).collect();
    assert_eq!(masks.len(), 2, "{text}");
    for mask in masks {
        assert_eq!(u64::from_str_radix(mask, 16).unwrap() & nice.bits(), 0, "{text}");
    }
}

// promise: batch.2
#[test]
fn batch_loses_an_ambient_capability() {
    let Some((group, _, limits)) = real("ambient") else { return };
    // Capabilities belong to a thread. This one ends with the check.
    std::thread::scope(|scope| {
        scope.spawn(|| check_ambient_capability(&group, &limits)).join().unwrap();
    });
    group.remove(Duration::from_secs(30)).unwrap();
}

// promise: batch.2
#[test]
fn batch_starts_in_its_cgroup_and_always_ends() {
    let Some((group, planned, limits)) = real("batch") else { return };
    let _ = group.set_idle_class();
    // Ignores SIGTERM, requests a real-time class (which must fail), prints its CPUs, and forks until the limit.
    let script = "trap '' TERM HUP INT; f() { f | f & }; chrt -f 1 true 2>/dev/null && echo real; \
                  taskset -pc $$; echo begun; f; while :; do :; done";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
    let mut child = in_group(&mut command, &group, &limits, Class::Idle).unwrap().spawn().unwrap();
    let mut output = String::new();
    let mut out = io::BufReader::new(child.stdout.take().unwrap());
    while !output.contains("begun") {
        assert!(io::BufRead::read_line(&mut out, &mut output).unwrap() > 0, "{output}");
    }
    assert!(!output.contains("real\n"), "{output}");
    assert!(group.processes().contains(&child.id()));
    let scheduling = Scheduling::of(child.id()).unwrap();
    assert_eq!((scheduling.class, &scheduling.cpus), (IDLE_CLASS, &limits.cpus));
    let _ = group.set_quota(0.1);
    let _ = group.set_frozen(true);
    assert!(group.kill(Duration::from_secs(60), || drop(child.try_wait())), "all of it has ended");
    assert!(!child.wait().unwrap().success());
    group.remove(Duration::from_secs(30)).unwrap();
    assert!(planned.paths().all(|path: &Path| !PathBuf::from(path).exists()));
}
