//! Attacks on a controller's store, the file with its desired state: a full disk, another user's file in its
//! place, and damage. A [`Site`] is a folder with the controller's files, and a [`Job`] a process that is killed on
//! drop.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{Pid, Resource, Rlimit, geteuid, prlimit};

use super::rigs::processes::{Job, Site, TIMEOUT, describe_exit};
use super::{Account, Attack, Budget, Failure, attack_table};

/// Damaged copies of a store per second of the budget.
const DAMAGES: f64 = 10.0;
/// Number of bytes of a page of the store.
const PAGE: usize = 4096;
/// Time after which a controller ends if it wrongly accepts its store.
const RUNTIME: &str = "2s";

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "full-store" Processes => |_, account| full(account),
        "the disk of a controller's store is full, or its files reach a limit, for some time";
    "foreign-store" Processes => |_, account| foreign(account),
        "a controller's store is writable by others, owned by another user, or behind a link";
    "damaged-store" Processes => damaged,
        "bytes of a controller's store are flipped, overwritten, repeated or truncated";
};

/// Folder of a controller, with its configuration and its store.
struct Fabric(Site);

impl Fabric {
    /// Creates the folder and the configuration.
    fn new() -> Result<Self, Failure> {
        let fabric = Self(Site::new()?);
        fabric.configure()?;
        Ok(fabric)
    }

    /// Writes the configuration. A file system mounted over the folder hides it, so the caller then writes it again.
    fn configure(&self) -> Result<(), Failure> {
        let text = format!("[controller]\nid = 1\nstore = '{}'\n", self.store().display());
        Ok(fs::write(self.0.path("controller.toml"), text)?)
    }

    /// Returns the path of the store.
    fn store(&self) -> PathBuf {
        self.0.path("fabric")
    }

    /// Returns the command that runs the controller.
    fn command(&self) -> Command {
        let mut command = Command::new(self.0.binary());
        command.args(["controller", "--config"]).arg(self.0.path("controller.toml"));
        command
    }

    /// Starts the controller and waits until it leads.
    fn start(&self) -> Result<Job, Failure> {
        let job = Job::start(&mut self.command(), &self.0.path("controller"))?;
        self.0.until("the controller", || Ok(self.ctl(&["topology"])?.status.success()))?;
        Ok(job)
    }

    /// Runs `wedjat ctl`, which finds the controller's socket by the path of the store.
    fn ctl(&self, arguments: &[&str]) -> Result<Output, Failure> {
        let mut command = Command::new(self.0.binary());
        command.env("WEDJAT_CONTROLLER", self.store());
        Ok(command.arg("ctl").args(arguments).arg("--json").output()?)
    }

    /// Adds a leaf. Returns true if the controller acknowledges that it is stored.
    fn add_leaf(&self, id: u16) -> Result<bool, Failure> {
        let ip = format!("10.0.{}.{}", 1 + id / 200, 1 + id % 200);
        let output = self.ctl(&["add-leaf", &id.to_string(), &ip])?;
        Ok(output.status.success())
    }

    /// Returns the controller's leaves.
    fn leaves(&self) -> Result<Vec<u64>, Failure> {
        let topology: serde_json::Value = serde_json::from_slice(&self.ctl(&["topology"])?.stdout)?;
        let leaves = topology["leaves"].as_array().into_iter().flatten();
        Ok(leaves.filter_map(|leaf| leaf["id"].as_u64()).collect())
    }

    /// Checks that a controller refuses its store with a message.
    fn check_refused(&self, account: &mut Account, case: &str) -> Result<(), Failure> {
        let output = self.command().args(["--duration", RUNTIME]).output()?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        account.tried("starts", 1);
        account.check(
            format!("{case}: the controller refuses it with a message"),
            output.status.code() == Some(1) && !printed.contains("panicked"),
            format!(
                "{}: {}",
                describe_exit(output.status),
                printed.lines().last().unwrap_or_default()
            ),
        );
        Ok(())
    }
}

/// Exhausts a controller's space by `exhaust` until it refuses a change, and restores the space by `restore`;
/// both get the controller's process id. Then changes must succeed again, and all acknowledged changes must
/// be stored.
fn check_without_space(
    account: &mut Account,
    case: &str,
    fabric: &Fabric,
    exhaust: impl FnOnce(u32) -> Result<(), Failure>,
    restore: impl FnOnce(u32) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let controller = fabric.start()?;
    let mut acknowledged = Vec::new();
    let mut add = |id: u16| -> Result<bool, Failure> {
        let is_acknowledged = fabric.add_leaf(id)?;
        account.tried("changes", 1);
        if is_acknowledged {
            acknowledged.push(u64::from(id));
        }
        Ok(is_acknowledged)
    };
    add(1)?;
    exhaust(controller.id())?;
    let mut next = 1;
    fabric.0.until("a refused change", || {
        next += 1;
        Ok(!add(next)?)
    })?;
    restore(controller.id())?;
    let (began, mut has_recovered) = (Instant::now(), false);
    while !has_recovered && began.elapsed() < TIMEOUT {
        next += 1;
        has_recovered = add(next)?;
        std::thread::sleep(Duration::from_millis(50));
    }
    account.check(
        format!("{case}: changes are stored again when there is space"),
        has_recovered,
        "",
    );
    controller.kill()?;
    let _restarted = fabric.start()?;
    let leaves = fabric.leaves()?;
    account.check(
        format!("{case}: all acknowledged changes are stored"),
        acknowledged.iter().all(|leaf| leaves.contains(leaf)),
        format!("{leaves:?} of {acknowledged:?}"),
    );
    Ok(())
}

/// A small file system, unmounted at the end.
struct Tmpfs(PathBuf);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Checks a limit on file sizes, and a full file system if this process is root.
fn full(account: &mut Account) -> Result<(), Failure> {
    let fabric = Fabric::new()?;
    let limit = |id: u32, current| -> Result<(), Failure> {
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        prlimit(pid, Resource::Fsize, Rlimit { current, maximum: None })?;
        Ok(())
    };
    let exhaust = |id| limit(id, Some(PAGE as u64));
    check_without_space(account, "a limit of one page per file", &fabric, exhaust, |id| {
        limit(id, None)
    })?;
    if !geteuid().is_root() {
        account.skip("a full tmpfs: only root may mount one");
        return Ok(());
    }
    let fabric = Fabric::new()?;
    let folder = fabric.0.path(""); // the folder itself
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4m,mode=700", "none"]).arg(&folder);
    if !mount.status()?.success() {
        account.skip("a full tmpfs: it cannot be mounted");
        return Ok(());
    }
    let _tmpfs = Tmpfs(folder);
    fabric.configure()?;
    let filler = fabric.0.path("filler");
    let fill = |_| {
        let mut file = File::create(&filler)?;
        while file.write_all(&[1; PAGE]).is_ok() {}
        Ok(())
    };
    check_without_space(account, "a full disk", &fabric, fill, |_| Ok(fs::remove_file(&filler)?))
}

/// Checks that a controller refuses stores with modes for other users, a store of another user (65534), and one behind
/// a link.
fn foreign(account: &mut Account) -> Result<(), Failure> {
    let fabric = Fabric::new()?;
    fabric.start()?.kill()?;
    let store = fabric.store();
    for mode in [0o666, 0o660, 0o644] {
        fs::set_permissions(&store, Permissions::from_mode(mode))?;
        fabric.check_refused(account, &format!("mode {mode:o}"))?;
    }
    fs::set_permissions(&store, Permissions::from_mode(0o600))?;
    if geteuid().is_root() {
        chown(&store, Some(65_534), None)?;
        fabric.check_refused(account, "a file of another user")?;
        chown(&store, Some(0), None)?;
    } else {
        account.skip("a file of another user: only root may create one");
    }
    let target = fabric.0.path("other");
    fs::rename(&store, &target)?;
    symlink(&target, &store)?;
    fabric.check_refused(account, "a link")
}

/// Damages copies of a store at random. The controller must refuse each with a message, or recover the
/// stored state from it.
fn damaged(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let fabric = Fabric::new()?;
    let controller = fabric.start()?;
    for leaf in 1..=9 {
        fabric.add_leaf(leaf)?;
    }
    let expected = fabric.leaves()?;
    controller.kill()?;
    let store = fs::read(fabric.store())?;
    // Offsets to damage: non-zero bytes behind the first page, which is the header of the database. Zeros are unused
    // space.
    let non_zero: Vec<usize> = (PAGE..store.len()).filter(|&offset| store[offset] != 0).collect();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
    for round in 0..(budget.seconds * DAMAGES) as usize {
        let mut bytes = store.clone();
        let offset = non_zero[random.random_range(0..non_zero.len())];
        let damage = match round % 4 {
            0 => {
                bytes[offset] ^= 1 << random.random_range(0..8);
                format!("a flipped bit of byte {offset}")
            }
            1 => {
                let end = (offset + random.random_range(1..64)).min(bytes.len());
                random.fill(&mut bytes[offset..end]);
                format!("bytes {offset} to {end}")
            }
            2 => {
                bytes.truncate(offset);
                format!("cut at {offset}")
            }
            _ => {
                let pages = (bytes.len() / PAGE).clamp(1, 8);
                let from = random.random_range(0..pages) * PAGE;
                bytes.copy_within(from..from + PAGE, offset / PAGE * PAGE);
                format!("the page of byte {offset} replaced by page {}", from / PAGE)
            }
        };
        fs::write(fabric.store(), bytes)?;
        let mut job = Job::start(&mut fabric.command(), &fabric.0.path("controller"))?;
        account.tried("damages", 1);
        let began = Instant::now();
        let mut is_leader = false;
        while !is_leader && job.is_running() && began.elapsed() < TIMEOUT {
            is_leader = fabric.ctl(&["topology"])?.status.success();
        }
        if is_leader {
            let leaves = fabric.leaves()?;
            job.kill()?;
            account.check(
                format!("{damage}: the controller has the stored state"),
                leaves == expected,
                format!("{leaves:?} instead of {expected:?}"),
            );
            continue;
        }
        let (status, _, printed) = job.finish()?;
        account.check(
            format!("{damage}: the controller ends with a message"),
            status.code() == Some(1)
                && printed.contains("damaged")
                && !printed.contains("panicked"),
            format!("{}: {}", describe_exit(status), printed.lines().last().unwrap_or_default()),
        );
    }
    Ok(())
}
