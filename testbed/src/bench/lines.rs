//! What several dispatcher cores of one leaf cost each other: cache lines that move between them, for each packet.
//!
//! Machines seldom have counters for it, and clouds never show them, so it is modelled over real addresses. This program runs
//! itself under valgrind, whose tool lackey prints every access to memory; there `workload` has the cores of one leaf take
//! bursts by turns in one thread, and tells whose turn it is by stores to known words. `trace` splits the accesses by core and
//! feeds them to `coherence`, a model of private caches under MESI that are never too small. docs/results.md has what is found.

mod coherence;
mod trace;
mod workload;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::sim::plan;
use trace::{Both, Costs, LineCost, Map, Moves, Tracer};
pub use workload::Replies;
use workload::{Failure, Passed, Plan};

/// Between two looks at the trace; a pipe has room for what valgrind writes in a few of them.
const GATHERING: Duration = Duration::from_millis(1);

/// Arguments of `bench-lines`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Dispatcher cores, a list
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16", value_parser = cores)]
    pub cores: Vec<usize>,
    /// Workers, a list
    #[arg(long, value_delimiter = ',', default_value = "32,1024", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub workers: Vec<u16>,
    /// Policies, a list
    #[arg(long, default_value = "horus,jsq,lsq-smart,cfcfs")]
    pub policy: String,
    /// Which core a reply reaches: the one that sent the task, or any; a list
    #[arg(long, value_delimiter = ',', default_value = "same,any")]
    pub replies: Vec<Replies>,
    /// Tasks in the system for each worker; more where cores would not get full bursts of replies
    #[arg(long, default_value_t = 1.5)]
    pub outstanding: f64,
    /// Bursts of each core before those that count
    #[arg(long, default_value_t = 32)]
    pub warm_up: usize,
    /// Bursts of each core that count; a tick comes every 32
    #[arg(long, default_value_t = 32, value_parser = bursts)]
    pub bursts: usize,
    /// Print so many lines that cost most, with the functions in which they move
    #[arg(long, default_value_t = 0)]
    pub top: usize,
    /// Seed of load and policies
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only make the load: what runs under valgrind
    #[arg(long, hide = true)]
    pub traced: bool,
}

fn within(text: &str, from: usize, to: usize) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| (from..=to).contains(value));
    value.ok_or_else(|| format!("from {from} to {to} are allowed"))
}

fn cores(text: &str) -> Result<usize, String> {
    within(text, 1, wedjat::limits::CORES_MAX)
}

fn bursts(text: &str) -> Result<usize, String> {
    within(text, 1, 1 << 20)
}

/// Lines a packet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// That came from another core.
    pub transfers: f64,
    /// That others had to give up, while the core that writes had them already.
    pub upgrades: f64,
}

impl Rates {
    fn of(moves: Moves, packets: u64) -> Self {
        let rate = |count: u64| count as f64 / packets.max(1) as f64;
        Self { transfers: rate(moves.transfers), upgrades: rate(moves.upgrades) }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} + {:.3}", self.transfers, self.upgrades))
    }
}

/// Lines a packet in both orders: see `trace`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BothRates {
    /// Bursts of cores one after another.
    pub in_turn: Rates,
    /// Bursts of all cores at the same time.
    pub at_once: Rates,
}

impl BothRates {
    fn of(both: Both, packets: u64) -> Self {
        let Both { in_turn, at_once } = both;
        Self { in_turn: Rates::of(in_turn, packets), at_once: Rates::of(at_once, packets) }
    }
}

/// A line that cost much.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The section that it lies in.
    pub section: String,
    /// Its offset in there, in bytes; its address in no section.
    pub offset: u64,
    /// What it cost a packet.
    pub lines: BothRates,
    /// The functions that moved it most, with their share.
    pub functions: Vec<(String, f64)>,
}

/// What was found for one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// Workers.
    pub workers: u16,
    /// Dispatcher cores.
    pub cores: usize,
    /// Which core a reply reaches.
    pub replies: Replies,
    /// Packets that counted.
    pub packets: u64,
    /// Replies among them.
    pub reply_packets: u64,
    /// All of it, a packet.
    pub lines: BothRates,
    /// The same by section of the state; `leaf` is what a core keeps in its own structure, `wire` packets and queues of the
    /// emulated device, `heap` all else.
    pub sections: BTreeMap<String, BothRates>,
    /// The lines that cost most.
    pub top: Vec<Line>,
}

/// Measures and prints, a row at a time.
///
/// # Errors
/// When valgrind is missing, a policy is unknown, or nothing can be written.
pub fn report(arguments: &Arguments, json: bool, to: &mut impl Write) -> Result<(), Failure> {
    let mut is_first = true;
    for plan in plans(arguments) {
        if arguments.traced {
            workload::traced(plan, to)?;
            continue;
        }
        let row = row(&plan, arguments.top)?;
        if json {
            writeln!(to, "{}", serde_json::to_string(&row)?)?;
        } else {
            if std::mem::take(&mut is_first) {
                writeln!(to, "lines that move between cores, a packet: transfers + upgrades")?;
                writeln!(to, "{}", heading())?;
            }
            writeln!(to, "{row}")?;
        }
        to.flush()?;
    }
    Ok(())
}

fn plans(arguments: &Arguments) -> impl Iterator<Item = Plan> + '_ {
    let Arguments { outstanding, warm_up, bursts, seed, .. } = *arguments;
    let policies = plan::split(&arguments.policy).into_iter();
    policies.flat_map(move |policy| {
        arguments.workers.iter().flat_map(move |&workers| {
            arguments.replies.iter().flat_map(move |&replies| {
                arguments.cores.iter().map(move |&cores| Plan {
                    cores,
                    workers,
                    policy: policy.to_owned(),
                    replies,
                    outstanding,
                    warm_up,
                    bursts,
                    seed,
                })
            })
        })
    })
}

/// Traces and models one load.
fn row(plan: &Plan, top: usize) -> Result<Row, Failure> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=lackey", "--trace-mem=yes"]).arg(std::env::current_exe()?);
    valgrind.args(["bench-lines", "--traced", "--policy", &plan.policy]);
    valgrind.args(["--replies", if plan.replies == Replies::Same { "same" } else { "any" }]);
    let numbers = [
        ("--cores", plan.cores as u64),
        ("--workers", plan.workers.into()),
        ("--warm-up", plan.warm_up as u64),
        ("--bursts", plan.bursts as u64),
        ("--seed", plan.seed),
    ];
    for (flag, value) in numbers {
        valgrind.arg(flag).arg(value.to_string());
    }
    valgrind.arg("--outstanding").arg(plan.outstanding.to_string());
    let (costs, passed) = run(&mut valgrind)?;
    let Passed { packets, replies } = passed;
    let sections = costs.sections.into_iter();
    Ok(Row {
        policy: plan.policy.clone(),
        workers: plan.workers,
        cores: plan.cores,
        replies: plan.replies,
        packets,
        reply_packets: replies,
        lines: BothRates::of(costs.all, packets),
        sections: sections.map(|(name, both)| (name, BothRates::of(both, packets))).collect(),
        top: costs.lines.iter().take(top).map(|line| describe(line, packets)).collect(),
    })
}

/// Runs the load under valgrind and follows its trace.
fn run(valgrind: &mut Command) -> Result<(Costs, Passed), Failure> {
    let pipes = valgrind.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        pipes.spawn().map_err(|error| format!("bench-lines needs valgrind: {error}"))?;
    let Child { stdin, stdout, stderr, .. } = &mut child;
    let (Some(stdin), Some(stdout), Some(trace)) = (stdin.take(), stdout.take(), stderr.take())
    else {
        return Err("no pipe to valgrind".into());
    };
    let map = OnceLock::new();
    let (passed, (tracer, said)) = std::thread::scope(|scope| {
        let talk = scope.spawn(|| talk(stdin, stdout, &map));
        let followed = follow(trace, &map);
        (talk.join(), followed)
    });
    let status = child.wait()?;
    let passed = passed.ok().flatten().filter(|_| status.success());
    let (Some(passed), Some(tracer)) = (passed, tracer) else {
        return Err(format!("the load under valgrind failed ({status}):\n{said}").into());
    };
    Ok((tracer.finish(), passed))
}

/// Reads what has gathered in a pipe meanwhile: who writes a line at a time is not interrupted after each.
struct Gathered<R>(R);

impl<R: Read> Read for Gathered<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(GATHERING);
        self.0.read(into)
    }
}

/// Takes the map from the load, lets it go on, and takes what passed.
fn talk(mut stdin: ChildStdin, stdout: ChildStdout, map: &OnceLock<Map>) -> Option<Passed> {
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next()?.ok()?;
    map.set(serde_json::from_str(&first).ok()?).ok()?;
    stdin.write_all(b"go on\n").ok()?;
    serde_json::from_str(&lines.next()?.ok()?).ok()
}

/// Follows the trace from where the map is known; and what else was said in it.
fn follow(trace: impl Read, map: &OnceLock<Map>) -> (Option<Tracer>, String) {
    let mut trace = BufReader::with_capacity(1 << 20, Gathered(trace));
    let (mut tracer, mut said, mut line) = (None, String::new(), Vec::new());
    while trace.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        match trace::event(&line) {
            Some(event) => {
                tracer = tracer.or_else(|| map.get().cloned().map(Tracer::new));
                tracer.iter_mut().for_each(|tracer| tracer.take(event));
            }
            None => said += &String::from_utf8_lossy(&line),
        }
        line.clear();
    }
    (tracer, said)
}

/// Functions that are named of a line, at most.
const FUNCTIONS: usize = 3;

fn describe(line: &LineCost, packets: u64) -> Line {
    let addresses: Vec<_> = line.instructions.keys().copied().collect();
    let all = line.instructions.values().sum::<u64>().max(1) as f64;
    let mut functions = BTreeMap::<String, u64>::new();
    for (address, name) in addresses.iter().zip(names(&addresses)) {
        *functions.entry(name).or_default() += line.instructions[address];
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    functions.truncate(FUNCTIONS);
    Line {
        section: line.section.clone(),
        offset: line.offset,
        lines: BothRates::of(line.moves, packets),
        functions: functions.into_iter().map(|(name, count)| (name, count as f64 / all)).collect(),
    }
}

/// The innermost functions of instructions of this program, by addr2line; their addresses where that is not to be had.
fn names(addresses: &[u64]) -> Vec<String> {
    let digits: Vec<_> = addresses.iter().map(|address| format!("{address:#x}")).collect();
    let named = || {
        let program = std::env::current_exe().ok()?;
        let mut tool = Command::new("addr2line");
        let output = tool.args(["-fC", "-e"]).arg(program).args(&digits).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        // A line has the function, the next file and line number.
        let lines: Vec<_> = text.lines().collect();
        let place = |lines: &[&str]| {
            let file = lines[1].split(" (").next().unwrap_or("");
            format!("{} {}", lines[0], file.rsplit('/').next().unwrap_or(""))
        };
        Some(lines.chunks_exact(2).map(place).collect::<Vec<_>>())
    };
    named().filter(|names| names.len() == addresses.len()).unwrap_or(digits)
}

fn heading() -> String {
    let [policy, workers, cores, replies] = ["policy", "workers", "cores", "replies"];
    format!(
        "{policy:12} {workers:>7} {cores:>5} {replies:7} {:>15} {:>15}  where, in turn",
        "in turn", "at once"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, workers, cores, lines, .. } = self;
        let replies = if self.replies == Replies::Same { "same" } else { "any" };
        let (in_turn, at_once) = (lines.in_turn, lines.at_once);
        write!(f, "{policy:12} {workers:>7} {cores:>5} {replies:7} {in_turn:>15} {at_once:>15} ")?;
        let mut sections: Vec<_> = self.sections.iter().collect();
        let sum = |rates: Rates| rates.transfers + rates.upgrades;
        sections.sort_by(|a, b| sum(b.1.in_turn).total_cmp(&sum(a.1.in_turn)));
        for (name, rates) in sections {
            // The device's own are always told: they are to be 0.
            if name == "wire" || sum(rates.in_turn) >= 0.0005 {
                write!(f, " {name} {},", rates.in_turn)?;
            }
        }
        for line in &self.top {
            let Line { section, offset, lines, functions } = line;
            let (in_turn, at_once) = (lines.in_turn, lines.at_once);
            write!(f, "\n  {section} at {offset:#x}: {in_turn}; at once {at_once};")?;
            for (name, share) in functions {
                write!(f, " {:.0}% {name},", share * 100.0)?;
            }
        }
        Ok(())
    }
}
