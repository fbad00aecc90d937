//! Report of the fabric as one self-contained page: answered and lost tasks over time, and each event.

use wedjat_pktgen::results::chart::{self, Axis, Chart, Corner, Line, Point};
use wedjat_pktgen::results::page::{escape, html, list, table};

use super::{MS, Report, Row};
use crate::demo::page::PlotError;
use crate::lockstep::system::plan::START_NS;

/// Step of the plot in milliseconds.
const STEP_MS: u64 = 5;
/// Headings of the table.
const COLUMNS: [&str; 7] = ["event", "at ms", "lost", "recovered ms", "bound ms", "holds", "note"];

/// Counts answered and lost tasks in each step of [`STEP_MS`], by the time of their sending. Refused tasks count as
/// neither. Returns one number for each step.
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

/// Draws answered and lost tasks over time as SVG, with a numbered mark for each event.
///
/// # Errors
/// If it cannot be drawn.
pub fn plot(report: &Report) -> Result<String, PlotError> {
    let (answered, lost) = counts(report);
    let max_tasks = answered.iter().chain(&lost).max().copied().unwrap_or(1).max(1) as f64 * 1.15;
    let end_ms = (answered.len() as u64 * STEP_MS) as f64;
    let line = |name: &str, colour, tasks: &[u32]| {
        let point = |(step, &tasks): (usize, &u32)| {
            Point::new((step as u64 * STEP_MS) as f64, f64::from(tasks))
        };
        Line::new(name, colour, tasks.iter().enumerate().map(point).collect())
    };
    let label = format!("tasks sent in {STEP_MS} ms");
    let marks = report.rows.iter().enumerate();
    let chart = Chart {
        marks: marks.map(|(number, row)| (row.at_ms as f64, (number + 1).to_string())).collect(),
        legend: Corner::MiddleLeft,
        ..Chart::new(
            Axis::linear("emulated time, ms").over(0.0..end_ms),
            Axis::linear(&label).over(0.0..max_tasks),
            vec![line("answered", 0, &answered), line("lost", 1, &lost)],
        )
    };
    chart.svg(chart::SIZE)
}

/// Returns the cells of an event in the order of [`COLUMNS`]. `number` counts from 0, the page from 1.
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

/// Text below the table.
const EXPLANATION: &str = "<p>Spines, leaves and agents run the code of the dataplane on real packets. Time, hops, clients \
    and workers are emulated, so the same seed gives the same digits on every machine. The controller's own code decides the \
    desired state of each node. A task is lost if it was neither answered nor refused: it was in the failed node, or in \
    flight to it. Recovery ends with the last task sent to a failed place, or with the first task sent to a restored place. \
    After each turn of a node, its ledger is compared with the packets on the wires.</p>";

/// Builds the page: summary, plot, table of events, and violations. The table marks events that do not hold.
///
/// # Errors
/// If the plot cannot be drawn.
pub fn page(report: &Report) -> Result<String, PlotError> {
    let rows = report.rows.iter().enumerate();
    let rows = rows.map(|(number, row)| (row_cells(number, row), row.holds != Some(false)));
    let violations = report.outcome.violations.iter();
    let violations = violations.map(|violation| {
        format!("at {} ns, {}: {}", violation.at_ns, violation.node, violation.description)
    });
    Ok(html(
        "wedjat fabric",
        "wedjat: a fabric under failures",
        &format!(
            "<p>{}</p>\n<figure>{}</figure>\n{}{EXPLANATION}\n<h2>Violations</h2>\n{}",
            escape(&report.summary),
            plot(report)?,
            table(&COLUMNS, rows),
            list(violations)
        ),
    ))
}
