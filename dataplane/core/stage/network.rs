//! Tables of the networks around the node: ports, servers, workers and pools. A [`Network`] is immutable: for each
//! change of members a control thread builds a new one, which each core adopts in place of its old one.
//!
//! Servers, spines and members have *places*: indices that stay the same while the node runs. A place is free (vacant)
//! after its owner was removed. Pools also have an index, separate from the pool id in packets.
//!
//! A port and a server have one address, of either family. All servers of a pool have the same family. Addresses
//! are in tables of their family, so that IPv4 packets do not pay for the length of IPv6 addresses.

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;

pub use super::spec::{
    FixedNetwork, Host, IpOptions, NetworkError, NetworkPool, PortAddress, PortNetwork, Side,
    SpineLink,
};
pub use super::tables::{Destination, Gateway, NextHop, Target, Worker};

use super::auth::ReplyAuthenticator;
use super::tables::{NO_POOL, Routes, Tables};
use crate::limits::PORTS_MAX;
use crate::reason::DropReason;
use crate::state::neighbour::{HostAddress, Slot};
use crate::state::{Member, Neighbours};
use crate::wire::address::Address;
use crate::wire::ether::Mac;
use crate::wire::ipv4;

/// A worker server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
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

/// Port of a free server place.
const NO_PORT: u8 = u8::MAX;
/// A free server place.
const NO_SERVER: Server =
    Server { port: NO_PORT, next_hop: 0, slot: Slot::NONE, registers: false, is_routed: false };
/// Minimum time to live of a task that passes routers, or another leaf, on its way to a worker. Hosts start
/// at 64 or more, and a path through a datacenter has fewer hops than this.
const ROUTED_TTL_MIN: u8 = 16;

/// Address family (IPv4 or IPv6), implemented by the type of its addresses. A network has tables of both families.
pub trait Family: HostAddress {
    /// Opposite family.
    type OppositeFamily: Family;

    /// Returns the tables of this family.
    fn tables(network: &Network) -> &Tables<Self>;
}

impl Family for u32 {
    type OppositeFamily = u128;

    #[inline(always)]
    fn tables(network: &Network) -> &Tables<Self> {
        &network.v4
    }
}

impl Family for u128 {
    type OppositeFamily = u32;

    #[inline(always)]
    fn tables(network: &Network) -> &Tables<Self> {
        &network.v6
    }
}

/// Ports, servers, workers and pools, in tables that need no search.
#[derive(Debug)]
pub struct Network {
    /// UDP port of the node for tasks.
    pub udp_port: u16,
    /// Node id, used in its own messages.
    pub node: u16,
    /// Tables of the IPv4 addresses.
    v4: Tables<u32>,
    /// Tables of the IPv6 addresses.
    v6: Tables<u128>,
    ports: Vec<PortAddress>,
    /// Servers by index (place).
    servers: Vec<Server>,
    /// Index of the pool with each id; [`NO_POOL`] if there is none, or it takes no new tasks.
    pool_index: Box<[u16; 1 << 16]>,
    /// Pool ids by index; `None` where there is no pool.
    pool_ids: Vec<Option<u16>>,
    /// Members of each pool.
    members: Vec<Vec<Destination>>,
    /// Minimum time to live of each pool's tasks.
    least_ttls: Vec<u8>,
    /// True for each pool whose servers answer the clients themselves.
    direct: Vec<bool>,
    /// True if it is for any.
    has_direct: bool,
    /// Authenticators of the pools with a key, by pool; empty if no pool has a key.
    authenticators: Vec<Option<Arc<ReplyAuthenticator>>>,
    /// Port to workers inside this process, which need no proof.
    local_port: Option<usize>,
    /// True if the members are leaves.
    is_spine: bool,
    /// True in a program that embeds the library and sends no packets through it.
    is_embedded: bool,
    /// Leaves of a spine, sorted by address, each address once. In `servers`, a leaf of several pools has several
    /// entries.
    hosts: Vec<(IpAddr, Server)>,
    /// Leaves of a spine in their pools, sorted by leaf id and index of the pool.
    leaves: Vec<((u16, u16), Worker)>,
    /// Spines of a leaf, each at its fixed place.
    spines: Vec<Option<Spine>>,
    /// Link of each pool to a spine.
    links: Vec<Option<SpineLink>>,
    /// Service addresses of a spine, sorted.
    service_ips: Vec<IpAddr>,
}

impl Network {
    /// Builds the tables from hosts, spines (id and address) and pools. Places in all of them may be free.
    /// Pins the next hops in the neighbour table: no other host can evict them.
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
        let FixedNetwork { udp_port, node, ports, local_port, is_spine, is_embedded } = base;
        let mut network = Self {
            udp_port,
            node,
            v4: Tables::new(&ports, is_spine, neighbours)?,
            v6: Tables::new(&ports, is_spine, neighbours)?,
            ports,
            servers: Vec::with_capacity(hosts.len()),
            members: Vec::with_capacity(pools.len()),
            least_ttls: Vec::with_capacity(pools.len()),
            direct: pools.iter().map(|pool| pool.is_direct).collect(),
            has_direct: pools.iter().any(|pool| pool.is_direct),
            pool_index: Box::new([NO_POOL; 1 << 16]),
            pool_ids: pools.iter().map(|pool| pool.id).collect(),
            authenticators: Vec::new(),
            local_port,
            is_spine,
            is_embedded,
            hosts: Vec::new(),
            leaves: Vec::new(),
            spines: Vec::with_capacity(spines.len()),
            links: pools.iter().map(|pool| pool.link).collect(),
            service_ips: Vec::new(),
        };
        // Pools refer to spines and hosts, so these come first.
        for spine in spines {
            network.add_spine(*spine, neighbours)?;
        }
        for host in hosts {
            network.add_host(host.as_ref(), neighbours)?;
        }
        for (index, pool) in pools.iter().enumerate() {
            network.add_pool(index as u16, pool)?;
        }
        network.v4.complete();
        network.v6.complete();
        network.leaves.sort_unstable_by_key(|(place, _)| *place);
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
        }
        if pools.iter().any(|pool| pool.authenticator.is_some()) {
            network.authenticators = pools.iter().map(|pool| pool.authenticator.clone()).collect();
        }
        Ok(network)
    }

    /// Adds the host at the next index, or a free place.
    fn add_host(
        &mut self,
        host: Option<&Host>,
        neighbours: &Neighbours,
    ) -> Result<(), NetworkError> {
        self.v4.add_host(host);
        self.v6.add_host(host);
        let Some(&Host { ip, mac, registers, .. }) = host else {
            self.servers.push(NO_SERVER);
            return Ok(());
        };
        let hop = self.pin_hop(ip, Side::has_workers, neighbours);
        let (port, is_routed, slot) = hop.ok_or(NetworkError::Unreachable(ip))?;
        let slot = slot.ok_or(NetworkError::TooManyNeighbours)?;
        // An embedded node sends no packets, so any MAC address makes the host a known one.
        if let Some(mac) = mac.or(self.is_embedded.then_some(Mac([0; 6]))) {
            neighbours.set_static(slot, mac);
        }
        let next_hop = neighbours.address(slot);
        self.servers.push(Server { port, next_hop, slot, registers, is_routed });
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
        let (port, _, slot) = hop.ok_or(NetworkError::UnreachableSpine(ip))?;
        let slot = slot.ok_or(NetworkError::TooManyNeighbours)?;
        self.spines.push(Some(Spine { id, ip, port, next_hop: neighbours.address(slot), slot }));
        Ok(())
    }

    /// Pins the next hop to `ip` behind a port of a side. Returns the port, true if the hop is a router, and its
    /// slot if there is room. Returns `None` if no port leads there.
    fn pin_hop(
        &self,
        ip: IpAddr,
        is_side: fn(Side) -> bool,
        neighbours: &Neighbours,
    ) -> Option<(u8, bool, Option<Slot>)> {
        fn pin<A: HostAddress>(
            address: A,
            routes: &Routes<A>,
            neighbours: &Neighbours,
        ) -> Option<(u8, bool, Option<Slot>)> {
            let (port, next_hop) = routes.find(address)?;
            Some((port as u8, next_hop != address, neighbours.pin(port, next_hop)))
        }
        match ip {
            IpAddr::V4(ip) => pin(ip.to_bits(), &Routes::new(&self.ports, is_side), neighbours),
            IpAddr::V6(ip) => pin(ip.to_bits(), &Routes::new(&self.ports, is_side), neighbours),
        }
    }

    /// Checks that a pool's servers, service address and spine have one IP version. A task cannot change its version on
    /// the way.
    fn check_families(&self, pool: &NetworkPool) -> Result<(), NetworkError> {
        let id = pool.id.unwrap_or_default();
        let servers = pool.members.iter().flatten().map(|&(_, server)| server);
        let mut is_v6 = servers.map(|server| self.v6.server(server).is_some());
        let Some(is_v6_pool) = is_v6.next() else { return Ok(()) };
        if is_v6.any(|is_v6| is_v6 != is_v6_pool) {
            return Err(NetworkError::MixedFamilies(id));
        }
        let spine = pool.link.and_then(|link| self.spine(usize::from(link.spine)));
        let service = pool.service.map(|ip| (ip, "service address"));
        let addresses = service.into_iter().chain(spine.map(|spine| (spine.ip, "spine")));
        match { addresses }.find(|(ip, _)| ip.is_ipv6() != is_v6_pool) {
            None => Ok(()),
            Some((ip, kind)) => Err(NetworkError::OtherFamily(id, ip, kind)),
        }
    }

    /// Returns the destination that the tasks of a pool keep under direct return: the address to which clients send
    /// them. `None` for other pools, and for pools without members.
    ///
    /// # Errors
    /// If direct return is impossible: a server is behind a router or inside this process, or clients reach the node at
    /// several addresses.
    fn unchanged_destination(&self, pool: &NetworkPool) -> Result<Option<IpAddr>, NetworkError> {
        let mut servers = pool.members.iter().flatten().map(|&(_, server)| server).peekable();
        let Some(&first) = servers.peek().filter(|_| pool.is_direct) else { return Ok(None) };
        let id = pool.id.unwrap_or_default();
        for index in servers {
            let server = self.server(index);
            if self.local_port == Some(usize::from(server.port)) {
                return Err(NetworkError::DirectLocal(id));
            }
            if let Some(ip) = self.server_address(index).filter(|_| server.is_routed) {
                return Err(NetworkError::DirectRouted(id, ip));
            }
        }
        let is_v6 = self.v6.server(first).is_some();
        let is_entry = |port: &&PortAddress| port.side.has_clients() && port.v6.is_some() == is_v6;
        let own = self.ports.iter().filter(is_entry).map(|port| match port.v6 {
            Some(v6) => v6.ip.to_ip(),
            None => port.ip.to_ip(),
        });
        let own: ArrayVec<_, PORTS_MAX> = own.collect();
        match (pool.service, own[..].first()) {
            (Some(service), _) => Ok(Some(service)),
            (None, Some(&ip)) if own.len() == 1 => Ok(Some(ip)),
            _ => Err(NetworkError::DirectAddresses(id, own.len())),
        }
    }

    /// Adds the next pool. All hosts must have been added before. The id of a closed pool gets no index, so that new
    /// tasks do not find the pool.
    fn add_pool(&mut self, pool: u16, places: &NetworkPool) -> Result<(), NetworkError> {
        self.check_families(places)?;
        if let Some(id) = places.id.filter(|_| !places.is_closed) {
            self.pool_index[usize::from(id)] = pool;
        }
        let destination = |place: &Option<(u16, u16)>| {
            let &Some((worker, server)) = place else { return Destination::VACANT };
            let Server { port, slot, .. } = self.servers[usize::from(server)];
            let src_mac = self.ports[usize::from(port)].mac.to_bits();
            Destination { worker, next_hop: NextHop { src_mac, port, slot } }
        };
        let destinations: Vec<_> = places.members.iter().map(destination).collect();
        let unchanged = self.unchanged_destination(places)?;
        self.v4.add_pool(pool, places, &destinations, unchanged.and_then(u32::from_ip));
        self.v6.add_pool(pool, places, &destinations, unchanged.and_then(u128::from_ip));
        self.members.push(destinations);
        if self.is_spine {
            let leaves = (0..).zip(&places.members).filter_map(|(member, place)| {
                let (id, server) = (*place)?;
                Some(((id, pool), Worker { pool, member: Member(member), server }))
            });
            self.leaves.extend(leaves);
        }
        let is_routed = |&(_, server): &(u16, u16)| self.servers[usize::from(server)].is_routed;
        let is_routed = self.is_spine || places.members.iter().flatten().any(is_routed);
        self.least_ttls.push(if is_routed { ROUTED_TTL_MIN } else { ipv4::TTL_MIN });
        Ok(())
    }

    /// Returns the part that stays the same while the node runs. The control thread builds the next network from it.
    #[must_use]
    pub fn base(&self) -> FixedNetwork {
        let (udp_port, node, local_port) = (self.udp_port, self.node, self.local_port);
        let ports = self.ports.clone();
        let (is_spine, is_embedded) = (self.is_spine, self.is_embedded);
        FixedNetwork { udp_port, node, ports, local_port, is_spine, is_embedded }
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

    /// Returns true if clients send tasks of a pool (by index) to another address than the node's.
    pub(super) fn has_service(&self, pool: usize) -> bool {
        self.v4.service(pool).is_some() || self.v6.service(pool).is_some()
    }

    /// Returns the link of a leaf's pool (by index) to a spine.
    #[must_use]
    pub fn link(&self, pool: usize) -> Option<SpineLink> {
        self.links.get(pool).copied().flatten()
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
        // The list is sorted by leaf id. Tells an unknown leaf from a leaf that is in other pools.
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

    /// Returns the tables of the family whose addresses have this type.
    #[inline(always)]
    pub(super) fn family<A: Family>(&self) -> &Tables<A> {
        A::tables(self)
    }

    /// Returns the minimum time to live, or hop limit, with which a task for a pool (by index) must arrive to
    /// reach every worker.
    #[must_use]
    pub fn least_ttl(&self, pool: usize) -> u8 {
        self.least_ttls.get(pool).copied().unwrap_or(ipv4::TTL_MIN)
    }

    /// Returns true if a host may have this MAC address: it is neither zero, nor a group's, nor one of the
    /// node's own.
    #[must_use]
    pub fn may_be_host_mac(&self, mac: Mac) -> bool {
        mac != Mac::default() && !mac.is_group() && !self.ports.iter().any(|port| port.mac == mac)
    }

    /// Returns the port at `index`.
    #[inline]
    #[must_use]
    pub fn port(&self, index: usize) -> &PortAddress {
        &self.ports[index]
    }

    /// Returns the port to workers inside this process.
    #[must_use]
    pub fn local_port(&self) -> Option<&PortAddress> {
        self.local_port.map(|index| self.port(index))
    }

    /// Returns all ports.
    #[must_use]
    pub fn ports(&self) -> &[PortAddress] {
        &self.ports
    }

    /// Returns true unless the servers of the pool at this index have the opposite family: packets of this family
    /// cannot concern such a pool. An index without a pool takes both families.
    #[inline]
    pub(super) fn takes<A: Family>(&self, pool: usize) -> bool {
        self.family::<A::OppositeFamily>().members(pool).is_empty()
    }

    /// Returns true if the address is the node's own. No server or client may have it.
    #[must_use]
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.is_own(address.to_bits()),
            IpAddr::V6(address) => self.v6.is_own(address.to_bits()),
        }
    }

    /// Returns the routers to clients on other networks.
    pub fn gateways(&self) -> impl Iterator<Item = Gateway> {
        self.v4.gateway.into_iter().chain(self.v6.gateway)
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

    /// Returns the index of the pool with this id; `None` for an unknown pool, and for one that takes no new tasks.
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

    /// Like [`Network::pool`], but also finds a pool that takes no new tasks: its members still send replies and
    /// signals.
    #[inline]
    pub(super) fn answering_pool(&self, id: u16) -> Option<usize> {
        self.pool(id).or_else(|| self.closed_pool(id))
    }

    /// Like [`Network::answering_pool`], but returns a number beyond all pools if there is none.
    pub(super) fn answering_index(&self, id: u16) -> usize {
        self.answering_pool(id).unwrap_or(NO_POOL.into())
    }

    /// Finds a pool that takes no new tasks.
    #[cold]
    fn closed_pool(&self, id: u16) -> Option<usize> {
        self.pool_ids.iter().position(|pool| *pool == Some(id))
    }

    /// Returns the id of the pool at this index; `None` if there is no pool.
    #[inline]
    #[must_use]
    pub fn pool_id(&self, index: usize) -> Option<u16> {
        self.pool_ids[index]
    }

    /// Returns the place of the worker with this id; `None` for an unknown worker. A spine has no workers: see
    /// [`Network::leaf`].
    #[inline]
    #[must_use]
    pub fn worker(&self, id: u16) -> Option<Worker> {
        let v6 = || self.v6.worker(id).map(|place| place.worker);
        self.v4.worker(id).map(|place| place.worker).or_else(v6)
    }

    /// Returns the worker id and next hop of a pool's member.
    #[inline]
    #[must_use]
    pub fn target(&self, pool: usize, member: Member) -> &Destination {
        &self.members[pool][member.index()]
    }

    /// Returns the address of the server of a pool's member; `None` for a vacant place.
    #[must_use]
    pub fn member_address(&self, pool: usize, member: Member) -> Option<IpAddr> {
        let v6 = || self.v6.host(pool, member).map(Address::to_ip);
        self.v4.host(pool, member).map(Address::to_ip).or_else(v6)
    }

    /// Returns true if the servers of a pool (by index) answer the clients themselves.
    #[inline]
    #[must_use]
    pub fn is_direct(&self, pool: usize) -> bool {
        self.direct.get(pool).copied().unwrap_or_default()
    }

    /// Returns true if the servers of any pool do.
    #[inline]
    #[must_use]
    pub fn has_direct(&self) -> bool {
        self.has_direct
    }

    /// Returns the members of the pool at this index, by place. Vacant places are among them.
    #[must_use]
    pub fn members(&self, pool: usize) -> &[Destination] {
        &self.members[pool]
    }

    /// Returns the number of workers; at a spine, of leaves, once per pool.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.members.iter().flatten().filter(|member| member.is_occupied()).count()
    }

    /// Returns the address of the server at this index; `None` for a free place.
    #[must_use]
    pub fn server_address(&self, index: u16) -> Option<IpAddr> {
        let v6 = || self.v6.server(index).map(Address::to_ip);
        self.v4.server(index).map(Address::to_ip).or_else(v6)
    }

    /// Returns true for the address of a worker's server, and for the one that it had until a short time ago.
    pub(super) fn is_at(&self, worker: &Worker, address: IpAddr) -> bool {
        let was_at = || match address {
            IpAddr::V4(address) => self.v4.was_at(worker.server, address.to_bits()),
            IpAddr::V6(address) => self.v6.was_at(worker.server, address.to_bits()),
        };
        self.server_address(worker.server) == Some(address) || was_at()
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
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Creates an empty table for two ports and four next hops.
    fn neighbours() -> Neighbours {
        Neighbours::heap(2, 4)
    }

    /// Returns a port with an IPv4 network.
    fn port(ip: u32, prefix: u8, side: Side, gateway: Option<u32>) -> PortAddress {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let ip_options = IpOptions::Refuse;
        PortAddress { mac, ip, prefix, side, gateway, ip_options, v6: None }
    }

    /// Returns a port with a /64 network.
    fn port_v6(ip: &str, side: Side, gateway: Option<&str>) -> PortAddress {
        let v6 = PortNetwork { ip: address(ip), prefix: 64, gateway: gateway.map(address) };
        PortAddress { v6: Some(v6), ..port(0, 0, side, None) }
    }

    /// Parses an address.
    fn address(text: &str) -> u128 {
        text.parse::<Ipv6Addr>().unwrap().to_bits()
    }

    /// Builds a network with one server.
    fn network(
        ports: Vec<PortAddress>,
        ip: u32,
        pools: &[NetworkPool],
    ) -> Result<Network, NetworkError> {
        let ip = Ipv4Addr::from_bits(ip).into();
        let host = Host { ip, mac: None, registers: false, former_ip: None };
        let base = FixedNetwork { udp_port: 1234, ports, ..FixedNetwork::default() };
        Network::with_places(base, &[Some(host)], &[], pools, &neighbours())
    }

    #[test]
    fn network_reaches_addresses_with_its_prefix() {
        let reaches = |prefix, address| {
            PortNetwork { ip: 0x0A00_0101, prefix, gateway: None }.reaches(address)
        };
        assert!(reaches(24, 0x0A00_01FF) && !reaches(24, 0x0A00_0201));
        assert!(reaches(0, u32::MAX));
        assert!(reaches(32, 0x0A00_0101) && !reaches(32, 0x0A00_0102));
    }

    #[test]
    fn lookups_find_pools_workers_and_routes() {
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
        let address = Some(IpAddr::from([10, 0, 2, 11]));
        assert_eq!(network.server_address(worker.server), address);
        assert_eq!(
            (network.member_address(1, Member(1)), network.member_address(0, Member(0))),
            (address, None)
        );
        assert_eq!(network.server(worker.server).port, 1);
        let target = network.v4.member(1, Member(1)).unwrap();
        assert_eq!(
            (target.choice, target.ip, target.next_hop.port),
            ([0, 9, 0, 0], [10, 0, 2, 11], 1) // the choice: worker 9, without the idle flag
        );
        assert_eq!(network.v4.client_route(0x0A00_0105), Some((0, 0x0A00_0105)));
        assert_eq!(network.v4.client_route(0x0808_0808), Some((0, 0x0A00_01FE)));
        assert_eq!(Routes::<u32>::new(network.ports(), Side::has_workers).find(0x0808_0808), None);
    }

    #[test]
    fn closed_pool_is_found_for_answers_only() {
        let ports = vec![port(0x0A00_0201, 24, Side::Both, None)];
        let pool = |is_closed| NetworkPool { id: Some(7), is_closed, ..NetworkPool::default() };
        let closed = network(ports.clone(), 0x0A00_020B, &[pool(true)]).unwrap();
        assert_eq!((closed.pool(7), closed.answering_pool(7)), (None, Some(0)));
        assert_eq!(closed.answering_pool(8), None);
        // A new pool with the id of a closed one.
        let both = network(ports, 0x0A00_020B, &[pool(true), pool(false)]).unwrap();
        assert_eq!((both.pool(7), both.answering_pool(7)), (Some(1), Some(1)));
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

    /// Builds a network with ports of both families, and a pool of one worker on each server.
    fn network_of_both(servers: &[&str]) -> Result<Network, NetworkError> {
        let ports = vec![
            port_v6("fd00:1::1", Side::Clients, Some("fe80::fe")),
            port_v6("fd00:2::1", Side::Workers, None),
            port(0x0A00_0201, 24, Side::Workers, None),
        ];
        let host = |ip: &&str| {
            Some(Host { ip: ip.parse().unwrap(), mac: None, registers: false, former_ip: None })
        };
        let hosts: Vec<_> = servers.iter().map(host).collect();
        // Worker ids are the indices of the servers.
        let members = (0..servers.len() as u16).map(|id| Some((id, id))).collect();
        let pool = NetworkPool { id: Some(7), members, ..NetworkPool::default() };
        let base = FixedNetwork { udp_port: 1234, ports, ..FixedNetwork::default() };
        Network::with_places(base, &hosts, &[], &[pool], &Neighbours::heap(3, 8))
    }

    #[test]
    fn ipv6_clients_are_distinguished_from_other_hosts() {
        let network = network_of_both(&["fd00:2::b"]).unwrap();
        for (text, is_client) in [
            ("fd00:1::5", true),        // on the clients' network
            ("2001:db8::5", true),      // behind the gateway
            ("fd00:1::1", false),       // the node's own
            ("fd00:1::", false),        // of every router on the network
            ("fd00:2::b", false),       // the server
            ("fd00:2::c", false),       // on the workers' network
            ("fe80::5", false),         // link-local
            ("ff02::1", false),         // multicast
            ("::1", false),             // loopback
            ("::", false),              // unspecified
            ("::ffff:10.0.0.1", false), // IPv4-mapped
        ] {
            assert_eq!(network.v6.is_client(address(text)), is_client, "{text}");
        }
        let route = |text| network.v6.client_route(address(text));
        assert_eq!(route("fd00:1::5"), Some((0, address("fd00:1::5"))));
        assert_eq!(route("2001:db8::5"), Some((0, address("fe80::fe"))));
        assert!(network.takes::<u128>(0) && !network.takes::<u32>(0));
        let entry = network.v6.worker(0).unwrap();
        assert_eq!(network.worker(0), Some(entry.worker));
        assert_eq!(network.member_address(0, Member(0)), Some("fd00:2::b".parse().unwrap()));
        let is_at = |text| network.v6.is_at(&entry, address(text));
        assert!(is_at("fd00:2::b") && !is_at("fd00:2::c"));
    }

    #[test]
    fn inconsistent_network_is_refused() {
        let error = network_of_both(&["fd00:2::b", "10.0.2.11"]).unwrap_err();
        assert_eq!(error, NetworkError::MixedFamilies(7));
        let error = network_of_both(&["fd00:3::b"]).unwrap_err();
        assert!(error.to_string().contains("fd00:3::b"), "{error}");
        let network = network_of_both(&["10.0.2.11"]).unwrap();
        assert!(network.takes::<u32>(0) && !network.takes::<u128>(0));
    }
}
