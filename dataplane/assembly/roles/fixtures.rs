//! Fixtures of agents' tests: packets, and workers that the test's own thread runs. An agent gives tasks to workers
//! through shared memory; `WorkerEnd` is a worker's side of it.

use wedjat_core::ring::WorkerEnd;
use wedjat_core::role::agent::Address;
use wedjat_core::wire::task::{Extension, Header};
use wedjat_core::wire::udp::Flow;

/// Ticks per second: one per microsecond.
pub const HZ: u64 = 1_000_000;
/// Ticks of silence after which a worker is excluded.
pub const TIMEOUT: u64 = 50_000;
/// Service time that [`work`] gives for each task, in nanoseconds.
pub const SERVICE_NS: u32 = 1500;

/// Returns the header extension of the task with this number. Application, service time and class are arbitrary; the
/// long sequence number ends with the short one of the header.
pub fn extension(seq: u16) -> Extension {
    Extension { app: 5, seq32: 0xABCD_0000 | u32::from(seq), service_ns: 9, class: 4 }
}

/// Returns a UDP packet of either address family with this task header, the extension if the header announces one, and
/// `body`.
pub fn datagram<A: Address>(flow: &Flow<A>, header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; A::PAYLOAD + header.len()];
    header.emit(&mut bytes[A::PAYLOAD..]);
    if header.extended {
        extension(header.seq).emit(&mut bytes[A::PAYLOAD..]);
    }
    bytes.extend_from_slice(body);
    A::emit(flow, &mut bytes, header.len() + body.len());
    bytes
}

/// Serves the worker's next task and answers with its bytes. Returns false if there was no task.
pub fn work(worker_end: &mut WorkerEnd) -> bool {
    let Some(task) = worker_end.take().unwrap() else { return false };
    let echo = |request: &[u8], reply: &mut [u8]| {
        reply[..request.len()].copy_from_slice(request);
        request.len()
    };
    worker_end.answer(task, echo, || u64::from(SERVICE_NS)).unwrap();
    true
}
