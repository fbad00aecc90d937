//! Who is alive, and what can be believed of what members report: looked at between bursts, never for a packet.
//!
//! Each core looks at all members within a lap of some milliseconds, a part of them at each tick.
//!
//! - A worker of a server that registers its workers gets no tasks until it has registered.
//! - A worker that registered and falls silent is taken out (Horus, NSDI 2024, A.3: a fixed timeout on what servers say of
//!   themselves), and comes back when it is heard of again.
//! - A server whose tasks go unanswered, or that nothing was heard of for long, is asked by ARP whether it is there; one
//!   that does not answer is taken out with all of its workers until it does, whether they registered or not.
//! - Clients and gateways that packets go to are asked now and then, too.
//! - Tasks that are lost on their way are written off, so that no count stays for ever.
//! - A worker can't have more tasks than it was sent, and can't be idle while a task is due that was sent to it a lap ago.
//!   Reports that say so are replaced by what was sent (unless other schedulers send to the pool's workers as well).
//!
//! At a spine members are leaves, and their signals take the place of reports: what a leaf has is what it tells and was sent since,
//! and a silent one is taken out, whether it was ever heard of or not. As many workers as it tells of are its weight.
//!
//! Whether a worker is registered, silent or out of reach is one word that all cores share ([`Presence`]); each core looks
//! at the words and takes such workers out of its own choice, so no core writes another's lists. That a worker was heard of
//! shows in the number of its reports, which replies raise anyway: they cost nothing more.

use arrayvec::ArrayVec;

use super::Network;
use crate::policy::{Core, Dispatcher};
use crate::state::Presence;
use crate::state::neighbour::{PORT_SETS, Slot};
use crate::state::{Counter, Counters, Load, Member, Neighbours, Report};

/// Looks at each worker within a timeout: a worker is silent for at most so much of it too long.
const LOOKS: u64 = 8;
/// A lap takes so long at most.
const LAP_MOST_NS: u64 = 10_000_000;
/// A lap takes so long at least, however short the timeout is.
const LAP_LEAST_NS: u64 = 100_000;
/// A server with tasks that nothing was heard of for so long is asked whether it is there.
const UNANSWERED_MS: u32 = 1_000;
/// Anybody else whom packets go to is asked when it was not heard of for so long (Linux: `base_reachable_time_ms`).
const REACHABLE_MS: u32 = 30_000;
/// A server that was never known is taken out when it was asked for in every way so many times.
const FAILURES: u8 = 5;
/// Hosts to be asked at once.
const PROBES_MAX: usize = 64;
/// A cache of neighbours is gone through in so many ticks.
const SWEEP_TICKS: usize = PORT_SETS;
/// Looks with news of a member over which tasks that never leave its count are lost.
const LOST_LOOKS: u8 = 64;
/// Without any news of a member for so long, what it has is lost.
const LOST_NS: u64 = 10_000_000_000;
/// Looks in a row at which a member's reports contradict what is due from it before they are doubted.
const CONTRADICTIONS: u8 = 3;
/// Looks in a row at which more was answered than sent before the answers are found to be surplus.
const SURPLUS_LOOKS: u8 = 3;
/// Reports are doubted for so long at first, and twice as long each time, up to the second.
const DOUBT_NS: (u64, u64) = (1_000_000_000, 64_000_000_000);
/// Looks with news of a doubted member over which tasks that it knows nothing of are lost, once the doubt is over.
const DOUBTED_LOOKS: u8 = 16;
/// A report of so many tasks is compared at once with what the member was sent; of fewer, at the next look.
const IMPLAUSIBLE: Load = Load::tasks(64);

/// One member as one core sees it.
#[derive(Clone, Copy, Debug)]
struct Watch {
    pool: u16,
    member: Member,
    /// Index of its server's next hop.
    hop: u16,
    /// Its server registers its workers.
    registers: bool,
    /// It is taken out of this core's choice, because it is silent or out of reach.
    out: bool,
    /// The agent on this core, or whoever embeds the library, says that it takes no tasks.
    away: bool,
    /// A change says that it is to get no new tasks, whatever else is said of it.
    drained: bool,
    /// This core looks after its counts: one core does for each member.
    is_ours: bool,
    /// Looks in a row at which its reports said less than is due.
    contradictions: u8,
    /// Looks in a row at which it had answered more than it was sent, by all cores; and by how many at least.
    surplus: (u8, u32),
    /// Looks with news since tasks were last written off.
    news: u8,
    /// Number of its reports when last looked at.
    reports: u32,
    /// What it had outstanding then.
    outstanding: u32,
    /// Least number of tasks in flight seen at a look with news.
    least_in_flight: u32,
    /// When the number of its reports was last seen to have moved, 0 when it never was.
    heard_ns: u64,
}

impl Watch {
    /// Nothing speaks against it.
    fn may_be_chosen(&self) -> bool {
        !(self.out || self.away || self.drained)
    }

    /// Of a place that nobody has.
    fn absent(pool: usize, member: Member, core: Core) -> Self {
        Self {
            pool: pool as u16,
            member,
            hop: NO_HOP,
            registers: false,
            out: false,
            away: false,
            drained: false,
            is_ours: core.looks_after(member),
            contradictions: 0,
            surplus: (0, 0),
            news: 0,
            reports: 0,
            outstanding: 0,
            least_in_flight: u32::MAX,
            heard_ns: 0,
        }
    }

    /// It has answered more tasks than it was sent, at this look and at those before: one core alone does not see what passed
    /// another.
    fn more_answered(&mut self, outstanding: i32) -> bool {
        let (looks, least) = self.surplus;
        let more = outstanding.min(0).unsigned_abs();
        self.surplus = match (more, looks) {
            (0, _) => (0, 0),
            (_, 0) => (1, more),
            _ => (looks + 1, least.min(more)),
        };
        self.surplus.0 >= SURPLUS_LOOKS
    }
}

/// The next hop to nobody.
const NO_HOP: u16 = u16::MAX;

/// What is thought of the reports of a member that contradicted itself.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// 0 if it was never doubted.
    until_ns: u64,
    /// Duration of the next one.
    next_ns: u64,
    /// Tasks that the member itself reported last, while it is doubted.
    said: Option<u32>,
    /// Looks with news while it is doubted.
    looks: u8,
    /// Least number of tasks seen then of which it knows nothing.
    least_unknown: u32,
}

impl Doubt {
    const NONE: Self =
        Self { until_ns: 0, next_ns: DOUBT_NS.0, said: None, looks: 0, least_unknown: u32::MAX };
}

/// The next hop to some servers.
#[derive(Clone, Copy, Debug)]
struct Hop {
    port: u8,
    slot: Slot,
    address: u32,
    /// Somebody behind it was heard of in this lap.
    heard: bool,
    /// Somebody behind it has tasks.
    has_tasks: bool,
    /// It has answered since its link came up.
    is_known: bool,
    /// Times that it was asked for in every way and did not answer, before it was known.
    failures: u8,
}

impl Hop {
    fn new(port: u8, slot: Slot, address: u32) -> Self {
        let (heard, has_tasks, is_known, failures) = (false, false, false, 0);
        Self { port, slot, address, heard, has_tasks, is_known, failures }
    }
}

/// A host to be asked by ARP whether it is where it is believed to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourProbe {
    /// Index of the port that leads to it.
    pub port: u8,
    /// Its place among the neighbours.
    pub slot: Slot,
    /// Its address.
    pub address: u32,
}

/// What one core does about silence, loss and contradictions.
#[derive(Debug)]
pub struct Liveness {
    timeout_ns: u64,
    lap_ns: u64,
    lap_started_ns: u64,
    /// The next member of this lap.
    cursor: usize,
    /// Nobody's silence counts before this.
    heard_before_ns: u64,
    watches: Vec<Watch>,
    /// Index of each pool's first watch.
    first: Vec<usize>,
    hops: Vec<Hop>,
    /// So many of them, the first ones, are gateways'.
    gateways: usize,
    /// Watches of members that are taken out: they are looked at more often.
    out: Vec<usize>,
    /// Doubt of each watch's member, so that a reply finds its own at once.
    doubts: Vec<Doubt>,
    /// No member is doubted from this time on.
    doubted_until_ns: u64,
    /// By pool: other schedulers send to these workers, too.
    shared: Vec<bool>,
    /// Members are leaves.
    is_spine: bool,
    probes: ArrayVec<NeighbourProbe, PROBES_MAX>,
    /// The next set of every port's cache of neighbours to be gone through.
    sweep: usize,
    ports: usize,
}

impl Liveness {
    /// Registered workers of these pools are silent after `timeout_ns` without a word; never, when that is 0.
    #[must_use]
    pub fn new(timeout_ns: u64, network: &Network, dispatchers: &mut [Dispatcher]) -> Self {
        // Nobody is behind it, but it is asked as the others are.
        let gateway = network.gateway();
        let gateway = gateway.map(|(port, slot, address)| Hop::new(port as u8, slot, address));
        let lap_ns = match timeout_ns {
            0 => LAP_MOST_NS,
            timeout_ns => (timeout_ns / LOOKS).clamp(LAP_LEAST_NS, LAP_MOST_NS),
        };
        let mut liveness = Self {
            timeout_ns,
            lap_ns,
            lap_started_ns: 0,
            cursor: 0,
            heard_before_ns: 0,
            first: Vec::new(),
            gateways: usize::from(gateway.is_some()),
            hops: gateway.into_iter().collect(),
            out: Vec::new(),
            doubts: Vec::new(),
            doubted_until_ns: 0,
            shared: Vec::new(),
            is_spine: network.is_spine(),
            watches: Vec::new(),
            probes: ArrayVec::new(),
            sweep: 0,
            ports: network.ports().len(),
        };
        let places = dispatchers.iter().map(|dispatcher| dispatcher.view().members()).sum();
        liveness.make_room(dispatchers.len(), places, network.servers().count());
        for dispatcher in dispatchers {
            liveness.add_pool(network, dispatcher);
        }
        liveness
    }

    /// Takes memory for so many pools, places for members in all of them, and servers.
    pub(super) fn make_room(&mut self, pools: usize, places: usize, servers: usize) {
        fn reserve<T>(list: &mut Vec<T>, count: usize) {
            list.reserve(count.saturating_sub(list.len()));
        }
        reserve(&mut self.first, pools);
        reserve(&mut self.shared, pools);
        reserve(&mut self.hops, servers + self.gateways);
        reserve(&mut self.watches, places);
        reserve(&mut self.out, places);
        reserve(&mut self.doubts, places);
    }

    /// Watches the members of one more pool.
    pub(super) fn add_pool(&mut self, network: &Network, dispatcher: &mut Dispatcher) {
        let (pool, out) = (self.first.len(), self.out.len());
        self.first.push(self.watches.len());
        self.shared.push(false);
        for member in (0..dispatcher.view().members() as u16).map(Member) {
            self.watches.push(Watch::absent(pool, member, dispatcher.core()));
            self.doubts.push(Doubt::NONE);
            self.watch_worker(pool, member, network, dispatcher);
        }
        // A policy's review may draw random numbers: only where members were taken out.
        if self.out.len() > out {
            dispatcher.review_members();
        }
    }

    /// Watches whoever has a member's place in this network, if anybody has; what was known of the place is forgotten, unless
    /// its worker is the one that was there. A review of the pool's members is to follow.
    pub(super) fn watch_worker(
        &mut self,
        pool: usize,
        member: Member,
        network: &Network,
        dispatcher: &mut Dispatcher,
    ) {
        let at = self.first[pool] + member.index();
        let target = network.members(pool).get(member.index()).filter(|target| target.is_there());
        let Some(target) = target else {
            self.unwatch(at);
            return;
        };
        let slot = target.next_hop.slot;
        if self.watches[at].hop == NO_HOP {
            self.watches[at].reports = dispatcher.view().heard(member);
        }
        let hop = self.hop_to(slot).unwrap_or_else(|| {
            let server = network.servers().find(|server| server.slot == slot);
            let address = server.map_or(0, |server| server.next_hop);
            let hop = Hop::new(target.next_hop.port, slot, address);
            match self.hop_to(Slot::NONE) {
                Some(free) => {
                    self.hops[free] = hop;
                    free
                }
                None => {
                    self.hops.push(hop);
                    self.hops.len() - 1
                }
            }
        });
        let was = std::mem::replace(&mut self.watches[at].hop, hop as u16);
        self.leave_hop(was);
        let worker = network.worker(target.worker);
        let registers = worker.is_some_and(|worker| network.server(worker.server).registers);
        self.watches[at].registers = registers;
        // A leaf that joins others gets tasks once it has told its workers. At a spine's start none has told.
        let tells = |member| dispatcher.view().workers_of(Member(member)).is_some();
        let joins = || (0..dispatcher.view().members() as u16).any(tells);
        if registers || (self.is_spine && joins()) {
            self.await_registration(at, dispatcher);
        }
    }

    /// Takes a worker that never registered out of this core's choice.
    fn await_registration(&mut self, at: usize, dispatcher: &mut Dispatcher) {
        let member = self.watches[at].member;
        let (from, to) = (Presence::Configured, Presence::Unregistered);
        dispatcher.view().change_presence(member, from, to);
        if dispatcher.view().presence(member) == to && !self.watches[at].out {
            self.watches[at].out = true;
            self.out.push(at);
            dispatcher.view_mut().set_active(member, false);
        }
    }

    /// Index of the next hop to servers that is at this place among the neighbours.
    fn hop_to(&self, slot: Slot) -> Option<usize> {
        let servers = self.hops.iter().enumerate().skip(self.gateways);
        servers.filter(|(_, hop)| hop.slot == slot).map(|(at, _)| at).next()
    }

    /// Nobody has the place any more.
    fn unwatch(&mut self, at: usize) {
        let Watch { pool, member, hop, is_ours, .. } = self.watches[at];
        self.watches[at] = Watch { is_ours, ..Watch::absent(pool.into(), member, Core::ONLY) };
        self.out.retain(|&out| out != at);
        self.doubts[at] = Doubt::NONE;
        self.leave_hop(hop);
    }

    /// Asks no more for a next hop that leads to nobody.
    fn leave_hop(&mut self, hop: u16) {
        let at = usize::from(hop);
        let is_used = at < self.gateways || self.watches.iter().any(|watch| watch.hop == hop);
        if let Some(hop) = self.hops.get_mut(at).filter(|_| !is_used) {
            *hop = Hop::new(0, Slot::NONE, 0);
        }
    }

    /// Other schedulers send tasks to the workers of a pool, too: their reports are not held against what this node sent.
    pub fn set_shared(&mut self, pool: usize, shared: bool) {
        self.shared[pool] = shared;
    }

    /// The timeout in milliseconds, as acknowledgements tell it.
    #[must_use]
    pub fn timeout_ms(&self) -> u16 {
        (self.timeout_ns / 1_000_000).min(u64::from(u16::MAX)) as u16
    }

    /// A worker says that it is there.
    pub(super) fn registered(
        &mut self,
        pool: usize,
        member: Member,
        dispatcher: &mut Dispatcher,
        counters: &Counters,
    ) {
        note_return(member, Presence::Silent, Presence::Registered, dispatcher, counters);
        dispatcher.view().set_presence(member, Presence::Registered);
        self.readmit(self.first[pool] + member.index(), dispatcher);
    }

    /// The next host that is to be asked whether it is there.
    pub(super) fn next_neighbour_probe(&mut self) -> Option<NeighbourProbe> {
        self.probes.pop()
    }

    /// This host is to be asked at once, unless too many are already.
    pub(super) fn probe(&mut self, probe: NeighbourProbe) {
        let _ = self.probes.try_push(probe);
    }

    /// A host did not answer: the workers behind it are out of reach, until it does.
    pub(super) fn lose_next_hop(
        &mut self,
        slot: Slot,
        dispatchers: &mut [Dispatcher],
        neighbours: &Neighbours,
        counters: &Counters,
    ) {
        let gateway = || self.hops.iter().position(|hop| hop.slot == slot);
        let Some(hop) = self.hop_to(slot).or_else(gateway) else { return };
        let next = &mut self.hops[hop];
        if !neighbours.is_link_up(usize::from(next.port)) {
            return; // nobody is there, and nothing is known of this one
        }
        // One that starts together with the node, or with its link, may take a while.
        next.failures = next.failures.saturating_add(1);
        if !next.is_known && next.failures < FAILURES {
            return;
        }
        for at in 0..self.watches.len() {
            let Watch { pool, member, hop: own, .. } = self.watches[at];
            let dispatcher = &mut dispatchers[usize::from(pool)];
            let was = dispatcher.view().presence(member);
            if usize::from(own) == hop
                && matches!(was, Presence::Configured | Presence::Registered)
                && dispatcher.view().change_presence(member, was, Presence::Unreachable)
            {
                counters.add(Counter::WorkersLost, 1);
                self.take_out(at, dispatcher);
                dispatcher.write_off(member, u32::MAX);
            }
        }
    }

    /// Looks at the members that are due; true when one came back.
    pub(super) fn tick(
        &mut self,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        neighbours: &Neighbours,
        counters: &Counters,
    ) -> bool {
        let returned = self.look_at_out(now_ns, dispatchers, neighbours, counters);
        let elapsed = now_ns.saturating_sub(self.lap_started_ns);
        // A core that was held up has not heard of anybody meanwhile: their time starts anew.
        if elapsed > 2 * self.lap_ns.max(self.timeout_ns / LOOKS) {
            self.heard_before_ns = now_ns;
        }
        let share = elapsed as f64 / self.lap_ns as f64;
        let due = ((self.watches.len() as f64 * share) as usize).min(self.watches.len());
        while self.cursor < due {
            self.look_at(self.cursor, now_ns, dispatchers, counters);
            self.cursor += 1;
        }
        if elapsed >= self.lap_ns {
            (self.lap_started_ns, self.cursor) = (now_ns, 0);
            self.end_lap(now_ns, neighbours);
        }
        self.sweep(now_ns, neighbours);
        returned
    }

    fn look_at(
        &mut self,
        at: usize,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        counters: &Counters,
    ) {
        let watch = &mut self.watches[at];
        let (pool, member) = (usize::from(watch.pool), watch.member);
        let dispatcher = &mut dispatchers[pool];
        let view = dispatcher.view();
        if watch.hop == NO_HOP {
            return;
        }
        let (presence, reports) = (view.presence(member), view.heard(member));
        let outstanding = view.outstanding_now(member);
        if watch.is_ours && !self.is_spine && watch.more_answered(outstanding) {
            let surplus = std::mem::take(&mut watch.surplus).1;
            dispatcher.take_back(member, surplus);
            counters.add(Counter::SurplusReplies, surplus.into());
        }
        let watch = &mut self.watches[at];
        let outstanding = outstanding.max(0).cast_unsigned();
        let hop = &mut self.hops[usize::from(watch.hop)];
        hop.has_tasks |= outstanding > 0;
        hop.heard |= watch.reports != reports;
        match (self.is_spine, watch.is_ours) {
            (true, _) => self.weigh(at, dispatcher),
            (false, true) => self.judge(at, reports, outstanding, now_ns, dispatcher),
            (false, false) => {}
        }
        let watch = &mut self.watches[at];
        watch.outstanding = outstanding;
        if watch.out {
            // Looked at elsewhere; what another core sent it until it noticed is lost, too.
            if outstanding > 0 && watch.is_ours && presence != Presence::Registered {
                dispatcher.write_off(member, outstanding);
            }
            return;
        }
        if watch.reports != dispatcher.view().heard(member) || watch.heard_ns == 0 {
            // Another core may have registered it and not yet taken its report.
            (watch.reports, watch.heard_ns) = (dispatcher.view().heard(member), now_ns.max(1));
        }
        let silent_ns = now_ns.saturating_sub(watch.heard_ns.max(self.heard_before_ns));
        match presence {
            Presence::Configured if self.is_spine => {
                // It is to speak for itself from now on.
                return dispatcher.view().set_presence(member, Presence::Registered);
            }
            Presence::Configured => return,
            Presence::Registered if self.timeout_ns == 0 || silent_ns < self.timeout_ns => return,
            Presence::Registered => {
                // The core that is first to notice counts it and writes off what the worker had, of all cores.
                if dispatcher.view().change_presence(member, presence, Presence::Silent) {
                    counters.add(Counter::WorkersLost, 1);
                    if self.is_spine {
                        counters.add(Counter::WrittenOff, outstanding.into());
                    }
                    dispatcher.write_off(member, u32::MAX);
                }
            }
            Presence::Silent
            | Presence::Unreachable
            | Presence::Absent
            | Presence::Unregistered => {}
        }
        self.take_out(at, dispatcher);
    }

    /// Takes over from an earlier run whether a worker had registered and was silent.
    pub(super) fn take_over(
        &mut self,
        pool: usize,
        member: Member,
        presence: Presence,
        dispatcher: &mut Dispatcher,
    ) {
        let at = self.first[pool] + member.index();
        match presence {
            // The configuration may have changed meanwhile.
            _ if !self.watches[at].registers => {}
            Presence::Registered => {
                dispatcher.view().set_presence(member, presence);
                self.readmit(at, dispatcher);
            }
            Presence::Silent => {
                dispatcher.view().set_presence(member, presence);
                self.take_out(at, dispatcher);
            }
            _ => {}
        }
    }

    /// Takes a member out of this core's choice.
    fn take_out(&mut self, at: usize, dispatcher: &mut Dispatcher) {
        let watch = &mut self.watches[at];
        if !watch.out {
            watch.out = true;
            dispatcher.set_active(watch.member, false);
            self.out.push(at);
        }
    }

    /// Takes what a leaf told of its workers: they are its weight.
    fn weigh(&mut self, at: usize, dispatcher: &mut Dispatcher) {
        let watch = &mut self.watches[at];
        let member = watch.member;
        let Some(workers) = dispatcher.view().workers_of(member) else { return };
        if watch.away != (workers == 0) {
            watch.away = workers == 0;
            dispatcher.set_active(member, watch.may_be_chosen());
        }
        if workers > 0 && dispatcher.view().rate(member) != f64::from(workers) {
            dispatcher.view_mut().set_rate(member, f64::from(workers));
            dispatcher.review_members();
        }
    }

    /// Holds what a member reported against what it was sent.
    fn judge(
        &mut self,
        at: usize,
        reports: u32,
        outstanding: u32,
        now_ns: u64,
        dispatcher: &mut Dispatcher,
    ) {
        let watch = &mut self.watches[at];
        let (pool, member) = (usize::from(watch.pool), watch.member);
        let believed = dispatcher.view().believed_most(member).whole_tasks();
        let answered = reports.wrapping_sub(watch.reports);
        // Tasks that are lost on their way never leave the number of those in flight.
        if answered > 0 {
            watch.least_in_flight = watch.least_in_flight.min(outstanding.saturating_sub(believed));
            watch.news += 1;
        }
        let unheard_ns = now_ns.saturating_sub(watch.heard_ns.max(self.heard_before_ns));
        let unknown = match self.doubts[at].until_ns {
            0 => 0,
            _ => self.unknown(at, answered > 0, outstanding, now_ns, dispatcher),
        };
        let watch = &mut self.watches[at];
        let lost = if unknown > 0 {
            (watch.news, watch.least_in_flight, watch.contradictions) = (0, u32::MAX, 0);
            unknown
        } else if watch.news >= LOST_LOOKS {
            watch.news = 0;
            std::mem::replace(&mut watch.least_in_flight, u32::MAX)
        } else if answered == 0 && watch.heard_ns > 0 && unheard_ns > LOST_NS {
            outstanding
        } else {
            0
        };
        if lost > 0 {
            dispatcher.write_off(member, lost);
        }
        if self.shared[pool] || watch.out {
            return;
        }
        // What was outstanding at the last look and has not been answered is at the member by now.
        let due = watch.outstanding.saturating_sub(answered);
        if answered > 0 && believed < due.min(outstanding) {
            watch.contradictions += 1;
            if watch.contradictions == CONTRADICTIONS {
                watch.contradictions = 0;
                self.doubt(at, now_ns);
            }
        } else if answered > 0 {
            watch.contradictions = 0;
        } else if believed > outstanding && watch.outstanding == outstanding {
            // Nothing came or went since the last look, so that it is no report on its way.
            let load = Load::tasks(outstanding.min(u32::from(u16::MAX)) as u16);
            dispatcher.refresh(&Report::new(member, load, 0));
            self.watches[at].reports = dispatcher.view().heard(member);
        }
    }

    /// Tasks of which a member that was doubted has known nothing, for as long as it was: they were lost on their way, and its
    /// reports were true. What it is believed to have hides that meanwhile.
    #[cold]
    fn unknown(
        &mut self,
        at: usize,
        news: bool,
        outstanding: u32,
        now_ns: u64,
        dispatcher: &Dispatcher,
    ) -> u32 {
        let (member, doubt) = (self.watches[at].member, &mut self.doubts[at]);
        if let Some(said) = doubt.said.filter(|_| news) {
            let drift = dispatcher.view().load_and_drift(member).1.whole_tasks();
            let unknown = outstanding.saturating_sub(said + drift);
            doubt.least_unknown = doubt.least_unknown.min(unknown);
            doubt.looks = doubt.looks.saturating_add(1);
        }
        if now_ns < doubt.until_ns || doubt.looks < DOUBTED_LOOKS {
            return 0;
        }
        (doubt.said, doubt.looks) = (None, 0);
        std::mem::replace(&mut doubt.least_unknown, u32::MAX).min(outstanding)
    }

    fn doubt(&mut self, at: usize, now_ns: u64) {
        let doubt = &mut self.doubts[at];
        if now_ns >= doubt.until_ns {
            let until_ns = now_ns.saturating_add(doubt.next_ns);
            let next_ns = (2 * doubt.next_ns).min(DOUBT_NS.1);
            *doubt = Doubt { until_ns, next_ns, ..Doubt::NONE };
            self.doubted_until_ns = self.doubted_until_ns.max(until_ns);
        }
    }

    /// Replaces what can't be true of a pool's reports by what the members were sent and have not answered.
    #[inline(always)]
    pub(super) fn bound(&mut self, pool: usize, dispatcher: &Dispatcher, reports: &mut [Report]) {
        let most = reports.iter().fold(0, |all, report| all | report.load.0);
        if most >= IMPLAUSIBLE.0 || self.lap_started_ns < self.doubted_until_ns {
            self.bound_each(pool, dispatcher, reports);
        }
    }

    #[cold]
    #[inline(never)]
    fn bound_each(&mut self, pool: usize, dispatcher: &Dispatcher, reports: &mut [Report]) {
        if self.shared[pool] {
            return;
        }
        let doubts = &mut self.doubts[self.first[pool]..];
        for report in reports {
            let member = report.member;
            // Those of this run that stand before it are few, and not counted as answered yet.
            let left =
                dispatcher.view().outstanding_now(member).max(0).cast_unsigned().saturating_sub(1);
            let left = Load::tasks(left.min(u32::from(u16::MAX)) as u16);
            if report.load >= IMPLAUSIBLE {
                report.load = report.load.min(left);
            }
            let doubt = &mut doubts[member.index()];
            if self.lap_started_ns < doubt.until_ns {
                doubt.said = Some(report.load.whole_tasks());
                report.load = report.load.max(left);
            }
        }
    }

    /// Whoever was heard of is where it is believed to be, and whoever should have been is asked.
    fn end_lap(&mut self, now_ns: u64, neighbours: &Neighbours) {
        let now_ms = to_ms(now_ns);
        for hop in &mut self.hops {
            if hop.slot == Slot::NONE {
                continue;
            }
            let (heard, has_tasks) = (hop.heard, hop.has_tasks);
            (hop.heard, hop.has_tasks) = (false, false);
            if neighbours.mac(hop.slot).is_none() {
                // Asked for already, now and then.
                if !neighbours.is_link_up(usize::from(hop.port)) {
                    (hop.is_known, hop.failures) = (false, 0);
                }
                continue;
            }
            (hop.is_known, hop.failures) = (true, 0);
            if heard {
                neighbours.confirm(hop.slot, now_ms);
                continue;
            }
            let patience = if has_tasks { UNANSWERED_MS } else { REACHABLE_MS };
            if neighbours.age_ms(hop.slot, now_ms).is_none_or(|age| age > patience) {
                let &mut Hop { port, slot, address, .. } = hop;
                let _ = self.probes.try_push(NeighbourProbe { port, slot, address });
            }
        }
    }

    /// Goes through a part of the caches of neighbours, for hosts that packets go to and that were not heard of for long.
    fn sweep(&mut self, now_ns: u64, neighbours: &Neighbours) {
        self.sweep = (self.sweep + 1) % SWEEP_TICKS;
        let now_ms = to_ms(now_ns);
        for port in 0..self.ports {
            for (slot, address) in neighbours.to_confirm(port, self.sweep, now_ms, REACHABLE_MS) {
                self.probe(NeighbourProbe { port: port as u8, slot, address });
            }
        }
    }

    fn look_at_out(
        &mut self,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        neighbours: &Neighbours,
        counters: &Counters,
    ) -> bool {
        let before = self.out.len();
        for at in (0..before).rev() {
            let at = self.out[at];
            let watch = &mut self.watches[at];
            let (member, hop) = (watch.member, self.hops[usize::from(watch.hop)]);
            let dispatcher = &mut dispatchers[usize::from(watch.pool)];
            let reports = dispatcher.view().heard(member);
            let heard = watch.reports != reports;
            match dispatcher.view().presence(member) {
                Presence::Silent if heard => {
                    let (from, to) = (Presence::Silent, Presence::Registered);
                    note_return(member, from, to, dispatcher, counters);
                }
                Presence::Unregistered if self.is_spine && heard => {
                    dispatcher.view().set_presence(member, Presence::Registered);
                }
                Presence::Unreachable if neighbours.mac(hop.slot).is_some() => {
                    let from = Presence::Unreachable;
                    if watch.registers {
                        // Its host is back; whether the worker is, its next report shows.
                        watch.reports = reports;
                        dispatcher.view().change_presence(member, from, Presence::Silent);
                    } else {
                        note_return(member, from, Presence::Configured, dispatcher, counters);
                    }
                }
                _ => {}
            }
            let presence = dispatcher.view().presence(member);
            if matches!(presence, Presence::Configured | Presence::Registered) {
                (watch.reports, watch.heard_ns) = (reports, now_ns.max(1));
                self.readmit(at, dispatcher);
            }
        }
        self.out.len() < before
    }

    /// Takes a worker that was out into this core's choice again.
    fn readmit(&mut self, at: usize, dispatcher: &mut Dispatcher) {
        if self.watches[at].out {
            if self.is_spine {
                // A leaf that was started anew may have no workers yet.
                self.weigh(at, dispatcher);
            }
            let watch = &mut self.watches[at];
            watch.out = false;
            self.out.retain(|&out| out != at);
            dispatcher.set_active(watch.member, watch.may_be_chosen());
        }
    }

    /// Whoever else knows of a member says that it takes tasks, or none; true when it may be chosen now. One that is out may be
    /// when it is heard of again.
    pub(super) fn note_away(&mut self, pool: usize, member: Member, away: bool) -> bool {
        let watch = &mut self.watches[self.first[pool] + member.index()];
        watch.away = away;
        watch.may_be_chosen()
    }

    /// Nothing speaks against choosing a member.
    pub(super) fn may_be_chosen(&self, pool: usize, member: Member) -> bool {
        self.watches[self.first[pool] + member.index()].may_be_chosen()
    }

    /// As [`Liveness::note_away`], for a change that drains it or lets it be chosen again.
    pub(super) fn note_drained(&mut self, pool: usize, member: Member, drained: bool) -> bool {
        let watch = &mut self.watches[self.first[pool] + member.index()];
        watch.drained = drained;
        watch.may_be_chosen()
    }
}

/// Milliseconds, as the table of neighbours has them.
pub(super) fn to_ms(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}

/// The core that is first to hear of a worker that was out counts it, and writes off what it was sent too late.
fn note_return(
    member: Member,
    from: Presence,
    to: Presence,
    dispatcher: &mut Dispatcher,
    counters: &Counters,
) {
    if dispatcher.view().change_presence(member, from, to) {
        counters.add(Counter::WorkersBack, 1);
        dispatcher.write_off(member, u32::MAX);
    }
}
