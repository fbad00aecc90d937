//! Local shortest queue (Vargaftik, Keslassy, Orda: LSQ, ToN 2020, V): every dispatcher sends to the shortest
//! queue of its own, possibly outdated, view, and counts in what it sends.
//!
//! How views are brought up to date makes the variants: the dispatcher samples (`lsq-sample`), members
//! report ([`super::member::Notify`]: `lsq-update`, `lsq-smart`), or both (`lsq-hybrid`, Example 3). The
//! `hlsq` forms rank by (queue + 1) / speed; they are ours.
//!
//! On a leaf every reply carries the queue, so whatever core a reply passes is brought up to date.

use rand::Rng as _;

use super::ranks::Ranking;
use super::shortest::sample_distinct;
use super::{Core, Pick, Policy, Rng, Task};
use crate::state::{Member, Report, View};

/// The shortest queue of the local view.
#[derive(Clone, Debug)]
pub struct Lsq {
    queues: Ranking,
    samples: usize,
    /// An arrival samples when a random number is not above this.
    sample_below: u32,
}

impl Lsq {
    /// With `samples` members sampled on a share of `chance` of all arrivals, ranked by speed or not.
    #[must_use]
    pub fn new(samples: usize, chance: f64, by_speed: bool) -> Self {
        let queues = Ranking::new(by_speed);
        Self { queues, samples, sample_below: (chance * 32.0_f64.exp2()) as u32 }
    }

    fn sample(&mut self, view: &mut View, rng: &mut Rng) {
        if self.sample_below < u32::MAX && rng.next_u64() as u32 >= self.sample_below {
            return;
        }
        let mut probes = 0;
        sample_distinct(self.samples, view, rng, |member| {
            self.queues.set(member, view.probe(member));
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
        let member = self.queues.first(rng)?;
        Some(Pick { member, idle: self.queues.queue(member) == 0 })
    }

    /// As one by one, but a member is found and counted up in one go where nothing is sampled in between.
    fn pick_run(
        &mut self,
        tasks: &[Task],
        picks: &mut [Option<Pick>],
        view: &mut View,
        rng: &mut Rng,
    ) {
        for (task, pick) in tasks.iter().zip(picks) {
            if let (Ranking::Queue(ranks), 0) = (&mut self.queues, self.samples) {
                let idle = ranks.least() == 0;
                *pick = ranks.take_shortest(rng).map(|member| Pick { member, idle });
                pick.iter().for_each(|pick| view.sent(pick.member));
                continue;
            }
            *pick = self.pick(task, view, rng);
            if let Some(pick) = pick {
                view.sent(pick.member);
                self.queues.add(pick.member);
            }
        }
    }

    #[inline]
    fn on_sent(&mut self, member: Member, _view: &mut View) {
        self.queues.add(member);
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        self.queues.set(report.member, report.load.0 >> 16);
    }

    fn on_members(&mut self, _core: Core, view: &mut View) {
        self.queues.rank(view);
    }
}
