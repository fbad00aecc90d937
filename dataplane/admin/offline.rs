//! A node without devices that explains the packets of a capture: their outcome, and the reason (`wedjat explain
//! --file`).
//!
//! The node has its configured roles and policies, and ports in memory. The packets of the capture arrive there at
//! their own times. Neighbours answer ARP with their MAC addresses in the capture, or with invented ones.
//! [`Offline::notes`] lists further assumptions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wedjat_assembly::agent as agent_assembly;
use wedjat_core::io::Buf as _;
use wedjat_core::io::memory::{FramePool, RingPort, pair};
use wedjat_core::io::vdev::{self, SOFTWARE_DRIVERS};
use wedjat_core::node::explain::{Explainer, Records};
use wedjat_core::node::tap::{TapCommands, TapOrder};
use wedjat_core::node::{Commands, Timing};
use wedjat_core::ring::RegionError;
use wedjat_core::role::{Agent, Leaf};
use wedjat_core::stage::auth::ReplyAuthenticator;
use wedjat_core::stage::network::NetworkError;
use wedjat_core::state::StateError;
use wedjat_core::wire::arp::{self, Operation};
use wedjat_core::wire::ether::{self, Mac};
use wedjat_core::wire::{ipv4, ipv6, ndp, udp, vlan};
use wedjat_desired::config::{AgentConfig, Config, NodeConfig, PortConfig};
use wedjat_desired::control::{Membership, signer};

use super::convert::explain_spec;
use super::explain::ExplainSession;
use super::explanation::ExplainContext;
use super::generated as proto;
use super::offline_workers::{EndedTask, OfflineWorkers};
use super::stamps::Stamps;
use super::tap::TapError;
use crate::pcap::{self, CaptureError, CapturedPacket};

/// Ticks per second: nanoseconds.
const TICKS_HZ: u64 = 1_000_000_000;
/// Time of the first packet in ticks: the node has been running for a while.
const BEGIN: u64 = 10 * TICKS_HZ;
/// Polls before the first packet, in which the node resolves its servers' MAC addresses.
const POLLS: u64 = 64;
/// Maximum number of polls between two packets of the capture, so that long gaps cost little. In short gaps the
/// node polls every 100 us, the interval of its periodic work.
const STEPS: u64 = 200;
/// Packets per port and direction.
const DEPTH: usize = 512;
/// Number of packet buffers.
const FRAMES: usize = 4096;
/// Bytes of a buffer: the maximum packet size.
const FRAME_BYTES: usize = 16_384;

/// Reason why a capture cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The port or the kind of packets does not exist.
    #[error(transparent)]
    Asked(#[from] TapError),
    /// No port leads to a server.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// No memory for the state.
    #[error(transparent)]
    State(#[from] StateError),
    /// No memory for the worker region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The agent's decisions depend on its peers.
    #[error(
        "this agent has [peers], and its decisions depend on their messages; explain the running agent with --node"
    )]
    Peers,
}

/// Configuration of the node.
#[derive(Debug)]
enum OfflineConfig {
    /// A leaf or spine.
    Leaf(Box<Config>),
    /// An agent.
    Agent(Box<AgentConfig>),
}

impl OfflineConfig {
    /// Returns the settings that every node has.
    fn node(&self) -> NodeConfig<'_> {
        match self {
            Self::Leaf(config) => config.node(),
            Self::Agent(config) => config.node(),
        }
    }

    /// Returns the servers on a port's network. Their replies may have any destination IP address (the client's), and
    /// have the port's MAC address.
    fn servers_behind(&self, port: &PortConfig) -> Vec<IpAddr> {
        let servers = match self {
            Self::Leaf(config) => &config.servers[..],
            Self::Agent(_) => &[],
        };
        let servers = servers.iter().map(|server| server.ip);
        servers.filter(|&server| port.reaches(server)).collect()
    }
}

/// A capture, and the configuration of the node that received its packets.
#[derive(Debug)]
pub struct Offline {
    /// Configuration of the node.
    source: OfflineConfig,
    /// Packets of the capture, in its order.
    packets: Vec<CapturedPacket>,
    /// MAC addresses of the node's ports.
    macs: Vec<Mac>,
    /// MAC addresses of hosts in the capture.
    hosts: BTreeMap<IpAddr, Mac>,
    /// Port that received all packets, if given.
    port: Option<usize>,
    /// Assumptions made, for the user.
    notes: Vec<String>,
}

impl Offline {
    /// Prepares a leaf or spine with this configuration, and reads a capture. `port` names the port (index or device)
    /// that received all its packets, if given.
    ///
    /// # Errors
    /// If the capture cannot be read, or the port does not exist.
    pub fn new(config: &Config, capture: &Path, port: Option<&str>) -> Result<Self, OfflineError> {
        let mut config = config.clone();
        // A private state, equal in each call.
        config.leaf.state = None;
        config.leaf.seed.get_or_insert(1);
        config.leaf.cores.truncate(1);
        Self::of(OfflineConfig::Leaf(Box::new(config)), capture, port)
    }

    /// Prepares an agent. All its workers are attached, and complete a task when the capture has its reply.
    ///
    /// # Errors
    /// Same as for [`Offline::new`]. Also if the agent has peers, because its tasks' outcomes depend on them.
    pub fn of_agent(
        config: &AgentConfig,
        capture: &Path,
        port: Option<&str>,
    ) -> Result<Self, OfflineError> {
        if config.peers.is_some() {
            return Err(OfflineError::Peers);
        }
        let mut config = config.clone();
        config.state = None;
        config.seed.get_or_insert(1);
        // A worker's silence in the capture does not prove that it hung.
        config.host.worker_timeout_ms = 0;
        let workers = config.host.identities().len();
        let mut offline = Self::of(OfflineConfig::Agent(Box::new(config)), capture, port)?;
        let replies = offline.packets.iter().filter(|one| {
            offline.port_of(&one.bytes).is_none() && EndedTask::in_frame(&one.bytes).is_some()
        });
        let replies = replies.count();
        offline.note(format!(
            "assumes that all {workers} workers are attached, and that a task ends at its reply; the capture has {replies} replies"
        ));
        Ok(offline)
    }

    /// Reads the capture, and determines MAC addresses from it.
    fn of(source: OfflineConfig, capture: &Path, port: Option<&str>) -> Result<Self, OfflineError> {
        let packets = pcap::read_packets(capture)?;
        let ports = source.node().ports;
        let is_device = |device: &str, name: &str| device == name || vdev::name(device) == name;
        let named = |name: &str| ports.iter().position(|one| is_device(&one.device, name));
        let index = |name: &str| name.parse().ok().filter(|&index: &usize| index < ports.len());
        let port = match port {
            None => None,
            Some(name) => Some(named(name).or_else(|| index(name)).ok_or_else(|| {
                let one =
                    |(index, port): (usize, &PortConfig)| format!("{index} ({})", port.device);
                let existing: Vec<_> = ports.iter().enumerate().map(one).collect();
                TapError::Port { port: name.to_owned(), there: existing.join(", ") }
            })?),
        };
        let mut offline = Self {
            source,
            packets,
            macs: Vec::new(),
            hosts: BTreeMap::new(),
            port,
            notes: Vec::new(),
        };
        offline.find_macs();
        offline.find_hosts();
        if offline.source.node().controller.is_some() {
            offline.note("pools and workers of the controller are unknown");
        }
        let cut = offline.packets.iter().filter(|one| one.len as usize > one.bytes.len()).count();
        if cut > 0 {
            offline.note(format!(
                "{cut} packets are truncated: assumes that their UDP checksums are right"
            ));
        }
        Ok(offline)
    }

    /// Returns the assumptions made.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Records an assumption.
    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Determines the ports' MAC addresses: configured, or those of packets to or from the port in the capture.
    fn find_macs(&mut self) {
        for index in 0..self.source.node().ports.len() {
            let port = &self.source.node().ports[index];
            let (ip, device) = (port.ip, port.device.clone());
            let found = port.mac.or_else(|| {
                let by_address = |one: &CapturedPacket| mac_of_host(&one.bytes, ip);
                let by_server = |one: &CapturedPacket| {
                    port_mac_from(&one.bytes, &self.source.servers_behind(port))
                };
                let packets = &self.packets;
                packets.iter().find_map(by_address).or_else(|| packets.iter().find_map(by_server))
            });
            let is_configured = port.mac.is_some();
            let mac = found.unwrap_or(Mac([2, 0, 0, 0, 0, index as u8 + 1]));
            match (found, is_configured) {
                (Some(mac), false) => self.note(format!(
                    "port {index} ({device}) is assumed to have {mac}, as packets in the capture show"
                )),
                (None, _) => self.note(format!(
                    "port {index} ({device}) is assumed to have {mac}: `port.mac` is not set, and the capture has no packet for {ip}"
                )),
                _ => {}
            }
            self.macs.push(mac);
        }
    }

    /// Determines the MAC addresses of hosts on the ports' networks, from their packets.
    fn find_hosts(&mut self) {
        for packet in &self.packets {
            let frame = &packet.bytes[..];
            let Some((ip, mac)) = sender(frame) else { continue };
            let is_neighbour =
                |(port, &port_mac): (&PortConfig, &Mac)| port.reaches(ip) && mac != port_mac;
            if !mac.is_group() && self.source.node().ports.iter().zip(&self.macs).any(is_neighbour)
            {
                self.hosts.entry(ip).or_insert(mac);
            }
        }
    }

    /// Returns the port that received a packet; `None` for packets that the node sent.
    fn port_of(&self, frame: &[u8]) -> Option<usize> {
        if frame.len() < ether::LEN {
            return Some(self.port.unwrap_or(0));
        }
        let (src, dst) = (ether::src(frame), ether::dst(frame));
        if self.macs.contains(&src) {
            return None;
        }
        let by_destination = || self.macs.iter().position(|&mac| mac == dst);
        let by_source = || {
            let (ip, _) = sender(frame)?;
            self.source.node().ports.iter().position(|port| port.reaches(ip))
        };
        Some(self.port.or_else(by_destination).or_else(by_source).unwrap_or(0))
    }

    /// Explains the requested packets; `each` returns true if more are wanted.
    ///
    /// # Errors
    /// If such packets cannot exist, or the configuration gives no node.
    pub fn explain(
        &self,
        request: proto::ExplainRequest,
        mut each: impl FnMut(proto::Explanation) -> bool,
    ) -> Result<(), OfflineError> {
        let spec = explain_spec(request)?;
        let mut node = self.node()?;
        let records = Arc::<Records>::default();
        let count = spec.packets.unwrap_or(u64::MAX);
        let explainer = Explainer::new(spec.filter, count, Arc::clone(&records));
        let order = TapOrder::explain(1, Some(explainer)); // the first order to the core
        let _ = node.tap.push(order); // there is room
        node.poll(BEGIN);
        let first = self.packets.first().map_or(Duration::ZERO, |packet| packet.time);
        let ports = self.source.node().ports.iter().map(|port| port.device.clone()).collect();
        let stamps = Stamps::from(BEGIN, first, TICKS_HZ);
        let explaining = ExplainSession::new(vec![records], ports, stamps, Box::new(|| ()));
        let (role, membership) = (self.source.node().role, &node.membership);
        let membership = membership.clone();
        let context =
            ExplainContext { role, membership: &membership, pools: &[], explaining: &explaining };
        let mut remaining = count;
        for packet in &self.packets {
            let since = packet.time.saturating_sub(first);
            // A time beyond the range of ticks must not overflow in later sums.
            let time = BEGIN + u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2);
            match self.port_of(&packet.bytes) {
                Some(port) => {
                    node.advance_to(time);
                    node.receive(port, &self.frame(packet, port));
                }
                None => node.handle_sent(time, &packet.bytes),
            }
            for record in explaining.take() {
                if remaining == 0 || !each(context.explanation(&record)) {
                    return Ok(());
                }
                remaining -= 1;
            }
        }
        Ok(())
    }

    /// Returns a packet as the port's device would deliver it: complete, and without the port's VLAN tag. The
    /// node verifies checksums from memory, so a port that trusts checksums gets valid ones. A port of a software
    /// driver finishes UDP checksums.
    fn frame(&self, packet: &CapturedPacket, port: usize) -> Vec<u8> {
        let config = &self.source.node().ports[port];
        let mut frame = packet.bytes.clone();
        frame.truncate(FRAME_BYTES);
        let is_cut = frame.len() < packet.len as usize;
        if is_cut {
            frame.resize((packet.len as usize).min(FRAME_BYTES), 0);
        }
        if config.vlan.is_some() && vlan::id(&frame) == config.vlan {
            vlan::cover(&mut frame);
            frame.drain(..vlan::LEN);
        }
        let driver = vdev::driver(&config.device).unwrap_or_default();
        if !is_cut && SOFTWARE_DRIVERS.contains(&driver.as_str()) {
            let _ = udp::finish_checksum(&mut frame);
        }
        if is_cut || config.trust_checksums {
            forget_checksum(&mut frame);
        }
        if config.trust_checksums {
            renew_header_checksum(&mut frame);
        }
        frame
    }

    /// Creates the node, and polls it until it knows its servers' MAC addresses.
    fn node(&self) -> Result<Node, OfflineError> {
        let mut node = match &self.source {
            OfflineConfig::Leaf(config) => self.leaf(config)?,
            OfflineConfig::Agent(config) => self.agent(config)?,
        };
        // One poll each millisecond before the first packet.
        (0..POLLS).for_each(|poll| node.poll(BEGIN - (POLLS - poll) * TICKS_HZ / 1000));
        Ok(node)
    }

    /// Creates a leaf or spine with ports in memory.
    fn leaf(&self, config: &Config) -> Result<Node, OfflineError> {
        let timing = Timing { ticks_hz: TICKS_HZ };
        let table = wedjat_assembly::table(config, TICKS_HZ)?;
        let mut membership = Membership::of(config);
        for pool in membership.pools.iter_mut().flatten() {
            // Accepts all sequence numbers from 0, since the capture may be of any age.
            let authenticator = |key: &wedjat_core::wire::auth::Key| {
                Arc::new(ReplyAuthenticator::new(key.clone(), config.leaf.limits.workers, 0))
            };
            pool.authenticator = pool.settings.fixed.key.as_ref().map(authenticator);
        }
        let macs = self.macs.iter().copied();
        let mut stages = wedjat_assembly::stages(config, &membership, macs, &table)?;
        let (frames, near, far) = ports(stages[0].network().ports().len());
        let tap = TapCommands::default();
        let leaf = Leaf::new(stages.remove(0), near, frames, Commands::default(), timing);
        let core = Core::Leaf(Box::new(leaf.with_tap(tap.clone())));
        Ok(Node { core, far, tap, membership, hosts: self.hosts.clone(), now: 0 })
    }

    /// Creates an agent with ports in memory.
    fn agent(&self, config: &AgentConfig) -> Result<Node, OfflineError> {
        let table = agent_assembly::table(config, TICKS_HZ)?;
        let membership = agent_assembly::membership(config);
        let (frames, near, far) = ports(config.ports.len());
        let (workers, region) = OfflineWorkers::new(&config.host)?;
        let parts =
            agent_assembly::parts(config, &table, |index| region.channel(index).into(), frames);
        let ports = near.into_iter().zip(config.addresses(self.macs.iter().copied())).collect();
        let signer = signer(&membership, None).map(Arc::new);
        let tap = TapCommands::default();
        let agent = Agent::new(parts, ports).with_signer(signer).with_tap(tap.clone());
        let core = Core::Agent(Box::new(agent), workers);
        Ok(Node { core, far, tap, membership, hosts: self.hosts.clone(), now: 0 })
    }
}

/// Creates buffers, and ports in memory. Packets sent to a port's far end arrive at the port.
fn ports(count: usize) -> (FramePool, Vec<RingPort>, Vec<RingPort>) {
    let frames = FramePool::new(FRAMES, FRAME_BYTES);
    let (near, far) = (0..count).map(|_| pair(DEPTH, &frames)).unzip();
    (frames, near, far)
}

/// The node's only core.
enum Core {
    Leaf(Box<Leaf<RingPort, FramePool>>),
    Agent(Box<Agent<RingPort, FramePool>>, OfflineWorkers),
}

/// A node with ports in memory, whose neighbours all answer ARP and neighbour discovery.
struct Node {
    core: Core,
    /// Far ends of its ports, where the packets of the capture and the neighbours' answers come from.
    far: Vec<RingPort>,
    /// Orders to the core, to explain packets.
    tap: TapCommands,
    membership: Membership,
    /// MAC addresses of hosts in the capture.
    hosts: BTreeMap<IpAddr, Mac>,
    /// Time in ticks.
    now: u64,
}

impl Node {
    /// Polls its ports. The far ends answer questions for MAC addresses and discard everything else.
    fn poll(&mut self, now: u64) {
        self.now = now.max(self.now);
        match &mut self.core {
            Core::Leaf(leaf) => _ = leaf.poll(self.now),
            Core::Agent(agent, workers) => {
                workers.work();
                agent.poll(self.now);
            }
        }
        for far in &mut self.far {
            let mut answers = Vec::new();
            while let Some(frame) = far.receive() {
                answers.extend(answer(frame.bytes(), &self.hosts));
            }
            answers.iter().for_each(|answer| _ = far.send(answer));
        }
    }

    /// Advances the time to `until`.
    fn advance_to(&mut self, until: u64) {
        let gap = until.saturating_sub(self.now);
        let step = (gap / STEPS).max(TICKS_HZ / 10_000); // at least 100 us
        while self.now + step < until {
            self.poll(self.now + step);
        }
        self.now = self.now.max(until);
    }

    /// Delivers a packet, and answers the node's questions.
    fn receive(&mut self, port: usize, frame: &[u8]) {
        let _ = self.far[port].send(frame); // there is room: all packets are taken at once
        self.settle();
    }

    /// Handles a packet that the node sent. For an agent, it means that a task has ended.
    fn handle_sent(&mut self, time: u64, frame: &[u8]) {
        let Core::Agent(_, workers) = &mut self.core else { return };
        let Some(ended) = EndedTask::in_frame(frame) else { return };
        // First, so that a poll before `time` completes the task: the worker ended it before the node sent the reply.
        workers.end(ended);
        self.advance_to(time);
        self.settle();
    }

    /// Polls until a packet and the answers to the node's questions are handled. The last poll is 1 us later, for work
    /// that depends on the time.
    fn settle(&mut self) {
        (0..2).for_each(|_| self.poll(self.now));
        self.poll(self.now + TICKS_HZ / 1_000_000);
    }
}

/// Returns the answer to a question for a host's MAC address: as in the capture, or else an invented one.
fn answer(frame: &[u8], hosts: &BTreeMap<IpAddr, Mac>) -> Option<Vec<u8>> {
    if frame.len() < ether::LEN {
        return None;
    }
    let mac = |host, low: u32| {
        let [a, b, c, d] = low.to_be_bytes();
        // Bit 1 of the first byte marks a locally administered address.
        hosts.get(&host).copied().unwrap_or(Mac([2, 0xfe, a, b, c, d]))
    };
    match ether::ether_type(frame) {
        ether::ARP => {
            let question = arp::Packet::parse(frame).ok()?;
            // A host that asks for its own address announces itself.
            if question.operation != Operation::Request || question.sender == question.target {
                return None;
            }
            let mac = mac(Ipv4Addr::from_bits(question.target).into(), question.target);
            let mut answer = vec![0; arp::FRAME_LEN];
            question.answer(mac).emit(&mut answer, question.sender_mac);
            Some(answer)
        }
        ether::IPV6 => {
            let question = ndp::Packet::parse(frame).ok()?;
            // A question without a source address checks that no other host has the address (RFC 4862).
            if question.operation != ndp::Operation::Solicitation || question.src == 0 {
                return None;
            }
            let mac = mac(Ipv6Addr::from_bits(question.target).into(), question.target as u32);
            let (advertisement, to) = question.answer(mac, ether::src(frame));
            let mut answer = vec![0; ndp::FRAME_LEN];
            advertisement.emit(&mut answer, to, false);
            Some(answer)
        }
        _ => None,
    }
}

/// Returns the source address of an ARP, IPv4 or IPv6 frame, with its MAC address.
fn sender(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    if frame.len() >= ether::LEN && ether::ether_type(frame) == ether::ARP {
        let arp = arp::Packet::parse(frame).ok()?;
        return Some((Ipv4Addr::from_bits(arp.sender).into(), arp.sender_mac));
    }
    let (from, _) = addresses(frame)?;
    (!from.is_unspecified()).then(|| (from, ether::src(frame)))
}

/// Returns source and destination address of a frame.
fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let packet = frame.get(ether::LEN..)?;
    match ether::ether_type(frame) {
        ether::IPV4 if packet.len() >= ipv4::LEN => {
            let ip = Ipv4Addr::from_bits;
            Some((ip(ipv4::src(packet)).into(), ip(ipv4::dst(packet)).into()))
        }
        ether::IPV6 if packet.len() >= ipv6::LEN => {
            let ip = Ipv6Addr::from_bits;
            Some((ip(ipv6::src(packet)).into(), ip(ipv6::dst(packet)).into()))
        }
        _ => None,
    }
}

/// Returns the MAC address of the host with the address `ip`, if the frame is to or from it.
fn mac_of_host(frame: &[u8], ip: IpAddr) -> Option<Mac> {
    let (from, mac) = sender(frame)?;
    let dst = ether::dst(frame);
    match addresses(frame) {
        Some((_, to)) if to == ip && !dst.is_group() => Some(dst),
        _ => (from == ip).then_some(mac),
    }
}

/// Returns the destination MAC address of a frame from one of these hosts, which are servers: it is that of the node's
/// port.
fn port_mac_from(frame: &[u8], hosts: &[IpAddr]) -> Option<Mac> {
    let (from, _) = sender(frame)?;
    let dst = ether::dst(frame);
    (hosts.contains(&from) && !dst.is_group()).then_some(dst)
}

/// Makes the UDP checksum valid: none over IPv4, recomputed over IPv6. The node then accepts packets that the capture
/// cut, and those of a port that trusts checksums.
fn forget_checksum(frame: &mut [u8]) {
    if frame.len() >= ether::LEN && ether::ether_type(frame) == ether::IPV6 {
        return udp::renew_checksum_v6(frame);
    }
    if frame.len() < udp::PAYLOAD || ether::ether_type(frame) != ether::IPV4 {
        return;
    }
    // The low half of the first byte of an IPv4 header is its length in words of 4 bytes. Byte 9 is the protocol. In a
    // UDP header, bytes 6 and 7 are the checksum; 0 means none.
    let udp_header = ether::LEN + usize::from(frame[ether::LEN] & 0xF) * 4;
    if frame[ether::LEN + 9] == ipv4::UDP
        && let Some(checksum) = frame.get_mut(udp_header + 6..udp_header + 8)
    {
        checksum.fill(0);
    }
}

/// Recomputes the checksum of the IPv4 header, if the frame has one. A port that trusts checksums ignores it.
fn renew_header_checksum(frame: &mut [u8]) {
    if frame.len() < ether::LEN + ipv4::LEN || ether::ether_type(frame) != ether::IPV4 {
        return;
    }
    let len = usize::from(frame[ether::LEN] & 0xF) * 4;
    // An invalid length is left to the parser.
    if let Some(header) = frame.get_mut(ether::LEN..ether::LEN + len)
        && len >= ipv4::LEN
    {
        ipv4::renew_checksum(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_header_checksum_becomes_valid() {
        let mut frame = vec![0; ether::LEN + ipv4::LEN];
        frame[ether::LEN - 2..ether::LEN].copy_from_slice(&ether::IPV4.to_be_bytes());
        ipv4::emit(&mut frame[ether::LEN..], 0x0A00_0102, 0x0A00_0101, ipv4::UDP, 0);
        let valid = frame.clone();
        frame[ether::LEN + 10] ^= 0x55;
        renew_header_checksum(&mut frame);
        assert_eq!(frame, valid);
        // A frame that ends inside its header does not change.
        frame.truncate(ether::LEN + 11);
        renew_header_checksum(&mut frame);
        assert_eq!(frame, valid[..ether::LEN + 11]);
    }
}
