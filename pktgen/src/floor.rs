//! Floor of the generator's latencies: its measurement of tasks that are answered immediately. No latency
//! below it can be measured.

use std::sync::atomic::AtomicBool;

use wedjat::io::{Burst, Pool, Port};
use wedjat::wire::ether::Mac;

use crate::engine::{Generator, SetupError};
use crate::load::Load;
use crate::reflector::reflect;
use crate::tally::Tally;
use crate::target::Target;

/// A port that leads back to itself, and turns every returning task into its answer.
pub struct LoopedPort<'a, P: Port> {
    /// Port that receives what it sends.
    port: &'a mut P,
    /// Source MAC address of the answers; any address differing from the generator's.
    mac: Mac,
}

impl<'a, P: Port> LoopedPort<'a, P> {
    /// Creates the loop; `port` receives what it sends.
    #[must_use]
    pub fn new(port: &'a mut P) -> Self {
        Self { port, mac: Mac([2, 0, 0, 0, 0, 2]) }
    }
}

impl<P: Port> Port for LoopedPort<'_, P> {
    type Buf = P::Buf;

    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        let before = burst.len();
        self.port.rx_burst(burst);
        for buf in &mut burst[before..] {
            reflect(buf, self.mac);
        }
        burst.len() - before
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<P::Buf>) -> usize {
        self.port.tx_burst(burst)
    }
}

/// Measures the floor for `seconds` at the rate of one core of `load`, on a port that receives what it sends. `now`
/// reads a clock of `hz` ticks per second. The returned tally has the response times.
///
/// # Errors
/// If the load cannot be set up.
pub fn measure<P: Port, L: Pool<Buf = P::Buf>>(
    load: &Load,
    seconds: f64,
    port: &mut P,
    pool: L,
    hz: f64,
    now: impl FnMut() -> u64,
) -> Result<Tally, SetupError> {
    // The load's rate per core, on one core, without the parts that need a real worker.
    let load = Load {
        warmup_s: seconds / 4.0,
        duration_s: seconds,
        drain_s: seconds,
        cores: 1,
        records_tasks: false,
        verify: false, // returning frames are not a worker's answers
        replay: None,  // random arrivals at the trace's mean rate
        rate_pps: load.rate_pps / f64::from(load.cores),
        ..load.clone()
    };
    // The frames stay on this machine, so any addresses do: 1 for the generator, 2 for the destination.
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let target = Target { next_hop_mac: Some(mac), ..Target::new(mac, 1, 2) };
    let mut generator = Generator::new(&load, &target, 0, hz, LoopedPort::new(port), pool)?;
    generator.run(now, &AtomicBool::new(false));
    let (_, _, tally) = generator.into_parts();
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wedjat::io::memory::{self, FramePool};

    /// A wire with both ends in one port: it receives what it sends.
    struct Loop(memory::RingPort, memory::RingPort);

    impl Port for Loop {
        type Buf = memory::Frame;

        fn rx_burst(&mut self, burst: &mut Burst<memory::Frame>) -> usize {
            self.1.rx_burst(burst)
        }

        fn tx_burst(&mut self, burst: &mut Burst<memory::Frame>) -> usize {
            self.0.tx_burst(burst)
        }
    }

    #[test]
    fn floor_is_at_most_two_loop_turns() {
        let pool = FramePool::new(256, 128);
        let (left, right) = memory::pair(128, &pool);
        let load = Load::new(1e5, "fixed(50us)".parse().unwrap());
        let mut ticks = 0;
        // Each clock reading takes 100 ns.
        let clock = || {
            ticks += 100;
            ticks
        };
        let mut port = Loop(left, right);
        let tally = measure(&load, 0.01, &mut port, pool.clone(), 1e9, clock).unwrap();
        assert_eq!(tally.measured.answered, tally.measured.scheduled);
        let floor = tally.response().summary();
        // A task leaves at most one turn after its due time, and returns at the next clock reading. A turn has
        // two readings.
        assert!(floor.p99.0 <= 0.4, "{floor:?}");
        assert!(floor.p50.0 >= 0.1, "{floor:?}");
        assert_eq!(pool.in_use(), 0);
    }
}
