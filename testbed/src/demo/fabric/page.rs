//! Report of the fabric as one self-contained page: answered and lost tasks over time, and each event.

use std::fmt::Write as _;

use plotters::prelude::*;

use super::{MS, Report, Row};
use crate::demo::page::{COLOURS, PlotError, SIZE, cells, escape, titled};
use crate::lockstep::system::plan::START_NS;

/// Step of the plot in milliseconds.
const STEP_MS: u64 = 5;
/// Headings of the table.
const COLUMNS: [&str; 7] = ["event", "at ms", "lost", "recovered ms", "bound ms", "holds", "note"];

/// Counts answered and lost tasks in each step, by the time of their sending.
fn counts(report: &Report) -> (Vec<u32>, Vec<u32>) {
    let step = |sent_ns: u64| (sent_ns.saturating_sub(START_NS) / (STEP_MS * MS)) as usize;
    let last = report.outcome.ended.iter().map(|task| step(task.sent_ns)).max().unwrap_or(0);
    let (mut answered, mut lost) = (vec![0; last + 1], vec![0; last + 1]);
    for task in &report.outcome.ended {
        answered[step(task.sent_ns)] += u32::from(task.answered_ns.is_some());
        lost[step(task.sent_ns)] += u32::from(task.lost.is_some());
    }
    // Omits the last step, which is incomplete.
    (answered.drain(..last).collect(), lost.drain(..last).collect())
}

/// Draws the timeline as SVG.
///
/// # Errors
/// If it cannot be drawn.
pub fn plot(report: &Report) -> Result<String, PlotError> {
    let (answered, lost) = counts(report);
    let max_tasks = answered.iter().chain(&lost).max().copied().unwrap_or(1).max(1) as f64 * 1.15;
    let end_ms = (answered.len() as u64 * STEP_MS) as f64;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..end_ms, 0.0..max_tasks)?;
        chart
            .configure_mesh()
            .x_desc("emulated time, ms")
            .y_desc(format!("tasks sent in {STEP_MS} ms"))
            .x_label_formatter(&|ms| format!("{ms:.0}"))
            .y_label_formatter(&|tasks| format!("{tasks:.0}"))
            .light_line_style(BLACK.mix(0.04))
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for (number, row) in report.rows.iter().enumerate() {
            let x = row.at_ms as f64;
            let line = COLOURS[6].mix(0.4).stroke_width(1);
            chart.draw_series([PathElement::new([(x, 0.0), (x, max_tasks)], line)])?;
            let text = (number + 1).to_string();
            let place = (x + end_ms / 300.0, max_tasks * 0.99);
            chart.draw_series([Text::new(text, place, ("sans-serif", 14))])?;
        }
        for (tasks, colour, name) in
            [(&answered, COLOURS[0], "answered"), (&lost, COLOURS[1], "lost")]
        {
            let points = tasks.iter().enumerate();
            let points =
                points.map(|(step, &tasks)| ((step as u64 * STEP_MS) as f64, f64::from(tasks)));
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?.label(name).legend(
                move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)),
            );
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.2))
            .label_font(("sans-serif", 14))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// Returns the cells of an event in the order of [`COLUMNS`].
fn row_cells(number: usize, row: &Row) -> [String; 7] {
    [
        format!("{}. {}", number + 1, row.event),
        row.at_ms.to_string(),
        row.lost.to_string(),
        row.recovered_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}")),
        format!("{:.0}", row.bound_ms),
        row.holds.map_or("-", |holds| if holds { "yes" } else { "NO" }).to_owned(),
        row.note.clone(),
    ]
}

const EXPLANATION: &str = "<p>Spines, leaves and agents run the code of the dataplane on real packets. Time, hops, clients \
    and workers are emulated, so the same seed gives the same digits on every machine. The controller's own code decides the \
    desired state of each node. A task is lost if it was neither answered nor refused: it was in the failed node, or in \
    flight to it. Recovery ends with the last task sent to a failed place, or with the first task sent to a restored place. \
    After each turn of a node, its ledger is compared with the packets on the wires.</p>";

/// Builds the page.
///
/// # Errors
/// If the plot cannot be drawn.
pub fn page(report: &Report) -> Result<String, PlotError> {
    let mut table = String::new();
    let _ = writeln!(table, "<tr>{}</tr>", cells("th", COLUMNS.iter().copied()));
    for (number, row) in report.rows.iter().enumerate() {
        let class = if row.holds == Some(false) { " class=\"invalid\"" } else { "" };
        let cells = cells("td", row_cells(number, row).iter().map(String::as_str));
        let _ = writeln!(table, "<tr{class}>{cells}</tr>");
    }
    let violations = &report.outcome.violations;
    let items: String = violations
        .iter()
        .map(|violation| {
            format!(
                "<li>{}</li>\n",
                escape(&format!(
                    "at {} ns, {}: {}",
                    violation.at_ns, violation.who, violation.what
                ))
            )
        })
        .collect();
    let items = if items.is_empty() { "<li>none</li>".to_owned() } else { items };
    Ok(titled(
        "wedjat fabric",
        "wedjat: a fabric under failures",
        &format!(
            "<p>{}</p>\n<figure>{}</figure>\n<table>\n{table}</table>\n{EXPLANATION}\n<h2>Violations</h2>\n<ul>\n{items}</ul>\n",
            escape(&report.summary),
            plot(report)?
        ),
    ))
}
