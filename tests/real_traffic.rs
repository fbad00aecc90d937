//! The leaf (`wedjat leaf`, which schedules clients' tasks over workers) between ordinary kernel sockets: clients and
//! workers in their own network namespaces, joined to the leaf by veth pairs, on AF_PACKET and on AF_XDP.
//!
//! The test starts itself again inside the namespaces, as client and as server of workers. There it uses only
//! the standard library's sockets and writes the task header by hand. It therefore has its own `main`.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "a socket option that the standard library does not have")]

mod timeouts;

// promise: packets.2, ports.1
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["server", address] => peer::serve(address),
        ["client", leaf, kind, tasks] => {
            peer::ask(leaf, kind == "connected", tasks.parse().unwrap())
        }
        ["burst", leaf, tasks] => peer::burst(leaf, tasks.parse().unwrap()),
        ["--list", ..] => println!("real_traffic: test"),
        _ => run(),
    }
}

/// Notes that this build cannot run the test.
#[cfg(not(all(feature = "dpdk", target_os = "linux")))]
fn run() {
    println!("real_traffic: SKIPPED, needs Linux and the feature dpdk");
}

/// Runs the test if this process has the rights.
#[cfg(all(feature = "dpdk", target_os = "linux"))]
fn run() {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("real_traffic: SKIPPED, making network namespaces and raw sockets needs root");
        return;
    }
    traffic::run();
}

/// Both kinds of peers, written with ordinary sockets.
mod peer {
    use std::collections::BTreeMap;
    use std::io::{ErrorKind, Read};
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    use std::time::Duration;

    use super::timeouts::TIMEOUT;

    // Codes of the task header, and the flag of its extension.
    const NEW_TASK: u8 = 0;
    const TASK_DONE: u8 = 2;
    const TASK_DONE_IDLE: u8 = 3;
    const EXTENSION: u8 = 0x20;
    /// Length of a task without payload, in bytes.
    #[cfg(target_os = "linux")]
    const HEADER: usize = 27;
    /// Id of the pool.
    const POOL: u16 = 5;
    /// Maximum number of outstanding tasks of a client.
    const WINDOW: u16 = 32;

    // Offsets in a task: 0 code, 1 pool, 3 source, 5 destination, 7 flags, 9 sequence number, 11 extension.

    /// Returns the number of two bytes at an offset.
    fn word(packet: &[u8], at: usize) -> u16 {
        u16::from_be_bytes([packet[at], packet[at + 1]])
    }

    /// Serves as several workers with one socket, until standard input closes. Each reply names the worker to
    /// which its task was sent.
    pub fn serve(address: &str) {
        std::thread::spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            std::process::exit(0);
        });
        let socket = UdpSocket::bind((address, 1234)).unwrap();
        println!("ready");
        let mut packet = [0; 2048];
        loop {
            let (length, client) = socket.recv_from(&mut packet).unwrap();
            assert_eq!((packet[0] & !EXTENSION, word(&packet, 1)), (NEW_TASK, POOL), "a task");
            // Long enough that a client's tasks overlap and need more than one worker.
            std::thread::sleep(Duration::from_micros(300));
            // Flag 1: the leaf picked the worker from the idle list, so the worker is idle again after this task.
            let was_idle = word(&packet, 7) == 1;
            let code = if was_idle { TASK_DONE_IDLE } else { TASK_DONE };
            packet[0] = code | (packet[0] & EXTENSION);
            packet.copy_within(5..7, 3); // the chosen worker is the source of the reply
            packet[5..9].fill(0);
            socket.send_to(&packet[..length], client).unwrap();
        }
    }

    /// Sets Linux's `UDP_SEGMENT`: the kernel splits the data of one call into datagrams of `len` bytes.
    #[cfg(target_os = "linux")]
    fn segment(socket: &UdpSocket, len: usize) {
        use std::os::fd::AsRawFd;
        let len = libc::c_int::try_from(len).unwrap();
        let (value, size) = ((&raw const len).cast(), size_of::<libc::c_int>() as u32);
        // SAFETY: the value lives through the call. The call reads exactly the given length.
        let set = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, size)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    /// Sends tasks in one call. Prints the number of answers received until all have come, or until a second passes
    /// without one.
    #[cfg(target_os = "linux")]
    pub fn burst(leaf: &str, tasks: u16) {
        let leaf = SocketAddr::from((leaf.parse::<IpAddr>().unwrap(), 1234));
        let anywhere = if leaf.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(anywhere).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        segment(&socket, HEADER);
        let all: Vec<u8> = (0..tasks).flat_map(|seq| task(true, seq)[..HEADER].to_vec()).collect();
        assert_eq!(socket.send_to(&all, leaf).unwrap(), all.len());
        let answers = std::iter::from_fn(|| socket.recv_from(&mut [0; 2048]).ok());
        println!("{}", answers.take(tasks.into()).count());
    }

    /// Does nothing: other systems have no segmentation offload.
    #[cfg(not(target_os = "linux"))]
    pub fn burst(_: &str, _: u16) {}

    /// Sends tasks, at most [`WINDOW`] outstanding. Checks that each is answered once, from the leaf's address and with
    /// its payload. Prints the number of answers by worker. `connected`: the socket is connected, and tasks have the
    /// extension.
    pub fn ask(leaf: &str, connected: bool, tasks: u16) {
        let leaf = SocketAddr::from((leaf.parse::<IpAddr>().unwrap(), 1234));
        let anywhere = if leaf.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(anywhere).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        if connected {
            socket.connect(leaf).unwrap();
        }
        let (mut sent, mut answers) = (0, BTreeMap::new());
        let mut workers: BTreeMap<u16, u32> = BTreeMap::new();
        while answers.len() < usize::from(tasks) {
            while sent < tasks && usize::from(sent) - answers.len() < usize::from(WINDOW) {
                let task = task(connected, sent);
                let length = match connected {
                    true => socket.send(&task).unwrap(),
                    false => socket.send_to(&task, leaf).unwrap(),
                };
                assert_eq!(length, task.len());
                sent += 1;
            }
            let mut packet = [0; 2048];
            let (length, from) = match connected {
                true => (socket.recv(&mut packet), leaf),
                false => match socket.recv_from(&mut packet) {
                    Ok((length, from)) => (Ok(length), from),
                    Err(error) => (Err(error), leaf),
                },
            };
            let length = match length {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("{} of {sent} tasks were answered, then none", answers.len())
                }
                length => length.unwrap(),
            };
            assert_eq!(from, leaf, "the answer comes from where the client asked");
            let (seq, worker) = (word(&packet, 9), word(&packet, 3));
            let asked = task(connected, seq);
            assert_eq!(packet[11..length], asked[11..], "the payload comes back unchanged");
            assert!(matches!(packet[0] & !EXTENSION, TASK_DONE | TASK_DONE_IDLE));
            assert_eq!(answers.insert(seq, worker), None, "task {seq} was answered twice");
            *workers.entry(worker).or_default() += 1;
        }
        for (worker, count) in workers {
            println!("{worker} {count}");
        }
    }

    /// Builds a task of [`HEADER`] bytes (11, and 16 of the extension's place) and a payload that depends on its
    /// number. Payloads have many lengths, even and odd: the last byte of an odd one is a special case of checksums.
    fn task(extended: bool, seq: u16) -> Vec<u8> {
        let mut task = vec![NEW_TASK | if extended { EXTENSION } else { 0 }];
        for value in [POOL, 0, 0, 0, seq] {
            task.extend(value.to_be_bytes());
        }
        task.extend([0; 16]);
        task.extend((0..seq % 777).map(|at| (seq ^ at) as u8));
        task
    }
}

#[cfg(all(feature = "dpdk", target_os = "linux"))]
mod traffic {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use serde_json::Value;

    use super::timeouts::{LIFETIME, wait_until};

    /// Addresses of one family.
    struct Family {
        /// Name for messages.
        name: &'static str,
        /// The leaf's addresses towards clients and towards workers.
        leaf: [&'static str; 2],
        /// The clients' address.
        client: &'static str,
        /// Addresses of the servers, each with four workers.
        servers: [&'static str; 2],
        /// Length of the networks' prefixes.
        prefix: u8,
    }

    const V4: Family = Family {
        name: "IPv4",
        leaf: ["10.66.1.1", "10.66.2.1"],
        client: "10.66.1.2",
        servers: ["10.66.2.11", "10.66.2.12"],
        prefix: 24,
    };

    const V6: Family = Family {
        name: "IPv6",
        leaf: ["fd66:1::1", "fd66:2::1"],
        client: "fd66:1::2",
        servers: ["fd66:2::b", "fd66:2::c"],
        prefix: 64,
    };

    const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");
    const LEAF_MACS: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
    const WORKERS_MAC: &str = "02:00:00:00:02:0b";
    /// Number of tasks of each client.
    const TASKS: u16 = 600;
    /// Number of tasks in a burst. Together they are shorter than the MTU, so that the length does not reveal
    /// the offload.
    const BURST: u16 = 40;
    /// Number of workers of both servers.
    const WORKERS: usize = 8;

    /// Namespaces of clients (`c`), leaf (`l`) and workers (`w`), removed with their content when dropped. The
    /// string is the prefix of their names.
    struct Net(String);

    impl Net {
        /// Creates the namespaces and the veth pairs, with the family's addresses.
        fn new(number: usize, family: &Family) -> Self {
            let net = Self(format!("wj{}n{number}", std::process::id()));
            for place in ["c", "l", "w"] {
                call(&["ip", "netns", "add", &net.name(place)]);
                // Silences the kernel. Over IPv4, it neither forwards packets beside the leaf nor sends IPv6. Over
                // IPv6, it neither forwards packets nor asks for routers.
                let quiet = match family.prefix {
                    24 => {
                        "echo 0 > /proc/sys/net/ipv4/ip_forward; cd /proc/sys/net/ipv6/conf; \
                           for all in */disable_ipv6; do echo 1 > $all; done"
                    }
                    _ => {
                        "cd /proc/sys/net/ipv6/conf; for one in all default; do echo 0 > $one/forwarding; \
                          echo 0 > $one/accept_ra; echo 0 > $one/router_solicitations; done"
                    }
                };
                net.within(place, &["sh", "-c", quiet]);
                // In the leaf's namespace, the kernel must not answer in the leaf's place.
                if place == "l" {
                    let none =
                        "for all in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 > $all; done";
                    net.within(place, &["sh", "-c", none]);
                }
                net.within(place, &["ip", "link", "set", "lo", "up"]);
            }
            let Family { leaf, client, servers, prefix, .. } = family;
            let with_prefix = |address: &str| format!("{address}/{prefix}");
            net.join("c", LEAF_MACS[0], "02:00:00:00:01:02", &[with_prefix(client)], leaf[0]);
            let servers = servers.map(with_prefix);
            net.join("w", LEAF_MACS[1], WORKERS_MAC, &servers, leaf[1]);
            net
        }

        /// Returns the name of a namespace.
        fn name(&self, place: &str) -> String {
            format!("{}{place}", self.0)
        }

        /// Creates a veth pair from the leaf's `lc` to the clients' `c0`, or from its `lw` to the workers'
        /// `w0`. `leaf` and `mac` are the MAC addresses of the two ends. The far end gets the `addresses`, and the
        /// leaf's address as its default `gateway`.
        fn join(&self, place: &str, leaf: &str, mac: &str, addresses: &[String], gateway: &str) {
            let (near, far) = (format!("l{place}"), format!("{place}0"));
            let (leaves, others) = (self.name("l"), self.name(place));
            let pair = ["type", "veth", "peer", "name", &far, "netns", &others];
            call(&[&["ip", "link", "add", &near, "netns", &leaves][..], &pair].concat());
            self.within("l", &["ip", "link", "set", &near, "address", leaf, "up"]);
            self.within(place, &["ip", "link", "set", &far, "address", mac, "up"]);
            for address in addresses {
                let mut words = vec!["ip", "address", "add", address, "dev", &far];
                words.extend(gateway.contains(':').then_some("nodad"));
                self.within(place, &words);
            }
            self.within(place, &["ip", "route", "add", "default", "via", gateway]);
        }

        /// Returns a command within a namespace.
        fn command(&self, place: &str, words: &[&str]) -> Command {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.name(place)]).args(words);
            command
        }

        /// Runs a command within a namespace, which must succeed. Returns its output.
        fn within(&self, place: &str, words: &[&str]) -> String {
            output(&mut self.command(place, words))
        }

        /// Returns the command of this program, as a peer within a namespace.
        fn ourselves(&self, place: &str, words: &[&str]) -> Command {
            let own = std::env::current_exe().unwrap();
            let mut command = self.command(place, &[own.to_str().unwrap()]);
            command.args(words).stdout(Stdio::piped());
            command
        }

        /// Starts a server of workers and waits until it is ready.
        fn server(&self, address: &str) -> Process {
            let child = self.ourselves("w", &["server", address]).stdin(Stdio::piped()).spawn();
            let mut server = Process(child.unwrap());
            let mut line = String::new();
            BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            server
        }

        /// Returns the kernel's counts of errors on received packets, by kind. They show faulty packets of the leaf.
        fn receive_errors(&self, place: &str) -> BTreeMap<String, u64> {
            let text = self.within(place, &["cat", "/proc/net/snmp"]);
            let rows = |protocol: &'static str| {
                text.lines().filter(move |line| line.starts_with(protocol))
            };
            let mut found = BTreeMap::new();
            for protocol in ["Ip: ", "Udp: "] {
                let [names, values]: [&str; 2] =
                    rows(protocol).collect::<Vec<_>>().try_into().unwrap();
                for (name, value) in names.split(' ').zip(values.split(' ')).skip(1) {
                    let error = name.ends_with("Errors") || name.ends_with("NoPorts");
                    if error || name == "InDiscards" || name == "InUnknownProtos" {
                        found.insert(format!("{protocol}{name}"), value.parse().unwrap());
                    }
                }
            }
            assert!(found.contains_key("Udp: InCsumErrors"), "{text}");
            found
        }
    }

    impl Drop for Net {
        fn drop(&mut self) {
            for place in ["c", "l", "w"] {
                let _ = Command::new("ip").args(["netns", "del", &self.name(place)]).status();
            }
        }
    }

    /// A process, killed when dropped.
    struct Process(Child);

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns the output of a command that must succeed.
    fn output(command: &mut Command) -> String {
        let output = command.stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{command:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must succeed.
    fn call(words: &[&str]) {
        output(Command::new(words[0]).args(&words[1..]));
    }

    /// Waits until `look` returns a value.
    fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let mut found = None;
        wait_until(what, || {
            found = look();
            found.is_some()
        });
        found.unwrap()
    }

    /// Configuration of a run.
    struct Scenario {
        /// DPDK driver of the leaf's ports.
        driver: &'static str,
        /// Scheduling policy.
        policy: &'static str,
        /// True if the configuration gives the servers' MAC addresses. Otherwise the leaf asks for them.
        macs_known: bool,
        /// Poll mode: `busy`, or `adaptive` to sleep while idle.
        poll: &'static str,
        /// Addresses.
        family: &'static Family,
        /// True if the leaf has a third port, whose interface is removed during the run.
        loses_port: bool,
    }

    /// Sends one burst with segmentation offload, which the leaf drops (`segmentation_offload`), and one that the
    /// client's kernel segments. Returns the number of answered tasks. With the offload, the kernel leaves the split
    /// into packets to the NIC, so that the leaf receives all tasks in one packet.
    fn send_bursts(net: &Net, scenario: &Scenario) -> u64 {
        let burst = || {
            let words = ["burst", scenario.family.leaf[0], &BURST.to_string()];
            output(&mut net.ourselves("c", &words)).trim().parse::<u64>().unwrap()
        };
        assert_eq!(burst(), 0, "one packet with {BURST} tasks");
        if Command::new("ethtool").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIPPED: there is no ethtool, which turns the offload off");
            return 0;
        }
        net.within("c", &["ethtool", "-K", "c0", "tx-udp-segmentation", "off"]);
        assert_eq!(burst(), u64::from(BURST), "the client's kernel segments the burst");
        u64::from(BURST)
    }

    /// Starts a leaf with servers and clients, and checks that all tasks are answered and accounted for. `number` makes
    /// the names of the namespaces unique.
    fn run_scenario(number: usize, scenario: &Scenario) {
        let Scenario { driver, policy, macs_known, poll, family, loses_port } = scenario;
        println!(
            "{}, {driver}, {policy}, {poll}, MAC addresses {}",
            family.name,
            if *macs_known { "given" } else { "asked for" }
        );
        let folder = tempfile::tempdir().unwrap();
        let (config, state, stats) = (
            folder.path().join("leaf.toml"),
            folder.path().join("state"),
            folder.path().join("stats"),
        );
        std::fs::write(&config, config_text(scenario, &state)).unwrap();
        let net = Net::new(number, family);
        if *loses_port {
            net.within("l", &["ip", "link", "add", "lx", "type", "veth", "peer", "name", "x0"]);
            net.within("l", &["ip", "link", "set", "lx", "up"]);
            net.within("l", &["ip", "link", "set", "x0", "up"]);
        }
        let _servers = family.servers.map(|address| net.server(address));
        let (config, stats_file) = (config.to_str().unwrap(), stats.to_str().unwrap());
        let leaf =
            [WEDJAT, "leaf", "--config", config, "--duration", LIFETIME, "--stats", stats_file];
        let mut leaf = Process(net.command("l", &leaf).stdout(Stdio::null()).spawn().unwrap());

        wait_for("the workers' addresses are known", || {
            if let Some(status) = leaf.0.try_wait().unwrap() {
                panic!("the leaf ended: {status}");
            }
            let known = |host: &Value| !host["mac"].is_null();
            let hosts = snapshot(&state)?["neighbours"].as_array()?.clone();
            (hosts.iter().filter(|host| known(host)).count() >= family.servers.len()).then_some(())
        });
        if *loses_port {
            net.within("l", &["ip", "link", "del", "lx"]);
            wait_for("the state has the port without a link", || {
                (snapshot(&state)?["ports_without_link"] == serde_json::json!([2])).then_some(())
            });
        }
        let began = Instant::now();
        let mut clients = Vec::new();
        for kind in ["connected", "unconnected"] {
            let words = ["client", family.leaf[0], kind, &TASKS.to_string()];
            clients.push(net.ourselves("c", &words).spawn().unwrap());
        }
        let mut workers: BTreeMap<u16, u64> = BTreeMap::new();
        for client in clients {
            let output = client.wait_with_output().unwrap();
            assert!(output.status.success(), "a client failed; the leaf: {:?}", snapshot(&state));
            for line in String::from_utf8(output.stdout).unwrap().lines() {
                let (worker, count) = line.split_once(' ').unwrap();
                *workers.entry(worker.parse().unwrap()).or_default() +=
                    count.parse::<u64>().unwrap();
            }
        }
        let mut tasks = 2 * u64::from(TASKS);
        assert_eq!(workers.values().sum::<u64>(), tasks);
        assert_eq!(workers.len(), WORKERS, "all workers were used: {workers:?}");

        let is_af_packet = *driver == "net_af_packet";
        if is_af_packet {
            tasks += send_bursts(&net, scenario);
        }
        for (place, gateway, mac) in
            [("c", family.leaf[0], LEAF_MACS[0]), ("w", family.leaf[1], LEAF_MACS[1])]
        {
            let neighbours = net.within(place, &["ip", "neigh", "show"]);
            let has_mac = |line: &str| line.starts_with(gateway) && line.contains(mac);
            assert!(neighbours.lines().any(has_mac), "the leaf answered: {neighbours}");
            for (error, count) in net.receive_errors(place) {
                assert_eq!(count, 0, "{error} in the namespace {place}");
            }
        }
        if *poll == "adaptive" {
            sleeps_while_nothing_comes(&state);
        }
        call(&["kill", "-TERM", &leaf.0.id().to_string()]);
        assert!(leaf.0.wait().unwrap().success(), "the leaf ends in order");
        let account: Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        check_account(&account, tasks, is_af_packet);
        let removed = account["ports"].as_array().unwrap().iter();
        let removed: Vec<_> = removed.map(|port| port["interfaces_removed"] != 0).collect();
        let expected: &[bool] = if *loses_port { &[false, false, true] } else { &[false, false] };
        assert_eq!(removed, expected, "{account}");
        assert_eq!(
            account["sleeps"] != 0 && account["wakes"] != 0,
            *poll == "adaptive",
            "{account}"
        );
        // The leaf writes off a task after ten seconds of real time. A later answer counts as surplus.
        if began.elapsed() < Duration::from_secs(10) {
            assert_eq!(account["surplus_replies"], 0, "{account}");
        }
    }

    /// Checks that the leaf sleeps without traffic. A core that went on polling would poll thousands of times as often.
    fn sleeps_while_nothing_comes(state: &Path) {
        let look = || {
            let now = snapshot(state)?;
            let sum = |key: &str| -> Option<u64> {
                now["cores"].as_array()?.iter().map(|core| core["counters"][key].as_u64()).sum()
            };
            Some((sum("sleeps")?, sum("empty_polls")?))
        };
        // The state file shows an earlier moment, and the kernels still send requests to each other. The
        // check is therefore repeated.
        let mut before = wait_for("the state tells of sleeps", look);
        wait_for("the leaf sleeps and hardly polls", || {
            let now = look().filter(|now| now.0 >= before.0 + 100)?;
            let (sleeps, polls) = (now.0 - before.0, now.1 - before.1);
            before = now;
            (polls < 4 * sleeps).then_some(())
        });
    }

    /// Checks the leaf's account after `tasks` answered tasks.
    fn check_account(account: &Value, tasks: u64, is_af_packet: bool) {
        assert_eq!(account["balanced"], true, "{account}");
        assert_eq!(account["scheduled"], tasks, "{account}");
        assert_eq!(account["replies"], tasks, "{account}");
        assert_eq!(account["tx_packets"], 2 * tasks, "{account}");
        let mut drops = account["drops"].as_object().unwrap().clone();
        // Requests between the kernels' own addresses are expected.
        drops.remove("arp_other");
        // With IPv6 the kernels also send multicast reports and router solicitations.
        for others in ["nd_other", "ipv6_extension", "not_udp"] {
            drops.remove(others);
        }
        let of_bursts = drops.remove("segmentation_offload").map(|count| count.as_u64().unwrap());
        assert_eq!(of_bursts, is_af_packet.then_some(1), "{account}");
        assert!(drops.is_empty(), "{account}");
        for port in account["ports"].as_array().unwrap().iter().take(2) {
            for count in ["rx_missed", "rx_no_mbuf", "rx_errors", "tx_errors"] {
                assert_eq!(port[count], 0, "{port}");
            }
            // The kernel leaves a packet's checksum to the NIC, and a veth pair does not compute it.
            assert_eq!(port["rx_partial"], tasks, "{port}");
        }
        // The AF_XDP driver leaks the mbufs in its fill queue (documentation of `io::dpdk`).
        if is_af_packet {
            assert_eq!(account["mbufs_leaked"], 0, "{account}");
        }
    }

    /// Returns the output of `wedjat state --json`; `None` while the state cannot be read.
    fn snapshot(state: &Path) -> Option<Value> {
        let output = Command::new(WEDJAT).arg("state").arg(state).arg("--json").output().unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Returns the leaf's configuration.
    fn config_text(scenario: &Scenario, state: &Path) -> String {
        let Scenario { driver, policy, macs_known, poll, family, loses_port } = scenario;
        let third = match loses_port {
            true => format!(
                "[[port]]\ndevice = '{driver}2,iface=lx'\nside = 'clients'\nip = '10.66.3.1/24'\n"
            ),
            false => String::new(),
        };
        let Family { leaf, prefix, .. } = family;
        let mac = if *macs_known { format!("mac = '{WORKERS_MAC}'") } else { String::new() };
        let [first, second] = family.servers;
        format!(
            "[leaf]\nid = 1\ncores = [0]\nseed = 7\npoll = '{poll}'\nstate = '{}'\n\
             [[port]]\ndevice = '{driver}0,iface=lc'\nside = 'clients'\nip = '{}/{prefix}'\n\
             [[port]]\ndevice = '{driver}1,iface=lw'\nside = 'workers'\nip = '{}/{prefix}'\n{third}\
             [[pool]]\nid = 5\npolicy = '{policy}'\n\
             [[server]]\nip = '{first}'\nworkers = '0-3'\npool = 5\n{mac}\n\
             [[server]]\nip = '{second}'\nworkers = '4-7'\npool = 5\n{mac}\n",
            state.display(),
            leaf[0],
            leaf[1],
        )
    }

    /// Runs all scenarios.
    pub fn run() {
        let scenario = |driver, policy, macs_known, poll| {
            let family = &V4;
            Scenario { driver, policy, macs_known, poll, family, loses_port: false }
        };
        let mut scenarios = vec![
            Scenario { family: &V6, ..scenario("net_af_packet", "horus", false, "busy") },
            scenario("net_af_packet", "horus", false, "adaptive"),
            Scenario { loses_port: true, ..scenario("net_af_packet", "random", true, "busy") },
        ];
        if std::fs::read_to_string("/proc/net/protocols").unwrap().contains("XDP") {
            scenarios.push(scenario("net_af_xdp", "horus", false, "adaptive"));
        } else {
            println!("AF_XDP SKIPPED: this kernel has none");
        }
        for (number, scenario) in scenarios.iter().enumerate() {
            run_scenario(number, scenario);
        }
        println!("real_traffic: ok");
    }
}
