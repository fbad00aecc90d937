//! A port shared by clients and workers, and a port for workers only.
//!
//! On the shared port a client might forge a worker's packet, from the IP address of the worker's server. There the
//! leaf also checks that a worker's packet comes from the server's MAC address.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `assert_accounted` ends the leaf. Then it checks that each received packet was
//! sent on, consumed or dropped, and that every buffer is back.

use wedjat_core::state::MemberPresence;

use super::presence::{alive, join};
use super::*;

/// Port for clients and workers.
const SHARED: usize = WORKERS;
/// 10.0.2.2, a client on the network of the shared port.
const SHARED_CLIENT: u32 = CLIENT + 0x100;
/// MAC address of no server.
const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 9, 9]);

/// Builds a leaf with a port for clients, and a port for clients and workers. The leaf knows the servers' MAC addresses
/// from the start, or must resolve them. `registers` is true if the servers register their workers.
fn shared(policy: &str, server_macs_known: bool, registers: bool) -> Rig {
    let networks = Networks { sides: [Side::Clients, Side::Both], registers, key: None };
    // The client's MAC address is known. The leaf has one core. A port holds 256 packets, the pool's queue 64 tasks.
    rigs_on(networks, policy, server_macs_known, true, 256, 1, (64, Overflow::Drop)).remove(0)
}

/// Returns the same packet from another MAC address.
fn sent_by(mac: Mac, mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&mac.0);
    frame
}

/// Returns the messages of worker 11 that change the leaf's state. All report 60 tasks.
fn messages() -> [(&'static str, Vec<u8>); 3] {
    [("reply", reply(11, 60)), ("registration", join(11, 60)), ("keep-alive", alive(11, 60))]
}

// promise: trust.2
#[test]
fn shared_port_requires_the_servers_mac_address() {
    for (name, message) in messages() {
        // The fast path handles the common packets at the front of a burst. A lone reply takes the fast path. Behind a
        // packet that is not common, a reply takes the slow path. Registrations and keep-alives always do.
        for behind_another in [false, true] {
            let mut rig = shared("jsq", true, true);
            let forged = sent_by(OTHER_MAC, message.clone());
            if behind_another {
                let mut question = [0; arp::FRAME_LEN];
                let leaf_ip = LEAF_WORKERS;
                arp::Packet::request(CLIENT_MAC, SHARED_CLIENT, leaf_ip)
                    .emit(&mut question, Mac::BROADCAST);
                assert!(rig.far[SHARED].send(&question));
            }
            assert!(rig.far[SHARED].send(&forged));
            rig.poll();
            assert_eq!(rig.drops(), [("spoofed_reply", 1)], "{name}, {behind_another}");
            assert!(rig.receive(CLIENTS).is_empty(), "{name}: the leaf forwards nothing");
            let view = rig.leaf.stages().dispatcher(0).unwrap().view();
            assert_eq!(view.estimated_load(Member(1)), 0, "{name}: the leaf ignores its load");
            assert_eq!(view.presence(Member(1)), MemberPresence::Unregistered, "{name}");
            let counters = [Counter::Replies, Counter::Registrations, Counter::KeepAlives];
            assert!(counters.iter().all(|&counter| rig.count(counter) == 0), "{name}");
            rig.assert_accounted();
        }
    }
}

#[test]
fn shared_port_accepts_the_servers_mac_address() {
    let mut rig = shared("jsq", true, false);
    let (_, header, _) = rig.one(CLIENTS, &task(1), SHARED);
    let server = usize::from(header.dst - 10) / 4;
    let answer = sent_by(server_mac(server), reply(header.dst, 0));
    assert_eq!(rig.one(SHARED, &answer, CLIENTS).1.src, header.dst);
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}

#[test]
fn unresolved_server_on_shared_port_is_refused() {
    let mut rig = shared("jsq", false, false);
    rig.receive(SHARED);
    let forged = sent_by(OTHER_MAC, reply(11, 60));
    assert!(rig.through(SHARED, &forged, CLIENTS).is_empty());
    assert_eq!(rig.drops(), [("spoofed_reply", 1)]);
    rig.assert_accounted();
}

#[test]
fn worker_port_identifies_workers_by_address() {
    // The port is for workers only, so the leaf does not check the MAC address.
    let mut rig = rig("jsq");
    let (_, header, _) = rig.one(CLIENTS, &task(1), WORKERS);
    let answer = sent_by(OTHER_MAC, reply(header.dst, 0));
    assert_eq!(rig.one(WORKERS, &answer, CLIENTS).1.src, header.dst);
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}
