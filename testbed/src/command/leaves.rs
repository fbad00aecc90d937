//! Leaf processes in lockstep, one after another: the conductor, which is this process, emulates everything
//! around the leaf and advances its clock from turn to turn. In a turn, the leaf polls until no packet moves. Two
//! memif devices connect each leaf to this process. A leaf is the scheduler process of a rack. In lockstep, its clock
//! stops while the conductor works.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use wedjat::clock::{Conductor, Node};
use wedjat::state::table::Role;
use wedjat::wire::ether::Mac;
use wedjat_pktgen::process;
use wedjat_testbed::demo::{NodeProcess, leaf};
use wedjat_testbed::lockstep::leaf_addresses::{
    CLIENTS_DEVICE, LeafAddresses, QUEUE, WORKERS_DEVICE,
};
use wedjat_testbed::lockstep::{self, Clients, Process, Workers};
use wedjat_testbed::sim::outcome::Outcome;
use wedjat_testbed::sim::rack::Config;

use super::ports::{Device, Eal, Environment, PoolHandle, QueuePort};
use super::{Failure, devices};

/// Maximum run time of a leaf process, for the case that no process is left to end it. (It ends much earlier,
/// because its clock then has no conductor.)
const LEAF_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Longest wait for the leaf to join. It may be long, because an exited leaf is detected at once.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Number of this process's packet buffers for tasks at the workers: as many as the leaf can queue.
const OUTSTANDING: u32 = QUEUE as u32;

/// CPUs that the user chose; `None` for the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement {
    /// CPU of the leaf's dispatcher.
    pub leaf: Option<usize>,
    /// CPU of the conductor.
    pub conductor: Option<usize>,
}

/// Devices, EAL and settings shared by all runs, because EAL can start only once per process.
pub struct Leaves {
    // Drop order: ports before their devices, devices before the pool and EAL.
    /// Ports to the clients and to the workers; `None` while a run has them.
    ports: Option<(QueuePort, QueuePort)>,
    /// Device on the clients' side.
    clients: Device,
    /// Device on the workers' side.
    workers: Device,
    /// Pool of packet buffers, and EAL.
    environment: Environment,
    /// Command of the leaf.
    binary: PathBuf,
    /// CPU of the leaf.
    leaf_core: usize,
    /// CPU of the conductor.
    core: usize,
    /// Folder of sockets, clock and state.
    folder: tempfile::TempDir,
    /// Set by a stop signal.
    stop: Arc<AtomicBool>,
}

/// Result of a run.
pub struct RunResult {
    /// Measurements of the conductor.
    pub outcome: Outcome,
    /// Account of the leaf, which it writes at its end: counters and packet ledger, as JSON.
    pub account: Value,
}

impl Leaves {
    /// Opens the devices. Without `binary`, finds the leaf's command beside this one or in PATH.
    pub fn open(binary: Option<&Path>, placement: Placement) -> Result<Self, Failure> {
        let binary = command(binary)?;
        let stop = process::stop_on_signals()?;
        let (leaf_core, core) = devices::two_cpus(placement.leaf, placement.conductor);
        let folder = devices::scratch("lockstep")?;
        let [clients, workers] = device_arguments(folder.path(), "server");
        let eal = ["--no-huge", "--no-pci"].map(str::to_owned);
        let environment = Environment::start(&eal, &[&clients, &workers], OUTSTANDING, Some(core))?;
        let (clients, clients_port) = environment.open(&clients)?;
        let (workers, workers_port) = environment.open(&workers)?;
        let ports = Some((clients_port, workers_port));
        Ok(Self { ports, clients, workers, environment, binary, leaf_core, core, folder, stop })
    }

    /// Runs a new leaf process under `config` from start to end. Fails if the leaf's packet ledger does not balance.
    pub fn run(&mut self, config: &Config) -> Result<RunResult, Failure> {
        let addresses = LeafAddresses::new(config)?;
        let folder = self.folder.path();
        let (clock, state) = (folder.join("clock"), folder.join("state"));
        let mut conductor = Conductor::create(&clock, 1)?;
        let text = addresses.leaf(config, self.leaf_core, &state).toml();
        let [clients, workers] = device_arguments(folder, "client");
        let eal = ["--no-huge", "--no-pci", "--vdev", &clients, "--vdev", &workers];
        let eal = eal.map(str::to_owned);
        let mut leaf =
            NodeProcess::start(&self.binary, folder, &text, LEAF_LIFETIME, Some(&clock), &eal)?;
        let node = self.wait_for_leaf(&mut conductor, &mut leaf)?;
        // The conductor's thread moves to the leaf's CPU while turns are shorter there.
        let process = Process::new(conductor, node).on(self.leaf_core, self.core);
        let result = self.run_lockstep(config, &addresses, process);
        // The error of a dead leaf explains more than that of the conductor.
        leaf.check()?;
        let (outcome, process) = result?;
        let account = leaf.stop()?;
        // The conductor lives until the leaf has ended, which would otherwise report its loss.
        drop(process);
        if account["balanced"] != true || account["mbufs_leaked"] != 0 {
            return Err(format!("the leaf's ledger does not balance: {account}").into());
        }
        Ok(RunResult { outcome, account })
    }

    /// Waits until the leaf's devices are connected and the leaf waits for its first turn. Returns the leaf's
    /// number at the conductor.
    fn wait_for_leaf(
        &self,
        conductor: &mut Conductor,
        leaf: &mut NodeProcess,
    ) -> Result<usize, Failure> {
        let began = Instant::now();
        let node = Node { role: Role::Leaf, id: 1, core: 0 };
        let is_linked = || self.clients.link().up && self.workers.link().up;
        let mut number = None;
        loop {
            leaf.check()?;
            number = number.or_else(|| conductor.take(node));
            match number {
                Some(number) if is_linked() => return Ok(number),
                _ if self.stop.load(Ordering::Relaxed) => return Err("stopped".into()),
                _ if began.elapsed() > TIMEOUT => {
                    let seconds = TIMEOUT.as_secs();
                    return Err(
                        format!("the leaf has not joined its clock after {seconds} s").into()
                    );
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Runs the lockstep on a separate, pinned thread, so that this thread and its child processes keep their CPUs.
    /// Returns the process with the outcome, because its conductor must live longer than the leaf.
    fn run_lockstep(
        &mut self,
        config: &Config,
        addresses: &LeafAddresses,
        mut process: Process,
    ) -> Result<(Outcome, Process), Failure> {
        let missing_ports = "an earlier run did not return its ports";
        let (clients_port, workers_port) = self.ports.take().ok_or(missing_ports)?;
        let (client_mac, worker_mac) = (Mac(self.clients.mac()), Mac(self.workers.mac()));
        let pool: PoolHandle = self.environment.pool.handle();
        let (eal, core, stop): (&Eal, usize, _) = (&self.environment.eal, self.core, &*self.stop);
        let mut clients = Clients::new(clients_port, pool, &addresses.target(client_mac));
        let mut workers = Workers::new(workers_port, addresses.address(worker_mac));
        let result = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                process::pin(Some(core));
                let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
                lockstep::run(config, &mut clients, &mut workers, &mut process, stop)
                    .map_err(|error| error.to_string())
            });
            running.join().map_err(|_| "the conductor panicked".to_owned())?
        });
        self.ports = Some((clients.into_port(), workers.into_port()));
        Ok((result?, process))
    }
}

/// Returns the leaf's command: `file`, or `wedjat` beside this one or in PATH.
pub fn command(file: Option<&Path>) -> Result<PathBuf, Failure> {
    match file {
        Some(file) if file.is_file() => Ok(file.to_owned()),
        Some(file) => Err(format!("--leaf {}: no such file", file.display()).into()),
        None => Ok(leaf::find()?),
    }
}

/// Returns both devices with their arguments, for this process or for the leaf, by `role`. This process is the server
/// of memif, so that leaves can come and go.
fn device_arguments(folder: &Path, role: &str) -> [String; 2] {
    [(CLIENTS_DEVICE, 0), (WORKERS_DEVICE, 1)]
        .map(|(name, id)| devices::memif(folder, name, id, role, ""))
}
