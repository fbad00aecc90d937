//! Direct return: replies that leave for the clients without the leaf, and the leaf's reports of their completion.
//!
//! A leaf of a pool with `replies = "direct"` keeps a task's destination: the address to which the client sent the
//! task, instead of the agent's own. So the agent knows that it may answer the client itself, and from which address.
//! It accepts such tasks only from the MAC address of a leaf of its own.
//!
//! The agent finds the MAC address of the client, or of the port's gateway, by ARP or neighbour discovery. Until then,
//! and if worker threads send the replies, it readdresses the task to itself. The reply then passes the leaf.
//!
//! Completions wait in a *batch* for each leaf. The agent sends a batch when it is full or has waited for [`DELAY_NS`].
//! The leaf marks a task that fills its worker up to the policy's bound, because further tasks may then wait at the
//! leaf. When such a task arrives, the agent sends the leaf's batch at once. It does so again after the worker's next
//! completion.

use arrayvec::ArrayVec;

use crate::limits::AGENT_LEAVES_MAX;
use crate::node::Timing;
use crate::node::arp::{ArpQuestion, ArpResolver};
use crate::stage::network::PortNetwork;
use crate::state::Neighbours;
use crate::state::neighbour::{HostAddress, REACHABLE_MS};
use crate::wire::completion::{COMPLETIONS_MAX, Completion};
use crate::wire::ether::Mac;

/// Longest time that a completion waits for others in nanoseconds.
const DELAY_NS: u64 = 5_000;

/// Route of a reply without the leaf.
#[derive(Clone, Copy, Debug)]
pub struct DirectRoute {
    /// Index of the leaf that sent the task and gets the report.
    pub leaf: u8,
    /// MAC address of the client or its router.
    pub mac: Mac,
}

/// Next hops to clients.
#[derive(Debug)]
pub struct ClientHops {
    /// Hosts on the ports' networks, with their MAC addresses if known.
    neighbours: Neighbours,
    /// Questions for MAC addresses. Holds no packets.
    resolver: ArpResolver<()>,
}

impl ClientHops {
    /// Creates the table for this number of ports, with `seed` as the key of its hash.
    pub fn new(ports: usize, seed: u64) -> Self {
        let resolver = ArpResolver::new(Timing::QUESTION_INTERVAL_MS);
        Self { neighbours: Neighbours::keyed(ports, 0, seed), resolver }
    }

    /// Returns the MAC address of the next hop from a port's network to a client, if known. Otherwise, or if the
    /// address is old, starts questions for it.
    #[inline]
    pub fn find<A: HostAddress>(
        &mut self,
        port: usize,
        network: &PortNetwork<A>,
        client: A,
        now_ms: u64,
    ) -> Option<Mac> {
        let hop = if network.reaches(client) { client } else { network.gateway? };
        // A slot is an entry of the neighbour table; the table counts milliseconds in 32 bits, which wrap.
        let (neighbours, now) = (&self.neighbours, now_ms as u32);
        let found = neighbours.find(port, hop);
        let slot = found.unwrap_or_else(|| neighbours.insert(port, hop, now));
        neighbours.note_use(slot, now);
        let mac = neighbours.mac(slot);
        if neighbours.age_ms(slot, now).is_none_or(|age| age > REACHABLE_MS) {
            let address = neighbours.address(slot);
            self.resolver.ask(port as u8, slot, address, mac.is_some(), now_ms);
        }
        mac
    }

    /// Learns the MAC address of a host, if it is a next hop of a client. Returns false otherwise. Without `mac`, only
    /// looks for the host.
    pub fn learn<A: HostAddress>(
        &self,
        port: usize,
        host: A,
        mac: Option<Mac>,
        now_ms: u64,
    ) -> bool {
        let Some(slot) = self.neighbours.find(port, host) else { return false };
        if let Some(mac) = mac.filter(|mac| mac.is_host()) {
            let _ = self.neighbours.learn(slot, mac, now_ms as u32);
        }
        true
    }

    /// Returns the next question to send, if one is due, and gives up hosts that answered none.
    pub fn next_question(&mut self, now_ms: u64) -> Option<ArpQuestion> {
        while self.resolver.next_silent(now_ms, &self.neighbours).is_some() {}
        self.resolver.due(now_ms, &self.neighbours)
    }
}

/// Completions for one leaf, of one pool.
#[derive(Debug, Default)]
struct Batch {
    /// Pool of all entries; meaningless for an empty batch.
    pool: u16,
    /// Completions in order.
    entries: ArrayVec<Completion, COMPLETIONS_MAX>,
    /// Time of the report in ticks, at the latest.
    due: u64,
    /// Number of the last report.
    seq: u16,
}

/// Completions that wait for their report.
#[derive(Debug)]
pub struct Completions {
    /// Batches by leaf.
    batches: [Batch; AGENT_LEAVES_MAX],
    /// Earliest time of a report in ticks; `u64::MAX` without completions.
    due: u64,
    /// [`DELAY_NS`] in ticks.
    delay: u64,
}

/// Contents of a completion report.
#[derive(Debug)]
pub struct CompletionReport {
    /// Index of the leaf.
    pub leaf: usize,
    /// Pool of all entries.
    pub pool: u16,
    /// Number of the report.
    pub seq: u16,
    /// The completions, at least one.
    pub entries: ArrayVec<Completion, COMPLETIONS_MAX>,
}

impl Completions {
    /// Creates empty batches.
    pub fn new(timing: Timing) -> Self {
        let batches = std::array::from_fn(|_| Batch::default());
        Self { batches, due: u64::MAX, delay: timing.ticks_of_ns(DELAY_NS) }
    }

    /// Returns the earliest time of a report in ticks; `u64::MAX` without completions.
    #[inline]
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Returns true if a completion of this pool fits into the batch of a leaf.
    #[inline]
    pub fn has_room(&self, leaf: u8, pool: u16) -> bool {
        let batch = &self.batches[usize::from(leaf)];
        batch.entries.is_empty() || batch.pool == pool && !batch.entries.is_full()
    }

    /// Adds a completion to the batch of a leaf, which must have room. A full batch, or one with an urgent
    /// completion, is due now.
    #[inline]
    pub fn push(&mut self, leaf: u8, pool: u16, completion: Completion, urgent: bool, now: u64) {
        let batch = &mut self.batches[usize::from(leaf)];
        if batch.entries.is_empty() {
            (batch.pool, batch.due) = (pool, now + self.delay);
        }
        let _ = batch.entries.try_push(completion);
        if urgent || batch.entries.is_full() {
            batch.due = 0;
        }
        self.due = self.due.min(batch.due);
    }

    /// Makes the batch of a leaf due now, if it has completions.
    #[inline]
    pub fn hurry(&mut self, leaf: u8) {
        let batch = &mut self.batches[usize::from(leaf)];
        if !batch.entries.is_empty() {
            (batch.due, self.due) = (0, 0);
        }
    }

    /// Removes and returns a batch that is due at `now`.
    pub fn next_report(&mut self, now: u64) -> Option<CompletionReport> {
        if now < self.due {
            return None;
        }
        let is_due = |batch: &Batch| !batch.entries.is_empty() && batch.due <= now;
        let leaf = self.batches.iter().position(is_due);
        let Some(leaf) = leaf else {
            // All due batches are sent, so the time of the next report changes.
            let waiting = self.batches.iter().filter(|batch| !batch.entries.is_empty());
            self.due = waiting.map(|batch| batch.due).min().unwrap_or(u64::MAX);
            return None;
        };
        let batch = &mut self.batches[leaf];
        batch.seq = batch.seq.wrapping_add(1);
        let entries = std::mem::take(&mut batch.entries);
        Some(CompletionReport { leaf, pool: batch.pool, seq: batch.seq, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a completion with this number of tasks left.
    fn done(left: u16) -> Completion {
        Completion { worker: 5, class: 0, left, service_ns: 1 }
    }

    /// Creates empty batches with a clock of one tick per nanosecond.
    fn batches() -> Completions {
        Completions::new(Timing { ticks_hz: 1_000_000_000 })
    }

    // promise: packets.2
    #[test]
    fn completions_wait_for_others_at_most_five_microseconds() {
        let mut batches = batches();
        batches.push(1, 7, done(3), false, 100);
        batches.push(1, 7, done(2), false, 4_000);
        assert_eq!(batches.due(), 5_100);
        assert!(batches.next_report(5_099).is_none());
        let report = batches.next_report(5_100).unwrap();
        assert_eq!((report.leaf, report.pool, report.entries.len()), (1, 7, 2));
        assert!(batches.next_report(u64::MAX - 1).is_none());
        assert_eq!(batches.due(), u64::MAX);
    }

    // promise: packets.2
    #[test]
    fn full_and_urgent_batches_leave_at_once() {
        let mut batches = batches();
        for left in 0..COMPLETIONS_MAX as u16 {
            assert!(batches.has_room(0, 7) && batches.next_report(10).is_none());
            batches.push(0, 7, done(left), false, 10);
        }
        assert!(!batches.has_room(0, 7) && batches.has_room(1, 7));
        let report = batches.next_report(10).unwrap();
        assert!(report.entries.iter().map(|one| one.left).eq(0..COMPLETIONS_MAX as u16));
        batches.push(0, 7, done(1), true, 10);
        assert_eq!(batches.next_report(10).map(|report| report.seq), Some(2));
        // A later task may make earlier completions urgent.
        batches.push(2, 7, done(1), false, 10);
        assert!(!batches.has_room(2, 8), "one pool in a report");
        batches.hurry(2);
        assert_eq!(batches.next_report(10).map(|report| report.leaf), Some(2));
    }

    #[test]
    fn clients_behind_the_gateway_share_its_address() {
        let mut hops = ClientHops::new(1, 0);
        let (gateway, near) = (0x0A00_02FE_u32, 0x0A00_0205);
        let network = PortNetwork { ip: 0x0A00_020B, prefix: 24, gateway: Some(gateway) };
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        assert_eq!(hops.find(0, &network, 0x0808_0808, 1), None);
        assert_eq!(hops.next_question(1).map(|question| question.address), Some(gateway));
        assert!(!hops.learn(0, near, Some(mac), 2), "nobody asked for it");
        assert!(hops.learn(0, gateway, Some(mac), 2));
        assert_eq!(hops.find(0, &network, 0x0808_0404, 3), Some(mac));
        assert_eq!(hops.find(0, &network, near, 3), None);
        let alone = PortNetwork { gateway: None, ..network };
        assert_eq!(hops.find(0, &alone, 0x0808_0808, 3), None);
        // An old address is confirmed and meanwhile in use.
        hops.learn(0, near, Some(mac), 4);
        while hops.next_question(5).is_some() {}
        assert_eq!(hops.find(0, &network, near, 40_000), Some(mac));
        assert_eq!(hops.next_question(40_000).map(|question| question.to), Some(mac));
    }
}
