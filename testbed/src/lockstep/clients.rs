//! Clients of a lockstep run: send each task's packet at its time, and receive the answers.

use std::net::IpAddr;

use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat_pktgen::host::{Answer, FrameKind, Host};
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::{Task, Template};

use super::LockstepError;

/// Name of this side in errors.
const SIDE: &str = "clients";
/// Application number of all tasks.
const APP: u32 = 1;

/// Clients on one port.
pub struct Clients<P: Port, L> {
    port: P,
    /// Source of packet buffers.
    pool: L,
    /// Parser of received packets, which also writes the answers to ARP requests.
    host: Host,
    /// Packet of a task, without the task's own values.
    template: Template,
    /// Received packets; empty between calls.
    incoming: Burst<P::Buf>,
    /// The scheduler's address.
    dst: IpAddr,
}

impl<P: Port, L: Pool<Buf = P::Buf>> Clients<P, L> {
    /// Creates clients that send to `target`.
    #[must_use]
    pub fn new(port: P, pool: L, target: &Target) -> Self {
        let template = Template::new(&target.frame(APP));
        let (host, incoming, dst) = (target.host(), Burst::new(), target.addresses.dst());
        Self { port, pool, host, template, incoming, dst }
    }

    /// Returns true if the clients have the scheduler's MAC address.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.host.next_hop_mac().is_some()
    }

    /// Returns the address that the clients send to.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.dst
    }

    /// Requests the scheduler's MAC address.
    pub(super) fn request_mac(&mut self, now_ns: u64) -> Result<(), LockstepError> {
        let request = self
            .pool
            .take()
            .and_then(|mut buf| self.host.write_mac_request(&mut buf).then_some(buf));
        self.send_buffer(request.ok_or(LockstepError::Buffers)?, now_ns)
    }

    /// Sends a task.
    pub(super) fn send(&mut self, task: Task, now_ns: u64) -> Result<(), LockstepError> {
        let mut buf = self.buffer(self.template.frame_len())?;
        self.template.write(buf.bytes_mut(), task);
        self.send_buffer(buf, now_ns)
    }

    /// Takes a buffer of this length from the pool.
    fn buffer(&mut self, len: usize) -> Result<P::Buf, LockstepError> {
        let buf = self.pool.take().and_then(|mut buf| buf.resize(len).then_some(buf));
        buf.ok_or(LockstepError::Buffers)
    }

    /// Sends one packet.
    fn send_buffer(&mut self, buf: P::Buf, now_ns: u64) -> Result<(), LockstepError> {
        super::workers::send(&mut self.port, buf, SIDE, now_ns)
    }

    /// Receives one burst and passes each answer to `on_answer`, with the task's number (`u32::MAX` if it has
    /// none). Returns the number of packets received, and the number of ARP replies sent.
    pub(super) fn receive(
        &mut self,
        now_ns: u64,
        mut on_answer: impl FnMut(u32, &Answer) -> Result<(), LockstepError>,
    ) -> Result<(u64, u64), LockstepError> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let count = self.port.rx_burst(&mut incoming) as u64;
        let mut replies = 0;
        for mut buf in incoming.drain(..) {
            let verified = buf.checksums_verified();
            match self.host.receive(&mut buf, verified) {
                FrameKind::Answer(answer) => {
                    // `id`: application and number of the task.
                    let number = answer.id.map_or(u32::MAX, |(_, number)| number);
                    on_answer(number, &answer)?;
                }
                FrameKind::NeighbourAnswer => {
                    // `Host::receive` has turned a request into its answer.
                    self.send_buffer(buf, now_ns)?;
                    replies += 1;
                }
                // The answer to the clients' own ARP request.
                FrameKind::NextHop(mac) => self.template.set_next_hop(mac),
                FrameKind::Nothing(reason) => {
                    return Err(LockstepError::Packet { side: SIDE, now_ns, reason });
                }
            }
        }
        self.incoming = incoming;
        Ok((count, replies))
    }

    /// Returns the port.
    pub fn into_port(self) -> P {
        self.port
    }
}
