//! The places that members of a central queue have, where several cores of a node give tasks to them: each place is a token that
//! one core has at a time, so that the bound on a member's tasks holds for the pool and not for each core.
//!
//! A place that a reply frees belongs to the core that the reply passed, which keeps it if it does not keep up with what comes and
//! else lets any core have it. A core lets another's task go first if that has waited longer, for as long as the other takes to
//! notice. Now and then one core for each member compares its places with its tasks: what was lost, or is bounded anew, is put
//! right there.

use super::Core;
use crate::state::{Member, Peers, View};

/// Places of a member at most, where the bound is chosen.
pub(super) const MOST: usize = 8;
/// A task that has waited longer elsewhere goes first, unless its core lets it wait for so long though a place is free.
const COURTESY_NS: u64 = 5_000;
/// Looks in a row at which too many or too few places are there.
const LOOKS: u8 = 3;

/// By how many places a member was off at the last looks, at least.
#[derive(Clone, Copy, Debug, Default)]
struct Off {
    least: i32,
    looks: u8,
}

/// One core's places.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    off: Vec<Off>,
    /// Rows of tokens in use.
    rows: usize,
    /// The oldest task of another core that goes first, and since when it does.
    courtesy: (u64, u64),
}

impl Slots {
    /// There are so many members, with so many places each at most.
    pub(super) fn resize(&mut self, members: usize, rows: usize) {
        self.off.resize(members, Off::default());
        self.rows = rows;
    }

    /// The core of `view` may give away a place now: no task has waited longer elsewhere.
    fn is_first(&mut self, view: &View) -> bool {
        let Some(peers) = view.peers() else { return true };
        let now_ns = view.now_ns();
        let own = match peers.oldest() {
            0 => now_ns,
            since_ns => since_ns,
        };
        let elsewhere = peers.oldest_elsewhere();
        if elsewhere >= own {
            return true;
        }
        if self.courtesy.0 != elsewhere {
            self.courtesy = (elsewhere, now_ns);
        }
        now_ns.saturating_sub(self.courtesy.1) > COURTESY_NS
    }

    /// Takes a place at a member that has most of its places free under this bound; and whether all of them were.
    pub(super) fn take(&mut self, bound: usize, view: &mut View) -> Option<(Member, bool)> {
        let is_some = || view.peers().is_some_and(Peers::has_tokens);
        if view.idle().is_empty() && !is_some() || !self.is_first(view) {
            return None;
        }
        if let Some(member) = view.idle_mut().take_last() {
            // Of its last place the report tells more than this core's own count.
            let words = view.of(member);
            return Some((member, words.own_outstanding() <= 0 && words.load().0 == 0));
        }
        loop {
            let (member, row) = view.peers()?.take_token()?;
            if view.is_active(member) {
                return Some((member, row + bound <= self.rows));
            }
        }
    }

    /// A member has one place more.
    #[inline]
    pub(super) fn give(&mut self, member: Member, view: &mut View) {
        if view.is_active(member)
            && !view.idle_mut().insert(member)
            && let Some(peers) = view.peers()
        {
            peers.tokens().put(member, self.rows);
        }
    }

    /// Compares a member's places with its tasks, if it falls to this core; at once, or when they have been off for some looks.
    pub(super) fn settle(
        &mut self,
        member: Member,
        bound: usize,
        at_once: bool,
        core: Core,
        view: &mut View,
    ) {
        let Some(peers) = view.peers().filter(|_| core.looks_after(member)) else { return };
        let free = peers.tokens().count(member) + view.idle_everywhere(member);
        let tasks = view.outstanding_now(member).max(0);
        let off = bound as i32 - tasks - free as i32;
        let known = &mut self.off[member.index()];
        if off == 0 || off.signum() != known.least.signum() {
            *known = Off { least: off, looks: 0 };
        } else if off.abs() < known.least.abs() {
            known.least = off;
        }
        known.looks += 1;
        if off == 0 || !at_once && known.looks < LOOKS {
            return;
        }
        let least = std::mem::take(known).least;
        for _ in 0..least.abs() {
            if least > 0 {
                peers.tokens().put(member, self.rows);
            } else if !peers.tokens().take_of(member) {
                break;
            }
        }
    }
}
