//! Detection of members that a list-based policy would never ask again. They are on no list, because the
//! report that would have put them there was lost, overtaken by an older one, or belonged to a lost task.
//!
//! A member counts as idle if it is on no list, has no new outstanding task, and sent no report between two
//! checks, while the remaining members answered many tasks each. If that is wrong, one task waits there.

use super::Core;
use super::structure::Line;
use crate::state::View;

/// Mean number of reports per member between two checks.
const WINDOW_REPORTS: usize = 16;
/// Time after which a check happens without reports.
const WINDOW_NS: u64 = 100_000_000;

/// State of each member at the last check.
#[derive(Clone, Debug, Default)]
pub(super) struct LastSeen {
    seen: Vec<(u32, u32)>,
    reports: usize,
    next_look_ns: u64,
}

impl LastSeen {
    /// Counts a report.
    #[inline]
    pub(super) fn note(&mut self) {
        self.reports += 1;
    }

    /// Sets the number of members.
    pub(super) fn resize(&mut self, members: usize) {
        self.seen.resize(members, (0, 0));
    }

    /// Appends this core's share of the forgotten members to the line, if a check is due.
    pub(super) fn look(&mut self, core: Core, line: &mut Line, view: &mut View) {
        let now_ns = view.now_ns();
        let enough = self.reports >= WINDOW_REPORTS * view.active().len();
        if !enough && now_ns < self.next_look_ns {
            return;
        }
        self.reports = 0;
        self.next_look_ns = now_ns.saturating_add(WINDOW_NS);
        for place in 0..view.active().len() {
            let member = view.active()[place];
            let now = (view.reports(member), view.outstanding(member));
            let before = std::mem::replace(&mut self.seen[member.index()], now);
            let ours = member.index() % core.count == core.index;
            if ours && before == now && view.idle_mut().insert(member) {
                line.join(member);
            }
        }
    }
}
