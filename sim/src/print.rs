//! Output of the simulator's rows as text, JSON lines and CSV. Further columns beside those of [`Row`] hold the flags
//! that a sweep varies, and the 99th percentile of each class of tasks.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::iter::once;

use serde::Serialize;
use serde::ser::SerializeMap as _;

use super::Row;

/// Prints rows in the format `json` or `csv`, in all other cases as text. A closed pipe is not an error.
///
/// # Errors
/// If the output cannot be written.
pub fn print(rows: &[Row], format: &str, out: &mut impl Write) -> io::Result<()> {
    let printed = match format {
        "json" => json(rows, out),
        "csv" => csv(rows, out),
        _ => table(rows, out),
    };
    match printed.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// A row with further keys: the flags of its sweep, and the 99th percentile of each class.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: &'a Row,
    #[serde(flatten)]
    more: FurtherKeys<'a>,
}

/// Further keys of a row, serialized as a map.
struct FurtherKeys<'a>(&'a Row);

/// Returns the flags of a row's sweep with their values, without `tasks`, which is a key of the row itself.
fn swept_flags(row: &Row) -> impl Iterator<Item = &(&'static str, String)> {
    row.swept.iter().filter(|(flag, _)| *flag != "tasks")
}

/// Returns the key and the value of each class's 99th percentile.
fn class_keys(row: &Row) -> impl Iterator<Item = (String, f64)> {
    row.class_p99.iter().map(|(class, p99)| (format!("class_{class}_p99"), *p99))
}

impl Serialize for FurtherKeys<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (flag, value) in swept_flags(self.0) {
            map.serialize_entry(&key(flag), value)?;
        }
        for (key, p99) in class_keys(self.0) {
            map.serialize_entry(&key, &p99)?;
        }
        map.end()
    }
}

/// Returns the key of a flag: its name with underscores.
fn key(flag: &str) -> String {
    flag.replace('-', "_")
}

/// Writes one JSON object per row.
fn json(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, &Line { row, more: FurtherKeys(row) })?;
        writeln!(out)?;
    }
    Ok(())
}

/// Writes a header and one line per row: the row's own columns, then those of the sweep, then those of the classes.
fn csv(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let mut plain = csv::Writer::from_writer(Vec::new());
    for row in rows {
        plain.serialize(row).map_err(io::Error::other)?;
    }
    let plain = plain.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    // The second pass appends the columns of the sweep and of the classes to each line. All rows of a sweep have the
    // same flags. A class without tasks in a row has an empty field.
    let classes = classes(rows);
    let class_names = classes.iter().map(|class| format!("class_{class}_p99"));
    let names = rows.first().map(|row| {
        swept_flags(row).map(|(flag, _)| key(flag)).chain(class_names).collect::<Vec<_>>()
    });
    let values = rows.iter().map(|row| {
        let p99s = classes
            .iter()
            .map(|class| of_class(row, *class).map_or(String::new(), |p99| p99.to_string()));
        swept_flags(row).map(|(_, value)| value.clone()).chain(p99s).collect()
    });
    let mut lines = csv::ReaderBuilder::new().has_headers(false).from_reader(&plain[..]);
    let mut text = Vec::new();
    let mut csv = csv::Writer::from_writer(&mut text);
    for (line, extra) in lines.records().zip(once(names.unwrap_or_default()).chain(values)) {
        let line = line.map_err(io::Error::other)?;
        let all = line.iter().chain(extra.iter().map(String::as_str));
        csv.write_record(all).map_err(io::Error::other)?;
    }
    csv.flush()?;
    drop(csv);
    out.write_all(&text)
}

/// Returns the classes of all rows, in order.
fn classes(rows: &[Row]) -> BTreeSet<usize> {
    rows.iter().flat_map(|row| &row.class_p99).map(|(class, _)| *class).collect()
}

/// Returns the 99th percentile of a class, if it has tasks.
fn of_class(row: &Row, class: usize) -> Option<f64> {
    row.class_p99.iter().find(|(found, _)| *found == class).map(|(_, p99)| *p99)
}

/// Writes an aligned table with confidence intervals. The last line names the unit of times.
fn table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let width = rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(6);
    let widths = sweep_widths(rows);
    write!(out, "{:width$}  {:>5}", "policy", "load")?;
    for (flag, width) in &widths {
        write!(out, " {flag:>width$}")?;
    }
    write!(
        out,
        " {:>9} {:>16} {:>9} {:>9} {:>16} {:>9} {:>8} {:>7}",
        "tasks", "mean", "p50", "p90", "p99", "p999", "msg/task", "lost",
    )?;
    let classes = classes(rows);
    if !classes.is_empty() {
        write!(out, " {:>9}", "slowdown")?;
    }
    for class in &classes {
        write!(out, " {:>9}", format!("p99 of {class}"))?;
    }
    writeln!(out, "{}", if rows.iter().any(|row| row.digest.is_some()) { "  digest" } else { "" })?;
    for row in rows {
        // `ci`: half the width of the interval; NaN if unknown.
        let with_interval = |value: f64, ci: f64| {
            if ci.is_finite() { format!("{value:.4} ±{ci:.2}") } else { format!("{value:.4}") }
        };
        write!(out, "{:width$}  {:>5}", row.policy, row.load)?;
        for ((_, value), (_, width)) in swept_flags(row).zip(&widths) {
            write!(out, " {value:>width$}")?;
        }
        write!(
            out,
            " {:>9} {:>16} {:>9.3} {:>9.3} {:>16} {:>9.3} {:>8.3} {:>7}",
            row.tasks,
            with_interval(row.mean, row.mean_ci95),
            row.p50,
            row.p90,
            with_interval(row.p99, row.p99_ci95),
            row.p999,
            row.messages_per_task,
            row.lost,
        )?;
        if let Some(slowdown) = row.slowdown_p999 {
            write!(out, " {slowdown:>9.2}")?;
        }
        for class in &classes {
            let p99 = of_class(row, *class).map_or(String::new(), |p99| format!("{p99:.3}"));
            write!(out, " {p99:>9}")?;
        }
        writeln!(
            out,
            "{}{}",
            row.digest.as_deref().map(|digest| format!("  {digest}")).unwrap_or_default(),
            if row.unstable {
                "  UNSTABLE: queues grew during the whole run or overflowed"
            } else {
                ""
            }
        )?;
    }
    if let Some(row) = rows.first() {
        writeln!(out, "times in {}", row.unit)?;
    }
    Ok(())
}

/// Returns the flags of a sweep with their column widths.
fn sweep_widths(rows: &[Row]) -> Vec<(&'static str, usize)> {
    let Some(first) = rows.first() else { return Vec::new() };
    let width = |index: usize, flag: &str| {
        let lengths =
            rows.iter().filter_map(|row| swept_flags(row).nth(index)).map(|(_, value)| value.len());
        lengths.chain([flag.len()]).max().unwrap_or(0)
    };
    swept_flags(first).enumerate().map(|(index, (flag, _))| (*flag, width(index, flag))).collect()
}
