//! Random members and comparisons, shared by several policies.

use rand::Rng as _;

use super::{Caller, Pick, Picks, Reports, Rng};
use crate::state::{LoadEstimate, Member, View};

/// Maps random bits to a uniform number below `n` (at most 2^32) by multiplication (Lemire 2019, without the
/// rejection step; the bias is below n / 2^32).
#[inline]
pub(super) fn below(n: usize, bits: u32) -> usize {
    ((u64::from(bits) * n as u64) >> 32) as usize
}

/// Returns a uniform member, or `None` without members.
#[inline]
pub(super) fn sample_one(active: &[Member], rng: &mut Rng) -> Option<Member> {
    active.get(below(active.len(), rng.next_u64() as u32)).copied()
}

/// Returns two distinct members in random order, as "power of two choices" needs them. A single member is returned
/// twice; `None` without members.
#[inline(always)]
pub(super) fn sample_two(active: &[Member], rng: &mut Rng) -> Option<(Member, Member)> {
    let n = active.len();
    if n < 2 {
        return active.first().map(|&only| (only, only));
    }
    let bits = rng.next_u64();
    let first = below(n, bits as u32);
    // Draws from the remaining n - 1 indices: those from `first` on are one higher.
    let second = below(n - 1, (bits >> 32) as u32);
    let second = second + usize::from(second >= first);
    Some((active[first], active[second]))
}

/// Puts idle members that are on no core's list on this core's list. At a start or after a policy change these are the
/// members that fall to this core by their number. Members that returned to the pool ([`View::take_returned`]) join
/// the list of the first core that calls this. Each idle member has one owner core, as in JIQ. Adds none if members
/// send their reports in messages: their first report puts them on a list.
pub(super) fn share_idle(caller: Caller, view: &mut View) {
    let Caller { core, reports, .. } = caller;
    if let Some(pool_exchange) = view.pool_exchange() {
        // Tokens of the first row stand for idle members. Tokens of further rows are free places at members, and remain
        // from an earlier bounded policy.
        pool_exchange.tokens().clear_from(1);
    }
    if reports == Reports::Messages {
        return;
    }
    for place in 0..view.active().len() {
        let member = view.active()[place];
        let is_ours = member.index() % core.count == core.index;
        if (view.take_returned(member) || is_ours) && view.is_idle_and_unlisted(member) {
            view.idle_mut().insert(member);
        }
    }
}

/// Fills the first of `picks` with idle members, and counts a task as sent to each. These are members on this core's
/// list, and members released to all cores. Counts them as picks of idle members. Returns their number. The caller
/// decides on the remaining tasks. Cold, because only nodes with several cores call it.
#[cold]
pub(super) fn take_shared(picks: Picks<'_>, view: &mut View) -> usize {
    let mut parts = view.parts();
    for (taken, pick) in picks.iter_mut().enumerate() {
        let Some(member) = parts.take_idle() else { return taken };
        parts.states.of(member).sent();
        parts.picks.idle += 1;
        *pick = Some(Pick { member, idle: true });
    }
    picks.len()
}

/// Returns the rank of a member with `queue` tasks. If each idle member belongs to one core, an idle member has
/// the rank of one task: only its owner may prefer it.
#[inline]
pub(super) fn rank_of(queue: u32, view: &View) -> u32 {
    if view.shares_idle() { queue.max(1) } else { queue }
}

/// Returns `b` if `second`, otherwise `a`, without a branch. The outcome is random, and a mispredicted branch would
/// cost as much as the rest of the decision.
#[inline]
pub(super) fn select<T>(second: bool, a: T, b: T) -> T {
    std::hint::select_unpredictable(second, b, a)
}

/// Returns two flags: the second of two members is better by load plus drift (tasks sent since the load report), and a
/// switch would have recirculated the packet. Horus runs on a programmable switch, whose pipeline reads only the loads
/// in one pass. The switch recirculates if the drift of the member with the smaller *load* exceeds the difference of
/// the loads (Horus 3.3): that member may be the worse one. It then folds drift into load, which makes the next
/// recirculation rarer. This function folds nothing, so the callers' count (`resubmits`) is an upper bound.
#[inline(always)]
pub(super) fn compare(a: LoadEstimate, b: LoadEstimate) -> (bool, bool) {
    let (load_a, load_b) = (a.load().0, b.load().0);
    let total_of_smaller = select(load_b < load_a, a.total(), b.total());
    (b.total() < a.total(), total_of_smaller > u64::from(load_a.max(load_b)))
}
