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

/// Rings with interrupts for a core.
struct Rings {
    relay: Arc<Relay>,
    id: u32,
    rings: Vec<u16>,
    /// Connection of the rings.
    connection: u64,
    interrupts: Vec<Arc<RingInterrupt>>,
    /// True if the peer does not send interrupts.
    is_mute: bool,
}

/// Sleeper of one core.
pub struct Sleeper {
    epoll: OwnedFd,
    /// Queues of devices with interrupts.
    queues: Vec<(u16, u16)>,
    memifs: Vec<Rings>,
    /// True if some port cannot wake the core.
    is_mute: bool,
}

impl Sleeper {
    /// Creates the sleeper of the core that polls these ports. Called by the core's thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new<'a>(ports: impl IntoIterator<Item = &'a QueuePort>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut sleeper = Self { epoll, queues: Vec::new(), memifs: Vec::new(), is_mute: false };
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
                    connection: u64::MAX,
                    interrupts: Vec::new(),
                    is_mute: false,
                }),
                Source::Sockets(_) | Source::Nothing => sleeper.is_mute = true,
            }
        }
        // On failure each sleep takes about 50 us longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
        Ok(sleeper)
    }

    fn add_interrupt(&mut self, device: u16, queue: u16) -> io::Result<()> {
        // SAFETY: the device is open and has the queue.
        let event = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(device, queue) };
        if event < 0 {
            self.is_mute = true;
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
                self.is_mute = true;
            }
        }
        for rings in &mut self.memifs {
            rings.follow(&self.epoll);
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

    /// Sleeps until a packet arrives, for at most `longest`. Returns true for a packet.
    pub fn sleep(&mut self, longest: Duration) -> bool {
        let is_mute = self.is_mute || self.memifs.iter().any(|rings| rings.is_mute);
        let longest = if is_mute { longest.min(NAP) } else { longest };
        let Ok(longest) = Timespec::try_from(longest) else { return false };
        // epoll's own timeout is in milliseconds before Linux 5.11.
        let waited = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&longest));
        if !waited.is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 8];
        let at_once = Timespec::default();
        let taken = epoll::wait(&self.epoll, &mut events, Some(&at_once));
        taken.is_ok_and(|(taken, _)| !taken.is_empty())
    }
}

/// Adds an edge-triggered event: each packet is an event, whether or not anything is read. An eventfd is
/// never read, and a socket whose interface has gone stays readable.
fn watch(epoll: &OwnedFd, what: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(epoll, what, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?)
}

impl Rings {
    /// Checks whether the peer has changed.
    fn follow(&mut self, epoll: &OwnedFd) {
        let connection = self.relay.connection();
        if connection == self.connection {
            return;
        }
        for gone in self.interrupts.drain(..) {
            // The peer may still have it open, so it must be removed explicitly.
            let _ = epoll::delete(epoll, gone.event());
        }
        (self.connection, self.is_mute) = (connection, false);
        let Some(there) = self.relay.interrupts(self.id) else { return };
        for ring in &self.rings {
            let found = there.get(usize::from(*ring)).cloned().flatten();
            let found = found.filter(|found| watch(epoll, found.event()).is_ok());
            self.is_mute |= found.is_none();
            self.interrupts.extend(found);
        }
    }
}
