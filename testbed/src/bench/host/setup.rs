//! The agents of the benchmarks: one port, one pool, a region of workers.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use wedjat::io::Token;
use wedjat::io::{Pool, Port};
use wedjat::node::Timing;
use wedjat::policy::{Core, Dispatcher, Overflow};
use wedjat::ring::{Place, WorkerRegion};
use wedjat::role::Agent;
use wedjat::role::agent::{AgentCommands, Death, Parts, PoolWorkers, WorkerLink, WorkerSet};
use wedjat::stage::{PortAddress, Side};
use wedjat::state::{Counters, View};
use wedjat::wire::ether::Mac;

use super::Failure;

/// The agent's address.
pub const IP: u32 = 0x0A00_020B;
/// Its MAC address.
pub const MAC: Mac = Mac([2, 0, 0, 0, 2, 11]);
/// Its clients' address.
pub const CLIENT_IP: u32 = 0x0A00_0201;
/// Its pool.
pub const POOL: u16 = 1;
/// Tasks that may wait in it.
pub const QUEUE: usize = 16_384;
/// Bytes that a task may have.
pub const PAYLOAD: usize = 64;

/// Places for so many workers.
#[must_use]
pub fn places(workers: u16) -> Vec<Place> {
    (0..workers).map(|id| Place { id, pool: POOL }).collect()
}

/// An agent of the workers of this region; `deaths` tells it whose process has ended.
///
/// # Errors
/// When there is no such policy.
pub fn agent<P, A>(
    port: P,
    pool: A,
    policy: &str,
    region: &WorkerRegion,
    deaths: Arc<ArrayQueue<Death>>,
    ticks_hz: u64,
) -> Result<Agent<P, A>, Failure>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    let places: Vec<_> = (0..region.shape().channels).filter_map(|at| region.place(at)).collect();
    let view = View::heap(places.len(), 1).remove(0);
    let dispatcher =
        Dispatcher::new(&policy.parse()?, view, Core::ONLY, 1).with_queue(QUEUE, Overflow::Drop);
    let entries =
        places.iter().enumerate().map(|(at, &place)| (place, WorkerLink::from(region.channel(at))));
    let workers = WorkerSet::new(dispatcher, entries.collect(), u64::MAX);
    let address = PortAddress { mac: MAC, ip: IP, prefix: 24, side: Side::Both, gateway: None };
    let room = (1, places.len());
    let parts = Parts {
        worker_sets: vec![PoolWorkers { pool: Some(POOL), workers }],
        places,
        pool,
        udp_port: wedjat::wire::task::UDP_PORT,
        payload_max: PAYLOAD,
        registrar: None,
        deaths,
        counters: Counters::heap(),
        timing: Timing { ticks_hz },
        commands: AgentCommands::default(),
        room,
    };
    Ok(Agent::new(parts, vec![(port, address)]))
}
