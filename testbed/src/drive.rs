//! Load generator and emulated workers in one loop on one core, for machines with few cores. The scheduler under
//! test runs on another core. The commands `demo` and `drive` and some benchmarks use this loop. The rack is the set of
//! emulated workers.

use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::io::{Pool, Port};
use wedjat_pktgen::engine::Generator;
use wedjat_pktgen::report::Report;

use crate::rack;

/// Polls the generator and the workers in turn until the run ends. `work` polls the workers at a given time; where the
/// worker has a core of its own, it polls the agent instead. A set flag `stop` ends the run early.
///
/// Reads the clock `now` before each part, so that neither counts the time of another part as its own delay.
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

/// Adds the rack's verdict to the generator's report. A late rack makes the run invalid, because the response times
/// then include delays of the rack.
pub fn judge(report: &mut Report, rack: &rack::Report) {
    report.valid &= rack.valid;
    report.reasons.extend(rack.reasons.iter().cloned());
}

#[cfg(test)]
mod tests;
