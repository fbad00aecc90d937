//! A trace of memory accesses, split by whose turn it is and attributed to what lies there.
//!
//! Two orders of the same accesses are modelled at once. *In turn* is the order of the trace: bursts of cores one after another,
//! so that a line moves once a burst however often it is used. *At once* has the bursts of a round at the same time, an
//! instruction of each core after another, so that a line moves whenever its next user is another core. Cores on a machine are
//! between the two.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::coherence::{Caches, LINE, Outcome, lines};
use super::workload::{NOBODY, WARM};

/// A piece of memory and what lies there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Its name; several pieces may have one.
    pub name: String,
    /// Its first address.
    pub start: u64,
    /// The address behind its last.
    pub end: u64,
}

/// Where everything is in a process that is traced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Map {
    /// Where the words begin that tell whose turn it is.
    turns: u64,
    /// Where the program was loaded.
    program: u64,
    /// The thread's stack, which each core has one of its own of on a machine: accesses to it are left out.
    stack: (u64, u64),
    /// By address.
    sections: Vec<Section>,
}

/// Bytes that a stack may have.
const STACK: u64 = 8 << 20;

impl Map {
    /// The map of this process; `turns` is where the words begin that tell whose turn it is.
    #[must_use]
    pub fn new(turns: u64, mut sections: Vec<Section>) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let local = 0_u8;
        let here = std::ptr::from_ref(&local).addr() as u64;
        let stack = mappings(&maps).find(|&(start, end, _)| (start..end).contains(&here));
        let stack = stack.map_or((here, here + 1), |(_, end, _)| (end.saturating_sub(STACK), end));
        let own = std::env::current_exe().unwrap_or_default();
        let own = own.to_string_lossy();
        let program = mappings(&maps).find(|&(.., file)| file == own);
        let program = program.map_or(0, |(start, ..)| start);
        sections.retain(|section| section.start < section.end);
        sections.sort_by_key(|section| section.start);
        Self { turns, program, stack, sections }
    }

    /// The piece that an address lies in, by its place in order.
    fn section(&self, address: u64) -> Option<usize> {
        let behind = self.sections.partition_point(|section| section.start <= address);
        let found = behind.checked_sub(1)?;
        (address < self.sections[found].end).then_some(found)
    }

    /// The word of a turn that is stored to, if it is one.
    fn turn(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.turns)? as usize;
        (offset.is_multiple_of(8) && offset / 8 <= WARM).then_some(offset / 8)
    }
}

/// Start, end and file of each mapping of a process.
fn mappings(maps: &str) -> impl Iterator<Item = (u64, u64, &str)> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?, words.nth(4).unwrap_or("")))
    })
}

/// What a line of a trace says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The instruction at this address is executed, and has the accesses that follow.
    Instruction(u64),
    /// It reads or writes so many bytes from an address on; if both, it counts as reading first.
    Access {
        /// The first byte.
        address: u64,
        /// How many.
        bytes: u64,
        /// It reads.
        reads: bool,
        /// It writes.
        writes: bool,
    },
}

/// Reads a line as valgrind's lackey writes it: `I  04016c20,3`, ` L 1ffeffe7e,8`, ` S ...` or ` M ...`. None of any other.
#[must_use]
pub fn event(line: &[u8]) -> Option<Event> {
    let (kind, rest) = line.split_at_checked(3)?;
    let comma = rest.iter().position(|&byte| byte == b',')?;
    let address = number(&rest[..comma], 16)?;
    let bytes = number(rest[comma + 1..].trim_ascii_end(), 10)?;
    let access = |reads, writes| Event::Access { address, bytes, reads, writes };
    Some(match kind {
        b"I  " => Event::Instruction(address),
        b" L " => access(true, false),
        b" S " => access(false, true),
        b" M " => access(true, true),
        _ => return None,
    })
}

fn number(digits: &[u8], radix: u64) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |sum: u64, &digit| {
        let digit = char::from(digit).to_digit(radix as u32)?;
        sum.checked_mul(radix)?.checked_add(u64::from(digit))
    })
}

/// How many lines were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// From core to core.
    pub transfers: u64,
    /// Not at all, but taken from others that had them, too.
    pub upgrades: u64,
}

impl Moves {
    fn note(&mut self, outcome: Outcome) {
        self.transfers += u64::from(outcome == Outcome::Transfer);
        self.upgrades += u64::from(outcome == Outcome::Upgrade);
    }
}

/// The same in both orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Both {
    /// Bursts one after another.
    pub in_turn: Moves,
    /// Bursts of a round at the same time.
    pub at_once: Moves,
}

impl Both {
    fn add(&mut self, other: Self) {
        for order in [Order::InTurn, Order::AtOnce] {
            let (sum, other) = (self.of(order), *{ other }.of(order));
            sum.transfers += other.transfers;
            sum.upgrades += other.upgrades;
        }
    }

    fn of(&mut self, order: Order) -> &mut Moves {
        match order {
            Order::InTurn => &mut self.in_turn,
            Order::AtOnce => &mut self.at_once,
        }
    }

    /// All of them.
    #[must_use]
    pub fn sum(self) -> u64 {
        let Self { in_turn, at_once } = self;
        in_turn.transfers + in_turn.upgrades + at_once.transfers + at_once.upgrades
    }
}

#[derive(Clone, Copy)]
enum Order {
    InTurn,
    AtOnce,
}

/// An access of a round, to one line.
#[derive(Clone, Copy)]
struct Access {
    core: usize,
    /// Instructions of the core before it, in this round.
    time: u64,
    instruction: u64,
    address: u64,
    writes: bool,
}

/// What a line cost, and which instructions made it move.
#[derive(Clone, Debug, Default)]
pub struct LineCost {
    /// The section that it lies in.
    pub section: String,
    /// Its offset there; its address where it is in none.
    pub offset: u64,
    /// What it cost.
    pub moves: Both,
    /// By the instruction's address in the program's file.
    pub instructions: HashMap<u64, u64>,
}

/// Follows a trace.
pub struct Tracer {
    map: Map,
    /// Whose turn it is: a core's, or [`NOBODY`]'s.
    turn: usize,
    warm: bool,
    instruction: u64,
    /// Instructions of each core in this round.
    times: Vec<u64>,
    round: Vec<Access>,
    in_turn: Caches,
    at_once: Caches,
    /// By place of the section; the last is of what lies in none.
    sections: Vec<Both>,
    /// By number of the line.
    lines: HashMap<u64, LineCost>,
}

impl Tracer {
    /// Nothing was traced yet.
    #[must_use]
    pub fn new(map: Map) -> Self {
        Self {
            turn: NOBODY,
            warm: false,
            instruction: 0,
            times: vec![0; NOBODY],
            round: Vec::new(),
            in_turn: Caches::default(),
            at_once: Caches::default(),
            sections: vec![Both::default(); map.sections.len() + 1],
            lines: HashMap::new(),
            map,
        }
    }

    /// Takes what a line of the trace says.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Instruction(address) => {
                self.instruction = address;
                self.times.get_mut(self.turn).into_iter().for_each(|time| *time += 1);
            }
            Event::Access { address, bytes, reads, writes } => {
                match self.map.turn(address).filter(|_| writes) {
                    Some(turn) => self.turn_to(turn),
                    None => self.access(address, bytes, reads, writes),
                }
            }
        }
    }

    /// The core whose turn it is reads bytes, writes them, or reads and then writes them.
    fn access(&mut self, address: u64, bytes: u64, reads: bool, writes: bool) {
        let (core, instruction) = (self.turn, self.instruction);
        let (start, end) = self.map.stack;
        if core == NOBODY || (start..end).contains(&address) {
            return;
        }
        let time = self.times[core];
        for line in lines(address, bytes) {
            let address = address.max(line * LINE);
            for (is_done, writes) in [(reads, false), (writes, true)] {
                if is_done {
                    let access = Access { core, time, instruction, address, writes };
                    self.apply(Order::InTurn, access);
                    self.round.push(access);
                }
            }
        }
    }

    /// It is another core's turn, or nobody's.
    fn turn_to(&mut self, turn: usize) {
        if turn == WARM {
            self.end_round();
            self.warm = true;
            return;
        }
        if turn < NOBODY && self.times[turn] > 0 {
            self.end_round();
        }
        self.turn = turn;
    }

    /// All cores had their turns: models them at once.
    fn end_round(&mut self) {
        let mut round = std::mem::take(&mut self.round);
        // Stable: accesses of an instruction stay in their order.
        round.sort_by_key(|access| (access.time, access.core));
        for &access in &round {
            self.apply(Order::AtOnce, access);
        }
        round.clear();
        self.round = round;
        self.times.fill(0);
    }

    fn apply(&mut self, order: Order, access: Access) {
        let Access { core, instruction, address, writes, .. } = access;
        let caches = match order {
            Order::InTurn => &mut self.in_turn,
            Order::AtOnce => &mut self.at_once,
        };
        let outcome = caches.access(core, address / LINE, writes);
        if !self.warm || matches!(outcome, Outcome::Hit | Outcome::First) {
            return;
        }
        let section = self.map.section(address).unwrap_or(self.map.sections.len());
        self.sections[section].of(order).note(outcome);
        let line = self.lines.entry(address / LINE).or_default();
        line.moves.of(order).note(outcome);
        *line.instructions.entry(instruction.wrapping_sub(self.map.program)).or_default() += 1;
    }

    /// The trace is over: what it cost.
    #[must_use]
    pub fn finish(mut self) -> Costs {
        self.end_round();
        let mut costs = Costs::default();
        for (place, &moves) in self.sections.iter().enumerate() {
            let name = self.map.sections.get(place).map_or(ELSEWHERE, |section| &section.name);
            costs.all.add(moves);
            costs.sections.entry(name.to_owned()).or_default().add(moves);
        }
        let map = &self.map;
        let place = |line: u64| {
            let first = (line * LINE..(line + 1) * LINE).find_map(|byte| map.section(byte));
            first.map_or((ELSEWHERE.to_owned(), line * LINE), |place| {
                let Section { name, start, .. } = &map.sections[place];
                (name.clone(), (line * LINE).saturating_sub(*start))
            })
        };
        let lines = self.lines.into_iter().map(|(line, cost)| {
            let (section, offset) = place(line);
            LineCost { section, offset, ..cost }
        });
        costs.lines = lines.collect();
        costs
            .lines
            .sort_by_key(|line| (Reverse(line.moves.sum()), line.section.clone(), line.offset));
        costs
    }
}

/// What the bursts that count have cost.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// All of them.
    pub all: Both,
    /// By section.
    pub sections: BTreeMap<String, Both>,
    /// By line, the dearest first.
    pub lines: Vec<LineCost>,
}

/// The name of what lies in no section: memory that the program took for other things.
pub const ELSEWHERE: &str = "heap";

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: u64 = 0x10_0000;

    fn map() -> Map {
        let section = |name: &str, start, end| Section { name: name.into(), start, end };
        let sections = vec![section("own", 0x2000, 0x3000), section("reported", 0x1000, 0x2000)];
        let mut map = Map::new(TURNS, sections);
        (map.stack, map.program) = ((0xF000, 0x1_0000), 0x40_0000);
        map
    }

    fn traced(text: &str) -> Costs {
        let mut tracer = Tracer::new(map());
        let events = text.lines().filter_map(|line| event(line.as_bytes()));
        events.for_each(|event| tracer.take(event));
        tracer.finish()
    }

    fn turn(of: usize) -> String {
        format!(" S {:08x},8\n", TURNS + 8 * of as u64)
    }

    /// Rounds of two cores, each of which does the same in its turn; the first round is no part of what counts.
    fn rounds(count: usize, core0: &str, core1: &str) -> Costs {
        let round =
            [&turn(0), core0, &turn(NOBODY), " S 00001000,8\n", &turn(1), core1, &turn(NOBODY)];
        let round = round.concat();
        traced(&[round.clone(), turn(WARM), round.repeat(count)].concat())
    }

    fn moves(transfers: u64, upgrades: u64) -> Moves {
        Moves { transfers, upgrades }
    }

    #[test]
    fn lines_of_a_trace_are_read() {
        let access =
            |address, bytes, reads, writes| Some(Event::Access { address, bytes, reads, writes });
        assert_eq!(event(b"I  04016c20,3"), Some(Event::Instruction(0x0401_6c20)));
        assert_eq!(event(b" L 1ffeffe7e,8\n"), access(0x1_ffef_fe7e, 8, true, false));
        assert_eq!(event(b" S 04222cac,32"), access(0x0422_2cac, 32, false, true));
        assert_eq!(event(b" M 0421d810,4"), access(0x0421_d810, 4, true, true));
        for other in ["==7== Lackey, an example", "", "I", "I  xyz,3", " L 10,", " L ,4", " X 10,4"]
        {
            assert_eq!(event(other.as_bytes()), None, "{other:?}");
        }
    }

    /// A reply's write of a shared report, and the other core's choice that reads it.
    #[test]
    fn a_report_that_one_core_writes_and_the_other_reads_moves_once_a_round() {
        let costs = rounds(10, "I  00400010,4\n S 00001008,8\n", "I  00400020,4\n L 00001008,8\n");
        assert_eq!(costs.all, costs.sections["reported"]);
        assert_eq!(costs.all, Both { in_turn: moves(10, 10), at_once: moves(10, 10) });
        assert_eq!((costs.lines.len(), costs.lines[0].offset), (1, 0));
        let instructions = &costs.lines[0].instructions;
        assert_eq!(*instructions, HashMap::from([(0x10, 20), (0x20, 20)]));
    }

    #[test]
    fn what_each_core_has_of_its_own_costs_nothing() {
        let costs = rounds(3, "I  400,4\n M 00002000,8\n", "I  400,4\n M 00002040,8\n");
        assert_eq!(costs.all, Both::default());
        // The same stack stands for one of each core.
        let costs = rounds(3, "I  400,4\n M 0000f100,8\n", "I  400,4\n M 0000f100,8\n");
        assert_eq!(costs.all, Both::default());
        // Two words of one line are one line.
        let costs = rounds(3, "I  400,4\n S 00002000,8\n", "I  400,4\n S 00002008,8\n");
        assert_eq!(costs.sections["own"].in_turn, moves(6, 0));
    }

    #[test]
    fn a_line_moves_once_a_burst_in_turn_and_at_each_use_at_once() {
        let three = "I  400,4\n S 00003000,8\n".repeat(3);
        let costs = rounds(5, &three, &three);
        assert_eq!(costs.all, costs.sections[ELSEWHERE]);
        assert_eq!(costs.all, Both { in_turn: moves(10, 0), at_once: moves(30, 0) });
    }

    #[test]
    fn an_access_that_crosses_lines_and_sections_counts_for_both() {
        let wide = "I  400,4\n S 00001ff0,32\n";
        let costs = rounds(1, wide, wide);
        assert_eq!(costs.sections["reported"].in_turn, moves(2, 0));
        assert_eq!(costs.sections["own"].in_turn, moves(2, 0));
    }
}
