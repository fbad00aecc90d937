//! `wedjat-testbed rack`: a rack of emulated workers on a port of its own, for a leaf (the scheduler process of a rack)
//! at its other end. The workers belong to servers, each with one IP address.

use std::net::IpAddr;

use clap::Args;
use wedjat::policy::PolicySpec;
use wedjat::wire::ether::Mac;
use wedjat_pktgen::process;
use wedjat_testbed::rack::{Layout, LeafOptions, Options, Outage, Outages, Rack, Servers};

use super::{Failure, Format, devices, ports, seconds};

/// Text below the help.
pub const EXAMPLE: &str = "Example, 32 workers on 4 servers for a leaf on memif:
  wedjat-testbed rack --servers 10.0.2.11+4 --workers 32 \\
    --device net_memif0,role=client,id=1,socket=wedjat-workers
For two leaves that share the workers under lsq-smart with `reports = \"messages\"`, and `registers = true` for each server, append
    --leaf 10.0.2.1 --leaf 10.0.2.2 --leaf-policy 'lsq-smart(eps=0.1)'
The leaf's [[server]] entries: ip 10.0.2.11 with workers \"0-7\", 10.0.2.12 with \"8-15\", and so on;
the rack answers ARP for all of them, and replies to a task's source MAC address.
Servers with IPv6 addresses answer neighbour discovery instead:
  wedjat-testbed rack --servers fd00:2::b+4 --workers 32 --device net_memif0,role=client,id=1,socket=wedjat-workers";

/// Emulated workers and their behaviour.
#[derive(Args, Debug)]
pub struct RackArguments {
    /// Addresses of the servers, IPv4 or IPv6: the first, and their number
    #[arg(long, default_value = "10.0.2.11+4")]
    pub servers: Servers,
    /// Workers, spread evenly over the servers
    #[arg(long, default_value_t = 32)]
    pub workers: u16,
    /// Id of the first worker; the ids are consecutive
    #[arg(long, default_value_t = 0)]
    pub first_worker: u16,
    /// Maximum number of tasks at one worker [default: no limit besides --outstanding-max]
    #[arg(long)]
    pub queue_max: Option<u32>,
    /// Maximum number of tasks at all workers together; each holds a packet buffer
    #[arg(long, default_value_t = 16_384)]
    pub outstanding_max: u32,
    /// Lose this fraction of the replies, to test the leaf
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub lose: f64,
    /// Let a worker die and return: WORKER@FROM-UNTIL, as in 3@1s-2s (may be repeated)
    #[arg(long = "kill", value_name = "OUTAGE")]
    pub outages: Vec<Outage>,
}

impl RackArguments {
    /// Returns the servers and their workers.
    pub fn layout(&self) -> Result<Layout, Failure> {
        let servers = self.servers.count;
        if !self.workers.is_multiple_of(servers) {
            return Err(format!(
                "--workers: {} workers do not spread evenly over {servers} servers",
                self.workers
            )
            .into());
        }
        let layout = Layout::new(self.servers, self.workers / servers, self.first_worker)?;
        for outage in &self.outages {
            let last = layout.id(layout.workers() - 1);
            if !(self.first_worker..=last).contains(&outage.worker) {
                return Err(format!(
                    "--kill: unknown worker {}; the workers are {} to {last}",
                    outage.worker, self.first_worker
                )
                .into());
            }
        }
        Ok(layout)
    }

    /// Returns the options of the rack. Port and seed are separate arguments of `rack` and `drive`.
    pub fn options(&self, udp_port: u16, seed: u64) -> Options {
        Options {
            udp_port,
            outstanding_max: self.outstanding_max,
            queue_max: self.queue_max.unwrap_or(u32::MAX),
            lose_share: self.lose,
            seed,
        }
    }
}

/// Parses a fraction from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("`{text}` is not a fraction; write a number from 0 to 1")),
    }
}

/// Parses a policy that uses queue reports or probes.
fn policy_with_messages(text: &str) -> Result<PolicySpec, String> {
    let policy: PolicySpec = text.parse().map_err(|error| format!("{error}"))?;
    match policy.takes_messages() {
        true => Ok(policy),
        false => Err(format!(
            "{policy} uses no queue reports and no probes; give the policy of a pool with `reports = \"messages\"`"
        )),
    }
}

/// Command line of `rack`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    rack: RackArguments,
    /// Leaf that shares the workers: they register with it, and report their queues as --leaf-policy requires
    /// (may be repeated)
    #[arg(long = "leaf", value_name = "ADDRESS", requires = "leaf_policy")]
    leaves: Vec<IpAddr>,
    /// Policy of the leaves, if `reports` of their pool is "messages"
    #[arg(long, requires = "leaves", value_parser = policy_with_messages)]
    leaf_policy: Option<PolicySpec>,
    /// Pool of all workers, for the leaves
    #[arg(long, default_value_t = 1)]
    pool: u16,
    /// UDP port of tasks
    #[arg(long, default_value_t = wedjat::wire::task::UDP_PORT)]
    udp_port: u16,
    /// EAL device: a PCI address, or a virtual device's name with its arguments
    #[arg(long)]
    device: String,
    /// Stop after this time [default: on SIGINT or SIGTERM]
    #[arg(long, value_parser = seconds)]
    duration: Option<f64>,
    /// Seed of random events such as lost replies
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// CPU to run on
    #[arg(long)]
    core: Option<usize>,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// EAL arguments
    #[arg(last = true)]
    eal: Vec<String>,
}

impl Arguments {
    /// Returns the layout of the rack, if its address family fits that of the leaves.
    fn layout(&self) -> Result<Layout, Failure> {
        let layout = self.rack.layout()?;
        let mut leaves = self.leaves.iter().enumerate();
        let is_repeated = |(index, leaf): &(usize, &IpAddr)| self.leaves[..*index].contains(leaf);
        if let Some((_, leaf)) = leaves.find(is_repeated) {
            return Err(format!("--leaf {leaf} is given twice; give each leaf once").into());
        }
        match self.leaves.iter().find(|leaf| leaf.is_ipv6() != layout.is_v6()) {
            Some(leaf) => Err(format!(
                "--leaf {leaf}: workers register from the addresses of --servers {}; give both IPv4 or both IPv6 addresses",
                self.rack.servers
            )
            .into()),
            None => Ok(layout),
        }
    }
}

/// Runs the rack until a signal, or for the given time. Returns false if its replies were too late, it had no room
/// for a task, or its ledger does not balance.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let rack = &arguments.rack;
    let layout = arguments.layout()?;
    ports::check()?;
    let devices = [arguments.device.as_str()];
    let environment =
        ports::Environment::start(&arguments.eal, &devices, rack.outstanding_max, arguments.core)?;
    let (device, port) = environment.open(&arguments.device)?;
    process::pin(arguments.core);
    let stop = process::stop_on_signals()?;
    let hz = environment.eal.ticks_hz() as f64;
    let options = rack.options(arguments.udp_port, arguments.seed);
    let mut rack = Rack::new(port, Mac(device.mac()), layout, options, hz);
    if let Some(policy) = arguments.leaf_policy.clone() {
        let (leaves, pool, seed) = (arguments.leaves.clone(), arguments.pool, arguments.seed);
        let options = LeafOptions { leaves, pool, policy, seed };
        rack = rack.with_leaves(&options, environment.pool.handle());
    }
    let start = environment.eal.now();
    let mut outages = Outages::new(&arguments.rack.outages, start, hz);
    let end = arguments.duration.map(|seconds| start + (seconds * hz) as u64);
    log::info!("{} workers on {}", layout.workers(), device.name());
    devices::poll_until(&stop, || {
        let now = environment.eal.now();
        outages.apply(&mut rack, now);
        rack.poll(now);
        end.is_some_and(|end| now >= end)
    });
    let report = rack.report();
    match arguments.format {
        Format::Text => wedjat_pktgen::report::print_line(&report)?,
        Format::Json => wedjat_pktgen::report::print_line(serde_json::to_string_pretty(&report)?)?,
    }
    Ok(report.valid)
}
