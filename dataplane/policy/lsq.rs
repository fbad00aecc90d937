//! Local shortest queue (Vargaftik, Keslassy, Orda: LSQ, ToN 2020, V): every dispatcher sends to the shortest
//! queue of its own, possibly outdated, view, and counts in what it sends.
//!
//! How views are brought up to date makes the variants: the dispatcher samples (`lsq-sample`), members
//! report ([`super::member::Notify`]: `lsq-update`, `lsq-smart`), or both (`lsq-hybrid`, Example 3). The
//! `hlsq` forms rank by (queue + 1) / speed; they are ours.
//!
//! On a leaf every reply carries the queue, so whatever core a reply passes is brought up to date.

use rand::Rng as _;

use super::ranks::{Ranks, SpeedRanks};
use super::shortest::sample_distinct;
use super::{Core, Pick, Policy, Rng, Task};
use crate::state::{Member, Report, View};

/// A dispatcher's view of the queues.
#[derive(Clone, Debug)]
enum Queues {
    Plain(Ranks),
    BySpeed(SpeedRanks),
}

/// The shortest queue of the local view.
#[derive(Clone, Debug)]
pub struct Lsq {
    queues: Queues,
    samples: usize,
    /// An arrival samples when a random number is not above this.
    sample_below: u32,
}

impl Lsq {
    /// With `samples` members sampled on a share of `chance` of all arrivals, ranked by speed or not.
    #[must_use]
    pub fn new(samples: usize, chance: f64, by_speed: bool) -> Self {
        let queues = match by_speed {
            true => Queues::BySpeed(SpeedRanks::default()),
            false => Queues::Plain(Ranks::default()),
        };
        Self { queues, samples, sample_below: (chance * 32.0_f64.exp2()) as u32 }
    }

    #[inline]
    fn set(&mut self, member: Member, queue: u32) {
        match &mut self.queues {
            Queues::Plain(ranks) => ranks.set(member, queue),
            Queues::BySpeed(ranks) => ranks.set(member, queue),
        }
    }

    fn sample(&mut self, view: &mut View, rng: &mut Rng) {
        if self.sample_below < u32::MAX && rng.next_u64() as u32 >= self.sample_below {
            return;
        }
        let mut probes = 0;
        sample_distinct(self.samples, view, rng, |member| {
            self.set(member, view.probe(member));
            probes += 1;
        });
        view.picks.messages += probes;
    }
}

impl Policy for Lsq {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        if self.samples > 0 {
            self.sample(view, rng);
        }
        let (member, queue) = match &self.queues {
            Queues::Plain(ranks) => {
                let member = ranks.shortest(rng)?;
                (member, ranks.queue(member))
            }
            Queues::BySpeed(ranks) => {
                let member = ranks.soonest(rng)?;
                (member, ranks.queue(member))
            }
        };
        Some(Pick { member, idle: queue == 0 })
    }

    #[inline]
    fn on_sent(&mut self, member: Member, _view: &mut View) {
        match &mut self.queues {
            Queues::Plain(ranks) => ranks.add(member),
            Queues::BySpeed(ranks) => ranks.add(member),
        }
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        self.set(report.member, report.load.0 >> 16);
    }

    fn on_members(&mut self, _core: Core, view: &mut View) {
        match &mut self.queues {
            Queues::Plain(ranks) => ranks.rank(view.members(), view.active().iter().copied()),
            Queues::BySpeed(ranks) => {
                ranks.rank(view.members(), view.active(), |member| view.rate(member));
            }
        }
    }
}
