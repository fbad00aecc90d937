//! IPv6 networks around the node, in addition to the tables of [`super::network`].
//!
//! A port and a server have one address, of either IP version. All servers of a pool have the same version.
//! The tables of the IPv4 fast path stay small: an IPv6 port or server has a number there, in 240.0.0.0/4. No
//! host and no forwarded packet has such an address. This module maps the numbers to IPv6 addresses.
//! Addresses of 16 bytes in those tables would cost every IPv4 packet.

use std::net::IpAddr;

use arrayvec::ArrayVec;

pub use super::spec::PortV6;

use super::fast::template_v6::{CommonPackets, TemplateV6};
use super::spec::{NetworkError, NetworkPool, PortAddress, Side};
use super::unreachable::{UnreachableV6, merge, no_hosts_v6};
use crate::limits::PORTS_MAX;
use crate::state::neighbour::Slot;
use crate::state::{Member, Neighbours};
use crate::wire::checksum::{ChecksumDelta, FoldedDelta};
use crate::wire::{ipv6, task};

/// First number of servers.
const SERVERS: u32 = 0xF000_0000;
/// First number of ports.
const PORTS: u32 = 0xF400_0000;
/// First number of addresses that servers had until a short time ago.
const OLD: u32 = 0xF800_0000;

/// Number of an unknown address.
pub(super) const UNKNOWN_ADDRESS: u32 = 0;

/// Returns an IPv6 address as a number; `None` for an IPv4 address.
fn bits(address: IpAddr) -> Option<u128> {
    match address {
        IpAddr::V6(address) => Some(address.to_bits()),
        IpAddr::V4(_) => None,
    }
}

/// Gives IPv6 ports the numbers that represent their addresses.
pub(super) fn number_ports(ports: &mut [PortAddress]) {
    for (number, port) in (PORTS..).zip(ports) {
        if port.v6.is_some() {
            (port.ip, port.prefix, port.gateway) = (number, 32, None);
        }
    }
}

/// Returns true if `ip` is the number of an IPv6 server, and not an IPv4 address.
pub(super) fn is_number(ip: u32) -> bool {
    ip >= SERVERS
}

/// Returns the number of the server at this index.
pub(super) fn number_of_server(index: usize) -> u32 {
    SERVERS | index as u32
}

/// Returns the number of the previous address of the server at this index.
pub(super) fn number_of_old(index: usize) -> u32 {
    OLD | index as u32
}

/// Returns the port of a side that leads to `address`, and the next hop there.
pub(super) fn route(
    ports: &[PortAddress],
    is_side: fn(Side) -> bool,
    address: u128,
) -> Option<(usize, u128)> {
    let ports = || {
        let of_side = ports.iter().enumerate().filter(|(_, port)| is_side(port.side));
        of_side.filter_map(|(index, port)| Some((index, port.v6?)))
    };
    let direct = ports().find(|(_, port)| port.reaches(address)).map(|(index, _)| (index, address));
    direct.or_else(|| ports().find_map(|(index, port)| Some((index, port.gateway?))))
}

/// Returns true if `address` is one of the node's own.
pub(super) fn is_own(ports: &[PortAddress], address: u128) -> bool {
    ports.iter().any(|port| port.v6.is_some_and(|port| port.ip == address))
}

/// Maximum length of a list that is searched for each packet.
const UNREACHABLE_MAX: usize = 16;

/// Values for checking the sources of tasks at a port.
#[derive(Clone, Debug, Default)]
pub(super) struct SourcesV6 {
    /// Network of all clients and its mask, if there is no router to others.
    pub client_network: Option<(u128, u128)>,
    /// Unreachable sources within it; `None` if the list would be too long.
    pub unreachable: Option<Vec<UnreachableV6>>,
}

/// IPv6 ports, servers and pools.
#[derive(Debug, Default)]
pub struct Network6 {
    ports: ArrayVec<PortAddress, PORTS_MAX>,
    /// Addresses of the node.
    own_addresses: ArrayVec<u128, PORTS_MAX>,
    /// First address of each client network. Every router there has it (RFC 4291, 2.6.1).
    anycast: ArrayVec<u128, PORTS_MAX>,
    /// Networks of ports to clients: address, mask and port.
    client_networks: ArrayVec<(u128, u128, usize), PORTS_MAX>,
    /// Port with the router to clients on other networks, and the router's address.
    client_gateway: Option<(usize, u128)>,
    /// Values for checking sources, by port.
    sources: Vec<SourcesV6>,
    /// Router to clients on other networks: port, slot and digest of its address.
    gateway: Option<(usize, Slot, u32)>,
    /// Addresses of the servers by index; `None` for IPv4 addresses.
    servers: Vec<Option<u128>>,
    /// Numbers of the servers by address, sorted.
    numbers: Vec<(u128, u32)>,
    /// Members of each pool; empty if its servers have IPv4 addresses, `None` without servers.
    pools: Vec<Option<Vec<TargetV6>>>,
    /// Service address of each pool, if it is an IPv6 address.
    services: Vec<Option<u128>>,
    /// True for a spine: tasks arrive at the service addresses, not at the ports' own addresses.
    is_spine: bool,
    /// Fast-path templates of each port and pool.
    templates: Vec<TemplateV6>,
}

/// Destination of tasks for a pool's member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TargetV6 {
    /// Address of its server; 0 for a vacant place.
    pub ip: u128,
    /// Effect of address and choice on a datagram's checksum.
    pub udp_delta: FoldedDelta,
}

impl TargetV6 {
    /// Creates the target of a worker on the server with this address.
    fn new(worker: u16, ip: u128) -> Self {
        let choice = u32::from_be_bytes(task::choice_of(worker));
        let delta = ChecksumDelta::default().address(0, ip).straddling_double_word(0, choice);
        Self { ip, udp_delta: FoldedDelta::fold(delta) }
    }
}

impl Network6 {
    /// Adds the server at this index, with its address and its previous one.
    pub(super) fn add_host(&mut self, index: usize, ip: IpAddr, previous: Option<IpAddr>) {
        self.servers.resize(index, None);
        self.servers.push(bits(ip));
        self.numbers.extend(bits(ip).map(|ip| (ip, number_of_server(index))));
        self.numbers.extend(previous.and_then(bits).map(|ip| (ip, number_of_old(index))));
    }

    /// Adds the next pool. Its servers must have been added before.
    pub(super) fn add_pool(&mut self, pool: &NetworkPool) -> Result<(), NetworkError> {
        let address = |server: u16| self.servers.get(usize::from(server)).copied().flatten();
        let mut workers = pool.members.iter().flatten();
        let has_v6 = workers.clone().any(|&(_, server)| address(server).is_some());
        let has_v4 = workers.any(|&(_, server)| address(server).is_none());
        let id = pool.id.unwrap_or_default();
        if has_v4 && has_v6 {
            return Err(NetworkError::MixedFamilies(id));
        }
        self.services.push(pool.service.and_then(bits));
        let of_member = |place: &Option<(u16, u16)>| {
            let target = place.and_then(|(id, server)| Some(TargetV6::new(id, address(server)?)));
            target.unwrap_or_default()
        };
        self.pools.push(match (has_v4, has_v6) {
            (_, true) => Some(pool.members.iter().map(of_member).collect()),
            (true, false) => Some(Vec::new()),
            (false, false) => None,
        });
        Ok(())
    }

    /// Completes the tables after all servers and pools were added.
    pub(super) fn complete(
        &mut self,
        ports: &[PortAddress],
        (pools, least_ttls, is_spine): (&[NetworkPool], &[u8], bool),
        udp_port: u16,
        neighbours: &Neighbours,
    ) -> Result<(), NetworkError> {
        self.ports = ports.iter().copied().collect();
        self.is_spine = is_spine;
        self.own_addresses = ports.iter().filter_map(|port| Some(port.v6?.ip)).collect();
        let of_clients = ports.iter().enumerate().filter(|(_, port)| port.side.has_clients());
        let of_clients = of_clients.filter_map(|(index, port)| Some((index, port.v6?)));
        self.client_networks =
            of_clients.clone().map(|(index, port)| (port.ip, port.mask(), index)).collect();
        // Both addresses of a /127 network are hosts (RFC 6164).
        let has_anycast = |(_, port): &(usize, PortV6)| port.prefix < 127;
        let anycast = of_clients.clone().filter(has_anycast);
        self.anycast = anycast.map(|(_, port)| port.ip & port.mask()).collect();
        self.client_gateway = { of_clients }.find_map(|(index, port)| Some((index, port.gateway?)));
        // Two servers may have one address. `number` distinguishes them by the worker's server.
        self.numbers.sort_unstable();
        self.sources = ports.iter().map(|port| self.sources_at(port)).collect();
        let template = |port: usize, index: usize| {
            let pool = &pools[index];
            let common = CommonPackets {
                pool: pool.id.unwrap_or_default(),
                udp_port,
                task_address: self.task_address(port, index),
                clients: self.sources[port].client_network,
                least_hops: least_ttls[index],
                replies: (!is_spine).then_some(pool.authenticator.is_some()),
            };
            TemplateV6::new(&ports[port], &common)
        };
        let of_port = |port| (0..pools.len()).map(move |pool| (port, pool));
        let all = (0..ports.len()).flat_map(of_port);
        self.templates = all.map(|(port, pool)| template(port, pool)).collect();
        if let Some((port, address)) = self.client_gateway {
            let slot = neighbours.pin_v6(port, address).ok_or(NetworkError::TooManyNeighbours)?;
            self.gateway = Some((port, slot, neighbours.address(slot)));
        }
        Ok(())
    }

    /// Computes the values for checking the sources of tasks at a port.
    fn sources_at(&self, port: &PortAddress) -> SourcesV6 {
        let Some(port) = port.v6 else { return SourcesV6::default() };
        let of_port = |port: &PortAddress| {
            let v6 = port.v6?;
            let prefix = if port.side.has_clients() { 128 } else { v6.prefix.into() };
            Some(UnreachableV6::new(v6.ip, prefix))
        };
        let mut unreachable: Vec<_> = no_hosts_v6().into_iter().collect();
        unreachable.extend(self.ports.iter().filter_map(of_port));
        let is_listed =
            |list: &[UnreachableV6], address| list.iter().any(|range| range.is(address));
        let services = self.services.iter().flatten().filter(|_| self.is_spine);
        let servers = self.numbers.iter().map(|(address, _)| address);
        for &address in self.anycast.iter().chain(services).chain(servers) {
            if !is_listed(&unreachable, address) {
                unreachable.push(UnreachableV6::new(address, 128));
            }
        }
        let client_network =
            self.client_gateway.is_none().then(|| (port.ip & port.mask(), port.mask()));
        if let Some((network, mask)) = client_network {
            unreachable.retain(|range| (range.network ^ network) & range.mask & mask == 0);
        }
        let mut networks = unreachable.iter().map(|range| (range.network, range.mask)).collect();
        merge(&mut networks);
        let is_short = networks.len() <= UNREACHABLE_MAX;
        let source = |(network, mask)| UnreachableV6 { network, mask }.to_be();
        let unreachable = networks.into_iter().map(source).collect();
        SourcesV6 { client_network, unreachable: is_short.then_some(unreachable) }
    }

    /// Returns the values for checking the sources of tasks at a port.
    #[inline(always)]
    pub(super) fn sources(&self, port: usize) -> Option<&SourcesV6> {
        self.sources.get(port)
    }

    /// Returns the router to clients on other networks, if there is one: port, slot and digest of its
    /// address.
    #[must_use]
    pub fn gateway(&self) -> Option<(usize, Slot, u32)> {
        self.gateway
    }

    /// Returns true if the servers of the pool at this index have IPv6 addresses.
    #[inline]
    pub(super) fn has_pool(&self, pool: usize) -> bool {
        self.pools.get(pool).and_then(Option::as_ref).is_some_and(|members| !members.is_empty())
    }

    /// Returns true if IPv6 packets may concern the pool at this index: it has no IPv4 servers.
    pub(super) fn takes(&self, pool: usize) -> bool {
        self.pools.get(pool).and_then(Option::as_ref).is_none_or(|members| !members.is_empty())
    }

    /// Returns the address of the server of a pool's member; `None` for a vacant place.
    #[inline]
    pub(crate) fn member(&self, pool: usize, member: Member) -> Option<u128> {
        let target = self.members(pool).get(member.index()).filter(|target| target.ip != 0);
        target.map(|target| target.ip)
    }

    /// Returns the members of the pool at this index; empty for a pool with IPv4 servers.
    #[inline(always)]
    pub(super) fn members(&self, pool: usize) -> &[TargetV6] {
        self.pools.get(pool).and_then(Option::as_deref).unwrap_or_default()
    }

    /// Returns the fast-path template of a port and a pool (both by index).
    #[inline(always)]
    pub(super) fn template(&self, port: usize, pool: usize) -> Option<&TemplateV6> {
        self.templates.get(port * self.pools.len() + pool)
    }

    /// Returns the address at which tasks of a pool arrive on a port (both by index).
    fn task_address(&self, port: usize, pool: usize) -> u128 {
        let port_address = self.ports.get(port).and_then(|port| port.v6).map_or(0, |port| port.ip);
        self.service(pool).filter(|_| self.is_spine).unwrap_or(port_address)
    }

    /// Returns the IPv6 address to which clients send tasks of a pool (by index), if it is not the node's.
    pub(super) fn service(&self, pool: usize) -> Option<u128> {
        self.services.get(pool).copied().flatten()
    }

    /// Returns the checksum change of removing the destination of a pool's tasks on a port.
    pub(super) fn removed(&self, port: usize, pool: usize) -> FoldedDelta {
        FoldedDelta::fold(ChecksumDelta::default().address(self.task_address(port, pool), 0))
    }

    /// Returns true if the server at this index has this address.
    #[inline(always)]
    pub(super) fn is_at(&self, server: u16, address: u128) -> bool {
        self.servers.get(usize::from(server)) == Some(&Some(address))
    }

    /// Returns the number of a server with this address, or [`UNKNOWN_ADDRESS`]. Prefers `server`, for its present
    /// or previous address.
    pub(super) fn number(&self, address: u128, server: Option<u16>) -> u32 {
        if let Some(server) = server {
            let index = usize::from(server);
            if self.servers.get(index).copied().flatten() == Some(address) {
                return number_of_server(index);
            }
            let previous = (address, number_of_old(index));
            if self.numbers.binary_search(&previous).is_ok() {
                return previous.1;
            }
        }
        let index = self.numbers.partition_point(|&(known, _)| known < address);
        let entry = self.numbers.get(index).filter(|(known, _)| *known == address);
        entry.map_or(UNKNOWN_ADDRESS, |entry| entry.1)
    }

    /// Returns true if `address` is one of the node's own.
    #[inline(always)]
    pub(super) fn is_own(&self, address: u128) -> bool {
        self.own_addresses.contains(&address)
    }

    /// Returns the port that leads to a client's address, and the next hop there.
    #[inline(always)]
    pub(super) fn client_route(&self, address: u128) -> Option<(usize, u128)> {
        for &(network, mask, port) in &self.client_networks {
            if (address ^ network) & mask == 0 {
                return Some((port, address));
            }
        }
        self.client_gateway
    }

    /// Like [`super::Network::is_client`].
    pub(super) fn is_client(&self, address: u128) -> bool {
        let is_behind_workers = |port: &PortAddress| {
            !port.side.has_clients() && port.v6.is_some_and(|port| port.reaches(address))
        };
        let is_service = self.is_spine && self.services.contains(&Some(address));
        ipv6::is_unicast(address)
            && !self.is_own(address)
            && !self.anycast.contains(&address)
            && !is_service
            && self.number(address, None) == UNKNOWN_ADDRESS
            && !self.ports.iter().any(is_behind_workers)
            && self.client_route(address).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Network;
    use crate::stage::network::{FixedNetwork, Host, IpOptions};
    use crate::wire::ether::Mac;
    use std::net::Ipv6Addr;

    /// Parses an address.
    fn address(text: &str) -> u128 {
        text.parse::<Ipv6Addr>().unwrap().to_bits()
    }

    /// Port with a /64 network.
    fn port(ip: &str, side: Side, gateway: Option<&str>) -> PortAddress {
        let v6 = PortV6 { ip: address(ip), prefix: 64, gateway: gateway.map(address) };
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let ip_options = IpOptions::Refuse;
        PortAddress { mac, ip: 0, prefix: 0, side, gateway: None, ip_options, v6: Some(v6) }
    }

    /// Network with a pool of one worker on each server.
    fn network(servers: &[&str]) -> Result<Network, NetworkError> {
        let ports = vec![
            port("fd00:1::1", Side::Clients, Some("fe80::fe")),
            port("fd00:2::1", Side::Workers, None),
            PortAddress {
                ip: 0x0A00_0201,
                prefix: 24,
                v6: None,
                ..port("::", Side::Workers, None)
            },
        ];
        let host = |ip: &&str| {
            Some(Host { ip: ip.parse().unwrap(), mac: None, registers: false, was: None })
        };
        let hosts: Vec<_> = servers.iter().map(host).collect();
        let members = (0..servers.len() as u16).map(|at| Some((at, at))).collect();
        let pool = NetworkPool { id: Some(7), members, ..NetworkPool::default() };
        let base = FixedNetwork { udp_port: 1234, ports, ..FixedNetwork::default() };
        Network::with_places(base, &hosts, &[], &[pool], &Neighbours::heap(3, 8))
    }

    #[test]
    fn clients_are_distinguished_from_other_hosts() {
        let network = network(&["fd00:2::b"]).unwrap();
        let v6 = network.v6().unwrap();
        for (text, is_client) in [
            ("fd00:1::5", true),
            ("2001:db8::5", true),
            ("fd00:1::1", false),
            ("fd00:1::", false),
            ("fd00:2::b", false),
            ("fd00:2::c", false),
            ("fe80::5", false),
            ("ff02::1", false),
            ("::1", false),
            ("::", false),
            ("::ffff:10.0.0.1", false),
        ] {
            assert_eq!(v6.is_client(address(text)), is_client, "{text}");
        }
        assert_eq!(v6.client_route(address("fd00:1::5")), Some((0, address("fd00:1::5"))));
        assert_eq!(v6.client_route(address("2001:db8::5")), Some((0, address("fe80::fe"))));
        assert_eq!((v6.member(0, Member(0)), v6.has_pool(0)), (Some(address("fd00:2::b")), true));
        assert!(v6.takes(0) && !network.takes_v4(0));
        let worker = network.worker(0).unwrap();
        assert_eq!(v6.number(address("fd00:2::b"), Some(worker.server)), worker.ip);
        assert_eq!(v6.number(address("fd00:2::c"), Some(worker.server)), UNKNOWN_ADDRESS);
    }

    #[test]
    fn inconsistent_network_is_refused() {
        let error = network(&["fd00:2::b", "10.0.2.11"]).unwrap_err();
        assert_eq!(error, NetworkError::MixedFamilies(7));
        let error = network(&["fd00:3::b"]).unwrap_err();
        assert!(error.to_string().contains("fd00:3::b"), "{error}");
        let network = network(&["10.0.2.11"]).unwrap();
        assert!(network.takes_v4(0) && !network.v6().unwrap().takes(0));
    }
}
