//! Slots for connections: permissions to stay open. The total number is bounded. So is the number of connections of one
//! source that have not made a request yet. At a bound, a new connection takes the slot of an idle one. Idle
//! connections thus lock no client out.
//!
//! A connection owns a [`ConnectionSlot`]. Its requests get a [`SlotHandle`], and each open request holds a [`Call`].
//! A connection with an open call keeps its slot.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionSource {
    /// Peer over TCP. All addresses of an IPv6 /64 network are one source.
    Host(IpAddr),
    /// Process of this machine, by its process id; `None` if the system does not know it.
    Process(Option<i32>),
}

impl ConnectionSource {
    /// Returns the source of a peer with this address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }
}

/// Slots of one listener, and the connections that hold them.
#[derive(Debug)]
pub struct ConnectionSlots {
    /// Number of slots.
    max_connections: usize,
    /// Maximum number of connections of one source that have not made a request yet.
    max_before_request: usize,
    registry: Mutex<Registry>,
}

/// Open connections, by their numbers, and their counts by source.
#[derive(Debug, Default)]
struct Registry {
    /// Connections in the order of arrival.
    connections: BTreeMap<u64, Connection>,
    /// Counts of connections, by source. Sources without connections have no entry.
    sources: HashMap<ConnectionSource, SourceCounts>,
    /// Number of events so far: arrivals of connections, starts and ends of requests. A connection's number is that of
    /// its arrival.
    events: u64,
}

/// Numbers of open connections of one source.
#[derive(Clone, Copy, Debug, Default)]
struct SourceCounts {
    /// All connections.
    all: usize,
    /// Connections that have not made a request yet.
    before_request: usize,
}

/// Open connection.
#[derive(Debug)]
struct Connection {
    source: ConnectionSource,
    /// True after its first request. With TLS, the handshake and the check of the certificate come before it.
    had_request: bool,
    /// Number of open requests.
    calls: usize,
    /// Number of its last event.
    last_used: u64,
    /// Ends the connection when dropped.
    _end: oneshot::Sender<()>,
}

impl Registry {
    /// Counts an event and returns its number.
    fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// Returns the counts of a source's connections.
    fn counts(&self, source: ConnectionSource) -> SourceCounts {
        self.sources.get(&source).copied().unwrap_or_default()
    }

    /// Removes a connection from the registry, which ends it. Does nothing for a number that was removed already.
    fn remove(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        if let Some(count) = self.sources.get_mut(&connection.source) {
            count.all -= 1;
            count.before_request -= usize::from(!connection.had_request);
            if count.all == 0 {
                self.sources.remove(&connection.source);
            }
        }
    }

    /// Ends one idle connection among those for which `is_candidate` is true. It prefers the source with the most
    /// connections, then a connection that has not made a request yet, then the one unused for longest. Returns false
    /// if there is none.
    fn evict(&mut self, is_candidate: impl Fn(&Connection) -> bool) -> bool {
        let idle = self.connections.iter().filter(|(_, one)| one.calls == 0 && is_candidate(one));
        // `min_by_key` finds the victim, so that the source with the most connections needs the smallest rank.
        let rank = |one: &Connection| {
            (usize::MAX - self.counts(one.source).all, one.had_request, one.last_used)
        };
        let victim = idle.min_by_key(|(_, one)| rank(one)).map(|(number, _)| *number);
        victim.map(|number| self.remove(number)).is_some()
    }
}

impl ConnectionSlots {
    /// Creates `max_connections` slots. Of one source, at most `max_before_request` connections may have made no
    /// request yet.
    #[must_use]
    pub fn new(max_connections: usize, max_before_request: usize) -> Arc<Self> {
        Arc::new(Self { max_connections, max_before_request, registry: Mutex::default() })
    }

    /// Locks the registry. A panic of another thread leaves it consistent.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a new connection of this source a slot. At a bound, it first evicts an idle connection that counts for the
    /// bound. Returns `None` if there is no idle one: each has an open request.
    #[must_use]
    pub fn admit(self: &Arc<Self>, source: ConnectionSource) -> Option<ConnectionSlot> {
        let mut registry = self.registry();
        let is_before_request = |one: &Connection| one.source == source && !one.had_request;
        if registry.counts(source).before_request >= self.max_before_request
            && !registry.evict(is_before_request)
        {
            return None;
        }
        if registry.connections.len() >= self.max_connections && !registry.evict(|_| true) {
            return None;
        }
        let (number, (end, ended)) = (registry.next_event(), oneshot::channel());
        let (had_request, calls, last_used) = (false, 0, number);
        let connection = Connection { source, had_request, calls, last_used, _end: end };
        registry.connections.insert(number, connection);
        let count = registry.sources.entry(source).or_default();
        (count.all, count.before_request) = (count.all + 1, count.before_request + 1);
        let handle = SlotHandle { slots: Arc::clone(self), number };
        Some(ConnectionSlot { handle, ended })
    }

    /// Ends one idle connection. Called if the process has no file descriptor for a new one. Returns false if none is
    /// idle.
    pub fn evict(&self) -> bool {
        self.registry().evict(|_| true)
    }

    /// Counts the end of a request of this connection.
    fn end_call(&self, number: u64) {
        let mut registry = self.registry();
        let last_used = registry.next_event();
        if let Some(connection) = registry.connections.get_mut(&number) {
            (connection.calls, connection.last_used) = (connection.calls - 1, last_used);
        }
    }
}

/// Slot of a connection, free again on drop.
#[derive(Debug)]
pub struct ConnectionSlot {
    handle: SlotHandle,
    /// Resolves when the connection must end.
    pub ended: oneshot::Receiver<()>,
}

impl ConnectionSlot {
    /// Returns the slot's handle, for the connection's requests.
    #[must_use]
    pub fn handle(&self) -> SlotHandle {
        self.handle.clone()
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.handle.slots.registry().remove(self.handle.number);
    }
}

/// Handle of a slot, shared with the connection's requests.
#[derive(Clone, Debug)]
pub struct SlotHandle {
    slots: Arc<ConnectionSlots>,
    /// Number of the connection.
    number: u64,
}

impl SlotHandle {
    /// Counts a request as open until the returned [`Call`] is dropped.
    #[must_use]
    pub fn call(&self) -> Call {
        let mut registry = self.slots.registry();
        let last_used = registry.next_event();
        if let Some(connection) = registry.connections.get_mut(&self.number) {
            (connection.calls, connection.last_used) = (connection.calls + 1, last_used);
            let (source, was_before_request) = (connection.source, !connection.had_request);
            connection.had_request = true;
            if let Some(count) = registry.sources.get_mut(&source) {
                count.before_request -= usize::from(was_before_request);
            }
        }
        drop(registry);
        Call(self.clone())
    }
}

/// Open request.
#[derive(Debug)]
pub struct Call(SlotHandle);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.slots.end_call(self.0.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the source at 10.0.0.`last`.
    fn host(last: u8) -> ConnectionSource {
        ConnectionSource::of([10, 0, 0, last].into())
    }

    /// Returns true if the connection with this slot must end.
    fn is_over(slot: &mut ConnectionSlot) -> bool {
        slot.ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    // promise: control.1
    #[test]
    fn silent_source_loses_its_oldest_connection() {
        const MAX_BEFORE_REQUEST: u8 = 2;
        let slots = ConnectionSlots::new(8, MAX_BEFORE_REQUEST.into());
        let mut silent: Vec<_> =
            (0..=MAX_BEFORE_REQUEST).map(|_| slots.admit(host(1)).unwrap()).collect();
        let over: Vec<_> = silent.iter_mut().map(is_over).collect();
        assert_eq!(over, [true, false, false]);
        let mut other_source = slots.admit(host(2)).unwrap();
        assert!(!is_over(&mut other_source), "the bound before the first request is per source");
    }

    // promise: control.1
    #[test]
    fn full_listener_admits_newcomers() {
        const SLOTS: usize = 4;
        let slots = ConnectionSlots::new(SLOTS, SLOTS);
        let mut operator = slots.admit(host(9)).unwrap();
        drop(operator.handle().call());
        let mut idle: Vec<_> = (1..SLOTS).map(|_| slots.admit(host(1)).unwrap()).collect();
        // Each new connection evicts one of its own source, which has the most connections, and never the operator's.
        for _ in 0..20 {
            idle.push(slots.admit(host(1)).unwrap());
        }
        assert!(!is_over(&mut operator));
        assert_eq!(
            idle.iter_mut().filter_map(|one| (!is_over(one)).then_some(())).count(),
            SLOTS - 1
        );
        assert!(slots.admit(host(2)).is_some());
    }

    // promise: control.1
    #[test]
    fn connection_with_open_request_stays() {
        let slots = ConnectionSlots::new(2, 2);
        let mut busy: Vec<_> = (0..2).map(|_| slots.admit(host(1)).unwrap()).collect();
        let calls: Vec<_> = busy.iter().map(|one| one.handle().call()).collect();
        assert!(slots.admit(host(2)).is_none() && !slots.evict());
        assert!(busy.iter_mut().all(|one| !is_over(one)));
        drop(calls);
        assert!(slots.admit(host(2)).is_some());
        assert!(
            is_over(&mut busy[0]) && !is_over(&mut busy[1]),
            "the connection without an event for longest ends"
        );
    }

    // promise: control.1
    #[test]
    fn slot_is_free_after_its_connection() {
        // The only slot serves one connection after another.
        let slots = ConnectionSlots::new(1, 1);
        for last in 0..9 {
            let mut slot = slots.admit(host(last)).unwrap();
            let _call = slot.handle().call();
            assert!(!is_over(&mut slot));
        }
        assert!(slots.registry().connections.is_empty() && slots.registry().sources.is_empty());
    }

    #[test]
    fn addresses_of_an_ipv6_network_are_one_source() {
        let of = |text: &str| ConnectionSource::of(text.parse().unwrap());
        assert_eq!(of("fd00:1::1"), of("fd00:1::ffff:2"));
        assert_ne!(of("fd00:1::1"), of("fd00:2::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
