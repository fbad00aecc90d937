//! `wedjat-testbed learner`: replays a trace of another implementation with the learner and prints the
//! differences. In racks without a leaf, the learner chooses the nodes to which tasks migrate and from which
//! tasks are stolen.

use std::path::PathBuf;

use clap::Args;
use wedjat_testbed::learner::trace;

use super::{Failure, Format};

/// End of the `--help` text.
pub const EXAMPLE: &str = "Example:
  wedjat-testbed learner --trace adamw_n5.json --format json
Exit status: 0 if all differences are at most --within, 1 otherwise, 2 if the file is not a trace.";

/// Arguments of `learner`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Trace of another implementation, as JSON
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Largest difference that counts as rounding
    #[arg(long, default_value_t = 1e-5)]
    within: f64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Compares learner and trace. Returns false if they differ by more than rounding. Ignores values that the trace lacks.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let path = arguments.trace.display();
    let text = wedjat::state::files::read_text(&arguments.trace)
        .map_err(|error| format!("{path}: {error}"))?;
    let differences = trace::compare(&text).map_err(|error| format!("{path}: {error}"))?;
    match arguments.format {
        Format::Json => println!("{}", serde_json::to_string(&differences)?),
        Format::Text => print!("{}", differences.lines()),
    }
    let named = differences.named();
    let exceeding =
        named.iter().filter(|(_, value)| value.is_some_and(|value| value > arguments.within));
    Ok(exceeding.count() == 0)
}
