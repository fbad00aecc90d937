//! What the tests of agents share: an agent of one pool on any port, workers of the same thread, and packets.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::Agent;
use super::agent::{Death, Packet, Parts, PoolWorkers, Registrar, WorkerLink, WorkerSet};
use crate::io::Port;
use crate::io::memory::{Frame, FramePool};
use crate::node::Timing;
use crate::policy::{Core, Dispatcher};
use crate::ring::{Place, WorkerEnd, WorkerRegion};
use crate::stage::{Overflow, PortAddress};
use crate::state::{Counters, View};
use crate::wire::task::{Extension, Header};
use crate::wire::udp::{self, Flow};

/// Ticks, one a microsecond.
pub const HZ: u64 = 1_000_000;
/// Ticks of silence after which a worker is shut out.
pub const TIMEOUT: u64 = 50_000;

/// An agent's only pool.
pub struct Pool<'a> {
    pub policy: &'a str,
    /// None of them there yet.
    pub places: Vec<Place>,
    pub queue: usize,
    pub overflow: Overflow,
    pub payload: usize,
}

/// What tests need of an agent: its region, where workers attach, and its queue of deaths.
pub struct AgentHandles {
    pub region: Arc<WorkerRegion>,
    pub deaths: Arc<ArrayQueue<Death>>,
}

impl AgentHandles {
    /// A worker at this place, which the agent lets in when it is next polled.
    pub fn claim(&self, at: usize) -> WorkerEnd {
        self.region.claim(at).unwrap().expect("the place is free")
    }

    /// The agent is told that the process of the worker at this place, which had this claim, has ended.
    pub fn tell_of_death(&self, at: usize, claim: u64) {
        self.deaths.push(Death { channel: at, claim }).unwrap();
    }
}

/// An agent with this port and address, that registers its workers.
pub fn agent<P: Port<Buf = Frame>>(
    (port, address): (P, PortAddress),
    frames: &FramePool,
    pool: Pool<'_>,
    registrar: Registrar,
) -> (Agent<P, FramePool>, AgentHandles) {
    agent_by((port, address), frames, pool, registrar, None)
}

/// The same with workers that have these links, rather than those of the region.
pub fn agent_by<P: Port<Buf = Frame>>(
    (port, address): (P, PortAddress),
    frames: &FramePool,
    pool: Pool<'_>,
    registrar: Registrar,
    links: Option<Vec<WorkerLink<Packet<Frame>>>>,
) -> (Agent<P, FramePool>, AgentHandles) {
    let Pool { policy, places, queue, overflow, payload } = pool;
    let region = Arc::new(WorkerRegion::heap(&places, 8, payload).unwrap());
    let view = View::heap(places.len(), 1).remove(0);
    let dispatcher =
        Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7).with_queue(queue, overflow);
    let copied = || (0..places.len()).map(|at| region.channel(at).into()).collect();
    let entries = places.iter().copied().zip(links.unwrap_or_else(copied));
    let workers = WorkerSet::new(dispatcher, entries.collect(), TIMEOUT);
    let deaths = Arc::new(ArrayQueue::new(8));
    let agent = Agent::new(Parts {
        ports: vec![(port, address)],
        worker_sets: vec![PoolWorkers { pool: Some(places[0].pool), workers }],
        places,
        pool: frames.clone(),
        udp_port: 1234,
        payload_max: payload,
        registrar: Some(registrar),
        deaths: Arc::clone(&deaths),
        counters: Counters::heap(),
        timing: Timing { ticks_hz: HZ },
    });
    (agent, AgentHandles { region, deaths })
}

/// What goes with the task of this number when its header has an extension.
pub fn extension(seq: u16) -> Extension {
    Extension { app: 5, seq32: 0xABCD_0000 | u32::from(seq), service_ns: 9, class: 4 }
}

/// A packet with this header and what comes behind it.
pub fn datagram(flow: &Flow, header: &Header, behind: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; udp::PAYLOAD + header.len()];
    header.emit(&mut bytes[udp::PAYLOAD..]);
    if header.extended {
        extension(header.seq).emit(&mut bytes[udp::PAYLOAD..]);
    }
    bytes.extend_from_slice(behind);
    flow.emit(&mut bytes, header.len() + behind.len());
    bytes
}

/// Does the worker_end's next task and answers with its bytes.
pub fn work(worker_end: &mut WorkerEnd) -> bool {
    let there = worker_end.take().unwrap();
    let echo = |request: &[u8], reply: &mut [u8]| {
        reply[..request.len()].copy_from_slice(request);
        request.len()
    };
    worker_end.answer(echo, || 1500);
    there
}
