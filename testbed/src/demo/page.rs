//! Report of the demo in real time as one self-contained page: plot, table, notes and manifest (the run's parameters
//! and machine).

use wedjat_pktgen::results::chart::{self, Axis, Chart, Line, Style};
use wedjat_pktgen::results::page::{escape, html, list, table};

use super::row::{COLUMNS, Row, notes};

/// Response times of a policy under one load.
#[derive(Clone, Debug)]
pub struct Point {
    /// Name of the policy.
    pub policy: String,
    /// Load as a fraction of the workers' capacity.
    pub load: f64,
    /// Median of the response time in microseconds.
    pub p50: f64,
    /// 99th percentile of the response time in microseconds.
    pub p99: f64,
    /// Half the width of its 95% confidence interval; NaN if unknown.
    pub p99_half: f64,
    /// True if the run is valid.
    pub valid: bool,
}

/// Error of drawing a plot.
pub use chart::ChartError as PlotError;

/// Plots response time over load as SVG, with one colour per policy: 99th percentile solid, median dashed.
/// Uses the undisturbed slices (intervals in which no pause of the machine can have affected a task). A value
/// that is not finite there is taken from the whole measured time.
///
/// # Errors
/// If the rows have no finite latency.
pub fn plot(rows: &[Row]) -> Result<String, PlotError> {
    let points = rows.iter().map(|row| {
        let finite_or =
            |undisturbed: f64, all: f64| if undisturbed.is_finite() { undisturbed } else { all };
        let (undisturbed, all) = (&row.report.undisturbed.response_us, &row.report.response_us);
        let (undisturbed_half, half) =
            (row.report.undisturbed.response_ci95_us, row.report.response_ci95_us);
        Point {
            policy: row.policy.clone(),
            load: row.load,
            p50: finite_or(undisturbed.p50.0, all.p50.0),
            p99: finite_or(undisturbed.p99.0, all.p99.0),
            p99_half: finite_or(undisturbed_half.p99.0, half.p99.0),
            valid: row.report.valid,
        }
    });
    plot_points(&points.collect::<Vec<_>>())
}

/// Same as [`plot`], for points. The demo in emulated time has points, but no [`Row`].
///
/// # Errors
/// If the points have no finite latency.
pub fn plot_points(rows: &[Point]) -> Result<String, PlotError> {
    let mut lines = Vec::new();
    for (colour, policy) in policies(rows).into_iter().enumerate() {
        let mut of_policy: Vec<_> = rows.iter().filter(|row| row.policy == policy).collect();
        of_policy.sort_by(|a, b| a.load.total_cmp(&b.load));
        // `value` returns the height of a point, and half the width of its interval.
        let points = |value: fn(&Point) -> (f64, f64)| {
            let point = |row: &&Point| {
                let (us, half) = value(row);
                chart::Point { at: (row.load * 100.0, us), half, valid: row.valid }
            };
            of_policy.iter().map(point).collect()
        };
        let label = format!("{policy}: p99 solid, p50 dashed");
        let p99 = Line::new(label, colour, points(|row| (row.p99, row.p99_half)));
        let p50 = Line::new("", colour, points(|row| (row.p50, f64::NAN)));
        lines.push(p99.style(Style::Solid).with_circles());
        lines.push(p50.style(Style::Dashed).with_circles());
    }
    let x = Axis::linear("offered load, % of the workers' capacity");
    Chart::new(x, Axis::log("response time from the due time, us"), lines).svg(chart::SIZE)
}

/// Returns the distinct policies of the rows in their order.
fn policies(rows: &[Point]) -> Vec<&str> {
    let mut policies = Vec::new();
    for row in rows {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(row.policy.as_str());
        }
    }
    policies
}

/// Builds the page. `manifest` is JSON. `summary` describes the run in a sentence or two.
///
/// # Errors
/// If there are no rows.
pub fn page(rows: &[Row], summary: &str, manifest: &str) -> Result<String, PlotError> {
    // The plot fails without a finite response time, as on a machine that stalls all the time. The page then shows the
    // rest.
    let plot = match plot(rows) {
        Ok(plot) => plot,
        Err(_) if !rows.is_empty() => "No task was answered in time: nothing to plot.".to_owned(),
        Err(error) => return Err(error),
    };
    let table = table(&COLUMNS, rows.iter().map(|row| (row.cells(), row.report.valid)));
    Ok(demo_html(&format!(
        "<p>{}</p>\n<figure>{plot}</figure>\n{table}{EXPLANATION}\n\
         <h2>Warnings and verdicts</h2>\n{}\
         <h2>Manifest</h2>\n<pre>{}</pre>\n",
        escape(summary),
        list(notes(rows)),
        escape(manifest)
    )))
}

/// Builds the demo's page around its contents, in real and in emulated time.
pub(super) fn demo_html(contents: &str) -> String {
    html("wedjat demo", "wedjat: response time over load", contents)
}

/// Text below the table.
const EXPLANATION: &str = "<p>Response times count from the due time of a task, not from its sending. A lost task counts as \
    infinite. An ordinary machine sometimes stops a program for milliseconds. A slice of the measured time is undisturbed if \
    no such pause can have affected its tasks. The plot, adherence (the share of tasks sent on time) and the verdict use only \
    undisturbed slices, if there are any. Bars show the 95% confidence interval of the 99th percentile. Hollow points and red \
    rows mark invalid runs: too few slices were undisturbed, the generator or the rack was overloaded, or a ledger did not \
    balance.</p>";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::row::tests::row;

    /// Creates rows of two policies under two loads, with different response times.
    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (i, policy) in ["horus", "random"].into_iter().enumerate() {
            for load in [0.5, 0.9] {
                rows.push(row(policy, load, 500.0 * load * (i + 1) as f64));
            }
        }
        rows
    }

    #[test]
    fn every_policy_has_its_lines_and_points() {
        let svg = plot(&rows()).unwrap();
        assert!(svg.contains("horus: p99") && svg.contains("random: p99"));
        // Two policies, two loads, two percentiles. No other part of the plot is a circle.
        assert_eq!(svg.matches("<circle").count(), 8);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn infinite_latencies_are_omitted_and_invalid_ones_hollow() {
        let mut rows = rows();
        // The median of the whole measured time replaces the first value. Nothing replaces the second, so that 7 of 8
        // circles remain.
        rows[0].report.undisturbed.response_us.p50.0 = f64::INFINITY;
        (rows[1].report.undisturbed.response_us.p99.0, rows[1].report.response_us.p99.0) =
            (f64::INFINITY, f64::INFINITY);
        rows[3].report.valid = false;
        let svg = plot(&rows).unwrap();
        assert_eq!(svg.matches("<circle").count(), 7);
        // Both percentiles of the invalid row are hollow.
        let hollow =
            svg.lines().filter(|line| line.contains("<circle") && line.contains("fill=\"none\""));
        assert_eq!(hollow.count(), 2);
    }

    #[test]
    fn single_load_plots_and_no_latency_fails() {
        assert!(plot(&rows()[..1]).is_ok());
        let mut row = rows().remove(0);
        for us in [&mut row.report.undisturbed.response_us, &mut row.report.response_us] {
            (us.p99.0, us.p50.0) = (f64::INFINITY, f64::INFINITY);
        }
        assert!(plot(&[row]).is_err());
        assert!(plot(&[]).is_err());
    }

    #[test]
    fn a_page_without_a_finite_latency_says_so() {
        let mut row = rows().remove(0);
        for us in [&mut row.report.undisturbed.response_us, &mut row.report.response_us] {
            (us.p99.0, us.p50.0) = (f64::INFINITY, f64::INFINITY);
        }
        assert!(page(&[row], "32 workers", "{}").unwrap().contains("nothing to plot"));
        assert!(page(&[], "32 workers", "{}").is_err());
    }

    #[test]
    fn page_is_self_contained_and_escaped() {
        let mut rows = rows();
        rows[1].report.reasons.push("a < b & c".to_owned());
        let page = page(&rows, "32 workers", "{\"command\": \"<x>\"}").unwrap();
        assert!(page.contains("a &lt; b &amp; c") && page.contains("\"&lt;x&gt;\""));
        // A heading and four rows.
        assert_eq!(page.matches("<tr").count(), 5);
        for outside in ["<script", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
