//! Spines, leaves and agents in this process, on ports in memory: the same stages, policies and packets
//! without a process or a device. A caller gives them turns. In a turn, a node polls until it is quiet: no packet
//! moves any more.

use std::sync::Arc;

use wedjat::assembly::{self, agent, peers};
use wedjat::clock::{ClockFile, Line, Progress, TurnError};
use wedjat::config::{AgentConfig, Config};
use wedjat::control::{Control, Membership};
use wedjat::io::memory::{Frame, FramePool, RingPort, pair};
use wedjat::io::{Buf, Burst, Port};
use wedjat::node::Timing;
use wedjat::peers::Settings;
use wedjat::ring::WorkerRegion;
use wedjat::role::{Agent, CoreRole as _, Leaf};
use wedjat::state::Table;
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{self, Extension};
use wedjat::wire::udp;

use super::Scheduler;
use crate::sim::rack::Cores;

/// Number of consecutive polls without packets that ends a turn. Equals that of [`wedjat::clock::EmulatedClock`], so
/// that nodes in memory and in processes end a turn after the same poll.
const QUIET_POLLS: u32 = 2;
/// Maximum number of packets in each direction of a wire.
const DEPTH: usize = 512;
/// Maximum number of bytes of a frame.
const FRAME_BYTES: usize = 256;

/// A leaf or spine in this process, with its ports in memory.
pub struct LocalLeaf {
    /// One entry per core.
    cores: Vec<Leaf<RingPort, FramePool>>,
    /// Number of polls so far, over all turns.
    polls: u64,
}

/// Handle that changes a leaf or spine between turns, and the node's state.
pub type ControlledNode = (Control, Arc<Table>);

/// Far ends of a leaf's ports.
pub struct PortEnds {
    /// End on the clients' side.
    pub clients: SpreadingEnd,
    /// End on the workers' side.
    pub workers: SpreadingEnd,
    /// Source of packet buffers.
    pub pool: FramePool,
}

impl LocalLeaf {
    /// Creates the configured leaf with `frames` packet buffers. The first port is the clients', the second
    /// the workers'.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: &Config, frames: usize) -> Result<(Self, PortEnds), String> {
        let (local, ends, _) = Self::with_control(config, frames)?;
        Ok((local, ends))
    }

    /// Like [`LocalLeaf::new`], but also returns the handle that changes the leaf between turns.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn with_control(
        config: &Config,
        frames: usize,
    ) -> Result<(Self, PortEnds, ControlledNode), String> {
        // MAC addresses of ports without a configured one.
        let macs = (0..).map(|port| Mac([2, 0, 0, 0, port, 1]));
        let hz = ClockFile::TICKS_HZ;
        // The table is the memory of the node's counters and state. The stages are the packet path of each core. The
        // control sends changes to the cores as commands.
        let table = assembly::table(config, hz).map_err(|error| error.to_string())?;
        let membership = Membership::of(config);
        let stages = assembly::stages(config, &membership, macs, &table);
        let stages = stages.map_err(|error| error.to_string())?;
        let (control, commands) = assembly::cores(&stages);
        let pool = FramePool::new(frames, FRAME_BYTES);
        let (mut clients, mut workers) = (Vec::new(), Vec::new());
        // Creates a core on the near ends of two wires, and collects the far ends.
        let core = |(stages, commands)| {
            let ((near_clients, far_clients), (near_workers, far_workers)) =
                (pair(DEPTH, &pool), pair(DEPTH, &pool));
            clients.push(far_clients);
            workers.push(far_workers);
            let ports = vec![near_clients, near_workers];
            Leaf::new(stages, ports, pool.clone(), commands, Timing { ticks_hz: hz })
        };
        let cores: Vec<_> = stages.into_iter().zip(commands).map(core).collect();
        let spread = |queues: Vec<_>, replies| SpreadingEnd {
            cores: Cores { count: queues.len(), ..Cores::ONE },
            queues,
            replies,
        };
        let (clients, workers) = (spread(clients, false), spread(workers, true));
        let control = Control::of(Arc::clone(&table), membership, control);
        Ok((Self { cores, polls: 0 }, PortEnds { clients, workers, pool }, (control, table)))
    }

    /// Returns the leaf's first core. A leaf with one core has only this one.
    #[must_use]
    pub fn leaf(&self) -> &Leaf<RingPort, FramePool> {
        &self.cores[0]
    }

    /// Returns all cores.
    #[must_use]
    pub fn cores(&self) -> &[Leaf<RingPort, FramePool>] {
        &self.cores
    }

    /// Returns all cores by value. The caller closes them, which drops and counts the held packets.
    #[must_use]
    pub fn into_cores(self) -> Vec<Leaf<RingPort, FramePool>> {
        self.cores
    }

    /// Returns the leaf's first core, to be changed between turns.
    pub fn leaf_mut(&mut self) -> &mut Leaf<RingPort, FramePool> {
        &mut self.cores[0]
    }
}

/// Far end of a device with one queue per core. It spreads packets by their tasks' numbers, as the simulator
/// does; packets other than tasks and replies go to the first queue.
pub struct SpreadingEnd {
    queues: Vec<RingPort>,
    /// Rule that assigns packets to cores.
    cores: Cores,
    /// True on the workers' side, whose packets are replies.
    replies: bool,
}

impl SpreadingEnd {
    /// Sets whether replies reach the core that sent the task (true), or a core given by another hash (false).
    pub fn set_steered(&mut self, steered: bool) {
        self.cores.steered = steered;
    }

    /// Returns the far ends of the queues.
    #[must_use]
    pub fn into_queues(self) -> Vec<RingPort> {
        self.queues
    }

    /// Returns the queue for a frame: that of its task's number, or queue 0 for a frame too short for a number.
    fn queue_of(&self, frame: &[u8]) -> usize {
        // The clients' tasks and the workers' replies have the extension, and no IP options.
        if self.cores.count == 1 || frame.len() < udp::PAYLOAD + task::LEN + task::EXTENSION_LEN {
            return 0;
        }
        let number = u64::from(Extension::parse(&frame[udp::PAYLOAD..]).seq32);
        if self.replies { self.cores.of_reply(number) } else { self.cores.of_task(number) }
    }
}

impl Port for SpreadingEnd {
    type Buf = Frame;

    /// Receives the packets that the cores sent, core by core.
    fn rx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        self.queues.iter_mut().map(|queue| queue.rx_burst(burst)).sum()
    }

    /// Sends the packets in order, each to its core's queue. Stops at the first full queue, and leaves the rest in
    /// `burst`.
    fn tx_burst(&mut self, burst: &mut Burst<Frame>) -> usize {
        let mut sent = 0;
        while let Some(first) = burst.first() {
            let queue = self.queue_of(first.bytes());
            let mut single: Burst<Frame> = burst.drain(..1).collect();
            if self.queues[queue].tx_burst(&mut single) == 0 {
                // The queue is full: puts the packet back in front.
                burst.extend(single);
                burst.rotate_right(1);
                break;
            }
            sent += 1;
        }
        sent
    }
}

impl Scheduler for LocalLeaf {
    /// Polls all cores in turn until no core moves a packet. Returns the sums of their packets, and the earliest of
    /// their timers.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let Self { cores, polls } = self;
        let poll = |cores: &mut Vec<_>| {
            cores.iter_mut().for_each(|core: &mut Leaf<_, _>| _ = core.poll(now_ns));
        };
        Ok(until_quiet(polls, cores, poll, |cores| {
            let none = Progress { timer: u64::MAX, ..Progress::default() };
            cores.iter().map(Leaf::progress).fold(none, Progress::and)
        }))
    }
}

/// An agent in this process, on a port in memory, with channels for workers that attach to its memory region.
pub struct LocalAgent {
    agent: Agent<RingPort, FramePool>,
    region: Arc<WorkerRegion>,
    /// Number of polls so far, over all turns.
    polls: u64,
}

impl LocalAgent {
    /// Creates the configured agent. Also returns the far end of its port, and the source of packet buffers.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: &AgentConfig, frames: usize) -> Result<(Self, RingPort, FramePool), String> {
        let pool = FramePool::new(frames, FRAME_BYTES);
        let (agent, far) = Self::with_pool(config, &pool, None)?;
        Ok((agent, far, pool))
    }

    /// Like [`LocalAgent::new`], with packets from `pool`. For an agent with peers (agents that forward tasks to each
    /// other), `settings` replace the usual settings, if given. The usual ones contain the real start time.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn with_pool(
        config: &AgentConfig,
        pool: &FramePool,
        settings: Option<Settings>,
    ) -> Result<(Self, RingPort), String> {
        let host = &config.host;
        let table = agent::table(config, ClockFile::TICKS_HZ).map_err(|error| error.to_string())?;
        let region = WorkerRegion::heap_for(&host.identities(), host.shape());
        let region = Arc::new(region.map_err(|error| error.to_string())?);
        let (near, far) = pair(DEPTH, pool);
        // Returns the agent's end of a worker's channel.
        let link = |channel| region.channel(channel).into();
        let mut parts = agent::parts(config, &table, link, pool.clone());
        if let Some(settings) = settings {
            parts.peers = peers::peer_group(config, settings, &table);
        }
        let ports = [near].into_iter().zip(config.addresses([Mac([2, 0, 0, 0, 0, 2])]));
        let agent = Agent::new(parts, ports.collect());
        Ok((Self { agent, region, polls: 0 }, far))
    }

    /// Returns the agent.
    #[must_use]
    pub fn agent(&self) -> &Agent<RingPort, FramePool> {
        &self.agent
    }

    /// Returns the agent by value. The caller closes it, which drops and counts the held tasks.
    #[must_use]
    pub fn into_agent(self) -> Agent<RingPort, FramePool> {
        self.agent
    }

    /// Returns the region that the workers attach to.
    #[must_use]
    pub fn region(&self) -> &Arc<WorkerRegion> {
        &self.region
    }
}

impl Scheduler for LocalAgent {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let Self { agent, polls, .. } = self;
        Ok(until_quiet(polls, agent, |agent| _ = agent.poll(now_ns), Agent::progress))
    }
}

/// Gives a node a turn: polls until `QUIET_POLLS` polls in a row moved no packet. Adds the polls to `polls`. Returns
/// the node's progress so far.
#[inline]
fn until_quiet<N>(
    polls: &mut u64,
    node: &mut N,
    poll: impl Fn(&mut N),
    progress: impl Fn(&N) -> Progress,
) -> Line {
    let (mut quiet, mut last) = (0, progress(node));
    while quiet < QUIET_POLLS {
        poll(node);
        *polls += 1;
        let now = progress(node);
        let moved = (now.received, now.sent) != (last.received, last.sent);
        quiet = if moved { 0 } else { quiet + 1 };
        last = now;
    }
    let Progress { received, sent, timer, .. } = last;
    Line { polls: *polls, received, sent, timer_ns: timer }
}
