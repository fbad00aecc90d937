//! The member's side of pull policies: when a member tells a dispatcher of its queue, and which one.
//!
//! The simulator's models `ct` and `slots` run this for each server, and an agent for each worker of a pool that is told in
//! messages ([`super::Reports::Messages`]): its dispatchers are the pool's leaves. Behind a leaf otherwise, and in the models
//! `rack` and `fabric`, every reply tells the queue to the core that it passes, and reports reach all cores, so that there is
//! nothing to choose: `eps` changes nothing there, and `lsq-smart` is `lsq-update`. An agent does not pick a leaf's core by its
//! UDP source port, which it would have to know the leaf's RSS for.

use rand::Rng as _;

use super::Rng;
use super::sample::below;

/// When a member that completed a task reports, and to whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notify {
    /// Always, in its reply, to the dispatcher that sent the task: no message of its own.
    Reply,
    /// Never: dispatchers ask.
    Never,
    /// Always, to a random dispatcher, which takes what it needs.
    Always,
    /// To a random dispatcher: when it became idle, else with this probability (`lsq-update`).
    Update(f64),
    /// To the dispatcher whose view of it is worst: when that is off by as much as its queue is long,
    /// else with this probability (`lsq-smart`).
    Smart(f64),
    /// To a random dispatcher, when its queue is below this and it is on no dispatcher's list (`jiq`, `jbt`,
    /// `pi`). JIQ's analysis has one copy of each idle member on all lists together, and so it is here: a
    /// member is on a list from its report to that dispatcher's next task, which must be the use of it,
    /// since a dispatcher with a list uses it.
    Below(u32),
}

/// A member's knowledge of the dispatchers.
#[derive(Clone, Debug)]
pub struct MemberSide {
    notify: Notify,
    /// The queue that each dispatcher believes it has: what it was last told, and what it sent since.
    believed: Box<[u32]>,
    /// On whose list it is, if it is below a threshold that it was to tell of.
    listed: Option<usize>,
}

impl MemberSide {
    /// Member `number` of `dispatchers` dispatchers, who all believe it idle; on the list of the one to whom
    /// its number falls.
    #[must_use]
    pub fn new(notify: Notify, number: usize, dispatchers: usize) -> Self {
        let listed = matches!(notify, Notify::Below(_)).then_some(number % dispatchers);
        Self { notify, believed: vec![0; dispatchers].into(), listed }
    }

    /// Another member takes its place, on nobody's list; all dispatchers believe it idle.
    pub fn replace(&mut self, notify: Notify) {
        self.believed.fill(0);
        (self.notify, self.listed) = (notify, None);
    }

    /// A dispatcher has just taken the member for there, with so much to do. Says whether the member tells it: unless it is on
    /// another's list, or has too much to do to be on any.
    #[must_use]
    pub fn on_met(&mut self, dispatcher: usize, queue: u32) -> bool {
        let tells = match self.notify {
            Notify::Reply | Notify::Never => false,
            Notify::Always | Notify::Update(_) | Notify::Smart(_) => true,
            Notify::Below(threshold) => {
                queue < threshold && self.listed.is_none_or(|listed| listed == dispatcher)
            }
        };
        if tells {
            self.believed[dispatcher] = queue;
            self.listed = matches!(self.notify, Notify::Below(_)).then_some(dispatcher);
        }
        tells
    }

    /// The member is idle and nobody has taken notice of that for long, as if it had just become so. Says which dispatcher it
    /// tells.
    pub fn on_forgotten(&mut self, rng: &mut Rng) -> Option<usize> {
        self.listed = None;
        self.on_done(0, rng)
    }

    /// `tasks` tasks came from a dispatcher.
    #[inline]
    pub fn on_tasks(&mut self, dispatcher: usize, tasks: u32) {
        self.believed[dispatcher] = self.believed[dispatcher].saturating_add(tasks);
        if self.listed == Some(dispatcher) {
            self.listed = None;
        }
    }

    /// The member completed tasks and has `queue` left. Says which dispatcher it tells.
    #[inline]
    pub fn on_done(&mut self, queue: u32, rng: &mut Rng) -> Option<usize> {
        let dispatchers = self.believed.len();
        let mut toss = |chance: f64| {
            let bits = rng.next_u64();
            let tells = f64::from((bits >> 32) as u32) < chance * 32.0_f64.exp2();
            tells.then(|| below(dispatchers, bits as u32))
        };
        let told = match self.notify {
            Notify::Reply | Notify::Never => None,
            Notify::Always => toss(1.0),
            Notify::Update(chance) => toss(if queue == 0 { 1.0 } else { chance }),
            Notify::Below(threshold) => {
                let tells = queue < threshold && self.listed.is_none();
                let told = toss(if tells { 1.0 } else { 0.0 });
                self.listed = told.or(self.listed);
                told
            }
            Notify::Smart(chance) => {
                let (worst, error) = self.worst(queue, rng);
                let chance = if error >= queue { 1.0 } else { chance };
                let tells = f64::from((rng.next_u64() >> 32) as u32) < chance * 32.0_f64.exp2();
                tells.then_some(worst)
            }
        };
        if let Some(dispatcher) = told {
            self.believed[dispatcher] = queue;
        }
        told
    }

    /// The dispatcher with the worst view, any of those that tie, and how far it is off.
    fn worst(&self, queue: u32, rng: &mut Rng) -> (usize, u32) {
        let start = below(self.believed.len(), rng.next_u64() as u32);
        let (mut worst, mut most, mut ties) = (start, 0, 0);
        for (dispatcher, believed) in self.believed.iter().enumerate() {
            let error = believed.abs_diff(queue);
            if error > most {
                (worst, most, ties) = (dispatcher, error, 1);
            } else if error == most && most > 0 {
                ties += 1;
                if below(ties, rng.next_u64() as u32) == 0 {
                    worst = dispatcher;
                }
            }
        }
        (worst, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn member(notify: Notify) -> (MemberSide, Rng) {
        (MemberSide::new(notify, 1, 4), Rng::seed_from_u64(1))
    }

    #[test]
    fn an_idle_member_always_tells_somebody() {
        for notify in [Notify::Update(0.0), Notify::Smart(0.0), Notify::Below(1), Notify::Always] {
            let (mut member, mut rng) = member(notify);
            member.on_tasks(1, 1);
            assert!(member.on_done(0, &mut rng).is_some(), "{notify:?}");
        }
    }

    #[test]
    fn a_smart_member_tells_the_dispatcher_that_is_most_wrong() {
        let (mut member, mut rng) = member(Notify::Smart(0.0));
        member.on_tasks(3, 9);
        member.on_tasks(1, 2);
        // Ten left: those who sent nothing are off by ten, and it does not matter which is told.
        assert!(matches!(member.on_done(10, &mut rng), Some(0 | 2)));
        // Two left: dispatcher 3 believes nine, one of the others ten.
        let told = member.on_done(2, &mut rng);
        assert!(matches!(told, Some(0 | 2)));
        assert_eq!(member.on_done(2, &mut rng), Some(3));
        // Now nobody is off by as much as the queue is long but who believes it empty.
        assert!(matches!(member.on_done(2, &mut rng), Some(0 | 2)));
        assert_eq!(member.on_done(2, &mut rng), None);
    }

    #[test]
    fn a_member_is_on_one_list_until_that_is_used() {
        let (mut member, mut rng) = member(Notify::Below(3));
        member.on_tasks(3, 1); // of a dispatcher on whose list it is not
        assert_eq!(member.on_done(0, &mut rng), None);
        member.on_tasks(1, 4);
        assert_eq!(member.on_done(3, &mut rng), None);
        let told = member.on_done(2, &mut rng).unwrap();
        assert_eq!(member.on_done(1, &mut rng), None);
        member.on_tasks(told, 1);
        assert!(member.on_done(1, &mut rng).is_some());
    }

    #[test]
    fn whoever_meets_a_member_is_told_and_a_list_has_it_once() {
        let (mut member, mut rng) = member(Notify::Update(0.0));
        assert!(member.on_met(0, 3) && member.on_met(1, 3));
        member.replace(Notify::Below(2));
        assert!(!member.on_met(2, 2), "it has too much to do");
        assert!(member.on_met(2, 1) && !member.on_met(3, 0) && member.on_met(2, 0));
        assert_eq!(member.on_done(0, &mut rng), None, "it is on a list");
        assert!(member.on_forgotten(&mut rng).is_some());
    }

    #[test]
    fn chances_are_kept() {
        let (mut member, mut rng) = member(Notify::Update(0.2));
        let told = (0..10_000).filter(|_| member.on_done(5, &mut rng).is_some()).count();
        assert!(told.abs_diff(2000) < 250, "{told}");
    }
}
