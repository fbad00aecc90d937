//! Members ranked by the completion time of one more task: (queue + half) / speed. Members of one speed form a
//! class with its own order. The front of a run of choices ([`Rank`]) has all tied members. Two of their classes, the
//! *sides*, have fields of their own, so that a choice between them takes no branch. Members of further classes take a
//! look-up.
//!
//! A class may have a table, which replaces each queue length by the number of tasks that count: `eft` subtracts the
//! tasks that will end before a new one arrives. It may also have a bound. A member whose queue has reached the bound
//! is *full* and never in the front.
//!
//! Some members may be *reserved*. They form classes of their own, behind all others. The next choices take them first
//! among equal times, or last, or never ([`ReserveUse`]).
//!
//! The *soonest* time is the earliest completion time of one more task. The *best classes* are those with a member of
//! that time.

use super::stretches::{self, Cell, Stretches};
use super::{Front, Member, Rank, RankSource, RankedMember, Report};
use crate::policy::ReserveUse;
use crate::policy::classes::reserved_end;
use crate::policy::sample::{below, select};

/// Maximum number of classes, one bit each in `best_classes`. Without reserved members each speed has one class, with
/// them two. More speeds are rounded to steps between the slowest and the fastest.
const CLASSES_MAX: usize = 32;
/// Class of an unused side.
const NO_CLASS: u8 = u8::MAX;
/// Bound of a class without one.
pub const UNBOUNDED: u16 = u16::MAX;
/// Number of queue lengths with an entry in a class's table. In longer queues each task beyond the table counts as one.
pub const TABLE: usize = 128;

/// Members of one speed.
#[derive(Clone, Debug)]
struct Class {
    /// The speed.
    speed: f64,
    /// Order of the members by queue.
    order: Stretches,
    /// Completion time of one more task at the best member; infinite if no member has room.
    soonest: f64,
    /// Shortest queue from which `soonest` was computed.
    soonest_queue: u16,
    /// Queue from which on a member is full.
    bound: u16,
}

/// Numbers of tied members that have not received a task in this run: of the first side, of the second side, and of all
/// other classes, 16 bits each from the lowest on.
#[derive(Clone, Copy, Debug)]
pub struct Ties(u64);

impl Ties {
    /// Returns the three numbers.
    #[inline(always)]
    fn split(self) -> [u32; 3] {
        [0, 16, 32].map(|shift| (self.0 >> shift) as u32 & 0xFFFF)
    }
}

impl Front for Ties {
    #[inline(always)]
    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// One of the first two classes with tied members: a copy of the fields that choices read, which saves them a look-up.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// Place of the first member of its order.
    start: u32,
    /// Its shortest queue, which all its tied members have.
    least: u32,
    /// Class, or [`NO_CLASS`].
    class: u8,
}

/// Front of a run of choices in a single class; see [`SpeedRanks::open_class`].
#[derive(Clone, Copy, Debug)]
pub struct ClassFront {
    /// Place of the first member.
    first: u32,
    /// Number of members left.
    pub members: u32,
    /// Queue of each. In the last stretch (`LONGEST`) the queues may be longer.
    pub queue: u32,
    /// Number of the class.
    number: usize,
}

/// Members with equal queues and speeds, and so with equal completion times. `eft` adds up levels to fill queues to a
/// common height.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// Number of the members.
    pub members: usize,
    /// Place of the first one in the array of members.
    first: usize,
    /// Number of tasks of each that count, plus `half`.
    pub tasks: f64,
    /// Speed of each.
    pub speed: f64,
}

/// Totals over all full members. `eft` lets a task wait if they would end it sooner than a member with room.
#[derive(Clone, Copy, Debug, Default)]
pub struct FullMembers {
    /// Sum of the tasks, plus `half` for each member.
    pub tasks: f64,
    /// Sum of the speeds.
    pub speed: f64,
}

impl Side {
    /// An unused side.
    const NONE: Self = Self { start: 0, least: 0, class: NO_CLASS };
}

/// Members ranked by (queue + half) / speed: an order for each speed, and the set of classes with the best
/// members.
#[derive(Clone, Debug)]
pub struct SpeedRanks {
    /// Queue and place of each member.
    cells: Vec<Cell>,
    /// Classes by ascending speed; then those of the reserved members, in the same order.
    classes: Vec<Class>,
    /// Speeds of the classes, in ascending order.
    steps: Vec<f64>,
    /// Use of reserved members by the next choices.
    reserve_use: ReserveUse,
    /// Class of each member.
    class: Vec<u8>,
    /// Earliest completion time of one more task, over all classes that may be chosen now.
    soonest: f64,
    /// Bit set of the classes with a member of the earliest completion time.
    best_classes: u32,
    /// Sides of the front.
    sides: [Side; 2],
    /// The new task's part in the completion time, added to the tasks of each queue; 1 counts the whole task.
    half: f64,
    /// Tasks that count for each queue, [`TABLE`] values for each class; empty if all tasks count.
    table: Vec<f64>,
}

impl SpeedRanks {
    /// Creates an empty order that adds `half` to each queue.
    #[must_use]
    pub fn new(half: f64) -> Self {
        Self {
            half,
            table: Vec::new(),
            cells: Vec::new(),
            classes: Vec::new(),
            steps: Vec::new(),
            reserve_use: ReserveUse::default(),
            class: Vec::new(),
            soonest: f64::INFINITY,
            best_classes: 0,
            sides: [Side::NONE; 2],
        }
    }

    /// Ranks the members in `active`, out of `members`, by the speeds that `rate` returns. Members keep their queues.
    /// Discards tables and bounds, because the classes may change.
    pub fn rank(&mut self, members: usize, active: &[Member], rate: impl Fn(Member) -> f64) {
        self.rank_with_reserve(members, active, 0, rate);
    }

    /// Like [`SpeedRanks::rank`], with `reserve` members reserved, at most all except one.
    pub fn rank_with_reserve(
        &mut self,
        members: usize,
        active: &[Member],
        reserve: usize,
        rate: impl Fn(Member) -> f64,
    ) {
        stretches::resize(&mut self.cells, members);
        let all = (0..members as u16).map(Member);
        let steps_max = if reserve > 0 { CLASSES_MAX / 2 } else { CLASSES_MAX };
        self.steps.clear();
        self.steps.extend(all.clone().map(&rate));
        make_steps(&mut self.steps, steps_max);
        self.class.clear();
        self.class.extend(all.map(|member| nearest(&self.steps, rate(member))));
        let end = reserved_end(members, active, reserve);
        for class in &mut self.class[..end] {
            *class += self.steps.len() as u8;
        }
        self.classes.clear();
        self.classes.reserve((2 * members).clamp(1, CLASSES_MAX));
        let mut start = 0;
        let sets = if end == 0 { 1 } else { 2 };
        let speeds = self.steps.iter().cycle().take(sets * self.steps.len());
        for (number, &speed) in speeds.enumerate() {
            let mut order = Stretches::default();
            let of_class = |member: &Member| usize::from(self.class[member.index()]) == number;
            let ranked = active.iter().copied().filter(of_class);
            start = order.rank(&mut self.cells, start, ranked);
            let (soonest, soonest_queue) = (f64::INFINITY, 0);
            self.classes.push(Class { speed, order, soonest, soonest_queue, bound: UNBOUNDED });
        }
        self.table.clear();
        self.note_all();
    }

    /// Sets the table and the bound of each class: `fill` receives its speed, writes the `TABLE` values, and returns
    /// the bound, or `UNBOUNDED`. A policy with tables calls it after each [`SpeedRanks::rank`], and when the values
    /// change. Allocates only at the first call for a number of members.
    pub fn set_tables(&mut self, mut fill: impl FnMut(f64, &mut [f64]) -> u16) {
        // Room for the largest number of classes that these members can have.
        self.table.reserve(self.classes.capacity() * TABLE - self.table.len());
        self.table.resize(self.classes.len() * TABLE, 0.0);
        for (class, table) in self.classes.iter_mut().zip(self.table.chunks_mut(TABLE)) {
            class.bound = fill(class.speed, table);
        }
        self.note_all();
    }

    /// Returns the number of tasks that count at a member of a class with `queue` tasks, plus `half`.
    #[inline]
    fn tasks(&self, class: usize, queue: u16) -> f64 {
        let entry = usize::from(queue).min(TABLE - 1);
        let tasks = match self.table.get(class * TABLE + entry) {
            Some(tasks) => tasks + f64::from(queue.saturating_sub(TABLE as u16 - 1)),
            None => f64::from(queue),
        };
        tasks + self.half
    }

    /// Recomputes the earliest completion time of a class (`soonest`), from its shortest queue.
    #[inline]
    fn note_soonest(&mut self, number: usize) {
        let Class { ref order, speed, bound, .. } = self.classes[number];
        let least = order.least;
        let has_room = order.ties() > 0 && least < bound;
        let soonest = if has_room { self.tasks(number, least) / speed } else { f64::INFINITY };
        let class = &mut self.classes[number];
        (class.soonest, class.soonest_queue) = (soonest, least);
    }

    /// Recomputes the earliest completion time of each class, and compares them.
    fn note_all(&mut self) {
        (0..self.classes.len()).for_each(|number| self.note_soonest(number));
        self.compare_all();
    }

    /// Returns the earliest completion time of one more task at a member with room; infinite without one.
    #[inline(always)]
    #[must_use]
    pub fn soonest(&self) -> f64 {
        self.soonest
    }

    /// Returns the earliest completion time of one more task at a member that is not reserved.
    pub fn soonest_unreserved(&self) -> f64 {
        let unreserved = self.classes.iter().take(self.steps.len());
        unreserved.map(|class| class.soonest).fold(f64::INFINITY, f64::min)
    }

    /// Returns the speed by which a member is ranked: that of its class, which may differ from the member's rate by
    /// rounding.
    #[inline]
    #[must_use]
    pub fn speed(&self, member: Member) -> f64 {
        self.classes[self.class(member)].speed
    }

    /// Returns the largest bound; `None` if some class has none.
    #[must_use]
    pub fn bound(&self) -> Option<usize> {
        let largest = self.classes.iter().map(|class| class.bound).max()?;
        (largest < UNBOUNDED).then(|| largest.into())
    }

    /// Returns the totals over all full members. Assumes that their queues equal the bound.
    #[must_use]
    pub fn full_members(&self) -> FullMembers {
        let mut all = FullMembers::default();
        let allowed = self.classes.iter().take(self.allowed());
        for class in allowed.filter(|class| class.bound < UNBOUNDED) {
            let members = class.order.members_from(class.bound) as f64;
            all.tasks += members * (f64::from(class.bound) + self.half);
            all.speed += members * class.speed;
        }
        all
    }

    /// Sets the use of reserved members by the next choices.
    pub fn set_reserve_use(&mut self, reserve_use: ReserveUse) {
        let former = std::mem::replace(&mut self.reserve_use, reserve_use);
        if former != reserve_use {
            self.compare_all();
        }
    }

    /// Returns the number of classes whose members may be chosen now.
    #[inline(always)]
    fn allowed(&self) -> usize {
        match self.reserve_use {
            ReserveUse::Never => self.steps.len(),
            _ => self.classes.len(),
        }
    }

    /// Begins a run of choices among the members with the earliest time. If several classes tie, the front has only
    /// those of one class: the slowest reserved one if the use of these is `First`, otherwise the slowest one that is
    /// not reserved, if any. `None` if no member has room. Faster than [`Rank::open`], whose front has all tied
    /// members.
    #[inline(always)]
    pub fn open_class(&mut self) -> Option<ClassFront> {
        let mut best = self.best_classes;
        if self.classes.len() > self.steps.len() && self.reserve_use == ReserveUse::First {
            let reserved = best >> self.steps.len() << self.steps.len();
            best = if reserved != 0 { reserved } else { best };
        }
        let number = best.trailing_zeros() as usize;
        let order = &self.classes.get(number)?.order;
        let (first, queue) = (order.start.into(), order.least.into());
        Some(ClassFront { first, members: order.ties() as u32, queue, number })
    }

    /// Gives a task to a uniform member of a non-empty front, chosen by random `bits`, and removes it from the front.
    /// Returns the member.
    #[inline(always)]
    pub fn take_of_class(&mut self, front: &mut ClassFront, bits: u32) -> Member {
        let (first, last) = (front.first as usize, (front.first + front.members) as usize - 1);
        let place = first + below(front.members as usize, bits);
        let member = Member(self.cells[place].holder);
        if front.queue as usize == stretches::LONGEST {
            // Members of the last stretch have different queues. After one more task they stay in it, and in the front.
            self.cells[member.index()].queue += 1;
            return member;
        }
        self.cells[member.index()].queue = front.queue + 1;
        stretches::exchange(&mut self.cells, member, place, last);
        front.members -= 1;
        member
    }

    /// Ends a run of choices among the members of one class.
    #[inline(always)]
    pub fn close_class(&mut self, front: ClassFront) {
        if front.queue as usize != stretches::LONGEST
            && self.classes[front.number].order.close(front.members)
        {
            self.compare(front.number);
        }
    }

    /// Calls `each` with the levels of all classes, by ascending completion time, until it returns false. Ignores
    /// bounds: full members are in their levels, too.
    pub fn levels(&self, mut each: impl FnMut(Level) -> bool) {
        // Next queue length of each class.
        let mut next = [0_u16; CLASSES_MAX];
        for (next, class) in next.iter_mut().zip(&self.classes) {
            *next = if class.order.ties() > 0 { class.order.least } else { UNBOUNDED };
        }
        // Each step takes the class whose next length has the earliest time.
        loop {
            let open = (0..self.allowed()).filter(|&number| next[number] < UNBOUNDED);
            let times = open.map(|number| {
                (self.tasks(number, next[number]) / self.classes[number].speed, number)
            });
            let Some((_, number)) = times.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
            let (class, queue) = (&self.classes[number], next[number]);
            let (first, members) = class.order.stretch(queue);
            next[number] = class.order.next_length(queue).unwrap_or(UNBOUNDED);
            let tasks = self.tasks(number, queue);
            if members > 0 && !each(Level { members, first, tasks, speed: class.speed }) {
                return;
            }
        }
    }

    /// Returns a uniform member of a level, chosen by random `bits`.
    #[inline]
    #[must_use]
    pub fn member_of(&self, level: &Level, bits: u32) -> Member {
        Member(self.cells[level.first + below(level.members, bits)].holder)
    }

    /// Returns the class of a member.
    #[inline(always)]
    fn class(&self, member: Member) -> usize {
        self.class[member.index()].into()
    }

    /// Iterates over the classes with tied members.
    fn tied(&self) -> impl Iterator<Item = (usize, &Stretches)> {
        let tied = self.classes.iter().enumerate();
        let tied = tied.filter(|(number, _)| self.best_classes >> number & 1 == 1);
        tied.map(|(number, class)| (number, &class.order))
    }

    /// Returns the array place of the tied member with index `place` among those outside both sides.
    #[cold]
    #[inline(never)]
    fn find_elsewhere(&self, mut place: usize) -> Option<usize> {
        let on_no_side =
            |class: usize| self.sides.iter().all(|side| usize::from(side.class) != class);
        for (_, order) in self.tied().filter(|(class, _)| on_no_side(*class)) {
            if place < order.ties() {
                return Some(usize::from(order.start) + place);
            }
            place -= order.ties();
        }
        None
    }

    /// Gives a task to a member found outside both sides. Ends the run, because the front has one number for all these
    /// classes and cannot record the member. Begins another run and returns its front.
    #[cold]
    #[inline(never)]
    fn take_elsewhere(&mut self, front: Ties, member: Member) -> Ties {
        self.close(front);
        self.add(member);
        self.open()
    }

    /// Updates the best classes after the shortest queue of class `number` changed.
    fn compare(&mut self, number: usize) {
        self.note_soonest(number);
        if number >= self.allowed() {
            return;
        }
        let class = &self.classes[number];
        if class.soonest < self.soonest {
            self.soonest = class.soonest;
            self.best_classes = 1 << number;
        } else if class.soonest == self.soonest && class.soonest.is_finite() {
            self.best_classes |= 1 << number;
        } else {
            // The class became worse. If it was the only best one, any class may be the best now.
            self.best_classes &= !(1 << number);
            if self.best_classes == 0 {
                self.compare_all();
            }
        }
    }

    /// Updates the best classes after the shortest queues of some classes changed.
    #[inline(never)]
    fn compare_changed(&mut self) {
        for number in 0..self.classes.len() {
            let class = &self.classes[number];
            if class.order.least != class.soonest_queue {
                self.compare(number);
            }
        }
    }

    /// Recomputes the earliest completion time and its classes.
    fn compare_all(&mut self) {
        let soonest = self.classes.iter().take(self.allowed()).map(|class| class.soonest);
        self.soonest = soonest.clone().fold(f64::INFINITY, f64::min);
        let tied =
            soonest.enumerate().filter(|(_, time)| time.is_finite() && *time == self.soonest);
        self.best_classes = tied.fold(0, |bits, (number, _)| bits | 1 << number);
    }
}

impl Rank for SpeedRanks {
    type Front = Ties;

    /// Makes the front of all best classes: the first two become sides.
    fn open(&mut self) -> Ties {
        // The sides, the packed numbers of `Ties`, and the index of the next free side.
        let (mut sides, mut ties, mut free) = ([Side::NONE; 2], 0, 0);
        for (number, order) in self.tied() {
            let members = order.ties() as u64;
            // The first stretch of an order with `is_full` has different queues. A side can express only one.
            if order.is_full() || free == sides.len() {
                ties += members << 32;
                continue;
            }
            let (start, least) = (order.start.into(), order.least.into());
            sides[free] = Side { start, least, class: number as u8 };
            ties += members << (16 * free);
            free += 1;
        }
        self.sides = sides;
        Ties(ties)
    }

    #[inline(always)]
    fn find(&self, front: Ties, bits: u32) -> Option<RankedMember> {
        // Draws an index over all tied members: first those of side a, then of side b, then all others.
        let ([in_a, in_b, elsewhere], [a, b]) = (front.split(), &self.sides);
        let place = below((in_a + in_b + elsewhere) as usize, bits) as u32;
        if place >= in_a + in_b {
            let place = self.find_elsewhere((place - in_a - in_b) as usize)?;
            let member = Member(self.cells[place].holder);
            let (queue, source) = (self.queue(member), RankSource::Elsewhere);
            return Some(RankedMember { member, queue, place, last: place, source });
        }
        // The side is unpredictable, so `select(second, a, b)` returns `b` for the second side without a branch. Drawn
        // places of the second side begin at `in_a`.
        let second = place >= in_a;
        let start = select(second, a.start, b.start.wrapping_sub(in_a));
        let last = start.wrapping_add(select(second, in_a, in_a + in_b) - 1) as usize;
        let place = place.wrapping_add(start) as usize;
        let member = Member(self.cells[place].holder);
        let (queue, source) = (select(second, a.least, b.least), RankSource::Side(second));
        Some(RankedMember { member, queue, place, last, source })
    }

    /// Swaps the member with the last one of its side, so that the side gets shorter by one.
    #[inline(always)]
    fn take(&mut self, front: Ties, found: RankedMember) -> Ties {
        let RankSource::Side(second) = found.source else {
            return self.take_elsewhere(front, found.member);
        };
        self.cells[found.member.index()].queue = found.queue + 1;
        stretches::exchange(&mut self.cells, found.member, found.place, found.last);
        // One member fewer on its side: the lowest 16 bits, or the next ones.
        Ties(front.0 - select(second, 1, 1 << 16))
    }

    /// Writes the numbers of members left into the orders of both sides, and compares classes whose shortest queue
    /// changed. Members elsewhere need nothing: `take_elsewhere` updates their orders at once.
    #[inline(never)]
    fn close(&mut self, front: Ties) {
        for (side, ties) in self.sides.into_iter().zip(front.split()) {
            let class = usize::from(side.class);
            if let Some(side_class) = self.classes.get_mut(class)
                && side_class.order.close(ties)
            {
                self.compare(class);
            }
        }
    }

    #[inline(always)]
    fn queue(&self, member: Member) -> u32 {
        self.cells[member.index()].queue
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

    /// Sets all queues first, and compares the classes once at the end.
    #[inline(always)]
    fn set_all(
        &mut self,
        reports: &[Report],
        members: usize,
        mut queue_of: impl FnMut(&Report) -> u32,
    ) {
        let (cells, classes) = (&mut self.cells[..members], &mut self.classes[..]);
        let class = &self.class[..members];
        let mut changed = false;
        for report in reports {
            let (member, queue) = (report.member, queue_of(report));
            let number = class[member.index()];
            changed |= classes[usize::from(number)].order.set(cells, member, queue);
        }
        if changed {
            self.compare_changed();
        }
    }
}

/// Reduces the members' speeds to the distinct positive ones in ascending order; without any, to 1. If there are too
/// many, replaces them by steps of equal ratio between the slowest and the fastest.
fn make_steps(rates: &mut Vec<f64>, steps_max: usize) {
    rates.retain(|rate| *rate > 0.0);
    rates.sort_unstable_by(f64::total_cmp);
    rates.dedup();
    match (rates.first(), rates.last()) {
        (Some(&least), Some(&most)) if rates.len() > steps_max => {
            let step = (most / least).powf(1.0 / (steps_max - 1) as f64);
            rates.clear();
            rates.extend((0..steps_max).map(|i| least * step.powi(i as i32)));
        }
        (None, _) => rates.push(1.0),
        _ => {}
    }
}

/// Returns the index of the step nearest to a rate by ratio: the member's class. A rate of 0 gets the slowest one.
fn nearest(steps: &[f64], rate: f64) -> u8 {
    let after = steps.partition_point(|step| *step < rate).min(steps.len() - 1);
    let before = after.saturating_sub(1);
    // The border between two steps is their geometric mean.
    let is_nearer_before = rate * rate < steps[before] * steps[after];
    (if is_nearer_before { before } else { after }) as u8
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Change, change, first};
    use super::*;
    use crate::policy::Rng;
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng};

    const MEMBERS: u16 = 20;

    proptest! {
        /// Equals a scan of plain queues after any sequence of steps, with few and with many speeds.
        // promise: scheduling.5
        #[test]
        fn behaves_as_a_scan_by_speed(
            speeds in 1..=MEMBERS,
            steps in proptest::collection::vec((0..4_u8, 0..MEMBERS, 0..60_u32), 0..200),
        ) {
            let mut rng = Rng::seed_from_u64(1);
            let mut queues = [0_u32; MEMBERS as usize];
            let mut active: Vec<Member> = (0..MEMBERS).map(Member).collect();
            let rate = |member: Member| 1.0 + f64::from(member.0 % speeds);
            let mut ranks = SpeedRanks::new(1.0);
            ranks.rank(MEMBERS.into(), &active, rate);
            for (step, member, queue) in steps {
                let member = Member(member);
                match step {
                    1 => {
                        match active.iter().position(|&other| other == member) {
                            Some(place) => { active.remove(place); },
                            None => active.push(member),
                        }
                        ranks.rank(MEMBERS.into(), &active, rate);
                    }
                    step => {
                        let step = match step {
                            0 => Change::Set(member, queue),
                            2 => Change::Add(member),
                            _ => Change::Take(queue % 8),
                        };
                        change(&mut ranks, &mut queues, step, &mut rng)?;
                    }
                }
                let time = |member: Member| f64::from(queues[member.index()] + 1) / rate(member);
                let soonest = active.iter().map(|&m| time(m)).fold(f64::INFINITY, f64::min);
                match first(&mut ranks, &mut rng) {
                    None => prop_assert!(active.is_empty()),
                    Some(found) => {
                        prop_assert!(active.contains(&found.member));
                        prop_assert_eq!(time(found.member), soonest);
                        let ties = active.iter().filter(|&&m| time(m) == soonest).count();
                        let known: u32 = ranks.open().split().iter().sum();
                        prop_assert_eq!(known as usize, ties);
                    }
                }
            }
        }
    }

    proptest! {
        /// Equals a scan of plain queues, with and without the reserved members.
        // promise: scheduling.5
        #[test]
        fn behaves_as_a_scan_with_a_reserve(
            reserve in 0..30_usize,
            speeds in 1..=16_u16, // more would be rounded
            steps in proptest::collection::vec((0..3_usize, 0..MEMBERS, 0..60_u32), 0..100),
        ) {
            let mut rng = Rng::seed_from_u64(1);
            let mut queues = [0_u32; MEMBERS as usize];
            // The order of the active members does not matter.
            let mut active: Vec<Member> = (0..MEMBERS).rev().map(Member).collect();
            let rate = |member: Member| 1.0 + f64::from(member.0 % speeds);
            let mut ranks = SpeedRanks::new(1.0);
            ranks.rank_with_reserve(MEMBERS.into(), &active, reserve, rate);
            let reserve = reserve.min(active.len() - 1);
            active.reverse();
            let time = |queues: &[u32], member: Member| {
                f64::from(queues[member.index()] + 1) / rate(member)
            };
            for (usage, member, queue) in steps {
                queues[usize::from(member)] = queue;
                ranks.set(Member(member), queue);
                let reserve_use = [ReserveUse::First, ReserveUse::Last, ReserveUse::Never][usage];
                ranks.set_reserve_use(reserve_use);
                let is_kept = reserve_use == ReserveUse::Never;
                let allowed = if is_kept { &active[reserve..] } else { &active[..] };
                let times = || allowed.iter().map(|&member| time(&queues, member));
                let soonest = times().fold(f64::INFINITY, f64::min);
                prop_assert_eq!(ranks.soonest(), soonest);
                let mut front = ranks.open_class().unwrap();
                let chosen = ranks.take_of_class(&mut front, rng.next_u64() as u32);
                ranks.close_class(front);
                prop_assert!(allowed.contains(&chosen));
                prop_assert_eq!(time(&queues, chosen), soonest);
                let is_reserved = |member: Member| member.index() < reserve;
                let tied = |&&member: &&Member| time(&queues, member) == soonest;
                let mut tied = allowed.iter().filter(tied);
                let expected = match reserve_use {
                    ReserveUse::First => tied.any(|&member| is_reserved(member)),
                    _ => tied.all(|&member| is_reserved(member)),
                };
                prop_assert_eq!(is_reserved(chosen), expected);
                queues[chosen.index()] += 1;
            }
        }
    }

    proptest! {
        /// Equals a scan of plain queues with tables, bounds and levels.
        // promise: scheduling.5
        #[test]
        fn behaves_as_a_scan_with_bounds(
            bounds in proptest::array::uniform3(1..9_u16),
            steps in proptest::collection::vec((0..3_u8, 0..MEMBERS, 0..200_u32), 0..200),
        ) {
            let mut rng = Rng::seed_from_u64(1);
            let mut queues = [0_u32; MEMBERS as usize];
            let active: Vec<Member> = (0..MEMBERS).map(Member).collect();
            let class = |member: Member| usize::from(member.0 % 3);
            let rate = |member: Member| 1.0 + class(member) as f64;
            let mut ranks = SpeedRanks::new(0.35);
            ranks.rank(MEMBERS.into(), &active, rate);
            // The square root of each queue counts. Each task beyond the table counts as one.
            let counting = |queue: u32| {
                let last = TABLE as u32 - 1;
                f64::from(queue.min(last)).sqrt() + f64::from(queue.saturating_sub(last))
            };
            ranks.set_tables(|speed, table| {
                (0..).zip(table).for_each(|(queue, value)| *value = counting(queue));
                bounds[speed as usize - 1]
            });
            for (step, member, queue) in steps {
                let member = Member(member);
                let step = match step {
                    0 => Change::Set(member, queue),
                    1 => Change::Add(member),
                    _ => Change::Take(queue % 8),
                };
                change(&mut ranks, &mut queues, step, &mut rng)?;
                if let Change::Take(_) = step
                    && let Some(mut front) = ranks.open_class()
                {
                    for _ in 0..front.members.min(queue % 3) {
                        let member = ranks.take_of_class(&mut front, rng.next_u64() as u32);
                        prop_assert_eq!(front.queue, queues[member.index()]);
                        queues[member.index()] += 1;
                    }
                    ranks.close_class(front);
                }
                let time = |member: Member| (counting(queues[member.index()]) + 0.35) / rate(member);
                let has_room = |member: Member| queues[member.index()] < bounds[class(member)].into();
                let with_room = active.iter().copied().filter(|&member| has_room(member));
                let soonest = with_room.map(time).fold(f64::INFINITY, f64::min);
                prop_assert_eq!(ranks.soonest(), soonest);
                match first(&mut ranks, &mut rng) {
                    None => prop_assert_eq!(soonest, f64::INFINITY),
                    Some(found) => {
                        prop_assert!(has_room(found.member));
                        prop_assert_eq!(time(found.member), soonest);
                    }
                }
                let full = active.iter().filter(|&&member| !has_room(member));
                let speed: f64 = full.map(|&member| rate(member)).sum();
                prop_assert!((ranks.full_members().speed - speed).abs() < 1e-9);
                let mut times: Vec<f64> = Vec::new();
                ranks.levels(|level| {
                    times.extend(vec![level.tasks / level.speed; level.members]);
                    true
                });
                let mut expected: Vec<f64> = active.iter().map(|&member| time(member)).collect();
                expected.sort_by(f64::total_cmp);
                prop_assert_eq!(times, expected);
            }
        }
    }

    #[test]
    fn speeds_weigh() {
        let mut rng = Rng::seed_from_u64(1);
        let mut ranks = SpeedRanks::new(1.0);
        let active = [Member(0), Member(1), Member(2)];
        let rates = [1.0, 10.0, 1.0];
        ranks.rank(3, &active, |member| rates[member.index()]);
        for _ in 0..9 {
            assert_eq!(first(&mut ranks, &mut rng).unwrap().member, Member(1));
            ranks.add(Member(1));
        }
        let mut counts = [0_u32; 3]; // all three tie now
        for _ in 0..3000 {
            counts[first(&mut ranks, &mut rng).unwrap().member.index()] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 160), "{counts:?}");
    }

    #[test]
    fn many_speeds_become_steps() {
        let rates: Vec<f64> = (0..100).map(|i| 1.0 + f64::from(i) / 10.0).collect();
        let mut steps = rates.clone();
        make_steps(&mut steps, CLASSES_MAX);
        assert_eq!(steps.len(), CLASSES_MAX);
        // Adjacent steps have the ratio 10.9^(1/31) = 1.08, so the nearest one is at most 4% off.
        for rate in rates {
            let step = steps[usize::from(nearest(&steps, rate))];
            assert!((rate / step - 1.0).abs() < 0.05, "{rate} {step}");
        }
    }
}
