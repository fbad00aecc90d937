//! Destination of the load: addresses, ports, and packet format.

use wedjat::wire::ether::Mac;
use wedjat::wire::task;
use wedjat::wire::udp::Flow;

use crate::address::{Addresses, AnyFlow, Endpoints};
use crate::host::Host;
use crate::template::TaskFrame;

/// Destination and packet format of the load.
#[derive(Clone, Debug)]
pub struct Target {
    /// MAC address of the generator's port.
    pub mac: Mac,
    /// Addresses of generator, scheduler and next hop.
    pub addresses: Addresses,
    /// MAC address of the next hop. `None` resolves it by ARP or neighbour discovery.
    pub next_hop_mac: Option<Mac>,
    /// UDP port of the scheduler.
    pub udp_port: u16,
    /// Pool of the tasks.
    pub pool: u16,
    /// First UDP source port.
    pub src_port: u16,
    /// Number of source ports.
    pub flows: u16,
    /// True to send the header extension.
    pub extended: bool,
    /// True to send UDP checksums. IPv6 packets always have them.
    pub checksums: bool,
    /// Minimum frame length in bytes. A replayed trace has its own.
    pub frame_bytes: usize,
}

impl Target {
    /// Returns a target with defaults: pool 1 of the scheduler at IPv4 address `dst`, 64 flows, extended
    /// headers, checksums, short frames. The generator's address is `ip`. The scheduler is the next hop.
    #[must_use]
    pub fn new(mac: Mac, ip: u32, dst: u32) -> Self {
        Self::to(mac, Addresses::V4(Endpoints { own: ip, dst, next_hop: dst }))
    }

    /// Returns the same defaults for addresses of either family.
    #[must_use]
    pub fn to(mac: Mac, addresses: Addresses) -> Self {
        Self {
            mac,
            addresses,
            next_hop_mac: None,
            udp_port: task::UDP_PORT,
            pool: 1,
            src_port: 40_000,
            flows: 64,
            extended: true,
            checksums: true,
            frame_bytes: 0,
        }
    }

    /// Returns the generator as a host, which answers for its address and resolves its next hop.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::new(self.mac, self.addresses, self.next_hop_mac)
    }

    /// Returns the fields that all frames of a core share. `app` is the core's application id in this run.
    #[must_use]
    pub fn frame(&self, app: u32) -> TaskFrame {
        let flow = match self.addresses {
            Addresses::V4(ends) => AnyFlow::V4(self.flow(ends)),
            Addresses::V6(ends) => AnyFlow::V6(self.flow(ends)),
        };
        TaskFrame {
            flow,
            flows: self.flows,
            pool: self.pool,
            app,
            extended: self.extended,
            frame_bytes: self.frame_bytes,
            checksums: self.checksums,
        }
    }

    /// Returns the flow to the scheduler from the first source port. The destination MAC address is zero unless
    /// [`Target::next_hop_mac`] gives it: the template gets the resolved one later.
    fn flow<A>(&self, Endpoints { own, dst, .. }: Endpoints<A>) -> Flow<A> {
        Flow {
            src_mac: self.mac,
            dst_mac: self.next_hop_mac.unwrap_or_default(),
            src: own,
            dst,
            src_port: self.src_port,
            dst_port: self.udp_port,
        }
    }
}
