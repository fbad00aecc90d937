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
//! A lost task holds its member's place, and with k = 1 the member. So a member's tasks are written off when it is silent for
//! much longer than tasks take, or when its own report does not count them ([`super::silence`]). The patience doubles with each
//! write-off that loss does not explain: a stalled member must not collect tasks. Where no task can be lost on its way, as in
//! an agent, silence means nothing unless a time is given for it.

use rand::Rng as _;

use super::measured::{Measured, Notes};
use super::silence::{Counts, Patience, Silences, Watched};
use super::slots::{self, Slots};
use super::structure::{Found, Front, Losses, Rank, Ranks};
use super::{
    AnyPolicy, Caller, Core, Entry, Parameter, Pick, Picks, Policy, Reports, Rng, Runs, Task,
};
use crate::state::{Member, Report, Sharing, View, Words};

/// `jbsq`.
pub const GIVEN: Entry = Entry {
    parameters: &[Parameter::whole("k", 2.0, (1.0, 64.0)), SILENCE],
    runs: Runs::LeafHolding,
    sharing: Sharing::NOTHING.with_idle(),
    bound: |v| Some(v[0] as u32),
    ..Entry::new(
        "jbsq",
        "at most k tasks at a member, the others wait at the dispatcher",
        "R2P2, ATC 2019",
        |v| AnyPolicy::from(Bounded::new(v[0] as usize, ms(v[1]))),
    )
};

/// `cfcfs`.
pub const CHOSEN: Entry = Entry {
    parameters: &[SILENCE],
    runs: Runs::LeafHolding,
    sharing: Sharing::NOTHING.with_idle(),
    ..Entry::new(
        "cfcfs",
        "one queue at the dispatcher, with the least bound that keeps members busy",
        "wedjat, after R2P2, ATC 2019",
        |v| AnyPolicy::from(Bounded::adaptive(ms(v[0]))),
    )
};

/// Tasks at a member that is silent for so many milliseconds are lost; 0: as services suggest.
const SILENCE: Parameter = Parameter::new("silence-ms", 0.0, (0.0, 1e6));

fn ms(milliseconds: f64) -> Option<u64> {
    (milliseconds > 0.0).then_some((milliseconds * 1e6) as u64)
}

/// As in [`super::shortest`].
const CORRECTIONS: usize = 8;
/// Members looked at when all seem full and other cores may know better.
const LOOKS: usize = 32;
/// Bound that `cfcfs` starts with, and keeps while members tell no service times.
const START: usize = 2;
/// Of so many answers one is measured whole where the bound is given.
const SAMPLE: u32 = 64;
/// Between two looks for silent members there is no more than this.
const CHECK_MOST_NS: u64 = 1_000_000;

/// A run of choices.
type Run = <Ranks as Rank>::Front;

/// A bound on each member's tasks.
#[derive(Clone, Debug)]
pub struct Bounded {
    /// Tasks at a member that is silent for so long are lost; `None`: for as long as [`Silences`] says.
    silence_ns: Option<u64>,
    /// No task is lost on its way: whoever holds one is slow, or its end will be told.
    lossless: bool,
    /// Replies carry the member's queue.
    replies_report: bool,
    next_check_ns: u64,
    watched: Vec<Watched>,
    silences: Silences,
    room: Room,
    /// Members' places, where cores share them; the room is looked at otherwise.
    slots: Slots,
    /// The bound that they have agreed on, where each would find its own.
    shared: Option<usize>,
    heard: Heard,
    losses: Losses,
}

/// When a member last got a task while it had none, or answered; and whether that task is alone since it was sent, for
/// all that this core has sent. (Waiting behind another core's task counts as its round trip: the more cores, the more
/// a member must have to be busy.)
#[derive(Clone, Copy, Debug)]
struct Touched {
    /// Time and, in the lowest bit, the rest: one word to write for each task.
    word: u64,
}

impl Touched {
    #[inline(always)]
    fn new(now_ns: u64, alone: bool) -> Self {
        Self { word: now_ns << 1 | u64::from(alone) }
    }

    #[inline(always)]
    fn at_ns(self) -> u64 {
        self.word >> 1
    }

    #[inline(always)]
    fn is_alone(self) -> bool {
        self.word & 1 == 1
    }

    /// Another task follows, where there were so many.
    #[inline(always)]
    fn follow(&mut self, queue: u32, first: Self) {
        match queue {
            0 => *self = first,
            _ => self.word &= !1,
        }
    }
}

/// The bound on each member's tasks, and what it is judged by.
#[derive(Clone, Debug)]
struct Bound {
    tasks: usize,
    adapts: bool,
    /// Those that share the tasks.
    members: usize,
    cores: usize,
    measured: Measured,
    /// Answers in a window of these.
    due: u64,
    /// Answers that told a service.
    answers: u32,
}

impl Bound {
    /// So many members share the tasks of so many cores.
    fn share(&mut self, members: usize, cores: usize) {
        (self.members, self.cores) = (members, cores);
        self.due = self.measured.due(members, cores);
    }

    /// Ends a window of answers, and begins the next.
    #[cold]
    #[inline(never)]
    fn judge(&mut self, notes: Notes, now_ns: u64) -> Notes {
        self.measured.notes = notes;
        self.measured.look(now_ns, self.members, self.cores, self.tasks);
        if self.adapts && self.measured.is_known() {
            self.tasks = self.measured.bound();
        }
        self.due = self.measured.due(self.members, self.cores);
        self.measured.notes
    }
}

/// What members' answers tell.
#[derive(Clone, Debug)]
struct Heard {
    touched: Vec<Touched>,
    bound: Bound,
}

impl Heard {
    /// For a run of answers of so many members at one time.
    #[inline(always)]
    fn listen(&mut self, now_ns: u64, members: usize, adapts: bool) -> Hearing<'_> {
        let touched = &mut self.touched[..members];
        let (notes, answers) = (self.bound.measured.notes, self.bound.answers);
        Hearing { adapts, notes, answers, now_ns, touched, bound: &mut self.bound }
    }
}

/// What a run of answers tells.
struct Hearing<'a> {
    adapts: bool,
    notes: Notes,
    answers: u32,
    now_ns: u64,
    touched: &'a mut [Touched],
    bound: &'a mut Bound,
}

impl Hearing<'_> {
    /// A member answered. A bound that is given needs the longest service alone, and the rest now and then.
    #[inline(always)]
    fn answered(&mut self, report: &Report) {
        let touched = &mut self.touched[report.member.index()];
        let before = std::mem::replace(touched, Touched::new(self.now_ns, false));
        if report.service_ns == 0 {
            return;
        }
        self.answers = self.answers.wrapping_add(1);
        if !self.adapts && self.answers % SAMPLE != 1 {
            return self.notes.note_longest(report.service_ns);
        }
        let elapsed_ns = || self.now_ns.saturating_sub(before.at_ns());
        self.notes.note(report.service_ns, before.is_alone().then(elapsed_ns));
        if self.notes.replies() >= self.bound.due {
            self.notes = self.bound.judge(self.notes, self.now_ns);
        }
    }

    /// The run is over.
    #[inline(always)]
    fn end(self) {
        (self.bound.measured.notes, self.bound.answers) = (self.notes, self.answers);
    }
}

/// Who has room, and the cores that send to the same members: this one does not hear of the others' tasks.
#[derive(Clone, Debug)]
struct Room {
    ranks: Ranks,
    core: Core,
    /// Where to look next for what the other cores changed.
    cursor: usize,
}

impl Room {
    /// All members are full, as far as known.
    #[inline(always)]
    fn is_full(&self, bound: usize) -> bool {
        self.ranks.least() >= bound
    }

    /// Looks at some members whose tasks other cores may have heard of.
    #[cold]
    fn look_around(&mut self, view: &View) {
        let active = view.active();
        for _ in 0..active.len().min(LOOKS) {
            self.cursor = if self.cursor + 1 < active.len() { self.cursor + 1 } else { 0 };
            let member = active[self.cursor];
            self.ranks.set(member, view.outstanding(member));
        }
    }

    /// All members seem full; other cores may have heard that one is not.
    #[cold]
    #[inline(never)]
    fn look_again(&mut self, front: Run, view: &View) -> Run {
        if self.core.count == 1 {
            return front;
        }
        self.ranks.close(front);
        self.look_around(view);
        self.ranks.open()
    }

    /// A member with room, its queue as the view has it, and the front that it is of. As in [`super::shortest`] a core
    /// that is alone looks nothing up.
    #[inline(always)]
    fn first(
        &mut self,
        front: Run,
        bound: usize,
        words: Words<'_>,
        view: &View,
        rng: &mut Rng,
    ) -> (Run, Option<Found>) {
        let (mut front, mut looks) = (front, CORRECTIONS);
        if !front.is_empty() {
            if self.is_full(bound) {
                front = self.look_again(front, view);
                if self.is_full(bound) {
                    return (front, None);
                }
            }
            if let Some(found) = self.ranks.find(front, rng.next_u64() as u32) {
                if words.are_alone() {
                    return (front, Some(found));
                }
                let queue = words.of(found.member).outstanding();
                if queue == found.queue {
                    return (front, Some(found));
                }
                front = self.ranks.set_open(front, found.member, queue);
                looks -= 1;
            }
        }
        let mut state = rng.clone(); // what is lent lies in memory from then on
        let found = self.look(looks, front, bound, view, &mut state);
        *rng = state;
        found
    }

    /// As [`Self::first`], looking so many times.
    #[cold]
    #[inline(never)]
    fn look(
        &mut self,
        looks: usize,
        mut front: Run,
        bound: usize,
        view: &View,
        rng: &mut Rng,
    ) -> (Run, Option<Found>) {
        for _ in 0..looks {
            if front.is_empty() {
                let Some(next) = self.ranks.reopen(front) else { break };
                front = next;
            }
            if self.is_full(bound) {
                front = self.look_again(front, view);
                if self.is_full(bound) {
                    break;
                }
            }
            let Some(found) = self.ranks.find(front, rng.next_u64() as u32) else { break };
            let queue = view.outstanding(found.member);
            if queue == found.queue {
                return (front, Some(found));
            }
            front = self.ranks.set_open(front, found.member, queue);
        }
        (front, None)
    }
}

impl Bounded {
    /// At most `bound` tasks at a member; those at a member that is silent for `silence_ns` are lost, or for
    /// longer than services suggest.
    #[must_use]
    pub fn new(bound: usize, silence_ns: Option<u64>) -> Self {
        let room = Room { ranks: Ranks::default(), core: Core::ONLY, cursor: 0 };
        let measured = Measured::default();
        let bound = Bound {
            tasks: bound,
            adapts: false,
            members: 0,
            cores: 1,
            measured,
            due: 0,
            answers: 0,
        };
        let heard = Heard { touched: Vec::new(), bound };
        let losses = Losses::default();
        Self {
            silence_ns,
            lossless: false,
            replies_report: true,
            next_check_ns: 0,
            watched: Vec::new(),
            silences: Silences::default(),
            room,
            slots: Slots::default(),
            shared: None,
            heard,
            losses,
        }
    }

    /// With a bound that it chooses itself.
    #[must_use]
    pub fn adaptive(silence_ns: Option<u64>) -> Self {
        let mut adaptive = Self::new(START, silence_ns);
        adaptive.heard.bound.adapts = true;
        adaptive
    }

    /// The bound as it is now.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.heard.bound.tasks
    }

    /// The hand-over as measured: from a task's sending to its answer, less the time that it took; 0 until one was.
    #[must_use]
    pub fn round_trip_ns(&self) -> f64 {
        self.heard.bound.measured.round_trip_ns()
    }

    /// As one by one, but a member is found and counted up in one go.
    #[inline(always)]
    fn pick_some(&mut self, picks: Picks<'_>, words: Words<'_>, view: &View, rng: &mut Rng) {
        let (room, heard) = (&mut self.room, &mut self.heard);
        let (bound, touched) = (heard.bound.tasks, &mut heard.touched[..]);
        let first = Touched::new(view.now_ns(), true);
        let mut front = room.ranks.open();
        for pick in picks {
            let found;
            (front, found) = room.first(front, bound, words, view, rng);
            let Some(found) = found else {
                *pick = None;
                continue;
            };
            front = room.ranks.take(front, found);
            words.of(found.member).sent();
            touched[found.member.index()].follow(found.queue, first);
            *pick = Some(Pick { member: found.member, idle: found.queue == 0 });
        }
        room.ranks.close(front);
    }

    /// As one by one, where cores share the members' places.
    fn pick_shared(&mut self, picks: Picks<'_>, view: &mut View) {
        let first = Touched::new(view.now_ns(), true);
        let bound = self.shared_bound();
        for pick in picks {
            let taken = self.slots.take(bound, view);
            *pick = taken.map(|(member, idle)| {
                view.sent(member);
                self.heard.touched[member.index()].follow(u32::from(!idle), first);
                Pick { member, idle }
            });
        }
    }

    /// As one by one, where cores share the members' places.
    fn reply_shared(&mut self, reports: &[Report], view: &mut View) -> usize {
        let (now_ns, adapts) = (view.now_ns(), self.heard.bound.adapts);
        let mut parts = view.parts();
        let mut hearing = self.heard.listen(now_ns, parts.words.members(), adapts);
        let mut watch = self.losses.watch(parts.words.members());
        for report in reports {
            watch.answer(report, &mut parts);
            hearing.answered(report);
        }
        hearing.end();
        let surplus = parts.surplus;
        reports.iter().for_each(|report| self.slots.give(report.member, view));
        surplus
    }

    /// The bound where cores share the members' places.
    fn shared_bound(&self) -> usize {
        self.shared.unwrap_or(self.heard.bound.tasks)
    }

    /// Agrees with the other cores on it.
    fn agree(&mut self, view: &View) {
        let Bound { adapts, tasks, ref measured, .. } = self.heard.bound;
        let own = measured.is_known().then(|| tasks.min(slots::MOST));
        self.shared = match (adapts, view.peers()) {
            (true, Some(peers)) => Some(peers.bound(own).unwrap_or(START)),
            _ => None,
        };
    }

    /// Rows of tokens for places.
    fn rows(&self) -> usize {
        if self.heard.bound.adapts { slots::MOST } else { self.heard.bound.tasks }
    }

    /// As one by one. A function for each case: beside others the loop's values do not stay in registers.
    #[inline(never)]
    fn reply_some<const ALONE: bool, const ADAPTS: bool>(
        &mut self,
        reports: &[Report],
        view: &mut View,
    ) -> usize {
        let (now_ns, parts) = (view.now_ns(), view.parts());
        let mut parts = if ALONE { parts.alone() } else { parts };
        let members = parts.words.members();
        let mut hearing = self.heard.listen(now_ns, members, ADAPTS);
        let mut watch = self.losses.watch(members);
        self.room.ranks.set_all(
            reports,
            members,
            #[inline(always)]
            |report| {
                let left = watch.answer(report, &mut parts);
                hearing.answered(report);
                left
            },
        );
        hearing.end();
        parts.surplus
    }

    /// Limits for the next check; `None` where no task is lost.
    fn patience(&self) -> Option<Patience> {
        let (measured, silences) = (&self.heard.bound.measured, &self.silences);
        let cores = self.room.core.count;
        let learned = || (!self.lossless).then(|| silences.patience_ns(measured, cores));
        let silence_ns = self.silence_ns.or_else(learned)?;
        let reports = self.replies_report && !self.lossless;
        let trip_ns = reports.then(|| silences.trip_ns(measured, cores));
        let (explained, denials) = (silences.explained(), self.shared_bound() as u32);
        Some(Patience { silence_ns, trip_ns, explained, denials, cores })
    }

    /// Writes off a member's lost tasks, at one of the cores; true if there were any.
    fn watch(&mut self, member: Member, patience: Patience, view: &mut View) -> bool {
        let (now_ns, reports) = (view.now_ns(), view.reports(member));
        let outstanding = view.outstanding_now(member);
        let touched = &mut self.heard.touched[member.index()];
        let watched = &mut self.watched[member.index()];
        let mut counts = Counts {
            now_ns,
            reports,
            own_reports: view.of(member).reports(),
            outstanding: outstanding.max(0).cast_unsigned(),
            is_surplus: outstanding < 0,
            touched_ns: touched.at_ns(),
        };
        if self.room.core.count > 1 && !watched.is_quiet(&counts) {
            // By another core, as far as this one knows.
            *touched = Touched::new(now_ns, touched.is_alone());
            counts.touched_ns = now_ns;
        }
        let believed =
            (view.reported_most(member).whole_tasks(), view.believed_most(member).whole_tasks());
        let silences = (&mut self.silences, view.members());
        let is_ours = self.room.core.looks_after(member);
        let lost = watched.check(counts, believed, patience, silences, is_ours);
        if lost > 0 {
            view.write_off(member, lost);
        }
        lost > 0
    }
}

impl Policy for Bounded {
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let count = tasks.len().min(picks.len());
        if view.peers().is_some() {
            return self.pick_shared(&mut picks[..count], view);
        }
        let (picks, view, words) = (&mut picks[..count], &*view, view.words());
        let mut local = rng.clone(); // stays in registers over the run
        match words.are_alone() {
            true => self.pick_some(picks, words.alone(), view, &mut local),
            false => self.pick_some(picks, words, view, &mut local),
        }
        *rng = local;
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        if view.peers().is_some() {
            return self.reply_shared(reports, view);
        }
        match (view.parts().are_alone(), self.heard.bound.adapts) {
            (true, true) => self.reply_some::<true, true>(reports, view),
            (true, false) => self.reply_some::<true, false>(reports, view),
            (false, true) => self.reply_some::<false, true>(reports, view),
            (false, false) => self.reply_some::<false, false>(reports, view),
        }
    }

    fn on_follow(&mut self, member: Member, view: &mut View) {
        self.room.ranks.add(member);
        let first = Touched::new(view.now_ns(), true);
        self.heard.touched[member.index()].follow(self.room.ranks.queue(member) - 1, first);
    }

    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        let left = self.losses.take(report, view);
        if report.service_ns > 0 {
            let adapts = self.heard.bound.adapts;
            let mut hearing = self.heard.listen(view.now_ns(), view.members(), adapts);
            hearing.answered(report);
            hearing.end();
        }
        self.room.ranks.set(report.member, left);
        // A keep-alive ends no silence: the worker may live and its task be lost.
        self.watched[report.member.index()].reported();
    }

    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.watched[member.index()].recounted();
        self.room.ranks.set(member, view.outstanding(member));
        self.slots.settle(member, self.shared_bound(), true, self.room.core, view);
    }

    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.room.core = caller.core;
        self.lossless = caller.lossless;
        self.replies_report = caller.reports == Reports::Replies;
        self.losses.resize(view.members());
        self.watched.resize(view.members(), Watched::default());
        self.heard.touched.resize(view.members(), Touched::new(view.now_ns(), false));
        self.room.ranks.rank(view.members(), view.active().iter().copied());
        self.heard.bound.share(self.room.ranks.len(), caller.core.count);
        self.agree(view);
        self.slots.resize(view.members(), self.rows());
        view.set_rows(self.rows());
        for place in 0..view.active().len() {
            let member = view.active()[place];
            self.room.ranks.set(member, view.outstanding(member));
            self.slots.settle(member, self.shared_bound(), true, caller.core, view);
        }
    }

    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        let now_ns = view.now_ns();
        if now_ns < self.next_check_ns {
            return;
        }
        // A member whose bound is filled by lost tasks would never be heard of again.
        let patience = self.patience();
        let pause_ns = patience.map_or(CHECK_MOST_NS, |patience| patience.silence_ns / 4);
        self.next_check_ns = now_ns.saturating_add(pause_ns.min(CHECK_MOST_NS));
        self.agree(view);
        for place in 0..view.active().len() {
            let member = view.active()[place];
            let lost = patience.is_some_and(|patience| self.watch(member, patience, view));
            self.room.ranks.set(member, view.outstanding(member));
            self.slots.settle(member, self.shared_bound(), lost, self.room.core, view);
        }
    }
}
