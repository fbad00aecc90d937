//! Figures of the papers, reproduced with the simulator: a plot, its numbers, and the commands for each. Most
//! show a quantity over the values of one flag of `wedjat-testbed sim`, with a series of points for each
//! policy. The command is `wedjat-testbed figures`. A row is the simulator's result for one combination of flags.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Lists series of the policies with these names, which are also their labels.
macro_rules! policies {
    ($($name:literal)*) => { &[$(($name, &[("policy", $name)])),*] };
}

mod catalogue;
mod cosched;
mod failures;
mod malcolm;
mod scatter;
mod shock;
mod tails;
mod winners;

use clap::Args;
use wedjat::state::files::ReportFile;
use wedjat_pktgen::results::chart::{Axis, Chart, Corner, Line, Point};
use wedjat_pktgen::results::{page, page_file};

use crate::sim::{Row, SimArgs, rows};

/// Returns the figures that show a quantity over the values of one flag, as lines.
fn lines_over_a_flag() -> impl Iterator<Item = &'static Figure> {
    catalogue::FIGURES.iter().chain(malcolm::FIGURES)
}

/// Arguments of `figures`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Folder for the output
    #[arg(long, default_value = "figures")]
    pub out: PathBuf,
    /// Also write all figures as one HTML page to this file, or as index.html to this folder
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Runs ten times as long
    #[arg(long)]
    pub full: bool,
    /// Only figures whose names start with this prefix
    #[arg(long, default_value = "")]
    pub only: String,
}

/// Size of a figure in pixels.
const SIZE: (u32, u32) = (900, 560);

/// Folder of the figures, and the files written there.
struct Output {
    folder: PathBuf,
    /// Name, ending and text of each file.
    files: RefCell<Vec<(String, String, String)>>,
}

impl Output {
    /// Starts without files in an existing folder.
    fn new(folder: PathBuf) -> Self {
        Self { folder, files: RefCell::default() }
    }

    /// Writes one file of the figure `name`, and keeps its text for the page. `ending` is `svg`, `csv` or `txt`.
    fn write(&self, name: &str, ending: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(format!("{name}.{ending}"));
        ReportFile::new("--out", &path)?.write(text)?;
        self.files.borrow_mut().push((name.to_owned(), ending.to_owned(), text.to_owned()));
        Ok(())
    }

    /// Builds a page of all figures with their commands.
    fn page(&self) -> String {
        let part = |(name, ending, text): &(String, String, String)| match ending.as_str() {
            "svg" => format!("<h2>{name}</h2>\n<figure>{text}</figure>\n"),
            "txt" => format!("<pre>{}</pre>\n", page::escape(text)),
            _ => String::new(),
        };
        let files = self.files.borrow();
        let mut files: Vec<_> = files.iter().collect();
        // The commands of a figure stand below it, even if they were written first.
        for figure in files.chunk_by_mut(|a, b| a.0 == b.0) {
            figure.sort_by_key(|(_, ending, _)| ending != "svg");
        }
        let parts: String = files.into_iter().map(part).collect();
        page::html("wedjat figures", "wedjat: figures of the papers", &parts)
    }
}

/// Flags of the simulator with their values.
type Keys = &'static [(&'static str, &'static str)];
/// Label and points of a series.
type Series = (&'static str, Vec<(f64, Row)>);

/// A line figure over one flag.
struct Figure {
    /// Name of the figure and of its files.
    name: &'static str,
    /// Title of the plot.
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
    /// Mean response time.
    Mean,
    /// 99th percentile of the response time.
    P99,
    /// Longest queue divided by the mean queue, 99th percentile over time.
    Imbalance,
    /// Messages per task.
    Messages,
}

impl Quantity {
    /// Returns the value of a row.
    fn of(self, row: &Row) -> f64 {
        match self {
            Self::Mean => row.mean,
            Self::P99 => row.p99,
            Self::Imbalance => row.imbalance_p99.unwrap_or(f64::NAN),
            Self::Messages => row.messages_per_task,
        }
    }

    /// Returns the point of a row, with its confidence interval if the row has one.
    fn point(self, x: f64, row: &Row) -> Point {
        let half = match self {
            Self::Mean => row.mean_ci95,
            Self::P99 => row.p99_ci95,
            Self::Imbalance | Self::Messages => f64::NAN,
        };
        Point { half, ..Point::new(x, self.of(row)) }
    }

    /// Returns the label of the y axis. `unit` is that of times.
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
    let names: Vec<_> =
        lines_over_a_flag().map(|f| f.name).chain(OTHERS.iter().map(|(name, _)| *name)).collect();
    if !names.iter().any(|name| name.starts_with(&arguments.only)) {
        let only = &arguments.only;
        return Err(format!(
            "--only {only}: no figure has this prefix; the figures are {}",
            names.join(", ")
        ));
    }
    let folder = arguments.out.clone();
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let html = arguments.html.as_deref().map(page_file).transpose()?;
    let out = &Output::new(folder);
    for figure in lines_over_a_flag().filter(|f| f.name.starts_with(&arguments.only)) {
        log::info!("{}: {}", figure.name, figure.title);
        let lines = run(figure, arguments.full)?;
        out.write(figure.name, "csv", &table(figure, &lines))?;
        out.write(figure.name, "txt", &commands(figure, arguments.full))?;
        let plot = plot(figure, &lines).map_err(|error| format!("{}: {error}", figure.name))?;
        out.write(figure.name, "svg", &plot)?;
    }
    for (name, make) in OTHERS.iter().filter(|(name, _)| name.starts_with(&arguments.only)) {
        log::info!("{name}");
        make(out, arguments.full)?;
    }
    html.map_or(Ok(()), |path| ReportFile::new("--html", &path)?.write(out.page()))
}

/// Function that makes one figure. The second argument is true for long runs (`--full`).
type Make = fn(&Output, bool) -> Result<(), String>;

/// Names of figures that are no lines over a flag, each with the function that makes it.
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
fn command_of_figure(name: &str, full: bool) -> String {
    format!("wedjat-testbed figures --only {name}{}\n", if full { " --full" } else { "" })
}

/// Returns the simulator command with the flags `keys`.
fn command(keys: &[(&str, &str)]) -> String {
    let mut text = "wedjat-testbed sim".to_owned();
    for (key, value) in keys {
        let _ = write!(text, " --{key} '{value}'");
    }
    text
}

/// Returns the flags of one series: those of the figure, of the series, of the run's length, and of the x
/// axis. The last one has a list of values, so that one command gives all points of the series.
fn keys(figure: &Figure, series: Keys, full: bool) -> Vec<(&'static str, &'static str)> {
    let mut keys = figure.setup.to_vec();
    keys.extend(series);
    keys.extend(length(&keys, full));
    keys.push(figure.x);
    keys
}

/// Returns the flags for the length and the number of runs, ten times as long with `full`. Learning policies
/// (of the model `nodes`) run for thousands of beats, which are steps of learning, before the measurement;
/// with `full`, 7.5 times as long and with three seeds.
/// The model `slots` counts time in slots.
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
fn run(figure: &Figure, full: bool) -> Result<Vec<Series>, String> {
    let mut lines = Vec::new();
    for &(label, series) in figure.series {
        let rows = rows(&arguments(&keys(figure, series, full))?)?;
        lines.push((label, figure.x.1.split(',').map(number).zip(rows).collect()));
    }
    Ok(lines)
}

/// Parses the number at the front of `5us` or `0.9`; NaN for other text.
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
fn table(figure: &Figure, lines: &[Series]) -> String {
    let mut text = format!(
        "series,{},mean,p50,p99,p999,mean_ci95,p99_ci95,messages_per_task,imbalance_p99,lost,unstable,unit\n",
        figure.x.0
    );
    for (label, points) in lines {
        for (x, row) in points {
            let _ = writeln!(
                text,
                "\"{label}\",{x},{},{},{},{},{},{},{},{},{},{},{}",
                row.mean,
                row.p50,
                row.p99,
                row.p999,
                row.mean_ci95,
                row.p99_ci95,
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

/// Plots lines over x. Leaves out unstable points: their queues grew or overflowed, so their response times depend on
/// the length of the run.
fn plot(figure: &Figure, lines: &[Series]) -> Result<String, String> {
    let stable = |points: &[(f64, Row)]| -> Vec<Point> {
        let stable = points.iter().filter(|(_, row)| !row.unstable);
        stable.map(|(x, row)| figure.y.point(*x, row)).collect()
    };
    let unit = lines.first().and_then(|(_, points)| points.first()).map_or("", |(_, r)| r.unit);
    let lines = lines.iter().map(|(label, points)| ((*label).to_owned(), stable(points)));
    draw_points(figure.title, (figure.x.0, &figure.y.label(unit)), lines.collect())
}

/// Draws labelled lines over a linear x axis and a logarithmic y axis. Leaves out points without a logarithm.
pub(crate) fn draw(
    title: &str,
    axes: (&str, &str),
    lines: &[(String, Vec<(f64, f64)>)],
) -> Result<String, String> {
    let points = |points: &[(f64, f64)]| points.iter().map(|&(x, y)| Point::new(x, y)).collect();
    let lines = lines.iter().map(|(label, line)| (label.clone(), points(line)));
    draw_points(title, axes, lines.collect())
}

/// Same as [`draw`], for points with confidence intervals.
fn draw_points(
    title: &str,
    (x_label, y_label): (&str, &str),
    lines: Vec<(String, Vec<Point>)>,
) -> Result<String, String> {
    // Puts the legend into an empty corner. A line that falls to less than a tenth leaves the lower left
    // free.
    let falls = lines
        .iter()
        .any(|(_, points)| matches!(points[..], [first, .., last] if last.at.1 < 0.1 * first.at.1));
    let lines = lines.into_iter().enumerate();
    let line = |(index, (label, points))| Line::new(label, index, points).with_circles();
    let chart = Chart {
        title,
        legend: if falls { Corner::LowerLeft } else { Corner::UpperLeft },
        ..Chart::new(Axis::linear(x_label), Axis::log(y_label), lines.map(line).collect())
    };
    chart.svg(SIZE).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::plan;

    /// Splits a printed command into its flags and their values.
    fn flags(command: &str) -> Vec<(&str, &str)> {
        let flags = command.strip_prefix("wedjat-testbed sim").unwrap().split(" --").skip(1);
        flags
            .map(|flag| flag.split_once(' ').unwrap())
            .map(|(k, v)| (k, v.trim_matches('\'')))
            .collect()
    }

    #[test]
    fn page_shows_commands_below_their_figure() {
        let folder = tempfile::tempdir().unwrap();
        let out = Output::new(folder.path().to_owned());
        for (ending, text) in [("csv", "1"), ("txt", "the command"), ("svg", "<svg></svg>")] {
            out.write("one", ending, text).unwrap();
        }
        let page = out.page();
        assert!(page.find("<svg>").unwrap() < page.find("the command").unwrap(), "{page}");
    }

    // promise: measurement.4
    #[test]
    fn figure_commands_plan_a_run_per_point() {
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
        let error = make(&Arguments { out, html: None, full: false, only: "lsq-9".to_owned() })
            .unwrap_err();
        assert!(error.contains("lsq-9") && error.contains("horus-10a"), "{error}");
    }
}
