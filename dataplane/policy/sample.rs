//! Random members, and the better of two: what several policies choose by.

use rand::Rng as _;

use super::{Caller, Pick, Picks, Reports, Rng};
use crate::state::{Belief, Member, View};

/// A uniform number below `n` (at most 2^32 of them), by multiplication (Lemire 2019 without the
/// rejection: the bias is below n / 2^32).
#[inline]
pub(super) fn below(n: usize, bits: u32) -> usize {
    ((u64::from(bits) * n as u64) >> 32) as usize
}

/// A uniform member, none when there are no members.
#[inline]
pub(super) fn sample_one(active: &[Member], rng: &mut Rng) -> Option<Member> {
    active.get(below(active.len(), rng.next_u64() as u32)).copied()
}

/// Two distinct members in random order; a lone member twice.
#[inline(always)]
pub(super) fn sample_two(active: &[Member], rng: &mut Rng) -> Option<(Member, Member)> {
    let n = active.len();
    if n < 2 {
        return active.first().map(|&only| (only, only));
    }
    let bits = rng.next_u64();
    let first = below(n, bits as u32);
    let second = below(n - 1, (bits >> 32) as u32);
    let second = second + usize::from(second >= first);
    Some((active[first], active[second]))
}

/// Puts members that have nothing to do and are on no core's idle list on this core's: its share of those that nobody knows of,
/// as when a node starts or has another policy (two cores must not both believe a worker to be theirs: JIQ), and those that may be
/// chosen again. Where members tell of themselves whom they choose, none is put there.
pub(super) fn share_idle(caller: Caller, view: &mut View) {
    let Caller { core, reports, .. } = caller;
    if let Some(peers) = view.peers() {
        peers.tokens().clear_from(1); // places under the bound of a policy before
    }
    if reports == Reports::Messages {
        return;
    }
    for place in 0..view.active().len() {
        let member = view.active()[place];
        let ours = member.index() % core.count == core.index;
        if (view.take_returned(member) || ours) && view.is_idle_unnoticed(member) {
            view.idle_mut().insert(member);
        }
    }
}

/// Idle members that this or any of the node's cores may have, for the first of these tasks; how many there were.
#[cold]
pub(super) fn take_shared(picks: Picks<'_>, view: &mut View) -> usize {
    let mut parts = view.parts();
    for (taken, pick) in picks.iter_mut().enumerate() {
        let Some(member) = parts.take_idle() else { return taken };
        parts.words.of(member).sent();
        *pick = Some(Pick { member, idle: true });
    }
    picks.len()
}

/// How a member with so many tasks is ranked: where idle ones belong to one core, as if it had one.
#[inline]
pub(super) fn rank_of(queue: u32, view: &View) -> u32 {
    if view.shares_idle() { queue.max(1) } else { queue }
}

/// One of a pair, chosen without a branch: the outcome is a coin toss, and a mispredicted branch costs
/// as much as the rest of the decision.
#[inline]
pub(super) fn select<T>(second: bool, a: T, b: T) -> T {
    std::hint::select_unpredictable(second, b, a)
}

/// The second of two members is the better one by load plus drift; and whether a switch would have passed the
/// packet through its pipeline again: when the drift of the member with the smaller *load* exceeds the
/// difference of the loads (Horus 3.3), so that it may be the worse one. A switch then folds drift into
/// load, which makes the next such packet rarer; here it does not, so that their number is an upper bound.
#[inline(always)]
pub(super) fn compare(a: Belief, b: Belief) -> (bool, bool) {
    let (load_a, load_b) = (a.load().0, b.load().0);
    let lazy = select(load_b < load_a, a.total(), b.total());
    (b.total() < a.total(), lazy > u64::from(load_a.max(load_b)))
}
