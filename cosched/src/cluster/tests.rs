//! Reproduction of the results of the ASA_X paper (arXiv 2401.09706): the order of the arms by waiting time,
//! and by response time. No setting reproduces both orders: costly sharing gives that of response times, free
//! sharing that of waiting times.
//!
//! An arm is a scheme by which jobs share cores. Under Slurm they share none. Under all others a job, the guest, may
//! start on cores of a running job, its host. Under ASA_X the host's learner may refuse the guest, which then waits.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;

use super::*;
use crate::{Overrides, Setup, replay};

/// Cores of the clusters in the paper.
const SIZES: [u32; 3] = [64, 128, 256];

/// Returns the parameters of a run with the default slow-down, in which sharing is costly. The experts are the trees,
/// as in the paper.
fn experiment(cores: u32, arm: Arm, seed: u64) -> Experiment {
    let contention = Contention::default();
    Experiment { cores, arm, experts: Setup::built_in().trees(), contention, refusal: 60.0, seed }
}

/// Runs an arm with ten seeds and returns the means. `refusal` is the time in seconds for which a host gets no request
/// after its learner refused a waiting job.
fn report(cores: u32, arm: Arm, contention: Contention, refusal: f64) -> ClusterReport {
    let run = |seed| {
        let experiment = Experiment { contention, refusal, ..experiment(cores, arm, seed) };
        experiment.run(&mut |_| None).unwrap()
    };
    ClusterReport::of((0..10).map(run).collect()).unwrap()
}

// promise: measurement.4
#[test]
fn all_jobs_end_under_every_arm() {
    // One run per size and arm: all 45 jobs end, and the used core time is at least their own.
    for cores in SIZES {
        for arm in Arm::ALL {
            let run = experiment(cores, arm, 1).run(&mut |_| None).unwrap();
            assert_eq!(run.jobs, 45);
            assert!(run.core_use > 0.3 && run.core_use <= 1.0 + 1e-9, "{arm:?}: {}", run.core_use);
            assert!(run.waiting_h < run.response_h && run.response_h < run.makespan_h);
            // Used core time equals the jobs' own work under Slurm, which shares no cores.
            let alone: f64 = jobs::submitted(1)
                .iter()
                .map(|job| {
                    // A stage without `cpu` uses one core.
                    let used = |stage: &jobs::Stage| {
                        stage.part * stage.cpu.map_or(1.0, |cpu| cpu * f64::from(job.cores))
                    };
                    job.alone * job.workflow.stages().iter().map(used).sum::<f64>()
                })
                .sum();
            let used = run.core_use * f64::from(cores) * run.makespan_h * 3600.0;
            assert!(used >= alone * (1.0 - 1e-6), "{arm:?}: {used} of {alone}");
            if arm == Arm::Slurm {
                assert!(run.overhead.abs() < 1e-9 && (used / alone - 1.0).abs() < 1e-6);
            } else {
                assert!(run.overhead > 0.01);
            }
        }
    }
}

// promise: measurement.4
#[test]
fn costly_sharing_orders_arms_as_the_paper() {
    for cores in SIZES {
        let [slurm, fixed, asax] = [Arm::Slurm, Arm::Static, Arm::AsaxPaper]
            .map(|arm| report(cores, arm, Contention::default(), 60.0));
        let order = [&asax, &slurm, &fixed].map(|report| report.response_h.mean);
        assert!(order.is_sorted(), "{cores} cores, response of ASA_X, Slurm, Static: {order:?}");
        for shared in [&fixed, &asax] {
            assert!(
                shared.waiting_h.mean < slurm.waiting_h.mean,
                "{cores} cores: {:?}",
                shared.arm
            );
            assert!(shared.core_use.mean > slurm.core_use.mean, "{cores} cores: {:?}", shared.arm);
        }
        // In the paper's table 2 the slow-down of ASA_X is about half of Static's.
        let ratio = asax.overhead.mean / fixed.overhead.mean;
        assert!(
            (0.3..0.65).contains(&ratio),
            "{cores} cores: slow-down of ASA_X is {ratio} of Static's"
        );
        assert!(
            asax.makespan_h.mean < slurm.makespan_h.mean
                && slurm.makespan_h.mean < fixed.makespan_h.mean
        );
    }
}

// promise: measurement.4
#[test]
fn free_sharing_orders_waiting_but_not_response() {
    for cores in SIZES {
        // In the paper jobs wait longer under ASA_X than under Static. That needs lasting refusals: a host that refused
        // a waiting job gets no further request, because a million seconds exceed the run.
        let [slurm, fixed, asax] = [Arm::Slurm, Arm::Static, Arm::AsaxPaper]
            .map(|arm| report(cores, arm, Contention::NONE, 1e6));
        let [fixed_h, asax_h, slurm_h] =
            [&fixed, &asax, &slurm].map(|report| report.waiting_h.mean);
        // Static may exceed ASA_X by 2%: on 64 cores both are equal within the paper's own ±5%.
        assert!(
            fixed_h < 1.02 * asax_h && asax_h < slurm_h,
            "{cores} cores: {fixed_h}, {asax_h}, {slurm_h}"
        );
        let order = [&asax, &fixed, &slurm].map(|report| report.response_h.mean);
        assert!(order.is_sorted(), "{cores} cores, response of ASA_X, Static, Slurm: {order:?}");
    }
}

/// A log in memory. Its clones share the bytes, so that the test can read them after the run.
#[derive(Clone, Default)]
struct SharedLog(Rc<RefCell<Vec<u8>>>);

impl Write for SharedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// promise: measurement.4
#[test]
fn learner_logs_replay_exactly() {
    for arm in [Arm::AsaxPaper, Arm::AsaxPrinted, Arm::AsaxIw, Arm::AsaxBalanced] {
        // One log for each of the four workflows, whose hosts have a learner of their own.
        let logs = [(); 4].map(|()| SharedLog::default());
        let run = experiment(128, arm, 2)
            .run(&mut |workflow| Some(Box::new(logs[workflow.index()].clone())))
            .unwrap();
        assert_eq!(run.learners.len(), logs.len());
        for (log, learner) in logs.iter().zip(&run.learners) {
            let again = replay(log.0.borrow().as_slice(), &Overrides::default()).unwrap();
            assert!(again.agrees() && again.decisions == learner.decisions, "{arm:?}");
            assert!(again.decisions > 20, "{arm:?} of {:?}: {}", learner.workflow, again.decisions);
            assert_eq!(
                again.rounds.len() as u64,
                learner.last.as_ref().map_or(0, |round| round.round)
            );
            assert!(again.rounds.len() > 1, "{arm:?} of {:?}", learner.workflow);
            // The paper bounds the excess risk: the mixture's risk minus the best expert's. The bound holds only for
            // the paper's own updates, not for the two variants.
            assert!(
                arm == Arm::AsaxIw || arm == Arm::AsaxBalanced || again.rounds_above_bound == 0
            );
        }
    }
}

#[test]
fn error_names_the_impossible_setting() {
    let fails = |experiment: &Experiment| experiment.run(&mut |_| None).unwrap_err().to_string();
    let right = experiment(64, Arm::AsaxPaper, 1);
    assert!(fails(&Experiment { cores: 32, ..right.clone() }).contains("32 cores are too few"));
    assert!(fails(&Experiment { experts: Vec::new(), ..right.clone() }).contains("experts"));
    assert!(fails(&Experiment { refusal: 0.0, ..right.clone() }).contains("refusal is 0"));
    let contention = Contention { barriers: f64::NAN, ..right.contention };
    assert!(fails(&Experiment { contention, ..right }).contains("barriers is NaN"));
    assert!("mesos".parse::<Arm>().unwrap_err().contains("asax-paper"));
}
