//! IPv4 and IPv6 for tests of both families. The tests use IPv4 addresses; over IPv6, fd00:N::H replaces
//! 10.0.N.H. Frames to nodes are translated to their family, and frames from nodes back.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::{Ipv4Addr, Ipv6Addr};

use wedjat::wire::ether::{self, Mac};
use wedjat::wire::ndp;
use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{arp, ipv6};

/// Address family of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// All families.
pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// Returns the IPv6 address that replaces 10.0.N.H.
pub fn v6(address: u32) -> u128 {
    let [.., network, host] = address.to_be_bytes();
    0xFD00 << 112 | u128::from(network) << 96 | u128::from(host)
}

/// Returns the IPv4 address that this one replaces. Panics if there is none.
pub fn v4(address: u128) -> u32 {
    let [network, host] = [96, 0].map(|shift| (address >> shift) as u8);
    let replaced = u32::from_be_bytes([10, 0, network, host]);
    assert_eq!(v6(replaced), address, "{} replaces no address", Ipv6Addr::from_bits(address));
    replaced
}

impl Family {
    /// Returns the family of a node with this configuration.
    pub fn of(text: &str) -> Self {
        if text.contains("fd00:") { Self::V6 } else { Self::V4 }
    }

    /// Returns the text with addresses of this family in place of 10.0.0.0 to 10.0.9.255, and with its prefix lengths.
    pub fn text(self, text: &str) -> String {
        if self == Self::V4 {
            return text.to_owned();
        }
        // The number of the network ends at bit 24 of an IPv4 address and at bit 32 of an IPv6 address.
        let mut text = text.replace("/24", "/32");
        for network in 0..10 {
            // Longer addresses first, because shorter ones are prefixes of them.
            for host in (0..=255).rev() {
                let replaced = Ipv4Addr::new(10, 0, network, host);
                let address = Ipv6Addr::from_bits(v6(replaced.to_bits()));
                text = text.replace(&replaced.to_string(), &address.to_string());
            }
        }
        text
    }

    /// Translates a UDP frame of IPv4 or an ARP frame to this family. Panics over IPv6 if such a frame is invalid.
    /// Frames of other EtherTypes stay unchanged.
    pub fn frame(self, frame: &[u8]) -> Vec<u8> {
        let ether_type = if frame.len() < ether::LEN { 0 } else { ether::ether_type(frame) };
        match (self, ether_type) {
            (Self::V6, ether::IPV4) => datagram(frame),
            (Self::V6, ether::ARP) => message(frame),
            _ => frame.to_vec(),
        }
    }
}

/// Translates a frame with a UDP datagram from IPv4 to IPv6.
fn datagram(frame: &[u8]) -> Vec<u8> {
    let datagram = udp::parse(frame, false).expect("a datagram");
    let payload = &frame[datagram.payload()..usize::from(datagram.end)];
    let mut bytes = [&[0; udp::PAYLOAD_V6], payload].concat();
    let (src_mac, dst_mac) = (ether::src(frame), ether::dst(frame));
    let udp::Datagram { src, dst, src_port, dst_port, .. } = datagram;
    let flow = flow(&Flow { src_mac, dst_mac, src, dst, src_port, dst_port });
    flow.emit_v6(&mut bytes, payload.len());
    bytes
}

/// Translates the addresses of a datagram from IPv4 to IPv6. MAC addresses and UDP ports stay.
pub fn flow(flow_v4: &Flow) -> Flow<u128> {
    let &Flow { src_mac, dst_mac, src, dst, src_port, dst_port } = flow_v4;
    Flow { src_mac, dst_mac, src: v6(src), dst: v6(dst), src_port, dst_port }
}

/// Translates an ARP frame to neighbour discovery: a request to a solicitation, and a reply to an advertisement.
fn message(frame: &[u8]) -> Vec<u8> {
    let packet = arp::Packet::parse(frame).expect("a packet");
    let (mac, src, target) = (packet.sender_mac, v6(packet.sender), v6(packet.target));
    // A unicast request asks a host whose MAC address is known.
    let known = Some(ether::dst(frame)).filter(|to| *to != Mac::BROADCAST);
    let operation = ndp::Operation::Advertisement;
    let answer = ndp::Packet { operation, src, dst: target, target: src, mac: Some(mac) };
    let (message, to) = match packet.operation {
        arp::Operation::Request => ndp::Packet::question(mac, src, target, known),
        arp::Operation::Reply => (answer, ether::dst(frame)),
    };
    let mut bytes = vec![0; ndp::FRAME_LEN];
    message.emit(&mut bytes, to, false);
    bytes
}

/// Translates a UDP frame of either family to IPv4, and neighbour discovery to ARP. Other frames stay unchanged.
pub fn as_v4(frame: &[u8]) -> Vec<u8> {
    if frame.len() < ether::LEN || ether::ether_type(frame) != ether::IPV6 {
        return frame.to_vec();
    }
    if let Ok(message) = ndp::Packet::parse(frame) {
        return as_arp(&message, ether::src(frame), ether::dst(frame));
    }
    let Ok(datagram) = udp::parse_v6(frame, false) else { return frame.to_vec() };
    let payload = &frame[datagram.payload()..usize::from(datagram.end)];
    let mut bytes = [&[0; udp::PAYLOAD], payload].concat();
    let flow = Flow {
        src_mac: ether::src(frame),
        dst_mac: ether::dst(frame),
        src: v4(datagram.src),
        dst: v4(datagram.dst),
        src_port: datagram.src_port,
        dst_port: datagram.dst_port,
    };
    flow.emit(&mut bytes, payload.len());
    bytes
}

/// Translates a message of neighbour discovery between two MAC addresses to ARP. A solicitation becomes a request,
/// broadcast if it went to a group, and an advertisement a reply.
fn as_arp(message: &ndp::Packet, from: Mac, to: Mac) -> Vec<u8> {
    let (mac, target) = (message.mac.unwrap_or(from), v4(message.target));
    let question = |asker, address| arp::Packet::request(asker, address, target);
    let (packet, to) = match message.operation {
        ndp::Operation::Solicitation if to.is_group() => {
            (question(mac, v4(message.src)), Mac::BROADCAST)
        }
        ndp::Operation::Solicitation => (question(mac, v4(message.src)), to),
        // An advertisement to all nodes corresponds to a gratuitous ARP request.
        ndp::Operation::Advertisement if ipv6::is_multicast(message.dst) => {
            (question(mac, target), Mac::BROADCAST)
        }
        ndp::Operation::Advertisement => (question(to, v4(message.dst)).answer(mac), to),
    };
    let mut bytes = vec![0; arp::FRAME_LEN];
    packet.emit(&mut bytes, to);
    bytes
}
