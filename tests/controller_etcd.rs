//! Several controllers with etcd: who leads, who takes over, and who can write nothing any more. Skipped where etcd is not installed.
#![cfg(feature = "control")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod patience;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wedjat::config::{ControllerAddress, ControllerConfig};
use wedjat::controller::generated::TopologyReply;
use wedjat::controller::{Controller, Operator, Standing};

use patience::wait_until;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
/// The least that etcd gives.
const LEASE: Duration = Duration::from_secs(2);

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// etcd, of some members.
struct Etcd {
    folder: tempfile::TempDir,
    members: Vec<Option<Process>>,
    ports: Vec<(u16, u16)>,
    more: Vec<&'static str>,
    lease: Duration,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// None, and a sentence, where there is no etcd.
    fn start(members: usize, more: &[&'static str]) -> Option<Self> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!(
                "SKIPPED: etcd is not installed; scripts/deps.sh test installs it where it can"
            );
            return None;
        }
        let ports = (0..members).map(|_| (free_port(), free_port())).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut etcd =
            Self { folder, members: Vec::new(), ports, more: more.to_vec(), lease: LEASE };
        for at in 0..members {
            let member = etcd.spawn(at);
            etcd.members.push(Some(member));
        }
        wait_until("etcd answers", || etcd.is_healthy());
        Some(etcd)
    }

    fn spawn(&self, at: usize) -> Process {
        let (client, peer) = self.ports[at];
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all = (0..).zip(&self.ports).map(|(at, ports)| format!("m{at}={}", url(ports.1)));
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
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn urls(&self) -> Vec<String> {
        self.ports.iter().map(|(client, _)| format!("http://127.0.0.1:{client}")).collect()
    }

    /// Somebody can lead with it.
    fn is_healthy(&self) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("{}/health", self.urls()[0]);
        let address = url.trim_start_matches("http://").trim_end_matches("/health").to_owned();
        runtime.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let Ok(mut stream) = tokio::net::TcpStream::connect(&address).await else {
                return false;
            };
            let asked = format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n");
            let mut said = String::new();
            let asked = stream.write_all(asked.as_bytes()).await.is_ok();
            asked && stream.read_to_string(&mut said).await.is_ok() && said.contains("\"true\"")
        })
    }

    fn kill(&mut self, at: usize) {
        drop(self.members[at].take());
    }

    fn signal(&self, at: usize, signal: &str) {
        self.members[at].as_ref().unwrap().signal(signal);
    }

    fn file(&self, id: u16) -> PathBuf {
        let urls: Vec<_> = self.urls().iter().map(|url| format!("'{url}'")).collect();
        let text = format!(
            "[controller]\nid = {id}\netcd = [{}]\nlease_s = {}\nsocket = '{}'\n",
            urls.join(", "),
            self.lease.as_secs(),
            self.socket(id).display()
        );
        let file = self.folder.path().join(format!("controller{id}.toml"));
        std::fs::write(&file, text).unwrap();
        file
    }

    fn socket(&self, id: u16) -> PathBuf {
        self.folder.path().join(format!("controller{id}.ctl"))
    }

    fn controller(&self, id: u16) -> Controller {
        Controller::start(&ControllerConfig::load(&self.file(id)).unwrap()).unwrap()
    }

    /// A controller as a process of its own.
    fn process(&self, id: u16) -> Process {
        Process(self.command(id).spawn().unwrap())
    }

    fn command(&self, id: u16) -> Command {
        let mut command = Command::new(WEDJAT);
        command.args(["controller", "--config"]).arg(self.file(id)).stderr(Stdio::null());
        command
    }

    /// Has this controller do something.
    fn ask(&self, id: u16, text: &str) -> Result<u64, String> {
        let address = ControllerAddress::Socket(self.socket(id));
        let mut operator = Operator::open(&address, None).map_err(|error| error.to_string())?;
        let done = operator.command(&text.parse().unwrap(), None);
        done.map(|done| done.version).map_err(|error| error.to_string())
    }

    fn leads(&self, id: u16) -> Option<u64> {
        Some(self.topology(id)?.term)
    }

    /// The leaves that this controller knows, if it leads.
    fn leaves(&self, id: u16) -> Option<Vec<u32>> {
        Some(self.topology(id)?.leaves.iter().map(|leaf| leaf.id).collect())
    }

    fn topology(&self, id: u16) -> Option<TopologyReply> {
        let address = ControllerAddress::Socket(self.socket(id));
        Operator::open(&address, None).ok()?.topology().ok()
    }
}

fn term(of: &Controller) -> Option<u64> {
    match of.standing() {
        Standing::Leads { term, .. } => Some(term),
        Standing::StandsBy(_) => None,
    }
}

#[test]
fn one_leads_and_the_next_has_all_that_was_kept() {
    let Some(mut etcd) = Etcd::start(1, &[]) else { return };
    etcd.lease = Duration::from_secs(3600);
    let first = etcd.controller(1);
    wait_until("it leads", || term(&first).is_some());
    assert_eq!(etcd.ask(1, "add-spine id=1 ip=10.0.0.1"), Ok(1));
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(2));
    let second = etcd.controller(2);
    let refused = etcd.ask(2, "add-leaf id=2 ip=10.0.1.2").unwrap_err();
    assert!(refused.contains("this controller stands by"), "{refused}");
    wait_until("it says who leads", || {
        let refused = etcd.ask(2, "add-leaf id=2 ip=10.0.1.2").unwrap_err();
        refused.contains("this controller stands by: controller 1 at") && refused.ends_with("leads")
    });
    // One that ends lets the next lead, long before its lease is over.
    let before = term(&first);
    drop(first);
    wait_until("the next leads", || term(&second).is_some());
    assert!(term(&second) > before);
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(3));
    let Standing::Leads { fabric, .. } = second.standing() else { panic!() };
    assert_eq!((fabric.version, fabric.leaves.len(), fabric.spines.len()), (3, 2, 1));
}

#[test]
fn a_leader_that_is_killed_is_replaced() {
    let Some(etcd) = Etcd::start(3, &[]) else { return };
    let first = etcd.process(1);
    wait_until("it leads", || etcd.leads(1).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    let second = etcd.controller(2);
    first.signal("-KILL");
    let began = Instant::now();
    wait_until("the other leads", || term(&second).is_some());
    eprintln!("another leads after {:?}, with a lease of {LEASE:?}", began.elapsed());
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
}

#[test]
fn a_leader_that_stood_still_can_write_nothing_any_more() {
    let Some(mut etcd) = Etcd::start(3, &[]) else { return };
    let first = etcd.process(1);
    wait_until("it leads", || etcd.leads(1).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    let second = etcd.controller(2);
    first.signal("-STOP");
    let began = Instant::now();
    wait_until("the other leads", || term(&second).is_some());
    eprintln!("another leads after {:?}, with a lease of {LEASE:?}", began.elapsed());
    assert_eq!(etcd.ask(2, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
    // What it is asked as soon as it goes on, it refuses, whether or not it knows already that it leads no more.
    let socket = etcd.socket(1);
    let asked = std::thread::spawn(move || {
        let mut operator = Operator::open(&ControllerAddress::Socket(socket), None).ok()?;
        Some(operator.command(&"add-leaf id=9 ip=10.0.1.9".parse().unwrap(), None))
    });
    std::thread::sleep(Duration::from_millis(50));
    first.signal("-CONT");
    let answer = asked.join().unwrap();
    assert!(!matches!(answer, Some(Ok(_))), "{answer:?}");
    let refused = etcd.ask(1, "add-leaf id=8 ip=10.0.1.8").unwrap_err();
    assert!(refused.contains("does not lead") || refused.contains("stands by"), "{refused}");
    // A member less is none.
    etcd.kill(0);
    // While etcd elects, whether a command was kept may be unknown, and either controller may lead afterwards: so it is asked until it stands there.
    wait_until("it is written", || {
        let _ = [1, 2].map(|id| etcd.ask(id, "add-leaf id=3 ip=10.0.1.3"));
        [1, 2].iter().any(|&id| etcd.leaves(id) == Some(vec![1, 2, 3]))
    });
}

#[test]
fn without_etcd_nobody_leads_and_all_is_there_when_it_is_back() {
    let Some(mut etcd) = Etcd::start(1, &[]) else { return };
    let controller = etcd.controller(1);
    wait_until("it leads", || term(&controller).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    // etcd stands still: what is asked is not answered as done, and the lease is over in time.
    etcd.signal(0, "-STOP");
    let refused = etcd.ask(1, "add-leaf id=2 ip=10.0.1.2").unwrap_err();
    assert!(
        refused.contains("whether the command is kept is not known")
            || refused.contains("stands by"),
        "{refused}"
    );
    wait_until("it leads no more", || term(&controller).is_none());
    etcd.signal(0, "-CONT");
    wait_until("it leads again", || term(&controller).is_some());
    etcd.kill(0);
    wait_until("it leads no more", || term(&controller).is_none());
    let refused = etcd.ask(1, "add-leaf id=3 ip=10.0.1.3").unwrap_err();
    assert!(refused.contains("stands by"), "{refused}");
    wait_until("it says why", || {
        let Standing::StandsBy(reason) = controller.standing() else { return false };
        reason.contains("no member of etcd can be reached") && reason.contains("what runs goes on")
    });
    etcd.members[0] = Some(etcd.spawn(0));
    wait_until("it leads again", || term(&controller).is_some());
    assert!(etcd.ask(1, "add-leaf id=3 ip=10.0.1.3").is_ok());
    let Standing::Leads { fabric, .. } = controller.standing() else { panic!() };
    assert!(fabric.leaves.contains_key(&1) && fabric.leaves.contains_key(&3));
}

#[test]
fn a_member_that_dies_costs_nobody_the_lead() {
    let Some(mut etcd) = Etcd::start(3, &[]) else { return };
    etcd.lease = Duration::from_secs(20);
    let controller = etcd.controller(1);
    wait_until("it leads", || term(&controller).is_some());
    let before = term(&controller);
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    // The one that it talks to. The others may have to elect first.
    etcd.kill(0);
    assert_eq!(etcd.ask(1, "add-leaf id=2 ip=10.0.1.2"), Ok(2));
    assert_eq!((etcd.leads(1), term(&controller)), (before, before));
    etcd.members[0] = Some(etcd.spawn(0));
}

/// A library that has the time of day leap a day ahead and back each second.
fn leaping_clock(folder: &Path) -> PathBuf {
    let library = folder.join("clock.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/clock.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).args([source, "-ldl"]);
    assert!(cc.status().unwrap().success());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let told = Command::new("date").arg("+%s").env("LD_PRELOAD", &library).output().unwrap();
    let told: u64 = String::from_utf8(told.stdout).unwrap().trim().parse().unwrap();
    assert!(told.abs_diff(now) > 40_000, "the time of day does not leap");
    library
}

#[test]
fn a_clock_that_jumps_costs_nobody_the_lead() {
    let Some(mut etcd) = Etcd::start(1, &[]) else { return };
    etcd.lease = Duration::from_secs(20);
    let clock = leaping_clock(etcd.folder.path());
    let _leader = Process(etcd.command(1).env("LD_PRELOAD", clock).spawn().unwrap());
    wait_until("it leads", || etcd.leads(1).is_some());
    let before = etcd.leads(1);
    for leaf in 1..=6 {
        let text = format!("add-leaf id={leaf} ip=10.0.1.{leaf}");
        assert_eq!(etcd.ask(1, &text), Ok(leaf));
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(etcd.leads(1), before);
}

#[test]
fn an_etcd_that_was_restored_from_an_old_copy_takes_nobody_back() {
    let Some(mut etcd) = Etcd::start(1, &[]) else { return };
    let (data, copy) = (etcd.folder.path().join("m0"), etcd.folder.path().join("copy"));
    let duplicate = |from: &Path, to: &Path| {
        let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
        assert!(done.success());
    };
    let first = etcd.controller(1);
    wait_until("it leads", || term(&first).is_some());
    assert_eq!(etcd.ask(1, "add-leaf id=1 ip=10.0.1.1"), Ok(1));
    etcd.kill(0);
    duplicate(&data, &copy);
    etcd.members[0] = Some(etcd.spawn(0));
    wait_until("it writes again", || {
        let _ = etcd.ask(1, "add-leaf id=2 ip=10.0.1.2");
        etcd.leaves(1) == Some(vec![1, 2])
    });
    etcd.kill(0);
    std::fs::remove_dir_all(&data).unwrap();
    duplicate(&copy, &data);
    etcd.members[0] = Some(etcd.spawn(0));
    let told = |text: &str| {
        text.contains("the store has version 1 ")
            && text.contains("this controller has led with version 2 ")
            && text.contains("was restored from an old copy")
    };
    wait_until("it says what is wrong", || {
        // Before it knows it may be asked; then the store refuses, for it has another version.
        let refused = etcd.ask(1, "add-leaf id=3 ip=10.0.1.3").expect_err("nothing is written");
        told(&refused)
    });
    // Who is started takes it as it is; nodes that know better do not.
    let second = etcd.controller(2);
    wait_until("the other leads", || term(&second).is_some());
    assert_eq!(etcd.leaves(2), Some(vec![1]));
    drop(second);
    wait_until(
        "it says it still",
        || matches!(first.standing(), Standing::StandsBy(reason) if told(&reason)),
    );
}

#[test]
fn an_etcd_that_is_full_is_told_of() {
    let Some(etcd) = Etcd::start(1, &["--quota-backend-bytes", "65536"]) else { return };
    let controller = etcd.controller(1);
    let mut leaf = 0;
    let full = |text: &str| text.contains("it is full: compact and defragment it");
    wait_until("it is full", || {
        leaf += 1;
        let ip = format!("10.{}.{}.1", leaf / 250, leaf % 250 + 1);
        let refused = etcd.ask(1, &format!("add-leaf id={leaf} ip={ip}")).err();
        let Standing::StandsBy(reason) = controller.standing() else {
            return refused.is_some_and(|text| full(&text));
        };
        full(&reason) || refused.is_some_and(|text| full(&text))
    });
    assert!(Path::new(&etcd.socket(1)).exists());
}
