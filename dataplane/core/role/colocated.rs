//! Leaf and agent on one core. The leaf sends tasks to servers of the rack or to worker cores of this host.
//!
//! To the leaf the agent is a normal server, at the far end of a wire: a link in this core's memory
//! ([`crate::io::link`]). The agent registers its workers with the leaf by messages, as on a real network. In
//! addition, this module sets a worker active or inactive at the leaf as soon as it attaches or departs.
//!
//! Both roles have the same code as elsewhere. In exchange each task is parsed and rewritten twice. The wire is as deep
//! as there are buffers, so no reply is lost on it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::agent::{AttachStats, Parts};
use super::{Agent, CoreRole, Leaf};
use crate::clock::Progress;
use crate::io::Token;
use crate::io::link::{DeviceOrWire, End};
use crate::io::{Burst, Pool, Port};
use crate::limits::BURST;
use crate::reason::DropReason;
use crate::ring::WorkerIdentity;
use crate::stage::network::Worker;
use crate::stage::{PortAddress, Side};
use crate::state::{Counter, Load, Member, Report};
use crate::wire::ether::Mac;

/// Network of the wire, with two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireNetwork {
    /// Address of the leaf.
    pub leaf: IpAddr,
    /// Address of the agent.
    pub agent: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

impl WireNetwork {
    /// 169.254.77.0/30, a part of the network that no router forwards (RFC 3927).
    const V4: Self = Self {
        leaf: IpAddr::V4(Ipv4Addr::new(169, 254, 77, 1)),
        agent: IpAddr::V4(Ipv4Addr::new(169, 254, 77, 2)),
        prefix: 30,
    };
    /// fd5c:9e1b:7ad4:77::/126, a part of a private network with a random number (RFC 4193). Link-local addresses
    /// cannot serve here: tasks with such a source are dropped.
    const V6: Self = Self {
        leaf: IpAddr::V6(Ipv6Addr::new(0xFD5C, 0x9E1B, 0x7AD4, 0x77, 0, 0, 0, 1)),
        agent: IpAddr::V6(Ipv6Addr::new(0xFD5C, 0x9E1B, 0x7AD4, 0x77, 0, 0, 0, 2)),
        prefix: 126,
    };

    /// Returns the network of this address family.
    #[must_use]
    pub const fn of(is_v6: bool) -> Self {
        if is_v6 { Self::V6 } else { Self::V4 }
    }

    /// Returns the leaf's port.
    #[must_use]
    pub fn leaf_port(&self) -> PortAddress {
        PortAddress::new(LEAF_MAC, self.leaf, self.prefix, Side::Workers)
    }

    /// Returns the agent's port.
    fn agent_port(&self) -> PortAddress {
        PortAddress::new(AGENT_MAC, self.agent, self.prefix, Side::Both)
    }
}

/// Returns true for the agent's address on the wire, of either family.
#[must_use]
pub fn is_agent(ip: IpAddr) -> bool {
    [WireNetwork::V4.agent, WireNetwork::V6.agent].contains(&ip)
}

/// MAC address of the leaf on the wire; locally administered, with "wed" in ASCII.
pub const LEAF_MAC: Mac = Mac([2, 0x77, 0x65, 0x64, 0, 1]);
/// MAC address of the agent on the wire.
pub const AGENT_MAC: Mac = Mac([2, 0x77, 0x65, 0x64, 0, 2]);

/// A worker of this host, in the leaf's terms.
#[derive(Clone, Copy, Debug)]
struct LocalWorker {
    /// Its global id, and the id of its pool.
    identity: WorkerIdentity,
    /// Index of its pool at the leaf.
    pool: usize,
    /// Index of the worker in that pool.
    member: Member,
    /// Claim by which the worker was attached at the last update of the leaf, if it was.
    claim: Option<u64>,
}

impl LocalWorker {
    /// Returns true if the leaf's entry `known` has the place of this worker: its pool and member.
    fn has_place(&self, known: &Worker) -> bool {
        (self.pool, self.member) == (usize::from(known.pool), known.member)
    }
}

/// A leaf and an agent on one core, joined by a wire.
#[derive(Debug)]
pub struct Colocated<P: Port<Buf: Token>, A> {
    leaf: Leaf<DeviceOrWire<P>, A>,
    agent: Agent<End<P::Buf>, A>,
    /// Workers of this host. Has capacity for the maximum number of them.
    locals: Vec<LocalWorker>,
    /// Epochs of the leaf's and the agent's memberships at the last review.
    epochs: (u64, u64),
    /// Attach statistics of the agent at the last update of the leaf. They change with each attachment and
    /// departure.
    attach_stats: AttachStats,
}

impl<P, A> Colocated<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Joins a leaf to an agent of these parts, at the far end of the leaf's last port. No worker is attached
    /// yet.
    #[must_use]
    pub fn new(leaf: Leaf<DeviceOrWire<P>, A>, parts: Parts<P::Buf, A>, end: End<P::Buf>) -> Self {
        let (_, workers) = parts.room;
        let is_v6 = leaf.stages().network().local_port().is_some_and(|port| port.v6.is_some());
        let agent = Agent::new(parts, vec![(end, WireNetwork::of(is_v6).agent_port())]);
        let (locals, attach_stats) = (Vec::with_capacity(workers), AttachStats::default());
        let mut colocated = Self { leaf, agent, locals, epochs: (0, 0), attach_stats };
        colocated.review();
        colocated
    }

    /// Rebuilds the list of workers in both memberships, after a change of either. New workers count as not
    /// attached.
    #[cold]
    fn review(&mut self) {
        self.epochs = (self.leaf.epoch(), self.agent.epoch());
        let (stages, agent) = (self.leaf.stages_mut(), &self.agent);
        self.locals.retain(|local| {
            let known = stages.network().worker(local.identity.id);
            let is_member = known.is_some_and(|known| local.has_place(&known));
            is_member && agent.identities().any(|identity| identity == local.identity)
        });
        for identity in agent.identities() {
            let Some(known) = stages.network().worker(identity.id) else { continue };
            let pool = usize::from(known.pool);
            let local = LocalWorker { identity, pool, member: known.member, claim: None };
            let is_local = stages.network().server_address(known.server).is_some_and(is_agent)
                && stages.network().pool_id(pool) == Some(identity.pool);
            if is_local && !self.locals.iter().any(|local| local.has_place(&known)) {
                stages.set_active(local.pool, local.member, false);
                self.locals.push(local);
            }
        }
    }

    /// Polls ports and workers once at `now` ticks. Returns the number of packets that the leaf received.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        let received = self.leaf.poll(now);
        // The leaf may have forwarded more than a burst, received by several ports. A full burst means that
        // more may wait.
        while self.agent.poll(now) == BURST {}
        let attach_stats = self.agent.attach_stats().fold(AttachStats::default(), AttachStats::and);
        let has_changed = self.epochs != (self.leaf.epoch(), self.agent.epoch());
        if has_changed {
            self.review();
        }
        if has_changed || attach_stats != self.attach_stats {
            self.attach_stats = attach_stats;
            self.update_leaf();
        }
        received
    }

    /// Activates and deactivates the leaf's members by the agent's attached workers.
    #[cold]
    fn update_leaf(&mut self) {
        for local in &mut self.locals {
            let claim = self.agent.claim_of(local.identity);
            if claim == local.claim {
                continue;
            }
            let former = std::mem::replace(&mut local.claim, claim);
            let stages = self.leaf.stages_mut();
            // A worker may depart and another one attach within one tick of the agent.
            if former.is_some() {
                stages.set_active(local.pool, local.member, false);
                if let Some(dispatcher) = stages.dispatcher_mut(local.pool) {
                    // All its tasks: they are lost, or another worker serves them and replies with its id.
                    dispatcher.write_off(local.member, u32::MAX);
                }
            }
            if claim.is_some() {
                stages.note_attached(local.pool, local.member);
                stages.set_active(local.pool, local.member, true);
                if let Some(dispatcher) = stages.dispatcher_mut(local.pool) {
                    // It has no tasks yet, so an idle list may contain it at once.
                    dispatcher.refresh(&Report::new(local.member, Load(0), 0));
                }
            }
            stages.note_freed(); // waiting tasks are offered again
        }
    }

    /// Returns the number of tasks at this host.
    #[must_use]
    pub fn held(&self) -> usize {
        self.agent.held()
    }

    /// Returns the leaf.
    #[must_use]
    pub fn leaf(&self) -> &Leaf<DeviceOrWire<P>, A> {
        &self.leaf
    }

    /// Returns the agent.
    #[must_use]
    pub fn agent(&self) -> &Agent<End<P::Buf>, A> {
        &self.agent
    }

    /// Stops both: notifies workers, drops and counts the held packets. Returns the ports of devices, without
    /// the wire.
    pub fn close(mut self, now: u64) -> Vec<P> {
        for local in &self.locals {
            self.leaf.stages_mut().set_active(local.pool, local.member, false);
        }
        // The agent takes the tasks on the wire before it closes, and the leaf its replies afterwards.
        while self.agent.poll(now) > 0 {}
        let counters = self.agent.counters().clone();
        let mut ends = self.agent.close();
        while ends.iter().any(End::has_unreceived) {
            self.leaf.poll(now);
        }
        let ports = self.leaf.close();
        // The leaf's last polls may have sent packets to the closed agent.
        let mut late = Burst::new();
        while ends.iter_mut().any(|end| end.rx_burst(&mut late) > 0) {
            counters.add(Counter::RxPackets, late.len() as u64);
            counters.drop(DropReason::Shutdown, late.len() as u64);
            late.clear();
        }
        let device = |port| match port {
            DeviceOrWire::Device(port) => Some(port),
            DeviceOrWire::Link(_) => None,
        };
        ports.into_iter().filter_map(device).collect()
    }
}

impl<P, A> CoreRole for Colocated<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    #[inline]
    fn poll(&mut self, now: u64) -> usize {
        Self::poll(self, now)
    }

    fn catch_up(&mut self, now: u64) {
        self.leaf.catch_up(now);
    }

    fn progress(&self) -> Progress {
        self.leaf.progress().and(self.agent.progress())
    }

    fn held(&self) -> usize {
        Self::held(self)
    }
}
