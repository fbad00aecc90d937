//! Spines, leaves and agents as the conductor of several nodes has them: turns, packets in and out, and, where they are in this
//! process, a look inside.

use std::sync::Arc;

use wedjat::clock::{Line, TurnError};
use wedjat::config::Config;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::io::{Buf as _, Port as _};
use wedjat::policy::Dispatcher;
use wedjat::ring::WorkerRegion;
use wedjat::state::{Counters, Gauge};

use super::check::Violation;
use super::faults::Who;
use super::plan::Plan;
use crate::lockstep::local::{Controlled, LocalAgent, Spread};
use crate::lockstep::{Local, Scheduler};

/// Packets that a node and its ports have at most.
const FRAMES: usize = 8192;

/// A node, as the conductor drives it.
pub trait Node {
    /// Has it poll at this time until it is quiet; what it has done so far.
    ///
    /// # Errors
    /// Why it has not become quiet.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError>;

    /// Puts a packet into one of its ports; false when that takes none.
    fn give(&mut self, port: usize, frame: &[u8]) -> bool;

    /// Takes the packets that have come out of a port.
    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8]));

    /// What is inside; none of a node that is another process.
    fn inside(&self) -> Option<Inside<'_>>;

    /// What its workers attach to, of an agent.
    fn region(&self) -> Option<Arc<WorkerRegion>>;

    /// It does nothing for a while, or goes on: its process is stopped or continued.
    ///
    /// # Errors
    /// What the system said.
    fn pause(&mut self, paused: bool) -> Result<(), String>;

    /// What of it is other than a controller says, and since when nothing has held it up; none where no controller does, or all is as
    /// it says.
    fn differs(&self) -> Option<(String, u64)> {
        None
    }

    /// It ends: at once when it is killed, in order otherwise.
    ///
    /// # Errors
    /// What its account says against it.
    fn end(self: Box<Self>, killed: bool) -> Result<(), String>;
}

/// What a node in this process has and knows.
pub struct Inside<'a> {
    /// What it did.
    pub counters: &'a Counters,
    /// Packets that wait in it, or are with its workers.
    pub held: u64,
    /// Tasks, among them, that wait for any worker.
    pub waiting: usize,
    /// Tasks, among these, of a pool whose workers are all drained: nobody is to do them.
    pub stranded: u64,
    /// Packet buffers in use, in its ports too.
    pub buffers: usize,
    /// What it decides with, for its first pool.
    pub dispatcher: Option<&'a Dispatcher>,
}

/// What makes nodes, and makes them anew after they were killed.
pub trait Maker {
    /// A new node.
    ///
    /// # Errors
    /// Why there is none.
    fn make(&mut self, plan: &Plan, who: Who) -> Result<Box<dyn Node>, String>;

    /// It is the time of one of the plan's acts, of this number.
    ///
    /// # Errors
    /// Why it can't be done.
    fn act(&mut self, _number: usize, _now_ns: u64) -> Result<(), String> {
        Ok(())
    }

    /// Violations that the maker has recorded, asked for at the end.
    fn violations(&self) -> Vec<Violation> {
        Vec::new()
    }
}

/// Makes nodes in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Maker for InMemory {
    fn make(&mut self, plan: &Plan, who: Who) -> Result<Box<dyn Node>, String> {
        match who {
            Who::Agent(number) => Ok(Box::new(agent(plan, number)?)),
            Who::Spine(number) => Ok(Box::new(local(&plan.spine_config(number)?)?)),
            Who::Leaf(number) => Ok(Box::new(local(&plan.leaf_config(number)?)?)),
            Who::Clients(_) | Who::Worker(_) => Err(format!("{who} is no node")),
        }
    }
}

/// A node in this process, and the far ends of its ports.
pub struct Memory<S> {
    /// The node.
    pub scheduler: S,
    /// The far ends of its ports.
    pub ends: Vec<RingPort>,
    /// Where its packets come from.
    pub pool: FramePool,
}

/// A leaf or spine in this process.
///
/// # Errors
/// What is wrong with its configuration.
pub fn local(config: &Config) -> Result<Memory<Local>, String> {
    Ok(controlled(config)?.0)
}

/// The same, and what changes it between turns.
///
/// # Errors
/// What is wrong with its configuration.
pub fn controlled(config: &Config) -> Result<(Memory<Local>, Controlled), String> {
    let (scheduler, ends, control) = Local::with_control(config, FRAMES)?;
    let sides = [ends.clients, ends.workers].into_iter();
    let ends_of_ports = sides.flat_map(Spread::into_queues).collect();
    Ok((Memory { scheduler, ends: ends_of_ports, pool: ends.pool }, control))
}

/// An agent in this process.
///
/// # Errors
/// What is wrong with its configuration.
pub fn agent(plan: &Plan, number: u16) -> Result<Memory<LocalAgent>, String> {
    let config = plan.agent_config(number)?;
    let (scheduler, end, pool) = LocalAgent::new(&config, FRAMES)?;
    Ok(Memory { scheduler, ends: vec![end], pool })
}

/// What a kind of node shows of itself.
pub trait Shows {
    /// What is inside; `buffers` are in use.
    fn inside(&self, buffers: usize) -> Inside<'_>;

    /// What workers attach to.
    fn region(&self) -> Option<Arc<WorkerRegion>>;

    /// It ends in order.
    fn close(self);
}

impl Shows for Local {
    fn inside(&self, buffers: usize) -> Inside<'_> {
        let stages = self.leaf().stages();
        let (counters, waiting) = (stages.counters(), stages.waiting());
        let dispatcher = stages.dispatcher(0);
        Inside {
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

impl Shows for LocalAgent {
    fn inside(&self, buffers: usize) -> Inside<'_> {
        let agent = self.agent();
        let dispatcher = agent.dispatchers().next();
        let (counters, held) = (agent.counters(), agent.held() as u64);
        Inside { counters, held, waiting: agent.waiting(), stranded: 0, buffers, dispatcher }
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        Some(Arc::clone(LocalAgent::region(self)))
    }

    fn close(self) {
        self.into_agent().close();
    }
}

impl<S: Scheduler + Shows> Node for Memory<S> {
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

    fn inside(&self) -> Option<Inside<'_>> {
        Some(self.scheduler.inside(self.pool.in_use()))
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        self.scheduler.region()
    }

    fn pause(&mut self, _: bool) -> Result<(), String> {
        Ok(()) // it gets no turns
    }

    fn end(self: Box<Self>, killed: bool) -> Result<(), String> {
        let Self { scheduler, mut ends, pool } = *self;
        if !killed {
            scheduler.close();
        } else {
            drop(scheduler);
        }
        let mut burst = wedjat::io::Burst::new();
        for end in &mut ends {
            while end.rx_burst(&mut burst) > 0 {
                burst.clear();
            }
        }
        drop(ends);
        match pool.in_use() {
            0 => Ok(()),
            buffers => Err(format!("{buffers} packet buffers have not come back to their pool")),
        }
    }
}
