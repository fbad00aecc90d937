//! Ports on real devices: owners of DPDK's environment, mempools, mbufs and devices. A *port* is a queue pair of a
//! device, which one core polls.
//!
//! One thread starts everything in this order. Dropping the owners undoes it in reverse:
//! ```no_run
//! use wedjat_dpdk::{Device, DeviceOptions, Eal, MbufPool};
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
//! # Threads
//! - [`Eal::init`]: one thread, once in a process.
//! - [`MbufPool`], [`PoolHandle`] and dropping an [`Mbuf`]: any thread. A thread registered by
//!   [`Eal::register_thread`] has its own cache of mbufs. Other threads access the pool's shared ring each time.
//! - [`QueuePort`]: one thread at a time; it may move to another.
//! - [`Sleeper`]: the thread that polls its ports.
//! - [`Device`]: any thread; not for the packet path.
//!
//! Join the polling threads before dropping the last [`Device`] and [`MbufPool`].
//!
//! # Devices
//! A device is a PCI address (`0000:03:00.0`), or the name of a virtual device created by EAL's arguments. A
//! name with arguments (`net_memif0,role=server`) creates the device. Text for `--vdev`, or for a device with
//! arguments:
//!
//! | device | arguments | needs |
//! |---|---|---|
//! | `net_memif0` | `role=server,id=0,socket=wedjat` on one side, `role=client,id=0,socket=wedjat` on its peer | nothing |
//! | `net_vhost0` with `net_virtio_user0` | `iface=/run/wedjat.sock,queues=1` on the server, `path=/run/wedjat.sock,queues=1,queue_size=256` on the client | nothing |
//! | `net_af_packet0` | `iface=veth0`, several queues: `,qpairs=2` | `CAP_NET_RAW` |
//! | `net_af_xdp0` | `iface=veth0`, several queues: `,queue_count=2` | `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_BPF` |
//! | `net_pcap0` | `rx_pcap=in.pcap,tx_pcap=out.pcap`; to replay without end `rx_pcap=in.pcap,infinite_rx=1` | nothing |
//! | `net_null0` | `size=64` | nothing |
//! | `net_ring0` | none | nothing; it receives what it sends |
//!
//! Undocumented behaviour of the drivers (DPDK 22.11):
//! - memif: `socket=` is a file's path if it has a slash. It is abstract, and so local to a network namespace, if
//!   it begins with `@` or `,socket-abstract=yes` is given. Any other name is a file in a folder of this user
//!   (`/run/wedjat` for root, `wedjat` in `$XDG_RUNTIME_DIR`, or `/tmp/wedjat-UID`). Peers are processes of this
//!   user, of root, and of the users in `,users=NAME+UID`. Their messages are checked before the driver gets them.
//!   The server outlives its clients. A client connects at its start, to a server that must run already
//!   ([`DeviceOptions::wait_for_peer`]), and connects again only by [`Device::restart`]. The driver requests no
//!   interrupts. A sleeping core requests them itself ([`Sleeper`]); peers of its own user or root wake it. The
//!   drivers of this process also wake only such peers.
//! - memif: the driver maps a peer's memory in EAL's interrupt thread when the peer connects, and unmaps it when
//!   the peer leaves, even in the middle of a burst. So it never has the peer's socket but a private one, and
//!   gets both messages between bursts. This costs each burst a fence, some 20 cycles.
//! - AF_PACKET and AF_XDP: packets of the kernel's own sockets on the peer end of a veth pair arrive with an
//!   incomplete checksum, the pseudo header's sum. The kernel marks such packets, but the drivers drop the mark.
//!   The port recognizes these checksums by their value, and finishes them ([`DeviceStats::rx_partial`]).
//! - AF_PACKET: the driver does not report packets that the kernel dropped because the ring was full. The port
//!   queries its sockets (`kernel_rings.rs`).
//! - AF_XDP: a closed device keeps the mbufs of its fill queue, so its pool is not full again at the end.

mod adaptive;
mod counter;
mod eal;
mod events;
mod folders;
mod gate;
mod interrupt_evidence;
mod interrupts;
mod kernel_rings;
mod log;
mod mbuf;
mod memif;
mod offloads;
mod pages;
mod pool;
mod port;
mod presence;
mod properties;
mod rss;
mod sleeper;
mod stamps;
mod steering;
pub mod telemetry;
mod turns;
mod vlan;
mod wake_source;
mod yardsticks;

pub use adaptive::Adaptive;
pub use counter::StallCounter;
pub use eal::{Eal, EalError, Lcore, arguments, driver_folder, linked_statically, tsc, version};
pub use mbuf::Mbuf;
pub use memif::{ServerAddress, SocketError, server_address};
pub use pool::{MbufPool, PoolError, PoolHandle};
pub use port::{
    Device, DeviceError, DeviceEvent, DeviceOptions, DeviceStats, Link, Outlet, QueuePort,
};
pub use properties::DeviceProperties;
pub use rss::{RssFields, Spread};
pub use sleeper::{Sleeper, WakeReason};
pub use stamps::{NoStamps, StampClock, Stamping};
pub use steering::{SteeredSide, Steering};
pub use yardsticks::{Distributor, EventDevice, EventDeviceError, RingPair, YardstickError};

#[cfg(test)]
#[path = "../../tests/timeouts/mod.rs"]
mod timeouts;
#[cfg(test)]
use timeouts::TIMEOUT;
