//! Direct return between processes: a client's kernel socket, `wedjat leaf`, `wedjat agent` and its worker processes,
//! in network namespaces on one bridge.
//!
//! With direct return (`replies = 'direct'`) a worker's reply goes from its host straight to the client. The leaf
//! receives completion reports instead, of up to 30 tasks each, so that it knows the loads of workers.
//!
//! The test starts itself again as client and as workers, so it has its own `main`.
#![allow(clippy::unwrap_used, reason = "a test")]

#[cfg(not(all(feature = "dpdk", target_os = "linux")))]
fn main() {
    println!("SKIPPED direct_replies: built without DPDK");
}

// promise: packets.2
#[cfg(all(feature = "dpdk", target_os = "linux"))]
fn main() {
    use std::os::unix::fs::MetadataExt;

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["worker", region] => rack::work(region),
        ["client", leaf, tasks] => rack::ask(leaf, tasks.parse().unwrap()),
        ["sender", leaf, tasks] => rack::send(leaf, tasks.parse().unwrap()),
        ["--list", ..] => println!("direct_replies: test"),
        _ if std::fs::metadata("/proc/self").unwrap().uid() != 0 => {
            println!("direct_replies: SKIPPED, making network namespaces needs root");
        }
        _ => rack::run(),
    }
}

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod echo;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod process;
#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod timeouts;

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod rack {
    use std::collections::BTreeSet;
    use std::fs::{self, Permissions};
    use std::io::Write as _;
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use serde_json::Value;
    use wedjat::wire::task::{Code, Header};
    use wedjat::worker::{Options, Worker};

    use super::echo::echo;
    use super::process::ChildProcess;
    use super::timeouts::{TIMEOUT, wait_until};

    /// Addresses of one family, and the policy and key of the pool.
    struct Scenario {
        /// Address of the leaf.
        leaf: &'static str,
        /// Address of the agent.
        agent: &'static str,
        /// Address of the client.
        client: &'static str,
        /// Length of the network's prefix: 24 for IPv4, 64 for IPv6.
        prefix: u8,
        /// The leaf's scheduling policy.
        policy: &'static str,
        /// True if the agent signs its workers' replies and reports with a key.
        has_key: bool,
    }

    /// A scenario for each family.
    const SCENARIOS: [Scenario; 2] = [
        Scenario {
            leaf: "10.67.1.1",
            agent: "10.67.1.11",
            client: "10.67.1.2",
            prefix: 24,
            policy: "jbsq(k=2)",
            has_key: true,
        },
        Scenario {
            leaf: "fd67:1::1",
            agent: "fd67:1::b",
            client: "fd67:1::2",
            prefix: 64,
            policy: "horus",
            has_key: false,
        },
    ];

    const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
    /// Id of the pool.
    const POOL: u16 = 5;
    /// Number of tasks of each run of the client.
    const TASKS: u16 = 2000;
    /// Number of tasks sent after the agent was killed.
    const LOST: u16 = 20;
    /// Maximum number of outstanding tasks of the client.
    const WINDOW: usize = 16;
    /// Number of worker processes.
    const WORKERS: usize = 3;

    /// Runs a worker process: echoes until its agent ends, in order or not, or sends no task for [`TIMEOUT`].
    pub fn work(region: &str) {
        let options = Options { attach_timeout: TIMEOUT, ..Options::default() };
        let mut worker = Worker::attach(region, &options).unwrap_or_else(|error| panic!("{error}"));
        echo(&mut worker);
    }

    /// Returns a socket that accepts packets only from the leaf's address and port. So a direct reply reaches it only
    /// with the leaf's address as its source.
    fn connected(leaf: &str) -> UdpSocket {
        let leaf = SocketAddr::from((leaf.parse::<IpAddr>().unwrap(), 1234));
        let socket = UdpSocket::bind(if leaf.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect(leaf).unwrap();
        socket
    }

    /// Returns the UDP payload of a task: its header, and 30 bytes that depend on its number.
    fn task(seq: u16) -> Vec<u8> {
        let header = Header::new_task(POOL, seq);
        let mut payload = vec![seq as u8; header.len() + 30];
        header.emit(&mut payload);
        payload
    }

    /// Runs the client process: sends tasks, at most [`WINDOW`] of them outstanding. Checks that each is answered once,
    /// with its own bytes.
    pub fn ask(leaf: &str, tasks: u16) {
        let socket = connected(leaf);
        let (mut sent, mut answered) = (0, BTreeSet::new());
        while answered.len() < usize::from(tasks) {
            while sent < tasks && usize::from(sent) - answered.len() < WINDOW {
                socket.send(&task(sent)).unwrap();
                sent += 1;
            }
            let mut packet = [0; 2048];
            let len = socket.recv(&mut packet).unwrap_or_else(|error| {
                panic!("{} of {sent} tasks were answered, then none: {error}", answered.len())
            });
            let header = Header::parse(&packet[..len]).unwrap();
            assert!(matches!(header.code, Code::TaskDone | Code::TaskDoneIdle), "{header:?}");
            // The header of a task without extension has 11 bytes.
            assert_eq!(packet[header.len()..len], task(header.seq)[11..]);
            assert!(answered.insert(header.seq), "task {} was answered twice", header.seq);
        }
    }

    /// Runs the client process for a killed agent: sends tasks and waits for no answer.
    pub fn send(leaf: &str, tasks: u16) {
        let socket = connected(leaf);
        (0..tasks).for_each(|seq| _ = socket.send(&task(seq)).unwrap());
    }

    /// Namespaces of client (`c`), leaf (`l`), agent (`a`) and bridge (`b`), removed when dropped. The string is the
    /// prefix of their names.
    struct Net(String);

    impl Net {
        /// Creates the namespaces. Veth pairs join client, leaf and agent to the bridge, with an interface `e0` in
        /// each. Only the client's has an address; DPDK serves those of leaf and agent.
        fn new(number: usize, scenario: &Scenario) -> Self {
            let net = Self(format!("wd{}n{number}", std::process::id()));
            for place in ["b", "c", "l", "a"] {
                call(&["ip", "netns", "add", &net.name(place)]);
                // Only the kernel of an IPv6 client has IPv6. Those of leaf and agent must not answer beside DPDK.
                let has_v6 = place == "c" && scenario.prefix == 64;
                // `$0` is the argument behind the script.
                let quiet = "cd /proc/sys/net/ipv6/conf; for one in all default; do \
                             echo $0 > $one/disable_ipv6; echo 0 > $one/router_solicitations; done";
                net.within(place, &["sh", "-c", quiet, if has_v6 { "0" } else { "1" }]);
                net.within(place, &["ip", "link", "set", "lo", "up"]);
            }
            net.within("b", &["ip", "link", "add", "name", "br0", "type", "bridge"]);
            net.within("b", &["ip", "link", "set", "br0", "up"]);
            for place in ["c", "l", "a"] {
                let (far, at) = (format!("to-{place}"), net.name(place));
                let pair = ["type", "veth", "peer", "name", "e0", "netns", &at];
                net.within("b", &[&["ip", "link", "add", "name", &far][..], &pair].concat());
                net.within("b", &["ip", "link", "set", &far, "master", "br0", "up"]);
                net.within(place, &["ip", "link", "set", "e0", "up"]);
            }
            let address = format!("{}/{}", scenario.client, scenario.prefix);
            // `nodad`: without the delay of duplicate address detection.
            let mut words = vec!["ip", "address", "add", &address, "dev", "e0"];
            words.extend((scenario.prefix == 64).then_some("nodad"));
            net.within("c", &words);
            net
        }

        /// Returns the name of a namespace.
        fn name(&self, place: &str) -> String {
            format!("{}{place}", self.0)
        }

        /// Returns a command within a namespace.
        fn command(&self, place: &str, words: &[&str]) -> Command {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.name(place)]).args(words);
            command
        }

        /// Runs a command within a namespace, which must succeed.
        fn within(&self, place: &str, words: &[&str]) {
            let status = self.command(place, words).status().unwrap();
            assert!(status.success(), "{words:?}");
        }

        /// Runs this program in the client's namespace, as `client` or `sender`. It must succeed.
        fn client(&self, words: &[&str]) {
            let own = std::env::current_exe().unwrap();
            self.within("c", &[&[own.to_str().unwrap()][..], words].concat());
        }
    }

    impl Drop for Net {
        fn drop(&mut self) {
            for place in ["b", "c", "l", "a"] {
                let _ = Command::new("ip").args(["netns", "del", &self.name(place)]).status();
            }
        }
    }

    /// Runs a command that must succeed.
    fn call(words: &[&str]) {
        assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{words:?}");
    }

    /// Folder of the nodes' files.
    struct Home(tempfile::TempDir);

    impl Home {
        /// Writes the files of leaf and agent.
        fn new(scenario: &Scenario) -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            let Scenario { leaf, agent, prefix, policy, has_key, .. } = scenario;
            let at = |name: &str| home.path(name).display().to_string();
            let key = match has_key {
                true => {
                    fs::write(home.path("key"), "000102030405060708090a0b0c0d0e0f").unwrap();
                    fs::set_permissions(home.path("key"), Permissions::from_mode(0o600)).unwrap();
                    format!("key_file = '{}'\n", at("key"))
                }
                false => String::new(),
            };
            // The leaf's `worker_timeout_ms` is short, so that it soon notices a killed agent, and longer than the
            // machine's pauses.
            let text = format!(
                "[leaf]\nid = 1\ncores = [0]\nseed = 7\nworker_timeout_ms = 3000\nstate = '{}'\n\
                 [[port]]\ndevice = 'net_af_packet0,iface=e0'\nside = 'both'\nip = '{leaf}/{prefix}'\n\
                 [[pool]]\nid = {POOL}\npolicy = '{policy}'\nreplies = 'direct'\n{key}\
                 [[server]]\nip = '{agent}'\nworkers = '0-2'\npool = {POOL}\nregisters = true\n",
                at("leaf.state")
            );
            fs::write(home.path("leaf.toml"), text).unwrap();
            let text = format!(
                "[agent]\nname = '{}'\ncore = 0\nseed = 7\nworker_timeout_ms = 0\nleaf = '{leaf}'\nstate = '{}'\n\
                 [[port]]\ndevice = 'net_af_packet0,iface=e0'\nip = '{agent}/{prefix}'\n\
                 [[pool]]\nid = {POOL}\npolicy = 'cfcfs'\nworkers = '0-2'\n{key}",
                at("region"),
                at("agent.state")
            );
            fs::write(home.path("agent.toml"), text).unwrap();
            home
        }

        /// Returns the path of a file in the folder.
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Starts a node in its namespace.
        fn node(&self, net: &Net, place: &str, role: &str, more: &[&str]) -> ChildProcess {
            let config = self.path(&format!("{role}.toml"));
            let words = [WEDJAT, role, "--config", config.to_str().unwrap()];
            let mut command = net.command(place, &words);
            command.args(more).args(["--stats", "-", "--", "--no-pci"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            ChildProcess::start(&mut command)
        }

        /// Starts a worker process.
        fn worker(&self) -> ChildProcess {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg("worker").arg(self.path("region"));
            ChildProcess::start(&mut command)
        }

        /// Returns the state of a node; null if it cannot be read.
        fn state(&self, role: &str) -> Value {
            let state = self.path(&format!("{role}.state"));
            let output = Command::new(WEDJAT).arg("state").arg(state).arg("--json").output();
            serde_json::from_slice(&output.unwrap().stdout).unwrap_or_default()
        }

        /// Returns a counter of a running node's only core; 0 if it cannot be read.
        fn counter(&self, role: &str, name: &str) -> u64 {
            self.state(role)["cores"][0]["counters"][name].as_u64().unwrap_or_default()
        }

        /// Returns the sum of a numeric field over the members of the leaf's pool.
        fn of_members(&self, name: &str) -> u64 {
            let state = self.state("leaf");
            let members = state["pools"][0]["members"].as_array().cloned().unwrap_or_default();
            members.iter().filter_map(|member| member[name].as_u64()).sum()
        }
    }

    /// Waits until all workers have registered with the leaf.
    fn wait_for_registration(home: &Home) {
        wait_until("the workers are registered", || {
            let state = home.state("leaf");
            let members = state["pools"][0]["members"].as_array().cloned().unwrap_or_default();
            let registered = members.iter().filter(|member| member["presence"] == "registered");
            registered.count() == WORKERS
        });
    }

    /// Serves a client with direct return: with all workers, with two of them drained, and after a kill of the agent.
    /// Checks that the leaf accounts for every task by a reply, a completion report or a write-off.
    fn run_scenario(number: usize, scenario: &Scenario) {
        let (net, home) = (Net::new(number, scenario), Home::new(scenario));
        let mut leaf = home.node(&net, "l", "leaf", &["--changes", "-"]);
        let mut changes = leaf.stdin();
        let agent = home.node(&net, "a", "agent", &[]);
        wait_until("the region exists", || home.path("region").exists());
        let _workers: Vec<_> = (0..WORKERS).map(|_| home.worker()).collect();
        wait_for_registration(&home);

        net.client(&["client", scenario.leaf, &TASKS.to_string()]);
        let tasks = u64::from(TASKS);
        wait_until("all tasks are accounted for", || {
            let counters = ["scheduled", "replies", "completions"];
            let [scheduled, replies, completions] = counters.map(|name| home.counter("leaf", name));
            (scheduled, replies + completions) == (tasks, tasks)
        });
        // The first replies pass the leaf, until the agent has the client's MAC address.
        let direct = home.counter("leaf", "completions");
        assert!(direct > tasks / 2, "{direct} of {tasks}");
        wait_until("the agent shows all replies", || home.counter("agent", "replies") == tasks);
        wait_until("no task is outstanding", || home.of_members("outstanding") == 0);

        // The client still gets all answers after the command to drain workers 0 and 1.
        writeln!(changes, "drain workers=0-1").unwrap();
        net.client(&["client", scenario.leaf, &TASKS.to_string()]);
        wait_until("the tasks of the other worker are accounted for", || {
            home.counter("leaf", "replies") + home.counter("leaf", "completions") == 2 * tasks
        });
        writeln!(changes, "undrain workers=0-1").unwrap();

        // The leaf writes off the tasks that it sent to a dead agent.
        agent.signal("-KILL");
        net.client(&["sender", scenario.leaf, &LOST.to_string()]);
        wait_until("the workers are silent", || home.counter("leaf", "workers_lost") >= 3);
        wait_until("their tasks are written off", || home.of_members("outstanding") == 0);
        let account = leaf.account();
        for reason in ["auth_tag", "auth_replay", "auth_missing", "completions_malformed"] {
            assert!(account["drops"][reason].is_null(), "{account}");
        }
        let count = |name: &str| account[name].as_u64().unwrap();
        assert!(count("completion_reports") <= count("completions"), "{account}");
        println!(
            "{}: {} tasks, {} completions in {} reports, {} replies, dropped: {}",
            scenario.policy,
            count("scheduled"),
            count("completions"),
            count("completion_reports"),
            count("replies"),
            account["drops"],
        );
    }

    /// Runs all scenarios.
    pub fn run() {
        for (number, scenario) in SCENARIOS.iter().enumerate() {
            run_scenario(number, scenario);
        }
        println!("direct_replies: ok");
    }
}
