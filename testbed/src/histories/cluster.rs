//! Controllers as processes, the members of etcd (a replicated store) behind them, and the network between. With
//! etcd, each process is in a network namespace of its own. This process routes between the namespaces, and
//! must have namespaces of its own too ([`enter_namespaces`]).

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
/// Size of the file system for a store's file, small enough to fill it quickly.
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
            Self::Member(index) => write!(f, "member {}", index + 1),
            Self::Controller(index) => write!(f, "controller {}", index + 1),
        }
    }
}

impl Host {
    /// Returns the number of the host in addresses and names.
    fn number(self) -> usize {
        match self {
            Self::Member(index) => 1 + index,
            Self::Controller(index) => 101 + index,
        }
    }

    /// Returns the name of the host's network namespace.
    fn namespace(self) -> String {
        format!("n{}", self.number())
    }

    /// Returns the name of the router's end of the link.
    fn link(self) -> String {
        format!("v{}", self.number())
    }

    /// Returns the IP address of the host.
    fn address(self) -> String {
        format!("10.0.{}.2", self.number())
    }

    /// Returns a command that runs `program` in the host's namespace.
    fn command(self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace()]).arg(program);
        command
    }
}

/// Runs a command to its end. Returns its error output if it fails.
fn run_command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let describe = |reason: String| format!("{program} {}: {reason}", arguments.join(" "));
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| describe(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(describe(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Runs `ip`, which configures the network.
fn ip(arguments: &str) -> Result<(), String> {
    run_command("ip", &arguments.split(' ').collect::<Vec<_>>())
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

/// Replaces this process by the same program in namespaces of its own. Returns only if that fails, with the
/// reason.
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
    /// Path of the command `wedjat`.
    wedjat: PathBuf,
    /// Processes of etcd; `None` while one is killed.
    members: Vec<Option<ChildProcess>>,
    /// Processes of the controllers; `None` while one is killed.
    controllers: Vec<Option<ChildProcess>>,
    /// Folder of configurations, sockets, logs and the store.
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts all processes, with the command `wedjat`.
    ///
    /// # Errors
    /// If the network, the store's file system or a process cannot be created.
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
            cluster.create_network()?;
            cluster.members.resize_with(MEMBERS, || None);
            (0..MEMBERS).try_for_each(|index| cluster.run(Host::Member(index)))?;
            cluster.controllers.resize_with(CONTROLLERS, || None);
        } else {
            let folder = cluster.store_folder();
            let describe = |error| format!("{}: {error}", folder.display());
            fs::create_dir(&folder).map_err(describe)?;
            let path = folder.to_string_lossy();
            run_command("mount", &["-t", "tmpfs", "-o", STORE_SIZE, "tmpfs", &path])?;
            cluster.controllers.push(None);
        }
        for index in 0..cluster.controllers.len() {
            cluster.configure(index)?;
            cluster.run(Host::Controller(index))?;
        }
        Ok(cluster)
    }

    /// Creates the network: a router, and a link to each host.
    fn create_network(&self) -> Result<(), String> {
        // Namespace names are files in `/run/netns`. These mounts are private to this process.
        run_command("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
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

    /// Returns the folder where the file system for a controller's store file is mounted.
    fn store_folder(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// Returns the folder of the processes' configurations, sockets and logs.
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
    pub fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("controller{}.ctl", index + 1))
    }

    /// Returns the path of a controller's configuration file.
    fn configuration(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("controller{}.toml", index + 1))
    }

    /// Returns the URL of a port of a host. Members of etcd listen on 2379 for clients, on 2380 for each other.
    fn url(host: Host, port: u16) -> String {
        format!("http://{}:{port}", host.address())
    }

    /// Writes the configuration of a controller.
    fn configure(&self, index: usize) -> Result<(), String> {
        let (id, socket) = (index + 1, self.socket(index));
        let mut text = format!("[controller]\nid = {id}\nsocket = '{}'\n", socket.display());
        text += &match self.store {
            Store::Etcd => {
                let urls = (0..MEMBERS).map(|index| Self::url(Host::Member(index), 2379));
                let urls: Vec<_> = urls.collect();
                format!("etcd = {urls:?}\nlease_s = {}\n", self.lease.as_secs())
            }
            Store::File => format!("store = '{}'\n", self.store_folder().join("fabric").display()),
        };
        let file = self.configuration(index);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Returns the entry for the process of a host.
    fn process_slot(&mut self, host: Host) -> &mut Option<ChildProcess> {
        match host {
            Host::Member(index) => &mut self.members[index],
            Host::Controller(index) => &mut self.controllers[index],
        }
    }

    /// Starts the process of a host, unless it was started and not killed since. Does not replace a process that ended
    /// by itself.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn run(&mut self, host: Host) -> Result<(), String> {
        if self.process_slot(host).is_some() {
            return Ok(());
        }
        let command = match (host, self.store) {
            (Host::Member(index), _) => {
                // Arguments: the member's index, its folder, its URLs for clients and members, the URLs of all members.
                let member_command = etcd(
                    index,
                    self.folder.path(),
                    (&Self::url(host, 2379), &Self::url(host, 2380)),
                    &(0..MEMBERS)
                        .map(|index| Self::url(Host::Member(index), 2380))
                        .collect::<Vec<_>>(),
                );
                // The same command, in the host's namespace.
                let mut command = host.command(Path::new(member_command.get_program()));
                command.args(member_command.get_args());
                command
            }
            (Host::Controller(index), store) => {
                let mut command = match store {
                    Store::Etcd => host.command(&self.wedjat),
                    Store::File => Command::new(&self.wedjat),
                };
                command.arg("controller").arg("--config").arg(self.configuration(index));
                command
            }
        };
        let log = self.folder.path().join(format!("{host}.log").replace(' ', ""));
        let log = OpenOptions::new().create(true).append(true).open(&log);
        let log = log.map_err(|error| format!("log of {host}: {error}"))?;
        *self.process_slot(host) = Some(ChildProcess::start(command, Some(log))?);
        Ok(())
    }

    /// Kills the process of a host: `ChildProcess` kills on drop.
    pub fn kill(&mut self, host: Host) {
        drop(self.process_slot(host).take());
    }

    /// Pauses or resumes the process of a host, unless it was killed.
    pub fn pause(&mut self, host: Host, is_paused: bool) {
        let signal = if is_paused { Signal::STOP } else { Signal::CONT };
        if let Some(process) = self.process_slot(host) {
            // The process may have ended by itself.
            let _ = process.signal(signal);
        }
    }

    /// Starts or stops dropping all packets from one host to another, by a routing rule of this process, the router.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn cut(&self, from: Host, to: Host, is_cut: bool) -> Result<(), String> {
        let action = if is_cut { "add" } else { "del" };
        ip(&format!("rule {action} from {} to {} blackhole", from.address(), to.address()))
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
    /// If the file that fills it cannot be created or removed.
    pub fn fill(&self, is_full: bool) -> Result<(), String> {
        let ballast = self.store_folder().join("ballast");
        let describe = |error: std::io::Error| format!("{}: {error}", ballast.display());
        if !is_full {
            return match fs::remove_file(&ballast) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(describe(error)),
                _ => Ok(()),
            };
        }
        // Ever smaller blocks, until not one byte fits.
        let mut file = File::create(&ballast).map_err(describe)?;
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
            let _ = run_command("umount", &[&self.store_folder().to_string_lossy()]);
        }
    }
}
