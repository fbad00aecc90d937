//! One core's resolver of next hops: packets held until their next hop's MAC address is known, and the
//! *questions* for it (ARP requests, or neighbour solicitations over IPv6).
//!
//! An unknown host is asked for by broadcast, three times. A known host that needs confirmation is first
//! probed by unicast, three times, because any host may answer a broadcast. Broadcasts follow only if it is
//! silent. If another host claims a known host's address, the known host is probed in quick succession, since
//! packets may meanwhile go to a wrong host. Packets wait for at most three intervals of questions. If too many wait,
//! the oldest is dropped, so that a flood of packets for non-existing hosts does not exclude packets for real ones.
//!
//! A *slot* is the index of a host's entry in the neighbour table. The table may reuse it for another host, so
//! packets and questions also store the address: that of an IPv4 host, or a digest of an IPv6 host's.

use std::collections::VecDeque;
use std::net::IpAddr;

use arrayvec::ArrayVec;

use crate::limits::UNRESOLVED_HELD_MAX;
use crate::stage::PortAddress;
use crate::state::Neighbours;
use crate::state::neighbour::Slot;
use crate::wire::ether::Mac;
use crate::wire::{arp, ndp};

/// Maximum number of hosts that one core asks for at a time.
const QUESTIONS_MAX: usize = 256;
/// Questions of each kind, unicast and broadcast, before a host counts as silent.
const QUESTIONS_PER_KIND: u8 = 3;
/// Interval of additional questions while packets for the host arrive. A host that comes up late is then found sooner
/// than by the regular questions.
const URGENT_MS: u64 = 20;
/// Time for each answer of a known host whose address another one claims. Three of these exceed the usual
/// stall of a live machine.
const CLAIMED_MS: u64 = 40;

/// A packet that lacks only its destination MAC address.
#[derive(Debug)]
struct HeldPacket<B> {
    /// Handle of the packet.
    packet: B,
    /// Index of the port that leads to the next hop.
    port: u8,
    /// Slot of the next hop in the neighbour table.
    slot: Slot,
    /// Address of the next hop.
    address: u32,
    /// Time at which the packet is dropped, in milliseconds.
    until_ms: u64,
}

/// Open question for a host's MAC address.
#[derive(Clone, Copy, Debug)]
struct Question {
    /// Index of the port that leads to the host.
    port: u8,
    /// Slot of the host in the neighbour table.
    slot: Slot,
    /// Address of the host when the questions began. Another one in the slot means that the slot was reused.
    address: u32,
    /// Number of regular questions: up to [`QUESTIONS_PER_KIND`] by unicast, then as many by broadcast. An
    /// unknown host starts with the broadcasts, as if all unicast ones had been sent.
    count: u8,
    /// Time of the next question in milliseconds.
    due_ms: u64,
    /// Time of the first question.
    since_ms: u64,
    /// Time of the last question; 0 before the first.
    last_ms: u64,
    /// True if a packet for the host has arrived since the last question. It triggers an additional question.
    is_urgent: bool,
}

impl Question {
    /// Returns true if the time for an answer to the last regular question has passed.
    fn is_over(&self, now_ms: u64) -> bool {
        self.count >= 2 * QUESTIONS_PER_KIND && self.due_ms <= now_ms
    }

    /// Returns true if a question must be sent now, regular or urgent.
    fn is_due(&self, now_ms: u64) -> bool {
        let is_urgent = self.is_urgent && now_ms >= self.last_ms + URGENT_MS;
        is_urgent || (self.count < 2 * QUESTIONS_PER_KIND && self.due_ms <= now_ms)
    }

    /// Shortens the time for the answer to a unicast probe, because another host claims the address.
    fn hurry(&mut self) {
        if (1..=QUESTIONS_PER_KIND).contains(&self.count) {
            self.due_ms = self.due_ms.min(self.last_ms + CLAIMED_MS);
        }
    }
}

/// Question "Who has `address`?", to be sent out of `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpQuestion {
    /// Index of the port.
    pub port: u8,
    /// Address of an IPv4 host; unused for an IPv6 host.
    pub address: u32,
    /// Destination: the host itself, or broadcast.
    pub to: Mac,
    /// Address of an IPv6 host, which neighbour discovery resolves instead of ARP.
    pub v6: Option<u128>,
}

impl ArpQuestion {
    /// Creates a question to all hosts behind a port, for a host without a [`Slot`].
    #[must_use]
    pub fn broadcast(port: u8, host: IpAddr) -> Self {
        let (address, v6) = match host {
            IpAddr::V4(host) => (host.to_bits(), None),
            IpAddr::V6(host) => (0, Some(host.to_bits())),
        };
        Self { port, address, to: Mac::BROADCAST, v6 }
    }

    /// Returns the length of the frame, Ethernet header included.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        if self.v6.is_some() { ndp::FRAME_LEN } else { arp::FRAME_LEN }
    }

    /// Writes the frame, from the node's address on the port.
    pub fn emit(&self, own: &PortAddress, frame: &mut [u8]) {
        match self.v6.zip(own.v6) {
            None => arp::Packet::request(own.mac, own.ip, self.address).emit(frame, self.to),
            Some((target, port)) => {
                let known = (self.to != Mac::BROADCAST).then_some(self.to);
                let (question, to) = ndp::Packet::question(own.mac, port.ip, target, known);
                question.emit(frame, to, false);
            }
        }
    }
}

/// Packets held for MAC addresses, and the questions for these. Times are milliseconds of the node's clock.
#[derive(Debug)]
pub struct ArpResolver<B> {
    /// Held packets, oldest first.
    waiting: VecDeque<HeldPacket<B>>,
    /// Open questions, oldest first.
    questions: ArrayVec<Question, QUESTIONS_MAX>,
    /// Interval of regular questions for a host.
    interval_ms: u64,
}

impl<B> ArpResolver<B> {
    /// Creates a resolver that repeats questions every `interval_ms`.
    pub fn new(interval_ms: u64) -> Self {
        let waiting = VecDeque::with_capacity(UNRESOLVED_HELD_MAX);
        Self { waiting, questions: ArrayVec::new(), interval_ms }
    }

    /// Returns the number of held packets.
    pub fn held(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if no packet waits and no question is open.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.questions.is_empty()
    }

    /// Holds a packet until its next hop is resolved, and starts the questions. If there is no room, returns
    /// the oldest held packet.
    pub fn hold(
        &mut self,
        packet: B,
        port: u8,
        slot: Slot,
        address: u32,
        now_ms: u64,
    ) -> Option<B> {
        let is_full = self.waiting.len() == UNRESOLVED_HELD_MAX;
        let oldest = if is_full { self.waiting.pop_front() } else { None };
        self.ask(port, slot, address, false, now_ms);
        let same = |question: &&mut Question| question.slot == slot && question.address == address;
        if let Some(question) = self.questions.iter_mut().find(same) {
            question.is_urgent = true;
        }
        let until_ms = now_ms + u64::from(QUESTIONS_PER_KIND) * self.interval_ms;
        self.waiting.push_back(HeldPacket { packet, port, slot, address, until_ms });
        oldest.map(|held| held.packet)
    }

    /// Starts the questions for a host, unless they are open already; by unicast first if it `is_known`. If
    /// too many are open, ends the oldest.
    pub fn ask(&mut self, port: u8, slot: Slot, address: u32, is_known: bool, now_ms: u64) {
        let same = |question: &Question| question.slot == slot && question.address == address;
        if self.questions.iter().any(same) {
            return;
        }
        if self.questions.is_full() {
            self.questions.remove(0);
        }
        let count = if is_known { 0 } else { QUESTIONS_PER_KIND };
        self.questions.push(Question {
            port,
            slot,
            address,
            count,
            due_ms: now_ms,
            since_ms: now_ms,
            last_ms: 0,
            is_urgent: false,
        });
    }

    /// Removes answered questions, and those whose slot now belongs to another host.
    fn remove_answered(&mut self, now_ms: u64, neighbours: &Neighbours) {
        let is_answered = |question: &Question| {
            let since = now_ms.saturating_sub(question.since_ms);
            neighbours.address(question.slot) != question.address
                || neighbours.is_confirmed_within(question.slot, since, now_ms as u32)
        };
        self.questions.retain(|question| !is_answered(question));
    }

    /// Returns the next question due at `now_ms`, if any. First removes answered questions.
    pub fn due(&mut self, now_ms: u64, neighbours: &Neighbours) -> Option<ArpQuestion> {
        self.remove_answered(now_ms, neighbours);
        let is_contested = |question: &&mut Question| neighbours.is_suspect(question.slot);
        self.questions.iter_mut().filter(is_contested).for_each(Question::hurry);
        let interval_ms = self.interval_ms;
        let question = self.questions.iter_mut().find(|question| question.is_due(now_ms))?;
        let known = neighbours.mac(question.slot).filter(|_| question.count < QUESTIONS_PER_KIND);
        if known.is_none() {
            // From now on by broadcast: the table accepts the first answer.
            question.count = question.count.max(QUESTIONS_PER_KIND);
            neighbours.ask_all(question.slot);
        }
        (question.last_ms, question.is_urgent) = (now_ms, false);
        // Urgent questions do not count, neither between the regular ones nor after the last. So they do not delay
        // the end of the questions.
        if question.due_ms <= now_ms && question.count < 2 * QUESTIONS_PER_KIND {
            question.count += 1;
            question.due_ms = now_ms.saturating_add(interval_ms);
        }
        let &mut Question { port, address, slot, .. } = question;
        let v6 = neighbours.v6(slot);
        Some(ArpQuestion { port, address, to: known.unwrap_or(Mac::BROADCAST), v6 })
    }

    /// Removes the oldest packet whose next hop is now resolved. Returns it with its port and the MAC address.
    pub fn resolved(&mut self, neighbours: &Neighbours) -> Option<(B, u8, Mac)> {
        // Not if the slot now belongs to another host.
        let mac = |held: &HeldPacket<B>| {
            neighbours.mac(held.slot).filter(|_| neighbours.address(held.slot) == held.address)
        };
        let mut waiting = self.waiting.iter().enumerate();
        let (index, mac) = waiting.find_map(|(index, held)| Some((index, mac(held)?)))?;
        let held = self.waiting.remove(index)?;
        Some((held.packet, held.port, mac))
    }

    /// Removes and returns a packet whose next hop did not answer in time. All packets have the same time limit, so the
    /// oldest expires first.
    pub fn next_expired(&mut self, now_ms: u64) -> Option<B> {
        self.waiting.front().filter(|held| held.until_ms <= now_ms)?;
        self.waiting.pop_front().map(|held| held.packet)
    }

    /// Ends the questions for a host that answered none of them, clears its MAC address, and returns its slot. A later
    /// packet for the host starts new questions.
    pub fn next_silent(&mut self, now_ms: u64, neighbours: &Neighbours) -> Option<Slot> {
        let is_over = |question: &Question| question.is_over(now_ms);
        if self.questions.iter().any(is_over) {
            // A late answer may have come since the last check.
            self.remove_answered(now_ms, neighbours);
        }
        let index = self.questions.iter().position(is_over)?;
        let Question { slot, .. } = self.questions.remove(index);
        neighbours.invalidate(slot);
        Some(slot)
    }

    /// Removes and returns any held packet, because the node stops.
    pub fn abandon(&mut self) -> Option<B> {
        self.waiting.pop_front().map(|held| held.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::neighbour::LearnOutcome;

    const HOST: Mac = Mac([2, 0, 0, 0, 0, 9]);
    /// Broadcast question for the host.
    const ALL: ArpQuestion = ArpQuestion { port: 0, address: 9, to: Mac::BROADCAST, v6: None };

    /// Returns a neighbour table with one unresolved host, which has address 9 behind port 0, and the host's slot.
    fn neighbours() -> (Neighbours, Slot) {
        let table = Neighbours::heap(1, 0);
        let slot = table.insert(0, 9_u32, 0);
        (table, slot)
    }

    #[test]
    fn packets_wait_until_their_next_hop_answers() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        assert_eq!(resolver.hold('a', 0, slot, 9, 0), None);
        assert_eq!(resolver.hold('b', 0, slot, 9, 0), None);
        assert_eq!(resolver.due(0, &table), Some(ALL));
        assert_eq!(resolver.due(9, &table), None);
        assert!(resolver.due(10, &table).is_some());
        assert_eq!(resolver.resolved(&table), None);
        table.learn(slot, HOST, 15);
        assert_eq!(resolver.due(30, &table), None);
        assert_eq!(resolver.resolved(&table), Some(('a', 0, HOST)));
        assert_eq!(resolver.resolved(&table), Some(('b', 0, HOST)));
        assert!(resolver.is_quiet());
    }

    #[test]
    fn late_host_is_asked_again_on_demand() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(200);
        resolver.ask(0, slot, 9, false, 1);
        assert_eq!((resolver.due(1, &table), resolver.due(1, &table)), (Some(ALL), None));
        for now in 30..100 {
            resolver.hold('a', 0, slot, 9, now);
        }
        let questions = (30..100).filter(|&now| resolver.due(now, &table).is_some()).count();
        assert_eq!(questions, 1, "nothing has come since");
        resolver.hold('b', 0, slot, 9, 100);
        assert_eq!(resolver.due(100, &table), Some(ALL));
        // The additional questions do not count: two regular ones follow the first.
        assert_eq!(
            [201, 401, 601].map(|now| resolver.due(now, &table).is_some()),
            [true, true, false]
        );
    }

    #[test]
    fn urgent_questions_do_not_delay_the_end() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(200);
        for now in (0..=600).step_by(20) {
            resolver.hold('a', 0, slot, 9, now);
            assert_eq!(resolver.due(now, &table), Some(ALL));
        }
        assert_eq!(resolver.next_silent(600, &table), Some(slot));
    }

    // promise: trust.1
    #[test]
    fn packets_are_given_up_after_three_questions() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        resolver.hold('a', 0, slot, 9, 0);
        for now in [0, 10, 20] {
            assert!(resolver.due(now, &table).is_some());
            assert_eq!(
                (resolver.next_expired(now), resolver.next_silent(now, &table)),
                (None, None)
            );
        }
        assert_eq!(resolver.due(30, &table), None);
        assert_eq!(resolver.next_expired(30), Some('a'));
        assert_eq!(resolver.next_expired(30), None);
        assert_eq!(resolver.next_silent(30, &table), Some(slot));
        assert!(resolver.is_quiet());
        resolver.hold('b', 0, slot, 9, 40);
        assert!(resolver.due(40, &table).is_some());
    }

    // promise: trust.1
    #[test]
    fn known_host_is_probed_by_unicast_first() {
        let (table, slot) = neighbours();
        table.learn(slot, HOST, 0);
        let mut resolver = ArpResolver::<char>::new(10);
        resolver.ask(0, slot, 9, true, 100);
        let questions: Vec<_> =
            (10..16).filter_map(|step| resolver.due(10 * step, &table)).collect();
        let itself = ArpQuestion { to: HOST, ..ALL };
        assert_eq!(questions, [itself, itself, itself, ALL, ALL, ALL]);
        assert_eq!(table.mac(slot), Some(HOST), "it is believed until the end");
        assert_eq!(resolver.next_silent(160, &table), Some(slot));
        assert_eq!(table.mac(slot), None);
        // No more questions after the answer.
        table.learn(slot, HOST, 200);
        resolver.ask(0, slot, 9, true, 300);
        assert_eq!(resolver.due(300, &table), Some(itself));
        table.learn(slot, HOST, 301);
        assert_eq!(resolver.due(310, &table), None);
        assert!(resolver.is_quiet());
    }

    // promise: trust.1
    #[test]
    fn answer_after_the_last_question_keeps_the_host() {
        let (table, slot) = neighbours();
        table.learn(slot, HOST, 0);
        let mut resolver = ArpResolver::<char>::new(10);
        resolver.ask(0, slot, 9, true, 100);
        assert_eq!((10..16).filter_map(|step| resolver.due(10 * step, &table)).count(), 6);
        // The node handles the answer after the questions have ended, and before it looks for silent hosts.
        table.learn(slot, HOST, 161);
        assert_eq!(resolver.next_silent(161, &table), None);
        assert_eq!(table.mac(slot), Some(HOST));
        assert!(resolver.is_quiet());
    }

    // promise: trust.1
    #[test]
    fn contested_host_gets_little_time_to_answer() {
        const OTHER: Mac = Mac([2, 0, 0, 0, 0, 8]);
        let (table, slot) = neighbours();
        table.learn(slot, HOST, 0);
        let mut resolver = ArpResolver::<char>::new(200);
        resolver.ask(0, slot, 9, true, 100);
        let itself = ArpQuestion { to: HOST, ..ALL };
        assert_eq!(resolver.due(100, &table), Some(itself));
        assert_eq!(resolver.due(150, &table), None, "nobody claims anything");
        table.learn(slot, OTHER, 150);
        let questions: Vec<_> =
            (150..260).filter_map(|now| Some((now, resolver.due(now, &table)?))).collect();
        assert_eq!(questions, [(150, itself), (190, itself), (230, ALL)]);
        assert_eq!(table.learn(slot, OTHER, 260), LearnOutcome::Learnt);
    }

    // promise: trust.1
    #[test]
    fn too_many_packets_push_out_the_oldest() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        for at in 0..UNRESOLVED_HELD_MAX {
            assert_eq!(resolver.hold(at, 0, slot, 9, 0), None);
        }
        assert_eq!(resolver.hold(UNRESOLVED_HELD_MAX, 0, slot, 9, 0), Some(0));
        assert_eq!(resolver.held(), UNRESOLVED_HELD_MAX);
        // The last of too many hosts is still asked for.
        for address in 0..2 * QUESTIONS_MAX as u32 {
            resolver.ask(0, table.insert(0, 100 + address, 1), 100 + address, false, 1);
        }
        let questions: Vec<_> = std::iter::from_fn(|| resolver.due(1, &table)).collect();
        assert_eq!(
            questions.last().map(|question| question.address),
            Some(99 + 2 * QUESTIONS_MAX as u32)
        );
    }

    #[test]
    fn packet_never_reaches_a_reused_entry() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        // The packet is for address 8, but the slot now belongs to address 9.
        resolver.hold('a', 0, slot, 8, 0);
        table.learn(slot, HOST, 1);
        assert_eq!((resolver.due(1, &table), resolver.resolved(&table)), (None, None));
        assert_eq!(resolver.next_expired(30), Some('a'));
    }
}
