//! Packets that their owner keeps for a context: which of them wait for what, by the places that the owner keeps them at.

use arrayvec::ArrayVec;

use crate::limits::{BURST, UNRESOLVED_HELD_MAX};
use crate::policy::Dispatcher;
use crate::role::resolver::ArpResolver;
use crate::stage::{CentralQueue, Stages};
use crate::state::neighbour::Slot;

/// A task in its pool's central queue.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Where its owner keeps it.
    pub place: u32,
    /// Index of the port that it came to.
    pub port: u8,
}

/// A packet that lacks only its next hop's MAC address.
#[derive(Clone, Copy, Debug)]
pub struct Complete {
    pub place: u32,
    pub port: u8,
    pub worker: u16,
}

/// What waits. All memory is taken when it is made.
#[derive(Debug)]
pub struct Held {
    /// Places where nothing is kept.
    free: Vec<u32>,
    places: usize,
    /// Those that wait for a neighbour, and the questions for it.
    pub resolver: ArpResolver<Complete>,
    /// Those that had to make room for others, to be given back.
    pub pushed_out: ArrayVec<u32, BURST>,
    /// Those that wait for a worker: a queue for each pool, in the network's order.
    pub central: Vec<CentralQueue<Waiting>>,
}

impl Held {
    pub fn new(stages: &Stages, ask_ms: u64) -> Self {
        let bounds: Vec<_> =
            (0..stages.network().pools()).map(|pool| bound(stages, pool)).collect();
        let places = UNRESOLVED_HELD_MAX + BURST + bounds.iter().sum::<usize>();
        Self {
            // Low places are given out first.
            free: (0..places as u32).rev().collect(),
            places,
            resolver: ArpResolver::new(ask_ms),
            pushed_out: ArrayVec::new(),
            central: bounds.into_iter().map(CentralQueue::new).collect(),
        }
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.places
    }

    /// A packet waits for its next hop; it is kept at the place returned, if there is room and the next hop is asked for.
    pub fn hold(
        &mut self,
        port: u8,
        worker: u16,
        slot: Slot,
        address: u32,
        now_ms: u64,
    ) -> Option<u32> {
        let place = self.free.pop()?;
        let held = self.hold_at(Complete { place, port, worker }, slot, address, now_ms);
        if !held {
            self.free.push(place);
        }
        held.then_some(place)
    }

    /// The same for a packet that has its place.
    pub fn hold_at(&mut self, packet: Complete, slot: Slot, address: u32, now_ms: u64) -> bool {
        if self.pushed_out.is_full() {
            return false;
        }
        let oldest = self.resolver.hold(packet, packet.port, slot, address, now_ms);
        self.pushed_out.extend(oldest.map(|oldest| oldest.place));
        true
    }

    /// A task waits, last in its pool's queue; it is kept at the place returned, if there is room.
    pub fn enqueue(&mut self, pool: usize, port: usize) -> Option<u32> {
        let place = self.free.pop()?;
        let waits = self.central[pool].push(Waiting { place, port: port as u8 }).is_ok();
        if !waits {
            self.free.push(place);
        }
        waits.then_some(place)
    }

    /// Nothing is kept there any more.
    pub fn leave(&mut self, place: u32) {
        self.free.push(place);
    }
}

/// How many tasks of a pool may wait: none unless its policy lets them.
fn bound(stages: &Stages, pool: usize) -> usize {
    let holds = stages.dispatcher(pool).is_some_and(Dispatcher::holds);
    if holds { stages.backlog(pool).bound() } else { 0 }
}
