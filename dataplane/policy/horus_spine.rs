//! Horus at the spine (Yassini et al., NSDI 2024, 3.3): members are racks, loads are averages over a
//! rack's workers, and a task adds 1/workers to the rack that gets it.
//!
//! Deviations. Which of the idle racks a spine takes is random here, as in the authors' simulator; their
//! switch program takes the one added last. With one or two racks that are not idle, the choice between
//! them is random, as in the simulator: two racks seen late are herded between otherwise.

use rand::Rng as _;

use super::{Core, Pick, Policy, Rng, Task, below, pick_of_two, sample_one};
use crate::state::{Load, Member, Report, View};

/// A spine's Horus. A rack leaves its idle list when the rack says so, not when it is picked.
#[derive(Clone, Debug, Default)]
pub struct HorusSpine {
    /// What a task adds to each rack's average.
    shares: Vec<Load>,
}

impl HorusSpine {
    fn share(&self, rack: Member) -> Load {
        self.shares.get(rack.index()).copied().unwrap_or(Load::ONE)
    }
}

impl Policy for HorusSpine {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let idle = view.idle().len();
        if idle > 0 {
            let member = view.idle().at(below(idle, rng.next_u64() as u32));
            view.picks.idle += 1;
            return Some(Pick { member, idle: true });
        }
        if view.active().len() > 2 {
            return pick_of_two(view, rng);
        }
        sample_one(view, rng).map(|member| Pick { member, idle: false })
    }

    fn pick_run(
        &mut self,
        tasks: &[Task],
        picks: &mut [Option<Pick>],
        view: &mut View,
        rng: &mut Rng,
    ) {
        for (task, pick) in tasks.iter().zip(picks) {
            *pick = self.pick(task, view, rng);
            if let Some(pick) = pick {
                view.sent_share(pick.member, self.share(pick.member));
            }
        }
    }

    /// A rack's average load. Idleness has signals of its own.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    fn on_members(&mut self, _core: Core, view: &mut View) {
        let members = (0..view.members() as u16).map(Member);
        let share = |rack| Load((f64::from(Load::ONE.0) / view.rate(rack).max(1.0)) as u32);
        self.shares = members.map(share).collect();
        for place in 0..view.active().len() {
            let rack = view.active()[place];
            if view.reports(rack) == 0 && view.outstanding(rack) == 0 {
                view.idle_mut().insert(rack);
            }
        }
    }
}
