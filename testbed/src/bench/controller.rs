//! Cost of a large fabric at its controller: the snapshots for all leaves, and one change for all of them.
//! The leaves are emulated: they use the controller's protocol but schedule nothing.
//!
//! A leaf schedules the tasks of one rack, a spine those of several racks. The controller is the process that stores
//! the desired state of all of them (pools, servers, workers) and sends each node its part, with a version. A snapshot
//! is the whole part of a leaf.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use wedjat::config::ControllerAddress;
use wedjat::controller::Command as ControllerCommand;
use wedjat::controller::generated as proto;
use wedjat::controller::generated::fabric_client::FabricClient;
use wedjat::controller::generated::follow_request::Message;
use wedjat::controller::{
    ControllerClient, Event, Fabric, Ids, Placement, Rack, assign_spines, choose_workers,
    create_file,
};

use crate::demo::leaf::find;

/// Arguments of `bench-controller`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Leaves, each with a connection of its own
    #[arg(long, default_value_t = 864, value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub leaves: u16,
    /// Pools, with exponentially distributed sizes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10000))]
    pub pools: u16,
    /// Servers per leaf
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=250))]
    pub servers: u16,
    /// Workers per server
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub workers: u16,
    /// Measured changes, each to all leaves
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub changes: u32,
    /// Seed for the pools' sizes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Limits: time until all leaves have the desired state (s), memory of the controller (MiB), and time until
/// all leaves have a change (ms).
const BARS: (f64, f64, f64) = (1.0, 1024.0, 100.0);
/// Longest wait for a leaf to reach a version.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Pool with a worker in every rack.
const COMMON: u16 = 60_000;

/// Results of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct ControllerFigures {
    /// Number of leaves.
    pub leaves: u16,
    /// Number of pools.
    pub pools: usize,
    /// Number of workers in pools.
    pub members: usize,
    /// Time from the controller's start to the first leaf's snapshot, in seconds. It includes the reading of
    /// the store.
    pub load_s: f64,
    /// Time until all other leaves, which connect at once, have their snapshots, in seconds.
    pub snapshot_s: f64,
    /// Peak memory of the controller, in MiB.
    pub memory_mib: f64,
    /// Median time from a command until all leaves have the change, in ms.
    pub change_ms: f64,
    /// Longest such time, in ms.
    pub change_worst_ms: f64,
    /// True if `snapshot_s`, `memory_mib` and `change_worst_ms` are within the limits.
    pub holds: bool,
}

/// Reason why there are no figures.
type Failure = Box<dyn Error>;

/// Measures and writes the report. Returns false if a result exceeds its limit.
///
/// # Errors
/// If the measurement fails.
pub fn report(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<bool, Failure> {
    let figures = measure(arguments)?;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&figures)?)?;
        return Ok(figures.holds);
    }
    let ControllerFigures { leaves, pools, members, load_s, snapshot_s, memory_mib, .. } = figures;
    writeln!(out, "{leaves} leaves, {pools} pools with {members} workers")?;
    writeln!(out, "store read          {load_s:9.3} s")?;
    writeln!(out, "all leaves updated  {snapshot_s:9.3} s    at most {} s", BARS.0)?;
    writeln!(out, "memory              {memory_mib:9.1} MiB  at most {} MiB", BARS.1)?;
    writeln!(out, "change, p50         {:9.3} ms   at most {} ms", figures.change_ms, BARS.2)?;
    writeln!(
        out,
        "change, max         {:9.3} ms   at most {} ms",
        figures.change_worst_ms, BARS.2
    )?;
    Ok(figures.holds)
}

/// Builds the desired state of a fabric of the requested size, with eight spines and one pool that has a worker in each
/// rack. Places the pools and links them to spines itself, since this is not measured. Unlike the controller, it links
/// all pools to the same two spines.
fn fabric(arguments: &Arguments) -> Result<Fabric, Failure> {
    let mut fabric = Fabric::default();
    // Applies events to the desired state, as the controller does for each command.
    for spine in 1..=8_u16 {
        fabric.apply(&Event::Spine {
            id: spine,
            ip: [10, 250, 0, spine as u8].into(),
            is_failed: false,
        });
    }
    for leaf in 0..arguments.leaves {
        let [high, low] = leaf.to_be_bytes();
        fabric.apply(&Event::Leaf {
            id: leaf,
            ip: [10, 128 + high, low, 1].into(),
            is_failed: false,
        });
        for server in 0..arguments.servers {
            let ip = [10, high, low, server as u8 + 1].into();
            fabric.apply(&Event::Server {
                leaf,
                ip,
                mac: None,
                registers: true,
                is_drained: false,
            });
            let ids = server * arguments.workers..(server + 1) * arguments.workers;
            fabric.apply(&Event::Workers { leaf, server: ip, ids: Ids(ids.collect()), speed: 1.0 });
        }
    }
    let size = usize::from(arguments.servers * arguments.workers);
    // `has` is the number of workers that the pool to be placed has there already.
    let rack = |leaf| Rack { leaf, free: size, has: 0, size };
    let mut racks: Vec<_> = (0..arguments.leaves).map(rack).collect();
    add_pool(&mut fabric, &mut racks, COMMON, usize::from(arguments.leaves))?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(arguments.seed);
    let free_workers = |racks: &[Rack]| racks.iter().map(|rack| rack.free).sum::<usize>();
    // All pools together take about 80% of the workers. Sizes are exponentially distributed.
    let mean = free_workers(&racks) as f64 * 0.8 / f64::from(arguments.pools);
    for id in 1..arguments.pools {
        let size = (-mean * (1.0 - random.random::<f64>()).ln()) as usize;
        let size = size.clamp(1, free_workers(&racks).max(1));
        add_pool(&mut fabric, &mut racks, id, size)?;
    }
    fabric.version = 1;
    Ok(fabric)
}

/// Adds a pool of `workers` workers. Its id selects one of the three placements. Links each of its leaves to spine 1 or
/// 2.
fn add_pool(
    fabric: &mut Fabric,
    racks: &mut [Rack],
    id: u16,
    workers: usize,
) -> Result<(), Failure> {
    let placement = [Placement::Spread, Placement::Pack, Placement::Size][usize::from(id) % 3];
    let text =
        format!("add-pool workers={workers} policy=horus spines=2 placement={}", placement.name());
    let ControllerCommand::AddPool { settings, .. } = text.parse()? else {
        return Err("no pool".into());
    };
    fabric.apply(&Event::Pool { id, settings });
    // Number of workers from each leaf, by the controller's function.
    let counts = choose_workers(racks, workers, placement);
    for (&leaf, &count) in &counts {
        let rack = &mut racks[usize::from(leaf)];
        // A rack assigns its workers in order.
        let first = (rack.size - rack.free) as u16;
        rack.free -= count;
        let ids = Ids((first..first + count as u16).collect());
        fabric.apply(&Event::Assign { leaf, ids, pool: Some(id) });
    }
    let leaves: Vec<u16> = counts.into_keys().collect();
    // All spines count as having equally many links, so `assign_spines` takes those with the lowest ids. The pool has
    // no link yet, and wants two spines.
    let spines = (1..=8).map(|spine| (spine, usize::from(id))).collect();
    for (leaf, spine) in assign_spines(&leaves, &Default::default(), 2, &spines) {
        fabric.apply(&Event::Link { pool: id, leaf, spine: Some(spine) });
    }
    Ok(())
}

/// Controller process, killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Starts `wedjat controller` on the store in `folder`.
    fn start(folder: &Path) -> Result<Self, Failure> {
        let (store, file) = (folder.join("fabric"), folder.join("controller.toml"));
        std::fs::write(&file, format!("[controller]\nid = 1\nstore = '{}'\n", store.display()))?;
        // The program `wedjat`.
        let mut command = Command::new(find()?);
        command.args(["controller", "--quiet", "--config"]).arg(file).stdin(Stdio::null());
        Ok(Self(command.spawn()?))
    }

    /// Returns the peak memory of the process, in MiB.
    fn memory_mib(&self) -> Result<f64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.ok_or("/proc does not state the process's memory")? / 1024.0)
    }
}

/// Leaf that only acknowledges the versions it receives. A task has its connection, and this handle waits for versions.
struct EmulatedLeaf {
    /// Newest version received.
    version: watch::Receiver<u64>,
}

impl EmulatedLeaf {
    /// Connects leaf `leaf` to the controller at `socket`, and connects again whenever the connection fails or ends.
    fn follow(tasks: &Handle, socket: &Path, leaf: u16) -> Self {
        let (newest, version) = watch::channel(0);
        let address = format!("unix:{}", socket.display());
        tasks.spawn(async move {
            // Ends with the leaf, which has the receiving half.
            while !newest.is_closed() {
                // Fails until the controller runs and leads; tries again.
                let _ = follow(&address, leaf, &newest).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { version }
    }

    /// Waits until the leaf has received `version`.
    async fn wait_for(&mut self, version: u64) -> Result<(), Failure> {
        let reached = self.version.wait_for(|newest| *newest >= version);
        tokio::time::timeout(TIMEOUT, reached)
            .await
            .map_err(|_| "a leaf did not receive the new version in time")??;
        Ok(())
    }
}

/// Follows the controller as leaf `leaf` until the connection ends. Acknowledges each version and stores it
/// in `newest`.
async fn follow(controller: &str, leaf: u16, newest: &watch::Sender<u64>) -> Result<(), Failure> {
    let channel = Endpoint::from_shared(controller.to_owned())?.connect().await?;
    let mut client = FabricClient::new(channel).max_decoding_message_size(64 << 20);
    let (requests, request_stream) = tokio::sync::mpsc::channel(4);
    let kind = proto::Kind::Leaf.into();
    // A leaf names no address, and has no term and version before its first snapshot.
    let (address, term, version) = (String::new(), 0, 0);
    // The controller tells processes apart by the instance.
    let (id, instance) = (leaf.into(), u64::from(leaf) + 1);
    let hello = proto::Hello { protocol: 1, kind, id, address, instance, term, version };
    requests.send(proto::FollowRequest { message: Some(Message::Hello(hello)) }).await?;
    let mut updates = client.follow(ReceiverStream::new(request_stream)).await?.into_inner();
    while let Some(message) = updates.message().await? {
        let version = message.version;
        let _ = newest.send(version);
        let acknowledge = Message::Acknowledge(proto::Acknowledge { version });
        requests.send(proto::FollowRequest { message: Some(acknowledge) }).await?;
    }
    Ok(())
}

/// Starts a controller with a large fabric, connects the emulated leaves, and measures snapshots and changes.
fn measure(arguments: &Arguments) -> Result<ControllerFigures, Failure> {
    let folder = tempfile::tempdir()?;
    let desired = fabric(arguments)?;
    let contradictions = desired.contradictions();
    if !contradictions.is_empty() {
        return Err(format!("the fabric is inconsistent: {}", contradictions.join("; ")).into());
    }
    let (version, pools) = (desired.version, desired.pools.len());
    let members = desired.pools.keys().map(|&pool| desired.members(pool)).sum();
    // Writes the controller's store.
    create_file(&folder.path().join("fabric"), &desired)?;
    drop(desired);
    let socket = folder.path().join("fabric.ctl");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = runtime.handle().clone();
    // The thread ends with the process.
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let began = Instant::now();
    let controller = Process::start(folder.path())?;
    let mut leaves = vec![EmulatedLeaf::follow(&tasks, &socket, 0)];
    tasks.block_on(leaves[0].wait_for(version))?;
    let load_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    leaves.extend((1..arguments.leaves).map(|leaf| EmulatedLeaf::follow(&tasks, &socket, leaf)));
    let wait_for_all = |leaves: &mut Vec<EmulatedLeaf>, version| {
        tasks.block_on(async {
            for leaf in leaves {
                leaf.wait_for(version).await?;
            }
            Ok::<_, Failure>(())
        })
    };
    wait_for_all(&mut leaves, version)?;
    let snapshot_s = began.elapsed().as_secs_f64();
    let mut operator = ControllerClient::open(&ControllerAddress::Socket(socket), None)?;
    let mut times_ms = Vec::new();
    for change in 0..arguments.changes {
        let command = format!("set-queue pool={COMMON} queue={}", 1000 + change).parse()?;
        let began = Instant::now();
        let version = operator.command(&command, None)?.version;
        wait_for_all(&mut leaves, version)?;
        times_ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times_ms.sort_by(f64::total_cmp);
    let (change_ms, change_worst_ms) = (times_ms[times_ms.len() / 2], times_ms[times_ms.len() - 1]);
    let memory_mib = controller.memory_mib()?;
    let holds = snapshot_s <= BARS.0 && memory_mib <= BARS.1 && change_worst_ms <= BARS.2;
    let leaves = arguments.leaves;
    Ok(ControllerFigures {
        leaves,
        pools,
        members,
        load_s,
        snapshot_s,
        memory_mib,
        change_ms,
        change_worst_ms,
        holds,
    })
}
