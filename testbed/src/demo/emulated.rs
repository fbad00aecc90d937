//! Report of the demo in emulated time, in which the testbed advances the leaf's clock: a table that is the same on
//! every machine, and the real-time results of this one.

use serde_json::Value;

use super::machine::Pauses;
use wedjat_pktgen::results::aligned;
use wedjat_pktgen::results::page::{self as html, escape, list};

use super::page::{self, PlotError, Point};
use crate::sim::Row;

/// Explanation of the clock on the page.
const TIME: &str = "Times in the table and in the plot are emulated. A real leaf process scheduled every task, with real \
    packets on real DPDK ports. The testbed advanced the leaf's clock, clients, hops and workers step by step, so the same \
    seed gives the same digits on every machine. In real time, this machine's own pauses would hide the differences between \
    the policies.";

/// Headings of the table; times are in microseconds. `±` precedes half the width of a 95% confidence interval.
const COLUMNS: [&str; 10] = [
    "policy", "load", "tasks", "answered", "lost", "mean us", "p50 us", "p90 us", "p99 us",
    "p99.9 us",
];

/// Returns the cells of a row in the order of [`COLUMNS`].
fn row_cells(row: &Row) -> [String; 10] {
    let us = |us: f64| format!("{us:.1}");
    let with_interval = |value: f64, half: f64| match half.is_finite() {
        true => format!("{value:.1} ±{half:.1}"),
        false => us(value),
    };
    [
        row.policy.clone(),
        format!("{:.0}%", row.load * 100.0),
        row.tasks.to_string(),
        row.answered.unwrap_or_default().to_string(),
        row.lost.to_string(),
        with_interval(row.mean, row.mean_ci95),
        us(row.p50),
        us(row.p90),
        with_interval(row.p99, row.p99_ci95),
        us(row.p999),
    ]
}

/// Returns the finding in one sentence: the best and the worst policy at the highest load.
#[must_use]
pub fn headline(rows: &[Row]) -> String {
    let peak_load = rows.iter().map(|row| row.load).fold(0.0, f64::max);
    let at_peak = || rows.iter().filter(|row| row.load == peak_load);
    let best = at_peak().min_by(|a, b| a.p99.total_cmp(&b.p99));
    let worst = at_peak().max_by(|a, b| a.p99.total_cmp(&b.p99));
    let (Some(best), Some(worst)) = (best, worst) else {
        return "No results.".to_owned();
    };
    let finding = format!(
        "At {:.0}% load {} answers 99% of the tasks within {:.0} us",
        peak_load * 100.0,
        best.policy,
        best.p99
    );
    match worst.policy == best.policy {
        true => format!("{finding}."),
        false => format!(
            "{finding}, {} within {:.0} us, {:.1} times as long.",
            worst.policy,
            worst.p99,
            worst.p99 / best.p99
        ),
    }
}

/// Formats the rows as a table.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let head = std::iter::once(COLUMNS.map(str::to_owned).to_vec());
    aligned(&head.chain(rows.iter().map(|row| row_cells(row).to_vec())).collect::<Vec<_>>())
}

/// Results in real time: rows of the demo on the real clock, each from one second of the same policy and load. One of
/// several rows is more likely to avoid the machine's pauses. A row consists of time slices. A slice is undisturbed if
/// no pause can have affected it.
#[derive(Clone, Debug)]
pub struct RealTimeRows {
    rows: Vec<Value>,
}

impl RealTimeRows {
    /// Parses the rows' JSON. Returns `None` if there are no rows.
    #[must_use]
    pub fn new(rows: Value) -> Option<Self> {
        let Value::Array(rows) = rows else { return None };
        (!rows.is_empty()).then_some(Self { rows })
    }

    /// Returns the row with the largest share of undisturbed slices.
    #[must_use]
    pub fn row(&self) -> &Value {
        let undisturbed_share =
            |row: &Value| row["slices"]["undisturbed_share"].as_f64().unwrap_or_default();
        let best =
            self.rows.iter().max_by(|a, b| undisturbed_share(a).total_cmp(&undisturbed_share(b)));
        best.unwrap_or(&Value::Null)
    }

    /// Returns the leaf's shortest time per packet over the rows. Disturbances only add to this time, so the
    /// shortest is the least disturbed.
    #[must_use]
    pub fn ns_per_packet(&self) -> Option<f64> {
        let ns = self.rows.iter().filter_map(|row| row["leaf"]["ns_per_packet"].as_f64());
        ns.filter(|ns| *ns > 0.0).reduce(f64::min)
    }

    /// Returns one or two sentences about the results, with the verdict in the first. The second needs the leaf's time
    /// per packet.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let (row, count) = (self.row(), self.rows.len());
        let load = row["load"].as_f64().unwrap_or_default() * 100.0;
        let policy = row["policy"].as_str().unwrap_or_default();
        let us = |report: &Value, quantile: &str| match &report["response_us"][quantile] {
            Value::Null => "-".to_owned(),
            us => us.to_string(),
        };
        let undisturbed = &row["undisturbed"];
        let (p50, p99, all) = (us(undisturbed, "p50"), us(undisturbed, "p99"), us(row, "p99"));
        let share = 100.0 * row["slices"]["undisturbed_share"].as_f64().unwrap_or_default();
        let reasons = row["reasons"].as_array().into_iter().flatten();
        let reasons: Vec<_> = reasons.filter_map(Value::as_str).collect();
        let verdict = match reasons.is_empty() {
            true => "a valid measurement".to_owned(),
            false => format!("INVALID: {}", reasons.join("; ")),
        };
        let mut remarks = vec![format!(
            "real time, {policy} at {load:.0}% load: p50 {p50} us, p99 {p99} us in undisturbed slices ({share:.0}%; p99 of \
             all slices {all} us), the best of {count} seconds; {verdict}"
        )];
        if let Some(ns) = self.ns_per_packet() {
            remarks.push(format!(
                "real time, the leaf: {ns:.0} ns per packet over memif in the least disturbed of {count} seconds, or {:.1} \
                 million packets a second on one core",
                1e3 / ns
            ));
        }
        remarks
    }
}

/// Builds the page. `remarks` describe this machine's pauses and its real-time results, `manifest` is the leaf's as
/// JSON, and `summary` describes the run.
///
/// # Errors
/// If the plot cannot be drawn.
pub fn page(
    rows: &[Row],
    pauses: &Pauses,
    remarks: &[String],
    summary: &str,
    manifest: &str,
) -> Result<String, PlotError> {
    let points = rows.iter().map(|row| Point {
        policy: row.policy.clone(),
        load: row.load,
        p50: row.p50,
        p99: row.p99,
        p99_half: row.p99_ci95,
        valid: true,
    });
    let plot = page::plot_points(&points.collect::<Vec<_>>())?;
    let table = html::table(&COLUMNS, rows.iter().map(|row| (row_cells(row), true)));
    Ok(page::demo_html(&format!(
        "<p><strong>{}</strong></p>\n<p>{TIME}</p>\n<p>{}</p>\n<figure>{plot}</figure>\n\
         {table}<h2>Measured in real time</h2>\n{}<figure>{}</figure>\n\
         <h2>Manifest</h2>\n<pre>{}</pre>\n",
        escape(&headline(rows)),
        escape(summary),
        list(remarks),
        pauses.plot()?,
        escape(manifest)
    )))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::sim::{SimArgs, rows};

    /// Simulates two policies under two loads. With a digest, as in the demo, rows also count answered tasks.
    fn simulated_rows() -> Vec<Row> {
        let text = |text: &str| Some(text.to_owned());
        let args = SimArgs {
            policy: text("horus,random"),
            load: text("0.5,0.9"),
            tasks: text("4000"),
            digest: text("yes"),
            ..SimArgs::default()
        };
        rows(&args).unwrap()
    }

    #[test]
    fn headline_names_best_and_worst_at_peak_load() {
        let rows = simulated_rows();
        let text = headline(&rows);
        assert!(text.starts_with("At 90% load horus answers 99% of the tasks within "), "{text}");
        assert!(text.contains("random within") && text.contains("times as long"), "{text}");
        assert!(!headline(&rows[..1]).contains("times as long"));
        assert_eq!(headline(&[]), "No results.");
        // A heading, and two policies under two loads.
        assert_eq!(table(&rows).lines().count(), 5);
    }

    #[test]
    fn least_disturbed_row_counts() {
        // A row with this share of undisturbed slices, this time per packet, and these reasons of invalidity.
        let row = |undisturbed: f64, ns: f64, reasons: &[&str]| {
            json!({"policy": "horus", "load": 0.5, "slices": {"undisturbed_share": undisturbed}, "reasons": reasons,
                "undisturbed": {"response_us": {"p50": 80.0, "p99": 400.0}},
                "response_us": {"p50": 90.0, "p99": 7000.0}, "leaf": {"ns_per_packet": ns}})
        };
        let rows = json!([row(0.8, 70.0, &["late"]), row(0.99, 90.0, &["busy"])]);
        let real = RealTimeRows::new(rows).unwrap();
        assert_eq!(real.ns_per_packet(), Some(70.0));
        // The second row is the least disturbed, the first has the shortest time per packet.
        let remarks = real.remarks();
        assert!(remarks[0].contains("INVALID: busy"), "{remarks:?}");
        let p99s = "p99 400.0 us in undisturbed slices (99%; p99 of all slices 7000.0 us)";
        assert!(remarks[0].contains(p99s), "{remarks:?}");
        assert!(remarks[1].contains("70 ns") && remarks[1].contains("14.3 million"), "{remarks:?}");
        let good = RealTimeRows::new(json!([row(1.0, 0.0, &[])])).unwrap().remarks();
        assert!(good.len() == 1 && good[0].contains("a valid measurement"), "{good:?}");
        assert!(RealTimeRows::new(Value::Null).is_none() && RealTimeRows::new(json!([])).is_none());
    }

    #[test]
    fn page_opens_with_results_and_one_manifest() {
        let pauses = Pauses::watch(Duration::from_millis(1));
        let rows = simulated_rows();
        let page =
            page(&rows, &pauses, &["a < b".to_owned()], "32 workers", "{\"x\": \"<y>\"}").unwrap();
        let body = page.split("<h1>").nth(1).unwrap();
        assert!(body.find("At 90% load horus").unwrap() < body.find("emulated").unwrap());
        assert!(page.contains("a &lt; b") && page.matches("&lt;y&gt;").count() == 1);
        // The plots of response times and of pauses; a heading and four rows.
        assert_eq!((page.matches("<svg").count(), page.matches("<tr").count()), (2, 5));
    }
}
