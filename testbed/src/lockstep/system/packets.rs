//! Packets between nodes: what they are, what befalls them on their way, and the books about it.

use std::fmt;

use rand::Rng as _;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Extension, Header, NO_MEMBER};
use wedjat::wire::{arp, udp};
use wedjat_pktgen::seed::{Stream, StreamSeed};

use super::faults::{Faults, PacketFault, Who};
use crate::sim::rack::loss_below;

/// A packet that is held back is late by one to so many hops, drawn evenly.
const HELD_BACK_HOPS: u64 = 8;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// A task, on its way to a worker.
    Task,
    /// Its reply.
    Reply,
    /// A task given back undone.
    Refusal,
    /// A worker is there.
    Registration,
    /// Its acknowledgement.
    Acknowledgement,
    /// What a leaf tells a spine, or a spine its leaves.
    Signal,
    /// A question for an address, or the answer.
    Arp,
    /// Nothing that anybody takes.
    Other,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 8;
    /// Their names, in order.
    pub const NAMES: [&str; Self::COUNT] = [
        "tasks",
        "replies",
        "refusals",
        "registrations",
        "acknowledgements",
        "signals",
        "arp",
        "other",
    ];

    /// A task or what becomes of it.
    #[must_use]
    pub const fn is_of_task(self) -> bool {
        matches!(self, Self::Task | Self::Reply | Self::Refusal)
    }
}

/// What a packet says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// What it is.
    pub class: Class,
    /// The task's number; meaningless where there is none.
    pub task: u32,
    /// The worker that it names: the destination of a task, the source of anything else.
    pub worker: u16,
}

impl Label {
    const OTHER: Self = Self { class: Class::Other, task: u32::MAX, worker: NO_MEMBER };

    /// Reads a frame as the one at `mac` does, or anybody when that is none.
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
            Code::TaskDone | Code::TaskDoneIdle | Code::TaskRefused => (Class::Refusal, header.src),
            code if code.is_signal() && header.extended => (Class::Signal, NO_MEMBER),
            Code::WorkerId | Code::KeepAlive => (Class::Registration, header.src),
            Code::WorkerIdAck => (Class::Acknowledgement, header.dst),
            _ => return None,
        };
        Some(Self { class, task, worker })
    }
}

/// Why a packet went no further on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Taken {
    /// Lost.
    Lost,
    /// The wire was cut.
    Cut,
    /// A bit was flipped: what comes is no packet of that kind any more.
    Corrupted,
    /// Nobody on the network has its address.
    NoReceiver,
    /// The receiver was not running.
    NotRunning,
    /// The receiver's port had no room, as that of a node that is paused for long.
    PortFull,
    /// It was in a node that was killed, or on its way in.
    Killed,
    /// The clients could not use it.
    Client,
}

impl Taken {
    /// How many there are.
    pub const COUNT: usize = 8;
    /// Their names, in order.
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

/// What a wire did, by class of packet: sent + duplicated = delivered + taken + under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    /// What came out of the sender.
    pub sent: [u64; Class::COUNT],
    /// Copies made.
    pub duplicated: [u64; Class::COUNT],
    /// What the receiver was given.
    pub delivered: [u64; Class::COUNT],
    /// What was not, by reason.
    pub taken: [[u64; Class::COUNT]; Taken::COUNT],
    /// What is under way.
    pub under_way: [u64; Class::COUNT],
    /// Packets held back.
    pub held_back: u64,
}

impl Book {
    /// The class of packets of which some are missing, or too many.
    #[must_use]
    pub fn imbalance(&self) -> Option<&'static str> {
        let at = (0..Class::COUNT).find(|&at| {
            let taken: u64 = self.taken.iter().map(|taken| taken[at]).sum();
            self.sent[at] + self.duplicated[at] != self.delivered[at] + taken + self.under_way[at]
        })?;
        Some(Class::NAMES[at])
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        let add = |into: &mut [u64; Class::COUNT], from: &[u64; Class::COUNT]| {
            into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
        };
        add(&mut self.sent, &other.sent);
        add(&mut self.duplicated, &other.duplicated);
        add(&mut self.delivered, &other.delivered);
        add(&mut self.under_way, &other.under_way);
        self.taken.iter_mut().zip(&other.taken).for_each(|(into, from)| add(into, from));
        self.held_back += other.held_back;
    }
}

/// One direction of a wire.
pub struct Wire {
    /// Its sender.
    pub from: Who,
    /// Its receiver.
    pub to: Who,
    /// What it did.
    pub book: Book,
    /// So many cuts hold now.
    pub cuts: u32,
    below: [u64; PacketFault::ALL.len()],
    stream: Stream,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

/// What was drawn for a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// It is lost.
    pub lost: bool,
    /// It comes twice; the second so many hops later.
    pub copy: Option<u64>,
    /// It is late by so many hops.
    pub late: u64,
    /// The bit that is flipped, of all that it has.
    pub flip: Option<u64>,
}

impl Wire {
    /// One whose faults are drawn from a stream of its own, the one of this number.
    #[must_use]
    pub fn new(from: Who, to: Who, faults: &Faults, seed: u64, number: usize) -> Self {
        let below = PacketFault::ALL.map(|kind| loss_below(faults.probability(kind, from, to)));
        let stream = StreamSeed::derive(seed, "faults of a wire", number as u32).stream();
        Self { from, to, book: Book::default(), cuts: 0, below, stream }
    }

    /// What happens to the next packet. As much is drawn for each, whatever is likely.
    pub fn draw(&mut self) -> Fate {
        if self.below == [0; PacketFault::ALL.len()] {
            return Fate::default();
        }
        let [loss, dup, reorder, corrupt] = self.below.map(|below| self.stream.next_u64() < below);
        let (hops, bit) = (self.stream.next_u64(), self.stream.next_u64());
        Fate {
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
