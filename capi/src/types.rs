//! Types of the C interface. Their layouts are part of the interface and checked by tests.

use std::ffi::c_void;
use std::net::Ipv4Addr;

use wedjat::embed;
use wedjat::io::Buf;

use crate::code::WEDJAT_NO_WORKER;

/// The device has verified the packet's IPv4 and UDP checksums; over IPv6, the UDP checksum.
pub const WEDJAT_PACKET_VERIFIED: u32 = 1;
/// The packet has further segments, which the library cannot access. It will be dropped.
pub const WEDJAT_PACKET_SEGMENTED: u32 = 2;

/// Send the packet out of the verdict's port. wedjat_process() and wedjat_release() have rewritten it.
pub const WEDJAT_FORWARD: u8 = 0;
/// Keep the packet at the verdict's place until wedjat_release() returns that place.
pub const WEDJAT_HOLD: u8 = 1;
/// Send the packet out of the verdict's port, which is the receiving one. It has become an answer.
pub const WEDJAT_ANSWER: u8 = 2;
/// Free the packet. It is consumed.
pub const WEDJAT_CONSUMED: u8 = 3;
/// Free the packet. It is counted under the verdict's reason.
pub const WEDJAT_DROP: u8 = 4;

/// Options of wedjat_create() besides the configuration.
#[repr(C)]
pub struct Options {
    /// sizeof(struct wedjat_options). Identifies the shorter options of older programs.
    pub size: usize,
    /// Ticks per second of the clock that `now` is read from, such as rte_get_tsc_hz().
    pub ticks_hz: u64,
    /// MAC addresses of the ports in order, six bytes each; or null. Used for ports without a configured one.
    pub macs: *const u8,
    /// Number of MAC addresses, at most 256.
    pub macs_count: usize,
    /// NUMA node for the scheduler's memory, plus one: the node of the polling cores. 0: the node of the
    /// calling thread.
    pub memory_node: u32,
    /// Zero.
    pub reserved: u32,
}

/// Packet of the caller, from the Ethernet header on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its bytes. wedjat_process() rewrites tasks and replies that proceed in place.
    pub data: *mut u8,
    /// Number of bytes.
    pub length: u32,
    /// WEDJAT_PACKET_... or 0.
    pub flags: u32,
}

/// Verdict on a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// WEDJAT_FORWARD, WEDJAT_HOLD, WEDJAT_ANSWER, WEDJAT_CONSUMED or WEDJAT_DROP.
    pub action: u8,
    /// Forward, answer: port to send it out of.
    pub port: u8,
    /// Forward, hold: worker that a task goes to, or that a reply comes from. Otherwise, and for a task that
    /// waits for a worker, WEDJAT_NO_WORKER.
    pub worker: u16,
    /// Drop: an enum wedjat_reason.
    pub reason: u16,
    /// Zero.
    pub reserved: u16,
    /// Hold: place to keep the packet at, below wedjat_places(). From wedjat_release(): place of the released
    /// packet.
    pub place: u32,
}

/// Changes to write into a packet that proceeds, from wedjat_decide(). In addition, decrement the time to
/// live and update the checksums.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Destination in the Ethernet header. Zero for a held packet; wedjat_release() writes it.
    pub dst_mac: [u8; 6],
    /// Source in the Ethernet header.
    pub src_mac: [u8; 6],
    /// Source in the IPv4 header, in network byte order.
    pub src: u32,
    /// Destination in the IPv4 header, in network byte order.
    pub dst: u32,
    /// Offset of the UDP header. The task header starts eight bytes later.
    pub udp_offset: u16,
    /// Worker that a task goes to, for `dst` of its header, or that a reply comes from.
    pub worker: u16,
    /// 1 for a task: write `worker` and `idle` into `dst` and `qlen` of its header. 0 for a reply: keep its
    /// header.
    pub task: u8,
    /// 1 if the worker is estimated to be idle.
    pub idle: u8,
    /// Zero.
    pub reserved: u16,
}

/// Changes from wedjat_decide_v6(), with room for IPv6 addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewriteV6 {
    /// Destination in the Ethernet header. Zero for a held packet; wedjat_release() writes it.
    pub dst_mac: [u8; 6],
    /// Source in the Ethernet header.
    pub src_mac: [u8; 6],
    /// Source in the IPv6 header, in network byte order. Over IPv4: the address, mapped into ::ffff:0:0/96.
    pub src: [u8; 16],
    /// Destination in the IPv6 header, in the same form.
    pub dst: [u8; 16],
    /// Offset of the UDP header. The task header starts eight bytes later.
    pub udp_offset: u16,
    /// Worker that a task goes to, for `dst` of its header, or that a reply comes from.
    pub worker: u16,
    /// 1 for a task: write `worker` and `idle` into `dst` and `qlen` of its header. 0 for a reply: keep its
    /// header.
    pub task: u8,
    /// 1 if the worker is estimated to be idle.
    pub idle: u8,
    /// 1 for a packet over IPv6, 0 for one over IPv4.
    pub v6: u8,
    /// Zero.
    pub reserved: u8,
}

/// Task for wedjat_pick(), from a program with its own header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Number by which the program identifies it, such as the address of its packet; wedjat_release_tasks()
    /// returns it.
    pub id: u64,
    /// Task type; 0 if unknown.
    pub task_class: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// Outcome of a task from wedjat_pick() or wedjat_release_tasks().
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// WEDJAT_FORWARD, WEDJAT_HOLD, WEDJAT_DROP, or WEDJAT_ANSWER: the pool's queue is full, so inform the client.
    pub action: u8,
    /// Forward: 1 if the worker is estimated to be idle.
    pub idle: u8,
    /// Forward: the worker; otherwise WEDJAT_NO_WORKER.
    pub worker: u16,
    /// Drop: an enum wedjat_reason.
    pub reason: u16,
    /// Zero.
    pub reserved: u16,
}

/// Task that is no longer held.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedTask {
    /// Number by which the program identifies it.
    pub id: u64,
    /// Forward with the worker, or drop.
    pub choice: Choice,
}

/// The report answers a task. Without this flag it is a sign of life with the current queue.
pub const WEDJAT_REPORT_ANSWER: u32 = 1;

/// Report of a worker, from a program with its own header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Id of the worker.
    pub worker: u16,
    /// Number of tasks left at the worker.
    pub queue: u16,
    /// Service time of the answered task in nanoseconds; 0 if unknown.
    pub service_ns: u32,
    /// WEDJAT_REPORT_... or 0.
    pub flags: u32,
    /// Task type of the answered task; 0 if unknown.
    pub task_class: u16,
    /// Zero.
    pub reserved: u16,
}

/// State of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkerState {
    /// Id of the worker.
    pub worker: u16,
    /// Id of its pool.
    pub pool: u16,
    /// WEDJAT_WORKER_...
    pub presence: u8,
    /// 1 if it gets no new tasks until it is undrained.
    pub drained: u8,
    /// 1 if it gets no new tasks, and departs after it has answered its tasks.
    pub leaving: u8,
    /// Zero.
    pub reserved: u8,
    /// Number of accepted reports, modulo 2^32.
    pub reports: u32,
    /// Zero.
    pub reserved_too: u32,
    /// Tasks sent to it and not answered.
    pub outstanding: u64,
    /// Tasks in its last load report.
    pub load: f64,
    /// Tasks sent to it since that report.
    pub drift: f64,
    /// Speed relative to other workers.
    pub speed: f64,
}

/// The configuration names the worker.
pub const WEDJAT_WORKER_CONFIGURED: u8 = 0;
/// The worker has registered itself.
pub const WEDJAT_WORKER_REGISTERED: u8 = 1;
/// The worker had registered and is silent: it gets no tasks.
pub const WEDJAT_WORKER_SILENT: u8 = 2;
/// The worker's server, or the next hop to it, does not answer ARP or neighbour discovery: the worker gets no tasks.
pub const WEDJAT_WORKER_UNREACHABLE: u8 = 3;
/// The worker's server registers its workers, and this one has not registered: it gets no tasks. 4 is not used.
pub const WEDJAT_WORKER_UNREGISTERED: u8 = 5;

/// Options of wedjat_worker_attach().
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WorkerOptions {
    /// sizeof(struct wedjat_worker_options)
    pub size: usize,
    /// Global id of the worker to be; -1 for any free one.
    pub worker: i32,
    /// Id of the pool to serve; -1 for any.
    pub pool: i32,
    /// CPU to pin the calling thread to; -1 for none.
    pub cpu: i32,
    /// Zero.
    pub reserved: i32,
    /// Longest wait for the agent's grant, in nanoseconds.
    pub patience_ns: u64,
    /// Time that wedjat_worker_recv() spins before it sleeps, in nanoseconds.
    pub spin_ns: u64,
}

/// Parameters of wedjat_worker_serve().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    /// sizeof(struct wedjat_sharing)
    pub size: usize,
    /// Time that a task runs before the next one gets the core, in nanoseconds; 1000 to 1000000000.
    pub quantum_ns: u64,
    /// Bytes of each task's stack.
    pub stack: usize,
    /// Maximum number of tasks in progress, at least 1.
    pub slots: u32,
    /// 0: yield points read the clock. 1: a timer signal ends quanta.
    pub timer: u32,
}

/// The core on which a handler runs. For wedjat_yield_point() and the functions of critical sections only.
#[repr(C)]
#[derive(Debug)]
pub struct SharedCpu {
    /// Calls of wedjat_yield_point() until it checks for the end of the quantum. The call, which is inline, counts down
    /// here, so that most calls do not enter the library.
    pub calls_left: *mut u32,
    /// Private.
    pub state: *const c_void,
}

/// Task held by the worker, valid until its answer, its drop, or the next request for a task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Client's bytes after the task header.
    pub payload: *const u8,
    /// Number of these bytes.
    pub length: u32,
    /// Maximum number of bytes of an answer.
    pub reply_max: u32,
    /// Application id; with `seq` the task's id.
    pub app: u32,
    /// Sequence number.
    pub seq: u32,
    /// Task type; 0 if unknown.
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
        // SAFETY: as in `bytes`; no other thread touches the packets during the call.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.length as usize) }
    }

    // A packet may shrink only: the memory behind it is unknown.
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
    /// Values of the fields that an action does not use.
    const NONE: Self =
        Self { action: 0, port: 0, worker: WEDJAT_NO_WORKER, reason: 0, reserved: 0, place: 0 };

    /// Returns the verdict's bytes as three words, which stay in registers. With the fields in memory, the copy to
    /// the caller's array would load words from several narrower stores, and would stall for 3 to 5 ns a packet.
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

    use wedjat::embed::MemberPresence;

    use super::*;

    // promise: library.3
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
        assert_eq!((size_of::<Sharing>(), offset_of!(Sharing, slots)), (32, 24));
        assert_eq!((size_of::<SharedCpu>(), offset_of!(SharedCpu, state)), (16, 8));
        assert_eq!((offset_of!(Packet, length), offset_of!(Packet, flags)), (8, 12));
        let verdict =
            (offset_of!(Verdict, port), offset_of!(Verdict, worker), offset_of!(Verdict, reason));
        assert_eq!((verdict, offset_of!(Verdict, place)), ((1, 2, 4), 8));
        assert_eq!(size_of::<[u32; 3]>(), size_of::<Verdict>());
        assert_eq!((size_of::<Description>(), size_of::<Choice>()), (16, 8));
        assert_eq!((size_of::<ReleasedTask>(), size_of::<Report>()), (16, 16));
        assert_eq!((offset_of!(Report, flags), offset_of!(Report, task_class)), (8, 12));
        assert_eq!((size_of::<WorkerState>(), offset_of!(WorkerState, outstanding)), (48, 16));
        let presence =
            [MemberPresence::Configured, MemberPresence::Registered, MemberPresence::Silent];
        assert_eq!(
            [WEDJAT_WORKER_CONFIGURED, WEDJAT_WORKER_REGISTERED, WEDJAT_WORKER_SILENT],
            presence.map(|presence| presence as u8)
        );
        assert_eq!(WEDJAT_WORKER_UNREACHABLE, MemberPresence::Unreachable as u8);
        assert_eq!(WEDJAT_WORKER_UNREGISTERED, MemberPresence::Unregistered as u8);
        let rewrite =
            (offset_of!(Rewrite, src), offset_of!(Rewrite, dst), offset_of!(Rewrite, udp_offset));
        assert_eq!((rewrite, offset_of!(Rewrite, task)), ((12, 16, 20), 24));
    }
}
