//! One core's ends of a node's broadcast rings: the ring that it writes, and those of all other cores, which
//! it reads. Each ring carries changes of members' counts or loads. [`crate::policy::exchange`] sends and processes
//! them.

use std::sync::Arc;

use super::broadcast::{LINES, Messages, NO_MESSAGES, ReadResult, Receiver, Sender, Subject};
use super::layout::Layout;
use super::member::Member;
use super::region::Region;

/// One core's ends of the broadcast rings. Shares no cache line with other data.
#[derive(Debug)]
#[repr(align(128))]
pub struct Exchange {
    /// Ring that this core writes.
    pub sender: Sender,
    /// Rings of the remote cores.
    receivers: Box<[Receiver]>,
    /// Index of the receiver to read next.
    next: usize,
    /// Buffer for the messages of one read.
    messages: Messages,
}

/// Update from a remote core. The first field is the core's index among the remote cores.
#[derive(Debug)]
pub enum RemoteUpdate<'a> {
    /// New messages of one subject: members and their values.
    Messages(usize, Subject, &'a [(Member, u16)]),
    /// Messages were lost. The last published value of every member must be looked up.
    Lost(usize),
}

impl Exchange {
    /// Creates the ends of `core` in a region of several cores. The rings must be unused: all ends start at the first
    /// line.
    #[must_use]
    pub fn new(region: &Arc<Region>, layout: &Layout, core: usize) -> Self {
        // Lines and head of a core's ring. The head has the first line to itself.
        let ring = |core: usize| {
            let offset = layout.cores[core].ring;
            (region.slice(offset + 64, LINES), region.slice(offset, 1))
        };
        let (lines, head) = ring(core);
        let remote = (0..layout.cores.len()).filter(|&remote| remote != core).map(ring);
        Self {
            sender: Sender::new(lines, head),
            receivers: remote.map(|(lines, head)| Receiver::new(lines, head)).collect(),
            next: 0,
            messages: NO_MESSAGES,
        }
    }

    /// Returns the next update, from all remote cores in turn. Returns `None` after the last one.
    #[inline]
    pub fn receive(&mut self) -> Option<RemoteUpdate<'_>> {
        while let Some(receiver) = self.receivers.get_mut(self.next) {
            match receiver.receive(&mut self.messages) {
                None => self.next += 1,
                Some(ReadResult::Messages(subject, count)) => {
                    return Some(RemoteUpdate::Messages(
                        self.next,
                        subject,
                        &self.messages[..count],
                    ));
                }
                Some(ReadResult::Overtaken) => return Some(RemoteUpdate::Lost(self.next)),
            }
        }
        self.next = 0;
        None
    }
}
