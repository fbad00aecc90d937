//! Controllers as processes, the members of etcd behind them, and the network between. Each process is in a
//! network namespace of its own, and a router joins these. The calling process must have namespaces of its
//! own ([`enter_namespaces`]).

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::demo::fabric::controllers::{ChildProcess, etcd};

/// Number of members of etcd.
pub const MEMBERS: usize = 3;
/// Number of controllers over etcd.
pub const CONTROLLERS: usize = 3;
/// Size of the file system for the file of a store.
const STORE_SIZE: &str = "size=16m";

/// Store of the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Store {
    /// Three controllers over an etcd of three members
    Etcd,
    /// One controller with a file
    File,
}

impl Store {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::File => "file",
        }
    }
}

/// Host of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Member of etcd, from 0.
    Member(usize),
    /// Controller, from 0.
    Controller(usize),
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Member(at) => write!(f, "member {}", at + 1),
            Self::Controller(at) => write!(f, "controller {}", at + 1),
        }
    }
}

impl Host {
    fn number(self) -> usize {
        match self {
            Self::Member(at) => 1 + at,
            Self::Controller(at) => 101 + at,
        }
    }

    fn namespace(self) -> String {
        format!("n{}", self.number())
    }

    /// Returns the name of the router's end of the link.
    fn link(self) -> String {
        format!("v{}", self.number())
    }

    fn address(self) -> String {
        format!("10.0.{}.2", self.number())
    }

    fn command(self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace()]).arg(program);
        command
    }
}

fn call(program: &str, arguments: &[&str]) -> Result<(), String> {
    let failed = |reason: String| format!("{program} {}: {reason}", arguments.join(" "));
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    call("ip", &arguments.split(' ').collect::<Vec<_>>())
}

/// Returns a command that runs another one with its own network, mounts and processes. All processes end with
/// it.
fn in_namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

/// Returns the reason why this process cannot have namespaces of its own; `None` if it can.
#[must_use]
pub fn lacks_namespaces() -> Option<String> {
    let script =
        "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add n && ip netns exec n true";
    let output = in_namespaces().args(["sh", "-c", script]).output();
    let reason = match output {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare: {error}"),
    };
    Some(format!(
        "this user cannot create network namespaces ({reason}); run as root, with the packages util-linux and iproute2 \
         installed"
    ))
}

/// Starts this program again in namespaces of its own. Returns only if that fails.
#[must_use]
pub fn enter_namespaces(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> String {
    if let Some(reason) = lacks_namespaces() {
        return reason;
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return format!("path of this program: {error}"),
    };
    let error = in_namespaces().arg(program).args(arguments).exec();
    format!("unshare: {error}")
}

/// Controllers and their store.
#[derive(Debug)]
pub struct Cluster {
    store: Store,
    lease: Duration,
    wedjat: PathBuf,
    members: Vec<Option<ChildProcess>>,
    controllers: Vec<Option<ChildProcess>>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts all processes, with the command `wedjat`.
    ///
    /// # Errors
    /// If the system or a process refuses.
    pub fn start(store: Store, wedjat: &Path, lease: Duration) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("histories").tempdir();
        let folder = folder.map_err(|error| error.to_string())?;
        let mut cluster = Self {
            store,
            lease,
            wedjat: wedjat.to_owned(),
            members: Vec::new(),
            controllers: Vec::new(),
            folder,
        };
        if store == Store::Etcd {
            cluster.join()?;
            cluster.members.resize_with(MEMBERS, || None);
            (0..MEMBERS).try_for_each(|at| cluster.run(Host::Member(at)))?;
            cluster.controllers.resize_with(CONTROLLERS, || None);
        } else {
            let folder = cluster.store_folder();
            let failed = |error| format!("{}: {error}", folder.display());
            fs::create_dir(&folder).map_err(failed)?;
            let at = folder.to_string_lossy();
            call("mount", &["-t", "tmpfs", "-o", STORE_SIZE, "tmpfs", &at])?;
            cluster.controllers.push(None);
        }
        for at in 0..cluster.controllers.len() {
            cluster.configure(at)?;
            cluster.run(Host::Controller(at))?;
        }
        Ok(cluster)
    }

    /// Creates the network: a router, and a link to each host.
    fn join(&self) -> Result<(), String> {
        // Namespace names are files in `/run/netns`. These mounts are private to this process.
        call("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
        fs::create_dir("/run/netns").map_err(|error| format!("/run/netns: {error}"))?;
        let forward = "/proc/sys/net/ipv4/ip_forward";
        fs::write(forward, "1").map_err(|error| format!("{forward}: {error}"))?;
        let members = (0..MEMBERS).map(Host::Member);
        for host in members.chain((0..CONTROLLERS).map(Host::Controller)) {
            let (name, link, number) = (host.namespace(), host.link(), host.number());
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add {link} type veth peer name eth0 netns {name}"))?;
            ip(&format!("addr add 10.0.{number}.1/24 dev {link}"))?;
            ip(&format!("link set {link} up"))?;
            ip(&format!("-n {name} addr add {}/24 dev eth0", host.address()))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} route add default via 10.0.{number}.1"))?;
        }
        Ok(())
    }

    fn store_folder(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Returns the folder of the processes' logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the number of controllers.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.controllers.len()
    }

    /// Returns the socket of a controller.
    #[must_use]
    pub fn socket(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("controller{}.ctl", at + 1))
    }

    fn configuration(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("controller{}.toml", at + 1))
    }

    fn url(host: Host, port: u16) -> String {
        format!("http://{}:{port}", host.address())
    }

    fn configure(&self, at: usize) -> Result<(), String> {
        let (id, socket) = (at + 1, self.socket(at));
        let mut text = format!("[controller]\nid = {id}\nsocket = '{}'\n", socket.display());
        text += &match self.store {
            Store::Etcd => {
                let urls = (0..MEMBERS).map(|at| Self::url(Host::Member(at), 2379));
                let urls: Vec<_> = urls.collect();
                format!("etcd = {urls:?}\nlease_s = {}\n", self.lease.as_secs())
            }
            Store::File => format!("store = '{}'\n", self.store_folder().join("fabric").display()),
        };
        let file = self.configuration(at);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn place(&mut self, host: Host) -> &mut Option<ChildProcess> {
        match host {
            Host::Member(at) => &mut self.members[at],
            Host::Controller(at) => &mut self.controllers[at],
        }
    }

    /// Starts the process of a host, unless it runs.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn run(&mut self, host: Host) -> Result<(), String> {
        if self.place(host).is_some() {
            return Ok(());
        }
        let command = match (host, self.store) {
            (Host::Member(at), _) => {
                let own = etcd(
                    at,
                    self.folder.path(),
                    (&Self::url(host, 2379), &Self::url(host, 2380)),
                    &(0..MEMBERS).map(|at| Self::url(Host::Member(at), 2380)).collect::<Vec<_>>(),
                );
                let mut command = host.command(Path::new(own.get_program()));
                command.args(own.get_args());
                command
            }
            (Host::Controller(at), store) => {
                let mut command = match store {
                    Store::Etcd => host.command(&self.wedjat),
                    Store::File => Command::new(&self.wedjat),
                };
                command.arg("controller").arg("--config").arg(self.configuration(at));
                command
            }
        };
        let log = self.folder.path().join(format!("{host}.log").replace(' ', ""));
        let log = OpenOptions::new().create(true).append(true).open(&log);
        let log = log.map_err(|error| format!("log of {host}: {error}"))?;
        *self.place(host) = Some(ChildProcess::start(command, Some(log))?);
        Ok(())
    }

    /// Kills the process of a host.
    pub fn kill(&mut self, host: Host) {
        drop(self.place(host).take());
    }

    /// Pauses or resumes a process, unless it was killed.
    pub fn pause(&mut self, host: Host, is_paused: bool) {
        let signal = if is_paused { Signal::STOP } else { Signal::CONT };
        if let Some(process) = self.place(host) {
            let _ = process.signal(signal);
        }
    }

    /// Starts or stops dropping all packets from one host to another.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn cut(&self, from: Host, to: Host, is_cut: bool) -> Result<(), String> {
        let verb = if is_cut { "add" } else { "del" };
        ip(&format!("rule {verb} from {} to {} blackhole", from.address(), to.address()))
    }

    /// Takes the link of a host down or up.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn unplug(&self, host: Host, is_down: bool) -> Result<(), String> {
        ip(&format!("link set {} {}", host.link(), if is_down { "down" } else { "up" }))
    }

    /// Fills the file system of the store, or frees it again.
    ///
    /// # Errors
    /// If this fails for any reason except a full file system.
    pub fn fill(&self, is_full: bool) -> Result<(), String> {
        let ballast = self.store_folder().join("ballast");
        let failed = |error: std::io::Error| format!("{}: {error}", ballast.display());
        if !is_full {
            return match fs::remove_file(&ballast) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
                _ => Ok(()),
            };
        }
        let mut file = File::create(&ballast).map_err(failed)?;
        for size in [1 << 16, 1 << 10, 1] {
            let block = vec![0; size];
            while file.write_all(&block).is_ok() {}
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.controllers.clear();
        self.members.clear();
        if self.store == Store::File {
            let _ = call("umount", &[&self.store_folder().to_string_lossy()]);
        }
    }
}
