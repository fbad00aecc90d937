//! Tasks that could occupy a worker forever in the leaf's count: their replies are undeliverable, only
//! their first packet arrives, or several come in one offloaded packet.
//!
//! A [`Rig`] is a leaf in memory among emulated clients and workers. A [`Pace`] spreads the attacker's packets evenly
//! over the emulated time.

use wedjat::reason::DropReason;
use wedjat::state::Gauge;
use wedjat::wire::task::Header;
use wedjat::wire::udp;

use super::rigs::memory::{HONEST, LEAF_IPS, POOL, Pace, Rig, SERVERS, Setup, policies};
use super::rigs::packets;
use super::{Account, Attack, Budget, Failure, attack_table};

/// The attacker's packets per second.
const RATE: f64 = 10_000.0;
/// A host of the clients' network, 10.1.0.102.
const CLIENT: u32 = 0x0A01_0066;
/// Maximum p99 of the honest client, as a multiple of the usual one.
const P99_RATIO: f64 = 2.0;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "unreachable-sources" Memory => |budget, account| with_honest_client(budget, account, "tasks", unreachable),
        "10,000 tasks a second with unreachable reply addresses, beside an honest client, under every policy";
    "unanswerable-tasks" Memory => |budget, account| with_honest_client(budget, account, "tasks", unanswerable),
        "10,000 tasks a second that a server's kernel drops or cannot answer, beside an honest client, under every \
         policy";
    "unfinished-one-source" Memory => |budget, account| with_honest_client(budget, account, "first packets", unfinished),
        "10,000 first packets a second of tasks that are never completed, from one source, under every policy";
    "unfinished-many-sources" Memory => |budget, account| with_honest_client(budget, account, "first packets", unfinished_of_many),
        "10,000 first packets a second of tasks that are never completed, each from another source, under every policy";
    "offloaded-packets" Memory => offloaded,
        "10,000 packets a second with several tasks each, as AF_PACKET delivers them with segmentation offload, under \
         every policy";
};

/// Returns an offloaded packet (one large packet with several tasks) as the leaf's kernel filter cuts it: only the
/// Ethernet and IPv4 headers, copied from a single task.
fn offloaded_packet(number: u64) -> Vec<u8> {
    let mut packet = packets::task(HONEST[1], &Header::new_task(POOL, number as u16), 7, 500_000);
    packet.truncate(udp::OFFLOADED_LEN);
    packet
}

/// Sends offloaded packets beside an honest client, and checks their drop reason.
fn offloaded(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    with_honest_client(budget, account, "packets", offloaded_packet)?;
    let mut rig = Rig::new(&Setup { policy: "horus", seed: budget.seed, ..Setup::default() })?;
    let (mut pace, mut sent) = (Pace::new(RATE), 0);
    rig.serve(budget.seconds, |rig| {
        for _ in 0..pace.due() {
            sent += u64::from(rig.client_side.send(&offloaded_packet(sent)));
        }
    })?;
    let counted = rig.counters().dropped(DropReason::SegmentationOffload);
    account.check(
        "each is counted as `segmentation_offload`",
        counted == sent && sent > 0,
        format!("{counted} of {sent}"),
    );
    Ok(())
}

/// Returns source addresses without a way back: the node's own, the servers', those of hosts of the workers'
/// network, addresses without a route, broadcast, and martians (addresses that no host may have as a source).
fn unreachable_sources() -> Vec<u32> {
    let further: [[u8; 4]; 16] = [
        [10, 0, 2, 200],
        [10, 0, 2, 2],
        [192, 168, 7, 7],
        [8, 8, 8, 8],
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [127, 255, 255, 255],
        [224, 0, 0, 5],
        [239, 255, 255, 255],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [10, 1, 255, 255],
        [10, 1, 0, 0],
        [10, 0, 2, 255],
        [10, 0, 2, 0],
    ];
    let further = further.into_iter().map(u32::from_be_bytes);
    LEAF_IPS.into_iter().chain(SERVERS).chain(further).collect()
}

/// Returns a task with 500 us of work, application id 7, and one of the [`unreachable_sources`].
fn unreachable(number: u64) -> Vec<u8> {
    let sources = unreachable_sources();
    let src = sources[number as usize % sources.len()];
    let header = Header { extended: true, ..Header::new_task(POOL, number as u16) };
    packets::task(src, &header, 7, 500_000)
}

/// IPv4 options: a loose and a strict source route, two malformed timestamps, a malformed record route, an option of
/// length 0, one beyond the header, and a router alert of three bytes.
const OPTIONS: [&[u8]; 8] = [
    &[131, 7, 4, 10, 0, 2, 1, 0],
    &[137, 7, 4, 10, 0, 2, 1, 0],
    &[0x44, 2, 0, 0],
    &[0x44, 4, 5, 0xF0],
    &[7, 7, 2, 0, 0, 0, 0, 0],
    &[99, 0, 0, 0],
    &[99, 40, 0, 0],
    &[148, 3, 0, 0],
];

/// Returns a task with 500 us of work and application id 7, with source port 0 or one of the [`OPTIONS`]. A server's
/// kernel drops these or cannot answer them, so the leaf must drop them first.
fn unanswerable(number: u64) -> Vec<u8> {
    let header = Header { extended: true, ..Header::new_task(POOL, number as u16) };
    let task = |port| packets::task_from((CLIENT, port), &header, 7, 500_000);
    match number as usize % (OPTIONS.len() + 1) {
        0 => task(0),
        kind => packets::with_options(task(packets::CLIENT_PORT), OPTIONS[kind - 1]),
    }
}

/// Returns the first packet of a task that is never completed, from one source. Each task has its own pair of
/// sequence number and application id.
fn unfinished(number: u64) -> Vec<u8> {
    packets::first_of_several(CLIENT, number as u16, (number >> 16) as u32)
}

/// Returns the first packet of a task of application 9 that is never completed, from one of 60,000 sources, so that the
/// leaf's limit per source does not apply.
fn unfinished_of_many(number: u64) -> Vec<u8> {
    // From 10.1.1.0: addresses of the clients' network without hosts.
    packets::first_of_several(0x0A01_0100 + (number % 60_000) as u32, number as u16, 9)
}

/// Serves an honest client under every policy, without the attack and with it. `packet` returns the
/// attacker's packet of a number.
fn with_honest_client(
    budget: &Budget,
    account: &mut Account,
    kind: &str,
    packet: fn(u64) -> Vec<u8>,
) -> Result<(), Failure> {
    let mut worst: f64 = 0.0;
    for policy in policies() {
        let setup = Setup { policy, seed: budget.seed, ..Setup::default() };
        let usual = Rig::new(&setup)?.serve(budget.seconds, |_| {})?;
        let mut rig = Rig::new(&setup)?;
        let (mut pace, mut sent) = (Pace::new(RATE), 0);
        let served = rig.serve(budget.seconds, |rig| {
            for _ in 0..pace.due() {
                sent += u64::from(rig.client_side.send(&packet(sent)));
            }
        })?;
        account.tried(kind, sent);
        account.tried("honest tasks", served.sent);
        account.check_answered(
            format!("{policy}: every honest task is answered"),
            served.answered,
            served.sent,
        );
        let ratio = served.p99_us / usual.p99_us;
        worst = worst.max(ratio);
        account.check(
            format!("{policy}: honest p99 at most {P99_RATIO} x the p99 without attack"),
            ratio <= P99_RATIO,
            format!("{ratio:.2} x ({:.0} us instead of {:.0} us)", served.p99_us, usual.p99_us),
        );
        // Waits for all timeouts: the affinity timeout, after which the leaf forgets an unfinished task,
        // requests to neighbours, and silence of workers.
        rig.advance(2 * rig.affinity_ns + super::rigs::memory::SECOND, |_| {});
        let queued = rig.counters().read(Gauge::Queued);
        let remaining = (rig.outstanding(), rig.held(), queued);
        account.check(
            format!("{policy}: no task stays outstanding, held or queued"),
            remaining == (0, 0, 0),
            format!("{} outstanding, {} held, {} queued", remaining.0, remaining.1, remaining.2),
        );
        account.check_ledger(policy, rig.counters().balances());
        account.check_buffers(policy, rig.leaked());
    }
    account.figure("greatest ratio of honest p99s", worst);
    Ok(())
}
