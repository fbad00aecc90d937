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
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;
use std::time::Duration;

use wedjat_core::clock::ClockError;
use wedjat_core::cpus;
use wedjat_core::ring::{Producer, RegionError, WorkerIdentity, WorkerRegion, handover};
use wedjat_core::role::agent::{NamedLoad, Request, Signer, ThreadWorker};
use wedjat_core::state::Counters;
use wedjat_core::stats::AgentStats;
use wedjat_core::worker::{self, AttachError, Detached, Worker};
use wedjat_desired::config::{AgentConfig, ReplyPath};
use wedjat_dpdk::{Eal, Mbuf, Outlet};

use super::agent::{Queues, ThreadWorkers, start};
use super::{LaunchError, Options};

/// Default time for which an idle worker polls its channel before it sleeps, the same as for worker processes.
const SPIN: Duration = Duration::from_micros(50);
/// Interval at which a worker without a grant checks for the end of the run. The dispatcher starts after the threads.
const GRANT_WAIT: Duration = Duration::from_secs(1);
/// Interval at which a worker without its own queue checks for a stop request.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Function of a worker: writes a reply and returns its length, or returns `None` for no reply. It must not take longer
/// than `worker_timeout_ms`. A slower worker gets no new tasks until it answers.
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
/// or batch jobs, which need workers in other processes. After an error, idle workers end within a second.
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
    let is_over = Arc::new(AtomicBool::new(false));
    let mut start_threads = |eal: &Eal, queues: Queues, signer: Option<&Arc<Signer>>| {
        create_workers(config, &region, (queues, signer), |index, path| {
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            let serve = work(host.identities()[index]);
            spawn(path, eal.clone(), (cpu, spin), Arc::clone(&is_over), serve)
        })
    };
    let create_region = || Ok(Arc::clone(&region));
    let account = start(config, options, create_region, Some(&mut start_threads), stop, report);
    // After an error, workers may still wait for a dispatcher that does not start.
    is_over.store(true, Release);
    account
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

/// Starts a worker's thread, on `cpu` if given. [`run_with`] sets `is_over` at the end of the run.
fn spawn(
    path: WorkerPath,
    eal: Eal,
    (cpu, spin): (Option<usize>, Duration),
    is_over: Arc<AtomicBool>,
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
                let worker = RingWorker { name, region, id: identity.id, spin, is_over };
                worker.run(payload, serve);
            }
        }
    };
    std::thread::Builder::new().name(format!("worker-{id}")).spawn(work)
}

/// Worker whose replies the dispatcher sends: it gets tasks and returns replies through the rings of its channel.
struct RingWorker {
    /// Name of the agent, for errors.
    name: String,
    /// Region with the channel.
    region: Arc<WorkerRegion>,
    /// Global id.
    id: u16,
    /// Time for which it spins before it sleeps.
    spin: Duration,
    /// True at the end of the run.
    is_over: Arc<AtomicBool>,
}

impl RingWorker {
    /// Serves tasks until the agent stops, the run is over, or an error, which it logs. `payload` is the maximum length
    /// of a reply in bytes. An excluded worker attaches again after its slow task.
    fn run(&self, payload: usize, mut serve: impl Serve) {
        let mut answer = vec![0; payload];
        while let Some(worker) = self.attach() {
            match self.serve_tasks(worker, &mut answer, &mut serve) {
                Some(Detached::Excluded) => {
                    log::warn!(
                        "worker {}: its task took longer than `worker_timeout_ms`, so the client got no reply; it attaches again",
                        self.id
                    );
                }
                None | Some(Detached::Stopped) => return,
                Some(reason) => return log::error!("worker {}: {reason}", self.id),
            }
        }
    }

    /// Attaches to the agent. Waits for its grant. Returns `None` at the end of the run, or after an error, which it
    /// logs.
    fn attach(&self) -> Option<Worker> {
        let options = worker::Options {
            worker: Some(self.id),
            spin: self.spin,
            attach_timeout: GRANT_WAIT,
            ..Default::default()
        };
        while !self.is_over.load(Acquire) {
            match Worker::join(&self.name, &self.region, &options) {
                Ok(worker) => return Some(worker),
                Err(AttachError::NotGranted { .. }) => {}
                Err(error) => {
                    log::error!("worker {}: {error}", self.id);
                    return None;
                }
            }
        }
        None
    }

    /// Serves tasks until no more will come. Returns the reason; `None` at the end of the run.
    fn serve_tasks(
        &self,
        mut worker: Worker,
        answer: &mut [u8],
        serve: &mut impl Serve,
    ) -> Option<Detached> {
        loop {
            match worker.recv(WAIT_MAX) {
                Ok(Some(task)) => {
                    let request = Request { ids: task.ids(), payload: task.payload() };
                    // A length beyond the buffer counts as no reply.
                    let reply = serve(&request, answer).and_then(|len| answer.get(..len));
                    if let Some(reply) = reply {
                        // It fits: the buffer has the maximum length of a reply.
                        let _ = task.reply(reply);
                    }
                }
                Ok(None) if self.is_over.load(Acquire) => return None,
                Ok(None) => {}
                Err(reason) => return Some(reason),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{self, Receiver};

    use wedjat_core::ring::{Channel, TaskIds};

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

    /// Starts a worker without a queue of its own, which echoes its tasks after a word from `pace`.
    fn start_worker(
        region: &Arc<WorkerRegion>,
        is_over: &Arc<AtomicBool>,
        pace: Receiver<()>,
    ) -> JoinHandle<()> {
        let (region, is_over) = (Arc::clone(region), Arc::clone(is_over));
        let worker = RingWorker { name: "test".to_owned(), region, id: 3, spin: SPIN, is_over };
        let serve = move |request: &Request<'_>, reply: &mut [u8]| {
            pace.recv().unwrap();
            reply[..request.payload.len()].copy_from_slice(request.payload);
            Some(request.payload.len())
        };
        std::thread::spawn(move || worker.run(64, serve))
    }

    /// Grants the channel to a worker that waits, like an agent. Returns after the grant.
    fn grant(channel: &mut Channel) {
        loop {
            let claim = channel.sender().claim();
            if claim != 0 && channel.sender_mut().grant(claim) {
                return;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn excluded_thread_attaches_again() {
        let identity = WorkerIdentity { id: 3, pool: 1 };
        let region = Arc::new(WorkerRegion::heap(&[identity], 4, 64).unwrap());
        let (mut channel, is_over) = (region.channel(0), Arc::default());
        let (go_on, pace) = mpsc::channel();
        let worker = start_worker(&region, &is_over, pace);
        let ids = TaskIds { app: 1, seq: 1, class: 0 };
        grant(&mut channel);
        assert!(channel.send(ids, b"slow"));
        let excluded = channel.sender().granted();
        channel.sender_mut().revoke();
        go_on.send(()).unwrap();
        // The worker leaves after its task, or at once if it had not taken the task yet.
        while channel.sender().claim() == excluded {
            std::thread::yield_now();
        }
        grant(&mut channel);
        assert!(channel.send(ids, b"next"));
        go_on.send(()).unwrap();
        while channel.collect().unwrap().is_empty() {
            std::thread::yield_now();
        }
        channel.stop();
        worker.join().unwrap();
    }

    #[test]
    fn waiting_thread_ends_with_the_run() {
        let identity = WorkerIdentity { id: 3, pool: 1 };
        let region = Arc::new(WorkerRegion::heap(&[identity], 4, 64).unwrap());
        let is_over = Arc::default();
        let (_go_on, pace) = mpsc::channel();
        let worker = start_worker(&region, &is_over, pace);
        is_over.store(true, Release);
        worker.join().unwrap();
    }
}
