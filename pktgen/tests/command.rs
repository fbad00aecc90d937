//! The command as a user runs it: output and exit status.

use std::process::{Command, Output};

/// Runs the command to its end.
fn pktgen(arguments: &[&str]) -> Output {
    let command = Command::new(env!("CARGO_BIN_EXE_wedjat-pktgen")).args(arguments).output();
    command.expect("the command starts")
}

/// Returns the error output as text.
fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the standard output as text.
fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_self_test_states_its_seeds_and_passes() {
    let output = pktgen(&["selftest", "--service", "exp(50us)", "--seed", "7"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    // Derived from the seed 7 on the command line.
    assert!(text.contains("core 0: arrivals 0x1355be76d7eee8ba"), "{text}");
    assert!(text.contains("streams independent") && text.contains("pacing exact"), "{text}");
}

#[test]
fn mistakes_are_explained_and_exit_2() {
    for (arguments, part) in [
        (&["run", "--rate", "5x", "--dst", "10.0.1.1"][..], "k (thousand), M (million) or %"),
        (&["run", "--rate", "80%", "--dst", "10.0.1.1"], "--workers N"),
        (&["run", "--rate", "5k", "--dst", "10.0.1.1", "--service", "exp(5)"], "ns, us, ms or s"),
        (
            &["run", "--rate", "1M", "--dst", "10.0.1.1", "--arrivals", "bursts(9,1ms)"],
            "lower the rate",
        ),
        (&["run", "--dst", "10.0.1.1"], "--rate"),
        (
            &["run", "--rate", "5k", "--dst", "fd00::1", "--src", "10.0.1.2"],
            "--src is 10.0.1.2 and --dst is fd00::1; use only IPv4 addresses or only IPv6 addresses",
        ),
        (
            &["run", "--rate", "5k", "--dst", "10.0.1.1", "--gateway", "fd00::1"],
            "--gateway is fd00::1 and --dst is 10.0.1.1",
        ),
        (&["run", "--rate", "5k", "--dst", "ff02::1"], "a routable unicast address"),
        (&["run", "--rate", "5k", "--dst", "fd00::1::2"], "invalid IP address"),
        (
            &["run", "--rate", "5k", "--dst", "fd00::1", "--no-checksum"],
            "--no-checksum cannot be used with the IPv6 address fd00::1",
        ),
        (
            &["run", "--replay", "/no/trace.csv", "--dst", "10.0.1.1"],
            "cannot replay /no/trace.csv: No such file",
        ),
        (
            &["run", "--replay", "a", "--rate", "5k", "--dst", "10.0.1.1"],
            "'--replay <FILE>' cannot be used with",
        ),
        (&["run", "--replay", "a", "--duration", "5s", "--dst", "10.0.1.1"], "cannot be used with"),
        (&["run", "--replay", "a", "--speed", "0", "--dst", "10.0.1.1"], "from 0.001 to 1000"),
        (&["run", "--rate", "5k", "--speed", "2", "--dst", "10.0.1.1"], "cannot be used with"),
    ] {
        let output = pktgen(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    }
}

/// Creates a temporary file with this text. The file is deleted on drop.
fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("it can be written");
    file
}

#[test]
fn a_trace_is_checked_before_anything_is_opened() {
    let trace = file("time_us,class,service_us,size\n0,1,5,0\n10,65,5,0\n");
    let path = trace.path().to_str().unwrap();
    let output = pktgen(&["run", "--replay", path, "--dst", "10.0.1.1"]);
    assert_eq!(output.status.code(), Some(2));
    let expected =
        format!("cannot replay {path}, line 3: class is `65`, but must be a whole number, 1 to 64");
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    let trace = file("time_us,class,service_us,size\n0,1,5,0\n10,1,5,0\n");
    let path = trace.path().to_str().unwrap();
    let output = pktgen(&["run", "--replay", path, "--warmup", "1s", "--dst", "10.0.1.1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it must be shorter than the replay"), "{}", stderr(&output));
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn a_build_without_dpdk_says_so() {
    for arguments in [&["run", "--rate", "5k", "--dst", "10.0.1.1"][..], &["floor"], &["reflect"]] {
        let output = pktgen(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("this build has no DPDK"), "{}", stderr(&output));
    }
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use super::*;
    use std::process::{Child, Stdio};
    use std::time::{Duration, Instant};

    /// Generous limit for a busy machine; only failing tests reach it.
    const TIMEOUT: Duration = Duration::from_secs(300);

    /// A reflector in its own process; killed on drop.
    struct Reflector(Child);

    impl Reflector {
        /// Starts the reflector on a device with this number of queue pairs.
        fn start(device: &str, queues: &str) -> Self {
            let child = Command::new(env!("CARGO_BIN_EXE_wedjat-pktgen"))
                .args(["reflect", "--device", device, "--queues", queues])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            Self(child.expect("the reflector starts"))
        }
    }

    impl Drop for Reflector {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Runs the generator against a reflector in another process with this number of queues, over memif. Adds the
    /// device, short times, the seed, and a missing destination. `name` separates the sockets of tests.
    fn run(name: &str, queues: &str, command: &[&str]) -> Output {
        let socket = format!("socket=@wedjat-pktgen-{name}-{}", std::process::id());
        let server = format!("net_memif0,role=server,{socket}");
        let _reflector = Reflector::start(&server, queues);
        let device = format!("net_memif0,role=client,{socket}");
        let common = ["--device", &device, "--warmup", "50ms", "--seed", "7"];
        let to: &[_] = if command.contains(&"--dst") { &[] } else { &["--dst", "10.0.1.1"] };
        let timeouts = ["--peer-timeout", "300s", "--drain", "30s"];
        // A trace has its own duration.
        let is_replay = command.contains(&"--replay");
        let duration: &[_] = if is_replay { &[] } else { &["--duration", "300ms"] };
        pktgen(&[command, &common, to, &timeouts, duration].concat())
    }

    /// Returns output and report of a run in which most tasks were answered and none was lost. The run uses real
    /// time: if the machine stalls for a third of a second, few tasks are sent, and the run is repeated. The ledger
    /// balances in any case.
    fn report(name: &str, queues: &str, command: &[&str]) -> (Output, serde_json::Value) {
        let start = Instant::now();
        loop {
            let output = run(name, queues, command);
            let report: serde_json::Value = serde_json::from_str(&stdout(&output))
                .unwrap_or_else(|_| panic!("{}", stderr(&output)));
            // A busy machine may delay the generator; report and status then say so.
            let status = i32::from(report["valid"] != true);
            assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
            let count =
                |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"));
            assert_eq!(count("scheduled"), count("sent") + count("unsent"));
            assert_eq!(count("sent"), count("answered") + count("refused") + count("lost"));
            assert_eq!((count("duplicates"), count("unknown")), (0, 0));
            if count("answered") > count("scheduled") / 2 && count("lost") == 0 {
                return (output, report);
            }
            assert!(start.elapsed() < TIMEOUT, "{report}");
        }
    }

    // promise: measurement.1
    #[test]
    fn a_run_over_memif_balances_and_states_all() {
        let service = "mix(0.5*exp(50us), 0.5*fixed(5us))";
        let load = ["run", "--rate", "5k", "--service", service, "--format", "json"];
        let (output, report) = report("run", "1", &load);
        // 5000 tasks/s for 300 ms. Due tasks are drawn in advance, regardless of their outcome.
        let scheduled = report["scheduled"].as_u64().unwrap_or_default();
        assert!((1_200..1_800).contains(&scheduled), "{report}");
        assert!(report["response_us"]["p50"].as_f64() >= report["service_us"]["p50"].as_f64());
        assert!(report["floor_us"]["p50"].is_number());
        assert_eq!(report["classes"].as_array().map(Vec::len), Some(2));
        assert_eq!(report["valid"], output.status.success());
        let manifest = &report["manifest"];
        assert!(manifest["dpdk"].as_str().unwrap().starts_with("DPDK"));
        assert_eq!(manifest["seeds"][0]["seed"], "0x1355be76d7eee8ba");
        assert!(stderr(&output).contains("0x1355be76d7eee8ba"), "seeds are logged");
        let timestamps = &manifest["timestamps"];
        assert_eq!(timestamps["receive"], "software");
        let reason = timestamps["reason"].as_str().unwrap();
        assert!(
            reason.contains("net_memif") && reason.contains("no receive timestamps"),
            "{reason}"
        );
    }

    /// Reads a log of tasks. Returns its rows, each as fields by the name of their column.
    fn rows(log: &std::path::Path) -> Vec<std::collections::HashMap<String, String>> {
        let reader = csv::Reader::from_path(log).expect("the log");
        reader.into_deserialize().map(|row| row.expect("a row")).collect()
    }

    // promise: measurement.1
    #[test]
    fn task_log_agrees_with_the_report() {
        use wedjat_pktgen::latency::Latency;
        use wedjat_pktgen::results::{Run, task};

        let folder = tempfile::tempdir().expect("a temporary folder");
        let (log, page) = (folder.path().join("tasks.csv"), folder.path().join("page.html"));
        let load = ["run", "--rate", "5k", "--no-floor", "--format", "json", "--pool", "3"];
        let files = ["--log-tasks", log.to_str().unwrap(), "--html", page.to_str().unwrap()];
        let (_, report) = report("log", "1", &[&load[..], &files].concat());
        let rows = rows(&log);
        let measured = || rows.iter().filter(|row| row["measured"] == "1");
        let count = |status: &str| measured().filter(|row| row["status"] == status).count();
        assert_eq!(report["scheduled"], measured().count());
        for (key, status) in [("answered", "answered"), ("lost", "lost"), ("unsent", "unsent")] {
            assert_eq!(report[key], count(status), "{key}");
        }
        assert_eq!(report["late"], measured().filter(|row| row["late"] == "1").count());
        assert!(measured().count() < rows.len(), "the log has the warm-up, too");
        let mut latency = Latency::default();
        for row in measured().filter(|row| row["status"] == "answered") {
            let ns = |column: &str| row[column].parse::<u64>().unwrap();
            latency.record(ns("response_ns"));
            assert!(ns("sent_ns") >= ns("scheduled_ns") && ns("answered_ns") >= ns("sent_ns"));
            assert!(ns("service_ns") > 0 && row["pool"] == "3" && !row["worker"].is_empty());
        }
        // Warm-up and measured time are 350 ms. The last task is due near their end.
        let last = rows.last().unwrap()["scheduled_ns"].parse::<f64>().unwrap();
        assert!((2.5e8..=3.5e8).contains(&last), "{last}");
        let run = Run::new(task::read(&log).unwrap().remove(0));
        for (quantile, key) in [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p999")] {
            let reported = report["response_us"][key].as_f64().unwrap_or(f64::INFINITY);
            assert_eq!(run.responses().quantile(quantile), reported, "{key}");
            if count("lost") + count("refused") == 0 {
                assert_eq!(latency.quantile_ns(quantile) / 1e3, reported, "{key}");
            }
        }
        assert!(std::fs::read_to_string(page).unwrap().contains("tasks in flight"));
    }

    // promise: measurement.1
    #[test]
    fn unrecordable_load_is_refused_before_the_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("tasks.csv");
        let to = ["--dst", "10.0.1.1", "--device", "net_null0", "--log-tasks"];
        let long = ["run", "--rate", "1M", "--duration", "60s"];
        let output = pktgen(&[&long[..], &to, &[log.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(2));
        // The default warm-up adds a second.
        let expected = "--log-tasks: 61000000 tasks on a core, but at most 7549747 can be recorded";
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        let output = pktgen(&[&["run", "--rate", "1k"], &to[..], &["/none/tasks.csv"]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("--log-tasks /none/tasks.csv"), "{}", stderr(&output));
        assert!(!log.exists());
    }

    // promise: measurement.1
    #[test]
    fn ipv6_run_resolves_its_next_hop() {
        let load = ["run", "--rate", "5k", "--service", "fixed(5us)", "--dst", "fd00:1::1"];
        let options = ["--gateway", "fe80::1", "--size", "400", "--no-floor", "--format", "json"];
        let (_, report) = report("ipv6", "1", &[&load[..], &options].concat());
        assert_eq!((&report["refused"], &report["foreign"]), (&0.into(), &0.into()));
        let command = report["manifest"]["command"].as_array().unwrap();
        assert!(command.contains(&"fd00:1::1".into()), "{report}");
    }

    // promise: measurement.1
    #[test]
    fn ipv6_tasks_carry_their_vlan_tag() {
        use pcap_file::pcap::{PcapReader, PcapWriter};
        use wedjat::wire::{udp, vlan};

        let folder = tempfile::tempdir().expect("a temporary folder");
        let [received, sent] = ["came.pcap", "sent.pcap"].map(|name| folder.path().join(name));
        // No packet ever arrives.
        PcapWriter::new(std::fs::File::create(&received).unwrap()).unwrap();
        let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", received.display(), sent.display());
        let load =
            ["run", "--rate", "1k", "--duration", "200ms", "--warmup", "0s", "--drain", "1ms"];
        let to = ["--dst", "fd00:1::1", "--dst-mac", "02:00:00:00:00:09", "--vlan", "12"];
        let output = pktgen(&[&load[..], &to, &["--no-floor", "--device", &device]].concat());
        let mut reader = PcapReader::new(std::fs::File::open(&sent).unwrap())
            .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
        let mut frames = 0;
        while let Some(packet) = reader.next_packet() {
            let mut frame = packet.unwrap().data.into_owned();
            assert_eq!(vlan::id(&frame), Some(12));
            vlan::cover(&mut frame);
            let datagram = udp::parse_v6(&frame[vlan::LEN..], false).unwrap();
            assert_eq!(
                (datagram.dst, datagram.src),
                (0xFD00_0001 << 96 | 1, 0xFD00_0001 << 96 | 0x100)
            );
            assert_eq!(datagram.dst_port, 1234);
            frames += 1;
        }
        assert!(frames > 0, "{}", stdout(&output));
    }

    // promise: measurement.1
    #[test]
    fn a_trace_is_replayed_over_memif() {
        // 300 tasks in 300 ms, a third of them of class 2; two passes at double speed. Times at half milliseconds
        // keep clear of the end of the warm-up.
        let time = |i: u32| if i == 0 { 0 } else { i * 1000 + 500 };
        let line =
            |i: u32| format!("{},{},5,{}\n", time(i), 1 + i32::from(i.is_multiple_of(3)), i % 200);
        let lines: String = (0..300).map(line).collect();
        let trace = file(&format!("time_us,class,service_us,size\n{lines}"));
        let path = trace.path().to_str().unwrap();
        let load = ["run", "--replay", path, "--speed", "2", "--repeat", "2", "--no-floor"];
        let (_, report) = report("replay", "1", &[&load[..], &["--format", "json"]].concat());
        let config = &report["manifest"]["config"];
        // All except the 50 ms warm-up of 300 ms are measured. Nothing is random, so the number of tasks is
        // known.
        assert_eq!((&report["scheduled"], &config["warmup_s"]), (&500.into(), &0.05.into()));
        // A pass takes 299.5 ms and a mean gap of 1 ms, at double speed.
        assert_eq!(report["offered_pps"].as_f64().map(f64::round), Some(1997.0));
        let classes = report["classes"].as_array().unwrap();
        let scheduled: Vec<_> = classes.iter().map(|class| class["scheduled"].as_u64()).collect();
        // 400 and 200 in both passes; the warm-up has 66 and 34 of them.
        assert_eq!(scheduled, [Some(334), Some(166)]);
        assert_eq!(
            (&classes[1]["name"], &config["replay"]["tasks"]),
            (&"class 2".into(), &300.into())
        );
        assert_eq!(config["replay"]["file"], path);
        assert_eq!(report["manifest"]["seeds"].as_array().map(Vec::len), Some(0));
    }

    // promise: measurement.3
    #[test]
    fn answers_are_checked_over_memif() {
        // A reflector echoes: correct for an echo, wrong for any other workload.
        for (service, classes, right) in [("echo", 1, true), ("tpcc", 5, false)] {
            let load = ["run", "--rate", "2k", "--service", service, "--verify", "--no-floor"];
            let (_, report) = report(service, "1", &[&load[..], &["--format", "json"]].concat());
            let answered = report["answered"].as_u64().unwrap_or_default();
            assert_eq!(report["verified"], true, "{report}");
            assert_eq!(report["wrong"], if right { 0 } else { answered });
            assert_eq!(report["classes"].as_array().map(Vec::len), Some(classes));
            let is_reported = report["reasons"].to_string().contains("answers are wrong");
            assert_eq!(is_reported, !right, "{report}");
        }
    }

    #[test]
    fn two_cores_share_a_load() {
        let cpus = core_affinity::get_core_ids().unwrap_or_default();
        let cpu = |i: usize| cpus.get(i % cpus.len().max(1)).map_or(0, |core| core.id);
        let cores = format!("{},{}", cpu(0), cpu(1));
        let load = ["run", "--rate", "4k", "--cores", &cores, "--format", "json", "--no-floor"];
        let (_, report) = report("cores", "2", &load);
        let scheduled = report["scheduled"].as_u64().unwrap_or_default();
        // 4000 tasks/s for 300 ms.
        assert!((1_000..1_400).contains(&scheduled), "{report}");
        // Two cores, each with a seed of arrivals and one of service times.
        assert_eq!(report["manifest"]["seeds"].as_array().map(Vec::len), Some(4));
    }

    #[test]
    fn a_sweep_reports_in_the_order_asked_for() {
        // The runs are shuffled, the rows are not.
        let rates = "4k,1k,2k";
        let output =
            run("sweep", "1", &["sweep", "--rates", rates, "--format", "csv", "--no-floor"]);
        let text = stdout(&output);
        let offered: Vec<_> =
            text.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
        assert_eq!(offered, ["4000", "1000", "2000"], "{text}{}", stderr(&output));
    }

    // promise: measurement.1
    #[test]
    fn missing_device_timestamps_are_refused_by_name() {
        let run =
            ["run", "--rate", "5k", "--dst", "10.0.1.1", "--no-floor", "--timestamps", "device"];
        for (device, eal) in
            [("net_null0,size=64", &[][..]), ("net_ring0", &["--", "--vdev", "net_ring0"])]
        {
            let output = pktgen(&[&run[..], &["--device", device], eal].concat());
            assert_eq!(output.status.code(), Some(2));
            let printed = stderr(&output);
            for word in ["--timestamps device", device, "no receive timestamps", "software"] {
                assert!(printed.contains(word), "{word}: {printed}");
            }
        }
    }

    #[test]
    fn missing_device_is_named() {
        let output = pktgen(&["run", "--rate", "5k", "--dst", "10.0.1.1", "--device", "net_no0"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("net_no0"), "{}", stderr(&output));
        let output = pktgen(&["run", "--rate", "5k", "--dst", "10.0.1.1"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("no device; give --device"), "{}", stderr(&output));
    }
}
