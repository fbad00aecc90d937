//! Actions of other processes on the host against the files of a leaf or an agent, before its start and
//! during its run. A [`Site`] is a folder with the files of the attacked process. Its driver is a process with honest
//! emulated clients and workers.
//!
//! A node works on private memory, and publishes copies of its state in the state file. An agent's region is a socket,
//! by which workers get shared anonymous memory. Actions on the files therefore cannot change that memory.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::rigs::processes::{Site, check_alive, check_end, check_outcomes, describe_exit};
use super::{Account, Attack, Budget, Failure, attack_table};
use crate::demo::leaf::NodeProcess;

/// Time within which a node must refuse to start.
const REFUSAL: Duration = Duration::from_secs(20);
/// Time in which a leaf certainly writes its changed state file: it publishes a copy every 50 ms. A leaf that does not
/// survive the change ends within this time.
const NOTICE_TIME: Duration = Duration::from_millis(300);
/// Content of a foreign file, which no node may change.
const PRECIOUS: &str = "a user's letters\n";

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "state-of-running-leaf" Processes => |_, account| state_of_leaf(account),
        "a running leaf's state file is truncated, removed, replaced, or loses its permissions";
    "files-of-running-agent" Processes => |_, account| files_of_agent(account),
        "a running agent's region and state file are truncated, removed, replaced, overwritten, or lose their \
         permissions";
    "full-file-system" Processes => full,
        "state and region lie on a full file system, or exceed the process's limit on file sizes";
    "special-files" Processes => |_, account| special(account),
        "a FIFO, a device, a folder, a foreign file, a symbolic link or a damaged file lies at the path of state, \
         region or account";
    "no-descriptors" Processes => |_, account| without_descriptors(account),
        "clients connect to a leaf's control while its process has no free file descriptor";
    "temporary-names" Processes => |_, account| temporaries(account),
        "a symbolic link to a foreign file lies at the temporary name of state or region";
};

/// Action of another process on a file: its name, and the function that performs it on a path.
type FileAction = (&'static str, fn(&Path) -> std::io::Result<()>);

/// All actions. The system refuses to truncate or overwrite a region, because it is a socket.
const ACTIONS: [FileAction; 7] = [
    ("truncated to 0 bytes", |path| OpenOptions::new().write(true).open(path)?.set_len(0)),
    ("truncated to a page", |path| OpenOptions::new().write(true).open(path)?.set_len(4096)),
    ("removed", |path| fs::remove_file(path)),
    ("replaced", |path| {
        let other = path.with_extension("other");
        fs::write(&other, PRECIOUS)?;
        fs::rename(other, path)
    }),
    ("replaced by a symbolic link", |path| {
        let other = path.with_extension("other");
        fs::write(&other, PRECIOUS)?;
        fs::remove_file(path)?;
        symlink(other, path)
    }),
    ("without permissions", |path| fs::set_permissions(path, Permissions::from_mode(0o000))),
    ("overwritten", |path| {
        // At most 16 MiB, which limits the time.
        let len = fs::metadata(path)?.len().min(1 << 24);
        let mut file = OpenOptions::new().write(true).open(path)?;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0xEE), len), &mut file).map(|_| ())
    }),
];

/// Applies each action to the state file of a running leaf.
fn state_of_leaf(account: &mut Account) -> Result<(), Failure> {
    // The file has only copies of the leaf's counters. The promise is that the leaf survives and serves.
    for (action, act) in ACTIONS {
        let site = Site::new()?;
        let mut leaf = site.leaf()?;
        if let Err(error) = site.drive(0.1) {
            return Err(format!("before the first action: {error}").into());
        }
        match act(&site.state()) {
            Ok(()) => account.tried("actions", 1),
            Err(_) => account.tried("actions refused by the system", 1),
        }
        std::thread::sleep(NOTICE_TIME);
        if check_alive(account, &format!("state {action}: the leaf lives"), &mut leaf) {
            check_outcomes(
                account,
                &format!("state {action}: all tasks are answered"),
                site.drive(0.3),
            );
            check_alive(account, &format!("state {action}: the leaf lives afterwards"), &mut leaf);
            // Skips an overwritten state, although the account is made from private memory.
            if action != "overwritten" {
                check_end(account, &format!("state {action}"), leaf);
            }
        }
    }
    Ok(())
}

/// Applies each action to the files of a running agent.
fn files_of_agent(account: &mut Account) -> Result<(), Failure> {
    for file in ["region", "state"] {
        for (action, act) in ACTIONS {
            let site = Site::new()?;
            let mut agent = site.agent()?;
            let driver = site.start_attached(1.5)?;
            site.until("tasks", || Ok(site.counter("scheduled")? > 0))?;
            match act(&site.path(file)) {
                Ok(()) => account.tried("actions", 1),
                Err(_) => account.tried("actions refused by the system", 1),
            }
            // Ignores the driver's outcome: the promise is only that the agent survives.
            let _ = driver.finish();
            if !check_alive(account, &format!("{file} {action}: the agent lives"), &mut agent) {
                continue;
            }
            // The system refuses this action, so the socket is still there.
            if file == "region" && action == "overwritten" {
                let outcomes = site.start_attached(0.3)?.outcomes();
                let promise = format!(
                    "region {action}: workers can attach again, and all tasks are answered"
                );
                check_outcomes(account, &promise, outcomes);
            }
            // Checks the account only after a change to the state, and skips an overwritten one as for a leaf.
            if file == "state" && action != "overwritten" {
                check_end(account, &format!("{file} {action}"), agent);
            }
        }
    }
    Ok(())
}

/// Starts nodes with little room for their files: a small tmpfs in a mount namespace of its own, if this
/// process is root, and a limit on file sizes. A node must refuse with a message, or serve; no signal may end
/// it.
fn full(_: &Budget, account: &mut Account) -> Result<(), Failure> {
    let is_root = rustix::process::geteuid().is_root();
    for role in ["leaf", "agent"] {
        for pages in [1, 4, 16, 64] {
            if is_root {
                let site = Site::new()?;
                let folder = site.path("small");
                fs::create_dir(&folder)?;
                let mut command = Command::new("unshare");
                let script =
                    format!("mount -t tmpfs -o size={}k none \"$0\" && exec \"$@\"", 4 * pages);
                command.args(["--mount", "sh", "-c", &script]).arg(&folder).arg(site.binary());
                serves_or_refuses(
                    &site,
                    command,
                    role,
                    &folder,
                    &format!("{pages} pages of space"),
                    account,
                )?;
            }
            let site = Site::new()?;
            let folder = site.path("limited");
            fs::create_dir(&folder)?;
            let mut command = Command::new("sh");
            // The limit counts blocks of 512 bytes, eight for a page. With SIGXFSZ ignored, a write beyond
            // the limit fails instead of killing the node.
            let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 8 * pages);
            command.args(["-c", &script, "sh"]).arg(site.binary());
            serves_or_refuses(
                &site,
                command,
                role,
                &folder,
                &format!("files of {pages} pages"),
                account,
            )?;
        }
    }
    if !is_root {
        account.skip("a full tmpfs: only root may mount one");
    }
    Ok(())
}

/// Starts a node by `command` with its files in `folder`. Checks that neither a signal nor a panic ends it.
fn serves_or_refuses(
    site: &Site,
    command: Command,
    role: &str,
    folder: &Path,
    case: &str,
    account: &mut Account,
) -> Result<(), Failure> {
    let (state, region) = (folder.join("state"), folder.join("region"));
    let config = match role {
        "leaf" => site.leaf_config(&state)?,
        _ => site.agent_config(&state, &region),
    };
    let mut node = site.start(command, role, &config)?;
    account.tried("starts", 1);
    let began = Instant::now();
    while node.check().is_ok() && !site.socket().exists() && began.elapsed() < REFUSAL {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut status = node.wait_for_exit(Duration::from_millis(500));
    if status.is_none() && role == "leaf" {
        // Load changes the state while the leaf publishes copies of it. The driver may fail, because the leaf may
        // still refuse.
        let _ = site.drive(0.3);
        status = node.wait_for_exit(Duration::from_millis(100));
    }
    let signal = status.and_then(|status| status.signal());
    let panicked = node.output_tail().contains("panicked");
    account.check(
        format!("{role}, {case}: the node serves, or refuses with a message"),
        signal.is_none() && !panicked,
        format!(
            "{}, {}",
            status.map_or_else(|| "runs".to_owned(), describe_exit),
            node.output_tail().replace('\n', " ")
        ),
    );
    Ok(())
}

/// Returns the last line of a node's output: the reason of its end, if it has ended.
fn last_line(node: &NodeProcess) -> String {
    node.output_tail().lines().last().unwrap_or_default().trim().to_owned()
}

/// Checks that a node without descriptors logs one line and continues to serve.
fn without_descriptors(account: &mut Account) -> Result<(), Failure> {
    let site = Site::new()?;
    let mut leaf = site.leaf()?;
    let process = i32::try_from(leaf.id()).ok().and_then(Pid::from_raw);
    let original = getrlimit(Resource::Nofile);
    let limit = |current| prlimit(process, Resource::Nofile, Rlimit { current, ..original });
    // The driver connects before the limit is set, because its memif connections need descriptors of the
    // leaf. It ends after the limit is lifted: EAL aborts a process that has no descriptor for a new epoll
    // instance.
    let before = descriptors(leaf.id())?;
    let driver = site.start_drive(8.0)?;
    wait_for_descriptors(&site, leaf.id(), &before)?;
    limit(Some(next_descriptor(leaf.id())?))?;
    let mut socket = site.state().into_os_string();
    socket.push(".ctl");
    let clients: Vec<_> = (0..8).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    account.tried("connections", clients.len() as u64);
    let lines = || leaf.output().matches("cannot accept connections").count();
    site.until("a line of the log", || Ok(lines() > 0))?;
    // The leaf retries about ten times meanwhile, and must not log each.
    std::thread::sleep(Duration::from_secs(1));
    limit(original.current)?;
    check_outcomes(account, "all tasks are answered without descriptors", driver.outcomes());
    account.check("the log reports it once", lines() == 1, format!("{} lines", lines()));
    if check_alive(account, "the leaf lives", &mut leaf) {
        check_end(account, "after a time without descriptors", leaf);
    }
    Ok(())
}

/// Waits until a process has other descriptors than `before`, and the same ones for half a second.
fn wait_for_descriptors(site: &Site, process: u32, before: &BTreeSet<u64>) -> Result<(), Failure> {
    let (mut previous, mut unchanged_since) = (before.clone(), Instant::now());
    site.until("the driver's memif connections", || {
        let current = descriptors(process)?;
        if current != previous {
            (previous, unchanged_since) = (current, Instant::now());
        }
        Ok(previous != *before && unchanged_since.elapsed() > Duration::from_millis(500))
    })
}

/// Returns the descriptor numbers that a process uses.
fn descriptors(process: u32) -> Result<BTreeSet<u64>, Failure> {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(numbers)
}

/// Returns the lowest descriptor number that a process does not use. As a limit, it leaves no free
/// descriptor.
fn next_descriptor(process: u32) -> Result<u64, Failure> {
    let used = descriptors(process)?;
    Ok((0..).find(|number| !used.contains(number)).unwrap_or_default())
}

/// Object at the path of a node's file: its name, and the function that creates it at a path.
type Obstacle = (&'static str, fn(&Path) -> std::io::Result<()>);

/// All obstacles. `special` locks the one whose name says so.
const OBSTACLES: [Obstacle; 8] = [
    ("a FIFO", |path| run_tool(Command::new("mkfifo").arg(path))),
    // Device 1, 3 is /dev/null.
    ("a device", |path| run_tool(Command::new("mknod").arg(path).args(["c", "1", "3"]))),
    ("a folder", |path| fs::create_dir(path)),
    ("a foreign file", |path| fs::write(path, PRECIOUS)),
    ("a foreign long file", |path| fs::write(path, PRECIOUS.repeat(100_000))),
    ("a link to a foreign file", |path| {
        let other = path.with_extension("other");
        fs::write(&other, PRECIOUS)?;
        symlink(other, path)
    }),
    ("a socket", |path| std::os::unix::net::UnixListener::bind(path).map(|_| ())),
    ("eight bytes, locked", |path| fs::write(path, [0; 8])),
];

/// Runs a command that creates a file.
fn run_tool(command: &mut Command) -> std::io::Result<()> {
    let output = command.output()?;
    let failed = || std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned());
    output.status.success().then_some(()).ok_or_else(failed)
}

/// Starts nodes with each obstacle at the path of one of their files. The node must refuse, and leave the
/// object unchanged. Its message must not advise to remove the object, which may be foreign.
fn special(account: &mut Account) -> Result<(), Failure> {
    let files = [("leaf", "state"), ("agent", "state"), ("agent", "region"), ("leaf", "leaf.json")];
    for (role, file) in files {
        // A node may replace some objects without harm. These do not count as obstacles.
        let is_obstacle = |name: &str| match file {
            // An agent may replace the socket of an agent that has ended.
            "region" => name != "a socket",
            // The account of `--stats` replaces a regular file.
            "leaf.json" => !name.starts_with("a foreign") && name != "eight bytes, locked",
            _ => true,
        };
        let obstacles = OBSTACLES.iter().filter(|(name, _)| is_obstacle(name));
        for &(name, make) in obstacles {
            let site = Site::new()?;
            let path = site.path(file);
            if let Err(error) = make(&path) {
                account.skip(format!("{name} as {file}: {}", error.to_string().trim()));
                continue;
            }
            let before = description(&path);
            let lock_guard = (name == "eight bytes, locked").then(|| lock(&path)).transpose()?;
            let config = match role {
                "leaf" => site.leaf_config(&site.state())?,
                _ => site.agent_config(&site.state(), &site.region()),
            };
            let mut node = site.start(Command::new(site.binary()), role, &config)?;
            account.tried("starts", 1);
            let status = node.wait_for_exit(REFUSAL);
            drop(lock_guard);
            let line = last_line(&node);
            account.check(
                format!("{role}, {name} as {file}: the node refuses immediately, with a message"),
                status.is_some_and(|status| status.code() == Some(1))
                    && !node.output_tail().contains("panicked"),
                format!(
                    "{}: {line}",
                    status.map_or_else(|| "still running".to_owned(), describe_exit)
                ),
            );
            let after = description(&path);
            account.check(
                format!("{role}, {name} as {file}: the file is unchanged"),
                before == after,
                format!("{after} instead of {before}"),
            );
            account.check(
                format!("{role}, {name} as {file}: the message does not advise to remove it"),
                !line.contains("remove it"),
                &line,
            );
        }
    }
    Ok(())
}

/// Locks a file by a POSIX record lock of this process, for which a node must not wait. The lock ends with the returned
/// handle.
fn lock(path: &Path) -> Result<File, Failure> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Describes the object at a path: its kind, its link target, and for a file its length and if all its
/// content is [`PRECIOUS`].
fn description(path: &Path) -> String {
    let Ok(data) = fs::symlink_metadata(path) else { return "nothing".to_owned() };
    let kind = data.file_type();
    if kind.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        return format!("a link to {}, {}", target.display(), description(&target));
    }
    if kind.is_file() {
        let bytes = fs::read(path).unwrap_or_default();
        let is_precious = bytes.chunks(PRECIOUS.len()).all(|line| line == PRECIOUS.as_bytes());
        return format!(
            "a file of {} bytes{}",
            bytes.len(),
            if is_precious { ", letters" } else { "" }
        );
    }
    let named = [(kind.is_fifo(), "a FIFO"), (kind.is_char_device(), "a device")];
    let fallback = if kind.is_dir() { "a folder" } else { "something else" };
    named.iter().find(|(matches, _)| *matches).map_or(fallback, |(_, name)| *name).to_owned()
}

/// Starts nodes with a link to a foreign file at a temporary name that an attacker can guess: the file's name, `.new-`
/// and the process id. A node must not write through the link. The nodes' own temporary names are random; the attack
/// detects a return to guessable ones.
fn temporaries(account: &mut Account) -> Result<(), Failure> {
    for (role, file) in [("leaf", "state"), ("agent", "state"), ("agent", "region")] {
        let site = Site::new()?;
        let (path, precious) = (site.path(file), site.path("precious"));
        fs::write(&precious, PRECIOUS)?;
        let mut command = Command::new("sh");
        // The node's process id is the shell's (`$$`), because `exec` keeps it.
        let script = "ln -s \"$0\" \"$1.new-$$\"; shift; exec \"$@\"";
        command.args(["-c", script]).arg(&precious).arg(&path).arg(site.binary());
        let config = match role {
            "leaf" => site.leaf_config(&site.state())?,
            _ => site.agent_config(&site.state(), &site.region()),
        };
        let mut node = site.start(command, role, &config)?;
        account.tried("starts", 1);
        let is_ready = || path.exists() && site.socket().exists();
        while node.check().is_ok() && !is_ready() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let content = description(&precious);
        account.check(
            format!("{role}: a foreign file behind a link at {file}'s name keeps its content"),
            fs::read_to_string(&precious).is_ok_and(|text| text == PRECIOUS),
            content,
        );
        let mode = fs::metadata(&path).map(|data| data.permissions().mode() & 0o7777);
        account.check(
            format!(
                "{role}: only owner and group may read {file}, and only the owner may write it"
            ),
            mode.as_ref().is_ok_and(|mode| mode & 0o027 == 0),
            mode.map_or_else(|error| error.to_string(), |mode| format!("mode {mode:o}")),
        );
    }
    Ok(())
}
