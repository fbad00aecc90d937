//! Echo workload: replies with the bytes of the task, as far as they fit.

use super::App;

/// App without work. The response time of its tasks is the cost of the path to a worker and back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Echo;

impl App for Echo {
    #[inline]
    fn serve(&self, work: &[u8], reply: &mut [u8], _: &impl Fn()) -> usize {
        let len = work.len().min(reply.len());
        reply[..len].copy_from_slice(&work[..len]);
        len
    }
}
