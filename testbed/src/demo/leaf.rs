//! Child process that runs `wedjat leaf`, a spine or an agent for the demo, attacks and lockstep: its configuration,
//! start, account (final report) and end.

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

/// Command that runs a leaf.
const BINARY: &str = "wedjat";
/// Maximum number of lines of the leaf's output in an error.
const TAIL_LINES: usize = 12;
/// Longest wait for the end of a leaf after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait of the leaf for the peers of its memif devices. This process opens them before the leaf
/// starts, so only an overloaded machine makes the leaf wait. A long limit is safe, because dropping
/// [`NodeProcess`] kills the leaf.
const PEER_TIMEOUT: &str = "300s";

/// Configuration of a leaf.
#[derive(Clone, Debug)]
pub struct LeafConfig<'a> {
    /// Policy of the leaf.
    pub policy: &'a PolicySpec,
    /// Workers of the leaf.
    pub layout: Layout,
    /// Address on the clients' side, in a /24.
    pub clients_ip: std::net::Ipv4Addr,
    /// Address on the workers' side, in a /24.
    pub workers_ip: std::net::Ipv4Addr,
    /// Device on the clients' side.
    pub clients_device: &'a str,
    /// Device on the workers' side.
    pub workers_device: &'a str,
    /// Worker pool.
    pub pool: u16,
    /// UDP port of tasks.
    pub udp_port: u16,
    /// CPU of the leaf's first dispatcher.
    pub core: usize,
    /// Number of dispatchers, on consecutive CPUs.
    pub cores: usize,
    /// State file.
    pub state: &'a Path,
    /// Seed of the leaf's random numbers.
    pub seed: u64,
    /// Maximum number of queued tasks, if the policy queues; `None` for the default.
    pub queue: Option<usize>,
    /// True if the workers also serve other leaves. They may then report more tasks than this leaf sent.
    pub shared_workers: bool,
    /// Relative speeds of the workers by place, or empty if all are equal. All workers of a server must have the same
    /// speed, because only that of the first counts.
    pub speeds: &'a [f64],
}

impl LeafConfig<'_> {
    /// Returns the text of the configuration file.
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
            // Index of the server's first worker among all workers.
            let place = usize::from(first - self.layout.id(0));
            if let Some(speed) = self.speeds.get(place) {
                let _ = writeln!(text, "speed = {speed:?}");
            }
        }
        text
    }
}

/// Quotes a TOML basic string. All escapes of JSON are valid in TOML.
fn toml_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// Error of a leaf process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The command does not exist.
    #[error(
        "no `{BINARY}` beside {beside} or in PATH; build it (cargo build --release), or give --leaf FILE"
    )]
    Absent {
        /// Path of this program.
        beside: PathBuf,
    },
    /// The system refused to create a file or the process.
    #[error("{what}: {error}")]
    Io {
        /// Failed action.
        what: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The leaf ended by itself.
    #[error("the leaf ended unexpectedly ({status}); end of its output:{output}")]
    Ended {
        /// Exit status.
        status: ExitStatus,
        /// End of its output, indented.
        output: String,
    },
    /// The leaf did not end after SIGTERM, or failed.
    #[error("the leaf did not end in order ({how}); end of its output:{output}")]
    Failed {
        /// Description of the failure.
        how: String,
        /// End of its output, indented.
        output: String,
    },
}

/// Finds the leaf's command: beside this program, else in PATH.
///
/// # Errors
/// If it is in neither place.
pub fn find() -> Result<PathBuf, ProcessError> {
    let this_program = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        this_program.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join(BINARY))
        .find(|file| file.is_file())
        .ok_or(ProcessError::Absent { beside: this_program })
}

/// A running leaf, spine or agent process, killed on drop. Documentation and messages say "leaf" for all three.
pub struct NodeProcess {
    child: Child,
    /// File with its standard output and error output.
    output: PathBuf,
    /// File to which it writes its account at the end.
    stats: PathBuf,
}

impl NodeProcess {
    /// Starts a leaf with its files in `folder`. The leaf ends by itself after `lifetime`, at least 1 s, in case this
    /// process dies without ending it. With `clock`, it takes its time from that file. `eal` has EAL's arguments.
    ///
    /// # Errors
    /// If its files cannot be written or its process cannot start. If the leaf refuses to run,
    /// [`NodeProcess::check`] reports it.
    pub fn start(
        binary: &Path,
        folder: &Path,
        config: &str,
        lifetime: Duration,
        clock: Option<&Path>,
        eal: &[String],
    ) -> Result<Self, ProcessError> {
        Self::start_by(Command::new(binary), "leaf", folder, config, lifetime, clock, eal)
    }

    /// Starts a leaf, a spine or an agent like [`NodeProcess::start`]. `role` is the subcommand of `wedjat`, and names
    /// the node's files. `command` is `wedjat`, or a program that runs it, such as a shell. This function adds the
    /// arguments of `wedjat`.
    ///
    /// # Errors
    /// Same as for [`NodeProcess::start`].
    pub fn start_by(
        mut command: Command,
        role: &str,
        folder: &Path,
        config: &str,
        lifetime: Duration,
        clock: Option<&Path>,
        eal: &[String],
    ) -> Result<Self, ProcessError> {
        let io = |action: String| move |error| ProcessError::Io { what: action, error };
        let [config_file, output, stats] =
            ["toml", "log", "json"].map(|kind| folder.join(format!("{role}.{kind}")));
        fs::write(&config_file, config)
            .map_err(io(format!("writing {}", config_file.display())))?;
        let log = File::create(&output).map_err(io(format!("creating {}", output.display())))?;
        let err = log.try_clone().map_err(io(format!("sharing {}", output.display())))?;
        let clock = clock.map(|file| [OsStr::new("--clock"), file.as_os_str()]);
        let child = command
            .arg(role)
            .arg("--config")
            .arg(&config_file)
            .arg("--stats")
            .arg(&stats)
            .arg("--duration")
            .arg(format!("{}s", lifetime.as_secs().max(1)))
            .args(["--peer-timeout", PEER_TIMEOUT])
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

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits at most `timeout` for the end of the process, by polling. Returns the exit status; `None` if it still
    /// runs.
    pub fn wait_for_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < timeout {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Checks that the leaf is still running.
    ///
    /// # Errors
    /// If it has ended: the exit status and the end of its output.
    pub fn check(&mut self) -> Result<(), ProcessError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(ProcessError::Ended { status, output: self.output_tail() }),
            Err(error) => Err(ProcessError::Io { what: "watching the leaf".to_owned(), error }),
        }
    }

    /// Ends the leaf in order (SIGTERM) and returns its account.
    ///
    /// # Errors
    /// If the leaf had ended before, does not end, fails, or leaves no account.
    pub fn stop(mut self) -> Result<Value, ProcessError> {
        self.check()?;
        let failed = |how: String, output: String| ProcessError::Failed { how, output };
        if let Some(pid) =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let result = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            result.map_err(|error| failed(format!("SIGTERM: {error}"), self.output_tail()))?;
        }
        let Some(status) = self.wait_for_exit(STOP_TIMEOUT) else {
            let how = format!("still running {} s after SIGTERM", STOP_TIMEOUT.as_secs());
            return Err(failed(how, self.output_tail()));
        };
        if !status.success() {
            return Err(failed(status.to_string(), self.output_tail()));
        }
        let text = fs::read_to_string(&self.stats)
            .map_err(|error| failed(format!("no account: {error}"), self.output_tail()))?;
        serde_json::from_str(&text).map_err(|error| {
            failed(format!("its account is not JSON: {error}"), self.output_tail())
        })
    }

    /// Returns the leaf's output so far; empty if it cannot be read.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Returns the last lines of the leaf's output, indented, without empty ones.
    #[must_use]
    pub fn output_tail(&self) -> String {
        let text = self.output();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        match last.is_empty() {
            true => "\n    (nothing)".to_owned(),
            false => last.iter().map(|line| format!("\n    {line}")).collect(),
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn leaf_accepts_the_configuration() {
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

    /// Starts a shell script in place of a leaf, to test the end of the process. Returns its folder and its process.
    fn leaf(script: &str) -> (tempfile::TempDir, NodeProcess) {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("fake");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let lifetime = Duration::from_secs(60);
        // Another test's fork may hold the script open for writing for a moment (ETXTBSY).
        let process =
            until(|| match NodeProcess::start(&binary, folder.path(), "", lifetime, None, &[]) {
                Err(ProcessError::Io { error, .. })
                    if error.kind() == io::ErrorKind::ExecutableFileBusy =>
                {
                    None
                }
                started => Some(started.expect("started")),
            });
        (folder, process)
    }

    /// Repeats `attempt` until it returns a value.
    fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
        loop {
            match attempt() {
                Some(value) => return value,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    // promise: running.1
    #[test]
    fn stopped_leaf_returns_its_account() {
        // Arguments of the script: leaf --config FILE --stats FILE --duration 60s ... $5 is the account's file.
        let script = "trap 'echo \"{\\\"rx_packets\\\": 5}\" > $5; exit 0' TERM\necho ready\nwhile :; do sleep 0.01; done";
        let (folder, mut process) = leaf(script);
        // After its first output, the script handles SIGTERM.
        until(|| {
            fs::read_to_string(folder.path().join("leaf.log")).ok().filter(|log| !log.is_empty())
        });
        process.check().unwrap();
        assert_eq!(process.stop().unwrap()["rx_packets"], 5);
    }

    #[test]
    fn failed_start_states_the_reason() {
        let (_folder, mut process) = leaf("echo 'no device net_memif0' >&2; exit 3");
        let error = until(|| process.check().err()).to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("no device net_memif0"),
            "{error}"
        );
    }

    #[test]
    fn failed_end_is_an_error() {
        let (folder, process) =
            leaf("trap 'exit 1' TERM\necho ready\nwhile :; do sleep 0.01; done");
        until(|| {
            fs::read_to_string(folder.path().join("leaf.log")).ok().filter(|log| !log.is_empty())
        });
        let error = process.stop().unwrap_err().to_string();
        assert!(error.contains("exit status: 1") && error.contains("ready"), "{error}");
    }

    #[test]
    fn leaf_does_not_outlive_its_owner() {
        let (folder, process) = leaf("echo ready\nwhile :; do sleep 0.01; done");
        until(|| {
            fs::read_to_string(folder.path().join("leaf.log")).ok().filter(|log| !log.is_empty())
        });
        let pid = process.child.id();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
