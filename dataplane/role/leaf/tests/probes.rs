//! Pools whose policy probes workers: the probed workers, and the time that a task waits for answers.

use super::presence::word_from;
use super::*;
use crate::policy::Reports;

fn asking(family: Family, policy: &str) -> Rig {
    let mut rig = rig_of(family, policy);
    rig.leaf.stages_mut().set_reports(0, Reports::Messages);
    // The node determines at its start, and with each update, which pools queue tasks.
    rig.commands.push(Box::new(Update { epoch: 1, ..Update::default() })).unwrap();
    rig.wait(1_000_000);
    rig
}

/// Separates the frames to workers: probes and tasks.
fn sent(frames: Vec<Frame>) -> (Vec<Header>, Vec<Header>) {
    let header = |frame: &Frame| family::read(frame).unwrap().1;
    frames.iter().map(header).partition(|header| header.code == Code::QueueProbe)
}

fn answer(probe: &Header, tasks: u16) -> Vec<u8> {
    word_from(SERVERS[usize::from(probe.dst - 10) / 4], probe.answered_with(tasks))
}

impl Rig {
    /// Delivers a task, and returns its probes.
    fn asked_for(&mut self, seq: u16) -> Vec<Header> {
        let (probes, tasks) = sent(self.through(CLIENTS, &task(seq), WORKERS));
        assert_eq!(tasks, []);
        probes
    }

    /// Delivers a worker's answer, and returns the tasks sent then.
    fn answered(&mut self, probe: &Header, queue: u16) -> Vec<Header> {
        sent(self.through(WORKERS, &answer(probe, queue), WORKERS)).1
    }
}

// promise: scheduling.6
#[test]
fn task_waits_for_answers_and_takes_shortest_queue() {
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
            // LSQ may know of a third worker that is equally idle; ppot may draw one twice.
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

// promise: scheduling.6
#[test]
fn tasks_sent_after_the_probe_count() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=8)");
        // All eight are probed for three tasks before the first answer. All have one task except worker 12,
        // which has none.
        let probes_of_tasks: Vec<_> = (0..3).map(|seq| rig.asked_for(seq)).collect();
        let mut went = Vec::new();
        for probes in &probes_of_tasks {
            for probe in probes {
                went.extend(rig.answered(probe, u16::from(probe.dst != 12)));
            }
        }
        assert_eq!(went.iter().map(|task| task.seq).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(went[0].dst, 12);
        // Its queue at the probe plus one equals the queues of the remaining workers, of which one got no task.
        let to_12 = went.iter().filter(|task| task.dst == 12).count();
        assert!(to_12 <= 2, "{went:?}");
        // Probed after those were sent, it includes them in its answer.
        let probes = rig.asked_for(3);
        let mut went = Vec::new();
        for probe in &probes {
            went.extend(rig.answered(probe, if probe.dst == 12 { to_12 as u16 } else { 9 }));
        }
        assert_eq!((went.len(), went[0].dst), (1, 12));
        rig.assert_accounted();
    }
}

// promise: scheduling.6
#[test]
fn task_proceeds_without_missing_answers() {
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
        // Too late, repeated, and never requested.
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

// promise: scheduling.6
#[test]
fn multi_packet_task_probes_once() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=2)");
        let several = |code, more| {
            let header = Header { code, more, ..Header::new_task(7, 9) };
            task_of(header)
        };
        let (probes, tasks) = sent(rig.through(CLIENTS, &several(Code::NewTask, true), WORKERS));
        assert_eq!((probes.len(), tasks.len()), (2, 0));
        // Next in the queue: it probes as well, although it will follow.
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

// promise: scheduling.6
#[test]
fn tasks_wait_for_workers_to_appear() {
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

// promise: scheduling.6
#[test]
fn no_more_tasks_ask_than_may_wait() {
    for family in BOTH {
        let mut rig = asking(family, "jsq(d=2)");
        let probes_of_tasks: Vec<_> = (0..70).map(|seq| rig.asked_for(seq)).collect();
        assert_eq!(probes_of_tasks.iter().filter(|probes| !probes.is_empty()).count(), 64);
        assert_eq!(rig.drops(), [("queue_full", 6)]);
        for _ in 0..20 {
            rig.wait(500_000);
        }
        assert_eq!(rig.count(Counter::Scheduled), 64);
        rig.assert_accounted();
    }
}

// promise: scheduling.6
#[test]
fn unsolicited_probe_answers_are_refused() {
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
        let mut rig = rig_of(family, "lsq-update");
        rig.leaf.stages_mut().set_reports(0, Reports::Messages);
        drop(rig.through(WORKERS, &answer(probe, 0), WORKERS));
        assert_eq!(rig.drops(), [("queue_report_off", 1)]);
        rig.assert_accounted();
    }
}
