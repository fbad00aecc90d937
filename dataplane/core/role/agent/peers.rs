//! Agent of a rack without a leaf: messages between peers, and tasks forwarded between them
//! (docs/reference/protocol.md). [`Peers`] makes the decisions, as in the simulator.
//!
//! A node may forward a client's task to a peer. An idle node *steals*: it requests a waiting task from a peer.
//! At the end of each *beat*, an interval, a node sends a heartbeat with its load. A node's *critic* is its learned
//! estimate of the rack's future load. In a *consensus* round the nodes exchange and average the critics' parameters.
//!
//! The node that serves a forwarded task answers the client itself. The task keeps the client's address, and its
//! trailer has the rest. A reply by way of the first node would cost that node two packets, and its death would lose
//! the task. So clients and nodes share one network behind one port.

use std::net::IpAddr;

use crate::io::{Pool, Port, Token};
use crate::node::arp::ArpQuestion;
use crate::node::explain::Fate;
use crate::peers::{Peers, Refusal, Settings};
use crate::reason::DropReason;
use crate::ring::Outcome;
use crate::state::nodes::{NodeView, Nodes};
use crate::state::{Counter, Gauge};
use crate::wire::address::Address;
use crate::wire::ether::Mac;
use crate::wire::peer::{
    self, ForwardingTrailer, HEARTBEAT_LEN, Heartbeat, Origin, Parameters, REQUEST_LEN,
};
use crate::wire::task::{Code, Header};
use crate::wire::udp::Flow;

use super::Agent;
use super::next_hop::NextHop;
use super::packet::{ForwardedTask, Packet, Route};
use super::worker_set::Completion;

/// Node of a rack without a leaf, with its peers' addresses.
#[derive(Debug)]
pub struct PeerGroup {
    /// Decisions, and the state of each peer.
    peers: Peers,
    /// Pool whose tasks are exchanged.
    pool: u16,
    /// Addresses of all nodes by number, including this one.
    hops: Box<[NextHop]>,
    /// Number of tasks that a worker may have at once.
    tasks_per_worker: u32,
    /// Number of waiting tasks at the last update.
    waiting: u32,
    /// Number of tasks that all active workers may have at once, at the last update.
    slots: u32,
    /// Tasks of the pool that workers completed in this poll.
    done: u32,
    /// Index of the next part of the critic's parameters to send; `usize::MAX` if there is none.
    next_part: usize,
    /// View of the nodes, published for other processes.
    view: Option<Nodes>,
}

impl PeerGroup {
    /// Creates a node with these settings, among nodes with these addresses behind the agent's first port. A
    /// worker may have `tasks_per_worker` tasks of the pool at once.
    ///
    /// # Panics
    /// If the number of addresses differs from the number of nodes.
    #[must_use]
    pub fn new(settings: Settings, pool: u16, addresses: &[IpAddr], tasks_per_worker: u32) -> Self {
        assert_eq!(addresses.len(), settings.nodes);
        let hops = addresses.iter().map(|&address| NextHop::new(address, 0, None));
        Self {
            peers: Peers::new(settings),
            pool,
            hops: hops.collect(),
            tasks_per_worker,
            waiting: 0,
            slots: settings.slots,
            done: 0,
            next_part: usize::MAX,
            view: None,
        }
    }

    /// Publishes its view of the nodes in `view`.
    #[must_use]
    pub fn shown_in(self, view: Option<Nodes>) -> Self {
        Self { view, ..self }
    }

    /// Publishes its view of the nodes and the probabilities of its decisions.
    fn publish_view(&self) {
        let (Some(view), own) = (&self.view, self.own_node()) else { return };
        // Probabilities of forwarding a task to each node, and of stealing one from it.
        let probabilities = self.peers.probabilities();
        view.show_own(own, self.peers.value_loss().unwrap_or(f64::NAN));
        for (node, hop) in self.hops.iter().enumerate() {
            let (is_live, load_us, waiting) = match node == own {
                true => (true, self.peers.load(), self.waiting),
                false => self.peers.peer_state(node),
            };
            let none = (f32::NAN, f32::NAN);
            let probabilities = probabilities.map_or(none, |(to, from)| (to[node], from[node]));
            let address = hop.address;
            view.show(node, &NodeView { address, is_live, load_us, waiting, probabilities });
        }
    }

    /// Returns the pool whose tasks are exchanged.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> u16 {
        self.pool
    }

    /// Returns the decision state.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns the end of the current beat in nanoseconds.
    pub fn next_beat_ns(&self) -> u64 {
        self.peers.next_beat_ns()
    }

    /// Returns the number of this node.
    fn own_node(&self) -> usize {
        self.peers.settings().own
    }

    /// Returns the peer with this address behind the port, if there is one.
    pub fn hop_of(&mut self, port: usize, address: IpAddr) -> Option<&mut NextHop> {
        let own = self.own_node();
        let peers = self.hops.iter_mut().enumerate().filter(|(node, _)| *node != own);
        peers.map(|(_, hop)| hop).find(|hop| (hop.port, hop.address) == (port, address))
    }

    /// Updates the number of waiting tasks.
    #[inline]
    pub fn note_waiting(&mut self, waiting: usize) {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        if waiting != self.waiting {
            self.waiting = waiting;
            self.peers.set_waiting(waiting);
        }
    }

    /// Records a task of the pool that a worker completed.
    #[inline]
    pub fn note_done<T>(&mut self, done: &Completion<'_, T>) {
        let (true, Ok(outcome)) = (done.identity.pool == self.pool, &done.outcome) else { return };
        self.done += 1;
        if let Outcome::Reply { service_ns, .. } = outcome {
            self.peers.served(u64::from(*service_ns));
        }
    }

    /// Records a task of the pool that the agent could neither give to a worker nor queue.
    #[cold]
    pub fn note_failed(&mut self) {
        self.peers.count_failed_task();
    }

    /// Returns the destination of a client's task of the pool, or `None` if it stays.
    #[inline]
    pub fn destination(&mut self) -> Option<usize> {
        self.peers.destination()
    }

    /// Returns the route to a peer from a port with MAC address `own`; `None` if the peer's MAC address is unknown.
    fn route(&self, node: usize, own: Mac) -> Option<Route> {
        let NextHop { address, mac, .. } = self.hops[node];
        Some(Route { by: (self.own_node() as u16, own), to: (address, mac?) })
    }

    /// Parses the trailer at the end of `bytes`, of a task that the host with MAC address `from` forwarded. Checks the
    /// forwarding peer by `from` and `port` only, because the source IP address is the client's.
    ///
    /// # Errors
    /// The task's drop reason.
    #[inline]
    pub fn forwarded(
        &self,
        port: usize,
        from: Mac,
        bytes: &[u8],
    ) -> Result<ForwardedTask, DropReason> {
        let via = ForwardingTrailer::parse(bytes)?;
        if via.version != peer::VERSION {
            return Err(DropReason::PeerVersion);
        }
        let by = usize::from(via.by);
        let hop = self.hops.get(by).filter(|_| by != self.own_node());
        let is_from_peer = hop.is_some_and(|hop| hop.has_sent(port, (hop.address, from)));
        let origin = self.hops.get(usize::from(via.origin)).filter(|_| is_from_peer);
        let origin = origin.ok_or(DropReason::PeerStranger)?.address;
        Ok(ForwardedTask { via, origin })
    }

    /// Checks that a message is from a peer: its claimed origin, and its source addresses. Returns the peer's number,
    /// or the message's drop reason.
    fn admit(
        &mut self,
        origin: &Origin,
        port: usize,
        from: (IpAddr, Mac),
    ) -> Result<usize, DropReason> {
        let node = self.peers.admit(origin).map_err(Refusal::reason)?;
        match self.hops[node].has_sent(port, from) {
            true => Ok(node),
            false => Err(DropReason::PeerStranger),
        }
    }
}

impl<P, A> Agent<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Returns the decision state, if the agent has peers.
    #[must_use]
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.as_deref().map(PeerGroup::peers)
    }

    /// Processes a peer's message: a heartbeat, parameters, or a request for a task.
    ///
    /// # Errors
    /// The message's drop reason.
    #[cold]
    pub(super) fn receive(
        &mut self,
        port: usize,
        from: (IpAddr, Mac),
        header: &Header,
        body: &[u8],
    ) -> Result<(), DropReason> {
        let group = self.peers.as_mut().ok_or(DropReason::TaskRole)?;
        let node = group.admit(&Origin::parse(body)?, port, from)?;
        let counters = &self.responder.out.counters;
        match header.code {
            Code::Heartbeat => {
                let beat = Heartbeat::parse(body)?;
                group.peers.receive_heartbeat(&beat).map_err(Refusal::reason)?;
                counters.add(Counter::Heartbeats, 1);
            }
            Code::Parameters => {
                let (head, values) = Parameters::parse(body)?;
                group.peers.receive_parameters(&head, values).map_err(Refusal::reason)?;
            }
            _ => self.answer_steal(node),
        }
        Ok(())
    }

    /// Answers a peer's steal request: forwards the first waiting task, or counts the request as failed.
    fn answer_steal(&mut self, node: usize) {
        let Some(group) = &mut self.peers else { return };
        let set = self.worker_sets.iter_mut().find(|set| set.pool == Some(group.pool));
        let Some(workers) = set else { return };
        group.note_waiting(workers.waiting());
        // `handle_steal_request` counts the request, and returns true if a task waits.
        let stolen = group.peers.handle_steal_request().then(|| workers.next_waiting()).flatten();
        match stolen {
            Some(task) => _ = self.forward_to_peer(task, node, Counter::TasksGiven),
            None => self.responder.out.counters.add(Counter::StealsFailed, 1),
        }
    }

    /// Forwards a task to a peer and adds it to `counter`.
    pub(super) fn forward_to_peer(
        &mut self,
        task: Packet<P::Buf>,
        node: usize,
        counter: Counter,
    ) -> Fate {
        let counters = &self.responder.out.counters;
        let own = self.addresses[0].mac;
        let route = self.peers.as_ref().and_then(|group| group.route(node, own));
        // The decision chooses only peers that have sent a message, so the MAC address is known. Tasks are short
        // enough for the trailer.
        match route.and_then(|route| task.into_forwarded(&route).ok()) {
            Some(packet) => {
                counters.add(counter, 1);
                self.responder.out.forward(packet, 0);
                Fate::Passed { node: node as u16 }
            }
            None => self.drop_for(DropReason::TaskTooLong),
        }
    }

    /// Exchanges messages with peers at the end of a poll: steal requests after completed tasks, and a heartbeat at
    /// the end of a beat.
    pub(super) fn exchange_with_peers(&mut self) {
        // Taken out while this function borrows the rest of the agent.
        let Some(mut group) = self.peers.take() else { return };
        let now_ns = self.responder.now_ns;
        let set = self.worker_sets.iter().find(|set| set.pool == Some(group.pool));
        group.note_waiting(set.map_or(0, |set| set.waiting()));
        // Each completed task may have left a worker idle, which then steals. `victim` chooses a peer, or none.
        for _ in 0..std::mem::take(&mut group.done) {
            if let Some(victim) = group.peers.victim() {
                self.request_task(&group, victim);
            }
        }
        if now_ns >= group.peers.next_beat_ns() {
            let beat = group.peers.beat(now_ns);
            group.next_part = 0;
            // A node without active workers sends no heartbeat, so that its peers forward no tasks to it.
            if group.slots > 0 {
                self.send_to_all(&group, Code::Heartbeat, beat.number, HEARTBEAT_LEN, |body| {
                    beat.emit(body);
                });
            }
        }
        if group.next_part != usize::MAX {
            self.send_parameters(&mut group);
        }
        self.peers = Some(group);
    }

    /// Sends the next part of the critic's parameters, if any, to all peers. One part per poll limits the packets.
    #[cold]
    fn send_parameters(&mut self, group: &mut PeerGroup) {
        let mut parts = group.peers.parameters().skip(group.next_part);
        let Some((head, values)) = parts.next() else {
            group.next_part = usize::MAX;
            return;
        };
        let len = peer::PARAMETERS_LEN + size_of_val(values);
        self.send_to_all(group, Code::Parameters, head.round, len, |body| {
            _ = head.emit(values, body)
        });
        drop(parts);
        group.next_part += 1;
    }

    /// Requests a waiting task from a peer.
    fn request_task(&mut self, group: &PeerGroup, victim: usize) {
        let origin = group.peers.origin();
        let is_sent =
            self.send_to_peer(group, victim, (Code::StealRequest, 0), REQUEST_LEN, |body| {
                origin.emit(body);
            });
        self.responder.out.counters.add(Counter::StealRequests, u64::from(is_sent));
    }

    /// Sends a message with a body of `len` bytes, written by `fill`, to each peer. `number` is the message's sequence.
    fn send_to_all(
        &mut self,
        group: &PeerGroup,
        code: Code,
        number: u64,
        len: usize,
        fill: impl Fn(&mut [u8]),
    ) {
        for node in (0..group.hops.len()).filter(|&node| node != group.own_node()) {
            self.send_to_peer(group, node, (code, number as u16), len, &fill);
        }
    }

    /// Sends a message with a body of `len` bytes, written by `fill`, to a peer. Returns false if its MAC address is
    /// unknown, or the port has no address of the peer's family.
    fn send_to_peer(
        &mut self,
        group: &PeerGroup,
        node: usize,
        (code, seq): (Code, u16),
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let nodes = (group.own_node() as u16, node as u16);
        let header = Header::of_peers(code, group.pool, nodes, seq);
        match group.hops[node].address {
            IpAddr::V4(_) => self.send_message::<u32>(&group.hops[node], &header, len, fill),
            IpAddr::V6(_) => self.send_message::<u128>(&group.hops[node], &header, len, fill),
        }
    }

    /// Same as [`Agent::send_to_peer`], to a peer of this address family.
    fn send_message<F: Address>(
        &mut self,
        hop: &NextHop,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let own = self.addresses[hop.port];
        let (Some(network), Some(dst)) = (own.network::<F>(), F::from_ip(hop.address)) else {
            return false;
        };
        let Some(dst_mac) = hop.mac else { return false };
        let (src_mac, src, src_port, dst_port) =
            (own.mac, network.ip, self.udp_port, self.udp_port);
        let flow = Flow { src_mac, dst_mac, src, dst, src_port, dst_port };
        let bytes = header.len() + len;
        self.responder.out.make(&mut self.pool, hop.port, F::PAYLOAD + bytes, |frame| {
            let payload = &mut frame[F::PAYLOAD..];
            header.emit(payload);
            fill(&mut payload[header.len()..]);
            F::emit(&flow, frame, bytes);
        });
        true
    }

    /// Does periodic work: asks for unknown MAC addresses of peers, and updates the number of tasks that the active
    /// workers may have. Publishes the load, the number of live peers and the view of the nodes.
    #[cold]
    pub(super) fn tick_peers(&mut self, now: u64) {
        let Some(mut group) = self.peers.take() else { return };
        let (own, own_node) = (self.addresses[0], group.own_node());
        for (_, hop) in group.hops.iter_mut().enumerate().filter(|(node, _)| *node != own_node) {
            if hop.must_ask(now, self.timing.ticks_hz) {
                let question = ArpQuestion::broadcast(hop.port as u8, hop.address);
                self.responder.out.ask(&mut self.pool, &own, &question);
            }
        }
        let set = self.worker_sets.iter().find(|set| set.pool == Some(group.pool));
        let workers = set.map_or(0, |set| set.dispatcher().view().active().len());
        let slots = workers as u32 * group.tasks_per_worker;
        if slots != group.slots {
            group.slots = slots;
            group.peers.set_slots(slots);
        }
        let counters = &self.responder.out.counters;
        counters.set(Gauge::PeersLive, group.peers.live().len() as u64);
        let load_ns = f64::from(group.peers.load()) * 1e3;
        counters.set(Gauge::PeerLoadTicks, self.timing.ticks_of_ns(load_ns as u64));
        group.publish_view();
        self.peers = Some(group);
    }
}
