//! `wedjat ctl`: changes and watches a running node, or a fabric: the spines, leaves and agents of a controller. The
//! comments of the arguments are the help texts.

mod fabric;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wedjat::admin::generated::{Pool, ShowReply, StartTapRequest, Tap, Worker};
use wedjat::admin::packets;
use wedjat::admin::{Access, Connection};
use wedjat::control::Change;
use wedjat::quantity;
use wedjat::state::table::AutoSnapshot;

use super::node::state_file;
use super::{Outcome, print};

/// Help text below the options.
pub const EXAMPLE: &str = "Examples:
  wedjat ctl workers
  wedjat ctl --node /dev/shm/wedjat-leaf1 drain 5 --wait
  wedjat ctl add-server 10.0.2.13 && wedjat ctl add-workers 8-11 --server 10.0.2.13 --pool 1
  wedjat ctl pool policy 1 'jbsq(k=3)' --json
  wedjat ctl tap start --file leaf.pcap --snaplen 128 && sleep 1 && wedjat ctl tap stop
  wedjat ctl --controller https://controller1:7070 --ca ca.pem --certificate op.pem --key op.key pool create \
      --workers 64 --policy horus --spread --spines 2
  WEDJAT_CONTROLLER=/var/lib/wedjat/fabric wedjat ctl fail-leaf 7
A change of a node is answered when all its cores decide by it, one of a fabric when the controller's store keeps it, with the
new version. Exit status: 0 when it is done, 1 when it was refused.";

/// Help text below the options of `tap start`.
const TAP_HELP: &str = "Example:
  wedjat ctl tap start --file leaf.pcap --snaplen 128
A forwarded packet is written twice: as received and as sent. Each core buffers 8 MiB; `tap stop` counts the packets beyond that.";

/// Reason why other commands than changes refuse --if-version.
const NO_VERSION: &str = "--if-version: this command checks no version; leave it out";
/// Interval between checks of draining workers.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Arguments of `wedjat ctl`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// State file of the node [default: that of WEDJAT_STATE, else of the only running node whose state file
    /// is in /dev/shm]
    #[arg(long, global = true, value_name = "STATEFILE", conflicts_with = "connect")]
    node: Option<PathBuf>,
    /// Connect over TCP, as `[control]` of the node's configuration allows: https://leaf1:7070 or
    /// http://127.0.0.1:7070
    #[arg(long, global = true, value_name = "URL")]
    connect: Option<String>,
    /// Connect to the controller of a fabric: its socket, its store's file, or https://controller1:7070
    /// [default: that of WEDJAT_CONTROLLER for commands that need a controller]
    #[arg(long, global = true, value_name = "ADDRESS", conflicts_with_all = ["node", "connect"])]
    controller: Option<String>,
    /// For https: authority that signs the nodes' certificates, in PEM
    #[arg(long, global = true, value_name = "FILE", requires_all = ["certificate", "key"])]
    ca: Option<PathBuf>,
    /// For https: certificate of this client, in PEM
    #[arg(long, global = true, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// For https: private key of this client, in PEM
    #[arg(long, global = true, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Change nothing unless the node has this version
    #[arg(long, global = true, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Command [default: show]
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the version, pools, servers, cores and ports
    Show,
    /// Show all workers with their tasks
    Workers,
    /// Give workers no new tasks; they stay and answer those that they have
    Drain {
        /// Ids of the workers, for example 5 or 0-3,8
        workers: String,
        /// Wait until the workers have answered all their tasks, and name the lost, slow and unreported ones
        #[arg(long)]
        wait: bool,
        /// Maximum time to wait
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
        timeout: Duration,
    },
    /// Give drained workers tasks again
    Undrain {
        /// Ids of the workers
        workers: String,
    },
    /// Show a fabric, and the nodes that follow its controller
    Topology,
    /// Add a spine to a fabric
    AddSpine {
        /// Id of the spine
        id: u16,
        /// Address of the spine towards leaves
        ip: String,
    },
    /// Remove a spine from a fabric; its racks are linked to other spines
    RemoveSpine {
        /// Id of the spine
        id: u16,
    },
    /// Mark a spine as down; its racks are linked to other spines
    FailSpine {
        /// Id of the spine
        id: u16,
    },
    /// Mark a spine as up again
    RestoreSpine {
        /// Id of the spine
        id: u16,
    },
    /// Add a leaf to a fabric, with an empty rack
    AddLeaf {
        /// Id of the leaf
        id: u16,
        /// Address of the leaf towards spines
        ip: String,
    },
    /// Remove a leaf and its rack from a fabric; pools get workers elsewhere
    RemoveLeaf {
        /// Id of the leaf
        id: u16,
    },
    /// Mark a leaf as down; pools get workers elsewhere
    FailLeaf {
        /// Id of the leaf
        id: u16,
        /// Leaf that takes over its servers with their workers
        #[arg(long, value_name = "LEAF")]
        to: Option<u16>,
    },
    /// Mark a leaf as up again
    RestoreLeaf {
        /// Id of the leaf
        id: u16,
    },
    /// Give the workers of a fabric's server no new tasks, and let no pool take them
    DrainServer {
        /// Address of the server
        ip: String,
    },
    /// Give the workers of a drained server tasks again
    UndrainServer {
        /// Address of the server
        ip: String,
    },
    /// Add a server for workers; at a leaf, or with --leaf to a fabric
    AddServer {
        /// Address of the server
        ip: String,
        /// In a fabric: leaf of the server
        #[arg(long, requires = "workers")]
        leaf: Option<u16>,
        /// In a fabric: ids of its workers, for example 0-31
        #[arg(long, requires = "leaf")]
        workers: Option<String>,
        /// In a fabric: relative speed of each worker
        #[arg(long, requires = "leaf")]
        speed: Option<String>,
        /// MAC address of the server [default: found by ARP]
        #[arg(long)]
        mac: Option<String>,
        /// Let its workers register themselves
        #[arg(long)]
        registers: bool,
    },
    /// Remove a server after its workers have left
    RemoveServer {
        /// Address of the server
        ip: String,
    },
    /// Change the address of a server
    MoveServer {
        /// Current address
        ip: String,
        /// New address
        to: String,
        /// MAC address at the new address [default: found by ARP]
        #[arg(long)]
        mac: Option<String>,
    },
    /// Add workers
    AddWorkers {
        /// Ids of the workers
        workers: String,
        /// Pool of the workers
        #[arg(long)]
        pool: String,
        /// Server of the workers; none at an agent
        #[arg(long)]
        server: Option<String>,
        /// Relative speed of each worker
        #[arg(long)]
        speed: Option<String>,
    },
    /// Remove workers after they have answered their tasks
    RemoveWorkers {
        /// Ids of the workers; at a spine, of leaves
        workers: String,
        /// Remove them only from this pool: a spine's leaves may be in several pools
        #[arg(long)]
        pool: Option<String>,
    },
    /// Change pools
    Pool {
        /// Change pools of the agent on a leaf's own core, not of the leaf
        #[arg(long, global = true)]
        agent: bool,
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Set the speed of workers
    Speed {
        /// Ids of the workers
        workers: String,
        /// Speed, relative to other workers
        speed: String,
        /// Set it only in this pool: a spine's leaves may be in several pools
        #[arg(long)]
        pool: Option<String>,
    },
    /// Show or set the level of the node's log
    Log {
        /// Level: off, error, warn, info, debug or trace; at most that of RUST_LOG or --quiet at the start
        level: Option<String>,
    },
    /// Record packets while the node runs
    #[command(subcommand)]
    Tap(TapCommand),
    /// Make the node read its configuration again and apply all differences, or none
    Reload {
        /// Only show the changes
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Subcommand)]
enum TapCommand {
    /// Start recording received and sent packets into a new pcap file on the node's host
    #[command(after_help = TAP_HELP)]
    Start {
        /// Path of the file; with --connect an absolute path
        #[arg(long, value_name = "PATH")]
        file: PathBuf,
        /// Record only this port, by index or device [default: all]
        #[arg(long, value_name = "NAME|INDEX")]
        port: Option<String>,
        /// Keep this number of bytes of each packet [default: all]
        #[arg(long, value_name = "BYTES")]
        snaplen: Option<u32>,
        /// Stop after this number of packets
        #[arg(long, value_name = "COUNT")]
        packets: Option<u64>,
    },
    /// Stop recording, and show the numbers of recorded and lost packets
    Stop,
}

#[derive(Debug, Subcommand)]
enum PoolCommand {
    /// Create a pool: at a node without workers, in a fabric with --workers
    Create {
        /// Id of the pool; in a fabric [default: first free id]
        id: Option<String>,
        #[command(flatten)]
        fabric: fabric::PoolArguments,
        /// Policy, as `wedjat policies` lists them
        #[arg(long)]
        policy: String,
        /// Maximum number of queued tasks on each core
        #[arg(long)]
        queue: Option<String>,
        /// Treatment of tasks that exceed the queue: drop or refuse
        #[arg(long)]
        overflow: Option<String>,
        /// Expect other schedulers to send tasks to its workers too
        #[arg(long)]
        shared_workers: bool,
        /// File of the pool's key on the node's host; with --connect an absolute path
        #[arg(long, value_name = "PATH")]
        key_file: Option<PathBuf>,
    },
    /// Delete a pool: it takes no new tasks, and goes after its tasks are answered
    Delete {
        /// Id of the pool
        id: String,
    },
    /// Change the policy of a pool
    Policy {
        /// Id of the pool
        id: String,
        /// New policy
        policy: String,
    },
    /// Change the number of workers of a fabric's pool
    Resize {
        /// Id of the pool
        id: String,
        /// Desired number of workers
        workers: usize,
    },
    /// Set the service address of a pool
    Service {
        /// Id of the pool
        id: String,
        /// Service address [default: the node's own]
        ip: Option<String>,
    },
    /// Make a leaf send signals of a pool to a spine
    Link {
        /// Id of the pool
        id: String,
        /// Id of the spine
        #[arg(long)]
        spine: String,
        /// Address of the spine
        #[arg(long)]
        ip: String,
        /// Rules of the signals, which the policy of the spine determines: horus, every-reply or none
        #[arg(long)]
        signals: Option<String>,
    },
    /// Make a leaf stop sending signals of a pool to its spine
    Unlink {
        /// Id of the pool
        id: String,
    },
    /// Change the queue of a pool
    Queue {
        /// Id of the pool
        id: String,
        /// Maximum number of queued tasks on each core
        queue: String,
        /// Treatment of tasks that exceed the queue: drop or refuse
        #[arg(long)]
        overflow: Option<String>,
    },
}

impl Arguments {
    /// Returns the command, or the default one.
    fn command(&self) -> &Command {
        self.command.as_ref().unwrap_or(&Command::Show)
    }
}

/// Sends the command to the controller or to the node, and prints the answer.
pub fn run(arguments: &Arguments) -> Outcome {
    if let Some(request) = fabric::request_of(arguments.command(), arguments.controller.is_some()) {
        return fabric::run(arguments, request?);
    }
    // An invalid change must fail before a connection is made.
    let mut change = change(arguments.command())?;
    if let (Some(key_file), Some(path)) =
        (change.as_mut().and_then(key_file_of), key_file_argument(arguments))
    {
        *key_file = Some(path_on_node(arguments, path)?);
    }
    if change.is_none() && arguments.if_version.is_some() {
        return Err(NO_VERSION.into());
    }
    let mut node = Connection::open(&access(arguments)?)?;
    if let Some(change) = change {
        let version = node.change(std::slice::from_ref(&change), arguments.if_version)?;
        return match arguments.command() {
            Command::Drain { wait: true, timeout, .. } => {
                wait_for_drain(arguments, &mut node, &change, version, *timeout)
            }
            _ => print_result(
                arguments,
                &format!("version {version}: {change}"),
                &json!({ "version": version }),
            ),
        };
    }
    match arguments.command() {
        Command::Log { level } => {
            let level = node.log(level.as_deref().unwrap_or_default())?;
            print_result(
                arguments,
                &format!("messages of level {level} and above are logged"),
                &json!({ "level": level }),
            )
        }
        Command::Reload { dry_run } => {
            let reply = node.reload(*dry_run)?;
            let mut text = String::new();
            reply.changes.iter().for_each(|change| text.push_str(&format!("{change}\n")));
            let outcome = match (reply.changes.is_empty(), dry_run) {
                (true, _) => "the file has nothing else",
                (false, true) => "would be changed",
                (false, false) => "changed",
            };
            let _ = write!(text, "version {}: {outcome}", reply.version);
            print_result(arguments, &text, &serde_json::to_value(&reply)?)
        }
        Command::Tap(command) => tap(arguments, command, &mut node),
        Command::Workers => {
            let reply = node.show()?;
            print_result(
                arguments,
                &workers(&reply),
                &json!({ "version": reply.version, "pools": reply.pools }),
            )
        }
        _ => {
            let reply = node.show()?;
            print_result(arguments, &show(&reply), &serde_json::to_value(&reply)?)
        }
    }
}

/// Prints the text, or the JSON if requested.
fn print_result(arguments: &Arguments, text: &str, json: &Value) -> Outcome {
    if arguments.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(json)?));
    }
    print(&format!("{text}\n"))
}

/// Returns the access to the node that the arguments name.
fn access(arguments: &Arguments) -> Result<Access, Box<dyn std::error::Error>> {
    let files = [&arguments.ca, &arguments.certificate, &arguments.key];
    access_to(arguments.node.as_deref(), arguments.connect.as_deref(), files)
}

/// Returns the access to a node: over TCP if there is a URL, else through the socket beside its state file.
/// `files` are the authority's certificate, this client's certificate and its private key.
///
/// # Errors
/// If no node is named and the number of running nodes is not one, or files are missing.
pub fn access_to(
    node: Option<&Path>,
    url: Option<&str>,
    files: [&Option<PathBuf>; 3],
) -> Result<Access, Box<dyn std::error::Error>> {
    let Some(url) = url else {
        return Ok(Access::State(state_file(node.map(Path::to_owned))?));
    };
    let tls = match files {
        [Some(ca), Some(certificate), Some(key)] => {
            Some([ca.clone(), certificate.clone(), key.clone()])
        }
        _ if url.starts_with("https:") => {
            return Err("https needs --ca, --certificate and --key".into());
        }
        _ => None,
    };
    Ok(Access::Tcp { url: url.to_owned(), tls })
}

/// Formats a key of a change, as ` key=value`; an empty text without a value.
fn with<T: Display>(key: &str, value: Option<T>) -> String {
    value.map_or_else(String::new, |value| format!(" {key}={value}"))
}

/// Returns the change of a node that a command requests; `None` for other commands. Formats the change as text and
/// parses it, so that one parser checks the changes of all sources. `run` adds the key file of a new pool.
fn change(command: &Command) -> Result<Option<Change>, Box<dyn std::error::Error>> {
    let flag = |is_set: &bool| is_set.then_some(true);
    let text = match command {
        Command::Drain { workers, .. } => format!("drain workers={workers}"),
        Command::Undrain { workers } => format!("undrain workers={workers}"),
        Command::AddServer { ip, mac, registers, .. } => {
            let registers = with("registers", flag(registers));
            format!("add-server ip={ip}{}{registers}", with("mac", mac.as_ref()))
        }
        Command::RemoveServer { ip } => format!("remove-server ip={ip}"),
        Command::MoveServer { ip, to, mac } => {
            format!("move-server ip={ip} to={to}{}", with("mac", mac.as_ref()))
        }
        Command::AddWorkers { workers, pool, server, speed } => {
            let (server, speed) = (with("server", server.as_ref()), with("speed", speed.as_ref()));
            format!("add-workers{server} pool={pool} workers={workers}{speed}")
        }
        Command::RemoveWorkers { workers, pool } => {
            format!("remove-workers{} workers={workers}", with("pool", pool.as_ref()))
        }
        Command::Pool { agent, command } => {
            format!("{}{}", if *agent { "agent " } else { "" }, change_of_pool(command))
        }
        Command::Speed { workers, speed, pool } => {
            format!("set-speed{} workers={workers} speed={speed}", with("pool", pool.as_ref()))
        }
        // Queries, taps, logs and reloads. `fabric::request_of` has taken the commands of a fabric.
        _ => return Ok(None),
    };
    Ok(Some(text.parse()?))
}

/// Returns the text of a change of a node's pool, without the key file of a new one.
fn change_of_pool(command: &PoolCommand) -> String {
    match command {
        PoolCommand::Create { id, policy, queue, overflow, shared_workers, .. } => {
            let (queue, overflow) =
                (with("queue", queue.as_ref()), with("overflow", overflow.as_ref()));
            let shared = with("shared-workers", shared_workers.then_some(true));
            let id = with("id", id.as_ref());
            format!("add-pool{id} policy={policy}{queue}{overflow}{shared}")
        }
        // Never reached: `fabric::request_of` sends every resize to a controller.
        PoolCommand::Resize { id, workers } => format!("resize-pool id={id} workers={workers}"),
        PoolCommand::Delete { id } => format!("remove-pool id={id}"),
        PoolCommand::Policy { id, policy } => format!("set-policy pool={id} policy={policy}"),
        PoolCommand::Queue { id, queue, overflow } => {
            format!("set-queue pool={id} queue={queue}{}", with("overflow", overflow.as_ref()))
        }
        PoolCommand::Service { id, ip } => {
            format!("set-service pool={id}{}", with("ip", ip.as_ref()))
        }
        PoolCommand::Link { id, spine, ip, signals } => {
            let signals = with("signals", signals.as_ref());
            format!("link-pool pool={id} spine={spine} ip={ip}{signals}")
        }
        PoolCommand::Unlink { id } => format!("unlink-pool pool={id}"),
    }
}

/// Returns a path as the node needs it. A local node may run in another folder, so its path becomes absolute.
/// A path on another host stays unchanged.
fn path_on_node(arguments: &Arguments, path: &Path) -> std::io::Result<PathBuf> {
    if arguments.connect.is_none() { std::path::absolute(path) } else { Ok(path.to_owned()) }
}

/// Returns the field for the key file in a change that creates a pool; `None` for other changes.
fn key_file_of(change: &mut Change) -> Option<&mut Option<PathBuf>> {
    match change {
        Change::AddPool { key_file, .. } => Some(key_file),
        Change::OfAgent(change) => key_file_of(change),
        _ => None,
    }
}

/// Returns the argument `--key-file` of `pool create`, as the user wrote it.
fn key_file_argument(arguments: &Arguments) -> Option<&Path> {
    match arguments.command() {
        Command::Pool { command: PoolCommand::Create { key_file, .. }, .. } => key_file.as_deref(),
        _ => None,
    }
}

/// Starts or stops a tap.
fn tap(arguments: &Arguments, command: &TapCommand, node: &mut Connection) -> Outcome {
    let (tap, text) = match command {
        TapCommand::Start { file, port, snaplen, packets } => {
            let file = path_on_node(arguments, file)?;
            let file = file.to_str().ok_or("--file: the path is not UTF-8")?.to_owned();
            let (port, snaplen, packets) = (port.clone().unwrap_or_default(), *snaplen, *packets);
            let tap = node.start_tap(StartTapRequest { file, port, snaplen, packets })?;
            let text = format!("{}: records {}", tap.file, tap.ports.join(", "));
            (tap, text)
        }
        TapCommand::Stop => {
            let tap = node.stop_tap()?;
            let ended = if tap.ended { "; it had ended by itself" } else { "" };
            let text = format!("{}: {}, {} lost{ended}", tap.file, packets(tap.written), tap.lost);
            (tap, text)
        }
    };
    print_result(arguments, &text, &serde_json::to_value(&tap)?)
}

/// Waits until drained workers have answered all their tasks. Fails after `timeout`.
fn wait_for_drain(
    arguments: &Arguments,
    node: &mut Connection,
    change: &Change,
    version: u64,
    timeout: Duration,
) -> Outcome {
    let Change::Drain { workers } = change else { return Err("no drain".into()) };
    let began = Instant::now();
    // The workers at the first look. Losses count from then on.
    let mut before = None;
    loop {
        let reply = node.show()?;
        let drained_workers = workers_of_pools(reply.pools, workers);
        let before = before.get_or_insert_with(|| drained_workers.clone());
        let report = DrainReport::of(before, &drained_workers);
        let seconds = began.elapsed().as_secs_f64();
        if report.unanswered().next().is_none()
            && drained_workers.iter().all(|(_, one)| one.drained)
        {
            let text = format!("version {version}: {change}; empty after {seconds:.3} s{report}");
            let lost = report.lost();
            let reply = json!({ "version": version, "seconds": seconds, "lost": lost });
            return print_result(arguments, &text, &reply);
        }
        if began.elapsed() > timeout {
            let tasks: u64 = report.unanswered().map(|one| one.reported + one.unreported).sum();
            let text = match tasks {
                0 => format!("they may still receive tasks after {seconds:.1} s"),
                _ => format!("{} unanswered after {seconds:.1} s", quantity(tasks, "task")),
            };
            let text = format!("{text}{report}");
            return Err(format!("{text}; the workers stay drained, version {version}").into());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Returns the workers with these ids, each with its pool. At a spine, a leaf may be in several pools.
fn workers_of_pools(pools: Vec<Pool>, ids: &[u16]) -> Vec<(u32, Worker)> {
    let of_pool = |pool: Pool| pool.workers.into_iter().map(move |worker| (pool.id, worker));
    let all = pools.into_iter().flat_map(of_pool);
    all.filter(|(_, worker)| ids.iter().any(|&id| u32::from(id) == worker.id)).collect()
}

/// Unanswered and lost tasks of a drained worker. They tell a slow worker from one that lost its tasks.
#[derive(Debug, PartialEq, Eq)]
struct RemainingTasks {
    pool: u32,
    worker: u32,
    /// Number of tasks written off as lost since the first look after the drain.
    lost: u64,
    /// Number of tasks in the worker's queue by its last report. Such a worker is slow.
    reported: u64,
    /// Number of tasks not in its last report: lost, or sent after that report.
    unreported: u64,
}

/// Remaining and lost tasks of all drained workers that have any.
struct DrainReport(Vec<RemainingTasks>);

impl DrainReport {
    /// Compares the workers at the first look after the drain with those now. Each is given with its pool.
    fn of(before: &[(u32, Worker)], now: &[(u32, Worker)]) -> Self {
        let remaining_of = |(pool, now): &(u32, Worker)| {
            let is_same = |(other, before): &&(u32, Worker)| other == pool && before.id == now.id;
            let (_, before) = before.iter().find(is_same)?;
            // `outstanding` counts the unanswered tasks, of which the last report named `load`. `held` is the exact
            // number of tasks of a worker of the agent on the leaf's core, and 0 for other workers.
            let tasks = now.held.max(now.outstanding.max(0).cast_unsigned());
            let reported = tasks.min(now.held.max(now.load.max(0.0).ceil() as u64));
            let (lost, unreported) = (now.lost.saturating_sub(before.lost), tasks - reported);
            Some(RemainingTasks { pool: *pool, worker: now.id, lost, reported, unreported })
        };
        let all = now.iter().filter_map(remaining_of);
        Self(all.filter(|one| one.lost + one.reported + one.unreported > 0).collect())
    }

    /// Returns the number of lost tasks of each worker, in all its pools.
    fn lost(&self) -> BTreeMap<u32, u64> {
        let mut lost = BTreeMap::new();
        for one in &self.0 {
            *lost.entry(one.worker).or_default() += one.lost;
        }
        lost
    }

    /// Iterates over the workers with unanswered tasks. Leaves out workers with only lost tasks, which need no wait.
    fn unanswered(&self) -> impl Iterator<Item = &RemainingTasks> {
        self.0.iter().filter(|one| one.reported + one.unreported > 0)
    }
}

impl Display for DrainReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for &RemainingTasks { pool, worker, lost, reported, unreported } in &self.0 {
            let kinds = [
                (lost, "lost (written off)"),
                (reported, "slow (in its queue by its last report)"),
                (unreported, "lost, or sent after its last report"),
            ];
            let kinds = kinds.iter().filter(|(tasks, _)| *tasks > 0);
            let kinds: Vec<_> = kinds.map(|(tasks, kind)| format!("{tasks} {kind}")).collect();
            let is_same = |one: &&RemainingTasks| one.worker == worker;
            let has_several_pools = self.0.iter().filter(is_same).count() > 1;
            let of_pool =
                if has_several_pools { format!(" of pool {pool}") } else { String::new() };
            write!(f, "; worker {worker}{of_pool}: {}", kinds.join(", "))?;
        }
        Ok(())
    }
}

/// Formats the state of a node.
fn show(reply: &ShowReply) -> String {
    let mut out =
        format!("{} {}  pid {}  version {}", reply.role, reply.node, reply.pid, reply.version);
    if reply.acknowledged < reply.version {
        let _ = write!(out, " (cores decide by {})", reply.acknowledged);
    }
    for pool in &reply.pools {
        let active = pool.workers.iter().filter(|one| !one.drained && !one.leaving).count();
        let _ = write!(
            out,
            "\npool {}  policy {}  queue {} ({})  {} wait  {active} of {} active{}",
            pool.id,
            pool.policy,
            pool.queue,
            pool.overflow,
            pool.waiting,
            quantity(pool.workers.len(), "worker"),
            leaving(pool.leaving),
        );
        if let Some(auto) = pool.auto.clone() {
            let _ = write!(out, "\n  {}", AutoSnapshot::from(auto).text());
        }
    }
    for server in &reply.servers {
        let mac = if server.mac.is_empty() { String::new() } else { format!("  {}", server.mac) };
        let registers = if server.registers { "  registers" } else { "" };
        let _ = write!(out, "\nserver {}{mac}{registers}{}", server.ip, leaving(server.leaving));
    }
    for (index, core) in reply.cores.iter().enumerate() {
        let count = |name| core.counters.get(name).copied().unwrap_or_default();
        let dropped: u64 = core.drops.values().sum();
        let _ = write!(
            out,
            "\ncore {index}  received {}  scheduled {}  replies {}  dropped {dropped}",
            count("rx_packets"),
            count("scheduled"),
            count("replies") + count("completions"),
        );
    }
    for (index, port) in reply.ports.iter().enumerate() {
        let lost = port.rx_missed + port.rx_no_mbuf + port.rx_errors + port.tx_errors;
        let _ = write!(out, "\nport {index}  {} ({})  lost {lost}", port.device, port.driver);
    }
    if let Some(Tap { file, ports, written, lost, .. }) = &reply.tap {
        let ports = ports.join(", ");
        let _ = write!(
            out,
            "\ntap  {file}  records {ports}  {}, {lost} lost",
            quantity(*written, "packet")
        );
    }
    out
}

/// Returns the mark of a pool or server that is being removed; an empty text for others.
const fn leaving(is_leaving: bool) -> &'static str {
    if is_leaving { "  leaving" } else { "" }
}

/// Formats the table of workers.
fn workers(reply: &ShowReply) -> String {
    let mut out =
        "worker   pool  server           speed  load  outstanding  lost  presence      state"
            .to_owned();
    let row = |pool: &Pool, one: &Worker| {
        let state = match one {
            Worker { leaving: true, .. } => "leaving",
            Worker { drained: true, .. } => "drained",
            Worker { presence, .. } if presence == "silent" || presence == "unreachable" => "dead",
            Worker { presence, .. } if presence == "unregistered" => "not started",
            Worker { unresponsive: true, .. } => "no replies",
            _ => "active",
        };
        format!(
            "\n{:6}  {:5}  {:15}  {:5}  {:4}  {:11}  {:4}  {:12}  {state}",
            one.id,
            pool.id,
            one.server,
            one.speed,
            one.load,
            one.outstanding,
            one.lost,
            one.presence
        )
    };
    for pool in &reply.pools {
        pool.workers.iter().for_each(|one| out.push_str(&row(pool, one)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_tells_lost_tasks_from_slow_ones() {
        let worker = |id, outstanding, load, lost| {
            (7, Worker { id, outstanding, load, lost, drained: true, ..Worker::default() })
        };
        let before = [worker(1, 4, 4.0, 7), worker(2, 3, 0.0, 0), worker(3, 2, 2.0, 0)];
        // Two tasks of the first worker are lost, and one is still in its queue. The second never reported
        // three tasks. The third is done.
        let now = [worker(1, 1, 1.0, 9), worker(2, 3, 0.0, 0), worker(3, 0, 0.0, 0)];
        let remains = DrainReport::of(&before, &now);
        let expected = [
            RemainingTasks { pool: 7, worker: 1, lost: 2, reported: 1, unreported: 0 },
            RemainingTasks { pool: 7, worker: 2, lost: 0, reported: 0, unreported: 3 },
        ];
        assert_eq!(remains.0, expected);
        assert_eq!(
            remains.to_string(),
            "; worker 1: 2 lost (written off), 1 slow (in its queue by its last report); \
             worker 2: 3 lost, or sent after its last report"
        );
        // Tasks held by a worker of this host count as reported, whatever its report says.
        let here = [(7, Worker { held: 2, ..worker(2, 0, 0.0, 0).1 })];
        assert_eq!(DrainReport::of(&before, &here).0[0].reported, 2);
        let empty = DrainReport::of(&before, &[worker(1, 0, 0.0, 8)]);
        assert_eq!((empty.unanswered().count(), empty.0[0].lost), (0, 1));
    }

    #[test]
    fn drain_tells_the_pools_of_a_leaf_apart() {
        let worker = |lost| Worker { id: 3, lost, drained: true, ..Worker::default() };
        let pool = |id, lost| Pool { id, workers: vec![worker(lost)], ..Pool::default() };
        let before = workers_of_pools(vec![pool(1, 9), pool(2, 1)], &[3]);
        let now = workers_of_pools(vec![pool(1, 10), pool(2, 3)], &[3]);
        assert!(workers_of_pools(vec![pool(1, 0)], &[4]).is_empty());
        let report = DrainReport::of(&before, &now);
        assert_eq!(report.lost(), BTreeMap::from([(3, 3)]));
        assert_eq!(
            report.to_string(),
            "; worker 3 of pool 1: 1 lost (written off); worker 3 of pool 2: 2 lost (written off)"
        );
    }
}
