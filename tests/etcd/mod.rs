//! etcd for tests, as processes of this machine, and a proxy that injects faults into a controller's requests to it.
//! Controllers store the desired state of a fabric in etcd, and compete for the lead with its leases.
#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(clippy::unwrap_used, reason = "a test")]

pub mod proxy;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::free_address::free_address;
use crate::timeouts::wait_until;

/// A member of etcd or a controller, killed on drop so that it ends with the test.
pub struct Process(pub Child);

impl Process {
    /// Sends a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Returns true if a signal has stopped all threads. They stop some time after [`Process::signal`] returns.
    pub fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        threads.flatten().all(|thread| {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            status.contains("State:\tT")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Cluster of etcd, with members on free ports of this machine.
pub struct Etcd {
    /// Folder of the members' data.
    pub folder: tempfile::TempDir,
    /// Processes of the members; `None` for a killed one.
    pub members: Vec<Option<Process>>,
    /// Addresses of each member for clients and for other members.
    addresses: Vec<(SocketAddr, SocketAddr)>,
    /// Further arguments of each member.
    more: Vec<&'static str>,
}

impl Etcd {
    /// Starts etcd with `members` members and waits until it is healthy. Prints a note and returns `None` if it
    /// is not installed.
    pub fn start(members: usize, more: &[&'static str]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!(
                "SKIPPED: etcd is not installed; scripts/deps.sh test installs it where it can"
            );
            return None;
        }
        let address = || free_address().unwrap();
        let addresses = (0..members).map(|_| (address(), address())).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut etcd = Self { folder, members: Vec::new(), addresses, more: more.to_vec() };
        for at in 0..members {
            let member = etcd.spawn(at);
            etcd.members.push(Some(member));
        }
        wait_until("etcd answers", || {
            etcd.assert_running();
            etcd.is_healthy()
        });
        Some(etcd)
    }

    /// Starts the member with index `at`. The caller stores the process in `members`. A killed member continues with
    /// its data.
    pub fn spawn(&self, at: usize) -> Process {
        let (client, peer) = self.addresses[at];
        let url = |address: SocketAddr| format!("http://{address}");
        let all = (0..).zip(&self.addresses).map(|(at, (_, peer))| format!("m{at}={}", url(*peer)));
        let all = all.collect::<Vec<_>>().join(",");
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{at}"), "--unsafe-no-fsync", "--logger", "zap"]);
        command.arg("--data-dir").arg(self.folder.path().join(format!("m{at}")));
        command.args([
            "--listen-client-urls",
            &url(client),
            "--advertise-client-urls",
            &url(client),
        ]);
        command.args([
            "--listen-peer-urls",
            &url(peer),
            "--initial-advertise-peer-urls",
            &url(peer),
        ]);
        command.args(["--initial-cluster", &all]).args(&self.more);
        let log = File::options().create(true).append(true).open(self.log(at)).unwrap();
        Process(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// Returns the path of a member's log.
    fn log(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("m{at}.log"))
    }

    /// Panics with the end of a member's log if the member has ended by itself.
    fn assert_running(&mut self) {
        for at in 0..self.members.len() {
            let Some(Process(member)) = &mut self.members[at] else { continue };
            if let Some(status) = member.try_wait().unwrap() {
                let log = fs::read_to_string(self.log(at)).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(10)..].join("\n");
                panic!("etcd member {at} has ended, {status}:\n{last}");
            }
        }
    }

    /// Returns the addresses of all members for clients.
    pub fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|(client, _)| format!("http://{client}")).collect()
    }

    /// Returns true if the first member knows a leader and accepts writes.
    pub fn is_healthy(&self) -> bool {
        self.is_healthy_at(0)
    }

    /// Returns true if the member `at` knows a leader and accepts writes.
    pub fn is_healthy_at(&self, at: usize) -> bool {
        self.http(at, "GET /health HTTP/1.0", "")
            .is_some_and(|response| response.contains("\"true\""))
    }

    /// Returns the index of the member that leads etcd; `None` without a leader. A leader names itself as the leader.
    pub fn leader(&self) -> Option<usize> {
        let status = |at| self.http(at, "POST /v3/maintenance/status HTTP/1.0", "{}");
        // Returns the value of a text field of the JSON in a response.
        let field = |response: &str, name: &str| {
            let value = response.split_once(&format!("\"{name}\":\""))?.1;
            Some(value.split_once('"')?.0.to_owned())
        };
        (0..self.addresses.len()).find(|&at| {
            let Some(response) = status(at) else { return false };
            let leader = field(&response, "leader");
            leader.is_some() && leader == field(&response, "member_id")
        })
    }

    /// Sends an HTTP request to a member. Returns the response; `None` after a failed connection, or after 10 s without
    /// data, as from a stopped member.
    fn http(&self, at: usize, request: &str, body: &str) -> Option<String> {
        let address = self.addresses[at].0;
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let length = body.len();
        let request =
            format!("{request}\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        Some(response)
    }

    /// Kills a member. Its data stay, for [`Etcd::spawn`].
    pub fn kill(&mut self, at: usize) {
        drop(self.members[at].take());
    }

    /// Sends a signal, such as `-STOP`, to a running member.
    pub fn signal(&self, at: usize, signal: &str) {
        self.members[at].as_ref().unwrap().signal(signal);
    }
}
