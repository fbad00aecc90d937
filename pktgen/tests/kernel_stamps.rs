//! Kernel receive timestamps over a veth pair: the generator on the pcap driver, a reflector on AF_PACKET.
#![cfg(all(feature = "dpdk", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Generous limit for a busy machine; only failing tests reach it.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Path of the generator's command.
const PKTGEN: &str = env!("CARGO_BIN_EXE_wedjat-pktgen");

/// A network namespace with a veth pair, `near` and `far`, and the reflector at `far`; deleted on drop.
struct Net {
    /// Name of the namespace.
    name: String,
    /// Process of the reflector; `None` before its start.
    reflector: Option<Child>,
}

impl Net {
    /// Creates the namespace. `None` if the system does not allow it; the reason is printed.
    fn new() -> Option<Self> {
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            println!("SKIPPED: making network namespaces and raw sockets needs root");
            return None;
        }
        let net = Self { name: format!("wedjat-stamps-{}", std::process::id()), reflector: None };
        if !ip(&["netns", "add", &net.name]) {
            println!("SKIPPED: no network namespace can be made");
            return None;
        }
        let pair = ["link", "add", "near", "type", "veth", "peer", "name", "far"];
        for words in [&pair[..], &["link", "set", "near", "up"], &["link", "set", "far", "up"]] {
            assert!(ip(&[&["-n", &net.name], words].concat()), "{words:?}");
        }
        Some(net)
    }

    /// Returns a generator command that runs in the namespace.
    fn pktgen(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, PKTGEN]).args(arguments);
        command
    }

    /// Starts the reflector at `far`.
    fn reflect(&mut self) {
        let mut command = self.pktgen(&["reflect", "--device", "net_af_packet0,iface=far"]);
        self.reflector = Some(command.stdout(Stdio::null()).spawn().unwrap());
    }

    /// Runs the generator at `near` against the reflector at `far`.
    fn run(&self, timestamps: &str) -> Output {
        let device = ["--device", "net_pcap0,iface=near", "--timestamps", timestamps];
        let load = ["run", "--rate", "2k", "--duration", "300ms", "--warmup", "50ms"];
        let to = ["--dst", "10.0.1.1", "--peer-timeout", "300s", "--drain", "30s", "--no-floor"];
        let command = self.pktgen(&[&load[..], &to, &device, &["--format", "json"]].concat());
        // The block makes a mutable temporary of the command.
        { command }.output().unwrap()
    }
}

impl Drop for Net {
    /// Ends the reflector, and deletes the namespace with the veth pair.
    fn drop(&mut self) {
        if let Some(reflector) = &mut self.reflector {
            let _ = reflector.kill();
            let _ = reflector.wait();
        }
        ip(&["netns", "del", &self.name]);
    }
}

/// Runs the `ip` command. Returns true if it succeeds.
fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).status().is_ok_and(|status| status.success())
}

/// Returns the report of a run in which most tasks were answered and none was lost. Repeats the run otherwise,
/// since the machine may stall.
fn report(net: &Net, timestamps: &str) -> serde_json::Value {
    let start = Instant::now();
    loop {
        let output = net.run(timestamps);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        let count = |key: &str| report[key].as_u64().unwrap();
        if count("answered") > count("scheduled") / 2 && count("lost") == 0 {
            return report;
        }
        assert!(start.elapsed() < TIMEOUT, "{report}");
    }
}

// promise: measurement.1
#[test]
fn answers_have_the_kernels_time() {
    let Some(mut net) = Net::new() else { return };
    net.reflect();
    for option in ["kernel", "auto"] {
        let report = report(&net, option);
        let timestamps = &report["manifest"]["timestamps"];
        assert_eq!(timestamps["receive"], "kernel", "{option}: {timestamps}");
        let number = |key: &str| timestamps[key].as_f64().unwrap();
        let resolution = number("resolution_ns");
        // One microsecond or one nanosecond, by the precision that pcap offers.
        assert!((resolution / 1e3 - 1.0).abs() < 0.01 || (resolution - 1.0).abs() < 0.01);
        assert!(number("uncertainty_ns") > resolution, "{timestamps}");
        // Answers received while the clock was set, or while every reading was interrupted, have no stamp.
        let (stamped, unstamped) = (number("stamped"), number("unstamped"));
        assert!(stamped > unstamped, "{timestamps}");
        // The wait runs from the stamp to the start of the poll. It is negative for an answer during a poll, as in a
        // stall of the machine. Stamps older than 0.1 s are ignored.
        assert!(number("mean_wait_ns") < 1e8, "{timestamps}");
        assert!(report["service_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    }
    let report = report(&net, "software");
    let timestamps = &report["manifest"]["timestamps"];
    assert_eq!(
        (&timestamps["receive"], &timestamps["reason"]),
        (&"software".into(), &"requested".into())
    );
}

// promise: measurement.1
#[test]
fn unsuitable_stamp_clocks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("came.pcap");
    pcap_file::pcap::PcapWriter::new(std::fs::File::create(&capture).unwrap()).unwrap();
    // A replayed capture has the time at which it was made.
    let replay = format!("net_pcap0,rx_pcap={},tx_pcap=/dev/null", capture.display());
    for (timestamps, device, why) in [
        ("kernel", replay.as_str(), "at which it was made"),
        ("device", &replay, "at which it was made"),
        ("kernel", "net_null0,size=64", "no receive timestamps"),
    ] {
        let to = ["run", "--rate", "1k", "--dst", "10.0.1.1", "--no-floor"];
        let stamps = ["--device", device, "--timestamps", timestamps];
        let output = Command::new(PKTGEN).args(to).args(stamps).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains(&format!("--timestamps {timestamps}: {device}")), "{printed}");
        assert!(printed.contains(why) && printed.contains("--timestamps software"), "{printed}");
    }
}
