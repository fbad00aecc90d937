//! What a dispatcher goes by for its next task, for those who ask why it chose as it did. Looks at all members: not for each packet.

use arrayvec::ArrayVec;

use super::{Asked, Dispatcher};
use crate::state::{Load, Member, Presence, View};

/// Members that are told of at most.
pub const CANDIDATES_MAX: usize = 8;

/// How a policy comes to the member of its next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// A member that is believed idle comes first, and there is one.
    Idle,
    /// Members are drawn at random, and the best of them is taken.
    Drawn,
    /// The best of all members is taken, any of those that tie.
    Best,
    /// It is the turn of one of them.
    Turn,
    /// The task waits until those that are asked about it have answered.
    Asked,
}

impl Basis {
    /// The key under which it is reported.
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

/// The members that a policy's next decision is between, as far as it looks at some alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// How they come to be these.
    pub basis: Basis,
    /// Which they are, in the policy's order; none when it looks at all of them, or at one that other cores may take, too.
    pub members: Asked,
}

impl Candidates {
    /// These members, for that reason.
    pub fn new(basis: Basis, members: impl IntoIterator<Item = Member>) -> Self {
        Self { basis, members: members.into_iter().collect() }
    }

    /// All members.
    #[must_use]
    pub fn all() -> Self {
        Self::new(Basis::Best, [])
    }
}

/// The idle member that comes next, of policies that take such first: the last of the list, or one that any core may take.
pub(super) fn idle_first(view: &View) -> Option<Candidates> {
    let last = view.idle().len().checked_sub(1).map(|last| view.idle().at(last));
    let shared = view.peers().is_some_and(|peers| peers.sharing().idle && peers.has_tokens());
    (last.is_some() || shared).then(|| Candidates::new(Basis::Idle, last))
}

/// The same of policies that take such first only where idle members belong to one core at a time.
pub(super) fn idle_shared(view: &View) -> Option<Candidates> {
    idle_first(view).filter(|_| view.shares_idle())
}

/// What is believed of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which it is.
    pub member: Member,
    /// Its last reported load.
    pub load: Load,
    /// What this core has sent it since.
    pub drift: Load,
    /// Tasks sent there and not answered, over all cores as far as known.
    pub outstanding: u32,
    /// It is on the idle list.
    pub is_idle: bool,
    /// The policy looks at it because it drew it, or because it is its turn.
    pub is_drawn: bool,
}

/// What a decision is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beliefs {
    /// How the policy comes to its member.
    pub basis: Basis,
    /// Tasks that wait in the pool's queue, and how many may.
    pub queue: (usize, usize),
    /// Tasks that a member may have at a time, under a policy with a central queue.
    pub bound: Option<usize>,
    /// Members that may be chosen.
    pub active: usize,
    /// Those of them on this core's idle list.
    pub idle: usize,
    /// Members that may not be chosen: silent, out of reach, and others (drained, or not registered yet).
    pub out: [usize; 3],
    /// Those that the policy looks at; else those that are believed to have the least.
    pub candidates: ArrayVec<Candidate, CANDIDATES_MAX>,
}

impl Beliefs {
    /// Of a dispatcher, before its next task.
    #[must_use]
    pub fn of(dispatcher: &Dispatcher) -> Self {
        let view = dispatcher.view();
        let Candidates { basis, members } = dispatcher.candidates();
        let mut out = [0; 3];
        for member in (0..view.members() as u16).map(Member).filter(|&one| !view.is_active(one)) {
            match view.presence(member) {
                Presence::Absent => {}
                Presence::Silent => out[0] += 1,
                Presence::Unreachable => out[1] += 1,
                Presence::Configured | Presence::Registered | Presence::Unregistered => {
                    out[2] += 1;
                }
            }
        }
        let mut candidates = ArrayVec::new();
        for &member in members.iter().take(CANDIDATES_MAX) {
            if !candidates.iter().any(|one: &Candidate| one.member == member) {
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
            queue: (dispatcher.waiting(), dispatcher.queue().0),
            bound: dispatcher.bounded().map(super::Bounded::bound),
            active: view.active().len(),
            idle: view.idle().len(),
            out,
            candidates,
        }
    }

    /// What was believed of this member, if it is told of.
    #[must_use]
    pub fn candidate(&self, member: Member) -> Option<&Candidate> {
        self.candidates.iter().find(|one| one.member == member)
    }
}

impl Candidate {
    /// As a core believes it now.
    #[must_use]
    pub fn of(view: &View, member: Member) -> Self {
        let (load, drift) = view.load_and_drift(member);
        let (outstanding, is_idle) = (view.outstanding(member), view.idle().contains(member));
        Self { member, load, drift, outstanding, is_idle, is_drawn: false }
    }

    /// How much it is believed to have: its place among the others.
    fn rank(&self) -> (u32, u64) {
        (self.outstanding, u64::from(self.load.0) + u64::from(self.drift.0))
    }
}

/// Keeps those that have the least, in order.
fn insert(kept: &mut ArrayVec<Candidate, CANDIDATES_MAX>, one: Candidate) {
    let place = kept.partition_point(|other| other.rank() <= one.rank());
    if place == CANDIDATES_MAX {
        return;
    }
    if kept.is_full() {
        kept.pop();
    }
    kept.insert(place, one);
}
