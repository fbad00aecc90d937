//! The times at which a device receives packets, by a clock of its own.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use wedjat_sys as sys;

use super::eal::error_text;
use crate::io::StampField;

/// Why there are no such times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStamps {
    /// Nobody asked for them when the device was opened.
    #[error("they were not asked for when the device was opened")]
    NotAsked,
    /// The driver stamps nothing.
    #[error("its driver {driver} has no receive timestamps (RTE_ETH_RX_OFFLOAD_TIMESTAMP)")]
    Driver {
        /// The driver.
        driver: String,
    },
    /// There is no room for them in packet buffers.
    #[error("packet buffers have no room for them: {reason}")]
    Field {
        /// DPDK's text.
        reason: String,
    },
    /// They can't be compared with other times.
    #[error(
        "its driver {driver} does not tell the clock that it stamps by (rte_eth_read_clock: {reason})"
    )]
    Clock {
        /// The driver.
        driver: String,
        /// DPDK's text.
        reason: String,
    },
}

/// The field that drivers write times into.
///
/// # Errors
/// Why there is none.
pub(super) fn field() -> Result<StampField, NoStamps> {
    let refused = |reason: String| NoStamps::Field { reason };
    let (mut offset, mut flag) = (0, 0);
    // SAFETY: both are valid for writing.
    let error = unsafe { sys::rte_mbuf_dyn_rx_timestamp_register(&mut offset, &mut flag) };
    if error != 0 {
        // SAFETY: reads a thread's own variable.
        return Err(refused(error_text(-unsafe { sys::wedjat_errno() })));
    }
    let room = sys::WEDJAT_MBUF_SIZE as usize - size_of::<u64>();
    let offset = u16::try_from(offset).ok().filter(|&at| usize::from(at) <= room);
    let offset = offset.ok_or_else(|| refused("a field outside of them".to_owned()))?;
    Ok(StampField { offset, flag })
}

/// The clock by which a device stamps packets, whose ticks nobody knows the length of.
///
/// # Errors
/// Why it can't be read.
pub(super) fn read_clock(port: u16) -> Result<u64, String> {
    let mut clock = 0;
    // SAFETY: the port is open, and the clock is valid for writing.
    match unsafe { sys::wedjat_read_clock(port, &mut clock) } {
        0 => Ok(clock),
        error => Err(error_text(error)),
    }
}
