//! One core's dealings with neighbours whose MAC address is not known: packets that wait for it, and when
//! to ask again.

use arrayvec::ArrayVec;

use crate::limits::UNRESOLVED_HELD_MAX;
use crate::state::Neighbours;
use crate::state::neighbour::Slot;

/// Neighbours asked for at once by one core.
const QUESTIONS_MAX: usize = 64;
/// Times a neighbour is asked before its packets are given up.
const ASKS_MAX: u8 = 3;

/// A packet that lacks only its destination MAC address.
#[derive(Debug)]
struct Waiting<B> {
    packet: B,
    port: u8,
    slot: Slot,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    port: u8,
    slot: Slot,
    address: u32,
    asks: u8,
    /// Ticks when to ask next.
    due: u64,
}

/// "Who has `address`?", to be sent out of `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Index of the port.
    pub port: u8,
    /// The neighbour's address.
    pub address: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct Neighbourhood<B> {
    waiting: Vec<Waiting<B>>,
    questions: ArrayVec<Question, QUESTIONS_MAX>,
    interval_ticks: u64,
}

impl<B> Neighbourhood<B> {
    /// Nobody is asked for; questions are repeated every `interval_ticks`.
    pub fn new(interval_ticks: u64) -> Self {
        Self {
            waiting: Vec::with_capacity(UNRESOLVED_HELD_MAX),
            questions: ArrayVec::new(),
            interval_ticks,
        }
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

    /// Holds a packet until its neighbour is known, and has the neighbour asked for. Gives the packet back
    /// when there is no room.
    pub fn hold(&mut self, packet: B, port: u8, slot: Slot, address: u32, now: u64) -> Option<B> {
        if self.waiting.len() == UNRESOLVED_HELD_MAX || !self.ask(port, slot, address, now) {
            return Some(packet);
        }
        self.waiting.push(Waiting { packet, port, slot });
        None
    }

    /// Has a neighbour asked for, unless it is being asked for already; false when too many are.
    pub fn ask(&mut self, port: u8, slot: Slot, address: u32, now: u64) -> bool {
        if self.asks(slot) {
            return true;
        }
        self.questions.try_push(Question { port, slot, address, asks: 0, due: now }).is_ok()
    }

    /// A neighbour is being asked for.
    pub fn asks(&self, slot: Slot) -> bool {
        self.questions.iter().any(|question| question.slot == slot)
    }

    /// The next question to be sent at `now`, if one is due.
    pub fn due(&mut self, now: u64, neighbours: &Neighbours) -> Option<Ask> {
        self.questions.retain(|question| neighbours.mac(question.slot).is_none());
        let interval = self.interval_ticks;
        let question = self
            .questions
            .iter_mut()
            .find(|question| question.asks < ASKS_MAX && question.due <= now)?;
        question.asks += 1;
        question.due = now.saturating_add(interval);
        Some(Ask { port: question.port, address: question.address })
    }

    /// A packet whose neighbour has become known.
    pub fn resolved(&mut self, neighbours: &Neighbours) -> Option<(B, u8, Slot)> {
        let at = self.waiting.iter().position(|one| neighbours.mac(one.slot).is_some())?;
        let one = self.waiting.remove(at);
        Some((one.packet, one.port, one.slot))
    }

    /// A packet whose neighbour did not answer in time. When none is left its question ends, so that
    /// a later packet may ask anew.
    pub fn given_up(&mut self, now: u64) -> Option<B> {
        let over = |question: &Question| question.asks >= ASKS_MAX && question.due <= now;
        let questions = &self.questions;
        let at = self.waiting.iter().position(|one| {
            questions.iter().any(|question| question.slot == one.slot && over(question))
        });
        let Some(at) = at else {
            self.questions.retain(|question| !over(question));
            return None;
        };
        Some(self.waiting.remove(at).packet)
    }

    /// Any packet that waits: the node stops.
    pub fn abandon(&mut self) -> Option<B> {
        self.waiting.pop().map(|one| one.packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::region::Region;
    use crate::wire::ether::Mac;

    fn neighbours() -> (Neighbours, Slot) {
        let table = Neighbours::new(Region::heap(1024).slice(0, 64));
        let slot = table.insert(0, 9).unwrap();
        (table, slot)
    }

    #[test]
    fn packets_wait_until_their_neighbour_answers() {
        let (table, slot) = neighbours();
        let mut hood = Neighbourhood::new(10);
        assert_eq!(hood.hold('a', 0, slot, 9, 0), None);
        assert_eq!(hood.hold('b', 0, slot, 9, 0), None);
        assert_eq!(hood.due(0, &table), Some(Ask { port: 0, address: 9 }));
        assert_eq!(hood.due(9, &table), None);
        assert!(hood.due(10, &table).is_some());
        assert_eq!(hood.resolved(&table), None);
        table.learn(slot, Mac([2, 0, 0, 0, 0, 9]));
        assert_eq!(hood.due(30, &table), None);
        assert_eq!(hood.resolved(&table), Some(('a', 0, slot)));
        assert_eq!(hood.resolved(&table), Some(('b', 0, slot)));
        assert!(hood.is_quiet());
    }

    #[test]
    fn packets_are_given_up_after_three_questions() {
        let (table, slot) = neighbours();
        let mut hood = Neighbourhood::new(10);
        hood.hold('a', 0, slot, 9, 0);
        for now in [0, 10, 20] {
            assert!(hood.due(now, &table).is_some());
            assert_eq!(hood.given_up(now), None);
        }
        assert_eq!(hood.due(30, &table), None);
        assert_eq!(hood.given_up(30), Some('a'));
        assert_eq!(hood.given_up(30), None);
        assert!(hood.is_quiet());
        hood.hold('b', 0, slot, 9, 40);
        assert!(hood.due(40, &table).is_some());
    }

    #[test]
    fn only_so_many_packets_wait() {
        let (_, slot) = neighbours();
        let mut hood = Neighbourhood::new(10);
        for _ in 0..UNRESOLVED_HELD_MAX {
            assert_eq!(hood.hold('a', 0, slot, 9, 0), None);
        }
        assert_eq!(hood.hold('b', 0, slot, 9, 0), Some('b'));
        assert_eq!(hood.held(), UNRESOLVED_HELD_MAX);
    }
}
