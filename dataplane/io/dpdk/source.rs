//! What a port has by which a core that sleeps can be woken.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::memif::Relay;

/// What can wake a core for one port.
pub(super) enum Source {
    /// The device's receive interrupts for these queues.
    Interrupt { device: u16, queues: Vec<u16> },
    /// Sockets that can be waited for; nothing without one.
    Sockets(Vec<RawFd>),
    /// Rings of a memif device; none while it has no peer.
    Memif { relay: Arc<Relay>, id: u32, rings: Vec<u16> },
    /// Nothing.
    Nothing,
}
