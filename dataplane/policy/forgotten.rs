//! Members that nobody would ask again: they are on no list, and a policy that asks only those on its list does
//! not hear of them, because the report that would have put them there was lost, was overtaken by an older
//! one, or belongs to a task that was lost.
//!
//! Whoever is on no list here, owes nothing new and told nothing from one look to the next, while the others
//! answered many tasks each, is taken for idle. When it is not, one task waits there.

use super::Core;
use super::structure::Line;
use crate::state::View;

/// Reports of each member between two looks, on average.
const WINDOW_REPORTS: usize = 16;
/// Time after which there is a look though nobody reports.
const WINDOW_NS: u64 = 100_000_000;

/// What was last seen of each member.
#[derive(Clone, Debug, Default)]
pub(super) struct Forgotten {
    seen: Vec<(u32, u32)>,
    reports: usize,
    next_look_ns: u64,
}

impl Forgotten {
    /// A member reported.
    #[inline]
    pub(super) fn note(&mut self) {
        self.reports += 1;
    }

    /// The members are so many from now on.
    pub(super) fn resize(&mut self, members: usize) {
        self.seen.resize(members, (0, 0));
    }

    /// Puts this core's share of the forgotten members last in the line, now and then.
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
