//! Member's side of pull policies: when a member reports its queue, and to which dispatcher. A *member* is a worker of
//! a pool; a *dispatcher* sends it tasks. Under a *pull policy* members decide when they report, and each dispatcher
//! chooses from its own list or estimates.
//!
//! The simulator's models `ct` and `slots` run this code for each server. An agent runs it for each worker of a
//! pool with reports in messages ([`super::Reports::Messages`]). The worker's dispatchers are then the pool's leaves.
//! Otherwise, behind a leaf and in the models `rack` and `fabric`, every reply reports the queue to the core
//! that it reaches. The cores exchange the queues that they know. Then the member has no choice: the parameter
//! `eps` (probability of a report) has no effect, and `lsq-smart` equals `lsq-update`. An agent cannot address a
//! leaf's core by UDP source port, because it does not know the leaf's RSS.

use rand::Rng as _;

use super::Rng;
use super::sample::below;

/// Time and destination of a member's report after it completed a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Notify {
    /// Always, in its reply, to the dispatcher that sent the task: no separate message.
    Reply,
    /// Never: dispatchers probe.
    Never,
    /// Always, to a random dispatcher, which compares the queue with its own threshold (`jbt-d`).
    Always,
    /// To a random dispatcher: when it became idle, else with this probability (`lsq-update`).
    Update(f64),
    /// To the dispatcher whose estimate is worst: if the error is at least its queue, else with this
    /// probability (`lsq-smart`).
    Smart(f64),
    /// To a random dispatcher, if its queue is below this and it is on no dispatcher's list (`jiq`, `jbt`,
    /// `pi`). As in JIQ's analysis, each idle member is on at most one list: from its report until that
    /// dispatcher's next task for it.
    Below(u32),
}

/// State by which a member decides on its reports.
#[derive(Clone, Debug)]
pub struct MemberSide {
    notify: Notify,
    /// Estimate of its queue at each dispatcher: the last report, plus tasks sent since.
    estimates: Box<[u32]>,
    /// Dispatcher on whose list it is, if it reports below a threshold.
    list_owner: Option<usize>,
}

impl MemberSide {
    /// Creates member `number` for `dispatchers` dispatchers, which all estimate it as idle. With [`Notify::Below`] it
    /// is on the list of the dispatcher with its number, modulo their count: each list begins with its share of
    /// the members.
    #[must_use]
    pub fn new(notify: Notify, number: usize, dispatchers: usize) -> Self {
        let list_owner = matches!(notify, Notify::Below(_)).then_some(number % dispatchers);
        Self { notify, estimates: vec![0; dispatchers].into(), list_owner }
    }

    /// Resets the state for a new member that takes over this one's number: on no list, idle in all estimates. It
    /// reports when a dispatcher registers it.
    pub fn replace(&mut self, notify: Notify) {
        self.estimates.fill(0);
        (self.notify, self.list_owner) = (notify, None);
    }

    /// Handles a dispatcher that has just registered the member, which has `queue` tasks. Returns true if the
    /// member should report. A member with `Reply` or `Never` does not report. A member with `Below` does not if it is
    /// on another dispatcher's list, or its queue is not below the threshold.
    #[must_use]
    pub fn on_dispatcher_joined(&mut self, dispatcher: usize, queue: u32) -> bool {
        let reports = match self.notify {
            Notify::Reply | Notify::Never => false,
            Notify::Always | Notify::Update(_) | Notify::Smart(_) => true,
            Notify::Below(threshold) => {
                queue < threshold && self.list_owner.is_none_or(|owner| owner == dispatcher)
            }
        };
        if reports {
            self.estimates[dispatcher] = queue;
            self.list_owner = matches!(self.notify, Notify::Below(_)).then_some(dispatcher);
        }
        reports
    }

    /// Takes an idle member off its list, after a long time without reports: the last one may have been lost. Returns
    /// the dispatcher to report to again, if any.
    pub fn on_forgotten(&mut self, rng: &mut Rng) -> Option<usize> {
        self.list_owner = None;
        self.on_done(0, rng)
    }

    /// Counts `tasks` tasks from a dispatcher.
    #[inline]
    pub fn on_tasks(&mut self, dispatcher: usize, tasks: u32) {
        self.estimates[dispatcher] = self.estimates[dispatcher].saturating_add(tasks);
        if self.list_owner == Some(dispatcher) {
            self.list_owner = None;
        }
    }

    /// Handles completed tasks, with `queue` left. Returns the dispatcher to report to, if any.
    #[inline]
    pub fn on_done(&mut self, queue: u32, rng: &mut Rng) -> Option<usize> {
        let dispatchers = self.estimates.len();
        // One random number: its upper half decides whether to report, its lower half to which dispatcher. The upper
        // half is uniform below 2^32, so it is below `chance` * 2^32 with probability `chance`.
        let mut draw_receiver = |chance: f64| {
            let bits = rng.next_u64();
            let reports = f64::from((bits >> 32) as u32) < chance * 32.0_f64.exp2();
            reports.then(|| below(dispatchers, bits as u32))
        };
        let receiver = match self.notify {
            Notify::Reply | Notify::Never => None,
            Notify::Always => draw_receiver(1.0),
            Notify::Update(chance) => draw_receiver(if queue == 0 { 1.0 } else { chance }),
            Notify::Below(threshold) => {
                let reports = queue < threshold && self.list_owner.is_none();
                // Chance 0 only takes the random number, so that each call takes one.
                let receiver = draw_receiver(if reports { 1.0 } else { 0.0 });
                self.list_owner = receiver.or(self.list_owner);
                receiver
            }
            Notify::Smart(chance) => {
                // An idle member's queue is 0, so any error suffices and it always reports.
                let (worst, error) = self.worst(queue, rng);
                let chance = if error >= queue { 1.0 } else { chance };
                let reports = f64::from((rng.next_u64() >> 32) as u32) < chance * 32.0_f64.exp2();
                reports.then_some(worst)
            }
        };
        if let Some(dispatcher) = receiver {
            self.estimates[dispatcher] = queue;
        }
        receiver
    }

    /// Returns the dispatcher whose estimate differs most from `queue` (a random one of ties), and this difference.
    fn worst(&self, queue: u32, rng: &mut Rng) -> (usize, u32) {
        // The result if no estimate is wrong.
        let start = below(self.estimates.len(), rng.next_u64() as u32);
        let (mut worst, mut most, mut ties) = (start, 0, 0);
        for (dispatcher, estimate) in self.estimates.iter().enumerate() {
            let error = estimate.abs_diff(queue);
            if error > most {
                (worst, most, ties) = (dispatcher, error, 1);
            } else if error == most && most > 0 {
                ties += 1;
                // Replaces the choice with probability 1 / ties, so that all ties are equally likely.
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

    /// Creates member 1 of a pool with four dispatchers, and a random source.
    fn member(notify: Notify) -> (MemberSide, Rng) {
        (MemberSide::new(notify, 1, 4), Rng::seed_from_u64(1))
    }

    #[test]
    fn idle_member_always_notifies() {
        for notify in [Notify::Update(0.0), Notify::Smart(0.0), Notify::Below(1), Notify::Always] {
            let (mut member, mut rng) = member(notify);
            member.on_tasks(1, 1);
            assert!(member.on_done(0, &mut rng).is_some(), "{notify:?}");
        }
    }

    #[test]
    fn smart_member_notifies_the_most_wrong_dispatcher() {
        let (mut member, mut rng) = member(Notify::Smart(0.0));
        member.on_tasks(3, 9);
        member.on_tasks(1, 2);
        // Ten left: dispatchers that sent nothing are off by ten; either may receive the report.
        assert!(matches!(member.on_done(10, &mut rng), Some(0 | 2)));
        // Two left: the dispatcher that received the report of ten is off most, then dispatcher 3, which estimates
        // nine.
        let receiver = member.on_done(2, &mut rng);
        assert!(matches!(receiver, Some(0 | 2)));
        assert_eq!(member.on_done(2, &mut rng), Some(3));
        // Only a dispatcher that estimates an empty queue is off by the length of the queue.
        assert!(matches!(member.on_done(2, &mut rng), Some(0 | 2)));
        assert_eq!(member.on_done(2, &mut rng), None);
    }

    // promise: scheduling.5
    #[test]
    fn member_stays_on_one_list_until_used() {
        let (mut member, mut rng) = member(Notify::Below(3));
        member.on_tasks(3, 1); // a new member 1 is on the list of dispatcher 1, not 3
        assert_eq!(member.on_done(0, &mut rng), None);
        member.on_tasks(1, 4); // takes it off the list
        assert_eq!(member.on_done(3, &mut rng), None); // three tasks are not below the threshold
        let receiver = member.on_done(2, &mut rng).unwrap();
        assert_eq!(member.on_done(1, &mut rng), None);
        member.on_tasks(receiver, 1);
        assert!(member.on_done(1, &mut rng).is_some());
    }

    // promise: scheduling.6
    #[test]
    fn new_dispatcher_is_notified_and_listed_once() {
        let (mut member, mut rng) = member(Notify::Update(0.0));
        assert!(member.on_dispatcher_joined(0, 3) && member.on_dispatcher_joined(1, 3));
        member.replace(Notify::Below(2));
        assert!(!member.on_dispatcher_joined(2, 2), "it has too much to do");
        assert!(
            member.on_dispatcher_joined(2, 1)
                && !member.on_dispatcher_joined(3, 0)
                && member.on_dispatcher_joined(2, 0)
        );
        assert_eq!(member.on_done(0, &mut rng), None, "it is on a list");
        assert!(member.on_forgotten(&mut rng).is_some());
    }

    #[test]
    fn chances_are_kept() {
        let (mut member, mut rng) = member(Notify::Update(0.2));
        // A fifth of 10,000 calls, with a standard deviation of 40.
        let reports = (0..10_000).filter(|_| member.on_done(5, &mut rng).is_some()).count();
        assert!(reports.abs_diff(2000) < 250, "{reports}");
    }
}
