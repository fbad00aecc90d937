//! Members in order of their queues, so that the shortest is found, and any one's queue changes, in a time
//! that does not depend on how many members there are.
//!
//! One array holds the members sorted by queue; the members of one length are a stretch of it. One task
//! more or less swaps a member with the last or first of its stretch and moves the border by one, and a
//! uniform choice among the shortest is one random number and one load. A jump by k tasks moves k borders.

use rand::Rng as _;

use super::{Rng, below};
use crate::state::{Member, View};

/// Queues from this length on count as this long: nobody ranks members by what lies beyond.
const LONGEST: usize = 1023;
const NOWHERE: u16 = u16::MAX;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// The ranked members, shortest queue first.
    order: Vec<u16>,
    /// Where each member stands in `order`.
    places: Vec<u16>,
    /// Every member's queue, ranked or not.
    queues: Vec<u32>,
    /// For each length, how many ranked members have at most that: the end of its stretch.
    ends: Vec<u16>,
    /// Length of the shortest ranked queue.
    least: usize,
}

impl Ranks {
    /// Ranks `ranked`, who are some of `members`; queues known before stay.
    pub fn rank(&mut self, members: usize, ranked: impl Iterator<Item = Member> + Clone) {
        self.queues.resize(members, 0);
        self.places.clear();
        self.places.resize(members, NOWHERE);
        self.ends.clear();
        self.ends.resize(LONGEST + 1, 0);
        for member in ranked.clone() {
            let length = self.length(member);
            self.ends[length] += 1;
        }
        let mut sum = 0;
        for end in &mut self.ends {
            sum += *end;
            *end = sum;
        }
        self.order.clear();
        self.order.resize(usize::from(sum), 0);
        // Counting sort from the back of each stretch; then `ends` are starts, and are moved back.
        let mut starts = self.ends.clone();
        for member in ranked {
            let start = &mut starts[self.length(member)];
            *start -= 1;
            self.order[usize::from(*start)] = member.0;
            self.places[member.index()] = *start;
        }
        self.least = 0;
        self.raise_least();
    }

    #[inline]
    fn length(&self, member: Member) -> usize {
        (self.queues[member.index()] as usize).min(LONGEST)
    }

    /// The queue of a member.
    #[inline]
    #[must_use]
    pub fn queue(&self, member: Member) -> u32 {
        self.queues[member.index()]
    }

    /// Members that are ranked.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Nobody is ranked.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Length of the shortest ranked queue.
    #[inline]
    #[must_use]
    pub fn least(&self) -> usize {
        self.least
    }

    /// How many members have it.
    #[inline]
    #[must_use]
    pub fn ties(&self) -> usize {
        self.ends.get(self.least).copied().map_or(0, usize::from)
    }

    /// One of the members with the shortest queue, each as likely.
    #[inline]
    pub fn shortest(&self, rng: &mut Rng) -> Option<Member> {
        let place = below(self.ties(), rng.next_u64() as u32);
        self.order.get(place).map(|&member| Member(member))
    }

    /// As [`Ranks::shortest`], and the member gets a task.
    #[inline]
    pub fn take_shortest(&mut self, rng: &mut Rng) -> Option<Member> {
        let place = below(self.ties(), rng.next_u64() as u32);
        let &member = self.order.get(place)?;
        self.queues[usize::from(member)] += 1;
        if self.least < LONGEST {
            // From its place to the last of the stretch, whose border then passes it.
            let end = &mut self.ends[self.least];
            *end -= 1;
            let last = *end;
            let other = std::mem::replace(&mut self.order[usize::from(last)], member);
            self.order[place] = other;
            self.places[usize::from(other)] = place as u16;
            self.places[usize::from(member)] = last;
            self.raise_least();
        }
        Some(Member(member))
    }

    /// A member got a task.
    #[inline]
    pub fn add(&mut self, member: Member) {
        let length = self.length(member);
        let queue = &mut self.queues[member.index()];
        *queue = queue.saturating_add(1);
        if self.places[member.index()] != NOWHERE && length < LONGEST {
            self.up(member, length);
            self.raise_least();
        }
    }

    /// A member's queue is known to be this long.
    #[inline]
    pub fn set(&mut self, member: Member, queue: u32) {
        let from = self.length(member);
        self.queues[member.index()] = queue;
        if self.places[member.index()] == NOWHERE {
            return;
        }
        let to = self.length(member);
        if to > from {
            (from..to).for_each(|length| self.up(member, length));
            self.raise_least();
        } else {
            (to..from).rev().for_each(|length| self.down(member, length));
            self.least = self.least.min(to);
        }
    }

    /// From `length` to the next: last of its stretch, whose border then passes it.
    #[inline]
    fn up(&mut self, member: Member, length: usize) {
        self.ends[length] -= 1;
        self.swap(member, self.ends[length]);
    }

    /// From `length + 1` to `length`: first of its stretch, whose border then passes it.
    #[inline]
    fn down(&mut self, member: Member, length: usize) {
        self.swap(member, self.ends[length]);
        self.ends[length] += 1;
    }

    #[inline]
    fn swap(&mut self, member: Member, place: u16) {
        let own = self.places[member.index()];
        let other = self.order[usize::from(place)];
        self.order[usize::from(own)] = other;
        self.places[usize::from(other)] = own;
        self.order[usize::from(place)] = member.0;
        self.places[member.index()] = place;
    }

    #[inline]
    fn raise_least(&mut self) {
        while self.least < LONGEST && self.ends[self.least] == 0 {
            self.least += 1;
        }
    }
}

/// Speeds told apart; members of more are put into steps between the slowest and the fastest.
const CLASSES_MAX: usize = 32;

/// Members ranked by (queue + 1) / speed: a ranking for each speed, and the best of their bests.
#[derive(Clone, Debug, Default)]
pub struct SpeedRanks {
    /// Time that a task takes at this speed, and the members of it.
    classes: Vec<(f64, Ranks)>,
    /// Class of each member.
    class: Vec<u8>,
    queues: Vec<u32>,
}

impl SpeedRanks {
    /// Ranks `active` by the speeds `rate` gives; queues known before stay.
    pub fn rank(&mut self, members: usize, active: &[Member], rate: impl Fn(Member) -> f64) {
        for (member, &class) in self.class.iter().enumerate() {
            self.queues[member] = self.classes[usize::from(class)].1.queue(Member(member as u16));
        }
        self.queues.resize(members, 0);
        let all = (0..members as u16).map(Member);
        let steps = steps(all.clone().map(&rate).collect());
        self.class = all.map(|member| nearest(&steps, rate(member))).collect();
        self.classes.clear();
        for (class, &speed) in steps.iter().enumerate() {
            let mut ranks = Ranks { queues: self.queues.clone(), ..Ranks::default() };
            let of_class = |member: &Member| usize::from(self.class[member.index()]) == class;
            ranks.rank(members, active.iter().copied().filter(of_class));
            self.classes.push((1.0 / speed, ranks));
        }
    }

    #[inline]
    fn ranks(&mut self, member: Member) -> &mut Ranks {
        &mut self.classes[usize::from(self.class[member.index()])].1
    }

    /// The queue of a member.
    #[inline]
    #[must_use]
    pub fn queue(&self, member: Member) -> u32 {
        self.classes[usize::from(self.class[member.index()])].1.queue(member)
    }

    /// One of the members that would have a task done first, each as likely.
    #[inline]
    pub fn soonest(&self, rng: &mut Rng) -> Option<Member> {
        let mut best: Option<(f64, usize)> = None;
        let mut ties = 0;
        for (class, (time, ranks)) in self.classes.iter().enumerate() {
            if ranks.is_empty() {
                continue;
            }
            let key = (ranks.least() + 1) as f64 * time;
            match best {
                Some((least, _)) if key > least => {}
                Some((least, _)) if key == least => {
                    // One of the classes, in proportion to the members that tie.
                    ties += ranks.ties();
                    if below(ties, rng.next_u64() as u32) < ranks.ties() {
                        best = Some((key, class));
                    }
                }
                _ => {
                    ties = ranks.ties();
                    best = Some((key, class));
                }
            }
        }
        self.classes[best?.1].1.shortest(rng)
    }

    /// A member got a task.
    #[inline]
    pub fn add(&mut self, member: Member) {
        self.ranks(member).add(member);
    }

    /// A member's queue is known to be this long.
    #[inline]
    pub fn set(&mut self, member: Member, queue: u32) {
        self.ranks(member).set(member, queue);
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
    pub fn first(&self, rng: &mut Rng) -> Option<Member> {
        match self {
            Self::Queue(ranks) => ranks.shortest(rng),
            Self::Delay(ranks) => ranks.soonest(rng),
        }
    }

    /// The queue of a member.
    #[inline]
    #[must_use]
    pub fn queue(&self, member: Member) -> u32 {
        match self {
            Self::Queue(ranks) => ranks.queue(member),
            Self::Delay(ranks) => ranks.queue(member),
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
                        if let Some(taken) = ranks.take_shortest(&mut rng) {
                            prop_assert!(ranked[taken.index()]);
                            queues[taken.index()] += 1;
                            prop_assert_eq!(ranks.queue(taken), queues[taken.index()]);
                        }
                    }
                }
                let scan = (0..MEMBERS.into()).filter(|&m| ranked[m]);
                let least = scan.clone().map(|m| queues[m].min(LONGEST as u32)).min();
                match ranks.shortest(&mut rng) {
                    None => prop_assert_eq!(least, None),
                    Some(shortest) => {
                        prop_assert!(ranked[shortest.index()]);
                        prop_assert_eq!(Some(queues[shortest.index()].min(1023)), least);
                        let ties = scan.filter(|&m| Some(queues[m].min(1023)) == least).count();
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
            counts[ranks.shortest(&mut rng).unwrap().index()] += 1;
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
            assert_eq!(ranks.soonest(&mut rng), Some(Member(1)));
            ranks.add(Member(1));
        }
        let mut counts = [0_u32; 3]; // all three tie now
        for _ in 0..3000 {
            counts[ranks.soonest(&mut rng).unwrap().index()] += 1;
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
