//! Horus (Yassini et al., NSDI 2024), 3.3, A.1 and A.6: an idle member if one is known, else the better of
//! two random ones by load plus drift.
//!
//! Deviations. A switch compares loads and updates them lazily, sending a packet through its pipeline a
//! second time when drift might change the choice; here comparing load plus drift costs nothing, and the
//! second passes are only counted. Any reply keeps the idle list true, not only those to idle picks.

use super::beliefs::idle_first;
use super::sample::{compare, sample_two, select, share_idle, take_shared};
use super::structure::{Losses, Watch};
use super::{
    AnyPolicy, Basis, Caller, Candidates, Entry, LeafReports, OverRacks, Pick, Picks, Policy, Rng,
    Task,
};
use crate::limits::BURST;
use crate::state::{Member, MemberWords, Parts, Report, Sharing, View};

/// `horus`.
pub const HORUS: Entry = Entry {
    over_racks: Some(OverRacks { policy: "horus-spine", reports: LeafReports::Signals }),
    sharing: SHARING,
    ..Entry::new(
        "horus",
        "an idle member, else the better of two random ones by load plus drift",
        "Horus, NSDI 2024, 3.3",
        |_| AnyPolicy::from(Horus),
    )
};

/// `horus-inflight`.
pub const INFLIGHT: Entry = Entry {
    sharing: SHARING,
    ..Entry::new(
        "horus-inflight",
        "horus that never forgets tasks on their way to a member",
        "wedjat, after Horus, NSDI 2024",
        |_| AnyPolicy::from(HorusInflight::default()),
    )
};

const SHARING: Sharing = Sharing::LOADS.with_idle();

/// A leaf's Horus: it takes idle members off its list as it picks them.
#[derive(Clone, Debug, Default)]
pub struct Horus;

/// Nobody becomes idle between the tasks of a run, so the idle members come first, and who is left over
/// is chosen in a loop that does not ask.
#[inline(always)]
fn pick_run(tasks: usize, picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
    let count = tasks.min(picks.len());
    let taken = if view.shares_idle() { take_shared(&mut picks[..count], view) } else { 0 };
    view.picks.idle += taken as u64;
    let (picks, count) = (&mut picks[taken..], count - taken);
    let mut parts = view.parts();
    let (idle, others) = picks[..count].split_at_mut(parts.idle.len().min(count));
    parts.picks.idle += idle.len() as u64;
    for pick in idle {
        *pick = parts.idle.take_last().map(|member| {
            parts.words.of(member).sent();
            Pick { member, idle: true }
        });
    }
    for picks in others.chunks_mut(BURST) {
        of_two_run(picks, &mut parts, rng);
    }
}

/// An idle member, or the two that are drawn.
fn candidates(view: &View, rng: &mut Rng) -> Candidates {
    let drawn = |rng: &mut Rng| {
        let pair = sample_two(view.active(), rng);
        Candidates::new(Basis::Drawn, pair.into_iter().flat_map(|(a, b)| [a, b]))
    };
    idle_first(view).unwrap_or_else(|| drawn(rng))
}

/// Draws all pairs before it looks at the first: either loop alone has registers enough.
#[inline(never)]
fn of_two_run(picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
    let words = parts.words;
    if parts.active.len() < 2 {
        let only = parts.active.first();
        for pick in picks {
            *pick = only.map(|&member| {
                words.of(member).sent();
                Pick { member, idle: false }
            });
        }
        return;
    }
    let mut pairs = [(Member(0), Member(0)); BURST];
    let mut local = rng.clone(); // stays in registers
    for (pair, _) in pairs.iter_mut().zip(&*picks) {
        *pair = sample_two(parts.active, &mut local).unwrap_or(*pair);
    }
    *rng = local;
    let mut resubmits = 0;
    for (pick, &(a, b)) in picks.iter_mut().zip(&pairs) {
        let (one, other) = (words.of(a), words.of(b));
        let (believed_one, believed_other) = (one.belief(), other.belief());
        let (second, resubmit) = compare(believed_one, believed_other);
        MemberWords::sent_to_either(second, (one, believed_one), (other, believed_other));
        resubmits += u64::from(resubmit);
        *pick = Some(Pick { member: select(second, a, b), idle: false });
    }
    parts.picks.po2 += picks.len() as u64;
    parts.picks.resubmits += resubmits;
}

impl Policy for Horus {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        pick_run(tasks.len(), picks, view, rng);
    }

    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        candidates(view, rng)
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        view.idle_mut().words().note(report.member, report.is_idle());
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let parts = view.parts();
        match parts.words.are_alone() {
            true => forget_drift(reports, parts.alone()),
            false => forget_drift(reports, parts),
        }
    }

    fn on_members(&mut self, caller: Caller, view: &mut View) {
        share_idle(caller, view);
    }
}

/// Takes reports of replies; returns how many came from members that owed none.
#[inline(always)]
fn forget_drift(reports: &[Report], mut parts: Parts<'_>) -> usize {
    let mut surplus = 0;
    for report in reports {
        let words = parts.words.of(report.member);
        surplus += usize::from(!words.answered());
        words.set_load(report.load);
        parts.idle.note(report.member, report.is_idle());
    }
    surplus
}

/// Horus that does not forget tasks in flight: on a reply, drift becomes what the member had been sent
/// and had not received when it answered. A member is idle only when nothing is on its way to it.
#[derive(Clone, Debug, Default)]
pub struct HorusInflight {
    losses: Losses,
}

impl Policy for HorusInflight {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        pick_run(tasks.len(), picks, view, rng);
    }

    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        candidates(view, rng)
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let mut watch = self.losses.watch(view.members());
        keep_in_flight(report, &mut watch, &mut view.parts());
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let mut parts = view.parts();
        let mut watch = self.losses.watch(parts.words.members());
        let mut surplus = 0;
        for report in reports {
            surplus += usize::from(!parts.words.of(report.member).answered());
            keep_in_flight(report, &mut watch, &mut parts);
        }
        surplus
    }

    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.losses.resize(view.members());
        share_idle(caller, view);
    }
}

#[inline(always)]
fn keep_in_flight(report: &Report, watch: &mut Watch<'_>, parts: &mut Parts<'_>) {
    let in_flight = watch.keep_in_flight(parts.words.of(report.member), report.load);
    parts.idle.note(report.member, report.is_idle() && in_flight == 0);
}
