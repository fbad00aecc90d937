//! Tasks lost on their way to a member or back, which would stay outstanding for ever. Since traffic to one member pauses
//! now and then, what is in flight at each of 64 of its replies is lost.

use crate::state::{Load, MemberWords, Parts, Report, View};

/// Replies in a window.
const REPLIES: u8 = 64;

/// Least number of tasks seen in flight to a member over a window of its replies.
#[derive(Clone, Copy, Debug)]
struct Window {
    replies: u8,
    least: u32,
}

impl Window {
    const FRESH: Self = Self { replies: 0, least: u32::MAX };
}

/// A window of each member's replies, for policies that decide on what is outstanding.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    windows: Vec<Window>,
}

/// The same, for a run of reports.
#[derive(Debug)]
pub struct Watch<'a> {
    windows: &'a mut [Window],
}

impl Losses {
    /// There are so many members; what is known of them stays.
    pub fn resize(&mut self, members: usize) {
        self.windows.resize(members, Window::FRESH);
    }

    /// For a run of reports of so many members.
    #[inline(always)]
    pub fn watch(&mut self, members: usize) -> Watch<'_> {
        Watch { windows: &mut self.windows[..members] }
    }

    /// Takes a report of a task that is counted as answered already, or of none; returns how many are left at the member.
    #[inline]
    pub fn take(&mut self, report: &Report, view: &View) -> u32 {
        let words = view.of(report.member);
        self.watch(view.members()).take(words, report, words.outstanding())
    }

    /// Takes reports of replies, each counted as answered; returns how many came from members that owed none.
    #[inline(always)]
    pub fn answer_run(&mut self, reports: &[Report], view: &mut View) -> usize {
        let parts = view.parts();
        let watch = self.watch(parts.words.members());
        match parts.words.are_alone() {
            true => watch.answer_each(reports, parts.alone()),
            false => watch.answer_each(reports, parts),
        }
    }
}

impl Watch<'_> {
    /// Counts tasks as answered and takes their reports; returns how many came from members that owed none.
    #[inline(always)]
    fn answer_each(mut self, reports: &[Report], mut parts: Parts<'_>) -> usize {
        for report in reports {
            self.answer(report, &mut parts);
        }
        parts.surplus
    }

    /// Counts a task as answered and takes its report. Returns how many are left at the member.
    #[inline(always)]
    pub fn answer(&mut self, report: &Report, parts: &mut Parts<'_>) -> u32 {
        let words = parts.words.of(report.member);
        let mut outstanding = words.outstanding();
        if outstanding == 0 && words.is_exact() {
            parts.surplus += 1;
        } else {
            words.take_off(1);
            outstanding = outstanding.saturating_sub(1);
        }
        self.take(words, report, outstanding)
    }

    /// Takes a report of a member with so many tasks outstanding. Returns how many are left, less those that are lost.
    #[inline(always)]
    fn take(&mut self, words: MemberWords<'_>, report: &Report, outstanding: u32) -> u32 {
        let in_flight = outstanding.saturating_sub(report.load.whole_tasks());
        words.set_load(report.load);
        outstanding - self.settle(words, in_flight)
    }

    /// Takes a report and keeps as drift what was still on its way when the member answered: the tasks outstanding beyond
    /// those it reports. Returns how many.
    #[inline(always)]
    pub fn keep_in_flight(&mut self, words: MemberWords<'_>, load: Load) -> u32 {
        let in_flight = words.outstanding().saturating_sub(load.whole_tasks());
        let in_flight = in_flight - self.settle(words, in_flight);
        words.set_load(load);
        words.add_drift(words.belief(), Load(in_flight.saturating_mul(Load::ONE.0)));
        in_flight
    }

    /// Watches the tasks in flight to a member, which are outstanding, at one of its replies; returns how many of them are
    /// now written off as lost.
    #[inline(always)]
    fn settle(&mut self, words: MemberWords<'_>, in_flight: u32) -> u32 {
        let window = &mut self.windows[words.member().index()];
        window.least = window.least.min(in_flight);
        window.replies += 1;
        if window.replies < REPLIES {
            return 0;
        }
        // What others have sent is not known well enough: whoever looks at all cores' words does it there.
        let lost = if words.is_exact() { window.least } else { 0 };
        *window = Window::FRESH;
        words.take_off(lost); // not more than are in flight now
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Member;

    const A: Member = Member(0);

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
        assert_eq!(view.estimate(A), 0);
    }
}
