//! `wedjat` from a user's view: a leaf of two cores runs, is observed and is stopped, and wrong input is
//! rejected. A leaf schedules tasks over workers; here its port replays captures (DPDK's pcap device). At its end it
//! prints its account: all packets and tasks by port, pool and drop reason.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod frames;
#[path = "../testbed/src/free_address.rs"]
mod free_address;
mod timeouts;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use wedjat::io::pcap::{read_frames, write_frames};
use wedjat::wire::task::Header;
use wedjat::wire::{udp, vlan};

use frames::*;
use free_address::free_address;
use timeouts::*;

const WEDJAT: &str = env!("CARGO_BIN_EXE_wedjat");

/// Returns the CPUs of the leaf's cores: two if this process may use two, else one.
fn cpus() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap().iter().take(2).map(|core| core.id).collect()
}

/// A folder with captures for two receive queues, and a configuration that replays each on one core.
struct Home(tempfile::TempDir);

impl Home {
    /// Creates the folder. Each queue gets its own packets; with one CPU, a single queue gets all. `how` is
    /// appended to the device's arguments.
    fn new(queues: [&[Vec<u8>]; 2], how: &str) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let all = [queues.concat()];
        let queues = if cpus().len() == 1 { &all[..] } else { &queues.map(<[_]>::to_vec) };
        for (queue, packets) in queues.iter().enumerate() {
            write_frames(&home.path(&format!("in{queue}.pcap")), packets).unwrap();
        }
        let file = |queue| format!(",rx_pcap={}", home.path(&format!("in{queue}.pcap")).display());
        let files: String = (0..cpus().len()).map(file).collect();
        home.configure(&format!("net_pcap0{files}{how}"), "");
        home
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a leaf's configuration with this device, two servers of four workers, and the lines `more`.
    fn configure(&self, device: &str, more: &str) {
        let text = format!(
            "[leaf]\nid = 1\ncores = {:?}\nseed = 7\nstate = '{}'\n\
             [[port]]\ndevice = '{device}'\nside = 'both'\nip = '10.0.1.1/16'\nmac = '{}'\n\
             [[pool]]\nid = {POOL}\npolicy = 'horus'\n\
             [[server]]\nip = '10.0.2.11'\nmac = '02:00:00:00:02:0b'\nworkers = '10-13'\npool = {POOL}\n\
             [[server]]\nip = '10.0.2.12'\nmac = '02:00:00:00:02:0c'\nworkers = '14-17'\npool = {POOL}\n{more}",
            cpus(),
            self.path("state").display(),
            LEAF_MACS[0],
        );
        fs::write(self.path("leaf.toml"), text).unwrap();
    }

    /// Returns the command `wedjat leaf` with this configuration.
    fn leaf(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WEDJAT);
        command.arg("leaf").arg("--config").arg(self.path("leaf.toml")).args(arguments);
        command
    }

    /// Returns the output of `wedjat state --json`; `None` while the state cannot be read.
    fn state(&self) -> Option<Value> {
        let output = wedjat(&["state", self.path("state").to_str().unwrap(), "--json"]);
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Returns this counter of each core. Empty while the state cannot be read.
    fn counted(&self, name: &str) -> Vec<u64> {
        let counted = |core: &Value| core["counters"][name].as_u64().unwrap();
        self.state()
            .map(|state| state["cores"].as_array().unwrap().iter().map(counted).collect())
            .unwrap_or_default()
    }

    /// Returns this counter of the first core of a running leaf.
    fn first(&self, name: &str) -> u64 {
        let mut counted = Vec::new();
        wait_until("the state can be read", || {
            counted = self.counted(name);
            !counted.is_empty()
        });
        counted[0]
    }

    /// Returns the number of packets received by each core. Empty while the state cannot be read.
    fn received(&self) -> Vec<u64> {
        self.counted("rx_packets")
    }

    /// Waits until every core has received more packets than `before`. Returns the new numbers.
    fn all_receive(&self, before: &[u64]) -> Vec<u64> {
        let mut now = Vec::new();
        wait_until(&format!("all cores receive more than {before:?}"), || {
            now = self.received();
            now.len() == cpus().len() && now.iter().zip(before).all(|(now, before)| now > before)
        });
        now
    }

    /// Waits until the cores have received this number of packets together.
    fn wait_for_all(&self, packets: u64) {
        wait_until("all packets are received", || self.received().iter().sum::<u64>() == packets);
    }
}

/// Runs a `wedjat` command.
fn wedjat(arguments: &[&str]) -> Output {
    Command::new(WEDJAT).args(arguments).output().unwrap()
}

/// Returns output of a process as text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks that the command failed with a message that contains all `words`.
fn refused(output: &Output, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// Returns the account of a leaf that succeeded. Checks that it balances and that no buffer is missing.
fn account(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let account: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(account["balanced"], true, "{account}");
    assert_eq!(account["mbufs_leaked"], 0, "{account}");
    account
}

/// Returns the number of packets dropped for any reason.
fn dropped(account: &Value) -> u64 {
    account["drops"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// A process in the background, killed when dropped.
struct RunningProcess(Option<Child>);

impl RunningProcess {
    /// Starts a command, with pipes for its output.
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    /// Sends a signal such as `-TERM`, waits for the end and returns the output.
    fn stop(mut self, signal: &str) -> Output {
        let child = self.0.take().unwrap();
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        child.wait_with_output().unwrap()
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns 100 tasks and 100 replies in turn.
fn traffic() -> Vec<Vec<u8>> {
    (0..200)
        .map(|seq| match seq % 2 {
            0 => task(Header::new_task(POOL, seq)),
            _ => reply(FIRST_WORKER + seq / 2 % 8, 0, LEAF_MACS[0]),
        })
        .collect()
}

/// Deterministic random numbers.
struct Dice(u64);

impl Dice {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// Returns 3000 packets of [`traffic`], most of them with changed, missing or additional bytes.
fn mutated(seed: u64) -> Vec<Vec<u8>> {
    let good = traffic();
    let mut dice = Dice(seed);
    let mutate = |_| {
        let mut packet = good[dice.below(good.len())].clone();
        for _ in 0..dice.below(4) {
            let at = dice.below(packet.len());
            packet[at] = dice.below(256) as u8;
        }
        match dice.below(4) {
            0 => packet.truncate(1 + dice.below(packet.len())),
            1 => packet.resize(packet.len() + dice.below(1300), 0xEE),
            _ => {}
        }
        packet
    };
    (0..3_000).map(mutate).collect()
}

/// Returns true if this process may use two CPUs at once, by its affinity and its CPU quota. Prints a note otherwise.
fn two_cpus() -> bool {
    let two = std::thread::available_parallelism().unwrap().get() >= 2;
    if !two {
        // Written directly to standard error, because the output of passing tests is hidden.
        let _ = writeln!(io::stderr(), "SKIPPED: two dispatcher cores need two CPUs");
    }
    two
}

#[test]
fn two_cores_run_and_stop_in_order() {
    if !two_cpus() {
        return;
    }
    let packets = traffic();
    let home = Home::new([&packets, &packets], ",infinite_rx=1");
    for signal in ["-TERM", "-INT"] {
        let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME, "--stats", "-"]));
        let before = home.all_receive(&[0; 2]);
        home.all_receive(&before); // another process sees the counters of both cores rise
        wait_until("the state shows a running leaf", || {
            home.state().is_some_and(|state| state["running"] == true)
        });

        let second = home.leaf(&["--duration", "1s"]).output().unwrap();
        let id = leaf.0.as_ref().unwrap().id();
        refused(
            &second,
            &["state file", "in use by another running leaf", &format!("pid {id}"), "stop that"],
        );

        let account = account(&leaf.stop(signal));
        assert!(account["scheduled"].as_u64() > Some(0) && account["replies"].as_u64() > Some(0));
        assert_eq!(home.state().unwrap()["running"], false);
        assert_eq!(account["cores"], serde_json::json!(cpus()));
    }
}

// promise: membership.1
#[test]
fn members_and_policy_change_under_traffic() {
    let packets = traffic();
    let home = Home::new([&packets, &packets], ",infinite_rx=1");
    let mut command = home.leaf(&["--duration", LIFETIME, "--stats", "-", "--changes", "-"]);
    let mut leaf = RunningProcess::start({
        command.stdin(Stdio::piped());
        command
    });
    let mut lines = leaf.0.as_mut().unwrap().stdin.take().unwrap();
    let mut change = |text: &str| writeln!(lines, "{text}").unwrap();
    // Returns index and id of each worker.
    let workers = |state: &Value| -> Vec<(u64, u64)> {
        let members = state["pools"][0]["members"].as_array().unwrap().iter();
        members
            .map(|one| (one["member"].as_u64().unwrap(), one["worker"].as_u64().unwrap()))
            .collect()
    };
    let settled = |what: &str, condition: &dyn Fn(&Value) -> bool| {
        wait_until(what, || home.state().is_some_and(|state| condition(&state)));
    };
    settled("the leaf runs", &|state| state["epoch"] == 1 && workers(state).len() == 8);
    change("# comments and empty lines are left out\n");
    change("add-server ip=10.0.2.13 mac=02:00:00:00:02:0d");
    change("add-workers server=10.0.2.13 pool=7 workers=30-31");
    settled("new workers have their places and get tasks", &|state| {
        let new = |at: usize| &state["pools"][0]["members"][at];
        workers(state)[8..] == [(8, 30), (9, 31)] && new(8)["outstanding"].as_i64() > Some(0)
    });
    change("remove-server ip=10.0.2.11");
    change("set-policy pool=7 policy=round-robin");
    change("drop-everything");
    settled("members 4 to 9 keep their places", &|state| {
        let remaining: Vec<_> = (4..8).map(|at| (at, at + 10)).chain([(8, 30), (9, 31)]).collect();
        workers(state) == remaining && state["pools"][0]["policy"] == "round-robin"
    });
    let output = leaf.stop("-INT");
    let stderr = text(&output.stderr);
    for words in [
        "change 2: add-server ip=10.0.2.13",
        "all cores use it",
        "change refused: drop-everything",
        "allowed: add-server",
    ] {
        assert!(stderr.contains(words), "{words:?} is not in: {stderr}");
    }
    account(&output);
}

/// Runs `wedjat ctl` with these arguments for the node with this state file.
fn ctl(home: &Home, arguments: &[&str]) -> Output {
    let mut command = Command::new(WEDJAT);
    command.arg("ctl").args(arguments).env("WEDJAT_STATE", home.path("state"));
    command.output().unwrap()
}

/// Runs `wedjat ctl --json` like [`ctl`], checks that it succeeds, and returns its parsed output.
fn answered(home: &Home, arguments: &[&str]) -> Value {
    let output = ctl(home, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Sends an HTTP request and returns the response; empty if nothing listens at the address.
fn get(address: std::net::SocketAddr, path: &str) -> String {
    use std::io::Read as _;

    let mut answer = String::new();
    if let Ok(mut stream) = std::net::TcpStream::connect(address) {
        let _ = write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

/// Starts a Prometheus server, and waits until it has scraped this metric, with a value above 0, from this node. Then
/// checks that the last scrape succeeded. Skipped without Prometheus.
fn assert_scraped(home: &Home, node: std::net::SocketAddr, metric: &str) {
    let address = free_address().unwrap();
    let text = format!(
        "scrape_configs: [{{job_name: wedjat, scrape_interval: 100ms, scrape_timeout: 100ms, \
         static_configs: [{{targets: ['{node}']}}]}}]"
    );
    fs::write(home.path("prometheus.yml"), text).unwrap();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", home.path("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", home.path("tsdb").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(prometheus) = command.spawn() else {
        let _ = writeln!(io::stderr(), "SKIPPED: there is no prometheus (Debian: prometheus)");
        return;
    };
    let _prometheus = RunningProcess(Some(prometheus));
    // The encoded queries are `METRIC>0` and `up==0`.
    wait_until("Prometheus has scraped the node", || {
        let answer = get(address, &format!("/api/v1/query?query={metric}%3E0"));
        answer.contains(&format!("\"__name__\":\"{metric}\""))
    });
    let down = get(address, "/api/v1/query?query=up%3D%3D0");
    assert!(down.contains("\"result\":[]"), "{down}");
}

// promise: control.5
#[test]
fn histograms_of_a_running_leaf_grow() {
    let packets = traffic();
    let home = Home::new([&packets, &packets], ",infinite_rx=1");
    let metrics = free_address().unwrap();
    let config = fs::read_to_string(home.path("leaf.toml")).unwrap()
        + &format!("[control]\nmetrics = '{metrics}'\n");
    fs::write(home.path("leaf.toml"), config).unwrap();
    let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME]));
    // Returns the value of a sample; 0 if there is none.
    let value = |sample: &str| {
        let text = get(metrics, "/metrics");
        let of = |line: &str| line.strip_prefix(sample)?.trim().parse::<f64>().ok();
        text.lines().filter_map(of).sum::<f64>()
    };
    let samples = [
        "wedjat_decision_time_seconds_count{core=\"0\"}",
        "wedjat_report_age_seconds_count{pool=\"7\"}",
    ];
    for sample in samples {
        wait_until(sample, || value(sample) > 0.0);
        let before = value(sample);
        wait_until(sample, || value(sample) > before);
        let bucket = sample.replace("_count", "_bucket").replace('}', ",le=\"+Inf\"}");
        assert!(value(&bucket) >= before, "{bucket}");
    }
    assert!(value("wedjat_decision_time_seconds_sum{core=\"0\"}") > 0.0);
    let state = || home.state().map(|state| state["cores"][0]["decision_time"]["count"].as_u64());
    wait_until("the state has the histogram", || state().flatten() > Some(0));
    let body = get(metrics, "/metrics");
    let (_, body) = body.split_once("\r\n\r\n").unwrap();
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    match promtool.stderr(Stdio::piped()).spawn() {
        Ok(mut tool) => {
            tool.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
            let output = tool.wait_with_output().unwrap();
            let report = text(&[output.stdout, output.stderr].concat());
            assert!(output.status.success() && report.trim().is_empty(), "{report}");
        }
        Err(_) => {
            let _ = writeln!(io::stderr(), "SKIPPED: there is no promtool (Debian: prometheus)");
        }
    }
    leaf.stop("-TERM");
}

// promise: membership.2, control.1, control.2
#[test]
fn running_leaf_is_changed_and_watched() {
    let packets = traffic();
    let home = Home::new([&packets, &packets], ",infinite_rx=1");
    let metrics = free_address().unwrap();
    let config = fs::read_to_string(home.path("leaf.toml")).unwrap()
        + &format!("[control]\nmetrics = '{metrics}'\n");
    fs::write(home.path("leaf.toml"), &config).unwrap();
    let leaf = home.leaf(&["--duration", LIFETIME, "--stats", "-"]);
    // Under nohup the tests ignore SIGHUP, and so would the leaf.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(leaf.get_program()).args(leaf.get_args());
    let leaf = RunningProcess::start(command);
    wait_until("the node answers", || ctl(&home, &["show"]).status.success());
    let shown = answered(&home, &["show"]);
    assert_eq!((&shown["version"], &shown["role"]), (&1.into(), &"leaf".into()));
    assert_eq!(shown["pools"][0]["workers"].as_array().unwrap().len(), 8);
    assert_eq!(answered(&home, &["drain", "10", "--wait"])["version"], 2);
    let text_of = |arguments: &[&str]| text(&ctl(&home, arguments).stdout);
    assert!(
        text_of(&["workers"])
            .lines()
            .any(|line| line.contains("10  ") && line.ends_with("drained"))
    );
    for (arguments, version) in [
        (&["undrain", "10"][..], 3),
        (&["add-server", "10.0.2.13", "--mac", "02:00:00:00:02:0d"], 4),
        (&["add-workers", "30-31", "--server", "10.0.2.13", "--pool", "7", "--speed", "2"], 5),
        (&["pool", "create", "9", "--policy", "jbsq(k=3)", "--queue", "64"], 6),
        (&["pool", "policy", "9", "round-robin"], 7),
        (&["speed", "30-31", "3"], 8),
    ] {
        assert_eq!(answered(&home, arguments)["version"], version, "{arguments:?}");
    }
    assert!(text_of(&["show"]).contains("pool 9  policy round-robin"), "{}", text_of(&["show"]));
    for (arguments, says) in [
        (&["drain", "99"][..], "worker 99: does not exist"),
        (&["drain", "3-1"], "runs backwards"),
        (&["pool", "delete", "8"], "pool 8: does not exist"),
        (&["pool", "policy", "7", "best"], "best"),
        (&["undrain", "10", "--if-version", "3"], "the node's version is 8, not 3"),
        (&["log", "loud"], "allowed: off, error"),
    ] {
        refused(&ctl(&home, arguments), &[says]);
    }
    assert_eq!(answered(&home, &["log", "debug"])["level"], "debug");
    assert_eq!(answered(&home, &["log"])["level"], "debug");
    // Reloads the file, on request over the socket and by a signal. The live changes are lost.
    let reloaded = answered(&home, &["reload"]);
    assert_eq!(reloaded["version"], 9);
    assert!(
        reloaded["changes"].as_array().unwrap().contains(&"remove-pool id=9".into()),
        "{reloaded}"
    );
    fs::write(home.path("leaf.toml"), config.replace("'horus'", "'racksched'")).unwrap();
    // Sends SIGHUP, upon which the leaf reads its file again.
    let hang_up = || {
        let pid = leaf.0.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", "HUP", &pid]).status().unwrap().success());
    };
    hang_up();
    wait_until("the file's policy is that of the pool", || {
        home.state().is_some_and(|state| state["pools"][0]["policy"] == "racksched")
    });
    fs::write(home.path("leaf.toml"), config.replace("seed = 7", "seed = 8")).unwrap();
    refused(&ctl(&home, &["reload"]), &["`leaf.seed` can't change at run time: restart the node"]);
    hang_up();
    let text_of_metrics = get(metrics, "/metrics");
    assert!(text_of_metrics.contains("wedjat_rx_packets_total{core=\"0\"}"), "{text_of_metrics}");
    assert_scraped(&home, metrics, "wedjat_busy_seconds_total");
    // Counters under the driver's own names.
    assert!(text_of_metrics.contains(",name=\"rx_good_packets\"} "), "{text_of_metrics}");
    let shown = answered(&home, &["show"]);
    let good = shown["ports"][0]["xstats"]["rx_good_packets"].as_u64();
    assert!(good > Some(0), "{}", shown["ports"]);
    // A tap on the leaf's DPDK devices, during traffic.
    let file = home.path("tap.pcap").display().to_string();
    let tap = answered(&home, &["tap", "start", "--file", &file, "--packets", "1000"]);
    let devices = shown["ports"].as_array().unwrap().iter().map(|port| port["device"].clone());
    assert_eq!(tap["ports"], devices.collect::<Value>());
    wait_until("the tap has ended", || answered(&home, &["show"])["tap"].is_null());
    assert_eq!(answered(&home, &["tap", "stop"])["written"], 1000);
    let recorded = read_frames(Path::new(&file)).unwrap();
    assert_eq!(recorded.len(), 1000);
    assert!(recorded.iter().any(|frame| packets.contains(frame)), "received packets");
    // Many changes during traffic, each of them answered.
    let access = wedjat::admin::Access::State(home.path("state"));
    let mut connection = wedjat::admin::Connection::open(&access).unwrap();
    let (mut dice, mut version) = (Dice(9), 0);
    for _ in 0..300 {
        let worker = 10 + dice.below(6);
        let change = match dice.below(4) {
            0 => format!("drain workers={worker}"),
            1 => format!("undrain workers={worker}"),
            2 => format!("set-speed workers={worker} speed={}", 1 + dice.below(5)),
            _ => format!("set-policy pool=7 policy={}", ["horus", "sed", "jsq"][dice.below(3)]),
        };
        let now = connection.change(&[change.parse().unwrap()], None).unwrap();
        assert!(now > version, "{change}");
        version = now;
    }
    assert!(connection.show().unwrap().acknowledged >= version);
    let output = leaf.stop("-TERM");
    for words in [
        "reads the configuration again",
        "reload refused: `leaf.seed`",
        "change 2: drain workers=10",
    ] {
        assert!(
            text(&output.stderr).contains(words),
            "{words:?} is not in: {}",
            text(&output.stderr)
        );
    }
    account(&output);
    refused(&ctl(&home, &["show"]), &["no node answers", "WEDJAT_STATE"]);
}

// promise: membership.2, control.1
#[test]
fn running_agent_is_changed_and_watched() {
    let home = Home::new([&traffic(), &traffic()], "");
    let metrics = free_address().unwrap();
    let config = format!(
        "[agent]\nname = '{}'\ncore = {}\nseed = 7\nstate = '{}'\nworkers_max = 8\n\
         [[port]]\ndevice = 'net_pcap0,rx_pcap={}'\nip = '10.0.2.11/24'\n\
         [[pool]]\nid = 7\npolicy = 'jsq'\nworkers = '0-3'\n\
         [control]\nmetrics = '{metrics}'\n",
        home.path("host").display(),
        cpus()[0],
        home.path("state").display(),
        home.path("in0.pcap").display(),
    );
    fs::write(home.path("agent.toml"), &config).unwrap();
    let mut command = Command::new(WEDJAT);
    command.args(["agent", "--duration", LIFETIME, "--stats", "-", "--config"]);
    command.arg(home.path("agent.toml"));
    let agent = RunningProcess::start(command);
    wait_until("the node answers", || ctl(&home, &["show"]).status.success());
    assert_eq!(answered(&home, &["show"])["role"], "agent");
    assert_eq!(answered(&home, &["add-workers", "8-9", "--pool", "7"])["version"], 2);
    assert_eq!(answered(&home, &["drain", "0", "--wait"])["version"], 3);
    refused(&ctl(&home, &["add-server", "10.0.2.13"]), &["servers are a leaf's"]);
    refused(&ctl(&home, &["add-workers", "20-40", "--pool", "7"]), &["`workers_max`"]);
    let wanted = config.replace("'jsq'", "'jbsq(k=2)'")
        + "[[pool]]\nid = 9\npolicy = 'sed'\nworkers = '20-21'\nspeeds = { 20 = 2 }\n";
    fs::write(home.path("agent.toml"), &wanted).unwrap();
    let reloaded = answered(&home, &["reload"]);
    let changes = serde_json::json!([
        "set-policy pool=7 policy=jbsq(k=2, silence-ms=0)",
        "add-pool id=9 policy=sed(half=0.5) queue=4096 overflow=drop",
        "remove-workers workers=8-9",
        "add-workers server=10.0.2.11 pool=9 workers=20 speed=2",
        "add-workers server=10.0.2.11 pool=9 workers=21",
    ]);
    assert_eq!((&reloaded["version"], &reloaded["changes"]), (&4.into(), &changes));
    fs::write(home.path("agent.toml"), wanted.replace("seed = 7", "seed = 8")).unwrap();
    refused(&ctl(&home, &["reload"]), &["`agent.seed` can't change at run time"]);
    assert!(get(metrics, "/metrics").contains("wedjat_pool_workers{pool=\"9\"} 2"));
    assert_scraped(&home, metrics, "wedjat_node_info");
    let account = account(&agent.stop("-TERM"));
    assert_eq!(account["policies"]["9"], "sed(half=0.5)", "{account}");
}

/// Changes a leaf with an agent on its core, live and by a reload.
#[test]
fn colocated_leaf_and_agent_are_changed() {
    let home = Home::new([&[], &[]], "");
    // Writes the configuration. `more` are the agent's workers and further lines of its pool.
    let config = |more: &str| {
        let pool = "[[agent.pool]]\nid = 7\npolicy = 'jsq'\nworkers = ";
        let name = home.path("host");
        let agent = format!("[agent]\nname = '{}'\n{pool}{more}", name.display());
        home.configure(&format!("net_pcap0,rx_pcap={}", home.path("in0.pcap").display()), &agent);
        let text = fs::read_to_string(home.path("leaf.toml")).unwrap();
        let text = text.replace(&format!("{:?}", cpus()), &format!("[{}]", cpus()[0]));
        fs::write(home.path("leaf.toml"), text).unwrap();
    };
    config("'20-21'\n");
    let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME, "--stats", "-"]));
    wait_until("the node answers", || ctl(&home, &["show"]).status.success());
    let drained = |id: u16| {
        let shown = answered(&home, &["show"]);
        let workers = shown["pools"][0]["workers"].as_array().unwrap().clone();
        workers.iter().find(|one| one["id"] == id).unwrap()["drained"] == true
    };
    for (arguments, version) in [
        (&["drain", "20", "--wait"][..], 2),
        (&["undrain", "20"], 3),
        (&["drain", "21", "--wait"], 4),
        (&["add-workers", "30", "--pool", "7"], 5),
        (&["pool", "--agent", "policy", "7", "jbsq(k=2)"], 6),
        (&["pool", "queue", "7", "9", "--agent"], 7),
    ] {
        assert_eq!(answered(&home, arguments)["version"], version, "{arguments:?}");
    }
    assert!(!drained(20) && drained(21));
    refused(
        &ctl(&home, &["pool", "--agent", "create", "8", "--policy", "jsq"]),
        &["agent: pool 8: add it to the leaf first"],
    );
    refused(
        &ctl(&home, &["pool", "create", "7", "--agent", "--policy", "jsq", "--key-file", "/k"]),
        &["messages inside a process need no proof"],
    );
    config("'20-22'\nqueue = 64\n");
    let reloaded = answered(&home, &["reload"]);
    // 169.254.77.2 is the agent's address on the link to its leaf.
    let changes = serde_json::json!([
        "remove-workers workers=30",
        "add-workers server=169.254.77.2 pool=7 workers=22",
        "agent set-policy pool=7 policy=jsq(d=0)",
        "agent set-queue pool=7 queue=64 overflow=drop",
    ]);
    assert_eq!((&reloaded["version"], &reloaded["changes"]), (&8.into(), &changes));
    assert_eq!(dropped(&account(&leaf.stop("-TERM"))), 0);
}

// promise: input.3
#[test]
fn leaf_survives_tampering_with_its_state_file() {
    let packets = traffic();
    let home = Home::new([&packets, &packets], ",infinite_rx=1");
    let state = home.path("state");
    let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME, "--stats", "-"]));
    let mut received = home.all_receive(&[0; 2]);
    let shorten = |len| fs::File::options().write(true).open(&state).unwrap().set_len(len).unwrap();
    let tamperings: [&dyn Fn(); 4] = [
        &|| shorten(0),
        &|| shorten(5_000),
        &|| fs::write(&state, "something else").unwrap(),
        &|| shorten(0),
    ];
    for tamper in tamperings {
        tamper();
        // The leaf publishes its state again. A write to a mapped page of the shortened file would raise SIGBUS.
        received = home.all_receive(&received);
    }
    // A rename replaces the file in one step. If the leaf found no file, it would create a new one.
    let fifo = home.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::rename(&fifo, &state).unwrap();
    let account = account(&leaf.stop("-TERM"));
    assert!(account["scheduled"].as_u64() > Some(0) && account["balanced"] == true, "{account}");
    let is_fifo = fs::symlink_metadata(&state).is_ok_and(|found| found.file_type().is_fifo());
    assert!(is_fifo, "the FIFO is neither removed nor replaced");
}

#[test]
fn garbage_is_accounted_for() {
    let queues = [mutated(1), mutated(2)];
    let home = Home::new([&queues[0], &queues[1]], "");
    let tap = home.path("tap");
    let tap = tap.to_str().unwrap();
    let arguments = ["--duration", LIFETIME, "--stats", "-", "--pcap", tap];
    let leaf = RunningProcess::start(home.leaf(&arguments));
    home.wait_for_all(6_000);
    let account = account(&leaf.stop("-TERM"));
    let received = account["rx_packets"].as_u64().unwrap();
    assert_eq!(received, 6_000, "{account}");
    assert!(dropped(&account) > 1_000, "{account}");
    assert!(account["scheduled"].as_u64() > Some(500), "{account}");
    assert!(account["drops"].as_object().unwrap().len() > 8, "many reasons: {account}");
    let sent = account["tx_packets"].as_u64().unwrap() + account["originated"].as_u64().unwrap();
    let recorded: usize = (0..cpus().len())
        .map(|core| read_frames(&home.path(&format!("tap.port0.core{core}.pcap"))).unwrap().len())
        .sum();
    assert_eq!(recorded as u64, received + sent, "the captures hold all packets in and out");
}

#[test]
fn leaf_ends_and_writes_its_account() {
    let home = Home::new([&traffic(), &traffic()], "");
    let stats = home.path("stats.json");
    let arguments = |duration| ["--duration", duration, "--stats", stats.to_str().unwrap()];
    let account_of = |output: &Output| -> Value {
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("ledger: received"));
        let account: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        fs::remove_file(&stats).unwrap();
        assert_eq!((&account["balanced"], &account["mbufs_leaked"]), (&true.into(), &0.into()));
        account
    };
    // Runs for 300 ms of real time. On a stalled machine the leaf may receive no packet. It still ends.
    let account = account_of(&home.leaf(&arguments("300ms")).output().unwrap());
    assert!(account["rx_packets"].as_u64() <= Some(400), "{account}");
    // Otherwise this leaf's state could be mistaken for the next leaf's.
    fs::remove_file(home.path("state")).unwrap();
    // A leaf stopped after the last packet accounts for all packets.
    let leaf = RunningProcess::start(home.leaf(&arguments(LIFETIME)));
    home.wait_for_all(400);
    let account = account_of(&leaf.stop("-TERM"));
    assert_eq!((&account["rx_packets"], &account["scheduled"]), (&400.into(), &200.into()));
    let nowhere = home.leaf(&["--stats", "/nowhere/stats"]).output().unwrap();
    refused(&nowhere, &["--stats /nowhere/stats", "make its folder first, or name another file"]);
}

#[test]
fn foreign_state_files_are_refused() {
    let home = Home::new([&traffic(), &traffic()], "");
    let run = || home.leaf(&["--duration", "100ms"]).output().unwrap();
    assert!(run().status.success());
    assert!(run().status.success(), "a leaf that ended leaves a file for the next");
    let state = home.path("state");
    let show = || wedjat(&["state", state.to_str().unwrap()]);
    let whole = fs::read(&state).unwrap();
    assert!(text(&show().stdout).contains("pool 7  policy horus  8 workers"));

    fs::write(&state, &whole[..whole.len() / 2]).unwrap();
    refused(&show(), &["state file", "damaged"]);
    fs::write(&state, &whole[..100]).unwrap();
    refused(&show(), &["state file"]);

    let mut other = whole.clone();
    other[8..16].copy_from_slice(&0x99_u64.to_ne_bytes()); // the layout version, printed in hexadecimal
    fs::write(&state, &other).unwrap();
    refused(&show(), &["state file", "layout version 99", "use the `wedjat` that wrote it"]);

    let precious = "somebody's letters\n".repeat(1_000);
    fs::write(&state, &precious).unwrap();
    refused(&show(), &["state file", "not a wedjat state file"]);
    refused(&run(), &["state file", "not a wedjat state file", "name another file"]);
    assert_eq!(fs::read_to_string(&state).unwrap(), precious, "the foreign file is left alone");

    fs::remove_file(&state).unwrap();
    assert!(Command::new("mkfifo").arg(&state).status().unwrap().success());
    refused(&show(), &["state file", "a FIFO", "name another file"]);
    refused(&run(), &["state file", "a FIFO", "it is left alone"]);

    refused(
        &wedjat(&["state", "/nowhere/state"]),
        &["/nowhere/state", "does not exist", "start the leaf"],
    );
}

#[test]
fn failed_start_names_the_cause() {
    let home = Home::new([&traffic(), &traffic()], "");
    home.configure("net_memif7", "");
    refused(&home.leaf(&[]).output().unwrap(), &["net_memif7", "--vdev"]);
    home.configure("net_af_packet0,iface=nosuch0", "");
    refused(&home.leaf(&[]).output().unwrap(), &["nosuch0"]);
    home.configure("net_memif0,rolle=server", "");
    refused(&home.leaf(&[]).output().unwrap(), &["`rolle`", "did you mean `role`"]);

    home.configure("net_null0", "");
    let eal = home.leaf(&["--", "--no-such-option"]).output().unwrap();
    refused(&eal, &["EAL did not start", "--no-such-option"]);

    home.configure("net_null0", "colour = 3\n");
    for command in ["leaf", "check"] {
        let config = home.path("leaf.toml");
        let output = wedjat(&[command, "--config", config.to_str().unwrap()]);
        refused(&output, &["leaf.toml:24", "server.colour", "workers"]);
    }
    let missing = wedjat(&["check", "--config", "/nowhere.toml"]);
    refused(&missing, &["/nowhere.toml", "No such file"]);
}

// promise: input.2
#[test]
fn check_doctor_and_policies_answer() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/leaf.toml");
    let check = wedjat(&["check", "--config", example.to_str().unwrap()]);
    assert!(check.status.success(), "{}", text(&check.stderr));
    assert!(text(&check.stdout).contains("2 ports, 1 pool, 2 servers, 32 workers on 1 core"));

    // Doubtful values are reported but not rejected.
    let folder = tempfile::tempdir().unwrap();
    let doubtful = folder.path().join("leaf.toml");
    let wide_port =
        fs::read_to_string(&example).unwrap().replace("side = \"workers\"", "side = \"both\"");
    fs::write(&doubtful, wide_port).unwrap();
    for command in ["check", "doctor"] {
        let stdout = text(&wedjat(&[command, "--config", doubtful.to_str().unwrap()]).stdout);
        assert!(stdout.contains("leaf.toml:16: `port.side`: found \"both\""), "{stdout}");
    }
    assert!(wedjat(&["check", "--config", doubtful.to_str().unwrap()]).status.success());

    let policies = text(&wedjat(&["policies"]).stdout);
    for policy in ["horus", "racksched", "random"] {
        assert!(policies.lines().any(|line| line.starts_with(policy)), "{policies}");
    }

    let home = Home::new([&traffic(), &traffic()], "");
    let doctor = |config: &Path| {
        wedjat(&["doctor", "--config", config.to_str().unwrap(), "--", "--no-huge", "--no-pci"])
    };
    let output = doctor(&home.path("leaf.toml"));
    assert!(text(&output.stdout).contains("DPDK"), "{}", text(&output.stdout));
    fs::write(home.path("leaf.toml"), "[leaf]\nid = 'one'\n").unwrap();
    refused(&doctor(&home.path("leaf.toml")), &["leaf.toml:2", "leaf.id"]);
    let agent = home.path("agent.toml");
    let device = "[[port]]\ndevice = 'net_null0'\nip = '10.0.2.11/24'\n";
    let pool = "[[pool]]\nid = 1\npolicy = 'cfcfs'\nworkers = '0-1'\n";
    fs::write(&agent, format!("[agent]\nname = 'host1'\ncore = 0\n{device}{pool}")).unwrap();
    let output = doctor(&agent);
    assert!(text(&output.stdout).contains("net_null0"), "{}", text(&output.stdout));
    let probe = |config: &Path| {
        let eal = ["--probe", "--", "--no-huge", "--no-pci", "--vdev", "net_null0"];
        wedjat(&[&["doctor", "--config", config.to_str().unwrap()], &eal[..]].concat())
    };
    let probed = text(&probe(&agent).stdout);
    for property in [
        "net_null0 (net_null)",
        "firmware unknown, MTU 1500, NUMA node ",
        "receive queues: 1 of 1024, transmit queues: 1 of 1024",
        "receive offloads: none; receive interrupts: not used",
        "RSS: hashes both ends of UDP; fixed key, table of 128 entries",
    ] {
        assert!(probed.contains(property), "{property}: {probed}");
    }
    fs::write(&agent, fs::read_to_string(&agent).unwrap().replace("net_null0", "0000:ff:1f.7"))
        .unwrap();
    let missing = probe(&agent);
    assert_eq!(missing.status.code(), Some(1), "{}", text(&missing.stdout));
    assert!(!text(&missing.stdout).contains("port 0"), "{}", text(&missing.stdout));
    let without_file = wedjat(&["doctor", "--probe"]);
    assert_eq!(without_file.status.code(), Some(2));
    assert!(text(&without_file.stderr).contains("--config <FILE>"), "{without_file:?}");
    refused(&wedjat(&["leaf", "--config", agent.to_str().unwrap()]), &["an agent's file"]);
}

/// A leaf in front sends its tasks to the leaf under test over vhost (a network device in shared memory), as to a
/// server of workers. The test kills the leaf in front under traffic, and starts it again.
#[test]
fn vanished_peer_may_return() {
    let home = Home::new([&traffic(), &traffic()], "");
    let socket = home.path("vhost").display().to_string();
    let (first, last) = (cpus()[0], *cpus().last().unwrap());
    let leaf = |core: usize, state: &str, ports: &str, server: &str| {
        format!(
            "[leaf]\nid = 1\ncores = [{core}]\nseed = 7\nstate = '{}'\n{ports}\
             [[pool]]\nid = {POOL}\npolicy = 'horus'\n\
             [[server]]\nip = '{server}'\nmac = '02:00:00:00:09:01'\nworkers = '10-17'\npool = {POOL}\n",
            home.path(state).display()
        )
    };
    let port = |device: &str, side: &str, ip: &str, mac: &str| {
        format!("[[port]]\ndevice = '{device}'\nside = '{side}'\nip = '{ip}'\nmac = '{mac}'\n")
    };
    let (own, front) = ("02:00:00:00:09:01", LEAF_MACS[0].to_string());
    let vhost = port(&format!("net_vhost0,iface={socket},queues=1"), "both", "10.9.0.1/16", own)
        + "gateway = '10.9.0.2'\n"; // the clients of the leaf in front are on another network
    fs::write(home.path("leaf.toml"), leaf(first, "state", &vhost, "10.9.2.11")).unwrap();
    let replay = format!("net_pcap0,rx_pcap={},infinite_rx=1", home.path("in0.pcap").display());
    let virtio = format!("net_virtio_user0,path={socket},queues=1,queue_size=256");
    let ports = port(&replay, "clients", "10.0.1.1/16", &front)
        + &port(&virtio, "workers", "10.9.0.2/16", "02:00:00:00:09:02");
    fs::write(home.path("front.toml"), leaf(last, "front", &ports, "10.9.0.1")).unwrap();

    let under_test = RunningProcess::start(home.leaf(&["--duration", LIFETIME, "--stats", "-"]));
    wait_until("the leaf runs without a peer", || home.received() == [0]);
    for _ in 0..4 {
        let before = home.first("rx_packets");
        let mut peer = Command::new(WEDJAT);
        peer.args(["leaf", "--duration", LIFETIME, "--config"]).arg(home.path("front.toml"));
        let peer = RunningProcess::start(peer);
        wait_until("tasks come from the peer", || home.first("rx_packets") > before + 1_000);
        drop(peer); // killed
        // The leaf under test keeps polling and receives no more packets.
        wait_until("nothing comes in a thousand polls", || {
            let (before, begun) = (home.first("rx_packets"), home.first("empty_polls"));
            wait_until("the leaf polls", || home.first("empty_polls") > begun + 1_000);
            home.first("rx_packets") == before
        });
    }
    let account = account(&under_test.stop("-TERM"));
    assert!(account["scheduled"].as_u64() > Some(4_000), "{account}");
}

/// A leaf that waits for the server of its memif client ends at once when stopped. A wait until `--peer-timeout` is
/// over would fail the leaf.
// promise: running.1
#[test]
fn stop_ends_the_wait_for_a_peer() {
    for signal in ["TERM", "INT"] {
        let home = Home::new([&traffic(), &traffic()], "");
        let socket = home.path("nobody");
        home.configure(&format!("net_memif0,role=client,socket={}", socket.display()), "");
        let account = home.path("account.json");
        let timeout = format!("{}s", 2 * TIMEOUT.as_secs());
        let arguments = ["--peer-timeout", &timeout, "--stats", account.to_str().unwrap()];
        let mut leaf = RunningProcess::start(home.leaf(&arguments));
        wait_until("the leaf has a state file", || {
            assert!(leaf.0.as_mut().unwrap().try_wait().unwrap().is_none(), "the leaf has ended");
            home.path("state").exists()
        });
        // SIGUSR1 has no effect.
        let pid = leaf.0.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", "USR1", &pid]).status().unwrap().success());
        let output = leaf.stop(&format!("-{signal}"));
        assert!(output.status.success(), "SIG{signal}: {}", text(&output.stderr));
        let account: Value = serde_json::from_slice(&fs::read(&account).unwrap()).unwrap();
        assert_eq!(account["policy"], "horus", "{account}");
        assert_eq!(account["workers"], 8);
    }
}

// promise: packages.1
#[test]
fn version_names_release_revision_and_dpdk() {
    let stdout = text(&wedjat(&["--version"]).stdout);
    assert!(stdout.starts_with("wedjat 0.1.0 (revision "), "{stdout}");
    assert!(stdout.contains(wedjat::REVISION) && stdout.contains(", DPDK 2"), "{stdout}");
}

/// Case of a libdpdk that cannot be loaded: a wrong file of its name lies in a folder that is searched first.
// promise: packages.1
#[test]
fn missing_libdpdk_is_named() {
    let output = Command::new("pkg-config").args(["--variable=libdir", "libdpdk"]).output();
    let folder = PathBuf::from(text(&output.unwrap().stdout).trim());
    let is_eal = |name: &String| {
        name.strip_prefix("librte_eal.so.")
            .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    };
    let names = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_eal);
    let Some(eal) = names.next() else {
        let _ =
            writeln!(io::stderr(), "SKIPPED: libdpdk is linked statically, so it is not loaded");
        return;
    };
    let home = Home::new([&[], &[]], "");
    fs::write(home.path(&eal), "no library").unwrap();
    // DPDK's other libraries are in their usual folder.
    let folders = [home.path(""), folder];
    let folders = std::env::join_paths(folders).unwrap();
    let without = |command: &str| {
        let mut wedjat = Command::new(WEDJAT);
        wedjat.env("LD_LIBRARY_PATH", &folders).arg(command);
        wedjat.arg("--config").arg(home.path("leaf.toml")).output().unwrap()
    };
    let checked = without("check");
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    refused(&without("leaf"), &["DPDK's shared library can't be loaded", &eal, "LD_LIBRARY_PATH"]);
    let doctor = without("doctor");
    assert_eq!(doctor.status.code(), Some(1));
    assert!(text(&doctor.stdout).contains("FAIL  libdpdk"), "{}", text(&doctor.stdout));
}

// promise: running.1
#[test]
fn doctor_fails_where_a_start_would() {
    let home = Home::new([&traffic(), &traffic()], ",infinite_rx=1");
    let doctor = || {
        let config = home.path("leaf.toml");
        let output = wedjat(&["doctor", "--config", config.to_str().unwrap()]);
        (output.status.code(), text(&output.stdout))
    };
    assert_eq!(doctor().0, Some(0), "{}", doctor().1);
    let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME]));
    home.all_receive(&[]); // any number of packets, even 0: the state file lists all cores
    let id = leaf.0.as_ref().unwrap().id();
    let (code, stdout) = doctor();
    assert!(
        code == Some(1)
            && stdout.contains(&format!("in use by another running leaf or agent (pid {id})")),
        "{stdout}"
    );
    stop_in_order(leaf);
    assert_eq!(doctor().0, Some(0), "{}", doctor().1);
}

/// Stops the leaf in order.
fn stop_in_order(leaf: RunningProcess) {
    let output = leaf.stop("-TERM");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

// promise: ports.1
#[test]
fn dominant_drop_cause_is_named_and_checksums_trusted() {
    let damaged = |mut frame: Vec<u8>| {
        frame[41] ^= 1; // the UDP checksum
        frame
    };
    let tasks: Vec<_> = (0..100).map(|seq| damaged(task(Header::new_task(POOL, seq)))).collect();
    let home = Home::new([&tasks, &tasks], "");
    let mut command = home.leaf(&["--duration", LIFETIME]);
    let log = home.path("log");
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let leaf = RunningProcess(Some(command.spawn().unwrap()));
    let log_text = || fs::read_to_string(&log).unwrap();
    let cause = "packets were refused as `udp_checksum`. UDP checksum present and wrong.";
    wait_until("the cause is named", || log_text().contains(cause));
    assert!(
        log_text().contains("port 0, net_pcap0") && log_text().contains("Look at: "),
        "{}",
        log_text()
    );
    drop(leaf);

    let path = home.path("leaf.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("side = 'both'", "side = 'both'\nchecksums = 'trust'")).unwrap();
    let _ = fs::remove_file(home.path("state"));
    let all = 2 * tasks.len() as u64; // with a single core, it gets both queues' packets
    let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME, "--stats", "-"]));
    home.wait_for_all(all);
    let account = account(&leaf.stop("-TERM"));
    assert!(account["drops"].get("udp_checksum").is_none(), "{account}");
    assert_eq!(account["scheduled"], all, "{account}");
}

// promise: ports.1
#[test]
fn vlan_port_strips_and_adds_its_tag() {
    // In nine packets, one has no tag, one the tag of another VLAN, one has two tags, and six have the port's tag.
    let tagged = |frame: &[u8], id| [&frame[..12], &[0x81, 0, 0, id], &frame[12..]].concat();
    let tasks: Vec<_> = (0..90).map(|seq| task(Header::new_task(POOL, seq))).collect();
    let frame = |(at, task): (usize, &Vec<u8>)| match at % 9 {
        0 => task.clone(),
        1 => tagged(task, 13),
        2 => tagged(&tagged(task, 12), 12),
        _ => tagged(task, 12),
    };
    let frames: Vec<_> = tasks.iter().enumerate().map(frame).collect();
    let queues = cpus().len() as u64;
    let home = Home::new([&frames, &frames], "");
    let path = home.path("leaf.toml");
    let text = fs::read_to_string(&path).unwrap();
    let out: Vec<_> = (0..queues).map(|queue| home.path(&format!("out{queue}.pcap"))).collect();
    let files: String = out.iter().map(|path| format!(",tx_pcap={}", path.display())).collect();
    let port = format!("{files}'\nside = 'both'\nvlan = 12");
    let text = text.replace("'\nside = 'both'", &port);
    fs::write(&path, text).unwrap();
    let leaf = RunningProcess::start(home.leaf(&["--duration", LIFETIME, "--stats", "-"]));
    let all = 2 * 90; // with a single core, it gets both queues' packets
    home.wait_for_all(all * 7 / 9);
    let account = account(&leaf.stop("-TERM"));
    assert_eq!(account["scheduled"], all * 6 / 9, "{account}");
    assert_eq!(account["drops"]["vlan_tag"], all / 9, "two tags: {account}");
    assert_eq!(account["ports"][0]["rx_other_vlan"], all * 2 / 9, "{account}");
    let sent: Vec<_> = out.iter().flat_map(|path| read_frames(path).unwrap()).collect();
    assert_eq!(sent.len() as u64, account["tx_packets"].as_u64().unwrap());
    for mut frame in sent {
        assert_eq!(vlan::id(&frame), Some(12));
        vlan::cover(&mut frame);
        let sent = udp::parse(&frame[vlan::LEN..], false).unwrap();
        assert_eq!((sent.src, sent.dst_port), (CLIENT, 1234));
    }
}
