//! Workers in C, with this test as their agent (the process that gives tasks to workers): tasks and answers through
//! shared memory, and invalid calls. The worker claims a channel of the memory by a number, and the agent grants it.
#![allow(clippy::unwrap_used, reason = "a test")]

mod built;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use wedjat::ring::{Channel, Outcome, WorkerIdentity, WorkerRegion};
use wedjat::worker::TaskIds;

/// Time limit even for a busy machine; only a failing test reaches it.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Agent with worker 3 of pool 7, and the program of that worker. Both share a memory region, in which the worker
/// claims a channel and the agent grants it.
struct Agent {
    _folder: tempfile::TempDir,
    /// Holds the agent's lock.
    _region: WorkerRegion,
    /// The agent's end of the worker's channel.
    channel: Channel,
    /// Process of the C program.
    worker: Child,
}

impl Agent {
    /// Compiles the C program `source`, starts it with the region's path and `arguments`, and grants its claim.
    fn with(source: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = built::compile(source, folder.path());
        let path = folder.path().join("agent");
        // Four slots for tasks, and 64 bytes of payload in each.
        let region =
            WorkerRegion::create(&path, &[WorkerIdentity { id: 3, pool: 7 }], 4, 64).unwrap();
        let channel = region.channel(0);
        let mut command = Command::new(program);
        command.arg(&path).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let worker = command.spawn().unwrap();
        let mut agent = Self { _folder: folder, _region: region, channel, worker };
        agent.wait("the worker claims its channel", |agent| {
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
            if self.worker.try_wait().unwrap().is_some() {
                panic!("the worker ended before {what}: {}", self.errors());
            }
            assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the text on the standard error of the worker, which has ended.
    fn errors(&mut self) -> String {
        std::io::read_to_string(self.worker.stderr.take().unwrap()).unwrap()
    }

    /// Sends `tasks` tasks with the payloads `task0`, `task1` and so on to the worker, and wakes it.
    fn give(&mut self, tasks: u32) {
        let payloads: Vec<_> = (0..tasks).map(|seq| format!("task{seq}")).collect();
        self.give_all(&payloads.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Sends tasks with these payloads to the worker, and wakes it.
    fn give_all(&mut self, payloads: &[&str]) {
        for (seq, payload) in (0..).zip(payloads) {
            assert!(self.channel.send(TaskIds { app: 8, seq, class: 2 }, payload.as_bytes()));
        }
        self.channel.wake();
    }

    /// Waits until the worker has completed `count` tasks, and returns their answers; `None` for a task without one.
    /// The worker must not have more tasks in progress that can end.
    fn collect(&mut self, count: u64) -> Vec<Option<Vec<u8>>> {
        let mut answers = Vec::new();
        self.wait("all tasks are completed", |agent| {
            for number in agent.channel.collect().unwrap() {
                let task = agent.channel.sender().completed(number);
                answers.push(match agent.channel.outcome(task) {
                    Outcome::Reply { len, .. } => {
                        let mut answer = vec![0; len];
                        agent.channel.reply(task, &mut answer);
                        Some(answer)
                    }
                    Outcome::Unanswered => None,
                    Outcome::Refused => panic!("refused answer of task {task:?}"),
                });
            }
            answers.len() as u64 == count
        });
        answers
    }

    /// Waits for the answers to `count` tasks, like [`Agent::collect`], and returns them as texts.
    fn collect_texts(&mut self, count: u64) -> Vec<String> {
        let answers = self.collect(count).into_iter();
        answers.map(|answer| String::from_utf8(answer.unwrap()).unwrap()).collect()
    }

    /// Waits for the end of the worker.
    fn wait_for_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.worker.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "the worker does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Shuts down the agent, and thus the worker.
    fn end(mut self) {
        self.channel.stop();
        self.channel.wake();
        let status = self.wait_for_end();
        assert!(status.success(), "{status}: {}", self.errors());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A failed test leaves no worker behind.
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

// promise: library.2
#[test]
fn worker_answers_and_wrong_calls_are_harmless() {
    let mut agent = Agent::with("tests/c/worker.c", &[]);
    agent.give(4);
    let answers = agent.collect(4);
    // The program answers the first task, gives up the second, takes the next task before it has answered the
    // third, and answers the fourth with its own payload.
    let expected = [Some(b"answer".to_vec()), None, None, Some(b"task3".to_vec())];
    assert_eq!(answers, expected);
    // The program then waits for a task, and must detect the agent's end.
    let mut line = String::new();
    BufReader::new(agent.worker.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "waits\n");
    agent.end();
}

// promise: library.2
#[test]
fn the_example_answers_every_task() {
    // One task at a time; then, unpinned (-1), tasks that share the core with quanta of 10 us.
    for arguments in [&[][..], &["-1", "10"]] {
        let mut agent = Agent::with("../examples/worker.c", arguments);
        for _ in 0..50 {
            agent.give(4);
            let mut answers = agent.collect_texts(4);
            // The example answers with the bytes of the payload in reverse. Shared tasks end in any order.
            answers.sort_unstable();
            assert_eq!(answers, ["0ksat", "1ksat", "2ksat", "3ksat"]);
        }
        agent.end();
    }
}

/// Runs `test` with a worker whose tasks share the core, for each source of time. The payload of a task names its
/// part in tests/c/sharing.c. A task "long" yields until a task "release" has run, and a task "short" ends at once.
fn with_sharing(test: impl Fn(&mut Agent)) {
    // 0: yield points read the clock. 1: a timer signal ends quanta.
    for timer in ["0", "1"] {
        let mut agent = Agent::with("tests/c/sharing.c", &[timer]);
        test(&mut agent);
        agent.end();
    }
}

// promise: agent.5
#[test]
fn short_tasks_pass_a_long_one_in_c() {
    with_sharing(|agent| {
        agent.give_all(&["long"]);
        for _ in 0..20 {
            agent.give_all(&["short", "short"]);
            assert_eq!(agent.collect_texts(2), ["short", "short"]);
        }
        agent.give_all(&["release"]);
        assert_eq!(agent.collect_texts(2), ["release", "long"]);
    });
}

// promise: agent.5
#[test]
fn critical_sections_in_c_keep_the_core() {
    with_sharing(|agent| {
        // The order of answers shows when the task "critical" yields the core.
        agent.give_all(&["critical", "short"]);
        assert_eq!(agent.collect_texts(2), ["short", "critical"]);
        // The end of a handler ends its section: the next task on its stack yields again.
        agent.give_all(&["unended"]);
        assert_eq!(agent.collect_texts(1), ["unended"]);
        agent.give_all(&["long", "short"]);
        assert_eq!(agent.collect_texts(1), ["short"]);
        agent.give_all(&["release"]);
        assert_eq!(agent.collect_texts(2), ["release", "long"]);
    });
}

// promise: agent.5, library.2
#[test]
fn impossible_lengths_in_c_answer_nothing() {
    with_sharing(|agent| {
        for name in ["negative", "lowest", "too long", "highest"] {
            agent.give_all(&[name]);
            assert_eq!(agent.collect(1), [None], "{name}");
            agent.give_all(&["short"]);
            assert_eq!(agent.collect_texts(1), ["short"], "after {name}");
        }
    });
}

// promise: library.2
#[test]
fn calls_inside_a_handler_are_refused() {
    with_sharing(|agent| {
        agent.give_all(&["inside"]);
        assert_eq!(agent.collect_texts(1), ["inside"]);
    });
}

// promise: agent.5
#[test]
fn overflow_in_c_names_the_class() {
    let mut agent = Agent::with("tests/c/sharing.c", &["0"]);
    agent.give_all(&["overflow"]);
    assert!(!agent.wait_for_end().success());
    let errors = agent.errors();
    let expected = "the handler of a task of class 2 overflowed its stack of 65536 bytes";
    assert!(errors.contains(expected), "{errors}");
}

// promise: library.3
#[test]
fn header_compiles_as_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let program = built::compile("tests/c/header.cc", folder.path());
    built::run(&mut Command::new(program));
}
