//! State behind a dispatcher's next decision, for `wedjat explain`. Reads all members, so it is too slow for
//! each packet.

use arrayvec::ArrayVec;

use super::ProbedMembers;
use crate::state::{Load, Member, Presence, View};

/// Maximum number of reported candidates.
pub const CANDIDATES_MAX: usize = 8;

/// Method by which a policy selects the member for its next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionBasis {
    /// Takes an idle member; there is one.
    Idle,
    /// Draws members at random and takes the best of them.
    Drawn,
    /// Takes the best of all members, or any of several equal ones.
    Best,
    /// Takes members in turn.
    Turn,
    /// Waits for the answers of the probed members.
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

/// Members considered by a policy's next decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Method of selection.
    pub basis: SelectionBasis,
    /// The members, in the policy's order. Empty if the policy considers all of them, any idle one, or an idle one
    /// shared by all cores, and while it waits for probes' answers.
    pub members: ProbedMembers,
}

impl Candidates {
    /// Creates candidates.
    pub fn new(basis: SelectionBasis, members: impl IntoIterator<Item = Member>) -> Self {
        Self { basis, members: members.into_iter().collect() }
    }

    /// Returns candidates that stand for all members.
    #[must_use]
    pub fn all() -> Self {
        Self::new(SelectionBasis::Best, [])
    }
}

/// Returns the next idle member for policies that prefer idle members: the last on the list. Empty candidates
/// stand for an idle member that any core may take, by a token in shared memory.
pub(super) fn idle_first(view: &View) -> Option<Candidates> {
    let last = view.idle().len().checked_sub(1).map(|last| view.idle().at(last));
    let shared = view.peers().is_some_and(|peers| peers.sharing().idle && peers.has_tokens());
    (last.is_some() || shared).then(|| Candidates::new(SelectionBasis::Idle, last))
}

/// Same as [`idle_first`], for policies that use idle lists only on a node with several cores. Each idle member
/// belongs to one core there. On a single core these policies find idle members by their own ranks or lists.
pub(super) fn idle_shared(view: &View) -> Option<Candidates> {
    idle_first(view).filter(|_| view.shares_idle())
}

/// Estimated state of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The member.
    pub member: Member,
    /// Last reported load.
    pub load: Load,
    /// Load sent to it by this core since the report.
    pub drift: Load,
    /// Number of tasks sent to it and not answered, over all cores, by this core's knowledge.
    pub outstanding: u32,
    /// True if it is on the idle list.
    pub is_idle: bool,
    /// True if the policy drew it, or its turn has come.
    pub is_drawn: bool,
}

/// Inputs of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beliefs {
    /// Method of selection.
    pub basis: SelectionBasis,
    /// Number of tasks in the pool's queue, and the maximum.
    pub queue: (usize, usize),
    /// Maximum number of tasks at a member, under a policy with a central queue.
    pub bound: Option<usize>,
    /// Number of members that the policy may choose.
    pub active: usize,
    /// Number of these on this core's idle list.
    pub idle: usize,
    /// Numbers of members that it may not choose: silent, unreachable, and others (drained, or not registered
    /// yet).
    pub out: [usize; 3],
    /// Candidates of the policy; else the members with the fewest outstanding tasks, then with the least load.
    pub candidates: ArrayVec<Candidate, CANDIDATES_MAX>,
}

impl Beliefs {
    /// Creates the inputs from a dispatcher's view, the candidates of its policy, its queue and the policy's
    /// bound.
    pub(super) fn new(
        view: &View,
        Candidates { basis, members }: Candidates,
        queue: (usize, usize),
        bound: Option<usize>,
    ) -> Self {
        let mut out = [0; 3];
        for member in
            (0..view.members() as u16).map(Member).filter(|&member| !view.is_active(member))
        {
            match view.presence(member) {
                Presence::Absent => {} // an unused place, no member
                Presence::Silent => out[0] += 1,
                Presence::Unreachable => out[1] += 1,
                Presence::Configured | Presence::Registered | Presence::Unregistered => {
                    out[2] += 1;
                }
            }
        }
        let mut candidates = ArrayVec::new();
        for &member in members.iter().take(CANDIDATES_MAX) {
            if !candidates.iter().any(|known: &Candidate| known.member == member) {
                candidates.push(Candidate { is_drawn: true, ..Candidate::of(view, member) });
            }
        }
        if candidates.is_empty() {
            for &member in view.active() {
                insert(&mut candidates, Candidate::of(view, member));
            }
        }
        Self {
            basis,
            queue,
            bound,
            active: view.active().len(),
            idle: view.idle().len(),
            out,
            candidates,
        }
    }

    /// Returns the estimate of a member, if it is a candidate.
    #[must_use]
    pub fn candidate(&self, member: Member) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.member == member)
    }
}

impl Candidate {
    /// Returns a core's current estimate of a member.
    #[must_use]
    pub fn of(view: &View, member: Member) -> Self {
        let (load, drift) = view.load_and_drift(member);
        let (outstanding, is_idle) = (view.outstanding(member), view.idle().contains(member));
        Self { member, load, drift, outstanding, is_idle, is_drawn: false }
    }

    /// Returns the sort key: outstanding tasks, then the estimated load.
    fn rank(&self) -> (u32, u64) {
        (self.outstanding, u64::from(self.load.0) + u64::from(self.drift.0))
    }
}

/// Inserts a candidate in order, and keeps the first [`CANDIDATES_MAX`].
fn insert(candidates: &mut ArrayVec<Candidate, CANDIDATES_MAX>, candidate: Candidate) {
    let place = candidates.partition_point(|present| present.rank() <= candidate.rank());
    if place == CANDIDATES_MAX {
        return;
    }
    if candidates.is_full() {
        candidates.pop();
    }
    candidates.insert(place, candidate);
}
