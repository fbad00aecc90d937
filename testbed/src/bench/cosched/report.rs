//! Report of the measurement: rows, bars (required values) and plots. A row is one cell (worker, batch, and
//! arm, the way to limit the batch) under one load.
//!
//! A *hand-over* is the time from the dispatcher's push of a task until an idle worker takes it. A learner weighs the
//! advice of several *experts*, decision trees that propose a share for the batch. *Alpha* are their weights. *Excess
//! risk* is the learner's loss so far minus that of the best expert.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use wedjat::state::files::ReportFile;

use super::block::{LearnerResult, STEP_SHARE, Setting, Step, Window, percentile_us};
use super::plan::{Arm, Cell, Choice, Load, Purpose, WorkerKind};
use super::{Failure, Measurements};
use crate::batch::Batch;
use crate::figures::draw;

/// Minimum number of tasks for a 99.9th percentile: 20 of them lie beyond it.
const TASKS_MIN: u64 = 20_000;
/// Minimum number of windows for a share of one hundredth.
const WINDOWS_MIN: u64 = 100;

/// Results of a cell under one load, over all seeds. All values except the numbers of windows are of windows
/// that count.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Cell of the plan.
    #[serde(flatten)]
    pub cell: Cell,
    /// Name of the load.
    pub load: String,
    /// Number of windows that count.
    pub windows: u64,
    /// Number of windows discarded because foreign processes used the CPUs.
    pub discarded: u64,
    /// Fraction of windows in which the objective was missed.
    pub violating: Option<f64>,
    /// Number of due tasks.
    pub tasks: u64,
    /// 99th percentile of the response time, in us. `None` without tasks, or if more than the remaining 1% were
    /// not answered.
    pub response_p99_us: Option<f64>,
    /// 99.9th percentile of the response time.
    pub response_p999_us: Option<f64>,
    /// Median hand-over time to an idle worker, in us.
    pub hand_over_p50_us: Option<f64>,
    /// 99th percentile of this time.
    pub hand_over_p99_us: Option<f64>,
    /// 99.9th percentile of this time.
    pub hand_over_p999_us: Option<f64>,
    /// Progress of the batch as a fraction of its rate alone.
    pub progress: Option<f64>,
    /// Share of the worker's core that the batch used.
    pub batch_core: Option<f64>,
    /// Share of this core that worker and batch used together.
    pub core_use: Option<f64>,
    /// Share of this core that the tasks needed.
    pub worked: Option<f64>,
    /// Mean of the shares given to the batch at the windows' ends.
    pub given: Option<f64>,
}

/// Verdict on a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The bar is met.
    Held,
    /// The bar is missed.
    Missed,
    /// Too few measurements, or too few that count.
    TooFew,
}

/// A bar: requirement on a measured value.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// Name of the value.
    pub name: &'static str,
    /// Measured value.
    pub value: Option<f64>,
    /// Required value.
    pub bar: String,
    /// Data behind the value.
    pub of: String,
    /// Verdict.
    pub verdict: Verdict,
}

/// Complete report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Release and revision.
    pub version: &'static str,
    /// CPU of the dispatcher and CPU of the worker.
    pub cpus: [usize; 2],
    /// Number of seeds.
    pub seeds: u64,
    /// Length of a window in milliseconds, which is also the interval of decisions.
    pub window_ms: u128,
    /// Mean service time of the tasks, in us.
    pub service_us: f64,
    /// Objective for a window's 99.9th percentile, in us.
    pub objective_us: f64,
    /// Maximum CPU time of foreign processes in a window that counts, as a fraction of one CPU.
    pub foreign_max: f64,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Number of measured windows.
    pub windows: u64,
    /// Number of windows that count.
    pub kept: u64,
    /// Number of discarded windows.
    pub discarded: u64,
    /// Number of tasks sent. Each was answered, refused or left over.
    pub tasks: u64,
    /// Threads of batches restored to their scheduling class or CPUs.
    pub put_back: u64,
    /// Number of measured combinations of arms, workers and batches, and number of all combinations. Arm `none` has no
    /// batch and does not count.
    pub cells: [usize; 2],
    /// Units per second that each batch completes alone, by its own counter.
    pub alone: BTreeMap<&'static str, f64>,
    /// Cells that `wedjat cosched run` would have refused, with the reasons. They were run by force.
    pub refused: Vec<RefusedCell>,
    /// Bars.
    pub bars: Vec<Bar>,
    /// Rows of the table.
    pub rows: Vec<Row>,
    /// Steps up in load under the guard.
    pub steps: Vec<Step>,
    /// Results of the learners.
    pub learners: Vec<LearnerResult>,
    /// All measured windows.
    #[serde(skip)]
    all: Vec<Window>,
    /// First worker and first batch, which the plots over the load show.
    #[serde(skip)]
    main: Option<(WorkerKind, Batch)>,
}

/// Cell that `wedjat cosched run` would have refused.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedCell {
    /// Cell of the plan.
    #[serde(flatten)]
    pub cell: Cell,
    /// Reason of the refusal.
    pub why: String,
}

/// Builds the report.
pub(super) fn build(
    setting: &Setting,
    choice: &Choice,
    seeds: u64,
    measurements: Measurements,
    elapsed: Duration,
) -> Report {
    let alone = measurements.alone();
    let kept = measurements.windows.iter().filter(|window| window.is_undisturbed).count() as u64;
    let windows = measurements.windows.len() as u64;
    let refused = measurements.refused.iter();
    let all = (Arm::ALL.len() - 1) * WorkerKind::ALL.len() * Batch::ALL.len();
    Report {
        version: wedjat::VERSION,
        cpus: setting.cpus,
        seeds,
        window_ms: setting.window.as_millis(),
        service_us: setting.service_ns / 1e3,
        objective_us: setting.objective.us,
        foreign_max: setting.foreign_max,
        seconds: elapsed.as_secs_f64(),
        windows,
        kept,
        discarded: windows - kept,
        tasks: measurements.tasks,
        put_back: measurements.put_back,
        cells: [choice.cells().len(), all],
        refused: refused
            .map(|(cell, reason)| RefusedCell { cell: *cell, why: reason.clone() })
            .collect(),
        bars: match choice.bar_windows {
            0 => Vec::new(),
            _ => bars(&measurements.windows, &measurements.steps, &alone),
        },
        rows: rows(choice, &measurements.windows, &alone),
        alone: alone.into_iter().map(|(batch, rate)| (batch.name(), rate)).collect(),
        steps: measurements.steps,
        learners: measurements.learners,
        main: choice.workers.first().copied().zip(choice.batches.first().copied()),
        all: measurements.windows,
    }
}

/// Builds a row for each load of each measured cell and of each control (the cell without batch).
fn rows(choice: &Choice, windows: &[Window], alone: &BTreeMap<Batch, f64>) -> Vec<Row> {
    let counts = |window: &&Window| matches!(window.purpose, Purpose::Row | Purpose::Control);
    let cells: BTreeSet<_> = windows.iter().filter(counts).map(|window| window.cell).collect();
    let loads: Vec<_> = choice.loads.iter().map(|load| load.name()).collect();
    let row = |cell: Cell, load: &String| {
        let is_of_row =
            |window: &&Window| counts(window) && window.cell == cell && window.load == *load;
        let all: Vec<_> = windows.iter().filter(is_of_row).collect();
        Row::from_windows(cell, load, &all, alone.get(&cell.batch).copied())
    };
    cells.into_iter().flat_map(|cell| loads.iter().map(move |load| row(cell, load))).collect()
}

impl Row {
    /// Builds a row from all its windows. `alone` is the batch's rate alone.
    fn from_windows(cell: Cell, load: &str, all: &[&Window], alone: Option<f64>) -> Self {
        let undisturbed: Vec<_> =
            all.iter().filter(|window| window.is_undisturbed).copied().collect();
        let mean = |value: &dyn Fn(&Window) -> f64| {
            let sum: f64 = undisturbed.iter().map(|window| value(window)).sum();
            (!undisturbed.is_empty()).then(|| sum / undisturbed.len() as f64)
        };
        let mut responses = times(&undisturbed, |window| &window.responses);
        let mut hand_overs = times(&undisturbed, |window| &window.hand_overs);
        let has_batch = cell.arm != Arm::None;
        let alone = alone.filter(|rate| has_batch && *rate > 0.0);
        Self {
            cell,
            load: load.to_owned(),
            windows: undisturbed.len() as u64,
            discarded: (all.len() - undisturbed.len()) as u64,
            violating: mean(&|window| f64::from(u8::from(window.violates))),
            tasks: responses.len() as u64,
            response_p99_us: percentile_us(&mut responses, 0.99),
            response_p999_us: percentile_us(&mut responses, 0.999),
            hand_over_p50_us: percentile_us(&mut hand_overs, 0.5),
            hand_over_p99_us: percentile_us(&mut hand_overs, 0.99),
            hand_over_p999_us: percentile_us(&mut hand_overs, 0.999),
            progress: alone.and_then(|rate| mean(&|window| window.done_rate / rate)),
            batch_core: mean(&|window| window.batch_core).filter(|_| has_batch),
            core_use: mean(&|window| window.batch_core + window.worker_core),
            worked: mean(&|window| window.worked),
            given: mean(&|window| window.given).filter(|_| has_batch),
        }
    }
}

/// Joins the times of several windows.
fn times(windows: &[&Window], values: fn(&Window) -> &Vec<u32>) -> Vec<u32> {
    windows.iter().flat_map(|window| values(window).iter().copied()).collect()
}

/// Returns the verdict on a bar.
fn verdict(is_enough: bool, holds: bool) -> Verdict {
    match (is_enough, holds) {
        (false, _) => Verdict::TooFew,
        (true, true) => Verdict::Held,
        (true, false) => Verdict::Missed,
    }
}

/// Evaluates all bars.
fn bars(windows: &[Window], steps: &[Step], alone: &BTreeMap<Batch, f64>) -> Vec<Bar> {
    let mut bars = pairs(windows, alone);
    bars.push(held_back(steps));
    bars.push(guarded(windows));
    bars
}

/// Evaluates the pairs with and without batch under 20% load: cost for the tasks and gain of the batch. The cost needs
/// `TASKS_MIN` hand-overs on each side, the gain ten undisturbed windows with batch.
fn pairs(windows: &[Window], alone: &BTreeMap<Batch, f64>) -> Vec<Bar> {
    let windows_of = |arm: Arm| -> Vec<&Window> {
        let is_of = |window: &&Window| {
            window.purpose == Purpose::Pair && window.cell.arm == arm && window.is_undisturbed
        };
        windows.iter().filter(is_of).collect()
    };
    let (without, with) = (windows_of(Arm::None), windows_of(Arm::Idle));
    let [mut before, mut beside] =
        [&without, &with].map(|windows| times(windows, |window| &window.hand_overs));
    let fewest = before.len().min(beside.len()) as u64;
    let [none, idle] = [&mut before, &mut beside].map(|times| percentile_us(times, 0.999));
    // The bound avoids a division by zero, as in the ratios below.
    let ratio = none.zip(idle).map(|(none, idle)| idle / none.max(1e-3));
    let pair_ratios = ratios_of_pairs(&without, &with);
    let median =
        pair_ratios.get(pair_ratios.len() / 2).map_or("none".to_owned(), |it| format!("{it:.3}"));
    let show = |us: Option<f64>| us.map_or("none".to_owned(), |us| format!("{us:.1} us"));
    let cost = Bar {
        name: "hand-over p99.9 with a batch of the idle class, relative to no batch, 20% load",
        value: ratio,
        bar: "at most 1.3".to_owned(),
        of: format!(
            "{} over {}, at least {fewest} hand-overs each; median of {} per-pair ratios {median}",
            show(idle),
            show(none),
            pair_ratios.len()
        ),
        verdict: verdict(fewest >= TASKS_MIN, ratio.is_some_and(|ratio| ratio <= 1.3)),
    };
    let batch = with.first().map(|window| window.cell.batch);
    let rate = batch.and_then(|batch| alone.get(&batch)).copied().unwrap_or(0.0);
    let mean = |value: &dyn Fn(&Window) -> f64| {
        with.iter().map(|window| value(window)).fold(0.0, |sum, one| sum + one)
            / with.len().max(1) as f64
    };
    let is_measured = rate > 0.0 && !with.is_empty();
    let progress = if is_measured { mean(&|it| it.done_rate) / rate } else { 0.0 };
    let worked = mean(&|it| it.worked);
    let share = is_measured.then(|| progress / (1.0 - worked).max(1e-3));
    let gain = Bar {
        name: "batch progress relative to the batch alone in the time without tasks, 20% load",
        value: share,
        bar: "at least 0.85".to_owned(),
        of: format!(
            "{progress:.3} of its progress alone, tasks used {worked:.3} of the core; {} windows",
            with.len()
        ),
        verdict: verdict(is_measured && with.len() >= 10, share.is_some_and(|share| share >= 0.85)),
    };
    vec![cost, gain]
}

/// Computes the ratio of 99.9th percentiles for each seed's pair, in ascending order. The report shows their median
/// beside the ratio over all seeds, because a short stall spoils only one pair.
fn ratios_of_pairs(without: &[&Window], with: &[&Window]) -> Vec<f64> {
    let p999_us = |windows: &[&Window], seed: u64| {
        let seed_windows: Vec<_> = windows.iter().filter(|it| it.seed == seed).copied().collect();
        percentile_us(&mut times(&seed_windows, |window| &window.hand_overs), 0.999)
    };
    let seeds: BTreeSet<_> = without.iter().map(|window| window.seed).collect();
    let ratio = |seed: u64| Some(p999_us(with, seed)? / p999_us(without, seed)?.max(1e-3));
    let mut ratios: Vec<_> = seeds.into_iter().filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Evaluates steps up in load under the guard: the batch's share of the core from 100 ms after each undisturbed step.
/// The largest share counts. Needs five such steps.
fn held_back(steps: &[Step]) -> Bar {
    let undisturbed: Vec<_> = steps.iter().filter(|step| step.is_undisturbed).collect();
    let worst = undisturbed.iter().map(|step| step.share_after).fold(0.0, f64::max);
    let mut after: Vec<_> = undisturbed.iter().map(|step| step.held_after_ms).collect();
    after.sort_by(f64::total_cmp);
    let median = after.get(after.len() / 2).copied().unwrap_or(0.0);
    Bar {
        name: "largest share of the core for the batch under the guard, from 100 ms after a step from 20% to 80%",
        value: (!undisturbed.is_empty()).then_some(worst),
        bar: format!("below {STEP_SHARE}"),
        of: format!(
            "{} of {} steps count; the guard held the batch after {median:.0} ms (median)",
            undisturbed.len(),
            steps.len()
        ),
        verdict: verdict(undisturbed.len() >= 5, worst < STEP_SHARE),
    }
}

/// Evaluates windows under the guard that miss the objective at loads without misses when there is no batch.
/// Only counts the kind of worker for which batches are meant: a polling worker leaves no time to a batch,
/// with or without guard.
fn guarded(windows: &[Window]) -> Bar {
    let mut without: BTreeMap<&str, bool> = BTreeMap::new();
    let counts = |window: &&Window| {
        let is_parked = window.cell.worker == WorkerKind::ParkedFifo;
        window.is_undisturbed && is_parked && window.purpose != Purpose::Alone
    };
    for window in windows.iter().filter(counts).filter(|window| window.cell.arm == Arm::None) {
        *without.entry(&window.load).or_default() |= window.violates;
    }
    let is_guarded = |window: &&Window| {
        window.cell.arm == Arm::Guard && without.get(window.load.as_str()) == Some(&false)
    };
    let guarded: Vec<_> = windows.iter().filter(counts).filter(is_guarded).collect();
    let missed = guarded.iter().filter(|window| window.violates).count();
    let share = missed as f64 / guarded.len().max(1) as f64;
    let all = |arm: Arm| {
        let arm_windows: Vec<_> =
            windows.iter().filter(counts).filter(|it| it.cell.arm == arm).collect();
        let missed = arm_windows.iter().filter(|window| window.violates).count();
        format!("{missed} of {}", arm_windows.len())
    };
    let loads: Vec<_> =
        without.iter().filter(|(_, violates)| !**violates).map(|(load, _)| *load).collect();
    Bar {
        name: "windows that miss the objective under the guard, at loads without misses when there is no batch, worker \
            parked-fifo",
        value: (!guarded.is_empty()).then_some(share),
        bar: "at most 0.01".to_owned(),
        of: format!(
            "{missed} of {} windows ({}); at all loads {}, without batch {}",
            guarded.len(),
            loads.join(", "),
            all(Arm::Guard),
            all(Arm::None)
        ),
        verdict: verdict(guarded.len() as u64 >= WINDOWS_MIN, share <= 0.01),
    }
}

impl Report {
    /// Writes cosched.json, cosched.csv, cosched-windows.csv and the plots.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, out: &Path) -> Result<(), Failure> {
        let path = out.join("cosched.json");
        let text = serde_json::to_vec_pretty(self)?;
        ReportFile::new("--out", &path)?.write(text)?;
        write_csv(&out.join("cosched.csv"), &self.rows)?;
        write_csv(&out.join("cosched-windows.csv"), &self.all)?;
        for (name, plot) in self.plots()? {
            ReportFile::new("--out", &out.join(format!("{name}.svg")))?.write(plot)?;
        }
        Ok(())
    }

    /// Returns names and texts of all plots with data. The plots of a learning mode show the learner with the most
    /// rounds.
    fn plots(&self) -> Result<Vec<(String, String)>, String> {
        let mut plots = Vec::new();
        let mut add = |name: &str, title: &str, axes: (&str, &str), lines: Lines| {
            let has_data = |line: &(String, Vec<(f64, f64)>)| line.1.iter().any(|(_, y)| *y > 0.0);
            if lines.iter().any(has_data) {
                plots.push((name.to_owned(), draw(title, axes, &lines)?));
            }
            Ok::<_, String>(())
        };
        let over_load = |value: fn(&Row) -> Option<f64>| self.by_arm(value);
        let load = "load, %";
        add(
            "cosched-progress",
            "Progress of the batch",
            (load, "share of its progress alone"),
            over_load(|row| row.progress),
        )?;
        add(
            "cosched-hand-over",
            "Hand-over to a waiting worker",
            (load, "99.9th percentile, us"),
            over_load(|row| row.hand_over_p999_us),
        )?;
        add(
            "cosched-response",
            "Response time from the due time",
            (load, "99.9th percentile, us"),
            over_load(|row| row.response_p999_us),
        )?;
        add(
            "cosched-violations",
            "Windows that miss the objective (0.1 means none)",
            (load, "% of windows"),
            over_load(|row| row.violating.map(|part| (100.0 * part).max(0.1))),
        )?;
        for mode in [Arm::AsaxPaper, Arm::AsaxIw, Arm::AsaxBalanced] {
            let of_mode = self.learners.iter().filter(|learner| learner.cell.arm == mode);
            let Some(longest) = of_mode.max_by_key(|learner| learner.replayed.rounds.len()) else {
                continue;
            };
            let (name, title) = (format!("cosched-alpha-{}", mode.name()), mode.name());
            let title = format!("Weights of the experts, {title}, seed {}", longest.seed);
            add(&name, &title, ("round", "alpha"), alphas(longest))?;
            let title = format!("Excess risk and its bound, {}", mode.name());
            let name = format!("cosched-risk-{}", mode.name());
            add(&name, &title, ("round", "risk"), risks(longest))?;
        }
        Ok(plots)
    }

    /// Returns a line for each arm over the constant loads, for the first worker and the first batch.
    fn by_arm(&self, value: fn(&Row) -> Option<f64>) -> Lines {
        let line = |arm: Arm| {
            let is_of = |row: &&Row| {
                row.cell.arm == arm && Some((row.cell.worker, row.cell.batch)) == self.main
            };
            let point = |row: &Row| match row.load.parse() {
                Ok(Load::Steady(part)) => value(row).map(|value| (100.0 * part, value)),
                _ => None,
            };
            (arm.name().to_owned(), self.rows.iter().filter(is_of).filter_map(point).collect())
        };
        Arm::ALL.map(line).into_iter().filter(|line: &(_, Vec<_>)| !line.1.is_empty()).collect()
    }
}

/// Lines of a plot: name and points.
type Lines = Vec<(String, Vec<(f64, f64)>)>;

/// Returns the weight of each expert over the rounds, from equal weights on.
fn alphas(learner: &LearnerResult) -> Lines {
    let replayed = &learner.replayed;
    let even = 1.0 / replayed.experts.len().max(1) as f64;
    let line = |(index, name): (usize, &String)| {
        let rounds =
            replayed.rounds.iter().map(|it| (it.round.round as f64, it.round.alpha[index]));
        (name.clone(), std::iter::once((0.0, even)).chain(rounds).collect())
    };
    replayed.experts.iter().enumerate().map(line).collect()
}

/// Returns the excess risk and its bound over the rounds.
fn risks(learner: &LearnerResult) -> Lines {
    let line = |name: &str, value: fn(&wedjat_cosched::Round) -> f64| {
        let rounds = learner.replayed.rounds.iter();
        (name.to_owned(), rounds.map(|it| (it.round.round as f64, value(&it.round))).collect())
    };
    vec![line("excess risk", |it| it.excess_risk), line("bound", |it| it.bound)]
}

/// Writes one line per item, below a header of the field names.
fn write_csv(path: &Path, lines: &[impl Serialize]) -> Result<(), Failure> {
    let named = |error: csv::Error| format!("{}: {error}", path.display());
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let line = serde_json::to_value(line)?;
        let fields = line
            .as_object()
            .ok_or_else(|| format!("{}: row {} has no named columns", path.display(), index + 1))?;
        if index == 0 {
            writer.write_record(fields.keys()).map_err(named)?;
        }
        let texts = fields.values().map(|value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        writer.write_record(texts).map_err(named)?;
    }
    let bytes = writer.into_inner().map_err(|error| error.to_string())?;
    Ok(ReportFile::new("--out", path)?.write(bytes)?)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, windows of {} ms, tasks exp({} us), objective p99.9 {:.0} us; dispatcher on CPU {}, worker and batch on CPU {}",
            self.seeds,
            self.window_ms,
            self.service_us,
            self.objective_us,
            self.cpus[0],
            self.cpus[1],
        )?;
        writeln!(
            f,
            "{} windows: {} count, {} are discarded because other programs used more than {:.0}% of a CPU; {} tasks; {:.0} s",
            self.windows,
            self.kept,
            self.discarded,
            100.0 * self.foreign_max,
            self.tasks,
            self.seconds,
        )?;
        writeln!(
            f,
            "{} of {} combinations of arm, worker and batch",
            self.cells[0], self.cells[1]
        )?;
        for (batch, rate) in &self.alone {
            writeln!(f, "{batch} alone: {rate:.0} units/s")?;
        }
        let mut last = None;
        for row in &self.rows {
            let Cell { worker, arm, batch } = row.cell;
            if last.replace((worker, batch)) != Some((worker, batch)) {
                write!(f, "\nworker {}, batch {}\n{HEAD}\n", worker.name(), batch.name())?;
            }
            let refused = self.refused.iter().any(|refused| refused.cell == row.cell);
            writeln!(f, "{:14}{}{}", arm.name(), row, if refused { "  forced" } else { "" })?;
        }
        if !self.refused.is_empty() {
            writeln!(
                f,
                "\nforced: wedjat cosched run refuses this as harmful; measured nevertheless"
            )?;
        }
        self.learners(f)?;
        self.bars(f)
    }
}

/// Heading of the columns that `Row` prints.
const HEAD: &str = "arm           load   windows      miss  resp p99   p99.9   hand p50    p99   p99.9  progress  batch  core  given";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1}"));
        let part = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{part:.3}"));
        let percent =
            |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{:.1}%", 100.0 * part));
        write!(
            f,
            "{:7}{:>4}+{:<4}{:>8}{:>10}{:>8}{:>11}{:>7}{:>8}{:>10}{:>7}{:>6}{:>7}",
            self.load,
            self.windows,
            self.discarded,
            percent(self.violating),
            us(self.response_p99_us),
            us(self.response_p999_us),
            us(self.hand_over_p50_us),
            us(self.hand_over_p99_us),
            us(self.hand_over_p999_us),
            part(self.progress),
            part(self.batch_core),
            part(self.core_use),
            part(self.given),
        )
    }
}

impl Report {
    /// Writes a line for each learner.
    fn learners(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.learners.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\nlearners: decisions, rounds, mean loss, excess risk and its bound, experts with the largest final weights"
        )?;
        for LearnerResult { cell, seed, replayed } in &self.learners {
            let last = replayed.rounds.last().map(|it| &it.round);
            let (risk, bound) = last.map_or((0.0, 0.0), |it| (it.excess_risk.max(0.0), it.bound));
            let mut experts: Vec<_> = last
                .map(|it| it.alpha.iter().copied().zip(&replayed.experts).collect())
                .unwrap_or_default();
            experts.sort_by(|a: &(f64, _), b| b.0.total_cmp(&a.0));
            let largest: Vec<_> =
                experts.iter().take(3).map(|(alpha, name)| format!("{name} {alpha:.2}")).collect();
            writeln!(
                f,
                "{:14}{:14}{:21} seed {seed}: {:4}{:4}  {:.3}  {risk:.2} / {bound:.2}  {}",
                cell.arm.name(),
                cell.worker.name(),
                cell.batch.name(),
                replayed.decisions,
                replayed.rounds.len(),
                replayed.mean_loss,
                largest.join(", "),
            )?;
        }
        Ok(())
    }

    /// Writes the verdicts on the bars.
    fn bars(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Bar { name, value, bar, of, verdict } in &self.bars {
            let value = value.map_or("none".to_owned(), |value| format!("{value:.3}"));
            let verdict = match verdict {
                Verdict::Held => "held",
                Verdict::Missed => "MISSED",
                Verdict::TooFew => "TOO FEW windows for a verdict",
            };
            write!(f, "\n{verdict}: {name}: {value}, {bar}\n  {of}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_without_columns_is_named() {
        let error = write_csv(Path::new("rows.csv"), &[1]).unwrap_err().to_string();
        assert!(error.contains("rows.csv: row 1 has no named columns"), "{error}");
    }
}
