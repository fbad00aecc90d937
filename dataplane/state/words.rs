//! The words that one core's view of a pool's members consists of, borrowed for a run of decisions.
//!
//! A relaxed store may be to anywhere as far as the compiler knows, so it reads a slice's address and length
//! again after each. Here they are values, and of one length: one check of an index serves all words of a
//! member.

use std::hint::select_unpredictable;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::member::{Belief, Load, Member};
use super::region::sealed::Sealed;
use super::region::{Slice, Word};

/// What one core keeps of a member: four members to a cache line.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Own {
    /// The report from which on the drift counts: number and load.
    pub since: AtomicU64,
    /// Load sent since.
    pub drift: AtomicU32,
    /// Tasks sent and not answered by way of this core.
    pub outstanding: AtomicU32,
}

impl Sealed for Own {}
impl Word for Own {}

/// The words of all members: reports, what this core keeps, and what the others do.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    reported: &'a [AtomicU64],
    own: &'a [Own],
    elsewhere: &'a [Slice<Own>],
    is_exact: bool,
}

/// Those of one member.
#[derive(Clone, Copy, Debug)]
pub struct MemberWords<'a> {
    member: Member,
    reported: &'a AtomicU64,
    own: &'a Own,
    elsewhere: &'a [Slice<Own>],
    is_exact: bool,
}

impl<'a> Words<'a> {
    /// Of slices that have a word for each member.
    #[inline(always)]
    pub(super) fn new(
        reported: &'a [AtomicU64],
        own: &'a [Own],
        elsewhere: &'a [Slice<Own>],
        is_exact: bool,
    ) -> Self {
        Self { reported, own: &own[..reported.len()], elsewhere, is_exact }
    }

    /// How many members they are of. A slice of that length is not checked again for a member that these words were
    /// asked for.
    #[inline(always)]
    #[must_use]
    pub fn members(self) -> usize {
        self.reported.len()
    }

    /// No other core sends to these members.
    #[inline(always)]
    #[must_use]
    pub fn are_alone(self) -> bool {
        self.elsewhere.is_empty()
    }

    /// The same words, with what [`Words::are_alone`] says known to the compiler: a loop over them looks for
    /// no other core's.
    #[inline(always)]
    #[must_use]
    pub fn alone(self) -> Self {
        Self { elsewhere: &[], is_exact: true, ..self }
    }

    /// The words of `member`.
    #[inline(always)]
    #[must_use]
    pub fn of(self, member: Member) -> MemberWords<'a> {
        let (reported, own) = (&self.reported[member.index()], &self.own[member.index()]);
        MemberWords { member, reported, own, elsewhere: self.elsewhere, is_exact: self.is_exact }
    }
}

impl MemberWords<'_> {
    /// Whose words they are.
    #[inline(always)]
    #[must_use]
    pub fn member(self) -> Member {
        self.member
    }

    /// What this core believes of the member.
    #[inline(always)]
    #[must_use]
    pub fn belief(self) -> Belief {
        let reported = self.reported.load(Relaxed);
        let drift = self.own.drift.load(Relaxed);
        // A drift since an older report has been answered by this one.
        let current = self.own.since.load(Relaxed) == reported;
        Belief { reported, drift: select_unpredictable(current, drift, 0) }
    }

    /// The last reported load alone.
    #[inline(always)]
    #[must_use]
    pub fn load(self) -> Load {
        Load(self.reported.load(Relaxed) as u32)
    }

    /// Number of the last report, modulo 2^32.
    #[inline(always)]
    #[must_use]
    pub fn reports(self) -> u32 {
        (self.reported.load(Relaxed) >> 32) as u32
    }

    /// Notes `by` more load sent to the member, of which this has just been believed; saturating.
    #[inline(always)]
    pub fn add_drift(self, belief: Belief, by: Load) {
        self.own.since.store(belief.reported, Relaxed);
        self.own.drift.store(belief.drift.saturating_add(by.0), Relaxed);
    }

    /// Counts a task sent to one of two different members, of which this has just been believed. Writes the words of
    /// both, so that the processor knows where before it knows which; it would suppose that the next
    /// decision looks at other members, and do it again when it is wrong.
    #[inline(always)]
    pub fn sent_to_either(second: bool, a: (Self, Belief), b: (Self, Belief)) {
        // A loop over both would ask at each turn whether there is one more.
        a.0.sent_if(!second, a.1);
        b.0.sent_if(second, b.1);
    }

    /// Counts a task sent to the member if it was chosen.
    #[inline(always)]
    fn sent_if(self, chosen: bool, belief: Belief) {
        self.add_drift(belief, Load(u32::from(chosen) << 16));
        self.balance(i32::from(chosen));
    }

    /// Counts a task sent to the member.
    #[inline(always)]
    pub fn sent(self) {
        self.add_drift(self.belief(), Load::ONE);
        self.balance(1);
    }

    /// Counts a task sent to the member that adds `share` to its load: 1/workers at a rack.
    #[inline(always)]
    pub fn sent_share(self, share: Load) {
        self.add_drift(self.belief(), share);
        self.balance(1);
    }

    /// The same of one of two members, of which this has just been believed, as [`Self::sent_to_either`]; the second is another than
    /// the first, if it is the one.
    #[inline(always)]
    pub fn sent_share_to_either(second: bool, a: (Self, Belief, Load), b: (Self, Belief, Load)) {
        // If both are the same, it is the first, whose words are written last.
        b.0.sent_share_if(second, b.1, b.2);
        a.0.sent_share_if(!second, a.1, a.2);
    }

    #[inline(always)]
    fn sent_share_if(self, chosen: bool, belief: Belief, share: Load) {
        self.add_drift(belief, Load(select_unpredictable(chosen, share.0, 0)));
        self.balance(i32::from(chosen));
    }

    /// What the other cores have sent is known as it is; else only as they told it, some time ago.
    #[inline(always)]
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.is_exact
    }

    /// Counts a task answered; false, and nothing changed, when it is known that none is outstanding.
    #[inline(always)]
    #[must_use]
    pub fn answered(self) -> bool {
        let expected = !self.is_exact || self.outstanding() > 0;
        self.balance(-i32::from(expected));
        expected
    }

    /// Takes so many tasks off those outstanding, which are no fewer.
    #[inline(always)]
    pub fn take_off(self, tasks: u32) {
        self.balance(-(tasks as i32));
    }

    /// Changes the number of outstanding tasks.
    #[inline(always)]
    pub(super) fn balance(self, by: i32) {
        // Below 0 where replies pass another core than their tasks; only the sum over cores has a meaning.
        let count = &self.own.outstanding;
        count.store(count.load(Relaxed).wrapping_add_signed(by), Relaxed);
    }

    /// Tasks sent and not answered, over all cores.
    #[inline(always)]
    #[must_use]
    pub fn outstanding(self) -> u32 {
        let mut total = self.own.outstanding.load(Relaxed);
        if self.elsewhere.is_empty() {
            return total; // never below 0
        }
        for other in self.elsewhere {
            total = total.wrapping_add(other[self.member.index()].outstanding.load(Relaxed));
        }
        (total as i32).max(0) as u32
    }

    /// Takes what another core believes of the member for what it has, with this core's drift included; no report came.
    #[inline]
    pub(super) fn set_believed(self, load: Load) {
        let number = self.reported.load(Relaxed) & !u64::from(u32::MAX);
        self.own.since.store(number | u64::from(load.0), Relaxed);
        self.own.drift.store(0, Relaxed);
        self.reported.store(number | u64::from(load.0), Relaxed);
    }

    /// Tasks sent and not answered by way of this core; below 0 where replies pass another core than their tasks.
    #[inline(always)]
    #[must_use]
    pub fn own_outstanding(self) -> i32 {
        self.own.outstanding.load(Relaxed) as i32
    }

    /// Raises the number of the member's reports, and keeps load and drift.
    #[inline]
    pub fn note_heard(self) {
        let belief = self.belief();
        let next = belief.reported.wrapping_add(1 << 32);
        self.own.since.store(next, Relaxed);
        self.own.drift.store(belief.drift, Relaxed);
        self.reported.store(next, Relaxed);
    }

    /// Takes a report as Horus does: load := reported, and all drift, on every core, is forgotten.
    #[inline(always)]
    pub fn set_load(self, load: Load) {
        // The number is above the load; it wraps around.
        let next = (self.reported.load(Relaxed) | u64::from(u32::MAX)).wrapping_add(1);
        self.reported.store(next + u64::from(load.0), Relaxed);
    }
}
