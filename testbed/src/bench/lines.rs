//! Cost of several dispatcher cores in one leaf: cache lines that move between the cores, per packet.
//!
//! Few machines have counters for these moves, and clouds hide them. The benchmark therefore models them over
//! real addresses. The program runs itself under valgrind, whose tool lackey prints every memory access.
//! There, `workload` runs all cores of a leaf in one thread, a burst each in turn, and marks the current core
//! by stores to known words. `trace` splits the accesses by core. `coherence` models unlimited private caches
//! under MESI, the usual cache-coherence protocol. docs/explanation/performance.md has the results.
//!
//! A leaf is the scheduler process of a rack. Its dispatcher cores share a table of the workers' load reports.

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

use crate::sim::lists;
use trace::{Costs, LineCost, Map, Moves, OrderPair, Tracer};
pub use workload::Replies;
use workload::{CountedBursts, Failure, Plan};

/// Interval of reads of the trace. The pipe holds valgrind's output of a few intervals.
const READ_INTERVAL: Duration = Duration::from_millis(1);

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
    /// Core that receives a reply: the one that sent the task, or any; a list
    #[arg(long, value_delimiter = ',', default_value = "same,any")]
    pub replies: Vec<Replies>,
    /// Tasks in the system per worker; increased if cores would not receive full bursts of replies
    #[arg(long, default_value_t = 1.5, value_parser = outstanding)]
    pub outstanding: f64,
    /// Warm-up bursts per core
    #[arg(long, default_value_t = 32)]
    pub warm_up: usize,
    /// Measured bursts per core; a tick follows every 32
    #[arg(long, default_value_t = 32, value_parser = bursts)]
    pub bursts: usize,
    /// Number of most expensive lines to print, with the functions that move them
    #[arg(long, default_value_t = 0)]
    pub top: usize,
    /// Seed of load and policies
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only run the load: the part that runs under valgrind
    #[arg(long, hide = true)]
    pub traced: bool,
}

/// Parses a number from `min` to `max`.
fn within(text: &str, min: usize, max: usize) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| (min..=max).contains(value));
    value.ok_or_else(|| format!("from {min} to {max} are allowed"))
}

/// Parses a number of cores.
fn cores(text: &str) -> Result<usize, String> {
    within(text, 1, wedjat::limits::CORES_MAX)
}

/// Parses a number of bursts.
fn bursts(text: &str) -> Result<usize, String> {
    within(text, 1, 1 << 20)
}

/// Parses a number of tasks per worker.
fn outstanding(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(tasks) if (0.0..=1000.0).contains(&tasks) => Ok(tasks),
        _ => Err("a number from 0 to 1000 is needed".to_owned()),
    }
}

/// Moves of cache lines per packet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rates {
    /// Lines that came from another core.
    pub transfers: f64,
    /// Lines that the writing core had already, while other cores had to invalidate their copies.
    pub upgrades: f64,
}

impl Rates {
    /// Divides the moves by the number of packets.
    fn per_packet(moves: Moves, packets: u64) -> Self {
        let rate = |count: u64| count as f64 / packets.max(1) as f64;
        Self { transfers: rate(moves.transfers), upgrades: rate(moves.upgrades) }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} + {:.3}", self.transfers, self.upgrades))
    }
}

/// Moves per packet in both orders of execution that `trace` models. A real machine is between the two.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BothRates {
    /// Bursts of the cores one after another.
    pub in_turn: Rates,
    /// Bursts of all cores at the same time.
    pub at_once: Rates,
}

impl BothRates {
    /// Divides the moves of both orders by the number of packets.
    fn per_packet(both: OrderPair, packets: u64) -> Self {
        let OrderPair { in_turn, at_once } = both;
        Self {
            in_turn: Rates::per_packet(in_turn, packets),
            at_once: Rates::per_packet(at_once, packets),
        }
    }
}

/// An expensive line.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Section that contains the line.
    pub section: String,
    /// Offset in the section in bytes; outside all sections, the address.
    pub offset: u64,
    /// Moves per packet.
    pub lines: BothRates,
    /// Functions that moved the line most, with their shares.
    pub functions: Vec<(String, f64)>,
}

/// Result for one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the policy.
    pub policy: String,
    /// Number of workers.
    pub workers: u16,
    /// Number of dispatcher cores.
    pub cores: usize,
    /// Core that receives a reply.
    pub replies: Replies,
    /// Number of measured packets.
    pub packets: u64,
    /// Number of replies among them.
    pub reply_packets: u64,
    /// Moves per packet in total.
    pub lines: BothRates,
    /// Moves per packet by section of the state. `leaf` is each core's own structure, `wire` the packets and
    /// queues of the emulated device, `heap` the rest.
    pub sections: BTreeMap<String, BothRates>,
    /// Most expensive lines.
    pub top: Vec<Line>,
}

/// Measures and prints, row by row. In the process under valgrind, only runs the loads.
///
/// # Errors
/// If valgrind is missing, a load fails (for example its policy is unknown), or the output cannot be written.
pub fn report(arguments: &Arguments, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let mut is_first = true;
    for plan in plans(arguments) {
        if arguments.traced {
            workload::traced(plan, out)?;
            continue;
        }
        let row = row(&plan, arguments.top)?;
        if json {
            writeln!(out, "{}", serde_json::to_string(&row)?)?;
        } else {
            if std::mem::take(&mut is_first) {
                writeln!(out, "cache lines moved between cores per packet: transfers + upgrades")?;
                writeln!(out, "{}", heading())?;
            }
            writeln!(out, "{row}")?;
        }
        out.flush()?;
    }
    Ok(())
}

/// Returns one plan per combination of policy, workers, replies and cores.
fn plans(arguments: &Arguments) -> impl Iterator<Item = Plan> + '_ {
    let Arguments { outstanding, warm_up, bursts, seed, .. } = *arguments;
    let policies = lists::split(&arguments.policy).into_iter();
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
    let (costs, counts) = run(&mut valgrind)?;
    let CountedBursts { packets, replies } = counts;
    let sections = costs.sections.into_iter();
    Ok(Row {
        policy: plan.policy.clone(),
        workers: plan.workers,
        cores: plan.cores,
        replies: plan.replies,
        packets,
        reply_packets: replies,
        lines: BothRates::per_packet(costs.all, packets),
        sections: sections
            .map(|(name, both)| (name, BothRates::per_packet(both, packets)))
            .collect(),
        top: costs.lines.iter().take(top).map(|line| describe(line, packets)).collect(),
    })
}

/// Runs the load under valgrind and follows its trace. Valgrind writes the trace to stderr. The load writes its memory
/// map to stdout and waits for a line on stdin, so that the tracer has the map before the first burst. After the
/// bursts the load writes its packet counts.
fn run(valgrind: &mut Command) -> Result<(Costs, CountedBursts), Failure> {
    let pipes = valgrind.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        pipes.spawn().map_err(|error| format!("bench-lines needs valgrind: {error}"))?;
    let Child { stdin, stdout, stderr, .. } = &mut child;
    let (Some(stdin), Some(stdout), Some(trace)) = (stdin.take(), stdout.take(), stderr.take())
    else {
        return Err("no pipe to valgrind".into());
    };
    let map = OnceLock::new();
    let (counts, (tracer, messages)) = std::thread::scope(|scope| {
        let read_counts = scope.spawn(|| read_counts(stdin, stdout, &map));
        let result = follow(trace, &map);
        (read_counts.join(), result)
    });
    let status = child.wait()?;
    let counts = counts.ok().flatten().filter(|_| status.success());
    let (Some(counts), Some(tracer)) = (counts, tracer) else {
        return Err(format!("the load under valgrind failed ({status}):\n{messages}").into());
    };
    Ok((tracer.finish(), counts))
}

/// Reader that waits before each read, so that valgrind's single-line writes accumulate in the pipe and do
/// not each wake this process.
struct PipeReader<R>(R);

impl<R: Read> Read for PipeReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(READ_INTERVAL);
        self.0.read(into)
    }
}

/// Receives the map from the load, lets it continue, and receives the packet counts.
fn read_counts(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    map: &OnceLock<Map>,
) -> Option<CountedBursts> {
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next()?.ok()?;
    map.set(serde_json::from_str(&first).ok()?).ok()?;
    stdin.write_all(b"go on\n").ok()?;
    serde_json::from_str(&lines.next()?.ok()?).ok()
}

/// Models the trace from the arrival of the map on. Also returns all lines on the pipe that are no trace.
fn follow(trace: impl Read, map: &OnceLock<Map>) -> (Option<Tracer>, String) {
    let mut trace = BufReader::with_capacity(1 << 20, PipeReader(trace));
    let (mut tracer, mut messages, mut line) = (None, String::new(), Vec::new());
    while trace.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        match trace::event(&line) {
            Some(event) => {
                tracer = tracer.or_else(|| map.get().cloned().map(Tracer::new));
                tracer.iter_mut().for_each(|tracer| tracer.process(event));
            }
            None => messages += &String::from_utf8_lossy(&line),
        }
        line.clear();
    }
    (tracer, messages)
}

/// Maximum number of functions reported per line.
const FUNCTIONS: usize = 3;

/// Describes an expensive line, with the functions that moved it most.
fn describe(line: &LineCost, packets: u64) -> Line {
    let addresses: Vec<_> = line.instructions.keys().copied().collect();
    let all = line.instructions.values().sum::<u64>().max(1) as f64;
    let mut functions = BTreeMap::<String, u64>::new();
    for (address, name) in addresses.iter().zip(function_names(&addresses)) {
        *functions.entry(name).or_default() += line.instructions[address];
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    functions.truncate(FUNCTIONS);
    Line {
        section: line.section.clone(),
        offset: line.offset,
        lines: BothRates::per_packet(line.moves, packets),
        functions: functions.into_iter().map(|(name, count)| (name, count as f64 / all)).collect(),
    }
}

/// Finds the innermost functions of this program's instructions by addr2line. Falls back to the addresses.
fn function_names(addresses: &[u64]) -> Vec<String> {
    let digits: Vec<_> = addresses.iter().map(|address| format!("{address:#x}")).collect();
    let named = || {
        let program = std::env::current_exe().ok()?;
        let mut tool = Command::new("addr2line");
        let output = tool.args(["-fC", "-e"]).arg(program).args(&digits).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        // addr2line prints two lines per address: function, then file and line number.
        let lines: Vec<_> = text.lines().collect();
        let place = |lines: &[&str]| {
            let file = lines[1].split(" (").next().unwrap_or("");
            format!("{} {}", lines[0], file.rsplit('/').next().unwrap_or(""))
        };
        Some(lines.chunks_exact(2).map(place).collect::<Vec<_>>())
    };
    named().filter(|names| names.len() == addresses.len()).unwrap_or(digits)
}

/// Returns the heading of the table.
fn heading() -> String {
    let [policy, workers, cores, replies] = ["policy", "workers", "cores", "replies"];
    format!(
        "{policy:12} {workers:>7} {cores:>5} {replies:7} {:>15} {:>15}  sections, in turn",
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
            // Omits sections that round to 0. Always shows the device's lines: each belongs to one core, so that any
            // other value than 0 is an error of the benchmark.
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
