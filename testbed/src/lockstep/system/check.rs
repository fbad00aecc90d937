//! Invariants of every run, whatever its faults. They are checked after each turn of a node, and at the end.
//!
//! - The node's counts of received and sent packets equal the counts on its wires.
//! - Its ledger balances, alone and against the packets at its ports, by kind of packet.
//! - It uses exactly one packet buffer per held packet.
//! - No worker has more tasks than the policy's bound.
//! - No worker is idle for long beside waiting tasks, if the policy lets tasks wait.
//! - No node makes a task's packet from nothing.
//! - Each task is answered, refused, or lost for a reason, and nothing stays outstanding.
//! - Each answer belongs to its task, so no client receives two different answers.
//! - After the last fault, leaves have all workers of their racks, and spines have all leaves with their numbers of
//!   workers.

use wedjat::clock::Line;
use wedjat::policy::Dispatcher;
use wedjat::reason::DropReason;
use wedjat::state::Presence;
use wedjat::state::{Counter, Counters, Gauge, Member};

use super::faults::FaultTarget;
use super::node::LocalNodeState;
use super::packets::Class;

/// Maximum time for which a worker may be idle beside waiting tasks, if its scheduler counts it as idle.
pub const KNOWN_IDLE_NS: u64 = 2_000_000;
/// The same limit after lost tasks or replies, because these must be written off first.
pub const WRITTEN_OFF_NS: u64 = 12_000_000_000;
/// Maximum time for which a spine and a leaf may disagree about members: two heartbeats, and half of one
/// until the check.
pub const AGREE_NS: u64 = 25_000_000;
/// Maximum time for which a node may differ from its controller's desired state after the last delay: it
/// tries again every 50 ms.
pub const FOLLOW_NS: u64 = 50_000_000 + AGREE_NS;
/// The same limit as [`AGREE_NS`] on wires that lose packets, and so heartbeats.
pub const AGREE_WITH_LOSSES_NS: u64 = 300_000_000;
/// Time after which all workers are registered again.
pub const REGISTERED_NS: u64 = 1_000_000_000;
/// Maximum idle time in an agent, which sees its workers' tasks.
pub const IDLE_AT_AGENT_NS: u64 = 1_000_000;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Time of the observation, in nanoseconds.
    pub at_ns: u64,
    /// Name of the node.
    pub who: String,
    /// Description of the violation.
    pub what: String,
}

/// Packets at a node's ports since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortCounts {
    /// Packets given to the node.
    pub given: u64,
    /// Packets from the node, by class.
    pub out: [u64; Class::COUNT],
}

impl PortCounts {
    /// Returns the number of packets from the node.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.out.iter().sum()
    }

    fn of(&self, classes: &[Class]) -> u64 {
        classes.iter().map(|&class| self.out[class as usize]).sum()
    }
}

/// Compares a quiet node's packet counts with the counts at its ports. Returns the error, if any.
#[must_use]
pub fn packet_counts(line: &Line, passed: &PortCounts) -> Option<String> {
    let PortCounts { given, .. } = *passed;
    let taken = passed.taken();
    let (received, sent) = (line.received, line.sent);
    (received != given || sent != taken).then(|| {
        format!(
            "packet counts differ: the node received {received} of {given} packets, and {taken} of its {sent} sent packets \
             arrived"
        )
    })
}

/// Checks a node's own ledger, alone and against the packets at its ports. Returns the error, if any.
#[must_use]
pub fn ledger(
    who: FaultTarget,
    inside: &LocalNodeState<'_>,
    passed: &PortCounts,
) -> Option<String> {
    let LocalNodeState { counters, held, buffers, .. } = *inside;
    let totals = counters.totals();
    let (received, sent_on) = (totals.count(Counter::RxPackets), totals.sent());
    let (consumed, dropped) = (totals.count(Counter::Consumed), totals.dropped());
    if received != sent_on + consumed + held + dropped {
        return Some(format!(
            "its ledger does not balance: received {received}, but forwarded {sent_on} + consumed {consumed} + held {held} + \
             dropped {dropped}"
        ));
    }
    if buffers as u64 != held {
        return Some(format!(
            "{buffers} packet buffers are in use for {held} held packets: a buffer leaked"
        ));
    }
    let is_leaf = matches!(who, FaultTarget::Leaf(_) | FaultTarget::Spine(_));
    let own = [Class::Registration, Class::Acknowledgement, Class::Signal, Class::Arp];
    let (made, originated) = (passed.of(&own), totals.originated_sent());
    // A leaf counts a refusal as originated. Below a spine it forwards the refusal to the client like a
    // reply. It also forwards refusals by agents.
    let given_back = originated.saturating_sub(made);
    let most = if is_leaf { totals.count(Counter::Refused) } else { 0 };
    let passed_on = passed.of(&[Class::Task, Class::Reply, Class::Refusal]) - given_back.min(most);
    if passed_on != sent_on || made > originated || given_back > most {
        let made = made + given_back.min(most);
        return Some(format!(
            "its ledger and the wires differ: it counts {sent_on} forwarded and {originated} own packets, but {passed_on} and \
             {made} arrived"
        ));
    }
    match is_leaf {
        true => leaf_counts(counters, held, passed),
        false => agent_counts(counters, held, passed),
    }
}

/// Compares a leaf's counts of tasks, replies and refusals with the packets at its ports. Packets that wait
/// for a neighbour's address, or that waited in vain, are excepted.
fn leaf_counts(counters: &Counters, held: u64, passed: &PortCounts) -> Option<String> {
    let read = |counter| counters.read(counter);
    let (scheduled, replies) = (read(Counter::Scheduled), read(Counter::Replies));
    let (refused, tasks) = (read(Counter::Refused), passed.of(&[Class::Task]));
    let answers = passed.of(&[Class::Reply, Class::Refusal]);
    // With several leaves, a wrong MAC address sends a leaf replies for clients without a route there.
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
            "it counts {scheduled} scheduled tasks, {replies} replies and {refused} refused tasks; {tasks} tasks and \
             {answers} answers and refusals arrived, and {between} wait or waited for a neighbour"
        ));
    }
    None
}

/// Compares an agent's count of scheduled tasks with those that it answered, lost with a worker, or still
/// holds.
fn agent_counts(counters: &Counters, held: u64, passed: &PortCounts) -> Option<String> {
    let read = |counter| counters.read(counter);
    let (scheduled, replies) = (read(Counter::Scheduled), read(Counter::Replies));
    let answers = passed.of(&[Class::Reply]);
    let tx_full = counters.dropped(DropReason::TxFull);
    if replies != answers + tx_full {
        return Some(format!(
            "it counts {replies} replies, but {answers} arrived ({tx_full} were dropped at a full port)"
        ));
    }
    let lost: u64 = [DropReason::WorkerLost, DropReason::Unanswered, DropReason::BadReply]
        .iter()
        .map(|&reason| counters.dropped(reason))
        .sum();
    let (over, full) = (replies + lost + held, counters.dropped(DropReason::QueueFull));
    if scheduled < over || scheduled > over + full {
        return Some(format!(
            "it counts {scheduled} scheduled tasks; {replies} were answered, {lost} lost with their worker, {held} are held"
        ));
    }
    None
}

/// Returns an error for a member with more outstanding tasks than the policy's bound.
#[must_use]
pub fn above_bound(dispatcher: &Dispatcher, bound: u32) -> Option<String> {
    let view = dispatcher.view();
    (0..view.members()).map(|at| Member(at as u16)).find_map(|member| {
        let tasks = view.outstanding(member);
        (tasks > bound).then(|| {
            format!("member {} got {tasks} tasks, above the bound of {bound}", member.index())
        })
    })
}

/// Returns true if the scheduler counts the worker as registered, or needs no registration of it.
#[must_use]
pub fn is_registered(dispatcher: &Dispatcher, member: Member) -> bool {
    matches!(dispatcher.view().presence(member), Presence::Registered | Presence::Configured)
}

/// Returns the reason why a member lacks its normal state without faults: registered, and at a spine with the
/// right number of workers.
#[must_use]
pub fn is_missing(dispatcher: &Dispatcher, member: Member, workers: Option<u16>) -> Option<String> {
    let view = dispatcher.view();
    let (presence, reported) = (view.presence(member), view.workers_of(member));
    if presence != Presence::Registered || !view.is_active(member) {
        return Some(format!("is {presence:?} and cannot be chosen"));
    }
    let wanted = workers.filter(|_| reported != workers)?;
    Some(format!("has {wanted} workers, but reported {reported:?}"))
}

/// Returns the first task or packet still outstanding on a quiet node. Spines are checked for held packets
/// only: their view of a leaf is as old as the leaf's last message.
#[must_use]
pub fn outstanding(who: FaultTarget, inside: &LocalNodeState<'_>) -> Option<String> {
    let LocalNodeState { held, waiting, stranded, dispatcher, .. } = *inside;
    if held > stranded || waiting as u64 > stranded {
        return Some(format!("{held} packets are still held, {waiting} of them queued tasks"));
    }
    if matches!(who, FaultTarget::Spine(_)) {
        return None;
    }
    let view = dispatcher?.view();
    (0..view.members()).map(|at| Member(at as u16)).find_map(|member| {
        let tasks = view.outstanding(member);
        let ((load, drift), presence) = (view.load_and_drift(member), view.presence(member));
        (tasks > 0).then(|| {
            format!(
                "{tasks} tasks are still counted as outstanding at member {} ({presence:?}; last report {}, sent since {}; {} \
                 reports)",
                member.index(),
                load.rounded_tasks(),
                drift.rounded_tasks(),
                view.reports(member)
            )
        })
    })
}
