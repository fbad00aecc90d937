//! What leaf and spine tell each other: a leaf of its pools, and both that they are alive. Words are made here and sent by whoever
//! drives the stages ([`super::Stages::next_word`]).
//!
//! A pool of a leaf is told of by one core, whichever core has its tasks: what the others do it hears as every core does. It looks
//! once a poll in which tasks or replies of the pool passed, and at ticks.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

use super::network::{Network, Spine, SpineLink};
use crate::limits::SPINES_MAX;
use crate::policy::signals::{Latest, Protocol, Signal, Signals};
use crate::policy::{Core, Dispatcher};
use crate::state::neighbour::Slot;
use crate::state::{Counter, Counters, Gauge, Load, Member};
use crate::wire::task::{Code, Extension, Header};

/// Who has said nothing for so long says that it is alive.
pub const HEARTBEAT_NS: u64 = 10_000_000;
/// Who is not heard of for so long is silent.
pub const SILENT_NS: u64 = 3 * HEARTBEAT_NS;
/// A leaf repeats its state so often, in case a signal was lost.
const REPEAT_NS: u64 = 1_000_000;
/// Workers of a pool that are all drained get what is under way from the spine for so long: it is told at once, and looks at what
/// it was told every 10 ms.
const LINGER_NS: u64 = SILENT_NS;
/// A new service address is announced so often, and again after so long (RFC 5227, 2.3).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_AGAIN_NS: u64 = 2_000_000_000;
/// Words that may wait to be sent; what is more is said again later.
const WORDS_MAX: usize = 64;
/// Changes of idleness that a core of a spine may be behind the others.
const IDLE_MAX: usize = 1024;

/// A word to a leaf, a spine or a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The port that leads there.
    pub port: u8,
    /// The next hop's place among the neighbours.
    pub slot: Slot,
    /// Where it goes to.
    pub ip: IpAddr,
    /// What it says.
    pub header: Header,
    /// And how much, where the header says that this follows.
    pub extension: Extension,
}

/// What all cores of a node share of this.
#[derive(Debug)]
pub struct Shared {
    /// When each spine was heard of last.
    heard_ns: Box<[AtomicU64]>,
    /// Places of those that are silent, a bit each.
    silent: AtomicU64,
    /// Tasks that came to each pool that is told of, on all cores.
    tasks: Box<[AtomicU64]>,
    /// What leaves told other cores of a spine of their idleness, for each core: pool, leaf, whether it has idle workers.
    idle: Box<[ArrayQueue<(u16, Member, bool)>]>,
}

impl Shared {
    /// Of a node with so many cores, and so many pools at most.
    #[must_use]
    pub fn new(cores: usize, pools: usize) -> Arc<Self> {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let others = if cores > 1 { cores } else { 0 };
        const { assert!(SPINES_MAX <= u64::BITS as usize) }
        Arc::new(Self {
            heard_ns: zeros(SPINES_MAX),
            silent: AtomicU64::new(0),
            tasks: zeros(pools),
            idle: (0..others).map(|_| ArrayQueue::new(IDLE_MAX)).collect(),
        })
    }
}

impl Shared {
    /// The spine at this place is silent.
    #[must_use]
    pub fn is_silent(&self, place: usize) -> bool {
        self.silent.load(Relaxed) >> place & 1 != 0
    }
}

/// What a member's signal or report is beside those that came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// The first.
    First,
    /// The first after a silence.
    Back,
    /// Newer than them.
    New,
    /// Older than one of them.
    Old,
}

/// The numbers of what a pool's members tell: a spine's leaves of themselves in signals, or workers in queue reports.
#[derive(Debug)]
pub(super) struct Numbers {
    latest: Latest,
    /// When something of each was taken last.
    heard_ms: Vec<u32>,
}

impl Numbers {
    /// Of so many members, none heard of yet.
    pub(super) fn new(members: usize) -> Self {
        Self { latest: Latest::new(members), heard_ms: vec![0; members] }
    }

    /// What comes from `member` now under this number is beside what came before.
    pub(super) fn judge(&mut self, member: Member, number: u16, now_ns: u64) -> Age {
        let now_ms = (now_ns / 1_000_000) as u32 + 1; // 0 is never
        let heard_ms = &mut self.heard_ms[member.index()];
        // Whoever was silent may have begun anew.
        let silent_ms = (SILENT_NS / 1_000_000) as u32;
        let age = match *heard_ms {
            0 => Age::First,
            heard_ms if now_ms.wrapping_sub(heard_ms) > silent_ms => Age::Back,
            _ => Age::New,
        };
        if age != Age::New {
            self.latest.forget(member);
        }
        if !self.latest.accepts(member, number) {
            return Age::Old;
        }
        *heard_ms = now_ms;
        age
    }
}

/// What a leaf tells of a pool.
#[derive(Debug)]
struct Link {
    spine: Spine,
    protocol: Protocol,
    signals: Signals,
    /// Of the last signal.
    number: u16,
    /// Sum of the workers' loads as this core sees them.
    total: u64,
    /// Tasks since it was looked at last that came for an idle worker, and others.
    tasks: [u32; 2],
    replied: bool,
    /// Tasks of all cores, as counted in.
    counted: u64,
    said_ns: u64,
    repeated_ns: u64,
    /// All workers are drained, and get what is under way: the spine may count on none.
    lingers: bool,
}

/// A spine's service address, as it is announced.
#[derive(Clone, Copy, Debug)]
struct Announced {
    ip: IpAddr,
    /// To be announced so often still, the next time then.
    left: u8,
    due_ns: u64,
}

/// What one core does about it.
#[derive(Debug)]
pub struct Fabric {
    core: Core,
    shared: Arc<Shared>,
    /// A leaf's, by pool.
    links: Vec<Option<Link>>,
    /// A leaf's pools whose workers are all drained, and get what is under way from the spine until then.
    lingering: Box<[Option<u64>]>,
    /// A spine's, by pool.
    racks: Vec<Numbers>,
    /// A leaf's spines by place: id, address, and whether it is silent.
    spines: [Option<(u16, IpAddr, bool)>; SPINES_MAX],
    /// Tasks or replies of some linked pool have passed since it was looked at.
    passed: bool,
    now_ns: u64,
    /// Of the spine's heartbeats: when the last round began, and to how many leaves it has gone.
    round: (u64, usize),
    words: ArrayVec<Word, WORDS_MAX>,
    /// A spine's service addresses, on one core.
    services: Vec<Announced>,
    /// Some are to be announced still.
    announces: bool,
}

impl Fabric {
    /// Of a core of a node in this network; there may be so many pools, with so many members each.
    #[must_use]
    pub fn new(
        network: &Network,
        core: Core,
        shared: Arc<Shared>,
        pools: usize,
        members: usize,
    ) -> Self {
        let mut fabric = Self {
            core,
            shared,
            links: (0..pools).map(|_| None).collect(),
            lingering: vec![None; pools].into(),
            racks: (0..if network.is_spine() { pools } else { 0 })
                .map(|_| Numbers::new(members))
                .collect(),
            spines: [None; SPINES_MAX],
            passed: false,
            now_ns: 0,
            round: (0, 0),
            words: ArrayVec::new(),
            services: Vec::with_capacity(pools),
            announces: false,
        };
        fabric.follow(network);
        fabric
    }

    /// Pools are linked as this network says, and have its service addresses.
    pub(super) fn follow(&mut self, network: &Network) {
        if self.core.index == 0 {
            self.follow_services(network.service_ips());
        }
        for (place, known) in self.spines.iter_mut().enumerate() {
            let spine = network.spine(place).map(|spine| (spine.id, spine.ip));
            if known.map(|(id, ip, _)| (id, ip)) == spine {
                continue;
            }
            *known = spine.map(|(id, ip)| (id, ip, false));
            if self.core.index == 0 {
                self.shared.heard_ns[place].store(0, Relaxed);
            }
        }
        for (pool, place) in self.links.iter_mut().enumerate() {
            let link = network.link(pool).filter(|_| pool < network.pools());
            let to = link.and_then(|SpineLink { spine, protocol }| {
                Some((*network.spine(usize::from(spine))?, protocol))
            });
            if place.as_ref().map(|link| (link.spine, link.protocol)) != to {
                *place = to.map(|(spine, protocol)| Link {
                    spine,
                    protocol,
                    signals: Signals::new(protocol, 0),
                    number: 0,
                    total: 0,
                    tasks: [0; 2],
                    replied: false,
                    counted: self.shared.tasks.get(pool).map_or(0, |tasks| tasks.load(Relaxed)),
                    said_ns: 0,
                    repeated_ns: 0,
                    lingers: self.lingering[pool].is_some(),
                });
            }
        }
    }

    /// Those that are new are to be announced: another spine may have had them.
    fn follow_services(&mut self, services: &[IpAddr]) {
        self.services.retain(|one| services.binary_search(&one.ip).is_ok());
        for &ip in services {
            let is_new = !self.services.iter().any(|one| one.ip == ip);
            if is_new && self.services.len() < self.services.capacity() {
                self.services.push(Announced { ip, left: ANNOUNCEMENTS, due_ns: 0 });
                self.announces = true;
            }
        }
    }

    /// The next service address that is to be announced by now.
    pub(super) fn next_announcement(&mut self) -> Option<IpAddr> {
        if !self.announces {
            return None;
        }
        let now_ns = self.now_ns;
        self.announces = self.services.iter().any(|one| one.left > 0);
        let is_due = |one: &&mut Announced| one.left > 0 && one.due_ns <= now_ns;
        let one = self.services.iter_mut().find(is_due)?;
        one.left -= 1;
        one.due_ns = now_ns + ANNOUNCE_AGAIN_NS;
        Some(one.ip)
    }

    /// Nobody has this place any more: what was heard of its last leaf says nothing of the next.
    pub(super) fn forget(&mut self, pool: usize, leaf: Member) {
        if let Some(racks) = self.racks.get_mut(pool) {
            racks.heard_ms[leaf.index()] = 0;
        }
    }

    /// What all cores share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A spine is told of this pool.
    #[inline]
    pub(super) fn is_linked(&self, pool: usize) -> bool {
        self.links.get(pool).is_some_and(Option::is_some)
    }

    /// All workers of a pool are drained, or not any more: then its spine is told at the next tick, and what is under way from there
    /// is done.
    pub(super) fn linger(&mut self, pool: usize, lingers: bool) {
        let until_ns = self.now_ns + LINGER_NS;
        let place = &mut self.lingering[pool];
        if place.is_some() == lingers {
            return;
        }
        *place = lingers.then_some(until_ns);
        if let Some(link) = self.link(pool) {
            (link.lingers, link.said_ns) = (lingers, 0);
        }
    }

    /// Workers of some pool that are drained do what is under way to them.
    #[inline]
    pub(super) fn lingers(&self) -> bool {
        self.lingering.iter().any(Option::is_some)
    }

    /// Those of this pool have done so for long enough.
    pub(super) fn has_lingered(&self, pool: usize) -> bool {
        self.lingering[pool].is_some_and(|until_ns| self.now_ns >= until_ns)
    }

    fn link(&mut self, pool: usize) -> Option<&mut Link> {
        self.links.get_mut(pool)?.as_mut()
    }

    /// A task of a pool came, for an idle worker if it says so.
    pub(super) fn note_task(&mut self, pool: usize, idle_selected: bool) {
        let Some(link) = self.link(pool) else { return };
        link.tasks[usize::from(!idle_selected)] += 1;
        self.passed = true;
    }

    /// A task was given to a worker of a pool.
    pub(super) fn note_pick(&mut self, pool: usize) {
        if let Some(link) = self.link(pool) {
            link.total += link.signals.load_of_task();
        }
    }

    /// What a worker counts for, before its reply is taken.
    pub(super) fn before_reply(&mut self, pool: usize, dispatcher: &Dispatcher, member: Member) {
        if let Some(link) = self.link(pool) {
            let load = link.signals.load_of(dispatcher.view(), member);
            link.total = link.total.saturating_sub(load);
        }
    }

    /// The same after it was.
    pub(super) fn after_reply(&mut self, pool: usize, dispatcher: &Dispatcher, member: Member) {
        if let Some(link) = self.link(pool) {
            link.total += link.signals.load_of(dispatcher.view(), member);
            link.replied = true;
            self.passed = true;
        }
    }

    /// The spine at this place was heard of.
    pub(super) fn note_spine(&self, spine: usize) {
        self.shared.heard_ns[spine].store(self.now_ns.max(1), Relaxed);
    }

    /// What a leaf's signal of this number is beside those that came before.
    pub(super) fn judge(&mut self, pool: usize, leaf: Member, number: u16) -> Age {
        let Some(racks) = self.racks.get_mut(pool) else { return Age::Old };
        racks.judge(leaf, number, self.now_ns)
    }

    /// The other cores are to know whether a leaf has idle workers.
    pub(super) fn tell_idle(&self, pool: usize, leaf: Member, is_idle: bool) {
        for (core, queue) in self.shared.idle.iter().enumerate() {
            if core != self.core.index {
                queue.force_push((pool as u16, leaf, is_idle));
            }
        }
    }

    /// Takes what leaves told other cores.
    #[inline]
    pub(super) fn hear_idle(&self, dispatchers: &mut [Dispatcher]) {
        let Some(queue) = self.shared.idle.get(self.core.index) else { return };
        while let Some((pool, leaf, is_idle)) = queue.pop() {
            if let Some(dispatcher) = dispatchers.get_mut(usize::from(pool)) {
                set_idle(dispatcher, leaf, is_idle);
            }
        }
    }

    /// Something has passed of which a spine may have to be told.
    #[inline]
    pub(super) fn has_passed(&self) -> bool {
        self.passed
    }

    /// Tells spines what tasks and replies have changed.
    pub(super) fn tell(&mut self, network: &Network, dispatchers: &[Dispatcher]) {
        self.passed = false;
        for (pool, dispatcher) in dispatchers.iter().enumerate() {
            let speaks = self.speaks_of(pool);
            let Some(link) = self.links.get_mut(pool).and_then(Option::as_mut) else { continue };
            let tasks = std::mem::take(&mut link.tasks);
            let came = u64::from(tasks[0]) + u64::from(tasks[1]);
            self.shared.tasks[pool].fetch_add(came, Relaxed);
            link.counted += came;
            let replied = std::mem::take(&mut link.replied);
            if !speaks {
                continue;
            }
            let idle = dispatcher.view().idle_anywhere();
            for (tasks, idle_selected) in tasks.into_iter().zip([true, false]) {
                for _ in 0..tasks {
                    let signal = link.signals.on_task(idle_selected, idle);
                    say(&mut self.words, (network, pool), link, dispatcher, signal, self.now_ns);
                }
            }
            if replied {
                let total = link.total;
                for signal in link.signals.on_reply(idle, || total) {
                    say(&mut self.words, (network, pool), link, dispatcher, signal, self.now_ns);
                }
            }
        }
    }

    fn speaks_of(&self, pool: usize) -> bool {
        pool % self.core.count == self.core.index
    }

    /// Time has passed.
    pub(super) fn tick(
        &mut self,
        now_ns: u64,
        network: &Network,
        dispatchers: &[Dispatcher],
        counters: &Counters,
    ) {
        self.now_ns = now_ns;
        for (pool, dispatcher) in dispatchers.iter().enumerate() {
            if self.speaks_of(pool) {
                self.tick_link(network, pool, dispatcher);
            }
        }
        if self.core.index == 0 {
            self.look_at_spines(counters);
            if network.is_spine() {
                self.greet_leaves(network);
            }
        }
    }

    /// What a pool's link does by time alone.
    fn tick_link(&mut self, network: &Network, pool: usize, dispatcher: &Dispatcher) {
        let (words, now_ns) = (&mut self.words, self.now_ns);
        let Some(link) = self.links.get_mut(pool).and_then(Option::as_mut) else { return };
        link.signals.set_workers(dispatcher.view().active().len());
        let came = self.shared.tasks[pool].load(Relaxed);
        let elsewhere = came - std::mem::replace(&mut link.counted, came);
        link.signals.note_tasks(elsewhere);
        if link.repeated_ns == 0 {
            link.repeated_ns = now_ns.max(1);
        }
        if now_ns.saturating_sub(link.repeated_ns) >= REPEAT_NS {
            link.repeated_ns = now_ns;
            // What left it otherwise than by a reply, or came to other cores.
            let active = dispatcher.view().active().iter();
            let load = |&member| link.signals.load_of(dispatcher.view(), member);
            link.total = active.map(load).sum();
            link.replied |= elsewhere > 0;
            self.passed |= link.replied;
            let signal = link.signals.repeat();
            say(words, (network, pool), link, dispatcher, signal, now_ns);
        }
        if link.said_ns == 0 || now_ns.saturating_sub(link.said_ns) >= HEARTBEAT_NS {
            // Where nothing is decided by loads a spine still knows them.
            let code = match link.protocol {
                Protocol::Silent => Code::LoadUpdate,
                _ => Code::KeepAlive,
            };
            say_as(words, (network, pool), link, dispatcher, code, now_ns);
        }
    }

    /// Spines that are silent, or are so no longer.
    fn look_at_spines(&mut self, counters: &Counters) {
        let known = self.spines.iter_mut().zip(&self.shared.heard_ns);
        for (spine, heard_ns) in known {
            let Some((_, _, silent)) = spine else { continue };
            // Until it was heard of its time runs from here.
            let now_ns = self.now_ns.max(1);
            let heard_ns = heard_ns
                .compare_exchange(0, now_ns, Relaxed, Relaxed)
                .map_or_else(|heard| heard, |_| now_ns);
            let is_silent = now_ns.saturating_sub(heard_ns) > SILENT_NS;
            if is_silent != *silent {
                *silent = is_silent;
                let counter = if is_silent { Counter::SpinesLost } else { Counter::SpinesBack };
                counters.add(counter, 1);
            }
        }
        let is_silent =
            |spine: &Option<(u16, IpAddr, bool)>| spine.is_some_and(|(.., silent)| silent);
        let places = self.spines.iter().enumerate().filter(|(_, spine)| is_silent(spine));
        let silent = places.fold(0_u64, |all, (place, _)| all | 1 << place);
        self.shared.silent.store(silent, Relaxed);
        counters.set(Gauge::SpinesSilent, silent.count_ones().into());
    }

    /// Tells all leaves within an interval that the spine is alive, a part of them at each tick.
    fn greet_leaves(&mut self, network: &Network) {
        let (began_ns, greeted) = self.round;
        let elapsed_ns = self.now_ns.saturating_sub(began_ns);
        if greeted >= network.leaf_hosts().len() {
            if elapsed_ns >= HEARTBEAT_NS {
                self.round = (self.now_ns, 0);
            }
            return;
        }
        let room = self.words.remaining_capacity();
        for &(ip, server) in network.leaf_hosts().iter().skip(greeted).take(room) {
            let header = Header::signal(Code::KeepAlive, 0, network.node, 0);
            let (port, slot) = (server.port, server.slot);
            let extension = Extension::default();
            self.words.push(Word { port, slot, ip, header, extension });
            self.round.1 += 1;
        }
    }

    /// The next word to be sent.
    #[inline]
    pub(super) fn next_word(&mut self) -> Option<Word> {
        // In order: a leaf's signals are numbered.
        if self.words.is_empty() { None } else { Some(self.words.remove(0)) }
    }
}

/// Takes a leaf's word on whether it has idle workers.
pub(super) fn set_idle(dispatcher: &mut Dispatcher, leaf: Member, is_idle: bool) {
    let idle = dispatcher.view_mut().idle_mut();
    if is_idle {
        idle.insert(leaf)
    } else {
        idle.remove(leaf)
    };
}

fn say(
    words: &mut ArrayVec<Word, WORDS_MAX>,
    of: (&Network, usize),
    link: &mut Link,
    dispatcher: &Dispatcher,
    signal: Option<Signal>,
    now_ns: u64,
) {
    let code = match signal {
        None => return,
        Some(Signal::IdleAdd) => Code::IdleAdd,
        Some(Signal::IdleRemove) => Code::IdleRemove,
        Some(Signal::Load(_)) => Code::LoadUpdate,
    };
    say_as(words, of, link, dispatcher, code, now_ns);
}

fn say_as(
    words: &mut ArrayVec<Word, WORDS_MAX>,
    (network, pool): (&Network, usize),
    link: &mut Link,
    dispatcher: &Dispatcher,
    code: Code,
    now_ns: u64,
) {
    let spine = link.spine;
    let Some(id) = network.pool_id(pool) else { return };
    link.number = link.number.wrapping_add(1);
    link.said_ns = now_ns.max(1);
    let workers = if link.lingers { 0 } else { dispatcher.view().active().len() };
    let workers = workers.min(usize::from(u16::MAX)) as u16;
    let header = Header::signal(code, id, network.node, link.number);
    // All tell it: a spine that has heard nothing for some time knows no better.
    let Load(service_ns) = link.signals.average(link.total);
    let extension =
        Extension { seq32: link.number.into(), service_ns, class: workers, ..Extension::default() };
    let word = Word { port: spine.port, slot: spine.slot, ip: spine.ip, header, extension };
    let _ = words.try_push(word);
}
