//! Agent with workers that are threads of its own process.
//!
//! The key `worker_sends` of the agent's file chooses the sender of the replies. With `try`, the default, a worker
//! sends its replies itself if the devices have a transmit queue for it. Other workers return their replies to the
//! dispatcher, the core that polls the devices. With `must`, all workers need a queue, or the agent does not start.
//! With `never`, the dispatcher sends all replies.
//!
//! ```no_run
//! use std::path::Path;
//! use wedjat::config::AgentConfig;
//! use wedjat::run::threads::{Threads, run_with};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = AgentConfig::load(Path::new("agent.toml"))?;
//! // Called once for each worker; returns the function that its thread calls for each task.
//! let work = |_identity| {
//!     |request: &wedjat::role::agent::Request<'_>, reply: &mut [u8]| {
//!         reply[..request.payload.len()].copy_from_slice(request.payload);
//!         Some(request.payload.len())
//!     }
//! };
//! let threads = Threads { cpus: vec![2, 3], ..Threads::new(work) };
//! let account = run_with(&config, &Default::default(), threads, &Default::default(), |_| {})?;
//! println!("{account}");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use wedjat_core::clock::ClockError;
use wedjat_core::cpus;
use wedjat_core::ring::{Producer, RegionError, WorkerIdentity, WorkerRegion, handover};
use wedjat_core::role::agent::{NamedLoad, Request, Signer, ThreadWorker};
use wedjat_core::state::Counters;
use wedjat_core::stats::AgentStats;
use wedjat_core::worker::{self, Worker};
use wedjat_desired::config::{AgentConfig, ReplyPath};
use wedjat_dpdk::{Eal, Mbuf, Outlet};

use super::agent::{Queues, ThreadWorkers, start};
use super::{LaunchError, Options};

/// Default time for which an idle worker polls its channel before it sleeps, the same as for worker processes.
const SPIN: Duration = Duration::from_micros(50);
/// Time within which the dispatcher must grant a channel to a worker thread whose replies it sends. The default for
/// worker processes is shorter, because they attach to a running agent. The dispatcher starts after these threads.
const GRANT_MAX: Duration = Duration::from_secs(60);
/// Interval at which a worker without its own queue checks for a stop request.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Function of a worker: writes a reply and returns its length, or returns `None` for no reply. It must not take longer
/// than `worker_timeout_ms`. A slower worker gets no new tasks until it answers. If the dispatcher sends its replies,
/// it gets none at all.
pub trait Serve: FnMut(&Request<'_>, &mut [u8]) -> Option<usize> + Send + 'static {}
impl<S: FnMut(&Request<'_>, &mut [u8]) -> Option<usize> + Send + 'static> Serve for S {}

/// Workers of an agent, as threads.
#[derive(Clone, Debug)]
pub struct Threads<W> {
    /// CPUs of the workers, assigned in turn. If empty, the kernel chooses.
    pub cpus: Vec<usize>,
    /// Time for which an idle worker spins before it sleeps.
    pub spin: Duration,
    /// Called once for each worker, with its identity; returns the function that its thread calls for each task.
    pub work: W,
}

impl<W> Threads<W> {
    /// Creates the options for threads on any CPU.
    pub fn new(work: W) -> Self {
        Self { cpus: Vec::new(), spin: SPIN, work }
    }
}

/// Runs the agent with all its workers until `stop` is set or the duration is over. `report` gets a line per
/// second.
///
/// # Errors
/// If it cannot start, its core failed, or the devices lack queues demanded by the configuration. Also for a clock file
/// or batch jobs, which need workers in other processes.
pub fn run_with<S: Serve>(
    config: &AgentConfig,
    options: &Options,
    threads: Threads<impl FnMut(WorkerIdentity) -> S>,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<AgentStats, LaunchError> {
    // Worker threads serve tasks in real time, and a clock file emulates time.
    if let Some(path) = options.clock.clone() {
        return Err(ClockError::Threads { path }.into());
    }
    // A batch job is another process and watches workers in a region file. The region of threads is on the heap.
    if !config.jobs.is_empty() {
        let (path, jobs) = (config.path.clone(), config.jobs.len());
        return Err(LaunchError::JobsBesideThreads { path, jobs });
    }
    let usable = cpus::usable();
    if let Some(&cpu) = threads.cpus.iter().find(|cpu| !usable.contains(cpu)) {
        return Err(LaunchError::WorkerCpu { cpu, usable });
    }
    let host = &config.host;
    let region = Arc::new(WorkerRegion::heap(&host.identities(), host.slots, host.payload)?);
    let Threads { cpus, spin, mut work } = threads;
    let mut start_threads = |eal: &Eal, queues: Queues, signer: Option<&Arc<Signer>>| {
        create_workers(config, &region, (queues, signer), |index, path| {
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            spawn(path, eal.clone(), cpu, spin, work(host.identities()[index]))
        })
    };
    let create_region = || Ok(Arc::clone(&region));
    start(config, options, create_region, Some(&mut start_threads), stop, report)
}

/// Sender of a worker's replies, with the worker's end of its channel or the data to attach. The configuration's
/// [`ReplyPath`] and the number of transmit queues determine it.
enum WorkerPath {
    /// The worker sends them itself.
    Direct(Box<ThreadWorker<Outlet>>),
    /// The dispatcher sends them.
    ///
    /// The worker attaches to the region with this identity; `payload` is the maximum length of a reply, and `name` the
    /// agent's.
    Dispatcher { region: Arc<WorkerRegion>, identity: WorkerIdentity, payload: usize, name: String },
}

/// Creates all workers and starts their threads with `spawn`, which gets the worker's index. The first workers send
/// their replies themselves, as many as there are sets of queues.
fn create_workers(
    config: &AgentConfig,
    region: &Arc<WorkerRegion>,
    (queues, signer): (Queues, Option<&Arc<Signer>>),
    mut spawn: impl FnMut(usize, WorkerPath) -> std::io::Result<JoinHandle<()>>,
) -> Result<ThreadWorkers, LaunchError> {
    let (host, identities) = (&config.host, config.host.identities());
    // Counts unfinished tasks by the worker that the leaf chose. Another worker may serve a task, and its reply must
    // report the chosen worker's count. So the dispatcher and all workers that send replies share the counts.
    let load = Arc::new(NamedLoad::new(identities.len()));
    let mut workers = ThreadWorkers { load: Arc::clone(&load), ..ThreadWorkers::default() };
    let queue_sets = queue_sets(queues, config)?;
    log_senders(config, queue_sets.len());
    let mut queue_sets = queue_sets.into_iter();
    for (index, &identity) in identities.iter().enumerate() {
        let path = match queue_sets.next() {
            Some(queues) => {
                let (producer, worker) = sender(identity, queues, &load, config)?;
                let worker = worker.with_signer(signer.cloned());
                workers.counters.push(worker.counters().clone());
                workers.producers.push(Some(producer));
                WorkerPath::Direct(Box::new(worker))
            }
            None => {
                workers.producers.push(None);
                let (region, name) = (Arc::clone(region), host.name.clone());
                WorkerPath::Dispatcher { region, identity, payload: host.payload, name }
            }
        };
        let thread =
            spawn(index, path).map_err(|error| LaunchError::Worker { id: identity.id, error })?;
        workers.threads.push(thread);
    }
    Ok(workers)
}

/// Returns the sets of queues for workers, each with one queue at every port. Their number is that of the port with
/// the fewest queues, and at most that of the workers. Fails if workers must have a set and one has none.
fn queue_sets(queues: Queues, config: &AgentConfig) -> Result<Vec<Vec<Outlet>>, LaunchError> {
    let wanted = config.host.identities().len();
    let fewest = queues.iter().enumerate().min_by_key(|(_, outlets)| outlets.len());
    let (port, found) = fewest.map_or((0, 0), |(port, outlets)| (port, outlets.len()));
    if config.sends == ReplyPath::Must && found < wanted {
        let device = config.ports[port].device.clone();
        return Err(LaunchError::Outlets { device, found, wanted });
    }
    let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
    // Takes the next queue of each port.
    let set = |_| queues.iter_mut().filter_map(Iterator::next).collect();
    Ok((0..found.min(wanted)).map(set).collect())
}

/// Logs the number of workers that send their replies themselves.
fn log_senders(config: &AgentConfig, senders: usize) {
    let workers = config.host.identities().len();
    match senders {
        0 if config.sends == ReplyPath::Never => {
            log::info!("replies leave by the dispatcher, as `worker_sends` says")
        }
        senders if senders == workers => {
            log::info!("all {workers} workers send their replies themselves")
        }
        senders => log::warn!(
            "{senders} of {workers} workers send their replies themselves: the devices have no \
             more transmit queues to spare; other replies leave by the dispatcher"
        ),
    }
}

/// Creates a worker that sends its replies through `queues`, and the dispatcher's end of its channel.
fn sender(
    identity: WorkerIdentity,
    queues: Vec<Outlet>,
    load: &Arc<NamedLoad>,
    config: &AgentConfig,
) -> Result<(Producer<Mbuf>, ThreadWorker<Outlet>), RegionError> {
    let (producer, consumer) = handover::pair(identity, config.host.slots)?;
    let counters = Counters::heap();
    let worker =
        ThreadWorker::new(consumer, queues, Arc::clone(load), config.host.payload, counters);
    Ok((producer, worker))
}

/// Starts a worker's thread, on `cpu` if given.
fn spawn(
    path: WorkerPath,
    eal: Eal,
    cpu: Option<usize>,
    spin: Duration,
    serve: impl Serve,
) -> std::io::Result<JoinHandle<()>> {
    let id = match &path {
        WorkerPath::Direct(worker) => worker.identity().id,
        WorkerPath::Dispatcher { identity, .. } => identity.id,
    };
    let work = move || {
        if let Some(cpu) = cpu {
            // `run_with` has checked this CPU. If the system took it away since, the worker runs on other CPUs.
            let _ = cpus::pin(cpu);
        }
        // Registration with EAL gives the thread a mempool cache. Without one, buffers return to the pool one by one,
        // which is only slower.
        let _lcore = eal.register_thread().inspect_err(|error| log::warn!("worker {id}: {error}"));
        match path {
            WorkerPath::Direct(mut worker) => worker.run(spin, serve),
            WorkerPath::Dispatcher { region, identity, payload, name } => {
                run_on_rings(&name, &region, identity, payload, spin, serve);
            }
        }
    };
    std::thread::Builder::new().name(format!("worker-{id}")).spawn(work)
}

/// Runs a worker whose replies the dispatcher sends: it gets tasks and returns replies through the rings of its channel
/// in `region`. `payload` is the maximum length of a reply in bytes. Returns after the agent's stop, or after an error,
/// which it logs, for example if the agent excluded a slow worker.
fn run_on_rings(
    name: &str,
    region: &Arc<WorkerRegion>,
    identity: WorkerIdentity,
    payload: usize,
    spin: Duration,
    mut serve: impl Serve,
) {
    let options = worker::Options {
        worker: Some(identity.id),
        spin,
        attach_timeout: GRANT_MAX,
        ..Default::default()
    };
    let mut worker = match Worker::join(name, region, &options) {
        Ok(worker) => worker,
        Err(error) => return log::error!("worker {}: {error}", identity.id),
    };
    let mut answer = vec![0; payload];
    loop {
        match worker.recv(WAIT_MAX) {
            Ok(Some(task)) => {
                let request = Request { ids: task.ids(), payload: task.payload() };
                // A length beyond the buffer counts as no reply.
                let reply = serve(&request, &mut answer).and_then(|len| answer.get(..len));
                if let Some(reply) = reply {
                    // It fits: the buffer has the maximum length of a reply.
                    let _ = task.reply(reply);
                }
            }
            Ok(None) => {}
            Err(worker::Detached::Stopped) => return,
            Err(reason) => return log::error!("worker {}: {reason}", identity.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn batch_jobs_beside_threads_are_refused() {
        let text = "[agent]\nname = 'threads'\ncore = 0\n[[port]]\ndevice = 'net_null0'\nip = '10.0.2.11/24'\n\
                    [[pool]]\nid = 7\npolicy = 'jbsq(k=1)'\nworkers = '10-11'\n[[cosched.job]]\ncommand = ['true']\n";
        let config = AgentConfig::parse(Path::new("threads.toml"), text).unwrap();
        let work = |_| |_: &Request<'_>, _: &mut [u8]| None;
        let run = |config| {
            run_with(config, &Options::default(), Threads::new(work), &Arc::default(), |_| {})
        };
        let error = run(&config).unwrap_err().to_string();
        let begins = "threads.toml: `[cosched]` has 1 batch job, and workers that are threads";
        assert!(error.starts_with(begins) && error.contains("`wedjat agent`"), "{error}");
    }
}
