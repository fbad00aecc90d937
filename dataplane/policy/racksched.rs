//! RackSched (Zhu et al., OSDI 2020) as Horus evaluates it: power of two on loads that only replies
//! update.

use super::{Pick, Policy, Rng, Task, sample_two, select};
use crate::state::View;

/// The better of two random members by reported load alone.
#[derive(Clone, Debug, Default)]
pub struct RackSched;

impl Policy for RackSched {
    #[inline(always)]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let (a, b) = sample_two(view.active(), rng)?;
        let member = select(view.load(b) < view.load(a), a, b);
        view.picks.po2 += 1;
        Some(Pick { member, idle: false })
    }
}
