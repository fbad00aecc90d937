//! Tests of the protocol with loom, which runs a few steps in every order that the memory model allows.
//!
//! A worker claims a channel by a number, and the dispatcher grants the claim by repeating it. Slots carry tasks to the
//! worker, and its count of completed tasks (the *credit*) returns.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::ops::Deref;
use std::sync::atomic::Ordering::{self, Relaxed};

use super::super::protocol::{
    ChannelWords, Holder, Notice, Receiver, Sender, SharedWord, claim, control, credit,
};

impl SharedWord for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Words shared by both threads.
#[derive(Clone)]
struct Shared(Arc<Vec<AtomicU64>>);

impl Shared {
    /// Creates zeroed words.
    fn new(len: usize) -> Self {
        Self(Arc::new((0..len).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Deref for Shared {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Creates the words of a channel.
fn words(slots: usize) -> ChannelWords<Shared> {
    ChannelWords {
        control: Shared::new(control::WORDS),
        claim: Shared::new(claim::WORDS),
        credit: Shared::new(credit::WORDS),
        slots: Shared::new(2 * slots),
        completed: Shared::new(slots),
    }
}

/// Creates both ends of a ring with `slots` slots. The worker has started.
fn attached(slots: usize) -> (Sender<Shared>, Receiver<Shared>) {
    let words = words(slots);
    let mut sender = Sender::new(words.clone());
    let receiver = Receiver::claim(words, 1, 0);
    sender.grant(sender.claim());
    receiver.start();
    (sender, receiver)
}

/// Returns the notice (the slot's content) of task `number`, different for each task.
fn task(number: u64) -> Notice {
    Notice { offset: 0, len: number as u32 + 10, class: number as u16 + 20 }
}

/// Calls `poll` until it returns a result. Yields between calls, because loom does not end a loop that spins.
fn wait<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(result) = poll() {
            return result;
        }
        thread::yield_now();
    }
}

/// Bytes of tasks and replies, accessed as relaxed words, are visible with the notice and the credit. A slot
/// is not reused before its task is completed.
// promise: agent.1
#[test]
fn bytes_are_visible_with_notices_and_credits() {
    loom::model(|| {
        const TASKS: u64 = 3;
        let (tasks, replies) = (Shared::new(2), Shared::new(2));
        let (mut sender, receiver) = attached(2);
        let worker = {
            let (tasks, replies) = (tasks.clone(), replies.clone());
            thread::spawn(move || {
                for number in 0..TASKS {
                    let notice = wait(|| receiver.receive());
                    assert_eq!(notice, task(number));
                    let slot = receiver.slot(number);
                    let bytes = tasks[slot].load(Relaxed);
                    assert_eq!(bytes, 100 + number);
                    replies[slot].store(bytes + 100, Relaxed);
                    receiver.complete(1);
                }
            })
        };
        let mut answered = 0;
        // Checks the new replies, and returns the number of all replies so far.
        let mut collect = |sender: &mut Sender<Shared>| {
            for number in sender.collect().expect("a worker without fault") {
                assert_eq!(number, answered);
                assert_eq!(replies[sender.completed(number).slot].load(Relaxed), 200 + number);
                answered += 1;
            }
            answered
        };
        for number in 0..TASKS {
            while sender.room() == 0 {
                collect(&mut sender);
                thread::yield_now();
            }
            tasks[sender.next_slot()].store(100 + number, Relaxed);
            assert!(sender.send(task(number)));
        }
        wait(|| (collect(&mut sender) == TASKS).then_some(()));
        worker.join().expect("the worker");
    });
}

/// A worker that sees the first task of a burst sees all of them.
// promise: agent.1
#[test]
fn worker_sees_a_burst_at_once() {
    loom::model(|| {
        let (mut sender, receiver) = attached(4);
        let worker = thread::spawn(move || {
            assert_eq!(wait(|| receiver.receive()), task(0));
            assert_eq!(receiver.receive(), Some(task(1)));
            assert_eq!(receiver.receive(), Some(task(2)));
            receiver.complete(3);
        });
        assert_eq!(sender.send_burst(&[task(0), task(1), task(2)]), 3);
        wait(|| (sender.collect().expect("no fault").end == 3).then_some(()));
        worker.join().expect("the worker");
    });
}

/// A worker that sees the first task of a run sees the whole run, also beyond the last slot of a ring that was full.
// promise: agent.1
#[test]
fn run_across_the_end_is_seen_at_once() {
    loom::model(|| {
        let (mut sender, receiver) = attached(2);
        assert!(sender.send(task(0)) && sender.append(task(1)));
        let worker = thread::spawn(move || {
            assert_eq!(wait(|| receiver.receive()), task(0));
            receiver.complete(1);
            assert_eq!(wait(|| receiver.receive()), task(1));
            assert_eq!(receiver.receive(), Some(task(2)));
            receiver.complete(2);
        });
        while !sender.append(task(2)) {
            assert!(sender.collect().expect("no fault").end <= 1, "task 1 is not visible");
            thread::yield_now();
        }
        assert!(!sender.append(task(3)), "tasks 1 and 2 fill the ring");
        sender.publish();
        wait(|| (sender.collect().expect("no fault").end == 3).then_some(()));
        worker.join().expect("the worker");
    });
}

/// A worker dies within a run. Its unfinished tasks are lost, also those not yet visible. Its successor sees only its
/// own.
// promise: agent.1
#[test]
fn successor_sees_no_run_of_a_dead_worker() {
    loom::model(|| {
        let words = words(4);
        let mut sender = Sender::new(words.clone());
        let first = Receiver::claim(words.clone(), 1, 0);
        sender.grant(sender.claim());
        first.start();
        assert_eq!(sender.send_burst(&[task(0), task(1)]), 2);
        let worker = thread::spawn(move || {
            assert_eq!(first.receive(), Some(task(0)));
            first.complete(5);
            drop(first); // dies within the first run; a dropped receiver does not leave
            let second = Receiver::claim(words, 2, 0);
            wait(|| second.is_granted().then_some(()));
            second.start();
            assert_eq!(wait(|| second.receive()), task(3));
            assert_eq!(second.receive(), Some(task(4)));
            second.complete(1);
        });
        let before = sender.granted();
        assert!(sender.append(task(2)));
        let claim = wait(|| Some(sender.claim()).filter(|&claim| claim != before));
        assert_eq!(sender.collect(), Ok(0..1));
        assert_eq!(sender.revoke(), 1..3);
        sender.grant(claim);
        assert_eq!(sender.send_burst(&[task(3), task(4)]), 2);
        wait(|| (sender.collect().expect("no fault").end == 5).then_some(()));
        worker.join().expect("the worker");
    });
}

/// A second worker starts with the next task, and the dispatcher never reads the first worker's count as the second's.
// promise: agent.1
#[test]
fn a_second_worker_begins_where_the_first_ended() {
    loom::model(|| {
        let words = words(2);
        let mut sender = Sender::new(words.clone());
        let first = Receiver::claim(words.clone(), 1, 0);
        sender.grant(sender.claim());
        first.start();
        assert!(sender.send(task(0)) && sender.send(task(1)));
        assert_eq!(first.receive(), Some(task(0)));
        first.complete(5);
        drop(first); // dies with one task completed and one not; a dropped receiver does not leave
        let worker = thread::spawn(move || {
            let second = Receiver::claim(words, 2, 0);
            wait(|| second.is_granted().then_some(()));
            second.start();
            assert_eq!(second.next(), 2);
            assert_eq!(wait(|| second.receive()), task(2));
            second.complete(1);
        });
        let before = sender.granted();
        let claim = wait(|| Some(sender.claim()).filter(|&claim| claim != before));
        assert_eq!(sender.collect(), Ok(0..1));
        assert_eq!(sender.revoke(), 1..2);
        sender.grant(claim);
        assert!(sender.send(task(2)));
        assert_eq!(wait(|| sender.collect().ok().filter(|done| !done.is_empty())), 2..3);
        worker.join().expect("the worker");
    });
}

/// The dispatcher distinguishes a granted worker that left from one that died, also after successors have claimed the
/// channel. A worker that left before its grant does not count as joined.
// promise: agent.2
#[test]
fn departed_and_died_workers_stay_distinct() {
    for dies in [false, true] {
        loom::model(move || {
            let words = words(1);
            let mut sender = Sender::new(words.clone());
            let first = Receiver::claim(words.clone(), 1, 0);
            let worker = thread::spawn(move || {
                if !dies {
                    first.leave();
                }
                Receiver::claim(words.clone(), 2, 0).leave();
                Receiver::claim(words, 3, 0)
            });
            let (mut joined, mut departed, mut last) = (Vec::new(), Vec::new(), 0);
            let mut check = || {
                let (claim, granted) = (sender.claim(), sender.granted());
                let holder = sender.holder();
                if granted != 0 && holder != Holder::Attached {
                    departed.push((granted, holder));
                    sender.revoke();
                }
                if claim != 0 && claim != last && !sender.is_granted() {
                    last = claim;
                    joined.extend(sender.grant(claim).then_some(claim));
                }
            };
            // Any two moments while the workers attach and leave.
            check();
            check();
            let third = worker.join().expect("the worker");
            // The third worker gets the grant, and keeps it.
            check();
            check();
            assert!(third.is_granted());
            let (_, before) = joined.split_last().expect("the third");
            assert_eq!(before, departed.iter().map(|(claim, _)| *claim).collect::<Vec<_>>());
            for (claim, holder) in departed {
                let died = dies && claim == 3; // 3 is the first claim of a channel
                assert_eq!(holder, if died { Holder::Died } else { Holder::Left }, "claim {claim}");
            }
        });
    }
}

/// A worker that sees the stop request sees every task given before it.
// promise: agent.1
#[test]
fn stop_request_overtakes_no_task() {
    loom::model(|| {
        let (mut sender, receiver) = attached(2);
        let worker = thread::spawn(move || {
            wait(|| receiver.is_stopped().then_some(()));
            assert_eq!(receiver.receive(), Some(task(0)));
        });
        assert!(sender.send(task(0)));
        sender.stop();
        worker.join().expect("the worker");
    });
}

/// The dispatcher reads the worker's note about each completed task, also in a slot that had another note.
// promise: agent.1
#[test]
fn notes_of_completions_are_visible_with_credits() {
    const TASKS: u64 = 3; // one more than slots
    loom::model(|| {
        let (mut sender, receiver) = attached(2);
        let worker = thread::spawn(move || {
            for number in 0..TASKS {
                wait(|| receiver.receive());
                receiver.complete_noted(300 + number, 1);
            }
        });
        let (mut given, mut completed) = (0, 0);
        wait(|| {
            for count in sender.collect().expect("a worker without fault") {
                assert_eq!((count, sender.completion_note(count)), (completed, 300 + completed));
                completed += 1;
            }
            while given < TASKS && sender.send(task(given)) {
                given += 1;
            }
            (completed == TASKS).then_some(())
        });
        worker.join().expect("the worker");
    });
}

/// The dispatcher reads the slots of tasks that were completed in reverse order, with their bytes.
// promise: agent.1
#[test]
fn listed_completions_are_visible_with_credits() {
    loom::model(|| {
        let replies = Shared::new(2);
        let (mut sender, receiver) = attached(2);
        assert!(sender.send(task(0)) && sender.send(task(1)));
        let worker = {
            let replies = replies.clone();
            thread::spawn(move || {
                receiver.list_completions();
                assert_eq!(
                    (receiver.receive(), receiver.receive()),
                    (Some(task(0)), Some(task(1)))
                );
                for slot in [1, 0] {
                    replies[slot].store(200 + slot as u64, Relaxed);
                    receiver.complete_slot(slot, 1);
                }
            })
        };
        let mut slots = Vec::new();
        wait(|| {
            for count in sender.collect().expect("a worker without fault") {
                let position = sender.completed(count);
                assert_eq!(position.number as usize, position.slot);
                assert_eq!(replies[position.slot].load(Relaxed), 200 + position.number);
                slots.push(position.slot);
            }
            (slots.len() == 2).then_some(())
        });
        assert_eq!(slots, [1, 0]);
        worker.join().expect("the worker");
    });
}
