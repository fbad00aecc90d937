//! A leaf in this process, on ports in memory: the same stages, policies and packets without a process and a device.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use wedjat::assembly;
use wedjat::clock::{ClockFile, Line, TurnError};
use wedjat::config::Config;
use wedjat::io::ring::{FramePool, RingPort, pair};
use wedjat::node::Timing;
use wedjat::role::Leaf;
use wedjat::wire::ether::Mac;

use super::Scheduler;

/// Polls in a row that must have moved nothing before a turn is over, as in [`wedjat::clock::Emulated`].
const QUIET_POLLS: u32 = 2;
/// Packets on each wire at most.
const DEPTH: usize = 64;
/// Bytes of a frame at most.
const FRAME_BYTES: usize = 256;

/// A leaf and what joins it to the others.
pub struct Local {
    leaf: Leaf<RingPort, FramePool>,
    polls: u64,
}

/// The far ends of a leaf's ports.
pub struct Ends {
    /// On the clients' side.
    pub clients: RingPort,
    /// On the workers' side.
    pub workers: RingPort,
    /// Where packets come from.
    pub pool: FramePool,
}

impl Local {
    /// The configured leaf, whose first port is its clients' and whose second its workers'; `frames` is how many packets there
    /// may be.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: &Config, frames: usize) -> Result<(Self, Ends), String> {
        let hz = ClockFile::TICKS_HZ;
        let seed = assembly::seed(config);
        let table = assembly::table(config, hz, seed).map_err(|error| error.to_string())?;
        let macs = (0..config.ports.len() as u8).map(|port| Mac([2, 0, 0, 0, port, 1]));
        let network = assembly::network(config, macs, &table).map_err(|error| error.to_string())?;
        let stages = assembly::stages(config, hz, &Arc::new(network), &table, seed, 0);
        let pool = FramePool::new(frames, FRAME_BYTES);
        let ((near_clients, clients), (near_workers, workers)) =
            (pair(DEPTH, &pool), pair(DEPTH, &pool));
        let (ports, commands) = (vec![near_clients, near_workers], Arc::new(ArrayQueue::new(1)));
        let leaf = Leaf::new(stages, ports, pool.clone(), commands, Timing { ticks_hz: hz });
        Ok((Self { leaf, polls: 0 }, Ends { clients, workers, pool }))
    }

    /// The leaf.
    #[must_use]
    pub fn leaf(&self) -> &Leaf<RingPort, FramePool> {
        &self.leaf
    }
}

impl Scheduler for Local {
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let (mut quiet, mut last) = (0, self.leaf.progress());
        while quiet < QUIET_POLLS {
            self.leaf.poll(now_ns);
            self.polls += 1;
            let progress = self.leaf.progress();
            let moved = (progress.received, progress.sent) != (last.received, last.sent);
            quiet = if moved { 0 } else { quiet + 1 };
            last = progress;
        }
        let (received, sent, timer_ns) = (last.received, last.sent, last.timer);
        Ok(Line { polls: self.polls, received, sent, timer_ns })
    }
}
