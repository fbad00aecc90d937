//! Packets as clients, servers and attackers send them to the leaf of [`super::memory`].

use wedjat::wire::checksum::Sum;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{arp, ipv4};
use wedjat_pktgen::payload::Work;

use super::memory::{CLIENTS, LEAF_IPS, LEAF_MACS, POOL, SERVERS, WORKERS, server_of};

/// The attacker's MAC address among the clients.
pub const ATTACKER_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x66]);
/// The attacker's MAC address among the workers.
pub const INTRUDER_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x66]);
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 40_000;

/// A task of `src` with this header, which asks for `service_ns` of work.
#[must_use]
pub fn task(src: u32, header: &Header, app: u32, service_ns: u32) -> Vec<u8> {
    task_from((src, CLIENT_PORT), header, app, service_ns)
}

/// The same from this address and port.
#[must_use]
pub fn task_from(
    (src, src_port): (u32, u16),
    header: &Header,
    app: u32,
    service_ns: u32,
) -> Vec<u8> {
    let flow = Flow {
        src_mac: ATTACKER_MAC,
        dst_mac: LEAF_MACS[CLIENTS],
        src,
        dst: LEAF_IPS[CLIENTS],
        src_port,
        dst_port: wedjat::wire::task::UDP_PORT,
    };
    datagram(&flow, header, app, &Work { service_ns, operation: 1, seed: 0 }.bytes())
}

/// Inserts IPv4 options, whose length is a multiple of four, into a frame that has none.
#[must_use]
pub fn with_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    let header = ether::LEN..ether::LEN + ipv4::LEN + options.len();
    frame.splice(ether::LEN + ipv4::LEN..ether::LEN + ipv4::LEN, options.iter().copied());
    let packet = &mut frame[header];
    let total = u16::from_be_bytes([packet[2], packet[3]]) + options.len() as u16;
    packet[0] += (options.len() / 4) as u8;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[10..12].fill(0);
    let sum = Sum::default().bytes(packet).checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The first of a task's packets; the others never come.
#[must_use]
pub fn first_of_several(src: u32, seq: u16, app: u32) -> Vec<u8> {
    let header = Header { extended: true, more: true, ..Header::new_task(POOL, seq) };
    task(src, &header, app, 500_000)
}

/// What a server says to the leaf, or to a client through it, of one of its workers.
#[must_use]
pub fn from_server(worker: u16, header: &Header, to: u32, to_port: u16) -> Vec<u8> {
    let flow = Flow {
        src_mac: INTRUDER_MAC,
        dst_mac: LEAF_MACS[WORKERS],
        src: SERVERS[server_of(worker)],
        dst: to,
        src_port: wedjat::wire::task::UDP_PORT,
        dst_port: to_port,
    };
    datagram(&flow, header, 0, &[0; 8])
}

/// A reply of `worker` to `client` which says that the worker has `qlen` tasks.
#[must_use]
pub fn reply(worker: u16, qlen: u16, client: u32, seq: u16) -> Vec<u8> {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    let header = Header { code, src: worker, dst: 0, qlen, ..Header::new_task(POOL, seq) };
    from_server(worker, &header, client, CLIENT_PORT)
}

/// A frame with this header, the extension when the header has it, and `work` behind.
#[must_use]
pub fn datagram(flow: &Flow, header: &Header, app: u32, work: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; udp::PAYLOAD + header.len()];
    header.emit(&mut frame[udp::PAYLOAD..]);
    if header.extended {
        let seq32 = u32::from(header.seq);
        Extension { app, seq32, service_ns: 0, class: 1 }.emit(&mut frame[udp::PAYLOAD..]);
    }
    frame.extend_from_slice(work);
    let len = frame.len() - udp::PAYLOAD;
    flow.emit(&mut frame, len);
    frame
}

/// An ARP packet in a frame to `to`.
#[must_use]
pub fn arp(packet: &arp::Packet, to: Mac) -> Vec<u8> {
    let mut frame = vec![0; arp::FRAME_LEN];
    packet.emit(&mut frame, to);
    frame
}
