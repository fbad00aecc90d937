//! A host that an agent speaks to on its own: where it is, by ARP or neighbour discovery unless the configuration says it.

use crate::wire::ether::Mac;

/// Questions a second for a MAC address that is not known.
const QUESTIONS_A_SECOND: u64 = 5;

/// One host; by IPv4 address unless named.
#[derive(Clone, Debug)]
pub struct NextHop<A = u32> {
    /// Its address.
    pub address: A,
    /// Index of the port that leads to it.
    pub port: usize,
    /// Its MAC address, as far as it is known.
    pub mac: Option<Mac>,
    /// The configuration says the MAC address, so that no answer changes it.
    fixed: bool,
    next_question: u64,
}

impl<A: Copy + PartialEq> NextHop<A> {
    /// A host behind this port, whose MAC address is asked for unless it is given.
    pub fn new(address: A, port: usize, mac: Option<Mac>) -> Self {
        Self { address, port, mac, fixed: mac.is_some(), next_question: 0 }
    }

    /// Its MAC address is not known, and it is time to ask.
    pub fn must_ask(&mut self, now: u64, ticks_hz: u64) -> bool {
        let asks = self.mac.is_none() && now >= self.next_question;
        if asks {
            self.next_question = now + (ticks_hz / QUESTIONS_A_SECOND).max(1);
        }
        asks
    }

    /// A packet to this host told where its address is.
    pub fn learn(&mut self, mac: Mac) {
        if !self.fixed {
            self.mac = Some(mac);
        }
    }

    /// What came to `port` from that address and MAC address is from it.
    pub fn has_sent(&self, port: usize, (from, mac): (A, Mac)) -> bool {
        (port, from, Some(mac)) == (self.port, self.address, self.mac)
    }
}
