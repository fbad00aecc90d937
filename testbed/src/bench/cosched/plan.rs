//! Plan of the measurement: combinations of batch, arm (way to limit the batch), worker and load, and their
//! order. The arms use the parts of `wedjat cosched run`: a quota or weight of the cgroup, the guard (an upper
//! limit by fixed rules), and the learners (ASA_X, see docs/explanation/asax.md). A round is the interval after which
//! an arm decides again. It equals a window, for which the benchmark reports one result.

use clap::ValueEnum;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use wedjat::cosched::Policy;
use wedjat_cosched::mechanism::Class;
use wedjat_cosched::{Mode, Share};

use crate::batch::Batch;

/// Arm of the experiment: a way to limit the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// No batch
    None,
    /// Quota of half the core, normal class
    Static,
    /// Smallest weight (cpu.shares = 2), normal class
    Shares,
    /// Idle class alone (cpu.idle, SCHED_IDLE), no quota
    Idle,
    /// All that the guard allows, idle class
    Guard,
    /// A tenth more after each harmless round, half as much after a harmful one; guarded, idle class
    Aimd,
    /// ASA_X as printed; guarded, idle class
    AsaxPaper,
    /// ASA_X with weighted risk; guarded, idle class
    AsaxIw,
    /// ASA_X with weighted risk and the batch's unhappiness; guarded, idle class
    AsaxBalanced,
}

impl Arm {
    /// All arms.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Static,
        Self::Shares,
        Self::Idle,
        Self::Guard,
        Self::Aimd,
        Self::AsaxPaper,
        Self::AsaxIw,
        Self::AsaxBalanced,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Static => "static",
            Self::Shares => "shares",
            Self::Idle => "idle",
            Self::Guard => "guard",
            Self::Aimd => "aimd",
            Self::AsaxPaper => "asax-paper",
            Self::AsaxIw => "asax-iw",
            Self::AsaxBalanced => "asax-balanced",
        }
    }

    /// Returns the policy that sets the share; `None` without a batch.
    #[must_use]
    pub fn policy(self) -> Option<Policy> {
        match self {
            Self::None => None,
            Self::Static => Some(Policy::Static(Share::at_most(0.5))),
            Self::Shares => Some(Policy::Shares),
            Self::Idle => Some(Policy::Idle),
            Self::Guard => Some(Policy::Guard),
            Self::Aimd => Some(Policy::Aimd),
            Self::AsaxPaper | Self::AsaxIw | Self::AsaxBalanced => Some(Policy::Asax),
        }
    }

    /// Returns the learning mode, if the arm learns.
    #[must_use]
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::AsaxPaper => Some(Mode::Paper),
            Self::AsaxIw => Some(Mode::Iw),
            Self::AsaxBalanced => Some(Mode::Balanced),
            _ => None,
        }
    }

    /// Returns the scheduling class of the batch. Quota and weight are the alternatives to the idle class,
    /// and thus measured in the normal class.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::Static | Self::Shares => Class::Normal,
            _ => Class::Idle,
        }
    }

    /// Returns true if the arm adapts the share over several rounds, so that it needs several laps.
    fn is_slow(self) -> bool {
        self == Self::Aimd || self.mode().is_some()
    }
}

/// Behaviour of an idle worker, and its scheduling class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerKind {
    /// Sleeps after at most 50 us, SCHED_FIFO
    ParkedFifo,
    /// Sleeps after at most 50 us, normal class
    ParkedNormal,
    /// Never sleeps, SCHED_FIFO
    PollingFifo,
    /// Never sleeps, normal class
    PollingNormal,
}

impl WorkerKind {
    /// All kinds of worker.
    pub const ALL: [Self; 4] =
        [Self::ParkedFifo, Self::ParkedNormal, Self::PollingFifo, Self::PollingNormal];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ParkedFifo => "parked-fifo",
            Self::ParkedNormal => "parked-normal",
            Self::PollingFifo => "polling-fifo",
            Self::PollingNormal => "polling-normal",
        }
    }

    /// Returns true if the worker never sleeps.
    #[must_use]
    pub fn polls(self) -> bool {
        matches!(self, Self::PollingFifo | Self::PollingNormal)
    }

    /// Returns true if the worker runs under SCHED_FIFO, before all threads without real-time priority.
    #[must_use]
    pub fn is_real_time(self) -> bool {
        matches!(self, Self::ParkedFifo | Self::PollingFifo)
    }
}

/// Cell of the plan: one combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cell {
    /// Kind of worker.
    pub worker: WorkerKind,
    /// Batch job.
    pub batch: Batch,
    /// Arm.
    pub arm: Arm,
}

/// Load as a fraction of the worker's capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Constant load.
    Steady(f64),
    /// Short periods of high load in turn with longer periods of low load.
    Bursts,
}

impl Load {
    /// Four constant loads, and bursts.
    pub const STEPS: [Self; 5] =
        [Self::Steady(0.2), Self::Steady(0.4), Self::Steady(0.6), Self::Steady(0.8), Self::Bursts];
    /// Duration in nanoseconds and load, for the high and the low period of bursts.
    pub const BURSTS: [(u64, f64); 2] = [(50_000_000, 0.8), (150_000_000, 0.1)];

    /// Returns the name used in tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            // Thousandths of a percent, so that other loads have other names.
            Self::Steady(part) => format!("{}%", (part * 1e5).round() / 1e3),
            Self::Bursts => "bursts".to_owned(),
        }
    }

    /// Returns the mean load, by which a lap orders its phases.
    #[must_use]
    pub fn mean(self) -> f64 {
        match self {
            Self::Steady(part) => part,
            Self::Bursts => {
                let [(high_ns, high), (low_ns, low)] = Self::BURSTS;
                (high_ns as f64 * high + low_ns as f64 * low) / (high_ns + low_ns) as f64
            }
        }
    }

    /// Returns the load at `since_ns` after the start of its phase.
    #[must_use]
    pub fn at(self, since_ns: u64) -> f64 {
        match self {
            Self::Steady(part) => part,
            Self::Bursts => {
                let [(high_ns, high), (low_ns, low)] = Self::BURSTS;
                if since_ns % (high_ns + low_ns) < high_ns { high } else { low }
            }
        }
    }
}

impl std::str::FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = text.trim_end_matches('%').parse::<f64>().map(|part| part / 100.0);
        match (text, part) {
            ("bursts", _) => Ok(Self::Bursts),
            (_, Ok(part)) if text.ends_with('%') && (0.0..=0.95).contains(&part) => {
                Ok(Self::Steady(part))
            }
            _ => Err(format!(
                "{text:?} is not a load; give a percentage up to 95%, as in 20%, or bursts"
            )),
        }
    }
}

/// A load and its duration in windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Load of the phase.
    pub load: Load,
    /// Number of windows.
    pub windows: usize,
    /// True if the windows are measured, that is, after the warm-up.
    pub is_measured: bool,
}

/// Purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Row of the table.
    Row,
    /// Control without batch, before or after the rows of a worker.
    Control,
    /// Batch on an idle core.
    Alone,
    /// One half of a pair, with or without batch, under 20% load.
    Pair,
    /// Steps from 20% to 80% load, sampled at short intervals.
    Step,
}

/// One run of a cell with one seed, with new processes for worker and batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Cell of the block.
    pub cell: Cell,
    /// Purpose of the block.
    pub purpose: Purpose,
    /// Seed of arrivals, service times and the learner's choices.
    pub seed: u64,
    /// Phases of load.
    pub phases: Vec<Phase>,
}

/// Selection from the possible combinations.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Selected arms.
    pub arms: Vec<Arm>,
    /// Selected kinds of worker, at least one.
    pub workers: Vec<WorkerKind>,
    /// Selected batch jobs, at least one.
    pub batches: Vec<Batch>,
    /// Selected loads.
    pub loads: Vec<Load>,
    /// True if all combinations are measured.
    pub is_full: bool,
    /// Windows of each load in a block.
    pub windows: usize,
    /// Repetitions of all loads in a block, for slow arms.
    pub laps: usize,
    /// Windows of the blocks for the bars (required values): of each half of a pair, and, rounded up to a multiple
    /// of 3, of each load of the steps. 0 leaves both out.
    pub bar_windows: usize,
}

/// Unmeasured phase at the start of a block.
const WARM_UP: Phase = Phase { load: Load::Steady(0.2), windows: 1, is_measured: false };

impl Choice {
    /// Returns true if the cell is measured. Without `--full` these are three groups:
    ///
    /// 1. All arms beside the first worker with the first batch. By default this is the worker for which the
    ///    mechanism is made, and the batch that harms least.
    /// 2. Arms with different mechanisms, beside each further worker, with the first batch.
    /// 3. Further batches, which differ in their effect on caches, memory and processes, beside the first
    ///    worker: the idle class alone, the guard, and for memory also a quota and a learner.
    fn includes(&self, cell: Cell) -> bool {
        let Cell { worker, arm, batch } = cell;
        let is_chosen = self.arms.contains(&arm)
            && self.workers.contains(&worker)
            && self.batches.contains(&batch);
        let is_first_batch = batch == self.batches[0];
        let is_first_worker = worker == self.workers[0];
        let by_mechanism = matches!(arm, Arm::Static | Arm::Shares | Arm::Idle | Arm::Guard);
        let is_for_batch = match batch {
            Batch::Memory => {
                matches!(arm, Arm::Static | Arm::Idle | Arm::Guard | Arm::AsaxBalanced)
            }
            _ => matches!(arm, Arm::Idle | Arm::Guard),
        };
        is_chosen
            && arm != Arm::None
            && (self.is_full
                || (is_first_worker && (is_first_batch || is_for_batch))
                || (is_first_batch && by_mechanism))
    }

    /// Returns the measured cells.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for worker in WorkerKind::ALL {
            for batch in Batch::ALL {
                let all = Arm::ALL.map(|arm| Cell { worker, arm, batch });
                cells.extend(all.into_iter().filter(|cell| self.includes(*cell)));
            }
        }
        cells
    }

    /// Returns the warm-up and all laps over the loads.
    fn phases(&self, arm: Arm) -> Vec<Phase> {
        let laps = if arm.is_slow() { self.laps } else { 1 };
        // Ascending loads: leftover tasks of one load then disturb the next least.
        let mut loads = self.loads.clone();
        loads.sort_by(|first, second| first.mean().total_cmp(&second.mean()));
        let lap = loads.iter().map(|load| Phase {
            load: *load,
            windows: self.windows,
            is_measured: true,
        });
        let laps = std::iter::repeat_n(lap.collect::<Vec<_>>(), laps).flatten();
        std::iter::once(WARM_UP).chain(laps).collect()
    }

    /// Returns a block without batch, as the reference for a worker's rows.
    fn control(&self, worker: WorkerKind, seed: u64) -> Block {
        // `Arm::None` runs no batch; the cell names one nevertheless.
        let cell = Cell { worker, arm: Arm::None, batch: self.batches[0] };
        Block { cell, purpose: Purpose::Control, seed, phases: self.phases(Arm::None) }
    }

    /// Returns all blocks of a seed: first each batch alone; then for each worker, in random order, a control, its rows
    /// in random order, and a control again; then the blocks for the bars. All but the rows ignore the selected arms.
    #[must_use]
    pub fn blocks(&self, seed: u64) -> Vec<Block> {
        let mut order = Xoshiro256PlusPlus::seed_from_u64(seed);
        let cells = self.cells();
        let mut blocks = Vec::new();
        let no_load = Load::Steady(0.0);
        for batch in self.batches.iter().copied() {
            let cell = Cell { worker: WorkerKind::ParkedFifo, arm: Arm::Idle, batch };
            let phases = vec![
                Phase { load: no_load, ..WARM_UP },
                Phase { load: no_load, windows: self.windows.max(2), is_measured: true },
            ];
            blocks.push(Block { cell, purpose: Purpose::Alone, seed, phases });
        }
        let mut workers = self.workers.clone();
        workers.shuffle(&mut order);
        for worker in workers {
            let mut rows: Vec<_> = cells.iter().filter(|cell| cell.worker == worker).collect();
            rows.shuffle(&mut order);
            blocks.push(self.control(worker, seed));
            blocks.extend(rows.into_iter().map(|cell| Block {
                cell: *cell,
                purpose: Purpose::Row,
                seed,
                phases: self.phases(cell.arm),
            }));
            blocks.push(self.control(worker, seed));
        }
        if self.bar_windows > 0 {
            blocks.extend(self.bars(seed));
        }
        blocks
    }

    /// Returns the blocks for the bars (required values): a pair with and without batch, and steps in load. The pair
    /// shows the batch's cost in hand-over time and its progress. The steps show how fast the guard throttles it.
    fn bars(&self, seed: u64) -> Vec<Block> {
        let (worker, batch) = (WorkerKind::ParkedFifo, self.batches[0]);
        let measured =
            |part, windows| Phase { load: Load::Steady(part), windows, is_measured: true };
        // The order of the pair alternates with the seed, so that a slow spell of the machine affects
        // both arms.
        let mut pair = [Arm::None, Arm::Idle].map(|arm| Block {
            cell: Cell { worker, arm, batch },
            purpose: Purpose::Pair,
            seed,
            phases: vec![WARM_UP, measured(0.2, self.bar_windows)],
        });
        if seed.is_multiple_of(2) {
            pair.reverse();
        }
        // Each step: three windows of low load, then three of high load. Repeated until each load has `bar_windows`.
        let step = [measured(0.2, 3), measured(0.8, 3)];
        let steps = std::iter::repeat_n(step, self.bar_windows.div_ceil(3)).flatten();
        let step = Block {
            cell: Cell { worker, arm: Arm::Guard, batch },
            purpose: Purpose::Step,
            seed,
            phases: std::iter::once(WARM_UP).chain(steps).collect(),
        };
        pair.into_iter().chain([step]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a choice of all arms, workers, batches and loads, without `--full`.
    fn all() -> Choice {
        Choice {
            arms: Arm::ALL.into(),
            workers: WorkerKind::ALL.into(),
            batches: Batch::ALL.into(),
            loads: Load::STEPS.into(),
            is_full: false,
            windows: 2,
            laps: 3,
            bar_windows: 6,
        }
    }

    // promise: speed.2
    #[test]
    fn full_plan_has_a_row_per_combination() {
        let cells = all().cells();
        assert!(Arm::ALL[1..].iter().all(|arm| cells.iter().any(|cell| cell.arm == *arm)));
        assert!(WorkerKind::ALL.iter().all(|kind| cells.iter().any(|cell| cell.worker == *kind)));
        assert!(Batch::ALL.iter().all(|batch| cells.iter().any(|cell| cell.batch == *batch)));
        let full = Choice { is_full: true, ..all() };
        // All arms except `None`, beside all workers and batches.
        assert_eq!(full.cells().len(), 8 * 4 * 4);
    }

    // promise: speed.2
    #[test]
    fn groups_have_controls_and_seeds_reorder() {
        let blocks = all().blocks(1);
        for worker in WorkerKind::ALL {
            let is_of = |block: &&Block| {
                block.cell.worker == worker
                    && matches!(block.purpose, Purpose::Row | Purpose::Control)
            };
            let group: Vec<_> = blocks.iter().filter(is_of).collect();
            let rows = &group[1..group.len() - 1];
            // At least the four arms with different mechanisms.
            assert!(rows.len() >= 4 && rows.iter().all(|block| block.purpose == Purpose::Row));
            for end in [group[0], group[group.len() - 1]] {
                assert_eq!((end.purpose, end.cell.arm), (Purpose::Control, Arm::None));
            }
        }
        let cells = |seed| all().blocks(seed).into_iter().map(|it| it.cell).collect::<Vec<_>>();
        assert_ne!(cells(1), cells(2));
        assert_eq!(cells(1), cells(1));
    }

    // promise: speed.2
    #[test]
    fn loads_round_trip_and_bursts_alternate() {
        for load in Load::STEPS {
            assert_eq!(load.name().parse(), Ok(load));
        }
        let names = [0.2, 0.123, 0.125].map(|part| Load::Steady(part).name());
        assert_eq!(names, ["20%", "12.3%", "12.5%"]);
        for wrong in ["", "20", "120%", "many"] {
            assert!(wrong.parse::<Load>().unwrap_err().contains("20%"));
        }
        assert!((Load::Bursts.mean() - 0.275).abs() < 1e-9);
        let parts = [0, 49, 51, 199, 201].map(|ms| Load::Bursts.at(ms * 1_000_000));
        assert_eq!(parts, [0.8, 0.8, 0.1, 0.1, 0.8]);
    }
}
