//! Rows of the demo in real time, one per policy and load, as table, JSON and CSV. The generator, the emulated rack of
//! workers and the leaf process each contribute a report.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use wedjat_pktgen::report::Report;
use wedjat_pktgen::results::aligned;

use crate::rack;

/// Result of one policy under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Policy of the leaf.
    pub policy: String,
    /// Load as a fraction of the workers' capacity.
    pub load: f64,
    /// Number of measurements until one was valid or the retries ran out. The row is the last one.
    pub attempts: u32,
    /// Report of the generator. Its verdict covers generator, rack and leaf.
    #[serde(flatten)]
    pub report: Report,
    /// Report of the rack.
    pub rack: rack::Report,
    /// Account of the leaf: the JSON report that it writes at its end.
    pub leaf: Value,
}

impl Row {
    /// Creates the row of a first attempt. The leaf's ledger compares its received packets with those that it sent,
    /// consumed or dropped. An unbalanced ledger makes the row invalid.
    #[must_use]
    pub fn new(
        policy: String,
        load: f64,
        mut report: Report,
        rack: rack::Report,
        leaf: Value,
    ) -> Self {
        if leaf["balanced"] != Value::Bool(true) {
            report.valid = false;
            report.reasons.push("the leaf's ledger does not balance".to_owned());
        }
        Self { policy, load, attempts: 1, report, rack, leaf }
    }

    /// Returns the leaf's time per packet in nanoseconds; `None` if its account lacks it.
    #[must_use]
    pub fn leaf_ns(&self) -> Option<f64> {
        self.leaf["ns_per_packet"].as_f64()
    }

    /// Returns the verdict's text in the table.
    fn verdict(&self) -> &'static str {
        if self.report.valid { "valid" } else { "INVALID" }
    }

    /// Returns the cells of the table in the order of [`COLUMNS`].
    #[must_use]
    pub fn cells(&self) -> Vec<String> {
        let (report, us) = (&self.report, &self.report.response_us);
        vec![
            self.policy.clone(),
            format!("{:.0}%", self.load * 100.0),
            format!("{:.0}", report.offered_pps),
            report.sent.to_string(),
            report.answered.to_string(),
            report.lost.to_string(),
            us.p50.to_string(),
            us.p90.to_string(),
            us.p99.to_string(),
            us.p999.to_string(),
            format!("{:.0}%", report.slices.undisturbed_share * 100.0),
            report.undisturbed.response_us.p50.to_string(),
            match report.undisturbed.response_ci95_us.p99 {
                half if half.0.is_finite() => {
                    format!("{} ±{half}", report.undisturbed.response_us.p99)
                }
                _ => report.undisturbed.response_us.p99.to_string(),
            },
            format!("{:.2}%", report.undisturbed.adherence * 100.0),
            self.leaf_ns().map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}")),
            self.verdict().to_owned(),
        ]
    }
}

/// Headings of the table. `undisturbed` is the share of undisturbed slices, in which this machine let every loop run.
/// The `undist.` columns and the adherence cover only these. `±` precedes half the width of a 95% confidence interval.
/// Times are response times from the due time of a task, in microseconds.
pub const COLUMNS: [&str; 16] = [
    "policy",
    "load",
    "offered/s",
    "sent",
    "answered",
    "lost",
    "p50 us",
    "p90 us",
    "p99 us",
    "p99.9 us",
    "undisturbed",
    "undist. p50",
    "undist. p99",
    "adherence",
    "leaf ns/pkt",
    "verdict",
];

/// Formats the rows as a table, followed by notes on single rows.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let head = std::iter::once(COLUMNS.map(str::to_owned).to_vec());
    let mut out = aligned(&head.chain(rows.iter().map(Row::cells)).collect::<Vec<_>>());
    for note in notes(rows) {
        let _ = writeln!(out, "{note}");
    }
    out
}

/// Returns the reasons of invalid rows, and all warnings.
#[must_use]
pub fn notes(rows: &[Row]) -> Vec<String> {
    let notes_of = |row: &Row| {
        let name = format!("{} at {:.0}%", row.policy, row.load * 100.0);
        let reasons = row.report.reasons.iter().map(|reason| format!("INVALID: {reason}"));
        let warnings = row.report.warnings.iter().map(|warning| format!("warning: {warning}"));
        reasons.chain(warnings).map(|note| format!("{name}: {note}")).collect::<Vec<_>>()
    };
    rows.iter().flat_map(notes_of).collect()
}

/// Formats the rows as CSV with stable keys.
///
/// # Errors
/// If the text cannot be written. In memory, this does not happen.
pub fn csv(rows: &[Row]) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (index, row) in rows.iter().enumerate() {
        let fields = fields(row);
        if index == 0 {
            writer.write_record(fields.iter().map(|(key, _)| key))?;
        }
        writer.write_record(fields.iter().map(|(_, value)| value))?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns keys and values of a row: those of the generator, then those of rack and leaf. A key that the
/// leaf's account lacks has an empty value, so that all rows have the same columns.
fn fields(row: &Row) -> Vec<(String, String)> {
    let mut fields = vec![
        ("policy".to_owned(), row.policy.clone()),
        ("load".to_owned(), row.load.to_string()),
        ("attempts".to_owned(), row.attempts.to_string()),
    ];
    fields.extend(row.report.csv_fields());
    let late = row.rack.lateness_us.p99.0.to_string();
    fields.push(("rack.lateness_us.p99".to_owned(), late));
    for key in [
        "rx_packets",
        "tx_packets",
        "scheduled",
        "idle_picks",
        "po2_picks",
        "replies",
        "ns_per_packet",
    ] {
        let value = &row.leaf[key];
        let text = if value.is_null() { String::new() } else { value.to_string() };
        fields.push((format!("leaf.{key}"), text));
    }
    fields
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::SystemTime;
    use wedjat_pktgen::latency::{LatencySummary, Micros};
    use wedjat_pktgen::load::Load;
    use wedjat_pktgen::manifest::Manifest;

    /// Creates a row of a run without tasks. Its response times are multiples of the given 99th percentile.
    pub fn row(policy: &str, load: f64, p99_us: f64) -> Row {
        let offered = Load::new(load * 320e3, "exp(100us)".parse().unwrap());
        let manifest = Manifest::new(&offered, SystemTime::UNIX_EPOCH);
        let tally = {
            use wedjat::io::memory::{self, FramePool};
            use wedjat::wire::ether::Mac;
            use wedjat_pktgen::{engine::Generator, target::Target};
            let pool = FramePool::new(1, 128);
            let (port, _peer) = memory::pair(1, &pool);
            let target = Target::new(Mac::default(), 1, 2);
            // Core 0 of the load, its only one.
            let generator = Generator::new(&offered, &target, 0, 1e9, port, pool).unwrap();
            generator.tally().clone()
        };
        let slices = tally.slices(&offered.rule, &[]);
        let mut report = Report::new(&offered, &tally, &slices, None, manifest);
        let us = |us| Micros(us);
        let us_of = |p99_us: f64| LatencySummary {
            p50: us(p99_us / 5.0),
            p90: us(p99_us / 2.0),
            p99: us(p99_us),
            p999: us(f64::INFINITY),
            p9999: us(f64::INFINITY),
            mean: us(p99_us / 4.0),
            max: us(p99_us * 2.0),
        };
        (report.response_us, report.undisturbed.response_us) = (us_of(p99_us), us_of(p99_us));
        (report.valid, report.reasons) = (true, Vec::new());
        let layout = rack::Layout::new("10.0.2.11+4".parse().unwrap(), 8, 0).unwrap();
        let rack = {
            use wedjat::io::memory::{self, FramePool};
            let (port, _peer) = memory::pair(1, &FramePool::new(1, 128));
            let options = rack::Options::default();
            rack::Rack::new(port, wedjat::wire::ether::Mac::default(), layout, options, 1e9)
                .report()
        };
        let leaf = serde_json::json!({ "balanced": true, "ns_per_packet": 61.4, "replies": 7 });
        Row::new(policy.to_owned(), load, report, rack, leaf)
    }

    #[test]
    fn rows_are_lined_up_and_explained() {
        let mut bad = row("random", 0.9, 4_600.0);
        bad.report.valid = false;
        bad.report.reasons.push("only 90.00% of the tasks were sent on time".to_owned());
        let text = table(&[row("horus", 0.5, 480.0), bad]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("policy") && lines[0].ends_with("verdict"), "{text}");
        assert!(
            lines[1].contains("480.0") && lines[1].contains("inf") && lines[1].contains(" 61 ")
        );
        assert!(lines[1].ends_with("  valid") && lines[2].ends_with("INVALID"), "{text}");
        // The columns are aligned at their right: `verdict` has 7 characters.
        assert_eq!(lines[0].find("verdict").map(|at| at + 7), Some(lines[1].chars().count()));
        assert_eq!(lines[3], "random at 90%: INVALID: only 90.00% of the tasks were sent on time");
    }

    #[test]
    fn json_has_the_generators_keys_and_both_ends() {
        let json = serde_json::to_value([row("horus", 0.5, 480.0)]).unwrap();
        let row = &json[0];
        assert_eq!((&row["policy"], &row["load"]), (&"horus".into(), &0.5.into()));
        assert_eq!(row["response_us"]["p99"], 480.0);
        for key in [
            "offered_pps",
            "sent",
            "late",
            "adherence",
            "answered",
            "refused",
            "lost",
            "service_us",
            "valid",
            "manifest",
        ] {
            assert!(!row[key].is_null(), "{key}");
        }
        assert_eq!(row["leaf"]["replies"], 7);
        assert_eq!(row["rack"]["workers"], 32);
    }

    #[test]
    fn csv_rows_have_the_headers_columns() {
        let text = csv(&[row("horus", 0.5, 480.0), row("random", 0.5, 700.0)]).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let headers = reader.headers().unwrap().clone();
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        let value = |row: usize, key| {
            let at = headers.iter().position(|header| header == key).expect("a key");
            rows[row][at].to_owned()
        };
        assert_eq!(
            (value(1, "policy"), value(1, "response_us.p99")),
            ("random".into(), "700".into())
        );
        assert_eq!(value(0, "leaf.ns_per_packet"), "61.4");
        assert_eq!(value(0, "leaf.rx_packets"), "");
    }

    #[test]
    fn unbalanced_leaf_is_invalid() {
        let good = row("horus", 0.5, 480.0);
        // This account does not say that the ledger balances.
        let unbalanced =
            Row::new("horus".into(), 0.5, good.report, good.rack, serde_json::json!({}));
        assert!(!unbalanced.report.valid && notes(&[unbalanced])[0].contains("ledger"));
    }
}
