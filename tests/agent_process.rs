//! `wedjat agent` with worker processes: under load, with a killed worker, and stopped in order. An agent gives the
//! tasks of a pool to workers through a region of shared memory, in which each worker claims a place, and the agent
//! grants it. Also `wedjat leaf`, which schedules tasks over workers, with an agent on its core or behind a memif
//! device.
//!
//! The test starts itself again as workers. The agent replays a capture, so that the load needs no third
//! process.
#![allow(clippy::unwrap_used, reason = "a test")]

#[cfg(not(all(feature = "dpdk", target_os = "linux")))]
fn main() {
    println!("SKIPPED agent_process: built without DPDK");
}

// promise: membership.1, agent.1, agent.2
#[cfg(all(feature = "dpdk", target_os = "linux"))]
fn main() {
    match std::env::var(processes::ATTACH) {
        Ok(name) => processes::work(&name),
        // A test runner asks for the names of the tests.
        Err(_) if std::env::args().nth(1).as_deref() == Some("--list") => {
            println!("agent_process: test");
        }
        Err(_) => {
            processes::a_killed_worker_loses_its_own_tasks_only();
            processes::workers_and_pools_come_and_go_under_load();
            processes::tasks_are_done_or_counted_before_the_end();
            processes::impossible_attachments_and_agents_are_refused();
            processes::leaf_and_agent_share_a_process_and_a_core();
            processes::sleeping_node_admits_workers_and_stops();
            processes::leaf_agent_and_workers_speak_ipv6(false);
            processes::leaf_agent_and_workers_speak_ipv6(true);
        }
    }
}

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod echo;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod process;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod timeouts;

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod processes {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::io::Write as _;
    use std::net::Ipv6Addr;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use serde_json::Value;
    use wedjat::clock::{Conductor, Node};
    use wedjat::io::pcap::{read_frames, write_frames};
    use wedjat::ring::WorkerRegion;
    use wedjat::state::Snapshot;
    use wedjat::state::table::Role;
    use wedjat::wire::arp;
    use wedjat::wire::ether::Mac;
    use wedjat::wire::task::Header;
    use wedjat::wire::udp::{self, Flow};
    use wedjat::worker::{Detached, Options, Worker};

    use super::echo::echo;
    use super::process::{ChildProcess, account};
    use super::timeouts::*;

    /// Environment variable with the agent's name; set only for a worker process.
    pub const ATTACH: &str = "WEDJAT_TEST_ATTACH";
    /// Environment variable with the id of the worker that a worker process becomes; any if unset.
    const WORKER: &str = "WEDJAT_TEST_WORKER";
    /// Number of workers of the configurations.
    const WORKERS: usize = 3;
    /// The agent's core, as the emulated clock names it.
    const NODE: Node = Node { role: Role::Agent, id: 6, core: 0 };
    /// MAC address of the agent, or of the leaf with an agent.
    const AGENT: Mac = Mac([2, 0, 0, 0, 2, 11]);
    /// Address of the agent, or of the leaf with an agent: 10.0.2.11.
    const ADDRESS: u32 = 0x0A00_020B;
    /// The client's address, 10.0.1.2.
    const CLIENT: u32 = 0x0A00_0102;
    const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
    /// MAC address of the leaf over IPv6.
    const LEAF: Mac = Mac([2, 0, 0, 0, 1, 1]);

    /// Returns the default options of a worker, with a long wait for the agent.
    fn attach_options() -> Options {
        Options { attach_timeout: TIMEOUT, ..Options::default() }
    }

    /// Runs a worker process: echoes until the agent stops or releases the worker. Panics at any other end, so that the
    /// exit status shows it.
    pub fn work(name: &str) {
        let worker = std::env::var(WORKER).ok().map(|id| id.parse().unwrap());
        let options = Options { worker, ..attach_options() };
        let mut worker = Worker::attach(name, &options).unwrap_or_else(|error| panic!("{error}"));
        match echo(&mut worker) {
            Some(Detached::Stopped) => {}
            Some(reason) => panic!("{reason}"),
            None => panic!("nothing came for {TIMEOUT:?}"),
        }
    }

    /// Returns the frame of a client's task over IPv4.
    fn task(seq: u16) -> Vec<u8> {
        let header = Header::new_task(1, seq);
        let mut frame = vec![0; udp::PAYLOAD + header.len() + 20];
        header.emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: AGENT,
            src: CLIENT,
            dst: ADDRESS,
            src_port: 40_000,
            dst_port: 1234,
        };
        let len = frame.len() - udp::PAYLOAD;
        flow.emit(&mut frame, len);
        frame
    }

    /// Folder of the nodes' configurations, captures and state files, and of the socket of the agent's region.
    struct Home(tempfile::TempDir);

    impl Home {
        /// Writes the configurations of an agent and of a leaf with an agent. Their port replays a capture of
        /// `tasks` tasks. `device` has further arguments of the device; `infinite_rx=1` repeats the capture.
        fn new(tasks: u16, device: &str) -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            // A leaf learns the client's MAC address from this request.
            let mut question = vec![0; arp::FRAME_LEN];
            let client = arp::Packet::request(CLIENT_MAC, CLIENT, ADDRESS);
            client.emit(&mut question, Mac::BROADCAST);
            let frames: Vec<_> = [question].into_iter().chain((0..tasks).map(task)).collect();
            write_frames(&home.path("in.pcap"), &frames).unwrap();
            let cpu = core_affinity::get_core_ids().unwrap()[0].id;
            // Silence timeouts are off, because the machine may delay a worker for long. Tests on emulated
            // time cover them.
            let text = format!(
                "[agent]\nid = 6\nname = '{}'\ncore = {cpu}\nseed = 7\nworker_timeout_ms = 0\nstate = '{}'\n\
                 [[port]]\ndevice = 'net_pcap0,rx_pcap={}{device}'\nip = '10.0.2.11/24'\nmac = '{AGENT}'\n\
                 [[pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nworkers = '20-22'\n",
                home.path("region").display(),
                home.path("state").display(),
                home.path("in.pcap").display(),
            );
            fs::write(home.path("agent.toml"), text).unwrap();
            let text = format!(
                "[leaf]\nid = 1\ncores = [{cpu}]\nseed = 7\nworker_timeout_ms = 0\nstate = '{}'\n\
                 [[port]]\ndevice = 'net_pcap0,rx_pcap={}{device}'\nside = 'clients'\nip = '10.0.2.11/16'\nmac = '{AGENT}'\n\
                 [[pool]]\nid = 1\npolicy = 'jsq'\n\
                 [agent]\nname = '{}'\nworker_timeout_ms = 0\n[[agent.pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nworkers = '20-22'\n",
                home.path("state").display(),
                home.path("in.pcap").display(),
                home.path("region").display(),
            );
            fs::write(home.path("leaf.toml"), text).unwrap();
            home
        }

        /// Returns the path of a file in the folder.
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Returns the command of `wedjat agent`, or of `wedjat leaf` with an agent.
        fn command(&self, role: &str) -> Command {
            self.command_with(role, &[])
        }

        /// Like `command`, with further arguments.
        fn command_with(&self, role: &str, more: &[&str]) -> Command {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat"));
            command.arg(role).arg("--config").arg(self.path(&format!("{role}.toml")));
            command.args(more).args(["--stats", "-", "--", "--no-pci"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        }

        /// Starts a worker with any id.
        fn worker(&self) -> ChildProcess {
            ChildProcess::start(&mut self.worker_command())
        }

        /// Starts a worker with this id.
        fn worker_of_id(&self, id: u16) -> ChildProcess {
            ChildProcess::start(self.worker_command().env(WORKER, id.to_string()))
        }

        /// Returns the command of this program as a worker.
        fn worker_command(&self) -> Command {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(ATTACH, self.path("region")).stderr(Stdio::piped());
            command
        }

        /// Returns the output of `wedjat state`.
        fn state(&self, arguments: &[&str]) -> String {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat"));
            let output = command.arg("state").arg(self.path("state")).args(arguments).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        }

        /// Returns the output of `wedjat state --json`; null if the state cannot be read.
        fn state_json(&self) -> Value {
            serde_json::from_str(&self.state(&["--json"])).unwrap_or_default()
        }

        /// Returns a counter of the running agent, or its drops for a reason of this name; 0 if unknown.
        fn counter(&self, name: &str) -> u64 {
            let state = self.state_json();
            let core = &state["cores"][0];
            let found = core["counters"][name].as_u64().or_else(|| core["drops"][name].as_u64());
            found.unwrap_or(0)
        }

        /// Opens the agent's region for workers as soon as its socket exists. The test reads the grants in it.
        fn region(&self) -> WorkerRegion {
            wait_until("the region exists", || self.path("region").exists());
            WorkerRegion::open_within(&self.path("region"), TIMEOUT).unwrap()
        }
    }

    /// Returns the number of places granted to workers.
    fn given(region: &WorkerRegion) -> usize {
        (0..region.shape().channels).filter(|&at| region.granted(at) != 0).count()
    }

    /// Waits until `count` workers are granted and alive.
    fn wait_for_workers(region: &WorkerRegion, count: usize) {
        let is_in = |at: &usize| region.granted(*at) != 0 && region.has_worker(*at);
        let channels = || 0..region.shape().channels;
        wait_until("the workers are granted", || channels().filter(is_in).count() == count);
    }

    /// Returns the number at a JSON pointer in an account; 0 if there is none.
    fn count(account: &Value, pointer: &str) -> u64 {
        account.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Kills one of three workers under load. Checks that the remaining two go on, and that a new worker takes its
    /// place. The account must count the killed worker's lost tasks, at most two.
    pub fn a_killed_worker_loses_its_own_tasks_only() {
        let home = Home::new(64, ",infinite_rx=1");
        let agent = ChildProcess::start(&mut home.command("agent"));
        let region = home.region();
        let mut workers: Vec<_> = (0..WORKERS).map(|_| home.worker()).collect();
        wait_for_workers(&region, WORKERS);
        wait_until("replies come", || home.counter("replies") > 1000);

        // The load exceeds the capacity of three workers, so that some tasks wait.
        wait_until("tasks wait", || home.state_json()["pools"][0]["queued"][0] != 0);
        let text = home.state(&[]);
        assert!(
            text.contains("agent 6  pid") && text.contains("tasks that wait, by core: "),
            "{text}"
        );
        workers.remove(0).signal("-KILL");
        let killed = Instant::now();
        wait_until("its place is taken away", || given(&region) == WORKERS - 1);
        let before = home.counter("replies");
        wait_until("replies resume", || home.counter("replies") > before + 1000);
        println!("replies resumed within {:?} of SIGKILL", killed.elapsed());
        // A new worker takes the free place. The agent ends in the middle of the load.
        workers.push(home.worker());
        wait_for_workers(&region, WORKERS);
        let before = home.counter("replies");
        wait_until("more replies come", || home.counter("replies") > before + 5000);
        agent.signal("-TERM");
        let output = agent.output();
        let (account, log) = (account(&output), String::from_utf8_lossy(&output.stderr));
        workers.into_iter().for_each(ChildProcess::ended);

        let attach = &account["attach"];
        assert_eq!((attach["died"].as_u64(), attach["at_fault"].as_u64()), (Some(1), Some(0)));
        for line in ["worker 20 of pool 1 has joined", " of pool 1 has left"] {
            assert!(log.contains(line), "{log}");
        }
        assert_eq!(attach["silent"], 0);
        let lost = count(&account, "/drops/worker_lost");
        assert!(lost <= 2, "more than the worker's k = 2 tasks: {account}");
        let done = count(&account, "/replies") + lost + count(&account, "/drops/shutdown");
        assert_eq!(count(&account, "/scheduled"), done, "{account}");
        assert!(!home.path("region").exists(), "the region is gone");
    }

    /// Changes workers, pools and policies under load, by lines on the agent's standard input (`--changes -`). Checks
    /// the state file, the log, and that the agent drops scheduled tasks only at its shutdown.
    pub fn workers_and_pools_come_and_go_under_load() {
        let home = Home::new(64, ",infinite_rx=1");
        let mut command = home.command_with("agent", &["--changes", "-"]);
        let mut agent = ChildProcess::start(command.stdin(Stdio::piped()));
        let mut lines = agent.stdin();
        let region = home.region();
        let mut workers: BTreeMap<u16, ChildProcess> =
            (20..23).map(|id| (id, home.worker_of_id(id))).collect();
        wait_for_workers(&region, WORKERS);
        let more_replies = |home: &Home| {
            let before = home.counter("replies");
            wait_until("more replies come", || home.counter("replies") > before + 1000);
        };
        more_replies(&home);
        // Returns the workers of each pool, as the state file shows them.
        let named = |home: &Home| -> Vec<(u64, Vec<u64>)> {
            let state = home.state_json();
            let number = |object: &Value, key: &str| object[key].as_u64().unwrap_or_default();
            let pools = state["pools"].as_array().cloned().unwrap_or_default();
            let members = |pool: &Value| pool["members"].as_array().cloned().unwrap_or_default();
            let workers =
                |pool| members(pool).iter().map(|member| number(member, "worker")).collect();
            pools.iter().map(|pool| (number(pool, "id"), workers(pool))).collect()
        };
        writeln!(lines, "add-workers pool=1 workers=30-31\nadd-server ip=10.0.2.12").unwrap();
        wait_until("workers 30 and 31 have places", || {
            named(&home) == [(1, vec![20, 21, 22, 30, 31])]
        });
        workers.extend((30..32).map(|id| (id, home.worker_of_id(id))));
        wait_for_workers(&region, WORKERS + 2);
        more_replies(&home);
        // Two workers leave, one of the initial ones among them. Their processes succeed, and no worker can attach
        // under id 20 any more.
        writeln!(lines, "remove-workers workers=20,30").unwrap();
        wait_until("workers 20 and 30 are gone", || named(&home) == [(1, vec![21, 22, 31])]);
        [20, 30].into_iter().for_each(|id| workers.remove(&id).unwrap().ended());
        let name = home.path("region");
        let as_removed = Options { worker: Some(20), ..attach_options() };
        let refused = Worker::attach(name.to_str().unwrap(), &as_removed).unwrap_err();
        assert!(refused.to_string().contains("has no worker with id 20"), "{refused}");
        more_replies(&home);
        // A second pool with another policy. Workers of both pools go on while the policy changes.
        let changes = "add-pool id=2 policy=jsq\nadd-workers pool=2 workers=40\n\
                       set-policy pool=1 policy=random\nset-queue pool=1 queue=64";
        writeln!(lines, "{changes}").unwrap();
        let both = [(1, vec![21, 22, 31]), (2, vec![40])];
        wait_until("both pools are there", || named(&home) == both);
        workers.insert(40, home.worker_of_id(40));
        wait_for_workers(&region, 4);
        more_replies(&home);
        writeln!(lines, "remove-pool id=2\nset-policy pool=1 policy=cfcfs").unwrap();
        wait_until("pool 2 is gone", || named(&home) == [(1, vec![21, 22, 31])]);
        workers.remove(&40).unwrap().ended();
        // All workers leave, and one new worker takes a place that was in use.
        writeln!(lines, "remove-workers workers=21-22,31\nadd-workers pool=1 workers=50").unwrap();
        wait_until("only worker 50 remains", || named(&home) == [(1, vec![50])]);
        std::mem::take(&mut workers).into_values().for_each(ChildProcess::ended);
        let last = home.worker_of_id(50);
        wait_for_workers(&region, 1);
        more_replies(&home);
        drop(lines);
        agent.signal("-TERM");
        let output = agent.output();
        let (account, log) = (account(&output), String::from_utf8_lossy(&output.stderr));
        last.ended();
        // Workers 20 to 22, 30, 31, 40 and 50 joined. All except 50 left before the end.
        let attach = &account["attach"];
        assert_eq!((count(attach, "/joined"), count(attach, "/died")), (7, 0), "{attach}");
        assert_eq!((count(attach, "/left"), count(attach, "/at_fault")), (6, 0), "{attach}");
        let gone =
            ["worker_lost", "shutdown"].map(|reason| count(&account, &format!("/drops/{reason}")));
        assert_eq!(gone[0], 0, "a leaving worker answers its tasks: {account}");
        let done = count(&account, "/replies") + gone.iter().sum::<u64>();
        assert_eq!(count(&account, "/scheduled"), done, "{account}");
        for line in [
            "change 2: add-workers pool=1 workers=30-31",
            "the core uses it",
            "change refused: add-server ip=10.0.2.12: server 10.0.2.12: an agent's workers are on its own host",
            "worker 20 of pool 1 was released",
            "worker 50 of pool 1 has joined",
        ] {
            assert!(log.contains(line), "{line}: {log}");
        }
        let policy = account["policy"].as_str().unwrap();
        assert!(account["workers"] == 1 && policy.starts_with("cfcfs"), "{account}");
    }

    /// Checks that a worker serves the tasks of a capture, except those that arrive before it. Runs on emulated time:
    /// the agent polls only in turns, which the test (the conductor) gives. The first turn comes after the worker's
    /// claim, so only the first burst arrives before the worker is granted.
    pub fn tasks_are_done_or_counted_before_the_end() {
        let home = Home::new(500, ",tx_pcap=/dev/null");
        let clock = home.path("clock");
        let mut conductor = Conductor::create(&clock, 1).unwrap();
        let clock = ["--clock", clock.to_str().unwrap()];
        let agent = ChildProcess::start(&mut home.command_with("agent", &clock));
        let region = home.region();
        // Number of the agent's core at the conductor.
        let mut node = None;
        wait_until("the agent waits for its first turn", || {
            node = conductor.take(NODE);
            node.is_some()
        });
        let worker = home.worker();
        let is_there = || (0..WORKERS).any(|at| region.channel(at).sender().claim() != 0);
        wait_until("a worker asks to be let in", is_there);
        // The agent collects replies only in turns, so each look gives one.
        let mut now_ns = 0;
        wait_until("all tasks are done", || {
            now_ns += 100_000;
            conductor.set_now_ns(now_ns);
            conductor.turn(node.unwrap()).unwrap();
            home.counter("replies") + home.counter("no_member") == 500
        });
        agent.signal("-TERM");
        let account = account(&agent.output());
        worker.ended();
        let unserved = count(&account, "/drops/no_member");
        assert!(unserved <= 32, "one burst: {account}");
        assert_eq!(count(&account, "/replies") + unserved, 500, "{account}");
        assert_eq!(count(&account, "/tx_packets") + unserved, 500, "{account}");
    }

    /// Checks the errors for a second agent of the same name. Checks also those for a worker that attaches to no agent,
    /// to another file, under an unknown id, or to a killed agent.
    pub fn impossible_attachments_and_agents_are_refused() {
        let home = Home::new(1, ",infinite_rx=1");
        let missing = Worker::attach("no-such-agent-of-this-test", &Options::default());
        assert!(missing.unwrap_err().to_string().contains("start the agent first"));
        let agent = ChildProcess::start(&mut home.command("agent"));
        drop(home.region());
        let second = home.command("agent").output().unwrap();
        let log = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(1), "{log}");
        assert!(log.contains("in use by a running agent"), "{log}");

        // Regions of earlier releases were files. Tests of the library cover other versions of the socket's
        // offer.
        let name = home.path("region");
        let other = home.path("other");
        fs::write(&other, b"WEDJATwk").unwrap();
        let refused = Worker::attach(other.to_str().unwrap(), &Options::default()).unwrap_err();
        assert!(refused.to_string().contains("but a regular file"), "{refused}");
        let wrong = Options { worker: Some(5), ..attach_options() };
        let refused = Worker::attach(name.to_str().unwrap(), &wrong).unwrap_err();
        assert!(refused.to_string().contains("it has [20, 21, 22]"), "{refused}");

        agent.signal("-KILL");
        let _ = agent.output();
        let dead = Worker::attach(name.to_str().unwrap(), &attach_options()).unwrap_err();
        assert!(dead.to_string().contains("has stopped"), "{dead}");
        // The socket and the state file of the killed agent do not stop a new one.
        let agent = ChildProcess::start(&mut home.command("agent"));
        wait_until("a worker of the new agent is let in", || {
            Worker::attach(name.to_str().unwrap(), &attach_options()).is_ok()
        });
        agent.signal("-TERM");
        account(&agent.output());
    }

    /// Runs a leaf with an agent on its core under load: kills a worker, attaches others, changes the workers and the
    /// agent's policy. Checks the accounts of leaf and agent.
    pub fn leaf_and_agent_share_a_process_and_a_core() {
        let home = Home::new(64, ",infinite_rx=1");
        let mut command = home.command_with("leaf", &["--changes", "-"]);
        let mut node = ChildProcess::start(command.stdin(Stdio::piped()));
        let mut lines = node.stdin();
        let region = home.region();
        let mut workers: Vec<_> = (0..2).map(|_| home.worker()).collect();
        wait_for_workers(&region, 2);
        wait_until("replies come", || home.counter("replies") > 1000);
        wait_until("both are registered", || home.counter("registrations") >= 2);
        // Returns the number at a JSON pointer in the state.
        let beside = |pointer: &str| home.state_json().pointer(pointer).and_then(Value::as_u64);
        wait_until("the agent's side counts", || {
            beside("/agent/cores/0/counters/replies") > Some(0)
        });
        let text = home.state(&[]);
        assert!(text.contains("leaf 1  pid") && text.contains("\nagent 1  pid"), "{text}");
        workers.remove(0).signal("-KILL");
        wait_until("its place is taken away", || given(&region) == 1);
        let before = home.counter("replies");
        wait_until("replies go on", || home.counter("replies") > before + 1000);
        // A new worker takes the free place, gets a task at once, and leaves.
        let name = home.path("region");
        let mut third = Worker::attach(name.to_str().unwrap(), &attach_options()).unwrap();
        let task = third.recv(TIMEOUT).unwrap().expect("a task comes");
        task.reply_with(|request, reply| {
            reply[..request.len()].copy_from_slice(request);
            request.len()
        });
        drop(third);
        // A change adds a worker. It gets tasks, and a second change removes it.
        writeln!(lines, "add-workers pool=1 workers=30\nagent set-policy pool=1 policy=cfcfs")
            .unwrap();
        wait_until("the agent has a place for worker 30", || {
            let offered = home.region();
            (0..offered.shape().channels)
                .any(|at| offered.identity(at).is_some_and(|identity| identity.id == 30))
        });
        let fourth = home.worker_of_id(30);
        wait_for_workers(&region, 2);
        let before = home.counter("replies");
        wait_until("replies go on", || home.counter("replies") > before + 1000);
        writeln!(lines, "remove-workers workers=30").unwrap();
        fourth.ended();
        node.signal("-TERM");
        let output = node.output();
        let (account, log) = (account(&output), String::from_utf8_lossy(&output.stderr));
        workers.into_iter().for_each(ChildProcess::ended);
        for line in ["change 3: agent set-policy", "worker 30 of pool 1 has joined", "was released"]
        {
            assert!(log.contains(line), "{line}: {log}");
        }
        let agent = &account["agent"];
        assert!(agent["policy"].as_str().unwrap().starts_with("cfcfs"), "{agent}");
        assert_eq!(agent["balanced"], true, "{agent}");
        assert_eq!(count(agent, "/attach/died"), 1, "{agent}");
        assert!(count(agent, "/attach/joined") >= 3, "{agent}");
        let gone =
            ["worker_lost", "shutdown"].map(|reason| count(agent, &format!("/drops/{reason}")));
        let done = count(agent, "/replies") + gone.iter().sum::<u64>();
        assert_eq!(count(agent, "/scheduled"), done, "{agent}");
        assert!(count(agent, "/replies") >= count(&account, "/replies"), "{account}");
        assert_eq!(count(&account, "/originated_unsent") + count(agent, "/originated_unsent"), 0);
    }

    /// Attaches workers to a sleeping node that no event wakes: the capture has ended, and its device has no
    /// interrupts. So it must wake by its timer to see the workers' claims and SIGTERM.
    pub fn sleeping_node_admits_workers_and_stops() {
        for role in ["agent", "leaf"] {
            let home = Home::new(3, "");
            let path = home.path(&format!("{role}.toml"));
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, text.replace("seed = 7", "seed = 7\npoll = 'adaptive'")).unwrap();
            let node = ChildProcess::start(&mut home.command(role));
            wait_until("the node sleeps", || home.counter("sleeps") > 0);
            let region = home.region();
            let workers = [home.worker(), home.worker()];
            wait_for_workers(&region, 2);
            let look = || (home.counter("sleeps"), home.counter("empty_polls"));
            // The two counters are read at slightly different times. An idle core polls at most 20 times per sleep; one
            // that never sleeps would poll a thousand times as often.
            let mut before = look();
            wait_until("the node hardly polls", || {
                let now = look();
                let (sleeps, polls) = (now.0 - before.0, now.1 - before.1);
                let is_idle = sleeps > 200 && polls < 20 * sleeps;
                if sleeps > 200 {
                    before = now;
                }
                is_idle
            });
            node.signal("-TERM");
            account(&node.output());
            workers.into_iter().for_each(ChildProcess::ended);
        }
    }

    /// Returns the frame of a client's task over IPv6.
    fn task_v6(seq: u16) -> Vec<u8> {
        let header = Header::new_task(1, seq);
        let mut frame = vec![0; udp::PAYLOAD_V6 + header.len() + 20];
        header.emit(&mut frame[udp::PAYLOAD_V6..]);
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
        let flow = Flow {
            src_mac: CLIENT_MAC,
            dst_mac: LEAF,
            src: address("fd00:1::5"),
            dst: address("fd00:1::1"),
            src_port: 40_000,
            dst_port: 1234,
        };
        let len = frame.len() - udp::PAYLOAD_V6;
        flow.emit_v6(&mut frame, len);
        frame
    }

    /// Runs a leaf that replays a capture of tasks and passes them over memif to an agent with worker processes.
    /// Checks that the workers register and that each task is answered once. `has_key` gives the pool a key, with which
    /// the agent signs replies.
    pub fn leaf_agent_and_workers_speak_ipv6(has_key: bool) {
        // At most 256 packets may wait for the agent's MAC address (`UNRESOLVED_HELD_MAX`).
        const TASKS: u16 = 200;
        let home = Home(tempfile::tempdir().unwrap());
        let tasks: Vec<_> = (0..TASKS).map(task_v6).collect();
        write_frames(&home.path("in.pcap"), &tasks).unwrap();
        fs::write(home.path("key"), "0f".repeat(16)).unwrap();
        fs::set_permissions(home.path("key"), fs::Permissions::from_mode(0o400)).unwrap();
        let key = match has_key {
            true => format!("key_file = '{}'\n", home.path("key").display()),
            false => String::new(),
        };
        let cpus = core_affinity::get_core_ids().unwrap();
        let (first, last) = (cpus[0].id, cpus[cpus.len() - 1].id);
        let text = format!(
            "[agent]\nid = 6\nname = '{}'\ncore = {last}\nleaf = 'fd00:2::1'\nworker_timeout_ms = 0\nstate = '{}'\n\
             [[port]]\ndevice = 'net_memif0,role=server,id=0,socket={}'\nip = 'fd00:2::b/64'\nmac = '{AGENT}'\n\
             [[pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nworkers = '20-22'\n{key}",
            home.path("region").display(),
            home.path("state").display(),
            home.path("wire").display(),
        );
        fs::write(home.path("agent.toml"), text).unwrap();
        let text = format!(
            "[leaf]\nid = 1\ncores = [{first}]\nseed = 7\nworker_timeout_ms = 0\nstate = '{}'\n\
             [[port]]\ndevice = 'net_pcap0,rx_pcap={},tx_pcap={}'\nside = 'clients'\nip = 'fd00:1::1/64'\nmac = '{LEAF}'\n\
             [[port]]\ndevice = 'net_memif0,role=client,id=0,socket={}'\nside = 'workers'\nip = 'fd00:2::1/64'\n\
             [[pool]]\nid = 1\npolicy = 'jbsq(k=2)'\nqueue = 256\n{key}\
             [[server]]\nip = 'fd00:2::b'\npool = 1\nworkers = '20-22'\nregisters = true\n",
            home.path("leaf").display(),
            home.path("in.pcap").display(),
            home.path("out.pcap").display(),
            home.path("wire").display(),
        );
        fs::write(home.path("leaf.toml"), text).unwrap();

        let mut agent = ChildProcess::start(&mut home.command("agent"));
        let region = home.region();
        let workers: Vec<_> = (0..WORKERS).map(|_| home.worker()).collect();
        wait_for_workers(&region, WORKERS);
        let mut command = home.command_with("leaf", &["--peer-timeout", "300s"]);
        let mut leaf = ChildProcess::start(&mut command);
        let state = || Snapshot::open(&home.path("leaf")).ok();
        let count = |name: &str| {
            let counters = state().map(|state| state.cores[0].counters[name]);
            counters.unwrap_or(0)
        };
        let mut wait_for = |what, name, wanted: u64| {
            wait_until(what, || {
                assert!(!leaf.has_ended() && !agent.has_ended(), "a node ended before {what}");
                count(name) >= wanted
            });
        };
        wait_for("all are answered", "replies", TASKS.into());
        wait_for("workers are registered", "keep_alives", WORKERS as u64);
        let account_of_leaf = leaf.account();
        let account_of_agent = agent.account();
        workers.into_iter().for_each(ChildProcess::ended);

        // The agent repeats a registration if the answer takes longer than 10 ms.
        assert!(self::count(&account_of_leaf, "/registrations") >= WORKERS as u64);
        for (account, name) in [(&account_of_leaf, "leaf"), (&account_of_agent, "agent")] {
            assert_eq!(self::count(account, "/replies"), u64::from(TASKS), "{name}: {account}");
        }
        let frames = read_frames(&home.path("out.pcap")).unwrap();
        let replies = frames.iter().filter_map(|frame| {
            let datagram = udp::parse_v6(frame, false).ok()?;
            let header = Header::parse(&frame[datagram.payload()..]).unwrap();
            assert!(header.code.is_reply() && header.authenticated == has_key, "{header:?}");
            Some(header.seq)
        });
        let replies: Vec<_> = replies.collect();
        assert_eq!(replies.len(), usize::from(TASKS), "each is answered once");
        assert_eq!(replies.into_iter().collect::<BTreeSet<_>>().len(), usize::from(TASKS));
    }
}
