//! Horus at the spine (Yassini et al., NSDI 2024, 3.3): members are racks, loads are averages over a
//! rack's workers, and a task adds 1/workers to the rack that gets it.
//!
//! Deviations. Which of the idle racks a spine takes is random here, as in the authors' simulator; their
//! switch program takes the one added last. With one or two racks that are not idle, the choice between
//! them is random, as in the simulator: two racks seen late are herded between otherwise.
//!
//! Horus takes racks without regard to their size, so that a rack of 2 workers gets as many of the tasks
//! of a moment as one of 32, and drowns. `horus-spine-weighted`, which is ours, takes racks in
//! proportion to their workers, in both steps.

use rand::Rng as _;

use super::sample::{below, better_of_two, sample_one, select};
use super::structure::Alias;
use super::{
    AnyPolicy, Caller, Entry, LeafReports, OverRacks, Pick, Picks, Policy, Rng, Runs, Task,
};
use crate::state::{Load, Member, Report, Sharing, View};

/// `horus-spine`.
pub const PLAIN: Entry = Entry {
    runs: Runs::Spine,
    sharing: Sharing::LOADS,
    over_racks: Some(OverRacks { policy: "horus-spine", reports: LeafReports::Signals }),
    ..Entry::new(
        "horus-spine",
        "horus over racks: a random idle rack, else the better of two, by average load",
        "Horus, NSDI 2024, 3.3",
        |_| AnyPolicy::from(HorusSpine::default()),
    )
};

/// `horus-spine-weighted`.
pub const WEIGHTED: Entry = Entry {
    runs: Runs::Spine,
    sharing: Sharing::LOADS,
    over_racks: Some(OverRacks { policy: "horus-spine-weighted", reports: LeafReports::Signals }),
    ..Entry::new(
        "horus-spine-weighted",
        "horus over racks, each taken in proportion to its workers",
        "wedjat, after Horus, NSDI 2024",
        |_| AnyPolicy::from(HorusSpine::new(true)),
    )
};

/// A spine's Horus. A rack leaves its idle list when the rack says so, not when it is picked.
#[derive(Clone, Debug, Default)]
pub struct HorusSpine {
    /// What a task adds to each rack's average.
    shares: Vec<Load>,
    weighted: bool,
    by_size: Alias,
    largest: f64,
}

/// Draws for an idle rack in proportion to size, after which the last one drawn is taken.
const DRAWS: usize = 16;

impl HorusSpine {
    /// With racks taken in proportion to their workers, or each alike.
    #[must_use]
    pub fn new(weighted: bool) -> Self {
        Self { weighted, ..Self::default() }
    }

    #[inline]
    fn idle_rack(&self, view: &View, rng: &mut Rng) -> Option<Member> {
        let idle = view.idle();
        if idle.is_empty() {
            return None;
        }
        let mut rack = idle.at(below(idle.len(), rng.next_u64() as u32));
        if self.weighted {
            for _ in 0..DRAWS {
                let bits = rng.next_u64();
                if f64::from((bits >> 32) as u32) < view.rate(rack) / self.largest * 32.0_f64.exp2()
                {
                    break;
                }
                rack = idle.at(below(idle.len(), bits as u32));
            }
        }
        Some(rack)
    }

    /// The better of two racks drawn by size.
    #[inline]
    fn of_two_by_size(&self, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let (a, b) = (self.by_size.sample(rng)?, self.by_size.sample(rng)?);
        view.picks.po2 += 1;
        let member = select(view.estimate(b) < view.estimate(a), a, b);
        Some(Pick { member, idle: false })
    }

    #[inline]
    fn pick(&self, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        if let Some(member) = self.idle_rack(view, rng) {
            view.picks.idle += 1;
            return Some(Pick { member, idle: true });
        }
        if self.weighted {
            return self.of_two_by_size(view, rng);
        }
        let member = match view.active().len() > 2 {
            true => better_of_two(view, rng),
            false => sample_one(view.active(), rng),
        };
        member.map(|member| Pick { member, idle: false })
    }

    fn share(&self, rack: Member) -> Load {
        self.shares.get(rack.index()).copied().unwrap_or(Load::ONE)
    }
}

impl Policy for HorusSpine {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        for pick in picks.iter_mut().take(tasks.len()) {
            *pick = self.pick(view, rng);
            if let Some(pick) = pick {
                view.sent_share(pick.member, self.share(pick.member));
            }
        }
    }

    /// A rack's average load. Idleness has signals of its own.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        let members = (0..view.members() as u16).map(Member);
        let share = |rack| Load((f64::from(Load::ONE.0) / view.rate(rack).max(1.0)) as u32);
        self.shares.clear();
        self.shares.extend(members.map(share));
        let sizes = view.active().iter().map(|&rack| view.rate(rack));
        self.largest = sizes.fold(0.0, f64::max);
        self.by_size.rebuild(view.members(), view.active(), |rack| view.rate(rack));
        for place in 0..view.active().len() {
            let rack = view.active()[place];
            if view.reports(rack) == 0 && view.outstanding(rack) == 0 {
                view.idle_mut().insert(rack);
            }
        }
    }
}
