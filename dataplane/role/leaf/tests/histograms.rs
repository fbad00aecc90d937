//! Histograms of the leaf: times in the queue, ages of load reports, and times of decisions.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::state::histogram::HistogramSnapshot;

/// Returns the ages of load reports, and the times in the queue.
fn histograms(rig: &Rig) -> [HistogramSnapshot; 2] {
    rig.leaf.stages().dispatcher(0).unwrap().view().histograms()
}

// promise: control.5
#[test]
fn queue_times_are_those_of_the_clock() {
    let mut rig = rig("jbsq(k=1)");
    for seq in 0..8 {
        assert_eq!(rig.through(CLIENTS, &task(seq), WORKERS).len(), 1, "each worker gets one");
    }
    assert_eq!(histograms(&rig)[1], HistogramSnapshot::default(), "none has waited");
    let mut arrivals = Vec::new();
    for seq in 8..11 {
        assert!(rig.through(CLIENTS, &task(seq), WORKERS).is_empty());
        arrivals.push(rig.now);
        rig.wait(7_000);
    }
    let (mut waits, mut buckets) = (Vec::new(), BTreeMap::new());
    for (worker, (arrival, bound)) in
        (10..).zip(arrivals.into_iter().zip([50_000, 200_000, 500_000]))
    {
        rig.wait(bound / 2);
        assert!(rig.far[WORKERS].send(&reply(worker, 0)));
        rig.poll();
        assert_eq!(rig.receive(WORKERS).len(), 1, "the first waiting task goes");
        waits.push(rig.now - arrival);
        *buckets.entry(bound).or_insert(0) += 1;
        assert_eq!(histograms(&rig)[1].buckets, buckets, "{waits:?}");
    }
    let [ages, times] = histograms(&rig);
    assert_eq!((times.count, times.sum_ns), (3, waits.iter().sum()));
    assert_eq!(ages.count, 0, "no burst is sampled yet");
    rig.assert_accounted();
}

/// Sends a task and, 30 us later, its reply. Returns the task's worker, and the times of both.
fn round_trip(rig: &mut Rig, seq: u16) -> (u16, u64, u64) {
    let (_, header, _) = rig.one(CLIENTS, &task(seq), WORKERS);
    let sent = rig.now;
    rig.wait(30_000);
    rig.one(WORKERS, &reply(header.dst, 0), CLIENTS);
    (header.dst, sent, rig.now)
}

// promise: control.5
#[test]
fn one_burst_in_1024_is_sampled() {
    static REAL_TIME: AtomicU64 = AtomicU64::new(0);
    for has_stopwatch in [false, true] {
        let mut rig = rig("horus");
        if has_stopwatch {
            // Each reading is 300 ticks, which are nanoseconds, after the one before.
            rig.leaf = rig.leaf.with_stopwatch(Some(|| REAL_TIME.fetch_add(300, Relaxed)));
        }
        let (mut reports, mut ages) = (BTreeMap::new(), Vec::new());
        // Bursts are counted from 1; the odd ones are tasks. Burst 1024 would be sampled but has only a reply, so the leaf
        // samples the one 17 bursts later.
        let sampled = [1024 + 17, 2 * 1024 + 17];
        for (seq, burst) in (1..=2100_u32).step_by(2).enumerate() {
            let (worker, sent, reported) = round_trip(&mut rig, seq as u16);
            if sampled.contains(&burst) {
                ages.push(sent - reports[&worker]);
            }
            reports.insert(worker, reported);
        }
        let counters = rig.leaf.stages().counters();
        let (decisions, [found, _]) = (counters.decision_time(), histograms(&rig));
        assert_eq!((found.count, found.sum_ns), (2, ages.iter().sum()));
        assert!(ages.iter().all(|&age| age > 0), "{ages:?}");
        let expected = if has_stopwatch { BTreeMap::from([(500, 2)]) } else { BTreeMap::new() };
        assert_eq!(decisions.buckets, expected, "300 ns each");
        assert_eq!(decisions.sum_ns, if has_stopwatch { 600 } else { 0 });
        rig.assert_accounted();
    }
}

// promise: control.5
#[test]
fn sampled_decision_for_an_unreported_worker_has_no_age() {
    let mut rig = rig("horus");
    for seq in 0..1024 {
        rig.one(CLIENTS, &task(seq), WORKERS);
    }
    assert_eq!((rig.count(Counter::Scheduled), histograms(&rig)[0].count), (1024, 0));
    rig.assert_accounted();
}

// promise: control.5
#[test]
fn waiting_tasks_count_as_decisions() {
    let mut rig = rigs_with("jbsq(k=1)", true, true, 256, 1, (2048, Overflow::Drop)).remove(0);
    rig.leaf = rig.leaf.with_stopwatch(Some(|| 5));
    for seq in 0..1024 {
        rig.through(CLIENTS, &task(seq), WORKERS);
    }
    let decisions = rig.leaf.stages().counters().decision_time();
    assert_eq!((decisions.buckets, decisions.sum_ns), (BTreeMap::from([(10, 1)]), 0));
}
