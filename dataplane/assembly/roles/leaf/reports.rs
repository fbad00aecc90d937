//! Tests of pools whose workers report their queues in messages: the leaf's estimates, and the reports that it
//! accepts.
//!
//! A `Rig` is one core of a leaf in memory; the test plays the client and the servers at the far ends (`far`) of its
//! ports `CLIENTS` and `WORKERS`. Pool 7 has workers 10 to 17, which are its members 0 to 7. Workers 10 to 13 are on
//! the first server, 14 to 17 on the second. `through` sends a packet to a port, polls the leaf 1 us later and returns
//! all frames of another port. `one` expects one frame, and returns its datagram, header and bytes. `wait` polls after
//! some nanoseconds. `task(seq)` is a client's task with this sequence number, `reply(worker, tasks)` a worker's reply
//! with its number of remaining tasks. `join(worker, tasks)` and `alive(worker, tasks)` are its registration and
//! keep-alive. `assert_accounted` ends the leaf. Then it checks that each received packet was sent on, consumed or
//! dropped, and that every buffer is back.
//! Tests over both families use IPv4 addresses and frames, which the rig translates for IPv6.

use wedjat_core::policy::Reports;
use wedjat_core::state::MemberPresence;

use super::presence::{alive, join, message_from};
use super::*;

/// Builds a leaf whose workers report their queues in messages, and do not register.
fn rig_with_reports(family: Family, policy: &str) -> Rig {
    rig_with_reports_and_registration(family, policy, false)
}

/// Same as [`rig_with_reports`], with workers that register or do not.
fn rig_with_reports_and_registration(family: Family, policy: &str, registers: bool) -> Rig {
    let mut rig = rig_with_registration(family, policy, registers);
    rig.leaf.stages_mut().set_reports(0, Reports::Messages);
    rig
}

/// Returns the queue report number `report_seq` of a worker with `tasks` tasks.
fn report(worker: u16, tasks: u16, report_seq: u16) -> Vec<u8> {
    let server = SERVERS[usize::from(worker - 10) / 4];
    message_from(server, Header::queue_report(7, worker, tasks, report_seq))
}

impl Rig {
    /// Delivers a worker's message, and checks that the leaf does not answer it.
    fn send_unanswered(&mut self, frame: &[u8]) {
        assert!(self.through(WORKERS, frame, WORKERS).is_empty(), "the leaf does not answer");
    }

    /// Returns the leaf's estimate of a worker's tasks. The parameter is the worker's id; [`Rig::outstanding`] takes
    /// its index in the pool.
    fn estimated(&self, worker: u16) -> u64 {
        // The view has 16.16 fixed point numbers.
        self.leaf.stages().dispatcher(0).unwrap().view().estimated_load(Member(worker - 10)) >> 16
    }

    /// Sends a task with this sequence number. Returns the worker to which the leaf sends it.
    fn pick(&mut self, seq: u16) -> u16 {
        self.one(CLIENTS, &task(seq), WORKERS).1.dst
    }
}

// promise: scheduling.6
#[test]
fn replies_tell_nothing_and_reports_do() {
    for family in BOTH {
        let mut rig = rig_with_reports(family, "lsq-update");
        let worker = rig.pick(1);
        assert_eq!((rig.estimated(worker), rig.outstanding(worker - 10)), (1, 1));
        // The reply ends the task, and leaves the estimate. The leaf ignores its load of 5 tasks.
        assert_eq!(rig.through(WORKERS, &reply(worker, 5), CLIENTS).len(), 1);
        assert_eq!(
            (rig.estimated(worker), rig.outstanding(worker - 10)),
            (1, 0),
            "the reply ended the task"
        );
        // All workers except this one have lower estimates until their reports of 3 tasks arrive. Then this one has the
        // lowest, 1, and gets the next task. Its own report of no task makes it the choice for two more.
        for other in (10..18).filter(|&other| other != worker) {
            rig.send_unanswered(&report(other, 3, 1));
            assert_eq!(rig.estimated(other), 3);
        }
        assert_eq!((rig.pick(2), rig.estimated(worker)), (worker, 2));
        rig.send_unanswered(&report(worker, 0, 1));
        assert_eq!((rig.pick(3), rig.pick(4), rig.estimated(worker)), (worker, worker, 2));
        assert_eq!((rig.count(Counter::QueueReports), rig.count(Counter::QueueReportsOld)), (8, 0));
        assert_eq!(rig.drops(), []);
        rig.assert_accounted();
    }
}

// promise: scheduling.6
#[test]
fn old_report_is_ignored_unless_silence_was_long() {
    for family in BOTH {
        let mut rig = rig_with_reports(family, "lsq-update");
        rig.send_unanswered(&report(14, 4, 9));
        rig.send_unanswered(&report(14, 7, 8));
        assert_eq!((rig.estimated(14), rig.count(Counter::QueueReportsOld)), (4, 1));
        rig.send_unanswered(&report(14, 5, 10));
        assert_eq!(rig.estimated(14), 5);
        // After 30 ms without a report (`SILENT_NS`) the leaf accepts any number: the server may have restarted.
        for _ in 0..50 {
            rig.wait(1_000_000);
        }
        rig.send_unanswered(&report(14, 2, 1)); // from a restarted server
        // `QueueReports` counts accepted reports only.
        assert_eq!((rig.estimated(14), rig.count(Counter::QueueReports)), (2, 3));
        rig.assert_accounted();
    }
}

// promise: scheduling.6
#[test]
fn registration_sets_presence_but_no_load() {
    for family in BOTH {
        let mut rig = rig_with_reports_and_registration(family, "hlsq-smart", true);
        // The view counts registrations and keep-alives among the reports, as signs of life without a load.
        let signs_of_life =
            |rig: &Rig| rig.leaf.stages().dispatcher(0).unwrap().view().reports(Member(4));
        assert_eq!(rig.through(WORKERS, &join(14, 6), WORKERS).len(), 1);
        rig.send_unanswered(&alive(14, 6));
        assert_eq!((rig.estimated(14), signs_of_life(&rig)), (0, 2));
        let view = rig.leaf.stages().dispatcher(0).unwrap().view();
        assert_eq!(view.presence(Member(4)), MemberPresence::Registered);
        rig.send_unanswered(&report(14, 6, 1));
        rig.send_unanswered(&alive(14, 0));
        assert_eq!(rig.estimated(14), 6);
        // Reports keep the worker alive as other messages do. The worker timeout is 100 ms.
        for report_seq in 2..20 {
            rig.wait(20_000_000);
            rig.send_unanswered(&report(14, 6, report_seq));
        }
        assert_eq!(rig.count(Counter::WorkersLost), 0);
        for _ in 0..20 {
            rig.wait(20_000_000);
        }
        assert_eq!(rig.count(Counter::WorkersLost), 1);
        rig.assert_accounted();
    }
}

// promise: scheduling.6
#[test]
fn only_reports_make_workers_idle() {
    for family in BOTH {
        for policy in ["jiq", "jbt(r=2)", "pi", "jiq-weighted"] {
            let mut rig = rig_with_reports(family, policy);
            let idle = |rig: &Rig| rig.leaf.stages().dispatcher(0).unwrap().view().idle().len();
            for _ in 0..10 {
                rig.wait(50_000_000);
            }
            assert_eq!(idle(&rig), 0, "{policy}");
            // Largest queue with which a worker is on the idle list: one task under `jbt(r=2)`, otherwise none.
            let queue = u16::from(policy == "jbt(r=2)");
            rig.send_unanswered(&report(15, queue, 1));
            rig.send_unanswered(&report(12, queue, 1));
            rig.send_unanswered(&report(11, queue + 1, 1));
            assert_eq!(idle(&rig), 2, "{policy}");
            assert_eq!((rig.pick(1), rig.pick(2)), (15, 12), "{policy}: first come, first served");
            // Neither a reply of an idle worker nor its activation puts it on the idle list again.
            assert_eq!(rig.through(WORKERS, &reply(15, 0), CLIENTS).len(), 1);
            rig.set_active(5, false);
            rig.set_active(5, true);
            assert_eq!(idle(&rig), 0, "{policy}");
            rig.assert_accounted();
        }
    }
}

// promise: scheduling.6
#[test]
fn unwanted_reports_are_refused() {
    for family in BOTH {
        // Here workers report in replies, so the leaf drops queue reports.
        let mut rig = rig_of(family, "lsq-update");
        drop(rig.through(WORKERS, &report(14, 3, 1), WORKERS));
        assert_eq!((rig.drops(), rig.estimated(14)), (vec![("queue_report_off", 1)], 0));
        let mut rig = rig_with_reports(family, "lsq-update");
        let report_of = |server: usize, pool, worker| {
            message_from(SERVERS[server], Header::queue_report(pool, worker, 3, 1))
        };
        for (frame, reason) in [
            (report_of(0, 7, 14), "spoofed_reply"),
            (report_of(0, 7, 18), "unknown_worker"),
            (report_of(1, 8, 14), "pool_mismatch"),
        ] {
            let before = rig.drops().len();
            drop(rig.through(WORKERS, &frame, WORKERS));
            assert!(
                rig.drops().contains(&(reason, 1)) && rig.drops().len() == before + 1,
                "{reason}"
            );
        }
        let mut frame = report_of(1, 7, 14);
        ether::emit_addresses(&mut frame, LEAF_MACS[CLIENTS], CLIENT_MAC);
        drop(rig.through(CLIENTS, &frame, WORKERS));
        assert!(rig.drops().contains(&("wrong_side", 1)), "{:?}", rig.drops());
        assert_eq!(rig.estimated(14), 0);
        rig.assert_accounted();
    }
}
