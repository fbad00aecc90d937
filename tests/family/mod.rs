//! IPv4 and IPv6 for tests that are of both: they speak of IPv4's addresses, and in IPv6's stead of each stands another, fd00:N::H for
//! 10.0.N.H. What nodes are given is turned into their family, and back what they give.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::net::{Ipv4Addr, Ipv6Addr};

use wedjat::wire::ether::{self, Mac};
use wedjat::wire::ndp;
use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{arp, ipv6};

/// What hosts speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// All that there are.
pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// What stands for 10.0.N.H.
pub fn v6(address: u32) -> u128 {
    let [.., network, host] = address.to_be_bytes();
    0xFD00 << 112 | u128::from(network) << 96 | u128::from(host)
}

/// What this stands for.
pub fn v4(address: u128) -> u32 {
    let [network, host] = [96, 0].map(|shift| (address >> shift) as u8);
    let stood_for = u32::from_be_bytes([10, 0, network, host]);
    assert_eq!(v6(stood_for), address, "{} stands for none", Ipv6Addr::from_bits(address));
    stood_for
}

impl Family {
    /// That of a node with this configuration.
    pub fn of(text: &str) -> Self {
        if text.contains("fd00:") { Self::V6 } else { Self::V4 }
    }

    /// A text with this family's addresses.
    pub fn text(self, text: &str) -> String {
        if self == Self::V4 {
            return text.to_owned();
        }
        let mut text = text.replace("/24", "/32");
        for network in 0..10 {
            // The longer first, of which others are the beginning.
            for host in (0..=255).rev() {
                let stood_for = Ipv4Addr::new(10, 0, network, host);
                let address = Ipv6Addr::from_bits(v6(stood_for.to_bits()));
                text = text.replace(&stood_for.to_string(), &address.to_string());
            }
        }
        text
    }

    /// A frame of IPv4 or ARP as this family has it.
    pub fn frame(self, frame: &[u8]) -> Vec<u8> {
        let ether_type = if frame.len() < ether::LEN { 0 } else { ether::ether_type(frame) };
        match (self, ether_type) {
            (Self::V6, ether::IPV4) => datagram(frame),
            (Self::V6, ether::ARP) => message(frame),
            _ => frame.to_vec(),
        }
    }
}

/// A datagram over IPv4 as one over IPv6.
fn datagram(frame: &[u8]) -> Vec<u8> {
    let datagram = udp::parse(frame, false).expect("a datagram");
    let payload = &frame[datagram.payload()..usize::from(datagram.end)];
    let mut bytes = [&[0; udp::PAYLOAD_V6], payload].concat();
    let flow = Flow {
        src_mac: ether::src(frame),
        dst_mac: ether::dst(frame),
        src: v6(datagram.src),
        dst: v6(datagram.dst),
        src_port: datagram.src_port,
        dst_port: datagram.dst_port,
    };
    flow.emit_v6(&mut bytes, payload.len());
    bytes
}

/// ARP as neighbour discovery.
fn message(frame: &[u8]) -> Vec<u8> {
    let packet = arp::Packet::parse(frame).expect("a packet");
    let (mac, src, target) = (packet.sender_mac, v6(packet.sender), v6(packet.target));
    let known = Some(ether::dst(frame)).filter(|to| *to != Mac::BROADCAST);
    let operation = ndp::Operation::Advertisement;
    let told = ndp::Packet { operation, src, dst: target, target: src, mac: Some(mac) };
    let (message, to) = match packet.operation {
        arp::Operation::Request => ndp::Packet::question(mac, src, target, known),
        arp::Operation::Reply => (told, ether::dst(frame)),
    };
    let mut bytes = vec![0; ndp::FRAME_LEN];
    message.emit(&mut bytes, to, false);
    bytes
}

/// A frame of either family as one of IPv4 or ARP; what is no datagram and no neighbour discovery stays as it is.
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

/// A message of neighbour discovery from one MAC address to another, as ARP.
fn as_arp(message: &ndp::Packet, from: Mac, to: Mac) -> Vec<u8> {
    let (mac, target) = (message.mac.unwrap_or(from), v4(message.target));
    let question = |asker, address| arp::Packet::request(asker, address, target);
    let (packet, to) = match message.operation {
        ndp::Operation::Solicitation if to.is_group() => {
            (question(mac, v4(message.src)), Mac::BROADCAST)
        }
        ndp::Operation::Solicitation => (question(mac, v4(message.src)), to),
        // Told to all, it is as a question of the speaker for its own address.
        ndp::Operation::Advertisement if ipv6::is_multicast(message.dst) => {
            (question(mac, target), Mac::BROADCAST)
        }
        ndp::Operation::Advertisement => (question(to, v4(message.dst)).answer(mac), to),
    };
    let mut bytes = vec![0; arp::FRAME_LEN];
    packet.emit(&mut bytes, to);
    bytes
}
