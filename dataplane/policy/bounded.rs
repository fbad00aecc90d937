//! Central queues: a member holds at most k tasks, and while all are full tasks wait at the dispatcher
//! (JBSQ, Kogias et al.: R2P2, ATC 2019), or at its one core (cFCFS, with the least k that keeps
//! members busy).
//!
//! A pick of nobody means that the task waits: the caller keeps it in a FIFO and offers the first again after
//! each reply and now and then (another core may have heard that a member has room), until one is refused.
//!
//! `cfcfs` chooses k itself, the least with which members are busy enough ([`Measured::bound`]): with one
//! task at a time a member idles for a round trip R after each task of mean service S, and each more hides
//! some of that. When R is next to nothing, k = 1 spares every task the wait behind a running one.
//!
//! A task that is lost holds its member's place, and with k = 1 the member. So what a member has is written
//! off when it is silent for much longer than tasks take, and for twice that if the next is not answered
//! either: a member that merely stalls is not to collect tasks meanwhile. Where no task can be lost on its way, as in an
//! agent, silence means nothing unless a time is given for it.

use rand::Rng as _;

use super::measured::{Measured, SILENCE_MOST_NS};
use super::ranks::{Found, Front, Rank, Ranks};
use super::shortest::note_outstanding;
use super::{Core, Pick, Policy, Rng, Task};
use crate::state::{Member, Parts, Report, View};

/// As in [`super::shortest`].
const CORRECTIONS: usize = 8;
/// Members looked at when all seem full and other cores may know better.
const LOOKS: usize = 32;
/// Bound that `cfcfs` starts with, and keeps while members tell no service times.
const START: usize = 2;
/// Between two looks for silent members there is no more than this.
const CHECK_MOST_NS: u64 = 1_000_000;
/// Of so many answers one is measured whole where the bound is given.
const SAMPLE: u32 = 64;
/// Times that a member's silence may be waited for twice as long as before.
const DOUBLINGS_MOST: u32 = 20;

/// A run of choices.
type Run = <Ranks as Rank>::Front;

/// A bound on each member's tasks.
#[derive(Clone, Debug)]
pub struct Bounded {
    bound: usize,
    adapts: bool,
    /// Tasks at a member that is silent for so long are lost; none: for so long as [`Measured`] says.
    silence_ns: Option<u64>,
    ranks: Ranks,
    now_ns: u64,
    next_check_ns: u64,
    /// When each member last got a task while it had none, or answered.
    touched_ns: Vec<u64>,
    /// Each member's only task was alone since it was sent.
    alone: Vec<bool>,
    watched: Vec<Watched>,
    /// Cores that send to the same members; this one does not hear of the others' tasks.
    core: Core,
    /// Where to look next for what they changed.
    cursor: usize,
    measured: Measured,
    /// Answers that told a service time.
    answers: u32,
}

/// What was last seen of a member that may be silent.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    reports: u32,
    outstanding: u32,
    /// Times that its tasks were written off since it last reported.
    losses: u32,
}

impl Bounded {
    /// At most `bound` tasks at a member; those at a member that is silent for `silence_ns` are lost, or for
    /// longer than services suggest.
    #[must_use]
    pub fn new(bound: usize, silence_ns: Option<u64>) -> Self {
        Self {
            bound,
            adapts: false,
            silence_ns,
            ranks: Ranks::default(),
            now_ns: 0,
            next_check_ns: 0,
            touched_ns: Vec::new(),
            alone: Vec::new(),
            watched: Vec::new(),
            core: Core::ONLY,
            cursor: 0,
            measured: Measured::default(),
            answers: 0,
        }
    }

    /// With a bound that it chooses itself.
    #[must_use]
    pub fn adaptive(silence_ns: Option<u64>) -> Self {
        Self { adapts: true, ..Self::new(START, silence_ns) }
    }

    /// The bound as it is now.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// All members are full, as far as known.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.ranks.least() >= self.bound
    }

    /// Looks at some members whose tasks other cores may have heard of.
    #[cold]
    fn look_around(&mut self, parts: &Parts<'_>) {
        let active = parts.active;
        for _ in 0..active.len().min(LOOKS) {
            self.cursor = if self.cursor + 1 < active.len() { self.cursor + 1 } else { 0 };
            let member = active[self.cursor];
            self.ranks.set(member, parts.words.of(member).outstanding());
        }
    }

    /// All members seem full; other cores may have heard that one is not.
    #[cold]
    #[inline(never)]
    fn look_again(&mut self, front: Run, parts: &Parts<'_>) -> Run {
        if self.core.count == 1 {
            return front;
        }
        self.ranks.close(front);
        self.look_around(parts);
        self.ranks.open()
    }

    /// A member with room, its queue as the view has it, and the front that it is of.
    #[inline(always)]
    fn first(&mut self, mut front: Run, parts: &Parts<'_>, rng: &mut Rng) -> (Run, Option<Found>) {
        for _ in 0..CORRECTIONS {
            if front.is_empty() {
                let Some(next) = self.ranks.reopen(front) else { break };
                front = next;
            }
            if self.is_full() {
                front = self.look_again(front, parts);
                if self.is_full() {
                    break;
                }
            }
            let Some(found) = self.ranks.find(front, rng.next_u64() as u32) else { break };
            let queue = parts.words.of(found.member).outstanding();
            if queue == found.queue {
                return (front, Some(found));
            }
            front = self.ranks.set_open(front, found.member, queue);
        }
        (front, None)
    }

    /// A task was sent to a member that has so many now.
    #[inline(always)]
    fn touch(&mut self, member: Member, queue: u32) {
        self.alone[member.index()] = queue == 1;
        if queue == 1 {
            self.touched_ns[member.index()] = self.now_ns;
        }
    }

    /// A member answered, and has so many tasks left.
    #[inline(always)]
    fn answered(&mut self, report: &Report, left: u32) {
        self.ranks.set(report.member, left);
        self.measure(report);
        self.touched_ns[report.member.index()] = self.now_ns;
        self.alone[report.member.index()] = false;
    }

    #[inline]
    fn measure(&mut self, report: &Report) {
        if report.service_ns == 0 {
            return;
        }
        self.answers = self.answers.wrapping_add(1);
        if !self.adapts && self.answers % SAMPLE != 1 {
            // A bound that is given needs the longest service alone, and the rest now and then.
            return self.measured.note_longest(report.service_ns);
        }
        let member = report.member.index();
        let elapsed_ns = self.now_ns.saturating_sub(self.touched_ns[member]);
        self.measured.note(report.service_ns, self.alone[member].then_some(elapsed_ns));
        let (members, cores) = (self.ranks.len(), self.core.count);
        if self.measured.is_due(members, cores) {
            self.measured.look(self.now_ns, members, cores, self.bound);
            if self.adapts && self.measured.is_known() {
                self.bound = self.measured.bound();
            }
        }
    }

    /// Writes off what a member has if it has been silent for too long, at one of the cores.
    fn watch(&mut self, member: Member, silence_ns: u64, view: &mut View) {
        let (reports, outstanding) = (view.reports(member), view.outstanding(member));
        let touched_ns = &mut self.touched_ns[member.index()];
        let watched = &mut self.watched[member.index()];
        if watched.reports != reports {
            watched.losses = 0;
        }
        let quiet = (watched.reports, watched.outstanding) == (reports, outstanding);
        (watched.reports, watched.outstanding) = (reports, outstanding);
        if self.core.count > 1 && !quiet {
            *touched_ns = self.now_ns; // by another core for all that is known
        }
        let patience = silence_ns.saturating_mul(1 << watched.losses);
        let patience = patience.min(SILENCE_MOST_NS.max(silence_ns));
        let silent = self.now_ns.saturating_sub(*touched_ns) > patience;
        if outstanding > 0 && silent && member.index() % self.core.count == self.core.index {
            view.write_off(member, outstanding);
            watched.outstanding = 0;
            watched.losses = (watched.losses + 1).min(DOUBLINGS_MOST);
        }
    }
}

impl Policy for Bounded {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let front = self.ranks.open();
        let found = self.first(front, &view.parts(), rng).1?;
        Some(Pick { member: found.member, idle: found.queue == 0 })
    }

    fn pick_run(
        &mut self,
        tasks: &[Task],
        picks: &mut [Option<Pick>],
        view: &mut View,
        rng: &mut Rng,
    ) {
        let parts = view.parts();
        let mut local = rng.clone(); // stays in registers over the run
        let mut front = self.ranks.open();
        for (pick, _) in picks.iter_mut().zip(tasks) {
            let found;
            (front, found) = self.first(front, &parts, &mut local);
            *pick = found.map(|found| {
                front = self.ranks.take(front, found);
                parts.words.of(found.member).sent();
                self.touch(found.member, found.queue + 1);
                Pick { member: found.member, idle: found.queue == 0 }
            });
        }
        self.ranks.close(front);
        *rng = local;
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let mut parts = view.parts();
        let mut surplus = 0;
        for report in reports {
            let (left, expected) = parts.answered_and_settled(report);
            surplus += usize::from(!expected);
            self.answered(report, left);
        }
        surplus
    }

    fn on_sent(&mut self, member: Member, _view: &mut View) {
        self.ranks.add(member);
        self.touch(member, self.ranks.queue(member));
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let left = note_outstanding(report, view);
        self.answered(report, left);
    }

    fn on_members(&mut self, core: Core, view: &mut View) {
        self.core = core;
        self.watched.resize(view.members(), Watched::default());
        self.touched_ns.resize(view.members(), self.now_ns);
        self.alone.resize(view.members(), false);
        self.ranks.rank(view.members(), view.active().iter().copied());
        for &member in view.active() {
            self.ranks.set(member, view.outstanding(member));
        }
    }

    fn on_tick(&mut self, now_ns: u64, view: &mut View, _rng: &mut Rng) {
        self.now_ns = now_ns;
        if now_ns < self.next_check_ns {
            return;
        }
        // A member whose bound is filled by lost tasks would never be heard of again.
        let judged = || (!view.is_lossless()).then(|| self.measured.silence_ns());
        let silence_ns = self.silence_ns.or_else(judged);
        self.next_check_ns =
            now_ns + silence_ns.map_or(CHECK_MOST_NS, |ns| CHECK_MOST_NS.min(ns / 4));
        for place in 0..view.active().len() {
            let member = view.active()[place];
            if let Some(silence_ns) = silence_ns {
                self.watch(member, silence_ns, view);
            }
            self.ranks.set(member, view.outstanding(member));
        }
    }
}
