//! Forgeries by a host among the workers without a key: registrations and replies in a server's name. A [`Rig`] is a
//! leaf in memory among emulated clients and workers.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use wedjat::state::{Counter, Member};
use wedjat::wire::task::{self, Header, UDP_PORT};
use wedjat::wire::udp::{self, Flow};

use super::rigs::memory::{
    COUNT, HONEST, INTRUDER_MAC, LEAF_IPS, LEAF_MACS, LIAR, POOL, Pace, Rig, SECOND, Setup,
    WORKERS, policies,
};
use super::rigs::packets;
use super::{Account, Attack, Budget, Failure, attack_table};

/// Forged replies per second.
const RATE: f64 = 10_000.0;
/// Tasks per second that use half of the workers' time: 8 workers serve 2000 tasks of 500 us per second each.
const HALF_LOAD: f64 = 8_000.0;
/// Tasks per second that use four fifths of the workers' time.
const HIGH_LOAD: f64 = 12_800.0;
/// Milliseconds within which a worker with one forged report must get tasks again.
const FORGIVEN_MS: f64 = 100.0;
/// Maximum number of tasks of a lying worker, as a multiple of its fair share.
const SHARE_RATIO: f64 = 3.0;
/// Time with tasks before the first forgery, ns.
const QUIET_NS: u64 = SECOND / 5;

/// The attacks of this file.
pub static ATTACKS: &[Attack] = attack_table! {
    "forged-registrations" Memory => registrations,
        "one forged WORKER_ID and KEEP_ALIVE for each worker; no worker registers";
    "forged-load-once" Memory => load_once,
        "one forged reply that reports 65535 tasks at an idle worker, under every policy";
    "forged-idle-replies" Memory => |budget, account| shares(budget, account, HALF_LOAD, false),
        "10,000 forged replies a second that report an idle worker, under every policy";
    "lying-worker" Memory => |budget, account| shares(budget, account, HIGH_LOAD, true),
        "a worker whose replies always report no task, at four fifths of all workers' capacity, under every policy";
    "forgeries-against-a-key" Memory => against_key,
        "replies and registrations without a tag, or with a forged tag, to a pool with a key";
};

/// Forges registrations for all workers. No presence (a worker's state at the leaf) may change, and every
/// worker must still get tasks. A run without the forgeries shows the usual results of the policy.
fn registrations(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    for policy in policies() {
        let setup = Setup { policy, seed: budget.seed, ..Setup::default() };
        let mut rig = Rig::new(&setup)?;
        let usual = rig.serve(budget.seconds, |_| {})?;
        let usually_without_tasks = without_tasks(&rig);
        let mut rig = Rig::new(&setup)?;
        let before = presences(&rig);
        // Both report no task. The worker's id serves as the sequence number, too.
        for worker in 0..COUNT {
            let forged = [
                Header::worker_id(POOL, worker, 0, worker),
                Header::keep_alive(POOL, worker, 0, worker),
            ];
            for header in forged {
                let frame = packets::from_server(worker, &header, LEAF_IPS[WORKERS], UDP_PORT);
                account.tried("registrations", u64::from(rig.worker_side.send(&frame)));
            }
        }
        // A worker that now counts as registered would fall silent in this second, for lack of keep-alives.
        rig.advance(SECOND, |_| {});
        let after = presences(&rig);
        account.check(
            format!("{policy}: no worker's presence changes"),
            before == after,
            format!("{} before, {} after", before.join(" "), after.join(" ")),
        );
        let served = rig.serve(budget.seconds, |_| {})?;
        account.check(
            format!("{policy}: every honest task is answered"),
            served.answered == served.sent && served.sent == usual.sent,
            format!("{} of {}, {} usually", served.answered, served.sent, usual.sent),
        );
        // Under a low load some policies use only a few workers. The check then does not apply.
        account.check(
            format!("{policy}: every worker gets tasks"),
            without_tasks(&rig).is_empty() || !usually_without_tasks.is_empty(),
            format!("none for {:?}", without_tasks(&rig)),
        );
    }
    Ok(())
}

/// Returns the workers that never received a task.
fn without_tasks(rig: &Rig) -> Vec<u16> {
    (0..COUNT).filter(|worker| rig.sent_tasks.read(usize::from(*worker)) == 0).collect()
}

/// Returns the presence of each active worker as the leaf shows it (configured, silent, unreachable, ...), and
/// `out` for an inactive one.
fn presences(rig: &Rig) -> Vec<&'static str> {
    let Some(dispatcher) = rig.leaf.stages().dispatcher(0) else { return Vec::new() };
    let view = dispatcher.view();
    // An inactive worker gets no tasks, whatever its presence.
    let name = |member| match view.is_active(member) {
        true => view.presence(member).name(),
        false => "out",
    };
    (0..COUNT).map(Member).map(name).collect()
}

/// Forges one report of a high load for an idle worker, and measures the time until it gets tasks again.
fn load_once(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let mut longest: f64 = 0.0;
    for policy in policies() {
        let setup = Setup { policy, seed: budget.seed, ..Setup::default() };
        let mut rig = Rig::new(&setup)?;
        let (mut forged_at, mut tasks_before, mut resumed_ms) = (None, 0, None);
        let began = rig.now;
        // The first honest client sends the tasks, here and in `shares`.
        rig.serve_at(0, HALF_LOAD, budget.seconds.max(0.5), |rig| match forged_at {
            // Waits for an idle worker: one with a task soon sends a true report.
            None if rig.now >= began + QUIET_NS && rig.outstanding_at(0) == 0 => {
                // Worker 0 reports 65535 tasks in a reply to the first honest client.
                rig.worker_side.send(&packets::reply(0, u16::MAX, HONEST[0], 0));
                forged_at = Some(rig.now);
            }
            None => {}
            // Tasks sent in the same millisecond do not count.
            Some(forged) if rig.now < forged + SECOND / 1000 => {
                tasks_before = rig.sent_tasks.read(0)
            }
            Some(forged) if resumed_ms.is_none() && rig.sent_tasks.read(0) > tasks_before => {
                resumed_ms = Some((rig.now - forged) as f64 / 1e6);
            }
            Some(_) => {}
        })?;
        account.tried("forged replies", 1);
        let after_ms = resumed_ms.unwrap_or(f64::INFINITY);
        longest = longest.max(after_ms);
        account.check(
            format!("{policy}: the worker gets tasks again within {FORGIVEN_MS} ms"),
            after_ms <= FORGIVEN_MS,
            match resumed_ms {
                Some(ms) => format!("{ms:.1} ms"),
                None => "none during the run".to_owned(),
            },
        );
        account.check_ledger(policy, rig.counters().balances());
    }
    account.figure("longest time without a task, ms", longest);
    Ok(())
}

/// Makes one worker appear idle, by forged replies, or by its own if `liar` is true. Checks that it does not
/// get more than [`SHARE_RATIO`] times its fair share of the tasks.
fn shares(budget: &Budget, account: &mut Account, rate: f64, liar: bool) -> Result<(), Failure> {
    let mut greatest: f64 = 0.0;
    for policy in policies() {
        let setup = Setup { policy, seed: budget.seed, liar, ..Setup::default() };
        let mut rig = Rig::new(&setup)?;
        let (mut pace, mut forged) = (Pace::new(RATE), 0_u16);
        let served = rig.serve_at(0, rate, budget.seconds, |rig| {
            for _ in 0..if liar { 0 } else { pace.due() } {
                forged = forged.wrapping_add(1);
                let reply = packets::reply(LIAR, 0, HONEST[0], forged);
                account.tried("forged replies", u64::from(rig.worker_side.send(&reply)));
            }
        })?;
        account.tried("honest tasks", served.sent);
        let total: u64 = (0..COUNT).map(|worker| rig.sent_tasks.read(usize::from(worker))).sum();
        let share = rig.sent_tasks.read(usize::from(LIAR)) as f64 * f64::from(COUNT) / total as f64;
        greatest = greatest.max(share);
        account.check(
            format!("{policy}: the worker draws at most {SHARE_RATIO} x its fair share"),
            share <= SHARE_RATIO,
            format!("{share:.2} x of {total} tasks"),
        );
        // The leaf counts a reply as surplus if its worker has no outstanding task.
        let surplus = rig.counters().read(Counter::SurplusReplies);
        account.tried("surplus replies", if liar { 0 } else { surplus });
        account.check_ledger(policy, rig.counters().balances());
    }
    account.figure("greatest share, in fair shares", greatest);
    Ok(())
}

/// Bit of a header's first byte for a packet with sequence and tag.
const TAGGED: u8 = 0x40;
/// Number of bytes of sequence and tag.
const TAG_BYTES: usize = 16;

/// Returns the leaf's estimate of each worker: the number of its reports, and its load.
fn estimates(rig: &Rig) -> Vec<(u32, u64)> {
    let Some(dispatcher) = rig.leaf.stages().dispatcher(0) else { return Vec::new() };
    let view = dispatcher.view();
    (0..COUNT)
        .map(Member)
        .map(|member| (view.reports(member), view.estimated_load(member)))
        .collect()
}

/// Sends forged packets to a pool with a key: the leaf accepts only packets with a tag (message
/// authentication code) made with that key. It must drop each forged packet and change no estimate.
fn against_key(budget: &Budget, account: &mut Account) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("key");
    fs::write(&file, "000102030405060708090a0b0c0d0e0f\n")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let pool = format!("key_file = {:?}", file.display().to_string());
    for policy in policies() {
        let setup = Setup { policy, seed: budget.seed, pool: &pool, ..Setup::default() };
        let mut rig = Rig::new(&setup)?;
        let before = (estimates(&rig), presences(&rig));
        let mut random = Xoshiro256PlusPlus::seed_from_u64(budget.seed);
        let (mut pace, mut sent) = (Pace::new(RATE), 0);
        // A quarter of the budget is enough: the leaf drops the packets before the policy sees them.
        rig.advance((budget.seconds * SECOND as f64 / 4.0) as u64, |rig| {
            for _ in 0..pace.due() {
                let worker = random.random_range(0..COUNT);
                let registration = match random.random_range(0..3) {
                    0 => Some(Header::worker_id(POOL, worker, 0, worker)),
                    1 => Some(Header::keep_alive(POOL, worker, 0, worker)),
                    _ => None,
                };
                let mut frame = match registration {
                    Some(header) => {
                        packets::from_server(worker, &header, LEAF_IPS[WORKERS], UDP_PORT)
                    }
                    None => packets::reply(worker, u16::MAX, HONEST[0], 0),
                };
                if random.random_bool(0.5) {
                    tag_at_random(&mut frame, &mut random);
                }
                sent += u64::from(rig.worker_side.send(&frame));
            }
        });
        account.tried("forged packets", sent);
        let after = (estimates(&rig), presences(&rig));
        account.check(
            format!("{policy}: the leaf accepts none of them"),
            before == after,
            format!("{after:?} instead of {before:?}"),
        );
        let refused: u64 = ["auth_missing", "auth_tag", "auth_replay", "registration_off"]
            .map(|reason| rig.dropped(reason))
            .iter()
            .sum();
        account.check(
            format!("{policy}: each is counted by drop reason"),
            refused == sent,
            format!("{refused} of {sent}"),
        );
    }
    Ok(())
}

/// Inserts a random sequence and tag behind the header of a reply or registration without extension.
fn tag_at_random(frame: &mut Vec<u8>, random: &mut Xoshiro256PlusPlus) {
    let mut tag = [0; TAG_BYTES];
    random.fill_bytes(&mut tag);
    let end_of_header = udp::PAYLOAD + task::LEN;
    frame.splice(end_of_header..end_of_header, tag);
    frame[udp::PAYLOAD] |= TAGGED;
    // The frame's length fields still exclude the tag. They are read without it, and written again with it.
    if let Ok(untagged) = udp::parse(&frame[..frame.len() - TAG_BYTES], true) {
        let flow = Flow {
            src_mac: INTRUDER_MAC,
            dst_mac: LEAF_MACS[WORKERS],
            src: untagged.src,
            dst: untagged.dst,
            src_port: untagged.src_port,
            dst_port: untagged.dst_port,
        };
        let len = frame.len() - udp::PAYLOAD;
        flow.emit(frame, len);
    }
}
