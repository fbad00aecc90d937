//! The servers of a rack as others see them on its port: what a frame means to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wedjat::io::Buf;
use wedjat::reason::DropReason;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Datagram};
use wedjat_pktgen::neighbour::{self, Message};

use super::Layout;

/// Servers behind one MAC address.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The port's.
    pub mac: Mac,
    /// The servers and their workers.
    pub layout: Layout,
    /// The UDP port of tasks.
    pub udp_port: u16,
}

/// A checked datagram's place in its frame, over IPv4 or IPv6, and whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The server's number.
    pub server: u16,
    /// Offset of the UDP header in the frame.
    pub at: u16,
    /// Offset behind the datagram's last byte in the frame.
    pub end: u16,
}

impl Segment {
    /// Offset of the payload in the frame.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> usize {
        usize::from(self.at) + udp::LEN
    }
}

/// What a frame means.
#[derive(Clone, Copy, Debug)]
pub enum Heard {
    /// A task of one of the servers; whether it has the worker that the header names is not yet looked at.
    Task(Segment, Header),
    /// The acknowledgement of a worker's registration by the leaf with this address, if they have asked for any.
    Acknowledgement(IpAddr, Segment, Header),
    /// A leaf's question for a worker's queue.
    Probe(Segment, Header),
    /// A question for the MAC address of one of them: the buffer now holds the answer, to be sent.
    NeighbourAnswer,
}

impl Address {
    /// Reads a frame.
    ///
    /// # Errors
    /// Why it means nothing here.
    #[inline]
    pub fn hear<B: Buf>(&self, buf: &mut B) -> Result<Heard, DropReason> {
        if buf.is_segmented() {
            return Err(DropReason::Segmented);
        }
        let verified = buf.checksums_verified();
        let frame = buf.bytes();
        if frame.len() < ether::LEN {
            return Err(DropReason::Runt);
        }
        match ether::ether_type(frame) {
            ether::IPV4 => {
                self.is_here(frame)?;
                let datagram = udp::parse(frame, verified)?;
                let server = self.layout.server_v4(datagram.dst);
                self.read(frame, &datagram, server, Ipv4Addr::from_bits)
            }
            _ if Message::is_one(frame) => {
                neighbour::answer(buf, self.mac, |address| self.layout.has_server(address))?;
                Ok(Heard::NeighbourAnswer)
            }
            ether::IPV6 => {
                self.is_here(frame)?;
                let datagram = udp::parse_v6(frame, verified)?;
                let server = self.layout.server_v6(datagram.dst);
                self.read(frame, &datagram, server, Ipv6Addr::from_bits)
            }
            _ => Err(DropReason::EtherType),
        }
    }

    #[inline]
    fn is_here(&self, frame: &[u8]) -> Result<(), DropReason> {
        if ether::is_to(frame, self.mac) { Ok(()) } else { Err(DropReason::OtherMac) }
    }

    /// Reads what a datagram says, which is for the server of this number if it is for one; `address` makes one of its source.
    #[inline]
    fn read<A: Copy, I: Into<IpAddr>>(
        &self,
        frame: &[u8],
        datagram: &Datagram<A>,
        server: Option<u16>,
        address: impl FnOnce(A) -> I,
    ) -> Result<Heard, DropReason> {
        let server = server.ok_or(DropReason::OtherAddress)?;
        if datagram.dst_port != self.udp_port {
            return Err(DropReason::UdpPort);
        }
        let &Datagram { at, end, .. } = datagram;
        let header = Header::parse(&frame[datagram.payload()..usize::from(end)])?;
        let segment = Segment { server, at, end };
        match header.code {
            code if code.is_task() => Ok(Heard::Task(segment, header)),
            Code::WorkerIdAck => {
                Ok(Heard::Acknowledgement(address(datagram.src).into(), segment, header))
            }
            Code::QueueProbe => Ok(Heard::Probe(segment, header)),
            _ => Err(DropReason::TaskRole),
        }
    }
}
