//! Sends back what came.

use super::App;

/// The app that does nothing: what it takes is what the way to a worker and back takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Echo;

impl App for Echo {
    #[inline]
    fn serve(&mut self, work: &[u8], reply: &mut [u8]) -> usize {
        let len = work.len().min(reply.len());
        reply[..len].copy_from_slice(&work[..len]);
        len
    }
}
