//! A leaf's dispatcher with an optional watcher, for model [`super::rack`]. A test records the events and replays them
//! at the dataplane's leaf, which must decide the same. Without a watcher the recording costs nothing.
//!
//! A dispatcher is the policy of one core, with its view of the members (workers) and a queue of waiting tasks. A
//! [`Placement`] is its decision on a task: the chosen member, `None` if the task waits, or an error if no member is
//! available.

use std::cell::RefCell;
use std::rc::Rc;

use wedjat_core::policy::{Dispatcher, Pick, Placement, QueueingDispatcher, Task};
use wedjat_core::state::{Member, Report, View};

/// An input or output of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time in nanoseconds.
    Time(u64),
    /// Arrival of a task.
    Arrival(Task),
    /// Offer of the first waiting task to the policy, with the chosen member, if any.
    Offer(Option<Pick>),
    /// Reply of a member.
    Reply(Report),
    /// Load report of a member outside the reply to a client's task, for instance after a benchmark task.
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
    /// Creates a watched dispatcher with an unbounded queue.
    pub fn new(dispatcher: Dispatcher, watcher: W) -> Self {
        Self { dispatcher: QueueingDispatcher::unbounded(dispatcher), watcher }
    }

    /// Records an arrival. An arrival behind waiting tasks has no offer yet, and an offer does not hold the task.
    #[inline]
    pub fn note_arrival(&self, task: Task) {
        self.watcher.note(Event::Arrival(task));
    }

    /// Offers a new task to the policy, which sends or queues it, by [`QueueingDispatcher::offer`]. Records the offer
    /// if the policy decided at once.
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

    /// Offers the first waiting task again, by [`QueueingDispatcher::next`], and records the offer. `task` returns
    /// the policy's input for the number of a task.
    #[inline]
    pub fn next(&mut self, task: impl Fn(&u32) -> Task) -> Placement<u32> {
        // Without a waiting task the policy is not called.
        let has_backlog = self.dispatcher.waiting() > 0;
        let placement = self.dispatcher.next(task);
        if has_backlog {
            self.note_offer(&placement);
        }
        placement
    }

    /// Records an offer to the policy. A task that waits or is refused has no pick.
    #[inline]
    fn note_offer(&self, placement: &Placement<u32>) {
        let pick = placement.ok().flatten().map(|(_, pick)| pick);
        self.watcher.note(Event::Offer(pick));
    }

    /// Removes and returns the first waiting task, if any, by [`QueueingDispatcher::pop`]. Drains the queue of a
    /// failed leaf, so it records nothing.
    pub fn pop(&mut self) -> Option<u32> {
        self.dispatcher.pop()
    }

    /// Passes a member's reply to the policy, by [`Dispatcher::reply`], and records it. Returns false if the member had
    /// no outstanding task.
    #[inline]
    pub fn reply(&mut self, report: &Report) -> bool {
        self.watcher.note(Event::Reply(*report));
        self.dispatcher.reply(report)
    }

    /// Passes a load report without a reply to the policy, by [`Dispatcher::refresh`], and records it.
    #[inline]
    pub fn refresh(&mut self, report: &Report) {
        self.watcher.note(Event::Refresh(*report));
        self.dispatcher.refresh(report);
    }

    /// Sets the time of the next reply, by [`Dispatcher::note_burst`]. Does not record it.
    #[inline]
    pub fn note_burst(&mut self, now_ns: u64) {
        self.dispatcher.note_burst(now_ns);
    }

    /// Advances the policy's time, by [`Dispatcher::tick`], and records it.
    #[inline]
    pub fn tick(&mut self, now_ns: u64) {
        self.watcher.note(Event::Time(now_ns));
        self.dispatcher.tick(now_ns);
    }

    /// Returns the next member for which the policy requests a benchmark task, a task that measures the member's speed;
    /// see [`Dispatcher::next_benchmark`].
    #[inline]
    pub fn next_benchmark(&mut self) -> Option<Member> {
        self.dispatcher.next_benchmark()
    }

    /// Returns true if the policy queues tasks that no member may take now; see [`Dispatcher::holds_tasks`].
    #[inline]
    pub fn holds_tasks(&self) -> bool {
        self.dispatcher.holds_tasks()
    }

    /// Returns true if tasks wait and another core may have made room for them; see [`Dispatcher::may_release`].
    #[inline]
    pub fn may_release(&self) -> bool {
        self.dispatcher.may_release()
    }

    /// Returns the dispatcher's estimate of the members' state.
    #[inline]
    pub fn view(&self) -> &View {
        self.dispatcher.view()
    }

    /// Returns the same estimate for changes.
    #[inline]
    pub fn view_mut(&mut self) -> &mut View {
        self.dispatcher.view_mut()
    }
}
