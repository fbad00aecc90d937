//! Receive timestamps of packets, by a device with its own clock or by the kernel. Drivers write them into a field of
//! the mbuf.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use wedjat_core::io::{StampField, vdev};
use wedjat_sys as sys;

use super::eal::error_text;

/// Driver of libpcap. It receives from kernel interfaces, with the kernel's time of each packet, or from capture files.
const PCAP: &str = "net_pcap";

/// Clock of the timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampClock {
    /// The device's clock, in its own ticks ([`super::Device::clock`]).
    Device,
    /// The kernel's wall clock (`CLOCK_REALTIME`), in units since the Unix epoch.
    Kernel {
        /// Nanoseconds per unit.
        unit_ns: u32,
    },
}

/// Location and clock of receive timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamping {
    /// Location in the mbuf.
    pub field: StampField,
    /// Clock.
    pub clock: StampClock,
}

impl StampClock {
    /// Returns the clock of a device's timestamps.
    ///
    /// # Errors
    /// Reason why there is none.
    pub(super) fn of(
        driver: &str,
        device: &str,
        info: &sys::rte_eth_dev_info,
    ) -> Result<Self, NoStamps> {
        let is_offload = info.rx_offload_capa & sys::WEDJAT_RX_OFFLOAD_TIMESTAMP != 0;
        match driver {
            PCAP if !receives_live(device, info) => Err(NoStamps::Capture),
            // DPDK 21.11 to 26.03 always stamps, in microseconds. From 26.07 on it has the offload, and
            // stamps in nanoseconds.
            PCAP => Ok(Self::Kernel { unit_ns: if is_offload { 1 } else { 1000 } }),
            _ if is_offload => Ok(Self::Device),
            _ => Err(NoStamps::Driver { driver: driver.to_owned() }),
        }
    }
}

/// Returns true if a device of the pcap driver receives from an interface. DPDK's description has its index only if
/// the device uses the interface for both directions; otherwise the arguments show it.
fn receives_live(device: &str, info: &sys::rte_eth_dev_info) -> bool {
    let has = |key| vdev::argument(device, key).is_some();
    info.if_index > 0 || (!has("rx_pcap") && (has("rx_iface") || has("rx_iface_in")))
}

/// Reason why a device's packets have no receive timestamps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStamps {
    /// Timestamps were not requested when the device was opened.
    #[error("the device was opened without them")]
    NotAsked,
    /// The driver has no timestamps.
    #[error("its driver {driver} has no receive timestamps (RTE_ETH_RX_OFFLOAD_TIMESTAMP)")]
    Driver {
        /// Driver.
        driver: String,
    },
    /// The packets come from a capture file, and have its timestamps.
    #[error(
        "what it receives comes from no interface of the kernel (net_pcap with iface=NAME does), and times of a capture's packets are those \
         at which it was made"
    )]
    Capture,
    /// Packet buffers have no field for timestamps.
    #[error("packet buffers have no room for them: {reason}")]
    Field {
        /// DPDK's text.
        reason: String,
    },
    /// The driver does not expose the clock of its timestamps.
    #[error(
        "its driver {driver} does not give the clock of its timestamps (rte_eth_read_clock: {reason})"
    )]
    Clock {
        /// Driver.
        driver: String,
        /// DPDK's text.
        reason: String,
    },
}

/// Returns the mbuf field into which drivers write timestamps.
///
/// # Errors
/// Reason why there is none.
pub(super) fn field() -> Result<StampField, NoStamps> {
    let refused = |reason: String| NoStamps::Field { reason };
    let (mut offset, mut flag) = (0, 0);
    // SAFETY: both are valid for writing.
    let error = unsafe { sys::rte_mbuf_dyn_rx_timestamp_register(&mut offset, &mut flag) };
    if error != 0 {
        // SAFETY: reads a thread-local variable.
        return Err(refused(error_text(-unsafe { sys::wedjat_errno() })));
    }
    let offset_max = sys::WEDJAT_MBUF_SIZE as usize - size_of::<u64>();
    let offset = u16::try_from(offset).ok().filter(|&offset| usize::from(offset) <= offset_max);
    let offset = offset.ok_or_else(|| refused("a field outside of them".to_owned()))?;
    Ok(StampField { offset, flag })
}

/// Reads the clock by which a device stamps packets, in ticks of unknown length. Callers compare it with another clock.
///
/// # Errors
/// Reason why it cannot be read.
pub(super) fn read_clock(port: u16) -> Result<u64, String> {
    let mut clock = 0;
    // SAFETY: the port is open, and the clock is valid for writing.
    match unsafe { sys::wedjat_read_clock(port, &mut clock) } {
        0 => Ok(clock),
        error => Err(error_text(error)),
    }
}
