//! Wake-up source of a port for a sleeping core.

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
        /// Port id of another one.
        id: u16,
        queues: Vec<u16>,
        evidence: Arc<InterruptEvidence>,
    },
    /// Sockets to wait for; empty if there are none.
    Sockets(Vec<RawFd>),
    /// Rings of a memif device, while it has a peer.
    Memif { relay: Arc<Relay>, id: u32, rings: Vec<u16> },
    /// No source.
    Nothing,
}
