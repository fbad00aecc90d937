//! Horus Fig. 18: cost of a spine switch's failure, over the number of leaves per spine scheduler. A spine scheduler
//! serves some of the leaves of one pool. The controller sends a message to each leaf whose scheduler fails.

use std::fmt::Write as _;

use super::{Output, arguments, command, command_of_figure, draw};
use crate::sim::failure::{Failure, spine_failures};
use crate::sim::model::Model;
use crate::sim::plan;

/// Name of the figure and of its files.
const NAME: &str = "horus-18";
/// Numbers of leaves per spine scheduler.
const RATIOS: [&str; 4] = ["10", "20", "30", "40"];
/// Sizes, in workers, of the pieces in which a pool's workers are placed. A piece is in one rack; smaller pieces spread
/// a pool over more racks.
const PIECES: [&str; 3] = ["32", "4", "1"];
/// Number of failures in the paper.
const FAILURES: usize = 30;

/// Makes the figure: mean and maximum number of messages over all failures, for each size of pieces.
pub(super) fn make(out: &Output, full: bool) -> Result<(), String> {
    let failures = if full { 10 * FAILURES } else { FAILURES };
    // After the messages: time of the last notification since the failure, tasks lost before it, their share of all
    // tasks, and the mean fraction of its pool served by a failed scheduler.
    let mut table =
        "piece,ratio,messages_mean,messages_most,notice_us,aborted_mean,share_mean,pool_share_mean\n"
            .to_owned();
    let (mut commands, mut lines) = (command_of_figure(NAME, full), Vec::new());
    for piece in PIECES {
        let (mut mean, mut maximum) = (Vec::new(), Vec::new());
        for ratio in RATIOS {
            let keys = [
                ("model", "fabric"),
                ("load", "0.8"),
                ("piece", piece),
                ("leaves-per-spine", ratio),
            ];
            let cell = plan::cells(&arguments(&keys)?)?.pop().ok_or("no cell")?;
            let Model::Fabric(config) = cell.model else { return Err("no fabric".to_owned()) };
            let all = spine_failures(&config, failures)?;
            // Mean of a value over all failures.
            let average =
                |value: fn(&Failure) -> f64| all.iter().map(value).sum::<f64>() / all.len() as f64;
            let messages = average(|failure| failure.messages as f64);
            let greatest = all.iter().map(|failure| failure.messages).max().unwrap_or(0);
            let _ = writeln!(
                table,
                "{piece},{ratio},{messages:.1},{greatest},{:.1},{:.1},{:.6},{:.4}",
                average(|failure| failure.notice_us),
                average(|failure| failure.aborted),
                average(|failure| failure.share),
                average(|failure| failure.pool_share),
            );
            let ratio: f64 = ratio.parse().unwrap_or(f64::NAN);
            mean.push((ratio, messages));
            maximum.push((ratio, greatest as f64));
            let _ = writeln!(commands, "with the placement of: {}", command(&keys));
        }
        lines.push((format!("mean, workers in pieces of {piece}"), mean));
        lines.push((format!("maximum, workers in pieces of {piece}"), maximum));
    }
    let title = "Horus Fig. 18: messages to leaves when a spine switch fails";
    let axes = ("leaves per spine scheduler of a pool", "messages of the controller");
    out.write(NAME, "svg", &draw(title, axes, &lines)?)?;
    out.write(NAME, "csv", &table)?;
    out.write(NAME, "txt", &commands)
}
