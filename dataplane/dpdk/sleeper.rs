//! Sleep of a core until one of its ports receives a packet. Receive interrupts of NICs, sockets of AF_PACKET and
//! AF_XDP, and interrupts of memif rings wake the core. Other devices cannot wake it, so with them it takes short naps.
//! It also takes naps with a NIC whose interrupts are not proven to work.
#![allow(unsafe_code, reason = "calls into libdpdk, and sockets that its drivers own")]

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wedjat_sys as sys;

use super::interrupt_evidence::InterruptEvidence;
use super::interrupts::RingInterrupt;
use super::memif::Relay;
use super::port::QueuePort;
use super::presence::PresenceHandle;
use super::wake_source::WakeSource;

/// Longest sleep while a port cannot wake the core.
const NAP: Duration = Duration::from_micros(50);
/// Delay by which the kernel may postpone a timer's wake-up, to combine several. Linux's default is 50 us.
const SLACK_NS: u64 = 1_000;

/// Rings of one memif device that a core reads.
struct Rings {
    /// Relay that has the rings' interrupts.
    relay: Arc<Relay>,
    /// Id of the device in the memif protocol.
    id: u32,
    /// Numbers of the rings.
    rings: Vec<u16>,
    /// Number of the connection ([`Relay::connection`]) whose interrupts these are.
    connection: u64,
    /// Interrupts of the rings that have one.
    interrupts: Vec<Arc<RingInterrupt>>,
    /// True if some ring has no interrupt: the peer sends none for it, or the epoll refuses its descriptor.
    needs_naps: bool,
}

/// Receive queue of a NIC with an interrupt.
struct Queue {
    /// Presence of a NIC that can be unplugged, with its port id.
    presence: Option<PresenceHandle>,
    /// Port id of a NIC without `presence`.
    id: u16,
    /// Number of the queue in the device.
    queue: u16,
    /// Evidence that the device's interrupts work.
    evidence: Arc<InterruptEvidence>,
    /// Epoch of the presence in which its interrupt was set up.
    epoch: u64,
    /// True if the driver has accepted the interrupt.
    is_accepted: bool,
    /// Packets at the end of the last sleep, if no device ended it. An interrupt clears the field.
    unannounced: Option<Unannounced>,
}

/// Packets of a queue at the end of a sleep that no interrupt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unannounced {
    /// Packets were waiting.
    Waiting,
    /// The driver does not count waiting packets. The device had received this total number of packets.
    Unknown(u64),
}

/// Reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// A device ended it.
    Device,
    /// The timeout passed.
    Timer,
    /// The time of a nap passed: some device cannot wake the core.
    Nap,
}

impl WakeReason {
    /// Returns true if a device ended the sleep.
    #[must_use]
    pub fn is_device(self) -> bool {
        self == Self::Device
    }
}

/// Sleeper of one core.
pub struct Sleeper {
    /// Epoll instance with all sources of wake-ups.
    epoll: OwnedFd,
    /// Queues with interrupts. The data of their events is the index plus one; other events have 0.
    queues: Vec<Queue>,
    /// Rings of each memif device.
    memifs: Vec<Rings>,
    /// True if some port has sockets, which cannot be asked for waiting packets.
    has_sockets: bool,
    /// True if some port cannot wake the core.
    needs_naps: bool,
    /// True if packets may have been waiting at the end of the last sleep, which no device ended.
    is_suspect: bool,
}

impl Sleeper {
    /// Creates the sleeper of the core that polls these ports. Must be called by the core's thread: it shortens the
    /// timer slack of the calling thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new<'a>(ports: impl IntoIterator<Item = &'a QueuePort>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut sleeper = Self {
            epoll,
            queues: Vec::new(),
            memifs: Vec::new(),
            has_sockets: false,
            needs_naps: false,
            is_suspect: false,
        };
        for port in ports {
            match port.source() {
                WakeSource::Interrupt { presence, id, queues, evidence } => {
                    sleeper.queues.extend(queues.into_iter().map(|queue| Queue {
                        presence: presence.clone(),
                        id,
                        queue,
                        evidence: Arc::clone(&evidence),
                        epoch: u64::MAX, // not set up
                        is_accepted: false,
                        unannounced: None,
                    }));
                }
                WakeSource::Sockets(sockets) if !sockets.is_empty() => {
                    sleeper.has_sockets = true;
                    sockets.iter().try_for_each(|&socket| {
                        // SAFETY: the driver keeps the device's sockets open as long as the device is open.
                        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
                        watch(&sleeper.epoll, socket, 0)
                    })?
                }
                WakeSource::Memif { relay, id, rings } => {
                    // Several devices may share a relay. The epoll takes its descriptor once.
                    if let Err(error) = watch(&sleeper.epoll, relay.changed(), 0)
                        && error.kind() != io::ErrorKind::AlreadyExists
                    {
                        return Err(error);
                    }
                    sleeper.memifs.push(Rings {
                        relay,
                        id,
                        rings,
                        connection: u64::MAX, // none yet: the first `update` reads the interrupts
                        interrupts: Vec::new(),
                        needs_naps: false,
                    });
                }
                WakeSource::Sockets(_) | WakeSource::Nothing => sleeper.needs_naps = true,
            }
        }
        // On failure each sleep takes about 50 us longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
        Ok(sleeper)
    }

    /// Requests wake-ups for packets from now on. Check for earlier packets between this and
    /// [`Sleeper::sleep`].
    pub fn arm(&mut self) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            queue.arm(&self.epoll, index as u64 + 1);
        }
        for rings in &mut self.memifs {
            rings.update(&self.epoll);
            rings.interrupts.iter().for_each(|ring| ring.unmask());
        }
    }

    /// Stops the wake-ups.
    pub fn disarm(&mut self) {
        self.queues.iter().for_each(Queue::disarm);
        self.memifs.iter().flat_map(|rings| &rings.interrupts).for_each(|ring| ring.mask());
    }

    /// Sleeps until a packet arrives, for at most `timeout`.
    pub fn sleep(&mut self, timeout: Duration) -> WakeReason {
        let needs_naps = self.needs_naps
            || self.queues.iter().any(Queue::needs_naps)
            || self.memifs.iter().any(|rings| rings.needs_naps);
        let timeout = if needs_naps { timeout.min(NAP) } else { timeout };
        self.is_suspect = false;
        let Ok(time) = Timespec::try_from(timeout) else { return WakeReason::Timer };
        // Waits by `poll`: before Linux 5.11, the timeout of epoll is in milliseconds.
        let ready_count = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&time));
        if ready_count.is_ok_and(|count| count > 0) && self.take_events() {
            return WakeReason::Device;
        }
        self.queues.iter_mut().for_each(Queue::suspect);
        // Sockets and rings do not show if packets wait, so they are suspect after each sleep without a wake-up. After
        // a nap, only NICs are checked: their interrupts may be broken.
        let others_may_have = !needs_naps && (self.has_sockets || !self.memifs.is_empty());
        self.is_suspect =
            others_may_have || self.queues.iter().any(|queue| queue.unannounced.is_some());
        if needs_naps { WakeReason::Nap } else { WakeReason::Timer }
    }

    /// Returns true if packets may have been waiting at the end of the last sleep, and no device ended it.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    /// Reads up to 8 events, so that the next wait does not return for them, and records the interrupts of NICs as
    /// evidence. Returns false if there are none.
    fn take_events(&mut self) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 8];
        let at_once = Timespec::default();
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&at_once)) else {
            return false;
        };
        for event in events.iter() {
            let index = (event.data.u64() as usize).checked_sub(1);
            if let Some(queue) = index.and_then(|index| self.queues.get_mut(index)) {
                queue.evidence.note_interrupt();
                queue.unannounced = None;
            }
        }
        !events.is_empty()
    }

    /// Returns true if packets waited at the end of the last sleep, and their interrupt has still not come. Records
    /// this as a miss of their queues. Call it only after a sleep with [`Sleeper::is_suspect`] whose next poll received
    /// packets. Call it before the next [`Sleeper::sleep`].
    pub fn was_missed(&mut self) -> bool {
        let is_woken_by_now = self.take_events();
        let mut misses = 0;
        for queue in self.queues.iter().filter(|queue| queue.had_packets()) {
            queue.evidence.note_miss();
            misses += 1;
        }
        // Without queues, sockets or rings are the sources: their wake-up has come with the events, or was missed.
        misses > 0 || !is_woken_by_now && self.queues.is_empty()
    }
}

/// Adds a descriptor to the epoll, with `data` in its events. Edge-triggered: each packet is a new event, although
/// this process does not read eventfds, and a socket whose interface has gone stays readable.
fn watch(epoll: &OwnedFd, descriptor: BorrowedFd<'_>, data: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, descriptor, EventData::new_u64(data), EventFlags::IN | EventFlags::ET)?)
}

impl Queue {
    /// Returns the epoch of the presence (its number of changes), and the port id; `None` once this thread has
    /// acknowledged that the device is unplugged, see [`super::presence`].
    fn state(&self) -> (u64, Option<u16>) {
        self.presence.as_ref().map_or((0, Some(self.id)), PresenceHandle::get)
    }

    /// Returns the port id; `None` while the device is unplugged.
    fn id(&self) -> Option<u16> {
        self.state().1
    }

    /// Requests interrupts. First sets them up if the device is new or has returned.
    fn arm(&mut self, epoll: &OwnedFd, data: u64) {
        let (epoch, Some(id)) = self.state() else { return };
        if epoch != self.epoch {
            // The old descriptor needs no removal from the epoll: the device's close has closed it.
            (self.epoch, self.is_accepted) = (epoch, set_up_interrupt(epoll, id, self.queue, data));
        }
        // SAFETY: the device is open, and this thread owns the queue.
        self.is_accepted &= unsafe { sys::rte_eth_dev_rx_intr_enable(id, self.queue) } == 0;
    }

    /// Stops the interrupts.
    fn disarm(&self) {
        if let Some(id) = self.id() {
            // SAFETY: as in `arm`.
            unsafe { sys::rte_eth_dev_rx_intr_disable(id, self.queue) };
        }
    }

    /// Returns true if the queue may have packets for which no interrupt comes.
    fn needs_naps(&self) -> bool {
        self.id().is_some() && !(self.is_accepted && self.evidence.is_proven())
    }

    /// Records whether packets are waiting after a sleep without an interrupt. Ignores a device whose interrupts are
    /// known not to work.
    fn suspect(&mut self) {
        let may_interrupt = self.is_accepted && !self.evidence.is_broken();
        self.unannounced = self.id().filter(|_| may_interrupt).and_then(|id| {
            // SAFETY: as in `arm`.
            match unsafe { sys::rte_eth_rx_queue_count(id, self.queue) } {
                0 => None,
                1.. => Some(Unannounced::Waiting),
                // virtio cannot tell. Its counter of received packets shows later whether there were any.
                ..0 => Some(Unannounced::Unknown(received(id))),
            }
        });
    }

    /// Returns true if packets waited at the end of the last sleep, or arrived shortly afterwards, without an
    /// interrupt until now.
    fn had_packets(&self) -> bool {
        match self.unannounced {
            None => false,
            Some(Unannounced::Waiting) => true,
            Some(Unannounced::Unknown(before)) => {
                self.id().is_some_and(|id| received(id) != before)
            }
        }
    }
}

/// Returns the number of packets that an open device has received, on all queues.
fn received(id: u16) -> u64 {
    let mut stats = sys::rte_eth_stats::default();
    // SAFETY: `stats` is valid for writing. A driver that refuses leaves zeros.
    unsafe { sys::rte_eth_stats_get(id, &mut stats) };
    stats.ipackets
}

/// Adds the receive interrupt of a queue to the epoll. Returns false if the driver has none, or the system refuses.
fn set_up_interrupt(epoll: &OwnedFd, id: u16, queue: u16, data: u64) -> bool {
    // SAFETY: the device is open and has the queue.
    let event = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(id, queue) };
    // SAFETY: the device keeps the descriptor open while it is started.
    event >= 0 && watch(epoll, unsafe { BorrowedFd::borrow_raw(event) }, data).is_ok()
}

impl Rings {
    /// Replaces the interrupts if the peer has changed.
    fn update(&mut self, epoll: &OwnedFd) {
        let connection = self.relay.connection();
        if connection == self.connection {
            return;
        }
        for interrupt in self.interrupts.drain(..) {
            // Removes it explicitly: the peer may still have it open, so a close here does not remove it.
            let _ = epoll::delete(epoll, interrupt.event());
        }
        (self.connection, self.needs_naps) = (connection, false);
        let Some(interrupts) = self.relay.interrupts(self.id) else { return };
        for ring in &self.rings {
            let interrupt = interrupts.get(usize::from(*ring)).cloned().flatten();
            let interrupt = interrupt.filter(|ring| watch(epoll, ring.event(), 0).is_ok());
            self.needs_naps |= interrupt.is_none();
            self.interrupts.extend(interrupt);
        }
    }
}
