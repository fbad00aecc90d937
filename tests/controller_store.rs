//! The store file of a controller: lack of space, damage, another owner, and a kill during its creation. The controller
//! keeps the desired state of a fabric in it, here a list of leaves.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod timeouts;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit};
use serde_json::Value;

use timeouts::{TIMEOUT, wait_until};

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// A folder with a controller's configuration and store.
struct Home(tempfile::TempDir);

impl Home {
    /// Creates the folder with the configuration.
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        home.configure();
        home
    }

    /// Writes the controller's configuration. Called again after a mount over the folder, which hides the first one.
    fn configure(&self) {
        let text = format!("[controller]\nid = 1\nstore = '{}'\n", self.store().display());
        fs::write(self.path("controller.toml"), text).unwrap();
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path of the store.
    fn store(&self) -> PathBuf {
        self.path("fabric")
    }

    /// Returns the command that starts the controller.
    fn controller(&self) -> Command {
        let mut command = Command::new(WEDJAT);
        command.args(["controller", "--config"]).arg(self.path("controller.toml"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts the controller and waits until it leads.
    fn start(&self) -> Process {
        let process = Process(self.controller().stderr(Stdio::null()).spawn().unwrap());
        wait_until("the controller leads", || self.ctl(&["topology"]).status.success());
        process
    }

    /// Runs a controller that must end by itself with an error. Returns the last line of its standard error. `what`
    /// names the case in messages.
    fn refusal(&self, what: &str) -> String {
        let output = self.controller().args(["--duration", "60s"]).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {message}");
        assert!(!message.contains("panicked"), "{what}: {message}");
        message.lines().last().unwrap_or_default().to_owned()
    }

    /// Runs `wedjat ctl --json` for the controller, by the socket beside its store.
    fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(WEDJAT);
        command.env("WEDJAT_CONTROLLER", self.store());
        command.arg("ctl").args(arguments).arg("--json").output().unwrap()
    }

    /// Adds a leaf, or returns the reason of the refusal.
    fn add_leaf(&self, id: u16) -> Result<(), String> {
        let output = self.ctl(&["add-leaf", &id.to_string(), &format!("10.0.1.{id}")]);
        if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
    }

    /// Returns the ids of the fabric's leaves.
    fn leaves(&self) -> Vec<u16> {
        let topology: Value = serde_json::from_slice(&self.ctl(&["topology"]).stdout).unwrap();
        let leaves = topology["leaves"].as_array().unwrap().iter();
        leaves.map(|leaf| leaf["id"].as_u64().unwrap() as u16).collect()
    }
}

/// Returns output of a process as text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process that ends with the test.
struct Process(Child);

/// Limits the size of files written by a process to `current` bytes, or lifts the limit. Unlike a full disk, this needs
/// no root.
fn limit(process: &Process, current: Option<u64>) {
    let pid = Pid::from_raw(process.0.id() as i32);
    prlimit(pid, Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A small file system mounted over a folder, unmounted at the end.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts a file system of 4 MiB.
    fn over(folder: &Path) -> Self {
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=4m,mode=700", "none"]).arg(folder);
        assert!(mount.status().unwrap().success());
        Self(folder.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Takes space from a controller by `take`, and gives it back by `give`. Checks that a change is refused in between,
/// with the text `says`. Checks that a change is accepted afterwards. The controller must then serve all accepted
/// changes, and serve the same leaves after a restart.
fn lacks_room(home: &Home, says: &str, take: impl FnOnce(&Process), give: impl FnOnce(&Process)) {
    let process = home.start();
    let mut kept = vec![1];
    home.add_leaf(1).unwrap();
    take(&process);
    let mut next = 2;
    wait_until("a change is refused", || {
        let asked = home.add_leaf(next);
        let refused = asked.as_ref().is_err_and(|message| message.contains(says));
        if asked.is_ok() {
            kept.push(next);
        }
        next += 1;
        refused
    });
    give(&process);
    wait_until("a change is kept again", || {
        let is_kept = home.add_leaf(next).is_ok();
        if is_kept {
            kept.push(next);
        }
        next += 1;
        is_kept
    });
    let served = home.leaves();
    assert!(kept.iter().all(|leaf| served.contains(leaf)), "{served:?} has all of {kept:?}");
    drop(process);
    let _again = home.start();
    assert_eq!(home.leaves(), served, "the restarted controller has the same leaves");
}

// promise: controller.2
#[test]
fn controller_beyond_its_file_limit_recovers() {
    let home = Home::new();
    let take = |process: &Process| limit(process, Some(4096));
    lacks_room(&home, "raise the limit on file sizes", take, |process| limit(process, None));
}

// promise: controller.2
#[test]
fn controller_on_a_full_disk_recovers() {
    if !geteuid().is_root() {
        return; // only root can mount; the test of file size limits needs no rights
    }
    let home = Home::new();
    let _tmpfs = Tmpfs::over(home.0.path());
    home.configure();
    let filler = home.path("filler");
    let fill = |_: &Process| {
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    };
    lacks_room(&home, "make room there", fill, |_| fs::remove_file(&filler).unwrap());
}

// promise: controller.2
#[test]
fn damaged_store_ends_the_controller_with_a_sentence() {
    let home = Home::new();
    let process = home.start();
    (1..=9).for_each(|leaf| home.add_leaf(leaf).unwrap());
    drop(process);
    let whole = fs::read(home.store()).unwrap();
    // Newer pages are copies of older ones, so the last copy is the current one.
    let key = b"\"leaf\"";
    let record = whole.windows(key.len()).rposition(|bytes| bytes == key).unwrap();
    let flipped = |at: usize, bit: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        bytes
    };
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("letters", b"my letters".to_vec()),
        ("cut in half", whole[..whole.len() / 2].to_vec()),
        ("a bit of the magic number", flipped(2, 0)),
        ("a bit of a record", flipped(record, 0)),
        ("another bit of the record", flipped(record + 3, 5)),
    ] {
        fs::write(home.store(), bytes).unwrap();
        let message = home.refusal(what);
        let path = home.store().display().to_string();
        assert!(
            message.contains(&path) && message.contains("it is damaged, or no store"),
            "{what}: {message}"
        );
        assert!(
            message.contains("restore it from a copy, or name a new file"),
            "{what}: {message}"
        );
    }
    fs::write(home.store(), &whole).unwrap();
    let mut process = home.start();
    assert_eq!(home.leaves(), (1..=9).collect::<Vec<_>>());
    // The file is damaged while the controller runs. The controller opens it again after a write error, and ends.
    limit(&process, Some(4096));
    wait_until("a change is refused", || home.add_leaf(20).is_err());
    fs::write(home.store(), "my letters").unwrap();
    let mut leaf = 20;
    wait_until("the process ends", || {
        leaf += 1;
        let _ = home.add_leaf(leaf);
        process.0.try_wait().unwrap().is_some_and(|status| status.code() == Some(1))
    });
}

// promise: controller.2
#[test]
fn store_of_another_user_is_refused() {
    let home = Home::new();
    drop(home.start());
    let open = |mode| fs::set_permissions(home.store(), fs::Permissions::from_mode(mode)).unwrap();
    open(0o666);
    assert!(home.refusal("mode").contains("the file is open to others than its owner (mode 0666)"));
    open(0o600);
    fs::rename(home.store(), home.path("own")).unwrap();
    symlink(home.path("own"), home.store()).unwrap();
    assert!(home.refusal("link").contains("the file is a symbolic link; name one of this user"));
    if geteuid().is_root() {
        fs::rename(home.path("own"), home.store()).unwrap();
        chown(home.store(), Some(65_534), None).unwrap();
        assert!(home.refusal("owner").contains("the file belongs to user 65534"));
    }
}

// promise: controller.2
#[test]
fn killed_first_start_leaves_nothing_or_a_store() {
    for round in 0..24_u32 {
        let home = Home::new();
        let process = Process(home.controller().stderr(Stdio::null()).spawn().unwrap());
        let began = std::time::Instant::now();
        // The lock file is the first file created.
        while !home.path("fabric.lock").exists() {
            assert!(began.elapsed() < TIMEOUT);
        }
        // Kills the process 0 to 16 ms after that.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 700));
        drop(process);
        let process = home.start();
        home.add_leaf(1).unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop(process);
    }
}
