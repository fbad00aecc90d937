//! The neighbour table: MAC addresses of hosts on the leaf's own networks, learnt by ARP (RFC 826)
//! and shared by all cores.
//!
//! Open addressing over pairs of words. A key is written once and stays; only its MAC changes, in one
//! word. So a reader sees either no address or a whole one.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::region::Slice;
use crate::wire::ether::Mac;

/// Set in a key word that is taken: address 0.0.0.0 is a key like any other then.
const TAKEN: u64 = 1 << 63;
/// Set in a MAC word that holds an address.
const RESOLVED: u64 = 1 << 63;
/// Set in a MAC word that ARP may not change.
const STATIC: u64 = 1 << 62;

/// A host's place in the table; it stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

/// The table. Any core may add and change entries.
#[derive(Clone, Debug)]
pub struct Neighbours {
    words: Slice<AtomicU64>,
}

impl Neighbours {
    /// A table over zeroed memory, two words a slot; the number of slots is a power of two.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>) -> Self {
        assert!(words.len() >= 2 && words.len().is_power_of_two());
        Self { words }
    }

    fn slots(&self) -> usize {
        self.words.len() / 2
    }

    #[inline]
    fn probe(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots() - 1;
        let start = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        (0..=mask).map(move |step| (start + step) & mask)
    }

    /// Where `address` on `port`'s network is kept, if it is.
    #[inline]
    #[must_use]
    pub fn find(&self, port: usize, address: u32) -> Option<Slot> {
        let key = key(port, address);
        for slot in self.probe(key) {
            match self.words[2 * slot].load(Acquire) {
                0 => return None,
                word if word == key => return Some(Slot(slot as u32)),
                _ => {}
            }
        }
        None
    }

    /// Where `address` is kept, from now on if not before; none when the table is full.
    pub fn insert(&self, port: usize, address: u32) -> Option<Slot> {
        let key = key(port, address);
        for slot in self.probe(key) {
            match self.words[2 * slot].compare_exchange(0, key, AcqRel, Acquire) {
                Ok(_) => return Some(Slot(slot as u32)),
                Err(present) if present == key => return Some(Slot(slot as u32)),
                Err(_) => {}
            }
        }
        None
    }

    /// The address that is kept there.
    #[must_use]
    pub fn address(&self, slot: Slot) -> u32 {
        self.words[2 * slot.0 as usize].load(Relaxed) as u32
    }

    /// The MAC address, once known.
    #[inline]
    #[must_use]
    pub fn mac(&self, slot: Slot) -> Option<Mac> {
        let word = self.words[2 * slot.0 as usize + 1].load(Relaxed);
        (word & RESOLVED != 0).then(|| Mac::from_bits(word))
    }

    /// Notes what ARP said; a configured address stays.
    pub fn learn(&self, slot: Slot, mac: Mac) {
        let word = &self.words[2 * slot.0 as usize + 1];
        if word.load(Relaxed) & STATIC == 0 {
            word.store(mac.to_bits() | RESOLVED, Relaxed);
        }
    }

    /// Notes a configured address, which ARP cannot change.
    pub fn fix(&self, slot: Slot, mac: Mac) {
        self.words[2 * slot.0 as usize + 1].store(mac.to_bits() | RESOLVED | STATIC, Relaxed);
    }

    /// All hosts known: port, address, MAC when resolved.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u32, Option<Mac>)> + '_ {
        (0..self.slots()).filter_map(|slot| {
            let word = self.words[2 * slot].load(Acquire);
            let port = (word >> 32) as usize & 0x7FFF;
            (word & TAKEN != 0).then(|| (port, word as u32, self.mac(Slot(slot as u32))))
        })
    }
}

#[inline]
fn key(port: usize, address: u32) -> u64 {
    TAKEN | (port as u64 & 0x7FFF) << 32 | u64::from(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::region::Region;

    fn table(slots: usize) -> Neighbours {
        Neighbours::new(Region::heap(16 * slots).slice(0, 2 * slots))
    }

    #[test]
    fn hosts_are_found_by_port_and_address() {
        let table = table(8);
        assert_eq!(table.find(0, 7), None);
        let slot = table.insert(0, 7).unwrap();
        assert_eq!(table.insert(0, 7), Some(slot));
        assert_ne!(table.insert(1, 7), Some(slot));
        assert_eq!(table.mac(slot), None);
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        table.learn(slot, mac);
        assert_eq!(table.find(0, 7).and_then(|slot| table.mac(slot)), Some(mac));
        assert_eq!(table.iter().filter(|entry| entry.1 == 7).count(), 2);
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let table = table(8);
        let slots: Vec<_> = (0..8).map(|address| table.insert(0, address).unwrap()).collect();
        assert_eq!(table.insert(0, 8), None);
        assert_eq!(table.find(0, 8), None);
        for (address, slot) in slots.into_iter().enumerate() {
            assert_eq!(table.find(0, address as u32), Some(slot));
        }
    }

    #[test]
    fn arp_does_not_change_a_configured_address() {
        let table = table(8);
        let slot = table.insert(0, 1).unwrap();
        table.fix(slot, Mac([2, 0, 0, 0, 0, 1]));
        table.learn(slot, Mac([2, 0, 0, 0, 0, 66]));
        assert_eq!(table.mac(slot), Some(Mac([2, 0, 0, 0, 0, 1])));
    }
}
