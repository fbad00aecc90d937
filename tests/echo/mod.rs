//! Worker that returns each task unchanged, for tests of an agent (the process that gives tasks to workers).

use wedjat::worker::{Detached, Worker};

use super::timeouts::TIMEOUT;

/// Answers each task with its own payload until the worker is detached, for example at the agent's end. Returns the
/// reason. Returns `None` if no task came for [`TIMEOUT`].
pub fn echo(worker: &mut Worker) -> Option<Detached> {
    loop {
        match worker.recv(TIMEOUT) {
            Ok(Some(task)) => task.reply_with(|request, reply| {
                reply[..request.len()].copy_from_slice(request);
                request.len()
            }),
            Ok(None) => return None,
            Err(reason) => return Some(reason),
        }
    }
}
