//! Host that an agent sends messages to: its MAC address, resolved or configured.

use crate::wire::ether::Mac;

/// Questions per second for an unknown MAC address.
const QUESTIONS_A_SECOND: u64 = 5;

/// A host, by IPv4 address by default.
#[derive(Clone, Debug)]
pub struct NextHop<A = u32> {
    /// Address.
    pub address: A,
    /// Index of the port that leads to it.
    pub port: usize,
    /// MAC address, if known.
    pub mac: Option<Mac>,
    /// True if the MAC address is configured, so that no answer changes it.
    fixed: bool,
    next_question: u64,
}

impl<A: Copy + PartialEq> NextHop<A> {
    /// Creates a host behind this port. Its MAC address is resolved unless given.
    pub fn new(address: A, port: usize, mac: Option<Mac>) -> Self {
        Self { address, port, mac, fixed: mac.is_some(), next_question: 0 }
    }

    /// Returns true if the MAC address is unknown and a question is due.
    pub fn must_ask(&mut self, now: u64, ticks_hz: u64) -> bool {
        let asks = self.mac.is_none() && now >= self.next_question;
        if asks {
            self.next_question = now + (ticks_hz / QUESTIONS_A_SECOND).max(1);
        }
        asks
    }

    /// Stores the MAC address from a packet addressed to this host.
    pub fn learn(&mut self, mac: Mac) {
        if !self.fixed {
            self.mac = Some(mac);
        }
    }

    /// Returns true if a packet at `port` with these source addresses is from this host.
    pub fn has_sent(&self, port: usize, (from, mac): (A, Mac)) -> bool {
        (port, from, Some(mac)) == (self.port, self.address, self.mac)
    }
}
