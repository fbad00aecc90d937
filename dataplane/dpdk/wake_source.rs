//! Wake-up source of a port: the event by which a device wakes a sleeping core when packets arrive. A port describes
//! its source, and the core's sleeper waits for the sources of all its ports. A port without a source makes the core
//! sleep for short times only.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::interrupt_evidence::InterruptEvidence;
use super::memif::Relay;
use super::presence::PresenceHandle;

/// Wake-up source of one port.
pub(super) enum WakeSource {
    /// Receive interrupts of a NIC's queues.
    Interrupt {
        /// Presence of a NIC that can be unplugged.
        presence: Option<PresenceHandle>,
        /// Port id in DPDK, for a NIC without `presence`.
        id: u16,
        /// Numbers of the port's receive queues.
        queues: Vec<u16>,
        /// Record of whether the device's interrupts wake cores, shared by all ports of the device.
        evidence: Arc<InterruptEvidence>,
    },
    /// Kernel sockets of the device (AF_PACKET or AF_XDP). Without any, there is no source.
    Sockets(Vec<RawFd>),
    /// Rings of a memif device, a packet interface in shared memory. The relay has the rings' interrupts while the
    /// device has a peer. `id` is the device's number on its socket.
    Memif { relay: Arc<Relay>, id: u32, rings: Vec<u16> },
    /// No source: the device cannot wake a core.
    Nothing,
}
