//! Nodes over ports in memory, made from a configuration's text as `wedjat leaf` and `wedjat agent` make them from a file.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use wedjat::assembly::{self, agent as parts_of};
use wedjat::config::{AgentConfig, Config, HostConfig};
use wedjat::control::{AgentCores, ColocatedCores, Control, Membership, signer};
use wedjat::io::link::{self, Either};
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

/// Ticks a second: one is a nanosecond.
pub const TICKS_HZ: u64 = 1_000_000_000;

/// One core of a leaf.
pub struct Built {
    pub leaf: Leaf<RingPort, FramePool>,
    /// The far ends of its ports, in the order of the configuration.
    pub far: Vec<RingPort>,
    /// Its buffers.
    pub frames: FramePool,
    pub commands: Commands,
}

/// How large the ports and pools of a core are.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Packets that a port has room for in each direction.
    pub depth: usize,
    /// Buffers.
    pub frames: usize,
    /// Bytes of each.
    pub bytes: usize,
}

/// Devices have 02:00:00:00:00:01 and so on for a MAC address.
fn device(at: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, at as u8 + 1])
}

/// The stages of all cores of a leaf, with what stands around them.
pub struct Staged {
    pub config: Config,
    pub stages: Vec<Stages>,
    pub table: Arc<Table>,
    pub membership: Membership,
}

/// Those of the leaf that this text configures, with a key for its first pool if there is one: sequences are believed from 0 on.
pub fn stages(text: &str, key: Option<Key>) -> Staged {
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
    Staged { config, stages, table, membership }
}

/// All cores of a leaf, its state, and what changes it.
pub fn leaves(staged: Staged, sizes: Sizes) -> (Vec<Built>, Arc<Table>, Control) {
    let Staged { config, stages, table, membership } = staged;
    let (cores, commands) = assembly::cores(&stages, &table);
    let control = Control::of(Arc::clone(&table), membership, cores);
    let core = |(stages, commands): (Stages, Commands)| {
        let frames = FramePool::new(sizes.frames, sizes.bytes);
        let (near, far): (Vec<_>, _) =
            config.ports.iter().map(|_| pair(sizes.depth, &frames)).unzip();
        let timing = Timing { ticks_hz: TICKS_HZ };
        let leaf = Leaf::new(stages, near, frames.clone(), commands.clone(), timing);
        Built { leaf, far, frames, commands }
    };
    (stages.into_iter().zip(commands).map(core).collect(), table, control)
}

/// The only core of the leaf that this text configures.
pub fn leaf(text: &str, sizes: Sizes) -> Built {
    let (mut cores, ..) = leaves(stages(text, None), sizes);
    assert_eq!(cores.len(), 1);
    cores.remove(0)
}

/// What workers attach to, and what the watching thread tells the core.
pub struct AgentHandles {
    pub region: Arc<WorkerRegion>,
    pub deaths: Arc<ArrayQueue<Death>>,
}

impl AgentHandles {
    /// A worker at this place, which the agent lets in when it is next polled.
    pub fn claim(&self, at: usize) -> WorkerEnd {
        self.region.claim(at).unwrap().expect("the place is free")
    }

    /// The same of the worker with this id; none when nobody has it, or somebody is there.
    pub fn claim_named(&self, id: u16) -> Option<WorkerEnd> {
        let mut channels = 0..self.region.shape().channels;
        let own = channels.find(|&at| self.region.place(at).is_some_and(|place| place.id == id));
        own.and_then(|channel| self.region.claim(channel).unwrap())
    }

    /// The agent is told that the process of the worker at this place, which had this claim, has ended.
    pub fn tell_of_death(&self, at: usize, claim: u64) {
        self.deaths.push(Death { channel: at, claim }).unwrap();
    }
}

/// Workers of an agent, in the thread that polls it.
#[derive(Default)]
pub struct Workers {
    /// Those that have attached, by id, and whether they were let in.
    pub there: BTreeMap<u16, (WorkerEnd, bool)>,
    /// Those that do nothing.
    pub stuck: BTreeSet<u16>,
    /// Tasks that each has done.
    pub done: BTreeMap<u16, u64>,
}

impl Workers {
    /// A worker comes; false when there is no place for it.
    pub fn attach(&mut self, handles: &AgentHandles, id: u16) -> bool {
        let Some(end) = handles.claim_named(id) else { return false };
        self.there.insert(id, (end, false));
        true
    }

    /// Ids of those that have attached.
    pub fn ids(&self) -> BTreeSet<u16> {
        self.there.keys().copied().collect()
    }

    /// Each does a task that it has, with this chance, and answers with none of its bytes; who is told to, ends.
    pub fn work(&mut self, mut chance: impl FnMut() -> bool) {
        for (id, (end, is_in)) in &mut self.there {
            if !*is_in && end.receiver().is_granted() {
                end.start();
                *is_in = true;
            }
            let works = *is_in && !self.stuck.contains(id) && chance();
            if works && end.take() == Ok(true) {
                end.answer(|_, _| 0, || 1000);
                *self.done.entry(*id).or_default() += 1;
            }
        }
        self.there.retain(|id, (end, is_in)| {
            let receiver = end.receiver();
            let has_ended = receiver.is_stopped() && !receiver.is_ready();
            self.stuck.contains(id) || !has_ended && (!*is_in || receiver.is_granted())
        });
    }
}

/// An agent, its state, and what changes it.
pub struct BuiltAgent {
    pub agent: Agent<RingPort, FramePool>,
    pub handles: AgentHandles,
    pub table: Arc<Table>,
    pub control: Control<AgentCores<Frame>>,
}

type Links = Vec<WorkerLink<Packet<Frame>>>;

/// The agent that this text configures, over these ports, with ticks of this clock. Its workers have `links`, unless they attach.
pub fn agent(
    text: &str,
    ticks_hz: u64,
    (ports, frames): (Vec<RingPort>, &FramePool),
    links: Option<Links>,
) -> BuiltAgent {
    let config =
        AgentConfig::parse(Path::new("agent.toml"), text).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.seed.is_some());
    let table = parts_of::table(&config, ticks_hz).unwrap();
    let ports = ports.into_iter().zip(config.addresses((0..).map(device))).collect();
    let (attaches, region) = (links.is_none(), region(&config.host));
    let mut links = links.unwrap_or_default().into_iter();
    let link = |at| links.next().unwrap_or_else(|| region.channel(at).into());
    let parts = parts_of::parts(&config, &table, link, frames.clone());
    let signer = signer(&parts_of::membership(&config), None).map(Arc::new);
    let attached = (attaches.then(|| Arc::clone(&region)), parts.commands.clone());
    let control = parts_of::control(&config, &table, attached, signer.clone());
    let handles = AgentHandles { region, deaths: Arc::clone(&parts.deaths) };
    let agent = Agent::new(parts, ports).with_signer(signer);
    BuiltAgent { agent, handles, table, control }
}

fn region(host: &HostConfig) -> Arc<WorkerRegion> {
    Arc::new(WorkerRegion::heap_for(&host.places(), host.shape()).unwrap())
}

/// A leaf with an agent on its core, the leaf's state, and what changes both.
pub struct BuiltColocated {
    pub both: Colocated<RingPort, FramePool>,
    /// The far ends of the leaf's ports, in the order of the configuration.
    pub far: Vec<RingPort>,
    pub frames: FramePool,
    pub handles: AgentHandles,
    pub table: Arc<Table>,
    pub control: Control<ColocatedCores<Frame>>,
}

/// Those of these stages.
pub fn colocated(staged: Staged, sizes: Sizes) -> BuiltColocated {
    let Staged { config, mut stages, table, membership } = staged;
    let frames = FramePool::new(sizes.frames, sizes.bytes);
    let (near, far): (Vec<_>, _) = config.ports.iter().map(|_| pair(sizes.depth, &frames)).unzip();
    let (cores, mut commands) = assembly::cores(&stages, &table);
    let host = config.agent.as_ref().expect("an [agent]");
    let region = region(host);
    let (parts, _, agent) =
        parts_of::beside_leaf(&config, host, &table, &region, frames.clone()).unwrap();
    let handles = AgentHandles { region, deaths: Arc::clone(&parts.deaths) };
    let cores = ColocatedCores::new(cores, Some(agent));
    let control = Control::of(Arc::clone(&table), membership, cores);
    let (end, agents_end) = link::pair(sizes.frames);
    let ports = near.into_iter().map(Either::Device).chain([Either::Link(end)]).collect();
    let timing = Timing { ticks_hz: TICKS_HZ };
    let leaf = Leaf::new(stages.remove(0), ports, frames.clone(), commands.remove(0), timing);
    let both = Colocated::new(leaf, parts, agents_end);
    BuiltColocated { both, far, frames, handles, table, control }
}
