//! Agent: one dispatcher core that takes tasks from ports and gives them to the worker cores of its host.
//!
//! It is a server to one or several leaves, or directly to clients. It has its own address, answers ARP or
//! neighbour discovery for it, and replies to the sender of a task. The packet of a task waits here and
//! becomes its reply. A worker that is a thread of this process may get the packet itself and then sends the reply.
//! Changes arrive as commands ([`Update`]).
//!
//! A leaf writes the id of the worker that it chose into a task: the task *names* that worker. The agent's own
//! policy chooses the core that serves the task, perhaps another one. The reply still names the first worker,
//! because the leaf counts by its own choice. A *channel* joins the agent to one worker; a worker *claims* a
//! channel with a number, and the agent *grants* the claim.
//!
//! Instead of a leaf an agent may have *peers*: agents of the same rack, which forward tasks to each other. They send
//! each other heartbeats with their loads at the end of each *beat*, a fixed interval.
//!
//! A *worker set* has the workers of one pool. A *responder* turns completed tasks into replies. A *registrar*
//! announces workers to one leaf. A *tap* records packets for a capture, and *explains* decisions to `wedjat explain`.
//! A *ledger* compares the received packets with the sent, held and dropped ones.

mod direct;
mod link;
mod messenger;
mod named_load;
mod next_hop;
#[cfg(all(test, not(miri)))]
mod orderings;
mod packet;
#[cfg_attr(not(feature = "peers"), path = "no_peers.rs")]
mod peers;
mod register;
mod reports;
mod responder;
mod response_times;
mod signer;
mod thread;
mod update;
pub mod worker_set;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

pub use crate::wire::address::Address;
pub use link::{Work, WorkerLink};
pub use named_load::NamedLoad;
pub use packet::Packet;
pub use peers::PeerGroup;
pub use register::{Registrar, TIMEOUT_MIN_MS, emit as emit_message};
pub use reports::{QueueReport, QueueReports};
pub use signer::{Credential, Signer};
pub use thread::{Request, ThreadWorker};
pub use update::{AgentCommands, Entry, Step, Update};
pub use worker_set::{AttachStats, Completion, DetachReason, WorkerEntry, WorkerSet};

use direct::{ClientHops, DirectRoute};
use messenger::Messenger;
use packet::without_addresses;
use responder::{NO_SET, Responder, named};
use response_times::ResponseTimes;

use super::{CoreRole, PollTime};
use crate::clock::Progress;
use crate::io::Token;
use crate::io::{Buf, Burst, Pool, Port};
use crate::limits::{BURST, PORTS_MAX};
use crate::node::Timing;
use crate::node::arp::ArpQuestion;
use crate::node::explain::{Fate, Moment};
use crate::node::outbox::Outbox;
use crate::node::refusals::Refusals;
use crate::node::tap::{TapCommands, TapCore};
use crate::policy::beliefs::MemberEstimate;
use crate::policy::{Dispatcher, Overflow};
use crate::reason::DropReason;
use crate::ring::{AgentStatusWords, WorkerIdentity};
use crate::stage::PortAddress;
use crate::state::counters::COUNT;
use crate::state::neighbour::HostAddress;
use crate::state::{Counter, Counters, Gauge};
use crate::wire::arp::{self, Operation};
use crate::wire::auth::{self, SignedPacket};
use crate::wire::ether::{self, Mac};
use crate::wire::peer::VIA_LEN;
use crate::wire::task::{Code, Header, NO_MEMBER};
use crate::wire::udp;
use crate::wire::{ipv4, ipv6, ndp, vlan};

/// Death of a worker process, reported by the thread that watches its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Index of the worker's channel in the region.
    pub channel: usize,
    /// Claim of the dead worker, read before its lock was found free. The agent ignores the death if a successor has
    /// the grant by then.
    pub claim: u64,
}

/// Parts of an agent, besides its ports.
#[derive(Debug)]
pub struct Parts<B: Buf + Token, A> {
    /// Workers of each pool.
    pub worker_sets: Vec<PacketWorkers<B>>,
    /// All workers, in the order of the sets.
    pub identities: Vec<WorkerIdentity>,
    /// Buffer pool for packets that the agent makes.
    pub pool: A,
    /// UDP port of tasks.
    pub udp_port: u16,
    /// Maximum bytes of a task.
    pub payload_max: usize,
    /// Registrars, one per leaf; none with peers.
    pub registrars: Vec<Registrar>,
    /// Queue reports to leaves, if pools send any.
    pub reports: Option<QueueReports>,
    /// Exchange of tasks with peers, if it has any.
    pub peers: Option<PeerGroup>,
    /// Deaths of worker processes, which another thread pushes.
    pub deaths: Arc<ArrayQueue<Death>>,
    /// Counters.
    pub counters: Counters,
    /// Parameters of the clock that the caller of [`Agent::poll`] reads.
    pub timing: Timing,
    /// Commands from the control thread, such as changed pools and workers.
    pub commands: AgentCommands<B>,
    /// Maximum number of pools, and of workers in all of them.
    pub room: (usize, usize),
    /// Status words, published to observers in other processes.
    pub watch: Option<AgentStatusWords>,
    /// Key of its neighbour table's hash.
    pub seed: u64,
}

/// Workers of one pool, whose tasks are packets.
pub type PacketWorkers<B> = WorkerSet<Packet<B>>;

/// Agent: the dispatcher core of a worker host. Its poll loop calls [`Agent::poll`].
#[derive(Debug)]
pub struct Agent<P: Port<Buf: Token>, A> {
    /// Workers of each pool.
    worker_sets: Vec<PacketWorkers<P::Buf>>,
    /// Ports and counters, and the sending of replies.
    responder: Responder<P>,
    /// Addresses of the ports, in the ports' order.
    addresses: ArrayVec<PortAddress, PORTS_MAX>,
    /// Buffer pool for packets that the agent makes.
    pool: A,
    /// UDP port of tasks.
    udp_port: u16,
    /// Maximum bytes of a task after its header.
    payload_max: usize,
    /// Registrars, one per leaf.
    registrars: Vec<Registrar>,
    /// Next hops to clients, for replies without the leaf; `None` without leaves.
    hops: Option<Box<ClientHops>>,
    /// Exchange of tasks with peers, if it has any.
    peers: Option<Box<PeerGroup>>,
    /// Deaths of worker processes, which another thread pushes.
    deaths: Arc<ArrayQueue<Death>>,
    /// Parameters of the clock, for conversions of ticks.
    timing: Timing,
    /// Time of the next periodic work in ticks.
    next_tick: u64,
    /// Counter of busy and empty polls.
    time: PollTime,
    /// Tasks completed by threads up to the last poll, over all current pools.
    ended: u64,
    /// Commands from the control thread, applied at each tick.
    commands: AgentCommands<P::Buf>,
    /// Sum of the attach statistics of removed pools.
    former: AttachStats,
}

/// Kind of a received packet.
enum Arrival<B> {
    /// A task with the agent as its destination.
    Task(Packet<B>),
    /// A task with another destination than the agent, and the index of the leaf that sent it.
    DirectTask(Packet<B>, u8),
    /// A leaf's acknowledgement of a worker's registration, with the range of its payload in the frame.
    Acknowledgement { header: Header, payload: Range<usize> },
    /// A leaf's probe of a worker's queue length.
    Probe { header: Header },
    /// A peer's message, with its source addresses and the range of its body in the frame.
    PeerMessage { from: (IpAddr, Mac), header: Header, body: Range<usize> },
    /// ARP or neighbour discovery; not parsed yet.
    Neighbour,
}

/// Received tasks of one pool, not yet submitted.
struct TaskRun<B> {
    /// Index of the pool's worker set.
    set: usize,
    /// The tasks, in the order of their arrival.
    tasks: ArrayVec<Option<Packet<B>>, BURST>,
}

/// Returns the source address of a checked IPv4 or IPv6 frame.
fn source(frame: &[u8]) -> IpAddr {
    let packet = &frame[ether::LEN..];
    match ether::ether_type(frame) {
        ether::IPV6 => Ipv6Addr::from_bits(ipv6::src(packet)).into(),
        _ => Ipv4Addr::from_bits(ipv4::src(packet)).into(),
    }
}

/// Parses and checks an IPv4 datagram. Also returns true if it is to this port's address. `verified` is true if
/// the device has checked the checksums.
#[inline]
fn datagram(
    frame: &[u8],
    verified: bool,
    address: &PortAddress,
) -> Result<(udp::Datagram, bool), DropReason> {
    if !ether::is_to(frame, address.mac) {
        return Err(DropReason::OtherMac);
    }
    let datagram = udp::parse(frame, verified)?;
    Ok((datagram, datagram.dst == address.ip))
}

/// Same as [`datagram`], for other frames than IPv4 at an IPv4 port. `None` for ARP and neighbour
/// discovery. The addresses of an IPv6 datagram stay in the frame, and are 0 in the result.
#[inline(never)]
fn other_datagram(
    frame: &[u8],
    verified: bool,
    address: &PortAddress,
) -> Result<Option<(udp::Datagram, bool)>, DropReason> {
    let own = match (address.v6, ether::ether_type(frame)) {
        (Some(own), ether::IPV6) => own,
        (None, ether::ARP) => return Ok(None),
        _ => return Err(vlan::reason(frame)),
    };
    let Some(datagram) = udp::parse_v6_at(address.mac, frame, verified)? else {
        return Ok(None);
    };
    let is_own = datagram.dst == own.ip;
    Ok(Some((without_addresses(datagram), is_own)))
}

impl<P, A> Agent<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Creates an agent with these ports and its addresses there. Workers attach later.
    #[must_use]
    pub fn new(mut parts: Parts<P::Buf, A>, ports: Vec<(P, PortAddress)>) -> Self {
        let (ports, addresses): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
        let named = named(&parts.identities, &parts.worker_sets);
        let (pools, workers) = parts.room;
        parts.worker_sets.reserve_exact(pools.saturating_sub(parts.worker_sets.len()));
        parts.registrars.iter_mut().for_each(|registrar| registrar.make_room(workers));
        let new_hops = || Box::new(ClientHops::new(ports.len(), parts.seed));
        let hops = (!parts.registrars.is_empty()).then(new_hops);
        let out = Outbox::new(ports, parts.counters);
        let mut responder = Responder::new(out, named, parts.timing);
        responder.reports = parts.reports.map(Box::new);
        responder.response_times = parts.watch.map(|watch| ResponseTimes::new(watch, parts.timing));
        parts.identities.iter().for_each(|&identity| responder.add_reporter(identity));
        Self {
            worker_sets: parts.worker_sets,
            responder,
            addresses: addresses.into_iter().collect(),
            pool: parts.pool,
            udp_port: parts.udp_port,
            payload_max: parts.payload_max,
            registrars: parts.registrars,
            hops,
            peers: parts.peers.map(Box::new),
            deaths: parts.deaths,
            timing: parts.timing,
            next_tick: 0,
            time: PollTime::default(),
            ended: 0,
            commands: parts.commands,
            former: AttachStats::default(),
        }
    }

    /// Lets threads complete tasks. `load` has an entry for each worker and is shared with the threads. The agent
    /// adds their `counters` to its own.
    #[must_use]
    pub fn with_threads(mut self, load: Arc<NamedLoad>, counters: Vec<Counters>) -> Self {
        self.responder.named_load = Some(load);
        self.responder.threads =
            counters.into_iter().map(|counters| (counters, [0; COUNT])).collect();
        self
    }

    /// Signs messages of workers whose pool has a key, and requires proofs on acknowledgements to them.
    #[must_use]
    pub fn with_signer(mut self, signer: Option<Arc<Signer>>) -> Self {
        self.responder.signer = signer;
        self
    }

    /// Adds a tap on the ports. It does not record packets that threads send.
    #[must_use]
    pub fn with_tap(mut self, commands: TapCommands) -> Self {
        self.responder.out.tap = TapCore::new(commands);
        self
    }

    /// Counts packets refused on reading, by port and reason, for other threads. Later drops are not among them.
    #[must_use]
    pub fn with_refusals(mut self, refusals: Refusals) -> Self {
        self.responder.out.refusals = refusals;
        self
    }

    /// Polls ports and workers once at `now` ticks: submits received tasks, replies to completed ones, and does the
    /// periodic work that is due. Returns the number of received packets.
    #[inline]
    pub fn poll(&mut self, now: u64) -> usize {
        self.time.start(now, &self.responder.out.counters);
        let now_ns = self.timing.to_ns(now);
        (self.responder.now, self.responder.now_ns) = (now, now_ns);
        self.worker_sets.iter_mut().for_each(|set| set.note_time(now_ns));
        if let Some(reports) = &mut self.responder.reports {
            reports.note_time(now);
        }
        let mut received = 0;
        for port in 0..self.responder.out.ports.len() {
            let mut burst = Burst::new();
            received += self.responder.out.receive(port, now, &mut burst);
            self.responder.out.counters.add(Counter::RxPackets, burst.len() as u64);
            burst.iter().for_each(Buf::prefetch);
            let explains = self.responder.out.tap.explains(); // once per burst: `wedjat explain` is rarely active
            let mut run = TaskRun { set: 0, tasks: ArrayVec::new() };
            for packet in burst {
                match explains {
                    false => _ = self.take(port, packet, &mut run),
                    true => self.explain(port, packet, now),
                }
            }
            self.submit(&mut run);
        }
        let (mut replied, mut ended) = (0, 0);
        let Self { worker_sets, responder, peers, pool, registrars, addresses, udp_port, .. } =
            self;
        let udp_port = *udp_port;
        let mut messenger = Messenger { responder, pool, registrars, addresses, udp_port };
        for workers in worker_sets {
            workers.collect(now, &mut |done| {
                replied += 1;
                if let Some(peers) = peers {
                    peers.note_done(&done);
                }
                messenger.finish(done);
            });
            ended += workers.ended();
        }
        // Threads reply themselves, but their replies make the poll a busy one, too: adds those since the last poll.
        replied += ended - std::mem::replace(&mut self.ended, ended);
        if self.peers.is_some() {
            self.exchange_with_peers();
        }
        if now >= self.next_tick {
            self.tick(now);
        }
        if self.responder.reports.is_some() {
            self.send_queue_reports();
        }
        self.send_completions(now);
        self.responder.out.flush();
        // Threads count their replies themselves, later, so their agent's ledger is not exact here.
        if self.responder.threads.is_empty() {
            self.responder.out.counters.check_ledger(|| self.held());
        }
        self.time.end(received > 0 || replied > 0);
        received
    }

    /// Same as [`Agent::take`], and explains the packet's outcome to `wedjat explain`: the state of the pool before the
    /// decision, the chosen worker, and the result.
    #[cold]
    fn explain(&mut self, port: usize, packet: P::Buf, now: u64) {
        if let Some(explainer) = self.responder.out.tap.explainer() {
            // View of the pool before the decision.
            let beliefs = |pool, task| {
                let set = self.worker_sets.iter().find(|set| set.pool == Some(pool))?;
                let id = |member| set.id_of(member).unwrap_or(NO_MEMBER);
                let class = set.class_beliefs(task);
                Some(set.dispatcher().beliefs().of_task(class, id))
            };
            // Begins the packet's record; `settle` below completes it.
            explainer.draft(Some(port as u8), now, packet.bytes(), beliefs);
        }
        let mut run = TaskRun { set: 0, tasks: ArrayVec::new() };
        let fate = self.take(port, packet, &mut run);
        let fate = fate.unwrap_or_else(|| self.submit(&mut run));
        let Some(explainer) = self.responder.out.tap.explainer() else { return };
        // Only a task given to a worker has a chosen member.
        let (member, pool) = match (fate, explainer.pool()) {
            (Fate::Given { member }, Some(pool)) => (Some(member), pool),
            _ => (None, 0),
        };
        let chosen = self.worker_sets.iter().find(|set| set.pool == Some(pool)).zip(member);
        explainer.name_worker(chosen.and_then(|(workers, member)| workers.id_of(member)));
        explainer.settle(Moment::Arrived, fate, |record| {
            let estimate = |(workers, member): (&WorkerSet<_>, _)| {
                MemberEstimate::of(workers.dispatcher().view(), member)
            };
            record.chosen = chosen.map(estimate);
        });
    }

    /// Processes a packet received by `port`. Returns its outcome; `None` for a task appended to `run`.
    #[inline]
    fn take(&mut self, port: usize, packet: P::Buf, run: &mut TaskRun<P::Buf>) -> Option<Fate> {
        let mut packet = Some(packet);
        Some(match self.read(port, &mut packet) {
            Ok(Arrival::Task(task)) => return self.admit(task, run),
            Ok(Arrival::DirectTask(task, leaf)) => {
                let route = self.route(port, &task, leaf);
                return self.admit(task.with_route(route, &self.addresses[port]), run);
            }
            Ok(Arrival::Acknowledgement { header, payload }) => {
                let frame = packet.as_ref().map_or(&[][..], Buf::bytes);
                let result = self.acknowledged(port, frame, &header, payload);
                self.count_message(result)
            }
            Ok(Arrival::Probe { header }) => {
                let frame = packet.as_ref().map_or(&[][..], Buf::bytes);
                let result = self.answer_probe(port, frame, &header);
                let is_answered = result == Ok(true);
                self.responder.out.counters.add(Counter::QueueProbes, u64::from(is_answered));
                self.count_message(result.map(|_| ()))
            }
            Ok(Arrival::PeerMessage { from, header, body }) => {
                let body = packet.as_ref().map_or(&[][..], |packet| &packet.bytes()[body]);
                let result = self.receive(port, from, &header, body);
                self.count_message(result)
            }
            Ok(Arrival::Neighbour) => match packet {
                Some(packet) if self.addresses[port].v6.is_some() => self.discover(port, packet),
                Some(packet) => self.arp(port, packet),
                None => Fate::Consumed,
            },
            Err(reason) => {
                self.responder.out.refusals.note(port, reason);
                self.drop_for(reason)
            }
        })
    }

    /// Counts a processed or refused message. Returns its outcome.
    fn count_message(&self, result: Result<(), DropReason>) -> Fate {
        match result {
            Ok(()) => {
                self.responder.out.counters.add(Counter::Consumed, 1);
                Fate::Consumed
            }
            Err(reason) => self.drop_for(reason),
        }
    }

    /// Counts a dropped packet. Returns its outcome.
    #[inline]
    fn drop_for(&self, reason: DropReason) -> Fate {
        self.responder.out.counters.drop(reason, 1);
        Fate::Dropped(reason)
    }

    /// Processes a leaf's acknowledgement of a worker. If the worker's pool has a key, the acknowledgement needs a
    /// valid proof.
    ///
    /// # Errors
    /// The drop reason of the message, if it is not an expected one from a leaf of this agent.
    #[cold]
    fn acknowledged(
        &mut self,
        port: usize,
        frame: &[u8],
        header: &Header,
        payload: Range<usize>,
    ) -> Result<(), DropReason> {
        if self.registrars.is_empty() {
            return Err(DropReason::NotAsked);
        }
        let from = (source(frame), ether::src(frame));
        let leaf = self.leaf_at(port, from.0).ok_or(DropReason::SpoofedReply)?;
        match self.responder.credential(header.dst) {
            Some(_) if !header.authenticated => return Err(DropReason::AuthMissing),
            Some(credential) => {
                let (packet, payload) = (&frame[ether::LEN..], &frame[payload]);
                match from.0 {
                    IpAddr::V4(_) => {
                        let signed = SignedPacket::read(&auth::addresses_in(packet), payload);
                        credential.acknowledges(leaf, signed.as_ref())?;
                    }
                    IpAddr::V6(_) => {
                        let signed = SignedPacket::read(&auth::addresses_in_v6(packet), payload);
                        credential.acknowledges(leaf, signed.as_ref())?;
                    }
                }
            }
            // Without a key, the bit for authentication is reserved.
            None if header.authenticated => return Err(DropReason::TaskReservedBit),
            None => {}
        }
        self.registrars[leaf].acknowledged(port, from, header)?;
        // Until now the leaf had no load of this worker.
        self.responder.report_to(leaf, header.dst);
        Ok(())
    }

    /// Answers a leaf's probe of a worker's queue with the number of tasks that name the worker. Returns false if the
    /// leaf's MAC address is unknown, so that no answer can be sent.
    ///
    /// # Errors
    /// The drop reason of the probe, if it is from no leaf of this agent, or names no worker here.
    fn answer_probe(
        &mut self,
        port: usize,
        frame: &[u8],
        header: &Header,
    ) -> Result<bool, DropReason> {
        let leaf = self.leaf_at(port, source(frame)).ok_or(DropReason::UnknownPeer)?;
        let worker = header.dst;
        let known = self.responder.named.get(usize::from(worker));
        let named = known.filter(|named| named.set != NO_SET).ok_or(DropReason::UnknownWorker)?;
        if self.worker_sets[usize::from(named.set)].pool != Some(header.pool) {
            return Err(DropReason::PoolMismatch);
        }
        let tasks = self.responder.named_tasks(worker);
        Ok(self.send_report(leaf, header.answered_with(tasks)))
    }

    /// Returns the index of the leaf with this address behind the port, if it is one of the agent's.
    fn leaf_at(&self, port: usize, address: IpAddr) -> Option<usize> {
        let mut registrars = self.registrars.iter(); // in the order of the leaves
        registrars.position(|registrar| (registrar.hop.port, registrar.leaf()) == (port, address))
    }

    /// Returns true if a leaf or peer with this address is behind the port, and stores its MAC address if
    /// given.
    fn learn_hop(&mut self, port: usize, address: IpAddr, mac: Option<Mac>) -> bool {
        if let Some(leaf) = self.leaf_at(port, address) {
            let hop = &mut self.registrars[leaf].hop;
            mac.into_iter().for_each(|mac| hop.learn(mac));
            return true;
        }
        let Some(peers) = &mut self.peers else { return false };
        let hop = peers.hop_of(port, address);
        hop.map(|hop| mac.into_iter().for_each(|mac| hop.learn(mac))).is_some()
    }

    /// Returns true if a client or router with this address gets replies without a leaf. Learns its MAC address if
    /// given.
    fn learn_client<I: HostAddress>(&self, port: usize, host: I, mac: Option<Mac>) -> bool {
        let now_ms = self.responder.now_ms();
        self.hops.as_ref().is_some_and(|hops| hops.learn(port, host, mac, now_ms))
    }

    /// Parses a packet. Takes it out of `packet` if it is a task; leaves a message there.
    ///
    /// # Errors
    /// The reason for dropping the packet.
    #[inline]
    fn read(
        &self,
        port: usize,
        packet: &mut Option<P::Buf>,
    ) -> Result<Arrival<P::Buf>, DropReason> {
        let Some(buf) = packet.as_mut() else {
            return Err(DropReason::Runt);
        };
        if buf.is_segmented() {
            if !buf.linearise() {
                return Err(DropReason::Segmented);
            }
            self.responder.out.counters.add(Counter::Linearised, 1);
        }
        let (frame, address) = (buf.bytes(), &self.addresses[port]);
        if frame.len() < ether::LEN {
            return Err(DropReason::Runt);
        }
        // The common case first: IPv4 at an IPv4 port.
        let (mut datagram, is_own) =
            if ether::ether_type(frame) == ether::IPV4 && address.v6.is_none() {
                datagram(frame, buf.checksums_verified(), address)?
            } else {
                let datagram = other_datagram(frame, buf.checksums_verified(), address)?;
                let Some(datagram) = datagram else { return Ok(Arrival::Neighbour) };
                datagram
            };
        // Under direct return, a leaf keeps the client's destination: its tasks are addressed to another host.
        let leaf = match is_own {
            true => None,
            false => Some(self.leaf_of(port, ether::src(frame)).ok_or(DropReason::OtherAddress)?),
        };
        if datagram.dst_port != self.udp_port {
            return Err(DropReason::UdpPort);
        }
        let mut payload = &frame[datagram.payload()..usize::from(datagram.end)];
        let mut header = Header::parse(payload)?;
        if leaf.is_some() && header.code != Code::NewTask {
            return Err(DropReason::OtherAddress);
        }
        if header.code == Code::WorkerIdAck {
            let payload = datagram.payload()..usize::from(datagram.end);
            return Ok(Arrival::Acknowledgement { header, payload });
        }
        if header.code == Code::QueueProbe {
            return Ok(Arrival::Probe { header });
        }
        let mut forwarded = None;
        if let Some(peers) = &self.peers {
            if header.code == Code::PassedTask {
                let body = &payload[header.len()..];
                forwarded = Some(peers.forwarded(port, ether::src(frame), body)?);
                // From here on it is a normal task: without the trailer at its end.
                (header.code, payload) = (Code::NewTask, &payload[..payload.len() - VIA_LEN]);
                datagram.end -= VIA_LEN as u16;
            } else if header.code.is_of_peers() {
                let from = (source(frame), ether::src(frame));
                let body = datagram.payload() + header.len()..usize::from(datagram.end);
                return Ok(Arrival::PeerMessage { from, header, body });
            }
            header.dst = NO_MEMBER; // agents with peers have no leaf that chooses a worker
        }
        if payload.len() - header.len() > self.payload_max {
            return Err(DropReason::TaskTooLong);
        }
        let Some(buf) = packet.take() else {
            return Err(DropReason::Runt);
        };
        let task = Packet::new(buf, port as u8, datagram, header).map_err(|(_, reason)| reason)?;
        Ok(match leaf {
            None => Arrival::Task(task.with_origin(forwarded)),
            Some(leaf) => Arrival::DirectTask(task, leaf),
        })
    }

    /// Returns the index of the leaf with this MAC address behind the port, if it is one of the agent's. A task has the
    /// client's source IP address, so only the MAC address identifies the leaf.
    #[inline]
    fn leaf_of(&self, port: usize, mac: Mac) -> Option<u8> {
        let is_sender = |leaf: &Registrar| leaf.hop.port == port && leaf.mac() == Some(mac);
        self.registrars.iter().position(is_sender).map(|leaf| leaf as u8)
    }

    /// Returns the route of the reply of a task that this leaf sent with the client's destination. `None` if the reply
    /// must pass the leaf: the next hop's MAC address is unknown, or threads send replies.
    fn route(&mut self, port: usize, task: &Packet<P::Buf>, leaf: u8) -> Option<DirectRoute> {
        let hops = self.hops.as_mut().filter(|_| self.responder.threads.is_empty())?;
        let (address, now_ms) = (&self.addresses[port], self.responder.now_ms());
        let mac = match source(task.frame()) {
            IpAddr::V4(from) => hops.find(port, &address.network()?, from.to_bits(), now_ms),
            IpAddr::V6(from) => hops.find(port, &address.network()?, from.to_bits(), now_ms),
        };
        mac.map(|mac| DirectRoute { leaf, mac })
    }

    /// Checks a task and appends it to `run`, forwards it to a peer, or drops it. Returns its outcome; `None` for a
    /// task in `run`. Submits the tasks of another pool in `run` first.
    #[inline]
    fn admit(&mut self, mut task: Packet<P::Buf>, run: &mut TaskRun<P::Buf>) -> Option<Fate> {
        let (pool, worker) = task.addressed();
        let counters = &self.responder.out.counters;
        // Finds the pool's worker set, and checks that it has the worker that the task names.
        let Some(set) = self.worker_sets.iter().position(|set| set.pool == Some(pool)) else {
            return Some(self.drop_for(DropReason::UnknownPool));
        };
        let named = self.responder.named.get(usize::from(worker)).copied();
        let named = named.filter(|named| named.set != NO_SET);
        match named {
            None if worker != NO_MEMBER => return Some(self.drop_for(DropReason::UnknownWorker)),
            Some(named) if usize::from(named.set) != set => {
                return Some(self.drop_for(DropReason::PoolMismatch));
            }
            _ => {}
        }
        let mut peers = self.peers.as_mut().filter(|peers| peers.pool() == pool);
        let has_peers = peers.is_some();
        if let Some(peers) = &mut peers {
            peers.note_waiting(self.worker_sets[set].waiting());
            if task.is_forwarded() {
                counters.add(Counter::TasksTaken, 1);
            } else if let Some(node) = peers.destination() {
                return Some(self.forward_to_peer(task, node, Counter::TasksPassed));
            }
        }
        task.since_ns = self.responder.now_ns;
        // The task stays at this agent. A task of a leaf counts for the worker that it names.
        if let Some(named) = named {
            // Counted before the hand-over, because a thread may answer before this core continues.
            task.set_worker_index(named.index);
            self.responder.count(worker, 1);
            if let Some(reports) = &mut self.responder.reports {
                let from = Some(task.sender());
                let mut registrars = self.registrars.iter();
                if let Some(leaf) = registrars.position(|registrar| registrar.mac() == from) {
                    reports.on_task(named.reporter, leaf);
                }
            }
            // Direct return: the leaf waits for this worker's completion, so its report must not be delayed.
            if let Some(route) = task.direct_route().filter(|_| task.is_last()) {
                self.responder.note_full(worker, route);
            }
        }
        if run.set != set || run.tasks.is_full() {
            self.submit(run);
            run.set = set;
        }
        run.tasks.push(Some(task));
        // A decision between peers depends on the tasks that wait.
        has_peers.then(|| self.submit(run))
    }

    /// Gives each task of a run to a worker, queues it, refuses it to its sender, or drops it. Returns the last task's
    /// outcome. Leaves the run empty.
    #[inline]
    fn submit(&mut self, run: &mut TaskRun<P::Buf>) -> Fate {
        if run.tasks.is_empty() {
            return Fate::Queued;
        }
        let (set, now) = (run.set, self.responder.now);
        let (mut fate, mut scheduled) = (None, 0);
        let mut failed = ArrayVec::<_, BURST>::new();
        let (worker_sets, mut messenger) = self.split();
        let workers = &mut worker_sets[set];
        let refuses = workers.overflow() == Overflow::Refuse;
        workers.submit_run(&mut run.tasks, now, &mut |result, waiting| {
            fate = match result {
                Ok(member) => {
                    scheduled += 1;
                    Some(member.map_or(Fate::Queued, |member| Fate::Given { member }))
                }
                Err((task, reason)) => {
                    failed.push((task, reason, waiting));
                    None
                }
            };
        });
        run.tasks.clear();
        // A refusal has the number of the worker's tasks, without those of the run that failed.
        failed.iter().for_each(|(task, ..)| messenger.discount(task));
        let failures = failed.len();
        let mut last = Fate::Queued;
        for (task, reason, waiting) in failed {
            last = messenger.refuse(task, reason, refuses.then_some(waiting));
        }
        self.responder.out.counters.add(Counter::Scheduled, scheduled);
        let pool = self.worker_sets[set].pool;
        if let Some(peers) = self.peers.as_mut().filter(|peers| Some(peers.pool()) == pool) {
            (0..failures).for_each(|_| peers.note_failed());
        }
        fate.unwrap_or(last)
    }

    /// Processes an ARP packet: answers a question for this host, and learns the MAC address of a leaf, peer or client.
    #[cold]
    fn arp(&mut self, port: usize, mut buf: P::Buf) -> Fate {
        let address = self.addresses[port];
        let packet = match arp::Packet::parse(buf.bytes()) {
            Ok(packet) => packet,
            Err(reason) => return self.drop_for(reason),
        };
        let is_to_us = packet.target == address.ip;
        let sender = Ipv4Addr::from_bits(packet.sender).into();
        let mac = is_to_us.then_some(packet.sender_mac);
        // `|` instead of `||`: a host may be in both tables, and both must learn.
        let is_known =
            self.learn_hop(port, sender, mac) | self.learn_client(port, packet.sender, mac);
        let for_us = is_to_us && packet.operation == Operation::Request;
        if for_us && buf.resize(arp::FRAME_LEN) {
            packet.answer(address.mac).emit(buf.bytes_mut(), packet.sender_mac);
            self.responder.out.counters.add(Counter::Consumed, 1);
            self.responder.out.originate(buf, port);
            Fate::Answered
        } else if is_known || packet.is_announcement() {
            self.count_message(Ok(()))
        } else {
            self.drop_for(DropReason::ArpOther)
        }
    }

    /// Same as [`Agent::arp`], for neighbour discovery (RFC 4861).
    #[cold]
    fn discover(&mut self, port: usize, mut buf: P::Buf) -> Fate {
        let address = self.addresses[port];
        let Some(v6) = address.v6 else { return self.drop_for(DropReason::EtherType) };
        let from = ether::src(buf.bytes());
        let message = match ndp::Packet::parse(buf.bytes()) {
            Ok(message) => message,
            Err(reason) => return self.drop_for(reason),
        };
        let asks = message.operation == ndp::Operation::Solicitation;
        let (host, mac, is_to_us) = match asks {
            // A solicitation without the option for the sender's MAC address teaches none: its sender is known already.
            true => (message.src, message.mac, message.target == v6.ip),
            // An advertisement's target is the host itself.
            false => (message.target, Some(message.mac.unwrap_or(from)), message.dst == v6.ip),
        };
        let mac = mac.filter(|_| is_to_us);
        // Both tables must learn, as in `arp`.
        let is_known = self.learn_hop(port, Ipv6Addr::from_bits(host).into(), mac)
            | self.learn_client(port, host, mac);
        if asks && is_to_us && buf.resize(ndp::FRAME_LEN) {
            let (answer, to) = message.answer(address.mac, from);
            answer.emit(buf.bytes_mut(), to, false);
            self.responder.out.counters.add(Counter::Consumed, 1);
            self.responder.out.originate(buf, port);
            Fate::Answered
        } else if is_known || message.is_announcement() {
            self.count_message(Ok(()))
        } else {
            self.drop_for(DropReason::NdOther)
        }
    }

    /// Asks for the MAC address of a host in a port's network.
    fn ask_for(&mut self, port: usize, host: IpAddr) {
        let question = ArpQuestion::broadcast(port as u8, host);
        self.responder.out.ask(&mut self.pool, &self.addresses[port], &question);
    }

    /// Does periodic work: commands, deaths, attaching and silent workers, clients' MAC addresses, registrations,
    /// peers, repeated queue reports, counters of threads, sequences of signatures, and published values. Commands come
    /// first, so that the rest uses the new membership.
    #[cold]
    fn tick(&mut self, now: u64) {
        self.next_tick = now + self.timing.tick_interval();
        self.apply_commands();
        self.responder.out.tap.tick(now);
        while let Some(Death { channel, claim }) = self.deaths.pop() {
            let (worker_sets, mut messenger) = self.split();
            for workers in worker_sets {
                workers.died(channel, claim, &mut |done| messenger.finish(done));
            }
        }
        let now_ns = self.timing.to_ns(now);
        let (worker_sets, mut messenger) = self.split();
        for workers in worker_sets {
            workers.tick(now, now_ns, &mut |done| messenger.finish(done));
            // Tasks that no worker will ever serve.
            while let Some(task) = workers.next_without_workers() {
                messenger.responder.give_up(task, DropReason::NoMember);
            }
        }
        self.ask_for_clients();
        (0..self.registrars.len()).for_each(|leaf| self.register(leaf, now));
        self.tick_peers(now);
        self.repeat_report();
        self.responder.add_up();
        if let Some(signer) = &self.responder.signer {
            signer.follow();
        }
        self.note_held();
        if let Some(times) = &mut self.responder.response_times {
            times.tick(now, || self.worker_sets.iter().map(WorkerSet::backlog).sum());
        }
    }

    /// Sends the leaf at this index the next registration or keep-alive that is due. Without the leaf's MAC address,
    /// asks for it instead.
    fn register(&mut self, leaf: usize, now: u64) {
        let registrar = &mut self.registrars[leaf];
        if registrar.must_ask(now) {
            let (port, host) = (registrar.hop.port, registrar.leaf());
            self.ask_for(port, host);
        }
        // One message per tick, so that a burst of registrations does not delay tasks.
        let tasks = |identity| tasks_of(identity, &self.worker_sets, &self.responder);
        if let Some(header) = self.registrars[leaf].due(now, tasks) {
            self.send_report(leaf, header);
        }
    }

    /// Checks one worker per call, and repeats its queue report after long idleness, because the last one may be lost.
    fn repeat_report(&mut self) {
        // Taken out, because the numbers of tasks come from the responder.
        if let Some(mut reports) = self.responder.reports.take() {
            reports.tick(|identity| tasks_of(identity, &self.worker_sets, &self.responder));
            self.responder.reports = Some(reports);
        }
    }

    /// Sends the workers' queue reports.
    fn send_queue_reports(&mut self) {
        while let Some(QueueReport { leaf, header }) =
            self.responder.reports.as_mut().and_then(|reports| reports.next_report())
        {
            let is_sent = self.send_report(leaf, header);
            self.responder.out.counters.add(Counter::QueueReports, u64::from(is_sent));
        }
    }

    /// Same as [`Messenger::send`], without entries: for registrations, keep-alives, queue reports and probe answers.
    fn send_report(&mut self, leaf: usize, header: Header) -> bool {
        let (_, mut messenger) = self.split();
        messenger.send(leaf, header, &[])
    }

    /// Sends the completion reports that are due at `now` ticks.
    #[inline]
    fn send_completions(&mut self, now: u64) {
        if now >= self.responder.completions.due() {
            let (_, mut messenger) = self.split();
            messenger.send_completions(now);
        }
    }

    /// Borrows the worker sets and the messenger, so that a worker set can pass completed tasks to the messenger.
    #[inline]
    fn split(&mut self) -> (&mut [PacketWorkers<P::Buf>], Messenger<'_, P, A>) {
        let Self { worker_sets, responder, pool, registrars, addresses, udp_port, .. } = self;
        let udp_port = *udp_port;
        (worker_sets, Messenger { responder, pool, registrars, addresses, udp_port })
    }

    /// Sends the questions for clients' MAC addresses that are due.
    fn ask_for_clients(&mut self) {
        let Some(hops) = &mut self.hops else { return };
        while let Some(question) = hops.next_question(self.responder.now_ms()) {
            let address = &self.addresses[usize::from(question.port)];
            self.responder.out.ask(&mut self.pool, address, &question);
        }
    }

    /// Publishes the numbers of held tasks (waiting or with workers) and of waiting ones. The control thread waits for
    /// an empty queue before it removes a pool.
    fn note_held(&self) {
        let (mut held, mut queued) = (0, 0);
        for workers in &self.worker_sets {
            (held, queued) = (held + workers.held(), queued + workers.waiting());
            workers.dispatcher().view().note_queued(workers.waiting());
        }
        self.responder.out.counters.set(Gauge::Held, held as u64);
        self.responder.out.counters.set(Gauge::Queued, queued as u64);
    }

    /// Returns the number of tasks waiting or with workers, both processes and threads.
    #[must_use]
    pub fn held(&self) -> usize {
        self.worker_sets.iter().map(WorkerSet::held).sum()
    }

    /// Returns the number of tasks waiting for a worker.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.worker_sets.iter().map(WorkerSet::waiting).sum()
    }

    /// Returns true if the worker is attached.
    #[must_use]
    pub fn is_present(&self, identity: WorkerIdentity) -> bool {
        self.claim_of(identity).is_some()
    }

    /// Returns the claim by which the worker is attached; `None` if it is not attached. A leaf on the same core gives
    /// tasks to attached workers only.
    #[must_use]
    pub fn claim_of(&self, identity: WorkerIdentity) -> Option<u64> {
        let mut worker_sets = self.worker_sets.iter().filter(|set| set.pool == Some(identity.pool));
        worker_sets.find_map(|set| set.claim_of(identity))
    }

    /// Iterates over all its workers, attached or not. A leaf on the same core finds its local workers among them.
    pub fn identities(&self) -> impl Iterator<Item = WorkerIdentity> + '_ {
        self.worker_sets.iter().flat_map(WorkerSet::identities)
    }

    /// Returns the epoch of its membership. A leaf on the same core looks for new workers when it changes.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.commands.epoch()
    }

    /// Iterates over the attach statistics in the order of the pools. The last item is the sum of removed pools.
    pub fn attach_stats(&self) -> impl Iterator<Item = AttachStats> + '_ {
        self.worker_sets.iter().map(WorkerSet::attach_stats).chain([self.former])
    }

    /// Iterates over its dispatchers in the order of the pools.
    pub fn dispatchers(&self) -> impl Iterator<Item = &Dispatcher> + '_ {
        self.worker_sets.iter().map(WorkerSet::dispatcher)
    }

    /// Returns the dispatcher of the pool at `index`; `None` beyond the last pool.
    #[must_use]
    pub fn dispatcher(&self, index: usize) -> Option<&Dispatcher> {
        self.worker_sets.get(index).map(WorkerSet::dispatcher)
    }

    /// Returns its counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.responder.out.counters
    }

    /// Returns the number of workers acknowledged by a leaf, for the account at the end; with several leaves, the
    /// smallest number.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.registrars.iter().map(Registrar::registered).min().unwrap_or(0)
    }

    /// Signals to the workers that no more tasks will come.
    pub fn stop(&self) {
        self.worker_sets.iter().for_each(WorkerSet::stop);
    }

    /// Returns true if a thread that gets tasks handed over is attached. At the end, the caller polls until none is,
    /// because these threads count their tasks themselves.
    #[must_use]
    pub fn has_threads(&self) -> bool {
        self.worker_sets.iter().any(WorkerSet::has_threads)
    }

    /// Stops the agent: notifies workers, drops and counts held tasks, and returns the ports.
    pub fn close(mut self) -> Vec<P> {
        self.stop();
        for workers in &mut self.worker_sets {
            while workers.abandon().is_some() {
                self.responder.out.counters.drop(DropReason::Shutdown, 1);
            }
            workers.dispatcher().view().note_queued(0);
            // The agent does not wait for threads that have not ended by now.
            self.responder.out.counters.drop(DropReason::Shutdown, workers.handed() as u64);
        }
        // Each call adds one thread's counts.
        (0..self.responder.threads.len()).for_each(|_| self.responder.add_up());
        self.responder.out.counters.set(Gauge::Held, 0);
        self.responder.out.counters.set(Gauge::Queued, 0);
        self.send_completions(u64::MAX); // also those that are not due yet
        self.responder.out.flush();
        self.responder.out.ports.into_iter().collect()
    }
}

impl<P, A> CoreRole for Agent<P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Polls ports and workers once at `now` ticks. Returns the number of received packets.
    #[inline]
    fn poll(&mut self, now: u64) -> usize {
        Self::poll(self, now)
    }

    /// Returns how long the core may sleep. The next timer is a tick, the end of a beat, or a completion report. Ticks
    /// may be late while no packets arrive, but heartbeats and completion reports may not.
    fn progress(&self) -> Progress {
        let beat = self
            .peers
            .as_ref()
            .map_or(u64::MAX, |peers| self.timing.ticks_of_ns(peers.next_beat_ns()));
        let punctual = beat.min(self.responder.completions.due());
        // A tick sends one message to each leaf. More of them may be due, which late ticks would delay further.
        let registration = self.registrars.iter().map(Registrar::next_check).min();
        let registration = registration.unwrap_or(u64::MAX).max(self.next_tick);
        let latest = self.next_tick.saturating_add(self.timing.max_tick_delay());
        let latest = latest.min(punctual).min(registration);
        let progress = self.responder.out.progress(self.next_tick.min(punctual), latest);
        Progress { awaits_workers: self.held() > 0, ..progress }
    }

    /// Returns the number of tasks waiting or with workers.
    fn held(&self) -> usize {
        Self::held(self)
    }
}

/// Returns the number of tasks at this agent that name the worker with this identity, or `None` if it is not attached.
fn tasks_of<P: Port<Buf: Token>>(
    identity: WorkerIdentity,
    worker_sets: &[PacketWorkers<P::Buf>],
    responder: &Responder<P>,
) -> Option<u16> {
    let set = worker_sets.iter().find(|set| set.pool == Some(identity.pool))?;
    let is_attached = set.present().any(|present| present == identity);
    is_attached.then(|| responder.named_tasks(identity.id))
}
