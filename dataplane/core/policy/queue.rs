//! Dispatcher with a queue of waiting tasks, for callers whose tasks are complete. A leaf may have tasks of which some
//! packets are missing, and may give up such a task to free its place; here there is none to give up (`|| None`).
//!
//! Agents and the simulator use it. In a leaf the stages only count waiting tasks, and the node stores them: stages
//! decide on a burst whose packets stay in place. The rules for both are those of [`Dispatcher`].

use std::ops::{Deref, DerefMut};

use super::fifo::{Fifo, Slab};
use super::{Dispatcher, Pick, Task};
use crate::reason::DropReason;

/// A [`Dispatcher`] with its waiting tasks, each represented by an item of the caller: a packet, or a number.
///
/// A task waits if others wait. Otherwise the policy chooses a member, or the task waits if allowed. When a
/// member may have a free place, the first waiting task is offered again, and then its successors.
#[derive(Debug)]
pub struct QueueingDispatcher<T> {
    /// The policy, and the count of waiting tasks.
    dispatcher: Dispatcher,
    /// Memory for waiting tasks.
    tasks: Slab<T>,
    /// Their order.
    order: Fifo,
}

/// Result of a decision: the task with its member, or `None` if it waits. Otherwise the task with the reason
/// why it can neither go nor wait.
pub type Placement<T> = Result<Option<(T, Pick)>, (T, DropReason)>;

impl<T> QueueingDispatcher<T> {
    /// Creates an empty queue with memory for its current bound ([`Dispatcher::set_queue`]).
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        Self { tasks: Slab::with_room(dispatcher.queue().0), dispatcher, order: Fifo::EMPTY }
    }

    /// Creates an empty queue without bound, which grows as tasks arrive. For the simulator: a polling core must not
    /// allocate.
    #[must_use]
    pub fn unbounded(mut dispatcher: Dispatcher) -> Self {
        dispatcher.set_queue(usize::MAX, dispatcher.queue().1);
        Self { dispatcher, tasks: Slab::default(), order: Fifo::EMPTY }
    }

    /// Decides on a new task.
    ///
    /// # Errors
    /// The task, and the reason why it can neither go nor wait.
    #[inline]
    pub fn offer(&mut self, task: Task, item: T) -> Placement<T> {
        match self.dispatcher.offer(task, || None) {
            Ok(Some(pick)) => Ok(Some((item, pick))),
            Ok(None) => {
                self.store(item).map(|()| None).map_err(|item| (item, DropReason::QueueFull))
            }
            Err(reason) => Err((item, reason)),
        }
    }

    /// Appends a task to the queue without a decision, for callers that decide later (model `slots`).
    ///
    /// # Errors
    /// Returns the task if the queue is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        match self.dispatcher.join() {
            Ok(()) => self.store(item),
            Err(_) => Err(item),
        }
    }

    /// Stores a waiting task, which is already counted.
    fn store(&mut self, item: T) -> Result<(), T> {
        // The bound may have been raised above the available memory.
        self.tasks.push(&mut self.order, item).inspect_err(|_| self.dispatcher.leave_last())
    }

    /// Decides on the first waiting task, if any; `task` describes it to the policy.
    ///
    /// # Errors
    /// The task, and the reason why it can neither go nor keep waiting.
    #[inline]
    pub fn next(&mut self, task: impl FnOnce(&T) -> Task) -> Placement<T> {
        let Some(first) = self.first() else { return Ok(None) };
        let task = task(first);
        match self.dispatcher.choose(task, || None) {
            Some(pick) => Ok(self.pop().map(|item| (item, pick))),
            None if self.dispatcher.holds_tasks() => Ok(None),
            None => self.pop().map_or(Ok(None), |item| Err((item, DropReason::NoMember))),
        }
    }

    /// Returns the first waiting task, if any.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.tasks.get(self.order.first()?)
    }

    /// Removes the first waiting task, if any: after [`Dispatcher::schedule`] chose its member, to drop it, or to
    /// forward it.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.tasks.pop(&mut self.order)?;
        self.dispatcher.leave();
        Some(item)
    }

    /// Iterates over the waiting tasks in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.tasks.iter(self.order)
    }

    /// Swaps the memory for waiting tasks for `tasks`, and moves the tasks over. The caller allocates it outside the
    /// polling core, for a larger bound, and frees the old memory there.
    ///
    /// # Panics
    /// If `tasks` has too little room and does not grow.
    pub fn exchange_memory(&mut self, tasks: &mut Slab<T>) {
        let mut order = Fifo::EMPTY;
        while let Some(task) = self.tasks.pop(&mut self.order) {
            order.push(tasks.add(task), tasks);
        }
        std::mem::swap(&mut self.tasks, tasks);
        self.order = order;
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
                prop_assert_eq!(queueing.first(), waiting.front());
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
        assert_eq!((queueing.waiting(), queueing.first()), (0, None));
    }

    #[test]
    fn task_takes_places_of_unfinished_ones() {
        let mut dispatcher = dispatcher("jbsq(k=1)", 2);
        let mut unfinished = vec![Member(1), Member(1)];
        let task = Task::default();
        let places = [0; 2].map(|_| dispatcher.offer(task, || None).unwrap().unwrap().member);
        assert_ne!(places[0], places[1]);
        let pick = dispatcher.offer(task, || unfinished.pop()).unwrap().unwrap();
        assert_eq!((pick.member, unfinished.len(), dispatcher.waiting()), (Member(1), 1, 0));
        // A task that must wait behind others takes no place away.
        assert_eq!(dispatcher.offer(task, || None), Ok(None));
        assert_eq!(dispatcher.offer(task, || unfinished.pop()), Ok(None));
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
