//! DPDK's own ways to pass tasks to a worker core and back, for comparison with our rings.
//!
//! The loops are in C (`sys/yardsticks.h`, `sys/events.c`), so that only DPDK's own code is measured, inlined as in its
//! applications.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use wedjat_core::io::Pool;
use wedjat_sys as sys;

use super::eal::{Eal, EalError, LogCapture, errno, error_text};
use super::{Mbuf, MbufPool};

/// Any NUMA node (DPDK's `SOCKET_ID_ANY`).
const ANY_NODE: i32 = -1;
/// Slots of a ring, more than the tasks in flight.
const SLOTS: u32 = 64;
/// Maximum number of tasks in flight.
const DEPTH_MAX: usize = 8;

/// Reason why an object of DPDK was not created: DPDK lacks memory, the name exists already, or the pool has too few
/// mbufs.
#[derive(Debug, thiserror::Error)]
#[error("cannot make {name:?} to measure against: {reason}; give EAL more memory (-m MEGABYTES)")]
pub struct YardstickError {
    /// Name of the object.
    name: &'static str,
    /// DPDK's error, or our own.
    reason: String,
}

impl YardstickError {
    /// Creates the error of the call that just failed, from `rte_errno`.
    fn of(name: &'static str) -> Self {
        Self { name, reason: error_text(errno()) }
    }
}

/// Pointer to an object of DPDK that the dispatcher and a worker thread both use.
struct Shared<T>(NonNull<T>);

// SAFETY: DPDK's rings and distributors support two threads that call the functions of one side each, as
// `measure` ensures.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Returns the pointer for calls into DPDK.
    fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// Runs `serve` on a worker thread, prepared by `prepare`, while this thread runs `drive` as the dispatcher. `serve`
/// returns once the flag behind its argument is not 0. Then calls `poll` until the thread has ended: a distributor's
/// worker may wait in a request that only the dispatcher can answer. Returns the time of `drive`.
fn measure(
    prepare: impl FnOnce() + Send,
    serve: impl FnOnce(*const u8) + Send,
    drive: impl FnOnce(),
    poll: impl Fn(),
) -> Duration {
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            prepare();
            ready.store(true, Release);
            serve(stop.as_ptr().cast_const().cast());
        });
        while !ready.load(Acquire) {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        drive();
        let elapsed = began.elapsed();
        stop.store(true, Release);
        while !worker.is_finished() {
            poll();
        }
        elapsed
    })
}

/// A pair of rings with one producer and one consumer each.
pub struct RingPair {
    /// Ring with tasks to the worker.
    forth: Shared<sys::rte_ring>,
    /// Ring with completed tasks from the worker.
    back: Shared<sys::rte_ring>,
    /// Keeps EAL running.
    _eal: Eal,
}

impl RingPair {
    /// Creates two empty rings. Only one pair may exist at a time.
    ///
    /// # Errors
    /// If EAL's memory is insufficient.
    pub fn new(eal: &Eal) -> Result<Self, YardstickError> {
        let ring = |name: &'static str| {
            let text = CString::new(name).unwrap_or_default();
            let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ;
            // SAFETY: the name is a C string that outlives the call, which copies it.
            let ring = unsafe { sys::rte_ring_create(text.as_ptr(), SLOTS, ANY_NODE, flags) };
            NonNull::new(ring).map(Shared).ok_or_else(|| YardstickError::of(name))
        };
        Ok(Self { forth: ring("forth")?, back: ring("back")?, _eal: eal.clone() })
    }

    /// Returns the time of `tasks` round trips with `depth` tasks in flight. `prepare` runs on the worker's
    /// thread.
    ///
    /// # Panics
    /// If the depth is more than 8.
    pub fn measure(&mut self, depth: usize, tasks: u64, prepare: impl FnOnce() + Send) -> Duration {
        assert!(depth <= DEPTH_MAX);
        let (forth, back) = (&self.forth, &self.back);
        measure(
            prepare,
            // SAFETY: the rings live as long as `self`, this thread is the only one on the worker's
            // side, and the flag outlives it.
            |stop| unsafe { sys::wedjat_rings_serve(forth.as_ptr(), back.as_ptr(), stop) },
            // SAFETY: as above for the dispatcher's side, since `self` is mutably borrowed.
            || unsafe {
                sys::wedjat_rings_drive(forth.as_ptr(), back.as_ptr(), depth as u32, tasks)
            },
            std::hint::spin_loop,
        )
    }
}

impl Drop for RingPair {
    fn drop(&mut self) {
        // SAFETY: both were created by rte_ring_create, and are no longer used.
        unsafe {
            sys::rte_ring_free(self.forth.as_ptr());
            sys::rte_ring_free(self.back.as_ptr());
        }
    }
}

/// DPDK's distributor in burst mode, with one worker.
pub struct Distributor {
    /// DPDK's distributor, which is never freed.
    distributor: Shared<sys::rte_distributor>,
    /// Packets that make the round trips, as tasks.
    packets: Vec<Mbuf>,
    /// Keeps EAL running.
    _eal: Eal,
}

impl Distributor {
    /// Creates a distributor, which DPDK never frees: one per process.
    ///
    /// # Errors
    /// If EAL's memory is insufficient, or `pool` has too few mbufs.
    pub fn new(eal: &Eal, pool: &MbufPool) -> Result<Self, YardstickError> {
        const NAME: &str = "distributor";
        let mut handle = pool.handle();
        let packets: Vec<_> = std::iter::from_fn(|| handle.take()).take(DEPTH_MAX).collect();
        if packets.len() < DEPTH_MAX {
            let reason = format!("it needs {DEPTH_MAX} mbufs, and its pool has {}", packets.len());
            return Err(YardstickError { name: NAME, reason });
        }
        let text = CString::new(NAME).unwrap_or_default();
        // SAFETY: the name is a C string that outlives the call, which copies it.
        let distributor = unsafe {
            sys::rte_distributor_create(text.as_ptr(), u32::MAX, 1, sys::WEDJAT_BURST_MODE)
        };
        let distributor =
            NonNull::new(distributor).map(Shared).ok_or_else(|| YardstickError::of(NAME))?;
        Ok(Self { distributor, packets, _eal: eal.clone() })
    }

    /// Returns the time of `tasks` round trips with eight tasks in flight. The last batch may add up to seven trips.
    /// `prepare` runs on the worker's thread.
    pub fn measure(&mut self, tasks: u64, prepare: impl FnOnce() + Send) -> Duration {
        let (distributor, depth) = (&self.distributor, self.packets.len() as u32);
        // An `Mbuf` consists only of a pointer to an mbuf.
        let packets = self.packets.as_mut_ptr().cast();
        measure(
            prepare,
            // SAFETY: the distributor is never freed, this thread is the only worker, and the flag
            // outlives it.
            |stop| unsafe { sys::wedjat_distributor_serve(distributor.as_ptr(), stop) },
            // SAFETY: the packets belong to this value, and all come back before the call ends.
            || unsafe {
                sys::wedjat_distributor_drive(distributor.as_ptr(), packets, depth, tasks);
            },
            // SAFETY: this thread owns the distributor.
            || unsafe { sys::wedjat_distributor_turn(distributor.as_ptr()) },
        )
    }
}

/// Reason why an event device is not available.
#[derive(Debug, thiserror::Error)]
pub enum EventDeviceError {
    /// Its driver, or the library of event devices, is not installed.
    #[error(
        "{device} is not available: {reason}; install its driver (Debian, Ubuntu: apt-get install 'librte-{package}*')"
    )]
    Missing {
        /// Name of the device.
        device: String,
        /// Error of the system, or of EAL.
        reason: String,
        /// Package of the driver, without prefix and version.
        package: String,
    },
    /// DPDK was built without event devices.
    #[error(
        "{device} is not available: DPDK was built without event devices; use a DPDK with them"
    )]
    Unsupported {
        /// Name of the device.
        device: String,
    },
    /// The device refuses its settings.
    #[error("{device} does not start: {reason}")]
    Start {
        /// Name of the device.
        device: String,
        /// DPDK's error.
        reason: String,
    },
}

impl EventDeviceError {
    /// Creates the error for the device `device` without a driver. The package has the name of the driver: the device's
    /// without its number.
    fn missing(device: &str, reason: String) -> Self {
        let driver = device.trim_end_matches(|c: char| c.is_ascii_digit());
        Self::Missing { device: device.to_owned(), reason, package: driver.replace('_', "-") }
    }
}

/// An event device of DPDK with one dispatcher and one worker. A task is an event: it passes through a queue of the
/// device to the worker, and through another one back. Its type is parallel, so any worker may take it.
pub struct EventDevice {
    /// The device, in C.
    device: sys::wedjat_event_device,
    /// Loop of the dispatcher.
    drive: unsafe extern "C" fn(*const sys::wedjat_event_device, u32, u64),
    /// Loop of the worker.
    serve: unsafe extern "C" fn(*const sys::wedjat_event_device, *const u8),
    /// Stops and closes the device.
    close: unsafe extern "C" fn(*const sys::wedjat_event_device),
    /// EAL. It runs as long as the device.
    eal: Eal,
}

impl EventDevice {
    /// Creates and starts the event device `device`, such as `event_dsw0`. EAL keeps its name until the process ends.
    ///
    /// # Errors
    /// If the driver or the library of event devices is not installed, or the device does not start.
    pub fn new(eal: &Eal, device: &str) -> Result<Self, EventDeviceError> {
        let missing = |reason| EventDeviceError::missing(device, reason);
        let functions = sys::event_functions().map_err(missing)?;
        let (Some(start), Some(drive), Some(serve), Some(close)) =
            (functions.start, functions.drive, functions.serve, functions.close)
        else {
            return Err(EventDeviceError::Unsupported { device: device.to_owned() });
        };
        let name = CString::new(device).unwrap_or_default();
        let log = LogCapture::start(); // EAL's messages, for an error
        // SAFETY: the name is a C string, which EAL copies.
        let probed = unsafe { sys::rte_dev_probe(name.as_ptr()) };
        let log_text = log.map(LogCapture::finish).unwrap_or_default();
        if probed != 0 {
            // The first message is the cause.
            let cause = log_text.lines().next().map(str::to_owned);
            return Err(missing(cause.unwrap_or_else(|| error_text(probed))));
        }
        let mut started = sys::wedjat_event_device::default();
        // SAFETY: the name is a C string and the second pointer is valid, both during the call. EAL runs.
        let error = unsafe { start(name.as_ptr(), &mut started) };
        if error != 0 {
            let (device, reason) = (device.to_owned(), error_text(error));
            return Err(EventDeviceError::Start { device, reason });
        }
        Ok(Self { device: started, drive, serve, close, eal: eal.clone() })
    }

    /// Returns true if the dispatcher also runs the device's scheduler, between its bursts. Otherwise each thread
    /// schedules the events that it sends.
    pub fn needs_scheduler(&self) -> bool {
        self.device.needs_scheduler != 0
    }

    /// Returns the time of `tasks` round trips with eight tasks in flight. `prepare` runs on the worker's thread.
    ///
    /// # Errors
    /// If EAL cannot register this thread, as a scheduler requires.
    pub fn measure(
        &mut self,
        tasks: u64,
        prepare: impl FnOnce() + Send,
    ) -> Result<Duration, EalError> {
        let _lcore = self.eal.register_thread()?;
        let (device, drive, serve) = (&self.device, self.drive, self.serve);
        Ok(measure(
            prepare,
            // SAFETY: the device runs as long as `self`, this thread is the only one at the worker's port, and the flag
            // outlives it.
            |stop| unsafe { serve(device, stop) },
            // SAFETY: as above for the dispatcher's port, since `self` is mutably borrowed. EAL knows this thread.
            || unsafe { drive(device, DEPTH_MAX as u32, tasks) },
            std::hint::spin_loop,
        ))
    }
}

impl Drop for EventDevice {
    fn drop(&mut self) {
        // SAFETY: `new` started the device, and no thread uses it any more.
        unsafe { (self.close)(&self.device) }
    }
}
