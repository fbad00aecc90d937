//! Tests of workers at a dispatcher in the same process, over memory on the heap and over a region with a path.
//!
//! A *region* is the memory that an agent shares with its workers; each worker claims a *channel* of it. The test plays
//! the agent: it grants claims, gives tasks and collects completions.

#[cfg(not(miri))]
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use super::*;
use crate::TIMEOUT;
use crate::ring::{Channel, Notice, Outcome, WorkerIdentity};

// Miri supports neither signals nor switches between stacks.
#[cfg(not(miri))]
mod sharing;

/// Creates a region on the heap for workers 0, 1 and so on, two per pool, with four slots of 32 bytes each.
fn region(workers: u16) -> Arc<WorkerRegion> {
    let identities: Vec<_> = (0..workers).map(|id| WorkerIdentity { id, pool: id / 2 }).collect();
    Arc::new(WorkerRegion::heap(&identities, 4, 32).unwrap())
}

/// Returns default options, with a longer timeout for the test's agent.
fn attach_options() -> Options {
    Options { attach_timeout: TIMEOUT, ..Options::default() }
}

/// Grants the claim of an attaching worker, like an agent between two bursts. A new claim takes the grant from the
/// former worker.
fn grant_claim(channel: &mut Channel) {
    let sender = channel.sender_mut();
    let claim = sender.claim();
    if claim != sender.granted() {
        sender.revoke();
        sender.grant(claim);
    }
}

/// Attaches a worker from a second thread, while this one plays the agent and grants the claim.
fn join(region: &Arc<WorkerRegion>, channel: &mut Channel, options: &Options) -> Worker {
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| Worker::join("here", region, options));
        while !joining.is_finished() {
            grant_claim(channel);
            std::thread::yield_now();
        }
        joining.join().unwrap().unwrap()
    })
}

/// Returns the ids of a task with this sequence number.
fn ids(seq: u32) -> TaskIds {
    TaskIds { app: 8, seq, class: 2 }
}

/// Returns the outcome of the completed task with this count of earlier completions.
fn outcome(channel: &Channel, count: u64) -> Outcome {
    channel.outcome(channel.sender().completed(count))
}

#[test]
fn worker_polls_answers_and_drops_tasks() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert_eq!((worker.id(), worker.pool(), worker.payload_max()), (0, 0, 32));
    assert!(worker.poll().is_none());
    assert!((0..4).all(|seq| channel.send(ids(seq), &[seq as u8; 3])));
    let task = worker.poll().unwrap();
    assert_eq!((task.payload(), task.ids(), task.class()), (&[0; 3][..], ids(0), 2));
    assert_eq!(task.request(), WorkerRequest::TaskWaits);
    task.reply(b"done").unwrap();
    drop(worker.poll().unwrap()); // completes it without an answer
    let error = worker.poll().unwrap().reply(&[0; 33]).unwrap_err();
    assert_eq!(error, ReplyTooLong { len: 33, most: 32 });
    assert_eq!(worker.poll().unwrap().request(), WorkerRequest::Nothing);
    assert_eq!(channel.collect(), Ok(0..4));
    assert!(matches!(outcome(&channel, 0), Outcome::Reply { len: 4, .. }));
    assert!((1..4).all(|number| outcome(&channel, number) == Outcome::Unanswered));
}

#[test]
fn forgotten_task_is_resumed_or_abandoned() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert!((0..2).all(|seq| channel.send(ids(seq), &[])));
    std::mem::forget(worker.poll().unwrap());
    assert_eq!(worker.resume().map(std::mem::forget), Some(()));
    worker.resume().unwrap().reply(b"late").unwrap();
    assert!(worker.resume().is_none());
    std::mem::forget(worker.poll().unwrap());
    assert!(worker.poll().is_none());
    assert_eq!(channel.collect(), Ok(0..2));
    assert!(matches!(outcome(&channel, 0), Outcome::Reply { len: 4, .. }));
    assert_eq!(outcome(&channel, 1), Outcome::Unanswered);
}

#[test]
fn panicked_task_completes_without_an_answer() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert!(channel.send(ids(0), &[]));
    let task = worker.poll().unwrap();
    // 33 bytes exceed the reply buffer of 32.
    let panics = std::panic::AssertUnwindSafe(|| task.reply_with(|_, _| 33));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(channel.collect(), Ok(0..1));
    assert_eq!(outcome(&channel, 0), Outcome::Unanswered);
}

#[test]
fn invalid_notice_ends_the_worker_despite_later_tasks() {
    // With spinning and without.
    for spin in [Duration::from_micros(50), Duration::ZERO] {
        let region = region(1);
        let mut channel = region.channel(0);
        let options = Options { spin, ..attach_options() };
        let mut worker = join(&region, &mut channel, &options);
        // No slot begins at offset 1.
        assert!(channel.sender_mut().send(Notice { offset: 1, len: 0, class: 0 }));
        assert!(channel.send(ids(1), &[]));
        // This call finds the invalid notice and returns at once; later calls report it.
        assert!(worker.recv(TIMEOUT).unwrap().is_none());
        for _ in 0..2 {
            assert!(matches!(worker.recv(TIMEOUT), Err(Detached::BadNotice)));
        }
    }
}

// promise: agent.1
#[cfg(not(miri))]
#[test]
fn task_and_shutdown_wake_a_sleeping_worker() {
    let region = region(1);
    let mut channel = region.channel(0);
    let options = Options { spin: Duration::ZERO, ..attach_options() };
    let mut worker = join(&region, &mut channel, &options);
    let waits = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut answered = 0;
            loop {
                waits.store(true, Release);
                match worker.recv(TIMEOUT) {
                    Ok(Some(task)) => task.reply(b"woken").unwrap(),
                    Ok(None) => panic!("the timeout is long"),
                    Err(reason) => return (answered, reason),
                }
                answered += 1;
            }
        });
        for seq in 0..20 {
            // The worker is about to wait, and may already sleep.
            while !waits.swap(false, Acquire) {
                std::thread::yield_now();
            }
            assert!(channel.send(ids(seq), &[]));
            while channel.collect().unwrap().is_empty() {
                std::thread::yield_now();
            }
        }
        channel.stop();
        assert_eq!(working.join().unwrap(), (20, Detached::Stopped));
    });
}

#[cfg(not(miri))]
#[test]
fn waiting_without_tasks_returns_none() {
    let region = region(1);
    let mut channel = region.channel(0);
    let options = Options { spin: Duration::from_micros(10), ..attach_options() };
    let mut worker = join(&region, &mut channel, &options);
    for timeout in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(2)] {
        assert!(worker.recv(timeout).unwrap().is_none());
    }
}

#[test]
fn tasks_given_before_the_end_are_still_taken() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert!((0..2).all(|seq| channel.send(ids(seq), &[])));
    channel.stop();
    let task = worker.recv(TIMEOUT).unwrap().unwrap();
    assert_eq!(task.request(), WorkerRequest::Stop);
    task.reply(&[]).unwrap();
    worker.recv(TIMEOUT).unwrap().unwrap().reply(&[]).unwrap();
    assert_eq!(worker.recv(TIMEOUT).unwrap_err(), Detached::Stopped);
    assert_eq!(worker.check(), Err(Detached::Stopped));
}

#[test]
fn excluded_worker_is_notified_and_may_return() {
    let region = region(1);
    let mut channel = region.channel(0);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert!(channel.send(ids(0), &[]));
    let task = worker.poll().unwrap();
    // The agent takes the grant back; task 0 is lost.
    assert_eq!(channel.sender_mut().revoke(), 0..1);
    assert_eq!(task.request(), WorkerRequest::Stop);
    task.reply(b"too late").unwrap();
    assert_eq!(worker.recv(TIMEOUT).unwrap_err(), Detached::Excluded);
    drop(worker);
    let mut worker = join(&region, &mut channel, &attach_options());
    assert!(channel.send(ids(1), b"again"));
    assert_eq!(worker.poll().unwrap().payload(), b"again");
}

#[test]
fn worker_gets_channel_of_its_id_and_pool() {
    let region = region(4);
    let mut channels: Vec<_> = (0..4).map(|index| region.channel(index)).collect();
    // No thread grants the claim here, so a short wait is enough.
    let hasty = Options { attach_timeout: Duration::from_millis(1), ..Options::default() };
    let chosen = Options { worker: Some(2), ..hasty.clone() };
    let refused = Worker::join("here", &region, &chosen).unwrap_err();
    assert!(matches!(refused, AttachError::NotGranted { id: 2, .. }), "{refused}");
    let second = join(&region, &mut channels[2], &Options { worker: Some(2), ..attach_options() });
    assert_eq!((second.id(), second.pool()), (2, 1));
    assert!(matches!(Worker::join("here", &region, &chosen), Err(AttachError::Taken(_))));
    let pool = Options { pool: Some(1), ..attach_options() };
    let third = join(&region, &mut channels[3], &pool);
    assert_eq!(third.id(), 3);
    let unknown = Options { worker: Some(9), pool: Some(4), ..Options::default() };
    let error = Worker::join("here", &region, &unknown).unwrap_err();
    assert_eq!(
        error.to_string(),
        "agent `here` has no worker with id 9 in pool 4; it has [0, 1, 2, 3]"
    );
}

#[cfg(not(miri))]
#[test]
fn worker_notices_the_death_of_its_agent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let name = path.to_str().unwrap();
    let missing = Worker::attach(name, &Options::default()).unwrap_err();
    assert!(missing.to_string().contains("start the agent first"), "{missing}");
    let identities = [WorkerIdentity { id: 0, pool: 0 }];
    let owner = Arc::new(WorkerRegion::create(&path, &identities, 4, 32).unwrap());
    let mut channel = owner.channel(0);
    let attached = Arc::new(WorkerRegion::open(&path).unwrap());
    let mut worker = join(&attached, &mut channel, &attach_options());
    assert!(owner.has_worker(0));
    drop(owner);
    assert_eq!(worker.recv(TIMEOUT).unwrap_err(), Detached::AgentDied);
    let error = Worker::join(name, &attached, &Options::default()).unwrap_err();
    assert!(matches!(error, AttachError::NoAgent(_)), "{error}");
}

// promise: agent.1
#[test]
fn an_adaptive_spin_follows_how_soon_tasks_come() {
    let longest = Duration::from_micros(64);
    let (soon, late) = (Duration::from_micros(5), Duration::from_millis(1));
    let mut spin = Spin::new(longest, true);
    (0..10).for_each(|_| spin.learn(late));
    assert_eq!(spin.current, longest / SPIN_RANGE);
    // Three doublings from a sixteenth.
    (0..3).for_each(|_| spin.learn(soon));
    assert_eq!(spin.current, longest / 2);
    (0..10).for_each(|_| spin.learn(soon));
    assert_eq!(spin.current, longest);
    let mut fixed = Spin::new(longest, false);
    fixed.learn(late);
    assert_eq!(fixed.current, longest);
}
