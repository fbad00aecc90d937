//! Packets to the leaf of [`super::memory`]. Tasks and replies have any IP source, and the attacker's MAC address.

use wedjat::wire::checksum::PartialChecksum;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header};
use wedjat::wire::udp::{self, Flow};
use wedjat::wire::{arp, ipv4};
use wedjat_pktgen::payload::Work;

use super::memory::{
    ATTACKER_MAC, CLIENTS, INTRUDER_MAC, LEAF_IPS, LEAF_MACS, POOL, SERVERS, WORKERS, server_of,
};

/// UDP port of clients.
pub const CLIENT_PORT: u16 = 40_000;

/// Builds a task from `src` with this header and `service_ns` of work. `app` is the application id in the header's
/// extension, if it has one.
#[must_use]
pub fn task(src: u32, header: &Header, app: u32, service_ns: u32) -> Vec<u8> {
    task_from((src, CLIENT_PORT), header, app, service_ns)
}

/// Like [`task`], with a source address and port.
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

/// Inserts IPv4 options, whose length is a multiple of four, into a frame without options. Corrects header length
/// (byte 0), total length (bytes 2 and 3) and header checksum (bytes 10 and 11).
#[must_use]
pub fn with_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    let header = ether::LEN..ether::LEN + ipv4::LEN + options.len();
    frame.splice(ether::LEN + ipv4::LEN..ether::LEN + ipv4::LEN, options.iter().copied());
    let packet = &mut frame[header];
    let total = u16::from_be_bytes([packet[2], packet[3]]) + options.len() as u16;
    packet[0] += (options.len() / 4) as u8;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[10..12].fill(0);
    let sum = PartialChecksum::default().bytes(packet).checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Builds the first packet of a multi-packet task whose other packets never come.
#[must_use]
pub fn first_of_several(src: u32, seq: u16, app: u32) -> Vec<u8> {
    let header = Header { extended: true, more: true, ..Header::new_task(POOL, seq) };
    task(src, &header, app, 500_000)
}

/// Builds a packet in the name of a worker's server to the leaf, or through it to a client. It has the server's IP
/// address and the attacker's MAC address.
#[must_use]
pub fn from_server(worker: u16, header: &Header, dst: u32, dst_port: u16) -> Vec<u8> {
    let flow = Flow {
        src_mac: INTRUDER_MAC,
        dst_mac: LEAF_MACS[WORKERS],
        src: SERVERS[server_of(worker)],
        dst,
        src_port: wedjat::wire::task::UDP_PORT,
        dst_port,
    };
    datagram(&flow, header, 0, &[0; 8])
}

/// Builds a reply to `client` in the name of `worker` that reports `qlen` tasks.
#[must_use]
pub fn reply(worker: u16, qlen: u16, client: u32, seq: u16) -> Vec<u8> {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    let header = Header { code, src: worker, dst: 0, qlen, ..Header::new_task(POOL, seq) };
    from_server(worker, &header, client, CLIENT_PORT)
}

/// Builds a frame with this header, the extension if the header has it, and `work`. `app` is the application id in
/// the extension.
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

/// Builds a frame to `dst` with an ARP packet.
#[must_use]
pub fn arp(packet: &arp::Packet, dst: Mac) -> Vec<u8> {
    let mut frame = vec![0; arp::FRAME_LEN];
    packet.emit(&mut frame, dst);
    frame
}
