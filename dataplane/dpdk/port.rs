//! A configured and started device, and its queue pairs as ports. One core polls each port.
//!
//! An outlet is a transmit queue without a receive queue; an inlet is a receive queue without a transmit queue. A
//! memif device reaches its peer through a relay ([`super::memif`]). The relay's gate keeps cores out of bursts while
//! the driver maps or unmaps memory. A NIC may be unplugged and return ([`super::presence`]). The *watching thread* of
//! the process calls [`Device::advance_lifecycle`], which closes and opens such a NIC.
#![allow(unsafe_code, reason = "calls into libdpdk")]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs::File;
use std::io::Read as _;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wedjat_core::io::vdev::{
    self, BIFURCATED_DRIVERS, PASSING_DRIVERS, SOFTWARE_DRIVERS, is_pci_address,
};
use wedjat_core::io::{Buf, Burst, Port};
use wedjat_core::wire::udp;
use wedjat_sys as sys;

use super::eal::{Eal, LogCapture, driver_name, error_text, indented_end};
use super::events::{self, Cause, NAME_BYTES};
use super::gate::{Gate, Pass};
use super::interrupt_evidence::InterruptEvidence;
use super::kernel_rings::{self, KernelRings};
use super::mbuf::Mbuf;
use super::memif::{self, RelayedDevice, Role, ServerDevice};
use super::pool::MbufPool;
use super::presence::{DevicePresence, PresenceReader};
use super::properties::{self, DeviceProperties};
use super::rss::{Rss, RssFields, Spread};
use super::stamps::{self, NoStamps, StampClock, Stamping};
use super::steering::Steering;
use super::turns::take_turn;
use super::vlan;
use super::wake_source::WakeSource;

/// Interval at which the watching thread checks whether an unplugged device is back.
const RETURN_RETRY: Duration = Duration::from_millis(500);

/// Interval at which a memif client looks for its server.
const PEER_RETRY: Duration = Duration::from_millis(20);

/// Time that a memif server may take to answer a client. A server that is not ready refuses at once.
const PEER_ANSWER: Duration = Duration::from_secs(2);

/// Number of attempts without a link at a running server, after which a memif client gives up its extra transmit
/// queues. The server then probably has too few receive queues.
const REFUSALS_MAX: u32 = 8;

/// Treatment of checksums that the device has not verified. The port finishes and verifies them, so that such packets
/// take the fast path; packets whose checksums the stages verify do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Checksums {
    /// True to finish checksums that were left to a device, even without the driver's mark.
    finishes: bool,
    /// True if the device verifies either the IPv4 or the UDP checksum, not both. Such a driver (virtio) may also mark
    /// packets with a missing checksum. Makes the port call [`Checksums::settle`], which itself does not read this.
    verifies_one: bool,
    /// True to trust all checksums.
    trusts: bool,
}

impl Checksums {
    /// Finishes or verifies the checksums that the device has left open. Marks the packet as verified if both are right
    /// or trusted. The stages verify the UDP checksum of an unmarked packet. Returns true if it has finished a
    /// checksum.
    fn settle(self, packet: &mut Mbuf) -> bool {
        let may_be_partial = self.finishes || packet.udp_checksum_is_missing();
        let is_finished =
            may_be_partial && !packet.is_segmented() && udp::finish_checksum(packet.bytes_mut());
        let is_verified = is_finished
            || self.trusts
            || packet.udp_checksum_verified()
                && (packet.ip_checksum_verified() || udp::ip_header_is_valid(packet.bytes()));
        if is_verified {
            packet.set_checksums_verified();
        }
        is_finished
    }
}

/// Options of a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Number of RX/TX queue pairs, one for each dispatcher core. A device with several spreads packets by
    /// RSS if it can, else by its own rule (AF_PACKET: fanout, memif: the peer's choice of queue).
    pub queues: u16,
    /// Header fields for RSS.
    pub rss: RssFields,
    /// Constants for RSS keys that bring replies to the core of their task. For a device that cannot hash only the
    /// client's end of a packet.
    pub steering: Option<Steering>,
    /// Number of transmit queues besides the pairs, for threads that only send, see
    /// [`Device::open_with_outlets`]. A device with fewer queues gives all that it has, and a memif server none.
    pub outlets: u16,
    /// Number of receive queues besides the pairs, which the first port polls: for a peer that sends on
    /// several queues.
    pub inlets: u16,
    /// Slots of each receive queue, adjusted to the device's limits.
    pub rx_slots: u16,
    /// Slots of each transmit queue, adjusted to the device's limits.
    pub tx_slots: u16,
    /// Bytes of the largest IP packet; `None` keeps the device's limit.
    pub mtu: Option<u16>,
    /// True to receive packets for every MAC address. Devices without this mode stay unchanged.
    pub promiscuous: bool,
    /// True to receive packets for every multicast group, as neighbour discovery requires. A device without this mode
    /// receives packets for every address instead.
    pub multicast: bool,
    /// True to verify IPv4 and UDP checksums in the device, within its abilities.
    pub checksums: bool,
    /// True to trust the checksums of all packets.
    pub trust_checksums: bool,
    /// VLAN of the device's ports. They remove its tag from received packets and add it to sent ones.
    pub vlan: Option<u16>,
    /// True to record the receive time of packets, if possible ([`Device::stamps`]).
    pub stamps: bool,
    /// True to set up receive interrupts, so that a core may sleep. Has no effect on a device without them.
    pub interrupts: bool,
    /// Longest time that a memif client waits for its server. Other devices start or fail at once.
    pub wait_for_peer: Duration,
    /// Set to true by another thread to end that wait early.
    pub stop: Arc<AtomicBool>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            queues: 1,
            rss: RssFields::default(),
            steering: None,
            outlets: 0,
            inlets: 0,
            rx_slots: 1024,
            tx_slots: 1024,
            mtu: None,
            promiscuous: false,
            multicast: false,
            checksums: true,
            trust_checksums: false,
            vlan: None,
            stamps: false,
            interrupts: false,
            wait_for_peer: Duration::from_secs(10),
            stop: Arc::default(),
        }
    }
}

impl DeviceOptions {
    /// Returns the defaults, with another wait for a memif server if `peer_timeout` is given.
    #[must_use]
    pub fn with_peer_timeout(peer_timeout: Option<Duration>) -> Self {
        let defaults = Self::default();
        Self { wait_for_peer: peer_timeout.unwrap_or(defaults.wait_for_peer), ..defaults }
    }
}

/// Reason why a device was not opened, restarted or described.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device does not exist.
    #[error("no device {name:?}: EAL has {present}; {}", absence_hint(name))]
    Absent {
        /// Name of the device.
        name: String,
        /// Names of the existing devices.
        present: String,
    },
    /// Too many queues, or none.
    #[error(
        "device {name:?} cannot have {asked} queue pairs: its driver {driver} allows 1 to {most}{hint}"
    )]
    Queues {
        /// Name of the device.
        name: String,
        /// Name of its driver.
        driver: String,
        /// Number of queue pairs in the request.
        asked: u16,
        /// Maximum number of queue pairs.
        most: u16,
        /// Advice for a fix.
        hint: &'static str,
    },
    /// A call failed.
    #[error("device {name:?}: cannot {step}: {reason}{said}")]
    Refused {
        /// Name of the device.
        name: String,
        /// The failed step.
        step: &'static str,
        /// DPDK's error.
        reason: String,
        /// The driver's log lines, indented.
        said: String,
    },
    /// The memif server did not appear.
    #[error(
        "device {name:?}: no memif server connected within {waited:?} on {socket}: {reason}: \
         start the side with role=server first, as the same user, with the same socket= and id="
    )]
    NoPeer {
        /// Name of the device.
        name: String,
        /// Time of the wait.
        waited: Duration,
        /// Name of the socket.
        socket: String,
        /// Reason why the last attempt failed.
        reason: String,
    },
    /// A stop request ended the wait for the memif server.
    #[error("device {name:?}: stopped before its memif server connected")]
    Stopped {
        /// Name of the device.
        name: String,
    },
    /// A call of `restart` lacked some ports or outlets.
    #[error(
        "device {name:?} restarts with all of its {queues} ports and outlets in hand, not {given}"
    )]
    Ports {
        /// Name of the device.
        name: String,
        /// Number of its ports and outlets.
        queues: u16,
        /// Number of ports and outlets given.
        given: usize,
    },
}

/// A started device. Dropping it and all its ports stops and closes it.
pub struct Device(Arc<OpenedDevice>);

/// A device in DPDK. Its ports share it.
struct OpenedDevice {
    /// Port id in DPDK while the device is open.
    id: AtomicU16,
    /// Name by which it was opened, with arguments.
    name: String,
    /// Name in EAL: the full address of a PCI device, or a virtual device's name without arguments.
    full_name: String,
    /// MAC address at the first set-up.
    mac: [u8; 6],
    /// Options of its set-up.
    options: DeviceOptions,
    /// Presence of a device that can be unplugged: a NIC.
    presence: Option<Arc<DevicePresence>>,
    /// Gate that keeps outlets out of bursts during the close or reset of such a device.
    gate: Arc<Gate>,
    /// Step between a removal or reset and the return.
    lifecycle: Mutex<Lifecycle>,
    /// Number of removals, without resets.
    removals: AtomicU64,
    /// Counters that the driver reported.
    counts: Mutex<DriverCounts>,
    /// Distribution of packets over its queues.
    spread: Spread,
    /// RSS key, if one was set. Drivers keep a pointer to it until the device is closed.
    rss_key: Arc<OnceLock<Vec<u8>>>,
    /// Evidence that its receive interrupts work.
    evidence: Arc<InterruptEvidence>,
    /// Name of its driver, such as `net_memif`.
    driver: String,
    /// Number of transmit queues, at least one for each port.
    queues: u16,
    /// Number of receive queues in total.
    rx: u16,
    /// Relay to the peers of a memif device.
    relay: Option<RelayedDevice>,
    /// Registration at the relay of a memif server. The relay accepts peers while it exists.
    serving: Option<ServerDevice>,
    /// Sockets of an AF_PACKET or AF_XDP device.
    kernel_rings: KernelRings,
    /// True if its receive queues have interrupts.
    interrupts: bool,
    /// Receive offloads in use, one bit each.
    offloads: u64,
    /// True if it verifies either the IPv4 or the UDP checksum, not both.
    verifies_one: bool,
    /// Position and clock of the receive time in its packets.
    stamps: Result<Stamping, NoStamps>,
    /// Number of packets whose checksum the ports finished.
    partial: AtomicU64,
    /// Number of packets of other VLANs than the port's, which the ports freed.
    other_vlans: AtomicU64,
    /// Pool of the receive queues, which must outlive them.
    pool: MbufPool,
    /// Keeps EAL running.
    eal: Eal,
}

/// Step of a device's lifecycle: from use over a removal or reset to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifecycle {
    /// Open.
    Open,
    /// Withdrawn, but cores may still be in a burst.
    Leaving(Cause),
    /// Closed after a removal, or stopped and reset. Holds the time of the last check for its return, if any.
    Absent(Option<Instant>),
}

/// Counters of a driver, which start again after each removal or reset.
#[derive(Debug, Default)]
struct DriverCounts {
    /// Sum of the last values before each removal or reset.
    earlier: DeviceStats,
    /// Last values since then.
    current: DeviceStats,
}

/// Event of a device that the watching thread handled ([`Device::advance_lifecycle`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device was unplugged, and is closed.
    Removed,
    /// The driver asked for a reset. The device is reset; no core uses it until [`DeviceEvent::Returned`].
    Resetting,
    /// The device is back and open, with this warning if packets may not reach it.
    Returned(Option<String>),
    /// The device is back, but cannot be opened; the text says why.
    Failed(String),
}

/// Counters of the device since it was first opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets lost because a receive queue was full, including the kernel's queue before it.
    pub rx_missed: u64,
    /// Received packets with a checksum that the kernel left to a device and the port finished.
    pub rx_partial: u64,
    /// Received packets of another VLAN than the port's; the port freed them.
    pub rx_other_vlan: u64,
    /// Packets that arrived damaged.
    pub rx_errors: u64,
    /// Packets lost because the pool had no mbuf.
    pub rx_no_mbuf: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Peers refused by a memif device's socket.
    pub peers_refused: u64,
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if a peer is connected or the carrier is on.
    pub up: bool,
    /// Speed in Mb/s; meaningless for virtual devices.
    pub speed_mbps: u32,
}

impl Device {
    /// Configures and starts a device, and returns one port for each queue pair. `name` is a PCI address, or
    /// a virtual device's name, with or without arguments.
    ///
    /// # Errors
    /// If there is no such device, it has too few queues, or it refuses a step of its configuration. For a memif client
    /// also if no server connects in time, or a stop request comes first.
    pub fn open(
        eal: &Eal,
        name: &str,
        pool: &MbufPool,
        options: &DeviceOptions,
    ) -> Result<(Self, Vec<QueuePort>), DeviceError> {
        let (device, ports, _) = Self::open_with_outlets(eal, name, pool, options)?;
        Ok((device, ports))
    }

    /// Like [`Device::open`], but also returns the requested outlets, up to the number that the device has.
    ///
    /// # Errors
    /// See [`Device::open`].
    pub fn open_with_outlets(
        eal: &Eal,
        name: &str,
        pool: &MbufPool,
        options: &DeviceOptions,
    ) -> Result<(Self, Vec<QueuePort>, Vec<Outlet>), DeviceError> {
        let id = find(name)?;
        let rss_key = Arc::default();
        let mut setup = Setup { id, name, pool, options, rss_key, rx: 0, tx: 0, interrupts: false };
        let log = LogCapture::start();
        let opened = setup.open(eal);
        let log_text = log.map(LogCapture::finish).unwrap_or_default();
        let opened = Arc::new(opened.map_err(|error| error.with_log(&log_text))?);
        super::log::log_captured(&log_text);
        let port = |queue| {
            let (device, inlets) = (Arc::clone(&opened), 0..0);
            let is_outlet = queue >= options.queues; // outlets have the last numbers
            let guard = match (&device.relay, &device.presence) {
                (Some(memif), _) => Guard::Gate(memif.relay.gate().pass()),
                (None, Some(presence)) if is_outlet => {
                    Guard::Outlet(device.gate.pass(), Arc::clone(presence))
                }
                (None, Some(presence)) => Guard::Presence(presence.reader()),
                (None, None) => Guard::Open,
            };
            let checksums = Checksums {
                finishes: SOFTWARE_DRIVERS.contains(&device.driver.as_str()),
                verifies_one: device.verifies_one,
                trusts: options.trust_checksums,
            };
            let vlan = options.vlan;
            let is_plain = checksums == Checksums::default() && vlan.is_none();
            let one_thread = PhantomData;
            QueuePort {
                id,
                queue,
                inlets,
                checksums,
                vlan,
                is_plain,
                guard,
                device,
                _one_thread: one_thread,
            }
        };
        let mut ports: Vec<_> = (0..options.queues).map(port).collect();
        if let Some(first) = ports.first_mut() {
            first.inlets = options.queues..setup.rx;
            first.is_plain &= first.inlets.is_empty();
        }
        let outlets = (options.queues..setup.tx).map(|queue| Outlet(port(queue))).collect();
        Ok((Self(opened), ports, outlets))
    }

    /// Stops and starts the device, so that a memif client without a server connects to the next one. Servers
    /// and other devices recover by themselves. `ports` are all ports of the device: the mutable borrow
    /// proves that no thread polls them.
    ///
    /// # Errors
    /// If a port is missing, the device has outlets, or it does not start. The call may be repeated.
    pub fn restart(
        &self,
        ports: &mut [QueuePort],
        wait_for_peer: Duration,
    ) -> Result<(), DeviceError> {
        self.restart_with_outlets(ports, &mut [], wait_for_peer)
    }

    /// Like [`Device::restart`], for a device with outlets. `outlets` are all of them.
    ///
    /// # Errors
    /// If a port or an outlet is missing, or the device does not start. The call may be repeated.
    pub fn restart_with_outlets(
        &self,
        ports: &mut [QueuePort],
        outlets: &mut [Outlet],
        wait_for_peer: Duration,
    ) -> Result<(), DeviceError> {
        let all = ports.iter().chain(outlets.iter().map(|outlet| &outlet.0));
        let given = all.filter(|port| Arc::ptr_eq(&port.device, &self.0)).count();
        if given != usize::from(self.0.queues) {
            return Err(DeviceError::Ports {
                name: self.0.name.clone(),
                queues: self.0.queues,
                given,
            });
        }
        let log = LogCapture::start();
        // Every port and outlet is borrowed here, so no thread polls. A running device keeps its number of queues, so
        // the number of refusals has no limit.
        let started = self.0.stop().and_then(|()| {
            let options = DeviceOptions { wait_for_peer, ..DeviceOptions::default() };
            self.0.start(&options, u32::MAX)
        });
        let log_text = log.map(LogCapture::finish).unwrap_or_default();
        started.map(drop).map_err(|error| error.with_log(&log_text))
    }

    /// Returns the name by which it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the driver's name, such as `net_memif`.
    pub fn driver(&self) -> &str {
        &self.0.driver
    }

    /// Returns the device's MAC address; zeros while DPDK has no port for an unplugged device.
    pub fn mac(&self) -> [u8; 6] {
        mac_of(self.0.id())
    }

    /// Handles events of a device that can be unplugged: closes it once no core polls it, and opens it again when it is
    /// back. Called regularly by the watching thread; never waits for a core. Opening may take a second.
    pub fn advance_lifecycle(&self) -> Option<DeviceEvent> {
        self.0.advance_lifecycle()
    }

    /// Returns true while the device is unplugged or in a reset: from its withdrawal until it is open again.
    pub fn is_absent(&self) -> bool {
        *self.0.lifecycle() != Lifecycle::Open
    }

    /// Returns the number of removals since it was opened.
    pub fn removals(&self) -> u64 {
        self.0.removals.load(Relaxed)
    }

    /// Returns false after several sleeps in which packets waited and the receive interrupt did not come. Cores then
    /// take short naps instead of sleeps, until an interrupt comes.
    pub fn delivers_interrupts(&self) -> bool {
        !self.0.evidence.is_broken()
    }

    /// Returns the position of the receive time in packets, and its clock. [`Device::clock`] reads the
    /// device's own clock.
    ///
    /// # Errors
    /// If packets have no receive time, or the driver does not expose its clock.
    pub fn stamps(&self) -> Result<Stamping, NoStamps> {
        let stamping = self.0.stamps.clone()?;
        match stamping.clock {
            StampClock::Device => self.clock().map(|_| stamping),
            StampClock::Kernel { .. } => Ok(stamping),
        }
    }

    /// Reads the device's own clock of its time stamps, in its own ticks. May query the device, so it is too
    /// slow for each packet.
    ///
    /// # Errors
    /// If the driver does not expose it.
    pub fn clock(&self) -> Result<u64, NoStamps> {
        let driver = || self.0.driver.clone();
        stamps::read_clock(self.0.id())
            .map_err(|reason| NoStamps::Clock { driver: driver(), reason })
    }

    /// Returns a function that reads the clock of [`Device::clock`] on any thread, for the conversion of timestamps. It
    /// returns `None` on failure, and keeps the device open.
    pub fn clock_reader(&self) -> impl Fn() -> Option<u64> + Send + 'static {
        let device = Arc::clone(&self.0);
        move || stamps::read_clock(device.id()).ok()
    }

    /// Returns the NUMA node of the device, if known.
    pub fn node(&self) -> Option<usize> {
        // SAFETY: the port is open.
        usize::try_from(unsafe { sys::rte_eth_dev_socket_id(self.0.id()) }).ok()
    }

    /// Returns the header fields of the hash that the driver reports as enabled. `None` if it hashes no UDP or reports
    /// no hash.
    pub fn rss(&self) -> Option<RssFields> {
        let mut conf = sys::rte_eth_rss_conf::default();
        // SAFETY: the port is open and `conf` is valid for writing. Without room for a key DPDK writes none.
        let error = unsafe { sys::rte_eth_dev_rss_hash_conf_get(self.0.id(), &mut conf) };
        if error == 0 { RssFields::of(conf.rss_hf) } else { None }
    }

    /// Returns the rule by which the device spreads UDP packets over its queues, if it has several. The node logs it,
    /// and warns about [`Spread::None`].
    pub fn spread(&self) -> Spread {
        self.0.spread
    }

    /// Returns the properties of the device, for `wedjat doctor --probe`.
    ///
    /// # Errors
    /// If the driver does not describe it, for example because it was unplugged.
    pub fn properties(&self) -> Result<DeviceProperties, DeviceError> {
        let device = &self.0;
        let id = device.id();
        let info = info(id, &device.name)?;
        let offered = info.flow_type_rss_offloads;
        let one_end = [RssFields::Source, RssFields::Destination];
        Ok(DeviceProperties {
            name: device.name.clone(),
            driver: device.driver.clone(),
            firmware: properties::firmware(id),
            mtu: properties::mtu(id),
            node: self.node(),
            rx_queues: (device.rx, info.max_rx_queues),
            tx_queues: (device.queues, info.max_tx_queues),
            offloads: properties::offload_names(device.offloads),
            hashes_udp: RssFields::of(offered).is_some(),
            hashes_one_end: one_end.into_iter().all(|fields| fields.is_offered(offered)),
            key_bytes: info.hash_key_size,
            table_entries: info.reta_size,
            spread: device.spread,
            has_interrupts: device.interrupts,
        })
    }

    /// Returns the state of the link, without waiting. The link is down while the device is absent, and stays down once
    /// the kernel has removed the interface.
    pub fn link(&self) -> Link {
        let link = self.0.link();
        Link { up: link.up && !self.is_removed(), ..link }
    }

    /// Returns true if the kernel has removed the interface of an AF_PACKET or AF_XDP device. The device
    /// never receives or sends again.
    pub fn is_removed(&self) -> bool {
        self.0.kernel_rings.is_removed()
    }

    /// Returns the number of ended connections with memif peers since the device was opened; always 0 for
    /// other devices. It shows a peer that left and returned between two calls of [`Device::link`].
    pub fn disconnects(&self) -> u64 {
        self.0.relay.as_ref().map_or(0, |memif| memif.relay.ended(memif.id))
    }

    /// Returns the device's counters, those before a removal included; zeros for a device without counters.
    pub fn stats(&self) -> DeviceStats {
        let (device, lifecycle) = (&self.0, self.0.lifecycle());
        let mut counts = device.counts();
        if *lifecycle == Lifecycle::Open {
            device.read_counters(&mut counts);
        }
        let total = counts.total();
        DeviceStats {
            rx_missed: total.rx_missed + device.kernel_rings.dropped(),
            rx_partial: device.partial.load(Relaxed),
            rx_other_vlan: device.other_vlans.load(Relaxed),
            peers_refused: device.relay.as_ref().map_or(0, |memif| memif.relay.refused()),
            ..total
        }
    }

    /// Returns the driver's own statistics by DPDK's names (`rte_eth_xstats_get`); empty if the driver
    /// refuses. Allocates and may query the device, so polling threads must not call it.
    pub fn xstats(&self) -> BTreeMap<String, u64> {
        if self.is_absent() {
            return BTreeMap::new();
        }
        let id = self.0.id();
        // SAFETY: the port is open. Without room DPDK writes nothing and returns the number of values.
        let count = unsafe { sys::rte_eth_xstats_get_names(id, std::ptr::null_mut(), 0) };
        let count = usize::try_from(count).unwrap_or(0);
        let mut names = vec![sys::rte_eth_xstat_name::default(); count];
        let mut values = vec![sys::rte_eth_xstat::default(); count];
        // SAFETY: both vectors have room for `count` entries.
        let (named, counted) = unsafe {
            let named = sys::rte_eth_xstats_get_names(id, names.as_mut_ptr(), count as u32);
            (named, sys::rte_eth_xstats_get(id, values.as_mut_ptr(), count as u32))
        };
        let filled = |found: c_int| usize::try_from(found).ok().filter(|&found| found <= count);
        let (Some(named), Some(counted)) = (filled(named), filled(counted)) else {
            return BTreeMap::new(); // the driver failed or has more values by now
        };
        let name = |value: &sys::rte_eth_xstat| {
            let name = names[..named].get(usize::try_from(value.id).ok()?)?;
            let bytes: Vec<u8> = name.name.iter().map(|&byte| byte as u8).collect();
            CStr::from_bytes_until_nul(&bytes).ok().map(|name| name.to_string_lossy().into_owned())
        };
        values[..counted].iter().filter_map(|value| Some((name(value)?, value.value))).collect()
    }
}

impl DeviceStats {
    /// Returns the sums of the driver's counters, with 0 for the counters of relay, sockets and ports.
    fn plus(&self, other: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets + other.rx_packets,
            tx_packets: self.tx_packets + other.tx_packets,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            rx_missed: self.rx_missed + other.rx_missed,
            rx_errors: self.rx_errors + other.rx_errors,
            rx_no_mbuf: self.rx_no_mbuf + other.rx_no_mbuf,
            tx_errors: self.tx_errors + other.tx_errors,
            ..Self::default()
        }
    }
}

impl DriverCounts {
    /// Returns the counters since the device was first opened.
    fn total(&self) -> DeviceStats {
        self.earlier.plus(&self.current)
    }

    /// Keeps the current values. The driver's next ones start at zero.
    fn begin_again(&mut self) {
        self.earlier = self.earlier.plus(&std::mem::take(&mut self.current));
    }
}

impl OpenedDevice {
    /// Returns the port id in DPDK of the last set-up.
    fn id(&self) -> u16 {
        self.id.load(Relaxed)
    }

    /// Locks the lifecycle. A panicked thread leaves it consistent.
    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the driver's counters. A panicked thread leaves them consistent.
    fn counts(&self) -> MutexGuard<'_, DriverCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the driver's counters of an open device. Keeps the last values of a NIC that is unplugged already: its
    /// registers read as ones.
    fn read_counters(&self, counts: &mut DriverCounts) {
        if self.presence.is_some() && !is_connected(&self.full_name) {
            return;
        }
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: the port is open and `stats` is valid for writing.
        unsafe { sys::rte_eth_stats_get(self.id(), &mut stats) };
        counts.current = DeviceStats {
            rx_packets: stats.ipackets,
            tx_packets: stats.opackets,
            rx_bytes: stats.ibytes,
            tx_bytes: stats.obytes,
            rx_missed: stats.imissed,
            rx_errors: stats.ierrors,
            rx_no_mbuf: stats.rx_nombuf,
            tx_errors: stats.oerrors,
            ..DeviceStats::default()
        };
    }

    /// Implements [`Device::advance_lifecycle`]: takes at most one step of the lifecycle. A reset device stays in DPDK,
    /// so the next call opens it. An unplugged one is opened once it is bound again. Returns `None` without a
    /// reportable event.
    fn advance_lifecycle(&self) -> Option<DeviceEvent> {
        let presence = self.presence.as_ref()?;
        let mut lifecycle = self.lifecycle();
        match *lifecycle {
            Lifecycle::Open => {
                let cause = events::take(&self.full_name)?;
                presence.withdraw();
                let mut counts = self.counts();
                self.read_counters(&mut counts);
                counts.begin_again();
                *lifecycle = Lifecycle::Leaving(cause);
                None
            }
            Lifecycle::Leaving(_) if !presence.is_acknowledged() => None,
            Lifecycle::Leaving(cause) => {
                // A removal may follow a reset request.
                let is_removed = events::take_cause(&self.full_name, Cause::Removal);
                *lifecycle = Lifecycle::Absent(None);
                Some(self.leave(if is_removed { Cause::Removal } else { cause }))
            }
            Lifecycle::Absent(Some(checked)) if checked.elapsed() < RETURN_RETRY => None,
            Lifecycle::Absent(_) => {
                *lifecycle = Lifecycle::Absent(Some(Instant::now()));
                let is_in_dpdk = find(&self.name).is_ok();
                if is_in_dpdk && events::take_cause(&self.full_name, Cause::Removal) {
                    return Some(self.leave(Cause::Removal)); // during its reset
                }
                if !is_in_dpdk && !is_bound(&self.full_name) {
                    return None;
                }
                let event = match self.reopen() {
                    Ok((id, warning)) => {
                        self.id.store(id, Relaxed);
                        *lifecycle = Lifecycle::Open;
                        presence.restore(id);
                        DeviceEvent::Returned(warning)
                    }
                    Err(error) => DeviceEvent::Failed(error.to_string()),
                };
                Some(event)
            }
        }
    }

    /// Closes or resets a device that no core polls. Returns the event to report.
    fn leave(&self, cause: Cause) -> DeviceEvent {
        // Waits for an outlet in the middle of a burst, which is short.
        self.gate.while_closed(|| self.close(cause));
        events::forget(&self.full_name, cause);
        match cause {
            Cause::Removal => {
                self.removals.fetch_add(1, Relaxed);
                DeviceEvent::Removed
            }
            Cause::Reset => DeviceEvent::Resetting,
        }
    }

    /// Stops the device, which no thread may poll. After a removal, closes it, so that EAL gives the NIC back to the
    /// kernel. Otherwise resets it.
    fn close(&self, cause: Cause) {
        let id = self.id();
        // SAFETY: the port is open, and no thread polls it. Closing frees the mbufs of its queues.
        unsafe {
            let mut info = sys::rte_eth_dev_info::default();
            let is_known = sys::rte_eth_dev_info_get(id, &mut info) == 0;
            sys::rte_eth_dev_stop(id);
            if cause == Cause::Reset {
                sys::rte_eth_dev_reset(id);
                return;
            }
            sys::rte_eth_dev_close(id);
            if is_known {
                sys::rte_dev_remove(info.device);
            }
        }
    }

    /// Opens the device again with its options. Returns its port id, and a warning if it has another MAC address.
    fn reopen(&self) -> Result<(u16, Option<String>), DeviceError> {
        let log = LogCapture::start();
        let opened = self.probe_and_open();
        let log_text = log.map(LogCapture::finish).unwrap_or_default();
        opened.map_err(|error| error.with_log(&log_text))
    }

    /// Makes EAL find the device, and opens it, for [`OpenedDevice::reopen`].
    fn probe_and_open(&self) -> Result<(u16, Option<String>), DeviceError> {
        if find(&self.name).is_err() {
            let name = CString::new(self.full_name.as_str()).unwrap_or_default();
            // SAFETY: the name is a C string, which EAL copies.
            accept(&self.name, "find it again", unsafe { sys::rte_dev_probe(name.as_ptr()) })?;
        }
        let id = find(&self.name)?;
        let device = info(id, &self.name)?.device;
        let opened = self.open_again(id);
        // A failed set-up closes the port. EAL refuses to probe the device again before it is removed.
        if opened.is_err() && find(&self.name).is_err() {
            // SAFETY: the bus keeps a closed device until its removal.
            unsafe { sys::rte_dev_remove(device) };
        }
        opened
    }

    /// Opens the device at this port id, for [`OpenedDevice::reopen`].
    fn open_again(&self, id: u16) -> Result<(u16, Option<String>), DeviceError> {
        let (name, pool, options) = (self.name.as_str(), &self.pool, &self.options);
        let rss_key = Arc::clone(&self.rss_key);
        let mut setup = Setup { id, name, pool, options, rss_key, rx: 0, tx: 0, interrupts: false };
        let opened = setup.open(&self.eal)?;
        if (opened.rx, opened.queues, opened.verifies_one)
            != (self.rx, self.queues, self.verifies_one)
        {
            let reason =
                format!("it is another kind of NIC now ({}); restart the node", opened.driver);
            let (name, step) = (self.name.clone(), "open it again");
            return Err(DeviceError::Refused { name, step, reason, said: String::new() });
        }
        let warning = (opened.mac != self.mac).then(|| adopt_mac(id, self.mac)).flatten();
        // Prevents the drop of `opened` from closing the port, which `self` owns from here on.
        *opened.lifecycle() = Lifecycle::Absent(None);
        Ok((id, warning))
    }

    /// Starts the device. A memif client connects once per start, and only to a running server, so this repeats the
    /// start until the connection is up. Returns false after `refusals` attempts at a running server without a
    /// connection: it refused, or did not answer in time.
    fn start(&self, options: &DeviceOptions, refusals: u32) -> Result<bool, DeviceError> {
        let is_client = |memif: &&RelayedDevice| memif.relay.role() == Role::Client;
        let Some(RelayedDevice { relay, id, .. }) = self.relay.as_ref().filter(is_client) else {
            return self.try_start().map(|()| true);
        };
        let rings = memif::rings(Role::Client, self.rx, self.queues);
        let (began, mut refused) = (Instant::now(), 0);
        loop {
            if let Some(connection) = relay.connect(*id, rings, || self.try_start().is_ok()) {
                let is_connected = || relay.is_connected(*id);
                if wait_for_connection(is_connected, &connection, &options.stop) {
                    return Ok(true);
                }
                self.stop()?;
                refused += 1;
                if refused == refusals {
                    return Ok(false);
                }
            }
            let name = self.name.clone();
            if options.stop.load(Acquire) {
                return Err(DeviceError::Stopped { name });
            }
            if began.elapsed() >= options.wait_for_peer {
                let (socket, reason) = (relay.public_socket().to_string(), relay.last_refusal());
                let waited = options.wait_for_peer;
                return Err(DeviceError::NoPeer { name, waited, socket, reason });
            }
            std::thread::sleep(PEER_RETRY);
        }
    }

    /// Starts the device once.
    fn try_start(&self) -> Result<(), DeviceError> {
        // SAFETY: every queue is set up.
        accept(&self.name, "start it", unsafe { sys::rte_eth_dev_start(self.id()) })
    }

    /// Stops the device. The caller must ensure that no thread polls it.
    fn stop(&self) -> Result<(), DeviceError> {
        let (id, outcome) = (self.id(), AtomicI32::new(0));
        self.run_exclusively(&|| {
            // SAFETY: the device is open. Polling a stopped device is an error that DPDK logs, not undefined
            // behaviour.
            outcome.store(unsafe { sys::rte_eth_dev_stop(id) }, Relaxed);
        });
        accept(&self.name, "stop it", outcome.load(Relaxed))
    }

    /// Runs `work` while the memif driver handles no peer; runs it at once for other drivers.
    fn run_exclusively(&self, work: &(dyn Fn() + Sync)) {
        match self.driver.as_str() {
            "net_memif" => take_turn(work),
            _ => work(),
        }
    }

    /// Returns the state of the link as the driver reports it.
    fn link(&self) -> Link {
        let mut speed_mbps = 0;
        if *self.lifecycle() != Lifecycle::Open {
            return Link { up: false, speed_mbps };
        }
        // SAFETY: the port is open and the speed is valid for writing.
        let up = unsafe { sys::wedjat_link_up(self.id(), &mut speed_mbps) } == 1;
        Link { up, speed_mbps }
    }
}

impl Drop for OpenedDevice {
    /// Stops and closes the device.
    fn drop(&mut self) {
        let id = self.id();
        if matches!(*self.lifecycle(), Lifecycle::Absent(_)) {
            return; // closed or reset already, or owned by another `OpenedDevice`
        }
        // Stops accepting peers: one that connects from now on would get no answer.
        self.serving = None;
        // SAFETY: this is the last owner, so no thread polls a queue any more. Closing frees the mbufs of the
        // queues.
        self.run_exclusively(&|| unsafe {
            sys::rte_eth_dev_stop(id);
            sys::rte_eth_dev_close(id);
        });
    }
}

/// Waits until a memif client `is_connected`. Returns false if the server refuses or does not answer in time, or after
/// a stop request. The driver's link is up earlier, when the gate is still closed and ports send nothing.
fn wait_for_connection(
    is_connected: impl Fn() -> bool,
    connection: &JoinHandle<()>,
    stop: &AtomicBool,
) -> bool {
    let began = Instant::now();
    let may_continue = || !connection.is_finished() && !stop.load(Acquire);
    while began.elapsed() < PEER_ANSWER && may_continue() {
        if is_connected() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Check before each burst that the device may be used.
enum Guard {
    /// No check: a virtual device stays while it has ports.
    Open,
    /// Pass of the gate that closes while the driver maps or unmaps a memif peer's memory.
    Gate(Pass),
    /// A queue pair of a NIC, which may be unplugged. Its core acknowledges the withdrawal at its next burst.
    Presence(PresenceReader),
    /// A NIC's outlet. Its thread may send nothing for a long time, so the watching thread closes the gate instead of
    /// waiting for an acknowledgement.
    Outlet(Pass, Arc<DevicePresence>),
}

/// One queue pair of a device. One thread at a time polls it; it may move between threads.
pub struct QueuePort {
    /// Port id of the device in DPDK at the first set-up. A returned NIC may have another, which the guard holds.
    id: u16,
    /// Number of the queue pair in the device.
    queue: u16,
    /// Receive queues that this port polls besides its own.
    inlets: Range<u16>,
    /// Treatment of checksums that the device has not verified.
    checksums: Checksums,
    /// VLAN of the port.
    vlan: Option<u16>,
    /// True if received packets need no further work, and the port polls no inlets.
    is_plain: bool,
    /// Check before each burst.
    guard: Guard,
    /// Device of the queue pair, which its last port or owner closes.
    device: Arc<OpenedDevice>,
    // DPDK's bursts take no lock: two threads must never share a queue.
    _one_thread: PhantomData<Cell<()>>,
}

impl QueuePort {
    /// Returns the number of the queue pair in the device.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the source of wake-ups by which the port can end its core's sleep.
    pub(super) fn source(&self) -> WakeSource {
        let device = &self.device;
        let queues = std::iter::once(self.queue).chain(self.inlets.clone());
        match (&device.relay, device.driver.as_str()) {
            (Some(memif), _) => {
                let (relay, id) = (Arc::clone(&memif.relay), memif.id);
                WakeSource::Memif { relay, id, rings: queues.collect() }
            }
            (None, "net_af_packet" | "net_af_xdp") => {
                let sockets = |queue| device.kernel_rings.of_queue(queue, device.rx);
                let sockets: BTreeSet<_> = queues.flat_map(sockets).collect();
                WakeSource::Sockets(sockets.into_iter().collect())
            }
            _ if device.interrupts => {
                let presence = match &self.guard {
                    Guard::Presence(reader) => Some(reader.handle()),
                    _ => None,
                };
                let (id, evidence) = (self.id, Arc::clone(&device.evidence));
                WakeSource::Interrupt { presence, id, queues: queues.collect(), evidence }
            }
            _ => WakeSource::Nothing,
        }
    }

    /// Receives from one queue. Returns 0 while the gate is closed or the device is absent.
    #[inline]
    fn receive(&mut self, queue: u16, burst: &mut Burst<Mbuf>) -> usize {
        match &mut self.guard {
            Guard::Open => receive(self.id, queue, burst),
            Guard::Presence(reader) => match reader.id() {
                Some(id) => receive(id, queue, burst),
                None => 0,
            },
            Guard::Gate(pass) => pass.burst(|| receive(self.id, queue, burst)),
            Guard::Outlet(..) => 0,
        }
    }

    /// Completes a receive on a port that is not plain. Polls the inlets, and processes the VLAN tags and checksums of
    /// the packets after the first `before`. Returns the number of these packets.
    #[inline(never)]
    fn receive_more(&mut self, before: usize, burst: &mut Burst<Mbuf>) -> usize {
        self.receive_inlets(burst);
        if let Some(id) = self.vlan {
            vlan::untag(id, before, burst, &self.device.other_vlans);
        }
        let mut partial = 0;
        for packet in burst[before..].iter_mut().filter(|packet| !packet.checksums_verified()) {
            partial += u64::from(self.checksums.settle(packet));
        }
        if partial > 0 {
            self.device.partial.fetch_add(partial, Relaxed);
        }
        burst.len() - before
    }

    /// Receives from the inlets while the burst has room.
    fn receive_inlets(&mut self, burst: &mut Burst<Mbuf>) {
        for queue in self.inlets.clone() {
            if !burst.is_full() {
                self.receive(queue, burst);
            }
        }
    }

    /// Sends a burst. Returns 0 while the gate is closed or the device is absent.
    #[inline]
    fn send(&mut self, burst: &mut Burst<Mbuf>) -> usize {
        match &mut self.guard {
            Guard::Open => send(self.id, self.queue, burst),
            Guard::Presence(reader) => match reader.id() {
                Some(id) => send(id, self.queue, burst),
                None => 0,
            },
            Guard::Gate(pass) => pass.burst(|| send(self.id, self.queue, burst)),
            Guard::Outlet(pass, presence) => {
                pass.burst(|| presence.id().map_or(0, |id| send(id, self.queue, burst)))
            }
        }
    }
}

impl Port for QueuePort {
    type Buf = Mbuf;

    /// Receives from the port's queue, and does the further work of a port that is not plain.
    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst<Mbuf>) -> usize {
        let before = burst.len();
        let received = self.receive(self.queue, burst);
        match self.is_plain {
            true => received,
            false => self.receive_more(before, burst),
        }
    }

    /// Sends a burst, with the tag of the port's VLAN if it has one.
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<Mbuf>) -> usize {
        match self.vlan {
            None => self.send(burst),
            Some(id) => vlan::send_tagged(id, burst, |burst| self.send(burst)),
        }
    }

    /// Returns true while a NIC is unplugged or in a reset. The port's core notices this at its next burst. The core
    /// then counts unsent packets as dropped for this reason, not for a full queue.
    fn is_removed(&self) -> bool {
        match &self.guard {
            Guard::Presence(reader) => reader.is_withdrawn(),
            Guard::Outlet(_, presence) => presence.id().is_none(),
            Guard::Open | Guard::Gate(_) => false,
        }
    }
}

/// Appends packets from one receive queue to `burst`. Returns their number.
#[inline]
fn receive(id: u16, queue: u16, burst: &mut Burst<Mbuf>) -> usize {
    let len = burst.len();
    let room = burst.remaining_capacity() as u16;
    // SAFETY: `Mbuf` is a transparent pointer, so the spare capacity is an array of `room` rte_mbuf pointers.
    // The driver fills the first `received` of them with mbufs and gives up their ownership. The new length
    // covers only those.
    unsafe {
        let spare = burst.as_mut_ptr().add(len).cast::<*mut sys::rte_mbuf>();
        let received = usize::from(sys::rte_eth_rx_burst(id, queue, spare, room));
        burst.set_len(len + received);
        received
    }
}

/// Sends packets from the front of `burst` and removes them. Returns their number.
#[inline]
fn send(id: u16, queue: u16, burst: &mut Burst<Mbuf>) -> usize {
    let len = burst.len();
    if len == 0 {
        // The driver of memif (DPDK 22.11) would wake its peer for an empty burst.
        return 0;
    }
    // SAFETY: the burst is an array of `len` rte_mbuf pointers. The driver takes ownership of the first
    // `sent`, so they leave the burst without a drop. The remaining ones move to its front.
    unsafe {
        let start = burst.as_mut_ptr();
        let sent = usize::from(sys::rte_eth_tx_burst(id, queue, start.cast(), len as u16));
        if sent < len {
            std::ptr::copy(start.add(sent), start, len - sent);
        }
        burst.set_len(len - sent);
        sent
    }
}

/// A transmit queue of a device without a receive queue: it never receives.
pub struct Outlet(QueuePort);

impl Port for Outlet {
    type Buf = Mbuf;

    /// Receives nothing.
    #[inline]
    fn rx_burst(&mut self, _: &mut Burst<Mbuf>) -> usize {
        0
    }

    /// Sends from the front of `burst`, like the port of a queue pair.
    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst<Mbuf>) -> usize {
        self.0.tx_burst(burst)
    }

    /// Returns true while the device is unplugged or in a reset.
    fn is_removed(&self) -> bool {
        self.0.is_removed()
    }
}

/// Steps of a device's set-up, in DPDK's order (programmer's guide, "Poll Mode Driver").
struct Setup<'a> {
    /// Port id in DPDK.
    id: u16,
    /// Name of the device, with arguments.
    name: &'a str,
    /// Pool of the receive queues.
    pool: &'a MbufPool,
    /// Options of the device.
    options: &'a DeviceOptions,
    /// RSS key, if one was set; the opened device keeps it, too.
    rss_key: Arc<OnceLock<Vec<u8>>>,
    /// Number of receive queues, once known.
    rx: u16,
    /// Number of transmit queues, once known.
    tx: u16,
    /// True if receive queues get interrupts.
    interrupts: bool,
}

impl Setup<'_> {
    /// Configures and starts the device. Tries again without receive interrupts if the start fails with them, and
    /// without outlets if a memif client gets no link with them. A memif server accepts peers only after its start.
    fn open(&mut self, eal: &Eal) -> Result<OpenedDevice, DeviceError> {
        let info = info(self.id, self.name)?;
        self.check_queues(&info)?;
        let driver = driver_name(&info);
        let relay = eal.relay(self.name.split(',').next().unwrap_or_default());
        self.count_queues(&info, relay.as_ref(), &driver);
        // Virtual devices have no receive interrupts, or wake a core by other means.
        let is_physical = is_pci_address(self.name.split(',').next().unwrap_or_default());
        self.interrupts = self.options.interrupts && is_physical;
        self.configure(&info)?;
        let interface = self.interface(eal);
        // From here on a failure drops `opened`, which closes the device.
        let can_be_unplugged = is_physical && relay.is_none();
        let mut opened = OpenedDevice {
            id: AtomicU16::new(self.id),
            name: self.name.to_owned(),
            full_name: full_name(self.name),
            mac: mac_of(self.id),
            options: self.options.clone(),
            presence: can_be_unplugged.then(|| DevicePresence::new(self.id)),
            gate: Arc::default(),
            lifecycle: Mutex::new(Lifecycle::Open),
            removals: AtomicU64::new(0),
            counts: Mutex::default(),
            spread: self.spread(&info),
            rss_key: Arc::clone(&self.rss_key),
            evidence: Arc::default(),
            relay,
            serving: None,
            kernel_rings: match (driver.as_str(), interface.as_deref()) {
                ("net_af_packet", Some(interface)) => KernelRings::of(interface),
                _ => KernelRings::default(),
            },
            interrupts: self.interrupts,
            offloads: self.rx_offloads(&info),
            verifies_one: self.checksum_offloads(&info).count_ones() == 1,
            stamps: self.stamps(&info, &driver),
            partial: AtomicU64::new(0),
            other_vlans: AtomicU64::new(0),
            driver,
            queues: self.tx,
            rx: self.rx,
            pool: self.pool.clone(),
            eal: eal.clone(),
        };
        let before = kernel_rings::xdp_sockets();
        self.set_up_queues()?;
        if opened.driver == "net_af_xdp" {
            opened.kernel_rings = KernelRings::xdp_since(&before, interface.as_deref());
        }
        // SAFETY: the port is configured.
        let all_groups = || unsafe { sys::rte_eth_allmulticast_enable(self.id) } == 0;
        if self.options.promiscuous || (self.options.multicast && !all_groups()) {
            // SAFETY: the port is configured. Virtual devices without this mode return an error, and receive
            // everything anyway.
            unsafe { sys::rte_eth_promiscuous_enable(self.id) };
        }
        // A client may give up extra transmit queues only if it has some.
        let refusals_max = if self.tx > self.options.queues { REFUSALS_MAX } else { u32::MAX };
        if self.interrupts && opened.start(self.options, refusals_max).is_err() {
            // A driver with interrupts may lack them here: without vfio, or with too few vectors.
            (self.interrupts, opened.interrupts) = (false, false);
            self.configure(&info)?;
            self.set_up_queues()?;
        }
        if !opened.interrupts && !opened.start(self.options, refusals_max)? {
            // The server probably has fewer receive queues than our transmit queues: continue without outlets.
            (self.tx, opened.queues) = (self.options.queues, self.options.queues);
            self.configure(&info)?;
            self.set_up_queues()?;
            opened.start(self.options, u32::MAX)?;
        }
        self.accept_vlan(&info);
        if opened.spread == Spread::Steered && !self.set_table(&info) {
            opened.spread = Spread::Fields(RssFields::FourTuple);
        }
        let served = opened.relay.as_ref().filter(|memif| memif.relay.role() == Role::Server);
        let rings = memif::rings(Role::Server, self.rx, self.tx);
        let serving = served.map(|memif| memif.relay.serve(memif.id, rings)).transpose();
        let (name, step) = (self.name.to_owned(), "start the thread that accepts its peers");
        opened.serving = serving.map_err(|error| DeviceError::Refused {
            name,
            step,
            reason: error.to_string(),
            said: String::new(),
        })?;
        Ok(opened)
    }

    /// Returns the kernel interface of the device: `iface=` in its own arguments or in EAL's `--vdev`. `None` without
    /// this argument.
    fn interface(&self, eal: &Eal) -> Option<String> {
        let name = self.name.split(',').next().unwrap_or_default();
        let is_this_device = |text: &&str| text.split(',').next() == Some(name);
        let in_eal =
            eal.arguments().iter().map(|text| text.strip_prefix("--vdev=").unwrap_or(text));
        let mut texts = std::iter::once(self.name).chain(in_eal).filter(is_this_device);
        texts.find_map(|text| vdev::argument(text, "iface")).map(str::to_owned)
    }

    /// Checks that the driver supports the requested number of queues.
    fn check_queues(&self, info: &sys::rte_eth_dev_info) -> Result<(), DeviceError> {
        let most = info.max_rx_queues.min(info.max_tx_queues.saturating_add(self.options.inlets));
        let asked = self.options.queues.saturating_add(self.options.inlets);
        // Without a queue pair, no port would poll the inlets.
        if self.options.queues > 0 && asked <= most {
            return Ok(());
        }
        let driver = driver_name(info);
        let hint = match driver.as_str() {
            "net_af_packet" => "; raise it with qpairs=N in its --vdev",
            "net_af_xdp" => {
                "; raise it with queue_count=N in its --vdev, and ethtool -L IFACE combined N"
            }
            "net_pcap" => "; name one rx_pcap and one tx_pcap a queue in its --vdev",
            _ => "; give it that many dispatcher cores at most",
        };
        Err(DeviceError::Queues { name: self.name.to_owned(), driver, asked, most, hint })
    }

    /// Sets the numbers of receive and transmit queues, and thus of outlets:
    /// - A memif server gets no outlets. It does not learn the number of its client's rings, and a write to a missing
    ///   ring corrupts the first one. A client has all its rings, or the server refuses it.
    /// - AF_PACKET and AF_XDP spread received packets over all queues. So each outlet has a receive queue, which the
    ///   first port polls.
    fn count_queues(
        &mut self,
        info: &sys::rte_eth_dev_info,
        relay: Option<&RelayedDevice>,
        driver: &str,
    ) {
        let DeviceOptions { queues, outlets, inlets, .. } = *self.options;
        // Outlets of a device with at most `most` queues.
        let spare = |most: u16| outlets.min(most.saturating_sub(queues));
        let (rx, outlets) = match driver {
            "net_memif" if relay.is_none_or(|memif| memif.relay.role() == Role::Server) => {
                (queues, 0)
            }
            "net_af_packet" | "net_af_xdp" => {
                let outlets = spare(info.max_tx_queues.min(info.max_rx_queues));
                (queues + outlets, outlets)
            }
            _ => (queues, spare(info.max_tx_queues)),
        };
        (self.rx, self.tx) = (rx.max(queues + inlets), queues + outlets);
    }

    /// Configures the device with its numbers of queues, offloads and RSS.
    fn configure(&self, info: &sys::rte_eth_dev_info) -> Result<(), DeviceError> {
        let mut conf = sys::rte_eth_conf::default();
        if let Some(mtu) = self.options.mtu {
            conf.rxmode.mtu = u32::from(mtu);
        }
        if self.interrupts {
            conf.intr_conf.set_rxq(1);
        }
        conf.rxmode.offloads = self.rx_offloads(info);
        let mut rss = self.rss(info);
        if let Some(rss) = rss.as_mut().filter(|_| self.rx > 1) {
            conf.rxmode.mq_mode = sys::WEDJAT_MQ_RX_RSS as _;
            let rss_conf = &mut conf.rx_adv_conf.rss_conf;
            rss_conf.rss_hf = rss.fields;
            if let Some(key) = rss.key.take() {
                let key = self.rss_key.get_or_init(|| key);
                (rss_conf.rss_key, rss_conf.rss_key_len) =
                    (key.as_ptr().cast_mut(), key.len() as u8);
            }
        }
        // SAFETY: the port is valid and not started. DPDK copies `conf`, but not the key, which drivers read again at
        // each start. They never write it, and it lives as long as the open device.
        let error = unsafe { sys::rte_eth_dev_configure(self.id, self.rx, self.tx, &conf) };
        self.accept("configure it", error)
    }

    /// Returns the RSS configuration. `None` if the device hashes no UDP.
    fn rss(&self, info: &sys::rte_eth_dev_info) -> Option<Rss> {
        let rss =
            self.options.rss.configuration(info.flow_type_rss_offloads, info.hash_key_size)?;
        let key = self.steering_key(info);
        Some(if key.is_some() { Rss { key, ..rss } } else { rss })
    }

    /// Returns the RSS key that brings replies to the queue of their task. `None` if the device needs no such key,
    /// because it hashes the client's end alone ([`RssFields::is_offered`]), or cannot use one.
    fn steering_key(&self, info: &sys::rte_eth_dev_info) -> Option<Vec<u8>> {
        let steering = self.options.steering.as_ref()?;
        let is_usable =
            self.rx > 1 && self.rx == self.options.queues && info.reta_size.is_power_of_two();
        let needs_key = !self.options.rss.is_offered(info.flow_type_rss_offloads);
        (is_usable && needs_key).then(|| steering.key(info.hash_key_size.into())).flatten()
    }

    /// Returns the rule by which the configured device spreads UDP packets over its queues.
    fn spread(&self, info: &sys::rte_eth_dev_info) -> Spread {
        let is_nic = is_pci_address(self.name.split(',').next().unwrap_or_default());
        match self.rss(info) {
            // virtio without RSS sends each flow to the queue on which the guest last sent for it.
            None if is_nic && driver_name(info) != "net_virtio" => Spread::None,
            None => Spread::OwnRule,
            Some(_) if self.steering_key(info).is_some() => Spread::Steered,
            Some(Rss { fields, .. }) => Spread::Fields(RssFields::of(fields).unwrap_or_default()),
        }
    }

    /// Makes a started device accept the port's VLAN. Some devices, such as virtio and virtual functions, drop packets
    /// of a VLAN that is not in their filter.
    fn accept_vlan(&self, info: &sys::rte_eth_dev_info) {
        let has_filter = info.rx_offload_capa & sys::WEDJAT_RX_OFFLOAD_VLAN_FILTER != 0;
        let Some(vlan) = self.options.vlan.filter(|_| has_filter) else { return };
        // SAFETY: the port is started and its filter is on.
        let error = unsafe { sys::rte_eth_dev_vlan_filter(self.id, vlan, 1) };
        if error != 0 {
            log::warn!(
                "{}: cannot add VLAN {vlan} to its filter: {}",
                self.name,
                error_text(error)
            );
        }
    }

    /// Sets the redirection table for the key of [`Setup::steering_key`]. Returns false without such a key, or if the
    /// driver refuses.
    fn set_table(&self, info: &sys::rte_eth_dev_info) -> bool {
        let (Some(steering), Some(key)) = (&self.options.steering, self.steering_key(info)) else {
            return false;
        };
        let table = steering.table(&key, info.reta_size, self.rx);
        // Groups of 64 entries, with a mask of those to set.
        let mut groups: Vec<_> = table
            .chunks(64)
            .map(|queues| {
                let mask = u64::MAX >> (64 - queues.len());
                let mut group = sys::rte_eth_rss_reta_entry64 { mask, ..Default::default() };
                group.reta[..queues.len()].copy_from_slice(queues);
                group
            })
            .collect();
        // SAFETY: the port is started, and the groups have `reta_size` entries.
        unsafe {
            sys::rte_eth_dev_rss_reta_update(self.id, groups.as_mut_ptr(), info.reta_size) == 0
        }
    }

    /// Returns the receive offloads of the device that are enabled.
    fn rx_offloads(&self, info: &sys::rte_eth_dev_info) -> u64 {
        let requested = |is_requested, offload| if is_requested { offload } else { 0 };
        let others = requested(self.options.stamps, sys::WEDJAT_RX_OFFLOAD_TIMESTAMP)
            | requested(self.options.vlan.is_some(), sys::WEDJAT_RX_OFFLOAD_VLAN_FILTER);
        self.checksum_offloads(info) | info.rx_offload_capa & others
    }

    /// Returns the checksum offloads of the device that are enabled.
    fn checksum_offloads(&self, info: &sys::rte_eth_dev_info) -> u64 {
        let requested = if self.options.checksums { sys::WEDJAT_RX_OFFLOAD_CKSUM } else { 0 };
        info.rx_offload_capa & requested
    }

    /// Returns the position and clock of the receive time in its packets.
    fn stamps(&self, info: &sys::rte_eth_dev_info, driver: &str) -> Result<Stamping, NoStamps> {
        if !self.options.stamps {
            return Err(NoStamps::NotAsked);
        }
        let clock = StampClock::of(driver, self.name, info)?;
        stamps::field().map(|field| Stamping { field, clock })
    }

    /// Sets up all receive and transmit queues of the configured device, on its NUMA node.
    fn set_up_queues(&self) -> Result<(), DeviceError> {
        let (mut rx_slots, mut tx_slots) = (self.options.rx_slots, self.options.tx_slots);
        // SAFETY: the port is configured and both counts are valid for writing.
        let error =
            unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut rx_slots, &mut tx_slots) };
        self.accept("size its queues", error)?;
        // SAFETY: the port is configured.
        let node = unsafe { sys::rte_eth_dev_socket_id(self.id) } as u32;
        for queue in 0..self.rx {
            // SAFETY: the port is configured for these queues; null selects the driver's defaults;
            // `OpenedDevice` keeps the pool.
            let error = unsafe {
                let (none, pool) = (std::ptr::null(), self.pool.as_ptr());
                sys::rte_eth_rx_queue_setup(self.id, queue, rx_slots, node, none, pool)
            };
            self.accept("set up a receive queue", error)?;
        }
        for queue in 0..self.tx {
            // SAFETY: as above.
            let error = unsafe {
                sys::rte_eth_tx_queue_setup(self.id, queue, tx_slots, node, std::ptr::null())
            };
            self.accept("set up a transmit queue", error)?;
        }
        Ok(())
    }

    /// Converts DPDK's return value for a step of the set-up.
    fn accept(&self, step: &'static str, error: c_int) -> Result<(), DeviceError> {
        accept(self.name, step, error)
    }
}

/// Converts DPDK's return value, which is 0 on success, to a result. `step` completes "cannot ...".
fn accept(name: &str, step: &'static str, error: c_int) -> Result<(), DeviceError> {
    if error == 0 {
        return Ok(());
    }
    let (name, reason) = (name.to_owned(), error_text(error));
    Err(DeviceError::Refused { name, step, reason, said: String::new() })
}

/// Returns DPDK's description of the device with this port id.
fn info(id: u16, name: &str) -> Result<sys::rte_eth_dev_info, DeviceError> {
    let mut info = sys::rte_eth_dev_info::default();
    // SAFETY: `info` is valid for writing, and DPDK checks the port id.
    let error = unsafe { sys::rte_eth_dev_info_get(id, &mut info) };
    accept(name, "read its description", error)?;
    Ok(info)
}

impl DeviceError {
    /// Adds the end of DPDK's log to a failed call.
    fn with_log(mut self, log: &str) -> Self {
        if let Self::Refused { said, .. } = &mut self {
            *said = indented_end(log);
        }
        self
    }
}

/// Returns advice for a missing device.
fn absence_hint(name: &str) -> String {
    if name.contains(',') {
        return "the driver refused these arguments; see its messages above".to_owned();
    }
    match is_pci_address(name) {
        true => format!(
            "EAL finds a NIC that is bound to vfio-pci: dpdk-devbind.py --bind=vfio-pci {name} (mlx5 and MANA: to the \
             kernel's driver); with -a or -b after --, allow it; wedjat doctor checks both"
        ),
        false => format!(
            "create a virtual device with --vdev {name},... after --, or name a NIC by its PCI address"
        ),
    }
}

/// Returns the port id of the device with this name.
fn find(name: &str) -> Result<u16, DeviceError> {
    let absent = || DeviceError::Absent { name: name.to_owned(), present: present() };
    let text = CString::new(full_name(name)).map_err(|_| absent())?;
    let mut id = 0;
    // SAFETY: the name is a C string and `id` is valid for writing.
    let found = unsafe { sys::rte_eth_dev_get_port_by_name(text.as_ptr(), &mut id) } == 0;
    found.then_some(id).ok_or_else(absent)
}

/// Returns the name of a device in EAL: without arguments, and with the domain that a PCI address may omit.
fn full_name(name: &str) -> String {
    let short = name.split(',').next().unwrap_or_default();
    match is_pci_address(short) && short.matches(':').count() == 1 {
        true => format!("0000:{short}"),
        false => short.to_owned(),
    }
}

/// Returns true if EAL finds the PCI device with this full address: it is bound to a kernel driver for user processes,
/// such as vfio-pci, or to one that stays beside DPDK's, such as mlx5_core.
fn is_bound(address: &str) -> bool {
    let driver = std::fs::read_link(format!("/sys/bus/pci/devices/{address}/driver")).ok();
    let name = driver.as_deref().and_then(|driver| driver.file_name());
    let mut usable = PASSING_DRIVERS.iter().chain(&BIFURCATED_DRIVERS);
    name.is_some_and(|name| usable.any(|driver| name == *driver))
}

/// Returns true if the PCI device with this full address answers, so that its registers can be read. All registers of
/// an unplugged device read as ones, among them command and status, bytes 4 to 7 of its configuration. (The vendor's id
/// reads so in virtual functions, too.)
fn is_connected(address: &str) -> bool {
    let mut start = [0xFF; 8];
    let file = File::open(format!("/sys/bus/pci/devices/{address}/config"));
    file.is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start[4..] != [0xFF; 4]
}

/// Returns the MAC address of a port.
fn mac_of(id: u16) -> [u8; 6] {
    let mut address = sys::rte_ether_addr::default();
    // SAFETY: the port is valid and `address` is valid for writing.
    unsafe { sys::rte_eth_macaddr_get(id, &mut address) };
    address.addr_bytes
}

/// Sets the MAC address of a port, or else makes it receive for all addresses. Returns a warning if both fail.
fn adopt_mac(id: u16, mac: [u8; 6]) -> Option<String> {
    let mut address = sys::rte_ether_addr { addr_bytes: mac };
    // SAFETY: the port is open, and the address lives through the call.
    let is_adopted = unsafe {
        sys::rte_eth_dev_default_mac_addr_set(id, &mut address) == 0
            || sys::rte_eth_promiscuous_enable(id) == 0
    };
    (!is_adopted).then(|| "it has another MAC address now; restart the node".to_owned())
}

/// Returns the names of all devices, for messages.
fn present() -> String {
    let name_of = |id: u16| {
        let mut name = [0 as c_char; NAME_BYTES];
        // SAFETY: the buffer has the size that DPDK documents, and DPDK writes a trailing NUL.
        let text = unsafe {
            let found = sys::rte_eth_dev_is_valid_port(id) == 1
                && sys::rte_eth_dev_get_name_by_port(id, name.as_mut_ptr()) == 0;
            found.then(|| CStr::from_ptr(name.as_ptr()))
        };
        text.map(|text| text.to_string_lossy().into_owned())
    };
    let names: Vec<String> = (0..sys::RTE_MAX_ETHPORTS as u16).filter_map(name_of).collect();
    if names.is_empty() { "no device at all".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;
    use std::net::Ipv4Addr;
    use std::ptr::NonNull;

    use wedjat_core::wire::ether::Mac;
    use wedjat_core::wire::udp::{Flow, PAYLOAD};
    use wedjat_core::wire::{ether, ipv4};

    use super::*;

    /// One packet: an mbuf outside any pool, with the fields that a driver sets.
    struct ReceivedPacket {
        /// Memory of the mbuf.
        fields: Vec<u64>,
        /// Bytes of the packet.
        bytes: Vec<u8>,
    }

    impl ReceivedPacket {
        /// Creates a packet with these `ol_flags`, by which a driver reports checksums.
        fn new(bytes: Vec<u8>, flags: u64) -> Self {
            let mut packet = Self { fields: vec![0; sys::WEDJAT_MBUF_SIZE as usize / 8], bytes };
            let (start, len) = (packet.bytes.as_mut_ptr(), packet.bytes.len());
            packet.set(sys::WEDJAT_MBUF_BUF_ADDR, start);
            packet.set(sys::WEDJAT_MBUF_BUF_LEN, len as u16);
            packet.set(sys::WEDJAT_MBUF_DATA_LEN, len as u16);
            packet.set(sys::WEDJAT_MBUF_PKT_LEN, len as u32);
            packet.set(sys::WEDJAT_MBUF_NB_SEGS, 1_u16);
            packet.set(sys::WEDJAT_MBUF_OL_FLAGS, flags);
            packet
        }

        /// Writes the mbuf's field at `offset`.
        fn set<T>(&mut self, offset: u32, value: T) {
            // SAFETY: offset and type are those of a field, which lies within the memory.
            unsafe {
                self.fields.as_mut_ptr().byte_add(offset as usize).cast::<T>().write(value);
            }
        }

        /// Returns the mbuf, which must not outlive the packet.
        fn mbuf(&mut self) -> ManuallyDrop<Mbuf> {
            let mbuf = NonNull::new(self.fields.as_mut_ptr()).unwrap().cast();
            // SAFETY: the memory is laid out as an mbuf, lives on, and never enters a pool.
            ManuallyDrop::new(unsafe { Mbuf::from_raw(mbuf) })
        }

        /// Settles its checksums. Returns two flags: one was finished; both are verified afterwards.
        fn settle(&mut self, checksums: Checksums) -> (bool, bool) {
            let mut mbuf = self.mbuf();
            (checksums.settle(&mut mbuf), mbuf.checksums_verified())
        }
    }

    /// Offset of the UDP checksum.
    const UDP_CHECKSUM: usize = ether::LEN + ipv4::LEN + 6;

    /// Returns a frame of 32 bytes of UDP payload with correct checksums.
    fn valid_frame() -> Vec<u8> {
        let mut frame = vec![0; PAYLOAD + 32];
        let flow = Flow {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src: Ipv4Addr::new(10, 0, 1, 2).to_bits(),
            dst: Ipv4Addr::new(10, 0, 1, 1).to_bits(),
            src_port: 40_000,
            dst_port: 1234,
        };
        flow.emit(&mut frame, 32);
        assert!(udp::parse(&frame, false).is_ok());
        frame
    }

    /// Returns the same frame as a kernel socket leaves it for a device: the checksum's field holds the sum of the
    /// pseudo header.
    fn partial_frame() -> Vec<u8> {
        let mut frame = valid_frame();
        // Source, destination, protocol UDP, and length with the header of eight bytes.
        let words = [0x0A00_u32, 0x0102, 0x0A00, 0x0101, 17, 40];
        let sum: u32 = words.iter().sum();
        let sum = (sum & 0xFFFF) + (sum >> 16);
        frame[UDP_CHECKSUM..UDP_CHECKSUM + 2].copy_from_slice(&(sum as u16).to_be_bytes());
        frame
    }

    /// A driver with the checksum offload of UDP alone, such as virtio.
    const VIRTIO: Checksums = Checksums { finishes: false, verifies_one: true, trusts: false };

    // promise: ports.1
    #[test]
    fn missing_udp_checksum_is_finished() {
        for trusts in [false, true] {
            let checksums = Checksums { trusts, ..VIRTIO };
            let mut packet = ReceivedPacket::new(partial_frame(), sys::WEDJAT_RX_L4_CKSUM_NONE);
            assert_eq!(packet.settle(checksums), (true, true));
            assert_eq!(packet.bytes, valid_frame(), "trusts: {trusts}");
        }
        // Without the mark the data may be damaged.
        let mut unmarked = ReceivedPacket::new(partial_frame(), 0);
        assert_eq!(unmarked.settle(VIRTIO), (false, false));
        assert_eq!(unmarked.bytes, partial_frame());
        // The mark does not make a damaged packet valid: its field is no sum of the pseudo header.
        let mut damaged = partial_frame();
        damaged[UDP_CHECKSUM] ^= 0x55;
        let mut damaged = ReceivedPacket::new(damaged, sys::WEDJAT_RX_L4_CKSUM_NONE);
        assert_eq!(damaged.settle(VIRTIO), (false, false));
    }

    // promise: ports.2
    #[test]
    fn counters_of_a_removed_device_are_kept() {
        let stats = |rx_packets| DeviceStats { rx_packets, ..DeviceStats::default() };
        let mut counts = DriverCounts { current: stats(5), ..DriverCounts::default() };
        assert_eq!(counts.total(), stats(5));
        counts.begin_again();
        assert_eq!(counts.total(), stats(5), "closed");
        counts.current = stats(2);
        assert_eq!(counts.total(), stats(7), "opened again");
        assert!(!is_connected("0000:ff:1f.7"), "no such device");
    }

    // promise: ports.1
    #[test]
    fn each_checksum_is_verified_by_itself() {
        let good = sys::WEDJAT_RX_L4_CKSUM_GOOD;
        let mut damaged = valid_frame();
        damaged[PAYLOAD] ^= 1;
        let mut packet = ReceivedPacket::new(damaged, good);
        assert_eq!(packet.settle(VIRTIO), (false, true), "the device verified the UDP checksum");
        let mut wrong_header = valid_frame();
        wrong_header[ether::LEN + 8] ^= 1; // the time to live
        assert_eq!(ReceivedPacket::new(wrong_header, good).settle(VIRTIO), (false, false));
        // The device verified the IPv4 header only; the stages verify the UDP checksum.
        let ip_only = sys::WEDJAT_RX_IP_CKSUM_GOOD;
        assert_eq!(ReceivedPacket::new(valid_frame(), ip_only).settle(VIRTIO), (false, false));
    }

    // promise: ports.1
    #[test]
    fn removed_vlan_tag_is_taken_once() {
        let mut packet = ReceivedPacket::new(valid_frame(), sys::WEDJAT_RX_VLAN_STRIPPED);
        packet.set(sys::WEDJAT_MBUF_VLAN_TCI, 0xE00C_u16); // priority 7, VLAN 12
        let mut mbuf = packet.mbuf();
        assert_eq!(mbuf.take_removed_vlan(), Some(12));
        assert_eq!(mbuf.take_removed_vlan(), None, "the mark is cleared");
    }
}
