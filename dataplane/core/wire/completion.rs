//! Completion report: a server's message to its leaf about tasks whose replies went straight to the clients.
//!
//! The task header has the code [`Code::Completions`], the number of entries in `qlen` and the first entry's worker in
//! `src`. It has no extension. Sequence and tag follow if the pool has a key; the tag covers the entries, too. The
//! entries end the message, each with 8 bytes:
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u16 | worker | worker that the task named |
//! | 2 | u16 | class, left | 3 high bits: class of the task; 13 low bits: tasks left at that worker; both saturating |
//! | 4 | u32 | service_ns | measured processing time, saturating; 0 if unknown |

use super::task::{Code, Header};
use super::{put_u16, put_u32, u16_at, u32_at};
use crate::limits::BURST;
use crate::reason::DropReason;

/// Maximum number of entries of a report. At most a burst, which a policy processes at once.
pub const COMPLETIONS_MAX: usize = 30;
const _: () = assert!(COMPLETIONS_MAX <= BURST);
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 8;
/// Last class of an entry. It stands for all higher ones, too.
pub const CLASS_LAST: u16 = 7;

/// Number of low bits of an entry's second field, which have the tasks left at the worker.
const LEFT_BITS: u32 = 13;
/// Maximum number of tasks left in an entry.
const LEFT_MAX: u16 = (1 << LEFT_BITS) - 1;

/// A completed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Worker that the task named.
    pub worker: u16,
    /// Class of the task; 0 if unknown. An entry has at most [`CLASS_LAST`].
    pub class: u16,
    /// Tasks left at that worker. An entry has at most 8191.
    pub left: u16,
    /// Measured processing time in nanoseconds; 0 if unknown.
    pub service_ns: u32,
}

impl Completion {
    /// Writes the entries of a report with this header, in order.
    ///
    /// # Panics
    /// If the payload is shorter than header and entries.
    pub fn emit_all(entries: &[Self], header: &Header, payload: &mut [u8]) {
        let places =
            payload[header.len()..][..ENTRY_LEN * entries.len()].chunks_exact_mut(ENTRY_LEN);
        for (entry, bytes) in entries.iter().zip(places) {
            put_u16(bytes, 0, entry.worker);
            put_u16(bytes, 2, entry.class.min(CLASS_LAST) << LEFT_BITS | entry.left.min(LEFT_MAX));
            put_u32(bytes, 4, entry.service_ns);
        }
    }

    /// Reads an entry.
    fn parse(bytes: &[u8]) -> Self {
        let load = u16_at(bytes, 2);
        let (class, left) = (load >> LEFT_BITS, load & LEFT_MAX);
        Self { worker: u16_at(bytes, 0), class, left, service_ns: u32_at(bytes, 4) }
    }
}

/// Returns the bytes of the entries of a report; `payload` is exactly that of its datagram.
///
/// # Errors
/// [`DropReason::CompletionsMalformed`] for a header of another message, or a number of entries out of range or unlike
/// the length.
#[inline]
pub fn entries<'a>(header: &Header, payload: &'a [u8]) -> Result<&'a [u8], DropReason> {
    let count = usize::from(header.qlen);
    let entries = payload.get(header.len()..).unwrap_or_default();
    let is_report = header.code == Code::Completions && !header.extended && !header.more;
    let fits = (1..=COMPLETIONS_MAX).contains(&count) && entries.len() == count * ENTRY_LEN;
    if is_report && fits { Ok(entries) } else { Err(DropReason::CompletionsMalformed) }
}

/// Iterates over the completions in the bytes of entries.
#[inline]
pub fn parse_entries(entries: &[u8]) -> impl Iterator<Item = Completion> + '_ {
    entries.chunks_exact(ENTRY_LEN).map(Completion::parse)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the payload of a report.
    fn report(header: Header, entries: &[Completion]) -> Vec<u8> {
        let mut payload = vec![0; header.len() + entries.len() * ENTRY_LEN];
        header.emit(&mut payload);
        Completion::emit_all(entries, &header, &mut payload);
        payload
    }

    /// Returns the entries of a payload, or its drop reason.
    fn parse(payload: &[u8]) -> Result<Vec<Completion>, DropReason> {
        let header = Header::parse(payload)?;
        entries(&header, payload).map(|entries| parse_entries(entries).collect())
    }

    #[test]
    fn golden_bytes_of_a_completion_report() {
        // Worker 5 of pool 1 has 3 tasks left after a task of class 2 and 50 us. Worker 6 has none after 2 us.
        let done = [
            Completion { worker: 5, class: 2, left: 3, service_ns: 50_000 },
            Completion { worker: 6, class: 0, left: 0, service_ns: 2_000 },
        ];
        let bytes = report(Header::completions(1, 5, 2, 0x1234), &done);
        let expected = [
            [0x19, 0, 1, 0, 5, 0x7F, 0xFF, 0, 2, 0x12, 0x34].as_slice(),
            &[0, 5, 0x40, 3, 0, 0, 0xC3, 0x50],
            &[0, 6, 0, 0, 0, 0, 0x07, 0xD0],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(parse(&bytes), Ok(done.to_vec()));
    }

    // promise: packets.1
    #[test]
    fn malformed_reports_are_refused() {
        let done = Completion { worker: 5, class: 1, left: 3, service_ns: 0 };
        let done = [done; COMPLETIONS_MAX + 1];
        let header = |count: u16| Header::completions(1, 5, count, 0);
        let refused = Err(DropReason::CompletionsMalformed);
        // No entries, too many, fewer than announced, and more.
        for (count, len) in [(0, 0), (31, 31), (2, 1), (1, 2), (u16::MAX, 30)] {
            assert_eq!(parse(&report(header(count), &done[..len])), refused, "{count} {len}");
        }
        let whole = report(header(30), &done[..30]);
        assert_eq!(parse(&whole).map(|all| all.len()), Ok(30));
        assert_eq!(parse(&whole[..whole.len() - 1]), refused);
        assert_eq!(parse(&whole[..5]), Err(DropReason::TaskShort));
        for strange in [Header { extended: true, ..header(1) }, Header { more: true, ..header(1) }]
        {
            assert_eq!(parse(&report(strange, &done[..1])), refused);
        }
    }

    #[test]
    fn high_classes_and_many_tasks_saturate() {
        let read = |class, left| {
            let done = Completion { worker: 5, class, left, service_ns: 9 };
            let read = parse(&report(Header::completions(1, 5, 1, 0), &[done])).unwrap()[0];
            assert_eq!((read.worker, read.service_ns), (5, 9));
            (read.class, read.left)
        };
        for kept in [(0, 0), (6, 1), (7, 8190), (0, 8191)] {
            assert_eq!(read(kept.0, kept.1), kept);
        }
        for high in [8, 15, u16::MAX] {
            assert_eq!(read(high, 8192 + high % 9), (7, 8191));
        }
        assert_eq!(read(u16::MAX, u16::MAX), (7, 8191));
    }

    proptest! {
        // promise: packets.1
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0xE0 | Code::Completions as u8;
            }
            let _ = parse(&bytes);
        }
    }
}
