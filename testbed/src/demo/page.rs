//! Report of the demo as one self-contained page: plot, table, notes and manifest.

use std::fmt::Write as _;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::row::{COLUMNS, Row, notes};

/// Size of the plot in pixels.
pub(super) const SIZE: (u32, u32) = (900, 520);
/// Colours for colour-blind readers (Okabe and Ito, 2008), without the yellow.
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// Response times of a policy under one load.
#[derive(Clone, Debug)]
pub struct Point {
    /// Name of the policy.
    pub policy: String,
    /// Load as a fraction of the workers' capacity.
    pub load: f64,
    /// Median in microseconds.
    pub p50: f64,
    /// 99th percentile in microseconds.
    pub p99: f64,
    /// True if the run is valid.
    pub valid: bool,
}

/// Error of drawing a plot.
pub type PlotError = Box<dyn std::error::Error>;

/// Plots response time over load as SVG, with one colour per policy: 99th percentile solid, median dashed.
/// Uses the undisturbed slices, or the whole measured time if there are none.
///
/// # Errors
/// If the rows have no finite latency.
pub fn plot(rows: &[Row]) -> Result<String, PlotError> {
    let points = rows.iter().map(|row| {
        let finite_or =
            |undisturbed: f64, all: f64| if undisturbed.is_finite() { undisturbed } else { all };
        let (undisturbed, all) = (&row.report.calm.response_us, &row.report.response_us);
        Point {
            policy: row.policy.clone(),
            load: row.load,
            p50: finite_or(undisturbed.p50.0, all.p50.0),
            p99: finite_or(undisturbed.p99.0, all.p99.0),
            valid: row.report.valid,
        }
    });
    plot_points(&points.collect::<Vec<_>>())
}

/// Same as [`plot`], for points.
///
/// # Errors
/// If the points have no finite latency.
pub fn plot_points(rows: &[Point]) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(rows, &area)?;
        area.present()?;
    }
    Ok(svg)
}

fn draw(rows: &[Point], area: &DrawingArea<SVGBackend, Shift>) -> Result<(), PlotError> {
    let (loads, latencies) = ranges(rows).ok_or("no row has a finite latency to plot")?;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d(loads, latencies.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("offered load, % of the workers' capacity")
        .y_desc("response time from the due time, us")
        .x_labels(10)
        .x_label_formatter(&|load| format!("{load:.0}"))
        .y_label_formatter(&|us| format!("{us:.0}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(BLACK.mix(0.04))
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for (policy, colour) in policies(rows).into_iter().zip(COLOURS.iter().cycle()) {
        let points_of = |percentile: Percentile| points(rows, policy, percentile);
        let line = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points_of(P99).into_iter().map(|(point, _)| point), line))?
            .label(format!("{policy}: p99 solid, p50 dashed"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], line));
        let median = points_of(P50).into_iter().map(|(point, _)| point);
        chart.draw_series(DashedLineSeries::new(median, 6, 4, colour.stroke_width(2)))?;
        for percentile in [P99, P50] {
            // A hollow point marks an invalid run.
            chart.draw_series(points_of(percentile).into_iter().map(|(point, valid)| {
                let style = if valid { colour.filled() } else { line };
                Circle::new(point, 4, style)
            }))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
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

/// Returns a policy's points by load, with true for valid runs. Omits infinite percentiles, which lost tasks
/// cause.
fn points(rows: &[Point], policy: &str, percentile: Percentile) -> Vec<((f64, f64), bool)> {
    let mut points: Vec<_> = rows
        .iter()
        .filter(|row| row.policy == policy)
        .map(|row| ((row.load * 100.0, percentile(row)), row.valid))
        .filter(|((_, us), _)| us.is_finite() && *us > 0.0)
        .collect();
    points.sort_by(|((a, _), _), ((b, _), _)| a.total_cmp(b));
    points
}

type Range = std::ops::Range<f64>;

/// Selects a percentile of a point.
type Percentile = fn(&Point) -> f64;
const P50: Percentile = |point| point.p50;
const P99: Percentile = |point| point.p99;

/// Returns the ranges of the axes with a margin, or `None` without points.
fn ranges(rows: &[Point]) -> Option<(Range, Range)> {
    let all: Vec<_> = policies(rows)
        .into_iter()
        .flat_map(|policy| [points(rows, policy, P50), points(rows, policy, P99)].concat())
        .map(|(point, _)| point)
        .collect();
    let min = |coordinate: fn(&(f64, f64)) -> f64| all.iter().map(coordinate).reduce(f64::min);
    let max = |coordinate: fn(&(f64, f64)) -> f64| all.iter().map(coordinate).reduce(f64::max);
    let (first, last) = (min(|point| point.0)?, max(|point| point.0)?);
    let (low, high) = (min(|point| point.1)?, max(|point| point.1)?);
    Some((first - 5.0..last + 5.0, low / 1.5..high * 2.5))
}

/// Builds the page. `manifest` is JSON. `summary` describes the run in a sentence or two.
///
/// # Errors
/// If the plot cannot be drawn.
pub fn page(rows: &[Row], summary: &str, manifest: &str) -> Result<String, PlotError> {
    // If the machine stalled all the time, the page still shows the rest.
    let plot = match plot(rows) {
        Ok(plot) => plot,
        Err(_) if !rows.is_empty() => "No task was answered in time: nothing to plot.".to_owned(),
        Err(error) => return Err(error),
    };
    let mut table = String::new();
    let _ = writeln!(table, "<tr>{}</tr>", cells("th", COLUMNS.iter().copied()));
    for row in rows {
        let class = if row.report.valid { "" } else { " class=\"invalid\"" };
        let row = row.cells();
        let _ = writeln!(table, "<tr{class}>{}</tr>", cells("td", row.iter().map(String::as_str)));
    }
    let notes: String =
        notes(rows).iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    let notes = if notes.is_empty() { "<li>none</li>".to_owned() } else { notes };
    Ok(html(&format!(
        "<p>{}</p>\n<figure>{plot}</figure>\n<table>\n{table}</table>\n{EXPLANATION}\n\
         <h2>Warnings and verdicts</h2>\n<ul>\n{notes}</ul>\n\
         <h2>Manifest</h2>\n<pre>{}</pre>\n",
        escape(summary),
        escape(manifest)
    )))
}

/// Builds the demo's page around its contents.
pub(super) fn html(contents: &str) -> String {
    titled("wedjat demo", "wedjat: response time over load", contents)
}

/// Builds a page with a title and a heading.
pub(super) fn titled(title: &str, heading: &str, contents: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n\
         {contents}</body>\n</html>\n"
    )
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1a1a1a;background:#fff}figure{margin:1rem 0}svg{max-width:100%;height:auto}table{border-collapse:collapse;\
font-size:.85rem;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}td,th{padding:.25rem .55rem;\
text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}td:first-child,th:first-child{text-align:left}\
.invalid{color:#a00}pre{background:#f6f6f6;padding:1rem;overflow:auto;font-size:.8rem}";

const EXPLANATION: &str = "<p>Response times count from the due time of a task, not from its sending. A lost task counts as \
    infinite. An ordinary machine sometimes stops a program for milliseconds. A slice of the measured time is undisturbed if \
    no such pause can have affected its tasks. The plot, adherence (the share of tasks sent on time) and the verdict use only \
    undisturbed slices, if there are any. Hollow points and red rows mark invalid runs: too few slices were undisturbed, the \
    generator or the rack was overloaded, or a ledger did not balance.</p>";

/// Wraps each text in a table cell with this tag.
pub(super) fn cells<'a>(tag: &str, texts: impl Iterator<Item = &'a str>) -> String {
    texts.map(|text| format!("<{tag}>{}</{tag}>", escape(text))).collect()
}

/// Escapes the special characters of HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::row::tests::row;

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
        // Without undisturbed slices, the whole measured time counts.
        rows[0].report.calm.response_us.p50.0 = f64::INFINITY;
        (rows[1].report.calm.response_us.p99.0, rows[1].report.response_us.p99.0) =
            (f64::INFINITY, f64::INFINITY);
        rows[3].report.valid = false;
        let svg = plot(&rows).unwrap();
        assert_eq!(svg.matches("<circle").count(), 7);
        let hollow =
            svg.lines().filter(|line| line.contains("<circle") && line.contains("fill=\"none\""));
        assert_eq!(hollow.count(), 2);
    }

    #[test]
    fn single_load_plots_and_no_latency_fails() {
        assert!(plot(&rows()[..1]).is_ok());
        let mut row = rows().remove(0);
        for us in [&mut row.report.calm.response_us, &mut row.report.response_us] {
            (us.p99.0, us.p50.0) = (f64::INFINITY, f64::INFINITY);
        }
        assert!(plot(&[row]).is_err());
        assert!(plot(&[]).is_err());
    }

    #[test]
    fn a_page_without_a_finite_latency_says_so() {
        let mut row = rows().remove(0);
        for us in [&mut row.report.calm.response_us, &mut row.report.response_us] {
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
        assert_eq!(page.matches("<tr").count(), 5);
        for outside in ["<script", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
