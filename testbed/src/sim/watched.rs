//! A leaf's dispatcher and whoever watches it: a test that replays what happened, or nobody, at no cost.

use std::cell::RefCell;
use std::rc::Rc;

use wedjat::policy::{Dispatcher, Offered, Pick, QueueingDispatcher, Task};
use wedjat::state::{Member, Report, View};

/// What a dispatcher of the simulator is told and what it says, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time, in nanoseconds.
    Time(u64),
    /// A task arrived.
    Arrival(Task),
    /// The longest waiting task was offered.
    Offer(Option<Pick>),
    /// A member answered.
    Reply(Report),
    /// A member reported without a reply.
    Refresh(Report),
}

/// Who watches.
pub trait Watch: Clone {
    /// Something happened.
    fn note(&self, event: Event);
}

/// Nobody watches.
impl Watch for () {
    #[inline(always)]
    fn note(&self, _event: Event) {}
}

/// A record of all that happened.
impl Watch for Rc<RefCell<Vec<Event>>> {
    fn note(&self, event: Event) {
        self.borrow_mut().push(event);
    }
}

/// See the module's text. Its calls are the dispatcher's; tasks that wait are numbers.
#[derive(Debug)]
pub struct Watched<W> {
    dispatcher: QueueingDispatcher<u32>,
    watch: W,
}

impl<W> AsMut<Dispatcher> for Watched<W> {
    fn as_mut(&mut self) -> &mut Dispatcher {
        self.dispatcher.as_mut()
    }
}

impl<W: Watch> Watched<W> {
    /// A dispatcher that is watched from now on.
    pub fn new(dispatcher: Dispatcher, watch: W) -> Self {
        Self { dispatcher: QueueingDispatcher::unbounded(dispatcher), watch }
    }

    /// A task arrived, whether or not it is offered now.
    #[inline]
    pub fn note_arrival(&self, task: Task) {
        self.watch.note(Event::Arrival(task));
    }

    /// [`QueueingDispatcher::offer`].
    #[inline]
    pub fn offer(&mut self, task: Task, number: u32) -> Offered<u32> {
        let others_wait = self.dispatcher.waiting() > 0;
        let offered = self.dispatcher.offer(task, number);
        if !others_wait {
            self.note_offer(&offered);
        }
        offered
    }

    /// [`QueueingDispatcher::next`].
    #[inline]
    pub fn next(&mut self, task: impl FnOnce(&u32) -> Task) -> Offered<u32> {
        let one_waits = self.dispatcher.waiting() > 0;
        let offered = self.dispatcher.next(task);
        if one_waits {
            self.note_offer(&offered);
        }
        offered
    }

    /// The policy was asked.
    #[inline]
    fn note_offer(&self, offered: &Offered<u32>) {
        let pick = offered.ok().flatten().map(|(_, pick)| pick);
        self.watch.note(Event::Offer(pick));
    }

    /// [`QueueingDispatcher::pop`].
    pub fn pop(&mut self) -> Option<u32> {
        self.dispatcher.pop()
    }

    /// [`Dispatcher::reply`].
    #[inline]
    pub fn reply(&mut self, report: &Report) -> bool {
        self.watch.note(Event::Reply(*report));
        self.dispatcher.reply(report)
    }

    /// [`Dispatcher::refresh`].
    #[inline]
    pub fn refresh(&mut self, report: &Report) {
        self.watch.note(Event::Refresh(*report));
        self.dispatcher.refresh(report);
    }

    /// [`Dispatcher::tick`].
    #[inline]
    pub fn tick(&mut self, now_ns: u64) {
        self.watch.note(Event::Time(now_ns));
        self.dispatcher.tick(now_ns);
    }

    /// [`Dispatcher::next_benchmark`].
    #[inline]
    pub fn next_benchmark(&mut self) -> Option<Member> {
        self.dispatcher.next_benchmark()
    }

    /// [`Dispatcher::holds`].
    #[inline]
    pub fn holds(&self) -> bool {
        self.dispatcher.holds()
    }

    /// [`Dispatcher::may_release`].
    #[inline]
    pub fn may_release(&self) -> bool {
        self.dispatcher.may_release()
    }

    /// [`Dispatcher::view`].
    #[inline]
    pub fn view(&self) -> &View {
        self.dispatcher.view()
    }

    /// [`Dispatcher::view_mut`].
    #[inline]
    pub fn view_mut(&mut self) -> &mut View {
        self.dispatcher.view_mut()
    }
}
