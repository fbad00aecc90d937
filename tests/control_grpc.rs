//! A node's control over gRPC, used by clients of all kinds: the effect of each call, and the rejection of
//! bad input.
//!
//! The node is a leaf, which schedules the tasks of a rack. Its control shows and changes its membership: pools,
//! servers (worker hosts) and workers. Each accepted request increments the membership's version; the cores apply it
//! later, and acknowledge it. The control listens on a socket beside the state file and, if configured, at a TCP
//! address, without TLS only on loopback. Another listener serves metrics over HTTP. The leaf runs in threads of the
//! test, over ports in memory.
#![cfg(feature = "admin")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod rig;
mod timeouts;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use wedjat::admin::generated as proto;
use wedjat::admin::generated::control_client::ControlClient;
use wedjat::admin::metrics::families;
use wedjat::admin::{Access, Connection, Handle, Requests, Server, reload, socket_path};
use wedjat::config::{Config, ControlConfig};
use wedjat::stats::PortStats;

use rig::{CoreRig, Sizes};
use timeouts::{TIMEOUT, wait_until};

/// Returns the leaf's configuration: two servers with workers 10 to 17 in pool 7, and the lines `more`.
fn text(state: &Path, more: &str) -> String {
    format!(
        "[leaf]\nid = 1\ncores = [1]\nseed = 7\npools_max = 6\nstate = '{}'\n\
         [[port]]\ndevice = 'clients'\nside = 'clients'\nip = '10.0.1.1/24'\n\
         [[port]]\ndevice = 'workers'\nside = 'workers'\nip = '10.0.2.1/24'\n\
         [[pool]]\nid = 7\npolicy = 'horus'\n\
         [[server]]\nip = '10.0.2.11'\nworkers = '10-13'\npool = 7\n\
         [[server]]\nip = '10.0.2.12'\nworkers = '14-17'\npool = 7\n{more}",
        state.display()
    )
}

/// A leaf that polls in the background, with its control.
struct Node {
    /// Folder of the configuration and the state file.
    folder: tempfile::TempDir,
    /// True when the threads should end.
    stop: Arc<AtomicBool>,
    /// True while the core must not poll.
    pause: Arc<AtomicBool>,
    /// Threads of the core and of the control.
    threads: Vec<JoinHandle<()>>,
    /// The control's gRPC server.
    server: Option<Server>,
}

impl Node {
    /// Starts a leaf.
    fn start() -> Self {
        Self::with("")
    }

    /// Starts a leaf with additional lines in its configuration.
    fn with(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (state, file) = (folder.path().join("state"), folder.path().join("leaf.toml"));
        fs::write(&file, text(&state, more)).unwrap();
        let config = Config::load(&file).unwrap_or_else(|error| panic!("{error}"));
        let (stop, pause) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let mut node = Self { folder, stop, pause, threads: Vec::new(), server: None };
        let handle = node.run(config.clone());
        let server = Server::start(&config.control, Some(&state), handle, &[]).unwrap();
        node.server = server;
        node
    }

    /// Starts the threads of the core and of the control. Returns the handle for requests to the control.
    fn run(&mut self, config: Config) -> Handle {
        let sizes = Sizes { depth: 64, frames: 256, bytes: 256 };
        let (mut cores, table, control) = rig::leaves(rig::stages(&config.text, None), sizes);
        let CoreRig { mut leaf, far, .. } = cores.remove(0);
        let (stop, pause) = (Arc::clone(&self.stop), Arc::clone(&self.pause));
        self.threads.push(std::thread::spawn(move || {
            let (began, _far) = (Instant::now(), far);
            while !stop.load(Acquire) {
                if !pause.load(Acquire) {
                    leaf.poll(began.elapsed().as_nanos() as u64);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }));
        let (made, handle) = mpsc::channel();
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || {
            let mut requests = Requests::new(control, table, reload::leaf_file_reader(&config));
            made.send(requests.handle()).unwrap();
            // Driver statistics of one port. The metrics must escape the quotes in these names.
            let xstats = [("rx_q0_packets".to_owned(), 5), ("odd \"name\"".to_owned(), u64::MAX)];
            let (device, xstats) = ("net \"0\"".to_owned(), xstats.into());
            let port = PortStats { device, xstats, ..PortStats::default() };
            while !stop.load(Acquire) {
                requests.serve_for(Duration::from_millis(20), &|| vec![port.clone()]);
            }
        }));
        handle.recv().unwrap()
    }

    /// Returns the path of the state file.
    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Returns the path of the control's socket.
    fn socket(&self) -> PathBuf {
        socket_path(&self.state())
    }

    /// Opens a client as `wedjat ctl` does.
    fn connect(&self) -> Connection {
        Connection::open(&Access::State(self.state())).unwrap()
    }

    /// Opens a client that can send any request, including invalid ones.
    fn raw(&self) -> Raw {
        Raw::open(Endpoint::from_shared(format!("unix:{}", self.socket().display())).unwrap())
            .unwrap()
    }

    /// Writes the configuration without additional lines, edited by `change`, to the leaf's file, for a reload.
    fn configure(&self, change: impl FnOnce(String) -> String) {
        let text = text(&self.state(), "");
        fs::write(self.folder.path().join("leaf.toml"), change(text)).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Stops the server before the control, because the server waits for its open calls.
        drop(self.server.take());
        self.stop.store(true, Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A client that sends any request and returns the status of a refusal. A [`Connection`] sends only parsed changes.
struct Raw {
    /// Runs the calls in the calling thread.
    runtime: tokio::runtime::Runtime,
    /// Stub of the control's service.
    client: ControlClient<Channel>,
}

impl Raw {
    /// Connects to a control.
    fn open(endpoint: Endpoint) -> Result<Self, tonic::transport::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self { runtime, client: ControlClient::new(channel) })
    }

    /// Asks for the node's membership and counters.
    fn show(&mut self) -> Result<proto::ShowReply, Status> {
        let reply = self.runtime.block_on(self.client.show(proto::ShowRequest {}));
        reply.map(tonic::Response::into_inner)
    }

    /// Requests changes, all or none of which apply. With `if_version`, they apply only if the membership has that
    /// version. Returns the new version.
    fn change(&mut self, changes: &[&str], if_version: Option<u64>) -> Result<u64, Status> {
        let changes = changes.iter().map(|&change| change.to_owned()).collect();
        let request = proto::ChangeRequest { changes, if_version };
        let reply = self.runtime.block_on(self.client.change(request));
        reply.map(|reply| reply.into_inner().version)
    }
}

// promise: control.1
#[test]
fn every_change_returns_the_applied_version() {
    let node = Node::start();
    let mut connection = node.connect();
    let before = connection.show().unwrap();
    assert_eq!((before.version, &before.role[..], before.node), (1, "leaf", 1));
    assert_eq!(before.pools[0].workers.len(), 8);
    for (change, version) in [
        ("add-server ip=10.0.2.13 mac=02:00:00:00:02:0d registers=true", 2),
        ("add-workers server=10.0.2.13 pool=7 workers=20-23 speed=2", 3),
        ("drain workers=10,20", 4),
        ("undrain workers=20", 5),
        ("add-pool id=9 policy=jbsq(k=3) queue=64 overflow=refuse", 6),
        ("set-policy pool=9 policy=round-robin", 7),
        ("set-queue pool=9 queue=32", 8),
        ("set-speed workers=11 speed=4", 9),
        ("move-server ip=10.0.2.12 to=10.0.2.14", 10),
    ] {
        let done = connection.change(&[change.parse().unwrap()], None);
        assert_eq!(done.unwrap_or_else(|error| panic!("{change}: {error}")), version, "{change}");
        assert!(connection.show().unwrap().acknowledged >= version, "{change}");
    }
    let now = connection.show().unwrap();
    let worker = |id: u32| now.pools[0].workers.iter().find(|one| one.id == id).unwrap();
    assert!(worker(10).drained && !worker(20).drained && !worker(11).drained);
    assert_eq!((worker(11).speed, worker(20).speed), (4.0, 2.0));
    assert_eq!((&worker(14).server[..], &worker(20).server[..]), ("10.0.2.14", "10.0.2.13"));
    // Without `overflow`, `set-queue` sets the default.
    let nine = &now.pools[1];
    assert_eq!((nine.id, nine.queue, &nine.overflow[..]), (9, 32, "drop"));
    assert!(nine.policy.starts_with("round-robin"));
    let added = now.servers.iter().find(|server| server.ip == "10.0.2.13").unwrap();
    assert_eq!((&added.mac[..], added.registers), ("02:00:00:00:02:0d", true));
    connection.change(&["remove-server ip=10.0.2.13".parse().unwrap()], None).unwrap();
    connection.change(&["remove-pool id=9".parse().unwrap()], None).unwrap();
    wait_until("server 13, its workers and pool 9 are gone", || {
        let now = connection.show().unwrap();
        now.servers.len() == 2 && now.pools.len() == 1 && now.pools[0].workers.len() == 8
    });
}

// promise: membership.2
#[test]
fn several_changes_apply_together_or_not() {
    let node = Node::start();
    let mut connection = node.connect();
    let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let changes = all(&[
        "add-server ip=10.0.2.13",
        "add-pool id=9 policy=sed",
        "add-workers server=10.0.2.13 pool=9 workers=20-21",
        "add-workers server=10.0.2.13 pool=9 workers=22 speed=3",
    ]);
    assert_eq!(connection.change(&changes, Some(1)).unwrap(), 2);
    let now = connection.show().unwrap();
    let speeds: Vec<_> = now.pools[1].workers.iter().map(|one| (one.id, one.speed)).collect();
    assert_eq!(speeds, [(20, 1.0), (21, 1.0), (22, 3.0)]);
    let changes = all(&["drain workers=10", "remove-pool id=9", "drain workers=99"]);
    let error = connection.change(&changes, None).unwrap_err().to_string();
    assert!(error.contains("worker 99: does not exist"), "{error}");
    let same = connection.show().unwrap();
    assert_eq!((same.version, same.pools), (now.version, now.pools));
}

// promise: control.1
#[test]
fn bad_input_to_every_call_is_refused() {
    let node = Node::start();
    let mut raw = node.raw();
    let before = raw.show().unwrap();
    let invalid = Code::InvalidArgument;
    let long = "9".repeat(100_000);
    let twice = vec!["1"; 50_000].join(",");
    let many = (100..200).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    for (change, code, says) in [
        ("drain workers=99", Code::NotFound, "worker 99: does not exist"),
        ("drain", invalid, "no `workers` in `drain`; allowed: drain workers="),
        ("drain workers=", invalid, "`workers=` in `drain`"),
        ("drain workers=70000", invalid, "workers=`70000`"),
        ("drain workers=10,10", invalid, "10 twice"),
        (&format!("drain workers={twice}"), invalid, "1 twice"),
        (&"agent ".repeat(40_000), invalid, "`agent`; allowed: add-server"),
        ("undrain workers=4294967295", invalid, "workers=`4294967295`"),
        ("remove-workers workers=100-29999", Code::NotFound, "worker 100"),
        ("add-server ip=10.0.2", invalid, "ip=10.0.2; allowed: a host's IPv4 or IPv6 address"),
        (&format!("add-server ip={long}"), invalid, "ip=9999"),
        ("add-server ip=10.0.2.11", Code::AlreadyExists, "server 10.0.2.11: exists already"),
        ("add-server ip=10.0.2.1", Code::FailedPrecondition, "the node's own address"),
        ("add-server ip=192.168.0.7", Code::FailedPrecondition, "no port on the workers' side"),
        ("add-server ip=10.0.2.13 mac=ff:ff:ff:ff:ff:ff", invalid, "mac=ff:ff:ff:ff:ff:ff"),
        ("remove-server ip=10.0.2.99", Code::NotFound, "server 10.0.2.99"),
        ("move-server ip=10.0.2.11 to=", invalid, "`to=` in `move-server`"),
        ("add-workers pool=7 workers=20", invalid, "no `server` in `add-workers`"),
        ("add-workers server=10.0.2.11 pool=7 workers=13", Code::AlreadyExists, "worker 13"),
        ("add-workers server=10.0.2.11 pool=70000 workers=20", invalid, "pool=70000"),
        ("add-workers server=10.0.2.11 pool=8 workers=20", Code::NotFound, "pool 8"),
        (
            "add-workers server=10.0.2.11 pool=7 workers=20 speed=0",
            invalid,
            "speed=0; allowed: 0.001 to 1000",
        ),
        ("add-workers server=10.0.2.11 pool=7 workers=20 speed=NaN", invalid, "speed=NaN"),
        (
            &format!("add-workers server=10.0.2.11 pool=7 workers={many}"),
            Code::ResourceExhausted,
            "limit is 64; restart with a larger `workers_max`",
        ),
        ("add-pool id=7 policy=horus", Code::AlreadyExists, "pool 7"),
        ("add-pool id=9 policy=best", invalid, "best"),
        (&format!("add-pool id=9 policy={long}"), invalid, "a policy of 100000 bytes"),
        ("add-pool id=9 policy=horus-spine", Code::FailedPrecondition, "runs on a spine"),
        ("add-pool id=9 policy=jbsq queue=0", invalid, "queue=0; allowed: 1 to 65536"),
        (&format!("add-pool id=9 policy=jbsq queue={}", u64::MAX), invalid, "allowed: 1 to 65536"),
        (
            "add-pool id=9 policy=jbsq overflow=wait",
            invalid,
            "overflow=wait; allowed: drop or refuse",
        ),
        ("remove-pool id=8", Code::NotFound, "pool 8"),
        ("set-policy pool=7 policy=jbsq(k=0)", invalid, "k"),
        ("set-queue pool=7 queue=60000", Code::FailedPrecondition, "restart with a larger `queue`"),
        ("set-speed workers=10 speed=inf", invalid, "speed=inf"),
        ("", invalid, "allowed: add-server, remove-server"),
        (&long, invalid, "allowed: add-server, remove-server"),
        ("drain workers=10\u{0}", invalid, "workers=`10`"),
        ("add-pool id=9 policy=\"sed", invalid, "sed"),
    ] {
        let status = raw.change(&[change], None).unwrap_err();
        let message = status.message();
        let start: String = change.chars().take(80).collect();
        assert_eq!(status.code(), code, "{start}: {message}");
        assert!(message.contains(says) && message.len() < 500, "{says}: {message}");
    }
    // Another version, no change, and too many changes.
    let old = raw.change(&["drain workers=10"], Some(9)).unwrap_err();
    assert_eq!(old.code(), Code::Aborted, "{old}");
    assert!(old.message().contains("the node's version is 1, not 9"), "{old}");
    for (count, says) in [(0, "0 changes; allowed: 1 to 256"), (257, "257 changes")] {
        let status = raw.change(&vec!["drain workers=10"; count], None).unwrap_err();
        assert_eq!(status.code(), invalid);
        assert!(status.message().contains(says), "{status}");
    }
    // A short text can name many workers.
    let status = raw.change(&["undrain workers=0-32766"; 3], None).unwrap_err();
    assert_eq!(status.code(), invalid);
    assert!(status.message().contains("more than 65536 workers"), "{status}");
    // More bytes than a request may have.
    let status = raw.change(&[&"9".repeat(300_000)], None).unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let status = raw
        .runtime
        .block_on(raw.client.log(proto::LogRequest { level: "loud".to_owned() }))
        .unwrap_err();
    assert!(status.message().contains("allowed: off, error, warn"), "{status}");
    let after = raw.show().unwrap();
    assert_eq!((after.version, &after.pools, &after.servers), (1, &before.pools, &before.servers));
}

// promise: trust.3
#[test]
fn pool_key_comes_from_a_private_file() {
    let node = Node::start();
    let mut raw = node.raw();
    let key = node.folder.path().join("key");
    fs::write(&key, "00112233445566778899aabbccddeeff\n").unwrap();
    let pool =
        |id: u16, key_file: &str| format!("add-pool id={id} policy=horus key-file=\"{key_file}\"");
    let path = key.display().to_string();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    for (file, code, says) in [
        (&path[..], Code::FailedPrecondition, "mode 0644"),
        ("/no/such/key", Code::FailedPrecondition, "which can't be read"),
        ("a\nb", Code::InvalidArgument, "a path of 1 to 4096 bytes"),
        (&"x".repeat(5000)[..], Code::InvalidArgument, "a path of 1 to 4096 bytes"),
    ] {
        let status = raw.change(&[&pool(9, file)], None).unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        let message = status.message();
        assert!(message.contains(says) && !message.contains("0011"), "{message}");
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(raw.change(&[&pool(9, &path)], None).unwrap(), 2);
    // `wedjat ctl` takes a relative path from its own folder, which is not the node's.
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_wedjat"));
    ctl.args(["ctl", "pool", "create", "10", "--policy", "sed", "--key-file", "key", "--node"]);
    let output = ctl.arg(node.state()).current_dir(node.folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(raw.show().unwrap().pools.len(), 3);
}

// promise: control.1
#[test]
fn hanging_clients_block_no_other_client() {
    let node = Node::start();
    let began = Instant::now();
    // Silence, half of a connection preface, another protocol, complete settings, half of a frame, and
    // garbage.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let half_a_frame = [0, 0xFF, 0xFF, 1, 4, 0, 0, 0, 1, 0x82];
    let mut hanging = Vec::new();
    for bytes in [
        &b""[..],
        &preface[..10],
        b"GET /metrics HTTP/1.1\r\n\r\n",
        &[preface, &settings[..]].concat(),
        &[preface, &settings[..], &half_a_frame].concat(),
        &[0xAA; 4096],
    ] {
        let mut stream = UnixStream::connect(node.socket()).unwrap();
        let _ = stream.write_all(bytes);
        hanging.push(stream);
    }
    let mut connection = node.connect();
    let version = connection.change(&["drain workers=10".parse().unwrap()], None).unwrap();
    assert_eq!(version, 2);
    // More connections than slots. One process may have 16 without a request, so the node closes the oldest of them.
    let silent: Vec<_> = (0..70).map(|_| UnixStream::connect(node.socket()).unwrap()).collect();
    let waiting = std::thread::spawn({
        let state = node.state();
        move || {
            let mut one =
                (0..100).find_map(|_| Connection::open(&Access::State(state.clone())).ok());
            one.as_mut().map(|one| one.show().unwrap().version)
        }
    });
    assert_eq!(waiting.join().unwrap(), Some(2));
    assert!(began.elapsed() < TIMEOUT);
    for mut stream in silent.into_iter().take(30) {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The node closes it: the end of the stream, or a reset. A timeout would mean that it is open.
        let end = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert!(matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    }
    assert_eq!(connection.show().unwrap().version, 2);
}

// promise: control.1
#[test]
fn idle_connections_lock_out_no_client() {
    let files = tempfile::tempdir().unwrap();
    let tls = tls_files(files.path());
    let node =
        Node::with(&format!("[control]\nlisten = '127.0.0.1:0'\nmetrics = '127.0.0.1:0'\n{tls}"));
    let server = node.server.as_ref().unwrap();
    let (listen, metrics) = (server.listen.unwrap(), server.metrics.unwrap());
    let written = |name: &str| {
        let path = files.path().join(name);
        fs::write(&path, self::tls(name)).unwrap();
        path
    };
    let access = Access::Tcp {
        url: format!("https://{listen}"),
        tls: Some(["ca.pem", "client.pem", "client.key"].map(written)),
    };
    let mut earlier = Connection::open(&access).unwrap();
    assert_eq!(earlier.show().unwrap().version, 1);
    // All from one address and one process, without a certificate. The clients close none of them.
    let idle = |address: SocketAddr| TcpStream::connect(address).unwrap();
    let strangers: Vec<_> = (0..200).map(|_| [listen, metrics].map(idle)).collect();
    let local: Vec<_> = (0..200).map(|_| UnixStream::connect(node.socket()).unwrap()).collect();
    assert_eq!(Connection::open(&access).unwrap().show().unwrap().version, 1);
    assert!(get(metrics, "GET /metrics HTTP/1.1").contains("wedjat_"));
    assert_eq!(node.connect().show().unwrap().version, 1);
    assert_eq!(earlier.show().unwrap().version, 1, "an authenticated connection keeps its place");
    // A stalled reader of metrics, kept alive after its answer, counts as idle too.
    let kept: Vec<_> = (0..70)
        .map(|_| {
            let mut stream = idle(metrics);
            write!(stream, "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
            stream.read_exact(&mut [0; 64]).unwrap();
            stream
        })
        .collect();
    assert!(get(metrics, "GET /metrics HTTP/1.1").contains("wedjat_"));
    drop((strangers, local, kept));
}

// promise: input.2
#[test]
fn slow_configuration_delays_no_other_request() {
    let node = Node::start();
    // A node whose configuration cannot be read until `release` is dropped.
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let handle = {
        let other = text(&node.folder.path().join("other"), "");
        let (cores, table, control) =
            rig::leaves(rig::stages(&other, None), Sizes { depth: 64, frames: 256, bytes: 256 });
        let (made, handle) = mpsc::channel();
        let stop = Arc::clone(&node.stop);
        std::thread::spawn(move || {
            let _cores = cores;
            // Hangs until the sender is dropped. Then it reads a file without changes.
            let reader: reload::Reader = Arc::new(move || {
                let _ = released.lock().unwrap().recv();
                Ok(Box::new(|_, _| Ok(Vec::new())))
            });
            let mut requests = Requests::new(control, table, reader);
            made.send(requests.handle()).unwrap();
            while !stop.load(Acquire) {
                requests.serve_for(Duration::from_millis(20), &Vec::new);
            }
        });
        handle.recv().unwrap()
    };
    // Requests a reload. Returns the receiver of its result.
    let reload = || {
        let (done, is_done) = mpsc::channel();
        handle.reload(true, move |reloaded| _ = done.send(reloaded));
        is_done
    };
    // Asks for the epoch of the membership, which needs no file.
    let look = || {
        let (seen, is_seen) = mpsc::channel();
        handle.snapshot(move |now| _ = seen.send(now.membership.epoch));
        is_seen.recv_timeout(TIMEOUT).unwrap()
    };
    // The first reload hangs in its read, and the second waits for it. Other requests are answered, and both reloads
    // fail after the timeout.
    let hung = [reload(), reload()];
    assert_eq!(look(), 1);
    for one in &hung {
        let error = one.recv_timeout(TIMEOUT).unwrap().unwrap_err().to_string();
        assert!(error.contains("was not read within 5 s"), "{error}");
    }
    assert!(reload().recv_timeout(TIMEOUT).unwrap().is_err(), "the first reading still hangs");
    drop(release);
    wait_until("the file can be read again", || reload().recv_timeout(TIMEOUT).unwrap().is_ok());
    assert_eq!(look(), 1);
}

// promise: control.1
#[test]
fn slow_read_does_not_make_a_reload_late() {
    let folder = tempfile::tempdir().unwrap();
    let text = text(&folder.path().join("state"), "");
    let sizes = Sizes { depth: 64, frames: 256, bytes: 256 };
    // The core never polls, so it never applies the change.
    let (_cores, table, control) = rig::leaves(rig::stages(&text, None), sizes);
    let reading = Duration::from_secs(3);
    let reader: reload::Reader = Arc::new(move || {
        std::thread::sleep(reading);
        Ok(Box::new(|_, _| Ok(vec!["drain workers=10".parse().unwrap()])))
    });
    let mut requests = Requests::new(control, table, reader);
    let (done, is_done) = mpsc::channel();
    requests.handle().reload(false, move |reloaded| _ = done.send(reloaded));
    // The limit of 5 s begins with the change, after the read.
    requests.serve_for(2 * reading, &Vec::new);
    assert_eq!(requests.control().membership().epoch, 2, "the change is made");
    assert!(is_done.try_recv().is_err(), "not late yet");
}

// promise: control.1
#[test]
fn stalled_core_is_reported_and_blocks_nothing() {
    let node = Node::start();
    let mut raw = node.raw();
    assert_eq!(raw.change(&["drain workers=10"], None).unwrap(), 2);
    node.pause.store(true, Release);
    let other = std::thread::spawn({
        let state = node.state();
        move || Connection::open(&Access::State(state)).unwrap().show().unwrap().version
    });
    let status = raw.change(&["drain workers=11"], None).unwrap_err();
    assert!(other.join().unwrap() >= 2, "other clients are answered meanwhile");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(
        status.message().contains("change 3 is made, but a core has not applied it"),
        "{status}"
    );
    let seen = raw.show().unwrap();
    assert_eq!((seen.version, seen.acknowledged), (3, 2));
    node.pause.store(false, Release);
    wait_until("the core has applied the change", || raw.show().unwrap().acknowledged == 3);
}

// promise: membership.2
#[test]
fn reload_applies_atomically() {
    let node = Node::start();
    let mut connection = node.connect();
    let none = connection.reload(false).unwrap();
    assert_eq!((none.version, none.changes.len()), (1, 0));
    let change = |text: String| {
        text.replace("'horus'", "'round-robin'").replace("'10-13'", "'10-12,18'")
            + "[[pool]]\nid = 9\npolicy = 'sed'\nqueue = 64\n\
               [[server]]\nip = '10.0.2.13'\nworkers = '20-21'\npool = 9\nspeed = 2\n"
    };
    node.configure(change);
    let expected = [
        "add-server ip=10.0.2.13",
        "set-policy pool=7 policy=round-robin",
        "add-pool id=9 policy=sed(half=0.5) queue=64 overflow=drop",
        "remove-workers workers=13",
        "add-workers server=10.0.2.11 pool=7 workers=18",
        "add-workers server=10.0.2.13 pool=9 workers=20-21 speed=2",
    ];
    let dry = connection.reload(true).unwrap();
    assert_eq!((dry.version, &dry.changes[..]), (1, &expected.map(str::to_owned)[..]));
    assert_eq!(connection.show().unwrap().version, 1);
    let done = connection.reload(false).unwrap();
    assert_eq!((done.version, &done.changes[..]), (2, &expected.map(str::to_owned)[..]));
    wait_until("worker 13 is gone", || connection.show().unwrap().pools[0].workers.len() == 8);
    let now = connection.show().unwrap();
    assert_eq!((now.pools[1].workers.len(), now.servers.len()), (2, 3));
    // Entries missing in the file are removed, including those from live changes.
    connection.change(&["add-server ip=10.0.2.20".parse().unwrap()], None).unwrap();
    node.configure(|text| text);
    let back = connection.reload(false).unwrap();
    assert!(back.changes.contains(&"remove-server ip=10.0.2.20".to_owned()), "{back:?}");
    assert!(back.changes.contains(&"remove-pool id=9".to_owned()), "{back:?}");
    wait_until("pool 9 and its server are gone", || {
        let now = connection.show().unwrap();
        (now.pools.len(), now.servers.len()) == (1, 2)
    });
    // Errors and unchangeable keys are reported. Valid changes in the same file are not applied.
    let before = connection.show().unwrap();
    for (old, new, says) in [
        ("id = 7", "id = 'x'", "leaf.toml"),
        ("'10.0.2.11'", "'10.0.9.11'", "server.ip"),
        ("cores = [1]", "cores = [1, 2]", "`leaf.cores` can't change at run time"),
        ("seed = 7", "seed = 8", "`leaf.seed` can't change"),
        ("10.0.1.1/24", "10.0.1.5/24", "`port.ip` of port 1 can't change"),
        ("pools_max = 6", "pools_max = 7", "`leaf.pools_max` can't change"),
        ("pool = 7\n", "pool = 7\nregisters = true\n", "`server.registers` of 10.0.2.11"),
        ("policy = 'horus'", "policy = 'sed'\nshared_workers = true", "`pool.shared_workers`"),
    ] {
        node.configure(|text| text.replacen(old, new, 1).replace("'14-17'", "'14-16'"));
        let error = connection.reload(false).unwrap_err().to_string();
        assert!(error.contains(says), "{new}: {error}");
    }
    node.configure(|text| text.replace("'10-13'", "'10-14'").replace("'14-17'", "'15-17'"));
    let error = connection.reload(false).unwrap_err().to_string();
    assert!(error.contains("worker 14 is in pool 7 at 10.0.2.12 and can't move to"), "{error}");
    let after = connection.show().unwrap();
    assert_eq!((after.version, after.pools), (before.version, before.pools));
}

// promise: control.1
#[test]
fn control_socket_is_private_and_follows_no_link() {
    let node = Node::start();
    let metadata = fs::symlink_metadata(node.socket()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    // A second node on the same state file.
    let second = Server::start(&ControlConfig::default(), Some(&node.state()), handle(), &[]);
    let error = second.unwrap_err().to_string();
    assert!(error.contains("another node uses it") && error.contains("process"), "{error}");
    let socket = node.socket();
    let folder = tempfile::tempdir().unwrap();
    drop(node);
    assert!(!socket.exists(), "the node removes its socket at its end");
    let state = folder.path().join("state");
    let socket = socket_path(&state);
    for obstacle in ["link", "file", "folder"] {
        let target = folder.path().join("target");
        match obstacle {
            "link" => symlink(&target, &socket).unwrap(),
            "file" => fs::write(&socket, "mine").unwrap(),
            _ => fs::create_dir(&socket).unwrap(),
        }
        let error = Server::start(&ControlConfig::default(), Some(&state), handle(), &[]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("exists there; remove it"), "{obstacle}: {error}");
        assert!(!target.exists(), "{obstacle}");
        let _ = fs::remove_file(&socket).or_else(|_| fs::remove_dir(&socket));
    }
    // The socket of a dead process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let server = Server::start(&ControlConfig::default(), Some(&state), handle(), &[]).unwrap();
    assert!(server.is_some() && UnixStream::connect(&socket).is_ok());
}

// promise: control.1
#[test]
fn other_user_is_refused_despite_permissions() {
    use std::os::unix::process::CommandExt;

    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: only root can try as another user");
        return;
    }
    let node = Node::start();
    // A copy of the program that another user may run.
    let program = node.folder.path().join("wedjat");
    fs::copy(env!("CARGO_BIN_EXE_wedjat"), &program).unwrap();
    fs::set_permissions(node.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let show = |user: Option<u32>| {
        let mut command = Command::new(&program);
        command.args(["ctl", "show", "--node"]).arg(node.state()).current_dir("/");
        user.map(|user| command.uid(user).gid(user));
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(show(None).0);
    for mode in [0o600, 0o666] {
        fs::set_permissions(node.socket(), fs::Permissions::from_mode(mode)).unwrap();
        let (done, stderr) = show(Some(65_534));
        assert!(!done && stderr.starts_with("wedjat: "), "{mode:o}: {stderr}");
    }
    assert!(show(None).0);
}

/// Returns the handle for requests to a node that has ended. For servers that answer no request in their tests.
fn handle() -> Handle {
    let mut node = Node {
        folder: tempfile::tempdir().unwrap(),
        stop: Arc::default(),
        pause: Arc::default(),
        threads: Vec::new(),
        server: None,
    };
    let path = node.folder.path().join("leaf.toml");
    let config = Config::parse(&path, &text(&node.state(), "")).unwrap();
    node.run(config)
}

// promise: control.1
#[test]
fn ended_node_answers_that_it_ended() {
    let node = Node::start();
    let mut raw = node.raw();
    node.stop.store(true, Release);
    wait_until("its threads have ended", || node.threads.iter().all(JoinHandle::is_finished));
    let status = raw.show().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("the node is stopping"), "{status}");
}

/// Returns the content of a file of `tests/tls`.
fn tls(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)).unwrap()
}

/// Writes a node's TLS files into a folder and returns their lines for `[control]`. Only the user can read the files,
/// because the control refuses a key that others can read.
fn tls_files(folder: &Path) -> String {
    for name in ["ca.pem", "node.pem", "node.key"] {
        let path = folder.join(name);
        fs::write(&path, tls(name)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let path = |name: &str| folder.join(name).display().to_string();
    format!(
        "certificate = '{}'\nkey = '{}'\nclients_ca = '{}'\n",
        path("node.pem"),
        path("node.key"),
        path("ca.pem")
    )
}

// promise: control.1
#[test]
fn tcp_requires_a_client_certificate() {
    let files = tempfile::tempdir().unwrap();
    let node =
        Node::with(&format!("[control]\nlisten = '127.0.0.1:0'\n{}", tls_files(files.path())));
    let address = node.server.as_ref().unwrap().listen.unwrap();
    // Connects with the certificate of `who`, and expects the node's certificate to be of `ca` and for `name`.
    let client = |ca: &str, who: Option<&str>, name: &str| {
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(tls(ca))).domain_name(name);
        if let Some(who) = who {
            let (certificate, key) = (tls(&format!("{who}.pem")), tls(&format!("{who}.key")));
            config = config.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        let opened = Raw::open(endpoint.tls_config(config).unwrap());
        opened.map_err(|_| ()).and_then(|mut raw| raw.show().map_err(|_| ()))
    };
    assert_eq!(client("ca.pem", Some("client"), "leaf1").unwrap().version, 1);
    assert!(client("ca.pem", None, "leaf1").is_err(), "no certificate");
    assert!(client("ca.pem", Some("stranger"), "leaf1").is_err(), "from another authority");
    assert!(client("ca.pem", Some("node"), "leaf1").is_err(), "a node's certificate");
    assert!(client("other-ca.pem", Some("client"), "leaf1").is_err(), "node of another authority");
    assert!(client("ca.pem", Some("client"), "leaf2").is_err(), "node of another name");
    let plain = Endpoint::from_shared(format!("http://{address}")).unwrap();
    assert!(Raw::open(plain).map(|mut raw| raw.show()).is_ok_and(|shown| shown.is_err()));
    // The client of `wedjat ctl --connect`.
    let written = |name: &str| {
        let path = files.path().join(name);
        fs::write(&path, tls(name)).unwrap();
        path
    };
    let tls = Some(["ca.pem", "client.pem", "client.key"].map(written));
    let url = format!("https://localhost:{}", address.port()).replace("localhost", "127.0.0.1");
    let mut connection = Connection::open(&Access::Tcp { url, tls }).unwrap();
    assert_eq!(connection.show().unwrap().version, 1);
}

/// Parses a configuration with these lines of `[control]`.
fn parse_control(folder: &Path, control: &str) -> Result<ControlConfig, String> {
    let text = text(&folder.join("state"), &format!("[control]\n{control}"));
    let config = Config::parse(Path::new("leaf.toml"), &text);
    config.map(|config| config.control).map_err(|error| error.to_string())
}

/// Starts the server of a valid configuration with these lines of `[control]`, without a state file and thus without a
/// Unix socket. Returns `None` if there is nothing to listen at.
fn start_control(folder: &Path, control: &str) -> Result<Option<Server>, String> {
    let config = parse_control(folder, control).unwrap();
    Server::start(&config, None, handle(), &[]).map_err(|error| error.to_string())
}

/// Asserts, for each pair, that a configuration with these lines of `[control]` is refused with this text.
fn assert_refused(cases: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    for (control, says) in cases {
        let error = parse_control(folder.path(), control).unwrap_err();
        assert!(error.contains(says), "{control}: {error}");
    }
}

// promise: control.1
#[test]
fn plain_tcp_is_loopback_only() {
    assert_refused(&[
        ("listen = '0.0.0.0:7070'", "control.listen"),
        ("listen = '[::]:7070'", "without TLS"),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let server = start_control(folder.path(), "listen = '127.0.0.1:0'").unwrap();
    assert!(server.is_some_and(|server| server.listen.is_some()));
}

// promise: control.1
#[test]
fn invalid_control_key_is_named() {
    assert_refused(&[
        ("listen = '127.0.0.1:7070'\nkey = 'k'", "all of `certificate`, `key` and"),
        ("listen = 'localhost'", "an address and a port"),
        ("metrics = '9464'", "control.metrics"),
        ("port = 7", "control.port"),
    ]);
}

// promise: control.1
#[test]
fn unusable_tls_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let start =
        |files: &str| start_control(folder.path(), &format!("listen = '127.0.0.1:0'\n{files}"));
    let refused = |files: &str| start(files).map(|_| ()).unwrap_err();
    let files = tls_files(folder.path());
    assert!(start(&files).unwrap().is_some());
    fs::set_permissions(folder.path().join("node.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = refused(&files);
    assert!(error.contains("`control.key`") && error.contains("mode 0644"), "{error}");
    tls_files(folder.path());
    fs::write(folder.path().join("node.pem"), "no certificate").unwrap();
    let error = refused(&files);
    assert!(error.contains("files in PEM"), "{error}");
    let error = refused(&files.replace("ca.pem", "missing.pem"));
    assert!(error.contains("`control.clients_ca`") && error.contains("missing.pem"), "{error}");
}

// promise: control.1
#[test]
fn server_needs_a_free_address() {
    let folder = tempfile::tempdir().unwrap();
    assert!(start_control(folder.path(), "").unwrap().is_none(), "nothing to listen at");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = format!("metrics = '{}'", taken.local_addr().unwrap());
    let error = start_control(folder.path(), &metrics).map(|_| ()).unwrap_err();
    assert!(error.contains("`control.metrics`") && error.contains("a free port"), "{error}");
}

// promise: control.1
#[test]
fn tools_learn_the_calls_by_reflection() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let node = Node::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = Endpoint::from_shared(format!("unix:{}", node.socket().display())).unwrap();
    let names = runtime.block_on(async {
        let mut client = ServerReflectionClient::new(endpoint.connect().await.unwrap());
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let asked = tokio_stream::iter([request]);
        let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
        match answers.message().await.unwrap().unwrap().message_response.unwrap() {
            MessageResponse::ListServicesResponse(list) => {
                list.service.into_iter().map(|one| one.name).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    });
    assert!(names.contains(&"wedjat.v1.Control".to_owned()), "{names:?}");
}

/// Sends an HTTP request, given as its first line and any header lines, and returns the whole response.
fn get(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request}\r\nHost: node\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Starts a node with metrics. Returns it and the address of the metrics.
fn with_metrics() -> (Node, SocketAddr) {
    let node = Node::with("[control]\nmetrics = '127.0.0.1:0'\n");
    let address = node.server.as_ref().unwrap().metrics.unwrap();
    (node, address)
}

// promise: control.2
#[test]
fn metrics_have_type_unit_and_samples() {
    let (node, address) = with_metrics();
    node.connect().change(&["drain workers=10".parse().unwrap()], None).unwrap();
    let open = get(
        address,
        "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
    );
    assert!(open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"), "{open}");
    let text = get(address, "GET /metrics HTTP/1.1");
    assert!(text.contains("text/plain; version=0.0.4") && !text.contains("# EOF"));
    for family in families() {
        let (name, sample) = (&family.name, family.sample());
        assert!(open.contains(&format!("# TYPE {name} {}\n", family.kind.name())), "{name}");
        assert!(text.contains(&format!("# TYPE {sample} ")), "{name}");
        for answer in [&open, &text] {
            // A leaf has no peers, only counters of peers per core. No batch job runs here, the node follows no
            // controller, and its pools have fixed policies.
            let is_of_peers = name.starts_with("wedjat_peer_") && family.labels != "core";
            let has_none = is_of_peers
                || ["wedjat_batch_", "wedjat_controller_", "wedjat_pool_auto_"]
                    .iter()
                    .any(|start| name.starts_with(start));
            for sample in family.samples() {
                let lines = answer.lines().filter(|line| !line.starts_with('#'));
                let mut samples = lines.filter(|line| {
                    line.strip_prefix(&sample).is_some_and(|rest| rest.starts_with(['{', ' ']))
                });
                assert_eq!(samples.next().is_none(), has_none, "samples of {sample}");
            }
        }
        if !family.unit.is_empty() {
            assert!(open.contains(&format!("# UNIT {name} {}\n", family.unit)), "{name}");
            assert!(name.ends_with(family.unit), "{name}");
        }
    }
    for line in [
        "wedjat_membership_version 2",
        "wedjat_pool_active_workers{pool=\"7\"} 7",
        "wedjat_worker_active{pool=\"7\",worker=\"10\",server=\"10.0.2.11\"} 0",
        "wedjat_rx_packets_total{core=\"0\"} 0",
        "wedjat_dropped_packets_total{core=\"0\",reason=\"tx_full\"} 0",
        "wedjat_decision_time_seconds_bucket{core=\"0\",le=\"0.00000001\"} 0",
        "wedjat_report_age_seconds_bucket{pool=\"7\",le=\"10\"} 0",
        "wedjat_queue_wait_seconds_bucket{pool=\"7\",le=\"+Inf\"} 0",
        "wedjat_queue_wait_seconds_sum{pool=\"7\"} 0",
        "device=\"net \\\"0\\\"\"",
        "name=\"rx_q0_packets\"} 5",
        "name=\"odd \\\"name\\\"\"} 18446744073709551615",
    ] {
        assert!(open.contains(line) && text.contains(line), "{line}\n{text}");
    }
    for (request, says) in [
        ("GET /nothing HTTP/1.1", "404 Not Found"),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        ("NONSENSE", "400 Bad Request"),
    ] {
        let answer = get(address, request);
        assert!(answer.contains(says), "{request}: {answer}");
    }
}

// promise: control.2
#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let (_node, address) = with_metrics();
    let answer = get(address, "GET /metrics HTTP/1.0");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut tool) = tool else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no promtool (Debian: prometheus)");
        return;
    };
    tool.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && report.trim().is_empty(), "{report}");
}
