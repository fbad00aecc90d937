//! Leaf and agent on one core: tasks go to servers of the rack or to worker cores of this host, as the leaf chooses.
//!
//! The agent is a server of the leaf's like any other, at the other end of a wire inside the core ([`crate::io::link`]),
//! and registers its workers with it. Besides, the leaf is told at once who came and who has gone: it need not wait
//! for silence.

use super::agent::AttachStats;
use super::{Agent, Leaf};
use crate::clock::Progress;
use crate::io::Token;
use crate::io::link::{Either, End};
use crate::io::{Burst, Pool, Port};
use crate::limits::BURST;
use crate::reason::DropReason;
use crate::ring::Place;
use crate::state::{Counter, Load, Member, Report};
use crate::wire::ether::Mac;

/// The leaf's address on the wire, of the networks that no router passes on (RFC 3927).
pub const LEAF_IP: u32 = 0xA9FE_4D01;
/// The agent's address there.
pub const AGENT_IP: u32 = 0xA9FE_4D02;
/// Bits of the wire's network.
pub const PREFIX: u8 = 30;
/// The leaf's MAC address on the wire.
pub const LEAF_MAC: Mac = Mac([2, 0x77, 0x65, 0x64, 0, 1]);
/// The agent's MAC address there.
pub const AGENT_MAC: Mac = Mac([2, 0x77, 0x65, 0x64, 0, 2]);

/// A worker of this host, as the leaf knows it.
#[derive(Clone, Copy, Debug)]
struct Local {
    place: Place,
    /// Index of its pool at the leaf.
    pool: usize,
    member: Member,
    present: bool,
}

/// A leaf and an agent on one core, joined by a wire.
#[derive(Debug)]
pub struct Colocated<P: Port<Buf: Token>, A> {
    leaf: Leaf<Either<P>, A>,
    agent: Agent<End<P::Buf>, A>,
    locals: Vec<Local>,
    /// The agent's, when the leaf was last told.
    attach_stats: AttachStats,
}

impl<P, A> Colocated<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// A leaf and the agent at the other end of the last of its ports; `places` are the agent's workers, none of whom is
    /// there yet.
    #[must_use]
    pub fn new(
        mut leaf: Leaf<Either<P>, A>,
        agent: Agent<End<P::Buf>, A>,
        places: &[Place],
    ) -> Self {
        let network = leaf.stages().network();
        let local = |place: &Place| {
            let worker = network.worker(place.id)?;
            let pool = usize::from(worker.pool);
            Some(Local { place: *place, pool, member: worker.member, present: false })
        };
        let locals: Vec<_> = places.iter().filter_map(local).collect();
        for local in &locals {
            leaf.stages_mut().set_active(local.pool, local.member, false);
        }
        Self { leaf, agent, locals, attach_stats: AttachStats::default() }
    }

    /// One pass over ports and workers at `now` ticks; returns how many packets came.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        let received = self.leaf.poll(now);
        // What several ports brought may be more than a burst.
        while self.agent.poll(now) == BURST {}
        let attach_stats = self.agent.attach_stats().fold(AttachStats::default(), AttachStats::and);
        if attach_stats != self.attach_stats {
            self.attach_stats = attach_stats;
            self.tell_leaf();
        }
        received
    }

    /// Tells the leaf who is there.
    #[cold]
    fn tell_leaf(&mut self) {
        for local in &mut self.locals {
            let present = self.agent.is_present(local.place);
            if present == local.present {
                continue;
            }
            local.present = present;
            let stages = self.leaf.stages_mut();
            stages.set_active(local.pool, local.member, present);
            if let Some(dispatcher) = stages.dispatcher_mut(local.pool) {
                match present {
                    true => {
                        let idle = Report::new(local.member, Load(0), 0);
                        dispatcher.refresh(&idle);
                    }
                    // What it had is lost, or done by another in its name.
                    false => dispatcher.write_off(local.member, u32::MAX),
                }
            }
            stages.note_freed();
        }
    }

    /// What both have done so far, and when one of them has something to do next.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.leaf.progress().and(self.agent.progress())
    }

    /// Tasks at this host.
    #[must_use]
    pub fn held(&self) -> usize {
        self.agent.held()
    }

    /// The leaf.
    #[must_use]
    pub fn leaf(&self) -> &Leaf<Either<P>, A> {
        &self.leaf
    }

    /// The agent.
    #[must_use]
    pub fn agent(&self) -> &Agent<End<P::Buf>, A> {
        &self.agent
    }

    /// Both stop: workers are told, and what is still held is dropped and counted. Gives the devices' ports back.
    pub fn close(mut self, now: u64) -> Vec<P> {
        for local in &self.locals {
            self.leaf.stages_mut().set_active(local.pool, local.member, false);
        }
        while self.agent.poll(now) > 0 {}
        let counters = self.agent.counters().clone();
        let mut ends = self.agent.close();
        while ends.iter().any(End::is_awaited) {
            self.leaf.poll(now);
        }
        let ports = self.leaf.close();
        // Further packets of tasks that an agent does not take may have come so late.
        let mut late = Burst::new();
        while ends.iter_mut().any(|end| end.rx_burst(&mut late) > 0) {
            counters.add(Counter::RxPackets, late.len() as u64);
            counters.drop(DropReason::Shutdown, late.len() as u64);
            late.clear();
        }
        let device = |port| match port {
            Either::Device(port) => Some(port),
            Either::Link(_) => None,
        };
        ports.into_iter().filter_map(device).collect()
    }
}

#[cfg(test)]
mod tests;
