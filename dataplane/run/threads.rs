//! An agent whose workers are threads of its own process: each sends its replies itself, through a transmit queue of its
//! own, as far as the devices have so many.
//!
//! ```no_run
//! use std::path::Path;
//! use wedjat::config::AgentConfig;
//! use wedjat::run::threads::{Threads, run_with};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = AgentConfig::load(Path::new("agent.toml"))?;
//! // What each worker does: called once for each, the closure goes to its thread.
//! let work = |_place| {
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

use super::agent::{Hired, Queues, start};
use super::{LaunchError, Options};
use crate::clock::ClockError;
use crate::config::{AgentConfig, Sends};
use crate::cpus;
use crate::io::dpdk::{Eal, Mbuf, Outlet};
use crate::ring::{Place, Producer, RegionError, WorkerRegion, handover};
use crate::role::agent::{NamedLoad, Request, Signer, ThreadWorker};
use crate::state::Counters;
use crate::stats::AgentStats;
use crate::worker::{self, Worker};

/// An idle worker spins so long, unless told otherwise.
const SPIN: Duration = Duration::from_micros(50);
/// The dispatcher, which starts in a moment, has so long to let in a worker of its own process.
const LET_IN: Duration = Duration::from_secs(60);
/// A worker without a queue of its own looks so often whether it is to end.
const NAP: Duration = Duration::from_millis(50);

/// What one worker does: it writes an answer and tells its length, or gives none. It must not be slower than
/// `worker_timeout_ms`.
pub trait Serve: FnMut(&Request<'_>, &mut [u8]) -> Option<usize> + Send + 'static {}
impl<S: FnMut(&Request<'_>, &mut [u8]) -> Option<usize> + Send + 'static> Serve for S {}

/// The workers of an agent, as threads.
#[derive(Clone, Debug)]
pub struct Threads<W> {
    /// CPUs to run on, which workers take in turn; wherever the kernel likes when there are none.
    pub cpus: Vec<usize>,
    /// An idle worker spins so long before it sleeps.
    pub spin: Duration,
    /// Says for each worker what it does.
    pub work: W,
}

impl<W> Threads<W> {
    /// Threads that do this, on any CPU.
    pub fn new(work: W) -> Self {
        Self { cpus: Vec::new(), spin: SPIN, work }
    }
}

/// Runs the agent with all its workers until `stop` is set or the duration is over; `report` gets a line a second.
///
/// # Errors
/// When it can't start, its core failed, or the devices lack queues that the configuration demands.
pub fn run_with<S: Serve>(
    config: &AgentConfig,
    options: &Options,
    threads: Threads<impl FnMut(Place) -> S>,
    stop: &Arc<AtomicBool>,
    report: impl FnMut(&str),
) -> Result<AgentStats, LaunchError> {
    if let Some(path) = options.clock.clone() {
        return Err(ClockError::Threads { path }.into());
    }
    #[cfg(feature = "admin")]
    if !config.jobs.is_empty() {
        let (path, jobs) = (config.path.clone(), config.jobs.len());
        return Err(LaunchError::JobsBesideThreads { path, jobs });
    }
    let usable = cpus::usable();
    if let Some(&cpu) = threads.cpus.iter().find(|cpu| !usable.contains(cpu)) {
        return Err(LaunchError::WorkerCpu { cpu, usable });
    }
    let host = &config.host;
    let region = Arc::new(WorkerRegion::heap(&host.places(), host.slots, host.payload)?);
    let Threads { cpus, spin, mut work } = threads;
    let mut hire = |eal: &Eal, queues: Queues, signer: Option<&Arc<Signer>>| {
        hire(config, &region, (queues, signer), |index, post| {
            let cpu = (!cpus.is_empty()).then(|| cpus[index % cpus.len()]);
            spawn(post, eal.clone(), cpu, spin, work(host.places()[index]))
        })
    };
    start(config, options, &region, Some(&mut hire), stop, report)
}

/// Where a worker stands.
enum Post {
    /// It sends for itself.
    Sends(Box<ThreadWorker<Outlet>>),
    /// The dispatcher sends for it.
    Rings { region: Arc<WorkerRegion>, place: Place, payload: usize, name: String },
}

/// Makes all workers, as many of them as there are queues for with one of their own.
fn hire(
    config: &AgentConfig,
    region: &Arc<WorkerRegion>,
    (queues, signer): (Queues, Option<&Arc<Signer>>),
    mut spawn: impl FnMut(usize, Post) -> std::io::Result<JoinHandle<()>>,
) -> Result<Hired, LaunchError> {
    let (host, places) = (&config.host, config.host.places());
    let load = Arc::new(NamedLoad::new(places.len()));
    let mut hired = Hired { load: Arc::clone(&load), ..Hired::default() };
    let senders = sets(queues, config)?;
    announce(config, senders.len());
    let mut senders = senders.into_iter();
    for (index, &place) in places.iter().enumerate() {
        let post = match senders.next() {
            Some(queues) => {
                let (producer, worker) = sender(place, queues, &load, config)?;
                let worker = worker.with_signer(signer.cloned());
                hired.counters.push(worker.counters().clone());
                hired.producers.push(Some(producer));
                Post::Sends(Box::new(worker))
            }
            None => {
                hired.producers.push(None);
                let (region, name) = (Arc::clone(region), host.name.clone());
                Post::Rings { region, place, payload: host.payload, name }
            }
        };
        let thread =
            spawn(index, post).map_err(|error| LaunchError::Worker { id: place.id, error })?;
        hired.threads.push(thread);
    }
    Ok(hired)
}

/// The queues of each worker that can have one at every port.
fn sets(queues: Queues, config: &AgentConfig) -> Result<Vec<Vec<Outlet>>, LaunchError> {
    let wanted = config.host.places().len();
    let few = queues.iter().enumerate().min_by_key(|(_, outlets)| outlets.len());
    let (port, found) = few.map_or((0, 0), |(port, outlets)| (port, outlets.len()));
    if config.sends == Sends::Must && found < wanted {
        let device = config.ports[port].device.clone();
        return Err(LaunchError::Outlets { device, found, wanted });
    }
    let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
    let set = |_| queues.iter_mut().filter_map(Iterator::next).collect();
    Ok((0..found.min(wanted)).map(set).collect())
}

fn announce(config: &AgentConfig, senders: usize) {
    let workers = config.host.places().len();
    match senders {
        0 if config.sends == Sends::Never => {
            log::info!("replies leave by the dispatcher, as `worker_sends` says")
        }
        senders if senders == workers => {
            log::info!("all {workers} workers send their replies themselves")
        }
        senders => log::warn!(
            "{senders} of {workers} workers send their replies themselves: the devices have no more transmit queues \
             to spare; those of the others leave by the dispatcher"
        ),
    }
}

fn sender(
    place: Place,
    queues: Vec<Outlet>,
    load: &Arc<NamedLoad>,
    config: &AgentConfig,
) -> Result<(Producer<Mbuf>, ThreadWorker<Outlet>), RegionError> {
    let (producer, consumer) = handover::pair(place, config.host.slots)?;
    let counters = Counters::heap();
    let worker =
        ThreadWorker::new(consumer, queues, Arc::clone(load), config.host.payload, counters);
    Ok((producer, worker))
}

fn spawn(
    post: Post,
    eal: Eal,
    cpu: Option<usize>,
    spin: Duration,
    serve: impl Serve,
) -> std::io::Result<JoinHandle<()>> {
    let id = match &post {
        Post::Sends(worker) => worker.place().id,
        Post::Rings { place, .. } => place.id,
    };
    let work = move || {
        if let Some(cpu) = cpu {
            // That it is there was seen at the start.
            let _ = cpus::pin(cpu);
        }
        // Without one, buffers go back to the pool one by one.
        let _lcore = eal.register_thread().inspect_err(|error| log::warn!("worker {id}: {error}"));
        match post {
            Post::Sends(mut worker) => worker.run(spin, serve),
            Post::Rings { region, place, payload, name } => {
                ring(&name, &region, place, payload, spin, serve);
            }
        }
    };
    std::thread::Builder::new().name(format!("worker-{id}")).spawn(work)
}

/// A worker for which the dispatcher sends.
fn ring(
    name: &str,
    region: &Arc<WorkerRegion>,
    place: Place,
    payload: usize,
    spin: Duration,
    mut serve: impl Serve,
) {
    let options =
        worker::Options { worker: Some(place.id), spin, patience: LET_IN, ..Default::default() };
    let mut worker = match Worker::join(name, region, &options) {
        Ok(worker) => worker,
        Err(error) => return log::error!("worker {}: {error}", place.id),
    };
    let mut answer = vec![0; payload];
    loop {
        match worker.recv(NAP) {
            Ok(Some(task)) => {
                let request = Request { ids: task.ids(), payload: task.payload() };
                let answered = serve(&request, &mut answer).and_then(|len| answer.get(..len));
                if let Some(answer) = answered {
                    // It fits: the buffer has as many bytes as an answer may.
                    let _ = task.reply(answer);
                }
            }
            Ok(None) => {}
            Err(worker::Gone::Stopped) => return,
            Err(gone) => return log::error!("worker {}: {gone}", place.id),
        }
    }
}

#[cfg(all(test, feature = "admin"))]
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
