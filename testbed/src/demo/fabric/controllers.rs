//! Controllers as processes in real time, beside the emulated fabric: two over an etcd of three members, or one with
//! a file.
//!
//! A controller stores the desired state of a fabric, which has a version. The leader is the controller that may change
//! it while its lease lasts. The demo stops and kills leaders to show that the standby takes over.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wedjat::config::ControllerAddress;
use wedjat::controller::{Command, ControllerClient};

use crate::free_address::free_address;

/// Lease of the leader, the shortest that etcd grants.
pub const LEASE: Duration = Duration::from_secs(2);
/// Maximum time until a deposed or killed leader is replaced: its lease and a second for the election.
pub const CHANGE_MAX: Duration = Duration::from_secs(LEASE.as_secs() + 1);
/// Longest wait for any condition.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between attempts to meet a condition.
const RETRY: Duration = Duration::from_millis(20);
/// Number of etcd members.
const MEMBERS: usize = 3;

/// Child process, killed on drop, so that no process outlives the run. `histories` uses it, too.
#[derive(Debug)]
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    /// Starts a process. Its standard error goes to `log`, or is discarded.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn start(mut command: Process, log: Option<File>) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let log = log.map_or_else(Stdio::null, Stdio::from);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        child.map(Self).map_err(|error| format!("{program}: {error}"))
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).map_err(|error| format!("process {}: {error}", self.0.id()))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Controllers as processes. If there are several, they share an etcd.
pub struct Controllers {
    /// Controllers with ids from 1; `None` for a killed one.
    controllers: Vec<Option<ChildProcess>>,
    /// Members of etcd; `None` for a killed one.
    members: Vec<Option<ChildProcess>>,
    /// Id of the paused controller, to which no request is sent, because it would not answer; 0 for none.
    paused: Cell<usize>,
    /// Folder of configuration files, sockets and data.
    folder: tempfile::TempDir,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").field("folder", &self.folder.path()).finish_non_exhaustive()
    }
}

/// Returns true if etcd is installed.
#[must_use]
pub fn has_etcd() -> bool {
    let mut version = Process::new("etcd");
    let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Builds the command of etcd member `index`, with its own URLs for clients and peers. `folder` has its data;
/// `peer_urls` lists the peer URLs of all members. The member does not wait for the disk (`--unsafe-no-fsync`),
/// because its data ends with the run.
pub(crate) fn etcd(
    index: usize,
    folder: &Path,
    (clients, peers): (&str, &str),
    peer_urls: &[String],
) -> Process {
    let members: Vec<_> =
        (0..).zip(peer_urls).map(|(index, url)| format!("m{index}={url}")).collect();
    let mut command = Process::new("etcd");
    command.args(["--name", &format!("m{index}"), "--unsafe-no-fsync", "--logger", "zap"]);
    command.arg("--data-dir").arg(folder.join(format!("m{index}")));
    command.args(["--listen-client-urls", clients, "--advertise-client-urls", clients]);
    command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
    command.args(["--initial-cluster", &members.join(",")]);
    command
}

impl Controllers {
    /// Starts the controllers by the command `wedjat` and waits until one leads.
    ///
    /// # Errors
    /// If they cannot start.
    pub fn start(wedjat: &Path, with_etcd: bool) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut controllers =
            Self { controllers: Vec::new(), members: Vec::new(), paused: Cell::new(0), folder };
        let store = if with_etcd { controllers.start_etcd()? } else { controllers.store() };
        for id in 1..=if with_etcd { 2 } else { 1 } {
            let file = controllers.folder.path().join(format!("controller{id}.toml"));
            let socket = controllers.socket(id);
            let text = format!("[controller]\nid = {id}\nsocket = '{}'\n{store}", socket.display());
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
            let mut command = Process::new(wedjat);
            command.arg("controller").arg("--config").arg(&file);
            controllers.controllers.push(Some(ChildProcess::start(command, None)?));
        }
        let began = Instant::now();
        while controllers.leader().is_none() {
            wait(began, "no controller leads")?;
        }
        Ok(controllers)
    }

    /// Returns the store's line for the configuration file of a single controller.
    fn store(&self) -> String {
        format!("store = '{}'\n", self.folder.path().join("fabric").display())
    }

    /// Starts the members of etcd. Returns the lines for a controller's configuration file.
    fn start_etcd(&mut self) -> Result<String, String> {
        let addresses = (0..2 * MEMBERS).map(|_| free_address()).collect::<Result<Vec<_>, _>>();
        let addresses = addresses.map_err(|error| error.to_string())?;
        let url = |index: usize| format!("http://{}", addresses[index]);
        let peer_urls: Vec<_> = (0..MEMBERS).map(|index| url(MEMBERS + index)).collect();
        for index in 0..MEMBERS {
            let command =
                etcd(index, self.folder.path(), (&url(index), &peer_urls[index]), &peer_urls);
            self.members.push(Some(ChildProcess::start(command, None)?));
        }
        let urls: Vec<_> = (0..MEMBERS).map(|index| format!("'{}'", url(index))).collect();
        Ok(format!("etcd = [{}]\nlease_s = {}\n", urls.join(", "), LEASE.as_secs()))
    }

    /// Returns the path of the control socket of controller `id`.
    fn socket(&self, id: usize) -> PathBuf {
        self.folder.path().join(format!("controller{id}.ctl"))
    }

    /// Returns true if there is an etcd and thus a standby controller.
    #[must_use]
    pub fn has_standby(&self) -> bool {
        !self.members.is_empty()
    }

    /// Connects to controller `id` as an operator, without TLS; `None` if it does not listen.
    fn operator(&self, id: usize) -> Option<ControllerClient> {
        ControllerClient::open(&ControllerAddress::Socket(self.socket(id)), None).ok()
    }

    /// Returns the leader's id and the version of its desired state; `None` if no controller leads. Only a leader
    /// answers a request for the topology.
    fn leader(&self) -> Option<(usize, u64)> {
        let running = (1..).zip(&self.controllers).filter(|(_, process)| process.is_some());
        let running = running.filter(|(id, _)| *id != self.paused.get());
        let leader_version = |(id, _)| Some((id, self.operator(id)?.topology().ok()?.version));
        running.map(leader_version).find_map(|leader| leader)
    }

    /// Lets the leader execute a command that results in `version` of the desired state. Retries without a leader, an
    /// answer or success. If a command was not answered, the leader's version shows if it was stored.
    ///
    /// # Errors
    /// If no controller leads or executes the command within 60 s, or the leader's version is neither `version`
    /// nor the one before.
    pub fn store_command(&self, command: &Command, version: u64) -> Result<(), String> {
        let (began, mut reason) = (Instant::now(), "no controller leads".to_owned());
        loop {
            match self.leader() {
                Some((_, current)) if current == version => return Ok(()),
                // The leader executes the command only at version `current`, so a retry never executes it twice.
                Some((id, current)) if current + 1 == version => {
                    let result = self
                        .operator(id)
                        .map(|mut operator| operator.command(command, Some(current)));
                    match result {
                        Some(Ok(_)) => return Ok(()),
                        Some(Err(error)) => reason = format!("{command}: {error}"),
                        None => {}
                    }
                }
                Some((id, current)) => {
                    return Err(format!(
                        "controller {id} is already at version {current}, expected {version}"
                    ));
                }
                None => {}
            }
            wait(began, &reason)?;
        }
    }

    /// Stops the leader while `takeover` runs, during which another controller must take over. Then resumes it and
    /// checks that it does not execute `write`. A controller that cannot be reached passes this check.
    ///
    /// # Errors
    /// If no controller leads, a signal cannot be sent, `takeover` fails, or the deposed one writes.
    pub fn depose_leader(
        &self,
        takeover: impl FnOnce() -> Result<(), String>,
        write: &Command,
    ) -> Result<(), String> {
        let (id, _) = self.leader().ok_or("no controller leads")?;
        let signal = |signal| {
            let controller = self.controllers[id - 1].as_ref().ok_or("no process")?;
            controller.signal(signal).map_err(|error| format!("controller {id}: {error}"))
        };
        signal(Signal::STOP)?;
        self.paused.set(id);
        let result = takeover();
        signal(Signal::CONT)?;
        self.paused.set(0);
        result?;
        match self.operator(id).map(|mut operator| operator.command(write, None)) {
            Some(Ok(result)) => {
                Err(format!("deposed controller {id} wrote version {}", result.version))
            }
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Kills the leader.
    ///
    /// # Errors
    /// If no controller leads.
    pub fn kill_leader(&mut self) -> Result<(), String> {
        let (id, _) = self.leader().ok_or("no controller leads")?;
        drop(self.controllers[id - 1].take());
        Ok(())
    }

    /// Kills the first member of etcd that still runs.
    pub fn kill_member(&mut self) {
        drop(self.members.iter_mut().find_map(Option::take));
    }
}

/// Waits until the next attempt. Returns an error with `reason` once [`TIMEOUT`] has passed since `began`.
fn wait(began: Instant, reason: &str) -> Result<(), String> {
    std::thread::sleep(RETRY);
    if began.elapsed() < TIMEOUT {
        Ok(())
    } else {
        Err(format!("{reason} after {} s", TIMEOUT.as_secs()))
    }
}
