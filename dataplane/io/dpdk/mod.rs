//! The real ports: owners of DPDK's environment, mempools, mbufs and devices.
//!
//! Start-up is one thread's work, in this order, and everything is undone in reverse when the owners are dropped:
//! ```no_run
//! use wedjat::io::dpdk::{Device, DeviceOptions, Eal, MbufPool};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let arguments = ["--vdev".to_owned(), "net_memif0,role=server,socket=/run/wedjat.sock".to_owned()];
//! let eal = Eal::init(&arguments, &["net_memif0"])?;
//! let pool = MbufPool::new(&eal, "packets", 8191)?;
//! let (device, ports) = Device::open(&eal, "net_memif0", &pool, &DeviceOptions::default())?;
//! for mut port in ports {
//!     let eal = eal.clone();
//!     std::thread::spawn(move || {
//!         let _lcore = eal.register_thread();
//!         // poll `port`
//!         # let _ = &mut port;
//!     });
//! }
//! # let _ = device;
//! # Ok(())
//! # }
//! ```
//! # Who may call what
//! - [`Eal::init`]: one thread, once in a process.
//! - [`MbufPool`], [`PoolHandle`] and dropping an [`Mbuf`]: any thread. A thread that called [`Eal::register_thread`]
//!   has a cache of mbufs of its own; the others go to the pool's shared ring each time.
//! - [`QueuePort`]: one thread at a time; it may be moved to another.
//! - [`Device`]: any thread; nothing in it belongs on the packet path.
//!
//! Join the threads that poll before the last [`Device`] and [`MbufPool`] are dropped.
//!
//! # Devices
//! A device is a PCI address (`0000:03:00.0`) or the name of a virtual device created by EAL's arguments; a name with
//! its arguments (`net_memif0,role=server`) creates it.

mod eal;
mod mbuf;
mod pool;
mod port;

pub use eal::{Eal, EalError, Lcore, arguments, driver_folder, linked_statically, version};
pub use mbuf::Mbuf;
pub use pool::{MbufPool, PoolError, PoolHandle};
pub use port::{Device, DeviceError, DeviceOptions, DeviceStats, Link, QueuePort};
