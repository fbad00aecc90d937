//! Invariants that hold in every run, with any faults. The run checks a node after each of its turns, in which it polls
//! until no packet moves, and all nodes at the end.
//!
//! Functions of this file check the state of one node:
//!
//! - The node's counts of received and sent packets equal the counts at its ports.
//! - Its ledger (account of received packets) balances, alone and against the packets at its ports, by class of packet.
//!   So do a leaf's and a spine's counts of scheduled tasks, replies and refusals. An agent has answered, lost or still
//!   holds each scheduled task.
//! - It uses exactly one packet buffer per held packet.
//! - No member has more tasks than the policy's bound.
//! - At the end, no packet is held and no task outstanding.
//!
//! The run itself checks the rest, with the limits and some functions of this file:
//!
//! - No worker is idle for long while tasks wait, if the policy lets tasks wait.
//! - No node sends a packet of a task that it does not hold.
//! - Each task is answered, refused, or lost for a reason.
//! - Each answer belongs to its task, so no client receives two different answers.
//! - After the last fault, leaves have all workers of their racks, and spines have all leaves with their numbers of
//!   workers. Nodes with a controller have its desired state.

use wedjat::clock::Line;
use wedjat::policy::Dispatcher;
use wedjat::reason::DropReason;
use wedjat::state::MemberPresence;
use wedjat::state::{Counter, Counters, Gauge, Member};

use super::faults::FaultTarget;
use super::node::LocalNodeState;
use super::packets::Class;

/// Maximum idle time of a worker while tasks wait at its leaf. Applies to workers that the leaf knows as idle.
pub const KNOWN_IDLE_NS: u64 = 2_000_000;
/// Like [`KNOWN_IDLE_NS`], after a loss of tasks or replies. The scheduler must first write these off: it counts them
/// as lost after a timeout.
pub const WRITTEN_OFF_NS: u64 = 12_000_000_000;
/// Maximum time for which a spine and a leaf may disagree about members: two heartbeats of 10 ms, and half of
/// one until the check.
pub const AGREE_NS: u64 = 25_000_000;
/// Maximum time for which a node may differ from its controller's desired state. It counts from the latest of
/// three: the publication of that state, the node's last pending change, and the run's last activity. The node retries
/// every 50 ms; [`AGREE_NS`] allows for the messages after the retry.
pub const FOLLOW_NS: u64 = 50_000_000 + AGREE_NS;
/// Like [`AGREE_NS`], on wires that lose packets, and so heartbeats.
pub const AGREE_WITH_LOSSES_NS: u64 = 300_000_000;
/// Maximum time until all workers are registered again, counted from the first check that found one missing.
pub const REGISTERED_NS: u64 = 1_000_000_000;
/// Maximum idle time of a worker while tasks wait at its agent. An agent reads its workers' queues directly.
pub const IDLE_AT_AGENT_NS: u64 = 1_000_000;

/// Packets at a node's ports since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortCounts {
    /// Packets delivered to the node.
    pub delivered: u64,
    /// Packets sent by the node, by class.
    pub sent: [u64; Class::COUNT],
}

impl PortCounts {
    /// Returns the number of packets that the node sent.
    #[must_use]
    pub fn sent_total(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Returns the number of packets of these classes that the node sent.
    fn sent_of(&self, classes: &[Class]) -> u64 {
        classes.iter().map(|&class| self.sent[class as usize]).sum()
    }
}

/// Compares the packet counts that a quiet node reports with the counts at its ports. Returns the error, if any.
#[must_use]
pub fn packet_counts(reported: &Line, port_counts: &PortCounts) -> Option<String> {
    let (delivered, seen) = (port_counts.delivered, port_counts.sent_total());
    let (received, sent) = (reported.received, reported.sent);
    (received != delivered || sent != seen).then(|| {
        format!(
            "packet counts differ: the node received {received} of {delivered} packets, and {seen} of its {sent} sent packets \
             are at its ports"
        )
    })
}

/// Checks the ledger of a leaf, spine or agent, alone and against the packets at its ports. Returns the error, if any.
#[must_use]
pub fn ledger(
    node: FaultTarget,
    state: &LocalNodeState<'_>,
    port_counts: &PortCounts,
) -> Option<String> {
    let LocalNodeState { counters, held, buffers, .. } = *state;
    let totals = counters.totals();
    let (received, forwarded) = (totals.count(Counter::RxPackets), totals.sent());
    let (consumed, dropped) = (totals.count(Counter::Consumed), totals.dropped());
    if received != forwarded + consumed + held + dropped {
        return Some(format!(
            "its ledger does not balance: received {received}, but forwarded {forwarded} + consumed {consumed} + held {held} + \
             dropped {dropped}"
        ));
    }
    if buffers as u64 != held {
        return Some(format!(
            "{buffers} packet buffers are in use for {held} held packets: a buffer leaked"
        ));
    }
    let is_leaf_or_spine = matches!(node, FaultTarget::Leaf(_) | FaultTarget::Spine(_));
    // Packets of these classes always begin at the node (the ledger calls them originated). Signals are the messages
    // between spines and leaves.
    let originated_classes = [
        Class::Registration,
        Class::Acknowledgement,
        Class::Signal,
        Class::Arp,
        Class::Completions,
    ];
    let (originated_at_ports, originated) =
        (port_counts.sent_of(&originated_classes), totals.originated_sent());
    // At a port, a refusal of the node itself looks like one that it forwards for an agent. Below a spine, a leaf
    // counts its own refusals as forwarded; otherwise it counts them as originated. So this check assumes that all
    // other originated packets are own refusals. The node cannot have sent more of them than it made.
    let own_refusals = originated.saturating_sub(originated_at_ports);
    let max_refusals = if is_leaf_or_spine { totals.count(Counter::Refused) } else { 0 };
    let of_tasks_at_ports = port_counts.sent_of(&[Class::Task, Class::Reply, Class::Refusal]);
    if of_tasks_at_ports != forwarded + own_refusals
        || originated_at_ports > originated
        || own_refusals > max_refusals
    {
        return Some(format!(
            "its ledger and its ports differ: it counts {forwarded} forwarded packets and {originated} of its own, with at most \
             {max_refusals} refusals; its ports have {of_tasks_at_ports} packets of tasks and {originated_at_ports} others"
        ));
    }
    match is_leaf_or_spine {
        true => leaf_or_spine_counts(counters, held, port_counts),
        false => agent_counts(counters, held, port_counts),
    }
}

/// Compares a leaf's or spine's counts of tasks, replies and refusals with the packets at its ports. Allows for packets
/// that it counted but did not send. They wait for a neighbour's MAC address (by ARP), or were dropped: the address
/// stayed unknown, too many packets waited for it, the port was down or full, or there was no route.
fn leaf_or_spine_counts(
    counters: &Counters,
    held: u64,
    port_counts: &PortCounts,
) -> Option<String> {
    let read = |counter| counters.read(counter);
    let (scheduled, replies) = (read(Counter::Scheduled), read(Counter::Replies));
    let (refused, tasks) = (read(Counter::Refused), port_counts.sent_of(&[Class::Task]));
    let answers = port_counts.sent_of(&[Class::Reply, Class::Refusal]);
    // No route: with several leaves, a wrong MAC address can bring a leaf a reply for a client to which it has no
    // route.
    let unsent_reasons = [
        DropReason::NeighbourUnresolved,
        DropReason::NeighbourQueueFull,
        DropReason::PortDown,
        DropReason::TxFull,
        DropReason::NoRoute,
    ];
    let dropped: u64 = unsent_reasons.iter().map(|&reason| counters.dropped(reason)).sum();
    let queued = counters.read(Gauge::Queued);
    let Some(waiting_for_mac) = held.checked_sub(queued) else {
        return Some(format!("it counts {queued} queued tasks, but holds {held} packets"));
    };
    let unsent = waiting_for_mac + dropped;
    let counted = scheduled + replies + refused;
    if counted != tasks + answers + unsent || scheduled < tasks || replies + refused < answers {
        return Some(format!(
            "it counts {scheduled} scheduled tasks, {replies} replies and {refused} refused tasks; its ports have {tasks} \
             tasks and {answers} replies and refusals, and {unsent} packets were counted but not sent"
        ));
    }
    None
}

/// Compares an agent's count of replies with the packets at its ports. In a run, an agent
/// drops a reply only at a full port: the reply goes back to the MAC address from which its task came, so that it never
/// waits for ARP. Then compares the agent's count of scheduled tasks with
/// the tasks that it answered, lost with a worker, or still holds. Tasks dropped at a full queue may be counted as
/// scheduled or not.
fn agent_counts(counters: &Counters, held: u64, port_counts: &PortCounts) -> Option<String> {
    let read = |counter| counters.read(counter);
    let (scheduled, replies) = (read(Counter::Scheduled), read(Counter::Replies));
    let answers = port_counts.sent_of(&[Class::Reply]);
    let tx_full = counters.dropped(DropReason::TxFull);
    if replies != answers + tx_full {
        return Some(format!(
            "it counts {replies} replies, but its ports have {answers} ({tx_full} were dropped at a full port)"
        ));
    }
    let lost: u64 = [DropReason::WorkerLost, DropReason::Unanswered, DropReason::BadReply]
        .iter()
        .map(|&reason| counters.dropped(reason))
        .sum();
    let (ended, full) = (replies + lost + held, counters.dropped(DropReason::QueueFull));
    if scheduled < ended || scheduled > ended + full {
        return Some(format!(
            "it counts {scheduled} scheduled tasks; {replies} were answered, {lost} lost or refused, {held} are held, \
             and {full} were dropped at a full queue"
        ));
    }
    None
}

/// Returns an error for a member with more outstanding (sent and unanswered) tasks than the policy's bound.
#[must_use]
pub fn above_bound(dispatcher: &Dispatcher, bound: u32) -> Option<String> {
    let view = dispatcher.view();
    (0..view.members()).map(|index| Member(index as u16)).find_map(|member| {
        let tasks = view.outstanding(member);
        (tasks > bound).then(|| {
            format!("member {} got {tasks} tasks, above the bound of {bound}", member.index())
        })
    })
}

/// Returns true if the scheduler counts the worker as registered, or needs no registration of it.
#[must_use]
pub fn is_registered(dispatcher: &Dispatcher, member: Member) -> bool {
    matches!(
        dispatcher.view().presence(member),
        MemberPresence::Registered | MemberPresence::Configured
    )
}

/// Returns the reason why a member lacks its normal state: registered and active, and at a spine with
/// `leaf_workers` workers. `leaf_workers` is `None` for a member of a leaf, which is a single worker. Use it only
/// for topologies with spines, in which all members register.
#[must_use]
pub fn missing_reason(
    dispatcher: &Dispatcher,
    member: Member,
    leaf_workers: Option<u16>,
) -> Option<String> {
    let view = dispatcher.view();
    let (presence, reported) = (view.presence(member), view.workers_of(member));
    if presence != MemberPresence::Registered || !view.is_active(member) {
        return Some(format!("is {presence:?} and cannot be chosen"));
    }
    let wanted = leaf_workers.filter(|_| reported != leaf_workers)?;
    Some(format!("has {wanted} workers, but reported {reported:?}"))
}

/// Returns an error if a quiet node still holds packets, or has outstanding tasks: sent and unanswered ones. Allows for
/// stranded tasks: all workers of their pool are drained. Checks spines for held packets only, because their view of a
/// leaf dates from its last message.
#[must_use]
pub fn outstanding(node: FaultTarget, state: &LocalNodeState<'_>) -> Option<String> {
    let LocalNodeState { held, waiting, stranded, dispatcher, .. } = *state;
    if held > stranded || waiting as u64 > stranded {
        return Some(format!("{held} packets are still held, {waiting} of them queued tasks"));
    }
    if matches!(node, FaultTarget::Spine(_)) {
        return None;
    }
    let view = dispatcher?.view();
    (0..view.members()).map(|index| Member(index as u16)).find_map(|member| {
        let tasks = view.outstanding(member);
        let ((load, drift), presence) = (view.load_and_drift(member), view.presence(member));
        (tasks > 0).then(|| {
            format!(
                "{tasks} tasks are still counted as outstanding at member {} ({presence:?}; last report {}, sent since {}; {} \
                 reports)",
                member.index(),
                load.whole_tasks(),
                drift.whole_tasks(),
                view.reports(member)
            )
        })
    })
}
