//! Separate processes as nodes of a run with faults: spines, leaves and agents on the conductor's clock. The
//! conductor, in this process, gives them turns: in a turn, a node polls until it is quiet. A memif device
//! connects each port to this process. Pauses are SIGSTOP and SIGCONT, kills are SIGKILL.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wedjat::clock::{Conductor, Line, Node as Name, TurnError};
use wedjat::io::{Buf, Burst, Pool as _, Port as _};
use wedjat::ring::WorkerRegion;
use wedjat::state::table::Role;
use wedjat_pktgen::process;
use wedjat_testbed::demo::NodeProcess;
use wedjat_testbed::lockstep::system::plan::{AGENT_IDS, SPINE_IDS};
use wedjat_testbed::lockstep::system::{
    self, FaultTarget, LocalNodeState, Node, NodeFactory, Outcome, Plan, Topology,
};

use crate::command::leaves::{self, Placement};
use crate::command::ports::{Device, Environment, PoolHandle, QueuePort};
use crate::command::rig::TIMEOUT;
use crate::command::{Failure, devices};

/// Maximum run time of a node, for the case that no process is left to end it.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Number of this process's packet buffers for packets between it and the nodes.
const OUTSTANDING: u32 = 1 << 15;

/// Runs a plan (a system and its faults, drawn from a seed) with nodes as processes. The conductor runs on a
/// thread of its own, so that the affinity of the calling thread stays.
pub fn run(plan: &Plan, binary: Option<&Path>, place: Placement) -> Result<Outcome, Failure> {
    let binary = leaves::command(binary)?;
    let stop = process::stop_on_signals()?;
    let (node_core, core) = devices::two_cpus(place.leaf, place.conductor);
    let folder = devices::scratch("lockstep")?;
    let Topology { spines, leaves, agents, .. } = plan.topology;
    // Spines and leaves have two ports, agents have one. Devices are numbered in this order.
    let ports = usize::from(2 * (spines + leaves) + agents);
    let names: Vec<_> = (0..ports)
        .map(|index| {
            devices::memif(folder.path(), &format!("net_memif{index}"), index as u32, "server", "")
        })
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let eal = ["--no-huge", "--no-pci"].map(str::to_owned);
    let environment = Environment::start(&eal, &names, OUTSTANDING, Some(core))?;
    let links = names.iter().map(|name| environment.open(name)).collect::<Result<Vec<_>, _>>()?;
    let (pool, eal) = (environment.pool.handle(), &environment.eal);
    let (folder, stop) = (folder.path(), &*stop);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(move || -> Result<Outcome, String> {
            let mut processes = Processes::new(links, pool, &binary, folder, node_core, stop)?;
            process::pin(Some(core));
            processes.pinned = sched_getaffinity(None).ok();
            let _lcore = eal.register_thread().map_err(|error| error.to_string())?;
            system::run(plan, &mut processes, stop).map_err(|error| error.to_string())
        });
        running.join().map_err(|_| "the conductor panicked".to_owned())?
    });
    Ok(outcome?)
}

/// Devices and clock of the conductor, shared by the factory and all nodes.
struct Shared {
    // Drop order: ports before their devices.
    ports: Vec<QueuePort>,
    /// Devices to all ports of all nodes, like `ports`.
    devices: Vec<Device>,
    pool: PoolHandle,
    /// Owner of the emulated clock.
    conductor: Conductor,
    /// Folder of the nodes' folders and of the devices' sockets.
    folder: PathBuf,
}

/// Factory that starts nodes as processes.
struct Processes<'a> {
    shared: Rc<RefCell<Shared>>,
    /// Path of `wedjat`.
    binary: PathBuf,
    /// File of the emulated clock.
    clock: PathBuf,
    /// CPU of all nodes. Only one of them polls at a time.
    core: usize,
    /// Set by a stop signal.
    stop: &'a AtomicBool,
    /// CPUs of this thread before it was pinned. Child processes run on these.
    unpinned: Option<CpuSet>,
    /// CPUs of this thread afterwards.
    pinned: Option<CpuSet>,
}

impl<'a> Processes<'a> {
    /// Creates the clock, and starts no node yet. `links` has the device for each port of each node. `core` is the
    /// nodes' CPU.
    fn new(
        links: Vec<(Device, QueuePort)>,
        pool: PoolHandle,
        binary: &Path,
        folder: &Path,
        core: usize,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let (devices, ports): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let clock = folder.join("clock");
        let conductor =
            Conductor::create(&clock, devices.len()).map_err(|error| error.to_string())?;
        let shared = Shared { ports, devices, pool, conductor, folder: folder.to_owned() };
        let shared = Rc::new(RefCell::new(shared));
        let unpinned = sched_getaffinity(None).ok();
        Ok(Self { shared, binary: binary.to_owned(), clock, core, stop, unpinned, pinned: None })
    }

    /// Waits until the process's devices are connected and the process waits for its first turn. Returns its
    /// number at the conductor.
    fn wait_for_node(
        &self,
        process: &mut NodeProcess,
        name: Name,
        links: &[usize],
    ) -> Result<usize, String> {
        let (began, mut number) = (Instant::now(), None);
        loop {
            process.check().map_err(|error| error.to_string())?;
            let mut shared = self.shared.borrow_mut();
            number = number.or_else(|| shared.conductor.take(name));
            let is_linked = || links.iter().all(|&link| shared.devices[link].link().up);
            match number {
                Some(number) if is_linked() => return Ok(number),
                _ if self.stop.load(Ordering::Relaxed) => return Err("stopped".to_owned()),
                _ if began.elapsed() > TIMEOUT => {
                    return Err(format!(
                        "{name} has not joined its clock after {} s",
                        TIMEOUT.as_secs()
                    ));
                }
                _ => {}
            }
            drop(shared);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl NodeFactory for Processes<'_> {
    /// Starts the process of a node, also after a kill, and waits until it has joined the clock.
    fn make(&mut self, plan: &Plan, target: FaultTarget) -> Result<Box<dyn Node>, String> {
        let base = self.shared.borrow().folder.clone();
        let folder = base.join(target.to_string());
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let workers = folder.join("workers");
        let Topology { spines, leaves, .. } = plan.topology;
        let state = folder.join("state");
        // Prevents a takeover of the killed node's state. A restarted node in memory takes over nothing either.
        let _ = std::fs::remove_file(&state);
        let node = |role, id| Name { role, id, core: 0 };
        let two_ports = |pair: u16| vec![2 * usize::from(pair), 2 * usize::from(pair) + 1];
        let (role, name, text, links) = match target {
            FaultTarget::Spine(number) => (
                "spine",
                node(Role::Spine, SPINE_IDS + number),
                plan.spine_text(number, self.core, Some(&state)),
                two_ports(number - 1),
            ),
            FaultTarget::Leaf(number) => (
                "leaf",
                node(Role::Leaf, number),
                plan.leaf_text(number, self.core, Some(&state)),
                two_ports(spines + number - 1),
            ),
            FaultTarget::Agent(number) => (
                "agent",
                node(Role::Agent, AGENT_IDS + number),
                plan.agent_text(number, self.core, &workers.display().to_string()),
                vec![usize::from(2 * (spines + leaves) + number - 1)],
            ),
            FaultTarget::Clients(_) | FaultTarget::Worker(_) => {
                return Err(format!("{target} is not a node"));
            }
        };
        let mut eal = vec!["--no-huge".to_owned(), "--no-pci".to_owned()];
        for (port, link) in links.iter().enumerate() {
            let socket = base.join(format!("net_memif{link}.sock"));
            let device = format!(
                "net_memif{port},role=client,id={link},socket={},socket-abstract=no",
                socket.display()
            );
            eal.extend(["--vdev".to_owned(), device]);
        }
        let (command, clock) = (Command::new(&self.binary), Some(self.clock.as_path()));
        // A process inherits the CPUs of the thread that starts it.
        let run_on =
            |cpus: &Option<CpuSet>| cpus.iter().for_each(|cpus| _ = sched_setaffinity(None, cpus));
        run_on(&self.unpinned);
        let result = NodeProcess::start_by(command, role, &folder, &text, LIFETIME, clock, &eal);
        run_on(&self.pinned);
        let mut process = result.map_err(|error| error.to_string())?;
        let number = self.wait_for_node(&mut process, name, &links)?;
        let region = match role {
            "agent" => {
                Some(Arc::new(WorkerRegion::open(&workers).map_err(|error| error.to_string())?))
            }
            _ => None,
        };
        let shared = Rc::clone(&self.shared);
        Ok(Box::new(ProcessNode { shared, number, process, links, region }))
    }
}

/// A node that runs as a process.
struct ProcessNode {
    shared: Rc<RefCell<Shared>>,
    /// Number of the node at the conductor.
    number: usize,
    /// Process of the node.
    process: NodeProcess,
    /// Index of the device for each port.
    links: Vec<usize>,
    /// Shared memory between an agent and its workers; `None` for other nodes.
    region: Option<Arc<WorkerRegion>>,
}

impl Node for ProcessNode {
    /// Sets the clock to `now_ns` and lets the node poll until it is quiet.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let conductor = &mut self.shared.borrow_mut().conductor;
        conductor.set_now_ns(now_ns);
        conductor.turn(self.number)
    }

    /// Sends a packet to the node's port `port`. Returns false without a buffer that fits it, or if the device is full.
    fn give(&mut self, port: usize, frame: &[u8]) -> bool {
        let shared = &mut *self.shared.borrow_mut();
        let buf = shared.pool.take().and_then(|mut buf| buf.resize(frame.len()).then_some(buf));
        let Some(mut buf) = buf else { return false };
        buf.bytes_mut().copy_from_slice(frame);
        let mut burst = Burst::new();
        burst.push(buf);
        shared.ports[self.links[port]].tx_burst(&mut burst) == 1
    }

    /// Receives all packets that the node sent from its port `port`, and passes each to `handle`.
    fn take(&mut self, port: usize, handle: &mut dyn FnMut(&[u8])) {
        let mut burst = Burst::new();
        let shared = &mut *self.shared.borrow_mut();
        while shared.ports[self.links[port]].rx_burst(&mut burst) > 0 {
            burst.drain(..).for_each(|buf| handle(buf.bytes()));
        }
    }

    /// Returns `None`: the state of another process cannot be read.
    fn local_state(&self) -> Option<LocalNodeState<'_>> {
        None
    }

    /// Returns the memory that an agent shares with its workers, so that the conductor can emulate these.
    fn region(&self) -> Option<Arc<WorkerRegion>> {
        self.region.clone()
    }

    /// Stops the process, or lets it continue.
    fn pause(&mut self, paused: bool) -> Result<(), String> {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_raw(self.process.id() as i32).ok_or("no process")?;
        kill_process(pid, signal).map_err(|error| format!("process {pid:?}: {error}"))
    }

    /// Ends the process in order and checks its account, or kills it. After a kill, waits until the memif
    /// links are down: [`Processes::wait_for_node`] would take them for those of a replacement.
    fn end(self: Box<Self>, killed: bool) -> Result<(), String> {
        let Self { shared, number, process, links, .. } = *self;
        if !killed {
            let account = process.stop().map_err(|error| error.to_string())?;
            return match account["balanced"] == true && account["mbufs_leaked"] == 0 {
                true => Ok(()),
                false => Err(format!("its ledger does not balance: {account}")),
            };
        }
        drop(process); // by SIGKILL
        // The replacement joins under the same name, and gets a number of its own.
        shared.borrow_mut().conductor.forget(number);
        let began = Instant::now();
        while links.iter().any(|&link| shared.borrow().devices[link].link().up) {
            if began.elapsed() > TIMEOUT {
                return Err("its devices are still linked".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
