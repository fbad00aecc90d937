//! Members in order of their queues, so that the shortest is found, and any one's queue changes, in a time
//! that does not depend on how many members there are.
//!
//! One array holds the members sorted by queue; the members of one length are a stretch of it. One task
//! more or less swaps a member with the last or first of its stretch and moves the border by one, and a
//! uniform choice among the shortest is one random number and one load. A jump by k tasks moves k borders.
//!
//! Where speeds count, the members of each speed have such an order of their own, and the speeds are compared
//! by their best members; that is done again only when a best one changes.

use rand::Rng as _;

use super::{Rng, below, select};
use crate::state::{Member, View};

/// Lengths told apart: from the last on all count as the same, nobody ranks members by what lies beyond.
const LENGTHS: usize = 1024;
const LONGEST: usize = LENGTHS - 1;
const NOWHERE: u16 = u16::MAX;

/// What is known of a member, and who stands at the place of the same number: one array, one check of its
/// bounds for all that is read at a place.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The member's queue, whether it is ranked or not.
    queue: u32,
    /// Where the member stands.
    place: u16,
    /// Who stands here.
    holder: u16,
}

impl Cell {
    #[inline]
    fn length(self) -> usize {
        (self.queue as usize).min(LONGEST)
    }
}

/// The members, and their order: that of one speed after that of another.
#[derive(Clone, Debug, Default)]
struct Cells(Vec<Cell>);

impl Cells {
    /// Who stands at a place.
    #[inline(always)]
    fn at(&self, place: usize, class: u8) -> Found {
        let member = Member(self.0[place].holder);
        Found { member, queue: self.queue(member), place: place as u16, class }
    }

    fn resize(&mut self, members: usize) {
        self.0.resize(members, Cell { queue: 0, place: NOWHERE, holder: 0 });
        self.0.iter_mut().for_each(|cell| cell.place = NOWHERE);
    }

    #[inline]
    fn queue(&self, member: Member) -> u32 {
        self.0[member.index()].queue
    }

    /// Puts `member`, whose place is known, at another, and who stands there at its own.
    #[inline(always)]
    fn exchange(&mut self, member: Member, from: u16, to: u16) {
        let other = std::mem::replace(&mut self.0[usize::from(to)].holder, member.0);
        self.0[usize::from(from)].holder = other;
        self.0[usize::from(other)].place = from;
        self.0[member.index()].place = to;
    }
}

/// A member that comes first.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The member.
    pub member: Member,
    /// Its queue.
    pub queue: u32,
    place: u16,
    /// Its speed's class.
    class: u8,
}

/// An order of members by which tasks go to the first.
pub trait Rank {
    /// One of those that come first, each as likely.
    fn first(&self, rng: &mut Rng) -> Option<Found>;

    /// Who was found just now gets a task.
    fn take(&mut self, found: &Found);

    /// A member got a task.
    fn add(&mut self, member: Member);

    /// A member's queue is known to be this long.
    fn set(&mut self, member: Member, queue: u32);

    /// As [`Rank::set`], of a member whose queue is most likely as it was.
    fn confirm(&mut self, member: Member, queue: u32);
}

/// The stretches of one order.
#[derive(Clone, Debug)]
struct Stretches {
    /// For each length, the place behind its stretch.
    ends: Box<[u16; LENGTHS]>,
    /// Where the order starts.
    start: u16,
    /// Length of the shortest queue; [`LONGEST`] when there is none.
    least: u16,
}

impl Default for Stretches {
    fn default() -> Self {
        Self { ends: Box::new([0; LENGTHS]), start: 0, least: LONGEST as u16 }
    }
}

impl Stretches {
    /// Ranks `ranked` from the place `start` on; returns the place behind them.
    fn rank(
        &mut self,
        cells: &mut Cells,
        start: u16,
        ranked: impl Iterator<Item = Member> + Clone,
    ) -> u16 {
        self.start = start;
        self.ends.fill(0);
        for member in ranked.clone() {
            self.ends[cells.0[member.index()].length()] += 1;
        }
        let mut place = start;
        for end in self.ends.iter_mut() {
            // Where the stretch starts; each member placed moves it on, at last to the end.
            let members = std::mem::replace(end, place);
            place += members;
        }
        for member in ranked {
            let end = &mut self.ends[cells.0[member.index()].length()];
            cells.0[usize::from(*end)].holder = member.0;
            cells.0[member.index()].place = *end;
            *end += 1;
        }
        self.least = 0;
        self.raise_least();
        place
    }

    /// How many members have the shortest queue.
    #[inline]
    fn ties(&self) -> usize {
        usize::from(self.ends[usize::from(self.least) % LENGTHS] - self.start)
    }

    /// Who was found just now gets a task. True when the shortest queue is another length now.
    #[inline(always)]
    fn take(&mut self, cells: &mut Cells, found: &Found) -> bool {
        if usize::from(self.least) >= LONGEST {
            return self.add(cells, found.member);
        }
        cells.0[found.member.index()].queue = found.queue + 1;
        self.up(cells, found.member, found.place, self.least.into())
    }

    /// A member's queue grows by one task. True when the shortest queue is another length now.
    #[inline]
    fn add(&mut self, cells: &mut Cells, member: Member) -> bool {
        let cell = &mut cells.0[member.index()];
        let length = cell.queue as usize;
        cell.queue = cell.queue.saturating_add(1);
        let place = cell.place;
        length < LONGEST && place != NOWHERE && self.up(cells, member, place, length)
    }

    /// From `length` to the next: to the last place of its stretch, whose border then passes it. True when
    /// the shortest queue is another length now.
    #[inline(always)]
    fn up(&mut self, cells: &mut Cells, member: Member, place: u16, length: usize) -> bool {
        let end = &mut self.ends[length % LENGTHS];
        *end -= 1;
        let end = *end;
        cells.exchange(member, place, end);
        end == self.start && self.raise_least()
    }

    /// A member's queue is this long. True when the shortest queue is another length now.
    #[inline(always)]
    fn set(&mut self, cells: &mut Cells, member: Member, queue: u32) -> bool {
        let (cell, members) = (cells.0[member.index()], cells.0.len());
        let place = cell.place;
        // By far the most often, it is shorter by one; a place beyond all of them is that of who is not ranked.
        if cell.queue == queue.wrapping_add(1)
            && let Some(end) = self.ends[..LONGEST].get_mut(queue as usize)
            && usize::from(place) < members
        {
            cells.0[member.index()].queue = queue;
            cells.exchange(member, place, *end);
            *end += 1;
            let lower = queue < u32::from(self.least);
            self.least = self.least.min(queue as u16);
            return lower;
        }
        cell.queue != queue && self.set_otherwise(cells, member, queue)
    }

    /// As [`Stretches::set`].
    #[inline(never)]
    fn set_otherwise(&mut self, cells: &mut Cells, member: Member, queue: u32) -> bool {
        let cell = &mut cells.0[member.index()];
        let from = cell.length();
        cell.queue = queue;
        let to = cell.length();
        from != to && cell.place != NOWHERE && self.jump(cells, member, from, to)
    }

    /// By some lengths at once.
    fn jump(&mut self, cells: &mut Cells, member: Member, from: usize, to: usize) -> bool {
        let before = self.least;
        for length in from..to {
            self.up(cells, member, cells.0[member.index()].place, length);
        }
        for length in (to..from).rev() {
            self.down(cells, member, cells.0[member.index()].place, length);
        }
        self.least = before.min(to as u16);
        self.raise_least();
        self.least != before
    }

    /// From the next length to `length`: to the first place of its stretch, whose border then passes it.
    #[inline(always)]
    fn down(&mut self, cells: &mut Cells, member: Member, place: u16, length: usize) {
        let end = &mut self.ends[length % LENGTHS];
        cells.exchange(member, place, *end);
        *end += 1;
    }

    /// The shortest queue's length may be out of date, and too low. True when it was.
    fn raise_least(&mut self) -> bool {
        let before = self.least;
        while usize::from(self.least) < LONGEST && self.ends[usize::from(self.least)] == self.start
        {
            self.least += 1;
        }
        self.least != before
    }
}

/// Members ranked by queue. See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    cells: Cells,
    order: Stretches,
    ranked: usize,
}

impl Ranks {
    /// Ranks `ranked`, who are some of `members`; queues known before stay.
    pub fn rank(&mut self, members: usize, ranked: impl Iterator<Item = Member> + Clone) {
        self.cells.resize(members);
        self.ranked = self.order.rank(&mut self.cells, 0, ranked).into();
    }

    /// The queue of a member.
    #[inline]
    #[must_use]
    pub fn queue(&self, member: Member) -> u32 {
        self.cells.queue(member)
    }

    /// Members that are ranked.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranked
    }

    /// Nobody is ranked.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranked == 0
    }

    /// Length of the shortest ranked queue.
    #[inline]
    #[must_use]
    pub fn least(&self) -> usize {
        self.order.least.into()
    }
}

impl Rank for Ranks {
    #[inline(always)]
    fn confirm(&mut self, member: Member, queue: u32) {
        if self.cells.queue(member) != queue {
            self.order.set_otherwise(&mut self.cells, member, queue);
        }
    }

    #[inline(always)]
    fn first(&self, rng: &mut Rng) -> Option<Found> {
        let ties = self.order.ties();
        (ties > 0).then(|| self.cells.at(below(ties, rng.next_u64() as u32), 0))
    }

    #[inline(always)]
    fn take(&mut self, found: &Found) {
        self.order.take(&mut self.cells, found);
    }

    #[inline(always)]
    fn add(&mut self, member: Member) {
        self.order.add(&mut self.cells, member);
    }

    #[inline(always)]
    fn set(&mut self, member: Member, queue: u32) {
        self.order.set(&mut self.cells, member, queue);
    }
}

/// Speeds told apart; members of more are put into steps between the slowest and the fastest.
const CLASSES_MAX: usize = 32;

/// The members of one speed.
#[derive(Clone, Debug)]
struct Class {
    speed: f64,
    order: Stretches,
    /// When one more task would be done by the best member; infinite when there is none.
    soonest: f64,
}

impl Class {
    #[inline]
    fn note_soonest(&mut self) {
        self.soonest = match self.order.ties() {
            0 => f64::INFINITY,
            _ => f64::from(self.order.least + 1) / self.speed,
        };
    }
}

/// Members ranked by (queue + 1) / speed: an order for each speed, and which of them start with the best.
#[derive(Clone, Debug, Default)]
pub struct SpeedRanks {
    cells: Cells,
    classes: Vec<Class>,
    /// Class of each member.
    class: Vec<u8>,
    soonest: f64,
    /// A bit for each class that has a member that is done then.
    first: u32,
}

impl SpeedRanks {
    /// Ranks `active` by the speeds `rate` gives; queues known before stay.
    pub fn rank(&mut self, members: usize, active: &[Member], rate: impl Fn(Member) -> f64) {
        self.cells.resize(members);
        let all = (0..members as u16).map(Member);
        let steps = steps(all.clone().map(&rate).collect());
        self.class = all.map(|member| nearest(&steps, rate(member))).collect();
        self.classes.clear();
        let mut start = 0;
        for (number, &speed) in steps.iter().enumerate() {
            let mut order = Stretches::default();
            let of_class = |member: &Member| usize::from(self.class[member.index()]) == number;
            let ranked = active.iter().copied().filter(of_class);
            start = order.rank(&mut self.cells, start, ranked);
            let mut class = Class { speed, order, soonest: f64::INFINITY };
            class.note_soonest();
            self.classes.push(class);
        }
        self.compare_all();
    }

    #[inline(never)]
    fn set_otherwise(&mut self, member: Member, queue: u32) {
        let number = self.class(member);
        if self.classes[number].order.set_otherwise(&mut self.cells, member, queue) {
            self.compare(number);
        }
    }

    #[inline(always)]
    fn class(&self, member: Member) -> usize {
        self.class[member.index()].into()
    }

    /// Class and place of the member that comes so many places after the first of those that tie.
    fn tied(&self, mut place: usize) -> Option<(usize, usize)> {
        for (number, class) in self.classes.iter().enumerate() {
            let ties = if self.first >> number & 1 == 1 { class.order.ties() } else { 0 };
            if place < ties {
                return Some((number, usize::from(class.order.start) + place));
            }
            place -= ties;
        }
        None
    }

    /// How many members tie.
    fn ties(&self) -> usize {
        let tied = self.classes.iter().enumerate();
        let tied = tied.filter(|(number, _)| self.first >> number & 1 == 1);
        tied.map(|(_, class)| class.order.ties()).sum()
    }

    /// The shortest queue of a class is another.
    fn compare(&mut self, number: usize) {
        let class = &mut self.classes[number];
        class.note_soonest();
        if class.soonest < self.soonest {
            self.soonest = class.soonest;
            self.first = 1 << number;
        } else if class.soonest == self.soonest {
            self.first |= 1 << number;
        } else {
            self.first &= !(1 << number);
            if self.first == 0 {
                self.compare_all();
            }
        }
    }

    fn compare_all(&mut self) {
        let soonest = self.classes.iter().map(|class| class.soonest);
        self.soonest = soonest.clone().fold(f64::INFINITY, f64::min);
        let tied = soonest.enumerate().filter(|(_, own)| own.is_finite() && *own == self.soonest);
        self.first = tied.fold(0, |bits, (number, _)| bits | 1 << number);
    }
}

impl Rank for SpeedRanks {
    #[inline(always)]
    fn confirm(&mut self, member: Member, queue: u32) {
        if self.cells.queue(member) != queue {
            self.set_otherwise(member, queue);
        }
    }

    #[inline(always)]
    fn first(&self, rng: &mut Rng) -> Option<Found> {
        let bits = rng.next_u64() as u32;
        if self.first == 0 {
            return None;
        }
        // Seldom more than two classes tie, and which it is cannot be predicted.
        let (one, other) = (self.first.trailing_zeros(), self.first.ilog2());
        if self.first != 1 << one | 1 << other {
            let (class, place) = self.tied(below(self.ties(), bits))?;
            return Some(self.cells.at(place, class as u8));
        }
        let (a, b) = (&self.classes[one as usize].order, &self.classes[other as usize].order);
        let ties = a.ties();
        let both = ties + if one == other { 0 } else { b.ties() };
        let place = below(both, bits);
        let second = place >= ties;
        let from = select(second, usize::from(a.start), usize::from(b.start).wrapping_sub(ties));
        Some(self.cells.at(from.wrapping_add(place), select(second, one, other) as u8))
    }

    #[inline(always)]
    fn take(&mut self, found: &Found) {
        let number = usize::from(found.class);
        if self.classes[number].order.take(&mut self.cells, found) {
            self.compare(number);
        }
    }

    #[inline(always)]
    fn add(&mut self, member: Member) {
        let number = self.class(member);
        if self.classes[number].order.add(&mut self.cells, member) {
            self.compare(number);
        }
    }

    #[inline(always)]
    fn set(&mut self, member: Member, queue: u32) {
        let number = self.class(member);
        if self.classes[number].order.set(&mut self.cells, member, queue) {
            self.compare(number);
        }
    }
}

/// Members ranked by queue, or by queue and speed.
#[derive(Clone, Debug)]
pub enum Ranking {
    /// By queue.
    Queue(Ranks),
    /// By (queue + 1) / speed.
    Delay(SpeedRanks),
}

impl Ranking {
    /// By queue and speed, or by queue alone.
    #[must_use]
    pub fn new(by_delay: bool) -> Self {
        match by_delay {
            true => Self::Delay(SpeedRanks::default()),
            false => Self::Queue(Ranks::default()),
        }
    }

    /// Ranks a view's active members; queues known before stay.
    pub fn rank(&mut self, view: &View) {
        match self {
            Self::Queue(ranks) => ranks.rank(view.members(), view.active().iter().copied()),
            Self::Delay(ranks) => ranks.rank(view.members(), view.active(), |m| view.rate(m)),
        }
    }

    /// One of the first members, each as likely.
    #[inline]
    pub fn first(&self, rng: &mut Rng) -> Option<Found> {
        match self {
            Self::Queue(ranks) => ranks.first(rng),
            Self::Delay(ranks) => ranks.first(rng),
        }
    }

    /// A member got a task.
    #[inline]
    pub fn add(&mut self, member: Member) {
        match self {
            Self::Queue(ranks) => ranks.add(member),
            Self::Delay(ranks) => ranks.add(member),
        }
    }

    /// A member's queue is known to be this long.
    #[inline]
    pub fn set(&mut self, member: Member, queue: u32) {
        match self {
            Self::Queue(ranks) => ranks.set(member, queue),
            Self::Delay(ranks) => ranks.set(member, queue),
        }
    }
}

/// The different speeds in rising order; equal ratios between slowest and fastest when they are too many.
fn steps(mut rates: Vec<f64>) -> Vec<f64> {
    rates.retain(|rate| *rate > 0.0);
    rates.sort_unstable_by(f64::total_cmp);
    rates.dedup();
    match (rates.first(), rates.last()) {
        (Some(&least), Some(&most)) if rates.len() > CLASSES_MAX => {
            let step = (most / least).powf(1.0 / (CLASSES_MAX - 1) as f64);
            (0..CLASSES_MAX).map(|i| least * step.powi(i as i32)).collect()
        }
        (None, _) => vec![1.0],
        _ => rates,
    }
}

/// The step nearest to a rate by ratio.
fn nearest(steps: &[f64], rate: f64) -> u8 {
    let after = steps.partition_point(|step| *step < rate).min(steps.len() - 1);
    let before = after.saturating_sub(1);
    let nearer = rate * rate < steps[before] * steps[after];
    (if nearer { before } else { after }) as u8
}

#[cfg(test)]
mod tests {
    use super::super::Rng;
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    const MEMBERS: u16 = 20;

    proptest! {
        /// The ranks say what a scan of plain queues says, whatever happened.
        #[test]
        fn behaves_as_a_scan(
            steps in proptest::collection::vec((0..4_u8, 0..MEMBERS, 0..1200_u32), 0..200),
        ) {
            let mut rng = Rng::seed_from_u64(1);
            let mut queues = [0_u32; MEMBERS as usize];
            let mut ranked = [true; MEMBERS as usize];
            let mut ranks = Ranks::default();
            let rank = |ranks: &mut Ranks, ranked: &[bool]| {
                let members = (0..MEMBERS).map(Member).filter(|m| ranked[m.index()]);
                ranks.rank(MEMBERS.into(), members);
            };
            rank(&mut ranks, &ranked);
            for (step, member, queue) in steps {
                let member = Member(member);
                match step {
                    0 => {
                        queues[member.index()] = queue;
                        ranks.set(member, queue);
                    }
                    1 => {
                        ranked[member.index()] ^= true;
                        rank(&mut ranks, &ranked);
                    }
                    2 => {
                        queues[member.index()] += 1;
                        ranks.add(member);
                    }
                    _ => {
                        if let Some(found) = ranks.first(&mut rng) {
                            let taken = found.member;
                            prop_assert!(ranked[taken.index()]);
                            ranks.take(&found);
                            queues[taken.index()] += 1;
                            prop_assert_eq!(ranks.queue(taken), queues[taken.index()]);
                        }
                    }
                }
                let scan = (0..MEMBERS.into()).filter(|&m| ranked[m]);
                let least = scan.clone().map(|m| queues[m].min(LONGEST as u32)).min();
                match ranks.first(&mut rng).map(|found| found.member) {
                    None => prop_assert_eq!(least, None),
                    Some(shortest) => {
                        prop_assert!(ranked[shortest.index()]);
                        prop_assert_eq!(Some(queues[shortest.index()].min(1023)), least);
                        let ties = scan.filter(|&m| Some(queues[m].min(1023)) == least).count();
                        prop_assert_eq!(ranks.order.ties(), ties);
                    }
                }
            }
        }
    }

    proptest! {
        /// As above, by speed, with few and with many speeds.
        #[test]
        fn behaves_as_a_scan_by_speed(
            speeds in 1..=MEMBERS,
            steps in proptest::collection::vec((0..4_u8, 0..MEMBERS, 0..60_u32), 0..200),
        ) {
            let mut rng = Rng::seed_from_u64(1);
            let mut queues = [0_u32; MEMBERS as usize];
            let mut active: Vec<Member> = (0..MEMBERS).map(Member).collect();
            let rate = |member: Member| 1.0 + f64::from(member.0 % speeds);
            let mut ranks = SpeedRanks::default();
            ranks.rank(MEMBERS.into(), &active, rate);
            for (step, member, queue) in steps {
                let member = Member(member);
                match step {
                    0 => {
                        queues[member.index()] = queue;
                        ranks.set(member, queue);
                    }
                    1 => {
                        match active.iter().position(|&other| other == member) {
                            Some(place) => { active.remove(place); },
                            None => active.push(member),
                        }
                        ranks.rank(MEMBERS.into(), &active, rate);
                    }
                    2 => {
                        queues[member.index()] += 1;
                        ranks.add(member);
                    }
                    _ => {
                        if let Some(found) = ranks.first(&mut rng) {
                            prop_assert_eq!(found.queue, queues[found.member.index()]);
                            ranks.take(&found);
                            queues[found.member.index()] += 1;
                        }
                    }
                }
                let time = |member: Member| f64::from(queues[member.index()] + 1) / rate(member);
                let soonest = active.iter().map(|&m| time(m)).fold(f64::INFINITY, f64::min);
                match ranks.first(&mut rng) {
                    None => prop_assert!(active.is_empty()),
                    Some(found) => {
                        prop_assert!(active.contains(&found.member));
                        prop_assert_eq!(time(found.member), soonest);
                        let ties = active.iter().filter(|&&m| time(m) == soonest).count();
                        prop_assert_eq!(ranks.ties(), ties);
                    }
                }
            }
        }
    }

    #[test]
    fn ties_are_broken_uniformly() {
        let mut rng = Rng::seed_from_u64(1);
        let mut ranks = Ranks::default();
        ranks.rank(8, (0..8).map(Member));
        (0..4).for_each(|member| ranks.add(Member(2 * member)));
        let mut counts = [0_u32; 8];
        for _ in 0..4000 {
            counts[ranks.first(&mut rng).unwrap().member.index()] += 1;
        }
        // 1000 each with a deviation of 27; six of them allowed.
        for (member, count) in counts.into_iter().enumerate() {
            assert!(if member % 2 == 0 { count == 0 } else { count.abs_diff(1000) < 165 });
        }
    }

    #[test]
    fn speeds_weigh() {
        let mut rng = Rng::seed_from_u64(1);
        let mut ranks = SpeedRanks::default();
        let active = [Member(0), Member(1), Member(2)];
        let rates = [1.0, 10.0, 1.0];
        ranks.rank(3, &active, |member| rates[member.index()]);
        for _ in 0..9 {
            assert_eq!(ranks.first(&mut rng).unwrap().member, Member(1));
            ranks.add(Member(1));
        }
        let mut counts = [0_u32; 3]; // all three tie now
        for _ in 0..3000 {
            counts[ranks.first(&mut rng).unwrap().member.index()] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 160), "{counts:?}");
    }

    #[test]
    fn many_speeds_become_steps() {
        let rates: Vec<f64> = (0..100).map(|i| 1.0 + f64::from(i) / 10.0).collect();
        let steps = steps(rates.clone());
        assert_eq!(steps.len(), CLASSES_MAX);
        for rate in rates {
            let step = steps[usize::from(nearest(&steps, rate))];
            assert!((rate / step - 1.0).abs() < 0.05, "{rate} {step}");
        }
    }
}
