//! What goes wrong in a run, and when: a plan that can be written down, read back, and drawn from a seed.

use std::fmt;

use rand::RngExt as _;
use wedjat_pktgen::grammar::parse_time_ns;
use wedjat_pktgen::seed::{Stream, StreamSeed};

/// Names of faults, as [`Faults::parse`] takes them.
const NAMES: &str = "loss, dup, reorder, corrupt, cut, pause, kill, leave";

/// Whoever takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The clients of a leaf, or where there are spines of a spine, from 1 on.
    Clients(u16),
    /// A spine, from 1 on.
    Spine(u16),
    /// A leaf, from 1 on.
    Leaf(u16),
    /// An agent, from 1 on.
    Agent(u16),
    /// A worker, by its id, from 0 on.
    Worker(u16),
}

impl fmt::Display for Who {
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

/// How many of each there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Spines, each with clients of its own; none where clients send to leaves.
    pub spines: u16,
    /// Leaves; without spines each with clients of its own.
    pub leaves: u16,
    /// Agents, on one network with the leaves.
    pub agents: u16,
    /// Workers of each agent.
    pub workers: u16,
}

impl Topology {
    /// How many clients there are.
    #[must_use]
    pub fn clients(&self) -> u16 {
        if self.spines > 0 { self.spines } else { self.leaves }
    }

    /// Clients, spines, leaves and agents together: those that send packets.
    #[must_use]
    pub fn nodes(&self) -> usize {
        usize::from(self.clients() + self.spines + self.leaves + self.agents)
    }

    /// The place of a sender among all.
    #[must_use]
    pub fn index(&self, who: Who) -> usize {
        let leaves = self.clients() + self.spines;
        let agents = leaves + self.leaves;
        usize::from(match who {
            Who::Clients(number) => number - 1,
            Who::Spine(number) => self.clients() + number - 1,
            Who::Leaf(number) => leaves + number - 1,
            Who::Agent(number) => agents + number - 1,
            Who::Worker(id) => agents + id / self.workers.max(1),
        })
    }

    /// Who has that place.
    #[must_use]
    pub fn who(&self, index: usize) -> Who {
        let (spines, leaves) = (self.clients(), self.clients() + self.spines);
        let agents = leaves + self.leaves;
        match index as u16 {
            at if at < spines => Who::Clients(at + 1),
            at if at < leaves => Who::Spine(at - spines + 1),
            at if at < agents => Who::Leaf(at - leaves + 1),
            at => Who::Agent(at - agents + 1),
        }
    }

    fn read(&self, text: &str) -> Result<Who, String> {
        let digits = text.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
        let role = &text[..text.len() - digits.len()];
        let number = digits.parse::<u16>().ok();
        let found = number.and_then(|number| match role {
            "clients" if (1..=self.clients()).contains(&number) => Some(Who::Clients(number)),
            "spine" if (1..=self.spines).contains(&number) => Some(Who::Spine(number)),
            "leaf" if (1..=self.leaves).contains(&number) => Some(Who::Leaf(number)),
            "agent" if (1..=self.agents).contains(&number) => Some(Who::Agent(number)),
            "worker" if number < self.agents * self.workers => Some(Who::Worker(number)),
            _ => None,
        });
        found.ok_or_else(|| {
            let senders: Vec<_> = (0..self.nodes()).map(|at| self.who(at).to_string()).collect();
            let last = (self.agents * self.workers).saturating_sub(1);
            format!(
                "there is no `{text}`; there are {}, worker0 to worker{last}",
                senders.join(", ")
            )
        })
    }

    /// The leaf in whose rack an agent is.
    #[must_use]
    pub fn leaf_of(&self, agent: u16) -> u16 {
        (agent - 1) % self.leaves + 1
    }

    /// The spine that a leaf is linked to at the start.
    #[must_use]
    pub fn spine_of(&self, leaf: u16) -> u16 {
        (leaf - 1) % self.spines.max(1) + 1
    }

    /// Packets go from one to the other.
    #[must_use]
    pub fn are_joined(&self, one: Who, other: Who) -> bool {
        match (one, other) {
            (Who::Clients(_), Who::Leaf(_) | Who::Spine(_))
            | (Who::Leaf(_) | Who::Spine(_), Who::Clients(_))
                if self.spines > 0 =>
            {
                true
            }
            (Who::Clients(a), Who::Leaf(b)) | (Who::Leaf(b), Who::Clients(a)) => a == b,
            (Who::Spine(_), Who::Leaf(_) | Who::Spine(_)) | (Who::Leaf(_), Who::Spine(_)) => {
                one != other
            }
            (Who::Leaf(_) | Who::Agent(_), Who::Leaf(_) | Who::Agent(_)) => one != other,
            _ => false,
        }
    }

    /// The receiver's port to which packets lead from the sender's port, if any do. Spines and leaves have their first port towards
    /// clients; clients, spines and leaves' first ports are one network, but that no spine's first port is a leaf's neighbour;
    /// leaves' second ports and agents are another.
    #[must_use]
    pub fn leads_to(&self, from: Who, port: usize, to: Who) -> Option<usize> {
        let is_joined = self.are_joined(from, to);
        let found = match (from, port, to) {
            (Who::Clients(_), _, _) | (Who::Leaf(_) | Who::Spine(_), 0, Who::Clients(_)) => 0,
            (Who::Spine(_), _, Who::Spine(_)) => port,
            (Who::Spine(_), 1, Who::Leaf(_)) => 0,
            (Who::Leaf(_), 0, Who::Spine(_)) => 1,
            (Who::Leaf(_), 0, Who::Leaf(_)) if self.spines > 0 => 0,
            (Who::Leaf(_), 1, Who::Leaf(_)) | (Who::Agent(_), _, Who::Leaf(_)) => 1,
            (Who::Leaf(_), 1, Who::Agent(_)) | (Who::Agent(_), _, Who::Agent(_)) => 0,
            _ => return None,
        };
        is_joined.then_some(found)
    }
}

/// A wire: both directions, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// One end.
    pub from: Who,
    /// The other.
    pub to: Who,
    /// Packets from `from` to `to` only.
    pub one_way: bool,
}

impl Wire {
    /// Packets that go that way are on this wire.
    #[must_use]
    pub fn carries(&self, from: Who, to: Who) -> bool {
        (self.from, self.to) == (from, to) || !self.one_way && (self.to, self.from) == (from, to)
    }

    fn read(text: &str, topology: &Topology) -> Result<Self, String> {
        let one_way = text.contains('>');
        let (from, to) = text.split_once(if one_way { '>' } else { '-' }).ok_or_else(|| {
            format!(
                "`{text}` is no wire; write it as leaf1-agent1, or leaf1>agent1 for one direction"
            )
        })?;
        let (from, to) = (topology.read(from)?, topology.read(to)?);
        match topology.are_joined(from, to) {
            true => Ok(Self { from, to, one_way }),
            false => Err(format!(
                "no wire joins {from} and {to}; there are those of clients to their leaf, as clients1-leaf1, those among \
                 leaves and agents, as leaf1-agent1, and where there are spines those of spines and all clients to leaves and \
                 spines, as spine1-leaf1"
            )),
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.from, if self.one_way { '>' } else { '-' }, self.to)
    }
}

/// What may befall each packet of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFault {
    /// It is lost.
    Loss,
    /// It comes twice.
    Dup,
    /// It is held back, so that others overtake it.
    Reorder,
    /// One bit of it is flipped.
    Corrupt,
}

impl PacketFault {
    /// All of them, in the order in which they are drawn for a packet.
    pub const ALL: [Self; 4] = [Self::Loss, Self::Dup, Self::Reorder, Self::Corrupt];

    /// As in a plan.
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

/// How likely that is, on one wire or on all that no other entry names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// What.
    pub kind: PacketFault,
    /// Its probability.
    pub probability: f64,
    /// Where.
    pub wire: Option<Wire>,
}

/// What is so for an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A wire carries nothing.
    Cut(Wire),
    /// A node or a worker does nothing; its process is stopped and then goes on.
    Pause(Who),
    /// A node is killed, and started anew at the interval's end.
    Kill(Who),
    /// A worker leaves its agent, and another attaches in its place.
    Leave(Who),
}

/// An interval, in nanoseconds from the first task's earliest time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spell {
    /// What is so.
    pub what: What,
    /// From when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
}

/// A plan of faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// What may befall packets.
    pub rates: Vec<Rate>,
    /// Cuts, pauses, kills.
    pub spells: Vec<Spell>,
}

impl Faults {
    /// Reads a plan: `loss=0.001,cut=leaf1-agent2@5ms..8ms,kill=agent1@10ms..60ms`; `none` is one without any.
    ///
    /// # Errors
    /// Which part of it can't be, and what is allowed.
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
                    "`{number}` is no probability; write a number from 0 to 1, as in {name}=0.001"
                )
            })?;
            self.rates.push(Rate { kind, probability, wire });
            return Ok(());
        }
        if !["cut", "pause", "kill", "leave"].contains(&name) {
            return Err(format!(
                "there is no fault `{name}`; there are {NAMES}; or one word: all, random, none"
            ));
        }
        let usage = format!(
            "write it as {name}={}@5ms..8ms",
            if name == "cut" { "leaf1-agent1" } else { "agent1" }
        );
        let (about, interval) =
            value.split_once('@').ok_or(format!("an interval is missing; {usage}"))?;
        let (from_ns, to_ns) =
            interval_ns(interval).map_err(|reason| format!("{reason}; {usage}"))?;
        let what = match name {
            "cut" => What::Cut(Wire::read(about, topology)?),
            "pause" => What::Pause(topology.read(about)?),
            "kill" => What::Kill(topology.read(about)?),
            _ => What::Leave(topology.read(about)?),
        };
        match what {
            What::Pause(Who::Clients(_)) | What::Kill(Who::Clients(_)) => {
                return Err(format!(
                    "clients are no node that can be in trouble; {name} a spine, a leaf or an agent, or cut their wire"
                ));
            }
            What::Kill(Who::Worker(_)) => {
                return Err("a worker leaves or is paused; write leave=worker0@5ms..8ms".to_owned());
            }
            What::Leave(Who::Spine(_) | Who::Leaf(_) | Who::Agent(_) | Who::Clients(_)) => {
                return Err(
                    "only workers leave; write leave=worker0@5ms..8ms, or kill a node".to_owned()
                );
            }
            _ => {}
        }
        let spell = Spell { what, from_ns, to_ns };
        if let Some(other) = self.spells.iter().find(|other| other.clashes(&spell)) {
            return Err(format!(
                "it overlaps with `{other}`; one can be in one kind of trouble at a time"
            ));
        }
        self.spells.push(spell);
        Ok(())
    }

    /// How likely something is on the way between two.
    #[must_use]
    pub fn probability(&self, kind: PacketFault, from: Who, to: Who) -> f64 {
        let of = |rate: &&Rate| rate.kind == kind;
        let named = self
            .rates
            .iter()
            .filter(of)
            .rfind(|rate| rate.wire.is_some_and(|wire| wire.carries(from, to)));
        let general = || self.rates.iter().filter(of).rfind(|rate| rate.wire.is_none());
        named.or_else(general).map_or(0.0, |rate| rate.probability)
    }

    /// Nothing is cut, paused or killed any more from then on.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.spells.iter().map(|spell| spell.to_ns).max().unwrap_or(0)
    }

    /// Draws a plan for a run of about this length: with some faults of each kind, or with some of some kinds.
    #[must_use]
    pub fn draw(seed: u64, topology: &Topology, span_ns: u64, every_kind: bool) -> Self {
        let mut stream = StreamSeed::derive(seed, "plan of faults", 0).stream();
        let mut faults = Self::default();
        for kind in PacketFault::ALL {
            if every_kind || stream.random_bool(0.5) {
                let rates = [0.0005, 0.002, 0.01, 0.05];
                let probability = rates[stream.random_range(0..rates.len())];
                faults.rates.push(Rate { kind, probability, wire: None });
            }
        }
        let names = ["cut", "pause", "kill", "pause a worker", "leave"];
        for name in names {
            let most = if every_kind { 1 } else { [0, 0, 0, 1, 1, 2][stream.random_range(0..6)] };
            for _ in 0..most {
                let spell = draw_spell(name, &mut stream, topology, span_ns);
                if !faults.spells.iter().any(|other| other.clashes(&spell)) {
                    faults.spells.push(spell);
                }
            }
        }
        faults
    }
}

/// One of that kind.
fn draw_spell(name: &str, stream: &mut Stream, topology: &Topology, span_ns: u64) -> Spell {
    let mut node = || {
        let at = stream.random_range(usize::from(topology.clients())..topology.nodes());
        topology.who(at)
    };
    let what = match name {
        "cut" => {
            let agent = Who::Agent(stream.random_range(1..=topology.agents));
            let leaf = stream.random_range(1..=topology.leaves);
            let one_way = stream.random_bool(0.3);
            let (from, to) = match stream.random_range(0..4_i32) {
                // Between a spine and one of its leaves, or between the clients and either.
                at if topology.spines > 0 && stream.random_bool(0.5) => {
                    let spine = Who::Spine(topology.spine_of(leaf));
                    let clients = Who::Clients(topology.spine_of(leaf));
                    [
                        (clients, spine),
                        (clients, Who::Leaf(leaf)),
                        (spine, Who::Leaf(leaf)),
                        (Who::Leaf(leaf), spine),
                    ][at as usize]
                }
                0 if topology.spines == 0 => (Who::Clients(leaf), Who::Leaf(leaf)),
                1 => (agent, Who::Leaf(leaf)),
                _ => (Who::Leaf(leaf), agent),
            };
            What::Cut(Wire { from, to, one_way })
        }
        "pause" => What::Pause(node()),
        "kill" => What::Kill(node()),
        "leave" => {
            What::Leave(Who::Worker(stream.random_range(0..topology.agents * topology.workers)))
        }
        _ => What::Pause(Who::Worker(stream.random_range(0..topology.agents * topology.workers))),
    };
    // Whole microseconds, so that what is printed is what was drawn.
    let from_us = stream.random_range(0..=span_ns / 1000);
    let longest_us = [200, 2_000, 20_000, 300_000][stream.random_range(0..4)];
    let to_us = from_us + 1 + stream.random_range(0..longest_us);
    Spell { what, from_ns: from_us * 1000, to_ns: to_us * 1000 }
}

fn interval_ns(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or(format!("`{text}` is no interval"))?;
    let time = |text: &str| {
        let ns = parse_time_ns(text).map_err(|error| format!("`{text}` is no time: {error}"))?;
        match ns {
            0.0..=1e12 => Ok(ns as u64),
            _ => Err(format!("`{text}` is too long; at most 1000s are allowed")),
        }
    };
    let (from, to) = (time(from)?, time(to)?);
    match from < to {
        true => Ok((from, to)),
        false => Err(format!("`{text}` ends before it starts")),
    }
}

impl Spell {
    /// Both are about the same, at the same time.
    fn clashes(&self, other: &Self) -> bool {
        let at_once = self.from_ns <= other.to_ns && other.from_ns <= self.to_ns;
        let same = match (self.what, other.what) {
            (What::Cut(_), _) | (_, What::Cut(_)) => false,
            (
                What::Pause(one) | What::Kill(one) | What::Leave(one),
                What::Pause(two) | What::Kill(two) | What::Leave(two),
            ) => one == two,
        };
        at_once && same
    }
}

impl fmt::Display for Spell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Cut(wire) => write!(f, "cut={wire}")?,
            What::Pause(who) => write!(f, "pause={who}")?,
            What::Kill(who) => write!(f, "kill={who}")?,
            What::Leave(who) => write!(f, "leave={who}")?,
        }
        write!(f, "@{}..{}", Time(self.from_ns), Time(self.to_ns))
    }
}

/// A time in the greatest unit of which it is a whole number.
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

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: &Rate| match rate.wire {
            Some(wire) => format!("{}={}@{wire}", rate.kind.name(), rate.probability),
            None => format!("{}={}", rate.kind.name(), rate.probability),
        };
        let parts: Vec<_> =
            self.rates.iter().map(rate).chain(self.spells.iter().map(Spell::to_string)).collect();
        match parts.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&parts.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPOLOGY: Topology = Topology { spines: 0, leaves: 1, agents: 2, workers: 3 };
    const FABRIC: Topology = Topology { spines: 2, leaves: 4, agents: 8, workers: 4 };

    #[test]
    fn a_plan_is_read_as_it_is_written() {
        for text in [
            "none",
            "loss=0.001",
            "loss=0.01@leaf1>agent2,dup=1,reorder=0.5@clients1-leaf1,corrupt=0",
            "cut=leaf1-agent1@5ms..8ms,pause=leaf1@1us..2ms,kill=agent2@1500us..3ms,leave=worker5@0ms..1ns",
        ] {
            assert_eq!(Faults::parse(text, &TOPOLOGY).unwrap().to_string(), text);
        }
    }

    #[test]
    fn drawn_plans_can_be_written_and_follow_from_the_seed() {
        for seed in 0..200 {
            let drawn = Faults::draw(seed, &TOPOLOGY, 20_000_000, seed % 2 == 0);
            assert_eq!(Faults::parse(&drawn.to_string(), &TOPOLOGY).as_ref(), Ok(&drawn));
            assert_eq!(Faults::draw(seed, &TOPOLOGY, 20_000_000, seed % 2 == 0), drawn);
        }
        for seed in 0..100 {
            let drawn = Faults::draw(seed, &FABRIC, 20_000_000, true);
            assert_eq!(Faults::parse(&drawn.to_string(), &FABRIC).as_ref(), Ok(&drawn));
        }
        let all = Faults::draw(7, &TOPOLOGY, 20_000_000, true).to_string();
        assert!(
            ["loss", "dup", "reorder", "corrupt", "cut"].iter().all(|name| all.contains(name)),
            "{all}"
        );
    }

    #[test]
    fn what_is_no_plan_is_named_with_the_reason_and_the_fix() {
        for (text, part, reason, fix) in [
            ("los=0.1", "`los=0.1`", "no fault `los`", "loss, dup, reorder"),
            ("loss=1.5", "`loss=1.5`", "no probability", "from 0 to 1"),
            ("dup=-0.1", "`dup=-0.1`", "no probability", "from 0 to 1"),
            ("corrupt=much", "`corrupt=much`", "no probability", "corrupt=0.001"),
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
            ("pause=agent1@5..8ms", "`pause", "is no time", "agent1@5ms..8ms"),
            ("pause=agent1", "`pause=agent1`", "interval is missing", "pause=agent1@5ms..8ms"),
            ("kill=agent3@1ms..2ms", "`kill", "no `agent3`", "agent1, agent2"),
            ("kill=worker1@1ms..2ms", "`kill", "leaves or is paused", "leave=worker0"),
            ("leave=leaf1@1ms..2ms", "`leave", "only workers leave", "leave=worker0"),
            ("kill=clients1@1ms..2ms", "`kill", "clients are no node", "cut their wire"),
            ("cut=clients1-agent1@1ms..2ms", "`cut", "no wire joins", "clients1-leaf1"),
            ("cut=leaf1@1ms..2ms", "`cut", "no wire", "leaf1-agent1"),
            (
                "pause=leaf1@1ms..5ms,kill=leaf1@2ms..3ms",
                "`kill",
                "overlaps with `pause",
                "one kind",
            ),
            ("pause=leaf1@1ms..2000s", "`pause", "too long", "1000s"),
        ] {
            let error = Faults::parse(text, &TOPOLOGY).unwrap_err();
            for expected in ["--faults", part, reason, fix] {
                assert!(error.contains(expected), "{text}: {error}");
            }
        }
    }

    #[test]
    fn places_name_everybody_once_and_spines_are_joined_with_all_leaves() {
        for topology in [TOPOLOGY, FABRIC] {
            for at in 0..topology.nodes() {
                assert_eq!(topology.index(topology.who(at)), at);
            }
        }
        let leads = |from, port, to| FABRIC.leads_to(from, port, to);
        assert_eq!(leads(Who::Clients(1), 0, Who::Spine(2)), Some(0));
        assert_eq!(leads(Who::Spine(1), 1, Who::Leaf(3)), Some(0));
        assert_eq!(leads(Who::Spine(1), 0, Who::Leaf(3)), None);
        assert_eq!(leads(Who::Leaf(3), 0, Who::Spine(1)), Some(1));
        assert_eq!(leads(Who::Leaf(3), 0, Who::Clients(2)), Some(0));
        assert_eq!(leads(Who::Leaf(3), 1, Who::Agent(1)), Some(0));
        assert_eq!(leads(Who::Leaf(3), 1, Who::Clients(1)), None);
        assert_eq!(TOPOLOGY.leads_to(Who::Agent(1), 0, Who::Leaf(1)), Some(1));
    }

    #[test]
    fn a_wire_that_is_named_has_its_own_probability() {
        let faults = Faults::parse("loss=0.1,loss=0.5@leaf1>agent1", &TOPOLOGY).unwrap();
        let loss = |from, to| faults.probability(PacketFault::Loss, from, to);
        assert_eq!(loss(Who::Leaf(1), Who::Agent(1)), 0.5);
        assert_eq!(loss(Who::Agent(1), Who::Leaf(1)), 0.1);
        assert_eq!(faults.probability(PacketFault::Dup, Who::Leaf(1), Who::Agent(1)), 0.0);
    }
}
