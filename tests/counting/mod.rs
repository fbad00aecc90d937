//! The system's allocator with a call counter per thread, for tests that forbid allocations on the packet path. It
//! becomes the allocator of the whole test program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Allocator calls of this thread. Other threads of a test may allocate.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a call counter.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts a call. Does nothing while the thread ends and its counter no longer exists.
fn count() {
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: all calls go to `System` unchanged; counting neither allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Returns the number of allocator calls of this thread so far.
pub fn calls() -> u64 {
    CALLS.get()
}
