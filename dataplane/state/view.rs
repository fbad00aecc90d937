//! One dispatcher core's view of one pool's members: the values policies decide on.
//!
//! A member's load as this core sees it is `reported + drift`: the queue length of its last report, plus what this core has sent
//! it since. Beside its drift a core keeps the report from which that counts, number and load, so that a drift which belongs to
//! an older report counts no longer without being cleared.
//!
//! Cores of one node have words of their own each, and tell each other what changes ([`super::peers`]). The independent dispatchers
//! of a simulator ([`View::heap`]) share their reports and counts at once instead.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::broadcast::{Sender, Topic};
use super::idle::{IdleList, IdleWords};
use super::layout::{Layout, TableShape};
use super::member::{Belief, Load, Member, Presence, RackWord, Report};
use super::peers::{Peers, Sharing};
use super::region::{Region, Slice};
use super::words::{MemberWords, Own, Words};
use crate::limits::BURST;

/// How tasks found their members; counted by policies, collected by their caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picks {
    /// From the idle list.
    pub idle: u64,
    /// By comparing two random members.
    pub po2: u64,
    /// Those for which a switch would have passed the packet through its pipeline again (Horus 3.3).
    pub resubmits: u64,
    /// Messages beyond tasks and replies that the policy asked for (probes, reports).
    pub messages: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct View {
    reported: Slice<AtomicU64>,
    presence: Slice<AtomicU32>,
    /// Tasks of each member that were written off; shared by all cores.
    lost: Slice<AtomicU32>,
    /// Tasks that wait on this core, for readers.
    queued: Slice<AtomicU64>,
    own: Slice<Own>,
    /// What the other cores have outstanding: as they told it, or as they keep it ([`View::heap`]).
    elsewhere: Vec<Slice<Own>>,
    /// What other cores of the node keep, to be read now and then.
    others: Vec<Others>,
    /// What is told to them, and heard from them; none when there are none.
    peers: Option<Box<Peers>>,
    active: Vec<Member>,
    place: Vec<u16>,
    /// Members that may be chosen again since this was last asked.
    returned: Box<[bool]>,
    idle: IdleList,
    /// Service rate of each member: a worker's speed, or a rack's number of workers.
    rates: Vec<f64>,
    /// The members' true queues, where a simulator knows them. Decisions read them, and only an argument of every call
    /// or a type parameter of all that schedules could bring them there otherwise.
    queues: Option<Arc<[AtomicU32]>>,
    now_ns: u64,
    /// How tasks found their members so far.
    pub picks: Picks,
}

/// What another core of the node keeps of a pool's members.
#[derive(Debug)]
struct Others {
    reported: Slice<AtomicU64>,
    own: Slice<Own>,
    idle: IdleList,
}

/// A view's parts, borrowed at once for a run of decisions or of reports.
#[derive(Debug)]
pub struct Parts<'a> {
    /// What is believed of the members.
    pub words: Words<'a>,
    /// Those that may be chosen.
    pub active: &'a [Member],
    /// Those believed idle.
    pub idle: IdleWords<'a>,
    /// How tasks found their members so far.
    pub picks: &'a mut Picks,
    /// Answers among those of this run that came from members which owed none.
    pub surplus: usize,
    peers: Option<&'a Peers>,
    place: &'a [u16],
    rates: &'a [f64],
    queues: Option<&'a [AtomicU32]>,
}

const NOWHERE: u16 = u16::MAX;

impl View {
    /// Views of one pool with `members` members for `dispatchers` dispatchers, on the heap: what the simulator and embedders
    /// without a state file use. All members are active and on no idle list. What one dispatcher hears and sends all others
    /// know at once, but for drift.
    #[must_use]
    pub fn heap(members: usize, dispatchers: usize) -> Vec<Self> {
        let (region, layout) = heap(members, dispatchers);
        let words = |core: usize| own(&region, &layout, core, 0);
        let view = |core| {
            let mut view = Self::new(&region, &layout, core, 0);
            let others = (0..dispatchers).filter(|&other| other != core);
            view.elsewhere = others.map(|other| words(other).1).collect();
            view.reported = words(0).0;
            view.others.clear();
            view.peers = None;
            view
        };
        (0..dispatchers).map(view).collect()
    }

    /// Views of one pool for the cores of one node, without a state file; see [`View::heap`].
    #[must_use]
    pub fn of_cores(members: usize, cores: usize) -> (Vec<Self>, Vec<super::Exchange>) {
        let (region, layout) = heap(members, cores);
        let view = |core| Self::new(&region, &layout, core, 0);
        let exchange = |core| super::Exchange::new(&region, &layout, core);
        ((0..cores).map(view).collect(), (0..cores).map(exchange).collect())
    }

    /// The view of `pool` by `core` in a region of that layout. All members that have their place may be chosen.
    #[must_use]
    pub fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let members = layout.pools[pool].members;
        let cores = layout.cores.len();
        let others = (0..cores).filter(|&other| other != core);
        let peers = (cores > 1).then(|| Box::new(Peers::new(region, layout, core, pool)));
        let (reported, words) = own(region, layout, core, pool);
        let mut view = Self {
            reported,
            presence: region.slice(layout.pools[pool].presence, members),
            lost: region.slice(layout.pools[pool].lost, members),
            queued: region.slice(layout.cores[core].queued + 8 * pool, 1),
            own: words,
            elsewhere: peers.iter().map(|peers| peers.elsewhere()).collect(),
            others: others.map(|other| Others::new(region, layout, other, pool)).collect(),
            peers,
            active: (0..members as u16).map(Member).collect(),
            place: (0..members as u16).collect(),
            returned: vec![false; members].into(),
            idle: IdleList::new(region, layout, core, pool),
            rates: vec![1.0; members],
            queues: None,
            now_ns: 0,
            picks: Picks::default(),
        };
        // From behind, so that the others keep their order.
        for member in (0..members as u16).rev().map(Member) {
            if view.presence(member) == Presence::Absent {
                view.set_active(member, false);
            }
        }
        view
    }

    /// What this core keeps of a member that is gone, so that its place may be another's.
    pub fn forget(&mut self, member: Member) {
        self.set_active(member, false);
        let own = &self.own[member.index()];
        self.reported[member.index()].store(0, Relaxed);
        own.since.store(0, Relaxed);
        own.drift.store(0, Relaxed);
        own.outstanding.store(0, Relaxed);
        self.presence[member.index()].fetch_and(RackWord::PRESENCE, Relaxed);
        self.lost[member.index()].store(0, Relaxed);
        self.rates[member.index()] = 1.0;
        self.touch(member);
    }

    /// Notes how many of the pool's tasks wait on this core, for readers.
    #[inline]
    pub fn note_queued(&self, tasks: usize) {
        self.queued[0].store(tasks as u64, Relaxed);
    }

    /// The pool's tasks that wait on this core, as last noted.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued[0].load(Relaxed)
    }

    /// The time in nanoseconds, as the core was last told; 0 before that.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Tells the time.
    #[inline]
    pub fn note_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Members of the pool, active or not.
    #[inline]
    #[must_use]
    pub fn members(&self) -> usize {
        self.reported.len()
    }

    /// The members that may be chosen, in no particular order.
    #[inline]
    #[must_use]
    pub fn active(&self) -> &[Member] {
        &self.active
    }

    /// `member` may be chosen.
    #[inline]
    #[must_use]
    pub fn is_active(&self, member: Member) -> bool {
        self.place[member.index()] != NOWHERE
    }

    /// Whether `member` speaks for itself, by what any core has heard.
    #[must_use]
    pub fn presence(&self, member: Member) -> Presence {
        Presence::from_word(self.presence[member.index()].load(Relaxed))
    }

    /// Notes for all cores whether `member` speaks for itself.
    pub fn set_presence(&self, member: Member, presence: Presence) {
        self.change_word(member, |word| Some(word.with(presence)));
    }

    /// Notes for all cores that `member`, a rack, gave a signal, and how many workers it has.
    pub fn note_signal(&self, member: Member, workers: u16) {
        self.change_word(member, |word| Some(word.heard(workers)));
    }

    /// The workers that `member`, a rack, told of, if it has told.
    #[must_use]
    pub fn workers_of(&self, member: Member) -> Option<u16> {
        RackWord(self.presence[member.index()].load(Relaxed)).workers()
    }

    /// A number that each report and each signal of `member` raises, by what any core has heard. Reads the other cores' words: not
    /// for each packet.
    #[must_use]
    pub fn heard(&self, member: Member) -> u32 {
        let signals = RackWord(self.presence[member.index()].load(Relaxed)).signals();
        self.reports(member).wrapping_add(signals)
    }

    /// The same, where another core may do it too; true for the one that does.
    pub fn change_presence(&self, member: Member, from: Presence, to: Presence) -> bool {
        let is = |word: RackWord| word.0 & RackWord::PRESENCE == from as u32;
        self.change_word(member, |word| is(word).then(|| word.with(to)))
    }

    /// Changes what all cores share of `member`; false when nothing is to be changed.
    fn change_word(&self, member: Member, to: impl Fn(RackWord) -> Option<RackWord>) -> bool {
        let change = |word| to(RackWord(word)).map(|word| word.0);
        self.presence[member.index()].fetch_update(Relaxed, Relaxed, change).is_ok()
    }

    /// Lets `member` be chosen, or no longer; it also leaves the idle list then.
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
            if let Some(peers) = &self.peers {
                while peers.tokens().take_of(member) {}
            }
        }
    }

    /// The members this core believes idle.
    #[inline]
    #[must_use]
    pub fn idle(&self) -> &IdleList {
        &self.idle
    }

    /// The members this core believes idle, to be changed.
    #[inline]
    pub fn idle_mut(&mut self) -> &mut IdleList {
        &mut self.idle
    }

    /// The members' words, for a run of decisions.
    #[inline(always)]
    #[must_use]
    pub fn words(&self) -> Words<'_> {
        Words::new(&self.reported, &self.own, &self.elsewhere, self.peers.is_none())
    }

    /// The words of one member.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, member: Member) -> MemberWords<'_> {
        self.words().of(member)
    }

    /// All that a run of decisions needs, at once.
    #[inline(always)]
    pub fn parts(&mut self) -> Parts<'_> {
        Parts {
            words: Words::new(&self.reported, &self.own, &self.elsewhere, self.peers.is_none()),
            active: &self.active,
            idle: self.idle.words_of(self.reported.len()),
            picks: &mut self.picks,
            surplus: 0,
            peers: self.peers.as_deref(),
            place: &self.place,
            rates: &self.rates,
            queues: self.queues.as_deref(),
        }
    }

    /// What this core believes of `member`.
    #[inline]
    #[must_use]
    pub fn belief(&self, member: Member) -> Belief {
        self.of(member).belief()
    }

    /// The last reported load of `member`, and what this core has sent it since.
    #[inline]
    #[must_use]
    pub fn load_and_drift(&self, member: Member) -> (Load, Load) {
        let belief = self.belief(member);
        (belief.load(), belief.drift())
    }

    /// Reported load plus drift.
    #[inline]
    #[must_use]
    pub fn estimate(&self, member: Member) -> u64 {
        self.belief(member).total()
    }

    /// The last reported load alone.
    #[inline]
    #[must_use]
    pub fn load(&self, member: Member) -> Load {
        self.of(member).load()
    }

    /// Number of reports taken from `member` by all cores, modulo 2^32. Reads their words: not for each packet.
    #[must_use]
    pub fn reports(&self, member: Member) -> u32 {
        let others = self.others.iter();
        let theirs = others.map(|other| other.reported[member.index()].load(Relaxed));
        let theirs = theirs.map(|word| (word >> 32) as u32);
        theirs.fold(self.of(member).reports(), u32::wrapping_add)
    }

    /// Tasks sent to `member` and not answered, over all cores, as they are at this moment; below 0 when more were answered.
    /// Reads the other cores' words: not for each packet.
    #[must_use]
    pub fn outstanding_now(&self, member: Member) -> i32 {
        if self.peers.is_none() {
            return self.outstanding(member).cast_signed();
        }
        let others = self.others.iter();
        let theirs = others.map(|other| other.own[member.index()].outstanding.load(Relaxed));
        theirs.fold(self.of(member).own_outstanding(), |sum, more| sum.wrapping_add(more as i32))
    }

    /// The most that `member` can have by what the cores believe: the longest queue that it last reported to any of them, and what
    /// all have sent since they were told theirs. Reads the other cores' words: not for each packet.
    #[must_use]
    pub fn believed_most(&self, member: Member) -> Load {
        let own = self.words();
        let others = self.others.iter();
        let others = others.map(|other| Words::new(&other.reported, &other.own, &[], true));
        let (load, drift) = others.chain([own]).fold((0, 0_u32), |(load, drift), words| {
            let belief = words.of(member).belief();
            (belief.load().0.max(load), drift.saturating_add(belief.drift().0))
        });
        Load(drift.saturating_add(load))
    }

    /// The longest queue that `member` last reported to any core. Reads the other cores' words: not for each packet.
    #[must_use]
    pub fn reported_most(&self, member: Member) -> Load {
        let others = self.others.iter();
        let theirs = others.map(|other| Load(other.reported[member.index()].load(Relaxed) as u32));
        theirs.fold(self.load(member), Load::max)
    }

    /// Notes `by` more load sent to `member`, saturating: [`Load::ONE`] to a worker, its share to a leaf.
    #[inline]
    pub fn add_drift(&mut self, member: Member, by: Load) {
        let words = self.of(member);
        words.add_drift(words.belief(), by);
    }

    /// Counts a task sent to `member`.
    #[inline]
    pub fn sent(&mut self, member: Member) {
        self.of(member).sent();
    }

    /// The service rate of `member`, relative to the others'; 1 unless told otherwise.
    #[inline]
    #[must_use]
    pub fn rate(&self, member: Member) -> f64 {
        self.rates[member.index()]
    }

    /// Sets the members' service rates. Policies see them at their next `on_members`.
    pub fn set_rates(&mut self, rates: &[f64]) {
        assert_eq!(rates.len(), self.rates.len(), "one rate for each member");
        self.rates.copy_from_slice(rates);
    }

    /// Sets one member's service rate, as [`View::set_rates`].
    pub fn set_rate(&mut self, member: Member, rate: f64) {
        self.rates[member.index()] = rate;
    }

    /// Gives probes the members' true queues to read: a simulator knows them.
    pub fn set_queues(&mut self, queues: Arc<[AtomicU32]>) {
        assert_eq!(queues.len(), self.members(), "one queue for each member");
        self.queues = Some(queues);
    }

    /// Probes read true queues, not this node's own counts.
    #[inline]
    #[must_use]
    pub fn sees_queues(&self) -> bool {
        self.queues.is_some()
    }

    /// The queue of `member`, as a probe finds it: the true one where it can be known, else the tasks
    /// that this node has outstanding there, which for a member with one scheduler is the same
    /// plus what is on its way.
    #[inline]
    #[must_use]
    pub fn probe(&self, member: Member) -> u32 {
        match &self.queues {
            Some(queues) => queues[member.index()].load(Relaxed),
            None => self.outstanding(member),
        }
    }

    /// Counts a task answered by `member`; false, and nothing changed, when none is outstanding there: the
    /// reply is a duplicate, or of a task sent by somebody else.
    #[inline]
    pub fn answered(&mut self, member: Member) -> bool {
        self.of(member).answered()
    }

    /// Tasks sent to `member` and not answered, over all cores.
    #[inline]
    #[must_use]
    pub fn outstanding(&self, member: Member) -> u32 {
        self.of(member).outstanding()
    }

    /// Takes a report as Horus does: load := reported, and the drift is forgotten.
    #[inline]
    pub fn set_load(&mut self, member: Member, load: Load) {
        self.of(member).set_load(load);
    }

    /// Counts a task as answered and takes the member's load, for each report; returns how many came from members that had no task
    /// outstanding.
    #[inline]
    pub fn take_loads(&mut self, reports: &[Report]) -> usize {
        let words = self.words();
        let words = if words.are_alone() { words.alone() } else { words };
        let mut expected = 0;
        for report in reports {
            let words = words.of(report.member);
            expected += usize::from(words.answered());
            words.set_load(report.load);
        }
        reports.len() - expected
    }

    /// Counts a task as answered for each report, and that its member was heard of; what is believed of it stays. Returns how
    /// many came from members that had no task outstanding.
    pub fn take_answers(&mut self, reports: &[Report]) -> usize {
        let words = self.words();
        let mut surplus = 0;
        for report in reports {
            let words = words.of(report.member);
            surplus += usize::from(!words.answered());
            words.note_heard();
        }
        surplus
    }

    /// `member` was heard of; what is believed of it stays.
    pub fn note_heard(&mut self, member: Member) {
        self.of(member).note_heard();
    }

    /// Takes `lost` tasks off the count of those outstanding at `member`.
    pub fn write_off(&mut self, member: Member, lost: u32) {
        let most = self.outstanding_now(member).max(0).cast_unsigned();
        let lost = lost.min(most).min(i32::MAX as u32);
        self.of(member).take_off(lost);
        self.lost[member.index()].fetch_add(lost, Relaxed);
        self.touch(member);
    }

    /// Has `tasks` outstanding at `member`, over all cores, as it tells.
    pub fn set_outstanding(&mut self, member: Member, tasks: u32) {
        let more = tasks.cast_signed().wrapping_sub(self.outstanding_now(member));
        self.of(member).balance(more);
        self.touch(member);
    }

    /// More tasks were answered than sent, over all cores: `surplus` of the answers were to none.
    pub fn take_back(&mut self, member: Member, surplus: u32) {
        self.of(member).balance(surplus.cast_signed());
        self.touch(member);
    }

    /// Cores that have `member` on their idle list. Reads the other cores' words: not for each packet.
    #[must_use]
    pub fn idle_everywhere(&self, member: Member) -> usize {
        let others = self.others.iter().filter(|other| other.idle.shows(member)).count();
        others + usize::from(self.idle.contains(member))
    }

    /// Members that some core has on its idle list, or any may have. Reads the other cores' words: not for each packet.
    #[must_use]
    pub fn idle_anywhere(&self) -> usize {
        let others = self.others.iter().map(|other| other.idle.len()).sum::<usize>();
        let shared = self.peers.as_ref().filter(|peers| peers.sharing().idle);
        self.idle.len() + others + shared.map_or(0, |peers| peers.tokens().full())
    }

    /// Whether `member` may be chosen again since this was last asked.
    #[must_use]
    pub fn take_returned(&mut self, member: Member) -> bool {
        std::mem::take(&mut self.returned[member.index()])
    }

    /// Nothing speaks against `member` being idle, and no core has it on its list. Reads the other cores' words: not for each
    /// packet.
    #[must_use]
    pub fn is_idle_unnoticed(&self, member: Member) -> bool {
        // Where idle members belong to one core, all others take them to have a task.
        let most = if self.peers.is_some() { Load::ONE } else { Load(0) };
        let believed = |reported: &[AtomicU64]| Load(reported[member.index()].load(Relaxed) as u32);
        let heard = self.others.iter().map(|other| believed(&other.reported));
        let least = heard.fold(believed(&self.reported), Load::min);
        let is_shared = self.peers.as_ref().is_some_and(|peers| peers.has_token_of(member));
        least <= most
            && !is_shared
            && self.outstanding_now(member) == 0
            && self.idle_everywhere(member) == 0
    }

    /// A member has so many tokens at most that cores share ([`Peers::set_rows`]).
    pub fn set_rows(&mut self, rows: usize) {
        if let Some(peers) = &mut self.peers {
            peers.set_rows(rows);
        }
    }

    /// What other cores are told and tell; none when there are none.
    #[inline]
    #[must_use]
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.as_deref()
    }

    /// Idle members belong to one core at a time, and this is one of several.
    #[inline]
    #[must_use]
    pub fn shares_idle(&self) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.sharing().idle)
    }

    /// What is believed of a member may have changed: the other cores are to know.
    #[inline]
    pub fn touch(&mut self, member: Member) {
        if let Some(peers) = &mut self.peers {
            peers.touch(member);
        }
    }

    /// Has the other cores told what the pool's policy shares.
    pub fn set_sharing(&mut self, sharing: Sharing) {
        if let Some(peers) = &mut self.peers {
            peers.set_sharing(sharing);
        }
    }

    /// Tells the other cores what has changed; where idle members belong to one core at a time, lets others have them, too: all if
    /// this core keeps up with what comes, else those that it does not need for a burst.
    #[inline]
    pub fn tell(&mut self, pool: usize, sender: &mut Sender, keeps_up: bool) {
        let Some(peers) = &mut self.peers else { return };
        let words = Words::new(&self.reported, &self.own, &self.elsewhere, false);
        if peers.sharing().idle {
            // Those that wait elsewhere need them more.
            let keep = match keeps_up || peers.oldest_elsewhere() < u64::MAX {
                true => 0,
                false => BURST.min(self.active.len() / (self.others.len() + 1)),
            };
            while self.idle.len() > keep
                && let Some(member) = self.idle.take_last()
            {
                // It may have a task before this core hears of it.
                let words = words.of(member);
                if words.belief().total() < Load::ONE.0.into() {
                    words.set_believed(Load::ONE);
                }
                peers.let_go(member);
            }
        }
        peers.tell(pool, words, sender, keeps_up);
    }

    /// Another core (the `other`th of them) told something; true when this core's policy is to know of the member.
    #[inline]
    pub fn hear(&mut self, other: usize, topic: Topic, member: Member, value: u16) -> bool {
        let words = Words::new(&self.reported, &self.own, &self.elsewhere, false);
        let peers = self.peers.as_mut();
        peers.is_some_and(|peers| peers.hear(other, topic, member, value, words))
    }

    /// What another core (the `other`th of them) told last of a member.
    #[must_use]
    pub fn told_by(&self, other: usize, member: Member) -> u16 {
        self.peers.as_ref().map_or(0, |peers| peers.told_by(other, member))
    }
}

/// Memory for one pool.
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

impl Others {
    fn new(region: &Arc<Region>, layout: &Layout, core: usize, pool: usize) -> Self {
        let (reported, own) = own(region, layout, core, pool);
        Self { reported, own, idle: IdleList::of(region, layout, core, pool) }
    }
}

/// What a core has of a pool's members to itself.
fn own(
    region: &Arc<Region>,
    layout: &Layout,
    core: usize,
    pool: usize,
) -> (Slice<AtomicU64>, Slice<Own>) {
    let (first, members) = (layout.pools[pool].first_member, layout.pools[pool].members);
    let core = &layout.cores[core];
    let own = core.own + size_of::<Own>() * first;
    (region.slice(core.reported + 8 * first, members), region.slice(own, members))
}

impl Parts<'_> {
    /// No other core sends to these members, and nobody knows their true queues.
    #[inline(always)]
    #[must_use]
    pub fn are_alone(&self) -> bool {
        self.words.are_alone() && self.queues.is_none()
    }

    /// The same parts, with what [`Parts::are_alone`] says known to the compiler.
    #[inline(always)]
    #[must_use]
    pub fn alone(self) -> Self {
        Self { words: self.words.alone(), queues: None, ..self }
    }

    /// Idle members belong to one core at a time, and this is one of several.
    #[inline(always)]
    #[must_use]
    pub fn shares_idle(&self) -> bool {
        self.peers.is_some_and(|peers| peers.sharing().idle)
    }

    /// Takes an idle member: of this core's own, or of those that any core may take.
    #[inline]
    pub fn take_idle(&mut self) -> Option<Member> {
        if let Some(member) = self.idle.take_last() {
            return Some(member);
        }
        let peers = self.peers?;
        loop {
            let (member, _) = peers.take_token()?;
            if self.is_active(member) {
                self.words.of(member).set_believed(Load(0));
                return Some(member);
            }
        }
    }

    /// As [`View::is_active`].
    #[inline(always)]
    #[must_use]
    pub fn is_active(&self, member: Member) -> bool {
        self.place[member.index()] != NOWHERE
    }

    /// As [`View::rate`].
    #[inline(always)]
    #[must_use]
    pub fn rate(&self, member: Member) -> f64 {
        self.rates[member.index()]
    }

    /// As [`View::probe`].
    #[inline(always)]
    #[must_use]
    pub fn probe(&self, member: Member) -> u32 {
        match self.queues {
            Some(queues) => queues[member.index()].load(Relaxed),
            None => self.words.of(member).outstanding(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(view.estimate(A), 2 << 16);
        view.set_load(A, Load::tasks(5));
        assert_eq!(view.load_and_drift(A), (Load::tasks(5), Load(0)));
        view.sent(A);
        assert_eq!(view.estimate(A), 6 << 16);
        assert_eq!(view.estimate(B), 0);
    }

    #[test]
    fn drift_saturates() {
        let mut view = view(1);
        view.add_drift(A, Load(u32::MAX - 1));
        view.sent(A);
        view.sent(A);
        assert_eq!(view.load_and_drift(A).1, Load(u32::MAX));
        view.set_load(A, Load::tasks(u16::MAX));
        view.add_drift(A, Load(u32::MAX));
        assert_eq!(view.estimate(A), u64::from(u32::MAX) + (0xFFFF << 16));
    }

    #[test]
    fn each_core_has_its_drift_and_all_share_the_reports() {
        let mut views = View::heap(1, 2);
        let mut second = views.pop().unwrap();
        let mut first = views.pop().unwrap();
        first.sent(A);
        second.sent(A);
        second.sent(A);
        assert_eq!((first.estimate(A), second.estimate(A)), (1 << 16, 2 << 16));
        assert_eq!(first.outstanding(A), 3);
        // The reply passes the first core; the second forgets its drift without being told.
        first.answered(A);
        first.set_load(A, Load::tasks(1));
        assert_eq!((first.estimate(A), second.estimate(A)), (1 << 16, 1 << 16));
        assert_eq!(second.outstanding(A), 2);
        // Answers may pass another core than their tasks did.
        first.answered(A);
        first.answered(A);
        assert_eq!((first.outstanding(A), second.outstanding(A)), (0, 0));
    }

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
