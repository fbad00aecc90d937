//! Tables of the networks around the node. A network never changes: cores get another one instead.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arrayvec::ArrayVec;

pub use super::spec::{
    FixedNetwork, Host, IpOptions, NetworkError, NetworkPool, PortAddress, Side, SpineLink,
};

use super::auth::ReplyAuthenticator;
use super::unreachable::{NO_HOSTS, UnreachableSource, UnreachableSources, merge};
use super::v6::{self, Network6};
use crate::limits::{PORTS_MAX, WORKER_ID_MAX};
use crate::reason::DropReason;
use crate::state::neighbour::Slot;
use crate::state::{Member, Neighbours};
use crate::wire::checksum::{ChecksumDelta, FoldedDelta};
use crate::wire::ether::Mac;
use crate::wire::ipv4::v4_bits;
use crate::wire::{ipv4, task};

/// A worker server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address. For an IPv6 address, a number that represents it.
    pub ip: u32,
    /// Port to the server.
    pub port: u8,
    /// Next hop to the server: itself or a router, in the form of [`Neighbours::address`].
    pub next_hop: u32,
    /// Slot of the next hop in the neighbour table.
    pub slot: Slot,
    /// True if its workers register themselves.
    pub registers: bool,
    /// True if the next hop is a router.
    pub is_routed: bool,
}

/// A spine above a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spine {
    /// Spine id.
    pub id: u16,
    /// Address of the spine.
    pub ip: IpAddr,
    /// Port to the spine.
    pub port: u8,
    /// Next hop to the spine: itself or a router, in the form of [`Neighbours::address`].
    pub next_hop: u32,
    /// Slot of the next hop in the neighbour table.
    pub slot: Slot,
}

/// Place of a worker; at a spine, place of a leaf in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Address of its server.
    pub ip: u32,
    /// Index of its pool.
    pub pool: u16,
    /// Index in the pool.
    pub member: Member,
    /// Index of its server.
    pub server: u16,
}

/// Next hop to a host, with the values for packets to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Bits of the node's MAC address on the port to the next hop.
    pub src_mac: u64,
    /// Port to the next hop.
    pub port: u8,
    /// Slot of the next hop in the neighbour table: the host itself, or a router.
    pub slot: Slot,
}

/// Networks behind the ports of a side, and the router to all others.
#[derive(Clone, Debug)]
struct Routes {
    /// Address, mask and port.
    networks: ArrayVec<(u32, u32, usize), PORTS_MAX>,
    /// Port and address of the router.
    gateway: Option<(usize, u32)>,
}

impl Routes {
    /// Creates the routes by the ports whose side has the property `is_side`.
    fn new(ports: &[PortAddress], is_side: fn(Side) -> bool) -> Self {
        let of_side = || ports.iter().enumerate().filter(|(_, port)| is_side(port.side));
        Self {
            networks: of_side().map(|(index, port)| (port.ip, port.mask(), index)).collect(),
            gateway: of_side()
                .find_map(|(index, port)| port.gateway.map(|gateway| (index, gateway))),
        }
    }

    /// Returns the port that leads to `address`, and the next hop there.
    #[inline(always)]
    fn find(&self, address: u32) -> Option<(usize, u32)> {
        for &(network, mask, port) in &self.networks {
            if (address ^ network) & mask == 0 {
                return Some((port, address));
            }
        }
        self.gateway
    }
}

/// Destination of tasks for a pool's member: all values that rewriting needs, in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Worker id.
    pub worker: u16,
    /// Choice of this worker, in packet byte order.
    pub choice: [u8; 4],
    /// Address of its server, in packet byte order.
    pub ip: [u8; 4],
    /// Next hop to its server.
    pub next_hop: NextHop,
    /// Effect of the address and the hop on an IPv4 header's checksum.
    pub ip_delta: FoldedDelta,
    /// Effect of address and choice on a datagram's checksum.
    pub udp_delta: FoldedDelta,
}

impl Target {
    /// Creates the target of a vacant place. No task ever goes there.
    fn vacant() -> Self {
        Self::new(task::NO_MEMBER, 0, NextHop { src_mac: 0, port: 0, slot: Slot::NONE })
    }

    /// Returns true if a worker has this place.
    #[must_use]
    pub fn is_occupied(&self) -> bool {
        self.worker != task::NO_MEMBER
    }

    /// Creates the target of a worker. Computes the checksum changes of its address and choice once, for all tasks
    /// to it.
    fn new(worker: u16, ip: u32, next_hop: NextHop) -> Self {
        let choice = task::choice_of(worker); // at an odd offset in a packet
        let address = ChecksumDelta::default().double_word(0, ip);
        let both = address.straddling_double_word(0, u32::from_be_bytes(choice));
        Self {
            worker,
            choice,
            ip: ip.to_be_bytes(),
            next_hop,
            ip_delta: FoldedDelta::fold(ipv4::hop(address)),
            udp_delta: FoldedDelta::fold(both),
        }
    }
}

/// Index of no pool.
const NO_POOL: u16 = u16::MAX;
/// Entry of an unused worker id.
const NO_WORKER: Worker = Worker { ip: 0, pool: NO_POOL, member: Member(0), server: 0 };
/// Port of a free server place.
const NO_PORT: u8 = u8::MAX;
/// A free server place.
const NO_SERVER: Server = Server {
    ip: 0,
    port: NO_PORT,
    next_hop: 0,
    slot: Slot::NONE,
    registers: false,
    is_routed: false,
};
/// Minimum time to live of a task that passes routers, or another leaf, on its way to a worker. Hosts start
/// at 64 or more, and a path through a datacenter has fewer hops than this.
const ROUTED_TTL_MIN: u8 = 16;

/// Returns the addresses that no client can have: the node's own addresses, the first and last address of
/// each client network, and the networks behind ports with workers only. Workers reply to hosts in those
/// networks without the node.
///
/// The last address is the network's broadcast address. The first address was one in the past, and Linux
/// treated it as one up to 5.13. Networks of at most two addresses have neither (RFC 3021).
fn unreachable(ports: &[PortAddress]) -> UnreachableSources {
    let of_port = |port: &PortAddress| match port.side.has_clients() {
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
    let mut all: UnreachableSources =
        NO_HOSTS.into_iter().chain(ports.iter().map(of_port)).collect();
    for edge in edges {
        if !all.iter().any(|range| range.is(edge.network)) {
            all.push(edge);
        }
    }
    all
}

/// Ports, servers, workers and pools, in tables that need no search.
#[derive(Debug)]
pub struct Network {
    /// UDP port of the node for tasks.
    pub udp_port: u16,
    /// Node id, used in its own messages.
    pub node: u16,
    ports: Vec<PortAddress>,
    /// Addresses of the ports.
    own_addresses: ArrayVec<u32, PORTS_MAX>,
    to_clients: Routes,
    gateway: Option<(usize, Slot, u32)>,
    servers: Vec<Server>,
    /// Addresses of the servers, sorted.
    server_ips: Vec<u32>,
    /// Servers that have moved: index, and previous address.
    moved: Vec<(u16, u32)>,
    /// Addresses that no client can have, whatever the routes.
    unreachable: UnreachableSources,
    workers: Vec<Worker>,
    pool_index: Box<[u16; 1 << 16]>,
    /// Pool ids by index; `None` where there is no pool.
    pool_ids: Vec<Option<u16>>,
    /// Members of each pool: destinations of tasks.
    members: Vec<Vec<Target>>,
    /// Minimum time to live of each pool's tasks.
    least_ttls: Vec<u8>,
    /// Authenticators of the pools with a key, by pool; empty if no pool has a key.
    authenticators: Vec<Option<Arc<ReplyAuthenticator>>>,
    /// Port to workers inside this process, which need no proof.
    local_port: Option<usize>,
    /// True if the members are leaves.
    is_spine: bool,
    /// True if no packets are sent.
    is_embedded: bool,
    /// Servers of a spine, each address once. In `servers`, a leaf of several pools has several entries.
    hosts: Vec<(IpAddr, Server)>,
    /// Leaves of a spine in their pools, sorted by leaf id and index of the pool.
    leaves: Vec<((u16, u16), Worker)>,
    /// Spines of a leaf, each at its fixed place.
    spines: Vec<Option<Spine>>,
    /// IPv4 service address and link of each pool; empty if no pool has a service address or a link.
    services: Vec<(Option<u32>, Option<SpineLink>)>,
    /// Service addresses of a spine, sorted.
    service_ips: Vec<IpAddr>,
    /// IPv6 tables; `None` if no port has an IPv6 address.
    v6: Option<Box<Network6>>,
}

impl Network {
    /// Builds the tables from hosts, spines (id and address) and pools. Places in all of them may be free.
    /// Pins the next hops in the neighbour table.
    ///
    /// # Errors
    /// If no port leads to a host or spine, a pool mixes IP versions, or the neighbour table is full.
    pub fn with_places(
        base: FixedNetwork,
        hosts: &[Option<Host>],
        spines: &[Option<(u16, IpAddr)>],
        pools: &[NetworkPool],
        neighbours: &Neighbours,
    ) -> Result<Self, NetworkError> {
        let FixedNetwork { udp_port, node, mut ports, inside, is_spine, is_embedded } = base;
        v6::number_ports(&mut ports);
        let mut network = Self {
            udp_port,
            node,
            own_addresses: ports
                .iter()
                .filter(|port| port.v6.is_none())
                .map(|port| port.ip)
                .collect(),
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
            local_port: inside,
            is_spine,
            is_embedded,
            hosts: Vec::new(),
            leaves: Vec::new(),
            spines: Vec::with_capacity(spines.len()),
            services: Vec::new(),
            service_ips: Vec::new(),
        };
        // Pools refer to spines and hosts, so these come first.
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
            let leaf_hosts =
                servers.filter_map(|(host, server)| Some((host.as_ref()?.ip, *server)));
            network.hosts = leaf_hosts.collect();
            // A leaf of several pools is several hosts with one address; it gets one heartbeat.
            network.hosts.sort_unstable_by_key(|(ip, _)| *ip);
            network.hosts.dedup_by_key(|(ip, _)| *ip);
            network.service_ips = pools.iter().filter_map(|pool| pool.service).collect();
            network.service_ips.sort_unstable();
            network.service_ips.dedup();
            // No client has a service address.
            let services = network.service_ips.iter().filter_map(|&ip| v4_bits(ip));
            let own_services =
                services.map(|network| UnreachableSource { network, mask: u32::MAX });
            network.unreachable.extend(own_services);
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
            v6.complete(&network.ports, of_pools, network.udp_port, neighbours)?;
            network.gateway = network.gateway.or(v6.gateway());
        }
        Ok(network)
    }

    /// Adds the host at the next index, or a free place.
    fn add_host(
        &mut self,
        host: Option<&Host>,
        neighbours: &Neighbours,
    ) -> Result<(), NetworkError> {
        let Some(host @ &Host { ip, mac, registers, was: previous }) = host else {
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
        // An embedded node sends no packets, so any MAC address makes the host a known one.
        if let Some(mac) = mac.or(self.is_embedded.then_some(Mac([0; 6]))) {
            neighbours.set_static(slot, mac);
        }
        self.server_ips.push(ip);
        if let Some(v6) = &mut self.v6 {
            v6.add_host(index, host.ip, previous);
        }
        self.moved.extend(previous.map(|previous| match previous {
            IpAddr::V4(previous) => (index as u16, previous.to_bits()),
            IpAddr::V6(_) => (index as u16, v6::number_of_old(index)),
        }));
        self.servers.push(Server { ip, port: port as u8, next_hop, slot, registers, is_routed });
        Ok(())
    }

    /// Adds the spine at the next place, or a free place.
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

    /// Pins the next hop to `ip` behind a port of a side. Returns the port, the hop in the form of
    /// [`Neighbours::address`], and its slot if there is room. Returns `None` if no port leads there.
    fn pin_hop(
        &self,
        ip: IpAddr,
        is_side: fn(Side) -> bool,
        neighbours: &Neighbours,
    ) -> Option<(usize, u32, Option<Slot>)> {
        match ip {
            IpAddr::V4(ip) => {
                let (port, next_hop) = Routes::new(&self.ports, is_side).find(ip.to_bits())?;
                Some((port, next_hop, neighbours.pin(port, next_hop)))
            }
            IpAddr::V6(ip) => {
                let (port, next_hop) = v6::route(&self.ports, is_side, ip.to_bits())?;
                let slot = neighbours.pin_v6(port, next_hop);
                Some((port, slot.map_or(0, |slot| neighbours.address(slot)), slot))
            }
        }
    }

    /// Checks that a pool's service address and spine have the IP version of its servers.
    fn check_families(&self, pool: &NetworkPool) -> Result<(), NetworkError> {
        let Some(&(_, server)) = pool.members.iter().flatten().next() else { return Ok(()) };
        let is_v6 = v6::is_number(self.servers[usize::from(server)].ip);
        let spine = pool.link.and_then(|link| self.spine(usize::from(link.spine)));
        let service = pool.service.map(|ip| (ip, "service address"));
        let addresses = service.into_iter().chain(spine.map(|spine| (spine.ip, "spine")));
        match { addresses }.find(|(ip, _)| ip.is_ipv6() != is_v6) {
            None => Ok(()),
            Some((ip, kind)) => {
                Err(NetworkError::OtherFamily(pool.id.unwrap_or_default(), ip, kind))
            }
        }
    }

    /// Adds the next pool. All hosts must have been added before.
    fn add_pool(&mut self, pool: u16, places: &NetworkPool) -> Result<(), NetworkError> {
        self.check_families(places)?;
        if let Some(v6) = &mut self.v6 {
            v6.add_pool(places)?;
        }
        if let Some(id) = places.id.filter(|_| !places.is_closed) {
            self.pool_index[usize::from(id)] = pool;
        }
        let targets = places.members.iter().enumerate().map(|(member, place)| {
            let &Some((id, server)) = place else { return Target::vacant() };
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

    /// Returns the part that stays the same while the node runs.
    #[must_use]
    pub fn base(&self) -> FixedNetwork {
        let (udp_port, node, inside) = (self.udp_port, self.node, self.local_port);
        let ports = self.ports.clone();
        let (is_spine, is_embedded) = (self.is_spine, self.is_embedded);
        FixedNetwork { udp_port, node, ports, inside, is_spine, is_embedded }
    }

    /// Returns true if the members are leaves.
    #[inline]
    #[must_use]
    pub fn is_spine(&self) -> bool {
        self.is_spine
    }

    /// Returns the spines of a leaf.
    pub fn spines(&self) -> impl Iterator<Item = &Spine> {
        self.spines.iter().flatten()
    }

    /// Returns the spine at this place.
    #[must_use]
    pub fn spine(&self, place: usize) -> Option<&Spine> {
        self.spines.get(place)?.as_ref()
    }

    /// Returns the place of the spine with this address and id.
    #[must_use]
    pub fn spine_at(&self, address: IpAddr, id: u16) -> Option<usize> {
        let has_both = |spine: &Option<Spine>| {
            spine.as_ref().is_some_and(|spine| (spine.ip, spine.id) == (address, id))
        };
        self.spines.iter().position(has_both)
    }

    /// Returns true if a spine has this address.
    #[must_use]
    pub fn has_spine_at(&self, address: IpAddr) -> bool {
        self.spines().any(|spine| spine.ip == address)
    }

    /// Returns the IPv4 address to which clients send tasks of a pool (by index), if it is not the node's.
    #[inline]
    #[must_use]
    pub fn service(&self, pool: usize) -> Option<u32> {
        self.services.get(pool).and_then(|(service, _)| *service)
    }

    /// Returns true if clients send tasks of a pool (by index) to another address than the node's.
    pub(super) fn has_service(&self, pool: usize) -> bool {
        let of_v6 = |v6: &Network6| v6.service(pool).is_some();
        self.service(pool).is_some() || self.v6().is_some_and(of_v6)
    }

    /// Returns the link of a leaf's pool (by index) to a spine.
    #[must_use]
    pub fn link(&self, pool: usize) -> Option<SpineLink> {
        self.services.get(pool).and_then(|(_, link)| *link)
    }

    /// Returns the IPv4 address at which tasks of a pool (by index) arrive on a port.
    #[inline]
    #[must_use]
    pub fn task_address(&self, port: usize, pool: usize) -> u32 {
        self.service(pool).filter(|_| self.is_spine).unwrap_or(self.ports[port].ip)
    }

    /// Returns the leaves of a spine, sorted by address, each address once.
    #[must_use]
    pub fn leaf_hosts(&self) -> &[(IpAddr, Server)] {
        &self.hosts
    }

    /// Returns the service addresses of a spine, sorted.
    #[must_use]
    pub fn service_ips(&self) -> &[IpAddr] {
        &self.service_ips
    }

    /// Returns true if the address is one of a spine's service addresses.
    #[inline]
    #[must_use]
    pub fn is_service(&self, address: IpAddr) -> bool {
        !self.service_ips.is_empty() && self.service_ips.binary_search(&address).is_ok()
    }

    /// Returns a spine's leaf in a pool (by index).
    ///
    /// # Errors
    /// The reason if there is none.
    pub fn leaf(&self, id: u16, pool: Option<usize>) -> Result<Worker, DropReason> {
        let first = self.leaves.partition_point(|(place, _)| *place < (id, 0));
        if self.leaves.get(first).is_none_or(|((leaf, _), _)| *leaf != id) {
            return Err(DropReason::UnknownPeer);
        }
        let pool = pool.ok_or(DropReason::SignalPool)?;
        let found = self.leaves.binary_search_by_key(&(id, pool as u16), |(place, _)| *place);
        found.map(|index| self.leaves[index].1).map_err(|_| DropReason::SignalPool)
    }

    /// Returns the authenticator for packets that a port received from workers of a pool (by index), if they
    /// need proof.
    #[inline(always)]
    pub(super) fn authenticator(&self, port: usize, pool: usize) -> Option<&ReplyAuthenticator> {
        let authenticator = self.authenticators.get(pool)?.as_deref();
        authenticator.filter(|_| self.local_port != Some(port))
    }

    /// Returns the port that leads to a client's address, and the next hop there.
    #[inline(always)]
    #[must_use]
    pub fn client_route(&self, address: u32) -> Option<(usize, u32)> {
        self.to_clients.find(address)
    }

    /// Returns true if the address may be a client's: a reply to it passes the node, and leaves by one of its
    /// ports. The address is neither the node's own, nor a server's, nor one to which servers reply without
    /// the node.
    #[must_use]
    pub fn is_client(&self, address: u32) -> bool {
        let is_listed = |ranges: &UnreachableSources| ranges.iter().any(|range| range.is(address));
        !is_listed(&self.unreachable)
            && self.server_ips.binary_search(&address).is_err()
            && self.to_clients.find(address).is_some()
    }

    /// Returns the minimum time to live, or hop limit, with which a task for a pool (by index) must arrive to
    /// reach every worker.
    #[must_use]
    pub fn least_ttl(&self, pool: usize) -> u8 {
        self.least_ttls.get(pool).copied().unwrap_or(ipv4::TTL_MIN)
    }

    /// Returns two values for checking sources of tasks at the port at `index`. The first is the network of
    /// all clients, if there is no router to others. The second are the unreachable sources within it, in
    /// packet byte order.
    pub(super) fn sources(&self, index: usize) -> (Option<(u32, u32)>, UnreachableSources) {
        let mut unreachable = self.unreachable.clone();
        let is_listed = |ranges: &UnreachableSources, ip| ranges.iter().any(|range| range.is(ip));
        for &ip in &self.server_ips {
            if !is_listed(&unreachable, ip) {
                unreachable.push(UnreachableSource { network: ip, mask: u32::MAX });
            }
        }
        let client_network = self.to_clients.gateway.is_none().then(|| {
            let port = &self.ports[index];
            (port.ip & port.mask(), port.mask())
        });
        if let Some((network, mask)) = client_network {
            unreachable.retain(|range| (range.network ^ network) & range.mask & mask == 0);
        }
        let bits = |range: UnreachableSource| (u128::from(range.network), u128::from(range.mask));
        let mut networks = unreachable.into_iter().map(bits).collect();
        merge(&mut networks);
        let source = |(network, mask): (u128, u128)| {
            UnreachableSource { network: network as u32, mask: mask as u32 }.to_be()
        };
        (client_network, networks.into_iter().map(source).collect())
    }

    /// Returns true if a host may have this MAC address: it is neither zero, nor a group's, nor one of the
    /// node's own.
    #[must_use]
    pub fn may_be_hosts(&self, mac: Mac) -> bool {
        mac != Mac::default() && !mac.is_group() && !self.ports.iter().any(|port| port.mac == mac)
    }

    /// Returns the port at `index`.
    #[inline]
    #[must_use]
    pub fn port(&self, index: usize) -> &PortAddress {
        &self.ports[index]
    }

    /// Returns all ports.
    #[must_use]
    pub fn ports(&self) -> &[PortAddress] {
        &self.ports
    }

    /// Returns true if `address` is one of the node's own.
    #[inline]
    #[must_use]
    pub fn is_own(&self, address: u32) -> bool {
        self.own_addresses.contains(&address)
    }

    /// Returns the IPv6 tables, if there are any.
    #[inline]
    #[must_use]
    pub fn v6(&self) -> Option<&Network6> {
        self.v6.as_deref()
    }

    /// Returns true if IPv4 packets may concern the pool at this index: it has no IPv6 servers, or does not
    /// exist.
    #[inline]
    pub(super) fn takes_v4(&self, pool: usize) -> bool {
        self.v6.as_ref().is_none_or(|v6| !v6.has_pool(pool))
    }

    /// Returns true if the address is the node's own. No server or client may have it.
    #[must_use]
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.is_own(address.to_bits()),
            IpAddr::V6(address) => v6::is_own(&self.ports, address.to_bits()),
        }
    }

    /// Returns the router to clients on other networks: port, slot and address.
    #[must_use]
    pub fn gateway(&self) -> Option<(usize, Slot, u32)> {
        self.gateway
    }

    /// Returns all servers.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().filter(|server| server.port != NO_PORT)
    }

    /// Returns the number of pools, including ended ones.
    #[must_use]
    pub fn pools(&self) -> usize {
        self.pool_ids.len()
    }

    /// Returns the index of the pool with this id.
    #[inline]
    #[must_use]
    pub fn pool(&self, id: u16) -> Option<usize> {
        let index = self.pool_index[usize::from(id)];
        (index != NO_POOL).then_some(usize::from(index))
    }

    /// Like [`Network::pool`], but returns a number beyond all pools if there is none.
    pub(super) fn pool_index(&self, id: u16) -> usize {
        usize::from(self.pool_index[usize::from(id)])
    }

    /// Returns the id of the pool at this index; `None` if there is no pool.
    #[inline]
    #[must_use]
    pub fn pool_id(&self, index: usize) -> Option<u16> {
        self.pool_ids[index]
    }

    /// Returns the worker with this id.
    #[inline]
    #[must_use]
    pub fn worker(&self, id: u16) -> Option<Worker> {
        self.workers.get(usize::from(id)).copied().filter(|worker| worker.pool != NO_POOL)
    }

    /// Returns the destination of tasks for a pool's member.
    #[inline]
    #[must_use]
    pub fn target(&self, pool: usize, member: Member) -> &Target {
        &self.members[pool][member.index()]
    }

    /// Returns the address of the server of a pool's member; `None` for a vacant place.
    #[must_use]
    pub fn member_address(&self, pool: usize, member: Member) -> Option<IpAddr> {
        if let Some(v6) = self.v6().filter(|v6| v6.has_pool(pool)) {
            return v6.member(pool, member).map(|ip| Ipv6Addr::from_bits(ip).into());
        }
        let target = self.target(pool, member);
        target.is_occupied().then(|| Ipv4Addr::from(target.ip).into())
    }

    /// Returns the members of the pool at this index.
    #[must_use]
    pub fn members(&self, pool: usize) -> &[Target] {
        &self.members[pool]
    }

    /// Returns the number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.members.iter().flatten().filter(|target| target.is_occupied()).count()
    }

    /// Returns true for the address of a worker's server, and for the one that it had until a short time ago.
    #[inline(always)]
    pub(super) fn is_at(&self, worker: &Worker, address: u32) -> bool {
        worker.ip == address || self.was_at(worker, address)
    }

    /// Like [`Network::is_at`], for an address of either IP version.
    pub(super) fn is_at_address(&self, worker: &Worker, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.is_at(worker, address.to_bits()),
            IpAddr::V6(address) => self.v6().is_some_and(|v6| {
                self.is_at(worker, v6.number(address.to_bits(), Some(worker.server)))
            }),
        }
    }

    /// Returns true for the address that a worker's server had until a short time ago.
    #[cold]
    fn was_at(&self, worker: &Worker, address: u32) -> bool {
        self.moved.contains(&(worker.server, address))
    }

    /// Returns the server at this index.
    #[inline]
    #[must_use]
    pub fn server(&self, index: u16) -> &Server {
        &self.servers[usize::from(index)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty table for two ports.
    fn neighbours() -> Neighbours {
        Neighbours::heap(2, 4)
    }

    fn port(ip: u32, prefix: u8, side: Side, gateway: Option<u32>) -> PortAddress {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let ip_options = IpOptions::Refuse;
        PortAddress { mac, ip, prefix, side, gateway, ip_options, v6: None }
    }

    /// Builds a network with one server.
    fn network(
        ports: Vec<PortAddress>,
        ip: u32,
        pools: &[NetworkPool],
    ) -> Result<Network, NetworkError> {
        let ip = Ipv4Addr::from_bits(ip).into();
        let host = Host { ip, mac: None, registers: false, was: None };
        let base = FixedNetwork { udp_port: 1234, ports, ..FixedNetwork::default() };
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
    fn a_server_out_of_reach_is_refused() {
        let ports = vec![port(0x0A00_0101, 24, Side::Clients, None)];
        let error = network(ports, 0x0A00_010B, &[]).unwrap_err();
        assert!(error.to_string().contains("10.0.1.11"), "{error}");
    }
}
