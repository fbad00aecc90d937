//! Places of a central queue's members, where several cores of a node send them tasks. A member has one *place* for
//! each task that it may hold at once. A free place is a *token* (a bit in memory that the cores share), which one
//! core takes at a time. So the bound on a member's tasks holds for all cores together. The policies `jbsq` and
//! `cfcfs` use this module ([`super::bounded`]).
//!
//! A reply frees a place for the core that receives it. The core notes the first free place of a member on its idle
//! list, and releases further ones to all cores at once. Tasks that wait on the core take the listed places first.
//! Without such tasks the core releases them at the end of its poll ([`View::share_idle`]). While a task on another core
//! goes first ([`super::courtesy`]), a core takes no place, and releases the places on its list. From time to time one
//! core per member compares the member's places with the member's tasks, which repairs losses and applies a changed
//! bound.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::Core;
use super::classes::Reserve;
use super::courtesy::Courtesy;
use crate::limits::BURST;
use crate::state::{Member, PoolExchange, View};

/// Maximum number of places per member under `cfcfs`, which chooses its bound at run time.
pub(super) const MOST: usize = 8;
/// Consecutive checks with too many or too few places before a correction.
const CHECKS: u8 = 3;

/// Maximum number of the newest members of the idle list to search for a preferred one.
const CHECKED: usize = 32;

/// Minimum number of surplus or missing places of a member over consecutive checks with the same sign.
#[derive(Clone, Copy, Debug, Default)]
struct Imbalance {
    /// Missing places if positive, surplus places if negative. The smallest amount over the checks, because the rest
    /// may be replies in progress.
    least: i32,
    /// Number of these checks.
    checks: u8,
}

/// Places of one core.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    /// Imbalance of each member.
    imbalances: Vec<Imbalance>,
    /// Rows of tokens in use: the maximum number of places of a member, which has one token in each row.
    rows: usize,
    courtesy: Courtesy,
}

impl Slots {
    /// Sets the number of members, and the maximum number of places each.
    pub(super) fn resize(&mut self, members: usize, rows: usize) {
        self.imbalances.resize(members, Imbalance::default());
        self.rows = rows;
    }

    /// Returns true if this core may take a place now: no task on another core goes first ([`Courtesy::is_first`]).
    fn is_first(&mut self, view: &View) -> bool {
        let Some(pool_exchange) = view.pool_exchange() else { return true };
        let first = (pool_exchange.oldest_elsewhere(), pool_exchange.yield_tolerance());
        self.courtesy.is_first(pool_exchange, first, view)
    }

    /// Takes up to `most` places, at most [`BURST`]: those on this core's idle list, then shared ones of members with
    /// the most free places. Each has a flag: all the member's places under this bound seemed free, so the member is
    /// probably idle. The caller passes this flag on with the pick, and measures round trips with such tasks only.
    /// Takes none if a task on another core goes first. Reserved members are taken as `reserve` says.
    pub(super) fn take(
        &mut self,
        bound: usize,
        reserve: &Reserve,
        most: usize,
        view: &mut View,
    ) -> ArrayVec<(Member, bool), BURST> {
        let mut places = ArrayVec::new();
        let has_tokens = || view.pool_exchange().is_some_and(PoolExchange::has_tokens);
        if view.idle().is_empty() && !has_tokens() {
            return places;
        }
        if !self.is_first(view) {
            view.release_idle(0); // the core whose task goes first may take them
            return places;
        }
        let (has_reserve, most) = (reserve.end > 0, most.min(BURST));
        while places.len() < most {
            let listed = match has_reserve {
                false => view.idle_mut().take_last(),
                true => take_listed(reserve, view),
            };
            let Some(member) = listed else { break };
            // The list says only that one place is free. This core's own count and the last report show whether
            // the member has other tasks.
            let state = view.of(member);
            places.push((member, state.own_outstanding() <= 0 && state.load().0 == 0));
        }
        let Some(pool_exchange) = view.pool_exchange() else { return places };
        let mut has_more = true;
        while places.len() < most && has_more {
            has_more = false;
            let missing = most - places.len();
            let mut add = |member: Member, row| {
                has_more = true;
                // Tokens of members that are no longer active are discarded.
                if view.is_active(member) {
                    // Free tokens fill the rows from the last one on, so a token in `row` is the first of `rows - row`
                    // free ones. All places are free if these are `bound`. After a change of the bound this may be
                    // wrong for a while.
                    places.push((member, row + bound == self.rows));
                }
            };
            match has_reserve {
                false => pool_exchange.take_tokens(missing, add),
                true => {
                    _ = pool_exchange.take_token_in(&reserve.ranges()).map(|(m, row)| add(m, row))
                }
            }
        }
        if has_reserve && places.is_empty() {
            view.release_idle(0); // reserved members, which short tasks on other cores may take
        }
        places
    }

    /// Compares a member's places with its tasks, if this core is responsible for it. Free places and tasks together
    /// must equal `bound`. Adds missing tokens and removes surplus ones: immediately if `at_once`, which the caller
    /// sets after a change of members or a write-off, else after [`CHECKS`] checks with a difference of the same sign.
    /// A reply in progress on another core causes a brief difference, which must not count.
    pub(super) fn settle(
        &mut self,
        member: Member,
        bound: usize,
        at_once: bool,
        core: Core,
        view: &mut View,
    ) {
        let Some(pool_exchange) = view.pool_exchange().filter(|_| core.is_responsible_for(member))
        else {
            return;
        };
        // Free places: tokens that no core holds, and those on cores' idle lists.
        let free =
            pool_exchange.tokens().count_of(member, self.rows) + view.idle_everywhere(member);
        let tasks = view.outstanding_now(member).max(0);
        let imbalance = bound as i32 - tasks - free as i32;
        // A new sign restarts the count; otherwise the smallest amount so far stays.
        let tracked = &mut self.imbalances[member.index()];
        if imbalance == 0 || imbalance.signum() != tracked.least.signum() {
            *tracked = Imbalance { least: imbalance, checks: 0 };
        } else if imbalance.abs() < tracked.least.abs() {
            tracked.least = imbalance;
        }
        tracked.checks += 1;
        if imbalance == 0 || !at_once && tracked.checks < CHECKS {
            return;
        }
        let least = std::mem::take(tracked).least;
        for _ in 0..least.abs() {
            if least > 0 {
                pool_exchange.tokens().put(member, self.rows);
            } else if !pool_exchange.tokens().take_of(member) {
                break;
            }
        }
    }
}

/// Takes a member off this core's idle list: one of the newest, in the order of the ranges of `reserve`.
#[cold]
fn take_listed(reserve: &Reserve, view: &mut View) -> Option<Member> {
    let list = view.idle_mut();
    let ranges = reserve.ranges();
    let newest = || (0..list.len()).rev().map(|place| list.at(place));
    let of = |range: &Range<usize>, member: &Member| range.contains(&member.index());
    let found = newest()
        .take(CHECKED)
        .find(|member| of(&ranges[0], member))
        .or_else(|| newest().find(|member| ranges.iter().any(|range| of(range, member))))?;
    list.remove(found);
    Some(found)
}
