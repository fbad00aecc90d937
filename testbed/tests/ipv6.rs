//! Generator, leaf and emulated rack over IPv6, on an emulated clock: every task is answered by a worker, and the books of all three
//! balance.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../tests/rig/mod.rs"]
mod rig;

use wedjat::wire::ether::Mac;
use wedjat_pktgen::address::Addresses;
use wedjat_pktgen::engine::{Generator, Phase};
use wedjat_pktgen::load::Load;
use wedjat_pktgen::target::Target;
use wedjat_testbed::rack::{Layout, Options, Rack};

/// One tick is one nanosecond.
const HZ: u64 = 1_000_000_000;
/// Loops poll so often.
const STEP: u64 = 1_000;
const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 1, 0x63]);
const RACK_MAC: Mac = Mac([2, 0, 0, 0, 2, 0x0B]);

#[test]
fn a_leaf_between_generator_and_rack_passes_all_tasks() {
    let text = "[leaf]\nid = 1\ncores = [0]\nseed = 7\n\
                [[port]]\ndevice = 'net_ring0'\nside = 'clients'\nip = 'fd00:1::1/64'\n\
                [[port]]\ndevice = 'net_ring1'\nside = 'workers'\nip = 'fd00:2::1/64'\n\
                [[pool]]\nid = 1\npolicy = 'horus'\n\
                [[server]]\nip = 'fd00:2::b'\nworkers = '0-3'\npool = 1\n\
                [[server]]\nip = 'fd00:2::c'\nworkers = '4-7'\npool = 1\n";
    let sizes = rig::Sizes { depth: 1 << 12, frames: 1 << 14, bytes: 160 };
    let rig::Built { mut leaf, far, frames, .. } = rig::leaf(text, sizes);
    let Ok([client, worker]) = <[_; 2]>::try_from(far) else { panic!("two ports") };
    let layout = Layout::new("fd00:2::b+2".parse().unwrap(), 4, 0).unwrap();
    let mut rack = Rack::new(worker, RACK_MAC, layout, Options::default(), HZ as f64);
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
    assert!(report.balances() && report.dropped.is_empty(), "{report}");
    assert_eq!(report.tasks, ledger.answered + generator.tally().warmup.answered);
    assert!(report.arp_answers >= 2, "the leaf asks for both servers: {report}");
}
