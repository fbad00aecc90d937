//! Policy `round-robin`: members in turn, as a baseline for comparisons.

use super::{
    AnyPolicy, Caller, Candidates, Entry, LeafReports, Pick, Picks, Policy, RackPolicy, Rng,
    SelectionBasis, Task, one_by_one,
};
use crate::state::{PublishedState, Report, View};

/// `round-robin`.
pub const ENTRY: Entry = Entry {
    over_racks: Some(RackPolicy { policy: "round-robin", reports: LeafReports::Nothing }),
    publishes: PublishedState::NOTHING,
    ..Entry::new("round-robin", "one member after the other", "baseline", |_| {
        AnyPolicy::from(RoundRobin::default())
    })
};

/// State of the policy on one core, which cycles over the active members. Cores start at different ones.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    /// Index of the next one among the active members.
    next: usize,
}

impl Policy for RoundRobin {
    /// Picks the next member for each task, and starts again after the last one.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        one_by_one(tasks, picks, view, rng, |_, view, _| {
            let active = view.active();
            if self.next >= active.len() {
                self.next = 0;
            }
            let member = *active.get(self.next)?;
            self.next += 1;
            Some(Pick { member, idle: false }) // false: the policy does not know idle members
        });
    }

    /// Returns the member whose turn is next, for `wedjat explain`.
    fn candidates(&self, view: &View, _rng: &mut Rng) -> Candidates {
        let active = view.active();
        let next = if self.next < active.len() { self.next } else { 0 };
        Candidates::new(SelectionBasis::Turn, active.get(next).copied())
    }

    /// Counts answers and stores loads. Returns the number of replies from members without an outstanding task.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        // The choice ignores the loads; the state file shows them.
        view.take_loads(reports)
    }

    /// Sets each core's next member, evenly spread over the members, so that the cores' tasks do not meet at one.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.next = view.active().len() * caller.core.index / caller.core.count;
    }
}
