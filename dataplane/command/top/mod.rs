//! `wedjat top`: live view of a running node, on a terminal or printed once.

mod reading;
mod report;
mod screen;

use std::path::Path;
use std::time::Duration;

use clap::Args;

use self::reading::Reading;
use self::report::Report;
use super::Outcome;
use super::node::Node;

/// Help text below the options.
pub const EXAMPLE: &str = "Example:
  wedjat top /dev/shm/wedjat-leaf1 --interval 500ms
Keys: q, Esc and Ctrl-C exit, p pauses.
Columns: tx/s are packets received and sent on, busy is the share of time in polls that brought packets, away are workers that are
silent or unreachable. The screen shows the worst workers: first those away, then those with the most outstanding tasks.";

/// Minimum interval. A node copies a state of at most 1 MiB every 50 ms, so that each interval has a new copy. It
/// copies a larger state less often.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Arguments of `wedjat top`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    node: Node,
    /// Interval between readings, at least 100ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Read twice, print the changes in between as plain text, and end
    #[arg(long)]
    once: bool,
    /// Show this many workers of each node
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    workers: usize,
}

/// Parses the interval of the command line. Refuses one below the minimum.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < INTERVAL_MIN {
        return Err("allowed: from 100ms on".to_owned());
    }
    Ok(interval)
}

/// Shows the node on the screen until the user ends it. With --once, prints the changes in one interval.
pub fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.node.state_file()?;
    let first = Reading::of(&path)?;
    if arguments.once {
        std::thread::sleep(arguments.interval);
        let report = Report::between(&first, &Reading::of(&path)?, arguments.workers);
        return super::print(&report.to_string());
    }
    watch(arguments, &path, first)
}

/// Shows the node on the screen until the user ends it. Fails if standard output is no terminal.
fn watch(arguments: &Arguments, path: &Path, first: Reading) -> Outcome {
    use std::io::IsTerminal;

    if !std::io::stdout().is_terminal() {
        return Err("standard output is not a terminal; print with --once".into());
    }
    screen::run(path, first, arguments.interval, arguments.workers)?;
    Ok(std::process::ExitCode::SUCCESS)
}
