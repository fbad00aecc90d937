//! `wedjat-testbed learner`: drives the learner through a trace and prints where it differs.

use std::path::PathBuf;

use clap::Args;
use wedjat_testbed::learner::trace;

use super::{Failure, Format};

/// What `--help` ends with.
pub const EXAMPLE: &str = "Example:
  wedjat-testbed learner --trace adamw_n5.json --format json
Exit status: 0 when no difference is above --within, 1 otherwise, 2 when the file is no trace.";

/// Arguments of `learner`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// A trace that another implementation wrote, as JSON
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// The largest difference that is taken for rounding
    #[arg(long, default_value_t = 1e-5)]
    within: f64,
    /// Output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Compares; false when they differ by more than rounding.
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
    let above =
        named.iter().filter(|(_, value)| value.is_some_and(|value| value > arguments.within));
    Ok(above.count() == 0)
}
