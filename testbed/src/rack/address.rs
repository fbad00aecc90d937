//! Parser of the frames that arrive at a rack's port: the servers are hosts behind one MAC address. The emulated rack
//! and the workers of a lockstep run use it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wedjat::io::Buf;
use wedjat::reason::DropReason;
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Datagram};
use wedjat_pktgen::neighbour::{self, Message};

use super::Layout;

/// Addresses of a rack's port: its MAC address, the servers behind it and the UDP port of tasks.
#[derive(Clone, Copy, Debug)]
pub struct RackPort {
    /// MAC address of the port.
    pub mac: Mac,
    /// The servers and their workers.
    pub layout: Layout,
    /// UDP port of tasks.
    pub udp_port: u16,
}

/// Location of a checked datagram in its frame, over IPv4 or IPv6, and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the server in the layout.
    pub server: u16,
    /// Offset of the UDP header in the frame.
    pub at: u16,
    /// Offset behind the datagram's last byte in the frame.
    pub end: u16,
}

impl Segment {
    /// Returns the offset of the payload in the frame.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> usize {
        usize::from(self.at) + udp::LEN
    }
}

/// Kind of a frame that the servers accept.
#[derive(Clone, Copy, Debug)]
pub enum FrameKind {
    /// A task for one of the servers. The caller checks that the server has the worker named in the header.
    Task(Segment, Header),
    /// The acknowledgement of a worker's registration by the leaf with this address. The caller checks that
    /// the worker has sent a registration.
    Acknowledgement(IpAddr, Segment, Header),
    /// A leaf's probe of a worker's queue length.
    Probe(Segment, Header),
    /// A request for the MAC address of a server. The buffer now holds the answer, to be sent.
    NeighbourAnswer,
}

impl RackPort {
    /// Parses a frame. ARP and neighbour discovery are answered in the frame's own buffer.
    ///
    /// # Errors
    /// The reason why the servers drop the frame.
    #[inline]
    pub fn parse_frame<B: Buf>(&self, buf: &mut B) -> Result<FrameKind, DropReason> {
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
                self.check_mac(frame)?;
                let datagram = udp::parse(frame, verified)?;
                let server = self.layout.server_v4(datagram.dst);
                self.parse_datagram(frame, &datagram, server, Ipv4Addr::from_bits)
            }
            _ if Message::is_neighbour_discovery(frame) => {
                neighbour::answer(buf, self.mac, |address| self.layout.has_server(address))?;
                Ok(FrameKind::NeighbourAnswer)
            }
            ether::IPV6 => {
                self.check_mac(frame)?;
                let datagram = udp::parse_v6(frame, verified)?;
                let server = self.layout.server_v6(datagram.dst);
                self.parse_datagram(frame, &datagram, server, Ipv6Addr::from_bits)
            }
            _ => Err(DropReason::EtherType),
        }
    }

    /// Checks that a frame is for the rack's MAC address.
    #[inline]
    fn check_mac(&self, frame: &[u8]) -> Result<(), DropReason> {
        if ether::is_to(frame, self.mac) { Ok(()) } else { Err(DropReason::OtherMac) }
    }

    /// Parses the task header of a datagram. `server` is the destination's index, or `None` if it is no server.
    /// `address` converts the source address.
    #[inline]
    fn parse_datagram<A: Copy, I: Into<IpAddr>>(
        &self,
        frame: &[u8],
        datagram: &Datagram<A>,
        server: Option<u16>,
        address: impl FnOnce(A) -> I,
    ) -> Result<FrameKind, DropReason> {
        let server = server.ok_or(DropReason::OtherAddress)?;
        if datagram.dst_port != self.udp_port {
            return Err(DropReason::UdpPort);
        }
        let &Datagram { udp_offset: at, end, .. } = datagram;
        let header = Header::parse(&frame[datagram.payload()..usize::from(end)])?;
        let segment = Segment { server, at, end };
        match header.code {
            code if code.is_task() => Ok(FrameKind::Task(segment, header)),
            Code::WorkerIdAck => {
                Ok(FrameKind::Acknowledgement(address(datagram.src).into(), segment, header))
            }
            Code::QueueProbe => Ok(FrameKind::Probe(segment, header)),
            _ => Err(DropReason::TaskRole),
        }
    }
}
