//! Tests of runs: the tasks of a burst that a worker set gives to its workers together.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::policy::Core;
use crate::ring::{TaskIds, WorkerEnd, WorkerRegion};
use crate::state::View;

/// Task with a number as its only content.
#[derive(Debug, PartialEq)]
struct Numbered(u32);

impl Work for Numbered {
    type Parcel = Box<Self>;

    fn since_ns(&self) -> u64 {
        0
    }

    fn ids(&self) -> TaskIds {
        TaskIds { seq: self.0, ..TaskIds::default() }
    }

    fn payload(&self) -> &[u8] {
        &[]
    }

    fn pack(self) -> (Box<Self>, u32) {
        (Box::new(self), 0)
    }

    fn unpack(parcel: Box<Self>, _: u32) -> Option<Self> {
        Some(*parcel)
    }
}

/// A worker set with its workers, all attached.
struct Rig {
    _region: Arc<WorkerRegion>,
    set: WorkerSet<Numbered>,
    worker_ends: Vec<WorkerEnd>,
    /// Number of the next task.
    next: u32,
}

/// Result of a submitted task: its member, `None` if it waits, or its number and the reason of its refusal.
type Settled = Result<Option<u16>, (u32, DropReason)>;

impl Rig {
    /// Creates a set of `workers` with `slots` slots each, and a queue of 8 tasks.
    fn new(policy: &str, workers: u16, slots: usize) -> Self {
        let identities: Vec<_> = (0..workers).map(|id| WorkerIdentity { id, pool: 0 }).collect();
        let region = Arc::new(WorkerRegion::heap(&identities, slots, 8).unwrap());
        let view = View::heap(usize::from(workers), 1).remove(0);
        let dispatcher = Dispatcher::new(&policy.parse().unwrap(), view, Core::ONLY, 1);
        let dispatcher = dispatcher.with_queue(8, Overflow::Drop);
        let channels = (0..identities.len()).map(|index| region.channel(index));
        let mut set =
            WorkerSet::new(0, dispatcher, identities.iter().copied().zip(channels).collect(), 100);
        let claim = |index| region.claim(index).unwrap().unwrap();
        let worker_ends: Vec<_> = (0..identities.len()).map(claim).collect();
        set.tick(0, 0, &mut |_| {});
        worker_ends.iter().for_each(WorkerEnd::start);
        Self { _region: region, set, worker_ends, next: 0 }
    }

    /// Submits this many tasks, in runs of at most `step`.
    fn submit(&mut self, count: usize, step: usize) -> Vec<Settled> {
        let first = self.next;
        self.next += count as u32;
        let mut tasks: Vec<_> = (first..self.next).map(|number| Some(Numbered(number))).collect();
        let mut settled = Vec::new();
        for run in tasks.chunks_mut(step) {
            self.set.submit_run(run, 0, &mut |result, _| {
                let member = result.map(|member| member.map(|member| member.0));
                settled.push(member.map_err(|(task, reason)| (task.0, reason)));
            });
        }
        assert!(tasks.iter().all(Option::is_none));
        settled
    }

    /// Lets a worker serve up to `most` tasks. Returns their numbers.
    fn serve(&mut self, worker: usize, most: usize) -> Vec<u32> {
        let worker_end = &self.worker_ends[worker];
        let served = std::iter::from_fn(|| {
            let task = worker_end.take().unwrap()?;
            let number = worker_end.ids(&task).seq;
            worker_end.answer(task, |_, _| 0, || 100).unwrap();
            Some(number)
        });
        served.take(most).collect()
    }

    /// Collects completions. Returns the numbers of the completed tasks, with the reason of a dropped one.
    fn collect(&mut self) -> Vec<(u32, Option<DropReason>)> {
        let mut ended = Vec::new();
        self.set.collect(0, &mut |done| ended.push((done.task.0, done.outcome.err())));
        ended
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 128 }) })]

    /// Each task of a run goes where it goes alone, and each worker gets its tasks in order.
    // promise: agent.1
    #[test]
    fn run_goes_like_its_tasks_alone(
        policy in prop::sample::select(vec!["jbsq(k=2)", "cfcfs", "jsq", "random", "eft"]),
        steps in proptest::collection::vec((0..=BURST, 0..4_usize, 0..6_usize), 1..30),
    ) {
        let [mut runs, mut alone] = [(); 2].map(|()| Rig::new(policy, 4, 1024));
        for (count, worker, most) in steps {
            prop_assert_eq!(runs.submit(count, BURST), alone.submit(count, 1));
            prop_assert_eq!(runs.serve(worker, most), alone.serve(worker, most));
            prop_assert_eq!(runs.collect(), alone.collect());
            prop_assert_eq!(runs.set.held(), alone.set.held());
        }
        for worker in 0..4 {
            let served = runs.serve(worker, usize::MAX);
            prop_assert!(served.is_sorted());
            prop_assert_eq!(served, alone.serve(worker, usize::MAX));
        }
    }
}

// promise: agent.1
#[test]
fn full_ring_refuses_the_rest_of_a_run() {
    let mut rig = Rig::new("jsq", 1, 4);
    let refused = |number| Err((number, DropReason::QueueFull));
    let given = Ok(Some(0));
    assert_eq!(rig.submit(6, BURST), [given, given, given, given, refused(4), refused(5)]);
    assert_eq!(rig.set.dispatcher().view().outstanding(Member(0)), 4);
    assert_eq!(rig.serve(0, 3), [0, 1, 2]);
    assert_eq!(rig.collect(), [0, 1, 2].map(|number| (number, None)));
    assert_eq!(rig.submit(4, BURST), [given, given, given, refused(9)], "across the ring's end");
    assert_eq!(rig.serve(0, BURST), [3, 6, 7, 8]);
}

// promise: agent.2
#[test]
fn death_loses_only_the_workers_tasks() {
    let mut rig = Rig::new("jbsq(k=4)", 2, 8);
    let settled = rig.submit(10, BURST);
    assert_eq!(settled.iter().filter(|result| **result == Ok(None)).count(), 2, "two wait");
    let of_second = |(number, result): (u32, &Settled)| (*result == Ok(Some(1))).then_some(number);
    let of_second: Vec<_> = (0..).zip(&settled).filter_map(of_second).collect();
    assert_eq!(rig.serve(1, 1), of_second[..1]);
    let claim = rig.set.claim_of(WorkerIdentity { id: 1, pool: 0 }).unwrap();
    rig.worker_ends.pop().unwrap().die();
    let mut ended = Vec::new();
    rig.set.died(1, claim, &mut |done| ended.push((done.task.0, done.outcome.err())));
    let lost = of_second[1..].iter().map(|&number| (number, Some(DropReason::WorkerLost)));
    assert_eq!(ended, [(of_second[0], None)].into_iter().chain(lost).collect::<Vec<_>>());
    let first = rig.serve(0, BURST);
    assert_eq!((first.len(), rig.collect().len()), (4, 4));
    assert_eq!(rig.serve(0, BURST), [8, 9], "the waiting ones");
}

#[test]
fn drained_worker_gets_no_part_of_a_run() {
    let mut rig = Rig::new("jbsq(k=2)", 3, 8);
    rig.set.drain(Member(1), true);
    let settled = rig.submit(6, BURST);
    assert!(!settled.contains(&Ok(Some(1))));
    assert_eq!(settled.iter().filter(|result| **result == Ok(None)).count(), 2);
    rig.set.drain(Member(1), false);
    rig.collect();
    assert_eq!(rig.serve(1, BURST), [4, 5]);
}

// promise: agent.1
#[test]
fn completions_beyond_a_burst_advance_the_queue() {
    let mut rig = Rig::new("jbsq(k=16)", 4, 16);
    assert!(rig.submit(64, BURST).iter().all(|result| matches!(result, Ok(Some(_)))));
    assert_eq!(rig.submit(8, BURST), [Ok(None); 8]);
    let served: usize = (0..4).map(|worker| rig.serve(worker, BURST).len()).sum();
    assert_eq!((served, rig.collect().len()), (64, 64));
    assert_eq!((rig.set.waiting(), rig.set.held()), (0, 8));
}
