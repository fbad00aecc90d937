//! The servers of a rack as others see them on its port: what a frame means to them.

use wedjat::io::Buf;
use wedjat::reason::DropReason;
use wedjat::wire::arp::{self, Operation};
use wedjat::wire::ether::{self, Mac};
use wedjat::wire::task::{Code, Header};
use wedjat::wire::udp::{self, Datagram};

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

/// What a frame means.
#[derive(Clone, Copy, Debug)]
pub enum Heard {
    /// A task of one of the servers; whether it has the worker that the header names is not yet looked at.
    Task(Datagram, Header),
    /// A leaf's acknowledgement of a worker's registration, if they have asked for any.
    Acknowledgement(Datagram, Header),
    /// A leaf's question for a worker's queue.
    Probe(Datagram, Header),
    /// An ARP question for one of them: the frame now holds the answer, to be sent.
    ArpAnswer,
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
        let frame = buf.bytes_mut();
        if frame.len() < ether::LEN {
            return Err(DropReason::Runt);
        }
        match ether::ether_type(frame) {
            ether::IPV4 => {
                let (datagram, header) = self.parse(frame, verified)?;
                match header.code {
                    Code::WorkerIdAck => Ok(Heard::Acknowledgement(datagram, header)),
                    Code::QueueProbe => Ok(Heard::Probe(datagram, header)),
                    _ => Ok(Heard::Task(datagram, header)),
                }
            }
            ether::ARP => self.answer_arp(frame).map(|()| Heard::ArpAnswer),
            _ => Err(DropReason::EtherType),
        }
    }

    #[inline]
    fn parse(&self, frame: &[u8], verified: bool) -> Result<(Datagram, Header), DropReason> {
        if ether::dst(frame) != self.mac {
            return Err(DropReason::OtherMac);
        }
        let datagram = udp::parse(frame, verified)?;
        if !self.layout.has_server(datagram.dst) {
            return Err(DropReason::OtherAddress);
        }
        if datagram.dst_port != self.udp_port {
            return Err(DropReason::UdpPort);
        }
        let header = Header::parse(&frame[datagram.payload()..usize::from(datagram.end)])?;
        let is_for_workers = matches!(header.code, Code::WorkerIdAck | Code::QueueProbe);
        if header.code.is_task() || is_for_workers {
            Ok((datagram, header))
        } else {
            Err(DropReason::TaskRole)
        }
    }

    fn answer_arp(&self, frame: &mut [u8]) -> Result<(), DropReason> {
        let packet = arp::Packet::parse(frame)?;
        if packet.operation != Operation::Request || !self.layout.has_server(packet.target) {
            return Err(DropReason::ArpOther);
        }
        packet.answer(self.mac).emit(frame, packet.sender_mac);
        Ok(())
    }
}
