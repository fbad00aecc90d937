//! Cost of a scheduling decision: pick a member (worker), count the sent task, and process one report of a
//! member's queue length. Measures the policies that choose workers, a plain scan of a vector and a binary heap in
//! the same run.
//!
//! A sampling policy also reads the queues of two more members for each decision. Each plain structure is
//! therefore measured twice: by itself, and as `-sampling-2`, which samples in the same way before each
//! choice.
//!
//! Every subject keeps the same number of tasks outstanding: one and a half per member, or a burst less than
//! its bound allows. It sends in bursts like a leaf, and receives a report of a random earlier task for each
//! task it sends. Both are timed per burst. The cost of the clock and of an empty call is measured and
//! subtracted.
//!
//! valgrind counts the instructions in a second run of this program. The same counts for an empty subject,
//! that is, for the surrounding loop, are subtracted.

use std::hint::black_box;
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rand::{Rng as _, SeedableRng};
use serde::Serialize;
use wedjat::limits::BURST;
use wedjat::policy::{CATALOGUE, Core, Dispatcher, Pick, Rng, Runs, Task};
use wedjat::state::{Load, Member, Report, View};

/// Repetitions of a measurement. The minimum counts, because disturbances only add time. Each round covers
/// all subjects, since a shared machine may be slow for a second or more.
const ROUNDS: usize = 7;
/// Number of measurements of a subject in a row, in each round.
const REPEATS: usize = 3;
/// Number of random values that select tasks to complete. They are drawn before the clock starts.
const DRAWS: usize = 1 << 14;
/// Number of decisions for which valgrind counts instructions.
const COUNTED: u64 = 64 * BURST as u64;

/// Arguments of `bench-policy`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Members, a list
    #[arg(long, value_delimiter = ',', default_value = "32,128,512,1024,4096")]
    pub members: Vec<usize>,
    /// Policies, a list [default: all, and the plain structures]
    #[arg(long)]
    pub policies: Option<String>,
    /// Time for each measurement in milliseconds
    #[arg(long, default_value_t = 15)]
    pub millis: u64,
    /// Also count instructions with valgrind: auto (if it is installed), yes or no
    #[arg(long, num_args = 0..=1, default_value = "auto", default_missing_value = "yes")]
    pub instructions: InstructionCounting,
    /// Output: text or json
    #[arg(long, default_value = "text")]
    pub format: String,
    /// Only make this number of decisions: the part that runs under valgrind
    #[arg(long, hide = true)]
    pub decisions: Option<u64>,
}

/// Condition for counting instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InstructionCounting {
    /// Count if valgrind is installed.
    Auto,
    /// Always count; fail without valgrind.
    Yes,
    /// Never count.
    No,
}

/// Cost of a policy for a number of members.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // names are self-explanatory
pub struct Cost {
    pub policy: String,
    pub members: usize,
    pub ns_per_decision: f64,
    /// Time without the report.
    pub pick_ns: f64,
    /// `None` if not counted.
    pub instructions_per_decision: Option<f64>,
}

/// A subject of the benchmark: chooses members.
trait Chooser {
    /// Chooses for a burst and counts each task as sent.
    fn choose(&mut self, chosen: &mut [Option<Pick>; BURST]);
    /// Processes members' reports of their queues.
    fn report(&mut self, reports: &[Report]);
}

/// Builds a member's report of its queue, with a service time of 1 us.
fn report_of(member: u16, queue: u16) -> Report {
    Report::new(Member(member), Load::tasks(queue), 1000)
}

/// Returns a report's member and queue, as the plain structures need them. Loads have 16 bits after the point.
fn plain(report: &Report) -> (u16, u16) {
    (report.member.0, (report.load.0 >> 16) as u16)
}

/// Builds a choice of a plain structure.
fn pick(member: u16) -> Option<Pick> {
    Some(Pick { member: Member(member), idle: false })
}

/// A policy in the form that a leaf runs.
struct Policy(Dispatcher);

impl Chooser for Policy {
    #[inline]
    fn choose(&mut self, chosen: &mut [Option<Pick>; BURST]) {
        self.0.schedule(&[Task::default(); BURST], chosen);
    }

    #[inline]
    fn report(&mut self, reports: &[Report]) {
        self.0.reply_run(reports);
    }
}

/// Subject without work, for the cost of the surrounding loop. Chooses the members in turn.
struct NullPolicy {
    /// Last chosen member.
    next: u16,
    /// Number of members.
    members: u16,
}

impl Chooser for NullPolicy {
    #[inline]
    fn choose(&mut self, chosen: &mut [Option<Pick>; BURST]) {
        for slot in chosen {
            self.next = if self.next + 1 < self.members { self.next + 1 } else { 0 };
            *slot = pick(black_box(self.next));
        }
    }

    #[inline]
    fn report(&mut self, reports: &[Report]) {
        black_box(reports);
    }
}

/// Baseline for the policies: a data structure that ranks members by their queues, without a dispatcher.
trait Plain {
    /// Chooses the best member of the structure and adds a task to its queue.
    fn take(&mut self) -> u16;
    /// Sets the queue of a member.
    fn set_queue(&mut self, member: u16, queue: u16);
    /// Returns true if the member's queue already has this value.
    fn has_queue(&self, member: u16, queue: u16) -> bool;
}

impl<P: Plain> Chooser for P {
    fn choose(&mut self, chosen: &mut [Option<Pick>; BURST]) {
        for slot in chosen {
            *slot = pick(self.take());
        }
    }

    fn report(&mut self, reports: &[Report]) {
        for (member, queue) in reports.iter().map(plain) {
            self.set_queue(member, queue);
        }
    }
}

/// Names of the plain structures.
const PLAIN: [&str; 4] =
    ["vector-scan", "vector-scan-by-speed", "binary-heap", "binary-heap-by-speed"];

/// Suffix of the names of sampling structures.
const SAMPLING: &str = "-sampling-2";

/// Plain structure that samples two distinct random members before each choice. Like the sampling policies on
/// a leaf, it reads its own counts of outstanding tasks, and updates the structure only if a count has
/// changed.
struct Sampling<P> {
    /// The structure.
    plain: P,
    /// Number of outstanding tasks (sent and not yet completed) at each member.
    outstanding: Vec<u16>,
    rng: Rng,
}

impl<P: Plain> Sampling<P> {
    /// Draws two distinct members and updates their queues in the structure.
    #[inline(always)]
    fn sample(&mut self) {
        let (bits, members) = (self.rng.next_u64(), self.outstanding.len() as u64);
        // Scales each half of the random bits to an index.
        let first = ((bits & 0xFFFF_FFFF) * members) >> 32;
        let second = ((bits >> 32) * (members - 1)) >> 32;
        // Indices from the first one on move up by one, so that both differ.
        for member in [first, second + u64::from(second >= first)] {
            let queue = self.outstanding[member as usize];
            if !self.plain.has_queue(member as u16, queue) {
                self.plain.set_queue(member as u16, queue);
            }
        }
    }
}

impl<P: Plain> Chooser for Sampling<P> {
    fn choose(&mut self, chosen: &mut [Option<Pick>; BURST]) {
        for slot in chosen {
            self.sample();
            let member = self.plain.take();
            self.outstanding[usize::from(member)] += 1;
            *slot = pick(member);
        }
    }

    fn report(&mut self, reports: &[Report]) {
        for (member, queue) in reports.iter().map(plain) {
            self.outstanding[usize::from(member)] -= 1;
            self.plain.set_queue(member, queue);
        }
    }
}

/// Slice aligned to a cache line. Otherwise, the allocator would decide whether vectors straddle lines.
struct Aligned<T> {
    /// Padding, then the values of the slice.
    all: Vec<T>,
    /// Index of the first value that belongs to the slice. The values before it are padding.
    start: usize,
}

impl<T: Clone> Aligned<T> {
    /// Copies the values behind padding up to the next cache line.
    fn new(values: &[T]) -> Self {
        const LINE: usize = 64;
        let mut all: Vec<T> = Vec::with_capacity(values.len() + LINE / size_of::<T>());
        let start = all.as_ptr().align_offset(LINE);
        // Padding up to the aligned address. The capacity suffices, so that the vector never moves.
        all.extend(values.iter().take(1).cycle().take(start).cloned());
        all.extend_from_slice(values);
        Self { all, start }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.all[self.start..]
    }
}

impl<T> DerefMut for Aligned<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.start..]
    }
}

/// Array of queues, one byte each. A scan with the machine's widest vectors that `pulp` supports finds the minimum.
/// Ties go to the first minimum from a random index, which is cheaper than a uniform choice.
struct Scan {
    /// Queue of each member; 255 stands for longer ones, too.
    queues: Aligned<u8>,
    /// Vector instructions of this machine.
    vectors: pulp::Arch,
    rng: Rng,
}

impl Scan {
    /// Returns the member with the shortest queue.
    fn shortest(&mut self) -> usize {
        let queues = &*self.queues;
        let least = self.vectors.dispatch(|| queues.iter().copied().fold(u8::MAX, u8::min));
        // Scales 32 random bits to an index.
        let bits = u64::from(self.rng.next_u64() as u32);
        let start = ((bits * queues.len() as u64) >> 32) as usize;
        let (before, after) = queues.split_at(start);
        match memchr::memchr(least, after) {
            Some(index) => start + index,
            None => memchr::memchr(least, before).unwrap_or(0),
        }
    }
}

impl Plain for Scan {
    #[inline]
    fn take(&mut self) -> u16 {
        let member = self.shortest();
        self.queues[member] = self.queues[member].saturating_add(1);
        member as u16
    }

    #[inline]
    fn set_queue(&mut self, member: u16, queue: u16) {
        self.queues[usize::from(member)] = queue.min(255) as u8;
    }

    #[inline]
    fn has_queue(&self, member: u16, queue: u16) -> bool {
        u16::from(self.queues[usize::from(member)]) == queue.min(255)
    }
}

/// Like [`Scan`], but ranks members by the time that the next task takes there, (queue + 1) / speed. A slow
/// member has half the speed of a fast one, so that all times are whole numbers.
struct SpeedScan {
    /// Time of the next task at each member.
    times: Aligned<u16>,
    /// True for each member of half the speed.
    slow: Vec<bool>,
    /// Vector instructions of this machine.
    vectors: pulp::Arch,
    rng: Rng,
}

impl SpeedScan {
    /// Returns the time of the next task at a member, in units of a fast member's service time.
    fn time(&self, member: u16, queue: u16) -> u16 {
        (queue + 1) << u16::from(self.slow[usize::from(member)])
    }

    /// Returns the member where the next task takes the least time.
    fn soonest(&mut self) -> usize {
        let times = &*self.times;
        // Scales 32 random bits to an index.
        let bits = u64::from(self.rng.next_u64() as u32);
        let start = ((bits * times.len() as u64) >> 32) as usize;
        self.vectors.dispatch(|| {
            let least = times.iter().copied().fold(u16::MAX, u16::min);
            let (before, after) = times.split_at(start);
            find(after, least)
                .map_or_else(|| find(before, least).unwrap_or(0), |index| start + index)
        })
    }
}

/// Returns the first index of `value`. Compares a block at a time. `memchr` searches only bytes.
#[inline(always)]
fn find(times: &[u16], value: u16) -> Option<usize> {
    const BLOCK: usize = 32;
    for (number, block) in times.chunks(BLOCK).enumerate() {
        // Without an early exit, the compiler compares the whole block with vector instructions.
        if block.iter().fold(false, |found, &time| found | (time == value)) {
            return block
                .iter()
                .position(|&time| time == value)
                .map(|offset| number * BLOCK + offset);
        }
    }
    None
}

impl Plain for SpeedScan {
    #[inline]
    fn take(&mut self) -> u16 {
        let member = self.soonest();
        self.times[member] += 1 << u16::from(self.slow[member]);
        member as u16
    }

    #[inline]
    fn set_queue(&mut self, member: u16, queue: u16) {
        self.times[usize::from(member)] = self.time(member, queue);
    }

    #[inline]
    fn has_queue(&self, member: u16, queue: u16) -> bool {
        self.times[usize::from(member)] == self.time(member, queue)
    }
}

/// Binary heap of members by (queue + 1) / speed. The root is the best member. Random numbers break ties.
struct Heap {
    /// Members in heap order.
    heap: Vec<u16>,
    /// Index of each member in the heap.
    places: Vec<u16>,
    /// Key of each member: the time of its next task in the upper half, a random number in the lower half.
    keys: Vec<u64>,
    /// Service time of a task at each member. If all are equal, the heap ranks by queue.
    times: Vec<u64>,
    rng: Rng,
}

impl Heap {
    /// Creates the heap of idle members with these service times.
    fn new(times: Vec<u64>, rng: Rng) -> Self {
        let members: Vec<u16> = (0..times.len() as u16).collect();
        let mut heap = Self {
            heap: members.clone(),
            places: members.clone(),
            keys: vec![0; members.len()],
            times,
            rng,
        };
        members.into_iter().for_each(|member| heap.set(member, heap.times[usize::from(member)]));
        heap
    }

    /// Returns the key at an index of the heap.
    fn key(&self, index: usize) -> u64 {
        self.keys[usize::from(self.heap[index])]
    }

    /// Swaps two members in the heap.
    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[usize::from(self.heap[a])] = a as u16;
        self.places[usize::from(self.heap[b])] = b as u16;
    }

    /// Sets the time of a member's next task. Moves the member up, then down, to its place in the heap.
    fn set(&mut self, member: u16, time: u64) {
        self.keys[usize::from(member)] = time << 32 | self.rng.next_u64() >> 32;
        let mut index = usize::from(self.places[usize::from(member)]);
        while index > 0 && self.key(index) < self.key((index - 1) / 2) {
            self.swap(index, (index - 1) / 2);
            index = (index - 1) / 2;
        }
        loop {
            let (left, right) = (2 * index + 1, 2 * index + 2);
            let mut least = index;
            if left < self.heap.len() && self.key(left) < self.key(least) {
                least = left;
            }
            if right < self.heap.len() && self.key(right) < self.key(least) {
                least = right;
            }
            if least == index {
                break;
            }
            self.swap(index, least);
            index = least;
        }
    }
}

impl Plain for Heap {
    #[inline]
    fn take(&mut self) -> u16 {
        let member = self.heap[0];
        let index = usize::from(member);
        self.set(member, (self.keys[index] >> 32) + self.times[index]);
        member
    }

    #[inline]
    fn set_queue(&mut self, member: u16, queue: u16) {
        self.set(member, (u64::from(queue) + 1) * self.times[usize::from(member)]);
    }

    #[inline]
    fn has_queue(&self, member: u16, queue: u16) -> bool {
        let index = usize::from(member);
        self.keys[index] >> 32 == (u64::from(queue) + 1) * self.times[index]
    }
}

/// Emulated members with their outstanding tasks.
struct EmulatedMembers {
    /// Member of each outstanding task.
    outstanding: Vec<u16>,
    /// Number of tasks at each member.
    queues: Vec<u16>,
    /// Random values, used in turn.
    draws: Vec<u32>,
    /// Number of used random values.
    next: usize,
    /// Target number of outstanding tasks between bursts.
    target: usize,
}

impl EmulatedMembers {
    /// Creates the members and sends tasks up to the target: one and a half per member.
    fn new(members: usize, chooser: &mut impl Chooser) -> Self {
        let tasks = (members * 3 / 2).next_multiple_of(BURST);
        let mut rng = Rng::seed_from_u64(7);
        let draws = (0..DRAWS).map(|_| rng.next_u64() as u32).collect();
        let mut emulated = Self {
            outstanding: Vec::new(),
            queues: vec![0; members],
            draws,
            next: 0,
            target: tasks,
        };
        // Bounded policies may refuse tasks before the target is reached.
        for _ in 0..tasks / BURST {
            emulated.send_burst(chooser);
        }
        emulated
    }

    /// Returns the index of a random outstanding task.
    #[inline]
    fn random_task(&mut self) -> usize {
        let bits = self.draws[self.next % DRAWS];
        self.next += 1;
        ((u64::from(bits) * self.outstanding.len() as u64) >> 32) as usize
    }

    /// Runs a burst of decisions and the same number of reports. Adds the time of both to `spent`.
    #[inline]
    fn burst(&mut self, chooser: &mut impl Chooser, spent: &mut TimeSpent) {
        let mut chosen = [None; BURST];
        let started = Instant::now();
        chooser.choose(&mut chosen);
        spent.picks += started.elapsed();
        let mut reports = [report_of(0, 0); BURST];
        let sent = self.answer(&chosen, &mut reports);
        let started = Instant::now();
        chooser.report(&reports[..sent]);
        spent.reports += started.elapsed();
        spent.chosen += sent as u64;
        if sent < BURST {
            // All workers of a bounded policy are full. Removing one burst of tasks makes room, so that its
            // next choices succeed.
            self.finish_burst(chooser);
            self.target = self.outstanding.len();
        } else if self.outstanding.len() < self.target {
            self.send_burst(chooser);
        }
    }

    /// Counts the chosen tasks as sent, and completes one random earlier task for each of them. Writes a
    /// report for each completed task and returns their number.
    #[inline]
    fn answer(&mut self, chosen: &[Option<Pick>], reports: &mut [Report; BURST]) -> usize {
        let mut sent = 0;
        for Pick { member: Member(member), .. } in chosen.iter().copied().flatten() {
            let index = self.random_task();
            let done = std::mem::replace(&mut self.outstanding[index], member);
            self.queues[usize::from(member)] += 1;
            self.queues[usize::from(done)] -= 1;
            // `sent` is below BURST. The remainder proves it to the compiler, which then omits the bounds check.
            reports[sent % BURST] = report_of(done, self.queues[usize::from(done)]);
            sent += 1;
        }
        sent
    }

    /// Sends a burst without completing tasks.
    fn send_burst(&mut self, chooser: &mut impl Chooser) {
        let mut chosen = [None; BURST];
        chooser.choose(&mut chosen);
        for Pick { member: Member(member), .. } in chosen.into_iter().flatten() {
            self.queues[usize::from(member)] += 1;
            self.outstanding.push(member);
        }
    }

    /// Completes a burst of tasks and sends none, which makes room for new tasks. Keeps at least one task, because
    /// `answer` completes an earlier task for each new one.
    fn finish_burst(&mut self, chooser: &mut impl Chooser) {
        for _ in 0..BURST.min(self.outstanding.len().saturating_sub(1)) {
            let index = self.random_task();
            let done = self.outstanding.swap_remove(index);
            self.queues[usize::from(done)] -= 1;
            chooser.report(&[report_of(done, self.queues[usize::from(done)])]);
        }
    }
}

/// Work to do with a subject.
#[derive(Clone, Copy)]
enum Work {
    /// Measure for about this time.
    Time(Duration),
    /// Make this number of decisions between two marks for valgrind.
    Make(u64),
}

/// Time spent on choices and on reports.
#[derive(Clone, Copy, Default)]
struct TimeSpent {
    picks: Duration,
    reports: Duration,
    /// Number of tasks with a chosen member. Bounded policies refuse tasks while all members are full.
    chosen: u64,
}

/// Time of a decision in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    /// Time with the report.
    all: f64,
    /// Time of choosing and counting only.
    pick: f64,
}

impl Times {
    /// Start value of a search for the minimum.
    const NONE: Self = Self { all: f64::INFINITY, pick: f64::INFINITY };

    /// Returns the minimum of each time.
    fn least(self, other: Self) -> Self {
        Self { all: self.all.min(other.all), pick: self.pick.min(other.pick) }
    }
}

/// Drives one subject: makes the decisions for valgrind and returns zeros, or returns the minimum times of a decision.
fn drive(mut chooser: impl Chooser, members: usize, work: Work) -> Times {
    let mut emulated = EmulatedMembers::new(members, &mut chooser);
    let mut bursts = |count: u64| {
        let mut spent = TimeSpent::default();
        (0..count).for_each(|_| emulated.burst(&mut chooser, &mut spent));
        spent
    };
    match work {
        Work::Make(decisions) => {
            // Warm-up, which is not counted.
            bursts(64);
            mark();
            bursts(decisions / BURST as u64);
            mark();
            Times::default()
        }
        Work::Time(time) => {
            // A trial determines how many bursts fill this measurement's part of the time. It also warms the caches.
            let started = Instant::now();
            bursts(64);
            let trial = started.elapsed().as_secs_f64().max(1e-9);
            let part = time.as_secs_f64() / (ROUNDS * REPEATS) as f64;
            let count = ((64.0 * part / trial) as u64).max(16);
            let all: Vec<TimeSpent> = (0..REPEATS).map(|_| bursts(count)).collect();
            let each = |spent: fn(&TimeSpent) -> Duration| {
                let ns =
                    |one: &TimeSpent| spent(one).as_secs_f64() * 1e9 / one.chosen.max(1) as f64;
                all.iter().map(ns).fold(f64::INFINITY, f64::min)
            };
            Times {
                all: each(|spent| spent.picks + spent.reports),
                pick: each(|spent| spent.picks),
            }
        }
    }
}

/// Like [`drive`], for a plain structure with or without sampling.
fn drive_plain(plain: impl Plain, samples: bool, members: usize, work: Work) -> Times {
    if samples {
        let (outstanding, rng) = (vec![0; members], Rng::seed_from_u64(2));
        return drive(Sampling { plain, outstanding, rng }, members, work);
    }
    drive(plain, members, work)
}

/// Runs a plain structure; `None` if the name is unknown. With speeds, every other member is slow.
fn run_plain(name: &str, members: usize, work: Work) -> Option<Times> {
    let (rng, vectors) = (Rng::seed_from_u64(1), pulp::Arch::new());
    let slow: Vec<bool> = (0..members).map(|member| member % 2 == 0).collect();
    let (name, samples) = name.strip_suffix(SAMPLING).map_or((name, false), |plain| (plain, true));
    Some(match name {
        "vector-scan" => {
            let queues = Aligned::new(&vec![0; members]);
            drive_plain(Scan { queues, vectors, rng }, samples, members, work)
        }
        "vector-scan-by-speed" => {
            let times: Vec<_> = slow.iter().map(|slow| 1 << u16::from(*slow)).collect();
            let times = Aligned::new(&times);
            drive_plain(SpeedScan { times, slow, vectors, rng }, samples, members, work)
        }
        "binary-heap" => drive_plain(Heap::new(vec![1; members], rng), samples, members, work),
        "binary-heap-by-speed" => {
            let times = slow.into_iter().map(|slow| 1 << u64::from(slow)).collect();
            drive_plain(Heap::new(times, rng), samples, members, work)
        }
        _ => return None,
    })
}

/// Runs the empty subject, a policy, or one of the plain structures. Every other member of a policy is twice as
/// fast.
fn run(name: &str, members: usize, work: Work) -> Result<Times, String> {
    if let Some(times) = run_plain(name, members, work) {
        return Ok(times);
    }
    Ok(match name {
        "surroundings" => drive(NullPolicy { next: 0, members: members as u16 }, members, work),
        _ => {
            let spec = name.parse().map_err(|error| format!("--policies: {error}"))?;
            let view = View::heap(members, 1).remove(0);
            let mut dispatcher = Dispatcher::new(&spec, view, Core::ONLY, 1);
            let rates: Vec<_> = (0..members).map(|member| 1.0 + (member % 2) as f64).collect();
            dispatcher.set_rates(&rates);
            drive(Policy(dispatcher), members, work)
        }
    })
}

/// Marker function: valgrind dumps and resets its counts before each call. Two calls enclose the counted decisions.
#[inline(never)]
fn mark() {
    black_box(());
}

/// Counts the instructions per decision of every subject, for each number of members. The first name is that
/// of the empty subject, which the counted run adds by itself.
fn instructions(names: &[String], members: &[usize]) -> Result<Vec<f64>, String> {
    let text = |error: io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(text)?;
    let parts = folder.path().join("part");
    let members: Vec<_> = members.iter().map(ToString::to_string).collect();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--dump-before=*bench::policy::mark*"])
        .arg(format!("--callgrind-out-file={}", parts.display()))
        .arg(std::env::current_exe().map_err(text)?)
        .args(["bench-policy", "--instructions", "no", "--policies", &names[1..].join(",")])
        .args(["--members", &members.join(","), "--decisions", &COUNTED.to_string()])
        .output()
        .map_err(|error| format!("--instructions needs valgrind: {error}"))?;
    let count_of = |subject: usize| {
        // Parts are numbered from 1. The one between a subject's two marks has an even number.
        let part = parts.with_extension((2 * subject + 2).to_string());
        let part = std::fs::read_to_string(part).ok()?;
        let total = part.lines().find_map(|line| line.strip_prefix("totals: "))?;
        Some(total.trim().parse::<f64>().ok()? / COUNTED as f64)
    };
    let all: Option<Vec<f64>> = (0..members.len() * names.len()).map(count_of).collect();
    all.ok_or_else(|| {
        format!("valgrind counted nothing:\n{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// Like [`instructions`]. Returns `None` if instructions are not requested, or valgrind does not work in mode
/// `auto`.
fn instructions_if_requested(
    arguments: &Arguments,
    names: &[String],
) -> Result<Option<Vec<f64>>, String> {
    if arguments.instructions == InstructionCounting::No {
        return Ok(None);
    }
    match instructions(names, &arguments.members) {
        Err(error) if arguments.instructions == InstructionCounting::Auto => {
            log::warn!("instructions are not counted: {error}");
            Ok(None)
        }
        counts => counts.map(Some),
    }
}

/// Measures the requested costs. With `--decisions`, only makes the decisions that valgrind counts, and returns no
/// costs.
///
/// # Errors
/// If a name is unknown, a number of members is out of range, or valgrind fails under `--instructions yes`.
pub fn costs(arguments: &Arguments) -> Result<Vec<Cost>, String> {
    let policies: Vec<String> = match &arguments.policies {
        Some(list) => crate::sim::lists::split(list).into_iter().map(str::to_owned).collect(),
        None => {
            let policies = CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine);
            let names = policies.map(|entry| entry.name.to_owned());
            let plain =
                PLAIN.iter().flat_map(|&name| [name.to_owned(), format!("{name}{SAMPLING}")]);
            names.chain(plain).collect()
        }
    };
    if let Some(number) = arguments.members.iter().find(|members| !(2..=32_767).contains(*members))
    {
        return Err(format!("--members {number}: from 2 to 32767 are allowed"));
    }
    // The empty subject comes first. Its cost is subtracted from that of each other subject.
    let mut names = vec!["surroundings".to_owned()];
    names.extend(policies);
    let subjects =
        arguments.members.iter().flat_map(|members| names.iter().map(move |name| (name, members)));
    if let Some(decisions) = arguments.decisions {
        for (name, &members) in subjects {
            run(name, members, Work::Make(decisions))?;
        }
        return Ok(Vec::new());
    }
    let work = Work::Time(Duration::from_millis(arguments.millis));
    let mut least = vec![Times::NONE; arguments.members.len() * names.len()];
    for _ in 0..ROUNDS {
        for ((name, &members), least) in subjects.clone().zip(&mut least) {
            *least = least.least(run(name, members, work)?);
        }
    }
    let mut costs = Vec::new();
    for (&members, times) in arguments.members.iter().zip(least.chunks(names.len())) {
        for (name, best) in names.iter().zip(times).skip(1) {
            costs.push(Cost {
                policy: name.clone(),
                members,
                ns_per_decision: round(best.all - times[0].all),
                pick_ns: round(best.pick - times[0].pick),
                instructions_per_decision: None,
            });
        }
    }
    if let Some(counts) = instructions_if_requested(arguments, &names)? {
        let counts = counts.chunks(names.len());
        let counts = counts.flat_map(|counts| counts[1..].iter().map(|count| count - counts[0]));
        for (cost, count) in costs.iter_mut().zip(counts) {
            cost.instructions_per_decision = Some(round(count));
        }
    }
    Ok(costs)
}

/// Rounds to two decimals.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Measures and prints the costs.
///
/// # Errors
/// If the format is unknown, a list is empty, [`costs`] fails, or the output cannot be written.
pub fn report(arguments: &Arguments, out: &mut impl Write) -> Result<(), String> {
    if !["text", "json"].contains(&arguments.format.as_str()) {
        return Err(format!("--format {}: allowed are text, json", arguments.format));
    }
    let costs = costs(arguments)?;
    if costs.is_empty() && arguments.decisions.is_none() {
        return Err("--policies, --members: an empty list; give at least one of each".to_owned());
    }
    let print = |out: &mut dyn Write| -> io::Result<()> {
        if arguments.format == "json" {
            for cost in &costs {
                serde_json::to_writer(&mut *out, cost)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        let widest = costs.iter().map(|cost| cost.policy.len()).max().unwrap_or(0).max(20) + 1;
        write!(out, "{:widest$}", "ns a decision/pick")?;
        arguments.members.iter().try_for_each(|members| write!(out, "{members:>19}"))?;
        writeln!(out)?;
        let policies = costs.len() / arguments.members.len();
        for row in 0..policies {
            write!(out, "{:widest$}", costs[row].policy)?;
            for cost in costs.iter().skip(row).step_by(policies) {
                let counted = cost.instructions_per_decision;
                let counted = counted.map_or(String::new(), |count| format!(" ({count:.0} i)"));
                let times = format!("{:.1}/{:.1}{counted}", cost.ns_per_decision, cost.pick_ns);
                write!(out, "{times:>19}")?;
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

    /// Scan and heap choose the only short queue first.
    #[test]
    fn scan_and_heap_choose_the_shortest_queue() {
        let mut scan = Scan {
            queues: Aligned::new(&[3; 100]),
            vectors: pulp::Arch::new(),
            rng: Rng::seed_from_u64(1),
        };
        assert!(scan.queues.len() == 100 && scan.queues.as_ptr().addr().is_multiple_of(64));
        scan.queues[70] = 1;
        let mut heap = Heap::new(vec![1; 100], Rng::seed_from_u64(1));
        (0..100)
            .for_each(|member| heap.report(&[report_of(member, if member == 70 { 1 } else { 3 })]));
        let mut chosen = [None; BURST];
        for chooser in [&mut scan as &mut dyn Chooser, &mut heap] {
            chooser.choose(&mut chosen);
            assert_eq!(chosen[..2], [pick(70), pick(70)]);
            // All queues are 3 now, so the remaining 30 tasks spread over the 100 members.
            assert!(chosen[2..].iter().filter(|chosen| **chosen == pick(70)).count() <= 2);
        }
    }

    /// Scan and heap by speed prefer the only fast member.
    #[test]
    fn scan_and_heap_prefer_the_fast_member() {
        let slow: Vec<bool> = (0..100).map(|member| member != 70).collect();
        let times: Vec<_> = slow.iter().map(|slow| 1 << u16::from(*slow)).collect();
        let times = Aligned::new(&times);
        let rng = Rng::seed_from_u64(1);
        let mut heap =
            Heap::new(slow.iter().map(|slow| 1 + u64::from(*slow)).collect(), rng.clone());
        let mut scan = SpeedScan { times, slow, vectors: pulp::Arch::new(), rng };
        for chooser in [&mut scan as &mut dyn Chooser, &mut heap] {
            (0..100).for_each(|member| chooser.report(&[report_of(member, 3)]));
            let mut chosen = [None; BURST];
            chooser.choose(&mut chosen);
            // The time at the slow members is 8, at the fast one 4. Three more tasks keep the fast one below
            // 8.
            assert_eq!(chosen[..4], [pick(70); 4]);
            // All times are 8 now, so the remaining tasks spread over the 100 members.
            assert!(chosen[5..].iter().filter(|chosen| **chosen == pick(70)).count() <= 1);
        }
    }

    /// Samples bring the structure up to date with the counts of outstanding tasks.
    // promise: speed.2
    #[test]
    fn sampling_updates_the_structure() {
        let rng = Rng::seed_from_u64(1);
        let mut sampling =
            Sampling { plain: Heap::new(vec![2; 4], rng.clone()), outstanding: vec![0; 4], rng };
        let mut chosen = [None; BURST];
        sampling.choose(&mut chosen);
        // 32 tasks over four equal members.
        assert_eq!(sampling.outstanding, [8; 4]);
        // Tasks of another dispatcher, without reports. The last member's count is unchanged.
        sampling.outstanding.copy_from_slice(&[80, 80, 80, 8]);
        (0..16).for_each(|_| sampling.sample());
        assert!(sampling.plain.has_queue(0, 80) && !sampling.plain.has_queue(0, 8));
        sampling.choose(&mut chosen);
        assert_eq!(chosen, [pick(3); BURST]);
        // 8 + 32 tasks, one of which ends.
        sampling.report(&[report_of(3, 39)]);
        assert!(sampling.plain.has_queue(3, 39) && sampling.outstanding[3] == 39);
    }

    // promise: speed.2
    #[test]
    fn every_policy_is_measured() {
        let arguments = Arguments {
            members: vec![4],
            policies: None,
            millis: 0,
            instructions: InstructionCounting::No,
            format: "json".to_owned(),
            decisions: None,
        };
        let costs = costs(&arguments).unwrap();
        // The catalogue's policies, and the four plain structures with and without sampling.
        let is_measured = |name: &str| costs.iter().any(|cost| cost.policy == name);
        let missing =
            CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine && !is_measured(entry.name));
        assert_eq!(missing.map(|entry| entry.name).collect::<Vec<_>>(), [""; 0]);
        let sampling = costs.iter().filter(|cost| cost.policy.ends_with(SAMPLING));
        assert_eq!(sampling.count(), PLAIN.len());
        let mut out = Vec::new();
        let wrong = Arguments { format: "xml".to_owned(), ..arguments };
        assert!(report(&wrong, &mut out).unwrap_err().contains("text, json"));
    }
}
