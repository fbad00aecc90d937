//! Several nodes in emulated time, with faults: the invariants hold for every seed, and violations are found.
//! A plan describes the system, its load and its faults; values that the options omit are drawn from the
//! seed. A conductor gives each node turns, in which the node polls until it is quiet.
//!
//! A spine spreads tasks over leaves. A leaf schedules the tasks of a rack. An agent gives the tasks of a host to its
//! workers. Invariants are, for example, balanced counts of packets and bounds on waiting.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use wedjat::clock::{Line, TurnError};
use wedjat::ring::WorkerRegion;
use wedjat::state::{Counter, Member};
use wedjat_testbed::lockstep::LocalLeaf;
use wedjat_testbed::lockstep::system::node::{self, Memory};
use wedjat_testbed::lockstep::system::packets::Class;
use wedjat_testbed::lockstep::system::{
    self, FaultTarget, InMemory, LocalNodeState, Node, NodeFactory, Outcome, Plan, PlanOptions,
    TaskResult,
};

/// Runs a plan with nodes in memory.
fn run(plan: &Plan) -> Outcome {
    system::run(plan, &mut InMemory, &AtomicBool::default()).unwrap()
}

// promise: emulated-time.2
#[test]
fn seeds_of_faults_violate_nothing() {
    for seed in 1..=30 {
        let plan = Plan::draw(seed, &PlanOptions::default()).unwrap();
        let outcome = run(&plan);
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
        assert_eq!(outcome.tasks, plan.tasks, "{plan}");
    }
}

// promise: emulated-time.2
#[test]
fn seeds_of_direct_return_violate_nothing() {
    let mut plans = Vec::new();
    for seed in 1..=20 {
        let options = PlanOptions { replies: Some("direct".to_owned()), ..PlanOptions::default() };
        let plan = Plan::draw(seed, &options).unwrap();
        let outcome = run(&plan);
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
        // Nearly all answers are direct, so that the leaf receives completion reports in place of replies.
        let of = |class: Class| outcome.ledger.delivered[class as usize];
        plans.push((of(Class::Completions), of(Class::Reply), outcome.answered));
    }
    let with_reports = plans.iter().filter(|(reports, ..)| *reports > 0).count();
    assert!(with_reports > 15, "{plans:?}");
    // The path of replies is part of a plan, and drawn without an option.
    let drawn = |seed| Plan::draw(seed, &PlanOptions::default()).unwrap().topology.is_direct;
    assert!((1..=30).any(drawn) && !(1..=30).all(drawn));
}

// promise: emulated-time.2
#[test]
fn faults_of_shared_cores_violate_nothing() {
    let plan = |seed, sharing: &str, faults: &str| {
        let options = PlanOptions {
            agent: Some("jbsq(k=8)".parse().unwrap()),
            sharing: Some(sharing.to_owned()),
            service: Some("mix(0.9*exp(50us), 0.1*exp(1ms))".to_owned()),
            load: Some(0.8),
            tasks: Some(1000),
            faults: Some(faults.to_owned()),
            ..PlanOptions::default()
        };
        Plan::draw(seed, &options).unwrap()
    };
    for seed in 1..=12 {
        let plan = plan(seed, "10us,500ns,8", "all");
        let outcome = run(&plan);
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
    }
    // Short tasks do not wait for the end of long ones that share their core.
    let mean_ns = |sharing| run(&plan(1, sharing, "none")).mean_ns;
    let (shared_ns, alone_ns) = (mean_ns("10us,500ns,8"), mean_ns("none"));
    assert!(shared_ns < 0.8 * alone_ns, "{shared_ns} ns, alone {alone_ns} ns");
}

// promise: emulated-time.2
#[test]
fn seeds_of_faults_at_spines_violate_nothing() {
    for seed in 1..=12 {
        let options = PlanOptions { spines: Some(1 + seed as u16 % 3), ..PlanOptions::default() };
        let plan = Plan::draw(seed, &options).unwrap();
        let outcome = run(&plan);
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
    }
}

// promise: emulated-time.2
#[test]
fn nodes_follow_the_controller_under_faults() {
    for seed in 1..=8 {
        let options = PlanOptions {
            spines: Some(2),
            tasks: Some(100),
            faults: Some("random".to_owned()),
            has_controller: true,
            ..PlanOptions::default()
        };
        let plan = Plan::draw(seed, &options).unwrap();
        let mut factory = system::controlled::drawn(&plan).unwrap();
        let outcome = system::run(&plan, &mut factory, &AtomicBool::default()).unwrap();
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
    }
}

// promise: emulated-time.2
#[test]
fn killed_spine_loses_only_its_clients_tasks() {
    let options = PlanOptions {
        spines: Some(2),
        spine: Some("horus-spine".parse().unwrap()),
        leaf: Some("horus".parse().unwrap()),
        service: Some("exp(100us)".to_owned()),
        hop_ns: Some(5_000),
        load: Some(0.4),
        tasks: Some(1000),
        workers: Some(4),
        faults: Some("kill=spine1@2ms..5ms".to_owned()),
        ..PlanOptions::default()
    };
    let plan = Plan::draw(1, &options).unwrap();
    let outcome = run(&plan);
    assert_eq!(outcome.violations, []);
    // Tasks start at 50 ms, so the spine ends at 52 ms and restarts at 55 ms. The span begins two mean hops
    // (10 us) before its end. It lasts until the restarted spine has found its leaves again.
    let span = 51_990_000..55_200_000;
    let lost: Vec<_> = outcome.ended.iter().filter(|task| task.lost.is_some()).collect();
    let lost_outside = lost.iter().filter(|task| !span.contains(&task.sent_ns));
    assert!(!lost.is_empty() && lost_outside.count() == 0);
    // Number of tasks in that time that a spine passed to its leaves.
    let passed_by = |spine: u16| {
        let passed = |task: &&TaskResult| {
            task.leaf.is_some_and(|(leaf, _)| plan.topology.spine_of(leaf) == spine)
        };
        outcome.ended.iter().filter(passed).filter(|task| span.contains(&task.sent_ns)).count()
    };
    // Meanwhile, the second spine passes about as many tasks as are lost.
    assert!(
        passed_by(2) > 100 && passed_by(2).abs_diff(lost.len()) < lost.len() / 3,
        "{}, {}",
        passed_by(2),
        lost.len()
    );
    let after_restart = outcome.ended.iter().filter(|task| task.sent_ns > 60_000_000);
    assert!(after_restart.clone().all(|task| task.answered_ns.is_some()));
}

// promise: emulated-time.2
#[test]
fn without_faults_every_task_is_answered() {
    for (spines, leaves, agents) in
        [(0, 1, 1), (0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 2, 2), (2, 4, 6)]
    {
        let options = PlanOptions {
            spines: Some(spines),
            leaves: Some(leaves),
            agents: Some(agents),
            queue: Some(4096),
            load: Some(0.8),
            faults: Some("none".to_owned()),
            ..PlanOptions::default()
        };
        for seed in 1..=3 {
            let plan = Plan::draw(seed, &options).unwrap();
            let outcome = run(&plan);
            assert_eq!(outcome.violations, [], "{plan}");
            // `again` counts answers to tasks that are already answered.
            assert_eq!((outcome.answered, outcome.again), (plan.tasks, 0), "{plan}");
        }
    }
}

// promise: emulated-time.2
#[test]
fn run_follows_its_plan_and_its_text() {
    let options = PlanOptions { faults: Some("all".to_owned()), ..PlanOptions::default() };
    let plan = Plan::draw(5, &options).unwrap();
    let outcome = run(&plan);
    assert_eq!(run(&plan), outcome);
    // The same faults as text, in place of those drawn from the seed.
    let written = PlanOptions { faults: Some(plan.faults.to_string()), ..options };
    assert_eq!(run(&Plan::draw(5, &written).unwrap()), outcome);
    assert_ne!(run(&Plan::draw(6, &written).unwrap()).digest, outcome.digest);
}

// promise: emulated-time.2
#[test]
fn node_work_time_is_in_every_answer() {
    let mean_ns = |node_delay_ns: u64| {
        let options = PlanOptions {
            leaf: Some("round-robin".parse().unwrap()),
            agent: Some("round-robin".parse().unwrap()),
            load: Some(0.01),
            replies: Some("leaf".to_owned()),
            node_delay_ns: Some(node_delay_ns),
            faults: Some("none".to_owned()),
            ..PlanOptions::default()
        };
        run(&Plan::draw(3, &options).unwrap()).mean_ns
    };
    // A task passes through its leaf, its agent, and its leaf again.
    let added_ns = mean_ns(1000) - mean_ns(0);
    assert!((2999.0..3500.0).contains(&added_ns), "{added_ns}");
}

/// Factory of nodes in memory, whose leaf has a defect. Tests show with it that the run's checks find defects.
struct Defective {
    /// Emulated time at which the defect begins.
    from_ns: u64,
    /// Causes the defect, once.
    defect: fn(&mut Memory<LocalLeaf>),
    /// True if the leaf then also loses outgoing packets.
    swallows: bool,
}

/// A leaf with a defect.
struct DefectiveLeaf {
    /// The leaf without the defect.
    inner: Memory<LocalLeaf>,
    /// Emulated time at which the defect begins.
    from_ns: u64,
    /// Defect to apply after the first turn from `from_ns` on; `None` afterwards.
    defect: Option<fn(&mut Memory<LocalLeaf>)>,
    /// True if the leaf loses outgoing packets after the defect.
    swallows: bool,
}

impl NodeFactory for Defective {
    fn make(&mut self, plan: &Plan, target: FaultTarget) -> Result<Box<dyn Node>, String> {
        if !matches!(target, FaultTarget::Leaf(_)) {
            return InMemory.make(plan, target);
        }
        let Self { from_ns, defect, swallows } = *self;
        let inner = node::local(&plan.leaf_config(1)?)?;
        Ok(Box::new(DefectiveLeaf { inner, from_ns, defect: Some(defect), swallows }))
    }
}

impl Node for DefectiveLeaf {
    /// Gives the leaf a turn. Applies the defect once its time has come.
    fn turn(&mut self, now_ns: u64) -> Result<Line, TurnError> {
        let line = Node::turn(&mut self.inner, now_ns)?;
        if now_ns >= self.from_ns
            && let Some(defect) = self.defect.take()
        {
            defect(&mut self.inner);
        }
        Ok(line)
    }

    fn give(&mut self, port: usize, frame: &[u8]) -> bool {
        self.inner.give(port, frame)
    }

    /// Takes the leaf's packets. With `swallows`, loses the first packet of each call after the defect.
    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8])) {
        let mut swallows = self.swallows && self.defect.is_none();
        self.inner.take(port, &mut |frame| {
            if !std::mem::take(&mut swallows) {
                each(frame);
            }
        });
    }

    fn local_state(&self) -> Option<LocalNodeState<'_>> {
        self.inner.local_state()
    }

    fn region(&self) -> Option<Arc<WorkerRegion>> {
        self.inner.region()
    }

    fn pause(&mut self, paused: bool) -> Result<(), String> {
        self.inner.pause(paused)
    }

    fn end(self: Box<Self>, killed: bool) -> Result<(), String> {
        Box::new(self.inner).end(killed)
    }
}

/// Returns the text of the first violation reported for a leaf with this defect, in an overloaded system
/// without faults. With `swallows`, the leaf also loses packets. Checks that the same system has no violation
/// without the defect.
fn first_violation(swallows: bool, defect: fn(&mut Memory<LocalLeaf>)) -> String {
    let options = PlanOptions {
        workers: Some(3),
        leaf: Some("jbsq(k=1)".parse().unwrap()),
        agent: Some("jbsq(k=1)".parse().unwrap()),
        queue: Some(4096),
        service: Some("exp(100us)".to_owned()),
        load: Some(1.2),
        tasks: Some(1000),
        faults: Some("none".to_owned()),
        ..PlanOptions::default()
    };
    let plan = Plan::draw(1, &options).unwrap();
    assert_eq!(run(&plan).violations, []);
    // The first task comes at 50 ms. The defect begins before it, at 12 ms.
    let mut factory = Defective { from_ns: 12_000_000, defect, swallows };
    let outcome = system::run(&plan, &mut factory, &AtomicBool::default()).unwrap();
    let violation = outcome.violations.first().expect("the defect is found");
    assert_eq!(violation.node, "leaf1");
    assert!(violation.at_ns >= 12_000_000);
    violation.description.clone()
}

// promise: emulated-time.2
#[test]
fn leaked_packet_buffer_is_found() {
    // A frame that is never dropped never returns to its pool.
    let violation = first_violation(false, |leaf| std::mem::forget(leaf.pool.frame(&[0; 60])));
    assert!(violation.contains("packet buffers are in use for"), "{violation}");
}

// promise: emulated-time.2
#[test]
fn uncounted_packet_loss_is_found() {
    // The only defect is the loss of packets.
    let violation = first_violation(true, |_| {});
    assert!(violation.contains("packet counts differ"), "{violation}");
}

// promise: emulated-time.2
#[test]
fn forgotten_worker_is_found_while_tasks_wait() {
    // The leaf sends no more tasks to worker 1, without a command that removed it.
    let violation = first_violation(false, |leaf| {
        leaf.scheduler.leaf_mut().stages_mut().set_active(0, Member(1), false);
    });
    assert!(violation.contains("worker 1 has been idle for"), "{violation}");
}

// promise: emulated-time.2
#[test]
fn double_counted_packets_are_found() {
    let violation = first_violation(false, |leaf| {
        leaf.scheduler.leaf().stages().counters().add(Counter::Replies, 1)
    });
    assert!(violation.contains("replies and"), "{violation}");
    let violation = first_violation(false, |leaf| {
        leaf.scheduler.leaf().stages().counters().add(Counter::RxPackets, 1)
    });
    assert!(
        violation.contains("counts differ") || violation.contains("does not balance"),
        "{violation}"
    );
}

/// Runs `wedjat-testbed lockstep`.
fn lockstep(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.arg("lockstep").args(arguments).output().unwrap()
}

// promise: emulated-time.2
#[test]
fn command_repeats_a_run_exactly_and_soaks() {
    let all = ["--faults", "all", "--tasks", "200", "--seed", "11", "--format", "json"];
    let (first, second) = (lockstep(&all), lockstep(&all));
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert_eq!(first.stdout, second.stdout);
    let value: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!((&value["tasks"], &value["seed"]), (&200.into(), &11.into()));
    let soak = lockstep(&["--soak", "4", "--tasks", "50", "--timing", "no"]);
    let text = String::from_utf8(soak.stdout).unwrap();
    assert!(soak.status.success() && text.starts_with("4 seeds: 200 tasks"), "{text}");
}

// promise: emulated-time.2
#[test]
fn wrong_flags_name_reason_and_fix() {
    for (flags, parts) in [
        (&["--faults", "los=0.1"][..], &["los", "loss, dup"][..]),
        (&["--faults", "loss=2"], &["loss=2", "from 0 to 1"]),
        (&["--faults", "cut=leaf1-agent1@3ms..2ms"], &["ends before it starts", "5ms..8ms"]),
        (&["--faults", "none", "--agents", "0"], &["--agents 0", "from 1 to 16"]),
        (&["--faults", "none", "--spines", "40000"], &["--spines 40000", "from 0 to 4"]),
        (&["--faults", "none", "--tasks", "1.5"], &["--tasks 1.5", "whole number"]),
        (&["--faults", "none", "--workers", "8"], &["--workers", "--workers-each"]),
        (&["--faults", "none", "--load=-1"], &["--load -1", "above 0"]),
        (&["--faults", "none", "--tasks", "0"], &["--tasks 0", "from 1"]),
        (&["--faults", "none", "--policy", "horse"], &["--policy", "horse"]),
        (&["--agents", "2"], &["--agents", "also give --faults"]),
        (&["--soak", "0"], &["--soak 0", "at least 1 seed"]),
    ] {
        let output = lockstep(flags);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{flags:?}");
        assert!(parts.iter().all(|part| printed.contains(part)), "{flags:?}: {printed}");
    }
}
