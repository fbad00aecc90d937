//! Leaf and agent on one core: tasks go to servers of the rack or to worker cores of this host, as the leaf chooses.
//!
//! The agent is a server of the leaf's like any other, at the other end of a wire inside the core ([`crate::io::link`]),
//! and registers its workers with it. Besides, the leaf is told at once who came and who has gone: it need not wait
//! for silence.

use super::agent::{AttachStats, Parts};
use super::{Agent, Leaf};
use crate::clock::Progress;
use crate::io::Token;
use crate::io::link::{Either, End};
use crate::io::{Burst, Pool, Port};
use crate::limits::BURST;
use crate::reason::DropReason;
use crate::ring::Place;
use crate::stage::network::Worker;
use crate::stage::{IpOptions, PortAddress, Side};
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

impl Local {
    fn is(&self, known: &Worker) -> bool {
        (self.pool, self.member) == (usize::from(known.pool), known.member)
    }
}

/// A leaf and an agent on one core, joined by a wire.
#[derive(Debug)]
pub struct Colocated<P: Port<Buf: Token>, A> {
    leaf: Leaf<Either<P>, A>,
    agent: Agent<End<P::Buf>, A>,
    /// With room for as many as there may be.
    locals: Vec<Local>,
    /// The memberships of leaf and agent that they are of.
    epochs: (u64, u64),
    /// The agent's, when the leaf was last told.
    attach_stats: AttachStats,
}

impl<P, A> Colocated<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// A leaf, and an agent of these parts at the other end of the last of its ports, of whose workers none is there yet.
    #[must_use]
    pub fn new(leaf: Leaf<Either<P>, A>, parts: Parts<P::Buf, A>, end: End<P::Buf>) -> Self {
        let (_, workers) = parts.room;
        let (mac, ip, prefix) = (AGENT_MAC, AGENT_IP, PREFIX);
        let (side, ip_options) = (Side::Both, IpOptions::Refuse);
        let address = PortAddress { mac, ip, prefix, side, gateway: None, ip_options, v6: None };
        let agent = Agent::new(parts, vec![(end, address)]);
        let (locals, attach_stats) = (Vec::with_capacity(workers), AttachStats::default());
        let mut both = Self { leaf, agent, locals, epochs: (0, 0), attach_stats };
        both.review();
        both
    }

    /// Whom both know, now that one of them has gone over to another membership: none of the new ones is there yet.
    #[cold]
    fn review(&mut self) {
        self.epochs = (self.leaf.epoch(), self.agent.epoch());
        let (stages, agent) = (self.leaf.stages_mut(), &self.agent);
        self.locals.retain(|local| {
            let known = stages.network().worker(local.place.id);
            let stays = known.is_some_and(|known| local.is(&known));
            stays && agent.places().any(|place| place == local.place)
        });
        for place in agent.places() {
            let Some(known) = stages.network().worker(place.id) else { continue };
            let pool = usize::from(known.pool);
            let local = Local { place, pool, member: known.member, present: false };
            let is_here =
                known.ip == AGENT_IP && stages.network().pool_id(pool) == Some(place.pool);
            if is_here && !self.locals.iter().any(|other| other.is(&known)) {
                stages.set_active(local.pool, local.member, false);
                self.locals.push(local);
            }
        }
    }

    /// One pass over ports and workers at `now` ticks; returns how many packets came.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        let received = self.leaf.poll(now);
        // What several ports brought may be more than a burst.
        while self.agent.poll(now) == BURST {}
        let attach_stats = self.agent.attach_stats().fold(AttachStats::default(), AttachStats::and);
        let has_changed = self.epochs != (self.leaf.epoch(), self.agent.epoch());
        if has_changed {
            self.review();
        }
        if has_changed || attach_stats != self.attach_stats {
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
            if present {
                stages.note_attached(local.pool, local.member);
            }
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

    /// The loop has slept.
    pub fn catch_up(&mut self, now: u64) {
        self.leaf.catch_up(now);
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
