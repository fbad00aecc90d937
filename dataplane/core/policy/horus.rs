//! Horus (Yassini et al., NSDI 2024), 3.3, A.1 and A.6: an idle member if one is known, else the better of
//! two random members by load plus drift.
//!
//! Deviations: a switch compares loads only and corrects them lazily, by recirculating a packet if drift
//! might change the choice. Here comparing load plus drift costs nothing, and recirculations are only
//! counted (`picks.resubmits`). *Drift* is the load sent to a member since its last report. Any reply updates
//! the idle list, not only replies to idle picks.

use super::beliefs::next_idle;
use super::sample::{compare, sample_two, select, share_idle, take_shared};
use super::structure::{LossWatch, Losses};
use super::{
    AnyPolicy, Caller, Candidates, Entry, LeafReports, Pick, Picks, Policy, RackPolicy, Rng,
    SelectionBasis, Task,
};
use crate::limits::BURST;
use crate::state::{Member, MemberState, Parts, PublishedState, Report, View};

/// `horus`.
pub const HORUS: Entry = Entry {
    over_racks: Some(RackPolicy { policy: "horus-spine", reports: LeafReports::Signals }),
    publishes: PUBLISHES,
    ..Entry::new(
        "horus",
        "an idle member, else the better of two random ones by load plus drift",
        "Horus, NSDI 2024, 3.3",
        |_| AnyPolicy::from(Horus),
    )
};

/// `horus-inflight`.
pub const INFLIGHT: Entry = Entry {
    publishes: PUBLISHES,
    ..Entry::new(
        "horus-inflight",
        "horus that never forgets tasks on their way to a member",
        "wedjat, after Horus, NSDI 2024",
        |_| AnyPolicy::from(HorusInflight::default()),
    )
};

/// Cores exchange estimated loads, and each idle member belongs to one core.
const PUBLISHES: PublishedState = PublishedState::LOADS.with_idle();

/// Horus at a leaf. A pick of an idle member removes it from the list.
#[derive(Clone, Debug, Default)]
pub struct Horus;

/// Picks a member for each task: idle members first, then the better of two random ones. No member becomes idle within
/// a run, so the remaining tasks use a loop without a check for idle members.
#[inline(always)]
fn pick_run(tasks: usize, picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
    let count = tasks.min(picks.len());
    // On a node with several cores each idle member belongs to one core: takes this core's, then those that another
    // core released. Tasks remain only once this core's list is empty, so the loop over `idle` below is empty, too.
    let taken = if view.shares_idle() { take_shared(&mut picks[..count], view) } else { 0 };
    let (picks, count) = (&mut picks[taken..], count - taken);
    let mut parts = view.parts();
    let (idle, remaining) = picks[..count].split_at_mut(parts.idle.len().min(count));
    parts.picks.idle += idle.len() as u64;
    for pick in idle {
        *pick = parts.idle.take_last().map(|member| {
            parts.states.of(member).sent();
            Pick { member, idle: true }
        });
    }
    for picks in remaining.chunks_mut(BURST) {
        of_two_run(picks, &mut parts, rng);
    }
}

/// Returns an idle member, or the two members that the next pick draws with this `rng`. `wedjat explain` shows them.
fn candidates(view: &View, rng: &mut Rng) -> Candidates {
    let drawn = |rng: &mut Rng| {
        let pair = sample_two(view.active(), rng);
        Candidates::new(SelectionBasis::Drawn, pair.into_iter().flat_map(|(a, b)| [a, b]))
    };
    next_idle(view).unwrap_or_else(|| drawn(rng))
}

/// Picks the better of two random members for each task. Draws all pairs before it reads the first, so that
/// each of the two loops has enough registers.
#[inline(never)]
fn of_two_run(picks: Picks<'_>, parts: &mut Parts<'_>, rng: &mut Rng) {
    let states = parts.states;
    if parts.active.len() < 2 {
        let only = parts.active.first();
        for pick in picks {
            *pick = only.map(|&member| {
                states.of(member).sent();
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
        let (state_a, state_b) = (states.of(a), states.of(b));
        let (estimate_a, estimate_b) = (state_a.estimate(), state_b.estimate());
        let (second, resubmit) = compare(estimate_a, estimate_b);
        // Counts the task at the chosen member, without a branch.
        MemberState::sent_to_either(second, (state_a, estimate_a), (state_b, estimate_b));
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

    /// Stores the load of a report without a reply, for instance in a keep-alive. Counts no answer.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        view.idle_mut().words().note(report.member, report.is_idle());
    }

    /// Counts answers, stores the loads, and updates the idle list.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        view.take_loads_and_idle(reports)
    }

    /// Adds this core's share of the idle members to its list, after a start or a change of members.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        share_idle(caller, view);
    }
}

/// Horus that remembers tasks in flight. On a reply, drift becomes the number of tasks sent to the member
/// that it had not received when it answered. A member is idle only if no task is in flight to it.
#[derive(Clone, Debug, Default)]
pub struct HorusInflight {
    /// Detection of lost tasks, which would count as in flight for ever.
    losses: Losses,
}

impl Policy for HorusInflight {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        pick_run(tasks.len(), picks, view, rng);
    }

    fn candidates(&self, view: &View, rng: &mut Rng) -> Candidates {
        candidates(view, rng)
    }

    /// Processes a report without a reply. Counts no answer.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let mut watch = self.losses.watch(view.members(), view.burst_ns());
        keep_in_flight(report, false, &mut watch, &mut view.parts());
    }

    /// Counts answers, and keeps the tasks in flight as drift.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let now_ns = view.burst_ns();
        let parts = view.parts();
        let watch = self.losses.watch(parts.states.members(), now_ns);
        // The same loop, compiled for both cases. Without other cores it looks up no remote counts.
        match parts.are_alone() {
            true => keep_run(reports, watch, parts.alone()),
            false => keep_run(reports, watch, parts),
        }
    }

    /// Adds this core's share of the idle members to its list, after a start or a change of members. Makes room for the
    /// loss detection of each member.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.losses.resize(view);
        share_idle(caller, view);
    }

    /// Updates the measurement of the round trip.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        self.losses.on_tick(view);
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.losses.round_trip_ns()
    }
}

/// Counts answers, and keeps the tasks in flight as drift. Returns the number of replies from members without
/// outstanding tasks.
#[inline(always)]
fn keep_run(reports: &[Report], mut watch: LossWatch<'_>, mut parts: Parts<'_>) -> usize {
    let mut surplus = 0;
    for report in reports {
        surplus += usize::from(!parts.states.of(report.member).answered());
        keep_in_flight(report, true, &mut watch, &mut parts);
    }
    surplus
}

/// Processes a report, of a reply or without one, and keeps the tasks in flight as drift. `watch` writes off lost ones,
/// which stay in flight for ever.
#[inline(always)]
fn keep_in_flight(
    report: &Report,
    is_reply: bool,
    watch: &mut LossWatch<'_>,
    parts: &mut Parts<'_>,
) {
    let in_flight = watch.keep_in_flight(parts.states.of(report.member), report, is_reply);
    parts.idle.note(report.member, report.is_idle() && in_flight == 0);
}
