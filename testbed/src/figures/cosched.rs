//! Evaluation of ASA_X, a co-scheduler of batch jobs, in a simulated cluster: makespan of the job queue and runtime of
//! each job. The figures compare the ways of sharing nodes in the paper and those of this project. Each way is an arm
//! of the experiment.

use std::fmt::Write as _;

use wedjat_cosched::Setup;
use wedjat_cosched::cluster::{
    Arm, ClusterReport, Contention, Experiment, MeanDeviation, Workflow,
};

use super::{Output, command_of_figure, draw};

/// Sizes of the cluster in cores.
const SIZES: [u32; 3] = [64, 128, 256];
/// Arms of the paper, which the figure of runtimes compares. The figure of makespans also has the arms of this project.
const PAPER: [Arm; 3] = [Arm::Slurm, Arm::Static, Arm::AsaxPaper];

/// Makes the figure of makespans, with all columns of the paper's table 3.
pub(super) fn makespans(out: &Output, full: bool) -> Result<(), String> {
    let name = "asax-3a";
    let mut table =
        "series,cores,waiting_h,response_h,makespan_h,makespan_sd,core_use,overhead\n".to_owned();
    let mut lines = Vec::new();
    for arm in Arm::ALL {
        let mut points = Vec::new();
        for cores in SIZES {
            let row = report(cores, arm, full)?;
            let (waiting, response) = (row.waiting_h.mean, row.response_h.mean);
            let MeanDeviation { mean, deviation } = row.makespan_h;
            let (used, overhead) = (row.core_use.mean, row.overhead.mean);
            let arm = arm.name();
            let _ = writeln!(
                table,
                "{arm},{cores},{waiting:.4},{response:.4},{mean:.4},{deviation:.4},{used:.4},{overhead:.4}"
            );
            points.push((f64::from(cores), mean));
        }
        lines.push((arm.name().to_owned(), points));
    }
    let axes = ("cores", "makespan of 45 jobs, hours");
    let plot = draw("Makespan of the queue by kind of sharing", axes, &lines)?;
    finish(out, name, full, &plot, &table)
}

/// Makes the figure of runtimes, with all columns of the paper's table 2.
pub(super) fn runtimes(out: &Output, full: bool) -> Result<(), String> {
    let name = "asax-3b";
    let mut table = "series,cores,runtime_h,runtime_sd,cpu,memory\n".to_owned();
    let mut lines: Vec<(String, Vec<_>)> = Vec::new();
    for arm in PAPER {
        let rows = SIZES.map(|cores| report(cores, arm, full));
        for workflow in Workflow::ALL {
            let series = format!("{}, {}", workflow.name(), arm.name());
            let mut points = Vec::new();
            for row in &rows {
                let row = row.as_ref().map_err(String::clone)?;
                let results = row.runs.iter().flat_map(|run| &run.workflows);
                let results: Vec<_> = results.filter(|row| row.workflow == workflow).collect();
                // Mean of a value over the runs. `value` returns it for the run with this index.
                let mean = |value: &dyn Fn(usize) -> f64| {
                    MeanDeviation::of(&(0..results.len()).map(value).collect::<Vec<_>>()).mean
                };
                let runtime = mean(&|run| results[run].runtime_h.mean);
                let deviation = mean(&|run| results[run].runtime_h.deviation);
                let (cpu, memory) =
                    (mean(&|run| results[run].cpu), mean(&|run| results[run].memory));
                let cores = row.cores;
                let _ = writeln!(
                    table,
                    "\"{series}\",{cores},{runtime:.4},{deviation:.4},{cpu:.4},{memory:.4}"
                );
                points.push((f64::from(cores), runtime));
            }
            lines.push((series, points));
        }
    }
    let axes = ("cores", "runtime of a job, hours");
    let plot = draw("Runtime of workflows by kind of sharing", axes, &lines)?;
    finish(out, name, full, &plot, &table)
}

/// Runs the experiment for 10 orders of the jobs (100 with `full`) and returns the means.
fn report(cores: u32, arm: Arm, full: bool) -> Result<ClusterReport, String> {
    let experts = Setup::built_in().trees();
    let run = |seed| {
        // A job that refused to share is asked again after 60 s, the default of `cosched-sim`.
        let (contention, experts) = (Contention::default(), experts.clone());
        let run = Experiment { cores, arm, experts, contention, refusal: 60.0, seed };
        // The learners of the experiment write no logs.
        run.run(&mut |_| None).map_err(|error| error.to_string())
    };
    let runs = (1..=if full { 100 } else { 10 }).map(run).collect::<Result<_, _>>()?;
    ClusterReport::of(runs).ok_or_else(|| "no run".to_owned())
}

/// Writes a figure, its table, and two commands: the first makes these files again, the second prints the results of
/// all arms.
fn finish(out: &Output, name: &str, full: bool, plot: &str, table: &str) -> Result<(), String> {
    let seeds = if full { 100 } else { 10 };
    let command = format!(
        "{}wedjat-testbed cosched-sim --cores 64,128,256 --seeds {seeds}\n",
        command_of_figure(name, full)
    );
    out.write(name, "svg", plot)?;
    out.write(name, "csv", table)?;
    out.write(name, "txt", &command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_have_every_series_at_every_size() {
        let folder = tempfile::tempdir().unwrap();
        makespans(&Output::new(folder.path().into()), false).unwrap();
        runtimes(&Output::new(folder.path().into()), false).unwrap();
        // The second figure has a series for each of three arms and four workflows.
        for (name, series) in [("asax-3a", Arm::ALL.len()), ("asax-3b", 12)] {
            let read = |ending: &str| {
                std::fs::read_to_string(folder.path().join(format!("{name}.{ending}"))).unwrap()
            };
            assert_eq!(read("csv").lines().count(), 1 + series * SIZES.len());
            assert!(read("svg").contains("</svg>") && read("txt").contains(name));
        }
    }
}
