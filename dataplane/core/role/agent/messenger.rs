//! Sending of an agent's messages to its leaves: registrations, queue reports, probe answers and completion reports.
//!
//! Under *direct return* a worker's reply goes straight to the client. The leaf learns of it by a *completion report*,
//! which has one or several completions of one pool.

use std::net::IpAddr;

use super::direct::CompletionReport;
use super::next_hop::NextHop;
use super::packet::Packet;
use super::register::{self, Registrar};
use super::responder::Responder;
use super::worker_set::Completion as TaskCompletion;
use crate::io::{Pool, Port, Token};
use crate::node::explain::Fate;
use crate::reason::DropReason;
use crate::stage::PortAddress;
use crate::state::Counter;
use crate::wire::address::Address;
use crate::wire::completion::{Completion, ENTRY_LEN};
use crate::wire::ether::Mac;
use crate::wire::task::{Code, Header, NO_MEMBER};
use crate::wire::udp::Flow;

/// Sender of an agent's replies and of its messages to leaves. Borrows the agent's parts except the worker sets, which
/// call it for each completed task.
pub struct Messenger<'a, P: Port, A> {
    /// Responder.
    pub responder: &'a mut Responder<P>,
    /// Buffer pool.
    pub pool: &'a mut A,
    /// Registrars, which have the leaves' addresses.
    pub registrars: &'a [Registrar],
    /// Addresses of the ports.
    pub addresses: &'a [PortAddress],
    /// UDP port of tasks.
    pub udp_port: u16,
}

impl<P, A> Messenger<'_, P, A>
where
    P: Port<Buf: Token>,
    A: Pool<Buf = P::Buf>,
{
    /// Sends the reply of a completed task, or counts its drop. First sends the waiting completion report if the task's
    /// completion has no room in it.
    #[inline]
    pub fn finish(&mut self, done: TaskCompletion<'_, Packet<P::Buf>>) {
        self.make_room(&done.task);
        self.responder.finish(done);
    }

    /// Sends the waiting completion report to the task's leaf if the task's completion has no room in it: it is full,
    /// or belongs to another pool.
    #[inline]
    pub fn make_room(&mut self, task: &Packet<P::Buf>) {
        let (pool, _) = task.addressed();
        if let Some(route) = task.direct_route()
            && !self.responder.completions.has_room(route.leaf, pool)
        {
            self.responder.completions.hurry(route.leaf);
            self.send_completions(self.responder.now);
        }
    }

    /// Subtracts a task that was not accepted from the tasks of the worker that it names.
    #[cold]
    pub fn discount(&mut self, task: &Packet<P::Buf>) {
        let (_, worker) = task.addressed();
        if worker != NO_MEMBER {
            self.responder.count(worker, -1); // counted on its arrival
        }
    }

    /// Sends a task that was not accepted back to its sender, if the queue is full. `queue` is its length; `None` if
    /// the pool drops tasks instead. Drops the task for any other reason. Returns its outcome.
    #[cold]
    pub fn refuse(
        &mut self,
        task: Packet<P::Buf>,
        reason: DropReason,
        queue: Option<usize>,
    ) -> Fate {
        if let (DropReason::QueueFull, Some(waiting)) = (reason, queue) {
            self.make_room(&task);
            return self.responder.refuse(task, waiting);
        }
        self.responder.out.counters.drop(reason, 1);
        Fate::Dropped(reason)
    }

    /// Sends the completion reports that are due at `now` ticks.
    #[inline]
    pub fn send_completions(&mut self, now: u64) {
        while let Some(report) = self.responder.completions.next_report(now) {
            let CompletionReport { leaf, pool, seq, entries } = report;
            let count = entries.len() as u16;
            let header = Header::completions(pool, entries[0].worker, count, seq);
            if self.send(leaf, header, &entries) {
                self.responder.out.counters.add(Counter::CompletionReports, 1);
            }
        }
    }

    /// Sends a worker's message to the leaf at this index, signed if its pool has a key. `entries` are those of a
    /// completion report, otherwise empty. Returns false if the leaf's MAC address is unknown, or if leaf and port have
    /// different address families.
    pub fn send(&mut self, leaf: usize, header: Header, entries: &[Completion]) -> bool {
        let NextHop { port, address: to, mac: Some(mac), .. } = self.registrars[leaf].hop else {
            return false;
        };
        let address = &self.addresses[port];
        match (address.v6, to) {
            (Some(own), IpAddr::V6(to)) => {
                self.send_to((leaf, mac), (own.ip, to.to_bits()), header, entries);
            }
            (None, IpAddr::V4(to)) => {
                self.send_to((leaf, mac), (address.ip, to.to_bits()), header, entries);
            }
            _ => return false,
        }
        true
    }

    /// Same as [`Messenger::send`], with the leaf's MAC address and both IP addresses.
    fn send_to<I: Address>(
        &mut self,
        (leaf, dst_mac): (usize, Mac),
        (src, dst): (I, I),
        header: Header,
        entries: &[Completion],
    ) {
        let port = self.registrars[leaf].hop.port;
        let (src_mac, udp_port) = (self.addresses[port].mac, self.udp_port);
        let flow = Flow { src_mac, dst_mac, src, dst, src_port: udp_port, dst_port: udp_port };
        let Responder { out, signer, .. } = &mut *self.responder;
        let credential = signer.as_ref().and_then(|signer| signer.of(header.src));
        let header = Header { authenticated: credential.is_some(), ..header };
        let is_registration = matches!(header.code, Code::WorkerId | Code::KeepAlive);
        let len = I::PAYLOAD + header.len() + entries.len() * ENTRY_LEN;
        out.make(self.pool, port, len, |frame| {
            register::emit(&header, &flow, frame, |payload| {
                Completion::emit_all(entries, &header, payload);
                match credential {
                    Some(credential) if is_registration => {
                        credential.sign_registration((leaf, header.seq), src, dst, payload);
                    }
                    Some(credential) => credential.sign(src, dst, payload),
                    None => {}
                }
            });
        });
    }
}
