//! Presence of a device that may be unplugged or reset while cores poll it.
//!
//! The *watching thread* looks after a node's devices. It withdraws the device, waits until each core has acknowledged
//! that it no longer polls the device, and then closes or resets it (quiescent-state reclamation). Each burst costs one
//! more load. A core acknowledges at its next burst. When the device is back, possibly with another port id, the cores
//! acknowledge it in the same way.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Presence of one device, shared by its cores and the watching thread. On its own cache lines, because cores read it
/// for every burst.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct DevicePresence {
    /// Number of changes: odd while the device is withdrawn.
    epoch: AtomicU64,
    /// Port id in DPDK, valid while the epoch is even.
    id: AtomicU16,
    /// Last epoch that each core has acknowledged.
    acknowledged: Mutex<Vec<Arc<AtomicU64>>>,
}

/// A core's view of a device's presence.
#[derive(Debug)]
pub(super) struct PresenceReader {
    /// Shared presence of the device.
    presence: Arc<DevicePresence>,
    /// Last epoch seen.
    seen: u64,
    /// Port id in that epoch; valid if the epoch is even.
    id: u16,
    /// Same as `seen`, for the watching thread.
    acknowledged: Arc<AtomicU64>,
}

/// State that a [`PresenceReader`] has acknowledged, for other code of its thread: the sleeper requests interrupts only
/// of a present device. Changes only when the reader starts a burst.
#[derive(Clone, Debug)]
pub(super) struct PresenceHandle {
    /// Shared presence of the device.
    presence: Arc<DevicePresence>,
    /// Epoch of the reader's last burst.
    acknowledged: Arc<AtomicU64>,
}

/// Returns true if the device is present in this epoch.
fn is_present(epoch: u64) -> bool {
    epoch.is_multiple_of(2)
}

impl DevicePresence {
    /// Creates the presence of an open device.
    pub(super) fn new(id: u16) -> Arc<Self> {
        Arc::new(Self {
            epoch: AtomicU64::new(0),
            id: AtomicU16::new(id),
            acknowledged: Mutex::default(),
        })
    }

    /// Locks the list of acknowledgements. A panicked thread leaves it consistent.
    fn list(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the view of one core.
    pub(super) fn reader(self: &Arc<Self>) -> PresenceReader {
        let mut list = self.list();
        let (seen, id) = (self.epoch.load(Acquire), self.id.load(Relaxed));
        let acknowledged = Arc::new(AtomicU64::new(seen));
        list.push(Arc::clone(&acknowledged));
        PresenceReader { presence: Arc::clone(self), seen, id, acknowledged }
    }

    /// Returns the port id; `None` while the device is withdrawn. For outlets: they have no reader, and a gate keeps
    /// the device open during their bursts.
    pub(super) fn id(&self) -> Option<u16> {
        is_present(self.epoch.load(Acquire)).then(|| self.id.load(Relaxed))
    }

    /// Withdraws the device, which must be present. A core starts no burst after it has acknowledged this.
    pub(super) fn withdraw(&self) {
        self.epoch.fetch_add(1, Release);
    }

    /// Returns true if all cores have acknowledged the last change.
    pub(super) fn is_acknowledged(&self) -> bool {
        let epoch = self.epoch.load(Relaxed);
        self.list().iter().all(|seen| seen.load(Acquire) == epoch)
    }

    /// Makes a withdrawn device present again, as this port.
    pub(super) fn restore(&self, id: u16) {
        self.id.store(id, Relaxed);
        // Release: the cores then also see the device's set-up and its id.
        self.epoch.fetch_add(1, Release);
    }
}

impl PresenceReader {
    /// Returns the port id for one burst; `None` while the device is withdrawn.
    #[inline]
    pub(super) fn id(&mut self) -> Option<u16> {
        let epoch = self.presence.epoch.load(Acquire);
        if epoch != self.seen {
            self.acknowledge(epoch);
        }
        is_present(self.seen).then_some(self.id)
    }

    /// Returns true if the device was withdrawn at the last burst.
    pub(super) fn is_withdrawn(&self) -> bool {
        !is_present(self.seen)
    }

    /// Acknowledges an epoch: the core no longer uses the device of earlier epochs.
    #[cold]
    fn acknowledge(&mut self, epoch: u64) {
        (self.seen, self.id) = (epoch, self.presence.id.load(Relaxed));
        self.acknowledged.store(epoch, Release);
    }

    /// Returns a view for other parts of the same thread.
    pub(super) fn handle(&self) -> PresenceHandle {
        let Self { presence, acknowledged, .. } = self;
        PresenceHandle { presence: Arc::clone(presence), acknowledged: Arc::clone(acknowledged) }
    }
}

impl Drop for PresenceReader {
    /// Removes the view, so that the watching thread does not wait for its acknowledgement.
    fn drop(&mut self) {
        self.presence.list().retain(|one| !Arc::ptr_eq(one, &self.acknowledged));
    }
}

impl PresenceHandle {
    /// Returns the epoch of the thread's last burst, and the port id in it; `None` if the device was withdrawn.
    pub(super) fn get(&self) -> (u64, Option<u16>) {
        let epoch = self.acknowledged.load(Relaxed);
        (epoch, is_present(epoch).then(|| self.presence.id.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;

    use super::*;

    // promise: ports.2
    #[test]
    fn acknowledged_withdrawal_ends_all_bursts() {
        let (presence, stop) = (DevicePresence::new(3), AtomicBool::new(false));
        // `is_open`: state of the test's device. `burst_on_closed`: a core has polled it while it was closed.
        let (is_open, burst_on_closed) = (AtomicBool::new(true), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                let mut reader = presence.reader();
                scope.spawn({
                    let (stop, is_open, burst_on_closed) = (&stop, &is_open, &burst_on_closed);
                    move || {
                        while !stop.load(Relaxed) {
                            if reader.id().is_some() && !is_open.load(SeqCst) {
                                burst_on_closed.store(true, SeqCst);
                            }
                            thread::yield_now();
                        }
                    }
                });
            }
            for id in 0..100 {
                presence.withdraw();
                assert_eq!(presence.id(), None);
                while !presence.is_acknowledged() {
                    thread::yield_now();
                }
                is_open.store(false, SeqCst);
                thread::yield_now();
                is_open.store(true, SeqCst);
                presence.restore(id);
                assert_eq!(presence.id(), Some(id));
            }
            stop.store(true, Relaxed);
        });
        assert!(!burst_on_closed.load(SeqCst));
    }

    // promise: ports.2
    #[test]
    fn returned_device_has_its_new_id() {
        let presence = DevicePresence::new(3);
        let (mut polling, dropped) = (presence.reader(), presence.reader());
        let handle = polling.handle();
        assert_eq!((polling.id(), handle.get()), (Some(3), (0, Some(3))));
        presence.withdraw();
        assert!(!presence.is_acknowledged() && handle.get() == (0, Some(3)), "no burst since");
        assert_eq!((polling.id(), handle.get()), (None, (1, None)));
        assert!(!presence.is_acknowledged(), "another core has not polled");
        drop(dropped);
        assert!(presence.is_acknowledged() && polling.is_withdrawn());
        presence.restore(5);
        assert_eq!((polling.id(), handle.get()), (Some(5), (2, Some(5))));
    }
}
