//! Comparison that no paper has: all policies by speeds, delay, dispatchers and load, with the best policy of
//! each cell.

use std::fmt::Write as _;

use wedjat::policy::{CATALOGUE, Runs};
use wedjat_pktgen::results::chart::{TileMap, tile_maps};

use super::{Output, arguments, command};
use crate::sim::{Row, rows};

/// Dimensions of the grid: ratio of the speeds of 100 servers with its flag, delay of a message, number of
/// dispatchers, and loads.
const SPEEDS: [(&str, &str); 3] = [("1-1", "100x1"), ("1-2", "50x1,50x2"), ("1-10", "50x1,50x10")];
const DELAYS: [&str; 5] = ["0us", "5us", "20us", "50us", "100us"];
const DISPATCHERS: [&str; 3] = ["1", "8", "32"];
const LOADS: &str = "0.5,0.7,0.9,0.95,0.99";

/// Cell of the grid: delay, dispatchers, and one row for each policy and load.
type Cell = (&'static str, &'static str, Vec<Row>);

/// Makes the figure: all rows, the winners, and a map of the winners for each ratio of speeds.
pub(super) fn make(out: &Output, full: bool) -> Result<(), String> {
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
        out.write(&format!("winners-{name}"), "svg", &map(name, &grid)?)?;
    }
    out.write("winners-all", "csv", &all)?;
    out.write("winners", "csv", &winners)?;
    out.write("winners", "txt", &commands)
}

/// Returns the policies whose members are workers, with their default parameters, and `jsq(2)`.
fn policies() -> String {
    let entries = CATALOGUE.iter().filter(|entry| entry.runs != Runs::Spine);
    let mut names: Vec<_> = entries.map(|entry| entry.name).collect();
    names.push("jsq(2)");
    names.join(",")
}

/// Name of a quantity, and its value in a row.
type Measure = (&'static str, fn(&Row) -> f64);

/// Quantities by which policies are ranked.
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

/// Appends a cell's best and second-best policy to `text`, for each load and measure with two stable policies.
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

/// Draws two maps of winners, by mean and by 99th percentile: one row for each delay, one column for each
/// number of dispatchers and load.
fn map(name: &str, grid: &[Cell]) -> Result<String, String> {
    let columns = DISPATCHERS
        .iter()
        .flat_map(|dispatchers| loads().map(move |load| format!("m={dispatchers} load {load}")));
    let columns: Vec<_> = columns.collect();
    let maps = MEASURES.map(|(measure, of)| {
        let tile = |rows: &[Row], load| {
            let best = ranked(rows, load, of).into_iter().next()?;
            Some((color(&best.policy), [best.policy.clone(), format!("{:.2}", of(best))]))
        };
        let row = |cells: &[Cell]| {
            let tiles = cells.iter().flat_map(|cell| loads().map(|load| tile(&cell.2, load)));
            (cells[0].0.to_owned(), tiles.collect())
        };
        TileMap {
            title: format!("Policy with the lowest {measure}, speeds {}", name.replace('-', ":")),
            columns: columns.clone(),
            rows: grid.chunks(DISPATCHERS.len()).map(row).collect(),
        }
    });
    tile_maps(&maps).map_err(|error| error.to_string())
}

/// Returns the index of the colour of a policy, the same in all maps. `jsq(2)`, which is no name of the
/// catalogue, has the last one.
fn color(policy: &str) -> usize {
    CATALOGUE.iter().position(|entry| entry.name == policy).unwrap_or(CATALOGUE.len())
}
