//! Interrupts of memif rings for a sleeping reader. memif is a packet interface in shared memory: a client announces
//! *regions* with *rings* to a server. A flag in the ring masks interrupts. While it is clear, the writer writes into
//! an eventfd after each burst.
//!
//! The driver (DPDK 22.11) requests none when it connects and cannot request them later, but as a writer it
//! obeys the flag. So a reader that wants to sleep clears the flag in the ring itself. The relay (`memif.rs`) keeps
//! this eventfd from the driver, because the driver would read it, and the peer could make the read block.
#![allow(unsafe_code, reason = "a word of memory that is shared with a peer")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU16, fence};

use memmap2::{MmapOptions, MmapRaw};

use wedjat_core::io::memif_control::RingPlace;

/// Offset of the flags in a ring's header.
const FLAGS_OFFSET: usize = 4;
/// Flag for no interrupts.
const MASKED: u16 = 1;

/// Interrupt of one ring.
#[derive(Debug)]
pub(super) struct RingInterrupt {
    /// Eventfd that the ring's writer signals.
    event: OwnedFd,
    /// Shared memory with the ring.
    region: Arc<MmapRaw>,
    /// Offset of the ring's flags in the region.
    offset: usize,
}

impl RingInterrupt {
    /// Creates the interrupt of a ring whose writer has `event`. `None` if that is not an eventfd, or the
    /// ring does not exist.
    fn new(
        event: OwnedFd,
        regions: &[Option<Arc<MmapRaw>>],
        place: RingPlace,
    ) -> Option<Arc<Self>> {
        let region = Arc::clone(regions.get(usize::from(place.region))?.as_ref()?);
        let offset = place.offset as usize + FLAGS_OFFSET;
        let lies_within = offset.is_multiple_of(2) && offset + 2 <= region.len();
        (lies_within && is_eventfd(event.as_fd())).then(|| Arc::new(Self { event, region, offset }))
    }

    /// Returns the flags in the shared memory.
    fn flags(&self) -> &AtomicU16 {
        // SAFETY: aligned and within the region, which is sealed and stays mapped while borrowed. Other
        // writers there access it like an atomic.
        unsafe { AtomicU16::from_ptr(self.region.as_mut_ptr().add(self.offset).cast()) }
    }

    /// Requests interrupts. Check for earlier packets afterwards. A packet that is written at the same moment may still
    /// come without one: DPDK's driver reads the flag without a fence after it has published a packet.
    pub(super) fn unmask(&self) {
        // The fence orders the flag before the caller's check of the ring.
        self.flags().fetch_and(!MASKED, SeqCst);
        fence(SeqCst);
    }

    /// Stops interrupts.
    pub(super) fn mask(&self) {
        self.flags().fetch_or(MASKED, Relaxed);
    }

    /// Returns the descriptor that becomes readable at an interrupt.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Memory announced by a client, as far as interrupts need it. The relay collects it from the client's messages,
/// because the driver does not give access to its regions.
#[derive(Debug, Default)]
pub(super) struct AnnouncedMemory {
    /// Regions by number; `None` for one whose mapping failed.
    regions: Vec<Option<Arc<MmapRaw>>>,
    /// Rings that we read, with their writer's eventfd; `None` for a ring without one.
    rings: Vec<(RingPlace, Option<OwnedFd>)>,
}

impl AnnouncedMemory {
    /// Adds the next region. Only a peer's region needs checks; the relay makes them before this call.
    pub(super) fn add_region(&mut self, region: BorrowedFd<'_>) {
        let mapped = MmapOptions::new().map_raw(region.as_raw_fd());
        self.regions.push(mapped.ok().map(Arc::new));
    }

    /// Adds a ring that we read. Its writer has no eventfd if the system refused one.
    pub(super) fn add_ring(&mut self, place: RingPlace, event: Option<OwnedFd>) {
        self.rings.push((place, event));
    }

    /// Returns the interrupts of the rings that we read, in the order of their numbers, in which they were announced.
    /// `None` for a ring without a usable one.
    pub(super) fn interrupts(self) -> Vec<Option<Arc<RingInterrupt>>> {
        let Self { regions, rings } = self;
        let new = |(place, event): (_, Option<_>)| RingInterrupt::new(event?, &regions, place);
        rings.into_iter().map(new).collect()
    }
}

/// Returns true for an eventfd. Waiting for other descriptors might run a peer's code in the kernel, such as
/// a file system's.
pub(super) fn is_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    // promise: ports.2
    #[test]
    fn ring_without_event_keeps_its_place() {
        let mut announced = AnnouncedMemory::default();
        let region = memfd_create("region", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&region, 4096).unwrap();
        announced.add_region(region.as_fd());
        let place = |number: u16| RingPlace {
            to_server: false,
            number,
            region: 0,
            offset: 128 * u32::from(number),
        };
        announced.add_ring(place(0), None);
        announced.add_ring(place(1), Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
        let has_interrupt: Vec<_> = announced.interrupts().iter().map(Option::is_some).collect();
        assert_eq!(has_interrupt, [false, true]);
    }
}
