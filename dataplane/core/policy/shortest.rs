//! Join the shortest queue, of all members or of a few, by length or by completion time (SED: shortest
//! expected delay). Ties are broken uniformly.
//!
//! SED ranks members by (queue + 1) / speed, the mean time until a new task ends. By default this policy adds `half` =
//! 0.5 instead of 1: it then prefers a slow idle member to a fast busy one more often. This lowers mean and tail.
//!
//! In a simulator the policy reads true queues. A leaf counts its outstanding tasks at each member exactly; a switch
//! cannot.
//!
//! [`Rank`] keeps the members in order of their queues. A run of picks *opens* the *front* (the members with the
//! shortest queue), *finds* and *takes* a member for each task, and *closes* it.

use rand::Rng as _;

use super::beliefs::next_shared_idle;
use super::sample::{below, rank_of, sample_two, share_idle, take_shared};
use super::structure::{Front, LossWatch, Losses, Rank, RankedMember, Ranking};
use super::{
    AnyPolicy, Caller, Candidates, Entry, Parameter, Pick, Picks, Policy, ProbedMembers,
    QueueAccess, Rng, Task, one_by_one,
};
use crate::state::{Member, MemberStates, Parts, PublishedState, Report, View};

/// `jsq`.
pub const BY_QUEUE: Entry = Entry {
    parameters: &[Parameter::integer("d", 0.0, (0.0, 16.0))],
    // A simulator answers probes with true queues. A leaf reads its own counts; with reports in messages it probes the
    // d members.
    queue_access: |v| if v[0] >= 1.0 { QueueAccess::Probes } else { QueueAccess::Direct },
    // For d = 0: each idle member belongs to one core, so that no two cores choose it at once.
    publishes: PublishedState::COUNTS.with_idle(),
    ..Entry::new(
        "jsq",
        "the shortest queue of all, or of d random ones; on a leaf by its own count",
        "baseline; Mitzenmacher 2001 for d",
        |v| match v[0] as usize {
            0 => AnyPolicy::from(Shortest::new(None)),
            count => AnyPolicy::from(ShortestOf::new(count)),
        },
    )
};

/// `sed`.
pub const BY_DELAY: Entry = Entry {
    by_rate: true,
    parameters: &[Parameter::new("half", 0.5, (0.0, 1.0))],
    queue_access: |_| QueueAccess::Direct,
    // Idle members are not shared: a fast busy member may finish a task sooner than a slow idle one.
    ..Entry::new(
        "sed",
        "the shortest expected delay, (queue + half) / speed; on a leaf by its own count",
        "baseline; Weber 1978, with half = 1",
        |v| AnyPolicy::from(Shortest::new(Some(v[0]))),
    )
};

/// Picks the shortest of all members' queues.
#[derive(Clone, Debug)]
pub struct Shortest {
    /// Added to a queue before its division by the speed; `None` to rank queues by their length.
    half: Option<f64>,
    /// Order of the members by their outstanding tasks.
    pub(super) ranks: Ranking,
    /// Detection of lost tasks, which would stay outstanding for ever.
    losses: Losses,
}

impl Shortest {
    /// Creates the policy: by expected delay with this `half`, or by length.
    #[must_use]
    pub fn new(half: Option<f64>) -> Self {
        Self { half, ranks: Ranking::new(half), losses: Losses::default() }
    }

    /// Picks the best member by true queues, without the ranks: those queues change without this dispatcher.
    fn scan(&self, view: &View, rng: &mut Rng) -> Option<Pick> {
        let key = |member: Member| match self.half {
            Some(half) => (f64::from(view.probe(member)) + half) / view.rate(member),
            None => f64::from(view.probe(member)),
        };
        least(view.active(), key, rng).map(|member| Pick { member, idle: view.probe(member) == 0 })
    }
}

/// Picks a uniform member with the shortest queue for each task.
#[inline(always)]
fn pick_run(ranks: &mut impl Rank, picks: Picks<'_>, states: MemberStates<'_>, rng: &mut Rng) {
    pick_by(ranks, picks, states, |ranks, front| ranks.find(front, rng.next_u64() as u32));
}

/// Picks a member for each task, like [`one_by_one`], but finds and increments a member in one step: `find` returns one
/// of a non-empty front. The order already contains every task, write-off and remote change, so this reads no member's
/// state.
#[inline(always)]
pub(super) fn pick_by<R: Rank>(
    ranks: &mut R,
    picks: Picks<'_>,
    states: MemberStates<'_>,
    mut find: impl FnMut(&R, R::Front) -> Option<RankedMember>,
) {
    let mut front = ranks.open(); // members with the shortest queue
    for pick in picks {
        if front.is_empty() {
            let Some(next) = ranks.reopen(front) else {
                *pick = None;
                continue;
            };
            front = next;
        }
        let Some(found) = find(ranks, front) else {
            *pick = None;
            continue;
        };
        front = ranks.take(front, found);
        states.of(found.member).sent();
        *pick = Some(Pick { member: found.member, idle: found.queue == 0 });
    }
    ranks.close(front);
}

/// Counts answers and ranks the members by the tasks left, without those that `watch` writes off as lost. Returns the
/// number of replies from members without outstanding tasks.
#[inline(always)]
fn reply_run(
    ranks: &mut impl Rank,
    reports: &[Report],
    mut watch: LossWatch<'_>,
    mut parts: Parts<'_>,
) -> usize {
    ranks.set_all(
        reports,
        parts.states.members(),
        #[inline(always)]
        |report| watch.answer(report, &mut parts),
    );
    parts.surplus
}

/// Same as [`reply_run`], for pools in which each idle member belongs to one core: this core gets the members
/// that become idle by these replies. In the ranks an idle member counts as if it had a task: only its owner may prefer
/// it.
fn reply_shared(
    ranks: &mut impl Rank,
    reports: &[Report],
    mut watch: LossWatch<'_>,
    mut parts: Parts<'_>,
) -> usize {
    ranks.set_all(reports, parts.states.members(), |report| {
        let remaining = watch.answer(report, &mut parts);
        parts.idle.note(report.member, remaining == 0);
        remaining.max(1)
    });
    parts.surplus
}

/// Calls [`reply_run`], compiled without look-ups of other cores' counts if there are no other cores.
#[inline(always)]
fn reply_any(
    ranks: &mut impl Rank,
    reports: &[Report],
    losses: &mut Losses,
    now_ns: u64,
    parts: Parts<'_>,
) -> usize {
    let watch = losses.watch(parts.states.members(), now_ns);
    match parts.are_alone() {
        true => reply_run(ranks, reports, watch, parts.alone()),
        false => reply_run(ranks, reports, watch, parts),
    }
}

/// Returns the member with the least key, uniformly among ties; `None` without members. Looks at each member.
pub(super) fn least(
    members: &[Member],
    key: impl Fn(Member) -> f64,
    rng: &mut Rng,
) -> Option<Member> {
    let mut best: Option<(f64, Member)> = None;
    let mut ties = 0;
    for &member in members {
        let member_key = key(member);
        match best {
            Some((least, _)) if member_key > least => {}
            Some((least, _)) if member_key == least => {
                ties += 1;
                // Replaces the choice with probability 1 / ties, so that all ties are equally likely.
                if below(ties, rng.next_u64() as u32) == 0 {
                    best = Some((member_key, member));
                }
            }
            _ => {
                ties = 1;
                best = Some((member_key, member));
            }
        }
    }
    best.map(|(_, member)| member)
}

impl Policy for Shortest {
    /// Scans all members if the view has true queues. Otherwise takes this core's idle members, then the first ones of
    /// the order.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        if view.sees_queues() {
            return one_by_one(tasks, picks, view, rng, |_, view, rng| self.scan(view, rng));
        }
        let count = tasks.len().min(picks.len());
        let picks = &mut picks[..count];
        // First the idle members that belong to this core. In the ranks an idle member counts as if it had a task.
        let taken = if view.shares_idle() { take_shared(picks, view) } else { 0 };
        let picks = &mut picks[taken..];
        let mut local = rng.clone(); // stays in registers over the run
        match &mut self.ranks {
            Ranking::Queue(ranks) => pick_run(ranks, picks, view.states(), &mut local),
            Ranking::Delay(ranks) => pick_run(ranks, picks, view.states(), &mut local),
        }
        *rng = local;
    }

    /// Returns the shared idle member that the next pick takes, else all members, which the pick compares.
    fn candidates(&self, view: &View, _rng: &mut Rng) -> Candidates {
        next_shared_idle(view).unwrap_or_else(Candidates::all)
    }

    /// Counts answers, writes off lost tasks, and moves the members to the positions of their remaining tasks.
    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        let (losses, now_ns) = (&mut self.losses, view.burst_ns());
        match &mut self.ranks {
            Ranking::Queue(ranks) if view.shares_idle() => {
                let watch = losses.watch(view.members(), now_ns);
                reply_shared(ranks, reports, watch, view.parts())
            }
            Ranking::Queue(ranks) => reply_any(ranks, reports, losses, now_ns, view.parts()),
            Ranking::Delay(ranks) => reply_any(ranks, reports, losses, now_ns, view.parts()),
        }
    }

    /// Counts a task that was sent to a member without a pick.
    #[inline]
    fn on_follow(&mut self, member: Member, view: &mut View) {
        match view.shares_idle() {
            // An idle member already ranked as if it had the task.
            true => self.on_remote_update(member, view),
            false => self.ranks.add(member),
        }
    }

    /// Processes a report without a reply, which may show that tasks were lost.
    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        self.losses.take(report, view);
        self.on_remote_update(report.member, view);
    }

    /// Moves the member to the position of its current queue.
    fn on_remote_update(&mut self, member: Member, view: &mut View) {
        let queue = view.outstanding(member);
        self.ranks.set(member, rank_of(queue, view));
    }

    fn on_written_off(&mut self, member: Member, view: &mut View) {
        self.on_remote_update(member, view);
    }

    /// Ranks all active members by their current queues.
    fn on_members(&mut self, caller: Caller, view: &mut View) {
        self.losses.resize(view);
        self.ranks.rank(view);
        if view.shares_idle() {
            share_idle(caller, view);
        }
        // Takes the queues from the counts: the ranks of a new policy start at 0.
        for place in 0..view.active().len() {
            self.on_remote_update(view.active()[place], view);
        }
    }

    /// Updates the measurement of the round trip.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        self.losses.on_tick(view);
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.losses.round_trip_ns()
    }
}

/// Maximum number of members that a policy samples at once.
pub const SAMPLES_MAX: usize = 16;

/// Draws up to `count` (at most [`SAMPLES_MAX`]) distinct uniform members and passes each to `each`. Returns their
/// number.
#[inline(always)]
pub(super) fn sample_distinct(
    count: usize,
    active: &[Member],
    rng: &mut Rng,
    mut each: impl FnMut(Member),
) -> usize {
    if count == 1
        && let Some(&member) = active.get(below(active.len(), rng.next_u64() as u32))
    {
        each(member);
        return 1;
    }
    if count == 2
        && active.len() > 1
        && let Some((first, second)) = sample_two(active, rng)
    {
        for member in [first, second] {
            each(member); // a loop, so that `each` is inlined once
        }
        return 2;
    }
    let mut chosen = [Member(0); SAMPLES_MAX];
    let mut local = rng.clone(); // a borrowed value stays in memory
    let count = sample_several(count, active, &mut local, &mut chosen);
    *rng = local;
    for &member in &chosen[..count] {
        each(member);
    }
    count
}

/// Draws up to `count` distinct uniform members into `members`. Returns their number.
#[inline(never)]
fn sample_several(
    count: usize,
    active: &[Member],
    rng: &mut Rng,
    members: &mut [Member; SAMPLES_MAX],
) -> usize {
    let count = count.min(active.len()).min(SAMPLES_MAX);
    let mut chosen = [0; SAMPLES_MAX]; // indices drawn so far, in ascending order
    for (number, member) in members[..count].iter_mut().enumerate() {
        // Draws an index among the places not chosen yet, and skips the chosen places, which are sorted.
        let mut place = below(active.len() - number, rng.next_u64() as u32);
        let mut index = 0;
        while index < number && chosen[index] <= place {
            place += 1;
            index += 1;
        }
        chosen.copy_within(index..number, index + 1);
        chosen[index] = place;
        *member = active[place];
    }
    count
}

/// Picks the shortest of a few random members' queues (power of d choices). Each probe counts as a message, also where
/// this node's own counts answer it.
#[derive(Clone, Debug)]
pub struct ShortestOf {
    /// Number of members sampled for each task.
    count: usize,
    /// Detection of lost tasks, which would stay outstanding for ever.
    losses: Losses,
}

impl ShortestOf {
    /// Creates the policy with `count` members.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { count, losses: Losses::default() }
    }
}

impl Policy for ShortestOf {
    /// Picks the shortest of a few random queues for each task.
    fn pick_run(&mut self, tasks: &[Task], picks: Picks<'_>, view: &mut View, rng: &mut Rng) {
        one_by_one(tasks, picks, view, rng, |_, view, rng| {
            let mut best: Option<(u32, Member)> = None;
            // The sample has a random order, so the first of equal members is a uniform one.
            let probed = sample_distinct(self.count, view.active(), rng, |member| {
                let queue = view.probe(member);
                if best.is_none_or(|(least, _)| queue < least) {
                    best = Some((queue, member));
                }
            });
            view.picks.messages += probed as u64;
            best.map(|(queue, member)| Pick { member, idle: queue == 0 })
        });
    }

    /// Returns the members that the next pick samples, by the same draws, so that the caller can probe them first.
    fn ask(&self, view: &View, rng: &mut Rng) -> ProbedMembers {
        let mut probed = ProbedMembers::new();
        sample_distinct(self.count, view.active(), rng, |member| probed.push(member));
        probed
    }

    /// Processes a report without a reply, which may show that tasks were lost.
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        self.losses.take(report, view);
    }

    fn reply_run(&mut self, reports: &[Report], view: &mut View, _rng: &mut Rng) -> usize {
        self.losses.answer_run(reports, view) // counts the answers, and writes off lost tasks
    }

    fn on_members(&mut self, _caller: Caller, view: &mut View) {
        self.losses.resize(view);
    }

    /// Updates the measurement of the round trip.
    fn on_tick(&mut self, view: &mut View, _rng: &mut Rng) {
        self.losses.on_tick(view);
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.losses.round_trip_ns()
    }
}
