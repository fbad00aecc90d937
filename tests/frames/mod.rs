//! Frames and network shared by tests of a whole leaf: a client, two servers of four workers each, pool 7. A server
//! is a host of workers; a pool is a set of workers with one scheduling policy.

#![allow(dead_code, reason = "not every test uses all of it")]

use wedjat::wire::arp;
use wedjat::wire::ether::Mac;
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{Flow, PAYLOAD};

/// The leaf's address towards clients, 10.0.1.1.
pub const LEAF_CLIENTS: u32 = 0x0A00_0101;
/// The client's address, 10.0.1.2.
pub const CLIENT: u32 = 0x0A00_0102;
/// Addresses of the servers, 10.0.2.11 and 10.0.2.12.
pub const SERVERS: [u32; 2] = [0x0A00_020B, 0x0A00_020C];
pub const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
/// MAC addresses of the leaf's ports, the one to clients first.
pub const LEAF_MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
pub const POOL: u16 = 7;
/// Lowest worker id. The first server has workers 10 to 13, the second 14 to 17.
pub const FIRST_WORKER: u16 = 10;

/// Returns a frame of this flow: a task header, then nine zero bytes as the data of the task or the reply.
fn frame(flow: &Flow, header: &Header) -> Vec<u8> {
    let payload_len = header.len() + 9;
    let mut frame = vec![0; PAYLOAD + payload_len];
    header.emit(&mut frame[PAYLOAD..]);
    flow.emit(&mut frame, payload_len);
    frame
}

/// Returns the MAC address that tests give the server with this address: 02:00:00:00:N:H for 10.0.N.H.
pub fn mac_of(ip: u32) -> Mac {
    let [_, _, net, host] = ip.to_be_bytes();
    Mac([2, 0, 0, 0, net, host])
}

/// Returns the ARP reply that claims the requested address for `mac`.
pub fn arp_answer(ask: &arp::Packet, mac: Mac) -> Vec<u8> {
    let answer = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac: mac,
        sender: ask.target,
        target_mac: ask.sender_mac,
        target: ask.sender,
    };
    let mut bytes = vec![0; arp::FRAME_LEN];
    answer.emit(&mut bytes, ask.sender_mac);
    bytes
}

/// Returns a client's packet of a task.
pub fn task(header: Header) -> Vec<u8> {
    let flow = Flow {
        src_mac: CLIENT_MAC,
        dst_mac: LEAF_MACS[0],
        src: CLIENT,
        dst: LEAF_CLIENTS,
        src_port: 40_000,
        dst_port: 1234,
    };
    frame(&flow, &header)
}

/// Returns a worker's reply to task 1 of client id 0, with the queue length `qlen`. Its destination is the client's
/// address, at the leaf's MAC address `to`.
pub fn reply(worker: u16, qlen: u16, to: Mac) -> Vec<u8> {
    let code = if qlen == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
    reply_to(Header { code, src: worker, dst: 0, qlen, ..Header::new_task(POOL, 1) }, to)
}

/// Returns the reply with this header. Its destination is the client's address, at the leaf's MAC address `to`. The
/// source address is that of the worker's server; the source MAC address is always the first server's.
pub fn reply_to(header: Header, to: Mac) -> Vec<u8> {
    let flow = Flow {
        src_mac: Mac([2, 0, 0, 0, 2, 11]),
        dst_mac: to,
        src: SERVERS[usize::from(header.src - FIRST_WORKER) / 4],
        dst: CLIENT,
        src_port: 1234,
        dst_port: 40_000,
    };
    frame(&flow, &header)
}
