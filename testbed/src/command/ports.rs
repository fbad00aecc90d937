//! Ports on DPDK devices, and further parts of the subcommands that need DPDK. In a build without DPDK, `no_ports.rs`
//! replaces this file.

use clap::Subcommand;
use wedjat::io::dpdk::{DeviceOptions, MbufPool};
use wedjat_testbed::bench;

use super::{Failure, Formatted};

pub use wedjat::io::dpdk::{Device, Eal, PoolHandle, QueuePort};
pub use wedjat::run::Options as AgentOptions;
pub use wedjat::run::threads::{Threads, run_with};

/// Number of packet buffers besides those of outstanding tasks: for device queues, bursts and caches.
const EXTRA_BUFFERS: u32 = 8191;

/// Subcommands of a build with ports.
#[derive(Subcommand, Debug)]
pub enum PortsCommand {
    /// Measure the hand-over of a task to a worker core, and compare it with DPDK's own mechanisms
    #[command(after_help = "Example:\n  wedjat-testbed bench-host --format json")]
    BenchHost(Formatted<bench::host::Arguments>),
}

/// Executes a subcommand of a build with ports. Returns false for an invalid result.
pub fn execute(command: PortsCommand) -> Result<bool, Failure> {
    let PortsCommand::BenchHost(command) = command;
    command.run(bench::host::report)
}

/// Succeeds, because this build has ports. The counterpart in `no_ports.rs` always fails.
pub fn check() -> Result<(), Failure> {
    Ok(())
}

/// Returns the version of DPDK; `None` if its shared library cannot be loaded.
pub fn version() -> Option<String> {
    wedjat::io::dpdk::version().ok()
}

/// A running EAL with a packet pool. A process can have only one.
pub struct Environment {
    /// EAL.
    pub eal: Eal,
    /// Pool of packet buffers.
    pub pool: MbufPool,
}

impl Environment {
    /// Starts EAL for `devices`, with buffers for `outstanding_max` tasks. Keeps EAL's own threads, the
    /// calling thread and later child processes off the CPU `core`, which will poll.
    pub fn start(
        eal: &[String],
        devices: &[&str],
        outstanding_max: u32,
        core: Option<usize>,
    ) -> Result<Self, Failure> {
        let polling: Vec<_> = core.into_iter().collect();
        let eal = Eal::init_excluding(eal, devices, &polling)?;
        let pool = MbufPool::new(&eal, "tasks", outstanding_max.saturating_add(EXTRA_BUFFERS))?;
        Ok(Self { eal, pool })
    }

    /// Opens a device with one queue pair and multicast, which neighbour solicitations of IPv6 need.
    pub fn open(&self, name: &str) -> Result<(Device, QueuePort), Failure> {
        let options = DeviceOptions { multicast: true, ..DeviceOptions::default() };
        let (device, ports) = Device::open(&self.eal, name, &self.pool, &options)?;
        let port = ports.into_iter().next().ok_or("the device has no queue")?;
        Ok((device, port))
    }
}

// Comparison of a command line with the documentation, shared with the root package's tests.
#[cfg(test)]
#[path = "../../../tests/tables/commands.rs"]
mod commands;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command::Cli;

    // promise: control.2
    #[test]
    fn documented_commands_are_those_of_the_program() {
        let detail = commands::Detail::Needed;
        commands::assert_documented("\n## wedjat-testbed\n", &Cli::command(), detail);
    }
}
