//! Addresses of hosts, and the networks that they are in.

use std::net::{IpAddr, Ipv4Addr};

use crate::stage::PortV6;
use crate::wire::ipv6;

pub use crate::wire::ipv4::v4_bits;

/// The address of nobody, in place of one that was refused.
pub const UNSPECIFIED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A host's address. Of IPv4: not of 0.0.0.0/8 (nobody yet), 127.0.0.0/8 (this machine to itself), nor from 224.0.0.0 on (groups,
/// reserved addresses, broadcast). Of IPv6: not of ::/96 (nobody, this machine to itself) nor ::ffff:0:0/96 (IPv4's), fe80::/10 (of
/// one link alone) or ff00::/8 (groups).
pub fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets()[0], 1..=126 | 128..=223),
        IpAddr::V6(address) => ipv6::is_unicast(address.to_bits()),
    }
}

/// The same, or a host's address on one link alone, which routers have there.
pub fn is_routers(address: IpAddr) -> bool {
    let is_near = |address: IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => ipv6::is_link_local(address.to_bits()),
    };
    is_unicast(address) || is_near(address)
}

/// The first address of a network of this prefix, which is its own name, or the last, which means all of its hosts. Of IPv6 the
/// first, which means any router (RFC 4291, 2.6.1).
pub fn is_edge(address: IpAddr, prefix: u8) -> bool {
    match address {
        IpAddr::V4(address) => {
            let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            let host = address.to_bits() & hosts;
            prefix < 31 && (host == 0 || host == hosts)
        }
        IpAddr::V6(address) => {
            let hosts = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
            prefix < 127 && address.to_bits() & hosts == 0
        }
    }
}

/// Bits of an address of this family: the longest prefix.
pub fn prefix_max(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// What is allowed instead of the first or the last address of the network that `ip` is in.
pub fn within(ip: IpAddr, prefix: u8) -> String {
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

/// `address` is in the network of a port with this address.
pub fn reaches(ip: IpAddr, prefix: u8, address: IpAddr) -> bool {
    match (ip, address) {
        (IpAddr::V4(ip), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            (ip.to_bits() ^ address.to_bits()) & mask == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(address)) => {
            PortV6 { ip: ip.to_bits(), prefix, gateway: None }.reaches(address.to_bits())
        }
        _ => false,
    }
}
