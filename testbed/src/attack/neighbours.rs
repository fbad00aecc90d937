//! ARP: storms of invented and conflicting claims, and hosts that vanish, return elsewhere, or are
//! unreachable. A [`Rig`] is a leaf in memory among emulated clients and workers.

use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat::state::Member;
use wedjat::wire::arp::{Operation, Packet};
use wedjat::wire::ether::Mac;
use wedjat::wire::task::Header;

use super::rigs::memory::{
    ATTACKER_MAC, CLIENTS, HONEST, HONEST_RATE, INTRUDER_MAC, LEAF_IPS, LEAF_MACS, POOL, Pace,
    RETURNED, Rig, SECOND, SERVERS, STEP, Setup, WORKERS,
};
use super::rigs::packets;
use super::{Account, Attack, Budget, Failure, attack_table};

/// ARP packets per second of emulated time on each side.
const RATE: f64 = 50_000.0;
/// Number of invented senders among the clients: more than the leaf's neighbour cache holds.
const SENDERS: u32 = 60_000;
/// Time within which a returned host must be found, ns.
const FOUND_WITHIN: u64 = 5 * SECOND;
/// Policies of all attacks except `arp-cost`: one that chooses by load, and one that queues tasks.
const POLICIES: [&str; 2] = ["horus", "jbsq(k=2)"];
/// Maximum cost of a packet, as a multiple of its usual cost.
const COST_RATIO: f64 = 1.5;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "arp-storm" Memory => storm,
        "50,000 ARP packets a second on each side: invented senders, conflicting claims for live hosts, unused \
         addresses";
    "servers-return" Memory => servers_return, "all servers return with new MAC addresses, and send no ARP themselves";
    "client-returns" Memory => client_returns, "a client returns with a new MAC address, and sends no ARP itself";
    "unreachable-server" Memory => unreachable_server, "a server is absent, and appears later";
    "arp-cost" Clock => cost, "cost of a packet while 60,000 invented senders ask, in real time";
};

/// Returns the frame of ARP packet number `number` on a side (port of the leaf). The packet claims an
/// address, or asks for one.
fn claim(side: usize, number: u32, random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let attacker = [ATTACKER_MAC, INTRUDER_MAC][side];
    let invented = invented(side, number);
    let mac = Mac([2, 9, side as u8, (number >> 16) as u8, (number >> 8) as u8, number as u8]);
    let (leaf, leaf_mac) = (LEAF_IPS[side], LEAF_MACS[side]);
    let live: &[u32] = if side == CLIENTS { &HONEST[..1] } else { &SERVERS };
    let victim = live[number as usize % live.len()];
    let request = |mac, sender, target| Packet::request(mac, sender, target);
    let reply = |mac, sender| Packet { operation: Operation::Reply, ..request(mac, sender, leaf) };
    let packet = match random.random_range(0..12) {
        // Invented senders: requests, replies, gratuitous ARP.
        0..4 => request(mac, invented, leaf),
        4 => reply(mac, invented),
        5 => request(mac, invented, invented), // gratuitous
        // Claims for a live host's address.
        6 => request(attacker, victim, leaf),
        7 => reply(attacker, victim),
        8 => request(attacker, victim, victim),
        9 => reply([Mac::default(), Mac::BROADCAST, leaf_mac][number as usize % 3], victim),
        10 => request(attacker, leaf, leaf), // the node's own address
        // Addresses that no host of the side has: zero, broadcast, and the last one of the leaf's /16.
        _ => request(attacker, [0, u32::MAX, leaf | 0xFFFF][number as usize % 3], leaf),
    };
    packets::arp(&packet, if random.random_bool(0.5) { Mac::BROADCAST } else { leaf_mac })
}

/// Returns an address on the side's network that no host has: from 10.1.1.0 on, or from 10.0.2.20 on.
fn invented(side: usize, number: u32) -> u32 {
    match side {
        CLIENTS => 0x0A01_0100 + number % SENDERS,
        _ => 0x0A00_0214 + number % 200,
    }
}

/// Serves an honest client before and during a storm of ARP packets, and then a new client during the storm.
fn storm(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in POLICIES {
        let mut rig = Rig::new(&Setup { policy, seed: budget.seed, ..Setup::default() })?;
        let before = rig.serve(0.1, |_| {})?;
        account.check_answered(
            format!("{policy}: every task is answered before the attack"),
            before.answered,
            before.sent,
        );
        let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
        let (mut pace, mut number) = (Pace::new(RATE), 0);
        let mut send = |rig: &mut Rig, account: &mut Account| {
            for _ in 0..pace.due() {
                let sent = [
                    rig.client_side.send(&claim(CLIENTS, number, &mut random)),
                    rig.worker_side.send(&claim(WORKERS, number, &mut random)),
                ];
                account.tried("ARP packets", sent.into_iter().map(u64::from).sum());
                number += 1;
            }
        };
        let known_client = rig.serve(budget.seconds, |rig| send(rig, account))?;
        account.check_answered(
            format!("{policy}: every task of a known client is answered"),
            known_client.answered,
            known_client.sent,
        );
        // The second honest client is new. The leaf has a second to learn its address: 0.9 s, and the 0.1 s of warm-up
        // of every run.
        rig.serve_at(1, HONEST_RATE, 0.9, |rig| send(rig, account))?;
        let new_client = rig.serve_at(1, HONEST_RATE, 0.5, |rig| send(rig, account))?;
        account.check_answered(
            format!("{policy}: a new client is served within a second"),
            new_client.answered,
            new_client.sent,
        );
        account.check(
            format!("{policy}: no honest host's packet goes to an attacker"),
            rig.stolen == 0,
            format!("{} packets", rig.stolen),
        );
        account.check_ledger(policy, rig.counters().balances());
        account.check_buffers(policy, rig.leaked());
    }
    Ok(())
}

/// Replaces all servers, as after a restart with new MAC addresses.
fn servers_return(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in POLICIES {
        let mut rig = Rig::new(&Setup { policy, seed: budget.seed, ..Setup::default() })?;
        rig.serve(0.5, |_| {})?;
        rig.replace_servers()?;
        served_again(&mut rig, 0, policy, account)?;
    }
    Ok(())
}

/// Replaces the first client by one with the same IP address and another MAC address.
fn client_returns(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in POLICIES {
        let mut rig = Rig::new(&Setup { policy, seed: budget.seed, ..Setup::default() })?;
        rig.serve(0.5, |_| {})?;
        served_again(&mut rig, RETURNED, policy, account)?;
    }
    Ok(())
}

/// Serves a client for some seconds in which tasks may be lost. Then all tasks must be answered.
fn served_again(
    rig: &mut Rig,
    client: usize,
    policy: &str,
    account: &mut Account,
) -> Result<(), Failure> {
    let seconds = FOUND_WITHIN as f64 / SECOND as f64;
    let during_change = rig.serve_at(client, HONEST_RATE, seconds, |_| {})?;
    account.tried("tasks", during_change.sent);
    account.figure(
        format!("{policy}: tasks lost during the change"),
        (during_change.sent - during_change.answered) as f64,
    );
    let after_change = rig.serve_at(client, HONEST_RATE, 1.0, |_| {})?;
    account.check_answered(
        format!("{policy}: all tasks are answered again {seconds} s later"),
        after_change.answered,
        after_change.sent,
    );
    account.check_ledger(policy, rig.counters().balances());
    Ok(())
}

/// Leaves out the second server, whose workers start at id 4, and lets it appear later. At that moment the first server
/// also gets a new MAC address.
fn unreachable_server(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in POLICIES {
        let mut rig =
            Rig::new(&Setup { policy, seed: budget.seed, servers: 1, ..Setup::default() })?;
        served_again(&mut rig, 0, policy, account)?;
        let view = rig.leaf.stages().dispatcher(0).ok_or("no pool")?.view();
        let presence = view.presence(Member(4)).name(); // the first worker of the second server
        account.check(
            format!("{policy}: its workers are shown as unreachable"),
            presence == "unreachable",
            presence,
        );
        account.figure(
            format!("{policy}: tasks dropped as neighbour_unresolved"),
            rig.dropped("neighbour_unresolved") as f64,
        );
        rig.replace_servers()?;
        served_again(&mut rig, 0, policy, account)?;
        let before = rig.sent_tasks.read(4);
        rig.serve(1.0, |_| {})?;
        account.check(
            format!("{policy}: its workers get tasks again"),
            rig.sent_tasks.read(4) > before,
            "none",
        );
    }
    Ok(())
}

/// Measures the leaf's cost of an ARP packet and of a task, before and after 60,000 invented senders have asked. A full
/// neighbour cache must not slow the leaf.
fn cost(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let mut rig = Rig::new(&Setup { policy: "random", seed: budget.seed, ..Setup::default() })?;
    rig.serve(0.1, |_| {})?;
    // At first with 100 senders, too few to fill the neighbour cache.
    let usual = [arp_ns(&mut rig, 100), task_ns(&mut rig)];
    for number in 0..SENDERS {
        let request = arp_request(number);
        account.tried("invented senders", u64::from(rig.client_side.send(&request)));
        // Polls once per burst, so that no ring overflows.
        if number % 32 == 31 {
            rig.step();
        }
    }
    let after = [arp_ns(&mut rig, SENDERS), task_ns(&mut rig)];
    for (kind, usual, after) in [("ARP", usual[0], after[0]), ("task", usual[1], after[1])] {
        account.figure(format!("{kind} packet before, ns"), usual);
        account.figure(format!("{kind} packet afterwards, ns"), after);
        account.check(
            format!("a packet ({kind}) costs at most {COST_RATIO} x its cost before"),
            after <= COST_RATIO * usual,
            format!("{:.2} x", after / usual),
        );
    }
    Ok(())
}

/// Returns the ARP request of invented sender `number` among the clients.
fn arp_request(number: u32) -> Vec<u8> {
    let mac = Mac([2, 9, 9, (number >> 16) as u8, (number >> 8) as u8, number as u8]);
    let packet = Packet::request(mac, invented(CLIENTS, number), LEAF_IPS[CLIENTS]);
    packets::arp(&packet, Mac::BROADCAST)
}

/// Returns the cost of an ARP packet from one of `senders` senders, ns.
fn arp_ns(rig: &mut Rig, senders: u32) -> f64 {
    let mut number = 0;
    packet_ns(rig, || {
        number = (number + 1) % senders;
        arp_request(number)
    })
}

/// Returns the cost of a task with 1 us of work, ns.
fn task_ns(rig: &mut Rig) -> f64 {
    let mut seq = 0_u16;
    packet_ns(rig, || {
        seq = seq.wrapping_add(1);
        packets::task(HONEST[0], &Header { extended: true, ..Header::new_task(POOL, seq) }, 1, 1000)
    })
}

/// Returns the leaf's time per packet in bursts of these packets, ns: a low quantile over many rounds.
fn packet_ns(rig: &mut Rig, mut packet: impl FnMut() -> Vec<u8>) -> f64 {
    const ROUNDS: usize = 2000;
    const BURST: usize = 32;
    let mut times: Vec<f64> = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        for _ in 0..BURST {
            rig.client_side.send(&packet());
        }
        rig.now += STEP;
        let began = Instant::now();
        rig.leaf.poll(rig.now);
        times.push(began.elapsed().as_nanos() as f64 / BURST as f64);
        // The workers serve the tasks that they received.
        rig.advance(10 * STEP, |_| {});
    }
    // A quarter of the rounds was at least as fast as this. Other activity of the machine only adds time, so a low
    // quantile excludes the disturbed rounds, and also the luckiest ones.
    times.sort_by(f64::total_cmp);
    times[ROUNDS / 4]
}
