//! Pools whose policy asks workers for their queues: whom the leaf asks about a task, and how long the task waits for the answers.

use super::presence::word_from;
use super::*;
use crate::policy::Reports;

fn asking(family: Family, policy: &str) -> Rig {
    let mut rig = rig_of(family, policy);
    rig.leaf.stages_mut().set_reports(0, Reports::Messages);
    // The node looks at its start, and with each update, which pools let tasks wait.
    rig.commands.push(Box::new(Update { epoch: 1, ..Update::default() })).unwrap();
    rig.wait(1_000_000);
    rig
}

/// What a leaf sent to workers: probes, and tasks.
fn sent(frames: Vec<Frame>) -> (Vec<Header>, Vec<Header>) {
    let header = |frame: &Frame| family::read(frame).unwrap().1;
    frames.iter().map(header).partition(|header| header.code == Code::QueueProbe)
}

fn answer(probe: &Header, tasks: u16) -> Vec<u8> {
    word_from(SERVERS[usize::from(probe.dst - 10) / 4], probe.answered_with(tasks))
}

impl Rig {
    /// Has a task come, and gives the questions about it.
    fn asked_for(&mut self, seq: u16) -> Vec<Header> {
        let (probes, tasks) = sent(self.through(CLIENTS, &task(seq), WORKERS));
        assert_eq!(tasks, []);
        probes
    }

    /// Has a worker answer; gives the tasks that go then.
    fn answered(&mut self, probe: &Header, queue: u16) -> Vec<Header> {
        sent(self.through(WORKERS, &answer(probe, queue), WORKERS)).1
    }
}

#[test]
fn a_task_waits_for_the_answers_and_goes_to_the_shorter_queue() {
    for family in BOTH {
        for policy in ["jsq(d=2)", "lsq-sample", "hlsq-sample", "ppot-ll"] {
            let mut rig = asking(family, policy);
            let mut by_answer = 0;
            for seq in 0..40 {
                let probes = rig.asked_for(seq);
                assert_eq!(probes.len(), 2, "{policy}");
                assert_eq!((probes[0].pool, probes[0].src, probes[0].qlen), (7, 9, 0));
                assert_eq!(probes[0].seq, seq, "numbered one after the other");
                assert_eq!(rig.answered(&probes[0], 40), [], "{policy}: one is asked still");
                let went = rig.answered(&probes[1], 0);
                assert_eq!((went.len(), went[0].seq), (1, seq), "{policy}");
                by_answer += u16::from(went[0].dst == probes[1].dst);
            }
            // LSQ may know of a third that is as idle as the one that answered so; ppot may draw one twice.
            assert!(
                by_answer >= if policy.starts_with("jsq") { 40 } else { 10 },
                "{policy}: {by_answer}"
            );
            assert_eq!(
                (rig.count(Counter::QueueProbes), rig.count(Counter::ProbeAnswers)),
                (80, 80)
            );
            assert_eq!((rig.count(Counter::Scheduled), rig.drops()), (40, vec![]));
            rig.assert_accounted();
        }
    }
}

#[test]
fn what_was_sent_since_a_worker_was_asked_counts() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=8)");
        // All eight are asked about three tasks before the first answer is there; all had one task but worker 12, which had none.
        let asked: Vec<_> = (0..3).map(|seq| rig.asked_for(seq)).collect();
        let mut went = Vec::new();
        for probes in &asked {
            for probe in probes {
                went.extend(rig.answered(probe, u16::from(probe.dst != 12)));
            }
        }
        assert_eq!(went.iter().map(|task| task.seq).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(went[0].dst, 12);
        // As it was when it was asked, and one more: as long as the others', of which one was sent nothing.
        let to_12 = went.iter().filter(|task| task.dst == 12).count();
        assert!(to_12 <= 2, "{went:?}");
        // Asked after those were sent, it answers with them.
        let probes = rig.asked_for(3);
        let mut went = Vec::new();
        for probe in &probes {
            went.extend(rig.answered(probe, if probe.dst == 12 { to_12 as u16 } else { 9 }));
        }
        assert_eq!((went.len(), went[0].dst), (1, 12));
        rig.assert_accounted();
    }
}

#[test]
fn a_task_goes_without_answers_that_do_not_come() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=2)");
        let [first, second] = [1, 2].map(|seq| rig.asked_for(seq));
        assert_eq!(rig.answered(&first[0], 5), []);
        assert_eq!(rig.answered(&second[0], 0), []);
        assert_eq!(rig.answered(&second[1], 0), [], "the one before it waits");
        rig.wait(1_000_000);
        assert_eq!(sent(rig.receive(WORKERS)).1, []);
        for _ in 0..3 {
            rig.wait(500_000);
        }
        let (_, went) = sent(rig.receive(WORKERS));
        assert_eq!(went.iter().map(|task| task.seq).collect::<Vec<_>>(), [1, 2]);
        // Too late, twice, and never asked for.
        for probe in [&first[1], &second[1], &Header::queue_probe(7, 9, 12, 999)] {
            assert_eq!(rig.answered(probe, 0), []);
        }
        rig.wait(500_000);
        assert_eq!(
            (rig.count(Counter::ProbesUnanswered), rig.count(Counter::ProbeAnswersLate)),
            (1, 3)
        );
        assert_eq!((rig.count(Counter::Scheduled), rig.drops()), (2, vec![]));
        rig.assert_accounted();
    }
}

#[test]
fn tasks_of_several_packets_ask_once_and_are_followed() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=2)");
        let several = |code, more| {
            let header = Header { code, more, ..Header::new_task(7, 9) };
            task_of(header)
        };
        let (probes, tasks) = sent(rig.through(CLIENTS, &several(Code::NewTask, true), WORKERS));
        assert_eq!((probes.len(), tasks.len()), (2, 0));
        // Behind it in the queue: it asks as well, though it will follow.
        let (more, tasks) =
            sent(rig.through(CLIENTS, &several(Code::TaskContinuation, false), WORKERS));
        assert_eq!(tasks, []);
        assert_eq!(rig.answered(&probes[0], 4), []);
        let mut went = rig.answered(&probes[1], 0);
        for probe in &more {
            went.extend(rig.answered(probe, 0));
        }
        assert_eq!(went.iter().map(|task| task.dst).collect::<Vec<_>>(), [probes[1].dst; 2]);
        rig.assert_accounted();
    }
}

#[test]
fn without_workers_tasks_wait_and_go_when_one_is_there() {
    for family in BOTH {
        let mut rig = asking(family, "lsq-sample");
        (0..8).for_each(|member| rig.set_active(member, false));
        assert_eq!(rig.asked_for(1), []);
        rig.wait(5_000_000);
        assert_eq!((sent(rig.receive(WORKERS)).1, rig.drops()), (vec![], vec![]));
        rig.set_active(4, true);
        rig.wait(5_000_000);
        let (_, went) = sent(rig.receive(WORKERS));
        assert_eq!(went.iter().map(|task| (task.seq, task.dst)).collect::<Vec<_>>(), [(1, 14)]);
        rig.assert_accounted();
    }
}

#[test]
fn no_more_tasks_ask_than_may_wait() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=2)");
        let asked: Vec<_> = (0..70).map(|seq| rig.asked_for(seq)).collect();
        assert_eq!(asked.iter().filter(|probes| !probes.is_empty()).count(), 64);
        assert_eq!(rig.drops(), [("queue_full", 6)]);
        for _ in 0..20 {
            rig.wait(500_000);
        }
        assert_eq!(rig.count(Counter::Scheduled), 64);
        rig.assert_accounted();
    }
}

#[test]
fn answers_of_others_or_where_nobody_asks_are_refused() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=2)");
        let probes = rig.asked_for(1);
        let probe = &probes[0];
        let other = SERVERS[1 - usize::from(probe.dst - 10) / 4];
        for (frame, reason) in [
            (word_from(other, probe.answered_with(0)), "spoofed_reply"),
            (word_from(other, Header { src: 4000, ..probe.answered_with(0) }), "unknown_worker"),
            (word_from(SERVERS[0], Header::queue_probe(7, 9, 10, 0)), "task_role"),
        ] {
            drop(rig.through(WORKERS, &frame, WORKERS));
            assert!(rig.drops().contains(&(reason, 1)), "{reason}: {:?}", rig.drops());
        }
        assert_eq!(rig.count(Counter::ProbeAnswers), 0);
        let mut told = rig_of(family, "lsq-update");
        told.leaf.stages_mut().set_reports(0, Reports::Messages);
        drop(told.through(WORKERS, &answer(probe, 0), WORKERS));
        assert_eq!(told.drops(), [("queue_report_off", 1)]);
        rig.assert_accounted();
    }
}
