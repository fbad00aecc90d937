//! A memif ring's interrupt, as its reader waits for it: the ring says whether its reader wants one, and the writer then writes
//! into an eventfd after each burst.
//!
//! The driver (DPDK 22.11) asks for none when it connects and knows no way to ask later, but as a writer it does what the ring says.
//! So a reader that wants to sleep says so in the ring itself. The eventfd is one that the driver never reads: the peer has
//! it too and could make it block.
#![allow(unsafe_code, reason = "a word of memory that is shared with a peer")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU16, fence};

use memmap2::{MmapOptions, MmapRaw};

use crate::io::memif_control::RingPlace;

/// Where a ring's flags stand in it, and the flag that its reader wants no interrupts.
const FLAGS_AT: usize = 4;
const MASKED: u16 = 1;

/// One ring's.
#[derive(Debug)]
pub(super) struct RingInterrupt {
    event: OwnedFd,
    region: Arc<MmapRaw>,
    offset: usize,
}

impl RingInterrupt {
    /// Of the ring at this place, whose writer has `event`; none when that is no eventfd, or there is no ring.
    fn new(event: OwnedFd, regions: &[Arc<MmapRaw>], place: RingPlace) -> Option<Arc<Self>> {
        let region = Arc::clone(regions.get(usize::from(place.region))?);
        let offset = place.offset as usize + FLAGS_AT;
        let lies_within = offset.is_multiple_of(2) && offset + 2 <= region.len();
        (lies_within && is_eventfd(event.as_fd())).then(|| Arc::new(Self { event, region, offset }))
    }

    fn flags(&self) -> &AtomicU16 {
        // SAFETY: aligned, within the region, which stays mapped for as long as this is borrowed and cannot be made shorter (sealed);
        // who else writes there does so as an atomic would.
        unsafe { AtomicU16::from_ptr(self.region.as_mut_ptr().add(self.offset).cast()) }
    }

    /// Asks for interrupts. What came before is to be looked for after this.
    pub(super) fn unmask(&self) {
        self.flags().fetch_and(!MASKED, SeqCst);
        fence(SeqCst);
    }

    /// Asks for none.
    pub(super) fn mask(&self) {
        self.flags().fetch_or(MASKED, Relaxed);
    }

    /// What becomes readable.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What a client has announced of its memory, as far as interrupts need it.
#[derive(Debug, Default)]
pub(super) struct Announced {
    regions: Vec<Arc<MmapRaw>>,
    /// Rings that we read, and what their writer writes into.
    rings: Vec<(RingPlace, OwnedFd)>,
}

impl Announced {
    /// The next region; what it has is checked by others.
    pub(super) fn add_region(&mut self, region: BorrowedFd<'_>) {
        // When the system refuses, its rings have no interrupts, and nor have those of the regions after it.
        let mapped = MmapOptions::new().map_raw(region.as_raw_fd());
        self.regions.extend(mapped.ok().map(Arc::new));
    }

    /// A ring that we read.
    pub(super) fn add_ring(&mut self, place: RingPlace, event: OwnedFd) {
        self.rings.push((place, event));
    }

    /// Those of the rings that we read, by their numbers.
    pub(super) fn interrupts(self) -> Vec<Option<Arc<RingInterrupt>>> {
        let Self { regions, rings } = self;
        let new = |(place, event)| RingInterrupt::new(event, &regions, place);
        rings.into_iter().map(new).collect()
    }
}

/// To wait for anything else may mean to run a peer's code in the system, such as a file system's.
pub(super) fn is_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|what| what.as_os_str() == "anon_inode:[eventfd]")
}
