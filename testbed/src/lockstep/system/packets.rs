//! Packets between nodes: their classes, the faults of the wires, and the wires' packet ledgers.

use std::fmt;

use rand::Rng as _;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header, NO_MEMBER};
use wedjat::wire::{arp, completion, udp};
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::faults::{FaultPlan, FaultTarget, PacketFault};
use crate::sim::engine::loss_below;

/// Maximum delay of a held-back packet, in hops. The delay is uniform from 1 to this number; the
/// delay of a copy is uniform from 0 to one less.
const HELD_BACK_HOPS: u64 = 8;

/// Class of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// A task on its way to a worker.
    Task,
    /// A reply to a task.
    Reply,
    /// A refused task on its way back.
    Refusal,
    /// A worker's registration or keep-alive.
    Registration,
    /// An acknowledgement of a registration.
    Acknowledgement,
    /// A message from a leaf to a spine, or from a spine to its leaves.
    Signal,
    /// An ARP request or answer.
    Arp,
    /// An agent's report to its leaf about tasks that it answered directly.
    Completions,
    /// Any other packet.
    Other,
}

impl Class {
    /// Number of classes.
    pub const COUNT: usize = 9;
    /// Names of the classes, in order.
    pub const NAMES: [&str; Self::COUNT] = [
        "tasks",
        "replies",
        "refusals",
        "registrations",
        "acknowledgements",
        "signals",
        "arp",
        "completion reports",
        "other",
    ];

    /// Returns true for tasks, replies and refusals.
    #[must_use]
    pub const fn is_of_task(self) -> bool {
        matches!(self, Self::Task | Self::Reply | Self::Refusal)
    }
}

/// Contents of a packet as far as the checks need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketContents {
    /// Class of the packet.
    pub class: Class,
    /// Number of the task; meaningless in packets without a task.
    pub task: u32,
    /// Worker named by the packet: the destination of a task or acknowledgement, the source of a reply, refusal or
    /// registration; [`NO_MEMBER`] in other packets.
    pub worker: u16,
}

impl PacketContents {
    /// Label of a packet without a task that belongs to no other class.
    const OTHER: Self = Self { class: Class::Other, task: u32::MAX, worker: NO_MEMBER };

    /// Reads a frame as the host with address `mac` does. With `None`, accepts any destination.
    #[must_use]
    pub fn read(frame: &[u8], mac: Option<Mac>) -> Self {
        if frame.len() < ether::LEN || mac.is_some_and(|mac| !ether::is_to(frame, mac)) {
            return Self::OTHER;
        }
        match ether::ether_type(frame) {
            ether::ARP if arp::Packet::parse(frame).is_ok() => {
                Self { class: Class::Arp, ..Self::OTHER }
            }
            ether::IPV4 => Self::of_datagram(frame).unwrap_or(Self::OTHER),
            _ => Self::OTHER,
        }
    }

    /// Reads a UDP datagram; `None` if it is no message of the protocol.
    fn of_datagram(frame: &[u8]) -> Option<Self> {
        let datagram = udp::parse(frame, false).ok()?;
        let payload = &frame[datagram.payload()..usize::from(datagram.end)];
        let header = Header::parse(payload).ok()?;
        let task = if header.extended { Extension::parse(payload).seq32 } else { u32::MAX };
        let (class, worker) = match header.code {
            code if code.is_task() => (Class::Task, header.dst),
            Code::TaskDone | Code::TaskDoneIdle if header.src != NO_MEMBER => {
                (Class::Reply, header.src)
            }
            // A reply that names no worker: the clients count it as a refusal, too.
            Code::TaskDone | Code::TaskDoneIdle | Code::TaskRefused => (Class::Refusal, header.src),
            // A keep-alive with an extension is a heartbeat between leaf and spine; without, it comes from a worker.
            code if code.is_signal() && header.extended => (Class::Signal, NO_MEMBER),
            Code::WorkerId | Code::KeepAlive => (Class::Registration, header.src),
            Code::WorkerIdAck => (Class::Acknowledgement, header.dst),
            Code::Completions => (Class::Completions, NO_MEMBER),
            _ => return None,
        };
        Some(Self { class, task, worker })
    }
}

/// Returns the worker of each entry of a completion report; none for other frames.
#[must_use]
pub fn completed_by(frame: &[u8]) -> Vec<u16> {
    let workers = || {
        let datagram = udp::parse(frame, false).ok()?;
        let payload = &frame[datagram.payload()..usize::from(datagram.end)];
        let entries = completion::entries(&Header::parse(payload).ok()?, payload).ok()?;
        Some(completion::parse_entries(entries).map(|entry| entry.worker).collect())
    };
    workers().unwrap_or_default()
}

/// Reason why a packet had no effect: it ended on its way (a row of [`WireLedger`]), or its receiver lost or refused
/// it. The checks keep a task's last one, to explain a task without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum PacketEnd {
    /// Lost.
    Lost,
    /// The wire was cut.
    Cut,
    /// A bit was flipped, so that the packet is unreadable or has another class on arrival.
    Corrupted,
    /// No host on the network has the packet's address.
    NoReceiver,
    /// The receiver was not running.
    NotRunning,
    /// The receiver's port was full, for example that of a node paused for long.
    PortFull,
    /// The packet was in a node when the node was killed.
    Killed,
    /// The clients could not use the packet.
    Client,
}

impl PacketEnd {
    /// Number of reasons.
    pub const COUNT: usize = 8;
    /// Names of the reasons, in order.
    pub const NAMES: [&str; Self::COUNT] = [
        "lost",
        "wire cut",
        "corrupted",
        "no receiver",
        "receiver not running",
        "receiver's port full",
        "in a node that was killed",
        "unusable to the clients",
    ];
}

/// Ledger of a wire, by class of packet: sent + duplicated = delivered + taken + in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireLedger {
    /// Packets from the sender.
    pub sent: [u64; Class::COUNT],
    /// Copies made by the wire.
    pub duplicated: [u64; Class::COUNT],
    /// Packets delivered to the receiver.
    pub delivered: [u64; Class::COUNT],
    /// Packets that ended on the way, by reason.
    pub taken: [[u64; Class::COUNT]; PacketEnd::COUNT],
    /// Packets in flight.
    pub in_flight: [u64; Class::COUNT],
    /// Packets held back.
    pub held_back: u64,
}

impl WireLedger {
    /// Returns the first class of packets whose ledger does not balance.
    #[must_use]
    pub fn imbalance(&self) -> Option<&'static str> {
        let class = (0..Class::COUNT).find(|&class| {
            let taken: u64 = self.taken.iter().map(|taken| taken[class]).sum();
            self.sent[class] + self.duplicated[class]
                != self.delivered[class] + taken + self.in_flight[class]
        })?;
        Some(Class::NAMES[class])
    }

    /// Adds another wire's ledger.
    pub fn add(&mut self, other: &Self) {
        let add = |into: &mut [u64; Class::COUNT], from: &[u64; Class::COUNT]| {
            into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        };
        add(&mut self.sent, &other.sent);
        add(&mut self.duplicated, &other.duplicated);
        add(&mut self.delivered, &other.delivered);
        add(&mut self.in_flight, &other.in_flight);
        self.taken.iter_mut().zip(&other.taken).for_each(|(into, from)| add(into, from));
        self.held_back += other.held_back;
    }
}

/// One direction of a wire.
pub struct Wire {
    /// Sender.
    pub from: FaultTarget,
    /// Receiver.
    pub to: FaultTarget,
    /// Ledger of the wire.
    pub ledger: WireLedger,
    /// Number of cuts in force now.
    pub cuts: u32,
    /// Thresholds by packet fault: a random number below the threshold is a fault.
    thresholds: [u64; PacketFault::ALL.len()],
    /// Stream of the wire's faults.
    stream: Stream,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

/// Faults drawn for a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketFaults {
    /// True if the packet is lost.
    pub lost: bool,
    /// Number of hops by which a second copy is later, if there is a copy.
    pub copy: Option<u64>,
    /// Number of hops by which the packet is late.
    pub late: u64,
    /// Number of the flipped bit, modulo the frame's bits, if any.
    pub flip: Option<u64>,
}

impl Wire {
    /// Creates a wire with its own stream of faults, derived from `number`.
    #[must_use]
    pub fn new(
        from: FaultTarget,
        to: FaultTarget,
        faults: &FaultPlan,
        seed: u64,
        number: usize,
    ) -> Self {
        let thresholds =
            PacketFault::ALL.map(|kind| loss_below(faults.probability(kind, from, to)));
        let stream = StreamSeed::derive(seed, "faults of a wire", number as u32).stream();
        Self { from, to, ledger: WireLedger::default(), cuts: 0, thresholds, stream }
    }

    /// Draws the faults of the next packet. Each packet on a wire with faults takes the same number of random
    /// values. The draws of one fault are therefore independent of the probabilities of all faults.
    pub fn draw(&mut self) -> PacketFaults {
        if self.thresholds == [0; PacketFault::ALL.len()] {
            return PacketFaults::default();
        }
        let [loss, dup, reorder, corrupt] =
            self.thresholds.map(|threshold| self.stream.next_u64() < threshold);
        // The copy and the delayed packet use different digits of `hops`.
        let (hops, bit) = (self.stream.next_u64(), self.stream.next_u64());
        PacketFaults {
            lost: loss,
            copy: dup.then_some(hops / HELD_BACK_HOPS % HELD_BACK_HOPS),
            late: if reorder { 1 + hops % HELD_BACK_HOPS } else { 0 },
            flip: corrupt.then_some(bit),
        }
    }
}

/// Flips one bit of a packet.
pub fn flip(frame: &mut [u8], bit: u64) {
    let bits = frame.len() as u64 * 8;
    if let Some(bit) = bit.checked_rem(bits) {
        frame[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}
