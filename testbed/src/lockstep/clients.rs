//! The clients of a run in lockstep: they send a task's packet when its time has come, and take answers.

use std::net::IpAddr;

use wedjat::io::{Buf, Burst, Pool, Port};
use wedjat_pktgen::host::{Answer, Heard, Host};
use wedjat_pktgen::target::Target;
use wedjat_pktgen::template::{Task, Template};

use super::LockstepError;

/// How errors name this side.
const SIDE: &str = "clients";
/// The application that all tasks are of.
const APP: u32 = 1;

/// Clients on one port.
pub struct Clients<P: Port, L> {
    port: P,
    pool: L,
    host: Host,
    template: Template,
    incoming: Burst<P::Buf>,
    /// The scheduler's address.
    dst: IpAddr,
}

impl<P: Port, L: Pool<Buf = P::Buf>> Clients<P, L> {
    /// Clients that send to this target.
    #[must_use]
    pub fn new(port: P, pool: L, target: &Target) -> Self {
        let template = Template::new(&target.frame(APP));
        let (host, incoming, dst) = (target.host(), Burst::new(), target.addresses.dst());
        Self { port, pool, host, template, incoming, dst }
    }

    /// They know the scheduler's MAC address.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.host.next_hop_mac().is_some()
    }

    /// The address that they send to.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.dst
    }

    /// Asks for it.
    pub(super) fn ask(&mut self, now_ns: u64) -> Result<(), LockstepError> {
        let question = self.pool.take().and_then(|mut buf| self.host.ask(&mut buf).then_some(buf));
        self.send_buffer(question.ok_or(LockstepError::Buffers)?, now_ns)
    }

    /// Sends a task.
    pub(super) fn send(&mut self, task: Task, now_ns: u64) -> Result<(), LockstepError> {
        let mut buf = self.buffer(self.template.frame_len())?;
        self.template.write(buf.bytes_mut(), task);
        self.send_buffer(buf, now_ns)
    }

    fn buffer(&mut self, len: usize) -> Result<P::Buf, LockstepError> {
        let buf = self.pool.take().and_then(|mut buf| buf.resize(len).then_some(buf));
        buf.ok_or(LockstepError::Buffers)
    }

    fn send_buffer(&mut self, buf: P::Buf, now_ns: u64) -> Result<(), LockstepError> {
        super::workers::send(&mut self.port, buf, SIDE, now_ns)
    }

    /// Takes what has come: answers go to `answered`, with the task's number. Returns how many packets came, and how many
    /// were sent in reply.
    pub(super) fn receive(
        &mut self,
        now_ns: u64,
        mut answered: impl FnMut(u32, &Answer) -> Result<(), LockstepError>,
    ) -> Result<(u64, u64), LockstepError> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let count = self.port.rx_burst(&mut incoming) as u64;
        let mut replies = 0;
        for mut buf in incoming.drain(..) {
            let verified = buf.checksums_verified();
            match self.host.hear(&mut buf, verified) {
                Heard::Answer(answer) => {
                    let number = answer.id.map_or(u32::MAX, |(_, number)| number);
                    answered(number, &answer)?;
                }
                Heard::NeighbourAnswer => {
                    self.send_buffer(buf, now_ns)?;
                    replies += 1;
                }
                Heard::NextHop(mac) => self.template.set_next_hop(mac),
                Heard::Nothing(reason) => {
                    return Err(LockstepError::Packet { side: SIDE, now_ns, reason });
                }
            }
        }
        self.incoming = incoming;
        Ok((count, replies))
    }

    /// Gives back the port.
    pub fn into_port(self) -> P {
        self.port
    }
}
