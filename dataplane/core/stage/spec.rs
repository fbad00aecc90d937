//! Input of a network's tables: ports, hosts and pools. The control thread makes these values from the configuration
//! and the membership; [`Network::with_places`](super::Network::with_places) builds the tables from them.

use std::net::IpAddr;
use std::sync::Arc;

use super::auth::ReplyAuthenticator;
use crate::policy::signals::Protocol;
use crate::wire::address::Address;
use crate::wire::ether::Mac;
use crate::wire::ipv4;

/// Hosts behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Clients: tasks arrive, replies leave.
    Clients,
    /// Worker servers: tasks leave, replies arrive.
    Workers,
    /// Both.
    Both,
}

impl Side {
    /// Returns true if clients may be behind the port.
    #[inline]
    #[must_use]
    pub const fn has_clients(self) -> bool {
        matches!(self, Self::Clients | Self::Both)
    }

    /// Returns true if workers may be behind the port.
    #[inline]
    #[must_use]
    pub const fn has_workers(self) -> bool {
        matches!(self, Self::Workers | Self::Both)
    }
}

/// IPv4 options permitted in tasks.
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
    /// Returns true if the port permits these options.
    #[must_use]
    pub fn permit(self, options: &[u8]) -> bool {
        options.is_empty() || self == Self::Harmless && ipv4::are_harmless(options)
    }
}

/// Addresses of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAddress {
    /// MAC address of the node on this port.
    pub mac: Mac,
    /// IPv4 address of the node on this port.
    pub ip: u32,
    /// Length of the network's prefix in bits, 0 to 32.
    pub prefix: u8,
    /// Hosts behind the port.
    pub side: Side,
    /// Router to all other networks, if there is one.
    pub gateway: Option<u32>,
    /// IPv4 options permitted in tasks.
    pub ip_options: IpOptions,
    /// IPv6 address of the port, instead of `ip`, `prefix` and `gateway`, which then have no meaning.
    pub v6: Option<PortV6>,
}

impl PortAddress {
    /// Creates the addresses of a port without a gateway. IPv4 options are refused.
    #[must_use]
    pub fn new(mac: Mac, ip: IpAddr, prefix: u8, side: Side) -> Self {
        let (v4, v6) = match ip {
            IpAddr::V4(ip) => (ip.to_bits(), None),
            IpAddr::V6(ip) => (0, Some(PortV6 { ip: ip.to_bits(), prefix, gateway: None })),
        };
        Self { mac, ip: v4, prefix, side, gateway: None, ip_options: IpOptions::Refuse, v6 }
    }

    /// Returns the port's network, if it is of this family.
    #[must_use]
    pub fn network<A: Address>(&self) -> Option<PortNetwork<A>> {
        let (ip, prefix, gateway) = match self.v6 {
            None => (self.ip.to_ip(), self.prefix, self.gateway.map(Address::to_ip)),
            Some(v6) => (v6.ip.to_ip(), v6.prefix, v6.gateway.map(Address::to_ip)),
        };
        Some(PortNetwork { ip: A::from_ip(ip)?, prefix, gateway: gateway.and_then(A::from_ip) })
    }
}

/// Address of a port, and the network behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortNetwork<A> {
    /// Address of the node on the port.
    pub ip: A,
    /// Length of the network's prefix in bits.
    pub prefix: u8,
    /// Router to all other networks, if there is one.
    pub gateway: Option<A>,
}

impl<A: Address> PortNetwork<A> {
    /// Returns true if `address` is on this network.
    #[inline]
    #[must_use]
    pub fn reaches(&self, address: A) -> bool {
        (address ^ self.ip) & self.mask() == A::default()
    }

    /// Returns the mask of the network.
    pub(super) fn mask(&self) -> A {
        A::mask(self.prefix)
    }
}

/// IPv6 address of a port.
pub type PortV6 = PortNetwork<u128>;

/// Link of a leaf's pool to a spine: the leaf publishes the pool's load there, and the spine sends tasks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpineLink {
    /// Place of the spine: its index among the network's spines.
    pub spine: u16,
    /// Protocol: which signals the leaf sends, and when.
    pub protocol: Protocol,
}

/// Host of workers: input of [`Network::with_places`](super::Network::with_places).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Address.
    pub ip: IpAddr,
    /// MAC address; `None` if ARP must find it.
    pub mac: Option<Mac>,
    /// True if its workers register themselves.
    pub registers: bool,
    /// Address that the host had until a short time ago. Replies to packets sent there come from that
    /// address.
    pub former_ip: Option<IpAddr>,
}

/// Pool: input of [`Network::with_places`](super::Network::with_places).
#[derive(Clone, Debug, Default)]
pub struct NetworkPool {
    /// Pool id; `None` if there is no pool.
    pub id: Option<u16>,
    /// True if the pool takes no new tasks. Its workers complete the tasks that they have.
    pub is_closed: bool,
    /// Places of its members: worker id and index of the host, or `None` for a free place.
    pub members: Vec<Option<(u16, u16)>>,
    /// Authenticator of its workers' messages; `None` if they need no proof.
    pub authenticator: Option<Arc<ReplyAuthenticator>>,
    /// Address to which clients send tasks, if it is not the node's. At a spine tasks arrive at it; at a leaf
    /// replies come from it.
    pub service: Option<IpAddr>,
    /// Link to a spine, at a leaf.
    pub link: Option<SpineLink>,
    /// True if the workers' servers answer the clients themselves, at a leaf. Tasks then keep the destination to
    /// which the client sent them, which is the source of the reply.
    pub is_direct: bool,
}

/// Part of a network that stays the same while the node runs.
#[derive(Clone, Debug, Default)]
pub struct FixedNetwork {
    /// UDP port of the node for tasks.
    pub udp_port: u16,
    /// Node id, used in its own messages.
    pub node: u16,
    /// Ports of the node.
    pub ports: Vec<PortAddress>,
    /// Port to workers inside this process, which need no proof.
    pub local_port: Option<usize>,
    /// True for a spine, whose members are leaves. One leaf may be a member of several pools.
    pub is_spine: bool,
    /// True if tasks and reports are passed as values, without packets. Hosts then need no MAC addresses, and
    /// the node does not resolve them.
    pub is_embedded: bool,
}

/// Reason why a network is invalid.
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
    /// A pool has servers of both IP versions.
    #[error(
        "pool {0} has servers with IPv4 and servers with IPv6 addresses; use one kind for a pool"
    )]
    MixedFamilies(u16),
    /// The service address or spine of a pool has another IP version than its servers.
    #[error(
        "pool {0} has {1} for a {2}, and servers of the other of IPv4 and IPv6; use one kind for clients, spines and servers of a pool"
    )]
    OtherFamily(u16, IpAddr, &'static str),
    /// A pool whose servers answer the clients themselves has a server behind a router, which would return the tasks.
    #[error(
        "pool {0} has `replies = \"direct\"`, and a router is the next hop to its server {1}; give that server an address in \
         the network of a port, or leave `replies` out"
    )]
    DirectRouted(u16, IpAddr),
    /// A pool whose servers answer the clients themselves has several addresses to which clients may send tasks, or
    /// none.
    #[error(
        "pool {0} has `replies = \"direct\"`, and clients reach the leaf at {1} addresses of its servers' IP version, not 1; \
         use one port for clients, or leave `replies` out"
    )]
    DirectAddresses(u16, usize),
    /// A pool whose servers answer the clients themselves has workers on a core of the leaf.
    #[error(
        "pool {0} has `replies = \"direct\"`, and workers on a core of the leaf, whose replies the leaf sends; use a pool of \
         its own for them, or leave `replies` out"
    )]
    DirectLocal(u16),
    /// The neighbour table has no room for all next hops: to servers, spines and gateways.
    #[error("more servers than the neighbour table has room for")]
    TooManyNeighbours,
}
