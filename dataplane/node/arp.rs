//! One core's resolver: packets that wait for their next hop's MAC address, and the questions for it, by ARP or neighbour discovery.
//!
//! A host whose MAC address is not known is asked for by broadcast, three times. One that is known and is to be confirmed
//! is asked by unicast first, three times, since whoever else answers a broadcast may be lying; only when it is silent
//! is everybody asked. One that others claim to be is asked in quick succession, since meanwhile packets may go to a host
//! that is gone or never was. Packets wait for three questions at most. When too many wait, the one that has waited longest is
//! given up, so that a flood of packets for hosts that do not exist can't shut out those for hosts that do.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::limits::UNRESOLVED_HELD_MAX;
use crate::stage::PortAddress;
use crate::state::Neighbours;
use crate::state::neighbour::Slot;
use crate::wire::ether::Mac;
use crate::wire::{arp, ndp};

/// Hosts asked for at once by one core.
const QUESTIONS_MAX: usize = 256;
/// Times that a host is asked in each way before it counts as silent.
const ASKS_MAX: u8 = 3;
/// While packets come for a host it is asked again after so long, beside the times that count.
const URGENT_MS: u64 = 20;
/// A known host that another claims to be has so long for each answer. Three of these are longer than a machine that is
/// alive usually stands still.
const CLAIMED_MS: u64 = 40;

/// A packet that lacks only its destination MAC address.
#[derive(Debug)]
struct Waiting<B> {
    packet: B,
    port: u8,
    slot: Slot,
    /// The next hop: the slot may become another host's.
    address: u32,
    /// When it is given up, in milliseconds.
    until_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    port: u8,
    slot: Slot,
    address: u32,
    /// Times asked: by unicast up to [`ASKS_MAX`], then by broadcast.
    asks: u8,
    /// When to ask next, in milliseconds.
    due_ms: u64,
    /// When it was first asked.
    since_ms: u64,
    /// When it was last asked, 0 when it was not yet.
    asked_ms: u64,
    /// A packet for it has come since.
    is_urgent: bool,
}

impl Question {
    fn is_over(&self, now_ms: u64) -> bool {
        self.asks >= 2 * ASKS_MAX && self.due_ms <= now_ms
    }

    fn is_due(&self, now_ms: u64) -> bool {
        let again = self.is_urgent && now_ms >= self.asked_ms + URGENT_MS;
        again || (self.asks < 2 * ASKS_MAX && self.due_ms <= now_ms)
    }

    /// Another host claims to be this one: the time that it has for its present answer is short.
    fn hurry(&mut self) {
        if (1..=ASKS_MAX).contains(&self.asks) {
            self.due_ms = self.due_ms.min(self.asked_ms + CLAIMED_MS);
        }
    }
}

/// "Who has `address`?", to be sent out of `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Index of the port.
    pub port: u8,
    /// The host's address.
    pub address: u32,
    /// Whom to ask: the host itself, or everybody.
    pub to: Mac,
    /// The address of an IPv6 host, for which neighbour discovery asks instead of ARP.
    pub v6: Option<u128>,
}

impl Ask {
    /// Bytes of the frame that asks, Ethernet header included.
    #[must_use]
    pub fn frame_len(&self) -> usize {
        if self.v6.is_some() { ndp::FRAME_LEN } else { arp::FRAME_LEN }
    }

    /// Writes that frame, of the node with this address on the port.
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

/// Packets that wait for MAC addresses, and the questions for these. Times are milliseconds of the node's clock.
#[derive(Debug)]
pub struct ArpResolver<B> {
    waiting: VecDeque<Waiting<B>>,
    questions: ArrayVec<Question, QUESTIONS_MAX>,
    interval_ms: u64,
}

impl<B> ArpResolver<B> {
    /// Nobody is asked for; questions are repeated every `interval_ms`.
    pub fn new(interval_ms: u64) -> Self {
        let waiting = VecDeque::with_capacity(UNRESOLVED_HELD_MAX);
        Self { waiting, questions: ArrayVec::new(), interval_ms }
    }

    /// Packets that wait.
    pub fn held(&self) -> usize {
        self.waiting.len()
    }

    /// Nothing waits and nothing is asked.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.questions.is_empty()
    }

    /// Holds a packet until its next hop is known, and has that asked for. Gives back the packet that has waited longest
    /// when there is no room for both.
    pub fn hold(
        &mut self,
        packet: B,
        port: u8,
        slot: Slot,
        address: u32,
        now_ms: u64,
    ) -> Option<B> {
        let full = self.waiting.len() == UNRESOLVED_HELD_MAX;
        let oldest = if full { self.waiting.pop_front() } else { None };
        self.ask(port, slot, address, false, now_ms);
        let asked = self.questions.iter_mut().find(|question| question.slot == slot);
        if let Some(question) = asked {
            question.is_urgent = true;
        }
        let until_ms = now_ms + u64::from(ASKS_MAX) * self.interval_ms;
        self.waiting.push_back(Waiting { packet, port, slot, address, until_ms });
        oldest.map(|one| one.packet)
    }

    /// Has a host asked for, unless it is being asked for already; the host itself first when it `is_known`. When too
    /// many are asked for, the one that was asked for first is not any more.
    pub fn ask(&mut self, port: u8, slot: Slot, address: u32, is_known: bool, now_ms: u64) {
        let same = |question: &Question| question.slot == slot && question.address == address;
        if self.questions.iter().any(same) {
            return;
        }
        if self.questions.is_full() {
            self.questions.remove(0);
        }
        let asks = if is_known { 0 } else { ASKS_MAX };
        self.questions.push(Question {
            port,
            slot,
            address,
            asks,
            due_ms: now_ms,
            since_ms: now_ms,
            asked_ms: 0,
            is_urgent: false,
        });
    }

    /// The next question to be sent at `now_ms`, if one is due.
    pub fn due(&mut self, now_ms: u64, neighbours: &Neighbours) -> Option<Ask> {
        let answered = |question: &Question| {
            let since = now_ms.saturating_sub(question.since_ms);
            neighbours.address(question.slot) != question.address
                || neighbours.is_heard_within(question.slot, since, now_ms as u32)
        };
        self.questions.retain(|question| !answered(question));
        let claimed = |question: &&mut Question| neighbours.is_suspect(question.slot);
        self.questions.iter_mut().filter(claimed).for_each(Question::hurry);
        let interval_ms = self.interval_ms;
        let question = self.questions.iter_mut().find(|question| question.is_due(now_ms))?;
        let known = neighbours.mac(question.slot).filter(|_| question.asks < ASKS_MAX);
        if known.is_none() {
            question.asks = question.asks.max(ASKS_MAX);
            neighbours.ask_all(question.slot);
        }
        (question.asked_ms, question.is_urgent) = (now_ms, false);
        if question.due_ms <= now_ms {
            question.asks += 1;
            question.due_ms = now_ms.saturating_add(interval_ms);
        }
        let &mut Question { port, address, slot, .. } = question;
        let v6 = neighbours.v6(slot);
        Some(Ask { port, address, to: known.unwrap_or(Mac::BROADCAST), v6 })
    }

    /// A packet whose next hop has become known.
    pub fn resolved(&mut self, neighbours: &Neighbours) -> Option<(B, u8, Mac)> {
        let mac = |one: &Waiting<B>| {
            neighbours.mac(one.slot).filter(|_| neighbours.address(one.slot) == one.address)
        };
        let (at, mac) =
            self.waiting.iter().enumerate().find_map(|(at, one)| Some((at, mac(one)?)))?;
        let one = self.waiting.remove(at)?;
        Some((one.packet, one.port, mac))
    }

    /// A packet whose next hop did not answer in time.
    pub fn given_up(&mut self, now_ms: u64) -> Option<B> {
        self.waiting.front().filter(|one| one.until_ms <= now_ms)?;
        self.waiting.pop_front().map(|one| one.packet)
    }

    /// A host that was asked for in every way and has not answered: where it is is not known any more. A later packet may
    /// ask anew.
    pub fn silent(&mut self, now_ms: u64, neighbours: &Neighbours) -> Option<Slot> {
        let at = self.questions.iter().position(|question| question.is_over(now_ms))?;
        let Question { slot, address, .. } = self.questions.remove(at);
        if neighbours.address(slot) == address {
            neighbours.invalidate(slot);
        }
        Some(slot)
    }

    /// Any packet that waits: the node stops.
    pub fn abandon(&mut self) -> Option<B> {
        self.waiting.pop_front().map(|one| one.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::neighbour::LearnOutcome;

    const HOST: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const ALL: Ask = Ask { port: 0, address: 9, to: Mac::BROADCAST, v6: None };

    fn neighbours() -> (Neighbours, Slot) {
        let table = Neighbours::heap(1, 0);
        let slot = table.insert(0, 9, 0);
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
    fn a_host_that_starts_late_is_asked_again_when_there_is_something_for_it() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(200);
        resolver.ask(0, slot, 9, false, 1);
        assert_eq!((resolver.due(1, &table), resolver.due(1, &table)), (Some(ALL), None));
        for now in 30..100 {
            resolver.hold('a', 0, slot, 9, now);
        }
        let asked = (30..100).filter(|&now| resolver.due(now, &table).is_some()).count();
        assert_eq!(asked, 1, "nothing has come since");
        resolver.hold('b', 0, slot, 9, 100);
        assert_eq!(resolver.due(100, &table), Some(ALL));
        // Those times don't count.
        assert_eq!(
            [201, 401, 601].map(|now| resolver.due(now, &table).is_some()),
            [true, true, false]
        );
    }

    #[test]
    fn packets_are_given_up_after_three_questions() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        resolver.hold('a', 0, slot, 9, 0);
        for now in [0, 10, 20] {
            assert!(resolver.due(now, &table).is_some());
            assert_eq!((resolver.given_up(now), resolver.silent(now, &table)), (None, None));
        }
        assert_eq!(resolver.due(30, &table), None);
        assert_eq!(resolver.given_up(30), Some('a'));
        assert_eq!(resolver.given_up(30), None);
        assert_eq!(resolver.silent(30, &table), Some(slot));
        assert!(resolver.is_quiet());
        resolver.hold('b', 0, slot, 9, 40);
        assert!(resolver.due(40, &table).is_some());
    }

    #[test]
    fn a_known_host_is_asked_itself_before_everybody_is() {
        let (table, slot) = neighbours();
        table.learn(slot, HOST, 0);
        let mut resolver = ArpResolver::<char>::new(10);
        resolver.ask(0, slot, 9, true, 100);
        let asked: Vec<_> = (10..16).filter_map(|step| resolver.due(10 * step, &table)).collect();
        let itself = Ask { to: HOST, ..ALL };
        assert_eq!(asked, [itself, itself, itself, ALL, ALL, ALL]);
        assert_eq!(table.mac(slot), Some(HOST), "it is believed until the end");
        assert_eq!(resolver.silent(160, &table), Some(slot));
        assert_eq!(table.mac(slot), None);
        // One that answers is asked no more.
        table.learn(slot, HOST, 200);
        resolver.ask(0, slot, 9, true, 300);
        assert_eq!(resolver.due(300, &table), Some(itself));
        table.learn(slot, HOST, 301);
        assert_eq!(resolver.due(310, &table), None);
        assert!(resolver.is_quiet());
    }

    #[test]
    fn a_known_host_that_another_claims_to_be_has_little_time_to_answer() {
        const OTHER: Mac = Mac([2, 0, 0, 0, 0, 8]);
        let (table, slot) = neighbours();
        table.learn(slot, HOST, 0);
        let mut resolver = ArpResolver::<char>::new(200);
        resolver.ask(0, slot, 9, true, 100);
        let itself = Ask { to: HOST, ..ALL };
        assert_eq!(resolver.due(100, &table), Some(itself));
        assert_eq!(resolver.due(150, &table), None, "nobody claims anything");
        table.learn(slot, OTHER, 150);
        let asked: Vec<_> =
            (150..260).filter_map(|now| Some((now, resolver.due(now, &table)?))).collect();
        assert_eq!(asked, [(150, itself), (190, itself), (230, ALL)]);
        assert_eq!(table.learn(slot, OTHER, 260), LearnOutcome::Learnt);
    }

    #[test]
    fn too_many_packets_push_out_the_oldest() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        for at in 0..UNRESOLVED_HELD_MAX {
            assert_eq!(resolver.hold(at, 0, slot, 9, 0), None);
        }
        assert_eq!(resolver.hold(UNRESOLVED_HELD_MAX, 0, slot, 9, 0), Some(0));
        assert_eq!(resolver.held(), UNRESOLVED_HELD_MAX);
        // A host that is asked for last is asked for all the same.
        for address in 0..2 * QUESTIONS_MAX as u32 {
            resolver.ask(0, table.insert(0, 100 + address, 1), 100 + address, false, 1);
        }
        let asked: Vec<_> = std::iter::from_fn(|| resolver.due(1, &table)).collect();
        assert_eq!(asked.last().map(|ask| ask.address), Some(99 + 2 * QUESTIONS_MAX as u32));
    }

    #[test]
    fn a_packet_does_not_go_to_the_host_that_has_its_place_now() {
        let (table, slot) = neighbours();
        let mut resolver = ArpResolver::new(10);
        resolver.hold('a', 0, slot, 8, 0);
        table.learn(slot, HOST, 1);
        assert_eq!((resolver.due(1, &table), resolver.resolved(&table)), (None, None));
        assert_eq!(resolver.given_up(30), Some('a'));
    }
}
