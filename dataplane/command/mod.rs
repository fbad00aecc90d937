//! The command line of `wedjat`.

mod state;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use wedjat::config::{AgentConfig, Config};
use wedjat::policy::{CATALOGUE, Entry, PAIRS, Runs};

/// A software leaf scheduler for microsecond tasks, on DPDK.
#[derive(Debug, Parser)]
#[command(name = "wedjat", version = wedjat::REVISION)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a leaf scheduler until SIGINT, SIGTERM or the end of its duration.
    #[command(after_help = "Example, with two virtual devices and no hugepages:
  wedjat leaf --config leaf.toml --duration 5s --stats - -- \\
      --no-huge --no-pci --vdev=net_memif0,role=server,id=0,socket=wedjat-clients \\
      --vdev=net_memif1,role=server,id=1,socket=wedjat-workers
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.")]
    Leaf(LeafArguments),
    /// Run a host's agent, which has worker processes do the tasks, until SIGINT, SIGTERM or the end of its duration.
    #[command(after_help = "Example, behind a leaf on memif:
  wedjat agent --config agent.toml --stats - -- --no-huge --no-pci
Exit status: 0 after an orderly end with a balanced ledger, 1 otherwise.")]
    Agent(AgentArguments),
    /// Check a configuration without running it.
    #[command(after_help = "Example:
  wedjat check --config leaf.toml
Exit status: 0 when it is right, also with warnings, 1 otherwise, with every fault's file, line and key.")]
    Check(CheckArguments),
    /// Check this machine: libraries, drivers, hugepages, permissions, cores, ports.
    #[command(after_help = "Example:
  wedjat doctor --config leaf.toml -- --no-huge --no-pci
Exit status: 1 when a start would fail.")]
    Doctor(DoctorArguments),
    /// Print a leaf's or agent's shared state, while it runs or after.
    #[command(after_help = "Example:
  wedjat state /dev/shm/wedjat-leaf1 --json")]
    State(StateArguments),
    /// List the scheduling policies.
    #[command(after_help = "Example:
  wedjat policies")]
    Policies,
    /// Write the manual pages into a folder; for the installation.
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
struct LeafArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Stop by itself after this time, as in 5s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Write the account as JSON to this file at the end; `-` is standard output, and lines then go
    /// to standard error.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Record all packets, for looking into a problem: writes FILE.port0.core0.pcap and so on. Slow.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Run on emulated time: that of the conductor which shares this file (wedjat-testbed lockstep)
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
    /// Wait so long for the server of a memif device of role client, as in 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    patience: Option<Duration>,
    /// Arguments for EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

#[derive(Debug, Args)]
struct AgentArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Stop by itself after this time, as in 5s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Write the account as JSON to this file at the end; `-` is standard output, and lines then go
    /// to standard error.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Run on emulated time: that of the conductor which shares this file (wedjat-testbed lockstep)
    #[arg(long, value_name = "FILE")]
    clock: Option<PathBuf>,
    /// Wait so long for the server of a memif device of role client, as in 2m [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    patience: Option<Duration>,
    /// Arguments of EAL.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

#[derive(Debug, Args)]
struct CheckArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct DoctorArguments {
    /// The configuration that is to be started.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The arguments for EAL that are to be used.
    #[arg(last = true, value_name = "EAL ARGUMENTS")]
    eal: Vec<String>,
}

#[derive(Debug, Args)]
struct StateArguments {
    /// The state file, `leaf.state` or `agent.state` of the configuration.
    file: PathBuf,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Does what the command line says.
pub fn run(arguments: Arguments) -> Outcome {
    match arguments.command {
        Command::Leaf(arguments) => leaf(&arguments),
        Command::Agent(arguments) => agent(&arguments),
        Command::Check(arguments) => check(&arguments),
        Command::Doctor(arguments) => doctor(&arguments),
        Command::State(arguments) => state::show(&arguments.file, arguments.json),
        Command::Policies => policies(),
        Command::Man { folder } => {
            clap_mangen::generate_to(Arguments::command(), folder)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(arguments: &CheckArguments) -> Outcome {
    if AgentConfig::is_agents(&arguments.config) {
        return check_agent(&arguments.config);
    }
    let config = Config::load(&arguments.config)?;
    for warning in config.warnings() {
        print(&format!("warning: {warning}\n"))?;
    }
    let workers: usize = config.servers.iter().map(|server| server.workers.len()).sum();
    let here = config.agent.as_ref().map_or_else(String::new, |agent| {
        format!(", and agent {} with {} workers", agent.name, agent.places().len())
    });
    print(&format!(
        "{}: right: leaf {} with {} ports, {} pools, {} servers, {workers} workers on {} cores{here}\n",
        arguments.config.display(),
        config.leaf.id,
        config.ports.len(),
        config.pools.len(),
        config.servers.len(),
        config.leaf.cores.len(),
    ))
}

fn check_agent(path: &std::path::Path) -> Outcome {
    let config = AgentConfig::load(path)?;
    let workers = config.host.places().len();
    print(&format!(
        "{}: right: agent {} with {} ports, {} pools, {workers} workers on CPU {}\n",
        path.display(),
        config.host.name,
        config.ports.len(),
        config.host.pools.len(),
        config.core,
    ))
}

fn doctor(arguments: &DoctorArguments) -> Outcome {
    use wedjat::doctor;
    let mut request = doctor::Request { eal: arguments.eal.clone(), ..doctor::Request::default() };
    let agents = arguments.config.as_deref().filter(|path| AgentConfig::is_agents(path));
    if let Some(path) = agents {
        let config = AgentConfig::load(path)?;
        request.cores = vec![config.core];
        request.devices = config.ports.iter().map(|port| port.device.clone()).collect();
        request.state = config.state;
        request.state_group = config.state_group;
    } else if let Some(path) = &arguments.config {
        let config = Config::load(path)?;
        request.cores = config.leaf.cores.clone();
        request.devices = config.ports.iter().map(|port| port.device.clone()).collect();
        request.warnings = config.warnings();
        request.state = config.leaf.state;
        request.state_group = config.leaf.state_group;
    }
    let findings = doctor::run(&request);
    print(&doctor::render(&findings))?;
    Ok(if doctor::would_fail(&findings) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn policies() -> Outcome {
    let mut text = String::new();
    for entry in CATALOGUE {
        let parameters: Vec<_> = entry
            .parameters
            .iter()
            .map(|parameter| format!("{}={}", parameter.name, parameter.default))
            .collect();
        let name = match parameters.is_empty() {
            true => entry.name.to_owned(),
            false => format!("{}({})", entry.name, parameters.join(", ")),
        };
        let (summary, source) = (entry.summary, entry.source);
        text.push_str(&format!("{name:28} {summary}  [{source}]; {}\n", where_it_runs(entry)));
    }
    for (name, _, _, summary, source) in PAIRS {
        let runs =
            "runs: simulator (rack, fabric); it is for a leaf and its spine, and there is no spine";
        text.push_str(&format!("{name:28} {summary}  [{source}]; {runs}\n"));
    }
    print(&text)
}

/// Where a policy runs, why not elsewhere, and what is different there.
fn where_it_runs(entry: &Entry) -> String {
    let runs = match entry.runs {
        Runs::Leaf => "runs: simulator, leaf, agent",
        Runs::LeafHolding => {
            "runs: simulator, leaf, agent; tasks wait there, `queue` of the pool bounds them"
        }
        Runs::Spine => {
            "runs: simulator (rack, fabric); its members are racks, and there is no spine"
        }
    };
    let mut runs = runs.to_owned();
    if entry.by_rate {
        runs.push_str("; rates there are the configuration's `speed` and `speeds`");
    }
    if entry.is_pulled() {
        runs.push_str("; there every reply tells the queue, without a message");
        if !entry.on_leaf.is_empty() {
            runs.push_str(&format!(", so that {}", entry.on_leaf));
        }
    }
    runs
}

/// Writes to standard output; a reader that has gone is no fault of ours.
fn print(text: &str) -> Outcome {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(not(feature = "dpdk"))]
const WITHOUT_PORTS: &str = "built without DPDK, so there are no ports to run on; build with the feature `dpdk` (the default)";

#[cfg(not(feature = "dpdk"))]
fn leaf(arguments: &LeafArguments) -> Outcome {
    Config::load(&arguments.config)?;
    Err(WITHOUT_PORTS.into())
}

#[cfg(not(feature = "dpdk"))]
fn agent(arguments: &AgentArguments) -> Outcome {
    AgentConfig::load(&arguments.config)?;
    Err(WITHOUT_PORTS.into())
}

#[cfg(feature = "dpdk")]
fn leaf(arguments: &LeafArguments) -> Outcome {
    use wedjat::run::{Options, leaf};

    let config = Config::load(&arguments.config)?;
    let report = Report::to(arguments.stats.as_deref())?;
    let options = Options {
        duration: arguments.duration,
        eal: arguments.eal.clone(),
        pcap: arguments.pcap.clone(),
        clock: arguments.clock.clone(),
        patience: arguments.patience,
    };
    let account = leaf::run(&config, &options, &stop_on_signals()?, |text| report.say(text))?;
    report.say(account.to_string().trim_end());
    report.end(&account, account.is_balanced())
}

#[cfg(feature = "dpdk")]
fn agent(arguments: &AgentArguments) -> Outcome {
    use wedjat::run::{Options, agent};

    let config = AgentConfig::load(&arguments.config)?;
    let report = Report::to(arguments.stats.as_deref())?;
    let options = Options {
        duration: arguments.duration,
        eal: arguments.eal.clone(),
        pcap: None,
        clock: arguments.clock.clone(),
        patience: arguments.patience,
    };
    let account = agent::run(&config, &options, &stop_on_signals()?, |text| report.say(text))?;
    report.say(account.to_string().trim_end());
    report.end(&account, account.ledger.is_balanced())
}

/// Set by SIGINT, SIGTERM and SIGHUP (unless that is ignored from the start, as under nohup). The second signal ends the
/// process at once, the first in order. SIGUSR1 does nothing.
#[cfg(feature = "dpdk")]
fn stop_on_signals() -> std::io::Result<std::sync::Arc<std::sync::atomic::AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

    let stop = std::sync::Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        signal_hook::flag::register_conditional_shutdown(signal, 1, std::sync::Arc::clone(&stop))?;
        signal_hook::flag::register(signal, std::sync::Arc::clone(&stop))?;
    }
    signal_hook::flag::register(SIGUSR1, std::sync::Arc::default())?;
    Ok(stop)
}

/// Whether whoever started this process has it ignore a signal.
#[cfg(feature = "dpdk")]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Where a run's lines and its account go.
#[cfg(feature = "dpdk")]
struct Report<'a> {
    file: Option<&'a std::path::Path>,
    to_stdout: bool,
}

#[cfg(feature = "dpdk")]
impl<'a> Report<'a> {
    fn to(file: Option<&'a std::path::Path>) -> Result<Self, Box<dyn Error>> {
        let to_stdout = file == Some(std::path::Path::new("-"));
        if let Some(path) = file.filter(|_| !to_stdout) {
            // Better refused now than after the run.
            write_file(path, b"")?;
        }
        Ok(Self { file, to_stdout })
    }

    fn say(&self, text: &str) {
        if self.to_stdout {
            eprintln!("{text}");
        } else {
            let _ = print(&format!("{text}\n"));
        }
    }

    fn end(&self, account: &impl serde::Serialize, balanced: bool) -> Outcome {
        let json = serde_json::to_string_pretty(account)?;
        match self.file {
            Some(_) if self.to_stdout => drop(print(&format!("{json}\n"))?),
            Some(path) => write_file(path, json.as_bytes())?,
            None => {}
        }
        Ok(if balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(feature = "dpdk")]
fn write_file(path: &std::path::Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    std::fs::write(path, bytes).map_err(|error| {
        format!("--stats {}: {error}; name a file that can be written", path.display()).into()
    })
}
