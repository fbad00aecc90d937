//! Host that an agent sends messages to, a leaf or a peer agent: its MAC address, resolved or configured.

use std::net::IpAddr;

use crate::wire::ether::Mac;

/// ARP requests or neighbour solicitations per second for an unknown MAC address.
const QUESTIONS_PER_SECOND: u64 = 5;

/// Leaf or peer agent on a port's network, with its MAC address.
#[derive(Clone, Debug)]
pub struct NextHop {
    /// Address.
    pub address: IpAddr,
    /// Index of the port that leads to it.
    pub port: usize,
    /// MAC address, if known.
    pub mac: Option<Mac>,
    /// True if the MAC address is configured, so that no answer changes it.
    fixed: bool,
    /// Earliest time of the next question in ticks.
    next_question: u64,
}

impl NextHop {
    /// Creates a host behind this port. Its MAC address is resolved unless given.
    pub fn new(address: IpAddr, port: usize, mac: Option<Mac>) -> Self {
        Self { address, port, mac, fixed: mac.is_some(), next_question: 0 }
    }

    /// Returns true if the MAC address is unknown and a question is due at `now` ticks. The caller must then send it.
    pub fn must_ask(&mut self, now: u64, ticks_hz: u64) -> bool {
        let is_due = self.mac.is_none() && now >= self.next_question;
        if is_due {
            // The caller sends this question, so the next one is due an interval later.
            self.next_question = now + (ticks_hz / QUESTIONS_PER_SECOND).max(1);
        }
        is_due
    }

    /// Stores a MAC address from a packet that the next hop sent to this host. Keeps a configured one.
    pub fn learn(&mut self, mac: Mac) {
        if !self.fixed {
            self.mac = Some(mac);
        }
    }

    /// Returns true if a packet received at `port` with these source addresses is from this next hop. False while its
    /// MAC address is unknown.
    pub fn has_sent(&self, port: usize, (from, mac): (IpAddr, Mac)) -> bool {
        (port, from, Some(mac)) == (self.port, self.address, self.mac)
    }
}
