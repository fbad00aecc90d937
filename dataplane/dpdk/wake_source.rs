//! Wake-up source of a port for a sleeping core. A port describes its source, and the core's sleeper waits for it.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::interrupt_evidence::InterruptEvidence;
use super::memif::Relay;
use super::presence::PresenceHandle;

/// Wake-up source of one port.
pub(super) enum WakeSource {
    /// Receive interrupts of these queues.
    Interrupt {
        /// Presence of a NIC that can be unplugged.
        presence: Option<PresenceHandle>,
        /// Port id in DPDK, for a NIC without `presence`.
        id: u16,
        /// Receive queues of the port.
        queues: Vec<u16>,
        /// Evidence that the device's interrupts work, shared by its ports.
        evidence: Arc<InterruptEvidence>,
    },
    /// Sockets to wait for; empty if there are none.
    Sockets(Vec<RawFd>),
    /// Rings of a memif device (a packet interface in shared memory), while it has a peer. `id` is the device's number
    /// in the protocol, and the relay has the rings' interrupts.
    Memif { relay: Arc<Relay>, id: u32, rings: Vec<u16> },
    /// No source: the device cannot wake a core.
    Nothing,
}
