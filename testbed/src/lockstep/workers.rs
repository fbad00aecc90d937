//! Workers of a lockstep run, on one port. They receive tasks, and send replies written into the tasks' buffers. The
//! conductor, the code that emulates the scheduler's environment, decides when each reply is due.

use wedjat::io::{Buf, Burst, Port};
use wedjat::reason::DropReason;
use wedjat::stage::rewrite;
use wedjat::wire::task::{self, Extension, Header};

use super::LockstepError;
use crate::rack::{FrameKind, RackPort, Reply, Segment};

/// Name of this side in errors.
const SIDE: &str = "workers";

/// Packet of a task or a probe at its worker. The reply or answer reuses its buffer.
pub struct Packet<B> {
    buf: B,
    /// Server, and position of the datagram in the frame.
    segment: Segment,
    /// Header, as received.
    header: Header,
}

/// Workers on one port.
pub struct Workers<P: Port> {
    port: P,
    /// Addresses of the servers, with the layout of their workers.
    address: RackPort,
    /// Received packets; empty between calls.
    incoming: Burst<P::Buf>,
    /// Number of tasks whose worker the leaf estimated to be idle.
    idle_picks: u64,
    /// Received probes: the worker's place in the layout, and the packet.
    probes: Vec<(u16, Packet<P::Buf>)>,
}

impl<P: Port> Workers<P> {
    /// Creates workers at this address.
    pub fn new(port: P, address: RackPort) -> Self {
        Self { port, address, incoming: Burst::new(), idle_picks: 0, probes: Vec::new() }
    }

    /// Receives one burst and passes each task to `on_task`, with its sequence number and its worker's place
    /// (the worker's index in the layout). Stores probes, and answers ARP requests. Returns the number of
    /// packets received and of ARP replies sent, for the conductor's packet ledger.
    pub(super) fn receive(
        &mut self,
        now_ns: u64,
        mut on_task: impl FnMut(u32, u16, Packet<P::Buf>) -> Result<(), LockstepError>,
    ) -> Result<(u64, u64), LockstepError> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let count = self.port.rx_burst(&mut incoming) as u64;
        let mut replies = 0;
        for mut buf in incoming.drain(..) {
            let invalid = |reason| LockstepError::Packet { side: SIDE, now_ns, reason };
            match self.address.parse_frame(&mut buf).map_err(invalid)? {
                FrameKind::Probe(segment, header) => {
                    let place = self.address.layout.place(header.dst, segment.server);
                    let place = place.ok_or_else(|| invalid(DropReason::UnknownWorker))?;
                    self.probes.push((place, Packet { buf, segment, header }));
                }
                FrameKind::Task(segment, header) => {
                    let place = self.address.layout.place(header.dst, segment.server);
                    let place = place.ok_or_else(|| invalid(DropReason::UnknownWorker))?;
                    // In a task, this bit is set if the leaf chose an idle worker.
                    self.idle_picks += u64::from(header.qlen & u16::from(task::IDLE) != 0);
                    let number = Extension::parse(&buf.bytes()[segment.payload()..]).seq32;
                    on_task(number, place, Packet { buf, segment, header })?;
                }
                // These workers never register, so the leaf has nothing to acknowledge.
                FrameKind::Acknowledgement(..) => return Err(invalid(DropReason::NotAsked)),
                // `parse_frame` has turned an ARP request into its answer.
                FrameKind::NeighbourAnswer => {
                    send(&mut self.port, buf, SIDE, now_ns)?;
                    replies += 1;
                }
            }
        }
        self.incoming = incoming;
        Ok((count, replies))
    }

    /// Returns the number of tasks so far whose worker the leaf estimated to be idle. A policy that bounds each
    /// worker to one task must choose only such workers.
    #[must_use]
    pub fn idle_picks(&self) -> u64 {
        self.idle_picks
    }

    /// Turns a task's packet into a reply of the worker at `place`, which has `tasks_left` tasks.
    pub(super) fn write_reply(
        &self,
        packet: &mut Packet<P::Buf>,
        place: u16,
        tasks_left: u32,
        service_ns: u32,
    ) {
        let RackPort { mac, layout, .. } = self.address;
        let reply = Reply { worker: layout.id(place), left: tasks_left, service_ns };
        reply.write(packet.buf.bytes_mut(), packet.segment.at.into(), &packet.header, mac);
    }

    /// Returns the probes received since the last call.
    pub(super) fn take_probes(&mut self) -> Vec<(u16, Packet<P::Buf>)> {
        std::mem::take(&mut self.probes)
    }

    /// Turns a probe (a question for a worker's queue length) into its answer.
    pub(super) fn answer_probe(packet: &mut Packet<P::Buf>, tasks: u32) {
        let header = packet.header.answered_with(tasks.min(u32::from(u16::MAX)) as u16);
        rewrite::answer(packet.buf.bytes_mut(), packet.segment.at.into(), &header);
    }

    /// Sends a reply, or the answer to a probe.
    pub(super) fn send(&mut self, reply: Packet<P::Buf>, now_ns: u64) -> Result<(), LockstepError> {
        self.send_buffer(reply.buf, now_ns)
    }

    /// Sends a packet of the workers, for example a load report.
    pub(super) fn send_buffer(&mut self, buf: P::Buf, now_ns: u64) -> Result<(), LockstepError> {
        send(&mut self.port, buf, SIDE, now_ns)
    }

    /// Returns the port.
    pub fn into_port(self) -> P {
        self.port
    }
}

/// Sends one packet. Fails if the port has no room: the scheduler receives all packets in each turn, so a full queue is
/// a defect.
pub(super) fn send<P: Port>(
    port: &mut P,
    buf: P::Buf,
    side: &'static str,
    now_ns: u64,
) -> Result<(), LockstepError> {
    let mut burst = Burst::new();
    burst.push(buf);
    match port.tx_burst(&mut burst) {
        1 => Ok(()),
        _ => Err(LockstepError::Full { side, now_ns }),
    }
}
