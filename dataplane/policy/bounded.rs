//! Central queues: a member holds at most k tasks, and while all are full tasks wait at the dispatcher
//! (JBSQ, Kogias et al.: R2P2, ATC 2019), or at its one core (cFCFS, with the least k that keeps
//! members busy).
//!
//! A pick of nobody means that the task waits: the caller keeps it in a FIFO and offers the first again after
//! each reply and now and then (another core may have heard that a member has room), until one is refused.
//!
//! `cfcfs` chooses k itself. With one task at a time a member idles for a round trip R after each task of
//! mean service S, which raises its utilisation u to u (1 + R/S); when that leaves most of what is idle
//! idle, k = 1 spares every task the wait behind a running one. Otherwise k = ceil(R/S) + 1 hides the
//! round trip. R, S and u are measured: R on tasks that were alone at their member.

use rand::Rng as _;

use super::ranks::{Found, Front, Rank, Ranks};
use super::shortest::note_outstanding;
use super::{Core, Pick, Policy, Rng, Task};
use crate::state::{Member, Parts, Report, View};

/// As in [`super::shortest`].
const CORRECTIONS: usize = 8;
/// Members looked at when all seem full and other cores may know better.
const LOOKS: usize = 32;
/// Share of the idle time that must remain for one task at a time to do.
const IDLE_SHARE_LEAST: f64 = 0.6;
/// Tasks of a member between two looks at k, on average.
const WINDOW_REPLIES: u64 = 64;
/// Bound that `cfcfs` starts with, and keeps while members tell no service times.
const START: usize = 2;
/// Most that it may become: beyond this, members hold as much as with any other policy.
const MOST: usize = 64;

/// A run of choices.
type Run = <Ranks as Rank>::Front;

/// A bound on each member's tasks.
#[derive(Clone, Debug)]
pub struct Bounded {
    bound: usize,
    adapts: bool,
    /// Tasks at a member that is silent for so long are lost.
    silence_ns: u64,
    ranks: Ranks,
    now_ns: u64,
    next_check_ns: u64,
    /// When each member last got a task while it had none, or answered.
    touched_ns: Vec<u64>,
    /// Each member's only task was alone since it was sent.
    alone: Vec<bool>,
    /// Cores that send to the same members; this one does not hear of the others' tasks.
    cores: usize,
    /// Where to look next for what they changed.
    cursor: usize,
    measured: Measured,
}

/// What `cfcfs` chooses k by.
#[derive(Clone, Debug, Default)]
struct Measured {
    round_trip_ns: f64,
    service_ns: f64,
    utilisation: f64,
    window_start_ns: u64,
    window_work_ns: u64,
    window_replies: u64,
}

impl Bounded {
    /// At most `bound` tasks at a member; those at a member that is silent for `silence_ns` are lost.
    #[must_use]
    pub fn new(bound: usize, silence_ns: u64) -> Self {
        Self {
            bound,
            adapts: false,
            silence_ns,
            ranks: Ranks::default(),
            now_ns: 0,
            next_check_ns: 0,
            touched_ns: Vec::new(),
            alone: Vec::new(),
            cores: 1,
            cursor: 0,
            measured: Measured::default(),
        }
    }

    /// With a bound that it chooses itself.
    #[must_use]
    pub fn adaptive(silence_ns: u64) -> Self {
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
        if self.cores == 1 {
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
        if self.adapts {
            self.measure(report);
        }
        self.touched_ns[report.member.index()] = self.now_ns;
        self.alone[report.member.index()] = false;
    }

    fn measure(&mut self, report: &Report) {
        if report.service_ns == 0 {
            return;
        }
        let service = f64::from(report.service_ns);
        let measured = &mut self.measured;
        follow(&mut measured.service_ns, service, 1.0 / 1024.0);
        let member = report.member.index();
        if self.alone[member] {
            let elapsed = self.now_ns.saturating_sub(self.touched_ns[member]) as f64;
            follow(&mut measured.round_trip_ns, (elapsed - service).max(0.0), 1.0 / 64.0);
        }
        measured.window_work_ns += u64::from(report.service_ns);
        measured.window_replies += 1;
        if measured.window_replies >= WINDOW_REPLIES * self.ranks.len() as u64 {
            self.adapt();
        }
    }

    fn adapt(&mut self) {
        let measured = &mut self.measured;
        let elapsed = self.now_ns.saturating_sub(measured.window_start_ns) as f64;
        // This core sees its share of the replies, and is its share of the load.
        let capacity = elapsed * self.ranks.len() as f64 / self.cores as f64;
        let work = measured.window_work_ns as f64;
        follow(&mut measured.utilisation, (work / capacity).min(1.0), 1.0 / 16.0);
        let utilisation = measured.utilisation;
        let trips = measured.round_trip_ns / measured.service_ns;
        let idle_left = 1.0 - utilisation * (1.0 + trips);
        self.bound = match idle_left >= IDLE_SHARE_LEAST * (1.0 - utilisation) {
            true => 1,
            false => (trips.ceil() as usize + 1).clamp(2, MOST),
        };
        measured.window_start_ns = self.now_ns;
        (measured.window_work_ns, measured.window_replies) = (0, 0);
    }
}

/// Moves an exponentially weighted mean; the first value starts it.
fn follow(mean: &mut f64, value: f64, weight: f64) {
    *mean = if *mean == 0.0 { value } else { *mean + (value - *mean) * weight };
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
        self.cores = core.count;
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
        self.next_check_ns = now_ns + self.silence_ns / 4;
        for place in 0..view.active().len() {
            let member = view.active()[place];
            let silent = now_ns.saturating_sub(self.touched_ns[member.index()]);
            let outstanding = view.outstanding(member);
            if outstanding > 0 && silent > self.silence_ns {
                view.write_off(member, outstanding);
            }
            self.ranks.set(member, view.outstanding(member));
        }
    }
}
