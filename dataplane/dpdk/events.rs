//! Events of devices: the system wants to remove a device, or a device needs a reset. EAL's interrupt thread reports
//! them by callbacks. The *watching thread*, which looks after a node's devices, takes and handles them.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, Once, PoisonError};

use wedjat_sys as sys;

/// DPDK's `RTE_ETH_NAME_MAX_LEN`: bytes of the longest name that `rte_eth_dev_get_name_by_port` writes, with its NUL.
pub(super) const NAME_BYTES: usize = 64;

/// Reason why cores must not poll a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The device is unplugged, or an administrator takes it from this process.
    Removal,
    /// Its driver asks for a reset, for example of a virtual function after a reset of the physical one.
    Reset,
}

/// Unhandled events, by EAL's name of the device.
static PENDING: Mutex<BTreeSet<(String, Cause)>> = Mutex::new(BTreeSet::new());

/// Port id for all ports (`RTE_ETH_ALL`).
const ALL_PORTS: u16 = sys::RTE_MAX_ETHPORTS as u16;

/// Registers the callbacks, once per process. EAL must run.
pub(super) fn watch() {
    static REGISTERED: Once = Once::new();
    // SAFETY: EAL runs; both functions live for the whole process and need no argument.
    REGISTERED.call_once(|| unsafe {
        let none = std::ptr::null_mut();
        // If DPDK refuses a callback, the process does not notice these events.
        sys::rte_dev_event_callback_register(std::ptr::null(), Some(on_device_event), none);
        for event in [sys::RTE_ETH_EVENT_INTR_RMV, sys::RTE_ETH_EVENT_INTR_RESET] {
            sys::rte_eth_dev_callback_register(ALL_PORTS, event, Some(on_port_event), none);
        }
    });
}

/// Takes an unhandled event of the device with this name; `None` if there is none. Returns a removal before a reset.
pub(super) fn take(device: &str) -> Option<Cause> {
    [Cause::Removal, Cause::Reset].into_iter().find(|&cause| take_cause(device, cause))
}

/// Takes an unhandled event of this cause. Returns false if there is none.
pub(super) fn take_cause(device: &str, cause: Cause) -> bool {
    let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
    pending.remove(&(device.to_owned(), cause))
}

/// Drops the unhandled events of a device that was closed (removal) or reset. Repeats of the handled event would
/// otherwise withdraw the device again after its return. Keeps a removal that followed a reset request.
pub(super) fn forget(device: &str, handled: Cause) {
    take_cause(device, Cause::Reset);
    if handled == Cause::Removal {
        take_cause(device, Cause::Removal);
    }
}

/// Records an event.
fn note(device: &CStr, cause: Cause) {
    let device = device.to_string_lossy().into_owned();
    PENDING.lock().unwrap_or_else(PoisonError::into_inner).insert((device, cause));
}

/// Records a removal that vfio requests: the process must release the device. EAL reports no hotplug events of the
/// kernel here, because nothing calls `rte_dev_event_monitor_start`.
unsafe extern "C" fn on_device_event(
    device: *const c_char,
    event: sys::rte_dev_event_type,
    _: *mut c_void,
) {
    if event == sys::RTE_DEV_EVENT_REMOVE && !device.is_null() {
        // SAFETY: EAL passes the device's name, a C string.
        note(unsafe { CStr::from_ptr(device) }, Cause::Removal);
    }
}

/// Records a removal or a reset request that a driver reports.
unsafe extern "C" fn on_port_event(
    id: u16,
    event: sys::rte_eth_event_type,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    let mut name = [0 as c_char; NAME_BYTES];
    // SAFETY: the buffer has the size that DPDK documents, and DPDK writes a trailing NUL.
    let name = unsafe {
        let is_known = sys::rte_eth_dev_get_name_by_port(id, name.as_mut_ptr()) == 0;
        is_known.then(|| CStr::from_ptr(name.as_ptr()))
    };
    let cause = match event == sys::RTE_ETH_EVENT_INTR_RMV {
        true => Cause::Removal,
        false => Cause::Reset,
    };
    name.into_iter().for_each(|name| note(name, cause));
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: ports.2
    #[test]
    fn each_event_is_taken_once() {
        note(c"0000:aa:00.0", Cause::Reset);
        note(c"0000:aa:00.0", Cause::Removal);
        note(c"0000:aa:00.0", Cause::Removal);
        assert_eq!(take("0000:aa:00.0"), Some(Cause::Removal));
        assert_eq!(take("0000:aa:00.0"), Some(Cause::Reset));
        assert_eq!(take("0000:aa:00.0"), None);
    }

    // promise: ports.2
    #[test]
    fn removal_during_a_reset_is_kept() {
        let note_both = || {
            note(c"0000:ac:00.0", Cause::Reset);
            note(c"0000:ac:00.0", Cause::Removal);
        };
        note_both();
        forget("0000:ac:00.0", Cause::Reset);
        assert!(!take_cause("0000:ac:00.0", Cause::Reset), "handled");
        assert_eq!(take("0000:ac:00.0"), Some(Cause::Removal));
        note_both();
        forget("0000:ac:00.0", Cause::Removal);
        assert_eq!(take("0000:ac:00.0"), None, "the device has left, so it needs no reset");
    }
}
