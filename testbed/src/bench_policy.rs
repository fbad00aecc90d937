//! What a decision costs: pick, count in what was sent, and take one report, for every policy, beside a
//! plain scan of a vector and a binary heap in the same run.
//!
//! Every subject keeps the same number of tasks outstanding, one and a half for each member, sends in
//! bursts as a leaf does, and hears of a random earlier task for each one that it sends. What the
//! surroundings cost by themselves is measured and taken off.

use std::hint::black_box;
use std::io::{self, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use rand::{Rng as _, SeedableRng};
use serde::Serialize;
use wedjat::limits::BURST;
use wedjat::policy::{CATALOGUE, Core, Dispatcher, Rng, Runs, Task};
use wedjat::state::{Load, Member, Report, View};

/// A measurement is repeated, and the least counts: whatever else the machine does only adds.
const REPEATS: usize = 7;
/// Random places, drawn before the clock starts.
const PLACES: usize = 1 << 14;
/// Decisions by which two runs under valgrind differ.
const COUNTED: u64 = 64 * BURST as u64;

/// Arguments of `bench-policy`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Members, a list
    #[arg(long, value_delimiter = ',', default_value = "32,128,512,1024,4096")]
    pub members: Vec<usize>,
    /// Policies, a list; all of them and the plain structures when not given
    #[arg(long)]
    pub policies: Option<String>,
    /// Time for each measurement, in milliseconds
    #[arg(long, default_value_t = 15)]
    pub millis: u64,
    /// Count instructions as well, with valgrind; takes minutes
    #[arg(long)]
    pub instructions: bool,
    /// Output: text or json
    #[arg(long, default_value = "text")]
    pub format: String,
    /// Only make that many decisions: what runs under valgrind
    #[arg(long, hide = true)]
    pub decisions: Option<u64>,
}

/// A policy's cost with so many members.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // each is what its name says
pub struct Cost {
    pub policy: String,
    pub members: usize,
    pub ns_per_decision: f64,
    /// None when they were not counted.
    pub instructions_per_decision: Option<f64>,
}

/// Something that chooses members.
trait Chooser {
    /// Chooses for a burst, counting each as sent.
    fn choose(&mut self, chosen: &mut [Option<u16>; BURST]);
    /// A member reports its queue.
    fn report(&mut self, member: u16, queue: u16);
}

/// A policy as a leaf runs it.
struct Policy(Dispatcher);

impl Chooser for Policy {
    #[inline]
    fn choose(&mut self, chosen: &mut [Option<u16>; BURST]) {
        let mut picks = [None; BURST];
        self.0.schedule(&[Task::default(); BURST], &mut picks);
        for (chosen, pick) in chosen.iter_mut().zip(picks) {
            *chosen = pick.map(|pick| pick.member.0);
        }
    }

    #[inline]
    fn report(&mut self, member: u16, queue: u16) {
        let report = Report { member: Member(member), load: Load::tasks(queue), service_ns: 1000 };
        self.0.reply(&report);
    }
}

/// Nothing: what the surroundings cost.
struct Nobody {
    next: u16,
    members: u16,
}

impl Chooser for Nobody {
    #[inline]
    fn choose(&mut self, chosen: &mut [Option<u16>; BURST]) {
        for chosen in chosen {
            self.next = if self.next + 1 < self.members { self.next + 1 } else { 0 };
            *chosen = Some(black_box(self.next));
        }
    }

    #[inline]
    fn report(&mut self, member: u16, queue: u16) {
        black_box((member, queue));
    }
}

/// The least of plain bytes, which the compiler turns into vector instructions; the first that has it
/// from a random place on.
struct Scan {
    queues: Vec<u8>,
    rng: Rng,
}

impl Scan {
    fn shortest(&mut self) -> usize {
        let least = self.queues.iter().copied().fold(u8::MAX, u8::min);
        let bits = u64::from(self.rng.next_u64() as u32);
        let start = ((bits * self.queues.len() as u64) >> 32) as usize;
        let (before, after) = self.queues.split_at(start);
        find(after, least).map_or_else(|| find(before, least).unwrap_or(0), |at| start + at)
    }
}

/// The first place of `value`, by blocks.
fn find(queues: &[u8], value: u8) -> Option<usize> {
    const BLOCK: usize = 32;
    for (number, block) in queues.chunks(BLOCK).enumerate() {
        if block.iter().fold(false, |found, &queue| found | (queue == value)) {
            return block.iter().position(|&queue| queue == value).map(|at| number * BLOCK + at);
        }
    }
    None
}

impl Chooser for Scan {
    fn choose(&mut self, chosen: &mut [Option<u16>; BURST]) {
        for chosen in chosen {
            let member = self.shortest();
            self.queues[member] = self.queues[member].saturating_add(1);
            *chosen = Some(member as u16);
        }
    }

    fn report(&mut self, member: u16, queue: u16) {
        self.queues[usize::from(member)] = queue.min(255) as u8;
    }
}

/// A binary heap of members by queue, with every member's place; ties by a random number.
struct Heap {
    heap: Vec<u16>,
    places: Vec<u16>,
    keys: Vec<u64>,
    rng: Rng,
}

impl Heap {
    fn new(members: usize, rng: Rng) -> Self {
        let all: Vec<u16> = (0..members as u16).collect();
        Self { heap: all.clone(), places: all, keys: vec![0; members], rng }
    }

    fn key(&self, at: usize) -> u64 {
        self.keys[usize::from(self.heap[at])]
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[usize::from(self.heap[a])] = a as u16;
        self.places[usize::from(self.heap[b])] = b as u16;
    }

    fn set(&mut self, member: u16, queue: u64) {
        self.keys[usize::from(member)] = queue << 32 | self.rng.next_u64() >> 32;
        let mut at = usize::from(self.places[usize::from(member)]);
        while at > 0 && self.key(at) < self.key((at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            if left < self.heap.len() && self.key(left) < self.key(least) {
                least = left;
            }
            if right < self.heap.len() && self.key(right) < self.key(least) {
                least = right;
            }
            if least == at {
                break;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

impl Chooser for Heap {
    fn choose(&mut self, chosen: &mut [Option<u16>; BURST]) {
        for chosen in chosen {
            let member = self.heap[0];
            self.set(member, (self.keys[usize::from(member)] >> 32) + 1);
            *chosen = Some(member);
        }
    }

    fn report(&mut self, member: u16, queue: u16) {
        self.set(member, queue.into());
    }
}

/// The members' side: which tasks are outstanding where.
struct Surroundings {
    outstanding: Vec<u16>,
    queues: Vec<u16>,
    places: Vec<u32>,
    next: usize,
    /// Tasks outstanding.
    target: usize,
}

impl Surroundings {
    fn new(members: usize, chooser: &mut impl Chooser) -> Self {
        let tasks = (members * 3 / 2).next_multiple_of(BURST);
        let mut rng = Rng::seed_from_u64(7);
        let places = (0..PLACES).map(|_| rng.next_u64() as u32).collect();
        let mut all = Self {
            outstanding: Vec::new(),
            queues: vec![0; members],
            places,
            next: 0,
            target: tasks,
        };
        // Central queues may be full before.
        for _ in 0..tasks / BURST {
            all.send_some(chooser);
        }
        all
    }

    /// A random outstanding task.
    #[inline]
    fn place(&mut self) -> usize {
        let bits = self.places[self.next % PLACES];
        self.next += 1;
        ((u64::from(bits) * self.outstanding.len() as u64) >> 32) as usize
    }

    /// A burst of decisions, and as many reports.
    #[inline]
    fn burst(&mut self, chooser: &mut impl Chooser) {
        let mut chosen = [None; BURST];
        chooser.choose(&mut chosen);
        for member in chosen.into_iter().flatten() {
            let place = self.place();
            let done = std::mem::replace(&mut self.outstanding[place], member);
            self.queues[usize::from(member)] += 1;
            self.queues[usize::from(done)] -= 1;
            chooser.report(done, self.queues[usize::from(done)]);
        }
        if chosen.contains(&None) {
            self.finish_some(chooser);
        } else if self.outstanding.len() < self.target {
            self.send_some(chooser);
        }
    }

    /// Sends a burst that nothing was answered for.
    fn send_some(&mut self, chooser: &mut impl Chooser) {
        let mut chosen = [None; BURST];
        chooser.choose(&mut chosen);
        for member in chosen.into_iter().flatten() {
            self.queues[usize::from(member)] += 1;
            self.outstanding.push(member);
        }
    }

    /// Answers a burst of tasks that nothing follows: room for held ones.
    fn finish_some(&mut self, chooser: &mut impl Chooser) {
        for _ in 0..BURST.min(self.outstanding.len().saturating_sub(1)) {
            let place = self.place();
            let done = self.outstanding.swap_remove(place);
            self.queues[usize::from(done)] -= 1;
            chooser.report(done, self.queues[usize::from(done)]);
        }
    }
}

/// What is done with a subject.
#[derive(Clone, Copy)]
enum Work {
    Time(Duration),
    Make(u64),
}

/// The least time of a decision in nanoseconds.
fn drive(mut chooser: impl Chooser, members: usize, task: Work) -> f64 {
    let mut around = Surroundings::new(members, &mut chooser);
    let mut bursts = |count: u64| {
        let started = Instant::now();
        (0..count).for_each(|_| around.burst(&mut chooser));
        started.elapsed()
    };
    match task {
        Work::Make(decisions) => {
            bursts(decisions / BURST as u64);
            0.0
        }
        Work::Time(time) => {
            let trial = bursts(64).max(Duration::from_nanos(1));
            let count = (64.0 * time.as_secs_f64() / trial.as_secs_f64() / REPEATS as f64) as u64;
            let count = count.max(16);
            let least = (0..REPEATS).map(|_| bursts(count)).min().unwrap_or_default();
            least.as_secs_f64() * 1e9 / (count * BURST as u64) as f64
        }
    }
}

/// A policy, or one of the structures beside them.
fn run(name: &str, members: usize, task: Work) -> Result<f64, String> {
    let rng = Rng::seed_from_u64(1);
    Ok(match name {
        "surroundings" => drive(Nobody { next: 0, members: members as u16 }, members, task),
        "vector-scan" => drive(Scan { queues: vec![0; members], rng }, members, task),
        "binary-heap" => drive(Heap::new(members, rng), members, task),
        _ => {
            let spec = name.parse().map_err(|error| format!("--policies: {error}"))?;
            let view = View::heap(members, 1).remove(0);
            let mut dispatcher = Dispatcher::new(&spec, view, Core::ONLY, 1);
            let rates: Vec<_> = (0..members).map(|member| 1.0 + (member % 2) as f64).collect();
            dispatcher.set_rates(&rates);
            drive(Policy(dispatcher), members, task)
        }
    })
}

/// Instructions of a decision, counted by valgrind: two runs of this program that differ by some.
fn instructions(name: &str, members: usize) -> Result<f64, String> {
    let collected = |decisions: u64| -> Result<f64, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args(["bench-policy", "--policies", name, "--members", &members.to_string()])
            .args(["--decisions", &decisions.to_string()])
            .output()
            .map_err(|error| format!("--instructions needs valgrind: {error}"))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines()
            .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
            .ok_or_else(|| format!("valgrind counted nothing:\n{text}"))
    };
    let (few, many) = (collected(COUNTED)?, collected(3 * COUNTED)?);
    Ok((many - few) / (2 * COUNTED) as f64)
}

/// Measures what the arguments ask for.
///
/// # Errors
/// When a name is unknown, a number out of range, or valgrind is missing.
pub fn costs(arguments: &Arguments) -> Result<Vec<Cost>, String> {
    let policies: Vec<String> = match &arguments.policies {
        Some(list) => crate::sim::plan::split(list).into_iter().map(str::to_owned).collect(),
        None => {
            let policies = CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine);
            let names = policies.map(|entry| entry.name).chain(["vector-scan", "binary-heap"]);
            names.map(str::to_owned).collect()
        }
    };
    if let Some(wrong) = arguments.members.iter().find(|members| !(2..=32_767).contains(*members)) {
        return Err(format!("--members {wrong}: from 2 to 32767 are allowed"));
    }
    let mut costs = Vec::new();
    for &members in &arguments.members {
        if let Some(decisions) = arguments.decisions {
            run(&policies[0], members, Work::Make(decisions))?;
            continue;
        }
        let time = Duration::from_millis(arguments.millis);
        let surroundings = run("surroundings", members, Work::Time(time))?;
        let around = match arguments.instructions {
            true => instructions("surroundings", members)?,
            false => 0.0,
        };
        for policy in &policies {
            let ns = run(policy, members, Work::Time(time))? - surroundings;
            let counted = match arguments.instructions {
                true => Some(round(instructions(policy, members)? - around)),
                false => None,
            };
            costs.push(Cost {
                policy: policy.clone(),
                members,
                ns_per_decision: round(ns),
                instructions_per_decision: counted,
            });
        }
    }
    Ok(costs)
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Measures and prints.
///
/// # Errors
/// As [`costs`], or when nothing can be written.
pub fn report(arguments: &Arguments, out: &mut impl Write) -> Result<(), String> {
    if !["text", "json"].contains(&arguments.format.as_str()) {
        return Err(format!("--format {}: allowed are text, json", arguments.format));
    }
    let costs = costs(arguments)?;
    let print = |out: &mut dyn Write| -> io::Result<()> {
        if arguments.format == "json" {
            for cost in &costs {
                serde_json::to_writer(&mut *out, cost)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        if costs.is_empty() {
            return Ok(());
        }
        write!(out, "{:16}", "ns a decision")?;
        arguments.members.iter().try_for_each(|members| write!(out, "{members:>14}"))?;
        writeln!(out)?;
        let policies = costs.len() / arguments.members.len();
        for row in 0..policies {
            write!(out, "{:16}", costs[row].policy)?;
            for cost in costs.iter().skip(row).step_by(policies) {
                let counted = cost.instructions_per_decision;
                let counted = counted.map_or(String::new(), |count| format!(" ({count:.0} i)"));
                write!(out, "{:>14}", format!("{:.1}{counted}", cost.ns_per_decision))?;
            }
            writeln!(out)?;
        }
        Ok(())
    };
    print(out).map_err(|error| format!("cannot write: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_beside_the_policies_are_right() {
        let mut scan = Scan { queues: vec![3; 100], rng: Rng::seed_from_u64(1) };
        scan.queues[70] = 1;
        let mut heap = Heap::new(100, Rng::seed_from_u64(1));
        (0..100).for_each(|member| heap.report(member, if member == 70 { 1 } else { 3 }));
        let mut chosen = [None; BURST];
        for chooser in [&mut scan as &mut dyn Chooser, &mut heap] {
            chooser.choose(&mut chosen);
            assert_eq!(chosen[..2], [Some(70), Some(70)]);
            assert!(chosen[2..].iter().filter(|chosen| **chosen == Some(70)).count() <= 2);
        }
    }

    #[test]
    fn every_policy_is_measured() {
        let arguments = Arguments {
            members: vec![4],
            policies: None,
            millis: 0,
            instructions: false,
            format: "json".to_owned(),
            decisions: None,
        };
        let costs = costs(&arguments).unwrap();
        assert!(costs.len() > 25);
        let mut out = Vec::new();
        let wrong = Arguments { format: "xml".to_owned(), ..arguments };
        assert!(report(&wrong, &mut out).unwrap_err().contains("text, json"));
    }
}
