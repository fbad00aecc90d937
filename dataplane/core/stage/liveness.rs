//! Liveness of workers and hosts, and plausibility of load reports. The checks run between bursts. A reply
//! costs only a comparison of its load, unless the load is implausible or a member is doubted.
//!
//! Each core checks all members within a *lap* of 0.1 to 10 ms, a part of them at each tick. A member that
//! is *out* cannot be chosen by the policy.
//!
//! A *watch* is one core's state of one member, and a *hop* its state of the next hop to some servers.
//!
//! - A worker gets no tasks until it has registered, if its server registers its workers.
//! - A registered worker that falls silent is taken out (Horus, NSDI 2024, A.3: a fixed timeout on the servers'
//!   heartbeats). It comes back with its next message.
//! - A server is probed by ARP if its tasks stay unanswered, or after a long silence. Without an answer it is
//!   taken out with all of its workers, registered or not. An answer brings them back.
//! - Clients and gateways that receive packets are also probed from time to time.
//! - Tasks lost on their way are written off, so no count stays forever.
//! - A worker's load is at most the number of its outstanding tasks, and at least the number sent a lap ago and still
//!   due. The core lowers greater loads to the outstanding tasks. It *doubts* a worker that repeatedly reports too few:
//!   for a time it raises all of its reports to the outstanding tasks. It checks no report if other schedulers also
//!   send to the pool's workers.
//!
//! The core compares small loads with the counts only at checks, because each comparison would slow a reply down. With
//! true reports the checks never change a decision, so the simulator has none.
//!
//! At a spine the members are leaves, and their signals take the place of reports. The load of a leaf is that
//! of its last signal, plus the tasks sent after it. A silent leaf is taken out, even if it never sent a
//! signal. Its weight is the number of workers in its signals.
//!
//! The state of a worker (registered, silent, unreachable) is one word that all cores share ([`MemberPresence`]).
//! Each core reads the words and takes silent and unreachable workers out of its own choice, so no core writes
//! another's lists. A message of a worker increases the number of its reports. Replies increase that number anyway, so
//! detection costs nothing more.

use arrayvec::ArrayVec;

use super::Network;
use crate::policy::{Core, Dispatcher};
use crate::state::MemberPresence;
use crate::state::neighbour::{PORT_SETS, REACHABLE_MS, Slot};
use crate::state::{Counter, Counters, Load, Member, Neighbours, Report};

/// Minimum number of checks of each worker within a timeout. The core detects a silence late by at most an eighth of
/// the timeout, or by [`LAP_MIN_NS`] if that is longer.
const CHECKS: u64 = 8;
/// Longest duration of a lap.
const LAP_MAX_NS: u64 = 10_000_000;
/// Shortest duration of a lap, however short the timeout is.
const LAP_MIN_NS: u64 = 100_000;
/// Time without a message after which a server with tasks is probed.
const UNANSWERED_MS: u32 = 1_000;
/// Number of failed resolutions after which a server that never answered is taken out.
const FAILURES: u8 = 5;
/// Maximum number of pending probes.
const PROBES_MAX: usize = 64;
/// Number of ticks in which a neighbour cache is swept once: one set per tick.
const SWEEP_TICKS: usize = PORT_SETS;
/// Number of checks with new reports of a member. Tasks that were in flight at all of these checks are lost, beyond
/// those of [`in_flight_most`].
const LOST_CHECKS: u8 = 64;
/// Minimum round trip to a worker without its service that [`in_flight_most`] assumes. A longer one counts if the
/// policy measures it.
const ROUND_TRIP_NS: u64 = 100_000;
/// Time without any report of a member after which its tasks are lost.
const LOST_NS: u64 = 10_000_000_000;
/// Number of consecutive checks with new reports below the tasks due, after which a member's reports are doubted.
const CONTRADICTIONS: u8 = 3;
/// Number of consecutive checks with more answers than tasks. After these the excess counts as surplus.
const SURPLUS_CHECKS: u8 = 3;
/// Duration of the first doubt about a member's reports, and the longest duration. Each doubt doubles the next one's.
const DOUBT_NS: (u64, u64) = (1_000_000_000, 64_000_000_000);
/// Number of checks with new reports of a doubted member. Tasks missing in all of these reports are lost. The core
/// writes them off once the doubt is over.
const DOUBTED_CHECKS: u8 = 16;
/// Load from which the core compares a report at once with the tasks sent to the member. It compares smaller reports at
/// the next check. A power of two, which [`Liveness::bound`] requires.
const IMPLAUSIBLE: Load = Load::tasks(64);

/// State of one member on one core.
#[derive(Clone, Copy, Debug)]
struct MemberWatch {
    /// Index of its pool.
    pool: u16,
    member: Member,
    /// Index of its server's next hop.
    hop: u16,
    /// True if its server registers its workers.
    registers: bool,
    /// True if this core has taken it out of the choice: it is unregistered, silent or unreachable.
    is_out: bool,
    /// True if it takes no tasks, according to the agent on this core or to the program that embeds the
    /// library. At a spine: true if the leaf has no workers.
    away: bool,
    /// True if an update forbids new tasks for it, whatever the rest of its state.
    drained: bool,
    /// True if this core maintains its counts. Each member has one such core.
    is_ours: bool,
    /// Number of consecutive checks at which its reports were below the tasks due.
    contradictions: u8,
    /// Number of consecutive checks at which it had answered more tasks than all cores sent it, and the
    /// smallest excess.
    surplus: (u8, u32),
    /// Number of checks with new reports since the last reset of `least_in_flight`.
    report_checks: u8,
    /// Number of its reports at the last check.
    reports: u32,
    /// Tasks outstanding at the last check.
    outstanding: u32,
    /// Number of reports before these checks, since the same reset.
    window_reports: u32,
    /// Time of the first of these checks.
    window_start_ns: u64,
    /// Smallest number of tasks in flight at a check with new reports; `u32::MAX` before the first one.
    least_in_flight: u32,
    /// Time of the last check that found a new number of its reports, or of the first check; 0 before the first one.
    last_report_ns: u64,
}

impl MemberWatch {
    /// Returns true if nothing prevents choosing it.
    fn may_be_chosen(&self) -> bool {
        !(self.is_out || self.away || self.drained)
    }

    /// Creates the state of a vacant place: an index of the pool without a worker.
    fn absent(pool: usize, member: Member, core: Core) -> Self {
        Self {
            pool: pool as u16,
            member,
            hop: NO_HOP,
            registers: false,
            is_out: false,
            away: false,
            drained: false,
            is_ours: core.is_responsible_for(member),
            contradictions: 0,
            surplus: (0, 0),
            report_checks: 0,
            window_reports: 0,
            window_start_ns: 0,
            reports: 0,
            outstanding: 0,
            least_in_flight: u32::MAX,
            last_report_ns: 0,
        }
    }

    /// Resets the count of checks that finds lost tasks.
    fn begin_window(&mut self) {
        (self.report_checks, self.window_reports, self.least_in_flight) = (0, 0, u32::MAX);
    }

    /// Records a check with this number of outstanding tasks, which is negative after more answers than tasks. Returns
    /// true if the member had such a surplus at several consecutive checks. A single check does not suffice: one core
    /// does not see the whole traffic at one moment.
    fn has_surplus(&mut self, outstanding: i32) -> bool {
        let (checks, least) = self.surplus;
        let excess = outstanding.min(0).unsigned_abs();
        self.surplus = match (excess, checks) {
            (0, _) => (0, 0),
            (_, 0) => (1, excess),
            _ => (checks + 1, least.min(excess)),
        };
        self.surplus.0 >= SURPLUS_CHECKS
    }
}

/// Returns the maximum number of tasks in flight, without lost ones, of a member with `reports` reports in
/// `elapsed_ns`. Their mean number is at most the rate of the reports times the round trip. Members with short tasks
/// always have some in flight. `measured_ns` is the round trip by the policy. Short measurements count more there. It
/// may be wrong where replies reach other cores than their tasks.
fn in_flight_most(reports: u32, elapsed_ns: u64, measured_ns: Option<u64>) -> u32 {
    let measured_ns = measured_ns.map_or(0, |measured_ns| measured_ns.min(LAP_MAX_NS) * 5 / 4);
    let trip_ns = measured_ns.max(ROUND_TRIP_NS);
    let most = u64::from(reports).saturating_mul(trip_ns) / elapsed_ns.max(1);
    most.min(u64::from(u32::MAX)) as u32
}

/// Next hop of a vacant place.
const NO_HOP: u16 = u16::MAX;

/// Doubt about the reports of a member that contradicted itself.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// End of the doubt; 0 if the member was never doubted.
    until_ns: u64,
    /// Duration of the next doubt.
    next_ns: u64,
    /// Tasks in the member's own last report while it is doubted, at most those sent if the report is implausible.
    reported: Option<u32>,
    /// Number of checks with new reports while it is doubted.
    checks: u8,
    /// Smallest number of outstanding tasks missing in the reports at these checks; `u32::MAX` before the first one.
    least_unreported: u32,
    /// Number of other cores' tasks outstanding at the member, at the last check. Negative if those cores received
    /// more replies than they sent tasks.
    elsewhere: i32,
}

impl Doubt {
    /// State of a member that was never doubted.
    const NONE: Self = Self {
        until_ns: 0,
        next_ns: DOUBT_NS.0,
        reported: None,
        checks: 0,
        least_unreported: u32::MAX,
        elsewhere: 0,
    };
}

/// Next hop to some servers.
#[derive(Clone, Copy, Debug)]
struct Hop {
    /// Port to the next hop.
    port: u8,
    /// Slot in the neighbour table; [`Slot::NONE`] for a free entry.
    slot: Slot,
    /// Address, in the form of [`Neighbours::address`].
    address: u32,
    /// True if a member behind it has reported in this lap.
    has_reported: bool,
    /// True if a member behind it has tasks.
    has_tasks: bool,
    /// True if its MAC address was known at the end of a lap since its link came up.
    is_known: bool,
    /// Number of failed resolutions since its MAC address was last known.
    failures: u8,
}

impl Hop {
    /// Creates the state of a next hop that has not answered yet.
    fn new(port: u8, slot: Slot, address: u32) -> Self {
        let (has_reported, has_tasks, is_known, failures) = (false, false, false, 0);
        Self { port, slot, address, has_reported, has_tasks, is_known, failures }
    }
}

/// Probe of a host with a known MAC address, for the caller to send: an ARP request or, over IPv6, a neighbour
/// solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourProbe {
    /// Index of the port that leads to it.
    pub port: u8,
    /// Slot of the host in the neighbour table.
    pub slot: Slot,
    /// Address of the host, in the form of [`Neighbours::address`].
    pub address: u32,
}

/// Checks of one core for silent members, lost tasks and contradictory reports, and the probes of hosts.
#[derive(Debug)]
pub struct Liveness {
    /// Time without a message after which a registered worker is silent; 0 means never.
    timeout_ns: u64,
    /// Duration of a lap.
    lap_ns: u64,
    /// Start of the current lap.
    lap_started_ns: u64,
    /// Next member to check in this lap.
    cursor: usize,
    /// Time from which silences count: the end of the core's last long delay.
    silence_start_ns: u64,
    /// State of each member, pool by pool.
    watches: Vec<MemberWatch>,
    /// Index of each pool's first watch. The watch of a member has this index plus the member's.
    first: Vec<usize>,
    /// Next hops to gateways and to members' servers, which are probed.
    hops: Vec<Hop>,
    /// Number of gateways. They are the first next hops.
    gateways: usize,
    /// Indices of the watches of members that are out. Each tick checks all of them.
    out: Vec<usize>,
    /// Doubt about each member, by the index of its watch. Separate, because replies read it.
    doubts: Vec<Doubt>,
    /// End of the last doubt about any member.
    doubted_until_ns: u64,
    /// True if other schedulers also send tasks to a pool's workers, by pool.
    shared: Vec<bool>,
    /// True if the members are leaves.
    is_spine: bool,
    /// Pending probes of hosts.
    probes: ArrayVec<NeighbourProbe, PROBES_MAX>,
    /// Last swept set of every port's neighbour cache.
    sweep: usize,
    /// Number of ports.
    ports: usize,
}

impl Liveness {
    /// Creates the checks for these pools. Their registered workers are silent after `timeout_ns` without a
    /// message; 0 means never.
    #[must_use]
    pub fn new(timeout_ns: u64, network: &Network, dispatchers: &mut [Dispatcher]) -> Self {
        // A gateway has no members behind it, but is probed like a server's next hop.
        let gateways = network.gateways();
        let hops: Vec<_> = gateways.map(|hop| Hop::new(hop.port, hop.slot, hop.next_hop)).collect();
        let lap_ns = match timeout_ns {
            0 => LAP_MAX_NS,
            timeout_ns => (timeout_ns / CHECKS).clamp(LAP_MIN_NS, LAP_MAX_NS),
        };
        let mut liveness = Self {
            timeout_ns,
            lap_ns,
            lap_started_ns: 0,
            cursor: 0,
            silence_start_ns: 0,
            first: Vec::new(),
            gateways: hops.len(),
            hops,
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

    /// Reserves memory for `pools` pools, `places` places for members in all of them, and `servers` servers. A polling
    /// core can then add pools without allocating.
    pub(super) fn make_room(&mut self, pools: usize, places: usize, servers: usize) {
        // Reserves memory for `count` elements in all.
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

    /// Starts to watch the members of one more pool.
    pub(super) fn add_pool(&mut self, network: &Network, dispatcher: &mut Dispatcher) {
        let (pool, out_before) = (self.first.len(), self.out.len());
        self.first.push(self.watches.len());
        self.shared.push(false);
        for member in (0..dispatcher.view().members() as u16).map(Member) {
            self.watches.push(MemberWatch::absent(pool, member, dispatcher.core()));
            self.doubts.push(Doubt::NONE);
            self.watch_worker(pool, member, network, dispatcher);
        }
        // A policy's review may draw random numbers. So it runs only after members were taken out.
        if self.out.len() > out_before {
            dispatcher.review_members();
        }
    }

    /// Watches the worker at a member's place in this network; stops watching a vacant place. The caller must call
    /// `review_members` of the pool's dispatcher afterwards.
    pub(super) fn watch_worker(
        &mut self,
        pool: usize,
        member: Member,
        network: &Network,
        dispatcher: &mut Dispatcher,
    ) {
        let index = self.first[pool] + member.index();
        let target =
            network.members(pool).get(member.index()).filter(|target| target.is_occupied());
        let Some(target) = target else {
            self.unwatch(index);
            return;
        };
        let slot = target.next_hop.slot;
        // The reports of an earlier worker in this place do not count.
        if self.watches[index].hop == NO_HOP {
            self.watches[index].reports = dispatcher.view().report_count(member);
        }
        let hop = self.hop_to(slot).unwrap_or_else(|| {
            let server = network.servers().find(|server| server.slot == slot);
            let address = server.map_or(0, |server| server.next_hop);
            let hop = Hop::new(target.next_hop.port, slot, address);
            // Reuses the entry of a freed next hop.
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
        let previous_hop = std::mem::replace(&mut self.watches[index].hop, hop as u16);
        self.leave_hop(previous_hop);
        let worker = network.worker(target.worker);
        let registers = worker.is_some_and(|worker| network.server(worker.server).registers);
        self.watches[index].registers = registers;
        // A leaf that joins others gets tasks once its signals have stated its workers. At a spine's start no
        // leaf has sent any.
        let has_signalled = |member| dispatcher.view().workers_of(Member(member)).is_some();
        let joins = || (0..dispatcher.view().members() as u16).any(has_signalled);
        if registers || (self.is_spine && joins()) {
            self.await_registration(index, dispatcher);
        }
    }

    /// Marks a worker that never registered as unregistered, and takes it out of this core's choice. A registered
    /// worker stays.
    fn await_registration(&mut self, index: usize, dispatcher: &mut Dispatcher) {
        let member = self.watches[index].member;
        let (from, to) = (MemberPresence::Configured, MemberPresence::Unregistered);
        dispatcher.view().change_presence(member, from, to);
        if dispatcher.view().presence(member) == to && !self.watches[index].is_out {
            self.watches[index].is_out = true;
            self.out.push(index);
            dispatcher.view_mut().set_active(member, false);
        }
    }

    /// Returns the index of the next hop to servers with this slot in the neighbour table; `None` if there is none.
    /// Skips gateways.
    fn hop_to(&self, slot: Slot) -> Option<usize> {
        let servers = self.hops.iter().enumerate().skip(self.gateways);
        servers.filter(|(_, hop)| hop.slot == slot).map(|(index, _)| index).next()
    }

    /// Clears the state of a vacated place, and frees its next hop if no other member uses it.
    fn unwatch(&mut self, index: usize) {
        let MemberWatch { pool, member, hop, is_ours, .. } = self.watches[index];
        self.watches[index] =
            MemberWatch { is_ours, ..MemberWatch::absent(pool.into(), member, Core::ONLY) };
        self.out.retain(|&out| out != index);
        self.doubts[index] = Doubt::NONE;
        self.leave_hop(hop);
    }

    /// Frees a next hop that leads to no member any more, to end its probes.
    fn leave_hop(&mut self, hop: u16) {
        let index = usize::from(hop);
        let is_used = index < self.gateways || self.watches.iter().any(|watch| watch.hop == hop);
        if let Some(hop) = self.hops.get_mut(index).filter(|_| !is_used) {
            *hop = Hop::new(0, Slot::NONE, 0);
        }
    }

    /// Sets whether other schedulers also send tasks to a pool's workers. If so, their reports are not
    /// compared with the tasks of this node.
    pub fn set_shared(&mut self, pool: usize, shared: bool) {
        self.shared[pool] = shared;
    }

    /// Returns true if other schedulers also send tasks to a pool's workers.
    pub(super) fn is_shared(&self, pool: usize) -> bool {
        self.shared[pool]
    }

    /// Returns the timeout in milliseconds. Acknowledgements of registrations carry it to the workers.
    #[must_use]
    pub fn timeout_ms(&self) -> u16 {
        (self.timeout_ns / 1_000_000).min(u64::from(u16::MAX)) as u16
    }

    /// Records that a worker is registered and alive.
    pub(super) fn note_registered(
        &mut self,
        pool: usize,
        member: Member,
        dispatcher: &mut Dispatcher,
        counters: &Counters,
    ) {
        for from in [MemberPresence::Silent, MemberPresence::Unreachable] {
            note_return(member, from, MemberPresence::Registered, dispatcher, counters);
        }
        dispatcher.view().set_presence(member, MemberPresence::Registered);
        self.readmit(self.first[pool] + member.index(), dispatcher);
    }

    /// Returns the next host to probe.
    pub(super) fn next_neighbour_probe(&mut self) -> Option<NeighbourProbe> {
        self.probes.pop()
    }

    /// Queues a probe of a host. Drops it if too many are pending.
    pub(super) fn probe(&mut self, probe: NeighbourProbe) {
        let _ = self.probes.try_push(probe);
    }

    /// Records that a host did not answer. Marks the configured and registered workers behind it as unreachable until
    /// its next answer. Ignores a host on a port without a link. A host that never answered has [`FAILURES`] attempts.
    pub(super) fn lose_next_hop(
        &mut self,
        slot: Slot,
        dispatchers: &mut [Dispatcher],
        neighbours: &Neighbours,
        counters: &Counters,
    ) {
        // `hop_to` skips the gateways.
        let gateway = || self.hops.iter().position(|hop| hop.slot == slot);
        let Some(hop) = self.hop_to(slot).or_else(gateway) else { return };
        let next = &mut self.hops[hop];
        if !neighbours.is_link_up(usize::from(next.port)) {
            return; // without a link no host answers: this proves nothing about the host
        }
        // A host that starts together with the node, or with its link, may take a while.
        next.failures = next.failures.saturating_add(1);
        if !next.is_known && next.failures < FAILURES {
            return;
        }
        for index in 0..self.watches.len() {
            let MemberWatch { pool, member, hop: member_hop, .. } = self.watches[index];
            let dispatcher = &mut dispatchers[usize::from(pool)];
            let presence = dispatcher.view().presence(member);
            if usize::from(member_hop) == hop
                && matches!(presence, MemberPresence::Configured | MemberPresence::Registered)
                && dispatcher.view().change_presence(member, presence, MemberPresence::Unreachable)
            {
                counters.add(Counter::WorkersLost, 1);
                self.take_out(index, dispatcher);
                dispatcher.write_off(member, u32::MAX); // all of its tasks
            }
        }
    }

    /// Checks all members that are out, and the next part of the lap. Also queues probes of hosts. Returns true if a
    /// member came back. It may take waiting tasks.
    pub(super) fn tick(
        &mut self,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        neighbours: &Neighbours,
        counters: &Counters,
    ) -> bool {
        let returned = self.check_out_members(now_ns, dispatchers, neighbours, counters);
        let elapsed = now_ns.saturating_sub(self.lap_started_ns);
        // A delayed core has received nothing meanwhile, so the silence of all members starts again.
        if elapsed > 2 * self.lap_ns.max(self.timeout_ns / CHECKS) {
            self.silence_start_ns = now_ns;
        }
        // Checks the part of the members that corresponds to the part of the lap that has passed.
        let share = elapsed as f64 / self.lap_ns as f64;
        let due = ((self.watches.len() as f64 * share) as usize).min(self.watches.len());
        while self.cursor < due {
            self.check_member(self.cursor, now_ns, dispatchers, counters);
            self.cursor += 1;
        }
        if elapsed >= self.lap_ns {
            (self.lap_started_ns, self.cursor) = (now_ns, 0);
            self.end_lap(now_ns, neighbours);
        }
        self.sweep(now_ns, neighbours);
        returned
    }

    /// Checks one member: its counts, its reports and its silence.
    fn check_member(
        &mut self,
        index: usize,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        counters: &Counters,
    ) {
        let watch = &mut self.watches[index];
        let (pool, member) = (usize::from(watch.pool), watch.member);
        let dispatcher = &mut dispatchers[pool];
        let view = dispatcher.view();
        if watch.hop == NO_HOP {
            return;
        }
        let (presence, reports) = (view.presence(member), view.report_count(member));
        let outstanding = view.outstanding_now(member);
        if watch.is_ours && !self.is_spine && watch.has_surplus(outstanding) {
            // These answers belong to no task of this node. Each has made the count of outstanding tasks one too low.
            let surplus = std::mem::take(&mut watch.surplus).1;
            dispatcher.take_back(member, surplus);
            counters.add(Counter::SurplusReplies, surplus.into());
        }
        // For `bound_each`: reading the counts of all cores at each reply would take their cache lines.
        self.doubts[index].elsewhere =
            outstanding.wrapping_sub(dispatcher.view().of(member).own_outstanding());
        let watch = &mut self.watches[index];
        let outstanding = outstanding.max(0).cast_unsigned();
        let hop = &mut self.hops[usize::from(watch.hop)];
        hop.has_tasks |= outstanding > 0;
        hop.has_reported |= watch.reports != reports;
        match (self.is_spine, watch.is_ours) {
            (true, _) => self.weigh(index, dispatcher),
            (false, true) => self.compare_reports(index, reports, outstanding, now_ns, dispatcher),
            (false, false) => self.adopt_doubt(index, now_ns, dispatcher),
        }
        let watch = &mut self.watches[index];
        watch.outstanding = outstanding;
        if watch.is_out {
            // `check_out_members` does the rest. Tasks that another core sent before it noticed the absence are lost,
            // too.
            if outstanding > 0 && watch.is_ours && presence != MemberPresence::Registered {
                dispatcher.write_off(member, outstanding);
            }
            return;
        }
        if watch.reports != dispatcher.view().report_count(member) || watch.last_report_ns == 0 {
            // 0 is the first check. Another core may have registered the member without a report so far, so its silence
            // starts now.
            (watch.reports, watch.last_report_ns) =
                (dispatcher.view().report_count(member), now_ns.max(1));
        }
        let silent_ns = now_ns.saturating_sub(watch.last_report_ns.max(self.silence_start_ns));
        match presence {
            MemberPresence::Configured if self.is_spine => {
                // From now on a missing signal counts as silence.
                return dispatcher.view().set_presence(member, MemberPresence::Registered);
            }
            MemberPresence::Configured => return, // it never registered, so its silence means nothing
            MemberPresence::Registered if self.timeout_ns == 0 || silent_ns < self.timeout_ns => {
                return;
            }
            MemberPresence::Registered => {
                // The first core to notice counts the loss and writes off the worker's tasks, for all cores.
                if dispatcher.view().change_presence(member, presence, MemberPresence::Silent) {
                    counters.add(Counter::WorkersLost, 1);
                    if self.is_spine {
                        counters.add(Counter::WrittenOff, outstanding.into());
                    }
                    dispatcher.write_off(member, u32::MAX);
                }
            }
            MemberPresence::Silent
            | MemberPresence::Unreachable
            | MemberPresence::Absent
            | MemberPresence::Unregistered => {}
        }
        self.take_out(index, dispatcher);
    }

    /// Adopts a member's presence from the previous process, if it was registered or silent: that of a leaf, or of a
    /// worker whose server registers its workers.
    pub(super) fn take_over(
        &mut self,
        pool: usize,
        member: Member,
        presence: MemberPresence,
        dispatcher: &mut Dispatcher,
    ) {
        let index = self.first[pool] + member.index();
        match presence {
            // The configuration may have changed meanwhile.
            _ if !self.is_spine && !self.watches[index].registers => {}
            MemberPresence::Registered => {
                dispatcher.view().set_presence(member, presence);
                self.readmit(index, dispatcher);
            }
            MemberPresence::Silent => {
                dispatcher.view().set_presence(member, presence);
                self.take_out(index, dispatcher);
            }
            _ => {}
        }
    }

    /// Takes a member out of this core's choice.
    fn take_out(&mut self, index: usize, dispatcher: &mut Dispatcher) {
        let watch = &mut self.watches[index];
        if !watch.is_out {
            watch.is_out = true;
            dispatcher.set_active(watch.member, false);
            self.out.push(index);
        }
    }

    /// Applies the number of workers in a leaf's last signal as the leaf's weight. A leaf without workers is away.
    fn weigh(&mut self, index: usize, dispatcher: &mut Dispatcher) {
        let watch = &mut self.watches[index];
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

    /// Compares a member's reports with the tasks sent to it. Writes off tasks that are lost, begins to doubt a
    /// member that contradicts itself, and lowers an estimate above the sent tasks.
    fn compare_reports(
        &mut self,
        index: usize,
        reports: u32,
        outstanding: u32,
        now_ns: u64,
        dispatcher: &mut Dispatcher,
    ) {
        let watch = &mut self.watches[index];
        let (pool, member) = (usize::from(watch.pool), watch.member);
        let estimated = dispatcher.view().largest_estimate(member).whole_tasks();
        // Number of reports since the last check: at least the number of tasks answered since.
        let answered = reports.wrapping_sub(watch.reports);
        // Outstanding tasks beyond the estimate are in flight. Tasks lost on their way stay in this number.
        if answered > 0 {
            watch.least_in_flight =
                watch.least_in_flight.min(outstanding.saturating_sub(estimated));
            if watch.report_checks == 0 {
                watch.window_start_ns = now_ns;
            }
            watch.report_checks += 1;
            watch.window_reports = watch.window_reports.saturating_add(answered);
        }
        let silent_ns = now_ns.saturating_sub(watch.last_report_ns.max(self.silence_start_ns));
        let until_ns = self.doubts[index].until_ns;
        if dispatcher.view().is_doubted(member) && now_ns >= until_ns {
            dispatcher.view().set_doubted(member, false);
        }
        let unreported = match until_ns {
            0 => 0,
            _ => self.unreported(index, answered > 0, outstanding, now_ns, dispatcher),
        };
        let watch = &mut self.watches[index];
        // These tasks are lost: those that a doubted member never reported; those in flight at `LOST_CHECKS` checks
        // with new reports, beyond the possible ones; all those of a member without a report for `LOST_NS`.
        let lost = if unreported > 0 {
            watch.begin_window();
            watch.contradictions = 0;
            unreported
        } else if watch.report_checks >= LOST_CHECKS {
            // The first check's reports came in the lap before it.
            let elapsed_ns = now_ns.saturating_sub(watch.window_start_ns) + self.lap_ns;
            let in_flight_most =
                in_flight_most(watch.window_reports, elapsed_ns, dispatcher.round_trip_ns());
            let least_in_flight = watch.least_in_flight;
            watch.begin_window();
            least_in_flight.saturating_sub(in_flight_most)
        } else if answered == 0 && watch.last_report_ns > 0 && silent_ns > LOST_NS {
            outstanding
        } else {
            0
        };
        if lost > 0 {
            dispatcher.write_off(member, lost);
        }
        if self.shared[pool] || watch.is_out {
            return;
        }
        // Tasks outstanding at the last check and not answered since have reached the member by now.
        let due = watch.outstanding.saturating_sub(answered);
        if answered > 0 && estimated < due.min(outstanding) {
            watch.contradictions += 1;
            if watch.contradictions == CONTRADICTIONS {
                watch.contradictions = 0;
                self.doubt(index, now_ns);
                dispatcher.view().set_doubted(member, true);
            }
        } else if answered > 0 {
            watch.contradictions = 0;
        } else if estimated > outstanding && watch.outstanding == outstanding {
            // No task came or went since the last check, so the difference is not a report in flight.
            let load = Load::tasks(outstanding.min(u32::from(u16::MAX)) as u16);
            dispatcher.refresh(&Report::new(member, load, 0));
            self.watches[index].reports = dispatcher.view().report_count(member);
        }
    }

    /// Returns the number of tasks that a doubted member has not reported for the whole time of the doubt; 0 while the
    /// doubt lasts or has had too few checks. They were lost on their way, and its reports were true. Meanwhile
    /// [`Liveness::bound`] raised the reports to the sent tasks, so `least_in_flight` does not show these losses.
    #[cold]
    fn unreported(
        &mut self,
        index: usize,
        has_news: bool,
        outstanding: u32,
        now_ns: u64,
        dispatcher: &Dispatcher,
    ) -> u32 {
        let (member, doubt) = (self.watches[index].member, &mut self.doubts[index]);
        if let Some(reported) = doubt.reported.filter(|_| has_news) {
            let drift = dispatcher.view().load_and_drift(member).1.whole_tasks();
            let unreported = outstanding.saturating_sub(reported + drift);
            doubt.least_unreported = doubt.least_unreported.min(unreported);
            doubt.checks = doubt.checks.saturating_add(1);
        }
        if now_ns < doubt.until_ns || doubt.checks < DOUBTED_CHECKS {
            return 0;
        }
        (doubt.reported, doubt.checks) = (None, 0);
        std::mem::replace(&mut doubt.least_unreported, u32::MAX).min(outstanding)
    }

    /// Begins to doubt a member's reports, unless they are doubted already. While doubted, reports cannot lower the
    /// load below the number of tasks sent.
    fn doubt(&mut self, index: usize, now_ns: u64) {
        let doubt = &mut self.doubts[index];
        if now_ns >= doubt.until_ns {
            let until_ns = now_ns.saturating_add(doubt.next_ns);
            let next_ns = (2 * doubt.next_ns).min(DOUBT_NS.1);
            *doubt = Doubt { until_ns, next_ns, elsewhere: doubt.elsewhere, ..Doubt::NONE };
            self.doubted_until_ns = self.doubted_until_ns.max(until_ns);
        }
    }

    /// Adopts the doubt of the core that maintains a member's counts, until the check after next. If only one core
    /// doubted the member, the cores would replace each other's estimates with every message.
    fn adopt_doubt(&mut self, index: usize, now_ns: u64, dispatcher: &Dispatcher) {
        if dispatcher.view().is_doubted(self.watches[index].member) {
            let until_ns = now_ns.saturating_add(2 * self.lap_ns);
            self.doubts[index].until_ns = until_ns;
            self.doubted_until_ns = self.doubted_until_ns.max(until_ns);
        }
    }

    /// Lowers impossibly high loads in a pool's reports to the number of the member's outstanding tasks, and raises the
    /// loads of doubted members to it.
    #[inline(always)]
    pub(super) fn bound(&mut self, pool: usize, dispatcher: &Dispatcher, reports: &mut [Report]) {
        // The bits of all loads together reach a power of two exactly if one of the loads does.
        let most = reports.iter().fold(0, |bits, report| bits | report.load.0);
        // The start of the lap stands for the current time, which is not known here.
        if most >= IMPLAUSIBLE.0 || self.lap_started_ns < self.doubted_until_ns {
            self.bound_each(pool, dispatcher, reports);
        }
    }

    /// Checks and replaces each load for [`Liveness::bound`].
    #[cold]
    #[inline(never)]
    fn bound_each(&mut self, pool: usize, dispatcher: &Dispatcher, reports: &mut [Report]) {
        if self.shared[pool] {
            return;
        }
        let doubts = &mut self.doubts[self.first[pool]..];
        for report in reports {
            let doubt = &mut doubts[report.member.index()];
            let is_doubted = self.lap_started_ns < doubt.until_ns;
            if report.load < IMPLAUSIBLE && !is_doubted {
                continue;
            }
            // A doubted member's tasks of other cores count as at its last check: these cores write the current counts.
            let outstanding = match is_doubted {
                true => dispatcher
                    .view()
                    .of(report.member)
                    .own_outstanding()
                    .wrapping_add(doubt.elsewhere),
                false => dispatcher.view().outstanding_now(report.member),
            };
            // Excludes the task that this report's reply answers. Includes those of earlier replies of this run, which
            // are few: they do not count as answered yet.
            let remaining = outstanding.saturating_sub(1).clamp(0, u16::MAX.into());
            let remaining = Load::tasks(remaining as u16);
            if report.load >= IMPLAUSIBLE {
                report.load = report.load.min(remaining);
            }
            if is_doubted {
                doubt.reported = Some(report.load.whole_tasks());
                report.load = report.load.max(remaining);
            }
        }
    }

    /// Confirms the next hops whose members have reported. Probes next hops without reports after a long silence.
    fn end_lap(&mut self, now_ns: u64, neighbours: &Neighbours) {
        let now_ms = to_ms(now_ns);
        for hop in &mut self.hops {
            if hop.slot == Slot::NONE {
                continue;
            }
            let (has_reported, has_tasks) = (hop.has_reported, hop.has_tasks);
            (hop.has_reported, hop.has_tasks) = (false, false);
            if neighbours.mac(hop.slot).is_none() {
                // The resolver already asks for its address from time to time.
                if !neighbours.is_link_up(usize::from(hop.port)) {
                    (hop.is_known, hop.failures) = (false, 0);
                }
                continue;
            }
            (hop.is_known, hop.failures) = (true, 0);
            if has_reported {
                neighbours.confirm(hop.slot, now_ms);
                continue;
            }
            let limit_ms = if has_tasks { UNANSWERED_MS } else { REACHABLE_MS };
            if neighbours.age_ms(hop.slot, now_ms).is_none_or(|age| age > limit_ms) {
                let &mut Hop { port, slot, address, .. } = hop;
                let _ = self.probes.try_push(NeighbourProbe { port, slot, address });
            }
        }
    }

    /// Probes hosts in one set of each neighbour cache that receive packets and have sent none for [`REACHABLE_MS`].
    fn sweep(&mut self, now_ns: u64, neighbours: &Neighbours) {
        self.sweep = (self.sweep + 1) % SWEEP_TICKS;
        let now_ms = to_ms(now_ns);
        for port in 0..self.ports {
            for (slot, address) in neighbours.to_confirm(port, self.sweep, now_ms, REACHABLE_MS) {
                self.probe(NeighbourProbe { port: port as u8, slot, address });
            }
        }
    }

    /// Checks the members that are out. Readmits those that report again, and those that need no registration once
    /// their host answers. Returns true if it readmitted any.
    fn check_out_members(
        &mut self,
        now_ns: u64,
        dispatchers: &mut [Dispatcher],
        neighbours: &Neighbours,
        counters: &Counters,
    ) -> bool {
        let before = self.out.len();
        for position in (0..before).rev() {
            let index = self.out[position];
            let watch = &mut self.watches[index];
            let (member, hop) = (watch.member, self.hops[usize::from(watch.hop)]);
            let dispatcher = &mut dispatchers[usize::from(watch.pool)];
            let reports = dispatcher.view().report_count(member);
            let has_reported = watch.reports != reports;
            match dispatcher.view().presence(member) {
                MemberPresence::Silent if has_reported => {
                    let (from, to) = (MemberPresence::Silent, MemberPresence::Registered);
                    note_return(member, from, to, dispatcher, counters);
                }
                MemberPresence::Unregistered if self.is_spine && has_reported => {
                    dispatcher.view().set_presence(member, MemberPresence::Registered);
                }
                MemberPresence::Unreachable if neighbours.mac(hop.slot).is_some() => {
                    let from = MemberPresence::Unreachable;
                    if watch.registers {
                        // The host is back. The worker's next report shows if the worker is, too.
                        watch.reports = reports;
                        dispatcher.view().change_presence(member, from, MemberPresence::Silent);
                    } else {
                        note_return(member, from, MemberPresence::Configured, dispatcher, counters);
                    }
                }
                _ => {}
            }
            let presence = dispatcher.view().presence(member);
            if matches!(presence, MemberPresence::Configured | MemberPresence::Registered) {
                (watch.reports, watch.last_report_ns) = (reports, now_ns.max(1));
                self.readmit(index, dispatcher);
            }
        }
        self.out.len() < before
    }

    /// Takes a member back into this core's choice, if it is out.
    fn readmit(&mut self, index: usize, dispatcher: &mut Dispatcher) {
        if self.watches[index].is_out {
            if self.is_spine {
                // A restarted leaf may have no workers yet.
                self.weigh(index, dispatcher);
            }
            let watch = &mut self.watches[index];
            watch.is_out = false;
            self.out.retain(|&out| out != index);
            dispatcher.set_active(watch.member, watch.may_be_chosen());
        }
    }

    /// Records whether a member is away: it takes no tasks, according to the agent on this core or the embedding
    /// program. Returns true if it may be chosen now. A member that is out may be chosen after its next report.
    pub(super) fn note_away(&mut self, pool: usize, member: Member, away: bool) -> bool {
        let watch = &mut self.watches[self.first[pool] + member.index()];
        watch.away = away;
        watch.may_be_chosen()
    }

    /// Returns true if nothing prevents choosing a member.
    pub(super) fn may_be_chosen(&self, pool: usize, member: Member) -> bool {
        self.watches[self.first[pool] + member.index()].may_be_chosen()
    }

    /// Like [`Liveness::note_away`], for an update that drains the member or allows it again.
    pub(super) fn note_drained(&mut self, pool: usize, member: Member, drained: bool) -> bool {
        let watch = &mut self.watches[self.first[pool] + member.index()];
        watch.drained = drained;
        watch.may_be_chosen()
    }
}

/// Converts to milliseconds, the unit of the neighbour table. The result wraps around.
pub(super) fn to_ms(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}

/// Changes the presence of a worker that came back. Only the first core to do so counts the return, and writes off the
/// tasks that cores sent before they noticed its absence.
fn note_return(
    member: Member,
    from: MemberPresence,
    to: MemberPresence,
    dispatcher: &mut Dispatcher,
    counters: &Counters,
) {
    if dispatcher.view().change_presence(member, from, to) {
        counters.add(Counter::WorkersBack, 1);
        dispatcher.write_off(member, u32::MAX);
    }
}
