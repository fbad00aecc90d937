//! Several nodes in emulated time, with faults: what must be so is so, whatever the seed; and what is not so is found.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use wedjat::clock::{Line, TurnError};
use wedjat::ring::WorkerRegion;
use wedjat::state::{Counter, Member};
use wedjat_testbed::lockstep::Local;
use wedjat_testbed::lockstep::system::node::{self, Memory};
use wedjat_testbed::lockstep::system::{
    self, Ended, Given, InMemory, Inside, Maker, Node, Outcome, Plan, Who,
};

fn run(plan: &Plan) -> Outcome {
    system::run(plan, &mut InMemory, &AtomicBool::default()).unwrap()
}

#[test]
fn seeds_of_faults_violate_nothing() {
    for seed in 1..=30 {
        let plan = Plan::draw(seed, &Given::default()).unwrap();
        let outcome = run(&plan);
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
        assert_eq!(outcome.tasks, plan.tasks, "{plan}");
    }
}

#[test]
fn seeds_of_faults_at_spines_violate_nothing() {
    for seed in 1..=12 {
        let given = Given { spines: Some(1 + seed as u16 % 3), ..Given::default() };
        let plan = Plan::draw(seed, &given).unwrap();
        let outcome = run(&plan);
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
    }
}

#[cfg(feature = "control")]
#[test]
fn nodes_are_what_a_controller_says_whatever_fails_and_is_ordered() {
    for seed in 1..=8 {
        let given = Given {
            spines: Some(2),
            tasks: Some(100),
            faults: Some("random".to_owned()),
            is_told: true,
            ..Given::default()
        };
        let plan = Plan::draw(seed, &given).unwrap();
        let mut maker = system::told::drawn(&plan).unwrap();
        let outcome = system::run(&plan, &mut maker, &AtomicBool::default()).unwrap();
        assert_eq!(outcome.violations, [], "{plan}");
        let lost: u64 = outcome.lost.values().sum();
        assert_eq!(outcome.tasks, outcome.answered + outcome.refused + lost, "{plan}");
    }
}

#[test]
fn a_spine_that_is_killed_costs_its_clients_tasks_and_nobody_elses() {
    let given = Given {
        spines: Some(2),
        spine: Some("horus-spine".parse().unwrap()),
        leaf: Some("horus".parse().unwrap()),
        service: Some("exp(100us)".to_owned()),
        hop_ns: Some(5_000),
        load: Some(0.4),
        tasks: Some(1000),
        workers: Some(4),
        faults: Some("kill=spine1@2ms..5ms".to_owned()),
        ..Given::default()
    };
    let plan = Plan::draw(1, &given).unwrap();
    let outcome = run(&plan);
    assert_eq!(outcome.violations, []);
    // From a hop before it ended until it has found its leaves again.
    let span = 51_990_000..55_200_000;
    let lost: Vec<_> = outcome.ended.iter().filter(|task| task.lost.is_some()).collect();
    let others = lost.iter().filter(|task| !span.contains(&task.sent_ns));
    assert!(!lost.is_empty() && others.count() == 0);
    let of = |spine: u16| {
        let passed = |task: &&Ended| {
            task.leaf.is_some_and(|(leaf, _)| plan.topology.spine_of(leaf) == spine)
        };
        outcome.ended.iter().filter(passed).filter(|task| span.contains(&task.sent_ns)).count()
    };
    // About as many as are lost go by the other spine meanwhile.
    assert!(
        of(2) > 100 && of(2).abs_diff(lost.len()) < lost.len() / 3,
        "{}, {}",
        of(2),
        lost.len()
    );
    let restarted = outcome.ended.iter().filter(|task| task.sent_ns > 60_000_000);
    assert!(restarted.clone().all(|task| task.answered_ns.is_some()));
}

#[test]
fn without_faults_every_task_is_answered() {
    for (spines, leaves, agents) in
        [(0, 1, 1), (0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 2, 2), (2, 4, 6)]
    {
        let given = Given {
            spines: Some(spines),
            leaves: Some(leaves),
            agents: Some(agents),
            queue: Some(4096),
            load: Some(0.8),
            faults: Some("none".to_owned()),
            ..Given::default()
        };
        for seed in 1..=3 {
            let plan = Plan::draw(seed, &given).unwrap();
            let outcome = run(&plan);
            assert_eq!(outcome.violations, [], "{plan}");
            assert_eq!((outcome.answered, outcome.again), (plan.tasks, 0), "{plan}");
        }
    }
}

#[test]
fn a_run_follows_from_its_plan_and_its_plan_from_its_text() {
    let given = Given { faults: Some("all".to_owned()), ..Given::default() };
    let plan = Plan::draw(5, &given).unwrap();
    let outcome = run(&plan);
    assert_eq!(run(&plan), outcome);
    let written = Given { faults: Some(plan.faults.to_string()), ..given };
    assert_eq!(run(&Plan::draw(5, &written).unwrap()), outcome);
    assert_ne!(run(&Plan::draw(6, &written).unwrap()).digest, outcome.digest);
}

#[test]
fn what_a_node_takes_for_its_work_is_part_of_every_answer() {
    let mean_ns = |node_delay_ns: u64| {
        let given = Given {
            leaf: Some("round-robin".parse().unwrap()),
            agent: Some("round-robin".parse().unwrap()),
            load: Some(0.01),
            node_delay_ns: Some(node_delay_ns),
            faults: Some("none".to_owned()),
            ..Given::default()
        };
        run(&Plan::draw(3, &given).unwrap()).mean_ns
    };
    // A task passes its leaf, its agent, and its leaf again.
    let more = mean_ns(1000) - mean_ns(0);
    assert!((2999.0..3500.0).contains(&more), "{more}");
}

/// Makes nodes in memory, of which the leaf has a defect from a time on.
struct Defective {
    from_ns: u64,
    defect: fn(&mut Memory<Local>),
    /// A packet that comes out of it is lost.
    swallows: bool,
}

/// A leaf with a defect.
struct Planted {
    inner: Memory<Local>,
    from_ns: u64,
    defect: Option<fn(&mut Memory<Local>)>,
    swallows: bool,
}

impl Maker for Defective {
    fn make(&mut self, plan: &Plan, who: Who) -> Result<Box<dyn Node>, String> {
        if !matches!(who, Who::Leaf(_)) {
            return InMemory.make(plan, who);
        }
        let Self { from_ns, defect, swallows } = *self;
        let inner = node::local(&plan.leaf_config(1)?)?;
        Ok(Box::new(Planted { inner, from_ns, defect: Some(defect), swallows }))
    }
}

impl Node for Planted {
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

    fn take(&mut self, port: usize, each: &mut dyn FnMut(&[u8])) {
        let mut swallows = self.swallows && self.defect.is_none();
        self.inner.take(port, &mut |frame| {
            if !std::mem::take(&mut swallows) {
                each(frame);
            }
        });
    }

    fn inside(&self) -> Option<Inside<'_>> {
        self.inner.inside()
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

/// What is said of a leaf with this defect, of a system without other faults.
fn said(swallows: bool, defect: fn(&mut Memory<Local>)) -> String {
    let given = Given {
        workers: Some(3),
        leaf: Some("jbsq(k=1)".parse().unwrap()),
        agent: Some("jbsq(k=1)".parse().unwrap()),
        queue: Some(4096),
        service: Some("exp(100us)".to_owned()),
        load: Some(1.2),
        tasks: Some(1000),
        faults: Some("none".to_owned()),
        ..Given::default()
    };
    let plan = Plan::draw(1, &given).unwrap();
    assert_eq!(run(&plan).violations, []);
    let mut maker = Defective { from_ns: 12_000_000, defect, swallows };
    let outcome = system::run(&plan, &mut maker, &AtomicBool::default()).unwrap();
    let violation = outcome.violations.first().expect("the defect is found");
    assert_eq!(violation.who, "leaf1");
    assert!(violation.at_ns >= 12_000_000);
    violation.what.clone()
}

#[test]
fn a_lost_free_of_a_packet_buffer_is_found() {
    let what = said(false, |leaf| std::mem::forget(leaf.pool.frame(&[0; 60])));
    assert!(what.contains("packet buffers are in use for"), "{what}");
}

#[test]
fn a_packet_that_is_lost_and_not_counted_is_found() {
    let what = said(true, |_| {});
    assert!(what.contains("its books do not agree"), "{what}");
}

#[test]
fn a_worker_that_is_forgotten_while_tasks_wait_is_found() {
    let what = said(false, |leaf| {
        leaf.scheduler.leaf_mut().stages_mut().set_active(0, Member(1), false);
    });
    assert!(what.contains("worker 1 has been idle for"), "{what}");
}

#[test]
fn a_reply_that_is_counted_twice_is_found() {
    let what =
        said(false, |leaf| leaf.scheduler.leaf().stages().counters().add(Counter::Replies, 1));
    assert!(what.contains("replies and"), "{what}");
    let what =
        said(false, |leaf| leaf.scheduler.leaf().stages().counters().add(Counter::RxPackets, 1));
    assert!(what.contains("do not agree") || what.contains("does not balance"), "{what}");
}

fn lockstep(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wedjat-testbed"));
    command.arg("lockstep").args(arguments).output().unwrap()
}

#[test]
fn the_command_repeats_a_run_to_the_byte_and_soaks() {
    let all = ["--faults", "all", "--tasks", "200", "--seed", "11", "--format", "json"];
    let (one, two) = (lockstep(&all), lockstep(&all));
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_eq!(one.stdout, two.stdout);
    let value: serde_json::Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!((&value["tasks"], &value["seed"]), (&200.into(), &11.into()));
    let soak = lockstep(&["--soak", "4", "--tasks", "50", "--timing", "no"]);
    let text = String::from_utf8(soak.stdout).unwrap();
    assert!(soak.status.success() && text.starts_with("4 seeds: 200 tasks"), "{text}");
}

#[test]
fn wrong_flags_are_named_with_the_reason_and_the_fix() {
    for (flags, parts) in [
        (&["--faults", "los=0.1"][..], &["los", "loss, dup"][..]),
        (&["--faults", "loss=2"], &["loss=2", "from 0 to 1"]),
        (&["--faults", "cut=leaf1-agent1@3ms..2ms"], &["ends before it starts", "5ms..8ms"]),
        (&["--faults", "none", "--agents", "0"], &["--agents 0", "from 1 to 16"]),
        (&["--faults", "none", "--workers", "8"], &["--workers", "--workers-each"]),
        (&["--faults", "none", "--load=-1"], &["--load -1", "above 0"]),
        (&["--faults", "none", "--tasks", "0"], &["--tasks 0", "from 1"]),
        (&["--faults", "none", "--policy", "horse"], &["--policy", "horse"]),
        (&["--agents", "2"], &["--agents", "give --faults"]),
        (&["--soak", "0"], &["--soak 0", "one seed at least"]),
    ] {
        let output = lockstep(flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{flags:?}");
        assert!(parts.iter().all(|part| said.contains(part)), "{flags:?}: {said}");
    }
}
