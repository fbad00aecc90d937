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

use super::sample::{below, compare, sample_one, sample_two, select};
use super::structure::Alias;
use super::{
    AnyPolicy, Basis, Caller, Candidates, Entry, LeafReports, OverRacks, Pick, Picks, Policy, Rng,
    Runs, Task,
};
use crate::limits::BURST;
use crate::state::{Load, Member, MemberWords, Parts, Report, Sharing, View};

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
    shares: Shares,
    weighted: bool,
    by_size: Alias,
    largest: f64,
}

/// What a task adds to each rack's average load.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares(Vec<Load>);

impl Shares {
    /// By how many workers the racks have.
    pub(super) fn renew(&mut self, view: &View) {
        let racks = (0..view.members() as u16).map(Member);
        let share = |rack| Load((f64::from(Load::ONE.0) / view.rate(rack).max(1.0)) as u32);
        self.0.clear();
        self.0.extend(racks.map(share));
    }

    /// Of all racks, of which there are so many.
    #[inline(always)]
    pub(super) fn all(&self, racks: usize) -> &[Load] {
        &self.0[..racks]
    }

    #[inline(always)]
    pub(super) fn of(&self, rack: Member) -> Load {
        self.0.get(rack.index()).copied().unwrap_or(Load::ONE)
    }
}

/// Racks that nobody has heard of are taken to have idle workers.
pub(super) fn offer_unheard(view: &mut View) {
    for place in 0..view.active().len() {
        let rack = view.active()[place];
        if view.reports(rack) == 0 && view.outstanding(rack) == 0 {
            view.idle_mut().insert(rack);
        }
    }
}

/// Draws for an idle rack in proportion to size, after which the last one drawn is taken.
const DRAWS: usize = 16;

impl HorusSpine {
    /// With racks taken in proportion to their workers, or each alike.
    #[must_use]
    pub fn new(weighted: bool) -> Self {
        Self { weighted, ..Self::default() }
    }

    /// One of the idle racks, of which there are some.
    #[inline(always)]
    fn idle_rack(&self, parts: &Parts<'_>, rng: &mut Rng) -> Member {
        let idle = &parts.idle;
        let mut rack = idle.at(below(idle.len(), rng.next_u64() as u32));
        if self.weighted {
            for _ in 0..DRAWS {
                let bits = rng.next_u64();
                let drawn = f64::from((bits >> 32) as u32);
                if drawn < parts.rate(rack) / self.largest * 32.0_f64.exp2() {
                    break;
                }
                rack = idle.at(below(idle.len(), bits as u32));
            }
        }
        rack
    }

    /// Racks come on and off the idle list by their signals, so all tasks of a run find it alike.
    #[inline(never)]
    fn idle_run(&self, picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
        let mut local = rng.clone(); // stays in registers
        for pick in &mut *picks {
            let member = self.idle_rack(parts, &mut local);
            parts.words.of(member).sent_share(self.shares.of(member));
            *pick = Some(Pick { member, idle: true });
        }
        *rng = local;
        parts.picks.idle += picks.len() as u64;
    }

    /// The better of two racks, drawn alike or by size. Draws all pairs before it looks at the first, as Horus does at a leaf.
    #[inline(never)]
    fn of_two_run(&self, picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
        let mut pairs = [(Member(0), Member(0)); BURST];
        let mut local = rng.clone();
        for (pair, _) in pairs.iter_mut().zip(&*picks) {
            let drawn = match self.weighted {
                true => self.by_size.sample(&mut local).zip(self.by_size.sample(&mut local)),
                false => sample_two(parts.active, &mut local),
            };
            *pair = drawn.unwrap_or(*pair);
        }
        *rng = local;
        let words = parts.words;
        let shares = self.shares.all(words.members());
        let mut resubmits = 0;
        for (pick, &(a, b)) in picks.iter_mut().zip(&pairs) {
            let (one, other) = (words.of(a), words.of(b));
            let (believed_one, believed_other) = (one.belief(), other.belief());
            let (second, resubmit) = compare(believed_one, believed_other);
            let one = (one, believed_one, shares[a.index()]);
            let other = (other, believed_other, shares[b.index()]);
            MemberWords::sent_share_to_either(second, one, other);
            resubmits += u64::from(resubmit);
            *pick = Some(Pick { member: select(second, a, b), idle: false });
        }
        parts.picks.po2 += picks.len() as u64;
        parts.picks.resubmits += if self.weighted { 0 } else { resubmits };
    }

    /// A random rack, where there are so few that the better one is no better choice.
    #[cold]
    fn of_few(&self, picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
        for pick in picks {
            *pick = sample_one(parts.active, rng).map(|member| {
                parts.words.of(member).sent_share(self.shares.of(member));
                Pick { member, idle: false }
            });
        }
    }
}

impl Policy for HorusSpine {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let count = tasks.len().min(picks.len());
        let mut parts = view.parts();
        for picks in picks[..count].chunks_mut(BURST) {
            if parts.active.is_empty() {
                picks.fill(None);
            } else if !parts.idle.is_empty() {
                self.idle_run(picks, &mut parts, rng);
            } else if self.weighted || parts.active.len() > 2 {
                self.of_two_run(picks, &mut parts, rng);
            } else {
                self.of_few(picks, &mut parts, rng);
            }
        }
    }

    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        if !view.idle().is_empty() {
            return Candidates::new(Basis::Idle, []); // any of them
        }
        let active = view.active();
        let pair = match (self.weighted, active.len()) {
            (true, 1..) => self.by_size.sample(rng).zip(self.by_size.sample(rng)),
            (false, 3..) => sample_two(active, rng),
            _ => return Candidates::new(Basis::Drawn, sample_one(active, rng)),
        };
        Candidates::new(Basis::Drawn, pair.into_iter().flat_map(|(a, b)| [a, b]))
    }

    /// A rack's average load. Idleness has signals of its own.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        self.shares.renew(view);
        let sizes = view.active().iter().map(|&rack| view.rate(rack));
        self.largest = sizes.fold(0.0, f64::max);
        self.by_size.rebuild(view.members(), view.active(), |rack| view.rate(rack));
        offer_unheard(view);
    }
}
