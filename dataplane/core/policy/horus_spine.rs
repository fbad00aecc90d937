//! Horus at the spine (Yassini et al., NSDI 2024, 3.3). A spine schedules tasks over racks; each rack's leaf schedules
//! them over its workers. Members are racks, loads are averages over a rack's workers, and a task adds 1/workers to its
//! rack. The rate of a rack in the view is its number of workers.
//!
//! Deviations: the choice among idle racks is random, as in the authors' simulator; their switch program
//! takes the rack added last. With one or two racks, none of them idle, `horus-spine` chooses at random, as in the
//! simulator. Otherwise two racks with delayed state would receive tasks in herds.
//!
//! Horus ignores the sizes of racks, so a rack of 2 workers receives as many simultaneous tasks as one of 32,
//! and is overloaded. `horus-spine-weighted` is our variant: both steps choose racks in proportion to their
//! workers.

use rand::Rng as _;

use super::sample::{below, compare, sample_one, sample_two, select};
use super::structure::Alias;
use super::{
    AnyPolicy, Caller, Candidates, Entry, LeafReports, Pick, Picks, Policy, RackPolicy, Rng, Runs,
    SelectionBasis, Task,
};
use crate::limits::BURST;
use crate::state::{Load, Member, MemberState, Parts, PublishedState, Report, View};

/// `horus-spine`.
pub const PLAIN: Entry = Entry {
    runs: Runs::Spine,
    publishes: PublishedState::LOADS,
    over_racks: Some(RackPolicy { policy: "horus-spine", reports: LeafReports::Signals }),
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
    publishes: PublishedState::LOADS,
    over_racks: Some(RackPolicy { policy: "horus-spine-weighted", reports: LeafReports::Signals }),
    ..Entry::new(
        "horus-spine-weighted",
        "horus over racks, each taken in proportion to its workers",
        "wedjat, after Horus, NSDI 2024",
        |_| AnyPolicy::from(HorusSpine::new(true)),
    )
};

/// Horus at a spine. A rack leaves the idle list by its own signal, not when it is picked.
#[derive(Clone, Debug, Default)]
pub struct HorusSpine {
    /// Load that a task adds to each rack.
    shares: Shares,
    /// True to choose racks in proportion to their workers.
    weighted: bool,
    /// Table for draws of active racks in proportion to their workers.
    by_size: Alias,
    /// Number of workers of the largest active rack.
    largest: f64,
}

/// Increase of each rack's average load per task: 1/workers, by rack. Stored, so that a pick does not divide.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares(Vec<Load>);

impl Shares {
    /// Recomputes the increases from the racks' workers.
    pub(super) fn renew(&mut self, view: &View) {
        let racks = (0..view.members() as u16).map(Member);
        let share = |rack| Load((f64::from(Load::ONE.0) / view.rate(rack).max(1.0)) as u32);
        self.0.clear();
        self.0.extend(racks.map(share));
    }

    /// Returns the increases of the first `racks` racks. A loop's bounds checks then need only this length.
    #[inline(always)]
    pub(super) fn all(&self, racks: usize) -> &[Load] {
        &self.0[..racks]
    }

    /// Returns the increase of one rack.
    #[inline(always)]
    pub(super) fn of(&self, rack: Member) -> Load {
        self.0.get(rack.index()).copied().unwrap_or(Load::ONE)
    }
}

/// Marks racks without any load report or signal, and without outstanding tasks, as idle. A leaf starts with idle
/// workers, and signals their first change.
pub(super) fn offer_unreported(view: &mut View) {
    for place in 0..view.active().len() {
        let rack = view.active()[place];
        // A signal always has the number of workers.
        let is_unreported = view.reports(rack) == 0 && view.workers_of(rack).is_none();
        if is_unreported && view.outstanding(rack) == 0 {
            view.idle_mut().insert(rack);
        }
    }
}

/// Maximum number of rejected draws for an idle rack in proportion to size; the draw after the last of them counts.
const DRAWS: usize = 16;

impl HorusSpine {
    /// Creates the policy, with racks chosen in proportion to their workers or uniformly.
    #[must_use]
    pub fn new(weighted: bool) -> Self {
        Self { weighted, ..Self::default() }
    }

    /// Draws one of the idle racks, of which there is at least one.
    #[inline(always)]
    fn idle_rack(&self, parts: &Parts<'_>, rng: &mut Rng) -> Member {
        let idle = &parts.idle;
        let mut rack = idle.at(below(idle.len(), rng.next_u64() as u32));
        if self.weighted {
            // Rejection sampling: keeps a rack with a probability in proportion to its workers.
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

    /// Picks idle racks for a run. Only signals change the idle list, so all tasks of a run see the same
    /// list.
    #[inline(never)]
    fn idle_run(&self, picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
        let mut local = rng.clone(); // stays in registers
        for pick in &mut *picks {
            let member = self.idle_rack(parts, &mut local);
            parts.states.of(member).sent_share(self.shares.of(member));
            *pick = Some(Pick { member, idle: true });
        }
        *rng = local;
        parts.picks.idle += picks.len() as u64;
    }

    /// Picks the better of two racks, drawn uniformly or by size. Draws by size may return the same rack twice. Draws
    /// all pairs before it reads the first, like Horus at a leaf.
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
        let states = parts.states;
        let shares = self.shares.all(states.members());
        let mut resubmits = 0;
        for (pick, &(a, b)) in picks.iter_mut().zip(&pairs) {
            let (state_a, state_b) = (states.of(a), states.of(b));
            let (estimate_a, estimate_b) = (state_a.estimate(), state_b.estimate());
            let (second, resubmit) = compare(estimate_a, estimate_b);
            let change_a = (state_a, estimate_a, shares[a.index()]);
            let change_b = (state_b, estimate_b, shares[b.index()]);
            MemberState::sent_share_to_either(second, change_a, change_b);
            resubmits += u64::from(resubmit);
            *pick = Some(Pick { member: select(second, a, b), idle: false });
        }
        parts.picks.po2 += picks.len() as u64;
        // No switch implements the weighted variant, so it has no recirculations to count.
        parts.picks.resubmits += if self.weighted { 0 } else { resubmits };
    }

    /// Picks a random rack, where too few racks exist for a useful comparison: one or two.
    #[cold]
    fn of_few(&self, picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
        for pick in picks {
            *pick = sample_one(parts.active, rng).map(|member| {
                parts.states.of(member).sent_share(self.shares.of(member));
                Pick { member, idle: false }
            });
        }
    }
}

impl Policy for HorusSpine {
    /// Picks idle racks if there are any, else the better of two racks. Without weights and with at most two racks,
    /// picks a random one instead.
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

    /// Returns the racks that the next pick draws. If racks are idle, returns an empty list, which stands for any of
    /// these.
    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        if !view.idle().is_empty() {
            return Candidates::new(SelectionBasis::Idle, []);
        }
        let active = view.active();
        let pair = match (self.weighted, active.len()) {
            (true, 1..) => self.by_size.sample(rng).zip(self.by_size.sample(rng)),
            (false, 3..) => sample_two(active, rng),
            _ => return Candidates::new(SelectionBasis::Drawn, sample_one(active, rng)),
        };
        Candidates::new(SelectionBasis::Drawn, pair.into_iter().flat_map(|(a, b)| [a, b]))
    }

    /// Stores a rack's average load. Idleness has its own signals.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
    }

    /// Recomputes all values that derive from the racks' numbers of workers. Racks without a report so far count as
    /// idle.
    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        self.shares.renew(view);
        let sizes = view.active().iter().map(|&rack| view.rate(rack));
        self.largest = sizes.fold(0.0, f64::max);
        self.by_size.rebuild(view.members(), view.active(), |rack| view.rate(rack));
        offer_unreported(view);
    }
}
