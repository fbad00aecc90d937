//! What must be so in every run, whatever goes wrong in it: looked at after each turn of a node, and at the end.
//!
//! - The packets that a node received and sent are those that it was given and that came from it.
//! - Its ledger balances, by itself and with what passed its ports, by kind of packet.
//! - It has no packet buffer more than packets.
//! - No worker has more tasks than the policy's bound.
//! - No worker is idle for long while tasks wait that the policy lets wait.
//! - Nobody makes a task's packet out of nothing.
//! - Each task is answered, refused, or lost for a reason, and nothing stays outstanding.
//! - An answer is that of its task, so nobody is given two that differ.
//! - When nothing goes wrong any more, leaves have all workers of their racks, and spines all leaves with as many.

use wedjat::clock::Line;
use wedjat::policy::Dispatcher;
use wedjat::reason::DropReason;
use wedjat::state::Presence;
use wedjat::state::{Counter, Counters, Gauge, Member};

use super::faults::Who;
use super::node::Inside;
use super::packets::Class;

/// A worker of which everybody knows that it is idle may be idle for so long while tasks wait.
pub const KNOWN_IDLE_NS: u64 = 2_000_000;
/// So long, where tasks or replies were lost: they must be written off first.
pub const WRITTEN_OFF_NS: u64 = 12_000_000_000;
/// A spine and a leaf may differ about who is there for so long: two heartbeats, and half of one until it is looked at.
pub const AGREE_NS: u64 = 25_000_000;
/// A node may be other than its controller says for so long after nothing holds it up: it tries again every 50 ms.
pub const FOLLOW_NS: u64 = 50_000_000 + AGREE_NS;
/// The same where packets are lost, and heartbeats with them.
pub const AGREE_WITH_LOSSES_NS: u64 = 300_000_000;
/// All workers are registered again after so long.
pub const REGISTERED_NS: u64 = 1_000_000_000;
/// In an agent, which sees what its workers have.
pub const IDLE_AT_AGENT_NS: u64 = 1_000_000;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When it was seen, in nanoseconds.
    pub at_ns: u64,
    /// At whom.
    pub who: String,
    /// What.
    pub what: String,
}

/// What passed a node's ports since it was started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    /// Packets given to it.
    pub given: u64,
    /// Packets that came from it, by class.
    pub out: [u64; Class::COUNT],
}

impl Passed {
    /// Packets that came from it.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.out.iter().sum()
    }

    fn of(&self, classes: &[Class]) -> u64 {
        classes.iter().map(|&class| self.out[class as usize]).sum()
    }
}

/// The packets that a node told of are those that passed; it is quiet.
#[must_use]
pub fn books(line: &Line, passed: &Passed) -> Option<String> {
    let Passed { given, .. } = *passed;
    let taken = passed.taken();
    let (received, sent) = (line.received, line.sent);
    (received != given || sent != taken).then(|| {
        format!(
            "its books do not agree: it received {received} of {given} packets given to it, and of {sent} that it sent {taken} \
             came"
        )
    })
}

/// What its own account says, and whether that agrees with what passed.
#[must_use]
pub fn ledger(who: Who, inside: &Inside<'_>, passed: &Passed) -> Option<String> {
    let Inside { counters, held, buffers, .. } = *inside;
    let totals = counters.totals();
    let (received, sent_on) = (totals.count(Counter::RxPackets), totals.sent());
    let (consumed, dropped) = (totals.count(Counter::Consumed), totals.dropped());
    if received != sent_on + consumed + held + dropped {
        return Some(format!(
            "its ledger does not balance: received {received} = sent on {sent_on} + consumed {consumed} + held {held} + dropped \
             {dropped}"
        ));
    }
    if buffers as u64 != held {
        return Some(format!(
            "{buffers} packet buffers are in use for {held} packets that it holds: a lost free"
        ));
    }
    let is_leaf = matches!(who, Who::Leaf(_) | Who::Spine(_));
    let own = [Class::Registration, Class::Acknowledgement, Class::Signal, Class::Arp];
    let (made, originated) = (passed.of(&own), totals.originated_sent());
    // A leaf gives a task back in a packet of its own account, or below a spine on its client's way, and passes on what an agent has
    // given back.
    let given_back = originated.saturating_sub(made);
    let most = if is_leaf { totals.count(Counter::Refused) } else { 0 };
    let passed_on = passed.of(&[Class::Task, Class::Reply, Class::Refusal]) - given_back.min(most);
    if passed_on != sent_on || made > originated || given_back > most {
        let made = made + given_back.min(most);
        return Some(format!(
            "its ledger and the wires differ: it counts {sent_on} packets sent on and {originated} made, {passed_on} and {made} \
             came"
        ));
    }
    match is_leaf {
        true => leaf_counts(counters, held, passed),
        false => agent_counts(counters, held, passed),
    }
}

/// A leaf's counts of tasks, replies and refusals are those that passed, but for those that wait for a neighbour's address or
/// waited in vain.
fn leaf_counts(counters: &Counters, held: u64, passed: &Passed) -> Option<String> {
    let read = |counter| counters.read(counter);
    let (scheduled, replies) = (read(Counter::Scheduled), read(Counter::Replies));
    let (refused, tasks) = (read(Counter::Refused), passed.of(&[Class::Task]));
    let answers = passed.of(&[Class::Reply, Class::Refusal]);
    // With several leaves a wrong MAC address brings a leaf replies for clients that it has no way to.
    let unresolved = [
        DropReason::NeighbourUnresolved,
        DropReason::NeighbourQueueFull,
        DropReason::PortDown,
        DropReason::TxFull,
        DropReason::NoRoute,
    ];
    let waited: u64 = unresolved.iter().map(|&reason| counters.dropped(reason)).sum();
    let between = held - counters.read(Gauge::Queued) + waited;
    let counted = scheduled + replies + refused;
    if counted != tasks + answers + between || scheduled < tasks || replies + refused < answers {
        return Some(format!(
            "it counts {scheduled} tasks scheduled, {replies} replies and {refused} refused; {tasks} tasks and {answers} \
             answers and refusals came, and {between} wait or waited for a neighbour"
        ));
    }
    None
}

/// An agent's are those that it answered, lost with their worker or still has.
fn agent_counts(counters: &Counters, held: u64, passed: &Passed) -> Option<String> {
    let read = |counter| counters.read(counter);
    let (scheduled, replies) = (read(Counter::Scheduled), read(Counter::Replies));
    let answers = passed.of(&[Class::Reply]);
    let tx_full = counters.dropped(DropReason::TxFull);
    if replies != answers + tx_full {
        return Some(format!(
            "it counts {replies} replies, and {answers} came ({tx_full} found its port full)"
        ));
    }
    let lost: u64 = [DropReason::WorkerLost, DropReason::Unanswered, DropReason::BadReply]
        .iter()
        .map(|&reason| counters.dropped(reason))
        .sum();
    let (over, full) = (replies + lost + held, counters.dropped(DropReason::QueueFull));
    if scheduled < over || scheduled > over + full {
        return Some(format!(
            "it counts {scheduled} tasks scheduled; {replies} were answered, {lost} lost with their worker, {held} are there"
        ));
    }
    None
}

/// A worker that the scheduler believes to have more than the policy's bound.
#[must_use]
pub fn above_bound(dispatcher: &Dispatcher, bound: u32) -> Option<String> {
    let view = dispatcher.view();
    (0..view.members()).map(|at| Member(at as u16)).find_map(|member| {
        let tasks = view.outstanding(member);
        (tasks > bound).then(|| {
            format!("member {} was given {tasks} tasks, with a bound of {bound}", member.index())
        })
    })
}

/// A worker is registered, as the leaf believes, or need not register.
#[must_use]
pub fn is_there(dispatcher: &Dispatcher, member: Member) -> bool {
    matches!(dispatcher.view().presence(member), Presence::Registered | Presence::Configured)
}

/// Why a member is not what all are when nothing goes wrong: registered, and at a spine with so many workers.
#[must_use]
pub fn is_missing(dispatcher: &Dispatcher, member: Member, workers: Option<u16>) -> Option<String> {
    let view = dispatcher.view();
    let (presence, told) = (view.presence(member), view.workers_of(member));
    if presence != Presence::Registered || !view.is_active(member) {
        return Some(format!("is {presence:?}, and not to be chosen"));
    }
    let wanted = workers.filter(|_| told != workers)?;
    Some(format!("has {wanted} workers, and told of {told:?}"))
}

/// What is still outstanding when all is quiet. What a spine believes of its leaves is as old as their last word.
#[must_use]
pub fn outstanding(who: Who, inside: &Inside<'_>) -> Option<String> {
    let Inside { held, waiting, stranded, dispatcher, .. } = *inside;
    if held > stranded || waiting as u64 > stranded {
        return Some(format!("{held} packets are still held, {waiting} of them tasks that wait"));
    }
    if matches!(who, Who::Spine(_)) {
        return None;
    }
    let view = dispatcher?.view();
    (0..view.members()).map(|at| Member(at as u16)).find_map(|member| {
        let tasks = view.outstanding(member);
        let ((load, drift), presence) = (view.load_and_drift(member), view.presence(member));
        (tasks > 0).then(|| {
            format!(
                "{tasks} tasks are still counted as outstanding at member {} ({presence:?}, which reported {}, and {} more were \
                 sent since; {} reports)",
                member.index(),
                load.whole_tasks(),
                drift.whole_tasks(),
                view.reports(member)
            )
        })
    })
}
