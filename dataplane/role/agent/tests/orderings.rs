//! loom counts a few tasks by name in every order that the memory model allows.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread::{self, JoinHandle};
use std::sync::atomic::Ordering;

use super::super::named_load::{NamedLoad, Number};

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

type Counted = Arc<NamedLoad<AtomicU32>>;

fn load() -> Counted {
    Arc::new(NamedLoad::new(1))
}

/// Hands a task over: as with a ring's notice, the worker sees what was written before. It tells how many it left.
fn hand_over(load: &Counted) -> JoinHandle<u32> {
    let load = load.clone();
    thread::spawn(move || load.answer(0))
}

/// Each answer counts its own task's arrival and those of all tasks answered before: the last finds none left, and
/// none finds fewer than none, which would be very many.
#[test]
fn the_last_answer_finds_none_left_and_no_other_finds_fewer() {
    loom::model(|| {
        let load = load();
        let workers = [1, 2].map(|here| {
            load.publish(0, here);
            let worker = hand_over(&load);
            assert!(load.left(0, here) <= here);
            worker
        });
        let mut left = workers.map(|worker| worker.join().expect("the worker"));
        left.sort_unstable();
        assert!(matches!(left, [0, 0 | 1]), "{left:?}");
        assert_eq!(load.left(0, 2), 0);
    });
}

/// The dispatcher ends a task of its own, and takes it back from what it has published.
#[test]
fn a_task_that_the_dispatcher_ends_is_not_counted_against_a_thread() {
    loom::model(|| {
        let load = load();
        load.publish(0, 1);
        load.publish(0, 2);
        let worker = hand_over(&load);
        load.publish(0, 1);
        assert!(load.left(0, 1) <= 1);
        assert!(worker.join().expect("the worker") <= 1);
        assert_eq!(load.left(0, 1), 0);
    });
}
