//! Detection of members that the policy `pi` (persistent idle) would never choose again. It sends tasks only to members
//! on its core's list of idle ones or, if the list is empty, to the last member that reported to be idle. A forgotten
//! member is on no list, because the report that would have put it there was lost, overtaken by an older one, or
//! belonged to a lost task.
//!
//! Each core searches its share of the members. A member counts as forgotten under three conditions: it is on no
//! core's list, its outstanding tasks did not change, and it sent no report between two checks. Meanwhile the members
//! sent 16 reports each on average, or 100 ms passed. If the member is busy nevertheless, one task waits there.

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
    /// Number of reports and outstanding tasks of each member, over all cores.
    counts: Vec<(u32, u32)>,
    /// Number of reports of all members to this core since the last check.
    reports: usize,
    /// Time from which on a check happens even without enough reports.
    next_check_ns: u64,
}

impl LastSeen {
    /// Counts a report.
    #[inline]
    pub(super) fn note(&mut self) {
        self.reports += 1;
    }

    /// Sets the number of members.
    pub(super) fn resize(&mut self, members: usize) {
        self.counts.resize(members, (0, 0));
    }

    /// Appends this core's share of the forgotten members to its list, if a check is due. The view holds the set of
    /// listed members, and `line` their order.
    pub(super) fn check(&mut self, core: Core, line: &mut Line, view: &mut View) {
        let now_ns = view.now_ns();
        let has_enough = self.reports >= WINDOW_REPORTS * view.active().len();
        if !has_enough && now_ns < self.next_check_ns {
            return;
        }
        self.reports = 0;
        self.next_check_ns = now_ns.saturating_add(WINDOW_NS);
        for place in 0..view.active().len() {
            let member = view.active()[place];
            let now = (view.reports(member), view.outstanding(member));
            let before = std::mem::replace(&mut self.counts[member.index()], now);
            let is_ours = member.index() % core.count == core.index;
            // `insert` returns false for an excluded member.
            if is_ours
                && before == now
                && view.idle_everywhere(member) == 0
                && view.idle_mut().insert(member)
            {
                line.join(member);
            }
        }
    }
}
