//! A whole fabric in emulated time: a controller, spines, leaves, agents with emulated workers, and clients.
//! Under load, parts of it are killed, cut off, added and drained. The report has the lost tasks and the
//! recovery time of each event.
//!
//! A spine distributes tasks over leaves, each of which schedules the workers of one rack. The plan describes the
//! system and its load, with killed nodes and cut links. The script adds commands to the controller and faults of
//! controllers. The nodes follow an emulated controller. Controller processes may run beside it in real time. They
//! store the same commands, and faults of controllers affect only them.

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

use crate::lockstep::system::controlled::{self, ControlledNodes, DesiredState, command};
use crate::lockstep::system::plan::{POOL, SPINE_IDS, START_NS};
use crate::lockstep::system::{self, FaultPlan, Outcome, Plan, PlanOptions, TaskResult};
use controllers::{CHANGE_MAX, Controllers};

/// Maximum time until a spine excludes a silent leaf from its choices, after three missing heartbeats.
const EXCLUSION_MS: f64 = 50.0;
/// Maximum time for the takeover of a service address.
const TAKEOVER_MS: f64 = 200.0;
/// Maximum time until a spine uses a leaf again over a mended link: two heartbeats.
const RESTORATION_MS: f64 = 20.0;
/// Maximum time until a change takes effect at all leaves.
const CHANGE_MS: f64 = 100.0;
/// Maximum time from the sending of a task to the event that causes its loss.
const IN_FLIGHT_NS: u64 = 20_000_000;
/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Number of the leaf of the added rack, the last one. Leaves are numbered from 1.
const ADDED_LEAF: u16 = 5;
/// Number of the leaf whose rack is drained.
const DRAINED_LEAF: u16 = 3;
/// Number of the killed leaf.
const KILLED_LEAF: u16 = 1;
/// Number of the leaf whose link to a spine is cut.
const CUT_LEAF: u16 = 2;

/// Controller processes beside the emulated fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealControllers {
    /// Two, over an etcd of three members.
    Etcd,
    /// One, with a file.
    File,
    /// None.
    None,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Policy of the spines.
    pub spine: PolicySpec,
    /// Policy of the leaves.
    pub leaf: PolicySpec,
    /// Distribution of service times.
    pub service: String,
    /// Load as a fraction of the capacity of all workers, without the added ones.
    pub load: f64,
    /// Seed of all random streams.
    pub seed: u64,
    /// Controller processes.
    pub real: RealControllers,
    /// Command of `wedjat` for the controllers.
    pub wedjat: Option<PathBuf>,
}

/// Kind of event. "Back" means that the fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FabricEvent {
    LeafKilled,
    LeafBack,
    SpineKilled,
    LinkCut,
    LinkBack,
    /// The leading controller gets SIGSTOP, and resumes after another one leads.
    LeaderStopped,
    LeaderKilled,
    /// A member of etcd is killed.
    MemberKilled,
    RackAdded,
    RackDrained,
}

impl FabricEvent {
    /// Returns true for faults of controllers and their store, which need a standby controller and thus etcd.
    fn is_of_controllers(self) -> bool {
        matches!(self, Self::LeaderStopped | Self::LeaderKilled | Self::MemberKilled)
    }
}

/// All events with their times in milliseconds.
const SCHEDULE: [(FabricEvent, u64); 10] = [
    (FabricEvent::LeafKilled, 100),
    (FabricEvent::LeafBack, 250),
    (FabricEvent::SpineKilled, 400),
    (FabricEvent::LinkCut, 700),
    (FabricEvent::LinkBack, 800),
    (FabricEvent::LeaderStopped, 900),
    (FabricEvent::LeaderKilled, 930),
    (FabricEvent::MemberKilled, 960),
    (FabricEvent::RackAdded, 1000),
    (FabricEvent::RackDrained, 1200),
];
/// Time in which tasks are sent.
const END_MS: u64 = 1400;
/// Times of the killed spine's restart and of its restoration by the controller.
const SPINE_BACK_MS: (u64, u64) = (600, 650);

/// An event and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the event.
    pub event: &'static str,
    /// Emulated time since the first task, in milliseconds.
    pub at_ms: u64,
    /// Number of tasks that were neither answered nor returned, of those sent from shortly before this event until
    /// shortly before the next.
    pub lost: u64,
    /// Recovery time in milliseconds; `None` if the event was not run or had no effect on tasks.
    pub recovered_ms: Option<f64>,
    /// Maximum recovery time.
    pub bound_ms: f64,
    /// True if the recovery met the bound, without forbidden losses. False without an effect on tasks, which
    /// shows no recovery. `None` if the event was not run.
    pub holds: Option<bool>,
    /// Note for the reader.
    pub note: String,
}

/// Report of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Result of each event.
    pub rows: Vec<Row>,
    /// Outcome of the whole run.
    pub outcome: Outcome,
    /// Description of the run in one sentence.
    pub summary: String,
}

impl Report {
    /// Returns true if each event that was run holds ([`Row::holds`]), there is no violation, and each lost task
    /// belongs to an event. Losses of an event that was not run are allowed.
    #[must_use]
    pub fn holds(&self) -> bool {
        let all: u64 = self.outcome.lost.values().sum();
        self.outcome.violations.is_empty()
            && all == self.rows.iter().map(|row| row.lost).sum::<u64>()
            && self.rows.iter().all(|row| row.holds != Some(false))
    }
}

/// Returns the emulated time of an event, in nanoseconds. It includes [`START_NS`], unlike times in [`SCHEDULE`].
fn at_ns(event: FabricEvent) -> u64 {
    let entry = SCHEDULE.iter().find(|(scheduled, _)| *scheduled == event);
    START_NS + entry.map_or(0, |(_, at_ms)| at_ms * MS)
}

/// Returns the killed nodes and cut links of [`SCHEDULE`] in the text form of a plan's faults.
fn faults() -> String {
    let ms = |event| (at_ns(event) - START_NS) / MS;
    format!(
        "kill=leaf{KILLED_LEAF}@{}ms..{}ms,kill=spine1@{}ms..{}ms,cut=spine2-leaf{CUT_LEAF}@{}ms..{}ms",
        ms(FabricEvent::LeafKilled),
        ms(FabricEvent::LeafBack),
        ms(FabricEvent::SpineKilled),
        SPINE_BACK_MS.0,
        ms(FabricEvent::LinkCut),
        ms(FabricEvent::LinkBack)
    )
}

/// Draws the plan of the run (its system, load and faults). Its faults are the killed nodes and cut links of
/// [`SCHEDULE`].
fn plan(setting: &Setting) -> Result<Plan, String> {
    let options = PlanOptions {
        spines: Some(2),
        leaves: Some(ADDED_LEAF),
        agents: Some(2 * ADDED_LEAF),
        workers: Some(4),
        spine: Some(setting.spine.clone()),
        leaf: Some(setting.leaf.clone()),
        agent: Some("cfcfs".parse().map_err(|error| format!("{error}"))?),
        queue: Some(4096),
        refuse: Some(false),
        sharing: Some("none".to_owned()),
        service: Some(setting.service.clone()),
        // The plan counts the capacity of the added rack, the setting does not.
        load: Some(setting.load * f64::from(ADDED_LEAF - 1) / f64::from(ADDED_LEAF)),
        hop_ns: Some(5_000),
        node_delay_ns: Some(200),
        faults: Some("none".to_owned()),
        ..PlanOptions::default()
    };
    let mut plan = Plan::draw(setting.seed, &options)?;
    plan.tasks = (plan.rate() * (END_MS * MS) as f64) as u64;
    plan.faults = FaultPlan::parse(&faults(), &plan.topology)?;
    plan.has_controller = true;
    Ok(plan)
}

/// Action at a given time, besides the plan's faults.
#[derive(Clone, Debug)]
enum ScriptAction {
    /// Commands of an operator to the controller.
    Commands(Vec<Command>),
    /// A fault of the controllers, with a command during or after it that one of them must accept.
    ControllerFault(FabricEvent, Command),
}

/// Returns the number of workers of `racks` racks with two agents each.
fn workers(plan: &Plan, racks: u16) -> u16 {
    racks * 2 * plan.topology.workers
}

/// Returns the actions besides the plan's faults, with their times in milliseconds.
fn actions(plan: &Plan) -> Result<Vec<(u64, ScriptAction)>, String> {
    let commands =
        |texts: &[String]| texts.iter().map(|text| command(text)).collect::<Result<Vec<_>, _>>();
    let ms = |event| (at_ns(event) - START_NS) / MS;
    let mut added = controlled::rack(plan, ADDED_LEAF)?;
    added.push(command(&format!("resize-pool id={POOL} workers={}", workers(plan, ADDED_LEAF)))?);
    let drained = plan
        .agents_of(DRAINED_LEAF)
        .map(|agent| format!("drain-server ip={}", Plan::server(agent)));
    // The command changes the limit of the queues by one task. It affects no task, but makes a new version.
    let controller_fault = |event, queue: usize| -> Result<_, String> {
        let command = command(&format!("set-queue pool={POOL} queue={queue}"))?;
        Ok((ms(event), ScriptAction::ControllerFault(event, command)))
    };
    Ok(vec![
        (
            SPINE_BACK_MS.1,
            // The killed spine is the first.
            ScriptAction::Commands(vec![command(&format!("restore-spine id={}", SPINE_IDS + 1))?]),
        ),
        controller_fault(FabricEvent::LeaderStopped, 4095)?,
        controller_fault(FabricEvent::LeaderKilled, 4094)?,
        controller_fault(FabricEvent::MemberKilled, 4093)?,
        (ms(FabricEvent::RackAdded), ScriptAction::Commands(added)),
        (
            ms(FabricEvent::RackDrained),
            ScriptAction::Commands(commands(&drained.collect::<Vec<_>>())?),
        ),
    ])
}

/// Real time in milliseconds from the fault of a controller or an etcd member until the command was stored.
type CommandTimes = BTreeMap<FabricEvent, f64>;

/// Controllers shared by the script, which injects their faults, and the desired state, which stores commands
/// there.
type SharedControllers = Rc<RefCell<Controllers>>;

/// Actions besides the plan's faults, and the controllers beside the fabric.
struct Script {
    /// Actions. The plan has their times in the same order, and calls each by its index.
    actions: Vec<ScriptAction>,
    /// Controller processes, if the setting has any.
    real: Option<SharedControllers>,
    /// Time of the command at each fault of a controller or an etcd member.
    command_times: CommandTimes,
}

impl Script {
    /// Executes action `number` at its time. Commands change `truth`, the emulated controller's desired state, which
    /// passes them to the controller processes.
    fn act(&mut self, truth: &mut DesiredState, number: usize, now_ns: u64) -> Result<(), String> {
        match &self.actions[number] {
            ScriptAction::Commands(commands) => {
                commands.iter().try_for_each(|command| truth.command(command, now_ns))
            }
            ScriptAction::ControllerFault(event, command) => {
                let (event, command) = (*event, command.clone());
                self.fail(event, || truth.command(&command, now_ns), &command)
            }
        }
    }

    /// Injects a fault into a controller or an etcd member. `store_command` must store its command
    /// nevertheless, and is timed. A stopped leader is later asked to execute `command` too, and must refuse.
    /// Without a standby controller there is no fault, and the command is only stored.
    fn fail(
        &mut self,
        event: FabricEvent,
        store_command: impl FnOnce() -> Result<(), String>,
        command: &Command,
    ) -> Result<(), String> {
        let Some(real) = self.real.as_ref().filter(|real| real.borrow().has_standby()) else {
            return store_command();
        };
        let began = Instant::now();
        let store_and_time = || -> Result<(), String> {
            store_command()?;
            self.command_times.insert(event, began.elapsed().as_secs_f64() * 1e3);
            Ok(())
        };
        match event {
            FabricEvent::LeaderStopped => {
                return real.borrow().depose_leader(store_and_time, command);
            }
            FabricEvent::LeaderKilled => real.borrow_mut().kill_leader()?,
            _ => real.borrow_mut().kill_member(),
        }
        store_and_time()
    }
}

/// Starts the controller processes beside the fabric; `None` if the setting has none.
fn controllers(setting: &Setting) -> Result<Option<SharedControllers>, String> {
    if setting.real == RealControllers::None {
        return Ok(None);
    }
    let wedjat = setting.wedjat.as_ref().ok_or("the controllers need the command `wedjat`")?;
    let controllers = Controllers::start(wedjat, setting.real == RealControllers::Etcd)?;
    Ok(Some(Rc::new(RefCell::new(controllers))))
}

/// Runs the fabric in emulated time, and evaluates each event.
///
/// # Errors
/// If the run fails or is stopped, or a controller does not execute a command.
pub fn run(setting: &Setting, stop: &AtomicBool) -> Result<Report, String> {
    let mut plan = plan(setting)?;
    // The plan has the times of the actions, the script the actions themselves.
    let (times, actions): (Vec<_>, Vec<_>) = actions(&plan)?.into_iter().unzip();
    plan.acts = times.into_iter().map(|at_ms: u64| at_ms * MS).collect();
    let real = controllers(setting)?;
    // Each command also goes to the controller processes, which must reach the same version.
    let shared_store = real.clone().map(|real| -> controlled::SharedStore {
        Box::new(move |command, version| real.borrow().store_command(command, version))
    });
    // Desired state of the emulated nodes.
    let mut truth = DesiredState::new(shared_store);
    // At first the pool has all racks but the added one, and one spine; the second spine is its backup.
    for command in controlled::begin(&plan, ADDED_LEAF - 1, 1)? {
        truth.command(&command, 0)?;
    }
    let mut script = Script { actions, real, command_times: CommandTimes::new() };
    let act = |truth: &mut DesiredState, number, now_ns| script.act(truth, number, now_ns);
    let mut factory = ControlledNodes { truth: Rc::new(RefCell::new(truth)), act };
    let outcome = system::run(&plan, &mut factory, stop).map_err(|error| error.to_string())?;
    let rows = rows(&plan, &outcome, &script.command_times);
    Ok(Report { rows, summary: summary(setting, &plan), outcome })
}

/// Describes the run in one sentence.
fn summary(setting: &Setting, plan: &Plan) -> String {
    let controllers = match setting.real {
        RealControllers::Etcd => "two controllers over an etcd of three members",
        RealControllers::File => "a controller with a file",
        RealControllers::None => "a controller in this process",
    };
    format!(
        "{controllers}, {} spines ({}), {} leaves ({}), {} agents with {} emulated workers each, {} tasks of {} at {:.0}% load, \
         seed {}.",
        plan.topology.spines,
        plan.spine,
        ADDED_LEAF - 1,
        plan.leaf,
        2 * (ADDED_LEAF - 1),
        plan.topology.workers,
        plan.tasks,
        plan.service_text,
        setting.load * 100.0,
        setting.seed
    )
}

/// Returns the milliseconds from `since_ns` to `then_ns`; 0 if `then_ns` is earlier.
fn ms_after(then_ns: u64, since_ns: u64) -> f64 {
    then_ns.saturating_sub(since_ns) as f64 / MS as f64
}

/// Evaluates all events. Each counts the lost tasks that were sent from shortly before it (in flight at the
/// event) until shortly before the next.
fn rows(plan: &Plan, outcome: &Outcome, command_times: &CommandTimes) -> Vec<Row> {
    let row = |number: usize| {
        let (kind, at_ms) = SCHEDULE[number];
        let from_ns = at_ns(kind);
        let to_ns = SCHEDULE.get(number + 1).map_or(u64::MAX, |(next, _)| at_ns(*next));
        // Earliest sending of a task that an event at `ns` can lose.
        let in_flight = |ns: u64| ns.saturating_sub(IN_FLIGHT_NS);
        let span = in_flight(from_ns)..in_flight(to_ns);
        let lost: Vec<_> = outcome
            .ended
            .iter()
            .filter(|task| task.lost.is_some() && span.contains(&task.sent_ns))
            .collect();
        let impact = EventImpact { ended: &outcome.ended, lost: &lost, from_ns, to_ns };
        let (event, recovered_ms, bound_ms, may_lose) = impact.judge(kind, plan, command_times);
        let was_run = recovered_ms.is_some() || !kind.is_of_controllers();
        let holds = was_run.then(|| {
            recovered_ms.is_some_and(|ms| ms <= bound_ms) && (may_lose || lost.is_empty())
        });
        let note = note(kind, recovered_ms.is_some());
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
    (0..SCHEDULE.len()).map(row).collect()
}

/// Returns the note of an event. `is_timed`: it has a recovery time.
fn note(event: FabricEvent, is_timed: bool) -> &'static str {
    match event {
        _ if !is_timed && event.is_of_controllers() => "not run: needs etcd and --controllers etcd",
        _ if !is_timed => "no effect",
        FabricEvent::LeaderStopped => "real time; after it resumes, its first write is refused",
        FabricEvent::LeaderKilled | FabricEvent::MemberKilled => {
            "real time; emulated time was stopped"
        }
        _ => "",
    }
}

/// Tasks and interval from which one event is judged.
struct EventImpact<'a> {
    /// All tasks of the run.
    ended: &'a [TaskResult],
    /// Tasks whose loss counts for the event.
    lost: &'a [&'a TaskResult],
    /// Time of the event.
    from_ns: u64,
    /// Time of the next event.
    to_ns: u64,
}

impl EventImpact<'_> {
    /// Returns the times at which spines sent tasks to a leaf, from this event to the next.
    fn sent_times(&self, leaf: u16) -> impl Iterator<Item = u64> {
        let span = self.from_ns..self.to_ns;
        // A task has its leaf, and the time at which a spine sent it there.
        let to = self.ended.iter().filter_map(move |task| task.leaf.filter(|(to, _)| *to == leaf));
        to.map(|(_, passed_ns)| passed_ns).filter(move |passed_ns| span.contains(passed_ns))
    }

    /// Returns the milliseconds from the event to the last task sent to a leaf; `None` without such a task.
    fn last_sent_ms(&self, leaf: u16) -> Option<f64> {
        self.sent_times(leaf).max().map(|last_ns| ms_after(last_ns, self.from_ns))
    }

    /// Returns the milliseconds from the event to the first task sent to a leaf; `None` without such a task.
    fn first_sent_ms(&self, leaf: u16) -> Option<f64> {
        self.sent_times(leaf).min().map(|first_ns| ms_after(first_ns, self.from_ns))
    }

    /// Returns the event's name, its recovery time, the bound, and true if it may lose tasks.
    ///
    /// A node that fails or leaves has recovered with the last task sent to it. A node that joins or returns
    /// has recovered with the first. A drained rack has recovered with the last task that got one of its workers. A
    /// killed spine has recovered with the last lost task. A controller's fault ends with its command.
    fn judge(
        &self,
        event: FabricEvent,
        plan: &Plan,
        command_times: &CommandTimes,
    ) -> (&'static str, Option<f64>, f64, bool) {
        let change_ms = CHANGE_MAX.as_secs_f64() * 1e3;
        let command_time = || command_times.get(&event).copied();
        match event {
            FabricEvent::LeafKilled => {
                ("a leaf is killed", self.last_sent_ms(KILLED_LEAF), EXCLUSION_MS, true)
            }
            FabricEvent::LeafBack => {
                ("the leaf is restarted", self.first_sent_ms(KILLED_LEAF), CHANGE_MS, false)
            }
            FabricEvent::SpineKilled => {
                let last = self.lost.iter().map(|task| task.sent_ns).max();
                let last_loss_ms = last.map(|last_ns| ms_after(last_ns, self.from_ns));
                ("the spine is killed", last_loss_ms, TAKEOVER_MS, true)
            }
            FabricEvent::LinkCut => (
                "a link from spine to leaf is cut",
                self.last_sent_ms(CUT_LEAF),
                EXCLUSION_MS,
                true,
            ),
            FabricEvent::LinkBack => {
                ("the link is restored", self.first_sent_ms(CUT_LEAF), RESTORATION_MS, false)
            }
            FabricEvent::LeaderStopped => {
                ("the leading controller is stopped", command_time(), change_ms, false)
            }
            FabricEvent::LeaderKilled => {
                ("the new leader is killed", command_time(), change_ms, false)
            }
            FabricEvent::MemberKilled => {
                ("a member of etcd is killed", command_time(), change_ms, false)
            }
            FabricEvent::RackAdded => {
                ("a rack is added", self.first_sent_ms(ADDED_LEAF), CHANGE_MS, false)
            }
            FabricEvent::RackDrained => {
                let workers = plan.workers_of(DRAINED_LEAF);
                let is_of_rack = |task: &&TaskResult| {
                    task.worker.is_some_and(|worker| workers.contains(&worker))
                };
                let sent =
                    self.ended.iter().filter(is_of_rack).filter_map(|task| Some(task.leaf?.1));
                let last_sent_ms = sent.max().map(|last_ns| ms_after(last_ns, self.from_ns));
                ("a rack is drained", last_sent_ms, CHANGE_MS, false)
            }
        }
    }
}

/// Formats the rows as text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_without_effect_does_not_hold() {
        // The outcome has no tasks. Faults of controllers are not run, because the setting has no controllers.
        let setting = Setting {
            spine: "horus-spine".parse().unwrap(),
            leaf: "horus".parse().unwrap(),
            service: "exp(2ms)".to_owned(),
            load: 0.3,
            seed: 1,
            real: RealControllers::None,
            wedjat: None,
        };
        let plan = plan(&setting).unwrap();
        let rows = rows(&plan, &Outcome::default(), &CommandTimes::new());
        for (row, (event, _)) in rows.iter().zip(SCHEDULE) {
            let was_run = !event.is_of_controllers();
            assert_eq!((row.recovered_ms, row.holds), (None, was_run.then_some(false)), "{row:?}");
            assert_eq!(row.note == "no effect", was_run, "{row:?}");
        }
    }
}
