//! One dispatcher core's view of one pool's members: the input of policies.
//!
//! A member's estimated load is `reported + drift`: the queue length of its last report, plus the load that this core
//! sent since. A remote core's published estimate may replace both. With its drift a core stores the report (number and
//! load) since which it counts the drift. A newer report therefore voids the drift without a write to it. A member's
//! *outstanding* tasks are those sent and not answered.
//!
//! Only *active* members may be chosen. Cores share *tokens*: rights to send one task to a member, each held by one
//! core at a time ([`super::tokens`]). Without a bound on tasks a free token is an idle member that any core may take.
//!
//! Cores of one node have separate memory and exchange their changes ([`super::pool_exchange`]). The independent
//! dispatchers of a simulator ([`View::heap`]) share reports and counts at once instead.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::broadcast::{Sender, Topic};
use super::histogram::{self, Histogram, HistogramSnapshot};
use super::idle::{IdleList, IdleWords};
use super::layout::{HISTOGRAMS, Layout, TableShape};
use super::member::{Load, LoadEstimate, Member, MemberPresence, RackWord, Report};
use super::pool_exchange::{PoolExchange, PublishedState, RemoteBacklog};
use super::region::{Region, Slice};
use super::words::RemoteTasks::{self, Coarse, Exact, Published};
use super::words::{LocalState, MemberState, MemberStates};
use crate::limits::BURST;

/// Number of picks by kind. Policies count them; their caller collects them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picks {
    /// Tasks given to a member of the idle list.
    pub idle: u64,
    /// Tasks given to the better of two random members.
    pub po2: u64,
    /// Picks for which a switch would have sent the packet through its pipeline twice (Horus 3.3).
    pub resubmits: u64,
    /// Messages beyond tasks and replies that the policy requested (probes, reports).
    pub messages: u64,
}

/// One dispatcher core's view of one pool's members.
#[derive(Debug)]
pub struct View {
    /// Number of reports (upper half) and reported or estimated load (lower half) of each member.
    reported: Slice<AtomicU64>,
    /// Presence of each member, with the rest of its [`RackWord`]; shared by all cores.
    presence: Slice<AtomicU32>,
    /// Number of tasks of each member that were written off; shared by all cores.
    lost: Slice<AtomicU32>,
    /// Number of quanta served to the current tasks of each member; shared by all cores.
    quanta: Slice<AtomicU32>,
    /// Number of the pool's tasks that wait on this core, for the control thread and readers of the state file.
    queued: Slice<AtomicU64>,
    /// Histograms: ages of load reports at decisions, and times in the queue.
    histograms: Slice<AtomicU64>,
    /// This core's drift and outstanding tasks of each member.
    local: Slice<LocalState>,
    /// Outstanding tasks of remote cores: as last published, plus the tasks that reports show; or their current counts
    /// ([`View::heap`]).
    remote_counts: Vec<Slice<LocalState>>,
    /// State of remote cores of the node, read rarely.
    remote_states: Vec<RemoteState>,
    /// Exchange with remote cores; `None` if there are none.
    pool_exchange: Option<Box<PoolExchange>>,
    /// Members that may be chosen, in no particular order.
    active: Vec<Member>,
    /// Index of each member in `active`, or [`NOWHERE`].
    place: Vec<u16>,
    /// True for each member that became active again since its last [`View::take_returned`].
    returned: Box<[bool]>,
    /// Members that this core estimates idle; under a bound that cores share, those with a place that this core holds.
    idle: IdleList,
    /// Service rate of each member: a worker's speed, or a rack's number of workers.
    rates: Vec<f64>,
    /// Queue lengths that probes read: a simulator's true ones, or the answers to probes sent as messages. They are
    /// here, because the alternative is an argument of every call or a type parameter of all scheduling code.
    queues: Option<Arc<[AtomicU32]>>,
    /// Number of the pool's tasks that wait on this core, for the policy.
    waiting: usize,
    /// Number and least key of the pool's tasks that wait on remote cores, if the policy needs them.
    remote_backlog: RemoteBacklog,
    /// Time in nanoseconds from the arrival of the task to schedule to its key; 0 without rules for classes.
    key_delay_ns: u64,
    /// Time for all hooks of a policy in nanoseconds, so that one clock measures choices and answers.
    now_ns: u64,
    /// Time of the current burst in nanoseconds.
    burst_ns: u64,
    /// Number of picks by kind so far.
    pub picks: Picks,
}

/// A remote core's state of a pool's members, read only.
#[derive(Debug)]
struct RemoteState {
    /// `View::reported` of that core.
    reported: Slice<AtomicU64>,
    /// `View::local` of that core.
    local: Slice<LocalState>,
    /// Idle list of that core.
    idle: IdleList,
}

/// Parts of a view, borrowed together for a run of decisions or of reports. A loop can thus read the members' state
/// while it changes the idle list and the counts.
#[derive(Debug)]
pub struct Parts<'a> {
    /// State of the members.
    pub states: MemberStates<'a>,
    /// Active members: those that may be chosen.
    pub active: &'a [Member],
    /// Members estimated idle.
    pub idle: IdleWords<'a>,
    /// Number of picks by kind so far.
    pub picks: &'a mut Picks,
    /// Number of replies of this run from members without outstanding tasks; counted by the borrower, 0 at first.
    pub surplus: usize,
    // Fields of the view with these names.
    pool_exchange: Option<&'a PoolExchange>,
    place: &'a [u16],
    rates: &'a [f64],
    queues: Option<&'a [AtomicU32]>,
}

/// Index of an inactive member among the active ones.
const NOWHERE: u16 = u16::MAX;

impl View {
    /// Creates views of one pool with `members` members for `dispatchers` independent dispatchers, for simulators and
    /// tests. All members are active and on no idle list. Dispatchers share their reports and counts at once, but not
    /// their drift.
    #[must_use]
    pub fn heap(members: usize, dispatchers: usize) -> Vec<Self> {
        let (region, layout) = heap(members, dispatchers);
        let written_by = |core: usize| written_by(&region, &layout, core, 0);
        let view = |core| {
            let mut view = Self::new(&region, &layout, core, 0);
            let remote = (0..dispatchers).filter(|&remote| remote != core);
            view.remote_counts = remote.map(|remote| written_by(remote).1).collect();
            // All dispatchers write and read the same reports: those of core 0.
            view.reported = written_by(0).0;
            view.remote_states.clear();
            view.pool_exchange = None;
            view
        };
        (0..dispatchers).map(view).collect()
    }

    /// Creates the view of one pool and the exchange of changes for each core of a node, for simulators and tests. The
    /// cores share no reports and counts, as on a real node.
    #[must_use]
    pub fn of_cores(members: usize, cores: usize) -> (Vec<Self>, Vec<super::Exchange>) {
        let (region, layout) = heap(members, cores);
        let view = |core| Self::new(&region, &layout, core, 0);
        let exchange = |core| super::Exchange::new(&region, &layout, core);
        ((0..cores).map(view).collect(), (0..cores).map(exchange).collect())
    }

    /// Creates the view of `pool` by `core` in a region of that layout. All members are active except unused places
    /// ([`MemberPresence::Absent`]).
    #[must_use]
    pub fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let members = layout.pools[pool].members;
        let cores = layout.cores.len();
        let remote = (0..cores).filter(|&remote| remote != core);
        let pool_exchange =
            (cores > 1).then(|| Box::new(PoolExchange::new(region, layout, core, pool)));
        let (reported, local) = written_by(region, layout, core, pool);
        let mut view = Self {
            reported,
            presence: region.slice(layout.pools[pool].presence, members),
            lost: region.slice(layout.pools[pool].lost, members),
            quanta: region.slice(layout.pools[pool].quanta, members),
            queued: region.slice(layout.cores[core].queued + 8 * pool, 1),
            histograms: histograms(region, layout, core, pool),
            local,
            remote_counts: pool_exchange
                .iter()
                .map(|pool_exchange| pool_exchange.remote_counts())
                .collect(),
            remote_states: remote
                .map(|core| RemoteState::new(region, layout, core, pool))
                .collect(),
            pool_exchange,
            active: (0..members as u16).map(Member).collect(),
            place: (0..members as u16).collect(),
            returned: vec![false; members].into(),
            idle: IdleList::new(region, layout, core, pool),
            rates: vec![1.0; members],
            queues: None,
            waiting: 0,
            key_delay_ns: 0,
            remote_backlog: RemoteBacklog::EMPTY,
            now_ns: 0,
            burst_ns: 0,
            picks: Picks::default(),
        };
        // Removal moves the last active member into the gap. In reverse order, the remaining members keep their order.
        for member in (0..members as u16).rev().map(Member) {
            if view.presence(member) == MemberPresence::Absent {
                view.set_active(member, false);
            }
        }
        view
    }

    /// Clears this core's state of a departed member, and the member's counts that all cores share. Another member may
    /// then take its place.
    pub fn forget(&mut self, member: Member) {
        self.set_active(member, false);
        let local = &self.local[member.index()];
        self.reported[member.index()].store(0, Relaxed);
        local.since.store(0, Relaxed);
        local.drift.store(0, Relaxed);
        local.outstanding.store(0, Relaxed);
        // Clears the doubt about a worker, or a rack's numbers of workers and signals: they share the word with the
        // presence.
        self.presence[member.index()].fetch_and(RackWord::PRESENCE, Relaxed);
        self.lost[member.index()].store(0, Relaxed);
        self.set_quanta(member, 0);
        self.rates[member.index()] = 1.0;
        self.forget_report(member);
        self.touch(member);
    }

    /// Publishes the number of the pool's tasks that wait on this core.
    #[inline]
    pub fn note_queued(&self, tasks: usize) {
        self.queued[0].store(tasks as u64, Relaxed);
    }

    /// Returns the published number of the pool's tasks that wait on this core.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued[0].load(Relaxed)
    }

    /// Sets the number of the pool's tasks that wait on this core, for policies whose next picks depend on it.
    #[inline]
    pub fn set_waiting(&mut self, tasks: usize) {
        self.waiting = tasks;
    }

    /// Sets the time from the arrival of the next task to schedule to its key, in nanoseconds.
    #[inline]
    pub fn set_key_delay(&mut self, ns: u64) {
        self.key_delay_ns = ns;
    }

    /// Returns the time from the arrival of the task to schedule to its key, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn key_delay_ns(&self) -> u64 {
        self.key_delay_ns
    }

    /// Returns the number of the pool's tasks that wait on this core, with the task to schedule if it waits already.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the pool's tasks that wait on remote cores, as of the last exchange; none unless the policy needs them.
    #[inline]
    #[must_use]
    pub fn remote_backlog(&self) -> RemoteBacklog {
        self.remote_backlog
    }

    /// Publishes the number of the pool's tasks that wait on this core, and reads those of remote cores, if the policy
    /// needs them.
    #[inline]
    pub fn exchange_backlog(&mut self, own_tasks: usize) {
        let pool_exchange = self.pool_exchange.as_ref();
        if let Some(shared) = pool_exchange.filter(|exchange| exchange.publishes().backlog) {
            shared.note_waiting(own_tasks);
            self.remote_backlog = shared.remote_backlog();
        }
    }

    /// Records the age of the load report on which the choice of a member for a task was based.
    pub fn note_report_age(&self, ns: u64) {
        Histogram(&self.histograms[..histogram::WORDS]).record(ns, 1);
    }

    /// Records the time that this many tasks have waited in the pool's queue.
    #[inline]
    pub fn note_waits(&self, ns: u64, tasks: u64) {
        Histogram(&self.histograms[histogram::WORDS..]).record(ns, tasks);
    }

    /// Returns the recorded ages of load reports, and times in the pool's queue, of this core.
    #[must_use]
    pub fn histograms(&self) -> [HistogramSnapshot; HISTOGRAMS] {
        read_histograms(&self.histograms)
    }

    /// Returns the time of the last [`View::note_time`] in nanoseconds; 0 before.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Sets the time of all hooks of a policy, which is also that of the current burst.
    #[inline]
    pub fn note_time(&mut self, now_ns: u64) {
        (self.now_ns, self.burst_ns) = (now_ns, now_ns);
    }

    /// Returns the time of the current burst of replies in nanoseconds. Unlike [`View::now_ns`], it has this resolution
    /// in all pools, and is valid only while reports are processed. 0 for a caller without a clock.
    #[inline]
    #[must_use]
    pub fn burst_ns(&self) -> u64 {
        self.burst_ns
    }

    /// Sets the time of the current burst of replies.
    #[inline]
    pub fn note_burst(&mut self, now_ns: u64) {
        self.burst_ns = now_ns;
    }

    /// Returns the number of the pool's members, active or not.
    #[inline]
    #[must_use]
    pub fn members(&self) -> usize {
        self.reported.len()
    }

    /// Returns the active members, in no particular order.
    #[inline]
    #[must_use]
    pub fn active(&self) -> &[Member] {
        &self.active
    }

    /// Returns true if `member` is active: it may be chosen.
    #[inline]
    #[must_use]
    pub fn is_active(&self, member: Member) -> bool {
        self.place[member.index()] != NOWHERE
    }

    /// Returns the presence of `member`, which all cores share.
    #[must_use]
    pub fn presence(&self, member: Member) -> MemberPresence {
        MemberPresence::from_word(self.presence[member.index()].load(Relaxed))
    }

    /// Sets the presence of `member` for all cores.
    pub fn set_presence(&self, member: Member, presence: MemberPresence) {
        self.change_word(member, |word| Some(word.with(presence)));
    }

    /// Records for all cores a signal of `member`, a rack, with its number of workers.
    pub fn note_signal(&self, member: Member, workers: u16) {
        self.change_word(member, |word| Some(word.after_signal(workers)));
    }

    /// Returns the number of workers of `member`, a rack, from its last signal; `None` without one.
    #[must_use]
    pub fn workers_of(&self, member: Member) -> Option<u16> {
        RackWord(self.presence[member.index()].load(Relaxed)).workers()
    }

    /// Returns a number that changes with each report or signal of `member` to any core. For a worker it is the number
    /// of reports; of a rack's signals it counts only modulo 2^8. Reads memory of other cores: not for each packet.
    #[must_use]
    pub fn report_count(&self, member: Member) -> u32 {
        let signals = RackWord(self.presence[member.index()].load(Relaxed)).signals();
        self.reports(member).wrapping_add(signals)
    }

    /// Changes the presence of `member` from `from` to `to`. Returns true on the one core that makes the
    /// change.
    pub fn change_presence(
        &self,
        member: Member,
        from: MemberPresence,
        to: MemberPresence,
    ) -> bool {
        let is_from = |word: RackWord| word.0 & RackWord::PRESENCE == from as u32;
        self.change_word(member, |word| is_from(word).then(|| word.with(to)))
    }

    /// Records for all cores whether the reports of `member`, a worker, are doubted: they have repeatedly contradicted
    /// the tasks sent to it.
    pub fn set_doubted(&self, member: Member, doubted: bool) {
        self.change_word(member, |word| Some(word.with_doubt(doubted)));
    }

    /// Returns true if a core has recorded doubt of the reports of `member`, a worker, and not withdrawn it.
    #[must_use]
    pub fn is_doubted(&self, member: Member) -> bool {
        RackWord(self.presence[member.index()].load(Relaxed)).is_doubted()
    }

    /// Replaces the shared word of `member` by the result of `new` for the old word. Returns false without a change if
    /// `new` returns `None`. May call `new` several times.
    fn change_word(&self, member: Member, new: impl Fn(RackWord) -> Option<RackWord>) -> bool {
        let change = |word| new(RackWord(word)).map(|word| word.0);
        self.presence[member.index()].fetch_update(Relaxed, Relaxed, change).is_ok()
    }

    /// Adds `member` to the active members or removes it. A removed member also leaves the idle list.
    pub fn set_active(&mut self, member: Member, active: bool) {
        if active == self.is_active(member) {
            return;
        }
        if active {
            self.place[member.index()] = self.active.len() as u16;
            self.active.push(member);
            self.returned[member.index()] = true;
            self.idle.include(member);
        } else {
            let place = self.place[member.index()];
            self.active.swap_remove(usize::from(place));
            if let Some(&moved) = self.active.get(usize::from(place)) {
                self.place[moved.index()] = place;
            }
            self.place[member.index()] = NOWHERE;
            self.idle.exclude(member);
            // Other cores must not take its tokens any more.
            if let Some(pool_exchange) = &self.pool_exchange {
                while pool_exchange.tokens().take_of(member) {}
            }
        }
    }

    /// Returns this core's idle list.
    #[inline]
    #[must_use]
    pub fn idle(&self) -> &IdleList {
        &self.idle
    }

    /// Returns this core's idle list for changes.
    #[inline]
    pub fn idle_mut(&mut self) -> &mut IdleList {
        &mut self.idle
    }

    /// Sets the number of quanta that a member whose tasks share its core has served to its current tasks. 0 for all
    /// other members. The policy `jsq-msq` breaks ties by it.
    #[inline]
    pub fn set_quanta(&self, member: Member, quanta: u32) {
        self.quanta[member.index()].store(quanta, Relaxed);
    }

    /// Returns the number of quanta that `member` has served to its current tasks, as last reported.
    #[inline]
    #[must_use]
    pub fn quanta(&self, member: Member) -> u32 {
        self.quanta[member.index()].load(Relaxed)
    }

    /// Borrows the members' state for a run of decisions.
    #[inline(always)]
    #[must_use]
    pub fn states(&self) -> MemberStates<'_> {
        MemberStates::new(&self.reported, &self.local, &self.remote_counts, self.knowledge())
    }

    /// Borrows the state of one member.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, member: Member) -> MemberState<'_> {
        self.states().of(member)
    }

    /// Borrows all parts for a run of decisions.
    #[inline(always)]
    pub fn parts(&mut self) -> Parts<'_> {
        Parts {
            states: MemberStates::new(
                &self.reported,
                &self.local,
                &self.remote_counts,
                self.knowledge(),
            ),
            active: &self.active,
            idle: self.idle.words_of(self.reported.len()),
            picks: &mut self.picks,
            surplus: 0,
            pool_exchange: self.pool_exchange.as_deref(),
            place: &self.place,
            rates: &self.rates,
            queues: self.queues.as_deref(),
        }
    }

    /// Returns this core's estimate of `member`.
    #[inline]
    #[must_use]
    pub fn estimate(&self, member: Member) -> LoadEstimate {
        self.of(member).estimate()
    }

    /// Returns both parts of this core's estimate of `member`: the last reported load, and the load sent since.
    #[inline]
    #[must_use]
    pub fn load_and_drift(&self, member: Member) -> (Load, Load) {
        let estimate = self.estimate(member);
        (estimate.load(), estimate.drift())
    }

    /// Returns reported load plus drift, in the units of [`Load`].
    #[inline]
    #[must_use]
    pub fn estimated_load(&self, member: Member) -> u64 {
        self.estimate(member).total()
    }

    /// Returns the last reported load, without drift.
    #[inline]
    #[must_use]
    pub fn load(&self, member: Member) -> Load {
        self.of(member).load()
    }

    /// Returns the number of reports and other signs of life from `member` to all cores, modulo 2^32, without the
    /// signals of a rack. Reads memory of other cores: not for each packet.
    #[must_use]
    pub fn reports(&self, member: Member) -> u32 {
        let words = self.remote_states.iter().map(|remote| &remote.reported[member.index()]);
        let counts = words.map(|word| (word.load(Relaxed) >> 32) as u32);
        counts.fold(self.of(member).reports(), u32::wrapping_add)
    }

    /// Returns the current number of tasks outstanding at `member`, over all cores, from each core's own memory. On a
    /// node of several cores it is negative after more replies than tasks. Reads memory of other cores: not for each
    /// packet.
    #[must_use]
    pub fn outstanding_now(&self, member: Member) -> i32 {
        // Without an exchange, `remote_counts` are the live counts of all other dispatchers, if any.
        if self.pool_exchange.is_none() {
            return self.outstanding(member).cast_signed();
        }
        let remote = self.remote_states.iter();
        let counts = remote.map(|remote| remote.local[member.index()].outstanding.load(Relaxed));
        counts.fold(self.of(member).own_outstanding(), |sum, more| sum.wrapping_add(more as i32))
    }

    /// Returns the upper limit of `member`'s load by the cores' estimates: the longest queue last reported to
    /// any core, plus the load that all cores sent since their reports. Outstanding tasks beyond it are in flight or
    /// lost. Reads memory of other cores: not for each packet.
    #[must_use]
    pub fn largest_estimate(&self, member: Member) -> Load {
        let remote = self.remote_states.iter();
        let states =
            remote.map(|remote| MemberStates::new(&remote.reported, &remote.local, &[], Exact));
        let states = states.chain([self.states()]);
        let (load, drift) = states.fold((0, 0_u32), |(load, drift), states| {
            let estimate = states.of(member).estimate();
            (estimate.load().0.max(load), drift.saturating_add(estimate.drift().0))
        });
        Load(drift.saturating_add(load))
    }

    /// Returns the longest queue that `member` last reported to any core, for the detection of lost tasks. Reads memory
    /// of other cores: not for each packet.
    #[must_use]
    pub fn reported_most(&self, member: Member) -> Load {
        let words = self.remote_states.iter().map(|remote| &remote.reported[member.index()]);
        let loads = words.map(|word| Load(word.load(Relaxed) as u32));
        loads.fold(self.load(member), Load::max)
    }

    /// Adds load sent to `member` to its drift, saturating: [`Load::ONE`] for a worker, a task's share for a
    /// leaf.
    #[inline]
    pub fn add_drift(&mut self, member: Member, by: Load) {
        let state = self.of(member);
        state.add_drift(state.estimate(), by);
    }

    /// Counts a task sent to `member`: adds one to its outstanding tasks, and one task's load to its drift.
    #[inline]
    pub fn sent(&mut self, member: Member) {
        self.of(member).sent();
    }

    /// Returns the service rate of `member`, relative to other members; 1 by default.
    #[inline]
    #[must_use]
    pub fn rate(&self, member: Member) -> f64 {
        self.rates[member.index()]
    }

    /// Sets the members' service rates. Policies read them in their next `on_members`.
    ///
    /// # Panics
    /// If the number of rates differs from the number of members.
    pub fn set_rates(&mut self, rates: &[f64]) {
        assert_eq!(rates.len(), self.rates.len(), "one rate for each member");
        self.rates.copy_from_slice(rates);
    }

    /// Sets one member's service rate, as [`View::set_rates`] does.
    pub fn set_rate(&mut self, member: Member, rate: f64) {
        self.rates[member.index()] = rate;
    }

    /// Sets the queue lengths that probes then read: a simulator's true ones, or the answers to probes sent as
    /// messages.
    ///
    /// # Panics
    /// If the number of queues differs from the number of members.
    pub fn set_queues(&mut self, queues: Arc<[AtomicU32]>) {
        assert_eq!(queues.len(), self.members(), "one queue for each member");
        self.queues = Some(queues);
    }

    /// Returns true if probes read the queue lengths of [`View::set_queues`] instead of this node's counts.
    #[inline]
    #[must_use]
    pub fn sees_queues(&self) -> bool {
        self.queues.is_some()
    }

    /// Returns the queue length of `member` as a probe finds it: that of [`View::set_queues`], otherwise the number of
    /// this node's tasks outstanding there. For a member with one scheduler both differ only by the packets in flight.
    #[inline]
    #[must_use]
    pub fn probe(&self, member: Member) -> u32 {
        match &self.queues {
            Some(queues) => queues[member.index()].load(Relaxed),
            None => self.outstanding(member),
        }
    }

    /// Counts a reply of `member`. Returns false without effect if no task is outstanding there: the
    /// reply is a duplicate, or answers another scheduler's task. The published counts of remote cores may be out of
    /// date, so a core with a [`View::pool_exchange`] counts each reply.
    #[inline]
    pub fn answered(&mut self, member: Member) -> bool {
        self.of(member).answered()
    }

    /// Returns the number of tasks outstanding at `member`, over all cores; those of remote cores as last published, plus
    /// the tasks that reports show; current only under [`View::heap`]. Returns 0 if the sum is negative.
    #[inline]
    #[must_use]
    pub fn outstanding(&self, member: Member) -> u32 {
        self.of(member).outstanding()
    }

    /// Applies a report as Horus does: load := reported, without drift.
    #[inline]
    pub fn set_load(&mut self, member: Member, load: Load) {
        self.of(member).set_load(load);
    }

    /// Applies each report: counts a task as answered and sets the member's load. Returns the number of reports from
    /// members without outstanding tasks, by the rule of [`View::answered`].
    #[inline]
    pub fn take_loads(&mut self, reports: &[Report]) -> usize {
        self.states().take_loads(reports, |_| {})
    }

    /// Same as [`View::take_loads`], and updates this core's list of idle members.
    #[inline(always)]
    pub fn take_loads_and_idle(&mut self, reports: &[Report]) -> usize {
        let Parts { states, mut idle, .. } = self.parts();
        states.take_loads(reports, |report| idle.note(report.member, report.is_idle()))
    }

    /// Counts, for each report, a task as answered and a sign of life of its member. Estimates stay the same: such
    /// members report their loads in messages of their own. Returns the number of reports from members without
    /// outstanding tasks, by the rule of [`View::answered`].
    pub fn take_answers(&mut self, reports: &[Report]) -> usize {
        let states = self.states();
        let mut surplus = 0; // reports without an outstanding task
        for report in reports {
            let state = states.of(report.member);
            surplus += usize::from(!state.answered());
            state.note_sign_of_life();
        }
        surplus
    }

    /// Records a sign of life of `member`: counts a report without a load. Its estimate stays the same.
    pub fn note_sign_of_life(&mut self, member: Member) {
        self.of(member).note_sign_of_life();
    }

    /// Takes `lost` tasks, at most those outstanding, off the count of `member`, and counts them as lost. Returns their
    /// number.
    pub fn write_off(&mut self, member: Member, lost: u32) -> u32 {
        let outstanding = self.outstanding_now(member).max(0).cast_unsigned();
        let lost = lost.min(outstanding).min(i32::MAX as u32);
        self.of(member).take_off(lost);
        self.lost[member.index()].fetch_add(lost, Relaxed);
        self.touch(member);
        lost
    }

    /// Sets the number of tasks outstanding at `member`, over all cores, from a rack's signal or a previous process's
    /// state. Adds the difference to this core's count.
    pub fn set_outstanding(&mut self, member: Member, tasks: u32) {
        let difference = tasks.cast_signed().wrapping_sub(self.outstanding_now(member));
        self.of(member).balance(difference);
        self.touch(member);
    }

    /// Adds `surplus` to the outstanding tasks of `member`. Corrects the counts of all cores for that number of replies
    /// that answered no task.
    pub fn take_back(&mut self, member: Member, surplus: u32) {
        self.of(member).balance(surplus.cast_signed());
        self.touch(member);
    }

    /// Returns the number of cores with `member` on their idle list. Reads memory of other cores: not for each
    /// packet.
    #[must_use]
    pub fn idle_everywhere(&self, member: Member) -> usize {
        let remote = self.remote_states.iter();
        let remote_lists = remote.filter(|remote| remote.idle.shows(member)).count();
        remote_lists + usize::from(self.idle.contains(member))
    }

    /// Returns the number of idle members: those on the cores' idle lists, and those released to any core. A leaf
    /// with spines sends them signals that depend on it. Counts a member on two lists twice. Reads memory of other
    /// cores: not for each packet.
    #[must_use]
    pub fn idle_anywhere(&self) -> usize {
        let remote = self.remote_states.iter().map(|remote| remote.idle.len()).sum::<usize>();
        // Under a policy without shared idle members, any tokens remain from an earlier policy.
        let shared =
            self.pool_exchange.as_ref().filter(|pool_exchange| pool_exchange.publishes().idle);
        self.idle.len() + remote + shared.map_or(0, |pool_exchange| pool_exchange.idle_members())
    }

    /// Returns true if `member` became active again since the last call for it. It then may be idle and on no core's
    /// list.
    #[must_use]
    pub fn take_returned(&mut self, member: Member) -> bool {
        std::mem::take(&mut self.returned[member.index()])
    }

    /// Returns true if this core assumes one task at `member`, but it has none: it belongs to another core as idle, or
    /// is released to all cores. Always false if cores share no idle members. Reads memory of other cores: not for each
    /// packet.
    #[must_use]
    pub fn is_shared_idle(&self, member: Member) -> bool {
        self.shares_idle()
            && self.estimated_load(member) <= Load::ONE.0.into()
            && self.outstanding_now(member) <= 0
            && self.is_listed(member)
    }

    /// Returns true if `member` is on a core's idle list, or has a free token. Reads memory of other cores: not for each
    /// packet.
    fn is_listed(&self, member: Member) -> bool {
        let shared = self.pool_exchange.as_ref();
        self.idle_everywhere(member) > 0 || shared.is_some_and(|one| one.has_token_of(member))
    }

    /// Returns true if `member` may be idle and is on no core's list: a low reported load, no token and no
    /// outstanding task. Reads memory of other cores: not for each packet.
    #[must_use]
    pub fn is_idle_and_unlisted(&self, member: Member) -> bool {
        // Several cores may assume one task at an idle member that belongs to another core.
        let most = if self.pool_exchange.is_some() { Load::ONE } else { Load(0) };
        let load = |reported: &[AtomicU64]| Load(reported[member.index()].load(Relaxed) as u32);
        let remote = self.remote_states.iter().map(|remote| load(&remote.reported));
        let least = remote.fold(load(&self.reported), Load::min);
        least <= most && self.outstanding_now(member) == 0 && !self.is_listed(member)
    }

    /// Sets the maximum number of a member's tokens that cores share, and the number of free ones of an idle member
    /// ([`PoolExchange::set_tokens`]).
    pub fn set_tokens(&mut self, most: usize, of_idle: usize) {
        if let Some(pool_exchange) = &mut self.pool_exchange {
            let last = self.active.iter().map(|member| member.index()).max();
            pool_exchange.set_tokens(most, of_idle, last.map_or(0, |last| last + 1));
        }
    }

    /// Returns the exchange with remote cores; `None` if there are none.
    #[inline]
    #[must_use]
    pub fn pool_exchange(&self) -> Option<&PoolExchange> {
        self.pool_exchange.as_deref()
    }

    /// Returns true if the node has several cores and each idle member belongs to one core at a time.
    #[inline]
    #[must_use]
    pub fn shares_idle(&self) -> bool {
        self.pool_exchange.as_ref().is_some_and(|pool_exchange| pool_exchange.publishes().idle)
    }

    /// Marks the estimate of a member as changed, for the next publication. The functions that correct counts call it;
    /// callers of [`View::sent`], [`View::answered`] and [`View::set_load`] call it themselves.
    #[inline]
    pub fn touch(&mut self, member: Member) {
        self.touch_all(std::iter::once(member));
    }

    /// Marks the estimates of several members as changed, see [`View::touch`].
    #[inline]
    pub fn touch_all(&mut self, members: impl Iterator<Item = Member>) {
        if let Some(pool_exchange) = &mut self.pool_exchange {
            pool_exchange.touch(members);
        }
    }

    /// Sets the state that the pool's policy shares with remote cores.
    pub fn set_publishes(&mut self, publishes: PublishedState) {
        if let Some(pool_exchange) = &mut self.pool_exchange {
            pool_exchange.set_publishes(publishes);
            self.remote_backlog = RemoteBacklog::EMPTY;
        }
    }

    /// Publishes changes to remote cores, and releases idle members as [`View::share_idle`] does. `waiting` is the number
    /// of tasks that wait on this core.
    #[inline]
    pub fn publish(&mut self, pool: usize, waiting: usize, sender: &mut Sender, keeps_up: bool) {
        let Some(pool_exchange) = &mut self.pool_exchange else { return };
        pool_exchange.is_overloaded = !keeps_up;
        self.share_idle(waiting);
        let Some(pool_exchange) = &mut self.pool_exchange else { return };
        let states = MemberStates::new(&self.reported, &self.local, &self.remote_counts, Published);
        // Tasks that wait elsewhere need exact counts: a member that seems full gets none of them.
        let publishes_all = keeps_up || self.remote_backlog.tasks > 0;
        pool_exchange.publish(pool, states, sender, publishes_all);
        let waits = waiting > 0 || self.remote_backlog.tasks > 0;
        pool_exchange.update_knowledge(keeps_up, waits && pool_exchange.publishes().backlog);
    }

    /// Returns the knowledge about the tasks of remote cores.
    #[inline(always)]
    fn knowledge(&self) -> RemoteTasks {
        self.pool_exchange.as_ref().map_or(Exact, |shared| shared.knowledge)
    }

    /// Returns true if other cores may leave small changes of their tasks unpublished. Reports then show these tasks.
    #[inline]
    #[must_use]
    pub fn misses_tasks(&self) -> bool {
        self.knowledge() == Coarse
    }

    /// Lowers the count of remote cores' tasks at `member` to those published. Returns true if a report had raised it.
    pub(crate) fn forget_report(&self, member: Member) -> bool {
        self.pool_exchange.as_ref().is_some_and(|shared| shared.lower(member))
    }

    /// Releases idle members to all cores, if each belongs to one core at a time. Tasks that wait on this core take them
    /// first, unless a task on another core goes before. An overloaded core without waiting tasks keeps its share of the
    /// members, at most one per packet of a burst; none if it publishes nothing about members.
    #[inline]
    pub fn share_idle(&mut self, waiting: usize) {
        if !self.shares_idle() || self.idle.is_empty() {
            return;
        }
        let Some(pool_exchange) = &self.pool_exchange else { return };
        let keeps_share = pool_exchange.is_overloaded && pool_exchange.publishes().topic.is_some();
        let keep = match (waiting > 0 || keeps_share) && !pool_exchange.yields() {
            true if waiting > 0 => self.idle.len(),
            true => BURST.min(self.active.len() / (self.remote_states.len() + 1)),
            false => 0,
        };
        self.release_idle(keep);
    }

    /// Releases idle members to all cores, except `keep` of them.
    #[inline]
    pub fn release_idle(&mut self, keep: usize) {
        let Some(pool_exchange) = &self.pool_exchange else { return };
        let states = MemberStates::new(&self.reported, &self.local, &self.remote_counts, Published);
        let surplus = (keep..self.idle.len()).map_while(|_| self.idle.take_last());
        pool_exchange.release(surplus.inspect(|&member| {
            // Another core may send the member a task before this core learns of it, so this core assumes one task.
            let state = states.of(member);
            if state.estimate().total() < Load::ONE.0.into() {
                state.set_estimate(Load::ONE);
            }
        }));
    }

    /// Applies a message of remote core number `remote`. Returns true if the caller must inform this core's policy of
    /// the member's change.
    #[inline]
    pub fn receive(&mut self, remote: usize, topic: Topic, member: Member, value: u16) -> bool {
        let states = MemberStates::new(&self.reported, &self.local, &self.remote_counts, Published);
        let pool_exchange = self.pool_exchange.as_mut();
        pool_exchange.is_some_and(|pool_exchange| {
            pool_exchange.receive(remote, topic, member, value, states)
        })
    }

    /// Returns a remote core whose messages this core has dropped, although it now needs them. Returns each such core
    /// once.
    #[must_use]
    pub fn take_missed(&mut self) -> Option<usize> {
        self.pool_exchange.as_mut()?.take_missed()
    }

    /// Returns the value that remote core number `remote` last published for a member, for a core that lost its
    /// messages; 0 without remote cores.
    #[must_use]
    pub fn last_published(&self, remote: usize, member: Member) -> u16 {
        self.pool_exchange
            .as_ref()
            .map_or(0, |pool_exchange| pool_exchange.last_published(remote, member))
    }
}

/// Allocates memory for one pool, and returns it with its layout.
fn heap(members: usize, cores: usize) -> (Arc<Region>, Layout) {
    let layout = Layout::new(&TableShape {
        cores,
        pools: vec![members],
        servers: 0,
        ports: 0,
        pinned: 0,
        nodes: 0,
    });
    (Region::heap(layout.len), layout)
}

impl RemoteState {
    /// Returns the state of `core` for `pool`, for reading.
    fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let (reported, local) = written_by(region, layout, core, pool);
        Self { reported, local, idle: IdleList::of(region, layout, core, pool) }
    }
}

/// Returns the histograms of a pool on `core`.
pub(super) fn histograms(
    region: &Arc<Region>,
    layout: &Layout,
    core: usize,
    pool: usize,
) -> Slice<AtomicU64> {
    let words = histogram::WORDS * HISTOGRAMS;
    region.slice(layout.cores[core].histograms + 8 * words * pool, words)
}

/// Returns the contents of a pool's histograms: ages of load reports, and times in the queue.
pub(super) fn read_histograms(words: &[AtomicU64]) -> [HistogramSnapshot; HISTOGRAMS] {
    let (ages, waits) = words.split_at(histogram::WORDS);
    [Histogram(ages).read(), Histogram(waits).read()]
}

/// Returns the part of a pool's members' state that only `core` writes: reports and local state.
fn written_by(
    region: &Arc<Region>,
    layout: &Layout,
    core: usize,
    pool: usize,
) -> (Slice<AtomicU64>, Slice<LocalState>) {
    let (first, members) = (layout.pools[pool].first_member, layout.pools[pool].members);
    let core = &layout.cores[core];
    let local = core.own + size_of::<LocalState>() * first;
    (region.slice(core.reported + 8 * first, members), region.slice(local, members))
}

impl Parts<'_> {
    /// Returns true if no other core sends to these members and probes read this core's counts.
    #[inline(always)]
    #[must_use]
    pub fn are_alone(&self) -> bool {
        self.states.are_alone() && self.queues.is_none()
    }

    /// Returns the same parts, without remote counts and queues, so that the compiler omits reads of them. Requires
    /// [`Parts::are_alone`].
    #[inline(always)]
    #[must_use]
    pub fn alone(self) -> Self {
        Self { states: self.states.alone(), queues: None, ..self }
    }

    /// Returns true if the node has several cores and each idle member belongs to one core at a time.
    #[inline(always)]
    #[must_use]
    pub fn shares_idle(&self) -> bool {
        self.pool_exchange.is_some_and(|pool_exchange| pool_exchange.publishes().idle)
    }

    /// Adds the idle members or free places of these reports: to this core's idle list, or as tokens of all cores if
    /// the list has the member already.
    #[inline]
    pub fn give(&mut self, reports: &[Report]) {
        let Some(pool_exchange) = self.pool_exchange else { return };
        let active = reports.iter().map(|report| report.member);
        let active = active.filter(|member| self.place[member.index()] != NOWHERE);
        pool_exchange.release(active.filter(|&member| !self.idle.insert(member)));
    }

    /// Takes an idle member from this core's list, or one released to any core; `None` if there is none.
    #[inline]
    pub fn take_idle(&mut self) -> Option<Member> {
        if let Some(member) = self.idle.take_last() {
            return Some(member);
        }
        let pool_exchange = self.pool_exchange?;
        loop {
            // The token of an inactive member is dropped: the member must not be chosen.
            let (member, _) = pool_exchange.take_token()?;
            if self.is_active(member) {
                // Each core assumes one task at a released member; this core now knows that it is idle.
                self.states.of(member).set_estimate(Load(0));
                return Some(member);
            }
        }
    }

    /// Same as [`View::is_active`].
    #[inline(always)]
    #[must_use]
    pub fn is_active(&self, member: Member) -> bool {
        self.place[member.index()] != NOWHERE
    }

    /// Same as [`View::rate`].
    #[inline(always)]
    #[must_use]
    pub fn rate(&self, member: Member) -> f64 {
        self.rates[member.index()]
    }

    /// Same as [`View::probe`].
    #[inline(always)]
    #[must_use]
    pub fn probe(&self, member: Member) -> u32 {
        match self.queues {
            Some(queues) => queues[member.index()].load(Relaxed),
            None => self.states.of(member).outstanding(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the only dispatcher's view of a pool.
    fn view(members: usize) -> View {
        View::heap(members, 1).remove(0)
    }

    const A: Member = Member(0);
    const B: Member = Member(1);

    #[test]
    fn a_report_replaces_load_and_drift() {
        let mut view = view(2);
        view.sent(A);
        view.sent(A);
        // Loads are 16.16 fixed point: a task counts 1 << 16.
        assert_eq!(view.estimated_load(A), 2 << 16);
        view.set_load(A, Load::tasks(5));
        assert_eq!(view.load_and_drift(A), (Load::tasks(5), Load(0)));
        view.sent(A);
        assert_eq!(view.estimated_load(A), 6 << 16);
        assert_eq!(view.estimated_load(B), 0);
    }

    // promise: input.1
    #[test]
    fn drift_saturates() {
        let mut view = view(1);
        view.add_drift(A, Load(u32::MAX - 1));
        view.sent(A);
        view.sent(A);
        assert_eq!(view.load_and_drift(A).1, Load(u32::MAX));
        view.set_load(A, Load::tasks(u16::MAX));
        view.add_drift(A, Load(u32::MAX));
        assert_eq!(view.estimated_load(A), u64::from(u32::MAX) + (0xFFFF << 16));
    }

    #[test]
    fn cores_share_reports_and_keep_their_drift() {
        // Loads are 16.16 fixed point, as above.
        let mut views = View::heap(1, 2);
        let mut second = views.pop().unwrap();
        let mut first = views.pop().unwrap();
        first.sent(A);
        second.sent(A);
        second.sent(A);
        assert_eq!((first.estimated_load(A), second.estimated_load(A)), (1 << 16, 2 << 16));
        assert_eq!(first.outstanding(A), 3);
        // The first core receives the reply; the second drops its drift without a message.
        first.answered(A);
        first.set_load(A, Load::tasks(1));
        assert_eq!((first.estimated_load(A), second.estimated_load(A)), (1 << 16, 1 << 16));
        assert_eq!(second.outstanding(A), 2);
        // A core may receive a reply to another core's task.
        first.answered(A);
        first.answered(A);
        assert_eq!((first.outstanding(A), second.outstanding(A)), (0, 0));
    }

    // promise: input.1
    #[test]
    fn duplicate_answers_do_not_wrap() {
        let mut view = view(1);
        assert!(!view.answered(A) && !view.answered(A));
        assert_eq!(view.outstanding(A), 0);
        view.sent(A);
        assert_eq!(view.outstanding(A), 1);
    }

    #[test]
    fn inactive_members_leave_and_return() {
        let mut view = view(3);
        view.idle_mut().insert(B);
        view.set_active(B, false);
        view.set_active(B, false);
        assert_eq!(view.active(), [A, Member(2)]);
        assert!(view.idle().is_empty() && !view.is_active(B));
        view.set_active(A, false);
        assert_eq!(view.active(), [Member(2)]);
        view.set_active(B, true);
        view.set_active(A, true);
        assert_eq!(view.active(), [Member(2), B, A]);
    }
}
