//! What a node that starts again believes of its members at once: what it believed before.

use super::Stages;
use crate::state::{Load, Member, Presence, Report};

/// What was believed of a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Its queue, what was sent to it since its last report included.
    pub load: Load,
    /// Tasks that it was sent and had not answered.
    pub outstanding: u32,
    /// Whether it had registered, and was silent.
    pub presence: Presence,
}

impl Stages {
    /// Takes over what was believed of a pool's members; before the first packet, on every core.
    pub fn take_over(&mut self, pool: usize, beliefs: &[(Member, Belief)]) {
        let dispatcher = &mut self.dispatchers[pool];
        for &(member, Belief { load, outstanding, presence }) in beliefs {
            if dispatcher.core().index == 0 {
                dispatcher.view_mut().set_outstanding(member, outstanding);
            }
            if load != Load::default() {
                dispatcher.view_mut().idle_mut().remove(member);
                dispatcher.refresh(&Report::new(member, load, 0));
            }
            self.liveness.take_over(pool, member, presence, dispatcher);
        }
        dispatcher.review_members();
    }
}
