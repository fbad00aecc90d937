//! `wedjat-testbed batch`: a synthetic batch job to run beside workers, on the time that they leave.

use std::path::Path;

use clap::Args;
use wedjat::cosched::progress::COUNTER;
use wedjat_testbed::batch::Batch;

use super::Failure;

/// End of the `--help` text.
pub const EXAMPLE: &str = "Example:
  wedjat cosched run --agent host1 --progress counter -- wedjat-testbed batch memory";

/// Arguments of `batch`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Kind of batch job
    #[arg(value_enum)]
    batch: Batch,
    /// End after this number of units of its own counter
    #[arg(long)]
    units: Option<u64>,
}

/// Runs the batch job until its units are done; without `--units`, until a signal ends the process. Returns true: no
/// result is invalid. The environment variable [`COUNTER`], set by `wedjat cosched run`, names the file for its work
/// counter.
pub fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let counter = std::env::var_os(COUNTER);
    arguments.batch.run(arguments.units, counter.as_deref().map(Path::new))?;
    Ok(true)
}
