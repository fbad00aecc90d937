//! Packet of a task at an agent. Its buffer waits while a worker serves the task, and then becomes the reply.
//!
//! A leaf, which schedules the tasks of a rack, sends tasks to the agent and receives the replies. Under *direct
//! return* the reply goes to the client without the leaf. In a rack without a leaf, a *peer* is another agent: it may
//! forward a task, with a *trailer* that has the client's side of the path. A *proof* is the signature in an
//! authenticated message.

use std::net::IpAddr;

use super::direct::DirectRoute;
use super::link::Work;
use super::signer::Credential;
use crate::io::Buf;
use crate::io::Token;
use crate::reason::DropReason;
use crate::ring::TaskIds;
use crate::stage::PortAddress;
use crate::wire::address::Address;
use crate::wire::ether::{self, Mac};
use crate::wire::peer::{ForwardingTrailer, VERSION, VIA_LEN};
use crate::wire::task::{Code, Extension, FULL, Header};
use crate::wire::udp::{self, Datagram, Flow};
use crate::wire::{ipv4, ipv6};

/// Fields of a response that depend on its worker.
#[derive(Clone, Copy, Debug)]
pub struct ReplyFields<'a> {
    /// Worker named by the reply.
    pub worker: u16,
    /// Unfinished tasks of that worker, which the sender needs for its next decisions.
    pub left: usize,
    /// Service time in nanoseconds.
    pub service_ns: u32,
    /// Credential of that worker, if its pool has a key.
    pub credential: Option<&'a Credential>,
}

/// Origin of a task that a peer forwarded. The reply has the origin's address as its source, because the client
/// sent the task there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedTask {
    /// The peer's trailer.
    pub via: ForwardingTrailer,
    /// Address of the node that the client sent it to.
    pub origin: IpAddr,
}

/// Route to a peer, for forwarding a task.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Number and MAC address of this node.
    pub by: (u16, Mac),
    /// Address and MAC address of the peer.
    pub to: (IpAddr, Mac),
}

/// A checked task in its receive buffer.
#[derive(Debug)]
pub struct Packet<B> {
    /// Received frame.
    buf: B,
    /// Index of the receiving port.
    pub port: u8,
    /// Arrival time in nanoseconds.
    pub since_ns: u64,
    /// Index, among all of the agent's workers, of the worker that the task names; 0 if it names none.
    worker_index: u16,
    /// Offsets, ports and IPv4 addresses. The addresses are 0 for IPv6, whose addresses are read from the frame.
    datagram: Datagram,
    /// Task header, which the response repeats with some changed fields.
    header: Header,
    /// Extension of the header: application id, sequence and class; defaults if the header has none.
    extension: Extension,
    /// Origin, if a peer forwarded the task.
    forwarded: Option<ForwardedTask>,
    /// Route of the reply, if it does not pass the leaf. The frame's destination is then the reply's source.
    direct: Option<DirectRoute>,
}

/// Returns true for an IPv6 frame.
#[inline]
fn is_v6(frame: &[u8]) -> bool {
    frame.len() >= ether::LEN && ether::ether_type(frame) == ether::IPV6
}

/// Sets the addresses of an IPv6 datagram to 0, so that both families have one type. The frame still has them.
#[inline]
pub(super) fn without_addresses(datagram: Datagram<u128>) -> Datagram {
    datagram.map_addresses(|_| 0)
}

impl<B: Buf> Packet<B> {
    /// Creates the packet of a task with this header; an IPv6 `datagram` has no addresses. Refuses other
    /// messages, and tasks of several packets. A task from a peer has the code `NewTask` by now, and no trailer.
    ///
    /// # Errors
    /// The buffer and its drop reason.
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
        Ok(Self {
            buf,
            port,
            since_ns: 0,
            worker_index: 0,
            datagram,
            header,
            extension,
            forwarded: None,
            direct: None,
        })
    }

    /// Adds the origin of a forwarded task.
    pub fn with_origin(self, forwarded: Option<ForwardedTask>) -> Self {
        Self { forwarded, ..self }
    }

    /// Sets the reply's route, for a task that still has the destination address that its client used. Without a route,
    /// writes the agent's address `own` as the destination. The reply then has `own` as its source and passes the leaf.
    pub fn with_route(mut self, route: Option<DirectRoute>, own: &PortAddress) -> Self {
        self.direct = route;
        if route.is_none() {
            self.datagram.dst = own.ip;
            let packet = &mut self.buf.bytes_mut()[ether::LEN..];
            match own.v6 {
                None => packet[ipv4::DST..ipv4::LEN].copy_from_slice(&own.ip.to_be_bytes()),
                Some(own) => packet[ipv6::DST..ipv6::LEN].copy_from_slice(&own.ip.to_be_bytes()),
            }
        }
        self
    }

    /// Returns the route of its reply, if that does not pass the leaf.
    #[inline]
    pub fn direct_route(&self) -> Option<DirectRoute> {
        self.direct
    }

    /// Returns true if the task fills its worker up to the policy's bound, under direct return. The leaf marks such a
    /// task by a bit in the queue length. Other tasks may wait at the leaf, so the agent reports completions at once.
    #[inline]
    pub fn is_last(&self) -> bool {
        self.header.qlen & u16::from(FULL) != 0
    }

    /// Returns true if a peer forwarded it.
    #[inline]
    pub fn is_forwarded(&self) -> bool {
        self.forwarded.is_some()
    }

    /// Converts the packet for forwarding to a peer: the same task from the same client, with a trailer.
    ///
    /// # Errors
    /// Returns the buffer if it is too small, or the families of the task and the peer's address differ.
    pub fn into_forwarded(self, route: &Route) -> Result<B, B> {
        match is_v6(self.buf.bytes()) {
            false => self.forward::<u32>(route),
            true => self.forward::<u128>(route),
        }
    }

    /// Same as [`Packet::into_forwarded`], for a task of this address family.
    fn forward<A: Address>(mut self, route: &Route) -> Result<B, B> {
        let Route { by: (by, src_mac), to: (to, dst_mac) } = *route;
        let Some(dst) = A::from_ip(to) else { return Err(self.buf) };
        let src = A::src(&self.buf.bytes()[ether::LEN..]);
        let (start, end) = (self.datagram.payload(), usize::from(self.datagram.end));
        let (len, frame) = (end - start, self.buf.bytes_mut());
        // The first node that forwards a task is its origin. Later ones keep the trailer, and replace the forwarder.
        let first =
            ForwardingTrailer { version: VERSION, hops: 0, by, origin: by, mac: ether::src(frame) };
        let via = self.forwarded.map_or(first, |forwarded| forwarded.via);
        frame.copy_within(start..end, A::PAYLOAD); // removes IP options
        if !self.buf.resize(A::PAYLOAD + len + VIA_LEN) {
            return Err(self.buf);
        }
        let frame = self.buf.bytes_mut();
        let payload = &mut frame[A::PAYLOAD..];
        Header { code: Code::PassedTask, ..self.header }.emit(payload);
        ForwardingTrailer { by, hops: via.hops.saturating_add(1), ..via }.emit(&mut payload[len..]);
        let Datagram { src_port, dst_port, .. } = self.datagram;
        A::emit(&Flow { src_mac, dst_mac, src, dst, src_port, dst_port }, frame, len + VIA_LEN);
        Ok(self.buf)
    }

    /// Returns its frame.
    pub fn frame(&self) -> &[u8] {
        self.buf.bytes()
    }

    /// Returns the ids of the pool and worker in its header; the worker is `NO_MEMBER` if it names
    /// none.
    pub fn addressed(&self) -> (u16, u16) {
        (self.header.pool, self.header.dst)
    }

    /// Returns the id of its pool and its class.
    #[inline]
    pub fn pool_and_class(&self) -> (u16, u16) {
        (self.header.pool, self.extension.class)
    }

    /// Returns the source MAC address of its frame: that of the leaf. Without a leaf it is that of the client or its
    /// router, or of the peer that forwarded the task.
    #[inline]
    pub fn sender(&self) -> Mac {
        ether::src(self.buf.bytes())
    }

    /// Returns the index, among all of the agent's workers, of the worker that it names.
    #[inline]
    pub fn worker_index(&self) -> usize {
        usize::from(self.worker_index)
    }

    /// Sets the index, among all of the agent's workers, of the worker that it names.
    #[inline]
    pub fn set_worker_index(&mut self, worker_index: u16) {
        self.worker_index = worker_index;
    }

    /// Parses a handed-over packet again, with the note of [`Work::pack`]. The arrival time is 0 again. Forwarded
    /// tasks are never handed over. `None` if it is no longer a task.
    #[inline]
    pub fn parse_again(buf: B, note: u32) -> Option<Self> {
        let frame = buf.bytes();
        let datagram = match is_v6(frame) {
            false => udp::parse(frame, true),
            true => udp::parse_v6(frame, true).map(without_addresses),
        };
        let datagram = datagram.ok()?;
        let header =
            Header::parse(frame.get(datagram.payload()..usize::from(datagram.end))?).ok()?;
        let packet = Self::new(buf, note as u8, datagram, header).ok()?;
        Some(Self { worker_index: (note >> 16) as u16, ..packet })
    }

    /// Turns the packet into its reply to the sender, with `len` bytes of answer written by `fill`.
    ///
    /// # Errors
    /// Returns the buffer if it is too small.
    #[inline]
    pub fn into_reply(
        self,
        fields: ReplyFields<'_>,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<B, B> {
        let code = if fields.left == 0 { Code::TaskDoneIdle } else { Code::TaskDone };
        self.into_response(code, fields, len, |payload, head| fill(&mut payload[head..]))
    }

    /// Same as [`Packet::into_reply`], with any code. `fill` gets the payload and the offset after the header.
    #[inline]
    fn into_response(
        self,
        code: Code,
        fields: ReplyFields<'_>,
        len: usize,
        fill: impl FnOnce(&mut [u8], usize),
    ) -> Result<B, B> {
        if is_v6(self.buf.bytes()) {
            return self.into_response_v6(code, fields, len, fill);
        }
        let Datagram { src, dst, .. } = self.datagram;
        let flow = self.response_flow(src, dst);
        self.write(&flow, code, fields, (len, fill))
    }

    /// Same as [`Packet::into_response`], for a task over IPv6. Not inlined, because IPv4 is the common case.
    #[inline(never)]
    fn into_response_v6(
        self,
        code: Code,
        fields: ReplyFields<'_>,
        len: usize,
        fill: impl FnOnce(&mut [u8], usize),
    ) -> Result<B, B> {
        let packet = &self.buf.bytes()[ether::LEN..];
        let flow = self.response_flow(ipv6::src(packet), ipv6::dst(packet));
        self.write(&flow, code, fields, (len, fill))
    }

    /// Returns the flow of the response to a task from `client` to `node`. The response to a forwarded task has the
    /// address of the node that the client sent it to.
    #[inline]
    fn response_flow<A: Address>(&self, client: A, node: A) -> Flow<A> {
        let (frame, datagram) = (self.buf.bytes(), self.datagram);
        // For a forwarded task: the MAC address of the client's side, and the address to which the client sent it.
        let first = self.forwarded.map(|forwarded| (forwarded.via.mac, forwarded.origin));
        let first = first.and_then(|(mac, origin)| Some((mac, A::from_ip(origin)?)));
        let next_hop = || self.direct.map_or_else(|| ether::src(frame), |route| route.mac);
        let (dst_mac, src) = first.unwrap_or_else(|| (next_hop(), node));
        Flow {
            src_mac: ether::dst(frame),
            dst_mac,
            src,
            dst: client,
            src_port: datagram.dst_port,
            dst_port: datagram.src_port,
        }
    }

    /// Writes a response over the task in its buffer, with `len` bytes after its header, written by `fill`. Returns the
    /// buffer as an error if it is too small.
    #[inline]
    fn write<A: Address>(
        mut self,
        flow: &Flow<A>,
        code: Code,
        fields: ReplyFields<'_>,
        (len, fill): (usize, impl FnOnce(&mut [u8], usize)),
    ) -> Result<B, B> {
        let ReplyFields { worker, left, service_ns, credential } = fields;
        let left = left.min(usize::from(u16::MAX)) as u16;
        let task = self.header;
        let authenticated = credential.is_some();
        let (src, dst) = (worker, task.src);
        let header = Header { code, authenticated, more: false, src, dst, qlen: left, ..task };
        let head = header.len();
        if !self.buf.resize(A::PAYLOAD + head + len) {
            return Err(self.buf);
        }
        let frame = self.buf.bytes_mut();
        let payload = &mut frame[A::PAYLOAD..];
        header.emit(payload);
        if header.extended {
            Extension { service_ns, ..self.extension }.emit(payload);
        }
        fill(payload, head);
        if let Some(credential) = credential {
            credential.sign(flow.src, flow.dst, payload);
        }
        A::emit(flow, frame, head + len);
        Ok(self.buf)
    }

    /// Turns the packet into a refusal, which carries the task's bytes back to its sender. `worker` is the named
    /// worker, and `tasks` are its unfinished tasks. Without a named worker they are `NO_MEMBER` and the pool's waiting
    /// tasks.
    ///
    /// # Errors
    /// Returns the buffer if it is too small, or has IP options: the bytes then begin elsewhere.
    pub fn into_refusal(
        self,
        worker: u16,
        tasks: u16,
        credential: Option<&Credential>,
    ) -> Result<B, B> {
        let payload_start = if is_v6(self.buf.bytes()) { udp::PAYLOAD_V6 } else { udp::PAYLOAD };
        if self.datagram.payload() != payload_start {
            return Err(self.buf);
        }
        let (len, service_ns) = (self.bytes().len(), self.extension.service_ns);
        let left = usize::from(tasks);
        let fields = ReplyFields { worker, left, service_ns, credential };
        let old_head = self.header.len();
        self.into_response(Code::TaskRefused, fields, len, |payload, head| {
            // Emitting the header does not write the proof's place, so the task's bytes are still there. A proof
            // moves them.
            payload.copy_within(old_head..old_head + len, head);
        })
    }

    /// Returns the client's bytes, after the task header.
    #[inline]
    fn bytes(&self) -> &[u8] {
        let start = self.datagram.payload() + self.header.len();
        &self.buf.bytes()[start..usize::from(self.datagram.end)]
    }
}

/// The task as a worker set gives it to workers: copied to another process, or handed over to a thread.
impl<B: Buf + Token> Work for Packet<B> {
    type Parcel = B;

    /// Returns the arrival time in nanoseconds.
    #[inline]
    fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Returns the ids and the class in the task's header, which a worker process gets.
    #[inline]
    fn ids(&self) -> TaskIds {
        let Extension { app, seq32, class, .. } = self.extension;
        TaskIds { app, seq: seq32, class }
    }

    /// Returns the client's bytes, after the task header.
    #[inline]
    fn payload(&self) -> &[u8] {
        self.bytes()
    }

    /// Converts the packet for a thread. The note holds the worker index in its upper half and the port in its lower
    /// half.
    #[inline]
    fn pack(self) -> (B, u32) {
        (self.buf, u32::from(self.worker_index) << 16 | u32::from(self.port))
    }

    /// Converts a packet back that a thread did not take.
    #[inline]
    fn unpack(buf: B, note: u32) -> Option<Self> {
        Self::parse_again(buf, note)
    }
}
