//! Faults of a run and their times. A plan of faults has a text form, which can be parsed and printed, and
//! can be drawn from a seed.

use std::fmt;

use rand::RngExt as _;
use wedjat_pktgen::grammar::parse_time_ns;
use wedjat_pktgen::seed::{Stream, StreamSeed};

/// Names of faults, as accepted by [`FaultPlan::parse`].
const NAMES: &str = "loss, dup, reorder, corrupt, cut, pause, kill, leave";

/// Latest start or end of an interval: 1000 s.
const TIME_MAX_NS: u64 = 1_000_000_000_000;
/// Maximum length of a drawn interval.
const LENGTH_MAX_US: u64 = 300_000;

/// Participant of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultTarget {
    /// Clients of a leaf, or of a spine in a fabric with spines; from 1.
    Clients(u16),
    /// Spine, from 1.
    Spine(u16),
    /// Leaf, from 1.
    Leaf(u16),
    /// Agent, from 1.
    Agent(u16),
    /// Worker by its id, from 0.
    Worker(u16),
}

impl fmt::Display for FaultTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clients(number) => write!(f, "clients{number}"),
            Self::Spine(number) => write!(f, "spine{number}"),
            Self::Leaf(number) => write!(f, "leaf{number}"),
            Self::Agent(number) => write!(f, "agent{number}"),
            Self::Worker(id) => write!(f, "worker{id}"),
        }
    }
}

/// Number of participants of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of spines, each with its own clients; 0 if clients send to leaves.
    pub spines: u16,
    /// Number of leaves, each with its own clients if there are no spines.
    pub leaves: u16,
    /// Number of agents, on one network with the leaves.
    pub agents: u16,
    /// Number of workers of each agent.
    pub workers: u16,
    /// True if agents answer clients themselves (direct return). Wires then connect all agents and clients.
    pub is_direct: bool,
}

impl Topology {
    /// Returns the number of [`FaultTarget::Clients`]: one for each spine, or for each leaf without spines.
    #[must_use]
    pub fn clients(&self) -> u16 {
        if self.spines > 0 { self.spines } else { self.leaves }
    }

    /// Returns the number of participants that send packets: clients, spines, leaves and agents.
    #[must_use]
    pub fn nodes(&self) -> usize {
        usize::from(self.clients() + self.spines + self.leaves + self.agents)
    }

    /// Returns the index of a sender in the order clients, spines, leaves, agents. A worker has its agent's
    /// index.
    #[must_use]
    pub fn index(&self, target: FaultTarget) -> usize {
        let first_leaf = self.clients() + self.spines;
        let first_agent = first_leaf + self.leaves;
        usize::from(match target {
            FaultTarget::Clients(number) => number - 1,
            FaultTarget::Spine(number) => self.clients() + number - 1,
            FaultTarget::Leaf(number) => first_leaf + number - 1,
            FaultTarget::Agent(number) => first_agent + number - 1,
            FaultTarget::Worker(id) => first_agent + id / self.workers.max(1),
        })
    }

    /// Returns the sender with index `index`.
    #[must_use]
    pub fn target(&self, index: usize) -> FaultTarget {
        let (first_spine, first_leaf) = (self.clients(), self.clients() + self.spines);
        let first_agent = first_leaf + self.leaves;
        match index as u16 {
            index if index < first_spine => FaultTarget::Clients(index + 1),
            index if index < first_leaf => FaultTarget::Spine(index - first_spine + 1),
            index if index < first_agent => FaultTarget::Leaf(index - first_leaf + 1),
            index => FaultTarget::Agent(index - first_agent + 1),
        }
    }

    /// Parses the name of a participant, as in `leaf1`.
    fn read(&self, text: &str) -> Result<FaultTarget, String> {
        let digits = text.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
        let role = &text[..text.len() - digits.len()];
        let number = digits.parse::<u16>().ok();
        let found = number.and_then(|number| match role {
            "clients" if (1..=self.clients()).contains(&number) => {
                Some(FaultTarget::Clients(number))
            }
            "spine" if (1..=self.spines).contains(&number) => Some(FaultTarget::Spine(number)),
            "leaf" if (1..=self.leaves).contains(&number) => Some(FaultTarget::Leaf(number)),
            "agent" if (1..=self.agents).contains(&number) => Some(FaultTarget::Agent(number)),
            "worker" if number < self.agents * self.workers => Some(FaultTarget::Worker(number)),
            _ => None,
        });
        found.ok_or_else(|| {
            let senders: Vec<_> =
                (0..self.nodes()).map(|index| self.target(index).to_string()).collect();
            let last = (self.agents * self.workers).saturating_sub(1);
            format!(
                "unknown node `{text}`; the nodes are {}, worker0 to worker{last}",
                senders.join(", ")
            )
        })
    }

    /// Returns the leaf of an agent's rack.
    #[must_use]
    pub fn leaf_of(&self, agent: u16) -> u16 {
        (agent - 1) % self.leaves + 1
    }

    /// Returns the spine to which a leaf is linked at the start.
    #[must_use]
    pub fn spine_of(&self, leaf: u16) -> u16 {
        (leaf - 1) % self.spines.max(1) + 1
    }

    /// Returns true if a wire connects both participants. With spines, wires also connect all clients to all leaves,
    /// which answer clients directly.
    #[must_use]
    pub fn are_joined(&self, first: FaultTarget, second: FaultTarget) -> bool {
        match (first, second) {
            (FaultTarget::Clients(_), FaultTarget::Leaf(_) | FaultTarget::Spine(_))
            | (FaultTarget::Leaf(_) | FaultTarget::Spine(_), FaultTarget::Clients(_))
                if self.spines > 0 =>
            {
                true
            }
            (FaultTarget::Clients(a), FaultTarget::Leaf(b))
            | (FaultTarget::Leaf(b), FaultTarget::Clients(a)) => a == b,
            (FaultTarget::Clients(_), FaultTarget::Agent(_))
            | (FaultTarget::Agent(_), FaultTarget::Clients(_)) => self.is_direct,
            (FaultTarget::Spine(_), FaultTarget::Leaf(_) | FaultTarget::Spine(_))
            | (FaultTarget::Leaf(_), FaultTarget::Spine(_)) => first != second,
            (
                FaultTarget::Leaf(_) | FaultTarget::Agent(_),
                FaultTarget::Leaf(_) | FaultTarget::Agent(_),
            ) => first != second,
            _ => false,
        }
    }

    /// Returns the port of `to` that receives packets from port `port` of `from`, or `None` if they are not connected.
    ///
    /// Port 0 of spines and leaves faces the clients, and port 1 the workers' side. Without spines, clients
    /// are connected to port 0 of their leaf. With spines, the clients and ports 0 of spines and leaves form
    /// one network, with one exception: between a spine and a leaf, packets use port 1 of the spine and port 0 of the
    /// leaf. Ports 1 of spines form a network too. Ports 1 of leaves and port 0 of the agents form another one. With
    /// direct return, packets between agents and clients use the agents' and the clients' only port.
    #[must_use]
    pub fn leads_to(&self, from: FaultTarget, port: usize, to: FaultTarget) -> Option<usize> {
        let is_joined = self.are_joined(from, to);
        let found = match (from, port, to) {
            (FaultTarget::Clients(_), _, _)
            | (FaultTarget::Leaf(_) | FaultTarget::Spine(_), 0, FaultTarget::Clients(_))
            | (FaultTarget::Agent(_), _, FaultTarget::Clients(_)) => 0,
            (FaultTarget::Spine(_), _, FaultTarget::Spine(_)) => port,
            (FaultTarget::Spine(_), 1, FaultTarget::Leaf(_)) => 0,
            (FaultTarget::Leaf(_), 0, FaultTarget::Spine(_)) => 1,
            (FaultTarget::Leaf(_), 0, FaultTarget::Leaf(_)) if self.spines > 0 => 0,
            (FaultTarget::Leaf(_), 1, FaultTarget::Leaf(_))
            | (FaultTarget::Agent(_), _, FaultTarget::Leaf(_)) => 1,
            (FaultTarget::Leaf(_), 1, FaultTarget::Agent(_))
            | (FaultTarget::Agent(_), _, FaultTarget::Agent(_)) => 0,
            _ => return None,
        };
        is_joined.then_some(found)
    }
}

/// A wire: both directions, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// One end.
    pub from: FaultTarget,
    /// The opposite end.
    pub to: FaultTarget,
    /// True if the wire is only the direction from `from` to `to`.
    pub one_way: bool,
}

impl Wire {
    /// Returns true if packets in this direction are on the wire.
    #[must_use]
    pub fn carries(&self, from: FaultTarget, to: FaultTarget) -> bool {
        (self.from, self.to) == (from, to) || !self.one_way && (self.to, self.from) == (from, to)
    }

    /// Parses a wire, as in `leaf1-agent1` or `leaf1>agent1`.
    fn read(text: &str, topology: &Topology) -> Result<Self, String> {
        let one_way = text.contains('>');
        let (from, to) = text.split_once(if one_way { '>' } else { '-' }).ok_or_else(|| {
            format!("`{text}` is not a wire; write leaf1-agent1, or leaf1>agent1 for one direction")
        })?;
        let (from, to) = (topology.read(from)?, topology.read(to)?);
        match topology.are_joined(from, to) {
            true => Ok(Self { from, to, one_way }),
            false => Err(format!(
                "no wire connects {from} and {to}; wires connect clients and their leaf, as in clients1-leaf1, leaves and \
                 agents, as in leaf1-agent1, and with spines also spines and all clients to leaves and spines, as in \
                 spine1-leaf1"
            )),
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.from, if self.one_way { '>' } else { '-' }, self.to)
    }
}

/// Fault of a single packet on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFault {
    /// The packet is lost.
    Loss,
    /// The packet arrives twice.
    Dup,
    /// The packet is held back, so that later packets overtake it.
    Reorder,
    /// One bit of the packet is flipped.
    Corrupt,
}

impl PacketFault {
    /// All packet faults, in the order of the draws for a packet.
    pub const ALL: [Self; 4] = [Self::Loss, Self::Dup, Self::Reorder, Self::Corrupt];

    /// Returns the fault's name in a plan.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Dup => "dup",
            Self::Reorder => "reorder",
            Self::Corrupt => "corrupt",
        }
    }
}

/// Probability of a packet fault on one wire, or on all wires without an entry of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Fault.
    pub kind: PacketFault,
    /// Probability of the fault.
    pub probability: f64,
    /// Wire of the fault; `None` for all wires.
    pub wire: Option<Wire>,
}

/// Fault that lasts for an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A wire carries no packet.
    Cut(Wire),
    /// A node or a worker does nothing. The process of a node is stopped and later continued.
    Pause(FaultTarget),
    /// A node is killed, and a new one starts at the end of the interval.
    Kill(FaultTarget),
    /// A worker leaves its agent. Another attaches in its place at the end of the interval.
    Leave(FaultTarget),
}

/// Interval of a fault, in nanoseconds from the end of node discovery, which is also the earliest time of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultInterval {
    /// Fault.
    pub kind: FaultKind,
    /// Start of the interval.
    pub from_ns: u64,
    /// End of the interval.
    pub to_ns: u64,
}

/// A plan of faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Probabilities of packet faults.
    pub rates: Vec<Rate>,
    /// Intervals of cuts, pauses, kills and leaves.
    pub intervals: Vec<FaultInterval>,
}

impl FaultPlan {
    /// Parses a plan such as `loss=0.001,cut=leaf1-agent2@5ms..8ms,kill=agent1@10ms..60ms`; `none` is the
    /// empty plan.
    ///
    /// # Errors
    /// The invalid part of the plan, and the allowed values.
    pub fn parse(text: &str, topology: &Topology) -> Result<Self, String> {
        let mut faults = Self::default();
        if text.trim() == "none" {
            return Ok(faults);
        }
        for part in text.split(',').map(str::trim) {
            faults.add(part, topology).map_err(|reason| format!("--faults: `{part}`: {reason}"))?;
        }
        Ok(faults)
    }

    /// Adds one part of a plan, as in `loss=0.001` or `pause=leaf1@5ms..8ms`.
    fn add(&mut self, part: &str, topology: &Topology) -> Result<(), String> {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let rate = PacketFault::ALL.into_iter().find(|kind| kind.name() == name);
        if let Some(kind) = rate {
            let (number, wire) = match value.split_once('@') {
                Some((number, wire)) => (number, Some(Wire::read(wire, topology)?)),
                None => (value, None),
            };
            let probability =
                number.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
            let probability = probability.ok_or_else(|| {
                format!(
                    "`{number}` is not a probability; write a number from 0 to 1, as in {name}=0.001"
                )
            })?;
            self.rates.push(Rate { kind, probability, wire });
            return Ok(());
        }
        if !["cut", "pause", "kill", "leave"].contains(&name) {
            return Err(format!(
                "unknown fault `{name}`; the faults are {NAMES}; or give one of all, random, none"
            ));
        }
        let usage = format!(
            "write {name}={}@5ms..8ms",
            if name == "cut" { "leaf1-agent1" } else { "agent1" }
        );
        let (subject, interval) =
            value.split_once('@').ok_or(format!("an interval is missing; {usage}"))?;
        let (from_ns, to_ns) =
            interval_ns(interval).map_err(|reason| format!("{reason}; {usage}"))?;
        let kind = match name {
            "cut" => FaultKind::Cut(Wire::read(subject, topology)?),
            "pause" => FaultKind::Pause(topology.read(subject)?),
            "kill" => FaultKind::Kill(topology.read(subject)?),
            _ => FaultKind::Leave(topology.read(subject)?),
        };
        match kind {
            FaultKind::Pause(FaultTarget::Clients(_))
            | FaultKind::Kill(FaultTarget::Clients(_)) => {
                return Err(format!(
                    "clients cannot fail; {name} a spine, a leaf or an agent, or cut their wire"
                ));
            }
            FaultKind::Kill(FaultTarget::Worker(_)) => {
                return Err(
                    "a worker can only leave or pause; write leave=worker0@5ms..8ms".to_owned()
                );
            }
            FaultKind::Leave(
                FaultTarget::Spine(_)
                | FaultTarget::Leaf(_)
                | FaultTarget::Agent(_)
                | FaultTarget::Clients(_),
            ) => {
                return Err("only workers can leave; write leave=worker0@5ms..8ms, or kill a node"
                    .to_owned());
            }
            _ => {}
        }
        let fault = FaultInterval { kind, from_ns, to_ns };
        if let Some(earlier) = self.intervals.iter().find(|earlier| earlier.clashes(&fault)) {
            return Err(format!(
                "it overlaps with `{earlier}`; only one fault at a time is allowed for a target"
            ));
        }
        self.intervals.push(fault);
        Ok(())
    }

    /// Returns the probability of a packet fault on the way from `from` to `to`. A rate of this wire
    /// overrides the rate of all wires. The last one given applies.
    #[must_use]
    pub fn probability(&self, kind: PacketFault, from: FaultTarget, to: FaultTarget) -> f64 {
        let has_kind = |rate: &&Rate| rate.kind == kind;
        let for_wire = self
            .rates
            .iter()
            .filter(has_kind)
            .rfind(|rate| rate.wire.is_some_and(|wire| wire.carries(from, to)));
        let for_all = || self.rates.iter().filter(has_kind).rfind(|rate| rate.wire.is_none());
        for_wire.or_else(for_all).map_or(0.0, |rate| rate.probability)
    }

    /// Draws a plan for a run of about `span_ns`. It has faults of every kind, or of a random selection of
    /// kinds. Drops an interval that clashes with an earlier one.
    #[must_use]
    pub fn draw(seed: u64, topology: &Topology, span_ns: u64, every_kind: bool) -> Self {
        let mut stream = StreamSeed::derive(seed, "plan of faults", 0).stream();
        let mut faults = Self::default();
        // A drawn interval must end by the latest time that a plan's text may have.
        let span_ns = span_ns.min(TIME_MAX_NS - LENGTH_MAX_US * 1000);
        for kind in PacketFault::ALL {
            if every_kind || stream.random_bool(0.5) {
                let rates = [0.0005, 0.002, 0.01, 0.05];
                let probability = rates[stream.random_range(0..rates.len())];
                faults.rates.push(Rate { kind, probability, wire: None });
            }
        }
        let names = ["cut", "pause", "kill", "pause a worker", "leave"];
        for name in names {
            // Otherwise a kind has no fault with probability 1/2, one with 1/3, and two with 1/6.
            let count = if every_kind { 1 } else { [0, 0, 0, 1, 1, 2][stream.random_range(0..6)] };
            for _ in 0..count {
                let fault = draw_interval(name, &mut stream, topology, span_ns);
                if !faults.intervals.iter().any(|earlier| earlier.clashes(&fault)) {
                    faults.intervals.push(fault);
                }
            }
        }
        faults
    }
}

/// Draws one fault of the kind `name`: its target, its start in the first `span_ns` of the run, and a length of up to
/// 300 ms. The names are those of [`FaultPlan::draw`].
fn draw_interval(
    name: &str,
    stream: &mut Stream,
    topology: &Topology,
    span_ns: u64,
) -> FaultInterval {
    let mut node = || {
        let index = stream.random_range(usize::from(topology.clients())..topology.nodes());
        topology.target(index)
    };
    let kind = match name {
        "cut" => {
            let agent = stream.random_range(1..=topology.agents);
            let leaf = stream.random_range(1..=topology.leaves);
            // With spines, an agent exchanges packets only with the leaf of its rack.
            let agent_leaf = FaultTarget::Leaf(match topology.spines {
                0 => leaf,
                _ => topology.leaf_of(agent),
            });
            let agent = FaultTarget::Agent(agent);
            let one_way = stream.random_bool(0.3);
            let (from, to) = match stream.random_range(0..4_i32) {
                // Between a spine and one of its leaves, or between the clients and either.
                choice if topology.spines > 0 && stream.random_bool(0.5) => {
                    let spine = FaultTarget::Spine(topology.spine_of(leaf));
                    let clients = FaultTarget::Clients(topology.spine_of(leaf));
                    [
                        (clients, spine),
                        (clients, FaultTarget::Leaf(leaf)),
                        (spine, FaultTarget::Leaf(leaf)),
                        (FaultTarget::Leaf(leaf), spine),
                    ][choice as usize]
                }
                0 if topology.spines == 0 => (FaultTarget::Clients(leaf), FaultTarget::Leaf(leaf)),
                1 => (agent, agent_leaf),
                2 if topology.is_direct => (agent, FaultTarget::Clients(leaf)),
                _ => (agent_leaf, agent),
            };
            FaultKind::Cut(Wire { from, to, one_way })
        }
        "pause" => FaultKind::Pause(node()),
        "kill" => FaultKind::Kill(node()),
        "leave" => FaultKind::Leave(FaultTarget::Worker(
            stream.random_range(0..topology.agents * topology.workers),
        )),
        _ => FaultKind::Pause(FaultTarget::Worker(
            stream.random_range(0..topology.agents * topology.workers),
        )),
    };
    // Whole microseconds, so that the printed plan equals the drawn one.
    let from_us = stream.random_range(0..=span_ns / 1000);
    let longest_us = [200, 2_000, 20_000, LENGTH_MAX_US][stream.random_range(0..4)];
    let to_us = from_us + 1 + stream.random_range(0..longest_us);
    FaultInterval { kind, from_ns: from_us * 1000, to_ns: to_us * 1000 }
}

/// Parses an interval, as in `5ms..8ms`.
fn interval_ns(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or(format!("`{text}` is not an interval"))?;
    let time = |text: &str| {
        let ns = parse_time_ns(text).map_err(|error| format!("`{text}` is not a time: {error}"))?;
        match ns {
            ns if (0.0..=TIME_MAX_NS as f64).contains(&ns) => Ok(ns as u64),
            _ => Err(format!("`{text}` is too long; at most 1000s are allowed")),
        }
    };
    let (from, to) = (time(from)?, time(to)?);
    match from < to {
        true => Ok((from, to)),
        false => Err(format!("`{text}` ends before it starts")),
    }
}

impl FaultInterval {
    /// Returns true if both intervals overlap or touch, and concern the same participant. Cuts never clash: a wire
    /// counts its cuts.
    fn clashes(&self, other: &Self) -> bool {
        let overlap = self.from_ns <= other.to_ns && other.from_ns <= self.to_ns;
        let have_same_target = match (self.kind, other.kind) {
            (FaultKind::Cut(_), _) | (_, FaultKind::Cut(_)) => false,
            (
                FaultKind::Pause(first) | FaultKind::Kill(first) | FaultKind::Leave(first),
                FaultKind::Pause(second) | FaultKind::Kill(second) | FaultKind::Leave(second),
            ) => first == second,
        };
        overlap && have_same_target
    }
}

impl fmt::Display for FaultInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::Cut(wire) => write!(f, "cut={wire}")?,
            FaultKind::Pause(target) => write!(f, "pause={target}")?,
            FaultKind::Kill(target) => write!(f, "kill={target}")?,
            FaultKind::Leave(target) => write!(f, "leave={target}")?,
        }
        write!(f, "@{}..{}", Time(self.from_ns), Time(self.to_ns))
    }
}

/// A time in nanoseconds, printed as a whole number of ms, us or ns: the largest possible unit.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns if ns.is_multiple_of(1_000_000) => write!(f, "{}ms", ns / 1_000_000),
            ns if ns.is_multiple_of(1000) => write!(f, "{}us", ns / 1000),
            ns => write!(f, "{ns}ns"),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: &Rate| match rate.wire {
            Some(wire) => format!("{}={}@{wire}", rate.kind.name(), rate.probability),
            None => format!("{}={}", rate.kind.name(), rate.probability),
        };
        let parts: Vec<_> = self
            .rates
            .iter()
            .map(rate)
            .chain(self.intervals.iter().map(FaultInterval::to_string))
            .collect();
        match parts.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&parts.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Topologies without and with spines.
    const TOPOLOGY: Topology =
        Topology { spines: 0, leaves: 1, agents: 2, workers: 3, is_direct: false };
    const FABRIC: Topology =
        Topology { spines: 2, leaves: 4, agents: 8, workers: 4, is_direct: false };

    /// Parsing and printing a plan gives the same text.
    #[test]
    fn plan_text_is_parsed() {
        for text in [
            "none",
            "loss=0.001",
            "loss=0.01@leaf1>agent2,dup=1,reorder=0.5@clients1-leaf1,corrupt=0",
            "cut=leaf1-agent1@5ms..8ms,pause=leaf1@1us..2ms,kill=agent2@1500us..3ms,leave=worker5@0ms..1ns",
        ] {
            assert_eq!(FaultPlan::parse(text, &TOPOLOGY).unwrap().to_string(), text);
        }
    }

    #[test]
    fn drawn_plans_round_trip_and_follow_the_seed() {
        for seed in 0..200 {
            let drawn = FaultPlan::draw(seed, &TOPOLOGY, 20_000_000, seed % 2 == 0);
            assert_eq!(FaultPlan::parse(&drawn.to_string(), &TOPOLOGY).as_ref(), Ok(&drawn));
            assert_eq!(FaultPlan::draw(seed, &TOPOLOGY, 20_000_000, seed % 2 == 0), drawn);
        }
        for seed in 0..100 {
            let drawn = FaultPlan::draw(seed, &FABRIC, 20_000_000, true);
            assert_eq!(FaultPlan::parse(&drawn.to_string(), &FABRIC).as_ref(), Ok(&drawn));
        }
        // The longest possible run.
        for seed in 0..200 {
            let drawn = FaultPlan::draw(seed, &TOPOLOGY, TIME_MAX_NS, true);
            assert_eq!(FaultPlan::parse(&drawn.to_string(), &TOPOLOGY).as_ref(), Ok(&drawn));
        }
        let all = FaultPlan::draw(7, &TOPOLOGY, 20_000_000, true).to_string();
        assert!(
            ["loss", "dup", "reorder", "corrupt", "cut"].iter().all(|name| all.contains(name)),
            "{all}"
        );
    }

    #[test]
    fn drawn_cuts_of_a_fabric_stay_in_racks() {
        for seed in 0..200 {
            for interval in FaultPlan::draw(seed, &FABRIC, 20_000_000, true).intervals {
                let FaultKind::Cut(Wire { from, to, .. }) = interval.kind else { continue };
                if let (FaultTarget::Agent(agent), FaultTarget::Leaf(leaf))
                | (FaultTarget::Leaf(leaf), FaultTarget::Agent(agent)) = (from, to)
                {
                    assert_eq!(leaf, FABRIC.leaf_of(agent), "seed {seed}");
                }
            }
        }
    }

    // promise: emulated-time.2
    #[test]
    fn invalid_plan_names_reason_and_fix() {
        for (text, part, reason, fix) in [
            ("los=0.1", "`los=0.1`", "unknown fault `los`", "loss, dup, reorder"),
            ("loss=1.5", "`loss=1.5`", "not a probability", "from 0 to 1"),
            ("dup=-0.1", "`dup=-0.1`", "not a probability", "from 0 to 1"),
            ("corrupt=much", "`corrupt=much`", "not a probability", "corrupt=0.001"),
            (
                "loss=0.1,cut=leaf1-agent1@8ms..5ms",
                "`cut=leaf1",
                "ends before it starts",
                "@5ms..8ms",
            ),
            (
                "kill=agent1@5ms..5ms",
                "`kill=agent1@5ms..5ms`",
                "ends before it starts",
                "agent1@5ms..8ms",
            ),
            ("pause=agent1@5..8ms", "`pause", "is not a time", "agent1@5ms..8ms"),
            ("pause=agent1", "`pause=agent1`", "interval is missing", "pause=agent1@5ms..8ms"),
            ("kill=agent3@1ms..2ms", "`kill", "unknown node `agent3`", "agent1, agent2"),
            ("kill=worker1@1ms..2ms", "`kill", "only leave or pause", "leave=worker0"),
            ("leave=leaf1@1ms..2ms", "`leave", "only workers can leave", "leave=worker0"),
            ("kill=clients1@1ms..2ms", "`kill", "clients cannot fail", "cut their wire"),
            ("cut=clients1-agent1@1ms..2ms", "`cut", "no wire connects", "clients1-leaf1"),
            ("cut=leaf1@1ms..2ms", "`cut", "not a wire", "leaf1-agent1"),
            (
                "pause=leaf1@1ms..5ms,kill=leaf1@2ms..3ms",
                "`kill",
                "overlaps with `pause",
                "one fault at a time",
            ),
            ("pause=leaf1@1ms..2000s", "`pause", "too long", "1000s"),
        ] {
            let error = FaultPlan::parse(text, &TOPOLOGY).unwrap_err();
            for expected in ["--faults", part, reason, fix] {
                assert!(error.contains(expected), "{text}: {error}");
            }
        }
    }

    /// Index and target are inverses, and ports are connected as documented at [`Topology::leads_to`].
    #[test]
    fn fault_targets_cover_every_node_once() {
        for topology in [TOPOLOGY, FABRIC] {
            for index in 0..topology.nodes() {
                assert_eq!(topology.index(topology.target(index)), index);
            }
        }
        let leads = |from, port, to| FABRIC.leads_to(from, port, to);
        assert_eq!(leads(FaultTarget::Clients(1), 0, FaultTarget::Spine(2)), Some(0));
        assert_eq!(leads(FaultTarget::Spine(1), 1, FaultTarget::Leaf(3)), Some(0));
        assert_eq!(leads(FaultTarget::Spine(1), 0, FaultTarget::Leaf(3)), None);
        assert_eq!(leads(FaultTarget::Leaf(3), 0, FaultTarget::Spine(1)), Some(1));
        assert_eq!(leads(FaultTarget::Leaf(3), 0, FaultTarget::Clients(2)), Some(0));
        assert_eq!(leads(FaultTarget::Leaf(3), 1, FaultTarget::Agent(1)), Some(0));
        assert_eq!(leads(FaultTarget::Leaf(3), 1, FaultTarget::Clients(1)), None);
        assert_eq!(TOPOLOGY.leads_to(FaultTarget::Agent(1), 0, FaultTarget::Leaf(1)), Some(1));
    }

    #[test]
    fn named_wire_has_its_own_probability() {
        let faults = FaultPlan::parse("loss=0.1,loss=0.5@leaf1>agent1", &TOPOLOGY).unwrap();
        let loss = |from, to| faults.probability(PacketFault::Loss, from, to);
        assert_eq!(loss(FaultTarget::Leaf(1), FaultTarget::Agent(1)), 0.5);
        assert_eq!(loss(FaultTarget::Agent(1), FaultTarget::Leaf(1)), 0.1);
        assert_eq!(
            faults.probability(PacketFault::Dup, FaultTarget::Leaf(1), FaultTarget::Agent(1)),
            0.0
        );
    }
}
