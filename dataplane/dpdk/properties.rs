//! Properties of an open device, for `wedjat doctor --probe`: its driver's abilities, and those that wedjat uses.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::{CStr, c_char};

use wedjat_sys as sys;

use super::rss::Spread;

/// Longest text of a firmware version that is read, with its terminating zero.
const FIRMWARE_BYTES: usize = 128;

/// Properties of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Name by which it was opened.
    pub name: String,
    /// Driver, such as `net_memif`.
    pub driver: String,
    /// Firmware version; `None` if the driver reports none.
    pub firmware: Option<String>,
    /// Bytes of the largest IP packet; `None` if the driver reports none.
    pub mtu: Option<u16>,
    /// NUMA node; `None` if unknown.
    pub node: Option<usize>,
    /// Receive queues in use, and the maximum.
    pub rx_queues: (u16, u16),
    /// Transmit queues in use, and the maximum.
    pub tx_queues: (u16, u16),
    /// Receive offloads in use, by DPDK's names.
    pub offloads: Vec<String>,
    /// True if the device can hash UDP ports for RSS.
    pub hashes_udp: bool,
    /// True if the device can restrict the hash to the sender alone, and also to the receiver alone.
    pub hashes_one_end: bool,
    /// Bytes of the RSS key; 0 if it cannot be set.
    pub key_bytes: u8,
    /// Entries of the redirection table; 0 if there is none.
    pub table_entries: u16,
    /// Distribution of UDP packets over the receive queues.
    pub spread: Spread,
    /// True if the receive queues have interrupts, which were requested.
    pub has_interrupts: bool,
}

/// Returns the firmware version; `None` if the driver reports none.
pub(super) fn firmware(id: u16) -> Option<String> {
    let mut text = [0 as c_char; FIRMWARE_BYTES];
    // SAFETY: `text` is valid for writing this many bytes, and DPDK checks the port id.
    let error = unsafe { sys::rte_eth_dev_fw_version_get(id, text.as_mut_ptr(), text.len()) };
    // A positive value means that the text is longer. Its start is not written then.
    let bytes: Vec<u8> = text.iter().map(|&byte| byte as u8).collect();
    let version = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().trim().to_owned();
    (error == 0 && !version.is_empty()).then_some(version)
}

/// Returns the MTU; `None` if the driver reports none.
pub(super) fn mtu(id: u16) -> Option<u16> {
    let mut mtu = 0;
    // SAFETY: `mtu` is valid for writing, and DPDK checks the port id.
    let error = unsafe { sys::rte_eth_dev_get_mtu(id, &mut mtu) };
    (error == 0 && mtu > 0).then_some(mtu)
}

/// Returns DPDK's name of each receive offload in this bit mask.
pub(super) fn offload_names(offloads: u64) -> Vec<String> {
    let bits = (0..u64::BITS).map(|bit| 1 << bit).filter(|bit| offloads & bit != 0);
    let name = |bit| {
        // SAFETY: DPDK returns a static text for each value.
        let text = unsafe { CStr::from_ptr(sys::rte_eth_dev_rx_offload_name(bit)) };
        text.to_string_lossy().into_owned()
    };
    bits.map(name).collect()
}
