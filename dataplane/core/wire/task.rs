//! Task header: 11 bytes at the start of the UDP payload, as in the Horus switch release. An optional
//! extension of 16 bytes follows. If bit 6 is set, 16 bytes of [`super::auth`] follow both. All fields are
//! big-endian; docs/reference/protocol.md has examples.
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u8 | kind | bits 0-4 [`Code`], bit 5 the extension follows, bit 6 sequence and tag follow (never on tasks), bit 7 further packets of this task follow |
//! | 1 | u16 | pool | worker pool |
//! | 3 | u16 | src | client: its own id, usually 0; scheduler id on messages of a scheduler; worker id on replies, registrations, keep-alives, queue reports, probe answers, completion reports; sending node on heartbeats, requests and parameters of peers |
//! | 5 | u16 | dst | task: chosen member or [`NO_MEMBER`]; the client's own id on replies; the worker's id on acknowledgements and probes; receiving node on heartbeats, requests and parameters of peers; otherwise [`NO_MEMBER`] |
//! | 7 | u16 | qlen | task: [`IDLE`] and [`FULL`]; completion report: number of entries; reply, registration, keep-alive, queue report or probe answer: the worker's tasks; refusal: the tasks at its sender; acknowledgement: timeout, ms; otherwise 0 |
//! | 9 | u16 | seq | low 16 bits of the task's sequence number; number of a registration or a probe, which its answer repeats; number of any other message; 0 on a spine's heartbeat |
//! | 11 | u32 | app | application id |
//! | 15 | u32 | seq32 | full sequence number |
//! | 19 | u32 | service_ns | reply: measured processing time, saturating; signal of a leaf: average load of a worker, 16.16 |
//! | 23 | u16 | class | task type, 0 = unknown; signal of a leaf: live workers |
//! | 25 | u16 | reserved | 0 on sending, ignored on receipt |

use super::checksum::ChecksumDelta;
use super::{put_u16, put_u32, u16_at, u32_at};
use crate::limits::WORKER_ID_MAX;
use crate::reason::DropReason;

/// Bytes of the header.
pub const LEN: usize = 11;
/// Bytes of the extension.
pub const EXTENSION_LEN: usize = 16;
/// Bytes of sequence and tag, announced by an authenticated header ([`super::auth`]).
pub const PROOF_LEN: usize = 16;
/// `dst` of a task without a chosen member.
pub const NO_MEMBER: u16 = WORKER_ID_MAX + 1;
/// Default UDP port of tasks.
pub const UDP_PORT: u16 = 1234;

/// Bits of `kind` with the [`Code`].
pub const CODE_BITS: u8 = 0x1F;
/// Bit of `kind`: the extension follows.
pub const EXTENSION_BIT: u8 = 1 << 5;
/// Bit of `kind`: sequence and tag follow, after the extension if present.
pub const AUTHENTICATION_BIT: u8 = 1 << 6;
/// Bit of `kind`: further packets of this task follow.
const MORE_BIT: u8 = 1 << 7;

/// Bit of a task's `qlen`: the member was chosen from the idle list. Only for observation.
pub const IDLE: u8 = 1;
/// Bit of a task's `qlen`, only in pools with direct return: the task fills its member up to the policy's bound. Tasks
/// may then wait at the leaf, so the server reports its next completion at once.
pub const FULL: u8 = 2;

/// Kind of a packet. A *rack* is a leaf with its workers, the member of a spine's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// A task, or its first packet.
    NewTask = 0,
    /// A reply of a worker that has more tasks.
    TaskDone = 2,
    /// A reply of a worker that is now idle.
    TaskDoneIdle = 3,
    /// A rack has an idle worker.
    IdleAdd = 6,
    /// A rack's average queue length.
    LoadUpdate = 7,
    /// A rack has no idle worker left.
    IdleRemove = 10,
    /// A worker is alive.
    KeepAlive = 11,
    /// A worker registers.
    WorkerId = 12,
    /// Answer to a registration.
    WorkerIdAck = 13,
    /// A further packet of a task.
    TaskContinuation = 16,
    /// A task returned undone to its client; not in the switch release.
    TaskRefused = 17,
    /// A worker's load report to one of its leaves; not in the switch release.
    QueueReport = 18,
    /// A leaf's probe of a worker's queue; not in the switch release.
    QueueProbe = 19,
    /// Answer to a probe; not in the switch release.
    ProbeAnswer = 20,
    /// Heartbeat of a node in a rack without a leaf ([`super::peer`]); this and the following are not in the
    /// switch release.
    Heartbeat = 21,
    /// A node's request to a peer for a task.
    StealRequest = 22,
    /// A task forwarded to a peer, with [`super::peer::ForwardingTrailer`].
    PassedTask = 23,
    /// A part of the parameters of a node's critic, its learned estimate of the rack's future load. Peers average them.
    Parameters = 24,
    /// A server's report of tasks whose replies went straight to the clients ([`super::completion`]); not in the
    /// switch release.
    Completions = 25,
}

impl Code {
    /// Returns the code with this number, if assigned.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::NewTask,
            2 => Self::TaskDone,
            3 => Self::TaskDoneIdle,
            6 => Self::IdleAdd,
            7 => Self::LoadUpdate,
            10 => Self::IdleRemove,
            11 => Self::KeepAlive,
            12 => Self::WorkerId,
            13 => Self::WorkerIdAck,
            16 => Self::TaskContinuation,
            17 => Self::TaskRefused,
            18 => Self::QueueReport,
            19 => Self::QueueProbe,
            20 => Self::ProbeAnswer,
            21 => Self::Heartbeat,
            22 => Self::StealRequest,
            23 => Self::PassedTask,
            24 => Self::Parameters,
            25 => Self::Completions,
            _ => return None,
        })
    }

    /// Returns true for a reply to a client, including refusals.
    #[inline]
    #[must_use]
    pub const fn is_reply(self) -> bool {
        matches!(self, Self::TaskDone | Self::TaskDoneIdle | Self::TaskRefused)
    }

    /// Returns true for a task or a part of one.
    #[inline]
    #[must_use]
    pub const fn is_task(self) -> bool {
        matches!(self, Self::NewTask | Self::TaskContinuation)
    }

    /// Returns true for a task, a part of one, or a forwarded one. These are never signed.
    #[inline]
    #[must_use]
    pub const fn carries_task(self) -> bool {
        self.is_task() || matches!(self, Self::PassedTask)
    }

    /// Returns true for messages between peers in a rack without a leaf.
    #[inline]
    #[must_use]
    pub const fn is_of_peers(self) -> bool {
        matches!(self, Self::Heartbeat | Self::StealRequest | Self::PassedTask | Self::Parameters)
    }

    /// Returns true for the codes of signals from a leaf to its spine. Workers and spines send keep-alives, too.
    #[must_use]
    pub const fn is_signal(self) -> bool {
        matches!(self, Self::IdleAdd | Self::LoadUpdate | Self::IdleRemove | Self::KeepAlive)
    }
}

/// Values of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub code: Code,
    /// True if the extension follows.
    pub extended: bool,
    /// True if sequence and tag follow ([`super::auth`]).
    pub authenticated: bool,
    /// True if further packets of this task follow.
    pub more: bool,
    /// Worker pool.
    pub pool: u16,
    /// Sender: a client's own id, usually 0; scheduler id; or worker id on replies and other messages of a worker.
    pub src: u16,
    /// Chosen member; on replies the client's own id.
    pub dst: u16,
    /// Task: the flags [`IDLE`] and [`FULL`]. Reply, registration or report: remaining tasks of the worker. The table
    /// of the module has all kinds.
    pub qlen: u16,
    /// Low 16 bits of the sequence number.
    pub seq: u16,
}

/// Values of the extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// Application id; together with `seq32` the task's id.
    pub app: u32,
    /// Full sequence number.
    pub seq32: u32,
    /// Reply: processing time. Signal of a leaf: average load of a worker, 16.16 fixed point.
    pub service_ns: u32,
    /// Class, 0 if unknown. Signal of a leaf: live workers.
    pub class: u16,
}

impl Header {
    /// Returns a client's new task of one packet.
    #[must_use]
    pub const fn new_task(pool: u16, seq: u16) -> Self {
        Self {
            code: Code::NewTask,
            extended: false,
            authenticated: false,
            more: false,
            pool,
            src: 0,
            dst: NO_MEMBER,
            qlen: 0,
            seq,
        }
    }

    /// Returns a server's registration of a worker with its load; the leaf answers.
    #[must_use]
    pub const fn worker_id(pool: u16, worker: u16, tasks: u16, seq: u16) -> Self {
        Self { code: Code::WorkerId, src: worker, qlen: tasks, ..Self::new_task(pool, seq) }
    }

    /// Returns the keep-alive of a registered worker; it is not answered.
    #[must_use]
    pub const fn keep_alive(pool: u16, worker: u16, tasks: u16, seq: u16) -> Self {
        Self { code: Code::KeepAlive, ..Self::worker_id(pool, worker, tasks, seq) }
    }

    /// Returns a worker's load report to one of its leaves; `seq` grows with each.
    #[must_use]
    pub const fn queue_report(pool: u16, worker: u16, tasks: u16, seq: u16) -> Self {
        Self { code: Code::QueueReport, ..Self::worker_id(pool, worker, tasks, seq) }
    }

    /// Returns a leaf's probe of a worker's queue; the answer repeats `number`.
    #[must_use]
    pub const fn queue_probe(pool: u16, leaf: u16, worker: u16, number: u16) -> Self {
        Self { code: Code::QueueProbe, src: leaf, dst: worker, ..Self::new_task(pool, number) }
    }

    /// Returns the answer to this `QueueProbe`: the worker has `tasks` tasks.
    #[must_use]
    pub const fn answered_with(&self, tasks: u16) -> Self {
        let Self { pool, dst: worker, seq, .. } = *self;
        Self { code: Code::ProbeAnswer, ..Self::queue_report(pool, worker, tasks, seq) }
    }

    /// Returns the header of a server's report of `count` completed tasks. `worker` is the `dst` of the first one; the
    /// entries behind the header have each task's own. `seq` grows with each report.
    #[must_use]
    pub const fn completions(pool: u16, worker: u16, count: u16, seq: u16) -> Self {
        Self { code: Code::Completions, ..Self::worker_id(pool, worker, count, seq) }
    }

    /// Returns a message from node `from` of a rack without a leaf to its peer `to`.
    #[must_use]
    pub const fn of_peers(code: Code, pool: u16, (from, to): (u16, u16), seq: u16) -> Self {
        Self { code, src: from, dst: to, ..Self::new_task(pool, seq) }
    }

    /// Returns a leaf's signal to its spine about a pool, or a spine's heartbeat to its leaf (`KeepAlive` of
    /// pool 0); the extension follows.
    #[must_use]
    pub const fn signal(code: Code, pool: u16, node: u16, seq: u16) -> Self {
        Self { code, extended: true, src: node, ..Self::new_task(pool, seq) }
    }

    /// Returns the leaf's answer to this `WorkerId`, with the silence after which it excludes the worker (0:
    /// never).
    #[must_use]
    pub const fn acknowledged_by(&self, leaf: u16, timeout_ms: u16) -> Self {
        let code = Code::WorkerIdAck;
        Self { code, more: false, src: leaf, dst: self.src, qlen: timeout_ms, ..*self }
    }

    /// Returns the refusal of this task by the scheduler `by`, in whose queue `tasks` tasks wait. An agent builds its
    /// refusals itself.
    #[must_use]
    pub const fn refused_by(&self, by: u16, tasks: u16) -> Self {
        let code = Code::TaskRefused;
        Self { code, more: false, src: by, dst: self.src, qlen: tasks, ..*self }
    }

    /// Returns the bytes of header, extension, sequence and tag; the packet's contents begin after them.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        let extension = if self.extended { EXTENSION_LEN } else { 0 };
        LEN + extension + if self.authenticated { PROOF_LEN } else { 0 }
    }

    /// Returns false: a header is never empty. Clippy demands it beside `len`.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Parses the header at the start of a UDP payload. If `extended` is set, the extension's bytes are
    /// present, and [`Extension::parse`] may be called. The same holds for sequence and tag if
    /// `authenticated` is set.
    ///
    /// # Errors
    /// The packet's drop reason.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, DropReason> {
        let Some(bytes) = payload.first_chunk::<LEN>() else {
            return Err(DropReason::TaskShort);
        };
        let kind = bytes[0];
        let Some(code) = Code::from_bits(kind & CODE_BITS) else {
            return Err(DropReason::TaskCode);
        };
        let authenticated = kind & AUTHENTICATION_BIT != 0;
        if authenticated && code.carries_task() {
            return Err(DropReason::TaskReservedBit);
        }
        let header = Self {
            code,
            extended: kind & EXTENSION_BIT != 0,
            authenticated,
            more: kind & MORE_BIT != 0,
            pool: u16_at(bytes, 1),
            src: u16_at(bytes, 3),
            dst: u16_at(bytes, 5),
            qlen: u16_at(bytes, 7),
            seq: u16_at(bytes, 9),
        };
        if payload.len() < header.len() { Err(DropReason::TaskShort) } else { Ok(header) }
    }

    /// Writes the header's [`LEN`] bytes at the start of `payload`.
    #[inline]
    pub fn emit(&self, payload: &mut [u8]) {
        let bytes = &mut payload[..LEN];
        bytes[0] = self.code as u8
            | if self.extended { EXTENSION_BIT } else { 0 }
            | if self.authenticated { AUTHENTICATION_BIT } else { 0 }
            | if self.more { MORE_BIT } else { 0 };
        put_u16(bytes, 1, self.pool);
        put_u16(bytes, 3, self.src);
        put_u16(bytes, 5, self.dst);
        put_u16(bytes, 7, self.qlen);
        put_u16(bytes, 9, self.seq);
    }
}

impl Extension {
    /// Parses the extension after a header that announces it.
    ///
    /// # Panics
    /// If `payload` is shorter than header and extension.
    #[inline]
    #[must_use]
    pub fn parse(payload: &[u8]) -> Self {
        let bytes = &payload[LEN..LEN + EXTENSION_LEN];
        Self {
            app: u32_at(bytes, 0),
            seq32: u32_at(bytes, 4),
            service_ns: u32_at(bytes, 8),
            class: u16_at(bytes, 12),
        }
    }

    /// Writes the extension after the header.
    #[inline]
    pub fn emit(&self, payload: &mut [u8]) {
        let bytes = &mut payload[LEN..LEN + EXTENSION_LEN];
        put_u32(bytes, 0, self.app);
        put_u32(bytes, 4, self.seq32);
        put_u32(bytes, 8, self.service_ns);
        put_u16(bytes, 12, self.class);
        put_u16(bytes, 14, 0);
    }
}

/// Returns the field `src` of a header.
#[inline(always)]
#[must_use]
pub fn src(payload: &[u8]) -> u16 {
    u16_at(payload, 3)
}

/// Returns the worker's tasks in a `TaskDone` or `TaskDoneIdle`: `qlen`, or 0 if the code means idle. Not for
/// `TaskRefused`.
#[inline(always)]
#[must_use]
pub fn reported_queue(payload: &[u8]) -> u16 {
    // Bit 0, in which the two codes differ.
    let idle = payload[0] & (Code::TaskDone as u8 ^ Code::TaskDoneIdle as u8) != 0;
    if idle { 0 } else { u16_at(payload, 7) }
}

/// Returns the fields `dst` and `qlen` of a task for this worker, without the idle flag.
#[must_use]
pub const fn choice_of(worker: u16) -> [u8; 4] {
    ((worker as u32) << 16).to_be_bytes()
}

/// Returns the flags of a task, the lower byte of `qlen`: [`IDLE`] and [`FULL`].
#[inline(always)]
#[must_use]
pub const fn flags(idle: bool, is_full: bool) -> u8 {
    (idle as u8 * IDLE) | (is_full as u8 * FULL)
}

/// Writes the scheduler's choice, made from a worker's id by [`choice_of`], and the task's flags into a task's header.
/// Returns the four replaced bytes in memory order, for the caller's update of the checksum. They begin at an odd
/// offset of the packet.
#[inline(always)]
pub fn choose(payload: &mut [u8], choice: [u8; 4], flags: u8) -> u32 {
    // The fields `dst` and `qlen` are adjacent.
    let new = u32::from_ne_bytes(choice) | u32::from(flags).to_be();
    let mut old = [0; 4];
    old.copy_from_slice(&payload[5..9]);
    payload[5..9].copy_from_slice(&new.to_ne_bytes());
    u32::from_ne_bytes(old)
}

/// Replaces the header of a payload at an even offset of the packet. Extension and proof stay, so `header` must
/// announce the same ones. Returns the checksum difference.
#[must_use]
pub fn replace(payload: &mut [u8], header: &Header) -> ChecksumDelta {
    let words = |payload: &[u8]| {
        let mut bytes = [0; LEN + 1]; // the last word's second half does not change
        bytes[..LEN].copy_from_slice(&payload[..LEN]);
        bytes
    };
    let old = words(payload);
    header.emit(payload);
    let new = words(payload);
    (0..old.len()).step_by(2).fold(ChecksumDelta::default(), |delta, offset| {
        delta.word(u16_at(&old, offset), u16_at(&new, offset))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any header that may occur.
    fn header() -> impl Strategy<Value = Header> {
        let codes = [0_u8, 2, 3, 6, 7, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];
        (
            proptest::sample::select(codes.to_vec()),
            any::<((bool, bool, bool), u16, u16, u16, u16, u16)>(),
        )
            .prop_map(
                |(code, ((extended, authenticated, more), pool, src, dst, qlen, seq))| {
                    let code = Code::from_bits(code).unwrap();
                    let authenticated = authenticated && !code.carries_task();
                    Header { code, extended, authenticated, more, pool, src, dst, qlen, seq }
                },
            )
    }

    proptest! {
        #[test]
        fn headers_round_trip(header in header(), app: u32, seq32: u32, service_ns: u32, class: u16) {
            let mut bytes = [0; LEN + EXTENSION_LEN + PROOF_LEN];
            let extension = Extension { app, seq32, service_ns, class };
            header.emit(&mut bytes);
            extension.emit(&mut bytes);
            prop_assert_eq!(Header::parse(&bytes), Ok(header));
            prop_assert_eq!(Extension::parse(&bytes), extension);
        }

        // promise: packets.1
        #[test]
        fn parsing_never_panics_and_round_trips(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(header) = Header::parse(&bytes) {
                let mut again = vec![0; bytes.len()];
                header.emit(&mut again);
                prop_assert_eq!(&again[..LEN], &bytes[..LEN]);
                prop_assert!(header.len() <= bytes.len());
                if header.extended {
                    let _ = Extension::parse(&bytes);
                }
            }
        }
    }

    // promise: packets.1
    #[test]
    fn golden_bytes_of_the_switch_release() {
        // A task as the Horus client sends it, and the reply of worker 5 with 3 tasks queued.
        let task = [0, 0, 1, 0, 0, 0x7F, 0xFF, 0, 0, 0x12, 0x34];
        assert_eq!(Header::parse(&task), Ok(Header::new_task(1, 0x1234)));
        let reply = [2, 0, 1, 0, 5, 0, 9, 0, 3, 0x12, 0x34];
        let header = Header::parse(&reply).unwrap();
        assert_eq!((header.code, header.src, header.dst, header.qlen), (Code::TaskDone, 5, 9, 3));
    }

    // promise: membership.4
    #[test]
    fn golden_bytes_of_registration_and_refusal() {
        // Worker 5 of pool 1 has 3 tasks; leaf 9 excludes it after 100 ms of silence.
        let bytes = |header: Header| {
            let mut bytes = [0; LEN];
            header.emit(&mut bytes);
            bytes
        };
        let join = Header::worker_id(1, 5, 3, 0x1234);
        assert_eq!(bytes(join), [12, 0, 1, 0, 5, 0x7F, 0xFF, 0, 3, 0x12, 0x34]);
        assert_eq!(bytes(join.acknowledged_by(9, 100)), [13, 0, 1, 0, 9, 0, 5, 0, 100, 0x12, 0x34]);
        let alive = Header::keep_alive(1, 5, 3, 0x1235);
        assert_eq!(bytes(alive), [11, 0, 1, 0, 5, 0x7F, 0xFF, 0, 3, 0x12, 0x35]);
        // A task of client 6, which finds 4096 tasks before it.
        let task = Header { src: 6, extended: true, more: true, ..Header::new_task(1, 0x1236) };
        let refused = task.refused_by(9, 4096);
        assert_eq!(bytes(refused), [0x31, 0, 1, 0, 9, 0, 6, 0x10, 0, 0x12, 0x36]);
    }

    // promise: scheduling.6
    #[test]
    fn golden_bytes_of_a_queue_report() {
        // Worker 5 of pool 1 has 3 tasks, by its report 0x1234 to that leaf.
        let mut bytes = [0; LEN];
        Header::queue_report(1, 5, 3, 0x1234).emit(&mut bytes);
        assert_eq!(bytes, [18, 0, 1, 0, 5, 0x7F, 0xFF, 0, 3, 0x12, 0x34]);
    }

    // promise: scheduling.6
    #[test]
    fn golden_bytes_of_a_probe_and_its_answer() {
        // Leaf 9 probes worker 5 of pool 1, which has 3 tasks.
        let mut bytes = [0; LEN];
        let probe = Header::queue_probe(1, 9, 5, 0x1234);
        probe.emit(&mut bytes);
        assert_eq!(bytes, [19, 0, 1, 0, 9, 0, 5, 0, 0, 0x12, 0x34]);
        probe.answered_with(3).emit(&mut bytes);
        assert_eq!(bytes, [20, 0, 1, 0, 5, 0x7F, 0xFF, 0, 3, 0x12, 0x34]);
    }

    #[test]
    fn faulty_headers_are_refused() {
        // Parses a payload of `len` bytes whose first byte is `kind`.
        let parse = |kind: u8, len: usize| {
            let mut bytes = [0; 43];
            (bytes[0], bytes[2]) = (kind, 1);
            Header::parse(&bytes[..len])
        };
        // A header has 11 bytes, the extension (0x20) 16, and the proof (0x40) 16.
        assert_eq!(parse(0, 10), Err(DropReason::TaskShort));
        assert_eq!(parse(0x20, 26), Err(DropReason::TaskShort));
        assert!(parse(0x20, 27).is_ok());
        // A task is never authenticated; a worker's message may be, and is then longer.
        assert_eq!(parse(0x40, 27), Err(DropReason::TaskReservedBit));
        assert_eq!(parse(0x50, 43), Err(DropReason::TaskReservedBit));
        assert_eq!(parse(0x57, 43), Err(DropReason::TaskReservedBit));
        for (kind, len) in [(0x42, 27), (0x4C, 27), (0x62, 43), (0x6B, 43)] {
            assert_eq!(parse(kind, len - 1), Err(DropReason::TaskShort), "{kind:#x}");
            assert_eq!(parse(kind, len).map(|header| header.len()), Ok(len), "{kind:#x}");
        }
        for code in [1, 4, 5, 8, 9, 14, 15, 26, 31] {
            assert_eq!(parse(code, 27), Err(DropReason::TaskCode), "code {code}");
        }
    }

    proptest! {
        #[test]
        fn replacing_keeps_the_datagrams_checksum(before in header(), after in header(), rest in 0..3_usize) {
            use crate::wire::udp::{self, Flow};
            let len = before.len() + rest;
            let mut frame = vec![7; udp::PAYLOAD + len];
            before.emit(&mut frame[udp::PAYLOAD..]);
            let mac = Default::default();
            let flow =
                Flow { src_mac: mac, dst_mac: mac, src: 1, dst: 2, src_port: 3, dst_port: 4 };
            flow.emit(&mut frame, len);
            let after =
                Header { extended: before.extended, authenticated: before.authenticated, ..after };
            // Such a task is impossible.
            prop_assume!(!(after.authenticated && after.code.carries_task()));
            let delta = replace(&mut frame[udp::PAYLOAD..], &after);
            udp::update_checksum(&mut frame[34..], delta); // the UDP header
            prop_assert!(udp::parse(&frame, false).is_ok());
            prop_assert_eq!(Header::parse(&frame[udp::PAYLOAD..]), Ok(after));
        }
    }

    #[test]
    fn choosing_keeps_the_datagrams_checksum() {
        use crate::wire::checksum::FoldedDelta;
        use crate::wire::udp::{self, Flow};
        let mut frame = vec![0; udp::PAYLOAD + 27];
        Header::new_task(1, 7).emit(&mut frame[udp::PAYLOAD..]);
        let flow = Flow {
            src_mac: Default::default(),
            dst_mac: Default::default(),
            src: 1,
            dst: 2,
            src_port: 3,
            dst_port: 4,
        };
        flow.emit(&mut frame, 27);
        for (dst, idle) in [(5_u16, true), (0x1FE, false), (0x7FFE, true)] {
            let choice = choice_of(dst);
            let old = choose(&mut frame[udp::PAYLOAD..], choice, flags(idle, false));
            let new = u32::from_be_bytes(choice) | u32::from(idle);
            let added = ChecksumDelta::default().straddling_double_word(0, new);
            let delta = FoldedDelta::straddling_double_word_removed(old);
            // The UDP header is at 34.
            udp::update_checksum_folded(&mut frame[34..], delta.and(FoldedDelta::fold(added)));
            assert!(udp::parse(&frame, false).is_ok());
            let header = Header::parse(&frame[udp::PAYLOAD..]).unwrap();
            assert_eq!((header.dst, header.qlen), (dst, u16::from(idle)));
        }
    }
}
