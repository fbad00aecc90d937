//! Dispatcher with a queue of waiting tasks, for callers whose tasks are complete. A leaf may have tasks of which some
//! packets are missing, and may give up such a task to free its place; here there is none to give up (`|| None`).
//!
//! Agents and the simulator use it. In a leaf the stages only count waiting tasks, and the node stores them: stages
//! decide on a burst whose packets stay in place. The rules for both are those of [`Dispatcher`].

use std::ops::{Deref, DerefMut};

use super::fifo::{Fifo, Slab};
use super::{Assignment, ClassBeliefs, Dispatcher, LANES, Lane, Lanes, Pick, Task};
use crate::reason::DropReason;

/// A [`Dispatcher`] with its waiting tasks, each represented by an item of the caller: a packet, or a number.
///
/// A task waits if waiting tasks block its lane ([`Dispatcher::blocked_by`]). Otherwise the policy chooses a member, or
/// the task waits if allowed. When a member may have a free place, the caller offers the first waiting task again, and
/// then its successors. A policy with rules for classes determines which task is the first ([`super::classes`]).
#[derive(Debug)]
pub struct QueueingDispatcher<T> {
    /// The policy, and the count of waiting tasks.
    dispatcher: Dispatcher,
    /// Memory for waiting tasks.
    tasks: Slab<WaitingTask<T>>,
    /// Order of the waiting tasks in each lane.
    lanes: [Fifo; LANES],
}

/// A waiting task.
#[derive(Debug)]
pub struct WaitingTask<T> {
    item: T,
    /// Time at which it began to wait, in nanoseconds.
    since_ns: u64,
}

/// Result of a decision: the task with its member, or `None` if it waits. Otherwise the task with the reason
/// why it can neither go nor wait.
pub type Placement<T> = Result<Option<(T, Pick)>, (T, DropReason)>;

impl<T> QueueingDispatcher<T> {
    /// Creates an empty queue with memory for its current bound ([`Dispatcher::set_queue`]).
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        let tasks = Slab::with_room(dispatcher.queue().0);
        Self { dispatcher, tasks, lanes: [Fifo::EMPTY; LANES] }
    }

    /// Creates an empty queue without bound, which grows as tasks arrive. For the simulator: a polling core must not
    /// allocate.
    #[must_use]
    pub fn unbounded(mut dispatcher: Dispatcher) -> Self {
        dispatcher.set_queue(usize::MAX, dispatcher.queue().1);
        Self { dispatcher, tasks: Slab::default(), lanes: [Fifo::EMPTY; LANES] }
    }

    /// Decides on a new task.
    ///
    /// # Errors
    /// The task, and the reason why it can neither go nor wait.
    #[inline]
    pub fn offer(&mut self, task: Task, item: T) -> Placement<T> {
        match self.dispatcher.offer(task, || None) {
            Ok(Assignment::Sent(pick)) => Ok(Some((item, pick))),
            Ok(Assignment::Waits(lane)) => {
                self.store(lane, item).map(|()| None).map_err(|item| (item, DropReason::QueueFull))
            }
            Err(reason) => Err((item, reason)),
        }
    }

    /// Appends a task for which the dispatcher found no member ([`Dispatcher::offer_run`]) to its lane.
    ///
    /// # Errors
    /// The task, and the reason why it cannot wait.
    #[inline]
    pub(crate) fn enqueue(&mut self, task: Task, item: T) -> Result<(), (T, DropReason)> {
        match self.dispatcher.wait(task) {
            Ok(lane) => self.store(lane, item).map_err(|item| (item, DropReason::QueueFull)),
            Err(reason) => Err((item, reason)),
        }
    }

    /// Appends a task to the first lane without a decision, for callers that decide later (model `slots`).
    ///
    /// # Errors
    /// Returns the task if the queue is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        match self.dispatcher.join(Lane::FIRST) {
            Ok(lane) => self.store(lane, item),
            Err(_) => Err(item),
        }
    }

    /// Stores a waiting task of this lane, which is already counted.
    fn store(&mut self, lane: Lane, item: T) -> Result<(), T> {
        let waiting = WaitingTask { item, since_ns: self.dispatcher.view().now_ns() };
        // The bound may have been raised above the available memory.
        self.tasks.push(&mut self.lanes[lane.index()], waiting).map_err(|waiting| {
            self.dispatcher.leave_last(lane);
            waiting.item
        })
    }

    /// Decides on the first waiting task, if any, and on the first one of each other lane that it does not block.
    /// `task` describes a task to the policy. Returns the first decision that lets a task leave.
    ///
    /// # Errors
    /// The task, and the reason why it can neither go nor keep waiting.
    #[inline]
    pub fn next(&mut self, task: impl Fn(&T) -> Task) -> Placement<T> {
        let mut blocked = Lanes::NONE;
        while let Some(lane) = self.next_lane(blocked) {
            let Some(first) = self.first_of(lane) else { break };
            let task = task(&first.item);
            match self.dispatcher.choose(task, || None) {
                Some(pick) => return Ok(self.pop_from(lane).map(|item| (item, pick))),
                None if self.dispatcher.holds_tasks() => {
                    blocked = blocked.union(self.dispatcher.blocked_by(lane));
                }
                None => {
                    let item = self.pop_from(lane);
                    return item.map_or(Ok(None), |item| Err((item, DropReason::NoMember)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the lane of the next task to be offered, outside the `blocked` lanes.
    #[inline]
    fn next_lane(&self, blocked: Lanes) -> Option<Lane> {
        self.dispatcher.next_lane(blocked, |lane| Some(self.first_of(lane)?.since_ns))
    }

    /// Returns the rules for this task's class ([`Dispatcher::class_beliefs`]).
    #[must_use]
    pub fn class_beliefs(&self, task: Task) -> Option<ClassBeliefs> {
        self.dispatcher.class_beliefs(task, |lane| Some(self.first_of(lane)?.since_ns))
    }

    /// Returns the first waiting task of a lane, if any.
    #[inline]
    fn first_of(&self, lane: Lane) -> Option<&WaitingTask<T>> {
        self.tasks.get(self.lanes[lane.index()].first()?)
    }

    /// Removes the first waiting task of a lane, if any.
    #[inline]
    fn pop_from(&mut self, lane: Lane) -> Option<T> {
        let waiting = self.tasks.pop(&mut self.lanes[lane.index()])?;
        self.dispatcher.leave(lane);
        Some(waiting.item)
    }

    /// Removes the first waiting task, if any: after [`Dispatcher::schedule`] chose its member, to drop it, or to
    /// forward it.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.pop_from(self.next_lane(Lanes::NONE)?)
    }

    /// Iterates over the waiting tasks of the first task's lane, in order. Without rules for classes these are all,
    /// except those in lanes of an earlier policy.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let lane = self.next_lane(Lanes::NONE).unwrap_or_default();
        self.tasks.iter(self.lanes[lane.index()]).map(|waiting| &waiting.item)
    }

    /// Moves the waiting tasks into the memory `tasks`, and leaves the old memory there. The caller allocates the new
    /// memory outside the polling core, for a larger bound, and frees the old one there.
    ///
    /// # Panics
    /// If `tasks` has too little room and does not grow.
    pub fn exchange_memory(&mut self, tasks: &mut Slab<WaitingTask<T>>) {
        for lane in &mut self.lanes {
            let mut moved = Fifo::EMPTY;
            while let Some(task) = self.tasks.pop(lane) {
                moved.push(tasks.add(task), tasks);
            }
            *lane = moved;
        }
        std::mem::swap(&mut self.tasks, tasks);
    }
}

impl<T> AsMut<Dispatcher> for QueueingDispatcher<T> {
    /// Returns the dispatcher, for [`super::exchange`] over a slice of queues.
    fn as_mut(&mut self) -> &mut Dispatcher {
        &mut self.dispatcher
    }
}

impl<T> Deref for QueueingDispatcher<T> {
    type Target = Dispatcher;

    #[inline]
    fn deref(&self) -> &Dispatcher {
        &self.dispatcher
    }
}

impl<T> DerefMut for QueueingDispatcher<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Dispatcher {
        &mut self.dispatcher
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Core, Overflow, PreparedPolicy};
    use crate::state::{Load, Member, Report, View};

    /// Dispatcher on the only core, with idle members.
    fn dispatcher(policy: &str, members: usize) -> Dispatcher {
        let view = View::heap(members, 1).remove(0);
        Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7)
    }

    /// Creates a queue for at most `bound` tasks, with two members that hold two tasks each.
    fn queueing(bound: usize) -> QueueingDispatcher<usize> {
        QueueingDispatcher::new(dispatcher("jbsq(k=2)", 2).with_queue(bound, Overflow::Drop))
    }

    /// Answers a task of a member.
    fn answer<T>(queueing: &mut QueueingDispatcher<T>, member: u16) {
        queueing.reply(&Report::new(Member(member), Load(0), 0));
    }

    /// Offers a task. Returns its item and member if it goes.
    fn offer<T>(
        queueing: &mut QueueingDispatcher<T>,
        item: T,
    ) -> Result<Option<(T, u16)>, (T, DropReason)> {
        let offered = queueing.offer(Task::default(), item);
        offered.map(|goes| goes.map(|(item, pick)| (item, pick.member.0)))
    }

    /// Creates a queue that has measured 10 us for tasks of class 1 and 1 ms for those of class 2, and no round trip.
    /// Its items are the tasks' classes. The time is 1 s.
    fn measured(policy: &str, members: usize) -> QueueingDispatcher<u16> {
        measured_over(policy, members, 0)
    }

    /// Same as [`measured`], with a round trip of at most 2 ms.
    fn measured_over(policy: &str, members: usize, trip_ns: u64) -> QueueingDispatcher<u16> {
        let mut queueing = QueueingDispatcher::new(dispatcher(policy, members));
        for round in 0..200 {
            let (class, now_ns) = (1 + round as u16 % 2, round * 3_000_000);
            let service_ns = if class == 1 { 10_000 } else { 1_000_000 };
            queueing.tick(now_ns);
            let (_, pick) = queueing.offer(Task::new(class), class).unwrap().unwrap();
            queueing.tick(now_ns + u64::from(service_ns) + trip_ns);
            queueing.reply(&Report::new(pick.member, Load(0), service_ns).with_class(class));
        }
        queueing.tick(1_000_000_000);
        queueing
    }

    /// Advances the time.
    fn advance(queueing: &mut QueueingDispatcher<u16>, ns: u64) {
        let now_ns = queueing.view().now_ns();
        queueing.tick(now_ns + ns);
    }

    /// Offers a task of this class. Returns its member if it goes.
    fn offer_class(queueing: &mut QueueingDispatcher<u16>, class: u16) -> Option<u16> {
        let offered = queueing.offer(Task::new(class), class).unwrap();
        offered.map(|(_, pick)| pick.member.0)
    }

    /// Lets a task of this class end at a member. Returns class and member of the waiting task that then goes.
    fn end_task(
        queueing: &mut QueueingDispatcher<u16>,
        member: u16,
        class: u16,
    ) -> Option<(u16, u16)> {
        let service_ns = if class == 1 { 10_000 } else { 1_000_000 };
        queueing.reply(&Report::new(Member(member), Load(0), service_ns).with_class(class));
        let next = queueing.next(|&class| Task::new(class)).unwrap();
        next.map(|(class, pick)| (class, pick.member.0))
    }

    // promise: scheduling.3
    #[test]
    fn short_task_overtakes_by_the_boost() {
        for policy in ["jbsq(k=1, boost=1)", "cfcfs(boost=1)", "eft(boost=1)"] {
            let mut queueing = measured(policy, 1);
            let start_ns = 1_000_000_000;
            assert_eq!(offer_class(&mut queueing, 2), Some(0), "{policy}");
            assert_eq!(offer_class(&mut queueing, 2), None);
            // Keys: 1000 us for the long task that waits, 110 us and 1005 us for two short ones.
            queueing.tick(start_ns + 100_000);
            assert_eq!(offer_class(&mut queueing, 1), None);
            queueing.tick(start_ns + 995_000);
            assert_eq!(offer_class(&mut queueing, 1), None);
            queueing.tick(start_ns + 1_000_000);
            assert_eq!(end_task(&mut queueing, 0, 2), Some((1, 0)), "{policy}");
            assert_eq!(end_task(&mut queueing, 0, 1), Some((2, 0)), "{policy}");
            assert_eq!(end_task(&mut queueing, 0, 2), Some((1, 0)), "{policy}");
            assert_eq!((end_task(&mut queueing, 0, 1), queueing.waiting()), (None, 0));
        }
    }

    #[test]
    fn without_boost_the_order_is_that_of_arrival() {
        let mut queueing = measured("eft(reserve=1)", 1);
        assert_eq!(offer_class(&mut queueing, 2), Some(0));
        for class in [2, 1, 2] {
            advance(&mut queueing, 1);
            assert_eq!(offer_class(&mut queueing, class), None);
        }
        let order = [2; 3].map(|class| end_task(&mut queueing, 0, class));
        assert_eq!(order, [Some((2, 0)), Some((1, 0)), Some((2, 0))]);
    }

    /// Policies with one reserved member and at most one task at a member.
    const RESERVING: [&str; 3] = ["jbsq(k=1, reserve=1)", "cfcfs(reserve=1)", "eft(reserve=1)"];

    // promise: scheduling.3
    #[test]
    fn long_tasks_leave_reserved_members_to_short_ones() {
        for policy in RESERVING {
            let mut queueing = measured(policy, 2);
            let placed = [2, 2].map(|class| offer_class(&mut queueing, class));
            assert_eq!(placed, [Some(1), None], "{policy}");
            assert_eq!([1, 1].map(|class| offer_class(&mut queueing, class)), [Some(0), None]);
            // The short task goes, although the long one has waited longer.
            assert_eq!(end_task(&mut queueing, 0, 1), Some((1, 0)));
            assert_eq!(end_task(&mut queueing, 0, 1), None);
            assert_eq!(end_task(&mut queueing, 1, 2), Some((2, 1)));
            // A short task takes any member, but first a reserved one.
            assert_eq!(end_task(&mut queueing, 1, 2), None);
            let placed = [1, 1].map(|class| offer_class(&mut queueing, class));
            assert_eq!(placed, [Some(0), Some(1)], "{policy}");
        }
    }

    /// Two long tasks wait for each member. They then take the reserved member, too.
    #[test]
    fn too_large_a_reserve_ends_under_backlog() {
        for policy in RESERVING {
            let mut queueing = measured(policy, 2);
            let placed = [2; 6].map(|class| offer_class(&mut queueing, class));
            assert_eq!(placed, [Some(1), None, None, None, None, None], "{policy}");
            assert_eq!(end_task(&mut queueing, 1, 2), Some((2, 1)));
            let next = queueing.next(|&class| Task::new(class)).unwrap();
            assert_eq!(next.map(|(_, pick)| pick.member.0), Some(0), "{policy}");
            // Three tasks wait, so that the reserve is kept again.
            assert_eq!((end_task(&mut queueing, 0, 2), queueing.waiting()), (None, 3));
        }
    }

    /// A single member has no reserve. The backlog with two members then no longer raises the bound.
    #[test]
    fn former_backlog_raises_no_bound() {
        let mut queueing = measured("cfcfs(reserve=1)", 2);
        (0..6).for_each(|_| _ = offer_class(&mut queueing, 2));
        assert_eq!(end_task(&mut queueing, 1, 2), Some((2, 1)));
        queueing.set_active(Member(0), false);
        (0..5).for_each(|_| _ = end_task(&mut queueing, 1, 2));
        // A tenth of the member's capacity, with a round trip of a tenth of the service time.
        for _ in 0..2000 {
            assert_eq!(offer_class(&mut queueing, 2), Some(1));
            advance(&mut queueing, 1_100_000);
            assert_eq!(end_task(&mut queueing, 1, 2), None);
            advance(&mut queueing, 9_000_000);
        }
        assert_eq!(queueing.beliefs().bound, Some(1));
    }

    // promise: scheduling.3
    #[test]
    fn earliest_deadline_goes_first() {
        for policy in ["jbsq(k=1, slo=0/50/500)", "cfcfs(slo=0/50/500)", "eft(slo=0/50/500)"] {
            let mut queueing = measured(policy, 1);
            assert_eq!(offer_class(&mut queueing, 1), Some(0), "{policy}");
            // Deadlines in us: 500, 449 + 50, 460 + 50, and 1 + 500 for a class without a limit.
            for (arrival_ns, class) in [(0, 2), (1_000, 0), (448_000, 1), (11_000, 1)] {
                advance(&mut queueing, arrival_ns);
                assert_eq!(offer_class(&mut queueing, class), None);
            }
            let order = [1, 1, 2, 0].map(|class| end_task(&mut queueing, 0, class).unwrap().0);
            assert_eq!(order, [1, 2, 0, 1], "{policy}");
        }
    }

    #[test]
    fn class_of_a_task_is_explained() {
        let mut queueing = measured("eft(boost=1, reserve=1)", 2);
        let explained = |queueing: &QueueingDispatcher<u16>, class| {
            let beliefs = queueing.class_beliefs(Task::new(class)).unwrap();
            let order = (beliefs.lane.index(), beliefs.waiting, beliefs.next.index());
            (order, beliefs.delay_ns, (beliefs.is_long, beliefs.reserved_with_room))
        };
        assert_eq!([2, 2].map(|class| offer_class(&mut queueing, class)), [Some(1), None]);
        advance(&mut queueing, 1);
        // Member 0 is reserved and idle. A short task would go before the long one that waits.
        assert_eq!(explained(&queueing, 2), ((2, 1, 2), 1_000_000, (true, 1)));
        assert_eq!(explained(&queueing, 1), ((1, 0, 1), 10_000, (false, 1)));
        // A class without replies has the mean of both.
        assert_eq!(explained(&queueing, 9), ((7, 0, 7), 505_000, (false, 1)));
        let beliefs = queueing.class_beliefs(Task::new(2)).unwrap();
        assert_eq!([0, 1].map(|member| beliefs.is_reserved(Member(member))), [true, false]);
        assert!(beliefs.avoids_reserve && beliefs.reserved == 1);
        // Later it would go behind the long one.
        advance(&mut queueing, 995_000);
        assert_eq!(explained(&queueing, 1).0, (1, 0, 2));
        assert_eq!(offer_class(&mut queueing, 1), Some(0));
        assert_eq!(explained(&queueing, 2), ((2, 1, 2), 1_000_000, (true, 0)));
        let plain = measured("eft", 2);
        assert!(plain.class_beliefs(Task::new(2)).is_none());
    }

    /// Over a long round trip `eft` lets no task wait. The queue of the unreserved member then shows the backlog.
    #[test]
    fn explained_reserve_ends_with_a_long_queue() {
        let mut queueing = measured_over("eft(reserve=1)", 2, 1_900_000);
        assert_eq!(queueing.beliefs().bound, None);
        let mut choices = Vec::new();
        for _ in 0..40 {
            let beliefs = queueing.class_beliefs(Task::new(2)).unwrap();
            choices.push((beliefs.avoids_reserve, offer_class(&mut queueing, 2).unwrap()));
        }
        let (kept, ended): (Vec<_>, Vec<_>) = choices.iter().partition(|(avoids, _)| *avoids);
        assert!(kept.iter().all(|(_, member)| *member == 1) && kept.len() > 2, "{choices:?}");
        // From the first one on, all of these tasks may take the reserved member, which is idle.
        assert!(ended.len() > 2 && ended.iter().any(|(_, member)| *member == 0), "{choices:?}");
    }

    /// Tasks that wait without rules for classes stay in the first lane, and leave by the rules of their own classes.
    #[test]
    fn change_to_classes_keeps_order_of_arrival() {
        let mut queueing = measured("jbsq(k=1)", 2);
        assert_eq!([2, 2].map(|class| offer_class(&mut queueing, class).is_some()), [true; 2]);
        for class in [2, 1, 2] {
            advance(&mut queueing, 1);
            assert_eq!(offer_class(&mut queueing, class), None);
        }
        let policy = "jbsq(k=1, boost=1, reserve=1)".parse().unwrap();
        queueing.swap_policy(&mut PreparedPolicy::new(&policy, 2, Core::ONLY));
        queueing.review_members();
        advance(&mut queueing, 1);
        assert_eq!(offer_class(&mut queueing, 2), None);
        // The rules have measured no class, so no class is long.
        assert_eq!(queueing.class_beliefs(Task::new(2)).unwrap().waiting, 1);
        let order = [2; 4].map(|class| end_task(&mut queueing, 1, class).unwrap());
        assert_eq!((order, queueing.waiting()), ([(2, 1), (1, 1), (2, 1), (2, 1)], 0));
    }

    /// A change of the policy keeps the tasks in their lanes. They then go in the order of arrival.
    #[test]
    fn tasks_of_all_lanes_outlive_a_change() {
        let mut queueing = measured("jbsq(k=1, boost=1)", 1);
        assert_eq!(offer_class(&mut queueing, 2), Some(0));
        for class in [2, 1, 2] {
            advance(&mut queueing, 1);
            assert_eq!(offer_class(&mut queueing, class), None);
        }
        let plain = "jbsq(k=1)".parse().unwrap();
        queueing.swap_policy(&mut PreparedPolicy::new(&plain, 1, Core::ONLY));
        queueing.review_members();
        advance(&mut queueing, 1);
        assert_eq!(offer_class(&mut queueing, 1), None);
        let order = [2; 4].map(|class| end_task(&mut queueing, 0, class).unwrap().0);
        assert_eq!((order, queueing.waiting()), ([2, 1, 2, 1], 0));
    }

    /// Decides on the first waiting task. Returns its item if it goes.
    fn next<T>(queueing: &mut QueueingDispatcher<T>) -> Result<Option<T>, (T, DropReason)> {
        queueing.next(|_| Task::default()).map(|goes| goes.map(|(item, _)| item))
    }

    /// A step on the queue.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Offers a new task.
        Offer,
        /// Appends a new task without a decision.
        Push,
        /// Decides on the first waiting task.
        Next,
        /// Answers a task of this member.
        Answer(u16),
        /// Drops the first waiting task.
        GiveUp,
        /// Sets the bound of the queue.
        Bound(usize),
    }

    /// Random steps.
    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => Just(Step::Offer),
            1 => Just(Step::Push),
            3 => Just(Step::Next),
            4 => (0..2_u16).prop_map(Step::Answer),
            1 => Just(Step::GiveUp),
            1 => (0..6_usize).prop_map(Step::Bound),
        ];
        proptest::collection::vec(step, 0..200)
    }

    /// Counts a task at its member. Returns true if no member has more than two and the least loaded one was
    /// chosen.
    fn placed(at_members: &mut [u32; 2], member: u16) -> bool {
        let [chosen, second] = [member, 1 - member].map(|member| at_members[usize::from(member)]);
        at_members[usize::from(member)] += 1;
        chosen < 2 && chosen <= second
    }

    proptest! {
        // promise: scheduling.3
        #[test]
        fn tasks_keep_order_and_queue_is_bounded(steps in steps()) {
            const ROOM: usize = 4;
            let mut queueing = queueing(ROOM);
            let (mut waiting, mut bound, mut at_members) = (VecDeque::new(), ROOM, [0_u32; 2]);
            for (item, step) in steps.into_iter().enumerate() {
                let is_full = at_members == [2, 2];
                match step {
                    Step::Offer if waiting.is_empty() && !is_full => {
                        let (sent, member) = offer(&mut queueing, item).unwrap().unwrap();
                        prop_assert!(sent == item && placed(&mut at_members, member));
                    }
                    Step::Offer | Step::Push => {
                        let has_room = waiting.len() < bound.min(ROOM);
                        if matches!(step, Step::Push) {
                            prop_assert_eq!(queueing.push(item), if has_room { Ok(()) } else { Err(item) });
                        } else {
                            let expected = if has_room { Ok(None) } else { Err((item, DropReason::QueueFull)) };
                            prop_assert_eq!(offer(&mut queueing, item), expected);
                        }
                        waiting.extend(has_room.then_some(item));
                    }
                    Step::Next => {
                        let next = queueing.next(|_| Task::default()).unwrap();
                        let expected = if is_full { None } else { waiting.pop_front() };
                        prop_assert_eq!(next.map(|(item, _)| item), expected);
                        prop_assert!(next.is_none_or(|(_, pick)| placed(&mut at_members, pick.member.0)));
                    }
                    Step::Answer(member) => {
                        answer(&mut queueing, member);
                        let tasks = &mut at_members[usize::from(member)];
                        *tasks = tasks.saturating_sub(1);
                    }
                    Step::GiveUp => prop_assert_eq!(queueing.pop(), waiting.pop_front()),
                    Step::Bound(new_bound) => {
                        bound = new_bound;
                        queueing.set_queue(bound, Overflow::Refuse);
                        prop_assert_eq!(queueing.queue(), (bound, Overflow::Refuse));
                    }
                }
                prop_assert_eq!(queueing.waiting(), waiting.len());
                prop_assert_eq!(queueing.iter().next(), waiting.front());
                prop_assert!(queueing.iter().eq(&waiting));
            }
        }
    }

    // promise: scheduling.3
    #[test]
    fn policy_without_queue_refuses_tasks_without_members() {
        let mut queueing = QueueingDispatcher::new(dispatcher("random", 1));
        assert_eq!(offer(&mut queueing, 'a'), Ok(Some(('a', 0))));
        queueing.set_active(Member(0), false);
        assert_eq!(offer(&mut queueing, 'b'), Err(('b', DropReason::NoMember)));
        assert_eq!((queueing.waiting(), next(&mut queueing)), (0, Ok(None)));
    }

    // promise: scheduling.3
    #[test]
    fn tasks_wait_for_absent_members_unless_refused() {
        for refused in [false, true] {
            let mut queueing = QueueingDispatcher::new(dispatcher("jbsq(k=1)", 1));
            if refused {
                queueing.refuse_without_members();
            }
            // A present but full member is waited for, and all later tasks wait behind the first.
            assert_eq!(offer(&mut queueing, 'a'), Ok(Some(('a', 0))));
            assert_eq!(offer(&mut queueing, 'b'), Ok(None));
            queueing.set_active(Member(0), false);
            assert_eq!(offer(&mut queueing, 'c'), Ok(None));
            assert_eq!((queueing.pop(), queueing.pop()), (Some('b'), Some('c')));
            let expected = if refused { Err(('d', DropReason::NoMember)) } else { Ok(None) };
            assert_eq!(offer(&mut queueing, 'd'), expected);
            assert_eq!(queueing.waiting(), usize::from(!refused));
        }
    }

    // promise: scheduling.3
    #[test]
    fn queued_tasks_go_first_after_policy_change() {
        let mut queueing = QueueingDispatcher::new(dispatcher("jbsq(k=1)", 1));
        assert_eq!(offer(&mut queueing, 0), Ok(Some((0, 0))));
        assert_eq!((offer(&mut queueing, 1), offer(&mut queueing, 2)), (Ok(None), Ok(None)));
        queueing.swap_policy(&mut PreparedPolicy::new(&"random".parse().unwrap(), 1, Core::ONLY));
        queueing.review_members();
        assert_eq!(offer(&mut queueing, 3), Ok(None));
        assert_eq!((next(&mut queueing), next(&mut queueing)), (Ok(Some(1)), Ok(Some(2))));
        queueing.set_active(Member(0), false);
        assert_eq!(next(&mut queueing), Err((3, DropReason::NoMember)));
        assert_eq!((queueing.waiting(), queueing.iter().next()), (0, None));
    }

    #[test]
    fn task_takes_places_of_unfinished_ones() {
        let mut dispatcher = dispatcher("jbsq(k=1)", 2);
        let mut unfinished = vec![Member(1), Member(1)];
        let task = Task::default();
        let places =
            [0; 2].map(|_| dispatcher.offer(task, || None).unwrap().pick().unwrap().member);
        assert_ne!(places[0], places[1]);
        let pick = dispatcher.offer(task, || unfinished.pop()).unwrap().pick().unwrap();
        assert_eq!((pick.member, unfinished.len(), dispatcher.waiting()), (Member(1), 1, 0));
        // A task that must wait behind others takes no place away.
        assert_eq!(dispatcher.offer(task, || None), Ok(Assignment::Waits(Lane::FIRST)));
        assert_eq!(dispatcher.offer(task, || unfinished.pop()), Ok(Assignment::Waits(Lane::FIRST)));
        assert_eq!((unfinished.len(), dispatcher.waiting()), (1, 2));
        let pick = dispatcher.choose(task, || unfinished.pop()).unwrap();
        assert_eq!((pick.member, unfinished.len()), (Member(1), 0));
        assert_eq!(dispatcher.choose(task, || unfinished.pop()), None);
    }

    #[test]
    fn without_a_bound_all_wait() {
        let mut queueing = QueueingDispatcher::unbounded(dispatcher("jbsq(k=1)", 1));
        assert_eq!(offer(&mut queueing, 0), Ok(Some((0, 0))));
        for item in 1..10_000 {
            assert_eq!(offer(&mut queueing, item), Ok(None));
        }
        for item in 1..10_000 {
            answer(&mut queueing, 0);
            assert_eq!(next(&mut queueing), Ok(Some(item)));
            assert_eq!(next(&mut queueing), Ok(None));
        }
    }
}
