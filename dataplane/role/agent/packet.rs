//! A task's packet while its worker has it, and the reply made in its place.

use super::crew::Work;
use crate::io::Buf;
use crate::reason::DropReason;
use crate::ring::TaskIds;
use crate::wire::ether;
use crate::wire::task::{Code, Extension, Header};
use crate::wire::udp::{self, Datagram, Flow};

/// A checked task, in the buffer that it came in.
#[derive(Debug)]
pub struct Packet<B> {
    buf: B,
    /// Index of the port that it came from.
    pub port: u8,
    datagram: Datagram,
    header: Header,
    extension: Extension,
}

impl<B: Buf> Packet<B> {
    /// The packet of a task whose header is `header`. Tasks of several packets are refused.
    ///
    /// # Errors
    /// The buffer, and the reason for which it must be dropped.
    pub fn new(
        buf: B,
        port: u8,
        datagram: Datagram,
        header: Header,
    ) -> Result<Self, (B, DropReason)> {
        if header.code != Code::NewTask || header.more {
            return Err((buf, DropReason::TaskRole));
        }
        let extension = match header.extended {
            true => Extension::parse(&buf.bytes()[datagram.payload()..]),
            false => Extension { seq32: u32::from(header.seq), ..Extension::default() },
        };
        Ok(Self { buf, port, datagram, header, extension })
    }

    /// Pool and worker that it names.
    pub fn addressed(&self) -> (u16, u16) {
        (self.header.pool, self.header.dst)
    }

    /// Turns the packet into its reply: back to where it came from, `len` bytes of answer, which `fill` writes.
    ///
    /// # Errors
    /// The buffer, when it is too small for the answer.
    pub fn into_reply(
        mut self,
        code: Code,
        worker: u16,
        left: u16,
        service_ns: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<B, B> {
        let (header, datagram) = (self.header, self.datagram);
        let frame = self.buf.bytes();
        let flow = Flow {
            src_mac: ether::dst(frame),
            dst_mac: ether::src(frame),
            src: datagram.dst,
            dst: datagram.src,
            src_port: datagram.dst_port,
            dst_port: datagram.src_port,
        };
        let head = header.len();
        if !self.buf.resize(udp::PAYLOAD + head + len) {
            return Err(self.buf);
        }
        let frame = self.buf.bytes_mut();
        let payload = &mut frame[udp::PAYLOAD..];
        Header { code, more: false, src: worker, dst: header.src, qlen: left, ..header }
            .emit(payload);
        if header.extended {
            Extension { service_ns, ..self.extension }.emit(payload);
        }
        fill(&mut payload[head..]);
        flow.emit(frame, head + len);
        Ok(self.buf)
    }

    /// As [`Packet::into_reply`] with the task's own bytes: it is given back undone.
    ///
    /// # Errors
    /// The buffer, when it came with IP options or is otherwise too small.
    pub fn into_refusal(self, worker: u16, tasks: u16) -> Result<B, B> {
        if self.datagram.payload() != udp::PAYLOAD {
            return Err(self.buf);
        }
        let (len, service_ns) = (self.payload().len(), self.extension.service_ns);
        self.into_reply(Code::TaskRefused, worker, tasks, service_ns, len, |_| {})
    }
}

impl<B: Buf> Work for Packet<B> {
    #[inline]
    fn ids(&self) -> TaskIds {
        let Extension { app, seq32, class, .. } = self.extension;
        TaskIds { app, seq: seq32, class }
    }

    #[inline]
    fn payload(&self) -> &[u8] {
        let start = self.datagram.payload() + self.header.len();
        &self.buf.bytes()[start..usize::from(self.datagram.end)]
    }
}
