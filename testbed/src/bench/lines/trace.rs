//! Trace of memory accesses, split by core and attributed to the sections of memory.
//!
//! The tracer models the same accesses in two orders. *In turn* is the order of the trace: bursts of the
//! cores one after another. A line then moves once per burst, however often the core uses it. *At once* runs
//! the bursts of a round at the same time, interleaved by instruction. A line then moves whenever its next
//! user is another core. Cores on a machine are between the two.
//!
//! The traced workload marks turns by stores to known words: one word for each core, one for no core, and one for the
//! end of the warm-up. A *round* is one turn of each core. A *section* is a named part of the leaf's memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use wedjat::limits::CORES_MAX;

use super::coherence::{Caches, LINE, Outcome, lines};

/// Index of the word for no core.
pub const NO_CORE: usize = CORES_MAX;
/// Index of the word for the end of the warm-up.
pub const WARM: usize = CORES_MAX + 1;

/// A named range of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Name. Several ranges may share one.
    pub name: String,
    /// First address.
    pub start: u64,
    /// End address (exclusive).
    pub end: u64,
}

/// Memory map of a traced process. The traced process sends it to the reader of the trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Map {
    /// Address of the first of the words that mark turns.
    turns: u64,
    /// Load address of the program.
    program: u64,
    /// Stack of the thread. Its accesses are ignored, because on a real machine each core has its own stack.
    stack: (u64, u64),
    /// Sections, sorted by address.
    sections: Vec<Section>,
}

/// Assumed maximum size of a stack in bytes.
const STACK: u64 = 8 << 20;

impl Map {
    /// Creates the map of this process. `turns` is the address of the words that mark turns.
    #[must_use]
    pub fn new(turns: u64, mut sections: Vec<Section>) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        // A local variable, whose address is in this thread's stack.
        let local = 0_u8;
        let local_address = std::ptr::from_ref(&local).addr() as u64;
        let stack = mappings(&maps).find(|&(start, end, _)| (start..end).contains(&local_address));
        // The stack grows downwards, so that the mapping's start is not its limit.
        let stack = stack.map_or((local_address, local_address + 1), |(_, end, _)| {
            (end.saturating_sub(STACK), end)
        });
        let program_file = std::env::current_exe().unwrap_or_default();
        let program_file = program_file.to_string_lossy();
        let program = mappings(&maps).find(|&(.., file)| file == program_file);
        let program = program.map_or(0, |(start, ..)| start);
        sections.retain(|section| section.start < section.end);
        sections.sort_by_key(|section| section.start);
        Self { turns, program, stack, sections }
    }

    /// Returns the index of the section that contains an address.
    fn section(&self, address: u64) -> Option<usize> {
        let end = self.sections.partition_point(|section| section.start <= address);
        let index = end.checked_sub(1)?;
        (address < self.sections[index].end).then_some(index)
    }

    /// Returns the index of the turn word at an address, if it is one.
    fn turn(&self, address: u64) -> Option<usize> {
        let offset = address.checked_sub(self.turns)? as usize;
        (offset.is_multiple_of(8) && offset / 8 <= WARM).then_some(offset / 8)
    }
}

/// Parses start, end and file of each mapping of a process.
fn mappings(maps: &str) -> impl Iterator<Item = (u64, u64, &str)> {
    maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        // Permissions, offset, device and inode come before the file.
        Some((number(start)?, number(end)?, words.nth(4).unwrap_or("")))
    })
}

/// Content of a trace line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Execution of the instruction at this address. Its accesses follow.
    Instruction(u64),
    /// Access by the instruction. An access that reads and writes counts as a read first.
    Access {
        /// First byte.
        address: u64,
        /// Number of bytes.
        bytes: u64,
        /// True if it reads.
        reads: bool,
        /// True if it writes.
        writes: bool,
    },
}

/// Parses a line in the format of valgrind's lackey: `I  04016c20,3`, ` L 1ffeffe7e,8`, ` S ...` or ` M ...`.
/// Returns `None` for any other line.
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

/// Parses a number; `None` without digits, with another byte than a digit, and beyond 64 bits.
fn number(digits: &[u8], radix: u64) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |sum: u64, &digit| {
        let digit = char::from(digit).to_digit(radix as u32)?;
        sum.checked_mul(radix)?.checked_add(u64::from(digit))
    })
}

/// Numbers of line moves and of upgrades.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Moves from core to core.
    pub transfers: u64,
    /// Upgrades: no move, but invalidation of copies in other cores.
    pub upgrades: u64,
}

impl Moves {
    /// Counts an outcome, if it is a move or an upgrade.
    fn count(&mut self, outcome: Outcome) {
        self.transfers += u64::from(outcome == Outcome::Transfer);
        self.upgrades += u64::from(outcome == Outcome::Upgrade);
    }
}

/// Moves in both orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderPair {
    /// Bursts one after another.
    pub in_turn: Moves,
    /// Bursts of a round at the same time.
    pub at_once: Moves,
}

impl OrderPair {
    /// Adds other moves.
    fn add(&mut self, other: Self) {
        for order in [Order::InTurn, Order::AtOnce] {
            // A copy of `other`, because `in_order` borrows mutably.
            let (sum, other) = (self.in_order(order), *{ other }.in_order(order));
            sum.transfers += other.transfers;
            sum.upgrades += other.upgrades;
        }
    }

    /// Returns the moves in one order.
    fn in_order(&mut self, order: Order) -> &mut Moves {
        match order {
            Order::InTurn => &mut self.in_turn,
            Order::AtOnce => &mut self.at_once,
        }
    }

    /// Returns the sum of all moves and upgrades.
    #[must_use]
    pub fn sum(self) -> u64 {
        let Self { in_turn, at_once } = self;
        in_turn.transfers + in_turn.upgrades + at_once.transfers + at_once.upgrades
    }
}

/// Order in which the bursts of a round run.
#[derive(Clone, Copy)]
enum Order {
    /// One after another.
    InTurn,
    /// At the same time.
    AtOnce,
}

/// Access to one line in a round.
#[derive(Clone, Copy)]
struct Access {
    core: usize,
    /// Number of instructions of the core in this round, up to that of the access.
    time: u64,
    /// Address of the instruction.
    instruction: u64,
    /// First accessed byte in the line.
    address: u64,
    /// True for a write, false for a read.
    writes: bool,
}

/// Cost of a line, with the instructions that moved it.
#[derive(Clone, Debug, Default)]
pub struct LineCost {
    /// Section that contains the line.
    pub section: String,
    /// Offset in the section; outside all sections, the address.
    pub offset: u64,
    /// Moves of the line.
    pub moves: OrderPair,
    /// Number of moves and upgrades in both orders, by the instruction's address in the program file.
    pub instructions: HashMap<u64, u64>,
}

/// Model of both orders, driven by the events of a trace.
pub struct Tracer {
    /// Memory map of the traced process.
    map: Map,
    /// Current core, or [`NO_CORE`].
    turn: usize,
    /// True after the warm-up.
    warm: bool,
    /// Address of the current instruction.
    instruction: u64,
    /// Instructions of each core in this round.
    times: Vec<u64>,
    /// Accesses of this round.
    round: Vec<Access>,
    /// Caches of the model in each order.
    in_turn: Caches,
    at_once: Caches,
    /// Moves by index of the section; the last entry is for memory outside all sections.
    sections: Vec<OrderPair>,
    /// Costs by line number.
    lines: HashMap<u64, LineCost>,
}

impl Tracer {
    /// Creates a tracer before the first event.
    #[must_use]
    pub fn new(map: Map) -> Self {
        Self {
            turn: NO_CORE,
            warm: false,
            instruction: 0,
            times: vec![0; NO_CORE],
            round: Vec::new(),
            in_turn: Caches::default(),
            at_once: Caches::default(),
            sections: vec![OrderPair::default(); map.sections.len() + 1],
            lines: HashMap::new(),
            map,
        }
    }

    /// Processes an event of the trace.
    pub fn process(&mut self, event: Event) {
        match event {
            Event::Instruction(address) => {
                self.instruction = address;
                self.times.get_mut(self.turn).into_iter().for_each(|time| *time += 1);
            }
            Event::Access { address, bytes, reads, writes } => {
                match self.map.turn(address).filter(|_| writes) {
                    Some(turn) => self.start_turn(turn),
                    None => self.access(address, bytes, reads, writes),
                }
            }
        }
    }

    /// Records a read, a write, or a read and then a write of the current core.
    fn access(&mut self, address: u64, bytes: u64, reads: bool, writes: bool) {
        let (core, instruction) = (self.turn, self.instruction);
        let (start, end) = self.map.stack;
        if core == NO_CORE || (start..end).contains(&address) {
            return;
        }
        let time = self.times[core];
        for line in lines(address, bytes) {
            // First accessed byte in this line.
            let address = address.max(line * LINE);
            for (occurs, writes) in [(reads, false), (writes, true)] {
                if occurs {
                    let access = Access { core, time, instruction, address, writes };
                    self.apply(Order::InTurn, access);
                    self.round.push(access);
                }
            }
        }
    }

    /// Changes the current core, or ends the warm-up. Ends the round at the end of the warm-up, and if the core
    /// already had its turn.
    fn start_turn(&mut self, turn: usize) {
        if turn == WARM {
            self.end_round();
            self.warm = true;
            return;
        }
        if turn < NO_CORE && self.times[turn] > 0 {
            self.end_round();
        }
        self.turn = turn;
    }

    /// Ends a round: models the turns of all cores at once.
    fn end_round(&mut self) {
        let mut round = std::mem::take(&mut self.round);
        // A stable sort keeps the order of an instruction's accesses.
        round.sort_by_key(|access| (access.time, access.core));
        for &access in &round {
            self.apply(Order::AtOnce, access);
        }
        round.clear();
        self.round = round;
        self.times.fill(0);
    }

    /// Models an access in one order. After the warm-up, counts a resulting move by section, line and
    /// instruction.
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
        self.sections[section].in_order(order).count(outcome);
        let line = self.lines.entry(address / LINE).or_default();
        line.moves.in_order(order).count(outcome);
        *line.instructions.entry(instruction.wrapping_sub(self.map.program)).or_default() += 1;
    }

    /// Ends the trace and returns the costs.
    #[must_use]
    pub fn finish(mut self) -> Costs {
        self.end_round();
        let mut costs = Costs::default();
        for (index, &moves) in self.sections.iter().enumerate() {
            let name = self.map.sections.get(index).map_or(ELSEWHERE, |section| &section.name);
            costs.all.add(moves);
            costs.sections.entry(name.to_owned()).or_default().add(moves);
        }
        let map = &self.map;
        // Attributes a line to the section of its first byte that is in one.
        let place = |line: u64| {
            let first = (line * LINE..(line + 1) * LINE).find_map(|byte| map.section(byte));
            first.map_or((ELSEWHERE.to_owned(), line * LINE), |index| {
                let Section { name, start, .. } = &map.sections[index];
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

/// Costs of the measured bursts.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Costs in total.
    pub all: OrderPair,
    /// Costs by section.
    pub sections: BTreeMap<String, OrderPair>,
    /// Costs by line, in descending order.
    pub lines: Vec<LineCost>,
}

/// Name for memory outside all sections: the program's other allocations.
pub const ELSEWHERE: &str = "heap";

#[cfg(test)]
mod tests {
    use super::*;

    /// Address of the words that mark turns.
    const TURNS: u64 = 0x10_0000;

    /// Returns a map with two sections, a stack and a program.
    fn map() -> Map {
        let section = |name: &str, start, end| Section { name: name.into(), start, end };
        let sections = vec![section("own", 0x2000, 0x3000), section("reported", 0x1000, 0x2000)];
        let mut map = Map::new(TURNS, sections);
        (map.stack, map.program) = ((0xF000, 0x1_0000), 0x40_0000);
        map
    }

    /// Returns the costs of a trace.
    fn traced(text: &str) -> Costs {
        let mut tracer = Tracer::new(map());
        let events = text.lines().filter_map(|line| event(line.as_bytes()));
        events.for_each(|event| tracer.process(event));
        tracer.finish()
    }

    /// Returns the trace line that starts a core's turn.
    fn turn(index: usize) -> String {
        format!(" S {:08x},8\n", TURNS + 8 * index as u64)
    }

    /// Traces rounds of two cores, which do the same in each of their turns. The first round is a warm-up. The store
    /// between the turns belongs to no core and does not count.
    fn rounds(count: usize, core0: &str, core1: &str) -> Costs {
        let round =
            [&turn(0), core0, &turn(NO_CORE), " S 00001000,8\n", &turn(1), core1, &turn(NO_CORE)];
        let round = round.concat();
        traced(&[round.clone(), turn(WARM), round.repeat(count)].concat())
    }

    /// Returns these numbers of moves.
    fn moves(transfers: u64, upgrades: u64) -> Moves {
        Moves { transfers, upgrades }
    }

    // promise: speed.2
    #[test]
    fn lines_of_a_trace_are_read() {
        // One line of each kind, and lines that are not part of the trace.
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

    /// A reply on core 0 writes a shared report; a choice on core 1 reads it.
    // promise: speed.2
    #[test]
    fn report_word_moves_once_a_round() {
        let costs = rounds(10, "I  00400010,4\n S 00001008,8\n", "I  00400020,4\n L 00001008,8\n");
        assert_eq!(costs.all, costs.sections["reported"]);
        // In each round the write invalidates core 1's copy, and the read fetches the line again.
        assert_eq!(costs.all, OrderPair { in_turn: moves(10, 10), at_once: moves(10, 10) });
        assert_eq!((costs.lines.len(), costs.lines[0].offset), (1, 0));
        // Ten moves of each instruction, in both orders.
        let instructions = &costs.lines[0].instructions;
        assert_eq!(*instructions, HashMap::from([(0x10, 20), (0x20, 20)]));
    }

    // promise: speed.2
    #[test]
    fn only_shared_lines_have_moves() {
        let costs = rounds(3, "I  400,4\n M 00002000,8\n", "I  400,4\n M 00002040,8\n");
        assert_eq!(costs.all, OrderPair::default());
        // The same stack address stands for a separate stack on each core.
        let costs = rounds(3, "I  400,4\n M 0000f100,8\n", "I  400,4\n M 0000f100,8\n");
        assert_eq!(costs.all, OrderPair::default());
        // Two words of one line count as one line, which moves in each of the two turns of three rounds.
        let costs = rounds(3, "I  400,4\n S 00002000,8\n", "I  400,4\n S 00002008,8\n");
        assert_eq!(costs.sections["own"].in_turn, moves(6, 0));
    }

    // promise: speed.2
    #[test]
    fn line_moves_once_a_turn_or_each_use() {
        let three = "I  400,4\n S 00003000,8\n".repeat(3);
        let costs = rounds(5, &three, &three);
        assert_eq!(costs.all, costs.sections[ELSEWHERE]);
        // Five rounds: two turns each in turn, or two cores with three stores each at once.
        assert_eq!(costs.all, OrderPair { in_turn: moves(10, 0), at_once: moves(30, 0) });
    }

    // promise: speed.2
    #[test]
    fn straddling_access_counts_for_both_sections() {
        let wide = "I  400,4\n S 00001ff0,32\n";
        let costs = rounds(1, wide, wide);
        assert_eq!(costs.sections["reported"].in_turn, moves(2, 0));
        assert_eq!(costs.sections["own"].in_turn, moves(2, 0));
    }
}
