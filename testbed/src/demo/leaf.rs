//! A `wedjat leaf` of our own: its configuration, its process, its account, its end.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wedjat::policy::PolicySpec;

use crate::rack::Layout;

/// The command that runs a leaf.
const BINARY: &str = "wedjat";
/// Lines of the leaf's output that an error shows.
const SHOWN: usize = 12;
/// A leaf told to stop has so long.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// It waits so long for our ends of its wires, which are there before it or die with us.
const PATIENCE: &str = "300s";

/// What a leaf is configured with.
#[derive(Clone, Debug)]
pub struct LeafConfig<'a> {
    /// Its policy.
    pub policy: &'a PolicySpec,
    /// The workers it schedules over.
    pub layout: Layout,
    /// Its address on the clients' side, which is a /24.
    pub clients_ip: std::net::Ipv4Addr,
    /// Its address on the workers' side, which is a /24.
    pub workers_ip: std::net::Ipv4Addr,
    /// Its device on the clients' side.
    pub clients_device: &'a str,
    /// Its device on the workers' side.
    pub workers_device: &'a str,
    /// Worker pool.
    pub pool: u16,
    /// The UDP port of tasks.
    pub udp_port: u16,
    /// The CPU of its dispatcher.
    pub core: usize,
    /// How many dispatchers there are, on this CPU and those that follow.
    pub cores: usize,
    /// Its state file.
    pub state: &'a Path,
    /// Its seed.
    pub seed: u64,
    /// Tasks that may wait there, where the policy lets them; as usual when none.
    pub queue: Option<usize>,
    /// Whether it lets workers report more than it sent them, as if others sent to them too.
    pub shared_workers: bool,
    /// The speeds of the workers by their place, when they differ: those of one server are alike.
    pub speeds: &'a [f64],
}

impl LeafConfig<'_> {
    /// The configuration file's text.
    #[must_use]
    pub fn toml(&self) -> String {
        let mut text = String::new();
        let quoted = |text: &str| toml_string(text);
        let _ = write!(
            text,
            "[leaf]\nid = 1\nudp_port = {}\ncores = {:?}\nstate = {}\nseed = {}\n",
            self.udp_port,
            (self.core..self.core + self.cores).collect::<Vec<_>>(),
            quoted(&self.state.display().to_string()),
            self.seed
        );
        for (device, side, ip) in [
            (self.clients_device, "clients", self.clients_ip),
            (self.workers_device, "workers", self.workers_ip),
        ] {
            let device = quoted(device);
            let _ = write!(
                text,
                "\n[[port]]\ndevice = {device}\nside = \"{side}\"\nip = \"{ip}/24\"\n"
            );
        }
        let policy = quoted(&self.policy.to_string());
        let _ = write!(text, "\n[[pool]]\nid = {}\npolicy = {policy}\n", self.pool);
        if let Some(queue) = self.queue {
            let _ = writeln!(text, "queue = {queue}");
        }
        if self.shared_workers {
            text.push_str("shared_workers = true\n");
        }
        for (ip, first, last) in self.layout.servers() {
            let _ = write!(
                text,
                "\n[[server]]\nip = \"{ip}\"\nworkers = \"{first}-{last}\"\npool = {}\n",
                self.pool
            );
            let place = usize::from(first - self.layout.id(0));
            if let Some(speed) = self.speeds.get(place) {
                let _ = writeln!(text, "speed = {speed:?}");
            }
        }
        text
    }
}

/// A TOML basic string; JSON's escapes are among TOML's.
fn toml_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// What went wrong with a leaf.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// There is no such command.
    #[error(
        "no `{BINARY}` beside {beside} nor in PATH: build it (cargo build --release), or name it with --leaf FILE"
    )]
    Absent {
        /// Where we are.
        beside: PathBuf,
    },
    /// A file of its folder, or the process, could not be made.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
    /// It ended by itself.
    #[error("the leaf ended by itself ({status}); its last words:{said}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// The end of its output, indented.
        said: String,
    },
    /// It did not end when told to, or not well.
    #[error("the leaf did not end well ({how}); its last words:{said}")]
    Failed {
        /// How it ended.
        how: String,
        /// The end of its output, indented.
        said: String,
    },
}

/// Finds the leaf's command: beside ours, else in PATH.
///
/// # Errors
/// When it is in neither place.
pub fn find() -> Result<PathBuf, LeafError> {
    let ours = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = ours.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join(BINARY))
        .find(|file| file.is_file())
        .ok_or(LeafError::Absent { beside: ours })
}

/// A running leaf; it is killed when this is dropped.
pub struct LeafProcess {
    child: Child,
    output: PathBuf,
    stats: PathBuf,
}

impl LeafProcess {
    /// Starts a leaf whose files lie in `folder`. It ends by itself after `lifetime`, should nobody be left to end
    /// it, and runs on the time of `clock` if one is named.
    ///
    /// # Errors
    /// When its files cannot be written or its process cannot be made. A leaf that refuses to run shows in
    /// [`LeafProcess::check`].
    pub fn start(
        binary: &Path,
        folder: &Path,
        config: &str,
        lifetime: Duration,
        clock: Option<&Path>,
        eal: &[String],
    ) -> Result<Self, LeafError> {
        Self::start_by(Command::new(binary), "leaf", folder, config, lifetime, clock, eal)
    }

    /// The same of a leaf or an agent, which `role` says, by a command that takes `wedjat`'s arguments.
    ///
    /// # Errors
    /// As [`LeafProcess::start`].
    pub fn start_by(
        mut command: Command,
        role: &str,
        folder: &Path,
        config: &str,
        lifetime: Duration,
        clock: Option<&Path>,
        eal: &[String],
    ) -> Result<Self, LeafError> {
        let io = |what: String| move |error| LeafError::Io { what, error };
        let [file, output, stats] =
            ["toml", "log", "json"].map(|kind| folder.join(format!("{role}.{kind}")));
        fs::write(&file, config).map_err(io(format!("writing {}", file.display())))?;
        let log = File::create(&output).map_err(io(format!("creating {}", output.display())))?;
        let err = log.try_clone().map_err(io(format!("sharing {}", output.display())))?;
        let clock = clock.map(|file| [OsStr::new("--clock"), file.as_os_str()]);
        let child = command
            .arg(role)
            .arg("--config")
            .arg(&file)
            .arg("--stats")
            .arg(&stats)
            .arg("--duration")
            .arg(format!("{}s", lifetime.as_secs().max(1)))
            .args(["--patience", PATIENCE])
            .args(clock.into_iter().flatten())
            .arg("--")
            .args(eal)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            .spawn()
            .map_err(io(format!("starting {}", command.get_program().display())))?;
        Ok(Self { child, output, stats })
    }

    /// The process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits so long for its end; how it ended.
    pub fn ended_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.wait(patience)
    }

    /// The leaf still runs.
    ///
    /// # Errors
    /// How it ended and what it said, when it does not.
    pub fn check(&mut self) -> Result<(), LeafError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(LeafError::Ended { status, said: self.said() }),
            Err(error) => Err(LeafError::Io { what: "watching the leaf".to_owned(), error }),
        }
    }

    /// Ends the leaf in order (SIGTERM) and gives its account.
    ///
    /// # Errors
    /// When it had ended before, does not end, fails, or leaves no account.
    pub fn stop(mut self) -> Result<Value, LeafError> {
        self.check()?;
        let failed = |how: String, said: String| LeafError::Failed { how, said };
        if let Some(pid) =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let told = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            told.map_err(|error| failed(format!("SIGTERM: {error}"), self.said()))?;
        }
        let Some(status) = self.wait(STOP_PATIENCE) else {
            let how = format!("still running {} s after SIGTERM", STOP_PATIENCE.as_secs());
            return Err(failed(how, self.said()));
        };
        if !status.success() {
            return Err(failed(status.to_string(), self.said()));
        }
        let text = fs::read_to_string(&self.stats)
            .map_err(|error| failed(format!("no account: {error}"), self.said()))?;
        serde_json::from_str(&text)
            .map_err(|error| failed(format!("its account is no JSON: {error}"), self.said()))
    }

    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < patience {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// The end of the leaf's output, indented.
    #[must_use]
    pub fn said(&self) -> String {
        let bytes = fs::read(&self.output).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        match last.is_empty() {
            true => "\n    (nothing)".to_owned(),
            false => last.iter().map(|line| format!("\n    {line}")).collect(),
        }
    }
}

impl Drop for LeafProcess {
    fn drop(&mut self) {
        // Both fail when it has ended already, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_configuration_is_one_that_a_leaf_takes() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new("10.0.2.11+2".parse().unwrap(), 3, 0).unwrap();
        let policy = "horus".parse().unwrap();
        let config = LeafConfig {
            policy: &policy,
            layout,
            clients_ip: [10, 0, 1, 1].into(),
            workers_ip: [10, 0, 2, 1].into(),
            clients_device: "net_memif0",
            workers_device: "net_memif1",
            pool: 1,
            udp_port: 1234,
            core: 0,
            cores: 1,
            state: &folder.path().join("sta\"te"),
            seed: 3,
            queue: None,
            shared_workers: false,
            speeds: &[],
        };
        let file = folder.path().join("leaf.toml");
        fs::write(&file, config.toml()).unwrap();
        let read = wedjat::config::Config::load(&file).expect("accepted");
        assert_eq!(read.servers.iter().map(|server| server.workers.len()).sum::<usize>(), 6);
        assert_eq!(read.leaf.seed, Some(3));
    }

    /// A leaf of a few lines of shell: what matters here is how a process ends.
    fn leaf(script: &str) -> (tempfile::TempDir, LeafProcess) {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("fake");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let lifetime = Duration::from_secs(60);
        // Another test's fork may hold the script open for writing for a moment (ETXTBSY).
        let process =
            until(|| match LeafProcess::start(&binary, folder.path(), "", lifetime, None, &[]) {
                Err(LeafError::Io { error, .. })
                    if error.kind() == io::ErrorKind::ExecutableFileBusy =>
                {
                    None
                }
                started => Some(started.expect("started")),
            });
        (folder, process)
    }

    fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
        loop {
            match found() {
                Some(found) => return found,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn a_leaf_gives_its_account_when_told_to_stop() {
        // Its arguments: leaf --config FILE --stats FILE --duration 60s --
        let script = "trap 'echo \"{\\\"rx_packets\\\": 5}\" > $5; exit 0' TERM\necho ready\nwhile :; do sleep 0.01; done";
        let (folder, mut process) = leaf(script);
        until(|| {
            fs::read_to_string(folder.path().join("leaf.log")).ok().filter(|log| !log.is_empty())
        });
        process.check().unwrap();
        assert_eq!(process.stop().unwrap()["rx_packets"], 5);
    }

    #[test]
    fn a_leaf_that_does_not_start_says_why() {
        let (_folder, mut process) = leaf("echo 'no device net_memif0' >&2; exit 3");
        let error = until(|| process.check().err()).to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("no device net_memif0"),
            "{error}"
        );
    }

    #[test]
    fn a_bad_end_is_an_error() {
        let (folder, process) =
            leaf("trap 'exit 1' TERM\necho ready\nwhile :; do sleep 0.01; done");
        until(|| {
            fs::read_to_string(folder.path().join("leaf.log")).ok().filter(|log| !log.is_empty())
        });
        let error = process.stop().unwrap_err().to_string();
        assert!(error.contains("exit status: 1") && error.contains("ready"), "{error}");
    }

    #[test]
    fn a_leaf_does_not_outlive_its_owner() {
        let (folder, process) = leaf("echo ready\nwhile :; do sleep 0.01; done");
        until(|| {
            fs::read_to_string(folder.path().join("leaf.log")).ok().filter(|log| !log.is_empty())
        });
        let pid = process.child.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
