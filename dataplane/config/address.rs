//! Addresses of hosts, and the networks that they are in.

use std::net::Ipv4Addr;

use crate::stage::{PortAddress, Side};
use crate::wire::ether::Mac;

/// A host's address: not of 0.0.0.0/8 (nobody yet), 127.0.0.0/8 (this machine to itself), nor from 224.0.0.0 on (groups,
/// reserved addresses, broadcast).
pub fn is_unicast(address: Ipv4Addr) -> bool {
    matches!(address.octets()[0], 1..=126 | 128..=223)
}

/// The first address of a network of this prefix, which is its own name, or the last, which means all of its hosts.
pub fn is_edge(address: Ipv4Addr, prefix: u8) -> bool {
    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let host = address.to_bits() & hosts;
    prefix < 31 && (host == 0 || host == hosts)
}

/// What is allowed instead of the first or the last address of the network that `ip` is in.
pub fn within(ip: Ipv4Addr, prefix: u8) -> String {
    format!("a host's address in {ip}/{prefix}: not the network's first or last, nor {ip} itself")
}

/// `address` is in the network of a port with this address.
pub fn reaches(ip: Ipv4Addr, prefix: u8, address: Ipv4Addr) -> bool {
    let port = PortAddress {
        mac: Mac::default(),
        ip: ip.to_bits(),
        prefix,
        side: Side::Both,
        gateway: None,
    };
    port.reaches(address.to_bits())
}
