//! Ports of a build without DPDK: types without values, and functions that fail with an explanation. This file replaces
//! `ports.rs`, so that the subcommands compile in both builds.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Subcommand;
use wedjat::config::AgentConfig;
use wedjat::io::memory::{FramePool, RingPort};
use wedjat::ring::WorkerIdentity;
use wedjat::stats::AgentStats;

use super::Failure;

/// Subcommands of a build with ports; none in this build.
#[derive(Subcommand, Debug)]
pub enum PortsCommand {}

/// Cannot be called, as [`PortsCommand`] has no values.
pub fn execute(command: PortsCommand) -> Result<bool, Failure> {
    match command {}
}

/// Always fails, so that a subcommand with ports can refuse before it does any work.
pub fn check() -> Result<(), Failure> {
    without_dpdk()
}

/// Returns the error of this build, as a result of any type.
fn without_dpdk<T>() -> Result<T, Failure> {
    Err("built without DPDK, so it cannot open a port; build with the feature `dpdk` (the default)"
        .into())
}

/// Returns `None`: this build has no DPDK.
pub fn version() -> Option<String> {
    None
}

/// Type without values. As a private field, it makes a public type of this file impossible to construct.
enum Never {}

/// Port type that satisfies the trait bounds of the subcommands' code. No device has such a port.
pub type QueuePort = RingPort;
/// Pool type that satisfies the trait bounds of the subcommands' code. No environment has such a pool.
pub type PoolHandle = FramePool;

/// A running EAL with a packet pool; has no values in this build.
pub struct Environment {
    /// EAL.
    pub eal: Eal,
    /// Pool of packet buffers.
    pub pool: MbufPool,
}

impl Environment {
    /// Always fails.
    pub fn start(_: &[String], _: &[&str], _: u32, _: Option<usize>) -> Result<Self, Failure> {
        without_dpdk()
    }

    /// Cannot be called.
    pub fn open(&self, _: &str) -> Result<(Device, QueuePort), Failure> {
        match self.eal.0 {}
    }
}

/// EAL; has no values in this build.
pub struct Eal(Never);

impl Eal {
    /// Cannot be called.
    pub fn ticks_hz(&self) -> u64 {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn now(&self) -> u64 {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn register_thread(&self) -> Result<Lcore, Failure> {
        match self.0 {}
    }
}

/// Registration of a thread at EAL; has no values in this build.
pub enum Lcore {}

/// Pool of packet buffers; has no values in this build.
pub struct MbufPool(Never);

impl MbufPool {
    /// Cannot be called.
    pub fn handle(&self) -> PoolHandle {
        match self.0 {}
    }
}

/// Device; has no values in this build.
pub struct Device(Never);

impl Device {
    /// Cannot be called.
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn mac(&self) -> [u8; 6] {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn link(&self) -> Link {
        match self.0 {}
    }
}

/// State of a link.
pub struct Link {
    /// True if a peer is connected.
    pub up: bool,
}

/// Options of an agent.
#[allow(dead_code, reason = "no agent runs in this build")]
#[derive(Default)]
#[non_exhaustive]
pub struct AgentOptions {
    /// Time after which the agent stops by itself.
    pub duration: Option<Duration>,
    /// Arguments of EAL.
    pub eal: Vec<String>,
    /// File with changes.
    pub changes: Option<PathBuf>,
    /// Time to wait for the server of a memif client.
    pub peer_timeout: Option<Duration>,
}

/// Workers of an agent, as threads.
#[allow(dead_code, reason = "no agent runs in this build")]
pub struct Threads<W> {
    /// CPUs of the workers, assigned in turn.
    pub cpus: Vec<usize>,
    /// Time for which an idle worker spins before it sleeps.
    pub spin: Duration,
    /// Returns the function that a worker's thread calls for each task.
    pub work: W,
}

/// Always fails. In a build with DPDK, it runs an agent with its workers.
pub fn run_with<S>(
    _: &AgentConfig,
    _: &AgentOptions,
    _: Threads<impl FnMut(WorkerIdentity) -> S>,
    _: &Arc<AtomicBool>,
    _: impl FnMut(&str),
) -> Result<AgentStats, Failure> {
    without_dpdk()
}
