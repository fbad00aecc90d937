//! One core's ends of what the cores of a node tell each other: a ring that it writes, and those of the others that it reads.

use std::sync::Arc;

use super::broadcast::{LINES, Messages, NO_MESSAGES, Received, Receiver, Sender, Subject};
use super::layout::Layout;
use super::member::Member;
use super::region::Region;

/// Exchanges between two publications of lines that are not full, while the core does not keep up.
const PATIENCE: u32 = 64;

/// See the module's text. It has cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Exchange {
    /// What this core tells.
    pub sender: Sender,
    receivers: Box<[Receiver]>,
    /// The next to be listened to.
    next: usize,
    messages: Messages,
    unpublished: u32,
}

/// What was heard from another core, by its place among the others.
#[derive(Debug)]
pub enum Heard<'a> {
    /// Messages.
    Messages(usize, Subject, &'a [(Member, u16)]),
    /// Some were lost: what it told last of every member is to be looked up.
    Lost(usize),
}

impl Exchange {
    /// Those of `core` in a region of several cores that have told nothing yet.
    #[must_use]
    pub fn new(region: &Arc<Region>, layout: &Layout, core: usize) -> Self {
        let ring = |core: usize| {
            let at = layout.cores[core].ring;
            (region.slice(at + 64, LINES), region.slice(at, 1))
        };
        let (lines, head) = ring(core);
        let others = (0..layout.cores.len()).filter(|&other| other != core).map(ring);
        Self {
            sender: Sender::new(lines, head),
            receivers: others.map(|(lines, head)| Receiver::new(lines, head)).collect(),
            next: 0,
            messages: NO_MESSAGES,
            unpublished: 0,
        }
    }

    /// Lets the others see what was told: at once if this core keeps up with what comes, else full lines, and now and then
    /// the rest.
    #[inline]
    pub fn publish(&mut self, keeps_up: bool) {
        self.unpublished += 1;
        if keeps_up || self.unpublished >= PATIENCE {
            self.unpublished = 0;
            self.sender.publish();
        }
    }

    /// What has come next, of all others in turn; none when that is all.
    #[inline]
    pub fn receive(&mut self) -> Option<Heard<'_>> {
        while let Some(receiver) = self.receivers.get_mut(self.next) {
            match receiver.receive(&mut self.messages) {
                None => self.next += 1,
                Some(Received::Messages(subject, count)) => {
                    return Some(Heard::Messages(self.next, subject, &self.messages[..count]));
                }
                Some(Received::Overtaken) => return Some(Heard::Lost(self.next)),
            }
        }
        self.next = 0;
        None
    }
}
