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
//! - [`Sleeper`]: the thread that polls its ports.
//! - [`Device`]: any thread; nothing in it belongs on the packet path.
//!
//! Join the threads that poll before the last [`Device`] and [`MbufPool`] are dropped.
//!
//! # Devices
//! A device is a PCI address (`0000:03:00.0`) or the name of a virtual device created by EAL's arguments; a name with
//! its arguments (`net_memif0,role=server`) creates it. What to write after `--vdev`, or as a device with arguments:
//!
//! | device | arguments | needs |
//! |---|---|---|
//! | `net_memif0` | `role=server,id=0,socket=wedjat` on one side, `role=client,id=0,socket=wedjat` on the other | nothing |
//! | `net_vhost0` with `net_virtio_user0` | `iface=/run/wedjat.sock,queues=1` on the server, `path=/run/wedjat.sock,queues=1,queue_size=256` on the client | nothing |
//! | `net_af_packet0` | `iface=veth0`, several queues: `,qpairs=2` | `CAP_NET_RAW` |
//! | `net_af_xdp0` | `iface=veth0`, several queues: `,queue_count=2` | `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_BPF` |
//! | `net_pcap0` | `rx_pcap=in.pcap,tx_pcap=out.pcap`; to replay without end `rx_pcap=in.pcap,infinite_rx=1` | nothing |
//! | `net_null0` | `size=64` | nothing |
//! | `net_ring0` | none | nothing; it receives what it sends |
//!
//! What the drivers do not tell (DPDK 22.11):
//! - memif: `socket=` is the path of a file when it has a slash, abstract (and so of a network namespace) when it begins with
//!   `@` or `,socket-abstract=yes` says so, and else a file in a folder of this user's (`/run/wedjat` for root, `wedjat` in
//!   `$XDG_RUNTIME_DIR`, or `/tmp/wedjat-UID`). Peers are processes of this user, of root, and of the users in
//!   `,users=NAME+UID`. What they say is checked before the driver hears it. The server outlives its clients. A client
//!   connects when it is started, to a server that must have been started before ([`DeviceOptions::wait_for_peer`]), and
//!   connects again only by [`Device::restart`]. A driver asks for no interrupts; who sleeps does so itself
//!   ([`Sleeper`]), and is woken by peers of its own user or root, which are the only ones that drivers here wake, too.
//! - memif: the driver maps a peer's memory from EAL's interrupt thread when that peer comes, and unmaps it when it has
//!   gone, in the middle of bursts too. So it never has the peer's socket but one of ours, and learns of both between bursts. A
//!   burst pays a fence for it, some 20 cycles.
//! - AF_PACKET and AF_XDP see packets of the kernel's own sockets on the other end of a veth pair before any checksum
//!   was filled in but for the pseudo header's sum. The kernel says so beside each packet, and the drivers do not pass that on, so
//!   such checksums are known by their value here, and finished ([`DeviceStats::rx_partial`]).
//! - AF_PACKET does not tell what the kernel dropped because the ring was full; its sockets are asked (`kernel_rings.rs`).
//! - AF_XDP keeps the mbufs of its fill queue when it is closed, so its pool is not full again at the end.

mod eal;
mod folders;
mod gate;
mod interrupts;
mod kernel_rings;
mod log;
mod mbuf;
mod memif;
mod offloads;
mod pages;
mod pool;
mod port;
mod rss;
mod sleeper;
mod source;
mod stamps;
pub mod telemetry;
mod turns;
mod vlan;
mod yardsticks;

pub use eal::{Eal, EalError, Lcore, arguments, driver_folder, linked_statically, version};
pub use mbuf::Mbuf;
pub use memif::{MeetingPoint, SocketError, meeting_point};
pub use pool::{MbufPool, PoolError, PoolHandle};
pub use port::{Device, DeviceError, DeviceOptions, DeviceStats, Link, Outlet, QueuePort};
pub use rss::RssFields;
pub use sleeper::Sleeper;
pub use stamps::{NoStamps, StampClock, Stamping};
pub use yardsticks::{Distributor, RingPair, YardstickError};
