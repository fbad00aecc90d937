//! Stages: each takes a whole burst and does one thing to it. No I/O, no clock, no allocation.
//!
//! [`parse`] reads bytes into values, [`classify`] feeds replies and ARP into the state, [`schedule`] picks
//! members for tasks, [`rewrite`] turns packets towards their next hop. [`Stages`] holds what one core's
//! stages work with and runs them in this order: the library's burst call, which `role` drives with ports.

pub mod central;
pub mod classify;
pub mod connections;
mod lane;
pub mod network;
pub mod parse;
mod plain;
pub mod rewrite;
pub mod schedule;

use std::sync::Arc;

pub use central::{CentralQueue, Overflow};
pub use connections::Connections;
pub use network::{Network, PortAddress, Server, Side};
pub use parse::{Kind, Packet};

use crate::io::Buf;
use crate::limits::BURST;
use crate::policy::Dispatcher;
use crate::reason::DropReason;
use crate::state::neighbour::Slot;
use crate::state::{Counter, Counters, Neighbours};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Rewritten; send it out of this port.
    Forward {
        /// Index of the port.
        port: u8,
    },
    /// Rewritten but for its destination MAC address, which is not known yet: hold it until the
    /// neighbour's slot is resolved, or drop it.
    Hold {
        /// Index of the port.
        port: u8,
        /// The neighbour.
        slot: Slot,
    },
    /// Used up, and turned into an answer to be sent out of the port it came from (ARP).
    Answer,
    /// Used up.
    Consumed,
    /// To be dropped; already counted.
    Drop(DropReason),
}

/// What one core's stages work with.
#[derive(Debug)]
pub struct Stages {
    pub(crate) network: Arc<Network>,
    pub(crate) neighbours: Neighbours,
    /// One for each pool, in the network's order.
    pub(crate) dispatchers: Vec<Dispatcher>,
    pub(crate) connections: Connections,
    pub(crate) counters: Counters,
    /// What is plain on each port.
    plain: Box<[plain::Plain]>,
    packets: Box<[Packet]>,
}

impl Stages {
    /// Stages of one core. The dispatchers are in the order of the network's pools.
    #[must_use]
    pub fn new(
        network: Arc<Network>,
        neighbours: Neighbours,
        dispatchers: Vec<Dispatcher>,
        connections: Connections,
        counters: Counters,
    ) -> Self {
        assert_eq!(dispatchers.len(), network.pools());
        let ports = 0..network.ports().len();
        Self {
            plain: ports.map(|port| plain::Plain::new(&network, port)).collect(),
            network,
            neighbours,
            dispatchers,
            connections,
            counters,
            packets: vec![Packet::REFUSED; BURST].into_boxed_slice(),
        }
    }

    /// Decides on up to [`BURST`] packets that port `port` received at `now` ticks, rewriting those that go on.
    /// Drops and everything else are counted here but for what the caller does with the packets
    /// (received, sent, held, consumed).
    ///
    /// # Panics
    /// When there are more packets than verdicts or than [`BURST`].
    pub fn process<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
    ) {
        let verdicts = &mut verdicts[..packets.len()];
        let done = lane::burst(self, port, packets, verdicts);
        if done < packets.len() {
            self.process_in_stages(port, now, &mut packets[done..], &mut verdicts[done..]);
        }
    }

    fn process_in_stages<B: Buf>(
        &mut self,
        port: usize,
        now: u64,
        packets: &mut [B],
        verdicts: &mut [Verdict],
    ) {
        // Taken out, so that stages can have both; an empty box allocates nothing.
        let mut parsed = std::mem::take(&mut self.packets);
        let parsed_burst = &mut parsed[..packets.len()];
        let kinds = parse::burst(&self.network, port, packets, parsed_burst);
        if kinds.others {
            classify::burst(self, port, packets, parsed_burst, verdicts);
        }
        schedule::burst(self, now, packets, parsed_burst, verdicts);
        rewrite::burst(self, packets, parsed_burst, verdicts);
        self.count_drops(verdicts);
        self.packets = parsed;
    }

    fn count_drops(&self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            if let Verdict::Drop(reason) = verdict {
                self.counters.drop(*reason, 1);
            }
        }
    }

    /// Moves the policies' own counts into the counters.
    pub fn collect_picks(&mut self) {
        for dispatcher in &mut self.dispatchers {
            let picks = std::mem::take(&mut dispatcher.view_mut().picks);
            self.counters.add(Counter::IdlePicks, picks.idle);
            self.counters.add(Counter::Po2Picks, picks.po2);
            self.counters.add(Counter::Resubmits, picks.resubmits);
        }
    }

    /// Lets the policies see time pass.
    pub fn tick(&mut self, now_ns: u64) {
        for dispatcher in &mut self.dispatchers {
            dispatcher.tick(now_ns);
        }
    }

    /// The scheduler of the pool at `index` in the network's order.
    #[must_use]
    pub fn dispatcher_mut(&mut self, index: usize) -> Option<&mut Dispatcher> {
        self.dispatchers.get_mut(index)
    }

    /// This core's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The network it serves.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The neighbours it knows.
    #[must_use]
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }
}
