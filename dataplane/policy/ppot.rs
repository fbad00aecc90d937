//! Proportional power of two (Rosella, IV): two draws in proportion to the members' service rates, which may
//! coincide, and the shorter queue of the two, or the one that would be done first (`ppot-ll`).

use super::alias::Alias;
use super::shortest::note_outstanding;
use super::{Core, Pick, Policy, Rng, Task, select};
use crate::state::{Report, View};

/// With rates that are given.
#[derive(Clone, Debug, Default)]
pub struct Ppot {
    /// Compare (queue + 1) / rate, not queues.
    least_loaded: bool,
    alias: Alias,
}

impl Ppot {
    /// By queue, or by time.
    #[must_use]
    pub fn new(least_loaded: bool) -> Self {
        Self { least_loaded, ..Self::default() }
    }
}

impl Policy for Ppot {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let (a, b) = (self.alias.sample(rng)?, self.alias.sample(rng)?);
        let (queue_a, queue_b) = (view.probe(a), view.probe(b));
        let second = match self.least_loaded {
            false => queue_b < queue_a,
            true => {
                let time = |queue, rate| f64::from(queue + 1) / rate;
                time(queue_b, view.rate(b)) < time(queue_a, view.rate(a))
            }
        };
        view.picks.po2 += 1;
        view.picks.messages += 2;
        Some(Pick { member: select(second, a, b), idle: select(second, queue_a, queue_b) == 0 })
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        note_outstanding(report, view);
    }

    fn on_members(&mut self, _core: Core, view: &mut View) {
        self.alias.rebuild(view.active(), |member| view.rate(member));
    }
}
