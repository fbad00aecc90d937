//! What C programs see: the layouts are part of the interface and held by tests.

use std::net::Ipv4Addr;

use wedjat::embed;
use wedjat::io::Buf;

use crate::code::WEDJAT_NO_WORKER;

/// The device has found the packet's IPv4 and UDP checksums good; of a packet over IPv6, UDP's.
pub const WEDJAT_PACKET_VERIFIED: u32 = 1;
/// The packet goes on in further segments, which the library can't see; it will be dropped.
pub const WEDJAT_PACKET_SEGMENTED: u32 = 2;

/// Send the packet out of the verdict's port: it is rewritten.
pub const WEDJAT_FORWARD: u8 = 0;
/// Keep the packet at the verdict's place; wedjat_release() says when to go on.
pub const WEDJAT_HOLD: u8 = 1;
/// The packet has become an answer: send it out of the verdict's port, which is the one that it came from.
pub const WEDJAT_ANSWER: u8 = 2;
/// The packet is used up: free it.
pub const WEDJAT_CONSUMED: u8 = 3;
/// Free the packet; it is counted under the verdict's reason.
pub const WEDJAT_DROP: u8 = 4;

/// What wedjat_create() takes beside the configuration.
#[repr(C)]
pub struct Options {
    /// sizeof(struct wedjat_options)
    pub size: usize,
    /// Ticks a second of the clock that `now` is read from, such as rte_get_tsc_hz().
    pub ticks_hz: u64,
    /// MAC addresses of the ports in order, six bytes each, for ports to which the configuration gives none; or null.
    pub macs: *const u8,
    /// How many MAC addresses there are, at most 256.
    pub macs_count: usize,
    /// The NUMA node whose memory the scheduler is to have, plus one: that of the cores that poll. 0: where the calling thread runs.
    pub memory_node: u32,
    /// Zero.
    pub reserved: u32,
}

/// A packet of the caller's, from the Ethernet header on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its bytes; those of tasks and replies that go on are rewritten in place.
    pub data: *mut u8,
    /// How many they are.
    pub length: u32,
    /// WEDJAT_PACKET_... or 0.
    pub flags: u32,
}

/// What becomes of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// WEDJAT_FORWARD, WEDJAT_HOLD, WEDJAT_ANSWER, WEDJAT_CONSUMED or WEDJAT_DROP.
    pub action: u8,
    /// Forward, answer: the port to send out of.
    pub port: u8,
    /// Forward, hold: the worker that a task goes to, or that a reply comes from; else, and for a task that waits for a
    /// worker, WEDJAT_NO_WORKER.
    pub worker: u16,
    /// Drop: an enum wedjat_reason.
    pub reason: u16,
    /// Zero.
    pub reserved: u16,
    /// Hold: where to keep the packet, below wedjat_places(). From wedjat_release(): where it was kept.
    pub place: u32,
}

/// What to write into a packet that goes on, for those who let wedjat_decide() decide. The time to live becomes one
/// less besides, and the checksums follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The Ethernet header's destination; zero for a packet to be held, whose wedjat_release() writes it.
    pub dst_mac: [u8; 6],
    /// The Ethernet header's source.
    pub src_mac: [u8; 6],
    /// The IPv4 header's source, in network byte order.
    pub src: u32,
    /// The IPv4 header's destination, in network byte order.
    pub dst: u32,
    /// Offset of the UDP header; the task header starts eight bytes later.
    pub udp_offset: u16,
    /// The worker that a task goes to, for its header's `dst`, or that a reply comes from.
    pub worker: u16,
    /// 1 for a task: write `worker` and `idle` into its header's `dst` and `qlen`. 0 for a reply: leave its header.
    pub task: u8,
    /// 1 when the worker is believed idle.
    pub idle: u8,
    /// Zero.
    pub reserved: u16,
}

/// The same where a port has an IPv6 address, for those who let wedjat_decide_v6() decide.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteV6 {
    /// The Ethernet header's destination; zero for a packet to be held, whose wedjat_release() writes it.
    pub dst_mac: [u8; 6],
    /// The Ethernet header's source.
    pub src_mac: [u8; 6],
    /// The IPv6 header's source, as it stands in packets. Of a packet over IPv4 ::ffff:0:0/96 and its address.
    pub src: [u8; 16],
    /// The IPv6 header's destination, likewise.
    pub dst: [u8; 16],
    /// Offset of the UDP header; the task header starts eight bytes later.
    pub udp_offset: u16,
    /// The worker that a task goes to, for its header's `dst`, or that a reply comes from.
    pub worker: u16,
    /// 1 for a task: write `worker` and `idle` into its header's `dst` and `qlen`. 0 for a reply: leave its header.
    pub task: u8,
    /// 1 when the worker is believed idle.
    pub idle: u8,
    /// 1 for a packet over IPv6, 0 for one over IPv4.
    pub v6: u8,
    /// Zero.
    pub reserved: u8,
}

/// A task of a program with a header of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// What the program knows it by, as the address of its packet; wedjat_release_tasks() gives it back.
    pub id: u64,
    /// Task type, 0 when unknown.
    pub task_class: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// What becomes of such a task.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// WEDJAT_FORWARD, WEDJAT_HOLD, WEDJAT_ANSWER or WEDJAT_DROP.
    pub action: u8,
    /// Forward: 1 when the worker is believed idle.
    pub idle: u8,
    /// Forward: the worker; else WEDJAT_NO_WORKER.
    pub worker: u16,
    /// Drop: an enum wedjat_reason.
    pub reason: u16,
    /// Zero.
    pub reserved: u16,
}

/// A task that is held no longer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// What the program knows it by.
    pub id: u64,
    /// Forward, and to which worker; or drop.
    pub choice: Choice,
}

/// The report answers a task. Without it the worker says that it is there, and what it has.
pub const WEDJAT_REPORT_ANSWER: u32 = 1;

/// What a worker reports to a program with a header of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The worker.
    pub worker: u16,
    /// Tasks that it has left.
    pub queue: u16,
    /// For how long it did the task that this answers, in nanoseconds; 0 when nobody knows.
    pub service_ns: u32,
    /// WEDJAT_REPORT_... or 0.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// What is known of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkerState {
    /// The worker.
    pub worker: u16,
    /// Its pool.
    pub pool: u16,
    /// WEDJAT_WORKER_...
    pub presence: u8,
    /// 1 when it gets no new tasks until it is undrained.
    pub drained: u8,
    /// 1 when it gets no new tasks, and goes when it has answered those that it has.
    pub leaving: u8,
    /// Zero.
    pub reserved: u8,
    /// Reports of its that were taken, modulo 2^32.
    pub reports: u32,
    /// Zero.
    pub reserved_too: u32,
    /// Tasks sent to it and not answered.
    pub outstanding: u64,
    /// Tasks in its last report.
    pub load: f64,
    /// Tasks sent to it since.
    pub drift: f64,
    /// How fast it is, relative to others.
    pub speed: f64,
}

/// The worker is there because the configuration says so.
pub const WEDJAT_WORKER_CONFIGURED: u8 = 0;
/// The worker says itself that it is there.
pub const WEDJAT_WORKER_REGISTERED: u8 = 1;
/// The worker said so, and has fallen silent: it gets no tasks.
pub const WEDJAT_WORKER_SILENT: u8 = 2;
/// The worker's server, or the next hop to it, does not answer ARP: it gets no tasks.
pub const WEDJAT_WORKER_UNREACHABLE: u8 = 3;
/// The worker's server registers its workers, and the worker never registered: it gets no tasks.
pub const WEDJAT_WORKER_UNREGISTERED: u8 = 5;

/// What wedjat_worker_attach() takes.
#[repr(C)]
pub struct WorkerOptions {
    /// sizeof(struct wedjat_worker_options)
    pub size: usize,
    /// The worker to be, by its global id; -1 for any that is free.
    pub worker: i32,
    /// The pool to serve; -1 for any.
    pub pool: i32,
    /// The CPU to pin the calling thread to; -1 for none.
    pub cpu: i32,
    /// Zero.
    pub reserved: i32,
    /// How long to wait for the agent to let the worker in.
    pub patience_ns: u64,
    /// How long wedjat_worker_recv() spins before it sleeps.
    pub spin_ns: u64,
}

/// A task in the worker's hands, until it is answered, given up, or the next one is asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// What the client sent behind the task header.
    pub payload: *const u8,
    /// Its bytes.
    pub length: u32,
    /// Bytes that an answer may have.
    pub reply_max: u32,
    /// Application id; with `seq` the task's id.
    pub app: u32,
    /// Sequence number.
    pub seq: u32,
    /// Task type, 0 when unknown.
    pub task_class: u16,
    /// Zero.
    pub reserved: u16,
}

impl Buf for Packet {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the caller of the library vouches for data and length; calls.rs has refused null.
        unsafe { std::slice::from_raw_parts(self.data, self.length as usize) }
    }

    #[inline(always)]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; nobody else touches the packets during the call.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.length as usize) }
    }

    fn resize(&mut self, len: usize) -> bool {
        let fits = len <= self.length as usize;
        if fits {
            self.length = len as u32;
        }
        fits
    }

    #[inline(always)]
    fn is_segmented(&self) -> bool {
        self.flags & WEDJAT_PACKET_SEGMENTED != 0
    }

    #[inline(always)]
    fn checksums_verified(&self) -> bool {
        self.flags & WEDJAT_PACKET_VERIFIED != 0
    }
}

impl Verdict {
    const NONE: Self =
        Self { action: 0, port: 0, worker: WEDJAT_NO_WORKER, reason: 0, reserved: 0, place: 0 };

    /// Its bytes as words, which stay in registers: put together field by field in memory, a verdict could be copied to
    /// its place only when all these narrow stores are done, 3 to 5 ns a packet.
    #[inline(always)]
    pub fn words(self) -> [u32; 3] {
        let (worker, reason) = (self.worker.to_ne_bytes(), self.reason.to_ne_bytes());
        let reserved = self.reserved.to_ne_bytes();
        [
            u32::from_ne_bytes([self.action, self.port, worker[0], worker[1]]),
            u32::from_ne_bytes([reason[0], reason[1], reserved[0], reserved[1]]),
            self.place,
        ]
    }
}

impl From<embed::Verdict> for Verdict {
    #[inline(always)]
    fn from(verdict: embed::Verdict) -> Self {
        match verdict {
            embed::Verdict::Forward { port, worker } => {
                Self { action: WEDJAT_FORWARD, port, worker, ..Self::NONE }
            }
            embed::Verdict::Hold { place, worker } => {
                Self { action: WEDJAT_HOLD, worker, place, ..Self::NONE }
            }
            embed::Verdict::Answer { port } => Self { action: WEDJAT_ANSWER, port, ..Self::NONE },
            embed::Verdict::Consumed => Self { action: WEDJAT_CONSUMED, ..Self::NONE },
            embed::Verdict::Drop(reason) => {
                Self { action: WEDJAT_DROP, reason: reason as u16, ..Self::NONE }
            }
        }
    }
}

impl From<embed::Choice> for Choice {
    fn from(choice: embed::Choice) -> Self {
        let none = Self { action: 0, idle: 0, worker: WEDJAT_NO_WORKER, reason: 0, reserved: 0 };
        match choice {
            embed::Choice::Worker { worker, idle } => {
                Self { action: WEDJAT_FORWARD, idle: idle.into(), worker, ..none }
            }
            embed::Choice::Held => Self { action: WEDJAT_HOLD, ..none },
            embed::Choice::Refused => Self { action: WEDJAT_ANSWER, ..none },
            embed::Choice::Dropped(reason) => {
                Self { action: WEDJAT_DROP, reason: reason as u16, ..none }
            }
        }
    }
}

impl From<embed::WorkerState> for WorkerState {
    fn from(state: embed::WorkerState) -> Self {
        Self {
            worker: state.worker,
            pool: state.pool,
            presence: state.presence as u8,
            drained: state.is_drained.into(),
            leaving: state.is_leaving.into(),
            reserved: 0,
            reports: state.reports,
            reserved_too: 0,
            outstanding: state.outstanding,
            load: state.load,
            drift: state.drift,
            speed: state.speed,
        }
    }
}

impl From<embed::Rewrite> for Rewrite {
    fn from(rewrite: embed::Rewrite) -> Self {
        Self {
            dst_mac: rewrite.dst_mac.0,
            src_mac: rewrite.src_mac.0,
            src: rewrite.src.to_be(),
            dst: rewrite.dst.to_be(),
            udp_offset: rewrite.udp_at,
            worker: rewrite.worker,
            task: rewrite.task.into(),
            idle: rewrite.idle.into(),
            reserved: 0,
        }
    }
}

impl From<embed::Rewrite> for RewriteV6 {
    fn from(rewrite: embed::Rewrite) -> Self {
        let mapped = |ip: u32| Ipv4Addr::from_bits(ip).to_ipv6_mapped().octets();
        let (src, dst) = match rewrite.v6 {
            Some(embed::RewriteV6 { src, dst }) => (src.to_be_bytes(), dst.to_be_bytes()),
            None => (mapped(rewrite.src), mapped(rewrite.dst)),
        };
        Self {
            dst_mac: rewrite.dst_mac.0,
            src_mac: rewrite.src_mac.0,
            src,
            dst,
            udp_offset: rewrite.udp_at,
            worker: rewrite.worker,
            task: rewrite.task.into(),
            idle: rewrite.idle.into(),
            v6: rewrite.v6.is_some().into(),
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use wedjat::embed::Presence;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_interface() {
        assert_eq!((size_of::<Options>(), align_of::<Options>()), (40, 8));
        assert_eq!((size_of::<Packet>(), align_of::<Packet>()), (16, 8));
        assert_eq!((size_of::<Verdict>(), align_of::<Verdict>()), (12, 4));
        assert_eq!((size_of::<Rewrite>(), align_of::<Rewrite>()), (28, 4));
        assert_eq!((size_of::<RewriteV6>(), align_of::<RewriteV6>()), (52, 2));
        let v6 = (offset_of!(RewriteV6, src), offset_of!(RewriteV6, dst));
        assert_eq!((v6, offset_of!(RewriteV6, udp_offset)), ((12, 28), 44));
        assert_eq!((size_of::<WorkerOptions>(), align_of::<WorkerOptions>()), (40, 8));
        assert_eq!((size_of::<Task>(), offset_of!(Task, task_class)), (32, 24));
        assert_eq!((offset_of!(Packet, length), offset_of!(Packet, flags)), (8, 12));
        let verdict =
            (offset_of!(Verdict, port), offset_of!(Verdict, worker), offset_of!(Verdict, reason));
        assert_eq!((verdict, offset_of!(Verdict, place)), ((1, 2, 4), 8));
        assert_eq!(size_of::<[u32; 3]>(), size_of::<Verdict>());
        assert_eq!((size_of::<Description>(), size_of::<Choice>()), (16, 8));
        assert_eq!((size_of::<Released>(), size_of::<Report>()), (16, 16));
        assert_eq!((size_of::<WorkerState>(), offset_of!(WorkerState, outstanding)), (48, 16));
        let presence = [Presence::Configured, Presence::Registered, Presence::Silent];
        assert_eq!(
            [WEDJAT_WORKER_CONFIGURED, WEDJAT_WORKER_REGISTERED, WEDJAT_WORKER_SILENT],
            presence.map(|presence| presence as u8)
        );
        assert_eq!(WEDJAT_WORKER_UNREACHABLE, Presence::Unreachable as u8);
        assert_eq!(WEDJAT_WORKER_UNREGISTERED, Presence::Unregistered as u8);
        let rewrite =
            (offset_of!(Rewrite, src), offset_of!(Rewrite, dst), offset_of!(Rewrite, udp_offset));
        assert_eq!((rewrite, offset_of!(Rewrite, task)), ((12, 16, 20), 24));
    }
}
