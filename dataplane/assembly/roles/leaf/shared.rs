//! A port shared by clients and workers. A client there may have a worker's address, but does not send from
//! its MAC address.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. `through` and `one` send a
//! packet to a port, poll the leaf 1 us later and receive from another port. `wait` polls after some nanoseconds.
//! `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply with its number of
//! remaining tasks. `assert_accounted` checks the ledger and the buffers at the end.

use wedjat_core::state::Presence;

use super::presence::{alive, join};
use super::*;

const FORGER_MAC: Mac = Mac([2, 0, 0, 0, 9, 9]);

/// Builds a leaf with a port for clients, and a port for clients and workers.
fn shared(policy: &str, servers_known: bool, registers: bool) -> Rig {
    let networks = Networks { sides: [Side::Clients, Side::Both], registers, key: None };
    // The client's MAC address is known. A port holds 256 packets, the leaf has one core, and its queue 64 places.
    rigs_on(networks, policy, servers_known, true, 256, 1, (64, Overflow::Drop)).remove(0)
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
        // Alone, a reply takes the fast path. Behind a packet that this path does not handle, it takes the
        // slow one.
        for behind_another in [false, true] {
            let mut rig = shared("jsq", true, true);
            let forged = sent_by(FORGER_MAC, message.clone());
            if behind_another {
                let mut question = [0; arp::FRAME_LEN];
                let (asker, own) = (CLIENT + 0x100, LEAF_WORKERS);
                arp::Packet::request(CLIENT_MAC, asker, own).emit(&mut question, Mac::BROADCAST);
                assert!(rig.far[WORKERS].send(&question));
            }
            assert!(rig.far[WORKERS].send(&forged));
            rig.poll();
            assert_eq!(rig.drops(), [("spoofed_reply", 1)], "{name}, {behind_another}");
            assert!(rig.receive(CLIENTS).is_empty(), "{name}: nothing goes on");
            let view = rig.leaf.stages().dispatcher(0).unwrap().view();
            assert_eq!(view.estimated_load(Member(1)), 0, "{name}: its queue is not believed");
            assert_eq!(view.presence(Member(1)), Presence::Unregistered, "{name}");
            let counters = [Counter::Replies, Counter::Registrations, Counter::KeepAlives];
            assert!(counters.iter().all(|&counter| rig.count(counter) == 0), "{name}");
            rig.assert_accounted();
        }
    }
}

#[test]
fn shared_port_accepts_its_own_server() {
    let mut rig = shared("jsq", true, false);
    let (_, header, _) = rig.one(CLIENTS, &task(1), WORKERS);
    let server = usize::from(header.dst - 10) / 4;
    let answer = sent_by(server_mac(server), reply(header.dst, 0));
    assert_eq!(rig.one(WORKERS, &answer, CLIENTS).1.src, header.dst);
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}

#[test]
fn unresolved_server_on_shared_port_is_refused() {
    let mut rig = shared("jsq", false, false);
    rig.receive(WORKERS);
    let forged = sent_by(FORGER_MAC, reply(11, 60));
    assert!(rig.through(WORKERS, &forged, CLIENTS).is_empty());
    assert_eq!(rig.drops(), [("spoofed_reply", 1)]);
    rig.assert_accounted();
}

#[test]
fn worker_port_identifies_workers_by_address() {
    let mut rig = rig("jsq");
    let (_, header, _) = rig.one(CLIENTS, &task(1), WORKERS);
    let answer = sent_by(FORGER_MAC, reply(header.dst, 0));
    assert_eq!(rig.one(WORKERS, &answer, CLIENTS).1.src, header.dst);
    assert_eq!(rig.drops(), []);
    rig.assert_accounted();
}
