//! What the stages know of the networks around the node. A network is never changed: cores are given another one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::auth::ReplyAuthenticator;
use super::v6::{self, Network6, PortV6};
use crate::limits::{PORTS_MAX, WORKER_ID_MAX};
use crate::policy::signals::Protocol;
use crate::reason::DropReason;
use crate::state::neighbour::Slot;
use crate::state::{Member, Neighbours};
use crate::wire::checksum::{ChecksumDelta, FoldedDelta};
use crate::wire::ether::Mac;
use crate::wire::ipv4::v4_bits;
use crate::wire::{ipv4, task};

/// Who is behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Clients: tasks come in, replies go out.
    Clients,
    /// Worker servers: tasks go out, replies come in.
    Workers,
    /// Both.
    Both,
}

impl Side {
    /// Clients may be there.
    #[inline]
    #[must_use]
    pub const fn has_clients(self) -> bool {
        matches!(self, Self::Clients | Self::Both)
    }

    /// Workers may be there.
    #[inline]
    #[must_use]
    pub const fn has_workers(self) -> bool {
        matches!(self, Self::Workers | Self::Both)
    }
}

/// IPv4 options that a port permits in tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpOptions {
    /// None.
    #[default]
    Refuse,
    /// Padding and router alert.
    Harmless,
}

impl IpOptions {
    /// The port permits these options.
    #[must_use]
    pub fn permit(self, options: &[u8]) -> bool {
        options.is_empty() || self == Self::Harmless && ipv4::are_harmless(options)
    }
}

/// A port's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// The node's MAC address there.
    pub mac: Mac,
    /// The node's address there; of a port with an IPv6 address a number that stands for it ([`super::v6`]).
    pub ip: u32,
    /// Bits of the network's prefix, 0 to 32.
    pub prefix: u8,
    /// Who is there.
    pub side: Side,
    /// The router to all other networks, if there is one.
    pub gateway: Option<u32>,
    /// IPv4 options that tasks may have.
    pub ip_options: IpOptions,
    /// Its IPv6 address, in place of these.
    pub v6: Option<PortV6>,
}

impl PortAddress {
    /// `address` is on this port's network.
    #[inline]
    #[must_use]
    pub fn reaches(&self, address: u32) -> bool {
        (address ^ self.ip) & self.mask() == 0
    }

    pub(super) fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }
}

/// A worker server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address; of one with an IPv6 address a number that stands for it.
    pub ip: u32,
    /// The port that leads to it.
    pub port: u8,
    /// The next hop to it: itself, or a router; as [`Neighbours::address`] has it.
    pub next_hop: u32,
    /// The next hop's place among the neighbours.
    pub slot: Slot,
    /// Its workers register themselves.
    pub registers: bool,
    /// The next hop is a router.
    pub is_routed: bool,
}

/// A spine over a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spine {
    /// Its id.
    pub id: u16,
    /// Its address, and the next hop there.
    pub ip: IpAddr,
    /// The port that leads to it.
    pub port: u8,
    /// The next hop to it: itself, or a router; as [`Neighbours::address`] has it.
    pub next_hop: u32,
    /// The next hop's place among the neighbours.
    pub slot: Slot,
}

/// What a pool of a leaf tells which spine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpineLink {
    /// The spine's place.
    pub spine: u16,
    /// What it is told, and when.
    pub protocol: Protocol,
}

/// A worker's place; at a spine, a leaf's in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its server's address.
    pub ip: u32,
    /// Index of its pool.
    pub pool: u16,
    /// Its index in the pool.
    pub member: Member,
    /// Index of its server.
    pub server: u16,
}

/// The next hop to a host, and how packets for it leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The bits of the node's MAC address on the port that leads there.
    pub src_mac: u64,
    /// That port.
    pub port: u8,
    /// The next hop's place among the neighbours: the host itself, or a router.
    pub slot: Slot,
}

/// The networks behind the ports of a side, and the router to all others.
#[derive(Clone, Debug)]
struct Routes {
    networks: ArrayVec<(u32, u32, usize), PORTS_MAX>,
    gateway: Option<(usize, u32)>,
}

impl Routes {
    fn new(ports: &[PortAddress], fits: fn(Side) -> bool) -> Self {
        let of_side = || ports.iter().enumerate().filter(|(_, port)| fits(port.side));
        Self {
            networks: of_side().map(|(index, port)| (port.ip, port.mask(), index)).collect(),
            gateway: of_side()
                .find_map(|(index, port)| port.gateway.map(|gateway| (index, gateway))),
        }
    }

    /// The port that leads to `address`, and the next hop there.
    #[inline(always)]
    fn find(&self, address: u32) -> Option<(usize, u32)> {
        for &(own, mask, port) in &self.networks {
            if (address ^ own) & mask == 0 {
                return Some((port, address));
            }
        }
        self.gateway
    }
}

/// Where a task for a pool's member goes: all that rewriting needs, in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The worker.
    pub worker: u16,
    /// The choice of this worker, as it stands in packets.
    pub choice: [u8; 4],
    /// Its server's address, as it stands in packets.
    pub ip: [u8; 4],
    /// The next hop to its server.
    pub next_hop: NextHop,
    /// What the address adds to an IPv4 header's checksum, and the hop.
    pub ip_delta: FoldedDelta,
    /// What address and choice add to a datagram's.
    pub udp_delta: FoldedDelta,
}

impl Target {
    /// Of a place that nobody has: no task ever goes there.
    fn nobody() -> Self {
        Self::new(task::NO_MEMBER, 0, NextHop { src_mac: 0, port: 0, slot: Slot::NONE })
    }

    /// Some worker has this place.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.worker != task::NO_MEMBER
    }

    fn new(worker: u16, ip: u32, next_hop: NextHop) -> Self {
        let choice = task::choice_of(worker);
        let address = ChecksumDelta::default().double_word(0, ip);
        let chosen = address.straddling_double_word(0, u32::from_be_bytes(choice));
        Self {
            worker,
            choice,
            ip: ip.to_be_bytes(),
            next_hop,
            ip_delta: FoldedDelta::fold(ipv4::hop(address)),
            udp_delta: FoldedDelta::fold(chosen),
        }
    }
}

/// A host that workers run on, as a network is built with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its address.
    pub ip: IpAddr,
    /// Its MAC address, unless ARP shall find it.
    pub mac: Option<Mac>,
    /// Its workers register themselves.
    pub registers: bool,
    /// The address that it had until a short time ago: answers to what was sent there come from there.
    pub was: Option<IpAddr>,
}

/// A pool, as a network is built with it.
#[derive(Clone, Debug, Default)]
pub struct NetworkPool {
    /// Its id; none when there is no pool.
    pub id: Option<u16>,
    /// It takes no new tasks: its workers complete those that it has.
    pub is_closed: bool,
    /// Who has its members' places: worker id, and index of its host. A place may be free.
    pub members: Vec<Option<(u16, u16)>>,
    /// What asks for proof of what its workers say; none believes them.
    pub authenticator: Option<Arc<ReplyAuthenticator>>,
    /// The address that clients ask, if it is another than the node's: at a spine tasks come to it, at a leaf replies come from it.
    pub service: Option<IpAddr>,
    /// The spine that is told of it, at a leaf.
    pub link: Option<SpineLink>,
}

/// What of a network stays for as long as the node runs.
#[derive(Clone, Debug)]
pub struct Base {
    /// The node's UDP port for tasks.
    pub udp_port: u16,
    /// The node's id, on what it says itself.
    pub node: u16,
    /// Its ports.
    pub ports: Vec<PortAddress>,
    /// The port to workers inside this process, of whom no proof is asked.
    pub inside: Option<usize>,
    /// It is a spine: its members are leaves, each of which may be in several pools.
    pub is_spine: bool,
    /// Tasks and reports are told, and no packets are sent: hosts need no MAC addresses, and nobody asks for them.
    pub is_told: bool,
}

/// Why a network can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// No port leads to a server.
    #[error(
        "no port on the workers' side reaches server {0}; give a port an `ip` in its network, or a `gateway`"
    )]
    Unreachable(IpAddr),
    /// No port leads to a spine.
    #[error(
        "no port on the clients' side reaches spine {0}; give a port an `ip` in its network, or a `gateway`"
    )]
    UnreachableSpine(IpAddr),
    /// A pool with servers of both families.
    #[error(
        "pool {0} has servers with IPv4 and servers with IPv6 addresses; give it those of one kind, since its clients speak one of them"
    )]
    MixedFamilies(u16),
    /// A pool whose service address or spine is of another family than its servers.
    #[error(
        "pool {0} has {1} for a {2}, and servers of the other of IPv4 and IPv6; give it one of theirs, since clients, spines and servers of a \
         pool speak the same"
    )]
    OtherFamily(u16, IpAddr, &'static str),
    /// More servers than neighbours.
    #[error("more servers than the neighbour table has room for")]
    TooManyNeighbours,
}

const NO_POOL: u16 = u16::MAX;
const NO_WORKER: Worker = Worker { ip: 0, pool: NO_POOL, member: Member(0), server: 0 };
/// The port of a server's place that is free.
const NO_PORT: u8 = u8::MAX;
const NO_SERVER: Server = Server {
    ip: 0,
    port: NO_PORT,
    next_hop: 0,
    slot: Slot::NONE,
    registers: false,
    is_routed: false,
};
/// Least time to live of a task that passes routers, or another leaf, on its way to a worker. Hosts start at 64 and more, and the way
/// through a datacenter has fewer hops than this.
const ROUTED_TTL_MIN: u8 = 16;

/// Addresses that no reply of the node's would reach, so that they are no clients'. In any byte order, if that is the addresses'
/// that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreachableSource {
    pub network: u32,
    pub mask: u32,
}

impl UnreachableSource {
    pub fn is(self, address: u32) -> bool {
        (address ^ self.network) & self.mask == 0
    }

    fn to_be(self) -> Self {
        Self { network: self.network.to_be(), mask: self.mask.to_be() }
    }
}

pub(super) type UnreachableSources = Vec<UnreachableSource>;

/// This network and loopback (RFC 1122, 3.2.1.3), multicast and reserved (RFC 1112).
pub(super) const NO_HOSTS: [UnreachableSource; 3] = [
    UnreachableSource { network: 0, mask: 0xFF00_0000 },
    UnreachableSource { network: 0x7F00_0000, mask: 0xFF00_0000 },
    UnreachableSource { network: 0xE000_0000, mask: 0xE000_0000 },
];

/// The node's own addresses, the first and last address of each network of clients, and the networks behind ports where there are workers
/// alone: they answer hosts there without the node.
///
/// The last address is the network's broadcast address. The first one was that once, and Linux takes it for one up to 5.13.
fn unreachable(ports: &[PortAddress]) -> UnreachableSources {
    let of = |port: &PortAddress| match port.side.has_clients() {
        true => UnreachableSource { network: port.ip, mask: u32::MAX },
        false => UnreachableSource { network: port.ip & port.mask(), mask: port.mask() },
    };
    let has_edges =
        |port: &&PortAddress| port.side.has_clients() && port.v6.is_none() && port.prefix < 31;
    let edges = |port: &PortAddress| {
        let (first, last) = (port.ip & port.mask(), port.ip | !port.mask());
        [first, last].map(|ip| UnreachableSource { network: ip, mask: u32::MAX })
    };
    let edges = ports.iter().filter(has_edges).flat_map(edges);
    let mut all: UnreachableSources = NO_HOSTS.into_iter().chain(ports.iter().map(of)).collect();
    for edge in edges {
        if !all.iter().any(|one| one.is(edge.network)) {
            all.push(edge);
        }
    }
    all
}

/// Merges pairs of networks (address and mask) that make up one network, so that a source needs fewer comparisons.
pub(super) fn merge(networks: &mut Vec<(u128, u128)>) {
    let pair = |networks: &[(u128, u128)]| {
        networks.iter().enumerate().find_map(|(at, &(network, mask))| {
            let is_other = |&(other, other_mask): &(u128, u128)| {
                mask == other_mask && (network ^ other).is_power_of_two()
            };
            let other = networks[at + 1..].iter().position(is_other)?;
            Some((at, at + 1 + other))
        })
    };
    while let Some((one, other)) = pair(networks) {
        let (network, mask) = networks[one];
        let bit = network ^ networks[other].0;
        networks[one] = (network & !bit, mask & !bit);
        networks.remove(other);
    }
}

/// Ports, servers, workers and pools, in tables that need no search.
#[derive(Debug)]
pub struct Network {
    /// The node's UDP port for tasks.
    pub udp_port: u16,
    /// The node's id, on what it says itself.
    pub node: u16,
    ports: Vec<PortAddress>,
    /// The ports' addresses.
    own: ArrayVec<u32, PORTS_MAX>,
    to_clients: Routes,
    gateway: Option<(usize, Slot, u32)>,
    servers: Vec<Server>,
    /// Their addresses, in order.
    server_ips: Vec<u32>,
    /// Servers that have moved, and where they were.
    moved: Vec<(u16, u32)>,
    /// Who can't be a client, whatever the routes say.
    unreachable: UnreachableSources,
    workers: Vec<Worker>,
    pool_index: Box<[u16; 1 << 16]>,
    /// By index; none where there is no pool.
    pool_ids: Vec<Option<u16>>,
    /// Each pool's members: worker id and server.
    members: Vec<Vec<Target>>,
    /// Least time to live of each pool's tasks.
    least_ttls: Vec<u8>,
    /// Each pool's, where it has a key; empty when no pool has one.
    authenticators: Vec<Option<Arc<ReplyAuthenticator>>>,
    /// The port to workers inside this process, of whom no proof is asked.
    inside: Option<usize>,
    /// Its members are leaves.
    is_spine: bool,
    /// No packets are sent.
    is_told: bool,
    /// The servers, each address once: a leaf of several pools has as many entries.
    hosts: Vec<(IpAddr, Server)>,
    /// A spine's leaves in their pools: leaf's id and index of the pool, in order.
    leaves: Vec<((u16, u16), Worker)>,
    /// A leaf's spines, each at the place that it keeps.
    spines: Vec<Option<Spine>>,
    /// Each pool's service address, if it is one of IPv4, and link; empty when no pool has a service address or a link.
    services: Vec<(Option<u32>, Option<SpineLink>)>,
    /// A spine's service addresses, in order.
    service_ips: Vec<IpAddr>,
    /// What there is of IPv6; none where no port has such an address.
    v6: Option<Box<Network6>>,
}

impl Network {
    /// The tables for these hosts, spines (id and address) and pools, whose places may be free; next hops are pinned.
    ///
    /// # Errors
    /// When no port leads to a host or spine.
    pub fn with_places(
        base: Base,
        hosts: &[Option<Host>],
        spines: &[Option<(u16, IpAddr)>],
        pools: &[NetworkPool],
        neighbours: &Neighbours,
    ) -> Result<Self, NetworkError> {
        let Base { udp_port, node, mut ports, inside, is_spine, is_told } = base;
        v6::number_ports(&mut ports);
        let mut network = Self {
            udp_port,
            node,
            own: ports.iter().filter(|port| port.v6.is_none()).map(|port| port.ip).collect(),
            to_clients: Routes::new(&ports, Side::has_clients),
            unreachable: unreachable(&ports),
            gateway: None,
            v6: ports.iter().any(|port| port.v6.is_some()).then(Box::default),
            ports,
            servers: Vec::with_capacity(hosts.len()),
            server_ips: Vec::with_capacity(hosts.len()),
            moved: Vec::new(),
            workers: vec![NO_WORKER; usize::from(WORKER_ID_MAX) + 1],
            members: Vec::with_capacity(pools.len()),
            least_ttls: Vec::with_capacity(pools.len()),
            pool_index: Box::new([NO_POOL; 1 << 16]),
            pool_ids: pools.iter().map(|pool| pool.id).collect(),
            authenticators: Vec::new(),
            inside,
            is_spine,
            is_told,
            hosts: Vec::new(),
            leaves: Vec::new(),
            spines: Vec::with_capacity(spines.len()),
            services: Vec::new(),
            service_ips: Vec::new(),
        };
        for spine in spines {
            network.add_spine(*spine, neighbours)?;
        }
        for host in hosts {
            network.add_host(host.as_ref(), neighbours)?;
        }
        network.server_ips.sort_unstable();
        for (index, pool) in pools.iter().enumerate() {
            network.add_pool(index as u16, pool)?;
        }
        network.leaves.sort_unstable_by_key(|(place, _)| *place);
        if pools.iter().any(|pool| pool.service.is_some() || pool.link.is_some()) {
            let service = |pool: &NetworkPool| pool.service.and_then(v4_bits);
            network.services = pools.iter().map(|pool| (service(pool), pool.link)).collect();
        }
        if is_spine {
            let servers = hosts.iter().zip(&network.servers);
            let there = servers.filter_map(|(host, server)| Some((host.as_ref()?.ip, *server)));
            network.hosts = there.collect();
            network.hosts.sort_unstable_by_key(|(ip, _)| *ip);
            network.hosts.dedup_by_key(|(ip, _)| *ip);
            network.service_ips = pools.iter().filter_map(|pool| pool.service).collect();
            network.service_ips.sort_unstable();
            network.service_ips.dedup();
            let services = network.service_ips.iter().filter_map(|&ip| v4_bits(ip));
            let own = services.map(|network| UnreachableSource { network, mask: u32::MAX });
            network.unreachable.extend(own);
        }
        if pools.iter().any(|pool| pool.authenticator.is_some()) {
            network.authenticators = pools.iter().map(|pool| pool.authenticator.clone()).collect();
        }
        if let Some((port, address)) = network.to_clients.gateway {
            let slot = neighbours.pin(port, address).ok_or(NetworkError::TooManyNeighbours)?;
            network.gateway = Some((port, slot, address));
        }
        if let Some(v6) = &mut network.v6 {
            let of_pools = (pools, &network.least_ttls[..], is_spine);
            v6.settle(&network.ports, of_pools, network.udp_port, neighbours)?;
            network.gateway = network.gateway.or(v6.gateway());
        }
        Ok(network)
    }

    fn add_host(
        &mut self,
        host: Option<&Host>,
        neighbours: &Neighbours,
    ) -> Result<(), NetworkError> {
        let Some(host @ &Host { ip, mac, registers, was }) = host else {
            self.servers.push(NO_SERVER);
            return Ok(());
        };
        let index = self.servers.len();
        let hop = self.pin_hop(ip, Side::has_workers, neighbours);
        let (port, next_hop, slot) = hop.ok_or(NetworkError::Unreachable(ip))?;
        let is_routed = match ip {
            IpAddr::V4(ip) => ip.to_bits() != next_hop,
            IpAddr::V6(ip) => !self.ports[port].v6.is_some_and(|port| port.reaches(ip.to_bits())),
        };
        let ip = v4_bits(ip).unwrap_or_else(|| v6::number_of_server(index));
        let slot = slot.ok_or(NetworkError::TooManyNeighbours)?;
        if let Some(mac) = mac.or(self.is_told.then_some(Mac([0; 6]))) {
            neighbours.set_static(slot, mac);
        }
        self.server_ips.push(ip);
        if let Some(v6) = &mut self.v6 {
            v6.add_host(index, host.ip, was);
        }
        self.moved.extend(was.map(|was| match was {
            IpAddr::V4(was) => (index as u16, was.to_bits()),
            IpAddr::V6(_) => (index as u16, v6::number_of_old(index)),
        }));
        self.servers.push(Server { ip, port: port as u8, next_hop, slot, registers, is_routed });
        Ok(())
    }

    fn add_spine(
        &mut self,
        spine: Option<(u16, IpAddr)>,
        neighbours: &Neighbours,
    ) -> Result<(), NetworkError> {
        let Some((id, ip)) = spine else {
            self.spines.push(None);
            return Ok(());
        };
        let hop = self.pin_hop(ip, Side::has_clients, neighbours);
        let (port, next_hop, slot) = hop.ok_or(NetworkError::UnreachableSpine(ip))?;
        let slot = slot.ok_or(NetworkError::TooManyNeighbours)?;
        self.spines.push(Some(Spine { id, ip, port: port as u8, next_hop, slot }));
        Ok(())
    }

    /// Pins the next hop to `ip` behind a port of a side: the port, the hop as [`Neighbours::address`] has it, and its place, if there
    /// is room. None when no port leads there.
    fn pin_hop(
        &self,
        ip: IpAddr,
        fits: fn(Side) -> bool,
        neighbours: &Neighbours,
    ) -> Option<(usize, u32, Option<Slot>)> {
        match ip {
            IpAddr::V4(ip) => {
                let (port, next_hop) = Routes::new(&self.ports, fits).find(ip.to_bits())?;
                Some((port, next_hop, neighbours.pin(port, next_hop)))
            }
            IpAddr::V6(ip) => {
                let (port, next_hop) = v6::route(&self.ports, fits, ip.to_bits())?;
                let slot = neighbours.pin_v6(port, next_hop);
                Some((port, slot.map_or(0, |slot| neighbours.address(slot)), slot))
            }
        }
    }

    /// A pool's service address and its spine's are of its servers' family.
    fn check_families(&self, pool: &NetworkPool) -> Result<(), NetworkError> {
        let Some(&(_, server)) = pool.members.iter().flatten().next() else { return Ok(()) };
        let is_v6 = v6::is_number(self.servers[usize::from(server)].ip);
        let spine = pool.link.and_then(|link| self.spine(usize::from(link.spine)));
        let service = pool.service.map(|ip| (ip, "service address"));
        let others = service.into_iter().chain(spine.map(|spine| (spine.ip, "spine")));
        match { others }.find(|(ip, _)| ip.is_ipv6() != is_v6) {
            None => Ok(()),
            Some((ip, what)) => {
                Err(NetworkError::OtherFamily(pool.id.unwrap_or_default(), ip, what))
            }
        }
    }

    fn add_pool(&mut self, pool: u16, places: &NetworkPool) -> Result<(), NetworkError> {
        self.check_families(places)?;
        if let Some(v6) = &mut self.v6 {
            v6.add_pool(places)?;
        }
        if let Some(id) = places.id.filter(|_| !places.is_closed) {
            self.pool_index[usize::from(id)] = pool;
        }
        let targets = places.members.iter().enumerate().map(|(member, place)| {
            let &Some((id, server)) = place else { return Target::nobody() };
            let Server { ip, port, slot, .. } = self.servers[usize::from(server)];
            let member = Member(member as u16);
            let worker = Worker { ip, pool, member, server };
            match self.is_spine {
                true => self.leaves.push(((id, pool), worker)),
                false => self.workers[usize::from(id)] = worker,
            }
            let mac = self.ports[usize::from(port)].mac.to_bits();
            Target::new(id, ip, NextHop { src_mac: mac, port, slot })
        });
        let targets = targets.collect();
        self.members.push(targets);
        let is_routed = |&(_, server): &(u16, u16)| self.servers[usize::from(server)].is_routed;
        let is_routed = self.is_spine || places.members.iter().flatten().any(is_routed);
        self.least_ttls.push(if is_routed { ROUTED_TTL_MIN } else { ipv4::TTL_MIN });
        Ok(())
    }

    /// What of it stays for as long as the node runs.
    #[must_use]
    pub fn base(&self) -> Base {
        let (udp_port, node, inside) = (self.udp_port, self.node, self.inside);
        let ports = self.ports.clone();
        let (is_spine, is_told) = (self.is_spine, self.is_told);
        Base { udp_port, node, ports, inside, is_spine, is_told }
    }

    /// Its members are leaves.
    #[inline]
    #[must_use]
    pub fn is_spine(&self) -> bool {
        self.is_spine
    }

    /// A leaf's spines.
    pub fn spines(&self) -> impl Iterator<Item = &Spine> {
        self.spines.iter().flatten()
    }

    /// The spine at this place.
    #[must_use]
    pub fn spine(&self, place: usize) -> Option<&Spine> {
        self.spines.get(place)?.as_ref()
    }

    /// The place of the spine with this address and id.
    #[must_use]
    pub fn spine_at(&self, address: IpAddr, id: u16) -> Option<usize> {
        let is_it = |spine: &Option<Spine>| {
            spine.as_ref().is_some_and(|spine| (spine.ip, spine.id) == (address, id))
        };
        self.spines.iter().position(is_it)
    }

    /// A spine has this address.
    #[must_use]
    pub fn has_spine_at(&self, address: IpAddr) -> bool {
        self.spines().any(|spine| spine.ip == address)
    }

    /// The IPv4 address that clients ask for a pool (by index), if it is another than the node's.
    #[inline]
    #[must_use]
    pub fn service(&self, pool: usize) -> Option<u32> {
        self.services.get(pool).and_then(|(service, _)| *service)
    }

    /// Clients ask for a pool (by index) at another address than the node's.
    pub(super) fn has_service(&self, pool: usize) -> bool {
        let of_v6 = |v6: &Network6| v6.service(pool).is_some();
        self.service(pool).is_some() || self.v6().is_some_and(of_v6)
    }

    /// What a pool (by index) of a leaf tells a spine.
    #[must_use]
    pub fn link(&self, pool: usize) -> Option<SpineLink> {
        self.services.get(pool).and_then(|(_, link)| *link)
    }

    /// The IPv4 address that tasks of a pool (by index) come to at a port.
    #[inline]
    #[must_use]
    pub fn task_address(&self, port: usize, pool: usize) -> u32 {
        self.service(pool).filter(|_| self.is_spine).unwrap_or(self.ports[port].ip)
    }

    /// A spine's leaves, by their addresses.
    #[must_use]
    pub fn leaf_hosts(&self) -> &[(IpAddr, Server)] {
        &self.hosts
    }

    /// A spine's service addresses, in order.
    #[must_use]
    pub fn service_ips(&self) -> &[IpAddr] {
        &self.service_ips
    }

    /// The address is one of a spine's service addresses.
    #[inline]
    #[must_use]
    pub fn is_service(&self, address: IpAddr) -> bool {
        !self.service_ips.is_empty() && self.service_ips.binary_search(&address).is_ok()
    }

    /// A spine's leaf in a pool (by index).
    ///
    /// # Errors
    /// Why there is none.
    pub fn leaf(&self, id: u16, pool: Option<usize>) -> Result<Worker, DropReason> {
        let first = self.leaves.partition_point(|(place, _)| *place < (id, 0));
        if self.leaves.get(first).is_none_or(|((leaf, _), _)| *leaf != id) {
            return Err(DropReason::UnknownPeer);
        }
        let pool = pool.ok_or(DropReason::SignalPool)?;
        let found = self.leaves.binary_search_by_key(&(id, pool as u16), |(place, _)| *place);
        found.map(|at| self.leaves[at].1).map_err(|_| DropReason::SignalPool)
    }

    /// What asks for proof of what came to this port from workers of a pool (by index), if anything does.
    #[inline(always)]
    pub(super) fn authenticator(&self, port: usize, pool: usize) -> Option<&ReplyAuthenticator> {
        let authenticator = self.authenticators.get(pool)?.as_deref();
        authenticator.filter(|_| self.inside != Some(port))
    }

    /// The port that leads to a client's address, and the next hop there.
    #[inline(always)]
    #[must_use]
    pub fn client_route(&self, address: u32) -> Option<(usize, u32)> {
        self.to_clients.find(address)
    }

    /// A reply to `address` comes back to the node, and a port leads from there to a client: the address is neither the
    /// node's own, nor a server's, nor one that servers answer without the node.
    #[must_use]
    pub fn is_client(&self, address: u32) -> bool {
        let listed =
            |unreachable: &UnreachableSources| unreachable.iter().any(|one| one.is(address));
        !listed(&self.unreachable)
            && self.server_ips.binary_search(&address).is_err()
            && self.to_clients.find(address).is_some()
    }

    /// Least time to live, or hop limit, of a task for a pool (by index) that arrives here, so that it lasts to every worker.
    #[must_use]
    pub fn least_ttl(&self, pool: usize) -> u8 {
        self.least_ttls.get(pool).copied().unwrap_or(ipv4::TTL_MIN)
    }

    /// What sources of tasks are to be compared with, at the port at `index`: one network that all clients are in, where
    /// there is no router to others, and what must not be among them (in memory order, as sources stand in packets).
    pub(super) fn sources(&self, index: usize) -> (Option<(u32, u32)>, UnreachableSources) {
        let mut unreachable = self.unreachable.clone();
        let listed =
            |unreachable: &UnreachableSources, ip| unreachable.iter().any(|one| one.is(ip));
        for &ip in &self.server_ips {
            if !listed(&unreachable, ip) {
                unreachable.push(UnreachableSource { network: ip, mask: u32::MAX });
            }
        }
        let near = self.to_clients.gateway.is_none().then(|| {
            let port = &self.ports[index];
            (port.ip & port.mask(), port.mask())
        });
        if let Some((network, mask)) = near {
            unreachable.retain(|one| (one.network ^ network) & one.mask & mask == 0);
        }
        let bits = |one: UnreachableSource| (u128::from(one.network), u128::from(one.mask));
        let mut networks = unreachable.into_iter().map(bits).collect();
        merge(&mut networks);
        let source = |(network, mask): (u128, u128)| {
            UnreachableSource { network: network as u32, mask: mask as u32 }.to_be()
        };
        (near, networks.into_iter().map(source).collect())
    }

    /// A host may have this MAC address: it is neither zero nor a group's nor one of the node's own.
    #[must_use]
    pub fn may_be_hosts(&self, mac: Mac) -> bool {
        mac != Mac::default() && !mac.is_group() && !self.ports.iter().any(|port| port.mac == mac)
    }

    /// The port at `index`.
    #[inline]
    #[must_use]
    pub fn port(&self, index: usize) -> &PortAddress {
        &self.ports[index]
    }

    /// All ports.
    #[must_use]
    pub fn ports(&self) -> &[PortAddress] {
        &self.ports
    }

    /// `address` is one of the node's own.
    #[inline]
    #[must_use]
    pub fn is_own(&self, address: u32) -> bool {
        self.own.contains(&address)
    }

    /// What there is of IPv6, if anything is.
    #[inline]
    #[must_use]
    pub fn v6(&self) -> Option<&Network6> {
        self.v6.as_deref()
    }

    /// Packets of IPv4 may be about the pool at this index: it has no servers of the other family, unless there is none.
    #[inline]
    pub(super) fn takes_v4(&self, pool: usize) -> bool {
        self.v6.as_ref().is_none_or(|v6| !v6.has_pool(pool))
    }

    /// A host with this address may not be a server's or a client's: it is the node's own.
    #[must_use]
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.is_own(address.to_bits()),
            IpAddr::V6(address) => v6::is_own(&self.ports, address.to_bits()),
        }
    }

    /// The router to clients on other networks, if there is one: its port, its place among the neighbours, its address.
    #[must_use]
    pub fn gateway(&self) -> Option<(usize, Slot, u32)> {
        self.gateway
    }

    /// All servers that there are.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| server.port != NO_PORT)
    }

    /// How many pools there are, or were.
    #[must_use]
    pub fn pools(&self) -> usize {
        self.pool_ids.len()
    }

    /// The index of the pool with this id.
    #[inline]
    #[must_use]
    pub fn pool(&self, id: u16) -> Option<usize> {
        let index = self.pool_index[usize::from(id)];
        (index != NO_POOL).then_some(usize::from(index))
    }

    /// As [`Network::pool`], a number beyond all pools when there is none.
    pub(super) fn pool_index(&self, id: u16) -> usize {
        usize::from(self.pool_index[usize::from(id)])
    }

    /// The id of the pool at this index; none when there is no pool.
    #[inline]
    #[must_use]
    pub fn pool_id(&self, index: usize) -> Option<u16> {
        self.pool_ids[index]
    }

    /// The worker with this id.
    #[inline]
    #[must_use]
    pub fn worker(&self, id: u16) -> Option<Worker> {
        self.workers.get(usize::from(id)).copied().filter(|worker| worker.pool != NO_POOL)
    }

    /// Where tasks for a pool's member go.
    #[inline]
    #[must_use]
    pub fn target(&self, pool: usize, member: Member) -> &Target {
        &self.members[pool][member.index()]
    }

    /// The address of the server that tasks for a pool's member go to; none of a place that nobody has.
    #[must_use]
    pub fn member_address(&self, pool: usize, member: Member) -> Option<IpAddr> {
        if let Some(v6) = self.v6().filter(|v6| v6.has_pool(pool)) {
            return v6.member(pool, member).map(|ip| Ipv6Addr::from_bits(ip).into());
        }
        let target = self.target(pool, member);
        target.is_there().then(|| Ipv4Addr::from(target.ip).into())
    }

    /// The members of the pool at this index.
    #[must_use]
    pub fn members(&self, pool: usize) -> &[Target] {
        &self.members[pool]
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.members.iter().flatten().filter(|target| target.is_there()).count()
    }

    /// An address is that of a worker's server, or was until a short time ago.
    #[inline(always)]
    pub(super) fn is_at(&self, worker: &Worker, address: u32) -> bool {
        worker.ip == address || self.was_at(worker, address)
    }

    /// The same of an address of either family.
    pub(super) fn is_at_address(&self, worker: &Worker, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.is_at(worker, address.to_bits()),
            IpAddr::V6(address) => self.v6().is_some_and(|v6| {
                self.is_at(worker, v6.number(address.to_bits(), Some(worker.server)))
            }),
        }
    }

    #[cold]
    fn was_at(&self, worker: &Worker, address: u32) -> bool {
        self.moved.contains(&(worker.server, address))
    }

    /// The server at this index.
    #[inline]
    #[must_use]
    pub fn server(&self, index: u16) -> &Server {
        &self.servers[usize::from(index)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours() -> Neighbours {
        Neighbours::heap(2, 4)
    }

    fn port(ip: u32, prefix: u8, side: Side, gateway: Option<u32>) -> PortAddress {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let ip_options = IpOptions::Refuse;
        PortAddress { mac, ip, prefix, side, gateway, ip_options, v6: None }
    }

    /// With one server.
    fn network(
        ports: Vec<PortAddress>,
        ip: u32,
        pools: &[NetworkPool],
    ) -> Result<Network, NetworkError> {
        let ip = Ipv4Addr::from_bits(ip).into();
        let host = Host { ip, mac: None, registers: false, was: None };
        let base =
            Base { udp_port: 1234, node: 0, ports, inside: None, is_spine: false, is_told: false };
        Network::with_places(base, &[Some(host)], &[], pools, &neighbours())
    }

    #[test]
    fn prefixes_reach() {
        let reaches =
            |prefix, address| port(0x0A00_0101, prefix, Side::Both, None).reaches(address);
        assert!(reaches(24, 0x0A00_01FF) && !reaches(24, 0x0A00_0201));
        assert!(reaches(0, u32::MAX));
        assert!(reaches(32, 0x0A00_0101) && !reaches(32, 0x0A00_0102));
    }

    #[test]
    fn tables_answer() {
        let ports = vec![
            port(0x0A00_0101, 24, Side::Clients, Some(0x0A00_01FE)),
            port(0x0A00_0201, 24, Side::Workers, None),
        ];
        let members = vec![Some((7, 0)), Some((9, 0))];
        let pools = [(5, Vec::new()), (3, members)].map(|(id, members)| NetworkPool {
            id: Some(id),
            members,
            ..NetworkPool::default()
        });
        let network = network(ports, 0x0A00_020B, &pools).unwrap();
        assert_eq!((network.pool(3), network.pool(5), network.pool(0)), (Some(1), Some(0), None));
        assert_eq!(network.worker(8), None);
        assert_eq!(network.worker(u16::MAX), None);
        let worker = network.worker(9).unwrap();
        assert_eq!((worker.pool, worker.member), (1, Member(1)));
        assert_eq!(
            (network.server(worker.server).ip, network.server(worker.server).port),
            (0x0A00_020B, 1)
        );
        let target = network.target(1, Member(1));
        assert_eq!(
            (target.choice, target.ip, target.next_hop.port),
            ([0, 9, 0, 0], [10, 0, 2, 11], 1)
        );
        assert_eq!(network.client_route(0x0A00_0105), Some((0, 0x0A00_0105)));
        assert_eq!(network.client_route(0x0808_0808), Some((0, 0x0A00_01FE)));
        assert_eq!(Routes::new(network.ports(), Side::has_workers).find(0x0808_0808), None);
    }

    #[test]
    fn routed_servers_need_a_longer_time_to_live() {
        let pool = NetworkPool { id: Some(7), members: vec![Some((0, 0))], ..Default::default() };
        let least = |ip: u32| {
            let ports = vec![port(0x0A00_0201, 24, Side::Both, Some(0x0A00_02FE))];
            network(ports, ip, std::slice::from_ref(&pool)).unwrap().least_ttl(0)
        };
        assert_eq!((least(0x0A00_020B), least(0x0A00_090B)), (ipv4::TTL_MIN, ROUTED_TTL_MIN));
    }

    #[test]
    fn networks_merge_where_they_make_up_one() {
        let mut networks = vec![(4, !0), (9, !0), (7, !0), (5, !0), (6, !0)];
        merge(&mut networks);
        assert_eq!(networks, [(4, !3), (9, !0)]);
    }

    #[test]
    fn a_server_out_of_reach_is_refused() {
        let ports = vec![port(0x0A00_0101, 24, Side::Clients, None)];
        let error = network(ports, 0x0A00_010B, &[]).unwrap_err();
        assert!(error.to_string().contains("10.0.1.11"), "{error}");
    }
}
