//! Tests of the counts of unfinished tasks, by the worker that the tasks name. The checker loom runs them in every
//! order that the memory model allows.
//!
//! The dispatcher publishes the number of accepted tasks and then hands a task over to a thread. The thread counts its
//! answer and gets the number of tasks left.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread::{self, JoinHandle};
use std::sync::atomic::Ordering;

use super::named_load::{NamedLoad, Number};

impl Number for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        Self::store(self, value, order);
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        Self::fetch_add(self, value, order)
    }
}

/// Counts that loom checks, shared by the dispatcher and the threads.
type CountedLoad = Arc<NamedLoad<AtomicU32>>;

/// Creates the counts of one worker.
fn load() -> CountedLoad {
    Arc::new(NamedLoad::new(1))
}

/// Hands a task over to a new thread, which answers it. As with a ring's notice, the thread sees earlier writes. Its
/// result is the number of tasks left.
fn hand_over(load: &CountedLoad) -> JoinHandle<u32> {
    let load = load.clone();
    thread::spawn(move || load.answer(0))
}

/// Each answer counts the arrivals of its own task and of all tasks answered before. At least one finds
/// none left, and none finds a negative number, which would wrap to a very large one.
// promise: agent.1
#[test]
fn an_answer_sees_an_empty_queue() {
    loom::model(|| {
        let load = load();
        let workers = [1, 2].map(|accepted| {
            load.publish(0, accepted);
            let worker = hand_over(&load);
            assert!(load.unanswered(0, accepted) <= accepted);
            worker
        });
        // The threads may answer in any order. The first to count may already see the second task's arrival.
        let mut left = workers.map(|worker| worker.join().expect("the worker"));
        left.sort_unstable();
        assert!(matches!(left, [0, 0 | 1]), "{left:?}");
        assert_eq!(load.unanswered(0, 2), 0);
    });
}

/// The dispatcher completes a task of its own and subtracts it from the published count.
// promise: agent.1
#[test]
fn own_completion_lowers_the_published_count() {
    loom::model(|| {
        let load = load();
        load.publish(0, 1);
        load.publish(0, 2);
        let worker = hand_over(&load);
        load.publish(0, 1); // the dispatcher completes the second task itself
        assert!(load.unanswered(0, 1) <= 1);
        assert!(worker.join().expect("the worker") <= 1);
        assert_eq!(load.unanswered(0, 1), 0);
    });
}
