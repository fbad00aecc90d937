//! Neighbour table: MAC addresses of hosts on the node's own networks, shared by all cores. A core looks up the next
//! hop of each packet that it sends. The node learns addresses from ARP (RFC 826), from neighbour discovery (RFC 4861),
//! and from clients' packets.
//!
//! The table has two areas, so that no packet can evict a neighbour that the configuration names. *Pinned*
//! entries are the next hops to servers and spines, and the gateways. They stay while the configuration needs them,
//! and are found by open addressing with a load of at most one half. All other hosts, mostly clients, are in a
//! cache: each port has [`PORT_SLOTS`] entries of its own, in sets of eight ways chosen by a keyed hash. A look-up
//! reads one set. A full set evicts its least recently used unresolved entry, or, without unresolved entries, its
//! least recently used resolved one.
//!
//! An IPv6 host's key holds 32 bits of a keyed hash of its address. Two further words hold the address
//! itself, which a look-up compares after the key. A port's network is of one family, so its cache is too.
//!
//! An entry has three words and room for an IPv6 address: its key, its MAC address with flags, and two times.
//! These are the last confirmation and the last use by a packet, in milliseconds of the node's clock, which
//! wrap after 49 days. A host's packet sets the MAC address only of an unresolved entry, or after a request to
//! all hosts. A packet with another MAC address than a resolved entry marks the entry as suspect. A configured
//! entry never becomes suspect. The node asks the known host of a suspect entry by unicast, and then all hosts.

use std::hint::select_unpredictable;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use super::region::{Region, Slice};
use crate::ring::bytes::prefetch;
use crate::wire::address::Address;
use crate::wire::ether::Mac;

/// Number of cache entries of each port.
pub const PORT_SLOTS: usize = 4096;
/// Number of entries of a set.
const WAYS: usize = 8;
/// Number of u64 words of an entry: key, MAC address, times, and the halves of an IPv6 address. A look-up of
/// IPv4 reads one cache line if the host is in one of the first two entries of its set.
const ENTRY_WORDS: usize = 5;
/// Number of u64 words of a set.
const SET_WORDS: usize = ENTRY_WORDS * WAYS;
/// Age in milliseconds of a confirmation from which the node probes a host to which it sends packets (Linux:
/// `base_reachable_time_ms`).
pub const REACHABLE_MS: u32 = 30_000;
/// Number of sets of each port's cache.
pub const PORT_SETS: usize = PORT_SLOTS / WAYS;

/// Flag of a key word in use. Address 0.0.0.0 is then a key like any other.
const TAKEN: u64 = 1 << 63;
/// Flag of an IPv6 host's key word. Its lower half is a hash of the address.
const V6: u64 = 1 << 62;
/// Key word of a cache place that a core is just assigning to an IPv6 host.
const BUSY: u64 = 2;
/// Key word of an unpinned place of the pinned area (a tombstone): a search continues behind it, unlike behind
/// a free place, which is 0.
const TOMBSTONE: u64 = 1;
/// Flag of a MAC word that holds an address.
const RESOLVED: u64 = 1 << 63;
/// Flag of a MAC word that is configured and does not change.
const STATIC: u64 = 1 << 62;
/// Flag of a MAC word after a request to all hosts: the first answer replaces any known address.
const ASKED: u64 = 1 << 61;
/// Flag of a MAC word that needs confirmation: another host has claimed the address.
const SUSPECT: u64 = 1 << 60;

/// Flag of a port's word (at the table's end) while its link is down. The remaining bits count the changes.
const LINK_DOWN: u64 = 1;

/// Place of a host in the table: index of its key word. A pinned entry keeps its place until it is unpinned, a cached
/// entry until another host replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Place of no host.
    pub const NONE: Self = Self(u32::MAX);
}

/// A host, known or not, with the values for its look-up.
#[derive(Clone, Copy, Debug)]
pub struct Host<A> {
    /// Index of the port to its network.
    pub port: usize,
    /// Its address.
    pub address: A,
    /// Key word of its entry.
    key: u64,
    /// Index of the first word of its set in the cache.
    set: usize,
}

/// Resolution of the times of uses and confirmations, in milliseconds. More frequent writes would move the entries'
/// cache lines between cores.
const RESOLUTION_MS: u32 = 100;

/// Effect of a host's packet on its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnOutcome {
    /// The entry now has the MAC address: it was unresolved, or the node had asked all hosts.
    Learnt,
    /// The MAC address matches the entry.
    Confirmed,
    /// The MAC address contradicts the entry, which keeps its own. Unless that is configured, the entry is suspect: the
    /// node must ask the known host.
    Conflict,
}

/// Neighbour table. Any core may change entries.
#[derive(Clone, Debug)]
pub struct Neighbours {
    words: Slice<AtomicU64>,
    /// Number of ports.
    ports: usize,
    /// Number of sets of the pinned area, a power of two.
    pinned_sets: usize,
    /// Key of the hash, so that no outsider can choose addresses that share a set.
    seed: u64,
}

/// Returns the number of sets for `pinned` pinned entries, with a load of at most one half.
fn pinned_sets(pinned: usize) -> usize {
    (2 * pinned).div_ceil(WAYS).next_power_of_two()
}

impl Neighbours {
    /// Returns the number of u64 words of a table for `ports` ports and `pinned` pinned entries.
    #[must_use]
    pub fn words(ports: usize, pinned: usize) -> usize {
        let sets = pinned_sets(pinned) + ports * PORT_SETS;
        SET_WORDS * sets + ports
    }

    /// Creates a table over zeroed memory of [`Neighbours::words`] words.
    ///
    /// # Panics
    /// If the memory has another size.
    #[must_use]
    pub fn new(words: Slice<AtomicU64>, ports: usize, pinned: usize, seed: u64) -> Self {
        assert_eq!(words.len(), Self::words(ports, pinned), "words of a neighbour table");
        Self { words, ports, pinned_sets: pinned_sets(pinned), seed }
    }

    /// Creates a table in memory of this process, with 0 as the hash's key.
    #[must_use]
    pub fn heap(ports: usize, pinned: usize) -> Self {
        Self::keyed(ports, pinned, 0)
    }

    /// Creates a table in memory of this process, with `seed` as the hash's key.
    #[must_use]
    pub fn keyed(ports: usize, pinned: usize, seed: u64) -> Self {
        let words = Self::words(ports, pinned);
        Self::new(Region::heap(8 * words).slice(0, words), ports, pinned, seed)
    }

    /// Returns a keyed hash of 24 bits, enough for all sets and places. The multipliers are those of SplitMix64.
    fn hash(&self, key: u64) -> usize {
        let mixed = (key ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed ^ (mixed >> 32)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as usize
    }

    /// Returns the index of the first key word of the set for a key, in the cache of a port.
    fn set(&self, port: usize, key: u64) -> usize {
        SET_WORDS * (self.pinned_sets + port * PORT_SETS + (self.hash(key) & (PORT_SETS - 1)))
    }

    /// Returns the indices of the pinned area's key words, in the order of a search for `key`: linear probing from the
    /// key's hash on.
    fn pinned(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let slots = WAYS * self.pinned_sets;
        let start = self.hash(key);
        (0..slots).map(move |step| (start + step) & (slots - 1)).map(key_word)
    }

    /// Returns the key word at an index. `Acquire` pairs with the `Release` of a new key: a core that reads the key
    /// also reads the words that were cleared for it.
    fn key_at(&self, at: usize) -> u64 {
        self.words[at].load(Acquire)
    }

    /// Returns the word with the MAC address and its flags.
    #[inline(always)]
    fn mac_word(&self, slot: Slot) -> &AtomicU64 {
        &self.words[slot.0 as usize + 1]
    }

    /// Returns the word with the last confirmation (upper half) and the last use (lower half).
    #[inline]
    fn times(&self, slot: Slot) -> &AtomicU64 {
        &self.words[slot.0 as usize + 2]
    }

    /// Returns the place of `address` on `port`'s network; `None` for an unknown host. Searches the cache first, then
    /// the pinned area.
    #[inline]
    #[must_use]
    pub fn find<A: HostAddress>(&self, port: usize, address: A) -> Option<Slot> {
        self.find_host(&self.host(port, address))
    }

    /// Returns a host with the values for its look-up.
    #[inline(always)]
    #[must_use]
    pub fn host<A: HostAddress>(&self, port: usize, address: A) -> Host<A> {
        let key = address.key(self, port);
        Host { port, address, key, set: self.set(port, key) }
    }

    /// Prefetches the first entries of a host's set in the cache.
    #[inline(always)]
    pub fn prefetch<A>(&self, host: &Host<A>) {
        prefetch(self.words.as_ptr().wrapping_add(host.set));
    }

    /// Returns the place of a host, like [`Neighbours::find`].
    #[inline(always)]
    #[must_use]
    pub fn find_host<A: HostAddress>(&self, host: &Host<A>) -> Option<Slot> {
        self.find_cached(host).or_else(|| self.find_pinned(host.key, host.address))
    }

    /// Searches the cache for a host.
    #[inline(always)]
    fn find_cached<A: HostAddress>(&self, host: &Host<A>) -> Option<Slot> {
        let &Host { key, set, address, .. } = host;
        let words = &self.words[set..set + SET_WORDS];
        let is_host = |&at: &usize| {
            words[at].load(Acquire) == key && address.is_at(self, Slot((set + at) as u32))
        };
        // With up to about a thousand hosts on a port, most are in the first or second way. No branch depends on which: it
        // would be unpredictable.
        let is_second = words[ENTRY_WORDS].load(Acquire) == key;
        let first = select_unpredictable(is_second, ENTRY_WORDS, 0);
        let found = is_host(&first).then_some(first);
        let at = found.or_else(|| ways(0).find(is_host))?;
        Some(Slot((set + at) as u32))
    }

    /// Searches the pinned area for a host, until a free place.
    fn find_pinned<A: HostAddress>(&self, key: u64, address: A) -> Option<Slot> {
        for at in self.pinned(key) {
            match self.key_at(at) {
                0 => return None,
                word if word == key && address.is_at(self, Slot(at as u32)) => {
                    return Some(Slot(at as u32));
                }
                _ => {}
            }
        }
        None
    }

    /// Pins `address` until [`Neighbours::unpin`], and returns its place. Returns `None` if the table has no
    /// room for more pinned entries. Cores may look up and learn hosts meanwhile; only one thread pins and
    /// unpins. Frees a place of the host in the cache, which would hide the pinned one from a search.
    pub fn pin<A: HostAddress>(&self, port: usize, address: A) -> Option<Slot> {
        let key = address.key(self, port);
        if let Some(slot) = self.find_pinned(key, address) {
            return Some(slot);
        }
        let at = self.pinned(key).find(|&at| matches!(self.key_at(at), 0 | TOMBSTONE))?;
        let slot = Slot(at as u32);
        self.mac_word(slot).store(0, Relaxed);
        self.times(slot).store(0, Relaxed);
        address.store(self, slot);
        self.words[at].store(key, Release);
        while let Some(Slot(cached)) = self.find_cached(&self.host(port, address)) {
            // Fails if another host has got the place meanwhile.
            let _ = self.words[cached as usize].compare_exchange(key, 0, AcqRel, Acquire);
        }
        Some(slot)
    }

    /// Frees a pinned entry that no core uses any more.
    pub fn unpin(&self, slot: Slot) {
        let slots = WAYS * self.pinned_sets;
        let places = (0..slots).map(key_word);
        let Some(index) = places.clone().position(|at| at == slot.0 as usize) else { return };
        self.mac_word(slot).store(0, Relaxed);
        self.words[slot.0 as usize].store(TOMBSTONE, Release);
        // Tombstones right before a free place are useless: no search continues there. This frees them, from the
        // unpinned place backwards. `place(0)` is `back` places before it, and `place(1)` follows that one.
        for back in 0..slots {
            let place = |steps: usize| key_word((index + slots - back + steps) & (slots - 1));
            if self.key_at(place(1)) != 0 || self.key_at(place(0)) != TOMBSTONE {
                return;
            }
            self.words[place(0)].store(0, Release);
        }
    }

    /// Returns the pinned entries.
    pub fn pinned_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let places = (0..WAYS * self.pinned_sets).map(key_word);
        places.filter(|&at| self.key_at(at) & TAKEN != 0).map(|at| Slot(at as u32))
    }

    /// Returns the pinned entry of `address` behind `port`; `None` for an unknown host or port. Both arguments may come
    /// from another process's state file.
    #[must_use]
    pub fn find_pinned_host(&self, port: usize, address: IpAddr) -> Option<Slot> {
        if port >= self.ports {
            return None;
        }
        match address {
            IpAddr::V4(address) => {
                let address = address.to_bits();
                self.find_pinned(address.key(self, port), address)
            }
            IpAddr::V6(address) => {
                let address = address.to_bits();
                self.find_pinned(address.key(self, port), address)
            }
        }
    }

    /// Returns the place of `address` in the cache. Adds it if necessary, in the place of another host in a full set.
    /// Does not search the pinned area: the caller calls [`Neighbours::find`] first.
    #[must_use]
    pub fn insert<A: HostAddress>(&self, port: usize, address: A, now_ms: u32) -> Slot {
        let host = self.host(port, address);
        let Host { key, set, .. } = host;
        loop {
            if let Some(slot) = self.find_cached(&host) {
                return slot;
            }
            // Lowest first: free, then unresolved, then longest unused; places being assigned come last.
            let rank = |&at: &usize| {
                let slot = Slot(at as u32);
                let unused_ms = now_ms.wrapping_sub(self.times(slot).load(Relaxed) as u32);
                let before = self.key_at(at);
                (before == BUSY, before != 0, self.mac(slot).is_some(), u32::MAX - unused_ms)
            };
            // Never `None`: a set has ways.
            let Some(at) = ways(set).min_by_key(rank) else { continue };
            let slot = Slot(at as u32);
            let before = self.key_at(at);
            // Replaces the way's key word, unless another core has changed it.
            let exchange = |from, to| self.words[at].compare_exchange(from, to, AcqRel, Acquire);
            // Until the words behind the key word are written, the place is `BUSY` and belongs to no host.
            if before == BUSY || A::IS_BEHIND_KEY && exchange(before, BUSY).is_err() {
                continue;
            }
            // Clears the old host's MAC address before the key changes, so that no core uses it for the new host.
            self.mac_word(slot).store(0, Relaxed);
            self.times(slot).store(u64::from(now_ms), Relaxed);
            if A::IS_BEHIND_KEY {
                address.store(self, slot);
                self.words[at].store(key, Release);
            } else if exchange(before, key).is_err() {
                continue;
            }
            // Another core may have chosen another way for the same host at the same time. Both then mostly keep
            // the way that a search finds first. A core does not see a way that is still `BUSY`: an IPv6 host may have two
            // places then, until one is replaced.
            let first = self.find_cached(&host).unwrap_or(slot);
            if first != slot {
                let _ = exchange(key, 0);
            }
            return first;
        }
    }

    /// Returns the two words of an IPv6 address, upper half first.
    fn v6_words(&self, slot: Slot) -> [&AtomicU64; 2] {
        [3, 4].map(|word| &self.words[slot.0 as usize + word])
    }

    /// Returns the address of the IPv6 host at `slot`. Returns `None` if the place holds no IPv6 host, or is
    /// being assigned to another one. An equal key word before and after the read shows that both halves belong
    /// together.
    #[must_use]
    pub fn v6(&self, slot: Slot) -> Option<u128> {
        let before = self.key_at(slot.0 as usize);
        let [upper, lower] = self.v6_words(slot).map(|word| word.load(Relaxed));
        fence(Acquire);
        let after = self.words[slot.0 as usize].load(Relaxed);
        let is_whole = before == after && before & (TAKEN | V6) == TAKEN | V6;
        is_whole.then_some(u128::from(upper) << 64 | u128::from(lower))
    }

    /// Returns 32 bits of a keyed hash of an IPv6 address. They stand for it in fields of four bytes, such as
    /// those of questions.
    #[must_use]
    pub fn digest(&self, address: u128) -> u32 {
        let mix = |value: u64| {
            let mixed = (value ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
        };
        let upper = mix((address >> 64) as u64);
        (mix(upper ^ upper >> 32 ^ address as u64) >> 32) as u32
    }

    /// Returns the IPv4 address at `slot`; for an IPv6 host, the [`Neighbours::digest`] of its address.
    #[must_use]
    pub fn address(&self, slot: Slot) -> u32 {
        self.words[slot.0 as usize].load(Relaxed) as u32
    }

    /// Returns the MAC address; `None` while it is unknown.
    #[inline(always)]
    #[must_use]
    pub fn mac(&self, slot: Slot) -> Option<Mac> {
        let word = self.mac_word(slot).load(Relaxed);
        (word & RESOLVED != 0).then(|| Mac::from_bits(word))
    }

    /// Returns true if the MAC address is configured.
    #[must_use]
    pub fn is_static(&self, slot: Slot) -> bool {
        self.mac_word(slot).load(Relaxed) & STATIC != 0
    }

    /// Sets a configured address, which ARP cannot change.
    pub fn set_static(&self, slot: Slot, mac: Mac) {
        self.mac_word(slot).store(mac.to_bits() | RESOLVED | STATIC, Relaxed);
    }

    /// Applies a packet of the host at `slot`: its source MAC address, which must be a host's
    /// ([`Mac::is_host`]).
    pub fn learn(&self, slot: Slot, mac: Mac, now_ms: u32) -> LearnOutcome {
        let word = self.mac_word(slot).load(Relaxed);
        if word & RESOLVED != 0 && Mac::from_bits(word) == mac {
            self.confirm(slot, now_ms);
            return LearnOutcome::Confirmed;
        }
        if word & STATIC != 0 {
            return LearnOutcome::Conflict;
        }
        if word & RESOLVED == 0 || word & ASKED != 0 {
            self.mac_word(slot).store(mac.to_bits() | RESOLVED, Relaxed);
            self.set_confirmed(slot, now_ms);
            return LearnOutcome::Learnt;
        }
        // A claim without a request may be forged, so it only causes a question to the known host.
        self.mac_word(slot).fetch_or(SUSPECT, Relaxed);
        LearnOutcome::Conflict
    }

    /// Records that the host at `slot` still has its known MAC address, after a packet from the host or a report from
    /// behind it. Clears a suspicion and the flag of a request to all hosts.
    pub fn confirm(&self, slot: Slot, now_ms: u32) {
        let confirmed = (self.times(slot).load(Relaxed) >> 32) as u32;
        if self.mac_word(slot).load(Relaxed) & (SUSPECT | ASKED) != 0 {
            self.mac_word(slot).fetch_and(!(SUSPECT | ASKED), Relaxed);
        } else if now_ms.wrapping_sub(confirmed) < RESOLUTION_MS {
            return;
        }
        self.set_confirmed(slot, now_ms);
    }

    /// Writes the time of the last confirmation.
    fn set_confirmed(&self, slot: Slot, now_ms: u32) {
        // A use that another core notes between the load and the store is lost, which only makes the entry look older.
        let used = u64::from(self.times(slot).load(Relaxed) as u32);
        self.times(slot).store(u64::from(now_ms) << 32 | used, Relaxed);
    }

    /// Records that a packet uses the entry: it then stays in a full set, and its host is probed. A confirmation by
    /// another core at the same time may be lost, which only makes the host look older.
    #[inline]
    pub fn note_use(&self, slot: Slot, now_ms: u32) {
        let times = self.times(slot).load(Relaxed);
        if now_ms.wrapping_sub(times as u32) >= RESOLUTION_MS {
            self.times(slot).store(times & !u64::from(u32::MAX) | u64::from(now_ms), Relaxed);
        }
    }

    /// Returns the milliseconds since the host was last confirmed; 0 for a configured MAC address. Returns `None` for a
    /// host that is suspect or has no MAC address: the node must ask at once.
    #[must_use]
    pub fn age_ms(&self, slot: Slot, now_ms: u32) -> Option<u32> {
        let word = self.mac_word(slot).load(Relaxed);
        if word & STATIC != 0 {
            return Some(0);
        }
        let confirmed = (self.times(slot).load(Relaxed) >> 32) as u32;
        (word & RESOLVED != 0 && word & SUSPECT == 0).then(|| now_ms.wrapping_sub(confirmed))
    }

    /// Returns true if another host has claimed the address: the known host needs confirmation.
    #[must_use]
    pub fn is_suspect(&self, slot: Slot) -> bool {
        self.mac_word(slot).load(Relaxed) & SUSPECT != 0
    }

    /// Returns true if the host was confirmed within the last `ms` milliseconds, regardless of later claims: a question
    /// sent that long ago is answered. A configured MAC address always counts as confirmed.
    #[must_use]
    pub fn is_confirmed_within(&self, slot: Slot, ms: u64, now_ms: u32) -> bool {
        let confirmed = (self.times(slot).load(Relaxed) >> 32) as u32;
        self.mac(slot).is_some()
            && (self.is_static(slot) || u64::from(now_ms.wrapping_sub(confirmed)) <= ms)
    }

    /// Returns place and address of the hosts of one set of a port's cache that are in use and need confirmation.
    /// In use means used within `reachable_ms`. Their last confirmation is older than that, or they are suspect. The
    /// caller passes the sets in turn, one per tick.
    pub fn to_confirm(
        &self,
        port: usize,
        set: usize,
        now_ms: u32,
        reachable_ms: u32,
    ) -> impl Iterator<Item = (Slot, u32)> + '_ {
        let first = SET_WORDS * (self.pinned_sets + port * PORT_SETS + set % PORT_SETS);
        let slots = ways(first).map(|at| Slot(at as u32));
        let is_due = move |slot: &Slot| {
            let unused_ms = now_ms.wrapping_sub(self.times(*slot).load(Relaxed) as u32);
            self.mac(*slot).is_some()
                && unused_ms <= reachable_ms
                && self.age_ms(*slot, now_ms).is_none_or(|age| age > reachable_ms)
        };
        slots.filter(is_due).map(|slot| (slot, self.address(slot)))
    }

    /// Records that the node has asked all hosts for the address: the first answer counts.
    pub fn ask_all(&self, slot: Slot) {
        if !self.is_static(slot) {
            self.mac_word(slot).fetch_or(ASKED, Relaxed);
        }
    }

    /// Clears the MAC address of a host that has not answered, unless it is configured.
    pub fn invalidate(&self, slot: Slot) {
        if !self.is_static(slot) {
            self.mac_word(slot).store(0, Relaxed);
        }
    }

    /// Records that the link of a port went up or down. A loss of link clears all addresses learnt there:
    /// another host may be at its end afterwards.
    pub fn set_link(&self, port: usize, is_up: bool) {
        let Some(link) = self.links().get(port) else { return };
        if !is_up {
            for at in (0..WAYS * self.pinned_sets).map(key_word).chain(self.cached(port)) {
                // The key word has the port in bits 32 to 46.
                if self.key_at(at) != 0 && (self.key_at(at) >> 32) as usize & 0x7FFF == port {
                    self.invalidate(Slot(at as u32));
                }
            }
        }
        let changes = (link.load(Relaxed) & !LINK_DOWN).wrapping_add(2); // bit 0 is the flag
        // `Release` keeps this store behind those that cleared the addresses.
        link.store(changes | if is_up { 0 } else { LINK_DOWN }, Release);
    }

    /// Returns the words of the ports, at the end of the table.
    fn links(&self) -> &[AtomicU64] {
        &self.words[self.words.len() - self.ports..]
    }

    /// Returns the ports without a link.
    pub fn without_link(&self) -> impl Iterator<Item = usize> {
        (0..self.ports).filter(|&port| !self.is_link_up(port))
    }

    /// Returns true unless the link of a port is recorded as down.
    #[must_use]
    pub fn is_link_up(&self, port: usize) -> bool {
        self.links().get(port).is_none_or(|link| link.load(Relaxed) & LINK_DOWN == 0)
    }

    /// Returns a number that changes with each change of a link.
    #[must_use]
    pub fn link_changes(&self) -> u64 {
        self.links().iter().fold(0, |sum, link| sum.wrapping_add(link.load(Relaxed)))
    }

    /// Returns the indices of the key words of a port's cache.
    fn cached(&self, port: usize) -> impl Iterator<Item = usize> + use<> {
        let first = WAYS * (self.pinned_sets + port * PORT_SETS);
        (first..first + PORT_SLOTS).map(key_word)
    }

    /// Returns all hosts in the table: port, address, and MAC address if resolved.
    pub fn iter(&self) -> impl Iterator<Item = (usize, IpAddr, Option<Mac>)> + '_ {
        let slots = WAYS * (self.pinned_sets + self.ports * PORT_SETS);
        (0..slots).map(key_word).filter_map(|at| {
            let word = self.key_at(at);
            let port = (word >> 32) as usize & 0x7FFF;
            let slot = Slot(at as u32);
            let address = match word & V6 {
                0 => IpAddr::V4(Ipv4Addr::from_bits(word as u32)),
                _ => IpAddr::V6(Ipv6Addr::from_bits(self.v6(slot)?)),
            };
            (word & TAKEN != 0).then(|| (port, address, self.mac(slot)))
        })
    }
}

/// Address of a host in the table.
pub trait HostAddress: Address {
    /// True if words behind the key word hold the address.
    const IS_BEHIND_KEY: bool;

    /// Returns the key word of the host behind a port.
    fn key(self, table: &Neighbours, port: usize) -> u64;

    /// Returns true if a place with this host's key word is the host's.
    fn is_at(self, table: &Neighbours, slot: Slot) -> bool;

    /// Writes the words behind the key word that hold the address.
    fn store(self, table: &Neighbours, slot: Slot);
}

/// The key word holds the whole address.
impl HostAddress for u32 {
    const IS_BEHIND_KEY: bool = false;

    #[inline]
    fn key(self, _: &Neighbours, port: usize) -> u64 {
        key(port, self)
    }

    #[inline]
    fn is_at(self, _: &Neighbours, _: Slot) -> bool {
        true
    }

    fn store(self, _: &Neighbours, _: Slot) {}
}

impl HostAddress for u128 {
    const IS_BEHIND_KEY: bool = true;

    /// Returns a key word with a hash of the address.
    #[inline]
    fn key(self, table: &Neighbours, port: usize) -> u64 {
        V6 | key(port, table.digest(self))
    }

    /// Compares the whole address, because two addresses may have the same hash.
    #[inline]
    fn is_at(self, table: &Neighbours, slot: Slot) -> bool {
        table.v6(slot) == Some(self)
    }

    /// The fence keeps the writes behind the change of the key word before them; it pairs with the one in
    /// [`Neighbours::v6`].
    fn store(self, table: &Neighbours, slot: Slot) {
        let [upper, lower] = table.v6_words(slot);
        fence(Release);
        upper.store((self >> 64) as u64, Relaxed);
        lower.store(self as u64, Relaxed);
    }
}

/// Returns a key word: flag, 15 bits for the port, and an IPv4 address or the digest of an IPv6 address.
#[inline]
fn key(port: usize, address: u32) -> u64 {
    TAKEN | (port as u64 & 0x7FFF) << 32 | u64::from(address)
}

/// Returns the index of the key word of an entry, by its number in the order of sets and ways.
fn key_word(entry: usize) -> usize {
    ENTRY_WORDS * entry
}

/// Returns the indices of the key words of the set that begins at an index.
fn ways(set: usize) -> impl Iterator<Item = usize> {
    (set..set + SET_WORDS).step_by(ENTRY_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 66]);

    #[test]
    fn hosts_are_found_by_port_and_address() {
        let table = Neighbours::heap(2, 0);
        assert_eq!(table.find(0, 7_u32), None);
        let slot = table.insert(0, 7_u32, 1);
        assert_eq!(table.insert(0, 7_u32, 1), slot);
        assert_ne!(table.insert(1, 7_u32, 1), slot);
        assert_eq!(table.mac(slot), None);
        assert_eq!(table.learn(slot, HOST, 1), LearnOutcome::Learnt);
        assert_eq!(table.find(0, 7_u32).and_then(|slot| table.mac(slot)), Some(HOST));
        assert_eq!(table.iter().filter(|entry| entry.1 == Ipv4Addr::from_bits(7)).count(), 2);
    }

    // promise: trust.1
    #[test]
    fn invented_hosts_never_evict_pinned_or_foreign_entries() {
        let table = Neighbours::heap(2, 3);
        let pinned: Vec<_> = (0..3).map(|at| table.pin(0, 100_u32 + at).unwrap()).collect();
        let elsewhere = table.insert(1, 9_u32, 1);
        let used = table.insert(0, 9_u32, 1);
        table.learn(used, HOST, 1);
        // 20 times as many hosts as the port's cache has entries.
        for address in 0..20 * PORT_SLOTS as u32 {
            let now = 2 + address / 64;
            table.note_use(used, now);
            let _ = table.insert(0, 0x0A00_0000 + address, now);
        }
        for (at, slot) in pinned.into_iter().enumerate() {
            assert_eq!(table.find(0, 100 + at as u32), Some(slot));
        }
        assert_eq!(table.find(1, 9_u32), Some(elsewhere));
        assert_eq!(table.find(0, 9_u32).and_then(|slot| table.mac(slot)), Some(HOST));
        // A new host finds a place at any time.
        let new = table.insert(0, 10_u32, 5_000);
        assert_eq!((table.find(0, 10_u32), table.mac(new)), (Some(new), None));
    }

    #[test]
    fn full_set_evicts_the_least_recently_used() {
        let table = Neighbours::heap(1, 0);
        let set = table.set(0, key(0, 0));
        let same_set: Vec<u32> =
            (0..100_000).filter(|&address| table.set(0, key(0, address)) == set).take(9).collect();
        for (at, &address) in same_set[..8].iter().enumerate() {
            let slot = table.insert(0, address, 0);
            table.learn(slot, HOST, 0);
            // The fourth host was used the longest ago.
            table.note_use(slot, RESOLUTION_MS * [8, 7, 6, 1, 4, 3, 2, 5][at]);
        }
        let _ = table.insert(0, same_set[8], 10 * RESOLUTION_MS);
        let evicted: Vec<_> =
            same_set.iter().filter(|&&address| table.find(0, address).is_none()).collect();
        assert_eq!(evicted, [&same_set[3]]);
    }

    #[test]
    fn hosts_with_equal_key_words_are_distinguished() {
        // A pair of addresses with one digest exists among about 2^16 random ones.
        let table = Neighbours::heap(1, 0);
        let mut seen = std::collections::HashMap::new();
        let pair = (0..1 << 20_u128).find_map(|address| {
            let twin = seen.insert(table.digest(address), address)?;
            Some((twin, address))
        });
        let (first, second) = pair.unwrap();
        for hosts in [[first, second], [second, first]] {
            let table = Neighbours::heap(1, 0);
            let slots = hosts.map(|host| table.insert(0, host, 1));
            assert_ne!(slots[0], slots[1]);
            assert_eq!(hosts.map(|host| table.find(0, host)), slots.map(Some));
        }
    }

    #[test]
    fn pinned_entry_replaces_the_cached_one() {
        let table = Neighbours::heap(1, 4);
        let cached = table.insert(0, 7_u32, 1);
        let pinned = table.pin(0, 7_u32).unwrap();
        assert_ne!(cached, pinned);
        // A packet of the host teaches the entry that tasks use.
        assert_eq!(table.find(0, 7_u32), Some(pinned));
    }

    #[test]
    fn pinning_beyond_the_reserved_room_is_refused() {
        let table = Neighbours::heap(1, 4);
        let pinned = (0..100_u32).filter(|&address| table.pin(0, address).is_some()).count();
        // The area has room for the requested entries, and for up to twice their number.
        assert!((4..=8).contains(&pinned), "{pinned}");
        assert_eq!(table.find(0, 99_u32), None);
    }

    #[test]
    fn arp_does_not_change_a_configured_address() {
        let table = Neighbours::heap(1, 1);
        let slot = table.pin(0, 1_u32).unwrap();
        table.set_static(slot, HOST);
        assert_eq!(table.learn(slot, OTHER, 5), LearnOutcome::Conflict);
        table.ask_all(slot);
        assert_eq!(table.learn(slot, OTHER, 5), LearnOutcome::Conflict);
        table.invalidate(slot);
        table.set_link(0, false);
        assert_eq!((table.mac(slot), table.age_ms(slot, 9)), (Some(HOST), Some(0)));
    }

    // promise: trust.1
    #[test]
    fn contradicting_claim_only_triggers_a_probe() {
        let table = Neighbours::heap(1, 0);
        let slot = table.insert(0, 1_u32, 10);
        assert_eq!(
            (table.learn(slot, HOST, 10), table.age_ms(slot, 15)),
            (LearnOutcome::Learnt, Some(5))
        );
        assert_eq!(table.learn(slot, OTHER, 20), LearnOutcome::Conflict);
        assert_eq!((table.mac(slot), table.age_ms(slot, 20)), (Some(HOST), None));
        // The known host answers: the entry is no longer suspect.
        assert_eq!(table.learn(slot, HOST, 21), LearnOutcome::Confirmed);
        assert_eq!(table.age_ms(slot, 22), Some(1));
        // The known host does not answer, so the node asks all hosts.
        table.learn(slot, OTHER, 30);
        table.ask_all(slot);
        assert_eq!(table.learn(slot, OTHER, 31), LearnOutcome::Learnt);
        assert_eq!(table.learn(slot, HOST, 32), LearnOutcome::Conflict, "asked once, one answer");
        assert_eq!(table.mac(slot), Some(OTHER));
        table.invalidate(slot);
        assert_eq!((table.mac(slot), table.find(0, 1_u32)), (None, Some(slot)));
    }

    #[test]
    fn link_loss_removes_its_hosts() {
        let table = Neighbours::heap(2, 2);
        let slots =
            [table.pin(0, 1_u32).unwrap(), table.insert(0, 2_u32, 1), table.insert(1, 2_u32, 1)];
        for slot in slots {
            table.learn(slot, HOST, 1);
        }
        let before = table.link_changes();
        table.set_link(0, false);
        assert_eq!(slots.map(|slot| table.mac(slot)), [None, None, Some(HOST)]);
        assert_eq!((table.is_link_up(0), table.is_link_up(1)), (false, true));
        table.set_link(0, true);
        assert!(table.is_link_up(0) && table.link_changes() != before);
    }

    #[test]
    fn concurrent_inserts_agree_on_the_entry() {
        let table = Neighbours::heap(1, 0);
        for round in 0..200_u32 {
            let insert = || table.insert(0, round, 1);
            let (first, second) = std::thread::scope(|scope| {
                let second = scope.spawn(insert);
                (insert(), second.join().unwrap())
            });
            let found = table.find(0, round);
            // Either core may have lost its place to its rival; its next look-up finds the rival's place.
            assert!(found == Some(first) || found == Some(second));
            assert_eq!(
                table.iter().filter(|entry| entry.1 == Ipv4Addr::from_bits(round)).count(),
                1
            );
        }
    }

    #[test]
    fn ipv6_hosts_have_places_beside_others() {
        const NEAR: u128 = 0xFD00_0000_0000_0000_0000_0000_0000_0001;
        let table = Neighbours::heap(2, 4);
        let pinned = table.pin(1, NEAR).unwrap();
        assert_eq!((table.pin(1, NEAR), table.find(1, NEAR)), (Some(pinned), Some(pinned)));
        assert_eq!((table.find(0, NEAR), table.find(1, table.address(pinned))), (None, None));
        let slot = table.insert(1, NEAR + 1, 0);
        assert_eq!((table.insert(1, NEAR + 1, 5), table.v6(slot)), (slot, Some(NEAR + 1)));
        assert_eq!(table.learn(slot, HOST, 0), LearnOutcome::Learnt);
        let known: Vec<_> = table.iter().collect();
        assert!(known.contains(&(1, IpAddr::V6(Ipv6Addr::from_bits(NEAR + 1)), Some(HOST))));
        assert!(known.contains(&(1, IpAddr::V6(Ipv6Addr::from_bits(NEAR)), None)));
        table.set_link(1, false);
        assert_eq!(table.mac(slot), None);
        table.unpin(pinned);
        assert_eq!((table.find(1, NEAR), table.v6(pinned)), (None, None));
        assert_eq!(table.v6(table.insert(0, 9_u32, 0)), None);
    }

    #[test]
    fn invented_ipv6_hosts_evict_no_resolved_host() {
        let table = Neighbours::heap(1, 0);
        let known = table.insert(0, 1_u128 << 100, 0);
        table.learn(known, HOST, 0);
        for host in 0..100_000_u128 {
            let slot = table.insert(0, 7 << 96 | host << 20, 1);
            assert_eq!(table.v6(slot), Some(7 << 96 | host << 20));
        }
        assert_eq!((table.find(0, 1_u128 << 100), table.mac(known)), (Some(known), Some(HOST)));
        // They are spread over all sets.
        let taken = table.iter().count();
        assert!(taken > PORT_SLOTS * 99 / 100, "{taken} of {PORT_SLOTS}");
    }
}
