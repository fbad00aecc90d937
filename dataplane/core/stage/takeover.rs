//! Takeover of member estimates: a restarted node begins with the estimates of the process before it, read from its
//! state file. Without them it would consider loaded members idle.

use super::Stages;
use crate::state::{Load, Member, MemberPresence, Report};

/// Estimate of a member by the previous process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InheritedEstimate {
    /// Load of the member, including tasks sent since its last report.
    pub load: Load,
    /// Tasks sent to the member and not answered.
    pub outstanding: u32,
    /// Presence of the member. The stages adopt only that of a registered or silent member: a leaf, or a worker whose
    /// server registers its workers.
    pub presence: MemberPresence,
}

impl Stages {
    /// Adopts the previous process's estimates of a pool's members. Must be called before the first packet, on every
    /// core.
    pub fn take_over(&mut self, pool: usize, beliefs: &[(Member, InheritedEstimate)]) {
        let dispatcher = &mut self.dispatchers[pool];
        for &(member, InheritedEstimate { load, outstanding, presence }) in beliefs {
            // The outstanding tasks count over all cores, so one core adopts them.
            if dispatcher.core().index == 0 {
                dispatcher.view_mut().set_outstanding(member, outstanding);
            }
            // A member with load is not idle.
            if load != Load::default() {
                dispatcher.view_mut().idle_mut().remove(member);
                dispatcher.refresh(&Report::new(member, load, 0));
            }
            self.liveness.take_over(pool, member, presence, dispatcher);
        }
        dispatcher.review_members();
    }
}
