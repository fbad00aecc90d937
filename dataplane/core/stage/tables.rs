//! Network tables of the node for one address family. A network ([`super::Network`]) has them for `u32` (IPv4) and
//! `u128` (IPv6) addresses.
//!
//! Servers and members have fixed *places* (indices), which may be vacant. Under *direct return* a pool's servers
//! reply straight to the clients.

use arrayvec::ArrayVec;

use super::spec::{Host, NetworkError, NetworkPool, PortAddress, PortNetwork, Side};
use super::unreachable::{Sources, UnreachableSource, merge};
use crate::limits::PORTS_MAX;
use crate::state::neighbour::{HostAddress, Slot};
use crate::state::{Member, Neighbours};
use crate::wire::checksum::{ChecksumDelta, FoldedDelta};
use crate::wire::{ipv4, task};

/// Router to clients on other networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Port to the router.
    pub port: u8,
    /// Address of the router, in the form of [`Neighbours::address`].
    pub next_hop: u32,
    /// Slot of the router in the neighbour table.
    pub slot: Slot,
}

/// Place of a worker; at a spine, place of a leaf in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Index of its pool.
    pub pool: u16,
    /// Index in the pool.
    pub member: Member,
    /// Index of its server.
    pub server: u16,
}

/// Place of a worker, with the address of its server.
#[derive(Clone, Copy, Debug)]
pub struct WorkerEntry<A> {
    /// Address of its server.
    pub ip: A,
    /// Place of the worker.
    pub worker: Worker,
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
pub(super) struct Routes<A> {
    /// Address, mask and port.
    networks: ArrayVec<(A, A, usize), PORTS_MAX>,
    /// Port and address of the router.
    gateway: Option<(usize, A)>,
}

impl<A: HostAddress> Routes<A> {
    /// Creates the routes from the ports whose side has the property `is_side`. The first of their gateways is the
    /// router.
    pub(super) fn new(ports: &[PortAddress], is_side: fn(Side) -> bool) -> Self {
        let of_side = || {
            let ports = ports.iter().enumerate().filter(|(_, port)| is_side(port.side));
            ports.filter_map(|(index, port)| Some((index, port.network::<A>()?)))
        };
        Self {
            networks: of_side().map(|(index, port)| (port.ip, port.mask(), index)).collect(),
            gateway: of_side()
                .find_map(|(index, port)| port.gateway.map(|gateway| (index, gateway))),
        }
    }

    /// Returns the port that leads to `address`, and the next hop there.
    #[inline(always)]
    pub(super) fn find(&self, address: A) -> Option<(usize, A)> {
        for &(network, mask, port) in &self.networks {
            if (address ^ network) & mask == A::default() {
                return Some((port, address));
            }
        }
        self.gateway
    }
}

/// Member of a pool without its address, in the same form for both families. `Target` adds the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Worker id.
    pub worker: u16,
    /// Next hop to its server.
    pub next_hop: NextHop,
}

impl Destination {
    /// A vacant place. No task ever goes there.
    pub(super) const VACANT: Self = Self {
        worker: task::NO_MEMBER,
        next_hop: NextHop { src_mac: 0, port: 0, slot: Slot::NONE },
    };

    /// Returns true if a worker has this place.
    #[must_use]
    pub fn is_occupied(&self) -> bool {
        self.worker != task::NO_MEMBER
    }
}

/// Destination of tasks for a pool's member: all values that rewriting needs, in one place.
#[derive(Clone, Copy, Debug)]
pub struct Target<A: HostAddress> {
    /// Worker id.
    pub worker: u16,
    /// Choice of this worker: the fields `dst` and `qlen` of the task header, in packet byte order.
    pub choice: [u8; 4],
    /// Address of its server, in packet byte order. Under direct return, the address to which clients send tasks.
    pub ip: A::Bytes,
    /// Next hop to its server.
    pub next_hop: NextHop,
    /// Effect of the address and the hop on an IPv4 header's checksum.
    pub ip_delta: FoldedDelta,
    /// Effect of address and choice on a datagram's checksum.
    pub udp_delta: FoldedDelta,
}

impl<A: HostAddress> Target<A> {
    /// Creates the target of a worker. Computes the checksum changes of its address and choice once, for all tasks
    /// to it.
    fn new(Destination { worker, next_hop }: Destination, ip: A) -> Self {
        let choice = task::choice_of(worker); // at an odd offset in a packet
        let address = A::replace(ChecksumDelta::default(), A::default(), ip);
        let both = address.straddling_double_word(0, u32::from_be_bytes(choice));
        Self {
            worker,
            choice,
            ip: ip.to_bytes(),
            next_hop,
            ip_delta: FoldedDelta::fold(ipv4::hop(address)),
            udp_delta: FoldedDelta::fold(both),
        }
    }
}

/// Index of no pool.
pub(super) const NO_POOL: u16 = u16::MAX;
/// Place of an unused worker id.
const NO_WORKER: Worker = Worker { pool: NO_POOL, member: Member(0), server: 0 };

/// Returns the addresses that no client can have: addresses invalid for any host, the node's own addresses, the first
/// and last address of each client network, and the networks behind ports with workers only. Workers reply to hosts in
/// such a worker network without the node.
///
/// The last address is IPv4's broadcast address. The first address was one in the past, and Linux treated it as
/// one up to 5.13; over IPv6, every router has it (RFC 4291, 2.6.1). Networks of at most two addresses have
/// neither (RFC 3021, RFC 6164).
fn unreachable<A: HostAddress>(ports: &[PortAddress]) -> Vec<UnreachableSource<A>> {
    let ports = || ports.iter().filter_map(|port| Some((port.side, port.network::<A>()?)));
    let of_port = |(side, port): (Side, PortNetwork<A>)| match side.has_clients() {
        true => UnreachableSource::host(port.ip),
        false => UnreachableSource { network: port.ip & port.mask(), mask: port.mask() },
    };
    let no_hosts = A::NO_HOSTS.iter().map(|&(network, mask)| UnreachableSource { network, mask });
    let mut all: Vec<_> = no_hosts.chain(ports().map(of_port)).collect();
    // True for a mask with at least two zeros: the network has more than two addresses.
    let has_edges = |port: &PortNetwork<A>| {
        let hosts = !port.mask();
        hosts != A::default() && !hosts.is_one_bit()
    };
    let edges = |port: PortNetwork<A>| {
        let first = port.ip & port.mask();
        let last = A::HAS_BROADCAST.then_some(first ^ !port.mask());
        [Some(first), last].into_iter().flatten()
    };
    let with_clients = ports().filter(|(side, _)| side.has_clients()).map(|(_, port)| port);
    for edge in with_clients.filter(has_edges).flat_map(edges) {
        add_range_of(&mut all, edge);
    }
    all
}

/// Adds the range of one address to a list of ranges, if none contains it.
fn add_range_of<A: HostAddress>(ranges: &mut Vec<UnreachableSource<A>>, address: A) {
    if !ranges.iter().any(|range| range.contains(address)) {
        ranges.push(UnreachableSource::host(address));
    }
}

/// Addresses of one family: those of the ports, servers, workers and pools, and the routes to clients.
#[derive(Debug)]
pub struct Tables<A: HostAddress> {
    /// Networks of the ports; `None` for a port of the opposite family.
    ports: ArrayVec<Option<PortNetwork<A>>, PORTS_MAX>,
    /// Addresses of the node.
    own_addresses: ArrayVec<A, PORTS_MAX>,
    /// Routes to clients.
    to_clients: Routes<A>,
    /// Router to clients on other networks.
    pub(super) gateway: Option<Gateway>,
    /// Addresses of the servers by index; `None` for a free place and for the opposite family.
    servers: Vec<Option<A>>,
    /// Addresses of the servers, sorted.
    server_ips: Vec<A>,
    /// Servers that have moved a short time ago: index, and previous address. Packets in flight still come from it.
    moved: Vec<(u16, A)>,
    /// Addresses that no client can have, whatever the routes.
    unreachable: Vec<UnreachableSource<A>>,
    /// Workers by id; empty at a spine, whose leaves are in [`super::Network`].
    workers: Vec<WorkerEntry<A>>,
    /// Members of each pool: destinations of tasks. Empty for pools whose servers have the opposite family.
    members: Vec<Vec<Target<A>>>,
    /// Service address of each pool.
    services: Vec<Option<A>>,
    /// True for a spine: tasks arrive at the service addresses, not at the ports' own addresses.
    is_spine: bool,
}

impl<A: HostAddress> Tables<A> {
    /// Creates the tables of these ports. Pins the gateway in the neighbour table.
    ///
    /// # Errors
    /// If the neighbour table is full.
    pub(super) fn new(
        ports: &[PortAddress],
        is_spine: bool,
        neighbours: &Neighbours,
    ) -> Result<Self, NetworkError> {
        let to_clients = Routes::new(ports, Side::has_clients);
        let gateway = match to_clients.gateway {
            None => None,
            Some((port, address)) => {
                let slot = neighbours.pin(port, address).ok_or(NetworkError::TooManyNeighbours)?;
                let next_hop = neighbours.address(slot);
                Some(Gateway { port: port as u8, next_hop, slot })
            }
        };
        let networks = ports.iter().map(PortAddress::network);
        Ok(Self {
            own_addresses: networks.clone().flatten().map(|port: PortNetwork<A>| port.ip).collect(),
            ports: networks.collect(),
            to_clients,
            gateway,
            unreachable: unreachable(ports),
            servers: Vec::new(),
            server_ips: Vec::new(),
            moved: Vec::new(),
            workers: Vec::new(),
            members: Vec::new(),
            services: Vec::new(),
            is_spine,
        })
    }

    /// Adds the server at the next index, with its address and its previous one; `None` adds a free place.
    pub(super) fn add_host(&mut self, host: Option<&Host>) {
        let index = self.servers.len() as u16;
        let ip = host.and_then(|host| A::from_ip(host.ip));
        self.moved
            .extend(host.and_then(|host| A::from_ip(host.former_ip?)).map(|was| (index, was)));
        self.server_ips.extend(ip);
        self.servers.push(ip);
    }

    /// Adds the next pool. All servers must have been added before. With `unchanged`, tasks keep this destination
    /// instead of getting the server's address.
    pub(super) fn add_pool(
        &mut self,
        pool: u16,
        places: &NetworkPool,
        destinations: &[Destination],
        unchanged: Option<A>,
    ) {
        self.services.push(places.service.and_then(A::from_ip));
        let mut members = Vec::new();
        let of_pool = (0..).zip(&places.members).zip(destinations);
        for ((member, place), &destination) in of_pool {
            let place = place.and_then(|(id, server)| {
                let ip = self.servers[usize::from(server)]?;
                Some((
                    usize::from(id),
                    WorkerEntry { ip, worker: Worker { pool, member: Member(member), server } },
                ))
            });
            let Some((id, worker)) = place else { continue };
            if members.is_empty() {
                members = vec![Target::new(Destination::VACANT, A::default()); destinations.len()];
            }
            members[usize::from(member)] = Target::new(destination, unchanged.unwrap_or(worker.ip));
            if !self.is_spine {
                let vacant = WorkerEntry { ip: A::default(), worker: NO_WORKER };
                self.workers.resize(self.workers.len().max(id + 1), vacant);
                self.workers[id] = worker;
            }
        }
        self.members.push(members);
    }

    /// Completes the tables after all servers and pools were added.
    pub(super) fn complete(&mut self) {
        self.server_ips.sort_unstable();
        // No client of a spine has a service address.
        for &service in self.services.iter().flatten().filter(|_| self.is_spine) {
            add_range_of(&mut self.unreachable, service);
        }
    }

    /// Returns true if `address` is one of the node's own.
    #[inline(always)]
    pub(super) fn is_own(&self, address: A) -> bool {
        self.own_addresses.contains(&address)
    }

    /// Returns the network of a port, if it is of this family.
    pub(super) fn port(&self, port: usize) -> Option<PortNetwork<A>> {
        self.ports.get(port).copied().flatten()
    }

    /// Returns the worker with this id.
    #[inline(always)]
    pub(super) fn worker(&self, id: u16) -> Option<WorkerEntry<A>> {
        let worker = self.workers.get(usize::from(id)).copied();
        worker.filter(|place| place.worker.pool != NO_POOL)
    }

    /// Returns the members of a pool (by index); empty for a pool whose servers have the opposite family.
    #[inline(always)]
    pub(super) fn members(&self, pool: usize) -> &[Target<A>] {
        self.members.get(pool).map_or(&[], Vec::as_slice)
    }

    /// Returns the destination of tasks for a pool's member; `None` for a vacant place and for the opposite family.
    #[inline]
    pub(super) fn member(&self, pool: usize, member: Member) -> Option<&Target<A>> {
        let target = self.members(pool).get(member.index());
        target.filter(|target| target.worker != task::NO_MEMBER)
    }

    /// Returns the address of the server of a pool's member; `None` for a vacant place and for the opposite family.
    pub(super) fn host(&self, pool: usize, member: Member) -> Option<A> {
        let target = self.member(pool, member)?;
        // Under direct return a target has no server's address, so the worker's entry comes first. A spine has no
        // workers, and its targets always have the leaves' addresses.
        let worker = self.worker(target.worker).map(|entry| entry.ip);
        worker.or_else(|| A::from_ip(target.ip.into()))
    }

    /// Returns the address of the server at this index, if it is of this family.
    pub(super) fn server(&self, index: u16) -> Option<A> {
        self.servers.get(usize::from(index)).copied().flatten()
    }

    /// Returns true for the address of a worker's server, and for the one that it had until a short time ago.
    #[inline(always)]
    pub(super) fn is_at(&self, place: &WorkerEntry<A>, address: A) -> bool {
        place.ip == address || self.was_at(place.worker.server, address)
    }

    /// Returns true for the address that a server had until a short time ago.
    #[cold]
    pub(super) fn was_at(&self, server: u16, address: A) -> bool {
        self.moved.contains(&(server, address))
    }

    /// Returns the port that leads to a client's address, and the next hop there.
    #[inline(always)]
    pub(super) fn client_route(&self, address: A) -> Option<(usize, A)> {
        self.to_clients.find(address)
    }

    /// Returns true if the address may be a client's: a reply to it passes the node, and leaves by one of its
    /// ports. The address is neither the node's own, nor a server's, nor one to which servers reply without
    /// the node.
    pub(super) fn is_client(&self, address: A) -> bool {
        !self.unreachable.iter().any(|range| range.contains(address))
            && self.server_ips.binary_search(&address).is_err()
            && self.client_route(address).is_some()
    }

    /// Returns the address to which clients send tasks of a pool (by index), if it is not the node's.
    #[inline]
    pub(super) fn service(&self, pool: usize) -> Option<A> {
        self.services.get(pool).copied().flatten()
    }

    /// Returns the address at which tasks of a pool (by index) arrive on a port.
    #[inline]
    pub(super) fn task_address(&self, port: usize, pool: usize) -> Option<A> {
        let service = self.service(pool).filter(|_| self.is_spine);
        service.or_else(|| Some(self.port(port)?.ip))
    }

    /// Returns the values by which the fast path checks the sources of tasks at a port.
    pub(super) fn sources(&self, port: usize) -> Sources<A> {
        let mut unreachable = self.unreachable.clone();
        self.server_ips.iter().for_each(|&ip| add_range_of(&mut unreachable, ip));
        let network = self.port(port).filter(|_| self.to_clients.gateway.is_none());
        let clients = network.map(|port| (port.ip & port.mask(), port.mask()));
        // Keeps the ranges that overlap the clients' network.
        if let Some((network, mask)) = clients {
            unreachable
                .retain(|range| (range.network ^ network) & range.mask & mask == A::default());
        }
        merge(&mut unreachable);
        Sources {
            clients,
            unreachable: unreachable.into_iter().map(UnreachableSource::to_be).collect(),
        }
    }
}
