//! A leaf's dispatcher with an optional watcher, which lets a test replay the events. Without a watcher it
//! costs nothing.

use std::cell::RefCell;
use std::rc::Rc;

use wedjat::policy::{Dispatcher, Pick, Placement, QueueingDispatcher, Task};
use wedjat::state::{Member, Report, View};

/// An input or output of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time in nanoseconds.
    Time(u64),
    /// Arrival of a task.
    Arrival(Task),
    /// Offer of the longest waiting task to the policy, with the chosen member, if any.
    Offer(Option<Pick>),
    /// Reply of a member.
    Reply(Report),
    /// Load report of a member that does not come with the reply to a task.
    Refresh(Report),
}

/// Receives the events of a dispatcher.
pub trait Watcher: Clone {
    /// Records an event.
    fn note(&self, event: Event);
}

/// No watcher.
impl Watcher for () {
    #[inline(always)]
    fn note(&self, _event: Event) {}
}

/// Recording of all events.
impl Watcher for Rc<RefCell<Vec<Event>>> {
    fn note(&self, event: Event) {
        self.borrow_mut().push(event);
    }
}

/// Dispatcher with a watcher. It has the methods of the dispatcher that the model needs. Tasks are represented by
/// numbers.
#[derive(Debug)]
pub struct WatchedDispatcher<W> {
    dispatcher: QueueingDispatcher<u32>,
    watcher: W,
}

impl<W> AsMut<Dispatcher> for WatchedDispatcher<W> {
    fn as_mut(&mut self) -> &mut Dispatcher {
        self.dispatcher.as_mut()
    }
}

impl<W: Watcher> WatchedDispatcher<W> {
    /// Creates a watched dispatcher.
    pub fn new(dispatcher: Dispatcher, watcher: W) -> Self {
        Self { dispatcher: QueueingDispatcher::unbounded(dispatcher), watcher }
    }

    /// Records an arrival, whether or not it is offered now.
    #[inline]
    pub fn note_arrival(&self, task: Task) {
        self.watcher.note(Event::Arrival(task));
    }

    /// Calls [`QueueingDispatcher::offer`] and records the offer.
    #[inline]
    pub fn offer(&mut self, task: Task, number: u32) -> Placement<u32> {
        // The policy decides at once only if no earlier task waits.
        let has_backlog = self.dispatcher.waiting() > 0;
        let placement = self.dispatcher.offer(task, number);
        if !has_backlog {
            self.note_offer(&placement);
        }
        placement
    }

    /// Calls [`QueueingDispatcher::next`] and records the offer.
    #[inline]
    pub fn next(&mut self, task: impl FnOnce(&u32) -> Task) -> Placement<u32> {
        // Without a waiting task the policy is not called.
        let has_backlog = self.dispatcher.waiting() > 0;
        let placement = self.dispatcher.next(task);
        if has_backlog {
            self.note_offer(&placement);
        }
        placement
    }

    /// Records an offer to the policy.
    #[inline]
    fn note_offer(&self, placement: &Placement<u32>) {
        let pick = placement.ok().flatten().map(|(_, pick)| pick);
        self.watcher.note(Event::Offer(pick));
    }

    /// Calls [`QueueingDispatcher::pop`].
    pub fn pop(&mut self) -> Option<u32> {
        self.dispatcher.pop()
    }

    /// Calls [`Dispatcher::reply`] and records the reply. Returns false if the member had no outstanding task.
    #[inline]
    pub fn reply(&mut self, report: &Report) -> bool {
        self.watcher.note(Event::Reply(*report));
        self.dispatcher.reply(report)
    }

    /// Calls [`Dispatcher::refresh`] and records the report.
    #[inline]
    pub fn refresh(&mut self, report: &Report) {
        self.watcher.note(Event::Refresh(*report));
        self.dispatcher.refresh(report);
    }

    /// Calls [`Dispatcher::tick`] and records the time.
    #[inline]
    pub fn tick(&mut self, now_ns: u64) {
        self.watcher.note(Event::Time(now_ns));
        self.dispatcher.tick(now_ns);
    }

    /// Calls [`Dispatcher::next_benchmark`].
    #[inline]
    pub fn next_benchmark(&mut self) -> Option<Member> {
        self.dispatcher.next_benchmark()
    }

    /// Calls [`Dispatcher::holds`].
    #[inline]
    pub fn holds(&self) -> bool {
        self.dispatcher.holds()
    }

    /// Calls [`Dispatcher::may_release`].
    #[inline]
    pub fn may_release(&self) -> bool {
        self.dispatcher.may_release()
    }

    /// Calls [`Dispatcher::view`].
    #[inline]
    pub fn view(&self) -> &View {
        self.dispatcher.view()
    }

    /// Calls [`Dispatcher::view_mut`].
    #[inline]
    pub fn view_mut(&mut self) -> &mut View {
        self.dispatcher.view_mut()
    }
}
