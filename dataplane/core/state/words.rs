//! State of a pool's members as one core sees it: atomic words, borrowed for a run of decisions. Policies reach it
//! through a [`super::View`].
//!
//! All accesses are `Relaxed`. On a node one core writes each word, and each word is complete in itself, so no order
//! between words matters. A plain load and store therefore suffices in place of an atomic addition.
//!
//! To the compiler, a relaxed store may alias anything. It therefore reloads a slice's address and length
//! after each store. Here the slices are values, all of one length: one index check serves all words of a
//! member.
//!
//! A word of reports has the report number in its upper half and the load in its lower half. *Drift* is the load
//! sent by this core since that report. Loads are 16.16 fixed point: a task counts `1 << 16`.

use std::hint::select_unpredictable;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::member::{Load, LoadEstimate, Member, Report};
use super::region::sealed::Sealed;
use super::region::{Pod, Slice};

/// Returns an address as two words for a state region, the upper half first. An IPv4 address is mapped
/// (::ffff:0:0/96).
#[must_use]
pub fn address_words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// Inverse of [`address_words`].
#[must_use]
pub fn address_of([upper, lower]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(upper) << 64 | u128::from(lower)).to_canonical()
}

/// One core's own state of a member. Four members share a cache line.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct LocalState {
    /// Report from which the drift counts: number and load.
    pub since: AtomicU64,
    /// Load sent since that report.
    pub drift: AtomicU32,
    /// Tasks sent minus replies, by way of this core.
    pub outstanding: AtomicU32,
}

impl LocalState {
    // In the counts of remote cores' tasks ([`super::pool_exchange`]), `drift` is the number of tasks that only reports
    // show. `outstanding` includes it.

    /// Adds `more` to the published tasks. Subtracts an increase from the tasks that only reports show: they may be the
    /// same. A decrease ends these: the member may have answered them, too.
    pub(super) fn add_published(&self, more: i32) {
        let shown = self.drift.load(Relaxed);
        let left = if more < 0 { 0 } else { shown.saturating_sub(more.cast_unsigned()) };
        let outstanding = self.outstanding.load(Relaxed).wrapping_add_signed(more);
        self.outstanding.store(outstanding.wrapping_sub(shown - left), Relaxed);
        self.drift.store(left, Relaxed);
    }

    /// Raises the tasks to `tasks` if fewer are published, otherwise lowers them to the published ones. Returns them.
    #[inline(always)]
    pub(super) fn set_least(&self, tasks: i32) -> i32 {
        let before = self.drift.load(Relaxed);
        let published = self.outstanding.load(Relaxed).wrapping_sub(before).cast_signed();
        let shown = tasks.saturating_sub(published).max(0);
        let total = published.wrapping_add(shown);
        if before != shown.cast_unsigned() {
            self.outstanding.store(total.cast_unsigned(), Relaxed);
            self.drift.store(shown.cast_unsigned(), Relaxed);
        }
        total
    }
}

impl Sealed for LocalState {}
impl Pod for LocalState {}

/// Knowledge of a core about the outstanding tasks of other cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteTasks {
    /// Their current counts.
    Exact,
    /// The counts that they last published, which may be too low or too high.
    Published,
    /// The counts that they last published, without small changes. Reports show the missing tasks. Only on a node of
    /// three or more cores, from an overload until several exchanges after it.
    Coarse,
}

/// State of all members of a pool: reports, this core's state and the counts of other cores.
#[derive(Clone, Copy, Debug)]
pub struct MemberStates<'a> {
    /// Number and load of each member's last report.
    reported: &'a [AtomicU64],
    /// This core's drift and outstanding tasks of each member.
    local: &'a [LocalState],
    /// Outstanding tasks of other cores: one slice per core, or one with their sums.
    remote_counts: &'a [Slice<LocalState>],
    /// Meaning of these counts.
    knowledge: RemoteTasks,
}

/// State of one member.
#[derive(Clone, Copy, Debug)]
pub struct MemberState<'a> {
    member: Member,
    /// Number and load of its last report.
    reported: &'a AtomicU64,
    /// This core's drift and outstanding tasks.
    local: &'a LocalState,
    /// Outstanding tasks of other cores at all members: one slice per core, or one with their sums.
    remote_counts: &'a [Slice<LocalState>],
    /// Meaning of these counts.
    knowledge: RemoteTasks,
}

impl<'a> MemberStates<'a> {
    /// Borrows slices with one element for each member.
    #[inline(always)]
    pub(super) fn new(
        reported: &'a [AtomicU64],
        local: &'a [LocalState],
        remote_counts: &'a [Slice<LocalState>],
        knowledge: RemoteTasks,
    ) -> Self {
        Self { reported, local: &local[..reported.len()], remote_counts, knowledge }
    }

    /// Returns the number of members. The compiler need not check the index of a member again
    /// for a slice of that length.
    #[inline(always)]
    #[must_use]
    pub fn members(self) -> usize {
        self.reported.len()
    }

    /// Returns true if no other core sends to these members.
    #[inline(always)]
    #[must_use]
    pub fn are_alone(self) -> bool {
        self.remote_counts.is_empty()
    }

    /// Returns the same state, with the fact of [`MemberStates::are_alone`] known to the compiler. A loop over it does
    /// not look for other cores' counts. Requires [`MemberStates::are_alone`].
    #[inline(always)]
    #[must_use]
    pub fn alone(self) -> Self {
        Self { remote_counts: &[], knowledge: RemoteTasks::Exact, ..self }
    }

    /// Counts an answer for each report and sets its member's load, before the call of `then`. The drift becomes 0, even
    /// if tasks are still in flight, as in Horus. With [`RemoteTasks::Coarse`], also counts the tasks that the report
    /// shows. Returns the number of reports from members without outstanding tasks.
    #[inline(always)]
    pub(super) fn take_loads(self, reports: &[Report], then: impl FnMut(&Report)) -> usize {
        // The same loop, compiled for each case: no other cores, counts that reports correct, and all other counts.
        let answered = |state: MemberState<'_>, _: Load| state.answered();
        if self.are_alone() {
            self.alone().take_each(reports, answered, then)
        } else if self.knowledge == RemoteTasks::Coarse {
            self.take_each(reports, MemberState::answered_with, then)
        } else {
            self.take_each(reports, answered, then)
        }
    }

    /// Loop of [`MemberStates::take_loads`]. `count_answer` returns true if a task was outstanding.
    #[inline(always)]
    fn take_each(
        self,
        reports: &[Report],
        count_answer: impl Fn(MemberState<'a>, Load) -> bool,
        mut then: impl FnMut(&Report),
    ) -> usize {
        let mut expected = 0;
        for report in reports {
            let state = self.of(report.member);
            expected += usize::from(count_answer(state, report.load));
            state.set_load(report.load);
            then(report);
        }
        reports.len() - expected
    }

    /// Returns the state of `member`.
    #[inline(always)]
    #[must_use]
    pub fn of(self, member: Member) -> MemberState<'a> {
        let (reported, local) = (&self.reported[member.index()], &self.local[member.index()]);
        MemberState {
            member,
            reported,
            local,
            remote_counts: self.remote_counts,
            knowledge: self.knowledge,
        }
    }
}

impl MemberState<'_> {
    /// Returns the member.
    #[inline(always)]
    #[must_use]
    pub fn member(self) -> Member {
        self.member
    }

    /// Returns this core's estimate of the member.
    #[inline(always)]
    #[must_use]
    pub fn estimate(self) -> LoadEstimate {
        let reported = self.reported.load(Relaxed);
        let drift = self.local.drift.load(Relaxed);
        // A newer report already includes the drift since an older one, which is void then.
        let current = self.local.since.load(Relaxed) == reported;
        LoadEstimate { reported, drift: select_unpredictable(current, drift, 0) }
    }

    /// Returns the last reported load, without drift.
    #[inline(always)]
    #[must_use]
    pub fn load(self) -> Load {
        Load(self.reported.load(Relaxed) as u32)
    }

    /// Returns the number of the last report, modulo 2^32.
    #[inline(always)]
    #[must_use]
    pub fn reports(self) -> u32 {
        (self.reported.load(Relaxed) >> 32) as u32
    }

    /// Adds load sent to the member to its drift, saturating. `belief` is the estimate just read.
    #[inline(always)]
    pub fn add_drift(self, belief: LoadEstimate, by: Load) {
        self.local.since.store(belief.reported, Relaxed);
        self.local.drift.store(belief.drift.saturating_add(by.0), Relaxed);
    }

    /// Counts a task sent to one of two different members, with the estimates just read. Writes the words of
    /// both: the processor then knows the addresses before it knows the choice. Otherwise it assumes that the
    /// next decision reads other members, and repeats that decision after a wrong guess.
    #[inline(always)]
    pub fn sent_to_either(second: bool, a: (Self, LoadEstimate), b: (Self, LoadEstimate)) {
        // Two calls instead of a loop, which would test for a further element at each step.
        a.0.sent_if(!second, a.1);
        b.0.sent_if(second, b.1);
    }

    /// Counts a task sent to the member if it was chosen. Otherwise writes the same values again.
    #[inline(always)]
    fn sent_if(self, chosen: bool, belief: LoadEstimate) {
        self.add_drift(belief, Load(u32::from(chosen) << 16));
        self.balance(i32::from(chosen));
    }

    /// Counts a task sent to the member: adds one to its outstanding tasks, and one task's load to its drift.
    #[inline(always)]
    pub fn sent(self) {
        self.add_drift(self.estimate(), Load::ONE);
        self.balance(1);
    }

    /// Counts a task sent to the member. The task adds `share` to the member's load: 1/workers at a rack.
    #[inline(always)]
    pub fn sent_share(self, share: Load) {
        self.add_drift(self.estimate(), share);
        self.balance(1);
    }

    /// Counts a task with a share, sent to one of two members, with the estimates just read; see
    /// [`Self::sent_to_either`]. If `second` is true, the members must differ.
    #[inline(always)]
    pub fn sent_share_to_either(
        second: bool,
        a: (Self, LoadEstimate, Load),
        b: (Self, LoadEstimate, Load),
    ) {
        // Both may be the same member. Then the first is chosen, so its words are written last.
        b.0.sent_share_if(second, b.1, b.2);
        a.0.sent_share_if(!second, a.1, a.2);
    }

    /// Counts a task with a share, if the member was chosen.
    #[inline(always)]
    fn sent_share_if(self, chosen: bool, belief: LoadEstimate, share: Load) {
        self.add_drift(belief, Load(select_unpredictable(chosen, share.0, 0)));
        self.balance(i32::from(chosen));
    }

    /// Returns true if the counts of other cores are current. Otherwise they are the last published ones, too low or
    /// too high.
    #[inline(always)]
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.knowledge == RemoteTasks::Exact
    }

    /// Counts a reply. Returns false and changes nothing if certainly no task is outstanding: the counts are exact, and
    /// their sum is 0.
    #[inline(always)]
    #[must_use]
    pub fn answered(self) -> bool {
        let expected = !self.is_exact() || self.outstanding() > 0;
        self.balance(-i32::from(expected));
        expected
    }

    /// Counts a reply with this load, like [`MemberState::answered`], and the tasks that it shows
    /// ([`MemberState::count_reported`]).
    #[inline(always)]
    #[must_use]
    pub fn answered_with(self, load: Load) -> bool {
        if self.knowledge == RemoteTasks::Coarse {
            _ = self.count_reported(load, 1);
        }
        self.answered()
    }

    /// Counts the tasks that a report shows, instead of those of an earlier report, if this core misses small changes of
    /// other cores. Returns the number of outstanding tasks, over all cores. `answered` is 1 if the report's task is still
    /// counted, otherwise 0.
    #[inline(always)]
    #[must_use]
    pub fn count_reported(self, load: Load, answered: i32) -> u32 {
        if self.knowledge != RemoteTasks::Coarse {
            return self.outstanding();
        }
        let own = self.own_outstanding();
        let tasks = load.whole_tasks().cast_signed() + answered; // far below 2^31
        let remote = self.remote_counts.iter();
        let counts =
            remote.map(|remote| remote[self.member.index()].set_least(tasks.wrapping_sub(own)));
        counts.fold(own, i32::wrapping_add).max(0).cast_unsigned()
    }

    /// Subtracts answered or lost `tasks` from the outstanding tasks. With exact counts, `tasks` must not exceed them.
    #[inline(always)]
    pub fn take_off(self, tasks: u32) {
        self.balance(-(tasks as i32));
    }

    /// Adds `by`, which may be negative, to this core's number of outstanding tasks.
    #[inline(always)]
    pub(super) fn balance(self, by: i32) {
        // Negative if replies pass another core than their tasks: only the sum over cores has a meaning.
        let count = &self.local.outstanding;
        count.store(count.load(Relaxed).wrapping_add_signed(by), Relaxed);
    }

    /// Returns the number of outstanding tasks, over all cores.
    #[inline(always)]
    #[must_use]
    pub fn outstanding(self) -> u32 {
        let mut total = self.local.outstanding.load(Relaxed);
        if self.remote_counts.is_empty() {
            return total; // exact, so `answered` keeps it from becoming negative
        }
        for counts in self.remote_counts {
            total = total.wrapping_add(counts[self.member.index()].outstanding.load(Relaxed));
        }
        (total as i32).max(0) as u32
    }

    /// Replaces the reported load by `load`, an estimate of this or a remote core, and clears the drift. Keeps the
    /// report number: an estimate is no sign of life.
    #[inline]
    pub(super) fn set_estimate(self, load: Load) {
        let number = self.reported.load(Relaxed) & !u64::from(u32::MAX); // in the upper half
        self.local.since.store(number | u64::from(load.0), Relaxed);
        self.local.drift.store(0, Relaxed);
        self.reported.store(number | u64::from(load.0), Relaxed);
    }

    /// Returns the tasks sent minus replies, by way of this core: the count that it publishes. Negative if replies pass
    /// another core than their tasks.
    #[inline(always)]
    #[must_use]
    pub fn own_outstanding(self) -> i32 {
        self.local.outstanding.load(Relaxed) as i32
    }

    /// Raises the number of the member's reports, by which the node detects silent members. Keeps load and drift: the
    /// message has no load that counts.
    #[inline]
    pub fn note_sign_of_life(self) {
        let belief = self.estimate();
        let next = belief.reported.wrapping_add(1 << 32); // one report more
        self.local.since.store(next, Relaxed);
        self.local.drift.store(belief.drift, Relaxed);
        self.reported.store(next, Relaxed);
    }

    /// Applies a report as Horus does: load := reported. The drift of each core that reads this word becomes void.
    #[inline(always)]
    pub fn set_load(self, load: Load) {
        // The report number is above the load. Ones in the load make the addition carry into the number, which wraps
        // around, and leave the load 0.
        let next = (self.reported.load(Relaxed) | u64::from(u32::MAX)).wrapping_add(1);
        self.reported.store(next + u64::from(load.0), Relaxed);
    }
}
