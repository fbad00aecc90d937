//! Detection of tasks lost on the way to a member or back, which would stay outstanding for ever. Policies that count
//! outstanding tasks pass each load report through [`Losses`], which *writes off* lost tasks: it subtracts them from
//! the outstanding ones.
//!
//! *In flight* means here: outstanding, and not among the tasks that the member reports. Such a task is on its
//! way to the member or back, or lost. Traffic to a member pauses from time to time, so the smallest number in
//! flight at 64 consecutive reports is the number of lost tasks. A member's *drift* is the load sent to it since its
//! last report.

use crate::state::{Load, MemberState, Parts, Report, View};

/// Number of a member's reports in a window. Nearly all reports arrive in replies.
const REPLIES: u8 = 64;

/// Minimum number of a member's tasks in flight over a window of its reports.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Number of reports so far.
    replies: u8,
    /// Minimum so far.
    least: u32,
}

impl Window {
    /// A window without reports.
    const FRESH: Self = Self { replies: 0, least: u32::MAX };
}

/// Detection of lost tasks by one window for each member, for policies that use outstanding tasks.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    windows: Vec<Window>,
}

/// The windows of [`Losses`], borrowed for a run of reports. The slice has one window for each member of the view, so
/// that the compiler need not check a member's index again.
#[derive(Debug)]
pub struct LossWatch<'a> {
    windows: &'a mut [Window],
}

impl Losses {
    /// Sets the number of members; existing windows stay.
    pub fn resize(&mut self, members: usize) {
        self.windows.resize(members, Window::FRESH);
    }

    /// Returns the windows for a run of reports of `members` members.
    #[inline(always)]
    pub fn watch(&mut self, members: usize) -> LossWatch<'_> {
        LossWatch { windows: &mut self.windows[..members] }
    }

    /// Processes the report of a reply whose task is already counted as answered, or a report without a reply.
    /// Returns the tasks left at the member.
    #[inline]
    pub fn take(&mut self, report: &Report, view: &View) -> u32 {
        let state = view.of(report.member);
        self.watch(view.members()).take(state, report, state.outstanding())
    }

    /// Counts each reply as answered and processes its report. Returns the number of replies from members without
    /// outstanding tasks.
    #[inline(always)]
    pub fn answer_run(&mut self, reports: &[Report], view: &mut View) -> usize {
        let parts = view.parts();
        let watch = self.watch(parts.states.members());
        // The same loop, compiled for both cases. Without other cores it looks up no remote counts.
        match parts.states.are_alone() {
            true => watch.answer_each(reports, parts.alone()),
            false => watch.answer_each(reports, parts),
        }
    }
}

impl LossWatch<'_> {
    /// Loop of [`Losses::answer_run`]. Returns the number of replies from members without outstanding tasks.
    #[inline(always)]
    fn answer_each(mut self, reports: &[Report], mut parts: Parts<'_>) -> usize {
        for report in reports {
            self.answer(report, &mut parts);
        }
        parts.surplus
    }

    /// Counts a reply as answered; without an outstanding task, as surplus. Processes its report. Returns the tasks
    /// left at the member.
    #[inline(always)]
    pub fn answer(&mut self, report: &Report, parts: &mut Parts<'_>) -> u32 {
        let state = parts.states.of(report.member);
        let mut outstanding = state.outstanding();
        // A reply of a member without tasks is a duplicate, or answers another node's task. With inexact counts of
        // other cores' tasks it may also answer one of theirs.
        if outstanding == 0 && state.is_exact() {
            parts.surplus += 1;
        } else {
            state.take_off(1);
            outstanding = outstanding.saturating_sub(1);
        }
        self.take(state, report, outstanding)
    }

    /// Processes a report of a member with `outstanding` tasks. Returns the tasks left, without the lost
    /// ones.
    #[inline(always)]
    fn take(&mut self, state: MemberState<'_>, report: &Report, outstanding: u32) -> u32 {
        let in_flight = outstanding.saturating_sub(report.load.whole_tasks());
        state.set_load(report.load);
        outstanding - self.settle(state, in_flight)
    }

    /// Processes a report, for policies that decide by load plus drift. The outstanding tasks beyond the reported ones
    /// were in flight when the member answered: they become its drift, which the report would otherwise clear. Returns
    /// their number, without the lost ones.
    #[inline(always)]
    pub fn keep_in_flight(&mut self, state: MemberState<'_>, load: Load) -> u32 {
        let in_flight = state.outstanding().saturating_sub(load.whole_tasks());
        let in_flight = in_flight - self.settle(state, in_flight);
        state.set_load(load);
        state.add_drift(state.estimate(), Load(in_flight.saturating_mul(Load::ONE.0)));
        in_flight
    }

    /// Updates a member's window with the tasks in flight at one of its reports. A full window writes off its minimum
    /// as lost. Returns the number of tasks written off.
    #[inline(always)]
    fn settle(&mut self, state: MemberState<'_>, in_flight: u32) -> u32 {
        let window = &mut self.windows[state.member().index()];
        window.least = window.least.min(in_flight);
        window.replies += 1;
        if window.replies < REPLIES {
            return 0;
        }
        // Inexact counts of other cores may still contain answered tasks, which look like lost ones. Then nothing is
        // written off here. The liveness checks of the stages find lost tasks in any case.
        let lost = if state.is_exact() { window.least } else { 0 };
        *window = Window::FRESH;
        state.take_off(lost); // at most those in flight now
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Member;

    const A: Member = Member(0);

    /// Creates the view and the windows of one member.
    fn one() -> (View, Losses) {
        let mut losses = Losses::default();
        losses.resize(1);
        (View::heap(1, 1).remove(0), losses)
    }

    #[test]
    fn in_flight_tasks_are_not_forgotten() {
        let (mut view, mut losses) = one();
        for _ in 0..4 {
            view.sent(A);
        }
        // The member answers one and has one queued: two have not reached it yet.
        view.answered(A);
        assert_eq!(losses.watch(1).keep_in_flight(view.of(A), Load::tasks(1)), 2);
        assert_eq!(view.load_and_drift(A), (Load::tasks(1), Load::tasks(2)));
    }

    // promise: scheduling.4
    #[test]
    fn lost_tasks_are_written_off() {
        let (mut view, mut losses) = one();
        for _ in 0..3 {
            view.sent(A); // lost
        }
        for _ in 0..2 * REPLIES {
            view.sent(A);
            view.answered(A);
            losses.watch(1).keep_in_flight(view.of(A), Load(0));
        }
        assert_eq!(view.outstanding(A), 0);
        assert_eq!(view.estimated_load(A), 0);
    }
}
