//! Rigs with hosts of IPv4 or IPv6, for tests of both families. Tests write IPv4 addresses and frames. The functions
//! here translate them to the rig's family, and its frames back to IPv4. A `Rig` is one core of a leaf in memory, with
//! the far ends of its ports (`far`).

use wedjat_core::io::Buf;
use wedjat_core::wire::arp;

use super::*;

pub use crate::roles::translated::{BOTH, Family};
use crate::roles::translated::{as_v4, v6};

/// Parses a UDP datagram of either family, and its task header; `None` for any other frame. The returned addresses are
/// IPv4. Panics if the task header is invalid.
pub fn read(frame: &Frame) -> Option<(udp::Datagram, Header)> {
    let bytes = as_v4(frame.bytes());
    let datagram = udp::parse(&bytes, false).ok()?;
    let header = Header::parse(&bytes[datagram.payload()..]).unwrap();
    Some((datagram, header))
}

/// Returns the extension of the task header in a UDP datagram of either family.
pub fn read_extension(frame: &Frame) -> Extension {
    let bytes = as_v4(frame.bytes());
    Extension::parse(&bytes[udp::PAYLOAD..])
}

/// Parses an ARP frame, or a neighbour discovery frame as if it were ARP. Returns it with its destination MAC address;
/// `None` for any other frame.
pub fn read_arp(frame: &Frame) -> Option<(arp::Packet, Mac)> {
    let bytes = as_v4(frame.bytes());
    let is_arp = ether::ether_type(&bytes) == ether::ARP;
    arp::Packet::parse(&bytes).ok().filter(|_| is_arp).map(|packet| (packet, ether::dst(&bytes)))
}

/// Stores the client's MAC address in the neighbour table, so that the leaf need not resolve it.
pub fn introduce(neighbours: &Neighbours, family: Family) {
    let slot = match family {
        Family::V4 => neighbours.insert(CLIENTS, CLIENT, 0),
        Family::V6 => neighbours.insert(CLIENTS, v6(CLIENT), 0),
    };
    neighbours.set_static(slot, CLIENT_MAC);
}

impl Rig {
    /// Returns the family of hosts behind a port.
    pub fn family(&self, port: usize) -> Family {
        match self.leaf.stages().network().port(port).v6 {
            None => Family::V4,
            Some(_) => Family::V6,
        }
    }

    /// Delivers an IPv4 or ARP frame to a port, translated to its family. Does not poll.
    pub fn send(&mut self, port: usize, frame: &[u8]) {
        let frame = self.family(port).frame(frame);
        assert!(self.far[port].send(&frame));
    }

    /// Returns the slot in the neighbour table of the host with this IPv4 address, or its translation; `None` if the
    /// leaf does not know the host.
    pub fn slot(&self, port: usize, address: u32) -> Option<Slot> {
        let neighbours = self.leaf.stages().neighbours();
        match self.family(port) {
            Family::V4 => neighbours.find(port, address),
            Family::V6 => neighbours.find(port, v6(address)),
        }
    }
}

#[test]
fn rig_hosts_use_the_requested_family() {
    for family in BOTH {
        let mut rig = rig_of(family, "horus");
        assert_eq!([CLIENTS, WORKERS].map(|port| rig.family(port)), [family; 2]);
        let frame = rig.through(CLIENTS, &task(1), WORKERS).remove(0);
        let ether_type = if family == Family::V4 { ether::IPV4 } else { ether::IPV6 };
        assert_eq!(ether::ether_type(frame.bytes()), ether_type);
        drop(frame);
        rig.assert_accounted();
    }
}
