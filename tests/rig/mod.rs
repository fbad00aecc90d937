//! Nodes over ports in memory, built from a configuration text in the way of `wedjat leaf` and `wedjat
//! agent`. A test polls them itself, sets their clock, and sends and receives at the far ends of their ports.
//!
//! A leaf schedules the tasks of a rack; its stages are the packet path of a core. An agent gives the tasks of a host
//! to workers through a region of shared memory. A worker has a place in the region: it claims the place, and the
//! agent grants the claim. A leaf may have an agent on its own core (colocated). The control applies changes of the
//! membership (pools, servers, workers) to the cores.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use wedjat::assembly::{self, agent as parts_of};
use wedjat::config::{AgentConfig, Config, HostConfig};
use wedjat::control::{AgentCores, ColocatedCores, Control, Membership, signer};
use wedjat::io::link::{self, DeviceOrWire};
use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::node::{Commands, Timing};
use wedjat::ring::{WorkerEnd, WorkerRegion};
use wedjat::role::agent::{Death, Packet, WorkerLink};
use wedjat::role::{Agent, Colocated, Leaf};
use wedjat::stage::Stages;
use wedjat::stage::auth::ReplyAuthenticator;
use wedjat::state::Table;
use wedjat::wire::auth::Key;
use wedjat::wire::ether::Mac;

/// Ticks per second: one tick is one nanosecond.
pub const TICKS_HZ: u64 = 1_000_000_000;

/// One core of a leaf.
pub struct CoreRig {
    /// The core, to be polled by the test.
    pub leaf: Leaf<RingPort, FramePool>,
    /// Far ends of its ports, in the order of the configuration.
    pub far: Vec<RingPort>,
    /// Its pool of buffers.
    pub frames: FramePool,
    /// Commands from the control to this core.
    pub commands: Commands,
}

/// Sizes of a core's ports and pool.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Packets per port and direction.
    pub depth: usize,
    /// Number of buffers.
    pub frames: usize,
    /// Bytes per buffer.
    pub bytes: usize,
}

/// Returns the MAC address of the device at index `at`: 02:00:00:00:00:01 for 0, and so on.
fn device(at: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, at as u8 + 1])
}

/// Stages of all cores of a leaf, with the parts that they need.
pub struct StagesRig {
    /// The parsed configuration.
    pub config: Config,
    /// Stages by core.
    pub stages: Vec<Stages>,
    /// State table (loads, counters, neighbours), which all cores share.
    pub table: Arc<Table>,
    /// Pools, servers and workers at the start.
    pub membership: Membership,
}

/// Builds the stages of the leaf configured by `text`, which must give a seed. `key` becomes the key of its
/// first pool, with which its workers sign replies. The replay windows refuse the first lap of the signed sequence
/// numbers (those from 0 up to the length of a window), so a test that signs must use later ones.
pub fn stages(text: &str, key: Option<Key>) -> StagesRig {
    let config =
        Config::parse(Path::new("leaf.toml"), text).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.leaf.seed.is_some());
    let table = assembly::table(&config, TICKS_HZ).unwrap();
    let mut membership = Membership::of(&config);
    if let (Some(key), Some(Some(pool))) = (key, membership.pools.first_mut()) {
        let workers = config.leaf.limits.workers;
        pool.authenticator = Some(Arc::new(ReplyAuthenticator::new(key, workers, 0)));
    }
    let macs = (0..).map(device);
    let stages = assembly::stages(&config, &membership, macs, &table).unwrap();
    StagesRig { config, stages, table, membership }
}

/// Builds all cores of a leaf from its stages. Returns them with its state table and its control.
pub fn leaves(staged: StagesRig, sizes: Sizes) -> (Vec<CoreRig>, Arc<Table>, Control) {
    let StagesRig { config, stages, table, membership } = staged;
    let (cores, commands) = assembly::cores(&stages);
    let control = Control::of(Arc::clone(&table), membership, cores);
    let core = |(stages, commands): (Stages, Commands)| {
        let frames = FramePool::new(sizes.frames, sizes.bytes);
        let (near, far): (Vec<_>, _) =
            config.ports.iter().map(|_| pair(sizes.depth, &frames)).unzip();
        let timing = Timing { ticks_hz: TICKS_HZ };
        let leaf = Leaf::new(stages, near, frames.clone(), commands.clone(), timing);
        CoreRig { leaf, far, frames, commands }
    };
    (stages.into_iter().zip(commands).map(core).collect(), table, control)
}

/// Builds the only core of the leaf configured by `text`.
pub fn leaf(text: &str, sizes: Sizes) -> CoreRig {
    let (mut cores, ..) = leaves(stages(text, None), sizes);
    assert_eq!(cores.len(), 1);
    cores.remove(0)
}

/// Region of the workers, and queue of deaths reported by the watching thread.
pub struct AgentHandles {
    /// Memory that agent and workers share.
    pub region: Arc<WorkerRegion>,
    /// Deaths of worker processes that the agent has not handled yet.
    pub deaths: Arc<ArrayQueue<Death>>,
}

impl AgentHandles {
    /// Claims this place for a worker. The agent grants it at its next poll.
    pub fn claim(&self, at: usize) -> WorkerEnd {
        self.region.claim(at).unwrap().expect("the place is free")
    }

    /// Claims the place of the worker with this id. Returns `None` for an unknown id or a taken place.
    pub fn claim_named(&self, id: u16) -> Option<WorkerEnd> {
        let mut channels = 0..self.region.shape().channels;
        let own =
            channels.find(|&at| self.region.identity(at).is_some_and(|identity| identity.id == id));
        own.and_then(|channel| self.region.claim(channel).unwrap())
    }

    /// Reports the death of the worker process that held this claim of the place. The agent ignores the report if the
    /// place has another claim by now.
    pub fn report_death(&self, at: usize, claim: u64) {
        self.deaths.push(Death { channel: at, claim }).unwrap();
    }
}

/// Workers of an agent, run by the thread that polls it.
#[derive(Default)]
pub struct Workers {
    /// Attached workers by id. The flag is true for granted ones.
    pub attached: BTreeMap<u16, (WorkerEnd, bool)>,
    /// Workers that neither serve tasks nor leave.
    pub stuck: BTreeSet<u16>,
    /// Number of tasks served by each worker.
    pub done: BTreeMap<u16, u64>,
}

impl Workers {
    /// Attaches a worker. Returns false if it has no place.
    pub fn attach(&mut self, handles: &AgentHandles, id: u16) -> bool {
        let Some(end) = handles.claim_named(id) else { return false };
        self.attached.insert(id, (end, false));
        true
    }

    /// Returns the ids of attached workers.
    pub fn ids(&self) -> BTreeSet<u16> {
        self.attached.keys().copied().collect()
    }

    /// Lets each granted worker that is not stuck serve one of its tasks if `chance` returns true. Removes
    /// workers that are not stuck and either have no task left after the agent's signal to stop, or lost their grant.
    pub fn work(&mut self, mut chance: impl FnMut() -> bool) {
        for (id, (end, is_started)) in &mut self.attached {
            if !*is_started && end.receiver().is_granted() {
                end.start();
                *is_started = true;
            }
            let works = *is_started && !self.stuck.contains(id) && chance();
            if works && let Ok(Some(task)) = end.take() {
                // An empty reply after 1000 ns of work.
                end.answer(task, |_, _| 0, || 1000).unwrap();
                *self.done.entry(*id).or_default() += 1;
            }
        }
        self.attached.retain(|id, (end, is_started)| {
            let receiver = end.receiver();
            let has_ended = receiver.is_stopped() && !receiver.is_ready();
            self.stuck.contains(id) || !has_ended && (!*is_started || receiver.is_granted())
        });
    }
}

/// An agent, its state table and its control.
pub struct AgentRig {
    /// The agent, to be polled by the test.
    pub agent: Agent<RingPort, FramePool>,
    /// The workers' side of the agent.
    pub handles: AgentHandles,
    /// State table of the agent.
    pub table: Arc<Table>,
    /// Control of the agent's core.
    pub control: Control<AgentCores<Frame>>,
}

/// Links to an agent's workers, in the order of their places.
type Links = Vec<WorkerLink<Packet<Frame>>>;

/// Builds the agent configured by `text`, which must give a seed, over these ports, with a clock of `ticks_hz`.
/// Its workers use `links`; without them, workers attach to the region.
pub fn agent(
    text: &str,
    ticks_hz: u64,
    (ports, frames): (Vec<RingPort>, &FramePool),
    links: Option<Links>,
) -> AgentRig {
    let config =
        AgentConfig::parse(Path::new("agent.toml"), text).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.seed.is_some());
    let table = parts_of::table(&config, ticks_hz).unwrap();
    let ports = ports.into_iter().zip(config.addresses((0..).map(device))).collect();
    // Without links, workers attach to the region, and the control changes its places.
    let (attaches, region) = (links.is_none(), region(&config.host));
    let mut links = links.unwrap_or_default().into_iter();
    let link = |at| links.next().unwrap_or_else(|| region.channel(at).into());
    let mut parts = parts_of::parts(&config, &table, link, frames.clone());
    // The agent publishes its state to observers of the region, too.
    parts.watch = Some(region.watch());
    let signer = signer(&parts_of::membership(&config), None).map(Arc::new);
    let attached = (attaches.then(|| Arc::clone(&region)), parts.commands.clone());
    let control = parts_of::control(&config, &table, attached, signer.clone());
    let handles = AgentHandles { region, deaths: Arc::clone(&parts.deaths) };
    let agent = Agent::new(parts, ports).with_signer(signer);
    AgentRig { agent, handles, table, control }
}

/// Creates a host's region in memory of this process.
fn region(host: &HostConfig) -> Arc<WorkerRegion> {
    Arc::new(WorkerRegion::heap_for(&host.identities(), host.shape()).unwrap())
}

/// A leaf with an agent on its core, the leaf's state table, and the control of both.
pub struct ColocatedRig {
    /// The leaf and its agent.
    pub role: Colocated<RingPort, FramePool>,
    /// Far ends of the leaf's ports, in the order of the configuration.
    pub far: Vec<RingPort>,
    /// Pool of buffers.
    pub frames: FramePool,
    /// The workers' side of the agent.
    pub handles: AgentHandles,
    /// State table of the leaf.
    pub table: Arc<Table>,
    /// Control of leaf and agent.
    pub control: Control<ColocatedCores<Frame>>,
}

/// Builds the leaf, which has one core, from its stages, and the agent that its configuration contains.
pub fn colocated(staged: StagesRig, sizes: Sizes) -> ColocatedRig {
    let StagesRig { config, mut stages, table, membership } = staged;
    let frames = FramePool::new(sizes.frames, sizes.bytes);
    let (near, far): (Vec<_>, _) = config.ports.iter().map(|_| pair(sizes.depth, &frames)).unzip();
    let (cores, mut commands) = assembly::cores(&stages);
    let host = config.agent.as_ref().expect("an [agent]");
    let region = region(host);
    let (parts, _, agent) =
        parts_of::colocated(&config, host, &table, &region, frames.clone()).unwrap();
    let handles = AgentHandles { region, deaths: Arc::clone(&parts.deaths) };
    let cores = ColocatedCores::new(cores, Some(agent));
    let control = Control::of(Arc::clone(&table), membership, cores);
    // The leaf reaches its agent over a link in memory, which is its last port.
    let (end, agents_end) = link::pair(sizes.frames);
    let ports =
        near.into_iter().map(DeviceOrWire::Device).chain([DeviceOrWire::Link(end)]).collect();
    let timing = Timing { ticks_hz: TICKS_HZ };
    let leaf = Leaf::new(stages.remove(0), ports, frames.clone(), commands.remove(0), timing);
    let role = Colocated::new(leaf, parts, agents_end);
    ColocatedRig { role, far, frames, handles, table, control }
}
