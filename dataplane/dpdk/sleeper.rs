//! Sleep of a core until one of its ports receives a packet: by receive interrupts of devices, sockets of
//! AF_PACKET and AF_XDP, and interrupts of memif rings. Other devices cannot wake a core, so with them it
//! takes short naps.
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

use super::interrupts::RingInterrupt;
use super::memif::Relay;
use super::port::QueuePort;
use super::source::Source;

/// Interval of checks for ports that cannot wake the core.
const NAP: Duration = Duration::from_micros(50);
/// Delay by which the kernel may postpone a wake-up, to combine several.
const SLACK_NS: u64 = 1_000;

/// Rings of one memif device that a core reads.
struct Rings {
    relay: Arc<Relay>,
    /// Id of the device in the memif protocol.
    id: u32,
    /// Numbers of the rings.
    rings: Vec<u16>,
    /// Number of the connection ([`Relay::connection`]) whose interrupts these are.
    connection: u64,
    /// Interrupts of the rings that have one.
    interrupts: Vec<Arc<RingInterrupt>>,
    /// True if the peer does not send interrupts.
    needs_naps: bool,
}

/// Sleeper of one core.
pub struct Sleeper {
    epoll: OwnedFd,
    /// Device and queue numbers of the queues with interrupts.
    queues: Vec<(u16, u16)>,
    /// Rings of each memif device.
    memifs: Vec<Rings>,
    /// True if some port cannot wake the core.
    needs_naps: bool,
}

impl Sleeper {
    /// Creates the sleeper of the core that polls these ports. Called by the core's thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new<'a>(ports: impl IntoIterator<Item = &'a QueuePort>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut sleeper = Self { epoll, queues: Vec::new(), memifs: Vec::new(), needs_naps: false };
        for port in ports {
            match port.source() {
                Source::Interrupt { device, queues } => {
                    queues.iter().try_for_each(|&queue| sleeper.add_interrupt(device, queue))?;
                }
                Source::Sockets(sockets) if !sockets.is_empty() => {
                    sockets.iter().try_for_each(|&socket| {
                        // SAFETY: the driver keeps the device's sockets open as long as the device is open.
                        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
                        watch(&sleeper.epoll, socket)
                    })?
                }
                Source::Memif { relay, id, rings } => sleeper.memifs.push(Rings {
                    relay,
                    id,
                    rings,
                    connection: u64::MAX, // none yet: the first `update` reads the interrupts
                    interrupts: Vec::new(),
                    needs_naps: false,
                }),
                Source::Sockets(_) | Source::Nothing => sleeper.needs_naps = true,
            }
        }
        // On failure each sleep takes about 50 us longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
        Ok(sleeper)
    }

    /// Adds the receive interrupt of a queue.
    fn add_interrupt(&mut self, device: u16, queue: u16) -> io::Result<()> {
        // SAFETY: the device is open and has the queue.
        let event = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(device, queue) };
        if event < 0 {
            self.needs_naps = true;
            return Ok(());
        }
        // SAFETY: the device keeps it open while it is started.
        let event = unsafe { BorrowedFd::borrow_raw(event) };
        watch(&self.epoll, event)?;
        self.queues.push((device, queue));
        Ok(())
    }

    /// Requests wake-ups for packets from now on. Check for earlier packets between this and
    /// [`Sleeper::sleep`].
    pub fn arm(&mut self) {
        for &(device, queue) in &self.queues {
            // SAFETY: the device is open, and this thread owns the queue.
            if unsafe { sys::rte_eth_dev_rx_intr_enable(device, queue) } != 0 {
                self.needs_naps = true;
            }
        }
        for rings in &mut self.memifs {
            rings.update(&self.epoll);
            rings.interrupts.iter().for_each(|ring| ring.unmask());
        }
    }

    /// Stops the wake-ups.
    pub fn disarm(&mut self) {
        for &(device, queue) in &self.queues {
            // SAFETY: as above.
            unsafe { sys::rte_eth_dev_rx_intr_disable(device, queue) };
        }
        self.memifs.iter().flat_map(|rings| &rings.interrupts).for_each(|ring| ring.mask());
    }

    /// Sleeps until a packet arrives, for at most `timeout`. Returns true for a packet.
    pub fn sleep(&mut self, timeout: Duration) -> bool {
        let needs_naps = self.needs_naps || self.memifs.iter().any(|rings| rings.needs_naps);
        let timeout = if needs_naps { timeout.min(NAP) } else { timeout };
        let Ok(timeout) = Timespec::try_from(timeout) else { return false };
        // Waits by `poll`, because epoll's own timeout is in milliseconds before Linux 5.11.
        let ready_count = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
        if !ready_count.is_ok_and(|count| count > 0) {
            return false;
        }
        // Reads the events, so that the next wait does not return for them.
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 8];
        let at_once = Timespec::default();
        let events_read = epoll::wait(&self.epoll, &mut events, Some(&at_once));
        events_read.is_ok_and(|(events, _)| !events.is_empty())
    }
}

/// Adds an edge-triggered event: each packet is an event, even if nothing is read. An eventfd is
/// never read, and a socket whose interface has gone stays readable.
fn watch(epoll: &OwnedFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(epoll, descriptor, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?)
}

impl Rings {
    /// Replaces the interrupts if the peer has changed.
    fn update(&mut self, epoll: &OwnedFd) {
        let connection = self.relay.connection();
        if connection == self.connection {
            return;
        }
        for interrupt in self.interrupts.drain(..) {
            // The peer may still have it open, so it must be removed explicitly.
            let _ = epoll::delete(epoll, interrupt.event());
        }
        (self.connection, self.needs_naps) = (connection, false);
        let Some(interrupts) = self.relay.interrupts(self.id) else { return };
        for ring in &self.rings {
            let interrupt = interrupts.get(usize::from(*ring)).cloned().flatten();
            let interrupt = interrupt.filter(|ring| watch(epoll, ring.event()).is_ok());
            self.needs_naps |= interrupt.is_none();
            self.interrupts.extend(interrupt);
        }
    }
}
