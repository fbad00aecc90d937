//! Uniform choice, the baseline.

use super::{Pick, Policy, Rng, Task, sample_one};
use crate::state::View;

/// Any active member, each as likely.
#[derive(Clone, Debug, Default)]
pub struct Random;

impl Policy for Random {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        sample_one(view, rng).map(|member| Pick { member, idle: false })
    }
}
