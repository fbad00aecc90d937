//! Uniform choice and choice by service rate, the baselines.

use super::alias::Alias;
use super::{Core, Pick, Policy, Rng, Task, sample_one};
use crate::state::View;

/// Any active member, each as likely.
#[derive(Clone, Debug, Default)]
pub struct Random;

impl Policy for Random {
    #[inline(always)]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        sample_one(view, rng).map(|member| Pick { member, idle: false })
    }
}

/// Any active member, in proportion to its service rate.
#[derive(Clone, Debug, Default)]
pub struct WeightedRandom {
    alias: Alias,
}

impl Policy for WeightedRandom {
    #[inline(always)]
    fn pick(&mut self, _task: &Task, _view: &mut View, rng: &mut Rng) -> Option<Pick> {
        self.alias.sample(rng).map(|member| Pick { member, idle: false })
    }

    fn on_members(&mut self, _core: Core, view: &mut View) {
        self.alias.rebuild(view.active(), |member| view.rate(member));
    }
}
