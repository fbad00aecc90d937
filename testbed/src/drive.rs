//! Generator and workers in one loop on one core, for machines with few: the scheduler under test has another.

use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::io::{Pool, Port};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::report::Report;

use crate::rack;

/// Polls the generator and `work`, which polls the workers, in turn on the clock `now` until the run is over or `stop`
/// ends it.
///
/// The clock is read for each part, so that none counts another's work as its own delay.
pub fn run<C: Port, L: Pool<Buf = C::Buf>>(
    generator: &mut Generator<C, L>,
    mut work: impl FnMut(u64),
    mut now: impl FnMut() -> u64,
    stop: &AtomicBool,
) {
    while !generator.phase().is_over() {
        generator.transmit(now());
        work(now());
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
