//! Interface between the conductor and its nodes (spines, leaves and agents): turns, packets in and out, and,
//! for nodes in this process, their state. The conductor is the code that advances emulated time. In a turn, a
//! node polls until it is quiet.

use std::sync::Arc;

use wedjat::clock::{Line, TurnError};
use wedjat::config::Config;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::io::{Buf as _, Port as _};
use wedjat::policy::Dispatcher;
use wedjat::ring::WorkerRegion;
use wedjat::state::{Counters, Gauge};

use super::faults::FaultTarget;
use super::plan::Plan;
use crate::lockstep::local::{ControlledNode, LocalAgent, SpreadingEnd};
use crate::lockstep::{LocalLeaf, Scheduler};

/// Maximum number of packets of a node and its ports.
const FRAMES: usize = 8192;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Time of the observation, in nanoseconds.
    pub at_ns: u64,
    /// Name of the node.
    pub node: String,
    /// Description of the violation.
    pub description: String,
}

/// A node driven by the conductor.
pub trait Node {
    /// Lets the node poll at time `now_ns` until it is quiet. Returns its progress so far.
    ///
    /// # Errors
    /// If the node does not become quiet.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError>;

    /// Puts a packet into one of the node's ports. Returns false if the port is full.
    fn give(&mut self, port: usize, frame: &[u8]) -> bool;

    /// Takes the packets that the node sent from a port, and passes each to `each`.
    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8]));

    /// Returns the state of a node in this process; `None` for a node in another process.
    fn local_state(&self) -> Option<LocalNodeState<'_>>;

    /// Returns the region (shared memory) that an agent's workers attach to; `None` for other nodes.
    fn region(&self) -> Option<Arc<WorkerRegion>>;

    /// Pauses or resumes the node: stops or continues its process.
    ///
    /// # Errors
    /// The system's error.
    fn pause(&mut self, paused: bool) -> Result<(), String>;

    /// Returns the node's difference from its controller's desired state, and the start of the allowed delay: the last
    /// change of either state. Returns `None` without a controller or difference.
    fn differs(&self) -> Option<(String, u64)> {
        None
    }

    /// Ends the node: at once if `killed`, in order otherwise.
    ///
    /// # Errors
    /// The error in the node's final account.
    fn end(self: Box<Self>, killed: bool) -> Result<(), String>;
}

/// State of a node in this process.
pub struct LocalNodeState<'a> {
    /// Counters of the node.
    pub counters: &'a Counters,
    /// Packets that wait in the node or are at its workers.
    pub held: u64,
    /// Tasks among them that wait for any worker.
    pub waiting: usize,
    /// Waiting tasks of pools whose workers are all drained, so that no worker may take them. Always 0 without a
    /// controller: nothing else drains workers.
    pub stranded: u64,
    /// Packet buffers in use, including those in the node's ports.
    pub buffers: usize,
    /// Dispatcher of the node's first pool.
    pub dispatcher: Option<&'a Dispatcher>,
}

/// Factory of nodes, also of the replacements of killed nodes.
pub trait NodeFactory {
    /// Creates a node.
    ///
    /// # Errors
    /// If the node cannot be created.
    fn make(&mut self, plan: &Plan, target: FaultTarget) -> Result<Box<dyn Node>, String>;

    /// Executes the plan's act number `_number` at its time, for example an operator's command.
    ///
    /// # Errors
    /// If the act fails.
    fn act(&mut self, _number: usize, _now_ns: u64) -> Result<(), String> {
        Ok(())
    }

    /// Returns the violations that the factory has recorded. Called at the end.
    fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
}

/// Factory of nodes in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl NodeFactory for InMemory {
    fn make(&mut self, plan: &Plan, target: FaultTarget) -> Result<Box<dyn Node>, String> {
        match target {
            FaultTarget::Agent(number) => Ok(Box::new(agent(plan, number)?)),
            FaultTarget::Spine(number) => Ok(Box::new(local(&plan.spine_config(number)?)?)),
            FaultTarget::Leaf(number) => Ok(Box::new(local(&plan.leaf_config(number)?)?)),
            FaultTarget::Clients(_) | FaultTarget::Worker(_) => {
                Err(format!("{target} is not a node"))
            }
        }
    }
}

/// A node in this process, with the far ends of its ports.
pub struct Memory<S> {
    /// The node.
    pub scheduler: S,
    /// Far ends of the node's ports.
    pub ends: Vec<RingPort>,
    /// Source of the node's packet buffers.
    pub pool: FramePool,
}

/// Creates a leaf or spine in this process.
///
/// # Errors
/// If the configuration is invalid.
pub fn local(config: &Config) -> Result<Memory<LocalLeaf>, String> {
    Ok(controlled(config)?.0)
}

/// Like [`local`], but also returns the handle that changes the node between turns.
///
/// # Errors
/// If the configuration is invalid.
pub fn controlled(config: &Config) -> Result<(Memory<LocalLeaf>, ControlledNode), String> {
    let (scheduler, ends, control) = LocalLeaf::with_control(config, FRAMES)?;
    // Nodes of a plan have one core, so each side has one queue, and the number of a queue is that of its port.
    let sides = [ends.clients, ends.workers].into_iter();
    let ends_of_ports = sides.flat_map(SpreadingEnd::into_queues).collect();
    Ok((Memory { scheduler, ends: ends_of_ports, pool: ends.pool }, control))
}

/// Creates an agent in this process.
///
/// # Errors
/// If the configuration is invalid.
pub fn agent(plan: &Plan, number: u16) -> Result<Memory<LocalAgent>, String> {
    let config = plan.agent_config(number)?;
    let (scheduler, end, pool) = LocalAgent::new(&config, FRAMES)?;
    Ok(Memory { scheduler, ends: vec![end], pool })
}

/// Access to the state of one kind of node.
pub trait NodeStatus {
    /// Returns the node's state; `buffers` is the number of packet buffers in use.
    fn local_state(&self, buffers: usize) -> LocalNodeState<'_>;

    /// Returns the region that the node's workers attach to.
    fn region(&self) -> Option<Arc<WorkerRegion>>;

    /// Ends the node in order.
    fn close(self);
}

impl NodeStatus for LocalLeaf {
    fn local_state(&self, buffers: usize) -> LocalNodeState<'_> {
        let stages = self.leaf().stages();
        let (counters, waiting) = (stages.counters(), stages.waiting());
        let dispatcher = stages.dispatcher(0);
        LocalNodeState {
            counters,
            held: counters.read(Gauge::Held),
            waiting,
            stranded: 0,
            buffers,
            dispatcher,
        }
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        None
    }

    fn close(self) {
        self.into_cores().into_iter().for_each(|core| _ = core.close());
    }
}

impl NodeStatus for LocalAgent {
    fn local_state(&self, buffers: usize) -> LocalNodeState<'_> {
        let agent = self.agent();
        let dispatcher = agent.dispatchers().next();
        let (counters, held) = (agent.counters(), agent.held() as u64);
        LocalNodeState {
            counters,
            held,
            waiting: agent.waiting(),
            stranded: 0,
            buffers,
            dispatcher,
        }
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        Some(Arc::clone(LocalAgent::region(self)))
    }

    fn close(self) {
        self.into_agent().close();
    }
}

impl<S: Scheduler + NodeStatus> Node for Memory<S> {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        self.scheduler.turn(now_ns)
    }

    fn give(&mut self, port: usize, frame: &[u8]) -> bool {
        self.ends[port].send(frame)
    }

    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8])) {
        while let Some(frame) = self.ends[port].receive() {
            each(frame.bytes());
        }
    }

    fn local_state(&self) -> Option<LocalNodeState<'_>> {
        Some(self.scheduler.local_state(self.pool.in_use()))
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        self.scheduler.region()
    }

    fn pause(&mut self, _: bool) -> Result<(), String> {
        Ok(()) // a paused node gets no turns
    }

    /// Ends the node. All its packet buffers must return to the pool.
    fn end(self: Box<Self>, killed: bool) -> Result<(), String> {
        let Self { scheduler, mut ends, pool } = *self;
        if !killed {
            scheduler.close();
        } else {
            drop(scheduler);
        }
        // Packets in the ports use buffers too.
        let mut burst = wedjat::io::Burst::new();
        for end in &mut ends {
            while end.rx_burst(&mut burst) > 0 {
                burst.clear();
            }
        }
        drop(ends);
        match pool.in_use() {
            0 => Ok(()),
            buffers => Err(format!("{buffers} packet buffers did not return to their pool")),
        }
    }
}
