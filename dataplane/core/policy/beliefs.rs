//! State behind a dispatcher's next decision, for `wedjat explain`: the policy's method, the members that it considers,
//! and the core's estimates of them ([`Beliefs`]). Reads all members, so it is too slow for each packet.

use arrayvec::ArrayVec;

use super::{Lane, ProbedMembers};
use crate::state::{Load, Member, MemberPresence, View};

/// Maximum number of reported estimates.
pub const ESTIMATES_MAX: usize = 8;

/// Method by which a policy selects the member for its next task, or the reason why it cannot select one yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionBasis {
    /// Takes an idle member; at least one exists now.
    Idle,
    /// Draws members at random and takes the best of them.
    Drawn,
    /// Takes the best of all members, or any of several equal ones.
    Best,
    /// Takes members in turn.
    Turn,
    /// Awaits the answers of the probed members, and then chooses by them.
    Asked,
}

impl SelectionBasis {
    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Drawn => "drawn",
            Self::Best => "best",
            Self::Turn => "turn",
            Self::Asked => "asked",
        }
    }
}

/// Members considered by a policy's next decision, and its method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Method of selection.
    pub basis: SelectionBasis,
    /// The members, in the policy's order. An empty list depends on `basis`:
    /// - `Idle`: any idle rack, or an idle member whose token any core may take;
    /// - `Best`: all members;
    /// - `Asked`: the answers are outstanding;
    /// - `Drawn`, `Turn`: the pool has no active member.
    pub members: ProbedMembers,
}

impl Candidates {
    /// Creates candidates. Panics if there are more members than a policy may probe.
    pub fn new(basis: SelectionBasis, members: impl IntoIterator<Item = Member>) -> Self {
        Self { basis, members: members.into_iter().collect() }
    }

    /// Returns candidates that stand for all members.
    #[must_use]
    pub fn all() -> Self {
        Self::new(SelectionBasis::Best, [])
    }
}

/// Returns the idle member that a policy with a preference for idle members takes next: the last one on this core's
/// idle list. If the list is empty, another core may have released an idle member to all cores by a token in shared
/// memory. Empty candidates stand for such a member. `None` without idle members.
pub(super) fn next_idle(view: &View) -> Option<Candidates> {
    let last = view.idle().len().checked_sub(1).map(|last| view.idle().at(last));
    let has_token = view
        .pool_exchange()
        .is_some_and(|pool_exchange| pool_exchange.publishes().idle && pool_exchange.has_tokens());
    (last.is_some() || has_token).then(|| Candidates::new(SelectionBasis::Idle, last))
}

/// Same as [`next_idle`], for policies that use idle lists only on a node with several cores ([`View::shares_idle`]).
/// On a single core these policies find idle members by their own ranks or lists.
pub(super) fn next_shared_idle(view: &View) -> Option<Candidates> {
    next_idle(view).filter(|_| view.shares_idle())
}

/// State of one member as one core knows or estimates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEstimate {
    /// The member.
    pub member: Member,
    /// Last reported load.
    pub load: Load,
    /// Load sent to it by this core since the report.
    pub drift: Load,
    /// Number of tasks sent to it and not answered, over all cores, as far as this core knows.
    pub outstanding: u32,
    /// True if it is on the idle list.
    pub is_idle: bool,
    /// True if it is one of the policy's [`Candidates`]; false if it is listed because these are empty.
    pub is_considered: bool,
}

/// Knowledge and estimates of a dispatcher at its next decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beliefs {
    /// Method of selection.
    pub basis: SelectionBasis,
    /// Number of tasks in the pool's queue, and the maximum.
    pub queue: (usize, usize),
    /// Maximum number of tasks at a member; `None` if the policy has no bound. Central queues and `eft` have one.
    pub bound: Option<usize>,
    /// Number of members that the policy may choose.
    pub active: usize,
    /// Number of these on this core's idle list.
    pub idle: usize,
    /// Numbers of members that it may not choose: silent ones, unreachable ones, and others (drained, or not registered
    /// yet).
    pub excluded: [usize; 3],
    /// Estimates of the policy's candidates. Without these: of the active members with the fewest outstanding tasks,
    /// then with the least load.
    pub estimates: ArrayVec<MemberEstimate, ESTIMATES_MAX>,
    /// Ids of the members with estimates, in their order; empty without [`Beliefs::of_task`].
    pub workers: ArrayVec<u16, ESTIMATES_MAX>,
    /// Rules for the class of the task, if the policy has some; `None` without [`Beliefs::of_task`].
    pub class: Option<ClassBeliefs>,
}

/// Rules for the class of one task, with their current effect. Only policies with rules for classes have them
/// ([`super::classes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassBeliefs {
    /// Lane in which the task waits, if it must.
    pub lane: Lane,
    /// Number of tasks that wait in this lane, on this core.
    pub waiting: usize,
    /// Time in nanoseconds from the arrival of a task of this lane to its key.
    pub delay_ns: u64,
    /// Lane with the least key, on this core. The task itself counts as waiting.
    pub next: Lane,
    /// True if the class is long.
    pub is_long: bool,
    /// True if the task may take no reserved member.
    pub avoids_reserve: bool,
    /// Number of active reserved members.
    pub reserved: usize,
    /// Number of these that have room for a task.
    pub reserved_with_room: usize,
    /// End of the reserved members' indices, which begin at 0.
    pub(super) reserved_end: usize,
}

impl ClassBeliefs {
    /// Returns true if long classes may not take this member.
    #[must_use]
    pub fn is_reserved(&self, member: Member) -> bool {
        member.index() < self.reserved_end
    }
}

impl Beliefs {
    /// Creates the value from a dispatcher's view, the candidates of its policy, its queue (tasks and maximum), and the
    /// policy's bound.
    pub(super) fn new(
        view: &View,
        Candidates { basis, members }: Candidates,
        queue: (usize, usize),
        bound: Option<usize>,
    ) -> Self {
        let mut excluded = [0; 3];
        for member in
            (0..view.members() as u16).map(Member).filter(|&member| !view.is_active(member))
        {
            match view.presence(member) {
                MemberPresence::Absent => {} // an unused place, no member
                MemberPresence::Silent => excluded[0] += 1,
                MemberPresence::Unreachable => excluded[1] += 1,
                MemberPresence::Configured
                | MemberPresence::Registered
                | MemberPresence::Unregistered => {
                    excluded[2] += 1;
                }
            }
        }
        let mut estimates = ArrayVec::new();
        for &member in members.iter().take(ESTIMATES_MAX) {
            if !estimates.iter().any(|known: &MemberEstimate| known.member == member) {
                estimates.push(MemberEstimate {
                    is_considered: true,
                    ..MemberEstimate::of(view, member)
                });
            }
        }
        if estimates.is_empty() {
            for &member in view.active() {
                insert(&mut estimates, MemberEstimate::of(view, member));
            }
        }
        Self {
            basis,
            queue,
            bound,
            active: view.active().len(),
            idle: view.idle().len(),
            excluded,
            estimates,
            workers: ArrayVec::new(),
            class: None,
        }
    }

    /// Adds the rules for the class of a task, and the id of each member with an estimate.
    #[must_use]
    pub fn of_task(self, class: Option<ClassBeliefs>, id: impl Fn(Member) -> u16) -> Self {
        let workers = self.estimates.iter().map(|estimate| id(estimate.member)).collect();
        Self { workers, class, ..self }
    }

    /// Returns the estimate of a member, if it is in the list.
    #[must_use]
    pub fn estimate(&self, member: Member) -> Option<&MemberEstimate> {
        self.estimates.iter().find(|estimate| estimate.member == member)
    }
}

impl MemberEstimate {
    /// Returns a core's current estimate of a member.
    #[must_use]
    pub fn of(view: &View, member: Member) -> Self {
        let (load, drift) = view.load_and_drift(member);
        let (outstanding, is_idle) = (view.outstanding(member), view.idle().contains(member));
        Self { member, load, drift, outstanding, is_idle, is_considered: false }
    }

    /// Returns the sort key: outstanding tasks, then the estimated load.
    fn rank(&self) -> (u32, u64) {
        (self.outstanding, u64::from(self.load.0) + u64::from(self.drift.0))
    }
}

/// Inserts an estimate in order, and keeps the first [`ESTIMATES_MAX`].
fn insert(estimates: &mut ArrayVec<MemberEstimate, ESTIMATES_MAX>, estimate: MemberEstimate) {
    let place = estimates.partition_point(|present| present.rank() <= estimate.rank());
    if place == ESTIMATES_MAX {
        return;
    }
    if estimates.is_full() {
        estimates.pop();
    }
    estimates.insert(place, estimate);
}
