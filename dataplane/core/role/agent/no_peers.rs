//! Replacement for `peers.rs` in a build without the feature `peers`: an agent that exchanges no tasks with other
//! agents (*peers*). It has the functions of `peers.rs` that the agent calls, so that the calls need no conditions.

use std::net::IpAddr;

use crate::io::{Pool, Port, Token};
use crate::node::explain::Fate;
use crate::reason::DropReason;
use crate::state::Counter;
use crate::wire::ether::Mac;
use crate::wire::task::Header;

use super::Agent;
use super::next_hop::NextHop;
use super::packet::{ForwardedTask, Packet};
use super::worker_set::Completion;

/// Peers of an agent. The type has no values in this build, so the compiler drops the branches with peers,
/// and none of its methods can be called.
#[derive(Debug)]
pub enum PeerGroup {}

impl PeerGroup {
    /// Returns the pool whose tasks are exchanged.
    pub(super) fn pool(&self) -> u16 {
        match *self {}
    }

    /// Returns the peer with this address behind a port, to learn its MAC address.
    pub(super) fn hop_of(&mut self, _: usize, _: IpAddr) -> Option<&mut NextHop> {
        match *self {}
    }

    /// Updates the number of waiting tasks.
    pub(super) fn note_waiting(&mut self, _: usize) {
        match *self {}
    }

    /// Records a completed task.
    pub(super) fn note_done<T>(&mut self, _: &Completion<'_, T>) {
        match *self {}
    }

    /// Records a task that the agent could neither give to a worker nor queue.
    pub(super) fn note_failed(&mut self) {
        match *self {}
    }

    /// Returns the peer to which a client's task is forwarded; `None` if the task stays.
    pub(super) fn destination(&mut self) -> Option<usize> {
        match *self {}
    }

    /// Parses the trailer of a task that a peer forwarded.
    pub(super) fn forwarded(
        &self,
        _: usize,
        _: Mac,
        _: &[u8],
    ) -> Result<ForwardedTask, DropReason> {
        match *self {}
    }

    /// Returns the time of the next heartbeat in nanoseconds.
    pub(super) fn next_beat_ns(&self) -> u64 {
        match *self {}
    }
}

impl<P, A> Agent<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Refuses a peer's message, which may still arrive from the network.
    pub(super) fn receive(
        &mut self,
        _: usize,
        _: (IpAddr, Mac),
        _: &Header,
        _: &[u8],
    ) -> Result<(), DropReason> {
        Err(DropReason::TaskRole)
    }

    /// Drops the task. Never called, because there is no destination.
    pub(super) fn forward_to_peer(&mut self, _: Packet<P::Buf>, _: usize, _: Counter) -> Fate {
        self.drop_for(DropReason::TaskRole)
    }

    /// Does nothing: there are no peers to exchange messages with.
    pub(super) fn exchange_with_peers(&mut self) {}

    /// Does nothing: there is no periodic work for peers.
    pub(super) fn tick_peers(&mut self, _: u64) {}
}
