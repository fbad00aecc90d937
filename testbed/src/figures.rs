//! The papers' figures, made again with the simulator: a plot, its numbers, and the commands beside them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use plotters::prelude::*;

use crate::sim::{Row, SimArgs, rows};

/// Arguments of `figures`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Folder to write to
    #[arg(long, default_value = "figures")]
    pub out: PathBuf,
    /// Runs ten times as long
    #[arg(long)]
    pub full: bool,
    /// Only figures whose names start so
    #[arg(long, default_value = "")]
    pub only: String,
}

type Keys = &'static [(&'static str, &'static str)];
/// A series: its label and its points.
type Line = (&'static str, Vec<(f64, Row)>);

/// One figure.
struct Figure {
    name: &'static str,
    title: &'static str,
    /// The flag along the x axis, and its values.
    x: (&'static str, &'static str),
    y: Quantity,
    /// What all series have in common.
    setup: Keys,
    /// Each series: its label, and what is its own.
    series: &'static [(&'static str, Keys)],
}

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
            Self::Imbalance => "longest over mean queue, 99th percentile".to_owned(),
            Self::Messages => "messages a task".to_owned(),
        }
    }
}

const LOADS: (&str, &str) = ("load", "0.1,0.3,0.5,0.6,0.7,0.8,0.85,0.9,0.95");
const SLOT_LOADS: (&str, &str) = ("load", "0.5,0.6,0.7,0.8,0.85,0.9,0.95,0.99");
const EXP: (&str, &str) = ("service", "exp(100us)");
const BIMODAL: (&str, &str) = ("service", "mix(0.5*normal(50us,5us), 0.5*normal(500us,50us))");
const TRIMODAL: (&str, &str) = (
    "service",
    "mix(0.333333333333*normal(50us,5us), 0.333333333333*normal(500us,50us), 0.333333333334*normal(5000us,500us))",
);
/// A pool of about the median size on whole servers: 15 racks of 32 workers under one spine.
const MEDIAN: (&str, &str) = ("racks", "32,32,32,32,32,32,32,32,32,32,32,32,32,32,32");

const ONE_RACK: &[(&str, Keys)] = &[
    ("horus", &[("policy", "horus")]),
    ("racksched", &[("policy", "racksched")]),
    ("jsq, no delay", &[("policy", "jsq"), ("hop", "0us")]),
    ("cfcfs", &[("policy", "cfcfs")]),
];
const RACKS: &[(&str, Keys)] = &[
    ("horus", &[("policy", "horus")]),
    ("horus, by the authors' simulator", &[("policy", "horus"), ("signals", "horus-sim")]),
    ("rs-lb", &[("policy", "rs-lb")]),
    ("rs-h", &[("policy", "rs-h")]),
];
const LSQ: &[(&str, Keys)] = &[
    ("jsq", &[("policy", "jsq")]),
    ("jsq(2)", &[("policy", "jsq(2)")]),
    ("jiq", &[("policy", "jiq")]),
    ("lsq-sample(2)", &[("policy", "lsq-sample(2)")]),
    ("lsq-update(.2)", &[("policy", "lsq-update(.2)")]),
    ("lsq-smart(.2)", &[("policy", "lsq-smart(.2)")]),
];
const EVERYBODY: &[(&str, Keys)] = &[
    ("random", &[("policy", "random")]),
    ("horus", &[("policy", "horus")]),
    ("racksched", &[("policy", "racksched")]),
    ("jsq(2)", &[("policy", "jsq(2)")]),
    ("jsq", &[("policy", "jsq")]),
    ("sed", &[("policy", "sed")]),
    ("jiq", &[("policy", "jiq")]),
    ("lsq-sample(2)", &[("policy", "lsq-sample(2)")]),
    ("lsq-update(.2)", &[("policy", "lsq-update(.2)")]),
    ("lsq-smart(.2)", &[("policy", "lsq-smart(.2)")]),
    ("hlsq-smart(.2)", &[("policy", "hlsq-smart(.2)")]),
    ("ppot", &[("policy", "ppot")]),
    ("ppot-ll", &[("policy", "ppot-ll")]),
    ("scd", &[("policy", "scd")]),
    ("cfcfs", &[("policy", "cfcfs")]),
];

const fn figure(
    name: &'static str,
    title: &'static str,
    x: (&'static str, &'static str),
    y: Quantity,
    setup: Keys,
    series: &'static [(&'static str, Keys)],
) -> Figure {
    Figure { name, title, x, y, setup, series }
}

use Quantity::{Imbalance, Mean, Messages, P99};

const FIGURES: &[Figure] = &[
    figure("horus-10a", "Horus Fig. 10a: one rack, exp(100us)", LOADS, P99, &[EXP], ONE_RACK),
    figure("horus-10b", "Horus Fig. 10b: one rack, bimodal", LOADS, P99, &[BIMODAL], ONE_RACK),
    figure("horus-10c", "Horus Fig. 10c: one rack, trimodal", LOADS, P99, &[TRIMODAL], ONE_RACK),
    figure("horus-11a", "Horus Fig. 11a: 15 racks, exp(100us)", LOADS, P99, &[MEDIAN, EXP], RACKS),
    figure("horus-11b", "Horus Fig. 11b: 15 racks, bimodal", LOADS, P99, &[MEDIAN, BIMODAL], RACKS),
    figure(
        "horus-11c",
        "Horus Fig. 11c: 15 racks, trimodal",
        LOADS,
        P99,
        &[MEDIAN, TRIMODAL],
        RACKS,
    ),
    figure(
        "horus-12a",
        "Horus Fig. 12a: imbalance of queues",
        LOADS,
        Imbalance,
        &[MEDIAN, EXP],
        RACKS,
    ),
    figure(
        "horus-12b",
        "Horus Fig. 12b: network delay, load 0.8",
        ("hop", "0us,1us,2us,5us,10us,20us,50us,100us"),
        P99,
        &[MEDIAN, EXP, ("load", "0.8")],
        RACKS,
    ),
    figure(
        "horus-12c",
        "Horus Fig. 12c: packet loss, load 0.8",
        ("loss", "0,0.0001,0.001,0.005,0.01"),
        P99,
        &[MEDIAN, EXP, ("load", "0.8")],
        RACKS,
    ),
    figure(
        "horus-17",
        "Horus Fig. 17: parts of the policy, one rack, bimodal",
        LOADS,
        P99,
        &[BIMODAL],
        &[
            ("both parts (horus)", &[("policy", "horus")]),
            ("idle members, else random (jiq)", &[("policy", "jiq")]),
            ("power of two, delayed (racksched)", &[("policy", "racksched")]),
            ("random", &[("policy", "random")]),
        ],
    ),
    figure(
        "horus-19b",
        "Horus Fig. 19b: messages under packet loss, load 0.8",
        ("loss", "0,0.0001,0.001,0.005,0.01"),
        Messages,
        &[MEDIAN, EXP, ("load", "0.8")],
        RACKS,
    ),
    figure("lsq-2", "LSQ: equal servers", SLOT_LOADS, Mean, &[("model", "slots")], LSQ),
    figure(
        "lsq-3",
        "LSQ: half the servers twice as fast",
        SLOT_LOADS,
        Mean,
        &[("model", "slots"), ("speeds", "50x1,50x2")],
        LSQ,
    ),
    figure(
        "lsq-4",
        "LSQ: half the servers ten times as fast",
        SLOT_LOADS,
        Mean,
        &[("model", "slots"), ("speeds", "50x1,50x10")],
        LSQ,
    ),
    figure(
        "rosella-stability",
        "Rosella: ten workers, one six times as fast, 14 tasks for a capacity of 15",
        ("load", "0.5,0.7,0.9,0.9333"),
        Mean,
        &[("model", "ct"), ("servers", "10"), ("dispatchers", "1"), ("speeds", "1x6,9x1")],
        &[
            ("random", &[("policy", "random")]),
            ("jsq(2)", &[("policy", "jsq(2)")]),
            ("ppot", &[("policy", "ppot")]),
        ],
    ),
    figure(
        "all-delay-1-1",
        "Everybody: equal servers, 10 dispatchers, load 0.9, by delay",
        ("delay", "0us,1us,5us,20us,100us"),
        P99,
        &[("model", "ct"), ("load", "0.9")],
        EVERYBODY,
    ),
    figure(
        "all-delay-1-10",
        "Everybody: speeds 1:10, 10 dispatchers, load 0.9, by delay",
        ("delay", "0us,1us,5us,20us,100us"),
        P99,
        &[("model", "ct"), ("speeds", "50x1,50x10"), ("load", "0.9")],
        EVERYBODY,
    ),
    figure(
        "all-load-1-2",
        "Everybody: speeds 1:2, 10 dispatchers, 5 us, by load",
        ("load", "0.5,0.7,0.8,0.9,0.95,0.99"),
        P99,
        &[("model", "ct"), ("speeds", "50x1,50x2"), ("delay", "5us")],
        EVERYBODY,
    ),
    figure(
        "all-dispatchers-1-1",
        "Everybody: equal servers, 5 us, load 0.9, by dispatchers",
        ("dispatchers", "1,2,4,8,16,32"),
        P99,
        &[("model", "ct"), ("delay", "5us"), ("load", "0.9")],
        EVERYBODY,
    ),
];

/// Makes the figures.
///
/// # Errors
/// When a run could not be made or a file not be written.
pub fn make(arguments: &Arguments) -> Result<(), String> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    for figure in FIGURES.iter().filter(|figure| figure.name.starts_with(&arguments.only)) {
        log::info!("{}: {}", figure.name, figure.title);
        let lines = run(figure, arguments.full)?;
        write(out, figure.name, "csv", &table(figure, &lines))?;
        write(out, figure.name, "txt", &commands(figure, arguments.full))?;
        let plot = plot(figure, &lines).map_err(|error| format!("{}: {error}", figure.name))?;
        write(out, figure.name, "svg", &plot)?;
    }
    Ok(())
}

fn write(out: &Path, name: &str, ending: &str, text: &str) -> Result<(), String> {
    let path = out.join(format!("{name}.{ending}"));
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The keys of one series; x is a list.
fn keys(figure: &Figure, own: Keys, full: bool) -> Vec<(&'static str, &'static str)> {
    let mut keys = figure.setup.to_vec();
    keys.extend(own);
    let slots = figure.setup.contains(&("model", "slots"));
    keys.push(match (slots, full) {
        (true, false) => ("slots", "10000"),
        (true, true) => ("slots", "100000"),
        (false, false) => ("tasks", "300000"),
        (false, true) => ("tasks", "3000000"),
    });
    keys
}

/// Every series.
fn run(figure: &Figure, full: bool) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for &(label, own) in figure.series {
        let mut points = Vec::new();
        for x in figure.x.1.split(',') {
            let mut table = toml::Table::new();
            let all = keys(figure, own, full);
            for (key, value) in all.into_iter().chain([(figure.x.0, x), ("seeds", "2")]) {
                table.insert(key.to_owned(), toml::Value::String(value.to_owned()));
            }
            let args: SimArgs = table.try_into().map_err(|error| format!("{error}"))?;
            let row = rows(&args)?.pop().ok_or("no row")?;
            points.push((number(x), row));
        }
        lines.push((label, points));
    }
    Ok(lines)
}

/// The number at the front of `5us` or `0.9`.
fn number(text: &str) -> f64 {
    text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap_or(f64::NAN)
}

fn commands(figure: &Figure, full: bool) -> String {
    let mut text = format!("{}\n", figure.title);
    for &(_, own) in figure.series {
        text.push_str("wedjat-testbed sim --seeds 2");
        for (key, value) in keys(figure, own, full) {
            let _ = write!(text, " --{key} '{value}'");
        }
        let _ = writeln!(text, " --{} X    for X in {}", figure.x.0, figure.x.1);
    }
    text
}

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

/// Lines over x. Unstable points are left out: they have no value.
fn plot(figure: &Figure, lines: &[Line]) -> Result<String, String> {
    let stable = |points: &[(f64, Row)]| -> Vec<(f64, f64)> {
        let stable = points.iter().filter(|(_, row)| !row.unstable);
        stable
            .map(|(x, row)| (*x, figure.y.of(row)))
            .filter(|(_, y)| y.is_finite() && *y > 0.0)
            .collect()
    };
    let all: Vec<_> = lines.iter().flat_map(|(_, points)| stable(points)).collect();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = all.iter().map(of);
        values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)))
    };
    let ((x_least, x_most), (y_least, y_most)) = (range(|p| p.0), range(|p| p.1));
    let unit = lines.first().and_then(|(_, points)| points.first()).map_or("", |(_, r)| r.unit);
    let mut text = String::new();
    {
        let fail = |error: DrawingAreaErrorKind<std::io::Error>| error.to_string();
        let root = SVGBackend::with_string(&mut text, (900, 560)).into_drawing_area();
        root.fill(&WHITE).map_err(fail)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(figure.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                x_least..x_most.max(x_least + 1e-9),
                (0.9 * y_least..1.1 * y_most).log_scale(),
            )
            .map_err(fail)?;
        let y_label = figure.y.label(unit);
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(figure.x.0).y_desc(y_label).draw().map_err(fail)?;
        for (place, (label, points)) in lines.iter().enumerate() {
            let color = Palette99::pick(place).to_rgba();
            let series = LineSeries::new(stable(points), color.stroke_width(2)).point_size(3);
            let line = chart.draw_series(series).map_err(fail)?;
            line.label(*label).legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
            });
        }
        let mut legend = chart.configure_series_labels();
        legend.position(SeriesLabelPosition::UpperLeft).border_style(BLACK.mix(0.3));
        legend.background_style(WHITE.mix(0.8)).draw().map_err(fail)?;
        root.present().map_err(fail)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::plan;

    #[test]
    fn every_figure_has_sound_flags() {
        for figure in FIGURES {
            for &(label, own) in figure.series {
                for x in figure.x.1.split(',') {
                    let mut table = toml::Table::new();
                    for (key, value) in
                        keys(figure, own, false).into_iter().chain([(figure.x.0, x)])
                    {
                        table.insert(key.to_owned(), toml::Value::String(value.to_owned()));
                    }
                    let args: SimArgs = table.try_into().unwrap();
                    let cells = plan::cells(&args);
                    assert!(cells.is_ok(), "{} {label} {x}: {cells:?}", figure.name);
                    assert!(!number(x).is_nan());
                }
            }
        }
    }
}
