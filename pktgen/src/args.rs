//! Command-line arguments. Comments on arguments, subcommands and values are the help texts of the program.
//!
//! The scheduler is the leaf or agent under test. A pool is a set of workers that serve one kind of task. The floor is
//! the latency of the generator alone. Undisturbed slices are parts of the run in which no poll loop stalled.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use wedjat::wire::ether::Mac;
use wedjat::wire::{task, vlan};
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::arrival::Arrivals;
use wedjat_pktgen::grammar::{GrammarError, parse_time_ns};
use wedjat_pktgen::load::Load;
use wedjat_pktgen::rate::{Rate, UnknownCapacity};
use wedjat_pktgen::replay::{self, Replay, ReplayError};
use wedjat_pktgen::results::ResultArgs;
use wedjat_pktgen::service::Service;
use wedjat_pktgen::slices;

/// Open-loop load generator for microsecond tasks.
///
/// Sends each task at its due time, regardless of earlier tasks; latency counts from the due time. A run that
/// could not keep up prints INVALID and exits with 1; a run that could not start exits with 2.
#[derive(Parser, Debug)]
#[command(version = wedjat::VERSION, about, max_term_width = 100)]
pub struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Clock of the receive times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timestamps {
    /// The device's clock, else the kernel's, else that of the poll loop
    Auto,
    /// The device's clock, or fail
    Device,
    /// The kernel's clock (net_pcap with iface=NAME), or fail
    Kernel,
    /// The clock of the poll loop
    Software,
}

/// Subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Offer one load and report the results
    #[command(after_help = "Example, a leaf on memif:\n  \
        wedjat-pktgen run --rate 200k --service 'exp(50us)' --pool 1 --dst 10.0.1.1 --duration 10s \\\n    \
        --device net_memif0,role=client,socket=leaf\n\n\
        A trace, at twice its speed:\n  \
        wedjat-pktgen run --replay tasks.csv --speed 2 --pool 1 --dst 10.0.1.1 --device net_memif0,role=client,socket=leaf\n\n\
        Service times:\n  fixed(10us)  exp(50us)  normal(50us,5us)  lognormal(MEAN,SIGMA)  pareto(MEAN,ALPHA)\n  \
        uniform(10us,90us)  mix(0.5*normal(50us,5us), 0.5*normal(500us,50us))\n  \
        rocksdb-90-10  rocksdb-50-50  rocksdb-995-5  tpcc  echo (named mixes; latency is reported by class)\n\
        Arrivals:\n  poisson  constant  bursts(TASKS,MEAN GAP WITHIN)  lognormal(SIGMA)  pareto(ALPHA)")]
    Run(RunArgs),
    /// Offer several loads one after another in shuffled order
    #[command(after_help = "Example, loads in per cent of 32 workers:\n  \
        wedjat-pktgen sweep --rates 50%,80%,90%,95% --workers 32 --service 'exp(50us)' --dst 10.0.1.1 --format csv")]
    Sweep(SweepArgs),
    /// Find the highest load that meets a latency objective
    #[command(after_help = "Example:\n  \
        wedjat-pktgen search --p99 500us --low 100k --high 600k --service 'exp(50us)' --dst 10.0.1.1")]
    Search(SearchArgs),
    /// Check that arrivals and service times are independent and have the requested rate and mean
    #[command(after_help = "Example:\n  wedjat-pktgen selftest --service 'exp(50us)' --seed 7")]
    Selftest(SelftestArgs),
    /// Measure the generator's own latency, with an immediate answer to every task in this process
    #[command(after_help = "Example:\n  wedjat-pktgen floor --rate 1M --service 'exp(50us)'")]
    Floor(FloorArgs),
    /// Answer every task immediately: the peer of a loopback measurement over a real device
    #[command(
        after_help = "Example, the other end of a memif for a generator in a second process:\n  \
        wedjat-pktgen reflect --device net_memif0,role=server,socket=loop"
    )]
    Reflect(ReflectArgs),
    /// Print shell completions for this command
    #[command(after_help = "Example:\n  \
        wedjat-pktgen completions bash > ~/.local/share/bash-completion/completions/wedjat-pktgen")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder; for the installation
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
}

/// Default warm-up of a load without a trace, in seconds.
const WARMUP_S: f64 = 1.0;

/// Arguments of the load.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// Service times: fixed(T), exp(MEAN), normal(MEAN,SD), mix(W*..., W*...) ..., or a named mix:
    /// rocksdb-90-10, rocksdb-50-50, rocksdb-995-5, tpcc, echo
    #[arg(long, default_value = "exp(50us)")]
    pub service: Service,
    /// Arrivals: poisson, constant, bursts(TASKS,MEAN), lognormal(SIGMA), pareto(ALPHA)
    #[arg(long, default_value = "poisson")]
    pub arrivals: Arrivals,
    /// Measured time
    #[arg(long, default_value = "10s", value_parser = seconds)]
    pub duration: f64,
    /// Warm-up time, sent but not measured [default: 1s, or 0 for a trace]
    #[arg(long, value_parser = seconds)]
    pub warmup: Option<f64>,
    /// Longest wait for answers after the last task
    #[arg(long, default_value = "1s", value_parser = seconds)]
    pub drain: f64,
    /// Delay after the due time from which a sent task counts as late [default: 5us, or 1% of the mean
    /// service time if more]
    #[arg(long, value_parser = seconds)]
    pub late_after: Option<f64>,
    /// Windows of the measured time, for confidence intervals and trend
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub windows: u16,
    /// Seed of all random streams
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Workers of the pool, for rates in per cent: capacity = workers / mean service time
    #[arg(long)]
    pub workers: Option<u32>,
    /// Percentile to report: the run is INVALID if the undisturbed slices have too few tasks for it
    #[arg(long, default_value = "99", value_parser = slices::quantile)]
    pub percentile: f64,
    /// Check the contents of answers: the workers must run the workload of --service (see docs/howto/benchmark.md)
    #[arg(long)]
    pub verify: bool,
}

impl LoadArgs {
    /// Returns the load at `rate` on `cores` cores.
    ///
    /// # Errors
    /// If the rate is in per cent and the capacity is unknown.
    pub fn load(&self, rate: Rate, cores: u32) -> Result<Load, UnknownCapacity> {
        let rate_pps = rate.pps(self.workers, self.service.mean_ns())?;
        let warmup_s = self.warmup.unwrap_or(WARMUP_S);
        let (arrivals, duration_s) = (self.arrivals, self.duration);
        let usual = Load::new(rate_pps, self.service.clone());
        Ok(self.finish(Load { arrivals, warmup_s, duration_s, ..usual }, cores))
    }

    /// Returns a replay as a load on `cores` cores.
    ///
    /// # Errors
    /// If the measured time would be empty.
    pub fn replay(&self, replay: Replay, cores: u32) -> Result<Load, ReplayError> {
        let load = Load::replaying(replay, self.warmup.unwrap_or_default())?;
        Ok(self.finish(load, cores))
    }

    /// Sets the options that random loads and replays share. The workers' load is part of the rule for undisturbed
    /// slices.
    fn finish(&self, load: Load, cores: u32) -> Load {
        Load {
            drain_s: self.drain,
            late_after_s: self.late_after.unwrap_or(load.late_after_s),
            windows: usize::from(self.windows),
            seed: self.seed,
            cores,
            verify: self.verify,
            ..load
        }
        .with_percentile(self.percentile, self.workers)
    }
}

/// Arguments of the network.
#[derive(Args, Debug)]
pub struct NetworkArgs {
    /// Address of the scheduler, IPv4 or IPv6
    #[arg(long)]
    pub dst: IpAddr,
    /// Address of the generator, of the same family [default: .100 (or .101) of the scheduler's /24, ::100
    /// (or ::101) of its /64]
    #[arg(long)]
    pub src: Option<IpAddr>,
    /// EAL device: a PCI address, or the name of a virtual device, with arguments to create it [default: the
    /// first --vdev among the EAL arguments]
    #[arg(long)]
    pub device: Option<String>,
    /// Worker pool
    #[arg(long, default_value_t = 1)]
    pub pool: u16,
    /// UDP port of the scheduler
    #[arg(long, default_value_t = task::UDP_PORT)]
    pub udp_port: u16,
    /// MAC address of the generator [default: the device's]
    #[arg(long)]
    pub mac: Option<Mac>,
    /// MAC address of the next hop [default: found by ARP or neighbour discovery]
    #[arg(long)]
    pub dst_mac: Option<Mac>,
    /// Address of the next hop, if it is not the scheduler
    #[arg(long)]
    pub gateway: Option<IpAddr>,
    /// VLAN of the scheduler and the next hop; packets get its tag
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=i64::from(vlan::ID_MAX)))]
    pub vlan: Option<u16>,
    /// Number of source ports, so that receive-side scaling spreads the tasks
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub flows: u16,
    /// Leave out the header extension (one core only; answers are then matched by 16 bits)
    #[arg(long)]
    pub no_ext: bool,
    /// Leave out UDP checksums, which IPv4 allows
    #[arg(long)]
    pub no_checksum: bool,
    /// Minimum frame length in bytes
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1514))]
    pub size: u16,
    /// CPUs of the sending cores; one queue pair each [default: one core on any CPU]
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Receive queues besides those of the cores, polled by the first core: for peers with several sending
    /// threads
    #[arg(long, default_value_t = 0, value_name = "QUEUES")]
    pub more_rx: u16,
    /// Clock of the receive times: the device's or the kernel's if it stamps packets, else that of the poll
    /// loop
    #[arg(long, value_enum, default_value_t = Timestamps::Auto)]
    pub timestamps: Timestamps,
    /// Number of packet buffers
    #[arg(long, default_value_t = 16_383)]
    pub buffers: u32,
    /// Skip the measurement of the floor
    #[arg(long)]
    pub no_floor: bool,
    /// Longest wait for the peer: for a memif server, for the link, for the next hop's MAC address
    #[arg(long, alias = "patience", default_value = "10s", value_parser = seconds)]
    pub peer_timeout: f64,
    /// State file of the leaf or agent on this machine, so that its stalls count as disturbances
    #[arg(long)]
    pub state: Option<PathBuf>,
    /// EAL arguments
    #[arg(last = true)]
    pub eal: Vec<String>,
}

impl NetworkArgs {
    /// Returns the number of sending cores.
    pub fn core_count(&self) -> u32 {
        self.cores.len().max(1) as u32
    }

    /// Returns the addresses of both sides.
    ///
    /// # Errors
    /// If they do not fit together, or tasks over IPv6 would have no checksum.
    pub fn addresses(&self) -> Result<Addresses, String> {
        let addresses = Addresses::new(self.dst, self.src, self.gateway)?;
        match addresses {
            Addresses::V6(_) if self.no_checksum => Err(format!(
                "--no-checksum cannot be used with the IPv6 address {}: IPv6 requires a UDP checksum (RFC 8200, 8.1); omit \
                 the flag, or use IPv4 addresses",
                self.dst
            )),
            _ => Ok(addresses),
        }
    }
}

/// Arguments of the report.
#[derive(Args, Debug)]
pub struct OutputArgs {
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// File for the report, instead of standard output
    #[arg(long)]
    pub out: Option<PathBuf>,
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// An object, or an array of objects.
    Json,
    /// A header, and a row per run.
    Csv,
}

// Arguments of `run`.
#[derive(Args, Debug)]
#[allow(missing_docs)]
pub struct RunArgs {
    /// Tasks per second: 200k, 1.5M, or 80% of the capacity of --workers
    #[arg(long, required_unless_present = "replay")]
    pub rate: Option<Rate>,
    /// Replay the tasks of this trace at their times: lines of time_us,class,service_us,size or a capture
    /// (see docs/howto/benchmark.md)
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["rate", "service", "arrivals", "duration", "size"])]
    pub replay: Option<PathBuf>,
    /// Speed of the replay relative to the trace
    #[arg(long, default_value_t = 1.0, value_parser = replay::speed, conflicts_with = "rate")]
    pub speed: f64,
    /// Number of times to replay the trace
    #[arg(long, default_value_t = 1, value_name = "TIMES", conflicts_with = "rate",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub results: ResultArgs,
}

// Arguments of `sweep`.
#[derive(Args, Debug)]
#[allow(missing_docs)]
pub struct SweepArgs {
    /// Rates in tasks per second: 100k,200k or 50%,80%,90%
    #[arg(long, value_delimiter = ',', required = true)]
    pub rates: Vec<Rate>,
    /// Order of the runs; the report keeps the order of --rates
    #[arg(long, value_enum, default_value_t = Order::Shuffled)]
    pub order: Order,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub results: ResultArgs,
}

/// Order of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Random order (by the seed), so that a drift of the machine does not look like a trend over the load.
    Shuffled,
    /// The given order.
    Given,
}

// Arguments of `search`.
#[derive(Args, Debug)]
#[allow(missing_docs)]
pub struct SearchArgs {
    /// Objective for the 99th percentile of the response time
    #[arg(long, value_parser = seconds)]
    pub p99: f64,
    /// A load that surely meets the objective
    #[arg(long)]
    pub low: Rate,
    /// A load that does not
    #[arg(long)]
    pub high: Rate,
    /// Number of loads to try between the two
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub steps: u32,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

// Arguments of `selftest`.
#[derive(Args, Debug)]
#[allow(missing_docs)]
pub struct SelftestArgs {
    /// Tasks per second
    #[arg(long, default_value = "200k")]
    pub rate: Rate,
    /// Number of cores
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cores: u32,
    #[command(flatten)]
    pub load: LoadArgs,
}

// Arguments of `floor`.
#[derive(Args, Debug)]
#[allow(missing_docs)]
pub struct FloorArgs {
    /// Tasks per second
    #[arg(long, default_value = "200k")]
    pub rate: Rate,
    #[command(flatten)]
    pub load: LoadArgs,
    /// EAL arguments
    #[arg(last = true)]
    pub eal: Vec<String>,
}

// Arguments of `reflect`.
#[derive(Args, Debug)]
#[allow(missing_docs)]
pub struct ReflectArgs {
    /// EAL device [default: the first --vdev among the EAL arguments]
    #[arg(long)]
    pub device: Option<String>,
    /// Stop after this time [default: on SIGINT or SIGTERM]
    #[arg(long, value_parser = seconds)]
    pub duration: Option<f64>,
    /// Number of packet buffers
    #[arg(long, default_value_t = 16_383)]
    pub buffers: u32,
    /// Number of queue pairs: as many as the generator has cores
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// CPU to run on
    #[arg(long)]
    pub core: Option<usize>,
    /// EAL arguments
    #[arg(last = true)]
    pub eal: Vec<String>,
}

/// Parses a time such as `10s` or `500us`; returns seconds.
fn seconds(text: &str) -> Result<f64, GrammarError> {
    parse_time_ns(text).map(|ns| ns / 1e9)
}

#[cfg(test)]
#[path = "../../tests/tables/commands.rs"]
mod commands;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    // promise: control.2
    #[test]
    fn documented_commands_are_those_of_the_program() {
        let detail = commands::Detail::Options;
        commands::assert_documented("\n## wedjat-pktgen\n", &Cli::command(), detail);
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }

    #[test]
    fn eal_arguments_come_last() {
        let line = "wedjat-pktgen run --rate 80% --workers 32 --service exp(50us) --dst 10.0.1.1 \
                    --duration 2s -- --vdev net_memif0,role=client";
        let Command::Run(run) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("not a run")
        };
        assert_eq!(run.network.eal, ["--vdev", "net_memif0,role=client"]);
        let load = run.load.load(run.rate.unwrap(), 1).unwrap();
        // 80% of 32 workers with a mean service time of 50 us.
        assert_eq!((load.rate_pps, load.duration_s), (512e3, 2.0));
    }

    #[test]
    fn mistakes_are_shown_at_their_place() {
        let error = Cli::try_parse_from([
            "wedjat-pktgen",
            "run",
            "--rate",
            "200k",
            "--dst",
            "10.0.1.1",
            "--service",
            "exp(50)",
        ])
        .unwrap_err()
        .to_string();
        assert!(error.contains("ns, us, ms or s") && error.contains('^'), "{error}");
    }
}
