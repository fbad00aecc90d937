//! `wedjat-testbed drive`: generator and workers around a leaf or an agent, in one loop on one core. The leaf
//! (scheduler of a rack) or agent (scheduler of a worker host) is another process. The workers are an emulated rack on
//! a port of its own, or attach to the agent.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use wedjat::state::table::Snapshot;
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::arrival::Arrivals;
use wedjat_pktgen::load::Load;
use wedjat_pktgen::process;
use wedjat_pktgen::rate::Rate;
use wedjat_pktgen::results::{ResultArgs, Results, RunDescription};
use wedjat_pktgen::service::Service;
use wedjat_pktgen::slices;
use wedjat_testbed::sim::{Row, SimArgs, rows};

use super::rack::RackArguments;
use super::rig::{Rig, RunSettings, TIMEOUT};
use super::{Failure, Format, ports, seconds};

/// Text below the help.
pub const EXAMPLE: &str =
    "Examples, a leaf on two memif devices, 32 workers at 80% of their capacity:
  wedjat-testbed drive --rate 80% --service 'exp(100us)' --workers 32 --duration 5s \\
    --client-device net_memif0,role=client,socket=wedjat-clients \\
    --worker-device net_memif1,role=client,id=1,socket=wedjat-workers
the agent host1 with 32 emulated workers, and a check of all answers:
  wedjat-testbed drive --rate 90% --service 'exp(50us)' --workers 32 --attach host1 --verify \
    --client-device net_memif0,role=client,socket=host1
Service times and arrivals: see `wedjat-pktgen run --help`.";

/// Command line of `drive`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Tasks per second, as in 200k, or percentage of the workers' capacity, as in 80%
    #[arg(long)]
    rate: Rate,
    /// Service times
    #[arg(long, default_value = "exp(100us)")]
    service: Service,
    /// Arrivals
    #[arg(long, default_value = "poisson")]
    arrivals: Arrivals,
    /// Measured time
    #[arg(long, default_value = "5s", value_parser = seconds)]
    duration: f64,
    /// Unmeasured warm-up under load before it
    #[arg(long, default_value = "500ms", value_parser = seconds)]
    warmup: f64,
    /// Longest wait for answers after the last task
    #[arg(long, default_value = "1s", value_parser = seconds)]
    drain: f64,
    /// Seed of all random streams
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Percentile to report: the run is INVALID if the undisturbed slices have too few tasks for it
    #[arg(long, default_value = "99", value_parser = slices::quantile)]
    percentile: f64,
    /// Address of the leaf on the clients' side, IPv4 or IPv6 like those of --servers
    #[arg(long, default_value = "10.0.1.1")]
    dst: IpAddr,
    /// Address of the generator [default: .100 (or .101) of the leaf's /24, ::100 (or ::101) of its /64]
    #[arg(long)]
    src: Option<IpAddr>,
    /// Worker pool
    #[arg(long, default_value_t = 1)]
    pool: u16,
    /// UDP port of the leaf
    #[arg(long, default_value_t = wedjat::wire::task::UDP_PORT)]
    udp_port: u16,
    /// EAL device on the clients' side, with the arguments to create it
    #[arg(long)]
    client_device: String,
    /// EAL device on the workers' side
    #[arg(long, required_unless_present = "attach")]
    worker_device: Option<String>,
    /// Agent on this host to which the emulated workers attach, instead of a device
    #[arg(long, value_name = "NAME", conflicts_with_all = ["worker_device", "servers", "lose", "outages", "queue_max"])]
    attach: Option<String>,
    /// Check the contents of answers: emulated workers at an agent answer correctly, an emulated rack only
    /// echoes
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    rack: RackArguments,
    /// State file of the leaf or agent, so that its stalls count as disturbances
    #[arg(long)]
    state: Option<PathBuf>,
    /// CPU to run on
    #[arg(long)]
    core: Option<usize>,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    results: ResultArgs,
    /// EAL arguments
    #[arg(last = true)]
    eal: Vec<String>,
}

impl Arguments {
    /// Returns the addresses of leaf and generator. Refuses a mix of IPv4 and IPv6, except with `--attach`, which uses
    /// no servers.
    fn addresses(&self) -> Result<Addresses, Failure> {
        let addresses = Addresses::new(self.dst, self.src, None)?;
        let servers = self.rack.servers;
        if self.attach.is_none() && servers.first.is_ipv6() != self.dst.is_ipv6() {
            return Err(format!(
                "--dst is {} and --servers are {servers}; use only IPv4 addresses or only IPv6 addresses",
                self.dst
            )
            .into());
        }
        Ok(addresses)
    }

    /// Returns the load that the flags describe.
    fn load(&self) -> Result<Load, Failure> {
        let workers = u32::from(self.rack.workers);
        let rate_pps = self.rate.pps(Some(workers), self.service.mean_ns())?;
        Ok(Load {
            arrivals: self.arrivals,
            warmup_s: self.warmup,
            duration_s: self.duration,
            drain_s: self.drain,
            seed: self.seed,
            verify: self.verify,
            ..Load::new(rate_pps, self.service.clone())
        }
        .with_percentile(self.percentile, Some(workers)))
    }
}

/// Number of tasks of a run in emulated time.
const EMULATED_TASKS: &str = "200000";
/// Delay of each hop in emulated time, about that of a memif port.
const EMULATED_HOP: &str = "1us";

impl Arguments {
    /// Simulates the same load under the leaf's policy, which its state file names. Returns a line with the
    /// response times, for a run that this machine's pauses made invalid. Returns `None` without a known
    /// policy, or if the simulator cannot express the run.
    fn emulated(&self, load: f64) -> Option<String> {
        let is_plain = self.attach.is_none()
            && self.rack.lose == 0.0
            && self.rack.outages.is_empty()
            && self.rack.queue_max.is_none();
        if !is_plain {
            return None;
        }
        let snapshot = Snapshot::open(self.state.as_deref()?).ok()?;
        let policy = snapshot.pools.into_iter().find(|pool| pool.id == self.pool)?.policy;
        let args = SimArgs {
            policy: Some(policy),
            racks: Some(self.rack.workers.to_string()),
            hop: Some(EMULATED_HOP.to_owned()),
            service: Some(self.service.to_string()),
            arrivals: Some(self.arrivals.to_string()),
            load: Some(load.to_string()),
            tasks: Some(EMULATED_TASKS.to_owned()),
            ..SimArgs::default()
        };
        let rows = rows(&args).ok()?;
        let Row { policy, load, mean, p50, p99, .. } = rows.first()?;
        let load = load * 100.0;
        Some(format!(
            "emulated time, {policy} at {load:.0}% load with hops of {EMULATED_HOP}: mean {mean:.1} us, p50 {p50:.1} us, p99 {p99:.1} us; no pause \
             of this machine disturbs these"
        ))
    }
}

/// Drives the leaf or the agent. Returns false if the run is invalid.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let layout = arguments.rack.layout()?;
    let mut load = arguments.load()?;
    load.self_test()?;
    let addresses = arguments.addresses()?;
    ports::check()?;
    let mut results = Results::open(&arguments.results)?;
    if results.is_some() {
        load.check_recordable()
            .map_err(|error| format!("{}: {error}", arguments.results.option()))?;
        load.records_tasks = true;
    }
    let settings = RunSettings {
        addresses,
        udp_port: arguments.udp_port,
        pool: arguments.pool,
        layout,
        options: arguments.rack.options(arguments.udp_port, arguments.seed),
        outages: arguments.rack.outages.clone(),
        agent: arguments.attach.clone(),
        state: arguments.state.clone(),
        core: arguments.core,
    };
    let stop = process::stop_on_signals()?;
    let mut rig = Rig::open(
        &arguments.eal,
        &arguments.client_device,
        arguments.worker_device.as_deref(),
        arguments.rack.outstanding_max,
        arguments.core,
    )?;
    rig.wait_for_peer(TIMEOUT, &stop, || Ok(()))?;
    let (mut report, rack) = rig.offer(&load, &settings, &stop)?;
    if let Some(mut results) = results.take() {
        let subject = RunDescription {
            model: "drive".to_owned(),
            load: Some(load.share(arguments.rack.workers.into())),
            offered_pps: Some(load.rate_pps),
            ..RunDescription::default()
        };
        let valid = report.valid;
        results.add(report.take_tasks(1, subject, arguments.pool), valid)?;
        results.finish("wedjat-testbed drive")?;
    }
    match arguments.format {
        Format::Text => {
            wedjat_pktgen::report::print_line(format_args!("{report}\n{rack}"))?;
            let share = load.share(arguments.rack.workers.into());
            if !report.valid
                && let Some(line) = arguments.emulated(share)
            {
                wedjat_pktgen::report::print_line(line)?;
            }
        }
        Format::Json => {
            let mut json = serde_json::to_value(&report)?;
            json["rack"] = serde_json::to_value(&rack)?;
            wedjat_pktgen::report::print_line(serde_json::to_string_pretty(&json)?)?;
        }
    }
    Ok(report.valid)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use wedjat::state::table::{PoolSpec, Spec, Table, WorkerSpec};

    use super::*;

    /// Command line with only the arguments of `drive`.
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Parses a drive at half load with this state file and the arguments `more`.
    fn parsed(state: &std::path::Path, more: &[&str]) -> Arguments {
        let command = ["drive", "--rate", "50%", "--client-device", "a", "--worker-device", "b"];
        let state = ["--state", state.to_str().expect("UTF-8")];
        Cli::parse_from(command.iter().chain(&state).chain(more)).arguments
    }

    // promise: measurement.2
    #[test]
    fn invalid_drive_has_a_result_in_emulated_time() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let workers = (0..32).map(|id| WorkerSpec { id, server: 0 }).collect();
        let pools =
            vec![PoolSpec { id: 1, policy: "horus".into(), objective: String::new(), workers }];
        let servers = vec![std::net::Ipv4Addr::new(10, 0, 2, 11).into()];
        let spec = Spec { cores: 1, ports: 1, servers, pools, ..Spec::default() };
        Table::create(&state, &spec).unwrap().publish();
        let line = parsed(&state, &[]).emulated(0.5).unwrap();
        // The mean is a little above the mean service time of 100 us.
        assert!(
            line.starts_with("emulated time, horus at 50% load with hops of 1us: mean 10"),
            "{line}"
        );
        // A load with lost replies, an unknown pool, and a missing state file.
        assert_eq!(parsed(&state, &["--lose", "0.1"]).emulated(0.5), None);
        assert_eq!(parsed(&state, &["--pool", "2"]).emulated(0.5), None);
        assert_eq!(parsed(&folder.path().join("none"), &[]).emulated(0.5), None);
    }
}
