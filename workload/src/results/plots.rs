//! Plots of runs: figures over load, distributions of response times, and time series. A series of a plot over load
//! has one policy and setting. Runs of several seeds are one point.

use super::chart::{self, Axis, Chart, ChartError, Corner, Line, Point};
use super::run::{Estimate, Interval, Run};

/// Maximum number of lines in a plot of distributions: the number of colours.
const LINES_MAX: usize = 7;
/// Steps of a distribution, along its vertical axis.
const STEPS: u32 = 200;
/// Size of two charts in a row, in pixels.
const WIDE: (u32, u32) = (1100, 460);
/// Size of three charts in a column, in pixels.
const TALL: (u32, u32) = (900, 840);

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Name of its file without the ending.
    pub name: String,
    /// Title.
    pub title: String,
    /// The plot as SVG.
    pub svg: String,
}

/// Draws all plots of these runs: over load, distributions, and one over time for each run.
///
/// # Errors
/// If a plot cannot be drawn.
pub fn all(runs: &[Run]) -> Result<Vec<Plot>, ChartError> {
    let mut plots = over_load(runs)?;
    plots.extend(distributions(runs)?);
    for (index, run) in runs.iter().enumerate() {
        let label = run.subject.label();
        let title = match run.seeds() {
            1 => format!("{label}: over time"),
            _ => format!("{label}: over time, first seed"),
        };
        let name = format!("time-{:02}-{}", index + 1, file_name(&label));
        plots.push(Plot { name, title, svg: over_time(run)? });
    }
    Ok(plots)
}

/// Returns a label as a file name of letters, digits, dots and dashes. Leaves out per cent signs. A dash replaces each
/// sequence of further characters, except at both ends.
fn file_name(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let name: String = label.replace('%', "").chars().map(plain).collect();
    name.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Returns the distinct values of `value_of` over the runs, in the order of their first runs.
fn distinct<T: PartialEq>(runs: &[Run], value_of: impl Fn(&Run) -> T) -> Vec<T> {
    let mut values = Vec::new();
    for value in runs.iter().map(value_of) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Draws mean and 99th percentile over load, with confidence intervals. Uses the load in per cent of the
/// capacity if all runs have it, else tasks per second. Without a common load there is no plot.
fn over_load(runs: &[Run]) -> Result<Vec<Plot>, ChartError> {
    let percent: fn(&Run) -> Option<f64> = |run| run.subject.load.map(|load| load * 100.0);
    let pps: fn(&Run) -> Option<f64> = |run| run.subject.offered_pps;
    let axes = [
        (percent, "offered load, % of the workers' capacity"),
        (pps, "offered load, tasks per second"),
    ];
    let mut axes = axes.into_iter();
    let Some((x, label)) = axes.find(|(x, _)| runs.iter().all(|run| x(run).is_some())) else {
        return Ok(Vec::new());
    };
    let mut plots = Vec::new();
    for (name, title, unit, figure) in [
        (
            "p99",
            "99th percentile",
            "p99 of the response time, us",
            Run::p99 as fn(&Run) -> Estimate,
        ),
        ("mean", "mean", "mean response time, us", Run::mean),
    ] {
        let mut lines = Vec::new();
        for (colour, series) in distinct(runs, |run| run.subject.series()).into_iter().enumerate() {
            let of_series = runs.iter().filter(|run| run.subject.series() == series);
            let point = |run: &Run| {
                let Estimate { value, half } = figure(run);
                Some(Point { at: (x(run)?, value), half, valid: run.valid })
            };
            let mut points: Vec<_> = of_series.filter_map(point).collect();
            points.sort_by(|a, b| a.at.0.total_cmp(&b.at.0));
            lines.push(Line::new(series, colour, points).with_circles());
        }
        let chart = Chart::new(Axis::linear(label), Axis::log(unit), lines);
        let title = format!("Response time over load: {title}, with 95% confidence intervals");
        match chart.svg(chart::SIZE) {
            Ok(svg) => plots.push(Plot { name: format!("{name}-over-load"), title, svg }),
            // No run has a finite value, because too few of its tasks were answered. The table of figures shows the
            // runs.
            Err(_) if runs.iter().all(|run| !figure(run).value.is_finite()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(plots)
}

/// Draws the distributions of the response times. A plot has up to [`LINES_MAX`] runs of one load.
fn distributions(runs: &[Run]) -> Result<Vec<Plot>, ChartError> {
    let mut plots = Vec::new();
    for load in distinct(runs, |run| run.subject.load_text()) {
        let of_load = runs.iter().filter(|run| run.subject.load_text() == load);
        // Leaves out runs without any answer.
        let of_load = of_load.filter(|run| run.responses().quantile(0.0).is_finite());
        let of_load: Vec<&Run> = of_load.collect();
        for (part, runs) in of_load.chunks(LINES_MAX).enumerate() {
            let name = ["responses", &file_name(&load), &part.to_string()];
            let name = &name[..if part == 0 { 2 } else { 3 }];
            let name: Vec<_> = name.iter().copied().filter(|part| !part.is_empty()).collect();
            let suffix = if load.is_empty() { String::new() } else { format!(" at {load}") };
            plots.push(Plot {
                name: name.join("-"),
                title: format!("Distribution of the response times{suffix}"),
                svg: distribution(runs)?,
            });
        }
    }
    Ok(plots)
}

/// Draws the cumulative distribution and, beside it, its complement on logarithmic axes, which shows the tail.
fn distribution(runs: &[&Run]) -> Result<String, ChartError> {
    let lines = |points: fn(&Run) -> Vec<Point>| {
        let runs = runs.iter().enumerate();
        runs.map(|(index, run)| Line::new(run.subject.series(), index, points(run))).collect()
    };
    let (within, beyond) = ("share of tasks within", "share of tasks beyond");
    let cdf = Chart {
        legend: Corner::LowerRight,
        ..Chart::new(
            Axis::log("response time, us"),
            Axis::linear(within).over(0.0..1.02),
            lines(cumulative),
        )
    };
    let ccdf = Chart {
        legend: Corner::LowerLeft,
        ..Chart::new(Axis::log("response time, us"), Axis::log(beyond), lines(complementary))
    };
    chart::svg(&[cdf, ccdf], WIDE, 2)
}

/// Returns response times with the share of tasks within each.
fn cumulative(run: &Run) -> Vec<Point> {
    let step = |step: u32| f64::from(step) / f64::from(STEPS);
    let point = |share: f64| Point::new(run.responses().quantile(share), share);
    (0..=STEPS).map(|number| point(step(number))).collect()
}

/// Returns response times with the share of tasks beyond each, down to one task.
fn complementary(run: &Run) -> Vec<Point> {
    let tasks = run.responses().tasks() as f64;
    // Number of tasks beyond: equal steps on the logarithmic axis, from all tasks to one.
    let beyond = |step: u32| (tasks.powf(1.0 - f64::from(step) / f64::from(STEPS))).round();
    let mut points: Vec<Point> = Vec::new();
    for beyond in (1..=STEPS).map(beyond).filter(|beyond| *beyond < tasks) {
        let us = run.responses().of_rank((tasks - beyond) as u64);
        if points.last().is_none_or(|last| last.at.1 != beyond / tasks) {
            points.push(Point::new(us, beyond / tasks));
        }
    }
    // A run of one task has no task beyond another.
    if points.is_empty() {
        points.push(Point::new(run.responses().quantile(0.5), 1.0));
    }
    points
}

/// Draws rate, 99th percentile and tasks in flight of a run's first seed over time, in a column of charts.
fn over_time(run: &Run) -> Result<String, ChartError> {
    let start = run.measured_from_ms();
    let marks =
        if start > 0.0 { vec![(start, "measured from here".to_owned())] } else { Vec::new() };
    let chart = |label, colour, figure: fn(&Interval) -> f64| {
        let point = |interval: &Interval| Point::new(interval.at_ms, figure(interval));
        let points: Vec<_> = run.series().iter().map(point).collect();
        let max =
            points.iter().map(|point| point.at.1).filter(|y| y.is_finite()).fold(0.0, f64::max);
        let y = Axis::linear(label).over(0.0..max.max(1e-3) * 1.1);
        let line = Line::new("", colour, points);
        Chart { marks: marks.clone(), ..Chart::new(Axis::linear("time, ms"), y, vec![line]) }
    };
    let charts = [
        chart("tasks due, 1/s", 0, |interval| interval.rate_pps),
        chart("p99, us", 1, |interval| interval.p99_us),
        chart("tasks in flight", 2, |interval| interval.in_flight),
    ];
    // A run without answers has no percentile over time.
    let has_points = |chart: &Chart<'_>| {
        chart.lines.iter().flat_map(|line| &line.points).any(|point| point.at.1.is_finite())
    };
    let charts: Vec<_> = charts.into_iter().filter(has_points).collect();
    chart::svg(&charts, TALL, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::run::tests::run;

    #[test]
    fn every_run_has_its_plots() {
        // A run of 2000 tasks. Task n takes n % 97 us, plus 100 us times the load.
        let run_of = |policy: &str, load: f64| {
            Run::new(run("rack", policy, load, 2000, move |n| Some(n % 97 + (load * 100.0) as u64)))
        };
        let runs = [
            run_of("horus", 0.5),
            run_of("jbsq(k=2)", 0.5),
            run_of("horus", 0.9),
            run_of("jbsq(k=2)", 0.9),
        ];
        let plots = all(&runs).unwrap();
        let names: Vec<_> = plots.iter().map(|plot| plot.name.as_str()).collect();
        let expected = [
            "p99-over-load",
            "mean-over-load",
            "responses-50",
            "responses-90",
            "time-01-horus-at-50",
            "time-02-jbsq-k-2-at-50",
            "time-03-horus-at-90",
            "time-04-jbsq-k-2-at-90",
        ];
        assert_eq!(names, expected);
        assert_eq!(plots[0].svg.matches("<circle").count(), 4);
        assert!(plots[2].svg.contains("share of tasks within") && plots[2].svg.contains("horus"));
        assert!(plots[4].svg.contains("measured from here") && plots[4].svg.contains("in flight"));
        for plot in &plots {
            assert!(!plot.svg.contains("NaN") && !plot.svg.contains(">inf"), "{}", plot.name);
        }
    }

    #[test]
    fn runs_without_answers_or_load_lack_plots() {
        let lost = Run::new(run("rack", "horus", 0.5, 300, |_| None));
        let names = |plots: Vec<Plot>| plots.into_iter().map(|plot| plot.name).collect::<Vec<_>>();
        assert_eq!(names(all(&[lost]).unwrap()), ["time-01-horus-at-50"]);
        let mut without = run("pktgen", "", 0.5, 300, |_| Some(5));
        without.description.load = None;
        let plots = names(all(&[Run::new(without)]).unwrap());
        assert_eq!(plots, ["responses", "time-01-pktgen"]);
        let single = Run::new(run("rack", "horus", 0.5, 1, |_| Some(3)));
        // Percentile and mean over load, distribution, and time series.
        assert_eq!(all(&[single]).unwrap().len(), 4);
    }

    #[test]
    fn distributions_are_monotonic_to_one_task() {
        let run = Run::new(run("rack", "horus", 0.5, 1000, |n| Some(n + 1)));
        let cdf = cumulative(&run);
        assert!(cdf.windows(2).all(|pair| pair[0].at.0 <= pair[1].at.0));
        let ccdf = complementary(&run);
        assert!(ccdf.windows(2).all(|pair| pair[0].at.1 > pair[1].at.1));
        // A tenth of the 1000 tasks is warm-up.
        assert!((ccdf.last().unwrap().at.1 - 1.0 / 900.0).abs() < 1e-12, "{:?}", ccdf.last());
    }
}
