//! Thread of a dispatcher core: its poll loop, on the clock chosen at the start, over its queues or over taps that
//! record all packets.
//!
//! A role is the logic of one core of a leaf, spine or agent. The clock is the time-stamp counter (TSC), or emulated
//! time, which a testbed advances so that runs repeat exactly.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wedjat_admin::pcap::Tap;
use wedjat_core::clock::{Clock, ClockError, EmulatedClock};
use wedjat_core::io::Port;
use wedjat_core::node::refusals::Refusals;
use wedjat_core::node::tap::TapCommands;
use wedjat_core::role::CoreRole;
use wedjat_core::role::agent::AttachStats;
use wedjat_core::state::Counters;
use wedjat_desired::config::PollMode;
use wedjat_dpdk::{Adaptive, Eal, Mbuf, QueuePort, Sleeper, StallCounter};

/// Time without a packet and without held tasks after which a stopping core ends. Held tasks are those that the core
/// keeps until it can send them.
pub const QUIET: Duration = Duration::from_millis(20);

/// Sums of an agent's statistics of attached workers, and the number of workers registered at its end.
pub type AgentEnd = (AttachStats, usize);

/// The ports, the last statistics of the core's agent, if it has one, and the reason why emulated time ended early. The
/// ports return to the caller, which closes captures of their packets.
pub type PollResult<P> = (Vec<P>, Option<AgentEnd>, Result<(), ClockError>);

/// Parts of a role on one core. The watching thread builds them and moves them to the core's thread, which makes the
/// role.
pub trait CoreParts: Send + 'static {
    /// Makes the role from the parts and the ports. Polls it until `stop` is set and the core has drained.
    fn poll<P: Port<Buf = Mbuf>>(
        self,
        ports: Vec<P>,
        watch: CoreWatch,
        clock: impl Clock,
        stop: &AtomicBool,
    ) -> PollResult<P>;
}

/// A core's links to observers on other threads. Clones share their contents, so that both sides keep one.
#[derive(Clone, Default)]
pub struct CoreWatch {
    /// Orders to record or explain packets.
    pub tap: TapCommands,
    /// Counts of refused packets, and samples of spoofed replies.
    pub refusals: Refusals,
}

/// Everything that the thread of a core needs.
pub struct CoreSetup<C> {
    pub eal: Eal,
    /// Parts of the role.
    pub parts: C,
    /// Queues of this core, one per device.
    pub ports: Vec<QueuePort>,
    pub watch: CoreWatch,
    /// Published counters of this core.
    pub counters: Counters,
    /// Polling without pause, or with sleeps while idle.
    pub polling: PollMode,
    /// Emulated time instead of the time-stamp counter.
    pub clock: Option<EmulatedClock>,
    /// Set to stop the node.
    pub stop: Arc<AtomicBool>,
    /// Name for captures of all packets, and this core's index.
    pub pcap: Option<(PathBuf, usize)>,
}

impl<C: CoreParts> CoreSetup<C> {
    /// Runs the core to its end, with captures of all packets if requested. Returns the last statistics of its agent,
    /// if it has one.
    ///
    /// # Errors
    /// If the system refuses the sleeper or a capture, or emulated time ended by a failure. The error is its text.
    pub fn run(mut self) -> Result<Option<AgentEnd>, String> {
        let ports = std::mem::take(&mut self.ports);
        // In emulated time the testbed, not the traffic, decides when a core polls.
        let sleeps = self.polling == PollMode::Adaptive && self.clock.is_none();
        let sleeper = sleeps.then(|| Sleeper::new(&ports)).transpose();
        let sleeper = sleeper.map_err(|error| error.to_string())?;
        let Some((path, index)) = self.pcap.take() else {
            let (_, end, clock) = self.poll(ports, sleeper);
            return clock.map(|()| end).map_err(|error| error.to_string());
        };
        let tapped = ports.into_iter().enumerate().map(|(port, queue)| {
            let mut name = path.clone().into_os_string();
            name.push(format!(".port{port}.core{index}.pcap"));
            let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Tap::new(queue, &PathBuf::from(name), since_epoch).map_err(|error| error.to_string())
        });
        let (tapped, end, clock) = self.poll(tapped.collect::<Result<Vec<_>, _>>()?, sleeper);
        for (port, tap) in tapped.into_iter().enumerate() {
            if tap.recorded() == 0 {
                log::info!(
                    "--pcap: no packet passed port {port} on core {index}: its file is empty"
                );
            }
            tap.finish().map_err(|error| error.to_string())?;
        }
        clock.map(|()| end).map_err(|error| error.to_string())
    }

    /// Polls on the chosen clock: emulated time, the TSC, or the TSC with sleeps of `sleeper` while the core is idle.
    /// The loop is compiled for each.
    fn poll<P: Port<Buf = Mbuf>>(self, ports: Vec<P>, sleeper: Option<Sleeper>) -> PollResult<P> {
        let Self { eal, parts, watch, counters, clock, stop, .. } = self;
        if let Some(clock) = clock {
            return parts.poll(ports, watch, clock, &stop);
        }
        // A TSC clock that also counts the core's pauses and stalls.
        let tsc = StallCounter::new(eal, counters.clone());
        match sleeper {
            Some(sleeper) => parts.poll(ports, watch, Adaptive::new(tsc, sleeper, counters), &stop),
            None => parts.poll(ports, watch, tsc, &stop),
        }
    }
}

/// Polls a core's role until `stop` is set, and then until its ports are quiet and it holds no task, at most for
/// `drain_max`. Returns the time of the last poll.
#[inline(always)]
pub fn poll_until_stopped(
    role: &mut impl CoreRole,
    clock: &mut impl Clock,
    stop: &AtomicBool,
    drain_max: Duration,
) -> u64 {
    let mut last = 0;
    while let Some(now) = clock.next(stop) {
        // A tick that became due during the sleep gives policies the current time, so it runs before new packets.
        if clock.has_slept() {
            role.catch_up(now);
        }
        role.poll(now);
        last = now;
        // The clock sees whether packets passed, and when timers are due: it may sleep, or end its emulated turn.
        clock.polled(|| role.progress());
    }
    // The function returns true while the core has work, which extends the drain.
    clock.drain(QUIET, drain_max, |now| {
        last = now;
        role.poll(now) > 0 || role.held() > 0
    });
    last
}
