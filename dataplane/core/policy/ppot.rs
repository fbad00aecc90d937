//! Proportional power of two (Rosella, IV): two draws in proportion to the members' service rates, and the shorter
//! queue of both, or the earlier completion (`ppot-ll`, "least loaded"). Both draws may give the same member.

use super::sample::select;
use super::structure::{Alias, Losses};
use super::{AnyPolicy, Caller, Entry, Pick, Picks, Policy, ProbedMembers, QueueAccess, Rng, Task};
use crate::limits::BURST;
use crate::state::{Member, Parts, Report, View};

/// `ppot`.
pub const BY_QUEUE: Entry = Entry {
    by_rate: true,
    queue_access: |_| QueueAccess::Probes,
    ..Entry::new(
        "ppot",
        "the shorter queue of two draws in proportion to given service rates",
        "Rosella, IV",
        |_| AnyPolicy::from(Ppot::new(false)),
    )
};

/// `ppot-ll`.
pub const BY_TIME: Entry = Entry {
    by_rate: true,
    queue_access: |_| QueueAccess::Probes,
    ..Entry::new(
        "ppot-ll",
        "of two draws in proportion to given rates, the one that is done sooner",
        "Rosella, IV",
        |_| AnyPolicy::from(Ppot::new(true)),
    )
};

/// Power of two choices with given rates.
#[derive(Clone, Debug, Default)]
pub struct Ppot {
    /// True to compare (queue + 1) / rate instead of queues.
    least_loaded: bool,
    /// Table for draws in proportion to the rates.
    alias: Alias,
    /// Detection of lost tasks, which would stay outstanding for ever.
    losses: Losses,
}

impl Ppot {
    /// Creates the policy, by queue or by time.
    #[must_use]
    pub fn new(least_loaded: bool) -> Self {
        Self { least_loaded, ..Self::default() }
    }

    /// Picks a member for one task without counting the task as sent. The policy with learned rates counts it itself.
    #[inline]
    pub fn pick(&self, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let pair = (self.alias.sample(rng)?, self.alias.sample(rng)?);
        view.picks.po2 += 1;
        view.picks.messages += 2;
        Some(better(self.least_loaded, pair, &view.parts()))
    }
}

/// Returns the better of two drawn members, by queue or by completion time.
#[inline(always)]
fn better(least_loaded: bool, (a, b): (Member, Member), parts: &Parts<'_>) -> Pick {
    let (queue_a, queue_b) = (parts.probe(a), parts.probe(b));
    let second = match least_loaded {
        false => queue_b < queue_a,
        true => {
            let time = |queue, rate| f64::from(queue + 1) / rate;
            time(queue_b, parts.rate(b)) < time(queue_a, parts.rate(a))
        }
    };
    Pick { member: select(second, a, b), idle: select(second, queue_a, queue_b) == 0 }
}

/// Picks the better of two drawn members for each of up to [`BURST`] tasks. Draws all pairs before it reads the
/// first, so that each of the two loops has enough registers.
#[inline(always)]
fn pick_run(
    least_loaded: bool,
    alias: &Alias,
    picks: Picks<'_>,
    parts: &mut Parts<'_>,
    rng: &mut Rng,
) {
    let mut pairs = [(Member(0), Member(0)); BURST];
    let pairs = &mut pairs[..picks.len().min(BURST)];
    if alias.is_empty() {
        return picks.fill(None);
    }
    let mut local = rng.clone(); // stays in registers
    for pair in &mut *pairs {
        let drawn = alias.sample(&mut local).zip(alias.sample(&mut local));
        *pair = drawn.unwrap_or(*pair); // `None` only without members, which returned above
    }
    *rng = local;
    for (pick, &mut pair) in picks.iter_mut().zip(&mut *pairs) {
        let choice = better(least_loaded, pair, parts);
        parts.states.of(choice.member).sent();
        *pick = Some(choice);
    }
    parts.picks.po2 += pairs.len() as u64;
    parts.picks.messages += 2 * pairs.len() as u64;
}

impl Policy for Ppot {
    /// Picks the better of two draws for each task, a burst at a time.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        let count = tasks.len().min(picks.len());
        let mut parts = view.parts();
        for picks in picks[..count].chunks_mut(BURST) {
            match self.least_loaded {
                false => pick_run(false, &self.alias, picks, &mut parts, rng),
                true => pick_run(true, &self.alias, picks, &mut parts, rng),
            }
        }
    }

    /// Returns the two members that the next pick draws. The pick repeats the draws from a copy of the earlier `rng`.
    fn ask(&self, _view: &View, rng: &mut Rng) -> ProbedMembers {
        (0..2).filter_map(|_| self.alias.sample(rng)).collect()
    }

    /// Sets the member's load and writes off lost tasks. The caller has counted the reply as answered, if there is one.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        self.losses.take(report, view);
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        self.losses.answer_run(reports, view) // counts the answers, sets the loads, and writes off lost tasks
    }

    /// Rebuilds the table of draws for the active members and their rates.
    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        self.losses.resize(view);
        self.alias.rebuild(view.members(), view.active(), |member| view.rate(member));
    }

    /// Updates the measurement of the round trip.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        self.losses.on_tick(view);
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.losses.round_trip_ns()
    }
}
