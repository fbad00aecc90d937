//! Text of an explained packet, with names from the configuration.
//!
//! A core records the *fate* of a packet (its outcome), the *moment* of the fate, and its *beliefs*: the core's
//! estimates of the members of the packet's pool when it decided. Members are workers; at a spine, leaves.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use wedjat_core::node::explain::{Fate, Moment, PacketSummary, Record};
use wedjat_core::policy::beliefs::{ClassBeliefs, MemberEstimate};
use wedjat_core::policy::{Beliefs, LANES};
use wedjat_core::quantity;
use wedjat_core::reason::DropReason;
use wedjat_core::state::Load;
use wedjat_core::state::table::{AutoSnapshot, PoolSnapshot, Role};
use wedjat_core::wire::arp::Operation;
use wedjat_core::wire::task::{Code, Header};
use wedjat_core::wire::udp::Datagram;
use wedjat_core::wire::{ether, ipv4, ipv6, ndp};
use wedjat_desired::control::{Membership, Pool};

use super::explain::{ExplainRecord, ExplainSession};
use super::generated as proto;

/// Context of an explanation: names and numbers that the packet's record lacks.
#[derive(Clone, Copy, Debug)]
pub struct ExplainContext<'a> {
    /// Role of the node.
    pub role: Role,
    /// Its pools and servers.
    pub membership: &'a Membership,
    /// State of its pools; empty if there is none.
    pub pools: &'a [PoolSnapshot],
    /// Session with ports and number of lost records.
    pub explaining: &'a ExplainSession,
}

impl ExplainContext<'_> {
    /// Returns the explanation of a packet: its values one by one, and a sentence with them.
    #[must_use]
    pub fn explanation(&self, entry: &ExplainRecord) -> proto::Explanation {
        let record = &entry.record;
        let reason = match record.fate {
            Fate::Dropped(reason) => Some(reason),
            _ => None,
        };
        let out = match record.fate {
            Fate::Sent { port, .. } | Fate::Held { port, .. } => self.explaining.port(port),
            _ => "",
        };
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let pool = record.seen.header().map(|header| header.pool);
        let (source, destination) = endpoints(&record.seen);
        let server = record.worker.zip(pool).and_then(|(worker, pool)| self.server(pool, worker));
        let mut explanation = proto::Explanation {
            time_ns: u64::try_from(entry.time.as_nanos()).unwrap_or(u64::MAX),
            core: entry.core as u32,
            port: record.port.map_or("", |port| self.explaining.port(port)).to_owned(),
            length: record.len,
            packet: packet(&record.seen, record.len),
            pool: pool.map(u32::from),
            source,
            destination,
            moment: record.moment.name().to_owned(),
            fate: fate_name(record.fate).to_owned(),
            worker: record.worker.map(u32::from),
            server: server.map_or_else(String::new, |server| server.to_string()),
            out: out.to_owned(),
            reason: text(reason.map(DropReason::name)),
            help: text(reason.map(DropReason::help)),
            look_at: text(reason.map(DropReason::look_at)),
            beliefs: record.beliefs.as_ref().map(|beliefs| self.beliefs(record, beliefs)),
            lost: self.explaining.lost(),
            text: String::new(),
            class: record.seen.class().map(u32::from),
        };
        explanation.text = self.sentence(record, &explanation);
        explanation
    }

    /// Returns the state of the automatic choice of policy in a task's pool; `None` for a pool with a fixed policy.
    fn auto(&self, record: &Record) -> Option<&AutoSnapshot> {
        let id = record.seen.header()?.pool;
        self.pools.iter().find(|pool| pool.id == id)?.auto.as_ref()
    }

    /// Returns the pool with this id.
    fn pool(&self, id: u16) -> Option<&Pool> {
        self.membership.pools.iter().flatten().find(|pool| pool.id == id)
    }

    /// Returns the address of a worker's server.
    fn server(&self, pool: u16, worker: u16) -> Option<IpAddr> {
        let mut members = self.pool(pool)?.members.iter().flatten();
        let server = members.find(|member| member.id == worker)?.server;
        Some(self.membership.servers.get(usize::from(server)).copied().flatten()?.ip)
    }

    /// Returns the word for a member of a pool.
    fn member(&self) -> &'static str {
        if self.role == Role::Spine { "leaf" } else { "worker" }
    }

    /// Returns the word for members of a pool.
    fn members(&self) -> &'static str {
        if self.role == Role::Spine { "leaves" } else { "workers" }
    }

    /// Converts the core's estimates of the pool, by which it decided.
    fn beliefs(&self, record: &Record, beliefs: &Beliefs) -> proto::Beliefs {
        let class = beliefs.class.as_ref();
        let pool = record.seen.header().and_then(|header| self.pool(header.pool));
        let one = |(believed, &worker): (&MemberEstimate, &u16)| {
            let is_chosen = record.chosen.is_some_and(|one| one.member == believed.member);
            let full = beliefs.bound.is_some_and(|bound| believed.outstanding as usize >= bound);
            proto::Candidate { chosen: is_chosen, full, ..candidate(believed, worker, class) }
        };
        let all = beliefs.estimates.iter().zip(&beliefs.workers);
        let mut candidates: Vec<_> = all.map(one).collect();
        // The list may lack the chosen member, for example one that another core reported as idle. This adds it with
        // its state after the decision, which counts this packet.
        let is_new = |one: &MemberEstimate| beliefs.estimate(one.member).is_none();
        if let (Some(chosen), Some(worker)) = (record.chosen.filter(is_new), record.worker) {
            let one = candidate(&chosen, worker, class);
            candidates.push(proto::Candidate { chosen: true, with_this: true, ..one });
        }
        proto::Beliefs {
            policy: pool.map_or_else(String::new, |pool| pool.settings.policy.to_string()),
            // A later packet of a task goes to the worker of the first one, without a decision.
            basis: if record.follows { "first" } else { beliefs.basis.name() }.to_owned(),
            // Number of waiting tasks, and the queue's bound.
            waiting: beliefs.queue.0 as u64,
            queue: beliefs.queue.1 as u64,
            bound: beliefs.bound.map(|bound| bound as u64),
            active: beliefs.active as u64,
            idle: beliefs.idle as u64,
            // Members that get no tasks: silent, unreachable, drained or not registered.
            silent: beliefs.excluded[0] as u64,
            unreachable: beliefs.excluded[1] as u64,
            out: beliefs.excluded[2] as u64,
            candidates,
            class_rules: class.map(class_rules),
        }
    }

    /// Returns the sentence about a packet: receiving port, packet, outcome and reason.
    fn sentence(&self, record: &Record, explanation: &proto::Explanation) -> String {
        let mut text = String::new();
        if !explanation.port.is_empty() {
            let _ = write!(text, "{}: ", explanation.port);
        }
        let _ = write!(text, "{} ", explanation.packet);
        match record.moment {
            Moment::Waited => text.push_str("had waited, and "),
            Moment::Ended => {
                if let Some(worker) = record.worker {
                    let _ = write!(text, "was served by worker {worker}, and ");
                }
            }
            Moment::Arrived | Moment::Leaving => {}
        }
        text.push_str(&self.outcome(record, explanation));
        if let Some(why) =
            explanation.beliefs.as_ref().and_then(|beliefs| self.why(record, beliefs))
        {
            let _ = write!(text, ": {why}");
        }
        text
    }

    /// Returns the text of the outcome.
    fn outcome(&self, record: &Record, explanation: &proto::Explanation) -> String {
        let is_task = record.seen.header().is_some_and(|header| header.code.carries_task());
        let to = |worker: u16| {
            let server = &explanation.server;
            let at = if server.is_empty() { String::new() } else { format!(" ({server})") };
            format!("{} {worker}{at}", self.member())
        };
        match record.fate {
            Fate::Sent { .. } if record.moment == Moment::Ended => {
                format!("is answered by {}", explanation.out)
            }
            Fate::Sent { worker, .. } if is_task => {
                format!("goes to {} by {}", to(worker), explanation.out)
            }
            Fate::Sent { .. } => format!("goes on to its client by {}", explanation.out),
            Fate::Held { worker, .. } if is_task => {
                let to = to(worker);
                format!("is held for {to} until the MAC address of its next hop is known")
            }
            Fate::Held { .. } => {
                "is held until the MAC address of its next hop is known".to_owned()
            }
            Fate::Queued => "waits in its pool's queue".to_owned(),
            Fate::Given { .. } => record.worker.map_or_else(
                || "is given to a worker".to_owned(),
                |one| format!("is given to {}", to(one)),
            ),
            Fate::Passed { node } => format!("is passed on to node {node}"),
            Fate::Answered if is_task => {
                "is refused to its client, since its pool's queue is full".to_owned()
            }
            Fate::Answered => "is answered".to_owned(),
            Fate::Consumed => "is consumed".to_owned(),
            Fate::Dropped(reason) => {
                let help = reason.help();
                let help = help.strip_suffix('.').unwrap_or(help);
                let ends = self.spoofed(record, reason).unwrap_or_default();
                format!(
                    "is dropped, {}: {help}{ends}; look at: {}",
                    reason.name(),
                    reason.look_at()
                )
            }
        }
    }

    /// Returns the end of the sentence for a spoofed reply: its worker's server, and its source.
    fn spoofed(&self, record: &Record, reason: DropReason) -> Option<String> {
        let PacketSummary::Task(datagram, header, _) = record.seen else { return None };
        if reason != DropReason::SpoofedReply {
            return None;
        }
        let server = self.membership.server_of(header.src)?;
        let (worker, source) = (header.src, datagram.src);
        let origin = match source == server {
            true => "another MAC address or port".to_owned(),
            false => source.to_string(),
        };
        Some(format!("; worker {worker} is at {server}, and this came from {origin}"))
    }

    /// Returns the reason of the outcome; `None` if the outcome does not depend on the state of members and queue.
    fn why(&self, record: &Record, beliefs: &proto::Beliefs) -> Option<String> {
        let members = self.members();
        let all = beliefs.active + beliefs.silent + beliefs.unreachable + beliefs.out;
        match record.fate {
            Fate::Sent { .. } | Fate::Held { .. } | Fate::Given { .. } => {}
            Fate::Dropped(DropReason::NoMember) | Fate::Queued if beliefs.active == 0 => {
                return Some(format!(
                    "of its {all} {members} {} are silent, {} unreachable, {} drained or not registered",
                    beliefs.silent, beliefs.unreachable, beliefs.out
                ));
            }
            Fate::Queued | Fate::Dropped(DropReason::QueueFull) | Fate::Answered => {
                let queue = beliefs.queue;
                let bound = match beliefs.bound {
                    _ if beliefs.basis == "asked" && matches!(record.fate, Fate::Queued) => {
                        format!("; it is sent when the probed {members} have answered")
                    }
                    Some(bound) => {
                        format!("; the bound of each of {} {members} is {bound}", beliefs.active)
                    }
                    None => String::new(),
                };
                let rules = beliefs.class_rules.as_ref();
                let waiting = waiting_text(beliefs.waiting, rules);
                let rules = rules.filter(|_| matches!(record.fate, Fate::Queued));
                let order = rules.map_or_else(String::new, order_text);
                return Some(format!("{waiting}; the queue holds {queue}{bound}{order}"));
            }
            _ => return None,
        }
        if record.follows {
            return Some("the first packet of its task went there".to_owned());
        }
        let chosen_by = self.auto(record).map_or_else(String::new, |auto| {
            format!(" by auto(objective={}), {}", auto.objective, auto.decision)
        });
        let policy = &beliefs.policy;
        let (active, idle) = (beliefs.active, beliefs.idle);
        // The rest is the reason of a worker's choice: policy, basis, and the estimates of the candidates.
        let drawn = beliefs.candidates.iter().filter(|one| one.drawn).count();
        let basis = match beliefs.basis.as_str() {
            // The idle list that all cores share had the worker, and this core's own was empty.
            _ if record.idle && idle == 0 => {
                format!("idle by another core's report, of {active} {members}")
            }
            "idle" => format!("one of {idle} idle {members}, of {active}"),
            "drawn" if drawn > 1 => format!("the best of {drawn} drawn from {active} {members}"),
            "drawn" => format!("drawn from {active} {members}"),
            "turn" => format!("its turn among {active} {members}"),
            "asked" => format!("of {active} {members}, by the answers of the probed ones"),
            _ => match reserved_and_avoided(beliefs) {
                0 => format!("the least loaded of {active} {members}"),
                reserved => {
                    format!("the least loaded of {} unreserved {members}", active - reserved)
                }
            },
        };
        let mut text = format!("{policy}{chosen_by}, {basis}");
        for one in &beliefs.candidates {
            let _ = write!(text, "{}", estimate_text(one));
        }
        Some(text)
    }
}

/// Returns the end of a sentence about a queued task: its order by the rules for classes, and the reserve.
fn order_text(rules: &proto::ClassRules) -> String {
    let mut text = String::new();
    if rules.delay_ns > 0 {
        let _ = write!(text, "; the order adds {} to its arrival", duration_text(rules.delay_ns));
    }
    match rules.next == rules.lane && rules.waiting == 0 {
        true => text.push_str("; it is the core's next task"),
        false => {
            _ = write!(text, "; the core's next task is the first of {}", lane_text(rules.next))
        }
    }
    if rules.avoids_reserve && rules.reserved_with_room > 0 {
        let workers = quantity(rules.reserved_with_room, "reserved worker");
        let class = lane_text(rules.lane);
        let _ = write!(text, "; {class} is long and may not take the {workers} with room");
    }
    text
}

/// Returns the number of queued tasks; under rules for classes, also of those in the task's lane.
fn waiting_text(waiting: u64, rules: Option<&proto::ClassRules>) -> String {
    match rules {
        Some(rules) => {
            format!("{waiting} tasks wait, {} of {}", rules.waiting, lane_text(rules.lane))
        }
        None => format!("{waiting} tasks wait before it"),
    }
}

/// Returns the classes of a lane.
fn lane_text(lane: u32) -> String {
    // The last lane has all further classes.
    let further = if lane as usize == LANES - 1 { "+" } else { "" };
    format!("class {lane}{further}")
}

/// Returns a time, without nanoseconds if it is longer than a microsecond.
fn duration_text(ns: u64) -> humantime::FormattedDuration {
    let ns = if ns > 1000 { ns - ns % 1000 } else { ns };
    humantime::format_duration(Duration::from_nanos(ns))
}

/// Returns the number of reserved workers that a sent task had to avoid; 0 if it took one.
fn reserved_and_avoided(beliefs: &proto::Beliefs) -> u64 {
    let rules = beliefs.class_rules.filter(|rules| rules.avoids_reserve);
    let has_taken_one = beliefs.candidates.iter().any(|one| one.chosen && one.reserved);
    rules.filter(|_| !has_taken_one).map_or(0, |rules| rules.reserved)
}

/// Returns the estimated state of a worker, as the end of a sentence.
fn estimate_text(one: &proto::Candidate) -> String {
    let proto::Candidate { worker, reported, sent_since, outstanding, .. } = one;
    let mut text = format!("; {worker} reported {}", Tasks(*reported));
    let _ = write!(text, ", was sent {} since, has {outstanding} unanswered", Tasks(*sent_since));
    let notes = [
        (one.full, ", is full"),
        (one.with_this, ", with this one"),
        (one.reserved, ", is reserved"),
    ];
    for (applies, words) in notes {
        text.push_str(if applies { words } else { "" });
    }
    text
}

/// A number of tasks for a text. It is a fraction for a rack, whose load is an average over its workers.
struct Tasks(f64);

impl std::fmt::Display for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.fract() == 0.0 { write!(f, "{}", self.0) } else { write!(f, "{:.3}", self.0) }
    }
}

/// Converts the rules for a task's class.
fn class_rules(rules: &ClassBeliefs) -> proto::ClassRules {
    proto::ClassRules {
        lane: rules.lane.index() as u32,
        waiting: rules.waiting as u64,
        delay_ns: rules.delay_ns,
        next: rules.next.index() as u32,
        long: rules.is_long,
        avoids_reserve: rules.avoids_reserve,
        reserved: rules.reserved as u64,
        reserved_with_room: rules.reserved_with_room as u64,
    }
}

/// Converts an estimate; loads become numbers of tasks. The caller sets `chosen`, `full` and `with_this`.
fn candidate(one: &MemberEstimate, worker: u16, class: Option<&ClassBeliefs>) -> proto::Candidate {
    let tasks = |load: Load| f64::from(load.0) / f64::from(Load::ONE.0);
    proto::Candidate {
        worker: worker.into(),
        reported: tasks(one.load),
        // Drift is the load that the core has sent since the last report.
        sent_since: tasks(one.drift),
        outstanding: one.outstanding,
        idle: one.is_idle,
        drawn: one.is_considered,
        chosen: false,
        full: false,
        with_this: false,
        reserved: class.is_some_and(|class| class.is_reserved(one.member)),
    }
}

/// Returns the name of an outcome in messages.
fn fate_name(fate: Fate) -> &'static str {
    match fate {
        Fate::Sent { .. } => "sent",
        Fate::Held { .. } => "held",
        Fate::Queued => "queued",
        Fate::Given { .. } => "given",
        Fate::Passed { .. } => "passed",
        Fate::Answered => "answered",
        Fate::Consumed => "consumed",
        Fate::Dropped(_) => "dropped",
    }
}

/// Returns source and destination, with UDP ports if there are any; empty texts for a packet without addresses.
fn endpoints(packet: &PacketSummary) -> (String, String) {
    match *packet {
        PacketSummary::Task(datagram, ..) | PacketSummary::Udp(datagram) => {
            let Datagram { src, dst, src_port, dst_port, .. } = datagram;
            let end = |address, port| SocketAddr::new(address, port).to_string();
            (end(src, src_port), end(dst, dst_port))
        }
        _ => packet
            .addresses()
            .map_or_else(Default::default, |(from, to)| (from.to_string(), to.to_string())),
    }
}

/// Returns a description of the packet: the subject of the sentence. A comma at its end separates it from the outcome.
fn packet(summary: &PacketSummary, len: u32) -> String {
    let (from, to) = endpoints(summary);
    match summary {
        PacketSummary::Runt => format!("a frame of {len} bytes"),
        PacketSummary::Arp(arp) => match arp.operation {
            Operation::Request => format!("ARP request of {from} for {to},"),
            Operation::Reply => format!("ARP reply of {from} with MAC address {},", arp.sender_mac),
        },
        PacketSummary::Neighbour(message) => match (message.operation, message.mac) {
            (ndp::Operation::Solicitation, _) => {
                format!("neighbour solicitation of {from} for {to},")
            }
            (ndp::Operation::Advertisement, Some(mac)) => {
                format!("neighbour advertisement of {from} for {to} with MAC address {mac},")
            }
            (ndp::Operation::Advertisement, None) => {
                format!("neighbour advertisement of {from} for {to} without a MAC address")
            }
        },
        PacketSummary::Task(_, header, _) => message_text(header, summary.class(), &from, &to),
        PacketSummary::Udp(_) => format!("UDP from {from} to {to} without a task header"),
        PacketSummary::Ip { src, protocol, .. } => {
            let name = match *protocol {
                1 => " (ICMP)",
                6 => " (TCP)",
                ipv4::UDP => " (UDP)",
                ipv6::ICMP => " (ICMPv6)",
                _ => "",
            };
            let version = if src.is_ipv6() { "IPv6" } else { "IPv4" };
            format!("{version} from {from} to {to} of protocol {protocol}{name}")
        }
        PacketSummary::Other(ether_type) => {
            let name = match *ether_type {
                ether::ARP => " (ARP)",
                ether::IPV6 => " (IPv6)",
                0x8100 => " (a VLAN tag)",
                _ => "",
            };
            format!("a frame of EtherType {ether_type:#06x}{name}")
        }
    }
}

/// Returns a description of a packet with a task header.
fn message_text(header: &Header, class: Option<u16>, from: &str, to: &str) -> String {
    let &Header { code, pool, src, dst, qlen, seq, more, .. } = header;
    let class = class.map_or_else(String::new, |class| format!(" (class {class})"));
    let task = format!("task {seq}{class} of pool {pool} from {from}");
    match code {
        Code::NewTask if more => format!("first packet of {task}"),
        Code::NewTask => task,
        Code::TaskContinuation => format!("later packet of {task}"),
        Code::PassedTask => format!("{task}, passed on by a node,"),
        Code::TaskDone | Code::TaskDoneIdle => {
            let left = if code == Code::TaskDoneIdle { 0 } else { qlen };
            format!("reply of worker {src} of pool {pool} to {to}, which has {left} tasks left,")
        }
        Code::TaskRefused => format!("refusal of task {seq} of pool {pool} to {to}"),
        Code::WorkerId => format!("registration of worker {src} of pool {pool} from {from}"),
        Code::KeepAlive => format!("keep-alive of {src} from {from}"),
        Code::WorkerIdAck => format!("acknowledgement of worker {dst} of pool {pool} from {from}"),
        Code::QueueReport => {
            format!("load report of worker {src} of pool {pool} with {qlen} tasks")
        }
        Code::QueueProbe => format!("probe of worker {dst} from {from}"),
        Code::ProbeAnswer => {
            format!("probe answer of worker {src} of pool {pool} with {qlen} tasks")
        }
        Code::Completions => format!("report of {qlen} completed tasks of pool {pool} from {from}"),
        Code::IdleAdd | Code::LoadUpdate | Code::IdleRemove => {
            format!("signal of leaf {src} about pool {pool} from {from}")
        }
        Code::Heartbeat | Code::StealRequest | Code::Parameters => {
            format!("message of node {src} to its peer {dst} from {from}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wedjat_core::node::explain::{Explainer, Filter, Records};
    use wedjat_core::policy::{Core, Dispatcher, QueueingDispatcher, Task};
    use wedjat_core::state::{Member, Report, View};
    use wedjat_core::wire::ether::Mac;
    use wedjat_core::wire::task::Extension;
    use wedjat_core::wire::udp;

    use super::super::stamps::Stamps;
    use super::*;

    /// Returns a queue over members 0 (reserved) and 1, which has measured 10 us for class 1 and 1 ms for class 2.
    fn measured() -> QueueingDispatcher<u16> {
        let (policy, view) =
            ("eft(boost=1, reserve=1)".parse().unwrap(), View::heap(2, 1).remove(0));
        let mut queueing = QueueingDispatcher::new(Dispatcher::new(&policy, view, Core::ONLY, 7));
        for round in 0..200 {
            let (class, service_ns) = if round % 2 == 0 { (1, 10_000) } else { (2, 1_000_000) };
            queueing.tick(round * 3_000_000);
            let (_, pick) = queueing.offer(Task::new(class), class).unwrap().unwrap();
            queueing.tick(round * 3_000_000 + u64::from(service_ns));
            queueing.reply(&Report::new(pick.member, Load(0), service_ns).with_class(class));
        }
        queueing
    }

    /// Offers a client's task of this class to the queue of pool 7 with workers 10 and 11. Returns the explanation.
    fn explain(queueing: &mut QueueingDispatcher<u16>, class: u16) -> proto::Explanation {
        let header = Header { extended: true, ..Header::new_task(7, 3) };
        let mut frame = vec![0; udp::PAYLOAD + header.len()];
        header.emit(&mut frame[udp::PAYLOAD..]);
        Extension { class, ..Extension::default() }.emit(&mut frame[udp::PAYLOAD..]);
        let (src_mac, dst_mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let (src, dst) = (0x0a00_0102, 0x0a00_0101);
        let flow = udp::Flow { src_mac, dst_mac, src, dst, src_port: 40_000, dst_port: 1234 };
        flow.emit(&mut frame, header.len());
        let records = Arc::<Records>::default();
        let mut explainer = Explainer::new(Filter::default(), 1, Arc::clone(&records));
        explainer.draft(Some(0), 0, &frame, |_, task| {
            let class = queueing.class_beliefs(task);
            Some(queueing.beliefs().of_task(class, |member| 10 + member.0))
        });
        let placed = queueing.offer(Task::new(class), class).unwrap();
        let member = placed.map(|(_, pick)| pick.member);
        let sent = |member: Member| Fate::Sent { port: 1, worker: 10 + member.0 };
        explainer.settle(Moment::Arrived, member.map_or(Fate::Queued, sent), |record| {
            record.chosen = member.map(|member| MemberEstimate::of(queueing.view(), member));
        });
        let record = records.next().unwrap();
        let ports = vec!["c".to_owned(), "w".to_owned()];
        let stamps = Stamps::from(0, Duration::ZERO, 1_000_000_000);
        let explaining = ExplainSession::new(Vec::new(), ports, stamps, Box::new(|| ()));
        let (servers, spines, pools) = (Vec::new(), Vec::new(), Vec::new());
        let membership = Membership { epoch: 1, servers, spines, pools };
        let (role, pools) = (Role::Leaf, &[][..]);
        let context =
            ExplainContext { role, membership: &membership, pools, explaining: &explaining };
        context.explanation(&ExplainRecord { core: 0, time: Duration::ZERO, record })
    }

    /// Checks the start and the end of a text.
    #[track_caller]
    fn assert_text(explanation: &proto::Explanation, start: &str, end: &str) {
        let text = &explanation.text;
        assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    }

    // promise: control.3
    #[test]
    fn queued_task_is_explained_by_its_class() {
        let mut queueing = measured();
        // A long task avoids the reserved worker, although that one is idle, too.
        let sent = explain(&mut queueing, 2);
        assert_text(
            &sent,
            "c: task 3 (class 2) of pool 7 from 10.0.1.2:40000 goes to worker 11",
            "",
        );
        assert!(
            sent.text.contains("the least loaded of 1 unreserved workers; 10 "),
            "{}",
            sent.text
        );
        assert!(sent.text.contains("has 0 unanswered, is reserved; 11 "), "{}", sent.text);
        let start = "c: task 3 (class 2) of pool 7 from 10.0.1.2:40000 waits in its pool's queue: ";
        let held = explain(&mut queueing, 2);
        assert_text(
            &held,
            &format!("{start}0 tasks wait, 0 of class 2; "),
            "; the bound of each of 2 workers is 1; the order adds 1ms to its arrival; it is the core's next task; class 2 is \
             long and may not take the 1 reserved worker with room",
        );
        let json = serde_json::to_value(&held).unwrap();
        assert_eq!(json["class"], 2);
        let rules = &json["beliefs"]["class_rules"];
        let expected = serde_json::json!({
            "lane": 2, "waiting": 0, "delay_ns": 1_000_000, "next": 2, "long": true, "avoids_reserve": true,
            "reserved": 1, "reserved_with_room": 1,
        });
        assert_eq!(rules, &expected);
        assert_eq!(json["beliefs"]["candidates"][0]["reserved"], true);
        let short = explain(&mut queueing, 1);
        assert_text(
            &short,
            "c: task 3 (class 1) of pool 7 from 10.0.1.2:40000 goes to worker 10",
            "",
        );
        let waiting = explain(&mut queueing, 1);
        assert_text(
            &waiting,
            "",
            "; the order adds 10us to its arrival; it is the core's next task",
        );
        let behind = explain(&mut queueing, 2);
        assert_text(
            &behind,
            &format!("{start}2 tasks wait, 1 of class 2; "),
            "; the core's next task is the first of class 1",
        );
        let other = explain(&mut queueing, 9);
        let end =
            "; the order adds 505us to its arrival; the core's next task is the first of class 1";
        assert_text(&other, "c: task 3 (class 9) of pool 7", end);
        assert!(other.text.contains(": 3 tasks wait, 0 of class 7+; "), "{}", other.text);
    }
}
