//! Leaves and agents in processes of their own, on memif sockets and files in a folder of the attack, and
//! their honest drivers (`wedjat-testbed drive` processes, which emulate clients and workers).

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::attack::{Account, Failure};
use crate::demo::leaf::{self, LeafConfig, NodeProcess};
use crate::rack::Layout;

/// Timeout, generous enough for a busy machine. Only a broken promise reaches it.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum lifetime of a node.
const LIFETIME: Duration = Duration::from_secs(600);
/// Number of workers, on two servers or at one agent.
const WORKERS: u16 = 8;
/// Honest tasks per second: few enough for any machine.
const RATE: &str = "1000";

/// A folder with sockets, configurations, states and regions.
pub struct Site {
    folder: tempfile::TempDir,
    /// Path of `wedjat`.
    binary: PathBuf,
    /// CPUs that this process may use.
    cpus: Vec<usize>,
}

/// Results of an honest driver's tasks.
#[derive(Clone, Copy, Debug)]
pub struct DriverOutcomes {
    /// Tasks sent.
    pub sent: u64,
    /// Tasks answered.
    pub answered: u64,
}

/// A process that is killed on drop.
pub struct Job {
    child: Child,
    /// File with its standard output.
    output: PathBuf,
    /// File with its error output.
    errors: PathBuf,
}

impl Site {
    /// Creates an empty folder.
    ///
    /// # Errors
    /// If the folder cannot be created, or no `wedjat` is found.
    pub fn new() -> Result<Self, Failure> {
        let cpus = wedjat::cpus::usable();
        Ok(Self { folder: tempfile::tempdir()?, binary: leaf::find()?, cpus })
    }

    /// Returns the path of a file in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of `wedjat`, the program under attack.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Returns the path of the node's state file.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Returns the path of the agent's region.
    #[must_use]
    pub fn region(&self) -> PathBuf {
        self.path("region")
    }

    /// Returns the path of the node's memif socket on the clients' side.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("clients")
    }

    /// Returns DPDK's argument for the memif device of side `id` (0: clients, 1: workers) in a role, server or client.
    fn device(&self, id: usize, role: &str) -> String {
        let socket = [self.socket(), self.path("workers")][id].display().to_string();
        format!("net_memif{id},role={role},id={id},socket={socket},socket-abstract=no")
    }

    /// Returns a usable CPU. Indices wrap around.
    fn cpu(&self, index: usize) -> usize {
        self.cpus.get(index % self.cpus.len().max(1)).copied().unwrap_or(0)
    }

    /// Returns a leaf's configuration, with its state at `state`.
    ///
    /// # Errors
    /// Never; the values are valid.
    pub fn leaf_config(&self, state: &Path) -> Result<String, Failure> {
        let [clients, workers] = [0, 1].map(|id| self.device(id, "server"));
        let config = LeafConfig {
            policy: &"horus".parse()?,
            // Two servers; worker ids from 0.
            layout: Layout::new("10.0.2.11+2".parse()?, WORKERS / 2, 0)?,
            clients_ip: [10, 0, 1, 1].into(),
            workers_ip: [10, 0, 2, 1].into(),
            clients_device: &clients,
            workers_device: &workers,
            pool: 1,
            udp_port: wedjat::wire::task::UDP_PORT,
            core: self.cpu(0),
            cores: 1,
            state,
            seed: 7,
            queue: None,
            shared_workers: false,
            speeds: &[],
        };
        Ok(config.toml())
    }

    /// Returns an agent's configuration with this state and region. Its clients send to it directly.
    #[must_use]
    pub fn agent_config(&self, state: &Path, region: &Path) -> String {
        format!(
            "[agent]\nname = '{}'\ncore = {}\nstate = '{}'\nseed = 7\n\
             [[port]]\ndevice = '{}'\nip = '10.0.1.1/24'\n\
             [[pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nworkers = '0-{}'\n",
            region.display(),
            self.cpu(0),
            state.display(),
            self.device(0, "server"),
            WORKERS - 1
        )
    }

    /// Starts a leaf with a valid configuration, and waits for its sockets.
    ///
    /// # Errors
    /// If the leaf does not start.
    pub fn leaf(&self) -> Result<NodeProcess, Failure> {
        let mut leaf =
            self.start(Command::new(&self.binary), "leaf", &self.leaf_config(&self.state())?)?;
        let control = wedjat::admin::socket_path(&self.state());
        let is_ready = || self.socket().exists() && control.exists();
        self.until("the leaf's sockets", || Ok(leaf.check().map(|()| is_ready())?))?;
        Ok(leaf)
    }

    /// Starts an agent with a valid configuration, and waits for its socket and region.
    ///
    /// # Errors
    /// If the agent does not start.
    pub fn agent(&self) -> Result<NodeProcess, Failure> {
        let config = self.agent_config(&self.state(), &self.region());
        let mut agent = self.start(Command::new(&self.binary), "agent", &config)?;
        let is_ready = || self.socket().exists() && self.region().exists();
        self.until("the agent's region", || Ok(agent.check().map(|()| is_ready())?))?;
        Ok(agent)
    }

    /// Starts a leaf or an agent (`role`) by a command that takes `wedjat`'s arguments.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(
        &self,
        command: Command,
        role: &str,
        config: &str,
    ) -> Result<NodeProcess, Failure> {
        let eal = ["--no-pci".to_owned()];
        // `None`: the node uses real time.
        Ok(NodeProcess::start_by(command, role, self.folder.path(), config, LIFETIME, None, &eal)?)
    }

    /// Returns counter `name` of the node's first core; 0 if the state lacks it or cannot be read.
    ///
    /// # Errors
    /// If `wedjat state` cannot be run.
    pub fn counter(&self, name: &str) -> Result<u64, Failure> {
        let output =
            Command::new(&self.binary).arg("state").arg(self.state()).arg("--json").output()?;
        let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let count = state.pointer(&format!("/cores/0/counters/{name}")).and_then(Value::as_u64);
        Ok(count.unwrap_or(0))
    }

    /// Waits until `condition` returns true. `goal` names the awaited state in the error.
    ///
    /// # Errors
    /// If this does not happen within [`TIMEOUT`], or `condition` fails.
    pub fn until(
        &self,
        goal: &str,
        mut condition: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        while !condition()? {
            if began.elapsed() > TIMEOUT {
                return Err(format!("timeout while waiting for {goal}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Returns the command of an honest driver, without its servers or workers.
    fn driver(&self, seconds: f64) -> Result<Command, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["drive", "--rate", RATE, "--service", "exp(100us)", "--format", "json"]);
        command.args(["--warmup", "0s", "--drain", "5s", "--workers", &WORKERS.to_string()]);
        command.args(["--duration", &format!("{}ms", (seconds * 1e3) as u64)]);
        command.args(["--core", &self.cpu(1).to_string()]);
        command.args(["--client-device", &self.device(0, "client")]);
        Ok(command)
    }

    /// Starts an honest driver of the leaf: clients and servers.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_drive(&self, seconds: f64) -> Result<Job, Failure> {
        let mut command = self.driver(seconds)?;
        command.args(["--servers", "10.0.2.11+2", "--worker-device", &self.device(1, "client")]);
        Job::start(command.args(["--", "--no-pci"]), &self.path("drive"))
    }

    /// Starts an honest driver of the agent: clients, and workers at the agent.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_attached(&self, seconds: f64) -> Result<Job, Failure> {
        let mut command = self.driver(seconds)?;
        command.arg("--attach").arg(self.region());
        Job::start(command.args(["--", "--no-pci"]), &self.path("drive"))
    }

    /// Drives the leaf from both sides for `seconds` seconds, and waits for the driver's report.
    ///
    /// # Errors
    /// If the driver does not start, does not end within [`TIMEOUT`], or makes no report.
    pub fn drive(&self, seconds: f64) -> Result<DriverOutcomes, Failure> {
        self.start_drive(seconds)?.outcomes()
    }
}

impl Job {
    /// Starts a command whose output goes to files of this name.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(command: &mut Command, name: &Path) -> Result<Self, Failure> {
        let [output, errors] = ["out", "err"].map(|kind| name.with_extension(kind));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .stderr(File::create(&errors)?)
            .spawn()?;
        Ok(Self { child, output, errors })
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the process has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end of the process. Returns its status, its output and its error output.
    ///
    /// # Errors
    /// If the process does not end within [`TIMEOUT`].
    pub fn finish(mut self) -> Result<(ExitStatus, String, String), Failure> {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if began.elapsed() > TIMEOUT {
                return Err(format!("a started process did not end: {}", read(&self.errors)).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Ok((status, read(&self.output), read(&self.errors)))
    }

    /// Waits for a driver's end and parses its report.
    ///
    /// # Errors
    /// If the driver does not end within [`TIMEOUT`], or made no report.
    pub fn outcomes(self) -> Result<DriverOutcomes, Failure> {
        let (status, output, errors) = self.finish()?;
        let report: Value = serde_json::from_str(&output).map_err(|_| {
            format!("the honest driver made no report ({status}): {}", errors.trim())
        })?;
        let count = |key: &str| {
            report[key].as_u64().ok_or_else(|| format!("the honest driver's report lacks {key:?}"))
        };
        Ok(DriverOutcomes { sent: count("sent")?, answered: count("answered")? })
    }
}

/// Reads a file as text; empty if it cannot be read.
fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Drop for Job {
    fn drop(&mut self) {
        // Both calls fail if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a node.
pub fn send_signal(node: &NodeProcess, signal: Signal) -> Result<(), Failure> {
    let pid = Pid::from_raw(i32::try_from(node.id())?).ok_or("no process")?;
    Ok(kill_process(pid, signal)?)
}

/// Describes the end of a process.
#[must_use]
pub fn describe_exit(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => status.to_string(),
    }
}

/// Checks that a node still runs, and records the reason of its end otherwise. Returns true if it runs.
pub fn check_alive(account: &mut Account, promise: &str, node: &mut NodeProcess) -> bool {
    let alive = node.check();
    let reason = alive.as_ref().err().map(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    });
    account.check(promise, alive.is_ok(), reason.unwrap_or_default());
    alive.is_ok()
}

/// Checks that all tasks of an honest driver were answered.
pub fn check_outcomes(
    account: &mut Account,
    promise: &str,
    outcomes: Result<DriverOutcomes, Failure>,
) {
    match outcomes {
        Ok(DriverOutcomes { sent, answered }) => {
            account.tried("honest tasks", sent);
            account.check(promise, sent > 0 && sent == answered, format!("{answered} of {sent}"));
        }
        Err(error) => account.check(promise, false, error.to_string().replace('\n', " ")),
    }
}

/// Ends a node in order and checks its account. The ledger must balance: received packets equal those sent on,
/// consumed, dropped and held. All packet buffers must be free.
pub fn check_end(account: &mut Account, name: &str, node: NodeProcess) {
    let promise =
        format!("{name}: the node ends in order, with a balanced ledger and all buffers returned");
    match node.stop() {
        Ok(end) => {
            let is_complete = end["balanced"] == true && end["mbufs_leaked"] == 0;
            let found =
                format!("balanced {}, {} buffers missing", end["balanced"], end["mbufs_leaked"]);
            account.check(promise, is_complete, found);
        }
        Err(error) => account.check(promise, false, error.to_string().replace('\n', " ")),
    }
}

/// Returns the numbers of file descriptors and threads of a process; 0 if they cannot be read.
#[must_use]
pub fn resources(pid: u32) -> (usize, usize) {
    let count = |list: &str| fs::read_dir(format!("/proc/{pid}/{list}")).map_or(0, Iterator::count);
    (count("fd"), count("task"))
}
