//! What is measured: which batch is held how, beside which worker, under which load, and in which order.

use clap::ValueEnum;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;
use wedjat::cosched::Policy;
use wedjat_cosched::mechanism::Class;
use wedjat_cosched::{Mode, Share};

use crate::batch::Batch;

/// How a batch is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// No batch
    None,
    /// A quota of half the core, of the normal class
    Static,
    /// The least weight (cpu.shares = 2), of the normal class
    Shares,
    /// The idle class alone (cpu.idle, SCHED_IDLE), no quota
    Idle,
    /// All that the guard allows, of the idle class
    Guard,
    /// A tenth more after each round that did no harm, half as much after one that did; guarded, of the idle class
    Aimd,
    /// ASA_X as printed; guarded, of the idle class
    AsaxPaper,
    /// ASA_X with weighted risk; guarded, of the idle class
    AsaxIw,
    /// ASA_X with weighted risk and the batch's unhappiness; guarded, of the idle class
    AsaxBalanced,
}

impl Arm {
    /// All of them.
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

    /// Its name.
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

    /// Who says how much the batch gets; none without a batch.
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

    /// How it learns, if it does.
    #[must_use]
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::AsaxPaper => Some(Mode::Paper),
            Self::AsaxIw => Some(Mode::Iw),
            Self::AsaxBalanced => Some(Mode::Balanced),
            _ => None,
        }
    }

    /// The batch's. Quota and weight alone are what one would do without the idle class, so they are measured without it.
    #[must_use]
    pub fn class(self) -> Class {
        match self {
            Self::Static | Self::Shares => Class::Normal,
            _ => Class::Idle,
        }
    }

    /// It begins with little and takes rounds to come to what it is.
    fn is_slow(self) -> bool {
        self == Self::Aimd || self.mode().is_some()
    }
}

/// What the worker does while no task comes, and how it ranks.
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
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::ParkedFifo, Self::ParkedNormal, Self::PollingFifo, Self::PollingNormal];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ParkedFifo => "parked-fifo",
            Self::ParkedNormal => "parked-normal",
            Self::PollingFifo => "polling-fifo",
            Self::PollingNormal => "polling-normal",
        }
    }

    /// It never sleeps.
    #[must_use]
    pub fn polls(self) -> bool {
        matches!(self, Self::PollingFifo | Self::PollingNormal)
    }

    /// It comes before all that are not of real time.
    #[must_use]
    pub fn is_real_time(self) -> bool {
        matches!(self, Self::ParkedFifo | Self::PollingFifo)
    }
}

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cell {
    /// What the worker is like.
    pub worker: WorkerKind,
    /// What the batch does.
    pub batch: Batch,
    /// How the batch is held.
    pub arm: Arm,
}

/// Part of the worker's capacity that tasks ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Always the same part.
    Steady(f64),
    /// In turn much for a while and little for a longer one.
    Bursts,
}

impl Load {
    /// The steps, and bursts.
    pub const STEPS: [Self; 5] =
        [Self::Steady(0.2), Self::Steady(0.4), Self::Steady(0.6), Self::Steady(0.8), Self::Bursts];
    /// Of bursts: how long much comes and how long little does, in nanoseconds, and how much each is.
    pub const BURSTS: [(u64, f64); 2] = [(50_000_000, 0.8), (150_000_000, 0.1)];

    /// As it stands in tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Steady(part) => format!("{:.0}%", part * 100.0),
            Self::Bursts => "bursts".to_owned(),
        }
    }

    /// The part in the mean.
    #[must_use]
    pub fn mean(self) -> f64 {
        match self {
            Self::Steady(part) => part,
            Self::Bursts => {
                let [(long, much), (longer, little)] = Self::BURSTS;
                (long as f64 * much + longer as f64 * little) / (long + longer) as f64
            }
        }
    }

    /// The part so long after its begin.
    #[must_use]
    pub fn at(self, since_ns: u64) -> f64 {
        match self {
            Self::Steady(part) => part,
            Self::Bursts => {
                let [(long, much), (longer, little)] = Self::BURSTS;
                if since_ns % (long + longer) < long { much } else { little }
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
            _ => Err(format!("{text:?} is no load: a percentage up to 95%, as in 20%, or bursts")),
        }
    }
}

/// A load for so many windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// How much comes.
    pub load: Load,
    /// For so many windows.
    pub windows: usize,
    /// Whether they count; none does while a block comes to itself.
    pub is_measured: bool,
}

/// What a cell's block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// A row of the table.
    Row,
    /// A control before or after a group of blocks.
    Control,
    /// The batch on an idle core.
    Alone,
    /// With and without batch in turn, under the least load.
    Pair,
    /// Steps from the least load to the most, looked at closely.
    Step,
}

/// A cell, once, with one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// What.
    pub cell: Cell,
    /// What for.
    pub purpose: Purpose,
    /// Of arrivals, service times and the chooser.
    pub seed: u64,
    /// Under which loads.
    pub phases: Vec<Phase>,
}

/// What is chosen of all there is.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Arms.
    pub arms: Vec<Arm>,
    /// Workers.
    pub workers: Vec<WorkerKind>,
    /// Batches.
    pub batches: Vec<Batch>,
    /// Loads.
    pub loads: Vec<Load>,
    /// All combinations.
    pub is_full: bool,
    /// Windows of each load in a block.
    pub windows: usize,
    /// How often arms that learn go through all loads in a block.
    pub laps: usize,
    /// Windows of each half of a pair, and of each half of a step; 0 leaves both out.
    pub bar_windows: usize,
}

/// Windows in which a block comes to itself.
const WARM_UP: Phase = Phase { load: Load::Steady(0.2), windows: 1, is_measured: false };

impl Choice {
    /// A row is measured. Of the whole product that is: all arms beside the worker that the mechanism is made for, with the batch
    /// that harms least; beside the other workers the arms that differ by mechanism; and with other batches, which differ by
    /// what they do to caches, memory and processes, the mechanism alone, the guard, and for memory a quota and a learner.
    fn has(&self, cell: Cell) -> bool {
        let Cell { worker, arm, batch } = cell;
        let is_chosen = self.arms.contains(&arm)
            && self.workers.contains(&worker)
            && self.batches.contains(&batch);
        let is_plain = batch == self.batches[0];
        let is_main = worker == self.workers[0];
        let by_mechanism = matches!(arm, Arm::Static | Arm::Shares | Arm::Idle | Arm::Guard);
        let of_batches = match batch {
            Batch::Memory => {
                matches!(arm, Arm::Static | Arm::Idle | Arm::Guard | Arm::AsaxBalanced)
            }
            _ => matches!(arm, Arm::Idle | Arm::Guard),
        };
        is_chosen
            && arm != Arm::None
            && (self.is_full || (is_main && (is_plain || of_batches)) || (is_plain && by_mechanism))
    }

    /// The rows that are measured.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for worker in WorkerKind::ALL {
            for batch in Batch::ALL {
                let all = Arm::ALL.map(|arm| Cell { worker, arm, batch });
                cells.extend(all.into_iter().filter(|cell| self.has(*cell)));
            }
        }
        cells
    }

    fn phases(&self, arm: Arm) -> Vec<Phase> {
        let laps = if arm.is_slow() { self.laps } else { 1 };
        // From the least to the most, so that what waits after one spoils the next the least.
        let mut loads = self.loads.clone();
        loads.sort_by(|one, other| one.mean().total_cmp(&other.mean()));
        let lap = loads.iter().map(|load| Phase {
            load: *load,
            windows: self.windows,
            is_measured: true,
        });
        let laps = std::iter::repeat_n(lap.collect::<Vec<_>>(), laps).flatten();
        std::iter::once(WARM_UP).chain(laps).collect()
    }

    fn control(&self, worker: WorkerKind, seed: u64) -> Block {
        let cell = Cell { worker, arm: Arm::None, batch: self.batches[0] };
        Block { cell, purpose: Purpose::Control, seed, phases: self.phases(Arm::None) }
    }

    /// All blocks of a seed: what each batch does alone; then for each worker a control, its rows in an order of the seed's, and
    /// a control again; then what the bars need.
    #[must_use]
    pub fn blocks(&self, seed: u64) -> Vec<Block> {
        let mut order = Xoshiro256PlusPlus::seed_from_u64(seed);
        let cells = self.cells();
        let mut blocks = Vec::new();
        let still = Load::Steady(0.0);
        for batch in self.batches.iter().copied() {
            let cell = Cell { worker: WorkerKind::ParkedFifo, arm: Arm::Idle, batch };
            let phases = vec![
                Phase { load: still, ..WARM_UP },
                Phase { load: still, windows: self.windows.max(2), is_measured: true },
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

    fn bars(&self, seed: u64) -> Vec<Block> {
        let (worker, batch) = (WorkerKind::ParkedFifo, self.batches[0]);
        let measured =
            |part, windows| Phase { load: Load::Steady(part), windows, is_measured: true };
        // Which of the two is first changes with the seed.
        let mut pair = [Arm::None, Arm::Idle].map(|arm| Block {
            cell: Cell { worker, arm, batch },
            purpose: Purpose::Pair,
            seed,
            phases: vec![WARM_UP, measured(0.2, self.bar_windows)],
        });
        if seed.is_multiple_of(2) {
            pair.reverse();
        }
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

    #[test]
    fn every_arm_worker_and_batch_has_a_row_and_the_full_plan_has_all() {
        let cells = all().cells();
        assert!(Arm::ALL[1..].iter().all(|arm| cells.iter().any(|cell| cell.arm == *arm)));
        assert!(WorkerKind::ALL.iter().all(|kind| cells.iter().any(|cell| cell.worker == *kind)));
        assert!(Batch::ALL.iter().all(|batch| cells.iter().any(|cell| cell.batch == *batch)));
        let full = Choice { is_full: true, ..all() };
        assert_eq!(full.cells().len(), 8 * 4 * 4);
    }

    #[test]
    fn each_group_has_a_control_before_and_after_it_and_seeds_have_other_orders() {
        let blocks = all().blocks(1);
        for worker in WorkerKind::ALL {
            let is_of = |block: &&Block| {
                block.cell.worker == worker
                    && matches!(block.purpose, Purpose::Row | Purpose::Control)
            };
            let group: Vec<_> = blocks.iter().filter(is_of).collect();
            let rows = &group[1..group.len() - 1];
            assert!(rows.len() >= 4 && rows.iter().all(|block| block.purpose == Purpose::Row));
            for end in [group[0], group[group.len() - 1]] {
                assert_eq!((end.purpose, end.cell.arm), (Purpose::Control, Arm::None));
            }
        }
        let cells = |seed| all().blocks(seed).into_iter().map(|it| it.cell).collect::<Vec<_>>();
        assert_ne!(cells(1), cells(2));
        assert_eq!(cells(1), cells(1));
    }

    #[test]
    fn loads_are_read_as_they_are_shown_and_bursts_come_and_go() {
        for load in Load::STEPS {
            assert_eq!(load.name().parse(), Ok(load));
        }
        for wrong in ["", "20", "120%", "many"] {
            assert!(wrong.parse::<Load>().unwrap_err().contains("20%"));
        }
        assert!((Load::Bursts.mean() - 0.275).abs() < 1e-9);
        let parts = [0, 49, 51, 199, 201].map(|ms| Load::Bursts.at(ms * 1_000_000));
        assert_eq!(parts, [0.8, 0.8, 0.1, 0.1, 0.8]);
    }
}
