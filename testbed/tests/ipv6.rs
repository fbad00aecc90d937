//! Generator, leaf and emulated rack over IPv6, on an emulated clock. A worker answers every task, and the
//! ledgers of the generator and the rack balance.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/rig/mod.rs"]
mod rig;

use wedjat::io::memory::{FramePool, RingPort};
use wedjat::role::Leaf;
use wedjat::state::Counter;
use wedjat::wire::ether::Mac;
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::engine::{Generator, Phase};
use wedjat_pktgen::load::Load;
use wedjat_pktgen::target::Target;
use wedjat_testbed::rack::{Layout, LeafOptions, Options, Rack, Report};

/// Ticks per second: one tick is one nanosecond.
const HZ: u64 = 1_000_000_000;
/// Interval between two polls of each loop, in ticks.
const STEP: u64 = 1_000;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x63]);
const RACK_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);

// promise: measurement.3
#[test]
fn leaf_passes_all_tasks_between_generator_and_rack() {
    serve("horus", "replies");
}

/// Workers register with the leaf and report their queues, on their own or in answer to probes.
// promise: scheduling.6, measurement.3
#[test]
fn emulated_workers_report_queues_in_messages() {
    // Under `lsq-update` workers report by themselves. Under `jsq(d=2)` the leaf probes two workers for each task.
    for (policy, asks) in [("lsq-update", false), ("jsq(d=2)", true)] {
        let (leaf, rack) = serve(policy, "messages");
        let count = |counter| leaf.stages().counters().read(counter);
        let [queue_reports, _unsent] = rack.queue_reports;
        let sent = if asks { rack.probe_answers } else { queue_reports };
        let received = if asks { Counter::ProbeAnswers } else { Counter::QueueReports };
        // Each end counts far more messages than registration alone would need. The counts may differ by the messages
        // in flight.
        assert!(sent > 1_000 && count(received) > 1_000, "{policy}: {rack}");
        // All eight workers registered, and the leaf excluded none.
        assert_eq!((count(Counter::Registrations) >= 8, count(Counter::WorkersLost)), (true, 0));
    }
}

/// Serves a load with a leaf under this policy. `reports` is the leaf's setting: workers report their queues
/// in replies, or in messages. Checks that the rack served all tasks and that both ledgers balance. Returns the leaf
/// and the rack's report.
fn serve(policy: &str, reports: &str) -> (Leaf<RingPort, FramePool>, Report) {
    let registers = reports == "messages"; // workers of the rack then register
    let text = format!(
        "[leaf]\nid = 1\ncores = [0]\nseed = 7\n\
                [[port]]\ndevice = 'net_ring0'\nside = 'clients'\nip = 'fd00:1::1/64'\n\
                [[port]]\ndevice = 'net_ring1'\nside = 'workers'\nip = 'fd00:2::1/64'\n\
                [[pool]]\nid = 1\npolicy = '{policy}'\nreports = '{reports}'\n\
                [[server]]\nip = 'fd00:2::b'\nworkers = '0-3'\npool = 1\nregisters = {registers}\n\
                [[server]]\nip = 'fd00:2::c'\nworkers = '4-7'\npool = 1\nregisters = {registers}\n"
    );
    let text = text.as_str();
    let sizes = rig::Sizes { depth: 1 << 12, frames: 1 << 14, bytes: 160 };
    let rig::CoreRig { mut leaf, far, frames, .. } = rig::leaf(text, sizes);
    let Ok([client, worker]) = <[_; 2]>::try_from(far) else { panic!("two ports") };
    let layout = Layout::new("fd00:2::b+2".parse().unwrap(), 4, 0).unwrap();
    let mut rack = Rack::new(worker, RACK_MAC, layout, Options::default(), HZ as f64);
    if reports == "messages" {
        let leaves = vec!["fd00:2::1".parse().unwrap()];
        let options = LeafOptions { leaves, pool: 1, policy: policy.parse().unwrap(), seed: 7 };
        rack = rack.with_leaves(&options, frames.clone());
    }
    let load =
        Load { warmup_s: 0.1, duration_s: 0.3, ..Load::new(40e3, "exp(100us)".parse().unwrap()) };
    let addresses = Addresses::new("fd00:1::1".parse().unwrap(), None, None).unwrap();
    let target = Target::to(CLIENT_MAC, addresses);
    let mut generator = Generator::new(&load, &target, 0, HZ as f64, client, frames).unwrap();
    let mut now = STEP;
    while !generator.phase().is_over() {
        generator.poll(now);
        leaf.poll(now);
        rack.poll(now);
        now += STEP;
        assert!(now < 100 * HZ, "the run does not end");
    }
    assert_eq!(generator.phase(), Phase::Done, "the leaf is found");
    let (ledger, strays) = (generator.tally().measured, generator.tally().strays);
    assert!(ledger.balances() && ledger.answered > 10_000, "{ledger:?}");
    assert_eq!((ledger.lost, ledger.refused), (0, 0), "{ledger:?}");
    assert_eq!((strays.foreign, strays.unknown, strays.duplicates), (0, 0, 0), "{strays:?}");
    let report = rack.report();
    // Advertisements without a matching solicitation count as `nd_other`.
    let dropped = report.dropped.keys().filter(|name| **name != "nd_other").count();
    assert!(report.balances() && dropped == 0, "{report}");
    assert_eq!(report.tasks, ledger.answered + generator.tally().warmup.answered);
    // The name is that of IPv4; the count includes answers of neighbour discovery.
    assert!(report.arp_answers >= 2, "the leaf asks for both servers: {report}");
    (leaf, report)
}
