//! Tests of workers whose tasks share a core: each task runs for a *quantum* in turn, and hands the core over at yield
//! points of its handler.

use super::*;

/// Runs a worker whose tasks share its core, while `agent` gives tasks on the channel. Returns the reason of the
/// worker's end.
fn serve_beside(
    sharing: Sharing,
    handler: impl Fn(Task<'_>, Cpu<'_>) + Send,
    agent: impl FnOnce(&mut Channel),
) -> Detached {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || worker.serve(&sharing, handler).unwrap());
        agent(&mut channel);
        serving.join().unwrap()
    })
}

/// Waits for the completion of exactly `N` tasks, and checks that the worker answered each with its sequence number.
/// Returns these numbers in the order of completion.
///
/// # Panics
/// If more tasks are completed, or a task is not completed in time.
fn completed<const N: usize>(channel: &mut Channel) -> [u32; N] {
    let (began, mut replies) = (Instant::now(), Vec::new());
    while replies.len() < N {
        assert!(began.elapsed() < TIMEOUT, "a task is not completed");
        for count in channel.collect().unwrap() {
            let position = channel.sender().completed(count);
            assert!(matches!(channel.outcome(position), Outcome::Reply { len: 4, .. }));
            let mut reply = [0; 4];
            channel.reply(position, &mut reply);
            replies.push(u32::from_be_bytes(reply));
        }
        std::thread::yield_now();
    }
    replies.try_into().unwrap()
}

/// Answers a task with its sequence number.
fn answer(task: Task<'_>) {
    let seq = task.ids().seq;
    task.reply(&seq.to_be_bytes()).unwrap();
}

// promise: agent.5
#[test]
fn short_tasks_pass_a_long_one() {
    for clock in [QuantumClock::Readings, QuantumClock::Timer] {
        let ends = AtomicBool::new(false);
        let sharing = Sharing { quantum: Duration::from_micros(20), clock, ..Sharing::default() };
        let handler = |task: Task<'_>, cpu: Cpu<'_>| {
            // Task 0 ends after all later tasks.
            while task.ids().seq == 0 && !ends.load(Acquire) {
                cpu.yield_point();
            }
            answer(task);
        };
        let reason = serve_beside(sharing, handler, |channel| {
            assert!(channel.send(ids(0), &[]));
            for seq in 1..50 {
                assert!(channel.send(ids(seq), &[]));
                assert_eq!(completed(channel), [seq]);
            }
            assert_eq!(channel.sender().outstanding(), 1);
            ends.store(true, Release);
            assert_eq!(completed(channel), [0]);
            channel.stop();
        });
        assert_eq!(reason, Detached::Stopped);
    }
}

#[test]
fn critical_section_keeps_the_core() {
    let (is_inside, may_leave) = (AtomicBool::new(false), AtomicBool::new(false));
    let sharing = Sharing { quantum: Duration::from_micros(1), ..Sharing::default() };
    let handler = |task: Task<'_>, cpu: Cpu<'_>| {
        assert!(!is_inside.load(Acquire), "no other task runs during the section");
        if task.ids().seq == 0 {
            let section = cpu.critical();
            let inner = cpu.critical();
            is_inside.store(true, Release);
            while !may_leave.load(Acquire) {
                cpu.yield_point();
            }
            drop(inner); // the outer section still keeps the core
            (0..1000).for_each(|_| cpu.yield_point());
            is_inside.store(false, Release);
            drop(section);
        }
        answer(task);
    };
    serve_beside(sharing, handler, |channel| {
        assert!(channel.send(ids(0), &[]));
        while !is_inside.load(Acquire) {
            std::thread::yield_now();
        }
        assert!(channel.send(ids(1), &[]));
        may_leave.store(true, Release);
        let mut completed = completed::<2>(channel);
        completed.sort_unstable();
        assert_eq!(completed, [0, 1]);
        channel.stop();
    });
}

// promise: agent.5
#[test]
fn panicking_task_leaves_the_others() {
    let sharing = Sharing { quantum: Duration::from_micros(1), ..Sharing::default() };
    let handler = |task: Task<'_>, cpu: Cpu<'_>| {
        cpu.yield_point();
        assert_ne!(task.ids().seq, 1, "a defect of the handler");
        if task.ids().seq == 2 {
            return std::mem::forget(task); // counts as completed without an answer
        }
        answer(task);
    };
    serve_beside(sharing, handler, |channel| {
        for seq in 0..4 {
            assert!(channel.send(ids(seq), &[]));
        }
        let (mut replies, mut unanswered) = (0, 0);
        let began = Instant::now();
        while replies + unanswered < 4 {
            assert!(began.elapsed() < TIMEOUT);
            for count in channel.collect().unwrap() {
                match outcome(channel, count) {
                    Outcome::Unanswered => unanswered += 1,
                    _ => replies += 1,
                }
            }
            std::thread::yield_now();
        }
        assert_eq!((replies, unanswered), (2, 2), "a panic, and a forgotten task");
        channel.stop();
    });
}

#[test]
fn served_quanta_are_published() {
    let ends = AtomicBool::new(false);
    let sharing = Sharing { quantum: Duration::from_micros(5), ..Sharing::default() };
    let handler = |task: Task<'_>, cpu: Cpu<'_>| {
        while !ends.load(Acquire) {
            cpu.yield_point();
        }
        answer(task);
    };
    serve_beside(sharing, handler, |channel| {
        assert!(channel.send(ids(0), &[]) && channel.send(ids(1), &[]));
        let began = Instant::now();
        while channel.sender().quanta() < 4 {
            assert!(began.elapsed() < TIMEOUT, "two tasks take turns");
            std::thread::yield_now();
        }
        ends.store(true, Release);
        completed::<2>(channel);
        channel.stop();
    });
}

#[test]
fn worker_continues_after_sharing() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert!(channel.send(ids(0), &[]) && channel.send(ids(1), &[]));
    worker.poll().unwrap().reply(b"alone").unwrap();
    let sharing = Sharing::default();
    // True at the first call only: the worker takes the waiting task, serves it, and returns.
    let mut calls = 0;
    let goes_on = || {
        calls += 1;
        calls == 1
    };
    assert!(matches!(worker.serve_while(&sharing, goes_on, |task, _| answer(task)), Ok(None)));
    assert!(channel.send(ids(2), &[]));
    worker.poll().unwrap().reply(b"alone").unwrap();
    assert_eq!(channel.collect(), Ok(0..3));
    let outcomes: Vec<_> = (0..3).map(|count| outcome(&channel, count)).collect();
    assert!(matches!(
        outcomes[..],
        [
            Outcome::Reply { len: 5, .. },
            Outcome::Reply { len: 4, .. },
            Outcome::Reply { len: 5, .. }
        ]
    ));
}

#[test]
fn impossible_parameters_of_sharing_are_refused() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    let sharing = Sharing::default();
    let wrong = [
        (Sharing { quantum: Duration::ZERO, ..sharing }, "quantum: found 0ns; allowed: 1us to 1s"),
        (Sharing { slots: 0, ..sharing }, "slots: found 0; allowed: at least 1"),
        (
            Sharing { stack: 1 << 50, ..sharing },
            "cannot allocate a stack of 1125899906842624 bytes",
        ),
    ];
    for (sharing, expected) in wrong {
        let error = worker.serve(&sharing, |task, _| answer(task)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Uses about `depth` KiB of stack.
fn recurse(depth: usize) -> usize {
    let bytes = std::hint::black_box([depth as u8; 1024]);
    if depth == 0 { 0 } else { recurse(depth - 1) + usize::from(bytes[depth % 1024]) }
}

// Runs itself in a second process, which overflows a stack of 64 KiB with about 1 MiB.
// promise: agent.5
#[test]
fn overflowed_stack_names_the_class() {
    const NAME: &str = "WEDJAT_TEST_OVERFLOW";
    if std::env::var_os(NAME).is_some() {
        let sharing = Sharing { stack: 64 << 10, ..Sharing::default() };
        serve_beside(
            sharing,
            |_, _| assert_ne!(recurse(1024), 1),
            |channel| {
                assert!(channel.send(ids(0), &[]));
            },
        );
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "worker::tests::sharing::overflowed_stack_names_the_class",
        "--nocapture",
    ]);
    let output = command.env(NAME, "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("a task of class 2 overflowed its stack of 65536 bytes"), "{stderr}");
}
