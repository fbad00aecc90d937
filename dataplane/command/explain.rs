//! `wedjat explain`: explains the path of packets through a running node, or of a capture's packets.

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use wedjat::admin::generated::{ExplainRequest, Explanation};
use wedjat::admin::{Connection, Offline, OfflineError};
use wedjat::config::{AgentConfig, Config, ControllerConfig};
use wedjat::quantity;

use super::Outcome;
use super::ctl::access_to;

/// Help text below the options.
pub const EXAMPLE: &str = "Examples:
  wedjat explain --drops --count 10
  wedjat explain --node /dev/shm/wedjat-leaf1 --host 10.0.1.2 --for 5s
  wedjat explain --pool 1 --worker 12 --format json
  wedjat explain --file client.pcap leaf.toml
Prints a line for each packet: its kind, its outcome, and the reason, with the node's estimates of its workers at that moment. With --file the
packets of a capture pass a node of this configuration without devices: its tasks have no replies unless the capture has them,
and all hosts are assumed to answer ARP. Meanwhile a running node decides packet by packet: the same choices at several times the cost.
It counts packets beyond 4096 waiting explanations as lost. Exit status: 0 when packets could be explained, also if none came, 1 otherwise.";

/// Arguments of `wedjat explain`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration of the node that processes the packets of --file
    #[arg(value_name = "CONFIG", requires = "file")]
    config: Option<PathBuf>,
    /// Explain the packets of this capture (pcap) instead of a running node's
    #[arg(long, value_name = "CAPTURE", requires = "config", conflicts_with_all = ["node", "connect"])]
    file: Option<PathBuf>,
    /// State file of the node [default: that of WEDJAT_STATE, else of the only running node whose state file
    /// is in /dev/shm]
    #[arg(long, value_name = "STATEFILE", conflicts_with = "connect")]
    node: Option<PathBuf>,
    /// Connect over TCP, as `[control]` of the node's configuration allows: https://leaf1:7070 or
    /// http://127.0.0.1:7070
    #[arg(long, value_name = "URL")]
    connect: Option<String>,
    /// For https: authority that signs the nodes' certificates, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    ca: Option<PathBuf>,
    /// For https: certificate of this client, in PEM
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// For https: private key of this client, in PEM
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// End after this number of packets; 0 for no limit
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    count: u64,
    /// End after at most this time, for example 5s
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "file")]
    time: Option<Duration>,
    /// Show only dropped packets
    #[arg(long)]
    drops: bool,
    /// Show only packets dropped for this reason, by its name in docs/reference/drop-reasons.md
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Show only packets whose task header names this pool
    #[arg(long, value_name = "ID")]
    pool: Option<u32>,
    /// Show only packets to or from this worker; at a spine, this leaf
    #[arg(long, value_name = "ID")]
    worker: Option<u32>,
    /// Show only packets to or from this address, including ARP and neighbour discovery for it
    #[arg(long, value_name = "ADDRESS")]
    host: Option<String>,
    /// Show only packets received on this port, by index or device; with --file all packets of the capture
    /// arrive there [default: all, and with --file the port that a packet is addressed to]
    #[arg(long, value_name = "NAME|INDEX")]
    port: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line of plain text per packet
    Text,
    /// One line of JSON per packet, with all parts of the text
    Json,
}

/// Explains packets of a capture or of a running node, and prints each explanation at once.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut output = ExplainOutput { format: arguments.format, packets: 0, lost: 0, error: None };
    match (&arguments.file, &arguments.config) {
        (Some(file), Some(config)) => {
            let offline = offline(config, file, arguments.port.as_deref())?;
            offline.notes().iter().for_each(|note| eprintln!("note: {note}"));
            offline.explain(request(arguments), |explanation| output.print(&explanation))?;
        }
        _ => {
            let files = [&arguments.ca, &arguments.certificate, &arguments.key];
            let access = access_to(arguments.node.as_deref(), arguments.connect.as_deref(), files)?;
            let mut node = Connection::open(&access)?;
            node.explain(request(arguments), arguments.time, |one| output.print(&one))?;
        }
    }
    if let Some(error) = output.error {
        return Err(error);
    }
    let lost = if output.lost > 0 { format!(", {} more lost", output.lost) } else { String::new() };
    eprintln!("{} explained{lost}", quantity(output.packets, "packet"));
    Ok(std::process::ExitCode::SUCCESS)
}

/// Returns the packets of a capture and a node of this configuration without devices, ready to explain them. `port`
/// names the receiving port. Refuses the configuration of a controller, which schedules no packets.
fn offline(config: &Path, capture: &Path, port: Option<&str>) -> Result<Offline, Box<dyn Error>> {
    let name = config.display();
    if ControllerConfig::is_controllers(config) {
        let other = "this configuration is a controller's, which no packets pass";
        return Err(format!("{name}: {other}").into());
    }
    if AgentConfig::is_agents(config) {
        let offline = Offline::of_agent(&AgentConfig::load(config)?, capture, port);
        return offline.map_err(|error| match error {
            OfflineError::Peers => format!("{name}: {error}").into(),
            error => error.into(),
        });
    }
    Ok(Offline::new(&Config::load(config)?, capture, port)?)
}

/// Returns the request to the node: the selection of packets, and their maximum number.
fn request(arguments: &Arguments) -> ExplainRequest {
    let Arguments { pool, worker, drops, count, .. } = *arguments;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (host, reason) = (text(&arguments.host), text(&arguments.reason));
    // In a capture the port is where the packets arrive. It does not select packets.
    let port = if arguments.file.is_some() { String::new() } else { text(&arguments.port) };
    ExplainRequest { pool, worker, host, port, drops, reason, count }
}

/// Printer of explanations, with counts of explained and lost packets.
struct ExplainOutput {
    format: Format,
    /// Number of explained packets.
    packets: u64,
    /// Number of explanations that the node lost because its queue to this client was full.
    lost: u64,
    /// Error of an output; `None` also for a reader that has closed it.
    error: Option<Box<dyn Error>>,
}

impl ExplainOutput {
    /// Prints one explanation. Returns false if the reader has closed the output or printing fails.
    fn print(&mut self, one: &Explanation) -> bool {
        if one.lost > self.lost {
            eprintln!("lost: {} to explain", quantity(one.lost - self.lost, "packet"));
            self.lost = one.lost;
        }
        let line = match self.format {
            Format::Text => Ok(format!("{} {}", time(one.time_ns), one.text)),
            Format::Json => serde_json::to_string(one),
        };
        let written = line.map_err(Box::<dyn Error>::from).and_then(|line| {
            let mut out = std::io::stdout().lock();
            Ok(writeln!(out, "{line}").and_then(|()| out.flush())?)
        });
        match written {
            Ok(()) => self.packets += 1,
            Err(error) => {
                let io_error = error.downcast_ref::<std::io::Error>();
                let is_closed =
                    io_error.is_some_and(|one| one.kind() == std::io::ErrorKind::BrokenPipe);
                self.error = (!is_closed).then_some(error);
                return false;
            }
        }
        true
    }
}

/// Formats the time of day in UTC, with microseconds. `ns` counts from the Unix epoch.
fn time(ns: u64) -> String {
    let text = humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_nanos(ns)).to_string();
    text.split_once('T').map_or(text.clone(), |(_, time)| time.trim_end_matches('Z').to_owned())
}
