//! A whole fabric in emulated time: a controller, spines, leaves, agents with emulated workers and clients, under load, while parts of
//! it are killed, cut off, added and drained; what was lost by each, and how long it took until all went on.

pub mod controllers;
pub mod page;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::Serialize;
use wedjat::controller::Command;
use wedjat::policy::PolicySpec;

use crate::lockstep::system::plan::{POOL, SPINE_IDS, START_NS};
use crate::lockstep::system::told::{self, Told, Truth, command};
use crate::lockstep::system::{self, Ended, Faults, Given, Outcome, Plan};
use controllers::{CHANGE_MAX, Controllers};

/// A leaf that is silent is out of its spine's choice within so long.
const OUT_OF_CHOICE_MS: f64 = 50.0;
/// A service address is taken over within so long.
const TAKEN_OVER_MS: f64 = 200.0;
/// Two heartbeats.
const AGREED_MS: f64 = 20.0;
/// A change is with all leaves within so long.
const CHANGED_MS: f64 = 100.0;
/// A task that is lost was sent at most so long before what it was lost to.
const UNDER_WAY_NS: u64 = 20_000_000;
const MS: u64 = 1_000_000;
/// The leaf whose rack is added, the one that is drained, and those that are in trouble.
const ADDED: u16 = 5;
const DRAINED: u16 = 3;
const KILLED: u16 = 1;
const CUT: u16 = 2;

/// Which controllers run beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Real {
    /// Two, over an etcd of three members.
    Etcd,
    /// One, with a file.
    File,
    /// None.
    None,
}

/// What is played.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The spines' policy.
    pub spine: PolicySpec,
    /// The leaves'.
    pub leaf: PolicySpec,
    /// Service times.
    pub service: String,
    /// Offered work as a share of what all workers but the added ones can do.
    pub load: f64,
    /// All random streams follow from this.
    pub seed: u64,
    /// Controllers as processes.
    pub real: Real,
    /// The command of `wedjat`, for these.
    pub wedjat: Option<PathBuf>,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    LeafKilled,
    LeafBack,
    SpineKilled,
    LinkCut,
    LinkBack,
    LeaderStopped,
    LeaderKilled,
    MemberKilled,
    RackAdded,
    RackDrained,
}

/// All of it, with its time in milliseconds.
const STORY: [(Happening, u64); 10] = [
    (Happening::LeafKilled, 100),
    (Happening::LeafBack, 250),
    (Happening::SpineKilled, 400),
    (Happening::LinkCut, 700),
    (Happening::LinkBack, 800),
    (Happening::LeaderStopped, 900),
    (Happening::LeaderKilled, 930),
    (Happening::MemberKilled, 960),
    (Happening::RackAdded, 1000),
    (Happening::RackDrained, 1200),
];
/// Tasks are sent for so long.
const END_MS: u64 = 1400;
/// The killed spine is there again, and what it may be is restored.
const SPINE_BACK_MS: (u64, u64) = (600, 650);

/// One event, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What happened.
    pub event: &'static str,
    /// When, in emulated milliseconds from the first task on.
    pub at_ms: u64,
    /// Tasks that were neither answered nor given back.
    pub lost: u64,
    /// Until all went on, in milliseconds; none if it was not run.
    pub recovered_ms: Option<f64>,
    /// At most so long.
    pub bound_ms: f64,
    /// It did so, and nothing was lost where nothing may be; none if it was not run.
    pub holds: Option<bool>,
    /// What to know of it.
    pub note: String,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// Each event.
    pub rows: Vec<Row>,
    /// The whole run.
    pub outcome: Outcome,
    /// What was run, in a sentence.
    pub summary: String,
}

impl Report {
    /// All bounds hold, nothing was violated, and nothing was lost but by these events.
    #[must_use]
    pub fn holds(&self) -> bool {
        let all: u64 = self.outcome.lost.values().sum();
        self.outcome.violations.is_empty()
            && all == self.rows.iter().map(|row| row.lost).sum::<u64>()
            && self.rows.iter().all(|row| row.holds != Some(false))
    }
}

fn at_ns(happening: Happening) -> u64 {
    let found = STORY.iter().find(|(one, _)| *one == happening);
    START_NS + found.map_or(0, |(_, at_ms)| at_ms * MS)
}

/// What a plan of faults says of the story.
fn faults() -> String {
    let ms = |happening| (at_ns(happening) - START_NS) / MS;
    format!(
        "kill=leaf{KILLED}@{}ms..{}ms,kill=spine1@{}ms..{}ms,cut=spine2-leaf{CUT}@{}ms..{}ms",
        ms(Happening::LeafKilled),
        ms(Happening::LeafBack),
        ms(Happening::SpineKilled),
        SPINE_BACK_MS.0,
        ms(Happening::LinkCut),
        ms(Happening::LinkBack)
    )
}

fn plan(setting: &Setting) -> Result<Plan, String> {
    let given = Given {
        spines: Some(2),
        leaves: Some(ADDED),
        agents: Some(2 * ADDED),
        workers: Some(4),
        spine: Some(setting.spine.clone()),
        leaf: Some(setting.leaf.clone()),
        agent: Some("cfcfs".parse().map_err(|error| format!("{error}"))?),
        queue: Some(4096),
        refuse: Some(false),
        service: Some(setting.service.clone()),
        load: Some(setting.load * f64::from(ADDED - 1) / f64::from(ADDED)),
        hop_ns: Some(5_000),
        node_delay_ns: Some(200),
        faults: Some("none".to_owned()),
        ..Given::default()
    };
    let mut plan = Plan::draw(setting.seed, &given)?;
    plan.tasks = (plan.rate() * (END_MS * MS) as f64) as u64;
    plan.faults = Faults::parse(&faults(), &plan.topology)?;
    plan.is_told = true;
    Ok(plan)
}

/// What is done at a time, beside the plan's faults.
#[derive(Clone, Debug)]
enum Act {
    Commands(Vec<Command>),
    /// And a command meanwhile or afterwards, which somebody must take.
    Real(Happening, Command),
}

/// Workers of so many racks.
fn workers(plan: &Plan, racks: u16) -> u16 {
    racks * 2 * plan.topology.workers
}

/// What is done when, in milliseconds.
fn acts(plan: &Plan) -> Result<Vec<(u64, Act)>, String> {
    let commands =
        |texts: &[String]| texts.iter().map(|text| command(text)).collect::<Result<Vec<_>, _>>();
    let ms = |happening| (at_ns(happening) - START_NS) / MS;
    let mut added = told::rack(plan, ADDED)?;
    added.push(command(&format!("resize-pool id={POOL} workers={}", workers(plan, ADDED)))?);
    let drained =
        plan.agents_of(DRAINED).map(|agent| format!("drain-server ip={}", Plan::server(agent)));
    let real = |happening, queue: usize| -> Result<_, String> {
        let command = command(&format!("set-queue pool={POOL} queue={queue}"))?;
        Ok((ms(happening), Act::Real(happening, command)))
    };
    Ok(vec![
        (
            SPINE_BACK_MS.1,
            Act::Commands(vec![command(&format!("restore-spine id={}", SPINE_IDS + 1))?]),
        ),
        real(Happening::LeaderStopped, 4095)?,
        real(Happening::LeaderKilled, 4094)?,
        real(Happening::MemberKilled, 4093)?,
        (ms(Happening::RackAdded), Act::Commands(added)),
        (ms(Happening::RackDrained), Act::Commands(commands(&drained.collect::<Vec<_>>())?)),
    ])
}

/// How long a command took in real time that was given when a controller or a member of etcd failed, in milliseconds.
type Took = BTreeMap<Happening, f64>;

type SharedControllers = Rc<RefCell<Controllers>>;

/// What is done beside the plan's faults, and the controllers that run beside it.
struct Script {
    acts: Vec<Act>,
    real: Option<SharedControllers>,
    took: Took,
}

impl Script {
    fn act(&mut self, truth: &mut Truth, number: usize, now_ns: u64) -> Result<(), String> {
        match &self.acts[number] {
            Act::Commands(commands) => {
                commands.iter().try_for_each(|command| truth.command(command, now_ns))
            }
            Act::Real(happening, command) => {
                let (happening, command) = (*happening, command.clone());
                self.fail(happening, || truth.command(&command, now_ns), &command)
            }
        }
    }

    /// A controller or a member of etcd fails, and `keep` has a command kept all the same.
    fn fail(
        &mut self,
        happening: Happening,
        keep: impl FnOnce() -> Result<(), String>,
        command: &Command,
    ) -> Result<(), String> {
        let Some(real) = self.real.as_ref().filter(|real| real.borrow().has_standby()) else {
            return keep();
        };
        let began = Instant::now();
        let kept = || -> Result<(), String> {
            keep()?;
            self.took.insert(happening, began.elapsed().as_secs_f64() * 1e3);
            Ok(())
        };
        match happening {
            Happening::LeaderStopped => {
                return real.borrow().depose_leader(kept, command);
            }
            Happening::LeaderKilled => real.borrow_mut().kill_leader()?,
            _ => real.borrow_mut().kill_member(),
        }
        kept()
    }
}

/// The controllers that are to run beside it.
fn controllers(setting: &Setting) -> Result<Option<SharedControllers>, String> {
    if setting.real == Real::None {
        return Ok(None);
    }
    let wedjat = setting.wedjat.as_ref().ok_or("the command `wedjat` is needed for controllers")?;
    let controllers = Controllers::start(wedjat, setting.real == Real::Etcd)?;
    Ok(Some(Rc::new(RefCell::new(controllers))))
}

/// Plays it.
///
/// # Errors
/// When it can't be played, or a controller does not do what it is asked.
pub fn run(setting: &Setting, stop: &AtomicBool) -> Result<Report, String> {
    let mut plan = plan(setting)?;
    let (times, acts): (Vec<_>, Vec<_>) = acts(&plan)?.into_iter().unzip();
    plan.acts = times.into_iter().map(|at_ms: u64| at_ms * MS).collect();
    let real = controllers(setting)?;
    let keep = real.clone().map(|real| -> told::Keep {
        Box::new(move |command, version| real.borrow().keep(command, version))
    });
    let mut truth = Truth::new(keep);
    for command in told::begin(&plan, ADDED - 1, 1)? {
        truth.command(&command, 0)?;
    }
    let mut script = Script { acts, real, took: Took::new() };
    let act = |truth: &mut Truth, number, now_ns| script.act(truth, number, now_ns);
    let mut maker = Told { truth: Rc::new(RefCell::new(truth)), act };
    let outcome = system::run(&plan, &mut maker, stop).map_err(|error| error.to_string())?;
    let rows = rows(&plan, &outcome, &script.took);
    Ok(Report { rows, summary: summary(setting, &plan), outcome })
}

fn summary(setting: &Setting, plan: &Plan) -> String {
    let controllers = match setting.real {
        Real::Etcd => "two controllers over an etcd of three members",
        Real::File => "a controller with a file",
        Real::None => "a controller in this process",
    };
    format!(
        "{controllers}, {} spines ({}), {} leaves ({}), {} agents with {} emulated workers each, {} tasks of {} at {:.0}% load, \
         seed {}.",
        plan.topology.spines,
        plan.spine,
        ADDED - 1,
        plan.leaf,
        2 * (ADDED - 1),
        plan.topology.workers,
        plan.tasks,
        plan.service_text,
        setting.load * 100.0,
        setting.seed
    )
}

fn ms_after(then_ns: u64, since_ns: u64) -> f64 {
    then_ns.saturating_sub(since_ns) as f64 / MS as f64
}

fn rows(plan: &Plan, outcome: &Outcome, took: &Took) -> Vec<Row> {
    let row = |number: usize| {
        let (happening, at_ms) = STORY[number];
        let from_ns = at_ns(happening);
        let to_ns = STORY.get(number + 1).map_or(u64::MAX, |(next, _)| at_ns(*next));
        let under_way = |ns: u64| ns.saturating_sub(UNDER_WAY_NS);
        let span = under_way(from_ns)..under_way(to_ns);
        let lost: Vec<_> = outcome
            .ended
            .iter()
            .filter(|task| task.lost.is_some() && span.contains(&task.sent_ns))
            .collect();
        let found = Found { ended: &outcome.ended, lost: &lost, from_ns, to_ns };
        let (event, recovered_ms, bound_ms, may_lose) = found.judge(happening, plan, took);
        let holds = recovered_ms.map(|ms| ms <= bound_ms && (may_lose || lost.is_empty()));
        let note = note(happening, recovered_ms.is_some());
        Row {
            event,
            at_ms,
            lost: lost.len() as u64,
            recovered_ms,
            bound_ms,
            holds,
            note: note.to_owned(),
        }
    };
    (0..STORY.len()).map(row).collect()
}

/// What to know of an event.
fn note(happening: Happening, has_run: bool) -> &'static str {
    match happening {
        Happening::LeaderStopped | Happening::LeaderKilled | Happening::MemberKilled
            if !has_run =>
        {
            "not run: etcd is not installed, or was not asked for"
        }
        Happening::LeaderStopped => "real time; what it writes as soon as it goes on is refused",
        Happening::LeaderKilled | Happening::MemberKilled => "real time; emulated time stood still",
        _ if !has_run => "nothing came of it",
        _ => "",
    }
}

/// What the tasks tell of one event.
struct Found<'a> {
    ended: &'a [Ended],
    lost: &'a [&'a Ended],
    from_ns: u64,
    to_ns: u64,
}

impl Found<'_> {
    /// When spines sent tasks to a leaf, from the event to the next.
    fn passed(&self, leaf: u16) -> impl Iterator<Item = u64> {
        let span = self.from_ns..self.to_ns;
        let to = self.ended.iter().filter_map(move |task| task.leaf.filter(|(to, _)| *to == leaf));
        to.map(|(_, passed_ns)| passed_ns).filter(move |passed_ns| span.contains(passed_ns))
    }

    fn last_passed(&self, leaf: u16) -> f64 {
        self.passed(leaf).max().map_or(0.0, |last_ns| ms_after(last_ns, self.from_ns))
    }

    fn first_passed(&self, leaf: u16) -> Option<f64> {
        self.passed(leaf).min().map(|first_ns| ms_after(first_ns, self.from_ns))
    }

    /// Its name, how long it took until all went on, the bound, and whether it may lose tasks.
    fn judge(
        &self,
        happening: Happening,
        plan: &Plan,
        took: &Took,
    ) -> (&'static str, Option<f64>, f64, bool) {
        let change_ms = CHANGE_MAX.as_secs_f64() * 1e3;
        let took = || took.get(&happening).copied();
        match happening {
            Happening::LeafKilled => {
                ("a leaf is killed", Some(self.last_passed(KILLED)), OUT_OF_CHOICE_MS, true)
            }
            Happening::LeafBack => {
                ("it is started anew", self.first_passed(KILLED), CHANGED_MS, false)
            }
            Happening::SpineKilled => {
                let last = self.lost.iter().map(|task| task.sent_ns).max();
                let gone = last.map(|last_ns| ms_after(last_ns, self.from_ns));
                ("the spine is killed", gone, TAKEN_OVER_MS, true)
            }
            Happening::LinkCut => (
                "a link of spine and leaf is cut",
                Some(self.last_passed(CUT)),
                OUT_OF_CHOICE_MS,
                true,
            ),
            Happening::LinkBack => ("it is mended", self.first_passed(CUT), AGREED_MS, false),
            Happening::LeaderStopped => {
                ("the leading controller stands still", took(), change_ms, false)
            }
            Happening::LeaderKilled => {
                ("the one that leads now is killed", took(), change_ms, false)
            }
            Happening::MemberKilled => ("a member of etcd is killed", took(), change_ms, false),
            Happening::RackAdded => {
                ("a rack is added", self.first_passed(ADDED), CHANGED_MS, false)
            }
            Happening::RackDrained => {
                let workers = plan.workers_of(DRAINED);
                let is_its =
                    |task: &&Ended| task.worker.is_some_and(|worker| workers.contains(&worker));
                let sent = self.ended.iter().filter(is_its).filter_map(|task| Some(task.leaf?.1));
                let last = sent.filter(|sent_ns| *sent_ns >= self.from_ns).max();
                let last = last.map_or(0.0, |last_ns| ms_after(last_ns, self.from_ns));
                ("a rack is drained", Some(last), CHANGED_MS, false)
            }
        }
    }
}

/// The rows as text.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<34} {:>7} {:>7} {:>13} {:>9}  holds\n",
        "event", "at ms", "lost", "recovered ms", "bound ms"
    );
    for row in rows {
        let recovered = row.recovered_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
        let holds = row.holds.map_or("-", |holds| if holds { "yes" } else { "NO" });
        text += &format!(
            "{:<34} {:>7} {:>7} {:>13} {:>9.0}  {holds}  {}\n",
            row.event, row.at_ms, row.lost, recovered, row.bound_ms, row.note
        );
    }
    text
}
