//! A worker that gives each task back as it came.

use wedjat::worker::{Gone, Worker};

use super::patience::PATIENCE;

/// Answers tasks until the agent is gone; none when no task came for [`PATIENCE`].
pub fn echo(worker: &mut Worker) -> Option<Gone> {
    loop {
        match worker.recv(PATIENCE) {
            Ok(Some(task)) => task.reply_with(|request, reply| {
                reply[..request.len()].copy_from_slice(request);
                request.len()
            }),
            Ok(None) => return None,
            Err(gone) => return Some(gone),
        }
    }
}
