//! What a task carries behind its header: the time that it asks of a worker.
//!
//! | off | type | field | meaning |
//! |---|---|---|---|
//! | 0 | u32 | service_ns | processing time asked for, big-endian |
//!
//! Offsets count from the end of the task header, extension included (byte 11 or 27 of the UDP payload).
//! Send times are not in the packet: the generator keeps them with the task's sequence number, so a worker
//! need not echo the payload and cannot falsify a latency.

use wedjat::wire::task::Header;

/// Bytes that the generator writes behind the header; padding may follow.
pub const LEN: usize = 4;

/// Writes the time asked for behind the header, at the start of `work`.
#[inline]
pub fn emit(work: &mut [u8], service_ns: u32) {
    work[..LEN].copy_from_slice(&service_ns.to_be_bytes());
}

/// The time that the task in this UDP payload asks for; none when the payload is too short to say.
#[inline]
#[must_use]
pub fn parse(payload: &[u8], header: &Header) -> Option<u32> {
    let work = payload.get(header.len()..)?;
    work.first_chunk::<LEN>().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_follows_the_header_short_or_extended() {
        for (extended, offset) in [(false, 11), (true, 27)] {
            let header = Header { extended, ..Header::new_task(1, 7) };
            let mut payload = vec![0; offset + LEN];
            header.emit(&mut payload);
            emit(&mut payload[offset..], 50_000);
            assert_eq!(payload[offset..], [0, 0, 0xC3, 0x50]);
            assert_eq!(parse(&payload, &header), Some(50_000));
            assert_eq!(parse(&payload[..offset + 3], &header), None);
            assert_eq!(parse(&[], &header), None);
        }
    }
}
