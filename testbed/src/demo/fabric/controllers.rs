//! Controllers as processes, in real time: two over an etcd of three members where it is installed, else one with a file.

use std::cell::Cell;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wedjat::config::ControllerAddress;
use wedjat::controller::{Command, Operator};

/// The least that etcd gives.
pub const LEASE: Duration = Duration::from_secs(2);
/// A deposed or killed leader is replaced within so long.
pub const CHANGE_MAX: Duration = Duration::from_secs(LEASE.as_secs() + 1);
/// Whatever is waited for comes within so long, or not at all.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(20);
const MEMBERS: usize = 3;

/// A process that ends with this one.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Starts a process. Its messages go to `log`, or nowhere.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn start(mut command: Process, log: Option<File>) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let log = log.map_or_else(Stdio::null, Stdio::from);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        child.map(Self).map_err(|error| format!("{program}: {error}"))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, signal).map_err(|error| format!("process {}: {error}", self.0.id()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Controllers as processes, and the etcd that they share if there are several.
pub struct Controllers {
    controllers: Vec<Option<Running>>,
    members: Vec<Option<Running>>,
    /// The one that stands still, which need not be asked.
    still: Cell<usize>,
    folder: tempfile::TempDir,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controllers").field("folder", &self.folder.path()).finish_non_exhaustive()
    }
}

/// etcd can be started here.
#[must_use]
pub fn has_etcd() -> bool {
    let mut version = Process::new("etcd");
    let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

fn free_port() -> Result<u16, String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    port.map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}

/// Command of a member of etcd: its number, folder, URLs for clients and for peers, and the peers' URLs of all members.
pub(crate) fn etcd(
    at: usize,
    folder: &Path,
    (clients, peers): (&str, &str),
    all: &[String],
) -> Process {
    let members: Vec<_> = (0..).zip(all).map(|(at, url)| format!("m{at}={url}")).collect();
    let mut command = Process::new("etcd");
    command.args(["--name", &format!("m{at}"), "--unsafe-no-fsync", "--logger", "zap"]);
    command.arg("--data-dir").arg(folder.join(format!("m{at}")));
    command.args(["--listen-client-urls", clients, "--advertise-client-urls", clients]);
    command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
    command.args(["--initial-cluster", &members.join(",")]);
    command
}

impl Controllers {
    /// Starts them, by this command of `wedjat`, and waits until one leads.
    ///
    /// # Errors
    /// Why there are none.
    pub fn start(wedjat: &Path, with_etcd: bool) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut all =
            Self { controllers: Vec::new(), members: Vec::new(), still: Cell::new(0), folder };
        let store = if with_etcd { all.start_etcd()? } else { all.store() };
        for id in 1..=if with_etcd { 2 } else { 1 } {
            let file = all.folder.path().join(format!("controller{id}.toml"));
            let socket = all.socket(id);
            let text = format!("[controller]\nid = {id}\nsocket = '{}'\n{store}", socket.display());
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
            let mut command = Process::new(wedjat);
            command.arg("controller").arg("--config").arg(&file);
            all.controllers.push(Some(Running::start(command, None)?));
        }
        let began = Instant::now();
        while all.leader().is_none() {
            wait(began, "no controller leads")?;
        }
        Ok(all)
    }

    fn store(&self) -> String {
        format!("store = '{}'\n", self.folder.path().join("fabric").display())
    }

    /// Starts etcd's members; what a controller's file says of them.
    fn start_etcd(&mut self) -> Result<String, String> {
        let ports = (0..2 * MEMBERS).map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
        let url = |port: usize| format!("http://127.0.0.1:{}", ports[port]);
        let all: Vec<_> = (0..MEMBERS).map(|at| url(MEMBERS + at)).collect();
        for at in 0..MEMBERS {
            let command = etcd(at, self.folder.path(), (&url(at), &all[at]), &all);
            self.members.push(Some(Running::start(command, None)?));
        }
        let urls: Vec<_> = (0..MEMBERS).map(|at| format!("'{}'", url(at))).collect();
        Ok(format!("etcd = [{}]\nlease_s = {}\n", urls.join(", "), LEASE.as_secs()))
    }

    fn socket(&self, id: usize) -> PathBuf {
        self.folder.path().join(format!("controller{id}.ctl"))
    }

    /// There is an etcd, and so a controller that stands by.
    #[must_use]
    pub fn has_standby(&self) -> bool {
        !self.members.is_empty()
    }

    fn operator(&self, id: usize) -> Option<Operator> {
        Operator::open(&ControllerAddress::Socket(self.socket(id)), None).ok()
    }

    /// The controller that leads, and the version that it has.
    fn leader(&self) -> Option<(usize, u64)> {
        let running = (1..).zip(&self.controllers).filter(|(_, one)| one.is_some());
        let running = running.filter(|(id, _)| *id != self.still.get());
        let leads = |(id, _)| Some((id, self.operator(id)?.topology().ok()?.version));
        running.map(leads).find_map(|found| found)
    }

    /// Has whoever leads do a command that leads to this version. Whether one that was not answered is kept its version tells.
    ///
    /// # Errors
    /// When nobody leads, or does it.
    pub fn keep(&self, command: &Command, version: u64) -> Result<(), String> {
        let (began, mut reason) = (Instant::now(), "no controller leads".to_owned());
        loop {
            match self.leader() {
                Some((_, found)) if found == version => return Ok(()),
                Some((id, found)) if found + 1 == version => {
                    let done = self.operator(id).map(|mut one| one.command(command, Some(found)));
                    match done {
                        Some(Ok(_)) => return Ok(()),
                        Some(Err(error)) => reason = format!("{command}: {error}"),
                        None => {}
                    }
                }
                Some((id, found)) => {
                    return Err(format!("controller {id} has version {found} before {version}"));
                }
                None => {}
            }
            wait(began, &reason)?;
        }
    }

    /// Has the controller that leads stand still while `meanwhile` is done, which another has to keep. What it is asked to write as
    /// soon as it goes on, it must refuse.
    ///
    /// # Errors
    /// When none leads, or it writes.
    pub fn depose_leader(
        &self,
        meanwhile: impl FnOnce() -> Result<(), String>,
        write: &Command,
    ) -> Result<(), String> {
        let (id, _) = self.leader().ok_or("no controller leads")?;
        let signal = |signal| {
            let controller = self.controllers[id - 1].as_ref().ok_or("no process")?;
            controller.signal(signal).map_err(|error| format!("controller {id}: {error}"))
        };
        signal(Signal::STOP)?;
        self.still.set(id);
        let done = meanwhile();
        signal(Signal::CONT)?;
        self.still.set(0);
        done?;
        match self.operator(id).map(|mut one| one.command(write, None)) {
            Some(Ok(done)) => {
                Err(format!("deposed controller {id} wrote version {}", done.version))
            }
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// Kills the controller that leads.
    ///
    /// # Errors
    /// When none does.
    pub fn kill_leader(&mut self) -> Result<(), String> {
        let (id, _) = self.leader().ok_or("no controller leads")?;
        drop(self.controllers[id - 1].take());
        Ok(())
    }

    /// Kills a member of etcd.
    pub fn kill_member(&mut self) {
        drop(self.members.iter_mut().find_map(Option::take));
    }
}

fn wait(began: Instant, what: &str) -> Result<(), String> {
    std::thread::sleep(RETRY);
    if began.elapsed() < PATIENCE {
        Ok(())
    } else {
        Err(format!("{what} after {} s", PATIENCE.as_secs()))
    }
}
