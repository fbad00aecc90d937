//! DPDK for the subcommands that need ports: its start, devices, CPUs.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool, QueuePort};

use super::Failure;

/// Polls between two looks at signals.
const POLLS_BETWEEN_LOOKS: u32 = 64;
/// Packet buffers besides those of outstanding tasks: devices' queues, bursts, caches.
const BUFFERS_BESIDES: u32 = 8191;

/// A running EAL and the pool of its packets.
pub struct Environment {
    /// The environment.
    pub eal: Eal,
    /// Packet buffers.
    pub pool: MbufPool,
}

impl Environment {
    /// Starts EAL for these devices, with buffers for so many outstanding tasks. EAL's own threads and the calling
    /// one keep off the CPU `core`, which is to poll; so do processes started from here on.
    pub fn start(
        eal: &[String],
        devices: &[&str],
        outstanding_max: u32,
        core: Option<usize>,
    ) -> Result<Self, Failure> {
        let polling: Vec<_> = core.into_iter().collect();
        let eal = Eal::init_beside(eal, devices, &polling)?;
        let pool = MbufPool::new(&eal, "tasks", outstanding_max.saturating_add(BUFFERS_BESIDES))?;
        Ok(Self { eal, pool })
    }

    /// Opens a device with one queue pair, which takes packets to groups as well: so IPv6 hosts are asked for.
    pub fn open(&self, name: &str) -> Result<(Device, QueuePort), Failure> {
        let options = DeviceOptions { multicast: true, ..DeviceOptions::default() };
        let (device, ports) = Device::open(&self.eal, name, &self.pool, &options)?;
        let port = ports.into_iter().next().ok_or("the device has no queue")?;
        Ok((device, port))
    }
}

/// Runs the calling thread on this CPU.
pub fn pin(core: Option<usize>) {
    let Some(id) = core else { return };
    if !core_affinity::set_for_current(core_affinity::CoreId { id }) {
        log::warn!("cannot run on CPU {id}: it does not exist or this process may not use it");
    }
}

/// CPUs for a leaf and for what drives it: the first and the last of those that this process may use, unless given.
pub fn two_cpus(leaf: Option<usize>, driver: Option<usize>) -> (usize, usize) {
    let ids = wedjat::cpus::usable();
    let (first, last) = (ids.first().copied().unwrap_or(0), ids.last().copied().unwrap_or(0));
    (leaf.unwrap_or(first), driver.unwrap_or(last))
}

/// A folder in memory where there is one: a leaf's state is no file that a disk should follow.
pub fn scratch(purpose: &str) -> Result<tempfile::TempDir, Failure> {
    let prefix = format!("wedjat-{purpose}-");
    let named = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        builder
    };
    let made = named().tempdir_in("/dev/shm").or_else(|_| named().tempdir());
    made.map_err(|error| format!("cannot make a folder for the files of {purpose}: {error}").into())
}

/// One of the two memif devices that join this process to a leaf's, whose socket lies in `folder`; `rings` are further arguments.
pub fn memif(folder: &Path, name: &str, id: u32, role: &str, rings: &str) -> String {
    let socket = folder.join(format!("{name}.sock"));
    format!("{name},role={role},id={id},socket={},socket-abstract=no{rings}", socket.display())
}

/// Polls until `poll` says that it is over, or a signal comes.
pub fn poll_until(stop: &AtomicBool, mut poll: impl FnMut() -> bool) {
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..POLLS_BETWEEN_LOOKS {
            if poll() {
                return;
            }
        }
    }
}
