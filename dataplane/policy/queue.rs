//! A dispatcher with the tasks that wait for its members.

use std::ops::{Deref, DerefMut};

use super::fifo::{Fifo, Slab};
use super::{Dispatcher, Pick, Task};
use crate::reason::DropReason;

/// A [`Dispatcher`], and what its caller has of each task that waits: a packet, or a number. Whatever else it does is the
/// dispatcher's.
///
/// A task waits when others wait; else the policy chooses; else it waits, if it may. When a member may have become free,
/// the first that waits is offered again, and the one behind it once that one has gone.
#[derive(Debug)]
pub struct QueueingDispatcher<T> {
    dispatcher: Dispatcher,
    tasks: Slab<T>,
    order: Fifo,
}

/// What was decided on a task: it is given back with the member that it goes to; none when it waits. Or it is given back with
/// the reason why it neither goes nor waits.
pub type Offered<T> = Result<Option<(T, Pick)>, (T, DropReason)>;

impl<T> QueueingDispatcher<T> {
    /// Nothing waits. There is memory for as many tasks as may wait now ([`Dispatcher::set_queue`]).
    #[must_use]
    pub fn new(dispatcher: Dispatcher) -> Self {
        Self { tasks: Slab::with_room(dispatcher.queue().0), dispatcher, order: Fifo::EMPTY }
    }

    /// Nothing waits, and any number of tasks may: memory is taken as they come.
    #[must_use]
    pub fn unbounded(mut dispatcher: Dispatcher) -> Self {
        dispatcher.set_queue(usize::MAX, dispatcher.queue().1);
        Self { dispatcher, tasks: Slab::default(), order: Fifo::EMPTY }
    }

    /// Decides on a new task.
    ///
    /// # Errors
    /// The task, and why it neither goes nor waits.
    #[inline]
    pub fn offer(&mut self, task: Task, item: T) -> Offered<T> {
        match self.dispatcher.offer(task, || None) {
            Ok(Some(pick)) => Ok(Some((item, pick))),
            Ok(None) => {
                self.keep(item).map(|()| None).map_err(|item| (item, DropReason::QueueFull))
            }
            Err(reason) => Err((item, reason)),
        }
    }

    /// Puts a task last without deciding on it, whether or not others wait.
    ///
    /// # Errors
    /// The task, when no more may wait.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        match self.dispatcher.join() {
            Ok(()) => self.keep(item),
            Err(_) => Err(item),
        }
    }

    /// A task that waits, as is counted already.
    fn keep(&mut self, item: T) -> Result<(), T> {
        // More may wait by now than there is memory for.
        self.tasks.push(&mut self.order, item).inspect_err(|_| self.dispatcher.leave_last())
    }

    /// Decides on the first task that waits, of which `task` says what policies may know; none, too, when none waits.
    ///
    /// # Errors
    /// The task, and why it neither goes nor waits on.
    #[inline]
    pub fn next(&mut self, task: impl FnOnce(&T) -> Task) -> Offered<T> {
        let Some(first) = self.first() else { return Ok(None) };
        let task = task(first);
        match self.dispatcher.choose(task, || None) {
            Some(pick) => Ok(self.pop().map(|item| (item, pick))),
            None if self.dispatcher.holds() => Ok(None),
            None => self.pop().map_or(Ok(None), |item| Err((item, DropReason::NoMember))),
        }
    }

    /// The first task that waits.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.tasks.get(self.order.first()?)
    }

    /// Takes out the first task that waits: [`Dispatcher::schedule`] has chosen a member for it, or it is given up.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.tasks.pop(&mut self.order)?;
        self.dispatcher.leave();
        Some(item)
    }

    /// The tasks that wait, the first one first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.tasks.iter(self.order)
    }

    /// Takes other memory for tasks that wait, which has room for those that do, and leaves its own in its place.
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
    use crate::policy::{Core, Overflow, Prepared};
    use crate::state::{Load, Member, Report, View};

    fn dispatcher(policy: &str, members: usize) -> Dispatcher {
        let view = View::heap(members, 1).remove(0);
        Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 7)
    }

    /// Two members that may have two tasks each.
    fn queueing(bound: usize) -> QueueingDispatcher<usize> {
        QueueingDispatcher::new(dispatcher("jbsq(k=2)", 2).with_queue(bound, Overflow::Drop))
    }

    fn answer<T>(queueing: &mut QueueingDispatcher<T>, member: u16) {
        queueing.reply(&Report::new(Member(member), Load(0), 0));
    }

    fn offer<T>(
        queueing: &mut QueueingDispatcher<T>,
        item: T,
    ) -> Result<Option<(T, u16)>, (T, DropReason)> {
        let offered = queueing.offer(Task::default(), item);
        offered.map(|goes| goes.map(|(item, pick)| (item, pick.member.0)))
    }

    fn next<T>(queueing: &mut QueueingDispatcher<T>) -> Result<Option<T>, (T, DropReason)> {
        queueing.next(|_| Task::default()).map(|goes| goes.map(|(item, _)| item))
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Offer,
        Push,
        Next,
        Answer(u16),
        GiveUp,
        Bound(usize),
    }

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

    /// One more task is at a member: nobody has more than two, and whoever has least gets the next.
    fn placed(at_members: &mut [u32; 2], member: u16) -> bool {
        let [own, other] = [member, 1 - member].map(|member| at_members[usize::from(member)]);
        at_members[usize::from(member)] += 1;
        own < 2 && own <= other
    }

    proptest! {
        #[test]
        fn tasks_go_in_order_and_no_more_wait_than_may(steps in steps()) {
            const ROOM: usize = 4;
            let mut queueing = queueing(ROOM);
            let (mut waiting, mut bound, mut at_members) = (VecDeque::new(), ROOM, [0_u32; 2]);
            for (item, step) in steps.into_iter().enumerate() {
                let is_full = at_members == [2, 2];
                match step {
                    Step::Offer if waiting.is_empty() && !is_full => {
                        let (gone, member) = offer(&mut queueing, item).unwrap().unwrap();
                        prop_assert!(gone == item && placed(&mut at_members, member));
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
                        let own = &mut at_members[usize::from(member)];
                        *own = own.saturating_sub(1);
                    }
                    Step::GiveUp => prop_assert_eq!(queueing.pop(), waiting.pop_front()),
                    Step::Bound(other) => {
                        bound = other;
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

    #[test]
    fn a_policy_that_lets_no_task_wait_refuses_those_that_cannot_go() {
        let mut queueing = QueueingDispatcher::new(dispatcher("random", 1));
        assert_eq!(offer(&mut queueing, 'a'), Ok(Some(('a', 0))));
        queueing.set_active(Member(0), false);
        assert_eq!(offer(&mut queueing, 'b'), Err(('b', DropReason::NoMember)));
        assert_eq!((queueing.waiting(), next(&mut queueing)), (0, Ok(None)));
    }

    #[test]
    fn tasks_wait_for_members_that_are_not_there_unless_that_is_refused() {
        for refused in [false, true] {
            let mut queueing = QueueingDispatcher::new(dispatcher("jbsq(k=1)", 1));
            if refused {
                queueing.refuse_without_members();
            }
            // One that is there and full is waited for, and so are its successors once one waits.
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

    #[test]
    fn what_waits_when_the_policy_changes_goes_first() {
        let mut queueing = QueueingDispatcher::new(dispatcher("jbsq(k=1)", 1));
        assert_eq!(offer(&mut queueing, 0), Ok(Some((0, 0))));
        assert_eq!((offer(&mut queueing, 1), offer(&mut queueing, 2)), (Ok(None), Ok(None)));
        queueing.exchange(&mut Prepared::new(&"random".parse().unwrap(), 1, Core::ONLY));
        queueing.review_members();
        assert_eq!(offer(&mut queueing, 3), Ok(None));
        assert_eq!((next(&mut queueing), next(&mut queueing)), (Ok(Some(1)), Ok(Some(2))));
        queueing.set_active(Member(0), false);
        assert_eq!(next(&mut queueing), Err((3, DropReason::NoMember)));
        assert_eq!((queueing.waiting(), queueing.first()), (0, None));
    }

    #[test]
    fn a_task_gets_the_places_of_those_that_are_not_complete() {
        let mut dispatcher = dispatcher("jbsq(k=1)", 2);
        let mut unfinished = vec![Member(1), Member(1)];
        let task = Task::default();
        let places = [0; 2].map(|_| dispatcher.offer(task, || None).unwrap().unwrap().member);
        assert_ne!(places[0], places[1]);
        let pick = dispatcher.offer(task, || unfinished.pop()).unwrap().unwrap();
        assert_eq!((pick.member, unfinished.len(), dispatcher.waiting()), (Member(1), 1, 0));
        // Nobody's place is taken away for one that must wait behind others.
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
