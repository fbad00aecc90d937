//! Figures of the papers, reproduced with the simulator: a plot, its numbers, and the commands for each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

mod catalogue;
mod cosched;
mod failures;
mod malcolm;
mod scatter;
mod shock;
mod tails;
mod winners;

use clap::Args;
use plotters::prelude::*;
use wedjat::state::files::ReportFile;

use crate::sim::{Row, SimArgs, rows};

/// Returns the line figures over one flag.
fn lines_over_a_flag() -> impl Iterator<Item = &'static Figure> {
    catalogue::FIGURES.iter().chain(malcolm::FIGURES)
}

/// Arguments of `figures`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Folder for the output
    #[arg(long, default_value = "figures")]
    pub out: PathBuf,
    /// Runs ten times as long
    #[arg(long)]
    pub full: bool,
    /// Only figures whose names start with this prefix
    #[arg(long, default_value = "")]
    pub only: String,
}

/// Flags of the simulator with their values.
type Keys = &'static [(&'static str, &'static str)];
/// Label and points of a series.
type Line = (&'static str, Vec<(f64, Row)>);

/// A line figure over one flag.
struct Figure {
    name: &'static str,
    title: &'static str,
    /// Flag of the x axis, with its values.
    x: (&'static str, &'static str),
    /// Quantity of the y axis.
    y: Quantity,
    /// Flags common to all series.
    setup: Keys,
    /// Label and additional flags of each series.
    series: &'static [(&'static str, Keys)],
}

/// Result of a run that a figure shows.
#[derive(Clone, Copy)]
enum Quantity {
    Mean,
    P99,
    Imbalance,
    Messages,
}

impl Quantity {
    fn of(self, row: &Row) -> f64 {
        match self {
            Self::Mean => row.mean,
            Self::P99 => row.p99,
            Self::Imbalance => row.imbalance_p99.unwrap_or(f64::NAN),
            Self::Messages => row.messages_per_task,
        }
    }

    fn label(self, unit: &str) -> String {
        match self {
            Self::Mean => format!("mean response, {unit}"),
            Self::P99 => format!("99th percentile of the response, {unit}"),
            Self::Imbalance => "longest queue relative to the mean, 99th percentile".to_owned(),
            Self::Messages => "messages per task".to_owned(),
        }
    }
}

/// Makes the selected figures.
///
/// # Errors
/// If no figure has the prefix, a run fails, or a file cannot be written.
pub fn make(arguments: &Arguments) -> Result<(), String> {
    let out = &arguments.out;
    let names: Vec<_> =
        lines_over_a_flag().map(|f| f.name).chain(OTHERS.iter().map(|(name, _)| *name)).collect();
    if !names.iter().any(|name| name.starts_with(&arguments.only)) {
        let only = &arguments.only;
        return Err(format!(
            "--only {only}: no figure has this prefix; the figures are {}",
            names.join(", ")
        ));
    }
    std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    for figure in lines_over_a_flag().filter(|f| f.name.starts_with(&arguments.only)) {
        log::info!("{}: {}", figure.name, figure.title);
        let lines = run(figure, arguments.full)?;
        write(out, figure.name, "csv", &table(figure, &lines))?;
        write(out, figure.name, "txt", &commands(figure, arguments.full))?;
        let plot = plot(figure, &lines).map_err(|error| format!("{}: {error}", figure.name))?;
        write(out, figure.name, "svg", &plot)?;
    }
    for (name, make) in OTHERS.iter().filter(|(name, _)| name.starts_with(&arguments.only)) {
        log::info!("{name}");
        make(out, arguments.full)?;
    }
    Ok(())
}

/// Makes one figure in a folder; with true, of long runs.
type Make = fn(&Path, bool) -> Result<(), String>;

/// Figures of other kinds.
const OTHERS: &[(&str, Make)] = &[
    ("lsq-4", tails::make),
    ("rosella-shock", shock::make),
    ("horus-18", failures::make),
    ("horus-19a", scatter::make),
    ("winners", winners::make),
    ("malcolm-7", malcolm::means),
    ("malcolm-11", malcolm::changes),
    ("malcolm-cost", malcolm::cost),
    ("asax-3a", cosched::makespans),
    ("asax-3b", cosched::runtimes),
];

/// Parses flags in the same way as those of a scenario.
pub(crate) fn arguments(keys: &[(&str, &str)]) -> Result<SimArgs, String> {
    let mut table = toml::Table::new();
    for (key, value) in keys {
        table.insert((*key).to_owned(), toml::Value::String((*value).to_owned()));
    }
    table.try_into().map_err(|error| format!("{error}"))
}

/// Returns the command for a figure whose numbers no single run of the simulator prints.
fn again(name: &str, full: bool) -> String {
    format!("wedjat-testbed figures --only {name}{}\n", if full { " --full" } else { "" })
}

/// Returns the simulator command for `keys`.
fn command(keys: &[(&str, &str)]) -> String {
    let mut text = "wedjat-testbed sim".to_owned();
    for (key, value) in keys {
        let _ = write!(text, " --{key} '{value}'");
    }
    text
}

/// Writes one file of a figure.
fn write(out: &Path, name: &str, ending: &str, text: &str) -> Result<(), String> {
    let path = out.join(format!("{name}.{ending}"));
    ReportFile::new("--out", &path)?.write(text)
}

/// Returns the flags of one series.
fn keys(figure: &Figure, series: Keys, full: bool) -> Vec<(&'static str, &'static str)> {
    let mut keys = figure.setup.to_vec();
    keys.extend(series);
    keys.extend(length(&keys, full));
    keys.push(figure.x);
    keys
}

/// Returns the flags for the length and the number of runs. Learning policies run for some thousand beats
/// before the measurement.
fn length(keys: &[(&str, &str)], full: bool) -> Vec<(&'static str, &'static str)> {
    let nodes = keys.contains(&("model", "nodes"));
    let learns = keys.iter().any(|(key, value)| *key == "policy" && value.starts_with("malcolm"));
    match (nodes && learns, keys.contains(&("model", "slots")), full) {
        (true, _, false) => vec![("seconds", "4"), ("measure", "2")],
        (true, _, true) => vec![("seconds", "30"), ("measure", "10"), ("seeds", "3")],
        (_, true, false) => vec![("slots", "10000"), ("seeds", "2")],
        (_, true, true) => vec![("slots", "100000"), ("seeds", "2")],
        (_, _, false) => vec![("tasks", "300000"), ("seeds", "2")],
        (_, _, true) => vec![("tasks", "3000000"), ("seeds", "2")],
    }
}

/// Runs every series of a figure.
fn run(figure: &Figure, full: bool) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for &(label, series) in figure.series {
        let rows = rows(&arguments(&keys(figure, series, full))?)?;
        lines.push((label, figure.x.1.split(',').map(number).zip(rows).collect()));
    }
    Ok(lines)
}

/// Parses the number at the front of `5us` or `0.9`.
fn number(text: &str) -> f64 {
    text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap_or(f64::NAN)
}

/// Returns the title and the simulator command of each series.
fn commands(figure: &Figure, full: bool) -> String {
    let mut text = format!("{}\n", figure.title);
    for &(_, series) in figure.series {
        let _ = writeln!(text, "{}", command(&keys(figure, series, full)));
    }
    text
}

/// Formats all points as CSV.
fn table(figure: &Figure, lines: &[Line]) -> String {
    let mut text = format!(
        "series,{},mean,p50,p99,p999,mean_ci95,messages_per_task,imbalance_p99,lost,unstable,unit\n",
        figure.x.0
    );
    for (label, points) in lines {
        for (x, row) in points {
            let _ = writeln!(
                text,
                "\"{label}\",{x},{},{},{},{},{},{},{},{},{},{}",
                row.mean,
                row.p50,
                row.p99,
                row.p999,
                row.mean_ci95,
                row.messages_per_task,
                row.imbalance_p99.map_or(String::new(), |value| value.to_string()),
                row.lost,
                row.unstable,
                row.unit
            );
        }
    }
    text
}

/// Plots lines over x. Unstable points have no value and are left out.
fn plot(figure: &Figure, lines: &[Line]) -> Result<String, String> {
    let stable = |points: &[(f64, Row)]| -> Vec<(f64, f64)> {
        let stable = points.iter().filter(|(_, row)| !row.unstable);
        stable.map(|(x, row)| (*x, figure.y.of(row))).collect()
    };
    let unit = lines.first().and_then(|(_, points)| points.first()).map_or("", |(_, r)| r.unit);
    let lines: Vec<_> =
        lines.iter().map(|(label, points)| ((*label).to_owned(), stable(points))).collect();
    draw(figure.title, (figure.x.0, &figure.y.label(unit)), &lines)
}

/// Draws labelled lines over a linear x axis and a logarithmic y axis. Leaves out points without a logarithm.
pub(crate) fn draw(
    title: &str,
    (x_label, y_label): (&str, &str),
    lines: &[(String, Vec<(f64, f64)>)],
) -> Result<String, String> {
    let drawable = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().copied().filter(|(_, y)| y.is_finite() && *y > 0.0).collect()
    };
    let all: Vec<_> = lines.iter().flat_map(|(_, points)| drawable(points)).collect();
    let range = |coordinate: fn(&(f64, f64)) -> f64| {
        let values = all.iter().map(coordinate);
        values.fold((f64::MAX, f64::MIN), |(min, max), v| (min.min(v), max.max(v)))
    };
    let ((x_min, x_max), (y_min, y_max)) = (range(|p| p.0), range(|p| p.1));
    let mut text = String::new();
    {
        let fail = |error: DrawingAreaErrorKind<std::io::Error>| error.to_string();
        let root = SVGBackend::with_string(&mut text, (900, 560)).into_drawing_area();
        root.fill(&WHITE).map_err(fail)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                x_min..x_max.max(x_min + 1e-9),
                (0.9 * y_min..1.1 * y_max).log_scale(),
            )
            .map_err(fail)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(x_label).y_desc(y_label).draw().map_err(fail)?;
        for (index, (label, points)) in lines.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let series = LineSeries::new(drawable(points), color.stroke_width(2)).point_size(3);
            let line = chart.draw_series(series).map_err(fail)?;
            line.label(label).legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
            });
        }
        let mut legend = chart.configure_series_labels();
        // Puts the legend into an empty corner: falling lines leave the lower left free.
        let falls = lines
            .iter()
            .any(|(_, points)| matches!(points[..], [first, .., last] if last.1 < 0.1 * first.1));
        let place =
            if falls { SeriesLabelPosition::LowerLeft } else { SeriesLabelPosition::UpperLeft };
        legend.position(place).border_style(BLACK.mix(0.3));
        legend.background_style(WHITE.mix(0.8)).draw().map_err(fail)?;
        root.present().map_err(fail)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::plan;

    /// Splits a printed command into its flags.
    fn flags(command: &str) -> Vec<(&str, &str)> {
        let flags = command.strip_prefix("wedjat-testbed sim").unwrap().split(" --").skip(1);
        flags
            .map(|flag| flag.split_once(' ').unwrap())
            .map(|(k, v)| (k, v.trim_matches('\'')))
            .collect()
    }

    // promise: measurement.4
    #[test]
    fn figure_commands_reproduce_the_points() {
        for figure in lines_over_a_flag() {
            let points: Vec<_> = figure.x.1.split(',').map(number).collect();
            assert!(points.iter().all(|x| !x.is_nan()));
            let text = commands(figure, false);
            assert_eq!(text.lines().count(), 1 + figure.series.len());
            for command in text.lines().skip(1) {
                let cells = plan::cells(&arguments(&flags(command)).unwrap());
                assert_eq!(cells.unwrap().len(), points.len(), "{command}");
            }
        }
    }

    // promise: measurement.4
    #[test]
    fn unknown_figure_is_refused() {
        let out = std::env::temp_dir();
        let error = make(&Arguments { out, full: false, only: "lsq-9".to_owned() }).unwrap_err();
        assert!(error.contains("lsq-9") && error.contains("horus-10a"), "{error}");
    }
}
