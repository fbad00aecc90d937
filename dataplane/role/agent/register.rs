//! Tells a leaf which workers are here: WORKER_ID until it is acknowledged, KEEP_ALIVE then
//! (docs/protocol.md).

use crate::ring::Place;
use crate::wire::ether::Mac;
use crate::wire::task::{self, Header};
use crate::wire::udp::{self, Flow};

/// Keep-alives within a leaf's timeout: one more than it asks for.
const WITHIN_TIMEOUT: u64 = 5;

/// One worker, as the leaf knows it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    seq: u16,
    /// The leaf has answered since the worker came.
    acknowledged: bool,
    /// Ticks when to speak next.
    due: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Registrar {
    leaf: u32,
    /// Index of the port that leads to the leaf.
    pub port: usize,
    mac: Option<Mac>,
    entries: Vec<Entry>,
    ticks_hz: u64,
    interval: u64,
    next_question: u64,
}

impl Registrar {
    /// Nobody is registered yet. Speaks every `interval` ticks until the leaf asks for more.
    #[must_use]
    pub fn new(leaf: u32, port: usize, mac: Option<Mac>, places: &[Place], ticks_hz: u64) -> Self {
        let interval = (ticks_hz / 10).max(1);
        let entries = places
            .iter()
            .map(|&place| Entry { place, seq: 0, acknowledged: false, due: 0 })
            .collect();
        Self { leaf, port, mac, entries, ticks_hz, interval, next_question: 0 }
    }

    /// The leaf's address.
    #[must_use]
    pub fn leaf(&self) -> u32 {
        self.leaf
    }

    /// Its MAC address is not known, and it is time to ask.
    pub fn must_ask(&mut self, now: u64) -> bool {
        let asks = self.mac.is_none() && now >= self.next_question;
        if asks {
            self.next_question = now + (self.ticks_hz / 5).max(1);
        }
        asks
    }

    /// An ARP packet told where `address` is.
    pub fn learn(&mut self, address: u32, mac: Mac) {
        if address == self.leaf {
            self.mac = Some(mac);
        }
    }

    /// The leaf acknowledged a worker of a pool; false when it has no business to.
    pub fn acknowledged(&mut self, from: u32, header: &Header) -> bool {
        let place = Place { id: header.dst, pool: header.pool };
        let entry = self.entries.iter_mut().find(|entry| entry.place == place);
        let Some(entry) = entry.filter(|_| from == self.leaf) else {
            return false;
        };
        entry.acknowledged = true;
        let timeout = u64::from(header.qlen) * self.ticks_hz / 1000;
        let asked = (timeout / WITHIN_TIMEOUT).max(1);
        if timeout > 0 && asked < self.interval {
            self.interval = asked;
            self.entries.iter_mut().for_each(|entry| entry.due = 0);
        }
        true
    }

    /// What to tell the leaf at `now`: the header and where it goes. `tasks` says whether a worker is there, and
    /// how many tasks it has. A worker that left is registered anew when it comes back.
    pub fn due(&mut self, now: u64, tasks: impl Fn(Place) -> Option<u16>) -> Option<(Header, Mac)> {
        let mac = self.mac?;
        for entry in self.entries.iter_mut().filter(|entry| entry.due <= now) {
            let Place { id, pool } = entry.place;
            let Some(tasks) = tasks(entry.place) else {
                entry.acknowledged = false;
                continue;
            };
            entry.due = now + self.interval;
            entry.seq = entry.seq.wrapping_add(1);
            let header = match entry.acknowledged {
                true => Header::keep_alive(pool, id, tasks, entry.seq),
                false => Header::worker_id(pool, id, tasks, entry.seq),
            };
            return Some((header, mac));
        }
        None
    }

    /// Workers that the leaf has acknowledged.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.entries.iter().filter(|entry| entry.acknowledged).count()
    }
}

/// Bytes of a registration's frame.
pub const FRAME_LEN: usize = udp::PAYLOAD + task::LEN;

/// Writes a registration's whole frame.
pub fn emit(header: &Header, flow: &Flow, frame: &mut [u8]) {
    header.emit(&mut frame[udp::PAYLOAD..]);
    flow.emit(frame, task::LEN);
}
