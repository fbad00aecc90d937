//! Addresses of hosts and their networks, for the checks of configuration files and of changes at run time.

use std::net::{IpAddr, Ipv4Addr};

use wedjat_core::stage::PortV6;
use wedjat_core::wire::ipv6;

pub use wedjat_core::wire::ipv4::v4_bits;

/// Unspecified address. It replaces a refused one, so that the checks can go on.
pub const UNSPECIFIED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Returns true for the address of one host.
///
/// For IPv4, refuses 0.0.0.0/8 (unspecified), 127.0.0.0/8 (loopback), and all from 224.0.0.0 on (multicast,
/// reserved, broadcast). For IPv6, refuses ::/96 (unspecified, loopback), ::ffff:0:0/96 (IPv4-mapped),
/// fe80::/10 (link-local) and ff00::/8 (multicast).
pub fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets()[0], 1..=126 | 128..=223),
        IpAddr::V6(address) => ipv6::is_unicast(address.to_bits()),
    }
}

/// Like [`is_unicast`], but also accepts IPv6 link-local addresses, which routers use.
pub fn is_routers(address: IpAddr) -> bool {
    let is_link_local_v6 = |address: IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => ipv6::is_link_local(address.to_bits()),
    };
    is_unicast(address) || is_link_local_v6(address)
}

/// Returns true for the first address of the network, which names the network, and for the last, its
/// broadcast address. For IPv6 only the first counts: it is the subnet-router anycast address (RFC 4291,
/// 2.6.1).
pub fn is_edge(address: IpAddr, prefix: u8) -> bool {
    // A network of two addresses has two hosts (RFC 3021, RFC 6164); one of a single address has one.
    match address {
        IpAddr::V4(address) => {
            // Ones in the bits behind the prefix; none for the longest prefix.
            let host_mask = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            let host = address.to_bits() & host_mask;
            prefix < 31 && (host == 0 || host == host_mask)
        }
        IpAddr::V6(address) => {
            let host_mask = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
            prefix < 127 && address.to_bits() & host_mask == 0
        }
    }
}

/// Returns the number of bits in an address of this family: the longest prefix.
pub fn prefix_max(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Describes the addresses that another host may have in the network of a port with the address `ip`, for messages
/// that refuse a server's, leaf's or gateway's address.
pub fn allowed_hosts(ip: IpAddr, prefix: u8) -> String {
    match ip {
        IpAddr::V4(_) => {
            format!(
                "a host's address in {ip}/{prefix}: not the network's first or last, nor {ip} itself"
            )
        }
        IpAddr::V6(_) => {
            format!(
                "a host's address in {ip}/{prefix}: not the network's first, nor {ip} itself; a router's may be of fe80::/10"
            )
        }
    }
}

/// Returns true if `address` is in the network of a port with the address `ip`, so that no router is needed. Only
/// compares prefixes: a link-local address is in no network of another prefix.
pub fn reaches(ip: IpAddr, prefix: u8, address: IpAddr) -> bool {
    match (ip, address) {
        (IpAddr::V4(ip), IpAddr::V4(address)) => {
            // Ones in the bits of the prefix; none for prefix 0.
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            (ip.to_bits() ^ address.to_bits()) & mask == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(address)) => {
            PortV6 { ip: ip.to_bits(), prefix, gateway: None }.reaches(address.to_bits())
        }
        _ => false,
    }
}
