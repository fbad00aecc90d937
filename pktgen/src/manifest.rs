//! Origin of a report's figures, sufficient to judge and to repeat the measurement.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::load::Load;
use crate::replay::{self, Replay};
use crate::seed::StreamSeed;
use crate::slices::Rule;
use crate::stamps::StampStats;

/// Revision, machine, seeds and configuration of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// Revision of the sources.
    pub revision: String,
    /// Compiler.
    pub rustc: String,
    /// DPDK release, if packets went through DPDK.
    pub dpdk: Option<String>,
    /// Processor model.
    pub cpu: String,
    /// Start of the run, RFC 3339, UTC.
    pub started: String,
    /// Command line.
    pub command: Vec<String>,
    /// User's seed, from which all others derive.
    pub seed: u64,
    /// Seed of each random stream; none for a trace.
    pub seeds: Vec<StreamSeed>,
    /// Clock of the receive times; only `wedjat-pktgen` sets it.
    pub timestamps: Option<Timestamps>,
    /// Offered load.
    pub config: Config,
}

/// Name of the kernel's clock in [`Timestamps::receive`]. Reports show its resolution instead of a frequency.
pub const KERNEL: &str = "kernel";

/// Clock of the receive times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timestamps {
    /// `device`: received by the device; `kernel`: received by the kernel; `software`: start of the poll that
    /// received them.
    pub receive: &'static str,
    /// Reason why neither the device's nor the kernel's clock was used.
    pub reason: Option<String>,
    /// Statistics of the timestamps.
    #[serde(flatten)]
    pub stats: Option<StampStats>,
}

impl std::fmt::Display for Timestamps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.receive)?;
        if let Some(reason) = &self.reason {
            write!(f, " ({reason})")?;
        }
        let Some(stats) = self.stats else { return Ok(()) };
        let StampStats {
            stamped,
            unstamped,
            device_hz,
            resolution_ns,
            uncertainty_ns,
            mean_wait_ns,
            ..
        } = stats;
        if self.receive == KERNEL {
            write!(f, ", time of day in steps of {resolution_ns:.0} ns")?;
        } else {
            write!(f, ", clock of {:.3} MHz", device_hz / 1e6)?;
        }
        let percent = stats.share() * 1e2;
        write!(
            f,
            ", uncertainty at most {uncertainty_ns:.0} ns; {stamped} packets ({percent:.1}%) have a timestamp, {unstamped} do \
             not; the poll after a timestamp began {:.1} us later on average",
            mean_wait_ns / 1e3
        )?;
        match stats.clock_steps {
            0 => Ok(()),
            steps => write!(
                f,
                "; the system clock was set {steps} times: timestamps within 0.1 s after each step were ignored"
            ),
        }
    }
}

/// Load as the generator parsed it.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Tasks per second.
    pub rate_pps: f64,
    /// Replayed trace, if any.
    pub replay: Option<replay::Config>,
    /// Arrival process.
    pub arrivals: String,
    /// Service times.
    pub service: String,
    /// Mean service time.
    pub service_mean_us: f64,
    /// Warm-up in seconds.
    pub warmup_s: f64,
    /// Measured seconds.
    pub duration_s: f64,
    /// Longest drain in seconds.
    pub drain_s: f64,
    /// Windows of the measured time.
    pub windows: usize,
    /// Rule for undisturbed slices, and requested percentile.
    pub slices: Rule,
    /// Number of sending cores.
    pub cores: u32,
    /// Device, if any.
    pub device: Option<String>,
}

impl Manifest {
    /// Creates the manifest of a run of `load` that starts at `started`. The caller adds DPDK release, timestamps and
    /// device.
    #[must_use]
    pub fn new(load: &Load, started: SystemTime) -> Self {
        let seeds = load.seeds().into_iter().flat_map(|core| [core.arrivals, core.service]);
        Self {
            revision: wedjat::REVISION.to_owned(),
            rustc: wedjat::RUSTC.to_owned(),
            dpdk: None,
            cpu: cpu_model(),
            started: rfc3339(started.duration_since(UNIX_EPOCH).unwrap_or_default()),
            command: std::env::args().collect(),
            seed: load.seed,
            seeds: seeds.collect(),
            timestamps: None,
            config: Config {
                rate_pps: load.rate_pps,
                replay: load.replay.as_ref().map(Replay::config),
                arrivals: load.arrivals_text(),
                service: load.service_text(),
                service_mean_us: load.service.mean_ns() / 1e3,
                warmup_s: load.warmup_s,
                duration_s: load.duration_s,
                drain_s: load.drain_s,
                windows: load.windows,
                slices: load.rule,
                cores: load.cores,
                device: None,
            },
        }
    }

    /// Creates the manifest of a run that starts at a fixed time.
    #[cfg(test)]
    pub(crate) fn for_tests(load: &Load) -> Self {
        Self::new(load, UNIX_EPOCH)
    }
}

/// Returns the processor model from /proc/cpuinfo.
fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned())
}

/// Formats a time since 1970 by RFC 3339, in UTC.
fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day of a day since 1970. It counts in cycles of 400 years that begin in March, so
/// that a leap day is the last day of its year (Hinnant: chrono-compatible low-level date algorithms,
/// `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    // 400, 100 and 4 years have 146097, 36524 and 1461 days. The divisors 1460 and 146096 are one less, because a
    // leap day is the last day of its 4 or 400 years, counted from 0.
    let days = days + 719_468; // since 0000-03-01
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524
        - day_of_cycle / 146_096)
        / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // Five months from March or August on have 153 days.
    let month = (5 * day_of_year + 2) / 153; // 0 is March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (cycle * 400 + year_of_cycle + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_received_packets_count_for_timestamps() {
        let stats = StampStats { stamped: 3, unstamped: 1, ..StampStats::default() };
        let timestamps = Timestamps { receive: "device", reason: None, stats: Some(stats) };
        let text = timestamps.to_string();
        assert!(text.contains("3 packets (75.0%) have a timestamp, 1 do not"), "{text}");
    }

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn all_seeds_are_stated() {
        let load = Load { cores: 2, ..Load::new(1e5, "exp(5us)".parse().unwrap()) };
        let manifest = Manifest::for_tests(&load);
        let names: Vec<_> =
            manifest.seeds.iter().map(|s| format!("{}/{}", s.purpose, s.core)).collect();
        assert_eq!(names, ["arrivals/0", "service/0", "arrivals/1", "service/1"]);
        let json = serde_json::to_value(&manifest).unwrap();
        assert!(json["seeds"][0]["seed"].as_str().unwrap().starts_with("0x"));
        assert_eq!(json["config"]["service"], "exp(5us)");
    }
}
