//! Where the load goes: addresses, ports, and the form of the packets.

use wedjat::wire::ether::Mac;
use wedjat::wire::task;
use wedjat::wire::udp::Flow;

use crate::address::{Addresses, AnyFlow, Ends};
use crate::host::Host;
use crate::template::TaskFrame;

/// Where the load goes.
#[derive(Clone, Debug)]
pub struct Target {
    /// MAC address of the port.
    pub mac: Mac,
    /// The generator's address, the scheduler's and the next hop's.
    pub addresses: Addresses,
    /// The next hop's MAC address; ARP or neighbour discovery finds it otherwise.
    pub next_hop_mac: Option<Mac>,
    /// The scheduler's UDP port.
    pub udp_port: u16,
    /// Worker pool.
    pub pool: u16,
    /// First source port.
    pub src_port: u16,
    /// Number of source ports.
    pub flows: u16,
    /// Send the header extension.
    pub extended: bool,
    /// Send UDP checksums. Over IPv6 they always are.
    pub checksums: bool,
    /// Bytes of a frame at least.
    pub frame_bytes: usize,
}

impl Target {
    /// Pool 1 of the scheduler at the IPv4 address `dst`, 64 flows, extended headers, checksums, short frames.
    #[must_use]
    pub fn new(mac: Mac, ip: u32, dst: u32) -> Self {
        Self::to(mac, Addresses::V4(Ends { own: ip, dst, next_hop: dst }))
    }

    /// The same of a scheduler at an address of either family.
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

    /// The host that the generator is.
    #[must_use]
    pub fn host(&self) -> Host {
        Host::new(self.mac, self.addresses, self.next_hop_mac)
    }

    /// What all tasks of an application have in common.
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

    fn flow<A>(&self, Ends { own, dst, .. }: Ends<A>) -> Flow<A> {
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
