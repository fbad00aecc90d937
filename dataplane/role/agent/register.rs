//! Tells a leaf which workers are here: WORKER_ID until it is acknowledged, KEEP_ALIVE then
//! (docs/protocol.md). Each leaf is told by a registrar of its own.
//!
//! Whatever acknowledgements say, and whoever sends them, an agent speaks at a bounded rate: each worker at least
//! [`INTERVAL_LEAST_MS`] apart, all together at most [`WORDS_A_SECOND`] times a second.

use std::net::IpAddr;

use super::family::Address;
use super::next_hop::NextHop;
use crate::reason::DropReason;
use crate::ring::Place;
use crate::wire::ether::Mac;
use crate::wire::task::Header;
use crate::wire::udp::Flow;

/// Keep-alives within a leaf's timeout: one more than it asks for.
const WITHIN_TIMEOUT: u64 = 5;
/// Milliseconds; a timeout below this is not kept: a leaf looks for silent workers eight times within its timeout, and an agent's
/// core may itself stand still for milliseconds.
pub const TIMEOUT_KEPT_MS: u64 = 10;
/// Milliseconds between two words of one worker, at least.
pub const INTERVAL_LEAST_MS: u64 = TIMEOUT_KEPT_MS / WITHIN_TIMEOUT;
/// Milliseconds between two words of one worker, at most, and before the leaf has told its timeout. A longer timeout
/// does not make them rarer: 10 small packets a second are no load, and a leaf that comes back soon hears who is there.
const INTERVAL_MOST_MS: u64 = 100;
/// Milliseconds until a WORKER_ID is repeated, since its worker gets no tasks before: at first, doubled by each repetition, and at most.
const RETRY_MS: (u64, u64) = (10, 40);
/// Words of all workers together: what keeps 100 of them alive at the default timeout of 100 ms.
pub const WORDS_A_SECOND: u64 = 5000;

/// One worker, as the leaf knows it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    /// Number of its last word. A question that is repeated keeps its number, so that a late answer counts.
    seq: u16,
    /// A WORKER_ID of that number was sent and is not answered yet.
    asked: bool,
    /// The leaf has answered since the worker came.
    acknowledged: bool,
    /// Milliseconds until the next repetition of the WORKER_ID.
    retry_ms: u64,
    /// Ticks when to speak next.
    due: u64,
}

impl Entry {
    fn new(place: Place) -> Self {
        let retry_ms = RETRY_MS.0;
        Self { place, seq: 0, asked: false, acknowledged: false, retry_ms, due: 0 }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Registrar {
    /// Where the leaf is.
    pub(super) hop: NextHop<IpAddr>,
    entries: Vec<Entry>,
    /// Index of the entry to look at first, so that all have their turn when not all can speak in time.
    first: usize,
    ticks_hz: u64,
    /// Ticks between two words of one worker.
    interval: u64,
    /// Ticks before which nobody speaks.
    next_word: u64,
}

impl Registrar {
    /// Nobody is registered yet. Each worker speaks ten times a second until the leaf asks for more.
    #[must_use]
    pub fn new(
        leaf: IpAddr,
        port: usize,
        mac: Option<Mac>,
        places: &[Place],
        ticks_hz: u64,
    ) -> Self {
        let entries = places.iter().copied().map(Entry::new);
        let mut registrar = Self {
            hop: NextHop::new(leaf, port, mac),
            entries: entries.collect(),
            first: 0,
            ticks_hz,
            interval: 0,
            next_word: 0,
        };
        registrar.interval = registrar.ticks(INTERVAL_MOST_MS);
        registrar
    }

    fn ticks(&self, ms: u64) -> u64 {
        (ms * self.ticks_hz / 1000).max(1)
    }

    /// Takes memory for so many workers in all.
    pub fn make_room(&mut self, workers: usize) {
        self.entries.reserve_exact(workers.saturating_sub(self.entries.len()));
    }

    /// One more worker is to be registered when it is there; for which there is room.
    pub fn add(&mut self, place: Place) {
        self.entries.push(Entry::new(place));
    }

    /// The leaf hears of this worker no more.
    pub fn remove(&mut self, place: Place) {
        self.entries.retain(|entry| entry.place != place);
        self.first = 0;
    }

    /// The leaf's address.
    #[must_use]
    pub fn leaf(&self) -> IpAddr {
        self.hop.address
    }

    /// Its MAC address, as far as it is known.
    #[must_use]
    pub fn mac(&self) -> Option<Mac> {
        self.hop.mac
    }

    /// Its MAC address is not known, and it is time to ask.
    pub fn must_ask(&mut self, now: u64) -> bool {
        self.hop.must_ask(now, self.ticks_hz)
    }

    /// A packet to this host told where `address` is.
    pub fn learn(&mut self, address: IpAddr, mac: Mac) {
        if address == self.hop.address {
            self.hop.learn(mac);
        }
    }

    /// Takes an acknowledgement that came to `port` from that address and MAC address.
    ///
    /// # Errors
    /// Why it is not believed: it is not the leaf's, or answers no question that is pending.
    pub fn acknowledged(
        &mut self,
        port: usize,
        from: (IpAddr, Mac),
        header: &Header,
    ) -> Result<(), DropReason> {
        if !self.hop.has_sent(port, from) {
            return Err(DropReason::SpoofedReply);
        }
        let place = Place { id: header.dst, pool: header.pool };
        let entry = self.entries.iter_mut().find(|entry| entry.place == place);
        let entry = entry.ok_or(DropReason::UnknownWorker)?;
        if !entry.asked || entry.seq != header.seq {
            return Err(DropReason::NotAsked);
        }
        (entry.asked, entry.acknowledged) = (false, true);
        let interval = match u64::from(header.qlen) {
            0 => self.ticks(INTERVAL_MOST_MS), // the leaf takes nobody out
            timeout => self.ticks(timeout) / WITHIN_TIMEOUT,
        };
        let interval = interval.clamp(self.ticks(INTERVAL_LEAST_MS), self.ticks(INTERVAL_MOST_MS));
        if interval < self.interval {
            self.entries.iter_mut().for_each(|entry| entry.due = 0);
        }
        self.interval = interval;
        Ok(())
    }

    /// What to tell the leaf at `now`, if it is known where it is. `tasks` says whether a worker is there, and
    /// how many tasks it has. A worker that left is registered anew when it comes back.
    pub fn due(&mut self, now: u64, tasks: impl Fn(Place) -> Option<u16>) -> Option<Header> {
        if self.hop.mac.is_none() || now < self.next_word {
            return None;
        }
        let count = self.entries.len();
        let (before, after) = self.entries.split_at_mut(self.first);
        for (at, entry) in { after.iter_mut().chain(before) }.enumerate() {
            if entry.due > now {
                continue;
            }
            let Place { id, pool } = entry.place;
            let Some(tasks) = tasks(entry.place) else {
                (entry.asked, entry.acknowledged) = (false, false);
                continue;
            };
            let mut wait = self.interval;
            if !entry.asked {
                entry.seq = entry.seq.wrapping_add(1);
                (entry.asked, entry.retry_ms) = (!entry.acknowledged, RETRY_MS.0);
            }
            if !entry.acknowledged {
                wait = wait.min((entry.retry_ms * self.ticks_hz / 1000).max(1));
                entry.retry_ms = (2 * entry.retry_ms).min(RETRY_MS.1);
            }
            entry.due = now + wait;
            self.first = (self.first + at + 1) % count;
            self.next_word = now + (self.ticks_hz / WORDS_A_SECOND).max(1);
            let header = match entry.acknowledged {
                true => Header::keep_alive(pool, id, tasks, entry.seq),
                false => Header::worker_id(pool, id, tasks, entry.seq),
            };
            return Some(header);
        }
        None
    }

    /// Workers that the leaf has acknowledged.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.entries.iter().filter(|entry| entry.acknowledged).count()
    }
}

/// Writes the whole frame of a server's word to a leaf, of [`Address::PAYLOAD`] and the header's bytes; `sign` is given the payload,
/// to sign it when the header says that it is authenticated.
pub fn emit<A: Address>(
    header: &Header,
    flow: &Flow<A>,
    frame: &mut [u8],
    sign: impl FnOnce(&mut [u8]),
) {
    let payload = &mut frame[A::PAYLOAD..];
    header.emit(payload);
    sign(payload);
    A::emit(flow, frame, header.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::task::Code;

    const HZ: u64 = 1_000_000;
    const LEAF: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn registrar(workers: u16) -> Registrar {
        let places: Vec<_> = (0..workers).map(|id| Place { id, pool: 1 }).collect();
        Registrar::new(LEAF, 0, Some(MAC), &places, HZ)
    }

    /// What is said in the second from `now` on, asked as often as an agent's core asks.
    fn second(registrar: &mut Registrar, now: u64) -> Vec<Header> {
        let times = (now..now + HZ).step_by(HZ as usize / 10_000);
        times.filter_map(|now| registrar.due(now, |_| Some(0))).collect()
    }

    fn answer(registrar: &mut Registrar, asked: &Header, timeout_ms: u16) {
        let header = asked.acknowledged_by(9, timeout_ms);
        registrar.acknowledged(0, (LEAF, MAC), &header).unwrap();
    }

    #[test]
    fn the_interval_follows_the_last_acknowledgement_within_bounds() {
        let mut registrar = registrar(1);
        let mut now = 0;
        // Milliseconds of timeout, and how often the worker is heard of within a second.
        for (timeout, expected) in
            [(50, 100), (1, 500), (10, 500), (65_535, 10), (0, 10), (100, 50)]
        {
            // It has left and comes back, so that it asks anew.
            assert!(registrar.due(now + HZ, |_| None).is_none());
            let asked = registrar.due(now + HZ, |_| Some(0)).unwrap();
            assert_eq!(asked.code, Code::WorkerId);
            answer(&mut registrar, &asked, timeout);
            now += 2 * HZ;
            let words = second(&mut registrar, now);
            assert!(words.iter().all(|word| word.code == Code::KeepAlive));
            assert!(words.len().abs_diff(expected) <= 1, "{timeout} ms: {} words", words.len());
        }
    }

    #[test]
    fn many_workers_share_a_bound_and_all_have_their_turn() {
        let mut registrar = registrar(400);
        let asked = second(&mut registrar, 0);
        answer(&mut registrar, &asked[0], 10);
        let words = second(&mut registrar, HZ);
        assert_eq!(words.len(), WORDS_A_SECOND as usize);
        for id in 0..400 {
            let turns = words.iter().filter(|word| word.src == id).count();
            assert!((11..=14).contains(&turns), "worker {id}: {turns} of 12.5");
        }
    }

    #[test]
    fn unanswered_registration_is_repeated_soon_and_then_less_often() {
        let mut registrar = registrar(1);
        let asked = |now: &u64| registrar.due(now * HZ / 1000, |_| Some(0)).is_some();
        let times: Vec<_> = (0..500_u64).filter(asked).collect();
        assert_eq!(times[..8], [0, 10, 30, 70, 110, 150, 190, 230]);
    }

    #[test]
    fn a_question_keeps_its_number_until_it_is_answered() {
        let mut registrar = registrar(1);
        let asked = second(&mut registrar, 0);
        assert!(asked.len() > 1 && asked.iter().all(|question| *question == asked[0]));
        answer(&mut registrar, &asked[0], 100);
        let again = asked[0].acknowledged_by(9, 100);
        let refused = registrar.acknowledged(0, (LEAF, MAC), &again);
        assert_eq!(refused, Err(DropReason::NotAsked));
        let alive = second(&mut registrar, HZ);
        assert!(alive.windows(2).all(|two| two[0].seq != two[1].seq));
    }
}
