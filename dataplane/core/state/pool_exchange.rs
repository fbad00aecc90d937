//! Exchange of per-member load between the dispatcher cores of a node, and the tokens that they share. A *token* is
//! the right to send one task to a member, or the member's idleness; one core holds it at a time ([`super::tokens`]).
//!
//! A core without overload publishes every change after each burst. An overloaded core publishes only changes of
//! several tasks, so that few cache lines per packet move between cores. It publishes the rest when its overload ends. In
//! between, reports show tasks of other cores that were not published.
//!
//! Shared words were the alternative. They moved a cache line between cores for nearly every reply, and each core still
//! missed the tasks that other cores had just sent. docs/explanation/consistency.md compares both.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::broadcast::{Sender, Subject, Topic};
use super::layout::Layout;
use super::member::{Load, Member};
use super::region::{Region, Slice};
use super::tokens::Tokens;
use super::words::{LocalState, MemberStates, RemoteTasks};
use crate::limits::BURST;

/// Units per task of published loads: sixteenths.
const SIXTEENTHS: u32 = 16;
/// Number of members that a core records as touched between two exchanges; after more it compares all members.
/// Room for the tasks and replies of several bursts.
const TOUCHED_MOST: usize = 8 * BURST;
/// Number of members that a publication compares before it sends their changes.
const COMPARED: usize = 64;
/// Minimum change, in tasks, that an overloaded core publishes, by maximum number of cores. With more cores,
/// more of them read each message, and a member's load moves more between two bursts of one core.
const COARSE: [(usize, u16); 4] = [(2, 2), (4, 3), (8, 4), (usize::MAX, 8)];

/// Least number of cores whose counts use reports during an overload ([`RemoteTasks::Coarse`]). On two cores at most one
/// task per member stays unpublished. Reports would lower the simulated p99 by 0 to 5% there, but the packets/s by 1 to 8%.
const CORES_WITH_REPORTS: usize = 3;
/// Number of exchanges in a row without overload after which counts no longer use reports. After a single short poll
/// remote cores may still be overloaded.
const CALM_EXCHANGES: u8 = 8;

/// Difference of two waits, in nanoseconds, from which an overloaded core lets the longer one on another core go first.
/// With a smaller difference, cores with backlogs would pass on places after each poll.
const YIELD_NS: u64 = 20_000;

/// Choice of the state that each core publishes about a pool to remote cores. Depends on the pool's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedState {
    /// Topic of its messages about members; `None` for no messages.
    pub topic: Option<Topic>,
    /// True if each idle member belongs to one core at a time: all other cores assume one task there. Without
    /// a topic this also holds for the members' credits (rights to send one more task under a bound).
    pub idle: bool,
    /// True if published loads include the core's drift.
    pub drift: bool,
    /// True if each core also publishes the number of its waiting tasks, for a policy that lets tasks wait without
    /// tokens.
    pub backlog: bool,
}

impl PublishedState {
    /// No state: the policy decides without any.
    pub const NOTHING: Self = Self { topic: None, idle: false, drift: true, backlog: false };
    /// Tasks of each core that are outstanding at a member.
    pub const COUNTS: Self = Self { topic: Some(Topic::Counts), ..Self::NOTHING };
    /// Estimated loads of members.
    pub const LOADS: Self = Self { topic: Some(Topic::Loads), ..Self::NOTHING };
    /// Reported loads of members.
    pub const REPORTS: Self = Self { drift: false, ..Self::LOADS };

    /// Returns the same state, with each idle member belonging to one core at a time.
    #[must_use]
    pub const fn with_idle(self) -> Self {
        Self { idle: true, ..self }
    }

    /// Returns the same state, with the number of waiting tasks.
    #[must_use]
    pub const fn with_backlog(self) -> Self {
        Self { backlog: true, ..self }
    }

    /// Returns the value to publish for a member: a count modulo 2^16, or a load in sixteenths of a task.
    #[inline(always)]
    fn value(self, topic: Topic, states: MemberStates<'_>, member: Member) -> u16 {
        match topic {
            Topic::Counts => states.of(member).own_outstanding() as u16,
            Topic::Loads => {
                let estimate = states.of(member).estimate();
                let load = if self.drift { estimate.total() } else { estimate.load().0.into() };
                let load = (load * u64::from(SIXTEENTHS)) >> 16; // from 16.16 fixed point
                // An idle member belongs to one core. All others must see at least one task there.
                let least = if self.idle { SIXTEENTHS as u16 } else { 0 };
                (load.min(u64::from(u16::MAX)) as u16).max(least)
            }
        }
    }
}

impl Topic {
    /// Returns the number of units per task of its values.
    const fn units(self) -> u16 {
        match self {
            Self::Loads => SIXTEENTHS as u16,
            Self::Counts => 1,
        }
    }

    /// Returns the difference of two values in units. Counts wrap around, so theirs is taken modulo 2^16.
    #[inline(always)]
    fn change(self, before: u16, value: u16) -> u16 {
        match self {
            Self::Counts => value.wrapping_sub(before).cast_signed().unsigned_abs(),
            Self::Loads => value.abs_diff(before),
        }
    }
}

/// Tasks that wait on remote cores.
#[derive(Clone, Copy, Debug)]
pub struct RemoteBacklog {
    /// Number of the tasks.
    pub tasks: usize,
    /// Least key of them; all ones without tasks.
    pub oldest: u64,
}

impl RemoteBacklog {
    /// No tasks.
    pub const EMPTY: Self = Self { tasks: 0, oldest: u64::MAX };
}

/// One core's part of the exchange. Shares no cache line with other data.
#[derive(Debug)]
#[repr(align(128))]
pub struct PoolExchange {
    /// State that this core publishes, as its policy needs it.
    publishes: PublishedState,
    /// Minimum change in tasks that an overloaded core still publishes, from [`COARSE`].
    coarse: u16,
    /// Value that this core last published for each member.
    published: Slice<AtomicU16>,
    /// Values that remote cores publish, with the last counts received from each.
    remote_cores: Vec<RemoteCore>,
    /// Tasks of remote cores, in the form of a core's own state. `outstanding` is the sum of the published counts, plus
    /// the tasks that only reports have shown, which are also in `drift`. `since` is not in use.
    remote_counts: Slice<LocalState>,
    /// Members that may have changed since the last exchange.
    touched: ArrayVec<Member, TOUCHED_MOST>,
    /// True if all members count as changed: after a new topic, after an exchange of an overloaded core, which leaves
    /// small changes unpublished, or if `touched` has overflowed.
    all_touched: bool,
    /// Free tokens of all members, in memory that all cores share.
    tokens: Tokens,
    /// Maximum number of a member's tokens.
    tokens_max: usize,
    /// Number of free tokens of an idle member, at most `tokens_max`.
    tokens_idle: usize,
    /// Word at which this core begins its search for tokens. It differs by core, so that cores rarely compete.
    first_word: usize,
    /// Least key of the tasks that wait on this core; [`RemoteCore`] has those of remote cores. Without rules for
    /// classes, a key is the start of the wait.
    oldest: Slice<AtomicU64>,
    /// Number of the tasks that wait on this core, if the policy needs it; [`RemoteCore`] has those of remote cores.
    waiting: Slice<AtomicU64>,
    /// Bounds on a member's tasks that the cores have found, by core; 0 for none yet.
    bounds: Box<[Slice<AtomicU64>]>,
    /// Index of this core.
    core: usize,
    /// True if this core was overloaded at its last exchange.
    pub(super) is_overloaded: bool,
    /// Knowledge about the tasks of remote cores since the last exchange.
    pub(super) knowledge: RemoteTasks,
    /// Number of exchanges without overload since the last one with it; all ones after 254 of them.
    calm_exchanges: u8,
}

/// A remote core.
#[derive(Debug)]
struct RemoteCore {
    /// Value that it last published for each member.
    published: Slice<AtomicU16>,
    /// Count last received from it for each member.
    received: Box<[u16]>,
    /// Least key of its waiting tasks.
    oldest: Slice<AtomicU64>,
    /// Number of its waiting tasks.
    waiting: Slice<AtomicU64>,
    /// Topic of its last message, if this core publishes another topic and has dropped the message.
    missed: Option<Topic>,
}

impl PoolExchange {
    /// Creates the part of `core` for `pool`, in a region of several cores.
    pub(super) fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let (first, members) = (layout.pools[pool].first_member, layout.pools[pool].members);
        let published =
            |core: usize| region.slice(layout.cores[core].last_published + 2 * first, members);
        let oldest = |core: usize| region.slice(layout.pools[pool].oldest + 8 * core, 1);
        let waiting = |core: usize| region.slice(layout.pools[pool].waiting + 8 * core, 1);
        let remote = (0..layout.cores.len()).filter(|&remote| remote != core);
        let remote_core = |core| RemoteCore {
            published: published(core),
            received: vec![0; members].into(),
            oldest: oldest(core),
            waiting: waiting(core),
            missed: None,
        };
        let coarse = COARSE.iter().find(|(cores, _)| layout.cores.len() <= *cores);
        Self {
            publishes: PublishedState::default(),
            coarse: coarse.map_or(1, |(_, tasks)| *tasks),
            published: published(core),
            remote_cores: remote.map(remote_core).collect(),
            remote_counts: region
                .slice(layout.cores[core].elsewhere + size_of::<LocalState>() * first, members),
            touched: ArrayVec::new(),
            all_touched: false,
            tokens: Tokens::new(
                region.slice(layout.pools[pool].tokens, Tokens::words(members)),
                members,
            ),
            tokens_max: 1,
            tokens_idle: 1,
            first_word: core,
            oldest: oldest(core),
            waiting: waiting(core),
            bounds: (0..layout.cores.len())
                .map(|core| region.slice(layout.cores[core].bounds + 8 * pool, 1))
                .collect(),
            core,
            is_overloaded: false,
            knowledge: RemoteTasks::Published,
            calm_exchanges: u8::MAX,
        }
    }

    /// Publishes this core's bound on a member's tasks; `None` if it has none yet. Returns the bound for all
    /// cores: that of the first core with one. All cores then use the same.
    #[must_use]
    pub fn bound(&self, own_bound: Option<usize>) -> Option<usize> {
        self.bounds_with(own_bound).find(|bound| *bound > 0)
    }

    /// Like [`PoolExchange::bound`], but returns the largest bound.
    #[must_use]
    pub fn largest_bound(&self, own_bound: Option<usize>) -> Option<usize> {
        self.bounds_with(own_bound).max().filter(|bound| *bound > 0)
    }

    /// Publishes this core's bound. Returns those of all cores; 0 for none yet.
    fn bounds_with(&self, own_bound: Option<usize>) -> impl Iterator<Item = usize> {
        let word = &self.bounds[self.core][0];
        let own_bound = own_bound.unwrap_or(0) as u64;
        if word.load(Relaxed) != own_bound {
            word.store(own_bound, Relaxed);
        }
        self.bounds.iter().map(|bound| bound[0].load(Relaxed) as usize)
    }

    /// Returns the tasks of remote cores: the sums of the counts that they published, plus the tasks that reports show.
    pub(super) fn remote_counts(&self) -> Slice<LocalState> {
        self.remote_counts.clone()
    }

    /// Returns true if this core's counts use reports during an overload.
    fn uses_reports(&self) -> bool {
        self.remote_cores.len() + 1 >= CORES_WITH_REPORTS
    }

    /// Returns the number of packets for each member between two exchanges of an overloaded core. Replies report the tasks
    /// of all cores, so estimates of loads stay good for longer than counts without reports. In the simulator
    /// (docs/explanation/consistency.md), the p99 of `jsq` on two cores rises from about 5 packets on.
    pub(crate) fn packets_per_member(&self) -> usize {
        match self.publishes.topic {
            Some(Topic::Counts) if !self.uses_reports() => 4,
            Some(_) => 16,
            None => 0,
        }
    }

    /// Returns the state that this core publishes.
    #[must_use]
    pub fn publishes(&self) -> PublishedState {
        self.publishes
    }

    /// Sets the state to publish for a new policy. A new topic resets all values published before. Members
    /// have one token each until the policy changes that.
    pub(super) fn set_publishes(&mut self, publishes: PublishedState) {
        (self.tokens_max, self.tokens_idle) = (1, 1);
        if self.publishes.topic != publishes.topic {
            for counts in &*self.remote_counts {
                counts.outstanding.store(0, Relaxed);
                counts.drift.store(0, Relaxed);
            }
            self.remote_cores.iter_mut().for_each(|remote| remote.received.fill(0));
            // Value that all cores assume for a member without a message.
            let initial = match publishes {
                PublishedState { topic: Some(Topic::Loads), idle: true, .. } => SIXTEENTHS as u16,
                _ => 0,
            };
            self.published.iter().for_each(|value| value.store(initial, Relaxed));
            self.all_touched = true;
            self.knowledge = RemoteTasks::Published;
        }
        if !publishes.backlog {
            self.waiting[0].store(0, Relaxed);
        }
        self.publishes = publishes;
    }

    /// Marks members as changed, for the next publication. Does nothing on an overloaded core, whose next publication
    /// compares all members, or if this core publishes nothing about members.
    #[inline]
    pub fn touch(&mut self, mut members: impl Iterator<Item = Member>) {
        if !self.all_touched && self.publishes.topic.is_some() {
            self.all_touched = members.any(|member| self.touched.try_push(member).is_err());
        }
    }

    /// Publishes the changes of touched members. An overloaded core (`keeps_up` is false) publishes only the larger
    /// ones; its next publication compares all members.
    #[inline]
    pub(super) fn publish(
        &mut self,
        pool: usize,
        states: MemberStates<'_>,
        sender: &mut Sender,
        keeps_up: bool,
    ) {
        let Some(topic) = self.publishes.topic else { return };
        let subject = Subject { pool: pool as u16, topic };
        let least = if keeps_up { 1 } else { self.coarse * topic.units() };
        if std::mem::replace(&mut self.all_touched, !keeps_up) {
            self.publish_changed(subject, states, sender, least);
        } else {
            for &member in &self.touched {
                let value = self.publishes.value(topic, states, member);
                if topic.change(self.published[member.index()].load(Relaxed), value) >= least {
                    self.publish_value(subject, member, value, sender);
                }
            }
        }
        self.touched.clear();
    }

    /// Publishes the values of all members that changed by at least `least` units. Has no branch for each member: which
    /// ones changed is random, and a mispredicted branch costs more than the comparison.
    #[inline(never)]
    fn publish_changed(
        &self,
        subject: Subject,
        states: MemberStates<'_>,
        sender: &mut Sender,
        least: u16,
    ) {
        let publishes = self.publishes; // a copy, which stays in registers
        let published = &self.published[..states.members()];
        for first in (0..published.len()).step_by(COMPARED) {
            let (mut changed, mut count) = ([(Member(0), 0); COMPARED], 0);
            for (index, before) in (first..).zip(published[first..].iter().take(COMPARED)) {
                let member = Member(index as u16);
                let value = publishes.value(subject.topic, states, member);
                changed[count % COMPARED] = (member, value);
                let change = subject.topic.change(before.load(Relaxed), value);
                count += usize::from(change >= least);
            }
            for &(member, value) in &changed[..count] {
                self.publish_value(subject, member, value, sender);
            }
        }
    }

    /// Publishes a member's value.
    #[inline]
    fn publish_value(&self, subject: Subject, member: Member, value: u16, sender: &mut Sender) {
        self.published[member.index()].store(value, Relaxed);
        sender.send(subject, member, value);
    }

    /// Updates the knowledge about remote cores' tasks at an exchange. `waits` is true if tasks wait and the policy
    /// publishes their number: all cores then publish all changes.
    pub(super) fn update_knowledge(&mut self, keeps_up: bool, waits: bool) {
        self.calm_exchanges = match keeps_up {
            true => self.calm_exchanges.saturating_add(1),
            false => 0,
        };
        let is_calm = waits || self.calm_exchanges >= CALM_EXCHANGES;
        self.knowledge = match self.publishes.topic {
            Some(Topic::Counts) if !is_calm && self.uses_reports() => RemoteTasks::Coarse,
            _ => RemoteTasks::Published,
        };
    }

    /// Lowers the count of remote cores' tasks at a member to those published. Returns true if a report had raised it.
    pub(super) fn lower(&self, member: Member) -> bool {
        let counts = &self.remote_counts[member.index()];
        let is_raised = counts.drift.load(Relaxed) > 0;
        counts.set_least(i32::MIN);
        is_raised
    }

    /// Applies a message of remote core number `remote`. Returns true if this core's estimate of the member
    /// may have changed.
    pub(super) fn receive(
        &mut self,
        remote: usize,
        topic: Topic,
        member: Member,
        value: u16,
        states: MemberStates<'_>,
    ) -> bool {
        // Cores change their policies at different times, and drop messages of each other's topic meanwhile.
        let is_missed = Some(topic) != self.publishes.topic;
        self.remote_cores[remote].missed = is_missed.then_some(topic);
        if is_missed || member.index() >= self.published.len() {
            return false;
        }
        match topic {
            // Adds the change since the remote core's last message about the member to the sum over remote cores.
            Topic::Counts => {
                let received = &mut self.remote_cores[remote].received[member.index()];
                let more = value.wrapping_sub(*received).cast_signed();
                *received = value;
                self.remote_counts[member.index()].add_published(more.into());
            }
            Topic::Loads => {
                states.of(member).set_estimate(Load(u32::from(value) * (65_536 / SIXTEENTHS)));
                // Other cores have this estimate too, so it counts as published.
                self.published[member.index()].store(value, Relaxed);
            }
        }
        true
    }

    /// Returns a remote core whose messages of the current topic this core has dropped, once for each.
    pub(super) fn take_missed(&mut self) -> Option<usize> {
        let topic = self.publishes.topic?;
        let remote = self.remote_cores.iter().position(|core| core.missed == Some(topic))?;
        self.remote_cores[remote].missed = None;
        Some(remote)
    }

    /// Returns the value that a remote core last published for a member. Replaces the messages that this core lost.
    pub(super) fn last_published(&self, remote: usize, member: Member) -> u16 {
        self.remote_cores[remote].published[member.index()].load(Relaxed)
    }

    /// Sets the maximum number of a member's tokens, and the number of free tokens of an idle member. Both are 1 by
    /// default: the token is the member's idleness. Under a bound on tasks, a member has a token for each place. `members`
    /// is the number of places up to the last active member. The cores' searches begin at equal distances among them.
    pub fn set_tokens(&mut self, most: usize, of_idle: usize, members: usize) {
        (self.tokens_max, self.tokens_idle) = (most, of_idle.clamp(1, most.max(1)));
        self.first_word = self.core * members.div_ceil(64) / self.bounds.len();
    }

    /// Returns the number of members with all tokens of an idle member free.
    #[must_use]
    pub fn idle_members(&self) -> usize {
        // Free tokens fill the levels from the last one on.
        self.tokens.members_at(self.levels().start)
    }

    /// Releases a token of each of these members to all cores, except of members whose tokens are all free.
    #[inline]
    pub(super) fn release(&self, members: impl Iterator<Item = Member>) {
        self.tokens.put_run(members, self.tokens_max);
    }

    /// Returns the free tokens, which any core may take.
    #[inline]
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns the levels of an idle member's tokens. A token of a lower level is surplus, for example after the bound
    /// has become smaller, until a check removes it.
    fn levels(&self) -> Range<usize> {
        self.tokens_max.saturating_sub(self.tokens_idle)..self.tokens_max
    }

    /// Takes a token of a member with the most free ones. Returns the member and the token's index among the member's
    /// tokens. Returns `None` if no token is free.
    #[inline]
    #[must_use]
    pub fn take_token(&self) -> Option<(Member, usize)> {
        self.tokens.take(self.levels(), self.first_word)
    }

    /// Takes up to `most` tokens, as this many calls of [`PoolExchange::take_token`] do, and passes them to `take`.
    #[inline]
    pub fn take_tokens(&self, most: usize, take: impl FnMut(Member, usize)) {
        self.tokens.take_run(self.levels(), self.first_word, most, take);
    }

    /// Like [`PoolExchange::take_token`], with preferences: among members with equally many free tokens, those of an
    /// earlier range go first. Members in no range keep their tokens.
    #[must_use]
    pub fn take_token_in(&self, ranges: &[Range<usize>]) -> Option<(Member, usize)> {
        self.levels().chain(0..self.levels().start).find_map(|level| {
            let take =
                |range: &Range<usize>| self.tokens.take_in(level, self.first_word, range.clone());
            Some((ranges.iter().find_map(take)?, level))
        })
    }

    /// Returns true if a token of this member is free.
    pub(super) fn has_token_of(&self, member: Member) -> bool {
        self.tokens.has(member, self.tokens_max)
    }

    /// Returns true if any token is free.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        self.tokens.has_some(self.levels())
    }

    /// Returns the least key of the tasks that wait on this core, in nanoseconds; 0 if none waits.
    #[inline]
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.oldest[0].load(Relaxed)
    }

    /// Publishes the least key of the tasks that wait on this core, in nanoseconds; 0 if none waits.
    #[inline]
    pub fn note_oldest(&self, since_ns: u64) {
        if self.oldest[0].load(Relaxed) != since_ns {
            self.oldest[0].store(since_ns, Relaxed);
        }
    }

    /// Returns the least key of a task that waits on any remote core; all ones if no task waits. A core lets a
    /// task with a lower key elsewhere go first.
    #[inline]
    #[must_use]
    pub fn oldest_elsewhere(&self) -> u64 {
        // Subtracts 1, so that no wait (0) becomes the largest value and sorts last.
        let since = |remote: &RemoteCore| remote.oldest[0].load(Relaxed).wrapping_sub(1);
        self.remote_cores.iter().map(since).min().map_or(u64::MAX, |least| least.saturating_add(1))
    }

    /// Returns the key above which a task of this core lets a task on a remote core go first: the remote cores' least
    /// key, plus the tolerance.
    #[inline]
    #[must_use]
    pub fn yield_key(&self) -> u64 {
        self.oldest_elsewhere().saturating_add(self.yield_tolerance())
    }

    /// Returns the tolerance of an overloaded core, `YIELD_NS`; 0 without overload.
    pub(crate) fn yield_tolerance(&self) -> u64 {
        if self.is_overloaded { YIELD_NS } else { 0 }
    }

    /// Returns true if a task on a remote core goes before all tasks that wait on this core.
    pub(super) fn yields(&self) -> bool {
        let own_oldest = if self.oldest() == 0 { u64::MAX } else { self.oldest() };
        self.yield_key() < own_oldest
    }

    /// Publishes the number of tasks that wait on this core.
    #[inline]
    pub(super) fn note_waiting(&self, tasks: usize) {
        if self.waiting[0].load(Relaxed) != tasks as u64 {
            self.waiting[0].store(tasks as u64, Relaxed);
        }
    }

    /// Returns the tasks that wait on remote cores now. Reads memory of other cores: not for each packet.
    #[inline]
    #[must_use]
    pub fn remote_backlog(&self) -> RemoteBacklog {
        let remote = self.remote_cores.iter().map(|remote| remote.waiting[0].load(Relaxed));
        RemoteBacklog { tasks: remote.sum::<u64>() as usize, oldest: self.oldest_elsewhere() }
    }
}
