//! Horus (Yassini et al., NSDI 2024), 3.3, A.1 and A.6: an idle member if one is known, else the better of
//! two random ones by load plus drift.
//!
//! Deviations. A switch compares loads and updates them lazily, sending a packet through its pipeline a
//! second time when drift might change the choice; here comparing load plus drift costs nothing, and the
//! second passes are only counted. Any reply keeps the idle list true, not only those to idle picks.

use super::{Core, Pick, Policy, Rng, Task, better_of_two, note_idleness, share_idle};
use crate::state::{Report, View};

/// A leaf's Horus: it takes idle members off its list as it picks them.
#[derive(Clone, Debug, Default)]
pub struct Horus;

#[inline(always)]
fn pick(view: &mut View, rng: &mut Rng) -> Option<Pick> {
    if let Some(member) = view.idle_mut().take_last() {
        view.picks.idle += 1;
        return Some(Pick { member, idle: true });
    }
    better_of_two(view, rng).map(|(member, _)| Pick { member, idle: false })
}

/// As [`pick`], counting the task as sent by what has just been looked at.
#[inline(always)]
fn send(view: &mut View, rng: &mut Rng) -> Option<Pick> {
    if let Some(member) = view.idle_mut().take_last() {
        view.picks.idle += 1;
        view.sent(member);
        return Some(Pick { member, idle: true });
    }
    let (member, belief) = better_of_two(view, rng)?;
    view.sent_believing(member, belief);
    Some(Pick { member, idle: false })
}

impl Policy for Horus {
    #[inline(always)]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        pick(view, rng)
    }

    #[inline(always)]
    fn send(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        send(view, rng)
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        note_idleness(report.member, report.is_idle(), view);
    }

    fn on_members(&mut self, core: Core, view: &mut View) {
        share_idle(core, view);
    }
}

/// Horus that does not forget tasks in flight: on a reply, drift becomes what the member had been sent
/// and had not received when it answered. A member is idle only when nothing is on its way to it.
#[derive(Clone, Debug, Default)]
pub struct HorusInflight;

impl Policy for HorusInflight {
    #[inline(always)]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        pick(view, rng)
    }

    #[inline(always)]
    fn send(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        send(view, rng)
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let in_flight = view.set_load_keeping_in_flight(report.member, report.load);
        note_idleness(report.member, report.is_idle() && in_flight == 0, view);
    }

    fn on_members(&mut self, core: Core, view: &mut View) {
        share_idle(core, view);
    }
}
