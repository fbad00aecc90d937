//! RackSched (Zhu et al., OSDI 2020) as evaluated by Horus: power of two choices on loads that only reports
//! update, not the tasks sent since.

use super::sample::{sample_two, select};
use super::{
    AnyPolicy, Candidates, Entry, LeafReports, Pick, Picks, Policy, RackPolicy, Rng,
    SelectionBasis, Task, one_by_one,
};
use crate::state::{PublishedState, Report, View};

/// `racksched`.
pub const ENTRY: Entry = Entry {
    over_racks: Some(RackPolicy { policy: "racksched", reports: LeafReports::EveryReply }),
    publishes: PublishedState::REPORTS,
    ..Entry::new(
        "racksched",
        "the better of two random members by the load they last reported",
        "RackSched, OSDI 2020",
        |_| AnyPolicy::from(RackSched),
    )
};

/// Picks the better of two random members by reported load only.
#[derive(Clone, Debug, Default)]
pub struct RackSched;

impl Policy for RackSched {
    /// Picks the better of two random members by reported load for each task.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        one_by_one(tasks, picks, view, rng, |_, view, rng| {
            let (a, b) = sample_two(view.active(), rng)?;
            let member = select(view.load(b) < view.load(a), a, b);
            view.picks.po2 += 1; // statistics: decisions by power of two choices
            Some(Pick { member, idle: false })
        });
    }

    /// Returns the two members that the next pick draws, for `wedjat explain`.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        let pair = sample_two(view.active(), rng);
        Candidates::new(SelectionBasis::Drawn, pair.into_iter().flat_map(|(a, b)| [a, b]))
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        view.take_loads(reports) // counts the answers and stores the loads for later picks
    }
}
