//! Registration of workers with a leaf: the message WORKER_ID until the leaf acknowledges it, then KEEP_ALIVE
//! (docs/reference/protocol.md). There is one registrar per leaf. The leaf sends tasks only to registered workers.
//!
//! An acknowledgement carries the leaf's timeout, after which the leaf excludes a silent worker. The interval of
//! messages follows from it, within bounds, so that even forged acknowledgements cannot raise the rate further.
//! Messages of one worker are at least [`INTERVAL_MIN_MS`] apart, except one after each decrease of the interval. All
//! together are at most [`MESSAGES_PER_SECOND`] per second.

use std::net::IpAddr;

use super::next_hop::NextHop;
use crate::reason::DropReason;
use crate::ring::WorkerIdentity;
use crate::wire::address::Address;
use crate::wire::ether::Mac;
use crate::wire::task::Header;
use crate::wire::udp::Flow;

/// Keep-alives within a leaf's timeout: one more than the leaf requires.
const KEEP_ALIVES_PER_TIMEOUT: u64 = 5;
/// Shortest timeout in milliseconds that the agent honours. A leaf checks for silent workers eight times
/// within its timeout, and an agent's core may itself stall for milliseconds.
pub const TIMEOUT_MIN_MS: u64 = 10;
/// Minimum interval in milliseconds between messages of one worker.
pub const INTERVAL_MIN_MS: u64 = TIMEOUT_MIN_MS / KEEP_ALIVES_PER_TIMEOUT;
/// Maximum interval in milliseconds between messages of one worker, also used if the leaf excludes no worker.
/// Independent of longer timeouts: 10 small packets per second are no load, and a restarted leaf soon learns of
/// all workers.
const INTERVAL_MAX_MS: u64 = 100;
/// First and longest interval of repetitions of a WORKER_ID in milliseconds; each repetition doubles it. A shorter
/// interval of messages applies to repetitions too. Short, because the worker gets no tasks before the acknowledgement.
const RETRY_MS: (u64, u64) = (10, 40);
/// Messages per second of all workers: enough to keep 100 of them alive at the default timeout of 100 ms.
pub const MESSAGES_PER_SECOND: u64 = 5000;

/// State of a worker's registration with the leaf.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Identity of the worker.
    identity: WorkerIdentity,
    /// Number of its last message. A repeated question keeps its number, so that a late answer counts.
    seq: u16,
    /// True if the message with that number is an unanswered WORKER_ID.
    awaits_answer: bool,
    /// True if the leaf has answered since a due message last found the worker detached.
    acknowledged: bool,
    /// Maximum time in milliseconds from the next WORKER_ID to its repetition.
    retry_ms: u64,
    /// Time of the next message in ticks.
    due: u64,
}

impl Entry {
    /// Creates the entry of a worker that has sent no message.
    fn new(identity: WorkerIdentity) -> Self {
        let retry_ms = RETRY_MS.0;
        Self { identity, seq: 0, awaits_answer: false, acknowledged: false, retry_ms, due: 0 }
    }
}

/// Registrar: registers the agent's workers with one leaf, and keeps them alive there.
#[derive(Debug)]
pub struct Registrar {
    /// Next hop of the leaf.
    pub(super) hop: NextHop,
    /// The agent's workers, attached or not.
    entries: Vec<Entry>,
    /// Index of the first entry to check. It moves on with each message, so that all workers get a turn when the
    /// rate is at its bound.
    first: usize,
    /// Ticks per second.
    ticks_hz: u64,
    /// Ticks between messages of one worker.
    interval: u64,
    /// Earliest time of the next message in ticks.
    next_message: u64,
    /// True if the last check found a due message. More of them may be due.
    has_more: bool,
}

impl Registrar {
    /// Creates a registrar. Each acknowledged worker sends ten times per second until the leaf requests more.
    #[must_use]
    pub fn new(
        leaf: IpAddr,
        port: usize,
        mac: Option<Mac>,
        identities: &[WorkerIdentity],
        ticks_hz: u64,
    ) -> Self {
        let entries = identities.iter().copied().map(Entry::new);
        let mut registrar = Self {
            hop: NextHop::new(leaf, port, mac),
            entries: entries.collect(),
            first: 0,
            ticks_hz,
            interval: 0,
            next_message: 0,
            has_more: false,
        };
        registrar.interval = registrar.ticks(INTERVAL_MAX_MS);
        registrar
    }

    /// Converts milliseconds to ticks, at least 1.
    fn ticks(&self, ms: u64) -> u64 {
        (ms * self.ticks_hz / 1000).max(1)
    }

    /// Allocates memory for `workers` workers in all, so that `add` on the polling core allocates nothing.
    pub fn make_room(&mut self, workers: usize) {
        self.entries.reserve_exact(workers.saturating_sub(self.entries.len()));
    }

    /// Adds a worker, to be registered once it attaches; there must be room.
    pub fn add(&mut self, identity: WorkerIdentity) {
        self.entries.push(Entry::new(identity));
    }

    /// Removes a worker.
    pub fn remove(&mut self, identity: WorkerIdentity) {
        self.entries.retain(|entry| entry.identity != identity);
        self.first = 0;
    }

    /// Returns the leaf's address.
    #[must_use]
    pub fn leaf(&self) -> IpAddr {
        self.hop.address
    }

    /// Returns the leaf's MAC address, if known.
    #[must_use]
    pub fn mac(&self) -> Option<Mac> {
        self.hop.mac
    }

    /// Returns true if the leaf's MAC address is unknown and an ARP request or neighbour solicitation is due. The
    /// caller must then send it.
    pub fn must_ask(&mut self, now: u64) -> bool {
        self.hop.must_ask(now, self.ticks_hz)
    }

    /// Stores the leaf's MAC address from a packet addressed to this host. Ignores other senders.
    pub fn learn(&mut self, address: IpAddr, mac: Mac) {
        if address == self.hop.address {
            self.hop.learn(mac);
        }
    }

    /// Processes an acknowledgement received at `port` with these source addresses.
    ///
    /// # Errors
    /// Reason for refusal: it is not from the leaf, names an unknown worker, or answers no pending question.
    pub fn acknowledged(
        &mut self,
        port: usize,
        from: (IpAddr, Mac),
        header: &Header,
    ) -> Result<(), DropReason> {
        if !self.hop.has_sent(port, from) {
            return Err(DropReason::SpoofedReply);
        }
        let identity = WorkerIdentity { id: header.dst, pool: header.pool };
        let entry = self.entries.iter_mut().find(|entry| entry.identity == identity);
        let entry = entry.ok_or(DropReason::UnknownWorker)?;
        if !entry.awaits_answer || entry.seq != header.seq {
            return Err(DropReason::NotAsked);
        }
        (entry.awaits_answer, entry.acknowledged) = (false, true);
        let interval = match u64::from(header.qlen) {
            0 => self.ticks(INTERVAL_MAX_MS), // the leaf excludes no worker
            timeout => self.ticks(timeout) / KEEP_ALIVES_PER_TIMEOUT,
        };
        let interval = interval.clamp(self.ticks(INTERVAL_MIN_MS), self.ticks(INTERVAL_MAX_MS));
        if interval < self.interval {
            // Messages planned with the longer interval would come too late.
            self.entries.iter_mut().for_each(|entry| entry.due = 0);
        }
        self.interval = interval;
        Ok(())
    }

    /// Returns the next message at `now`, if one is due and the leaf's MAC address is known. `tasks` returns the
    /// number of a worker's tasks if it is attached. A worker found detached is registered again on its return.
    pub fn due(
        &mut self,
        now: u64,
        tasks: impl Fn(WorkerIdentity) -> Option<u16>,
    ) -> Option<Header> {
        if self.hop.mac.is_none() || now < self.next_message {
            return None;
        }
        let count = self.entries.len();
        let (before, after) = self.entries.split_at_mut(self.first);
        // Each worker once, from the entry at `first` on.
        for (offset, entry) in { after.iter_mut().chain(before) }.enumerate() {
            if entry.due > now {
                continue;
            }
            let WorkerIdentity { id, pool } = entry.identity;
            let Some(tasks) = tasks(entry.identity) else {
                // Not attached: the worker registers again on its return.
                (entry.awaits_answer, entry.acknowledged) = (false, false);
                continue;
            };
            let mut delay = self.interval;
            // A new message gets a new number; a repeated WORKER_ID keeps its number.
            if !entry.awaits_answer {
                entry.seq = entry.seq.wrapping_add(1);
                (entry.awaits_answer, entry.retry_ms) = (!entry.acknowledged, RETRY_MS.0);
            }
            if !entry.acknowledged {
                delay = delay.min((entry.retry_ms * self.ticks_hz / 1000).max(1));
                entry.retry_ms = (2 * entry.retry_ms).min(RETRY_MS.1);
            }
            entry.due = now + delay;
            self.first = (self.first + offset + 1) % count;
            self.next_message = now + (self.ticks_hz / MESSAGES_PER_SECOND).max(1);
            self.has_more = true;
            let header = match entry.acknowledged {
                true => Header::keep_alive(pool, id, tasks, entry.seq),
                false => Header::worker_id(pool, id, tasks, entry.seq),
            };
            return Some(header);
        }
        self.has_more = false;
        None
    }

    /// Returns the time in ticks from which on [`Registrar::due`] must be called without delay, because more messages
    /// may be due; `u64::MAX` if the last call found none.
    #[must_use]
    pub fn next_check(&self) -> u64 {
        if self.has_more { self.next_message } else { u64::MAX }
    }

    /// Returns the number of acknowledged workers.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.entries.iter().filter(|entry| entry.acknowledged).count()
    }
}

/// Writes the frame of an agent's message to a leaf: a registration, a keep-alive or a report. `complete` gets the
/// payload, to write a completion report's entries and the message's authentication tag behind the header.
pub fn emit<A: Address>(
    header: &Header,
    flow: &Flow<A>,
    frame: &mut [u8],
    complete: impl FnOnce(&mut [u8]),
) {
    let payload = &mut frame[A::PAYLOAD..];
    header.emit(payload);
    complete(payload);
    let len = payload.len();
    A::emit(flow, frame, len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::task::Code;

    /// Ticks per second: a tick is 1 us.
    const HZ: u64 = 1_000_000;
    const LEAF: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// Creates a registrar of workers 0, 1 and so on, whose leaf's MAC address is known.
    fn registrar(workers: u16) -> Registrar {
        let identities: Vec<_> = (0..workers).map(|id| WorkerIdentity { id, pool: 1 }).collect();
        Registrar::new(LEAF, 0, Some(MAC), &identities, HZ)
    }

    /// Returns the messages in the second after `now`, polled as often as an agent's core does.
    fn second(registrar: &mut Registrar, now: u64) -> Vec<Header> {
        let times = (now..now + HZ).step_by(HZ as usize / 10_000);
        times.filter_map(|now| registrar.due(now, |_| Some(0))).collect()
    }

    /// Delivers the leaf's acknowledgement of this message, with the leaf's timeout.
    fn answer(registrar: &mut Registrar, request: &Header, timeout_ms: u16) {
        let header = request.acknowledged_by(9, timeout_ms); // by leaf 9
        registrar.acknowledged(0, (LEAF, MAC), &header).unwrap();
    }

    // promise: agent.3
    #[test]
    fn the_interval_follows_the_last_acknowledgement_within_bounds() {
        let mut registrar = registrar(1);
        let mut now = 0;
        // Timeout in milliseconds, and messages of the worker per second: 5 per timeout, between 10 and 500.
        for (timeout, expected) in
            [(50, 100), (1, 500), (10, 500), (65_535, 10), (0, 10), (100, 50)]
        {
            // The worker leaves and returns, so it registers again.
            assert!(registrar.due(now + HZ, |_| None).is_none());
            let request = registrar.due(now + HZ, |_| Some(0)).unwrap();
            assert_eq!(request.code, Code::WorkerId);
            answer(&mut registrar, &request, timeout);
            now += 2 * HZ;
            let messages = second(&mut registrar, now);
            assert!(messages.iter().all(|message| message.code == Code::KeepAlive));
            let count = messages.len();
            assert!(count.abs_diff(expected) <= 1, "{timeout} ms: {count} messages");
        }
    }

    // promise: agent.3
    #[test]
    fn registrations_share_a_rate_fairly() {
        let mut registrar = registrar(400);
        let request = second(&mut registrar, 0);
        // A timeout of 10 ms raises the workers' rate, 200,000 messages per second in all, far beyond the bound.
        answer(&mut registrar, &request[0], 10);
        let messages = second(&mut registrar, HZ);
        assert_eq!(messages.len(), MESSAGES_PER_SECOND as usize);
        for id in 0..400 {
            // 5000 messages a second for 400 workers are 12.5 each.
            let turns = messages.iter().filter(|message| message.src == id).count();
            assert!((11..=14).contains(&turns), "worker {id}: {turns} of 12.5");
        }
    }

    #[test]
    fn unanswered_registration_is_repeated_with_back_off() {
        let mut registrar = registrar(1);
        let request = |now: &u64| registrar.due(now * HZ / 1000, |_| Some(0)).is_some();
        let times: Vec<_> = (0..500_u64).filter(request).collect();
        // After 10 ms, after 20 ms more, and then every 40 ms.
        assert_eq!(times[..8], [0, 10, 30, 70, 110, 150, 190, 230]);
    }

    #[test]
    fn idle_core_sends_all_due_messages() {
        let mut registrar = registrar(100);
        let (mut now, mut registered) = (0, std::collections::BTreeSet::new());
        // An idle core wakes at the next check, or after 2 ms. 100 messages at the maximum rate take 20 ms.
        while now < 25 * HZ / 1000 {
            registered.extend(registrar.due(now, |_| Some(0)).map(|header| header.src));
            now = registrar.next_check().min(now + HZ / 500);
        }
        assert_eq!(registered.len(), 100);
    }

    // promise: agent.3
    #[test]
    fn unanswered_registration_keeps_its_sequence() {
        let mut registrar = registrar(1);
        let request = second(&mut registrar, 0);
        assert!(request.len() > 1 && request.iter().all(|question| *question == request[0]));
        answer(&mut registrar, &request[0], 100);
        let duplicate = request[0].acknowledged_by(9, 100);
        let refused = registrar.acknowledged(0, (LEAF, MAC), &duplicate);
        assert_eq!(refused, Err(DropReason::NotAsked));
        let alive = second(&mut registrar, HZ);
        assert!(alive.windows(2).all(|two| two[0].seq != two[1].seq));
    }
}
