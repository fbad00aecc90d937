//! Policies `random` and `weighted-random`: uniform choice and choice by service rate, as baselines. Both ignore loads.

use super::sample::sample_one;
use super::structure::Alias;
use super::{
    AnyPolicy, Caller, Candidates, Entry, LeafReports, Pick, Picks, Policy, RackPolicy, Rng,
    SelectionBasis, Task, one_by_one,
};
use crate::state::{PublishedState, Report, View};

/// `random`.
pub const UNIFORM: Entry = Entry {
    over_racks: Some(RackPolicy { policy: "random", reports: LeafReports::Nothing }),
    publishes: PublishedState::NOTHING,
    ..Entry::new("random", "any member, each as likely", "baseline", |_| AnyPolicy::from(Random))
};

/// `weighted-random`.
pub const WEIGHTED: Entry = Entry {
    by_rate: true,
    publishes: PublishedState::NOTHING,
    ..Entry::new(
        "weighted-random",
        "any member, in proportion to its service rate",
        "baseline",
        |_| AnyPolicy::from(WeightedRandom::default()),
    )
};

/// Policy that picks any active member with equal probability.
#[derive(Clone, Debug, Default)]
pub struct Random;

impl Policy for Random {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        one_by_one(tasks, picks, view, rng, |_, view, rng| {
            sample_one(view.active(), rng).map(|member| Pick { member, idle: false })
        });
    }

    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        // The member that the next pick draws, from a copy of its random source.
        Candidates::new(SelectionBasis::Drawn, sample_one(view.active(), rng))
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        // The choice ignores the loads; the state file shows them.
        view.take_loads(reports)
    }
}

/// Policy that picks any active member in proportion to its service rate.
#[derive(Clone, Debug, Default)]
pub struct WeightedRandom {
    /// Table for draws by weight; the weights are the configured rates.
    alias: Alias,
}

impl Policy for WeightedRandom {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        one_by_one(tasks, picks, view, rng, |_, _, rng| {
            self.alias.sample(rng).map(|member| Pick { member, idle: false })
        });
    }

    fn candidates(&self, _view: &View, rng: &mut Rng) -> Candidates {
        // The member that the next pick draws, from a copy of its random source.
        Candidates::new(SelectionBasis::Drawn, self.alias.sample(rng))
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        // The choice ignores the loads; the state file shows them.
        view.take_loads(reports)
    }

    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        // Adopts the active members and their rates. The table makes each draw take constant time.
        self.alias.rebuild(view.members(), view.active(), |member| view.rate(member));
    }
}
