//! Join the shortest queue, of all members or of a few, by length or by the time a task would take (SED:
//! shortest expected delay). Ties are broken uniformly.
//!
//! Where true queues can be seen, in a simulator, they are used. A leaf counts what it has outstanding at
//! each member, which is what a server, unlike a switch, can do exactly.

use rand::Rng as _;

use super::ranks::Ranking;
use super::{Core, Pick, Policy, Rng, Task, below, sample_one};
use crate::state::{Member, Report, View};

/// Times that a ranking out of date, because another core sent or heard something, is put right in one
/// decision. Each puts one member right for good.
const CORRECTIONS: usize = 8;

/// The shortest of all members' queues.
#[derive(Clone, Debug)]
pub struct Shortest {
    /// Queues count by the time they take, not by their length.
    by_delay: bool,
    ranks: Ranking,
}

impl Shortest {
    /// By length, or by expected delay.
    #[must_use]
    pub fn new(by_delay: bool) -> Self {
        Self { by_delay, ranks: Ranking::new(by_delay) }
    }

    fn scan(&self, view: &View, rng: &mut Rng) -> Option<Member> {
        let key = |member: Member| match self.by_delay {
            true => f64::from(view.probe(member) + 1) / view.rate(member),
            false => f64::from(view.probe(member)),
        };
        least(view.active(), key, rng)
    }

    fn ranked(&mut self, view: &View, rng: &mut Rng) -> Option<Member> {
        let mut member = self.ranks.first(rng)?;
        for _ in 0..CORRECTIONS {
            let queue = view.outstanding(member);
            if queue == self.ranks.queue(member) {
                break;
            }
            self.ranks.set(member, queue);
            member = self.ranks.first(rng)?;
        }
        Some(member)
    }
}

/// The member with the least key, uniformly among those that tie.
fn least(members: &[Member], key: impl Fn(Member) -> f64, rng: &mut Rng) -> Option<Member> {
    let mut best: Option<(f64, Member)> = None;
    let mut ties = 0;
    for &member in members {
        let own = key(member);
        match best {
            Some((least, _)) if own > least => {}
            Some((least, _)) if own == least => {
                ties += 1;
                if below(ties, rng.next_u64() as u32) == 0 {
                    best = Some((own, member));
                }
            }
            _ => {
                ties = 1;
                best = Some((own, member));
            }
        }
    }
    best.map(|(_, member)| member)
}

impl Policy for Shortest {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let member = match view.sees_queues() {
            true => self.scan(view, rng)?,
            false => self.ranked(view, rng)?,
        };
        Some(Pick { member, idle: view.probe(member) == 0 })
    }

    #[inline]
    fn on_sent(&mut self, member: Member, _view: &mut View) {
        self.ranks.add(member);
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        // Lost tasks leave the count only so.
        view.set_load_keeping_in_flight(report.member, report.load);
        self.ranks.set(report.member, view.outstanding(report.member));
    }

    fn on_members(&mut self, _core: Core, view: &mut View) {
        self.ranks.rank(view);
        for &member in view.active() {
            self.ranks.set(member, view.outstanding(member));
        }
    }
}

/// Most members that a policy samples at once.
pub(super) const SAMPLES_MAX: usize = 16;

/// Distinct uniform members, up to `count` of them, each given to `each`.
#[inline]
pub(super) fn sample_distinct(
    count: usize,
    view: &View,
    rng: &mut Rng,
    mut each: impl FnMut(Member),
) {
    let active = view.active();
    let count = count.min(active.len()).min(SAMPLES_MAX);
    let mut chosen = [0; SAMPLES_MAX];
    for number in 0..count {
        // Among the places not chosen yet: count past the chosen ones, which are kept in order.
        let mut place = below(active.len() - number, rng.next_u64() as u32);
        let mut at = 0;
        while at < number && chosen[at] <= place {
            place += 1;
            at += 1;
        }
        chosen.copy_within(at..number, at + 1);
        chosen[at] = place;
        each(active[place]);
    }
}

/// The shortest of a few random members' queues (the power of d choices), each probed for it.
#[derive(Clone, Debug)]
pub struct ShortestOf {
    count: usize,
}

impl ShortestOf {
    /// Of `count` members.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { count }
    }
}

impl Policy for ShortestOf {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        let mut best: Option<(u32, Member)> = None;
        let mut probes = 0;
        // In random order, so that the first of those that tie is any of them.
        sample_distinct(self.count, view, rng, |member| {
            let queue = view.probe(member);
            probes += 1;
            if best.is_none_or(|(least, _)| queue < least) {
                best = Some((queue, member));
            }
        });
        view.picks.messages += probes;
        best.map(|(queue, member)| Pick { member, idle: queue == 0 })
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load_keeping_in_flight(report.member, report.load);
    }
}

/// A member below a threshold that it told of itself, else a random one: JIQ, JBT and their kin.
///
/// Sources: JIQ, Lu et al., Performance Evaluation 2011; JBT, as Malcolm's baseline; JBT-d, Zhou et al.,
/// SIGMETRICS 2017; Persistent Idle, Atar et al., 2020.
#[derive(Clone, Debug)]
pub struct Notified {
    /// Members with fewer tasks than this are on the list.
    below: u32,
    otherwise: Otherwise,
    /// The threshold is learned anew so often, from two probes; 0: never.
    period_ns: u64,
    next_ns: u64,
    last: Option<Member>,
    alias: super::alias::Alias,
}

/// Where a task goes when nobody is below the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// To a uniform member.
    Random,
    /// To a random member by service rate.
    Weighted,
    /// To the one that reported last.
    Last,
}

impl Notified {
    /// Members below `below` tasks come first.
    #[must_use]
    pub fn new(below: u32, otherwise: Otherwise) -> Self {
        let alias = super::alias::Alias::default();
        Self { below, otherwise, period_ns: 0, next_ns: 0, last: None, alias }
    }

    /// The threshold becomes the lesser of two random queues, every `period_ns`.
    #[must_use]
    pub fn learning(period_ns: u64) -> Self {
        Self { period_ns, ..Self::new(1, Otherwise::Random) }
    }
}

impl Policy for Notified {
    #[inline]
    fn pick(&mut self, _task: &Task, view: &mut View, rng: &mut Rng) -> Option<Pick> {
        if let Some(member) = view.idle_mut().take_last() {
            view.picks.idle += 1;
            return Some(Pick { member, idle: true });
        }
        let member = match (self.otherwise, self.last) {
            (Otherwise::Last, Some(last)) if view.is_active(last) => Some(last),
            (Otherwise::Weighted, _) => self.alias.sample(rng),
            _ => sample_one(view, rng),
        };
        member.map(|member| Pick { member, idle: false })
    }

    #[inline]
    fn on_reply(&mut self, report: &Report, view: &mut View, _rng: &mut Rng) {
        view.set_load(report.member, report.load);
        self.last = Some(report.member);
        let below = report.load.0 >> 16 < self.below;
        let known = view.idle().contains(report.member);
        super::note_idleness(report.member, below, view);
        // Members that know the threshold speak once, when they are at or below it.
        view.picks.messages += u64::from(self.period_ns > 0 && below && !known);
    }

    fn on_members(&mut self, core: Core, view: &mut View) {
        super::share_idle(core, view);
        if self.otherwise == Otherwise::Weighted {
            self.alias.rebuild(view.active(), |member| view.rate(member));
        }
    }

    fn on_tick(&mut self, now_ns: u64, view: &mut View, rng: &mut Rng) {
        if self.period_ns == 0 || now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + self.period_ns;
        let mut least = u32::MAX - 1;
        let mut probes = 0;
        sample_distinct(2, view, rng, |member| {
            least = least.min(view.probe(member));
            probes += 1;
        });
        view.picks.messages += probes;
        self.below = least + 1;
    }
}
