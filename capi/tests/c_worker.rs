//! Workers in C, with this test as their agent: tasks and answers through shared memory, and invalid calls.
#![allow(clippy::unwrap_used, reason = "a test")]

mod built;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wedjat::ring::{Channel, Outcome, Place, WorkerRegion};
use wedjat::worker::TaskIds;

/// Time limit even for a busy machine; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

/// Agent with one worker, id 3, and the program of that worker. Both share a memory region, in which the
/// worker claims its place and the agent grants it.
struct Agent {
    folder: tempfile::TempDir,
    /// Holds the agent's lock.
    _region: WorkerRegion,
    channel: Channel,
    worker: Child,
}

impl Agent {
    /// Starts the program of `source`, and grants it the place of the worker.
    fn with(source: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = built::compile(source, folder.path());
        let path = folder.path().join("agent");
        // Four slots for tasks, and 64 bytes of payload in each.
        let region = WorkerRegion::create(&path, &[Place { id: 3, pool: 7 }], 4, 64).unwrap();
        let channel = region.channel(0);
        let worker = Command::new(program).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut agent = Self { folder, _region: region, channel, worker };
        agent.wait("the worker comes", |agent| {
            let sender = agent.channel.sender_mut();
            let claim = sender.claim();
            // 0 means no claim.
            if claim != 0 {
                sender.grant(claim);
            }
            claim != 0
        });
        agent
    }

    /// Waits until `condition` is true; `what` describes it for the error.
    fn wait(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            let runs = self.worker.try_wait().unwrap().is_none();
            assert!(runs && start.elapsed() < PATIENCE, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends tasks to the worker, and wakes it.
    fn give(&mut self, tasks: u32) {
        for seq in 0..tasks {
            let payload = format!("task{seq}");
            assert!(self.channel.give(TaskIds { app: 8, seq, class: 2 }, payload.as_bytes()));
        }
        self.channel.wake();
    }

    /// Returns the answers to the next `count` tasks; `None` for a task without an answer.
    fn collect(&mut self, count: u64) -> Vec<Option<Vec<u8>>> {
        let mut answers = Vec::new();
        self.wait("all tasks are completed", |agent| {
            for number in agent.channel.collect().unwrap() {
                answers.push(match agent.channel.outcome(number) {
                    Outcome::Reply { len, .. } => {
                        let mut answer = vec![0; len];
                        agent.channel.reply(number, &mut answer);
                        Some(answer)
                    }
                    Outcome::Unanswered => None,
                    Outcome::Refused => panic!("task {number}"),
                });
            }
            answers.len() as u64 == count
        });
        answers
    }

    /// Shuts down the agent, and thus the worker.
    fn end(mut self) {
        self.channel.stop();
        self.channel.wake();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.worker.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the worker does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}");
        drop(self.folder);
    }
}

// promise: library.2
#[test]
fn worker_answers_and_wrong_calls_are_harmless() {
    let mut agent = Agent::with("tests/c/worker.c");
    agent.give(4);
    let answers = agent.collect(4);
    // The program answers the first task, gives up the second, takes the next task before it has answered the
    // third, and answers the fourth with its own payload.
    let expected = [Some(b"answer".to_vec()), None, None, Some(b"task3".to_vec())];
    assert_eq!(answers, expected);
    // The program then waits for a task, and must learn of the agent's end.
    let mut line = String::new();
    BufReader::new(agent.worker.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "waits\n");
    agent.end();
}

// promise: library.2
#[test]
fn the_example_answers_every_task() {
    let mut agent = Agent::with("../examples/worker.c");
    for _ in 0..50 {
        agent.give(4);
        let answers = agent.collect(4);
        // The example answers with the bytes of the payload in reverse.
        for (seq, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, Some(format!("{seq}ksat").into_bytes()));
        }
    }
    agent.end();
}
