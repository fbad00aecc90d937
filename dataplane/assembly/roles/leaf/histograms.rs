//! Histograms of the leaf: times in the queue, ages of load reports, and times of decisions. The leaf samples one burst
//! in 1024: it measures the time of its decision by a stopwatch, and then *watches* the worker of its first task until
//! that worker's second report. After the first report it records the report's age at each task for the worker.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `assert_accounted` ends the leaf. Then it checks that each received packet was
//! sent on, consumed or dropped, and that every buffer is back.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use wedjat_core::state::histogram::HistogramSnapshot;

use super::*;

/// Returns the histograms of pool 7: the ages of load reports, and the times in the queue.
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
    // Each task waits for more than half of a bucket's upper bound in nanoseconds.
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

/// Sends a task and, 30 us later, its reply, and waits for 40 us: two bursts for the leaf. The report in the reply is
/// then 41 us old at the next task, which arrives 1 us after the wait. Returns the task's worker.
fn round_trip(rig: &mut Rig, seq: u16) -> u16 {
    let (_, header, _) = rig.one(CLIENTS, &task(seq), WORKERS);
    rig.wait(30_000);
    rig.one(WORKERS, &reply(header.dst, 0), CLIENTS);
    rig.wait(40_000);
    header.dst
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
        // Bursts are counted from 1; the odd ones are tasks. Burst 1024 would be sampled but has only a reply, so the
        // leaf samples 1041, 17 bursts later. It watches that task's worker up to the second reply, 1044.
        for seq in 0..1044 / 2 {
            round_trip(&mut rig, seq);
        }
        let counters = rig.leaf.stages().counters();
        let (decisions, [ages, _]) = (counters.decision_time(), histograms(&rig));
        let expected = if has_stopwatch { BTreeMap::from([(500, 1)]) } else { BTreeMap::new() };
        assert_eq!(decisions.buckets, expected);
        assert_eq!(decisions.sum_ns, if has_stopwatch { 300 } else { 0 });
        // The poll with the next task is 1 us after the wait. Horus sends it to the worker that became idle last.
        assert_eq!((ages.count, ages.sum_ns), (1, 41_000));
        // The next sample is due 1024 bursts after the watch, at 2068: again a reply. So the leaf samples 2085, the
        // first burst after this loop.
        for seq in 0..(1024 + 17) / 2 {
            round_trip(&mut rig, seq);
        }
        assert_eq!(histograms(&rig)[0].count, 1);
        round_trip(&mut rig, 0);
        round_trip(&mut rig, 1);
        assert_eq!((histograms(&rig)[0].count, histograms(&rig)[0].sum_ns), (2, 82_000));
        rig.assert_accounted();
    }
}

// promise: control.5
#[test]
fn age_grows_until_the_next_report() {
    let mut rig = rig("horus");
    (1..8).for_each(|member| rig.set_active(member, false));
    for seq in 0..1024 {
        rig.one(CLIENTS, &task(seq), WORKERS);
    }
    // The leaf watches the worker now. The age of its last report is unknown until its first report.
    rig.one(CLIENTS, &task(0), WORKERS);
    assert_eq!(histograms(&rig)[0].count, 0);
    rig.one(WORKERS, &reply(10, 5), CLIENTS);
    // Each task records the time since the report at `reported`.
    let (reported, mut sum_ns) = (rig.now, 0);
    for (count, wait) in (1..).zip([0, 15_000, 2_000_000]) {
        rig.wait(wait);
        rig.one(CLIENTS, &task(1), WORKERS);
        sum_ns += rig.now - reported;
        assert_eq!((histograms(&rig)[0].count, histograms(&rig)[0].sum_ns), (count, sum_ns));
    }
    rig.one(WORKERS, &reply(10, 5), CLIENTS);
    rig.one(CLIENTS, &task(2), WORKERS);
    assert_eq!(histograms(&rig)[0].count, 3, "the watch is over");
    rig.assert_accounted();
}

// promise: control.5
#[test]
fn worker_without_reports_is_not_watched_for_ever() {
    let mut rig = rig("horus");
    rig.set_active(0, false);
    for seq in 0..1024 {
        rig.one(CLIENTS, &task(seq), WORKERS);
    }
    (1..8).for_each(|member| rig.set_active(member, false));
    rig.set_active(0, true);
    rig.wait(10_500_000_000); // a leaf watches a worker without a report for 1 s
    rig.one(CLIENTS, &task(0), WORKERS);
    // The leaf ended the watch, and samples again. It then watches the only active worker.
    for seq in 0..1024 {
        rig.one(CLIENTS, &task(seq), WORKERS);
    }
    rig.one(WORKERS, &reply(10, 5), CLIENTS);
    rig.one(CLIENTS, &task(1), WORKERS);
    assert_eq!(histograms(&rig)[0].count, 1);
}

// promise: control.5
#[test]
fn waiting_tasks_count_as_decisions() {
    // Servers and client have known MAC addresses. A port holds 256 packets, and the queue 2048 tasks.
    let mut rig = rigs_with("jbsq(k=1)", true, true, 256, 1, (2048, Overflow::Drop)).remove(0);
    // The stopwatch always returns 5, so the decision takes 0 ns, in the bucket up to 10 ns.
    rig.leaf = rig.leaf.with_stopwatch(Some(|| 5));
    for seq in 0..1024 {
        rig.through(CLIENTS, &task(seq), WORKERS);
    }
    let decisions = rig.leaf.stages().counters().decision_time();
    assert_eq!((decisions.buckets, decisions.sum_ns), (BTreeMap::from([(10, 1)]), 0));
}
