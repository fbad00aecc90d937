//! What the tests of agents share: an agent of one pool on any port, workers of the same thread, and packets.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::Agent;
use super::agent::{Crew, Death, Packet, Parts, PoolCrew, Registrar, Way};
use crate::io::Port;
use crate::io::memory::{Frame, FramePool};
use crate::node::Timing;
use crate::policy::{Core, Dispatcher};
use crate::ring::{Guest, Place, WorkerRegion};
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

/// What an agent's workers come by and go by.
pub struct Doors {
    pub region: Arc<WorkerRegion>,
    pub deaths: Arc<ArrayQueue<Death>>,
}

impl Doors {
    /// A worker at this place, which the agent lets in when it is next polled.
    pub fn claim(&self, at: usize) -> Guest {
        self.region.claim(at).unwrap().expect("the place is free")
    }

    /// The agent is told that the process of the worker at this place, which had this claim, has ended.
    pub fn tell_of_death(&self, at: usize, claim: u64) {
        self.deaths.push(Death { crew: 0, worker: at, claim }).unwrap();
    }
}

/// An agent with this port and address, that registers its workers.
pub fn agent<P: Port<Buf = Frame>>(
    (port, address): (P, PortAddress),
    frames: &FramePool,
    pool: Pool<'_>,
    registrar: Registrar,
) -> (Agent<P, FramePool>, Doors) {
    agent_by((port, address), frames, pool, registrar, None)
}

/// The same with workers that get their tasks in these ways, rather than in the region's.
pub fn agent_by<P: Port<Buf = Frame>>(
    (port, address): (P, PortAddress),
    frames: &FramePool,
    pool: Pool<'_>,
    registrar: Registrar,
    ways: Option<Vec<Way<Packet<Frame>>>>,
) -> (Agent<P, FramePool>, Doors) {
    let Pool { policy, places, queue, overflow, payload } = pool;
    let region = Arc::new(WorkerRegion::heap(&places, 8, payload).unwrap());
    let view = View::heap(places.len(), 1).remove(0);
    let dispatcher = Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7);
    let copied = || (0..places.len()).map(|at| region.channel(at).into()).collect();
    let seats = places.iter().copied().zip(ways.unwrap_or_else(copied));
    let crew = Crew::new(dispatcher, seats.collect(), queue, TIMEOUT);
    let deaths = Arc::new(ArrayQueue::new(8));
    let agent = Agent::new(Parts {
        ports: vec![(port, address)],
        crews: vec![PoolCrew { pool: places[0].pool, overflow, crew }],
        places,
        pool: frames.clone(),
        udp_port: 1234,
        payload_max: payload,
        registrar: Some(registrar),
        deaths: Arc::clone(&deaths),
        counters: Counters::heap(),
        timing: Timing { ticks_hz: HZ },
    });
    (agent, Doors { region, deaths })
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

/// Does the guest's next task and answers with its bytes.
pub fn work(guest: &mut Guest) -> bool {
    let there = guest.take().unwrap();
    let echo = |request: &[u8], reply: &mut [u8]| {
        reply[..request.len()].copy_from_slice(request);
        request.len()
    };
    guest.answer(echo, || 1500);
    there
}
