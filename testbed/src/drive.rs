//! Generator and rack in one loop on one core, for machines with few: the scheduler under test has another.

use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::io::{Pool, Port};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::report::Report;

use crate::rack::{self, Outage, Outages, Rack};

/// Polls both in turn on the clock `now`, which has `hz` ticks a second, until the run is over or `stop` ends it.
///
/// The clock is read for each half, so that neither counts the other's work as its own delay.
pub fn run<C: Port, L: Pool<Buf = C::Buf>, W: Port>(
    generator: &mut Generator<C, L>,
    rack: &mut Rack<W>,
    outages: &[Outage],
    hz: f64,
    mut now: impl FnMut() -> u64,
    stop: &AtomicBool,
) {
    let mut outages = Outages::new(outages, now(), hz);
    while !generator.phase().is_over() {
        generator.transmit(now());
        let at = now();
        outages.apply(rack, at);
        rack.poll(at);
        generator.receive(now());
        if stop.load(Ordering::Relaxed) {
            generator.stop(now());
        }
    }
}

/// One verdict over both: a run whose rack was late measured the rack.
pub fn judge(report: &mut Report, rack: &rack::Report) {
    report.valid &= rack.valid;
    report.reasons.extend(rack.reasons.iter().cloned());
}

#[cfg(test)]
mod tests;
