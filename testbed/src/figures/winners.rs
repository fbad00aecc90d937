//! Comparison that no paper has: all policies by speeds, delay, dispatchers and load, with the best policy of
//! each cell.

use std::fmt::Write as _;
use std::path::Path;

use plotters::prelude::*;
use wedjat::policy::{CATALOGUE, Runs};

use super::{arguments, command, write};
use crate::sim::{Row, rows};

const SPEEDS: [(&str, &str); 3] = [("1-1", "100x1"), ("1-2", "50x1,50x2"), ("1-10", "50x1,50x10")];
const DELAYS: [&str; 5] = ["0us", "5us", "20us", "50us", "100us"];
const DISPATCHERS: [&str; 3] = ["1", "8", "32"];
const LOADS: &str = "0.5,0.7,0.9,0.95,0.99";

/// Cell of the grid: delay, dispatchers, and one row for each policy and load.
type Cell = (&'static str, &'static str, Vec<Row>);

/// Makes the figure: all rows, the winners, and a map of the winners for each ratio of speeds.
pub(super) fn make(out: &Path, full: bool) -> Result<(), String> {
    let policies = policies();
    let tasks = if full { "400000" } else { "40000" };
    let mut all =
        "speeds,delay,dispatchers,load,policy,mean,p99,mean_ci95,messages_per_task,unstable\n"
            .to_owned();
    let mut winners =
        "speeds,delay,dispatchers,load,by,first,first_value,second,second_value\n".to_owned();
    let mut commands = String::new();
    for (name, speeds) in SPEEDS {
        let mut grid = Vec::new();
        for delay in DELAYS {
            for dispatchers in DISPATCHERS {
                let keys = [
                    ("model", "ct"),
                    ("speeds", speeds),
                    ("delay", delay),
                    ("dispatchers", dispatchers),
                    ("load", LOADS),
                    ("tasks", tasks),
                    ("policy", &policies),
                ];
                let rows = rows(&arguments(&keys)?)?;
                let _ = writeln!(commands, "{}", command(&keys));
                let cell = format!("{name},{delay},{dispatchers}");
                for row in &rows {
                    let _ = writeln!(
                        all,
                        "{cell},{},\"{}\",{},{},{},{},{}",
                        row.load,
                        row.policy,
                        row.mean,
                        row.p99,
                        row.mean_ci95,
                        row.messages_per_task,
                        row.unstable
                    );
                }
                name_winners(&mut winners, &cell, &rows);
                grid.push((delay, dispatchers, rows));
            }
        }
        write(out, &format!("winners-{name}"), "svg", &map(name, &grid)?)?;
    }
    write(out, "winners-all", "csv", &all)?;
    write(out, "winners", "csv", &winners)?;
    write(out, "winners", "txt", &commands)
}

/// Returns the policies whose members are workers, with their default parameters.
fn policies() -> String {
    let entries = CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine);
    let mut names: Vec<_> = entries.map(|entry| entry.name).collect();
    names.push("jsq(2)");
    names.join(",")
}

/// Name of a quantity, and its value in a row.
type Measure = (&'static str, fn(&Row) -> f64);

const MEASURES: [Measure; 2] = [("mean", |row| row.mean), ("99th percentile", |row| row.p99)];

/// Returns the rows of a load whose queues did not grow, best first.
fn ranked(rows: &[Row], load: f64, of: fn(&Row) -> f64) -> Vec<&Row> {
    let mut ranked: Vec<_> = rows.iter().filter(|row| row.load == load && !row.unstable).collect();
    ranked.sort_by(|a, b| of(a).total_cmp(&of(b)));
    ranked
}

/// Returns the loads of the grid.
fn loads() -> impl Iterator<Item = f64> {
    LOADS.split(',').filter_map(|load| load.parse().ok())
}

/// Appends a cell's best and second-best policy to `text`, for each load and measure.
fn name_winners(text: &mut String, cell: &str, rows: &[Row]) {
    for load in loads() {
        for (measure, of) in MEASURES {
            if let [first, second, ..] = ranked(rows, load, of)[..] {
                let (best, next) = (of(first), of(second));
                let (first, second) = (&first.policy, &second.policy);
                let _ = writeln!(text, "{cell},{load},{measure},{first},{best},{second},{next}");
            }
        }
    }
}

/// Layout of the maps in pixels: size of a cell, and margins.
const WIDTH: i32 = 88;
const HEIGHT: i32 = 34;
const LEFT: i32 = 60;
const TOP: i32 = 64;

/// Draws two maps of winners, by mean and by 99th percentile: one row for each delay, one column for each
/// number of dispatchers and load.
fn map(name: &str, grid: &[Cell]) -> Result<String, String> {
    let columns = (DISPATCHERS.len() * loads().count()) as i32;
    let panel = TOP + HEIGHT * DELAYS.len() as i32;
    let size = ((LEFT + WIDTH * columns + 12) as u32, (2 * panel + 24) as u32);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let fail = |error: DrawingAreaErrorKind<std::io::Error>| error.to_string();
        root.fill(&WHITE).map_err(fail)?;
        let label = |text: String, x: i32, y: i32, size: i32| {
            root.draw(&Text::new(text, (x, y), ("sans-serif", size))).map_err(fail)
        };
        for (number, (measure, of)) in MEASURES.into_iter().enumerate() {
            let top = number as i32 * panel;
            let title =
                format!("Policy with the lowest {measure}, speeds {}", name.replace('-', ":"));
            label(title, LEFT, top + 6, 18)?;
            for (index, (delay, dispatchers, rows)) in grid.iter().enumerate() {
                let row = (index / DISPATCHERS.len()) as i32;
                let group = (index % DISPATCHERS.len()) as i32;
                let y = top + TOP + HEIGHT * row;
                label((*delay).to_owned(), 8, y + 10, 13)?;
                for (column, load) in loads().enumerate() {
                    let x = LEFT + WIDTH * (group * loads().count() as i32 + column as i32);
                    if row == 0 {
                        label(format!("m={dispatchers} load {load}"), x, y - 18, 12)?;
                    }
                    let Some(best) = ranked(rows, load, of).into_iter().next() else { continue };
                    let corners = [(x, y), (x + WIDTH - 2, y + HEIGHT - 2)];
                    let fill = color(&best.policy).mix(0.4).filled();
                    root.draw(&Rectangle::new(corners, fill)).map_err(fail)?;
                    label(best.policy.clone(), x + 3, y + 4, 11)?;
                    label(format!("{:.2}", of(best)), x + 3, y + 18, 11)?;
                }
            }
        }
        root.present().map_err(fail)?;
    }
    Ok(text)
}

/// Returns the colour of a policy, the same in all maps.
fn color(policy: &str) -> RGBColor {
    let index = CATALOGUE.iter().position(|entry| entry.name == policy);
    let (r, g, b) = Palette99::pick(index.unwrap_or(CATALOGUE.len())).rgb();
    RGBColor(r, g, b)
}
