//! Worker that returns each task unchanged.

use wedjat::worker::{Detached, Worker};

use super::timeouts::TIMEOUT;

/// Answers tasks until the agent is gone. Returns `None` if no task came for [`TIMEOUT`].
pub fn echo(worker: &mut Worker) -> Option<Detached> {
    loop {
        match worker.recv(TIMEOUT) {
            Ok(Some(task)) => task.reply_with(|request, reply| {
                reply[..request.len()].copy_from_slice(request);
                request.len()
            }),
            Ok(None) => return None,
            Err(gone) => return Some(gone),
        }
    }
}
